#include "nvte/swizzle.h"
#include "transformer_engine/transformer_engine.h"
