// Tokens drawn from rows of logits. A block takes a row, and reads it several times, from L2 after
// the first. All sums are integers, so that they do not depend on the order of threads. The k-th
// greatest element, and the last one that a sum of weights needs, are found bit by bit.

#include <cmath>

#include "common/launch.cuh"
#include "common/math.cuh"
#include "common/philox.cuh"
#include "common/vec.cuh"
#include "common/warp.cuh"
#include "nvte/backend/sampling.h"

namespace nvte {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
static_assert(kWarps == 32, "a lane for each warp");
constexpr float kWhole = 2147483648.0f;  // The weight of the greatest logit.

// Bits of the keys of elements: those of a float that a conversion from T may set.
template <class T>
constexpr int kKeyBits = T::kDtype == kNVTEBFloat16  ? 16
                         : T::kDtype == kNVTEFloat16 ? 19
                                                     : 32;

// What a block has counted: elements and weights.
struct Sum {
  uint64_t count, weight;
};

__device__ __forceinline__ uint64_t warp_sum(uint64_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kFullWarp, value, step);
  return value;
}

struct Shared {
  Sum sums[kWarps];
  float most[kWarps];
  uint32_t ties[kWarps];
};

// Over the block; every thread gets the result. A barrier comes first, so that the memory is free.
__device__ __forceinline__ Sum block_sum(Sum sum, Shared &shared) {
  sum.count = warp_sum(sum.count);
  sum.weight = warp_sum(sum.weight);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = shared.sums[threadIdx.x % 32];
  return {warp_sum(sum.count), warp_sum(sum.weight)};
}

// One row of logits.
template <class T, int N>
struct Row {
  const NVTEXSampleTokensArgs &a;
  size_t start;
  float most = 0.0f, factor;  // The factor of differences to the maximum: log2(e) / temperature.

  __device__ __forceinline__ Row(const NVTEXSampleTokensArgs &args, size_t row)
      : a(args), start(row * args.cols), factor(kLog2e / args.temperature) {}

  // A logit that is NaN counts as -Inf.
  static __device__ __forceinline__ float number(float x) { return isnan(x) ? -INFINITY : x; }

  static __device__ __forceinline__ uint32_t key(float x) {
    return ordered_bits(__float_as_uint(x)) >> (32 - kKeyBits<T>);
  }
  __device__ __forceinline__ uint64_t weight(float x) const {
    if (x == most) return static_cast<uint64_t>(kWhole);
    return static_cast<uint64_t>(exp2f((x - most) * factor) * kWhole);
  }
  __device__ __forceinline__ float at(size_t column) const {
    float f[1];
    to_float(load<T, 1>(a.logits, start + column, true), f);
    return number(f[0]);
  }

  // Calls f(element) for those of the thread.
  template <class F>
  __device__ __forceinline__ void each(const F &f) const {
#pragma unroll 2
    for (size_t c = threadIdx.x * size_t{N}; c < a.cols; c += kThreads * N) {
      float x[N];
      to_float(load<T, N>(a.logits, start + c, true), x);
#pragma unroll
      for (int i = 0; i < N; ++i) f(number(x[i]));
    }
  }

  // Elements with keys from `least` on, and their weights.
  __device__ __forceinline__ Sum from(uint64_t least, bool weights, Shared &shared) const {
    Sum sum = {};
    each([&](float x) {
      if (key(x) < least) return;
      ++sum.count;
      if (weights) sum.weight += weight(x);
    });
    return block_sum(sum, shared);
  }
};

// The kept elements: those with keys above `key`, and `ties` of those with this key, in the order
// of their indices.
struct Kept {
  uint32_t key = 0;
  uint64_t ties = 0;
};

// The weight of the elements with a key, which are all equal; 0 if there are none.
template <class T, int N>
__device__ __forceinline__ uint64_t weight_of(const Row<T, N> &row, uint32_t key, Shared &shared) {
  uint32_t weight = 0;
  row.each([&](float x) {
    if (row.key(x) == key) weight = static_cast<uint32_t>(row.weight(x));
  });
  weight = __reduce_max_sync(kFullWarp, weight);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.ties[threadIdx.x / 32] = weight;
  __syncthreads();
  return __reduce_max_sync(kFullWarp, shared.ties[threadIdx.x % 32]);
}

// The first elements in descending order whose number is top_k, then those of them whose weights
// come to what top_p needs.
template <class T, int N>
__device__ __forceinline__ Kept choose(const Row<T, N> &row, Shared &shared) {
  const NVTEXSampleTokensArgs &a = row.a;
  Kept kept = {0, a.cols};
  if (a.top_k < a.cols) {
    for (int bit = kKeyBits<T> - 1; bit >= 0; --bit) {
      const uint32_t candidate = kept.key | 1u << bit;
      if (row.from(candidate, false, shared).count >= a.top_k) kept.key = candidate;
    }
    kept.ties = a.top_k - row.from(uint64_t{kept.key} + 1, false, shared).count;
  }
  if (a.top_p >= 1.0f) return kept;
  uint64_t tie = weight_of(row, kept.key, shared);
  uint64_t above = row.from(uint64_t{kept.key} + 1, true, shared).weight;
  uint64_t limit = kept.ties;
  if (a.top_k >= a.cols) limit -= row.from(1, false, shared).count;
  const double sum = static_cast<double>(above + limit * tie);
  const auto needed = static_cast<uint64_t>(ceil(static_cast<double>(a.top_p) * sum));
  if (above >= needed) {
    // The last of the needed elements is above the key.
    uint32_t last = 0;
    for (int bit = kKeyBits<T> - 1; bit >= 0; --bit) {
      const uint32_t candidate = last | 1u << bit;
      const bool enough =
          candidate <= kept.key || row.from(candidate, true, shared).weight >= needed;
      if (enough) last = candidate;
    }
    kept.key = last;
    tie = weight_of(row, last, shared);
    above = row.from(uint64_t{last} + 1, true, shared).weight;
    limit = a.cols;
  }
  const uint64_t ties = tie == 0 ? limit : (needed - above + tie - 1) / tie;
  kept.ties = ties < limit ? ties : limit;
  return kept;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads, 1)
    sample_kernel(const __grid_constant__ NVTEXSampleTokensArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  __shared__ Shared shared;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (size_t index = blockIdx.x; index < a.rows; index += gridDim.x) {
    Row<T, N> row(a, index);
    float most = -INFINITY;
    row.each([&](float x) { most = fmaxf(most, x); });
    most = warp_most(most);
    __syncthreads();
    if (lane == 0) shared.most[warp] = most;
    __syncthreads();
    row.most = warp_most(shared.most[lane]);
    const Kept kept = choose(row, shared);

    // Each warp has columns in a row, so that sums over warps are in the order of indices.
    const size_t part = (a.cols + kThreads - 1) / kThreads * 32;
    const size_t first = warp * part < a.cols ? warp * part : a.cols;
    const size_t end = first + part < a.cols ? first + part : a.cols;
    Sum above = {};  // Here the number is that of elements with the key of the ties.
    uint32_t tie = 0;
    for (size_t c = first + lane; c < end; c += 32) {
      const float x = row.at(c);
      const uint32_t key = row.key(x);
      if (key > kept.key) above.weight += row.weight(x);
      if (key == kept.key) {
        ++above.count;
        tie = static_cast<uint32_t>(row.weight(x));
      }
    }
    above = {warp_sum(above.count), warp_sum(above.weight)};
    tie = __reduce_max_sync(kFullWarp, tie);
    __syncthreads();
    if (lane == 0) shared.sums[warp] = above, shared.ties[warp] = tie;
    __syncthreads();
    // What comes before the warp: elements with the key of the ties, and kept weights; and all.
    uint64_t ties_before = 0, weights_before = 0, ties = 0, weights = 0;
    for (unsigned w = 0; w < kWarps; ++w) {
      if (w == warp) ties_before = ties, weights_before = weights;
      const uint64_t left = kept.ties - ties, here = shared.sums[w].count;
      const uint64_t taken = here < left ? here : left;
      ties += taken;
      weights += shared.sums[w].weight + taken * shared.ties[w];
    }
    const auto *state = a.rng_state;
    const Words words = philox(state[0], state[1], index);
    const uint64_t random = words.w[0] | static_cast<uint64_t>(words.w[1]) << 32;
    const uint64_t drawn = __umul64hi(random, weights);
    // The warp in whose columns the sum of weights passes the number that was drawn.
    uint64_t so_far = weights_before;
    for (size_t base = first; base < end && so_far <= drawn; base += 32) {
      const size_t c = base + lane;
      const float x = c < end ? row.at(c) : -INFINITY;
      const uint32_t key = row.key(x);
      const bool equal = c < end && key == kept.key;
      const unsigned equals = __ballot_sync(kFullWarp, equal);
      const bool takes = equal && ties_before + __popc(equals & lanes_below()) < kept.ties;
      uint64_t weight = c < end && (key > kept.key || takes) ? row.weight(x) : 0;
      ties_before += __popc(equals);
      // Inclusive prefix sum of the lanes.
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const uint64_t other = __shfl_up_sync(kFullWarp, weight, step);
        if (lane >= static_cast<unsigned>(step)) weight += other;
      }
      const unsigned past = __ballot_sync(kFullWarp, so_far + weight > drawn);
      if (past != 0 && lane == 0) a.tokens[index] = static_cast<int32_t>(base + __ffs(past) - 1);
      if (past != 0) break;
      so_far += __shfl_sync(kFullWarp, weight, 31);
    }
  }
}

template <class T, int N>
NVTEXOutcome run(const NVTEXSampleTokensArgs &a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(a.rows < kMaxBlocks ? a.rows : kMaxBlocks));
  return launch(sample_kernel<T, N>, grid, kThreads, stream, a);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_sample_tokens(const NVTEXSampleTokensArgs *args,
                                                cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int N = 16 / T::kBytes;
    const bool vectors = args->cols % N == 0 && aligned(args->logits, 16);
    return vectors ? run<T, N>(*args, stream) : run<T, 1>(*args, stream);
  });
}
