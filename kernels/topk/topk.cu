// The greatest elements of rows. Histograms of 11 bits of the keys of a row, by many blocks, give
// the key of the last that is chosen in two or three passes; then chunks of the row count what they
// have of greater and of equal keys, and write theirs after those of the chunks before.

#include "common/launch.cuh"
#include "common/vec.cuh"
#include "common/warp.cuh"
#include "nvte/backend/topk.h"

namespace nvte {
namespace {

using Args = NVTEXTopkArgs;

constexpr int kThreads = 512;
constexpr size_t kChunk = NVTEX_TOPK_CHUNK;
constexpr int kDigits = 2048;

// Of a row, all 0 at first. `prefix` and `left`: of the last one's key the digits found so far, and
// which of the keys with this prefix it is.
struct Row {
  uint32_t histogram[kDigits];
  uint32_t prefix, above, done, unused;
};
static_assert(sizeof(Row) == NVTEX_TOPK_ROW_BYTES, "what the caller provides");

struct Counts {
  uint32_t greater, equal;
};

__device__ __forceinline__ Row &row_of(const Args &a, size_t row) {
  return static_cast<Row *>(a.workspace)[row];
}
__device__ __forceinline__ Counts &counts_of(const Args &a, size_t row, size_t chunk) {
  Counts *counts = reinterpret_cast<Counts *>(static_cast<Row *>(a.workspace) + a.rows);
  return counts[row * gridDim.x + chunk];
}

__device__ __forceinline__ size_t length_of(const Args &a, size_t row) {
  if (a.lengths == nullptr) return a.cols;
  const int length = a.lengths[row];
  return length < 0 ? 0 : static_cast<size_t>(length) < a.cols ? length : a.cols;
}

template <class T>
__device__ __forceinline__ uint32_t key_at(const Args &a, size_t row, size_t i) {
  uint32_t bits = *element<typename T::Bits>(a.keys, row * a.cols + i);
  if constexpr (T::kBytes == 2) bits <<= 16;
  return T::kBytes == 2 ? ordered_bits(bits) & 0xffff0000u : ordered_bits(bits);
}

// Sum over the threads before this one; `all`: over all.
__device__ uint32_t sum_before(uint32_t value, uint32_t &all) {
  __shared__ uint32_t warps[kThreads / 32];
  const unsigned lane = threadIdx.x % 32;
  uint32_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == 31) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  uint32_t before = 0;
  all = 0;
  for (unsigned w = 0; w < kThreads / 32; ++w) {
    if (w < threadIdx.x / 32) before += warps[w];
    all += warps[w];
  }
  return before + sum - value;
}

// Digit `key >> kShift` of the keys that share the digits above it.
template <class T, int kShift, int kBits>
__global__ void __launch_bounds__(kThreads) digit_kernel(const __grid_constant__ Args a) {
  __shared__ uint32_t histogram[1 << kBits];
  __shared__ bool last;
  constexpr int kEach = (1 << kBits) / kThreads;
  constexpr uint32_t kAbove = kShift + kBits == 32 ? 0 : ~0u << (kShift + kBits) % 32;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (size_t r = blockIdx.y; r < a.rows; r += gridDim.y) {
    const size_t length = length_of(a, r);
    if (length <= a.k) continue;
    Row &row = row_of(a, r);
    for (int i = threadIdx.x; i < 1 << kBits; i += kThreads) histogram[i] = 0;
    __syncthreads();
    const uint32_t prefix = row.prefix;
    const size_t begin = blockIdx.x * kChunk, end = min(begin + kChunk, length);
#pragma unroll 4
    for (size_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const uint32_t key = key_at<T>(a, r, i);
      if (((key ^ prefix) & kAbove) == 0) {
        atomicAdd(&histogram[key >> kShift & ((1 << kBits) - 1)], 1u);
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 1 << kBits; i += kThreads) {
      if (histogram[i] != 0) atomicAdd(&row.histogram[i], histogram[i]);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&row.done, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last) continue;
    __threadfence();
    // Thread 0 has the greatest digits.
    uint32_t counts[kEach], mine = 0, all;
    const int top = (1 << kBits) - 1 - static_cast<int>(threadIdx.x) * kEach;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      counts[i] = __ldcg(&row.histogram[top - i]);
      mine += counts[i];
      row.histogram[top - i] = 0;
    }
    const uint32_t above = row.above, wanted = static_cast<uint32_t>(a.k) - above;
    uint32_t before = sum_before(mine, all);
    if (before < wanted && wanted <= before + mine) {
      int i = 0;
      while (before + counts[i] < wanted) before += counts[i++];
      row.prefix = prefix | static_cast<uint32_t>(top - i) << kShift;
      row.above = above + before;
      row.done = 0;
    }
    __syncthreads();
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ Args a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (size_t r = blockIdx.y; r < a.rows; r += gridDim.y) {
    const size_t length = length_of(a, r);
    if (length <= a.k) continue;
    const uint32_t bound = row_of(a, r).prefix;
    const size_t begin = blockIdx.x * kChunk, end = min(begin + kChunk, length);
    uint32_t greater = 0, equal = 0;
#pragma unroll 4
    for (size_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const uint32_t key = key_at<T>(a, r, i);
      greater += key > bound;
      equal += key == bound;
    }
    Counts counts;
    sum_before(greater, counts.greater);
    sum_before(equal, counts.equal);
    if (threadIdx.x == 0) counts_of(a, r, blockIdx.x) = counts;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) write_kernel(const __grid_constant__ Args a) {
  using Bits = typename T::Bits;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (size_t r = blockIdx.y; r < a.rows; r += gridDim.y) {
    const size_t length = length_of(a, r), begin = blockIdx.x * kChunk;
    auto write = [&](size_t at, Bits key, size_t index) {
      *element<Bits>(a.top_keys, r * a.k + at) = key;
      a.top_indices[r * a.k + at] = static_cast<int>(index);
    };
    auto bits = [&](size_t i) { return *element<Bits>(a.keys, r * a.cols + i); };
    if (length <= a.k) {
      const size_t end = blockIdx.x + 1 == gridDim.x ? a.k : min(begin + kChunk, a.k);
      const float minus_one[2] = {-1.0f, -1.0f};
      const Bits none = static_cast<Bits>(
          T::from_float(reinterpret_cast<const float (&)[4 / T::kBytes]>(minus_one)));
      for (size_t i = begin + threadIdx.x; i < end; i += kThreads) {
        write(i, i < length ? bits(i) : none, i < length ? i : ~size_t{0});
      }
      continue;
    }
    const uint32_t bound = row_of(a, r).prefix;
    uint32_t greater = 0, equal = 0;
    for (size_t c = threadIdx.x; c < blockIdx.x; c += kThreads) {
      const Counts counts = counts_of(a, r, c);
      greater += counts.greater;
      equal += counts.equal;
    }
    sum_before(greater, greater);
    sum_before(equal, equal);
    const uint32_t ties = static_cast<uint32_t>(a.k) - row_of(a, r).above;
    const size_t end = min(begin + kChunk, length);
    for (size_t tile = begin; tile < end; tile += kThreads) {
      const size_t i = tile + threadIdx.x;
      const uint32_t key = i < end ? key_at<T>(a, r, i) : 0;
      const bool is_greater = i < end && key > bound, is_equal = i < end && key == bound;
      // Both sums are in one number: a tile has fewer than 2^16.
      uint32_t all;
      const uint32_t before = sum_before(is_greater | uint32_t{is_equal} << 16, all);
      const uint32_t ties_before = equal + (before >> 16);
      if (is_greater || (is_equal && ties_before < ties)) {
        write(greater + (before & 0xffff) + min(ties_before, ties), bits(i), i);
      }
      greater += all & 0xffff;
      equal += all >> 16;
    }
  }
}

template <class T>
NVTEXOutcome topk(const Args &a, cudaStream_t stream) {
  const size_t chunks = a.cols > kChunk ? ceil_div(a.cols, kChunk) : 1;
  const dim3 grid(static_cast<unsigned>(chunks),
                  static_cast<unsigned>(a.rows < 65535 ? a.rows : 65535));
  if (a.cols > a.k) {
    const cudaError_t error = cudaMemsetAsync(a.workspace, 0, a.rows * sizeof(Row), stream);
    if (error != cudaSuccess) return outcome(error);
    NVTEXOutcome launched = launch(digit_kernel<T, 21, 11>, grid, kThreads, stream, a);
    if (launched.status != NVTEX_BACKEND_OK) return launched;
    launched = launch(digit_kernel<T, 10, 11>, grid, kThreads, stream, a);
    if (launched.status != NVTEX_BACKEND_OK) return launched;
    if constexpr (T::kBytes == 4) {
      launched = launch(digit_kernel<T, 0, 10>, grid, kThreads, stream, a);
      if (launched.status != NVTEX_BACKEND_OK) return launched;
    }
    launched = launch(count_kernel<T>, grid, kThreads, stream, a);
    if (launched.status != NVTEX_BACKEND_OK) return launched;
  }
  return launch(write_kernel<T>, grid, kThreads, stream, a);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_topk(const NVTEXTopkArgs *args, cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(args->dtype,
                                  [&](auto t) { return topk<decltype(t)>(*args, stream); });
}
