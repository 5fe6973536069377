#ifndef NVTE_SAMPLING_H
#define NVTE_SAMPLING_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Draws one token for each row of logits.
 *
 * What it computes: tokens have weights `exp((x - max x) / temperature)`, which are rounded down to multiples of
 * 2^-31. Of the `top_k` greatest (0: of all) those are kept, in descending order, whose weights come to at least
 * the part `top_p` of their sum (1: all, and one at least); of equal logits those of lower indices come first. One
 * of the kept tokens is drawn with a probability that is proportional to its weight. A temperature of 0 takes the
 * greatest logit. NaN counts as -Inf.
 *
 * Random numbers: Philox 4x32-10 with the seed as key and the counter `offset + 2^64 row`, so that a seed and an
 * offset determine the tokens of each row. A caller who draws again adds 1 to the offset.
 *
 * Shapes: logits `[..., V]`; tokens one element for each row; `rng_state` `[2]` (seed, offset) on the device.
 *
 * Dtypes: logits Float32, Float16 or BFloat16; tokens Int32; `rng_state` Int64.
 *
 * Errors: other dtypes or shapes; a temperature below 0; `top_p` not in (0, 1]; tokens that overlap anything; null
 * or misaligned pointers.
 *
 * Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011).
 */
void nvtex_sample_tokens(NVTETensor logits,
                         NVTETensor tokens,
                         NVTETensor rng_state,
                         float temperature,
                         size_t top_k,
                         float top_p,
                         cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_SAMPLING_H */
