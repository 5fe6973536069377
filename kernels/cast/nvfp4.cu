// Casts to NVFP4 and back: blocks of 16 elements of a row, of a column (stored transposed) or of
// both, with an E4M3 scale each (see Nvfp4QuantizeArgs). A block of threads takes a tile of 64 rows
// and columns, a thread a block of 16 elements of each direction; the 16 lines of a square block
// are those of half a warp.

#include <type_traits>

#include "common/launch.cuh"
#include "common/nvfp4.cuh"
#include "common/philox.cuh"
#include "common/reduce.cuh"
#include "common/scale.cuh"
#include "nvte/backend/nvfp4.h"

namespace nvte {
namespace {

constexpr int kTile = 64;
constexpr int kThreads = 256;
constexpr int kPitch = kTile + 1;
constexpr float kBf16Max = 0x1.FEp127f;

// What the launcher works out for the kernel.
struct Problem {
  NVTEXNvfp4QuantizeArgs a;
  bool vectorised;     // The input is aligned to 16 bytes, rows too.
  size_t strip_tiles;  // For the random words.
};

// Rows of a member of a group.
struct Member {
  size_t index;
  size_t first;
  size_t rows;
  size_t data;  // Bytes before its column-wise data and scales.
  size_t scales;
  size_t stride;  // Between column-wise scales of neighbouring columns.
};

__device__ __forceinline__ bool propagates_nan(NVTEXNvfp4Variant variant) {
  return variant >= NVTEX_NVFP4_HADAMARD_COLUMNS;
}

__device__ Nvfp4Scale scale_of(const NVTEXNvfp4QuantizeArgs &a, const float *amax, float &global) {
  global = 1.0f;
  if (amax != nullptr) {
    const float most = *amax;
    if (a.variant == NVTEX_NVFP4_HADAMARD || a.variant == NVTEX_NVFP4_HADAMARD_GROUP) {
      global = most > 0.0f ? fminf(__fdiv_rn(a.e4m3_max * kE2m1Max, most), FLT_MAX) : 1.0f;
    } else if (a.variant == NVTEX_NVFP4_HADAMARD_COLUMNS && most != most) {
      global = most;
    } else {
      global = nvfp4_global_scale(most, a.e4m3_max);
    }
  }
  return nvfp4_scale(global);
}

struct Call {
  uint64_t sequence;
  uint32_t call;
  bool exchanged;  // The block's halves.
};

// Sequence and call of the generator for the words of the block that begins at (r, c).
__device__ Call random_call(const Problem &p, bool colwise, size_t r, size_t c) {
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  r += a.first_row;
  const unsigned tile_r = r % 128, tile_c = c % 128;
  const uint64_t across = (a.cols + 127) / 128, tile = c / 128 + r / 128 * across;
  const bool by_row = a.rowwise.data != nullptr, by_col = a.colwise.data != nullptr;
  const unsigned height = a.variant == NVTEX_NVFP4_HADAMARD_COLUMNS ? 64 : 128;
  const uint64_t per = p.strip_tiles, down = r / height;
  const bool in_strips = propagates_nan(a.variant);
  const uint64_t strip = in_strips ? down % per : 0;
  const uint64_t lin = in_strips ? per * (c / 128 + down / per * across) : 0;
  switch (a.variant) {
    case NVTEX_NVFP4_TUNED: {
      const unsigned in_r = tile_r % 64, in_c = tile_c % 64;
      const unsigned sub = tile_r / 64 * 2 + tile_c / 64, calls = by_col ? 4 : 2;
      if (colwise) {
        const unsigned lane = in_c / 2, warp = (in_r / 16 + 4 - lane / 2 % 4) % 4;
        return {32 * warp + lane + 128 * tile, sub * calls + 2 + tile_c % 2, false};
      }
      const unsigned thread = in_r % 32 * 4 + in_c / 16;
      return {thread + 128 * tile, sub * calls + in_r / 32, thread % 32 >= 16};
    }
    case NVTEX_NVFP4_SQUARE: {
      const unsigned calls = by_row && by_col ? 4 : 2;
      const unsigned call = tile_r / 32 * calls + tile_r % 32 / 16;
      if (colwise) return {tile_c + 128 * tile, call, false};
      const unsigned thread = tile_r % 16 * 8 + tile_c / 16;
      return {thread + 128 * tile, call + calls - 2, thread % 32 >= 16};
    }
    case NVTEX_NVFP4_GENERAL:
      if (colwise) {
        const unsigned thread = tile_c / 2 % 32 * 8 + tile_r / 16;
        return {thread + 256 * tile, (by_row ? 4 : 0) + tile_c / 64 * 2 + tile_c % 2, false};
      }
      return {tile_r % 32 * 8 + tile_c / 16 + 256 * tile, tile_r / 32, false};
    case NVTEX_NVFP4_HADAMARD_COLUMNS:
      return {tile_c + 256 * strip + 256 * lin, tile_r % 64 / 16, false};
    default: {
      const uint64_t sequence = 512 * strip + 512 * lin;
      if (colwise) return {128 + tile_c + sequence, tile_r / 16, false};
      if (a.variant == NVTEX_NVFP4_HADAMARD) {
        const unsigned thread = tile_r / 16 * 32 + tile_r % 16 * 2 + tile_c / 64;
        return {768 + thread + sequence, tile_c % 64 / 16, false};
      }
      const unsigned thread = tile_r % 32 / 4 * 32 + tile_r % 4 * 8 + tile_c / 16;
      const uint64_t rows = a.offsets != nullptr ? a.offsets[a.num_tensors] / a.cols : a.total_rows;
      return {768 + thread + sequence + 512 * per * across * (rows / 128), tile_r / 32, false};
    }
  }
}

// The random words of the block that begins at (r, c), halves in order.
__device__ __forceinline__ Words random_words(const Problem &p, bool colwise, size_t r, size_t c) {
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  const Call at = random_call(p, colwise, r, c);
  const uint64_t seed = a.rng_state != nullptr ? a.rng_state[0] : 0;
  const uint64_t offset = a.rng_state != nullptr ? a.rng_state[1] : 0;
  const uint64_t low = offset + at.call;
  const Words words = philox(seed, low, at.sequence + (low < offset ? 1 : 0));
  if (!at.exchanged) return words;
  return {{words.w[2], words.w[3], words.w[0], words.w[1]}};
}

// Rounds y to one of the two neighbours by a random byte.
__device__ __forceinline__ uint32_t encode_stochastic(float y, uint32_t byte) {
  const float a = fabsf(y);
  const float step = a >= 4.0f ? 2.0f : a >= 2.0f ? 1.0f : 0.5f;
  const float per_step = a >= 4.0f ? 0.5f : a >= 2.0f ? 1.0f : 2.0f;
  const float t = __fmaf_rn(__fmul_rn(static_cast<float>(byte), 1.0f / 256.0f), step, a);
  const float down = fminf(__fmul_rn(floorf(__fmul_rn(t, per_step)), step), kE2m1Max);
  return encode_e2m1(y == y ? copysignf(down, y) : y);
}

// The codes of 16 elements, the scale that belongs to them, and of 4over6 the error.
struct Codes {
  uint32_t word[2];
  uint32_t scale;
};

__device__ __forceinline__ void pack(const float (&y)[16], uint32_t (&word)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float part[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) part[i] = y[half * 8 + i];
    word[half] = encode_e2m1x8(part);
  }
}

__device__ __forceinline__ float most_of(const float (&x)[16], bool nan) {
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < 16; ++i) most = fmaxf(most, fabsf(x[i]));
  if (nan) {
#pragma unroll
    for (int i = 0; i < 16; ++i) most = x[i] != x[i] ? x[i] : most;
  }
  return most;
}

// As many as a square block has lines: over half a warp.
__device__ __forceinline__ float most_of_tile(float most) {
#pragma unroll
  for (int lanes = 8; lanes > 0; lanes /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
  }
  return most;
}
__device__ __forceinline__ float sum_of_tile(float sum) {
#pragma unroll
  for (int lanes = 8; lanes > 0; lanes /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, lanes));
  }
  return sum;
}

// One candidate of 4over6 and its error.
__device__ float candidate(const NVTEXNvfp4QuantizeArgs &a, const float (&x)[16], float base,
                           float amax, float global, const Nvfp4Scale &scale, Codes &codes) {
  codes.scale = encode_e4m3(fminf(base, 448.0f));
  const float s = decode_e4m3(codes.scale), factor = nvfp4_multiplier(codes.scale, scale);
  float y[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) y[i] = __fmul_rn(x[i], factor);
  pack(y, codes.word);
  const float full = 6.0f * a.e4m3_max, rcp = __frcp_rn(full);
  const float largest = __fmul_rn(s, amax);
  const bool usual = largest == 0.0f || (largest > 0x1p-80f && largest < 0x1p100f);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float value = __fmul_rn(decode_e2m1(codes.word[i / 8] >> (i % 8 * 4) & 15), s);
    float d;
    if (a.fast_error) {
      d = __fsub_rn(value, __fmul_rn(x[i], global));
    } else {
      // By 2688 and by 1536 one step makes the last bit of every quotient right.
      const float product = __fmul_rn(value, amax), about = __fmul_rn(product, rcp);
      const float quotient = usual ? __fmaf_rn(__fmaf_rn(-about, full, product), rcp, about)
                                   : __fdiv_rn(product, full);
      d = __fsub_rn(quotient, x[i]);
    }
    sum = __fadd_rn(sum, a.choice == NVTEX_NVFP4_LEAST_SQUARES ? __fmul_rn(d, d) : fabsf(d));
  }
  return sum;
}

__device__ Codes choose(const NVTEXNvfp4QuantizeArgs &a, const float (&x)[16], float most,
                        float amax, float global, const Nvfp4Scale &scale) {
  const float base = __fmul_rn(__fdiv_rn(most, 6.0f), global);
  Codes six, four;
  float error = candidate(a, x, base, amax, global, scale, six);
  float error4 = candidate(a, x, __fmul_rn(base, 1.5f), amax, global, scale, four);
  if (a.square) {
    error = sum_of_tile(error);
    error4 = sum_of_tile(error4);
  }
  return error4 < error ? four : six;
}

template <bool kNearest>
__device__ Codes cast(const Problem &p, const float (&x)[16], float most, float global,
                      const Nvfp4Scale &scale, bool colwise, size_t r, size_t c) {
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  const bool nan = propagates_nan(a.variant);
  if (nan && (most != most || global != global)) return {{0x77777777, 0x77777777}, 0x7f};
  Codes codes;
  codes.scale = nvfp4_block_scale(most, scale);
  float y[16];
  if (a.fast_math && a.variant == NVTEX_NVFP4_TUNED) {
    const float quotient = fminf(__fdiv_rn(global, decode_e4m3(codes.scale)), kBf16Max);
    const float pair[2] = {quotient, 0.0f};
    const float factor = __uint_as_float(BF16::from_float(pair) << 16);
#pragma unroll
    for (int i = 0; i < 16; ++i) y[i] = __fmaf_rn(x[i], factor, 0.0f);
  } else {
    const float product = __fmul_rn(decode_e4m3(codes.scale), scale.inverse);
    const float factor = nan && product != product ? product : fminf(__frcp_rn(product), FLT_MAX);
#pragma unroll
    for (int i = 0; i < 16; ++i) y[i] = __fmul_rn(x[i], factor);
  }
  if (kNearest || !a.stochastic) {
    pack(y, codes.word);
    return codes;
  }
  const Words words = random_words(p, colwise, r, c);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 7; i >= 0; --i) {
      const uint32_t random = words.w[half * 2 + i / 4];
      word = word << 4 | encode_stochastic(y[half * 8 + i], random >> (i % 4 * 8) & 255);
    }
    codes.word[half] = word;
  }
  return codes;
}

// The products with a matrix, added in pairs, and rounded to BF16 unless `exact`.
__device__ void transform(float (&x)[16], const float (*matrix)[16], bool exact) {
  float y[16];
#pragma unroll 1
  for (int n = 0; n < 16; ++n) {
    float sums[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) sums[k] = __fmul_rn(x[k], matrix[k][n]);
#pragma unroll
    for (int length = 8; length > 0; length /= 2) {
#pragma unroll
      for (int i = 0; i < length; ++i) sums[i] = __fadd_rn(sums[2 * i], sums[2 * i + 1]);
    }
    const float pair[2] = {sums[0], 0.0f};
    y[n] = exact ? sums[0] : __uint_as_float(BF16::from_float(pair) << 16);
  }
#pragma unroll
  for (int n = 0; n < 16; ++n) x[n] = y[n];
}

__device__ __forceinline__ Member member_of(const NVTEXNvfp4QuantizeArgs &a, size_t row) {
  if (a.offsets == nullptr) return {0, 0, a.rows, 0, 0, a.colwise.scale_stride};
  size_t low = 0, high = a.num_tensors;  // The last member that begins at or before the row.
  while (high - low > 1) {
    const size_t middle = (low + high) / 2;
    (static_cast<size_t>(a.offsets[middle]) / a.cols <= row ? low : high) = middle;
  }
  // Of offsets that are not what they should be, whole blocks of the matrix's rows, or none.
  const size_t from = static_cast<size_t>(a.offsets[low]) / a.cols;
  const size_t to = static_cast<size_t>(a.offsets[low + 1]) / a.cols;
  const size_t first = (from < row ? from : row) / 128 * 128;
  const size_t end = (to < a.rows ? to : a.rows) / 128 * 128;
  const size_t rows = end > first ? end - first : 0;
  return {low, first, rows, first * a.cols / 2, first * a.cols / 16, rows / 16};
}

__device__ __forceinline__ const float *amax_of(const NVTEXNvfp4Lines &lines,
                                                const Member &member) {
  return lines.amax == nullptr ? nullptr : lines.amax + member.index;
}

// Elements of a line are written as whole words where the line allows it.
__device__ __forceinline__ void store_codes(uint8_t *at, const uint32_t (&word)[2], int elements) {
  if (elements == 16 && reinterpret_cast<uintptr_t>(at) % 8 == 0) {
    *reinterpret_cast<uint2 *>(at) = make_uint2(word[0], word[1]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (2 * i < elements) at[i] = static_cast<uint8_t>(word[i / 4] >> (i % 4 * 8));
  }
}

struct General {
  float tile[kTile * kPitch];
  float matrix[16][16];
};

// The 64 rows and columns from (row0, col0) on; with kNearest neither 4over6 nor random.
template <class In, bool kNearest>
__device__ __noinline__ void general_tile(const Problem &p, size_t row0, size_t col0,
                                          General &shared) {
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  const Member member = member_of(a, row0);
  if (row0 >= member.first + member.rows) return;
  float *const tile = shared.tile;
  float (*const matrix)[16] = shared.matrix;

  constexpr int N = 16 / In::kBytes;
  for (int v = threadIdx.x; v < kTile * kTile / N; v += kThreads) {
    const int r = v / (kTile / N), c = v % (kTile / N) * N;
    const bool row_inside = row0 + r < a.rows;
    const size_t left = row_inside && col0 + c < a.cols ? a.cols - col0 - c : 0;
    const size_t at = (row0 + r) * a.cols + col0 + c;
    const Vec<In, N> x = p.vectorised ? load<In, N>(a.input, at, left > 0)
                                      : load_some<In, N>(a.input, at, left < N ? left : N);
    float f[N];
    to_float(x, f);
#pragma unroll
    for (int i = 0; i < N; ++i) tile[r * kPitch + c + i] = f[i];
  }
  if (a.hadamard != nullptr) {
    const uint32_t bits = static_cast<const uint16_t *>(a.hadamard)[threadIdx.x];
    matrix[threadIdx.x / 16][threadIdx.x % 16] = __uint_as_float(bits << 16);
  }
  __syncthreads();

  const int line_in_block = threadIdx.x % 16, unit = threadIdx.x / 16;
  const bool nan = propagates_nan(a.variant);
#pragma unroll 1
  for (int colwise = 0; colwise < 2; ++colwise) {
    const NVTEXNvfp4Lines &lines = colwise ? a.colwise : a.rowwise;
    if (lines.data == nullptr) continue;
    // Of two neighbouring half warps one takes the next block along the lines: no bank conflicts.
    const int r = (colwise ? unit % 4 : unit / 4) * 16, c = (colwise ? unit / 4 : unit % 4) * 16;
    float x[16];
    const int start = colwise ? r * kPitch + c + line_in_block : (r + line_in_block) * kPitch + c;
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = tile[start + i * (colwise ? kPitch : 1)];
    if (colwise && a.hadamard != nullptr) transform(x, matrix, a.fast_math);
    float most = most_of(x, nan);
    if (a.square) most = most_of_tile(most);

    const size_t row = row0 + r, col = col0 + c;
    const size_t line = (colwise ? col : row) + line_in_block;
    const size_t line_count = colwise ? a.cols : member.first + member.rows;
    const size_t from = colwise ? row - member.first : col;
    const size_t length = colwise ? member.rows : a.cols;
    const bool inside = line < line_count && from < length;
    // Threads of a square block that are outside take part in its sums of zeros.
    const size_t index = a.scaled_lines ? (inside ? line : 0) : member.index;
    const float *amax = lines.amax == nullptr ? nullptr : lines.amax + index;
    float global;
    const Nvfp4Scale scale = scale_of(a, amax, global);
    Codes codes;
    const size_t at_row = row + (colwise ? 0 : line_in_block);
    const size_t at_col = col + (colwise ? line_in_block : 0);
    if (kNearest || a.choice == NVTEX_NVFP4_SIX) {
      codes = cast<kNearest>(p, x, most, global, scale, colwise, at_row, at_col);
    } else {
      codes = choose(a, x, most, amax != nullptr ? *amax : 0.0f, global, scale);
    }
    if (!inside) continue;
    const size_t stride = colwise ? member.stride : lines.scale_stride;
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    const size_t left = length - from;
    static_cast<uint8_t *>(
        lines.scales)[(colwise ? member.scales : 0) + scales.index(line, from / 16)] =
        static_cast<uint8_t>(codes.scale);
    store_codes(static_cast<uint8_t *>(lines.data) + (colwise ? member.data : 0) +
                    (line * length + from) / 2,
                codes.word, left < 16 ? static_cast<int>(left) : 16);
  }
}

// ---- Large tiles: all casts of whole blocks that have one candidate for each scale.
//
// A thread takes 8 elements of 8 neighbouring rows from memory to registers and to shared memory,
// two threads share a block of a row, four one of a square; then 16 rows of 2 columns, twice.
// The elements of a block are at most its largest magnitude b, so that none needs to be limited if
// b itself gets less than 7. A tile in which that is not so, or that has a NaN, is cast again in
// the general way.
//
// H200, 8192 x 8192, both directions: 90 us, 54 % of the memory's rate (F32 126 us, 63 %; square
// 85 us, 57 %; random 190 us, 26 %; scaled lines 154 us with their largest magnitudes); rows alone
// 51 us. Instructions bind: 34 for an element, three quarters of all issue slots are taken.

constexpr int kSide = 128;
constexpr size_t kLongest = size_t{1} << 24;  // Of lines, for 32-bit distances in a tile.

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
  return codes | (odd & 0x80808080) | (even >> 4 & 0x08080808);
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
  bool usual = product > kTiny;
  if (fast) {
    // So is a quotient of such numbers.
    const float quotient = __fmul_rn(global, factor);
    const float exact = __fmaf_rn(__fmaf_rn(-quotient, product, global), factor, quotient);
    const float pair[2] = {exact, 0.0f};
    factor = usual ? __uint_as_float(BF16::from_float(pair) << 16) : 0.0f;
    usual = usual && global > 0x1p-80f && global < 0x1p80f;
  }
  // A block of zeros times an infinite inverse is none.
  const bool zeros = most == 0.0f && scale.inverse < __int_as_float(0x7f800000);
  return global == global && (zeros || (usual && __fmul_rn(most, factor) < 7.0f));
}

// The code, rounded to one of its neighbours by a byte of a random word, of a magnitude below 7.
__device__ __forceinline__ uint32_t random_magnitude(float a, uint32_t word, int byte) {
  constexpr float kOne = 8388608.0f;  // The byte is the lowest one of such a number.
  const uint32_t sum = __byte_perm(word, 0x4b000000, 0x7650 | byte);
  const float u = __fsub_rn(__uint_as_float(sum), kOne);
  // The step is half the power of two below a, at least a half.
  const uint32_t power = max(__float_as_uint(a) & 0x7f800000, 0x3f800000u);
  const float step = __uint_as_float(power - (9u << 23));
  const float t = fminf(__fmaf_rn(u, step, a), kE2m1Max);
  // As a number with the exponents of E2M1 in the lowest places.
  return __float_as_uint(__fmul_rz(t, 0x1p-126f)) >> 22;
}

// Codes of eight magnitudes times a factor: to nearest, or by eight bytes.
template <bool kStochastic>
__device__ __forceinline__ uint32_t encode_magnitudes(const float (&x)[8], float factor,
                                                      uint32_t random0, uint32_t random1) {
  if constexpr (kStochastic) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 7; i >= 0; --i) {
      word = word * 16 +
             random_magnitude(__fmul_rn(fabsf(x[i]), factor), i < 4 ? random0 : random1, i % 4);
    }
    return word;
  } else {
    uint32_t code[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = e2m1_magnitude(__fmul_rn(fabsf(x[i]), factor));
    return sum_of_codes(code);
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
  return with_signs(codes, __byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
}

template <class In, bool kHigh, bool kStochastic>
__device__ __forceinline__ uint32_t encode_column(const uint32_t *w, uint32_t even, uint32_t odd,
                                                  float factor, uint32_t random0,
                                                  uint32_t random1) {
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = kHigh ? Pair<In>::high(w[i]) : Pair<In>::low(w[i]);
  return with_signs(encode_magnitudes<kStochastic>(x, factor, random0, random1), even, odd);
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

template <class In, bool kTransform, bool kStochastic>
__global__ void __launch_bounds__(kThreads, kStochastic ? 2 : 3)
    nvfp4_halves_kernel(const __grid_constant__ Problem p) {
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  __shared__ union {
    uint32_t tile[kSide * kSide / 2];
    General general;
  } shared;
  __shared__ float first_column[16], squares[kSide / 16 * kSide / 16];
  uint32_t *const tile = shared.tile;
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
  const unsigned chunk = threadIdx.x % 16, first = threadIdx.x / 16, col = chunk * 8;
  const unsigned top = first * 8;  // Of its rows.
  const uint16_t *const in = static_cast<const uint16_t *>(a.input) + row0 * a.cols + col0;
  const unsigned pitch = static_cast<unsigned>(a.cols);
  const bool inside = top < rows && col < cols;
  const bool fast = a.fast_math && a.variant == NVTEX_NVFP4_TUNED;
  Vec<In, 8> x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = load<In, 8>(in, (top + i) * pitch + col, inside);
  if (!kTransform && std::is_same_v<In, BF16> && fast) {
    // Here codes of -0 have no sign.
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      uint32_t &w = x[i / 4].w[i % 4];
      asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(w) : "r"(0x3f803f80), "r"(0));
    }
  }
  bool usual = true;
  float square_most = 0.0f;
  if (!kTransform && a.square) {
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
  if (a.colwise.data != nullptr) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      store_bytes<16>(tile + word_of(top + i, chunk * 4), x[i].w);
    }
  }
  if (a.rowwise.data != nullptr) {
    float global;
    Nvfp4Scale scale = {};
    if (!a.scaled_lines) scale = scale_of(a, amax_of(a.rowwise, member), global);
    const size_t stride = a.rowwise.scale_stride;
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    const unsigned odd = threadIdx.x % 2;
    uint8_t *const scales_out = static_cast<uint8_t *>(a.rowwise.scales) +
                                scales.index(row0 + top + odd, (col0 + col) / 16);
    const unsigned scale_step = a.swizzled ? 16 : static_cast<unsigned>(stride);
    uint8_t *const codes_out =
        static_cast<uint8_t *>(a.rowwise.data) + ((row0 + top) * a.cols + col0 + col) / 2;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      // Of two rows each of a pair of lanes scales one.
      float block_most = square_most;
      if (kTransform || !a.square) {
        uint32_t most[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t (&w)[4] = x[i + j].w;
          most[j] = Pair<In>::larger(Pair<In>::larger(w[0], w[1]), Pair<In>::larger(w[2], w[3]));
        }
        const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? most[0] : most[1], 1);
        block_most = largest_of<In>(Pair<In>::larger(odd ? most[1] : most[0], other));
      }
      if (a.scaled_lines) {
        scale = scale_of(a, a.rowwise.amax + (inside ? row0 + top + i + odd : row0), global);
      }
      uint32_t code;
      float factor;
      usual &= usual_block(block_most, scale, !kTransform && fast, global, code, factor);
      const float swapped = __shfl_xor_sync(0xffffffffu, factor, 1);
      uint32_t random[2][2] = {};
      if constexpr (kStochastic) {
        // So it draws for one; each needs a half of both.
        const Words words = random_words(p, false, row0 + top + i + odd, col0 + col / 16 * 16);
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
      if (!inside) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        *reinterpret_cast<uint32_t *>(codes_out + (i + j) * (pitch / 2)) = word[j];
      }
      scales_out[i * scale_step] = static_cast<uint8_t>(code);
    }
  }
  if (a.colwise.data != nullptr) {
    __syncthreads();
    float global;
    Nvfp4Scale scale = {};
    if (!a.scaled_lines) scale = scale_of(a, amax_of(a.colwise, member), global);
    const size_t stride = member.stride;
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    const unsigned group = threadIdx.x % 32 / 4, in_member = row0 - member.first;
    const unsigned first_pair = threadIdx.x / 32 * 4 + threadIdx.x % 4;
    const size_t column0 = col0 + 2 * first_pair;
    uint8_t *codes_out = static_cast<uint8_t *>(a.colwise.data) + member.data +
                         (column0 * member.rows + in_member) / 2 + group * 8;
    uint8_t *scales_out = static_cast<uint8_t *>(a.colwise.scales) + member.scales +
                          scales.index(column0, in_member / 16 + group);
    // In tiles, too, scales of columns 64 apart have one distance.
    const unsigned scale_step = a.swizzled ? 16 : static_cast<unsigned>(stride);
    const unsigned scale_jump = a.swizzled ? 8 : 64 * static_cast<unsigned>(stride);
    const unsigned step = static_cast<unsigned>(member.rows) / 2;
#pragma unroll 1
    for (unsigned pair = first_pair; pair < kSide / 2; pair += kSide / 4) {
      uint32_t w[16];
#pragma unroll
      for (int k = 0; k < 16; ++k) w[k] = tile[word_of(group * 16 + k, pair)];
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
          if (a.scaled_lines) {
            scale =
                scale_of(a, a.colwise.amax + col0 + (2 * pair < cols ? 2 * pair + h : 0), global);
          }
          usual &= usual_block(h ? Pair<In>::high(most) : Pair<In>::low(most), scale,
                               !kTransform && fast, global, code[h], factor[h]);
        }
      }
      Words random[2] = {};
      if constexpr (kStochastic) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          random[h] = random_words(p, true, row0 + group * 16, col0 + 2 * pair + h);
        }
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
            v, __byte_perm(even0, even1, 0x5410), __byte_perm(odd0, odd1, 0x5410), factor[0],
            random[0].w[2 * half], random[0].w[2 * half + 1]);
        word[1][half] = encode_column<In, true, kStochastic>(
            v, __byte_perm(even0, even1, 0x7632), __byte_perm(odd0, odd1, 0x7632), factor[1],
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
    general_tile<In, !kStochastic>(p, row0 + part / 2 * kTile, col0 + part % 2 * kTile,
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
  uint32_t most[8];  // As integers: NaN is the largest.
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
    if (!a.scaled_lines) scale = scale_of(a, amax_of(a.rowwise, member), global);
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
    if (!a.scaled_lines) scale = scale_of(a, amax_of(a.colwise, member), global);
    const size_t stride = member.stride;
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    const unsigned group = threadIdx.x % 32 / 4;
    const size_t in_member = row0 - member.first + group * 16;
#pragma unroll 1
    for (unsigned c = threadIdx.x / 32 * 4 + threadIdx.x % 4; c < kWide; c += kWide / 2) {
      uint32_t w[16], largest = 0;
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        w[k] = tile[word_of(group * 16 + k, c)];
        largest = max(largest, w[k] & 0x7fffffff);
      }
      if (a.square) largest = __float_as_uint(squares[group * 4 + c / 16]);
      const size_t line = col0 + c;
      if (a.scaled_lines) scale = scale_of(a, a.colwise.amax + (c < cols ? line : col0), global);
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
      store_bytes<8>(static_cast<uint8_t *>(a.colwise.data) + member.data +
                         (line * member.rows + in_member) / 2,
                     word);
      static_cast<uint8_t *>(a.colwise.scales)[member.scales + scales.index(line, in_member / 16)] =
          static_cast<uint8_t>(code);
    }
  }
  if (!__syncthreads_or(!usual)) return;
  for (int part = 0; part < 2; ++part) {
    general_tile<F32, true>(p, row0 + part * kTile, col0, shared.general);
    __syncthreads();
  }
}

// Whether a cast is one of those of the kernels above.
bool in_large_tiles(const NVTEXNvfp4QuantizeArgs &a) {
  const bool bf16 = a.input_dtype == kNVTEBFloat16, hadamard = a.variant > NVTEX_NVFP4_GENERAL;
  return (bf16 || !(a.fast_math || a.stochastic || hadamard)) && a.choice == NVTEX_NVFP4_SIX &&
         (hadamard ? !a.fast_math && !a.stochastic : a.hadamard == nullptr) && a.rows % 16 == 0 &&
         a.cols % 16 == 0 && a.rows < kLongest && a.cols < kLongest && aligned(a.input, 16) &&
         aligned(a.rowwise.data, 4) && aligned(a.colwise.data, 8);
}

template <class In>
__global__ void __launch_bounds__(kThreads, 2)
    nvfp4_quantize_kernel(const __grid_constant__ Problem p) {
  __shared__ General shared;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (p.a.noop != nullptr && *p.a.noop == 1.0f) return;
  const size_t tiles_across = (p.a.cols + kTile - 1) / kTile;
  general_tile<In, false>(p, blockIdx.x / tiles_across * kTile, blockIdx.x % tiles_across * kTile,
                          shared);
}

// Largest magnitudes of all rows and columns, into zeros: a thread takes 16 bytes of 8 rows.
template <class In>
constexpr int kAmaxCols = 16 * (16 / In::kBytes);
template <class In>
__global__ void __launch_bounds__(kThreads)
    nvfp4_line_amax_kernel(const __grid_constant__ Problem p) {
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  constexpr int N = 16 / In::kBytes;
  __shared__ int columns[kAmaxCols<In>];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (a.noop != nullptr && *a.noop == 1.0f) return;
  if (threadIdx.x < kAmaxCols<In>) columns[threadIdx.x] = 0;
  const unsigned tiles_across = (a.cols + kAmaxCols<In> - 1) / kAmaxCols<In>;
  const unsigned chunk = threadIdx.x % 16, first = threadIdx.x / 16;
  const size_t row0 = size_t{blockIdx.x / tiles_across} * kSide + first;
  const size_t col0 = size_t{blockIdx.x % tiles_across} * kAmaxCols<In> + chunk * N;
  const size_t left = col0 < a.cols ? a.cols - col0 : 0;
  Vec<In, N> x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const size_t row = row0 + 16 * i, at = row * a.cols + col0;
    const size_t inside = row < a.rows ? left : 0;
    x[i] = p.vectorised ? load<In, N>(a.input, at, inside > 0)
                        : load_some<In, N>(a.input, at, inside < N ? inside : N);
  }
  __syncthreads();
  float column[N] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float f[N], most = 0.0f;
    to_float(x[i], f);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      most = fmaxf(most, fabsf(f[k]));
      column[k] = fmaxf(column[k], fabsf(f[k]));
    }
    if (a.rowwise.data == nullptr) continue;
    most = most_of_tile(most);
    const size_t row = row0 + 16 * i;
    if (chunk == 0 && row < a.rows) {
      atomicMax(reinterpret_cast<int *>(a.rowwise.amax) + row, __float_as_int(most));
    }
  }
  if (a.colwise.data == nullptr) return;
#pragma unroll
  for (int k = 0; k < N; ++k) atomicMax(&columns[chunk * N + k], __float_as_int(column[k]));
  __syncthreads();
  const size_t col = col0 - chunk * N + threadIdx.x;
  if (threadIdx.x < kAmaxCols<In> && col < a.cols) {
    atomicMax(reinterpret_cast<int *>(a.colwise.amax) + col, columns[threadIdx.x]);
  }
}

__global__ void __launch_bounds__(kThreads)
    nvfp4_clear_amax_kernel(const __grid_constant__ Problem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (p.a.noop != nullptr && *p.a.noop == 1.0f) return;
  const size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x;
  if (p.a.rowwise.data != nullptr && i < p.a.rows) p.a.rowwise.amax[i] = 0.0f;
  if (p.a.colwise.data != nullptr && i < p.a.cols) p.a.colwise.amax[i] = 0.0f;
}

struct Back {
  NVTEXNvfp4DequantizeArgs a;
  size_t tiles;  // Of scales; 0 if they are compact.
};

// A thread takes a block.
template <class Out>
__global__ void __launch_bounds__(kThreads)
    nvfp4_dequantize_kernel(const __grid_constant__ Back p) {
  const NVTEXNvfp4DequantizeArgs &a = p.a;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t blocks = a.cols / 16, unit = blockIdx.x * size_t{kThreads} + threadIdx.x;
  if (unit >= a.rows * blocks) return;
  const size_t row = unit / blocks, block = unit % blocks;
  const ScaleMatrix scales = {nullptr, a.input.scale_stride, 1, p.tiles, 0};
  const uint8_t code = static_cast<const uint8_t *>(a.input.scales)[scales.index(row, block)];
  const float amax = a.input.amax[a.scaled_lines ? row : 0];
  const float factor = __fmul_rn(__fmul_rn(decode_e4m3(code), amax), __frcp_rn(6.0f * a.e4m3_max));
  const uint8_t *from = static_cast<const uint8_t *>(a.input.data) + unit * 8;
  uint32_t word[2] = {0, 0};
  if (reinterpret_cast<uintptr_t>(from) % 8 == 0) {
    const uint2 both = *reinterpret_cast<const uint2 *>(from);
    word[0] = both.x, word[1] = both.y;
  } else {
    for (int i = 0; i < 8; ++i) word[i / 4] |= from[i] << (i % 4 * 8);
  }
  constexpr int N = 16 / Out::kBytes;
  const bool whole = reinterpret_cast<uintptr_t>(a.output) % 16 == 0;
#pragma unroll
  for (int v = 0; v < 16 / N; ++v) {
    float y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int at = v * N + i;
      y[i] = __fmul_rn(decode_e2m1(word[at / 8] >> (at % 8 * 4) & 15), factor);
    }
    const Vec<Out, N> out = from_float<Out>(y);
    if (whole) {
      store(a.output, unit * 16 + v * N, out);
    } else {
      store_some(a.output, unit * 16 + v * N, N, out);
    }
  }
}

// Rows of the strips in which HADAMARD_COLUMNS counts its words.
size_t strip_rows(size_t rows, size_t cols) {
  if (rows == 8192 || cols == 8192) {
    switch (rows == 8192 ? cols : rows) {
      case 512:
        return 256;
      case 3584:
      case 5120:
        return 512;
      case 10240:
      case 11328:
        return 1024;
      case 2560:
        return 1280;
    }
  }
  return rows < 1024 || cols < 1024 ? 512 : 1024;
}

size_t strip_tiles(const NVTEXNvfp4QuantizeArgs &a) {
  const size_t rows = a.total_rows;
  size_t tiles = ceil_div(rows < 1024 ? rows : 1024, 128);
  if (a.variant == NVTEX_NVFP4_HADAMARD_COLUMNS) {
    const size_t strip = strip_rows(rows, a.cols);
    tiles = (strip < rows ? strip : rows) / 64;
  }
  return tiles > 0 ? tiles : 1;
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_nvfp4_quantize(const NVTEXNvfp4QuantizeArgs *args,
                                                 cudaStream_t stream) noexcept {
  using namespace nvte;
  const size_t blocks = ceil_div(args->rows, kTile) * ceil_div(args->cols, kTile);
  if (blocks > kMaxBlocks) return unimplemented("nvfp4_quantize: more than 2^31 tiles");
  return dispatch<F32, F16, BF16>(args->input_dtype, [&](auto in) {
    using In = decltype(in);
    const bool whole = aligned(args->input, 16) && args->cols % (16 / In::kBytes) == 0;
    const Problem p = {*args, whole, strip_tiles(*args)};
    const dim3 grid(static_cast<unsigned>(blocks));
    if (args->scaled_lines) {
      const size_t longest = args->rows > args->cols ? args->rows : args->cols;
      const dim3 clears(static_cast<unsigned>(ceil_div(longest, kThreads)));
      const NVTEXOutcome cleared = launch(nvfp4_clear_amax_kernel, clears, kThreads, stream, p);
      if (cleared.status != NVTEX_BACKEND_OK) return cleared;
      const dim3 takes(
          static_cast<unsigned>(ceil_div(args->rows, kSide) * ceil_div(args->cols, kAmaxCols<In>)));
      const NVTEXOutcome most = launch(nvfp4_line_amax_kernel<In>, takes, kThreads, stream, p);
      if (most.status != NVTEX_BACKEND_OK) return most;
    }
    if (in_large_tiles(*args)) {
      constexpr int kWide = In::kBytes == 4 ? kSide / 2 : kSide;
      const dim3 tiles(
          static_cast<unsigned>(ceil_div(args->rows, kSide) * ceil_div(args->cols, kWide)));
      if constexpr (std::is_same_v<In, F16>) {
        return launch(nvfp4_halves_kernel<F16, false, false>, tiles, kThreads, stream, p);
      } else if constexpr (std::is_same_v<In, F32>) {
        return launch(nvfp4_floats_kernel, tiles, kThreads, stream, p);
      } else {
        const auto kernel = args->hadamard != nullptr && args->colwise.data != nullptr
                                ? nvfp4_halves_kernel<BF16, true, false>
                            : args->stochastic ? nvfp4_halves_kernel<BF16, false, true>
                                               : nvfp4_halves_kernel<BF16, false, false>;
        return launch(kernel, tiles, kThreads, stream, p);
      }
    }
    return launch(nvfp4_quantize_kernel<In>, grid, kThreads, stream, p);
  });
}

extern "C" NVTEXOutcome nvte_cuda_nvfp4_dequantize(const NVTEXNvfp4DequantizeArgs *args,
                                                   cudaStream_t stream) noexcept {
  using namespace nvte;
  const size_t blocks = ceil_div(args->rows * (args->cols / 16), kThreads);
  if (blocks > kMaxBlocks) return unimplemented("nvfp4_dequantize: more than 2^31 blocks");
  return dispatch<F32, F16, BF16>(args->output_dtype, [&](auto out) {
    const Back p = {*args, args->swizzled ? ceil_div(args->input.scale_stride, 4) : 0};
    return launch(nvfp4_dequantize_kernel<decltype(out)>, dim3(static_cast<unsigned>(blocks)),
                  kThreads, stream, p);
  });
}
