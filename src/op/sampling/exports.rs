//! C functions of sampling.h: tokens drawn from logits.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;

/// Draws one token for each row of logits.
///
/// What it computes: tokens have weights `exp((x - max x) / temperature)`, which are rounded down to multiples of
/// 2^-31. Of the `top_k` greatest (0: of all) those are kept, in descending order, whose weights come to at least
/// the part `top_p` of their sum (1: all, and one at least); of equal logits those of lower indices come first. One
/// of the kept tokens is drawn with a probability that is proportional to its weight. A temperature of 0 takes the
/// greatest logit. NaN counts as -Inf.
///
/// Random numbers: Philox 4x32-10 with the seed as key and the counter `offset + 2^64 row`, so that a seed and an
/// offset determine the tokens of each row. A caller who draws again adds 1 to the offset.
///
/// Shapes: logits `[..., V]`; tokens one element for each row; `rng_state` `[2]` (seed, offset) on the device.
///
/// Dtypes: logits Float32, Float16 or BFloat16; tokens Int32; `rng_state` Int64.
///
/// Errors: other dtypes or shapes; a temperature below 0; `top_p` not in (0, 1]; tokens that overlap anything; null
/// or misaligned pointers.
///
/// Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_sample_tokens(
    logits: NVTETensor,
    tokens: NVTETensor,
    rng_state: NVTETensor,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    stream: cudaStream_t,
) {
    guard("nvtex_sample_tokens", || {
        let rule = Rule { temperature, top_k, top_p };
        let tokens = check::rowwise("tokens", tokens)?;
        let state = check::rowwise("rng_state", rng_state)?;
        sample(&check::tensor("logits", logits)?, &tokens, &state, &rule, stream)
    });
}
