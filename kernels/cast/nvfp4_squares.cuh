// Casts of BF16 to NVFP4 in whole squares of 16 x 16 elements that share a scale, rounded to
// nearest. Both directions have the same codes if they have the same global scale (else tiles are
// cast in the general way): a thread encodes 8 elements of 8 rows, and transposes the codes for the
// columns, which the tile collects in shared memory.
#pragma once

#include "nvfp4_tiles.cuh"

namespace nvte {
namespace {

// Eight rows of eight codes, transposed.
__device__ __forceinline__ void transpose_codes(const uint32_t (&row)[8], uint32_t (&column)[8]) {
  constexpr uint32_t kLow = 0x0f0f0f0f;
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    uint32_t pair[4];  // Byte k of word i: rows 2 i and 2 i + 1 of column 2 k + odd.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t a = row[2 * i], b = row[2 * i + 1];
      pair[i] = odd ? (a >> 4 & kLow) | (b & ~kLow) : (a & kLow) | (b << 4 & ~kLow);
    }
    uint32_t two[2][2];  // Columns of k < 2 and the others, rows of i < 2 and the others.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      two[0][i] = __byte_perm(pair[2 * i], pair[2 * i + 1], 0x5140);
      two[1][i] = __byte_perm(pair[2 * i], pair[2 * i + 1], 0x7362);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      column[4 * k + odd] = __byte_perm(two[k][0], two[k][1], 0x5410);
      column[4 * k + 2 + odd] = __byte_perm(two[k][0], two[k][1], 0x7632);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 3)
    nvfp4_squares_kernel(const __grid_constant__ Problem p) {
  using In = BF16;
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  constexpr unsigned kBlocks = kSide / 16;
  __shared__ union alignas(16) {
    // Of 8 rows each: a word for each column. Groups of 4 columns are swizzled, so that 8 lanes get
    // neighbouring rows of 4 columns from different banks.
    uint32_t words[kSide / 8][kSide];
    General general;
  } shared;
  __shared__ uint8_t codes[kBlocks][kBlocks];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (a.noop != nullptr && *a.noop == 1.0f) return;
  const unsigned tiles_across = static_cast<unsigned>((a.cols + kSide - 1) / kSide);
  const size_t row0 = size_t{blockIdx.x / tiles_across} * kSide;
  const size_t col0 = size_t{blockIdx.x % tiles_across} * kSide;
  const Member member = member_of(a, row0);
  const size_t end = member.first + member.rows;
  if (row0 >= end) return;
  const unsigned rows = end - row0 < kSide ? end - row0 : kSide;
  const unsigned cols = a.cols - col0 < kSide ? a.cols - col0 : kSide;
  const unsigned chunk = threadIdx.x % 16, first = threadIdx.x / 16, col = chunk * 8;
  const unsigned top = first * 8;  // The first of the thread's rows in the tile.
  const uint16_t *const in = static_cast<const uint16_t *>(a.input) + row0 * a.cols + col0;
  const unsigned pitch = static_cast<unsigned>(a.cols);
  const bool inside = top < rows && col < cols;
  const bool fast = a.fast_math && a.variant == NVTEX_NVFP4_TUNED;
  Vec<In, 8> x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = load<In, 8>(in, (top + i) * pitch + col, inside);
  if (fast) drop_zero_signs(x);
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) most = Pair<In>::larger(most, x[i / 4].w[i % 4]);
  most = Pair<In>::larger(most, __shfl_xor_sync(0xffffffffu, most, 1));
  most = Pair<In>::larger(most, __shfl_xor_sync(0xffffffffu, most, 16));
  const float square_most = largest_of<In>(most);
  const bool by_row = a.rowwise.data != nullptr, by_col = a.colwise.data != nullptr;
  const float *const amax = amax_of(by_row ? a.rowwise : a.colwise, member);
  const float *const other = amax_of(by_col ? a.colwise : a.rowwise, member);
  float global, factor;
  const Nvfp4Scale scale = scale_of(a, amax, global);
  uint32_t code, word[8];
  bool usual = usual_scale(scale, fast, global);
  usual &= usual_block(square_most, scale, fast, global, code, factor);
  if (amax != other) usual &= amax != nullptr && other != nullptr && *amax == *other;
#pragma unroll
  for (int i = 0; i < 8; ++i) word[i] = encode_row<In, false>(x[i].w, factor, 0, 0);
  if (by_row && inside) {
    const size_t stride = a.rowwise.scale_stride;
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    // Each lane of a pair writes the scales of every second row.
    uint8_t *scales_out = static_cast<uint8_t *>(a.rowwise.scales) +
                          scales.index(row0 + top + threadIdx.x % 2, (col0 + col) / 16);
    const unsigned scale_step = a.swizzled ? 16 : static_cast<unsigned>(stride);
    uint8_t *codes_out =
        static_cast<uint8_t *>(a.rowwise.data) + ((row0 + top) * a.cols + col0 + col) / 2;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      *reinterpret_cast<uint32_t *>(codes_out) = word[i];
      codes_out += pitch / 2;
      if (i % 2 == 0) *scales_out = static_cast<uint8_t>(code), scales_out += 2 * scale_step;
    }
  }
  if (by_col) {
    uint32_t column[8];
    transpose_codes(word, column);
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      store_bytes<16>(&shared.words[first][(((chunk * 2 + half) ^ (first / 2)) * 4)],
                      column + 4 * half);
    }
    codes[first / 2][chunk / 2] = static_cast<uint8_t>(code);
    __syncthreads();
    const size_t stride = stride_of(a, member);
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    const unsigned group = threadIdx.x % kBlocks;
    const size_t in_member = row0 - member.first;
    unsigned c = threadIdx.x / kBlocks;
    uint8_t *codes_out = static_cast<uint8_t *>(a.colwise.data) + member.first * a.cols / 2 +
                         ((col0 + c) * member.rows + in_member) / 2 + group * 8;
    uint8_t *scales_out = static_cast<uint8_t *>(a.colwise.scales) + member.first * a.cols / 16 +
                          scales.index(col0 + c, in_member / 16 + group);
    // Also in tiles, the scales of columns that are 32 apart have one distance.
    constexpr unsigned kStep = kThreads / kBlocks;
    static_assert(kStep == 32, "a quarter of a tile of scales");
    const unsigned step = kStep / 2 * static_cast<unsigned>(member.rows);
    const unsigned scale_step = a.swizzled ? 4 : kStep * static_cast<unsigned>(stride);
#pragma unroll
    for (unsigned i = 0; i < kSide / kStep; ++i, c += kStep) {
      if (c < cols && group * 16 < rows) {
        const unsigned at = ((c / 4) ^ group) * 4 + c % 4;
        const uint32_t both[2] = {shared.words[2 * group][at], shared.words[2 * group + 1][at]};
        store_bytes<8>(codes_out, both);
        *scales_out = codes[group][c / 16];
      }
      codes_out += step, scales_out += scale_step;
    }
  }
  if (!__syncthreads_or(!usual)) return;
  for (int part = 0; part < 4; ++part) {
    general_tile<In, true>(p, row0 + part / 2 * kTile, col0 + part % 2 * kTile, shared.general);
    __syncthreads();
  }
}

}  // namespace
}  // namespace nvte
