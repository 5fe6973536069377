// Products of the members of groups, D[t] = alpha[t] B[t] A[t]^T + beta[t] C[t], for compute
// capability 9.0. Sizes are known on the device only.
//
// A first kernel makes a Problem of each member, with its tensor maps, so that whatever is outside
// a member reads as zeros, and counts its tiles. Then blocks that stay take tiles in pairs, from a
// counter: a cluster of two blocks works on two tiles side by side, and each block copies half of
// the operand that they share to both. Tiles are 128 rows (of B) by 256 columns (rows of A), or by
// 128 where partial sums are promoted or operands are MXFP8. A pair is two tiles one below the
// other, or in the last rows two side by side; half a tile without rows is not multiplied. One
// thread copies, two warpgroups have 64 rows each. Every sum runs over k in one order, whatever the
// other members are.
//
// Operands that bulk copies cannot take, because of addresses or pitches that are no multiples of
// 16 bytes, are brought by the whole copying warpgroup.
//
// MXFP8 becomes BF16, scales included: element times power of two is exact but below 2^-126. Two
// warpgroups bring the bytes to shared memory ahead, turn them, and write what products read.
//
// H200, TFLOP/s at the clock that its power allows, BF16: 8 members of 4096^3 in all layouts 655
// (cuBLASLt, one product of the summed size: 687), 64 of 256 rows by 2048, k 7168, 615, with uneven
// rows 497, of which tiles without all their rows take a fifth; 64 of 16 rows by 7168, k 2048, 4.2
// TB/s; 64 by 7168 x 2048, k 256 on average: 304, because the tile before is stored while nothing
// is multiplied. Tiles dealt out beforehand, without a counter, are 3 to 4 % slower with uneven
// rows. FP8: 1160, promoted 727, in blocks 683 (1D and 1D) to 715.
// MXFP8: 230 in all layouts, uneven rows 190 to 230, odd addresses 105; with a branch for each word
// that may hold NaN it is 185.

#include <climits>
#include <type_traits>

#include "common/tma.cuh"
#include "common/vec.cuh"
#include "common/wgmma.cuh"
#include "nvte/backend/grouped_gemm.h"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The kernels are empty there: "declared but never referenced" of all that they are made of.
#pragma nv_diag_suppress 177
#endif

namespace nvte {
namespace {

constexpr int kRows = 128;                 // Of a tile.
constexpr int kChunk = 64;                 // Rows of an operand that one copy brings,
constexpr int kChunkBytes = kChunk * 128;  // with 128 bytes of the inner dimension.
constexpr unsigned kBand = 8;              // Pairs of row tiles whose columns are walked together.
constexpr int kTiles = 2;                  // That the copying warpgroup may be ahead.
constexpr int kStagingCols = 32;           // Of results of a warp, on their way to odd places.
constexpr int kSetupThreads = 256;
// With three warpgroups; the threads of four have 128 each.
constexpr int kConsumerRegisters = 216, kProducerRegisters = 72;
constexpr size_t kMost =
    INT_MAX / 4;             // Of a dimension: positions in a member have 32 bits, in bytes.
constexpr int kCopying = 1;  // Barrier of the copying warpgroup.

// One member. `rows` stands for B, whose rows are those of D, `cols` for A.
struct Problem {
  CUtensorMap rows_map, cols_map;
  const void *rows_data, *cols_data;
  const void *rows_scales, *cols_scales;  // Modes other than 0.
  const void *c;
  void *d;
  float alpha, beta;
  int n, m, k;
  bool bulk;  // The maps can be used.
};

// The operands in device memory.
struct Matrix {
  const void *data;
  const NVTEXGroupedMember *members;
  const int64_t *outer_dims, *inner_dims, *offsets;
  const void *scale_inv;
  size_t elements, scale_bytes;  // That there is room for.
  size_t outer, inner;
  NVTEScalingMode mode;
  int bytes;
  bool transposed;
};

struct SetupParams {
  CUtensorMap map;  // Of chunks of both operands, but for what members differ in.
  Matrix a, b, c, d;
  const float *alpha, *beta;
  size_t alpha_stride, beta_stride;
  unsigned count;
  int tile_cols;
  Problem *problems;
  unsigned *first, *next;
  unsigned clusters;  // Each begins with the pair of its number.
};

struct Params {
  const Problem *problems;
  const unsigned *first;  // Pair of tiles of each member, and their number.
  unsigned *next;         // Pair that no block has taken.
  unsigned count;
  NVTEDType d_dtype;
  NVTEScalingMode rows_mode, cols_mode;
  bool rows_e5m2, cols_e5m2, rows_swizzled, cols_swizzled;  // MXFP8.
};

__host__ __device__ constexpr unsigned tiles(unsigned n, unsigned of) {
  return n / of + (n % of != 0);
}

// Rows of tiles: in pairs, one below the other, and the last one or two alone. Two if the last one
// has no rows in its lower half: beside a whole tile it would wait for it.
struct Strips {
  unsigned pairs, single;

  __device__ __forceinline__ explicit Strips(unsigned n) {
    const unsigned all = tiles(n, kRows), last = n % kRows;
    single = all % 2 != 0 ? 1 : all > 0 && last > 0 && last <= kRows / 2 ? 2 : 0;
    pairs = (all - single) / 2;
  }
};

// Element counts before a member, of all that has members one after the other.
constexpr int kTotals = 7;
struct Totals {
  size_t v[kTotals];
};

__device__ __forceinline__ size_t dim_of(const int64_t *dims, size_t even, unsigned t) {
  return dims != nullptr ? static_cast<size_t>(dims[t]) : even;
}

__device__ __forceinline__ size_t outer_of(const Matrix &x, unsigned t) {
  return x.members != nullptr ? x.members[t].outer : dim_of(x.outer_dims, x.outer, t);
}
__device__ __forceinline__ size_t inner_of(const Matrix &x, unsigned t) {
  return x.members != nullptr ? x.members[t].inner : dim_of(x.inner_dims, x.inner, t);
}

// A member of `elements`, which fit.
__device__ __forceinline__ const char *data_of(const Matrix &x, unsigned t, size_t before,
                                               size_t elements) {
  if (x.members != nullptr) return static_cast<const char *>(x.members[t].data);
  const size_t at = x.offsets != nullptr ? static_cast<size_t>(x.offsets[t]) : before;
  return static_cast<const char *>(x.data) +
         min(at, x.elements - elements) * static_cast<size_t>(x.bytes);
}

// Bytes of a member's scales.
__device__ __forceinline__ size_t scales_of(const Matrix &x, size_t outer, size_t inner) {
  const auto up = [](size_t n) { return (n + 3) / 4 * 4; };
  const size_t outer_blocks = (outer + 127) / 128, inner_blocks = (inner + 127) / 128;
  switch (x.mode) {
    case NVTE_MXFP8_1D_SCALING:
      return outer_blocks * 128 * up((inner + 31) / 32);
    case NVTE_BLOCK_SCALING_1D:
      return sizeof(float) * inner_blocks * up(outer);
    case NVTE_BLOCK_SCALING_2D:
      return sizeof(float) * outer_blocks * up(inner_blocks);
    default:
      return sizeof(float);
  }
}

// Of a member whose `bytes` of scales fit.
__device__ __forceinline__ const void *scales_at(const Matrix &x, unsigned t, size_t before,
                                                 size_t bytes) {
  if (x.members != nullptr) return x.members[t].scale_inv;
  if (x.scale_inv == nullptr) return nullptr;
  return static_cast<const char *>(x.scale_inv) + min(before, x.scale_bytes - bytes);
}

// Whether there is room for a member `[outer, inner]`, each at most kMost, of which only the sizes
// are in question that the device gives: other operands have to agree with them, but may not.
__device__ __forceinline__ bool has_room(const Matrix &x, unsigned t, size_t outer, size_t inner) {
  const bool listed = x.members != nullptr;
  const size_t own_outer = listed ? x.members[t].outer : 0;
  const size_t own_inner = listed ? x.members[t].inner : 0;
  if (outer * inner > (listed ? own_outer * own_inner : x.elements)) return false;
  const bool scaled = x.mode != NVTE_DELAYED_TENSOR_SCALING && outer * inner != 0;
  return !scaled || scales_of(x, outer, inner) <=
                        (listed ? scales_of(x, own_outer, own_inner) : x.scale_bytes);
}

// The scale of a tensor.
__device__ __forceinline__ float scale_of(const Matrix &x, const void *scales) {
  if (x.mode != NVTE_DELAYED_TENSOR_SCALING || scales == nullptr) return 1.0f;
  return *static_cast<const float *>(scales);
}

// `map` is in shared memory.
__device__ __forceinline__ void aim_map(CUtensorMap *map, const void *data, size_t inner,
                                        size_t outer, size_t pitch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const uint32_t at = shared_address(map);
  asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;"
               :
               : "r"(at), "l"(data)
               : "memory");
  asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %1;"
               :
               : "r"(at), "r"(static_cast<uint32_t>(inner))
               : "memory");
  asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;"
               :
               : "r"(at), "r"(static_cast<uint32_t>(outer))
               : "memory");
  asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;"
               :
               : "r"(at), "l"(pitch)
               : "memory");
#endif
}

// Of the first pair of tiles of a member. Wrong sizes could have more than can be counted.
__device__ __forceinline__ unsigned pair_of(size_t before) {
  return static_cast<unsigned>(min(before, size_t{INT_MAX}));
}

__device__ __forceinline__ bool whole_units(const void *data, size_t pitch) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && pitch % 16 == 0;
}

// One block. A thread makes the problem of a member.
__global__ void __launch_bounds__(kSetupThreads)
    grouped_gemm_setup_kernel(const __grid_constant__ SetupParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ alignas(128) CUtensorMap maps[kSetupThreads];
  __shared__ Totals warps[kSetupThreads / 32];
  __shared__ Totals carry;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) carry = {};
  wait_for_stream();
  let_next_start();
  if (threadIdx.x == 0) *p.next = p.clusters;
  for (unsigned base = 0; base < p.count; base += blockDim.x) {
    const unsigned t = base + threadIdx.x;
    const bool inside = t < p.count;
    size_t m = 0, n = 0, k = 0;
    Totals own = {};
    if (inside) {
      n = outer_of(p.d, t), m = inner_of(p.d, t), k = inner_of(p.a, t);
      const bool fits = n <= kMost && m <= kMost && k <= kMost && has_room(p.a, t, m, k) &&
                        has_room(p.b, t, n, k) && has_room(p.c, t, n, m) && has_room(p.d, t, n, m);
      if (!fits) n = m = k = 0;
      // By their own sizes: an operand may have none where the other has.
      const size_t a_inner = k, a_outer = outer_of(p.a, t);
      const size_t b_inner = inner_of(p.b, t), b_outer = outer_of(p.b, t);
      own.v[0] = a_outer * a_inner, own.v[1] = b_outer * b_inner, own.v[2] = own.v[3] = n * m;
      own.v[4] = scales_of(p.a, a_outer, a_inner), own.v[5] = scales_of(p.b, b_outer, b_inner);
      const auto col_tiles = tiles(static_cast<unsigned>(m), static_cast<unsigned>(p.tile_cols));
      const Strips strips(static_cast<unsigned>(n));
      own.v[6] = size_t{strips.pairs} * col_tiles + strips.single * tiles(col_tiles, 2);
    }
    Totals until = own;
#pragma unroll
    for (int i = 0; i < kTotals; ++i) {
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const size_t lower = __shfl_up_sync(0xffffffffu, until.v[i], step);
        if (lane >= step) until.v[i] += lower;
      }
    }
    __syncthreads();
    if (lane == 31) warps[warp] = until;
    __syncthreads();
    Totals before;
#pragma unroll
    for (int i = 0; i < kTotals; ++i) {
      before.v[i] = carry.v[i] + until.v[i] - own.v[i];
      for (unsigned w = 0; w < warp; ++w) before.v[i] += warps[w].v[i];
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) {
#pragma unroll
      for (int i = 0; i < kTotals; ++i) carry.v[i] = before.v[i] + own.v[i];
      p.first[min(base + blockDim.x, p.count)] = pair_of(carry.v[6]);
    }
    if (!inside) continue;
    p.first[t] = pair_of(before.v[6]);
    Problem &to = p.problems[t];
    const char *a = data_of(p.a, t, before.v[0], m * k), *b = data_of(p.b, t, before.v[1], n * k);
    to.cols_data = a;
    to.rows_data = b;
    to.c = data_of(p.c, t, before.v[2], n * m);
    to.d = const_cast<char *>(data_of(p.d, t, before.v[3], n * m));
    to.cols_scales = scales_at(p.a, t, before.v[4], scales_of(p.a, m, k));
    to.rows_scales = scales_at(p.b, t, before.v[5], scales_of(p.b, n, k));
    to.alpha =
        p.alpha[t * p.alpha_stride] * scale_of(p.a, to.cols_scales) * scale_of(p.b, to.rows_scales);
    to.beta = p.beta[t * p.beta_stride];
    to.n = static_cast<int>(n);
    to.m = static_cast<int>(m);
    to.k = static_cast<int>(k);
    const auto pitch = [&](const Matrix &x, size_t outer) {
      return (x.transposed ? outer : k) * static_cast<size_t>(x.bytes);
    };
    const auto whole = [&](const Matrix &x, const char *data, const void *scales, size_t outer) {
      return whole_units(data, pitch(x, outer)) &&
             (x.mode == NVTE_DELAYED_TENSOR_SCALING || whole_units(scales, 0));
    };
    const bool bulk = m != 0 && n != 0 && k != 0 && whole(p.a, a, to.cols_scales, m) &&
                      whole(p.b, b, to.rows_scales, n);
    to.bulk = bulk;
    if (!bulk) continue;
    const auto make = [&](CUtensorMap *map, const Matrix &x, const char *data, size_t outer) {
      CUtensorMap &own_map = maps[threadIdx.x];
      own_map = p.map;
      aim_map(&own_map, data, x.transposed ? outer : k, x.transposed ? k : outer, pitch(x, outer));
      *map = own_map;
    };
    make(&to.rows_map, p.b, b, n);
    make(&to.cols_map, p.a, a, m);
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
  }
#endif
}

// In: of Product. kPromote: sums of each 128 of the inner dimension are added up outside of the
// tensor cores, whose own sums of 8-bit products have fewer bits, and multiplied by scales. kMx:
// MXFP8 becomes BF16 on its way to where products read it.
enum class Kind { kPlain, kPromote, kMx };

template <class In_, int kBytes_, bool kMnRows_, bool kMnCols_, Kind kKind>
struct Config {
  using In = In_;
  static constexpr int kBytes = kBytes_;
  static constexpr bool kPromote = kKind == Kind::kPromote, kMx = kKind == Kind::kMx;
  // Whether an operand is stored with its inner dimension first.
  static constexpr bool kMnRows = kMnRows_, kMnCols = kMnCols_;
  static constexpr int kCols = kPromote || kMx ? 128 : 256, kStages = kPromote ? 6 : 4;
  static constexpr int kDepth = 128 / kBytes;  // Of the inner dimension in a stage.
  static constexpr int kSteps = 4;             // Products of a stage.
  static constexpr int kRowBytes = kRows * 128, kStageBytes = kRowBytes + kCols * 128;
  // MXFP8 as it comes, two stages.
  static constexpr int kAtRaw = kStages * kStageBytes;
  static constexpr int kAtControl = kAtRaw + (kMx ? kStageBytes : 0);
  static constexpr int kScaleStages = kPromote ? kStages : 1;
  static constexpr int kCopyThreads = kMx ? 256 : 128, kThreads = kCopyThreads + 256;
};

// What the copying warpgroup tells the others.
struct Tile {
  const Problem *problem;  // Null: there are no more.
  int row, col;            // First ones.
  int blocks;              // Of the inner dimension.
  bool shares_cols;        // With the other block of the cluster; else the rows.
  bool bulk;
};

template <class C>
struct Control {
  uint64_t full[C::kStages], empty[C::kStages];
  uint64_t tile_full[kTiles], tile_empty[kTiles];
  Tile tile[kTiles];
  // Of the next pair of tiles; the empty ones are the first block's.
  uint64_t pair_full[kTiles], pair_empty[kTiles];
  unsigned pair[kTiles];
  alignas(16) float row_scales[C::kScaleStages][128], col_scales[C::kScaleStages][128];
  // MXFP8: of a stage and the next, of two blocks of 32, as bits of BF16.
  alignas(16) uint16_t mx_scales[C::kMx ? 2 : 1][2][C::kMx ? kRows + C::kCols : 8];
  float staging[8][16 * (kStagingCols + 2)];  // Of warps.
};

template <class C>
constexpr int kSharedBytes = C::kAtControl + static_cast<int>(sizeof(Control<C>)) + 1024;

// Stage and parity of a ring.
template <int kStages>
struct Place {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void step() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// At the barrier of a block of the cluster. Orders no memory accesses: those that matter are over.
__device__ __forceinline__ void arrive_at(uint64_t *barrier, unsigned rank) {
  asm volatile(
      "{.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [there];}"
      :
      : "r"(shared_address(barrier)), "r"(rank)
      : "memory");
}
// load_box() to both blocks of the cluster.
__device__ __forceinline__ void share_box(void *to, const CUtensorMap *map, uint64_t *barrier,
                                          int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
      :
      : "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y),
        "h"(static_cast<uint16_t>(3))
      : "memory");
}
__device__ __forceinline__ void acquire_map(const CUtensorMap *map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" : : "l"(map) : "memory");
}

// The tile of a pair.
template <class C>
__device__ __forceinline__ void find_tile(const Params &p, unsigned pair, unsigned rank, Tile &t) {
  if (pair >= p.first[p.count]) {
    t.problem = nullptr;
    return;
  }
  unsigned low = 0, high = p.count;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    if (p.first[middle] <= pair) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const Problem &problem = p.problems[low];
  unsigned in = pair - p.first[low];
  const unsigned col_tiles = tiles(static_cast<unsigned>(problem.m), C::kCols);
  const Strips strips(static_cast<unsigned>(problem.n));
  unsigned row, col;
  t.shares_cols = in < strips.pairs * col_tiles;
  if (t.shares_cols) {
    const unsigned band = in / (kBand * col_tiles), above = band * kBand;
    const unsigned height = min(strips.pairs - above, kBand);
    in -= above * col_tiles;
    col = in / height;
    row = (above + in % height) * 2 + rank;
  } else {
    in -= strips.pairs * col_tiles;
    const unsigned each = tiles(col_tiles, 2);
    row = strips.pairs * 2 + in / each;
    col = in % each * 2 + rank;
  }
  t.problem = &problem;
  t.row = static_cast<int>(row * kRows);
  t.col = static_cast<int>(col * C::kCols);
  t.blocks = static_cast<int>(tiles(static_cast<unsigned>(problem.k), C::kDepth));
  t.bulk = problem.bulk;
}

// A chunk of an operand, from outer `outer` and inner `inner` on, without bulk copies: the warp
// takes rows of shared memory. Elements have 2 bytes, or 1; rows in global memory begin anywhere.
template <int kBytes, bool kMn>
__device__ __forceinline__ void copy_chunk(unsigned char *to, const void *data, int outers,
                                           int inners, int outer, int inner) {
  const int lines = kMn ? inners : outers, length = (kMn ? outers : inners) * kBytes;
  const int line0 = kMn ? inner : outer, at = (kMn ? outer : inner) * kBytes;
  const int unit = static_cast<int>(threadIdx.x % 8);  // 16 bytes of a row
  const int r = static_cast<int>(threadIdx.x / 8), begin = at + 16 * unit;
  constexpr int kLines = 4;  // 16 apart
  uint32_t words[kLines][5];
  int shift[kLines], bytes[kLines];
#pragma unroll
  for (int j = 0; j < kLines; ++j) {
    const int line = line0 + r + 16 * j;
    const char *from = static_cast<const char *>(data) + int64_t{line} * length + begin;
    shift[j] = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 4);
    bytes[j] = line < lines ? max(min(length - begin, 16), 0) : 0;
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      // Words without a byte of the member are not read.
      load_once<4>(from - shift[j] + 4 * i, bytes[j] > 0 && 4 * i < bytes[j] + shift[j],
                   &words[j][i]);
    }
  }
#pragma unroll
  for (int j = 0; j < kLines; ++j) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = __funnelshift_r(words[j][i], words[j][i + 1], 8 * static_cast<unsigned>(shift[j]));
      const int left = bytes[j] - 4 * i;
      if (left < 4) w[i] &= left > 0 ? (1u << (8 * left)) - 1 : 0;
    }
    *reinterpret_cast<uint4 *>(to + (r + 16 * j) * 128 + ((unit ^ (r % 8)) * 16)) =
        make_uint4(w[0], w[1], w[2], w[3]);
  }
}

// 16 bytes of a member from anywhere, `bytes` of them, the others zero.
__device__ __forceinline__ void load_odd(const char *from, int bytes, uint32_t (&w)[4]) {
  const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 4);
  uint32_t words[5];
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    // Words without a byte of the member are not read.
    load_once<4>(from - shift + 4 * i, bytes > 0 && 4 * i < bytes + shift, &words[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[i] = __funnelshift_r(words[i], words[i + 1], 8 * static_cast<unsigned>(shift));
    const int left = bytes - 4 * i;
    if (left < 4) w[i] &= left > 0 ? (1u << (8 * left)) - 1 : 0;
  }
}

// Two products of BF16.
__device__ __forceinline__ uint32_t multiply_2(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// Makes BF16 of 8-bit elements: their exponents become the low bits of exponents, and `bias`, a
// power of two, puts them right, subnormal ones as well. Infinities and NaN are not among them:
// `special` carries into bit 7 of those.
struct Decoder {
  unsigned shift;
  uint32_t mask, bias, special;

  __device__ __forceinline__ explicit Decoder(bool e5m2)
      : shift(e5m2 ? 3 : 4),
        mask(e5m2 ? 0x0fe00fe0 : 0x07f007f0),
        bias(e5m2 ? 0x77807780 : 0x7b807b80),  // 2^112, 2^120
        special(e5m2 ? 0x04040404 : 0x01010101) {}

  // Of two elements: the upper bytes of the halves of `high`.
  __device__ __forceinline__ uint32_t decode(uint32_t high, uint32_t scales) const {
    const uint32_t bits = ((high >> shift) & mask) | (high & 0x80008000);
    return multiply_2(multiply_2(bits, bias), scales);
  }
  // Bits where there are special ones among four.
  __device__ __forceinline__ uint32_t find_special(uint32_t w) const {
    return ((w & 0x7f7f7f7f) + special) & 0x80808080;
  }
  // As decode(), of special ones as well.
  __device__ __forceinline__ uint32_t decode_any(uint32_t high, uint32_t scales) const {
    uint32_t out = decode(high, scales);
    const uint32_t found = find_special(high);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t code = high >> (16 * e) & 0xff00;
      if ((found >> (16 * e) & 0x8000) == 0) continue;
      // Without a mantissa an infinity, which E4M3 has not; the scale may make it NaN.
      const bool infinite = shift == 3 && (code & 0x0300) == 0;
      const uint32_t value = infinite ? (code & 0x8000) | 0x7f80 : 0x7fff;
      const uint32_t fixed = multiply_2(value, scales >> (16 * e) & 0xffff) & 0xffff;
      out = (out & ~(0xffffu << (16 * e))) | fixed << (16 * e);
    }
    return out;
  }
};

// Copies a tile of MXFP8; two warpgroups. Raw bytes come to shared memory ahead of their use, where
// every thread reads what itself has brought: 16 bytes of a row of each chunk of the stage.
template <class C>
__device__ __forceinline__ void copy_mx(const Params &p, unsigned char *shared, Control<C> &control,
                                        const Tile &t, Place<C::kStages> &at) {
  const Problem &problem = *t.problem;
  const int thread = static_cast<int>(threadIdx.x), r = thread / 4, part = thread % 4;
  const int k = problem.k, blocks_32 = static_cast<int>(tiles(static_cast<unsigned>(k), 32));
  constexpr int kRowUnits = kRows / kChunk, kUnits = (kRows + C::kCols) / kChunk;
  constexpr int kUnitBytes = 16 * C::kCopyThreads;
  unsigned char *const raw = shared + C::kAtRaw + 16 * thread;
  const auto raw_at = [&](int i, int u) { return raw + (i % 2 * kUnits + u) * kUnitBytes; };
  const auto find = [&](int i, int u, const char *&from) {
    const bool is_row = u < kRowUnits, mn = is_row ? C::kMnRows : C::kMnCols;
    const int chunk = is_row ? u : u - kRowUnits;
    const int outers = is_row ? problem.n : problem.m;
    const int outer = (is_row ? t.row : t.col) + chunk * kChunk + (mn ? 16 * part : r);
    const int inner = i * C::kDepth + (mn ? r : 16 * part);
    from = static_cast<const char *>(is_row ? problem.rows_data : problem.cols_data) +
           (mn ? int64_t{inner} * outers + outer : int64_t{outer} * k + inner);
    return outer < outers && inner < k ? min(mn ? outers - outer : k - inner, 16) : 0;
  };
  const auto fetch = [&](int i) {
    if (i < t.blocks && t.bulk) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const char *from;
        const int bytes = find(i, u, from);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(shared_address(raw_at(i, u))), "l"(from), "r"(bytes)
                     : "memory");
      }
    } else if (i < t.blocks) {
#pragma unroll 1
      for (int u = 0; u < kUnits; ++u) {
        const char *from;
        const int bytes = find(i, u, from);
        uint32_t w[4];
        load_odd(from, bytes, w);
        *reinterpret_cast<uint4 *>(raw_at(i, u)) = make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  // Scales of a row for each of the first threads, of a column for the others.
  const bool is_row = thread < kRows;
  const bool swizzled = is_row ? p.rows_swizzled : p.cols_swizzled;
  const bool mn_scales = is_row ? C::kMnRows : C::kMnCols;
  const int outers = is_row ? problem.n : problem.m;
  const int outer = is_row ? t.row + thread : t.col + thread - kRows;
  const auto *scales_from =
      static_cast<const unsigned char *>(is_row ? problem.rows_scales : problem.cols_scales);
  uint32_t scales[2];
  const auto fetch_scales = [&](int i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int block = 2 * i + j, groups = (blocks_32 + 3) / 4;
      const int64_t where = swizzled ? (int64_t{outer / 128} * groups + block / 4) * 512 +
                                           outer % 32 * 16 + outer % 128 / 32 * 4 + block % 4
                            : mn_scales ? int64_t{block} * ((outers + 127) / 128 * 128) + outer
                                        : int64_t{outer} * groups * 4 + block;
      // What pads the scales may be anything.
      scales[j] = block < blocks_32 && outer < outers ? __ldg(scales_from + where) : 0u;
    }
  };
  const auto put_scales = [&](int i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      // E8M0 is the exponent of BF16, but for 2^-127 and NaN.
      const uint32_t code = scales[j];
      control.mx_scales[i % 2][j][thread] = static_cast<uint16_t>(code == 0      ? 0x40
                                                                  : code == 0xff ? 0x7fff
                                                                                 : code << 7);
    }
  };
  // Of the thread's bytes in an operand. Returns whether there are special elements.
  const auto decode = [&](auto is_mn, auto any, bool e5m2, int i, int first) {
    constexpr bool mn = decltype(is_mn)::value;
    const Decoder decoder(e5m2);
    unsigned char *const to = shared + at.stage * C::kStageBytes + r * 128;
    uint32_t found = 0;
#pragma unroll
    for (int u = first; u < first + 2; ++u) {
      uint32_t w[4];
      load_shared(reinterpret_cast<const uint32_t *>(raw_at(i, u)), w);
      const uint16_t *from = mn ? control.mx_scales[i % 2][r / 32] + u * kChunk + 16 * part
                                : control.mx_scales[i % 2][part / 2] + u * kChunk + r;
      const uint32_t one = mn ? 0 : *from * 0x10001u;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t s[4] = {one, one, one, one}, out[4];
        if (mn) load_shared(reinterpret_cast<const uint32_t *>(from + 8 * h), s);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t four = w[2 * h + j / 2];
          const uint32_t high = __byte_perm(four, 0, j % 2 == 0 ? 0x1404 : 0x3424);
          if constexpr (decltype(any)::value) {
            out[j] = decoder.decode_any(high, s[j]);
          } else {
            out[j] = decoder.decode(high, s[j]);
            if (j % 2 == 0) found |= decoder.find_special(four);
          }
        }
        *reinterpret_cast<uint4 *>(to + u * kChunkBytes + (((2 * part + h) ^ (r % 8)) * 16)) =
            make_uint4(out[0], out[1], out[2], out[3]);
      }
    }
    return found != 0;
  };
  constexpr std::bool_constant<C::kMnRows> mn_rows;
  constexpr std::bool_constant<C::kMnCols> mn_cols;
  if (t.blocks == 0) return;
  fetch(0);
  fetch(1);
  fetch_scales(0);
  put_scales(0);
  fetch_scales(1);
  sync_threads(kCopying, C::kCopyThreads);
#pragma unroll 1
  for (int i = 0; i < t.blocks; ++i, at.step()) {
    // The last readers of the place have passed the barrier below.
    put_scales(i + 1);
    fetch_scales(i + 2);
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    wait_barrier(&control.empty[at.stage], at.parity ^ 1);
    const bool special_rows = decode(mn_rows, std::false_type{}, p.rows_e5m2, i, 0);
    const bool special_cols = decode(mn_cols, std::false_type{}, p.cols_e5m2, i, kRowUnits);
    if (special_rows) decode(mn_rows, std::true_type{}, p.rows_e5m2, i, 0);
    if (special_cols) decode(mn_cols, std::true_type{}, p.cols_e5m2, i, kRowUnits);
    fetch(i + 2);
    fence_async_proxy();
    sync_threads(kCopying, C::kCopyThreads);
    if (thread == 0) arrive(&control.full[at.stage]);
  }
}

// Brings C of a tile into L2; all warps that copy but the first.
template <class C>
__device__ __forceinline__ void fetch_c(const Params &p, const Problem &problem, const Tile &t) {
  const int64_t bytes = p.d_dtype == kNVTEFloat32 ? 4 : 2;
  const int64_t length = min(problem.m - t.col, C::kCols) * bytes;
  if (length <= 0) return;
  for (int r = static_cast<int>(threadIdx.x) - 32; r < min(problem.n - t.row, kRows);
       r += C::kCopyThreads - 32) {
    const auto begin =
        reinterpret_cast<uintptr_t>(problem.c) + ((int64_t{t.row} + r) * problem.m + t.col) * bytes;
    const auto first = begin / 16 * 16, end = (begin + length + 15) / 16 * 16;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
                 :
                 : "l"(first), "r"(static_cast<uint32_t>(end - first))
                 : "memory");
  }
}

// Copies a tile in bulk; one thread.
template <class C>
__device__ __forceinline__ void copy_bulk(const Params &p, unsigned char *shared,
                                          Control<C> &control, const Tile &t, Place<C::kStages> &at,
                                          unsigned rank) {
  constexpr int kColChunks = C::kCols / kChunk;
  const Problem &problem = *t.problem;
  const CUtensorMap *rows_map = &problem.rows_map, *cols_map = &problem.cols_map;
  acquire_map(rows_map);
  acquire_map(cols_map);
#pragma unroll 1
  for (int i = 0; i < t.blocks; ++i, at.step()) {
    unsigned char *rows = shared + at.stage * C::kStageBytes, *cols = rows + C::kRowBytes;
    uint64_t *full = &control.full[at.stage];
    const int inner = i * C::kDepth;
    wait_barrier(&control.empty[at.stage], at.parity ^ 1);
    uint32_t scale_bytes = 0;
    if constexpr (C::kPromote) {
      const auto scales = [&](NVTEScalingMode mode, float *to, const void *from, int outers,
                              int outer) {
        const int pitch = (outers + 3) / 4 * 4;
        if (mode != NVTE_BLOCK_SCALING_1D || outer >= pitch) return;
        const auto bytes = static_cast<uint32_t>(min(pitch - outer, 128) * 4);
        load_bytes(to, element<float>(from, static_cast<size_t>(int64_t{i} * pitch + outer)), bytes,
                   full);
        scale_bytes += bytes;
      };
      scales(p.rows_mode, control.row_scales[at.stage], problem.rows_scales, problem.n, t.row);
      scales(p.cols_mode, control.col_scales[at.stage], problem.cols_scales, problem.m, t.col);
    }
    arrive_expecting(full, C::kStageBytes + scale_bytes);
    const auto chunk = [&](bool share, unsigned char *to, const CUtensorMap *map, bool mn,
                           int outer) {
      const int x = mn ? outer : inner, y = mn ? inner : outer;
      if (share) {
        share_box(to, map, full, x, y);
      } else {
        load_box(to, map, full, {x, y});
      }
    };
    const int half = static_cast<int>(rank);
    if (t.shares_cols) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        chunk(false, rows + j * kChunkBytes, rows_map, C::kMnRows, t.row + j * kChunk);
      }
#pragma unroll
      for (int j = 0; j < kColChunks / 2; ++j) {
        const int c = half * (kColChunks / 2) + j;
        chunk(true, cols + c * kChunkBytes, cols_map, C::kMnCols, t.col + c * kChunk);
      }
    } else {
      chunk(true, rows + half * kChunkBytes, rows_map, C::kMnRows, t.row + half * kChunk);
#pragma unroll
      for (int j = 0; j < kColChunks; ++j) {
        chunk(false, cols + j * kChunkBytes, cols_map, C::kMnCols, t.col + j * kChunk);
      }
    }
  }
}

// Copies a tile from odd places; the warpgroup.
template <class C>
__device__ __forceinline__ void copy_odd(const Params &p, unsigned char *shared,
                                         Control<C> &control, const Tile &t,
                                         Place<C::kStages> &at) {
  constexpr int kColChunks = C::kCols / kChunk;
  const Problem &problem = *t.problem;
#pragma unroll 1
  for (int i = 0; i < t.blocks; ++i, at.step()) {
    unsigned char *rows = shared + at.stage * C::kStageBytes, *cols = rows + C::kRowBytes;
    wait_barrier(&control.empty[at.stage], at.parity ^ 1);
#pragma unroll 1
    for (int j = 0; j < 2; ++j) {
      copy_chunk<C::kBytes, C::kMnRows>(rows + j * kChunkBytes, problem.rows_data, problem.n,
                                        problem.k, t.row + j * kChunk, i * C::kDepth);
    }
#pragma unroll 1
    for (int j = 0; j < kColChunks; ++j) {
      copy_chunk<C::kBytes, C::kMnCols>(cols + j * kChunkBytes, problem.cols_data, problem.m,
                                        problem.k, t.col + j * kChunk, i * C::kDepth);
    }
    if constexpr (C::kPromote) {
      const auto scales = [&](NVTEScalingMode mode, float *to, const void *from, int outers,
                              int outer) {
        const int own = outer + static_cast<int>(threadIdx.x);
        if (mode != NVTE_BLOCK_SCALING_1D || own >= outers) return;
        to[threadIdx.x] =
            *element<float>(from, static_cast<size_t>(int64_t{i} * ((outers + 3) / 4 * 4) + own));
      };
      scales(p.rows_mode, control.row_scales[at.stage], problem.rows_scales, problem.n, t.row);
      scales(p.cols_mode, control.col_scales[at.stage], problem.cols_scales, problem.m, t.col);
    }
    fence_async_proxy();
    // One arrival after the barrier speaks for all. racecheck does not follow that: it reports the
    // consumers' reads of the scales.
    sync_threads(kCopying, 128);
    if (threadIdx.x == 0) arrive(&control.full[at.stage]);
  }
}

// The number of the next pair of tiles goes to both blocks of the cluster.
template <class C>
__device__ __forceinline__ void send_pair(Control<C> &control, int slot, unsigned pair) {
#pragma unroll
  for (unsigned rank = 0; rank < 2; ++rank) {
    asm volatile(
        "{.reg .b32 to, barrier;\n"
        "mapa.shared::cluster.u32 to, %0, %3;\n"
        "mapa.shared::cluster.u32 barrier, %1, %3;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %2, [barrier];}"
        :
        : "r"(shared_address(&control.pair[slot])), "r"(shared_address(&control.pair_full[slot])),
          "r"(pair), "r"(rank)
        : "memory");
  }
}

template <class C>
__device__ __forceinline__ void copy_tiles(const Params &p, unsigned char *shared,
                                           Control<C> &control, unsigned rank) {
  Place<C::kStages> at;
  Place<kTiles> slot, pair_slot;
  for (unsigned pair = blockIdx.x / 2;;) {
    if (threadIdx.x == 0) {
      wait_barrier(&control.tile_empty[slot.stage], slot.parity ^ 1);
      find_tile<C>(p, pair, rank, control.tile[slot.stage]);
      arrive(&control.tile_full[slot.stage]);
    }
    sync_threads(kCopying, C::kCopyThreads);
    const Tile t = control.tile[slot.stage];
    slot.step();
    if (t.problem == nullptr) break;
    // Asked for before it is needed.
    unsigned next = 0;
    if (threadIdx.x == 0 && rank == 0) next = atomicAdd(p.next, 1u);
    if (threadIdx.x >= 32 && t.problem->beta != 0.0f) fetch_c<C>(p, *t.problem, t);
    if constexpr (C::kMx) {
      copy_mx<C>(p, shared, control, t, at);
    } else if (!t.bulk) {
      copy_odd<C>(p, shared, control, t, at);
    } else if (threadIdx.x == 0) {
      copy_bulk<C>(p, shared, control, t, at, rank);
    } else {
      for (int i = 0; i < t.blocks; ++i) at.step();
    }
    if (threadIdx.x == 0) {
      if (rank == 0) {
        wait_barrier(&control.pair_empty[pair_slot.stage], pair_slot.parity ^ 1);
        send_pair<C>(control, pair_slot.stage, next);
      }
      arrive_expecting(&control.pair_full[pair_slot.stage], sizeof(unsigned));
      wait_barrier(&control.pair_full[pair_slot.stage], pair_slot.parity);
      pair = control.pair[pair_slot.stage];
      arrive_at(&control.pair_empty[pair_slot.stage], 0);
    }
    pair_slot.step();
  }
  // Stays until the other block has arrived here for the last time.
  for (int i = 0; i < C::kStages; ++i, at.step()) {
    wait_barrier(&control.empty[at.stage], at.parity ^ 1);
  }
  if (threadIdx.x == 0 && rank == 0) {
    for (int i = 0; i < kTiles; ++i, pair_slot.step()) {
      wait_barrier(&control.pair_empty[pair_slot.stage], pair_slot.parity ^ 1);
    }
  }
}

// D, and C.
struct Output {
  const void *c;
  void *d;
  int n, m;
  float alpha, beta;
  NVTEDType dtype;
  bool rounds;  // Before C is added.
};

// Elements of 2 bytes are of either type: the choice is cheaper than code for both.
template <int kBytes>
using Element = std::conditional_t<kBytes == 4, F32, BF16>;

template <int kBytes, int kCount>
__device__ __forceinline__ void to_floats(const Vec<Element<kBytes>, kCount> &bits, bool half,
                                          float (&f)[kCount]) {
  to_float(bits, f);
  if constexpr (kBytes == 2) {
    Vec<F16, kCount> same;
    float other[kCount];
#pragma unroll
    for (int i = 0; i < bits.kWords; ++i) same.w[i] = bits.w[i];
    to_float(same, other);
#pragma unroll
    for (int i = 0; i < kCount; ++i) f[i] = half ? other[i] : f[i];
  }
}

template <int kBytes, int kCount>
__device__ __forceinline__ Vec<Element<kBytes>, kCount> from_floats(const float (&f)[kCount],
                                                                    bool half) {
  auto bits = from_float<Element<kBytes>>(f);
  if constexpr (kBytes == 2) {
    const auto other = from_float<F16>(f);
#pragma unroll
    for (int i = 0; i < bits.kWords; ++i) bits.w[i] = half ? other.w[i] : bits.w[i];
  }
  return bits;
}

// Values of one row, 8 bytes or one element.
template <int kBytes, int kCount>
struct Values {
  size_t at;
  bool inside;
  Vec<Element<kBytes>, kCount> c;

  __device__ __forceinline__ void read(const Output &out, int row, int col) {
    at = static_cast<size_t>(int64_t{row} * out.m + col);
    inside = row < out.n && col < out.m;
    c = load<Element<kBytes>, kCount>(out.c, at, inside && out.beta != 0.0f);
  }
  __device__ __forceinline__ void finish(const Output &out, float (&v)[kCount]) const {
    const bool half = out.dtype == kNVTEFloat16;
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] *= out.alpha;
    if (out.beta != 0.0f) {
      float old[kCount];
      to_floats<kBytes>(c, half, old);
      if (out.rounds) to_floats<kBytes>(from_floats<kBytes>(v, half), half, v);
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] += out.beta * old[i];
    }
    if (inside) store(out.d, at, from_floats<kBytes>(v, half));
  }
};

// What a thread holds of products, see wgmma.cuh, goes to D in whole sectors.
template <int kBytes, int N>
__device__ __forceinline__ void write_tile(const Output &out, int row, int col, const float (&d)[N],
                                           float *staging) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  row += static_cast<int>(threadIdx.x / 32 % 4) * 16 + lane / 4;
  constexpr int kCount = 8 / kBytes;
  const bool whole = out.m % kCount == 0 && reinterpret_cast<uintptr_t>(out.d) % 8 == 0 &&
                     (out.beta == 0.0f || reinterpret_cast<uintptr_t>(out.c) % 8 == 0);
  if (!whole) {
    // By way of shared memory, so that this, which is rare, is little code.
    constexpr int kPitch = kStagingCols + 2;
#pragma unroll
    for (int part = 0; part < N / 2; part += kStagingCols / 4) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kStagingCols / 2; ++i) {
        const int j = i / 4, h = i / 2 % 2;
        staging[(lane / 4 + 8 * h) * kPitch + 8 * j + 2 * (lane % 4) + i % 2] = d[part * 2 + i];
      }
      __syncwarp();
#pragma unroll 1
      for (int i = lane; i < 16 * kStagingCols; i += 32) {
        const int r = i / kStagingCols, c = i % kStagingCols;
        float v[1] = {staging[r * kPitch + c]};
        Values<kBytes, 1> value;
        value.read(out, row - lane / 4 + r, col + part * 4 + c);
        value.finish(out, v);
      }
    }
    return;
  }
  // All of a group's C is asked for before it is used.
  constexpr int kGroup = 16 / kBytes, kParts = kBytes / 2;
  const bool odd = lane % 2 != 0;
#pragma unroll
  for (int group = 0; group < N / 4; group += kGroup) {
    Values<kBytes, kCount> values[kGroup / 2][2][kParts];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int j = group + i / 2 * 2, h = i % 2;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        values[i / 2][h][part].read(out, row + 8 * h,
                                    col + (kBytes == 4 ? 8 * (j + part) + 2 * (lane % 4)
                                                       : 8 * (j + odd) + 4 * (lane % 4 / 2)));
      }
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int h = i % 2;
      const float *x = d + 4 * (group + i / 2 * 2) + 2 * h, *y = x + 4;
      if constexpr (kBytes == 4) {
        float u[2] = {x[0], x[1]}, v[2] = {y[0], y[1]};
        values[i / 2][h][0].finish(out, u);
        values[i / 2][h][1].finish(out, v);
      } else {
        // Lanes in pairs: the even one takes four columns of the first 8, the odd one of the next.
        float v[4];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float got = __shfl_xor_sync(0xffffffffu, odd ? x[e] : y[e], 1);
          v[e] = odd ? got : x[e];
          v[2 + e] = odd ? y[e] : got;
        }
        values[i / 2][h][0].finish(out, v);
      }
    }
  }
}

template <class C>
__device__ __forceinline__ void multiply_tiles(const Params &p, const unsigned char *shared,
                                               Control<C> &control, int w) {
  Place<C::kStages> at;
  Place<kTiles> slot;
  const unsigned lane = threadIdx.x % 32;
  // Both blocks copy to both. What this one's threads write, scales, others of it have read.
  [[maybe_unused]] const unsigned other = cluster_rank() ^ 1;
  const auto release = [&](int stage) {
    if constexpr (C::kPromote) {
      __syncwarp();
      if (lane == 0) arrive(&control.empty[stage]);
      if (lane == 1) arrive_at(&control.empty[stage], other);
    } else {
      if (lane < 2) arrive_at(&control.empty[stage], lane);
    }
  };
  const uint32_t base = shared_address(shared);
  const uint64_t rows_at = C::kMnRows ? operand_mn(base + w * kChunkBytes, kChunkBytes)
                                      : operand_k(base + w * kChunkBytes);
  const uint64_t cols_at =
      C::kMnCols ? operand_mn(base + C::kRowBytes, kChunkBytes) : operand_k(base + C::kRowBytes);
  float *staging = control.staging[(threadIdx.x - C::kCopyThreads) / 32];
  constexpr uint32_t kRowStep = C::kMnRows ? 2048 : 32, kColStep = C::kMnCols ? 2048 : 32;
  for (;;) {
    wait_barrier(&control.tile_full[slot.stage], slot.parity);
    const Tile &t = control.tile[slot.stage];
    const Problem *problem = t.problem;
    // The shuffles tell the compiler that a warp agrees on them.
    if (__shfl_sync(0xffffffff, problem == nullptr, 0)) break;
    const int row = t.row + 64 * w, col = t.col;
    const int blocks = __shfl_sync(0xffffffff, t.blocks, 0);
    const bool any = row < problem->n && col < problem->m;
    const int products = __shfl_sync(0xffffffff, any ? blocks : 0, 0);
    float d[C::kCols / 2];
#pragma unroll
    for (int i = 0; i < C::kCols / 2; ++i) d[i] = 0.0f;
    pin(d);
    const auto multiply = [&](float (&sum)[C::kCols / 2], bool add) {
      const uint64_t rows = operand_at(rows_at, at.stage * C::kStageBytes),
                     cols = operand_at(cols_at, at.stage * C::kStageBytes);
      begin_products();
#pragma unroll
      for (int s = 0; s < C::kSteps; ++s) {
        const uint64_t x = operand_at(rows, s * kRowStep), y = operand_at(cols, s * kColStep);
        if constexpr (C::kBytes == 2) {
          Product<typename C::In, C::kCols>::template shared<C::kMnRows, C::kMnCols>(sum, x, y,
                                                                                     add || s > 0);
        } else {
          Product<typename C::In, C::kCols>::shared(sum, x, y, add || s > 0);
        }
      }
      commit_products();
    };
    if constexpr (C::kPromote) {
      const bool rows_2d = p.rows_mode == NVTE_BLOCK_SCALING_2D,
                 cols_2d = p.cols_mode == NVTE_BLOCK_SCALING_2D;
      const bool scaled = p.rows_mode != NVTE_DELAYED_TENSOR_SCALING;
      // Of a tile, one for each 128 of the inner dimension.
      const float *tile_scales =
          rows_2d || cols_2d ? element<float>(rows_2d ? problem->rows_scales : problem->cols_scales,
                                              static_cast<size_t>((rows_2d ? t.row : col) / 128) *
                                                  static_cast<size_t>((blocks + 3) / 4 * 4))
                             : nullptr;
      float next = tile_scales != nullptr && products > 0 ? tile_scales[0] : 1.0f;
#pragma unroll 1
      for (int i = 0; i < products; ++i) {
        float part[C::kCols / 2];
        wait_barrier(&control.full[at.stage], at.parity);
        multiply(part, false);
        const float tile_scale = next;
        if (tile_scales != nullptr && i + 1 < products) next = tile_scales[i + 1];
        float row_scale[2] = {tile_scale, tile_scale};
        if (scaled && !rows_2d) {
          const float *from = control.row_scales[at.stage] + 64 * w + threadIdx.x % 128 / 32 * 16;
#pragma unroll
          for (int h = 0; h < 2; ++h) row_scale[h] = from[lane / 4 + 8 * h];
        }
        wait_products<0>();
        pin(part);
        const float *col_scales = control.col_scales[at.stage] + 2 * (lane % 4);
        // The scale of B comes first, but if it is one of the tile.
        const auto promote = [&](auto first, auto second) {
#pragma unroll
          for (int j = 0; j < C::kCols / 2; ++j) {
            d[j] = __fmaf_rn(__fmul_rn(part[j], first(j)), second(j), d[j]);
          }
        };
        const auto of_row = [&](int j) { return row_scale[j / 2 % 2]; };
        const auto of_col = [&](int j) { return col_scales[j / 4 * 8 + j % 2]; };
        const auto of_tile = [&](int) { return tile_scale; };
        if (!scaled || cols_2d) {
          promote(of_row, of_tile);
        } else if (rows_2d) {
          promote(of_col, of_tile);
        } else {
          promote(of_row, of_col);
        }
        release(at.stage);
        at.step();
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < products; ++i) {
        wait_barrier(&control.full[at.stage], at.parity);
        multiply(d, true);
        wait_products<1>();
        if (i > 0) release(at.stage == 0 ? C::kStages - 1 : at.stage - 1);
        at.step();
      }
      wait_products<0>();
      pin(d);
      if (products > 0) release(at.stage == 0 ? C::kStages - 1 : at.stage - 1);
    }
#pragma unroll 1
    for (int i = products; i < blocks; ++i, at.step()) {
      wait_barrier(&control.full[at.stage], at.parity);
      release(at.stage);
    }
    if (any) {
      const Output out = {
          problem->c,     problem->d,
          problem->n,     problem->m,
          problem->alpha, problem->beta,
          p.d_dtype,      C::kPromote && p.rows_mode != NVTE_DELAYED_TENSOR_SCALING};
      if (p.d_dtype == kNVTEFloat32) {
        write_tile<4>(out, row, col, d, staging);
      } else {
        write_tile<2>(out, row, col, d, staging);
      }
    }
    // Without products nothing else keeps the warps of a group together.
    __syncwarp();
    if (lane == 0) arrive(&control.tile_empty[slot.stage]);
    slot.step();
  }
}

// Compilers refuse the word for older GPUs.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define NVTE_PAIRS __cluster_dims__(2, 1, 1)
#else
#define NVTE_PAIRS
#endif

template <class C>
__global__ void NVTE_PAIRS __launch_bounds__(C::kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char dynamic[];
  unsigned char *const shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  auto &control = *reinterpret_cast<Control<C> *>(shared + C::kAtControl);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      init_barrier(&control.full[i], 1);
      init_barrier(&control.empty[i], 16);
    }
    for (int i = 0; i < kTiles; ++i) {
      init_barrier(&control.tile_full[i], 1);
      init_barrier(&control.tile_empty[i], 8);
      init_barrier(&control.pair_full[i], 1);
      init_barrier(&control.pair_empty[i], 2);
    }
    publish_barriers();
  }
  sync_cluster();
  wait_for_stream();
  if (threadIdx.x < C::kCopyThreads) {
    if constexpr (!C::kMx) give_registers<kProducerRegisters>();
    copy_tiles<C>(p, shared, control, cluster_rank());
  } else {
    if constexpr (!C::kMx) take_registers<kConsumerRegisters>();
    // The shuffle tells the compiler that a warp agrees on it.
    const int w =
        static_cast<int>(__shfl_sync(0xffffffff, (threadIdx.x - C::kCopyThreads) / 128, 0));
    multiply_tiles<C>(p, shared, control, w);
  }
#endif
}

// Members whose pointers the host knows.
constexpr int kListed = 100;
struct MemberList {
  NVTEXGroupedMember *to;
  unsigned count;
  NVTEXGroupedMember members[kListed];
};

__global__ void grouped_gemm_list_kernel(const __grid_constant__ MemberList list) {
  wait_for_stream();
  let_next_start();
  if (threadIdx.x < list.count) list.to[threadIdx.x] = list.members[threadIdx.x];
}

template <class C>
NVTEXOutcome run(const Params &p, unsigned clusters, cudaStream_t stream) {
  return launch_shared(grouped_gemm_kernel<C>, dim3(2 * clusters), C::kThreads, kSharedBytes<C>,
                       stream, p);
}

template <class T, Kind kKind>
auto choose(bool mn_rows, bool mn_cols) {
  return mn_rows ? (mn_cols ? run<Config<T, 2, true, true, kKind>>
                            : run<Config<T, 2, true, false, kKind>>)
                 : (mn_cols ? run<Config<T, 2, false, true, kKind>>
                            : run<Config<T, 2, false, false, kKind>>);
}

template <class T>
auto choose_fp8(bool promote) {
  return promote ? run<Config<T, 1, false, false, Kind::kPromote>>
                 : run<Config<T, 1, false, false, Kind::kPlain>>;
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_grouped_gemm(const NVTEXGroupedGemmArgs *args,
                                               cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXGroupedGemmArgs &a = *args;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  if (device.arch != 90) return unimplemented("grouped products run on compute capability 9.0");
  const auto count = static_cast<unsigned>(a.num_tensors);
  const bool is_16bit = a.a.dtype == kNVTEBFloat16 || a.a.dtype == kNVTEFloat16;
  const auto is_fp8 = [](NVTEDType t) { return t == kNVTEFloat8E4M3 || t == kNVTEFloat8E5M2; };
  if (is_16bit ? a.a.dtype != a.b.dtype : !is_fp8(a.a.dtype) || !is_fp8(a.b.dtype)) {
    return unimplemented("grouped products take A and B in BF16, in F16 or in FP8");
  }
  const bool is_mx = !is_16bit && a.a.mode == NVTE_MXFP8_1D_SCALING;
  if (!is_16bit && !is_mx && (a.a.transposed || a.b.transposed)) {
    return unimplemented("grouped products take FP8 with the inner dimension last");
  }
  for (const NVTEXGroupedMatrix *x : {&a.a, &a.b, &a.d}) {
    bool fits = x->members != nullptr || ((x->outer_dims != nullptr || x->outer <= kMost) &&
                                          (x->inner_dims != nullptr || x->inner <= kMost));
    for (size_t i = 0; x->members != nullptr && i < a.num_tensors; ++i) {
      fits = fits && x->members[i].outer <= kMost && x->members[i].inner <= kMost;
    }
    if (!fits) return unimplemented("grouped products take sizes up to 2^29");
  }
  const bool blocks = !is_16bit && !is_mx && a.a.mode != NVTE_DELAYED_TENSOR_SCALING;
  const bool promote = blocks || (!is_16bit && !is_mx && a.split_accumulator);

  auto *at = static_cast<unsigned char *>(a.workspace);
  at += (256 - reinterpret_cast<uintptr_t>(at) % 256) % 256;
  auto *const end = static_cast<unsigned char *>(a.workspace) + a.workspace_bytes;
  SetupParams setup = {};
  setup.problems = reinterpret_cast<Problem *>(at);
  at += a.num_tensors * sizeof(Problem);
  auto *listed = reinterpret_cast<NVTEXGroupedMember *>(at);
  for (const NVTEXGroupedMatrix *x : {&a.a, &a.b, &a.c, &a.d}) {
    if (x->members != nullptr) at += a.num_tensors * sizeof(NVTEXGroupedMember);
  }
  setup.first = reinterpret_cast<unsigned *>(at);
  setup.next = setup.first + a.num_tensors + 1;
  at += (a.num_tensors + 2) * sizeof(unsigned);
  if (a.num_tensors > (1u << 24) || at > end) {
    return unimplemented("more members than the workspace has room for");
  }
  const auto matrix = [&](const NVTEXGroupedMatrix &x, Matrix *to) {
    const NVTEXGroupedMember *members = nullptr;
    if (x.members != nullptr) {
      members = listed;
      for (unsigned i = 0; i < count; i += kListed) {
        MemberList list = {};
        list.to = listed + i;
        list.count = count - i < kListed ? count - i : kListed;
        for (unsigned j = 0; j < list.count; ++j) list.members[j] = x.members[i + j];
        const NVTEXOutcome done = launch(grouped_gemm_list_kernel, dim3(1), 128, stream, list);
        if (done.status != NVTEX_BACKEND_OK) return done;
      }
      listed += count;
    }
    const int bytes = x.dtype == kNVTEFloat32                               ? 4
                      : x.dtype == kNVTEBFloat16 || x.dtype == kNVTEFloat16 ? 2
                                                                            : 1;
    const size_t entry = x.mode == NVTE_MXFP8_1D_SCALING ? 1 : sizeof(float);
    *to = {x.data,      members,     x.outer_dims, x.inner_dims,
           x.offsets,   x.scale_inv, x.elements,   x.scale_entries * entry,
           x.outer,     x.inner,     x.mode,       bytes,
           x.transposed};
    return ok();
  };
  for (const NVTEXOutcome &done : {matrix(a.a, &setup.a), matrix(a.b, &setup.b),
                                   matrix(a.c, &setup.c), matrix(a.d, &setup.d)}) {
    if (done.status != NVTEX_BACKEND_OK) return done;
  }
  setup.alpha = a.alpha;
  setup.beta = a.beta;
  setup.alpha_stride = a.alpha_stride;
  setup.beta_stride = a.beta_stride;
  setup.count = count;
  const int sms = a.sm_count > 0 && a.sm_count < device.sm_count ? a.sm_count : device.sm_count;
  setup.clusters = sms < 2 ? 1 : static_cast<unsigned>(sms) / 2;
  setup.tile_cols = promote || is_mx ? 128 : 256;
  {
    const uint64_t dims[2] = {64, 64}, steps[1] = {128};
    const uint32_t box[2] = {is_16bit ? 64u : 128u, kChunk};
    const NVTEXOutcome done = encode_map(&setup.map,
                                         a.a.dtype == kNVTEFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                         : is_16bit ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                    : CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                         2, setup.problems, dims, steps, box);
    if (done.status != NVTEX_BACKEND_OK) return done;
  }
  const unsigned threads = count < kSetupThreads ? (count + 31) / 32 * 32 : kSetupThreads;
  const NVTEXOutcome done = launch(grouped_gemm_setup_kernel, dim3(1), threads, stream, setup);
  if (done.status != NVTEX_BACKEND_OK) return done;
  const Params p = {setup.problems,
                    setup.first,
                    setup.next,
                    count,
                    a.d.dtype,
                    a.b.mode,
                    a.a.mode,
                    a.b.dtype == kNVTEFloat8E5M2,
                    a.a.dtype == kNVTEFloat8E5M2,
                    a.b.swizzled,
                    a.a.swizzled};
  if (is_mx) {
    return choose<BF16, Kind::kMx>(a.b.transposed, a.a.transposed)(p, setup.clusters, stream);
  }
  if (!is_16bit) {
    const bool rows_e4m3 = a.b.dtype == kNVTEFloat8E4M3, cols_e4m3 = a.a.dtype == kNVTEFloat8E4M3;
    const auto run = rows_e4m3 ? (cols_e4m3 ? choose_fp8<E4M3> : choose_fp8<E4M3TimesE5M2>)
                               : (cols_e4m3 ? choose_fp8<E5M2TimesE4M3> : choose_fp8<E5M2>);
    return run(promote)(p, setup.clusters, stream);
  }
  return dispatch<BF16, F16>(a.a.dtype, [&](auto tag) {
    return choose<decltype(tag), Kind::kPlain>(a.b.transposed, a.a.transposed)(p, setup.clusters,
                                                                               stream);
  });
}
