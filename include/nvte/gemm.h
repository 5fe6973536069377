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
 * Copies an attribute to `buf` and its size to `size_written` (required). With a null `buf` only the
 * size.
 */
void nvte_get_matmul_config_attribute(NVTEMatmulConfig config,
                                      NVTEMatmulConfigAttribute attr,
                                      void *buf,
                                      size_t size_in_bytes,
                                      size_t *size_written);

/**
 * Sets an attribute from `size_in_bytes` bytes at `buf`. Tensors stored here must live until the
 * products that use the config have been called.
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
 * Copies an attribute to `buf` and its size to `size_written` (required). With a null `buf` only the
 * size. Averages that were never set read as 0.
 */
void nvte_get_grouped_matmul_config_attribute(NVTEGroupedMatmulConfig config,
                                              NVTEGroupedMatmulConfigAttribute attr,
                                              void *buf,
                                              size_t size_in_bytes,
                                              size_t *size_written);

/**
 * Sets an attribute from `size_in_bytes` bytes at `buf`.
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
 * `D = Bop Aop`, plus D if `accumulate`, with an epilogue; row-major D `[n, m]`.
 *
 * Shapes: `Aop [k, m]` is A, or A^T of A `[m, k]` with `transa`; `Bop [n, k]` is B, or B^T of B
 * `[k, n]` with `transb`. Read column-major it is the BLAS product with the same flags.
 * Dtypes: Float32, Float16, BFloat16, FP8 operands with scales; an FP8 D needs `scale` and sets
 * `scale_inv` and, if there, `amax`.
 * Epilogue (tensors without an address are absent; `v` is the product):
 * neither `D = v`; bias `D = v + bias`; pre_gelu_out `D = gelu(v)`, `pre_gelu_out = v`; both
 * `D = gelu(v + bias)`, `pre_gelu_out = v + bias`. With `grad`: bias `bias[j] = sum over k of
 * Bop[j, k]`; pre_gelu_out `D = v * dgelu(pre_gelu_out)`; both that, and `bias` the sum over the
 * rows of D. GELU is the tanh form.
 * FP8 per tensor: unless `nvte_is_non_tn_fp8_gemm_supported`, each operand is read from the data that
 * are contiguous along k: row-wise for A with `transa` and B without `transb`, else column-wise.
 * FP8 blocks (1D x 1D, 1D x 2D, 2D x 1D) and MXFP8 (both): always from the direction whose blocks lie
 * along k, the same as above; each element counts with its scale, in the layouts of `nvte_quantize`.
 * FP8 blocks are summed in float32 per 128 of k, whatever `use_split_accumulator` says, and their scales are
 * never swizzled, whatever the tensor says; epilogues: bias, dGELU without bias. CUDA casts MXFP8 operands to
 * BFloat16, for which `workspace` should have `2 k (m + n)` bytes and 768 more for alignment; values outside
 * that type's normal range lose bits. With less the product is made in parts, for which 32 MiB are enough of
 * any size and 64 KiB the least (with `bias`, `pre_gelu_out` and `grad` `4 m` more); or, with up to 256 rows
 * or columns of D, by a kernel that casts on its way.
 * In a process that replaces the other library (`nvtex_set_drop_in`) FP8 blocks are also refused without
 * `use_split_accumulator`, if both are E5M2, with dGELU to Float32, and with k, m, or n where B is in 1D
 * blocks, not a multiple of 16, 8 and 8.
 * Sizes and dtypes of FP8 are free: one row or odd numbers will do. On CUDA cuBLASLt takes k in
 * multiples of 16, m of 16 (FP8 blocks: 8), n of 8 if B is in 1D blocks, addresses aligned to 16 bytes
 * and at most one E5M2. For the rest a kernel of this library computes (compute capability 9.0 only),
 * more slowly where rows of an operand do not begin at multiples of 16 bytes; it needs 2560 bytes of
 * `workspace`, and `4 m n` more with an epilogue or an FP8 D. Other dtypes that cuBLASLt does not
 * combine in D, bias and pre_gelu_out need `4 m n` and 512 bytes, for sums in float32. A and B have one
 * dtype unless both are FP8.
 * NVFP4 (both): from the direction whose blocks lie along k, each element with its scale, compact or
 * swizzled, and the product with `amaxA * amaxB / (36 * maxA * maxB)`, the amaxes of that direction and the
 * tensors' `NVFP4E4M3Max`. D is Float32 or BFloat16; no epilogue `bias` with `grad` alone; k % 16 must be 0.
 * CUDA casts operands to BFloat16, exactly, for which `workspace` should have `2 k (m + n)` bytes and 1024
 * more; with less the product is made in parts as that of MXFP8, from 64 KiB on.
 * `workspace`: bytes of device memory, may have none; `math_sm_count` 0: all multiprocessors. D may have
 * any shape of n * m elements but `[m, n]`.
 * Empty D: nothing is written.
 * Errors: dimensions that do not fit; missing data or scales; other scaling modes, or modes that do
 * not go together; combinations that the device's library has no algorithm for, or a workspace
 * without room for the casts (status unsupported).
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
 * As `nvte_cublas_gemm`, with `D = alpha * Bop Aop + beta * D`.
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
 * As `nvte_cublas_gemm`, with `D = *alpha * Bop Aop + *beta * C` (host pointers, but device pointers for
 * NVFP4 operands without amax) and options from a config (null: defaults). C may be D, null (D), or another matrix like D. The gradient epilogues
 * are chosen by a `dbias` tensor or `with_dgelu`; GELU and dGELU need the aux tensor.
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
 * As `nvte_cublas_gemm`, in step with others through `counter`, an Int32 tensor on the device with
 * `m_split * n_split` words or more (0 counts as 1), which idle at 1: with `gemm_producer` they become
 * 0 once D is complete, else the product begins when all are 0, which work on another stream must see
 * to (on the CPU backend the calling thread spins until another thread clears them). A null counter, or
 * one without an address: an ordinary product.
 *
 * The wait ends after 60 seconds, or those of the environment variable `NVTE_WAIT_SECONDS`. On the CPU
 * backend the call then fails (status device error) and D is untouched. On CUDA the stream goes on with
 * the product, whose result is not to be used; the next `nvtex_stream_synchronize` of any stream, or
 * the next call of this function that waits, reports it once as a device error.
 * Errors: as `nvte_cublas_gemm`; negative splits; another dtype or fewer words.
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
 * `num_gemms` products as `nvte_cublas_gemm` computes each, bit for bit, of which up to 4 run side by
 * side; none if `num_gemms` is not positive. FP8 blocks never need `use_split_accumulator` here.
 *
 * The arrays have `num_gemms` tensors; `bias` and `pre_gelu_out`, and tensors in them, may be null.
 * `workspace` has `min(4, num_gemms)` tensors, of which product i takes number `i % 4`; it may be null.
 * Errors: those of `nvte_cublas_gemm`, before any product has begun unless the device has no algorithm
 * for one; null arrays.
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
 * Bytes of `workspace_setup` for a product of `num_tensors` members, of whatever sizes.
 */
size_t nvte_get_grouped_gemm_setup_workspace_size(size_t num_tensors);

/**
 * `D[i] = alpha[i] * Bop[i] Aop[i] + beta[i] * C[i]` for each member, with the orientation of
 * `nvte_cublas_gemm`: `D[i] [n_i, m_i]`; sizes are read on the device.
 *
 * Members: as many in each grouped tensor, of the sizes in `first_dims` and `last_dims`, where missing
 * the same for all; at `tensor_offsets` (elements, `num_tensors` or one entry more) or else without
 * gaps. Sizes are below 2^29, may be 0 and need no alignment; a member without k is `beta * C`. Elements of no member
 * are left alone. C: null (D), or like D, with offsets of its own; not read where beta is 0.
 * `alpha`, `beta`: Float32 on the device, one or one for each member.
 * Dtypes: A and B both Float16, both BFloat16, or FP8 per tensor (a scale for each member), in blocks
 * (not 2D by 2D; the config's split accumulator must be set) or MXFP8, with the scales of the members
 * one after the other, each padded as by itself. D: Float32, Float16, BFloat16. Directions: as
 * `nvte_cublas_gemm`. On CUDA only with compute capability 9.0 (otherwise `NVTEX_UNSUPPORTED`).
 * `workspace_setup`: `nvte_get_grouped_gemm_setup_workspace_size` bytes, aligned to 16;
 * `workspace_cublas`: 32 MiB. A null config: defaults; its averages are hints.
 * Errors: other numbers of members; sizes that the host knows and that do not fit; missing data or
 * scales; other formats; smaller workspaces.
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
 * As `nvte_grouped_gemm`, with the members of A in tensors of their own: any number of them, of one
 * scaling mode and dtype. Those without data are empty.
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
 * As `nvte_grouped_gemm`, with the members of D, and of C, in tensors of their own: any number of them,
 * of one dtype. C: a null list, no tensors, or as many as D, of which null ones are those of D.
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
 * `output[r][c] = output[r][c] + bias[g(r)][c]`, in float32 with one rounding, where row r of all
 * rows belongs to member g(r), by `first_dims` of output.
 *
 * Shapes: output `[rows, cols]` in members of `cols` columns each, one after the other (offsets are
 * ignored); bias `[num_tensors, cols]`. Dtypes: Float32, Float16 or BFloat16, the same for both. Rows
 * that no member has are left alone.
 * Errors: other shapes or dtypes; members that differ in columns.
 */
void nvte_grouped_bias_add(NVTEGroupedTensor output,
                           NVTEGroupedTensor bias,
                           cudaStream_t stream);

/**
 * As `nvte_grouped_bias_add`, with `bias[g(r)][c] * scale[r]` (fused, one rounding); scale `[rows]` in
 * Float32.
 */
void nvte_grouped_scaled_bias_add(NVTEGroupedTensor output,
                                  NVTEGroupedTensor bias,
                                  NVTETensor scale,
                                  cudaStream_t stream);

/**
 * `dst[i] = src[i]` of `n` integers on the device, which must not overlap.
 */
void nvte_convert_int32_to_int64(const int32_t *src, int64_t *dst, size_t n, cudaStream_t stream);

/**
 * `dst[i] = src[i] * multiplier`, in 64-bit arithmetic that wraps; otherwise as
 * `nvte_convert_int32_to_int64`.
 */
void nvte_convert_int32_to_int64_with_multiplier(const int32_t *src,
                                                 int64_t *dst,
                                                 size_t n,
                                                 int64_t multiplier,
                                                 cudaStream_t stream);

/**
 * `offsets[0] = 0`, `offsets[i + 1] = last_dim * (first_dims[0] + ... + first_dims[i])`: where members of
 * `last_dim` columns begin and end. Device arrays with `n_groups` and `n_groups + 1` entries, which
 * must not overlap. Arithmetic wraps in 64 bits.
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
