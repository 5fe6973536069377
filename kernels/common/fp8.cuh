// FP8 conversions: round to nearest even, saturating, NaN to 0x7F, subnormals kept.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace nvte {

// Conversion for GPUs without the instruction. kMantissa explicit mantissa bits, kBias exponent
// bias, kMaxCode code of the largest finite value.
template <int kMantissa, int kBias, uint32_t kMaxCode>
__host__ __device__ inline uint32_t encode_fp8_soft(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const uint32_t sign = (bits >> 24) & 0x80;
  uint32_t u = bits & 0x7fffffff;
  constexpr int kDrop = 23 - kMantissa;
  constexpr uint32_t kMinNormal = (127u + 1 - kBias) << 23;
  if (u > 0x7f800000) return 0x7f;
  if (u >= kMinNormal) {
    u += (1u << (kDrop - 1)) - 1 + ((u >> kDrop) & 1);
    const uint32_t code = (u >> kDrop) - ((127u - kBias) << kMantissa);
    return sign | (code < kMaxCode ? code : kMaxCode);
  }
  // Adding 2^23 units of the smallest subnormal leaves the code in the low mantissa bits, rounded.
  constexpr uint32_t kUnits = (127u + 1 - kBias - kMantissa + 23) << 23;
  float magic, magnitude;
  const uint32_t units = kUnits;
  memcpy(&magic, &units, 4);
  memcpy(&magnitude, &u, 4);
  const float sum = magnitude + magic;
  memcpy(&u, &sum, 4);
  return sign | (u - kUnits);
}

__host__ __device__ inline uint32_t encode_e4m3_soft(float x) {
  return encode_fp8_soft<3, 7, 0x7e>(x);
}
__host__ __device__ inline uint32_t encode_e5m2_soft(float x) {
  return encode_fp8_soft<2, 15, 0x7b>(x);
}

// Half-precision bits of an E4M3 code: its bits moved into place give the value times 2^-8.
__host__ __device__ inline uint32_t decode_e4m3_soft(uint32_t code) {
  const uint32_t sign = (code & 0x80) << 8;
  uint32_t magnitude = code & 0x7f;
  if (magnitude == 0x7f) return 0x7fff;
  if (magnitude >= 8) return sign | ((magnitude << 7) + (8u << 10));
  // Subnormal: n * 2^-9, n < 8, is normal in half precision.
  if (magnitude == 0) return sign;
  const uint32_t high = magnitude >= 4 ? 2 : magnitude >= 2 ? 1 : 0;
  return sign | ((15 - 9 + high) << 10) | ((magnitude << (10 - high)) & 0x3ff);
}

template <bool kE4M3>
__device__ __forceinline__ uint32_t encode_fp8x4(const float (&f)[4]) {
  uint32_t word;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (kE4M3) {
    asm("{.reg .b16 lo, hi;\n"
        "cvt.rn.satfinite.e4m3x2.f32 lo, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 hi, %4, %3;\n"
        "mov.b32 %0, {lo, hi};}"
        : "=r"(word)
        : "f"(f[0]), "f"(f[1]), "f"(f[2]), "f"(f[3]));
  } else {
    asm("{.reg .b16 lo, hi;\n"
        "cvt.rn.satfinite.e5m2x2.f32 lo, %2, %1;\n"
        "cvt.rn.satfinite.e5m2x2.f32 hi, %4, %3;\n"
        "mov.b32 %0, {lo, hi};}"
        : "=r"(word)
        : "f"(f[0]), "f"(f[1]), "f"(f[2]), "f"(f[3]));
  }
#else
  word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    word |= (kE4M3 ? encode_e4m3_soft(f[i]) : encode_e5m2_soft(f[i])) << (8 * i);
  }
#endif
  return word;
}

// Two words of two half-precision values each.
template <bool kE4M3>
__device__ __forceinline__ void decode_fp8x4(uint32_t word, uint32_t &lo, uint32_t &hi) {
  if constexpr (kE4M3) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("{.reg .b16 a, b;\n"
        "mov.b32 {a, b}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, a;\n"
        "cvt.rn.f16x2.e4m3x2 %1, b;}"
        : "=r"(lo), "=r"(hi)
        : "r"(word));
#else
    lo = decode_e4m3_soft(word & 0xff) | decode_e4m3_soft((word >> 8) & 0xff) << 16;
    hi = decode_e4m3_soft((word >> 16) & 0xff) | decode_e4m3_soft(word >> 24) << 16;
#endif
  } else {
    // E5M2 is the upper byte of half precision.
    lo = __byte_perm(word, 0, 0x1404);
    hi = __byte_perm(word, 0, 0x3424);
  }
}

}  // namespace nvte
