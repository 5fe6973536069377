#include "nvte/activation.h"
#include "transformer_engine/transformer_engine.h"
