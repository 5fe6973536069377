// FP8 values with the keys innermost, as products with them need them: images of the tiles in the
// workspace, which plain bulk copies bring to shared memory. The attention then does not transpose
// each tile once for all queries that a block has. Idle warps of the producers write the images,
// those that are needed first before the others.
//
// An image has a row of 128 bytes for each of 128 or 256 elements of a head, in one or two parts,
// with the swizzle of tensor maps. Of each 16 keys the order is 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14
// 15, in which a thread has the scores of a row.
#pragma once

#include "common/ptx.cuh"
#include "fused_attn/attention.cuh"

namespace nvte {
namespace sm90_forward {

constexpr int kTurnedKeys = 128, kTurnedBytes = kTurnedKeys * 128;  // Of a part.

struct TurnedValues {
  uint8_t *images;  // [key heads, head_tiles, parts]
  int *ready;       // Of each image, the parts that are written.
  unsigned *next;   // The number of the first part that no warp has taken, see turn_values().
  int *done;        // How many numbers of parts are done with.
  unsigned parts;   // Of an image.
  unsigned head_tiles;
  unsigned sequence_tiles;    // Of the longest sequence.
  unsigned key_heads, units;  // Heads of keys of a sequence, and of all sequences.

  TurnedValues() = default;
  TurnedValues(const NVTEXAttentionArgs &a, uint8_t *workspace)
      : images(workspace),
        parts(a.dim_qk <= 128 && a.dim_v <= 128 ? 1 : 2),
        sequence_tiles(static_cast<unsigned>(ceil_div(a.kv_side.max_seqlen, size_t{kTurnedKeys}))),
        key_heads(static_cast<unsigned>(a.kv_side.heads)),
        units(static_cast<unsigned>(a.batch * a.kv_side.heads)) {
    head_tiles = static_cast<unsigned>(a.kv_side.starts != nullptr
                                           ? a.kv_side.tokens / kTurnedKeys + a.batch + 1
                                           : a.batch * sequence_tiles);
    ready = reinterpret_cast<int *>(images + count() * parts * kTurnedBytes);
  }
  __host__ __device__ size_t count() const { return size_t{head_tiles} * key_heads; }
  size_t bytes() const { return count() * (parts * kTurnedBytes + sizeof(int)); }
  // The number of the image of a sequence's first tile.
  __device__ __forceinline__ unsigned first(const Side &side, int sequence, int key_head) const {
    const unsigned i = static_cast<unsigned>(sequence);
    const unsigned before = side.ragged() ? static_cast<unsigned>(side.starts[i]) / kTurnedKeys + i
                                          : i * sequence_tiles;
    return static_cast<unsigned>(key_head) * head_tiles + before;
  }
  __device__ __forceinline__ uint8_t *image(unsigned number) const {
    return images + size_t{number} * parts * kTurnedBytes;
  }
};

}  // namespace sm90_forward
}  // namespace nvte
