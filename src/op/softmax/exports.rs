//! C functions of softmax.h: softmax of scaled scores, unmasked, masked and causal.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;

/// Computes the softmax of scaled scores over the last dimension.
///
/// What it computes: `y = exp(t - max t) / sum exp(t - max t)` with `t = scale_factor * x`, in float32
/// (the scale is not rounded to the dtype). A NaN makes its row NaN.
///
/// Shapes: `[b, h, s_q, s_k]`, any sizes; the results may be the input.
///
/// Dtypes: Float32, Float16 or BFloat16, the same for both.
///
/// Notes: nothing is written to empty tensors.
///
/// Errors: other dtypes or shapes; results that overlap the input and are not the input; null or
/// misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_softmax_forward(
    input: NVTETensor,
    softmax_results: NVTETensor,
    scale_factor: f32,
    stream: cudaStream_t,
) {
    guard("nvte_scaled_softmax_forward", || {
        forward_of(input, softmax_results, (scale_factor, NVTEX_SOFTMAX_UNMASKED), stream)
    });
}

/// Computes the gradients of `nvte_scaled_softmax_forward` from its results y and their gradients dy:
/// `dx = scale_factor * y * (dy - sum(dy * y))`.
///
/// Shapes, dtypes: as the forward pass, the same for all; `output_grads` may be one of the inputs.
///
/// Errors: as the forward pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_softmax_backward(
    incoming_grads: NVTETensor,
    softmax_results: NVTETensor,
    output_grads: NVTETensor,
    scale_factor: f32,
    stream: cudaStream_t,
) {
    let form = (scale_factor, NVTEX_SOFTMAX_UNMASKED);
    guard("nvte_scaled_softmax_backward", || {
        backward_of([incoming_grads, softmax_results, output_grads], form, stream)
    });
}

/// Computes a softmax as `nvte_scaled_softmax_forward` does, with scaled scores of -10000 where the
/// byte of the mask is exactly 1. A row whose largest scaled score is -10000 becomes 0.
///
/// Shapes: mask `[b or more, 1, s_q, s_k]`, or `[1, 1, s_q, s_k]` for the whole batch. Dtype: Byte.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_masked_softmax_forward(
    input: NVTETensor,
    mask: NVTETensor,
    softmax_results: NVTETensor,
    scale_factor: f32,
    stream: cudaStream_t,
) {
    guard("nvte_scaled_masked_softmax_forward", || {
        let x = check::tensor("input", input)?;
        let y = check::tensor("softmax_results", softmax_results)?;
        let mask = check::rowwise("mask", mask)?;
        forward(&x, Some(&mask), &y, (scale_factor, NVTEX_SOFTMAX_BYTES), stream)
    });
}

/// Computes the gradients of `nvte_scaled_masked_softmax_forward` as `nvte_scaled_softmax_backward`
/// does; it needs no mask, because the results of masked scores are 0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_masked_softmax_backward(
    incoming_grads: NVTETensor,
    softmax_results: NVTETensor,
    output_grads: NVTETensor,
    scale_factor: f32,
    stream: cudaStream_t,
) {
    let form = (scale_factor, NVTEX_SOFTMAX_BYTES);
    guard("nvte_scaled_masked_softmax_backward", || {
        backward_of([incoming_grads, softmax_results, output_grads], form, stream)
    });
}

/// Computes a softmax as `nvte_scaled_softmax_forward` does, over the scores `j <= i` of row i. The
/// other results are 0, and their scores are not used.
///
/// Shapes: `[b * h, s, s]`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_upper_triang_masked_softmax_forward(
    input: NVTETensor,
    softmax_results: NVTETensor,
    scale_factor: f32,
    stream: cudaStream_t,
) {
    guard("nvte_scaled_upper_triang_masked_softmax_forward", || {
        forward_of(input, softmax_results, (scale_factor, NVTEX_SOFTMAX_CAUSAL), stream)
    });
}

/// Computes the gradients of `nvte_scaled_upper_triang_masked_softmax_forward`. They are 0 for `j > i`,
/// whatever the inputs hold there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_upper_triang_masked_softmax_backward(
    incoming_grads: NVTETensor,
    softmax_results: NVTETensor,
    output_grads: NVTETensor,
    scale_factor: f32,
    stream: cudaStream_t,
) {
    let form = (scale_factor, NVTEX_SOFTMAX_CAUSAL);
    guard("nvte_scaled_upper_triang_masked_softmax_backward", || {
        backward_of([incoming_grads, softmax_results, output_grads], form, stream)
    });
}

/// Computes a softmax as `nvte_scaled_softmax_forward` does, over the scores `j <= i + s_k - s_q` of
/// row i. The other results are 0, and their scores are not used.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_aligned_causal_masked_softmax_forward(
    input: NVTETensor,
    softmax_results: NVTETensor,
    scale_factor: f32,
    stream: cudaStream_t,
) {
    let form = (scale_factor, NVTEX_SOFTMAX_CAUSAL_BOTTOM_RIGHT);
    guard("nvte_scaled_aligned_causal_masked_softmax_forward", || {
        forward_of(input, softmax_results, form, stream)
    });
}

/// Computes the gradients of `nvte_scaled_aligned_causal_masked_softmax_forward`. They are 0 for
/// `j > i + s_k - s_q`, whatever the inputs hold there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_scaled_aligned_causal_masked_softmax_backward(
    incoming_grads: NVTETensor,
    softmax_results: NVTETensor,
    output_grads: NVTETensor,
    scale_factor: f32,
    stream: cudaStream_t,
) {
    let form = (scale_factor, NVTEX_SOFTMAX_CAUSAL_BOTTOM_RIGHT);
    guard("nvte_scaled_aligned_causal_masked_softmax_backward", || {
        backward_of([incoming_grads, softmax_results, output_grads], form, stream)
    });
}

/// A forward without a mask of bytes.
fn forward_of(
    input: NVTETensor,
    softmax_results: NVTETensor,
    form: (f32, SoftmaxMask),
    stream: cudaStream_t,
) -> Result<()> {
    let x = check::tensor("input", input)?;
    forward(&x, None, &check::tensor("softmax_results", softmax_results)?, form, stream)
}

/// The backward of handles of the incoming gradients, the results and the output.
fn backward_of(
    [grads, results, output]: [NVTETensor; 3],
    form: (f32, SoftmaxMask),
    stream: cudaStream_t,
) -> Result<()> {
    let dy = check::tensor("incoming_grads", grads)?;
    let y = check::tensor("softmax_results", results)?;
    backward(&dy, &y, &check::tensor("output_grads", output)?, form, stream)
}
