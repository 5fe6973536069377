// FP8 scales: amax of a tensor, scale from amax, delayed scaling over amax histories.

#include <cfloat>

#include "common/launch.cuh"
#include "common/reduce.cuh"
#include "nvte/backend/recipe.h"

namespace nvte {
namespace {

constexpr int kAmaxThreads = 512;
constexpr int kAmaxUnroll = 4;

// Zeroes the amax and lets the reduction start. Waiting first makes everything earlier in the
// stream complete, so that the reduction may read its input without waiting.
__global__ void amax_zero_kernel(float *amax, const float *noop) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (noop == nullptr || *noop != 1.0f) *amax = 0.0f;
}

template <class T, int N, int kUnroll>
__device__ __forceinline__ void amax_range(const void *in, size_t begin, size_t end,
                                           AbsMax<T> &amax) {
  constexpr size_t kStride = size_t{kAmaxThreads} * N;
  const size_t step = size_t{gridDim.x} * kStride * kUnroll;
  // From the end on: what was written last may be in L2 still, and what comes next begins where
  // this ends.
  const size_t block = gridDim.x - 1 - blockIdx.x;
  size_t i = begin + block * (kStride * kUnroll) + threadIdx.x * N;
  for (; i < end; i += step) {
    const size_t left = end - i;
    Vec<T, N> x[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      x[u] = load<T, N>(in, i + u * kStride, u * kStride < left);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) amax.add(x[u]);
  }
}

// [head, tail) is aligned and a multiple of the vector length. A single block sets the amax; blocks
// of a larger grid raise the amax that amax_zero_kernel has zeroed, and wait for it only then.
template <class T>
__global__ void __launch_bounds__(kAmaxThreads)
    amax_kernel(const void *in, size_t head, size_t tail, size_t numel, float *amax,
                const float *noop) {
  __shared__ BlockMax<kAmaxThreads> block;
  const bool single = gridDim.x == 1;
  if (single) griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  AbsMax<T> partial;
  amax_range<T, 16 / T::kBytes, kAmaxUnroll>(in, head, tail, partial);
  amax_range<T, 1, kAmaxUnroll>(in, 0, head, partial);
  amax_range<T, 1, kAmaxUnroll>(in, tail, numel, partial);
  block.put(partial.bits());
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const int bits = block.get();
  if (!single) griddepcontrol_wait();
  if (threadIdx.x != 0 || (noop != nullptr && *noop == 1.0f)) return;
  if (single) {
    *amax = __int_as_float(bits);
  } else {
    atomicMax(reinterpret_cast<int *>(amax), bits);
  }
}

template <class T>
NVTEXOutcome amax(const NVTEXAmaxArgs &a, cudaStream_t stream) {
  constexpr size_t kVec = 16 / T::kBytes;
  constexpr size_t kBlock = kAmaxThreads * kAmaxUnroll * kVec;
  const size_t misaligned = reinterpret_cast<uintptr_t>(a.input) % 16 / T::kBytes;
  size_t head = misaligned == 0 ? 0 : kVec - misaligned;
  if (head > a.numel) head = a.numel;
  const size_t tail = head + (a.numel - head) / kVec * kVec;
  size_t blocks = ceil_div(a.numel, kBlock);
  // Two passes of one block cost less than a second kernel.
  if (blocks <= 2) blocks = 1;
  if (blocks > kMaxBlocks) blocks = kMaxBlocks;
  if (blocks > 1) {
    const NVTEXOutcome zeroed = launch(amax_zero_kernel, dim3(1), 1, stream, a.amax, a.noop);
    if (zeroed.status != NVTEX_BACKEND_OK) return zeroed;
  }
  return launch_grid(true, amax_kernel<T>, dim3(static_cast<unsigned>(blocks)), kAmaxThreads,
                     stream, a.input, head, tail, a.numel, a.amax, a.noop);
}

__global__ void scale_from_amax_kernel(const __grid_constant__ NVTEXScaleFromAmaxArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (a.noop != nullptr && *a.noop == 1.0f) return;
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= a.length) return;
  float amax = a.amax[i];
  if (amax < a.epsilon) amax = a.epsilon;
  float scale = 1.0f;
  if (isfinite(amax) && amax != 0.0f) {
    scale = __fdiv_rn(a.fp8_max, amax);
    if (isinf(scale)) scale = FLT_MAX;
    if (a.pow2) scale = __uint_as_float(__float_as_uint(scale) & 0xff800000);
  }
  a.scale[i] = scale;
  if (a.scale_inv != nullptr) a.scale_inv[i] = __frcp_rn(scale);
  if (a.colwise_scale_inv != nullptr) a.colwise_scale_inv[i] = __frcp_rn(scale);
}

__global__ void scale_reciprocal_kernel(const float *scale, float *scale_inv) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  *scale_inv = scale != nullptr ? __frcp_rn(*scale) : 1.0f;
}

// Scales to 16-byte slots. It ends before the next kernel starts, which is not ours.
__global__ void align_scales_kernel(const float *a, const float *b, const float *d, float *slots) {
  griddepcontrol_wait();
  const float *scale = threadIdx.x == 0 ? a : threadIdx.x == 1 ? b : d;
  if (scale != nullptr) slots[4 * threadIdx.x] = *scale;
}

constexpr int kHistoryThreads = 256;
constexpr int kHistoryUnroll = 8;

struct History {
  NVTEXDelayedScalingEntry entry;
  const float *reduced;  // num_scales values, or null
};

struct HistoryRule {
  size_t length;
  float scaled_max;
  bool use_max;
  bool keep_if_unused;
};

template <int kCapacity>
struct Histories {
  History of[kCapacity];
};

// blockIdx.y: tensor. A block takes up to 32 neighbouring columns at a time, so that its reads are
// contiguous for any number of scales, and the rest of its threads divide the rows.
template <int kCapacity>
__global__ void __launch_bounds__(kHistoryThreads)
    delayed_scaling_kernel(const __grid_constant__ Histories<kCapacity> histories,
                           const __grid_constant__ HistoryRule rule) {
  __shared__ float warps[kHistoryThreads / 32][32];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const History &history = histories.of[blockIdx.y];
  const NVTEXDelayedScalingEntry &entry = history.entry;
  const size_t scales = entry.num_scales, length = rule.length;
  unsigned across = 1;
  while (across < 32 && across < scales) across *= 2;
  const unsigned down = kHistoryThreads / across;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const size_t own_row = threadIdx.x / across;

  for (size_t col0 = size_t{blockIdx.x} * across; col0 < scales;
       col0 += size_t{gridDim.x} * across) {
    const size_t col = col0 + threadIdx.x % across;
    const bool inside = col < scales;
    const float reduced = inside && history.reduced != nullptr ? history.reduced[col] : 0.0f;
    const float newest = inside ? entry.history[col] : 0.0f;
    const float last = reduced != 0.0f ? reduced : newest;
    const bool keep = rule.keep_if_unused && last == 0.0f;
    float amax = 0.0f;
    // In place, a chunk overwrites no row that a later chunk reads, and `newest` is read before the
    // first barrier.
    for (size_t row0 = 0; row0 < length; row0 += size_t{down} * kHistoryUnroll) {
      float x[kHistoryUnroll];
#pragma unroll
      for (int k = 0; k < kHistoryUnroll; ++k) {
        const size_t row = row0 + k * down + own_row;
        const size_t from = keep ? row : row + 1;
        x[k] = last;
        if (inside && row < length && from < length) x[k] = entry.history[from * scales + col];
        if (inside && row < length && !keep) amax = fmaxf(amax, x[k]);
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kHistoryUnroll; ++k) {
        const size_t row = row0 + k * down + own_row;
        if (inside && row < length && !(keep && entry.new_history == entry.history)) {
          entry.new_history[row * scales + col] = row == 0 && !keep ? 0.0f : x[k];
        }
      }
    }
    for (unsigned offset = 16; offset >= across; offset /= 2) {
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, offset));
    }
    warps[warp][lane] = amax;
    __syncthreads();
    if (threadIdx.x < across && inside) {
#pragma unroll
      for (int w = 0; w < kHistoryThreads / 32; ++w) amax = fmaxf(amax, warps[w][lane]);
      if (!rule.use_max) amax = last;
      float scale = entry.scale[col];
      if (isfinite(amax) && amax > 0.0f) scale = __fdiv_rn(rule.scaled_max, amax);
      if (isinf(scale)) scale = FLT_MAX;
      entry.new_scale[col] = scale;
    }
    __syncthreads();
  }
}

template <int kCapacity>
NVTEXOutcome delayed_scaling(const NVTEXDelayedScalingArgs &a, size_t begin, size_t end,
                             size_t reduced_at, cudaStream_t stream) {
  Histories<kCapacity> histories = {};
  size_t most = 0;
  for (size_t i = begin; i < end; ++i) {
    const NVTEXDelayedScalingEntry &entry = a.entries[i];
    histories.of[i - begin].entry = entry;
    histories.of[i - begin].reduced =
        a.reduced_amax == nullptr ? nullptr : a.reduced_amax + reduced_at;
    reduced_at += entry.num_scales;
    const size_t groups = entry.num_scales < 32 ? 1 : ceil_div(entry.num_scales, 32);
    if (groups > most) most = groups;
  }
  // A few blocks per multiprocessor; tensors with more columns loop.
  const size_t limit = ceil_div(1024, end - begin);
  const dim3 grid(static_cast<unsigned>(most < limit ? most : limit),
                  static_cast<unsigned>(end - begin));
  const HistoryRule rule = {a.length, a.scaled_max, a.algo == NVTEX_AMAX_ALGO_MAX,
                            a.keep_if_unused};
  return launch(delayed_scaling_kernel<kCapacity>, grid, kHistoryThreads, stream, histories, rule);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_amax(const NVTEXAmaxArgs *args, cudaStream_t stream) noexcept {
  using namespace nvte;
  if (args->numel == 0) return launch(amax_zero_kernel, dim3(1), 1, stream, args->amax, args->noop);
  return dispatch<F32, F16, BF16>(args->dtype,
                                  [&](auto in) { return amax<decltype(in)>(*args, stream); });
}

extern "C" NVTEXOutcome nvte_cuda_scale_from_amax(const NVTEXScaleFromAmaxArgs *args,
                                                  cudaStream_t stream) noexcept {
  using namespace nvte;
  constexpr size_t kThreads = 128;
  const unsigned threads = args->length == 1 ? 1 : kThreads;
  const size_t blocks = ceil_div(args->length, threads);
  if (blocks > kMaxBlocks) return unimplemented("too many scales");
  return launch(scale_from_amax_kernel, dim3(static_cast<unsigned>(blocks)), threads, stream,
                *args);
}

extern "C" NVTEXOutcome nvte_cuda_scale_reciprocal(const float *scale, float *scale_inv,
                                                   cudaStream_t stream) noexcept {
  return nvte::launch(nvte::scale_reciprocal_kernel, dim3(1), 1, stream, scale, scale_inv);
}

extern "C" NVTEXOutcome nvte_cuda_delayed_scaling(const NVTEXDelayedScalingArgs *args,
                                                  cudaStream_t stream) noexcept {
  using namespace nvte;
  // Kernel parameters hold 4 KB at the usual launch cost, 32 KB at a higher one.
  constexpr size_t kFew = 80, kMany = 640;
  size_t reduced_at = 0;
  for (size_t begin = 0; begin < args->num_entries;) {
    const size_t left = args->num_entries - begin;
    const size_t end = begin + (left < kMany ? left : kMany);
    const NVTEXOutcome launched =
        left <= kFew ? delayed_scaling<kFew>(*args, begin, end, reduced_at, stream)
                     : delayed_scaling<kMany>(*args, begin, end, reduced_at, stream);
    if (launched.status != NVTEX_BACKEND_OK) return launched;
    for (; begin < end; ++begin) reduced_at += args->entries[begin].num_scales;
  }
  return ok();
}

// Copies up to three scales (null: none) to the first float of three 16-byte slots, for a library
// that wants them aligned.
extern "C" NVTEXOutcome nvte_cuda_align_scales(const float *a, const float *b, const float *d,
                                               float *slots, cudaStream_t stream) noexcept {
  return nvte::launch(nvte::align_scales_kernel, dim3(1), 3, stream, a, b, d, slots);
}
