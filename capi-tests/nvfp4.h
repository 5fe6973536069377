// NVFP4 numbers, scales and random words as their definition has them (optim_nvfp4.md, sections 8,
// 9).
#ifndef NVTE_CAPI_TESTS_NVFP4_H
#define NVTE_CAPI_TESTS_NVFP4_H

#include "support.h"

static inline size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static const double kE2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

static inline unsigned e2m1(float x) {
  if (isnan(x)) return 7;
  double a = fabs((double)x);
  unsigned best = 0;
  for (unsigned code = 1; code < 8; code++) {
    double was = fabs(a - kE2m1[best]), is = fabs(a - kE2m1[code]);
    if (is < was || (is == was && code % 2 == 0)) best = code;
  }
  if (isinf(x)) best = 7;
  return best | (signbit(x) ? 8 : 0);
}

static inline double e2m1_value(unsigned code) { return code & 8 ? -kE2m1[code & 7] : kE2m1[code]; }

static inline unsigned e4m3(float x) { return encode_bits(kNVTEFloat8E4M3, x); }
static inline float e4m3_value(unsigned code) { return (float)decode_bits(kNVTEFloat8E4M3, code); }

static inline float global_scale(float amax, float e4m3_max) {
  float scale = fminf(e4m3_max * 6 / amax, FLT_MAX);
  return amax == 0 || scale == 0 ? 1 : scale;
}

static inline unsigned stochastic(float y, unsigned byte) {
  if (isnan(y)) return 7;
  float a = fabsf(y), step = a >= 4 ? 2 : a >= 2 ? 1 : 0.5f;
  float t = (float)((double)byte / 256 * step + a);
  float r = fminf(floorf(t / step) * step, 6);
  return e2m1(copysignf(r, y));
}

static inline void philox(uint64_t seed, uint64_t offset, uint64_t sequence, uint64_t call,
                          uint32_t words[4]) {
  uint64_t low = offset + call, high = sequence + (low < offset);
  uint32_t c[4] = {(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)};
  uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)0xD2511F53 * c[0], b = (uint64_t)0xCD9E8D57 * c[2];
    uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ key[0], (uint32_t)b,
                        (uint32_t)(a >> 32) ^ c[3] ^ key[1], (uint32_t)a};
    memcpy(c, next, sizeof c);
    key[0] += 0x9E3779B9, key[1] += 0xBB67AE85;
  }
  memcpy(words, c, sizeof c);
}

// Index of a scale of `line`, compact or in tiles.
static inline size_t scale_index(size_t line, size_t block, size_t stride, bool swizzled) {
  if (!swizzled) return line * stride + block;
  return (line / 128 * ((stride + 3) / 4) + block / 4) * 512 + line % 32 * 16 +
         line % 128 / 32 * 4 + block % 4;
}

#endif  // NVTE_CAPI_TESTS_NVFP4_H
