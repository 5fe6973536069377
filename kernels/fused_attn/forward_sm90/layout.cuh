// An instance of the forward of attention for compute capability 9.0: its constants, and what lies
// where in shared memory.
#pragma once

#include "common/pipeline.cuh"
#include "scheduler.cuh"
#include "tuning.cuh"

namespace nvte {
namespace sm90_forward {

// In: a tag of dtype.cuh, that of q, k and v.
template <class In, Extra kExtra, int kDimQK_, int kDimV_>
struct Config {
  using T = In;
  static constexpr Tuning kTuning = tuning_of(T::kBytes, kExtra, kDimQK_, kDimV_);
  static constexpr bool kDropout = kExtra == Extra::kDropout, kAlibi = kExtra == Extra::kAlibi,
                        kBias = kExtra == Extra::kBias, kPages = kExtra == Extra::kPages,
                        kFp8 = T::kBytes == 1, kTurned = kExtra == Extra::kTurned,
                        kTransposes = kFp8 && !kTurned;
  static constexpr int kDimQK = kDimQK_, kDimV = kDimV_, kConsumers = kTuning.consumers;
  static constexpr int kKeys = kTuning.keys, kStages = kTuning.stages;
  static constexpr int kRows = 64 * kConsumers, kThreads = 128 * (kConsumers + 1);
  static_assert(!kTurned || (kFp8 && kKeys == 128 && kDimV % 128 == 0), "the rows of images");
  // Warps of the producer that turn values.
  static constexpr int kTurners = kTurned ? (kDimV > 128 ? 1 : 2) : 0;
  static_assert(!kPages || (kKeys & (kKeys - 1)) == 0, "boxes of pages divide a tile");

  // ---- Shared memory. Tiles consist of panels with rows of 128 bytes. First come the queries of
  // all consumers, then the stages of keys, of values, of transposed values and of biases, and at
  // the end the struct Control.
  static constexpr int kPanel = 128 / T::kBytes;  // Elements of a row of a panel.
  static constexpr int kPanelsQK = (kDimQK + kPanel - 1) / kPanel;
  static constexpr int kPanelsV = (kDimV + kPanel - 1) / kPanel;
  static constexpr int kQueryBytes = kPanelsQK * 64 * 128, kKeyPanel = kKeys * 128;
  static constexpr int kKeyBytes = kPanelsQK * kKeyPanel, kValueBytes = kPanelsV * kKeyPanel;
  // Where there is room, a consumer has two buffers of queries for tiles in turn.
  static constexpr int kQueries = (kTurned ? 2 : 1) * kConsumers;
  static __device__ __forceinline__ PipelineState<kQueries> queries_at(int w, unsigned count) {
    constexpr int kBuffers = kQueries / kConsumers;
    return {w + static_cast<int>(count % kBuffers) * kConsumers, count / kBuffers & 1};
  }
  // FP8 products need values with the keys innermost: a row of a panel has 128 keys of one column.
  // Where they come turned, that is how they lie in the stages of values.
  static constexpr int kTransposedPanel = kDimV * 128;
  static constexpr int kTransposedBytes = kTransposes ? (kKeys + 127) / 128 * kTransposedPanel : 0;
  // Panels have 64 columns of the bias and the rows of all consumers.
  static constexpr int kPanelsBias = kBias ? (kKeys + 63) / 64 : 0;
  static constexpr int kBiasPanel = kRows * 128, kBiasBytes = kPanelsBias * kBiasPanel;
  static constexpr int kAtKeys = kQueries * kQueryBytes;
  static constexpr int kAtValues = kAtKeys + kStages * kKeyBytes;
  static constexpr int kAtTransposed = kAtValues + kStages * kValueBytes;
  static constexpr int kAtBias = kAtTransposed + kStages * kTransposedBytes;
  // Values that are turned for the workspace: each warp has a tile and its image.
  static constexpr int kAtTurning = kAtBias + kStages * kBiasBytes;
  static constexpr int kAtControl = kAtTurning + kTurners * 2 * kTurnedBytes;

  // ---- Registers of a thread. Transposing takes more of the producer's than copying; FP8 with 3
  // consumers of wide values leaves none for that.
  static constexpr bool kWideProducer = kTransposes && (kConsumers == 2 || kDimV < 128);
  static constexpr int kProducerRegisters = kWideProducer     ? 56
                                            : kConsumers == 3 ? 32
                                            : kTurned         ? 40
                                                              : 24;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? (kWideProducer ? 152 : 160)
                                            : kWideProducer ? 224
                                            : kTurned       ? 232
                                                            : 240;
  // Queries stay in registers where there is room: products then wait for shared memory less. H200,
  // November 2026, causal 2k, 8k, full 16k: 516, 637, 708 TFLOP/s, without 510, 620, 681.
  static constexpr bool kHoldsQueries =
      !kFp8 && kExtra == Extra::kNone && kDimQK == 128 && kDimV == 128;
  static constexpr int kHeldSteps = kHoldsQueries ? kDimQK / 16 : 1;
  // The start of shared memory stays in a register where there is one to spare. Elsewhere it is
  // computed again in each round of the consumers' loop, before the first wait.
  static constexpr bool kKeepsAddress = kFp8;
  // Words that tell what dropout keeps: each of 64 keys for a lane's part of 16 rows.
  static constexpr int kKeptWords = kDropout ? (kKeys + 63) / 64 : 0;

  // ---- Softmax
  // The largest score is found by comparing bits as integers; narrow FP8 tiles are slower that way.
  static constexpr bool kIntegerMax = !kAlibi && !(kFp8 && kDimV <= 64);
  // Most tiles reuse the maximum of those before, see Softmax::reuse_max().
  static constexpr bool kReusesMax = !kFp8 && (kExtra == Extra::kNone || kPages || kDropout);
  // Consumers issue their products in turn, but for FP8 of heads of 128 that consumer.cuh has,
  // where three of them share the exponential units. H200, November 2026, TFLOP/s, where turns come
  // in parentheses: heads of 128, causal 8k, 16k, full 16k: 845 (820), 921 (886), 975 (942); heads
  // of 256, full 16k: 1048 (1064); heads of 64, causal 8k: 530 (536).
  static constexpr bool kTurns = !kFp8 || kDimV != 128;
  // FP8 probabilities are multiplied by 2 to this before they are rounded, so that they use almost
  // the whole range up to 448.
  static constexpr float kLog2Boost = kFp8 ? 8.75f : 0.0f;
};

// Hardware barriers 1 to 3 are the consumers' turns; with pages the producer warpgroup has this
// one.
constexpr int kProducerBarrier = 4;

// Three tiles of queries may be in use: the one whose queries were released last and whose output
// is still to be written, the next one, and the one that the producer finds ahead of that.
constexpr unsigned kTiles = 4;

template <class C>
struct Control {
  // The four rings have the same number of stages; only FP8 has transposed values.
  Pipeline<C::kQueries> q;
  Pipeline<C::kStages> k, v, transposed, bias;
  uint64_t turning[2];      // Of each warp that turns values.
  bool is_end[C::kStages];  // This buffer of v was committed only to say that nothing follows.
  Tile tile[kTiles];
};

template <class C>
constexpr int kSharedBytes = C::kAtControl + static_cast<int>(sizeof(Control<C>)) + 1024;

}  // namespace sm90_forward
}  // namespace nvte
