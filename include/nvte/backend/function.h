#ifndef NVTE_BACKEND_FUNCTION_H
#define NVTE_BACKEND_FUNCTION_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * How the elements v that are cast come from the inputs, in float32. `f'` is the derivative, G the
 * function of the linear half (the identity unless the function says otherwise).
 */
typedef enum NVTEXForm {
  /**
   * `v = input`
   */
  NVTEX_FORM_PLAIN = 0,
  /**
   * `v = f(input)`
   */
  NVTEX_FORM_ACTIVATION = 1,
  /**
   * `v = f'(act_input) * input`
   */
  NVTEX_FORM_DERIVATIVE = 2,
  /**
   * Input `[rows, 2 cols]` = (a | g): `v = f(a) * G(g)`
   */
  NVTEX_FORM_GATED = 3,
  /**
   * Input `[rows, cols / 2]`, act_input `[rows, cols]` = (a | g): the left half is
   * `v = (f'(a) * input) * G(g)`, the right half `v = (G'(g) * input) * f(a)`.
   */
  NVTEX_FORM_GATED_DERIVATIVE = 4,
} NVTEXForm;

/**
 * A function f of one number, with its parameters a, b and c.
 */
typedef enum NVTEXFunction {
  /**
   * `x`
   */
  NVTEX_IDENTITY = 0,
  /**
   * `x / (1 + exp(-2 x (0.79788456 + 0.03567741 x^2)))`, the tanh form of GELU.
   */
  NVTEX_GELU = 1,
  /**
   * `x / (1 + exp(-x))`
   */
  NVTEX_SILU = 2,
  /**
   * `x / (1 + exp(-1.702 x))`
   */
  NVTEX_QGELU = 3,
  /**
   * `max(x, 0)`, 0 for NaN
   */
  NVTEX_RELU = 4,
  /**
   * `max(x, 0)^2`, 0 for NaN
   */
  NVTEX_SRELU = 5,
  /**
   * `1 / (1 + exp(-x))`
   */
  NVTEX_SIGMOID = 6,
  /**
   * `m / (1 + exp(-b m))` with `m = min(x, a)`; the other half of a gated form becomes
   * `min(max(x, -a), a) + c`.
   */
  NVTEX_CLAMPED_SILU = 7,
  /**
   * `a tanh(x / a) / (1 + exp(-x))`; the other half of a gated form becomes `b tanh(x / b)`.
   */
  NVTEX_SITU = 8,
} NVTEXFunction;

/**
 * Form and function of a fused cast.
 */
typedef struct NVTEXFusion {
  enum NVTEXForm form;
  enum NVTEXFunction function;
  float a;
  float b;
  float c;
  /**
   * The input of the activation, for derivatives; of the input's dtype.
   */
  const void *act_input;
  /**
   * For NVTEX_FORM_PLAIN and NVTEX_FORM_DERIVATIVE: `[cols]` (groups: `[num_tensors, cols]`) of the
   * input's dtype, or null: the sum of v over the rows (of a member), in float32 in this order:
   * within each 128 rows (that begin a member) the sums of 4 rows one after the other, then pairs of
   * those, then the 16 pairs one after the other; of those blocks the i-th is added to sum i % 8, and
   * these 8 are added one after the other. Sums begin at +0, so that none is -0.
   */
  void *dbias;
  /**
   * With dbias: `dbias_workspace_rows() * cols` floats.
   */
  float *workspace;
  /**
   * For NVTEX_FORM_GATED of groups or to blocks: `[rows]` of the input's dtype, or null; v is
   * multiplied by its row's. The row of a member's element is that of the whole,
   * `(offset + element) / cols`.
   */
  const void *row_scales;
} NVTEXFusion;

#endif  /* NVTE_BACKEND_FUNCTION_H */
