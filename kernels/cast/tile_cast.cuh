// Casts to FP8 in tiles of 128 x 128, with a scale per tensor or per block of elements (1 x 128,
// 128 x 128, 1 x 32 or 32 x 32): the arguments, what a thread has of a tile, and its stores, row by
// row and column by column.
#pragma once

#include <type_traits>

#include "function.cuh"
#include "modes.cuh"
#include "common/group.cuh"
#include "common/scale.cuh"
#include "common/tile.cuh"
#include "common/widened.cuh"

namespace nvte {

// 16 lanes span the columns of a tile, a thread has 4 rows of 8 columns.
constexpr int kTile = 128;
constexpr int kThreads = 512;
constexpr int kLanes = 16, kVec = 8, kPack = 4;
constexpr int kWarps = kThreads / 32, kWarpRows = 2 * kPack;
static_assert(kLanes * kVec == kTile && kWarps * kWarpRows == kTile, "a block covers a tile");

// A vector of FP8 codes of either format.
using Codes = Vec<Raw<uint8_t>, kVec>;

// Mode 0: one scale for all of a matrix.
struct TensorScale {
  using Entry = float;
  static constexpr int kBlock = kTile;
  static constexpr bool kMx = false;
};

// What a block must know of the matrix that its tile is part of.
struct Matrix {
  size_t rows, cols;  // Size of the output.
  size_t at;          // The first element of the matrix in the buffers.
  void *row_scales, *col_scales;
  size_t row_stride, col_stride;  // Strides of the scale matrices.
  const float *scale;             // The scale in mode 0.
  size_t row_tiles;               // Tiles of 128 rows before it in the workspace for dbias.
  bool in_vec;  // Whether every vector that is loaded is aligned and inside or outside as a whole,
  bool row_vec, col_vec;  // and every vector that is stored.
};

template <class Scale>
struct TileCastArgs {
  NVTEXCast q;
  Matrix matrix;  // Unless there is a group.
  Scale scale;
  Function function;
  bool e5m2;
  // Blocks go over the tiles along the rows, or down the columns: whichever output is written in
  // the order of the blocks leaves L2 in long runs.
  bool down;
  // A block makes a tile of both halves of a gated derivative from one read; else of the output.
  bool split;
  FastDivisor tiles_per_line;
  uint32_t tiles;  // Number of tiles of a lone matrix.
  // A block prefetches the tile that comes so many later, unless an earlier one has done so its
  // own.
  uint32_t ahead;
  // Of a group: the first tile of the launch, what no tile of it reaches, whether find_line() knows
  // the members, tiles of their common dimension, and what is before them of data, tiles of 128
  // rows, and scales row by row and column by column.
  uint32_t first_tile, end_tile;
  bool lines;
  FastDivisor tiles_across;
  MemberTotal totals[4];
};

// A tile, and what a thread has of it.
struct ThreadTile {
  size_t row0, col0;
  int height, width;      // Rows and columns of the tile that lie inside of the matrix.
  int warp, group, word;  // word: which rows, of the two lots of the warp
  int row, col;           // The thread's first element.
  int rows, cols;  // Rows and columns inside of the matrix from the thread's first element on.

  __device__ __forceinline__ ThreadTile(const Matrix &m, size_t row0, size_t col0, size_t end)
      : row0(row0), col0(col0) {
    const int lane = threadIdx.x % 32;
    height = left_of(m.rows - row0, kTile);
    width = left_of(end - col0, kTile);
    warp = threadIdx.x / 32;
    group = lane % kLanes;
    word = lane / kLanes;
    row = warp * kWarpRows + word * kPack;
    col = group * kVec;
    rows = height - row;
    cols = width - col;
  }
};

inline __host__ __device__ bool aligned_to(const void *p, size_t offset, size_t bytes) {
  return (reinterpret_cast<uintptr_t>(p) + offset) % bytes == 0;
}

template <class In, class Scale, NVTEXForm kForm>
__host__ __device__ void set_data(Matrix &matrix, const NVTEXCast &q, size_t index, size_t rows,
                                  size_t cols, size_t at) {
  const size_t in = at * bytes_of<In>(q.input_dtype);
  const bool whole = cols / kHalvesOf<kForm> % kVec == 0;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.at = at;
  matrix.scale = q.scale == nullptr ? nullptr : q.scale + index;
  matrix.in_vec = whole && aligned_to(q.input, in, 16) && aligned_to(q.fusion.act_input, in, 16);
  matrix.row_vec = whole && aligned_to(q.rowwise, at, kVec);
  matrix.col_vec = Scale::kMx ? whole && aligned_to(q.colwise, at, kVec)
                              : rows % 16 == 0 && aligned_to(q.colwise, at, 16);
}

template <class Scale, bool kSquare>
constexpr NVTEScalingMode kModeOf = std::is_same_v<Scale, TensorScale> ? NVTE_DELAYED_TENSOR_SCALING
                                    : Scale::kMx                       ? NVTE_MXFP8_1D_SCALING
                                    : kSquare                          ? NVTE_BLOCK_SCALING_2D
                                                                       : NVTE_BLOCK_SCALING_1D;

template <class Scale, bool kSquare>
__device__ __forceinline__ ScaleMatrix scales_of(const NVTEXCast &q, const Matrix &m,
                                                 bool colwise) {
  const bool tiled = Scale::kMx && q.swizzled;
  return scale_matrix(kModeOf<Scale, kSquare>, colwise ? m.col_scales : m.row_scales,
                      colwise ? m.col_stride : m.row_stride, colwise,
                      tiled ? tiles_of(colwise ? m.rows : m.cols) : 0);
}

__device__ __forceinline__ Codes encode(bool e5m2, const float (&f)[kVec]) {
  Codes y;
  if (e5m2) {
    const Vec<E5M2, kVec> v = from_float<E5M2>(f);
    y.w[0] = v.w[0], y.w[1] = v.w[1];
  } else {
    const Vec<E4M3, kVec> v = from_float<E4M3>(f);
    y.w[0] = v.w[0], y.w[1] = v.w[1];
  }
  return y;
}

// The rows multiplied by factor(row) or, by column, factor(row)[column].
template <class Out, class In, class Factor>
__device__ __forceinline__ void scaled_rows(const Vec<In, kVec> (&x)[kPack], const Factor &factor,
                                            Codes (&y)[kPack]) {
#pragma unroll
  for (int p = 0; p < kPack; ++p) {
    float f[kVec];
    to_float(x[p], f);
    const auto by = factor(p);
    // The product of a NaN is the positive NaN, so that every NaN becomes 0x7F.
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if constexpr (sizeof(by) == sizeof(float)) {
        f[i] = __fmul_rn(f[i], by);
      } else {
        f[i] = __fmul_rn(f[i], by[i]);
      }
    }
    const Vec<Out, kVec> v = from_float<Out>(f);
    y[p].w[0] = v.w[0], y[p].w[1] = v.w[1];
  }
}
template <class In, class Factor>
__device__ __forceinline__ void scaled_rows(bool e5m2, const Vec<In, kVec> (&x)[kPack],
                                            const Factor &factor, Codes (&y)[kPack]) {
  if (e5m2) {
    scaled_rows<E5M2>(x, factor, y);
  } else {
    scaled_rows<E4M3>(x, factor, y);
  }
}

__device__ __forceinline__ void store_rows(void *out, bool vectorised, const Matrix &m,
                                           const ThreadTile &my, const Codes (&y)[kPack]) {
  const size_t at = m.at + (my.row0 + my.row) * m.cols + my.col0 + my.col;
  if (vectorised) {
    auto *to = static_cast<uint8_t *>(out) + at;
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      asm volatile("" : "+l"(to));  // One address at a time takes fewer registers.
      if (p < my.rows && my.cols > 0) store(to, 0, y[p]);
      to += m.cols;
    }
  } else {
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      store_some(out, at + p * m.cols, p < my.rows ? my.cols : 0, y[p]);
    }
  }
}

// Through shared memory, column by column: chunks of 16 bytes are permuted by eight of the lane
// groups, and their halves exchanged by the other eight, so that neither the word writes nor the
// chunk reads meet in a bank.
__device__ __forceinline__ void store_columns(uint32_t *tile, void *out, const Matrix &m,
                                              const ThreadTile &my, const Codes (&y)[kPack]) {
  constexpr int kWords = kTile / kPack, kChunks = kTile / 16, kStep = kThreads / kChunks;
  static_assert(kStep == kTile / 2, "the halves of a chunk are exchanged in the second step");
  const int place =
      ((my.warp / 2) ^ (my.group % 8)) * 4 + ((my.warp % 2 * 2 + my.word) ^ (my.group / 8 * 2));
#pragma unroll
  for (int j = 0; j < kVec / kPack; ++j) {
    uint32_t by_row[kPack], by_col[kPack];
#pragma unroll
    for (int p = 0; p < kPack; ++p) by_row[p] = y[p].w[j];
    transpose_words(by_row, by_col);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      tile[(my.group * kVec + j * kPack + i) * kWords + place] = by_col[i];
    }
  }
  __syncthreads();
  const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int c = first + k * kStep;
    uint32_t w[4];
    load_shared(tile + c * kWords + (chunk ^ (c / kVec % 8)) * 4, w);
    const Vec<Raw<uint8_t>, 16> v = {{w[2 * k], w[2 * k + 1], w[2 - 2 * k], w[3 - 2 * k]}};
    const int count = c < my.width ? my.height - chunk * 16 : 0;
    const size_t to = m.at + (my.col0 + c) * m.rows + my.row0 + chunk * 16;
    if (m.col_vec) {
      if (count > 0) store(out, to, v);
    } else {
      store_some(out, to, count, v);
    }
  }
}

}  // namespace nvte
