// Sums and maxima over ranks, in their order, of slots that lie side by side.

#include "common/launch.cuh"
#include "common/vec.cuh"
#include "nvte/backend/outcome.h"

namespace nvte {
namespace {

constexpr int kRankThreads = 256;

// The greater of two values; NaN if one of them is.
__device__ __forceinline__ float greater(float a, float b) { return a >= b || isnan(a) ? a : b; }

// Each thread reduces the N elements of 16 bytes. The slots are aligned, `to` need not be.
template <class T, bool kMax>
__global__ void __launch_bounds__(kRankThreads)
    rank_sum_kernel(const char *slots, size_t pitch, size_t ranks, void *to, size_t count) {
  constexpr int N = 16 / T::kBytes;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t first = (static_cast<size_t>(blockIdx.x) * kRankThreads + threadIdx.x) * N;
  if (first >= count) return;
  const int some = count - first < N ? static_cast<int>(count - first) : N;
  const bool whole = some == N;
  float sum[N];
  for (size_t rank = 0; rank < ranks; ++rank) {
    const char *slot = slots + rank * pitch;
    float x[N];
    to_float(whole ? load<T, N>(slot, first, true) : load_some<T, N>(slot, first, some), x);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum[i] = rank == 0 ? x[i] : kMax ? greater(sum[i], x[i]) : sum[i] + x[i];
    }
  }
  const Vec<T, N> result = from_float<T, N>(sum);
  if (whole && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    store(to, first, result);
  } else {
    store_some(to, first, some, result);
  }
}

template <class T>
NVTEXOutcome rank_sum(const void *slots, size_t pitch, size_t ranks, void *to, size_t count,
                      bool max, cudaStream_t stream) {
  const size_t blocks = ceil_div(count, static_cast<size_t>(kRankThreads) * (16 / T::kBytes));
  if (blocks == 0) return ok();
  if (blocks > 0x7fffffff) return unimplemented("rank_sum: 2^40 or more elements");
  const dim3 grid(static_cast<unsigned>(blocks));
  const char *base = static_cast<const char *>(slots);
  return launch(max ? rank_sum_kernel<T, true> : rank_sum_kernel<T, false>, grid, kRankThreads,
                stream, base, pitch, ranks, to, count);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_rank_sum(const void *slots, size_t pitch, size_t ranks, void *to,
                                           size_t count, NVTEDType dtype, bool max,
                                           cudaStream_t stream) noexcept {
  using namespace nvte;
  switch (dtype) {
    case kNVTEFloat32:
      return rank_sum<F32>(slots, pitch, ranks, to, count, max, stream);
    case kNVTEFloat16:
      return rank_sum<F16>(slots, pitch, ranks, to, count, max, stream);
    case kNVTEBFloat16:
      return rank_sum<BF16>(slots, pitch, ranks, to, count, max, stream);
    default:
      return unimplemented("rank_sum: floats of 16 or 32 bits");
  }
}
