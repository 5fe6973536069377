#include "nvte/comm_gemm.h"
#include "transformer_engine/transformer_engine.h"
