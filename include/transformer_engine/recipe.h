#include "nvte/recipe.h"
#ifdef __cplusplus
#include "nvte/cpp/recipe.h"
#endif
