// The consumers of the main kernel for heads of up to 128 elements, or 192 of queries and keys.
// Each of the two warpgroups has 64 keys, whose dk and dv it keeps in registers while it goes over
// the queries.
#pragma once

#include <type_traits>

#include "common/philox.cuh"
#include "short_layout.cuh"
#include "tiles.cuh"

namespace nvte {
namespace sm90_backward {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Hardware barriers, after kConsumerBarrier: two with the threads of one consumer each, then four,
// one for each consumer's part of each of two buffers of ds: who writes the part arrives, the other
// waits.
constexpr int kGroupBarrier = 2, kReadyBarrier = 4;

template <class T, int kD, int kM, bool kDropout, Extra kExtra>
struct Consumer {
  using L = Sizes<kD, kM, kExtra>;
  static constexpr bool kHasBias = kExtra == Extra::kBias;
  static constexpr int kWords = (kM + 63) / 64;  // Words of what dropout keeps.
  static constexpr int kDv = kValues<kD>, kScores = kM / 2, kSteps = kM / 16;
  // dq, transposed: a warpgroup has 64 elements of the head for all queries if the head has two
  // panels or three, and 64 elements for half of the queries if it has one or three. If there are
  // both, the latter come after ds of the next queries: there are no registers for all of dq beside
  // s, nor beside dp.
  static constexpr bool kHasWhole = kD >= 128, kHasHalf = kD != 128;
  static constexpr bool kReadsAhead = kD < 192;  // Where there are registers for it.
  static constexpr bool kLate = kHasWhole && kHasHalf;
  static constexpr int kHalf = kHasHalf ? kM / 4 : 0;

  const Problem &a;
  const Work<kKeys, kM> &work, &rare;
  unsigned char *shared;
  typename L::SharedBarriers &b;
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
  // Scores: K q^T of this warpgroup's keys, or V do^T.
  template <int kElements>
  __device__ __forceinline__ void scores(float (&d)[kScores], uint32_t keys, uint32_t queries) {
    keys = low_k(keys + group * 64 * 128);
    queries = low_k(queries);
#pragma unroll
    for (int s = 0; s < kElements / 16; ++s) {
      Product<T, kM>::template shared<>(d, operand(keys, s / 4 * L::kKeyPanel + s % 4 * 32),
                                        operand(queries, s / 4 * L::kQueryPanel + s % 4 * 32),
                                        s != 0);
    }
  }
  // Gradients of values: p^T do, with p in registers.
  __device__ __forceinline__ void gradient(float (&d)[kDv / 2], const uint32_t (&p)[kSteps][4],
                                           uint32_t queries) {
    queries = low_mn(queries, L::kQueryPanel);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      Product<T, kDv>::template registers<true>(d, p[s], operand(queries, s * 2048), true);
    }
  }
  // Gradients of keys: ds^T q, with ds in shared memory.
  __device__ __forceinline__ void gradient(float (&d)[kD / 2], uint32_t ds, uint32_t queries) {
    ds = low_mn(ds + group * L::kQueryPanel, 0);
    queries = low_mn(queries, L::kQueryPanel);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      Product<T, kD>::template shared<true, true>(d, operand(ds, s * 2048),
                                                  operand(queries, s * 2048), true);
    }
  }
  // (ds K)^T.
  template <int kColumns>
  __device__ __forceinline__ void query_gradient(float (&d)[kColumns / 2], uint32_t keys,
                                                 uint32_t ds) {
    keys = low_mn(keys, 0);
    ds = low_k(ds);
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) {
      Product<T, kColumns>::template shared<true, false>(
          d, operand(keys, s * 2048), operand(ds, s / 4 * L::kQueryPanel + s % 4 * 32), s != 0);
    }
  }

  __device__ __forceinline__ void run() {
    const uint32_t base = shared_address(shared);
    float dk[kD / 2], dv[kDv / 2];
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) dk[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < kDv / 2; ++i) dv[i] = 0.0f;

    const int total = work.total;
    if (total > 0) {
      PipelineState<L::kQStages> q;
      PipelineState<L::kOStages> o;
      float s[kScores], dp[kScores];
      // Parts of dq. dp takes the registers that the first one has left.
      float half[kHasHalf ? kHalf : 1], (&whole)[kScores] = dp;
      uint32_t p_and_z[kDropout ? 2 : 1][kSteps][4];  // z: what dropout leaves of p.
      auto &p = p_and_z[0], &z = p_and_z[kDropout ? 1 : 0];
      [[maybe_unused]] uint32_t kept[kWords];
      int block = work.block, head = work.head;
      const float scale_log2 = a.scale * kLog2e;
      // The lane's row and unit of a panel of ds or of a bias, which the lanes of a warp transpose.
      const int lane_row = lane / 16 * 8 + lane % 8, lane_unit = 2 * warp + (lane / 8 & 1);
      const uint32_t lane_at =
          group * L::kQueryPanel + lane_row * 128 + ((lane_unit ^ (lane_row & 7)) << 4);

      const auto load_scores = [&](int m0) {  // s of the queries from m0 on
        b.q.consumer_wait(q);
        const int at = L::kQ + q.stage * L::kQueryTile;
        if (m0 + kM > work.lq) clear_rows<kM, L::kPanelsQk>(shared + at, work.lq - m0, thread);
        wgmma_fence();
        scores<kD>(s, base + L::kK, base + at);
        wgmma_commit_group();
      };
      const auto wait_gradients = [&](int m0) {
        b.o.consumer_wait(o);
        const int at = L::kO + o.stage * L::kDoTile;
        if (m0 + kM > work.lq) clear_rows<kM, L::kPanelsV>(shared + at, work.lq - m0, thread);
      };
      const auto start_dp = [&] {
        wgmma_fence();
        scores<kDv>(dp, base + L::kV, base + L::kO + o.stage * L::kDoTile);
        wgmma_commit_group();
      };
      pin(dk);
      pin(dv);
      mbarrier_wait(&b.full_k, 0);
      if (work.n0 + kKeys > work.lk) {
        clear_rows<kKeys, L::kPanelsQk>(shared + L::kK, work.lk - work.n0, thread);
      }
      load_scores(block * kM);
      mbarrier_wait(&b.full_v, 0);
      if (work.n0 + kKeys > work.lk) {
        clear_rows<kKeys, L::kPanelsV>(shared + L::kV, work.lk - work.n0, thread);
      }
      int parity = 0;
      const auto softmax = [&](int m0, auto in_flight) {
        const float *rows =
            reinterpret_cast<const float *>(shared + L::kRow + q.stage * L::kRowTile) +
            lane % 4 * 4;
        const auto four_at = [&](int at) { return *reinterpret_cast<const float4 *>(rows + at); };
        // The first ones are read before the wait, because shared memory is slow while others use
        // it.
        float4 ahead;
        if constexpr (kReadsAhead) ahead = four_at(0);
        // The slopes of this lane's keys, from the first query on.
        [[maybe_unused]] float slopes[2];
        if constexpr (kExtra == Extra::kAlibi) {
          const float slope = a.slope_of(head);
          const int c = work.n0 + group * 64 + warp * 16 + lane / 4 - m0;
          slopes[0] = slope * static_cast<float>(c);
          slopes[1] = slope * static_cast<float>(c + 8);
        }
        [[maybe_unused]] uint32_t bias_at = 0, bias_step = 0;
        wgmma_wait_group<decltype(in_flight)::value>();
        pin(s);
        if constexpr (kHasBias) {
          const uint32_t tile = base + L::kBias + q.stage * L::kScoreTile;
          // The only row for all of them, or each row its own.
          bias_at = tile + (a.bias_rows ? lane_at : group * L::kQueryPanel + (lane_unit << 4));
          bias_step = a.bias_rows ? 16 * 128 : 0;
        }
#pragma unroll
        for (int j = 0; j < kM / 16; ++j) {
          const float4 lse = kReadsAhead && j == 0 ? ahead : four_at(16 * j);
          const float of_row[4] = {lse.x, lse.y, lse.z, lse.w};
          [[maybe_unused]] uint32_t bias[4];
          if constexpr (kHasBias) ldmatrix_x4_trans(bias_at + j * bias_step, bias);
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
        // Past the last query a bias may have any value.
        if (work.masked(m0) || (kHasBias && m0 + kM > work.lq)) {
          mask<kHasBias>(s, work, work.n0 + group * 64 + warp * 16, m0, lane);
        }
        round_pairs<T, kScores>(p, s);
        if constexpr (kDropout) {
#pragma unroll
          for (int i = 0; i < kSteps; ++i) {
#pragma unroll
            for (int n = 0; n < 4; ++n) z[i][n] = p[i][n] & kept_pair(kept[i / 4], i % 4, n);
          }
        }
      };
      const auto start_dv = [&] {
        wgmma_fence();
        gradient(dv, z, base + L::kO + o.stage * L::kDoTile);
        wgmma_commit_group();
      };
      const auto start_late_half = [&](int of_parity) {
        if constexpr (kLate) {
          wgmma_fence();
          query_gradient<kM / 2>(
              half, base + L::kK + L::kKeyPanel,
              base + L::kDs + of_parity * L::kScoreTile + group * (kM / 2) * 128);
          wgmma_commit_group();
        }
      };
      // Add dq to its sum over the blocks of keys. `at` counts the blocks of all heads.
      const auto add_piece = [&](auto piece, auto &dq, int row, int64_t at, int m0) {
        constexpr int kPart = kM * kD / kConsumers / 4;  // Elements of a warp.
        pin(dq);
        add_query_gradient<decltype(piece)>(
            a, work, dq, a.dq_sum + at * (kM * kD) + (group * 4 + warp) * kPart + row * 128,
            a.turns + (at * kConsumers + group) * 4 + warp, m0,
            base + L::kDq + ((group * 4 + warp) * L::kDqRows + row) * 512, lane);
      };
      constexpr int kRows = (kHasWhole ? kScores : kHalf) / 4;
      constexpr int kBulk = kRows < L::kDqRows ? kRows : L::kDqRows;
      const auto add_dq = [&](int64_t at, int m0) {
        if constexpr (kHasWhole) {
          add_piece(Piece<true, !kLate, kBulk, kLate>{}, whole, 0, at, m0);
        } else {
          add_piece(Piece<true, true, kBulk, 0>{}, half, 0, at, m0);
        }
      };
      const auto add_late_half = [&](int64_t at, int m0) {
        if constexpr (kLate) {
          static_assert(!kLate || L::kDqRows == kRows + kHalf / 4, "room for all of dq");
          add_piece(Piece<false, true, kLate ? kHalf / 4 : 0, 1>{}, half, kRows, at, m0);
        }
      };
      // Computes ds from dp, while dv is being multiplied, and writes it to shared memory.
      // `before`: there are queries before these, whose dq goes to block `sum` and whose first one
      // is m0.
      const auto finish = [&](auto before, int64_t sum, int m0) {
        const float *rows =
            reinterpret_cast<const float *>(shared + L::kRow + q.stage * L::kRowTile) + kM +
            lane % 4 * 4;
        const auto four_at = [&](int at) { return *reinterpret_cast<const float4 *>(rows + at); };
        float4 ahead;
        if constexpr (kReadsAhead) ahead = four_at(0);
        wgmma_wait_group<1>();
        pin(dp);
#pragma unroll
        for (int j = 0; j < kM / 8; ++j) {
          const float4 both = kReadsAhead && j < 2 ? ahead : four_at(8 * (j / 2 * 2));
          const float2 d = j % 2 == 0 ? make_float2(both.x, both.y) : make_float2(both.z, both.w);
          if constexpr (kDropout) {
            // p stays in float32: there are registers for it, and where little is kept it matters.
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
        round_pairs<T, kScores>(ds, dp);
        // Both warpgroups have read what lay in this buffer two rounds ago, because they have met
        // at a barrier since.
        parity ^= 1;
        const uint32_t scores_at = base + L::kDs + parity * L::kScoreTile + lane_at;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) stmatrix_x4_trans(scores_at + i * 16 * 128, ds[i]);
        fence_proxy_async();
        constexpr bool kHalfBefore = kLate && decltype(before)::value;
        if constexpr (kHalfBefore) start_late_half(parity ^ 1);
        // Whoever knows of these ds may overwrite those before.
        if constexpr (!kLate) bar_arrive(kReadyBarrier + 2 * parity + group, 128 * kConsumers);
        wgmma_wait_group<0>();
        if constexpr (kLate) bar_arrive(kReadyBarrier + 2 * parity + group, 128 * kConsumers);
        if constexpr (kHalfBefore) add_late_half(sum, m0);
        pin(dv);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) pin(z[i]);
        release(b.o, o, lane);
        o.advance();
      };
      const auto start_dq = [&] {
        bar_sync(kReadyBarrier + 2 * parity + 1 - group, 128 * kConsumers);
        wgmma_fence();
        const uint32_t ds = base + L::kDs + parity * L::kScoreTile;
        if constexpr (kHasWhole) {
          query_gradient<kM>(whole, base + L::kK + group * (kD / 64 - 1) * L::kKeyPanel, ds);
        } else {
          query_gradient<kM / 2>(half, base + L::kK, ds + group * (kM / 2) * 128);
        }
        wgmma_commit_group();
      };
      const auto start_dk = [&](int stage, int m0, int head) {
        if constexpr (kHasBias) {
          // The store of the previous ds has read its buffer, so that the buffer may be written
          // again.
          if (thread % 128 == 0) cp_async_bulk_wait_group_read<0>();
        }
        bar_sync(kGroupBarrier + group, 128);
        if constexpr (kHasBias) {
          const int column = work.n0 + group * 64;
          if (a.stores_scores() && thread % 128 == 0 &&
              column < static_cast<int>(a.kv_side.max_seqlen)) {
            const int at[4] = {column, m0, head, work.sequence};
            cp_async_bulk_tensor_store<4>(
                &a.maps.dbias, shared + L::kDs + parity * L::kScoreTile + group * L::kQueryPanel,
                at);
            cp_async_bulk_commit_group();
          }
        }
        wgmma_fence();
        gradient(dk, base + L::kDs + parity * L::kScoreTile, base + L::kQ + stage * L::kQueryTile);
        wgmma_commit_group();
      };

      if constexpr (kDropout) draw(kept, head, block * kM);
      softmax(block * kM, std::integral_constant<int, 0>{});
      wait_gradients(block * kM);
      start_dp();
      start_dv();
      wgmma_wait_group<0>();
      finish(std::false_type{}, 0, 0);
#pragma unroll 1
      for (int left = total - 1; left > 0; --left) {
        // s and dk need nothing of the other warpgroup, so that it may be late by their time. Their
        // products and dq's run behind the exponentials, those of dp and dv behind the rest.
        // Nothing is in flight from one round to the next: the compiler would wait for every
        // product.
        const int m0 = block * kM;
        const PipelineState<L::kQStages> last = q;
        [[maybe_unused]] const int of_head = head;
        const int64_t sum = int64_t{head} * a.head_blocks + work.base + block;
        work.next(block, head);
        q.advance();
        load_scores(block * kM);
        start_dk(last.stage, m0, of_head);
        if constexpr (kDropout) draw(kept, head, block * kM);
        start_dq();
        softmax(block * kM, std::integral_constant<int, 2>{});
        wait_gradients(block * kM);
        // Longer heads have no registers for dq and dp at once.
        constexpr bool kFirst = kD >= 128;
        if constexpr (kFirst) {
          wgmma_wait_group<0>();
          add_dq(sum, m0);
        }
        start_dp();
        start_dv();
        if constexpr (!kFirst) {
          wgmma_wait_group<2>();
          add_dq(sum, m0);
        }
        pin(dk);
        b.q.consumer_release(last);
        finish(std::true_type{}, sum, m0);
      }
      start_dk(q.stage, block * kM, head);
      start_dq();
      wgmma_wait_group<0>();
      const int64_t sum = int64_t{head} * a.head_blocks + work.base + block;
      add_dq(sum, block * kM);
      if constexpr (kLate) {
        start_late_half(parity);
        wgmma_wait_group<0>();
        add_late_half(sum, block * kM);
      }
    }
    if constexpr (kHasBias) {
      if (thread % 128 == 0) cp_async_bulk_wait_group<0>();
    }
    if constexpr (L::kDqRows > 0) finish_query_gradients(lane);
    pin(dk);
    pin(dv);
    if (rare.shared >= 0) {
      constexpr int kStep = 128 * kConsumers * 4;
      float *sum_v = a.shared_sum + rare.shared * a.shared_floats + thread * 4;
      float *sum_k = sum_v + kDv / 8 * kStep;
      add_part(dv, sum_v, kStep);
      add_part(dk, sum_k, kStep);
      if (!is_last_part(a, rare.shared, shared + L::kRow)) return;
      get_part(dv, sum_v, kStep);
      get_part(dk, sum_k, kStep);
    }
    // Only this warp uses these rows of V, and it has read them.
    unsigned char *panels = shared + L::kV + (group * 64 + warp * 16) * 128;
    const int first = work.n0 + group * 64 + warp * 16;
    write_rows<T, kKeys, kDv>(a, a.dv, a.dim_v, panels, dv, a.scale_v, rare.sequence, rare.key_head,
                              first, work.lk, lane);
    // V has no more panels than two.
    constexpr int kAtOnce = kD < 128 ? kD : 128, kRest = kD - kAtOnce;
    float low[kAtOnce / 2];
#pragma unroll
    for (int i = 0; i < kAtOnce / 2; ++i) low[i] = dk[i];
    write_rows<T, kKeys, kAtOnce>(a, a.dk, a.dim_qk, panels, low, a.scale_k, rare.sequence,
                                  rare.key_head, first, work.lk, lane);
    if constexpr (kRest > 0) {
      float high[kRest / 2];
#pragma unroll
      for (int i = 0; i < kRest / 2; ++i) high[i] = dk[kAtOnce / 2 + i];
      NVTEXAttentionTensor rest = a.dk;
      rest.data = static_cast<typename T::Bits *>(rest.data) + kAtOnce;
      write_rows<T, kKeys, kRest>(a, rest, a.dim_qk - kAtOnce, panels, high, a.scale_k,
                                  rare.sequence, rare.key_head, first, work.lk, lane);
    }
  }

  // Adds ds to its sum over sequences or heads.
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
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace sm90_backward
}  // namespace nvte
