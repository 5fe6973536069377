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
  const int64_t expert = a.chosen_dtype == kNVTEInt64 ? static_cast<const int64_t *>(a.chosen)[i]
                                                      : static_cast<const int *>(a.chosen)[i];
  return static_cast<size_t>(expert);
}

__device__ __forceinline__ void put(void *array, NVTEDType dtype, size_t i, int64_t value) {
  if (array == nullptr) return;
  if (dtype == kNVTEInt64) {
    static_cast<int64_t *>(array)[i] = value;
  } else {
    static_cast<int *>(array)[i] = static_cast<int>(value);
  }
}

// A block goes over all choices for one expert, so that their order never depends on the schedule:
// rows[i] becomes the number of choices of the expert before, starts[expert] the number of all.
__global__ void __launch_bounds__(kThreads)
    places_kernel(const __grid_constant__ NVTEXExpertRowsArgs a) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage shared;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t choices = a.tokens * a.topk;
  for (size_t expert = blockIdx.x; expert < a.experts; expert += gridDim.x) {
    int before = 0;
    for (size_t first = 0; first < choices; first += kThreads) {
      const size_t i = first + threadIdx.x;
      const bool mine = i < choices && expert_of(a, i) == expert;
      int place, all;
      Scan(shared).ExclusiveSum(static_cast<int>(mine), place, all);
      if (mine) a.rows[i] = before + place;
      before += all;
      __syncthreads();
    }
    if (threadIdx.x == 0) a.starts[expert] = before;
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
  int64_t before = 0;
  for (size_t first = 0; first < a.experts; first += kThreads) {
    const size_t expert = first + threadIdx.x;
    const bool there = expert < a.experts;
    const int64_t length = there ? a.starts[expert] : 0;
    const int64_t padded = (length + alignment - 1) / alignment * alignment;
    int64_t start, all;
    Scan(shared).ExclusiveSum(padded, start, all);
    start += before;
    if (there) {
      a.starts[expert] = start;
      const int64_t room = start < capacity ? capacity - start : 0;
      put(a.counts, a.counts_dtype, expert, padded < room ? padded : room);
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
      if (expert < a.experts) {
        const int64_t place = a.starts[expert] + a.rows[i];
        if (place < static_cast<int64_t>(a.capacity)) row = static_cast<int>(place);
      }
      a.rows[i] = row;
    }
    a.map[k * a.tokens + t] = row;
  }
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
