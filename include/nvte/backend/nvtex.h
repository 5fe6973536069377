#ifndef NVTE_BACKEND_NVTEX_H
#define NVTE_BACKEND_NVTEX_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Direction of a copy.
 */
typedef enum NVTEXCopyKind {
  NVTEX_COPY_TO_DEVICE = 0,
  NVTEX_COPY_TO_HOST = 1,
  NVTEX_COPY_ON_DEVICE = 2,
} NVTEXCopyKind;

#endif  /* NVTE_BACKEND_NVTEX_H */
