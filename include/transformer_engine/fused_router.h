#include "nvte/fused_router.h"
#include "transformer_engine/transformer_engine.h"
