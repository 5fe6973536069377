#include "nvte/fused_attn.h"
