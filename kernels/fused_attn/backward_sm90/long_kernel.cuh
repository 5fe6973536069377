// The kernels for heads of 129 to 256 elements: the main one, whose first warpgroup loads, and the
// one that rounds dq.
#pragma once

#include "launch.cuh"
#include "long_consumer.cuh"
#include "prepare.cuh"

namespace nvte {
namespace sm90_backward {
namespace long_heads {

template <class T, int kDqk, int kDv, bool kExtras>
__global__ void __launch_bounds__(kThreads, 1) gradient_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using L = Sizes<kDqk, kDv>;
  using Place = Work<kKeys, kM>;
  extern __shared__ unsigned char raw[];
  unsigned char *shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
  auto &barriers = *reinterpret_cast<typename L::SharedBarriers *>(shared + L::kBarrier);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) barriers.init(false);
  if (a.panels_qk < L::kPanelsQk || a.panels_v < L::kPanelsV) {
    clear_panels(shared + L::kK, 1, kPanel, a.panels_qk, L::kPanelsQk);
    clear_panels(shared + L::kV, 1, kPanel, a.panels_v, L::kPanelsV);
    clear_panels(shared + L::kQ, L::kStages, kPanel, a.panels_qk, L::kPanelsQk);
    clear_panels(shared + L::kO, L::kStages, kPanel, a.panels_v, L::kPanelsV);
    fence_proxy_async();
  }
  __syncthreads();
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  // What is seldom read stays in shared memory.
  __shared__ alignas(8) unsigned char place[sizeof(Place)];
  Place &shared_work = *reinterpret_cast<Place *>(place);
  if (thread == 0) shared_work = Place(a, static_cast<int>(blockIdx.x));
  __syncthreads();
  const Place work = shared_work;

  if (thread < 128) {
    setmaxnreg_dec<24>();
    const int total = work.total;
    if (thread == 0 && total > 0) {
      const Source keys(a.kv_side, work.sequence), queries(a.q_side, work.sequence);
      const auto load_keys = [&](const CUtensorMap *map, int to, int panels, uint64_t *barrier) {
        mbarrier_arrive_expect_tx(barrier, panels * kPanel);
        keys.load(shared + to, map, barrier, panels, kPanel, work.key_head, work.n0);
      };
      PipelineState<L::kStages> ring;
      int block = work.block, head = work.head;
      load_keys(&a.maps.k, L::kK, a.panels_qk, &barriers.full_k);
      for (int it = 0; it < total; ++it) {
        barriers.q.producer_acquire(ring);
        uint64_t *barrier = barriers.q.barrier(ring);
        mbarrier_arrive_expect_tx(barrier, a.panels_qk * kPanel + L::kRowTile);
        queries.load(shared + L::kQ + ring.stage * L::kTileQk, &a.maps.q, barrier, a.panels_qk,
                     kPanel, head, block * kM);
        cp_async_bulk_load(shared + L::kRow + ring.stage * L::kRowTile,
                           a.rows + (int64_t{head} * a.head_blocks + work.base + block) * (2 * kM),
                           L::kRowTile, barrier);
        if (it == 0) load_keys(&a.maps.v, L::kV, a.panels_v, &barriers.full_v);
        barriers.o.producer_acquire(ring);
        barrier = barriers.o.barrier(ring);
        mbarrier_arrive_expect_tx(barrier, a.panels_v * kPanel);
        queries.load(shared + L::kO + ring.stage * L::kTileV, &a.maps.d_o, barrier, a.panels_v,
                     kPanel, head, block * kM);
        ring.advance();
        work.next(block, head);
      }
    }
  } else {
    setmaxnreg_inc<240>();
    const int group = __shfl_sync(~0u, thread / 128 - 1, 0);
    Consumer<T, kDqk, kDv, kExtras> consumer = {
        a, work, shared_work, shared, barriers, thread - 128, thread % 32, thread % 128 / 32};
    if (group == 0) {
      consumer.run_values();
    } else {
      consumer.run_keys();
    }
  }
#endif
}

// dq from the sum, in the order of accumulators: of each part [warp, 8 elements, lane, 4].
template <class T, int kDqk>
__global__ void __launch_bounds__(kHelperThreads)
    convert_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int index = static_cast<int>(blockIdx.x);
  const int block = index % a.query_blocks, rest = index / a.query_blocks;
  const int head = rest % a.heads, sequence = rest / a.heads;
  const int lq = length(a.q_side, sequence), m0 = block * kM;
  const int end = written(a.q_side, lq);
  if (m0 >= end) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  typename T::Bits *out = row_of<T>(a.dq, a.q_side, sequence, head, m0);
  const int64_t at = int64_t{head} * a.head_blocks + a.first_block<kM>(sequence) + block;
  const float4 *sum = reinterpret_cast<const float4 *>(a.dq_sum + at * (kM * kDqk));
  // A warp takes 32 elements of 16 rows at a time; lanes in fours exchange, so that each has eight.
  for (int i = warp; i < 4 * (kDqk / 32); i += kHelperThreads / 32) {
    const int strip = i % 4, d0 = i / 4 * 32;
    const bool second = d0 >= kFirstPart<kDqk>;
    const int columns = second ? kDqk - kFirstPart<kDqk> : kFirstPart<kDqk>;
    const float4 *from = sum + (second ? kM * kFirstPart<kDqk> / 4 : 0) + strip * (4 * columns) +
                         (d0 - (second ? kFirstPart<kDqk> : 0)) * 4 + lane;
    uint32_t low[4], high[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 v = m0 < lq ? from[j * 32] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      const float first[2] = {v.x * a.scale_k, v.y * a.scale_k};
      const float other[2] = {v.z * a.scale_k, v.w * a.scale_k};
      low[j] = T::from_float(first);
      high[j] = T::from_float(other);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      auto &mine = h == 0 ? low : high;
      const int r = strip * 16 + lane / 4 + 8 * h;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int d = d0 + j * 8 + lane % 4 * 2;
        if (m0 + r < end && d < static_cast<int>(a.dim_qk)) {
          *reinterpret_cast<uint32_t *>(out + r * a.dq.row + d) = m0 + r < lq ? mine[j] : 0;
        }
      }
    }
  }
#endif
}

template <class T, int kDqk, int kDv, bool kExtras>
Instance instance() {
  return {{kM, kKeys, kDqk, kDv},
          rows_kernel<T, kDqk, kDv, kM, false>,
          sink_kernel<kM>,
          gradient_kernel<T, kDqk, kDv, kExtras>,
          convert_kernel<T, kDqk>,
          Sizes<kDqk, kDv>::kBytes,
          0,
          false};
}

}  // namespace long_heads
}  // namespace sm90_backward
}  // namespace nvte
