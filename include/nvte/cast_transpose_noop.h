#ifndef NVTE_CAST_TRANSPOSE_NOOP_H
#define NVTE_CAST_TRANSPOSE_NOOP_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Transposes as `nvte_transpose` does, unless the Float32 `noop` (null: none) is exactly 1 on the
 * device: then it writes nothing.
 */
void nvte_transpose_with_noop(NVTETensor input,
                              NVTETensor noop,
                              NVTETensor output,
                              cudaStream_t stream);

/**
 * Casts as `nvte_cast_transpose` does, unless the Float32 `noop` (null: none) is exactly 1 on the
 * device: then it writes nothing.
 */
void nvte_cast_transpose_with_noop(NVTETensor input,
                                   NVTETensor noop,
                                   NVTETensor output,
                                   cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_CAST_TRANSPOSE_NOOP_H */
