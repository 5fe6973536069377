// The main kernel for heads of up to 128 elements, or 192 of queries and keys: its instances, their
// tiles and shared memory.
#pragma once

#include "work.cuh"

namespace nvte {
namespace sm90_backward {

constexpr int kKeys = 128;  // Keys of a block, 64 for each consumer.

// What scores have beside products.
enum class Extra { kNone, kAlibi, kBias };

// Elements of values where queries and keys have kD.
template <int kD>
constexpr int kValues = kD == 192 ? 128 : kD;

// Shared memory of gradient_kernel in bytes, for heads of kD elements and kM queries at a time:
// sizes, and where each part begins.
template <int kD, int kM, Extra kExtra>
struct Sizes {
  static_assert(kD == 64 || kD == 128 || kD == 192, "one to three panels");
  static_assert(kM % 16 == 0, "steps of the products over queries");
  static constexpr int kPanelsQk = kD / 64, kPanelsV = kValues<kD> / 64;
  static constexpr int kKeyPanel = kKeys * 128, kQueryPanel = kM * 128;
  static constexpr int kQueryTile = kPanelsQk * kQueryPanel, kDoTile = kPanelsV * kQueryPanel;
  static constexpr int kScoreTile = kKeys / 64 * kQueryPanel;
  static constexpr int kRowTile = 2 * kM * 4;
  static constexpr int kQStages = 3, kOStages = 2;
  static constexpr int kK = 0, kV = kK + kPanelsQk * kKeyPanel, kQ = kV + kPanelsV * kKeyPanel,
                       kO = kQ + kQStages * kQueryTile, kDs = kO + kOStages * kDoTile,
                       kBias = kDs + 2 * kScoreTile,
                       kRow = kBias + (kExtra == Extra::kBias ? kQStages * kScoreTile : 0),
                       kBarrier = kRow + kQStages * kRowTile;
  using SharedBarriers = Barriers<kQStages, kOStages>;
  static constexpr int kDq =
      (kBarrier + static_cast<int>(sizeof(SharedBarriers)) + 127) / 128 * 128;
  // Rows of 32 fours of a warp's part of dq that are added by bulk copies: all of them where there
  // is room. H200, November 2026, BF16, causal 8k: heads of 192 and 128 410 to 513 TFLOP/s together
  // with tiles of 128 keys, heads of 128 with dropout 472 to 478; with a part of the rows, for
  // which there would be room in heads of 128 without dropout, 570 to 540. With a bias there are
  // other bulk copies that have to be waited for.
  static constexpr int kMost = 232448 - 256 - 1024, kRowsOfWarp = kM * kD / 1024,
                       kDqBytes = kRowsOfWarp * 512 * 4 * kConsumers;
  static constexpr bool kBulk = kD >= 128 && kExtra != Extra::kBias && kDq + kDqBytes <= kMost;
  static constexpr int kDqRows = kBulk ? kRowsOfWarp : 0;
  // The kernel aligns the start to 1024 bytes.
  static constexpr int kBytes = kDq + (kBulk ? kDqBytes : 0) + 1024;
  static_assert(kDq <= kMost, "shared memory of a block");
};

// Whether an instance calls clear_sums(): where there are registers for it.
template <int kD, Extra kExtra>
constexpr bool kClearsSums = kD <= 128 && kExtra != Extra::kBias;

// How many queries an instance takes at a time: as many as there are registers for.
struct QueriesTuning {
  int dim;
  bool dropout;
  bool bias;
  int queries;
};
constexpr QueriesTuning kQueriesTuning[] = {
    {64, false, false, 128},
    {64, false, true, 96},
    {64, true, false, 96},
    {64, true, true, 96},
    // H200, November 2026, BF16, 8192 queries, causal and full: 506 and 522 TFLOP/s; with 64
    // queries 489 and 516.
    {128, false, false, 80},
    {128, false, true, 64},
    {128, true, false, 64},
    {128, true, true, 48},
    // Causal 8k: 513, where blocks of 64 keys in long_consumer.cuh have 410: queries, do and dq
    // pass through L2 half as often. Registers limit it: 240 of a thread hold 96 and 64 sums of dk
    // and dv, and what 48 queries at a time need. By arithmetic shared memory is then busy for 70 %
    // of the time, tensor cores for 54 %.
    {192, false, false, 48},
};
constexpr int queries_of(int dim, bool dropout, bool bias) {
  size_t row = 0;
  while (!(kQueriesTuning[row].dim == dim && kQueriesTuning[row].dropout == dropout &&
           kQueriesTuning[row].bias == bias)) {
    ++row;
  }
  return kQueriesTuning[row].queries;
}
template <int kD, bool kDropout, Extra kExtra>
constexpr int kQueries = queries_of(kD, kDropout, kExtra == Extra::kBias);

template <int kD, bool kDropout, Extra kExtra>
constexpr BlockShape kTile = {kQueries<kD, kDropout, kExtra>, kKeys, kD, kValues<kD>};

}  // namespace sm90_backward
}  // namespace nvte
