// Casts to NVFP4 of whole blocks of BF16 that choose between two scales, in tiles of 128 rows and
// columns: a thread takes four blocks of rows, then four of columns.
//
// The errors that decide are sums whose every step is rounded, of what codes stand for after three
// roundings each. The kernel adds up how far elements are from their codes in steps of the scale,
// which takes fewer instructions. Where both errors are so close that roundings could decide, or a
// number is out of the usual range, a warp casts the block again as it is defined.
//
// H100, 64M elements: 122 us by absolute errors, 125 us by squares; about 47 instructions an
// element.
#pragma once

#include "nvfp4_tiles.cuh"

namespace nvte {
namespace {

constexpr unsigned kChoiceBlocks = 3;  // That a multiprocessor has room for.

// How much roundings move errors. In steps of its scale an element is below 7 and at most 1 from
// its code. By definition what a code stands for is off by 2^-23 of it and the difference by 2^-24;
// here an element is by 5 * 2^-24 of it and the difference by 2^-24: less than 49 * 2^-24 for each
// of 16 elements and two scales; for squares twice as much. 16 sums add 2^-24 of the result each,
// twice.
template <bool kSquares>
constexpr float kOff = (kSquares ? 2 : 1) * 0x1.9p-14f;
constexpr float kOffAdded = 0x1p-18f;

// What all blocks of a tensor need.
struct ChoiceScale {
  float global, inverse;
  float off;  // How far apart two errors have to be besides, in parts of the larger scale.
};

// Codes of magnitudes, an eighth of a word each, one bit too high; the error in steps of the scale.
struct Candidate {
  uint32_t word[2];
  float error;
};

template <bool kSquares>
__device__ __forceinline__ Candidate try_factor(const float (&x)[16], const float (&bound)[16],
                                                float factor) {
  Candidate candidate;
  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t part[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int i = 8 * half + 4 * k + odd;
        const uint32_t pair = nearest_pair(__fmaf_rn(bound[i], factor, kBoundShift),
                                           __fmaf_rn(bound[i + 2], factor, kBoundShift));
        // In half precision the codes are what they stand for, times 2^-14.
        const uint32_t codes = (pair + 0x01000100) & 0x0e000e00;
        part[k] = odd ? product(codes, 16, part[k]) : codes;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float code = h ? Pair<F16>::high(codes) : Pair<F16>::low(codes);
          const float d = __fmaf_rn(x[i + 2 * h], factor, -code);
          sum[h] = kSquares ? __fmaf_rn(d, d, sum[h]) : __fadd_rn(sum[h], fabsf(d));
        }
      }
    }
    candidate.word[half] = __byte_perm(part[0], part[1], 0x7531);
  }
  candidate.error = __fadd_rn(sum[0], sum[1]);
  return candidate;
}

// Codes of a block of magnitudes and their scale; false if the block needs the general way.
template <bool kSquares>
__device__ __forceinline__ bool choose_scale(const ChoiceScale &c, const float (&x)[16], float most,
                                             uint32_t (&word)[2], uint32_t &scale) {
  // One correction step makes the last bit of the sixth right.
  const float near = __fmul_rn(most, 1.0f / 6.0f);
  const float sixth = __fmaf_rn(__fmaf_rn(-near, 6.0f, most), 1.0f / 6.0f, near);
  const float base = __fmul_rn(sixth, c.global);
  const float bases[4] = {base, __fmul_rn(base, 1.5f), 0.0f, 0.0f};
  const uint32_t scales = encode_fp8x4<true>(bases);
  uint32_t decoded, zeros;
  decode_fp8x4<true>(scales, decoded, zeros);
  const float s[2] = {Pair<F16>::low(decoded), Pair<F16>::high(decoded)};
  float bound[16];  // BF16 magnitudes are as exact times 509/512.
#pragma unroll
  for (int i = 0; i < 16; ++i) bound[i] = __fmul_rn(x[i], kBoundScale * 0x1p14f);
  Candidate tried[2];
  float factor[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float product = fmaxf(__fmul_rn(s[i], c.inverse), 0x1p-100f);
    float about;
    // The reciprocal of a number in this range is exact to the last bit after one step.
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(about) : "f"(product));
    factor[i] = __fmaf_rn(about, __fmaf_rn(-product, about, 1.0f), about);
    tried[i] = try_factor<kSquares>(x, bound, __fmul_rn(factor[i], 0x1p-14f));
  }
  // The second scale is the larger one.
  const bool usual = s[0] > 0.0f && __fmul_rn(most, factor[0]) < 7.0f;
  float error[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    error[i] = __fmul_rn(kSquares ? __fmul_rn(s[i], s[i]) : s[i], tried[i].error);
  }
  const bool four = error[1] < error[0];
  word[0] = four ? tried[1].word[0] : tried[0].word[0];
  word[1] = four ? tried[1].word[1] : tried[0].word[1];
  scale = four ? scales >> 8 & 0xff : scales & 0xff;
  const float largest = kSquares ? __fmul_rn(s[1], s[1]) : s[1];
  const float off = __fmaf_rn(largest, c.off, __fmul_rn(__fadd_rn(error[0], error[1]), kOffAdded));
  return (usual & (fabsf(__fsub_rn(error[0], error[1])) > off)) | (most == 0.0f);
}

// What joins codes of choose_scale with whole bytes of signs.
__device__ __forceinline__ uint32_t signed_codes(uint32_t codes, uint32_t even, uint32_t odd) {
  const uint32_t signs = (odd & 0xf0f0f0f0) | (even & 0x0f0f0f0f);
  return codes >> 1 | (signs & 0x88888888);
}

// A block of a row or of a column of a tile in shared memory, by a warp: half of it tries each
// scale, with an element for each lane.
__device__ __forceinline__ void cast_by_definition(const Problem &p, const uint32_t *tile,
                                                   const Member &member, size_t row0, size_t col0,
                                                   bool colwise, unsigned line, unsigned block) {
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  const NVTEXNvfp4Lines &lines = colwise ? a.colwise : a.rowwise;
  const unsigned lane = threadIdx.x % 32, i = lane % 16, at = block * 16 + i;
  const unsigned r = colwise ? at : line, c = colwise ? line : at;
  const float x = Pair<BF16>::high(tile[word_of(r, c / 2)] << (c % 2 ? 0 : 16));
  // fmaxf() takes 0 for a NaN.
  const float most = most_of_tile(fmaxf(0.0f, fabsf(x)));
  const float *amax = amax_of(lines, member);
  float global;
  const Nvfp4Scale scale = scale_of(a, amax, global);
  const float six = __fmul_rn(__fdiv_rn(most, 6.0f), global);
  const uint32_t scale_code = encode_e4m3(fminf(lane < 16 ? six : __fmul_rn(six, 1.5f), 448.0f));
  const uint32_t code = encode_e2m1(__fmul_rn(x, nvfp4_multiplier(scale_code, scale)));
  const Distance distance(a, scale_code, amax != nullptr ? *amax : 0.0f, global);
  const float own = distance(x, code);
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < 16; ++k) sum = __fadd_rn(sum, __shfl_sync(0xffffffffu, own, k, 16));
  const bool four = __shfl_sync(0xffffffffu, sum, 16) < __shfl_sync(0xffffffffu, sum, 0);
  const uint32_t part = (lane >= 16) == four ? code << 4 * (i % 8) : 0;
  const uint32_t word[2] = {__reduce_or_sync(0xffffffffu, i < 8 ? part : 0),
                            __reduce_or_sync(0xffffffffu, i < 8 ? 0 : part)};
  if (lane != (four ? 16 : 0)) return;
  const size_t stride = colwise ? stride_of(a, member) : lines.scale_stride;
  const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
  const size_t of_line = colwise ? col0 + line : row0 + line;
  const size_t from = (colwise ? row0 - member.first : col0) + block * 16;
  const size_t length = colwise ? member.rows : a.cols;
  const size_t before = colwise ? member.first * a.cols : 0;
  store_bytes<8>(static_cast<uint8_t *>(lines.data) + (before + of_line * length + from) / 2, word);
  static_cast<uint8_t *>(lines.scales)[before / 16 + scales.index(of_line, from / 16)] =
      static_cast<uint8_t>(scale_code);
}

template <bool kSquares>
__global__ void __launch_bounds__(kThreads, kChoiceBlocks)
    nvfp4_choice_kernel(const __grid_constant__ Problem p) {
  using In = BF16;
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  __shared__ alignas(16) uint32_t tile[kSide * kSide / 2];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (a.noop != nullptr && *a.noop == 1.0f) return;
  const unsigned tiles_across = (a.cols + kSide - 1) / kSide;
  const size_t row0 = size_t{blockIdx.x / tiles_across} * kSide;
  const size_t col0 = size_t{blockIdx.x % tiles_across} * kSide;
  const Member member = member_of(a, row0);
  const size_t end = member.first + member.rows;
  if (row0 >= end) return;
  const unsigned rows = end - row0 < kSide ? end - row0 : kSide;
  const unsigned cols = a.cols - col0 < kSide ? a.cols - col0 : kSide;
  const unsigned pitch = static_cast<unsigned>(a.cols);
  {
    const unsigned chunk = threadIdx.x % 16, top = threadIdx.x / 16 * 8, col = chunk * 8;
    const uint16_t *const in = static_cast<const uint16_t *>(a.input) + row0 * a.cols + col0;
    const bool inside = top < rows && col < cols;
    uint32_t *const to = tile + word_of(top, chunk * 4);  // Rows of 8 have the same swizzle.
    Vec<In, 8> x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = load<In, 8>(in, (top + i) * pitch + col, inside);
#pragma unroll
    for (int i = 0; i < 8; ++i) store_bytes<16>(to + i * (kSide / 2), x[i].w);
  }
  __syncthreads();
  auto scale_for = [&](const NVTEXNvfp4Lines &lines) {
    ChoiceScale c;
    const float *amax = amax_of(lines, member);
    c.inverse = scale_of(a, amax, c.global).inverse;
    // Elsewhere errors are not those in steps of the scale, or factors leave the range.
    const bool usual = amax != nullptr && *amax > 0x1p-60f && *amax < 0x1p60f;
    c.off = usual ? kOff<kSquares> * (kSquares ? 0x1p-28f : 0x1p-14f) : __int_as_float(0x7f800000);
    return c;
  };
  // Blocks of rows and of columns that need the general way, a bit each.
  unsigned unsure = 0;
  const unsigned block = threadIdx.x % 8, first_row = threadIdx.x / 8;
  const unsigned group = threadIdx.x % 32 / 4, first_pair = threadIdx.x / 32 * 4 + threadIdx.x % 4;
  constexpr unsigned kRowStep = kThreads / 8, kPairStep = kThreads / 8;
  constexpr unsigned kRowSteps = kSide / kRowStep, kPairSteps = kSide / 2 / kPairStep;
  if (a.rowwise.data != nullptr) {
    const ChoiceScale c = scale_for(a.rowwise);
    const size_t stride = a.rowwise.scale_stride;
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    uint8_t *codes_out = static_cast<uint8_t *>(a.rowwise.data) +
                         ((row0 + first_row) * a.cols + col0) / 2 + block * 8;
    uint8_t *scales_out = static_cast<uint8_t *>(a.rowwise.scales) +
                          scales.index(row0 + first_row, col0 / 16 + block);
    // Also in tiles, the scales of rows that are 32 apart have one distance.
    static_assert(kRowStep == 32, "a quarter of a tile of scales");
    const unsigned scale_step = a.swizzled ? 4 : kRowStep * static_cast<unsigned>(stride);
#pragma unroll 1
    for (unsigned n = 0; n < kRowSteps; ++n) {
      const unsigned row = first_row + n * kRowStep;
      uint32_t w[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t part[4];
        load_shared(tile + word_of(row, block * 8 + half * 4), part);
#pragma unroll
        for (int i = 0; i < 4; ++i) w[half * 4 + i] = part[i];
      }
      uint32_t most = w[0];
      float x[16];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        most = Pair<In>::larger(most, w[i]);
        const uint32_t magnitudes = w[i] & 0x7fff7fff;
        x[2 * i] = Pair<In>::low(magnitudes), x[2 * i + 1] = Pair<In>::high(magnitudes);
      }
      uint32_t word[2], scale;
      const bool sure = choose_scale<kSquares>(c, x, largest_of<In>(most), word, scale);
      if (row >= rows || block * 16 >= cols) continue;
      if (!sure) unsure |= 1u << n;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t *v = w + half * 4;
        // Bytes 1 and 3 of each word have the signs of its elements.
        const uint32_t low = __byte_perm(v[0], v[1], 0x7351);
        const uint32_t high = __byte_perm(v[2], v[3], 0x7351);
        word[half] =
            signed_codes(word[half], sign_bytes(low, high, false), sign_bytes(low, high, true));
      }
      store_bytes<8>(codes_out, word);
      *scales_out = static_cast<uint8_t>(scale);
      codes_out += kRowStep / 2 * pitch, scales_out += scale_step;
    }
  }
  if (a.colwise.data != nullptr) {
    const ChoiceScale c = scale_for(a.colwise);
    const size_t stride = stride_of(a, member);
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    const size_t in_member = row0 - member.first + group * 16, column0 = col0 + 2 * first_pair;
    uint8_t *codes_out = static_cast<uint8_t *>(a.colwise.data) + member.first * a.cols / 2 +
                         (column0 * member.rows + in_member) / 2;
    uint8_t *scales_out = static_cast<uint8_t *>(a.colwise.scales) + member.first * a.cols / 16 +
                          scales.index(column0, in_member / 16);
    // Also in tiles, the scales of columns that are 64 apart have one distance.
    const unsigned step = static_cast<unsigned>(member.rows) / 2;
    const unsigned scale_step = a.swizzled ? 16 : static_cast<unsigned>(stride);
    const unsigned scale_jump = a.swizzled ? 8 : 64 * static_cast<unsigned>(stride);
#pragma unroll 1
    for (unsigned n = 0; n < kPairSteps; ++n) {
      const unsigned pair = first_pair + n * kPairStep;
      const uint32_t *const from = tile + word_of(group * 16, pair);
      uint32_t w[16], most = 0;
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        w[k] = from[k * (kSide / 2)];
        most = Pair<In>::larger(most, w[k]);
      }
      most &= 0x7fff7fff;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float x[16];
#pragma unroll
        for (int k = 0; k < 16; ++k) x[k] = Pair<In>::high((w[k] & 0x7fff7fff) << (h ? 0 : 16));
        uint32_t word[2], scale;
        const bool sure =
            choose_scale<kSquares>(c, x, Pair<In>::high(most << (h ? 0 : 16)), word, scale);
        if (2 * pair >= cols || group * 16 >= rows) continue;
        if (!sure) unsure |= 1u << (kRowSteps + 2 * n + h);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // The signs of this column: byte 1 or 3 of each word.
          const uint32_t *v = w + half * 8;
          const uint32_t even0 = __byte_perm(v[0], v[2], 0x7351);
          const uint32_t even1 = __byte_perm(v[4], v[6], 0x7351);
          const uint32_t odd0 = __byte_perm(v[1], v[3], 0x7351);
          const uint32_t odd1 = __byte_perm(v[5], v[7], 0x7351);
          word[half] =
              signed_codes(word[half], sign_bytes(even0, even1, h), sign_bytes(odd0, odd1, h));
        }
        store_bytes<8>(codes_out + h * step, word);
        scales_out[h * scale_step] = static_cast<uint8_t>(scale);
      }
      codes_out += 64 * step, scales_out += scale_jump;
    }
  }
  __syncwarp();  // What the block's thread stored comes before.
  const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
  for (unsigned lanes; (lanes = __ballot_sync(0xffffffffu, unsure != 0)) != 0;) {
    const unsigned of = __ffs(lanes) - 1, thread = threadIdx.x - lane + of;
    const unsigned bit = __shfl_sync(0xffffffffu, __ffs(unsure) - 1, of);
    if (lane == of) unsure &= unsure - 1;
    const bool colwise = bit >= kRowSteps;
    const unsigned n = (bit - kRowSteps) / 2, h = (bit - kRowSteps) % 2;
    const unsigned line = colwise ? 2 * (thread / 32 * 4 + thread % 4 + n * kPairStep) + h
                                  : thread / 8 + bit * kRowStep;
    cast_by_definition(p, tile, member, row0, col0, colwise, line,
                       colwise ? thread % 32 / 4 : thread % 8);
  }
}

}  // namespace
}  // namespace nvte
