// Transpose of an FP8 matrix with the sums of its columns.

#include "common/tile.cuh"
#include "nvte/backend/transpose.h"

namespace nvte {
namespace {

// A tile is 128 x 256: eight lanes span 128 of its columns, a thread has 4 rows of 16 columns,
// twice.
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRows = 128, kCols = 256;
constexpr int kVec = 16, kPack = 4, kSegments = 2, kSpan = kTileLanes * kVec;
constexpr int kWords = kRows / kPack;

struct Args {
  TileArgs tile;
  const float *scale_inv;
  float *partial;  // [tiles down, cols]
};

// Adds the four sums of a column that a warp has in pairs, which stay apart.
__device__ __forceinline__ void add_pairs(float (&sums)[kVec], float *pairs, int warp, int word,
                                          int col) {
  // Lanes of a pair exchange halves: each goes on with 8 columns.
  float own[kVec / 2];
#pragma unroll
  for (int i = 0; i < kVec / 2; ++i) {
    const float given = word % 2 ? sums[i] : sums[i + kVec / 2];
    const float kept = word % 2 ? sums[i + kVec / 2] : sums[i];
    own[i] = __fadd_rn(kept, __shfl_xor_sync(0xffffffffu, given, kTileLanes));
  }
  float *to = pairs + (warp * 2 + word / 2) * kCols + col + word % 2 * (kVec / 2);
#pragma unroll
  for (int i = 0; i < kVec / 2; i += 4) {
    *reinterpret_cast<float4 *>(to + i) = make_float4(own[i], own[i + 1], own[i + 2], own[i + 3]);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, blocks_here<kThreads>(3))
    transpose_dbias_kernel(const __grid_constant__ Args args) {
  __shared__ alignas(16) uint32_t tile[kCols * kWords];
  __shared__ alignas(16) float pairs[2 * kWarps * kCols];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const TileArgs &a = args.tile;
  const float scale = args.scale_inv != nullptr ? *args.scale_inv : 1.0f;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane % kTileLanes, word = lane / kTileLanes;
  const size_t down = blockIdx.x % a.tiles_per_line;
  const size_t row0 = down * kRows, col0 = size_t{blockIdx.x / a.tiles_per_line} * kCols;
  const int row = (warp * 4 + word) * kPack, col = group * kVec;
  const int height = left_of(a.rows - row0, kRows), width = left_of(a.cols - col0, kCols);
  const int rows = height - row, cols = width - col;
  const size_t at = (row0 + row) * a.cols + col0 + col;

  Vec<T, kVec> x[kSegments][kPack];
#pragma unroll
  for (int s = 0; s < kSegments; ++s) {
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      const size_t from = at + p * a.cols + s * kSpan;
      x[s][p] = a.in_vec ? load<T, kVec>(a.in, from, p < rows && s * kSpan < cols)
                         : load_some<T, kVec>(a.in, from, p < rows ? cols - s * kSpan : 0);
    }
  }

  const int swizzled = (warp ^ group) * 4 + word;
#pragma unroll
  for (int s = 0; s < kSegments; ++s) {
    float sums[kVec] = {};
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      float f[kVec];
      to_float(x[s][p], f);
      // A row outside of the matrix adds nothing, whatever the scale is.
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        sums[i] = __fadd_rn(sums[i], p < rows ? __fmul_rn(f[i], scale) : 0.0f);
      }
    }
    add_pairs(sums, pairs, warp, word, col + s * kSpan);
#pragma unroll
    for (int j = 0; j < kVec / kPack; ++j) {
      uint32_t by_row[kPack], by_col[kPack];
#pragma unroll
      for (int p = 0; p < kPack; ++p) by_row[p] = x[s][p].w[j];
      transpose_words(by_row, by_col);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        tile[(s * kSpan + col + j * kPack + i) * kWords + swizzled] = by_col[i];
      }
    }
  }
  __syncthreads();

  // The chunks of a column were permuted by the lane group that wrote it, for the banks' sake.
  constexpr int kChunks = kWords / 4, kStep = kThreads / kChunks;
  const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
#pragma unroll
  for (int k = 0; k < kCols / kStep; ++k) {
    const int c = first + k * kStep;
    Vec<T, 16> v;
    load_shared(tile + (c * kChunks + (chunk ^ (c / kVec % kTileLanes))) * 4, v.w);
    const int count = c < width ? height - chunk * 16 : 0;
    const size_t to = (col0 + c) * a.rows + row0 + chunk * 16;
    if (a.col_vec) {
      if (count > 0) store(a.colwise, to, v);
    } else {
      store_some(a.colwise, to, count, v);
    }
  }

  static_assert(kThreads == kCols, "a thread has one column");
  if (static_cast<int>(threadIdx.x) < width) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 2 * kWarps; ++i) sum = __fadd_rn(sum, pairs[i * kCols + threadIdx.x]);
    args.partial[down * a.cols + col0 + threadIdx.x] = sum;
  }
}

// Columns of a block that adds partial sums: 8 sums of each.
constexpr int kSumCols = 32, kSums = 8;

template <class Out>
__global__ void __launch_bounds__(kSumCols *kSums)
    add_partial_kernel(const float *partial, void *dbias, size_t count, size_t cols) {
  __shared__ float sums[kSums][kSumCols];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int lane = threadIdx.x % kSumCols, own = threadIdx.x / kSumCols;
  const size_t col = size_t{blockIdx.x} * kSumCols + lane;
  float sum = 0.0f;
  if (col < cols) {
#pragma unroll 4
    for (size_t i = own; i < count; i += kSums) sum = __fadd_rn(sum, partial[i * cols + col]);
  }
  sums[own][lane] = sum;
  __syncthreads();
  if (own == 0 && col < cols) {
#pragma unroll
    for (int i = 1; i < kSums; ++i) sum = __fadd_rn(sum, sums[i][lane]);
    const float f[1] = {sum};
    store(dbias, col, from_float<Out>(f));
  }
}

template <class T, class Bias>
NVTEXOutcome transpose_dbias(const NVTEXTransposeDbiasArgs &a, cudaStream_t stream) {
  const size_t across = ceil_div(a.cols, kCols), down = ceil_div(a.rows, kRows);
  if (down != 0 && across > kMaxBlocks / down)
    return unimplemented("the matrix has too many tiles");
  if (down != 0) {
    Args args = {};
    args.tile.in = a.input;
    args.tile.colwise = a.output;
    args.tile.rows = a.rows;
    args.tile.cols = a.cols;
    args.tile.tiles_per_line = static_cast<unsigned>(down);
    args.tile.in_vec = aligned(a.input, 16) && a.cols % kVec == 0;
    args.tile.col_vec = aligned(a.output, 16) && a.rows % 16 == 0;
    args.scale_inv = a.scale_inv;
    args.partial = a.workspace;
    const NVTEXOutcome outcome =
        launch(transpose_dbias_kernel<T>, dim3(across * down), kThreads, stream, args);
    if (outcome.status != NVTEX_BACKEND_OK) return outcome;
  }
  return launch(add_partial_kernel<Bias>, dim3(static_cast<unsigned>(ceil_div(a.cols, kSumCols))),
                kSumCols * kSums, stream, a.workspace, a.dbias, down, a.cols);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_transpose_dbias(const NVTEXTransposeDbiasArgs *args,
                                                  cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<E4M3, E5M2>(args->dtype, [&](auto in) {
    return dispatch<F32, F16, BF16>(args->dbias_dtype, [&](auto out) {
      return transpose_dbias<decltype(in), decltype(out)>(*args, stream);
    });
  });
}
