// Rows of tokens to the rows of their experts and back. A block takes a token: its row is read once
// for all its experts, and written once for the sum of theirs.

#include <cub/device/device_radix_sort.cuh>
#include <type_traits>

#include "common/launch.cuh"
#include "common/vec.cuh"
#include "nvte/backend/permutation.h"

namespace nvte {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    row_map_kernel(const __grid_constant__ NVTEXRowMapArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t slots = a.tokens * a.topk, step = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < slots; i += step) {
    const size_t slot = static_cast<size_t>(int64_t{a.sorted[i]});
    if (slot >= slots) continue;
    a.map[slot % a.topk * a.tokens + slot / a.topk] = i < a.rows ? static_cast<int>(i) : -1;
  }
}

// Row of slot k of token t; none: not below `rows`.
__device__ __forceinline__ size_t row_of(const int *map, size_t tokens, size_t k, size_t t) {
  return static_cast<size_t>(int64_t{map[k * tokens + t]});
}

template <class T, int V, bool kProbs, bool kGrads>
__global__ void __launch_bounds__(kThreads)
    permute_kernel(const __grid_constant__ NVTEXPermuteArgs a) {
  __shared__ float sums[kThreads / 32];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  // Vectors of a row that a thread holds while it goes through the experts.
  constexpr int kHeld = 4;
  const size_t vectors = a.cols / V;
  for (size_t t = blockIdx.x; t < a.tokens; t += gridDim.x) {
    if constexpr (kGrads) {
      for (size_t k = 0; k < a.topk; ++k) {
        const size_t row = row_of(a.map, a.tokens, k, t);
        const bool there = row < a.rows;
        const float p = there ? a.probs[t * a.topk + k] : 0.0f;
        float sum = 0.0f;
#pragma unroll 4
        for (size_t v = threadIdx.x; v < vectors && there; v += kThreads) {
          float x[V], f[V];
          to_float(load<T, V>(a.input, t * a.cols + v * V, true), x);
          to_float(load<T, V>(a.forward, row * a.cols + v * V, true), f);
#pragma unroll
          for (int j = 0; j < V; ++j) {
            sum += x[j] * f[j];
            x[j] *= p;
          }
          store(a.output, row * a.cols + v * V, from_float<T, V>(x));
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        __syncthreads();
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
          float all = 0.0f;
          for (float part : sums) all += part;
          a.prob_grads[t * a.topk + k] = all;
        }
      }
    } else {
      for (size_t first = threadIdx.x; first < vectors; first += kThreads * kHeld) {
        Vec<T, V> x[kHeld];
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          const size_t v = first + h * kThreads;
          x[h] = load<T, V>(a.input, t * a.cols + v * V, v < vectors);
        }
        for (size_t k = 0; k < a.topk; ++k) {
          const size_t row = row_of(a.map, a.tokens, k, t);
          if (row >= a.rows) continue;
          const float p = kProbs ? a.probs[t * a.topk + k] : 1.0f;
#pragma unroll
          for (int h = 0; h < kHeld; ++h) {
            const size_t v = first + h * kThreads;
            if (v >= vectors) continue;
            Vec<T, V> y = x[h];
            if constexpr (kProbs) {
              float f[V];
              to_float(y, f);
#pragma unroll
              for (int j = 0; j < V; ++j) f[j] *= p;
              y = from_float<T, V>(f);
            }
            store(a.output, row * a.cols + v * V, y);
          }
        }
      }
    }
  }
}

// A thread takes `kVectors` vectors of a token, and of `kAhead` rows at a time.
template <class T, int V, int kAhead, int kVectors>
__global__ void __launch_bounds__(kThreads)
    unpermute_kernel(const __grid_constant__ NVTEXUnpermuteArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t vectors = a.cols / V;
  const size_t pieces = (vectors + kThreads * kVectors - 1) / (kThreads * kVectors);
  for (size_t task = blockIdx.x; task < a.tokens * pieces; task += gridDim.x) {
    const size_t t = task / pieces, first = task % pieces * kThreads * kVectors + threadIdx.x;
    float sum[kVectors][V] = {};
    for (size_t k = 0; k < a.topk; k += kAhead) {
      Vec<T, V> x[kAhead][kVectors];
      float p[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const bool slot = k + i < a.topk;
        const size_t row = slot ? row_of(a.map, a.tokens, k + i, t) : ~size_t{0};
        p[i] = slot && a.probs != nullptr ? a.probs[t * a.topk + k + i] : 1.0f;
        if (row >= a.rows) p[i] = 0.0f;
#pragma unroll
        for (int w = 0; w < kVectors; ++w) {
          const size_t v = first + w * kThreads;
          x[i][w] = load<T, V>(a.input, row * a.cols + v * V, row < a.rows && v < vectors);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
#pragma unroll
        for (int w = 0; w < kVectors; ++w) {
          float f[V];
          to_float(x[i][w], f);
#pragma unroll
          for (int j = 0; j < V; ++j) sum[w][j] = fmaf(f[j], p[i], sum[w][j]);
        }
      }
    }
#pragma unroll
    for (int w = 0; w < kVectors; ++w) {
      const size_t v = first + w * kThreads;
      if (v < vectors) store(a.output, t * a.cols + v * V, from_float<T, V>(sum[w]));
    }
  }
}

dim3 grid_of(size_t blocks) {
  return dim3(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
}

template <class T, int V>
NVTEXOutcome permute(const NVTEXPermuteArgs &a, cudaStream_t stream) {
  const dim3 grid = grid_of(a.tokens);
  if (a.forward != nullptr) {
    return launch(permute_kernel<T, V, true, true>, grid, kThreads, stream, a);
  }
  if (a.probs != nullptr) {
    return launch(permute_kernel<T, V, true, false>, grid, kThreads, stream, a);
  }
  // Without probabilities elements are only copied.
  using Copied = std::conditional_t<T::kBytes == 2, BF16, T>;
  return launch(permute_kernel<Copied, V, false, false>, grid, kThreads, stream, a);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_row_map(const NVTEXRowMapArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  const dim3 grid = grid_of(ceil_div(args->tokens * args->topk, kThreads));
  return launch(row_map_kernel, grid, kThreads, stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_permute(const NVTEXPermuteArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int V = 16 / T::kBytes;
    const bool vectors = args->cols % V == 0 && aligned(args->input, 16) &&
                         aligned(args->output, 16) && aligned(args->forward, 16);
    return vectors ? permute<T, V>(*args, stream) : permute<T, 1>(*args, stream);
  });
}

extern "C" NVTEXOutcome nvte_cuda_unpermute(const NVTEXUnpermuteArgs *args,
                                            cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int V = 16 / T::kBytes;
    auto start = [&](auto kernel, size_t elements) {
      const dim3 grid = grid_of(args->tokens * ceil_div(args->cols, kThreads * elements));
      return launch(kernel, grid, kThreads, stream, *args);
    };
    if (args->cols % V != 0 || !aligned(args->input, 16) || !aligned(args->output, 16)) {
      return start(unpermute_kernel<T, 1, 4, 1>, 1);
    }
    // With few experts a thread takes several vectors, so that as many bytes are in flight.
    if (args->topk <= 1) return start(unpermute_kernel<T, V, 1, 4>, 4 * V);
    if (args->topk == 2) return start(unpermute_kernel<T, V, 2, 2>, 2 * V);
    return start(unpermute_kernel<T, V, 4, 1>, V);
  });
}

extern "C" NVTEXOutcome nvte_cuda_sort_pairs(const NVTEXSortPairsArgs *args,
                                             cudaStream_t stream) noexcept {
  using namespace nvte;
  auto sort = [&](void *workspace, size_t &bytes, uint32_t bits) {
    return cub::DeviceRadixSort::SortPairs(
        workspace, bytes, args->keys, args->sorted_keys, args->values, args->sorted_values,
        static_cast<int>(args->pairs), 0, static_cast<int>(bits), stream);
  };
  // That of all bits: fewer passes need no more.
  size_t bytes = 0;
  const cudaError_t error = sort(nullptr, bytes, 32);
  if (error != cudaSuccess) return outcome(error);
  if (args->workspace == nullptr) {
    *args->workspace_bytes = bytes > 0 ? bytes : 1;
    return ok();
  }
  const uint32_t bits = args->key_bits == 0 || args->key_bits > 32 ? 32 : args->key_bits;
  return args->pairs > 0 ? outcome(sort(args->workspace, bytes, bits)) : ok();
}
