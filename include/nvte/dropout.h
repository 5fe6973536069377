#ifndef NVTE_DROPOUT_H
#define NVTE_DROPOUT_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Drops elements at random, and writes which ones were kept: `y = keep ? cast(x / (1 - p)) : 0`.
 *
 * Mask: element e is bit `e % 8` (1: kept) of byte `e / 8`. It is dropped if its random byte is less
 * than `floor(256 p)`, so p counts in steps of 1/256, while the factor `1 / (1 - p)` is not rounded.
 * The random bytes come from Philox 4x32-10, so that the seed and offset of `rng_state` determine the
 * mask: 16 elements use four words at the stream position `offset` of the sequence `e / 16`.
 *
 * Shapes: any with the same number of elements n; the output may be the input. The mask has
 * `ceil(n / 8)` bytes of any dtype, whose bits after the last element are set to 0. `rng_state` is
 * `[2]` on the device.
 *
 * Dtypes: Float32, Float16 or BFloat16, the same for both, or from Float8E4M3 or Float8E5M2 with a
 * `scale_inv`, which multiplies x; `rng_state` Int64 (seed, offset).
 *
 * Notes: nothing is written to empty tensors.
 *
 * Errors: other dtypes or sizes; p not in [0, 1); null or misaligned pointers.
 *
 * Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011).
 */
void nvte_dropout_fwd(NVTETensor input,
                      NVTETensor output,
                      NVTETensor mask,
                      NVTETensor rng_state,
                      float dropout_probability,
                      cudaStream_t stream);

/**
 * Computes the gradients of `nvte_dropout_fwd` from its mask: `dx = keep ? cast(dy / (1 - p)) : 0`.
 *
 * Shapes, dtypes, errors: as the forward pass, without FP8; `grad_input` may be `grad_output`.
 */
void nvte_dropout_bwd(NVTETensor grad_output,
                      NVTETensor mask,
                      NVTETensor grad_input,
                      float dropout_probability,
                      cudaStream_t stream);

/**
 * Adds a bias, drops elements at random and adds a residual, in one pass:
 * `y = cast(residual + (keep ? (x + bias) / (1 - p) : 0))`.
 *
 * What it computes: mask and factor are those of `nvte_dropout_fwd`. Sums and product are rounded to
 * Float32, the result once more.
 *
 * Gradients: `nvte_dropout_bwd` turns those of the result into those of x. Those of the residual are
 * those of the result, and those of the bias the sums of those of x over the rows.
 *
 * Shapes: input `[..., cols]`; residual and output with as many elements (output may be either); bias
 * `[cols]`, or null or an unset tensor for none; mask and `rng_state` as `nvte_dropout_fwd`.
 *
 * Dtypes: Float32, Float16 or BFloat16, the same for input, bias, residual and output.
 *
 * Notes: nothing is written to empty tensors.
 *
 * Errors: as `nvte_dropout_fwd`.
 */
void nvtex_bias_dropout_add(NVTETensor input,
                            NVTETensor bias,
                            NVTETensor residual,
                            NVTETensor output,
                            NVTETensor mask,
                            NVTETensor rng_state,
                            float dropout_probability,
                            cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_DROPOUT_H */
