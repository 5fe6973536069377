#ifndef NVTE_CAST_H
#define NVTE_CAST_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Casts a tensor in the scaling mode of the output, rounding to nearest even and saturating.
 *
 * What it computes, with `fp8_max` the largest finite value of the output's dtype (448 for Float8E4M3,
 * 57344 for Float8E5M2) and `max|x|` the largest magnitude, for which NaN do not count:
 * - Per tensor: `y = cast(x * scale)` to FP8, `y = cast(x)` to other dtypes.
 * - FP8 blocks (1D: of 128 elements; 2D: of 128 x 128): `y = cast(x * s)` with `s = fp8_max / max|x|`
 *   of the block, 1 if `max|x|` is 0 or Inf.
 * - MXFP8 (blocks of 32 elements): `y = cast(x / 2^e)`, with `2^e` the least power of two that is not
 *   below `max|x| / fp8_max` of the block.
 * - NVFP4 (blocks of 16 elements): `y = e2m1(x / (scale / S))`, where the block's scale is
 *   `e4m3(max|x| * S / 6)` and `S = 2688 / amax`. The amax is an input: `amax` for row-wise data,
 *   `columnwise_amax` for column-wise data; either serves both directions if the other is absent, and
 *   without both S is 1.
 *
 * Shapes: the input `[..., n]` counts as a matrix of R rows and C columns. Row-wise output has the
 * input's shape, in blocks along the rows. Column-wise output is the transpose `[n, ...]` (in MXFP8 it
 * has the input's shape), in blocks along the columns; beside row-wise output its data may be declared
 * in any shape of as many elements. The output has either of them or both.
 *
 * Dtypes: Float32, Float16 or BFloat16 to Float8E4M3 or Float8E5M2; per tensor also to Float32,
 * Float16 and BFloat16; in NVFP4 to Float4E2M1, of which a packed line has an even number of elements.
 *
 * Scales, where quotients are rounded up:
 * - Per tensor, to FP8: `scale` is read (absent: 1); `scale_inv` and `columnwise_scale_inv` become
 *   `1 / scale`.
 * - FP8 blocks: `1 / s` in Float32. 1D: `scale_inv` `[C/128, R]`, `columnwise_scale_inv` `[R/128, C]`.
 *   2D: `[R/128, C/128]` and `[C/128, R/128]`. The second dimension may be larger; what lies beyond is
 *   not written.
 * - MXFP8: the codes of `2^e` in Float8E8M0 or Byte; `scale_inv` `[R, C/32]`, `columnwise_scale_inv`
 *   `[R/32, C]`, rounded up to multiples of 128 along the undivided dimension and of 4 along the
 *   other. The padding becomes 0.
 * - NVFP4: the scales in Float8E4M3 or Byte; `scale_inv` `[R, C/16]`, `columnwise_scale_inv`
 *   `[C, R/16]`, rounded up to multiples of 128 and 4. The padding is not written.
 * - With `with_gemm_swizzled_scales`, the scales of MXFP8 and NVFP4 are in the 128 x 4 tiles of
 *   block-scaled products (`nvte_swizzle_scaling_factors`). Scales of other modes are never in tiles:
 *   here and in products the flag then has no influence.
 *
 * Amax: per tensor and in MXFP8, the output's `amax`, if it has one, is raised to the largest `|x|`.
 * In NVFP4 an output with `row_scaled_nvfp4` has an amax for each row (and column), which the call
 * sets.
 *
 * Overlaps: no output may overlap anything, except that the row-wise one of per-tensor scaling may be
 * the input if their elements have the same size.
 *
 * Notes: nothing is written to empty tensors.
 *
 * Errors: other dtypes, shapes or scaling modes; FP8 data without scales; outputs that overlap; null
 * or misaligned pointers.
 *
 * Source: Micikevicius et al., FP8 Formats for Deep Learning (2022); OCP Microscaling Formats (2023).
 */
void nvte_quantize(NVTETensor input,
                   NVTETensor output,
                   cudaStream_t stream);

/**
 * Casts as `nvte_quantize` does, unless the Float32 `noop` (null: none) is exactly 1 on the device:
 * then it writes nothing.
 */
void nvte_quantize_noop(NVTETensor input, NVTETensor output, NVTETensor noop, cudaStream_t stream);

/**
 * Casts as `nvte_quantize` does, with the options of a config (null: defaults).
 *
 * Options of the config that count:
 * - All modes: the noop tensor, as in `nvte_quantize_noop`.
 * - FP8 blocks: `force_pow2_scales` rounds s down to a power of two; `amax_epsilon` is the least
 *   `max|x|`.
 * - MXFP8: `mxfp8_2d_quantization` takes blocks of 32 x 32 in both directions and repeats their codes.
 * - NVFP4: `nvfp4_2d_quantization` takes blocks of 16 x 16 in both directions. `stochastic_rounding`
 *   rounds by Philox 4x32-10 with the seed and offset of `rng_state` (Int64 [2]; absent: zeros).
 *   `use_fast_math` rounds factors to BFloat16, of BFloat16 inputs whose rows and columns are
 *   multiples of 32. With `nvfp4_4over6_mode` each block takes 4 or 6 as the value of its largest
 *   element, whichever has the least absolute error (mode 1) or the least squares (mode 2).
 *
 * Errors: also stochastic rounding to other types, or with 4over6.
 */
void nvte_quantize_v2(NVTETensor input,
                      NVTETensor output,
                      NVTEQuantizationConfig quant_config,
                      cudaStream_t stream);

/**
 * Casts the rows of a BFloat16 matrix to NVFP4, row-wise, to one tensor after the other.
 *
 * What it computes: `nvte_quantize_v2` for each tensor with its own `amax` (absent: a global scale of
 * 1).
 *
 * Shapes: input `[r, n]`, n a multiple of 16. Output i has the next `split_sections[i]` rows; a tensor
 * without rows is skipped, and may be null. Data of the outputs follow each other without gaps.
 * `scale_inv` is `[rows or more, n/16 or more]`; with `with_gemm_swizzled_scales` it is in tiles of
 * 128 x 4, so its first dimension is the rows rounded up to a multiple of 128 or more, its second a
 * multiple of 4.
 *
 * Config (null: defaults): the noop tensor, and stochastic rounding with its RNG state.
 *
 * Errors: other dtypes, shapes or scaling modes; splits that do not add up to r; more than 64 tensors;
 * column-wise data; 2D blocks or 4over6.
 */
void nvte_group_nvfp4_quantize_with_amax(NVTETensor input,
                                         NVTETensor *outputs,
                                         const size_t *split_sections,
                                         size_t num_tensors,
                                         NVTEQuantizationConfig quant_config,
                                         cudaStream_t stream);

/**
 * Casts `inputs[i]` to `outputs[i]` as `nvte_quantize_v2` does, for each i below `num_tensors`, with
 * one config for all.
 *
 * Errors: those of `nvte_quantize_v2`, with `tensor i` in the message. If any tensor is wrong, nothing
 * is written at all.
 */
void nvte_multi_tensor_quantize(const NVTETensor *inputs,
                                NVTETensor *outputs,
                                NVTEQuantizationConfig quant_config,
                                size_t num_tensors,
                                cudaStream_t stream);

/**
 * Casts as `nvte_quantize` does, and sums the input over its rows in the same pass.
 *
 * What it computes: also `dbias[c] = sum over r of input[r][c]`, summed in Float32 in a fixed order.
 *
 * Shapes: input and output as for `nvte_quantize`, dbias `[C]`.
 *
 * Dtypes: dbias that of the input.
 *
 * Workspace: while its data pointer is null, the call only sets its shape and dtype (Float32) and
 * returns. Otherwise it must have the bytes for these, aligned to 4; their contents do not matter.
 *
 * Notes: of empty tensors dbias becomes 0, and nothing else is written.
 *
 * Errors: as `nvte_quantize`; dbias of another shape or dtype; a workspace that is too small.
 */
void nvte_quantize_dbias(NVTETensor input,
                         NVTETensor output,
                         NVTETensor dbias,
                         NVTETensor workspace,
                         cudaStream_t stream);

/**
 * Casts every member of a group as `nvte_quantize_v2` casts a tensor.
 *
 * Shapes: the output says where members are (see `nvte_create_grouped_tensor`): all of one shape, or
 * differing in the first dimension, the last, or both. Their dimensions are read on the device and may
 * be anything, 0 too. Elements that belong to no member are neither read nor written. The input has as
 * many members, as many columns, and at least as many rows.
 *
 * Scales: those of the members follow each other, each matrix as `nvte_quantize` describes it (of FP8
 * blocks with the second dimension rounded up to a multiple of 4). Per tensor: `scale` has one Float32
 * per member and is read; neither `scale_inv` nor `amax` is written.
 *
 * Config: as for `nvte_quantize_v2`.
 *
 * Errors: as `nvte_quantize_v2`; another number of members; buffers that are too small.
 */
void nvte_group_quantize(NVTEGroupedTensor input,
                         NVTEGroupedTensor output,
                         NVTEQuantizationConfig quant_config,
                         cudaStream_t stream);

/**
 * Casts every member of a group as `nvte_group_quantize` does, and sums each over its rows as
 * `nvte_quantize_dbias` does.
 *
 * Shapes: dbias `[num_tensors, C]`, with zeros for a member without rows. All members have C columns.
 *
 * Config: as for `nvte_quantize_v2`, except that the noop tensor is ignored.
 */
void nvte_group_quantize_dbias(NVTEGroupedTensor input,
                               NVTEGroupedTensor output,
                               NVTEGroupedTensor dbias,
                               NVTETensor workspace,
                               NVTEQuantizationConfig quant_config,
                               cudaStream_t stream);

/**
 * Casts a tensor back from FP8 or NVFP4: `y = cast(x * scale_inv)`.
 *
 * Shapes: the output has the logical shape of the input. An input that has only column-wise data is
 * transposed on the way (in MXFP8, where it is not stored transposed, it is not).
 *
 * Dtypes: Float8E4M3, Float8E5M2 or Float4E2M1 to Float32, Float16 or BFloat16.
 *
 * Scales: `scale_inv` is read, or `columnwise_scale_inv` for column-wise data, stored as
 * `nvte_quantize` does in the input's scaling mode. NVFP4 has row-wise data only, C a multiple of 16,
 * and `amax` (one float, or with `row_scaled_nvfp4` one for each row):
 * `y = cast(x * (scale * amax * (1 / 2688)))`.
 *
 * Errors: other dtypes, shapes or scaling modes; null or misaligned pointers.
 */
void nvte_dequantize(NVTETensor input,
                     NVTETensor output,
                     cudaStream_t stream);

/**
 * Casts every member of a grouped tensor back, as `nvte_dequantize` does; an input that has both
 * directions is read row-wise.
 *
 * Shapes: those of `nvte_dequantize`, member by member, with any number of rows and columns. Elements
 * that belong to no member are not written.
 *
 * Scales: those of the members follow each other, each stored as that of a lone tensor, in FP8 blocks
 * with second dimensions rounded up to multiples of 4; per tensor one float for each member.
 *
 * Errors: as `nvte_dequantize`; tensors of different logical shapes or numbers of members.
 */
void nvte_group_dequantize(NVTEGroupedTensor input,
                           NVTEGroupedTensor output,
                           cudaStream_t stream);

/**
 * Casts row-wise MXFP8 data to column-wise MXFP8 data, group by group.
 *
 * What it computes: `nvte_dequantize` and then `nvte_quantize` of each group of rows, without rounding
 * in between; with the config's `use_fast_math` (null: no) rounded to BFloat16 in between.
 *
 * Groups: group g has the rows from element `tensor_offsets[g]` to `tensor_offsets[g + 1]`, which are
 * read on the device and are multiples of 128 rows. Rows from the last offset on are not touched.
 *
 * Shapes: input `[m, n]`, multiples of 128, its `scale_inv` `[m, n/32 or more]`; columnwise_data of
 * output `[m, n]`; dequantized (null: none) m n elements.
 *
 * Dtypes: Float8E4M3 or Float8E5M2 to Float8E4M3; offsets Int64; dequantized BFloat16.
 *
 * Scales: `scale_inv` of output takes the codes of input, `columnwise_scale_inv` the new ones, m n /
 * 32 each. Both are in the 128 x 4 tiles of block-scaled products, row-wise ones as of one matrix,
 * column-wise ones group by group. The output gets `with_gemm_swizzled_scales`.
 *
 * Errors: other dtypes, shapes or scaling modes; an input with swizzled scales; null pointers; data
 * that are not aligned to 16 bytes.
 */
void nvte_group_requantize(NVTETensor input,
                           NVTETensor output,
                           NVTETensor tensor_offsets,
                           NVTETensor dequantized,
                           NVTEQuantizationConfig quant_config,
                           cudaStream_t stream);

/**
 * Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
 * `v = f'(act_input) * input` instead of the input, with the f of `nvte_gelu`.
 *
 * act_input has the shape and dtype of the input. v is Float32; for a cast in blocks it is rounded
 * to the input's dtype, but dbias is the sum of v before that.
 */
void nvte_quantize_dbias_dgelu(NVTETensor input,
                               NVTETensor act_input,
                               NVTETensor output,
                               NVTETensor dbias,
                               NVTETensor workspace,
                               cudaStream_t stream);

/**
 * Casts the gradients of an activation for the members of a group, and sums each over its rows:
 * `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
 * config, with the f of `nvte_gelu`.
 *
 * v is that of `nvte_quantize_dbias_dgelu`.
 */
void nvte_group_quantize_dbias_dgelu(NVTEGroupedTensor input,
                                     NVTEGroupedTensor act_input,
                                     NVTEGroupedTensor output,
                                     NVTEGroupedTensor dbias,
                                     NVTETensor workspace,
                                     cudaStream_t stream);

/**
 * Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
 * `v = f'(act_input) * input` instead of the input, with the f of `nvte_silu`.
 *
 * Otherwise as `nvte_quantize_dbias_dgelu`.
 */
void nvte_quantize_dbias_dsilu(NVTETensor input,
                               NVTETensor act_input,
                               NVTETensor output,
                               NVTETensor dbias,
                               NVTETensor workspace,
                               cudaStream_t stream);

/**
 * Casts the gradients of an activation for the members of a group, and sums each over its rows:
 * `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
 * config, with the f of `nvte_silu`.
 *
 * Otherwise as `nvte_group_quantize_dbias_dgelu`.
 */
void nvte_group_quantize_dbias_dsilu(NVTEGroupedTensor input,
                                     NVTEGroupedTensor act_input,
                                     NVTEGroupedTensor output,
                                     NVTEGroupedTensor dbias,
                                     NVTETensor workspace,
                                     cudaStream_t stream);

/**
 * Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
 * `v = f'(act_input) * input` instead of the input, with the f of `nvte_relu`.
 *
 * Otherwise as `nvte_quantize_dbias_dgelu`.
 */
void nvte_quantize_dbias_drelu(NVTETensor input,
                               NVTETensor act_input,
                               NVTETensor output,
                               NVTETensor dbias,
                               NVTETensor workspace,
                               cudaStream_t stream);

/**
 * Casts the gradients of an activation for the members of a group, and sums each over its rows:
 * `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
 * config, with the f of `nvte_relu`.
 *
 * Otherwise as `nvte_group_quantize_dbias_dgelu`.
 */
void nvte_group_quantize_dbias_drelu(NVTEGroupedTensor input,
                                     NVTEGroupedTensor act_input,
                                     NVTEGroupedTensor output,
                                     NVTEGroupedTensor dbias,
                                     NVTETensor workspace,
                                     cudaStream_t stream);

/**
 * Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
 * `v = f'(act_input) * input` instead of the input, with the f of `nvte_qgelu`.
 *
 * Otherwise as `nvte_quantize_dbias_dgelu`.
 */
void nvte_quantize_dbias_dqgelu(NVTETensor input,
                                NVTETensor act_input,
                                NVTETensor output,
                                NVTETensor dbias,
                                NVTETensor workspace,
                                cudaStream_t stream);

/**
 * Casts the gradients of an activation for the members of a group, and sums each over its rows:
 * `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
 * config, with the f of `nvte_qgelu`.
 *
 * Otherwise as `nvte_group_quantize_dbias_dgelu`.
 */
void nvte_group_quantize_dbias_dqgelu(NVTEGroupedTensor input,
                                      NVTEGroupedTensor act_input,
                                      NVTEGroupedTensor output,
                                      NVTEGroupedTensor dbias,
                                      NVTETensor workspace,
                                      cudaStream_t stream);

/**
 * Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
 * `v = f'(act_input) * input` instead of the input, with the f of `nvte_srelu`.
 *
 * Otherwise as `nvte_quantize_dbias_dgelu`.
 */
void nvte_quantize_dbias_dsrelu(NVTETensor input,
                                NVTETensor act_input,
                                NVTETensor output,
                                NVTETensor dbias,
                                NVTETensor workspace,
                                cudaStream_t stream);

/**
 * Casts the gradients of an activation for the members of a group, and sums each over its rows:
 * `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
 * config, with the f of `nvte_srelu`.
 *
 * Otherwise as `nvte_group_quantize_dbias_dgelu`.
 */
void nvte_group_quantize_dbias_dsrelu(NVTEGroupedTensor input,
                                      NVTEGroupedTensor act_input,
                                      NVTEGroupedTensor output,
                                      NVTEGroupedTensor dbias,
                                      NVTETensor workspace,
                                      cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_CAST_H */
