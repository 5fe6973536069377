// The main kernel for heads of up to 128 elements: its instances, their tiles and shared memory.
#pragma once

#include "work.cuh"

namespace nvte {
namespace sm90_backward {

constexpr int kKeys = 128;  // Keys of a block, 64 for each consumer.

// What scores have beside products. kFp8, kFp8E5M2: nothing, but q, k and v are E4M3, and do is
// E4M3 or E5M2. Products over the elements of a head take these tensors as they are. The others
// take copies in half precision, which has every value of FP8, and p and ds after rounding to FP8.
enum class Extra { kNone, kAlibi, kBias, kFp8, kFp8E5M2 };
constexpr bool has_codes(Extra extra) { return extra == Extra::kFp8 || extra == Extra::kFp8E5M2; }

// Shared memory of gradient_kernel in bytes, for heads of kD elements and kM queries at a time:
// sizes, and where each part begins.
template <int kD, int kM, Extra kExtra>
struct Sizes {
  static_assert(kD == 64 || kD == 128, "one or two panels");
  static_assert(kM % 16 == 0, "steps of the products over queries");
  static constexpr int kPanels = kD / 64;
  static constexpr int kKeyPanel = kKeys * 128, kQueryPanel = kM * 128;
  static constexpr int kKeyTile = kPanels * kKeyPanel, kQueryTile = kPanels * kQueryPanel;
  static constexpr int kScoreTile = kKeys / 64 * kQueryPanel;
  static constexpr int kRowTile = 2 * kM * 4;
  static constexpr int kQStages = 3, kOStages = 2;

  // FP8 tensors as they are: a row has 128 bytes, whatever the elements of a head.
  static constexpr bool kFp8 = has_codes(kExtra);
  static constexpr int kKeyCodes = kFp8 ? kKeyPanel : 0, kQueryCodes = kFp8 ? kQueryPanel : 0;

  static constexpr int kK = 0, kV = kK + kKeyTile, kK8 = kV + (kFp8 ? kKeyCodes : kKeyTile),
                       kQ = kK8 + kKeyCodes, kO = kQ + kQStages * kQueryTile,
                       kQ8 = kO + kOStages * kQueryTile, kO8 = kQ8 + kQStages * kQueryCodes,
                       kDs = kO8 + kOStages * kQueryCodes, kBias = kDs + 2 * kScoreTile,
                       kRow = kBias + (kExtra == Extra::kBias ? kQStages * kScoreTile : 0),
                       kBarrier = kRow + kQStages * kRowTile;
  using SharedBarriers = Barriers<kQStages, kOStages>;
  // The kernel aligns the start to 1024 bytes.
  static constexpr int kBytes = kBarrier + static_cast<int>(sizeof(SharedBarriers)) + 1024;
  static_assert(kBytes <= 232448 - 256, "shared memory of a block");
};

// How many queries an instance takes at a time: as many as there are registers for.
struct QueriesTuning {
  int dim;
  bool dropout;
  bool more;  // A bias, or FP8.
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
};
constexpr int queries_of(int dim, bool dropout, bool more) {
  size_t row = 0;
  while (!(kQueriesTuning[row].dim == dim && kQueriesTuning[row].dropout == dropout &&
           kQueriesTuning[row].more == more)) {
    ++row;
  }
  return kQueriesTuning[row].queries;
}
template <int kD, bool kDropout, Extra kExtra>
constexpr int kQueries = queries_of(kD, kDropout, kExtra == Extra::kBias || has_codes(kExtra));

template <int kD, bool kDropout, Extra kExtra>
constexpr BlockShape kTile = {kQueries<kD, kDropout, kExtra>, kKeys, kD, kD};

}  // namespace sm90_backward
}  // namespace nvte
