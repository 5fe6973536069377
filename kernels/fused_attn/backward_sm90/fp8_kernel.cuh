// The kernels of the backward of FP8 tensors: the main one, whose first warpgroup loads, and the
// one that writes the image of the keys.
#pragma once

#include "clear.cuh"
#include "convert.cuh"
#include "fp8_consumer.cuh"
#include "prepare.cuh"

namespace nvte {
namespace sm90_backward {
namespace fp8_heads {

template <int kD, bool kDropout, class Code>
__global__ void __launch_bounds__(kThreads, 1) gradient_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using L = Sizes<kD>;
  using Place = Work<kKeys, kM>;
  extern __shared__ unsigned char raw[];
  unsigned char *shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
  auto &barriers = *reinterpret_cast<typename L::SharedBarriers *>(shared + L::kBarrier);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) barriers.init(true);
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
      PipelineState<L::kStages> ring;
      int block = work.block, head = work.head;
      mbarrier_arrive_expect_tx(&barriers.full_k, L::kKeyTile + L::kKeyImage);
      keys.load(shared + L::kK, &a.maps.k, &barriers.full_k, 1, 0, work.key_head, work.n0);
      cp_async_bulk_load(
          shared + L::kKeyRows,
          a.key_image + a.key_image_at<kKeys>(work.sequence, work.key_head, shared_work.key_block) *
                            L::kKeyImage,
          L::kKeyImage, &barriers.full_k);
#pragma unroll 1
      for (int it = 0; it < total; ++it) {
        const int64_t at = int64_t{head} * a.head_blocks + work.base + block;
        barriers.q.producer_acquire(ring);
        uint64_t *barrier = barriers.q.barrier(ring);
        mbarrier_arrive_expect_tx(barrier, L::kQueryTile + L::kQueryImage + L::kRowTile);
        queries.load(shared + L::kQ + ring.stage * L::kQueryTile, &a.maps.q, barrier, 1, 0, head,
                     block * kM);
        cp_async_bulk_load(shared + L::kRow + ring.stage * L::kRowTile, a.rows + at * (2 * kM),
                           L::kRowTile, barrier);
        cp_async_bulk_load(shared + L::kQRows + ring.stage * L::kQueryImage,
                           a.q_image + at * L::kQueryImage, L::kQueryImage, barrier);
        if (it == 0) {
          mbarrier_arrive_expect_tx(&barriers.full_v, L::kKeyTile);
          keys.load(shared + L::kV, &a.maps.v, &barriers.full_v, 1, 0, work.key_head, work.n0);
        }
        barriers.o.producer_acquire(ring);
        barrier = barriers.o.barrier(ring);
        mbarrier_arrive_expect_tx(barrier, L::kQueryTile + L::kQueryImage);
        queries.load(shared + L::kO + ring.stage * L::kQueryTile, &a.maps.d_o, barrier, 1, 0, head,
                     block * kM);
        cp_async_bulk_load(shared + L::kORows + ring.stage * L::kQueryImage,
                           a.o_image + at * L::kQueryImage, L::kQueryImage, barrier);
        ring.advance();
        work.next(block, head);
      }
    } else if (thread >= 32 && thread < 64) {
      clear_sums<kKeys, kM, kD>(a, shared_work, &barriers.full_v, shared + L::kDs);
    }
  } else {
    setmaxnreg_inc<240>();
    const int group = __shfl_sync(~0u, thread / 128 - 1, 0);
    Consumer<kD, kDropout, Code> consumer = {
        a,     work,         shared_work, shared,           barriers,
        group, thread - 128, thread % 32, thread % 128 / 32};
    consumer.run();
  }
#endif
}

template <int kD>
__global__ void __launch_bounds__(kHelperThreads) keys_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int thread = static_cast<int>(threadIdx.x), index = static_cast<int>(blockIdx.x);
  if (index == 0 && thread < 4) {
    float *const maxima[4] = {a.dp.amax, a.dq.amax, a.dk.amax, a.dv.amax};
    if (maxima[thread] != nullptr) *maxima[thread] = 0.0f;
  }
  if (a.key_blocks == 0) return;
  const int heads = a.heads / a.group, rest = index / a.key_blocks;
  const int block = index % a.key_blocks, head = rest % heads, sequence = rest / heads;
  if (sequence >= static_cast<int>(a.batch)) return;
  const int rows = length(a.kv_side, sequence) - block * kKeys;
  if (rows <= 0) return;
  __shared__ CodeTile<kKeys, kD> codes;
  codes.fill(row_of<E4M3>(a.k, a.kv_side, sequence, head, block * kKeys), a.k.row, rows,
             static_cast<int>(a.dim_qk));
  __syncthreads();
  codes.template write<true>(
      a.key_image + a.key_image_at<kKeys>(sequence, head, block) * (kD * kKeys), thread);
#endif
}

template <int kD, bool kDropout, class Code>
Instance instance() {
  return {kTile<kD>,
          rows_kernel<Code, kD, kD, kM, true>,
          sink_kernel<kM>,
          gradient_kernel<kD, kDropout, Code>,
          convert_kernel<Code, kD, kM, true>,
          Sizes<kD>::kBytes,
          kM * (kD + 4) * 4,
          true};
}

template <int kD>
void (*keys_kernel_of())(Problem) {
  return keys_kernel<kD>;
}

}  // namespace fp8_heads
}  // namespace sm90_backward
}  // namespace nvte
