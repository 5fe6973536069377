// Elements of F32, F16 or BF16 in memory, which of these is known at run time only, that are
// float32 in registers. Kernels are tuned for BF16; one instance for all other dtypes saves most of
// the time that they take to compile. The branch on the dtype is one that all threads take, at
// loads and stores alone.
#pragma once

#include <type_traits>

#include "vec.cuh"

namespace nvte {

// Stands in the place of a tag of dtype.cuh.
struct Widened : F32 {};

template <class T>
constexpr bool kIsWidened = std::is_same_v<T, Widened>;

// Calls `f` with the tag of BF16, or with Widened for F32 and F16.
template <class F>
NVTEXOutcome dispatch_bf16_or_widened(NVTEDType dtype, F &&f) {
  if (dtype == kNVTEBFloat16) return f(BF16{});
  if (dtype == kNVTEFloat32 || dtype == kNVTEFloat16) return f(Widened{});
  return {NVTEX_BACKEND_UNIMPLEMENTED, "no CUDA kernel for this dtype"};
}

// Bytes of an element of a T that is Widened, or `dtype`'s tag.
template <class T>
__host__ __device__ constexpr int bytes_of(NVTEDType dtype) {
  return !kIsWidened<T>                                    ? T::kBytes
         : dtype == kNVTEFloat32                           ? 4
         : dtype == kNVTEFloat16 || dtype == kNVTEBFloat16 ? 2
                                                           : 1;
}

// Where element `index` lies.
template <class T>
__device__ __forceinline__ const void *address_of(NVTEDType dtype, const void *base, size_t index) {
  return static_cast<const char *>(base) + index * bytes_of<T>(dtype);
}

// Elements as they lie in memory, in the first words of `raw`, as float32.
template <int N>
__device__ __forceinline__ Vec<Widened, N> widened(NVTEDType dtype, const uint32_t (&raw)[N]) {
  float f[N];
  if (dtype == kNVTEFloat32) {
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = __uint_as_float(raw[i]);
  } else {
    Vec<F16, N> half;
    Vec<BF16, N> brain;
#pragma unroll
    for (int i = 0; i < Vec<F16, N>::kWords; ++i) half.w[i] = brain.w[i] = raw[i];
    if (dtype == kNVTEFloat16) {
      to_float(half, f);
    } else {
      to_float(brain, f);
    }
  }
  return from_float<Widened>(f);
}

// What get(tag) gives as a Vec of the tag's elements, for a tag that the dtype in memory has the
// size of.
template <int N, class Get>
__device__ __forceinline__ Vec<Widened, N> widened_from(NVTEDType dtype, const Get &get) {
  uint32_t raw[N];
  const auto take = [&](const auto &v) {
#pragma unroll
    for (int i = 0; i < N; ++i) raw[i] = i < v.kWords ? v.w[i] : 0;
  };
  if (dtype == kNVTEFloat32) {
    take(get(F32{}));
  } else {
    take(get(BF16{}));
  }
  return widened<N>(dtype, raw);
}

// load() and load_some() of vec.cuh.
template <class T, int N>
__device__ __forceinline__ Vec<T, N> load_as(NVTEDType dtype, const void *base, size_t index,
                                             bool inside) {
  if constexpr (!kIsWidened<T>) {
    return load<T, N>(base, index, inside);
  } else {
    return widened_from<N>(dtype,
                           [&](auto tag) { return load<decltype(tag), N>(base, index, inside); });
  }
}

template <class T, int N>
__device__ __forceinline__ Vec<T, N> load_some_as(NVTEDType dtype, const void *base, size_t index,
                                                  int count) {
  if constexpr (!kIsWidened<T>) {
    return load_some<T, N>(base, index, count);
  } else {
    return widened_from<N>(
        dtype, [&](auto tag) { return load_some<decltype(tag), N>(base, index, count); });
  }
}

// What Widened elements would be in memory: rounded to the dtype.
template <class T, int N>
__device__ __forceinline__ Vec<T, N> from_float_as(NVTEDType dtype, const float (&f)[N]) {
  if constexpr (!kIsWidened<T>) {
    return from_float<T>(f);
  } else {
    float rounded[N];
    if (dtype == kNVTEFloat16) {
      to_float(from_float<F16>(f), rounded);
    } else if (dtype == kNVTEBFloat16) {
      to_float(from_float<BF16>(f), rounded);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) rounded[i] = f[i];
    }
    return from_float<Widened>(rounded);
  }
}

// Calls `f` with elements as they are in memory. kFp8: the dtype may be one of FP8, too.
template <bool kFp8 = false, class T, int N, class F>
__device__ __forceinline__ void narrowed(NVTEDType dtype, const Vec<T, N> &v, const F &f) {
  if constexpr (!kIsWidened<T>) {
    f(v);
  } else {
    float x[N];
    to_float(v, x);
    if (dtype == kNVTEFloat32) {
      f(from_float<F32>(x));
    } else if (dtype == kNVTEFloat16) {
      f(from_float<F16>(x));
    } else if (!kFp8 || dtype == kNVTEBFloat16) {
      f(from_float<BF16>(x));
    } else if constexpr (kFp8) {
      if (dtype == kNVTEFloat8E4M3) {
        f(from_float<E4M3>(x));
      } else {
        f(from_float<E5M2>(x));
      }
    }
  }
}

// store() and store_some() of vec.cuh.
template <bool kFp8 = false, class T, int N>
__device__ __forceinline__ void store_as(NVTEDType dtype, void *base, size_t index,
                                         const Vec<T, N> &v) {
  if constexpr (!kIsWidened<T>) {
    store(base, index, v);
  } else {
    narrowed<kFp8>(dtype, v, [&](const auto &x) { store(base, index, x); });
  }
}

template <class T, int N>
__device__ __forceinline__ void store_some_as(NVTEDType dtype, void *base, size_t index, int count,
                                              const Vec<T, N> &v) {
  if constexpr (!kIsWidened<T>) {
    store_some(base, index, count, v);
  } else {
    narrowed(dtype, v, [&](const auto &x) { store_some(base, index, count, x); });
  }
}

}  // namespace nvte
