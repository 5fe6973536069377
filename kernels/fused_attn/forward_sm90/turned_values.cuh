// FP8 values with the keys innermost, as products with them need them: images of the tiles, which a
// kernel before writes to the workspace, so that plain bulk copies bring them. The attention then
// does not transpose each tile once for all queries that a block has.
//
// An image has a row of 128 bytes for each of 128 elements of a head, with the swizzle of tensor
// maps. Of each 16 keys the order is 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, in which a thread has
// the scores of a row.
#pragma once

#include "fused_attn/attention.cuh"

namespace nvte {
namespace sm90_forward {

constexpr int kTurnedKeys = 128, kTurnedBytes = kTurnedKeys * 128;

struct TurnedValues {
  uint8_t *images;  // [key heads, head_tiles]
  int64_t head_tiles;
  int sequence_tiles;  // Of the longest sequence.

  TurnedValues() = default;
  TurnedValues(const NVTEXAttentionArgs &a, void *images)
      : images(static_cast<uint8_t *>(images)),
        sequence_tiles(static_cast<int>(ceil_div(a.kv_side.max_seqlen, size_t{kTurnedKeys}))) {
    head_tiles = static_cast<int64_t>(a.kv_side.starts != nullptr
                                          ? a.kv_side.tokens / kTurnedKeys + a.batch + 1
                                          : a.batch * static_cast<size_t>(sequence_tiles));
  }
  size_t bytes(const NVTEXAttentionArgs &a) const {
    return static_cast<size_t>(head_tiles) * a.kv_side.heads * kTurnedBytes;
  }
  // The number of the image of a sequence's first tile.
  template <class AnySide>
  __device__ __forceinline__ int64_t first(const AnySide &side, int sequence, int key_head) const {
    const int64_t before = side.starts != nullptr ? side.starts[sequence] / kTurnedKeys + sequence
                                                  : int64_t{sequence} * sequence_tiles;
    return key_head * head_tiles + before;
  }
  __device__ __forceinline__ uint8_t *tile(int64_t number) const {
    return images + number * kTurnedBytes;
  }
};

}  // namespace sm90_forward
}  // namespace nvte
