// The functions of fused casts, bit for bit as the CPU backend (src/function.rs) computes them:
// float32, fused multiply-adds where they are written, a polynomial for the exponential, correctly
// rounded divisions.
#pragma once

#include <type_traits>

#include "common/launch.cuh"
#include "common/math.cuh"
#include "common/vec.cuh"
#include "nvte/backend/function.h"

namespace nvte {

// 1 / y, correctly rounded for y in [1, 2^126].
__device__ __forceinline__ float reciprocal(float y) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
  return __fmaf_rn(r, __fmaf_rn(-y, r, 1.0f), r);
}

// 1 / (1 + 2^(a b)) for a b in [-125, 125].
__device__ __forceinline__ float logistic2(float a, float b) {
  // Adding 1.5 * 2^23 rounds to an integer n, whose exponent bits 127 more make 2^n.
  constexpr float kShift = 12582912.0f + 127.0f;
  const float shifted = __fmaf_rn(a, b, kShift);
  const float f = __fmaf_rn(a, b, __fsub_rn(kShift, shifted));
  float p = 0.0013264715f;
  p = __fmaf_rn(p, f, 0.009671513f);
  p = __fmaf_rn(p, f, 0.05550734f);
  p = __fmaf_rn(p, f, 0.24022242f);
  p = __fmaf_rn(p, f, 0.693147f);
  p = __fmaf_rn(p, f, 1.0f);
  return reciprocal(__fmaf_rn(p, __int_as_float(__float_as_int(shifted) << 23), 1.0f));
}

// max(x, least) and min(x, most), NaN for NaN.
__device__ __forceinline__ float at_least(float x, float least) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(least));
  return y;
}
__device__ __forceinline__ float at_most(float x, float most) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(most));
  return y;
}

// Every function f has value(x), slope(x), and for the linear half of its gated form gate(x) and
// gate_slope(x).
struct LinearGate {
  __device__ __forceinline__ float gate(float x) const { return x; }
  __device__ __forceinline__ float gate_slope(float) const { return 1.0f; }
};

struct Identity : LinearGate {
  __device__ __forceinline__ float value(float x) const { return x; }
  __device__ __forceinline__ float slope(float) const { return 1.0f; }
};

// x / (1 + exp(-z)), z = z1 x + z3 x^3
struct SigmoidLinear : LinearGate {
  float t1, t3;  // -log2(e) times z1 and z3: what the power of two takes.
  float d1, d3;  // The derivative of z: d1 + d3 x^2.
  float far;     // For x below -far or above far the function is 0 or x.

  __host__ __device__ SigmoidLinear(float t1, float t3, float d1, float d3, float far)
      : t1(t1), t3(t3), d1(d1), d3(d3), far(far) {}
  __host__ __device__ explicit SigmoidLinear(float z1)
      : SigmoidLinear(z1 * -kLog2e, 0.0f, z1, 0.0f, 86.0f / (z1 < 0 ? -z1 : z1)) {}

  // The sigmoid at x; `near` becomes x where it is not far.
  __device__ __forceinline__ float sigmoid(float x, float &near) const {
    near = at_most(at_least(x, -far), far);
    return logistic2(near, __fmaf_rn(t3, __fmul_rn(near, near), t1));
  }
  __device__ __forceinline__ float value(float x) const {
    float near;
    const float s = sigmoid(x, near);
    return __fmul_rn(at_least(x, -far), s);
  }
  __device__ __forceinline__ float slope(float x) const {
    float near;
    const float s = sigmoid(x, near);
    return slope(near, s);
  }
  // The slope from the results of sigmoid().
  __device__ __forceinline__ float slope(float near, float s) const {
    return __fmaf_rn(__fmul_rn(near, __fmaf_rn(d3, __fmul_rn(near, near), d1)), __fmaf_rn(-s, s, s),
                     s);
  }
};

struct Sigmoid : LinearGate {
  static __device__ __forceinline__ float sigmoid(float x, float &near) {
    near = at_most(at_least(x, -86.0f), 86.0f);
    // The cubic term of SigmoidLinear, which is 0 here, changes no product.
    return logistic2(near, -kLog2e);
  }
  __device__ __forceinline__ float value(float x) const {
    float near;
    const float s = sigmoid(x, near);
    return __fadd_rn(s, __fsub_rn(near, near));  // NaN for NaN
  }
  __device__ __forceinline__ float slope(float x) const {
    float near;
    const float s = sigmoid(x, near);
    return __fadd_rn(__fmaf_rn(-s, s, s), __fsub_rn(near, near));
  }
};

struct Relu : LinearGate {
  __device__ __forceinline__ float value(float x) const { return x > 0.0f ? x : 0.0f; }
  __device__ __forceinline__ float slope(float x) const { return x > 0.0f ? 1.0f : 0.0f; }
};

// The square of ReLU.
struct Srelu : LinearGate {
  __device__ __forceinline__ float value(float x) const {
    return x > 0.0f ? __fmul_rn(x, x) : 0.0f;
  }
  __device__ __forceinline__ float slope(float x) const {
    return x > 0.0f ? __fmul_rn(2.0f, x) : 0.0f;
  }
};

struct ClampedSilu {
  SigmoidLinear silu;
  float limit, offset;

  __device__ __forceinline__ float value(float x) const {
    return silu.value(x < limit ? x : limit);
  }
  __device__ __forceinline__ float slope(float x) const {
    const float slope = silu.slope(x < limit ? x : limit);
    return x <= limit ? slope : 0.0f;
  }
  __device__ __forceinline__ float gate(float x) const {
    x = x > -limit ? x : -limit;
    return __fadd_rn(x < limit ? x : limit, offset);
  }
  __device__ __forceinline__ float gate_slope(float x) const {
    return -limit <= x && x <= limit ? 1.0f : 0.0f;
  }
};

__device__ __forceinline__ float tanh_of(float y) {
  const float square = __fmul_rn(y, y);
  float p = -0.005659989f;
  p = __fmaf_rn(p, square, 0.020590989f);
  p = __fmaf_rn(p, square, -0.053721067f);
  p = __fmaf_rn(p, square, 0.13331127f);
  p = __fmaf_rn(p, square, -0.3333326f);
  p = __fmaf_rn(p, square, 1.0f);
  const float near = at_most(at_least(y, -43.0f), 43.0f);
  const float far = __fmaf_rn(2.0f, logistic2(near, -2.0f * kLog2e), -1.0f);
  return square < 0.390625f ? __fmul_rn(y, p) : __fadd_rn(far, __fsub_rn(near, near));
}

struct Situ {
  float a, b;

  __device__ __forceinline__ float value(float x) const {
    return __fmul_rn(__fmul_rn(a, tanh_of(__fdiv_rn(x, a))), Sigmoid{}.value(x));
  }
  __device__ __forceinline__ float slope(float x) const {
    const float t = tanh_of(__fdiv_rn(x, a)), s = Sigmoid{}.value(x);
    return __fadd_rn(__fmul_rn(__fmaf_rn(-t, t, 1.0f), s),
                     __fmul_rn(__fmul_rn(a, t), Sigmoid{}.slope(x)));
  }
  __device__ __forceinline__ float gate(float x) const {
    return __fmul_rn(b, tanh_of(__fdiv_rn(x, b)));
  }
  __device__ __forceinline__ float gate_slope(float x) const {
    const float t = tanh_of(__fdiv_rn(x, b));
    return __fmaf_rn(-t, t, 1.0f);
  }
};

// A function that is chosen at run time.
struct Function {
  NVTEXFunction kind;
  SigmoidLinear linear;
  float a, b, c;

  explicit Function(const NVTEXFusion &fusion)
      : kind(fusion.function), linear(linear_of(fusion)), a(fusion.a), b(fusion.b), c(fusion.c) {}

  static SigmoidLinear linear_of(const NVTEXFusion &fusion) {
    switch (fusion.function) {
      case NVTEX_GELU:
        return {-2.3022082f, -0.10294325f, 1.5957692f, 0.21406446f, 9.9f};
      case NVTEX_QGELU:
        return SigmoidLinear(1.702f);
      case NVTEX_CLAMPED_SILU:
        return SigmoidLinear(fusion.b);
      default:
        return SigmoidLinear(1.0f);
    }
  }

  // The functions that are used most share their code.
  __host__ __device__ __forceinline__ bool is_linear() const {
    return kind == NVTEX_GELU || kind == NVTEX_SILU || kind == NVTEX_QGELU;
  }

  // Calls `work` with the function.
  template <class Work>
  __device__ __forceinline__ void with(Work &&work) const {
    if (is_linear()) return work(linear);
    switch (kind) {
      case NVTEX_RELU:
        return work(Relu{});
      case NVTEX_SRELU:
        return work(Srelu{});
      case NVTEX_SIGMOID:
        return work(Sigmoid{});
      case NVTEX_CLAMPED_SILU:
        return work(ClampedSilu{linear, a, c});
      case NVTEX_SITU:
        return work(Situ{a, b});
      default:
        return work(Identity{});
    }
  }
};

// Inputs of a form's element, and elements that come from them.
template <NVTEXForm kForm>
constexpr int kInputsOf = kForm == NVTEX_FORM_GATED_DERIVATIVE                          ? 3
                          : kForm == NVTEX_FORM_DERIVATIVE || kForm == NVTEX_FORM_GATED ? 2
                                                                                        : 1;
template <NVTEXForm kForm>
constexpr int kHalvesOf = kForm == NVTEX_FORM_GATED_DERIVATIVE ? 2 : 1;

// `in` begins with the input; a gated one is given as two.
template <NVTEXForm kForm, class Curve>
__device__ __forceinline__ void apply_form(const Curve &f, const float (&in)[kInputsOf<kForm>],
                                           float (&v)[kHalvesOf<kForm>]) {
  if constexpr (kForm == NVTEX_FORM_PLAIN) {
    v[0] = in[0];
  } else if constexpr (kForm == NVTEX_FORM_ACTIVATION) {
    v[0] = f.value(in[0]);
  } else if constexpr (kForm == NVTEX_FORM_DERIVATIVE) {
    v[0] = __fmul_rn(f.slope(in[1]), in[0]);
  } else if constexpr (kForm == NVTEX_FORM_GATED) {
    v[0] = __fmul_rn(f.value(in[0]), f.gate(in[1]));
  } else {
    v[0] = __fmul_rn(__fmul_rn(f.slope(in[1]), in[0]), f.gate(in[2]));
    v[1] = __fmul_rn(__fmul_rn(f.gate_slope(in[2]), in[0]), f.value(in[1]));
  }
}

// apply_form() for N elements.
template <NVTEXForm kForm, class In, int N, class Curve>
__device__ __forceinline__ void apply_each(const Curve &f, const Vec<In, N> (&x)[kInputsOf<kForm>],
                                           float (&v)[kHalvesOf<kForm>][N]) {
  float in[kInputsOf<kForm>][N];
#pragma unroll
  for (int k = 0; k < kInputsOf<kForm>; ++k) to_float(x[k], in[k]);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float from[kInputsOf<kForm>], to[kHalvesOf<kForm>];
#pragma unroll
    for (int k = 0; k < kInputsOf<kForm>; ++k) from[k] = in[k][i];
    apply_form<kForm>(f, from, to);
#pragma unroll
    for (int h = 0; h < kHalvesOf<kForm>; ++h) v[h][i] = to[h];
  }
}

// The same with a function that is chosen here. Four elements at a time in a loop that shifts the
// registers: there are too many functions to unroll them all.
template <NVTEXForm kForm, class In, int N>
__device__ __forceinline__ void apply(const Function &f, Vec<In, N> (&x)[kInputsOf<kForm>],
                                      float (&v)[kHalvesOf<kForm>][N]) {
  constexpr int kStep = 4;
  using Step = Vec<In, kStep>;
#pragma unroll
  for (int h = 0; h < kHalvesOf<kForm>; ++h) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[h][i] = 0.0f;
  }
#pragma unroll 1
  for (int i = 0; i < N; i += kStep) {
    Step from[kInputsOf<kForm>];
    float to[kHalvesOf<kForm>][kStep];
#pragma unroll
    for (int k = 0; k < kInputsOf<kForm>; ++k) {
#pragma unroll
      for (int j = 0; j < Step::kWords; ++j) from[k].w[j] = x[k].w[j];
#pragma unroll
      for (int j = Step::kWords; j < Vec<In, N>::kWords; ++j) x[k].w[j - Step::kWords] = x[k].w[j];
    }
    f.with([&](const auto &curve) { apply_each<kForm>(curve, from, to); });
#pragma unroll
    for (int h = 0; h < kHalvesOf<kForm>; ++h) {
#pragma unroll
      for (int j = kStep; j < N; ++j) v[h][j - kStep] = v[h][j];
#pragma unroll
      for (int j = 0; j < kStep; ++j) v[h][N - kStep + j] = to[h][j];
    }
  }
}

// Calls `f` with the form as a type.
template <class F>
NVTEXOutcome dispatch_form(NVTEXForm form, F &&f) {
  switch (form) {
    case NVTEX_FORM_ACTIVATION:
      return f(std::integral_constant<NVTEXForm, NVTEX_FORM_ACTIVATION>{});
    case NVTEX_FORM_DERIVATIVE:
      return f(std::integral_constant<NVTEXForm, NVTEX_FORM_DERIVATIVE>{});
    case NVTEX_FORM_GATED:
      return f(std::integral_constant<NVTEXForm, NVTEX_FORM_GATED>{});
    case NVTEX_FORM_GATED_DERIVATIVE:
      return f(std::integral_constant<NVTEXForm, NVTEX_FORM_GATED_DERIVATIVE>{});
    default:
      return f(std::integral_constant<NVTEXForm, NVTEX_FORM_PLAIN>{});
  }
}

}  // namespace nvte
