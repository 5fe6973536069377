// NVFP4: E2M1 codes, their E4M3 block scales and the float32 scale of the whole tensor. Conversions
// in software, bit-equal to the instructions of GPUs that have them.
#pragma once

#include <cfloat>

#include "fp8.cuh"

namespace nvte {

constexpr int kNvfp4Block = 16;
constexpr float kE2m1Max = 6.0f;

// Magnitude code of 0 <= a <= 6 in the low 16 bits. The value of code c is a concave function of
// segments with the slopes 1/2, 1 and 2, so that c = round(min(2 a, a + 2, a / 2 + 4)); each sum
// with 2^23 rounds once, to even, and the least of them is the one of a's segment.
__device__ __forceinline__ uint32_t e2m1_magnitude(float a) {
  constexpr float kOne = 8388608.0f;  // Float32 numbers from here on are integers.
  const float half = __fmaf_rn(a, 2.0f, kOne);
  const float one = __fadd_rn(a, kOne + 2.0f);
  const float two = __fmaf_rn(a, 0.5f, kOne + 4.0f);
  return __vimin3_u32(__float_as_uint(half), __float_as_uint(one), __float_as_uint(two));
}

// Code of y: nearest, ties to even, at most +-6. A NaN becomes 7 if its sign is positive, as that
// of every product is.
__device__ __forceinline__ uint32_t encode_e2m1(float y) {
  return (e2m1_magnitude(fminf(fabsf(y), kE2m1Max)) & 7) | (__float_as_uint(y) >> 28 & 8);
}

// Eight codes, the first one in the lowest bits.
__device__ __forceinline__ uint32_t encode_e2m1x8(const float (&y)[8]) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 7; i >= 0; --i) word = word << 4 | encode_e2m1(y[i]);
  return word;
}

__device__ __forceinline__ float decode_e2m1(uint32_t code) {
  // As float32 with the exponent range of E2M1 in the lowest exponents.
  const uint32_t bits = (code & 8) << 28 | (code & 7) << 22;
  return __fmul_rn(__uint_as_float(bits), 0x1p126f);
}

__device__ __forceinline__ uint32_t encode_e4m3(float x) {
  const float f[4] = {x, 0.0f, 0.0f, 0.0f};
  return encode_fp8x4<true>(f) & 0xff;
}

__device__ __forceinline__ float decode_e4m3(uint32_t code) {
  uint32_t low, high;
  decode_fp8x4<true>(code, low, high);
  float f;
  asm("{.reg .b16 a, b;\nmov.b32 {a, b}, %1;\ncvt.f32.f16 %0, a;}" : "=f"(f) : "r"(low));
  return f;
}

// Factor that brings a tensor whose largest magnitude is `amax` into the range of the products of
// E4M3 and E2M1 numbers; 1 if that is 0 or Inf.
__device__ __forceinline__ float nvfp4_global_scale(float amax, float e4m3_max) {
  const float scale = fminf(__fdiv_rn(e4m3_max * kE2m1Max, amax), FLT_MAX);
  return amax == 0.0f || scale == 0.0f ? 1.0f : scale;
}

// What the blocks of a tensor need of its global scale.
struct Nvfp4Scale {
  float sixth;    // The global scale divided by 6.
  float inverse;  // The reciprocal of the global scale.
};

__device__ __forceinline__ Nvfp4Scale nvfp4_scale(float global_scale) {
  return {__fmul_rn(global_scale, 1.0f / 6.0f), __frcp_rn(global_scale)};
}

// The E4M3 code of a block whose largest magnitude is `amax`.
__device__ __forceinline__ uint32_t nvfp4_block_scale(float amax, const Nvfp4Scale &scale) {
  return encode_e4m3(fminf(__fmul_rn(amax, scale.sixth), FLT_MAX));
}

// The factor of the elements of a block with that code.
__device__ __forceinline__ float nvfp4_multiplier(uint32_t code, const Nvfp4Scale &scale) {
  return fminf(__frcp_rn(__fmul_rn(decode_e4m3(code), scale.inverse)), FLT_MAX);
}

}  // namespace nvte
