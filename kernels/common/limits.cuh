// What a block of threads may have on the architectures that the kernels know.
#pragma once

#include <cstddef>

namespace nvte {

// Bytes of shared memory at most, static and dynamic together, by compute capability as 10 * major
// + minor.
constexpr size_t most_shared(int arch) {
  switch (arch) {
    case 80:
      return 163 * 1024;
    case 90:
    case 100:
      return 227 * 1024;
    default:  // 8.6, 8.9 and 12.0
      return 99 * 1024;
  }
}

// Bytes of dynamic shared memory of a kernel for every architecture. What is left is for its
// variables.
constexpr size_t kSharedAnywhere = most_shared(89) - 2 * 1024;

}  // namespace nvte
