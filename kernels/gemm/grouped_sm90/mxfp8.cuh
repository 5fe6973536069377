// The producer of MXFP8: elements become BF16, scales included, on their way to where products read
// them. An element times a power of two is exact unless it is less than 2^-126. A warpgroup holds
// the codes of the next stage in registers while it converts those of this one.
//
// H200, November 2026: 220 to 225 TFLOP/s. Where both operands have the inner dimension last,
// Kind::kMx multiplies their codes instead.
#pragma once

#include "common/vec.cuh"
#include "common/wgmma.cuh"
#include "layout.cuh"

namespace nvte {
namespace sm90_grouped {

// The first `bytes` of 16 at any address, and zeros after them.
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

// Two products of BF16 in one word.
__device__ __forceinline__ uint32_t multiply_2(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// Makes BF16 of 8-bit elements. Their exponents become the low bits of exponents, and a product
// with a power of two, which is that of the scale too, corrects them, those of subnormal numbers
// too. Infinities, NaN, and scales that leave no room for the correction need more than that;
// adding `special` sets bit 7 of exactly those elements.
struct Decoder {
  unsigned shift;
  uint32_t mask, special;
  int bias;  // Of the exponents of BF16 less that of the elements.

  __device__ __forceinline__ explicit Decoder(bool e5m2)
      : shift(e5m2 ? 3 : 4),
        mask(e5m2 ? 0x0fe00fe0 : 0x07f007f0),
        special(e5m2 ? 0x04040404 : 0x01010101),
        bias(e5m2 ? 112 : 120) {}

  // The factor of elements with a scale of E8M0, twice.
  __device__ __forceinline__ uint32_t factor(uint32_t code) const {
    return code * 0x00800080u + static_cast<uint32_t>(bias) * 0x00800080u;
  }
  // The largest code of a scale for which factor() is right.
  __device__ __forceinline__ uint32_t largest() const { return static_cast<uint32_t>(254 - bias); }
  // Two elements, which are the upper bytes of the halves of `high`, before their product.
  __device__ __forceinline__ uint32_t bits(uint32_t high) const {
    return ((high >> shift) & mask) | (high & 0x80008000);
  }
  // Has bits where there are special values among four.
  __device__ __forceinline__ uint32_t find_special(uint32_t w) const {
    return ((w & 0x7f7f7f7f) + special) & 0x80808080;
  }
  // Two elements of any kind, with codes of any scales.
  __device__ __forceinline__ uint32_t decode_any(uint32_t high, uint32_t code0,
                                                 uint32_t code1) const {
    // E8M0 is the exponent of BF16, but for 2^-127 and NaN.
    const auto scale = [](uint32_t code) {
      return code == 0 ? 0x40u : code == 0xff ? 0x7fffu : code << 7;
    };
    const uint32_t scales = scale(code0) | scale(code1) << 16;
    uint32_t out = multiply_2(multiply_2(bits(high), factor(127)), scales);
    const uint32_t found = find_special(high);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t code = high >> (16 * e) & 0xff00;
      if ((found >> (16 * e) & 0x8000) == 0) continue;
      // A special value without a mantissa is an infinity, which E4M3 does not have; the scale may
      // make it NaN.
      const bool infinite = shift == 3 && (code & 0x0300) == 0;
      const uint32_t value = infinite ? (code & 0x8000) | 0x7f80 : 0x7fff;
      const uint32_t fixed = multiply_2(value, scales >> (16 * e) & 0xffff) & 0xffff;
      out = (out & ~(0xffffu << (16 * e))) | fixed << (16 * e);
    }
    return out;
  }
};

// An operand of the tile that is copied.
struct MxOperand {
  const char *data;
  const unsigned char *scales;
  int outers, outer, k;  // `outer`: the first of the tile.
  bool mn, swizzled, e5m2;

  __device__ __forceinline__ int blocks() const { return (k + 31) / 32; }
  __device__ __forceinline__ int groups() const { return (k + 127) / 128; }
  // Where the scale of one outer and a block of 32 lies.
  __device__ __forceinline__ int64_t scale_at(int outer, int block) const {
    return swizzled ? (int64_t{outer / 128} * groups() + block / 4) * 512 + outer % 32 * 16 +
                          outer % 128 / 32 * 4 + block % 4
           : mn ? int64_t{block} * ((outers + 127) / 128 * 128) + outer
                : int64_t{outer} * groups() * 4 + block;
  }
  // That scale; the padding may hold anything.
  __device__ __forceinline__ uint32_t scale(int outer, int block) const {
    return block < blocks() && outer < outers ? __ldg(scales + scale_at(outer, block)) : 0u;
  }
};

template <class C>
__device__ __forceinline__ MxOperand mx_operand(const Params &p, const Tile &t, bool is_row) {
  const Problem &problem = *t.problem;
  return is_row ? MxOperand{static_cast<const char *>(problem.rows_data),
                            static_cast<const unsigned char *>(problem.rows_scales),
                            problem.n,
                            t.row,
                            problem.k,
                            C::kMnRows,
                            p.rows_swizzled,
                            p.rows_e5m2}
                : MxOperand{static_cast<const char *>(problem.cols_data),
                            static_cast<const unsigned char *>(problem.cols_scales),
                            problem.m,
                            t.col,
                            problem.k,
                            C::kMnCols,
                            p.cols_swizzled,
                            p.cols_e5m2};
}

// The power of two of a scale, or NaN.
__device__ __forceinline__ float decode_e8m0(uint32_t code) {
  return __uint_as_float(code << 23 | (((code + 1) & 0xfe) == 0 ? 0x400000u : 0u));
}

// Whether one of four scales is not the exponent of a float: 2^-127 or NaN.
__device__ __forceinline__ bool has_special(uint32_t codes) {
  const uint32_t zeros = (codes - 0x01010101) & ~codes, ones = (~codes - 0x01010101) & codes;
  return ((zeros | ones) & 0x80808080) != 0;
}

// Whether any thread at the hardware barrier says so.
__device__ __forceinline__ bool bar_or(int barrier, int threads, bool one) {
  uint32_t any;
  asm volatile(
      "{.reg .pred one, any;\n"
      "setp.ne.b32 one, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, one;\n"
      "selp.b32 %0, 1, 0, any;}"
      : "=r"(any)
      : "r"(barrier), "r"(threads), "r"(int{one})
      : "memory");
  return any != 0;
}

// Copies a tile, by the warpgroup. A thread has 16 bytes of a line of each unit of the stage: the
// upper or lower half of a chunk.
template <class C>
__device__ __forceinline__ void copy_mx(const Params &p, unsigned char *shared, Control<C> &control,
                                        const Tile &t, PipelineState<C::kStages> &at) {
  constexpr int kLines = kChunk / 2, kRowUnits = kRows / kLines;
  constexpr int kUnits = (kRows + C::kCols) / kLines;
  const Problem &problem = *t.problem;
  const int thread = static_cast<int>(threadIdx.x), r = thread / 4, part = thread % 4;
  const int k = problem.k;
  const auto operand = [&](bool is_row) { return mx_operand<C>(p, t, is_row); };
  // Where the thread's bytes of unit `u` of an operand begin, from its first outer and inner on.
  const auto outer_of = [&](bool mn, int u) {
    return u / 2 * kChunk + (mn ? 16 * part : u % 2 * kLines + r);
  };
  const auto inner_of = [&](bool mn, int u) { return mn ? u % 2 * kLines + r : 16 * part; };
  const auto from = [&](const MxOperand &x, int i, int u) {
    const int outer = x.outer + outer_of(x.mn, u), inner = i * C::kDepth + inner_of(x.mn, u);
    return x.data + (x.mn ? int64_t{inner} * x.outers + outer : int64_t{outer} * k + inner);
  };
  const auto place = [&](int u, int h) {
    return shared + at.stage * C::kStageBytes + (u * kLines + r) * 128 +
           (((2 * part + h) ^ (r % 8)) * 16);
  };
  // Converts the thread's bytes of stage `i` whatever they are.
  const auto convert_any = [&](int i) {
#pragma unroll 1
    for (int u = 0; u < kUnits; ++u) {
      const bool is_row = u < kRowUnits;
      const MxOperand x = operand(is_row);
      const Decoder decoder(x.e5m2);
      const int unit = is_row ? u : u - kRowUnits;
      const int outer = x.outer + outer_of(x.mn, unit),
                inner = i * C::kDepth + inner_of(x.mn, unit);
      const int left = x.mn ? x.outers - outer : k - inner;
      uint32_t w[4];
      load_odd(from(x, i, unit), outer < x.outers && inner < k ? min(left, 16) : 0, w);
      const int block = inner / 32;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t out[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t four = w[2 * h + j / 2];
          const uint32_t high = __byte_perm(four, 0, j % 2 == 0 ? 0x1404 : 0x3424);
          const int first = x.mn ? outer + 8 * h + 2 * j : outer;
          const uint32_t code = x.scale(first, block);
          out[j] = decoder.decode_any(high, code, x.mn ? x.scale(first + 1, block) : code);
        }
        *reinterpret_cast<uint4 *>(place(u, h)) = make_uint4(out[0], out[1], out[2], out[3]);
      }
    }
  };
  const auto commit = [&] {
    fence_proxy_async();
    __syncwarp();
    if (thread % 32 == 0) control.stages.producer_commit(at);
  };
  if (!t.bulk) {
#pragma unroll 1
    for (int i = 0; i < t.blocks; ++i, at.advance()) {
      control.stages.producer_acquire(at);
      convert_any(i);
      commit();
    }
    return;
  }
  const MxOperand rows = operand(true), cols = operand(false);
  const Decoder row_decoder(rows.e5m2), col_decoder(cols.e5m2);
  // The thread's codes of the next stage: pieces of 16 bytes are in the operand or not.
  const char *row_from = from(rows, 0, 0), *col_from = from(cols, 0, 0);
  const int64_t row_line = rows.mn ? rows.outers : k, col_line = cols.mn ? cols.outers : k;
  uint32_t raw[kUnits][4];
  unsigned outside = 0;  // Units of which the thread's outers are outside.
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const MxOperand &x = u < kRowUnits ? rows : cols;
    const int unit = u < kRowUnits ? u : u - kRowUnits;
    outside |= x.outer + outer_of(x.mn, unit) >= x.outers ? 1u << u : 0;
  }
  // Units are fetched one after the other. The compiler shall not keep their addresses, for which
  // there are no registers.
  const char *next = row_from;
  const auto fetch = [&](int u, int i) {
    const bool is_row = u < kRowUnits, mn = is_row ? C::kMnRows : C::kMnCols;
    const int unit = is_row ? u : u - kRowUnits;
    if (unit == 0) next = is_row ? row_from : col_from;
    load_once<16>(next, i * C::kDepth + inner_of(mn, unit) < k && (outside >> u & 1) == 0, raw[u]);
    const int64_t lines = kLines * (is_row ? row_line : col_line);
    next += !mn ? lines : unit % 2 == 0 ? lines : kChunk - lines;
    asm volatile("" : "+l"(next));
  };
  // Scales of operands with the inner dimension last: of each row of the thread, four blocks, and
  // the next four. Tiles begin at a multiple of 128, within which both orders have steps of their
  // own.
  uint32_t words[kUnits], later[kUnits];
  const unsigned char *row_scales = rows.scales + rows.scale_at(rows.outer + r, 0);
  const unsigned char *col_scales = cols.scales + cols.scale_at(cols.outer + r, 0);
  const auto fetch_words = [&](int group) {
    const unsigned char *at = nullptr;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const bool is_row = u < kRowUnits;
      if (is_row ? C::kMnRows : C::kMnCols) continue;
      const MxOperand &x = is_row ? rows : cols;
      const int unit = is_row ? u : u - kRowUnits, whole = 512 * x.groups();
      if (unit == 0) at = (is_row ? row_scales : col_scales) + group * (x.swizzled ? 512 : 4);
      load_once<4>(at, group < x.groups() && (outside >> u & 1) == 0, &later[u]);
      at += !x.swizzled ? whole / 4 : unit % 4 < 3 ? 4 : whole - 12;
      asm volatile("" : "+l"(at));
    }
  };
  const auto take_words = [&] {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (u < kRowUnits ? !C::kMnRows : !C::kMnCols) words[u] = later[u];
    }
  };
  // Of other operands, at least one, each thread has the scales of some rows or columns. They are
  // shared as factors.
  constexpr int kOwn = (kRows + C::kCols) / C::kProducerThreads;
  uint32_t own[kOwn][2];
  const auto fetch_own = [&](int i) {
#pragma unroll
    for (int o = 0; o < kOwn; ++o) {
      const int line = thread + o * C::kProducerThreads;
      const bool is_row = line < kRows;
      const MxOperand &x = is_row ? rows : cols;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        own[o][j] = (is_row ? C::kMnRows : C::kMnCols)
                        ? x.scale(x.outer + (is_row ? line : line - kRows), 2 * i + j)
                        : 0u;
      }
    }
  };
  const auto put_own = [&](int i) {
    bool large = false;
#pragma unroll
    for (int o = 0; o < kOwn; ++o) {
      const int line = thread + o * C::kProducerThreads;
      const Decoder &decoder = line < kRows ? row_decoder : col_decoder;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        control.mx_factors[i % 2][j][line] = static_cast<uint16_t>(decoder.factor(own[o][j]));
        large = large || own[o][j] > decoder.largest();
      }
    }
    return large;
  };
  // Converts the thread's codes of an operand. Returns whether there are any for convert_any().
  const auto convert = [&](auto is_row, int i) {
    constexpr bool kIsRow = decltype(is_row)::value, kMn = kIsRow ? C::kMnRows : C::kMnCols;
    constexpr int kFirst = kIsRow ? 0 : kRowUnits, kLast = kIsRow ? kRowUnits : kUnits;
    const Decoder &decoder = kIsRow ? row_decoder : col_decoder;
    uint32_t found = 0, most = 0;
    // The padding of the scales, where elements are zeros, may hold anything.
    const uint32_t mask = i * C::kDepth + 16 * part < k ? 0xff : 0;
#pragma unroll
    for (int u = kFirst; u < kLast; ++u) {
      uint32_t one = 0;
      if constexpr (!kMn) {
        const uint32_t code = words[u] >> (16 * (i % 2) + 8 * (part / 2)) & mask;
        most = max(most, code);
        one = decoder.factor(code);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t s[4] = {one, one, one, one}, out[4];
        if constexpr (kMn) {
          load_shared(reinterpret_cast<const uint32_t *>(control.mx_factors[i % 2][u % 2] +
                                                         u / 2 * kChunk + 16 * part + 8 * h),
                      s);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t four = raw[u][2 * h + j / 2];
          const uint32_t high = __byte_perm(four, 0, j % 2 == 0 ? 0x1404 : 0x3424);
          out[j] = multiply_2(decoder.bits(high), s[j]);
          if (j % 2 == 0) found |= (four & 0x7f7f7f7f) + decoder.special;
        }
        *reinterpret_cast<uint4 *>(place(u, h)) = make_uint4(out[0], out[1], out[2], out[3]);
      }
      fetch(u, i + 1);
    }
    return (found & 0x80808080) != 0 || most > decoder.largest();
  };
  if (t.blocks == 0) return;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) fetch(u, 0);
  fetch_words(0);
  bool large = false;
  fetch_own(0);
  large = put_own(0);
  fetch_own(1);
  large = bar_or(kProducerBarrier, C::kProducerThreads, large);
#pragma unroll 1
  for (int i = 0; i < t.blocks; ++i, at.advance()) {
    if (i % 2 == 0) {
      take_words();
      fetch_words(i / 2 + 1);
    }
    control.stages.producer_acquire(at);
    row_from += C::kMnRows ? C::kDepth * row_line : C::kDepth;
    col_from += C::kMnCols ? C::kDepth * col_line : C::kDepth;
    const bool in_rows = convert(std::true_type{}, i), in_cols = convert(std::false_type{}, i);
    if (large || in_rows || in_cols) {
      convert_any(i);
      // What has been loaded ahead is loaded again, so that it needs no registers meanwhile.
#pragma unroll
      for (int u = 0; u < kUnits; ++u) fetch(u, i + 1);
      fetch_words(i / 2);
      take_words();
      fetch_words(i / 2 + 1);
      fetch_own(i + 1);
    }
    commit();
    // All threads that read these scales one stage ago have passed the barrier since.
    const bool next = put_own(i + 1);
    fetch_own(i + 2);
    large = bar_or(kProducerBarrier, C::kProducerThreads, next);
  }
}

}  // namespace sm90_grouped
}  // namespace nvte
