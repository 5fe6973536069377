#include "nvte/permutation.h"
#include "transformer_engine/transformer_engine.h"
