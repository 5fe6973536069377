// Backward of attention for compute capability 9.0: 16-bit tensors, heads of up to 128 elements.
//
// Three kernels: rows_kernel has D and the statistics of every query row and clears the accumulator
// of dq; gradient_kernel has one block per 128 keys, which keeps dk and dv in registers while it
// goes over the queries and adds its part of dq in float32; convert_kernel rounds dq.
//
// Instances of gradient_kernel: {BF16, F16} x {64, 128} elements of a head.

#include <climits>
#include <type_traits>

#include "common/dtype.cuh"
#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "common/tma.cuh"
#include "common/vec.cuh"
#include "common/wgmma.cuh"

namespace nvte {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr int kKeys = 128;     // Of a block.
constexpr int kConsumers = 2;  // Warpgroups, 64 keys each.
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kHelperThreads = 256;  // Of the kernels around the main one.

// Of the threads of both consumers; 0 is __syncthreads().
constexpr int kConsumerBarrier = 1;

// The queries or the keys of every sequence.
struct Side {
  const int32_t *cu, *starts;
  int longest;

  __device__ __forceinline__ int length(int i) const {
    if (cu == nullptr) return longest;
    const int n = cu[i + 1] - cu[i];
    return n < 0 ? 0 : n < longest ? n : longest;
  }
  __device__ __forceinline__ bool ragged() const { return starts != nullptr; }
  // Coordinates of the first row in a tensor map.
  __device__ __forceinline__ int row(int i) const { return ragged() ? starts[i] : 0; }
  __device__ __forceinline__ int sequence(int i) const { return ragged() ? 0 : i; }
};

struct Rows {
  void *data;
  int64_t batch, row, head;
  int dim;

  // First element of row r of a sequence.
  template <class T>
  __device__ __forceinline__ typename T::Bits *at(const Side &side, int i, int head_index,
                                                  int r) const {
    return static_cast<typename T::Bits *>(data) + side.sequence(i) * batch +
           (int64_t{side.row(i)} + r) * row + head_index * head;
  }
};

struct Problem {
  Side queries, keys;
  Rows o, d_o, dq, dk, dv;
  const float *stats, *sink;
  float *dsink;
  float scale;
  int heads, group, batch;  // `group`: query heads of a key head.
  int left, right;          // Widths of the window, -1: unbounded.
  bool bottom_right, ordered;
  // Blocks of queries of a head, over all sequences, and of one sequence at most.
  int head_blocks, query_blocks;
  int key_blocks;  // Of a sequence, at most.
  int team;        // Key heads that are worked on together, for the sake of L2.
  // Workspace. [heads, head_blocks, 2, M]: statistics in units of log2, then D.
  float *rows;
  float *dq_sum;     // [heads, head_blocks, M D], in the order of accumulators.
  int *turns;        // [heads, head_blocks, 8]: key blocks that have added; if ordered.
  float *sink_part;  // [heads, head_blocks]; if there is a sink.

  // First block of queries of a sequence within a head.
  template <int kM>
  __device__ __forceinline__ int first_block(int i) const {
    return queries.ragged() ? (queries.starts[i] + i * kM) / kM : i * query_blocks;
  }
};

struct Maps {
  CUtensorMap q, k, v, d_o;
};

// Sizes of gradient_kernel in bytes, for heads of D elements and M queries at a time.
template <int kD, int kM>
struct Tile {
  static_assert(kD == 64 || kD == 128, "one or two panels");
  static_assert(kM % 16 == 0, "steps of the products over queries");
  static constexpr int kPanels = kD / 64;
  static constexpr int kKeyPanel = kKeys * 128, kQueryPanel = kM * 128;
  static constexpr int kKeyTile = kPanels * kKeyPanel, kQueryTile = kPanels * kQueryPanel;
  static constexpr int kScoreTile = kKeys / 64 * kQueryPanel;
  static constexpr int kRowTile = 2 * kM * 4;
  static constexpr int kQStages = 3, kOStages = 2;
  static constexpr int kPart = kM * kD / kConsumers;  // Elements of dq of a warpgroup.

  static constexpr int kK = 0, kV = kK + kKeyTile, kQ = kV + kKeyTile,
                       kO = kQ + kQStages * kQueryTile, kDs = kO + kOStages * kQueryTile,
                       kRow = kDs + 2 * kScoreTile, kBarrier = kRow + kQStages * kRowTile;
  static constexpr int kBarriers = 2 + 2 * kQStages + 2 * kOStages;
  static constexpr int kBytes = kBarrier + kBarriers * 8 + 1024;  // The start is aligned by hand.
  static_assert(kBytes <= 232448, "shared memory of a block");
};

// Queries at a time, by the elements of a head. H200, bf16, 8192 queries, TFLOP/s, causal and full:
// 128 elements 506 and 522 with 80, 489 and 516 with 64.
template <int kD>
constexpr int kQueries = kD == 64 ? 128 : 80;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Four 8x8 matrices of 16-bit elements, transposed on the way.
__device__ __forceinline__ void store_transposed(uint32_t to, const uint32_t (&a)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
               : "memory");
}

__device__ __forceinline__ void add_global(float *to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

__device__ __forceinline__ int load_acquire(const int *p) {
  int v;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_release(int *p, int v) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

// Operands of products in shared memory: as operand_k() and operand_mn(), by their low words, to
// which offsets of 16 bytes are added: the high words are all the same.
__device__ __forceinline__ uint32_t low_k(uint32_t p) {
  return static_cast<uint32_t>(operand_k(p));
}
__device__ __forceinline__ uint32_t low_mn(uint32_t p, uint32_t panel) {
  return static_cast<uint32_t>(operand_mn(p, panel));
}
__device__ __forceinline__ uint64_t operand(uint32_t low, int offset) {
  uint64_t d;
  asm("mov.b64 %0, {%1, %2};"
      : "=l"(d)
      : "r"(low + static_cast<uint32_t>(offset >> 4)),
        "n"(static_cast<uint32_t>(uint64_t{1} << 62 >> 32 | 64)));
  return d;
}

// A ring of stages with barriers.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

// What a block does: its keys and the blocks of queries that see them.
template <int kM>
struct Work {
  int sequence, key_head, key_block;
  int lq, lk, shift;
  int n0;             // First key.
  int first, blocks;  // Blocks of queries of each head.
  int base;           // Of the sequence within a head.

  __device__ __forceinline__ Work(const Problem &a, int index) {
    const int key_heads = a.heads / a.group, units = key_heads * a.batch;
    const int team = index / (a.team * a.key_blocks), in_team = index % (a.team * a.key_blocks);
    const int members = min(a.team, units - team * a.team);
    const int unit = team * a.team + in_team % members;
    key_block = in_team / members;
    // With a bound on the right low keys have the most queries: longest first, unless dq is added
    // in order, which goes from the diagonal to the left so that nobody waits.
    if (a.ordered && a.right >= 0) key_block = a.key_blocks - 1 - key_block;
    sequence = unit / key_heads;
    key_head = unit % key_heads;
    lq = a.queries.length(sequence);
    lk = a.keys.length(sequence);
    shift = a.bottom_right ? lk - lq : 0;
    n0 = key_block * kKeys;
    const int low = a.right < 0 ? 0 : max(0, n0 - shift - a.right);
    const int last = min(n0 + kKeys, lk) - 1;
    const int high = a.left < 0 ? lq - 1 : min(lq - 1, last - shift + a.left);
    first = low / kM;
    blocks = n0 < lk && low <= high ? high / kM - first + 1 : 0;
    base = a.first_block<kM>(sequence);
  }
  // The next block of queries, of the next head after all of one.
  __device__ __forceinline__ void next(int &block, int &head) const {
    if (++block == first + blocks) block = first, ++head;
  }
  __device__ __forceinline__ bool masked(const Problem &a, int m0) const {
    return n0 + kKeys > lk || (a.right >= 0 && n0 + kKeys - 1 > m0 + shift + a.right) ||
           (a.left >= 0 && n0 < m0 + kM - 1 + shift - a.left);
  }
  // Blocks that add to these rows of dq before this one.
  __device__ __forceinline__ int turn(const Problem &a, int m0) const {
    if (a.right >= 0) {
      const int last = (min(m0 + kM, lq) - 1 + shift + a.right) / kKeys;
      return min(last, (lk - 1) / kKeys) - key_block;
    }
    return key_block - (a.left < 0 ? 0 : max(0, m0 + shift - a.left) / kKeys);
  }
};

// Clears rows [from, kRows) of a tile; every consumer.
template <int kRows, int kPanels>
__device__ __forceinline__ void clear_rows(unsigned char *tile, int from, int thread) {
#pragma unroll 1
  for (int at = from * 128 + thread * 16; at < kRows * 128; at += 128 * kConsumers * 16) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      *reinterpret_cast<uint4 *>(tile + panel * kRows * 128 + at) = make_uint4(0, 0, 0, 0);
    }
  }
  fence_async_proxy();
  sync_threads(kConsumerBarrier, 128 * kConsumers);
}

template <class T, int kN>
__device__ __forceinline__ void round_pairs(uint32_t (&out)[kN / 8][4], const float (&d)[kN]) {
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const float pair[2] = {d[2 * i], d[2 * i + 1]};
    out[i / 4][i % 4] = T::from_float(pair);
  }
}

// Rows of a warp of a product [64, D] to global memory, through 16 rows of shared memory.
template <class T, int kD>
__device__ __forceinline__ void write_rows(const Problem &a, const Rows &to, unsigned char *panels,
                                           const float (&d)[kD / 2], float scale, int sequence,
                                           int key_head, int first, int length, int lane) {
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kD / 8; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float pair[2] = {d[4 * j + 2 * h] * scale, d[4 * j + 2 * h + 1] * scale};
      const int r = lane / 4 + 8 * h;
      *reinterpret_cast<uint32_t *>(panels + j / 8 * (kKeys * 128) + r * 128 +
                                    ((j % 8 ^ (r & 7)) << 4) + lane % 4 * 4) = T::from_float(pair);
    }
  }
  __syncwarp();
  constexpr int kUnits = kD / 8;  // Of a row, 16 bytes each.
  const int unit = lane % kUnits;
  // Rows past a sequence are zero in dense tensors and not touched in ragged ones.
  const int end = a.keys.ragged() ? length : a.keys.longest;
  typename T::Bits *out = to.at<T>(a.keys, sequence, key_head, 0);
#pragma unroll
  for (int r = lane / kUnits; r < 16; r += 32 / kUnits) {
    uint4 value = *reinterpret_cast<const uint4 *>(panels + unit / 8 * (kKeys * 128) + r * 128 +
                                                   ((unit % 8 ^ (r & 7)) << 4));
    if (first + r >= length) value = make_uint4(0, 0, 0, 0);
    if (first + r < end && unit * 8 < to.dim) {
      *reinterpret_cast<uint4 *>(out + (first + r) * to.row + unit * 8) = value;
    }
  }
}

template <class T, int kD, int kM>
struct Consumer {
  using L = Tile<kD, kM>;
  static constexpr int kScores = kM / 2, kDim = kD / 2, kSteps = kM / 16;
  static constexpr int kDqColumns = kD == 128 ? kM : kM / 2;
  static constexpr int kAhead = 4;  // Of the pairs of rows' numbers, those loaded early.

  const Problem &a;
  const Work<kM> &work;
  unsigned char *shared;
  uint64_t *full_k, *full_v, *full_q, *empty_q, *full_o, *empty_o;
  int group, thread, lane, warp;

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

    const int total = work.blocks * a.group;
    if (total > 0) {
      Ring<L::kQStages> q;
      Ring<L::kOStages> o;
      float s[kScores], dp[kScores], dq[kDqColumns / 2];
      uint32_t p[kSteps][4];
      int block = work.first, head = work.key_head * a.group;
      const float scale_log2 = a.scale * kLog2E;

      const auto load_scores = [&](int m0) {  // s of the queries from m0 on
        wait_barrier(full_q + q.stage, q.phase);
        const int at = L::kQ + q.stage * L::kQueryTile;
        if (m0 + kM > lq) clear_rows<kM, L::kPanels>(shared + at, lq - m0, thread);
        begin_products();
        scores(s, base + L::kK, base + at);
        commit_products();
      };
      const auto load_gradients = [&](int m0) {  // and their dp
        wait_barrier(full_o + o.stage, o.phase);
        const int at = L::kO + o.stage * L::kQueryTile;
        if (m0 + kM > lq) clear_rows<kM, L::kPanels>(shared + at, lq - m0, thread);
        begin_products();
        scores(dp, base + L::kV, base + at);
        commit_products();
      };
      pin(dk);
      pin(dv);
      wait_barrier(full_k, 0);
      if (work.n0 + kKeys > lk) clear_rows<kKeys, L::kPanels>(shared + L::kK, lk - work.n0, thread);
      load_scores(block * kM);
      wait_barrier(full_v, 0);
      if (work.n0 + kKeys > lk) clear_rows<kKeys, L::kPanels>(shared + L::kV, lk - work.n0, thread);
      load_gradients(block * kM);
      // From s and dp, on their way, to dv and to ds in shared memory.
      int parity = 0;
      const auto finish = [&](int m0, auto more) {
        const float *rows =
            reinterpret_cast<const float *>(shared + L::kRow + q.stage * L::kRowTile) +
            lane % 4 * 2;
        const auto pair_at = [&](int at) { return *reinterpret_cast<const float2 *>(rows + at); };
        // The first ones before the wait: shared memory is slow while others use it.
        float2 ahead[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j) ahead[j] = pair_at(8 * j);
        if constexpr (decltype(more)::value) {
          wait_products<2>();
        } else {
          wait_products<1>();
        }
        pin(s);
#pragma unroll
        for (int j = 0; j < kM / 8; ++j) {
          const float2 lse = j < kAhead ? ahead[j % kAhead] : pair_at(8 * j);
          s[4 * j] = exp2_fast(fmaf(s[4 * j], scale_log2, -lse.x));
          s[4 * j + 1] = exp2_fast(fmaf(s[4 * j + 1], scale_log2, -lse.y));
          s[4 * j + 2] = exp2_fast(fmaf(s[4 * j + 2], scale_log2, -lse.x));
          s[4 * j + 3] = exp2_fast(fmaf(s[4 * j + 3], scale_log2, -lse.y));
        }
        if (work.masked(a, m0)) mask(s, m0);
        round_pairs<T, kScores>(p, s);

        // dv, while ds is computed.
        begin_products();
        gradient(dv, p, base + L::kO + o.stage * L::kQueryTile);
        commit_products();
#pragma unroll
        for (int j = 0; j < kAhead; ++j) ahead[j] = pair_at(kM + 8 * j);
        wait_products<1>();
        pin(dp);
#pragma unroll
        for (int j = 0; j < kM / 8; ++j) {
          const float2 d = j < kAhead ? ahead[j % kAhead] : pair_at(kM + 8 * j);
          float low[2], high[2];
          T::to_float(p[j / 2][j % 2 * 2], low);
          T::to_float(p[j / 2][j % 2 * 2 + 1], high);
          dp[4 * j] = low[0] * (dp[4 * j] - d.x);
          dp[4 * j + 1] = low[1] * (dp[4 * j + 1] - d.y);
          dp[4 * j + 2] = high[0] * (dp[4 * j + 2] - d.x);
          dp[4 * j + 3] = high[1] * (dp[4 * j + 3] - d.y);
        }
        uint32_t ds[kSteps][4];
        round_pairs<T, kScores>(ds, dp);
        // Both warpgroups have read what lay here two rounds ago: they have met since.
        const uint32_t scores_at = base + L::kDs + parity * L::kScoreTile;
        {
          const int m = lane / 16 * 8 + lane % 8, unit = 2 * warp + (lane / 8 & 1);
          const uint32_t at =
              scores_at + group * L::kQueryPanel + m * 128 + ((unit ^ (m & 7)) << 4);
#pragma unroll
          for (int i = 0; i < kSteps; ++i) store_transposed(at + i * 16 * 128, ds[i]);
        }
        fence_async_proxy();
        sync_threads(kConsumerBarrier, 128 * kConsumers);
        wait_products<0>();
        pin(dv);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) pin(p[i]);
        if (lane == 0) arrive(empty_o + o.stage);
        o.next();
      };
      const auto start_dq = [&] {
        begin_products();
        query_gradient(dq, base + L::kK, base + L::kDs + parity * L::kScoreTile);
        commit_products();
      };
      const auto start_dk = [&](int stage) {
        gradient(dk, base + L::kDs + parity * L::kScoreTile, base + L::kQ + stage * L::kQueryTile);
        commit_products();
        parity ^= 1;
      };

      finish(block * kM, std::false_type{});
#pragma unroll 1
      for (int left = total - 1; left > 0; --left) {
        // dq, the next s, dk and the next dp, while dq is added and the exponentials of s are
        // computed. Nothing is in flight from one round to the next: the compiler would wait for
        // every product.
        const int m0 = block * kM, stage = q.stage;
        const int64_t sum = int64_t{head} * a.head_blocks + work.base + block;
        work.next(block, head);
        q.next();
        start_dq();
        load_scores(block * kM);
        start_dk(stage);
        wait_products<2>();
        pin(dq);
        add(dq, sum, m0);
        load_gradients(block * kM);
        finish(block * kM, std::true_type{});
        pin(dk);
        if (lane == 0) arrive(empty_q + stage);
      }
      start_dq();
      start_dk(q.stage);
      wait_products<1>();
      pin(dq);
      add(dq, int64_t{head} * a.head_blocks + work.base + block, block * kM);
      wait_products<0>();
    }
    pin(dk);
    pin(dv);
    // This warp alone uses these rows of V, and it is done with them.
    unsigned char *panels = shared + L::kV + (group * 64 + warp * 16) * 128;
    const int first = work.n0 + group * 64 + warp * 16;
    write_rows<T, kD>(a, a.dv, panels, dv, 1.0f, work.sequence, work.key_head, first, lk, lane);
    write_rows<T, kD>(a, a.dk, panels, dk, a.scale, work.sequence, work.key_head, first, lk, lane);
  }

  __device__ __forceinline__ void mask(float (&s)[kScores], int m0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int c = work.n0 + group * 64 + warp * 16 + lane / 4 + 8 * h;
      const int r0 = m0 + lane % 4 * 2;
      const int low = c >= work.lk  ? INT_MAX
                      : a.right < 0 ? INT_MIN
                                    : c - work.shift - a.right - r0;
      const int high = a.left < 0 ? INT_MAX : c - work.shift + a.left - r0;
#pragma unroll
      for (int j = 0; j < kM / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * j + e < low || 8 * j + e > high) s[4 * j + 2 * h + e] = 0.0f;
        }
      }
    }
  }

  // To the sum over the blocks of keys; `block`: of all heads.
  __device__ __forceinline__ void add(const float (&dq)[kDqColumns / 2], int64_t block, int m0) {
    constexpr int kPart = L::kPart / 4;  // Of a warp.
    float *to = a.dq_sum + block * (kM * kD) + (group * 4 + warp) * kPart;
    int *turn = a.turns + (block * kConsumers + group) * 4 + warp;
    const int mine = a.ordered ? work.turn(a, m0) : 0;
    if (a.ordered) {
      if (lane == 0) {
        while (load_acquire(turn) != mine) __nanosleep(20);
      }
      __syncwarp();
    }
#pragma unroll
    for (int j = 0; j < kDqColumns / 8; ++j) {
      add_global(to + (j * 32 + lane) * 4, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    }
    if (a.ordered) {
      __threadfence();
      __syncwarp();
      if (lane == 0) store_release(turn, mine + 1);
    }
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <class T, int kD, int kM>
__global__ void __launch_bounds__(kThreads, 1)
    gradient_kernel(const __grid_constant__ Problem a, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using L = Tile<kD, kM>;
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
      init_barrier(empty_q + i, 4 * kConsumers);
    }
    for (int i = 0; i < L::kOStages; ++i) {
      init_barrier(full_o + i, 1);
      init_barrier(empty_o + i, 4 * kConsumers);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_for_stream();
  let_next_start();
  const Work<kM> work(a, static_cast<int>(blockIdx.x));

  if (thread < 128) {
    give_registers<24>();
    const int total = work.blocks * a.group;
    if (thread == 0 && total > 0) {
      const int key_row = a.keys.row(work.sequence) + work.n0;
      const int key_sequence = a.keys.sequence(work.sequence);
      const int query_row = a.queries.row(work.sequence);
      const int query_sequence = a.queries.sequence(work.sequence);
      const auto load_keys = [&](const CUtensorMap *map, int to, uint64_t *barrier) {
        arrive_expecting(barrier, L::kKeyTile);
        for (int p = 0; p < L::kPanels; ++p) {
          const int at[4] = {p * 64, key_row, work.key_head, key_sequence};
          load_box<4>(shared + to + p * L::kKeyPanel, map, barrier, at);
        }
      };
      Ring<L::kQStages> q;
      Ring<L::kOStages> o;
      int block = work.first, head = work.key_head * a.group;
      load_keys(&maps.k, L::kK, full_k);
      for (int it = 0; it < total; ++it) {
        wait_barrier(empty_q + q.stage, q.phase ^ 1);
        uint64_t *barrier = full_q + q.stage;
        arrive_expecting(barrier, L::kQueryTile + L::kRowTile);
        for (int p = 0; p < L::kPanels; ++p) {
          const int at[4] = {p * 64, query_row + block * kM, head, query_sequence};
          load_box<4>(shared + L::kQ + q.stage * L::kQueryTile + p * L::kQueryPanel, &maps.q,
                      barrier, at);
        }
        load_bytes(shared + L::kRow + q.stage * L::kRowTile,
                   a.rows + (int64_t{head} * a.head_blocks + work.base + block) * (2 * kM),
                   L::kRowTile, barrier);
        q.next();
        if (it == 0) load_keys(&maps.v, L::kV, full_v);
        wait_barrier(empty_o + o.stage, o.phase ^ 1);
        barrier = full_o + o.stage;
        arrive_expecting(barrier, L::kQueryTile);
        for (int p = 0; p < L::kPanels; ++p) {
          const int at[4] = {p * 64, query_row + block * kM, head, query_sequence};
          load_box<4>(shared + L::kO + o.stage * L::kQueryTile + p * L::kQueryPanel, &maps.d_o,
                      barrier, at);
        }
        o.next();
        work.next(block, head);
      }
    }
  } else {
    take_registers<240>();
    const int group = __shfl_sync(~0u, thread / 128 - 1, 0);
    Consumer<T, kD, kM> consumer = {
        a,      work,    shared, full_k,       full_v,      full_q,           empty_q,
        full_o, empty_o, group,  thread - 128, thread % 32, thread % 128 / 32};
    consumer.run();
  }
#endif
}

// D = sum do o of each row and its statistics in units of log2, +inf for rows that contribute
// nothing. A block of threads: a block of queries of a head.
template <class T, int kD, int kM>
__global__ void __launch_bounds__(kHelperThreads) rows_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wait_for_stream();
  let_next_start();
  constexpr int kLanes = kD / 8, kAtOnce = kHelperThreads / kLanes;
  static_assert(kM % kAtOnce == 0, "whole rounds");
  const int index = static_cast<int>(blockIdx.x);
  const int block = index % a.query_blocks, rest = index / a.query_blocks;
  const int head = rest % a.heads, sequence = rest / a.heads;
  const int lq = a.queries.length(sequence), m0 = block * kM;
  if (m0 >= lq) return;
  const int64_t at = int64_t{head} * a.head_blocks + a.first_block<kM>(sequence) + block;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;

  const typename T::Bits *o = a.o.at<T>(a.queries, sequence, head, m0);
  const typename T::Bits *d_o = a.d_o.at<T>(a.queries, sequence, head, m0);
  float part = 0.0f;
  Vec<T, 8> x[kM / kAtOnce], y[kM / kAtOnce];
#pragma unroll
  for (int i = 0; i < kM / kAtOnce; ++i) {
    const int r = i * kAtOnce + thread / kLanes;
    const bool inside = m0 + r < lq && lane * 8 < a.o.dim;
    x[i] = load<T, 8>(o, static_cast<size_t>(r * a.o.row + lane * 8), inside);
    y[i] = load<T, 8>(d_o, static_cast<size_t>(r * a.d_o.row + lane * 8), inside);
  }
  float4 *sum = reinterpret_cast<float4 *>(a.dq_sum + at * (kM * kD));
#pragma unroll
  for (int i = 0; i < kM * kD / 4 / kHelperThreads; ++i) {
    sum[i * kHelperThreads + thread] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#pragma unroll
  for (int i = 0; i < kM / kAtOnce; ++i) {
    const int r = i * kAtOnce + thread / kLanes;
    float f[8], g[8], d = 0.0f;
    to_float(x[i], f);
    to_float(y[i], g);
#pragma unroll
    for (int j = 0; j < 8; ++j) d = fmaf(f[j], g[j], d);
#pragma unroll
    for (int j = kLanes / 2; j > 0; j /= 2) d += __shfl_xor_sync(~0u, d, j);
    if (lane == 0) {
      float stats = -INFINITY;
      if (m0 + r < lq) {
        const int64_t row = a.queries.ragged()
                                ? (int64_t{a.queries.starts[sequence]} + m0 + r) * a.heads + head
                                : (int64_t{sequence} * a.heads + head) * a.queries.longest + m0 + r;
        stats = a.stats[row];
      }
      const bool used = stats != -INFINITY;
      a.rows[at * (2 * kM) + r] = used ? stats * kLog2E : INFINITY;
      a.rows[at * (2 * kM) + kM + r] = used ? d : 0.0f;
      if (a.sink != nullptr && used) part += exp2f((a.sink[head] - stats) * kLog2E) * d;
    }
  }
  if (a.ordered && thread < 4 * kConsumers) a.turns[at * (4 * kConsumers) + thread] = 0;
  if (a.sink == nullptr) return;
  __shared__ float parts[kHelperThreads / 32];
#pragma unroll
  for (int j = 16; j > 0; j /= 2) part += __shfl_xor_sync(~0u, part, j);
  if (thread % 32 == 0) parts[thread / 32] = part;
  __syncthreads();
  if (thread == 0) {
    for (int i = 1; i < kHelperThreads / 32; ++i) part += parts[i];
    a.sink_part[at] = part;
  }
#endif
}

// The gradient of a head's sink, in a fixed order.
template <int kM>
__global__ void __launch_bounds__(kHelperThreads) sink_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wait_for_stream();
  let_next_start();
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  float sum = 0.0f;
  for (int i = 0; i < a.batch; ++i) {
    const int blocks = (a.queries.length(i) + kM - 1) / kM;
    const float *parts = a.sink_part + int64_t{head} * a.head_blocks + a.first_block<kM>(i);
    for (int b = thread; b < blocks; b += kHelperThreads) sum += parts[b];
  }
  __shared__ float sums[kHelperThreads / 32];
#pragma unroll
  for (int j = 16; j > 0; j /= 2) sum += __shfl_xor_sync(~0u, sum, j);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  if (thread == 0) {
    for (int i = 1; i < kHelperThreads / 32; ++i) sum += sums[i];
    a.dsink[head] = -sum;
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
  const int lq = a.queries.length(sequence), m0 = block * kM;
  const int end = a.queries.ragged() ? lq : a.queries.longest;
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
  typename T::Bits *out = a.dq.at<T>(a.queries, sequence, head, m0);
#pragma unroll
  for (int i = 0; i < kM * kUnits / kHelperThreads; ++i) {
    const int r = (i * kHelperThreads + thread) / kUnits, unit = thread % kUnits;
    Vec<T, 8> v = {};
    if (m0 + r < lq) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = *reinterpret_cast<const float2 *>(tile + r * kPitch + unit * 8 + 2 * j);
        const float pair[2] = {x.x * a.scale, x.y * a.scale};
        v.w[j] = T::from_float(pair);
      }
    }
    if (m0 + r < end && unit * 8 < a.dq.dim) {
      store(out, static_cast<size_t>(r * a.dq.row + unit * 8), v);
    }
  }
#endif
}

// As launch(), with dynamic shared memory.
template <class... Params, class... Args>
NVTEXOutcome launch_shared(void (*kernel)(Params...), size_t blocks, unsigned threads, size_t bytes,
                           cudaStream_t stream, const Args &...args) {
  if (const cudaError_t error = cudaFuncSetAttribute(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes))) {
    return outcome(error);
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return outcome(cudaLaunchKernelEx(&config, kernel, args...));
}

int tile_dim(const NVTEXAttentionArgs &a) { return a.dim_qk <= 64 && a.dim_v <= 64 ? 64 : 128; }

// Where things lie in the workspace.
struct Layout {
  size_t blocks, rows, sums, turns, parts, bytes;

  Layout(const NVTEXAttentionArgs &a, size_t dim, size_t queries) {
    blocks = a.q_side.starts != nullptr ? a.q_side.tokens / queries + a.batch + 1
                                        : a.batch * ceil_div(a.q_side.max_seqlen, queries);
    const size_t all = blocks * a.q_side.heads;
    size_t end = 0;
    const auto take = [&](size_t bytes) {
      const size_t at = end;
      end += ceil_div(bytes, 256) * 256;
      return at;
    };
    rows = take(all * queries * 2 * sizeof(float));
    sums = take(all * queries * dim * sizeof(float));
    turns = take(a.deterministic ? all * 4 * kConsumers * sizeof(int) : 0);
    parts = take(a.dsink != nullptr ? all * sizeof(float) : 0);
    bytes = end;
  }
};

size_t queries_of(int dim) { return dim == 64 ? kQueries<64> : kQueries<128>; }

// A map of [sequences, heads, rows, elements] with boxes of `rows` times 64 elements.
NVTEXOutcome map_rows(CUtensorMap *map, const NVTEXAttentionTensor &x,
                      const NVTEXAttentionSide &side, size_t batch, size_t dim, int rows) {
  const bool ragged = side.starts != nullptr;
  const uint64_t dims[4] = {dim, ragged ? side.tokens : side.max_seqlen, side.heads,
                            ragged ? 1 : batch};
  const int64_t strides[3] = {x.row, x.head, x.batch};
  uint64_t steps[3];
  for (int i = 0; i < 3; ++i) {
    steps[i] = dims[i + 1] == 1 ? 16 : static_cast<uint64_t>(strides[i]) * 2;
  }
  const uint32_t box[4] = {64, static_cast<uint32_t>(rows), 1, 1};
  return encode_map(
      map,
      x.dtype == kNVTEBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, x.data, dims, steps, box);
}

Rows rows_of(const NVTEXAttentionTensor &x, size_t dim) {
  return {x.data, x.batch, x.row, x.head, static_cast<int>(dim)};
}

Side side_of(const NVTEXAttentionSide &x) {
  return {x.cu_seqlens, x.starts, static_cast<int>(x.max_seqlen)};
}

int window(int64_t width) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return static_cast<int>(width < 0 ? -1 : width < kMost ? width : kMost);
}

template <class T, int kD>
NVTEXOutcome run(const NVTEXAttentionArgs &a, cudaStream_t stream) {
  constexpr int kM = kQueries<kD>;
  using L = Tile<kD, kM>;
  const Layout layout(a, kD, kM);
  if (a.workspace_bytes < layout.bytes) {
    return {NVTEX_BACKEND_DEVICE_ERROR, "the workspace is smaller than planned"};
  }
  char *workspace = static_cast<char *>(a.workspace);

  Problem p = {};
  p.queries = side_of(a.q_side);
  p.keys = side_of(a.kv_side);
  p.o = rows_of(a.o, a.dim_v);
  p.d_o = rows_of(a.d_o, a.dim_v);
  p.dq = rows_of(a.dq, a.dim_qk);
  p.dk = rows_of(a.dk, a.dim_qk);
  p.dv = rows_of(a.dv, a.dim_v);
  p.stats = a.stats;
  p.sink = a.dsink != nullptr ? a.sink : nullptr;
  p.dsink = a.dsink;
  p.scale = a.scale;
  p.heads = static_cast<int>(a.q_side.heads);
  p.group = static_cast<int>(a.q_side.heads / a.kv_side.heads);
  p.batch = static_cast<int>(a.batch);
  p.left = window(a.window_left);
  p.right = window(a.window_right);
  p.bottom_right = a.bottom_right;
  p.ordered = a.deterministic;
  p.head_blocks = static_cast<int>(layout.blocks);
  p.query_blocks = static_cast<int>(ceil_div(a.q_side.max_seqlen, kM));
  p.key_blocks = static_cast<int>(ceil_div(a.kv_side.max_seqlen, kKeys));
  p.rows = reinterpret_cast<float *>(workspace + layout.rows);
  p.dq_sum = reinterpret_cast<float *>(workspace + layout.sums);
  p.turns = reinterpret_cast<int *>(workspace + layout.turns);
  p.sink_part = reinterpret_cast<float *>(workspace + layout.parts);

  const size_t units = a.kv_side.heads * a.batch;
  // Queries, do and dq of the heads that are worked on together stay in L2.
  const size_t each = a.q_side.max_seqlen * static_cast<size_t>(p.group) * kD * 8 + 1;
  const size_t team = (size_t{32} << 20) / each;
  p.team = static_cast<int>(team < 1 ? 1 : team < units ? team : units);

  const size_t row_blocks = a.batch * a.q_side.heads * static_cast<size_t>(p.query_blocks);
  const size_t key_blocks = units * static_cast<size_t>(p.key_blocks);
  const auto next = [](NVTEXOutcome &o, auto &&f) {
    if (o.status == NVTEX_BACKEND_OK) o = f();
  };
  NVTEXOutcome o = ok();
  Maps maps = {};
  if (row_blocks > 0 && key_blocks > 0) {  // Else there is nothing to load.
    next(o, [&] { return map_rows(&maps.q, a.q, a.q_side, a.batch, a.dim_qk, kM); });
    next(o, [&] { return map_rows(&maps.d_o, a.d_o, a.q_side, a.batch, a.dim_v, kM); });
    next(o, [&] { return map_rows(&maps.k, a.k, a.kv_side, a.batch, a.dim_qk, kKeys); });
    next(o, [&] { return map_rows(&maps.v, a.v, a.kv_side, a.batch, a.dim_v, kKeys); });
  }
  if (row_blocks > 0) {
    next(o, [&] {
      return launch_shared(rows_kernel<T, kD, kM>, row_blocks, kHelperThreads, 0, stream, p);
    });
  }
  if (p.sink != nullptr) {
    next(o, [&] {
      return launch_shared(sink_kernel<kM>, a.q_side.heads, kHelperThreads, 0, stream, p);
    });
  }
  if (key_blocks > 0) {
    next(o, [&] {
      return launch_shared(gradient_kernel<T, kD, kM>, key_blocks, kThreads, L::kBytes, stream, p,
                           maps);
    });
  }
  if (row_blocks > 0) {
    next(o, [&] {
      return launch_shared(convert_kernel<T, kD, kM>, row_blocks, kHelperThreads, kM * (kD + 4) * 4,
                           stream, p);
    });
  }
  return o;
}

const char *unsupported_tensor(const NVTEXAttentionTensor &x) {
  for (const int64_t stride : {x.batch, x.row, x.head}) {
    if (stride < 0 || stride % 8 != 0 || stride >= int64_t{1} << 38) {
      return "a stride is not a multiple of 16 bytes below 2^39; nearest: contiguous tensors";
    }
  }
  return nullptr;
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
  if (current_device(&device) != cudaSuccess) return "there is no device";
  if (device.arch != 90) return "the device is not of compute capability 9.0";
  if (!a.backward) return "a forward pass";
  if (a.q.dtype != kNVTEBFloat16 && a.q.dtype != kNVTEFloat16) {
    return "dtype; nearest: BF16 or FP16";
  }
  for (const NVTEXAttentionTensor *x : {&a.q, &a.k, &a.v, &a.o, &a.d_o, &a.dq, &a.dk, &a.dv}) {
    if (x->dtype != a.q.dtype) return "tensors of several dtypes; nearest: all of q's dtype";
    if (const char *reason = unsupported_tensor(*x)) return reason;
  }
  if (a.dim_qk > 128 || a.dim_v > 128) return "a head of more than 128 elements; nearest: 128";
  if (a.dim_qk == 0 || a.dim_v == 0 || a.dim_qk % 8 != 0 || a.dim_v % 8 != 0) {
    return "a head's elements are not a multiple of 8; nearest: the next multiple of 8";
  }
  if (a.page_table_k != nullptr || a.page_table_v != nullptr) {
    return "paged keys; nearest: keys without pages";
  }
  if (a.bias.data != nullptr || a.dbias.data != nullptr) return "bias; nearest: no bias";
  if (a.alibi) return "ALiBi; nearest: no bias";
  if (a.dropout != 0.0f) return "dropout; nearest: dropout 0";
  if (a.kv_side.heads == 0 || a.q_side.heads % a.kv_side.heads != 0) {
    return "the heads of q are not a multiple of those of k";
  }
  constexpr size_t kMost = size_t{1} << 29;
  if (a.q_side.max_seqlen >= kMost || a.kv_side.max_seqlen >= kMost || a.q_side.tokens >= kMost ||
      a.kv_side.tokens >= kMost) {
    return "2^29 rows or more";
  }
  const size_t dim = static_cast<size_t>(tile_dim(a));
  const size_t queries = queries_of(static_cast<int>(dim));
  const Layout layout(a, dim, queries);
  if (layout.blocks * a.q_side.heads > kMaxBlocks ||
      a.batch * a.q_side.heads * ceil_div(a.q_side.max_seqlen, queries) > kMaxBlocks ||
      a.batch * a.kv_side.heads * ceil_div(a.kv_side.max_seqlen, kKeys) > kMaxBlocks) {
    return "2^31 blocks or more";
  }
  *workspace = layout.bytes;
  return nullptr;
}

NVTEXOutcome nvte_attention_sm90_backward(const NVTEXAttentionArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<BF16, F16>(args->q.dtype, [&](auto t) {
    using T = decltype(t);
    return tile_dim(*args) == 64 ? run<T, 64>(*args, stream) : run<T, 128>(*args, stream);
  });
}
