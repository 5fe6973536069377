// Sums and maxima over ranks, in their order, of slots that lie side by side or anywhere.

#include "common/launch.cuh"
#include "common/vec.cuh"
#include "nvte/backend/outcome.h"
#include "nvtex/peer.cuh"
#include "nvtex/reduce.cuh"

// What is added to a sum that has been rounded: a bias to each row of so many columns, and a
// matrix; either may be null. Columns fill vectors of 16 bytes, at whose multiples all of them
// begin; 0: nothing is added. The same struct is in src/parallel/peer.rs.
struct PeerAdded {
  const void *bias;
  const void *matrix;
  size_t cols;
};

namespace nvte {
namespace {

constexpr int kRankThreads = 256;

// Where the slots of the ranks are.
struct Pitched {
  const char *slots;
  size_t pitch;

  __device__ const char *of(size_t rank) const { return slots + rank * pitch; }
};
struct Listed {
  const char *slots[PeerCall::kMostRanks];

  __device__ const char *of(size_t rank) const { return slots[rank]; }
};

// Each thread reduces the N elements of 16 bytes.
template <class T, bool kMax, class Slots>
__global__ void __launch_bounds__(kRankThreads)
    rank_sum_kernel(const __grid_constant__ Slots slots, size_t ranks, void *to, size_t count,
                    PeerAdded added) {
  constexpr int N = 16 / T::kBytes;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t first = (static_cast<size_t>(blockIdx.x) * kRankThreads + threadIdx.x) * N;
  if (first >= count) return;
  const int some = count - first < N ? static_cast<int>(count - first) : N;
  const bool whole = some == N;
  float sum[N];
  for (size_t rank = 0; rank < ranks; ++rank) {
    const char *slot = slots.of(rank);
    float x[N];
    const bool vector = whole && reinterpret_cast<uintptr_t>(slot) % 16 == 0;
    to_float(vector ? load<T, N>(slot, first, true) : load_some<T, N>(slot, first, some), x);
    add_rank<kMax>(sum, x, rank == 0);
  }
  Vec<T, N> result = from_float<T, N>(sum);
  if (added.cols > 0) {
    // The same roundings as of a sum that is written first.
    to_float(result, sum);
    float x[N];
    if (added.bias != nullptr) {
      to_float(load<T, N>(added.bias, first % added.cols, true), x);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = __fadd_rn(sum[i], x[i]);
    }
    if (added.matrix != nullptr) {
      to_float(load<T, N>(added.matrix, first, true), x);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = __fadd_rn(x[i], sum[i]);
    }
    result = from_float<T, N>(sum);
  }
  if (whole && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    store(to, first, result);
  } else {
    store_some(to, first, some, result);
  }
}

template <class T, class Slots>
NVTEXOutcome rank_sum(const Slots &slots, size_t ranks, void *to, size_t count, bool max,
                      const PeerAdded &added, cudaStream_t stream) {
  const size_t blocks = ceil_div(count, static_cast<size_t>(kRankThreads) * (16 / T::kBytes));
  if (blocks == 0) return ok();
  if (blocks > 0x7fffffff) return unimplemented("rank_sum: 2^40 or more elements");
  const dim3 grid(static_cast<unsigned>(blocks));
  const auto kernel = max ? rank_sum_kernel<T, true, Slots> : rank_sum_kernel<T, false, Slots>;
  return launch(kernel, grid, kRankThreads, stream, slots, ranks, to, count, added);
}

template <class Slots>
NVTEXOutcome rank_sum(const Slots &slots, size_t ranks, void *to, size_t count, NVTEDType dtype,
                      bool max, const PeerAdded &added, cudaStream_t stream) {
  switch (dtype) {
    case kNVTEFloat32:
      return rank_sum<F32>(slots, ranks, to, count, max, added, stream);
    case kNVTEFloat16:
      return rank_sum<F16>(slots, ranks, to, count, max, added, stream);
    case kNVTEBFloat16:
      return rank_sum<BF16>(slots, ranks, to, count, max, added, stream);
    default:
      return unimplemented("rank_sum: floats of 16 or 32 bits");
  }
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_rank_sum(const void *slots, size_t pitch, size_t ranks, void *to,
                                           size_t count, NVTEDType dtype, bool max,
                                           cudaStream_t stream) noexcept {
  const nvte::Pitched places = {static_cast<const char *>(slots), pitch};
  return nvte::rank_sum(places, ranks, to, count, dtype, max, PeerAdded{}, stream);
}

// As nvte_cuda_rank_sum, of slots at the places of a list, and what is added to the sum.
extern "C" NVTEXOutcome nvte_cuda_peer_sum(const char *const *slots, size_t ranks, void *to,
                                           size_t count, NVTEDType dtype, bool max,
                                           const PeerAdded *added, cudaStream_t stream) noexcept {
  nvte::Listed places = {};
  for (size_t rank = 0; rank < ranks; ++rank) places.slots[rank] = slots[rank];
  return nvte::rank_sum(places, ranks, to, count, dtype, max, *added, stream);
}
