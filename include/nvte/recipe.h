#ifndef NVTE_RECIPE_H
#define NVTE_RECIPE_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Computes the largest magnitude of a tensor: `output.amax = max|input|`, NaN ignored, 0 for an empty
 * input. It is set, not raised.
 *
 * Dtypes: Float32, Float16 or BFloat16; `amax` is one Float32. If `output.amax` has no address,
 * `columnwise_amax` is written. The output needs no data.
 *
 * Errors: other dtypes; no `amax`; null or misaligned pointers.
 */
void nvte_compute_amax(NVTETensor input,
                       NVTETensor output,
                       cudaStream_t stream);

/**
 * Computes the largest magnitude of a tensor as `nvte_compute_amax` does; of the config (null:
 * defaults) the noop tensor is used.
 */
void nvte_compute_amax_with_config(NVTETensor input,
                                   NVTETensor output,
                                   NVTEQuantizationConfig config,
                                   cudaStream_t stream);

/**
 * Computes the scale of per-tensor current scaling:
 * `output.scale = fp8_max / max(output.amax, epsilon)`.
 *
 * The scale is 1 if that amax is 0, Inf or NaN; an infinite quotient becomes the largest float. The
 * config (required) gives `epsilon`, rounding down to a power of two, and the noop tensor. `scale_inv`
 * is not written, because the cast does that.
 *
 * Errors: data that are not FP8; an `amax` or `scale` that is not one Float32.
 */
void nvte_compute_scale_from_amax(NVTETensor output,
                                  NVTEQuantizationConfig config,
                                  cudaStream_t stream);

/**
 * Computes the largest magnitude of each member of a group: `output.amax[t] = max|x|` over member t of
 * the input, NaN ignored, 0 for an empty member. It is set, not raised.
 *
 * Members: those of the output, any number. `first_dims`, `last_dims` and `tensor_offsets` are read on
 * the device. Gaps between members do not count, and the input may be larger.
 *
 * Dtypes: input Float32, Float16 or BFloat16; `amax` Float32, one for each member. If `output.amax`
 * has no address, `columnwise_amax` is written. The output needs no data.
 *
 * Config (null: defaults): the noop tensor.
 *
 * Errors: other dtypes; different numbers of members; varying shapes without `tensor_offsets`; an
 * input that is smaller than the output's logical shape; null or misaligned pointers.
 */
void nvte_group_compute_amax_with_config(NVTEGroupedTensor input,
                                         NVTEGroupedTensor output,
                                         NVTEQuantizationConfig config,
                                         cudaStream_t stream);

/**
 * Computes the scales of the members of a grouped tensor, each as `nvte_compute_scale_from_amax` does,
 * and `scale_inv = 1 / scale`.
 *
 * `amax` (without an address: `columnwise_amax`), `scale`, and one or both of `scale_inv` and
 * `columnwise_scale_inv` have one Float32 for each member. The config may be null.
 *
 * Errors: data that are not FP8; fields that are missing or have another size.
 */
void nvte_group_compute_scale_from_amax(NVTEGroupedTensor output,
                                        NVTEQuantizationConfig config,
                                        cudaStream_t stream);

/**
 * Computes the largest magnitudes in the 128 x 128 blocks of a matrix `[h, w]`, of which only a part
 * is given.
 *
 * What it computes: `amax[i * amax_stride_h + j * amax_stride_w] = max|x|` over the elements of `inp`
 * in block (i, j), NaN ignored, 0 for a block without any. Every block is set.
 *
 * Shapes: `inp` may have any shape; its elements are those of the row-major matrix from `start_offset`
 * on, possibly none. `amax` reaches as far as the strides do, and they keep blocks apart. `block_len`
 * is 128.
 *
 * Dtypes: `inp` Float32, Float16 or BFloat16; `amax` Float32.
 *
 * Errors: other dtypes or block lengths; elements past the matrix; an `amax` that is too small or
 * overlaps `inp`; null or misaligned pointers.
 */
void nvte_fp8_block_scaling_compute_partial_amax(NVTETensor inp,
                                                 NVTETensor amax,
                                                 size_t h,
                                                 size_t w,
                                                 size_t amax_stride_h,
                                                 size_t amax_stride_w,
                                                 size_t start_offset,
                                                 size_t block_len,
                                                 cudaStream_t stream);

/**
 * Casts a part of a matrix `[h, w]` with a scale for each 128 x 128 block: `out = cast(inp * scale)`.
 *
 * Shapes: `scale`, Float32, is what data are multiplied by, laid out as the maxima of
 * `nvte_fp8_block_scaling_compute_partial_amax`, whose other arguments these are. `out` has as many
 * elements as `inp`, those from `start_offset` on; nothing else of the matrix is written.
 *
 * Dtypes: `inp` Float32, Float16 or BFloat16; `out` is written as `out_dtype`, Float8E4M3 or
 * Float8E5M2.
 *
 * Errors: as `nvte_fp8_block_scaling_compute_partial_amax`.
 */
void nvte_fp8_block_scaling_partial_cast(NVTETensor inp,
                                         NVTETensor out,
                                         NVTETensor scale,
                                         size_t h,
                                         size_t w,
                                         size_t scale_stride_h,
                                         size_t scale_stride_w,
                                         size_t start_offset,
                                         size_t block_len,
                                         NVTEDType out_dtype,
                                         cudaStream_t stream);

/**
 * Computes the largest magnitudes in the MXFP8 blocks of a matrix `[rows, cols]`, of which only a part
 * is given.
 *
 * What it computes: `amax_rowwise[i][j]` is `max|x|` over row i and columns 32 j to 32 j + 31,
 * `amax_colwise[i][j]` over column j and rows 32 i to 32 i + 31. Only elements of `input` count, NaN
 * are ignored, and a block without any has 0. Rows and columns need not be multiples of 32.
 *
 * Shapes: `input` may have any shape; its elements are those of the row-major matrix from
 * `start_offset` on, possibly none. `amax_rowwise` is `[rows, cols/32]`, `amax_colwise`
 * `[rows/32, cols]`, or more, in multiples of 128 along the undivided dimension and of 4 along the
 * other. Entries up to the next such multiple of a row become 0; rows beyond are not written. Either
 * may be null.
 *
 * Dtypes: Float32, Float16 or BFloat16, all the same.
 *
 * Errors: other dtypes or shapes; elements past the matrix; null or misaligned pointers.
 */
void nvte_mxfp8_scaling_compute_partial_amax(NVTETensor input,
                                             NVTETensor amax_rowwise,
                                             NVTETensor amax_colwise,
                                             int rows,
                                             int cols,
                                             size_t start_offset,
                                             cudaStream_t stream);

/**
 * Casts a part of a matrix `[rows, cols]` to MXFP8 in one or both directions: `y = cast(x / 2^e)`,
 * with the code `e` of the block along the row, or along the column.
 *
 * Shapes: each output has as many elements as `input`, those from `start_offset` on, not transposed.
 * The codes `scale_inv_rowwise` and `scale_inv_colwise` are laid out as the maxima of
 * `nvte_mxfp8_scaling_compute_partial_amax`. An output and its codes may both be null.
 *
 * Dtypes: `input` Float32, Float16 or BFloat16; outputs Float8E4M3, Float8E5M2 or Byte (then
 * Float8E4M3); codes Float8E8M0 or Byte.
 *
 * Errors: as `nvte_mxfp8_scaling_compute_partial_amax`; no output.
 */
void nvte_mxfp8_scaling_partial_cast(NVTETensor input,
                                     NVTETensor output_rowwise,
                                     NVTETensor output_colwise,
                                     NVTETensor scale_inv_rowwise,
                                     NVTETensor scale_inv_colwise,
                                     int rows,
                                     int cols,
                                     size_t start_offset,
                                     cudaStream_t stream);

/**
 * Computes the factor of a product of two NVFP4 tensors:
 * `alpha_out = ((alpha_in * amaxA) * amaxB) * (1 / (36 * maxA * maxB))`, with the `NVFP4E4M3Max` of
 * each tensor as max.
 *
 * An amax is the tensor's `amax`, or its `columnwise_amax` without `use_rowwise_amax`; the first
 * element counts.
 *
 * Dtypes: Float32. Errors: other dtypes; a missing amax or `alpha_out`.
 */
void nvte_nvfp4_compute_per_tensor_scale(NVTETensor inpA,
                                         bool use_rowwise_amax_A,
                                         NVTETensor inpB,
                                         bool use_rowwise_amax_B,
                                         float alpha_in,
                                         NVTETensor alpha_out,
                                         cudaStream_t stream);

/**
 * Computes the global scales of NVFP4 tensors:
 * `global_scale[i] = min(2688 / max(a, FLT_MIN), FLT_MAX)` with `a = global_amax[i]`, or 1 unless
 * `a > 0`.
 *
 * Dtypes: Float32. Errors: other dtypes; a `global_scale` with fewer elements.
 */
void nvte_nvfp4_compute_global_scale(NVTETensor global_amax,
                                     NVTETensor global_scale,
                                     cudaStream_t stream);

/**
 * Computes the scales of NVFP4 blocks, not yet rounded to Float8E4M3:
 * `scale[i] = min(block_amax[i] * (G * (1 / 6)), FLT_MAX)`, where G is the global scale of
 * `global_amax` (`nvte_nvfp4_compute_global_scale`).
 *
 * Dtypes: Float32. Errors: other dtypes; a `global_amax` of more than one element; a `scale` with
 * fewer elements than `block_amax`.
 */
void nvte_nvfp4_compute_per_block_scale(NVTETensor block_amax,
                                        NVTETensor scale,
                                        NVTETensor global_amax,
                                        cudaStream_t stream);

/**
 * Rounds the scales of square blocks to Float8E4M3 codes, and repeats them for each row of a block:
 * `output[r][c] = e4m3(input[r / block_len][c])`, 0 for rows of no block.
 *
 * Shapes: input `[tile_rows, tile_cols]`, output `[rows_padded, tile_cols]`, or more elements. If a
 * size is 0, nothing is written.
 *
 * Dtypes: Float32 to Byte. Errors: other dtypes; too few elements; a `block_len` of 0.
 */
void nvte_nvfp4_expand_scale_to_fp8(NVTETensor input,
                                    NVTETensor output,
                                    size_t tile_rows,
                                    size_t tile_cols,
                                    size_t rows_padded,
                                    size_t block_len,
                                    cudaStream_t stream);

/**
 * Computes the scales of NVFP4 blocks in one pass: `nvte_nvfp4_compute_per_block_scale` to
 * `per_block_scale`, `nvte_nvfp4_expand_scale_to_fp8` of that to `target_scale`, and
 * `target_amax = global_amax`.
 *
 * Shapes, dtypes, errors: as these functions have them. If a size is 0, nothing at all is written.
 */
void nvte_nvfp4_fused_scale(NVTETensor block_amax,
                            NVTETensor global_amax,
                            NVTETensor per_block_scale,
                            NVTETensor target_scale,
                            NVTETensor target_amax,
                            size_t tile_rows,
                            size_t tile_cols,
                            size_t rows_padded,
                            size_t block_len,
                            cudaStream_t stream);

/**
 * Computes the largest magnitudes in the 16 x 16 blocks of a matrix `[h, w]`, of which only a part is
 * given.
 *
 * What it computes: `amax[i * amax_stride_h + j * amax_stride_w] = max|x|` over the elements of `inp`
 * in block (i, j), NaN ignored, 0 for a block without any. Every block is set.
 *
 * Shapes: `inp` may have any shape; its elements are those of the row-major matrix from `start_offset`
 * on, possibly none. `amax` reaches as far as the strides do, and they keep blocks apart. `block_len`
 * is 16.
 *
 * Dtypes: `inp` Float32, Float16 or BFloat16; `amax` Float32.
 *
 * Errors: other dtypes or block lengths; elements past the matrix; null or misaligned pointers.
 */
void nvte_nvfp4_2d_compute_partial_amax(NVTETensor inp,
                                        NVTETensor amax,
                                        size_t h,
                                        size_t w,
                                        size_t amax_stride_h,
                                        size_t amax_stride_w,
                                        size_t start_offset,
                                        size_t block_len,
                                        cudaStream_t stream);

/**
 * Casts a part of a matrix `[h, w]` to Float4E2M1 with a scale for each 16 x 16 block.
 *
 * What it computes: `code = e2m1(x * q)` with `q = min(1 / (s * (1 / g)), FLT_MAX)`, where `s` is the
 * block's scale rounded to Float8E4M3, and `g` is `global_scale`, or 1 unless that is positive. q is
 * FLT_MAX unless `s > 0`.
 *
 * Shapes: `inp` and `scale` are laid out as the input and the maxima of
 * `nvte_nvfp4_2d_compute_partial_amax`. Element i of the matrix goes to byte
 * `i / 2 - start_offset / 2` of `out`, an even one to the low bits. The other half of the first and of
 * the last byte is kept if it does not belong to this part.
 *
 * Dtypes: `inp` Float32, Float16 or BFloat16; `out` Byte; scales Float32.
 *
 * Errors: as `nvte_nvfp4_2d_compute_partial_amax`; too few bytes.
 */
void nvte_nvfp4_2d_partial_cast(NVTETensor inp,
                                NVTETensor out,
                                NVTETensor scale,
                                NVTETensor global_scale,
                                size_t h,
                                size_t w,
                                size_t scale_stride_h,
                                size_t scale_stride_w,
                                size_t start_offset,
                                size_t block_len,
                                cudaStream_t stream);

/**
 * Moves an amax history on by one step and sets the scales of delayed scaling.
 *
 * What it computes, for each column, with `last = history[0]`: row i takes row i + 1, the last row
 * takes `last`, and row 0 becomes 0. `amax` is the largest of the old column ("max", NaN ignored) or
 * `last` ("most_recent"). `scale = fp8_max * 2^-margin / amax` if `amax` is finite and positive,
 * otherwise it is unchanged; an infinite scale becomes the largest float.
 *
 * Shapes: histories `[length, n]`, scales n elements. Outputs may be the inputs.
 *
 * Dtypes: Float32; `fp8_dtype` Float8E4M3 or Float8E5M2.
 *
 * Errors: other algorithms, dtypes or shapes; null pointers.
 */
void nvte_delayed_scaling_recipe_amax_and_scale_update(NVTETensor amax_history,
                                                       NVTETensor scale,
                                                       NVTETensor updated_amax_history,
                                                       NVTETensor updated_scale,
                                                       const char *amax_compute_algo,
                                                       NVTEDType fp8_dtype,
                                                       float margin,
                                                       cudaStream_t stream);

/**
 * Moves the amax histories of many tensors on and sets their scales, in place, after their amax values
 * were reduced over ranks.
 *
 * What it computes: as `nvte_delayed_scaling_recipe_amax_and_scale_update` for each tensor, with
 * `last` taken from the concatenated `amax_reduction_buffer` where that is not 0 (a null handle or no
 * address: no buffer). A column whose `last` is 0 was not used: its history stays, and with "max" its
 * scale.
 *
 * Shapes: histories `[length, n_k]` with one length, scales n_k elements, the buffer the sum of all
 * n_k.
 *
 * Notes: this is the C form of `nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction`.
 */
void nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(NVTETensor amax_reduction_buffer,
                                                                        const NVTETensor *amax_histories,
                                                                        const NVTETensor *scales,
                                                                        size_t num_tensors,
                                                                        const char *amax_compute_algo,
                                                                        NVTEDType fp8_dtype,
                                                                        float margin,
                                                                        cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_RECIPE_H */
