// Largest magnitude over a thread's elements and over a block.
#pragma once

#include "vec.cuh"

namespace nvte {

// Magnitudes, packed as the elements are. The maximum takes a number before a NaN, so that one that
// begins with 0 never is NaN, and is exact.
template <class T>
__device__ __forceinline__ uint32_t magnitudes(uint32_t w) {
  if constexpr (T::kBytes == 4) {
    return __float_as_uint(fabsf(__uint_as_float(w)));  // Free: an operand's modifier.
  } else {
    return w & 0x7fff7fff;
  }
}
template <class T>
__device__ __forceinline__ uint32_t max_packed(uint32_t a, uint32_t b) {
  if constexpr (T::kBytes == 4) {
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
  } else {
    return T::max2(a, b);
  }
}

// max|x| of a thread; NaN is ignored.
template <class T>
struct AbsMax {
  uint32_t packed = 0;

  template <int N>
  __device__ __forceinline__ void add(const Vec<T, N> &v) {
#pragma unroll
    for (int i = 0; i < Vec<T, N>::kWords; ++i) {
      packed = max_packed<T>(packed, magnitudes<T>(v.w[i]));
    }
  }

  // Bits of the maximum as float32, which order like the values because none is negative.
  __device__ __forceinline__ int bits() const {
    if constexpr (T::kBytes == 4) {
      return static_cast<int>(packed);
    } else {
      float f[2];
      T::to_float(packed, f);
      return __float_as_int(fmaxf(f[0], f[1]));
    }
  }
};

__device__ __forceinline__ int warp_max(int value) { return __reduce_max_sync(0xffffffffu, value); }

// Maximum over a block: every thread puts, the caller synchronises, the first warp gets.
template <int kThreads>
struct BlockMax {
  int warps[kThreads / 32];

  __device__ __forceinline__ void put(int value) {
    value = warp_max(value);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  }
  __device__ __forceinline__ int get() const {
    return warp_max(threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : 0);
  }
};

}  // namespace nvte
