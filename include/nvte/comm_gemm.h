#ifndef NVTE_COMM_GEMM_H
#define NVTE_COMM_GEMM_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Creates a context for products whose operands are distributed over `nranks` ranks, of which there may be one.
 * Then `comm` is not looked at and may be null. Otherwise it is a communicator of NCCL or what
 * `nvtex_communicator_as_nccl` gives, and lives as long as the context; all ranks make the same calls in the same order.
 * Destroy it with `nvte_comm_gemm_ctx_destroy`.
 *
 * Errors: a rank or a number of ranks that is not that of `comm`. Returns null.
 */
NVTECommGemmCtx *nvte_comm_gemm_ctx_create(ncclComm_t comm,
                                           int32_t nranks,
                                           int32_t rank);

/**
 * Destroys a context and its memory, which no work and no graph may use any more. Null is ignored.
 */
void nvte_comm_gemm_ctx_destroy(NVTECommGemmCtx *ctx);

/**
 * How much of a dimension of `global_size` the context's rank holds, where each of P ranks has ceil(global_size / P) of it
 * as long as there is something left. 0 for negative sizes.
 */
int64_t nvte_comm_gemm_numroc(NVTECommGemmCtx *ctx,
                              int64_t global_size);

/**
 * `D = Bop Aop` as `nvte_cublas_gemm`, where B is distributed over the rows of `Bop` and gathered from all ranks
 * first. Each rank computes its columns of D.
 *
 * Shapes: as `nvte_cublas_gemm` with m, n and k, which count all ranks. Of P ranks each holds m / P of A and of the
 * columns of D, and n / P of B; m and n are multiples of P. One rank holds all of A, B and D.
 * Dtypes, scaling modes, epilogue (`pre_act_out` is `pre_gelu_out`), errors: as `nvte_cublas_gemm`, with
 * `use_split_accumulator`. The context keeps the workspace for each stream and allocates it when a call needs
 * more than those before; a captured graph uses it when it is replayed. `bias` and `pre_act_out` may be null.
 * With several ranks modes have one scale, which all ranks have alike.
 * `comm_sm_count` (0 or more) and `algo` are hints about communication, which are not used: B is gathered, then
 * multiplied.
 * Errors, too: operands that do not have the sizes m, n and k; an unknown `algo`.
 */
void nvte_all_gather_gemm(NVTECommGemmCtx *ctx,
                          int64_t m,
                          int64_t n,
                          int64_t k,
                          NVTETensor A,
                          NVTETensor B,
                          NVTETensor D,
                          NVTETensor bias,
                          NVTETensor pre_act_out,
                          bool transa,
                          bool transb,
                          bool grad,
                          bool accumulate,
                          int32_t comm_sm_count,
                          cudaStream_t main_stream,
                          NVTECommGemmAlgoType algo);

/**
 * As `nvte_all_gather_gemm`, but A and B are distributed along k, the products of all ranks are added, and each
 * rank gets its rows of D. Of P ranks each holds k / P of A and B and n / P rows of D; n and k are multiples of P. The
 * products are rounded to the dtype of D, which is Float32, Float16 or BFloat16, and added in Float32 in the order of the
 * ranks. With several ranks there is no other epilogue than a bias, of which that of rank 0 counts.
 */
void nvte_gemm_reduce_scatter(NVTECommGemmCtx *ctx,
                              int64_t m,
                              int64_t n,
                              int64_t k,
                              NVTETensor A,
                              NVTETensor B,
                              NVTETensor D,
                              NVTETensor bias,
                              NVTETensor pre_act_out,
                              bool transa,
                              bool transb,
                              bool grad,
                              bool accumulate,
                              int32_t comm_sm_count,
                              cudaStream_t main_stream,
                              NVTECommGemmAlgoType algo);

/**
 * As `nvte_gemm_reduce_scatter`, but each rank gets all of D. Where it accumulates, D of rank 0 counts.
 */
void nvte_gemm_all_reduce(NVTECommGemmCtx *ctx,
                          int64_t m,
                          int64_t n,
                          int64_t k,
                          NVTETensor A,
                          NVTETensor B,
                          NVTETensor D,
                          NVTETensor bias,
                          NVTETensor pre_act_out,
                          bool transa,
                          bool transb,
                          bool grad,
                          bool accumulate,
                          int32_t comm_sm_count,
                          cudaStream_t main_stream,
                          NVTECommGemmAlgoType algo);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_COMM_GEMM_H */
