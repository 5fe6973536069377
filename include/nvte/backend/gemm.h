#ifndef NVTE_BACKEND_GEMM_H
#define NVTE_BACKEND_GEMM_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * What happens to `v = alpha * scale_a * scale_b * (Bop Aop) + beta * C` on its way to D.
 */
typedef enum NVTEXGemmEpilogue {
  /**
   * `D = v`
   */
  NVTEX_EPILOGUE_NONE = 0,
  /**
   * `D = v + bias`
   */
  NVTEX_EPILOGUE_BIAS = 1,
  /**
   * `aux = v; D = gelu(v)`
   */
  NVTEX_EPILOGUE_GELU = 2,
  /**
   * `aux = v + bias; D = gelu(v + bias)`
   */
  NVTEX_EPILOGUE_GELU_BIAS = 3,
  /**
   * `D = v; bias[j] = sum over k of Bop[j, k]`, length n
   */
  NVTEX_EPILOGUE_BGRAD = 4,
  /**
   * `D = v * dgelu(aux)`
   */
  NVTEX_EPILOGUE_DGELU = 5,
  /**
   * `D = v * dgelu(aux); bias[i] = sum over rows of D[:, i]`, length m
   */
  NVTEX_EPILOGUE_DGELU_BGRAD = 6,
  /**
   * A has twice as many columns as D, those of `g` before those of `u`: `D = silu(g) * u`, and `aux` has the
   * derivatives by both, `[n, 2 m]`. Only with `aux_slope` and operands in FP8.
   */
  NVTEX_EPILOGUE_SWIGLU = 7,
  /**
   * `D[:, i] = v[:, i] * aux[:, i]` and `D[:, m + i] = v[:, i] * aux[:, m + i]`, where `aux` and D have twice as many
   * columns as A. Only with `aux_slope` and operands in FP8.
   */
  NVTEX_EPILOGUE_DSWIGLU = 8,
} NVTEXGemmEpilogue;

/**
 * Scales of one operand of a matrix product, as [`Cast`] describes them: row-wise ones if the
 * operand is stored `[outer, k]`, column-wise ones of MXFP8 data that are stored `[k, outer]`.
 */
typedef struct NVTEXGemmScales {
  /**
   * FP8 operands: one float in mode 0, else the scale matrix. Null for other operands.
   */
  const void *inv;
  /**
   * Elements from one row of the scale matrix to the next; 0 in mode 0.
   */
  size_t stride;
  NVTEScalingMode mode;
  /**
   * Modes 1 and 4.
   */
  bool swizzled;
} NVTEXGemmScales;

/**
 * Factors of products of NVFP4 operands, on the device.
 */
typedef struct NVTEXNvfp4Factors {
  /**
   * Largest magnitudes of the operands: alpha becomes `((alpha * amax_a) * amax_b) * factor`. Null: no
   * such factors.
   */
  const float *amax_a;
  const float *amax_b;
  float factor;
  /**
   * Both are null, or both stand for `alpha` and `beta` of the product; then `amax_a` is null.
   */
  const float *alpha;
  const float *beta;
} NVTEXNvfp4Factors;

/**
 * `D = epilogue(alpha * scale_a * scale_b * (Bop Aop) + beta * C)`, row-major D `[n, m]`.
 *
 * `Aop [k, m]` is A `[k, m]`, or with `transa` A^T of A `[m, k]`; `Bop [n, k]` is B `[n, k]`, or with
 * `transb` B^T of B `[k, n]`. Read column-major this is the BLAS product with the same flags. An FP8 D
 * is `cast(v * scale_d)`, with `amax_d = max|v|` and `scale_inv_d = 1 / scale_d`.
 *
 * Operands in blocks have other scales along k, so these go into the sum: in MXFP8 (both operands in
 * mode 1) each element is multiplied by its scale. In FP8 blocks (modes 2 and 3, one of them in mode 2;
 * `transa`, not `transb`) the partial sums p of each 128 of k are added up as `y = fma(p * s, t, y)`,
 * where s is the scale of B and t that of A, or the other way round if B is in mode 3; if `beta` is 1,
 * `alpha * y` is rounded to D's dtype before C is added. The epilogues of FP8 blocks are none, bias and
 * dGELU.
 *
 * NVFP4 operands (mode 4, both; `transa`, not `transb`) are E2M1 codes `[outer, k / 2]`, two in a byte, the
 * first in the low bits; k is a multiple of 16. Their scales are E4M3 codes `[outer][k / 16]`, each for 16
 * elements along k, or with `swizzled` in tiles of 128 x 4.
 */
typedef struct NVTEXGemmArgs {
  const void *a;
  const void *b;
  /**
   * Read only if `beta` is not 0; may equal `d`. Its dtype is that of D.
   */
  const void *c;
  void *d;
  struct NVTEXGemmScales scales_a;
  struct NVTEXGemmScales scales_b;
  /**
   * FP8 D only; each may be null.
   */
  const float *scale_d;
  /**
   * Also of a BFloat16 D, with `aux_slope` and operands in FP8.
   */
  float *amax_d;
  float *scale_inv_d;
  /**
   * Bias, read or written as the epilogue says.
   */
  void *bias;
  /**
   * `[n, m]`, read or written as the epilogue says.
   */
  void *aux;
  void *workspace;
  size_t workspace_bytes;
  size_t m;
  size_t n;
  /**
   * May be 0.
   */
  size_t k;
  float alpha;
  float beta;
  NVTEDType a_dtype;
  NVTEDType b_dtype;
  NVTEDType d_dtype;
  NVTEDType bias_dtype;
  NVTEDType aux_dtype;
  enum NVTEXGemmEpilogue epilogue;
  struct NVTEXNvfp4Factors nvfp4;
  bool transa;
  bool transb;
  /**
   * Promote FP8 partial sums to full float32 registers every 128 products; FP8 blocks always do.
   */
  bool split_accumulator;
  /**
   * Multiprocessors to use, 0 for all.
   */
  int sm_count;
  /**
   * `aux` has `dgelu(v)` in place of `v`: GELU writes it, and its derivative multiplies by what it reads. With operands
   * in FP8 `amax_d` is then raised to `max|v|`, or to that of a D in BFloat16, not set to it, and `d_columns` is
   * wanted of an FP8 D.
   */
  bool aux_slope;
  /**
   * D transposed, only of an FP8 D with `aux_slope`. Null: not wanted.
   */
  void *d_columns;
  /**
   * Elements from a row of `d_columns` to the next: D has some rows of a matrix of so many.
   */
  size_t d_columns_pitch;
} NVTEXGemmArgs;

/**
 * `D = alpha A B^T + beta C + diagonal I`, `[n, n]`, where A B^T and C are symmetric but for rounding: D is symmetric,
 * and follows from what is on and below its diagonal.
 */
typedef struct NVTEXSymmetricGemmArgs {
  /**
   * `[n, k]`, or with `transposed` `[k, n]`.
   */
  const void *a;
  const void *b;
  /**
   * Read only if `beta` is not 0. Is not D.
   */
  const void *c;
  void *d;
  void *workspace;
  size_t workspace_bytes;
  size_t n;
  /**
   * At least 1.
   */
  size_t k;
  float alpha;
  float beta;
  float diagonal;
  /**
   * Of all matrices.
   */
  NVTEDType dtype;
  bool transposed;
} NVTEXSymmetricGemmArgs;

#endif  /* NVTE_BACKEND_GEMM_H */
