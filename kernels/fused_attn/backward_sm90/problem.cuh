// What the kernels of the backward of attention for compute capability 9.0 are told.
#pragma once

#include "common/tma.cuh"
#include "fused_attn/attention.cuh"

namespace nvte {
namespace sm90_backward {

constexpr int kConsumers = 2;  // Warpgroups of a block that multiply. One more loads.
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kHelperThreads = 256;  // Threads of a block of the kernels around the main one.
constexpr int kConsumerBarrier = 1;  // The hardware barrier of all consumers.

// Where the gradient of a bias goes.
enum class BiasGradient : int {
  kNone,
  kStored,    // Each element comes from one score: tiles of ds as they are.
  kGathered,  // Over sequences or heads: likewise, in the workspace, and summed afterwards.
  kSummed,    // Over sequences or heads: float32 sums in the workspace, if that is much smaller.
  kRows,      // Over all queries: of each sequence and head in the workspace.
};

struct Maps {
  CUtensorMap q, k, v, d_o, bias, dbias;
};

// Whether the kernels around the main one can add up gradients.
template <int kD, bool kFp8>
constexpr bool kHasSums = !kFp8 && kD <= 128;

struct Problem : NVTEXAttentionArgs {
  Maps maps;
  float scale_v, scale_k;  // Factors of dv, and of dk and dq; with dropout they differ from those
                           // in the products.
  Dropout mask;
  int heads, group;  // `group`: query heads of a key head.
  // Blocks of queries of a head, over all sequences, and of one sequence at most.
  int head_blocks, query_blocks;
  int key_blocks;  // The largest number of blocks of keys of a sequence.
  // Blocks of queries that the next block of keys begins later, so that not all add to the same
  // rows of dq at once. H200, causal, 8192 queries: plain heads of 128 elements take 2.30 ms with
  // them and 2.29 ms without, with four query heads for a head of keys 2.34 and 2.29 ms; heads of
  // 192 and 128 3.57 and 3.48 ms, so that none of these have them.
  int turn;
  int team;                 // Key heads that are worked on together, for the sake of L2.
  int panels_qk, panels_v;  // Panels of 64 elements that heads have.
  // In the workspace. [heads, head_blocks, 2, M]: statistics in units of log2, then D.
  float *rows;
  float *dq_sum;  // [heads, head_blocks, M D], in the order of accumulators.
  // [sequences, key heads]: blocks of keys that have cleared a share of dq_sum; null: the kernel
  // before clears all.
  int *cleared;
  int *turns;        // [heads, head_blocks, 8]: key blocks that have added; if deterministic.
  float *sink_part;  // [heads, head_blocks]; if there is a sink.
  // [2, batch query_blocks, heads dim_qk]: sums over a block of queries of dq and of do; null: sums
  // are not wanted.
  float *sum_parts;
  // Key blocks from number `whole` on are shared by `parts` blocks of threads each.
  int whole, parts;
  float *shared_sum;  // [shared blocks, shared_floats]: dv and dk, in the order of accumulators.
  int64_t shared_floats;
  int *shared_turns;  // [shared blocks]: parts that have added.
  int shared_blocks;
  // FP8: images of q and do, [heads, head_blocks], and of the keys, [key heads, key_head_blocks].
  uint8_t *q_image, *o_image, *key_image;
  int key_head_blocks;
  AlibiSlopes slopes;
  float keep_scale, scale_d;               // Factors of what dropout keeps of dp, and of D.
  bool bias_batch, bias_heads, bias_rows;  // Dimensions that are not broadcast.
  BiasGradient to_bias;
  bool sum_batch, sum_heads;    // Which dimensions dbias sums over, beside queries.
  NVTEXAttentionTensor scores;  // kStored: dbias; kGathered: ds of every score.
  // kSummed: [sequences or 1, heads or 1, query_blocks, key_blocks, M kKeys], in the order of
  // accumulators; kRows: [sequences, heads, key_blocks kKeys].
  float *bias_sum;

  explicit Problem(const NVTEXAttentionArgs &args)
      : NVTEXAttentionArgs(args), mask(args), slopes(args.q_side.heads) {}

  __host__ __device__ bool stores_scores() const {
    return to_bias == BiasGradient::kStored || to_bias == BiasGradient::kGathered;
  }
  // Sums of a block of queries and a head: of dq or of do.
  __device__ __forceinline__ float *sums_of(int which, int sequence, int block, int head) const {
    const int64_t rows = static_cast<int64_t>(batch) * query_blocks;
    const int64_t row = which * rows + int64_t{sequence} * query_blocks + block;
    return sum_parts + (row * heads + head) * static_cast<int64_t>(dim_qk);
  }
  // The slope of ALiBi, in units of log2.
  __device__ __forceinline__ float slope_of(int head) const { return kLog2e * slopes(head); }
  // First block of queries of a sequence within a head.
  template <int kM>
  __device__ __forceinline__ int first_block(int i) const {
    return q_side.starts != nullptr ? (q_side.starts[i] + i * kM) / kM : i * query_blocks;
  }
  // The number of the image of a block of keys.
  template <int kKeys>
  __device__ __forceinline__ int64_t key_image_at(int i, int key_head, int block) const {
    const int first =
        kv_side.starts != nullptr ? (kv_side.starts[i] + i * kKeys) / kKeys : i * key_blocks;
    return int64_t{key_head} * key_head_blocks + first + block;
  }
};

// The address of element 0 of row r.
template <class T>
__device__ __forceinline__ typename T::Bits *row_of(const NVTEXAttentionTensor &t,
                                                    const NVTEXAttentionSide &side, int i, int head,
                                                    int r) {
  return static_cast<typename T::Bits *>(t.data) + head_offset(t, side, i, head) + r * t.row;
}

// Calls f with the tag of a dtype that the kernel does not know.
template <class F>
__device__ __forceinline__ void with_dtype(NVTEDType dtype, F &&f) {
  switch (dtype) {
    case kNVTEFloat32:
      return f(F32{});
    case kNVTEFloat16:
      return f(F16{});
    case kNVTEBFloat16:
      return f(BF16{});
    case kNVTEFloat8E4M3:
      return f(E4M3{});
    default:
      return f(E5M2{});
  }
}

// Raises an amax by the largest of a warp's values. Warps are many, and their largest values are
// soon less than what is there.
__device__ __forceinline__ void raise_amax_if_more(float *amax, float most) {
  const bool more = amax != nullptr && most > *static_cast<const volatile float *>(amax);
  if (__any_sync(~0u, more)) raise_amax(amax, most);
}

// What a block works on at a time.
struct BlockShape {
  size_t queries, keys, dim_qk, dim_v;
  // Floats in shared memory for the gradients of the block's keys and values.
  size_t shared_floats() const { return keys * (dim_qk + dim_v); }
};

}  // namespace sm90_backward
}  // namespace nvte
