// Backward of attention for compute capability 9.0: 16-bit tensors, heads of 129 to 256 elements.
//
// The passes are those of shorter heads. A block has 64 keys. Of its two warpgroups one has the
// scores, p and dv, the other one dp, ds and dk: each has one whole accumulator in registers, and
// its left operand, p or ds, beside it. p goes through shared memory to become ds, ds to become dq,
// of which each warpgroup has some elements of the head.
// Dropout and ALiBi as for shorter heads; both warpgroups draw what dropout keeps.
//
// H200, bf16, 16 heads, TFLOP/s, batch 2 of 8192 causal and 1 of 16384 full: 415 and 433 for 256
// elements, 402 and 418 for 192 and 128. The L2 cache is 81% busy then: 64 keys are few for the
// queries, do and dq that pass through it, and 128 have no room in registers.
//
// Instances of gradient_kernel: {BF16, F16} x {192 and 128, 256 and 256} elements of keys and
// values x {nothing, ALiBi or dropout or both}.

#include "backward_sm90/launch.cuh"
#include "backward_sm90/prepare.cuh"
#include "backward_sm90/tiles.cuh"
#include "common/philox.cuh"

namespace nvte {
namespace {

using namespace sm90_backward;

constexpr int kKeys = 64, kM = 64;  // Of a block; queries at a time.
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
  // keys queries^T over kD elements.
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
  // p^T do or ds^T q.
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

  // Both warpgroups: rows past the end are anything, or another sequence's.
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
    add_query_gradient(a, work, dq, to, a.turns + (index * 2 + kPart) * 4 + warp, block * kM, lane);
  }

  // p and dv.
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
      // From s to p in shared memory.
      const auto softmax = [&](int m0) {
        [[maybe_unused]] float slopes[2];  // Of this lane's keys, from the first query on.
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
      // And what dropout leaves of it for dv.
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

  // ds and dk.
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
      // From dp to ds.
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
        // Both warpgroups have read what lay here two rounds ago: the other one before this p.
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

template <class T, int kDqk, int kDv, bool kExtras>
__global__ void __launch_bounds__(kThreads, 1) gradient_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using L = Sizes<kDqk, kDv>;
  using Place = Work<kKeys, kM>;
  extern __shared__ unsigned char raw[];
  unsigned char *shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
  auto &barriers = *reinterpret_cast<typename L::SharedBarriers *>(shared + L::kBarrier);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) barriers.init();
  if (a.panels_qk < L::kPanelsQk || a.panels_v < L::kPanelsV) {
    clear_panels(shared + L::kK, 1, kPanel, a.panels_qk, L::kPanelsQk);
    clear_panels(shared + L::kV, 1, kPanel, a.panels_v, L::kPanelsV);
    clear_panels(shared + L::kQ, L::kStages, kPanel, a.panels_qk, L::kPanelsQk);
    clear_panels(shared + L::kO, L::kStages, kPanel, a.panels_v, L::kPanelsV);
    fence_proxy_async();
  }
  __syncthreads();
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  // What is rarely looked at stays in shared memory.
  __shared__ alignas(8) unsigned char place[sizeof(Place)];
  Place &shared_work = *reinterpret_cast<Place *>(place);
  if (thread == 0) shared_work = Place(a, static_cast<int>(blockIdx.x));
  __syncthreads();
  const Place work = shared_work;

  if (thread < 128) {
    setmaxnreg_dec<24>();
    const int total = work.total;
    if (thread == 0 && total > 0) {
      const Source keys(a.kv_side, work.sequence), queries(a.q_side, work.sequence);
      const auto load_keys = [&](const CUtensorMap *map, int to, int panels, uint64_t *barrier) {
        mbarrier_arrive_expect_tx(barrier, panels * kPanel);
        keys.load(shared + to, map, barrier, panels, kPanel, work.key_head, work.n0);
      };
      PipelineState<L::kStages> ring;
      int block = work.block, head = work.head;
      load_keys(&a.maps.k, L::kK, a.panels_qk, &barriers.full_k);
      for (int it = 0; it < total; ++it) {
        barriers.q.producer_acquire(ring);
        uint64_t *barrier = barriers.q.barrier(ring);
        mbarrier_arrive_expect_tx(barrier, a.panels_qk * kPanel + L::kRowTile);
        queries.load(shared + L::kQ + ring.stage * L::kTileQk, &a.maps.q, barrier, a.panels_qk,
                     kPanel, head, block * kM);
        cp_async_bulk_load(shared + L::kRow + ring.stage * L::kRowTile,
                           a.rows + (int64_t{head} * a.head_blocks + work.base + block) * (2 * kM),
                           L::kRowTile, barrier);
        if (it == 0) load_keys(&a.maps.v, L::kV, a.panels_v, &barriers.full_v);
        barriers.o.producer_acquire(ring);
        barrier = barriers.o.barrier(ring);
        mbarrier_arrive_expect_tx(barrier, a.panels_v * kPanel);
        queries.load(shared + L::kO + ring.stage * L::kTileV, &a.maps.d_o, barrier, a.panels_v,
                     kPanel, head, block * kM);
        ring.advance();
        work.next(block, head);
      }
    }
  } else {
    setmaxnreg_inc<240>();
    const int group = __shfl_sync(~0u, thread / 128 - 1, 0);
    Consumer<T, kDqk, kDv, kExtras> consumer = {
        a, work, shared_work, shared, barriers, thread - 128, thread % 32, thread % 128 / 32};
    if (group == 0) {
      consumer.run_values();
    } else {
      consumer.run_keys();
    }
  }
#endif
}

// dq from the sum, in the order of accumulators: of each part [warp, 8 elements, lane, 4].
template <class T, int kDqk>
__global__ void __launch_bounds__(kHelperThreads)
    convert_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int index = static_cast<int>(blockIdx.x);
  const int block = index % a.query_blocks, rest = index / a.query_blocks;
  const int head = rest % a.heads, sequence = rest / a.heads;
  const int lq = length(a.q_side, sequence), m0 = block * kM;
  const int end = written(a.q_side, lq);
  if (m0 >= end) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  typename T::Bits *out = row_of<T>(a.dq, a.q_side, sequence, head, m0);
  const int64_t at = int64_t{head} * a.head_blocks + a.first_block<kM>(sequence) + block;
  const float4 *sum = reinterpret_cast<const float4 *>(a.dq_sum + at * (kM * kDqk));
  // A warp takes 32 elements of 16 rows at a time; lanes in fours exchange, so that each has eight.
  for (int i = warp; i < 4 * (kDqk / 32); i += kHelperThreads / 32) {
    const int strip = i % 4, d0 = i / 4 * 32;
    const bool second = d0 >= kFirstPart<kDqk>;
    const int columns = second ? kDqk - kFirstPart<kDqk> : kFirstPart<kDqk>;
    const float4 *from = sum + (second ? kM * kFirstPart<kDqk> / 4 : 0) + strip * (4 * columns) +
                         (d0 - (second ? kFirstPart<kDqk> : 0)) * 4 + lane;
    uint32_t low[4], high[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 v = m0 < lq ? from[j * 32] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      const float first[2] = {v.x * a.scale_k, v.y * a.scale_k};
      const float other[2] = {v.z * a.scale_k, v.w * a.scale_k};
      low[j] = T::from_float(first);
      high[j] = T::from_float(other);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      auto &mine = h == 0 ? low : high;
      const int r = strip * 16 + lane / 4 + 8 * h;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int d = d0 + j * 8 + lane % 4 * 2;
        if (m0 + r < end && d < static_cast<int>(a.dim_qk)) {
          *reinterpret_cast<uint32_t *>(out + r * a.dq.row + d) = m0 + r < lq ? mine[j] : 0;
        }
      }
    }
  }
#endif
}

template <class T, int kDqk, int kDv, bool kExtras>
NVTEXOutcome run(const NVTEXAttentionArgs &a, cudaStream_t stream) {
  const Instance instance = {{kM, kKeys, kDqk, kDv},
                             rows_kernel<T, kDqk, kDv, kM, false>,
                             sink_kernel<kM>,
                             gradient_kernel<T, kDqk, kDv, kExtras>,
                             convert_kernel<T, kDqk>,
                             Sizes<kDqk, kDv>::kBytes,
                             0};
  const Layout layout(a, instance.tile);
  Problem p = problem_of(a, instance.tile, layout);
  return run_passes(p, instance, layout, stream, [] { return ok(); });
}

bool is_short(const NVTEXAttentionArgs &a) { return a.dim_qk <= 192 && a.dim_v <= 128; }

}  // namespace

namespace sm90_backward {

BlockShape long_shape(const NVTEXAttentionArgs &a) {
  const size_t dim_qk = is_short(a) ? 192 : 256, dim_v = is_short(a) ? 128 : 256;
  return {kM, kKeys, dim_qk, dim_v};
}

NVTEXOutcome run_long(const NVTEXAttentionArgs &a, cudaStream_t stream) {
  return dispatch<BF16, F16>(a.q.dtype, [&](auto t) {
    using T = decltype(t);
    const auto with_extras = [&](auto extras) {
      return is_short(a) ? run<T, 192, 128, extras.value>(a, stream)
                         : run<T, 256, 256, extras.value>(a, stream);
    };
    return a.alibi || a.dropout != 0.0f ? with_extras(std::true_type{})
                                        : with_extras(std::false_type{});
  });
}

}  // namespace sm90_backward
}  // namespace nvte
