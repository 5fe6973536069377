// Transposing kernels: a block applies an operation to one tile and writes it as it is, transposed,
// or both.
#pragma once

#include "fetch.cuh"
#include "launch.cuh"
#include "reduce.cuh"

namespace nvte {

// Eight lanes load 128 contiguous bytes of a row.
constexpr int kTileLanes = 8;

struct TileConfig {
  int threads;
  int segments;  // Width of a tile, in pieces of 128 input bytes.
  int blocks;    // Blocks that the registers of a multiprocessor must hold.
};

template <class Op, int kThreads, int kSegments>
struct TileShape {
  static constexpr int kPack = 4 / Op::Out::kBytes;     // Rows that share a word.
  static constexpr int kVec = 16 / Op::In::kBytes;      // Columns of a thread in a segment.
  static constexpr int kWords = kThreads / kTileLanes;  // Length of a transposed row.
  static constexpr int kRows = kWords * kPack;
  static constexpr int kCols = kTileLanes * kVec * kSegments;
  // The chunks of a column are permuted by so many of the lane groups.
  static constexpr int kGroups = kThreads / 32 < kTileLanes ? kThreads / 32 : kTileLanes;
  static_assert(kCols * kWords * 4 <= 48 * 1024 - 128, "a tile fits into static shared memory");
  static_assert(kPack * kSegments <= 16, "the loads of a thread fit into registers");
};

struct TileArgs {
  const void *in;  // [rows, cols]
  void *rowwise;   // [rows, cols], or null
  void *colwise;   // [cols, rows], or null
  size_t rows;
  size_t cols;
  // Blocks go over the tiles along the rows, or down the columns: whichever output is written in
  // the order of the blocks leaves L2 in long runs.
  unsigned tiles_per_line;
  bool down;
  // Whether every 16-byte load, row store and column store is aligned and inside or outside as a
  // whole.
  bool in_vec, row_vec, col_vec;
};

// Words of kPack rows and kPack columns, transposed: t[i] has column i of every row.
template <int kPack>
__device__ __forceinline__ void transpose_words(const uint32_t (&w)[kPack], uint32_t (&t)[kPack]) {
  if constexpr (kPack == 4) {
    const uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
    const uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
    t[0] = __byte_perm(a, b, 0x5410), t[1] = __byte_perm(a, b, 0x7632);
    t[2] = __byte_perm(c, d, 0x5410), t[3] = __byte_perm(c, d, 0x7632);
  } else if constexpr (kPack == 2) {
    t[0] = __byte_perm(w[0], w[1], 0x5410), t[1] = __byte_perm(w[0], w[1], 0x7632);
  } else {
    t[0] = w[0];
  }
}

// Extent of a tile at a matrix edge.
__device__ __forceinline__ int left_of(size_t left, int full) {
  return left < full ? static_cast<int>(left) : full;
}

// The register budget is tuned for sm_90; other architectures get slack instead of spills, sm_80
// for its FP8 conversions in software.
template <int kThreads>
constexpr int blocks_here(int blocks) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
  constexpr int kMost = kThreads == 512 ? 1 : 3;
  return blocks < kMost ? blocks : kMost;
#else
  return blocks;
#endif
}

// Op::kByPlace: the operation depends on the row and the column of a vector's first element, which
// may be outside.
template <class Op, int kThreads, int kSegments, int kBlocks>
__global__ void __launch_bounds__(kThreads, blocks_here<kThreads>(kBlocks))
    tile_kernel(const __grid_constant__ TileArgs a, const __grid_constant__ Op op) {
  using In = typename Op::In;
  using Out = typename Op::Out;
  using Shape = TileShape<Op, kThreads, kSegments>;
  constexpr int kWords = Shape::kWords;
  constexpr int kPack = Shape::kPack, kVec = Shape::kVec, kSpan = kTileLanes * kVec;
  constexpr int kOutWords = Vec<Out, kVec>::kWords;
  // Column by column. The 16-byte chunks of a column are permuted by the lane group
  // that writes it, so that neither the word writes nor the chunk reads meet in a bank.
  __shared__ alignas(16) uint32_t tile[Shape::kCols * kWords];
  __shared__ BlockMax<kThreads> block;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane % kTileLanes, word = lane / kTileLanes;
  const unsigned line = blockIdx.x / a.tiles_per_line,
                 place_in_line = blockIdx.x % a.tiles_per_line;
  const size_t row0 = size_t{a.down ? place_in_line : line} * Shape::kRows;
  const size_t col0 = size_t{a.down ? line : place_in_line} * Shape::kCols;
  const int height = left_of(a.rows - row0, Shape::kRows);
  const int width = left_of(a.cols - col0, Shape::kCols);
  if (blockIdx.x < kFetchBlocks) {
    fetch_tile<kThreads, Shape::kRows, Shape::kCols * In::kBytes>(
        reinterpret_cast<const char *>(element<typename In::Bits>(a.in, row0 * a.cols + col0)),
        a.cols * In::kBytes, height, width * In::kBytes);
  }
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  typename Op::State state = op.begin();

  // What is left of the matrix at this thread's first element.
  const int row = (warp * 4 + word) * kPack, col = group * kVec;
  const int rows = height - row, cols = width - col;
  const size_t at = (row0 + row) * a.cols + col0 + col;

  Vec<In, kVec> x[kSegments][kPack];
  if (a.in_vec) {
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
#pragma unroll
      for (int p = 0; p < kPack; ++p) {
        x[s][p] = load<In, kVec>(a.in, at + p * a.cols + s * kSpan, p < rows && s * kSpan < cols);
      }
    }
  } else {
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
#pragma unroll
      for (int p = 0; p < kPack; ++p) {
        x[s][p] =
            load_some<In, kVec>(a.in, at + p * a.cols + s * kSpan, p < rows ? cols - s * kSpan : 0);
      }
    }
  }
  if (state.skip()) return;

  const int swizzled = (warp ^ group % Shape::kGroups) * 4 + word;
#pragma unroll
  for (int s = 0; s < kSegments; ++s) {
    Vec<Out, kVec> y[kPack];
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      if constexpr (Op::kByPlace) {
        y[p] = op.apply(state, x[s][p], row0 + row + p, col0 + col + s * kSpan);
      } else {
        y[p] = op.apply(state, x[s][p]);
      }
    }
    if (a.rowwise != nullptr) {
      const size_t to = at + s * kSpan;
      const int count = cols - s * kSpan;
      if (a.row_vec) {
#pragma unroll
        for (int p = 0; p < kPack; ++p) {
          if (p < rows && count > 0) store(a.rowwise, to + p * a.cols, y[p]);
        }
      } else {
#pragma unroll
        for (int p = 0; p < kPack; ++p) {
          store_some(a.rowwise, to + p * a.cols, p < rows ? count : 0, y[p]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kOutWords; ++j) {
      uint32_t by_row[kPack], by_col[kPack];
#pragma unroll
      for (int p = 0; p < kPack; ++p) by_row[p] = y[p].w[j];
      transpose_words(by_row, by_col);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        tile[(s * kSpan + col + j * kPack + i) * kWords + swizzled] = by_col[i];
      }
    }
  }
  if constexpr (Op::kHasAmax) block.put(state.amax.bits());
  __syncthreads();

  if (a.col_vec) {
    // A thread keeps its chunk of rows and takes every kStep-th column.
    constexpr int kChunks = kWords / 4, kStep = kThreads / kChunks;
    constexpr int kChunkRows = 16 / Out::kBytes;
    const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
    const bool inside = chunk * kChunkRows < height;
    size_t to = (col0 + first) * a.rows + row0 + chunk * kChunkRows;
#pragma unroll
    for (int k = 0; k < Shape::kCols / kStep; ++k, to += kStep * a.rows) {
      const int c = first + k * kStep;
      const int place = chunk ^ (c / kVec % Shape::kGroups);
      Vec<Out, kChunkRows> v;
      load_shared(tile + (c * kChunks + place) * 4, v.w);
      if (inside && c < width) store(a.colwise, to, v);
    }
  } else {
#pragma unroll 4
    for (int index = threadIdx.x; index < width * Shape::kRows; index += kThreads) {
      const int r = index % Shape::kRows, c = index / Shape::kRows;
      const int place = r / kPack ^ (c / kVec % Shape::kGroups) * 4;
      const Vec<Out, 1> v = {{tile[c * kWords + place] >> (r % kPack * 8 * Out::kBytes)}};
      if (r < height) store(a.colwise, (col0 + c) * a.rows + row0 + r, v);
    }
  }

  if constexpr (Op::kHasAmax) {
    if (op.amax != nullptr && warp == 0) op.raise_amax(state, block.get());
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) op.finish(state);
}

// H200, 8192 x 8192, us: bf16 to fp8 in both directions 69.0 (256, 2, 3: 69.6; 512, 1, 3: 69.5);
// transposes of 1 byte 34.8 (256, 2, 4: 34.9; 512, 1, 3: 35.3), of 2 bytes 66.8 (256, 4, 4: 68.0),
// of 4 bytes 130.5 (256, 4, 4: 133.0). Others: as wide as 40 words of elements per thread and 32 KB
// of shared memory per block allow.
template <class Op>
constexpr TileConfig default_tile() {
  constexpr int kIn = Op::In::kBytes, kOut = Op::Out::kBytes;
  if (kIn == 2 && kOut == 1) return {512, 1, 2};
  if (kIn == 1 && kOut == 1) return {256, 2, 3};
  if (kIn == kOut) return {512, kIn, 2};
  constexpr int kVec = 16 / kIn, kPack = 4 / kOut;
  constexpr int kOutWords = kPack * Vec<typename Op::Out, kVec>::kWords;
  int segments = 1;
  while (2 * segments * kPack * 4 + kOutWords <= 40 && 2 * segments * kTileLanes * kVec <= 256) {
    segments *= 2;
  }
  return {256, segments, 4};
}

template <class Op, int kThreads = default_tile<Op>().threads,
          int kSegments = default_tile<Op>().segments, int kBlocks = default_tile<Op>().blocks>
NVTEXOutcome launch_tile(const void *in, void *rowwise, void *colwise, size_t rows, size_t cols,
                         const Op &op, cudaStream_t stream) {
  using Shape = TileShape<Op, kThreads, kSegments>;
  constexpr int kOut = Op::Out::kBytes, kRowStore = Shape::kVec * kOut;
  const size_t across = ceil_div(cols, Shape::kCols), down = ceil_div(rows, Shape::kRows);
  if (across > kMaxBlocks / down) return unimplemented("the matrix has too many tiles");
  TileArgs args;
  args.in = in;
  args.rowwise = rowwise;
  args.colwise = colwise;
  args.rows = rows;
  args.cols = cols;
  args.down = rowwise == nullptr;
  args.tiles_per_line = static_cast<unsigned>(args.down ? down : across);
  args.in_vec = aligned(in, 16) && cols % Shape::kVec == 0;
  args.row_vec = aligned(rowwise, kRowStore < 16 ? kRowStore : 16) && cols % Shape::kVec == 0;
  args.col_vec = aligned(colwise, 16) && rows * kOut % 16 == 0;
  return launch(tile_kernel<Op, kThreads, kSegments, kBlocks>,
                dim3(static_cast<unsigned>(across * down)), kThreads, stream, args, op);
}

}  // namespace nvte
