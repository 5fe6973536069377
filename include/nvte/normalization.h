#ifndef NVTE_NORMALIZATION_H
#define NVTE_NORMALIZATION_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * LayerNorm of each row: `mu = mean(x)`, `rsigma = 1 / sqrt(mean((x - mu)^2) + epsilon)`,
 * `z = g * (rsigma * (x - mu)) + beta`, with `g = gamma`, or `gamma + 1` if `zero_centered_gamma`.
 * Computed in float32 and rounded once.
 *
 * Shapes: x and z `[N, H]`, gamma and beta `[H]`, mu and rsigma `[N]`. N may be 0.
 * Dtypes: x Float32, Float16 or BFloat16; gamma and beta one of these; mu and rsigma Float32; z one
 * of these or Float8E4M3, Float8E5M2 in any scaling mode of `nvte_quantize`, as which it is cast
 * (per tensor: with row-wise data). `amax` of z, if there, is raised to the largest `|z|`: for
 * Float32, Float16 and BFloat16 of the rounded values, for FP8 before scaling.
 * Workspace: without elements, it takes the shape that is needed (dtype Byte) and nothing else
 * happens; else it must have that many bytes, which depend on the other shapes and
 * `multiprocessorCount`, the number of multiprocessors that the call may keep busy.
 * mu and rsigma are always written. Row-wise z may be x if elements are of one size; no output overlaps
 * anything otherwise.
 * Errors: other dtypes or shapes; a negative or NaN epsilon; `multiprocessorCount` below 1; null or
 * misaligned pointers.
 * Source: Ba, Kiros, Hinton, Layer Normalization (2016).
 */
void nvte_layernorm_fwd(NVTETensor x,
                        NVTETensor gamma,
                        NVTETensor beta,
                        float epsilon,
                        NVTETensor z,
                        NVTETensor mu,
                        NVTETensor rsigma,
                        NVTETensor workspace,
                        int multiprocessorCount,
                        bool zero_centered_gamma,
                        cudaStream_t stream);

/**
 * Gradients of `nvte_layernorm_fwd`, from its x, mu and rsigma. With `y = rsigma * (x - mu)` and
 * `d = g * dz`: `dx = rsigma * (d - mean(d * y) * y - mean(d))` with means over the row,
 * `dgamma = sum(dz * y)` and `dbeta = sum(dz)` over the rows. Sums are in float32 and in an order
 * that depends on shapes, dtypes and `multiprocessorCount` alone.
 *
 * Shapes: dz, x and dx `[N, H]`, gamma, dgamma and dbeta `[H]`, mu and rsigma `[N]`. N may be 0.
 * Dtypes: x and gamma each Float32, Float16 or BFloat16; dx as x; dz, dgamma and dbeta as gamma;
 * mu and rsigma Float32. dx may be dz or x if the dtypes are equal; no output overlaps anything otherwise.
 * Workspace, errors: as `nvte_layernorm_fwd`.
 */
void nvte_layernorm_bwd(NVTETensor dz,
                        NVTETensor x,
                        NVTETensor mu,
                        NVTETensor rsigma,
                        NVTETensor gamma,
                        NVTETensor dx,
                        NVTETensor dgamma,
                        NVTETensor dbeta,
                        NVTETensor workspace,
                        int multiprocessorCount,
                        bool zero_centered_gamma,
                        cudaStream_t stream);

/**
 * RMSNorm of each row: `rsigma = 1 / sqrt(mean(x^2) + epsilon)`, `z = g * (rsigma * x)`; all else as
 * `nvte_layernorm_fwd`.
 *
 * Source: Zhang, Sennrich, Root Mean Square Layer Normalization (2019).
 */
void nvte_rmsnorm_fwd(NVTETensor x,
                      NVTETensor gamma,
                      float epsilon,
                      NVTETensor z,
                      NVTETensor rsigma,
                      NVTETensor workspace,
                      int multiprocessorCount,
                      bool zero_centered_gamma,
                      cudaStream_t stream);

/**
 * Gradients of `nvte_rmsnorm_fwd`: with `y = rsigma * x` and `d = g * dz`,
 * `dx = rsigma * (d - mean(d * y) * y)` and `dgamma = sum(dz * y)`; all else as
 * `nvte_layernorm_bwd`.
 */
void nvte_rmsnorm_bwd(NVTETensor dz,
                      NVTETensor x,
                      NVTETensor rsigma,
                      NVTETensor gamma,
                      NVTETensor dx,
                      NVTETensor dgamma,
                      NVTETensor workspace,
                      int multiprocessorCount,
                      bool zero_centered_gamma,
                      cudaStream_t stream);

/**
 * As `nvte_rmsnorm_bwd`, with `add`, of the shape of dz and the dtype of gamma, added to dx before it
 * is rounded: the gradient that reaches x beside the normalization. dx may be add, too.
 *
 * Errors: also if gamma is to be centred in its dtype while cuDNN's backward pass is not enabled.
 */
void nvte_rmsnorm_bwd_add(NVTETensor dz,
                          NVTETensor x,
                          NVTETensor add,
                          NVTETensor rsigma,
                          NVTETensor gamma,
                          NVTETensor dx,
                          NVTETensor dgamma,
                          NVTETensor workspace,
                          int multiprocessorCount,
                          bool zero_centered_gamma,
                          cudaStream_t stream);

/**
 * Process-wide switch, off unless `NVTE_NORM_FWD_USE_CUDNN=1`. This library does not need cuDNN and
 * computes the same either way; while on, Float32, Float16 and BFloat16 outputs may have no amax,
 * and `nvte_enable_zero_centered_gamma_in_weight_dtype` has an effect on forward functions.
 */
void nvte_enable_cudnn_norm_fwd(bool enable);

/**
 * Process-wide switch, off unless `NVTE_NORM_BWD_USE_CUDNN=1`; while on,
 * `nvte_enable_zero_centered_gamma_in_weight_dtype` has an effect on backward functions.
 */
void nvte_enable_cudnn_norm_bwd(bool enable);

/**
 * Process-wide switch, off unless `NVTE_ZERO_CENTERED_GAMMA_IN_WTYPE=1`: rounds `gamma + 1` to the
 * dtype of gamma, with MXFP8 outputs or where cuDNN is enabled.
 */
void nvte_enable_zero_centered_gamma_in_weight_dtype(bool enable);

/**
 * Adds and normalizes in one pass: `sum = x + residual`, rounded to the dtype of x, then
 * `nvte_layernorm_fwd` of `sum`. The gradient is `nvtex_layernorm_bwd_add` with `sum` for x.
 *
 * Shapes, dtypes: residual and sum as x. sum may be x or residual. No workspace is needed.
 */
void nvtex_residual_layernorm_fwd(NVTETensor x,
                                  NVTETensor residual,
                                  NVTETensor gamma,
                                  NVTETensor beta,
                                  float epsilon,
                                  NVTETensor sum,
                                  NVTETensor z,
                                  NVTETensor mu,
                                  NVTETensor rsigma,
                                  int multiprocessorCount,
                                  bool zero_centered_gamma,
                                  cudaStream_t stream);

/**
 * As `nvtex_residual_layernorm_fwd`, with `nvte_rmsnorm_fwd`. The gradient is `nvte_rmsnorm_bwd_add`
 * with `sum` for x.
 */
void nvtex_residual_rmsnorm_fwd(NVTETensor x,
                                NVTETensor residual,
                                NVTETensor gamma,
                                float epsilon,
                                NVTETensor sum,
                                NVTETensor z,
                                NVTETensor rsigma,
                                int multiprocessorCount,
                                bool zero_centered_gamma,
                                cudaStream_t stream);

/**
 * As `nvte_layernorm_bwd`, with `add`, of the shape and dtype of dz, added to dx before it is
 * rounded. dx may be add, too.
 */
void nvtex_layernorm_bwd_add(NVTETensor dz,
                             NVTETensor x,
                             NVTETensor add,
                             NVTETensor mu,
                             NVTETensor rsigma,
                             NVTETensor gamma,
                             NVTETensor dx,
                             NVTETensor dgamma,
                             NVTETensor dbeta,
                             NVTETensor workspace,
                             int multiprocessorCount,
                             bool zero_centered_gamma,
                             cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_NORMALIZATION_H */
