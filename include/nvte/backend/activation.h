#ifndef NVTE_BACKEND_ACTIVATION_H
#define NVTE_BACKEND_ACTIVATION_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/backend/function.h"

/**
 * An activation whose rows have scales, or its derivatives, in float32. With v of [`Form`] without
 * the scales:
 *
 * Forward: `output[r][h] = cast(v * scales[r])`.
 *
 * Backward: with `sg = grad * scales[r]`, plain `output = cast(sg * f'(a))`; gated, the left half is
 * `cast(sg * (f'(a) * G(g)))`, the right half `cast(sg * (G'(g) * f(a)))`. `grad_scales[r] = cast(sum
 * of grad * w)` with `w = f(a)`, or `f(a) * G(g)`, in this order: the product of element h is added
 * to sum h % 1024; neighbouring pairs of these 1024 sums are added, then neighbouring pairs of the
 * results, until one is left.
 */
typedef struct NVTEXScaledActivationArgs {
  /**
   * `[rows, cols]`, gated `[rows, 2 cols]`.
   */
  const void *input;
  /**
   * `[rows, cols]`, or null: forward.
   */
  const void *grad;
  /**
   * Forward `[rows, cols]`, backward as the input.
   */
  void *output;
  /**
   * `[rows]`
   */
  const void *scales;
  /**
   * `[rows]`, or null. Only backward.
   */
  void *grad_scales;
  size_t rows;
  size_t cols;
  /**
   * A gated row is a sequence of `interleave` elements of a, as many of g, and so on: `cols` for
   * the usual halves, else a divisor of it that is a multiple of 32.
   */
  size_t interleave;
  bool gated;
  NVTEXFunction function;
  float a;
  float b;
  float c;
  /**
   * Each F32, F16 or BF16.
   */
  NVTEDType input_dtype;
  NVTEDType grad_dtype;
  NVTEDType output_dtype;
  NVTEDType scales_dtype;
  NVTEDType grad_scales_dtype;
} NVTEXScaledActivationArgs;

#endif  /* NVTE_BACKEND_ACTIVATION_H */
