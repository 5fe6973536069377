// Fetches into L2 of what the first blocks of a launch are about to load, while the launch before
// it ends: data may be fetched before what is in them is there. H200, bf16 to fp8, us without and
// with: 512 x 1024 2.05 and 1.61, in both directions 2.07 and 1.63 (tiles of 128 x 64); 8192 x 8192
// 47.4 and 47.2, 68.7 and 68.2.
#pragma once

#include "launch.cuh"
#include "vec.cuh"

namespace nvte {

// Blocks that are fetched for: those of more would come when the loads do.
constexpr unsigned kFetchBlocks = 400;

__device__ __forceinline__ void fetch_line(const void *p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// Fetches kRows rows of kBytes bytes, which lie `pitch` bytes apart, as far as they are inside of
// the matrix: `height` rows and `width` bytes of each.
template <int kThreads, int kRows, int kBytes>
__device__ __forceinline__ void fetch_tile(const char *first, size_t pitch, int height, int width) {
  constexpr int kLines = (kBytes + 127) / 128;
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kLines; i += kThreads) {
    const int row = i / kLines, at = i % kLines * 128;
    if (row < height && at < width) fetch_line(first + row * pitch + at);
  }
}

}  // namespace nvte
