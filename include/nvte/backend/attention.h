#ifndef NVTE_BACKEND_ATTENTION_H
#define NVTE_BACKEND_ATTENTION_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * A tensor of attention. Element x of row r and head j of sequence i is at
 * `i * batch + r * row + j * head + x`; if the side is ragged, at
 * `(starts[i] + r) * row + j * head + x`; of a page p of paged keys and values, at
 * `p * batch + r * row + j * head + x`.
 */
typedef struct NVTEXAttentionTensor {
  /**
   * Null: the tensor is not there. Aligned to 16 bytes if those of a head, or of a row of a bias, are a
   * multiple of that, else to an element: who reads vectors looks at the strides.
   */
  void *data;
  NVTEDType dtype;
  /**
   * Elements; times the element's size a multiple of 16 bytes wherever `data` is read or written by
   * vectors.
   */
  int64_t batch;
  int64_t row;
  int64_t head;
  /**
   * For FP8 tensors; each may be null (a factor of 1, and no amax). The amax of an output is
   * written before it is multiplied by `scale`; `scale_inv` is not written.
   */
  const float *scale;
  const float *scale_inv;
  float *amax;
} NVTEXAttentionTensor;

/**
 * The queries' side of attention, or that of the keys and values.
 */
typedef struct NVTEXAttentionSide {
  /**
   * Sequence i has `cu_seqlens[i + 1] - cu_seqlens[i]` rows; null: all have `max_seqlen`.
   */
  const int32_t *cu_seqlens;
  /**
   * First rows of the sequences, `batch + 1`, or null: the side is dense, `max_seqlen` rows each.
   */
  const int32_t *starts;
  size_t max_seqlen;
  /**
   * Rows of a ragged tensor.
   */
  size_t tokens;
  size_t heads;
} NVTEXAttentionSide;

/**
 * Softmax(scale q k^T + bias) v and its gradients, one args struct for both passes.
 *
 * Scores of sequence i, head j, row r, column c:
 * `x = scale * (q_r . k_c) + bias + slope_j (c - r)`, admissible iff r and c are inside their lengths
 * Lq and Lk, `c <= r + shift + window_right` and `c >= r + shift - window_left` (-1: no bound), with
 * `shift = Lk - Lq` if `bottom_right`, else 0. Query head j reads key head
 * `j / (q_side.heads / kv_side.heads)`.
 *
 * Forward: `m = max x`, `l = sum exp(x - m)`, both with the sink `a_j` as one more score without a
 * value; `stats = m + ln l`; `p = exp(x - stats)`; `z = keep p / (1 - dropout)`; `o = sum z v`. A row
 * without an admissible column has o = 0 and stats = max = -inf, with a sink too. Rows of dense tensors that lie past
 * their sequence become 0 (stats, max: -inf); of ragged tensors they are not touched.
 *
 * Backward: `D = sum do o`, `dp = do . v_c`, `ds = p (keep dp / (1 - dropout) - D)`,
 * `dv = sum z do`, `dbias = sum ds`, `dq = scale sum ds k`, `dk = scale sum ds q`,
 * `dsink_j = -sum exp(a_j - stats) D`. p is selected by the mask, since stats may be -inf.
 *
 * FP8 (spec of `s` and `dp`): `x = acc scale q.scale_inv k.scale_inv`; p, after dropout, is multiplied by
 * `s.scale` and cast to q's dtype, o gets `s.scale_inv v.scale_inv`; `s.amax = max p` before that.
 * Backward: ds is multiplied by `scale`, its amax goes to `dp.amax`, and `ds dp.scale` is cast to do's
 * dtype; dq and dk get `dp.scale_inv` and k's and q's `scale_inv`.
 *
 * Dropout: each call of Philox 4x32-7, with the seed as key and the counter `offset / 4 + 2^64 G`, serves
 * 16 elements of a tile of 16 rows and columns: element (i, j, r, c) takes byte
 * `2 (c / 8 % 2) + r / 8 % 2` of word `2 (r % 2) + c % 2`, the least significant byte being 0, with
 * `G = 16 T + 4 (r % 8 / 2) + c % 8 / 2` in tile
 * `T = ((i (heads + other_heads) + heads_before + j) ceil(q_side.max_seqlen / 16) + r / 16)
 * ceil(kv_side.max_seqlen / 16) + c / 16`.
 * It is dropped iff
 * `16 byte + 4 ((r % 8 / 2 + c % 8 / 2) % 4) + r % 8 / 2 < min(floor(4096 dropout + 0.5), 4080)`, in
 * float32: the probability is rounded to multiples of 1/4096, which a tile has as a mean.
 *
 * There is a batch, a head and an element of each; the length of a side may be 0, and what lies outside a
 * sequence may be NaN.
 */
typedef struct NVTEXAttentionArgs {
  struct NVTEXAttentionTensor q;
  struct NVTEXAttentionTensor k;
  struct NVTEXAttentionTensor v;
  /**
   * The output, which the forward pass writes and the backward pass reads.
   */
  struct NVTEXAttentionTensor o;
  /**
   * The following four are the backward's; its absence is what tells the forward.
   */
  struct NVTEXAttentionTensor d_o;
  struct NVTEXAttentionTensor dq;
  struct NVTEXAttentionTensor dk;
  struct NVTEXAttentionTensor dv;
  /**
   * Of q's dtype, of FP8 q in high precision, or null; `batch`, `head` and `row` are 0 where the bias is
   * broadcast.
   */
  struct NVTEXAttentionTensor bias;
  /**
   * The gradient of the bias, or null: contiguous, with a stride of 0 where it is summed. All of it is
   * written. With FP8 scores, too, it is the sum of ds before `scale` and the cast.
   */
  struct NVTEXAttentionTensor dbias;
  /**
   * FP8 only: scale, scale_inv and amax of the probabilities and of the scores' gradient.
   */
  struct NVTEXAttentionTensor s;
  struct NVTEXAttentionTensor dp;
  struct NVTEXAttentionSide q_side;
  struct NVTEXAttentionSide kv_side;
  size_t batch;
  /**
   * Elements of a head of q and k.
   */
  size_t dim_qk;
  /**
   * Elements of a head of v and o.
   */
  size_t dim_v;
  /**
   * F32, written by the forward, read by the backward: natural logarithm. Element (i, j, r) is at
   * `(i heads + j) q_side.max_seqlen + r`; if q is ragged at `(starts[i] + r) heads + j`.
   */
  float *stats;
  /**
   * Largest admissible x of each row without the sink, laid out as `stats`; or null.
   */
  float *max;
  /**
   * `[q_side.heads]`, or null: no sink.
   */
  const float *sink;
  float *dsink;
  /**
   * `[batch, max_pages]`, or null: not paged. Page numbers of the keys; token t of sequence i is row
   * `t % page_size` of page `page_table_k[i * max_pages_k + t / page_size_k]`.
   */
  const int32_t *page_table_k;
  const int32_t *page_table_v;
  size_t max_pages_k;
  size_t max_pages_v;
  size_t page_size_k;
  size_t page_size_v;
  /**
   * Pages that the tensors have. A number in a page table that is not below reads some page all the same,
   * never other memory.
   */
  size_t num_pages_k;
  size_t num_pages_v;
  float scale;
  /**
   * Probability that an element is dropped; 0: none is.
   */
  float dropout;
  /**
   * Seed and offset, on the device.
   */
  const int64_t *rng_state;
  /**
   * -1: unbounded.
   */
  int64_t window_left;
  int64_t window_right;
  bool bottom_right;
  /**
   * `n = 2^floor(log2 heads)`; `slope_j = 2^(-8 (j + 1) / n)` for `j < n`, else
   * `2^(-4 (2 (j - n) + 1) / n)`.
   */
  bool alibi;
  bool backward;
  /**
   * The backward pass adds in a fixed order.
   */
  bool deterministic;
  /**
   * The implementation that runs this, a number that the backend's plan of the same arguments has given. A
   * plan does not look at it.
   */
  uint32_t implementation;
  void *workspace;
  /**
   * At least what [`AttentionPlan`] says.
   */
  size_t workspace_bytes;
  /**
   * The heads of queries may be some of a whole, whose dropout has random numbers for each of its heads: how many
   * come before these, and how many there are beside these in all.
   */
  size_t heads_before;
  size_t other_heads;
  /**
   * Backward, with as many heads of keys as of queries and one number of elements: where the sums of dq, dk and dv
   * over the rows of all sequences go, `[heads, 3, dim_qk]` of the dtype of dq, or null.
   */
  void *sums;
  /**
   * Backward: raised to the largest magnitude of dq, dk and dv as they are written in 16 bits; null: not wanted.
   */
  float *grads_amax;
} NVTEXAttentionArgs;

/**
 * What a backend would do with an [`AttentionArgs`], whose pointers may be null where only their
 * being there does not matter: a plan looks at shapes, strides, dtypes, options and alignments, and takes a
 * pointer that is not null as "is there". The caller sets `explain`, the backend the rest.
 */
typedef struct NVTEXAttentionPlan {
  /**
   * The caller wants to read `rejected`.
   */
  bool explain;
  size_t workspace_bytes;
  /**
   * The implementation that was chosen, for `AttentionArgs::implementation`.
   */
  uint32_t implementation;
  /**
   * The name of the implementation, a static text.
   */
  const char *name;
  /**
   * With `explain`, "name: reason" of those that were rejected before it, one a line; valid until the thread's
   * next backend call. Else null.
   */
  const char *rejected;
} NVTEXAttentionPlan;

#endif  /* NVTE_BACKEND_ATTENTION_H */
