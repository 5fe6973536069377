#ifndef NVTE_BACKEND_GROUP_H
#define NVTE_BACKEND_GROUP_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Member matrices that lie one after the other in one buffer; dimensions are on the device.
 *
 * Member t is `[first_dims[t], last_dims[t]]`, contiguous and row-major, and begins at element
 * `offsets[t]`; column-wise data of it begin there too. A null `first_dims` stands for `rows` of the
 * arguments (`rows / num_tensors` if `last_dims` is null, too), a null `last_dims` for `cols`, null
 * `offsets` for members without gaps. The matrices that a mode's scales form are concatenated
 * likewise, each padded as that of a lone matrix. Elements that no member has are not touched.
 *
 * What the arrays hold is not trusted. A member has no elements if one of its dimensions from the device
 * is negative or larger than `most_dim`, if both together are more than the group has, or if
 * its scales alone are more than there are. A member that would begin before or end after the data, or
 * whose scales would, is moved back into them, cut or left out. So a wrong group gives wrong values, but
 * only inside of the buffers that the arguments declare.
 */
typedef struct NVTEXGroup {
  /**
   * 0: a single matrix, and no other field is read.
   */
  size_t num_tensors;
  const int64_t *first_dims;
  const int64_t *last_dims;
  /**
   * `num_tensors + 1` entries.
   */
  const int64_t *offsets;
  /**
   * Largest dimension that `first_dims` and `last_dims` may give: that of the whole group, the product of
   * both if both vary; less where there is not room for the scales of a member of that.
   */
  size_t most_dim;
  /**
   * Elements that every buffer of data has room for; at least those of the whole group.
   */
  size_t elements;
  /**
   * Entries that the row-wise scales have room for, if the mode's scales form matrices: at least those
   * of a member of `most_dim`, unless both dimensions are on the device.
   */
  size_t row_scales;
  /**
   * As `row_scales`.
   */
  size_t col_scales;
} NVTEXGroup;

#endif  /* NVTE_BACKEND_GROUP_H */
