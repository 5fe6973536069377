// The list of the operators that have cases for `nvte/conform.h`, and of the variants that can have
// none.
#ifndef NVTE_CONFORM_OPERATORS_H
#define NVTE_CONFORM_OPERATORS_H

#include "nvte/conform_models.h"

typedef struct ConformGenerator {
  const char *op;
  // Makes case `index` of a variant; false if there are no cases for it. The variant is "" if the
  // operator has one.
  bool (*make)(ConformCase *c, ConformRandom *random, const char *variant, size_t index);
} ConformGenerator;

static const ConformGenerator conform_generators[] = {
    {"padding", conform_make_padding},
    {"quantize", conform_make_quantize_or_group},
    {"dequantize", conform_make_dequantize},
    {"norm_forward", conform_make_norm_forward},
    {"norm_backward", conform_make_norm_backward},
    {"softmax", conform_make_softmax},
    {"rope", conform_make_any_rope},
    {"transpose", conform_make_transpose},
    {"swap_first_dims", conform_make_swap},
    {"amax", conform_make_amax},
    {"memset", conform_make_memset},
    {"gemm", conform_make_any_gemm},
    {"adam", conform_make_adam},
    {"sgd", conform_make_sgd},
    {"l2_norm", conform_make_l2_norm},
    {"scale_tensors", conform_make_scale_tensors},
    {"scales_from_amax", conform_make_scales_from_amax},
    {"dropout", conform_make_dropout},
    {"row_map", conform_make_permute},
    {"permute", conform_make_permute},
    {"unpermute", conform_make_unpermute},
    {"sort_pairs", conform_make_sort_pairs},
    {"topk", conform_make_topk},
    {"router_forward", conform_make_router_forward},
    {"router_backward", conform_make_router_backward},
    {"router_histogram", conform_make_histogram},
    {"aux_loss", conform_make_aux_loss},
    {"aux_loss_backward", conform_make_aux_loss_backward},
    {"delayed_scaling", conform_make_delayed_scaling},
    {"scale_from_amax", conform_make_scale_from_amax},
    {"partial_amax", conform_make_partial_amax},
    {"partial_cast", conform_make_partial_cast},
    {"swizzle", conform_make_swizzle},
    {"hadamard", conform_make_hadamard},
    {"hadamard_amax", conform_make_hadamard_amax},
    {"nvfp4_quantize", conform_make_nvfp4_any},
    {"nvfp4_dequantize", conform_make_nvfp4_dequantize},
    {"nvfp4_global_scale", conform_make_nvfp4_global_scale},
    {"nvfp4_block_scale", conform_make_nvfp4_block_scale},
    {"nvfp4_transpose", conform_make_nvfp4_transpose},
    {"nvfp4_scale_transpose", conform_make_nvfp4_scale_transpose},
    {"nvfp4_partial_amax", conform_make_nvfp4_partial_amax},
    {"nvfp4_partial_cast", conform_make_nvfp4_partial_cast},
    {"nvfp4_alpha", conform_make_nvfp4_alpha},
    {"transpose_dbias", conform_make_transpose_dbias},
    {"host_copy", conform_make_host_copy},
    {"offsets", conform_make_offsets},
    {"widen", conform_make_widen},
    {"attention", conform_make_attention},
    {"scaled_activation", conform_make_scaled},
    {"scale_codes", conform_make_scale_codes},
    {"group_amax", conform_make_group_amax},
    {"move_rows", conform_make_move_rows},
    {"reindex_cache", conform_make_reindex},
    {"grad_correction", conform_make_grad_correction},
    {"half_lse", conform_make_half_lse},
    {"out_correction", conform_make_out_correction},
    {"partition", conform_make_partition},
    {"seed", conform_make_seed},
    {"copy_rows", conform_make_copy_rows},
    {"grouped_gemm", conform_make_grouped_gemm},
    {"grouped_bias", conform_make_grouped_bias},
    {"counters", conform_make_counters},
    {"cross_entropy", conform_make_cross_entropy},
    {"combine_cross_entropy", conform_make_combine},
    {"total_loss", conform_make_total},
    {"embedding", conform_make_embedding},
    {"row_keys", conform_make_embedding_grad},
    {"sum_rows", conform_make_embedding_grad},
    {"sample_tokens", conform_make_sample},
    {"requantize", conform_make_requantize},
};

// The cases of an operator; null if there are none.
static inline const ConformGenerator *conform_generator(const char *op) {
  for (size_t i = 0; i < sizeof conform_generators / sizeof *conform_generators; i++) {
    if (strcmp(conform_generators[i].op, op) == 0) return &conform_generators[i];
  }
  return NULL;
}

// Why a variant has no cases: a case is one call of a public function. Null for all others.
static inline const char *conform_unreachable(const char *variant) {
  static const struct {
    const char *prefix, *why;
  } all[] = {
      {"add", "only layers, optimizers and checkpoints add tensors, on their own memory"},
      {"step_numbers", "only an optimizer computes the numbers of its steps, in its own memory"},
      {"muon.", "only an optimizer updates by Muon, in its own memory"},
      {"adam.fp8_moments", "only an optimizer keeps moments in FP8, in its own memory"},
      {"expert_rows", "only experts across ranks call it, which need a communicator"},
      {"zero_gaps", "only experts call it, on their own memory"},
      {"symmetric_gemm", "only Newton-Schulz iterations call it, on their own memory"},
      {"permute.weighted", "only experts across ranks call it, which need a communicator"},
      {"merge_attention", "only attention over ranks calls it, on its own memory"},
      {"chunk_lengths", "only attention over ranks calls it, on its own memory"},
      {"router_weights.", "only a layer of experts calls it, on its own memory"},
      {"router_z_loss.", "only a layer of experts calls it, on its own memory"},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    const size_t length = strlen(all[i].prefix);
    const bool family = all[i].prefix[length - 1] == '.';
    if (strncmp(variant, all[i].prefix, length) == 0 && (family || !variant[length])) {
      return all[i].why;
    }
  }
  static const char *const scaled[] = {"swiglu", "srelu", "situglu", "clamped_swiglu"};
  const char *name = strncmp(variant, "scaled_activation.", 18) == 0 ? variant + 18 : NULL;
  if (!name) return NULL;
  for (size_t i = 0; i < sizeof scaled / sizeof *scaled; i++) {
    if (conform_is(name, scaled[i]) || (*name == 'd' && conform_is(name + 1, scaled[i]))) {
      return NULL;
    }
  }
  return "no function of the library calls it";
}

#endif  // NVTE_CONFORM_OPERATORS_H
