// The rows of tokens among those of their experts: each choice's place among those of its expert,
// then where each expert begins, then both together.

#include <cub/block/block_scan.cuh>

#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "nvte/backend/ep.h"

namespace nvte {
namespace {

constexpr int kThreads = 512;

// Expert of choice i; none: not below `experts`.
__device__ __forceinline__ size_t expert_of(const NVTEXExpertRowsArgs &a, size_t i) {
  const int64_t chosen = a.chosen_dtype == kNVTEInt64 ? static_cast<const int64_t *>(a.chosen)[i]
                                                      : static_cast<const int *>(a.chosen)[i];
  // A number below the first one becomes a very large one.
  const size_t expert = static_cast<size_t>(chosen) - a.first;
  if (a.group == 0) return expert;
  return chosen < 0 || expert > static_cast<size_t>(chosen) ? a.experts : expert / a.group;
}

// With groups only the first choice of a token has a row of its group.
__device__ __forceinline__ bool repeats(const NVTEXExpertRowsArgs &a, size_t i, size_t expert) {
  if (a.group == 0) return false;
  const size_t first = i / a.topk * a.topk;
  while (i-- > first) {
    if (expert_of(a, i) == expert) return true;
  }
  return false;
}

__device__ __forceinline__ void put(void *array, NVTEDType dtype, size_t i, int64_t value) {
  if (array == nullptr) return;
  if (dtype == kNVTEInt64) {
    static_cast<int64_t *>(array)[i] = value;
  } else {
    static_cast<int *>(array)[i] = static_cast<int>(value);
  }
}

// A block goes over all choices for one expert, each warp over a part of them, so that their order
// never depends on the schedule: rows[i] becomes the number of choices of the expert before,
// starts[expert] the number of all.
__global__ void __launch_bounds__(kThreads)
    places_kernel(const __grid_constant__ NVTEXExpertRowsArgs a) {
  constexpr int kWarps = kThreads / 32;
  __shared__ int of_warps[kWarps];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t choices = a.tokens * a.topk;
  const size_t part = (choices + kThreads - 1) / kThreads * 32;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const size_t begin = warp * part, end = begin + part < choices ? begin + part : choices;
  for (size_t expert = blockIdx.x; expert < a.experts; expert += gridDim.x) {
    const auto chosen_by = [&](size_t i) {
      return i < end && expert_of(a, i) == expert && !repeats(a, i, expert);
    };
    int own = 0;
#pragma unroll 4
    for (size_t first = begin; first < end; first += 32) own += chosen_by(first + lane);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) own += __shfl_xor_sync(~0u, own, step);
    __syncthreads();
    if (lane == 0) of_warps[warp] = own;
    __syncthreads();
    int before = 0, all = 0;
#pragma unroll
    for (unsigned w = 0; w < kWarps; ++w) {
      if (w < warp) before += of_warps[w];
      all += of_warps[w];
    }
#pragma unroll 4
    for (size_t first = begin; first < end; first += 32) {
      const bool mine = chosen_by(first + lane);
      const unsigned mask = __ballot_sync(~0u, mine);
      if (mine) a.rows[first + lane] = before + __popc(mask & ((1u << lane) - 1));
      before += __popc(mask);
    }
    if (threadIdx.x == 0) a.starts[expert] = all;
  }
}

// One block: the numbers of choices of the experts become the rows where they begin.
__global__ void __launch_bounds__(kThreads)
    starts_kernel(const __grid_constant__ NVTEXExpertRowsArgs a) {
  using Scan = cub::BlockScan<int64_t, kThreads>;
  __shared__ typename Scan::TempStorage shared;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int64_t alignment = static_cast<int64_t>(a.alignment);
  const int64_t capacity = static_cast<int64_t>(a.capacity);
  const int64_t limit = static_cast<int64_t>(a.limit);
  int64_t before = 0;
  for (size_t first = 0; first < a.experts; first += kThreads) {
    const size_t expert = first + threadIdx.x;
    const bool there = expert < a.experts;
    const int64_t length = there ? a.starts[expert] : 0;
    int64_t padded = limit > 0 && length > limit ? limit : length;
    padded = (padded + alignment - 1) / alignment * alignment;
    if (a.fixed) padded = there ? limit : 0;
    int64_t start, all;
    Scan(shared).ExclusiveSum(padded, start, all);
    start += before;
    if (there) {
      a.starts[expert] = start;
      const int64_t room = start < capacity ? capacity - start : 0;
      put(a.counts, a.counts_dtype, expert, padded < room ? padded : room);
      put(a.lengths, kNVTEInt64, expert, length);
    }
    before += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    put(a.total, a.counts_dtype, 0, before);
    a.sizes[0] = static_cast<int64_t>(a.tokens);
    a.sizes[1] = static_cast<int64_t>(a.topk);
  }
}

__global__ void __launch_bounds__(kThreads)
    rows_kernel(const __grid_constant__ NVTEXExpertRowsArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t all = a.planes * a.tokens, step = size_t{gridDim.x} * kThreads;
  for (size_t j = size_t{blockIdx.x} * kThreads + threadIdx.x; j < all; j += step) {
    const size_t t = j / a.planes, k = j % a.planes;
    int row = -1;
    if (k < a.topk) {
      const size_t i = t * a.topk + k, expert = expert_of(a, i);
      if (expert < a.experts && !repeats(a, i, expert)) {
        const int64_t before = a.rows[i], place = a.starts[expert] + before;
        const bool within = a.limit == 0 || before < static_cast<int64_t>(a.limit);
        if (within && place < static_cast<int64_t>(a.capacity)) row = static_cast<int>(place);
      }
      a.rows[i] = row;
    }
    a.map[k * a.tokens + t] = row;
  }
}

// A block takes the gap behind an expert, all together the one behind the last.
template <class T>
__global__ void __launch_bounds__(kThreads)
    zero_gaps_kernel(const __grid_constant__ NVTEXZeroGapsArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t vectors = a.width / sizeof(T), last = a.experts - 1;
  T *output = static_cast<T *>(a.output);
  const auto zero = [&](size_t expert, size_t block, size_t blocks) {
    size_t rows = static_cast<size_t>(a.lengths[expert]);
    if (a.limit > 0 && rows > a.limit) rows = a.limit;
    const size_t first = (static_cast<size_t>(a.starts[expert]) + rows) * vectors;
    size_t end = expert == last ? a.rows : static_cast<size_t>(a.starts[expert + 1]);
    end = (end < a.rows ? end : a.rows) * vectors;
    for (size_t i = first + block * kThreads + threadIdx.x; i < end; i += blocks * kThreads) {
      output[i] = T{};
    }
  };
  for (size_t expert = blockIdx.x; expert < last; expert += gridDim.x) zero(expert, 0, 1);
  zero(last, blockIdx.x, gridDim.x);
}

dim3 grid_of(size_t blocks) {
  return dim3(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_expert_rows(const NVTEXExpertRowsArgs *args,
                                              cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXOutcome places =
      launch(places_kernel, grid_of(args->experts), kThreads, stream, *args);
  if (places.status != NVTEX_BACKEND_OK) return places;
  const NVTEXOutcome starts = launch(starts_kernel, dim3(1), kThreads, stream, *args);
  if (starts.status != NVTEX_BACKEND_OK || args->tokens == 0) return starts;
  const dim3 grid = grid_of(ceil_div(args->planes * args->tokens, kThreads));
  return launch(rows_kernel, grid, kThreads, stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_zero_gaps(const NVTEXZeroGapsArgs *args,
                                            cudaStream_t stream) noexcept {
  using namespace nvte;
  if (args->rows * args->width == 0) return ok();
  constexpr size_t kMost = 1024;
  const size_t blocks = ceil_div(args->rows * args->width, kThreads * sizeof(uint4));
  const dim3 grid = grid_of(blocks < kMost ? blocks : kMost);
  const bool vectors = args->width % sizeof(uint4) == 0 && aligned(args->output, sizeof(uint4));
  if (vectors) return launch(zero_gaps_kernel<uint4>, grid, kThreads, stream, *args);
  return launch(zero_gaps_kernel<uint16_t>, grid, kThreads, stream, *args);
}
