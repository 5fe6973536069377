#ifndef NVTE_CPP_RECIPE_H
#define NVTE_CPP_RECIPE_H

// The function of recipe.h whose parameters C cannot declare.

#include "nvte/cpp/transformer_engine.h"
#include "nvte/recipe.h"

/*! nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction (nvte/recipe.h) on vectors.
 *  Vectors that differ in length are an error, reported as the error mode says. */
extern "C" void nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
    const NVTETensor amax_reduction_buffer, std::vector<NVTETensor> amax_histories,
    std::vector<NVTETensor> scales, const char *amax_compute_algo, NVTEDType fp8_dtype,
    const float margin, cudaStream_t stream);

#endif  // NVTE_CPP_RECIPE_H
