#include "nvte/fused_rope.h"
#include "transformer_engine/transformer_engine.h"
