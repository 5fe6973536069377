// The instances of forward_mma.cu and backward_mma.cu, and the choice of one.
#pragma once

#include "attention.cuh"

namespace nvte {

// T: the dtype of products. kD: the head dimensions that fit. kExtras: scores may have extra terms.
template <class T_, int kD_, bool kFp8_, bool kExtras_>
struct MmaInstance {
  using T = T_;
  static constexpr int kD = kD_;
  static constexpr bool kFp8 = kFp8_, kExtras = kExtras_;
};

// Calls `f` with the smallest instance with extra terms that takes the arguments. FP8 becomes half
// precision.
template <class F>
NVTEXOutcome dispatch_mma_extras(const NVTEXAttentionArgs &a, F &&f) {
  const size_t dim = a.dim_qk > a.dim_v ? a.dim_qk : a.dim_v;
  if (is_fp8(a.q.dtype)) {
    if (dim <= 128) return f(MmaInstance<F16, 128, true, true>());
    return f(MmaInstance<F16, 256, true, true>());
  }
  return dispatch<F16, BF16>(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (dim <= 64) return f(MmaInstance<T, 64, false, true>());
    if (dim <= 128) return f(MmaInstance<T, 128, false, true>());
    return f(MmaInstance<T, 256, false, true>());
  });
}

// Likewise, and without extra terms if `extras` is false. FP8 has no such instances.
template <class F>
NVTEXOutcome dispatch_mma(const NVTEXAttentionArgs &a, bool extras, F &&f) {
  if (extras || is_fp8(a.q.dtype)) return dispatch_mma_extras(a, f);
  const size_t dim = a.dim_qk > a.dim_v ? a.dim_qk : a.dim_v;
  return dispatch<F16, BF16>(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (dim <= 64) return f(MmaInstance<T, 64, false, false>());
    if (dim <= 96) return f(MmaInstance<T, 96, false, false>());
    if (dim <= 128) return f(MmaInstance<T, 128, false, false>());
    if (dim <= 192) return f(MmaInstance<T, 192, false, false>());
    return f(MmaInstance<T, 256, false, false>());
  });
}

}  // namespace nvte
