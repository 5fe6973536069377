#ifndef NVTE_BACKEND_EP_H
#define NVTE_BACKEND_EP_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * The rows of the choices `i = t * topk + k`, whose expert is `chosen[i] - first`, none unless it is below `experts`.
 * Each expert has as many rows as choices, in their order, one after the other, padded to the next multiple of
 * `alignment` unless it has none; the experts' rows follow each other. A row that is not below `capacity`
 * does not exist.
 *
 * With `group` the expert is `(chosen[i] - first) / group`, as of ranks that have `group` experts each, and of the choices
 * of a token that have the same one only the first has a row. With `limit` an expert has at most that many rows before
 * the padding, and later choices have none. With `fixed` each expert has `limit` rows, however many have chosen it.
 */
typedef struct NVTEXExpertRowsArgs {
  /**
   * `[tokens, topk]` in Int32 or Int64.
   */
  const void *chosen;
  /**
   * `[2]`: becomes `tokens` and `topk`.
   */
  int64_t *sizes;
  /**
   * `[experts]`: becomes the first row of each expert.
   */
  int64_t *starts;
  /**
   * `[tokens, topk]`: becomes the row of each choice, -1 without one.
   */
  int32_t *rows;
  /**
   * `[planes, tokens]`: becomes the same the other way round, -1 from `topk` on.
   */
  int32_t *map;
  /**
   * `[experts]` in Int32 or Int64: becomes the number of rows below `capacity`, padding included; or null.
   */
  void *counts;
  /**
   * `[1]`, as `counts`: becomes the number of all rows, also beyond `capacity`; or null.
   */
  void *total;
  /**
   * May be 0, as `topk`.
   */
  size_t tokens;
  size_t topk;
  /**
   * At least `topk`.
   */
  size_t planes;
  size_t experts;
  /**
   * At least 1.
   */
  size_t alignment;
  /**
   * At most 2^31 - 1.
   */
  size_t capacity;
  NVTEDType chosen_dtype;
  NVTEDType counts_dtype;
  /**
   * `[experts]`: becomes the number of choices of each expert, also of those that have no row; or null.
   */
  int64_t *lengths;
  size_t first;
  /**
   * 0: an expert is a number of `chosen`.
   */
  size_t group;
  /**
   * 0: none.
   */
  size_t limit;
  /**
   * Only with a limit.
   */
  bool fixed;
} NVTEXExpertRowsArgs;

/**
 * Zeros the rows that no choice has: of each expert those from `starts[e] + lengths[e]` on, up to the first row of the next
 * expert, behind the last one up to `rows`. With `limit` an expert has at most that many rows of choices.
 */
typedef struct NVTEXZeroGapsArgs {
  /**
   * `[rows, width]` bytes.
   */
  void *output;
  /**
   * `[experts]`: the first row of each expert, in their order.
   */
  const int64_t *starts;
  /**
   * `[experts]`: the number of choices of each.
   */
  const int64_t *lengths;
  /**
   * At least 1.
   */
  size_t experts;
  size_t rows;
  /**
   * Even, as the address.
   */
  size_t width;
  /**
   * 0: none.
   */
  size_t limit;
} NVTEXZeroGapsArgs;

#endif  /* NVTE_BACKEND_EP_H */
