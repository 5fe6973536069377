#include "nvte/ep.h"
#include "transformer_engine/transformer_engine.h"
