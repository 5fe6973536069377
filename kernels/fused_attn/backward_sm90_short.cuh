// Kernels of the backward of attention for compute capability 9.0, heads of up to 128 elements:
// gradient_kernel has one block per 128 keys, which keeps dk and dv in registers while it goes over
// the queries and adds its part of dq in float32; convert_kernel rounds dq.
#pragma once

#include "backward_sm90.cuh"

namespace nvte {
namespace sm90_backward {

constexpr int kKeys = 128;  // Of a block, 64 of each consumer.

// What scores have beside products. kFp8, kFp8E5M2: nothing, but q, k and v are E4M3, do is that or
// E5M2. Products over elements of a head take them as they are, the other ones half precision
// copies, which have every value of FP8, and p and ds rounded to FP8.
enum class Extra { kNone, kAlibi, kBias, kFp8, kFp8E5M2 };
constexpr bool has_codes(Extra extra) { return extra == Extra::kFp8 || extra == Extra::kFp8E5M2; }

// Sizes of gradient_kernel in bytes, for heads of D elements and M queries at a time.
template <int kD, int kM, Extra kExtra>
struct Sizes {
  static_assert(kD == 64 || kD == 128, "one or two panels");
  static_assert(kM % 16 == 0, "steps of the products over queries");
  static constexpr int kPanels = kD / 64;
  static constexpr int kKeyPanel = kKeys * 128, kQueryPanel = kM * 128;
  static constexpr int kKeyTile = kPanels * kKeyPanel, kQueryTile = kPanels * kQueryPanel;
  static constexpr int kScoreTile = kKeys / 64 * kQueryPanel;
  static constexpr int kRowTile = 2 * kM * 4;
  static constexpr int kQStages = 3, kOStages = 2;

  // Of FP8: a row has 128 bytes, whatever the elements of a head.
  static constexpr bool kFp8 = has_codes(kExtra);
  static constexpr int kKeyCodes = kFp8 ? kKeyPanel : 0, kQueryCodes = kFp8 ? kQueryPanel : 0;

  static constexpr int kK = 0, kV = kK + kKeyTile, kK8 = kV + (kFp8 ? kKeyCodes : kKeyTile),
                       kQ = kK8 + kKeyCodes, kO = kQ + kQStages * kQueryTile,
                       kQ8 = kO + kOStages * kQueryTile, kO8 = kQ8 + kQStages * kQueryCodes,
                       kDs = kO8 + kOStages * kQueryCodes, kBias = kDs + 2 * kScoreTile,
                       kRow = kBias + (kExtra == Extra::kBias ? kQStages * kScoreTile : 0),
                       kBarrier = kRow + kQStages * kRowTile;
  static constexpr int kBarriers = 2 + 2 * kQStages + 2 * kOStages;
  static constexpr int kBytes = kBarrier + kBarriers * 8 + 1024;  // The start is aligned by hand.
  static_assert(kBytes <= 232448 - 256, "shared memory of a block");
};

// Queries at a time, by the elements of a head: as many as there are registers for. H200, bf16,
// 8192 queries, TFLOP/s, causal and full: 128 elements 506 and 522 with 80, 489 and 516 with 64.
template <int kD, bool kDropout, Extra kExtra>
constexpr int kQueries =
    kDropout && (kExtra == Extra::kBias || has_codes(kExtra)) ? (kD == 64 ? 96 : 48)
    : kDropout || kExtra == Extra::kBias || has_codes(kExtra) ? (kD == 64 ? 96 : 64)
                                                              : (kD == 64 ? 128 : 80);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Barriers of threads; 0 is __syncthreads(). Of both consumers; of each one, 2; of both, each of
// the two parts of each of two ds, 4: who writes it arrives, the other one waits.
constexpr int kGroupBarrier = 2, kReadyBarrier = 4;

template <class T, int kD, int kM, bool kDropout, Extra kExtra>
struct Consumer {
  using L = Sizes<kD, kM, kExtra>;
  static constexpr bool kHasBias = kExtra == Extra::kBias, kFp8 = has_codes(kExtra);
  static constexpr int kWords = (kM + 63) / 64;  // Of what dropout keeps.
  static constexpr int kScores = kM / 2, kDim = kD / 2, kSteps = kM / 16;
  static constexpr int kDqColumns = kD == 128 ? kM : kM / 2;

  const Problem &a;
  const Work<kKeys, kM> &work, &rare;
  unsigned char *shared;
  const Barriers<L::kQStages, L::kOStages> &b;
  int group, thread, lane, warp;

  // What dropout keeps of a warp's 16 keys and the queries.
  __device__ __forceinline__ void draw(uint32_t (&kept)[kWords], int head, int m0) const {
    const HeadDropout of_head = a.mask.of_head(a, rare.sequence, head);
    const int c = work.n0 + group * 64 + warp * 16;
#pragma unroll
    for (int i = 0; i < kM / 64; ++i) kept[i] = KeptScores<true>(of_head)(m0 + i * 64, c);
    if constexpr (kM % 64 != 0) {
      kept[kM / 64] = KeptScores<true, kM % 64 / 16>(of_head)(m0 + kM / 64 * 64, c);
    }
  }
  // K q^T of this warpgroup's keys, or V do^T.
  __device__ __forceinline__ void scores(float (&d)[kScores], uint32_t keys, uint32_t queries) {
    keys = low_k(keys + group * 64 * 128);
    queries = low_k(queries);
#pragma unroll
    for (int s = 0; s < kD / 16; ++s) {
      Product<T, kM>::template shared<>(d, operand(keys, s / 4 * L::kKeyPanel + s % 4 * 32),
                                        operand(queries, s / 4 * L::kQueryPanel + s % 4 * 32),
                                        s != 0);
    }
  }
  template <class Types>
  __device__ __forceinline__ void scores8(float (&d)[kScores], uint32_t keys, uint32_t queries) {
    keys = low_k(keys + group * 64 * 128);
    queries = low_k(queries);
#pragma unroll
    for (int s = 0; s < kD / 32; ++s) {
      Product<Types, kM>::shared(d, operand(keys, s * 32), operand(queries, s * 32), s != 0);
    }
  }
  // p^T do, with p in registers.
  __device__ __forceinline__ void gradient(float (&d)[kDim], const uint32_t (&p)[kSteps][4],
                                           uint32_t queries) {
    queries = low_mn(queries, L::kQueryPanel);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      Product<T, kD>::template registers<true>(d, p[s], operand(queries, s * 2048), true);
    }
  }
  // ds^T q, with ds in shared memory.
  __device__ __forceinline__ void gradient(float (&d)[kDim], uint32_t ds, uint32_t queries) {
    ds = low_mn(ds + group * L::kQueryPanel, 0);
    queries = low_mn(queries, L::kQueryPanel);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      Product<T, kD>::template shared<true, true>(d, operand(ds, s * 2048),
                                                  operand(queries, s * 2048), true);
    }
  }
  // (ds K)^T: 64 elements of the head for all queries, or all 64 for half of the queries.
  __device__ __forceinline__ void query_gradient(float (&d)[kDqColumns / 2], uint32_t keys,
                                                 uint32_t ds) {
    keys = low_mn(keys + (kD == 128 ? group * L::kKeyPanel : 0), 0);
    ds = low_k(ds + (kD == 128 ? 0 : group * (kM / 2) * 128));
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) {
      Product<T, kDqColumns>::template shared<true, false>(
          d, operand(keys, s * 2048), operand(ds, s / 4 * L::kQueryPanel + s % 4 * 32), s != 0);
    }
  }

  __device__ __forceinline__ void run() {
    const uint32_t base = shared_address(shared);
    const int lk = work.lk, lq = work.lq;
    float dk[kDim], dv[kDim];
#pragma unroll
    for (int i = 0; i < kDim; ++i) dk[i] = dv[i] = 0.0f;

    const int total = work.total;
    if (total > 0) {
      Ring<L::kQStages> q;
      Ring<L::kOStages> o;
      float s[kScores], dp[kScores], dq[kDqColumns / 2];
      uint32_t p_and_z[kDropout ? 2 : 1][kSteps][4];  // z: what dropout leaves of p.
      auto &p = p_and_z[0], &z = p_and_z[kDropout ? 1 : 0];
      [[maybe_unused]] uint32_t kept[kWords];
      int block = work.block, head = work.head;
      float scale_log2 = a.scale * kLog2e;
      // FP8: rows_kernel has s.scale in the statistics, so that p comes multiplied by it, and what
      // that and dp.scale make of D; this makes the same of the products of do and V.
      [[maybe_unused]] float dp_factor, most = 0.0f;
      if constexpr (kFp8) {
        scale_log2 *= factor_of(a.q.scale_inv) * factor_of(a.k.scale_inv);
        dp_factor = factor_of(a.d_o.scale_inv) * factor_of(a.v.scale_inv) * a.scale *
                    (factor_of(a.dp.scale) / factor_of(a.s.scale));
      }
      // Of a lane's rows of a panel of ds or of a bias, which the lanes of a warp transpose.
      const int lane_row = lane / 16 * 8 + lane % 8, lane_unit = 2 * warp + (lane / 8 & 1);
      const uint32_t lane_at =
          group * L::kQueryPanel + lane_row * 128 + ((lane_unit ^ (lane_row & 7)) << 4);

      const auto load_scores = [&](int m0) {  // s of the queries from m0 on
        wait_barrier(b.full_q + q.stage, q.phase);
        const int at = L::kQ + q.stage * L::kQueryTile;
        if (m0 + kM > lq) clear_rows<kM, L::kPanels>(shared + at, lq - m0, thread);
        if constexpr (kFp8) {
          const int codes = L::kQ8 + q.stage * L::kQueryCodes;
          if (m0 + kM > lq) clear_rows<kM, 1>(shared + codes, lq - m0, thread);
          begin_products();
          scores8<E4M3>(s, base + L::kK8, base + codes);
        } else {
          begin_products();
          scores(s, base + L::kK, base + at);
        }
        commit_products();
      };
      const auto wait_gradients = [&](int m0) {
        wait_barrier(b.full_o + o.stage, o.phase);
        const int at = L::kO + o.stage * L::kQueryTile;
        if (m0 + kM > lq) clear_rows<kM, L::kPanels>(shared + at, lq - m0, thread);
        if constexpr (kFp8) {
          const int codes = L::kO8 + o.stage * L::kQueryCodes;
          if (m0 + kM > lq) clear_rows<kM, 1>(shared + codes, lq - m0, thread);
        }
      };
      const auto start_dp = [&] {
        begin_products();
        if constexpr (kFp8) {
          using Types = std::conditional_t<kExtra == Extra::kFp8E5M2, E4M3TimesE5M2, E4M3>;
          scores8<Types>(dp, base + L::kV, base + L::kO8 + o.stage * L::kQueryCodes);
        } else {
          scores(dp, base + L::kV, base + L::kO + o.stage * L::kQueryTile);
        }
        commit_products();
      };
      pin(dk);
      pin(dv);
      wait_barrier(b.full_k, 0);
      if (work.n0 + kKeys > lk) {
        clear_rows<kKeys, L::kPanels>(shared + L::kK, lk - work.n0, thread);
        if constexpr (kFp8) clear_rows<kKeys, 1>(shared + L::kK8, lk - work.n0, thread);
      }
      load_scores(block * kM);
      wait_barrier(b.full_v, 0);
      constexpr int kVPanels = kFp8 ? 1 : L::kPanels;
      if (work.n0 + kKeys > lk) clear_rows<kKeys, kVPanels>(shared + L::kV, lk - work.n0, thread);
      int parity = 0;
      const auto softmax = [&](int m0, auto in_flight) {
        const float *rows =
            reinterpret_cast<const float *>(shared + L::kRow + q.stage * L::kRowTile) +
            lane % 4 * 4;
        const auto four_at = [&](int at) { return *reinterpret_cast<const float4 *>(rows + at); };
        // The first ones before the wait: shared memory is slow while others use it.
        const float4 ahead = four_at(0);
        [[maybe_unused]] float slopes[2];  // Of this lane's keys, from the first query on.
        if constexpr (kExtra == Extra::kAlibi) {
          const float slope = a.slope_of(head);
          const int c = work.n0 + group * 64 + warp * 16 + lane / 4 - m0;
          slopes[0] = slope * static_cast<float>(c);
          slopes[1] = slope * static_cast<float>(c + 8);
        }
        [[maybe_unused]] uint32_t bias_at = 0, bias_step = 0;
        wait_products<decltype(in_flight)::value>();
        pin(s);
        if constexpr (kHasBias) {
          const uint32_t tile = base + L::kBias + q.stage * L::kScoreTile;
          // The only row for all of them, or each row its own.
          bias_at = tile + (a.bias_rows ? lane_at : group * L::kQueryPanel + (lane_unit << 4));
          bias_step = a.bias_rows ? 16 * 128 : 0;
        }
#pragma unroll
        for (int j = 0; j < kM / 16; ++j) {
          const float4 lse = j == 0 ? ahead : four_at(16 * j);
          const float of_row[4] = {lse.x, lse.y, lse.z, lse.w};
          [[maybe_unused]] uint32_t bias[4];
          if constexpr (kHasBias) read_transposed(bias_at + j * bias_step, bias);
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            [[maybe_unused]] float of_score[2];
            if constexpr (kHasBias) T::to_float(bias[n], of_score);
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              float more = -of_row[n / 2 * 2 + e];
              if constexpr (kExtra == Extra::kAlibi) more += slopes[n % 2];
              if constexpr (kHasBias) more = fmaf(of_score[e], kLog2e, more);
              float &x = s[8 * j + 2 * n + e];
              x = power2(fmaf(x, scale_log2, more));
            }
          }
        }
        // Where there is no query the bias may be anything.
        if (work.masked(m0) || (kHasBias && m0 + kM > lq)) {
          mask<kHasBias>(s, work, work.n0 + group * 64 + warp * 16, m0, lane);
        }
        if constexpr (kFp8) {
          round_fp8<E4M3, kScores>(p, s);
        } else {
          round_pairs<T, kScores>(p, s);
        }
        if constexpr (kDropout) {
#pragma unroll
          for (int i = 0; i < kSteps; ++i) {
#pragma unroll
            for (int n = 0; n < 4; ++n) z[i][n] = p[i][n] & kept_pair(kept[i / 4], i % 4, n);
          }
        }
      };
      const auto start_dv = [&] {
        begin_products();
        gradient(dv, z, base + L::kO + o.stage * L::kQueryTile);
        commit_products();
      };
      // From dp, while dv is on its way, to ds in shared memory.
      const auto finish = [&] {
        const float *rows =
            reinterpret_cast<const float *>(shared + L::kRow + q.stage * L::kRowTile) + kM +
            lane % 4 * 4;
        const auto four_at = [&](int at) { return *reinterpret_cast<const float4 *>(rows + at); };
        const float4 ahead = four_at(0);
        wait_products<1>();
        pin(dp);
#pragma unroll
        for (int j = 0; j < kM / 8; ++j) {
          const float4 both = j < 2 ? ahead : four_at(8 * (j / 2 * 2));
          const float2 d = j % 2 == 0 ? make_float2(both.x, both.y) : make_float2(both.z, both.w);
          if constexpr (kFp8) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              float x = dp[4 * j + e];
              if constexpr (kDropout) x = is_kept(kept[j / 8], j / 2 % 4, j % 2, e) ? x : 0.0f;
              x = s[4 * j + e] * fmaf(x, dp_factor, -(e % 2 == 0 ? d.x : d.y));
              most = fmaxf(most, fabsf(x));
              dp[4 * j + e] = x;
            }
          } else if constexpr (kDropout) {  // There is room for p in float32, and need where
                                            // little is kept.
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              float x = is_kept(kept[j / 8], j / 2 % 4, j % 2, e) ? dp[4 * j + e] : 0.0f;
              if constexpr (kHasBias) x *= a.keep_scale;
              dp[4 * j + e] = s[4 * j + e] * (x - (e % 2 == 0 ? d.x : d.y));
            }
          } else {
            float low[2], high[2];
            T::to_float(p[j / 2][j % 2 * 2], low);
            T::to_float(p[j / 2][j % 2 * 2 + 1], high);
            dp[4 * j] = low[0] * (dp[4 * j] - d.x);
            dp[4 * j + 1] = low[1] * (dp[4 * j + 1] - d.y);
            dp[4 * j + 2] = high[0] * (dp[4 * j + 2] - d.x);
            dp[4 * j + 3] = high[1] * (dp[4 * j + 3] - d.y);
          }
        }
        if constexpr (kHasBias) {
          if (a.to_bias == BiasGradient::kSummed) add_scores(dp, block, head);
          if (a.to_bias == BiasGradient::kRows) add_columns(dp, head);
        }
        uint32_t ds[kSteps][4];
        if constexpr (kFp8) {
          using Code = std::conditional_t<kExtra == Extra::kFp8E5M2, E5M2, E4M3>;
          round_fp8<Code, kScores>(ds, dp);
        } else {
          round_pairs<T, kScores>(ds, dp);
        }
        // Both warpgroups have read what lay here two rounds ago: they have met since.
        parity ^= 1;
        const uint32_t scores_at = base + L::kDs + parity * L::kScoreTile + lane_at;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) store_transposed(scores_at + i * 16 * 128, ds[i]);
        fence_async_proxy();
        arrive_threads(kReadyBarrier + 2 * parity + group, 128 * kConsumers);
        wait_products<0>();
        pin(dv);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) pin(z[i]);
        release(b.empty_o + o.stage, lane);
        o.next();
      };
      const auto start_dq = [&] {
        sync_threads(kReadyBarrier + 2 * parity + 1 - group, 128 * kConsumers);
        begin_products();
        query_gradient(dq, base + L::kK, base + L::kDs + parity * L::kScoreTile);
        commit_products();
      };
      const auto start_dk = [&](int stage, int m0, int head) {
        if constexpr (kHasBias) {
          // What was stored before has been read, so that the other ds may be written.
          if (thread % 128 == 0) wait_bulk_read<0>();
        }
        sync_threads(kGroupBarrier + group, 128);
        if constexpr (kHasBias) {
          const int column = work.n0 + group * 64;
          if (a.stores_scores() && thread % 128 == 0 &&
              column < static_cast<int>(a.kv_side.max_seqlen)) {
            const int at[4] = {column, m0, head, work.sequence};
            store_box<4>(&a.maps.dbias,
                         shared + L::kDs + parity * L::kScoreTile + group * L::kQueryPanel, at);
            commit_bulk();
          }
        }
        begin_products();
        gradient(dk, base + L::kDs + parity * L::kScoreTile, base + L::kQ + stage * L::kQueryTile);
        commit_products();
      };

      if constexpr (kDropout) draw(kept, head, block * kM);
      softmax(block * kM, std::integral_constant<int, 0>{});
      wait_gradients(block * kM);
      start_dp();
      start_dv();
      wait_products<0>();
      finish();
#pragma unroll 1
      for (int left = total - 1; left > 0; --left) {
        // s and dk need nothing of the other warpgroup, so that it may be late by their time. Their
        // products and dq's run behind the exponentials, those of dp and dv behind the rest.
        // Nothing is in flight from one round to the next: the compiler would wait for every
        // product.
        const int m0 = block * kM, stage = q.stage;
        [[maybe_unused]] const int of_head = head;
        const int64_t sum = int64_t{head} * a.head_blocks + work.base + block;
        work.next(block, head);
        q.next();
        load_scores(block * kM);
        start_dk(stage, m0, of_head);
        if constexpr (kDropout) draw(kept, head, block * kM);
        start_dq();
        softmax(block * kM, std::integral_constant<int, 2>{});
        wait_gradients(block * kM);
        // Longer heads have no registers for dq and dp at once.
        constexpr bool kFirst = kD == 128;
        if constexpr (kFirst) {
          wait_products<0>();
          pin(dq);
          add(dq, sum, m0);
        }
        start_dp();
        start_dv();
        if constexpr (!kFirst) {
          wait_products<2>();
          pin(dq);
          add(dq, sum, m0);
        }
        pin(dk);
        arrive(b.empty_q + stage);
        finish();
      }
      start_dk(q.stage, block * kM, head);
      start_dq();
      wait_products<0>();
      pin(dq);
      add(dq, int64_t{head} * a.head_blocks + work.base + block, block * kM);
      if constexpr (kFp8) raise_amax(a.dp.amax, most / factor_of(a.dp.scale));
    }
    if constexpr (kHasBias) {
      if (thread % 128 == 0) wait_bulk<0>();
    }
    pin(dk);
    pin(dv);
    if (rare.shared >= 0) {
      constexpr int kStep = 128 * kConsumers * 4;
      float *sum_v = a.shared_sum + rare.shared * a.shared_floats + thread * 4;
      float *sum_k = sum_v + kDim / 4 * kStep;
      add_part(dv, sum_v, kStep);
      add_part(dk, sum_k, kStep);
      if (!is_last_part(a, rare.shared, shared + L::kRow)) return;
      get_part(dv, sum_v, kStep);
      get_part(dk, sum_k, kStep);
    }
    // This warp alone uses these rows of V, and it is done with them.
    unsigned char *panels = shared + L::kV + (group * 64 + warp * 16) * 128;
    const int first = work.n0 + group * 64 + warp * 16;
    if constexpr (kFp8) {
      const float scale = factor_of(a.dp.scale_inv) * factor_of(a.q.scale_inv);
      const float of_v = factor_of(a.s.scale_inv) * factor_of(a.d_o.scale_inv);
      write_rows<kD>(a, a.dv, a.dim_v, dv, of_v, rare.sequence, rare.key_head, first, lk, lane);
      write_rows<kD>(a, a.dk, a.dim_qk, dk, scale, rare.sequence, rare.key_head, first, lk, lane);
    } else {
      write_rows<T, kKeys, kD>(a, a.dv, a.dim_v, panels, dv, a.scale_v, rare.sequence,
                               rare.key_head, first, lk, lane);
      write_rows<T, kKeys, kD>(a, a.dk, a.dim_qk, panels, dk, a.scale_k, rare.sequence,
                               rare.key_head, first, lk, lane);
    }
  }

  // ds to its sum over sequences or heads.
  __device__ __forceinline__ void add_scores(const float (&ds)[kScores], int block, int head) {
    const int64_t of_sequence = a.sum_batch ? 0 : work.sequence, heads = a.sum_heads ? 1 : a.heads;
    const int64_t tile =
        ((of_sequence * heads + (a.sum_heads ? 0 : head)) * a.query_blocks + block) * a.key_blocks +
        work.key_block;
    float *to = a.bias_sum + tile * (kM * kKeys) + (group * 4 + warp) * (kM * 16) + lane * 4;
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) {
      add_global(to + j * 128, ds[4 * j], ds[4 * j + 1], ds[4 * j + 2], ds[4 * j + 3]);
    }
  }
  // ds to a head's sums over queries. A block adds in the order of its queries.
  __device__ __forceinline__ void add_columns(const float (&ds)[kScores], int head) {
    float *to = a.bias_sum + (int64_t{work.sequence} * a.heads + head) * a.key_blocks * kKeys +
                work.n0 + group * 64 + warp * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kM / 8; ++j) sum += ds[4 * j + 2 * h] + ds[4 * j + 2 * h + 1];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (lane % 4 == 0) atomicAdd(to + 8 * h, sum);
    }
  }

  // To the sum over the blocks of keys; `block`: of all heads.
  __device__ __forceinline__ void add(const float (&dq)[kDqColumns / 2], int64_t block, int m0) {
    constexpr int kPart = kM * kD / kConsumers / 4;  // Of a warp.
    add_query_gradient(a, work, dq, a.dq_sum + block * (kM * kD) + (group * 4 + warp) * kPart,
                       a.turns + (block * kConsumers + group) * 4 + warp, m0, lane);
  }
};

// Zeros into dbias where no query of a block of queries sees a key of this block: threads 32 to
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
  const Barriers<L::kQStages, L::kOStages> barriers(shared + L::kBarrier);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) barriers.init();
  if constexpr (L::kPanels > 1) {
    if (a.panels_qk < L::kPanels || a.panels_v < L::kPanels) {
      clear_panels(shared + L::kK, 1, L::kKeyPanel, a.panels_qk, L::kPanels);
      if constexpr (!L::kFp8) {
        clear_panels(shared + L::kV, 1, L::kKeyPanel, a.panels_v, L::kPanels);
      }
      clear_panels(shared + L::kQ, L::kQStages, L::kQueryPanel, a.panels_qk, L::kPanels);
      clear_panels(shared + L::kO, L::kOStages, L::kQueryPanel, a.panels_v, L::kPanels);
      fence_async_proxy();
    }
  }
  __syncthreads();
  wait_for_stream();
  let_next_start();
  // What is rarely looked at stays in shared memory.
  __shared__ alignas(8) unsigned char place[sizeof(Work<kKeys, kM>)];
  Work<kKeys, kM> &shared_work = *reinterpret_cast<Work<kKeys, kM> *>(place);
  if (thread == 0) shared_work = Work<kKeys, kM>(a, static_cast<int>(blockIdx.x));
  __syncthreads();
  const Work<kKeys, kM> work = shared_work;

  if (thread < 128) {
    give_registers<24>();
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
      Ring<L::kQStages> q;
      Ring<L::kOStages> o;
      int block = work.block, head = work.head;
      arrive_expecting(barriers.full_k, a.panels_qk * L::kKeyPanel + L::kKeyCodes);
      load_keys(&a.maps.k, L::kK, a.panels_qk, barriers.full_k);
      if constexpr (L::kFp8) load_keys(&a.maps.k8, L::kK8, 1, barriers.full_k);
      for (int it = 0; it < total; ++it) {
        wait_barrier(barriers.empty_q + q.stage, q.phase ^ 1);
        uint64_t *barrier = barriers.full_q + q.stage;
        uint32_t bytes = a.panels_qk * L::kQueryPanel + L::kRowTile + L::kQueryCodes;
        [[maybe_unused]] const int bias_panels =
            work.n0 + 64 < static_cast<int>(a.kv_side.max_seqlen) ? 2 : 1;
        if constexpr (kExtra == Extra::kBias) {
          bytes += bias_panels * (a.bias_rows ? L::kQueryPanel : 128);
        }
        arrive_expecting(barrier, bytes);
        load_queries(&a.maps.q, L::kQ + q.stage * L::kQueryTile, a.panels_qk, barrier, head, block);
        if constexpr (L::kFp8) {
          load_queries(&a.maps.q8, L::kQ8 + q.stage * L::kQueryCodes, 1, barrier, head, block);
        }
        load_bytes(shared + L::kRow + q.stage * L::kRowTile,
                   a.rows + (int64_t{head} * a.head_blocks + work.base + block) * (2 * kM),
                   L::kRowTile, barrier);
        if constexpr (kExtra == Extra::kBias) {
          for (int p = 0; p < bias_panels; ++p) {
            const int at[4] = {work.n0 + p * 64, a.bias_rows ? block * kM : 0,
                               a.bias_heads ? head : 0, a.bias_batch ? work.sequence : 0};
            load_box<4>(shared + L::kBias + q.stage * L::kScoreTile + p * L::kQueryPanel,
                        &a.maps.bias, barrier, at);
          }
        }
        q.next();
        if (it == 0) {
          const int panels = L::kFp8 ? 1 : a.panels_v;
          arrive_expecting(barriers.full_v, panels * L::kKeyPanel);
          load_keys(&a.maps.v, L::kV, panels, barriers.full_v);
        }
        wait_barrier(barriers.empty_o + o.stage, o.phase ^ 1);
        barrier = barriers.full_o + o.stage;
        arrive_expecting(barrier, a.panels_v * L::kQueryPanel + L::kQueryCodes);
        load_queries(&a.maps.d_o, L::kO + o.stage * L::kQueryTile, a.panels_v, barrier, head,
                     block);
        if constexpr (L::kFp8) {
          load_queries(&a.maps.o8, L::kO8 + o.stage * L::kQueryCodes, 1, barrier, head, block);
        }
        o.next();
        work.next(block, head);
      }
    }
  } else {
    take_registers<240>();
    const int group = __shfl_sync(~0u, thread / 128 - 1, 0);
    Consumer<T, kD, kM, kDropout, kExtra> consumer = {
        a,     work,         shared_work, shared,           barriers,
        group, thread - 128, thread % 32, thread % 128 / 32};
    consumer.run();
  }
#endif
}

// dq from the sum, in the order of accumulators: thread t of warpgroup w has rows of the head
// dimension, columns are queries.
template <class T, int kD, int kM, bool kFp8>
__global__ void __launch_bounds__(kHelperThreads)
    convert_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wait_for_stream();
  let_next_start();
  constexpr int kPitch = kD + 4;  // Stores of a warp hit every bank once.
  extern __shared__ float tile[];
  const int index = static_cast<int>(blockIdx.x);
  const int block = index % a.query_blocks, rest = index / a.query_blocks;
  const int head = rest % a.heads, sequence = rest / a.heads;
  const int lq = length(a.q_side, sequence), m0 = block * kM;
  const int end = written(a.q_side, lq);
  if (m0 >= end) return;
  const int thread = static_cast<int>(threadIdx.x);
  if (m0 < lq) {
    const int64_t at = int64_t{head} * a.head_blocks + a.first_block<kM>(sequence) + block;
    const float4 *sum = reinterpret_cast<const float4 *>(a.dq_sum + at * (kM * kD));
    constexpr int kColumns = kD == 128 ? kM : kM / 2;  // Of a warpgroup.
#pragma unroll
    for (int i = 0; i < kM * kD / 4 / kHelperThreads; ++i) {
      const int f = i * kHelperThreads + thread, t = f % 32, j = f / 32 % (kColumns / 8),
                warp = f / (4 * kColumns) % 4, w = f / (16 * kColumns);
      const float4 v = sum[f];
      const int d = (kD == 128 ? w * 64 : 0) + warp * 16 + t / 4;
      const int m = (kD == 128 ? 0 : w * kColumns) + j * 8 + t % 4 * 2;
      tile[m * kPitch + d] = v.x;
      tile[(m + 1) * kPitch + d] = v.y;
      tile[m * kPitch + d + 8] = v.z;
      tile[(m + 1) * kPitch + d + 8] = v.w;
    }
  }
  __syncthreads();
  constexpr int kUnits = kD / 8;
  const int64_t out = head_offset(a.dq, a.q_side, sequence, head) + m0 * a.dq.row;
  float factor = a.scale_k;
  [[maybe_unused]] float scale, most = 0.0f;
  if constexpr (kFp8) {
    factor = factor_of(a.dp.scale_inv) * factor_of(a.k.scale_inv);
    scale = is_fp8(a.dq.dtype) ? factor_of(a.dq.scale) : 1.0f;
  }
#pragma unroll
  for (int i = 0; i < kM * kUnits / kHelperThreads; ++i) {
    const int r = (i * kHelperThreads + thread) / kUnits, unit = thread % kUnits;
    const int64_t at = out + r * a.dq.row + unit * 8;
    float f[8] = {};
    if (m0 + r < lq) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = *reinterpret_cast<const float2 *>(tile + r * kPitch + unit * 8 + 2 * j);
        f[2 * j] = x.x * factor;
        f[2 * j + 1] = x.y * factor;
      }
    }
    if (m0 + r >= end || unit * 8 >= a.dim_qk) continue;
    if constexpr (kFp8) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        most = fmaxf(most, fabsf(f[j]));
        f[j] *= scale;
      }
      with_dtype(a.dq.dtype, [&](auto tag) {
        store(a.dq.data, static_cast<size_t>(at), from_float<decltype(tag), 8>(f));
      });
    } else {
      store(a.dq.data, static_cast<size_t>(at), from_float<T, 8>(f));
    }
  }
  if constexpr (kFp8) {
    // Blocks are many, and their largest values are soon less than what is there.
    const bool more =
        a.dq.amax != nullptr && most > *static_cast<const volatile float *>(a.dq.amax);
    if (__any_sync(~0u, more)) raise_amax(a.dq.amax, most);
  }
#endif
}

}  // namespace sm90_backward
}  // namespace nvte
