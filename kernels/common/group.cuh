// Members of a group: which one a block works on, from dimensions that only the device knows.
#pragma once

#include "scale.cuh"
#include "nvte/backend/group.h"

namespace nvte {

// One matrix of a group. Dimensions of members have 32 bits: their arithmetic delays every block.
struct Member {
  size_t index;
  uint32_t rows, cols;
  uint32_t unit;  // The wanted unit of work, counted from the member's first.
  size_t before;  // The total of what was asked for over the members before it.
};

template <class T>
__host__ __device__ constexpr T tiles_of(T n) {
  return n / 128 + (n % 128 != 0);
}

// Elements from one row of a member's scale matrix to the next, a multiple of 4, and the number of
// those rows.
__host__ __device__ inline uint32_t scale_pitch(NVTEScalingMode mode, bool colwise, uint32_t rows,
                                                uint32_t cols) {
  const uint32_t across = tiles_of(cols), down = tiles_of(rows);
  const uint32_t length = mode == NVTE_MXFP8_1D_SCALING   ? (colwise ? 128 * across : 4 * across)
                          : mode == NVTE_BLOCK_SCALING_1D ? (colwise ? cols : rows)
                                                          : (colwise ? down : across);
  return (length + 3) / 4 * 4;
}
__host__ __device__ inline uint32_t scale_lines(NVTEScalingMode mode, bool colwise, uint32_t rows,
                                                uint32_t cols) {
  const uint32_t across = tiles_of(cols), down = tiles_of(rows);
  if (mode == NVTE_MXFP8_1D_SCALING) return colwise ? 4 * down : 128 * down;
  return (mode == NVTE_BLOCK_SCALING_1D) != colwise ? across : down;
}
// Entries of a member's scale matrix with its padding; none in mode 0.
__host__ __device__ inline size_t scale_entries(NVTEScalingMode mode, bool colwise, uint32_t rows,
                                                uint32_t cols) {
  if (mode == NVTE_DELAYED_TENSOR_SCALING) return 0;
  return size_t{scale_lines(mode, colwise, rows, cols)} * scale_pitch(mode, colwise, rows, cols);
}

__device__ __forceinline__ size_t warp_sum(size_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// Every member has units(rows, cols) units of work: finds the one of unit `wanted` for all lanes of
// a full warp, false if there are not so many, and totals size(rows, cols) up to it. `rows` and
// `cols` are those of the group. Several warps total several sizes faster than one. kLean:
// with few registers.
template <bool kLean = false, class Units, class Size>
__device__ __forceinline__ bool find_member(const NVTEXGroup &group, size_t rows, size_t cols,
                                            uint32_t wanted, const Units &units, const Size &size,
                                            Member &m) {
  const auto count = static_cast<uint32_t>(group.num_tensors);
  const auto even_cols = static_cast<uint32_t>(cols);
  if (group.first_dims == nullptr && group.last_dims == nullptr) {
    const uint32_t even_rows = static_cast<uint32_t>(rows) / count;
    const uint32_t each = units(even_rows, even_cols), i = each != 0 ? wanted / each : count;
    if (i >= count) return false;
    m = {i, even_rows, even_cols, wanted - i * each, i * size(even_rows, even_cols)};
    return true;
  }
  // A lane has a run of members, so that one prefix sum serves many.
  constexpr uint32_t kRun = 4;
  const uint32_t lane = threadIdx.x % 32;
  size_t before = 0;
  for (uint32_t first = 0; first < count; first += 32 * kRun) {
    const auto dims = [&](uint32_t k, uint32_t &r, uint32_t &c) {
      const uint32_t i = first + lane * kRun + k;
      r = static_cast<uint32_t>(rows), c = even_cols;
      if (group.first_dims != nullptr) {
        r = i < count ? static_cast<uint32_t>(group.first_dims[i]) : 0;
      }
      if (group.last_dims != nullptr) {
        c = i < count ? static_cast<uint32_t>(group.last_dims[i]) : 0;
      }
    };
    uint32_t r[kRun], c[kRun], own = 0;
#pragma unroll
    for (uint32_t k = 0; k < kRun; ++k) {
      dims(k, r[k], c[k]);
      own += units(r[k], c[k]);
    }
    if (kLean) asm volatile("" ::: "memory");  // Below they come from L1, not from registers.
    uint32_t until = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t lower = __shfl_up_sync(0xffffffffu, until, step);
      if (lane >= step) until += lower;
    }
    const unsigned hits = __ballot_sync(0xffffffffu, wanted < until);
    const uint32_t owner = hits != 0 ? __ffs(static_cast<int>(hits)) - 1 : 32;
    // Members of the owner's run are before the wanted one while their units do not reach it.
    Member found = {};
    uint32_t left = wanted - (until - own);
    bool passed = lane <= owner;
#pragma unroll
    for (uint32_t k = 0; k < kRun; ++k) {
      if (kLean) dims(k, r[k], c[k]);
      const uint32_t n = units(r[k], c[k]);
      if (lane == owner && passed && left < n) {
        passed = false;
        found = {first + lane * kRun + k, r[k], c[k], left, 0};
      }
      if (passed) {
        left -= n;
        before += size(r[k], c[k]);
      }
    }
    if (hits != 0) {
      m.index = __shfl_sync(0xffffffffu, found.index, owner);
      m.rows = __shfl_sync(0xffffffffu, found.rows, owner);
      m.cols = __shfl_sync(0xffffffffu, found.cols, owner);
      m.unit = __shfl_sync(0xffffffffu, found.unit, owner);
      m.before = warp_sum(before);
      return true;
    }
    wanted -= __shfl_sync(0xffffffffu, until, 31);
  }
  return false;
}

}  // namespace nvte
