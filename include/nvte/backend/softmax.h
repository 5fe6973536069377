#ifndef NVTE_BACKEND_SOFTMAX_H
#define NVTE_BACKEND_SOFTMAX_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Which keys a query of a softmax sees.
 */
typedef enum NVTEXSoftmaxMask {
  /**
   * Every query sees every key.
   */
  NVTEX_SOFTMAX_UNMASKED = 0,
  /**
   * Every query sees every key; where the byte of the mask is 1, the score is -10000.
   */
  NVTEX_SOFTMAX_BYTES = 1,
  /**
   * Query i sees the keys `j <= i`.
   */
  NVTEX_SOFTMAX_CAUSAL = 2,
  /**
   * Query i sees the keys `j <= i + keys - queries`.
   */
  NVTEX_SOFTMAX_CAUSAL_BOTTOM_RIGHT = 3,
} NVTEXSoftmaxMask;

/**
 * Softmax over the keys that a query sees, 0 for those that it does not; of `[matrices, queries,
 * keys]` elements.
 *
 * Forward: `y = exp(t - max t) / sum exp(t - max t)` with `t = scale * x`, and with a mask of bytes 0
 * in rows whose largest `t` is -10000. Backward: `dx = scale * y * (dy - sum(dy * y))`. Float32
 * throughout, one rounding to the dtype; a NaN that is seen makes its row NaN.
 */
typedef struct NVTEXSoftmaxArgs {
  /**
   * x; dy for the backward.
   */
  const void *input;
  /**
   * y for the backward, null for the forward.
   */
  const void *results;
  /**
   * May be `input`.
   */
  void *output;
  /**
   * Forward with `NVTEX_SOFTMAX_BYTES`: matrix m has the bytes `[queries, keys]` from
   * `m / matrices_per_mask * queries * keys` on.
   */
  const uint8_t *mask;
  size_t matrices_per_mask;
  size_t matrices;
  size_t queries;
  size_t keys;
  float scale;
  enum NVTEXSoftmaxMask visible;
  /**
   * F32, F16 or BF16, of all tensors.
   */
  NVTEDType dtype;
} NVTEXSoftmaxArgs;

#endif  /* NVTE_BACKEND_SOFTMAX_H */
