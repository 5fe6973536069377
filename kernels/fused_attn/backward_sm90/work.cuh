// What a block of a main kernel does: its keys, the blocks of queries that see them, and how these
// come to shared memory.
#pragma once

#include <climits>

#include "common/pipeline.cuh"
#include "problem.cuh"

namespace nvte {
namespace sm90_backward {

// The barriers of a block, in shared memory: of its keys and values, which come once, the latter
// after clear_sums() where that is called, and of the rings of q and do. Statistics come with q and
// are read by ordinary loads, so that each thread of the consumers releases q for itself; do is
// read by products, and each warp releases it.
template <int kQStages, int kOStages>
struct Barriers {
  uint64_t full_k, full_v;
  Pipeline<kQStages> q;
  Pipeline<kOStages> o;

  __device__ __forceinline__ void init(bool clears_sums) {
    mbarrier_init(&full_k, 1);
    mbarrier_init(&full_v, clears_sums ? 2 : 1);
    q.init(1, 128 * kConsumers);
    o.init(1, 4 * kConsumers);
    fence_mbarrier_init();
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Says that the warp has read a buffer.
template <int kStages>
__device__ __forceinline__ void release(Pipeline<kStages> &pipeline,
                                        const PipelineState<kStages> &at, int lane) {
  __syncwarp();
  if (lane == 0) pipeline.consumer_release(at);
}

// What a block does: its keys, and the blocks of queries that see them.
template <int kKeys, int kM>
struct Work {
  int sequence, key_head, key_block;
  int lq, lk;
  Band band;
  int n0;                  // The first key of the block.
  int first, blocks;       // Blocks of queries of each head.
  int last;                // The block that a head ends with.
  int block, head, total;  // The first of its share, and how many.
  int shared;              // Number of a block of keys that has others at work on it, or -1.
  int part;                // The number of this block among them.
  int base;                // The first row of the sequence within a head.

  __device__ __forceinline__ Work(const Problem &a, int index) : band(a, 0, 0) {
    part = 0;
    shared = -1;
    if (index >= a.whole) {
      part = (index - a.whole) % a.parts;
      shared = (index - a.whole) / a.parts;
      index = a.whole + shared;
    }
    const int key_heads = static_cast<int>(a.kv_side.heads);
    const int units = key_heads * static_cast<int>(a.batch);
    const int team = index / (a.team * a.key_blocks), in_team = index % (a.team * a.key_blocks);
    const int members = min(a.team, units - team * a.team);
    const int unit = team * a.team + in_team % members;
    key_block = in_team / members;
    // With a bound on the right low keys have the most queries: longest first, unless dq is added
    // in order, which goes from the diagonal to the left so that nobody waits.
    if (a.deterministic && a.window_right >= 0) key_block = a.key_blocks - 1 - key_block;
    sequence = unit / key_heads;
    key_head = unit % key_heads;
    lq = length(a.q_side, sequence);
    lk = length(a.kv_side, sequence);
    band = Band(a, lq, lk);
    n0 = key_block * kKeys;
    const int low = band.first_row(n0), high = band.last_row(min(n0 + kKeys, lk), lq);
    first = low / kM;
    blocks = n0 < lk && low < high ? (high - 1) / kM - first + 1 : 0;
    base = a.first_block<kM>(sequence);
    // One thread computes this while all others wait: divisions only where they are needed.
    const int all = blocks * a.group;
    int from = 0;
    total = all;
    if (shared >= 0) {
      from = static_cast<int>(int64_t{all} * part / a.parts);
      total = static_cast<int>(int64_t{all} * (part + 1) / a.parts) - from;
    }
    int turned = 0;
    if (a.turn != 0 && blocks > 0) turned = key_block * a.turn % blocks;
    last = first + (turned > 0 ? turned : blocks) - 1;
    block = first + turned;
    head = key_head * a.group;
    if (from > 0) {
      block = first + (from % blocks + turned) % blocks;
      head += from / blocks;
    }
  }
  // The next block of queries, of the next head after all of one.
  __device__ __forceinline__ void next(int &block, int &head) const {
    if (block == last) ++head;
    if (++block == first + blocks) block = first;
  }
  __device__ __forceinline__ bool masked(int m0) const {
    return !band.admits(m0, m0 + kM, n0, n0 + kKeys);
  }
  // How many blocks of keys add to these rows of dq before this one.
  __device__ __forceinline__ int turn(const Problem &a, int m0) const {
    if (a.window_right >= 0) return (band.end(min(m0 + kM, lq) - 1) - 1) / kKeys - key_block;
    return key_block - band.begin(m0) / kKeys;
  }
};

// Clears the probabilities that the mask does not admit, of a warp's 16 keys from `first` on and
// the queries from m0 on. kRows: queries past the end of the sequence are cleared, too.
template <bool kRows, int kKeys, int kM>
__device__ __forceinline__ void mask(float (&s)[kM / 2], const Work<kKeys, kM> &work, int first,
                                     int m0, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int c = first + lane / 4 + 8 * h;
    const int r0 = m0 + lane % 4 * 2;
    const int low = c >= work.lk ? INT_MAX : c - work.band.right + 1 - r0;
    int high = c - work.band.left - r0;
    if constexpr (kRows) high = min(high, work.lq - 1 - r0);
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e < low || 8 * j + e > high) s[4 * j + 2 * h + e] = 0.0f;
      }
    }
  }
}

// The place of the rows of a block in tensor maps, and their loads.
struct Source {
  int row, sequence;

  __device__ __forceinline__ Source(const NVTEXAttentionSide &side, int i)
      : row(static_cast<int>(start(side, i))), sequence(side.starts != nullptr ? 0 : i) {}
  // Rows from `first` on of a head, 128 bytes of each in a panel of `panel` bytes. Panels that a
  // head does not have are not loaded: boxes that start outside a tensor may fault.
  __device__ __forceinline__ void load(unsigned char *to, const CUtensorMap *map, uint64_t *barrier,
                                       int panels, int panel, int head, int first) const {
    for (int p = 0; p < panels; ++p) {
      const int at[4] = {p * 64, row + first, head, sequence};
      cp_async_bulk_tensor_load<4>(to + p * panel, map, barrier, at);
    }
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace sm90_backward
}  // namespace nvte
