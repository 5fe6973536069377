#include "nvte/newton_schulz.h"
#include "transformer_engine/transformer_engine.h"
