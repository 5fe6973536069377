// Rows of tables for tokens, and the gradients of tables: sums of rows that were sorted by the row
// of the table to which they go.

#include <cmath>

#include "common/launch.cuh"
#include "common/widened.cuh"
#include "nvte/backend/embedding.h"

namespace nvte {
namespace {

// Columns of a block are kThreads vectors of N.
constexpr int kThreads = 128;
// Rows of a block of the lookup, which are loaded together.
constexpr int kRows = 4;
// Rows whose loads are in flight together in a sum.
constexpr int kBatch = 8;
constexpr int kPart = NVTEX_ROW_SUM_PART;
static_assert(kPart % kBatch == 0 && kPart <= kThreads, "whole batches, and a thread for each key");

// Blocks of a launch: those of the columns of a row, and all.
struct Tiles {
  size_t across, all;

  template <int N>
  static Tiles of(size_t cols, size_t groups) {
    const size_t across = ceil_div(cols, kThreads * N);
    return {across, across * groups};
  }
};

__device__ __forceinline__ int64_t index_at(const void *indices, NVTEDType dtype, size_t i) {
  return dtype == kNVTEInt32 ? static_cast<const int32_t *>(indices)[i]
                             : static_cast<const int64_t *>(indices)[i];
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    lookup_kernel(const __grid_constant__ NVTEXEmbeddingArgs a, Tiles tiles) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (size_t block = blockIdx.x; block < tiles.all; block += gridDim.x) {
    const size_t first = block / tiles.across * kRows, tile = block % tiles.across;
    const size_t column = (tile * kThreads + threadIdx.x) * N;
    const bool inside = column < a.cols;
    size_t row[kRows], position[kRows];
    bool has_row[kRows], has_position[kRows];
    int mistakes = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const size_t t = first + r;
      const bool there = t < a.count;
      const int64_t token = there ? index_at(a.tokens, a.token_dtype, t) : -1;
      row[r] = static_cast<size_t>(token) - a.start;
      has_row[r] = token >= 0 && row[r] < a.rows;
      has_position[r] = false;
      if (there && (token < 0 || static_cast<size_t>(token) >= a.total)) ++mistakes;
      if (there && a.position_weight != nullptr) {
        position[r] = t % a.period;
        if (a.positions != nullptr) {
          position[r] = static_cast<size_t>(index_at(a.positions, a.token_dtype, t));
        }
        has_position[r] = position[r] < a.position_rows;
        if (!has_position[r]) ++mistakes;
      }
    }
    if (a.wrong != nullptr && mistakes > 0 && tile == 0 && threadIdx.x == 0) {
      atomicAdd(a.wrong, mistakes);
    }
    Vec<T, N> x[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool loads = has_row[r] && inside;
      x[r] = load_as<T, N>(a.weight_dtype, a.weight, loads ? row[r] * a.cols + column : 0, loads);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= a.count || !inside) break;
      float f[N];
      to_float(x[r], f);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = has_row[r] ? __fmul_rn(a.scale, f[i]) : 0.0f;
      if (has_position[r]) {
        float p[N];
        to_float(
            load_as<T, N>(a.weight_dtype, a.position_weight, position[r] * a.cols + column, true),
            p);
#pragma unroll
        for (int i = 0; i < N; ++i) f[i] = __fadd_rn(f[i], p[i]);
      }
      const Vec<T, N> y = from_float_as<T>(a.output_dtype, f);
      store_as(a.output_dtype, a.output, (first + r) * a.cols + column, y);
    }
  }
}

__global__ void __launch_bounds__(256) row_keys_kernel(const __grid_constant__ NVTEXRowKeysArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t step = size_t{gridDim.x} * 256;
  for (size_t i = blockIdx.x * size_t{256} + threadIdx.x; i < a.count; i += step) {
    int64_t index = static_cast<int64_t>(i % a.period);
    if (a.indices != nullptr) index = index_at(a.indices, a.index_dtype, i);
    const size_t row = static_cast<size_t>(index) - a.start;
    a.keys[i] = static_cast<uint32_t>(index >= 0 && row < a.rows ? row : a.rows);
    a.values[i] = static_cast<int32_t>(i);
  }
}

// Adds a sum to a row of the output, whose dtype is known at run time only.
template <int N>
__device__ __forceinline__ void add_to(const NVTEXSumRowsArgs &a, uint32_t key, size_t column,
                                       const float (&sum)[N]) {
  const size_t at = key * a.cols + column;
  float y[N];
  to_float(load_as<Widened, N>(a.output_dtype, a.output, at, true), y);
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = __fadd_rn(y[i], __fmul_rn(a.scale, sum[i]));
  store_as(a.output_dtype, a.output, at, from_float_as<Widened>(a.output_dtype, y));
}

// Sums of rows of one key within a part of the sorted rows. A run of equal keys that lies in one
// part is done then; of one that lies in several parts, each keeps its sum in the workspace: the
// part where it begins in its second row, the others in their first.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(const __grid_constant__ NVTEXSumRowsArgs a, Tiles tiles) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  __shared__ uint32_t keys[kPart];
  __shared__ int32_t rows[kPart];
  for (size_t block = blockIdx.x; block < tiles.all; block += gridDim.x) {
    const size_t part = block / tiles.across, first = part * kPart;
    const size_t column = (block % tiles.across * kThreads + threadIdx.x) * N;
    const int count = static_cast<int>(a.count - first < kPart ? a.count - first : kPart);
    __syncthreads();
    if (threadIdx.x < kPart) {
      const bool inside = threadIdx.x < count;
      keys[threadIdx.x] = inside ? a.keys[first + threadIdx.x] : 0xffffffffu;
      rows[threadIdx.x] = inside ? a.values[first + threadIdx.x] : 0;
    }
    __syncthreads();
    if (column >= a.cols) continue;
    const bool goes_on_before = first > 0 && a.keys[first - 1] == keys[0];
    const bool goes_on_after = first + kPart < a.count && a.keys[first + kPart] == keys[kPart - 1];
    float sum[N] = {};
    int begin = 0;  // Where the run of equal keys begins.
    for (int batch = 0; batch < count; batch += kBatch) {
      Vec<T, N> x[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const bool loads = keys[batch + b] < a.rows;
        x[b] = load_as<T, N>(a.input_dtype, a.input,
                             static_cast<size_t>(rows[batch + b]) * a.cols + column, loads);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int i = batch + b;
        const uint32_t key = keys[i];
        if (key >= a.rows) break;  // All that follow are none of the table's, either.
        float f[N];
        to_float(x[b], f);
#pragma unroll
        for (int c = 0; c < N; ++c) sum[c] = __fadd_rn(sum[c], f[c]);
        const bool last = i + 1 == count;
        if (!last && keys[i + 1] == key) continue;
        const bool before = begin == 0 && goes_on_before, after = last && goes_on_after;
        if (before || after) {
          float *to = a.workspace + (2 * part + (before ? 0 : 1)) * a.cols + column;
#pragma unroll
          for (int c = 0; c < N; ++c) to[c] = sum[c];
        } else {
          add_to(a, key, column, sum);
        }
#pragma unroll
        for (int c = 0; c < N; ++c) sum[c] = 0.0f;
        begin = i + 1;
      }
    }
  }
}

// Adds what the parts of a run have kept, in their order, for the part where the run begins.
template <int N>
__global__ void __launch_bounds__(kThreads)
    join_parts_kernel(const __grid_constant__ NVTEXSumRowsArgs a, Tiles tiles) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t parts = tiles.all / tiles.across;
  for (size_t block = blockIdx.x; block < tiles.all; block += gridDim.x) {
    const size_t part = block / tiles.across, first = part * kPart, next = first + kPart;
    const size_t column = (block % tiles.across * kThreads + threadIdx.x) * N;
    if (next >= a.count || column >= a.cols) continue;
    const uint32_t key = a.keys[next];
    const bool begins_here =
        a.keys[next - 1] == key && !(a.keys[first] == key && first > 0 && a.keys[first - 1] == key);
    if (key >= a.rows || !begins_here) continue;
    float sum[N];
    const float *from = a.workspace + (2 * part + 1) * a.cols + column;
#pragma unroll
    for (int c = 0; c < N; ++c) sum[c] = from[c];
    // Several parts at a time, which are loaded together: a frequent key has hundreds.
    constexpr int kTogether = 8;
    bool more = true;
    for (size_t other = part + 1; more; other += kTogether) {
      bool goes_on[kTogether];
      float f[kTogether][N];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        goes_on[i] = other + i < parts && a.keys[(other + i) * kPart] == key;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        from = a.workspace + 2 * (other + i) * a.cols + column;
#pragma unroll
        for (int c = 0; c < N; ++c) f[i][c] = goes_on[i] ? from[c] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int c = 0; c < N; ++c) {
          if (goes_on[i]) sum[c] = __fadd_rn(sum[c], f[i][c]);
        }
      }
      more = goes_on[kTogether - 1];
    }
    add_to(a, key, column, sum);
  }
}

inline dim3 grid_of(size_t blocks) {
  return dim3(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
}

template <class T, int N>
NVTEXOutcome look_up(const NVTEXEmbeddingArgs &a, cudaStream_t stream) {
  const Tiles tiles = Tiles::of<N>(a.cols, ceil_div(a.count, kRows));
  return launch(lookup_kernel<T, N>, grid_of(tiles.all), kThreads, stream, a, tiles);
}

template <class T, int N>
NVTEXOutcome sum_rows(const NVTEXSumRowsArgs &a, cudaStream_t stream) {
  const Tiles tiles = Tiles::of<N>(a.cols, ceil_div(a.count, kPart));
  const dim3 grid = grid_of(tiles.all);
  const NVTEXOutcome parts = launch(sum_parts_kernel<T, N>, grid, kThreads, stream, a, tiles);
  if (parts.status != NVTEX_BACKEND_OK || a.count <= kPart) return parts;
  return launch(join_parts_kernel<N>, grid, kThreads, stream, a, tiles);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_embedding(const NVTEXEmbeddingArgs *args,
                                            cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXEmbeddingArgs &a = *args;
  const bool vectors = a.cols % 8 == 0 && aligned(a.weight, 16) && aligned(a.output, 16) &&
                       aligned(a.position_weight, 16);
  if (vectors && a.weight_dtype == kNVTEBFloat16 && a.output_dtype == kNVTEBFloat16) {
    return look_up<BF16, 8>(a, stream);
  }
  return vectors ? look_up<Widened, 8>(a, stream) : look_up<Widened, 1>(a, stream);
}

extern "C" NVTEXOutcome nvte_cuda_row_keys(const NVTEXRowKeysArgs *args,
                                           cudaStream_t stream) noexcept {
  using namespace nvte;
  return launch(row_keys_kernel, grid_of(ceil_div(args->count, 256)), 256, stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_sum_rows(const NVTEXSumRowsArgs *args,
                                           cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXSumRowsArgs &a = *args;
  const bool vectors = a.cols % 8 == 0 && aligned(a.input, 16) && aligned(a.output, 16);
  if (vectors && a.input_dtype == kNVTEBFloat16) return sum_rows<BF16, 8>(a, stream);
  return vectors ? sum_rows<Widened, 8>(a, stream) : sum_rows<Widened, 1>(a, stream);
}
