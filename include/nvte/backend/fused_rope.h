#ifndef NVTE_BACKEND_FUSED_ROPE_H
#define NVTE_BACKEND_FUSED_ROPE_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Elements from one index to the next.
 */
typedef struct NVTEXRopeStrides {
  /**
   * From one position to the next; in packed sequences from one token to the next.
   */
  size_t position;
  size_t sequence;
  /**
   * From one group of heads to the next.
   */
  size_t group;
  /**
   * From one head of a group to the next.
   */
  size_t head;
  size_t element;
} NVTEXRopeStrides;

/**
 * Heads that turn by the same angles.
 */
typedef struct NVTEXRopePart {
  const void *input;
  /**
   * May be `input` if the strides are equal.
   */
  void *output;
  /**
   * `[.., rotated]` angles in radians, or null: the part is copied.
   */
  const float *freqs;
  /**
   * Heads of all groups together; 0 for a part that is absent.
   */
  size_t heads;
  size_t heads_per_group;
  struct NVTEXRopeStrides input_strides;
  /**
   * The element stride is 1.
   */
  struct NVTEXRopeStrides output_strides;
} NVTEXRopePart;

/**
 * Rotary embedding of heads of `dim` elements, the first `rotated` of which turn in pairs (j, p):
 * `p = j + rotated / 2`, or `p = j + 1` for even j if interleaved.
 *
 * Forward: `y_j = x_j cos(a_j) - x_p sin(a_j)`, `y_p = x_p cos(a_p) + x_j sin(a_p)`. Backward, its
 * adjoint: `y_j = x_j cos(a_j) + x_p sin(a_p)`, `y_p = x_p cos(a_p) - x_j sin(a_j)`. Float32, one
 * rounding to the dtype; other elements are copied.
 *
 * The angles a of position i of sequence n are row `f = i + start_positions[n]` of freqs; with
 * `cp_size > 1` and the local length L, `f + cp_rank L / 2` for `i < L / 2`, else
 * `f + L cp_size - (cp_rank + 1) L / 2 - L / 2`. Positions whose row would be negative are not written.
 */
typedef struct NVTEXRopeArgs {
  struct NVTEXRopePart parts[3];
  /**
   * `[sequences + 1]`, or null. Packed sequences: n has the tokens from `cu_seqlens[n] / cp_size` to
   * `cu_seqlens[n + 1] / cp_size`; tokens of no sequence are not written.
   */
  const int32_t *cu_seqlens;
  /**
   * `[sequences]`, or null.
   */
  const int32_t *start_positions;
  /**
   * Positions of each sequence, tokens of all if they are packed.
   */
  size_t positions;
  size_t sequences;
  size_t dim;
  /**
   * Even, at most `dim`.
   */
  size_t rotated;
  size_t cp_size;
  size_t cp_rank;
  /**
   * Rows that the freqs of all parts have, one or more; positions past them have the angles of the last.
   */
  size_t freqs_rows;
  bool interleaved;
  bool backward;
  /**
   * F32, F16 or BF16, of inputs and outputs.
   */
  NVTEDType dtype;
  /**
   * Raised to the largest magnitude of what is written; null: not wanted.
   */
  float *amax;
} NVTEXRopeArgs;

#endif  /* NVTE_BACKEND_FUSED_ROPE_H */
