// What the kernels on rows of tokens share: where packed sequences begin, and how threads share
// rows.
#pragma once

#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "nvte/backend/fused_attn.h"

namespace nvte {

constexpr int kThreads = 256;

// First tokens of sequences.
struct Sequences {
  const int32_t *cu;
  size_t count;

  __device__ __forceinline__ size_t start(size_t s, unsigned unit) const {
    return static_cast<unsigned>(cu[s]) / unit;
  }
  __device__ __forceinline__ size_t length(size_t s) const {
    const int n = cu[s + 1] - cu[s];
    return n > 0 ? static_cast<size_t>(n) : 0;
  }
  // The sequence of a token; empty sequences are skipped.
  __device__ size_t of(size_t token, unsigned unit) const {
    size_t low = 0, high = count;
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (start(middle + 1, unit) <= token) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < count ? low : count - 1;
  }
};

// Token i of a rank.
__device__ inline size_t of_rank(const Sequences &sequences, size_t i, size_t rank, size_t world) {
  const unsigned unit = static_cast<unsigned>(world);
  const size_t s = sequences.of(i, unit), first = sequences.start(s, unit);
  const size_t half = (sequences.start(s + 1, unit) - first) / 2, r = i - first;
  return r + first * world + half * (r < half ? rank : 2 * (world - 1) - rank);
}

// Threads that share a row: a power of two, at most a warp.
inline int lanes_of(size_t bytes, int unit) {
  int lanes = 1;
  while (lanes < 32 && static_cast<size_t>(lanes) * static_cast<size_t>(unit) < bytes) lanes *= 2;
  return lanes;
}

inline unsigned blocks_for(size_t rows, int lanes) {
  const size_t blocks = ceil_div(rows, static_cast<size_t>(kThreads / lanes));
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

}  // namespace nvte
