// Casts to NVFP4 of whole blocks that have one candidate for each scale, in large tiles.
//
// A thread takes 8 elements of 8 neighbouring rows from memory to registers and to shared memory,
// two threads share a block of a row, four one of a square; then 16 rows of 2 columns, twice.
// The elements of a block are at most its largest magnitude b, so that none needs to be limited if
// b itself gets less than 7. A tile in which that is not so, or that has a NaN, is cast again in
// the general way.
//
// H200, 64M elements of BF16: rows 43 us, 93 % of the memory's rate; with a transform of the
// columns 88 us, 55 %. Squares of BF16 that are rounded to nearest have a kernel of their own, as
// have both directions (nvfp4_patches.cuh).
#pragma once

#include <type_traits>

#include "nvfp4_general.cuh"

namespace nvte {
namespace {

constexpr int kSide = 128;
// The longest line, so that distances in a tile have 32 bits.
constexpr size_t kLongest = size_t{1} << 24;

// Words of a tile of pairs of columns, swizzled so that the threads of a warp get 4 neighbouring
// words of rows 16 apart from different banks.
__device__ __forceinline__ int word_of(int row, int pair) {
  return row * (kSide / 2) + (pair ^ (row / 16 % 8 * 4));
}

// Of words of two elements: the larger magnitudes with whichever sign, NaN if either is, and
// float32 of the halves.
template <class In>
struct Pair;
template <>
struct Pair<BF16> {
  static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
    uint32_t w;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(w) : "r"(a), "r"(b));
#else
    w = __vmaxu2(a & 0x7fff7fff, b & 0x7fff7fff);
#endif
    return w;
  }
  static __device__ __forceinline__ float low(uint32_t w) { return __uint_as_float(w << 16); }
  static __device__ __forceinline__ float high(uint32_t w) {
    return __uint_as_float(w & 0xffff0000);
  }
};
template <>
struct Pair<F16> {
  static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
    uint32_t w;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(w) : "r"(a), "r"(b));
#else
    w = __vmaxu2(a & 0x7fff7fff, b & 0x7fff7fff);
#endif
    return w;
  }
  static __device__ __forceinline__ float low(uint32_t w) {
    float f;
    asm("{.reg .b16 a, b;\nmov.b32 {a, b}, %1;\ncvt.f32.f16 %0, a;}" : "=f"(f) : "r"(w));
    return f;
  }
  static __device__ __forceinline__ float high(uint32_t w) {
    float f;
    asm("{.reg .b16 a, b;\nmov.b32 {a, b}, %1;\ncvt.f32.f16 %0, b;}" : "=f"(f) : "r"(w));
    return f;
  }
};

// The larger magnitude of the halves; as integers, so that NaN is the largest.
template <class In>
__device__ __forceinline__ float largest_of(uint32_t w) {
  return Pair<In>::low(max(w & 0x7fff, w >> 16 & 0x7fff));
}

// Eight codes of magnitudes that sum up, each with the exponent of 2^23.
__device__ __forceinline__ uint32_t sum_of_codes(const uint32_t (&code)[8]) {
  uint32_t sum = code[7];
#pragma unroll
  for (int i = 6; i >= 0; --i) sum = sum * 16 + code[i];
  return sum - 0x4b000000u * 0x11u;
}

// Signs in the highest bits of bytes: those of even elements, of odd elements.
__device__ __forceinline__ uint32_t with_signs(uint32_t codes, uint32_t even, uint32_t odd) {
  const uint32_t signs = (odd & 0x80808080) | (even >> 4 & ~0x80808080);
  return (codes & 0x77777777) | (signs & 0x88888888);
}

// The same with whole bytes of signs.
__device__ __forceinline__ uint32_t with_sign_bytes(uint32_t codes, uint32_t even, uint32_t odd) {
  const uint32_t signs = (odd & 0xf0f0f0f0) | (even & 0x0f0f0f0f);
  return (codes & 0x77777777) | (signs & 0x88888888);
}
// Bytes of the signs of the lower or of the upper halves of two words.
__device__ __forceinline__ uint32_t sign_bytes(uint32_t a, uint32_t b, bool upper) {
  uint32_t bytes;  // Selectors from 8 on take a byte's highest bit eight times.
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(upper ? 0xfeba : 0xdc98));
  return bytes;
}

// Whether blocks under a global scale may be usual ones; a block of zeros times an infinite inverse
// is none.
__device__ __forceinline__ bool usual_scale(const Nvfp4Scale &scale, bool fast, float global) {
  return global == global && scale.inverse < __int_as_float(0x7f800000) &&
         (!fast || (global > 0x1p-80f && global < 0x1p80f));
}

// Scale and factor of a block; false if it needs the general way.
__device__ __forceinline__ bool usual_block(float most, const Nvfp4Scale &scale, bool fast,
                                            float global, uint32_t &code, float &factor) {
  constexpr float kTiny = 0x1p-100f;
  code = nvfp4_block_scale(most, scale);
  // The reciprocal of a number in this range is exact to the last bit after one step.
  const float decoded = decode_e4m3(code);
  const float product = fmaxf(fast ? decoded : __fmul_rn(decoded, scale.inverse), kTiny);
  float about;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(about) : "f"(product));
  factor = __fmaf_rn(about, __fmaf_rn(-product, about, 1.0f), about);
  const bool large = product > kTiny;
  if (fast) {
    // A quotient of such numbers is exact after one correction step as well.
    const float quotient = __fmul_rn(global, factor);
    const float exact = __fmaf_rn(__fmaf_rn(-quotient, product, global), factor, quotient);
    const float pair[2] = {exact, 0.0f};
    factor = large ? __uint_as_float(BF16::from_float(pair) << 16) : 0.0f;
  }
  return (large || most == 0.0f) && __fmul_rn(most, factor) < 7.0f;
}

// Two magnitudes below 7 in half precision, cut off: times 2^-14, so that E2M1 numbers have their
// exponents, and bits 9 to 11 of a half are the code. As much as half of the last place of the sum
// of a small magnitude and half a step, which float32 would round up, counts as a whole one.
__device__ __forceinline__ uint32_t cut_pair(float low, float high) {
  const float a = __fmaf_rz(low, 0x1p-14f, 0x1p-40f), b = __fmaf_rz(high, 0x1p-14f, 0x1p-40f);
  uint32_t pair;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  return pair;
}

// A magnitude to nearest: 509/512 of it and 2^-6, times 2^-14, have each of the seven bounds
// between codes halfway between two numbers of half precision, of which the even one is on the
// bound's own side. So codes are right after two roundings.
constexpr float kBoundScale = 0x1.fdp-15f, kBoundShift = 0x1p-20f;
__device__ __forceinline__ float to_bounds(float y) {
  return __fmaf_rn(y, kBoundScale, kBoundShift);
}
// Two such magnitudes below 7 in half precision: half of bit 9 added, bits 9 to 11 are the codes.
__device__ __forceinline__ uint32_t nearest_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  // Times 1 + 6/1024, less 17 * 2^-24: the bounds get to the middle between codes.
  asm("fma.rn.relu.f16x2 %0, %0, %1, %2;" : "+r"(pair) : "r"(0x3c063c06), "r"(0x80118011));
  return pair;
}

// A product by a power of two that the compiler does not know, and so makes no shift of: that would
// be in the way of logic.
__device__ __forceinline__ uint32_t product(uint32_t a, unsigned power, uint32_t sum = 0) {
  return a * (blockDim.x / (kThreads / power)) + sum;
}

// Bits 8 to 14 of halves: a code of an even pair and one of an odd pair, four bits above, after
// what rounds them was added in units of 2^-8 and of 2^-12 of a code.
__device__ __forceinline__ uint32_t join_pairs(uint32_t even, uint32_t odd, uint32_t even_bytes,
                                               uint32_t odd_bytes) {
  return (((even >> 1) + even_bytes) & 0x0fff0fff) | (product(odd, 8, odd_bytes) & 0xf000f000);
}
// To nearest.
__device__ __forceinline__ uint32_t join_pairs(uint32_t even, uint32_t odd) {
  return join_pairs(even, odd, 0x00800080, 0x08000800);
}

// The codes of four magnitudes, cut off after a random byte each was added, in bytes 1 and 3. A
// step of E2M1 is 256 of the byte's: what carries out of the byte's places rounds up.
__device__ __forceinline__ uint32_t cut_four(const float (&y)[4], uint32_t random) {
  return join_pairs(cut_pair(y[0], y[2]), cut_pair(y[1], y[3]), random & 0x00ff00ff,
                    product(__byte_perm(random, 0, 0x4341), 16));
}
// Eight codes; those that were rounded up from the largest one become it again.
__device__ __forceinline__ uint32_t at_most_seven(uint32_t word) {
  const uint32_t more = word & 0x88888888;
  return word | (more - (more >> 3));
}

// Codes of eight magnitudes times a factor: to nearest, or by eight bytes.
template <bool kStochastic>
__device__ __forceinline__ uint32_t encode_magnitudes(const float (&x)[8], float factor,
                                                      uint32_t random0, uint32_t random1) {
  if constexpr (kStochastic) {
    uint32_t part[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] = __fmul_rn(fabsf(x[4 * h + i]), factor);
      part[h] = cut_four(y, h ? random1 : random0);
    }
    return at_most_seven(__byte_perm(part[0], part[1], 0x7531));
  } else {
    uint32_t part[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        y[i] = to_bounds(__fmul_rn(fabsf(x[4 * h + i]), factor));
      }
      part[h] = join_pairs(nearest_pair(y[0], y[2]), nearest_pair(y[1], y[3]));
    }
    return __byte_perm(part[0], part[1], 0x7531);
  }
}

template <class In, bool kStochastic>
__device__ __forceinline__ uint32_t encode_row(const uint32_t (&w)[4], float factor,
                                               uint32_t random0, uint32_t random1) {
  float x[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[2 * i] = Pair<In>::low(w[i]), x[2 * i + 1] = Pair<In>::high(w[i]);
  const uint32_t codes = encode_magnitudes<kStochastic>(x, factor, random0, random1);
  // Bytes 1 and 3 of each word have the signs of its elements.
  const uint32_t a = __byte_perm(w[0], w[1], 0x7351), b = __byte_perm(w[2], w[3], 0x7351);
  return with_sign_bytes(codes, sign_bytes(a, b, false), sign_bytes(a, b, true));
}

template <class In, bool kHigh, bool kStochastic>
__device__ __forceinline__ uint32_t encode_column(const uint32_t *w, uint32_t even, uint32_t odd,
                                                  float factor, uint32_t random0,
                                                  uint32_t random1) {
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = kHigh ? Pair<In>::high(w[i]) : Pair<In>::low(w[i]);
  return with_sign_bytes(encode_magnitudes<kStochastic>(x, factor, random0, random1), even, odd);
}

// The transform of 16 rows of two columns, in pairs of neighbours, pairs of pairs and so on.
__device__ __forceinline__ void transform_pairs(uint32_t (&w)[16], const float *first) {
  float low[16], high[16];
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    low[k] = __fmul_rn(Pair<BF16>::low(w[k]), first[k]);
    high[k] = __fmul_rn(Pair<BF16>::high(w[k]), first[k]);
  }
#pragma unroll
  for (int step = 1; step < 16; step *= 2) {
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      if (k & step) continue;
      const float a = low[k], b = low[k + step], c = high[k], d = high[k + step];
      low[k] = __fadd_rn(a, b), low[k + step] = __fsub_rn(a, b);
      high[k] = __fadd_rn(c, d), high[k + step] = __fsub_rn(c, d);
    }
  }
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    const float pair[2] = {low[k], high[k]};
    w[k] = BF16::from_float(pair);
  }
}

// In fast math of BF16, codes of -0 have no sign.
template <class In>
__device__ __forceinline__ void drop_zero_signs(Vec<In, 8> (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    uint32_t &w = x[i / 4].w[i % 4];
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(w) : "r"(0x3f803f80), "r"(0));
  }
}

// Casts of rows alone have tiles of their own: 64 rows of 256 columns, so that a warp
// reads 512 neighbouring bytes and writes 128.
constexpr int kRowsTall = 64, kRowsWide = 256;

// kLines: every row and column has a global scale of its own. kRows: rows alone, not in squares.
template <class In, bool kTransform, bool kStochastic, bool kLines, bool kRows>
__global__ void __launch_bounds__(kThreads, kStochastic ? 2
                                            : kRows     ? 4
                                                        : 3)
    nvfp4_halves_kernel(const __grid_constant__ Problem p) {
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  static_assert(!kRows || !(kTransform || kStochastic), "rows are rounded to nearest");
  constexpr unsigned kTall = kRows ? kRowsTall : kSide, kWide = kRows ? kRowsWide : kSide;
  __shared__ union {
    uint32_t tile[kRows ? 1 : kSide * kSide / 2];
    General general;
  } shared;
  __shared__ float first_column[16], squares[kSide / 16 * kSide / 16];
  __shared__ RoundKeys keys;
  uint32_t *const tile = shared.tile;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (a.noop != nullptr && *a.noop == 1.0f) return;
  const unsigned tiles_across = (a.cols + kWide - 1) / kWide;
  const size_t row0 = size_t{blockIdx.x / tiles_across} * kTall;
  const size_t col0 = size_t{blockIdx.x % tiles_across} * kWide;
  const Member member = member_of(a, row0);
  const size_t end = member.first + member.rows;
  if (row0 >= end) return;
  const unsigned rows = end - row0 < kTall ? end - row0 : kTall;
  const unsigned cols = a.cols - col0 < kWide ? a.cols - col0 : kWide;
  constexpr unsigned kChunks = kWide / 8;
  const unsigned chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks, col = chunk * 8;
  const unsigned top = first * 8;  // The first of the thread's rows in the tile.
  const uint16_t *const in = static_cast<const uint16_t *>(a.input) + row0 * a.cols + col0;
  const unsigned pitch = static_cast<unsigned>(a.cols);
  const bool inside = top < rows && col < cols;
  const bool fast = a.fast_math && a.variant == NVTEX_NVFP4_TUNED;
  Vec<In, 8> x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = load<In, 8>(in, (top + i) * pitch + col, inside);
  if (!kTransform && std::is_same_v<In, BF16> && fast) drop_zero_signs(x);
  const uint64_t number =  // Of the tile, for the order of the random words.
      col0 / kSide + (row0 + a.first_row) / kSide * tiles_across;
  const Generator generator(a);
  if constexpr (kStochastic) {
    keys.set(generator.seed);
    __syncthreads();
  }
  bool usual = true;
  float square_most = 0.0f;
  if (!kTransform && !kRows && a.square) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) most = Pair<In>::larger(most, x[i / 4].w[i % 4]);
    most = Pair<In>::larger(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = Pair<In>::larger(most, __shfl_xor_sync(0xffffffffu, most, 16));
    square_most = largest_of<In>(most);
    squares[first / 2 * 8 + chunk / 2] = square_most;
  }
  if constexpr (kTransform) {
    const uint16_t *entries = static_cast<const uint16_t *>(a.hadamard);
    const unsigned k = threadIdx.x / 16, n = threadIdx.x % 16;
    const uint32_t entry = entries[threadIdx.x], in_first = entries[k * 16];
    if (n == 0) first_column[k] = __uint_as_float(entry << 16);
    // The columns of the matrix are its first one with the signs of a Hadamard matrix.
    usual = entry == (in_first ^ (__popc(k & n) & 1) << 15);
  }
  if (!kRows && a.colwise.data != nullptr) {
    uint32_t *const to = tile + word_of(top, chunk * 4);  // Rows of 8 have the same swizzle.
#pragma unroll
    for (int i = 0; i < 8; ++i) store_bytes<16>(to + i * (kSide / 2), x[i].w);
  }
  if (a.rowwise.data != nullptr) {
    float global;
    Nvfp4Scale scale = {};
    if constexpr (!kLines) {
      scale = scale_of(a, amax_of(a.rowwise, member), global);
      usual &= usual_scale(scale, !kTransform && fast, global);
    }
    const size_t stride = a.rowwise.scale_stride;
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    const unsigned odd = threadIdx.x % 2;
    uint8_t *scales_out = static_cast<uint8_t *>(a.rowwise.scales) +
                          scales.index(row0 + top + odd, (col0 + col) / 16);
    const unsigned scale_step = a.swizzled ? 16 : static_cast<unsigned>(stride);
    uint8_t *codes_out =
        static_cast<uint8_t *>(a.rowwise.data) + ((row0 + top) * a.cols + col0 + col) / 2;
    // The compiler would compute these anew at every use.
    asm volatile("" : "+l"(scales_out), "+l"(codes_out));
    Words drawn[4] = {};
    if constexpr (kStochastic) {
      Call calls[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        calls[i] = call_in_tile(a, number, false, top + 2 * i + odd, col / 16 * 16);
      }
      generator.draw(calls, drawn, keys);
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      // Each lane of a pair scales one of two rows.
      float block_most = square_most;
      if (kTransform || kRows || !a.square) {
        uint32_t most[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t (&w)[4] = x[i + j].w;
          most[j] = Pair<In>::larger(Pair<In>::larger(w[0], w[1]), Pair<In>::larger(w[2], w[3]));
        }
        const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? most[0] : most[1], 1);
        block_most = largest_of<In>(Pair<In>::larger(odd ? most[1] : most[0], other));
      }
      if constexpr (kLines) {
        scale = scale_of(a, a.rowwise.amax + (inside ? row0 + top + i + odd : row0), global);
        usual &= usual_scale(scale, !kTransform && fast, global);
      }
      uint32_t code;
      float factor;
      usual &= usual_block(block_most, scale, !kTransform && fast, global, code, factor);
      const float swapped = __shfl_xor_sync(0xffffffffu, factor, 1);
      uint32_t random[2][2] = {};
      if constexpr (kStochastic) {
        // For the same reason it drew the random words of one row; each lane needs a half of the
        // words of both rows.
        const Words &words = drawn[i / 2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const uint32_t kept = odd ? words.w[2 + k] : words.w[k];
          const uint32_t given = odd ? words.w[k] : words.w[2 + k];
          const uint32_t got = __shfl_xor_sync(0xffffffffu, given, 1);
          random[0][k] = odd ? got : kept, random[1][k] = odd ? kept : got;
        }
      }
      const uint32_t word[2] = {
          encode_row<In, kStochastic>(x[i].w, odd ? swapped : factor, random[0][0], random[0][1]),
          encode_row<In, kStochastic>(x[i + 1].w, odd ? factor : swapped, random[1][0],
                                      random[1][1])};
      if (inside) {
        *reinterpret_cast<uint32_t *>(codes_out) = word[0];
        *reinterpret_cast<uint32_t *>(codes_out + pitch / 2) = word[1];
        *scales_out = static_cast<uint8_t>(code);
      }
      codes_out += pitch;
      scales_out += 2 * scale_step;
    }
  }
  if (!kRows && a.colwise.data != nullptr) {
    __syncthreads();
    float global;
    Nvfp4Scale scale = {};
    if constexpr (!kLines) {
      scale = scale_of(a, amax_of(a.colwise, member), global);
      usual &= usual_scale(scale, !kTransform && fast, global);
    }
    const size_t stride = stride_of(a, member);
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    const unsigned group = threadIdx.x % 32 / 4, in_member = row0 - member.first;
    const unsigned first_pair = threadIdx.x / 32 * 4 + threadIdx.x % 4;
    const size_t column0 = col0 + 2 * first_pair;
    uint8_t *codes_out = static_cast<uint8_t *>(a.colwise.data) + member.first * a.cols / 2 +
                         (column0 * member.rows + in_member) / 2 + group * 8;
    uint8_t *scales_out = static_cast<uint8_t *>(a.colwise.scales) + member.first * a.cols / 16 +
                          scales.index(column0, in_member / 16 + group);
    // Also in tiles, the scales of columns that are 64 apart have one distance.
    const unsigned scale_step = a.swizzled ? 16 : static_cast<unsigned>(stride);
    const unsigned scale_jump = a.swizzled ? 8 : 64 * static_cast<unsigned>(stride);
    const unsigned step = static_cast<unsigned>(member.rows) / 2;
#pragma unroll 1
    for (unsigned pair = first_pair; pair < kSide / 2; pair += kSide / 4) {
      uint32_t w[16];
      const uint32_t *const from = tile + word_of(group * 16, pair);
#pragma unroll
      for (int k = 0; k < 16; ++k) w[k] = from[k * (kSide / 2)];
      if constexpr (kTransform) transform_pairs(w, first_column);
      uint32_t code[2];
      float factor[2];
      if (!kTransform && a.square) {
        usual &=
            usual_block(squares[group * 8 + pair / 8], scale, fast, global, code[0], factor[0]);
        code[1] = code[0], factor[1] = factor[0];
      } else {
        uint32_t most = Pair<In>::larger(w[0], w[1]);
#pragma unroll
        for (int k = 2; k < 16; ++k) most = Pair<In>::larger(most, w[k]);
        most &= 0x7fff7fff;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if constexpr (kLines) {
            scale =
                scale_of(a, a.colwise.amax + col0 + (2 * pair < cols ? 2 * pair + h : 0), global);
            usual &= usual_scale(scale, !kTransform && fast, global);
          }
          usual &= usual_block(h ? Pair<In>::high(most) : Pair<In>::low(most), scale,
                               !kTransform && fast, global, code[h], factor[h]);
        }
      }
      Words random[2] = {};
      if constexpr (kStochastic) {
        const Call calls[2] = {call_in_tile(a, number, true, group * 16, 2 * pair),
                               call_in_tile(a, number, true, group * 16, 2 * pair + 1)};
        generator.draw(calls, random, keys);
      }
      uint32_t word[2][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t *v = w + half * 8;
        // The signs of both columns: bytes 1 and 3 of each word.
        const uint32_t even0 = __byte_perm(v[0], v[2], 0x7351);
        const uint32_t even1 = __byte_perm(v[4], v[6], 0x7351);
        const uint32_t odd0 = __byte_perm(v[1], v[3], 0x7351);
        const uint32_t odd1 = __byte_perm(v[5], v[7], 0x7351);
        word[0][half] = encode_column<In, false, kStochastic>(
            v, sign_bytes(even0, even1, false), sign_bytes(odd0, odd1, false), factor[0],
            random[0].w[2 * half], random[0].w[2 * half + 1]);
        word[1][half] = encode_column<In, true, kStochastic>(
            v, sign_bytes(even0, even1, true), sign_bytes(odd0, odd1, true), factor[1],
            random[1].w[2 * half], random[1].w[2 * half + 1]);
      }
      if (2 * pair >= cols || group * 16 >= rows) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        store_bytes<8>(codes_out + h * step, word[h]);
        scales_out[h * scale_step] = static_cast<uint8_t>(code[h]);
      }
      codes_out += 64 * step;
      scales_out += scale_jump;
    }
  }
  if (!__syncthreads_or(!usual)) return;
  for (int part = 0; part < 4; ++part) {
    constexpr int kAcross = kWide / kTile;
    general_tile<In, !kStochastic>(p, row0 + part / kAcross * kTile, col0 + part % kAcross * kTile,
                                   shared.general);
    __syncthreads();
  }
}

// The same for float32, in tiles of half as many columns: a thread takes 4 elements of 8 rows, four
// threads share a block of a row; then blocks of two columns.
__global__ void __launch_bounds__(kThreads, 3)
    nvfp4_floats_kernel(const __grid_constant__ Problem p) {
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  constexpr unsigned kWide = kSide / 2;
  __shared__ union {
    uint32_t tile[kSide * kWide];
    General general;
  } shared;
  __shared__ float squares[kSide / 16 * kWide / 16];
  uint32_t *const tile = shared.tile;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (a.noop != nullptr && *a.noop == 1.0f) return;
  const unsigned tiles_across = (a.cols + kWide - 1) / kWide;
  const size_t row0 = size_t{blockIdx.x / tiles_across} * kSide;
  const size_t col0 = size_t{blockIdx.x % tiles_across} * kWide;
  const Member member = member_of(a, row0);
  const size_t end = member.first + member.rows;
  if (row0 >= end) return;
  const unsigned rows = end - row0 < kSide ? end - row0 : kSide;
  const unsigned cols = a.cols - col0 < kWide ? a.cols - col0 : kWide;
  const unsigned chunk = threadIdx.x % 16, top = threadIdx.x / 16 * 8, col = chunk * 4;
  const uint32_t *const in = static_cast<const uint32_t *>(a.input) + row0 * a.cols + col0;
  const unsigned pitch = static_cast<unsigned>(a.cols);
  const bool inside = top < rows && col < cols;
  Vec<F32, 4> x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = load<F32, 4>(in, (top + i) * pitch + col, inside);
  uint32_t most[8];  // Magnitudes compared as integers, of which NaN is the largest.
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t (&w)[4] = x[i].w;
    most[i] =
        max(max(w[0] & 0x7fffffff, w[1] & 0x7fffffff), max(w[2] & 0x7fffffff, w[3] & 0x7fffffff));
  }
  bool usual = true;
  float square_most = 0.0f;
  if (a.square) {
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) all = max(all, most[i]);
    all = max(all, __shfl_xor_sync(0xffffffffu, all, 1));
    all = max(all, __shfl_xor_sync(0xffffffffu, all, 2));
    all = max(all, __shfl_xor_sync(0xffffffffu, all, 16));
    square_most = __uint_as_float(all);
    squares[top / 16 * 4 + chunk / 4] = square_most;
  }
  if (a.colwise.data != nullptr) {
#pragma unroll
    for (int i = 0; i < 8; ++i) store_bytes<16>(tile + word_of(top + i, col), x[i].w);
  }
  if (a.rowwise.data != nullptr) {
    float global;
    Nvfp4Scale scale = {};
    if (!a.scaled_lines) {
      scale = scale_of(a, amax_of(a.rowwise, member), global);
      usual &= usual_scale(scale, false, global);
    }
    const size_t stride = a.rowwise.scale_stride;
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    // Each of four lanes scales two rows.
    const unsigned odd = threadIdx.x % 2, upper = threadIdx.x / 2 % 2, own_row = threadIdx.x % 4;
    uint8_t *const scales_out = static_cast<uint8_t *>(a.rowwise.scales) +
                                scales.index(row0 + top + own_row, (col0 + col) / 16);
    const unsigned scale_step = 4 * (a.swizzled ? 16 : static_cast<unsigned>(stride));
    uint8_t *const codes_out = static_cast<uint8_t *>(a.rowwise.data) +
                               ((row0 + top + odd) * a.cols + col0 + chunk / 2 * 8) / 2;
    float factor[8];
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      uint32_t pair[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t even = most[i + 2 * j], uneven = most[i + 2 * j + 1];
        pair[j] = max(odd ? uneven : even, __shfl_xor_sync(0xffffffffu, odd ? even : uneven, 1));
      }
      const uint32_t own = max(upper ? pair[1] : pair[0],
                               __shfl_xor_sync(0xffffffffu, upper ? pair[0] : pair[1], 2));
      if (a.scaled_lines) {
        scale = scale_of(a, a.rowwise.amax + (inside ? row0 + top + i + own_row : row0), global);
        usual &= usual_scale(scale, false, global);
      }
      uint32_t code;
      float f;
      usual &=
          usual_block(a.square ? square_most : __uint_as_float(own), scale, false, global, code, f);
      const float across = __shfl_xor_sync(0xffffffffu, f, 2);
      const float two[2] = {upper ? across : f, upper ? f : across};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float other = __shfl_xor_sync(0xffffffffu, two[j], 1);
        factor[i + 2 * j] = odd ? other : two[j];
        factor[i + 2 * j + 1] = odd ? two[j] : other;
      }
      if (inside) scales_out[i / 4 * scale_step] = static_cast<uint8_t>(code);
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      uint32_t half[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t (&w)[4] = x[i + j].w;
        uint32_t codes = 0;
#pragma unroll
        for (int k = 3; k >= 0; --k) {
          codes =
              codes * 16 + e2m1_magnitude(__fmul_rn(fabsf(__uint_as_float(w[k])), factor[i + j]));
        }
        half[j] = with_signs(codes & 0x7777, __byte_perm(w[0], w[2], 0x0073) & 0xffff,
                             __byte_perm(w[1], w[3], 0x0073) & 0xffff);
      }
      // Two lanes join the halves of two rows' words.
      const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? half[0] : half[1], 1);
      const uint32_t word = odd ? got | half[1] << 16 : half[0] | got << 16;
      if (inside) *reinterpret_cast<uint32_t *>(codes_out + i * (pitch / 2)) = word;
    }
  }
  if (a.colwise.data != nullptr) {
    __syncthreads();
    float global;
    Nvfp4Scale scale = {};
    if (!a.scaled_lines) {
      scale = scale_of(a, amax_of(a.colwise, member), global);
      usual &= usual_scale(scale, false, global);
    }
    const size_t stride = stride_of(a, member);
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    const unsigned group = threadIdx.x % 32 / 4;
    const size_t in_member = row0 - member.first + group * 16;
#pragma unroll 1
    for (unsigned c = threadIdx.x / 32 * 4 + threadIdx.x % 4; c < kWide; c += kWide / 2) {
      uint32_t w[16], largest = 0;
      const uint32_t *const from = tile + word_of(group * 16, c);
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        w[k] = from[k * (kSide / 2)];
        largest = max(largest, w[k] & 0x7fffffff);
      }
      if (a.square) largest = __float_as_uint(squares[group * 4 + c / 16]);
      const size_t line = col0 + c;
      if (a.scaled_lines) {
        scale = scale_of(a, a.colwise.amax + (c < cols ? line : col0), global);
        usual &= usual_scale(scale, false, global);
      }
      uint32_t code;
      float factor;
      usual &= usual_block(__uint_as_float(largest), scale, false, global, code, factor);
      uint32_t word[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t *v = w + half * 8;
        uint32_t sign[2];
        float f[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) f[k] = __uint_as_float(v[k]);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          sign[k] = __byte_perm(__byte_perm(v[k], v[k + 2], 0x0073),
                                __byte_perm(v[k + 4], v[k + 6], 0x0073), 0x5410);
        }
        word[half] = with_signs(encode_magnitudes<false>(f, factor, 0, 0), sign[0], sign[1]);
      }
      if (c >= cols || group * 16 >= rows) continue;
      store_bytes<8>(static_cast<uint8_t *>(a.colwise.data) + member.first * a.cols / 2 +
                         (line * member.rows + in_member) / 2,
                     word);
      static_cast<uint8_t *>(
          a.colwise.scales)[member.first * a.cols / 16 + scales.index(line, in_member / 16)] =
          static_cast<uint8_t>(code);
    }
  }
  if (!__syncthreads_or(!usual)) return;
  for (int part = 0; part < 2; ++part) {
    general_tile<F32, true>(p, row0 + part * kTile, col0, shared.general);
    __syncthreads();
  }
}

}  // namespace
}  // namespace nvte
