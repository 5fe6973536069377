// Sums and the like over a warp, and the order of floats as integers.
#pragma once

#include <cstdint>

namespace nvte {

constexpr unsigned kFullWarp = 0xffffffffu;

// Combines the values of all lanes of a warp; every lane gets the result.
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

__device__ __forceinline__ unsigned lanes_below() {
  unsigned mask;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  return mask;
}

// From the bits of a float: integers without a sign that order like the values, -0 before 0, and
// NaN outside of all numbers, on the side of its sign.
__device__ __forceinline__ uint32_t ordered_bits(uint32_t bits) {
  return bits ^ (static_cast<uint32_t>(static_cast<int>(bits) >> 31) | 0x80000000u);
}

}  // namespace nvte
