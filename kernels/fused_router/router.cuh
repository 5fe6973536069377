// What the router's forward and backward share: score functions, and keys that order scores.
#pragma once

#include <type_traits>

#include "common/vec.cuh"
#include "common/warp.cuh"

namespace nvte {

constexpr float kEpsilon = 1e-20f;

// Rounded as a division is, because callers count scores in bins and compare the counts with those
// of their own scores: a Newton step corrects the approximate reciprocal. Those below 2^-126 remain
// approximate.
__device__ __forceinline__ float sigmoid(float x) {
  const float sum = 1.0f + expf(-x);
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(sum));
  return sum < 0x1p126f ? __fmaf_rn(y, __fmaf_rn(-sum, y, 1.0f), y) : y;
}

__device__ __forceinline__ float sqrtsoftplus(float x) {
  return sqrtf(x > 20.0f ? x : log1pf(expf(x)));
}

// Orders scores: 0 and -0 are equal, NaN comes before all numbers, 0 (no score) before that.
__device__ __forceinline__ uint32_t key_of(float score) {
  const uint32_t key = ordered_bits(__float_as_uint(score + 0.0f));
  return isnan(score) ? 1u : key;  // A choice, not a branch: those in loops cost registers.
}

__device__ __forceinline__ float value_of(uint32_t key) {
  const uint32_t bits = key >> 31 ? key ^ 0x80000000u : ~key;
  return key <= 1 ? __uint_as_float(0x7fffffffu) : __uint_as_float(bits);
}

// First element of vector c of this lane: vectors of V elements go around the warp.
template <int V>
__device__ __forceinline__ unsigned lane_element(int c) {
  return (c * 32 + threadIdx.x % 32) * V;
}

}  // namespace nvte
