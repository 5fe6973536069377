#include "nvte/utils.h"
#include "transformer_engine/transformer_engine.h"
