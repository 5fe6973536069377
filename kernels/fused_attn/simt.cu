// Attention, both passes, on plain multiply-adds in FP32: for FP32 tensors, which tensor cores
// would round, and for heads and rows of any size and alignment. Everything that the arguments can
// say but FP8. The backward adds in a fixed order always.
//
// A block computes tiles of 64 x 64 scores; a thread has 8 x 4 of each product and reads four
// elements at a time from shared memory, where everything is FP32. Heads come in slices of 32
// elements, results in slices of 64 columns: a block has at most kColumns of them in registers, and
// wider heads are the work of more blocks, each of which computes the scores again.
//
// H200, FP32, causal 8 x 2048 x 16 x 64: forward 23.7 TFLOP/s, backward 14.6 of the five products
// that it needs; it computes seven. Loading the first slices of a product during the one before
// gained 1 % in the forward and lost 4 % in the backward; unrolling the products' loops by two
// gained nothing.
//
// As in the other general kernels, what is not finite inside a sequence reaches all rows of its
// tile.
//
// Elements become FP32 when they are loaded, so that the dtype is known at run time only: a branch
// outside of the products, where instances would take three times as long to compile.
//
// Instances: {64, 128} columns of forward_kernel and of gradients_kernel for rows and for keys, and
// dbias_kernel: 7.

#include "backward.cuh"
#include "common/limits.cuh"

namespace nvte {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = 64;              // Rows and columns of a tile of scores.
constexpr int kMine = 8, kAcross = 4;  // Rows and columns of a thread in a tile of scores.
constexpr int kSlice = 32;             // Elements of two tiles' rows in a stage.
// Floats of a row, so that no two of 8 rows begin in the same bank.
constexpr int kPitch = kSlice + 4;
constexpr int kWide = kTile + 4;  // Floats of a row of 64 elements.
// Floats of a row of scores; a warp stores two rows at once.
constexpr int kWeightPitch = kTile + 16;
constexpr int kStage = 2 * kTile * kPitch;
static_assert(kStage >= kTile * kWide, "a stage holds 64 rows of 64 elements too");
constexpr size_t kShared = (2 * kStage + kTile * kWeightPitch) * sizeof(float);
static_assert(kShared <= kSharedAnywhere, "shared memory of a block");

// Where a thread works. It has rows row(0) to row(7) of a tile and columns across + 16 n of scores,
// or 4 across to 4 across + 3 of 64 columns of a result. A warp has 16 rows.
struct Place {
  int warp, half, across;
  __device__ __forceinline__ Place()
      : warp(static_cast<int>(threadIdx.x) / 32),
        half(static_cast<int>(threadIdx.x) / 16 % 2),
        across(static_cast<int>(threadIdx.x) % 16) {}
  __device__ __forceinline__ int row(int i) const { return warp * 16 + 2 * i + half; }
};

// ---- Products of tiles

// Rows of a head, how many of them and of their elements there are, and what these are.
struct Operand {
  Rows rows;
  int end, dim;
  NVTEDType dtype;
};

// Four elements of 16 bits, of which the first `count` exist; zeros after them. `whole`: all four
// do, at an address that is a multiple of 8 bytes.
__device__ __forceinline__ float4 load_halves(const char *source, int count, bool whole,
                                              NVTEDType dtype) {
  const Vec<BF16, 4> bits =
      whole ? load<BF16, 4>(source, 0, count > 0) : load_some<BF16, 4>(source, 0, count);
  float f[4];
  if (dtype == kNVTEFloat16) {
    Vec<F16, 4> same;
#pragma unroll
    for (int i = 0; i < bits.kWords; ++i) same.w[i] = bits.w[i];
    to_float(same, f);
  } else {
    to_float(bits, f);
  }
  return make_float4(f[0], f[1], f[2], f[3]);
}

// Copies kWidth elements from d0 on of 64 rows from `first` on; zeros where there are none. Ends a
// group of asynchronous copies. A real function: inlined at every place that needs it, it would be
// most of the code, and compiling would take twice as long.
template <int kWidth>
__device__ __noinline__ void load_slice(float *to, const Operand &from, int first, int d0) {
  constexpr int kQuads = kWidth / 4, kDown = kThreads / kQuads;
  const int thread = static_cast<int>(threadIdx.x);
  const int d = d0 + thread % kQuads * 4, count = from.dim - d;
  const Rows &rows = from.rows;
  const NVTEDType dtype = from.dtype;
  const bool wide = dtype == kNVTEFloat32;
  const int bytes = wide ? 4 : 2;
  const auto bits = reinterpret_cast<uintptr_t>(rows.base) | static_cast<uintptr_t>(rows.row) |
                    static_cast<uintptr_t>(rows.page);
  const bool whole = count >= 4 && bits % (4u * bytes) == 0;
  const auto for_each_row = [&](auto copy) {
#pragma unroll 4
    for (int n = 0; n < kTile / kDown; ++n) {
      const int row = n * kDown + thread / kQuads;
      const bool inside = first + row < from.end && count > 0;
      const char *source = inside ? rows.at(first + row) + d * bytes : rows.base;
      copy(to + row * (kWidth + 4) + thread % kQuads * 4, source, inside);
    }
  };
  if (!wide) {
    for_each_row([&](float *target, const char *source, bool inside) {
      *reinterpret_cast<float4 *>(target) = load_halves(source, inside ? count : 0, whole, dtype);
    });
  } else if (whole) {
    for_each_row([&](float *target, const char *source, bool inside) {
      cp_async_16(shared_address(target), source, inside);
    });
  } else {
    for_each_row([&](float *target, const char *source, bool inside) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool exists = inside && e < count;
        cp_async_4(shared_address(target) + e * 4, exists ? source + e * 4 : rows.base, exists);
      }
    });
  }
  cp_async_commit_group();
}

__device__ __forceinline__ float4 quad(const float *p) {
  return *reinterpret_cast<const float4 *>(p);
}

// Two stages. A product begins to fill the stage that its predecessor's last step did not read.
struct Stages {
  float *base;
  int next = 0;

  __device__ __forceinline__ float *at(int step) const { return base + (next + step) % 2 * kStage; }
  // The step's data is there, and nobody reads the other stage any more.
  __device__ __forceinline__ void wait() const {
    cp_async_wait_group<0>();
    __syncthreads();
  }
};

// acc[i][n] += x_row(i) . y_(across + 16 n), of the 64 rows from x0 and from y0 on.
__device__ __forceinline__ void add_dots(float (&acc)[kMine][kAcross], const Operand &x, int x0,
                                         const Operand &y, int y0, const Place &place,
                                         Stages &stages) {
  const auto fill = [&](int step) {
    float *to = stages.at(step);
    load_slice<kSlice>(to, x, x0, step * kSlice);
    load_slice<kSlice>(to + kTile * kPitch, y, y0, step * kSlice);
  };
  const int steps = (x.dim + kSlice - 1) / kSlice;
  fill(0);
  for (int step = 0; step < steps; ++step) {
    stages.wait();
    if (step + 1 < steps) fill(step + 1);
    const float *left = stages.at(step) + place.row(0) * kPitch;
    const float *right = stages.at(step) + (kTile + place.across) * kPitch;
#pragma unroll 1
    for (int d = 0; d < kSlice; d += 4) {
      float4 b[kAcross];
#pragma unroll
      for (int n = 0; n < kAcross; ++n) b[n] = quad(right + n * 16 * kPitch + d);
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const float4 a = quad(left + 2 * i * kPitch + d);
#pragma unroll
        for (int n = 0; n < kAcross; ++n) {
          acc[i][n] = fmaf(a.x, b[n].x, acc[i][n]);
          acc[i][n] = fmaf(a.y, b[n].y, acc[i][n]);
          acc[i][n] = fmaf(a.z, b[n].z, acc[i][n]);
          acc[i][n] = fmaf(a.w, b[n].w, acc[i][n]);
        }
      }
    }
  }
  stages.next += steps;
}

// acc[p][i][e] += sum over n of w_(row(i), n) y_n, columns first + 64 p + 4 across + e of it, of
// the 64 rows from y0 on. The weights, in shared memory, are those of the warp's own rows.
template <int kParts>
__device__ __forceinline__ void add_rows(float (&acc)[kParts][kMine][4], const float *weights,
                                         const Operand &y, int y0, int first, const Place &place,
                                         Stages &stages) {
  const int steps = min((y.dim - first + kTile - 1) / kTile, kParts);
  if (steps <= 0) return;
  load_slice<kTile>(stages.at(0), y, y0, first);
#pragma unroll
  for (int step = 0; step < kParts; ++step) {
    if (step >= steps) break;
    stages.wait();
    if (step + 1 < steps) {
      load_slice<kTile>(stages.at(step + 1), y, y0, first + (step + 1) * kTile);
    }
    const float *left = weights + place.row(0) * kWeightPitch;
    const float *right = stages.at(step) + place.across * 4;
#pragma unroll 1
    for (int n = 0; n < kTile; n += 4) {
      float4 b[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) b[e] = quad(right + (n + e) * kWide);
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const float4 a = quad(left + 2 * i * kWeightPitch + n);
        const float w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          acc[step][i][0] = fmaf(w[e], b[e].x, acc[step][i][0]);
          acc[step][i][1] = fmaf(w[e], b[e].y, acc[step][i][1]);
          acc[step][i][2] = fmaf(w[e], b[e].z, acc[step][i][2]);
          acc[step][i][3] = fmaf(w[e], b[e].w, acc[step][i][3]);
        }
      }
    }
  }
  stages.next += steps;
}

// ---- Scores

// What a block knows about a head. It is in shared memory, because the products need the registers.
struct Head {
  Operand q, k, v, d_o;
  Band band;
  Scores<RuntimeFloat, true> scores;
  HeadDropout dropout;
  StatsRows stats;
  int rows, keys;
  float weight;  // The factor of probabilities that dropout keeps.
  bool drops;

  __device__ __forceinline__ Head(const NVTEXAttentionArgs &a, const Dropout &drop, unsigned i,
                                  unsigned j)
      : Head(a, drop, i, j, j / static_cast<unsigned>(a.q_side.heads / a.kv_side.heads),
             length(a.q_side, i), length(a.kv_side, i)) {}

 private:
  __device__ __forceinline__ Head(const NVTEXAttentionArgs &a, const Dropout &drop, unsigned i,
                                  unsigned j, unsigned key_head, int rows, int keys)
      : q{query_rows(float_bytes(a.q.dtype), a, a.q, i, j), rows, static_cast<int>(a.dim_qk),
          a.q.dtype},
        k{k_rows(float_bytes(a.q.dtype), a, i, key_head), keys, static_cast<int>(a.dim_qk),
          a.q.dtype},
        v{v_rows(float_bytes(a.q.dtype), a, i, key_head), keys, static_cast<int>(a.dim_v),
          a.q.dtype},
        d_o{query_rows(float_bytes(a.q.dtype), a, a.d_o, i, j), rows, static_cast<int>(a.dim_v),
            a.q.dtype},
        band(a, rows, keys),
        scores(a, a.scale * kLog2e, i, j),
        dropout(drop.of_head(a, i, j)),
        stats(a.q_side, i, j),
        rows(rows),
        keys(keys),
        weight(a.dropout != 0.0f ? drop.scale : 1.0f),
        drops(a.dropout != 0.0f) {}
};

// Writes a head to shared memory; called by the whole block.
__device__ __forceinline__ void set_head(char *head, const NVTEXAttentionArgs &a,
                                         const Dropout &dropout, unsigned i, unsigned j) {
  __syncthreads();
  if (threadIdx.x == 0) new (head) Head(a, dropout, i, j);
  __syncthreads();
}

// Signs for the warp's rows of a tile: -1 where dropout drops. kTransposed: the tile's rows are
// keys.
template <bool kTransposed>
__device__ __forceinline__ void draw_signs(const HeadDropout &head, int own0, int other0,
                                           float *weights, const Place &place) {
  const int own_pair = place.across / 4, other_pair = place.across % 4;
  const int row_pair = kTransposed ? other_pair : own_pair;
  const int column_pair = kTransposed ? own_pair : other_pair;
  uint64_t counters[2];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const auto own = static_cast<uint32_t>(own0 / 16 + place.warp);
    const auto other = static_cast<uint32_t>(other0 / 16 + place.half + 2 * n);
    const uint32_t r = kTransposed ? other : own, c = kTransposed ? own : other;
    counters[n] = head.first + (uint64_t{r} * head.across + c) * 16 + 4 * row_pair + column_pair;
  }
  Words words[2];
  philox<7>(head.seed, head.counter, counters, words);
  const unsigned below = (head.level + 15 - dropout_rank(row_pair, column_pair)) / 16;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float *tile = weights + place.warp * 16 * kWeightPitch + (place.half + 2 * n) * 16;
#pragma unroll
    for (int bit = 0; bit < 16; ++bit) {
      const int word = bit / 4, byte = bit % 4;
      const int r = 2 * row_pair + word / 2 + byte % 2 * 8;
      const int c = 2 * column_pair + word % 2 + byte / 2 * 8;
      tile[(kTransposed ? c : r) * kWeightPitch + (kTransposed ? r : c)] =
          (words[n].w[word] >> 8 * byte & 0xff) < below ? -1.0f : 1.0f;
    }
  }
  __syncwarp();
}

// Four neighbours of a result, those that exist.
__device__ __forceinline__ void store_quad(const NVTEXAttentionTensor &t, int64_t at, int count,
                                           const float (&f)[4]) {
  const auto store_as = [&](auto tag) {
    using T = decltype(tag);
    const Vec<T, 4> v = from_float<T, 4>(f);
    const auto address = reinterpret_cast<uintptr_t>(t.data) + at * T::kBytes;
    if (count >= 4 && address % (4 * T::kBytes) == 0) {
      store(t.data, at, v);
    } else {
      store_some(t.data, at, count, v);
    }
  };
  if (t.dtype == kNVTEFloat32) {
    store_as(F32{});
  } else if (t.dtype == kNVTEFloat16) {
    store_as(F16{});
  } else {
    store_as(BF16{});
  }
}

// A block's columns of the 64 rows from `first` on; zeros from row `rows` on, nothing from `end`
// on.
template <int kParts>
__device__ __forceinline__ void store_tile(const NVTEXAttentionTensor &t, int64_t offset,
                                           const float (&acc)[kParts][kMine][4],
                                           const float (&factor)[kMine], int first, int rows,
                                           int end, int column, int dim, const Place &place) {
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int r = first + place.row(i);
    if (r >= end) continue;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const int c = column + p * kTile + place.across * 4;
      float f[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) f[e] = r < rows ? acc[p][i][e] * factor[i] : 0.0f;
      store_quad(t, offset + r * t.row + c, dim - c, f);
    }
  }
}

// ---- Forward

struct Problem {
  NVTEXAttentionArgs a;
  Dropout dropout;
  unsigned blocks, slices;  // Blocks of rows of a head, and of columns of the result.
};

// Where a block works. The last rows come first: with a causal mask they have the most columns.
struct BlockIndex {
  int first, column;
  unsigned i, j;
  __device__ __forceinline__ BlockIndex(unsigned blocks, unsigned slices, int columns,
                                        unsigned heads) {
    unsigned n = blockIdx.x;
    first = static_cast<int>(blocks - 1 - n % blocks) * kTile, n /= blocks;
    column = static_cast<int>(n % slices) * columns, n /= slices;
    j = n % heads, i = n / heads;
  }
};

template <int kColumns>
__global__ void __launch_bounds__(kThreads, kColumns == 64 ? 3 : 2)
    forward_kernel(const __grid_constant__ Problem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr int kParts = kColumns / kTile;
  extern __shared__ __align__(128) float shared[];
  const NVTEXAttentionArgs &a = p.a;
  const BlockIndex block(p.blocks, p.slices, kColumns, static_cast<unsigned>(a.q_side.heads));
  const int r0 = block.first;
  const int rows = length(a.q_side, block.i), end = written(a.q_side, rows);
  if (r0 >= end) return;
  __shared__ __align__(16) char head_bytes[sizeof(Head)];
  const auto &head = *reinterpret_cast<const Head *>(head_bytes);
  set_head(head_bytes, a, p.dropout, block.i, block.j);

  const Place place;
  Stages stages = {shared};
  float *weights = shared + 2 * kStage;
  const int r1 = min(r0 + kTile, rows);
  const int first = r0 < r1 ? head.band.begin(r0) / kTile : 0;
  const int last = r0 < r1 ? (head.band.end(r1 - 1) + kTile - 1) / kTile : 0;

  float o[kParts][kMine][4] = {}, m[kMine], l[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) m[i] = -INFINITY, l[i] = 0.0f;
  for (int t = first; t < last; ++t) {
    const int c0 = t * kTile;
    float s[kMine][kAcross] = {};
    add_dots(s, head.q, r0, head.k, c0, place, stages);
    if (head.drops) draw_signs<false>(head.dropout, r0, c0, weights, place);
    const bool whole = head.band.admits(r0, r1, c0, c0 + kTile);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int r = r0 + place.row(i);
      const int from = head.band.begin(r), to = head.band.end(r);
      float most = -INFINITY;
#pragma unroll
      for (int n = 0; n < kAcross; ++n) {
        const int c = c0 + place.across + 16 * n;
        s[i][n] = head.scores(s[i][n], r, c, r < head.rows && c < head.keys);
        if (!whole && (c < from || c >= to)) s[i][n] = -INFINITY;
        most = fmaxf(most, s[i][n]);
      }
#pragma unroll
      for (int step = 8; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
      }
      const float next = fmaxf(m[i], most), base = next == -INFINITY ? 0.0f : next;
      const float shrink = power2(m[i] - base);
      m[i] = next;
      l[i] *= shrink;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[part][i][e] *= shrink;
      }
#pragma unroll
      for (int n = 0; n < kAcross; ++n) {
        float &weight = weights[place.row(i) * kWeightPitch + place.across + 16 * n];
        const float x = power2(s[i][n] - base);
        l[i] += x;
        weight = head.drops && weight < 0.0f ? 0.0f : x;
      }
    }
    add_rows(o, weights, head.v, c0, block.column, place, stages);
  }

  float factor[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2) l[i] += __shfl_xor_sync(0xffffffffu, l[i], step);
    const int r = r0 + place.row(i);
    const RowResult result(m[i], l[i], a.sink, block.j);
    factor[i] = result.factor * head.weight;
    if (place.across == 0 && block.column == 0 && r < end) {
      const size_t at = head.stats(r);
      if (a.stats != nullptr) a.stats[at] = r < rows ? result.stats : -INFINITY;
      if (a.max != nullptr) a.max[at] = r < rows ? m[i] * kLn2 : -INFINITY;
    }
  }
  store_tile(a.o, head_offset(a.o, a.q_side, block.i, block.j), o, factor, r0, rows, end,
             block.column, static_cast<int>(a.dim_v), place);
}

// ---- Backward

// ds of a tile whose own rows, of queries or (kTransposed) of keys, begin at own0; its weights
// become what multiplies gradients in dv.
template <bool kTransposed>
__device__ __forceinline__ void gradients(const Head &head, const RowData *row_data, int own0,
                                          int other0, float *weights, const Place &place,
                                          Stages &stages, float (&ds)[kMine][kAcross]) {
  const auto of_row = [&](int r) {
    return r < head.rows ? row_data[head.stats(r)] : RowData{INFINITY, 0.0f};
  };
  // Calls f(i, n, row, column, data, weight) for the thread's elements.
  const auto each = [&](auto f) {
#pragma unroll
    for (int outer = 0; outer < (kTransposed ? kAcross : kMine); ++outer) {
      const int n0 = kTransposed ? outer : 0, i0 = kTransposed ? 0 : outer;
      const int r = kTransposed ? other0 + place.across + 16 * n0 : own0 + place.row(i0);
      const RowData data = of_row(r);
#pragma unroll
      for (int inner = 0; inner < (kTransposed ? kMine : kAcross); ++inner) {
        const int n = kTransposed ? outer : inner, i = kTransposed ? inner : outer;
        const int c = kTransposed ? own0 + place.row(i) : other0 + place.across + 16 * n;
        f(i, n, r, c, data, weights[place.row(i) * kWeightPitch + place.across + 16 * n]);
      }
    }
  };
  const int r0 = kTransposed ? other0 : own0, c0 = kTransposed ? own0 : other0;
  const bool whole = r0 + kTile <= head.rows && head.band.admits(r0, r0 + kTile, c0, c0 + kTile);

  float s[kMine][kAcross] = {};
  add_dots(s, kTransposed ? head.k : head.q, own0, kTransposed ? head.q : head.k, other0, place,
           stages);
  __syncwarp();  // The last tile's weights have been read.
  if (head.drops) draw_signs<kTransposed>(head.dropout, own0, other0, weights, place);
  // Probabilities, whose sign says what dropout keeps.
  each([&](int i, int n, int r, int c, const RowData &data, float &weight) {
    float x = power2(head.scores(s[i][n], r, c, r < head.rows && c < head.keys) - data.stats);
    if (!whole && (r >= head.rows || c < head.band.begin(r) || c >= head.band.end(r))) x = 0.0f;
    weight = head.drops ? copysignf(x, weight) : x;
  });
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
#pragma unroll
    for (int n = 0; n < kAcross; ++n) ds[i][n] = 0.0f;
  }
  add_dots(ds, kTransposed ? head.v : head.d_o, own0, kTransposed ? head.d_o : head.v, other0,
           place, stages);
  each([&](int i, int n, int, int, const RowData &data, float &weight) {
    const float x = fabsf(weight), kept = signbit(weight) ? 0.0f : head.weight;
    const float g = (kept != 0.0f ? ds[i][n] * kept : 0.0f) - data.d;
    ds[i][n] = x != 0.0f ? x * g : 0.0f;
    weight = x * kept;
  });
}

struct GradientsProblem {
  BackwardProblem p;
  unsigned slices;
};

// What a block does. It is in shared memory, because the products need the registers.
struct Work {
  BlockIndex block;
  int rows, end;    // The block's rows that have data, and the end of those that it writes.
  int first, last;  // Tiles of the others.
};

// dq of a block of rows, over the keys; or (kKeys) dk and dv of a block of keys, over the rows and
// the heads that share the keys.
template <int kColumns, bool kKeys>
__global__ void __launch_bounds__(kThreads, kKeys || kColumns > 64 ? 2 : 3)
    gradients_kernel(const __grid_constant__ GradientsProblem problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr int kParts = kColumns / kTile;
  extern __shared__ __align__(128) float shared[];
  const BackwardProblem &p = problem.p;
  const NVTEXAttentionArgs &a = p.a;
  const NVTEXAttentionSide &own = kKeys ? a.kv_side : a.q_side;
  __shared__ __align__(16) char head_bytes[sizeof(Head)], work_bytes[sizeof(Work)];
  const auto &head = *reinterpret_cast<const Head *>(head_bytes);
  const auto &work = *reinterpret_cast<const Work *>(work_bytes);
  const unsigned group = kKeys ? static_cast<unsigned>(a.q_side.heads / a.kv_side.heads) : 1;
  {
    const BlockIndex block(p.blocks, problem.slices, kColumns, static_cast<unsigned>(own.heads));
    const int rows = length(own, block.i), end = written(own, rows);
    const int own0 = block.first, own1 = min(own0 + kTile, rows);
    if (own0 >= end) return;
    set_head(head_bytes, a, p.dropout, block.i, block.j * group);
    int from = 0, to = 0;
    if (own0 < own1) {
      from = kKeys ? head.band.first_row(own0) : head.band.begin(own0);
      to = kKeys ? head.band.last_row(own1, head.rows) : head.band.end(own1 - 1);
    }
    if (threadIdx.x == 0) {
      new (work_bytes) Work{block, rows, end, from / kTile, (to + kTile - 1) / kTile};
    }
    __syncthreads();
  }

  const Place place;
  Stages stages = {shared};
  float *weights = shared + 2 * kStage;
  // Gradients of queries or keys, and dv.
  float acc[kParts][kMine][4] = {}, dv[kKeys ? kParts : 1][kMine][4] = {};
  for (unsigned n = 0; n < group && work.first < work.last; ++n) {
    if (n > 0) set_head(head_bytes, a, p.dropout, work.block.i, work.block.j * group + n);
    for (int t = work.first; t < work.last; ++t) {
      float ds[kMine][kAcross];
      gradients<kKeys>(head, p.row_data, work.block.first, t * kTile, weights, place, stages, ds);
      if constexpr (kKeys) {
        add_rows(dv, weights, head.d_o, t * kTile, work.block.column, place, stages);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
#pragma unroll
        for (int e = 0; e < kAcross; ++e) {
          weights[place.row(i) * kWeightPitch + place.across + 16 * e] = ds[i][e];
        }
      }
      add_rows(acc, weights, kKeys ? head.q : head.k, t * kTile, work.block.column, place, stages);
    }
  }
  const auto write = [&](const NVTEXAttentionTensor &t, const auto &sums, float scale, size_t dim) {
    float factor[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) factor[i] = scale;
    store_tile(t, head_offset(t, own, work.block.i, work.block.j), sums, factor, work.block.first,
               work.rows, work.end, work.block.column, static_cast<int>(dim), place);
  };
  write(kKeys ? a.dk : a.dq, acc, a.scale, a.dim_qk);
  if constexpr (kKeys) write(a.dv, dv, 1.0f, a.dim_v);
}

using SimtDbias = DbiasShape<kTile, kTile>;
static_assert(SimtDbias::kThreads == kThreads, "one block for each");

__global__ void __launch_bounds__(kThreads, 2)
    dbias_kernel(const __grid_constant__ BackwardProblem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  extern __shared__ __align__(128) float shared[];
  const NVTEXAttentionArgs &a = p.a;
  DbiasBlock<kTile, kTile> block(p);
  __shared__ __align__(16) char head_bytes[sizeof(Head)];
  const auto &head = *reinterpret_cast<const Head *>(head_bytes);
  const Place place;
  Stages stages = {shared};
  float *weights = shared + 2 * kStage;

  float sum[kMine][kAcross] = {};
  const size_t terms = block.terms(a);
  for (size_t n = terms * block.split / p.splits; n < terms * (block.split + 1) / p.splits; ++n) {
    block.go_to(p, n);
    set_head(head_bytes, a, p.dropout, block.i, block.j);
    const int r0 = block.r0, r1 = min(r0 + kTile, head.rows), c0 = block.c0;
    if (r0 >= r1 || c0 >= head.band.end(r1 - 1) || c0 + kTile <= head.band.begin(r0)) continue;
    float ds[kMine][kAcross];
    gradients<false>(head, p.row_data, r0, c0, weights, place, stages, ds);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
#pragma unroll
      for (int e = 0; e < kAcross; ++e) sum[i][e] += ds[i][e];
    }
  }
  if (!block.over_rows) {
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
#pragma unroll
      for (int e = 0; e < kAcross; ++e) {
        block.write(p, block.r0 + place.row(i), block.c0 + place.across + 16 * e, sum[i][e]);
      }
    }
    return;
  }
  // Adds the rows of a thread, then those of all threads.
  __syncthreads();
#pragma unroll
  for (int e = 0; e < kAcross; ++e) {
    float column = 0.0f;
#pragma unroll
    for (int i = 0; i < kMine; ++i) column += sum[i][e];
    shared[(place.warp * 2 + place.half) * kTile + place.across + 16 * e] = column;
  }
  __syncthreads();
  if (threadIdx.x >= kTile) return;
  float column = 0.0f;
#pragma unroll
  for (int n = 0; n < kThreads / 16; ++n) column += shared[n * kTile + threadIdx.x];
  block.write(p, 0, block.c0 + static_cast<int>(threadIdx.x), column);
}

// ---- Launchers

inline size_t most_columns(const NVTEXAttentionArgs &a) {
  return a.dim_qk > a.dim_v ? a.dim_qk : a.dim_v;
}

template <int kColumns>
NVTEXOutcome run_forward(const NVTEXAttentionArgs &a, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(a.q_side.max_seqlen, kTile));
  const auto slices = static_cast<unsigned>(ceil_div(a.dim_v, kColumns));
  const size_t grid = size_t{blocks} * slices * a.q_side.heads * a.batch;
  if (grid == 0) return ok();
  const Problem p = {a, Dropout(a), blocks, slices};
  return launch_shared(forward_kernel<kColumns>, dim3(static_cast<unsigned>(grid)), kThreads,
                       kShared, stream, p);
}

template <int kColumns, bool kKeys>
NVTEXOutcome run_gradients(const BackwardProblem &problem, size_t dim, cudaStream_t stream) {
  const NVTEXAttentionSide &own = kKeys ? problem.a.kv_side : problem.a.q_side;
  GradientsProblem p = {problem, static_cast<unsigned>(ceil_div(dim, kColumns))};
  p.p.blocks = static_cast<unsigned>(ceil_div(own.max_seqlen, kTile));
  const size_t grid = size_t{p.p.blocks} * p.slices * own.heads * problem.a.batch;
  if (grid == 0) return ok();
  return launch_shared(gradients_kernel<kColumns, kKeys>, dim3(static_cast<unsigned>(grid)),
                       kThreads, kShared, stream, p);
}

template <int kColumns>
NVTEXOutcome run_backward(const BackwardProblem &p, cudaStream_t stream) {
  const NVTEXOutcome outcome = run_gradients<kColumns, true>(p, most_columns(p.a), stream);
  if (outcome.status != NVTEX_BACKEND_OK) return outcome;
  return run_gradients<kColumns, false>(p, p.a.dim_qk, stream);
}

// Why these kernels do not take the arguments, or null.
const char *unsupported(const NVTEXAttentionArgs &a) {
  if (const char *reason = attention_limits(a)) return reason;
  const NVTEDType dtype = a.q.dtype;
  if (dtype != kNVTEFloat32 && !is_16bit(dtype)) return "q is neither F32, F16 nor BF16";
  for (const NVTEXAttentionTensor *t : {&a.k, &a.v, &a.o, &a.d_o, &a.dq, &a.dk, &a.dv}) {
    if (t == &a.d_o && !a.backward) break;
    if (t->dtype != dtype) return "dtypes that differ from q's";
  }
  if (a.bias.data != nullptr && a.bias.dtype != dtype) return "dtype of the bias";
  if (a.dbias.data != nullptr && a.dbias.dtype != dtype) return "dtype of the bias' gradient";
  if (most_columns(a) > 65536) return "head dimensions over 65536";
  // Each factor is exact, and 2^31 far below where their product is not.
  const size_t longest =
      a.q_side.max_seqlen > a.kv_side.max_seqlen ? a.q_side.max_seqlen : a.kv_side.max_seqlen;
  const double blocks =
      static_cast<double>(ceil_div(longest, kTile) * ceil_div(most_columns(a), 64));
  if (blocks * static_cast<double>(a.q_side.heads) * static_cast<double>(a.batch) > kMaxBlocks) {
    return "more than 2^31 blocks";
  }
  return nullptr;
}

}  // namespace
}  // namespace nvte

const char *nvte_attention_simt_forward_reject(const NVTEXAttentionArgs *args,
                                               size_t *workspace) noexcept {
  *workspace = 0;
  if (args->backward) return "forward only";
  return nvte::unsupported(*args);
}

NVTEXOutcome nvte_attention_simt_forward(const NVTEXAttentionArgs *args,
                                         cudaStream_t stream) noexcept {
  using namespace nvte;
  return args->dim_v <= 64 ? run_forward<64>(*args, stream) : run_forward<128>(*args, stream);
}

const char *nvte_attention_simt_backward_reject(const NVTEXAttentionArgs *args,
                                                size_t *workspace) noexcept {
  using namespace nvte;
  const NVTEXAttentionArgs &a = *args;
  *workspace = 0;
  if (!a.backward) return "backward only";
  if (const char *reason = unsupported(a)) return reason;
  if (a.page_table_k != nullptr || a.page_table_v != nullptr) return "paged keys and values";
  if (a.dbias.data != nullptr && SimtDbias(a).blocks(a) > kMaxBlocks / 512) {
    return "more than 2^31 blocks of the bias' gradient";
  }
  *workspace = BackwardWorkspace<SimtDbias>(a).bytes;
  return nullptr;
}

NVTEXOutcome nvte_attention_simt_backward(const NVTEXAttentionArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  if (args->batch == 0 || args->q_side.heads == 0) return ok();
  const BackwardProblem p = backward_problem<SimtDbias>(*args);
  NVTEXOutcome outcome = prepare<RuntimeFloat, false, false>(p, stream);
  if (outcome.status == NVTEX_BACKEND_OK && args->dbias.data != nullptr) {
    outcome = run_dbias<SimtDbias>(dbias_kernel, kShared, p, stream);
  }
  if (outcome.status != NVTEX_BACKEND_OK) return outcome;
  return most_columns(*args) <= 64 ? run_backward<64>(p, stream) : run_backward<128>(p, stream);
}
