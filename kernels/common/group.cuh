// Members of a group: which one a block works on, from dimensions that only the device knows.
#pragma once

#include "scale.cuh"
#include "nvte/backend.h"

namespace nvte {

// One matrix of a group.
struct Member {
  size_t index;
  size_t rows, cols;
  size_t at;                      // First element in the buffers of data.
  size_t row_scales, col_scales;  // First entry in the buffers of scales.
  size_t row_tiles;               // Tiles of 128 rows of the members before it.
  size_t unit;                    // The wanted unit of work, counted from the member's first.
};

__host__ __device__ inline size_t tiles_of(size_t n) { return n / 128 + (n % 128 != 0); }

// Elements from one row of a member's scale matrix to the next, a multiple of 4, and the number of
// those rows.
__host__ __device__ inline size_t scale_pitch(NVTEScalingMode mode, bool colwise, size_t rows,
                                              size_t cols) {
  const size_t across = tiles_of(cols), down = tiles_of(rows);
  const size_t length = mode == NVTE_MXFP8_1D_SCALING   ? (colwise ? 128 * across : 4 * across)
                        : mode == NVTE_BLOCK_SCALING_1D ? (colwise ? cols : rows)
                                                        : (colwise ? down : across);
  return (length + 3) / 4 * 4;
}
__host__ __device__ inline size_t scale_lines(NVTEScalingMode mode, bool colwise, size_t rows,
                                              size_t cols) {
  const size_t across = tiles_of(cols), down = tiles_of(rows);
  if (mode == NVTE_MXFP8_1D_SCALING) return colwise ? 4 * down : 128 * down;
  return (mode == NVTE_BLOCK_SCALING_1D) != colwise ? across : down;
}
// Entries of a member's scale matrix with its padding; none in mode 0.
__host__ __device__ inline size_t scale_entries(NVTEScalingMode mode, bool colwise, size_t rows,
                                                size_t cols) {
  if (mode == NVTE_DELAYED_TENSOR_SCALING) return 0;
  return scale_lines(mode, colwise, rows, cols) * scale_pitch(mode, colwise, rows, cols);
}

__device__ __forceinline__ size_t warp_sum(size_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// Every member has units(rows, cols) units of work: finds the one of unit `wanted` for all lanes of
// a full warp, false if there are not so many. `rows` and `cols` are those of the group.
template <class Units>
__device__ bool find_member(const NVTEXGroup &group, NVTEScalingMode mode, size_t rows, size_t cols,
                            size_t wanted, Units units, Member &m) {
  const size_t even_rows = group.last_dims == nullptr ? rows / group.num_tensors : rows;
  if (group.first_dims == nullptr && group.last_dims == nullptr) {
    const size_t each = units(even_rows, cols);
    if (each == 0 || wanted / each >= group.num_tensors) return false;
    const size_t i = wanted / each;
    m = {i,
         even_rows,
         cols,
         i * even_rows * cols,
         i * scale_entries(mode, false, even_rows, cols),
         i * scale_entries(mode, true, even_rows, cols),
         i * tiles_of(even_rows),
         wanted - i * each};
  } else {
    const int lane = threadIdx.x % 32;
    // Sums of this lane's members that lie before the wanted one.
    size_t at = 0, row_scales = 0, col_scales = 0, row_tiles = 0;
    for (size_t first = 0;; first += 32) {
      if (first >= group.num_tensors) return false;
      const size_t i = first + lane;
      size_t r = 0, c = 0, own = 0;
      if (i < group.num_tensors) {
        r = group.first_dims != nullptr ? static_cast<size_t>(group.first_dims[i]) : even_rows;
        c = group.last_dims != nullptr ? static_cast<size_t>(group.last_dims[i]) : cols;
        own = units(r, c);
      }
      size_t until = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const size_t before = __shfl_up_sync(0xffffffffu, until, step);
        if (lane >= step) until += before;
      }
      const unsigned hits = __ballot_sync(0xffffffffu, wanted < until);
      const int owner = hits != 0 ? __ffs(static_cast<int>(hits)) - 1 : 32;
      if (lane < owner) {
        at += r * c;
        row_scales += scale_entries(mode, false, r, c);
        col_scales += scale_entries(mode, true, r, c);
        row_tiles += tiles_of(r);
      }
      if (hits != 0) {
        m.index = first + owner;
        m.rows = __shfl_sync(0xffffffffu, r, owner);
        m.cols = __shfl_sync(0xffffffffu, c, owner);
        m.unit = wanted - __shfl_sync(0xffffffffu, until - own, owner);
        break;
      }
      wanted -= __shfl_sync(0xffffffffu, until, 31);
    }
    m.at = warp_sum(at);
    m.row_scales = warp_sum(row_scales);
    m.col_scales = warp_sum(col_scales);
    m.row_tiles = warp_sum(row_tiles);
  }
  if (group.offsets != nullptr) m.at = static_cast<size_t>(group.offsets[m.index]);
  return true;
}

// Most tiles of 128 x 128 that the members can have; 0 if the host cannot bound them usefully,
// because both dimensions are the device's.
inline size_t most_tiles(const NVTEXGroup &group, size_t rows, size_t cols) {
  const size_t n = group.num_tensors;
  if (group.first_dims != nullptr && group.last_dims != nullptr) return 0;
  if (group.first_dims != nullptr) return (tiles_of(rows) + n) * tiles_of(cols);
  if (group.last_dims != nullptr) return tiles_of(rows) * (tiles_of(cols) + n);
  return n * tiles_of(rows / n) * tiles_of(cols);
}

}  // namespace nvte
