// Forward of attention for a few queries per sequence, bound by reading the keys and values.
//
// The rows of the query heads that share a key head are packed into tiles of 16. The keys of a tile
// are split among blocks and inside a block among warps, each of which copies its own keys and
// values ahead without waiting for another; partial results are merged at the end.
//
// Instances: {F16, BF16} x {64, 128, 256}: 6.

#include "common/limits.cuh"
#include "rows.cuh"

namespace nvte {
namespace {

constexpr int kTile = 16;  // Packed rows, and keys of a step.
constexpr size_t kMaxSplits = 128;
// Keys of a part, at least: two tiles for each warp.
constexpr size_t kLeastKeys = 128;

struct Problem {
  NVTEXAttentionArgs a;
  unsigned group, row_tiles, splits;
  // Partial results of packed rows, `[splits, rows]`: maxima and sums, and unscaled outputs.
  float2 *sums;
  float *outputs;
  size_t rows;
};

template <int kD>
struct Shape {
  static constexpr int kWarps = kD == 256 ? 2 : 4, kThreads = kWarps * 32;
  static constexpr int kStages = 3;
  static constexpr uint32_t kKeys = kTile * kD * 2;  // Bytes of a tile of keys.
  static constexpr uint32_t kRing = kStages * 2 * kKeys;
  static constexpr uint32_t kShared = kWarps * kRing;
  static_assert(kShared <= kSharedAnywhere, "shared memory of a block");
};

// Packed row m of a key head.
struct PackedRow {
  int r;
  unsigned j;
  __device__ __forceinline__ PackedRow(const Problem &p, unsigned key_head, int m)
      : r(m / static_cast<int>(p.group)), j(key_head * p.group + m % p.group) {}
};

__device__ __forceinline__ void write_stats(const NVTEXAttentionArgs &a, unsigned i,
                                            const PackedRow &row, float stats, float most) {
  const size_t at = StatsRows(a.q_side, i, row.j)(row.r);
  if (a.stats != nullptr) a.stats[at] = stats;
  if (a.max != nullptr) a.max[at] = most * kLn2;
}

template <class T>
__device__ __forceinline__ void write_output(const NVTEXAttentionArgs &a, unsigned i,
                                             const PackedRow &row, int column, float4 x,
                                             float factor) {
  const int64_t at = head_offset(a.o, a.q_side, i, row.j) + row.r * a.o.row + column;
  *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(a.o.data) + at) = make_uint2(
      T::from_float({x.x * factor, x.y * factor}), T::from_float({x.z * factor, x.w * factor}));
}

template <class T, int kD>
__global__ void __launch_bounds__(Shape<kD>::kThreads, 2)
    decode_kernel(const __grid_constant__ Problem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  using S = Shape<kD>;
  extern __shared__ __align__(128) char shared[];
  const NVTEXAttentionArgs &a = p.a;

  // Neighbouring blocks read neighbouring heads.
  unsigned block = blockIdx.x;
  const unsigned key_head = block % a.kv_side.heads;
  block /= static_cast<unsigned>(a.kv_side.heads);
  const unsigned row_tile = block % p.row_tiles;
  block /= p.row_tiles;
  const unsigned split = block % p.splits, i = block / p.splits;
  const int m0 = static_cast<int>(row_tile) * kTile;

  const int rows = length(a.q_side, i), keys = length(a.kv_side, i);
  const Band band(a, rows, keys);
  const int group = static_cast<int>(p.group);
  const int r0 = m0 / group, r1 = min((m0 + kTile - 1) / group + 1, rows);
  int first = 0, last = 0;
  if (r0 < r1) {
    const int from = band.begin(r0) / kTile;
    const int tiles = max((band.end(r1 - 1) + kTile - 1) / kTile - from, 0);
    const int part = (tiles + static_cast<int>(p.splits) - 1) / static_cast<int>(p.splits);
    first = from + min(part * static_cast<int>(split), tiles);
    last = min(first + part, from + tiles);
  }

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int dim_qk = static_cast<int>(a.dim_qk), dim_v = static_cast<int>(a.dim_v);
  const uint32_t ring = shared_address(shared) + warp * S::kRing;
  // The sources are in shared memory, because the largest heads need all registers.
  __shared__ __align__(16) char sources[2 * sizeof(Rows)];
  const auto *source = reinterpret_cast<const Rows *>(sources);
  if (thread == 0) {
    new (sources) Rows(k_rows(2, a, i, key_head));
    new (sources + sizeof(Rows)) Rows(v_rows(2, a, i, key_head));
  }
  __syncthreads();
  const float unit = a.scale * kLog2e;
  // How far a score may pass its row's reference before that follows.
  const float slack = a.max != nullptr ? 0.0f : 8.0f / unit;

  const auto load_keys = [&](int step) {
    const int t = first + warp + step * S::kWarps;
    if (t < last) {
      const uint32_t to = ring + step % S::kStages * 2 * S::kKeys;
      load_tile<kD, kTile, 32, false>(to, source[0], t * kTile, keys, dim_qk, lane);
      load_tile<kD, kTile, 32, false>(to + S::kKeys, source[1], t * kTile, keys, dim_v, lane);
    }
    cp_async_commit_group();
  };
#pragma unroll
  for (int step = 0; step < S::kStages - 1; ++step) load_keys(step);

  uint32_t q[kD / 16][4];
  int from[2], to[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const PackedRow row(p, key_head, m0 + h * 8 + lane / 4);
    from[h] = band.begin(row.r), to[h] = row.r < rows ? band.end(row.r) : 0;
    const auto *data = static_cast<const uint16_t *>(a.q.data) +
                       head_offset(a.q, a.q_side, i, row.j) + row.r * a.q.row;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      q[n / 2][n % 2 * 2 + h] =
          row.r < rows && column < dim_qk ? *reinterpret_cast<const uint32_t *>(data + column) : 0;
    }
  }

  float o[1][kD / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  for (int step = 0; first + warp + step * S::kWarps < last; ++step) {
    cp_async_wait_group<S::kStages - 2>();
    __syncwarp();
    load_keys(step + S::kStages - 1);
    const int c0 = (first + warp + step * S::kWarps) * kTile;
    const uint32_t k_tile = ring + step % S::kStages * 2 * S::kKeys, v_tile = k_tile + S::kKeys;

    float s[1][2][4] = {};
    {
      const int row = lane % 8 + lane / 16 * 8;
      int chunk = Tile<kD>::permutation(row) ^ (lane / 8 & 1);
      forget(chunk);
#pragma unroll
      for (int n = 0; n < kD / 16; ++n) {
        uint32_t right[4];
        ldmatrix_x4(k_tile + row * Tile<kD>::kRow + ((chunk ^ 2 * n) << 4), right);
        multiply<T>(s[0][0], q[n], right[0], right[1]);
        multiply<T>(s[0][1], q[n], right[2], right[3]);
      }
    }
    if (!band.admits(r0, r1, c0, c0 + kTile)) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int c = c0 + n * 8 + lane % 4 * 2 + e % 2;
          if (c < from[e / 2] || c >= to[e / 2]) s[0][n][e] = -INFINITY;
        }
      }
    }
    float most[2];
    bool grows = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float x = fmaxf(fmaxf(s[0][0][2 * h], s[0][0][2 * h + 1]),
                      fmaxf(s[0][1][2 * h], s[0][1][2 * h + 1]));
      x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
      x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
      most[h] = x;
      grows |= x > m[h] + slack;
    }
    if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float next = fmaxf(m[h], most[h]);
        const float shrink = next == -INFINITY ? 1.0f : power2((m[h] - next) * unit);
        m[h] = next;
        l[h] *= shrink;
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
          o[0][n][2 * h] *= shrink;
          o[0][n][2 * h + 1] *= shrink;
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float base = m[h] == -INFINITY ? 0.0f : m[h] * unit;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float &x = s[0][n][2 * h + e];
          l[h] += x = power2(fmaf(x, unit, -base));
        }
      }
    }
    uint32_t weights[1][1][4];
    to_operand<T, false>(s, false, weights);
    multiply_columns<T, kD>(o, weights, v_tile, 0, lane);
  }

  // The warps' results overwrite their keys in shared memory.
  __shared__ float2 sums[S::kWarps][kTile];
  cp_async_wait_group<0>();
  __syncwarp();
  auto *outputs = reinterpret_cast<float *>(shared);
  constexpr int kStride = S::kRing / sizeof(float);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    l[h] += __shfl_xor_sync(0xffffffffu, l[h], 1);
    l[h] += __shfl_xor_sync(0xffffffffu, l[h], 2);
    const int row = h * 8 + lane / 4;
    if (lane % 4 == 0) sums[warp][row] = make_float2(m[h] * unit, l[h]);
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      *reinterpret_cast<float2 *>(outputs + warp * kStride + row * kD + n * 8 + lane % 4 * 2) =
          make_float2(o[0][n][2 * h], o[0][n][2 * h + 1]);
    }
  }
  __syncthreads();
  const int end = written(a.q_side, rows);
  for (int index = thread; index < kTile * kD / 4; index += S::kThreads) {
    const int m_row = index / (kD / 4), column = index % (kD / 4) * 4;
    const PackedRow row(p, key_head, m0 + m_row);
    if (row.r >= end || column >= dim_v) continue;
    float most_m = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      if (row.r < rows) most_m = fmaxf(most_m, sums[w][m_row].x);
    }
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      const float2 part = sums[w][m_row];
      if (part.y == 0.0f || row.r >= rows) continue;
      const float weight = power2(part.x - most_m);
      const float4 y =
          *reinterpret_cast<const float4 *>(outputs + w * kStride + m_row * kD + column);
      sum = fmaf(part.y, weight, sum);
      x.x = fmaf(y.x, weight, x.x), x.y = fmaf(y.y, weight, x.y);
      x.z = fmaf(y.z, weight, x.z), x.w = fmaf(y.w, weight, x.w);
    }
    if (p.splits == 1) {
      const RowResult result(most_m, sum, a.sink, row.j);
      if (column == 0) write_stats(a, i, row, result.stats, most_m);
      write_output<T>(a, i, row, column, x, result.factor);
    } else {
      const size_t at = split * p.rows +
                        ((i * a.kv_side.heads + key_head) * p.row_tiles + row_tile) * kTile + m_row;
      if (column == 0) p.sums[at] = make_float2(most_m, sum);
      *reinterpret_cast<float4 *>(p.outputs + at * dim_v + column) = x;
    }
  }
}

constexpr int kMergeThreads = 128, kMergeWarps = kMergeThreads / 32;
static_assert(kMergeThreads == kMaxSplits, "a thread has the sums of a part");

// A block for each packed row. Its warps add up parts in turn.
template <class T>
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ Problem p) {
  __shared__ float weights[kMaxSplits], maxima[kMergeWarps], parts[kMergeWarps];
  __shared__ float4 outputs[kMergeWarps][32];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const NVTEXAttentionArgs &a = p.a;
  const size_t index = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const size_t packed = size_t{p.row_tiles} * kTile, head = index / packed;
  const unsigned key_head = static_cast<unsigned>(head % a.kv_side.heads);
  const unsigned i = static_cast<unsigned>(head / a.kv_side.heads);
  const PackedRow row(p, key_head, static_cast<int>(index % packed));
  if (row.r >= written(a.q_side, length(a.q_side, i))) return;

  float2 part = make_float2(-INFINITY, 0.0f);
  if (threadIdx.x < p.splits) part = p.sums[threadIdx.x * p.rows + index];
  float m = part.x;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, step));
  if (lane == 0) maxima[warp] = m;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w) m = fmaxf(m, maxima[w]);
  const float weight = part.y == 0.0f ? 0.0f : power2(part.x - m);
  weights[threadIdx.x] = weight;
  float l = part.y * weight;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) l += __shfl_xor_sync(0xffffffffu, l, step);
  if (lane == 0) parts[warp] = l;
  __syncthreads();
  l = 0.0f;
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w) l += parts[w];
  const RowResult result(m, l, a.sink, row.j);
  if (threadIdx.x == 0) write_stats(a, i, row, result.stats, m);
  const int dim = static_cast<int>(a.dim_v);
  for (int first = 0; first < dim; first += 128) {
    const int column = first + lane * 4;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (unsigned s = warp; s < p.splits; s += kMergeWarps) {
      if (column >= dim) continue;
      const float4 y =
          *reinterpret_cast<const float4 *>(p.outputs + (s * p.rows + index) * a.dim_v + column);
      const float factor = weights[s];
      x.x = fmaf(y.x, factor, x.x), x.y = fmaf(y.y, factor, x.y);
      x.z = fmaf(y.z, factor, x.z), x.w = fmaf(y.w, factor, x.w);
    }
    outputs[warp][lane] = x;
    __syncthreads();
    if (warp == 0 && column < dim) {
#pragma unroll
      for (int w = 1; w < kMergeWarps; ++w) {
        const float4 y = outputs[w][lane];
        x = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
      }
      write_output<T>(a, i, row, column, x, result.factor);
    }
    __syncthreads();
  }
}

Problem make_problem(const NVTEXAttentionArgs &a, size_t *workspace) {
  Problem p = {};
  p.a = a;
  p.group = static_cast<unsigned>(a.q_side.heads / a.kv_side.heads);
  p.row_tiles = static_cast<unsigned>(ceil_div(p.group * a.q_side.max_seqlen, kTile));
  const size_t blocks = a.batch * a.kv_side.heads * p.row_tiles;
  p.rows = blocks * kTile;
  p.splits = 1;
  Device device;
  if (blocks != 0 && current_device(&device) == cudaSuccess) {
    // Takes as few parts as fill the last round of two blocks of a multiprocessor well.
    const size_t slots = static_cast<size_t>(device.sm_count) * 2;
    const size_t parts = a.kv_side.max_seqlen / kLeastKeys;
    const size_t most = parts < 1 ? 1 : parts < kMaxSplits ? parts : kMaxSplits;
    size_t best = 0;  // Used slots out of a thousand.
    for (size_t splits = 1; splits <= most && best < 900; ++splits) {
      const size_t used = blocks * splits * 1000 / (ceil_div(blocks * splits, slots) * slots);
      if (used > best) best = used, p.splits = static_cast<unsigned>(splits);
    }
  }
  *workspace = 0;
  if (p.splits > 1) {
    p.sums = static_cast<float2 *>(a.workspace);
    const size_t sums = p.splits * p.rows * sizeof(float2);
    p.outputs = reinterpret_cast<float *>(static_cast<char *>(a.workspace) + sums);
    *workspace = sums + p.splits * p.rows * a.dim_v * sizeof(float);
  }
  return p;
}

template <class T, int kD>
NVTEXOutcome run(const Problem &p, cudaStream_t stream) {
  using S = Shape<kD>;
  const dim3 grid(static_cast<unsigned>(p.rows / kTile * p.splits));
  const NVTEXOutcome outcome =
      launch_shared(decode_kernel<T, kD>, grid, S::kThreads, S::kShared, stream, p);
  if (outcome.status != NVTEX_BACKEND_OK || p.splits == 1) return outcome;
  return launch(merge_kernel<T>, dim3(static_cast<unsigned>(p.rows)), kMergeThreads, stream, p);
}

template <class T>
NVTEXOutcome run(const Problem &p, cudaStream_t stream) {
  const size_t dim = p.a.dim_qk > p.a.dim_v ? p.a.dim_qk : p.a.dim_v;
  if (dim <= 64) return run<T, 64>(p, stream);
  if (dim <= 128) return run<T, 128>(p, stream);
  return run<T, 256>(p, stream);
}

}  // namespace
}  // namespace nvte

const char *nvte_attention_decode_reject(const NVTEXAttentionArgs *args,
                                         size_t *workspace) noexcept {
  using namespace nvte;
  const NVTEXAttentionArgs &a = *args;
  *workspace = 0;
  if (a.backward) return "forward only";
  if (const char *reason = attention_unsupported(a)) return reason;
  if (is_fp8(a.q.dtype)) return "FP8";
  if (a.q_side.max_seqlen > 16) return "more than 16 queries of a sequence";
  if (a.q_side.max_seqlen * (a.q_side.heads / a.kv_side.heads) > 64) {
    return "more than 64 rows of queries with the same keys";
  }
  if (has_extras(a)) return "bias, ALiBi, dropout or a scale that is not positive";
  const size_t tiles = a.batch * a.kv_side.heads * 4;
  if (tiles > kMaxBlocks / kMaxSplits) return "more than 2^31 blocks";
  make_problem(a, workspace);
  return nullptr;
}

NVTEXOutcome nvte_attention_decode(const NVTEXAttentionArgs *args, cudaStream_t stream) noexcept {
  using namespace nvte;
  size_t workspace;
  const Problem p = make_problem(*args, &workspace);
  if (p.rows == 0) return ok();
  return args->q.dtype == kNVTEFloat16 ? run<F16>(p, stream) : run<BF16>(p, stream);
}
