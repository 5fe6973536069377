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

// Quotients of numbers below 2^31 by one that the host knows: a product, where a division takes
// some twenty instructions at the beginning of each block.
struct Divisor {
  uint32_t value = 1, factor = 1u << 31, shift = 31;

  Divisor() = default;
  explicit Divisor(uint32_t n) : value(n > 0 ? n : 1) {
    while ((uint64_t{1} << (shift - 31)) < value) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << shift) + value - 1) / value);
  }
  __device__ uint32_t quotient(uint32_t of) const {
    return static_cast<uint32_t>(uint64_t{of} * factor >> shift);
  }
};

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

// A total over members of a group in which one dimension varies: `each` times the sum of that
// dimension divided by 2^shift, then rounded up to a multiple of round + 1, a power of two.
struct MemberTotal {
  size_t each;
  uint32_t shift, round;

  __host__ __device__ uint32_t count(uint32_t dim) const {
    const uint32_t parts = (dim + ((1u << shift) - 1)) >> shift;
    return (parts + round) & ~round;
  }
};

// Of scale_entries(), where `other` is the dimension that all members share.
inline MemberTotal scale_total(NVTEScalingMode mode, bool colwise, bool rows_vary, uint32_t other) {
  const uint32_t tiles = tiles_of(other), round = 3;
  switch (mode) {
    case NVTE_DELAYED_TENSOR_SCALING:
      return {0, 0, 0};
    case NVTE_MXFP8_1D_SCALING:
      return {size_t{512} * tiles, 7, 0};
    case NVTE_BLOCK_SCALING_1D:
      if (colwise == rows_vary) return {(size_t{other} + round) & ~size_t{round}, 7, 0};
      return {tiles, 0, round};
    default:
      if (colwise == rows_vary) return {tiles, 7, round};
      return {(tiles + round) & ~round, 7, 0};
  }
}

// Whether at most one dimension varies, and sums of it have 32 bits.
inline bool one_varies(const NVTEXGroup &group, size_t rows, size_t cols) {
  const size_t most = UINT32_MAX - 128 * (group.num_tensors + 1);
  return (group.first_dims == nullptr || group.last_dims == nullptr) &&
         group.num_tensors < (1u << 24) && rows < most && cols < most;
}

__device__ __forceinline__ size_t warp_sum(size_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// For groups of which one_varies(): the member of line `wanted`, for all lanes of a full warp,
// false if there are not so many. A member has a line for each 2^shift of the dimension that
// varies, or less. `unit` becomes the line, `before` what `total` is up to the member. Every block
// begins with this, at the pace of a lone warp: few instructions and hardly a branch. H200, casts
// of bf16 in both directions, 8 members, GB/s by find_member() and by this: 1D 3394 and 3584, 2D
// 3497 and 3703, MXFP8 3142 and 3383; without the steps that 8 members do not need and without
// divisions, while no warp that looks up prefetches, 3552 and 3649, 3788 and 3820, 3399 and 3480.
__device__ __forceinline__ bool find_line(const NVTEXGroup &group, size_t rows, size_t cols,
                                          uint32_t wanted, uint32_t shift, const MemberTotal &total,
                                          Member &m) {
  const auto count = static_cast<uint32_t>(group.num_tensors);
  const bool rows_vary = group.last_dims == nullptr;
  const int64_t *dims = rows_vary ? group.first_dims : group.last_dims;
  const MemberTotal lines = {1, shift, 0};
  uint32_t index, own, unit, before = 0;
  if (dims == nullptr) {
    own = static_cast<uint32_t>(rows) / count;
    const uint32_t each = lines.count(own);
    index = each != 0 ? wanted / each : count;
    if (index >= count) return false;
    unit = wanted - index * each, before = index * total.count(own);
  } else {
    // A lane has a run of members, so that one prefix sum serves many.
    constexpr uint32_t kRun = 4;
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t first = lane * kRun;; first += 32 * kRun) {
      if (first - lane * kRun >= count) return false;
      uint32_t dim[kRun], until = 0;
#pragma unroll
      for (uint32_t k = 0; k < kRun; ++k) {
        dim[k] = first + k < count ? static_cast<uint32_t>(dims[first + k]) : 0;
      }
#pragma unroll
      for (uint32_t k = 0; k < kRun; ++k) until += lines.count(dim[k]);
      const uint32_t all = until;
      // As many steps as there are lanes with members.
#pragma unroll 1
      for (uint32_t step = 1; step < 32 && step * kRun < count; step *= 2) {
        const uint32_t lower = __shfl_up_sync(0xffffffffu, until, step);
        if (lane >= step) until += lower;
      }
      const unsigned hits = __ballot_sync(0xffffffffu, wanted < until);
      const uint32_t owner = hits != 0 ? __ffs(static_cast<int>(hits)) - 1 : 32;
      // Members that end at or before the wanted line: those of the owner's run, all of the lanes
      // before it.
      const uint32_t left = lane < owner ? ~0u : lane == owner ? wanted - (until - all) : 0;
      index = first, own = dim[0], unit = left;
      uint32_t behind = 0;
#pragma unroll
      for (uint32_t k = 0; k < kRun; ++k) {
        behind += lines.count(dim[k]);
        const bool passed = left >= behind;
        before += passed ? total.count(dim[k]) : 0;
        if (k + 1 < kRun && passed) index = first + k + 1, own = dim[k + 1], unit = left - behind;
      }
      if (hits != 0) {
        index = __shfl_sync(0xffffffffu, index, owner);
        own = __shfl_sync(0xffffffffu, own, owner);
        unit = __shfl_sync(0xffffffffu, unit, owner);
        before = __reduce_add_sync(0xffffffffu, before);
        break;
      }
      wanted -= __shfl_sync(0xffffffffu, until, 31);
    }
  }
  m = {index, rows_vary ? own : static_cast<uint32_t>(rows),
       rows_vary ? static_cast<uint32_t>(cols) : own, unit, total.each * before};
  return true;
}

// For other groups. Every member has units(rows, cols) units of work: finds the one of unit
// `wanted` likewise, and totals size(rows, cols) up to it. `rows` and `cols` are those of the
// group. Several warps total several sizes faster than one.
template <class Units, class Size>
__device__ __forceinline__ bool find_member(const NVTEXGroup &group, size_t rows, size_t cols,
                                            uint32_t wanted, const Units &units, const Size &size,
                                            Member &m) {
  const auto count = static_cast<uint32_t>(group.num_tensors);
  const uint32_t lane = threadIdx.x % 32;
  size_t before = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < count; first += 32) {
    const uint32_t i = first + lane;
    const auto dim = [&](const int64_t *dims, uint32_t even) {
      return i >= count ? 0 : dims == nullptr ? even : static_cast<uint32_t>(dims[i]);
    };
    const bool uniform = group.last_dims == nullptr && group.first_dims == nullptr;
    const uint32_t r = dim(group.first_dims, static_cast<uint32_t>(uniform ? rows / count : rows));
    const uint32_t c = dim(group.last_dims, static_cast<uint32_t>(cols));
    const uint32_t own = i < count ? units(r, c) : 0;
    uint32_t until = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t lower = __shfl_up_sync(0xffffffffu, until, step);
      if (lane >= step) until += lower;
    }
    const unsigned hits = __ballot_sync(0xffffffffu, wanted < until);
    const uint32_t owner = hits != 0 ? __ffs(static_cast<int>(hits)) - 1 : 32;
    if (lane < owner && i < count) before += size(r, c);
    if (hits != 0) {
      m.index = first + owner;
      m.rows = __shfl_sync(0xffffffffu, r, owner);
      m.cols = __shfl_sync(0xffffffffu, c, owner);
      m.unit = wanted - __shfl_sync(0xffffffffu, until - own, owner);
      m.before = warp_sum(before);
      return true;
    }
    wanted -= __shfl_sync(0xffffffffu, until, 31);
  }
  return false;
}

}  // namespace nvte
