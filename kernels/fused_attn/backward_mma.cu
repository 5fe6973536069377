// Backward of attention for what forward_mma.cu takes. Nothing is added in an order that varies, so
// that results are deterministic always:
//   prepare_kernel   of each row its statistic in units of log2 and D, into the workspace;
//   keys_kernel      dk and dv of a block of keys, over the rows and the heads that share the keys;
//   rows_kernel      dq of a block of rows, over the keys, with the scores once more;
//   dbias_kernel     dbias of a block of scores, over what is summed, with the scores once more;
//   dsink_kernel     dsink of a head.
// FP8 as in the forward.
//
// Instances of keys_kernel and rows_kernel: {F16, BF16} x {64, 96, 128, 192, 256} and, with extra
// terms, x {64, 128, 256}; FP8 x {128, 256}: 18 each. Of dbias_kernel: {F16, BF16} x {64, 128,
// 256}. On compute capability 9.0, backward_sm90.cu takes 16-bit tensors without extra terms, but
// for the rarest strides and sizes. The ten instances for these are empty there, and those with
// extra terms stand in for them, whose results are the same.

#include "backward.cuh"
#include "common/limits.cuh"
#include "instances_mma.cuh"

namespace nvte {
namespace {

using Problem = BackwardProblem;

// Whether an instance exists for the architecture that is compiled.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
template <bool kFp8, bool kExtras>
constexpr bool kExists = kFp8 || kExtras;
#else
template <bool kFp8, bool kExtras>
constexpr bool kExists = true;
#endif

// ---- Gradients of scores

// What a block knows about its head. It is in shared memory, because the products need the
// registers.
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
  // For rows that do not exist there are no data either.
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

// Blocks of a multiprocessor for kernels that need few registers. On other GPUs a third block would
// leave them too few.
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
  static_assert(kShared <= kSharedAnywhere, "shared memory of a block");
};

template <class T, int kD, bool kFp8, bool kExtras>
__device__ __forceinline__ void key_gradients(const Problem &p) {
  using S = KeysShape<kD>;
  constexpr int kMt = S::kMt, kQ = S::kQ, kBytes = kFp8 ? 1 : 2;
  constexpr int kNt = kD / 8 / S::kParts;  // Tiles of the results, 8 columns each.
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
    load_tile<kD, kQ, S::kThreads, kFp8>(to, query_rows(kBytes, a, a.q, i, j), r, rows, dim_qk,
                                         thread);
    load_tile<kD, kQ, S::kThreads, kFp8>(to + S::kTile, query_rows(kBytes, a, a.d_o, i, j), r, rows,
                                         dim_v, thread);
    if (thread < kQ) {
      const bool inside = r + thread < rows;
      cp_async_8(to + 2 * S::kTile + thread * sizeof(RowData),
                 p.row_data + (inside ? StatsRows(a.q_side, i, j)(r + thread) : 0), inside);
    }
    cp_async_commit_group();
  };

  float dk[kMt][kNt][4] = {}, dv[kMt][kNt][4] = {};
  float most = 0.0f;
  if (steps > 0) {
    load_tile<kD, S::kKeys, S::kThreads, kFp8>(k_tile, k_rows(kBytes, a, i, key_head), k0, keys,
                                               dim_qk, thread);
    load_tile<kD, S::kKeys, S::kThreads, kFp8>(v_tile, v_rows(kBytes, a, i, key_head), k0, keys,
                                               dim_v, thread);
    load_rows(0);
  }
  for (int step = 0; step < steps; ++step) {
    cp_async_wait_group<0>();
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
  cp_async_wait_group<0>();
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

template <class T, int kD, bool kFp8, bool kExtras>
__global__ void __launch_bounds__(KeysShape<kD>::kThreads,
                                  kD == 64 && !kExtras ? kSmallBlocks : 8 / KeysShape<kD>::kWarps)
    keys_kernel(const __grid_constant__ Problem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if constexpr (kExists<kFp8, kExtras>) key_gradients<T, kD, kFp8, kExtras>(p);
}

// ---- dq

// Like Head: what a block knows about the keys that it reads and the rows that it writes.
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
  static_assert(kShared <= kSharedAnywhere, "shared memory of a block");
};

template <class T, int kD, bool kFp8, bool kExtras>
__device__ __forceinline__ void row_gradients(const Problem &p) {
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
    new (source_bytes) KeySources{k_rows(kBytes, a, i, key_head),
                                  v_rows(kBytes, a, i, key_head),
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
    cp_async_commit_group();
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
    load_tile<kD, S::kM, S::kThreads, kFp8>(q_tile, query_rows(kBytes, a, a.q, i, j), r0, rows,
                                            dim_qk, thread);
    load_tile<kD, S::kM, S::kThreads, kFp8>(do_tile, query_rows(kBytes, a, a.d_o, i, j), r0, rows,
                                            dim_v, thread);
    load_keys(first);
  }
  for (int t = first; t < source.last; ++t) {
    cp_async_wait_group<0>();
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

template <class T, int kD, bool kFp8, bool kExtras>
__global__ void __launch_bounds__(RowsShape<kD>::kThreads, kD < 128 && !kExtras ? kSmallBlocks : 2)
    rows_kernel(const __grid_constant__ Problem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if constexpr (kExists<kFp8, kExtras>) row_gradients<T, kD, kFp8, kExtras>(p);
}

// ---- dbias

constexpr int kDbiasRows = 64, kDbiasColumns = 32;
using MmaDbias = DbiasShape<kDbiasRows, kDbiasColumns>;

template <class T, int kD>
constexpr uint32_t kDbiasShared = (2 * kDbiasRows + 2 * kDbiasColumns) * kD * 2;

template <class T, int kD>
__global__ void __launch_bounds__(MmaDbias::kThreads, 2)
    dbias_kernel(const __grid_constant__ Problem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr int kThreads = MmaDbias::kThreads, kM = kDbiasRows, kN = kDbiasColumns;
  constexpr int kNt = kN / 8, kRow = kD * 2;
  extern __shared__ __align__(128) char shared[];
  const NVTEXAttentionArgs &a = p.a;
  const unsigned group =
      static_cast<unsigned>(a.q_side.heads) / static_cast<unsigned>(a.kv_side.heads);
  DbiasBlock<kM, kN> block(p);

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const uint32_t q_tile = shared_address(shared), do_tile = q_tile + kM * kRow;
  const uint32_t k_tile = do_tile + kM * kRow, v_tile = k_tile + kN * kRow;
  const uint32_t my_rows = warp * 16 * kRow;
  const int dim_qk = static_cast<int>(a.dim_qk), dim_v = static_cast<int>(a.dim_v);
  __shared__ __align__(16) char head_bytes[sizeof(Head<T, true>)];
  const auto &head = *reinterpret_cast<Head<T, true> *>(head_bytes);

  float sum[kNt][4] = {};
  const size_t terms = block.terms(a);
  for (size_t n = terms * block.split / p.splits; n < terms * (block.split + 1) / p.splits; ++n) {
    block.go_to(p, n);
    const unsigned i = block.i, j = block.j;
    const int r0 = block.r0, c0 = block.c0;
    const int rows = length(a.q_side, i), keys = length(a.kv_side, i);
    const Band band(a, rows, keys);
    const int r1 = min(r0 + kM, rows);
    if (r0 >= r1 || c0 >= band.end(r1 - 1) || c0 + kN <= band.begin(r0)) continue;
    __syncthreads();
    if (thread == 0) {
      new (head_bytes) Head<T, true>(Head<T, true>::template of<false>(p, i, j));
    }
    load_tile<kD, kM, kThreads, false>(q_tile, query_rows(2, a, a.q, i, j), r0, rows, dim_qk,
                                       thread);
    load_tile<kD, kM, kThreads, false>(do_tile, query_rows(2, a, a.d_o, i, j), r0, rows, dim_v,
                                       thread);
    load_tile<kD, kN, kThreads, false>(k_tile, k_rows(2, a, i, j / group), c0, keys, dim_qk,
                                       thread);
    load_tile<kD, kN, kThreads, false>(v_tile, v_rows(2, a, i, j / group), c0, keys, dim_v, thread);
    cp_async_commit_group();
    const int w0 = r0 + warp * 16;
    RowData row_data[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = w0 + h * 8 + lane / 4;
      row_data[h] = {INFINITY, 0.0f};
      if (r < rows) row_data[h] = p.row_data[StatsRows(a.q_side, i, j)(r)];
    }
    cp_async_wait_group<0>();
    __syncthreads();
    float z[1][kNt][4] = {}, ds[1][kNt][4] = {};
    multiply_rows<T, kD>(z, q_tile + my_rows, k_tile, lane);
    multiply_rows<T, kD>(ds, do_tile + my_rows, v_tile, lane);
    const auto data = [&](int, int, int e) { return row_data[e / 2]; };
    gradients<false, false>(head, a.dropout != 0.0f, w0, w0 + 16, c0, c0 + kN, lane, data, z, ds);
#pragma unroll
    for (int t = 0; t < kNt; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[t][e] += ds[0][t][e];
    }
  }

  if (!block.over_rows) {
#pragma unroll
    for (int t = 0; t < kNt; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = block.r0 + warp * 16 + e / 2 * 8 + lane / 4;
        block.write(p, r, block.c0 + t * 8 + lane % 4 * 2 + e % 2, sum[t][e]);
      }
    }
    return;
  }
  __shared__ float columns[kThreads / 32][kN];
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
  if (thread >= kN) return;
  float column = 0.0f;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) column += columns[w][thread];
  block.write(p, 0, block.c0 + thread, column);
}

// ---- Launchers

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
  return run_dbias<MmaDbias>(dbias_kernel<T, kD>, kDbiasShared<T, kD>, p, stream);
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
  // Blocks have at least 32 rows of a head, those of dbias 32 columns and 64 rows.
  const size_t length =
      a.q_side.max_seqlen > a.kv_side.max_seqlen ? a.q_side.max_seqlen : a.kv_side.max_seqlen;
  const size_t blocks = ceil_div(length, 32) * a.q_side.heads;
  if (blocks != 0 && a.batch > kMaxBlocks / blocks) return "more than 2^31 blocks";
  if (a.dbias.data != nullptr && MmaDbias(a).blocks(a) > kMaxBlocks / 512) {
    return "more than 2^31 blocks of the bias' gradient";
  }
  *workspace = BackwardWorkspace<MmaDbias>(a).bytes;
  return nullptr;
}

NVTEXOutcome nvte_attention_mma_backward(const NVTEXAttentionArgs *args,
                                         cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXAttentionArgs &a = *args;
  if (a.batch == 0 || a.q_side.heads == 0) return ok();
  Problem p = backward_problem<MmaDbias>(a);
  const bool fp8 = is_fp8(a.q.dtype);
  NVTEXOutcome done = dispatch_mma_extras(a, [&](auto instance) {
    using I = decltype(instance);
    return prepare<typename I::T, I::kFp8, true>(p, stream);
  });
  if (done.status != NVTEX_BACKEND_OK) return done;
  if (a.dbias.data != nullptr) {
    done = dispatch_mma_extras(a, [&](auto instance) {
      using I = decltype(instance);
      return run_dbias<typename I::T, I::kD>(p, stream);
    });
    if (done.status != NVTEX_BACKEND_OK) return done;
  }
  if (fp8) {
    for (float *amax : {a.dp.amax, a.dq.amax, a.dk.amax, a.dv.amax}) {
      if (const cudaError_t error = clear_amax(amax, stream)) return outcome(error);
    }
  }
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  return dispatch_mma(a, has_extras(a) || device.arch == 90, [&](auto instance) {
    using I = decltype(instance);
    return run<typename I::T, I::kD, I::kFp8, I::kExtras>(p, stream);
  });
}
