// What goes with grouped products: addition of a bias to the rows of each member, integers widened
// to 64 bits.

#include "common/group.cuh"
#include "common/launch.cuh"
#include "common/vec.cuh"
#include "nvte/backend/grouped_gemm.h"

namespace nvte {
namespace {

constexpr int kThreads = 256;
// Vectors that a thread has under way, and rounds of them.
constexpr int kUnroll = 8;
constexpr int kRounds = 2;

// The rows of the members; no position of data or scales is looked up by it.
__host__ __device__ inline NVTEXGroup rows_of(const NVTEXGroupedBiasArgs &a) {
  return {a.num_tensors, a.first_dims, nullptr, nullptr, a.rows, 0, 0, 0};
}

// A block takes rows of one range of columns. A thread keeps its columns, so that it reads the bias
// once for each member; `across` threads lie side by side, the others below them.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    bias_kernel(const __grid_constant__ NVTEXGroupedBiasArgs a, uint32_t across, uint32_t pieces) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const uint32_t down = kThreads / across, lane = threadIdx.x / across;
  const uint32_t piece = blockIdx.x % pieces;
  const size_t col = (size_t{piece} * across + threadIdx.x % across) * N;
  const bool inside = col < a.cols;
  const size_t first = size_t{blockIdx.x / pieces} * down * kUnroll * kRounds;
  const size_t last = min(first + size_t{down} * kUnroll * kRounds, a.rows);
  const NVTEXGroup group = rows_of(a);
  for (size_t row = first; row < last;) {
    Member m;
    size_t before[1];
    if (!find_line(group, a.rows, a.cols, static_cast<uint32_t>(row), 0, {{}}, m, before)) return;
    const size_t end = min(last, row + (m.rows - m.unit));
    float bias[N];
    to_float(load<T, N>(a.bias, m.index * a.cols + col, inside), bias);
    for (size_t begin = row + lane; begin < end; begin += size_t{down} * kUnroll) {
      Vec<T, N> v[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const size_t r = begin + size_t{down} * u;
        v[u] = load<T, N>(a.output, r * a.cols + col, inside && r < end);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const size_t r = begin + size_t{down} * u;
        if (!inside || r >= end) break;
        const float scale = a.scale != nullptr ? a.scale[r] : 1.0f;
        float f[N];
        to_float(v[u], f);
#pragma unroll
        for (int i = 0; i < N; ++i) f[i] = fmaf(bias[i], scale, f[i]);
        store(a.output, r * a.cols + col, from_float<T>(f));
      }
    }
    row = end;
  }
}

template <class T, int N>
NVTEXOutcome add_bias(const NVTEXGroupedBiasArgs &a, cudaStream_t stream) {
  const size_t vectors = ceil_div(a.cols, N);
  uint32_t across = 1;
  while (across < kThreads && across < vectors) across *= 2;
  const size_t pieces = ceil_div(vectors, across);
  const size_t blocks = ceil_div(a.rows, size_t{kThreads} / across * kUnroll * kRounds);
  if (pieces > kMaxBlocks / blocks) return unimplemented("grouped bias: more than 2^31 blocks");
  return launch(bias_kernel<T, N>, dim3(static_cast<unsigned>(blocks * pieces)), kThreads, stream,
                a, across, static_cast<uint32_t>(pieces));
}

__global__ void __launch_bounds__(kThreads) widen_kernel(const __grid_constant__ NVTEXWidenArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < a.length;
       i += size_t{gridDim.x} * kThreads) {
    const uint64_t wide = static_cast<uint64_t>(int64_t{a.input[i]});
    a.output[i] = static_cast<int64_t>(wide * static_cast<uint64_t>(a.factor));
  }
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_grouped_bias(const NVTEXGroupedBiasArgs *args,
                                               cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXGroupedBiasArgs &a = *args;
  if (!one_varies(rows_of(a), a.rows, 0)) {
    return unimplemented("grouped bias: 2^24 or more members, or 2^32 or more rows");
  }
  return dispatch<F32, F16, BF16>(a.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = 16 / T::kBytes;
    const bool wide = a.cols % N == 0 && aligned(a.output, 16) && aligned(a.bias, 16);
    return wide ? add_bias<T, N>(a, stream) : add_bias<T, 1>(a, stream);
  });
}

extern "C" NVTEXOutcome nvte_cuda_widen(const NVTEXWidenArgs *args, cudaStream_t stream) noexcept {
  const size_t blocks = nvte::ceil_div(args->length, nvte::kThreads);
  const auto grid = static_cast<unsigned>(blocks < 4096 ? blocks : 4096);
  return nvte::launch(nvte::widen_kernel, dim3(grid), nvte::kThreads, stream, *args);
}
