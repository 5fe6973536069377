// Casts with a scale per block of elements: 1 x 128 and 128 x 128 with float scales, 1 x 32 and
// 32 x 32 with E8M0 scales; row-wise, column-wise or both from one read of the input.

#include <cfloat>

#include "common/cast_block.cuh"
#include "common/scale.cuh"
#include "common/tile.cuh"

namespace nvte {
namespace {

// A tile is 128 x 128: 16 lanes span its columns, a thread has 4 rows of 8 columns.
constexpr int kTile = 128;
constexpr int kThreads = 512;
constexpr int kLanes = 16, kVec = 8, kPack = 4;
constexpr int kWarps = kThreads / 32, kWarpRows = 2 * kPack;
static_assert(kLanes * kVec == kTile && kWarps * kWarpRows == kTile, "a block covers a tile");

template <class Scale>
struct BlockArgs {
  TileArgs tile;
  ScaleMatrix row_scales;
  ScaleMatrix col_scales;
  Scale scale;
  float *amax;
  const float *noop;
};

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

template <class Scale>
__device__ __forceinline__ void put_scale(const ScaleMatrix &m, size_t line, size_t block,
                                          bool inside, typename Scale::Entry entry) {
  if (!inside) {
    if (!Scale::kMx) return;
    entry = 0;
  }
  static_cast<typename Scale::Entry *>(m.entries)[m.index(line, block)] = entry;
}

// What a thread has of the matrix.
struct Place {
  int warp, group, word;  // word: which rows, of the two lots of the warp
  int rows, cols;         // What is left of the tile there.
  size_t at;
};

template <class Out>
__device__ __forceinline__ void store_rows(void *out, bool vectorised, const TileArgs &a,
                                           const Place &to, const Vec<Out, kVec> (&y)[kPack]) {
  if (vectorised) {
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      if (p < to.rows && to.cols > 0) store(out, to.at + p * a.cols, y[p]);
    }
  } else {
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      store_some(out, to.at + p * a.cols, p < to.rows ? to.cols : 0, y[p]);
    }
  }
}

// Through shared memory, column by column: chunks of 16 bytes are permuted by eight of the lane
// groups, and their halves exchanged by the other eight, so that neither the word writes nor the
// chunk reads meet in a bank.
template <class Out>
__device__ __forceinline__ void store_columns(uint32_t *tile, const TileArgs &a, size_t row0,
                                              size_t col0, const Place &from,
                                              const Vec<Out, kVec> (&y)[kPack]) {
  constexpr int kWords = kTile / kPack, kChunks = kTile / 16, kStep = kThreads / kChunks;
  static_assert(kStep == kTile / 2, "the halves of a chunk are exchanged in the second step");
  const int place = ((from.warp / 2) ^ (from.group % 8)) * 4 +
                    ((from.warp % 2 * 2 + from.word) ^ (from.group / 8 * 2));
#pragma unroll
  for (int j = 0; j < kVec / kPack; ++j) {
    uint32_t by_row[kPack], by_col[kPack];
#pragma unroll
    for (int p = 0; p < kPack; ++p) by_row[p] = y[p].w[j];
    transpose_words(by_row, by_col);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      tile[(from.group * kVec + j * kPack + i) * kWords + place] = by_col[i];
    }
  }
  __syncthreads();
  const int height = left_of(a.rows - row0, kTile), width = left_of(a.cols - col0, kTile);
  const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int c = first + k * kStep;
    uint32_t w[4];
    load_shared(tile + c * kWords + (chunk ^ (c / kVec % 8)) * 4, w);
    const Vec<Out, 16> v = {{w[2 * k], w[2 * k + 1], w[2 - 2 * k], w[3 - 2 * k]}};
    const int count = c < width ? height - chunk * 16 : 0;
    const size_t to = (col0 + c) * a.rows + row0 + chunk * 16;
    if (a.col_vec) {
      if (count > 0) store(a.colwise, to, v);
    } else {
      store_some(a.colwise, to, count, v);
    }
  }
}

// Blocks of a multiprocessor. H200, bf16 8192 x 8192 in both directions, us with 2 and 3: 1D 76.6
// and 71.8, 2D 72.1 and 69.9, MXFP8 73.8 and 75.3, MXFP8 square 73.5 and 73.3. float32 does not
// fit 3.
template <class In, class Scale, bool kSquare>
constexpr int kBlocksHere = In::kBytes == 2 && (Scale::kBlock == 128 || kSquare) ? 3 : 2;

// kSquare: one scale for kBlock rows and columns, else one for each row and one for each column of
// a block.
template <class In, class Out, class Scale, bool kSquare>
__global__ void __launch_bounds__(kThreads, blocks_here<kThreads>(kBlocksHere<In, Scale, kSquare>))
    quantize_kernel(const __grid_constant__ BlockArgs<Scale> args) {
  using Entry = typename Scale::Entry;
  constexpr int kBlock = Scale::kBlock, kBlocks = kTile / kBlock;
  constexpr int kSpan = kBlock / kVec;         // Lanes of a block.
  constexpr int kHeight = kBlock / kWarpRows;  // Warps of a block.
  constexpr int kColWords = Vec<In, kVec>::kWords, kPer = Vec<In, kVec>::kPerWord;
  __shared__ alignas(16) uint32_t tile[Scale::kMx ? 4 : kTile * kTile / 4];
  __shared__ alignas(16) uint32_t maxima[kSquare ? kBlocks * kWarps : kWarps * kTile / kPer];
  __shared__ alignas(16) float factors[kSquare ? 4 : kBlocks * kTile];

  wait_for_stream();
  let_next_start();
  const TileArgs &a = args.tile;
  const float flag = args.noop != nullptr ? *args.noop : 0.0f;

  const int lane = threadIdx.x % 32;
  const unsigned line = blockIdx.x / a.tiles_per_line,
                 place_in_line = blockIdx.x % a.tiles_per_line;
  const size_t row0 = size_t{a.down ? place_in_line : line} * kTile;
  const size_t col0 = size_t{a.down ? line : place_in_line} * kTile;
  Place my;
  my.warp = threadIdx.x / 32;
  my.group = lane % kLanes;
  my.word = lane / kLanes;
  const int row = my.warp * kWarpRows + my.word * kPack, col = my.group * kVec;
  my.rows = left_of(a.rows - row0, kTile) - row;
  my.cols = left_of(a.cols - col0, kTile) - col;
  my.at = (row0 + row) * a.cols + col0 + col;

  Vec<In, kVec> x[kPack];
  if (a.in_vec) {
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      x[p] = load<In, kVec>(a.in, my.at + p * a.cols, p < my.rows && 0 < my.cols);
    }
  } else {
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      x[p] = load_some<In, kVec>(a.in, my.at + p * a.cols, p < my.rows ? my.cols : 0);
    }
  }
  if (flag == 1.0f) return;

  if (Scale::kMx && args.amax != nullptr) {
    __shared__ BlockMax<kThreads> block;
    AbsMax<In> amax;
#pragma unroll
    for (int p = 0; p < kPack; ++p) amax.add(x[p]);
    block.put(amax.bits());
    __syncthreads();
    if (my.warp == 0) {
      int *to = reinterpret_cast<int *>(args.amax);
      const int bits = block.get();
      // Atomics on one address are slow, reads of it are not.
      if (lane == 0 && bits > __ldcg(to)) atomicMax(to, bits);
    }
  }

  // The scale of a row is stored by one of four lanes, which have the same rows and block.
  const int own = lane % kPack;
  const size_t own_row = row0 + row + own, own_block = (col0 + col) / kBlock;

  if constexpr (kSquare) {
    AbsMax<In> amax;
#pragma unroll
    for (int p = 0; p < kPack; ++p) amax.add(x[p]);
    uint32_t most[1] = {static_cast<uint32_t>(amax.bits())};
    lanes_max<F32, kSpan>(most);
    lanes_max<F32, 2, kLanes>(most);
    if (lane < kLanes && lane % kSpan == 0) maxima[lane / kSpan * kWarps + my.warp] = most[0];
    __syncthreads();
    most[0] = 0;
#pragma unroll
    for (int i = 0; i < kHeight; i += 4) {
      uint32_t w[4];
      load_shared(maxima + my.group / kSpan * kWarps + my.warp / kHeight * kHeight + i, w);
#pragma unroll
      for (int j = 0; j < 4; ++j) most[0] = max_packed<F32>(most[0], w[j]);
    }
    Entry entry;
    const float factor = args.scale.factor(__uint_as_float(most[0]), entry);
    Vec<Out, kVec> y[kPack];
#pragma unroll
    for (int p = 0; p < kPack; ++p) y[p] = scaled<Out>(x[p], factor);
    if (a.rowwise != nullptr) {
      store_rows(a.rowwise, a.row_vec, a, my, y);
      if (Scale::kMx || threadIdx.x == 0) {
        put_scale<Scale>(args.row_scales, own_row, own_block, own < my.rows, entry);
      }
    }
    if (a.colwise != nullptr) {
      // The eight threads that have the same columns of a block store the scale of one each.
      const int i = my.warp % kHeight * 2 + my.word;
      if (Scale::kMx || threadIdx.x == 0) {
        put_scale<Scale>(args.col_scales, col0 + col + i, (row0 + row) / kBlock, i < my.cols,
                         entry);
      }
      if constexpr (Scale::kMx) {
        store_rows(a.colwise, a.col_vec, a, my, y);
      } else {
        store_columns(tile, a, row0, col0, my, y);
      }
    }
  } else {
    if (a.colwise != nullptr) {
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
          store_bytes<16>(maxima + my.warp * (kTile / kPer) + my.group * kColWords + i, most + i);
        }
      }
    }
    if (a.rowwise != nullptr) {
      Entry entry;
      const float factor = args.scale.factor(own_row_max<kBlock, In>(x), entry);
      if (lane % kSpan < kPack) {
        put_scale<Scale>(args.row_scales, own_row, own_block, own < my.rows, entry);
      }
      Vec<Out, kVec> y[kPack];
#pragma unroll
      for (int p = 0; p < kPack; ++p) {
        y[p] = scaled<Out>(x[p], __shfl_sync(0xffffffffu, factor, p, kPack));
      }
      store_rows(a.rowwise, a.row_vec, a, my, y);
    }
    if (a.colwise != nullptr) {
      __syncthreads();
      if (threadIdx.x < kBlocks * kTile) {
        const int c = threadIdx.x % kTile, b = threadIdx.x / kTile;
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < kHeight; ++i) {
          most = max_packed<In>(most, maxima[(b * kHeight + i) * (kTile / kPer) + c / kPer]);
        }
        float f[kPer];
        In::to_float(most, f);
        Entry entry;
        factors[threadIdx.x] = args.scale.factor(f[c % kPer], entry);
        put_scale<Scale>(args.col_scales, col0 + c, row0 / kBlock + b, c < a.cols - col0, entry);
      }
      __syncthreads();
      float own_factors[kVec];
#pragma unroll
      for (int i = 0; i < kVec; i += 4) {
        uint32_t w[4];
        load_shared(reinterpret_cast<uint32_t *>(factors) + my.warp / kHeight * kTile + col + i, w);
#pragma unroll
        for (int j = 0; j < 4; ++j) own_factors[i + j] = __uint_as_float(w[j]);
      }
      Vec<Out, kVec> y[kPack];
#pragma unroll
      for (int p = 0; p < kPack; ++p) y[p] = scaled<Out>(x[p], own_factors);
      if constexpr (Scale::kMx) {
        store_rows(a.colwise, a.col_vec, a, my, y);
      } else {
        store_columns(tile, a, row0, col0, my, y);
      }
    }
  }
}

template <class In, class Out, class Scale, bool kSquare>
NVTEXOutcome quantize(const NVTEXQuantizeArgs &a, const Scale &scale, cudaStream_t stream) {
  const size_t across = ceil_div(a.cols, kTile), down = ceil_div(a.rows, kTile);
  if (across > kMaxBlocks / down) return unimplemented("the matrix has too many tiles");
  const size_t row_tiles = a.swizzled && Scale::kMx ? across : 0;
  const size_t col_tiles = a.swizzled && Scale::kMx ? down : 0;
  BlockArgs<Scale> args;
  args.tile.in = a.input;
  args.tile.rowwise = a.rowwise;
  args.tile.colwise = a.colwise;
  args.tile.rows = a.rows;
  args.tile.cols = a.cols;
  args.tile.down = a.rowwise == nullptr && !Scale::kMx;
  args.tile.tiles_per_line = static_cast<unsigned>(args.tile.down ? down : across);
  args.tile.in_vec = aligned(a.input, 16) && a.cols % kVec == 0;
  args.tile.row_vec = aligned(a.rowwise, kVec) && a.cols % kVec == 0;
  args.tile.col_vec = Scale::kMx ? aligned(a.colwise, kVec) && a.cols % kVec == 0
                                 : aligned(a.colwise, 16) && a.rows % 16 == 0;
  args.row_scales =
      scale_matrix(a.mode, a.rowwise_scale_inv, a.rowwise_scale_stride, false, row_tiles);
  args.col_scales =
      scale_matrix(a.mode, a.colwise_scale_inv, a.colwise_scale_stride, true, col_tiles);
  args.scale = scale;
  args.amax = a.amax;
  args.noop = a.noop;
  return launch(quantize_kernel<In, Out, Scale, kSquare>,
                dim3(static_cast<unsigned>(across * down)), kThreads, stream, args);
}

// The largest finite value of an input type.
constexpr float largest(F32) { return FLT_MAX; }
constexpr float largest(F16) { return 65504.0f; }
constexpr float largest(BF16) { return 0x1.FEp127f; }

constexpr float fp8_max(E4M3) { return 448.0f; }
constexpr float fp8_max(E5M2) { return 57344.0f; }

template <class In, class Out>
NVTEXOutcome quantize(const NVTEXQuantizeArgs &a, cudaStream_t stream) {
  const FloatScale floats = {fp8_max(Out{}), a.epsilon, largest(In{}), a.pow2 ? 0xff800000 : ~0u};
  const MxScale powers = {1.0f / fp8_max(Out{})};
  switch (a.mode) {
    case NVTE_BLOCK_SCALING_1D:
      return quantize<In, Out, FloatScale, false>(a, floats, stream);
    case NVTE_BLOCK_SCALING_2D:
      return quantize<In, Out, FloatScale, true>(a, floats, stream);
    case NVTE_MXFP8_1D_SCALING:
      return a.square_blocks ? quantize<In, Out, MxScale, true>(a, powers, stream)
                             : quantize<In, Out, MxScale, false>(a, powers, stream);
    default:
      return unimplemented("no CUDA kernel for this scaling mode");
  }
}

}  // namespace

NVTEXOutcome quantize_blocks(const NVTEXQuantizeArgs &a, cudaStream_t stream) {
  return dispatch<F32, F16, BF16>(a.input_dtype, [&](auto in) {
    return dispatch<E4M3, E5M2>(
        a.output_dtype, [&](auto out) { return quantize<decltype(in), decltype(out)>(a, stream); });
  });
}

}  // namespace nvte
