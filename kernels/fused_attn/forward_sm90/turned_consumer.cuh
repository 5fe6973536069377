// A consumer for FP8 values that come turned. It waits for each of its products, and consumers
// multiply in turn, so that one's exponentials hide behind the products of others. Scores and
// probabilities share registers, which leaves room for tiles of 128 keys.
#pragma once

#include "consumer.cuh"

namespace nvte {
namespace sm90_forward {

// Maxima that the four threads of a row exchange only when one passes the row's power of 2.
template <class C>
struct LazySoftmax : Softmax<C> {
  using Softmax<C>::max, Softmax<C>::sum, Softmax<C>::base_of;
  float base[2];  // The power of 2 that the row's exponentials are divided by.

  __device__ __forceinline__ void begin() {
    max[0] = max[1] = base[0] = base[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
  }
  // Scores become exp(x - max) divided by a power of 2 that is exchanged between the four
  // threads of a row only when a maximum passes it. True if earlier results have to be multiplied
  // by `correction`. Until finish(), `max` is the thread's own.
  __device__ __forceinline__ bool follow(float (&s)[C::kKeys / 2], float scale_log2,
                                         float (&correction)[2]) {
    int bits[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) bits[h] = this->largest_bits(s, h);
    const bool negative = __any_sync(0xffffffff, (bits[0] | bits[1]) < 0);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = __int_as_float(bits[h]);
      if (negative) {
        m = max[h];
#pragma unroll
        for (int j = 0; j < C::kKeys / 8; ++j) {
          m = fmaxf(m, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        }
      }
      max[h] = m;
    }
    const bool grew = __any_sync(
        0xffffffff, !(max[0] * scale_log2 <= base[0]) || !(max[1] * scale_log2 <= base[1]));
    if (grew) {
      finish();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float next = base_of(max[h], scale_log2);
        correction[h] = power2(base[h] - (next == -INFINITY ? 0.0f : next));
        base[h] = next;
        sum[h] *= correction[h];
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // The row has no key so far.
      const float up = C::kLog2Boost - (base[h] == -INFINITY ? 0.0f : base[h]);
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float &x = s[4 * j + 2 * h + e];
          x = power2(__fmaf_rn(x, scale_log2, up));
          total = __fadd_rn(total, x);
        }
      }
      sum[h] += total;
    }
    return grew;
  }
  // Makes `max` the row's.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      max[h] = fmaxf(max[h], __shfl_xor_sync(0xffffffff, max[h], 1));
      max[h] = fmaxf(max[h], __shfl_xor_sync(0xffffffff, max[h], 2));
    }
  }
};

// The ends of the tiles of keys that some row of a consumer sees, and of those that all of its rows
// see. The consumers of a tile have different ones where the mask is causal.
struct SeenKeys {
  int end, whole;
};
template <class C>
__device__ __forceinline__ SeenKeys seen_keys(const Params &p, const Tile &t, int w) {
  const int shift = p.bottom_right ? t.keys - t.rows : 0;
  const int first = t.m + 64 * w, last = min(first + 64, t.rows) - 1;
  const auto right_of = [&](int row) {
    return p.right == kUnbounded ? t.keys : max(0, min(t.keys, row + shift + p.right + 1));
  };
  const int end = first < t.rows ? (right_of(last) + C::kKeys - 1) / C::kKeys : 0;
  return {__shfl_sync(0xffffffff, max(t.begin, min(end, t.end)), 0),
          __shfl_sync(0xffffffff, right_of(first) / C::kKeys, 0)};
}

template <class C>
__device__ __forceinline__ void consume_turned_tiles(const Params &p, unsigned char *shared,
                                                     Control<C> &control, int w) {
  using State = PipelineState<C::kStages>;
  const auto release = [](auto &pipeline, const State &at) {
    if (threadIdx.x % 32 == 0) pipeline.consumer_release(at);
  };
  // Hardware barrier 1 + w completes when it is consumer w's turn to multiply: by a tile of values,
  // and by the tile of keys after it.
  const auto wait_turn = [&] { bar_sync(1 + w, 256); };
  const auto end_turn = [&] { bar_arrive(1 + (w + 1) % C::kConsumers, 256); };
  if (w == C::kConsumers - 1) end_turn();
  State k_at, v_at;
  float s[C::kKeys / 2], o[C::kDimV / 2], correction[2];
  LazySoftmax<C> softmax;
  // The factor that turns products of queries and keys into exponents of 2.
  const float scale_log2 = p.scale * kLog2e * factor_of(p.q_scale_inv) * factor_of(p.k_scale_inv);
  Amax amax;
  for (unsigned count = 0;; ++count) {
    const PipelineState<C::kQueries> q_at = C::queries_at(w, count);
    const uint32_t q = shared_address(shared + q_at.stage * C::kQueryBytes);
    control.q.consumer_wait(q_at);
    const Tile &t = control.tile[count % kTiles];
    // The shuffles tell the compiler that a warp agrees on them.
    const int begin = __shfl_sync(0xffffffff, t.begin, 0), low = __shfl_sync(0xffffffff, t.low, 0);
    int n = __shfl_sync(0xffffffff, t.end, 0);
    if (n <= begin) {
      if (t.batch < 0) break;
      write_nothing(p, t, w);
      control.q.consumer_release(q_at);
      continue;
    }
    const SeenKeys seen = seen_keys<C>(p, t, w);
    // As many turns as the others have, which see these keys.
    for (; n > seen.end; --n) {
      wait_turn();
      end_turn();
      control.k.consumer_wait(k_at);
      release(control.k, k_at);
      k_at.advance();
      control.v.consumer_wait(v_at);
      release(control.v, v_at);
      v_at.advance();
    }
    bool first = n > begin;  // The first scores have a turn of their own.
    if (!first) {
      wait_turn();
      end_turn();
    }
    softmax.begin();
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) o[i] = 0.0f;
#pragma unroll 1
    while (n > begin) {
      --n;
      control.k.consumer_wait(k_at);
      if (first) wait_turn();
      first = false;
      pin(s);
      wgmma_fence();
      multiply_scores<C>(s, q, Held<C>{},
                         shared_address(shared + C::kAtKeys + k_at.stage * C::kKeyBytes));
      wgmma_commit_group();
      wgmma_wait_group<0>();
      end_turn();
      pin(s);
      release(control.k, k_at);
      k_at.advance();
      if (n >= seen.whole || n < low) mask_scores<C>(s, p, t, n, w);
      if (softmax.follow(s, scale_log2, correction)) {
#pragma unroll
        for (int i = 0; i < C::kDimV / 2; ++i) o[i] *= correction[i / 2 % 2];
      }
      uint32_t a[kSteps<C>][4];
      round_scores<C>(s, Kept<C>{}, a);
      control.v.consumer_wait(v_at);
      wait_turn();
      pin(o);
      wgmma_fence();
      multiply_values<C>(o, a, shared_address(shared + C::kAtValues + v_at.stage * C::kValueBytes));
      wgmma_commit_group();
      wgmma_wait_group<0>();
      if (n == begin) end_turn();
      pin(o);
      release(control.v, v_at);
      v_at.advance();
    }
    softmax.finish();
    if (p.o_dtype == kNVTEBFloat16) {
      write_tile<C, BF16>(p, t, w, o, softmax, scale_log2, amax);
    } else if (p.o_dtype == kNVTEFloat16) {
      write_tile<C, F16>(p, t, w, o, softmax, scale_log2, amax);
    } else {
      write_tile<C, E4M3>(p, t, w, o, softmax, scale_log2, amax);
    }
    // Every thread releases the tile, since each has read its description.
    control.q.consumer_release(q_at);
  }
  raise_amax(p.s_amax, amax.s);
  raise_amax(p.o_amax, amax.o);
}

}  // namespace sm90_forward
}  // namespace nvte
