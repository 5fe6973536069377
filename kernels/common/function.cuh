// The functions of fused casts, bit for bit as the CPU backend (src/function.rs) computes them:
// float32, fused multiply-adds where they are written, a polynomial for the exponential, correctly
// rounded divisions.
#pragma once

#include <cuda_runtime.h>

#include "nvte/backend.h"

namespace nvte {

constexpr float kLog2E = 1.442695f;

// 1 / (1 + 2^t) for t in [-125, 125].
__device__ __forceinline__ float logistic2(float t) {
  // Adding 1.5 * 2^23 rounds to an integer n, which stays in the low bits.
  const float shifted = __fadd_rn(t, 12582912.0f);
  const float f = __fsub_rn(t, __fsub_rn(shifted, 12582912.0f));
  float p = 0.0013264715f;
  p = __fmaf_rn(p, f, 0.009671513f);
  p = __fmaf_rn(p, f, 0.05550734f);
  p = __fmaf_rn(p, f, 0.24022242f);
  p = __fmaf_rn(p, f, 0.693147f);
  p = __fmaf_rn(p, f, 1.0f);
  const float power = __int_as_float(__float_as_int(p) + (__float_as_int(shifted) << 23));
  return __frcp_rn(__fadd_rn(1.0f, power));
}

// max(x, least) and min(x, most), NaN for NaN.
__device__ __forceinline__ float at_least(float x, float least) { return x < least ? least : x; }
__device__ __forceinline__ float at_most(float x, float most) { return x > most ? most : x; }

// x / (1 + exp(-z)), z = z1 x + z3 x^3
struct SigmoidLinear {
  float t1, t3;  // -log2(e) times z1 and z3: what the power of two takes.
  float d1, d3;  // The derivative of z: d1 + d3 x^2.
  float far;     // From here on, on either side, the function is 0 or x.

  // The sigmoid at x; `near` becomes x where it is not far.
  __device__ __forceinline__ float sigmoid(float x, float &near) const {
    near = at_most(at_least(x, -far), far);
    return logistic2(__fmul_rn(near, __fmaf_rn(t3, __fmul_rn(near, near), t1)));
  }
  __device__ __forceinline__ float value(float x) const {
    float near;
    const float s = sigmoid(x, near);
    return __fmul_rn(at_least(x, -far), s);
  }
  __device__ __forceinline__ float slope(float x) const {
    float near;
    const float s = sigmoid(x, near);
    return slope_of(s, near);
  }
  __device__ __forceinline__ float slope_of(float s, float near) const {
    return __fmaf_rn(__fmul_rn(near, __fmaf_rn(d3, __fmul_rn(near, near), d1)), __fmaf_rn(-s, s, s),
                     s);
  }
};

inline SigmoidLinear sigmoid_linear(float z1) {
  return {z1 * -kLog2E, 0.0f, z1, 0.0f, 86.0f / (z1 < 0 ? -z1 : z1)};
}
constexpr SigmoidLinear kGelu = {-2.3022082f, -0.10294325f, 1.5957692f, 0.21406446f, 9.9f};

}  // namespace nvte
