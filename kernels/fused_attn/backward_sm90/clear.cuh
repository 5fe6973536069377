// Clears the sums of dq beside the products: a warp of the producer's that is idle otherwise clears
// a share of those of the next team of heads. The kernel before clears only the first team's.
// With heads of 256 elements, whose kernel the L2 cache limits, that takes 0.3 % longer.
#pragma once

#include "tiles.cuh"
#include "work.cuh"

namespace nvte {
namespace sm90_backward {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// By warp 1 of a block. `zeros`: shared memory that consumers do not write before full_v, at which
// the warp arrives when it has read them and the sums of this block's heads are clear.
//
// Of a head in the place of its own in the next team a block clears as much as its keys are of all.
// Blocks begin in the order of their numbers: when one of a team begins, all of the team before
// have begun, and these clear without waiting for anything.
template <int kKeys, int kM, int kD>
__device__ __forceinline__ void clear_sums(const Problem &a, const Work<kKeys, kM> &work,
                                           uint64_t *full_v, unsigned char *zeros) {
  constexpr int kZeroBytes = 4096, kBlockBytes = kM * kD * 4;
  static_assert(kBlockBytes % kZeroBytes == 0, "whole copies");
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int i = lane * 16; i < kZeroBytes; i += 32 * 16) {
    *reinterpret_cast<uint4 *>(zeros + i) = make_uint4(0, 0, 0, 0);
  }
  fence_proxy_async();
  __syncwarp();
  if (lane != 0) return;
  const int key_heads = a.heads / a.group, unit = work.sequence * key_heads + work.key_head;
  const int next = unit + a.team;
  const bool clears = next < key_heads * static_cast<int>(a.batch) && work.part == 0;
  if (clears) {
    const int sequence = next / key_heads, head = next % key_heads * a.group;
    const int blocks = (length(a.q_side, sequence) + kM - 1) / kM;
    const int share = (blocks + a.key_blocks - 1) / a.key_blocks, first = work.key_block * share;
    const int copies = min(share, blocks - first) * (kBlockBytes / kZeroBytes);
    int64_t at = int64_t{head} * a.head_blocks + a.first_block<kM>(sequence) + first;
#pragma unroll 1
    for (int g = 0; g < a.group; ++g) {
      unsigned char *to = reinterpret_cast<unsigned char *>(a.dq_sum) + at * kBlockBytes;
#pragma unroll 1
      for (int i = 0; i < copies; ++i) cp_async_bulk_store(to + i * kZeroBytes, zeros, kZeroBytes);
      at += a.head_blocks;
    }
    cp_async_bulk_commit_group();
    cp_async_bulk_wait_group_read<0>();
  }
  if (unit >= a.team && work.total > 0) {
    while (load_acquire(a.cleared + unit) < a.key_blocks) __nanosleep(20);
    fence_proxy_async_global();
  }
  mbarrier_arrive(full_v);
  if (clears) {
    cp_async_bulk_wait_group<0>();
    __threadfence();
    atomicAdd(a.cleared + next, 1);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace sm90_backward
}  // namespace nvte
