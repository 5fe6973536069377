// Sums of tensors, elementwise.

#include "common/launch.cuh"
#include "common/vec.cuh"
#include "nvte/backend/multi_tensor.h"

namespace nvte {
namespace {

constexpr int kThreads = 256;
// Vectors of each tensor that a thread has in flight.
constexpr int kUnroll = 2;

// A block adds kUnroll neighbouring ranges, of which each of its threads takes a vector.
template <class S, class D, int N>
__global__ void __launch_bounds__(kThreads) add_kernel(const __grid_constant__ NVTEXAddArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr size_t kStep = size_t{kThreads} * N;
  const size_t begin = blockIdx.x * (kStep * kUnroll) + threadIdx.x * N;
  Vec<S, N> x[kUnroll];
  Vec<D, N> y[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const size_t i = begin + u * kStep;
    x[u] = load<S, N>(a.src, i, i < a.numel);
    y[u] = load<D, N>(a.dst, i, i < a.numel);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const size_t i = begin + u * kStep;
    if (i >= a.numel) return;
    float f[N], g[N];
    to_float(x[u], f);
    to_float(y[u], g);
#pragma unroll
    for (int e = 0; e < N; ++e) g[e] += 0.0f + f[e];
    store(a.dst, i, from_float<D>(g));
  }
}

template <class S, class D, int N>
NVTEXOutcome add(const NVTEXAddArgs &a, cudaStream_t stream) {
  const size_t blocks = ceil_div(a.numel, size_t{kThreads} * N * kUnroll);
  if (blocks > kMaxBlocks) return unimplemented("add: 2^40 or more elements");
  return launch(add_kernel<S, D, N>, dim3(static_cast<unsigned>(blocks)), kThreads, stream, a);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_add(const NVTEXAddArgs *args, cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXAddArgs &a = *args;
  return dispatch<F32, F16, BF16>(a.src_dtype, [&](auto src) {
    return dispatch<F32, F16, BF16>(a.dst_dtype, [&](auto dst) {
      using S = decltype(src);
      using D = decltype(dst);
      constexpr int N = 16 / (S::kBytes < D::kBytes ? S::kBytes : D::kBytes);
      // A vector must end where the tensors end.
      const bool wide = a.numel % N == 0 && aligned(a.src, 16) && aligned(a.dst, 16);
      return wide ? add<S, D, N>(a, stream) : add<S, D, 1>(a, stream);
    });
  });
}
