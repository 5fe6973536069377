// Products in BF16 or FP8 whose epilogue is an activation or its derivative, for compute capability
// 9.0: D = gelu(B A + bias), which also keeps what GELU was applied to, or its derivative there,
// and D = (B A) gelu'(aux) or (B A) aux, with the sums of D's columns. With operands in FP8 the
// derivative is always kept, SwiGLU is another function, and D is cast along its rows and its
// columns, or left in BF16, with its largest magnitude, to who casts it with a scale made of that.
//
// A block keeps its multiprocessor and takes tiles of 128 rows by 192 columns, one after the other.
// A producer copies operands, two consumers multiply 64 rows each and leave the tile, rounded to
// BF16, in shared memory, and other warps apply the function to it while the next tile is
// multiplied. Blocks come in clusters of two that share columns and copy half of their operand
// each.
//
// H200, November 2026, at the clock that its power allows, 16384 x 3072, k 768: with bias and GELU
// 131 us (cuBLASLt's epilogue 149, its product with a bias and a pass 115 + 50), with the
// derivative and sums 155 (438, 102 + 81). Of these the products take 105, and all but the
// arithmetic 132. With tiles of 256 columns, which leave registers for three warps, 132 and 179.
// Where aux has the derivative 138 and 131. H100, in FP8, 8192 x 16384, k 4096, casts included:
// with GELU 798 us (by cuBLASLt and a pass 767 + 193), with its derivative and sums 862 (769 +
// 277); SwiGLU of 14336 columns 1337 (1296 + 243), its derivative 845 (680 + 409). To BF16 804
// (780 + 185), 855 (781 + 265), 1353 (1318 + 233) and 835 (692 + 387).

#include "common/launch.cuh"
#include "common/limits.cuh"
#include "common/pipeline.cuh"
#include "common/tile.cuh"
#include "common/vec.cuh"
#include "common/wgmma.cuh"
#include "nvte/backend/gemm.h"

namespace nvte {
namespace sm90_gelu {
namespace {

constexpr int kRows = 128, kCols = 192;
constexpr int kStages = 4;
// Elements of the inner dimension in a stage.
constexpr int kDepthBf16 = 64, kDepthFp8 = 128;
constexpr int kRowBytes = kRows * 128, kStageBytes = kRowBytes + kCols * 128;
constexpr int kPanelBytes = kRows * 128;  // 64 columns of a tile of results.
constexpr int kPanels = kCols / 64;
// Two warpgroups of consumers, then a warp that produces, and those that apply the function.
constexpr int kConsumerThreads = 256;
constexpr int kFinishBarrier = 1;

// In: a tag of Product. kGated: SwiGLU, where a tile has as many columns of the gate as of what
// it opens for; only of FP8. Out: what D has. kPromote: sums of each 128 of the inner dimension
// are added up outside of the tensor cores, whose own sums of 8-bit products have fewer bits.
template <class In_, class Out_, bool kMnCols_, bool kDerivative_, bool kSlope_,
          bool kGated_ = false, bool kPromote_ = false>
struct Config {
  using In = In_;
  using Out = Out_;
  static constexpr bool kFp8 = !std::is_same_v<In, BF16>;  // The operands.
  static constexpr bool kMnCols = kMnCols_, kDerivative = kDerivative_, kSlope = kSlope_;
  static constexpr bool kGated = kGated_, kPromote = kPromote_;
  static constexpr int kDepth = kFp8 ? kDepthFp8 : kDepthBf16;
  // Columns of D that a tile gives.
  static constexpr int kTileCols = kGated && !kDerivative ? kCols / 2 : kCols;
  // Rows of a piece of a tile, of 64 columns, that a warp applies the function to.
  static constexpr int kPieceRows = kFp8 ? 64 : 16;
  static constexpr int kPiecesDown = kRows / kPieceRows, kPieces = kPanels * kPiecesDown;
  // Few warps take less power, and leave registers for promotion of all columns at a time.
  static constexpr bool kFew = kFp8 && !(kGated && kDerivative);
  static constexpr int kFinishWarps = kFew ? 3 : 7, kFinishThreads = 32 * kFinishWarps;
  static constexpr int kThreads = kConsumerThreads + 32 + kFinishThreads;
  static constexpr int kConsumerRegisters = kFew ? 208 : kPromote ? 168 : 144;
  static constexpr int kOtherRegisters = kFew || kPromote ? 88 : 112;
};

struct Params {
  CUtensorMap rows, cols;
  const void *bias;  // BF16 [m]; null: none.
  void *aux;         // BF16 [n, m]: read by derivatives, else written. SwiGLU: [n, 2 m].
  void *d;           // [n, m]; derivatives of SwiGLU: [n, 2 m].
  float *sums;       // [n / kRows, m]: sums of each tile's columns; null: not wanted.
  // FP8: D transposed, factors of both operands and of D, and D's largest magnitude and the
  // reciprocal of its factor; null: not wanted.
  void *columns;
  size_t columns_pitch;
  const float *scale_rows, *scale_cols, *scale_d;
  float *amax, *scale_inv;
  float alpha;
  int n, m, k;
  int band;  // Pairs of row tiles whose columns are walked together, for the sake of L2.
};

template <class C>
struct Control {
  Pipeline<kStages> stages;
  Pipeline<1> tile;  // Results that the consumers have left.
  alignas(16) uint16_t bias[2][kCols];
  alignas(16) float sums[2][C::kPieces][64];
};

constexpr int kAtTile = kStages * kStageBytes, kAtControl = kAtTile + kPanels * kPanelBytes;
template <class C>
constexpr int kSharedBytes = kAtControl + static_cast<int>(sizeof(Control<C>)) + 1024;

// The first row and column of a block's tile number i; false if there are no more.
template <class C>
__device__ __forceinline__ bool tile_at(const Params &p, int i, int &row, int &col) {
  const int cols = (p.m + C::kTileCols - 1) / C::kTileCols, pairs = p.n / (2 * kRows);
  const int pair = static_cast<int>(blockIdx.x / 2) + i * static_cast<int>(gridDim.x / 2);
  const int above = pair / (p.band * cols) * p.band, in = pair - above * cols;
  const int height = min(pairs - above, p.band);
  if (height <= 0 || in >= height * cols) return false;
  row = ((above + in % height) * 2 + static_cast<int>(blockIdx.x % 2)) * kRows;
  col = in / height * C::kTileCols;
  return true;
}

template <class C>
__device__ __forceinline__ void produce(const Params &p, unsigned char *shared,
                                        Control<C> &control) {
  if (threadIdx.x != kConsumerThreads) return;
  const int rank = static_cast<int>(cluster_ctarank());
  PipelineState<kStages> at;
  int row, col;
  for (int i = 0; tile_at<C>(p, i, row, col); ++i) {
    for (int inner = 0; inner < p.k; inner += C::kDepth, at.advance()) {
      control.stages.producer_acquire(at);
      unsigned char *const rows = shared + at.stage * kStageBytes, *const cols = rows + kRowBytes;
      uint64_t *const full = control.stages.barrier(at);
      const bool with_bias = !C::kGated && inner == 0 && p.bias != nullptr;
      const uint32_t bias_bytes = with_bias ? 2 * min(kCols, p.m - col) : 0;
      control.stages.producer_expect(at, kStageBytes + bias_bytes);
      if (with_bias) {
        cp_async_bulk_load(control.bias[i % 2], static_cast<const uint16_t *>(p.bias) + col,
                           bias_bytes, full);
      }
      cp_async_bulk_tensor_load(rows, &p.rows, full, {inner, row});
      // No box may begin outside of the matrix. Columns outside are multiplied for nothing.
      if constexpr (C::kGated && !C::kDerivative) {
        // One block has the gate, the other what it opens for.
        cp_async_bulk_tensor_load_multicast(cols + rank * kCols / 2 * 128, &p.cols, full, inner,
                                            min(col, p.m - 8) + rank * p.m);
      } else if constexpr (C::kMnCols) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          cp_async_bulk_tensor_load_multicast(cols + panel * 8192 + rank * 4096, &p.cols, full,
                                              min(col + panel * 64, p.m - 64), inner + rank * 32);
        }
      } else {
        cp_async_bulk_tensor_load_multicast(cols + rank * kCols / 2 * 128, &p.cols, full, inner,
                                            min(col + rank * kCols / 2, p.m - 8));
      }
    }
  }
}

__device__ __forceinline__ void stmatrix(uint32_t to, const uint32_t (&w)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
}

// A value that all lanes of the warp have, as the compiler knows of what a reduction gives: then it
// keeps what follows from it in registers of the warp, of which descriptors are made at once.
__device__ __forceinline__ int uniform(int value) {
  return static_cast<int>(__reduce_or_sync(0xffffffff, static_cast<unsigned>(value)));
}

// Adds the products of a stage to d.
template <class C>
__device__ __forceinline__ void multiply(float (&d)[kCols / 2], uint64_t rows, uint64_t cols,
                                         bool add) {
  constexpr uint32_t kColStep = C::kMnCols ? 2048 : 32;
  constexpr int kSteps = 4;
  using In = typename C::In;
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const uint64_t x = advance_descriptor(rows, s * 32), y = advance_descriptor(cols, s * kColStep);
    if constexpr (C::kFp8) {
      Product<In, kCols>::shared(d, x, y, add || s > 0);
    } else {
      Product<In, kCols>::template shared<false, C::kMnCols>(d, x, y, add || s > 0);
    }
  }
  wgmma_commit_group();
}

template <class C>
__device__ __forceinline__ void consume(const Params &p, unsigned char *shared, Control<C> &control,
                                        int w) {
  PipelineState<kStages> at;
  PipelineState<1> out;
  const int lane = static_cast<int>(threadIdx.x % 32),
            warp = static_cast<int>(threadIdx.x / 32 % 4);
  // Both blocks of a cluster copy to both, so that a stage is released at both.
  const auto release = [&](int stage) {
    if (lane < 2) mbarrier_arrive_remote(&control.stages.empty[stage], static_cast<unsigned>(lane));
  };
  const uint32_t base = shared_address(shared);
  const uint64_t rows_at = descriptor_k_major(base + w * 64 * 128);
  const uint64_t cols_at = C::kMnCols ? descriptor_mn_major(base + kRowBytes, 8192)
                                      : descriptor_k_major(base + kRowBytes);
  // Of the rows that the lane's address of stmatrix is of.
  const int own = 64 * w + 16 * warp + lane / 8 % 2 * 8 + lane % 8;
  const uint32_t to = base + kAtTile + own * 128;
  const float factor = C::kFp8 ? p.alpha * (*p.scale_rows * *p.scale_cols) : 1.0f;
  const int blocks = uniform(p.k / C::kDepth);
  int row, col;
  for (int i = 0; tile_at<C>(p, i, row, col); ++i) {
    float d[kCols / 2];
    int last = 0;
    at.stage = uniform(at.stage);
    if constexpr (C::kPromote) {
      constexpr int kPart = C::kFew ? kCols : kCols / 2;  // Columns that are promoted at a time.
#pragma unroll
      for (int j = 0; j < kCols / 2; ++j) d[j] = 0.0f;
      control.stages.consumer_wait(at);
#pragma unroll 1
      for (int block = 0; block < blocks; ++block) {
        const int stage = at.stage;
#pragma unroll
        for (int half = 0; half < kCols / kPart; ++half) {
          float part[kPart / 2];
          wgmma_fence();
#pragma unroll
          for (int s = 0; s < 4; ++s) {
            Product<typename C::In, kPart>::shared(
                part, advance_descriptor(rows_at, stage * kStageBytes + s * 32),
                advance_descriptor(cols_at, stage * kStageBytes + half * kPart * 128 + s * 32),
                s > 0);
          }
          wgmma_commit_group();
          // What does not depend on the products comes while they are made.
          if (half == 0 && block > 0) release(last);
          if (half == kCols / kPart - 1) {
            last = stage;
            at.advance();
            if (block + 1 < blocks) control.stages.consumer_wait(at);
          }
          wgmma_wait_group<0>();
          pin(part);
#pragma unroll
          for (int j = 0; j < kPart / 2; ++j) d[half * kPart / 2 + j] += part[j];
        }
      }
    } else {
#pragma unroll 1
      for (int block = 0; block < blocks; ++block, at.advance()) {
        control.stages.consumer_wait(at);
        multiply<C>(d, advance_descriptor(rows_at, at.stage * kStageBytes),
                    advance_descriptor(cols_at, at.stage * kStageBytes), block > 0);
        wgmma_wait_group<1>();
        if (block > 0) release(last);
        last = at.stage;
      }
      wgmma_wait_group<0>();
      pin(d);
    }
    release(last);
    control.tile.producer_acquire(out);
    const bool with_bias = p.bias != nullptr;
    const uint32_t *const bias = reinterpret_cast<const uint32_t *>(control.bias[i % 2]) + lane % 4;
#pragma unroll
    for (int j = 0; j < kCols / 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float b[2] = {0.0f, 0.0f};
        if (with_bias) BF16::to_float(bias[4 * (j + c)], b);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float *const from = d + 4 * (j + c) + 2 * h;
          const float sum[2] = {C::kFp8 ? __fmaf_rn(from[0], factor, b[0]) : from[0] + b[0],
                                C::kFp8 ? __fmaf_rn(from[1], factor, b[1]) : from[1] + b[1]};
          words[2 * c + h] = BF16::from_float(sum);
        }
      }
      const int unit = (j + lane / 16) % 8 ^ lane % 8;
      stmatrix(to + j / 8 * kPanelBytes + unit * 16, words);
    }
    __syncwarp();
    if (lane == 0) control.tile.producer_commit(out);
    out.advance();
  }
}

// GELU by tanh, x s with s = 1 / (1 + 2^z), z = x (t1 + t3 x^2), and its derivative. Below -9.9 the
// function is 0, above 9.9 x.
__device__ __forceinline__ float gelu_sigmoid(float x) {
  const float z = x * __fmaf_rn(-0.10294325f, x * x, -2.3022082f);
  float power, s;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(power + 1.0f));
  return s;
}
__device__ __forceinline__ float at_least(float x, float least) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(least));
  return x;
}
__device__ __forceinline__ float at_most(float x, float most) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(most));
  return x;
}
__device__ __forceinline__ float gelu(float x) {
  x = at_least(x, -9.9f);
  return x * gelu_sigmoid(x);
}
// The derivative at x between -9.9 and 9.9, from s.
__device__ __forceinline__ float slope_of(float x, float s) {
  return __fmaf_rn(x * __fmaf_rn(0.21406446f, x * x, 1.5957692f), __fmaf_rn(-s, s, s), s);
}
__device__ __forceinline__ float gelu_slope(float x) {
  x = at_most(at_least(x, -9.9f), 9.9f);
  return slope_of(x, gelu_sigmoid(x));
}
__device__ __forceinline__ float gelu(float x, float &slope) {
  x = at_least(x, -9.9f);
  const float bounded = at_most(x, 9.9f), s = gelu_sigmoid(bounded);
  slope = slope_of(bounded, s);
  return x * s;
}

// What nobody reads soon, or again, leaves L2 to what follows.
__device__ __forceinline__ void store_once(void *to, size_t at, const Vec<BF16, 8> &v) {
  __stcs(reinterpret_cast<uint4 *>(static_cast<uint16_t *>(to) + at),
         make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]));
}
__device__ __forceinline__ Vec<BF16, 8> load_once(const void *from, size_t at, bool exists) {
  uint4 x = {};
  if (exists) x = __ldcs(reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(from) + at));
  return {x.x, x.y, x.z, x.w};
}

// Adds up what the pieces of tile number i have left; by all threads that apply the function.
template <class C>
__device__ __forceinline__ void add_sums(const Params &p, const Control<C> &control, int i, int t,
                                         int row, int col) {
  bar_sync(kFinishBarrier, C::kFinishThreads);
  for (int c = t; c < min(kCols, p.m - col); c += C::kFinishThreads) {
    float all = 0.0f;
#pragma unroll
    for (int part = 0; part < C::kPiecesDown; ++part) {
      all += control.sums[i % 2][c / 64 * C::kPiecesDown + part][c % 64];
    }
    p.sums[row / kRows * static_cast<size_t>(p.m) + col + c] = all;
  }
}

// A warp takes pieces, a thread 8 columns of every fourth row. kSlope: `aux` has the derivative.
template <class C>
__device__ __forceinline__ void finish(const Params &p, unsigned char *shared,
                                       Control<C> &control) {
  using Lot = Vec<BF16, 8>;
  constexpr bool kDerivative = C::kDerivative, kSlope = C::kSlope;
  constexpr int kPieceRows = C::kPieceRows, kPiecesDown = C::kPiecesDown;
  constexpr int kLots = kPieceRows / 4;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int t = static_cast<int>(threadIdx.x) - (C::kThreads - C::kFinishThreads);
  const int warp = static_cast<int>(__shfl_sync(0xffffffff, t / 32, 0));
  const int unit = lane % 8, first = lane / 8;
  PipelineState<1> in;
  int row, col;
  const size_t pitch = static_cast<size_t>(p.m);
  for (int i = 0; tile_at<C>(p, i, row, col); ++i) {
    const size_t corner = (row + first) * pitch + col + unit * 8;
    const int pieces = min(kPanels, (p.m - col) / 64) * kPiecesDown;
    const auto place = [&](int piece, int r) {
      return corner + (piece % kPiecesDown * kPieceRows + 4 * r) * pitch + piece / kPiecesDown * 64;
    };
    Lot x[kLots], next[kLots];
    const auto fetch = [&](int piece) {
#pragma unroll
      for (int r = 0; r < kLots; ++r) {
        next[r] = load_once(p.aux, place(piece, r), piece < pieces);
      }
    };
    // The warps take turns in having a piece more.
    const int begin = (warp + i) % C::kFinishWarps;
    if constexpr (kDerivative) {
      fetch(begin);
    }
    control.tile.consumer_wait(in);
#pragma unroll 1
    for (int piece = begin; piece < pieces; piece += C::kFinishWarps) {
      if constexpr (kDerivative) {
#pragma unroll
        for (int r = 0; r < kLots; ++r) x[r] = next[r];
        fetch(piece + C::kFinishWarps);
      }
      const unsigned char *const from = shared + kAtTile + piece / kPiecesDown * kPanelBytes +
                                        (piece % kPiecesDown * kPieceRows + first) * 128;
      // All loads come before the first use, so that the warp waits once.
      Lot v[kLots];
#pragma unroll
      for (int r = 0; r < kLots; ++r) {
        const int swizzled = unit ^ (first + 4 * (r % 2));
        load_shared(reinterpret_cast<const uint32_t *>(from + 4 * r * 128 + swizzled * 16), v[r].w);
      }
      float sum[8] = {};
#pragma unroll
      for (int r = 0; r < kLots; ++r) {
        float f[8];
        to_float(v[r], f);
        if constexpr (kDerivative) {
          float input[8];
          to_float(x[r], input);
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            f[e] *= kSlope ? input[e] : gelu_slope(input[e]);
            sum[e] += f[e];
          }
        } else if constexpr (kSlope) {
          float slopes[8];
#pragma unroll
          for (int e = 0; e < 8; ++e) f[e] = gelu(f[e], slopes[e]);
          store_once(p.aux, place(piece, r), from_float<BF16>(slopes));
        } else {
          store(p.aux, place(piece, r), v[r]);
#pragma unroll
          for (int e = 0; e < 8; ++e) f[e] = gelu(f[e]);
        }
        store(p.d, place(piece, r), from_float<BF16>(f));
      }
      if (kDerivative && p.sums != nullptr) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          sum[e] += __shfl_xor_sync(0xffffffff, sum[e], 8);
          sum[e] += __shfl_xor_sync(0xffffffff, sum[e], 16);
        }
        if (lane < 8) {
          float *const to = control.sums[i % 2][piece] + unit * 8;
#pragma unroll
          for (int e = 0; e < 8; ++e) to[e] = sum[e];
        }
      }
    }
    __syncwarp();
    if (lane == 0) control.tile.consumer_release(in);
    if (kDerivative && p.sums != nullptr) add_sums<C>(p, control, i, t, row, col);
    in.advance();
  }
}

// SwiGLU, g s u with s = 1 / (1 + e^-g), and its derivatives by both.
__device__ __forceinline__ float swiglu(float g, float u, float &by_gate, float &by_other) {
  float power, s;
  g = at_least(g, -86.0f);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(g * -1.4426950f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(power + 1.0f));
  by_other = g * s;
  by_gate = u * __fmaf_rn(by_other, 1.0f - s, s);
  return by_other * u;
}

// As finish(), of operands in FP8: results are FP8, which go to D along its rows and, turned round
// where the piece has lain, along its columns, or BF16, along the rows alone. A thread takes 8
// columns of four neighbouring rows at a time, a warp the lines of a step: 16, or 32 where the
// piece has 32 columns of each of two operands.
template <class C>
__device__ __forceinline__ void finish_fp8(const Params &p, unsigned char *shared,
                                           Control<C> &control) {
  using Out = typename C::Out;
  using Lot = Vec<BF16, 8>;
  constexpr bool kCodes = Out::kBytes == 1;
  static_assert(C::kSlope, "derivatives are left, or multiplied by");
  constexpr bool kDerivative = C::kDerivative, kTwoIn = C::kGated && !kDerivative;
  constexpr int kOutputs = C::kGated && kDerivative ? 2 : 1;
  constexpr int kSlopes = C::kGated ? 2 : 1;
  constexpr int kUnits = kTwoIn ? 4 : 8, kPieceCols = 8 * kUnits;
  constexpr int kStepRows = 128 / kUnits, kSteps = C::kPieceRows / kStepRows;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int t = static_cast<int>(threadIdx.x) - (C::kThreads - C::kFinishThreads);
  const int warp = static_cast<int>(__shfl_sync(0xffffffff, t / 32, 0));
  const int unit = lane % kUnits, quad = lane / kUnits;
  const size_t aux_pitch = static_cast<size_t>(p.m) * kSlopes;
  const size_t pitch = static_cast<size_t>(p.m) * kOutputs;
  auto *const columns = static_cast<uint8_t *>(p.columns);
  const float scale = kCodes ? *p.scale_d : 1.0f;
  float amax = 0.0f;
  PipelineState<1> in;
  int row, col;
  for (int i = 0; tile_at<C>(p, i, row, col); ++i) {
    control.tile.consumer_wait(in);
#pragma unroll 1
    for (int piece = (warp + i) % C::kFinishWarps; piece < C::kPieces; piece += C::kFinishWarps) {
      const int down = piece / kPanels, across = piece % kPanels;
      const int col0 = col + across * kPieceCols, row0 = row + down * C::kPieceRows;
      if (col0 >= p.m) continue;
      unsigned char *const lines = shared + kAtTile + down * C::kPieceRows * 128;
      // Where 8 columns from `at` on are in line r.
      const auto place = [&](int at, int r) {
        return lines + at / 64 * kPanelBytes + r * 128 + ((at % 64 / 8 + unit) ^ r % 8) * 16;
      };
      // Where 16 codes of a column, the thread's number `e`, of output o are in step s.
      const auto turned = [&](int s, int o, int e, int unit, int half) {
        const int line = kTwoIn ? e % 4 + 4 * half + e / 4 * 8 : unit + 8 * o;
        const int at = across * kPieceCols;
        const int first = kTwoIn ? at % 64 / 8 + unit : e;
        return lines + at / 64 * kPanelBytes + (s * kStepRows + line) * 128 +
               (first ^ line % 8) * 16;
      };
      float sum[8] = {};
#pragma unroll 1
      for (int s = 0; s < kSteps; ++s) {
        const int line = s * kStepRows + quad * 4;
        Lot v[4], more[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          load_shared(reinterpret_cast<const uint32_t *>(place(across * kPieceCols, line + r)),
                      v[r].w);
          if constexpr (kTwoIn) {
            load_shared(reinterpret_cast<const uint32_t *>(
                            place(kCols / 2 + across * kPieceCols, line + r)),
                        more[r].w);
          }
        }
        // All lanes have what lies where the codes go.
        __syncwarp();
#pragma unroll 1
        for (int o = 0; o < kOutputs; ++o) {
          Vec<Out, 8> results[4];
          Lot slopes[4];
          if constexpr (kDerivative) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              slopes[r] =
                  load_once(p.aux, (row0 + line + r) * aux_pitch + o * p.m + col0 + 8 * unit, true);
            }
          }
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            float f[8];
            to_float(v[r], f);
            if constexpr (kDerivative) {
              float slope[8];
              to_float(slopes[r], slope);
#pragma unroll
              for (int e = 0; e < 8; ++e) f[e] *= slope[e];
              if constexpr (!C::kGated) {
#pragma unroll
                for (int e = 0; e < 8; ++e) sum[e] += f[e];
              }
            } else {
              float slope[kSlopes][8];
              if constexpr (kTwoIn) {
                float other[8];
                to_float(more[r], other);
#pragma unroll
                for (int e = 0; e < 8; ++e) f[e] = swiglu(f[e], other[e], slope[0][e], slope[1][e]);
              } else {
#pragma unroll
                for (int e = 0; e < 8; ++e) f[e] = gelu(f[e], slope[0][e]);
              }
#pragma unroll
              for (int g = 0; g < kSlopes; ++g) {
                store_once(p.aux, (row0 + line + r) * aux_pitch + g * p.m + col0 + 8 * unit,
                           from_float<BF16>(slope[g]));
              }
            }
#pragma unroll
            for (int e = 0; e < 8; ++e) {
              amax = fmaxf(amax, fabsf(f[e]));
              if constexpr (kCodes) f[e] = __fmul_rn(f[e], scale);
            }
            results[r] = from_float<Out>(f);
            store(p.d, (row0 + line + r) * pitch + o * p.m + col0 + 8 * unit, results[r]);
          }
#pragma unroll
          for (int j = 0; kCodes && j < 2; ++j) {
            const uint32_t by_row[4] = {results[0].w[j], results[1].w[j], results[2].w[j],
                                        results[3].w[j]};
            uint32_t by_col[4];
            transpose_words(by_row, by_col);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              unsigned char *const to = turned(s, o, 4 * j + e, unit, quad / 4);
              *reinterpret_cast<uint32_t *>(to + quad % 4 * 4) = by_col[e];
            }
          }
        }
      }
      __syncwarp();
#pragma unroll
      for (int o = 0; kCodes && o < kOutputs; ++o) {
#pragma unroll 4
        for (int j = 0; j < kPieceCols / 8; ++j) {
          const int own = kTwoIn ? lane % 4 : j, e = kTwoIn ? 2 * j + lane / 16 : lane % 8;
          const int s = kTwoIn ? lane / 8 % 2 : lane / 8, half = kTwoIn ? lane / 4 % 2 : 0;
          Vec<Raw<uint8_t>, 16> line;
          load_shared(reinterpret_cast<const uint32_t *>(turned(s, o, e, own, half)), line.w);
          const size_t to = static_cast<size_t>(o * p.m + col0 + 8 * own + e) * p.columns_pitch +
                            row0 + s * kStepRows + 16 * half;
          __stcs(reinterpret_cast<uint4 *>(columns + to),
                 make_uint4(line.w[0], line.w[1], line.w[2], line.w[3]));
        }
      }
      if constexpr (kDerivative && !C::kGated) {
        if (p.sums != nullptr) {
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            sum[e] += __shfl_xor_sync(0xffffffff, sum[e], 8);
            sum[e] += __shfl_xor_sync(0xffffffff, sum[e], 16);
          }
          if (lane < 8) {
            float *const to = control.sums[i % 2][across * C::kPiecesDown + down] + unit * 8;
#pragma unroll
            for (int e = 0; e < 8; ++e) to[e] = sum[e];
          }
        }
      }
    }
    __syncwarp();
    if (lane == 0) control.tile.consumer_release(in);
    if constexpr (kDerivative && !C::kGated) {
      if (p.sums != nullptr) add_sums<C>(p, control, i, t, row, col);
    }
    in.advance();
  }
  if constexpr (!kCodes) {
    // That of what is stored.
    const float pair[2] = {amax, 0.0f};
    amax = __uint_as_float(BF16::from_float(pair) << 16);
  }
  const int most = warp_max(__float_as_int(amax));
  if (lane == 0 && p.amax != nullptr) atomicMax(reinterpret_cast<int *>(p.amax), most);
  if (blockIdx.x == 0 && t == 0 && p.scale_inv != nullptr) *p.scale_inv = 1.0f / scale;
}

// Compilers refuse clusters for GPUs before compute capability 9.0.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define NVTE_PAIRS __cluster_dims__(2, 1, 1)
#else
#define NVTE_PAIRS
#endif

template <class C>
__global__ void NVTE_PAIRS __launch_bounds__(C::kThreads, 1)
    gelu_product_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char dynamic[];
  unsigned char *const shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  auto &control = *reinterpret_cast<Control<C> *>(shared + kAtControl);
  if (threadIdx.x == 0) {
    control.stages.init(1, 16);  // Released by the eight warps of the consumers of both blocks.
    control.tile.init(8, C::kFinishWarps);
    fence_mbarrier_init();
  }
  cluster_sync();
  griddepcontrol_wait();
  // The shuffle tells the compiler that all lanes of a warp have the same number.
  const int warp = static_cast<int>(__shfl_sync(0xffffffff, threadIdx.x / 32, 0));
  if (warp < kConsumerThreads / 32) {
    setmaxnreg_inc<C::kConsumerRegisters>();
    consume<C>(p, shared, control, warp / 4);
  } else {
    setmaxnreg_dec<C::kOtherRegisters>();
    if (warp == kConsumerThreads / 32) {
      produce<C>(p, shared, control);
    } else if constexpr (C::kFp8) {
      finish_fp8<C>(p, shared, control);
    } else {
      finish<C>(p, shared, control);
    }
  }
  // Neither block ends while the other may still arrive at its barriers.
  __syncwarp();
  cluster_sync();
#endif
}

// Sums over the tiles of each column.
constexpr int kSumCols = 32, kSumRows = 16;
__global__ void __launch_bounds__(kSumCols *kSumRows)
    gelu_sums_kernel(const float *sums, int rows, int m, void *to, bool f32) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  __shared__ float parts[kSumRows][kSumCols];
  const int x = static_cast<int>(threadIdx.x % kSumCols),
            y = static_cast<int>(threadIdx.x / kSumCols);
  const int col = static_cast<int>(blockIdx.x) * kSumCols + x;
  float sum = 0.0f;
#pragma unroll 8
  for (int r = y; r < rows; r += kSumRows) sum += sums[static_cast<size_t>(r) * m + col];
  parts[y][x] = sum;
  __syncthreads();
  if (y > 0) return;
#pragma unroll
  for (int r = 1; r < kSumRows; ++r) sum += parts[r][x];
  const float f[1] = {sum};
  if (f32) {
    store(to, static_cast<size_t>(col), from_float<F32>(f));
  } else {
    store(to, static_cast<size_t>(col), from_float<BF16>(f));
  }
}

}  // namespace
}  // namespace sm90_gelu
}  // namespace nvte

namespace nvte {
namespace sm90_gelu {
namespace {

template <class C>
NVTEXOutcome run(const Params &p, unsigned blocks, cudaStream_t stream) {
  static_assert(kSharedBytes<C> <= most_shared(90), "shared memory of a block");
  return launch_shared(gelu_product_kernel<C>, dim3(blocks), C::kThreads, kSharedBytes<C>, stream,
                       p);
}

// FP8: the functions leave their derivatives, and only the derivatives promote sums.
template <bool kGated, bool kCodes>
NVTEXOutcome run_fp8(const NVTEXGemmArgs &a, bool derivative, const Params &p, unsigned blocks,
                     cudaStream_t stream) {
  using Out = std::conditional_t<kCodes, E4M3, BF16>;
  if (!derivative) return run<Config<E4M3, Out, false, false, true, kGated>>(p, blocks, stream);
  if (a.b_dtype == kNVTEFloat8E4M3) {
    return run<Config<E4M3, Out, false, true, true, kGated, true>>(p, blocks, stream);
  }
  using OutE5M2 = std::conditional_t<kCodes, E5M2, BF16>;
  return run<Config<E5M2TimesE4M3, OutE5M2, false, true, true, kGated, true>>(p, blocks, stream);
}

}  // namespace
}  // namespace sm90_gelu
}  // namespace nvte

// Unimplemented if the product is not one that the kernel takes.
extern "C" NVTEXOutcome nvte_cuda_gelu_product(const NVTEXGemmArgs *args,
                                               cudaStream_t stream) noexcept {
  using namespace nvte;
  using namespace nvte::sm90_gelu;
  const NVTEXGemmArgs &a = *args;
  const bool gated = a.epilogue == NVTEX_EPILOGUE_SWIGLU || a.epilogue == NVTEX_EPILOGUE_DSWIGLU;
  const bool derivative = a.epilogue == NVTEX_EPILOGUE_DGELU ||
                          a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD ||
                          a.epilogue == NVTEX_EPILOGUE_DSWIGLU;
  const bool with_bias =
      a.epilogue == NVTEX_EPILOGUE_GELU_BIAS || a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD;
  if (!gated && !derivative && a.epilogue != NVTEX_EPILOGUE_GELU &&
      a.epilogue != NVTEX_EPILOGUE_GELU_BIAS) {
    return unimplemented("the epilogue has no activation");
  }
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  if (device.arch != 90) return unimplemented("these products run on compute capability 9.0");
  const bool fp8 = a.a_dtype == kNVTEFloat8E4M3, codes = a.d_columns != nullptr;
  // What derivatives multiply and what comes of it in FP8 has one format.
  const NVTEDType rows_dtype = !fp8                                         ? kNVTEBFloat16
                               : derivative && a.b_dtype == kNVTEFloat8E5M2 ? kNVTEFloat8E5M2
                                                                            : kNVTEFloat8E4M3;
  const bool dtypes =
      a.a_dtype == (fp8 ? kNVTEFloat8E4M3 : kNVTEBFloat16) && a.b_dtype == rows_dtype &&
      a.d_dtype == (codes ? rows_dtype : kNVTEBFloat16) && a.aux_dtype == kNVTEBFloat16 &&
      (!with_bias || a.bias_dtype == kNVTEBFloat16 || (derivative && a.bias_dtype == kNVTEFloat32));
  constexpr size_t kMost = 1 << 29;
  const size_t depth = fp8 ? kDepthFp8 : kDepthBf16;
  const size_t sums = a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD ? a.n / kRows * a.m * 4 : 0;
  // The bias of a tile comes with its first stage, and that of the next one must not overtake it.
  const bool sizes = a.n % (2 * kRows) == 0 && a.m % 64 == 0 && a.k % depth == 0 &&
                     a.k > kStages * depth && a.n < kMost && a.m < kMost && a.k < kMost &&
                     sums <= a.workspace_bytes;
  bool aligned_16 = a.m > 0 && a.n > 0 && a.d_columns_pitch % 16 == 0;
  for (const void *data :
       {a.a, a.b, static_cast<const void *>(a.d), static_cast<const void *>(a.aux),
        static_cast<const void *>(a.bias), static_cast<const void *>(a.d_columns)}) {
    aligned_16 = aligned_16 && aligned(data, 16);
  }
  const bool fp8_only = codes || a.alpha != 1.0f || a.amax_d != nullptr;
  if (!dtypes || !sizes || !aligned_16 || a.transb || (!fp8 && fp8_only) || a.beta != 0.0f ||
      a.sm_count != 0) {
    return unimplemented("the product is not one of whole tiles in BF16 or FP8");
  }
  if (fp8 && (!a.transa || !a.aux_slope || a.split_accumulator != derivative)) {
    return unimplemented("an activation in FP8 leaves its derivative, whose product promotes sums");
  }
  if (!fp8 && (gated || (a.aux_slope && a.transa == derivative))) {
    return unimplemented("GELU leaves its derivative to a product with the weight as it lies");
  }
  Params p = {};
  p.bias = a.epilogue == NVTEX_EPILOGUE_GELU_BIAS ? a.bias : nullptr;
  p.aux = a.aux;
  p.d = a.d;
  p.sums = sums > 0 ? static_cast<float *>(a.workspace) : nullptr;
  p.columns = a.d_columns;
  p.columns_pitch = a.d_columns_pitch;
  p.scale_rows = static_cast<const float *>(a.scales_b.inv);
  p.scale_cols = static_cast<const float *>(a.scales_a.inv);
  p.scale_d = a.scale_d;
  p.amax = a.amax_d;
  p.scale_inv = a.scale_inv_d;
  p.alpha = a.alpha;
  p.n = static_cast<int>(a.n);
  p.m = static_cast<int>(a.m);
  p.k = static_cast<int>(a.k);
  constexpr size_t kLargeWeight = 16 << 20;
  p.band = a.m * a.k * (fp8 ? 1 : 2) > kLargeWeight ? 8 : 4;
  const auto map = [&](CUtensorMap *to, const void *data, size_t outer, size_t inner,
                       uint32_t lines) {
    const uint64_t dims[2] = {inner, outer}, steps[1] = {inner * (fp8 ? 1 : 2)};
    const uint32_t box[2] = {fp8 ? 128u : 64u, lines};
    const auto type = fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return encode_tensor_map(to, type, 2, data, dims, steps, box);
  };
  NVTEXOutcome done = map(&p.rows, a.b, a.n, a.k, kRows);
  if (done.status == NVTEX_BACKEND_OK) {
    const size_t outer = gated && !derivative ? 2 * a.m : a.m;
    done = a.transa ? map(&p.cols, a.a, outer, a.k, kCols / 2)
                    : map(&p.cols, a.a, a.k, a.m, kDepthBf16 / 2);
  }
  if (done.status != NVTEX_BACKEND_OK) return done;
  const unsigned blocks = static_cast<unsigned>(device.sm_count) / 2 * 2;
  if (fp8) {
    const auto with_result = [&](auto codes) {
      constexpr bool kCodes = decltype(codes)::value;
      return gated ? run_fp8<true, kCodes>(a, derivative, p, blocks, stream)
                   : run_fp8<false, kCodes>(a, derivative, p, blocks, stream);
    };
    done = codes ? with_result(std::true_type{}) : with_result(std::false_type{});
  } else if (a.aux_slope) {
    done = derivative ? run<Config<BF16, BF16, true, true, true>>(p, blocks, stream)
                      : run<Config<BF16, BF16, false, false, true>>(p, blocks, stream);
  } else if (a.transa) {
    done = derivative ? run<Config<BF16, BF16, false, true, false>>(p, blocks, stream)
                      : run<Config<BF16, BF16, false, false, false>>(p, blocks, stream);
  } else {
    done = derivative ? run<Config<BF16, BF16, true, true, false>>(p, blocks, stream)
                      : run<Config<BF16, BF16, true, false, false>>(p, blocks, stream);
  }
  if (done.status != NVTEX_BACKEND_OK || p.sums == nullptr) return done;
  return launch(gelu_sums_kernel, dim3(static_cast<unsigned>(p.m / kSumCols)), kSumCols * kSumRows,
                stream, p.sums, p.n / kRows, p.m, a.bias, a.bias_dtype == kNVTEFloat32);
}
