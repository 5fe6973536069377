// What the router's forward and backward share: score functions, keys that order scores, and sums
// over a warp.
#pragma once

#include <type_traits>

#include "vec.cuh"

namespace nvte {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr float kEpsilon = 1e-20f;

// Within two units of the last place.
__device__ __forceinline__ float sigmoid(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + expf(-x)));
  return y;
}

__device__ __forceinline__ float sqrtsoftplus(float x) {
  return sqrtf(x > 20.0f ? x : log1pf(expf(x)));
}

// Orders scores: 0 and -0 are equal, NaN comes before all numbers, 0 (no score) before that.
__device__ __forceinline__ uint32_t key_of(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);
  const uint32_t key = bits ^ (static_cast<uint32_t>(static_cast<int>(bits) >> 31) | 0x80000000u);
  return isnan(score) ? 1u : key;
}

__device__ __forceinline__ float value_of(uint32_t key) {
  const uint32_t bits = key >> 31 ? key ^ 0x80000000u : ~key;
  return key <= 1 ? __uint_as_float(0x7fffffffu) : __uint_as_float(bits);
}

__device__ __forceinline__ unsigned lanes_below() {
  unsigned mask;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  return mask;
}

// First element of vector c of this lane: vectors of V elements go around the warp.
template <int V>
__device__ __forceinline__ unsigned lane_element(int c) {
  return (c * 32 + threadIdx.x % 32) * V;
}

template <class Op>
__device__ __forceinline__ float over_warp(Op op, float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = op(value, __shfl_xor_sync(kFullWarp, value, step));
  }
  return value;
}
__device__ __forceinline__ float warp_sum(float value) {
  return over_warp([](float a, float b) { return a + b; }, value);
}
__device__ __forceinline__ float warp_most(float value) {
  return over_warp([](float a, float b) { return fmaxf(a, b); }, value);
}

}  // namespace nvte
