// The epilogue of a tile of queries: output, statistics and the largest magnitudes for FP8.
#pragma once

#include "common/vec.cuh"
#include "softmax.cuh"

namespace nvte {
namespace sm90_forward {

// Among four lanes, word i of lane l becomes word l of lane i.
__device__ __forceinline__ void transpose_words(uint32_t (&w)[4]) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool high = threadIdx.x & static_cast<unsigned>(step);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const uint32_t got = __shfl_xor_sync(0xffffffff, high ? w[i] : w[i + step], step);
      w[i] = high ? got : w[i];
      w[i + step] = high ? w[i + step] : got;
    }
  }
}

// FP8: the largest probability and the largest magnitude of the output that a thread has had.
struct Amax {
  float s = 0.0f, o = 0.0f;
};

// Writes the output, as elements of Out, and the statistics of a consumer's rows of a tile.
template <class C, class Out>
__device__ __forceinline__ void write_tile(const Params &p, const Tile &t, int w,
                                           float (&o)[C::kDimV / 2], const Softmax<C> &softmax,
                                           float scale_log2, Amax &amax) {
  // The thread's number is read again: values computed from it would otherwise wait in registers.
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  thread = static_cast<int>(static_cast<unsigned>(thread) % 128);
  const int lane = thread % 32;
  const int end = p.q_side.ragged() ? t.rows : p.q_side.max_seqlen;
  const int64_t first = p.q_side.first(t.batch), batch = p.q_side.ragged() ? 0 : t.batch;
  float o_scale = 1.0f, v_scale = 1.0f;
  if constexpr (C::kFp8) {
    v_scale = factor_of(p.v_scale_inv) * factor_of(p.s_scale) * factor_of(p.s_scale_inv);
    if (kIsFp8<Out>) o_scale = factor_of(p.o_scale);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = t.m + 64 * w + thread / 32 * 16 + lane / 4 + 8 * h;
    float sum = softmax.sum[h];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    const bool empty = r >= t.rows || softmax.max[h] == -INFINITY || (C::kBias && sum == 0.0f);
    const float max = empty ? -INFINITY : softmax.max[h] * (scale_log2 * kLn2);
    // The logarithm of what the sum has to be multiplied by.
    float unit = max;
    if constexpr (C::kFp8) {
      unit = empty ? -INFINITY : Softmax<C>::base_of(softmax.max[h], scale_log2) * kLn2;
    }
    float stats = unit, factor = 1.0f;
    if (p.sink != nullptr) {
      const float sink = p.sink[t.head];
      stats = fmaxf(unit, sink);
      factor = power2((unit - stats) * kLog2e);
      sum = sum * factor + power2((sink - stats) * kLog2e + C::kLog2Boost);
    }
    factor = __fdividef(factor, sum);
    if constexpr (C::kDropout) factor *= p.keep_factor;
    stats = empty ? -INFINITY : stats + (__log2f(sum) - C::kLog2Boost) * kLn2;
    if (lane % 4 == 0 && r < end) {
      const int64_t at = p.stats_at(t, r);
      p.stats[at] = stats;
      if (p.max != nullptr) p.max[at] = max;
    }
    if constexpr (C::kFp8) {
      if (!empty) amax.s = fmaxf(amax.s, power2((max - stats) * kLog2e));
      factor *= v_scale;
    }
    // The four lanes of a row have two columns each in turn. They exchange, so that each of them
    // writes 16 bytes.
    constexpr int kEach = 16 / Out::kBytes;
    using Element = typename Out::Bits;
    Element *const to = static_cast<Element *>(p.o) + batch * p.o_batch + (first + r) * p.o_row +
                        t.head * p.o_head + kEach * (lane % 4);
#pragma unroll
    for (int j = 0; j < C::kDimV / 8; j += kEach / 2) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x[4 / Out::kBytes];
#pragma unroll
        for (int e = 0; e < 4 / Out::kBytes; ++e) {
          float &from = o[4 * (j + i * (4 / Out::kBytes) / 2 + e / 2) + 2 * h + e % 2];
          // Keeps the compiler from working on several groups at a time, which needs registers.
          asm volatile("" : "+f"(from));
          x[e] = empty ? 0.0f : from * factor;
          if constexpr (C::kFp8) {
            amax.o = fmaxf(amax.o, fabsf(x[e]));
            x[e] *= o_scale;
          }
        }
        words[i] = Out::from_float(x);
      }
      transpose_words(words);
      if constexpr (kIsFp8<Out>) {
        // A word has two of the lane's first eight columns and two of its second eight.
        const uint32_t low[2] = {__byte_perm(words[0], words[1], 0x5410),
                                 __byte_perm(words[2], words[3], 0x5410)};
        words[3] = __byte_perm(words[2], words[3], 0x7632);
        words[2] = __byte_perm(words[0], words[1], 0x7632);
        words[0] = low[0];
        words[1] = low[1];
      }
      if (r < end && 8 * j + kEach * (lane % 4) < p.dim_v) {
        store_bytes<16>(to + 8 * j, words);
      }
    }
  }
}

// Writes the results of a tile of queries that sees no key.
__device__ __forceinline__ void write_nothing(const Params &p, const Tile &t, int w) {
  const bool wide = p.o_dtype == kNVTEBFloat16 || p.o_dtype == kNVTEFloat16;
  const int end = p.q_side.ragged() ? t.rows : p.q_side.max_seqlen;
  const int units = p.dim_v / (wide ? 8 : 16), bytes = wide ? 2 : 1;
  const int64_t first = p.q_side.first(t.batch), batch = p.q_side.ragged() ? 0 : t.batch;
  const int thread = static_cast<int>(threadIdx.x) % 128, begin = t.m + 64 * w;
  const int rows = end - begin < 64 ? end - begin : 64;
#pragma unroll 1
  for (int i = thread; i < rows * units; i += 128) {
    const uint32_t zeros[4] = {};
    const int64_t at =
        batch * p.o_batch + (first + begin + i / units) * p.o_row + t.head * p.o_head;
    store_bytes<16>(static_cast<char *>(p.o) + at * bytes + i % units * 16, zeros);
  }
  if (thread >= rows) return;
  const int64_t at = p.stats_at(t, begin + thread);
  p.stats[at] = -INFINITY;
  if (p.max != nullptr) p.max[at] = -INFINITY;
}

}  // namespace sm90_forward
}  // namespace nvte
