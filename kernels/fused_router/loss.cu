// The histogram of quantile balancing, and the loss of the experts' balance with its gradient.

#include <cooperative_groups.h>

#include <cmath>

#include "common/launch.cuh"
#include "router.cuh"
#include "nvte/backend/fused_router.h"

namespace nvte {
namespace {

namespace cg = cooperative_groups;

// ---- Histogram

using Histogram = NVTEXRouterHistogramArgs;

constexpr int kCounters = 1024;    // Threads of a block that counts.
constexpr int kUnroll = 4;         // Vectors of a thread in flight.
constexpr unsigned kExperts = 16;  // Of a block: lines of 64 bytes, and few counters to add up.

__device__ __forceinline__ int bin_of(const Histogram &a, float lower, float scale, float cutoff,
                                      float score) {
  const float distance = __fsub_rn(__fsub_rn(cutoff, score), lower);
  // The conversion saturates, and NaN becomes 0.
  const int bin = __float2int_rd(__fmul_rn(distance, scale));
  const int last = a.bins > 0x7fffffff ? 0x7fffffff : static_cast<int>(a.bins - 1);
  return min(max(bin, 0), last);
}

// A block counts a range of tokens for `width` neighbouring experts, a power of two that is not
// below V; without shared counters directly in the histogram.
struct Counting {
  Histogram a;
  unsigned width;
  size_t tokens;
};

template <bool kShared, int V>
__global__ void __launch_bounds__(kCounters)
    histogram_kernel(const __grid_constant__ Counting counting) {
  extern __shared__ uint4 memory[];
  int *const counts = reinterpret_cast<int *>(memory);
  const Histogram &a = counting.a;
  const unsigned width = counting.width;
  const size_t tokens = counting.tokens;
  if constexpr (kShared) {  // While the kernel before still runs.
    for (size_t i = threadIdx.x; i < (width * a.bins + 3) / 4; i += kCounters) {
      memory[i] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
  }
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t first = size_t{blockIdx.x} * width;
  const unsigned lanes = width / V, expert = threadIdx.x % lanes * V;
  const size_t begin = blockIdx.y * tokens, end = min(begin + tokens, a.tokens);
  const float lower = a.bin_bounds[0];
  const float scale = static_cast<float>(a.bins) / (a.bin_bounds[1] - lower);
  const size_t experts = a.experts - first < width ? a.experts - first : width;
  if (expert < experts) {
    const size_t bins = a.bins;
    int *row = kShared ? counts + expert * bins : a.histogram + (first + expert) * bins;
    const size_t step = kCounters / lanes;
    for (size_t token = begin + threadIdx.x / lanes; token < end; token += step * kUnroll) {
      Vec<F32, V> scores[kUnroll];
      float cutoff[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const size_t t = token + u * step;
        scores[u] = load<F32, V>(a.scores, t * a.experts + first + expert, t < end);
        cutoff[u] = t < end ? a.cutoff[t] : 0.0f;
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (token + u * step >= end) break;
        float score[V];
        to_float(scores[u], score);
#pragma unroll
        for (int j = 0; j < V; ++j) {
          atomicAdd(row + j * bins + bin_of(a, lower, scale, cutoff[u], score[j]), 1);
        }
      }
    }
  }
  if constexpr (kShared) {
    __syncthreads();
    for (size_t i = threadIdx.x; i < experts * a.bins; i += kCounters) {
      if (counts[i] != 0) atomicAdd(&a.histogram[first * a.bins + i], counts[i]);
    }
  }
}

template <int V>
NVTEXOutcome histogram(const Histogram &a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const size_t most = shared_room(device) / 4;  // Counters of a block.
  unsigned width = kExperts;
  while (width > V && width * a.bins > most) width /= 2;
  // Shared counters pay if a block counts more often than it has counters.
  const bool shared = width * a.bins <= most && a.tokens >= 2 * a.bins;
  const size_t slices = ceil_div(a.experts, width);
  // No more blocks than run at a time: a second round would take as long as the first.
  const size_t running = size_t(device.sm_count) * (shared ? 1 : 2) / slices;
  const size_t least = shared ? 4 * a.bins : kCounters / width * kUnroll * V;
  size_t tokens = ceil_div(a.tokens, running > 0 ? running : 1);
  if (tokens < least) tokens = least;
  if (tokens < ceil_div(a.tokens, 65535)) tokens = ceil_div(a.tokens, 65535);
  const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(ceil_div(a.tokens, tokens)));
  const Counting counting = {a, width, tokens};
  if (!shared) return launch(histogram_kernel<false, V>, grid, kCounters, stream, counting);
  const size_t bytes = (width * a.bins + 3) / 4 * 16;
  return launch_shared(histogram_kernel<true, V>, grid, kCounters, bytes, stream, counting);
}

// ---- Loss

using Loss = NVTEXAuxLossArgs;

constexpr int kLossThreads = 1024;

__device__ __forceinline__ float count_at(const void *counts, NVTEDType dtype, size_t i) {
  switch (dtype) {
    case kNVTEInt16:
      return static_cast<float>(*element<int16_t>(counts, i));
    case kNVTEInt32:
      return static_cast<float>(*element<int32_t>(counts, i));
    case kNVTEInt64:
      return static_cast<float>(*element<int64_t>(counts, i));
    case kNVTEBFloat16:
      return __uint_as_float(uint32_t{*element<uint16_t>(counts, i)} << 16);
    default:
      return *element<float>(counts, i);
  }
}

// The sum over a block, in a fixed order, for its first warp.
__device__ float block_sum(float value) {
  __shared__ float sums[kLossThreads / 32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(threadIdx.x < kLossThreads / 32 ? sums[threadIdx.x] : 0.0f);
}

// There is no memory for the partial sums of the blocks, and they may not be added as floats in any
// order. They are added as integers instead, in units of the largest of them; the two words of
// `constants` hold that and the sum meanwhile. A partial sum that is not finite counts by its kind.
constexpr int kInf = 1, kMinusInf = 1 << 10, kNan = 1 << 20;

template <class T, int V>
__global__ void __launch_bounds__(kLossThreads) loss_kernel(const __grid_constant__ Loss a) {
  const auto grid = cg::this_grid();
  const bool leader = blockIdx.x == 0 && threadIdx.x == 0;
  unsigned *largest = reinterpret_cast<unsigned *>(a.constants);
  int *total = reinterpret_cast<int *>(a.constants + 1);
  if (leader) *largest = 0, *total = 0;
  // A thread keeps its columns for as many rows as possible.
  const size_t vectors = a.cols / V;
  const size_t threads = size_t{gridDim.x} * kLossThreads;
  const size_t thread = size_t{blockIdx.x} * kLossThreads + threadIdx.x;
  float sum = 0.0f;
  const size_t lanes = vectors < threads ? vectors : threads;
  const size_t row_step = threads / lanes;
  if (thread < row_step * lanes) {
    for (size_t v = thread % lanes; v < vectors; v += lanes) {
      float part[V] = {};
#pragma unroll 8
      for (size_t row = thread / lanes; row < a.rows; row += row_step) {
        float p[V];
        to_float(load<T, V>(a.probs, row * a.cols + v * V, true), p);
#pragma unroll
        for (int j = 0; j < V; ++j) part[j] += p[j];
      }
#pragma unroll
      for (int j = 0; j < V; ++j) sum += part[j] * count_at(a.counts, a.counts_dtype, v * V + j);
    }
  }
  sum = block_sum(sum);
  grid.sync();
  if (threadIdx.x == 0) atomicMax(largest, __float_as_uint(fabsf(sum)));
  grid.sync();
  if (threadIdx.x == 0) {
    // There are at most 1024 blocks, so 21 bits remain for each.
    const float unit = __uint_as_float(*reinterpret_cast<volatile unsigned *>(largest));
    int whole;
    if (isfinite(unit)) {
      whole = unit > 0.0f ? __double2int_rn(double{sum} / double{unit} * (1 << 21)) : 0;
    } else {
      whole = isnan(sum) ? kNan : !isinf(sum) ? 0 : sum > 0.0f ? kInf : kMinusInf;
    }
    atomicAdd(total, whole);
  }
  grid.sync();
  if (leader) {
    const float unit = __uint_as_float(*reinterpret_cast<volatile unsigned *>(largest));
    const int whole = *reinterpret_cast<volatile int *>(total);
    double all = double{unit} * whole / (1 << 21);
    if (!isfinite(unit)) {
      const bool plus = whole % kMinusInf != 0, minus = whole % kNan >= kMinusInf;
      all = whole >= kNan || (plus && minus) ? NAN : plus ? INFINITY : -INFINITY;
    }
    const float tokens =
        a.device_total != nullptr ? static_cast<float>(*a.device_total) : a.total_tokens;
    const float c = a.experts * a.coeff / a.topk / tokens / tokens;
    const float loss[1] = {static_cast<float>(double{c} * all)};
    a.constants[0] = c;
    a.constants[1] = loss[0];
    store(a.loss, 0, from_float<T, 1>(loss));
  }
}

template <class T, int V>
NVTEXOutcome launch_loss(const Loss &a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const size_t wanted = ceil_div(a.rows * a.cols, size_t{kLossThreads} * V * 4);
  const size_t most = device.sm_count < 1024 ? device.sm_count : 1024;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most));
  config.blockDim = dim3(kLossThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return outcome(cudaLaunchKernelEx(&config, loss_kernel<T, V>, a));
}

// ---- Gradient

using Gradient = NVTEXAuxLossBackwardArgs;

template <class T, int V>
__global__ void __launch_bounds__(256) gradient_kernel(const __grid_constant__ Gradient a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  float grad[1];
  to_float(load<T, 1>(a.grad_loss, 0, true), grad);
  const float c = a.constants[0];
  const size_t vectors = a.cols / V;
  const size_t threads = size_t{gridDim.x} * 256, thread = size_t{blockIdx.x} * 256 + threadIdx.x;
  const size_t lanes = vectors < threads ? vectors : threads;
  const size_t row_step = threads / lanes;
  if (thread >= row_step * lanes) return;
  for (size_t v = thread % lanes; v < vectors; v += lanes) {
    float out[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      out[j] = c * count_at(a.counts, a.counts_dtype, v * V + j) * grad[0];
    }
    const Vec<T, V> row_part = from_float<T, V>(out);
    for (size_t row = thread / lanes; row < a.rows; row += row_step) {
      store(a.grad_probs, row * a.cols + v * V, row_part);
    }
  }
}

template <class T, int V>
NVTEXOutcome launch_gradient(const Gradient &a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const size_t wanted = ceil_div(a.rows * a.cols, size_t{256} * V * 4);
  const size_t most = size_t(device.sm_count) * 8;
  const dim3 grid(static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most));
  return launch(gradient_kernel<T, V>, grid, 256, stream, a);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_router_histogram(const NVTEXRouterHistogramArgs *args,
                                                   cudaStream_t stream) noexcept {
  using namespace nvte;
  return args->experts % 4 == 0 && aligned(args->scores, 16) ? histogram<4>(*args, stream)
                                                             : histogram<1>(*args, stream);
}

extern "C" NVTEXOutcome nvte_cuda_aux_loss(const NVTEXAuxLossArgs *args,
                                           cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int V = 16 / T::kBytes;
    return args->cols % V == 0 && aligned(args->probs, 16) ? launch_loss<T, V>(*args, stream)
                                                           : launch_loss<T, 1>(*args, stream);
  });
}

extern "C" NVTEXOutcome nvte_cuda_aux_loss_backward(const NVTEXAuxLossBackwardArgs *args,
                                                    cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int V = 16 / T::kBytes;
    return args->cols % V == 0 && aligned(args->grad_probs, 16)
               ? launch_gradient<T, V>(*args, stream)
               : launch_gradient<T, 1>(*args, stream);
  });
}
