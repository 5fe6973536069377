// Backward of attention for compute capability 9.0: 16-bit tensors, heads of up to 128 elements.
//
// Three kernels: rows_kernel has D and the statistics of every query row and clears the accumulator
// of dq; gradient_kernel has one block per 128 keys, which keeps dk and dv in registers while it
// goes over the queries and adds its part of dq in float32; convert_kernel rounds dq. Blocks of
// keys that would leave most of the device idle, see Shares, are cut into parts of the queries.
//
// Dropout: p is recomputed whole; what is kept of it enters dv and the term of dp. The factor
// 1 / (1 - probability) is left to the end: ds is p (keep dp - (1 - probability) D) until then.
//
// Instances of gradient_kernel: {BF16, F16} x {64, 128} elements of a head x {no dropout, dropout}.

#include <climits>
#include <type_traits>

#include "common/attention.cuh"
#include "common/tma.cuh"
#include "common/vec.cuh"
#include "common/wgmma.cuh"

namespace nvte {
namespace {

constexpr int kKeys = 128;     // Of a block.
constexpr int kConsumers = 2;  // Warpgroups, 64 keys each.
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kHelperThreads = 256;  // Of the kernels around the main one.

struct Maps {
  CUtensorMap q, k, v, d_o;
};

struct Problem : NVTEXAttentionArgs {
  Maps maps;
  float scale_v, scale_k;  // Of dv and of dk and dq: with dropout not as it was in the products.
  Dropout mask;
  int heads, group;  // `group`: query heads of a key head.
  // Blocks of queries of a head, over all sequences, and of one sequence at most.
  int head_blocks, query_blocks;
  int key_blocks;  // Of a sequence, at most.
  // Blocks of queries that the next block of keys begins later, so that not all add to the same
  // rows of dq at once. H200, causal, 128 elements, 8192 queries: 2.62 ms for 2.67 ms.
  int turn;
  int team;                 // Key heads that are worked on together, for the sake of L2.
  int panels_qk, panels_v;  // Panels of 64 elements that heads have.
  // Workspace. [heads, head_blocks, 2, M]: statistics in units of log2, then D.
  float *rows;
  float *dq_sum;     // [heads, head_blocks, M D], in the order of accumulators.
  int *turns;        // [heads, head_blocks, 8]: key blocks that have added; if deterministic.
  float *sink_part;  // [heads, head_blocks]; if there is a sink.
  // Key blocks from number `whole` on are shared by `parts` blocks of threads each.
  int whole, parts;
  float *shared_sum;  // [shared blocks, 2, kKeys D]: dv and dk, in the order of accumulators.
  int *shared_turns;  // [shared blocks]: parts that have added.
  int shared_blocks;

  explicit Problem(const NVTEXAttentionArgs &args) : NVTEXAttentionArgs(args), mask(args) {}

  // First block of queries of a sequence within a head.
  template <int kM>
  __device__ __forceinline__ int first_block(int i) const {
    return q_side.starts != nullptr ? (q_side.starts[i] + i * kM) / kM : i * query_blocks;
  }
};

// Element 0 of row r.
template <class T>
__device__ __forceinline__ typename T::Bits *row_of(const NVTEXAttentionTensor &t,
                                                    const NVTEXAttentionSide &side, int i, int head,
                                                    int r) {
  return static_cast<typename T::Bits *>(t.data) + head_offset(t, side, i, head) + r * t.row;
}

// Sizes of gradient_kernel in bytes, for heads of D elements and M queries at a time.
template <int kD, int kM>
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
                       kRow = kDs + 2 * kScoreTile, kBarrier = kRow + kQStages * kRowTile;
  static constexpr int kBarriers = 2 + 2 * kQStages + 2 * kOStages;
  static constexpr int kBytes = kBarrier + kBarriers * 8 + 1024;  // The start is aligned by hand.
  static_assert(kBytes <= 232448, "shared memory of a block");
};

// Queries at a time, by the elements of a head: as many as there are registers for. H200, bf16,
// 8192 queries, TFLOP/s, causal and full: 128 elements 506 and 522 with 80, 489 and 516 with 64.
template <int kD, bool kDropout>
constexpr int kQueries = kD == 64 ? (kDropout ? 96 : 128) : (kDropout ? 64 : 80);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Barriers of threads; 0 is __syncthreads(). Of both consumers; of each one, 2; of both, each of
// the two parts of each of two ds, 4: who writes it arrives, the other one waits.
constexpr int kConsumerBarrier = 1, kGroupBarrier = 2, kReadyBarrier = 4;

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
  int lq, lk;
  Band band;
  int n0;                  // First key.
  int first, blocks;       // Blocks of queries of each head.
  int last;                // The block that a head ends with.
  int block, head, total;  // The first of its share, and how many.
  int shared;              // Number of a block of keys that has others at work on it, or -1.
  int base;                // Of the sequence within a head.

  __device__ __forceinline__ Work(const Problem &a, int index) : band(a, 0, 0) {
    int part = 0;
    shared = -1;
    if (index >= a.whole) {
      part = (index - a.whole) % a.parts;
      shared = (index - a.whole) / a.parts;
      index = a.whole + shared;
    }
    const int key_heads = a.heads / a.group, units = key_heads * static_cast<int>(a.batch);
    const int team = index / (a.team * a.key_blocks), in_team = index % (a.team * a.key_blocks);
    const int members = min(a.team, units - team * a.team);
    const int unit = team * a.team + in_team % members;
    key_block = in_team / members;
    // With a bound on the right low keys have the most queries: longest first, unless dq is added
    // in order, which goes from the diagonal to the left so that nobody waits.
    if (a.deterministic && a.window_right >= 0) key_block = a.key_blocks - 1 - key_block;
    sequence = unit / key_heads;
    key_head = unit % key_heads;
    lq = length(a.q_side, sequence);
    lk = length(a.kv_side, sequence);
    band = Band(a, lq, lk);
    n0 = key_block * kKeys;
    const int low = band.first_row(n0), high = band.last_row(min(n0 + kKeys, lk), lq);
    first = low / kM;
    blocks = n0 < lk && low < high ? (high - 1) / kM - first + 1 : 0;
    base = a.first_block<kM>(sequence);
    const int all = blocks * a.group, parts = shared < 0 ? 1 : a.parts;
    const int from = static_cast<int>(int64_t{all} * part / parts);
    total = static_cast<int>(int64_t{all} * (part + 1) / parts) - from;
    const int turned = blocks > 0 ? key_block * a.turn % blocks : 0;
    last = first + (turned > 0 ? turned : blocks) - 1;
    block = first + (blocks > 0 ? (from % blocks + turned) % blocks : 0);
    head = key_head * a.group + (blocks > 0 ? from / blocks : 0);
  }
  // The next block of queries, of the next head after all of one.
  __device__ __forceinline__ void next(int &block, int &head) const {
    if (block == last) ++head;
    if (++block == first + blocks) block = first;
  }
  __device__ __forceinline__ bool masked(int m0) const {
    return !band.admits(m0, m0 + kM, n0, n0 + kKeys);
  }
  // Blocks that add to these rows of dq before this one.
  __device__ __forceinline__ int turn(const Problem &a, int m0) const {
    if (a.window_right >= 0) return (band.end(min(m0 + kM, lq) - 1) - 1) / kKeys - key_block;
    return key_block - band.begin(m0) / kKeys;
  }
};

// Clears the panels of tiles that no load fills; every thread, before the barriers are there.
__device__ __forceinline__ void clear_panels(unsigned char *tiles, int count, int panel, int from,
                                             int panels) {
  for (int tile = 0; tile < count; ++tile) {
    unsigned char *first = tiles + (tile * panels + from) * panel;
    const int end = (panels - from) * panel;
    for (int at = static_cast<int>(threadIdx.x) * 16; at < end; at += kThreads * 16) {
      *reinterpret_cast<uint4 *>(first + at) = make_uint4(0, 0, 0, 0);
    }
  }
}

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
__device__ __forceinline__ void write_rows(const Problem &a, const NVTEXAttentionTensor &to,
                                           size_t dim, unsigned char *panels,
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
  const int end = written(a.kv_side, length);
  typename T::Bits *out = row_of<T>(to, a.kv_side, sequence, key_head, 0);
#pragma unroll
  for (int r = lane / kUnits; r < 16; r += 32 / kUnits) {
    uint4 value = *reinterpret_cast<const uint4 *>(panels + unit / 8 * (kKeys * 128) + r * 128 +
                                                   ((unit % 8 ^ (r & 7)) << 4));
    if (first + r >= length) value = make_uint4(0, 0, 0, 0);
    if (first + r < end && unit * 8 < dim) {
      *reinterpret_cast<uint4 *>(out + (first + r) * to.row + unit * 8) = value;
    }
  }
}

template <class T, int kD, int kM, bool kDropout>
struct Consumer {
  using L = Sizes<kD, kM>;
  static constexpr int kWords = (kM + 63) / 64;  // Of what dropout keeps.
  static constexpr int kScores = kM / 2, kDim = kD / 2, kSteps = kM / 16;
  static constexpr int kDqColumns = kD == 128 ? kM : kM / 2;

  const Problem &a;
  const Work<kM> &work, &rare;
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
        wait_products<decltype(in_flight)::value>();
        pin(s);
#pragma unroll
        for (int j = 0; j < kM / 16; ++j) {
          const float4 lse = j == 0 ? ahead : four_at(16 * j);
          s[8 * j] = power2(fmaf(s[8 * j], scale_log2, -lse.x));
          s[8 * j + 1] = power2(fmaf(s[8 * j + 1], scale_log2, -lse.y));
          s[8 * j + 2] = power2(fmaf(s[8 * j + 2], scale_log2, -lse.x));
          s[8 * j + 3] = power2(fmaf(s[8 * j + 3], scale_log2, -lse.y));
          s[8 * j + 4] = power2(fmaf(s[8 * j + 4], scale_log2, -lse.z));
          s[8 * j + 5] = power2(fmaf(s[8 * j + 5], scale_log2, -lse.w));
          s[8 * j + 6] = power2(fmaf(s[8 * j + 6], scale_log2, -lse.z));
          s[8 * j + 7] = power2(fmaf(s[8 * j + 7], scale_log2, -lse.w));
        }
        if (work.masked(m0)) mask(s, m0);
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
              const float x = is_kept(kept[j / 8], j / 2 % 4, j % 2, e) ? dp[4 * j + e] : 0.0f;
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
        uint32_t ds[kSteps][4];
        round_pairs<T, kScores>(ds, dp);
        // Both warpgroups have read what lay here two rounds ago: they have met since.
        parity ^= 1;
        const uint32_t scores_at = base + L::kDs + parity * L::kScoreTile;
        {
          const int m = lane / 16 * 8 + lane % 8, unit = 2 * warp + (lane / 8 & 1);
          const uint32_t at =
              scores_at + group * L::kQueryPanel + m * 128 + ((unit ^ (m & 7)) << 4);
#pragma unroll
          for (int i = 0; i < kSteps; ++i) store_transposed(at + i * 16 * 128, ds[i]);
        }
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
      const auto start_dk = [&](int stage) {
        sync_threads(kGroupBarrier + group, 128);
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
        const int64_t sum = int64_t{head} * a.head_blocks + work.base + block;
        work.next(block, head);
        q.next();
        load_scores(block * kM);
        start_dk(stage);
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
      start_dk(q.stage);
      start_dq();
      wait_products<0>();
      pin(dq);
      add(dq, int64_t{head} * a.head_blocks + work.base + block, block * kM);
    }
    pin(dk);
    pin(dv);
    if (rare.shared >= 0 && !collect(dv, dk)) return;
    // This warp alone uses these rows of V, and it is done with them.
    unsigned char *panels = shared + L::kV + (group * 64 + warp * 16) * 128;
    const int first = work.n0 + group * 64 + warp * 16;
    write_rows<T, kD>(a, a.dv, a.dim_v, panels, dv, a.scale_v, rare.sequence, rare.key_head, first,
                      lk, lane);
    write_rows<T, kD>(a, a.dk, a.dim_qk, panels, dk, a.scale_k, rare.sequence, rare.key_head, first,
                      lk, lane);
  }

  __device__ __forceinline__ void mask(float (&s)[kScores], int m0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int c = work.n0 + group * 64 + warp * 16 + lane / 4 + 8 * h;
      const int r0 = m0 + lane % 4 * 2;
      const int low = c >= work.lk ? INT_MAX : c - work.band.right + 1 - r0;
      const int high = c - work.band.left - r0;
#pragma unroll
      for (int j = 0; j < kM / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * j + e < low || 8 * j + e > high) s[4 * j + 2 * h + e] = 0.0f;
        }
      }
    }
  }

  // Adds this part's gradients to those of the others; the last one has the sum.
  __device__ __forceinline__ bool collect(float (&dv)[kDim], float (&dk)[kDim]) {
    float *sum = a.shared_sum + int64_t{rare.shared} * (2 * kKeys * kD) + thread * 4;
    constexpr int kStep = 128 * kConsumers * 4;
#pragma unroll
    for (int j = 0; j < kDim / 4; ++j) {
      add_global(sum + j * kStep, dv[4 * j], dv[4 * j + 1], dv[4 * j + 2], dv[4 * j + 3]);
      add_global(sum + (kDim / 4 + j) * kStep, dk[4 * j], dk[4 * j + 1], dk[4 * j + 2],
                 dk[4 * j + 3]);
    }
    __threadfence();
    int *before = reinterpret_cast<int *>(shared + L::kRow);
    sync_threads(kConsumerBarrier, 128 * kConsumers);
    if (thread == 0) *before = atomicAdd(a.shared_turns + rare.shared, 1);
    sync_threads(kConsumerBarrier, 128 * kConsumers);
    if (*before != a.parts - 1) return false;
    __threadfence();
#pragma unroll
    for (int j = 0; j < kDim / 4; ++j) {
      const float4 v = __ldcg(reinterpret_cast<const float4 *>(sum + j * kStep));
      const float4 k = __ldcg(reinterpret_cast<const float4 *>(sum + (kDim / 4 + j) * kStep));
      dv[4 * j] = v.x, dv[4 * j + 1] = v.y, dv[4 * j + 2] = v.z, dv[4 * j + 3] = v.w;
      dk[4 * j] = k.x, dk[4 * j + 1] = k.y, dk[4 * j + 2] = k.z, dk[4 * j + 3] = k.w;
    }
    return true;
  }

  // To the sum over the blocks of keys; `block`: of all heads.
  __device__ __forceinline__ void add(const float (&dq)[kDqColumns / 2], int64_t block, int m0) {
    constexpr int kPart = kM * kD / kConsumers / 4;  // Of a warp.
    float *to = a.dq_sum + block * (kM * kD) + (group * 4 + warp) * kPart;
    int *turn = a.turns + (block * kConsumers + group) * 4 + warp;
    const int mine = a.deterministic ? work.turn(a, m0) : 0;
    if (a.deterministic) {
      if (lane == 0) {
        while (load_acquire(turn) != mine) __nanosleep(20);
      }
      __syncwarp();
    }
#pragma unroll
    for (int j = 0; j < kDqColumns / 8; ++j) {
      add_global(to + (j * 32 + lane) * 4, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    }
    if (a.deterministic) {
      __threadfence();
      __syncwarp();
      if (lane == 0) store_release(turn, mine + 1);
    }
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <class T, int kD, int kM, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1) gradient_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using L = Sizes<kD, kM>;
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
  __shared__ alignas(8) unsigned char place[sizeof(Work<kM>)];
  Work<kM> &shared_work = *reinterpret_cast<Work<kM> *>(place);
  if (thread == 0) shared_work = Work<kM>(a, static_cast<int>(blockIdx.x));
  __syncthreads();
  const Work<kM> work = shared_work;

  if (thread < 128) {
    give_registers<24>();
    const int total = work.total;
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
        arrive_expecting(barrier, a.panels_qk * L::kQueryPanel + L::kRowTile);
        load_panels(&a.maps.q, L::kQ + q.stage * L::kQueryTile, a.panels_qk, L::kQueryPanel,
                    barrier, query_row + block * kM, head, query_sequence);
        load_bytes(shared + L::kRow + q.stage * L::kRowTile,
                   a.rows + (int64_t{head} * a.head_blocks + work.base + block) * (2 * kM),
                   L::kRowTile, barrier);
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
    Consumer<T, kD, kM, kDropout> consumer = {
        a,       work,   shared_work, shared, full_k,       full_v,      full_q,
        empty_q, full_o, empty_o,     group,  thread - 128, thread % 32, thread % 128 / 32};
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
  if (a.shared_blocks > 0) {
    const int64_t thread = int64_t{index} * kHelperThreads + threadIdx.x;
    const int64_t step = int64_t{gridDim.x} * kHelperThreads;
    float4 *sum = reinterpret_cast<float4 *>(a.shared_sum);
    for (int64_t i = thread; i < a.shared_blocks * (2 * kKeys * kD / 4); i += step) {
      sum[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (thread < a.shared_blocks) a.shared_turns[thread] = 0;
  }
  const int lq = length(a.q_side, sequence), m0 = block * kM;
  if (m0 >= lq) return;
  const int64_t at = int64_t{head} * a.head_blocks + a.first_block<kM>(sequence) + block;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;

  const typename T::Bits *o = row_of<T>(a.o, a.q_side, sequence, head, m0);
  const typename T::Bits *d_o = row_of<T>(a.d_o, a.q_side, sequence, head, m0);
  const StatsRows stats_rows(a.q_side, sequence, head);
  float part = 0.0f;
  Vec<T, 8> x[kM / kAtOnce], y[kM / kAtOnce];
#pragma unroll
  for (int i = 0; i < kM / kAtOnce; ++i) {
    const int r = i * kAtOnce + thread / kLanes;
    const bool inside = m0 + r < lq && lane * 8 < a.dim_v;
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
      const float stats = m0 + r < lq ? a.stats[stats_rows(m0 + r)] : -INFINITY;
      const bool used = stats != -INFINITY;
      // A lane of gradient_kernel has two neighbours of 8 rows and two of the next 8.
      const int place = r / 16 * 16 + r % 8 / 2 * 4 + r / 8 % 2 * 2 + r % 2;
      a.rows[at * (2 * kM) + place] = used ? stats * kLog2e : INFINITY;
      a.rows[at * (2 * kM) + kM + place] = used ? d / a.mask.scale : 0.0f;
      if (a.dsink != nullptr && used) part += exp2f((a.sink[head] - stats) * kLog2e) * d;
    }
  }
  if (a.deterministic && thread < 4 * kConsumers) a.turns[at * (4 * kConsumers) + thread] = 0;
  if (a.dsink == nullptr) return;
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
  for (int i = 0; i < static_cast<int>(a.batch); ++i) {
    const int blocks = (length(a.q_side, i) + kM - 1) / kM;
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

int tile_dim(const NVTEXAttentionArgs &a) { return a.dim_qk <= 64 && a.dim_v <= 64 ? 64 : 128; }

// How many blocks of keys are worked on whole, and by how many blocks of threads each of the
// others: those of a last round that would leave most of the device idle. Not where sums have an
// order, nor where the last blocks are the shortest ones anyway.
struct Shares {
  size_t whole, parts = 1;

  Shares(const NVTEXAttentionArgs &a, size_t queries) {
    const size_t blocks = a.kv_side.heads * a.batch * ceil_div(a.kv_side.max_seqlen, kKeys);
    const size_t rounds = a.q_side.heads / a.kv_side.heads * ceil_div(a.q_side.max_seqlen, queries);
    whole = blocks;
    Device device;
    if (a.deterministic || a.q_side.max_seqlen == 0 || current_device(&device) != cudaSuccess)
      return;
    const size_t sms = static_cast<size_t>(device.sm_count);
    const bool even = a.window_left < 0 && a.window_right < 0 && a.q_side.cu_seqlens == nullptr &&
                      a.kv_side.cu_seqlens == nullptr;
    if (blocks > sms && !even) return;
    const size_t rest = blocks % sms;
    constexpr size_t kOverhead = 4;  // Of a part, in rounds.
    size_t least = rounds + kOverhead / 2;
    for (size_t n = 2; n <= 16 && n <= rounds; ++n) {
      const size_t cost = ceil_div(rest * n, sms) * (ceil_div(rounds, n) + kOverhead);
      if (cost < least) least = cost, parts = n;
    }
    if (parts > 1) whole = blocks - rest;
  }
};

// Where things lie in the workspace.
struct Layout {
  size_t blocks, rows, sums, turns, parts, bytes, shared_blocks, shared_sum, shared_turns;
  Shares shares;

  Layout(const NVTEXAttentionArgs &a, size_t dim, size_t queries) : shares(a, queries) {
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
    shared_blocks =
        a.kv_side.heads * a.batch * ceil_div(a.kv_side.max_seqlen, kKeys) - shares.whole;
    shared_sum = take(shared_blocks * 2 * kKeys * dim * sizeof(float));
    shared_turns = take(shared_blocks * sizeof(int));
    bytes = end;
  }
};

size_t queries_of(int dim, bool dropout) {
  if (dropout) return dim == 64 ? kQueries<64, true> : kQueries<128, true>;
  return dim == 64 ? kQueries<64, false> : kQueries<128, false>;
}

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

template <class T, int kD, bool kDropout>
NVTEXOutcome run(const NVTEXAttentionArgs &a, cudaStream_t stream) {
  constexpr int kM = kQueries<kD, kDropout>;
  using L = Sizes<kD, kM>;
  const Layout layout(a, kD, kM);
  if (a.workspace_bytes < layout.bytes) {
    return {NVTEX_BACKEND_DEVICE_ERROR, "the workspace is smaller than planned"};
  }
  char *workspace = static_cast<char *>(a.workspace);

  Problem p(a);
  p.scale_v = p.mask.scale;
  p.scale_k = a.scale * p.mask.scale;
  p.heads = static_cast<int>(a.q_side.heads);
  p.group = static_cast<int>(a.q_side.heads / a.kv_side.heads);
  p.turn = kD == 128 && a.window_right >= 0 && !a.deterministic ? 7 : 0;
  p.head_blocks = static_cast<int>(layout.blocks);
  p.query_blocks = static_cast<int>(ceil_div(a.q_side.max_seqlen, kM));
  p.key_blocks = static_cast<int>(ceil_div(a.kv_side.max_seqlen, kKeys));
  p.panels_qk = static_cast<int>(ceil_div(a.dim_qk, 64));
  p.panels_v = static_cast<int>(ceil_div(a.dim_v, 64));
  p.rows = reinterpret_cast<float *>(workspace + layout.rows);
  p.dq_sum = reinterpret_cast<float *>(workspace + layout.sums);
  p.turns = reinterpret_cast<int *>(workspace + layout.turns);
  p.sink_part = reinterpret_cast<float *>(workspace + layout.parts);
  p.whole = static_cast<int>(layout.shares.whole);
  p.parts = static_cast<int>(layout.shares.parts);
  p.shared_blocks = static_cast<int>(layout.shared_blocks);
  p.shared_sum = reinterpret_cast<float *>(workspace + layout.shared_sum);
  p.shared_turns = reinterpret_cast<int *>(workspace + layout.shared_turns);

  const size_t units = a.kv_side.heads * a.batch;
  // Queries, do and dq of the heads that are worked on together stay in L2.
  const size_t each = a.q_side.max_seqlen * static_cast<size_t>(p.group) * kD * 8 + 1;
  const size_t team = (size_t{a.window_right >= 0 ? 32u : 16u} << 20) / each;
  p.team = static_cast<int>(team < 1 ? 1 : team < units ? team : units);

  const size_t row_blocks = a.batch * a.q_side.heads * static_cast<size_t>(p.query_blocks);
  const size_t key_blocks = units * static_cast<size_t>(p.key_blocks);
  const auto next = [](NVTEXOutcome &o, auto &&f) {
    if (o.status == NVTEX_BACKEND_OK) o = f();
  };
  NVTEXOutcome o = ok();
  const auto has_rows = [](const NVTEXAttentionSide &x) {
    return x.starts == nullptr || x.tokens > 0;
  };
  // Else there is nothing to load.
  if (row_blocks > 0 && key_blocks > 0 && has_rows(a.q_side) && has_rows(a.kv_side)) {
    next(o, [&] { return map_rows(&p.maps.q, a.q, a.q_side, a.batch, a.dim_qk, kM); });
    next(o, [&] { return map_rows(&p.maps.d_o, a.d_o, a.q_side, a.batch, a.dim_v, kM); });
    next(o, [&] { return map_rows(&p.maps.k, a.k, a.kv_side, a.batch, a.dim_qk, kKeys); });
    next(o, [&] { return map_rows(&p.maps.v, a.v, a.kv_side, a.batch, a.dim_v, kKeys); });
  }
  if (row_blocks > 0) {
    next(o, [&] {
      return launch_shared(rows_kernel<T, kD, kM>, dim3(static_cast<unsigned>(row_blocks)),
                           kHelperThreads, 0, stream, p);
    });
  }
  if (p.dsink != nullptr) {
    next(o, [&] {
      return launch_shared(sink_kernel<kM>, dim3(static_cast<unsigned>(a.q_side.heads)),
                           kHelperThreads, 0, stream, p);
    });
  }
  if (key_blocks > 0) {
    next(o, [&] {
      const size_t blocks = layout.shares.whole + layout.shared_blocks * layout.shares.parts;
      return launch_shared(gradient_kernel<T, kD, kM, kDropout>,
                           dim3(static_cast<unsigned>(blocks)), kThreads, L::kBytes, stream, p);
    });
  }
  if (row_blocks > 0) {
    next(o, [&] {
      return launch_shared(convert_kernel<T, kD, kM>, dim3(static_cast<unsigned>(row_blocks)),
                           kHelperThreads, kM * (kD + 4) * 4, stream, p);
    });
  }
  return o;
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
  if (a.dim_qk > 128 || a.dim_v > 128) return "a head of more than 128 elements; nearest: 128";
  if (a.page_table_k != nullptr || a.page_table_v != nullptr) {
    return "paged keys; nearest: keys without pages";
  }
  if (a.bias.data != nullptr || a.dbias.data != nullptr) return "bias; nearest: no bias";
  if (a.alibi) return "ALiBi; nearest: no bias";
  if (a.q_side.tokens > kMaxLength || a.kv_side.tokens > kMaxLength) return "over 2^29 tokens";
  const size_t dim = static_cast<size_t>(tile_dim(a));
  const size_t queries = queries_of(static_cast<int>(dim), a.dropout != 0.0f);
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
    if (args->dropout != 0.0f) {
      return tile_dim(*args) == 64 ? run<T, 64, true>(*args, stream)
                                   : run<T, 128, true>(*args, stream);
    }
    return tile_dim(*args) == 64 ? run<T, 64, false>(*args, stream)
                                 : run<T, 128, false>(*args, stream);
  });
}
