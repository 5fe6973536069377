// Elements of tensors as floats, for the examples that compute on the host.
#ifndef EXAMPLE_ELEMENTS_H
#define EXAMPLE_ELEMENTS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "nvte/plugin.h"

// What the examples take of dtypes, for NVTEXImpl.dtypes.
#define EXAMPLE_DTYPES ((1u << kNVTEFloat32) | (1u << kNVTEBFloat16))

static inline float load(NVTEDType dtype, const void *data, size_t i) {
  if (dtype == kNVTEFloat32) return ((const float *)data)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// The nearest number that has the dtype; of two that are equally near the even one.
static inline float rounded(NVTEDType dtype, float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (dtype == kNVTEFloat32 || isnan(x)) return x;
  bits += 0x7FFF + (bits >> 16 & 1);
  bits &= 0xFFFF0000;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline void store(NVTEDType dtype, void *data, size_t i, float x) {
  x = rounded(dtype, x);
  if (dtype == kNVTEFloat32) {
    ((float *)data)[i] = x;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  ((uint16_t *)data)[i] = isnan(x) ? 0x7FFF : (uint16_t)(bits >> 16);
}

#endif  // EXAMPLE_ELEMENTS_H
