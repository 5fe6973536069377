// The epilogue: results of a tile to D, with alpha, beta and C.
#pragma once

#include <type_traits>

#include "common/tma.cuh"
#include "common/vec.cuh"
#include "layout.cuh"

namespace nvte {
namespace sm90_grouped {

// Adds a box of float32 from shared to global memory, as a store does otherwise. Subnormal numbers
// count as zero.
__device__ __forceinline__ void cp_reduce_async_bulk_tensor_add(const CUtensorMap *map,
                                                                const void *from, int x, int y) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];"
      :
      : "l"(map), "r"(shared_address(from)), "r"(x), "r"(y)
      : "memory");
}

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

// Neighbours in a row of D.
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

// Writes what a thread holds of products, see wgmma.cuh, to D: a warp turns its rows round in
// shared memory, so that neighbouring lanes have neighbouring columns and lines of D are written
// whole.
template <int kBytes, int N>
__device__ __forceinline__ void write_tile(const Output &out, int row, int col, const float (&d)[N],
                                           float *staging) {
  constexpr int kCount = 4, kLanes = kStagingCols / kCount, kRounds = kLanes / 2;
  const int lane = static_cast<int>(threadIdx.x % 32);
  row += static_cast<int>(threadIdx.x / 32 % 4) * 16;
  const bool whole =
      out.m % kCount == 0 && reinterpret_cast<uintptr_t>(out.d) % (kCount * kBytes) == 0 &&
      (out.beta == 0.0f || reinterpret_cast<uintptr_t>(out.c) % (kCount * kBytes) == 0);
#pragma unroll
  for (int part = 0; part < 2 * N / kStagingCols; ++part) {
    const int first = col + part * kStagingCols;
    if (first >= out.m) break;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kStagingCols / 4; ++i) {
      const int j = i / 2, h = i % 2;
      const float *from = d + part * (kStagingCols / 2) + 4 * j + 2 * h;
      *reinterpret_cast<float2 *>(staging + (lane / 4 + 8 * h) * kStagingPitch + 8 * j +
                                  2 * (lane % 4)) = make_float2(from[0], from[1]);
    }
    __syncwarp();
    if (whole) {
      const int r = lane / kLanes, c = lane % kLanes * kCount;
      Values<kBytes, kCount> values[kRounds];
#pragma unroll
      for (int i = 0; i < kRounds; ++i) values[i].read(out, row + r + 32 / kLanes * i, first + c);
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        const float4 four =
            *reinterpret_cast<const float4 *>(staging + (r + 32 / kLanes * i) * kStagingPitch + c);
        float v[kCount] = {four.x, four.y, four.z, four.w};
        values[i].finish(out, v);
      }
    } else {
#pragma unroll 1
      for (int r = 0; r < 16; ++r) {
        float v[1] = {staging[r * kStagingPitch + lane]};
        Values<kBytes, 1> value;
        value.read(out, row + r, first + lane);
        value.finish(out, v);
      }
    }
  }
}

// Sends results of a consumer to D in bulk: all its threads write a buffer of them at a time to
// shared memory, where its first one copies or adds them to D from, while the next are written if
// there is a second buffer.
template <class C, int kBytes, int N>
__device__ __forceinline__ void store_tile(const Problem &problem, int row, int col, bool half,
                                           const float (&d)[N], unsigned char *results, int w) {
  constexpr int kChunkCols = 128 / kBytes, kCols = C::kResultChunks * kChunkCols;
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  const float alpha = problem.alpha;
  const bool adds = problem.stores == Stores::kBulkAdd;
#pragma unroll
  for (int first = 0; first < 2 * N; first += kCols) {
    unsigned char *const buffer =
        results + first / kCols % C::kResultBuffers * C::kResultChunks * kChunkBytes;
    if (thread == 0) cp_async_bulk_wait_group_read<C::kResultBuffers - 1>();
    bar_sync(kStoreBarrier + w, 128);
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i) {
      const int j = i / 2, h = i % 2, chunk = 8 * j / kChunkCols, in = 8 * j % kChunkCols;
      const float x = alpha * d[first / 2 + 4 * j + 2 * h];
      const float y = alpha * d[first / 2 + 4 * j + 2 * h + 1];
      const int line = thread / 32 * 16 + lane / 4 + 8 * h;
      const int byte = in * kBytes + lane % 4 * 2 * kBytes;
      unsigned char *const to =
          buffer + chunk * kChunkBytes + line * 128 + (byte ^ (line % 8 * 16));
      if constexpr (kBytes == 4) {
        *reinterpret_cast<float2 *>(to) = make_float2(x, y);
      } else {
        const float both[2] = {x, y};
        *reinterpret_cast<uint32_t *>(to) = from_floats<kBytes>(both, half).w[0];
      }
    }
    fence_proxy_async();
    bar_sync(kStoreBarrier + w, 128);
    if (thread == 0) {
#pragma unroll
      for (int chunk = 0; chunk < C::kResultChunks; ++chunk) {
        const int x = col + first + chunk * kChunkCols;
        if (x >= problem.m) break;
        if (adds) {
          cp_reduce_async_bulk_tensor_add(&problem.d_map, buffer + chunk * kChunkBytes, x, row);
        } else {
          cp_async_bulk_tensor_store(&problem.d_map, buffer + chunk * kChunkBytes, {x, row});
        }
      }
      cp_async_bulk_commit_group();
    }
  }
}

}  // namespace sm90_grouped
}  // namespace nvte
