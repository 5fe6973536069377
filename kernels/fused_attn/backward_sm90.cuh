// What the backward passes of attention for compute capability 9.0 share: the problem and its
// workspace, the order of the work, and the kernels before the main one.
#pragma once

#include <climits>
#include <type_traits>

#include "attention.cuh"
#include "common/tma.cuh"
#include "common/vec.cuh"
#include "common/wgmma.cuh"

namespace nvte {
namespace sm90_backward {

constexpr int kConsumers = 2;  // Warpgroups of a block, beside the one that loads.
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kHelperThreads = 256;  // Of the kernels around the main one.
constexpr int kConsumerBarrier = 1;  // Of threads: of all consumers; 0 is __syncthreads().

// Where the gradient of a bias goes.
enum class BiasGradient : int {
  kNone,
  kStored,    // Each element comes from one score: tiles of ds as they are.
  kGathered,  // Over sequences or heads: likewise, in the workspace, and summed afterwards.
  kSummed,    // Over sequences or heads: float32 sums in the workspace, if that is much smaller.
  kRows,      // Over all queries: of each sequence and head in the workspace.
};

struct Maps {
  CUtensorMap q, k, v, d_o, bias, dbias;
  CUtensorMap q8, k8, o8;  // FP8: the tensors themselves, as v is.
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
  float *shared_sum;  // [shared blocks, shared_floats]: dv and dk, in the order of accumulators.
  int64_t shared_floats;
  int *shared_turns;  // [shared blocks]: parts that have added.
  int shared_blocks;
  int slope_heads;            // The largest power of two that is not more than `heads`,
  float slope_step;           // and the logarithm of half a step of ALiBi's slopes.
  float keep_scale, scale_d;  // Of what dropout keeps of dp, and of D.
  bool bias_batch, bias_heads, bias_rows;  // Dimensions that are not broadcast.
  BiasGradient to_bias;
  bool sum_batch, sum_heads;    // What dbias sums over, beside queries.
  NVTEXAttentionTensor scores;  // kStored: dbias; kGathered: ds of every score.
  // kSummed: [sequences or 1, heads or 1, query_blocks, key_blocks, M kKeys], in the order of
  // accumulators; kRows: [sequences, heads, key_blocks kKeys].
  float *bias_sum;

  explicit Problem(const NVTEXAttentionArgs &args) : NVTEXAttentionArgs(args), mask(args) {}

  __host__ __device__ bool stores_scores() const {
    return to_bias == BiasGradient::kStored || to_bias == BiasGradient::kGathered;
  }
  // ALiBi's, in units of log2.
  __device__ __forceinline__ float slope_of(int head) const {
    const bool first = head < slope_heads;
    return kLog2e * power2(slope_step *
                           static_cast<float>(first ? 2 * head + 2 : 2 * (head - slope_heads) + 1));
  }
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

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Four 8x8 matrices of 16-bit elements, transposed on the way.
__device__ __forceinline__ void store_transposed(uint32_t to, const uint32_t (&a)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
               : "memory");
}

// Four 8x8 matrices of 16-bit elements, transposed on the way.
__device__ __forceinline__ void read_transposed(uint32_t from, uint32_t (&a)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(from)
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

// Of keys and values, and of stages of q and do. q has statistics beside it, which are read by
// ordinary loads: every consumer says for itself that it is done with them, of do each warp does.
template <int kQStages, int kOStages>
struct Barriers {
  uint64_t *full_k, *full_v, *full_q, *empty_q, *full_o, *empty_o;

  __device__ __forceinline__ explicit Barriers(unsigned char *at)
      : full_k(reinterpret_cast<uint64_t *>(at)),
        full_v(full_k + 1),
        full_q(full_v + 1),
        empty_q(full_q + kQStages),
        full_o(empty_q + kQStages),
        empty_o(full_o + kOStages) {}
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < 2; ++i) init_barrier(full_k + i, 1);
    for (int i = 0; i < kQStages; ++i) {
      init_barrier(full_q + i, 1);
      init_barrier(empty_q + i, 128 * kConsumers);
    }
    for (int i = 0; i < kOStages; ++i) {
      init_barrier(full_o + i, 1);
      init_barrier(empty_o + i, 4 * kConsumers);
    }
    publish_barriers();
  }
};

// The warp has read a stage.
__device__ __forceinline__ void release(uint64_t *barrier, int lane) {
  __syncwarp();
  if (lane == 0) arrive(barrier);
}

// What a block does: its keys and the blocks of queries that see them.
template <int kKeys, int kM>
struct Work {
  int sequence, key_head, key_block;
  int lq, lk;
  Band band;
  int n0;                  // First key.
  int first, blocks;       // Blocks of queries of each head.
  int last;                // The block that a head ends with.
  int block, head, total;  // The first of its share, and how many.
  int shared;              // Number of a block of keys that has others at work on it, or -1.
  int part;                // Which of them this is.
  int base;                // Of the sequence within a head.

  __device__ __forceinline__ Work(const Problem &a, int index) : band(a, 0, 0) {
    part = 0;
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

// Clears what is not admitted of a warp's 16 keys from `first` on and queries from m0 on. kRows:
// there may be more queries than the sequence has.
template <bool kRows, int kKeys, int kM>
__device__ __forceinline__ void mask(float (&s)[kM / 2], const Work<kKeys, kM> &work, int first,
                                     int m0, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int c = first + lane / 4 + 8 * h;
    const int r0 = m0 + lane % 4 * 2;
    const int low = c >= work.lk ? INT_MAX : c - work.band.right + 1 - r0;
    int high = c - work.band.left - r0;
    if constexpr (kRows) high = min(high, work.lq - 1 - r0);
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e < low || 8 * j + e > high) s[4 * j + 2 * h + e] = 0.0f;
      }
    }
  }
}

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

// To FP8 and back to half precision.
template <class Code, int kN>
__device__ __forceinline__ void round_fp8(uint32_t (&out)[kN / 8][4], const float (&d)[kN]) {
  constexpr bool kE4M3 = Code::kDtype == kNVTEFloat8E4M3;
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {
    const float four[4] = {d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]};
    decode_fp8x4<kE4M3>(encode_fp8x4<kE4M3>(four), out[i / 2][i % 2 * 2],
                        out[i / 2][i % 2 * 2 + 1]);
  }
}

// Calls f with the tag of a dtype that the kernel does not know.
template <class F>
__device__ __forceinline__ void with_dtype(NVTEDType dtype, F &&f) {
  switch (dtype) {
    case kNVTEFloat32:
      return f(F32{});
    case kNVTEFloat16:
      return f(F16{});
    case kNVTEBFloat16:
      return f(BF16{});
    case kNVTEFloat8E4M3:
      return f(E4M3{});
    default:
      return f(E5M2{});
  }
}

// Rows of a warp of a product [64, D] of FP8 tensors to global memory.
template <int kD>
__device__ __forceinline__ void write_rows(const Problem &a, const NVTEXAttentionTensor &to,
                                           size_t dim, const float (&d)[kD / 2], float scale,
                                           int sequence, int key_head, int first, int length,
                                           int lane) {
  float fours[1][kD / 8][4];
#pragma unroll
  for (int i = 0; i < kD / 2; ++i) fours[0][i / 4][i % 4] = d[i];
  const float factors[1][2] = {{scale, scale}};
  store_rows<F16, true, kD>(to, head_offset(to, a.kv_side, sequence, key_head), fours, factors,
                            first, length, written(a.kv_side, length), 0, static_cast<int>(dim), 0,
                            lane);
}

// Rows of a warp of a product [64, D] to global memory, through 16 rows of shared memory.
template <class T, int kKeys, int kD>
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
  // Rows past a sequence are zero in dense tensors and not touched in ragged ones.
  const int end = written(a.kv_side, length);
  typename T::Bits *out = row_of<T>(to, a.kv_side, sequence, key_head, 0);
#pragma unroll
  for (int at = 0; at < 16 * kUnits; at += 32) {
    const int r = (at + lane) / kUnits, unit = (at + lane) % kUnits;
    uint4 value = *reinterpret_cast<const uint4 *>(panels + unit / 8 * (kKeys * 128) + r * 128 +
                                                   ((unit % 8 ^ (r & 7)) << 4));
    if (first + r >= length) value = make_uint4(0, 0, 0, 0);
    if (first + r < end && unit * 8 < dim) {
      *reinterpret_cast<uint4 *>(out + (first + r) * to.row + unit * 8) = value;
    }
  }
}

// A thread's gradients to the sum of those of all parts, in fours that are `step` floats apart.
template <int kN>
__device__ __forceinline__ void add_part(const float (&d)[kN], float *to, int step) {
#pragma unroll
  for (int j = 0; j < kN / 4; ++j) {
    add_global(to + j * step, d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
  }
}
template <int kN>
__device__ __forceinline__ void get_part(float (&d)[kN], const float *from, int step) {
#pragma unroll
  for (int j = 0; j < kN / 4; ++j) {
    const float4 v = __ldcg(reinterpret_cast<const float4 *>(from + j * step));
    d[4 * j] = v.x, d[4 * j + 1] = v.y, d[4 * j + 2] = v.z, d[4 * j + 3] = v.w;
  }
}
// After the additions: whether this was the last part, so that the sum is whole; every consumer.
// `flag`: four bytes of shared memory.
__device__ __forceinline__ bool is_last_part(const Problem &a, int shared, void *flag) {
  __threadfence();
  int *before = static_cast<int *>(flag);
  sync_threads(kConsumerBarrier, 128 * kConsumers);
  if (threadIdx.x == 128) *before = atomicAdd(a.shared_turns + shared, 1);
  sync_threads(kConsumerBarrier, 128 * kConsumers);
  if (*before != a.parts - 1) return false;
  __threadfence();
  return true;
}

// A warp's part of dq to its sum over the blocks of keys, in their order if it matters.
template <class Work, int kN>
__device__ __forceinline__ void add_query_gradient(const Problem &a, const Work &work,
                                                   const float (&dq)[kN], float *to, int *turn,
                                                   int m0, int lane) {
  const int mine = a.deterministic ? work.turn(a, m0) : 0;
  if (a.deterministic) {
    if (lane == 0) {
      while (load_acquire(turn) != mine) __nanosleep(20);
    }
    __syncwarp();
  }
#pragma unroll
  for (int j = 0; j < kN / 4; ++j) {
    add_global(to + (j * 32 + lane) * 4, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
  }
  if (a.deterministic) {
    __threadfence();
    __syncwarp();
    if (lane == 0) store_release(turn, mine + 1);
  }
}

// Where the rows of a block are in tensor maps, and their loads.
struct Source {
  int row, sequence;

  __device__ __forceinline__ Source(const NVTEXAttentionSide &side, int i)
      : row(static_cast<int>(start(side, i))), sequence(side.starts != nullptr ? 0 : i) {}
  // Rows from `first` on of a head, 128 bytes of each in a panel of `panel` bytes. Panels that a
  // head does not have are not loaded: boxes that start outside a tensor may fault.
  __device__ __forceinline__ void load(unsigned char *to, const CUtensorMap *map, uint64_t *barrier,
                                       int panels, int panel, int head, int first) const {
    for (int p = 0; p < panels; ++p) {
      const int at[4] = {p * 64, row + first, head, sequence};
      load_box<4>(to + p * panel, map, barrier, at);
    }
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// D = sum do o of each row and its statistics in units of log2, +inf for rows that contribute
// nothing. A block of threads: a block of queries of a head.
// kFp8: o has a dtype of its own, and both have factors.
template <class T, int kDqk, int kDv, int kM, bool kFp8>
__global__ void __launch_bounds__(kHelperThreads) rows_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wait_for_stream();
  let_next_start();
  constexpr int kLanes = kDv / 8, kAtOnce = kHelperThreads / kLanes;
  static_assert(kM % kAtOnce == 0, "whole rounds");
  const int index = static_cast<int>(blockIdx.x);
  const int block = index % a.query_blocks, rest = index / a.query_blocks;
  const int head = rest % a.heads, sequence = rest / a.heads;
  if (a.shared_blocks > 0) {
    const int64_t thread = int64_t{index} * kHelperThreads + threadIdx.x;
    const int64_t step = int64_t{gridDim.x} * kHelperThreads;
    float4 *sum = reinterpret_cast<float4 *>(a.shared_sum);
    for (int64_t i = thread; i < a.shared_blocks * (a.shared_floats / 4); i += step) {
      sum[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (thread < a.shared_blocks) a.shared_turns[thread] = 0;
  }
  const int lq = length(a.q_side, sequence), m0 = block * kM;
  if (m0 >= lq) return;
  const int64_t at = int64_t{head} * a.head_blocks + a.first_block<kM>(sequence) + block;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;

  const typename T::Bits *d_o = row_of<T>(a.d_o, a.q_side, sequence, head, m0);
  const StatsRows stats_rows(a.q_side, sequence, head);
  const float slope = a.alibi ? alibi_slope(head, static_cast<unsigned>(a.heads)) * kLog2e : 0.0f;
  // FP8: of D, and what p and ds are multiplied by before they are rounded; see gradient_kernel.
  [[maybe_unused]] float factor = 1.0f, log_p_scale = 0.0f;
  float scale_d = a.scale_d;
  if constexpr (kFp8) {
    const float p_scale = factor_of(a.s.scale) * a.mask.scale;
    factor = factor_of(a.d_o.scale_inv) * (is_fp8(a.o.dtype) ? factor_of(a.o.scale_inv) : 1.0f);
    log_p_scale = log2f(p_scale);
    scale_d *= factor_of(a.dp.scale) / p_scale;
  }
  float part = 0.0f;
  std::conditional_t<kFp8, Vec<F32, 8>, Vec<T, 8>> x[kM / kAtOnce];
  Vec<T, 8> y[kM / kAtOnce];
  const auto inside = [&](int r) { return m0 + r < lq && lane * 8 < a.dim_v; };
  if constexpr (kFp8) {
    with_dtype(a.o.dtype, [&](auto tag) {
      using O = decltype(tag);
      const typename O::Bits *o = row_of<O>(a.o, a.q_side, sequence, head, m0);
#pragma unroll
      for (int i = 0; i < kM / kAtOnce; ++i) {
        const int r = i * kAtOnce + thread / kLanes;
        float f[8];
        to_float(load<O, 8>(o, static_cast<size_t>(r * a.o.row + lane * 8), inside(r)), f);
        x[i] = from_float<F32, 8>(f);
      }
    });
  }
#pragma unroll
  for (int i = 0; i < kM / kAtOnce; ++i) {
    const int r = i * kAtOnce + thread / kLanes;
    if constexpr (!kFp8) {
      const typename T::Bits *o = row_of<T>(a.o, a.q_side, sequence, head, m0);
      x[i] = load<T, 8>(o, static_cast<size_t>(r * a.o.row + lane * 8), inside(r));
    }
    y[i] = load<T, 8>(d_o, static_cast<size_t>(r * a.d_o.row + lane * 8), inside(r));
  }
  float4 *sum = reinterpret_cast<float4 *>(a.dq_sum + at * (kM * kDqk));
#pragma unroll
  for (int i = 0; i < kM * kDqk / 4 / kHelperThreads; ++i) {
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
    if constexpr (kFp8) d *= factor;
    if (lane == 0) {
      const float stats = m0 + r < lq ? a.stats[stats_rows(m0 + r)] : -INFINITY;
      const bool used = stats != -INFINITY;
      // A lane of gradient_kernel has two neighbours of 8 rows and two of the next 8.
      const int place = r / 16 * 16 + r % 8 / 2 * 4 + r / 8 % 2 * 2 + r % 2;
      // With ALiBi what it subtracts, from the block's first row on.
      float statistic = fmaf(slope, static_cast<float>(r), stats * kLog2e);
      if constexpr (kFp8) statistic -= log_p_scale;
      a.rows[at * (2 * kM) + place] = used ? statistic : INFINITY;
      a.rows[at * (2 * kM) + kM + place] = used ? d * scale_d : 0.0f;
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

// What dbias sums over.
struct BiasSums {
  BiasGradient to = BiasGradient::kNone;
  bool batch = false, heads = false;
  size_t members = 0;   // Sequences times heads that it has.
  size_t gathered = 0;  // Bytes of ds of every score.

  explicit BiasSums(const NVTEXAttentionArgs &a) {
    if (a.dbias.data == nullptr) return;
    batch = a.dbias.batch == 0 && a.batch > 1;
    heads = a.dbias.head == 0 && a.q_side.heads > 1;
    members = (batch ? 1 : a.batch) * (heads ? 1 : a.q_side.heads);
    const size_t scores = a.q_side.max_seqlen * a.kv_side.max_seqlen;
    gathered = a.batch * a.q_side.heads * scores * 2;
    // Sums that many add to have no order and take longer than the bytes.
    const bool gathers = a.deterministic || gathered <= size_t{1} << 30 ||
                         gathered <= members * scores * sizeof(float);
    to = a.dbias.row == 0 && a.q_side.max_seqlen > 1 ? BiasGradient::kRows
         : !batch && !heads                          ? BiasGradient::kStored
         : gathers                                   ? BiasGradient::kGathered
                                                     : BiasGradient::kSummed;
  }
};

// How many blocks of keys are worked on whole, and by how many blocks of threads each of the
// others: those of a last round that would leave most of the device idle. Not where sums have an
// order, nor where the last blocks are the shortest ones anyway.
struct Shares {
  size_t whole, parts = 1;

  Shares(const NVTEXAttentionArgs &a, size_t queries, size_t keys) {
    const size_t blocks = a.kv_side.heads * a.batch * ceil_div(a.kv_side.max_seqlen, keys);
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

// What a block works on at a time.
struct BlockShape {
  size_t queries, keys, dim_qk, dim_v;
  // Of the gradients of its keys and values.
  size_t shared_floats() const { return keys * (dim_qk + dim_v); }
};

// Where things lie in the workspace.
struct Layout {
  size_t blocks, rows, sums, turns, parts, bytes, shared_blocks, shared_sum, shared_turns;
  size_t bias_sum, bias_bytes;  // Bytes that have to be cleared.
  Shares shares;

  Layout(const NVTEXAttentionArgs &a, const BlockShape &tile) : shares(a, tile.queries, tile.keys) {
    const size_t queries = tile.queries;
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
    sums = take(all * queries * tile.dim_qk * sizeof(float));
    turns = take(a.deterministic ? all * 4 * kConsumers * sizeof(int) : 0);
    parts = take(a.dsink != nullptr ? all * sizeof(float) : 0);
    shared_blocks =
        a.kv_side.heads * a.batch * ceil_div(a.kv_side.max_seqlen, tile.keys) - shares.whole;
    shared_sum = take(shared_blocks * tile.shared_floats() * sizeof(float));
    shared_turns = take(shared_blocks * sizeof(int));
    const BiasSums bias(a);
    const size_t keys = ceil_div(a.kv_side.max_seqlen, tile.keys) * tile.keys;
    bias_bytes =
        bias.to == BiasGradient::kRows ? a.batch * a.q_side.heads * keys * sizeof(float)
        : bias.to == BiasGradient::kSummed
            ? bias.members * ceil_div(a.q_side.max_seqlen, queries) * queries * keys * sizeof(float)
            : 0;
    bias_sum = take(bias.to == BiasGradient::kGathered ? bias.gathered : bias_bytes);
    bytes = end;
  }
};

// A map of [sequences, heads, rows, elements] with boxes of `rows` times 128 bytes.
inline NVTEXOutcome map_rows(CUtensorMap *map, const NVTEXAttentionTensor &x,
                             const NVTEXAttentionSide &side, size_t batch, size_t dim, int rows) {
  const bool ragged = side.starts != nullptr, fp8 = is_fp8(x.dtype);
  const unsigned bytes = fp8 ? 1 : 2;
  const uint64_t dims[4] = {dim, ragged ? side.tokens : side.max_seqlen, side.heads,
                            ragged ? 1 : batch};
  const int64_t strides[3] = {x.row, x.head, x.batch};
  uint64_t steps[3];
  for (int i = 0; i < 3; ++i) {
    steps[i] = dims[i + 1] == 1 ? 16 : static_cast<uint64_t>(strides[i]) * bytes;
  }
  const uint32_t box[4] = {128 / bytes, static_cast<uint32_t>(rows), 1, 1};
  return encode_map(map,
                    fp8                        ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                    : x.dtype == kNVTEBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                               : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                    4, x.data, dims, steps, box);
}

// The problem in tiles, in a workspace of this layout.
inline Problem problem_of(const NVTEXAttentionArgs &a, const BlockShape &tile,
                          const Layout &layout) {
  char *workspace = static_cast<char *>(a.workspace);
  Problem p(a);
  p.scale_v = p.mask.scale;
  p.scale_k = a.scale * p.mask.scale;
  p.keep_scale = 1.0f;
  p.scale_d = 1.0f / p.mask.scale;
  p.heads = static_cast<int>(a.q_side.heads);
  p.group = static_cast<int>(a.q_side.heads / a.kv_side.heads);
  p.turn = 0;
  p.head_blocks = static_cast<int>(layout.blocks);
  p.query_blocks = static_cast<int>(ceil_div(a.q_side.max_seqlen, tile.queries));
  p.key_blocks = static_cast<int>(ceil_div(a.kv_side.max_seqlen, tile.keys));
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
  p.shared_floats = static_cast<int64_t>(tile.shared_floats());
  p.shared_turns = reinterpret_cast<int *>(workspace + layout.shared_turns);
  p.slope_heads = 1;
  while (2 * p.slope_heads <= p.heads) p.slope_heads *= 2;
  p.slope_step = -4.0f / static_cast<float>(p.slope_heads);
  const BiasSums sums(a);
  p.bias_batch = a.bias.batch != 0;
  p.bias_heads = a.bias.head != 0;
  p.bias_rows = a.bias.row != 0;
  p.to_bias = sums.to;
  p.sum_batch = sums.batch;
  p.sum_heads = sums.heads;
  p.bias_sum = reinterpret_cast<float *>(workspace + layout.bias_sum);
  p.scores = a.dbias;
  if (sums.to == BiasGradient::kGathered) {
    p.scores.data = p.bias_sum;
    p.scores.row = static_cast<int64_t>(a.kv_side.max_seqlen);
    p.scores.head = p.scores.row * static_cast<int64_t>(a.q_side.max_seqlen);
    p.scores.batch = p.scores.head * p.heads;
  }
  const size_t units = a.kv_side.heads * a.batch;
  // Queries, do and dq of the heads that are worked on together stay in L2.
  const size_t each =
      a.q_side.max_seqlen * static_cast<size_t>(p.group) * (tile.dim_qk + tile.dim_v) * 4 + 1;
  const size_t team = (size_t{a.window_right >= 0 ? 32u : 16u} << 20) / each;
  p.team = static_cast<int>(team < 1 ? 1 : team < units ? team : units);
  return p;
}

// Why the kernels do not take these arguments, or null; `workspace`: bytes.
inline const char *tiles_reject(const NVTEXAttentionArgs &a, const BlockShape &tile,
                                size_t *workspace) {
  for (const NVTEXAttentionTensor *x : {&a.q, &a.k, &a.v, &a.o, &a.d_o, &a.dq, &a.dk, &a.dv}) {
    for (const int64_t stride : {x->batch, x->row, x->head}) {
      if (stride < 0 || stride >= int64_t{1} << 38) {
        return "a stride of 2^39 bytes or more; nearest: contiguous tensors";
      }
    }
  }
  if (a.page_table_k != nullptr || a.page_table_v != nullptr) {
    return "paged keys; nearest: keys without pages";
  }
  if (a.q_side.tokens > kMaxLength || a.kv_side.tokens > kMaxLength) return "over 2^29 tokens";
  const Layout layout(a, tile);
  if (layout.blocks * a.q_side.heads > kMaxBlocks ||
      a.batch * a.q_side.heads * ceil_div(a.q_side.max_seqlen, tile.queries) > kMaxBlocks ||
      a.batch * a.kv_side.heads * ceil_div(a.kv_side.max_seqlen, tile.keys) > kMaxBlocks) {
    return "2^31 blocks or more";
  }
  *workspace = layout.bytes;
  return nullptr;
}

// Why no backward for Hopper takes these arguments, or null.
inline const char *hopper_reject(const NVTEXAttentionArgs &a) {
  if (const char *reason = attention_unsupported(a)) return reason;
  Device device;
  if (current_device(&device) != cudaSuccess || device.arch != 90) {
    return "the device is not of compute capability 9.0";
  }
  return a.backward ? nullptr : "a forward pass";
}

// Heads of more than 128 elements: what a block works on, and the passes.
BlockShape long_shape(const NVTEXAttentionArgs &a);
NVTEXOutcome run_long(const NVTEXAttentionArgs &a, cudaStream_t stream);

// All passes. `more_maps` makes those that not every kernel has, `gradient` launches the main
// kernel with so many blocks, `convert` what rounds sums, with one block for each block of queries.
template <class T, int kDqk, int kDv, int kM, bool kFp8, class MoreMaps, class Gradient,
          class Convert>
NVTEXOutcome run_passes(Problem &p, const BlockShape &tile, const Layout &layout,
                        cudaStream_t stream, MoreMaps &&more_maps, Gradient &&gradient,
                        Convert &&convert) {
  if (p.workspace_bytes < layout.bytes) {
    return {NVTEX_BACKEND_DEVICE_ERROR, "the workspace is smaller than planned"};
  }
  const size_t row_blocks = p.batch * p.q_side.heads * static_cast<size_t>(p.query_blocks);
  const size_t key_blocks = p.batch * p.kv_side.heads * static_cast<size_t>(p.key_blocks);
  NVTEXOutcome o = ok();
  const auto next = [&](auto &&f) {
    if (o.status == NVTEX_BACKEND_OK) o = f();
  };
  const auto has_rows = [](const NVTEXAttentionSide &x) {
    return x.starts == nullptr || x.tokens > 0;
  };
  // Else there is nothing to load.
  if (row_blocks > 0 && key_blocks > 0 && has_rows(p.q_side) && has_rows(p.kv_side)) {
    const int keys = static_cast<int>(tile.keys);
    next([&] { return map_rows(&p.maps.q, p.q, p.q_side, p.batch, p.dim_qk, kM); });
    next([&] { return map_rows(&p.maps.d_o, p.d_o, p.q_side, p.batch, p.dim_v, kM); });
    next([&] { return map_rows(&p.maps.k, p.k, p.kv_side, p.batch, p.dim_qk, keys); });
    next([&] { return map_rows(&p.maps.v, p.v, p.kv_side, p.batch, p.dim_v, keys); });
    next(more_maps);
  }
  if (layout.bias_bytes > 0) {
    next([&] { return outcome(cudaMemsetAsync(p.bias_sum, 0, layout.bias_bytes, stream)); });
  }
  if (row_blocks > 0) {
    next([&] {
      return launch_shared(rows_kernel<T, kDqk, kDv, kM, kFp8>,
                           dim3(static_cast<unsigned>(row_blocks)), kHelperThreads, 0, stream, p);
    });
  }
  if (p.dsink != nullptr) {
    next([&] {
      return launch_shared(sink_kernel<kM>, dim3(static_cast<unsigned>(p.q_side.heads)),
                           kHelperThreads, 0, stream, p);
    });
  }
  if (key_blocks > 0) {
    const size_t blocks = layout.shares.whole + layout.shared_blocks * layout.shares.parts;
    next([&] { return gradient(static_cast<unsigned>(blocks)); });
  }
  if (row_blocks > 0) next([&] { return convert(static_cast<unsigned>(row_blocks)); });
  return o;
}

}  // namespace sm90_backward
}  // namespace nvte
