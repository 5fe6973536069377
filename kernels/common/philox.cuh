// Random words by counter.
#pragma once

#include <cstdint>

namespace nvte {

struct Words {
  uint32_t w[4];
};

// Philox4x32-10.
__device__ __forceinline__ Words philox(uint64_t key, uint64_t low, uint64_t high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t x = static_cast<uint32_t>(low), y = static_cast<uint32_t>(low >> 32);
  uint32_t z = static_cast<uint32_t>(high), w = static_cast<uint32_t>(high >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x, b = uint64_t{0xCD9E8D57} * z;
    x = static_cast<uint32_t>(b >> 32) ^ y ^ k0;
    y = static_cast<uint32_t>(b);
    z = static_cast<uint32_t>(a >> 32) ^ w ^ k1;
    w = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{x, y, z, w}};
}

}  // namespace nvte
