// The instances of the forward of attention for compute capability 9.0 and their tile sizes.
#pragma once

#include <cstddef>

namespace nvte {
namespace sm90_forward {

// What an attention has beside products of queries and keys: in its scores, or in its keys.
// kTurned: FP8 values that are turned once, see turned_values.cuh.
enum class Extra { kNone, kDropout, kAlibi, kBias, kPages, kTurned };

// An instance of the kernel. It serves head dims up to its own.
struct Tuning {
  int bytes;  // Bytes of an element: 2 for BF16 and F16, 1 for E4M3.
  Extra extra;
  int dim_qk, dim_v;
  int consumers;  // Warpgroups that multiply; each has 64 rows of queries.
  int keys;       // Rows of a tile of keys, or of values.
  int stages;     // Tiles of keys, and as many of values, that shared memory holds.
};

// The first row that fits is taken. Figures are TFLOP/s on an H200 in November 2026; "causal 8k" is
// a causal mask and 8192 queries and keys.
constexpr Tuning kTunings[] = {
    // Causal 8k: 504. Two tiles of scores in registers, so that the next product never waits: 372
    // with 3 consumers and 64 keys, 348 with 2 and 128 (487 with one tile at that time).
    {2, Extra::kNone, 64, 64, 3, 128, 3},
    // Causal 2k, 8k, full 16k: 516, 637, 708. 176 keys without queries in registers: 462, 602, 672
    // (128 keys: 492, 608, 673). 3 consumers and 96 keys do not fit into the registers.
    {2, Extra::kNone, 128, 128, 2, 128, 2},
    {2, Extra::kNone, 192, 128, 2, 112, 2},
    {2, Extra::kNone, 256, 256, 2, 80, 2},
    // The bits of what dropout keeps need registers. Causal 8k: 273 and, for heads of 128, 419
    // TFLOP/s.
    {2, Extra::kDropout, 64, 64, 3, 96, 3},
    {2, Extra::kDropout, 128, 128, 2, 128, 2},
    {2, Extra::kDropout, 192, 128, 2, 112, 2},
    {2, Extra::kDropout, 256, 256, 2, 64, 2},
    {2, Extra::kAlibi, 64, 64, 3, 128, 3},
    {2, Extra::kAlibi, 128, 128, 2, 128, 2},
    {2, Extra::kAlibi, 256, 256, 2, 80, 2},
    // Tiles of the bias take shared memory from those of keys.
    {2, Extra::kBias, 64, 64, 3, 96, 2},
    {2, Extra::kBias, 128, 128, 2, 128, 2},
    {2, Extra::kBias, 256, 256, 2, 64, 2},
    // Boxes of pages divide a tile, so that its rows must be a power of two. Causal 8k, heads of
    // 128,
    // pages of 128, 64, 32, 16 and 8 rows: 545, 553, 549, 532, 410.
    {2, Extra::kPages, 64, 64, 3, 128, 3},
    {2, Extra::kPages, 128, 128, 2, 128, 2},
    {2, Extra::kPages, 256, 256, 2, 64, 2},
    {1, Extra::kNone, 64, 64, 3, 128, 3},
    // Causal 8k, full 16k: 845, 975; 4 stages 828, 956. At 791 and 867: 2 consumers and 160 to 224
    // keys, queries in registers or not:
    // 680 to 765.
    {1, Extra::kNone, 128, 128, 3, 96, 3},
    // Causal 8k, 16k, full 16k: 950, 1022, 1081, where the row above has 880, 950, 993. Tiles of 96
    // keys as there took 2 % longer than of 128; with queries in registers besides 4 %.
    {1, Extra::kTurned, 128, 128, 3, 128, 3},
    // Causal 8k, 16k, full 16k, on an H100: 1066, 1165, 1300, where the row below has 909, 981,
    // 1084. Without turns within 1 %.
    {1, Extra::kTurned, 256, 256, 2, 128, 2},
    // Full 16k, causal 8k: 1064, 880; 3 stages 1036, 851. 96 keys do not fit into the registers. By
    // arithmetic shared memory is busy longer than the tensor cores: 64 keys are few for the
    // queries that each product reads again.
    {1, Extra::kNone, 256, 256, 2, 64, 2},
};
constexpr size_t kTuningCount = sizeof(kTunings) / sizeof(kTunings[0]);

// The row of the table for an instance.
constexpr const Tuning &tuning_of(int bytes, Extra extra, int dim_qk, int dim_v) {
  size_t row = 0;
  while (!(kTunings[row].bytes == bytes && kTunings[row].extra == extra &&
           kTunings[row].dim_qk == dim_qk && kTunings[row].dim_v == dim_v)) {
    ++row;  // Past the end it is no constant expression: there is no such instance.
  }
  return kTunings[row];
}

// Keys and values of the heads that are worked on together are to stay in L2: megabytes of them.
// Heads of 128, causal 8k, 16k: 660, 695 with 32 MB, 646, 680 with 16; without a mask 2k, 8k: 591,
// 673 with 32 and 614, 686 with 16.
constexpr size_t section_megabytes(bool causal) { return causal ? 32 : 16; }

}  // namespace sm90_forward
}  // namespace nvte
