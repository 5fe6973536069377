// Members of a group: which one a block works on, from dimensions that only the device knows.
#pragma once

#include "scale.cuh"
#include "nvte/backend.h"

namespace nvte {

// One matrix of a group. Dimensions of members have 32 bits: their arithmetic delays every block.
struct Member {
  size_t index;
  uint32_t rows, cols;
  size_t at;                      // First element in the buffers of data.
  size_t row_scales, col_scales;  // First entry in the buffers of scales.
  uint32_t row_tiles;             // Tiles of 128 rows of the members before it.
  uint32_t unit;                  // The wanted unit of work, counted from the member's first.
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
// a full warp, false if there are not so many. `rows` and `cols` are those of the group.
template <class Units>
__device__ __forceinline__ bool find_member(const NVTEXGroup &group, NVTEScalingMode mode,
                                            size_t rows, size_t cols, uint32_t wanted, Units units,
                                            Member &m) {
  const auto count = static_cast<uint32_t>(group.num_tensors);
  const auto even_cols = static_cast<uint32_t>(cols);
  const auto even_rows = static_cast<uint32_t>(rows) / (group.last_dims != nullptr ? 1 : count);
  if (group.first_dims == nullptr && group.last_dims == nullptr) {
    const uint32_t each = units(even_rows, even_cols), i = each != 0 ? wanted / each : count;
    if (i >= count) return false;
    m.index = i;
    m.rows = even_rows;
    m.cols = even_cols;
    m.at = i * size_t{even_rows} * even_cols;
    m.row_scales = i * scale_entries(mode, false, even_rows, even_cols);
    m.col_scales = i * scale_entries(mode, true, even_rows, even_cols);
    m.row_tiles = i * tiles_of(even_rows);
    m.unit = wanted - i * each;
  } else {
    // A lane has a run of members, so that one prefix sum serves many.
    constexpr uint32_t kRun = 4;
    const uint32_t lane = threadIdx.x % 32;
    size_t at = 0, row_scales = 0, col_scales = 0;
    uint32_t row_tiles = 0;
    for (uint32_t first = 0;; first += 32 * kRun) {
      if (first >= count) return false;
      uint32_t r[kRun], c[kRun], own = 0;
#pragma unroll
      for (uint32_t k = 0; k < kRun; ++k) {
        const uint32_t i = first + lane * kRun + k;
        r[k] = even_rows, c[k] = even_cols;
        if (group.first_dims != nullptr) {
          r[k] = i < count ? static_cast<uint32_t>(group.first_dims[i]) : 0;
        }
        if (group.last_dims != nullptr) {
          c[k] = i < count ? static_cast<uint32_t>(group.last_dims[i]) : 0;
        }
      }
#pragma unroll
      for (uint32_t k = 0; k < kRun; ++k) own += units(r[k], c[k]);
      uint32_t until = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const uint32_t before = __shfl_up_sync(0xffffffffu, until, step);
        if (lane >= step) until += before;
      }
      const unsigned hits = __ballot_sync(0xffffffffu, wanted < until);
      const uint32_t owner = hits != 0 ? __ffs(static_cast<int>(hits)) - 1 : 32;
      // In the owner's run, members up to the wanted one are before it.
      uint32_t left = lane == owner ? wanted - (until - own) : 0, hit = 0, rows_hit = 0,
               cols_hit = 0;
      bool before = lane <= owner;
#pragma unroll
      for (uint32_t k = 0; k < kRun; ++k) {
        const uint32_t n = units(r[k], c[k]);
        if (lane == owner && before && left < n) {
          before = false;
          hit = first + lane * kRun + k, rows_hit = r[k], cols_hit = c[k];
        }
        if (before) {
          if (lane == owner) left -= n;
          at += size_t{r[k]} * c[k];
          row_scales += scale_entries(mode, false, r[k], c[k]);
          col_scales += scale_entries(mode, true, r[k], c[k]);
          row_tiles += tiles_of(r[k]);
        }
      }
      if (hits != 0) {
        m.index = __shfl_sync(0xffffffffu, hit, owner);
        m.rows = __shfl_sync(0xffffffffu, rows_hit, owner);
        m.cols = __shfl_sync(0xffffffffu, cols_hit, owner);
        m.unit = __shfl_sync(0xffffffffu, left, owner);
        break;
      }
      wanted -= __shfl_sync(0xffffffffu, until, 31);
    }
    if (group.offsets == nullptr) m.at = warp_sum(at);
    if (mode != NVTE_DELAYED_TENSOR_SCALING) {
      m.row_scales = warp_sum(row_scales);
      m.col_scales = warp_sum(col_scales);
    }
    m.row_tiles = static_cast<uint32_t>(__reduce_add_sync(0xffffffffu, row_tiles));
  }
  if (group.offsets != nullptr) m.at = static_cast<size_t>(group.offsets[m.index]);
  return true;
}

// Most tiles of 128 x 128 that the members can have, unless both dimensions are the device's.
inline size_t most_tiles(const NVTEXGroup &group, size_t rows, size_t cols) {
  const size_t n = group.num_tensors;
  if (group.first_dims != nullptr) return (tiles_of(rows) + n) * tiles_of(cols);
  if (group.last_dims != nullptr) return tiles_of(rows) * (tiles_of(cols) + n);
  return n * tiles_of(rows / n) * tiles_of(cols);
}

}  // namespace nvte
