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
 * Normalizes each row to mean 0 and variance 1, and applies a weight and a bias (LayerNorm).
 *
 * What it computes, in float32 with one rounding: `mu = mean(x)`,
 * `rsigma = 1 / sqrt(mean((x - mu)^2) + epsilon)` and `z = g * (rsigma * (x - mu)) + beta`, where g is
 * `gamma`, or `gamma + 1` with `zero_centered_gamma`.
 *
 * Shapes: x and z `[N, H]`, gamma and beta `[H]`, mu and rsigma `[N]`. N may be 0.
 *
 * Dtypes: x, gamma and beta each Float32, Float16 or BFloat16, beta that of gamma; mu and rsigma
 * Float32. z is one of these types, or Float8E4M3 or Float8E5M2 in any scaling mode, as which it is
 * cast by the rules of `nvte_quantize` (per tensor: with row-wise data).
 *
 * Amax: `amax` of z, if it has one, is raised to the largest `|z|`: of the rounded values for Float32,
 * Float16 and BFloat16, of the values before scaling for FP8.
 *
 * Workspace: if it has no elements, the call gives it the shape that is needed (dtype Byte) and does
 * nothing else. Otherwise it must have that many bytes, which depend on the other shapes and on
 * `multiprocessorCount`, the number of multiprocessors that the call may keep busy.
 *
 * Overlaps: row-wise z may be x if their elements have the same size. No output overlaps anything
 * otherwise.
 *
 * Notes: mu and rsigma are always written.
 *
 * Errors: other dtypes or shapes; a negative or NaN epsilon; `multiprocessorCount` below 1; null or
 * misaligned pointers.
 *
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
 * Computes the gradients of `nvte_layernorm_fwd`, from its x, mu and rsigma.
 *
 * What it computes: with `y = rsigma * (x - mu)` and `d = g * dz`, `dx = rsigma * (d - mean(d * y) * y
 * - mean(d))` with means over the row, and `dgamma = sum(dz * y)`, `dbeta = sum(dz)` over the rows.
 * Sums are in float32, in an order that depends on shapes, dtypes and `multiprocessorCount` alone.
 *
 * Shapes: dz, x and dx `[N, H]`, gamma, dgamma and dbeta `[H]`, mu and rsigma `[N]`. N may be 0.
 *
 * Dtypes: x and gamma each Float32, Float16 or BFloat16; dx that of x; dz, dgamma and dbeta that of
 * gamma; mu and rsigma Float32.
 *
 * Overlaps: dx may be dz or x if their dtypes are equal. No output overlaps anything otherwise.
 *
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
 * Divides each row by its root mean square, and applies a weight (RMSNorm).
 *
 * What it computes: `rsigma = 1 / sqrt(mean(x^2) + epsilon)`, `z = g * (rsigma * x)`. All else is as
 * in `nvte_layernorm_fwd`.
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
 * Computes the gradients of `nvte_rmsnorm_fwd`, from its x and rsigma.
 *
 * What it computes: with `y = rsigma * x` and `d = g * dz`, `dx = rsigma * (d - mean(d * y) * y)` and
 * `dgamma = sum(dz * y)`. All else is as in `nvte_layernorm_bwd`.
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
 * Computes the gradients of `nvte_rmsnorm_fwd`, and adds to dx another gradient that reaches x beside
 * the normalization.
 *
 * `add` has the shape of dz and the dtype of gamma; it is added before dx is rounded, and dx may be
 * add, too. All else is as in `nvte_rmsnorm_bwd`.
 *
 * Errors: also while `nvte_enable_zero_centered_gamma_in_weight_dtype` is on and
 * `nvte_enable_cudnn_norm_bwd` is off.
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
 * Sets a process-wide switch that stands for cuDNN in forward functions; it is off unless
 * `NVTE_NORM_FWD_USE_CUDNN=1`.
 *
 * This library needs no cuDNN and computes the same either way. While the switch is on, Float32,
 * Float16 and BFloat16 outputs may have no amax, and `nvte_enable_zero_centered_gamma_in_weight_dtype`
 * has an effect on forward functions.
 */
void nvte_enable_cudnn_norm_fwd(bool enable);

/**
 * Sets a process-wide switch that stands for cuDNN in backward functions; it is off unless
 * `NVTE_NORM_BWD_USE_CUDNN=1`. While it is on, `nvte_enable_zero_centered_gamma_in_weight_dtype` has
 * an effect on backward functions.
 */
void nvte_enable_cudnn_norm_bwd(bool enable);

/**
 * Sets a process-wide switch that rounds `gamma + 1` to the dtype of gamma, with MXFP8 outputs or
 * where cuDNN is enabled; it is off unless `NVTE_ZERO_CENTERED_GAMMA_IN_WTYPE=1`.
 */
void nvte_enable_zero_centered_gamma_in_weight_dtype(bool enable);

/**
 * Adds a residual and normalizes in one pass: `sum = x + residual`, rounded to the dtype of x, then
 * `nvte_layernorm_fwd` of `sum`.
 *
 * The gradient is `nvtex_layernorm_bwd_add` with `sum` for x. residual and sum have the shape and
 * dtype of x; sum may be x or residual. No workspace is needed.
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
 * Adds a residual and normalizes in one pass: as `nvtex_residual_layernorm_fwd`, with
 * `nvte_rmsnorm_fwd`. The gradient is `nvte_rmsnorm_bwd_add` with `sum` for x.
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
 * Computes the gradients of `nvte_layernorm_fwd`, and adds to dx another gradient that reaches x
 * beside the normalization.
 *
 * `add` has the shape and dtype of dz; it is added before dx is rounded, and dx may be add, too. All
 * else is as in `nvte_layernorm_bwd`.
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
