#ifndef NVTE_MULTI_STREAM_H
#define NVTE_MULTI_STREAM_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the number of streams, and of events, in the pool of a device: 4.
 */
int32_t nvte_get_num_compute_streams(void);

/**
 * Returns stream `idx` of the current device's pool. It is non-blocking, has high priority and is
 * never destroyed. On the CPU backend it stands for nothing.
 */
cudaStream_t nvte_get_compute_stream(int32_t idx);

/**
 * Returns event `idx` of the current device's pool. It has no timing and is never destroyed. On the
 * CPU backend it stands for nothing.
 */
cudaEvent_t nvte_get_compute_stream_event(int32_t idx);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_MULTI_STREAM_H */
