// What a kernel of grouped products knows of its members, and how their results are cut into tiles.
#pragma once

#include <climits>

#include "common/tma.cuh"
#include "nvte/backend/grouped_gemm.h"

namespace nvte {
namespace sm90_grouped {

constexpr int kRows = 128;  // Rows of a tile.
// A copy brings 64 rows of an operand, 128 bytes of the inner dimension of each.
constexpr int kChunk = 64;
constexpr int kChunkBytes = kChunk * 128;
// The largest dimension of a member: positions have 32 bits, in bytes.
constexpr size_t kMaxSize = INT_MAX / 4;

// How results of a member get to D: by ordinary stores, by bulk copies, or by bulk additions to
// what is there.
enum class Stores { kWords, kBulk, kBulkAdd };

// One member, D = alpha B A^T + beta C. Everywhere `rows` stands for B, whose rows are those of D,
// and `cols` for A, whose rows are D's columns.
struct Problem {
  CUtensorMap rows_map, cols_map;
  CUtensorMap d_map;  // Unless `stores` is kWords.
  const void *rows_data, *cols_data;
  const void *rows_scales, *cols_scales;  // Scales in modes with more than one scale.
  const void *c;
  void *d;
  float alpha, beta;
  int n, m, k;
  Stores stores;
  bool bulk;  // The maps can be used: addresses and pitches are multiples of 16 bytes.
};

struct Params {
  const Problem *problems;
  const unsigned *first;  // The first pair of tiles of each member, and the number of all pairs.
  unsigned *next;         // The first pair that no cluster has taken.
  unsigned count;
  NVTEDType d_dtype;
  NVTEScalingMode rows_mode, cols_mode;
  bool rows_e5m2, cols_e5m2, rows_swizzled, cols_swizzled;  // Formats and order of scales in MXFP8.
};

__host__ __device__ constexpr unsigned tiles(unsigned n, unsigned of) {
  return n / of + (n % of != 0);
}

// How the rows of tiles of a member are worked on: in pairs, one below the other, and the last one
// or two of them alone. Two are alone if the last one has no rows in its lower half, because beside
// a whole tile it would wait for that.
struct Strips {
  unsigned pairs, single;

  __host__ __device__ explicit Strips(unsigned n) {
    const unsigned all = tiles(n, kRows), last = n % kRows;
    single = all % 2 != 0 ? 1 : all > 0 && last > 0 && last <= kRows / 2 ? 2 : 0;
    pairs = (all - single) / 2;
  }
};

// Pairs of tiles of a member, of `tile_cols` columns each; or runs of at most `run` pairs that lie
// side by side.
__host__ __device__ inline size_t pairs_of(unsigned n, unsigned m, unsigned tile_cols,
                                           unsigned run) {
  const unsigned col_tiles = tiles(m, tile_cols);
  const Strips strips(n);
  return size_t{strips.pairs} * tiles(col_tiles, run) +
         size_t{strips.single} * tiles(tiles(col_tiles, 2), run);
}

// Most tiles of a run of kShort, see there.
constexpr unsigned kRun = 14;
// Lines of results that a warp of kShort stores at a time.
constexpr int kShortLines = 16;

}  // namespace sm90_grouped
}  // namespace nvte
