#include "nvte/multi_stream.h"
#include "transformer_engine/transformer_engine.h"
