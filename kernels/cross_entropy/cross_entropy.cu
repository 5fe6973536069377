// Cross entropy over rows of logits, its gradients, and both in one pass. A block takes a row: the
// forward pass reads it once, with a running maximum. The fused one keeps it in shared memory until
// it knows the sum. A row that does not fit there is read again, mostly from L2, since no more rows
// are in flight than fit there.

#include <cmath>

#include "common/launch.cuh"
#include "common/math.cuh"
#include "common/vec.cuh"
#include "common/warp.cuh"
#include "nvte/backend/cross_entropy.h"

namespace nvte {
namespace {

using Args = NVTEXCrossEntropyArgs;

__device__ __forceinline__ int64_t target_at(const void *targets, NVTEDType dtype, size_t token) {
  return dtype == kNVTEInt32 ? static_cast<const int32_t *>(targets)[token]
                             : static_cast<const int64_t *>(targets)[token];
}

// exp(x - below). The difference comes first: a product with log2(e) that is rounded for itself
// would be wrong by a part of `below`.
__device__ __forceinline__ float exp_below(float x, float below) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"((x - below) * kLog2e));
  return y;
}

// What exponents are below: the maximum, or 0 if all elements are -Inf.
__device__ __forceinline__ float below_of(float most) { return most == -INFINITY ? 0.0f : most; }

// A running sum of exponentials below a running maximum, and the sum of the elements.
struct Running {
  float most = -INFINITY;
  float exponentials = 0.0f;
  float all = 0.0f;

  // `sums`: whether the sum of the elements is wanted, the same for all threads.
  template <int N>
  __device__ __forceinline__ void add(const float (&x)[N], bool sums) {
    float top = x[0];
#pragma unroll
    for (int i = 1; i < N; ++i) top = fmaxf(top, x[i]);
    if (top > most) {
      exponentials *= exp_below(most, top);
      most = top;
    }
    const float below = below_of(most);
    constexpr int kSums = N < 4 ? N : 4;
    float part[kSums] = {};
#pragma unroll
    for (int i = 0; i < N; ++i) part[i % kSums] += exp_below(x[i], below);
#pragma unroll
    for (int i = 0; i < kSums; ++i) exponentials += part[i];
    if (sums) {
      float total[kSums] = {};
#pragma unroll
      for (int i = 0; i < N; ++i) total[i % kSums] += x[i];
#pragma unroll
      for (int i = 0; i < kSums; ++i) all += total[i];
    }
  }

  // Takes in what another thread has.
  __device__ __forceinline__ void merge(float other_most, float other_exponentials,
                                        float other_all) {
    const float top = fmaxf(most, other_most);
    const float below = below_of(top);
    exponentials =
        exponentials * exp_below(most, below) + other_exponentials * exp_below(other_most, below);
    all += other_all;
    most = top;
  }

  __device__ __forceinline__ void merge_warp() {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      merge(__shfl_xor_sync(kFullWarp, most, step), __shfl_xor_sync(kFullWarp, exponentials, step),
            __shfl_xor_sync(kFullWarp, all, step));
    }
  }
};

// The loss from the maximum of a row, the logarithm of the sum of exponentials below it, the logit
// of the target and the sum of all. Differences to the maximum come first: they are small.
__device__ __forceinline__ float loss_of(float most, float log, float target, float all,
                                         float smoothing, float z_loss, size_t total) {
  float loss = log;
  if (smoothing != 1.0f) loss += (1.0f - smoothing) * (most - target);
  if (smoothing != 0.0f) loss += smoothing * (most - all / static_cast<float>(total));
  if (z_loss != 0.0f) loss += z_loss * ((most + log) * (most + log));
  return loss;
}

// A row of a matrix as elements one by one up to a boundary of 16 bytes, vectors of N, and the
// rest.
template <class T, int N>
struct Parts {
  size_t start;  // Index of the row's first element.
  size_t vectors;
  int head, tail;

  __device__ __forceinline__ Parts(const void *base, size_t row, size_t columns)
      : start(row * columns) {
    const auto address = reinterpret_cast<uintptr_t>(element<typename T::Bits>(base, start));
    const size_t before = N == 1 ? 0 : (16 - address % 16) % 16 / T::kBytes;
    head = static_cast<int>(before < columns ? before : columns);
    vectors = (columns - head) / N;
    tail = static_cast<int>(columns - head - vectors * N);
  }
  __device__ __forceinline__ size_t column(size_t vector) const { return head + vector * N; }
};

// Calls many(vector, elements) with kUnroll vectors of a row, kThreads apart, which are loaded
// together, and one(column, count, elements) with single ones, of which the first `count` elements
// are inside of the row. A vector always comes to the same thread. Those in `kept`, unless that is
// null, are read from there.
template <class T, int N, int kThreads, int kUnroll, class Many, class One>
__device__ __forceinline__ void over_row(const void *base, const Vec<T, N> *kept,
                                         const Parts<T, N> &row, const Many &many, const One &one) {
  for (size_t v = threadIdx.x; v < row.vectors; v += kThreads * kUnroll) {
    Vec<T, N> x[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const size_t vector = v + u * kThreads;
      const bool inside = vector < row.vectors;
      if (kept == nullptr) {
        x[u] = load<T, N>(base, row.start + row.column(vector), inside);
      } else if (inside) {
        x[u] = kept[vector];
      }
    }
    if (v + (kUnroll - 1) * kThreads < row.vectors) {
      many(v, x);
    } else {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const size_t vector = v + u * kThreads;
        if (vector < row.vectors) one(row.column(vector), N, x[u]);
      }
    }
  }
  if constexpr (N > 1) {
    if (row.head > 0 && threadIdx.x == kThreads - 1) {
      one(size_t{0}, row.head, load_some<T, N>(base, row.start, row.head));
    }
    if (row.tail > 0 && threadIdx.x == kThreads - 33) {
      const size_t at = row.column(row.vectors);
      one(at, row.tail, load_some<T, N>(base, row.start + at, row.tail));
    }
  }
}

// What the gradient of a row needs: dx = weight * exp(x - log_sum) - smoothed, and less `at_target`
// at the target.
struct Slope {
  float weight, log_sum, smoothed, at_target;
  size_t target;  // Beyond all columns if it is not among them.

  template <int N>
  __device__ __forceinline__ void apply(size_t column, float (&x)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = fmaf(weight, exp_below(x[i], log_sum), -smoothed);
    if (target - column < size_t{N}) {
      const int at = static_cast<int>(target - column);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (at == i) x[i] -= at_target;
      }
    }
  }
};

__device__ __forceinline__ Slope slope_of(const Args &a, size_t token, int64_t target,
                                          float log_sum) {
  float grad = a.grad == nullptr ? 1.0f : a.grad[a.grad_per_token ? token : 0];
  if (a.count != nullptr) grad /= fmaxf(*a.count, 1.0f);
  const bool known = target >= 0 && static_cast<size_t>(target) < a.total;
  if (!known) grad = NAN;
  const size_t column = static_cast<size_t>(target) - a.start;
  return {grad * (1.0f + 2.0f * a.z_loss * log_sum), log_sum,
          grad * a.label_smoothing / static_cast<float>(a.total), grad * (1.0f - a.label_smoothing),
          known && column < a.vocabulary ? column : SIZE_MAX / 2};
}

// Writes the gradients of a row. Out of place the vectors of both rows begin at the same columns.
// `kept`: the row's vectors, if the thread has kept those that it takes here; else null.
template <class T, int N, int kThreads, int kUnroll>
__device__ __forceinline__ void write_gradients(const Args &a, size_t token, const Slope &slope,
                                                const Vec<T, N> *kept) {
  const Parts<T, N> row(a.logits, token, a.vocabulary);
  const auto one = [&](size_t column, int count, const Vec<T, N> &x) {
    float f[N];
    to_float(x, f);
    slope.apply(column, f);
    const Vec<T, N> y = from_float<T>(f);
    if (count == N) {
      store(a.grad_logits, row.start + column, y);
    } else {
      store_some(a.grad_logits, row.start + column, count, y);
    }
  };
  const auto many = [&](size_t v, const Vec<T, N>(&x)[kUnroll]) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) one(row.column(v + u * kThreads), N, x[u]);
  };
  over_row<T, N, kThreads, kUnroll>(a.logits, kept, row, many, one);
}

// Zeros for a target that is ignored.
template <class T, int N, int kThreads>
__device__ __forceinline__ void write_zeros(const Args &a, size_t token) {
  const Parts<T, N> row(a.logits, token, a.vocabulary);
  const Vec<T, N> zeros = {};
  for (size_t v = threadIdx.x; v < row.vectors; v += kThreads) {
    store(a.grad_logits, row.start + row.column(v), zeros);
  }
  if (threadIdx.x == 0) {
    store_some(a.grad_logits, row.start, row.head, zeros);
    store_some(a.grad_logits, row.start + row.column(row.vectors), row.tail, zeros);
  }
}

// How a forward kernel writes gradients, too.
enum class Fused { kNo, kFromMemory, kFromShared };

template <class T, int N, int kThreads, int kBlocks, Fused kFused>
__global__ void __launch_bounds__(kThreads, kBlocks)
    forward_kernel(const __grid_constant__ Args a) {
  extern __shared__ uint4 dynamic[];
  static_assert(kFused != Fused::kFromShared || sizeof(Vec<T, N>) == sizeof(uint4), "a place each");
  Vec<T, N> *const kept =
      kFused == Fused::kFromShared ? reinterpret_cast<Vec<T, N> *>(dynamic) : nullptr;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr int kWarps = kThreads / 32;
  constexpr int kUnroll = 4;
  __shared__ float warps[3][kWarps];
  const bool partial = a.pass == NVTEX_CROSS_ENTROPY_PARTIAL;
  const bool sums = partial || a.label_smoothing != 0.0f;
  for (size_t token = blockIdx.x; token < a.tokens; token += gridDim.x) {
    const int64_t target = target_at(a.targets, a.target_dtype, token);
    if (target == a.ignored) {
      if (threadIdx.x == 0) {
        if (partial) {
          a.partials[token] = -INFINITY;
#pragma unroll
          for (int i = 1; i < 4; ++i) a.partials[i * a.tokens + token] = 0.0f;
        } else {
          a.loss[token] = 0.0f;
          if (a.logsumexp != nullptr) a.logsumexp[token] = 0.0f;
        }
      }
      if constexpr (kFused != Fused::kNo) write_zeros<T, N, kThreads>(a, token);
      continue;
    }
    // The logit of the target, before a gradient takes its place.
    float logit = 0.0f;
    if (threadIdx.x == 0) {
      const bool known = target >= 0 && static_cast<size_t>(target) < a.total;
      const size_t column = static_cast<size_t>(target) - a.start;
      if (!known) {
        logit = NAN;
      } else if (column < a.vocabulary) {
        float f[1];
        to_float(load<T, 1>(a.logits, token * a.vocabulary + column, true), f);
        logit = f[0];
      }
    }
    const Parts<T, N> row(a.logits, token, a.vocabulary);
    Running sum;
    const auto many = [&](size_t v, const Vec<T, N>(&x)[kUnroll]) {
      if constexpr (kFused == Fused::kFromShared) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) kept[v + u * kThreads] = x[u];
      }
      // Two vectors at a time: registers for all of them are not there.
#pragma unroll
      for (int u = 0; u < kUnroll; u += 2) {
        float f[2 * N], low[N], high[N];
        to_float(x[u], low);
        to_float(x[u + 1], high);
#pragma unroll
        for (int i = 0; i < N; ++i) f[i] = low[i], f[N + i] = high[i];
        sum.add(f, sums);
      }
    };
    const auto one = [&](size_t column, int count, const Vec<T, N> &x) {
      float f[N];
      to_float(x, f);
      if (count == N) {
        if constexpr (kFused == Fused::kFromShared) kept[(column - row.head) / N] = x;
        sum.add(f, sums);
        return;
      }
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (i < count) {
          const float alone[1] = {f[i]};
          sum.add(alone, sums);
        }
      }
    };
    over_row<T, N, kThreads, kUnroll>(a.logits, nullptr, row, many, one);
    sum.merge_warp();
    __syncthreads();  // Everybody has read what the row before left here.
    if (threadIdx.x % 32 == 0) {
      warps[0][threadIdx.x / 32] = sum.most;
      warps[1][threadIdx.x / 32] = sum.exponentials;
      warps[2][threadIdx.x / 32] = sum.all;
    }
    __syncthreads();
    sum = Running();
    if (threadIdx.x % 32 < kWarps) {
      sum.most = warps[0][threadIdx.x % 32];
      sum.exponentials = warps[1][threadIdx.x % 32];
      sum.all = warps[2][threadIdx.x % 32];
    }
    sum.merge_warp();
    const float log = logf(sum.exponentials), log_sum = sum.most + log;
    if (threadIdx.x == 0) {
      if (partial) {
        const float values[4] = {sum.most, sum.exponentials, logit, sum.all};
#pragma unroll
        for (int i = 0; i < 4; ++i) a.partials[i * a.tokens + token] = values[i];
      } else {
        a.loss[token] =
            loss_of(sum.most, log, logit, sum.all, a.label_smoothing, a.z_loss, a.total);
        if (a.logsumexp != nullptr) a.logsumexp[token] = log_sum;
      }
    }
    if constexpr (kFused != Fused::kNo) {
      write_gradients<T, N, kThreads, 2>(a, token, slope_of(a, token, target, log_sum), kept);
    }
  }
}

template <class T, int N, int kThreads>
__global__ void __launch_bounds__(kThreads, 768 / kThreads)
    backward_kernel(const __grid_constant__ Args a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (size_t token = blockIdx.x; token < a.tokens; token += gridDim.x) {
    const int64_t target = target_at(a.targets, a.target_dtype, token);
    if (target == a.ignored) {
      write_zeros<T, N, kThreads>(a, token);
    } else {
      const Slope slope = slope_of(a, token, target, a.logsumexp[token]);
      write_gradients<T, N, kThreads, N == 1 ? 8 : 4>(a, token, slope, nullptr);
    }
  }
}

inline dim3 grid_of(size_t rows) {
  return dim3(static_cast<unsigned>(rows < kMaxBlocks ? rows : kMaxBlocks));
}

// Rows of fewer bytes take small blocks.
constexpr size_t kShortRow = 16384;

template <class T>
NVTEXOutcome run(const Args &a, cudaStream_t stream) {
  constexpr int N = 16 / T::kBytes;
  const dim3 grid = grid_of(a.tokens);
  const bool is_short = a.vocabulary * T::kBytes < kShortRow;
  if (a.pass == NVTEX_CROSS_ENTROPY_BACKWARD) {
    // Rows that begin at different places of their 16 bytes go element by element.
    const auto place = [](const void *p) { return reinterpret_cast<uintptr_t>(p) % 16; };
    if (place(a.logits) != place(a.grad_logits)) {
      return launch(backward_kernel<T, 1, 256>, grid, 256, stream, a);
    }
    return is_short ? launch(backward_kernel<T, N, 128>, grid, 128, stream, a)
                    : launch(backward_kernel<T, N, 256>, grid, 256, stream, a);
  }
  if (a.pass == NVTEX_CROSS_ENTROPY_FUSED) {
    if (is_short) {
      return launch(forward_kernel<T, N, 128, 8, Fused::kFromMemory>, grid, 128, stream, a);
    }
    Device device;
    if (const cudaError_t error = current_device(&device)) return outcome(error);
    // Two blocks of a multiprocessor, one of which reads while the other one writes, or one.
    const size_t bytes = a.vocabulary / N * sizeof(uint4), room = shared_room(device);
    if (bytes <= room / 2) {
      return launch_shared(forward_kernel<T, N, 512, 2, Fused::kFromShared>, grid, 512, bytes,
                           stream, a);
    }
    if (bytes <= room) {
      return launch_shared(forward_kernel<T, N, 1024, 1, Fused::kFromShared>, grid, 1024, bytes,
                           stream, a);
    }
    // One block of a multiprocessor at a time: more rows than that would not stay in L2.
    return launch(forward_kernel<T, N, 1024, 1, Fused::kFromMemory>, grid, 1024, stream, a);
  }
  return is_short ? launch(forward_kernel<T, N, 128, 8, Fused::kNo>, grid, 128, stream, a)
                  : launch(forward_kernel<T, N, 512, 2, Fused::kNo>, grid, 512, stream, a);
}

constexpr int kCombineThreads = 256;

__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const __grid_constant__ NVTEXCombineCrossEntropyArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t step = size_t{gridDim.x} * kCombineThreads;
  for (size_t t = blockIdx.x * size_t{kCombineThreads} + threadIdx.x; t < a.tokens; t += step) {
    const auto get = [&](size_t part, int which) {
      return a.partials[(4 * part + which) * a.tokens + t];
    };
    float most = -INFINITY;
    for (size_t part = 0; part < a.parts; ++part) most = fmaxf(most, get(part, 0));
    const float below = most == -INFINITY ? 0.0f : most;
    double exponentials = 0, logit = 0, all = 0;
    for (size_t part = 0; part < a.parts; ++part) {
      exponentials += static_cast<double>(get(part, 1)) * expf(get(part, 0) - below);
      logit += get(part, 2);
      all += get(part, 3);
    }
    const float log = logf(static_cast<float>(exponentials));
    float log_sum = most + log;
    float loss = loss_of(most, log, static_cast<float>(logit), static_cast<float>(all),
                         a.label_smoothing, a.z_loss, a.total);
    if (target_at(a.targets, a.target_dtype, t) == a.ignored) loss = log_sum = 0.0f;
    a.loss[t] = loss;
    if (a.logsumexp != nullptr) a.logsumexp[t] = log_sum;
  }
}

constexpr int kTotalThreads = 1024;

// Over a block, in an order that is the same in every run; thread 0 gets the sum. `warps` serves
// one call.
__device__ __forceinline__ double block_sum(double value, double *warps) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kFullWarp, value, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warps[threadIdx.x % 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kFullWarp, value, step);
  return value;
}

__global__ void __launch_bounds__(kTotalThreads)
    total_kernel(const __grid_constant__ NVTEXTotalLossArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  static_assert(kTotalThreads == 32 * 32, "as many warps as a warp has lanes");
  __shared__ double warps[2][kTotalThreads / 32];
  double count = 0, sum = 0;
#pragma unroll 4
  for (size_t t = threadIdx.x; t < a.tokens; t += kTotalThreads) {
    if (a.targets != nullptr) count += target_at(a.targets, a.target_dtype, t) != a.ignored;
    if (a.losses != nullptr) sum += a.losses[t];
  }
  count = block_sum(count, warps[0]);
  sum = block_sum(sum, warps[1]);
  if (threadIdx.x != 0) return;
  if (a.targets != nullptr) {
    *a.count = static_cast<float>(count);
  } else if (a.mean) {
    count = *a.count;
  }
  if (a.losses != nullptr) {
    *a.total = static_cast<float>(a.mean ? sum / fmax(static_cast<float>(count), 1.0f) : sum);
  }
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_cross_entropy(const NVTEXCrossEntropyArgs *args,
                                                cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(args->dtype,
                                  [&](auto t) { return run<decltype(t)>(*args, stream); });
}

extern "C" NVTEXOutcome nvte_cuda_combine_cross_entropy(const NVTEXCombineCrossEntropyArgs *args,
                                                        cudaStream_t stream) noexcept {
  using namespace nvte;
  const dim3 grid = grid_of(ceil_div(args->tokens, kCombineThreads));
  return launch(combine_kernel, grid, kCombineThreads, stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_total_loss(const NVTEXTotalLossArgs *args,
                                             cudaStream_t stream) noexcept {
  using namespace nvte;
  return launch(total_kernel, dim3(1), kTotalThreads, stream, *args);
}
