#include "nvte/types.h"
