#include "nvte/hadamard_transform.h"
#include "transformer_engine/transformer_engine.h"
