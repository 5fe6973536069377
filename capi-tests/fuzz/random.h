// Random numbers (splitmix64), and what becomes of numbers that are changed.
#ifndef NVTE_FUZZ_RANDOM_H
#define NVTE_FUZZ_RANDOM_H

#include <cmath>
#include <iterator>

#include "report.h"

namespace {

uint64_t random_u64() {
  uint64_t z = (g.rng += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

size_t below(size_t n) { return (size_t)(random_u64() % n); }

bool one_in(size_t n) { return below(n) == 0; }

uint64_t changed_integer(uint64_t x) {
  const uint64_t values[] = {0,
                             1,
                             (uint64_t)-1,
                             x + 1,
                             x - 1,
                             x + 1,
                             x - 1,
                             x * 2,
                             x / 2,
                             x + 16,
                             0 - x,
                             1ull << 31,
                             (1ull << 31) - 1,
                             (1ull << 32) + 1,
                             1ull << 63,
                             (1ull << 63) - 1,
                             (1ull << 62) + 1,
                             below(8),
                             below(300),
                             random_u64()};
  return values[below(std::size(values))];
}

float changed_float(float x) {
  const float values[] = {0,        -0.0f,     1,   -1,    x * 2,  -x,   1e-45f,
                          INFINITY, -INFINITY, NAN, 3e38f, 1e-30f, x + 1};
  return values[below(std::size(values))];
}

void changed(const char *format, ...) __attribute__((format(printf, 1, 2)));
void changed(const char *format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  g.changes += g.changes.empty() ? "" : "; ";
  g.changes += text;
}

// Changes an integer of 1, 4 or 8 bytes.
void change_bytes(void *at, size_t size, const std::string &name) {
  uint64_t x = 0;
  memcpy(&x, at, size);
  if (size == 4) x = (uint64_t)(int64_t)(int32_t)x;
  uint64_t y = changed_integer(x);
  memcpy(at, &y, size);
  changed("%s: %lld -> %lld", name.c_str(), (long long)x, (long long)(size == 4 ? (int32_t)y : y));
}

}  // namespace

#endif  // NVTE_FUZZ_RANDOM_H
