#ifndef NVTE_BACKEND_DROPOUT_H
#define NVTE_BACKEND_DROPOUT_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * `y = keep ? cast(x * 1 / (1 - probability)) : 0`; bit `i % 8` of the byte `i / 8` of the mask says
 * whether element i is kept, and the bits after the last element are 0.
 *
 * Forward: the bits are drawn. Elements 16 c to 16 c + 15 take the 16 bytes of four words of Philox
 * 4x32-10 with the seed as key and the counter `offset / 4 + 2^64 c`, from word `offset % 4` on;
 * element i of them takes of word `i % 8 / 2` the byte `i / 8 + (i even ? 2 : 0)`, the least
 * significant one being 0, and is kept unless that is less than `floor(256 * probability)`.
 *
 * With a residual the forward is `y = cast(residual + (keep ? (x + bias) * 1 / (1 - probability) : 0))`,
 * in float32.
 */
typedef struct NVTEXDropoutArgs {
  const void *input;
  /**
   * May be `input`.
   */
  void *output;
  /**
   * `ceil(numel / 8)` bytes; read by the backward.
   */
  uint8_t *mask;
  /**
   * Seed and offset for the forward, null for the backward.
   */
  const uint64_t *rng_state;
  /**
   * FP8 inputs: x is multiplied by this float first.
   */
  const float *scale_inv;
  size_t numel;
  /**
   * At least 0 and less than 1.
   */
  float probability;
  /**
   * F32, F16, BF16, E4M3 or E5M2.
   */
  NVTEDType input_dtype;
  /**
   * F32, F16 or BF16; as the input unless that is FP8.
   */
  NVTEDType output_dtype;
  /**
   * As the input, which is not FP8 then, or null.
   */
  const void *residual;
  /**
   * `[cols]` of the input's dtype, for each row of the input, or null; null without a residual.
   */
  const void *bias;
  size_t cols;
  /**
   * Elements 16 c to 16 c + 15 have the random numbers of c + `first`: the input is a part of a whole. 0 for the
   * backward.
   */
  size_t first;
} NVTEXDropoutArgs;

#endif  /* NVTE_BACKEND_DROPOUT_H */
