// What the general backward kernels of attention share: what they know of a row, the gradient of a
// bias that was broadcast, and that of the sinks.
#pragma once

#include "common/vec.cuh"
#include "rows.cuh"

namespace nvte {

// What the gradients need of a row: its statistic in units of log2, infinite if it has none, so
// that probabilities become 0; and D.
struct RowData {
  float stats, d;
};

struct BackwardProblem {
  NVTEXAttentionArgs a;
  Dropout dropout;
  unsigned blocks;  // Blocks of threads for each head.
  RowData *row_data;
  float *partials;     // Partial sums of dbias.
  size_t dbias_count;  // Elements of dbias.
  unsigned splits;     // Partial sums of an element of dbias; 1: there are none.
};

// ---- Rows

constexpr int kPrepareThreads = 256;

// The first `count` of eight elements; kVectors: all eight, aligned.
template <class T, bool kFp8, bool kVectors>
__device__ __forceinline__ void load8(const NVTEXAttentionTensor &t, int64_t at, int count,
                                      float (&f)[8]) {
  if constexpr (std::is_same_v<T, RuntimeFloat>) {
    if (t.dtype == kNVTEFloat32) return to_float(load_some<F32, 8>(t.data, at, count), f);
    if (t.dtype == kNVTEFloat16) return to_float(load_some<F16, 8>(t.data, at, count), f);
    return to_float(load_some<BF16, 8>(t.data, at, count), f);
  } else if constexpr (kFp8) {
    if (t.dtype == kNVTEFloat8E4M3) return to_float(load<E4M3, 8>(t.data, at, true), f);
    if (t.dtype == kNVTEFloat8E5M2) return to_float(load<E5M2, 8>(t.data, at, true), f);
    if (t.dtype == kNVTEBFloat16) return to_float(load<BF16, 8>(t.data, at, true), f);
    if (t.dtype == kNVTEFloat32) return to_float(load<F32, 8>(t.data, at, true), f);
  }
  if constexpr (!std::is_same_v<T, RuntimeFloat>) {
    to_float(kVectors ? load<T, 8>(t.data, at, true) : load_some<T, 8>(t.data, at, count), f);
  }
}

// Eight threads per row of a head.
template <class T, bool kFp8, bool kVectors>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const __grid_constant__ BackwardProblem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const NVTEXAttentionArgs &a = p.a;
  const size_t index = (size_t{blockIdx.x} * kPrepareThreads + threadIdx.x) / 8;
  const size_t row = index / a.q_side.heads;
  const unsigned j = static_cast<unsigned>(index % a.q_side.heads);
  const size_t sequence = row / a.q_side.max_seqlen;
  const int r = static_cast<int>(row % a.q_side.max_seqlen);
  const bool exists = sequence < a.batch;
  const unsigned i = exists ? static_cast<unsigned>(sequence) : 0;
  const int rows = length(a.q_side, i);
  float sum = 0.0f;
  if (exists && r < rows) {
    const int dim = static_cast<int>(a.dim_v);
    const int64_t o = head_offset(a.o, a.q_side, i, j) + r * a.o.row;
    const int64_t d_o = head_offset(a.d_o, a.q_side, i, j) + r * a.d_o.row;
    for (int at = threadIdx.x % 8 * 8; at < dim; at += 64) {
      float x[8], y[8];
      load8<T, kFp8, kVectors>(a.o, o + at, dim - at, x);
      load8<T, kFp8, kVectors>(a.d_o, d_o + at, dim - at, y);
#pragma unroll
      for (int n = 0; n < 8; ++n) sum = fmaf(x[n], y[n], sum);
    }
  }
#pragma unroll
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (!exists || threadIdx.x % 8 != 0 || r >= written(a.q_side, rows)) return;
  const size_t at = StatsRows(a.q_side, i, j)(r);
  RowData data = {INFINITY, 0.0f};
  if (r < rows) {
    const float stats = a.stats[at];
    if (stats != -INFINITY) data.stats = stats * kLog2e;
    data.d = sum;
    if constexpr (kFp8) {
      data.d *= factor_of(a.d_o.scale_inv);
      if (is_fp8(a.o.dtype)) data.d *= factor_of(a.o.scale_inv);
    }
  }
  p.row_data[at] = data;
}

constexpr int kSinkThreads = 1024;

static __global__ void __launch_bounds__(kSinkThreads)
    dsink_kernel(const __grid_constant__ BackwardProblem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const NVTEXAttentionArgs &a = p.a;
  const unsigned j = blockIdx.x;
  const float sink = a.sink[j] * kLog2e;
  float sum = 0.0f;
  for (unsigned i = 0; i < a.batch; ++i) {
    const StatsRows at(a.q_side, i, j);
    const int rows = length(a.q_side, i);
    for (int r = static_cast<int>(threadIdx.x); r < rows; r += kSinkThreads) {
      const RowData data = p.row_data[at(r)];
      if (data.stats != INFINITY) sum = fmaf(power2(sink - data.stats), data.d, sum);
    }
  }
  __shared__ float sums[kSinkThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = sums[threadIdx.x];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x == 0) a.dsink[j] = -sum;
}

// ---- dbias

// Which dimensions of the scores dbias sums over, and its blocks of kRows rows and kColumns
// columns.
template <int kRows, int kColumns>
struct DbiasShape {
  static constexpr int kThreads = 128;
  bool over_batch, over_heads, over_rows;
  size_t row_tiles, column_tiles, count;  // Tiles of rows and of columns, and elements of dbias.

  __host__ __device__ explicit DbiasShape(const NVTEXAttentionArgs &a)
      : over_batch(a.dbias.batch == 0),
        over_heads(a.dbias.head == 0),
        over_rows(a.dbias.row == 0),
        row_tiles((a.q_side.max_seqlen + kRows - 1) / kRows),
        column_tiles((a.kv_side.max_seqlen + kColumns - 1) / kColumns),
        count((over_batch ? 1 : a.batch) * (over_heads ? 1 : a.q_side.heads) *
              (over_rows ? 1 : a.q_side.max_seqlen) * a.kv_side.max_seqlen) {}
  // Blocks that write different elements, and what each sums.
  __host__ __device__ size_t blocks(const NVTEXAttentionArgs &a) const {
    return column_tiles * (over_rows ? 1 : row_tiles) * (over_heads ? 1 : a.q_side.heads) *
           (over_batch ? 1 : a.batch);
  }
  __host__ __device__ size_t terms(const NVTEXAttentionArgs &a) const {
    return (over_rows ? row_tiles : 1) * (over_heads ? a.q_side.heads : 1) *
           (over_batch ? a.batch : 1);
  }
  // Enough blocks for a large GPU, of at least two terms each. The number is the same on every GPU,
  // so that sums are added in the same order everywhere.
  unsigned splits(const NVTEXAttentionArgs &a) const {
    constexpr size_t kEnough = 512;
    const size_t n = blocks(a), most = terms(a) / 2;
    if (n == 0 || n >= kEnough || most < 2) return 1;
    return static_cast<unsigned>(kEnough / n < most ? kEnough / n : most);
  }
};

__device__ __forceinline__ void write_dbias(const BackwardProblem &p, int64_t at, float value) {
  const NVTEXAttentionTensor &t = p.a.dbias;
  store_float(t.dtype, static_cast<char *>(t.data) + at * float_bytes(t.dtype), value);
}

// The scores that a block computes, of one head of one sequence. Where dbias is summed, they change
// from term to term.
template <int kRows, int kColumns>
struct DbiasBlock : DbiasShape<kRows, kColumns> {
  unsigned split, i = 0, j = 0;
  int r0 = 0, c0;
  int64_t offset;

  __device__ __forceinline__ explicit DbiasBlock(const BackwardProblem &p)
      : DbiasShape<kRows, kColumns>(p.a) {
    size_t block = blockIdx.x;
    split = static_cast<unsigned>(next(block, p.splits));
    c0 = static_cast<int>(next(block, this->column_tiles)) * kColumns;
    if (!this->over_rows) r0 = static_cast<int>(next(block, this->row_tiles)) * kRows;
    if (!this->over_heads) j = static_cast<unsigned>(next(block, p.a.q_side.heads));
    if (!this->over_batch) i = static_cast<unsigned>(block);
    offset = i * p.a.dbias.batch + j * p.a.dbias.head;
  }
  __device__ __forceinline__ void go_to(const BackwardProblem &p, size_t term) {
    if (this->over_rows) r0 = static_cast<int>(next(term, this->row_tiles)) * kRows;
    if (this->over_heads) j = static_cast<unsigned>(next(term, p.a.q_side.heads));
    if (this->over_batch) i = static_cast<unsigned>(term);
  }
  __device__ __forceinline__ void write(const BackwardProblem &p, int r, int c, float value) const {
    if (c >= static_cast<int>(p.a.kv_side.max_seqlen)) return;
    if (!this->over_rows && r >= static_cast<int>(p.a.q_side.max_seqlen)) return;
    const int64_t at = offset + r * p.a.dbias.row + c;
    if (p.splits > 1) {
      p.partials[split * p.dbias_count + at] = value;
    } else {
      write_dbias(p, at, value);
    }
  }

 private:
  static __device__ __forceinline__ size_t next(size_t &index, size_t count) {
    const size_t digit = index % count;
    index /= count;
    return digit;
  }
};

constexpr int kSumThreads = 256;

static __global__ void __launch_bounds__(kSumThreads)
    dbias_sum_kernel(const __grid_constant__ BackwardProblem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t at = size_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (at >= p.dbias_count) return;
  float sum = 0.0f;
  for (unsigned split = 0; split < p.splits; ++split) {
    sum += p.partials[split * p.dbias_count + at];
  }
  write_dbias(p, at, sum);
}

// ---- Launchers

// The places of the parts of the workspace: the rows' data, then partial sums of dbias.
template <class Shape>
struct BackwardWorkspace {
  size_t partials, bytes;

  explicit BackwardWorkspace(const NVTEXAttentionArgs &a)
      : partials(ceil_div(stats_count(a) * sizeof(RowData), 256) * 256), bytes(partials) {
    if (a.dbias.data == nullptr) return;
    const Shape shape(a);
    const unsigned splits = shape.splits(a);
    if (splits > 1) bytes += splits * shape.count * sizeof(float);
  }
};

template <class Shape>
BackwardProblem backward_problem(const NVTEXAttentionArgs &a) {
  auto *data = static_cast<char *>(a.workspace);
  BackwardProblem p = {a, Dropout(a), 0, reinterpret_cast<RowData *>(data), nullptr, 0, 1};
  if (a.dbias.data == nullptr) return p;
  const Shape shape(a);
  p.partials = reinterpret_cast<float *>(data + BackwardWorkspace<Shape>(a).partials);
  p.dbias_count = shape.count;
  p.splits = shape.splits(a);
  return p;
}

// Launches what computes the data that the gradients of scores need, and dsink.
template <class T, bool kFp8, bool kVectors>
NVTEXOutcome prepare(const BackwardProblem &p, cudaStream_t stream) {
  const NVTEXAttentionArgs &a = p.a;
  const size_t rows = a.batch * a.q_side.max_seqlen * a.q_side.heads;
  if (rows != 0) {
    const dim3 grid(static_cast<unsigned>(ceil_div(rows, kPrepareThreads / 8)));
    const NVTEXOutcome outcome =
        launch(prepare_kernel<T, kFp8, kVectors>, grid, kPrepareThreads, stream, p);
    if (outcome.status != NVTEX_BACKEND_OK) return outcome;
  }
  if (a.dsink == nullptr) return ok();
  return launch(dsink_kernel, dim3(static_cast<unsigned>(a.q_side.heads)), kSinkThreads, stream, p);
}

// Launches the kernel of dbias, with Shape::kThreads threads.
template <class Shape>
NVTEXOutcome run_dbias(void (*kernel)(BackwardProblem), size_t shared, const BackwardProblem &p,
                       cudaStream_t stream) {
  const size_t blocks = Shape(p.a).blocks(p.a) * p.splits;
  if (blocks == 0) return ok();
  const NVTEXOutcome outcome = launch_shared(kernel, dim3(static_cast<unsigned>(blocks)),
                                             Shape::kThreads, shared, stream, p);
  if (outcome.status != NVTEX_BACKEND_OK || p.splits == 1) return outcome;
  const dim3 grid(static_cast<unsigned>(ceil_div(p.dbias_count, kSumThreads)));
  return launch(dbias_sum_kernel, grid, kSumThreads, stream, p);
}

}  // namespace nvte
