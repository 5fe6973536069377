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

// What a tile is part of.
struct Matrix {
  size_t rows, cols;
  size_t at;      // First element.
  size_t scales;  // First entry.
  unsigned tile;  // Row by row.
};

// The word of line `i` of a tile.
template <bool kMx, bool kGroup>
__device__ __forceinline__ uint32_t scales_of_line(const NVTEXDequantizeArgs &a, const Matrix &m,
                                                   size_t line_tile, size_t block_tile, int i) {
  const size_t pitch = kGroup ? scale_pitch(a.mode, a.colwise, m.rows, m.cols) : a.scale_stride;
  const size_t line = line_tile * kTile + i;
  if constexpr (kMx) {
    const auto *codes = static_cast<const uint8_t *>(a.scale_inv) + m.scales;
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
    const auto *scales = static_cast<const uint32_t *>(a.scale_inv) + m.scales;
    switch (a.mode) {
      case NVTE_BLOCK_SCALING_1D:
        return line < (a.colwise ? m.cols : m.rows) ? scales[block_tile * pitch + line] : 0;
      case NVTE_BLOCK_SCALING_2D:
        return scales[line_tile * pitch + block_tile];
      default:
        return scales[0];
    }
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

// Of a multiprocessor. The search for members takes more registers than 3 leave.
template <bool kGroup>
constexpr int kBlocksHere = kGroup ? 2 : 3;

// Tiles of a group that a block has, one after the other: searches for members take long.
constexpr unsigned kRun = 4;

// The members of a group have at most `tiles` tiles.
template <class In, class Out, bool kMx, Lines kLines, bool kGroup>
__global__ void __launch_bounds__(kThreads, blocks_here<kThreads>(kBlocksHere<kGroup>))
    dequantize_kernel(const __grid_constant__ NVTEXDequantizeArgs a, unsigned tiles) {
  constexpr bool kRows = kLines == Lines::kRows, kTransposed = kLines == Lines::kTransposed;
  constexpr int kWords = kTile / kPack, kFactors = kRows ? kPack : kVec;
  __shared__ alignas(16) uint32_t scales[kTile];
  __shared__ alignas(16) uint32_t tile[kTransposed ? kTile * kWords : 4];
  __shared__ Member found;
  __shared__ size_t first_scale;
  __shared__ bool any;
  wait_for_stream();
  let_next_start();
  const int group = threadIdx.x % kLanes;
  const int row = threadIdx.x / kLanes * kPack, col = group * kVec;

  unsigned unit = kGroup ? blockIdx.x * kRun : 0, done = 0;
  while (!kGroup || unit < tiles) {
    Matrix m = {a.rows, a.cols, 0, 0, blockIdx.x};
    if constexpr (kGroup) {
      const auto tiles_in = [](uint32_t r, uint32_t c) { return tiles_of(r) * tiles_of(c); };
      const bool search = done == 0 || found.unit + 1 == tiles_in(found.rows, found.cols);
      __syncthreads();
      const unsigned warp = threadIdx.x / 32;
      if (search && warp < 2) {
        // The first warp finds where the member's data begin, the second where its scales do.
        const auto size = [&](uint32_t r, uint32_t c) {
          return warp == 0 ? size_t{r} * c : scale_entries(a.mode, a.colwise, r, c);
        };
        Member next;
        const bool ok = find_member(a.group, a.rows, a.cols, unit, tiles_in, size, next);
        if (threadIdx.x == 0) {
          found = next;
          any = ok;
          if (ok && a.group.offsets != nullptr) {
            found.before = static_cast<size_t>(a.group.offsets[next.index]);
          }
        } else if (threadIdx.x == 32) {
          first_scale = a.mode != NVTE_DELAYED_TENSOR_SCALING ? next.before : next.index;
        }
      } else if (!search && threadIdx.x == 0) {
        ++found.unit;
      }
      __syncthreads();
      if (!any) return;
      m = {found.rows, found.cols, found.before, first_scale, found.unit};
    }
    const auto across = static_cast<unsigned>(tiles_of(m.cols));
    const size_t row_tile = m.tile / across, col_tile = m.tile % across;
    const size_t row0 = row_tile * kTile, col0 = col_tile * kTile;
    const int height = left_of(m.rows - row0, kTile), width = left_of(m.cols - col0, kTile);

    Vec<In, kVec> x[kPack];
    if constexpr (kTransposed) {
      load_rows(a.input, m.at + (col0 + row) * m.rows + row0 + col, m.rows, width - row,
                height - col, x);
    } else {
      load_rows(a.input, m.at + (row0 + row) * m.cols + col0 + col, m.cols, height - row,
                width - col, x);
    }
    if (threadIdx.x < kTile) {
      scales[threadIdx.x] = scales_of_line<kMx, kGroup>(a, m, kRows ? row_tile : col_tile,
                                                        kRows ? col_tile : row_tile, threadIdx.x);
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
        const int place = 2 * (group ^ (row + p) / kVec % kLanes);
        const uint2 w = *reinterpret_cast<const uint2 *>(tile + (row + p) * kWords + place);
        x[p].w[0] = w.x, x[p].w[1] = w.y;
      }
    }
    float factors[kFactors];
#pragma unroll
    for (int i = 0; i < kFactors; i += 4) {
      uint32_t w[4];
      load_shared(scales + (kRows ? row : col) + i, w);
      const int block = (kRows ? col : row) / 32;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        factors[i + j] = __uint_as_float(kMx ? e8m0_value(w[j] >> (8 * block) & 0xff) : w[j]);
      }
    }
    const auto result = [&](int p) {
      if constexpr (kRows) {
        return scaled<Out>(x[p], factors[p]);
      } else {
        return scaled<Out>(x[p], factors);
      }
    };
    const size_t at = m.at + (row0 + row) * m.cols + col0 + col;
    if ((reinterpret_cast<uintptr_t>(a.output) + at * Out::kBytes) % 16 == 0 &&
        m.cols % kVec == 0) {
#pragma unroll
      for (int p = 0; p < kPack; ++p) {
        if (row + p < height && col < width) store(a.output, at + p * m.cols, result(p));
      }
    } else {
#pragma unroll
      for (int p = 0; p < kPack; ++p) {
        store_some(a.output, at + p * m.cols, row + p < height ? width - col : 0, result(p));
      }
    }
    if constexpr (!kGroup) return;
    ++unit;
    if (++done == kRun) done = 0, unit += (gridDim.x - 1) * kRun;
  }
}

// Most tiles that the members can have, unless both dimensions are the device's.
size_t most_tiles(const NVTEXGroup &group, size_t rows, size_t cols) {
  const size_t n = group.num_tensors;
  if (group.first_dims != nullptr) return (tiles_of(rows) + n) * tiles_of(cols);
  if (group.last_dims != nullptr) return tiles_of(rows) * (tiles_of(cols) + n);
  return n * tiles_of(rows / n) * tiles_of(cols);
}

template <class In, class Out, bool kMx, Lines kLines>
NVTEXOutcome dequantize(const NVTEXDequantizeArgs &a, cudaStream_t stream) {
  if (a.group.num_tensors == 0) {
    const size_t across = tiles_of(a.cols), down = tiles_of(a.rows);
    if (across > kMaxBlocks / down) return unimplemented("the matrix has too many tiles");
    const auto blocks = static_cast<unsigned>(across * down);
    return launch(dequantize_kernel<In, Out, kMx, kLines, false>, dim3(blocks), kThreads, stream, a,
                  blocks);
  }
  size_t tiles = most_tiles(a.group, a.rows, a.cols), blocks = ceil_div(tiles, kRun);
  const bool varying = a.group.first_dims != nullptr && a.group.last_dims != nullptr;
  // Members are looked up with dimensions of 32 bits.
  if (!varying && (a.rows > UINT32_MAX || a.cols > UINT32_MAX)) {
    return unimplemented("the group is too large");
  }
  if (varying) {
    // Only the device knows: enough blocks to fill it a few times over.
    Device device;
    if (const cudaError_t error = current_device(&device)) return outcome(error);
    blocks = size_t{8} * static_cast<unsigned>(device.sm_count);
    tiles = kMaxBlocks;
  } else if (tiles > kMaxBlocks) {
    return unimplemented("the group has too many tiles");
  }
  return launch(dequantize_kernel<In, Out, kMx, kLines, true>, dim3(static_cast<unsigned>(blocks)),
                kThreads, stream, a, static_cast<unsigned>(tiles));
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
  return dispatch<E4M3, E5M2>(a.input_dtype, [&](auto in) {
    return dispatch<F32, F16, BF16>(a.output_dtype, [&](auto out) {
      return dequantize<decltype(in), decltype(out)>(a, stream);
    });
  });
}

}  // namespace nvte
