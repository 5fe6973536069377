// An instance of the kernel of grouped products: its constants, and what lies where in shared
// memory.
#pragma once

#include <type_traits>

#include "common/dtype.cuh"
#include "common/limits.cuh"
#include "common/pipeline.cuh"
#include "instance.cuh"

namespace nvte {
namespace sm90_grouped {

// Pairs of row tiles whose columns are walked together, for the sake of L2.
constexpr unsigned kBand = 8;
// Tiles that the producer may be ahead of the consumers.
constexpr int kTiles = 2;
// Columns of results that a warp stages in shared memory at a time, and floats from one row of them
// to the next: so many that the stores of a warp meet no bank twice.
constexpr int kStagingCols = 32, kStagingPitch = 40;
// Registers of a thread of three warpgroups, whose sum is 504: what they all have at first.
constexpr int kConsumerRegisters = 216, kProducerRegisters = 72;
constexpr int kProducerBarrier = 1;  // The hardware barrier of the producer's warpgroups.
constexpr int kStoreBarrier = 2;  // That of the first consumer's stores; the second has the next.

template <class In_, Kind kKind, bool kMnRows_, bool kMnCols_>
struct Config {
  using In = In_;
  static constexpr int kBytes = std::is_same_v<In, BF16> || std::is_same_v<In, F16> ? 2 : 1;
  static constexpr bool kMx = kKind == Kind::kMx, kMxCast = kKind == Kind::kMxCast;
  static constexpr bool kPromote = promotes(kKind);
  static constexpr bool kBulkStores = stores_in_bulk(kKind);
  // Whether an operand is stored with its inner dimension first.
  static constexpr bool kMnRows = kMnRows_, kMnCols = kMnCols_;
  static constexpr int kCols = 256;
  static constexpr int kStages = kMx || (kBulkStores && !kPromote) ? 3 : 4;
  // Rows and columns of a consumer. In MXFP8 it has all rows, so that it reads the scale of a
  // column once for 128 rows.
  static constexpr int kOwnRows = kMx ? kRows : kRows / 2, kOwnCols = kMx ? kCols / 2 : kCols;
  static constexpr int kDepth = 128 / kBytes;  // Elements of the inner dimension in a stage.
  static constexpr int kSteps = 4;             // Products of a stage.
  static constexpr int kRowBytes = kRows * 128, kStageBytes = kRowBytes + kCols * 128;
  // Results of each consumer on their way to D: chunks, 64 lines of 128 bytes, two in each of two
  // buffers. Promotion needs the room for stages: it has one chunk, with as much more as words of
  // results are staged in.
  static constexpr int kAtResults = kStages * kStageBytes;
  static constexpr int kResultChunks = kPromote ? 1 : 2, kResultBuffers = kPromote ? 1 : 2;
  static constexpr int kResultBytes = !kBulkStores ? 0 : kPromote ? 10240 : 4 * kChunkBytes;
  static constexpr int kAtControl = kAtResults + 2 * kResultBytes;
  static constexpr int kScaleStages = kPromote && !kMx ? kStages : 1;
  static constexpr int kProducerThreads = 128, kThreads = kProducerThreads + 256;
  static constexpr int kConsumerRegs = kMxCast ? 176 : kMx ? 224 : kConsumerRegisters;
  static constexpr int kProducerRegs = kMxCast ? 152 : kMx ? 56 : kProducerRegisters;
  // How many arrivals commit a stage, and how many release it: a warp copies operands, another one
  // scales, in MXFP8 three; four warps convert MXFP8, and the blocks of a cluster do so each for
  // itself.
  static constexpr int kCommits = kMx || kMxCast ? 4 : kPromote ? 2 : 1;
  static constexpr int kReleases = kMxCast ? 8 : 16;
};

// Where scales of MXFP8 lie: those that a thread of a consumer needs are neighbours, and threads
// with other columns meet no bank twice.
constexpr int kMxPitch = 36, kMxCols = 4 * kMxPitch;
__device__ __forceinline__ int mx_row(int row) {
  return (row / 16 % 4 * 8 + row % 8) * 4 + row / 64 * 2 + row / 8 % 2;
}
__device__ __forceinline__ int mx_col(int col) {
  return kRows + col / 128 * kMxCols + col % 8 / 2 * kMxPitch + col % 128 / 8 * 2 + col % 2;
}

// A tile of D, as the producer describes it to the consumers.
struct Tile {
  const Problem *problem;  // Null: there are no more.
  int row, col;            // The first row and column of the tile.
  int blocks;              // Blocks of the inner dimension.
  bool shares_cols;  // Whether the other block of the cluster has the same columns; otherwise it
                     // has the same rows.
  bool bulk;
};

template <class C>
struct Control {
  Pipeline<C::kStages> stages;  // Stages of both operands.
  Pipeline<kTiles> tiles;
  Tile tile[kTiles];
  // Numbers of pairs of tiles, which the first block of the cluster sends to both. Both release
  // them at the first block's barriers.
  Pipeline<kTiles> pairs;
  unsigned pair[kTiles];
  alignas(16) float row_scales[C::kScaleStages][kRows], col_scales[C::kScaleStages][C::kCols];
  // Scales of whole blocks: of the rows, or of each half of the columns, for this 128 of the inner
  // dimension and its neighbours with the same number / 4.
  alignas(16) float block_scales[C::kScaleStages][2][4];
  // MXFP8: scales of each 32, at mx_row() and mx_col().
  alignas(
      16) float mx_scales[C::kMx ? C::kSteps * C::kStages : 1][C::kMx ? kRows + 2 * kMxCols : 4];
  // The same as factors of two blocks of 32 of this stage and the next, as bits of BF16.
  alignas(16) uint16_t mx_factors[C::kMxCast ? 2 : 1][2][C::kMxCast ? kRows + C::kCols : 8];
  // Staging memory of each warp of the consumers, unless it has that of results.
  alignas(16) float staging[C::kBulkStores ? 1 : 8][16 * kStagingPitch];
};

template <class C>
constexpr int kSharedBytes = C::kAtControl + static_cast<int>(sizeof(Control<C>)) + 1024;

}  // namespace sm90_grouped
}  // namespace nvte
