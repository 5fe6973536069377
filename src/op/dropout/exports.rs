//! C functions of dropout.h.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;

/// Drops elements at random, and writes which ones were kept: `y = keep ? cast(x / (1 - p)) : 0`.
///
/// Mask: element e is bit `e % 8` (1: kept) of byte `e / 8`. It is dropped if its random byte is less
/// than `floor(256 p)`, so p counts in steps of 1/256, while the factor `1 / (1 - p)` is not rounded.
/// The random bytes come from Philox 4x32-10, so that the seed and offset of `rng_state` determine the
/// mask: 16 elements use four words at the stream position `offset` of the sequence `e / 16`.
///
/// Shapes: any with the same number of elements n; the output may be the input. The mask has
/// `ceil(n / 8)` bytes of any dtype, whose bits after the last element are set to 0. `rng_state` is
/// `[2]` on the device.
///
/// Dtypes: Float32, Float16 or BFloat16, the same for both, or from Float8E4M3 or Float8E5M2 with a
/// `scale_inv`, which multiplies x; `rng_state` Int64 (seed, offset).
///
/// Notes: nothing is written to empty tensors.
///
/// Errors: other dtypes or sizes; p not in [0, 1); null or misaligned pointers.
///
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

/// Computes the gradients of `nvte_dropout_fwd` from its mask: `dx = keep ? cast(dy / (1 - p)) : 0`.
///
/// Shapes, dtypes, errors: as the forward pass, without FP8; `grad_input` may be `grad_output`.
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

/// Adds a bias, drops elements at random and adds a residual, in one pass:
/// `y = cast(residual + (keep ? (x + bias) / (1 - p) : 0))`.
///
/// What it computes: mask and factor are those of `nvte_dropout_fwd`. Sums and product are rounded to
/// Float32, the result once more.
///
/// Gradients: `nvte_dropout_bwd` turns those of the result into those of x. Those of the residual are
/// those of the result, and those of the bias the sums of those of x over the rows.
///
/// Shapes: input `[..., cols]`; residual and output with as many elements (output may be either); bias
/// `[cols]`, or null or an unset tensor for none; mask and `rng_state` as `nvte_dropout_fwd`.
///
/// Dtypes: Float32, Float16 or BFloat16, the same for input, bias, residual and output.
///
/// Notes: nothing is written to empty tensors.
///
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
        bias_dropout_add(&x, &added, &y, &mask, (&rng_state, 0, dropout_probability), stream)
    });
}
