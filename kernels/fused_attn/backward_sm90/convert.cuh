// The kernel that rounds dq, after the main one.
#pragma once

#include <type_traits>

#include "common/reduce.cuh"
#include "prepare.cuh"

namespace nvte {
namespace sm90_backward {

// dq from its sum, which lies in the order of accumulators: their rows are elements of the head,
// their columns queries.
template <class T, int kD, int kM, bool kFp8>
__global__ void __launch_bounds__(kHelperThreads)
    convert_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr int kPitch = kD + 4;  // Stores of a warp hit every bank once.
  extern __shared__ float tile[];
  const int index = static_cast<int>(blockIdx.x);
  const int block = index % a.query_blocks, rest = index / a.query_blocks;
  const int head = rest % a.heads, sequence = rest / a.heads;
  const int lq = length(a.q_side, sequence), m0 = block * kM;
  const int end = written(a.q_side, lq);
  if (m0 >= end) return;
  const int thread = static_cast<int>(threadIdx.x);
  if (m0 < lq) {
    const int64_t at = int64_t{head} * a.head_blocks + a.first_block<kM>(sequence) + block;
    const float4 *sum = reinterpret_cast<const float4 *>(a.dq_sum + at * (kM * kD));
    // Of each warp of each of the two warpgroups: the elements of a panel for all queries, if there
    // are two panels or more, then those of the only panel or the one in the middle for half of
    // the queries.
    constexpr int kWhole = kD == 64 ? 0 : kM / 8, kOfWarp = kM * kD / 1024;
#pragma unroll
    for (int i = 0; i < kM * kD / 4 / kHelperThreads; ++i) {
      const int f = i * kHelperThreads + thread, t = f % 32, j = f / 32 % kOfWarp,
                warp = f / (32 * kOfWarp) % 4, w = f / (128 * kOfWarp);
      const float4 v = sum[f];
      const bool whole = j < kWhole;
      const int panel = whole ? w * (kD / 64 - 1) : kD / 128;
      const int d = panel * 64 + warp * 16 + t / 4;
      const int m = (whole ? j : w * (kM / 16) + j - kWhole) * 8 + t % 4 * 2;
      tile[m * kPitch + d] = v.x;
      tile[(m + 1) * kPitch + d] = v.y;
      tile[m * kPitch + d + 8] = v.z;
      tile[(m + 1) * kPitch + d + 8] = v.w;
    }
  }
  __syncthreads();
  constexpr int kUnits = kD / 8;
  const int64_t out = head_offset(a.dq, a.q_side, sequence, head) + m0 * a.dq.row;
  float factor = a.scale_k;
  [[maybe_unused]] float scale, most = 0.0f, sums[8] = {};
  [[maybe_unused]] AbsMax<T> amax;
  if constexpr (kFp8) {
    factor = factor_of(a.dp.scale_inv) * factor_of(a.k.scale_inv);
    scale = is_fp8(a.dq.dtype) ? factor_of(a.dq.scale) : 1.0f;
  }
#pragma unroll
  for (int i = thread; i < kM * kUnits; i += kHelperThreads) {
    const int r = i / kUnits, unit = i % kUnits;
    const int64_t at = out + r * a.dq.row + unit * 8;
    float f[8] = {};
    if (m0 + r < lq) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = *reinterpret_cast<const float2 *>(tile + r * kPitch + unit * 8 + 2 * j);
        f[2 * j] = x.x * factor;
        f[2 * j + 1] = x.y * factor;
      }
    }
    if constexpr (kHasSums<kD, kFp8>) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[j] += f[j];
    }
    if (m0 + r >= end || unit * 8 >= a.dim_qk) continue;
    if constexpr (kFp8) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        most = fmaxf(most, fabsf(f[j]));
        f[j] *= scale;
      }
      with_dtype(a.dq.dtype, [&](auto tag) {
        store(a.dq.data, static_cast<size_t>(at), from_float<decltype(tag), 8>(f));
      });
    } else {
      const Vec<T, 8> v = from_float<T, 8>(f);
      amax.add(v);
      store(a.dq.data, static_cast<size_t>(at), v);
    }
  }
  if constexpr (kHasSums<kD, kFp8>) {
    if (a.sum_parts != nullptr) {
      store_sums<kD>(sums, a.sums_of(0, sequence, block, head), static_cast<int>(a.dim_qk));
    }
  }
  if constexpr (kFp8) {
    raise_amax_if_more(a.dq.amax, most);
  } else {
    raise_amax_if_more(a.grads_amax, __int_as_float(amax.bits()));
  }
#endif
}

}  // namespace sm90_backward
}  // namespace nvte
