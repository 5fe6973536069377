// Casts back from FP8 with scales of blocks, and of groups in any scaling mode: y = cast(x *
// scale_inv) of row-wise or column-wise data.

#include "modes.cuh"
#include "common/group.cuh"
#include "common/scale.cuh"
#include "common/tile.cuh"
#include "common/widened.cuh"

namespace nvte {
namespace {

// A thread has 4 rows of 8 columns of a tile, which is 128 x 128, or 32 x 512 so that long pieces
// of rows are read and written (H200, to bf16 8192 x 8192, GB/s: 1D 3980 instead of 3942, 2D 4021
// of 3978, MXFP8 3902 of 3848, of columns 3921 of 3895). Its scales are 128 words: floats or four
// codes for the rows of each 128 columns, or codes of four columns for each 32 rows.
//
// As many blocks as fit into the device, with a share of the tiles each, drift apart and lose 6 %.
constexpr int kTile = 128;
constexpr int kThreads = 512;
constexpr int kVec = 8, kPack = 4;
constexpr int kArea = kThreads * kPack * kVec;
static_assert(kArea == kTile * kTile, "a block is a tile");

// What a line of the scales is, and whether the data are stored transposed.
enum class Lines { kRows, kColumns, kTransposed };

struct Shape {
  int rows, cols;
  __host__ __device__ uint32_t tiles(uint32_t r, uint32_t c) const {
    return (r / rows + (r % rows != 0)) * (c / cols + (c % cols != 0));
  }
};

// What a tile is part of.
struct Matrix {
  size_t rows, cols;
  size_t at;      // The first element of the matrix in the buffers of data.
  size_t scales;  // The first entry in the buffer of scales.
};

// Word `i` of the scales of the tile at (row0, col0).
template <bool kMx, Lines kLines, bool kGroup>
__device__ __forceinline__ uint32_t scale_word(const NVTEXDequantizeArgs &a, const Matrix &m,
                                               const Shape &shape, size_t row0, size_t col0,
                                               int i) {
  const NVTEScalingMode mode = kMx ? NVTE_MXFP8_1D_SCALING : a.mode;
  const size_t pitch = kGroup ? scale_pitch(mode, a.colwise, m.rows, m.cols) : a.scale_stride;
  if constexpr (kMx) {
    const auto *codes = static_cast<const uint8_t *>(a.scale_inv) + m.scales;
    const bool aligned = reinterpret_cast<uintptr_t>(codes) % 4 == 0 && pitch % 4 == 0;
    size_t at, step = 1;
    if constexpr (kLines == Lines::kRows) {
      const size_t row = row0 + i % shape.rows, tile = col0 / kTile + i / shape.rows;
      const size_t tiles = tiles_of(m.cols);
      if (tile >= tiles) return 0;
      at = a.swizzled ? (row / kTile * tiles + tile) * 512 + row % 32 * 16 + row % kTile / 32 * 4
                      : row * pitch + tile * 4;
    } else {
      const int words = shape.cols / 4;
      const size_t col = col0 + i % words * 4, block = row0 / 32 + i / words;
      if (col >= m.cols) return 0;
      at = block * pitch + col;
      if (a.swizzled) {
        at = (col / kTile * tiles_of(m.rows) + block / 4) * 512 + col % 32 * 16 +
             col % kTile / 32 * 4 + block % 4;
        step = 16;
      }
    }
    if (step == 1 && aligned) return *reinterpret_cast<const uint32_t *>(codes + at);
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) word |= uint32_t{codes[at + j * step]} << (8 * j);
    return word;
  } else {
    const auto *scales = static_cast<const uint32_t *>(a.scale_inv) + m.scales;
    constexpr bool kRows = kLines == Lines::kRows;
    const size_t line = (kRows ? row0 : col0) + i % shape.rows;
    const size_t block = (kRows ? col0 : row0) / kTile + i / shape.rows;
    const bool inside =
        line < (kRows ? m.rows : m.cols) && block * kTile < (kRows ? m.cols : m.rows);
    if (a.mode == NVTE_DELAYED_TENSOR_SCALING) return scales[0];
    if (!inside) return 0;
    return scales[a.mode == NVTE_BLOCK_SCALING_1D ? block * pitch + line
                                                  : line / kTile * pitch + block];
  }
}

// Four rows of eight columns; zeros outside.
template <class T>
__device__ __forceinline__ void load_rows(const void *from, size_t at, size_t pitch, int rows,
                                          int cols, Vec<T, kVec> (&x)[kPack]) {
  if ((reinterpret_cast<uintptr_t>(from) + at) % kVec == 0 && pitch % kVec == 0) {
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      x[p] = load<T, kVec>(from, at + p * pitch, p < rows && 0 < cols);
    }
  } else {
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      x[p] = load_some<T, kVec>(from, at + p * pitch, p < rows ? cols : 0);
    }
  }
}

// Whose tiles a grid has: those of a single matrix, or those of a group, with a block for each or
// in a loop, which costs registers. Kernels take time to compile: outputs whose dtype is known at
// run time have the loop alone.
enum class Tiles { kSingle, kOneEach, kLoop };

template <Tiles kTiles>
constexpr int kBlocksHere = kTiles == Tiles::kLoop ? 2 : 3;

// What a group's tiles are in: whether find_line() knows the members, tiles of their common
// dimension, and what is before them of data and of scales.
struct Grouping {
  bool known;
  uint32_t shift;
  FastDivisor across;
  MemberTotal totals[2];
};

// A tile of a group.
struct Found {
  Matrix matrix;
  size_t row0, col0;
  bool any;  // Whether there is such a tile.
};

// Looks up a tile, for a full warp.
__device__ __forceinline__ void find_tile(const NVTEXDequantizeArgs &a, const Shape &shape,
                                          const Grouping &by, unsigned tile, Found &found) {
  const auto units = [&](uint32_t r, uint32_t c) {
    return scales_fit(a.group, a.mode, r, c) ? shape.tiles(r, c) : 0;
  };
  const auto size = [&](uint32_t r, uint32_t c, int t) {
    return t == 0 ? size_t{r} * c : scale_entries(a.mode, a.colwise, r, c);
  };
  Member member;
  size_t before[2];
  bool any;
  if (by.known) {
    const uint32_t line = by.across.quotient(tile);
    any = find_line(a.group, a.rows, a.cols, line, by.shift, by.totals, member, before);
    member.unit = member.unit * by.across.value + (tile - line * by.across.value);
  } else {
    any = find_member(a.group, a.rows, a.cols, tile, units, size, member, before);
  }
  if (threadIdx.x == 0) {
    found.any = any;
    if (!any) return;
    const size_t at = data_begin(a.group, member.index, member.rows, member.cols, before[0]);
    const uint32_t across = shape.tiles(1, member.cols);
    const uint32_t row0 = member.unit / across * shape.rows;
    found.matrix.rows = member.rows;
    found.matrix.cols = member.cols;
    found.matrix.at = at;
    found.row0 = row0;
    found.col0 = size_t{member.unit % across} * shape.cols;
    found.matrix.scales =
        a.mode != NVTE_DELAYED_TENSOR_SCALING
            ? scales_begin(a.group, a.mode, a.colwise, member.rows, member.cols, before[1])
            : member.index;
  }
}

// Has L2 fetch the block's first tile before what is in it is there, of a group that of one matrix
// of all its members, and of a lone matrix the tile's scales. H200, to bf16 8192 x 8192, GB/s
// without and with the latter: 1D 3904 and 3973, MXFP8 3834 and 3901, of columns 3837 and 3926; 1D
// of columns without any and with both 3721 and 3780.
template <bool kMx, Lines kLines, bool kGroup>
__device__ __forceinline__ void prefetch_tile(const NVTEXDequantizeArgs &a, const Shape &shape) {
  constexpr bool kTransposed = kLines == Lines::kTransposed, kRows = kLines == Lines::kRows;
  const auto fetch = [](const void *base, size_t at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const uint8_t *>(base) + at));
  };
  const unsigned tile = blockIdx.x;
  const auto across = shape.tiles(1, static_cast<uint32_t>(a.cols)), index = tile / across;
  const size_t row0 = size_t{index} * shape.rows, col0 = size_t{tile - index * across} * shape.cols;
  const unsigned thread = threadIdx.x - kTile;
  if (thread < kArea / 128) {
    if constexpr (kTransposed) {
      if (col0 + thread < a.cols) fetch(a.input, (col0 + thread) * a.rows + row0);
    } else {
      const unsigned lines = shape.cols / 128;
      const size_t row = row0 + thread / lines, col = col0 + thread % lines * 128;
      if (row < a.rows && col < a.cols) fetch(a.input, row * a.cols + col);
    }
  }
  // The other modes and the layout in tiles have few scales, or them in one piece.
  const int i = static_cast<int>(threadIdx.x) - (kThreads - kTile);
  if (kGroup || i < 0 || a.swizzled) return;
  if constexpr (kMx) {
    const size_t line = kRows ? row0 + i : row0 / 32;
    const size_t at = kRows ? col0 / 32 : col0 + i * 128;
    if (kRows ? i < shape.rows && line < a.rows : at < a.cols && i * 128 < shape.cols) {
      fetch(a.scale_inv, line * a.scale_stride + at);
    }
  } else if (a.mode == NVTE_BLOCK_SCALING_1D) {
    // 32 floats of a row of scales.
    const size_t line = kRows ? col0 / kTile + i : row0 / kTile;
    const size_t at = kRows ? row0 : col0 + i * 32;
    if (i < 4 && (kRows ? line * kTile < a.cols && i * kTile < shape.cols : at < a.cols)) {
      fetch(a.scale_inv, (line * a.scale_stride + at) * sizeof(float));
    }
  }
}

// Elements of E4M3, or of either format if Out is Widened, times their scale or scales.
template <class In, class Out, class Factors>
__device__ __forceinline__ Vec<Out, kVec> scaled_codes(const NVTEXDequantizeArgs &a,
                                                       const Vec<In, kVec> &x,
                                                       const Factors &factors) {
  if (kIsWidened<Out> && a.input_dtype == kNVTEFloat8E5M2) {
    const Vec<E5M2, kVec> other = {{x.w[0], x.w[1]}};
    return scaled<Out>(other, factors);
  }
  return scaled<Out>(x, factors);
}

// The tiles from `begin` on; the members of a group have at most `tiles`.
template <class In, class Out, bool kMx, Lines kLines, Tiles kTiles>
__global__ void __launch_bounds__(kThreads, blocks_here<kThreads>(kBlocksHere<kTiles>))
    dequantize_kernel(const __grid_constant__ NVTEXDequantizeArgs a,
                      const __grid_constant__ Shape shape, const __grid_constant__ Grouping by,
                      unsigned begin, unsigned tiles) {
  constexpr bool kGroup = kTiles != Tiles::kSingle, kLoop = kTiles == Tiles::kLoop;
  constexpr bool kTransposed = kLines == Lines::kTransposed, kRows = kLines == Lines::kRows;
  constexpr int kWords = kTile / kPack;
  constexpr int kFactors = kRows ? kPack : kVec;
  __shared__ alignas(16) uint32_t scales[kTile];
  __shared__ alignas(16) uint32_t turned[kTransposed ? kTile * kWords : 4];
  __shared__ Found found;
  if (!kGroup || (!kLoop && !kTransposed && a.group.last_dims == nullptr)) {
    prefetch_tile<kMx, kLines, kGroup>(a, shape);
  }
  // The rest of a group's tiles, none of which the first launch has: what comes before in the
  // stream was complete when the blocks of that one let this one start. Most often it finds
  // nothing, while the first one ends.
  const bool late = kLoop && begin != 0;
  if (!late) griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int lanes = kTransposed ? kTile / kVec : shape.cols / kVec;
  const int group = threadIdx.x % lanes;
  const int row = threadIdx.x / lanes * kPack, col = group * kVec;

  Vec<In, kVec> x[kPack];
  uint32_t word = 0;
  const auto load_data = [&](const Matrix &m, size_t row0, size_t col0) {
    const int height = left_of(m.rows - row0, shape.rows),
              width = left_of(m.cols - col0, shape.cols);
    if constexpr (kTransposed) {
      load_rows(a.input, m.at + (col0 + row) * m.rows + row0 + col, m.rows, width - row,
                height - col, x);
    } else {
      load_rows(a.input, m.at + (row0 + row) * m.cols + col0 + col, m.cols, height - row,
                width - col, x);
    }
  };
  const auto load_scales = [&](const Matrix &m, size_t row0, size_t col0) {
    if (threadIdx.x < kTile) {
      word = scale_word<kMx, kLines, kGroup>(a, m, shape, row0, col0, threadIdx.x);
    }
  };
  const auto finish = [&](const Matrix &m, size_t row0, size_t col0) {
    if (threadIdx.x < kTile) scales[threadIdx.x] = word;
    if constexpr (kTransposed) {
      // Pairs of words are permuted by the rows' group of 8, so that neither the writes nor the
      // reads meet in a bank.
#pragma unroll
      for (int j = 0; j < kVec / kPack; ++j) {
        uint32_t by_line[kPack], by_row[kPack];
#pragma unroll
        for (int p = 0; p < kPack; ++p) by_line[p] = x[p].w[j];
        transpose_words(by_line, by_row);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          turned[(col + j * kPack + i) * kWords + (row / kPack ^ 2 * group)] = by_row[i];
        }
      }
    }
    __syncthreads();
    Vec<In, kVec> now[kPack];
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      now[p] = x[p];
      if constexpr (kTransposed) {
        const int place = 2 * (group ^ (row + p) / kVec % lanes);
        const uint2 w = *reinterpret_cast<const uint2 *>(turned + (row + p) * kWords + place);
        now[p].w[0] = w.x, now[p].w[1] = w.y;
      }
    }
    float factors[kFactors];
    if constexpr (kRows) {
      uint32_t w[4];
      load_shared(scales + col / kTile * shape.rows + row, w);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        factors[j] =
            __uint_as_float(kMx ? e8m0_value(w[j] >> (col % kTile / 32 * 8) & 0xff) : w[j]);
      }
    } else if constexpr (kMx) {
      const auto *from = scales + row / 32 * (shape.cols / 4) + col / 4;
      const uint2 w = *reinterpret_cast<const uint2 *>(from);
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        factors[j] = __uint_as_float(e8m0_value((j < 4 ? w.x : w.y) >> (j % 4 * 8) & 0xff));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVec; i += 4) {
        uint32_t w[4];
        load_shared(scales + col + i, w);
#pragma unroll
        for (int j = 0; j < 4; ++j) factors[i + j] = __uint_as_float(w[j]);
      }
    }
    const auto result = [&](int p) {
      if constexpr (kRows) {
        return scaled_codes<In, Out>(a, now[p], factors[p]);
      } else {
        return scaled_codes<In, Out>(a, now[p], factors);
      }
    };
    const int height = left_of(m.rows - row0, shape.rows),
              width = left_of(m.cols - col0, shape.cols);
    const size_t at = m.at + (row0 + row) * m.cols + col0 + col;
    if ((reinterpret_cast<uintptr_t>(a.output) + at * bytes_of<Out>(a.output_dtype)) % 16 == 0 &&
        m.cols % kVec == 0) {
#pragma unroll
      for (int p = 0; p < kPack; ++p) {
        if (row + p < height && col < width) {
          store_as(a.output_dtype, a.output, at + p * m.cols, result(p));
        }
      }
    } else {
#pragma unroll
      for (int p = 0; p < kPack; ++p) {
        store_some_as(a.output_dtype, a.output, at + p * m.cols, row + p < height ? width - col : 0,
                      result(p));
      }
    }
  };
  if constexpr (!kGroup) {
    const Matrix m = {a.rows, a.cols, 0, 0};
    const auto across = shape.tiles(1, static_cast<uint32_t>(m.cols));
    const size_t row0 = size_t{blockIdx.x / across} * shape.rows;
    const size_t col0 = size_t{blockIdx.x % across} * shape.cols;
    load_data(m, row0, col0);
    load_scales(m, row0, col0);
    finish(m, row0, col0);
  } else {
#pragma unroll 1
    for (unsigned tile = begin + blockIdx.x; tile < tiles; tile += gridDim.x) {
      if (threadIdx.x < 32) find_tile(a, shape, by, tile, found);
      __syncthreads();
      if (!found.any) break;
      load_data(found.matrix, found.row0, found.col0);
      load_scales(found.matrix, found.row0, found.col0);
      finish(found.matrix, found.row0, found.col0);
      if (!kLoop) break;
      __syncthreads();
    }
    // A launch that waits for this one must also wait for the one before it.
    if (late) griddepcontrol_wait();
  }
}

template <class In, class Out, bool kMx, Lines kLines>
NVTEXOutcome dequantize(const NVTEXDequantizeArgs &a, cudaStream_t stream) {
  // Tiles of 512 columns where few of those are outside.
  const bool wide = kLines != Lines::kTransposed && a.group.last_dims == nullptr &&
                    (a.cols % 512 == 0 || a.cols >= 4096);
  const Shape shape = wide ? Shape{32, 512} : Shape{kTile, kTile};
  if (a.group.num_tensors == 0) {
    const size_t across = ceil_div(a.cols, static_cast<size_t>(shape.cols));
    const size_t down = ceil_div(a.rows, static_cast<size_t>(shape.rows));
    if (across > kMaxBlocks / down) return unimplemented("the matrix has too many tiles");
    const auto blocks = static_cast<unsigned>(across * down);
    return launch(dequantize_kernel<In, Out, kMx, kLines, Tiles::kSingle>, dim3(blocks), kThreads,
                  stream, a, shape, Grouping{}, 0u, blocks);
  }
  const size_t tiles = most_tiles(a.group, a.rows, a.cols, static_cast<size_t>(shape.rows),
                                  static_cast<size_t>(shape.cols));
  const bool uniform = a.group.first_dims == nullptr && a.group.last_dims == nullptr;
  const bool varying = a.group.first_dims != nullptr && a.group.last_dims != nullptr;
  // Members are looked up with dimensions of 32 bits.
  if (!varying && (a.rows > UINT32_MAX || a.cols > UINT32_MAX)) {
    return unimplemented("the group is too large");
  }
  // A block for each tile that the group has if no tile is partial, then a loop over the rest,
  // often none: blocks without a tile are not free.
  size_t blocks = shape.tiles(static_cast<uint32_t>(a.rows), static_cast<uint32_t>(a.cols));
  if (uniform) blocks = tiles;
  if (varying) blocks = ceil_div(a.rows * a.cols, kArea);
  if (blocks > kMaxBlocks) return unimplemented("the group has too many tiles");
  Grouping by = {one_varies(a.group, a.rows, a.cols), 0, {}, {}};
  if (by.known) {
    const bool rows_vary = a.group.last_dims == nullptr;
    const auto other = static_cast<uint32_t>(rows_vary ? a.cols : a.rows);
    by.shift = shape.rows == 32 && rows_vary ? 5 : 7;
    by.across = FastDivisor(shape.tiles(rows_vary ? 1 : other, rows_vary ? other : 1));
    by.totals[0] = {other, 0, 0};
    by.totals[1] = scale_total(a.mode, a.colwise, rows_vary, other);
  }
  unsigned begin = 0;
  if constexpr (!kIsWidened<Out>) {
    const NVTEXOutcome first = launch(dequantize_kernel<In, Out, kMx, kLines, Tiles::kOneEach>,
                                      dim3(static_cast<unsigned>(blocks)), kThreads, stream, a,
                                      shape, by, 0u, static_cast<unsigned>(tiles));
    if (uniform || first.status != NVTEX_BACKEND_OK) return first;
    begin = static_cast<unsigned>(blocks);
  }
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  return launch(dequantize_kernel<In, Out, kMx, kLines, Tiles::kLoop>,
                dim3(2 * static_cast<unsigned>(device.sm_count)), kThreads, stream, a, shape, by,
                begin, static_cast<unsigned>(tiles));
}

template <class In, class Out>
NVTEXOutcome dequantize(const NVTEXDequantizeArgs &a, cudaStream_t stream) {
  if (a.mode == NVTE_MXFP8_1D_SCALING) {
    return a.colwise ? dequantize<In, Out, true, Lines::kColumns>(a, stream)
                     : dequantize<In, Out, true, Lines::kRows>(a, stream);
  }
  return a.colwise ? dequantize<In, Out, false, Lines::kTransposed>(a, stream)
                   : dequantize<In, Out, false, Lines::kRows>(a, stream);
}

}  // namespace

NVTEXOutcome dequantize_blocks(const NVTEXDequantizeArgs &a, cudaStream_t stream) {
  if (a.mode > NVTE_BLOCK_SCALING_2D) return unimplemented("no CUDA kernel for this scaling mode");
  // E4M3 to BF16 is tuned, all other pairs share an instance.
  if (a.input_dtype == kNVTEFloat8E4M3 && a.output_dtype == kNVTEBFloat16) {
    return dequantize<E4M3, BF16>(a, stream);
  }
  return dequantize<E4M3, Widened>(a, stream);
}

}  // namespace nvte
