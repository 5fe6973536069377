// Choice of experts for each token. A warp holds the scores of a token in registers; a block takes
// a token with more experts than that, or more chosen ones.
//
// The choice needs the value of the K-th best score and, on a tie there, the lowest indices. Every
// lane sorts the keys of its scores, and K times the best head of all lanes goes.
//
// H200, sigmoid and bias, K = 8, map of bytes, 65536 tokens, us (at 4.3 TB/s): 128 experts bf16 35
// (18), f32 37 (25); 256 experts bf16 54 (35), f32 61 (51). Instructions limit bf16: with a vote in
// each round of the choice these were 40, 43, 63 and 68. 16384 tokens: 512 experts bf16 34 (18),
// f32 37 (25); 1024 experts bf16 75 (35), f32 76 (51).
//
// The dtype is a template's parameter up to 256 experts: known at run time only, it costs 3 to 10 %
// there, and nothing that can be measured with more.

#include <cmath>
#include <utility>

#include "common/runtime_float.cuh"
#include "common/launch.cuh"
#include "router.cuh"
#include "nvte/backend/fused_router.h"

namespace nvte {
namespace {

using Args = NVTEXRouterForwardArgs;

constexpr int kWarps = 4;
constexpr int kMostChosen = 64;  // The most experts that a warp chooses.
constexpr int kBlock = 512;

__device__ __forceinline__ float score_of(NVTEXRouterScore function, float x) {
  if (function == NVTEX_ROUTER_SIGMOID) return sigmoid(x);
  return function == NVTEX_ROUTER_SQRTSOFTPLUS ? sqrtsoftplus(x) : x;
}

__device__ __forceinline__ bool late_softmax(const Args &a) {
  return a.score == NVTEX_ROUTER_SOFTMAX && !a.pre_softmax;
}

template <int V>
__device__ __forceinline__ void load_bias(const Args &a, size_t i, float (&f)[V]) {
  load_floats<RuntimeFloat>(a.bias_dtype, a.expert_bias, i, f);
}

__device__ __forceinline__ void write_index(const NVTEXRouting &to, size_t at, size_t expert) {
  if (to.index_dtype == kNVTEInt16) {
    *element<int16_t>(to.indices, at) = static_cast<int16_t>(expert);
  } else if (to.index_dtype == kNVTEInt32) {
    *element<int32_t>(to.indices, at) = static_cast<int32_t>(expert);
  } else {
    *element<int64_t>(to.indices, at) = static_cast<int64_t>(expert);
  }
}

// Batcher's odd-even merge sort: the places that are compared. A list: of loops around the
// comparisons the compiler unrolls the long ones only in part, and the keys lie in local memory.
template <int N>
struct Network {
  int low[6 * N] = {}, high[6 * N] = {}, count = 0;

  __host__ __device__ constexpr Network() {
    for (int p = 1; p < N; p *= 2) {
      for (int k = p; k >= 1; k /= 2) {
        for (int i = k % p; i + k < N; ++i) {
          if ((i - k % p) % (2 * k) >= k || i / (2 * p) != (i + k) / (2 * p)) continue;
          low[count] = i;
          high[count++] = i + k;
        }
      }
    }
  }
};

template <int kLow, int kHigh, int N>
__device__ __forceinline__ void order(uint32_t (&key)[N]) {
  const uint32_t most = max(key[kLow], key[kHigh]);
  key[kHigh] = min(key[kLow], key[kHigh]);
  key[kLow] = most;
}
template <int N, int... kStep>
__device__ __forceinline__ void sort(uint32_t (&key)[N], std::integer_sequence<int, kStep...>) {
  constexpr Network<N> kNetwork;
  (order<kNetwork.low[kStep], kNetwork.high[kStep]>(key), ...);
}
// Sorts in descending order.
template <int N>
__device__ __forceinline__ void sort(uint32_t (&key)[N]) {
  sort(key, std::make_integer_sequence<int, Network<N>().count>());
}

// Removes the first element if `off`.
template <int N>
__device__ __forceinline__ void shift(uint32_t (&key)[N], bool off) {
#pragma unroll
  for (int i = 0; i < N; ++i) key[i] = off ? (i + 1 < N ? key[i + 1] : 0) : key[i];
}

// Removes one of the keys that equal `best`, the head of some lanes.
template <int N>
__device__ __forceinline__ void pop(uint32_t (&key)[N], uint32_t best, unsigned team) {
  const unsigned heads = __ballot_sync(kFullWarp, key[0] == best) & team;
  shift(key, key[0] == best && (heads & lanes_below()) == 0);
}

constexpr unsigned kMostGroups = 32;  // The most groups; each has a lane.

// Keys of experts outside the best groups become 0. Groups are 1 to 32 neighbouring lanes of one of
// the C vectors of a lane.
template <int V, int C>
__device__ void keep_best_groups(const Args &a, uint32_t (&key)[V * C]) {
  const unsigned lanes = static_cast<unsigned>(a.experts / a.groups) / V;
  const unsigned lane = threadIdx.x % 32, across = 32 / lanes;  // Groups of a vector.
  const unsigned team = (lanes == 32 ? kFullWarp : (1u << lanes) - 1) << (lane / lanes * lanes);
  const unsigned of_each = static_cast<unsigned>(a.topk / a.group_topk);
  uint32_t mine = 0;  // The key of the group that has the lane's number.
#pragma unroll
  for (int c = 0; c < C; ++c) {
    float sum = 0.0f;
    if (of_each == 2) {
      uint32_t best = 0, next = 0;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        next = max(next, min(best, key[c * V + j]));
        best = max(best, key[c * V + j]);
      }
      for (unsigned step = lanes / 2; step > 0; step /= 2) {
        const uint32_t other = __shfl_xor_sync(kFullWarp, best, step);
        next = max(next, __shfl_xor_sync(kFullWarp, next, step));
        next = max(next, min(best, other));
        best = max(best, other);
      }
      sum = value_of(best) + value_of(next);
    } else {
      uint32_t sorted[V];
#pragma unroll
      for (int j = 0; j < V; ++j) sorted[j] = key[c * V + j];
      sort(sorted);
      for (unsigned i = 0; i < of_each; ++i) {
        uint32_t best = sorted[0];
        for (unsigned step = lanes / 2; step > 0; step /= 2) {
          best = max(best, __shfl_xor_sync(kFullWarp, best, step));
        }
        sum += value_of(best);
        pop(sorted, best, team);
      }
    }
    const uint32_t of_group = __shfl_sync(kFullWarp, key_of(sum), lane % across * lanes);
    if (lane / across == static_cast<unsigned>(c)) mine = of_group;
  }
  // How many groups are better: of equal ones that of the lower number.
  unsigned better = 0;
  for (unsigned g = 0; g < a.groups; ++g) {
    const uint32_t other = __shfl_sync(kFullWarp, mine, g);
    better += other > mine || (other == mine && g < lane);
  }
  const unsigned kept = __ballot_sync(kFullWarp, lane < a.groups && better < a.group_topk);
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const bool keep = kept >> ((c * across + lane / lanes) % 32) & 1;
#pragma unroll
    for (int j = 0; j < V; ++j) key[c * V + j] = keep ? key[c * V + j] : 0;
  }
}

// The places in the list of a lane's best elements, if the choice gives them. Only the instance for
// lists has them: in others even unused ones cost 5 to 10 % of the time.
struct Places {
  bool known;
  uint32_t best;    // The key of the lane's best element.
  uint32_t places;  // Of its chosen elements, 8 bits each, that of the least one lowest.
};

// Bits of a lane's elements that are chosen; `first`, `next`: the best key, and the best that is
// not chosen if that is asked for.
template <int V, int C, bool kPlaces>
__device__ __forceinline__ uint32_t choose(const Args &a, const uint32_t (&key)[V * C],
                                           bool distinct, uint32_t &first, uint32_t &next,
                                           Places &places) {
  constexpr int N = V * C;
  const unsigned topk = static_cast<unsigned>(a.topk);
  auto at_least = [&](uint32_t bound) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) bits |= key[i] >= bound ? 1u << i : 0;
    return bits;
  };
  uint32_t sorted[N];
  auto start = [&] {
#pragma unroll
    for (int i = 0; i < N; ++i) sorted[i] = key[i];
    sort(sorted);
  };
  start();
  uint32_t last = __reduce_max_sync(kFullWarp, sorted[0]);
  uint32_t chosen;
  first = last;
  if constexpr (kPlaces) places = {false, sorted[0], 0};
  if (distinct) {
    // This assumes that no two lanes have the same key, because a vote for each key would be a
    // third of the work. Equal keys are taken together, and then more than `topk` are found.
    for (unsigned i = 1; i < topk; ++i) {
      const bool mine = sorted[0] == last;
      if constexpr (kPlaces) places.places = mine ? places.places << 8 | (i - 1) : places.places;
      shift(sorted, mine);
      last = __reduce_max_sync(kFullWarp, sorted[0]);
    }
    if constexpr (kPlaces) {
      if (sorted[0] == last) places.places = places.places << 8 | (topk - 1);
    }
    chosen = at_least(last);
    if (__reduce_add_sync(kFullWarp, __popc(chosen)) == topk) {
      if constexpr (kPlaces) places.known = true;
      if (a.cutoff != nullptr) {
        shift(sorted, sorted[0] == last);
        next = __reduce_max_sync(kFullWarp, sorted[0]);
      }
      return chosen;
    }
    start();
    last = first;
  }
  for (unsigned i = 1; i < topk; ++i) {
    pop(sorted, last, kFullWarp);
    last = __reduce_max_sync(kFullWarp, sorted[0]);
  }
  pop(sorted, last, kFullWarp);
  next = __reduce_max_sync(kFullWarp, sorted[0]);
  if (next != last) return at_least(last);
  // A tie with one that is not chosen: of the equal ones the lowest indices are.
  chosen = at_least(last + 1);
  for (unsigned n = __reduce_add_sync(kFullWarp, __popc(chosen)); n < topk; ++n) {
    uint32_t expert = ~0u;
    int at = 0;
#pragma unroll
    for (int i = N - 1; i >= 0; --i) {
      if (key[i] == last && (chosen >> i & 1) == 0) {
        expert = lane_element<V>(i / V) + i % V;
        at = i;
      }
    }
    if (__reduce_min_sync(kFullWarp, expert) == expert && expert != ~0u) chosen |= 1u << at;
  }
  return chosen;
}

// The place of an expert in the list is the number of those before it: of a greater key, or of the
// same and a lower index.
template <int V, int C, bool kPlaces>
__device__ __forceinline__ void write_indices(const Args &a, size_t token, uint32_t chosen,
                                              const uint32_t (&key)[V * C], const Places &places,
                                              uint64_t *slots) {
  // Of two chosen elements of a lane the better one is the lane's best. Few tokens have a lane of
  // three if few experts are chosen.
  if (kPlaces && places.known && __all_sync(kFullWarp, __popc(chosen) <= 2)) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < V * C; ++i) best |= key[i] == places.best ? 1u << i : 0;
    best &= -best;  // Of equal ones the first.
    auto write = [&](uint32_t bit, uint32_t place) {
      const int i = __ffs(bit) - 1;
      write_index(a.routing, token * a.topk + place, lane_element<V>(i / V) + i % V);
    };
    const uint32_t other = chosen & ~best;
    if (chosen != 0) write(best, other != 0 ? places.places >> 8 : places.places);
    if (other != 0) write(other, places.places & 255);
    return;
  }
  unsigned count = 0;
#pragma unroll
  for (int i = 0; i < V * C; ++i) {
    const bool mine = chosen >> i & 1;
    const unsigned lanes = __ballot_sync(kFullWarp, mine);
    if (mine) {
      const uint32_t expert = lane_element<V>(i / V) + i % V;
      slots[count + __popc(lanes & lanes_below())] = uint64_t{key[i]} << 32 | (~expert);
    }
    count += __popc(lanes);
  }
  __syncwarp();
  for (unsigned s = threadIdx.x % 32; s < count; s += 32) {
    const uint64_t mine = slots[s];
    unsigned place = 0;
#pragma unroll 4
    for (unsigned other = 0; other < count; ++other) place += slots[other] > mine;
    write_index(a.routing, token * a.topk + place, ~static_cast<uint32_t>(mine));
  }
  __syncwarp();
}

template <int V, int C>
__device__ __forceinline__ void write_map(const Args &a, size_t token, uint32_t chosen) {
  const unsigned lane = threadIdx.x % 32;
  if (a.routing.bytes != nullptr) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if (lane_element<V>(c) >= a.experts) continue;
      uint8_t *to = a.routing.bytes + token * a.experts + lane_element<V>(c);
      if constexpr (V == 4) {
        *reinterpret_cast<uint32_t *>(to) = (chosen >> (4 * c) & 15) * 0x00204081 & 0x01010101;
      } else {
        *to = chosen >> c & 1;
      }
    }
  }
  if (a.routing.bits != nullptr) {
    const size_t width = (a.experts + 7) / 8;
    uint8_t *row = a.routing.bits + token * width;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if constexpr (V == 4) {
        const uint32_t mine = chosen >> (4 * c) & 15;
        const uint32_t other = __shfl_xor_sync(kFullWarp, mine, 1);
        const unsigned at = c * 16 + lane / 2;
        if (lane % 2 == 0 && at < width) row[at] = static_cast<uint8_t>(mine | other << 4);
      } else {
        const uint32_t word = __ballot_sync(kFullWarp, chosen >> c & 1);
        const unsigned at = c * 4 + lane;
        if (lane < 4 && at < width) row[at] = static_cast<uint8_t>(word >> (8 * lane));
      }
    }
  }
}

// What a call asks for: instances, because each takes registers. kPlain writes lists, too, but not
// as fast as kList, which writes nothing else.
enum class Form { kPlain, kList, kGroups, kAll };

// Lane l has elements V (32 c + l) to V (32 c + l) + V - 1 for c below C.
template <class T, Form kForm, int V, int C>
__global__ void __launch_bounds__(32 * kWarps, V *C <= 8 ? 7 : 1)
    warp_kernel(const __grid_constant__ Args a) {
  constexpr int N = V * C;
  constexpr bool kAll = kForm == Form::kAll, kList = kForm == Form::kList;
  using P = std::conditional_t<kAll, RuntimeFloat, T>;
  __shared__ uint64_t slots[kWarps][kMostChosen];
  const size_t step = size_t{gridDim.x} * kWarps;
  size_t token = size_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  Vec<T, V> x[C];
  auto load_row = [&](size_t t) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const size_t e = lane_element<V>(c);
      x[c] = load<T, V>(a.dtype, a.logits, t * a.experts + e, t < a.tokens && e < a.experts);
    }
  };
  // The next token's logits are under way meanwhile, if there are registers for them.
  constexpr bool kAhead = N <= 16;
  if constexpr (kAhead) load_row(token);
  for (; token < a.tokens; token += step) {
    if constexpr (!kAhead) load_row(token);
    bool inside[C];
    float s[N];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      inside[c] = lane_element<V>(c) < a.experts;
      float f[V];
      to_float(a.dtype, x[c], f);
#pragma unroll
      for (int j = 0; j < V; ++j) s[c * V + j] = f[j];
    }
    if constexpr (kAhead) load_row(token + step);
    auto store_floats = [&](const float (&f)[N]) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        float part[V];
#pragma unroll
        for (int j = 0; j < V; ++j) part[j] = f[c * V + j];
        if (inside[c]) {
          store(a.intermediate, token * a.experts + lane_element<V>(c), from_float<F32, V>(part));
        }
      }
    };

    if (a.score == NVTEX_ROUTER_SQRTSOFTPLUS) store_floats(s);
    if (a.score == NVTEX_ROUTER_SIGMOID) {
#pragma unroll
      for (int i = 0; i < N; ++i) s[i] = sigmoid(s[i]);
    } else if (a.score == NVTEX_ROUTER_SQRTSOFTPLUS) {
#pragma unroll
      for (int i = 0; i < N; ++i) s[i] = sqrtsoftplus(s[i]);
    } else if (a.pre_softmax) {
      float most = -INFINITY;
#pragma unroll
      for (int i = 0; i < N; ++i) most = inside[i / V] ? fmaxf(most, s[i]) : most;
      most = warp_most(most);
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        s[i] = expf(s[i] - most);
        sum += inside[i / V] ? s[i] : 0.0f;
      }
      const float weight = 1.0f / warp_sum(sum);
#pragma unroll
      for (int i = 0; i < N; ++i) s[i] *= weight;
    }
    if (a.score == NVTEX_ROUTER_SIGMOID || a.pre_softmax) store_floats(s);
    if (kAll && a.score != NVTEX_ROUTER_SOFTMAX) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < N; ++i) sum += inside[i / V] ? s[i] : 0.0f;
      const float weight = 1.0f / (warp_sum(sum) + kEpsilon);
#pragma unroll
      for (int i = 0; i < N; ++i) s[i] *= weight;
    }

    uint32_t key[N];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float bias[V] = {};
      if (!kAll && a.expert_bias != nullptr && inside[c]) load_bias(a, lane_element<V>(c), bias);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int i = c * V + j;
        key[i] = inside[c] ? key_of(s[i] + bias[j]) : 0;
      }
    }
    if constexpr (kForm == Form::kGroups) keep_best_groups<V, C>(a, key);
    uint32_t first, next = 0;
    Places places;
    // Logits of 16 bits are often equal.
    const bool distinct = is_float32<T>(a.dtype) || (!kAll && a.expert_bias != nullptr);
    const uint32_t chosen = choose<V, C, kList>(a, key, distinct, first, next, places);
    if constexpr (!kList) write_map<V, C>(a, token, chosen);
    if constexpr (!kAll) {
      if (kList || a.routing.indices != nullptr) {
        write_indices<V, C, kList>(a, token, chosen, key, places, slots[threadIdx.x / 32]);
      }
      if (a.cutoff != nullptr && threadIdx.x % 32 == 0) a.cutoff[token] = value_of(next);
      const bool late = late_softmax(a);
      if (late) {
        const float most = value_of(first);
#pragma unroll
        for (int i = 0; i < N; ++i) s[i] = chosen >> i & 1 ? expf(s[i] - most) : 0.0f;
      }
      float weight = 1.0f;
      if (late || (a.score != NVTEX_ROUTER_SOFTMAX && a.topk > 1)) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < N; ++i) sum += chosen >> i & 1 ? s[i] : 0.0f;
        weight = 1.0f / (warp_sum(sum) + (late ? 0.0f : kEpsilon));
      }
      if (late) {
        float p[N];
#pragma unroll
        for (int i = 0; i < N; ++i) p[i] = chosen >> i & 1 ? s[i] * weight : -INFINITY;
        store_floats(p);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) {
        s[i] = chosen >> i & 1 ? a.scaling_factor * (s[i] * weight) : 0.0f;
      }
    }
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float part[V];
#pragma unroll
      for (int j = 0; j < V; ++j) part[j] = s[c * V + j];
      if (inside[c]) {
        store<P>(kAll ? a.probs_dtype : a.dtype, a.probs, token * a.experts + lane_element<V>(c),
                 part);
      }
    }
  }
}

// ---- A block for a token

struct Shared {
  float sums[kBlock / 32];
  uint32_t histogram[256];
  uint32_t digit, above;
  size_t last;
};

template <class Op>
__device__ float over_block(Op op, float start, float value, Shared &shared) {
  value = over_warp(op, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.sums[threadIdx.x / 32] = value;
  __syncthreads();
  return over_warp(op, threadIdx.x % 32 < kBlock / 32 ? shared.sums[threadIdx.x % 32] : start);
}

// What is chosen: keys above `key`, and equal ones up to the index `last`.
struct Choice {
  uint32_t key;
  size_t last;
  __device__ __forceinline__ bool has(uint32_t k, size_t i) const {
    return k > key || (k == key && i <= last);
  }
};

// The `count` best of [begin, end): the digits of the last one's key by histograms, then its index.
template <class Key>
__device__ Choice choose_by_digits(const Key &key, size_t begin, size_t end, size_t count,
                                   Shared &shared) {
  uint32_t prefix = 0, mask = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += kBlock) shared.histogram[i] = 0;
    __syncthreads();
    for (size_t i = begin + threadIdx.x; i < end; i += kBlock) {
      const uint32_t k = key(i);
      if ((k & mask) == prefix) atomicAdd(&shared.histogram[k >> shift & 255], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t above = 0;
      int digit = 255;
      while (digit > 0 && above + shared.histogram[digit] < count) {
        above += shared.histogram[digit--];
      }
      shared.digit = digit;
      shared.above = above;
    }
    __syncthreads();
    prefix |= shared.digit << shift;
    mask |= 255u << shift;
    count -= shared.above;
  }
  for (size_t tile = begin; tile < end; tile += kBlock) {
    const size_t i = tile + threadIdx.x;
    const bool equal = i < end && key(i) == prefix;
    const size_t found = static_cast<size_t>(__syncthreads_count(equal));
    if (found < count) {
      count -= found;
      continue;
    }
    const unsigned lanes = __ballot_sync(kFullWarp, equal);
    if (threadIdx.x % 32 == 0) shared.histogram[threadIdx.x / 32] = __popc(lanes);
    __syncthreads();
    size_t before = __popc(lanes & lanes_below());
    for (unsigned w = 0; w < threadIdx.x / 32; ++w) before += shared.histogram[w];
    if (equal && before + 1 == count) shared.last = i;
    __syncthreads();
    break;
  }
  return {prefix, shared.last};
}

// `cached`: `keys`, the dynamic shared memory, holds those of a token. The group
// scores lie in the token's row of the intermediate output until that is written.
template <bool kAll>
__global__ void __launch_bounds__(kBlock)
    block_kernel(const __grid_constant__ Args a, bool cached) {
  extern __shared__ uint32_t keys[];
  __shared__ Shared shared;
  const size_t experts = a.experts;
  const bool late = late_softmax(a);
  const auto sum = [](float x, float y) { return x + y; };
  const auto most = [](float x, float y) { return fmaxf(x, y); };
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (size_t token = blockIdx.x; token < a.tokens; token += gridDim.x) {
    float *intermediate = a.intermediate + token * experts;
    auto logit = [&](size_t i) {
      float f[1];
      load_floats<RuntimeFloat>(a.dtype, a.logits, token * experts + i, f);
      return f[0];
    };
    auto for_each = [&](auto &&body) {
      for (size_t i = threadIdx.x; i < experts; i += kBlock) body(i);
    };
    // The maximum and the sum of the softmax of all scores, or their sum alone.
    float top = 0.0f, total = 1.0f;
    if (a.pre_softmax) {
      top = -INFINITY;
      for_each([&](size_t i) { top = fmaxf(top, logit(i)); });
      top = over_block(most, -INFINITY, top, shared);
    }
    if (a.pre_softmax || (kAll && a.score != NVTEX_ROUTER_SOFTMAX)) {
      total = 0.0f;
      for_each([&](size_t i) {
        total += a.pre_softmax ? expf(logit(i) - top) : score_of(a.score, logit(i));
      });
      total = over_block(sum, 0.0f, total, shared);
      total = 1.0f / (a.pre_softmax ? total : total + kEpsilon);
    }
    auto raw = [&](size_t i) {
      return a.pre_softmax ? expf(logit(i) - top) * total : score_of(a.score, logit(i));
    };
    auto score = [&](size_t i) { return kAll && !a.pre_softmax ? raw(i) * total : raw(i); };
    auto biased = [&](size_t i) {
      float bias[1] = {0.0f};
      if (a.expert_bias != nullptr) load_bias(a, i, bias);
      return key_of(score(i) + bias[0]);
    };
    Choice groups = {0, 0};
    const size_t width = a.groups > 0 ? experts / a.groups : experts;
    auto key = [&](size_t i) -> uint32_t {
      if (cached) return keys[i];
      if (a.groups > 0 && !groups.has(key_of(intermediate[i / width]), i / width)) return 0;
      return biased(i);
    };
    if (cached) {
      __syncthreads();
      for_each([&](size_t i) { keys[i] = biased(i); });
      __syncthreads();
    }
    if (a.groups > 0) {
      auto plain = [&](size_t i) { return cached ? keys[i] : biased(i); };
      for (size_t g = 0; g < a.groups; ++g) {
        const size_t begin = g * width, end = begin + width;
        const Choice best = choose_by_digits(plain, begin, end, a.topk / a.group_topk, shared);
        float part = 0.0f;
        for (size_t i = begin + threadIdx.x; i < end; i += kBlock) {
          const uint32_t k = plain(i);
          if (best.has(k, i)) part += value_of(k);
        }
        part = over_block(sum, 0.0f, part, shared);
        if (threadIdx.x == 0) intermediate[g] = part;
      }
      __syncthreads();
      groups = choose_by_digits([&](size_t g) { return key_of(intermediate[g]); }, 0, a.groups,
                                a.group_topk, shared);
      if (cached) {
        for_each([&](size_t i) {
          if (!groups.has(key_of(intermediate[i / width]), i / width)) keys[i] = 0;
        });
        __syncthreads();
      }
    }
    const Choice best = choose_by_digits(key, 0, experts, a.topk, shared);
    auto chosen = [&](size_t i) { return best.has(key(i), i); };

    if (a.cutoff != nullptr) {
      uint32_t next = 0;
      for_each([&](size_t i) { next = chosen(i) ? next : max(next, key(i)); });
      next = __reduce_max_sync(kFullWarp, next);
      __syncthreads();
      if (threadIdx.x % 32 == 0) shared.histogram[threadIdx.x / 32] = next;
      __syncthreads();
      const unsigned w = threadIdx.x;
      if (w < 32) {
        next = __reduce_max_sync(kFullWarp, w < kBlock / 32 ? shared.histogram[w] : 0);
        if (w == 0) a.cutoff[token] = value_of(next);
      }
    }
    if (a.routing.bytes != nullptr) {
      for_each([&](size_t i) { a.routing.bytes[token * experts + i] = chosen(i); });
    }
    if (a.routing.bits != nullptr) {
      const size_t bytes = (experts + 7) / 8;
      for (size_t b = threadIdx.x; b < bytes; b += kBlock) {
        uint32_t byte = 0;
        for (size_t i = 8 * b; i < 8 * b + 8 && i < experts; ++i) byte |= chosen(i) << (i % 8);
        a.routing.bits[token * bytes + b] = static_cast<uint8_t>(byte);
      }
    }
    if (a.routing.indices != nullptr) {
      // A warp counts the experts before each one that is chosen.
      const unsigned lane = threadIdx.x % 32;
      for (size_t tile = threadIdx.x - lane; tile < experts; tile += kBlock) {
        const bool mine = tile + lane < experts && chosen(tile + lane);
        for (unsigned left = __ballot_sync(kFullWarp, mine); left != 0; left &= left - 1) {
          const size_t i = tile + __ffs(left) - 1;
          const uint32_t k = key(i);
          unsigned before = 0;
          for (size_t other = lane; other < experts; other += 32) {
            const uint32_t o = key(other);
            before += o > k || (o == k && other < i);
          }
          before = __reduce_add_sync(kFullWarp, before);
          if (lane == 0) write_index(a.routing, token * a.topk + before, i);
        }
      }
    }
    float weight = 1.0f;
    if (late) {
      top = -INFINITY;
      for_each([&](size_t i) { top = chosen(i) ? fmaxf(top, logit(i)) : top; });
      top = over_block(most, -INFINITY, top, shared);
    }
    auto value = [&](size_t i) { return late ? expf(logit(i) - top) : score(i); };
    if (!kAll && (late || (a.score != NVTEX_ROUTER_SOFTMAX && a.topk > 1))) {
      weight = 0.0f;
      for_each([&](size_t i) { weight += chosen(i) ? value(i) : 0.0f; });
      weight = over_block(sum, 0.0f, weight, shared);
      weight = 1.0f / (late ? weight : weight + kEpsilon);
    }
    for_each([&](size_t i) {
      const bool in = kAll || chosen(i);
      const float p = in ? value(i) * weight : 0.0f;
      const float out[1] = {kAll ? p : in ? a.scaling_factor * p : 0.0f};
      store<RuntimeFloat>(kAll ? a.probs_dtype : a.dtype, a.probs, token * experts + i, out);
    });
    // A key that is not in shared memory may need the group scores until here.
    auto middle = [&](size_t i) {
      if (late) return chosen(i) ? value(i) * weight : -INFINITY;
      return a.score == NVTEX_ROUTER_SQRTSOFTPLUS ? logit(i) : raw(i);
    };
    if (late && !cached && a.groups > 0) {
      // Group g is read by experts from g on, so the last are written first.
      for (size_t tile = (experts - 1) / kBlock + 1; tile-- > 0;) {
        const size_t i = tile * kBlock + threadIdx.x;
        const float v = i < experts ? middle(i) : 0.0f;
        __syncthreads();
        if (i < experts) intermediate[i] = v;
        __syncthreads();
      }
    } else {
      __syncthreads();
      for_each([&](size_t i) { intermediate[i] = middle(i); });
    }
    __syncthreads();
  }
}

template <class T, Form kForm, int V, int C>
NVTEXOutcome launch_warps(const Args &a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const size_t blocks = ceil_div(a.tokens, kWarps), most = size_t(device.sm_count) * 16;
  const dim3 grid(static_cast<unsigned>(blocks < most ? blocks : most));
  return launch(warp_kernel<T, kForm, V, C>, grid, 32 * kWarps, stream, a);
}

template <bool kAll>
NVTEXOutcome launch_blocks(const Args &a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const bool cached = a.experts <= shared_room(device) / 4;
  auto kernel = block_kernel<kAll>;
  const size_t shared = cached ? a.experts * 4 : 0;
  if (const cudaError_t error = allow_shared(kernel, shared)) return outcome(error);
  const dim3 grid(static_cast<unsigned>(a.tokens < kMaxBlocks ? a.tokens : kMaxBlocks));
  kernel<<<grid, kBlock, shared, stream>>>(a, cached);
  return outcome(cudaGetLastError());
}

template <Form kForm>
NVTEXOutcome launch_vectors(const Args &a, cudaStream_t stream) {
  if (a.experts <= 256) {
    return dispatch<F32, F16, BF16>(a.dtype, [&](auto t) {
      using T = decltype(t);
      if constexpr (!std::is_same_v<T, F16>) {
        if (a.experts <= 128) return launch_warps<T, kForm, 4, 1>(a, stream);
      }
      return launch_warps<T, kForm, 4, 2>(a, stream);
    });
  }
  if (a.experts <= 512) return launch_warps<RuntimeFloat, kForm, 4, 4>(a, stream);
  return launch_warps<RuntimeFloat, kForm, 4, 8>(a, stream);
}

template <bool kAll>
NVTEXOutcome run(const Args &a, cudaStream_t stream) {
  const bool vectors = a.experts % 4 == 0 && aligned(a.logits, 4 * float_bytes(a.dtype)) &&
                       aligned(a.probs, 4 * float_bytes(a.probs_dtype)) &&
                       aligned(a.intermediate, 16) && aligned(a.routing.bytes, 4) &&
                       aligned(a.expert_bias, 4 * float_bytes(a.bias_dtype));
  const size_t lanes = a.groups > 0 ? a.experts / a.groups / 4 : 1;
  const bool simple_groups =
      a.groups == 0 || (a.groups <= kMostGroups && vectors && a.experts / a.groups % 4 == 0 &&
                        lanes <= 32 && (lanes & (lanes - 1)) == 0);
  if (a.experts > 1024 || a.topk > kMostChosen || !simple_groups) {
    return launch_blocks<kAll>(a, stream);
  }
  constexpr Form kForm = kAll ? Form::kAll : Form::kPlain;
  if (!vectors) {
    if (a.experts <= 128) return launch_warps<RuntimeFloat, kForm, 1, 4>(a, stream);
    if (a.experts <= 256) return launch_warps<RuntimeFloat, kForm, 1, 8>(a, stream);
    return launch_warps<RuntimeFloat, kForm, 1, 32>(a, stream);
  }
  if constexpr (!kAll) {
    if (a.groups > 0) return launch_vectors<Form::kGroups>(a, stream);
    if (a.routing.indices != nullptr) return launch_vectors<Form::kList>(a, stream);
  }
  return launch_vectors<kForm>(a, stream);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_router_forward(const NVTEXRouterForwardArgs *args,
                                                 cudaStream_t stream) noexcept {
  using namespace nvte;
  return args->all ? run<true>(*args, stream) : run<false>(*args, stream);
}
