#include "nvte/gemm.h"
#ifdef __cplusplus
#include "nvte/cpp/gemm.h"
#endif
