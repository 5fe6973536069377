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
 * Number of streams, and of events, in the pool of a device: 4.
 */
int32_t nvte_get_num_compute_streams(void);

/**
 * Stream `idx` of the current device's pool: non-blocking, high priority, never destroyed. On the
 * CPU backend it stands for nothing.
 */
cudaStream_t nvte_get_compute_stream(int32_t idx);

/**
 * Event `idx` of the current device's pool, without timing, never destroyed. On the CPU backend it
 * stands for nothing.
 */
cudaEvent_t nvte_get_compute_stream_event(int32_t idx);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_MULTI_STREAM_H */
