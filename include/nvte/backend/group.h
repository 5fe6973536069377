#ifndef NVTE_BACKEND_GROUP_H
#define NVTE_BACKEND_GROUP_H

/* Generated from the Rust sources by capi-tests/abi.rs. */

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
} NVTEXGroup;

#endif  /* NVTE_BACKEND_GROUP_H */
