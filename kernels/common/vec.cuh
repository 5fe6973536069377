// Vec: N elements in registers, and how they get there from global memory and back.
#pragma once

#include <cstddef>

#include "dtype.cuh"
#include "ptx.cuh"

namespace nvte {

// One element occupies the low bits of a word, the rest of which is zero.
template <class T, int N>
struct Vec {
  static constexpr int kBytes = N * T::kBytes;
  static constexpr int kWords = (kBytes + 3) / 4;
  static constexpr int kPerWord = 4 / T::kBytes;
  static_assert(N == 1 || kBytes % 4 == 0, "whole words, or one element");
  uint32_t w[kWords];
};

template <class T>
__device__ __forceinline__ T *element(void *base, size_t index) {
  return reinterpret_cast<T *>(static_cast<char *>(base) + index * sizeof(T));
}
template <class T>
__device__ __forceinline__ const T *element(const void *base, size_t index) {
  return reinterpret_cast<const T *>(static_cast<const char *>(base) + index * sizeof(T));
}

// N elements from `index` on if `inside`, else zeros; more than one must be aligned to their size
// (at most 16 bytes).
template <class T, int N>
__device__ __forceinline__ Vec<T, N> load(const void *base, size_t index, bool inside) {
  using V = Vec<T, N>;
  V v;
  const auto *p = element<typename T::Bits>(base, index);
  if constexpr (N == 1) {
    v.w[0] = inside ? *p : 0;
  } else {
    constexpr int kStep = V::kBytes < 16 ? V::kBytes : 16;
#pragma unroll
    for (int b = 0; b < V::kBytes; b += kStep) {
      load_once<kStep>(reinterpret_cast<const char *>(p) + b, inside, v.w + b / 4);
    }
  }
  return v;
}

template <class T, int N>
__device__ __forceinline__ void store(void *base, size_t index, const Vec<T, N> &v) {
  using V = Vec<T, N>;
  auto *p = element<typename T::Bits>(base, index);
  if constexpr (N == 1) {
    *p = static_cast<typename T::Bits>(v.w[0]);
  } else {
    constexpr int kStep = V::kBytes < 16 ? V::kBytes : 16;
#pragma unroll
    for (int b = 0; b < V::kBytes; b += kStep) {
      store_bytes<kStep>(reinterpret_cast<char *>(p) + b, v.w + b / 4);
    }
  }
}

// The first `count` of N elements one by one, at any alignment; zeros after them.
template <class T, int N>
__device__ __forceinline__ Vec<T, N> load_some(const void *base, size_t index, int count) {
  constexpr int kPer = Vec<T, N>::kPerWord;
  Vec<T, N> v = {};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const uint32_t bits = i < count ? *element<typename T::Bits>(base, index + i) : 0;
    v.w[i / kPer] |= bits << (i % kPer * 8 * T::kBytes);
  }
  return v;
}

template <class T, int N>
__device__ __forceinline__ void store_some(void *base, size_t index, int count,
                                           const Vec<T, N> &v) {
  constexpr int kPer = Vec<T, N>::kPerWord;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < count) {
      *element<typename T::Bits>(base, index + i) =
          static_cast<typename T::Bits>(v.w[i / kPer] >> (i % kPer * 8 * T::kBytes));
    }
  }
}

template <class T, int N>
__device__ __forceinline__ void to_float(const Vec<T, N> &v, float (&f)[N]) {
  constexpr int kPer = Vec<T, N>::kPerWord;
#pragma unroll
  for (int i = 0; i < Vec<T, N>::kWords; ++i) {
    float part[kPer];
    T::to_float(v.w[i], part);
#pragma unroll
    for (int j = 0; j < kPer && i * kPer + j < N; ++j) f[i * kPer + j] = part[j];
  }
}

template <class T, int N>
__device__ __forceinline__ Vec<T, N> from_float(const float (&f)[N]) {
  constexpr int kPer = Vec<T, N>::kPerWord;
  Vec<T, N> v;
#pragma unroll
  for (int i = 0; i < Vec<T, N>::kWords; ++i) {
    float part[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) part[j] = i * kPer + j < N ? f[i * kPer + j] : 0.0f;
    v.w[i] = T::from_float(part);
  }
  return v;
}

inline bool aligned(const void *p, size_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

}  // namespace nvte
