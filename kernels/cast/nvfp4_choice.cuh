// Casts to NVFP4 of whole blocks of BF16 that choose between two scales, in tiles of 128 rows and
// columns: a thread takes four blocks of rows, then four of columns.
//
// A candidate's error needs what its codes stand for, each of which is a product of the block's
// scale and the tensor's amax, divided and rounded. These depend on the code's value 2^k or
// 1.5 * 2^k alone, and powers of two change nothing but exponents while no number leaves the normal
// range. So two such values are computed for each block, and the others by an exact product. A tile
// in which a number might leave the range, or is a NaN, is cast again in the general way.
#pragma once

#include "nvfp4_tiles.cuh"

namespace nvte {
namespace {

// What all blocks of a tensor need.
struct ChoiceScale {
  Nvfp4Scale scale;
  float global, amax;
  float full, inverse_full;  // The largest product of both formats' numbers.
};

// Codes of magnitudes, eight in a word, with the code of their scale; the error as it grows.
struct Candidate {
  uint32_t word[2];
  uint32_t scale;
  float error;
};

// What the eight codes stand for: a thread's table, of which the addresses are 4 kThreads apart.
__device__ __forceinline__ void put_value(uint32_t table, int code, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(table + code * (4 * kThreads)), "f"(value)
               : "memory");
}
// `code` as e2m1_magnitude gives it: its exponent is shifted out of the address.
__device__ __forceinline__ float value_of(uint32_t table, uint32_t code) {
  static_assert(4 * kThreads == 1 << 10, "shifts the exponent of 2^23 out");
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"((code << 10) + table));
  return value;
}

// `base`: the scale before it is rounded. False if the block needs the general way.
template <bool kSquares, bool kFastError>
__device__ __forceinline__ bool try_scale(const ChoiceScale &c, const float (&x)[16], float most,
                                          float base, uint32_t table, Candidate &candidate) {
  constexpr float kTiny = 0x1p-100f;
  candidate.scale = encode_e4m3(fminf(base, 448.0f));
  const float s = decode_e4m3(candidate.scale);
  const float product = fmaxf(__fmul_rn(s, c.scale.inverse), kTiny);
  float about;
  // The reciprocal of a number in this range is exact to the last bit after one step.
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(about) : "f"(product));
  const float factor = __fmaf_rn(about, __fmaf_rn(-product, about, 1.0f), about);
  bool usual = (product > kTiny) | (most == 0.0f);
  usual &= __fmul_rn(most, factor) < 7.0f;
  if constexpr (!kFastError) {
    const float largest = __fmul_rn(s, c.amax);
    usual &= (largest == 0.0f) | ((largest > 0x1p-80f) & (largest < 0x1p100f));
    if (!usual) return false;  // A code might be none of the table's.
    float value[2];            // What the codes of 1 and of 1.5 stand for.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float whole = __fmul_rn(i == 0 ? s : __fmul_rn(s, 1.5f), c.amax);
      const float near = __fmul_rn(whole, c.inverse_full);
      value[i] = __fmaf_rn(__fmaf_rn(-near, c.full, whole), c.inverse_full, near);
    }
    put_value(table, 1, 0.5f * value[0]);
#pragma unroll
    for (int i = 0; i < 6; ++i) put_value(table, 2 + i, value[i % 2] * (1 << i / 2));
  }
  float error = 0.0f;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t code[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float magnitude = fabsf(x[half * 8 + i]);
      code[i] = e2m1_magnitude(__fmul_rn(magnitude, factor));
      float stands_for;
      if constexpr (kFastError) {
        // As float32 with the exponents of E2M1 in the lowest places; the shift drops what is above
        // the code.
        const float decoded = __fmul_rn(__uint_as_float(code[i] << 22), 0x1p126f);
        stands_for = __fmul_rn(decoded, s);
      } else {
        stands_for = value_of(table, code[i]);
      }
      // The error has the same magnitude without signs.
      const float d =
          __fsub_rn(stands_for, kFastError ? __fmul_rn(magnitude, c.global) : magnitude);
      error = __fadd_rn(error, kSquares ? __fmul_rn(d, d) : fabsf(d));
    }
    candidate.word[half] = sum_of_codes(code);
  }
  candidate.error = error;
  return usual;
}

// The better one of two candidates, six where both are as good.
template <bool kSquares, bool kFastError>
__device__ __forceinline__ bool choose_scale(const ChoiceScale &c, const float (&x)[16], float most,
                                             uint32_t table, Candidate &best) {
  // One correction step makes the last bit of the sixth right.
  const float near = __fmul_rn(most, 1.0f / 6.0f);
  const float sixth = __fmaf_rn(__fmaf_rn(-near, 6.0f, most), 1.0f / 6.0f, near);
  const float base = __fmul_rn(sixth, c.global);
  Candidate four = {};
  best = {};
  bool usual = most == 0.0f || most > 0x1p-80f;
  usual &= try_scale<kSquares, kFastError>(c, x, most, base, table, best);
  usual &= try_scale<kSquares, kFastError>(c, x, most, __fmul_rn(base, 1.5f), table, four);
  const bool better = four.error < best.error;
  best.word[0] = better ? four.word[0] : best.word[0];
  best.word[1] = better ? four.word[1] : best.word[1];
  best.scale = better ? four.scale : best.scale;
  return usual;
}

template <bool kSquares, bool kFastError>
__global__ void __launch_bounds__(kThreads, 2)
    nvfp4_choice_kernel(const __grid_constant__ Problem p) {
  using In = BF16;
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  __shared__ union alignas(16) {
    uint32_t tile[kSide * kSide / 2];
    General general;
  } shared;
  __shared__ float values[kFastError ? 1 : 8][kThreads];
  uint32_t *const tile = shared.tile;
  const auto table = static_cast<uint32_t>(__cvta_generic_to_shared(&values[0][threadIdx.x]));
  if (!kFastError) values[0][threadIdx.x] = 0.0f;
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
  bool usual = true;
  auto scale_for = [&](const NVTEXNvfp4Lines &lines) {
    ChoiceScale c;
    const float *amax = amax_of(lines, member);
    c.scale = scale_of(a, amax, c.global);
    c.amax = amax != nullptr ? *amax : 0.0f;
    c.full = 6.0f * a.e4m3_max;
    c.inverse_full = __frcp_rn(c.full);
    usual &= usual_scale(c.scale, false, c.global);
    return c;
  };
  if (a.rowwise.data != nullptr) {
    const ChoiceScale c = scale_for(a.rowwise);
    const size_t stride = a.rowwise.scale_stride;
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    const unsigned block = threadIdx.x % 8;
#pragma unroll 1
    for (unsigned row = threadIdx.x / 8; row < kSide; row += kThreads / 8) {
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
        x[2 * i] = Pair<In>::low(w[i]), x[2 * i + 1] = Pair<In>::high(w[i]);
      }
      Candidate best;
      usual &= choose_scale<kSquares, kFastError>(c, x, largest_of<In>(most), table, best);
      if (row >= rows || block * 16 >= cols) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t *v = w + half * 4;
        // Bytes 1 and 3 of each word have the signs of its elements.
        const uint32_t low = __byte_perm(v[0], v[1], 0x7351);
        const uint32_t high = __byte_perm(v[2], v[3], 0x7351);
        best.word[half] = with_signs(best.word[half], __byte_perm(low, high, 0x5410),
                                     __byte_perm(low, high, 0x7632));
      }
      store_bytes<8>(
          static_cast<uint8_t *>(a.rowwise.data) + ((row0 + row) * a.cols + col0 + block * 16) / 2,
          best.word);
      static_cast<uint8_t *>(a.rowwise.scales)[scales.index(row0 + row, col0 / 16 + block)] =
          static_cast<uint8_t>(best.scale);
    }
  }
  if (a.colwise.data != nullptr) {
    const ChoiceScale c = scale_for(a.colwise);
    const size_t stride = stride_of(a, member);
    const ScaleMatrix scales = {nullptr, stride, 1, a.swizzled ? (stride + 3) / 4 : 0, 0};
    const unsigned group = threadIdx.x % 32 / 4;
    const size_t in_member = row0 - member.first + group * 16;
#pragma unroll 1
    for (unsigned pair = threadIdx.x / 32 * 4 + threadIdx.x % 4; pair < kSide / 2;
         pair += kSide / 4) {
      const uint32_t *const from = tile + word_of(group * 16, pair);
      uint32_t w[16], most = 0;
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        w[k] = from[k * (kSide / 2)];
        most = Pair<In>::larger(most, w[k]);
      }
      most &= 0x7fff7fff;
#pragma unroll 1
      for (int h = 0; h < 2; ++h) {
        float x[16];
#pragma unroll
        for (int k = 0; k < 16; ++k) x[k] = Pair<In>::high(w[k] << (h ? 0 : 16));
        Candidate best;
        usual &= choose_scale<kSquares, kFastError>(c, x, Pair<In>::high(most << (h ? 0 : 16)),
                                                    table, best);
        if (2 * pair >= cols || group * 16 >= rows) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // The signs of this column: byte 1 or 3 of each word.
          uint32_t sign[2];
          const unsigned bytes = h ? 0x0073 : 0x0051;
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const uint32_t *v = w + half * 8 + odd;
            sign[odd] =
                __byte_perm(__byte_perm(v[0], v[2], bytes), __byte_perm(v[4], v[6], bytes), 0x5410);
          }
          best.word[half] = with_signs(best.word[half], sign[0], sign[1]);
        }
        const size_t line = col0 + 2 * pair + h;
        store_bytes<8>(static_cast<uint8_t *>(a.colwise.data) + member.first * a.cols / 2 +
                           (line * member.rows + in_member) / 2,
                       best.word);
        static_cast<uint8_t *>(
            a.colwise.scales)[member.first * a.cols / 16 + scales.index(line, in_member / 16)] =
            static_cast<uint8_t>(best.scale);
      }
    }
  }
  if (!__syncthreads_or(!usual)) return;
  for (int part = 0; part < 4; ++part) {
    general_tile<In, false>(p, row0 + part / 2 * kTile, col0 + part % 2 * kTile, shared.general);
    __syncthreads();
  }
}

}  // namespace
}  // namespace nvte
