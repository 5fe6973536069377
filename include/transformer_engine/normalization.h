#include "nvte/normalization.h"
#include "transformer_engine/transformer_engine.h"
