// An instance of the kernel of grouped products: its constants, and what lies where in shared
// memory.
#pragma once

#include <type_traits>

#include "common/dtype.cuh"
#include "common/pipeline.cuh"
#include "instance.cuh"

namespace nvte {
namespace sm90_grouped {

// Pairs of row tiles whose columns are walked together, for the sake of L2.
constexpr unsigned kBand = 8;
// Tiles that the producer may be ahead of the consumers.
constexpr int kTiles = 2;
// Columns of results that a warp stages in shared memory where D has an odd address or pitch.
constexpr int kStagingCols = 32;
// Registers of a thread, with three warpgroups. With four each thread has 128.
constexpr int kConsumerRegisters = 216, kProducerRegisters = 72;
constexpr int kProducerBarrier = 1;  // The hardware barrier of the producer's warpgroups.

template <class In_, Kind kKind, bool kMnRows_, bool kMnCols_>
struct Config {
  using In = In_;
  static constexpr int kBytes = std::is_same_v<In, BF16> || std::is_same_v<In, F16> ? 2 : 1;
  static constexpr bool kPromote = kKind == Kind::kPromote, kMx = kKind == Kind::kMx;
  // Whether an operand is stored with its inner dimension first.
  static constexpr bool kMnRows = kMnRows_, kMnCols = kMnCols_;
  static constexpr int kCols = kPromote || kMx ? 128 : 256, kStages = kPromote ? 6 : 4;
  static constexpr int kDepth = 128 / kBytes;  // Elements of the inner dimension in a stage.
  static constexpr int kSteps = 4;             // Products of a stage.
  static constexpr int kRowBytes = kRows * 128, kStageBytes = kRowBytes + kCols * 128;
  // Two stages of MXFP8 codes as they are in memory.
  static constexpr int kAtRaw = kStages * kStageBytes;
  static constexpr int kAtControl = kAtRaw + (kMx ? kStageBytes : 0);
  static constexpr int kScaleStages = kPromote ? kStages : 1;
  static constexpr int kProducerThreads = kMx ? 256 : 128, kThreads = kProducerThreads + 256;
};

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
  alignas(16) float row_scales[C::kScaleStages][128], col_scales[C::kScaleStages][128];
  // MXFP8: scales of two blocks of 32 of this stage and the next, as bits of BF16.
  alignas(16) uint16_t mx_scales[C::kMx ? 2 : 1][2][C::kMx ? kRows + C::kCols : 8];
  float staging[8][16 * (kStagingCols + 2)];  // Staging memory of each warp of the consumers.
};

template <class C>
constexpr int kSharedBytes = C::kAtControl + static_cast<int>(sizeof(Control<C>)) + 1024;

}  // namespace sm90_grouped
}  // namespace nvte
