#include "nvte/transformer_engine.h"
#ifdef __cplusplus
#include "nvte/cpp/transformer_engine.h"
#endif
