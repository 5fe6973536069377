#include "nvte/softmax.h"
#include "transformer_engine/transformer_engine.h"
