#include "nvte/cast.h"
#include "transformer_engine/transformer_engine.h"
