#include "nvte/padding.h"
#include "transformer_engine/transformer_engine.h"
