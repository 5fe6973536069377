// Amax of the members of a grouped tensor.

#include "common/group.cuh"
#include "common/launch.cuh"
#include "common/reduce.cuh"
#include "nvte/backend/recipe.h"

namespace nvte {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;

// The members of a group of matrices in one buffer.
struct Members {
  NVTEXGroup group;
  size_t rows, cols;  // Rows and columns of the group.
  size_t each;        // Elements of a member if all are of one shape.

  __device__ __forceinline__ size_t begin(size_t member) const {
    const size_t at =
        group.offsets != nullptr ? static_cast<size_t>(group.offsets[member]) : member * each;
    return at < group.elements ? at : group.elements;
  }
  __device__ __forceinline__ size_t end(size_t member) const {
    const MemberShape shape = member_shape(group, rows, cols, member);
    const size_t first = begin(member), left = group.elements - first,
                 own = shape.rows * shape.cols;
    return first + (own < left ? own : left);
  }

  // The last member that begins at or before an element, 0 if none does. A warp tries 32 at a time.
  __device__ __forceinline__ size_t find(size_t at) const {
    size_t low = 0;
    for (size_t count = group.num_tensors; count > 1;) {
      const size_t step = (count + 31) / 32, tried = threadIdx.x % 32 * step;
      const bool before = tried < count && begin(low + tried) <= at;
      const unsigned found = __popc(__ballot_sync(0xffffffffu, before));
      const size_t skipped = found == 0 ? 0 : (found - 1) * step;
      low += skipped;
      count = count - skipped < step ? count - skipped : step;
    }
    return low;
  }
};

// Zeroes the amax values and lets the reduction start. Waiting first makes everything earlier in
// the stream complete, so that the reduction may read its input without waiting.
__global__ void __launch_bounds__(kThreads)
    group_amax_zero_kernel(float *amax, size_t length, const float *noop) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (noop != nullptr && *noop == 1.0f) return;
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < length) amax[i] = 0.0f;
}

__device__ __forceinline__ void raise(float *amax, int bits) {
  int *target = reinterpret_cast<int *>(amax);
  if (*static_cast<volatile int *>(target) < bits) atomicMax(target, bits);
}

// Element i of the input is element `skew + i` of `in`, which is aligned. The elements of a block
// usually are all of one member; its first warp looks for that while they are on their way.
// Otherwise the block reads them again for each member that has some.
template <class T>
__global__ void __launch_bounds__(kThreads, 3)
    group_amax_kernel(const void *in, size_t skew, size_t numel,
                      const __grid_constant__ Members members, float *amax, const float *noop) {
  constexpr int kVec = 16 / T::kBytes;
  constexpr size_t kStride = size_t{kThreads} * kVec, kBlock = kStride * kUnroll;
  __shared__ BlockMax<kThreads> block;
  __shared__ size_t found[3];
  griddepcontrol_launch_dependents();
  const size_t first = blockIdx.x * kBlock, last = first + kBlock, end = skew + numel;
  const size_t own = first + threadIdx.x * kVec;
  Vec<T, kVec> x[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const size_t i = own + u * kStride;
    x[u] = load<T, kVec>(in, i, i >= skew && i + kVec <= end);
  }
  if (threadIdx.x < 32) {
    const size_t member = members.find(first > skew ? first - skew : 0);
    found[0] = member;
    found[1] = skew + members.begin(member);
    found[2] = skew + members.end(member);
  }
  AbsMax<T> all;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) all.add(x[u]);
  block.put(all.bits());
  __syncthreads();
  size_t member = found[0], low = found[1], high = found[2];
  bool ready = low <= first && last <= high;
  while (low < last) {
    if (!ready) {
      AbsMax<T> partial;
#pragma unroll 1
      for (int u = 0; u < kUnroll; ++u) {
        const size_t i = own + u * kStride;
        const bool whole = low <= i && i + kVec <= high;
        partial.add(load<T, kVec>(in, i, whole));
        if (whole) continue;
#pragma unroll 1
        for (size_t j = low > i ? low : i; j < i + kVec && j < high; ++j) {
          partial.add(load<T, 1>(in, j, true));
        }
      }
      __syncthreads();
      block.put(partial.bits());
      __syncthreads();
    }
    if (threadIdx.x < 32) {
      const int bits = block.get();
      griddepcontrol_wait();
      if (threadIdx.x == 0 && (noop == nullptr || *noop != 1.0f)) raise(amax + member, bits);
    }
    if (high >= last || ++member >= members.group.num_tensors) return;
    low = skew + members.begin(member);
    high = skew + members.end(member);
    ready = false;
  }
}

template <class T>
NVTEXOutcome group_amax(const NVTEXGroupAmaxArgs &a, cudaStream_t stream) {
  constexpr size_t kBlock = size_t{kThreads} * kUnroll * 16 / T::kBytes;
  const size_t n = a.group.num_tensors, zero_blocks = ceil_div(n, kThreads);
  const size_t skew = reinterpret_cast<uintptr_t>(a.input) % 16 / T::kBytes;
  const size_t blocks = ceil_div(skew + a.numel, kBlock);
  if (zero_blocks > kMaxBlocks || blocks > kMaxBlocks) return unimplemented("too many elements");
  const NVTEXOutcome zeroed =
      launch(group_amax_zero_kernel, dim3(static_cast<unsigned>(zero_blocks)), kThreads, stream,
             a.amax, n, a.noop);
  if (zeroed.status != NVTEX_BACKEND_OK || a.numel == 0) return zeroed;
  const Members members = {a.group, a.rows, a.cols, a.rows / n * a.cols};
  const void *in = static_cast<const char *>(a.input) - skew * T::kBytes;
  return launch_grid(true, group_amax_kernel<T>, dim3(static_cast<unsigned>(blocks)), kThreads,
                     stream, in, skew, a.numel, members, a.amax, a.noop);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_group_amax(const NVTEXGroupAmaxArgs *args,
                                             cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(args->dtype,
                                  [&](auto in) { return group_amax<decltype(in)>(*args, stream); });
}
