// The kernels before the main one: statistics and D of every row, cleared sums, and the gradient of
// the sinks.
#pragma once

#include "common/vec.cuh"
#include "image.cuh"
#include "problem.cuh"

namespace nvte {
namespace sm90_backward {

// Adds up columns of a block and stores them: thread t has sums of eight, from number
// t % (D / 8) * 8 on. Every thread calls it.
template <int kD>
__device__ __forceinline__ void store_sums(const float (&sums)[8], float *to, int dim) {
  constexpr int kUnits = kD / 8, kWarps = kHelperThreads / 32;
  static_assert(32 % kUnits == 0, "the lanes of a warp have whole rows");
  __shared__ float parts[kWarps][kD];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float sum = sums[i];
#pragma unroll
    for (int step = kUnits; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane < kUnits) parts[thread / 32][lane * 8 + i] = sum;
  }
  __syncthreads();
  if (thread >= dim) return;
  float sum = parts[0][thread];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += parts[w][thread];
  to[thread] = sum;
}

// Of each row, D = sum do o and the statistics in units of log2, which are infinite for rows that
// contribute nothing. A block of threads takes a block of queries of a head. T: the dtype of do.
// kFp8: o has a dtype of its own, both have factors, and images of q and do are written.
template <class T, int kDqk, int kDv, int kM, bool kFp8>
__global__ void __launch_bounds__(kHelperThreads) rows_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr int kLanes = kDv / 8, kAtOnce = kHelperThreads / kLanes;
  static_assert(kM % kAtOnce == 0, "whole rounds");
  const int index = static_cast<int>(blockIdx.x), batch = static_cast<int>(a.batch);
  // Heads first: where a token's heads are neighbours in memory, so are the blocks that read them.
  const int head = index % a.heads, rest = index / a.heads;
  const int sequence = rest % batch, block = rest / batch;
  if (a.shared_blocks > 0) {
    const int64_t thread = int64_t{index} * kHelperThreads + threadIdx.x;
    const int64_t step = int64_t{gridDim.x} * kHelperThreads;
    float4 *sum = reinterpret_cast<float4 *>(a.shared_sum);
    for (int64_t i = thread; i < a.shared_blocks * (a.shared_floats / 4); i += step) {
      sum[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (thread < a.shared_blocks) a.shared_turns[thread] = 0;
  }
  const int unit = sequence * (a.heads / a.group) + head / a.group;
  if (a.cleared != nullptr && block == 0 && head % a.group == 0 && threadIdx.x == 0) {
    a.cleared[unit] = 0;
  }
  const int lq = length(a.q_side, sequence), m0 = block * kM;
  if (m0 >= lq) return;
  const int64_t at = int64_t{head} * a.head_blocks + a.first_block<kM>(sequence) + block;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;

  const typename T::Bits *d_o = row_of<T>(a.d_o, a.q_side, sequence, head, m0);
  const StatsRows stats_rows(a.q_side, sequence, head);
  const float slope = a.alibi ? a.slope_of(head) : 0.0f;
  // FP8: of D, and what p and ds are multiplied by before they are rounded; see Consumer::run().
  [[maybe_unused]] float factor = 1.0f, log_p_scale = 0.0f;
  float scale_d = a.scale_d;
  if constexpr (kFp8) {
    const float p_scale = factor_of(a.s.scale) * a.mask.scale;
    factor = factor_of(a.d_o.scale_inv) * (is_fp8(a.o.dtype) ? factor_of(a.o.scale_inv) : 1.0f);
    log_p_scale = log2f(p_scale);
    scale_d *= factor_of(a.dp.scale) / p_scale;
  }
  float part = 0.0f;
  Vec<T, 8> y[kM / kAtOnce];
  float stats_of[kM / kAtOnce], products[kM / kAtOnce];
  const auto inside = [&](int r) { return m0 + r < lq && lane * 8 < a.dim_v; };
#pragma unroll
  for (int i = 0; i < kM / kAtOnce; ++i) {
    const int r = i * kAtOnce + thread / kLanes;
    y[i] = load<T, 8>(d_o, static_cast<size_t>(r * a.d_o.row + lane * 8), inside(r));
    stats_of[i] = lane == 0 && m0 + r < lq ? a.stats[stats_rows(m0 + r)] : -INFINITY;
  }
  // clear_sums() clears those of later teams.
  if (a.cleared == nullptr || unit < a.team) {
    float4 *sum = reinterpret_cast<float4 *>(a.dq_sum + at * (kM * kDqk));
#pragma unroll
    for (int i = 0; i < kM * kDqk / 4 / kHelperThreads; ++i) {
      sum[i * kHelperThreads + thread] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }
  // Of a lane's elements of each row of o and do.
  const auto multiply = [&](auto tag) {
    using O = decltype(tag);
    const typename O::Bits *o = row_of<O>(a.o, a.q_side, sequence, head, m0);
    Vec<O, 8> x[kM / kAtOnce];
#pragma unroll
    for (int i = 0; i < kM / kAtOnce; ++i) {
      const int r = i * kAtOnce + thread / kLanes;
      x[i] = load<O, 8>(o, static_cast<size_t>(r * a.o.row + lane * 8), inside(r));
    }
#pragma unroll
    for (int i = 0; i < kM / kAtOnce; ++i) {
      float f[8], g[8];
      to_float(x[i], f);
      to_float(y[i], g);
      products[i] = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) products[i] = fmaf(f[j], g[j], products[i]);
    }
  };
  if constexpr (kFp8) {
    static_assert(kDqk == kDv, "one shape of images");
    using Codes = CodeTile<kM, kDv>;
    __shared__ Codes q_codes, o_codes;
    q_codes.fill(row_of<E4M3>(a.q, a.q_side, sequence, head, m0), a.q.row, lq - m0,
                 static_cast<int>(a.dim_qk));
#pragma unroll
    for (int i = 0; i < kM / kAtOnce; ++i) {
      const int r = i * kAtOnce + thread / kLanes;
      o_codes.words[r][2 * lane] = y[i].w[0];
      o_codes.words[r][2 * lane + 1] = y[i].w[1];
    }
    with_dtype(a.o.dtype, multiply);
    __syncthreads();
    q_codes.template write<false>(a.q_image + at * (kM * kDqk), thread);
    o_codes.template write<false>(a.o_image + at * (kM * kDv), thread - Codes::kWriters);
  } else {
    multiply(T{});
  }
#pragma unroll
  for (int i = 0; i < kM / kAtOnce; ++i) {
    const int r = i * kAtOnce + thread / kLanes;
    float d = products[i];
#pragma unroll
    for (int j = kLanes / 2; j > 0; j /= 2) d += __shfl_xor_sync(~0u, d, j);
    if constexpr (kFp8) d *= factor;
    if (lane == 0) {
      const float stats = stats_of[i];
      const bool used = stats != -INFINITY;
      // A lane of gradient_kernel has two neighbours of 8 rows and two of the next 8.
      const int place = r / 16 * 16 + r % 8 / 2 * 4 + r / 8 % 2 * 2 + r % 2;
      // With ALiBi the statistic contains what ALiBi subtracts, from the block's first row on.
      float statistic = fmaf(slope, static_cast<float>(r), stats * kLog2e);
      if constexpr (kFp8) statistic -= log_p_scale;
      a.rows[at * (2 * kM) + place] = used ? statistic : INFINITY;
      a.rows[at * (2 * kM) + kM + place] = used ? d * scale_d : 0.0f;
      if (a.dsink != nullptr && used) part += exp2f((a.sink[head] - stats) * kLog2e) * d;
    }
  }
  if (a.deterministic && thread < 4 * kConsumers) a.turns[at * (4 * kConsumers) + thread] = 0;
  if constexpr (kHasSums<kDqk, kFp8>) {
    if (a.sum_parts != nullptr) {
      // The probabilities of a row add up to 1, so that dv adds up to do.
      float sums[8] = {};
#pragma unroll
      for (int i = 0; i < kM / kAtOnce; ++i) {
        const float stats = __shfl_sync(~0u, stats_of[i], thread % 32 / kLanes * kLanes);
        float g[8];
        to_float(y[i], g);
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[j] += stats != -INFINITY ? g[j] : 0.0f;
      }
      store_sums<kDv>(sums, a.sums_of(1, sequence, block, head), static_cast<int>(a.dim_v));
    }
  }
  if (a.dsink == nullptr) return;
  __shared__ float parts[kHelperThreads / 32];
#pragma unroll
  for (int j = 16; j > 0; j /= 2) part += __shfl_xor_sync(~0u, part, j);
  if (thread % 32 == 0) parts[thread / 32] = part;
  __syncthreads();
  if (thread == 0) {
    for (int i = 1; i < kHelperThreads / 32; ++i) part += parts[i];
    a.sink_part[at] = part;
  }
#endif
}

// The sums of dq, dk and dv over all rows: [heads, 3, dim_qk]. The scores' gradients of a row add
// up to 0, and so does dk.
constexpr int kSumColumns = 32, kSumRows = kHelperThreads / kSumColumns;
template <class Out>
__global__ void __launch_bounds__(kHelperThreads) sums_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  __shared__ float parts[kSumRows][kSumColumns];
  const int x = static_cast<int>(threadIdx.x) % kSumColumns,
            y = static_cast<int>(threadIdx.x) / kSumColumns;
  const int dim = static_cast<int>(a.dim_qk),
            column = static_cast<int>(blockIdx.x) * kSumColumns + x;
  const int cols = a.heads * dim, which = static_cast<int>(blockIdx.y);
  float sum = 0.0f;
  if (column < cols && which != 1) {
    const int rows = static_cast<int>(a.batch) * a.query_blocks;
    const float *from = a.sum_parts + int64_t{which / 2} * rows * cols + column;
#pragma unroll 8
    for (int r = y; r < rows; r += kSumRows) sum += from[int64_t{r} * cols];
  }
  parts[y][x] = sum;
  __syncthreads();
  if (y > 0 || column >= cols) return;
#pragma unroll
  for (int i = 1; i < kSumRows; ++i) sum += parts[i][x];
  const float f[1] = {sum};
  store(a.sums, static_cast<size_t>((column / dim * 3 + which) * dim + column % dim),
        from_float<Out>(f));
#endif
}

// The gradient of a head's sink, in a fixed order.
template <int kM>
__global__ void __launch_bounds__(kHelperThreads) sink_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  float sum = 0.0f;
  for (int i = 0; i < static_cast<int>(a.batch); ++i) {
    const int blocks = (length(a.q_side, i) + kM - 1) / kM;
    const float *parts = a.sink_part + int64_t{head} * a.head_blocks + a.first_block<kM>(i);
    for (int b = thread; b < blocks; b += kHelperThreads) sum += parts[b];
  }
  __shared__ float sums[kHelperThreads / 32];
#pragma unroll
  for (int j = 16; j > 0; j /= 2) sum += __shfl_xor_sync(~0u, sum, j);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  if (thread == 0) {
    for (int i = 1; i < kHelperThreads / 32; ++i) sum += sums[i];
    a.dsink[head] = -sum;
  }
#endif
}

}  // namespace sm90_backward
}  // namespace nvte
