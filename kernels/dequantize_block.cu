// Casts back from FP8 with scales of blocks, and of groups in any scaling mode: y = cast(x *
// scale_inv) of row-wise or column-wise data.

#include "common/cast_block.cuh"
#include "common/group.cuh"
#include "common/scale.cuh"
#include "common/tile.cuh"

namespace nvte {
namespace {

// A tile is 128 x 128: 16 lanes span its columns, a thread has 4 rows of 8 columns. Its scales are
// a word for each line, which is a row of row-wise data or a column of column-wise data: a float,
// or the codes of 4 blocks.
constexpr int kTile = 128;
constexpr int kThreads = 512;
constexpr int kLanes = 16, kVec = 8, kPack = 4;
static_assert(kThreads / kLanes * kPack == kTile && kLanes * kVec == kTile, "a block is a tile");

// What a line of the scales is, and whether the data are stored transposed.
enum class Lines { kRows, kColumns, kTransposed };

struct Args {
  NVTEXDequantizeArgs a;
  bool once;  // There are as many blocks as tiles.
};

// The word of line `i` of a tile.
template <bool kMx>
__device__ __forceinline__ uint32_t scales_of_line(const NVTEXDequantizeArgs &a, const Member &m,
                                                   size_t line_tile, size_t block_tile, int i) {
  const bool lone = a.group.num_tensors == 0;
  const size_t pitch = lone ? a.scale_stride : scale_pitch(a.mode, a.colwise, m.rows, m.cols);
  const size_t line = line_tile * kTile + i, skip = a.colwise ? m.col_scales : m.row_scales;
  if constexpr (kMx) {
    const auto *codes = static_cast<const uint8_t *>(a.scale_inv) + skip;
    size_t at = line * pitch + block_tile * 4, step = 1;
    if (a.swizzled) {
      const size_t tiles = tiles_of(a.colwise ? m.rows : m.cols);
      at = (line_tile * tiles + block_tile) * 512 + i % 32 * 16 + i / 32 * 4;
    } else if (a.colwise) {
      at = block_tile * 4 * pitch + line, step = pitch;
    }
    if (step == 1 && reinterpret_cast<uintptr_t>(codes) % 4 == 0) {
      return *reinterpret_cast<const uint32_t *>(codes + at);
    }
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) word |= uint32_t{codes[at + j * step]} << (8 * j);
    return word;
  } else {
    const auto *scales = static_cast<const uint32_t *>(a.scale_inv) + skip;
    switch (a.mode) {
      case NVTE_BLOCK_SCALING_1D:
        return line < (a.colwise ? m.cols : m.rows) ? scales[block_tile * pitch + line] : 0;
      case NVTE_BLOCK_SCALING_2D:
        return scales[line_tile * pitch + block_tile];
      default:
        return scales[m.index];
    }
  }
}

// Four rows of eight columns; zeros outside.
template <class T>
__device__ __forceinline__ void load_rows(const void *from, size_t at, size_t pitch, int rows,
                                          int cols, Vec<T, kVec> (&x)[kPack]) {
  const bool whole = (reinterpret_cast<uintptr_t>(from) + at) % kVec == 0 && pitch % kVec == 0;
#pragma unroll
  for (int p = 0; p < kPack; ++p) {
    const size_t here = at + p * pitch;
    x[p] = whole ? load<T, kVec>(from, here, p < rows && 0 < cols)
                 : load_some<T, kVec>(from, here, p < rows ? cols : 0);
  }
}

#ifndef TUNE_ROWS
#define TUNE_ROWS 3
#define TUNE_COLS 2
#define TUNE_T 3
#endif
// Blocks of a multiprocessor.
template <Lines kLines>
constexpr int kBlocksHere = kLines == Lines::kRows      ? TUNE_ROWS
                            : kLines == Lines::kColumns ? TUNE_COLS
                                                        : TUNE_T;

template <class In, class Out, bool kMx, Lines kLines>
__global__ void __launch_bounds__(kThreads, blocks_here<kThreads>(kBlocksHere<kLines>))
    dequantize_kernel(const __grid_constant__ Args args) {
  constexpr bool kTransposed = kLines == Lines::kTransposed;
  constexpr int kWords = kTile / kPack;
  __shared__ alignas(16) uint32_t scales[kTile];
  __shared__ alignas(16) uint32_t tile[kTransposed ? kTile * kWords : 4];
  __shared__ Member found;
  __shared__ bool any;
  wait_for_stream();
  let_next_start();
  const NVTEXDequantizeArgs &a = args.a;
  const int lane = threadIdx.x % 32, group = lane % kLanes;
  const int row = threadIdx.x / kLanes * kPack, col = group * kVec;

  for (size_t unit = blockIdx.x;; unit += gridDim.x) {
    Member m = {0, a.rows, a.cols, 0, 0, 0, 0, unit};
    if (a.group.num_tensors != 0) {
      if (threadIdx.x < 32) {
        const auto tiles = [](size_t r, size_t c) { return tiles_of(r) * tiles_of(c); };
        const bool ok = find_member(a.group, a.mode, a.rows, a.cols, unit, tiles, m);
        if (lane == 0) found = m, any = ok;
      }
      __syncthreads();
      if (!any) return;
      m = found;
    }
    const auto across = static_cast<unsigned>(tiles_of(m.cols));
    const auto which = static_cast<unsigned>(m.unit);
    const size_t row_tile = which / across, col_tile = which % across;
    const size_t row0 = row_tile * kTile, col0 = col_tile * kTile;

    Vec<In, kVec> x[kPack];
    if constexpr (kTransposed) {
      load_rows(a.input, m.at + (col0 + row) * m.rows + row0 + col, m.rows,
                left_of(m.cols - col0, kTile) - row, left_of(m.rows - row0, kTile) - col, x);
    } else {
      load_rows(a.input, m.at + (row0 + row) * m.cols + col0 + col, m.cols,
                left_of(m.rows - row0, kTile) - row, left_of(m.cols - col0, kTile) - col, x);
    }
    if (threadIdx.x < kTile) {
      scales[threadIdx.x] = kLines == Lines::kRows
                                ? scales_of_line<kMx>(a, m, row_tile, col_tile, threadIdx.x)
                                : scales_of_line<kMx>(a, m, col_tile, row_tile, threadIdx.x);
    }
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
          tile[(col + j * kPack + i) * kWords + (row / kPack ^ 2 * group)] = by_row[i];
        }
      }
    }
    __syncthreads();

    if constexpr (kTransposed) {
#pragma unroll
      for (int p = 0; p < kPack; ++p) {
        const uint32_t *from = tile + (row + p) * kWords + 2 * (group ^ (row + p) / kVec % kLanes);
        const uint2 w = *reinterpret_cast<const uint2 *>(from);
        x[p].w[0] = w.x, x[p].w[1] = w.y;
      }
    }
    float factors[kLines == Lines::kRows ? kPack : kVec];
#pragma unroll
    for (int i = 0; i < (kLines == Lines::kRows ? kPack : kVec); i += 4) {
      uint32_t w[4];
      load_shared(scales + (kLines == Lines::kRows ? row : col) + i, w);
      const int block = kLines == Lines::kRows ? col / 32 : row / 32;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        factors[i + j] = __uint_as_float(kMx ? e8m0_value(w[j] >> (8 * block) & 0xff) : w[j]);
      }
    }
    const int rows = left_of(m.rows - row0, kTile) - row;
    const int cols = left_of(m.cols - col0, kTile) - col;
    const size_t at = m.at + (row0 + row) * m.cols + col0 + col;
    const bool whole =
        (reinterpret_cast<uintptr_t>(a.output) + at * Out::kBytes) % 16 == 0 && m.cols % kVec == 0;
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      Vec<Out, kVec> y;
      if constexpr (kLines == Lines::kRows) {
        y = scaled<Out>(x[p], factors[p]);
      } else {
        y = scaled<Out>(x[p], factors);
      }
      if (whole) {
        if (p < rows && 0 < cols) store(a.output, at + p * m.cols, y);
      } else {
        store_some(a.output, at + p * m.cols, p < rows ? cols : 0, y);
      }
    }
    if (args.once) return;
    __syncthreads();
  }
}

template <class In, class Out>
NVTEXOutcome dequantize(const NVTEXDequantizeArgs &a, cudaStream_t stream) {
  size_t blocks = 0;
  if (a.group.num_tensors != 0) {
    blocks = most_tiles(a.group, a.rows, a.cols);
  } else if (tiles_of(a.rows) <= kMaxBlocks / tiles_of(a.cols)) {
    blocks = tiles_of(a.rows) * tiles_of(a.cols);
  } else {
    return unimplemented("the matrix has too many tiles");
  }
  const bool once = blocks != 0 && blocks <= kMaxBlocks;
  if (!once) {
    // Enough to fill any device a few times over.
    Device device;
    if (const cudaError_t error = current_device(&device)) return outcome(error);
    blocks = static_cast<size_t>(device.sm_count) * 16;
  }
  const Args args = {a, once};
  const auto run = [&](auto kernel) {
    return launch(kernel, dim3(static_cast<unsigned>(blocks)), kThreads, stream, args);
  };
  if (a.mode == NVTE_MXFP8_1D_SCALING) {
    return a.colwise ? run(dequantize_kernel<In, Out, true, Lines::kColumns>)
                     : run(dequantize_kernel<In, Out, true, Lines::kRows>);
  }
  return a.colwise ? run(dequantize_kernel<In, Out, false, Lines::kTransposed>)
                   : run(dequantize_kernel<In, Out, false, Lines::kRows>);
}

}  // namespace

NVTEXOutcome dequantize_blocks(const NVTEXDequantizeArgs &a, cudaStream_t stream) {
  if (a.mode > NVTE_BLOCK_SCALING_2D) return unimplemented("no CUDA kernel for this scaling mode");
  return dispatch<E4M3, E5M2>(a.input_dtype, [&](auto in) {
    return dispatch<F32, F16, BF16>(a.output_dtype, [&](auto out) {
      return dequantize<decltype(in), decltype(out)>(a, stream);
    });
  });
}

}  // namespace nvte
