//! C functions of dropout.h.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;

/// Drops elements at random: `y = keep ? cast(x / (1 - p)) : 0`, and writes which ones were kept.
///
/// Element e is bit `e % 8` (1: kept) of the byte `e / 8` of the mask. Its random byte comes from
/// Philox 4x32-10, so that seed and offset of `rng_state` determine the mask: 16 elements use four words
/// at the stream position `offset` of the sequence `e / 16`. It is dropped if the byte is less than
/// `floor(256 p)`: p counts in steps of 1/256, while the factor `1 / (1 - p)` is not rounded.
/// Shapes: any with the same number of elements n; output may be the input; mask `ceil(n / 8)` bytes of
/// any dtype, bits after the last element are set to 0; `rng_state` `[2]` on the device.
/// Dtypes: Float32, Float16, BFloat16, the same for both, or from Float8E4M3, Float8E5M2 with a
/// `scale_inv`, which multiplies x; `rng_state` Int64 (seed, offset).
/// Empty tensors: nothing is written.
/// Errors: other dtypes or sizes; p not in [0, 1); null or misaligned pointers.
/// Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dropout_fwd(
    input: NVTETensor,
    output: NVTETensor,
    mask: NVTETensor,
    rng_state: NVTETensor,
    dropout_probability: f32,
    stream: cudaStream_t,
) {
    guard("nvte_dropout_fwd", || {
        let (x, y) = (check::tensor("input", input)?, check::tensor("output", output)?);
        let (x, y) = (("input", &x), ("output", &y));
        let mask = check::rowwise("mask", mask)?;
        let rng_state = check::rowwise("rng_state", rng_state)?;
        dropout(x, y, &mask, Some(&rng_state), dropout_probability, stream)
    });
}

/// Gradients of `nvte_dropout_fwd` by its mask: `dx = keep ? cast(dy / (1 - p)) : 0`.
///
/// Shapes, dtypes, errors: as the forward, without FP8; `grad_input` may be `grad_output`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dropout_bwd(
    grad_output: NVTETensor,
    mask: NVTETensor,
    grad_input: NVTETensor,
    dropout_probability: f32,
    stream: cudaStream_t,
) {
    guard("nvte_dropout_bwd", || {
        let dy = check::tensor("grad_output", grad_output)?;
        let dx = check::tensor("grad_input", grad_input)?;
        let (dy, dx) = (("grad_output", &dy), ("grad_input", &dx));
        dropout(dy, dx, &check::rowwise("mask", mask)?, None, dropout_probability, stream)
    });
}

/// Bias, dropout and the sum with a residual in one pass:
/// `y = cast(residual + (keep ? (x + bias) / (1 - p) : 0))`.
///
/// The mask is that of `nvte_dropout_fwd`, whose factor `1 / (1 - p)` it has too; sums and product are
/// rounded to Float32, the result once more. `nvte_dropout_bwd` turns gradients of the result to those of x;
/// the residual's are those of the result, the bias's the sums of those of x over the rows.
/// Shapes: input `[..., cols]`, residual and output with as many elements (output may be either); bias
/// `[cols]`, or null or an unset tensor for none; mask and `rng_state` as `nvte_dropout_fwd`.
/// Dtypes: Float32, Float16, BFloat16, the same for input, bias, residual and output.
/// Empty tensors: nothing is written.
/// Errors: as `nvte_dropout_fwd`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_bias_dropout_add(
    input: NVTETensor,
    bias: NVTETensor,
    residual: NVTETensor,
    output: NVTETensor,
    mask: NVTETensor,
    rng_state: NVTETensor,
    dropout_probability: f32,
    stream: cudaStream_t,
) {
    guard("nvtex_bias_dropout_add", || {
        let (x, y) = (check::tensor("input", input)?, check::tensor("output", output)?);
        let added = Added {
            bias: &check::rowwise_or_unset("bias", bias)?,
            residual: &check::tensor("residual", residual)?,
        };
        let mask = check::rowwise("mask", mask)?;
        let rng_state = check::rowwise("rng_state", rng_state)?;
        bias_dropout_add(&x, &added, &y, &mask, (&rng_state, dropout_probability), stream)
    });
}
