// The consumers of the main kernel for heads of 129 to 256 elements, and its shared memory. A block
// has 64 keys. One of the two warpgroups has the scores, p and dv, the other one dp, ds and dk:
// each has one whole accumulator in registers, and its left operand, p or ds, beside it. p goes
// through shared memory to become ds, and ds to become dq, of which each warpgroup has some
// elements of the head.
#pragma once

#include "common/philox.cuh"
#include "tiles.cuh"

namespace nvte {
namespace sm90_backward {
namespace long_heads {

constexpr int kKeys = 64, kM = 64;  // Keys of a block, and queries at a time.
constexpr int kPanel = 64 * 128;    // Bytes of 64 rows of 64 elements.

// Sizes of gradient_kernel in bytes.
template <int kDqk, int kDv>
struct Sizes {
  static_assert(kDqk % 64 == 0 && kDv % 64 == 0, "whole panels");
  static constexpr int kPanelsQk = kDqk / 64, kPanelsV = kDv / 64;
  static constexpr int kStages = 2;
  static constexpr int kTileQk = kPanelsQk * kPanel, kTileV = kPanelsV * kPanel;
  static constexpr int kRowTile = 2 * kM * 4;
  static constexpr int kK = 0, kV = kK + kTileQk, kQ = kV + kTileV, kO = kQ + kStages * kTileQk,
                       kP = kO + kStages * kTileV, kDs = kP + 2 * kPanel, kRow = kDs + 2 * kPanel,
                       kBarrier = kRow + kStages * kRowTile;
  using SharedBarriers = Barriers<kStages, kStages>;
  // The kernel aligns the start to 1024 bytes.
  static constexpr int kBytes = kBarrier + static_cast<int>(sizeof(SharedBarriers)) + 1024;
  static_assert(kBytes <= 232448 - 256, "shared memory of a block");
};

// Elements of dq that the first warpgroup has: whole panels.
template <int kDqk>
constexpr int kFirstPart = kDqk / 128 * 64;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Hardware barriers, after kConsumerBarrier: that of the second consumer, and those at which a
// buffer of p or of ds is complete, two of each.
constexpr int kGroupBarrier = 2, kProbabilities = 3, kGradients = 5;

template <class T, int kDqk, int kDv, bool kExtras>
struct Consumer {
  using L = Sizes<kDqk, kDv>;
  using Place = Work<kKeys, kM>;
  static constexpr int kScores = kM / 2, kSteps = kM / 16;

  const Problem &a;
  const Place &work, &rare;
  unsigned char *shared;
  typename L::SharedBarriers &b;
  int thread, lane, warp;  // Of both warpgroups; of a warp; of a warpgroup.

  // What dropout keeps of a warp's 16 keys and the queries.
  __device__ __forceinline__ uint32_t draw(int head, int m0) const {
    if (!kExtras || a.dropout == 0.0f) return ~0u;
    return KeptScores<true>(a.mask.of_head(a, rare.sequence, head))(m0, work.n0 + warp * 16);
  }
  // Scores: keys queries^T over kD elements.
  template <int kD>
  __device__ __forceinline__ void scores(float (&d)[kScores], uint32_t keys, uint32_t queries) {
    keys = low_k(keys);
    queries = low_k(queries);
#pragma unroll
    for (int s = 0; s < kD / 16; ++s) {
      const int at = s / 4 * kPanel + s % 4 * 32;
      Product<T, kM>::template shared<>(d, operand(keys, at), operand(queries, at), s != 0);
    }
  }
  // Gradients of values or keys: p^T do or ds^T q.
  template <int kD>
  __device__ __forceinline__ void gradient(float (&d)[kD / 2], const uint32_t (&p)[kSteps][4],
                                           uint32_t queries) {
    queries = low_mn(queries, kPanel);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      Product<T, kD>::template registers<true>(d, p[s], operand(queries, s * 2048), true);
    }
  }
  // ds K, kD elements of the head from `keys` on.
  template <int kD>
  __device__ __forceinline__ void query_gradient(float (&d)[kD / 2], uint32_t ds, uint32_t keys) {
    ds = low_k(ds);
    keys = low_mn(keys, kPanel);
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) {
      Product<T, kD>::template shared<false, true>(d, operand(ds, s * 32), operand(keys, s * 2048),
                                                   s != 0);
    }
  }

  // Called by both warpgroups: rows past the end of the sequence are unknown, or another
  // sequence's, and become zeros.
  __device__ __forceinline__ void clear_ends(int m0, const PipelineState<L::kStages> &at) {
    if (m0 + kM <= work.lq) return;
    b.q.consumer_wait(at);
    b.o.consumer_wait(at);
    clear_rows<kM, L::kPanelsQk>(shared + L::kQ + at.stage * L::kTileQk, work.lq - m0, thread);
    clear_rows<kM, L::kPanelsV>(shared + L::kO + at.stage * L::kTileV, work.lq - m0, thread);
  }
  __device__ __forceinline__ void clear_keys() {
    if (work.n0 + kKeys <= work.lk) return;
    mbarrier_wait(&b.full_k, 0);
    mbarrier_wait(&b.full_v, 0);
    clear_rows<kKeys, L::kPanelsQk>(shared + L::kK, work.lk - work.n0, thread);
    clear_rows<kKeys, L::kPanelsV>(shared + L::kV, work.lk - work.n0, thread);
  }
  template <int kPart, int kD>
  __device__ __forceinline__ void add(const float (&dq)[kD / 2], int head, int block) {
    const int64_t index = int64_t{head} * a.head_blocks + work.base + block;
    float *to =
        a.dq_sum + index * (kM * kDqk) + (kPart == 0 ? 0 : kM * kFirstPart<kDqk>)+warp * (16 * kD);
    add_query_gradient<Piece<true, true, 0, 0>>(
        a, work, dq, to, a.turns + (index * 2 + kPart) * 4 + warp, block * kM, 0, lane);
  }

  // The first warpgroup computes p and dv.
  __device__ __forceinline__ void run_values() {
    constexpr int kDq = kFirstPart<kDqk>;
    const uint32_t base = shared_address(shared);
    float dv[kDv / 2];
#pragma unroll
    for (int i = 0; i < kDv / 2; ++i) dv[i] = 0.0f;
    const int total = work.total;
    if (total > 0) {
      PipelineState<L::kStages> q, o;
      float s[kScores];
      uint32_t p[kSteps][4];
      int block = work.block, head = work.head, parity = 0;
      const float scale_log2 = a.scale * kLog2e;
      const auto start_scores = [&](int m0) {
        clear_ends(m0, q);
        b.q.consumer_wait(q);
        wgmma_fence();
        scores<kDqk>(s, base + L::kK, base + L::kQ + q.stage * L::kTileQk);
        wgmma_commit_group();
      };
      const auto start_dv = [&] {
        b.o.consumer_wait(o);
        wgmma_fence();
        gradient<kDv>(dv, p, base + L::kO + o.stage * L::kTileV);
        wgmma_commit_group();
      };
      // Computes p from s, and writes it to shared memory.
      const auto softmax = [&](int m0) {
        // The slopes of this lane's keys, from the first query on.
        [[maybe_unused]] float slopes[2];
        if constexpr (kExtras) {
          const float slope = a.alibi ? a.slope_of(head) : 0.0f;
          const int c = work.n0 + warp * 16 + lane / 4 - m0;
          slopes[0] = slope * static_cast<float>(c);
          slopes[1] = slope * static_cast<float>(c + 8);
        }
        const float *rows =
            reinterpret_cast<const float *>(shared + L::kRow + q.stage * L::kRowTile) +
            lane % 4 * 4;
#pragma unroll
        for (int j = 0; j < kM / 16; ++j) {
          const float4 lse = *reinterpret_cast<const float4 *>(rows + 16 * j);
          const float of_row[4] = {lse.x, lse.y, lse.z, lse.w};
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            float more = -of_row[n / 4 * 2 + n % 2];
            if constexpr (kExtras) more += slopes[n % 4 / 2];
            s[8 * j + n] = power2(fmaf(s[8 * j + n], scale_log2, more));
          }
        }
        if (work.masked(m0)) mask<false>(s, work, work.n0 + warp * 16, m0, lane);
        b.q.consumer_release(q);
      };
      // Writes p, and what dropout leaves of it for dv.
      const auto write_p = [&] {
        uint4 *to = reinterpret_cast<uint4 *>(shared + L::kP + parity * kPanel) + thread;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          to[i * 128] = make_uint4(p[i][0], p[i][1], p[i][2], p[i][3]);
        }
        bar_arrive(kProbabilities + parity, 128 * kConsumers);
        if constexpr (kExtras) {
          const uint32_t kept = draw(head, block * kM);
#pragma unroll
          for (int i = 0; i < kSteps; ++i) {
#pragma unroll
            for (int n = 0; n < 4; ++n) p[i][n] &= kept_pair(kept, i, n);
          }
        }
      };
      const auto finish_dq = [&](int of_head, int of_block) {
        float dq[kDq / 2];
        bar_sync(kGradients + parity, 128 * kConsumers);
        wgmma_fence();
        query_gradient<kDq>(dq, base + L::kDs + parity * kPanel, base + L::kK);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        pin(dq);
        add<0, kDq>(dq, of_head, of_block);
      };
      pin(dv);
      clear_keys();
      mbarrier_wait(&b.full_k, 0);
      start_scores(block * kM);
      wgmma_wait_group<0>();
      pin(s);
      softmax(block * kM);
      round_pairs<T, kScores>(p, s);
      write_p();
#pragma unroll 1
      for (int left = total - 1; left > 0; --left) {
        const int of_block = block, of_head = head;
        work.next(block, head);
        q.advance();
        start_scores(block * kM);
        start_dv();
        wgmma_wait_group<1>();
        pin(s);
        softmax(block * kM);
        wgmma_wait_group<0>();
        pin(dv);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) pin(p[i]);
        release(b.o, o, lane);
        o.advance();
        round_pairs<T, kScores>(p, s);
        // The other warpgroup has read what lay here two rounds ago: its ds of then is read.
        parity ^= 1;
        write_p();
        parity ^= 1;
        finish_dq(of_head, of_block);
        parity ^= 1;
      }
      start_dv();
      finish_dq(head, block);
      pin(dv);
    }
    pin(dv);
    finish<kDv>(dv, a.dv, a.dim_v, a.scale_v, shared + L::kV, 0);
  }

  // The second warpgroup computes ds and dk.
  __device__ __forceinline__ void run_keys() {
    constexpr int kDq = kDqk - kFirstPart<kDqk>;
    const uint32_t base = shared_address(shared);
    const int in_group = thread - 128;
    float dk[kDqk / 2];
#pragma unroll
    for (int i = 0; i < kDqk / 2; ++i) dk[i] = 0.0f;
    const int total = work.total;
    if (total > 0) {
      PipelineState<L::kStages> q, o;
      float dp[kScores];
      uint32_t ds[kSteps][4];
      int block = work.block, head = work.head, parity = 0;
      const int lane_row = lane / 16 * 8 + lane % 8, lane_unit = 2 * warp + (lane / 8 & 1);
      const uint32_t lane_at = lane_row * 128 + ((lane_unit ^ (lane_row & 7)) << 4);
      const auto start_dp = [&](int m0) {
        clear_ends(m0, o);
        b.o.consumer_wait(o);
        wgmma_fence();
        scores<kDv>(dp, base + L::kV, base + L::kO + o.stage * L::kTileV);
        wgmma_commit_group();
      };
      const auto start_dk = [&] {
        wgmma_fence();
        gradient<kDqk>(dk, ds, base + L::kQ + q.stage * L::kTileQk);
        wgmma_commit_group();
      };
      // Computes ds from dp.
      const auto subtract = [&] {
        const float *rows =
            reinterpret_cast<const float *>(shared + L::kRow + o.stage * L::kRowTile) + kM +
            lane % 4 * 4;
        b.q.consumer_wait(o);
        bar_sync(kProbabilities + parity, 128 * kConsumers);
        [[maybe_unused]] const uint32_t kept = draw(head, block * kM);
        const uint4 *from =
            reinterpret_cast<const uint4 *>(shared + L::kP + parity * kPanel) + in_group;
#pragma unroll
        for (int j = 0; j < kSteps; ++j) {
          const float4 four = *reinterpret_cast<const float4 *>(rows + 16 * j);
          const float of_row[4] = {four.x, four.y, four.z, four.w};
          const uint4 both = from[j * 128];
          const uint32_t p[4] = {both.x, both.y, both.z, both.w};
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            float f[2];
            T::to_float(p[n], f);
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              float &x = dp[8 * j + 2 * n + e];
              if constexpr (kExtras) x = is_kept(kept, j, n / 2, n % 2 * 2 + e) ? x : 0.0f;
              x = f[e] * (x - of_row[n / 2 * 2 + e]);
            }
          }
        }
      };
      const auto write_ds = [&] {
        const uint32_t to = base + L::kDs + parity * kPanel + lane_at;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) stmatrix_x4_trans(to + i * 16 * 128, ds[i]);
        fence_proxy_async();
        bar_arrive(kGradients + parity, 128 * kConsumers);
        bar_sync(kGroupBarrier, 128);
      };
      const auto finish_dq = [&](int of_head, int of_block) {
        float dq[kDq / 2];
        wgmma_fence();
        query_gradient<kDq>(dq, base + L::kDs + parity * kPanel,
                            base + L::kK + kFirstPart<kDqk> / 64 * kPanel);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        pin(dq);
        add<1, kDq>(dq, of_head, of_block);
      };
      pin(dk);
      clear_keys();
      mbarrier_wait(&b.full_k, 0);
      mbarrier_wait(&b.full_v, 0);
      start_dp(block * kM);
      wgmma_wait_group<0>();
      pin(dp);
      subtract();
      release(b.o, o, lane);
      round_pairs<T, kScores>(ds, dp);
      write_ds();
#pragma unroll 1
      for (int left = total - 1; left > 0; --left) {
        const int of_block = block, of_head = head;
        work.next(block, head);
        o.advance();
        start_dp(block * kM);
        start_dk();
        wgmma_wait_group<1>();
        pin(dp);
        release(b.o, o, lane);
        parity ^= 1;
        subtract();
        wgmma_wait_group<0>();
        pin(dk);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) pin(ds[i]);
        b.q.consumer_release(q);
        q.advance();
        round_pairs<T, kScores>(ds, dp);
        // Both warpgroups have read what lay in this buffer two rounds ago: the other one did so
        // before it wrote this p.
        write_ds();
        parity ^= 1;
        finish_dq(of_head, of_block);
        parity ^= 1;
      }
      start_dk();
      finish_dq(head, block);
      pin(dk);
    }
    pin(dk);
    finish<kDqk>(dk, a.dk, a.dim_qk, a.scale_k, shared + L::kQ, kKeys * kDv);
  }

  // Writes a gradient of the keys, through `panels`, which nobody reads any more. `part`: where it
  // lies in the sums of parts.
  template <int kD>
  __device__ __forceinline__ void finish(float (&d)[kD / 2], const NVTEXAttentionTensor &to,
                                         size_t dim, float scale, unsigned char *panels, int part) {
    if (rare.shared >= 0) {
      float *sum = a.shared_sum + rare.shared * a.shared_floats + part + thread % 128 * 4;
      add_part(d, sum, 128 * 4);
      if (!is_last_part(a, rare.shared, shared + L::kRow)) return;
      get_part(d, sum, 128 * 4);
    }
    write_rows<T, kKeys, kD>(a, to, dim, panels + warp * 16 * 128, d, scale, rare.sequence,
                             rare.key_head, work.n0 + warp * 16, work.lk, lane);
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace long_heads
}  // namespace sm90_backward
}  // namespace nvte
