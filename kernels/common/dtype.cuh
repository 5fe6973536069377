// Element types as tags over 32-bit words, and the choice of a template instance by dtype.
#pragma once

#include "fp8.cuh"
#include "nvte/backend/outcome.h"

namespace nvte {

struct F32 {
  static constexpr NVTEDType kDtype = kNVTEFloat32;
  static constexpr int kBytes = 4;
  using Bits = uint32_t;
  static __device__ __forceinline__ void to_float(uint32_t w, float (&f)[1]) {
    f[0] = __uint_as_float(w);
  }
  static __device__ __forceinline__ uint32_t from_float(const float (&f)[1]) {
    return __float_as_uint(f[0]);
  }
};

struct F16 {
  static constexpr NVTEDType kDtype = kNVTEFloat16;
  static constexpr int kBytes = 2;
  using Bits = uint16_t;
  static __device__ __forceinline__ void to_float(uint32_t w, float (&f)[2]) {
    asm("{.reg .b16 lo, hi;\n"
        "mov.b32 {lo, hi}, %2;\n"
        "cvt.f32.f16 %0, lo;\n"
        "cvt.f32.f16 %1, hi;}"
        : "=f"(f[0]), "=f"(f[1])
        : "r"(w));
  }
  static __device__ __forceinline__ uint32_t from_float(const float (&f)[2]) {
    uint32_t w;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(w) : "f"(f[0]), "f"(f[1]));
    return w;
  }
  // A NaN loses against a number.
  static __device__ __forceinline__ uint32_t max2(uint32_t a, uint32_t b) {
    uint32_t w;
    asm("max.f16x2 %0, %1, %2;" : "=r"(w) : "r"(a), "r"(b));
    return w;
  }
};

struct BF16 {
  static constexpr NVTEDType kDtype = kNVTEBFloat16;
  static constexpr int kBytes = 2;
  using Bits = uint16_t;
  static __device__ __forceinline__ void to_float(uint32_t w, float (&f)[2]) {
    f[0] = __uint_as_float(w << 16);
    f[1] = __uint_as_float(w & 0xffff0000);
  }
  static __device__ __forceinline__ uint32_t from_float(const float (&f)[2]) {
    uint32_t w;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(w) : "f"(f[0]), "f"(f[1]));
    return w;
  }
  static __device__ __forceinline__ uint32_t max2(uint32_t a, uint32_t b) {
    uint32_t w;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(w) : "r"(a), "r"(b));
    return w;
  }
};

template <bool kE4M3>
struct Fp8 {
  static constexpr NVTEDType kDtype = kE4M3 ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2;
  static constexpr int kBytes = 1;
  using Bits = uint8_t;
  static __device__ __forceinline__ void to_float(uint32_t w, float (&f)[4]) {
    uint32_t lo, hi;
    decode_fp8x4<kE4M3>(w, lo, hi);
    float a[2], b[2];
    F16::to_float(lo, a);
    F16::to_float(hi, b);
    f[0] = a[0], f[1] = a[1], f[2] = b[0], f[3] = b[1];
  }
  static __device__ __forceinline__ uint32_t from_float(const float (&f)[4]) {
    return encode_fp8x4<kE4M3>(f);
  }
};
using E4M3 = Fp8<true>;
using E5M2 = Fp8<false>;

// Elements that are only copied.
template <class B>
struct Raw {
  static constexpr int kBytes = sizeof(B);
  using Bits = B;
};

template <class T>
constexpr bool kIsFp8 = T::kBytes == 1;

// Bytes of an element of F32, F16 or BF16.
inline __host__ __device__ constexpr int float_bytes(NVTEDType dtype) {
  return dtype == kNVTEFloat32 ? 4 : 2;
}

// Calls `f` with the tag of `dtype`; dtypes outside the list are unimplemented.
template <class... Tags, class F>
NVTEXOutcome dispatch(NVTEDType dtype, F &&f) {
  NVTEXOutcome outcome = {NVTEX_BACKEND_UNIMPLEMENTED, "no CUDA kernel for this dtype"};
  (void)((dtype == Tags::kDtype && (outcome = f(Tags{}), true)) || ...);
  return outcome;
}

}  // namespace nvte
