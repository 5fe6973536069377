// A consumer: a warpgroup that multiplies its 64 rows of queries of a tile by the tiles of keys and
// the probabilities by the tiles of values.
//
// The scores of the next tile of keys are multiplied while those of the last one go through the
// exponential. The consumers issue their products in turn, so that one's exponentials hide behind
// another's products, see Config::kTurns. H200, November 2026, heads of 64, causal 8k: 487 TFLOP/s
// so, and 445 with a quarter of the exponentials as polynomials.
//
// Dropout: a warp draws what is kept of its scores while it would wait for their product. Causal
// 8k, heads of 128: 457 TFLOP/s so and with the draw after the wait, 420 where each draw reads the
// random state and computes its first call anew. No pipe is busy for more than a third of the time:
// the two warps of a scheduler wait for their own results.
#pragma once

#include "common/philox.cuh"
#include "common/wgmma.cuh"
#include "epilogue.cuh"
#include "softmax.cuh"

namespace nvte {
namespace sm90_forward {

// ---- Products

// The queries in registers, as left operands.
template <class C>
using Held = uint32_t[C::kHeldSteps][4];

template <class C>
__device__ __forceinline__ void hold_queries(Held<C> &held, uint32_t q) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int i = 0; i < C::kHeldSteps; ++i) {
    const int vector = (i % 4 * 2 + lane / 16) ^ (row % 8);
    ldmatrix_x4(q + i / 4 * 64 * 128 + row * 128 + static_cast<uint32_t>(vector) * 16, held[i]);
  }
}

template <class C>
__device__ __forceinline__ void multiply_scores(float (&s)[C::kKeys / 2], uint32_t q,
                                                const Held<C> &held, uint32_t k) {
  using P = Product<typename C::T, C::kKeys>;
  constexpr int kStep = 32 / C::T::kBytes;
  const uint64_t a = descriptor_k_major(q), b = descriptor_k_major(k);
#pragma unroll
  for (int i = 0; i < C::kDimQK / kStep; ++i) {
    const uint32_t in = (i % 4) * 32;
    const uint64_t right = advance_descriptor(b, (i / 4) * C::kKeyPanel + in);
    if constexpr (C::kHoldsQueries) {
      P::registers(s, held[i], right, i > 0);
    } else {
      P::shared(s, advance_descriptor(a, (i / 4) * 64 * 128 + in), right, i > 0);
    }
  }
}

// Computes a warp's scores once more. By products of a single warp, because the other warps of the
// warpgroup may have gone on.
template <class C>
__device__ __forceinline__ void recompute_scores(float (&s)[C::kKeys / 2], uint32_t q, uint32_t k) {
  // The thread's number is read again: values computed from it would otherwise wait in registers.
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  const int lane = thread & 31, row = (thread & 96) / 2 + lane % 16;
  const int key = lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int j = 0; j < C::kKeys / 16; ++j) {
    float sums[2][4] = {};
#pragma unroll 1
    for (int i = 0; i < C::kDimQK / 16; ++i) {
      uint32_t a[4], b[4];
      ldmatrix_x4(q + i / 4 * 64 * 128 + row * 128 +
                      static_cast<uint32_t>((i % 4 * 2 + lane / 16) ^ (row % 8)) * 16,
                  a);
      ldmatrix_x4(k + i / 4 * C::kKeyPanel + (16 * j + key) * 128 +
                      static_cast<uint32_t>((i % 4 * 2 + lane / 8 % 2) ^ (key % 8)) * 16,
                  b);
      multiply<typename C::T>(sums[0], a, b[0], b[1]);
      multiply<typename C::T>(sums[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) s[8 * j + i] = sums[i / 4][i % 4];
  }
}

// Steps of a product over the keys of a tile.
template <class C>
constexpr int kSteps = C::kKeys * C::T::kBytes / 32;

template <class C>
__device__ __forceinline__ void multiply_values(float (&o)[C::kDimV / 2],
                                                const uint32_t (&a)[kSteps<C>][4], uint32_t v) {
  using Values = Product<typename C::T, C::kDimV>;
  const uint64_t b = C::kFp8 ? descriptor_k_major(v) : descriptor_mn_major(v, C::kKeyPanel);
#pragma unroll
  for (int i = 0; i < kSteps<C>; ++i) {
    if constexpr (C::kFp8) {
      Values::registers(o, a[i], advance_descriptor(b, i / 4 * C::kTransposedPanel + i % 4 * 32),
                        true);
    } else {
      Values::template registers<true>(o, a[i], advance_descriptor(b, i * 2048), true);
    }
  }
}

// What dropout keeps of a tile, in the words of KeptScores.
template <class C>
using Kept = uint32_t[C::kKeptWords + !C::kDropout];

// Probabilities as the left operand of the product with values.
template <class C>
__device__ __forceinline__ void round_scores(const float (&s)[C::kKeys / 2], const Kept<C> &kept,
                                             uint32_t (&a)[kSteps<C>][4]) {
#pragma unroll
  for (int i = 0; i < kSteps<C> * 4; ++i) {
    if constexpr (C::kFp8) {
      const int at = i / 4 * 16 + i % 4 / 2 * 8 + i % 2 * 2;
      const float four[4] = {s[at], s[at + 1], s[at + 4], s[at + 5]};
      a[i / 4][i % 4] = C::T::from_float(four);
    } else {
      const float pair[2] = {s[2 * i], s[2 * i + 1]};
      a[i / 4][i % 4] = C::T::from_float(pair);
      if constexpr (C::kDropout) a[i / 4][i % 4] &= kept_pair(kept[i / 16], i / 4 % 4, i % 4);
    }
  }
}

// How many of a tile's last tiles of keys none of a consumer's rows may see, where queries are as
// many as keys and see those before them. One is left. With 1024 queries in tiles of 192 this is a
// quarter of all products.
template <class C>
__device__ __forceinline__ int skipped_keys(const Params &p, const Tile &t, int w) {
  if constexpr (C::kDropout || C::kAlibi || C::kBias || C::kPages || C::kFp8) return 0;
  if (p.right == kUnbounded || p.left != kUnbounded || t.rows != t.keys) return 0;
  const int first = t.m + 64 * w, last = min(first + 64, t.rows) - 1;
  const int end = first < t.rows ? (last + p.right + C::kKeys) / C::kKeys : 0;
  return __shfl_sync(0xffffffff, t.end - max(min(end, t.end), t.begin + 1), 0);
}

// ---- The loop over tiles

template <class C>
__device__ __forceinline__ void consume_tiles(const Params &p, unsigned char *shared,
                                              Control<C> &control, int w) {
  // Hardware barrier 1 + w completes when it is consumer w's turn to issue products.
  const int next_turn = 1 + (w + 1) % C::kConsumers;
  const auto wait_turn = [&] {
    if constexpr (C::kTurns) bar_sync(1 + w, 256);
  };
  const auto end_turn = [&] {
    if constexpr (C::kTurns) bar_arrive(next_turn, 256);
  };
  if (w == C::kConsumers - 1) end_turn();
  const uint32_t q = shared_address(shared + w * C::kQueryBytes);
  using State = PipelineState<C::kStages>;
  const auto release = [](auto &pipeline, const State &at) {
    if (threadIdx.x % 32 == 0) pipeline.consumer_release(at);
  };
  auto &v = C::kFp8 ? control.transposed : control.v;
  State k_at, v_at;
  float s[C::kKeys / 2], o[C::kDimV / 2], correction[2];
  uint32_t a[kSteps<C>][4];
  Held<C> held;
  Softmax<C> softmax;
  Kept<C> kept = {};
  // The random state is read once, and the first call of the rows computed once for all keys.
  HeadDropout dropout;
  if constexpr (C::kDropout) {
    dropout = HeadDropout(p.rng_state, p.drop_level, 0, p.q_side.max_seqlen, p.kv_side.max_seqlen);
  }
  KeptScores<false> keep(dropout);
  const auto begin_draws = [&](const Tile &t) {
    if constexpr (C::kDropout) {
      const uint64_t head = uint64_t{p.all_heads} * t.batch + p.heads_before + t.head;
      keep = KeptScores<false>(dropout.after(head));
      keep.skip_rows(t.m + 64 * w + threadIdx.x % 128 / 32 * 16);
    }
  };
  const auto draw = [&](int n) {
    if constexpr (C::kDropout) keep.draw(0, n * C::kKeys, kept);
  };
  const auto keys = [&] { return shared_address(shared + C::kAtKeys + k_at.stage * C::kKeyBytes); };
  const auto values = [&] {
    return C::kFp8 ? shared_address(shared + C::kAtTransposed + v_at.stage * C::kTransposedBytes)
                   : shared_address(shared + C::kAtValues + v_at.stage * C::kValueBytes);
  };
  const auto release_keys = [&] {
    release(control.k, k_at);
    k_at.advance();
  };
  const auto release_values = [&] {
    release(v, v_at);
    v_at.advance();
  };
  // Every thread releases the tile, since each has read the descriptions of the tiles before.
  const auto release_tile = [&] { control.q.consumer_release({w, 0}); };
  float row_offset[2];
  const auto add_extras = [&](const Tile &t, int n, const State &at) {
    if constexpr (C::kAlibi) add_distances<C>(s, row_offset, t, n, w);
    if constexpr (C::kBias) {
      control.bias.consumer_wait(at);
      add_bias<C>(s, shared_address(shared + C::kAtBias + at.stage * C::kBiasBytes),
                  p.bias_rows == 1, p.unscale, w);
      __syncwarp();
      release(control.bias, at);
    }
  };
  bool open = false;  // The tile before still lacks its last product of probabilities and values.
  // The factor that turns products of queries and keys into exponents of 2.
  float scale_log2 = p.scale * kLog2e;
  if constexpr (C::kFp8) scale_log2 *= factor_of(p.q_scale_inv) * factor_of(p.k_scale_inv);
  // Exponentials may grow up to 2^8 before results are multiplied to follow a new maximum.
  const float slack = C::kFp8 || p.max != nullptr ? 0.0f : 8.0f / scale_log2;
  Amax amax;
  for (unsigned count = 0;; ++count) {
    control.q.consumer_wait({w, count & 1});
    // Read from shared memory wherever it is used: the loop below is short of registers.
    const Tile &t = control.tile[count % kTiles];
    const bool any = t.end > t.begin;
    if (!any && !open) {
      if (t.batch < 0) break;
      write_nothing(p, t, w);
      release_tile();
      continue;
    }
    // The first scores of this tile are multiplied beside the last product of the tile before. If
    // there is only one of the two, the other's operands are whatever lies there and its result is
    // not used: the compiler lets products under a condition run only one by one.
    int n = t.end - 1;
    // The last tiles of keys may be behind all of this consumer's rows.
    int skipped = any ? skipped_keys<C>(p, t, w) : 0;
  first_scores:
    if (any) control.k.consumer_wait(k_at);
    if (open) v.consumer_wait(v_at);
    wait_turn();
    pin(s);
    pin(o);
    if constexpr (C::kHoldsQueries) hold_queries<C>(held, q);
    wgmma_fence();
    multiply_scores<C>(s, q, held, keys());
    wgmma_commit_group();
    wgmma_fence();
    multiply_values<C>(o, a, values());
    wgmma_commit_group();
    end_turn();
    if (any) {
      begin_draws(t);
      draw(n);
    }
    wgmma_wait_group<0>();
    pin(s);
    pin(o);
    const State first_at = k_at;
    if (any) {
      release_keys();
      if (n == t.begin) release_tile();
    }
    if (open) {
      release_values();
      const Tile &last = control.tile[(count - 1) % kTiles];
      if constexpr (!C::kFp8) {
        write_tile<C, typename C::T>(p, last, w, o, softmax, scale_log2, amax);
      } else if (p.o_dtype == kNVTEBFloat16) {
        write_tile<C, BF16>(p, last, w, o, softmax, scale_log2, amax);
      } else if (p.o_dtype == kNVTEFloat16) {
        write_tile<C, F16>(p, last, w, o, softmax, scale_log2, amax);
      } else {
        write_tile<C, E4M3>(p, last, w, o, softmax, scale_log2, amax);
      }
      open = false;
    }
    if (!any) {
      if (t.batch < 0) break;
      write_nothing(p, t, w);
      release_tile();
      continue;
    }
    if (skipped > 0) {
      n -= skipped;
      for (;;) {
        v.consumer_wait(v_at);
        release_values();
        if (--skipped == 0) break;
        control.k.consumer_wait(k_at);
        wait_turn();
        end_turn();
        release_keys();
      }
      goto first_scores;
    }
    open = true;
    add_extras(t, n, first_at);
    if (n >= t.high || n < t.low) mask_scores<C>(s, p, t, n, w);
    softmax.template update<true>(s, scale_log2, correction, row_offset, slack);
    round_scores<C>(s, kept, a);
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) o[i] = 0.0f;
    // The shuffles tell the compiler that a warp agrees on them.
    const int begin = __shfl_sync(0xffffffff, t.begin, 0), low = __shfl_sync(0xffffffff, t.low, 0),
              high = __shfl_sync(0xffffffff, t.high, 0);
#pragma unroll 1
    for (bool more = n > begin; more;) {
      --n;
      control.k.consumer_wait(k_at);
      wait_turn();
      pin(s);
      pin(o);
      wgmma_fence();
      multiply_scores<C>(s, q, held, keys());
      wgmma_commit_group();
      v.consumer_wait(v_at);
      wgmma_fence();
      multiply_values<C>(o, a, values());
      wgmma_commit_group();
      end_turn();
      const bool masked = n >= high || n < low;
      more = n > begin;
      // The maximum is not reused in the last tile of keys: queries are released early there, and
      // scores could not be computed once more.
      bool reused = false;
      if constexpr (C::kReusesMax) {
        reused = !masked && more && p.max == nullptr &&
                 __all_sync(0xffffffff, fminf(softmax.max[0], softmax.max[1]) > -INFINITY);
      }
      draw(n);
      wgmma_wait_group<1>();
      pin(s);
      if constexpr (C::kReusesMax) {
        if (reused) {
          reused = softmax.reuse_max(s, scale_log2);
          if (!reused) recompute_scores<C>(s, q, keys());
        }
      }
      const State at = k_at;
      release_keys();
      if (!reused) {
        // Early, so that the next queries come while these scores go through the exponential.
        if (!more) release_tile();
        add_extras(t, n, at);
        if (masked) mask_scores<C>(s, p, t, n, w);
        softmax.template update<false>(s, scale_log2, correction, row_offset, slack);
        // This branch is never taken. Without a branch on the sums the assembler moves the wait
        // below to before the exponentials, which are to run beside the second product.
        if (__any_sync(0xffffffff, softmax.sum[0] + softmax.sum[1] < 0.0f)) __nanosleep(0);
      }
      wgmma_wait_group<0>();
      pin(o);
      release_values();
      round_scores<C>(s, kept, a);
      // After a few tiles, maxima seldom grow.
      if (!reused && __any_sync(0xffffffff, correction[0] != 1.0f || correction[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < C::kDimV / 2; ++i) o[i] *= correction[i / 2 % 2];
      }
    }
  }
  if constexpr (C::kFp8) {
    raise_amax(p.s_amax, amax.s);
    raise_amax(p.o_amax, amax.o);
  }
}

}  // namespace sm90_forward
}  // namespace nvte
