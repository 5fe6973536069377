// Elementwise kernels: a grid streams over contiguous elements and applies an operation to each.
#pragma once

#include "launch.cuh"
#include "reduce.cuh"

namespace nvte {

constexpr int kStreamThreads = 512;

// Applies `op` to [begin, end) in vectors of N, kUnroll of them in flight per thread.
template <int N, int kUnroll, class Op>
__device__ __forceinline__ void stream_range(const void *in, void *out, size_t begin, size_t end,
                                             const Op &op, typename Op::State &state) {
  constexpr size_t kStride = size_t{kStreamThreads} * N;
  const size_t step = size_t{gridDim.x} * kStride * kUnroll;
  size_t i = begin + blockIdx.x * (kStride * kUnroll) + threadIdx.x * N;
  for (; i < end; i += step) {
    const size_t left = end - i;
    Vec<typename Op::In, N> x[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      x[u] = load<typename Op::In, N>(in, i + u * kStride, u * kStride < left);
    }
    // After the loads, so that they do not wait for the flag.
    if (state.skip()) return;
    Vec<typename Op::Out, N> y[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) y[u] = op.apply(state, x[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u * kStride < left) store(out, i + u * kStride, y[u]);
    }
  }
}

// The narrower type moves 16 bytes at a time.
template <class Op>
constexpr int kStreamVec =
    16 / (Op::In::kBytes < Op::Out::kBytes ? Op::In::kBytes : Op::Out::kBytes);

// A block covers at least 16 KB of the wider type (H200, bf16 to fp8, 8192 x 8192: 47.4 us; with
// half as much 53 us).
template <class Op>
constexpr int kStreamUnroll =
    kStreamVec<Op> * (Op::In::kBytes > Op::Out::kBytes ? Op::In::kBytes : Op::Out::kBytes) >= 32
        ? 1
        : 2;

// [0, vectors) is a multiple of the vector length; the rest goes one by one.
template <class Op, int kUnroll>
__global__ void __launch_bounds__(kStreamThreads)
    stream_kernel(const void *in, void *out, size_t vectors, size_t numel,
                  const __grid_constant__ Op op) {
  wait_for_stream();
  let_next_start();
  typename Op::State state = op.begin();
  stream_range<kStreamVec<Op>, kUnroll>(in, out, 0, vectors, op, state);
  stream_range<1, 8>(in, out, vectors, numel, op, state);
  if (state.skip()) return;
  if constexpr (Op::kHasAmax) {
    if (op.amax != nullptr) {
      __shared__ BlockMax<kStreamThreads> block;
      block.put(state.amax.bits());
      __syncthreads();
      if (threadIdx.x < 32) op.raise_amax(state, block.get());
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) op.finish(state);
}

template <class Op, int kUnroll = kStreamUnroll<Op>>
NVTEXOutcome launch_stream(const void *in, void *out, size_t numel, const Op &op,
                           cudaStream_t stream) {
  constexpr size_t kVec = kStreamVec<Op>;
  const bool vectorised = aligned(in, 16) && aligned(out, 16);
  const size_t vectors = vectorised ? numel / kVec * kVec : 0;
  size_t blocks = ceil_div(numel, kStreamThreads * kUnroll * kVec);
  if (blocks > kMaxBlocks) blocks = kMaxBlocks;
  return launch(stream_kernel<Op, kUnroll>, dim3(static_cast<unsigned>(blocks)), kStreamThreads,
                stream, in, out, vectors, numel, op);
}

}  // namespace nvte
