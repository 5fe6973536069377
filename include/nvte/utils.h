#ifndef NVTE_UTILS_H
#define NVTE_UTILS_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Copies `num_bytes` bytes from the host to the device. The bytes travel as kernel parameters, so the
 * host buffer may be pageable and may be reused on return, and a captured graph replays the values.
 *
 * Errors: null pointers; a device address that is not aligned to 4 bytes. With no bytes nothing
 * happens.
 */
void nvte_copy_host_to_device_via_kernel(const void *host_ptr,
                                         void *device_ptr,
                                         size_t num_bytes,
                                         cudaStream_t stream);

/**
 * Copies `count` 64-bit values from the host to the row-wise data of a tensor. Deprecated:
 * `nvte_copy_host_to_device_via_kernel`.
 *
 * Errors: null pointers; a tensor that is too small; a negative count.
 */
void nvte_convert_pointers_to_tensor(const uint64_t *host_ptrs,
                                     NVTETensor output,
                                     int64_t count,
                                     cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_UTILS_H */
