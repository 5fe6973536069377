// The softmax of the scores that a thread has of a tile, and what is added to the scores before it:
// a mask, ALiBi's distances or a bias.
//
// What limits the kernel on an H200 is power: 685 to 695 of 700 W in every run longer than some
// milliseconds, at 1500 to 1900 MHz, so that fewer instructions count and more overlap alone does
// not. FP8, H200, November 2026, heads of 128: without exponentials 10 % more, without maxima 4 %,
// without sums 3 %; the tensor cores are 46 % busy, issue slots 55 %.
#pragma once

#include "common/mma.cuh"
#include "layout.cuh"

namespace nvte {
namespace sm90_forward {

// Maxima and sums of the two rows of a thread, h = 0 and 1, which are eight rows apart.
template <class C>
struct Softmax {
  float max[2], sum[2];

  // The power of 2 that a row's exponentials are divided by. FP8 rounds it up to a whole number, so
  // that few maxima change it and results are seldom multiplied: H200, November 2026, heads of 128,
  // causal 8k, full 16k: 791, 867 TFLOP/s, with the maxima themselves 763, 810.
  static __device__ __forceinline__ float base_of(float m, float scale_log2) {
    if constexpr (!C::kFp8) return m * scale_log2;
    constexpr float kRound = 0x1.8p23f;
    return __fadd_rn(__fadd_ru(m * scale_log2, kRound), -kRound);
  }

  // The bits of a row's maximum, of what this thread has, by the instruction for the maximum of
  // three integers: floats compare like their bits as integers unless all of them, the maximum
  // before among them, are negative.
  __device__ __forceinline__ int largest_bits(const float (&s)[C::kKeys / 2], int h) const {
    const auto at = [&](int j, int e) { return __float_as_int(s[4 * j + 2 * h + e]); };
    int most[2] = {__float_as_int(max[h]), ::max(at(0, 0), at(0, 1))};
#pragma unroll
    for (int j = 1; j < C::kKeys / 8; ++j) {
      most[j % 2] = __vimax3_s32(most[j % 2], at(j, 0), at(j, 1));
    }
    return ::max(most[0], most[1]);
  }

  // Scores become exp(x - max) with the maximum of the tiles before, which is quicker than to find
  // another. False if they grew too large for T or for sums, or if one is NaN: the scores are then
  // lost. H200, November 2026, TFLOP/s, where finding maxima comes in parentheses: heads of 128,
  // causal 2k, 8k, 16k, full 16k: 492 (454), 608 (562), 638 (590), 673 (623); heads of 64, causal
  // 8k: 504 (460); with dropout, causal 8k, heads of 128 and 64: 419 (388), 273 (262).
  __device__ __forceinline__ bool reuse_max(float (&s)[C::kKeys / 2], float scale_log2) {
    constexpr float kMost = C::T::kDtype == kNVTEFloat16 ? 0x1p14f : 0x1p30f;
    float total[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float base = max[h] * scale_log2;
#pragma unroll
      for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float &x = s[4 * j + 2 * h + e];
          x = power2(__fmaf_rn(x, scale_log2, -base));
          total[h] = __fadd_rn(total[h], x);
        }
      }
    }
    if (__any_sync(0xffffffff, !(total[0] + total[1] <= kMost))) return false;
    sum[0] += total[0];
    sum[1] += total[1];
    return true;
  }

  // Scores become exp(x - max) with a maximum that includes theirs; earlier results have to be
  // multiplied by `correction`. `row_offset`: what is still to be added to all scores of a row.
  // `slack`: by how much scores may pass the maximum before it is replaced.
  template <bool kFirst>
  __device__ __forceinline__ void update(float (&s)[C::kKeys / 2], float scale_log2,
                                         float (&correction)[2], const float (&row_offset)[2],
                                         float slack) {
    float largest[2];
    const auto find_largest = [&] {
      // Four chains of maxima, because each alone would wait for its own results.
      float most[2][2] = {{s[0], s[1]}, {s[2], s[3]}};
#pragma unroll
      for (int i = 4; i < C::kKeys / 2; ++i) {
        most[i / 2 % 2][i % 2] = fmaxf(most[i / 2 % 2][i % 2], s[i]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float m = fmaxf(most[h][0], most[h][1]);
        if constexpr (C::kAlibi) m += row_offset[h];
        m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 1));
        largest[h] = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 2));
      }
    };
    if constexpr (kFirst || !C::kIntegerMax) {
      find_largest();
    } else {
      int bits[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int m = largest_bits(s, h);
        m = ::max(m, __shfl_xor_sync(0xffffffff, m, 1));
        bits[h] = ::max(m, __shfl_xor_sync(0xffffffff, m, 2));
        largest[h] = __int_as_float(bits[h]);
      }
      if (__any_sync(0xffffffff, (bits[0] | bits[1]) < 0)) find_largest();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = largest[h];
      if (!kFirst) m = m > max[h] + slack ? m : max[h];
      const float base = base_of(m, scale_log2);
      // The row has no key so far, or none but those with a bias of -infinity.
      const bool none = (C::kBias ? base : m) == -INFINITY;
      float up = C::kLog2Boost - (none ? 0.0f : base);
      if constexpr (kFirst) {
        correction[h] = 1.0f;
      } else if constexpr (C::kFp8) {
        correction[h] = power2(base_of(max[h], scale_log2) - (none ? 0.0f : base));
      } else {
        correction[h] = power2(__fmaf_rn(max[h], scale_log2, none ? 0.0f : -base));
      }
      if constexpr (C::kAlibi) up = __fmaf_rn(row_offset[h], scale_log2, up);
      max[h] = m;
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float &x = s[4 * j + 2 * h + e];
          x = power2(__fmaf_rn(x, scale_log2, up));
          total = __fadd_rn(total, x);
        }
      }
      sum[h] = kFirst ? total : __fmaf_rn(sum[h], correction[h], total);
    }
  }
};

// ALiBi: adds slope (c - r), but for the part that a thread's scores of a row have in common. That
// goes to `row_offset`, so that a score costs one instruction.
template <class C>
__device__ __forceinline__ void add_distances(float (&s)[C::kKeys / 2], float (&row_offset)[2],
                                              const Tile &t, int n, int w) {
  const float slope = t.slope;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int first =
      n * C::kKeys + 2 * (thread % 4) - (t.m + 64 * w + thread / 32 * 16 + thread % 32 / 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) row_offset[h] = slope * static_cast<float>(first - 8 * h);
#pragma unroll
  for (int i = 0; i < C::kKeys / 2; ++i) {
    const int column = i / 4 * 8 + i % 2;
    if (column > 0) s[i] = __fmaf_rn(slope, static_cast<float>(column), s[i]);
  }
}

// `bias`: a tile of it in shared memory, with the rows of all consumers or with one row for all. It
// is read in the order in which ldmatrix gives a thread the elements of its scores.
template <class C>
__device__ __forceinline__ void add_bias(float (&s)[C::kKeys / 2], uint32_t bias, bool one_row,
                                         float unscale, int w) {
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
  const int row = one_row ? 0 : 64 * w + thread / 32 * 16 + lane % 16;
  bias += static_cast<uint32_t>(row) * 128;
#pragma unroll
  for (int i = 0; i < C::kKeys / 16; ++i) {
    uint32_t words[4];
    ldmatrix_x4(bias + i / 4 * C::kBiasPanel +
                    static_cast<uint32_t>((i % 4 * 2 + lane / 16) ^ (row % 8)) * 16,
                words);
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      float pair[2];
      C::T::to_float(words[g], pair);
#pragma unroll
      for (int e = 0; e < 2; ++e)
        s[8 * i + 2 * g + e] = __fmaf_rn(pair[e], unscale, s[8 * i + 2 * g + e]);
    }
  }
}

// Scores that the mask or the end of the keys hides become -infinity.
template <class C>
__device__ __forceinline__ void mask_scores(float (&s)[C::kKeys / 2], const Params &p,
                                            const Tile &t, int n, int w) {
  const int shift = p.bottom_right ? t.keys - t.rows : 0;
  const int column = n * C::kKeys + 2 * static_cast<int>(threadIdx.x % 4);
  const int row =
      t.m + 64 * w + static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int diagonal = row + 8 * h + shift;
    const int right = p.right == kUnbounded ? t.keys : diagonal + p.right + 1;
    const int end = (right < t.keys ? right : t.keys) - column;
#pragma unroll
    for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e >= end) s[4 * j + 2 * h + e] = -INFINITY;
      }
    }
    if (p.left == kUnbounded) continue;
    const int begin = diagonal - p.left - column;
#pragma unroll
    for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e < begin) s[4 * j + 2 * h + e] = -INFINITY;
      }
    }
  }
}

}  // namespace sm90_forward
}  // namespace nvte
