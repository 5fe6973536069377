// Elements of F32, F16 or BF16, which of these is known at run time only: a branch that all threads
// take, where instances would take long to compile and gain little.
#pragma once

#include <type_traits>

#include "vec.cuh"

namespace nvte {

// Stands in the place of a tag of dtype.cuh.
struct RuntimeFloat {};

template <class T>
__host__ __device__ constexpr bool is_float32(NVTEDType dtype) {
  return std::is_same_v<T, RuntimeFloat> ? dtype == kNVTEFloat32 : std::is_same_v<T, F32>;
}

// As they are in memory.
template <int N>
struct Vec<RuntimeFloat, N> {
  uint32_t w[N];

  Vec() = default;
  template <class T>
  __device__ __forceinline__ explicit Vec(const Vec<T, N> &v) {
#pragma unroll
    for (int i = 0; i < N; ++i) w[i] = i < Vec<T, N>::kWords ? v.w[i] : 0;
  }
  template <class T>
  __device__ __forceinline__ Vec<T, N> as() const {
    Vec<T, N> v;
#pragma unroll
    for (int i = 0; i < Vec<T, N>::kWords; ++i) v.w[i] = w[i];
    return v;
  }
};

// load(), to_float() and store() of vec.cuh for a T that is RuntimeFloat, or `dtype`'s tag.
template <class T, int N>
__device__ __forceinline__ Vec<T, N> load(NVTEDType dtype, const void *base, size_t index,
                                          bool inside) {
  if constexpr (!std::is_same_v<T, RuntimeFloat>) {
    return load<T, N>(base, index, inside);
  } else if (dtype == kNVTEFloat32) {
    return Vec<RuntimeFloat, N>(load<F32, N>(base, index, inside));
  } else {
    return Vec<RuntimeFloat, N>(load<BF16, N>(base, index, inside));
  }
}

template <class T, int N>
__device__ __forceinline__ void to_float(NVTEDType dtype, const Vec<T, N> &v, float (&f)[N]) {
  if constexpr (!std::is_same_v<T, RuntimeFloat>) {
    to_float(v, f);
  } else if (dtype == kNVTEFloat32) {
    to_float(v.template as<F32>(), f);
  } else if (dtype == kNVTEBFloat16) {
    to_float(v.template as<BF16>(), f);
  } else {
    to_float(v.template as<F16>(), f);
  }
}

// Loads N elements and converts them.
template <class T, int N>
__device__ __forceinline__ void load_floats(NVTEDType dtype, const void *base, size_t index,
                                            float (&f)[N]) {
  if constexpr (!std::is_same_v<T, RuntimeFloat>) {
    to_float(load<T, N>(base, index, true), f);
  } else if (dtype == kNVTEFloat32) {
    to_float(load<F32, N>(base, index, true), f);
  } else if (dtype == kNVTEBFloat16) {
    to_float(load<BF16, N>(base, index, true), f);
  } else {
    to_float(load<F16, N>(base, index, true), f);
  }
}

template <class T, int N>
__device__ __forceinline__ void store(NVTEDType dtype, void *base, size_t index,
                                      const float (&f)[N]) {
  if constexpr (!std::is_same_v<T, RuntimeFloat>) {
    store(base, index, from_float<T, N>(f));
  } else if (dtype == kNVTEFloat32) {
    store(base, index, from_float<F32, N>(f));
  } else if (dtype == kNVTEBFloat16) {
    store(base, index, from_float<BF16, N>(f));
  } else {
    store(base, index, from_float<F16, N>(f));
  }
}

// One element at an address.
__device__ __forceinline__ float load_float(NVTEDType dtype, const void *at) {
  if (dtype == kNVTEFloat32) return *static_cast<const float *>(at);
  const uint32_t bits = *static_cast<const uint16_t *>(at);
  float half[2], brain[2];
  F16::to_float(bits, half);
  BF16::to_float(bits, brain);
  return dtype == kNVTEFloat16 ? half[0] : brain[0];
}
__device__ __forceinline__ void store_float(NVTEDType dtype, void *to, float value) {
  if (dtype == kNVTEFloat32) {
    *static_cast<float *>(to) = value;
  } else {
    *static_cast<uint16_t *>(to) = static_cast<uint16_t>(
        dtype == kNVTEFloat16 ? F16::from_float({value, 0.0f}) : BF16::from_float({value, 0.0f}));
  }
}

}  // namespace nvte
