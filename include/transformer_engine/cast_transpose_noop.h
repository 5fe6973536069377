#include "nvte/cast_transpose_noop.h"
#include "transformer_engine/transformer_engine.h"
