#ifndef NVTE_BACKEND_FUSED_ATTN_H
#define NVTE_BACKEND_FUSED_ATTN_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * What rows a [`MoveRowsArgs`] moves. `s` is the sequence of token t: `cu[s] <= t < cu[s + 1]`.
 */
typedef enum NVTEXRowMap {
  /**
   * Row t of `dst` is the row of the first (`index` 0) or second (1) half of its sequence, for
   * `c = cu / 2`: `dst[t] = src[t + c[s + index]]`.
   */
  NVTEX_ROWS_HALF = 0,
  /**
   * `dst[i] = src[j]` with token j of rank `i / (rows / world)`, see [`PartitionArgs`].
   */
  NVTEX_ROWS_TO_RANKS = 1,
  /**
   * `dst[j] = src[i]`, the inverse of NVTEX_ROWS_TO_RANKS.
   */
  NVTEX_ROWS_FROM_RANKS = 2,
  /**
   * `dst[t] = src[t]` for the first `cu_valid[s + 1] - cu_valid[s]` tokens of each sequence.
   */
  NVTEX_ROWS_VALID = 3,
  /**
   * Row i is token `i % length` of sequence `i / length` in dst, packed in src.
   */
  NVTEX_ROWS_UNPACK = 4,
  /**
   * The inverse of NVTEX_ROWS_UNPACK.
   */
  NVTEX_ROWS_PACK = 5,
  /**
   * Token n of the new ones of sequence s (`cu`), row i = s `length` + n: to its place in a cache, where
   * `cu_valid` counts cached and new tokens together. In src it is row `i` (`index`
   * `NVTE_BSHD`), `n sequences + s` (`NVTE_SBHD`) or `cu[s] + n` (`NVTE_THD`). Token p of a sequence lies
   * on page `page_table[s pages + p / page]`, or with a null table on page s.
   */
  NVTEX_ROWS_TO_CACHE = 6,
} NVTEXRowMap;

/**
 * What a correction does to a half of each sequence.
 */
typedef enum NVTEXHalfOp {
  NVTEX_HALF_NONE = 0,
  NVTEX_HALF_COPY = 1,
  NVTEX_HALF_ADD = 2,
  NVTEX_HALF_ZERO = 3,
} NVTEXHalfOp;

/**
 * Moves rows of bytes between places that sequences on the device determine. A row whose place in src or
 * dst would lie outside of them, or whose entry outside of the page table, does not move.
 */
typedef struct NVTEXMoveRowsArgs {
  const void *src;
  void *dst;
  size_t row_bytes;
  /**
   * Rows of the map: of dst, or of the padded side.
   */
  size_t rows;
  /**
   * The map is applied to `outer` matrices, `src_outer` and `dst_outer` rows apart.
   */
  size_t outer;
  size_t src_outer;
  size_t dst_outer;
  /**
   * Rows that each matrix of src and of dst has.
   */
  size_t src_rows;
  size_t dst_rows;
  /**
   * `sequences + 1` first tokens.
   */
  const int32_t *cu;
  const int32_t *cu_valid;
  size_t sequences;
  size_t index;
  size_t world;
  size_t length;
  const int32_t *page_table;
  size_t pages;
  size_t page;
  enum NVTEXRowMap map;
} NVTEXMoveRowsArgs;

/**
 * Moves the sequences of a cache `[slots, page, ...]` to the front: for i from 0 to n, ascending, the first
 * `cached - new` tokens of slot `from[i]` become those of slot i. n is the position after the last
 * descent of `from`, or `sequences`. Nothing moves where `from[0]` is 0 and `from[i]` is i, nor from a slot
 * that the cache does not have.
 */
typedef struct NVTEXReindexCacheArgs {
  void *cache;
  const int32_t *from;
  const int32_t *cu_new;
  const int32_t *cu_cached;
  /**
   * At most `slots`.
   */
  size_t sequences;
  size_t slots;
  size_t page;
  size_t row_bytes;
} NVTEXReindexCacheArgs;

/**
 * `grad[t] op= step[u]` by halves of sequences; u is t if `full`, else t counted in halves. Nothing happens
 * to t if step has no row u that is needed.
 */
typedef struct NVTEXGradCorrectionArgs {
  void *grad;
  const void *step;
  const int32_t *cu;
  size_t sequences;
  /**
   * Tokens of grad; step has as many if `full`, else half.
   */
  size_t tokens;
  /**
   * Elements of a token.
   */
  size_t width;
  /**
   * Matrices of tokens that follow each other.
   */
  size_t outer;
  /**
   * F32, F16 or BF16; Byte without additions.
   */
  NVTEDType dtype;
  enum NVTEXHalfOp first;
  enum NVTEXHalfOp second;
  bool full;
} NVTEXGradCorrectionArgs;

/**
 * Logarithms of sums of exponentials `[heads, len]` (packed) or `[sequences, heads, len]`: those of the
 * second half of each sequence, with `c = cu / 2` and t from 0 to `c[sequences]`.
 *
 * Packed: position `t + c[s + 1]` of lse belongs to t of step; else `r + c[s + 1] - c[s]` to
 * `r = t - c[s]`. Read: `step = lse`. Correct: `lse = log(exp(lse) + exp(step))`. Positions past
 * `lse_len` or `step_len` are left out.
 */
typedef struct NVTEXHalfLseArgs {
  float *lse;
  float *step;
  const int32_t *cu;
  size_t sequences;
  size_t heads;
  size_t lse_len;
  size_t step_len;
  bool packed;
  bool correct;
} NVTEXHalfLseArgs;

/**
 * `out = out exp(old_lse - lse) + step exp(step_lse - lse)` for tokens `[tokens, heads, width]`, where
 * a zero element contributes 0 whatever its factor. With `second_half` step has the second halves of the
 * sequences. Tokens without a place in out or in the logarithms are left out.
 */
typedef struct NVTEXOutCorrectionArgs {
  void *out;
  const void *step;
  const float *old_lse;
  const float *lse;
  const float *step_lse;
  const int32_t *cu;
  size_t sequences;
  /**
   * Tokens of step, and of out.
   */
  size_t tokens;
  size_t out_tokens;
  size_t heads;
  size_t width;
  /**
   * As in [`HalfLseArgs`].
   */
  size_t lse_len;
  size_t step_len;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
  bool second_half;
  bool packed;
} NVTEXOutCorrectionArgs;

/**
 * Joins the attention of some queries to other keys with what there is: with `l = log(exp(lse) + exp(step_lse))`,
 * `out = out exp(lse - l) + step exp(step_lse - l)` in float32, then `lse = l`. `first`: there is nothing yet, and both
 * are copied. A logarithm of -Inf contributes 0.
 */
typedef struct NVTEXMergeAttentionArgs {
  /**
   * `[tokens, heads, width]`
   */
  float *out;
  /**
   * `[heads, tokens]`
   */
  float *lse;
  /**
   * As `out`.
   */
  const void *step;
  /**
   * As `lse`.
   */
  const float *step_lse;
  size_t tokens;
  size_t heads;
  size_t width;
  /**
   * F32, F16 or BF16, of step.
   */
  NVTEDType dtype;
  bool first;
} NVTEXMergeAttentionArgs;

/**
 * Tokens of a rank: each sequence (`e = cu / world`, `L = e[s + 1] - e[s]` tokens for each rank) is cut
 * into `2 world` chunks, of which rank k has chunk k and the k-th from the end.
 * Token i of the rank, `r = i - e[s]`, is token
 * `r + e[s] world + (L / 2) (r < L / 2 ? k : 2 (world - 1) - k)`.
 */
typedef struct NVTEXPartitionArgs {
  int32_t *indices;
  const int32_t *cu;
  size_t sequences;
  /**
   * Tokens of a rank.
   */
  size_t tokens;
  size_t world;
  size_t rank;
} NVTEXPartitionArgs;

/**
 * How many tokens some chunks of packed sequences have, and where these begin in a tensor that has parts of the sequences.
 * Sequence s has room for `starts[s + 1] - starts[s]` tokens, which are cut into `chunks` chunks of c, and has
 * `cu[s + 1] - cu[s]` tokens. Those of the chunks in both ranges are counted, running sums are written to `lengths`, and
 * `starts[s] / divisor + skipped c` to `firsts`; its last element is `starts[sequences] / divisor`.
 */
typedef struct NVTEXChunkLengthsArgs {
  /**
   * `[sequences + 1]`, as the other arrays.
   */
  const int32_t *cu;
  const int32_t *starts;
  int32_t *lengths;
  int32_t *firsts;
  size_t sequences;
  size_t chunks;
  /**
   * The first chunk of a range, and the one behind the last.
   */
  size_t range[2];
  size_t other_range[2];
  size_t divisor;
  size_t skipped;
} NVTEXChunkLengthsArgs;

/**
 * `state = {seed, offset}`, of which each is a value, or a value added to one on the device.
 */
typedef struct NVTEXSeedArgs {
  int64_t *state;
  const int64_t *seed_at;
  const int64_t *offset_at;
  int64_t seed;
  int64_t offset;
} NVTEXSeedArgs;

/**
 * One matrix of rows of a [`CopyRowsArgs`], with up to three dimensions of rows; steps in bytes.
 */
typedef struct NVTEXCopyRowsEntry {
  const void *src;
  void *dst;
  size_t dims[3];
  size_t src_steps[3];
  size_t dst_steps[3];
  size_t src_bytes;
  /**
   * Not less than `src_bytes`; the bytes beyond become zeros.
   */
  size_t dst_bytes;
} NVTEXCopyRowsEntry;

/**
 * Copies rows from one order to another.
 */
typedef struct NVTEXCopyRowsArgs {
  /**
   * Array on the host, without empty entries.
   */
  const struct NVTEXCopyRowsEntry *entries;
  size_t num_entries;
} NVTEXCopyRowsArgs;

#endif  /* NVTE_BACKEND_FUSED_ATTN_H */
