#include "nvte/dropout.h"
#include "transformer_engine/transformer_engine.h"
