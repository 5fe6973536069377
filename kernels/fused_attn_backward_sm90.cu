// Backward of attention for compute capability 9.0: 16-bit tensors, heads of up to 128 elements;
// those of up to 256 are in fused_attn_backward_sm90_long.cu.
//
// Three kernels: rows_kernel has D and the statistics of every query row and clears the accumulator
// of dq; gradient_kernel has one block per 128 keys, which keeps dk and dv in registers while it
// goes over the queries and adds its part of dq in float32; convert_kernel rounds dq. Blocks of
// keys that would leave most of the device idle, see Shares, are cut into parts of the queries.
//
// Dropout: p is recomputed whole; what is kept of it enters dv and the term of dp. The factor
// 1 / (1 - probability) is left to the end: ds is p (keep dp - (1 - probability) D) until then.
// With a bias it is not, since ds is a result.
//
// ALiBi: a slope's part of the row, counted from the first one of a block of queries, is in the
// row's statistic already, so that a score costs one addition.
// A bias comes with the queries by bulk copies and is transposed on the way to registers. dbias is
// ds where each of its elements belongs to one score: the tile that the products read is stored as
// it is, and blocks of scores without any are cleared by the warps that load nothing. Summed over
// queries each warp adds its columns. Summed over sequences or heads the tiles go to the workspace
// and are added afterwards, unless there are many: then each score is added to a float32 sum.
//
// H200, bf16, batch 2, 16 heads of 128, 4096 queries, TFLOP/s, causal and full: plain 449 and 561,
// ALiBi 452 and 535, a bias and dbias for each score 322 and 370, for each key 391 and 443, for all
// sequences and heads 275 and 342, for all sequences 225 and 319.
//
// Instances of gradient_kernel: {BF16, F16} x {64, 128} elements of a head x {no dropout, dropout}
// x {nothing, ALiBi, a bias}.

#include "common/attention_backward_sm90.cuh"

namespace nvte {
namespace {

using namespace sm90_backward;

constexpr int kKeys = 128;  // Of a block, 64 of each consumer.

// What scores have beside products.
enum class Extra { kNone, kAlibi, kBias };

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

  static constexpr int kK = 0, kV = kK + kKeyTile, kQ = kV + kKeyTile,
                       kO = kQ + kQStages * kQueryTile, kDs = kO + kOStages * kQueryTile,
                       kBias = kDs + 2 * kScoreTile,
                       kRow = kBias + (kExtra == Extra::kBias ? kQStages * kScoreTile : 0),
                       kBarrier = kRow + kQStages * kRowTile;
  static constexpr int kBarriers = 2 + 2 * kQStages + 2 * kOStages;
  static constexpr int kBytes = kBarrier + kBarriers * 8 + 1024;  // The start is aligned by hand.
  static_assert(kBytes <= 232448 - 256, "shared memory of a block");
};

// Queries at a time, by the elements of a head: as many as there are registers for. H200, bf16,
// 8192 queries, TFLOP/s, causal and full: 128 elements 506 and 522 with 80, 489 and 516 with 64.
template <int kD, bool kDropout, Extra kExtra>
constexpr int kQueries = kDropout && kExtra == Extra::kBias   ? (kD == 64 ? 96 : 48)
                         : kDropout || kExtra == Extra::kBias ? (kD == 64 ? 96 : 64)
                                                              : (kD == 64 ? 128 : 80);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Barriers of threads; 0 is __syncthreads(). Of both consumers; of each one, 2; of both, each of
// the two parts of each of two ds, 4: who writes it arrives, the other one waits.
constexpr int kGroupBarrier = 2, kReadyBarrier = 4;

template <class T, int kD, int kM, bool kDropout, Extra kExtra>
struct Consumer {
  using L = Sizes<kD, kM, kExtra>;
  static constexpr bool kHasBias = kExtra == Extra::kBias;
  static constexpr int kWords = (kM + 63) / 64;  // Of what dropout keeps.
  static constexpr int kScores = kM / 2, kDim = kD / 2, kSteps = kM / 16;
  static constexpr int kDqColumns = kD == 128 ? kM : kM / 2;

  const Problem &a;
  const Work<kKeys, kM> &work, &rare;
  unsigned char *shared;
  uint64_t *full_k, *full_v, *full_q, *empty_q, *full_o, *empty_o;
  int group, thread, lane, warp;

  // The warp has read a stage of do. Those of q have statistics, which are read by ordinary loads:
  // every thread arrives for itself.
  __device__ __forceinline__ void release(uint64_t *barrier) const {
    __syncwarp();
    if (lane == 0) arrive(barrier);
  }
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
      const float scale_log2 = a.scale * kLog2e;
      // Of a lane's rows of a panel of ds or of a bias, which the lanes of a warp transpose.
      const int lane_row = lane / 16 * 8 + lane % 8, lane_unit = 2 * warp + (lane / 8 & 1);
      const uint32_t lane_at =
          group * L::kQueryPanel + lane_row * 128 + ((lane_unit ^ (lane_row & 7)) << 4);

      const auto load_scores = [&](int m0) {  // s of the queries from m0 on
        wait_barrier(full_q + q.stage, q.phase);
        const int at = L::kQ + q.stage * L::kQueryTile;
        if (m0 + kM > lq) clear_rows<kM, L::kPanels>(shared + at, lq - m0, thread);
        begin_products();
        scores(s, base + L::kK, base + at);
        commit_products();
      };
      const auto wait_gradients = [&](int m0) {
        wait_barrier(full_o + o.stage, o.phase);
        const int at = L::kO + o.stage * L::kQueryTile;
        if (m0 + kM > lq) clear_rows<kM, L::kPanels>(shared + at, lq - m0, thread);
      };
      const auto start_dp = [&] {
        begin_products();
        scores(dp, base + L::kV, base + L::kO + o.stage * L::kQueryTile);
        commit_products();
      };
      pin(dk);
      pin(dv);
      wait_barrier(full_k, 0);
      if (work.n0 + kKeys > lk) clear_rows<kKeys, L::kPanels>(shared + L::kK, lk - work.n0, thread);
      load_scores(block * kM);
      wait_barrier(full_v, 0);
      if (work.n0 + kKeys > lk) clear_rows<kKeys, L::kPanels>(shared + L::kV, lk - work.n0, thread);
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
          const float slope = slope_of(head);
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
        if (work.masked(m0) || (kHasBias && m0 + kM > lq)) mask(s, m0);
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
          if constexpr (kDropout) {  // There is room for p in float32, and need where little is
                                     // kept.
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
        release(empty_o + o.stage);
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
        arrive(empty_q + stage);
        finish();
      }
      start_dk(q.stage, block * kM, head);
      start_dq();
      wait_products<0>();
      pin(dq);
      add(dq, int64_t{head} * a.head_blocks + work.base + block, block * kM);
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
    write_rows<T, kKeys, kD>(a, a.dv, a.dim_v, panels, dv, a.scale_v, rare.sequence, rare.key_head,
                             first, lk, lane);
    write_rows<T, kKeys, kD>(a, a.dk, a.dim_qk, panels, dk, a.scale_k, rare.sequence, rare.key_head,
                             first, lk, lane);
  }

  __device__ __forceinline__ void mask(float (&s)[kScores], int m0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int c = work.n0 + group * 64 + warp * 16 + lane / 4 + 8 * h;
      const int r0 = m0 + lane % 4 * 2;
      const int low = c >= work.lk ? INT_MAX : c - work.band.right + 1 - r0;
      int high = c - work.band.left - r0;
      if constexpr (kHasBias) high = min(high, work.lq - 1 - r0);
#pragma unroll
      for (int j = 0; j < kM / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * j + e < low || 8 * j + e > high) s[4 * j + 2 * h + e] = 0.0f;
        }
      }
    }
  }

  __device__ __forceinline__ float slope_of(int head) const {
    const bool first = head < a.slope_heads;
    return kLog2e *
           power2(a.slope_step *
                  static_cast<float>(first ? 2 * head + 2 : 2 * (head - a.slope_heads) + 1));
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
  uint64_t *full_k = reinterpret_cast<uint64_t *>(shared + L::kBarrier), *full_v = full_k + 1,
           *full_q = full_v + 1, *empty_q = full_q + L::kQStages, *full_o = empty_q + L::kQStages,
           *empty_o = full_o + L::kOStages;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < 2; ++i) init_barrier(full_k + i, 1);
    for (int i = 0; i < L::kQStages; ++i) {
      init_barrier(full_q + i, 1);
      init_barrier(empty_q + i, 128 * kConsumers);
    }
    for (int i = 0; i < L::kOStages; ++i) {
      init_barrier(full_o + i, 1);
      init_barrier(empty_o + i, 4 * kConsumers);
    }
    publish_barriers();
  }
  if constexpr (L::kPanels > 1) {
    if (a.panels_qk < L::kPanels || a.panels_v < L::kPanels) {
      clear_panels(shared + L::kK, 1, L::kKeyPanel, a.panels_qk, L::kPanels);
      clear_panels(shared + L::kV, 1, L::kKeyPanel, a.panels_v, L::kPanels);
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
      const auto row_of = [&](const NVTEXAttentionSide &side) {
        return static_cast<int>(start(side, work.sequence));
      };
      const auto sequence_of = [&](const NVTEXAttentionSide &side) {
        return side.starts != nullptr ? 0 : work.sequence;
      };
      const int key_row = row_of(a.kv_side) + work.n0, key_sequence = sequence_of(a.kv_side);
      const int query_row = row_of(a.q_side), query_sequence = sequence_of(a.q_side);
      // Panels that a head does not have are not loaded: boxes that start outside a tensor may
      // fault.
      const auto load_panels = [&](const CUtensorMap *map, int to, int panels, int panel,
                                   uint64_t *barrier, int row, int head, int sequence) {
        for (int p = 0; p < panels; ++p) {
          const int at[4] = {p * 64, row, head, sequence};
          load_box<4>(shared + to + p * panel, map, barrier, at);
        }
      };
      const auto load_keys = [&](const CUtensorMap *map, int to, int panels, uint64_t *barrier) {
        arrive_expecting(barrier, panels * L::kKeyPanel);
        load_panels(map, to, panels, L::kKeyPanel, barrier, key_row, work.key_head, key_sequence);
      };
      Ring<L::kQStages> q;
      Ring<L::kOStages> o;
      int block = work.block, head = work.head;
      load_keys(&a.maps.k, L::kK, a.panels_qk, full_k);
      for (int it = 0; it < total; ++it) {
        wait_barrier(empty_q + q.stage, q.phase ^ 1);
        uint64_t *barrier = full_q + q.stage;
        uint32_t bytes = a.panels_qk * L::kQueryPanel + L::kRowTile;
        [[maybe_unused]] const int bias_panels =
            work.n0 + 64 < static_cast<int>(a.kv_side.max_seqlen) ? 2 : 1;
        if constexpr (kExtra == Extra::kBias) {
          bytes += bias_panels * (a.bias_rows ? L::kQueryPanel : 128);
        }
        arrive_expecting(barrier, bytes);
        load_panels(&a.maps.q, L::kQ + q.stage * L::kQueryTile, a.panels_qk, L::kQueryPanel,
                    barrier, query_row + block * kM, head, query_sequence);
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
        if (it == 0) load_keys(&a.maps.v, L::kV, a.panels_v, full_v);
        wait_barrier(empty_o + o.stage, o.phase ^ 1);
        barrier = full_o + o.stage;
        arrive_expecting(barrier, a.panels_v * L::kQueryPanel);
        load_panels(&a.maps.d_o, L::kO + o.stage * L::kQueryTile, a.panels_v, L::kQueryPanel,
                    barrier, query_row + block * kM, head, query_sequence);
        o.next();
        work.next(block, head);
      }
    }
  } else {
    take_registers<240>();
    const int group = __shfl_sync(~0u, thread / 128 - 1, 0);
    Consumer<T, kD, kM, kDropout, kExtra> consumer = {
        a,       work,   shared_work, shared, full_k,       full_v,      full_q,
        empty_q, full_o, empty_o,     group,  thread - 128, thread % 32, thread % 128 / 32};
    consumer.run();
  }
#endif
}

// dq from the sum, in the order of accumulators: thread t of warpgroup w has rows of the head
// dimension, columns are queries.
template <class T, int kD, int kM>
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
  typename T::Bits *out = row_of<T>(a.dq, a.q_side, sequence, head, m0);
#pragma unroll
  for (int i = 0; i < kM * kUnits / kHelperThreads; ++i) {
    const int r = (i * kHelperThreads + thread) / kUnits, unit = thread % kUnits;
    Vec<T, 8> v = {};
    if (m0 + r < lq) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = *reinterpret_cast<const float2 *>(tile + r * kPitch + unit * 8 + 2 * j);
        const float pair[2] = {x.x * a.scale_k, x.y * a.scale_k};
        v.w[j] = T::from_float(pair);
      }
    }
    if (m0 + r < end && unit * 8 < a.dim_qk) {
      store(out, static_cast<size_t>(r * a.dq.row + unit * 8), v);
    }
  }
#endif
}

// dbias from its sums in the order of accumulators. A block of threads: a tile.
template <class T, int kM>
__global__ void __launch_bounds__(kHelperThreads)
    convert_bias_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wait_for_stream();
  let_next_start();
  constexpr int kPitch = kKeys + 4;  // Stores of a warp hit every bank once.
  extern __shared__ float tile[];
  const int64_t index = blockIdx.x;
  const int key_block = static_cast<int>(index % a.key_blocks);
  const int64_t rest = index / a.key_blocks;
  const int block = static_cast<int>(rest % a.query_blocks);
  const int64_t of_head = rest / a.query_blocks;
  const int heads = a.sum_heads ? 1 : a.heads;
  const int64_t head = of_head % heads, sequence = of_head / heads;
  const int thread = static_cast<int>(threadIdx.x);
  const float4 *sum = reinterpret_cast<const float4 *>(a.bias_sum + index * (kM * kKeys));
#pragma unroll
  for (int i = 0; i < kM * kKeys / 4 / kHelperThreads; ++i) {
    const int f = i * kHelperThreads + thread, t = f % 32, j = f / 32 % (kM / 8),
              warp = f / (4 * kM);
    const float4 v = sum[f];
    const int c = warp * 16 + t / 4, m = j * 8 + t % 4 * 2;
    tile[m * kPitch + c] = v.x;
    tile[(m + 1) * kPitch + c] = v.y;
    tile[m * kPitch + c + 8] = v.z;
    tile[(m + 1) * kPitch + c + 8] = v.w;
  }
  __syncthreads();
  typename T::Bits *out = static_cast<typename T::Bits *>(a.dbias.data) + sequence * a.dbias.batch +
                          head * a.dbias.head + key_block * kKeys;
  constexpr int kUnits = kKeys / 8;
#pragma unroll
  for (int i = 0; i < kM * kUnits / kHelperThreads; ++i) {
    const int r = (i * kHelperThreads + thread) / kUnits, unit = thread % kUnits;
    const int64_t row = block * kM + r;
    Vec<T, 8> v;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float pair[2] = {tile[r * kPitch + unit * 8 + 2 * j],
                             tile[r * kPitch + unit * 8 + 2 * j + 1]};
      v.w[j] = T::from_float(pair);
    }
    if (row < static_cast<int64_t>(a.q_side.max_seqlen) &&
        key_block * kKeys + unit * 8 < static_cast<int>(a.kv_side.max_seqlen)) {
      store(out, static_cast<size_t>(row * a.dbias.row + unit * 8), v);
    }
  }
#endif
}

// dbias of one row from the sums of every sequence and head, in a fixed order.
template <class T>
__global__ void __launch_bounds__(kHelperThreads)
    convert_columns_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wait_for_stream();
  let_next_start();
  const int64_t index = int64_t{blockIdx.x} * kHelperThreads + threadIdx.x;
  const int64_t keys = static_cast<int64_t>(a.kv_side.max_seqlen), pitch = a.key_blocks * kKeys;
  const int heads = a.sum_heads ? 1 : a.heads;
  const int64_t c = index % keys, head = index / keys % heads, sequence = index / keys / heads;
  const int64_t batch = static_cast<int64_t>(a.batch);
  if (sequence >= (a.sum_batch ? 1 : batch)) return;
  float sum = 0.0f;
  for (int64_t i = sequence; i < (a.sum_batch ? batch : sequence + 1); ++i) {
    for (int64_t j = head; j < (a.sum_heads ? a.heads : head + 1); ++j) {
      sum += a.bias_sum[(i * a.heads + j) * pitch + c];
    }
  }
  const float pair[2] = {sum, 0.0f};
  static_cast<typename T::Bits *>(
      a.dbias.data)[sequence * a.dbias.batch + head * a.dbias.head + c] =
      static_cast<typename T::Bits>(T::from_float(pair));
#endif
}

// dbias from ds of every score, in a fixed order: eight neighbours of a thread.
template <class T>
__global__ void __launch_bounds__(kHelperThreads)
    sum_scores_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wait_for_stream();
  let_next_start();
  const int64_t of_head = a.scores.head / 8;
  const int64_t index = int64_t{blockIdx.x} * kHelperThreads + threadIdx.x;
  const int64_t at = index % of_head * 8, member = index / of_head;
  const int64_t heads = a.sum_heads ? 1 : a.heads, batch = static_cast<int64_t>(a.batch);
  const int64_t head = member % heads, sequence = member / heads;
  if (sequence >= (a.sum_batch ? 1 : batch)) return;
  float sum[8] = {};
  for (int64_t i = sequence; i < (a.sum_batch ? batch : sequence + 1); ++i) {
#pragma unroll 4
    for (int64_t j = head; j < (a.sum_heads ? a.heads : head + 1); ++j) {
      float f[8];
      to_float(load<T, 8>(a.scores.data,
                          static_cast<size_t>(i * a.scores.batch + j * a.scores.head + at), true),
               f);
#pragma unroll
      for (int n = 0; n < 8; ++n) sum[n] += f[n];
    }
  }
  Vec<T, 8> v;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float pair[2] = {sum[2 * n], sum[2 * n + 1]};
    v.w[n] = T::from_float(pair);
  }
  store(a.dbias.data, static_cast<size_t>(sequence * a.dbias.batch + head * a.dbias.head + at), v);
#endif
}

Extra extra_of(const NVTEXAttentionArgs &a) {
  return a.bias.data != nullptr ? Extra::kBias : a.alibi ? Extra::kAlibi : Extra::kNone;
}

int tile_dim(const NVTEXAttentionArgs &a) { return a.dim_qk <= 64 && a.dim_v <= 64 ? 64 : 128; }

// Calls f with what the instance for these arguments is made of: the elements of a head, whether
// there is dropout, and what scores have beside products, as types.
template <class F>
auto with_instance(const NVTEXAttentionArgs &a, F &&f) {
  const auto with_extra = [&](auto dim, auto dropout) {
    switch (extra_of(a)) {
      case Extra::kAlibi:
        return f(dim, dropout, std::integral_constant<Extra, Extra::kAlibi>{});
      case Extra::kBias:
        return f(dim, dropout, std::integral_constant<Extra, Extra::kBias>{});
      default:
        return f(dim, dropout, std::integral_constant<Extra, Extra::kNone>{});
    }
  };
  const auto with_dim = [&](auto dropout) {
    return tile_dim(a) == 64 ? with_extra(std::integral_constant<int, 64>{}, dropout)
                             : with_extra(std::integral_constant<int, 128>{}, dropout);
  };
  return a.dropout != 0.0f ? with_dim(std::true_type{}) : with_dim(std::false_type{});
}

BlockShape short_shape(const NVTEXAttentionArgs &a) {
  return with_instance(a, [](auto dim, auto dropout, auto extra) -> BlockShape {
    constexpr size_t kDim = dim.value;
    return {kQueries<dim.value, dropout.value, extra.value>, kKeys, kDim, kDim};
  });
}

bool is_long(const NVTEXAttentionArgs &a) { return a.dim_qk > 128 || a.dim_v > 128; }

// A map of a bias or its gradient, boxes of `rows` times 64 scores, or of one row if that is all.
NVTEXOutcome map_scores(CUtensorMap *map, const NVTEXAttentionArgs &a,
                        const NVTEXAttentionTensor &x, int rows) {
  const uint64_t dims[4] = {a.kv_side.max_seqlen, x.row != 0 ? a.q_side.max_seqlen : 1,
                            x.head != 0 ? a.q_side.heads : 1, x.batch != 0 ? a.batch : 1};
  const int64_t strides[3] = {x.row, x.head, x.batch};
  uint64_t steps[3];
  for (int i = 0; i < 3; ++i) {
    steps[i] = strides[i] == 0 ? 16 : static_cast<uint64_t>(strides[i]) * 2;
  }
  const uint32_t box[4] = {64, x.row != 0 ? static_cast<uint32_t>(rows) : 1, 1, 1};
  return encode_map(
      map,
      x.dtype == kNVTEBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, x.data, dims, steps, box);
}

// dbias from its sums, if it is one.
template <class T, int kM>
NVTEXOutcome convert_bias(const Problem &p, cudaStream_t stream) {
  const size_t members = BiasSums(p).members;
  const size_t tiles =
      members * static_cast<size_t>(p.query_blocks) * static_cast<size_t>(p.key_blocks);
  if (p.to_bias == BiasGradient::kSummed && tiles > 0) {
    return launch_shared(convert_bias_kernel<T, kM>, dim3(static_cast<unsigned>(tiles)),
                         kHelperThreads, kM * (kKeys + 4) * 4, stream, p);
  }
  const size_t eights = members * p.q_side.max_seqlen * p.kv_side.max_seqlen / 8;
  if (p.to_bias == BiasGradient::kGathered && eights > 0) {
    return launch_shared(sum_scores_kernel<T>,
                         dim3(static_cast<unsigned>(ceil_div(eights, kHelperThreads))),
                         kHelperThreads, 0, stream, p);
  }
  const size_t columns = members * p.kv_side.max_seqlen;
  if (p.to_bias == BiasGradient::kRows && columns > 0) {
    return launch_shared(convert_columns_kernel<T>,
                         dim3(static_cast<unsigned>(ceil_div(columns, kHelperThreads))),
                         kHelperThreads, 0, stream, p);
  }
  return ok();
}

template <class T, int kD, bool kDropout, Extra kExtra>
NVTEXOutcome run(const NVTEXAttentionArgs &a, cudaStream_t stream) {
  constexpr int kM = kQueries<kD, kDropout, kExtra>;
  const BlockShape tile = {kM, kKeys, kD, kD};
  const Layout layout(a, tile);
  Problem p = problem_of(a, tile, layout);
  // ds itself is asked for with a bias.
  const float ds_scale = kExtra == Extra::kBias ? 1.0f : p.mask.scale;
  p.scale_k = a.scale * ds_scale;
  p.keep_scale = p.mask.scale / ds_scale;
  p.scale_d = 1.0f / ds_scale;
  p.turn = kD == 128 && a.window_right >= 0 && !a.deterministic ? 7 : 0;
  // Else sums of dbias would come and go for every head.
  if (p.to_bias == BiasGradient::kSummed) p.team = static_cast<int>(a.kv_side.heads * a.batch);
  return run_passes<T, kD, kD, kM>(
      p, tile, layout, stream,
      [&]() -> NVTEXOutcome {
        NVTEXOutcome o = ok();
        if (kExtra == Extra::kBias) o = map_scores(&p.maps.bias, a, a.bias, kM);
        if (p.stores_scores() && o.status == NVTEX_BACKEND_OK) {
          o = map_scores(&p.maps.dbias, a, p.scores, kM);
        }
        return o;
      },
      [&](unsigned blocks) {
        return launch_shared(gradient_kernel<T, kD, kM, kDropout, kExtra>, dim3(blocks), kThreads,
                             Sizes<kD, kM, kExtra>::kBytes, stream, p);
      },
      [&](unsigned row_blocks) {
        NVTEXOutcome o = launch_shared(convert_kernel<T, kD, kM>, dim3(row_blocks), kHelperThreads,
                                       kM * (kD + 4) * 4, stream, p);
        if constexpr (kExtra == Extra::kBias) {
          if (o.status == NVTEX_BACKEND_OK) o = convert_bias<T, kM>(p, stream);
        }
        return o;
      });
}

}  // namespace
}  // namespace nvte

// The workspace: 8 + 4 D bytes for each query row of each head, D = 64 or 128, rows of a sequence
// rounded up to blocks of queries.
const char *nvte_attention_sm90_backward_reject(const NVTEXAttentionArgs *args,
                                                size_t *workspace) noexcept {
  using namespace nvte;
  const NVTEXAttentionArgs &a = *args;
  *workspace = 0;
  Device device;
  if (const char *reason = attention_unsupported(a)) return reason;
  if (current_device(&device) != cudaSuccess || device.arch != 90) {
    return "the device is not of compute capability 9.0";
  }
  if (!a.backward) return "a forward pass";
  if (!is_16bit(a.q.dtype)) return "dtype; nearest: BF16 or FP16";
  for (const NVTEXAttentionTensor *x : {&a.q, &a.k, &a.v, &a.o, &a.d_o, &a.dq, &a.dk, &a.dv}) {
    for (const int64_t stride : {x->batch, x->row, x->head}) {
      if (stride < 0 || stride >= int64_t{1} << 38) {
        return "a stride of 2^39 bytes or more; nearest: contiguous tensors";
      }
    }
  }
  if (is_long(a) && (a.dropout != 0.0f || a.alibi || a.bias.data != nullptr)) {
    return "dropout, ALiBi or a bias with a head of more than 128 elements; nearest: 128, or "
           "neither";
  }
  if (a.page_table_k != nullptr || a.page_table_v != nullptr) {
    return "paged keys; nearest: keys without pages";
  }
  const BiasSums sums(a);
  if (a.bias.data != nullptr && a.alibi) return "ALiBi and a bias; nearest: one of them";
  if (a.bias.data == nullptr && a.dbias.data != nullptr) return "dbias without a bias";
  if (a.dbias.data != nullptr && a.q_side.max_seqlen == 0) return "dbias without queries";
  for (const NVTEXAttentionTensor *x : {&a.bias, &a.dbias}) {
    if (x->data == nullptr) continue;
    for (const int64_t stride : {x->batch, x->row, x->head}) {
      if (stride < 0 || stride % 8 != 0 || stride >= int64_t{1} << 38) {
        return "rows of the bias that are no multiples of 16 bytes; nearest: a multiple of 8 keys";
      }
    }
    if (a.kv_side.max_seqlen % 8 != 0 || reinterpret_cast<uintptr_t>(x->data) % 16 != 0) {
      return "rows of the bias that are no multiples of 16 bytes; nearest: a multiple of 8 keys";
    }
  }
  if (sums.to == BiasGradient::kGathered && sums.gathered > size_t{1} << 32) {
    return "a deterministic dbias that is summed over sequences or heads, of more than 4 GiB of "
           "scores; nearest: not deterministic";
  }
  if (a.q_side.tokens > kMaxLength || a.kv_side.tokens > kMaxLength) return "over 2^29 tokens";
  const BlockShape tile = is_long(a) ? long_shape(a) : short_shape(a);
  const size_t queries = tile.queries;
  const Layout layout(a, tile);
  if (layout.blocks * a.q_side.heads > kMaxBlocks ||
      a.batch * a.q_side.heads * ceil_div(a.q_side.max_seqlen, queries) > kMaxBlocks ||
      a.batch * a.kv_side.heads * ceil_div(a.kv_side.max_seqlen, tile.keys) > kMaxBlocks) {
    return "2^31 blocks or more";
  }
  if (sums.to != BiasGradient::kNone &&
      (sums.members * a.q_side.max_seqlen * a.kv_side.max_seqlen / kHelperThreads > kMaxBlocks ||
       sums.members * ceil_div(a.q_side.max_seqlen, queries) *
               ceil_div(a.kv_side.max_seqlen, kKeys) >
           kMaxBlocks)) {
    return "2^31 blocks of dbias or more";
  }
  *workspace = layout.bytes;
  return nullptr;
}

NVTEXOutcome nvte_attention_sm90_backward(const NVTEXAttentionArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  if (is_long(*args)) return run_long(*args, stream);
  return dispatch<BF16, F16>(args->q.dtype, [&](auto t) {
    using T = decltype(t);
    return with_instance(*args, [&](auto dim, auto dropout, auto extra) {
      return run<T, dim.value, dropout.value, extra.value>(*args, stream);
    });
  });
}
