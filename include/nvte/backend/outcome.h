#ifndef NVTE_BACKEND_OUTCOME_H
#define NVTE_BACKEND_OUTCOME_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Answer of a backend.
 */
typedef enum NVTEXBackendStatus {
  /**
   * Done, or queued on the stream.
   */
  NVTEX_BACKEND_OK = 0,
  /**
   * This backend cannot do this case; nothing was written.
   */
  NVTEX_BACKEND_UNIMPLEMENTED = 1,
  /**
   * The device, its driver or a library failed.
   */
  NVTEX_BACKEND_DEVICE_ERROR = 2,
} NVTEXBackendStatus;

/**
 * Status and, unless OK, a text that stays valid until the thread's next backend call.
 */
typedef struct NVTEXOutcome {
  enum NVTEXBackendStatus status;
  const char *reason;
} NVTEXOutcome;

#endif  /* NVTE_BACKEND_OUTCOME_H */
