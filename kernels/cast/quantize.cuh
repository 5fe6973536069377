// Casts to FP8 in tiles of 128 x 128, with a scale per tensor or per block of elements (1 x 128,
// 128 x 128, 1 x 32 or 32 x 32), of the input or a function of it; row-wise, column-wise or both
// from one read of the inputs.
#pragma once

#include <cfloat>
#include <type_traits>

#include "entries.cuh"
#include "function.cuh"
#include "common/group.cuh"
#include "common/ptx.cuh"
#include "common/scale.cuh"
#include "common/tile.cuh"
#include "common/widened.cuh"

namespace nvte {

// 16 lanes span the columns of a tile, a thread has 4 rows of 8 columns.
constexpr int kTile = 128;
constexpr int kThreads = 512;
constexpr int kLanes = 16, kVec = 8, kPack = 4;
constexpr int kWarps = kThreads / 32, kWarpRows = 2 * kPack;
static_assert(kLanes * kVec == kTile && kWarps * kWarpRows == kTile, "a block covers a tile");

// FP8 of either format.
using Codes = Vec<Raw<uint8_t>, kVec>;

// Mode 0: one scale for all of a matrix.
struct TensorScale {
  using Entry = float;
  static constexpr int kBlock = kTile;
  static constexpr bool kMx = false;
};

// What a block must know of the matrix that its tile is part of.
struct Matrix {
  size_t rows, cols;  // Of the output.
  size_t at;          // Its first element in the buffers.
  void *row_scales, *col_scales;
  size_t row_stride, col_stride;  // Of the scale matrices.
  const float *scale;             // Mode 0.
  size_t row_tiles;               // Tiles of 128 rows before it in the workspace for dbias.
  bool in_vec;  // Whether every vector that is loaded is aligned and inside or outside as a whole,
  bool row_vec, col_vec;  // and every vector that is stored.
};

// Whose tiles a grid has: those of a single matrix, or those of a group, with a block for each or
// in a loop, which costs registers.
enum class Tiles { kSingle, kOneEach, kLoop };

template <class Scale>
struct TileCastArgs {
  NVTEXQuantizeArgs q;
  Matrix matrix;  // Unless there is a group.
  Scale scale;
  Function function;
  bool e5m2;
  // Blocks go over the tiles along the rows, or down the columns: whichever output is written in
  // the order of the blocks leaves L2 in long runs.
  bool down;
  // A block makes a tile of both halves of a gated derivative from one read; else of the output.
  bool split;
  FastDivisor tiles_per_line;
  uint32_t tiles;  // Of a lone matrix.
  // A block prefetches the tile that comes so many later, unless an earlier one has done so its
  // own.
  uint32_t ahead;
  // Of a group: the first tile of the launch, what no tile of it reaches, whether find_line() knows
  // the members, tiles of their common dimension, and what is before them of data, scales row by
  // row and column by column, and tiles of 128 rows.
  uint32_t first_tile, end_tile;
  bool lines;
  FastDivisor tiles_across;
  MemberTotal totals[4];
};

// A tile, and what a thread has of it.
struct ThreadTile {
  size_t row0, col0;
  int height, width;      // What is inside the matrix.
  int warp, group, word;  // word: which rows, of the two lots of the warp
  int row, col;           // The thread's first element.
  int rows, cols;         // What is inside from there on.

  __device__ __forceinline__ ThreadTile(const Matrix &m, size_t row0, size_t col0, size_t end)
      : row0(row0), col0(col0) {
    const int lane = threadIdx.x % 32;
    height = left_of(m.rows - row0, kTile);
    width = left_of(end - col0, kTile);
    warp = threadIdx.x / 32;
    group = lane % kLanes;
    word = lane / kLanes;
    row = warp * kWarpRows + word * kPack;
    col = group * kVec;
    rows = height - row;
    cols = width - col;
  }
};

inline __host__ __device__ bool aligned_to(const void *p, size_t offset, size_t bytes) {
  return (reinterpret_cast<uintptr_t>(p) + offset) % bytes == 0;
}

template <class In, class Scale, NVTEXForm kForm>
__host__ __device__ void set_data(Matrix &matrix, const NVTEXQuantizeArgs &q, size_t index,
                                  size_t rows, size_t cols, size_t at) {
  const size_t in = at * bytes_of<In>(q.input_dtype);
  const bool whole = cols / kHalvesOf<kForm> % kVec == 0;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.at = at;
  matrix.scale = q.scale == nullptr ? nullptr : q.scale + index;
  matrix.in_vec = whole && aligned_to(q.input, in, 16) && aligned_to(q.fusion.act_input, in, 16);
  matrix.row_vec = whole && aligned_to(q.rowwise, at, kVec);
  matrix.col_vec = Scale::kMx ? whole && aligned_to(q.colwise, at, kVec)
                              : rows % 16 == 0 && aligned_to(q.colwise, at, 16);
}

template <class Scale, bool kSquare>
constexpr NVTEScalingMode kModeOf = std::is_same_v<Scale, TensorScale> ? NVTE_DELAYED_TENSOR_SCALING
                                    : Scale::kMx                       ? NVTE_MXFP8_1D_SCALING
                                    : kSquare                          ? NVTE_BLOCK_SCALING_2D
                                                                       : NVTE_BLOCK_SCALING_1D;

template <class Scale, bool kSquare>
__device__ __forceinline__ ScaleMatrix scales_of(const NVTEXQuantizeArgs &q, const Matrix &m,
                                                 bool colwise) {
  const bool tiled = Scale::kMx && q.swizzled;
  return scale_matrix(kModeOf<Scale, kSquare>, colwise ? m.col_scales : m.row_scales,
                      colwise ? m.col_stride : m.row_stride, colwise,
                      tiled ? tiles_of(colwise ? m.rows : m.cols) : 0);
}

// Maximum over kLength lanes, a power of two, beginning with lanes kFirst apart.
template <class In, int kLength, int kFirst = 1, int kCount>
__device__ __forceinline__ void lanes_max(uint32_t (&w)[kCount]) {
#pragma unroll
  for (int step = kFirst; step < kFirst * kLength; step *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      w[i] = max_packed<In>(w[i], __shfl_xor_sync(0xffffffffu, w[i], step));
    }
  }
}

// Of the lane's row among its four, lane % 4: the maximum over the kBlock columns of the lane's
// block.
template <int kBlock, class In>
__device__ __forceinline__ float own_row_max(const Vec<In, kVec> (&x)[kPack]) {
  AbsMax<In> row[kPack];
#pragma unroll
  for (int p = 0; p < kPack; ++p) row[p].add(x[p]);
  if constexpr (In::kBytes == 2) {
    // Two rows share a word.
    uint32_t w[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t a = row[2 * i].packed, b = row[2 * i + 1].packed;
      w[i] = max_packed<In>(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
    }
    lanes_max<In, kBlock / kVec>(w);
    float f[2];
    In::to_float(threadIdx.x & 2 ? w[1] : w[0], f);
    return threadIdx.x & 1 ? f[1] : f[0];
  } else {
    uint32_t w[kPack];
#pragma unroll
    for (int p = 0; p < kPack; ++p) w[p] = row[p].packed;
    lanes_max<In, kBlock / kVec>(w);
    const uint32_t lo = threadIdx.x & 1 ? w[1] : w[0], hi = threadIdx.x & 1 ? w[3] : w[2];
    return __uint_as_float(threadIdx.x & 2 ? hi : lo);
  }
}

__device__ __forceinline__ Codes encode(bool e5m2, const float (&f)[kVec]) {
  Codes y;
  if (e5m2) {
    const Vec<E5M2, kVec> v = from_float<E5M2>(f);
    y.w[0] = v.w[0], y.w[1] = v.w[1];
  } else {
    const Vec<E4M3, kVec> v = from_float<E4M3>(f);
    y.w[0] = v.w[0], y.w[1] = v.w[1];
  }
  return y;
}

// The rows multiplied by factor(row) or, by column, factor(row)[column].
template <class Out, class In, class Factor>
__device__ __forceinline__ void scaled_rows(const Vec<In, kVec> (&x)[kPack], const Factor &factor,
                                            Codes (&y)[kPack]) {
#pragma unroll
  for (int p = 0; p < kPack; ++p) {
    float f[kVec];
    to_float(x[p], f);
    const auto by = factor(p);
    // The product of a NaN is the positive NaN, so that every NaN becomes 0x7F.
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if constexpr (sizeof(by) == sizeof(float)) {
        f[i] = __fmul_rn(f[i], by);
      } else {
        f[i] = __fmul_rn(f[i], by[i]);
      }
    }
    const Vec<Out, kVec> v = from_float<Out>(f);
    y[p].w[0] = v.w[0], y[p].w[1] = v.w[1];
  }
}
template <class In, class Factor>
__device__ __forceinline__ void scaled_rows(bool e5m2, const Vec<In, kVec> (&x)[kPack],
                                            const Factor &factor, Codes (&y)[kPack]) {
  if (e5m2) {
    scaled_rows<E5M2>(x, factor, y);
  } else {
    scaled_rows<E4M3>(x, factor, y);
  }
}

template <class Scale>
__device__ __forceinline__ void put_scale(const ScaleMatrix &m, size_t line, size_t block,
                                          bool inside, typename Scale::Entry entry) {
  if (!inside) {
    if (!Scale::kMx) return;
    entry = 0;
  }
  static_cast<typename Scale::Entry *>(m.entries)[m.index(line, block)] = entry;
}

__device__ __forceinline__ void store_rows(void *out, bool vectorised, const Matrix &m,
                                           const ThreadTile &my, const Codes (&y)[kPack]) {
  const size_t at = m.at + (my.row0 + my.row) * m.cols + my.col0 + my.col;
  if (vectorised) {
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      if (p < my.rows && my.cols > 0) store(out, at + p * m.cols, y[p]);
    }
  } else {
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      store_some(out, at + p * m.cols, p < my.rows ? my.cols : 0, y[p]);
    }
  }
}

// Through shared memory, column by column: chunks of 16 bytes are permuted by eight of the lane
// groups, and their halves exchanged by the other eight, so that neither the word writes nor the
// chunk reads meet in a bank.
__device__ __forceinline__ void store_columns(uint32_t *tile, void *out, const Matrix &m,
                                              const ThreadTile &my, const Codes (&y)[kPack]) {
  constexpr int kWords = kTile / kPack, kChunks = kTile / 16, kStep = kThreads / kChunks;
  static_assert(kStep == kTile / 2, "the halves of a chunk are exchanged in the second step");
  const int place =
      ((my.warp / 2) ^ (my.group % 8)) * 4 + ((my.warp % 2 * 2 + my.word) ^ (my.group / 8 * 2));
#pragma unroll
  for (int j = 0; j < kVec / kPack; ++j) {
    uint32_t by_row[kPack], by_col[kPack];
#pragma unroll
    for (int p = 0; p < kPack; ++p) by_row[p] = y[p].w[j];
    transpose_words(by_row, by_col);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      tile[(my.group * kVec + j * kPack + i) * kWords + place] = by_col[i];
    }
  }
  __syncthreads();
  const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int c = first + k * kStep;
    uint32_t w[4];
    load_shared(tile + c * kWords + (chunk ^ (c / kVec % 8)) * 4, w);
    const Vec<Raw<uint8_t>, 16> v = {{w[2 * k], w[2 * k + 1], w[2 - 2 * k], w[3 - 2 * k]}};
    const int count = c < my.width ? my.height - chunk * 16 : 0;
    const size_t to = m.at + (my.col0 + c) * m.rows + my.row0 + chunk * 16;
    if (m.col_vec) {
      if (count > 0) store(out, to, v);
    } else {
      store_some(out, to, count, v);
    }
  }
}

template <class In, class Scale, bool kSquare, bool kDbias>
struct TileShared {
  static constexpr bool kTensor = std::is_same_v<Scale, TensorScale>;
  static constexpr int kBlocks = kTile / Scale::kBlock, kPer = 4 / In::kBytes;
  alignas(16) uint32_t tile[Scale::kMx ? 4 : kTile * kTile / 4];
  alignas(16) uint32_t maxima[kTensor ? 4 : kSquare ? kBlocks * kWarps : kWarps * kTile / kPer];
  alignas(16) float factors[kTensor || kSquare ? 4 : kBlocks * kTile];
  alignas(16) float sums[kDbias ? kWarps * kTile : 4];
  BlockMax<kThreads> block;
};

// Scales and stores a tile of the elements x. kSquare: one scale for kBlock rows and columns, else
// one for each row and one for each column of a block.
template <class In, class Scale, bool kSquare, class Shared>
__device__ __forceinline__ void cast_blocks(const TileCastArgs<Scale> &args, const Matrix &m,
                                            const ThreadTile &my, const Vec<In, kVec> (&x)[kPack],
                                            Shared &shared) {
  using Entry = typename Scale::Entry;
  constexpr int kBlock = Scale::kBlock, kBlocks = kTile / kBlock;
  constexpr int kSpan = kBlock / kVec;         // Lanes of a block.
  constexpr int kHeight = kBlock / kWarpRows;  // Warps of a block.
  constexpr int kColWords = Vec<In, kVec>::kWords, kPer = Vec<In, kVec>::kPerWord;
  const int lane = threadIdx.x % 32;
  const NVTEXQuantizeArgs &q = args.q;

  if (Scale::kMx && q.amax != nullptr) {
    AbsMax<In> amax;
#pragma unroll
    for (int p = 0; p < kPack; ++p) amax.add(x[p]);
    shared.block.put(amax.bits());
    __syncthreads();
    if (my.warp == 0) {
      int *to = reinterpret_cast<int *>(q.amax);
      const int bits = shared.block.get();
      // Atomics on one address are slow, reads of it are not.
      if (lane == 0 && bits > __ldcg(to)) atomicMax(to, bits);
    }
  }

  // The scale of a row is stored by one of four lanes, which have the same rows and block.
  const int own = lane % kPack;
  const size_t own_row = my.row0 + my.row + own, own_block = (my.col0 + my.col) / kBlock;

  if constexpr (kSquare) {
    AbsMax<In> amax;
#pragma unroll
    for (int p = 0; p < kPack; ++p) amax.add(x[p]);
    uint32_t most[1] = {static_cast<uint32_t>(amax.bits())};
    lanes_max<F32, kSpan>(most);
    lanes_max<F32, 2, kLanes>(most);
    if (lane < kLanes && lane % kSpan == 0) {
      shared.maxima[lane / kSpan * kWarps + my.warp] = most[0];
    }
    __syncthreads();
    most[0] = 0;
#pragma unroll
    for (int i = 0; i < kHeight; i += 4) {
      uint32_t w[4];
      load_shared(shared.maxima + my.group / kSpan * kWarps + my.warp / kHeight * kHeight + i, w);
#pragma unroll
      for (int j = 0; j < 4; ++j) most[0] = max_packed<F32>(most[0], w[j]);
    }
    Entry entry;
    const float factor = args.scale.factor(__uint_as_float(most[0]), entry);
    Codes y[kPack];
    scaled_rows(args.e5m2, x, [&](int) { return factor; }, y);
    if (q.rowwise != nullptr) {
      store_rows(q.rowwise, m.row_vec, m, my, y);
      if (Scale::kMx || threadIdx.x == 0) {
        put_scale<Scale>(scales_of<Scale, kSquare>(q, m, false), own_row, own_block, own < my.rows,
                         entry);
      }
    }
    if (q.colwise != nullptr) {
      // The eight threads that have the same columns of a block store the scale of one each.
      const int i = my.warp % kHeight * 2 + my.word;
      if (Scale::kMx || threadIdx.x == 0) {
        put_scale<Scale>(scales_of<Scale, kSquare>(q, m, true), my.col0 + my.col + i,
                         (my.row0 + my.row) / kBlock, i < my.cols, entry);
      }
      if constexpr (Scale::kMx) {
        store_rows(q.colwise, m.col_vec, m, my, y);
      } else {
        store_columns(shared.tile, q.colwise, m, my, y);
      }
    }
  } else {
    if (q.colwise != nullptr) {
      uint32_t most[kColWords];
#pragma unroll
      for (int i = 0; i < kColWords; ++i) {
        most[i] = 0;
#pragma unroll
        for (int p = 0; p < kPack; ++p)
          most[i] = max_packed<In>(most[i], magnitudes<In>(x[p].w[i]));
      }
      lanes_max<In, 2, kLanes>(most);
      if (lane < kLanes) {
#pragma unroll
        for (int i = 0; i < kColWords; i += 4) {
          store_bytes<16>(shared.maxima + my.warp * (kTile / kPer) + my.group * kColWords + i,
                          most + i);
        }
      }
    }
    if (q.rowwise != nullptr) {
      Entry entry;
      const float factor = args.scale.factor(own_row_max<kBlock, In>(x), entry);
      if (lane % kSpan < kPack) {
        put_scale<Scale>(scales_of<Scale, kSquare>(q, m, false), own_row, own_block, own < my.rows,
                         entry);
      }
      Codes y[kPack];
      scaled_rows(
          args.e5m2, x, [&](int p) { return __shfl_sync(0xffffffffu, factor, p, kPack); }, y);
      store_rows(q.rowwise, m.row_vec, m, my, y);
    }
    if (q.colwise != nullptr) {
      __syncthreads();
      if (threadIdx.x < kBlocks * kTile) {
        const int c = threadIdx.x % kTile, b = threadIdx.x / kTile;
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < kHeight; ++i) {
          most = max_packed<In>(most, shared.maxima[(b * kHeight + i) * (kTile / kPer) + c / kPer]);
        }
        float f[kPer];
        In::to_float(most, f);
        Entry entry;
        shared.factors[threadIdx.x] = args.scale.factor(c % kPer == 0 ? f[0] : f[kPer - 1], entry);
        put_scale<Scale>(scales_of<Scale, kSquare>(q, m, true), my.col0 + c, my.row0 / kBlock + b,
                         c < my.width, entry);
      }
      __syncthreads();
      struct {
        float f[kVec];
        __device__ float operator[](int i) const { return f[i]; }
      } factors;
#pragma unroll
      for (int i = 0; i < kVec; i += 4) {
        uint32_t w[4];
        load_shared(
            reinterpret_cast<uint32_t *>(shared.factors) + my.warp / kHeight * kTile + my.col + i,
            w);
#pragma unroll
        for (int j = 0; j < 4; ++j) factors.f[i + j] = __uint_as_float(w[j]);
      }
      Codes y[kPack];
      scaled_rows(args.e5m2, x, [&](int) { return factors; }, y);
      if constexpr (Scale::kMx) {
        store_rows(q.colwise, m.col_vec, m, my, y);
      } else {
        store_columns(shared.tile, q.colwise, m, my, y);
      }
    }
  }
}

template <class T, int N>
__device__ __forceinline__ void append(Vec<T, N> (&rows)[kPack], const Vec<T, N> &row) {
#pragma unroll
  for (int p = 0; p + 1 < kPack; ++p) rows[p] = rows[p + 1];
  rows[kPack - 1] = row;
}

// Calls visit(input, element, k) with where column `col` of row `row` of each input k is.
template <NVTEXForm kForm, class Scale, class Visit>
__device__ __forceinline__ void visit_inputs(const TileCastArgs<Scale> &args, const Matrix &m,
                                             size_t row, size_t col, const Visit &visit) {
  const NVTEXQuantizeArgs &q = args.q;
  if constexpr (kForm == NVTEX_FORM_GATED_DERIVATIVE) {
    const size_t half = m.cols / 2, c = !args.split && col >= half ? col - half : col;
    visit(q.input, row * half + c, 0);
    visit(q.fusion.act_input, row * m.cols + c, 1);
    visit(q.fusion.act_input, row * m.cols + half + c, 2);
  } else if constexpr (kForm == NVTEX_FORM_GATED) {
    const size_t at = 2 * m.at + row * (2 * m.cols) + col;
    visit(q.input, at, 0);
    visit(q.input, at + m.cols, 1);
  } else {
    const size_t at = m.at + row * m.cols + col;
    visit(q.input, at, 0);
    if constexpr (kForm == NVTEX_FORM_DERIVATIVE) visit(q.fusion.act_input, at, 1);
  }
}

// What the thread's row p is made of, one by one: of matrices that are not aligned.
template <class In, NVTEXForm kForm, class Scale>
__device__ __forceinline__ void load_row(const TileCastArgs<Scale> &args, const Matrix &m,
                                         const ThreadTile &my, int p,
                                         Vec<In, kVec> (&x)[kInputsOf<kForm>]) {
  const size_t row = my.row0 + my.row + p, col = my.col0 + my.col;
  const int count = p < my.rows ? my.cols : 0;
  if (kForm == NVTEX_FORM_GATED_DERIVATIVE && !args.split) {
    // A vector may have columns of both halves.
    constexpr int kPer = Vec<In, kVec>::kPerWord;
#pragma unroll
    for (int k = 0; k < kInputsOf<kForm>; ++k) x[k] = {};
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (i >= count) continue;
      visit_inputs<kForm>(args, m, row, col + i, [&](const void *in, size_t at, int k) {
        const uint32_t bits = load_as<In, 1>(args.q.input_dtype, in, at, true).w[0];
        x[k].w[i / kPer] |= bits << (i % kPer * 8 * In::kBytes);
      });
    }
  } else {
    visit_inputs<kForm>(args, m, row, col, [&](const void *in, size_t at, int k) {
      x[k] = load_some_as<In, kVec>(args.q.input_dtype, in, at, count);
    });
  }
}

// The rows that a thread is about to work on, on their way to shared memory: while one tile is
// worked on, the next one comes. They concern this thread alone, so that nothing waits for others.
// kAhead: rows, of 64 KB or 48.
template <class In, NVTEXForm kForm,
          int kAhead_ = (kInputsOf<kForm> * In::kBytes <= 4   ? 4
                         : kInputsOf<kForm> * In::kBytes <= 8 ? 2
                                                              : 1)>
struct RowQueue {
  static constexpr int kInputs = kInputsOf<kForm>, kParts = kVec * In::kBytes / 16;
  static constexpr int kAhead = kAhead_;
  static_assert(kPack % kAhead == 0, "a row always has the same slot");
  uint4 slots[kAhead][kInputs][kParts][kThreads];

  // Input k of row p, zeros unless it is `inside`. Rows are asked for, and taken, one after the
  // other, and cp_async_commit_group() comes after each.
  __device__ __forceinline__ void request(int p, int k, const void *from, bool inside,
                                          NVTEDType dtype) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (kIsWidened<In> && i * 16 >= kVec * bytes_of<In>(dtype)) break;
      cp_async_16(shared_address(&slots[p % kAhead][k][i][threadIdx.x]),
                  static_cast<const uint4 *>(from) + i, inside);
    }
  }
  template <class Scale>
  __device__ __forceinline__ void request(const TileCastArgs<Scale> &args, const Matrix &m,
                                          const ThreadTile &my, int p) {
    if (m.in_vec) {
      const bool inside = p < my.rows && 0 < my.cols;
      const size_t row = my.row0 + my.row + p, col = my.col0 + my.col;
      visit_inputs<kForm>(args, m, row, col, [&](const void *in, size_t at, int k) {
        const NVTEDType dtype = args.q.input_dtype;
        request(p, k, address_of<In>(dtype, in, at), inside, dtype);
      });
    }
    cp_async_commit_group();
  }
  // kVectorised: known to be, as the matrix says.
  template <bool kVectorised, class Scale>
  __device__ __forceinline__ void acquire(const TileCastArgs<Scale> &args, const Matrix &m,
                                          const ThreadTile &my, int p,
                                          Vec<In, kVec> (&x)[kInputs]) const {
    if (!kVectorised && !m.in_vec) return load_row<In, kForm>(args, m, my, p, x);
    acquire(p, x, args.q.input_dtype);
  }
  __device__ __forceinline__ void acquire(int p, Vec<In, kVec> (&x)[kInputs],
                                          NVTEDType dtype) const {
    cp_async_wait_group<kAhead - 1>();
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        if (kIsWidened<In> && i * 16 >= kVec * bytes_of<In>(dtype)) break;
        uint32_t w[4];
        load_shared(reinterpret_cast<const uint32_t *>(&slots[p % kAhead][k][i][threadIdx.x]), w);
#pragma unroll
        for (int j = 0; j < 4; ++j) x[k].w[4 * i + j] = w[j];
      }
      if constexpr (kIsWidened<In>) x[k] = widened<kVec>(dtype, x[k].w);
    }
  }
};

// The elements v of the thread's row p by apply(x, v), 0 outside the matrix.
template <class In, NVTEXForm kForm, class Scale, class Apply>
__device__ __forceinline__ void row_of(const TileCastArgs<Scale> &args, const Matrix &m,
                                       const ThreadTile &my, int p,
                                       Vec<In, kVec> (&x)[kInputsOf<kForm>],
                                       float (&v)[kHalvesOf<kForm>][kVec], const Apply &apply) {
  apply(x, v);
  if constexpr (kForm == NVTEX_FORM_GATED) {
    if (args.q.fusion.row_scales != nullptr && p < my.rows) {
      const size_t row = m.at / m.cols + my.row0 + my.row + p;
      float scale[1];
      to_float(load_as<In, 1>(args.q.input_dtype, args.q.fusion.row_scales, row, true), scale);
#pragma unroll
      for (int i = 0; i < kVec; ++i) v[0][i] = __fmul_rn(v[0][i], scale[0]);
    }
  }
  if constexpr (kForm == NVTEX_FORM_GATED_DERIVATIVE) {
    if (!args.split) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if (my.col0 + my.col + i >= m.cols / 2) v[0][i] = v[1][i];
      }
    }
  }
  if (my.height != kTile || my.width != kTile) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (p < my.rows && i < my.cols) continue;
#pragma unroll
      for (int h = 0; h < kHalvesOf<kForm>; ++h) v[h][i] = 0.0f;
    }
  }
}

// Calls consume(v, row) with the elements v of each of the thread's rows, and request(row) for rows
// that come kAhead later.
template <class In, NVTEXForm kForm, class Scale, class Request, class Consume>
__device__ __forceinline__ void produce(const TileCastArgs<Scale> &args, const Matrix &m,
                                        const ThreadTile &my, const RowQueue<In, kForm> &queue,
                                        const Request &request, const Consume &consume) {
  const auto row = [&](auto vectorised, int p, const auto &apply) {
    Vec<In, kVec> x[kInputsOf<kForm>];
    queue.template acquire<decltype(vectorised)::value>(args, m, my, p, x);
    request(p + RowQueue<In, kForm>::kAhead);
    float v[kHalvesOf<kForm>][kVec];
    row_of<In, kForm>(args, m, my, p, x, v, apply);
    consume(v, p);
  };
  const auto linear = [&](auto &x, auto &v) { apply_each<kForm>(args.function.linear, x, v); };
  if (!args.function.is_linear() || !m.in_vec) {
#pragma unroll 1
    for (int p = 0; p < kPack; ++p) {
      row(std::false_type{}, p, [&](auto &x, auto &v) { apply<kForm>(args.function, x, v); });
    }
  } else if constexpr (kIsWidened<In>) {
    // A loop compiles fast and needs few registers.
#pragma unroll 1
    for (int p = 0; p < kPack; ++p) row(std::true_type{}, p, linear);
  } else {
#pragma unroll
    for (int p = 0; p < kPack; ++p) row(std::true_type{}, p, linear);
  }
}

// The same of a tile whose rows nobody has asked for, and after which nobody asks.
template <class In, NVTEXForm kForm, class Scale, class Work>
__device__ __forceinline__ void with_rows(const TileCastArgs<Scale> &args, const Matrix &m,
                                          const ThreadTile &my, RowQueue<In, kForm> &queue,
                                          const Work &work) {
#pragma unroll
  for (int p = 0; p < RowQueue<In, kForm>::kAhead; ++p) queue.request(args, m, my, p);
  work([&](int p) {
    if (p < kPack) {
      queue.request(args, m, my, p);
    } else {
      cp_async_commit_group();
    }
  });
}

// Warps that find the member and one of the places where it begins each.
constexpr int kFinders = 4;

// Has L2 fetch the elements of a tile of a plain cast, in whole lines and before its loads: while
// the launch before this one ends, or a block looks its member up. H200, bf16 8192 x 8192 in both
// directions, GB/s without and with: mode 0 3844 and 3897, 1D 3730 and 3817, 2D 3812 and 3880, mode
// 0 of 128 members 3767 and 3806. Of tiles that come 264 or 396 blocks later: mode 0 3733 and 3257,
// 1D 3678 and 3185; MXFP8 alone gains by that, 3728 with 264, 3664 with its own, 3633 without.
// Functions lose up to 12 % by it. Not by the warps that look members up, whose loads would queue
// behind it: asynchronous copies of the tile where it is if no member has a partial one, during
// that search, make 8 members 3 to 9 % slower.
template <class In, class Scale>
__device__ __forceinline__ void prefetch_tile(const TileCastArgs<Scale> &args, uint32_t tile) {
  constexpr int kFirst = 32 * kFinders;
  if (threadIdx.x < kFirst) return;
  const NVTEXQuantizeArgs &q = args.q;
  const int bytes = bytes_of<In>(q.input_dtype), length = 128 / bytes, lines = kTile / length;
  const uint32_t index = args.tiles_per_line.quotient(tile);
  const uint32_t place = tile - index * args.tiles_per_line.value;
#pragma unroll
  for (int i = threadIdx.x - kFirst; i < kTile * lines; i += kThreads - kFirst) {
    const size_t row = size_t{args.down ? place : index} * kTile + i / lines;
    const size_t col = size_t{args.down ? index : place} * kTile + i % lines * length;
    if (row < q.rows && col < q.cols) {
      const void *line = address_of<In>(q.input_dtype, q.input, row * q.cols + col);
      asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
    }
  }
}

// The sums of a thread's rows, to be added up by add_sums() when all threads have put theirs.
template <class Shared>
__device__ __forceinline__ void put_sums(Shared &shared, const ThreadTile &my,
                                         float (&sums)[kVec]) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    sums[i] = __fadd_rn(sums[i], __shfl_xor_sync(0xffffffffu, sums[i], kLanes));
  }
  if (my.word == 0) {
    auto *to = reinterpret_cast<float4 *>(shared.sums + my.warp * kTile + my.col);
    to[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    to[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
  }
}
template <class Shared>
__device__ __forceinline__ void add_sums(const Shared &shared, float *workspace, const Matrix &m,
                                         const ThreadTile &my) {
  const int c = threadIdx.x;
  if (c >= my.width) return;
  float sum = shared.sums[c];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum = __fadd_rn(sum, shared.sums[w * kTile + c]);
  workspace[(m.row_tiles + my.row0 / kTile) * m.cols + my.col0 + c] = sum;
}

// With a function: the rows come from `queue`, by request(row) those of this tile, or of the next
// one from kPack on.
template <class In, class Scale, bool kSquare, NVTEXForm kForm, class Shared, class Queue,
          class Request>
__device__ __forceinline__ void cast_tile(const TileCastArgs<Scale> &args, const Matrix &m,
                                          bool noop, const ThreadTile &my, Shared &shared,
                                          const Queue &queue, const Request &request) {
  constexpr bool kTensor = Shared::kTensor, kHalved = kHalvesOf<kForm> == 2;
  constexpr bool kDbias = kForm == NVTEX_FORM_PLAIN || kForm == NVTEX_FORM_DERIVATIVE;
  const NVTEXQuantizeArgs &q = args.q;
  const float scale = kTensor && m.scale != nullptr ? *m.scale : 1.0f;
  const int seen = kTensor && q.amax != nullptr && threadIdx.x == 0
                       ? __ldcg(reinterpret_cast<int *>(q.amax))
                       : 0;

  // What is stored in the end: codes, or elements of the input's type that still need their scales.
  using Row = std::conditional_t<kTensor, Codes, Vec<In, kVec>>;
  Row y[kHalvesOf<kForm>][kPack];
  float sums[kVec];
  AbsMax<F32> amax;
  const auto consume = [&](float (&v)[kHalvesOf<kForm>][kVec], int p) {
    if constexpr (kDbias) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) sums[i] = p == 0 ? v[0][i] : __fadd_rn(sums[i], v[0][i]);
    }
#pragma unroll
    for (int h = 0; h < kHalvesOf<kForm>; ++h) {
      if constexpr (kTensor) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          amax.packed = max_packed<F32>(amax.packed, magnitudes<F32>(__float_as_uint(v[h][i])));
          v[h][i] = __fmul_rn(v[h][i], scale);
        }
        append(y[h], encode(args.e5m2, v[h]));
      } else if constexpr (kForm != NVTEX_FORM_PLAIN) {
        append(y[h], from_float_as<In>(q.input_dtype, v[h]));
      }
    }
  };
  if constexpr (kForm == NVTEX_FORM_PLAIN) {
    Vec<In, kVec> x[kPack][1];
    if (m.in_vec) {
      const size_t at = m.at + (my.row0 + my.row) * m.cols + my.col0 + my.col;
#pragma unroll
      for (int p = 0; p < kPack; ++p) {
        x[p][0] =
            load_as<In, kVec>(q.input_dtype, q.input, at + p * m.cols, p < my.rows && 0 < my.cols);
      }
    } else {
#pragma unroll
      for (int p = 0; p < kPack; ++p) load_row<In, kForm>(args, m, my, p, x[p]);
    }
    if (noop) return;
    if (kTensor || q.fusion.dbias != nullptr) {
#pragma unroll
      for (int p = 0; p < kPack; ++p) {
        float v[1][kVec];
        to_float(x[p][0], v[0]);
        consume(v, p);
      }
    }
    if constexpr (!kTensor) {
#pragma unroll
      for (int p = 0; p < kPack; ++p) y[0][p] = x[p][0];
    }
  } else {
    produce<In, kForm>(args, m, my, queue, request, consume);
  }
  if constexpr (kDbias) {
    if (q.fusion.dbias != nullptr) put_sums(shared, my, sums);
  }
  if constexpr (kTensor) shared.block.put(amax.bits());

  const auto finish = [&](const ThreadTile &my, const Row(&y)[kPack]) {
    if constexpr (kTensor) {
      if (q.rowwise != nullptr) store_rows(q.rowwise, m.row_vec, m, my, y);
      if (q.colwise != nullptr) store_columns(shared.tile, q.colwise, m, my, y);
    } else {
      cast_blocks<In, Scale, kSquare>(args, m, my, y, shared);
    }
  };
  if constexpr (kHalved) {
    ThreadTile half = my;
#pragma unroll 1
    for (int h = 0;; ++h) {
      finish(half, y[0]);
      if (h == 1 || !args.split) break;
      half.col0 += m.cols / 2;
#pragma unroll
      for (int p = 0; p < kPack; ++p) y[0][p] = y[1][p];
      __syncthreads();
    }
  } else {
    finish(my, y[0]);
  }

  if (kTensor || (kDbias && q.fusion.dbias != nullptr)) __syncthreads();
  if constexpr (kDbias) {
    if (q.fusion.dbias != nullptr) add_sums(shared, q.fusion.workspace, m, my);
  }
  if constexpr (kTensor) {
    if (q.amax != nullptr && my.warp == 0) {
      const int bits = shared.block.get();
      if (threadIdx.x == 0 && bits > seen) {
        atomicMax(reinterpret_cast<int *>(q.amax), bits);
      }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      const float inverse = __frcp_rn(scale);
      if (q.rowwise_scale_inv != nullptr) *static_cast<float *>(q.rowwise_scale_inv) = inverse;
      if (q.colwise_scale_inv != nullptr) *static_cast<float *>(q.colwise_scale_inv) = inverse;
    }
  }
}

// Blocks of a multiprocessor. H200, bf16 8192 x 8192 in both directions, us with 2 and 3: 1D 76.6
// and 71.8, 2D 72.1 and 69.9, MXFP8 73.8 and 75.3, MXFP8 square 73.5 and 73.3, mode 0 of 8 members
// 75.4 and 69.2, 1D 90.5 and 80.7, 2D 81.7 and 73.1. float32 does not fit 3, nor does MXFP8 of
// members.
template <class In, class Scale, bool kSquare, NVTEXForm kForm, Tiles kTiles>
constexpr int blocks_of() {
  constexpr bool kTensor = std::is_same_v<Scale, TensorScale>;
  if (kTiles == Tiles::kLoop) return 1;
  if (kForm == NVTEX_FORM_PLAIN) {
    const bool small = Scale::kBlock == 128 || kSquare;
    if (kTiles == Tiles::kSingle) return In::kBytes == 2 && small ? 3 : 2;
    return In::kBytes == 4 ? 1 : kTensor || small ? 3 : 2;
  }
  const bool halves = kForm == NVTEX_FORM_GATED_DERIVATIVE;
  return In::kBytes == 4 || (halves && !kTensor) ? 1 : 2;
}

// Whether a block has two tiles of a function: those of float32 leave too few registers.
template <class In>
constexpr bool kPairs = In::kBytes == 2;

// Whether the loop over the tiles of a group also has those of a lone matrix: so one kernel less
// has to be compiled.
template <class In, NVTEXForm kForm>
constexpr bool kLoneInLoop =
    kIsWidened<In> && kForm != NVTEX_FORM_PLAIN && kForm != NVTEX_FORM_GATED_DERIVATIVE;

template <class In, class Scale, bool kSquare, NVTEXForm kForm, Tiles kTiles>
__global__ void __launch_bounds__(
    kThreads, blocks_here<kThreads>(blocks_of<In, Scale, kSquare, kForm, kTiles>()))
    quantize_kernel(const __grid_constant__ TileCastArgs<Scale> args) {
  constexpr bool kDbias = kForm == NVTEX_FORM_PLAIN || kForm == NVTEX_FORM_DERIVATIVE;
  constexpr bool kPlain = kForm == NVTEX_FORM_PLAIN, kHalved = kHalvesOf<kForm> == 2;
  __shared__ TileShared<In, Scale, kSquare, kDbias> shared;
  extern __shared__ __align__(128) uint4 memory[];  // Else copies to it straddle lines.
  auto &queue = *reinterpret_cast<RowQueue<In, kForm> *>(memory);
  const NVTEXQuantizeArgs &q = args.q;
  // Data may be fetched before what is in them is there.
  if (kPlain && kTiles != Tiles::kLoop && blockIdx.x < args.ahead) {
    prefetch_tile<In>(args, blockIdx.x);
  }
  // The rest of a group's tiles, none of which the first launch has: what comes before in the
  // stream was complete when the blocks of that one let this one start. Most often it finds
  // nothing, while the first one ends.
  const bool late = kTiles == Tiles::kLoop && args.first_tile != 0;
  if (!late) griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const auto noop = [&] { return q.noop != nullptr && *q.noop == 1.0f; };
  const auto place_of = [&](const Matrix &m, size_t row0, size_t col0) {
    return ThreadTile(m, row0, col0, kHalved && args.split ? m.cols / 2 : m.cols);
  };
  if constexpr (kTiles == Tiles::kSingle) {
    const Matrix &m = args.matrix;
    const auto place = [&](uint32_t tile) {
      const uint32_t line = args.tiles_per_line.quotient(tile);
      const uint32_t place = tile - line * args.tiles_per_line.value;
      return place_of(m, size_t{args.down ? place : line} * kTile,
                      size_t{args.down ? line : place} * kTile);
    };
    if constexpr (kPlain) {
      const uint32_t next = blockIdx.x + args.ahead;
      if (next < args.tiles) prefetch_tile<In>(args, next);
      cast_tile<In, Scale, kSquare, kForm>(args, m, noop(), place(blockIdx.x), shared, queue,
                                           [](int) {});
    } else if constexpr (!kPairs<In>) {
      const ThreadTile my = place(blockIdx.x);
      with_rows<In, kForm>(args, m, my, queue, [&](const auto &request) {
        cast_tile<In, Scale, kSquare, kForm>(args, m, false, my, shared, queue, request);
      });
    } else {
      uint32_t tile = blockIdx.x;
      ThreadTile my = place(tile);
#pragma unroll
      for (int p = 0; p < RowQueue<In, kForm>::kAhead; ++p) queue.request(args, m, my, p);
      for (;;) {
        tile += gridDim.x;
        const ThreadTile next = place(tile);
        const bool more = tile < args.tiles;
        cast_tile<In, Scale, kSquare, kForm>(args, m, false, my, shared, queue, [&](int p) {
          if (p < kPack) {
            queue.request(args, m, my, p);
          } else if (more) {
            queue.request(args, m, next, p - kPack);
          } else {
            cp_async_commit_group();
          }
        });
        if (!more) return;
        __syncthreads();
        my = next;
      }
    }
  } else {
    struct Found {
      Matrix matrix;
      size_t row0, col0;
      bool any;
    };
    __shared__ Found found;
    for (uint32_t tile = args.first_tile + blockIdx.x; tile < args.end_tile; tile += gridDim.x) {
      const unsigned warp = threadIdx.x / 32;
      if (kLoneInLoop<In, kForm> && q.group.num_tensors == 0) {
        if (threadIdx.x == 0) {
          const uint32_t line = args.tiles_per_line.quotient(tile);
          const uint32_t place = tile - line * args.tiles_per_line.value;
          found = {args.matrix, size_t{args.down ? place : line} * kTile,
                   size_t{args.down ? line : place} * kTile, true};
        }
      } else if (warp < kFinders) {
        constexpr NVTEScalingMode kMode = kModeOf<Scale, kSquare>;
        Member member;
        uint32_t across = 0;  // The tile's place in the line of tiles `member.unit`.
        bool any;
        if (args.lines) {
          const uint32_t line = args.tiles_across.quotient(tile);
          across = tile - line * args.tiles_across.value;
          any = find_line(q.group, q.rows, q.cols, line, 7, args.totals[warp], member);
        } else {
          const auto tiles = [&](uint32_t rows, uint32_t cols) {
            return scales_fit(q.group, kMode, rows, cols) ? tiles_of(rows) * tiles_of(cols) : 0;
          };
          const auto size = [&](uint32_t rows, uint32_t cols) -> size_t {
            if (warp == 0) return size_t{rows} * cols;
            return warp == 3 ? tiles_of(rows) : scale_entries(kMode, warp == 2, rows, cols);
          };
          any = find_member(q.group, q.rows, q.cols, tile, tiles, size, member);
        }
        if (threadIdx.x == 0) found.any = any;
        if (any && threadIdx.x % 32 == 0) {
          Matrix &m = found.matrix;
          if (warp == 0) {
            uint32_t line = member.unit, place = across;
            if (args.down || q.group.last_dims != nullptr) {
              const uint32_t per_line = tiles_of(args.down ? member.rows : member.cols);
              const uint32_t unit = line * args.tiles_across.value + place;
              line = unit / per_line, place = unit - line * per_line;
            }
            found.row0 = size_t{args.down ? place : line} * kTile;
            found.col0 = size_t{args.down ? line : place} * kTile;
            const size_t at =
                data_begin(q.group, member.index, member.rows, member.cols, member.before);
            set_data<In, Scale, kForm>(m, q, member.index, member.rows, member.cols, at);
          } else if (warp == 3) {
            m.row_tiles = row_tiles_begin(q.group, q.rows, member);
          } else {
            const bool colwise = warp == 2;
            void *const scales = colwise ? q.colwise_scale_inv : q.rowwise_scale_inv;
            (colwise ? m.col_scales : m.row_scales) =
                static_cast<typename Scale::Entry *>(scales) +
                scales_begin(q.group, kMode, colwise, member.rows, member.cols, member.before);
            (colwise ? m.col_stride : m.row_stride) =
                scale_pitch(kMode, colwise, member.rows, member.cols);
          }
        }
      }
      __syncthreads();
      if (!found.any) break;
      const Matrix &m = found.matrix;
      const ThreadTile my = place_of(m, found.row0, found.col0);
      if constexpr (kPlain) {
        cast_tile<In, Scale, kSquare, kForm>(args, m, noop(), my, shared, queue, [](int) {});
      } else {
        with_rows<In, kForm>(args, m, my, queue, [&](const auto &request) {
          cast_tile<In, Scale, kSquare, kForm>(args, m, false, my, shared, queue, request);
        });
      }
      if (kTiles == Tiles::kOneEach) break;
      __syncthreads();
    }
    // What waits for this launch waits for the first one, too.
    if (late) griddepcontrol_wait();
  }
}

// The largest finite value of an input type.
inline float largest_of(NVTEDType dtype) {
  return dtype == kNVTEFloat32 ? FLT_MAX : dtype == kNVTEFloat16 ? 65504.0f : 0x1.FEp127f;
}

inline bool is_e5m2(const NVTEXQuantizeArgs &q) { return q.output_dtype == kNVTEFloat8E5M2; }

inline void make_scale(const NVTEXQuantizeArgs &, TensorScale *) {}
inline void make_scale(const NVTEXQuantizeArgs &q, FloatScale *scale) {
  *scale = {is_e5m2(q) ? 57344.0f : 448.0f, q.epsilon, largest_of(q.input_dtype),
            q.pow2 ? 0xff800000 : ~0u};
}
inline void make_scale(const NVTEXQuantizeArgs &q, MxScale *scale) {
  *scale = {1.0f / (is_e5m2(q) ? 57344.0f : 448.0f)};
}

template <class Scale, NVTEXForm kForm>
TileCastArgs<Scale> tile_args(const NVTEXQuantizeArgs &q) {
  TileCastArgs<Scale> args = {
      q, {}, {}, Function(q.fusion), is_e5m2(q), false, false, {}, 0, 0, 0, 0, false, {}, {}};
  make_scale(q, &args.scale);
  args.down = q.rowwise == nullptr && !Scale::kMx;
  // A block of elements must not have columns of both halves.
  const size_t width = q.cols / kHalvesOf<kForm>;
  args.split = width != q.cols && (std::is_same_v<Scale, TensorScale> || width % kTile == 0);
  return args;
}

template <class In, class Scale, bool kSquare, NVTEXForm kForm, Tiles kTiles>
NVTEXOutcome launch_tiles(const TileCastArgs<Scale> &args, size_t blocks, cudaStream_t stream) {
  const auto kernel = quantize_kernel<In, Scale, kSquare, kForm, kTiles>;
  const dim3 grid(static_cast<unsigned>(blocks));
  if (kForm == NVTEX_FORM_PLAIN) return launch(kernel, grid, kThreads, stream, args);
  return launch_shared(kernel, grid, kThreads, sizeof(RowQueue<In, kForm>), stream, args);
}

// The tiles of a lone matrix.
template <class In, class Scale, NVTEXForm kForm>
NVTEXOutcome set_tiles(TileCastArgs<Scale> &args) {
  const NVTEXQuantizeArgs &q = args.q;
  const size_t across = tiles_of(args.split ? q.cols / 2 : q.cols), down = tiles_of(q.rows);
  if (across > kMaxBlocks / down) return unimplemented("the matrix has too many tiles");
  set_data<In, Scale, kForm>(args.matrix, q, 0, q.rows, q.cols, 0);
  args.matrix.row_scales = q.rowwise_scale_inv;
  args.matrix.col_scales = q.colwise_scale_inv;
  args.matrix.row_stride = q.rowwise_scale_stride;
  args.matrix.col_stride = q.colwise_scale_stride;
  args.tiles_per_line = FastDivisor(static_cast<uint32_t>(args.down ? down : across));
  args.tiles = static_cast<uint32_t>(across * down);
  args.ahead = args.tiles;
  return ok();
}

template <class In, class Scale, bool kSquare, NVTEXForm kForm>
NVTEXOutcome quantize_single(const NVTEXQuantizeArgs &q, cudaStream_t stream) {
  auto args = tile_args<Scale, kForm>(q);
  const NVTEXOutcome set = set_tiles<In, Scale, kForm>(args);
  if (set.status != NVTEX_BACKEND_OK) return set;
  size_t blocks = args.tiles;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const auto processors = static_cast<unsigned>(device.sm_count);
  if constexpr (kForm == NVTEX_FORM_PLAIN) {
    if (Scale::kMx && !kSquare) args.ahead = 2 * processors;
  } else if (kPairs<In> && blocks > size_t{4} * processors) {
    // A block has two, and while one is worked on the next one comes: H200, bf16 8192 x 8192 in
    // mode 0, GB/s, SwiGLU 3698 instead of 3494, its derivative 3738 of 3592, that of GELU 3421 of
    // 3330.
    blocks = ceil_div(blocks, 2);
  }
  args.end_tile = args.tiles;
  constexpr Tiles kTiles = kLoneInLoop<In, kForm> ? Tiles::kLoop : Tiles::kSingle;
  return launch_tiles<In, Scale, kSquare, kForm, kTiles>(args, blocks, stream);
}

// A block for each tile that the group has if no tile is partial, then a loop over the rest, often
// none: blocks without a tile are not free.
template <class In, class Scale, bool kSquare, NVTEXForm kForm>
NVTEXOutcome quantize_group(const NVTEXQuantizeArgs &q, cudaStream_t stream) {
  auto args = tile_args<Scale, kForm>(q);
  const NVTEXGroup &group = q.group;
  const bool uniform = group.first_dims == nullptr && group.last_dims == nullptr;
  const bool varying = group.first_dims != nullptr && group.last_dims != nullptr;
  // The kernels look up dimensions of members with 32 bits.
  if (!varying && (q.rows > UINT32_MAX || q.cols > UINT32_MAX)) {
    return unimplemented("the group is too large");
  }
  args.lines = one_varies(group, q.rows, q.cols);
  if (args.lines) {
    const bool rows_vary = group.last_dims == nullptr;
    const auto other = static_cast<uint32_t>(rows_vary ? q.cols : q.rows);
    args.tiles_across = FastDivisor(tiles_of(other));
    args.totals[0] = {other, 0, 0};
    for (int i = 1; i < 3; ++i) {
      args.totals[i] = scale_total(kModeOf<Scale, kSquare>, i == 2, rows_vary, other);
    }
    args.totals[3] = {1, 7, 0};
  }
  args.tiles_per_line = FastDivisor(static_cast<uint32_t>(tiles_of(args.down ? q.rows : q.cols)));
  size_t full = tiles_of(q.rows) * tiles_of(q.cols);
  if (uniform) {
    full = group.num_tensors * tiles_of(q.rows / group.num_tensors) * tiles_of(q.cols);
  } else if (varying) {
    full = ceil_div(q.rows * q.cols, kTile * kTile);
  }
  args.ahead = static_cast<uint32_t>(full);
  args.end_tile = most_tiles(group, q.rows, q.cols);
  if (full > kMaxBlocks) return unimplemented("the group has too many tiles");
  // What is rare has the loop alone, since kernels take time to compile: functions of groups, other
  // than gated ones to MXFP8, and other inputs than BF16.
  constexpr bool kCommonForm =
      kForm == NVTEX_FORM_PLAIN || (kForm == NVTEX_FORM_GATED && Scale::kMx && !kSquare);
  constexpr bool kLoopOnly = kIsWidened<In> || !kCommonForm;
  if constexpr (kLoopOnly) {
    full = 0;
  } else {
    const NVTEXOutcome first =
        launch_tiles<In, Scale, kSquare, kForm, Tiles::kOneEach>(args, full, stream);
    if (uniform || first.status != NVTEX_BACKEND_OK) return first;
  }
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  args.first_tile = static_cast<uint32_t>(full);
  return launch_tiles<In, Scale, kSquare, kForm, Tiles::kLoop>(
      args, static_cast<unsigned>(device.sm_count), stream);
}

template <class Scale, bool kSquare>
NVTEXOutcome quantize_tiles(const NVTEXQuantizeArgs &q, cudaStream_t stream) {
  const auto launch = [&](auto in, auto form) {
    using In = decltype(in);
    constexpr NVTEXForm kForm = decltype(form)::value;
    if (q.group.num_tensors == 0) return quantize_single<In, Scale, kSquare, kForm>(q, stream);
    if constexpr (kForm == NVTEX_FORM_GATED_DERIVATIVE) {
      return unimplemented("no CUDA kernel for gated derivatives of groups");
    } else {
      return quantize_group<In, Scale, kSquare, kForm>(q, stream);
    }
  };
  return dispatch_bf16_or_widened(q.input_dtype, [&](auto in) {
    return dispatch_form(q.fusion.form, [&](auto form) {
      // Weights have square blocks, which are functions of nothing.
      constexpr bool kRare = kSquare && decltype(form)::value != NVTEX_FORM_PLAIN;
      return launch(std::conditional_t<kRare, Widened, decltype(in)>{}, form);
    });
  });
}

}  // namespace nvte
