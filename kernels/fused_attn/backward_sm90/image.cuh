// Images of FP8 tensors, see fp8_layout.cuh: their rows are elements of a head.
#pragma once

#include "common/tile.cuh"
#include "common/vec.cuh"
#include "problem.cuh"

namespace nvte {
namespace sm90_backward {

// Codes of a block of rows of a tensor on their way to an image of it, in shared memory.
template <int kRows, int kD>
struct CodeTile {
  static_assert(kRows == 64 || kRows == 128, "rows of an image have 64 or 128 bytes");
  static constexpr int kUnits = kRows / 16;  // Units of 16 bytes in a row of the image.
  static constexpr int kWriters = kUnits * kD / 4;
  uint32_t words[kRows][kD / 4 + 1];

  // By all threads of a block; zeros from row `rows` on and from element `dim` on.
  __device__ __forceinline__ void fill(const uint8_t *from, int64_t step, int rows, int dim) {
    constexpr int kEights = kD / 8;
#pragma unroll
    for (int i = 0; i < kRows * kEights / kHelperThreads; ++i) {
      const int at = i * kHelperThreads + static_cast<int>(threadIdx.x);
      const int r = at / kEights, eight = at % kEights;
      const Vec<E4M3, 8> v = load<E4M3, 8>(from, static_cast<size_t>(r * step + eight * 8),
                                           r < rows && eight * 8 < dim);
      words[r][2 * eight] = v.w[0];
      words[r][2 * eight + 1] = v.w[1];
    }
  }
  // By kWriters threads with the numbers from 0 on, each of which has 16 rows of four elements.
  // kOfKeys: the image is that of keys, else of queries or do.
  template <bool kOfKeys>
  __device__ __forceinline__ void write(uint8_t *image, int thread) const {
    if (thread < 0 || thread >= kWriters) return;
    const int unit = thread % kUnits, first = thread / kUnits * 4;
    uint32_t out[4][4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const auto word = [&](int r) { return words[16 * unit + 2 * t + r][first / 4]; };
      const uint32_t w[4] = {word(0), word(kOfKeys ? 8 : 1), word(kOfKeys ? 1 : 8), word(9)};
      uint32_t columns[4];  // Byte i of word j becomes byte j of word i.
      transpose_words<4>(w, columns);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i][t] = columns[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + i, turned = unit ^ (kRows == 128 ? row & 7 : row >> 1 & 3);
      *reinterpret_cast<uint4 *>(image + row * kRows + turned * 16) =
          make_uint4(out[i][0], out[i][1], out[i][2], out[i][3]);
    }
  }
};

}  // namespace sm90_backward
}  // namespace nvte
