// The plans of few tokens in one block: that for the own ones, what other devices have to know of
// them, which the block stores in their memory, and the plan for the tokens of all devices.

#include <cub/block/block_scan.cuh>

#include "common/launch.cuh"
#include "ep/choice.cuh"
#include "nvtex/peer.cuh"

// The same struct is in src/parallel/peer_rows.rs.
struct PeerPlan {
  PeerCall call;
  // Slots of the ranks for the own tokens: an expert is a rank.
  NVTEXExpertRowsArgs own;
  // Rows of the own experts for what is in the slots, whose choices the kernel brings.
  NVTEXExpertRowsArgs of_slots;
};

namespace nvte {
namespace {

// Also in src/parallel/peer_rows.rs: there is a thread for each own token, and room for so many
// choices and experts.
constexpr unsigned kThreads = kPeerThreads, kMostChoices = 8192, kMostExperts = 256;

constexpr unsigned kWarps = kThreads / 32;

struct Shared {
  // Expert of each choice in the slots, counted from the first own one; or below 0.
  int16_t experts[kMostChoices];
  // Of a warp's choices: how many each expert has, then how many it has before them.
  uint16_t before[kWarps][kMostExperts];
  int64_t starts[kMostExperts];
  // Of a warp's tokens: those that have some of a rank's experts.
  uint16_t tokens[kWarps][PeerCall::kMostRanks];
  cub::BlockScan<int64_t, kThreads>::TempStorage scan;
};

// What a rank has for another one: the number of its tokens, and their choices.
__device__ __forceinline__ int *message(const PeerPlan &a, size_t to, size_t from) {
  const size_t width = 4 + a.own.limit * a.own.topk;
  return reinterpret_cast<int *>(a.call.places[to] + kPeerData) + from * width;
}

// A choice of an own token, below 0 if there is no such expert.
__device__ __forceinline__ int choice_at(const NVTEXExpertRowsArgs &a, size_t i) {
  const int64_t chosen = chosen_at(a, i);
  const auto all = static_cast<int64_t>(a.experts * a.group);
  return chosen >= 0 && chosen < all ? static_cast<int>(chosen) : -1;
}

// Slots for the own tokens, a thread for each, and messages to the other ranks. Each rank has a
// slot of a token at the first choice of one of its experts.
__device__ __forceinline__ void plan_tokens(const PeerPlan &a, Shared &shared) {
  const NVTEXExpertRowsArgs &own = a.own;
  const unsigned t = threadIdx.x, lane = t % 32, warp = t / 32;
  const unsigned ranks = static_cast<unsigned>(a.call.ranks),
                 group = static_cast<unsigned>(own.group);
  const bool there = t < own.tokens;
  const size_t first = t * own.topk;
  // Ranks that have experts of the token, and the choices that are the first ones of theirs.
  unsigned has = 0;
  for (unsigned k = 0; there && k < own.topk; ++k) {
    const int chosen = choice_at(own, first + k);
    if (chosen >= 0) has |= 1u << chosen / group;
  }
  for (unsigned r = 0; r < ranks; ++r) {
    const unsigned mask = __ballot_sync(~0u, has >> r & 1);
    if (lane == 0) shared.tokens[warp][r] = static_cast<uint16_t>(__popc(mask));
  }
  __syncthreads();
  for (unsigned r = 0; r < ranks; ++r) {
    unsigned all = 0, slot = __popc(__ballot_sync(~0u, has >> r & 1) & ((1u << lane) - 1));
    for (unsigned w = 0; w < kWarps; ++w) {
      if (w < warp) slot += shared.tokens[w][r];
      all += shared.tokens[w][r];
    }
    int *to = message(a, r, a.call.rank);
    if (t == 0) {
      *to = static_cast<int>(all);
      own.starts[r] = static_cast<int64_t>(r * own.limit);
    }
    if (!there) continue;
    bool found = false;
    for (unsigned k = 0; k < own.topk; ++k) {
      const int chosen = choice_at(own, first + k);
      const bool of_rank = chosen >= 0 && chosen / group == r;
      if (has >> r & 1) to[4 + slot * own.topk + k] = chosen;
      // The rows of choices of no rank are written with those of the first one.
      const bool is_first = of_rank && !found;
      found = found || of_rank;
      if (of_rank || (chosen < 0 && r == 0)) {
        const int row = is_first ? static_cast<int>(r * own.limit + slot) : -1;
        own.rows[first + k] = row;
        own.map[k * own.tokens + t] = row;
      }
    }
  }
  for (size_t k = own.topk; there && k < own.planes; ++k) own.map[k * own.tokens + t] = -1;
  if (t == 0) {
    own.sizes[0] = static_cast<int64_t>(own.tokens);
    own.sizes[1] = static_cast<int64_t>(own.topk);
  }
}

// Rows of the own experts for all choices that have come. Each warp has a part of them, so that
// their order never depends on the schedule.
__device__ __forceinline__ void plan_slots(const PeerPlan &a, Shared &shared) {
  const NVTEXExpertRowsArgs &all = a.of_slots;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned topk = static_cast<unsigned>(all.topk), slots = static_cast<unsigned>(all.tokens);
  const unsigned limit = static_cast<unsigned>(a.own.limit), choices = slots * topk;
  const unsigned experts = static_cast<unsigned>(all.experts);
  for (unsigned i = threadIdx.x; i < choices; i += kThreads) {
    const unsigned slot = i / topk, source = slot / limit, place = slot % limit;
    const int *from = message(a, a.call.rank, source);
    int expert = -1;
    if (place < static_cast<unsigned>(__ldcg(from))) {
      expert = __ldcg(from + 4 + place * topk + i % topk) - static_cast<int>(all.first);
      if (expert >= static_cast<int>(experts)) expert = -1;
    }
    shared.experts[i] = static_cast<int16_t>(expert < 0 ? -1 : expert);
  }
  for (unsigned i = lane; i < kMostExperts; i += 32) shared.before[warp][i] = 0;
  __syncthreads();
  const unsigned part = (choices + kThreads - 1) / kThreads * 32;
  const unsigned begin = warp * part, end = begin + part < choices ? begin + part : choices;
  // Calls `body` with the choice's expert and how many of the warp's choices of it are before.
  const auto each = [&](auto body) {
    for (unsigned base = begin; base < end; base += 32) {
      const unsigned i = base + lane;
      const int expert = i < end ? shared.experts[i] : -1;
      const unsigned same = __match_any_sync(~0u, expert);
      const unsigned lower = __popc(same & ((1u << lane) - 1));
      unsigned before = 0;
      if (expert >= 0) before = shared.before[warp][expert];
      __syncwarp();
      if (expert >= 0 && lower == 0) {
        shared.before[warp][expert] = static_cast<uint16_t>(before + __popc(same));
      }
      __syncwarp();
      if (i < end) body(i, expert, before + lower);
    }
  };
  each([](unsigned, int, unsigned) {});
  __syncthreads();
  int64_t length = 0;
  if (threadIdx.x < experts) {
    for (unsigned w = 0; w < kWarps; ++w) {
      const unsigned own = shared.before[w][threadIdx.x];
      shared.before[w][threadIdx.x] = static_cast<uint16_t>(length);
      length += own;
    }
  }
  const auto alignment = static_cast<int64_t>(all.alignment);
  const auto capacity = static_cast<int64_t>(all.capacity);
  const int64_t padded = (length + alignment - 1) / alignment * alignment;
  int64_t start, rows;
  cub::BlockScan<int64_t, kThreads>(shared.scan).ExclusiveSum(padded, start, rows);
  if (threadIdx.x < experts) {
    const int64_t room = start < capacity ? capacity - start : 0;
    shared.starts[threadIdx.x] = all.starts[threadIdx.x] = start;
    all.lengths[threadIdx.x] = length;
    put(all.counts, all.counts_dtype, threadIdx.x, padded < room ? padded : room);
  }
  if (threadIdx.x == 0) {
    put(all.total, all.counts_dtype, 0, rows);
    all.sizes[0] = static_cast<int64_t>(slots);
    all.sizes[1] = static_cast<int64_t>(topk);
  }
  __syncthreads();
  each([&](unsigned i, int expert, unsigned before) {
    int row = -1;
    if (expert >= 0 && shared.starts[expert] + before < capacity) {
      row = static_cast<int>(shared.starts[expert] + before);
    }
    all.rows[i] = row;
    all.map[i % topk * slots + i / topk] = row;
  });
  for (size_t i = topk * slots + threadIdx.x; i < all.planes * slots; i += kThreads)
    all.map[i] = -1;
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const __grid_constant__ PeerPlan a) {
  __shared__ Shared shared;
  const uint64_t number = begin(a.call);
  plan_tokens(a, shared);
  meet(a.call, number);
  plan_slots(a, shared);
  finish(a.call, number);
}

}  // namespace
}  // namespace nvte

// Both plans, of few tokens.
extern "C" NVTEXOutcome nvte_cuda_peer_plan(const PeerPlan *args, cudaStream_t stream) noexcept {
  using namespace nvte;
  return launch(plan_kernel, dim3(1), kThreads, stream, *args);
}
