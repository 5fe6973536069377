// Backward of attention for everything that the arguments can say. Nothing is added in an order
// that varies, so that it is deterministic always:
//   prepare_kernel   of each row its statistic in units of log2 and D, into the workspace;
//   keys_kernel      dk and dv of a block of keys, over the rows and the heads that share the keys;
//   rows_kernel      dq of a block of rows, over the keys, with the scores once more;
//   dbias_kernel     dbias of a block of scores, over what is summed, with the scores once more;
//   dsink_kernel     dsink of a head.
// FP8 as in the forward.
//
// Instances of keys_kernel and rows_kernel: {F16, BF16} x {64, 96, 128, 192, 256} and, with extra
// terms, x {64, 128, 256}; FP8 x {128, 256}: 18 each. Of dbias_kernel: {F16, BF16} x {64, 128,
// 256}.

#include "common/attention.cuh"
#include "common/vec.cuh"

namespace nvte {
namespace {

// Of a row: the statistic in units of log2, infinite if there is none, so that 2^(x - it) is 0.
struct RowData {
  float stats, d;
};

struct Problem {
  NVTEXAttentionArgs a;
  Dropout dropout;
  unsigned blocks;  // Of a head.
  RowData *row_data;
  float *partials;     // Of dbias.
  size_t dbias_count;  // Elements.
  unsigned splits;     // Partial sums of an element of dbias; 1: there are none.
};

// ---- Rows

template <class T, bool kFp8>
__device__ __forceinline__ void load8(const NVTEXAttentionTensor &t, int64_t at, float (&f)[8]) {
  if constexpr (kFp8) {
    if (t.dtype == kNVTEFloat8E4M3) return to_float(load<E4M3, 8>(t.data, at, true), f);
    if (t.dtype == kNVTEFloat8E5M2) return to_float(load<E5M2, 8>(t.data, at, true), f);
    if (t.dtype == kNVTEBFloat16) return to_float(load<BF16, 8>(t.data, at, true), f);
  }
  to_float(load<T, 8>(t.data, at, true), f);
}

constexpr int kPrepareThreads = 256;

// Eight threads per row of a head.
template <class T, bool kFp8>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const __grid_constant__ Problem p) {
  wait_for_stream();
  let_next_start();
  const NVTEXAttentionArgs &a = p.a;
  const size_t index = (size_t{blockIdx.x} * kPrepareThreads + threadIdx.x) / 8;
  const size_t row = index / a.q_side.heads;
  const unsigned j = static_cast<unsigned>(index % a.q_side.heads);
  const size_t sequence = row / a.q_side.max_seqlen;
  const int r = static_cast<int>(row % a.q_side.max_seqlen);
  const bool exists = sequence < a.batch;
  const unsigned i = exists ? static_cast<unsigned>(sequence) : 0;
  const int rows = length(a.q_side, i);
  float sum = 0.0f;
  if (exists && r < rows) {
    const int64_t o = head_offset(a.o, a.q_side, i, j) + r * a.o.row;
    const int64_t d_o = head_offset(a.d_o, a.q_side, i, j) + r * a.d_o.row;
    for (int at = threadIdx.x % 8 * 8; at < static_cast<int>(a.dim_v); at += 64) {
      float x[8], y[8];
      load8<T, kFp8>(a.o, o + at, x);
      load8<T, kFp8>(a.d_o, d_o + at, y);
#pragma unroll
      for (int n = 0; n < 8; ++n) sum = fmaf(x[n], y[n], sum);
    }
  }
#pragma unroll
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (!exists || threadIdx.x % 8 != 0 || r >= written(a.q_side, rows)) return;
  const size_t at = StatsRows(a.q_side, i, j)(r);
  RowData data = {INFINITY, 0.0f};
  if (r < rows) {
    const float stats = a.stats[at];
    if (stats != -INFINITY) data.stats = stats * kLog2e;
    data.d = sum;
    if constexpr (kFp8) {
      data.d *= factor_of(a.d_o.scale_inv);
      if (is_fp8(a.o.dtype)) data.d *= factor_of(a.o.scale_inv);
    }
  }
  p.row_data[at] = data;
}

constexpr int kSinkThreads = 1024;

__global__ void __launch_bounds__(kSinkThreads) dsink_kernel(const __grid_constant__ Problem p) {
  wait_for_stream();
  let_next_start();
  const NVTEXAttentionArgs &a = p.a;
  const unsigned j = blockIdx.x;
  const float sink = a.sink[j] * kLog2e;
  float sum = 0.0f;
  for (unsigned i = 0; i < a.batch; ++i) {
    const StatsRows at(a.q_side, i, j);
    const int rows = length(a.q_side, i);
    for (int r = static_cast<int>(threadIdx.x); r < rows; r += kSinkThreads) {
      const RowData data = p.row_data[at(r)];
      if (data.stats != INFINITY) sum = fmaf(power2(sink - data.stats), data.d, sum);
    }
  }
  __shared__ float sums[kSinkThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = sums[threadIdx.x];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x == 0) a.dsink[j] = -sum;
}

// ---- Gradients of scores

// What a block knows about its head. In shared memory: the products need the registers.
template <class T, bool kExtras>
struct Head {
  Band band;
  Scores<T, kExtras> scores;
  HeadDropout dropout;
  int rows;
  float drop_scale;
  // FP8: of the products of gradients and values, of p and of ds before they are rounded.
  float dp_factor, p_scale, ds_factor, ds_scale;

  template <bool kFp8>
  static __device__ __forceinline__ float scale_of(const NVTEXAttentionArgs &a) {
    float scale = a.scale * kLog2e;
    if constexpr (kFp8) scale *= factor_of(a.q.scale_inv) * factor_of(a.k.scale_inv);
    return scale;
  }
  template <bool kFp8>
  static __device__ __forceinline__ Head of(const Problem &p, unsigned i, unsigned j) {
    const NVTEXAttentionArgs &a = p.a;
    const int rows = length(a.q_side, i);
    Head head = {Band(a, rows, length(a.kv_side, i)),
                 Scores<T, kExtras>(a, scale_of<kFp8>(a), i, j),
                 p.dropout.of_head(a, i, j),
                 rows,
                 a.dropout != 0.0f ? p.dropout.scale : 1.0f,
                 1.0f,
                 1.0f,
                 1.0f,
                 1.0f};
    if constexpr (kFp8) {
      head.dp_factor = factor_of(a.d_o.scale_inv) * factor_of(a.v.scale_inv);
      head.p_scale = factor_of(a.s.scale);
      head.ds_factor = a.scale;
      head.ds_scale = factor_of(a.dp.scale);
    }
    return head;
  }
};

// Products of queries and keys become z, products of gradients and values ds, for rows from r0 and
// columns from c0 on. kTransposed: the products' rows are columns here. `data(mt, n, e)` is an
// element's row's. Returns the largest magnitude of FP8's ds before its scale.
template <bool kTransposed, bool kFp8, class T, bool kExtras, int kMt, int kNt, class Data>
__device__ __forceinline__ float gradients(const Head<T, kExtras> &head, bool drops, int r0, int r1,
                                           int c0, int c1, int lane, Data data,
                                           float (&s)[kMt][kNt][4], float (&g)[kMt][kNt][4]) {
  float most = 0.0f;
  // Rows that do not exist have no data either.
  const bool whole = r1 <= head.rows && head.band.admits(r0, r1, c0, c1);
#pragma unroll
  for (int mt = 0; mt < kMt; ++mt) {
    uint32_t kept = 0xffffffff;
    if (kExtras && drops) {
      kept = KeptScores<kTransposed, kNt / 2>(head.dropout)(
          static_cast<uint32_t>(r0 + (kTransposed ? 0 : mt * 16)),
          static_cast<uint32_t>(c0 + (kTransposed ? mt * 16 : 0)));
    }
#pragma unroll
    for (int n = 0; n < kNt; ++n) {
      const int r = r0 + (kTransposed ? n * 8 : mt * 16);
      const int c = c0 + (kTransposed ? mt * 16 : n * 8);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int across = lane % 4 * 2 + e % 2, down = lane / 4 + e / 2 * 8;
        const int row = r + (kTransposed ? across : down);
        const int column = c + (kTransposed ? down : across);
        const RowData of_row = data(mt, n, e);
        float &z = s[mt][n][e], &ds = g[mt][n][e];
        const float x = head.scores(z, row, column, row < head.rows && column < head.band.keys);
        z = power2(x - of_row.stats);
        if constexpr (kFp8) ds *= head.dp_factor;
        if constexpr (kExtras) {
          const float weight = is_kept(kept, n / 2, n % 2, e) ? head.drop_scale : 0.0f;
          ds = z * ((weight != 0.0f ? ds * weight : 0.0f) - of_row.d);
          z *= weight;
        } else {
          ds = z * (ds - of_row.d);
        }
        if (!whole) {
          const bool admitted =
              row < head.rows && column >= head.band.begin(row) && column < head.band.end(row);
          if (!admitted) z = ds = 0.0f;
        }
        if constexpr (kFp8) {
          z *= head.p_scale;
          ds *= head.ds_factor;
          most = fmaxf(most, fabsf(ds));
          ds *= head.ds_scale;
        }
      }
    }
  }
  return most;
}

// Blocks of a multiprocessor where registers are few. Elsewhere a third would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr int kSmallBlocks = 3;
#else
constexpr int kSmallBlocks = 2;
#endif

// ---- dk and dv

// Small blocks, two or three of them on a multiprocessor: 148 TFLOP/s against 137 with twice the
// warps (H200, bf16, 8192 causal rows of 128).
template <int kD>
struct KeysShape {
  static constexpr int kWarps = kD <= 128 ? 4 : 8, kThreads = kWarps * 32, kMt = 1;
  // Warps that share 16 keys; each has a part of the columns of the results.
  static constexpr int kParts = kD > 128 ? 2 : 1;
  static constexpr int kKeys = kWarps / kParts * kMt * 16;
  static constexpr int kQ = kD == 256 ? 16 : 32;
  static constexpr int kRow = kD * 2;
  static constexpr uint32_t kTile = kQ * kRow;
  static constexpr uint32_t kStage = 2 * kTile + kQ * sizeof(RowData);
  static constexpr uint32_t kShared = 2 * kKeys * kRow + 2 * kStage;
};

template <class T, int kD, bool kFp8, bool kExtras>
__global__ void __launch_bounds__(KeysShape<kD>::kThreads,
                                  kD == 64 && !kExtras ? kSmallBlocks : 8 / KeysShape<kD>::kWarps)
    keys_kernel(const __grid_constant__ Problem p) {
  wait_for_stream();
  let_next_start();
  using S = KeysShape<kD>;
  constexpr int kMt = S::kMt, kQ = S::kQ, kBytes = kFp8 ? 1 : 2;
  constexpr int kNt = kD / 8 / S::kParts;  // Of the results.
  extern __shared__ __align__(128) char shared[];
  const NVTEXAttentionArgs &a = p.a;

  const int k0 = static_cast<int>(blockIdx.x % p.blocks) * S::kKeys;
  const unsigned key_heads = static_cast<unsigned>(a.kv_side.heads);
  const unsigned group = static_cast<unsigned>(a.q_side.heads) / key_heads;
  const unsigned key_head = blockIdx.x / p.blocks % key_heads,
                 i = blockIdx.x / p.blocks / key_heads;
  const int rows = length(a.q_side, i), keys = length(a.kv_side, i);
  const int end = written(a.kv_side, keys);
  if (k0 >= end) return;

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int part = warp % S::kParts;
  const int m0 = k0 + warp / S::kParts * kMt * 16;
  const Band band(a, rows, keys);
  const int k1 = min(k0 + S::kKeys, keys);
  const int first = band.first_row(k0) / kQ;
  const int tiles = k0 < k1 ? max((band.last_row(k1, rows) + kQ - 1) / kQ - first, 0) : 0;
  const int steps = tiles * static_cast<int>(group);

  const uint32_t k_tile = shared_address(shared), v_tile = k_tile + S::kKeys * S::kRow;
  const uint32_t stages = v_tile + S::kKeys * S::kRow;
  const uint32_t my_keys = warp / S::kParts * kMt * 16 * S::kRow;
  const int dim_qk = static_cast<int>(a.dim_qk), dim_v = static_cast<int>(a.dim_v);
  const bool drops = kExtras && a.dropout != 0.0f;
  __shared__ __align__(16) char head_bytes[sizeof(Head<T, kExtras>)];
  const auto &head = *reinterpret_cast<Head<T, kExtras> *>(head_bytes);

  const auto load_rows = [&](int step) {
    const unsigned j = key_head * group + step / tiles;
    const int r = (first + step % tiles) * kQ;
    const uint32_t to = stages + step % 2 * S::kStage;
    load_tile<kD, kQ, S::kThreads, kFp8>(to, query_rows<kBytes>(a, a.q, i, j), r, rows, dim_qk,
                                         thread);
    load_tile<kD, kQ, S::kThreads, kFp8>(to + S::kTile, query_rows<kBytes>(a, a.d_o, i, j), r, rows,
                                         dim_v, thread);
    if (thread < kQ) {
      const bool inside = r + thread < rows;
      copy_async8(to + 2 * S::kTile + thread * sizeof(RowData),
                  p.row_data + (inside ? StatsRows(a.q_side, i, j)(r + thread) : 0), inside);
    }
    end_group();
  };

  float dk[kMt][kNt][4] = {}, dv[kMt][kNt][4] = {};
  float most = 0.0f;
  if (steps > 0) {
    load_tile<kD, S::kKeys, S::kThreads, kFp8>(k_tile, k_rows<kBytes>(a, i, key_head), k0, keys,
                                               dim_qk, thread);
    load_tile<kD, S::kKeys, S::kThreads, kFp8>(v_tile, v_rows<kBytes>(a, i, key_head), k0, keys,
                                               dim_v, thread);
    load_rows(0);
  }
  for (int step = 0; step < steps; ++step) {
    wait_groups<0>();
    __syncthreads();
    if (step % tiles == 0) {
      if (thread == 0) {
        new (head_bytes) Head<T, kExtras>(
            Head<T, kExtras>::template of<kFp8>(p, i, key_head * group + step / tiles));
      }
      __syncthreads();
    }
    if (step + 1 < steps) load_rows(step + 1);
    const int r0 = (first + step % tiles) * kQ, r1 = min(r0 + kQ, head.rows);
    if (m0 >= head.band.keys || r1 <= head.band.first_row(m0) ||
        r0 >= head.band.last_row(m0 + kMt * 16, head.rows)) {
      continue;
    }
    const uint32_t q_tile = stages + step % 2 * S::kStage, do_tile = q_tile + S::kTile;
    const auto *row_data = reinterpret_cast<const RowData *>(shared + 2 * S::kKeys * S::kRow +
                                                             step % 2 * S::kStage + 2 * S::kTile);
    float z[kMt][kQ / 8][4] = {}, ds[kMt][kQ / 8][4] = {};
    multiply_rows<T, kD>(z, k_tile + my_keys, q_tile, lane);
    multiply_rows<T, kD>(ds, v_tile + my_keys, do_tile, lane);
    const auto data = [&](int, int n, int e) { return row_data[n * 8 + lane % 4 * 2 + e % 2]; };
    most = fmaxf(most, gradients<true, kFp8>(head, drops, r0, r0 + kQ, m0, m0 + kMt * 16, lane,
                                             data, z, ds));
    uint32_t left[kMt][kQ / 16][4];
    to_operand<T, kFp8>(z, a.q.dtype == kNVTEFloat8E5M2, left);
    multiply_columns<T, kD>(dv, left, do_tile, part * kNt, lane);
    to_operand<T, kFp8>(ds, a.d_o.dtype == kNVTEFloat8E5M2, left);
    multiply_columns<T, kD>(dk, left, q_tile, part * kNt, lane);
  }
  wait_groups<0>();
  __syncthreads();
  float k_factor = a.scale, v_factor = 1.0f;
  if constexpr (kFp8) {
    raise_amax(a.dp.amax, most);
    k_factor = factor_of(a.dp.scale_inv) * factor_of(a.q.scale_inv);
    v_factor = factor_of(a.s.scale_inv) * factor_of(a.d_o.scale_inv);
  }
  float k_factors[kMt][2], v_factors[kMt][2];
#pragma unroll
  for (int mt = 0; mt < kMt; ++mt) {
    k_factors[mt][0] = k_factors[mt][1] = k_factor;
    v_factors[mt][0] = v_factors[mt][1] = v_factor;
  }
  store_rows<T, kFp8, kD>(a.dk, head_offset(a.dk, a.kv_side, i, key_head), dk, k_factors, m0, keys,
                          end, part * kNt, dim_qk, k_tile + my_keys, lane);
  store_rows<T, kFp8, kD>(a.dv, head_offset(a.dv, a.kv_side, i, key_head), dv, v_factors, m0, keys,
                          end, part * kNt, dim_v, v_tile + my_keys, lane);
}

// ---- dq

// As Head, of the keys that a block reads and the rows that it writes.
struct KeySources {
  Rows k, v;
  int64_t dq;
  int keys, end, last;
};

template <int kD>
struct RowsShape {
  static constexpr int kWarps = 4, kThreads = kWarps * 32, kMt = 1;
  static constexpr int kM = kWarps * kMt * 16;
  static constexpr int kN = kD == 256 ? 16 : 32;
  static constexpr int kRow = kD * 2;
  static constexpr uint32_t kTile = kN * kRow;
  static constexpr uint32_t kShared = 2 * kM * kRow + 4 * kTile;
};

template <class T, int kD, bool kFp8, bool kExtras>
__global__ void __launch_bounds__(RowsShape<kD>::kThreads, kD < 128 && !kExtras ? kSmallBlocks : 2)
    rows_kernel(const __grid_constant__ Problem p) {
  wait_for_stream();
  let_next_start();
  using S = RowsShape<kD>;
  constexpr int kMt = S::kMt, kN = S::kN, kBytes = kFp8 ? 1 : 2;
  extern __shared__ __align__(128) char shared[];
  const NVTEXAttentionArgs &a = p.a;

  const int r0 = static_cast<int>(p.blocks - 1 - blockIdx.x % p.blocks) * S::kM;
  const unsigned heads = static_cast<unsigned>(a.q_side.heads);
  const unsigned j = blockIdx.x / p.blocks % heads, i = blockIdx.x / p.blocks / heads;
  const unsigned key_head = j / (heads / static_cast<unsigned>(a.kv_side.heads));
  const int rows = length(a.q_side, i), keys = length(a.kv_side, i);
  const int end = written(a.q_side, rows);
  if (r0 >= end) return;

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int w0 = r0 + warp * kMt * 16, w1 = min(w0 + kMt * 16, rows);
  const int r1 = min(r0 + S::kM, rows);
  const Band band(a, rows, keys);
  const int first = r0 < r1 ? band.begin(r0) / kN : 0;
  const int last = r0 < r1 ? (band.end(r1 - 1) + kN - 1) / kN : 0;

  const uint32_t q_tile = shared_address(shared), do_tile = q_tile + S::kM * S::kRow;
  const uint32_t stages = do_tile + S::kM * S::kRow;
  const uint32_t my_rows = warp * kMt * 16 * S::kRow;
  const int dim_qk = static_cast<int>(a.dim_qk), dim_v = static_cast<int>(a.dim_v);
  const bool drops = kExtras && a.dropout != 0.0f;
  __shared__ __align__(16) char head_bytes[sizeof(Head<T, kExtras>)];
  const auto &head = *reinterpret_cast<Head<T, kExtras> *>(head_bytes);
  __shared__ __align__(16) char source_bytes[sizeof(KeySources)];
  const auto &source = *reinterpret_cast<const KeySources *>(source_bytes);
  if (thread == 0) {
    new (head_bytes) Head<T, kExtras>(Head<T, kExtras>::template of<kFp8>(p, i, j));
    new (source_bytes) KeySources{k_rows<kBytes>(a, i, key_head),
                                  v_rows<kBytes>(a, i, key_head),
                                  head_offset(a.dq, a.q_side, i, j),
                                  keys,
                                  end,
                                  last};
  }
  __syncthreads();

  const auto load_keys = [&](int t) {
    const uint32_t to = stages + (t - first) % 2 * 2 * S::kTile;
    load_tile<kD, kN, S::kThreads, kFp8>(to, source.k, t * kN, source.keys, dim_qk, thread);
    load_tile<kD, kN, S::kThreads, kFp8>(to + S::kTile, source.v, t * kN, source.keys, dim_v,
                                         thread);
    end_group();
  };

  float dq[kMt][kD / 8][4] = {};
  RowData row_data[kMt][2];
#pragma unroll
  for (int mt = 0; mt < kMt; ++mt) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = w0 + mt * 16 + h * 8 + lane / 4;
      row_data[mt][h] = {INFINITY, 0.0f};
      if (r < rows) row_data[mt][h] = p.row_data[StatsRows(a.q_side, i, j)(r)];
    }
  }
  if (first < last) {
    load_tile<kD, S::kM, S::kThreads, kFp8>(q_tile, query_rows<kBytes>(a, a.q, i, j), r0, rows,
                                            dim_qk, thread);
    load_tile<kD, S::kM, S::kThreads, kFp8>(do_tile, query_rows<kBytes>(a, a.d_o, i, j), r0, rows,
                                            dim_v, thread);
    load_keys(first);
  }
  for (int t = first; t < source.last; ++t) {
    wait_groups<0>();
    __syncthreads();
    if (t + 1 < source.last) load_keys(t + 1);
    const int c0 = t * kN;
    if (w0 >= w1 || c0 >= head.band.end(w1 - 1) || c0 + kN <= head.band.begin(w0)) continue;
    const uint32_t k_tile = stages + (t - first) % 2 * 2 * S::kTile, v_tile = k_tile + S::kTile;
    float z[kMt][kN / 8][4] = {}, ds[kMt][kN / 8][4] = {};
    multiply_rows<T, kD>(z, q_tile + my_rows, k_tile, lane);
    multiply_rows<T, kD>(ds, do_tile + my_rows, v_tile, lane);
    const auto data = [&](int mt, int, int e) { return row_data[mt][e / 2]; };
    gradients<false, kFp8>(head, drops, w0, w0 + kMt * 16, c0, c0 + kN, lane, data, z, ds);
    uint32_t left[kMt][kN / 16][4];
    to_operand<T, kFp8>(ds, a.d_o.dtype == kNVTEFloat8E5M2, left);
    multiply_columns<T, kD>(dq, left, k_tile, 0, lane);
  }
  float factor = a.scale;
  if constexpr (kFp8) factor = factor_of(a.dp.scale_inv) * factor_of(a.k.scale_inv);
  float factors[kMt][2];
#pragma unroll
  for (int mt = 0; mt < kMt; ++mt) factors[mt][0] = factors[mt][1] = factor;
  store_rows<T, kFp8, kD>(a.dq, source.dq, dq, factors, w0, head.rows, source.end, 0, dim_qk,
                          q_tile + my_rows, lane);
}

// ---- dbias

// Which dimensions of the scores dbias sums over, and its blocks.
struct DbiasShape {
  static constexpr int kThreads = 128, kM = 64, kN = 32;
  bool over_batch, over_heads, over_rows;
  size_t row_tiles, column_tiles, count;  // Elements.

  __host__ __device__ explicit DbiasShape(const NVTEXAttentionArgs &a)
      : over_batch(a.dbias.batch == 0),
        over_heads(a.dbias.head == 0),
        over_rows(a.dbias.row == 0),
        row_tiles((a.q_side.max_seqlen + kM - 1) / kM),
        column_tiles((a.kv_side.max_seqlen + kN - 1) / kN),
        count((over_batch ? 1 : a.batch) * (over_heads ? 1 : a.q_side.heads) *
              (over_rows ? 1 : a.q_side.max_seqlen) * a.kv_side.max_seqlen) {}
  // Blocks that write different elements, and what each sums.
  __host__ __device__ size_t blocks(const NVTEXAttentionArgs &a) const {
    return column_tiles * (over_rows ? 1 : row_tiles) * (over_heads ? 1 : a.q_side.heads) *
           (over_batch ? 1 : a.batch);
  }
  __host__ __device__ size_t terms(const NVTEXAttentionArgs &a) const {
    return (over_rows ? row_tiles : 1) * (over_heads ? a.q_side.heads : 1) *
           (over_batch ? a.batch : 1);
  }
};

template <class T, int kD>
constexpr uint32_t kDbiasShared = (2 * DbiasShape::kM + 2 * DbiasShape::kN) * kD * 2;

template <class T, int kD>
__global__ void __launch_bounds__(DbiasShape::kThreads, 2)
    dbias_kernel(const __grid_constant__ Problem p) {
  wait_for_stream();
  let_next_start();
  using S = DbiasShape;
  constexpr int kNt = S::kN / 8, kRow = kD * 2;
  extern __shared__ __align__(128) char shared[];
  const NVTEXAttentionArgs &a = p.a;
  const S shape(a);
  const unsigned heads = static_cast<unsigned>(a.q_side.heads);
  const unsigned group = heads / static_cast<unsigned>(a.kv_side.heads);

  size_t block = blockIdx.x;
  const unsigned split = static_cast<unsigned>(block % p.splits);
  block /= p.splits;
  const int c0 = static_cast<int>(block % shape.column_tiles) * S::kN;
  block /= shape.column_tiles;
  int r0 = 0;
  if (!shape.over_rows) {
    r0 = static_cast<int>(block % shape.row_tiles) * S::kM;
    block /= shape.row_tiles;
  }
  unsigned j = 0, i = 0;
  if (!shape.over_heads) j = static_cast<unsigned>(block % heads), block /= heads;
  if (!shape.over_batch) i = static_cast<unsigned>(block);
  const int64_t offset = i * a.dbias.batch + j * a.dbias.head;

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const uint32_t q_tile = shared_address(shared), do_tile = q_tile + S::kM * kRow;
  const uint32_t k_tile = do_tile + S::kM * kRow, v_tile = k_tile + S::kN * kRow;
  const uint32_t my_rows = warp * 16 * kRow;
  const int dim_qk = static_cast<int>(a.dim_qk), dim_v = static_cast<int>(a.dim_v);
  __shared__ __align__(16) char head_bytes[sizeof(Head<T, true>)];
  const auto &head = *reinterpret_cast<Head<T, true> *>(head_bytes);

  float sum[kNt][4] = {};
  const size_t terms = shape.terms(a);
  for (size_t n = terms * split / p.splits; n < terms * (split + 1) / p.splits; ++n) {
    size_t term = n;
    if (shape.over_rows) {
      r0 = static_cast<int>(term % shape.row_tiles) * S::kM;
      term /= shape.row_tiles;
    }
    if (shape.over_heads) j = static_cast<unsigned>(term % heads), term /= heads;
    if (shape.over_batch) i = static_cast<unsigned>(term);
    const int rows = length(a.q_side, i), keys = length(a.kv_side, i);
    const Band band(a, rows, keys);
    const int r1 = min(r0 + S::kM, rows);
    if (r0 >= r1 || c0 >= band.end(r1 - 1) || c0 + S::kN <= band.begin(r0)) continue;
    __syncthreads();
    if (thread == 0) {
      new (head_bytes) Head<T, true>(Head<T, true>::template of<false>(p, i, j));
    }
    load_tile<kD, S::kM, S::kThreads, false>(q_tile, query_rows<2>(a, a.q, i, j), r0, rows, dim_qk,
                                             thread);
    load_tile<kD, S::kM, S::kThreads, false>(do_tile, query_rows<2>(a, a.d_o, i, j), r0, rows,
                                             dim_v, thread);
    load_tile<kD, S::kN, S::kThreads, false>(k_tile, k_rows<2>(a, i, j / group), c0, keys, dim_qk,
                                             thread);
    load_tile<kD, S::kN, S::kThreads, false>(v_tile, v_rows<2>(a, i, j / group), c0, keys, dim_v,
                                             thread);
    end_group();
    const int w0 = r0 + warp * 16;
    RowData row_data[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = w0 + h * 8 + lane / 4;
      row_data[h] = {INFINITY, 0.0f};
      if (r < rows) row_data[h] = p.row_data[StatsRows(a.q_side, i, j)(r)];
    }
    wait_groups<0>();
    __syncthreads();
    float z[1][kNt][4] = {}, ds[1][kNt][4] = {};
    multiply_rows<T, kD>(z, q_tile + my_rows, k_tile, lane);
    multiply_rows<T, kD>(ds, do_tile + my_rows, v_tile, lane);
    const auto data = [&](int, int, int e) { return row_data[e / 2]; };
    gradients<false, false>(head, a.dropout != 0.0f, w0, w0 + 16, c0, c0 + S::kN, lane, data, z,
                            ds);
#pragma unroll
    for (int t = 0; t < kNt; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[t][e] += ds[0][t][e];
    }
  }

  const auto write = [&](int r, int c, float value) {
    if (c >= static_cast<int>(a.kv_side.max_seqlen)) return;
    const int64_t at = offset + r * a.dbias.row + c;
    if (p.splits > 1) {
      p.partials[split * p.dbias_count + at] = value;
    } else {
      static_cast<uint16_t *>(a.dbias.data)[at] =
          static_cast<uint16_t>(T::from_float({value, 0.0f}));
    }
  };
  if (!shape.over_rows) {
#pragma unroll
    for (int t = 0; t < kNt; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = r0 + warp * 16 + e / 2 * 8 + lane / 4;
        if (r < static_cast<int>(a.q_side.max_seqlen)) {
          write(r, c0 + t * 8 + lane % 4 * 2 + e % 2, sum[t][e]);
        }
      }
    }
    return;
  }
  __shared__ float columns[S::kThreads / 32][S::kN];
#pragma unroll
  for (int t = 0; t < kNt; ++t) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float column = sum[t][e] + sum[t][e + 2];
#pragma unroll
      for (int step = 16; step >= 4; step /= 2)
        column += __shfl_xor_sync(0xffffffffu, column, step);
      if (lane < 4) columns[warp][t * 8 + lane * 2 + e] = column;
    }
  }
  __syncthreads();
  if (thread >= S::kN) return;
  float column = 0.0f;
#pragma unroll
  for (int w = 0; w < S::kThreads / 32; ++w) column += columns[w][thread];
  write(0, c0 + thread, column);
}

constexpr int kSumThreads = 256;

template <class T>
__global__ void __launch_bounds__(kSumThreads) dbias_sum_kernel(const __grid_constant__ Problem p) {
  wait_for_stream();
  let_next_start();
  const size_t at = size_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (at >= p.dbias_count) return;
  float sum = 0.0f;
  for (unsigned split = 0; split < p.splits; ++split) {
    sum += p.partials[split * p.dbias_count + at];
  }
  static_cast<uint16_t *>(p.a.dbias.data)[at] = static_cast<uint16_t>(T::from_float({sum, 0.0f}));
}

// ---- Launchers

// The workspace: the rows' data, then partial sums of dbias.
struct Workspace {
  size_t row_data_bytes, bytes;
  unsigned splits = 1;

  explicit Workspace(const NVTEXAttentionArgs &a)
      : row_data_bytes(ceil_div(stats_count(a) * sizeof(RowData), 256) * 256),
        bytes(row_data_bytes) {
    if (a.dbias.data == nullptr) return;
    const DbiasShape shape(a);
    const size_t blocks = shape.blocks(a), terms = shape.terms(a);
    // Enough blocks for a large GPU, of at least two terms each. The same on every GPU, and so the
    // sums' order.
    constexpr size_t kEnough = 512;
    if (blocks == 0 || blocks >= kEnough || terms < 4) return;
    const size_t wanted = kEnough / blocks, most = terms / 2;
    splits = static_cast<unsigned>(wanted < most ? wanted : most);
    if (splits > 1) bytes += splits * shape.count * sizeof(float);
  }
};

template <class T, int kD, bool kFp8, bool kExtras>
NVTEXOutcome run(Problem &p, cudaStream_t stream) {
  const NVTEXAttentionArgs &a = p.a;
  using Keys = KeysShape<kD>;
  p.blocks = static_cast<unsigned>(ceil_div(a.kv_side.max_seqlen, Keys::kKeys));
  if (p.blocks != 0) {
    const dim3 grid(static_cast<unsigned>(p.blocks * a.kv_side.heads * a.batch));
    const NVTEXOutcome outcome = launch_shared(keys_kernel<T, kD, kFp8, kExtras>, grid,
                                               Keys::kThreads, Keys::kShared, stream, p);
    if (outcome.status != NVTEX_BACKEND_OK) return outcome;
  }
  using Rows = RowsShape<kD>;
  p.blocks = static_cast<unsigned>(ceil_div(a.q_side.max_seqlen, Rows::kM));
  if (p.blocks == 0) return ok();
  const dim3 grid(static_cast<unsigned>(p.blocks * a.q_side.heads * a.batch));
  return launch_shared(rows_kernel<T, kD, kFp8, kExtras>, grid, Rows::kThreads, Rows::kShared,
                       stream, p);
}

template <class T, int kD>
NVTEXOutcome run_dbias(const Problem &p, cudaStream_t stream) {
  const size_t blocks = DbiasShape(p.a).blocks(p.a) * p.splits;
  if (blocks == 0) return ok();
  const NVTEXOutcome outcome =
      launch_shared(dbias_kernel<T, kD>, dim3(static_cast<unsigned>(blocks)), DbiasShape::kThreads,
                    kDbiasShared<T, kD>, stream, p);
  if (outcome.status != NVTEX_BACKEND_OK || p.splits == 1) return outcome;
  const dim3 grid(static_cast<unsigned>(ceil_div(p.dbias_count, kSumThreads)));
  return launch(dbias_sum_kernel<T>, grid, kSumThreads, stream, p);
}

template <class T>
NVTEXOutcome run_16bit(Problem &p, cudaStream_t stream) {
  const NVTEXAttentionArgs &a = p.a;
  const size_t dim = a.dim_qk > a.dim_v ? a.dim_qk : a.dim_v;
  if (a.dbias.data != nullptr) {
    const NVTEXOutcome outcome = dim <= 64    ? run_dbias<T, 64>(p, stream)
                                 : dim <= 128 ? run_dbias<T, 128>(p, stream)
                                              : run_dbias<T, 256>(p, stream);
    if (outcome.status != NVTEX_BACKEND_OK) return outcome;
  }
  if (has_extras(a)) {
    if (dim <= 64) return run<T, 64, false, true>(p, stream);
    if (dim <= 128) return run<T, 128, false, true>(p, stream);
    return run<T, 256, false, true>(p, stream);
  }
  if (dim <= 64) return run<T, 64, false, false>(p, stream);
  if (dim <= 96) return run<T, 96, false, false>(p, stream);
  if (dim <= 128) return run<T, 128, false, false>(p, stream);
  if (dim <= 192) return run<T, 192, false, false>(p, stream);
  return run<T, 256, false, false>(p, stream);
}

template <class T, bool kFp8>
NVTEXOutcome prepare(const Problem &p, cudaStream_t stream) {
  const NVTEXAttentionArgs &a = p.a;
  const size_t rows = a.batch * a.q_side.max_seqlen * a.q_side.heads;
  if (rows != 0) {
    const dim3 grid(static_cast<unsigned>(ceil_div(rows, kPrepareThreads / 8)));
    const NVTEXOutcome outcome = launch(prepare_kernel<T, kFp8>, grid, kPrepareThreads, stream, p);
    if (outcome.status != NVTEX_BACKEND_OK) return outcome;
  }
  if (a.dsink == nullptr) return ok();
  return launch(dsink_kernel, dim3(static_cast<unsigned>(a.q_side.heads)), kSinkThreads, stream, p);
}

}  // namespace
}  // namespace nvte

const char *nvte_attention_mma_backward_reject(const NVTEXAttentionArgs *args,
                                               size_t *workspace) noexcept {
  using namespace nvte;
  const NVTEXAttentionArgs &a = *args;
  *workspace = 0;
  if (!a.backward) return "backward only";
  if (const char *reason = attention_unsupported(a)) return reason;
  if (a.page_table_k != nullptr || a.page_table_v != nullptr) return "paged keys and values";
  // Of 32 rows of the heads, and of 32 columns and 64 rows of dbias.
  const size_t length =
      a.q_side.max_seqlen > a.kv_side.max_seqlen ? a.q_side.max_seqlen : a.kv_side.max_seqlen;
  const size_t blocks = ceil_div(length, 32) * a.q_side.heads;
  if (blocks != 0 && a.batch > kMaxBlocks / blocks) return "more than 2^31 blocks";
  if (a.dbias.data != nullptr && DbiasShape(a).blocks(a) > kMaxBlocks / 512) {
    return "more than 2^31 blocks of the bias' gradient";
  }
  *workspace = Workspace(a).bytes;
  return nullptr;
}

NVTEXOutcome nvte_attention_mma_backward(const NVTEXAttentionArgs *args,
                                         cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXAttentionArgs &a = *args;
  if (a.batch == 0 || a.q_side.heads == 0) return ok();
  const Workspace workspace(a);
  auto *data = static_cast<char *>(a.workspace);
  Problem p = {a,
               Dropout(a),
               0,
               reinterpret_cast<RowData *>(data),
               reinterpret_cast<float *>(data + workspace.row_data_bytes),
               a.dbias.data != nullptr ? DbiasShape(a).count : 0,
               workspace.splits};
  const bool fp8 = is_fp8(a.q.dtype), half = a.q.dtype == kNVTEFloat16;
  const NVTEXOutcome outcome = fp8    ? prepare<F16, true>(p, stream)
                               : half ? prepare<F16, false>(p, stream)
                                      : prepare<BF16, false>(p, stream);
  if (outcome.status != NVTEX_BACKEND_OK) return outcome;
  if (!fp8) return half ? run_16bit<F16>(p, stream) : run_16bit<BF16>(p, stream);
  for (float *amax : {a.dp.amax, a.dq.amax, a.dk.amax, a.dv.amax}) {
    if (const cudaError_t error = clear_amax(amax, stream)) return nvte::outcome(error);
  }
  return a.dim_qk <= 128 && a.dim_v <= 128 ? run<F16, 128, true, true>(p, stream)
                                           : run<F16, 256, true, true>(p, stream);
}
