// Casts to NVFP4 in the general way, which takes every variant, size and alignment. A block of
// threads takes a tile of 64 rows and columns, a thread a block of 16 elements of each direction;
// the 16 lines of a square block are those of half a warp.
#pragma once

#include "nvfp4_problem.cuh"

namespace nvte {
namespace {

// Rounds y to one of the two neighbours by a random byte.
__device__ __forceinline__ uint32_t encode_stochastic(float y, uint32_t byte) {
  const float a = fabsf(y);
  const float step = a >= 4.0f ? 2.0f : a >= 2.0f ? 1.0f : 0.5f;
  const float per_step = a >= 4.0f ? 0.5f : a >= 2.0f ? 1.0f : 2.0f;
  const float t = __fmaf_rn(__fmul_rn(static_cast<float>(byte), 1.0f / 256.0f), step, a);
  const float down = fminf(__fmul_rn(floorf(__fmul_rn(t, per_step)), step), kE2m1Max);
  return encode_e2m1(y == y ? copysignf(down, y) : y);
}

// The codes of 16 elements and the scale that belongs to them.
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

// The maximum over half a warp, whose 16 lanes have the 16 lines of a square block.
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

// One of the two candidates of 4over6: how far its codes are from elements.
struct Distance {
  bool squares, fast, usual;
  float s, amax, global, full, rcp;

  __device__ __forceinline__ Distance(const NVTEXNvfp4QuantizeArgs &a, uint32_t scale, float amax,
                                      float global)
      : squares(a.choice == NVTEX_NVFP4_LEAST_SQUARES),
        fast(a.fast_error),
        s(decode_e4m3(scale)),
        amax(amax),
        global(global),
        full(6.0f * a.e4m3_max) {
    rcp = __frcp_rn(full);
    const float largest = __fmul_rn(s, amax);
    usual = largest == 0.0f || (largest > 0x1p-80f && largest < 0x1p100f);
  }
  __device__ __forceinline__ float operator()(float x, uint32_t code) const {
    const float value = __fmul_rn(decode_e2m1(code), s);
    float d;
    if (fast) {
      d = __fsub_rn(value, __fmul_rn(x, global));
    } else {
      // For 2688 and for 1536 one correction step makes the last bit of every quotient right.
      const float product = __fmul_rn(value, amax), about = __fmul_rn(product, rcp);
      const float quotient = usual ? __fmaf_rn(__fmaf_rn(-about, full, product), rcp, about)
                                   : __fdiv_rn(product, full);
      d = __fsub_rn(quotient, x);
    }
    return squares ? __fmul_rn(d, d) : fabsf(d);
  }
};

// Its codes; returns the sum of the distances.
__device__ float candidate(const NVTEXNvfp4QuantizeArgs &a, const float (&x)[16], float base,
                           float amax, float global, const Nvfp4Scale &scale, Codes &codes) {
  codes.scale = encode_e4m3(fminf(base, 448.0f));
  const float factor = nvfp4_multiplier(codes.scale, scale);
  float y[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) y[i] = __fmul_rn(x[i], factor);
  pack(y, codes.word);
  const Distance distance(a, codes.scale, amax, global);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    sum = __fadd_rn(sum, distance(x[i], codes.word[i / 8] >> (i % 8 * 4) & 15));
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
  const Words words = Generator(a)(random_call(p, colwise, r, c));
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
    // Of two neighbouring half warps the second takes the next block along the lines, which avoids
    // bank conflicts.
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
    const size_t stride = colwise ? stride_of(a, member) : lines.scale_stride;
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    const size_t left = length - from;
    static_cast<uint8_t *>(
        lines.scales)[(colwise ? member.first * a.cols / 16 : 0) + scales.index(line, from / 16)] =
        static_cast<uint8_t>(codes.scale);
    store_codes(static_cast<uint8_t *>(lines.data) + (colwise ? member.first * a.cols / 2 : 0) +
                    (line * length + from) / 2,
                codes.word, left < 16 ? static_cast<int>(left) : 16);
  }
}

}  // namespace
}  // namespace nvte
