//! Arguments of the MoE router.

use super::operator::{Present, operator, when};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// Score of an expert, of its logit x.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScore {
    /// `1 / (1 + exp(-x))`
    NVTEX_ROUTER_SIGMOID = 0,
    /// `exp(x - max) / sum exp(x - max)`
    NVTEX_ROUTER_SOFTMAX = 1,
    /// `sqrt(log(1 + exp(x)))`
    NVTEX_ROUTER_SQRTSOFTPLUS = 2,
}

/// The experts of each token, in one of three forms; the pointers of the others are null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// `[tokens, experts]`: 1 for the token's experts, 0 for others. As an input: not 0 and 0.
    pub bytes: *mut u8,
    /// `[tokens, ceil(experts / 8)]`: expert e is bit `e % 8` of byte `e / 8`; bits after the last
    /// expert are 0.
    pub bits: *mut u8,
    /// `[tokens, topk]`, best score first.
    pub indices: *mut c_void,
    /// Int16, Int32 or Int64.
    pub index_dtype: NVTEDType,
}

/// Choice of `topk` experts for each token, in float32 from the logits x `[tokens, experts]` on.
///
/// Scores s: of x, except for a softmax that is not `pre_softmax`, which has `s = x`. With a bias the
/// choice goes by `s + bias`. One order for everything that is chosen: the greater score first, of
/// equal ones (0 and -0 are) that of the lower index; NaN after all numbers.
/// With groups: the `groups` groups of neighbouring experts have as their score the sum of their
/// best `topk / group_topk`, added from the greatest on; experts outside the best `group_topk` groups are
/// not chosen.
///
/// Probabilities of those chosen, 0 for the others: `scaling_factor * p` with p = s for the softmax
/// of all and for `topk` 1, `s / (sum s + 1e-20)` for the other functions, and the softmax of the
/// chosen logits if not `pre_softmax`.
///
/// `all`: the scores of all experts, normalised over them (`s / (sum s + 1e-20)` for any `topk`; the
/// softmax as it is), are the probabilities; the choice goes by them. No bias, groups, cutoff.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RouterForwardArgs {
    pub logits: *const c_void,
    /// `[experts]` or null; null for the softmax.
    pub expert_bias: *const c_void,
    /// `[tokens, experts]`
    pub probs: *mut c_void,
    pub routing: Routing,
    /// `[tokens, experts]`: s for the sigmoid and the softmax of all experts, x for sqrtsoftplus. For a softmax
    /// that is not `pre_softmax`, p of the chosen experts (also where it is 0), -Inf for the others.
    pub intermediate: *mut f32,
    /// `[tokens]` or null: the greatest `s + bias` that is not chosen. If it is not null, some expert is not chosen.
    pub cutoff: *mut f32,
    pub tokens: usize,
    pub experts: usize,
    /// 1 to `experts`.
    pub topk: usize,
    /// 0 for none; else it divides `experts`.
    pub groups: usize,
    /// Divides `topk`, at most `groups`.
    pub group_topk: usize,
    pub scaling_factor: f32,
    pub score: RouterScore,
    /// False unless the score is the softmax; true if that and `all`.
    pub pre_softmax: bool,
    pub all: bool,
    /// F32, F16 or BF16, of the logits.
    pub dtype: NVTEDType,
    /// Of the probabilities: `dtype`, or if `all` also F32.
    pub probs_dtype: NVTEDType,
    /// F32, F16 or BF16.
    pub bias_dtype: NVTEDType,
}

operator! {
    router_forward(RouterForwardArgs) version 1 minor 0; |a|
    variants 3 * u32::from(a.all) + a.score as u32 => [
        topk_sigmoid, topk_softmax, topk_sqrtsoftplus,
        scores_sigmoid, scores_softmax, scores_sqrtsoftplus,
    ];
    dtypes a.dtype, a.probs_dtype, when(a.expert_bias, a.bias_dtype);
    features {
        BIAS = a.expert_bias,
        GROUPS = a.groups != 0,
        CUTOFF = a.cutoff,
        BITMAP = a.routing.bits,
        INDICES = a.routing.indices,
        PRE_SOFTMAX = a.pre_softmax,
    }
}

/// Gradients of the logits from those of the probabilities, in float32, with the intermediate output of
/// the forward. `g = scaling_factor * grad` of routed experts, 0 of others; sums over the routed.
///
/// Sigmoid (y = intermediate) and sqrtsoftplus (y of x = intermediate): if `topk > 1` or `all`,
/// with `S = sum y + 1e-20` and `D = sum g y`, `g = g / S - D / S^2` for the routed; then `g y (1 - y)`,
/// or `g f / (2 y + 1e-20)` with f = 1 for x > 20, else sigmoid(x).
/// Softmax (y = intermediate): `y (g - sum g y)`, for the routed if not `pre_softmax` (others 0), else for
/// all experts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RouterBackwardArgs {
    /// Unused if `all`.
    pub routing: Routing,
    pub intermediate: *const f32,
    /// `[tokens, experts]`, of `grad_dtype`.
    pub grad: *const c_void,
    /// `[tokens, experts]`
    pub grad_logits: *mut c_void,
    pub tokens: usize,
    pub experts: usize,
    pub topk: usize,
    pub scaling_factor: f32,
    pub score: RouterScore,
    pub pre_softmax: bool,
    /// Every expert is routed, whatever `routing` says.
    pub all: bool,
    /// F32, F16 or BF16, of the gradients of the logits.
    pub dtype: NVTEDType,
    /// Of the gradients of the probabilities: `dtype`, or if `all` also F32.
    pub grad_dtype: NVTEDType,
}

operator! {
    router_backward(RouterBackwardArgs) version 1 minor 0; |a|
    variants 3 * u32::from(a.all) + a.score as u32 => [
        topk_sigmoid, topk_softmax, topk_sqrtsoftplus,
        scores_sigmoid, scores_softmax, scores_sqrtsoftplus,
    ];
    dtypes a.dtype, a.grad_dtype;
    features {
        BITMAP = !a.all && a.routing.bits.present(),
        INDICES = !a.all && a.routing.indices.present(),
        PRE_SOFTMAX = a.pre_softmax,
    }
}

/// Counts distances to the cutoff: for every token t and expert e,
/// `b = floor(((cutoff[t] - scores[t, e]) - lower) * (bins / (upper - lower)))`, 0 for NaN, moved to
/// `[0, bins - 1]`, and `histogram[e, b] += 1`. The histogram is not cleared.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RouterHistogramArgs {
    /// `[tokens, experts]`
    pub scores: *const f32,
    /// `[tokens]`
    pub cutoff: *const f32,
    /// lower, upper
    pub bin_bounds: *const f32,
    /// `[experts, bins]`
    pub histogram: *mut i32,
    pub tokens: usize,
    pub experts: usize,
    pub bins: usize,
}

operator! {
    router_histogram(RouterHistogramArgs) version 1 minor 0; |a|
}

/// `loss = c * sum_j (sum_i probs[i, j]) * counts[j]` in float32, in a fixed order, with
/// `c = experts * coeff / topk / total / total` from left to right.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AuxLossArgs {
    /// `[rows, cols]`; no row: 0 is the loss.
    pub probs: *const c_void,
    /// `[cols]`
    pub counts: *const c_void,
    /// On the device, or null: `total_tokens`.
    pub device_total: *const i64,
    pub total_tokens: f32,
    pub experts: f32,
    pub topk: f32,
    pub coeff: f32,
    pub rows: usize,
    pub cols: usize,
    /// One element of `dtype`.
    pub loss: *mut c_void,
    /// `[2]`: c, and the loss in float32.
    pub constants: *mut f32,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
    /// Int16, Int32, Int64, BF16 or F32.
    pub counts_dtype: NVTEDType,
}

operator! {
    aux_loss(AuxLossArgs) version 1 minor 0; |a|
    dtypes a.dtype, a.counts_dtype;
    features { DEVICE_TOTAL = a.device_total }
}

/// `grad_probs[i, j] = cast((c * counts[j]) * grad_loss)` for all of the `rows` rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AuxLossBackwardArgs {
    /// c
    pub constants: *const f32,
    pub counts: *const c_void,
    pub grad_loss: *const c_void,
    pub grad_probs: *mut c_void,
    pub rows: usize,
    pub cols: usize,
    /// F32, F16 or BF16, of both gradients.
    pub dtype: NVTEDType,
    /// Int16, Int32, Int64, BF16 or F32.
    pub counts_dtype: NVTEDType,
}

operator! {
    aux_loss_backward(AuxLossBackwardArgs) version 1 minor 0; |a|
    dtypes a.dtype, a.counts_dtype;
}

/// The probabilities of the chosen experts one behind the other, `weights[t, k] = probs[t, indices[t, k]]`; or
/// (`backward`) their gradients where the probabilities are: `probs[t, indices[t, k]] = weights[t, k]`, 0 elsewhere. An
/// index that is not below `experts` has the weight 0, and no gradient.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RouterWeightsArgs {
    /// `[tokens, experts]`; written if `backward`.
    pub probs: *mut f32,
    /// `[tokens, topk]`; written unless `backward`.
    pub weights: *mut f32,
    /// `[tokens, topk]`, different ones for each token.
    pub indices: *const i32,
    pub tokens: usize,
    pub experts: usize,
    pub topk: usize,
    pub backward: bool,
}

operator! {
    router_weights(RouterWeightsArgs) version 1 minor 0; |a|
    variants u32::from(a.backward) => [forward, backward];
}

/// The loss of the size of the logits, with `l = log(sum_e exp(logits[t, e]))` in float32: `terms[t] = factor * l^2`; or
/// its gradient, which is added: `grad_logits[t, e] += 2 factor g l exp(logits[t, e] - l)`, g = `*grad_loss`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RouterZLossArgs {
    /// `[tokens, experts]`
    pub logits: *const f32,
    /// `[tokens]`; null if `grad_logits` is not.
    pub terms: *mut f32,
    /// `[tokens, experts]`, or null.
    pub grad_logits: *mut f32,
    /// One float; null without `grad_logits`.
    pub grad_loss: *const f32,
    pub tokens: usize,
    pub experts: usize,
    pub factor: f32,
}

operator! {
    router_z_loss(RouterZLossArgs) version 1 minor 0; |a|
    variants u32::from(a.grad_logits.present()) => [forward, backward];
}
