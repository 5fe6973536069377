//! Losses over a vocabulary.

use super::operator::{operator, size};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// What a call of the loss computes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossEntropyPass {
    /// `loss`, and `logsumexp` if it is not null.
    NVTEX_CROSS_ENTROPY_FORWARD = 0,
    /// `partials` of the columns that are here.
    NVTEX_CROSS_ENTROPY_PARTIAL = 1,
    /// `grad_logits` from `logsumexp`.
    NVTEX_CROSS_ENTROPY_BACKWARD = 2,
    /// `loss`, `logsumexp` if it is not null, and `grad_logits`, which is the memory of the logits.
    NVTEX_CROSS_ENTROPY_FUSED = 3,
}

/// Cross entropy of `[tokens, vocabulary]` logits x against one target for each token; all in float32.
///
/// With `l = log sum_v exp(x_v)`: `loss = l - (1 - s) x_target - s / total * sum_v x_v + z l^2`, where s is
/// `label_smoothing`, z is `z_loss`, and a term with the factor 0 is left out. Gradient:
/// `dx_v = g (exp(x_v - l) (1 + 2 z l) - (v = target ? 1 - s : 0) - s / total)`, with `g = grad / max(count, 1)`.
///
/// The columns are `start` to `start + vocabulary` of `total`. A target that is ignored has loss, logsumexp and
/// gradients of 0. One that is neither ignored nor in `[0, total)` makes its loss and gradients NaN.
///
/// Partials, `[4, tokens]`: the maximum m of the row, `sum_v exp(x_v - m)`, the logit of the target, which is 0 if
/// that is not among the columns, and `sum_v x_v`; of ignored targets -Inf, 0, 0 and 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyArgs {
    pub logits: *const c_void,
    /// `[tokens]`
    pub targets: *const c_void,
    /// `[tokens]`
    pub loss: *mut f32,
    /// `[tokens]`, or null; read by the backward.
    pub logsumexp: *mut f32,
    /// `[4, tokens]`
    pub partials: *mut f32,
    /// As the logits, which it may be.
    pub grad_logits: *mut c_void,
    /// Gradient of the loss: one number, or `[tokens]` with `grad_per_token`; null for 1.
    pub grad: *const f32,
    /// One number on the device, or null for 1.
    pub count: *const f32,
    pub tokens: usize,
    pub vocabulary: usize,
    pub start: usize,
    pub total: usize,
    /// The target that is ignored.
    pub ignored: i64,
    pub label_smoothing: f32,
    pub z_loss: f32,
    pub pass: CrossEntropyPass,
    /// F32, F16 or BF16, of logits and gradients.
    pub dtype: NVTEDType,
    /// Int32 or Int64.
    pub target_dtype: NVTEDType,
    pub grad_per_token: bool,
}

operator! {
    cross_entropy(CrossEntropyArgs) version 1 minor 0; |a|
    variants a.pass as u32 => [forward, partial, backward, fused];
    dtypes a.dtype;
    features { GRAD = a.grad, COUNT = a.count }
    bytes (if a.grad_logits.is_null() { 1 } else { 2 }) * size(a.tokens * a.vocabulary, a.dtype);
}

/// Loss and logsumexp from the partials `[parts, 4, tokens]` of all parts of the vocabulary, as
/// [`CrossEntropyArgs`] defines them; parts in their order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CombineCrossEntropyArgs {
    pub partials: *const f32,
    /// `[tokens]`
    pub targets: *const c_void,
    /// `[tokens]`
    pub loss: *mut f32,
    /// `[tokens]`, or null.
    pub logsumexp: *mut f32,
    pub parts: usize,
    pub tokens: usize,
    pub total: usize,
    /// The target that is ignored.
    pub ignored: i64,
    pub label_smoothing: f32,
    pub z_loss: f32,
    /// Int32 or Int64.
    pub target_dtype: NVTEDType,
}

operator! {
    combine_cross_entropy(CombineCrossEntropyArgs) version 1 minor 0; |a|
    bytes 4 * (4 * a.parts + 2) * a.tokens;
}

/// How many targets are not ignored, and the sum or mean of losses, in float64 and a fixed order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TotalLossArgs {
    /// `[tokens]`, which are counted to `count`; null if `count` is there already.
    pub targets: *const c_void,
    /// `[tokens]`, or null.
    pub losses: *const f32,
    /// `sum losses`, divided by `max(count, 1)` if `mean`; null without losses.
    pub total: *mut f32,
    /// One number on the device.
    pub count: *mut f32,
    pub tokens: usize,
    /// The target that is ignored.
    pub ignored: i64,
    /// Int32 or Int64.
    pub target_dtype: NVTEDType,
    pub mean: bool,
}

operator! {
    total_loss(TotalLossArgs) version 1 minor 0; |a|
    features { TARGETS = a.targets, LOSSES = a.losses }
}
