#ifndef NVTE_BACKEND_UTILS_H
#define NVTE_BACKEND_UTILS_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Copies host bytes to the device; the host buffer may be reused on return.
 */
typedef struct NVTEXHostCopyArgs {
  const void *host;
  /**
   * Aligned to 4 bytes.
   */
  void *device;
  size_t bytes;
} NVTEXHostCopyArgs;

#endif  /* NVTE_BACKEND_UTILS_H */
