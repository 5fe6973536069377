#ifndef NVTE_BACKEND_PADDING_H
#define NVTE_BACKEND_PADDING_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Bytes of one tensor: `copied` of them from `input` to `output`, and `zeroed` zeros after them. None
 * of the addresses is aligned to more than an element.
 */
typedef struct NVTEXPaddedTensor {
  const void *input;
  void *output;
  size_t copied;
  size_t zeroed;
} NVTEXPaddedTensor;

/**
 * Copies of many tensors.
 */
typedef struct NVTEXPaddingArgs {
  /**
   * Host array; none of them is empty.
   */
  const struct NVTEXPaddedTensor *tensors;
  size_t num_tensors;
} NVTEXPaddingArgs;

#endif  /* NVTE_BACKEND_PADDING_H */
