#include "nvte/topk.h"
#include "transformer_engine/transformer_engine.h"
