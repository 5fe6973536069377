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

/**
 * What operators want to know of the current device.
 */
typedef struct NVTEXDeviceProperties {
  /**
   * How many parts an operator may be divided into so that all run at once, where its result depends on that.
   */
  int multiprocessors;
  /**
   * Its number among the devices of the process.
   */
  int device;
  /**
   * Bytes of workspace with which products run fastest; 0 if they use none.
   */
  size_t product_workspace;
} NVTEXDeviceProperties;

#endif  /* NVTE_BACKEND_NVTEX_H */
