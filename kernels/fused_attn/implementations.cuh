// The implementations of attention, in order of preference: the row of one is all that connects its
// source with the others. nvte_attention_STEM_reject answers why the implementation does not take a
// pass, or null, and then how many bytes of workspace it needs; nvte_attention_STEM runs it.
#pragma once

#include "nvte/backend/attention.h"

// ROW(stem of the names of its functions, name in messages).
#define NVTE_ATTENTION_IMPLEMENTATIONS(ROW)   \
  ROW(decode, "decode")                       \
  ROW(sm90_forward, "sm90-forward")           \
  ROW(sm90_backward, "sm90-backward")         \
  ROW(sm90_fp8_backward, "sm90-fp8-backward") \
  ROW(mma_forward, "mma-forward")             \
  ROW(mma_backward, "mma-backward")           \
  ROW(simt_forward, "simt-forward")           \
  ROW(simt_backward, "simt-backward")

#define NVTE_DECLARE(stem, name)                                             \
  const char *nvte_attention_##stem##_reject(const NVTEXAttentionArgs *args, \
                                             size_t *workspace) noexcept;    \
  NVTEXOutcome nvte_attention_##stem(const NVTEXAttentionArgs *args, cudaStream_t stream) noexcept;
NVTE_ATTENTION_IMPLEMENTATIONS(NVTE_DECLARE)
#undef NVTE_DECLARE
