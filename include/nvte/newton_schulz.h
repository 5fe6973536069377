#ifndef NVTE_NEWTON_SCHULZ_H
#define NVTE_NEWTON_SCHULZ_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Creates a context for Newton-Schulz iterations on a matrix that is distributed over `nranks` ranks, of which
 * there may be one. Then `comm` is not looked at and may be null. Otherwise it is a communicator of NCCL or what
 * `nvtex_communicator_as_nccl` gives, and lives as long as the context; all ranks make the same calls in the same order.
 * Destroy it with `nvte_cusolvermp_ctx_destroy`.
 *
 * Errors: a rank or a number of ranks that is not that of `comm`. Returns null.
 */
NVTECusolverMpCtx *nvte_cusolvermp_ctx_create(ncclComm_t comm,
                                              int32_t nranks,
                                              int32_t rank);

/**
 * Destroys a context and its memory, which no work and no graph may use any more. Null is ignored.
 */
void nvte_cusolvermp_ctx_destroy(NVTECusolverMpCtx *ctx);

/**
 * Iterates `x = a x + b (x x^T) x + c (x x^T)^2 x` in place, with a, b and c of each iteration from
 * `coefficients`: for coefficients that suit the singular values of x, these come near to 1. x is not
 * normalised before.
 *
 * Shapes: x `[m, n]`, any sizes; of P ranks each has the next ceil(n / P) columns as long as there are some left, in a
 * matrix of their own; `coefficients` (on the host) `num_coefficients` numbers, which must be
 * `3 * num_iterations`: a, b, c, a, b, c, ...
 * Dtypes: Float32, Float16, BFloat16. The three products of an iteration are summed in float32, and rounded to
 * the dtype of x; products of Float32 are those of `nvte_cublas_gemm`.
 * On one rank, in 16 bits, only half of each symmetric matrix is computed (on CUDA with compute capability 9.0, a
 * smaller side in multiples of 16 from about 2064 on, and an x that is aligned to 16 bytes). Then in BFloat16, if one
 * side of x is at least twice the other, the matrices of two iterations are multiplied before x is. That rounds x
 * less often, but its matrices more often: the result of five iterations differs by 1 to 6 % of its norm from
 * the exact one, where it is 1 to 3 % of single iterations, and less than of those if x is nearly singular.
 * Several ranks add their Gram matrices, `[m, m]` in Float32, once in each iteration, in the order of the ranks.
 * Memory: the context keeps that of three matrices of the smaller side of x, and of one like x, for each stream;
 * it is allocated when a call needs more than those before. A captured graph uses it when it is replayed.
 * Empty x, no iterations: nothing is written.
 * Errors: other shapes, dtypes or numbers of coefficients; negative sizes; a null or misaligned x.
 */
void nvte_newton_schulz(NVTECusolverMpCtx *ctx,
                        int64_t m,
                        int64_t n,
                        NVTETensor x,
                        int64_t num_iterations,
                        const float *coefficients,
                        int64_t num_coefficients,
                        cudaStream_t caller_stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_NEWTON_SCHULZ_H */
