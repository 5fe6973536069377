// Forward of attention for everything that the arguments can say of 16-bit and FP8 tensors in whole
// vectors, on the matrix instructions of compute capability 8.0. A block takes kM rows of a head;
// each of its warps has its own rows, reads tiles of kN keys that the block shares and keeps
// running maxima and sums.
//
// FP8 becomes half precision when it is loaded, which is exact. Because the probabilities are
// rounded to FP8 with a scale for normalised ones, a first pass over the keys finds the rows' sums.
//
// Keys and values past a sequence count as zeros. Of others, what is not finite reaches all rows of
// their tile, because a probability of 0 multiplies it too.
//
// Instances: {F16, BF16} x {64, 96, 128, 192, 256} and, with extra terms, x {64, 128, 256}; FP8 x
// {128, 256}: 18.

#include "common/limits.cuh"
#include "instances_mma.cuh"
#include "rows.cuh"

namespace nvte {
namespace {

struct Problem {
  NVTEXAttentionArgs a;
  Dropout dropout;
  unsigned blocks;  // Blocks of threads for each head.
};

template <int kD, bool kExtras>
struct Shape {
  static constexpr int kWarps = 4, kThreads = kWarps * 32;
  static constexpr int kMt = kD <= (kExtras ? 96 : 128) ? 2 : 1;  // 16 rows each, of a warp.
  static constexpr int kM = kWarps * kMt * 16;
  static constexpr int kN = kD <= 96 && !kExtras ? 64 : 32;
  static constexpr uint32_t kKeys = kN * kD * 2;  // Bytes of a tile.
  static constexpr uint32_t kShared = kM * kD * 2 + 4 * kKeys;
  static_assert(kShared <= kSharedAnywhere, "shared memory of a block");
};

// What a block knows about its head. It is in shared memory, because the products need all
// registers.
template <class T, bool kExtras>
struct Head {
  Rows k, v;
  Band band;
  Scores<T, kExtras> scores;
  HeadDropout dropout;
  StatsRows stats;
  int64_t o;  // Offset of its first element.
  unsigned j;
  int keys, rows, end, last;
  // FP8: what probabilities are multiplied by for dropout and before they are rounded.
  float weight, p_scale;
};

template <class T, int kD, bool kFp8, bool kExtras>
__global__ void __launch_bounds__(Shape<kD, kExtras>::kThreads, 2)
    forward_kernel(const __grid_constant__ Problem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  using S = Shape<kD, kExtras>;
  constexpr int kMt = S::kMt, kN = S::kN, kNt = kN / 8, kBytes = kFp8 ? 1 : 2;
  extern __shared__ __align__(128) char shared[];
  const NVTEXAttentionArgs &a = p.a;

  // The last rows first: of causal scores they have the most columns.
  const int r0 = static_cast<int>(p.blocks - 1 - blockIdx.x % p.blocks) * S::kM;
  const unsigned heads = static_cast<unsigned>(a.q_side.heads);
  const unsigned j = blockIdx.x / p.blocks % heads, i = blockIdx.x / p.blocks / heads;
  const unsigned key_head = j / (heads / static_cast<unsigned>(a.kv_side.heads));
  const int rows = length(a.q_side, i), keys = length(a.kv_side, i);
  const int end = written(a.q_side, rows);
  if (r0 >= end) return;
  const Band band(a, rows, keys);

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int w0 = r0 + warp * kMt * 16;  // The first of the warp's rows.
  const int w1 = min(w0 + kMt * 16, rows);
  const int r1 = min(r0 + S::kM, rows);
  const int first = r0 < r1 ? band.begin(r0) / kN : 0;
  const int last = r0 < r1 ? (band.end(r1 - 1) + kN - 1) / kN : 0;

  const uint32_t q_tile = shared_address(shared), kv_tiles = q_tile + S::kM * kD * 2;
  const uint32_t my_rows = q_tile + warp * kMt * 16 * Tile<kD>::kRow;
  const int dim_qk = static_cast<int>(a.dim_qk), dim_v = static_cast<int>(a.dim_v);
  float scale = a.scale * kLog2e;
  if constexpr (kFp8) scale *= factor_of(a.q.scale_inv) * factor_of(a.k.scale_inv);
  // Without extra terms the scale is positive and scores stay products until the exponential.
  const float unit = kExtras ? 1.0f : scale;
  const bool drops = kExtras && a.dropout != 0.0f;
  __shared__ __align__(16) char head_bytes[sizeof(Head<T, kExtras>)];
  const auto &head = *reinterpret_cast<Head<T, kExtras> *>(head_bytes);
  if (thread == 0) {
    new (head_bytes) Head<T, kExtras>{k_rows(kBytes, a, i, key_head),
                                      v_rows(kBytes, a, i, key_head),
                                      Band(a, rows, keys),
                                      Scores<T, kExtras>(a, scale, i, j),
                                      p.dropout.of_head(a, i, j),
                                      StatsRows(a.q_side, i, j),
                                      head_offset(a.o, a.q_side, i, j),
                                      j,
                                      keys,
                                      rows,
                                      end,
                                      last,
                                      drops ? p.dropout.scale : 1.0f,
                                      factor_of(a.s.scale)};
  }
  __syncthreads();
  // How far a score may pass its row's reference before that follows.
  const float slack = a.max != nullptr || kFp8 ? 0.0f : 8.0f / unit;

  float o[kMt][kD / 8][4] = {};
  float m[kMt][2], l[kMt][2], most_p = 0.0f;
#pragma unroll
  for (int mt = 0; mt < kMt; ++mt) {
    m[mt][0] = m[mt][1] = -INFINITY;
    l[mt][0] = l[mt][1] = 0.0f;
  }

  if (first < last) {
    load_tile<kD, S::kM, S::kThreads, kFp8>(q_tile, query_rows(kBytes, a, a.q, i, j), r0, rows,
                                            dim_qk, thread);
  }
  for (int pass = kFp8 ? 0 : 1; pass < 2; ++pass) {
    const auto load_keys = [&](int t) {
      const uint32_t to = kv_tiles + (t - first) % 2 * 2 * S::kKeys;
      load_tile<kD, kN, S::kThreads, kFp8>(to, head.k, t * kN, head.keys, dim_qk, thread);
      if (pass == 1) {
        load_tile<kD, kN, S::kThreads, kFp8>(to + S::kKeys, head.v, t * kN, head.keys, dim_v,
                                             thread);
      }
      cp_async_commit_group();
    };
    if (first < last) load_keys(first);
    for (int t = first; t < head.last; ++t) {
      cp_async_wait_group<0>();
      __syncthreads();
      if (t + 1 < head.last) load_keys(t + 1);
      const int c0 = t * kN;
      if (w0 >= w1 || c0 >= head.band.end(w1 - 1) || c0 + kN <= head.band.begin(w0)) continue;

      const uint32_t tile = kv_tiles + (t - first) % 2 * 2 * S::kKeys;
      float s[kMt][kNt][4] = {};
      multiply_rows<T, kD>(s, my_rows, tile, lane);

      if constexpr (kExtras) {
#pragma unroll
        for (int mt = 0; mt < kMt; ++mt) {
#pragma unroll
          for (int n = 0; n < kNt; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int r = w0 + mt * 16 + e / 2 * 8 + lane / 4;
              const int c = c0 + n * 8 + lane % 4 * 2 + e % 2;
              s[mt][n][e] = head.scores(s[mt][n][e], r, c, r < head.rows && c < head.keys);
            }
          }
        }
      }
      if (!head.band.admits(w0, w1, c0, c0 + kN)) {
#pragma unroll
        for (int mt = 0; mt < kMt; ++mt) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int r = w0 + mt * 16 + h * 8 + lane / 4;
            const int from = head.band.begin(r) - c0, to = head.band.end(r) - c0;
#pragma unroll
            for (int n = 0; n < kNt; ++n) {
#pragma unroll
              for (int e = 0; e < 2; ++e) {
                const int c = n * 8 + lane % 4 * 2 + e;
                if (c < from || c >= to) s[mt][n][2 * h + e] = -INFINITY;
              }
            }
          }
        }
      }

      if (!kFp8 || pass == 0) {
        bool grows = false;
        float most[kMt][2];
#pragma unroll
        for (int mt = 0; mt < kMt; ++mt) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float x = -INFINITY;
#pragma unroll
            for (int n = 0; n < kNt; ++n) x = fmaxf(x, fmaxf(s[mt][n][2 * h], s[mt][n][2 * h + 1]));
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
            most[mt][h] = x;
            grows |= x > m[mt][h] + slack;
          }
        }
        if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
          for (int mt = 0; mt < kMt; ++mt) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const float next = fmaxf(m[mt][h], most[mt][h]);
              const float shrink = next == -INFINITY ? 1.0f : power2((m[mt][h] - next) * unit);
              m[mt][h] = next;
              l[mt][h] *= shrink;
              if constexpr (!kFp8) {
#pragma unroll
                for (int n = 0; n < kD / 8; ++n) {
                  o[mt][n][2 * h] *= shrink;
                  o[mt][n][2 * h + 1] *= shrink;
                }
              }
            }
          }
        }
      }
#pragma unroll
      for (int mt = 0; mt < kMt; ++mt) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float base = m[mt][h] == -INFINITY ? 0.0f : m[mt][h] * unit;
          float sum = 0.0f;
#pragma unroll
          for (int n = 0; n < kNt; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              float &x = s[mt][n][2 * h + e];
              sum += x = power2(fmaf(x, unit, -base));
            }
          }
          if (!kFp8 || pass == 0) l[mt][h] += sum;
        }
      }
      if (kFp8 && pass == 0) continue;

      if constexpr (kExtras) {
#pragma unroll
        for (int mt = 0; mt < kMt; ++mt) {
          uint32_t kept = 0xffffffff;
          if (drops) {
            kept = KeptScores<false, kNt / 2>(head.dropout)(static_cast<uint32_t>(w0 + mt * 16),
                                                            static_cast<uint32_t>(c0));
          }
#pragma unroll
          for (int n = 0; n < kNt; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              float &x = s[mt][n][e];
              x = is_kept(kept, n / 2, n % 2, e) ? x : 0.0f;
              if constexpr (kFp8) {
                x *= head.weight;
                if (w0 + mt * 16 + e / 2 * 8 + lane / 4 < head.rows) most_p = fmaxf(most_p, x);
                x *= head.p_scale;
              }
            }
          }
        }
      }
      uint32_t weights[kMt][kNt / 2][4];
      to_operand<T, kFp8>(s, a.q.dtype == kNVTEFloat8E5M2, weights);
      multiply_columns<T, kD>(o, weights, tile + S::kKeys, 0, lane);
    }
    if (kFp8 && pass == 0) {
      __syncthreads();
      // From now on m is the row's statistic, so that probabilities come out normalized.
#pragma unroll
      for (int mt = 0; mt < kMt; ++mt) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          l[mt][h] += __shfl_xor_sync(0xffffffffu, l[mt][h], 1);
          l[mt][h] += __shfl_xor_sync(0xffffffffu, l[mt][h], 2);
          const int r = w0 + mt * 16 + h * 8 + lane / 4;
          const RowResult result(m[mt][h], l[mt][h], a.sink, head.j);
          if (lane % 4 == 0 && r < head.end) {
            const size_t at = head.stats(r);
            if (a.stats != nullptr) a.stats[at] = r < head.rows ? result.stats : -INFINITY;
            if (a.max != nullptr) a.max[at] = r < head.rows ? m[mt][h] * kLn2 : -INFINITY;
          }
          m[mt][h] = result.stats * kLog2e;
        }
      }
    }
  }

  float factor[kMt][2];
#pragma unroll
  for (int mt = 0; mt < kMt; ++mt) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kFp8) {
        factor[mt][h] = factor_of(a.s.scale_inv) * factor_of(a.v.scale_inv);
      } else {
        l[mt][h] += __shfl_xor_sync(0xffffffffu, l[mt][h], 1);
        l[mt][h] += __shfl_xor_sync(0xffffffffu, l[mt][h], 2);
        const int r = w0 + mt * 16 + h * 8 + lane / 4;
        const RowResult result(m[mt][h] * unit, l[mt][h], a.sink, head.j);
        factor[mt][h] = drops ? result.factor * p.dropout.scale : result.factor;
        if (lane % 4 == 0 && r < head.end) {
          const size_t at = head.stats(r);
          if (a.stats != nullptr) a.stats[at] = r < head.rows ? result.stats : -INFINITY;
          if (a.max != nullptr) a.max[at] = r < head.rows ? m[mt][h] * unit * kLn2 : -INFINITY;
        }
      }
    }
  }
  if constexpr (kFp8) raise_amax(a.s.amax, most_p);
  store_rows<T, kFp8, kD>(a.o, head.o, o, factor, w0, head.rows, head.end, 0, dim_v, my_rows, lane);
}

template <class T, int kD, bool kFp8, bool kExtras>
NVTEXOutcome run(const NVTEXAttentionArgs &a, cudaStream_t stream) {
  using S = Shape<kD, kExtras>;
  const size_t blocks = ceil_div(a.q_side.max_seqlen, S::kM);
  const size_t grid = blocks * a.q_side.heads * a.batch;
  if (grid == 0) return ok();
  if constexpr (kFp8) {
    if (const cudaError_t error = clear_amax(a.s.amax, stream)) return outcome(error);
    if (const cudaError_t error = clear_amax(a.o.amax, stream)) return outcome(error);
  }
  const Problem p = {a, Dropout(a), static_cast<unsigned>(blocks)};
  return launch_shared(forward_kernel<T, kD, kFp8, kExtras>, dim3(static_cast<unsigned>(grid)),
                       S::kThreads, S::kShared, stream, p);
}

}  // namespace
}  // namespace nvte

const char *nvte_attention_mma_forward_reject(const NVTEXAttentionArgs *args,
                                              size_t *workspace) noexcept {
  using namespace nvte;
  *workspace = 0;
  if (args->backward) return "forward only";
  if (const char *reason = attention_unsupported(*args)) return reason;
  // 64 is the smallest number of rows that a block takes.
  const size_t blocks = ceil_div(args->q_side.max_seqlen, 64) * args->q_side.heads;
  if (blocks != 0 && args->batch > kMaxBlocks / blocks) return "more than 2^31 blocks";
  return nullptr;
}

NVTEXOutcome nvte_attention_mma_forward(const NVTEXAttentionArgs *args,
                                        cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch_mma(*args, has_extras(*args), [&](auto instance) {
    using I = decltype(instance);
    return run<typename I::T, I::kD, I::kFp8, I::kExtras>(*args, stream);
  });
}
