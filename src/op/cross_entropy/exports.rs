//! C functions of cross_entropy.h: losses over a vocabulary.
#![allow(unsafe_code, non_camel_case_types, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::check::truth;
use crate::error::guard;
use crate::sized::{self, Grows};
use crate::tensor::{from_c, from_c_enum};
use crate::workspace::{self, Asks};
use num_derive::FromPrimitive;
use std::mem::MaybeUninit;

/// What becomes of the losses of the tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXLossReduction {
    /// They stay as they are, and each has a gradient of its own.
    NVTEX_LOSS_NONE = 0,
    NVTEX_LOSS_SUM = 1,
    /// The mean over the tokens whose targets are not ignored; 0 if all are.
    NVTEX_LOSS_MEAN = 2,
}

from_c_enum!(NVTEXLossReduction, "an NVTEXLossReduction from 0 to 2");

/// Options of a cross entropy, set by `nvtex_cross_entropy_options_init`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXCrossEntropyOptions {
    /// The size of the struct.
    pub struct_size: usize,
    /// The target of tokens that do not count: -100. A number that is no target, such as INT64_MIN, ignores none.
    pub ignored_target: i64,
    /// Number of the first column of the logits in a vocabulary that is divided among ranks: 0.
    pub vocabulary_start: usize,
    /// Columns of the whole vocabulary: 0, which stands for those of the logits.
    pub vocabulary_size: usize,
    /// The part of a target's weight that is spread over all of the vocabulary, 0 to 1: 0.
    pub label_smoothing: f32,
    /// The factor of the square of the logsumexp, which is added to the loss: 0.
    pub z_loss: f32,
    /// NVTEX_LOSS_MEAN.
    pub reduction: MaybeUninit<NVTEXLossReduction>,
}

// SAFETY: the layout is that of C, begins with the size, and zeros are values of all fields.
unsafe impl Grows for NVTEXCrossEntropyOptions {
    const LEAST: usize = size_of::<Self>();
}

/// # Safety
/// `options` is null or points to as many bytes as its first field says.
unsafe fn rule(options: *const NVTEXCrossEntropyOptions) -> Result<Rule> {
    if options.is_null() {
        return Ok(Rule::default());
    }
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let options = unsafe { sized::read("options", options) }.map_err(Error::wrong_argument)?;
    Ok(Rule {
        reduction: match from_c("options.reduction", options.reduction)? {
            NVTEXLossReduction::NVTEX_LOSS_NONE => Reduction::None,
            NVTEXLossReduction::NVTEX_LOSS_SUM => Reduction::Sum,
            NVTEXLossReduction::NVTEX_LOSS_MEAN => Reduction::Mean,
        },
        ignored: options.ignored_target,
        label_smoothing: options.label_smoothing,
        z_loss: options.z_loss,
        start: options.vocabulary_start,
        size: options.vocabulary_size,
    })
}

fn losses(
    loss: NVTETensor,
    logsumexp: NVTETensor,
    total: NVTETensor,
    count: NVTETensor,
) -> Result<Losses> {
    Ok(Losses {
        loss: check::rowwise("loss", loss)?,
        logsumexp: check::rowwise_or_unset("logsumexp", logsumexp)?,
        total: check::rowwise_or_unset("total", total)?,
        count: check::rowwise_or_unset("count", count)?,
    })
}

/// Sets the defaults, which are in the descriptions of the fields, in the first `struct_size` bytes of options.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_cross_entropy_options_init(
    options: *mut NVTEXCrossEntropyOptions,
    struct_size: usize,
) {
    guard("nvtex_cross_entropy_options_init", || {
        let defaults = NVTEXCrossEntropyOptions {
            struct_size,
            ignored_target: Rule::default().ignored,
            vocabulary_start: 0,
            vocabulary_size: 0,
            label_smoothing: 0.0,
            z_loss: 0.0,
            reduction: MaybeUninit::new(NVTEXLossReduction::NVTEX_LOSS_MEAN),
        };
        // SAFETY: the caller vouches for the bytes.
        unsafe { sized::init("options", options, struct_size, &defaults) }
            .map_err(Error::wrong_argument)
    });
}

/// Computes the cross entropy of logits against one target for each token.
///
/// What it computes: with `l = log sum_v exp(x_v)` of a row x of logits and V columns,
/// `loss = l - (1 - s) x_target - s / V * sum_v x_v + z l^2`, where s is the label smoothing and z the factor of
/// the z-loss; in float32, with the row read once. A term with the factor 0 is left out. `total` is the sum of the
/// losses, or their mean over the targets that are not ignored, whose number is `count`.
///
/// Targets: a token whose target is ignored has loss and logsumexp 0, whatever its logits are. A target that is
/// neither ignored nor a column makes its loss NaN.
///
/// Shapes: logits `[..., V]`; targets, loss and logsumexp one element for each token; `total` and `count` one
/// element each. `logsumexp` is what the backward pass needs; it may be null or unset. `total` and `count` must be
/// null or unset if the reduction is none.
///
/// Dtypes: logits Float32, Float16 or BFloat16; targets Int32 or Int64; all others Float32, which holds numbers of
/// targets up to 2^24 exactly.
///
/// Options: null stands for the defaults.
///
/// Notes: sums are in a fixed order, so that results are the same in every run.
///
/// Errors: other dtypes or shapes; a vocabulary of which the logits have only a part; label smoothing outside of
/// [0, 1], a negative z-loss; outputs that overlap anything; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_cross_entropy_forward(
    logits: NVTETensor,
    targets: NVTETensor,
    loss: NVTETensor,
    logsumexp: NVTETensor,
    total: NVTETensor,
    count: NVTETensor,
    options: *const NVTEXCrossEntropyOptions,
    stream: cudaStream_t,
) {
    guard("nvtex_cross_entropy_forward", || {
        // SAFETY: the caller vouches for the struct.
        let rule = unsafe { rule(options)? };
        let x = check::tensor("logits", logits)?;
        let targets = check::rowwise("targets", targets)?;
        forward(&x, &targets, &losses(loss, logsumexp, total, count)?, &rule, stream)
    });
}

/// Computes the gradients of `nvtex_cross_entropy_forward` for its logits:
/// `dx_v = g (exp(x_v - l) (1 + 2 z l) - (v = target ? 1 - s : 0) - s / V)`.
///
/// What it computes: l is the logsumexp, g the gradient of the loss: `grad_loss`, divided by `max(count, 1)` for
/// the mean. Gradients of ignored targets are 0, those of targets that are no column are NaN. Logits and gradients
/// may be columns of a divided vocabulary: l is then that of all columns, from `nvtex_cross_entropy_combine`, and V
/// the size of the whole vocabulary.
///
/// Shapes: `grad_logits` as the logits, which it may be; `grad_loss` one element, or one for each token if the
/// reduction is none; null or unset for 1. `count` is read for the mean only.
///
/// Dtypes: `grad_logits` as the logits, all others as the forward pass.
///
/// Errors: as the forward pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_cross_entropy_backward(
    logits: NVTETensor,
    targets: NVTETensor,
    logsumexp: NVTETensor,
    grad_loss: NVTETensor,
    count: NVTETensor,
    grad_logits: NVTETensor,
    options: *const NVTEXCrossEntropyOptions,
    stream: cudaStream_t,
) {
    guard("nvtex_cross_entropy_backward", || {
        // SAFETY: the caller vouches for the struct.
        let rule = unsafe { rule(options)? };
        let x = check::tensor("logits", logits)?;
        let targets = check::rowwise("targets", targets)?;
        let logsumexp = check::rowwise("logsumexp", logsumexp)?;
        let grad = check::rowwise_or_unset("grad_loss", grad_loss)?;
        let count = check::rowwise_or_unset("count", count)?;
        let dx = check::tensor("grad_logits", grad_logits)?;
        backward(&x, &targets, &logsumexp, [&grad, &count], &dx, &rule, stream)
    });
}

/// Computes the cross entropy as `nvtex_cross_entropy_forward` does, and replaces the logits by their gradients, as
/// `nvtex_cross_entropy_backward` computes them.
///
/// Shapes, dtypes, options, errors: as those functions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_cross_entropy_forward_backward(
    logits: NVTETensor,
    targets: NVTETensor,
    grad_loss: NVTETensor,
    loss: NVTETensor,
    logsumexp: NVTETensor,
    total: NVTETensor,
    count: NVTETensor,
    options: *const NVTEXCrossEntropyOptions,
    stream: cudaStream_t,
) {
    guard("nvtex_cross_entropy_forward_backward", || {
        // SAFETY: the caller vouches for the struct.
        let rule = unsafe { rule(options)? };
        let x = check::tensor("logits", logits)?;
        let targets = check::rowwise("targets", targets)?;
        let grad = check::rowwise_or_unset("grad_loss", grad_loss)?;
        fused(&x, &targets, &grad, &losses(loss, logsumexp, total, count)?, &rule, stream)
    });
}

/// Computes what a rank that has some columns of the vocabulary knows of the losses, for
/// `nvtex_cross_entropy_combine`.
///
/// What it computes: for each token the maximum m of its logits here, `sum_v exp(x_v - m)`, the logit of the
/// target (0 if that is not among these columns, NaN if it is no column of the vocabulary), and `sum_v x_v`. These
/// are -Inf, 0, 0 and 0 if the target is ignored.
///
/// Options: `vocabulary_start` and `vocabulary_size` say which columns these are. Targets are numbers of the whole
/// vocabulary.
///
/// Shapes: partials `[4, tokens]`. Dtypes: partials Float32, others as `nvtex_cross_entropy_forward`.
///
/// Errors: as `nvtex_cross_entropy_forward`; columns beyond the size of the vocabulary.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_cross_entropy_partial(
    logits: NVTETensor,
    targets: NVTETensor,
    partials: NVTETensor,
    options: *const NVTEXCrossEntropyOptions,
    stream: cudaStream_t,
) {
    guard("nvtex_cross_entropy_partial", || {
        // SAFETY: the caller vouches for the struct.
        let rule = unsafe { rule(options)? };
        let x = check::tensor("logits", logits)?;
        let targets = check::rowwise("targets", targets)?;
        partial(&x, &targets, &check::rowwise("partials", partials)?, &rule, stream)
    });
}

/// Computes losses, as `nvtex_cross_entropy_forward` does, from the partials of all ranks, which the caller has
/// gathered.
///
/// Shapes: partials `[ranks, 4, tokens]`, the ranks in any order that is the same on all of them; others as
/// `nvtex_cross_entropy_forward`. Dtypes: as there.
///
/// Options: `vocabulary_size` must be given.
///
/// Errors: as `nvtex_cross_entropy_forward`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_cross_entropy_combine(
    partials: NVTETensor,
    targets: NVTETensor,
    loss: NVTETensor,
    logsumexp: NVTETensor,
    total: NVTETensor,
    count: NVTETensor,
    options: *const NVTEXCrossEntropyOptions,
    stream: cudaStream_t,
) {
    guard("nvtex_cross_entropy_combine", || {
        // SAFETY: the caller vouches for the struct.
        let rule = unsafe { rule(options)? };
        let partials = check::rowwise("partials", partials)?;
        let targets = check::rowwise("targets", targets)?;
        combine(&partials, &targets, &losses(loss, logsumexp, total, count)?, &rule, stream)
    });
}

/// Computes the cross entropy of a linear layer, `logits = hidden * weight^T`, and its gradients, without ever
/// having all logits in memory.
///
/// What it computes: the losses of `nvtex_cross_entropy_forward`; if there is a `grad_hidden`,
/// `grad_hidden = d * weight`, and if there is a `grad_weight`, `grad_weight = d^T * hidden`, added to what is
/// there if `accumulate_grad_weight`, where d are the gradients of the logits. Without both only the losses are
/// computed. It goes through the tokens in parts: logits of a part and their gradients are rounded to the dtype of
/// `hidden`, and `grad_weight` is rounded to its dtype after each part, so Float32 is best for it.
///
/// Shapes: hidden and `grad_hidden` `[..., h]`; weight and `grad_weight` `[V, h]`; others as
/// `nvtex_cross_entropy_forward_backward`.
///
/// Dtypes: hidden, weight and `grad_hidden` the same: Float32, Float16 or BFloat16; `grad_weight` any of these;
/// others as `nvtex_cross_entropy_forward_backward`.
///
/// Workspace: if it has no pointer, its shape and dtype become what the second call needs: about
/// `workspace_limit` bytes or less, 500 MB if the limit is 0, but no less than 16 tokens' logits. Parts are larger
/// and the call is faster with more.
///
/// Notes: the host waits for nothing, so that the call can be captured in a CUDA graph. Without tokens
/// `grad_weight` becomes 0 unless it is accumulated.
///
/// Errors: as `nvtex_cross_entropy_forward`; a workspace that is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_linear_cross_entropy(
    hidden: NVTETensor,
    weight: NVTETensor,
    targets: NVTETensor,
    grad_loss: NVTETensor,
    loss: NVTETensor,
    logsumexp: NVTETensor,
    total: NVTETensor,
    count: NVTETensor,
    grad_hidden: NVTETensor,
    grad_weight: NVTETensor,
    accumulate_grad_weight: MaybeUninit<bool>,
    options: *const NVTEXCrossEntropyOptions,
    workspace_limit: usize,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvtex_linear_cross_entropy", || {
        // SAFETY: the caller vouches for the struct.
        let rule = unsafe { rule(options)? };
        let optional = |name: &str, handle| {
            let tensor = check::optional_tensor(name, handle)?;
            Ok(tensor.filter(|tensor| tensor.rowwise.is_set()))
        };
        let grad_hidden = optional("grad_hidden", grad_hidden)?;
        let grad_weight = optional("grad_weight", grad_weight)?;
        let given = Linear {
            hidden: &check::tensor("hidden", hidden)?,
            weight: &check::tensor("weight", weight)?,
            targets: &check::rowwise("targets", targets)?,
            grad: &check::rowwise_or_unset("grad_loss", grad_loss)?,
            grad_hidden: grad_hidden.as_ref(),
            grad_weight: grad_weight.as_ref(),
            accumulate: truth(accumulate_grad_weight),
            limit: workspace_limit,
        };
        let losses = losses(loss, logsumexp, total, count)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            linear(&given, &losses, &rule, workspace, stream)
        })
    });
}
