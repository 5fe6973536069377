#include "nvte/transformer_engine.h"
#ifdef __cplusplus
#include "nvte/cpp/comm_gemm_overlap.h"
#endif
