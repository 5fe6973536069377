// Casts of BF16 to NVFP4 in both directions, of whole blocks that have one candidate for each
// scale, rounded to nearest or by random bytes. A thread takes 8 neighbouring elements of 8
// neighbouring rows, and casts them in both directions in registers, 4 x 4 at a time. Two threads
// share a block of a row, two others one of a column; the columns' codes go through shared memory
// for whole lines. Blocks of threads stay for many tiles, and fetch the next one meanwhile. Rare
// tiles are cast in the general way, as in nvfp4_tiles.cuh.
//
// H200, 64M elements: 71 us, 69 % of the memory's rate, with scales in tiles 66 us, 74 %. An
// element takes 20 instructions, half of which are of the pipe of logic, which does one in two
// cycles; by random bytes 31, and 113 us, 43 %.
#pragma once

#include "common/limits.cuh"
#include "nvfp4_tiles.cuh"

namespace nvte {
namespace {

constexpr unsigned kPatchBlocks = 2;  // That a multiprocessor has room for.

// Magnitudes for encode_four. Those of BF16 are as exact times 509/512 (see to_bounds).
template <bool kStochastic>
__device__ __forceinline__ float scaled_magnitude(float x) {
  return kStochastic ? fabsf(x) : __fmul_rn(fabsf(x), kBoundScale);
}

// Codes in bytes 1 and 3, by four random bytes or to nearest.
template <bool kStochastic>
__device__ __forceinline__ uint32_t encode_four(const float (&x)[4], float factor,
                                                uint32_t random) {
  float y[4];
  if constexpr (kStochastic) {
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = __fmul_rn(x[i], factor);
    return cut_four(y, random);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = __fmaf_rn(x[i], factor, kBoundShift);
    return join_pairs(nearest_pair(y[0], y[2]), nearest_pair(y[1], y[3]));
  }
}

// The random words of the 16 rows of a warp, for 4 elements each.
struct alignas(16) WarpWords {
  uint32_t rows[16][kSide / 16][4], columns[kSide][4];
};

template <bool kStochastic>
struct PatchMemory {
  union {
    uint32_t next[8][kThreads][4];  // Of the next tile: each thread fetches what it takes.
    General general;
  };
  // Of tiles in turn, so that one barrier is enough for each.
  struct {
    // Of 8 rows each: a word for each column. Groups of 4 columns are swizzled, so that 8 lanes get
    // neighbouring rows of 4 columns from different banks.
    uint32_t words[kSide / 8][kSide];
    uint8_t codes[kSide / 16][kSide];
  } columns[2];
  Nvfp4Scale scale[2];  // Of rows and of columns.
  RoundKeys keys;
  uint64_t offset;  // Where the stream of random numbers begins, see Generator.
  WarpWords random[kStochastic ? kThreads / 32 : 1];
};
static_assert(sizeof(PatchMemory<true>) <= kSharedAnywhere, "fits every GPU");

// A thread draws those of one block of each fourth row, and of four neighbouring columns.
__device__ __forceinline__ void draw_words(const Generator &generator, const RoundKeys &keys,
                                           uint64_t number, WarpWords &to) {
  unsigned thread = threadIdx.x;
  asm volatile("" : "+r"(thread));  // Places of words are not kept in registers from tile to tile.
  const unsigned lane = thread % 32, top = thread / 32 * 16;
#pragma unroll
  for (int colwise = 0; colwise < 2; ++colwise) {
    Call calls[4];
    Words words[4];
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      calls[k] = colwise ? tuned_call(number, 4, true, top, lane * 4 + k)
                         : tuned_call(number, 4, false, top + lane / 8 + 4 * k, lane % 8 * 16);
    }
    generator.draw(calls, words, keys);
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      store_bytes<16>(colwise ? to.columns[lane * 4 + k] : to.rows[lane / 8 + 4 * k][lane % 8],
                      words[k].w);
    }
  }
}

template <bool kStochastic>
__global__ void __launch_bounds__(kThreads, kPatchBlocks)
    nvfp4_patches_kernel(const __grid_constant__ Problem p) {
  using In = BF16;
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  constexpr unsigned kBlocks = kSide / 16;
  extern __shared__ __align__(16) uint8_t memory[];
  auto &shared = *reinterpret_cast<PatchMemory<kStochastic> *>(memory);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (a.noop != nullptr && *a.noop == 1.0f) return;
  const unsigned height = static_cast<unsigned>(a.rows), pitch = static_cast<unsigned>(a.cols);
  const unsigned tiles_across = (pitch + kSide - 1) / kSide;
  const unsigned tiles = (height + kSide - 1) / kSide * tiles_across;
  const unsigned chunk = threadIdx.x % 16, first = threadIdx.x / 16, col = chunk * 8;
  const unsigned top = first * 8;  // The first of the thread's rows in the tile.
  const unsigned odd = threadIdx.x % 2, lower = threadIdx.x / 16 % 2;
  const auto staged = static_cast<uint32_t>(__cvta_generic_to_shared(shared.next[0][threadIdx.x]));
  unsigned row0 = 0, col0 = 0;  // Of the tile that was fetched last.
  auto fetch = [&](unsigned tile) {
    row0 = tile / tiles_across * kSide, col0 = tile % tiles_across * kSide;
    const bool inside = row0 + top < height && col0 + col < pitch;
    const char *from =
        static_cast<const char *>(a.input) + (size_t{row0 + top} * pitch + col0 + col) * In::kBytes;
#pragma unroll
    for (unsigned i = 0; i < 8; ++i, from += pitch * In::kBytes) {
      cp_async_16(staged + i * kThreads * 16, from, inside);
    }
  };
  bool usual_scales = true;
  if (threadIdx.x < 2) {
    float global;
    shared.scale[threadIdx.x] =
        scale_of(a, (threadIdx.x == 0 ? a.rowwise : a.colwise).amax, global);
    usual_scales = usual_scale(shared.scale[threadIdx.x], false, global);
  }
  WarpWords &random = shared.random[kStochastic ? threadIdx.x / 32 : 0];
  if constexpr (kStochastic) {
    const Generator generator(a);
    shared.keys.set(generator.seed);
    if (threadIdx.x == 0) shared.offset = generator.offset;
  }
  usual_scales = __syncthreads_and(usual_scales);
  const size_t row_stride = a.rowwise.scale_stride, col_stride = a.colwise.scale_stride;
  const ScaleMatrix row_scales = {nullptr, row_stride, 1, a.swizzled ? (row_stride + 3) / 4 : 0, 0};
  const ScaleMatrix col_scales = {nullptr, col_stride, 1, a.swizzled ? (col_stride + 3) / 4 : 0, 0};
  fetch(blockIdx.x);
  unsigned turn = 0;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn ^= 1) {
    auto &columns = shared.columns[turn];
    const unsigned tile_row = row0, tile_col = col0;
    if constexpr (kStochastic) {
      const uint64_t number = tile_col / kSide + (tile_row + a.first_row) / kSide * tiles_across;
      __syncwarp();
      draw_words(Generator(shared.offset), shared.keys, number, random);
      __syncwarp();
    }
    Vec<In, 8> x[8];
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 8; ++i) load_shared(shared.next[i][threadIdx.x], x[i].w);
    uint32_t column_most[4];  // Of pairs of columns.
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      column_most[j] = x[0].w[j];
#pragma unroll
      for (int i = 1; i < 8; ++i) column_most[j] = Pair<In>::larger(column_most[j], x[i].w[j]);
    }
    if (tile + gridDim.x < tiles) fetch(tile + gridDim.x);
    bool usual = usual_scales;

    // Each of the two threads that share blocks of 8 columns scales 4 of them.
    float col_factor[8];
    uint32_t four_scales = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t given = lower ? column_most[j] : column_most[2 + j];
      const uint32_t kept = lower ? column_most[2 + j] : column_most[j];
      const uint32_t most =
          Pair<In>::larger(kept, __shfl_xor_sync(0xffffffffu, given, 16)) & 0x7fff7fff;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int c = 2 * j + h;
        uint32_t code;
        float factor;
        usual &= usual_block(h ? Pair<In>::high(most) : Pair<In>::low(most), shared.scale[1], false,
                             1.0f, code, factor);
        four_scales |= code << 8 * c;
        const float across = __shfl_xor_sync(0xffffffffu, factor, 16);
        col_factor[c] = lower ? across : factor;
        col_factor[4 + c] = lower ? factor : across;
      }
    }
    *reinterpret_cast<uint32_t *>(&columns.codes[first / 2][col + 4 * lower]) = four_scales;

    const bool inside = tile_row + top < height && tile_col + col < pitch;
    uint8_t *scales_out = static_cast<uint8_t *>(a.rowwise.scales) +
                          row_scales.index(tile_row + top + odd, (tile_col + col) / 16);
    const unsigned row_step = a.swizzled ? 16 : static_cast<unsigned>(row_stride);
    uint8_t *codes_out = static_cast<uint8_t *>(a.rowwise.data) +
                         (size_t{tile_row + top} * pitch + tile_col + col) / 2;
    // The compiler would compute these anew at every use.
    asm volatile("" : "+l"(scales_out), "+l"(codes_out));
    uint32_t column[8];
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      float row_factor[4];
      uint32_t row[4];
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        // Each lane of a pair scales one of two rows.
        uint32_t most[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t (&w)[4] = x[4 * g + i + j].w;
          most[j] = Pair<In>::larger(Pair<In>::larger(w[0], w[1]), Pair<In>::larger(w[2], w[3]));
        }
        const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? most[0] : most[1], 1);
        const float block_most = largest_of<In>(Pair<In>::larger(odd ? most[1] : most[0], other));
        uint32_t code;
        float factor;
        usual &= usual_block(block_most, shared.scale[0], false, 1.0f, code, factor);
        const float swapped = __shfl_xor_sync(0xffffffffu, factor, 1);
        row_factor[i] = odd ? swapped : factor, row_factor[i + 1] = odd ? factor : swapped;
        if (inside) *scales_out = static_cast<uint8_t>(code);
        scales_out += 2 * row_step;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        __syncwarp();  // Fewer registers: the compiler takes one patch after the other.
        float f[4][4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const uint32_t w = x[4 * g + r].w[2 * h + k];
            f[r][2 * k] = scaled_magnitude<kStochastic>(Pair<In>::low(w));
            f[r][2 * k + 1] = scaled_magnitude<kStochastic>(Pair<In>::high(w));
          }
        }
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const uint32_t drawn =
              kStochastic ? random.rows[top % 16 + 4 * g + r][chunk / 2][2 * odd + h] : 0;
          const uint32_t four = encode_four<kStochastic>(f[r], row_factor[r], drawn);
          row[r] = h == 0 ? four : __byte_perm(row[r], four, 0x7531);
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float line[4] = {f[0][c], f[1][c], f[2][c], f[3][c]};
          const uint32_t drawn = kStochastic ? random.columns[col + 4 * h + c][2 * lower + g] : 0;
          const uint32_t four = encode_four<kStochastic>(line, col_factor[4 * h + c], drawn);
          uint32_t &word = column[4 * h + c];
          word = g == 0 ? four : __byte_perm(word, four, 0x7531);
        }
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        // Bytes 1 and 3 of each word have the signs of its elements.
        const uint32_t (&w)[4] = x[4 * g + r].w;
        const uint32_t a = __byte_perm(w[0], w[1], 0x7351), b = __byte_perm(w[2], w[3], 0x7351);
        if constexpr (kStochastic) row[r] = at_most_seven(row[r]);
        const uint32_t word = with_sign_bytes(row[r], sign_bytes(a, b, 0), sign_bytes(a, b, 1));
        if (inside) *reinterpret_cast<uint32_t *>(codes_out) = word;
        codes_out += pitch / 2;
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t pairs[2][2];  // Signs of both columns, of rows in turn and of upper and lower ones.
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i / 2 * 4 + i % 2;
        pairs[i % 2][i / 2] = __byte_perm(x[row].w[j], x[row + 2].w[j], 0x7351);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t &word = column[2 * j + h];
        if constexpr (kStochastic) word = at_most_seven(word);
        word = with_sign_bytes(word, sign_bytes(pairs[0][0], pairs[0][1], h),
                               sign_bytes(pairs[1][0], pairs[1][1], h));
      }
    }
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      store_bytes<16>(&columns.words[first][((chunk * 2 + half) ^ (first / 2)) * 4],
                      column + 4 * half);
    }
    const bool general = __syncthreads_or(!usual);
    const unsigned group = threadIdx.x % kBlocks;
    unsigned c = threadIdx.x / kBlocks;
    uint8_t *column_out = static_cast<uint8_t *>(a.colwise.data) +
                          (size_t{tile_col + c} * height + tile_row) / 2 + group * 8;
    uint8_t *column_scales = static_cast<uint8_t *>(a.colwise.scales) +
                             col_scales.index(tile_col + c, tile_row / 16 + group);
    // Also in tiles, the scales of columns that are 32 apart have one distance.
    constexpr unsigned kStep = kThreads / kBlocks;
    static_assert(kStep == 32, "a quarter of a tile of scales");
    const unsigned step = a.swizzled ? 4 : kStep * static_cast<unsigned>(col_stride);
#pragma unroll
    for (unsigned i = 0; i < kSide / kStep; ++i, c += kStep) {
      if (tile_col + c < pitch && tile_row + group * 16 < height) {
        const unsigned at = ((c / 4) ^ group) * 4 + c % 4;
        const uint32_t both[2] = {columns.words[2 * group][at], columns.words[2 * group + 1][at]};
        store_bytes<8>(column_out, both);
        *column_scales = columns.codes[group][c];
      }
      column_out += kStep / 2 * height, column_scales += step;
    }
    if (!general) continue;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int part = 0; part < 4; ++part) {
      general_tile<In, !kStochastic>(p, tile_row + part / 2 * kTile, tile_col + part % 2 * kTile,
                                     shared.general);
      __syncthreads();
    }
    if (tile + gridDim.x < tiles) fetch(tile + gridDim.x);
  }
}

}  // namespace
}  // namespace nvte
