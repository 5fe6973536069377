// The epilogue: results of a tile to D, with alpha, beta and C.
#pragma once

#include <type_traits>

#include "common/vec.cuh"
#include "layout.cuh"

namespace nvte {
namespace sm90_grouped {

// Where results go, and what is added to them.
struct Output {
  const void *c;
  void *d;
  int n, m;
  float alpha, beta;
  NVTEDType dtype;
  bool rounds;  // Products are rounded to D's dtype before C is added.
};

// Elements of 2 bytes are BF16 or F16. Each is converted both ways and one result is chosen, which
// is cheaper than another instance.
template <int kBytes>
using Element = std::conditional_t<kBytes == 4, F32, BF16>;

template <int kBytes, int kCount>
__device__ __forceinline__ void to_floats(const Vec<Element<kBytes>, kCount> &bits, bool half,
                                          float (&f)[kCount]) {
  to_float(bits, f);
  if constexpr (kBytes == 2) {
    Vec<F16, kCount> same;
    float other[kCount];
#pragma unroll
    for (int i = 0; i < bits.kWords; ++i) same.w[i] = bits.w[i];
    to_float(same, other);
#pragma unroll
    for (int i = 0; i < kCount; ++i) f[i] = half ? other[i] : f[i];
  }
}

template <int kBytes, int kCount>
__device__ __forceinline__ Vec<Element<kBytes>, kCount> from_floats(const float (&f)[kCount],
                                                                    bool half) {
  auto bits = from_float<Element<kBytes>>(f);
  if constexpr (kBytes == 2) {
    const auto other = from_float<F16>(f);
#pragma unroll
    for (int i = 0; i < bits.kWords; ++i) bits.w[i] = half ? other.w[i] : bits.w[i];
  }
  return bits;
}

// Neighbours in a row of D: as many as have 8 bytes, or one.
template <int kBytes, int kCount>
struct Values {
  size_t at;
  bool inside;
  Vec<Element<kBytes>, kCount> c;

  __device__ __forceinline__ void read(const Output &out, int row, int col) {
    at = static_cast<size_t>(int64_t{row} * out.m + col);
    inside = row < out.n && col < out.m;
    c = load<Element<kBytes>, kCount>(out.c, at, inside && out.beta != 0.0f);
  }
  __device__ __forceinline__ void finish(const Output &out, float (&v)[kCount]) const {
    const bool half = out.dtype == kNVTEFloat16;
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] *= out.alpha;
    if (out.beta != 0.0f) {
      float old[kCount];
      to_floats<kBytes>(c, half, old);
      if (out.rounds) to_floats<kBytes>(from_floats<kBytes>(v, half), half, v);
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] += out.beta * old[i];
    }
    if (inside) store(out.d, at, from_floats<kBytes>(v, half));
  }
};

// Writes what a thread holds of products, see wgmma.cuh, to D in whole sectors.
template <int kBytes, int N>
__device__ __forceinline__ void write_tile(const Output &out, int row, int col, const float (&d)[N],
                                           float *staging) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  row += static_cast<int>(threadIdx.x / 32 % 4) * 16 + lane / 4;
  constexpr int kCount = 8 / kBytes;
  const bool whole = out.m % kCount == 0 && reinterpret_cast<uintptr_t>(out.d) % 8 == 0 &&
                     (out.beta == 0.0f || reinterpret_cast<uintptr_t>(out.c) % 8 == 0);
  if (!whole) {
    // Through shared memory: this is rare, and is little code that way.
    constexpr int kPitch = kStagingCols + 2;
#pragma unroll
    for (int part = 0; part < N / 2; part += kStagingCols / 4) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kStagingCols / 2; ++i) {
        const int j = i / 4, h = i / 2 % 2;
        staging[(lane / 4 + 8 * h) * kPitch + 8 * j + 2 * (lane % 4) + i % 2] = d[part * 2 + i];
      }
      __syncwarp();
#pragma unroll 1
      for (int i = lane; i < 16 * kStagingCols; i += 32) {
        const int r = i / kStagingCols, c = i % kStagingCols;
        float v[1] = {staging[r * kPitch + c]};
        Values<kBytes, 1> value;
        value.read(out, row - lane / 4 + r, col + part * 4 + c);
        value.finish(out, v);
      }
    }
    return;
  }
  // All of a group's elements of C are loaded before the first is used.
  constexpr int kGroup = 16 / kBytes, kParts = kBytes / 2;
  const bool odd = lane % 2 != 0;
#pragma unroll
  for (int group = 0; group < N / 4; group += kGroup) {
    Values<kBytes, kCount> values[kGroup / 2][2][kParts];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int j = group + i / 2 * 2, h = i % 2;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        values[i / 2][h][part].read(out, row + 8 * h,
                                    col + (kBytes == 4 ? 8 * (j + part) + 2 * (lane % 4)
                                                       : 8 * (j + odd) + 4 * (lane % 4 / 2)));
      }
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int h = i % 2;
      const float *x = d + 4 * (group + i / 2 * 2) + 2 * h, *y = x + 4;
      if constexpr (kBytes == 4) {
        float u[2] = {x[0], x[1]}, v[2] = {y[0], y[1]};
        values[i / 2][h][0].finish(out, u);
        values[i / 2][h][1].finish(out, v);
      } else {
        // Lanes in pairs: the even one takes four columns of the first 8, the odd one of the next.
        float v[4];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float got = __shfl_xor_sync(0xffffffffu, odd ? x[e] : y[e], 1);
          v[e] = odd ? got : x[e];
          v[2 + e] = odd ? y[e] : got;
        }
        values[i / 2][h][0].finish(out, v);
      }
    }
  }
}

}  // namespace sm90_grouped
}  // namespace nvte
