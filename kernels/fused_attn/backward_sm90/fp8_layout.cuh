// The kernels of the backward of FP8 tensors: their tiles, shared memory and instances.
//
// FP8 products read what they sum over as the inner dimension of both operands. Scores and the
// gradients of probabilities sum over the elements of a head and take the tensors as they are. The
// products for dv and dk sum over queries, that for dq over keys: they take images, in which the
// elements of a head are the rows. Kernels before the main one write the images just as they lie in
// shared memory, so that plain bulk copies bring them.
//
// The order of what an image has in a row is that in which registers have it. p and ds are left
// operands as they come out of the products before them if each 16 queries lie in the order 0 1 8 9
// 2 3 10 11 4 5 12 13 6 7 14 15. ds becomes the right operand of dq by transposing stores of pairs
// of bytes, which are keys eight apart: each 16 keys lie in the order 0 8 1 9 2 10 and so on.
#pragma once

#include "launch.cuh"
#include "work.cuh"

namespace nvte {
namespace sm90_backward {
namespace fp8_heads {

constexpr int kKeys = 128, kM = 64;  // Keys of a block, 64 for each consumer; queries at a time.

// Shared memory of gradient_kernel in bytes, for heads of kD elements.
template <int kD>
struct Sizes {
  static_assert(kD == 64 || kD == 128, "whole images");
  static constexpr int kStages = 3;
  // Tiles of ds. dq is multiplied two rounds after them, so that neither consumer waits for the
  // other as long as it is less than a round ahead. What a consumer overwrites has been read: the
  // other one has written ds of two rounds later.
  static constexpr int kScoreTiles = 4;
  // A row of a tensor has 128 bytes, whatever the elements of a head.
  static constexpr int kKeyTile = kKeys * 128, kQueryTile = kM * 128, kScoreTile = kM * 128;
  static constexpr int kKeyImage = kD * kKeys, kQueryImage = kD * kM;
  static constexpr int kRowTile = 2 * kM * 4;
  static constexpr int kK = 0, kV = kK + kKeyTile, kKeyRows = kV + kKeyTile,
                       kQ = kKeyRows + kKeyImage, kO = kQ + kStages * kQueryTile,
                       kQRows = kO + kStages * kQueryTile, kORows = kQRows + kStages * kQueryImage,
                       kDs = kORows + kStages * kQueryImage, kDq = kDs + kScoreTiles * kScoreTile,
                       kRow = kDq + kM * kD * 4, kBarrier = kRow + kStages * kRowTile;
  using SharedBarriers = Barriers<kStages, kStages>;
  // The kernel aligns the start to 1024 bytes.
  static constexpr int kBytes = kBarrier + static_cast<int>(sizeof(SharedBarriers)) + 1024;
  static_assert(kBytes <= 232448 - 256, "shared memory of a block");
};

template <int kD>
constexpr BlockShape kTile = {kM, kKeys, kD, kD};

// Blocks of keys of a head, over all sequences.
inline size_t key_head_blocks(const NVTEXAttentionArgs &a) {
  return a.kv_side.starts != nullptr ? a.kv_side.tokens / kKeys + a.batch + 1
                                     : a.batch * ceil_div(a.kv_side.max_seqlen, kKeys);
}

// Code: the dtype of do and of ds. Defined in fp8_kernel.cuh.
template <int kD, bool kDropout, class Code>
Instance instance();
// Writes the image of the keys and clears the maxima of the results, before all other kernels. By
// kHelperThreads threads for each block of keys, and at least one block.
template <int kD>
void (*keys_kernel_of())(Problem);

}  // namespace fp8_heads
}  // namespace sm90_backward
}  // namespace nvte
