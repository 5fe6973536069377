// The consumers of the main kernel for FP8 tensors. Each of the two warpgroups has 64 keys, whose
// dk and dv it keeps in registers while it goes over the queries.
#pragma once

#include <type_traits>

#include "common/philox.cuh"
#include "fp8_layout.cuh"
#include "tiles.cuh"

namespace nvte {
namespace sm90_backward {
namespace fp8_heads {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Hardware barriers, after kConsumerBarrier: one for each consumer's part of each buffer of ds. Who
// writes the part arrives, the other waits.
constexpr int kReadyBarrier = 2;

// A right operand in rows of 64 bytes with the 64-byte swizzle, by the low word of its descriptor.
__device__ __forceinline__ uint64_t image_operand(uint32_t low, int offset) {
  uint64_t d;
  asm("mov.b64 %0, {%1, %2};"
      : "=l"(d)
      : "r"(low + static_cast<uint32_t>(offset >> 4)),
        "n"(static_cast<uint32_t>(uint64_t{2} << 62 >> 32 | 32)));
  return d;
}

template <int kD, bool kDropout, class Code>
struct Consumer {
  using L = Sizes<kD>;
  static constexpr bool kE5M2 = Code::kDtype == kNVTEFloat8E5M2;
  using ByCode = std::conditional_t<kE5M2, E4M3TimesE5M2, E4M3>;
  using OfCode = std::conditional_t<kE5M2, E5M2TimesE4M3, E4M3>;
  static constexpr int kScores = kM / 2, kDim = kD / 2, kSteps = kM / 32;
  static constexpr int kDqColumns = kD == 128 ? kM : kM / 2;

  const Problem &a;
  const Work<kKeys, kM> &work, &rare;
  unsigned char *shared;
  typename L::SharedBarriers &b;
  int group, thread, lane, warp;

  // What dropout keeps of a warp's 16 keys and the queries.
  __device__ __forceinline__ uint32_t draw(int head, int m0) const {
    if constexpr (!kDropout) return ~0u;
    return KeptScores<true>(a.mask.of_head(a, rare.sequence, head))(
        m0, work.n0 + group * 64 + warp * 16);
  }
  // K q^T of this warpgroup's keys, or V do^T.
  template <class Types>
  __device__ __forceinline__ void scores(float (&d)[kScores], uint32_t keys, uint32_t queries) {
    keys = low_k(keys + group * 64 * 128);
    queries = low_k(queries);
#pragma unroll
    for (int s = 0; s < kD / 32; ++s) {
      Product<Types, kM>::shared(d, operand(keys, s * 32), operand(queries, s * 32), s != 0);
    }
  }
  // Gradients of values or keys: p^T do or ds^T q.
  template <class Types>
  __device__ __forceinline__ void gradient(float (&d)[kDim], const uint32_t (&p)[kSteps][4],
                                           uint32_t image) {
    image = low_k(image);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      Product<Types, kD>::registers(d, p[s], image_operand(image, s * 32), true);
    }
  }
  // (ds K)^T: 64 elements of the head for all queries, or all 64 for half of the queries.
  __device__ __forceinline__ void query_gradient(float (&d)[kDqColumns / 2], uint32_t keys,
                                                 uint32_t ds) {
    keys = low_k(keys + (kD == 128 ? group * 64 * 128 : 0));
    ds = low_k(ds + (kD == 128 ? 0 : group * (kM / 2) * 128));
#pragma unroll
    for (int s = 0; s < kKeys / 32; ++s) {
      Product<ByCode, kDqColumns>::shared(d, operand(keys, s * 32), operand(ds, s * 32), s != 0);
    }
  }
  // Scores as a left operand.
  template <class To>
  static __device__ __forceinline__ void encode(uint32_t (&w)[kSteps][4],
                                                const float (&d)[kScores]) {
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) {
      const int at = i / 4 * 16 + i % 4 / 2 * 8 + i % 2 * 2;
      const float four[4] = {d[at], d[at + 1], d[at + 4], d[at + 5]};
      w[i / 4][i % 4] = To::from_float(four);
    }
  }
  // Adds dq to its sum over the blocks of keys. `block` counts the blocks of all heads.
  __device__ __forceinline__ void add(const float (&dq)[kDqColumns / 2], int64_t block, int m0) {
    constexpr int kPart = kM * kD / kConsumers / 4;  // Elements of a warp.
    const int first = (group * 4 + warp) * kPart;
    add_query_gradient<Piece<true, true, kPart / 128, 0>>(
        a, work, dq, a.dq_sum + block * (kM * kD) + first,
        a.turns + (block * kConsumers + group) * 4 + warp, m0,
        shared_address(shared) + L::kDq + first * 4, lane);
  }

  __device__ __forceinline__ void run() {
    const uint32_t base = shared_address(shared);
    const int lk = work.lk, lq = work.lq;
    float dk[kDim], dv[kDim];
#pragma unroll
    for (int i = 0; i < kDim; ++i) dk[i] = dv[i] = 0.0f;

    const int total = work.total;
    if (total > 0) {
      PipelineState<L::kStages> q, o;
      float s[kScores], dp[kScores], dq[kDqColumns / 2], most = 0.0f;
      uint32_t p[kSteps][4], ds[kSteps][4];
      uint32_t kept = ~0u;
      int block = work.block, head = work.head, tile = 0;
      int sum = 0, sums[2] = {}, rows[2] = {};  // Of this round; of the last one and that before.
      // rows_kernel has s.scale in the statistics, so that p comes multiplied by it, and what that
      // and dp.scale make of D; dp_factor makes the same of the products of do and V.
      const float scale_log2 =
          a.scale * kLog2e * factor_of(a.q.scale_inv) * factor_of(a.k.scale_inv);
      const float dp_factor = factor_of(a.d_o.scale_inv) * factor_of(a.v.scale_inv) * a.scale *
                              (factor_of(a.dp.scale) / factor_of(a.s.scale));
      // The rows and the unit of this lane and warp in ds.
      const uint32_t lane_at = lane * 128 + (((group * 4 + warp) ^ (lane & 7)) << 4);

      const auto load_scores = [&](int m0) {  // s of the queries from m0 on
        b.q.consumer_wait(q);
        const int at = L::kQ + q.stage * L::kQueryTile;
        if (m0 + kM > lq) clear_rows<kM, 1>(shared + at, lq - m0, thread);
        wgmma_fence();
        scores<E4M3>(s, base + L::kK, base + at);
        wgmma_commit_group();
      };
      const auto start_dp = [&](int m0) {
        b.o.consumer_wait(o);
        const int at = L::kO + o.stage * L::kQueryTile;
        if (m0 + kM > lq) clear_rows<kM, 1>(shared + at, lq - m0, thread);
        wgmma_fence();
        scores<ByCode>(dp, base + L::kV, base + at);
        wgmma_commit_group();
      };
      const auto start_dv = [&] {
        wgmma_fence();
        gradient<ByCode>(dv, p, base + L::kORows + o.stage * L::kQueryImage);
        wgmma_commit_group();
      };
      const auto start_dk = [&](int stage) {
        wgmma_fence();
        gradient<OfCode>(dk, ds, base + L::kQRows + stage * L::kQueryImage);
        wgmma_commit_group();
      };
      const auto start_dq = [&](int from) {
        bar_sync(kReadyBarrier + 2 * from + 1 - group, 128 * kConsumers);
        wgmma_fence();
        query_gradient(dq, base + L::kKeyRows, base + L::kDs + from * L::kScoreTile);
        wgmma_commit_group();
      };
      const auto row_pairs = [&](int stage, int first) {
        return reinterpret_cast<const float *>(shared + L::kRow + stage * L::kRowTile) + first +
               lane % 4 * 4;
      };
      const auto softmax = [&](int m0, auto in_flight) {
        const float *rows = row_pairs(q.stage, 0);
        const auto four_at = [&](int at) { return *reinterpret_cast<const float4 *>(rows + at); };
        // The first ones are read before the wait, because shared memory is slow while others use
        // it.
        const float4 ahead = four_at(0);
        wgmma_wait_group<decltype(in_flight)::value>();
        pin(s);
#pragma unroll
        for (int j = 0; j < kM / 16; ++j) {
          const float4 lse = j == 0 ? ahead : four_at(16 * j);
          const float of_row[4] = {lse.x, lse.y, lse.z, lse.w};
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            float &x = s[8 * j + n];
            x = power2(fmaf(x, scale_log2, -of_row[n / 4 * 2 + n % 2]));
          }
        }
        if (work.masked(m0)) {
          mask<false>(s, work, work.n0 + group * 64 + warp * 16, m0, lane);
        }
        if constexpr (kDropout) {
          float z[kScores];
#pragma unroll
          for (int i = 0; i < kScores; ++i)
            z[i] = is_kept(kept, i / 8, i / 4 % 2, i % 4) ? s[i] : 0.0f;
          encode<E4M3>(p, z);
        } else {
          encode<E4M3>(p, s);
        }
      };
      // Computes ds from dp, while dv is being multiplied, and writes it to shared memory.
      const auto finish = [&] {
        const float *rows = row_pairs(q.stage, kM);
        const auto four_at = [&](int at) { return *reinterpret_cast<const float4 *>(rows + at); };
        const float4 ahead = four_at(0);
        wgmma_wait_group<1>();
        pin(dp);
#pragma unroll
        for (int j = 0; j < kM / 16; ++j) {
          const float4 d = j == 0 ? ahead : four_at(16 * j);
          const float of_row[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            float x = dp[8 * j + n];
            if constexpr (kDropout) x = is_kept(kept, j, n / 4, n % 4) ? x : 0.0f;
            x = s[8 * j + n] * fmaf(x, dp_factor, -of_row[n / 4 * 2 + n % 2]);
            most = fmaxf(most, fabsf(x));
            dp[8 * j + n] = x;
          }
        }
        encode<Code>(ds, dp);
        const uint32_t to = base + L::kDs + tile * L::kScoreTile + lane_at;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const uint32_t pairs[4] = {
              __byte_perm(ds[i][0], ds[i][1], 0x5140), __byte_perm(ds[i][0], ds[i][1], 0x7362),
              __byte_perm(ds[i][2], ds[i][3], 0x5140), __byte_perm(ds[i][2], ds[i][3], 0x7362)};
          stmatrix_x4_trans(to + i * 32 * 128, pairs);
        }
        fence_proxy_async();
        bar_arrive(kReadyBarrier + 2 * tile + group, 128 * kConsumers);
        tile = (tile + 1) % L::kScoreTiles;
        wgmma_wait_group<0>();
        pin(dv);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) pin(p[i]);
        release(b.o, o, lane);
        o.advance();
      };

      pin(dk);
      pin(dv);
      mbarrier_wait(&b.full_k, 0);
      if (work.n0 + kKeys > lk) clear_rows<kKeys, 1>(shared + L::kK, lk - work.n0, thread);
      load_scores(block * kM);
      mbarrier_wait(&b.full_v, 0);
      if (work.n0 + kKeys > lk) clear_rows<kKeys, 1>(shared + L::kV, lk - work.n0, thread);
      kept = draw(head, block * kM);
      softmax(block * kM, std::integral_constant<int, 0>{});
      start_dp(block * kM);
      start_dv();
      finish();
      const auto of_block = [&] {
        sum = static_cast<int>(int64_t{head} * a.head_blocks + work.base + block);
      };
      of_block();
      // The first round multiplies whatever lies in the last tile, and does not use the result: the
      // compiler lets products under a condition run only one by one.
      bar_arrive(kReadyBarrier + 2 * (L::kScoreTiles - 1) + group, 128 * kConsumers);
      rows[1] = -1;
#pragma unroll 1
      for (int left = total - 1; left > 0; --left) {
        // The products of s, dk and dq run behind the exponentials, those of dp and dv behind the
        // rest. Nothing is in flight from one round to the next: the compiler would wait for every
        // product.
        rows[0] = block * kM;
        sums[0] = sum;
        const PipelineState<L::kStages> last = q;
        work.next(block, head);
        of_block();
        q.advance();
        load_scores(block * kM);
        start_dk(last.stage);
        kept = draw(head, block * kM);
        start_dq((tile + 2) % L::kScoreTiles);
        softmax(block * kM, std::integral_constant<int, 2>{});
        wgmma_wait_group<0>();
        pin(dq);
        pin(dk);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) pin(ds[i]);
        if (rows[1] >= 0) add(dq, sums[1], rows[1]);
        rows[1] = rows[0];
        sums[1] = sums[0];
        b.q.consumer_release(last);
        start_dp(block * kM);
        start_dv();
        finish();
      }
      start_dk(q.stage);
      start_dq((tile + 2) % L::kScoreTiles);
      wgmma_wait_group<0>();
      pin(dq);
      if (rows[1] >= 0) add(dq, sums[1], rows[1]);
      start_dq((tile + 3) % L::kScoreTiles);
      wgmma_wait_group<0>();
      pin(dq);
      add(dq, sum, block * kM);
      raise_amax(a.dp.amax, most / factor_of(a.dp.scale));
    }
    finish_query_gradients(lane);
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
    const int first = work.n0 + group * 64 + warp * 16;
    const float scale = factor_of(a.dp.scale_inv) * factor_of(a.q.scale_inv);
    const float of_v = factor_of(a.s.scale_inv) * factor_of(a.d_o.scale_inv);
    write_rows<kD>(a, a.dv, static_cast<int>(a.dim_v), dv, of_v, rare.sequence, rare.key_head,
                   first, lk, lane);
    write_rows<kD>(a, a.dk, static_cast<int>(a.dim_qk), dk, scale, rare.sequence, rare.key_head,
                   first, lk, lane);
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fp8_heads
}  // namespace sm90_backward
}  // namespace nvte
