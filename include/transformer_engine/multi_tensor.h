#include "nvte/multi_tensor.h"
#include "transformer_engine/transformer_engine.h"
