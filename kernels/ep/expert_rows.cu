// The rows of tokens among those of their experts: each choice's place among those of its expert,
// then where each expert begins, then both together.

#include <cub/block/block_scan.cuh>

#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "common/vec.cuh"
#include "ep/choice.cuh"

namespace nvte {
namespace {

constexpr int kThreads = 512;

constexpr int kPlaceThreads = 1024;

// The numbers of `chosen` that mean an expert.
struct Range {
  int64_t low;
  uint64_t size;

  __device__ Range(const NVTEXExpertRowsArgs &a, size_t expert) : size(a.group == 0 ? 1 : a.group) {
    low = static_cast<int64_t>(a.first + expert * size);
  }

  __device__ bool has(int64_t chosen) const {
    return static_cast<uint64_t>(chosen) - static_cast<uint64_t>(low) < size;
  }
};

// Expert of choice i; none: not below `experts`.
__device__ __forceinline__ size_t expert_of(const NVTEXExpertRowsArgs &a, size_t i) {
  const int64_t chosen = chosen_at(a, i), first = static_cast<int64_t>(a.first);
  if (chosen < first) return a.experts;
  return static_cast<size_t>(chosen - first) / (a.group == 0 ? 1 : a.group);
}

// With groups only the first choice of a token has a row of its group.
__device__ __forceinline__ bool repeats(const NVTEXExpertRowsArgs &a, size_t t, size_t k,
                                        size_t expert) {
  if (a.group == 0) return false;
  const Range range(a, expert);
  while (k-- > 0) {
    if (range.has(chosen_at(a, t * a.topk + k))) return true;
  }
  return false;
}

// A block goes over all choices for one expert, each warp over a part of them, so that their order
// never depends on the schedule: rows[i] becomes the number of choices of the expert before,
// starts[expert] the number of all. With groups it goes over the tokens, for the first choice of
// each that is of the group.
template <class Index, bool kGroups>
__global__ void __launch_bounds__(kPlaceThreads)
    places_kernel(const __grid_constant__ NVTEXExpertRowsArgs a) {
  constexpr unsigned kWarps = kPlaceThreads / 32;
  // Loads of a thread that are on their way together.
  constexpr unsigned kAhead = kGroups ? 2 : 8;
  __shared__ int of_warps[kWarps];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Index *chosen = static_cast<const Index *>(a.chosen);
  const unsigned topk = static_cast<unsigned>(a.topk);
  const unsigned units = static_cast<unsigned>(kGroups ? a.tokens : a.tokens * a.topk);
  const unsigned part = (units + kPlaceThreads - 1) / kPlaceThreads * 32;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned begin = warp * part, end = begin + part < units ? begin + part : units;
  for (size_t expert = blockIdx.x; expert < a.experts; expert += gridDim.x) {
    const Range range(a, expert);
    // The choice that has a row, or none: below 0.
    const auto find = [&](unsigned unit) -> int {
      if (unit >= end) return -1;
      const unsigned first = kGroups ? unit * topk : unit, behind = first + (kGroups ? topk : 1);
      for (unsigned i = first; i < behind; ++i) {
        if (range.has(chosen[i])) return static_cast<int>(i);
      }
      return -1;
    };
    int own = 0;
    for (unsigned first = begin; first < end; first += 32 * kAhead) {
      int found[kAhead];
#pragma unroll
      for (unsigned j = 0; j < kAhead; ++j) found[j] = find(first + 32 * j + lane);
#pragma unroll
      for (unsigned j = 0; j < kAhead; ++j) own += found[j] >= 0;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) own += __shfl_xor_sync(~0u, own, step);
    __syncthreads();
    if (lane == 0) of_warps[warp] = own;
    __syncthreads();
    int before = 0, all = 0;
    for (unsigned w = 0; w < kWarps; ++w) {
      if (w < warp) before += of_warps[w];
      all += of_warps[w];
    }
    for (unsigned first = begin; first < end; first += 32 * kAhead) {
      int found[kAhead];
#pragma unroll
      for (unsigned j = 0; j < kAhead; ++j) found[j] = find(first + 32 * j + lane);
#pragma unroll
      for (unsigned j = 0; j < kAhead; ++j) {
        const unsigned mask = __ballot_sync(~0u, found[j] >= 0);
        if (found[j] >= 0) a.rows[found[j]] = before + __popc(mask & ((1u << lane) - 1));
        before += __popc(mask);
      }
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
  const unsigned planes = static_cast<unsigned>(a.planes);
  for (size_t j = size_t{blockIdx.x} * kThreads + threadIdx.x; j < all; j += step) {
    // At most 2^31.
    const unsigned t = static_cast<unsigned>(j) / planes, k = static_cast<unsigned>(j) % planes;
    int row = -1;
    if (k < a.topk) {
      const size_t i = t * a.topk + k, expert = expert_of(a, i);
      if (expert < a.experts && !repeats(a, t, k, expert)) {
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
  const bool wide = args->chosen_dtype == kNVTEInt64;
  const auto places_of = [&](auto with, auto without) {
    const auto kernel = args->group == 0 ? without : with;
    return launch(kernel, grid_of(args->experts), kPlaceThreads, stream, *args);
  };
  const NVTEXOutcome places =
      wide ? places_of(places_kernel<int64_t, true>, places_kernel<int64_t, false>)
           : places_of(places_kernel<int, true>, places_kernel<int, false>);
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
