// The producer of MXFP8: elements become BF16, scales included. An element times a power of two is
// exact unless it is less than 2^-126. Two warpgroups bring the bytes to shared memory ahead of
// their use, turn them, and write what products read.
//
// H200, November 2026: 230 TFLOP/s in all layouts, 190 to 230 with uneven rows, 105 with odd
// addresses; 185 with a branch for each word that may hold a NaN.
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
// with `bias`, a power of two, corrects them, those of subnormal numbers too. Infinities and NaN
// need more than that; adding `special` sets bit 7 of exactly those.
struct Decoder {
  unsigned shift;
  uint32_t mask, bias, special;

  __device__ __forceinline__ explicit Decoder(bool e5m2)
      : shift(e5m2 ? 3 : 4),
        mask(e5m2 ? 0x0fe00fe0 : 0x07f007f0),
        bias(e5m2 ? 0x77807780 : 0x7b807b80),  // 2^112, 2^120
        special(e5m2 ? 0x04040404 : 0x01010101) {}

  // Decodes two elements: the upper bytes of the halves of `high`.
  __device__ __forceinline__ uint32_t decode(uint32_t high, uint32_t scales) const {
    const uint32_t bits = ((high >> shift) & mask) | (high & 0x80008000);
    return multiply_2(multiply_2(bits, bias), scales);
  }
  // Has bits where there are special values among four.
  __device__ __forceinline__ uint32_t find_special(uint32_t w) const {
    return ((w & 0x7f7f7f7f) + special) & 0x80808080;
  }
  // As decode(), also for special values.
  __device__ __forceinline__ uint32_t decode_any(uint32_t high, uint32_t scales) const {
    uint32_t out = decode(high, scales);
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

// Copies a tile, by two warpgroups. Every thread reads the raw bytes that it has brought to shared
// memory itself: 16 bytes of a row of each chunk of the stage.
template <class C>
__device__ __forceinline__ void copy_mx(const Params &p, unsigned char *shared, Control<C> &control,
                                        const Tile &t, PipelineState<C::kStages> &at) {
  const Problem &problem = *t.problem;
  const int thread = static_cast<int>(threadIdx.x), r = thread / 4, part = thread % 4;
  const int k = problem.k, blocks_32 = static_cast<int>(tiles(static_cast<unsigned>(k), 32));
  constexpr int kRowUnits = kRows / kChunk, kUnits = (kRows + C::kCols) / kChunk;
  constexpr int kUnitBytes = 16 * C::kProducerThreads;
  unsigned char *const raw = shared + C::kAtRaw + 16 * thread;
  const auto raw_at = [&](int i, int u) { return raw + (i % 2 * kUnits + u) * kUnitBytes; };
  const auto find = [&](int i, int u, const char *&from) {
    const bool is_row = u < kRowUnits, mn = is_row ? C::kMnRows : C::kMnCols;
    const int chunk = is_row ? u : u - kRowUnits;
    const int outers = is_row ? problem.n : problem.m;
    const int outer = (is_row ? t.row : t.col) + chunk * kChunk + (mn ? 16 * part : r);
    const int inner = i * C::kDepth + (mn ? r : 16 * part);
    from = static_cast<const char *>(is_row ? problem.rows_data : problem.cols_data) +
           (mn ? int64_t{inner} * outers + outer : int64_t{outer} * k + inner);
    return outer < outers && inner < k ? min(mn ? outers - outer : k - inner, 16) : 0;
  };
  const auto fetch = [&](int i) {
    if (i < t.blocks && t.bulk) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const char *from;
        const int bytes = find(i, u, from);
        cp_async_first_bytes(shared_address(raw_at(i, u)), from, bytes);
      }
    } else if (i < t.blocks) {
#pragma unroll 1
      for (int u = 0; u < kUnits; ++u) {
        const char *from;
        const int bytes = find(i, u, from);
        uint32_t w[4];
        load_odd(from, bytes, w);
        *reinterpret_cast<uint4 *>(raw_at(i, u)) = make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
    cp_async_commit_group();
  };
  // Each of the first threads has the scales of a row, each of the others those of a column.
  const bool is_row = thread < kRows;
  const bool swizzled = is_row ? p.rows_swizzled : p.cols_swizzled;
  const bool mn_scales = is_row ? C::kMnRows : C::kMnCols;
  const int outers = is_row ? problem.n : problem.m;
  const int outer = is_row ? t.row + thread : t.col + thread - kRows;
  const auto *scales_from =
      static_cast<const unsigned char *>(is_row ? problem.rows_scales : problem.cols_scales);
  uint32_t scales[2];
  const auto fetch_scales = [&](int i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int block = 2 * i + j, groups = (blocks_32 + 3) / 4;
      const int64_t where = swizzled ? (int64_t{outer / 128} * groups + block / 4) * 512 +
                                           outer % 32 * 16 + outer % 128 / 32 * 4 + block % 4
                            : mn_scales ? int64_t{block} * ((outers + 127) / 128 * 128) + outer
                                        : int64_t{outer} * groups * 4 + block;
      // The padding of the scales may hold anything.
      scales[j] = block < blocks_32 && outer < outers ? __ldg(scales_from + where) : 0u;
    }
  };
  const auto put_scales = [&](int i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      // E8M0 is the exponent of BF16, but for 2^-127 and NaN.
      const uint32_t code = scales[j];
      control.mx_scales[i % 2][j][thread] = static_cast<uint16_t>(code == 0      ? 0x40
                                                                  : code == 0xff ? 0x7fff
                                                                                 : code << 7);
    }
  };
  // Decodes the thread's bytes of an operand. Returns whether there are special elements.
  const auto decode = [&](auto is_mn, auto any, bool e5m2, int i, int first) {
    constexpr bool mn = decltype(is_mn)::value;
    const Decoder decoder(e5m2);
    unsigned char *const to = shared + at.stage * C::kStageBytes + r * 128;
    uint32_t found = 0;
#pragma unroll
    for (int u = first; u < first + 2; ++u) {
      uint32_t w[4];
      load_shared(reinterpret_cast<const uint32_t *>(raw_at(i, u)), w);
      const uint16_t *from = mn ? control.mx_scales[i % 2][r / 32] + u * kChunk + 16 * part
                                : control.mx_scales[i % 2][part / 2] + u * kChunk + r;
      const uint32_t one = mn ? 0 : *from * 0x10001u;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t s[4] = {one, one, one, one}, out[4];
        if (mn) load_shared(reinterpret_cast<const uint32_t *>(from + 8 * h), s);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t four = w[2 * h + j / 2];
          const uint32_t high = __byte_perm(four, 0, j % 2 == 0 ? 0x1404 : 0x3424);
          if constexpr (decltype(any)::value) {
            out[j] = decoder.decode_any(high, s[j]);
          } else {
            out[j] = decoder.decode(high, s[j]);
            if (j % 2 == 0) found |= decoder.find_special(four);
          }
        }
        *reinterpret_cast<uint4 *>(to + u * kChunkBytes + (((2 * part + h) ^ (r % 8)) * 16)) =
            make_uint4(out[0], out[1], out[2], out[3]);
      }
    }
    return found != 0;
  };
  constexpr std::bool_constant<C::kMnRows> mn_rows;
  constexpr std::bool_constant<C::kMnCols> mn_cols;
  if (t.blocks == 0) return;
  fetch(0);
  fetch(1);
  fetch_scales(0);
  put_scales(0);
  fetch_scales(1);
  bar_sync(kProducerBarrier, C::kProducerThreads);
#pragma unroll 1
  for (int i = 0; i < t.blocks; ++i, at.advance()) {
    // All threads that read these scales two stages ago have passed the barrier below since.
    put_scales(i + 1);
    fetch_scales(i + 2);
    cp_async_wait_group<1>();
    control.stages.producer_acquire(at);
    const bool special_rows = decode(mn_rows, std::false_type{}, p.rows_e5m2, i, 0);
    const bool special_cols = decode(mn_cols, std::false_type{}, p.cols_e5m2, i, kRowUnits);
    if (special_rows) decode(mn_rows, std::true_type{}, p.rows_e5m2, i, 0);
    if (special_cols) decode(mn_cols, std::true_type{}, p.cols_e5m2, i, kRowUnits);
    fetch(i + 2);
    fence_proxy_async();
    bar_sync(kProducerBarrier, C::kProducerThreads);
    if (thread == 0) control.stages.producer_commit(at);
  }
}

}  // namespace sm90_grouped
}  // namespace nvte
