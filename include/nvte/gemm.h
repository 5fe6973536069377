#ifndef NVTE_GEMM_H
#define NVTE_GEMM_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Creates a matmul config with defaults. Destroy it with `nvte_destroy_matmul_config`.
 */
NVTEMatmulConfig nvte_create_matmul_config(void);

/**
 * Copies an attribute of a matmul config to `buf`, and its size to `size_written`, which must not be
 * null. With a null `buf` only the size is written.
 */
void nvte_get_matmul_config_attribute(NVTEMatmulConfig config,
                                      NVTEMatmulConfigAttribute attr,
                                      void *buf,
                                      size_t size_in_bytes,
                                      size_t *size_written);

/**
 * Sets an attribute of a matmul config from `size_in_bytes` bytes at `buf`. Tensors that are stored
 * this way must live until the products that use the config have been called.
 */
void nvte_set_matmul_config_attribute(NVTEMatmulConfig config,
                                      NVTEMatmulConfigAttribute attr,
                                      const void *buf,
                                      size_t size_in_bytes);

/**
 * Destroys a matmul config. Null is ignored.
 */
void nvte_destroy_matmul_config(NVTEMatmulConfig config);

/**
 * Creates a grouped matmul config with defaults. Destroy it with
 * `nvte_destroy_grouped_matmul_config`.
 */
NVTEGroupedMatmulConfig nvte_create_grouped_matmul_config(void);

/**
 * Copies an attribute of a grouped matmul config to `buf`, and its size to `size_written`, which must
 * not be null. With a null `buf` only the size is written. Averages that were never set read as 0.
 */
void nvte_get_grouped_matmul_config_attribute(NVTEGroupedMatmulConfig config,
                                              NVTEGroupedMatmulConfigAttribute attr,
                                              void *buf,
                                              size_t size_in_bytes,
                                              size_t *size_written);

/**
 * Sets an attribute of a grouped matmul config from `size_in_bytes` bytes at `buf`.
 */
void nvte_set_grouped_matmul_config_attribute(NVTEGroupedMatmulConfig config,
                                              NVTEGroupedMatmulConfigAttribute attr,
                                              const void *buf,
                                              size_t size_in_bytes);

/**
 * Destroys a grouped matmul config. Null is ignored.
 */
void nvte_destroy_grouped_matmul_config(NVTEGroupedMatmulConfig config);

/**
 * Multiplies two matrices: `D = Bop Aop`, with `accumulate` added to what D holds, and with an
 * optional epilogue.
 *
 * Shapes (all matrices are row-major): D is `[n, m]`. `Aop` `[k, m]` is A, or with `transa` the
 * transpose of A `[m, k]`. `Bop` `[n, k]` is B, or with `transb` the transpose of B `[k, n]`. Read
 * column-major, this is the BLAS product with the same flags. D may have any shape of n * m elements
 * except `[m, n]`. Nothing is written to an empty D.
 *
 * Epilogue, where v is the product and GELU its tanh form. A null `bias` or `pre_gelu_out`, or one
 * without an address, counts as absent:
 * - Neither: `D = v`.
 * - `bias`: `D = v + bias`.
 * - `pre_gelu_out`: `D = gelu(v)`, `pre_gelu_out = v`.
 * - Both: `D = gelu(v + bias)`, `pre_gelu_out = v + bias`.
 * - `grad` and `bias`: `D = v`, and `bias` is written: `bias[j] = sum over k of Bop[j, k]`.
 * - `grad` and `pre_gelu_out`: `D = v * dgelu(pre_gelu_out)`.
 * - `grad` and both: the same D, and `bias` becomes the sum of D over its rows.
 *
 * Dtypes: Float32, Float16 and BFloat16; FP8 and Float4E2M1 operands with scales. A and B have the
 * same dtype unless both are FP8. An FP8 D needs `scale`, and gets `scale_inv` and, if it has one,
 * `amax`.
 *
 * Scaling modes of the operands:
 * - FP8 per tensor: where `nvte_is_non_tn_fp8_gemm_supported` returns 0, an operand is read from the
 *   data that are contiguous along k: from row-wise data for A with `transa` and for B without
 *   `transb`, otherwise from column-wise data. Elsewhere either will do. On compute capability 9.0 either
 *   will also do for A in Float8E4M3 without `transa`, if D has at most 32 rows, m and k are multiples of 16
 *   from 512 on, A and B are aligned to 16 bytes, D is not FP8, no bias gradient is asked for, and
 *   `math_sm_count` is 0.
 * - FP8 blocks (1D by 1D, 1D by 2D, 2D by 1D), MXFP8 and NVFP4 (both operands): always from the data
 *   just named, whose blocks lie along k. Each element counts with its scale, in the layouts of
 *   `nvte_quantize`.
 * - FP8 blocks: products are summed in float32 for 128 of k at a time, whatever
 *   `use_split_accumulator` says, and the scales are never swizzled, whatever the tensor says. The
 *   epilogues are bias, and the gradient of GELU without bias.
 * - MXFP8: on CUDA operands are cast to BFloat16, in which values outside of that type's normal range lose
 *   bits; or, without the workspace for that, where both lie along k, their codes are multiplied, whose sums of
 *   32 have the accuracy of FP8 tensor cores.
 * - NVFP4: scales may be compact or swizzled. The product has the factor
 *   `amaxA * amaxB / (36 * maxA * maxB)`, of the amaxes of the direction that is read and the
 *   `NVFP4E4M3Max` of the tensors. D is Float32 or BFloat16, k is a multiple of 16, and `grad` with
 *   `bias` needs `pre_gelu_out` too. On CUDA operands are cast to BFloat16, which is exact.
 * - MXFP8 and NVFP4 from compute capability 10.0 on: cuBLASLt multiplies the operands as they are where it
 *   has an algorithm, if the scales of both are swizzled, A is read with `transa` and B without `transb`,
 *   all is aligned to 16 bytes and D is not FP8. No such device has run this yet.
 *
 * Workspace: memory on the device, any number of bytes, or none. On CUDA some products need it:
 * - MXFP8 should have `2 k (m + n) + 768` bytes and NVFP4 `2 k (m + n) + 1024`. With less the product is
 *   made in parts, for which 32 MiB are enough for any size and 64 KiB the least (with `bias`,
 *   `pre_gelu_out` and `grad` `4 m` more); or, in MXFP8 with up to 256 rows or columns of D, by the kernel
 *   of grouped products.
 * - FP8 that cuBLASLt does not take (see the notes): 2560, and `4 m n` more with an epilogue or an FP8
 *   D.
 * - Other dtypes that cuBLASLt does not combine in D, bias and pre_gelu_out: `4 m n + 512`, for sums
 *   in float32.
 *
 * Notes: `math_sm_count` limits the multiprocessors that the product uses; 0 means all. FP8 operands
 * may have any size and dtype, a single row or odd numbers too. On CUDA cuBLASLt takes k in multiples
 * of 16, m of 16 (FP8 blocks: 8), n of 8 if B is in 1D blocks, addresses aligned to 16 bytes, and at
 * most one Float8E5M2. A kernel of this library computes the rest on compute capability 9.0 only, more
 * slowly where rows of an operand do not begin at multiples of 16 bytes.
 *
 * Errors: dimensions that do not fit; missing data or scales; other scaling modes, or modes that do
 * not go together; with status unsupported, combinations for which the device's library has no
 * algorithm, and a workspace without room for the casts.
 * In a process that replaces the other library (`nvtex_set_drop_in`), FP8 blocks are also refused
 * without `use_split_accumulator`, if both operands are Float8E5M2, with the gradient of GELU to
 * Float32, and if k is no multiple of 16, m none of 8, or n none of 8 where B is in 1D blocks.
 */
void nvte_cublas_gemm(NVTETensor A,
                      NVTETensor B,
                      NVTETensor D,
                      NVTETensor bias,
                      NVTETensor pre_gelu_out,
                      bool transa,
                      bool transb,
                      bool grad,
                      NVTETensor workspace,
                      bool accumulate,
                      bool use_split_accumulator,
                      int32_t math_sm_count,
                      cudaStream_t stream);

/**
 * Multiplies two matrices as `nvte_cublas_gemm` does, with factors: `D = alpha * Bop Aop + beta * D`.
 */
void nvte_cublas_gemm_scaled(NVTETensor A,
                             NVTETensor B,
                             NVTETensor D,
                             NVTETensor bias,
                             NVTETensor pre_gelu_out,
                             bool transa,
                             bool transb,
                             bool grad,
                             NVTETensor workspace,
                             float alpha,
                             float beta,
                             bool use_split_accumulator,
                             int32_t math_sm_count,
                             cudaStream_t stream);

/**
 * Multiplies two matrices as `nvte_cublas_gemm` does, with a third one and a config:
 * `D = *alpha * Bop Aop + *beta * C`.
 *
 * Factors: `alpha` and `beta` point to one float each, on the host; for NVFP4 operands without amax on
 * the device.
 *
 * C: null, or D itself, for D; otherwise another matrix of the shape and dtype of D.
 *
 * Config (null: defaults): options and tensors of the epilogue. A `dbias` tensor asks for the gradient
 * of a bias, `with_dgelu` for that of GELU. GELU and its gradient need the aux tensor.
 *
 * Workspace, errors: as `nvte_cublas_gemm`.
 */
void nvte_cublas_gemm_v2(int32_t transa,
                         int32_t transb,
                         const float *alpha,
                         NVTETensor A,
                         NVTETensor B,
                         const float *beta,
                         NVTETensor C,
                         NVTETensor D,
                         NVTETensor workspace,
                         NVTEMatmulConfig config,
                         cudaStream_t stream);

/**
 * Multiplies two matrices as `nvte_cublas_gemm` does, in step with work on other streams through
 * counters.
 *
 * `counter` is an Int32 tensor on the device with `m_split * n_split` words or more, where a split of
 * 0 counts as 1. A word is 1 while it waits. With `gemm_producer` the words become 0 once D is
 * complete. Without it the product begins when all of them are 0, which work on another stream must
 * bring about; on the CPU backend the calling thread waits until another thread clears them. Without a
 * counter (null, or no address) this is an ordinary product.
 *
 * Waiting ends after 60 seconds, or those of the environment variable `NVTE_WAIT_SECONDS`. On the CPU
 * backend the call then fails with status device error and leaves D untouched. On CUDA the stream goes
 * on with the product, whose result must not be used; the next `nvtex_stream_synchronize` of any
 * stream, or the next call of this function that waits, reports it once as a device error.
 *
 * Errors: as `nvte_cublas_gemm`; negative splits; a counter of another dtype or with fewer words.
 */
void nvte_cublas_atomic_gemm(NVTETensor A,
                             NVTETensor B,
                             NVTETensor D,
                             NVTETensor bias,
                             NVTETensor pre_gelu_out,
                             bool transa,
                             bool transb,
                             bool grad,
                             NVTETensor workspace,
                             bool accumulate,
                             bool use_split_accumulator,
                             int32_t math_sm_count,
                             int32_t m_split,
                             int32_t n_split,
                             bool gemm_producer,
                             NVTETensor counter,
                             cudaStream_t stream);

/**
 * Computes `num_gemms` products, each as `nvte_cublas_gemm` does, bit for bit; up to 4 of them run
 * side by side.
 *
 * Arrays: `num_gemms` tensors each. `bias` and `pre_gelu_out`, and any tensor in them, may be null.
 * `workspace` has `min(4, num_gemms)` tensors, of which product i takes number `i % 4`; it may be
 * null. A `num_gemms` of 0 or less computes nothing.
 *
 * Notes: FP8 blocks never need `use_split_accumulator` here.
 *
 * Errors: those of `nvte_cublas_gemm`, found before any product begins unless the device has no
 * algorithm for one of them; null arrays.
 */
void nvte_multi_tensor_gemm(const NVTETensor *A,
                            const NVTETensor *B,
                            NVTETensor *D,
                            const NVTETensor *bias,
                            NVTETensor *pre_gelu_out,
                            int32_t num_gemms,
                            bool transa,
                            bool transb,
                            bool grad,
                            NVTETensor *workspace,
                            bool accumulate,
                            bool use_split_accumulator,
                            int32_t math_sm_count,
                            cudaStream_t stream);

/**
 * Returns the bytes that `workspace_setup` needs for grouped products of `num_tensors` members,
 * whatever their sizes.
 */
size_t nvte_get_grouped_gemm_setup_workspace_size(size_t num_tensors);

/**
 * Computes one product for each member of grouped tensors:
 * `D[i] = alpha[i] * Bop[i] Aop[i] + beta[i] * C[i]`.
 *
 * Shapes: as `nvte_cublas_gemm` has them, with D[i] `[n_i, m_i]`. Sizes are read on the device from
 * `first_dims` and `last_dims`; where one is missing, all members share that size. Members begin at
 * `tensor_offsets`, in elements, with `num_tensors` entries or one more, or without it follow each
 * other without gaps. Every grouped tensor has as many members. Sizes are below 2^29, may be 0 and
 * need no alignment; where k is 0, D[i] is `beta[i] * C[i]`. Elements that belong to no member are
 * left alone.
 *
 * C: null for D, or a group like D with offsets of its own; it is not read where beta is 0.
 *
 * Factors: `alpha` and `beta` are Float32 on the device, one for all members or one for each.
 *
 * Dtypes: A and B both Float16, both BFloat16, both Float32 (on the CPU backend alone), or FP8 per tensor
 * (with a scale for each member), in blocks (not 2D by 2D, and with the config's split accumulator) or
 * MXFP8. Scales of the members follow each other, each padded as those of a tensor alone. D is Float32,
 * Float16 or BFloat16. Which data of A and B are read: as `nvte_cublas_gemm` says.
 *
 * Workspace: `workspace_setup` has `nvte_get_grouped_gemm_setup_workspace_size` bytes, aligned to 16;
 * `workspace_cublas` has 32 MiB. On CUDA products of MXFP8 whose members have some hundred rows and columns, or
 * a thousand where A and B are read with `transa` and without `transb`, are up to three times as fast if it has
 * room for A and B in BFloat16 beside what else is kept there: two bytes for each element, of a list of tensors
 * rounded up to 256 for each, 1 KiB for each member and 16 KiB.
 *
 * Notes: a null config means defaults; its averages are hints. On CUDA this needs compute capability
 * 9.0 (otherwise `NVTEX_UNSUPPORTED`).
 *
 * Errors: different numbers of members; sizes that the host knows and that do not fit; missing data or
 * scales; other dtypes or scaling modes; workspaces that are too small.
 */
void nvte_grouped_gemm(NVTEGroupedTensor A,
                       int32_t transa,
                       NVTEGroupedTensor B,
                       int32_t transb,
                       NVTEGroupedTensor C,
                       NVTEGroupedTensor D,
                       NVTETensor alpha,
                       NVTETensor beta,
                       NVTETensor workspace_setup,
                       NVTETensor workspace_cublas,
                       NVTEGroupedMatmulConfig config,
                       cudaStream_t stream);

/**
 * Computes grouped products as `nvte_grouped_gemm` does, with the members of A in a list of tensors.
 *
 * The tensors may have any sizes; they share one scaling mode and dtype. Those without data are empty
 * members.
 */
void nvte_grouped_gemm_with_discrete_inputA(const NVTETensor *A_list,
                                            size_t num_a_tensors,
                                            int32_t transa,
                                            NVTEGroupedTensor B,
                                            int32_t transb,
                                            NVTEGroupedTensor C,
                                            NVTEGroupedTensor D,
                                            NVTETensor alpha,
                                            NVTETensor beta,
                                            NVTETensor workspace_setup,
                                            NVTETensor workspace_cublas,
                                            NVTEGroupedMatmulConfig config,
                                            cudaStream_t stream);

/**
 * Computes grouped products as `nvte_grouped_gemm` does, with the members of D and of C in lists of
 * tensors.
 *
 * The tensors of a list may have any sizes and share one dtype. C is a null list or has no tensors, or
 * has as many as D; a null tensor in it stands for that of D.
 */
void nvte_grouped_gemm_with_discrete_out(NVTEGroupedTensor A,
                                         int32_t transa,
                                         NVTEGroupedTensor B,
                                         int32_t transb,
                                         const NVTETensor *C_list,
                                         size_t num_c_tensors,
                                         NVTETensor *D_list,
                                         size_t num_d_tensors,
                                         NVTETensor alpha,
                                         NVTETensor beta,
                                         NVTETensor workspace_setup,
                                         NVTETensor workspace_cublas,
                                         NVTEGroupedMatmulConfig config,
                                         cudaStream_t stream);

/**
 * Adds to each row of a grouped tensor the bias of its member: `output[r][c] += bias[g(r)][c]`, in
 * float32 with one rounding. Row r of all rows belongs to member g(r), as `first_dims` of output says.
 *
 * Shapes: output `[rows, cols]`, with members of `cols` columns each that follow each other (offsets
 * are ignored); bias `[num_tensors, cols]`. Rows that belong to no member are left alone.
 *
 * Dtypes: Float32, Float16 or BFloat16, the same for both.
 *
 * Errors: other shapes or dtypes; members that differ in columns.
 */
void nvte_grouped_bias_add(NVTEGroupedTensor output,
                           NVTEGroupedTensor bias,
                           cudaStream_t stream);

/**
 * Adds biases as `nvte_grouped_bias_add` does, each multiplied by a factor of the row:
 * `output[r][c] += bias[g(r)][c] * scale[r]`, with one rounding. `scale` is `[rows]` in Float32.
 */
void nvte_grouped_scaled_bias_add(NVTEGroupedTensor output,
                                  NVTEGroupedTensor bias,
                                  NVTETensor scale,
                                  cudaStream_t stream);

/**
 * Widens `n` integers on the device: `dst[i] = src[i]`. The arrays must not overlap.
 */
void nvte_convert_int32_to_int64(const int32_t *src, int64_t *dst, size_t n, cudaStream_t stream);

/**
 * Widens `n` integers on the device and multiplies them: `dst[i] = src[i] * multiplier`, in 64-bit
 * arithmetic that wraps. Otherwise as `nvte_convert_int32_to_int64`.
 */
void nvte_convert_int32_to_int64_with_multiplier(const int32_t *src,
                                                 int64_t *dst,
                                                 size_t n,
                                                 int64_t multiplier,
                                                 cudaStream_t stream);

/**
 * Computes where members of `last_dim` columns begin and end: `offsets[0] = 0`,
 * `offsets[i + 1] = last_dim * (first_dims[0] + ... + first_dims[i])`.
 *
 * Both are arrays on the device, with `n_groups` and `n_groups + 1` entries, which must not overlap.
 * Arithmetic wraps in 64 bits.
 */
void nvte_compute_grouped_tensor_offsets(const int64_t *first_dims,
                                         int64_t *offsets,
                                         size_t n_groups,
                                         int64_t last_dim,
                                         cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_GEMM_H */
