// Scales of blocks: how one follows from a block's largest magnitude, and where it is stored.
#pragma once

#include "nvte/backend/scaling.h"
#include "vec.cuh"

namespace nvte {

// A scaling mode, from the table of the library. A direction of a matrix has lines and a length:
// row-wise, the lines are its rows; column-wise, its columns.
template <NVTEScalingMode kMode>
struct Scaling;

#define NVTE_SCALING(mode, lines, length, line_padding, block_padding, transposed, major, bytes) \
  template <>                                                                                    \
  struct Scaling<mode> {                                                                         \
    /* Lines that share a scale, and elements of a line that do; 0: one scale for all. */        \
    static constexpr uint32_t kLines = lines, kLength = length;                                  \
    /* Lines and blocks of the scale matrix are rounded up to multiples of these. */             \
    static constexpr uint32_t kLinePadding = line_padding, kBlockPadding = block_padding;        \
    static constexpr bool kTransposes = transposed, kBlockMajor = major;                         \
    static constexpr size_t kEntryBytes = bytes;                                                 \
    /* Whether the scale matrix has a row for each block, not for each line. */                  \
    static __host__ __device__ constexpr bool rows_are_blocks(bool colwise) {                    \
      return kBlockMajor || (colwise && !kTransposes);                                           \
    }                                                                                            \
  };
NVTEX_SCALING_MODES(NVTE_SCALING)
#undef NVTE_SCALING

// Calls `f` with the row of `mode`, the last of the list if it is none of the others. On the
// host and on devices, as `f` is.
#pragma nv_exec_check_disable
template <NVTEScalingMode kMode, NVTEScalingMode... kOthers, class F>
__host__ __device__ constexpr auto with_scaling(NVTEScalingMode mode, F &&f) {
  if constexpr (sizeof...(kOthers) == 0) {
    return f(Scaling<kMode>());
  } else {
    return mode == kMode ? f(Scaling<kMode>()) : with_scaling<kOthers...>(mode, f);
  }
}
#pragma nv_exec_check_disable
template <class F>
__host__ __device__ constexpr auto with_fp8_scaling(NVTEScalingMode mode, F &&f) {
  return with_scaling<NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D,
                      NVTE_DELAYED_TENSOR_SCALING>(mode, f);
}

// Bytes of an entry of a scale matrix.
__host__ __device__ constexpr size_t scale_bytes(NVTEScalingMode mode) {
  return with_fp8_scaling(mode, [](auto scaling) { return decltype(scaling)::kEntryBytes; });
}

// E8M0 code of a non-negative number, rounded up to a power of two and at most the largest finite
// one. The maxima that become codes are never NaN.
__host__ __device__ inline uint32_t e8m0_code(uint32_t float_bits) {
  const uint32_t exponent = float_bits >> 23, mantissa = float_bits & 0x7fffff;
  // 2^-127, the value of code 0, is a subnormal float.
  const uint32_t code = exponent + (mantissa > (exponent == 0 ? 0x400000u : 0u));
  return code < 0xfe ? code : 0xfe;
}

// Float bits of a code's value, and of the reciprocal for codes other than NaN.
__host__ __device__ inline uint32_t e8m0_value(uint32_t code) {
  if (code == 0xff) return 0x7fffffff;
  return code == 0 ? 0x400000 : code << 23;
}
__host__ __device__ inline uint32_t e8m0_reciprocal(uint32_t code) {
  return code == 0xfe ? 0x400000 : (0xfe - code) << 23;
}

// A scale matrix has one entry for each line of the data (a row for row-wise data, a column for
// column-wise data) and each block along the line.
struct ScaleMatrix {
  void *entries;
  size_t line_step;
  size_t block_step;
  size_t tiles;    // Along the blocks, for the layout in tiles of 128 lines and 4 blocks; else 0.
  int line_shift;  // Logarithm of the number of lines that share their entries.

  __host__ __device__ size_t index(size_t line, size_t block) const {
    if (tiles != 0) {
      return (line / 128 * tiles + block / 4) * 512 + line % 32 * 16 + line % 128 / 32 * 4 +
             block % 4;
    }
    return (line >> line_shift) * line_step + block * block_step;
  }
};

// The scale matrix of a mode. `tiles`: see ScaleMatrix.
inline __host__ __device__ ScaleMatrix scale_matrix(NVTEScalingMode mode, void *entries,
                                                    size_t stride, bool colwise, size_t tiles) {
  return with_fp8_scaling(mode, [&](auto scaling) {
    using S = decltype(scaling);
    const bool by_block = S::rows_are_blocks(colwise);
    int line_shift = 0;
    while (S::kLines >> line_shift > 1) ++line_shift;
    return ScaleMatrix{entries, by_block ? 1 : stride, by_block ? stride : 1, tiles, line_shift};
  });
}

// FP8 block scaling: any float32, or a power of two.
struct FloatScale {
  using Entry = float;
  static constexpr int kBlock = Scaling<NVTE_BLOCK_SCALING_1D>::kLength;
  static constexpr bool kMx = false;

  float fp8_max;
  float epsilon;
  float cap;      // Instead of an infinite scale.
  uint32_t mask;  // Bits of the scale that are kept.

  // The factor of the data; `entry` takes what is stored.
  __device__ __forceinline__ float factor(float amax, float &entry) const {
    if (amax < epsilon) amax = epsilon;
    float scale = 1.0f;
    if (amax > 0.0f && amax < __int_as_float(0x7f800000)) {
      scale = __fdiv_rn(fp8_max, amax);
      if (scale == __int_as_float(0x7f800000)) scale = cap;
      scale = __uint_as_float(__float_as_uint(scale) & mask);
    }
    entry = __frcp_rn(scale);
    return scale;
  }
  static __device__ __forceinline__ float value(float entry) { return entry; }
};

// MXFP8: powers of two as E8M0 codes. Padding is written too.
struct MxScale {
  using Entry = uint8_t;
  static constexpr int kBlock = Scaling<NVTE_MXFP8_1D_SCALING>::kLength;
  static constexpr bool kMx = true;

  float inverse_max;  // 1 / fp8_max, rounded

  __device__ __forceinline__ float factor(float amax, uint8_t &entry) const {
    const uint32_t code = e8m0_code(__float_as_uint(__fmul_rn(amax, inverse_max)));
    entry = static_cast<uint8_t>(code);
    return __uint_as_float(e8m0_reciprocal(code));
  }
  static __device__ __forceinline__ float value(uint8_t entry) {
    return __uint_as_float(e8m0_value(entry));
  }
};

template <class Out, class In, int N>
__device__ __forceinline__ Vec<Out, N> scaled(const Vec<In, N> &x, const float (&factors)[N]) {
  float f[N];
  to_float(x, f);
  // The product of a NaN is the positive NaN, so that every NaN becomes 0x7F.
#pragma unroll
  for (int i = 0; i < N; ++i) f[i] = __fmul_rn(f[i], factors[i]);
  return from_float<Out>(f);
}

template <class Out, class In, int N>
__device__ __forceinline__ Vec<Out, N> scaled(const Vec<In, N> &x, float factor) {
  float factors[N];
#pragma unroll
  for (int i = 0; i < N; ++i) factors[i] = factor;
  return scaled<Out>(x, factors);
}

}  // namespace nvte
