#include "nvte/transpose.h"
#include "transformer_engine/transformer_engine.h"
