// What the kernel is told, and the tiles of queries that its blocks take one after the other.
#pragma once

#include "fused_attn/attention.cuh"
#include "common/tma.cuh"
#include "turned_values.cuh"

namespace nvte {
namespace sm90_forward {

constexpr int kUnbounded = 1 << 30;  // A window without a bound.

// Coordinates of the first row of a tile in a map of encode_rows(), beside that of the elements.
struct Box {
  int row, end, head, batch;
};

// A tile of queries, as the producer describes it to the consumers.
struct Tile {
  int batch, head;  // batch < 0: there are no more tiles.
  int m;            // The first row of the tile.
  int rows, keys;   // Rows and keys of the sequence.
  int begin, end;   // Tiles of keys.
  int low, high;    // The tiles of keys that need no mask.
  Box q, kv;
  int q_rows[3];    // The coordinates of the consumers' rows.
  unsigned images;  // Number of the image of the first tile of values.
  float slope;      // ALiBi's, in units of products of queries and keys.
  unsigned next;    // Number of the tile that the block takes after this.
};

struct Params {
  CUtensorMap q, k, v, bias;
  void *o;
  int64_t o_batch, o_row, o_head;
  int dim_v;
  int panels_qk, panels_v;  // Panels that the tensors have.
  int bias_rows;            // Rows of a box of the bias: 1 if all rows share one.
  bool bias_batch, bias_head;
  const int *k_pages, *v_pages;
  int max_k_pages, max_v_pages;
  unsigned last_k_page, last_v_page;  // Page numbers past the end of a tensor read these.
  int page_log2, page_boxes;          // Logarithm of the rows of a box, and boxes of a page.
  Side q_side, kv_side;
  unsigned heads;
  int group;               // Query heads of a key head.
  int m_tiles;             // Tiles of the longest sequence.
  unsigned pairs;          // Heads of all sequences.
  unsigned tiles;          // Tiles of all of them.
  unsigned section;        // Heads that are worked on together,
  unsigned section_tiles;  // and their tiles.
  int left, right;
  bool bottom_right;
  AlibiSlopes slopes;
  float scale, unscale;  // `unscale` is the inverse.
  // FP8: factors of q, k, v, o and the probabilities.
  const float *q_scale_inv, *k_scale_inv, *v_scale_inv, *o_scale, *s_scale, *s_scale_inv;
  float *s_amax, *o_amax;
  NVTEDType o_dtype;
  float *stats, *max;
  const float *sink;
  const int64_t *rng_state;
  unsigned drop_level;
  unsigned heads_before, all_heads;  // Of the whole, for which there are random numbers.
  float keep_factor;
  unsigned *next;  // The first tile that no block has taken.
  TurnedValues turned;

  // Where the statistics of a row are.
  __device__ __forceinline__ int64_t stats_at(const Tile &t, int row) const {
    const int64_t pair = int64_t{t.batch} * heads + t.head;
    return q_side.ragged() ? (int64_t{q_side.starts[t.batch]} + row) * heads + t.head
                           : pair * q_side.max_seqlen + row;
  }
};

// Row `row` of a sequence of `length` rows that starts at row `first` of the tensor.
__device__ __forceinline__ Box place_box(const Side &side, int first, int row, int length, int head,
                                         int batch) {
  return {side.max_seqlen - length + row, first + length, head, side.ragged() ? 0 : batch};
}

// The tile of queries of a number. Sections of heads come one after the other; inside a section the
// last tiles of all heads come first, which have the most keys if the mask is causal. False if a
// ragged sequence has no such tile.
//
// The empty statements end the life of what was computed before, for want of registers.
template <class C>
__device__ __forceinline__ bool find_tile(const Params &p, unsigned index, Tile &t) {
  const unsigned section = index / p.section_tiles, first = section * p.section;
  const unsigned width = p.pairs - first < p.section ? p.pairs - first : p.section;
  const unsigned in = index - section * p.section_tiles, from_last = in / width;
  const unsigned pair = first + in - from_last * width;
  t.m = (p.m_tiles - 1 - static_cast<int>(from_last)) * C::kRows;
  t.batch = static_cast<int>(pair / p.heads);
  t.head = static_cast<int>(pair % p.heads);
  asm volatile("" ::: "memory");
  t.rows = length(p.q_side, t.batch);
  t.keys = length(p.kv_side, t.batch);
  if (p.q_side.ragged() && t.m >= t.rows) return false;
  asm volatile("" ::: "memory");
  const int shift = p.bottom_right ? t.keys - t.rows : 0;
  const int last = (t.m + C::kRows < t.rows ? t.m + C::kRows : t.rows) - 1 + shift;
  const auto ceil = [](int x) { return x <= 0 ? 0 : (x + C::kKeys - 1) / C::kKeys; };
  const auto floor = [](int x) { return x <= 0 ? 0 : x / C::kKeys; };
  t.begin = p.left == kUnbounded ? 0 : floor(t.m + shift - p.left);
  t.low = p.left == kUnbounded ? 0 : ceil(last - p.left);
  asm volatile("" ::: "memory");
  const auto right_of = [&](int row) {
    return p.right == kUnbounded || row + p.right + 1 > t.keys ? t.keys : row + p.right + 1;
  };
  t.end = ceil(right_of(last));
  t.high = floor(right_of(t.m + shift));
  if (t.m >= t.rows || t.end < t.begin) t.end = t.begin;
  asm volatile("" ::: "memory");
  t.q = place_box(p.q_side, p.q_side.first(t.batch), t.m, t.rows, t.head, t.batch);
  // A consumer whose rows all lie past the sequence gets the last row, and its results go nowhere:
  // no box may begin outside a map, see cp_async_bulk_tensor_load().
#pragma unroll
  for (int w = 0; w < C::kConsumers; ++w) {
    t.q_rows[w] = min(t.q.row + 64 * w, p.q_side.max_seqlen - 1);
  }
  if constexpr (C::kAlibi) t.slope = p.slopes(t.head) * p.unscale;
  t.kv = place_box(p.kv_side, p.kv_side.first(t.batch), 0, t.keys, t.head / p.group, t.batch);
  if constexpr (C::kTurned) t.images = p.turned.first(p.kv_side, t.batch, t.kv.head);
  return true;
}

}  // namespace sm90_forward
}  // namespace nvte
