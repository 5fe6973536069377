// The main kernel for heads of up to 128 elements, or 192 of queries and keys: its first warpgroup
// loads.
#pragma once

#include "clear.cuh"
#include "convert.cuh"
#include "launch.cuh"
#include "prepare.cuh"
#include "short_consumer.cuh"
#include "short_instance.cuh"

namespace nvte {
namespace sm90_backward {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Writes zeros to dbias for the blocks of queries that see no key of this block; by threads 32 to
// 127.
template <int kM>
__device__ __forceinline__ void clear_bias_gradient(const Problem &a, const Work<kKeys, kM> &work) {
  const int thread = static_cast<int>(threadIdx.x) - 32;
  const int column = work.n0 + thread % 16 * 8;
  if (column >= static_cast<int>(a.kv_side.max_seqlen)) return;
  const int rows = static_cast<int>(a.q_side.max_seqlen);
  const int from = work.blocks > 0 ? min(work.first * kM, rows) : rows;
  const int to = work.blocks > 0 ? (work.first + work.blocks) * kM : rows;
  for (int j = 0; j < a.group; ++j) {
    uint16_t *first = static_cast<uint16_t *>(a.scores.data) + work.sequence * a.scores.batch +
                      (work.key_head * a.group + j) * a.scores.head + column;
#pragma unroll 1
    for (int r = thread / 16; r < rows; r += 6) {
      if (r < from || r >= to) {
        *reinterpret_cast<uint4 *>(first + r * a.scores.row) = make_uint4(0, 0, 0, 0);
      }
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <class T, int kD, int kM, bool kDropout, Extra kExtra>
__global__ void __launch_bounds__(kThreads, 1) gradient_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using L = Sizes<kD, kM, kExtra>;
  extern __shared__ unsigned char raw[];
  unsigned char *shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
  auto &barriers = *reinterpret_cast<typename L::SharedBarriers *>(shared + L::kBarrier);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) barriers.init(kClearsSums<kD, kExtra>);
  if constexpr (L::kPanelsQk > 1) {
    if (a.panels_qk < L::kPanelsQk || a.panels_v < L::kPanelsV) {
      clear_panels(shared + L::kK, 1, L::kKeyPanel, a.panels_qk, L::kPanelsQk);
      clear_panels(shared + L::kV, 1, L::kKeyPanel, a.panels_v, L::kPanelsV);
      clear_panels(shared + L::kQ, L::kQStages, L::kQueryPanel, a.panels_qk, L::kPanelsQk);
      clear_panels(shared + L::kO, L::kOStages, L::kQueryPanel, a.panels_v, L::kPanelsV);
      fence_proxy_async();
    }
  }
  __syncthreads();
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  // What is seldom read stays in shared memory.
  __shared__ alignas(8) unsigned char place[sizeof(Work<kKeys, kM>)];
  Work<kKeys, kM> &shared_work = *reinterpret_cast<Work<kKeys, kM> *>(place);
  if (thread == 0) shared_work = Work<kKeys, kM>(a, static_cast<int>(blockIdx.x));
  __syncthreads();
  const Work<kKeys, kM> work = shared_work;

  if (thread < 128) {
    setmaxnreg_dec<24>();
    const int total = work.total;
    if constexpr (kExtra == Extra::kBias) {
      if (thread >= 32 && a.stores_scores() && shared_work.part == 0) {
        clear_bias_gradient(a, work);
      }
    }
    if (thread == 0 && total > 0) {
      const Source keys(a.kv_side, work.sequence), queries(a.q_side, work.sequence);
      const auto load_keys = [&](const CUtensorMap *map, int to, int panels, uint64_t *barrier) {
        keys.load(shared + to, map, barrier, panels, L::kKeyPanel, work.key_head, work.n0);
      };
      const auto load_queries = [&](const CUtensorMap *map, int to, int panels, uint64_t *barrier,
                                    int head, int block) {
        queries.load(shared + to, map, barrier, panels, L::kQueryPanel, head, block * kM);
      };
      PipelineState<L::kQStages> q;
      PipelineState<L::kOStages> o;
      int block = work.block, head = work.head;
      mbarrier_arrive_expect_tx(&barriers.full_k, a.panels_qk * L::kKeyPanel);
      load_keys(&a.maps.k, L::kK, a.panels_qk, &barriers.full_k);
#pragma unroll 1
      for (int it = 0; it < total; ++it) {
        barriers.q.producer_acquire(q);
        uint64_t *barrier = barriers.q.barrier(q);
        uint32_t bytes = a.panels_qk * L::kQueryPanel + L::kRowTile;
        [[maybe_unused]] const int bias_panels =
            work.n0 + 64 < static_cast<int>(a.kv_side.max_seqlen) ? 2 : 1;
        if constexpr (kExtra == Extra::kBias) {
          bytes += bias_panels * (a.bias_rows ? L::kQueryPanel : 128);
        }
        mbarrier_arrive_expect_tx(barrier, bytes);
        load_queries(&a.maps.q, L::kQ + q.stage * L::kQueryTile, a.panels_qk, barrier, head, block);
        cp_async_bulk_load(shared + L::kRow + q.stage * L::kRowTile,
                           a.rows + (int64_t{head} * a.head_blocks + work.base + block) * (2 * kM),
                           L::kRowTile, barrier);
        if constexpr (kExtra == Extra::kBias) {
          for (int p = 0; p < bias_panels; ++p) {
            const int at[4] = {work.n0 + p * 64, a.bias_rows ? block * kM : 0,
                               a.bias_heads ? head : 0, a.bias_batch ? work.sequence : 0};
            cp_async_bulk_tensor_load<4>(
                shared + L::kBias + q.stage * L::kScoreTile + p * L::kQueryPanel, &a.maps.bias,
                barrier, at);
          }
        }
        q.advance();
        if (it == 0) {
          mbarrier_arrive_expect_tx(&barriers.full_v, a.panels_v * L::kKeyPanel);
          load_keys(&a.maps.v, L::kV, a.panels_v, &barriers.full_v);
        }
        barriers.o.producer_acquire(o);
        barrier = barriers.o.barrier(o);
        mbarrier_arrive_expect_tx(barrier, a.panels_v * L::kQueryPanel);
        load_queries(&a.maps.d_o, L::kO + o.stage * L::kDoTile, a.panels_v, barrier, head, block);
        o.advance();
        work.next(block, head);
      }
    } else if (kClearsSums<kD, kExtra> && thread >= 32 && thread < 64) {
      clear_sums<kKeys, kM, kD>(a, shared_work, &barriers.full_v, shared + L::kDs);
    }
  } else {
    setmaxnreg_inc<240>();
    const int group = __shfl_sync(~0u, thread / 128 - 1, 0);
    Consumer<T, kD, kM, kDropout, kExtra> consumer = {a,
                                                      kD < 192 ? work : shared_work,
                                                      shared_work,
                                                      shared,
                                                      barriers,
                                                      group,
                                                      thread - 128,
                                                      thread % 32,
                                                      thread % 128 / 32};
    consumer.run();
  }
#endif
}

// The kernels of an instance. Other sources of this folder make the instances.
template <class T, int kD, bool kDropout, Extra kExtra>
Instance instance() {
  constexpr int kM = kQueries<kD, kDropout, kExtra>;
  return {kTile<kD, kDropout, kExtra>,
          rows_kernel<T, kD, kValues<kD>, kM, false>,
          sink_kernel<kM>,
          gradient_kernel<T, kD, kM, kDropout, kExtra>,
          convert_kernel<T, kD, kM, false>,
          Sizes<kD, kM, kExtra>::kBytes,
          kM * (kD + 4) * 4,
          kClearsSums<kD, kExtra>,
          kHasSums<kD, false> ? sums_kernel<T> : nullptr};
}

}  // namespace sm90_backward
}  // namespace nvte
