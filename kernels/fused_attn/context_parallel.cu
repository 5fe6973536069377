// Context parallelism: the tokens of a rank, and corrections of outputs, gradients and logarithms
// by the results of a step.

#include "common/dtype.cuh"
#include "common/vec.cuh"
#include "sequences.cuh"

namespace nvte {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    grad_correction_kernel(const __grid_constant__ NVTEXGradCorrectionArgs a, int lanes) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Sequences cu = {a.cu, a.sequences};
  const size_t per_block = static_cast<size_t>(kThreads / lanes), end = cu.start(cu.count, 1);
  const size_t step_tokens = a.full ? a.tokens : a.tokens / 2;
  const size_t lane = threadIdx.x % static_cast<unsigned>(lanes);
  for (size_t row = blockIdx.x * per_block + threadIdx.x / static_cast<unsigned>(lanes);
       row < a.tokens * a.outer; row += gridDim.x * per_block) {
    const size_t outer = row / a.tokens, t = row % a.tokens;
    if (t >= end) continue;
    const size_t s = cu.of(t, 1), first = cu.start(s, 1), half = cu.length(s) / 2, r = t - first;
    const NVTEXHalfOp op = r < half ? a.first : a.second;
    if (op == NVTEX_HALF_NONE) continue;
    const size_t u = a.full ? t : first / 2 + (r < half ? r : r - half);
    if (op != NVTEX_HALF_ZERO && u >= step_tokens) continue;
    const size_t to = row * a.width, from = (outer * step_tokens + u) * a.width;
    for (size_t i = lane; i < a.width; i += static_cast<size_t>(lanes)) {
      Vec<T, 1> v = {};
      if (op != NVTEX_HALF_ZERO) v = load<T, 1>(a.step, from + i, true);
      if constexpr (T::kBytes > 1) {
        if (op == NVTEX_HALF_ADD) {
          float x[1], y[1];
          to_float(load<T, 1>(a.grad, to + i, true), x);
          to_float(v, y);
          x[0] = __fadd_rn(x[0], y[0]);
          v = from_float<T>(x);
        }
      }
      store(a.grad, to + i, v);
    }
  }
}

struct HalfPlace {
  size_t lse, step;
  bool inside;  // Whether both positions exist.
};

// Positions in a row of each, and the row.
__device__ __forceinline__ HalfPlace place_of(size_t row, size_t lse_len, size_t step_len,
                                              size_t in_lse, size_t in_step) {
  return {row * lse_len + in_lse, row * step_len + in_step, in_lse < lse_len && in_step < step_len};
}

// The place of token t of the halves, for a head.
__device__ __forceinline__ HalfPlace half_place(const Sequences &cu, bool packed, size_t heads,
                                                size_t lse_len, size_t step_len, size_t head,
                                                size_t t) {
  const size_t s = cu.of(t, 2), first = cu.start(s, 2), end = cu.start(s + 1, 2);
  if (packed) return place_of(head, lse_len, step_len, t + end, t);
  const size_t r = t - first;
  return place_of(s * heads + head, lse_len, step_len, r + end - first, r);
}

__device__ __forceinline__ float log_sum(float a, float b) {
  const float most = fmaxf(a, b), least = fminf(a, b);
  return most == -__int_as_float(0x7f800000) ? most : most + log1pf(expf(least - most));
}

__global__ void __launch_bounds__(kThreads)
    half_lse_kernel(const __grid_constant__ NVTEXHalfLseArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Sequences cu = {a.cu, a.sequences};
  // There are no more tokens than the step has room for, whatever the sequences say.
  const size_t tokens = min(cu.start(cu.count, 2), (a.packed ? 1 : a.sequences) * a.step_len);
  const size_t all = tokens * a.heads;
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += stride) {
    const HalfPlace at =
        half_place(cu, a.packed, a.heads, a.lse_len, a.step_len, i / tokens, i % tokens);
    if (!at.inside) continue;
    if (a.correct) {
      a.lse[at.lse] = log_sum(a.lse[at.lse], a.step[at.step]);
    } else {
      a.step[at.step] = a.lse[at.lse];
    }
  }
}

// x exp(from - to); 0 for 0.
__device__ __forceinline__ float rescaled(float x, float factor) {
  return x == 0.0f ? 0.0f : __fmul_rn(x, factor);
}
__device__ __forceinline__ float factor_of(float from, float to) {
  return from == -__int_as_float(0x7f800000) ? 0.0f : expf(from - to);
}

// A row is one head of one token.
template <class T>
__global__ void __launch_bounds__(kThreads)
    out_correction_kernel(const __grid_constant__ NVTEXOutCorrectionArgs a, int lanes) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const unsigned unit = a.second_half ? 2 : 1;
  const Sequences cu = {a.cu, a.sequences};
  const size_t end = cu.start(cu.count, unit), per_block = static_cast<size_t>(kThreads / lanes);
  const size_t lane = threadIdx.x % static_cast<unsigned>(lanes);
  for (size_t row = blockIdx.x * per_block + threadIdx.x / static_cast<unsigned>(lanes);
       row < a.tokens * a.heads; row += gridDim.x * per_block) {
    const size_t t = row / a.heads, head = row % a.heads;
    if (t >= end) continue;
    const size_t s = cu.of(t, unit);
    const size_t token = a.second_half ? t + cu.start(s + 1, 2) : t;
    HalfPlace at;
    if (a.second_half) {
      at = half_place(cu, a.packed, a.heads, a.lse_len, a.step_len, head, t);
    } else if (a.packed) {
      at = place_of(head, a.lse_len, a.step_len, t, t);
    } else {
      const size_t r = t - cu.start(s, 1);
      at = place_of(s * a.heads + head, a.lse_len, a.step_len, r, r);
    }
    if (!at.inside || token >= a.out_tokens) continue;
    const float lse = a.lse[at.lse];
    const float old_factor = factor_of(a.old_lse[at.lse], lse);
    const float step_factor = factor_of(a.step_lse[at.step], lse);
    const size_t to = (token * a.heads + head) * a.width, from = row * a.width;
    for (size_t i = lane; i < a.width; i += static_cast<size_t>(lanes)) {
      float x[1], y[1];
      to_float(load<T, 1>(a.out, to + i, true), x);
      to_float(load<T, 1>(a.step, from + i, true), y);
      x[0] = __fadd_rn(rescaled(x[0], old_factor), rescaled(y[0], step_factor));
      store(a.out, to + i, from_float<T>(x));
    }
  }
}

// A warp takes a row: one head of one token.
template <class T>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const __grid_constant__ NVTEXMergeAttentionArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t lane = threadIdx.x % 32, step = size_t{gridDim.x} * (kThreads / 32);
  for (size_t row = size_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
       row < a.tokens * a.heads; row += step) {
    const size_t at = row % a.heads * a.tokens + row / a.heads;
    const float old = a.first ? -__int_as_float(0x7f800000) : a.lse[at], added = a.step_lse[at];
    const float sum = log_sum(old, added);
    const float old_factor = factor_of(old, sum), factor = factor_of(added, sum);
    for (size_t i = row * a.width + lane; i < (row + 1) * a.width; i += 32) {
      float y[1];
      to_float(load<T, 1>(a.step, i, true), y);
      const float before = a.first ? 0.0f : rescaled(a.out[i], old_factor);
      a.out[i] = __fadd_rn(before, rescaled(y[0], factor));
    }
    // All lanes have read the logarithm.
    __syncwarp();
    if (lane == 0) a.lse[at] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    partition_kernel(const __grid_constant__ NVTEXPartitionArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Sequences cu = {a.cu, a.sequences};
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < a.tokens) a.indices[i] = static_cast<int32_t>(of_rank(cu, i, a.rank, a.world));
}

// One warp, each lane of which has a sequence of 32.
__global__ void __launch_bounds__(32)
    chunk_lengths_kernel(const __grid_constant__ NVTEXChunkLengthsArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const unsigned lane = threadIdx.x;
  const int divisor = static_cast<int>(a.divisor), chunks = static_cast<int>(a.chunks);
  int sum = 0;
  for (size_t base = 0; base < a.sequences; base += 32) {
    const size_t s = base + lane;
    const bool here = s < a.sequences;
    int count = 0;
    if (here) {
      const int first = a.starts[s], chunk = (a.starts[s + 1] - first) / chunks;
      const int length = a.cu[s + 1] - a.cu[s];
      const auto inside = [&](const size_t (&range)[2]) {
        const int from = static_cast<int>(range[0]) * chunk,
                  to = static_cast<int>(range[1]) * chunk;
        return max(min(length - from, to - from), 0);
      };
      a.firsts[s] = first / divisor + static_cast<int>(a.skipped) * chunk;
      count = inside(a.range) + inside(a.other_range);
    }
    int before = count;
    for (unsigned step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, before, step);
      if (lane >= step) before += other;
    }
    if (here) a.lengths[s] = sum + before - count;
    sum += __shfl_sync(0xffffffffu, before, 31);
  }
  if (lane == 0) {
    a.lengths[a.sequences] = sum;
    a.firsts[a.sequences] = a.starts[a.sequences] / divisor;
  }
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_grad_correction(const NVTEXGradCorrectionArgs *args,
                                                  cudaStream_t stream) noexcept {
  using namespace nvte;
  const int lanes = lanes_of(args->width, 1);
  const dim3 grid(blocks_for(args->tokens * args->outer, lanes));
  if (args->dtype == kNVTEByte) {
    return launch(grad_correction_kernel<E4M3>, grid, kThreads, stream, *args, lanes);
  }
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    return launch(grad_correction_kernel<decltype(t)>, grid, kThreads, stream, *args, lanes);
  });
}

extern "C" NVTEXOutcome nvte_cuda_half_lse(const NVTEXHalfLseArgs *args,
                                           cudaStream_t stream) noexcept {
  using namespace nvte;
  // There are no more tokens than places for them in a step.
  const size_t most = args->heads * args->step_len * (args->packed ? 1 : args->sequences);
  return launch(half_lse_kernel, dim3(blocks_for(most, 1)), kThreads, stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_out_correction(const NVTEXOutCorrectionArgs *args,
                                                 cudaStream_t stream) noexcept {
  using namespace nvte;
  const int lanes = lanes_of(args->width, 1);
  const dim3 grid(blocks_for(args->tokens * args->heads, lanes));
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    return launch(out_correction_kernel<decltype(t)>, grid, kThreads, stream, *args, lanes);
  });
}

extern "C" NVTEXOutcome nvte_cuda_partition(const NVTEXPartitionArgs *args,
                                            cudaStream_t stream) noexcept {
  using namespace nvte;
  return launch(partition_kernel, dim3(blocks_for(args->tokens, 1)), kThreads, stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_merge_attention(const NVTEXMergeAttentionArgs *args,
                                                  cudaStream_t stream) noexcept {
  using namespace nvte;
  const dim3 grid(blocks_for(args->tokens * args->heads, 32));
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    return launch(merge_kernel<decltype(t)>, grid, kThreads, stream, *args);
  });
}

extern "C" NVTEXOutcome nvte_cuda_chunk_lengths(const NVTEXChunkLengthsArgs *args,
                                                cudaStream_t stream) noexcept {
  using namespace nvte;
  return launch(chunk_lengths_kernel, dim3(1), 32, stream, *args);
}
