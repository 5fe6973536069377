//! C functions of fused_router.h: the router of a mixture of experts.
#![allow(unsafe_code, non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::error::guard;
use crate::tensor::from_c;
use std::mem::MaybeUninit;

/// Chooses experts as `nvte_fused_topk_with_score_function_forward_v2` does, with a map of bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_topk_with_score_function_forward(
    logits: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    use_pre_softmax: i32,
    num_groups: i32,
    group_topk: i32,
    scaling_factor: f32,
    score_function: i32,
    expert_bias: NVTETensor,
    probs: NVTETensor,
    routing_map: NVTETensor,
    intermediate_output: NVTETensor,
    stream: cudaStream_t,
) {
    let rule = Rule {
        use_pre_softmax,
        num_groups,
        group_topk,
        scaling_factor,
        ..Rule::new([num_tokens, num_experts, topk], score_function)
    };
    let experts = ExpertsOf::bytes(routing_map);
    let tensors =
        TensorsOf { logits, expert_bias, probs, experts, intermediate: intermediate_output };
    guard("nvte_fused_topk_with_score_function_forward", || {
        forward(&rule, &tensors.get()?, stream)
    });
}

/// Chooses `topk` of E experts for each of T tokens by their scores, and computes the probabilities of
/// the chosen.
///
/// Scores: s of a logit x, in float32, is the sigmoid (`score_function` 0), the softmax over the E
/// logits (1), or `sqrt(log(1 + exp(x)))` (2, sqrtsoftplus).
///
/// Choice: by `s + expert_bias`. With the softmax there is no bias, and without `use_pre_softmax` the
/// choice goes by x. There is one order for all functions: the greater comes first; of equal values (0
/// and -0 are equal) the lower expert; NaN come after all numbers.
///
/// Groups: with `group_topk > 0` only experts of the best `group_topk` of `num_groups` groups of
/// neighbours are chosen. The score of a group is the sum of its best `topk / group_topk`.
///
/// Probabilities: `probs = cast(scaling_factor * p)` for chosen experts, exactly 0 for others, where p
/// is
/// - softmax without `use_pre_softmax`: the softmax of the chosen logits,
/// - softmax with `use_pre_softmax`: s,
/// - the other functions: s if `topk` is 1, otherwise `s / (sum s + 1e-20)` over the chosen.
///
/// `intermediate_output`, which the backward pass reads: s (sigmoid, softmax with `use_pre_softmax`), x
/// (sqrtsoftplus), or p for chosen and -Inf for other experts (softmax without). A logit of -Inf has
/// the softmax 0, unless all are -Inf.
///
/// Shapes: logits, probs, `intermediate_output` `[T, E]`; `expert_bias` `[E]`, or unset for none;
/// `routing_map` `[T, E]` bytes of 0 and 1, or `[T, ceil(E / 8)]` with expert e in bit `e % 8` of byte
/// `e / 8`. T may be 0; neither E nor `T * E` has a limit.
///
/// Dtypes: logits Float32, Float16 or BFloat16, probs the same; `expert_bias` any of these;
/// `intermediate_output` Float32; the map one byte an element. Outputs may declare other dtypes if they
/// have enough bytes. No output may overlap anything.
///
/// Errors: other shapes or dtypes; a `topk` that is not in 1 to E; groups that do not divide E or
/// `topk`, or exceed either; an unknown function or format; null or misaligned pointers.
///
/// Source of the groups: DeepSeek-V3 Technical Report (2024).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_topk_with_score_function_forward_v2(
    logits: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    use_pre_softmax: i32,
    num_groups: i32,
    group_topk: i32,
    scaling_factor: f32,
    score_function: i32,
    expert_bias: NVTETensor,
    probs: NVTETensor,
    routing_map: NVTETensor,
    routing_map_format: MaybeUninit<NVTERoutingMapFormat>,
    intermediate_output: NVTETensor,
    stream: cudaStream_t,
) {
    let rule = Rule {
        use_pre_softmax,
        num_groups,
        group_topk,
        scaling_factor,
        ..Rule::new([num_tokens, num_experts, topk], score_function)
    };
    let experts = ExpertsOf::Map(routing_map, routing_map_format);
    let tensors =
        TensorsOf { logits, expert_bias, probs, experts, intermediate: intermediate_output };
    guard("nvte_fused_topk_with_score_function_forward_v2", || {
        forward(&rule, &tensors.get()?, stream)
    });
}

/// Chooses experts as `nvte_fused_topk_with_score_function_forward_v2` does, and writes their numbers,
/// best first, instead of a map.
///
/// Shapes: `topk_indices` `[T, topk]`. Dtypes: Int16 (for E up to 32767), Int32 or Int64.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_topk_with_score_function_forward_with_indices(
    logits: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    use_pre_softmax: i32,
    num_groups: i32,
    group_topk: i32,
    scaling_factor: f32,
    score_function: i32,
    expert_bias: NVTETensor,
    probs: NVTETensor,
    topk_indices: NVTETensor,
    intermediate_output: NVTETensor,
    stream: cudaStream_t,
) {
    let rule = Rule {
        use_pre_softmax,
        num_groups,
        group_topk,
        scaling_factor,
        ..Rule::new([num_tokens, num_experts, topk], score_function)
    };
    let experts = ExpertsOf::Indices(topk_indices);
    let tensors =
        TensorsOf { logits, expert_bias, probs, experts, intermediate: intermediate_output };
    guard("nvte_fused_topk_with_score_function_forward_with_indices", || {
        forward(&rule, &tensors.get()?, stream)
    });
}

/// Chooses experts as `nvte_fused_topk_with_score_function_forward_v2` does with the sigmoid and a
/// bias, and writes what the next bias is made from (quantile balancing): how far each score is from
/// being chosen.
///
/// What it computes: `cutoff[t]` is the greatest `s + expert_bias` of the token that was not chosen.
/// With `NVTE_QB_HISTOGRAM_FUSED_ATOMIC`, `nvte_qb_histogram_accumulate` of the scores s follows; with
/// `NVTE_QB_HISTOGRAM_TWO_KERNEL` the histogram is left alone.
///
/// Shapes: `expert_bias` `[E]`, cutoff `[T]`, histogram `[E, bins]`, `bin_bounds` `[2]` (lower, upper)
/// on the device; others as in `nvte_fused_topk_with_score_function_forward_v2`. `topk` is less than E.
///
/// Dtypes: bias, cutoff and bounds Float32; histogram Int32.
///
/// Errors: as `nvte_fused_topk_with_score_function_forward_v2`; bounds that are not finite with lower <
/// upper. To read them the call waits for the stream, so a graph cannot capture it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_topk_with_score_function_forward_qb_v2(
    logits: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    scaling_factor: f32,
    expert_bias: NVTETensor,
    probs: NVTETensor,
    routing_map: NVTETensor,
    routing_map_format: MaybeUninit<NVTERoutingMapFormat>,
    intermediate_output: NVTETensor,
    cutoff: NVTETensor,
    histogram: NVTETensor,
    bin_bounds: NVTETensor,
    histogram_mode: MaybeUninit<NVTEQBHistogramMode>,
    stream: cudaStream_t,
) {
    let rule = Rule { scaling_factor, ..Rule::new([num_tokens, num_experts, topk], 0) };
    let experts = ExpertsOf::Map(routing_map, routing_map_format);
    let tensors =
        TensorsOf { logits, expert_bias, probs, experts, intermediate: intermediate_output };
    let balance = BalanceOf { cutoff, histogram, bin_bounds, mode: histogram_mode, checked: true };
    guard("nvte_fused_topk_with_score_function_forward_qb_v2", || {
        forward_balanced(&rule, &tensors.get()?, &balance.get()?, stream)
    });
}

/// Chooses experts as `nvte_fused_topk_with_score_function_forward_qb_v2` does, but does not read the
/// bounds, and so does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_topk_with_score_function_forward_qb_v2_unchecked(
    logits: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    scaling_factor: f32,
    expert_bias: NVTETensor,
    probs: NVTETensor,
    routing_map: NVTETensor,
    routing_map_format: MaybeUninit<NVTERoutingMapFormat>,
    intermediate_output: NVTETensor,
    cutoff: NVTETensor,
    histogram: NVTETensor,
    bin_bounds: NVTETensor,
    histogram_mode: MaybeUninit<NVTEQBHistogramMode>,
    stream: cudaStream_t,
) {
    let rule = Rule { scaling_factor, ..Rule::new([num_tokens, num_experts, topk], 0) };
    let experts = ExpertsOf::Map(routing_map, routing_map_format);
    let tensors =
        TensorsOf { logits, expert_bias, probs, experts, intermediate: intermediate_output };
    let balance = BalanceOf { cutoff, histogram, bin_bounds, mode: histogram_mode, checked: false };
    guard("nvte_fused_topk_with_score_function_forward_qb_v2_unchecked", || {
        forward_balanced(&rule, &tensors.get()?, &balance.get()?, stream)
    });
}

/// Chooses experts as `nvte_fused_topk_with_score_function_forward_qb_v2` does, and writes their
/// numbers as `nvte_fused_topk_with_score_function_forward_with_indices` does.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_topk_with_score_function_forward_qb_with_indices(
    logits: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    scaling_factor: f32,
    expert_bias: NVTETensor,
    probs: NVTETensor,
    topk_indices: NVTETensor,
    intermediate_output: NVTETensor,
    cutoff: NVTETensor,
    histogram: NVTETensor,
    bin_bounds: NVTETensor,
    histogram_mode: MaybeUninit<NVTEQBHistogramMode>,
    stream: cudaStream_t,
) {
    let rule = Rule { scaling_factor, ..Rule::new([num_tokens, num_experts, topk], 0) };
    let experts = ExpertsOf::Indices(topk_indices);
    let tensors =
        TensorsOf { logits, expert_bias, probs, experts, intermediate: intermediate_output };
    let balance = BalanceOf { cutoff, histogram, bin_bounds, mode: histogram_mode, checked: true };
    guard("nvte_fused_topk_with_score_function_forward_qb_with_indices", || {
        forward_balanced(&rule, &tensors.get()?, &balance.get()?, stream)
    });
}

/// Chooses experts as `nvte_fused_topk_with_score_function_forward_qb_with_indices` does, but does not
/// read the bounds, and so does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_topk_with_score_function_forward_qb_with_indices_unchecked(
    logits: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    scaling_factor: f32,
    expert_bias: NVTETensor,
    probs: NVTETensor,
    topk_indices: NVTETensor,
    intermediate_output: NVTETensor,
    cutoff: NVTETensor,
    histogram: NVTETensor,
    bin_bounds: NVTETensor,
    histogram_mode: MaybeUninit<NVTEQBHistogramMode>,
    stream: cudaStream_t,
) {
    let rule = Rule { scaling_factor, ..Rule::new([num_tokens, num_experts, topk], 0) };
    let experts = ExpertsOf::Indices(topk_indices);
    let tensors =
        TensorsOf { logits, expert_bias, probs, experts, intermediate: intermediate_output };
    let balance = BalanceOf { cutoff, histogram, bin_bounds, mode: histogram_mode, checked: false };
    guard("nvte_fused_topk_with_score_function_forward_qb_with_indices_unchecked", || {
        forward_balanced(&rule, &tensors.get()?, &balance.get()?, stream)
    });
}

/// Counts in a histogram how far the scores of all experts are from the cutoffs of their tokens.
///
/// What it computes: for every token t and expert e,
/// `b = floor(((cutoff[t] - raw_scores[t, e]) - lower) * scale)` with `scale = bins / (upper - lower)`,
/// 0 for NaN, limited to `[0, bins - 1]`; then `histogram[e, b] += 1`.
///
/// Shapes: `raw_scores` `[T, E]`, cutoff `[T]`, `bin_bounds` `[2]` (lower, upper) on the device,
/// histogram `[E, bins]` with any number of bins.
///
/// Dtypes: Float32; histogram Int32.
///
/// Notes: nothing is written for empty tensors. To read the bounds the call waits for the stream, so a
/// graph cannot capture it.
///
/// Errors: other shapes or dtypes; null or misaligned pointers; bounds that are not finite with lower <
/// upper.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_qb_histogram_accumulate(
    raw_scores: NVTETensor,
    cutoff: NVTETensor,
    bin_bounds: NVTETensor,
    histogram: NVTETensor,
    stream: cudaStream_t,
) {
    let mode = MaybeUninit::new(NVTE_QB_HISTOGRAM_FUSED_ATOMIC);
    let balance = BalanceOf { cutoff, histogram, bin_bounds, mode, checked: true };
    guard("nvte_qb_histogram_accumulate", || {
        accumulate(&check::rowwise("raw_scores", raw_scores)?, &balance.get()?, stream)
    });
}

/// Counts as `nvte_qb_histogram_accumulate` does, but does not read the bounds, and so does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_qb_histogram_accumulate_unchecked(
    raw_scores: NVTETensor,
    cutoff: NVTETensor,
    bin_bounds: NVTETensor,
    histogram: NVTETensor,
    stream: cudaStream_t,
) {
    let mode = MaybeUninit::new(NVTE_QB_HISTOGRAM_FUSED_ATOMIC);
    let balance = BalanceOf { cutoff, histogram, bin_bounds, mode, checked: false };
    guard("nvte_qb_histogram_accumulate_unchecked", || {
        accumulate(&check::rowwise("raw_scores", raw_scores)?, &balance.get()?, stream)
    });
}

/// Computes gradients as `nvte_fused_topk_with_score_function_backward_v2` does, with a map of bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_topk_with_score_function_backward(
    routing_map: NVTETensor,
    intermediate_output: NVTETensor,
    grad_probs: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    use_pre_softmax: i32,
    scaling_factor: f32,
    score_function: i32,
    grad_logits: NVTETensor,
    stream: cudaStream_t,
) {
    let rule = Rule {
        use_pre_softmax,
        scaling_factor,
        ..Rule::new([num_tokens, num_experts, topk], score_function)
    };
    let experts = ExpertsOf::bytes(routing_map);
    let gradients = [("grad_probs", grad_probs), ("grad_logits", grad_logits)];
    guard("nvte_fused_topk_with_score_function_backward", || {
        let [grad, output] = &rowwise(gradients)?;
        let intermediate = &check::rowwise("intermediate_output", intermediate_output)?;
        backward(&rule, &experts.get()?, [intermediate, grad, output], stream)
    });
}

/// Computes the gradients of the logits of `nvte_fused_topk_with_score_function_forward_v2`. The bias
/// gets none.
///
/// What it computes: with `g = scaling_factor * grad_probs` and sums over the chosen experts, in
/// float32,
/// - sigmoid and sqrtsoftplus (score y): if `topk > 1`, `S = sum y + 1e-20`, `D = sum g y` and
///   `g = g / S - D / S^2`; then `g y (1 - y)` for the sigmoid, or `g f / (2 y + 1e-20)` for
///   sqrtsoftplus, where f is 1 for x > 20, otherwise sigmoid(x);
/// - softmax (probability y): `y (g - sum g y)`; with `use_pre_softmax` for all experts, where g is 0
///   for those that were not chosen.
///
/// The gradients of other experts are 0, whatever the inputs hold there. Every element is written.
///
/// Shapes: as the forward pass. A byte of the map that is not 0 marks a chosen expert.
///
/// Dtypes: `grad_logits` Float32, Float16 or BFloat16; `grad_probs` is read as the same;
/// `intermediate_output` Float32.
///
/// Errors: as the forward pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_topk_with_score_function_backward_v2(
    routing_map: NVTETensor,
    routing_map_format: MaybeUninit<NVTERoutingMapFormat>,
    intermediate_output: NVTETensor,
    grad_probs: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    use_pre_softmax: i32,
    scaling_factor: f32,
    score_function: i32,
    grad_logits: NVTETensor,
    stream: cudaStream_t,
) {
    let rule = Rule {
        use_pre_softmax,
        scaling_factor,
        ..Rule::new([num_tokens, num_experts, topk], score_function)
    };
    let experts = ExpertsOf::Map(routing_map, routing_map_format);
    let gradients = [("grad_probs", grad_probs), ("grad_logits", grad_logits)];
    guard("nvte_fused_topk_with_score_function_backward_v2", || {
        let [grad, output] = &rowwise(gradients)?;
        let intermediate = &check::rowwise("intermediate_output", intermediate_output)?;
        backward(&rule, &experts.get()?, [intermediate, grad, output], stream)
    });
}

/// Computes gradients as `nvte_fused_topk_with_score_function_backward_v2` does, from the numbers of
/// the chosen experts.
///
/// Shapes, dtypes: `topk_indices` as `nvte_fused_topk_with_score_function_forward_with_indices` writes
/// them, each expert at most once a token. Numbers that belong to no expert are ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_topk_with_score_function_backward_with_indices(
    topk_indices: NVTETensor,
    intermediate_output: NVTETensor,
    grad_probs: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    use_pre_softmax: i32,
    scaling_factor: f32,
    score_function: i32,
    grad_logits: NVTETensor,
    stream: cudaStream_t,
) {
    let rule = Rule {
        use_pre_softmax,
        scaling_factor,
        ..Rule::new([num_tokens, num_experts, topk], score_function)
    };
    let experts = ExpertsOf::Indices(topk_indices);
    let gradients = [("grad_probs", grad_probs), ("grad_logits", grad_logits)];
    guard("nvte_fused_topk_with_score_function_backward_with_indices", || {
        let [grad, output] = &rowwise(gradients)?;
        let intermediate = &check::rowwise("intermediate_output", intermediate_output)?;
        backward(&rule, &experts.get()?, [intermediate, grad, output], stream)
    });
}

/// Computes scores as `nvte_fused_score_for_moe_aux_loss_forward_v2` does, with a map of bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_score_for_moe_aux_loss_forward(
    logits: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    score_function: i32,
    scores: NVTETensor,
    routing_map: NVTETensor,
    intermediate_output: NVTETensor,
    stream: cudaStream_t,
) {
    let rule = Rule::new([num_tokens, num_experts, topk], score_function);
    let (handles, experts) = ([logits, scores, intermediate_output], ExpertsOf::bytes(routing_map));
    guard("nvte_fused_score_for_moe_aux_loss_forward", || {
        scores_of(&rule, handles, experts, stream)
    });
}

/// Computes the scores of all experts for the loss of their balance, and a map of the best.
///
/// What it computes: `scores = s / (sum s + 1e-20)` over the E experts for sigmoid and sqrtsoftplus,
/// and the softmax as it is. The map marks the `topk` greatest, in the order of
/// `nvte_fused_topk_with_score_function_forward_v2`. `intermediate_output` is written: s of the sigmoid
/// and of the softmax, x of sqrtsoftplus.
///
/// Shapes: logits, scores and `intermediate_output` `[T, E]`; the map as in
/// `nvte_fused_topk_with_score_function_forward_v2`. T may be 0.
///
/// Dtypes: logits Float32, Float16 or BFloat16. Scores are written in the dtype of the logits if they
/// declare it, otherwise as Float32. `intermediate_output` is written as Float32. Tensors that are
/// written as Float32 must have the bytes for that.
///
/// Errors: as `nvte_fused_topk_with_score_function_forward_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_score_for_moe_aux_loss_forward_v2(
    logits: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    score_function: i32,
    scores: NVTETensor,
    routing_map: NVTETensor,
    routing_map_format: MaybeUninit<NVTERoutingMapFormat>,
    intermediate_output: NVTETensor,
    stream: cudaStream_t,
) {
    let rule = Rule::new([num_tokens, num_experts, topk], score_function);
    let (handles, experts) =
        ([logits, scores, intermediate_output], ExpertsOf::Map(routing_map, routing_map_format));
    guard("nvte_fused_score_for_moe_aux_loss_forward_v2", || {
        scores_of(&rule, handles, experts, stream)
    });
}

/// Computes the gradients of the logits of `nvte_fused_score_for_moe_aux_loss_forward_v2`.
///
/// What it computes: as `nvte_fused_topk_with_score_function_backward_v2` with all experts chosen, a
/// factor of 1, and the normalization for any `topk`, which is not used.
///
/// Shapes: `[T, E]`; T may be 0.
///
/// Dtypes: `grad_logits` Float32, Float16 or BFloat16; `grad_scores` Float32 or the dtype of
/// `grad_logits`; `intermediate_output` Float32.
///
/// Errors: other shapes or dtypes; an unknown function; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_score_for_moe_aux_loss_backward(
    intermediate_output: NVTETensor,
    grad_scores: NVTETensor,
    num_tokens: i32,
    num_experts: i32,
    topk: i32,
    score_function: i32,
    grad_logits: NVTETensor,
    stream: cudaStream_t,
) {
    let rule = Rule::new([num_tokens, num_experts, topk], score_function);
    let gradients = [("grad_scores", grad_scores), ("grad_logits", grad_logits)];
    guard("nvte_fused_score_for_moe_aux_loss_backward", || {
        let [grad, output] = &rowwise(gradients)?;
        let intermediate = &check::rowwise("intermediate_output", intermediate_output)?;
        scores_backward(&rule, [intermediate, grad, output], stream)
    });
}

/// Computes the loss of the balance of experts.
///
/// What it computes: `aux_loss = cast(C * sum_j (sum_i probs[i, j]) * tokens_per_expert[j])` with
/// `C = num_experts * coeff / topk / total_num_tokens / total_num_tokens`, from left to right, in
/// float32 in a fixed order. `Const_buf` becomes C and the loss before the cast.
///
/// Shapes: probs `[num_rows, num_cols]`, with `num_cols` a multiple of `num_experts`;
/// `tokens_per_expert` `[num_cols]`; `aux_loss` one element; `Const_buf` two or more. `num_rows` may be
/// 0: then the loss is 0.
///
/// Dtypes: probs Float32, Float16 or BFloat16; `aux_loss` is written as the same; `tokens_per_expert`
/// Int16, Int32, Int64, BFloat16 or Float32; `Const_buf` Float32.
///
/// Errors: other shapes or dtypes; null or misaligned pointers.
///
/// Source: Fedus et al., Switch Transformers (2021).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_moe_aux_loss_forward(
    probs: NVTETensor,
    tokens_per_expert: NVTETensor,
    total_num_tokens: i32,
    num_experts: i32,
    num_rows: i32,
    num_cols: i32,
    topk: i32,
    coeff: f32,
    aux_loss: NVTETensor,
    Const_buf: NVTETensor,
    stream: cudaStream_t,
) {
    let rule = LossRule { num_experts, num_rows, num_cols, topk, coeff };
    let tensors = [probs, tokens_per_expert, aux_loss, Const_buf];
    guard("nvte_fused_moe_aux_loss_forward", || {
        loss_of(&rule, tensors, &Total::Number(total_num_tokens), stream)
    });
}

/// Computes the loss of `nvte_fused_moe_aux_loss_forward` with the number of tokens on the device,
/// which is read when the work runs. `total_num_tokens` is one Int64.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_moe_aux_loss_forward_graph_safe(
    probs: NVTETensor,
    tokens_per_expert: NVTETensor,
    total_num_tokens: NVTETensor,
    num_experts: i32,
    num_rows: i32,
    num_cols: i32,
    topk: i32,
    coeff: f32,
    aux_loss: NVTETensor,
    Const_buf: NVTETensor,
    stream: cudaStream_t,
) {
    let rule = LossRule { num_experts, num_rows, num_cols, topk, coeff };
    let tensors = [probs, tokens_per_expert, aux_loss, Const_buf];
    guard("nvte_fused_moe_aux_loss_forward_graph_safe", || {
        let total = Total::Device(check::rowwise("total_num_tokens", total_num_tokens)?);
        loss_of(&rule, tensors, &total, stream)
    });
}

/// Computes the gradients of the probabilities of `nvte_fused_moe_aux_loss_forward`:
/// `grad_probs[i, j] = cast((C * tokens_per_expert[j]) * grad_aux_loss)`, with C in `Const_buf`.
///
/// Shapes: `Const_buf` one or more, `tokens_per_expert` `[num_cols]`, `grad_aux_loss` one element,
/// `grad_probs` `[num_rows, num_cols]`. `num_rows` may be 0.
///
/// Dtypes: `grad_aux_loss` Float32, Float16 or BFloat16; `grad_probs` is written as the same; others as
/// in the forward pass.
///
/// Errors: as the forward pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_moe_aux_loss_backward(
    Const_buf: NVTETensor,
    tokens_per_expert: NVTETensor,
    num_rows: i32,
    num_cols: i32,
    grad_aux_loss: NVTETensor,
    grad_probs: NVTETensor,
    stream: cudaStream_t,
) {
    let inputs = [("Const_buf", Const_buf), ("tokens_per_expert", tokens_per_expert)];
    let gradients = [("grad_aux_loss", grad_aux_loss), ("grad_probs", grad_probs)];
    guard("nvte_fused_moe_aux_loss_backward", || {
        let (inputs, gradients) = (rowwise(inputs)?, rowwise(gradients)?);
        let (inputs, gradients) = (inputs.each_ref(), gradients.each_ref());
        aux_loss_backward((num_rows, num_cols), inputs, gradients, stream)
    });
}

/// The row-wise buffers of handles with the names of their arguments.
fn rowwise<const N: usize>(handles: [(&str, NVTETensor); N]) -> Result<[Buffer; N]> {
    let mut buffers = [Buffer::UNSET; N];
    for (buffer, (name, handle)) in buffers.iter_mut().zip(handles) {
        *buffer = check::rowwise(name, handle)?;
    }
    Ok(buffers)
}

/// Handles of [`Experts`].
#[derive(Clone, Copy)]
enum ExpertsOf {
    Map(NVTETensor, MaybeUninit<NVTERoutingMapFormat>),
    Indices(NVTETensor),
}

impl ExpertsOf {
    fn bytes(map: NVTETensor) -> Self {
        Self::Map(map, MaybeUninit::new(NVTE_ROUTING_MAP_FORMAT_BYTEMAP))
    }

    fn get(self) -> Result<Experts> {
        match self {
            Self::Map(map, format) => {
                let map = check::rowwise("routing_map", map)?;
                Ok(Experts::Map(map, from_c("routing_map_format", format)?))
            }
            Self::Indices(indices) => {
                Ok(Experts::Indices(check::rowwise("topk_indices", indices)?))
            }
        }
    }
}

/// Handles of [`Tensors`].
struct TensorsOf {
    logits: NVTETensor,
    expert_bias: NVTETensor,
    probs: NVTETensor,
    experts: ExpertsOf,
    intermediate: NVTETensor,
}

impl TensorsOf {
    fn get(&self) -> Result<Tensors> {
        Ok(Tensors {
            logits: check::rowwise("logits", self.logits)?,
            expert_bias: check::rowwise("expert_bias", self.expert_bias)?,
            probs: check::rowwise("probs", self.probs)?,
            experts: self.experts.get()?,
            intermediate: check::rowwise("intermediate_output", self.intermediate)?,
        })
    }
}

/// The scores of all experts; the handles are those of the logits, the scores and the intermediate output.
fn scores_of(
    rule: &Rule,
    [logits, scores, intermediate]: [NVTETensor; 3],
    experts: ExpertsOf,
    stream: cudaStream_t,
) -> Result<()> {
    let tensors = Tensors {
        logits: check::rowwise("logits", logits)?,
        expert_bias: Buffer::UNSET,
        probs: check::rowwise("scores", scores)?,
        experts: experts.get()?,
        intermediate: check::rowwise("intermediate_output", intermediate)?,
    };
    super::scores(rule, &tensors, stream)
}

/// Handles of a [`Balance`].
struct BalanceOf {
    cutoff: NVTETensor,
    histogram: NVTETensor,
    bin_bounds: NVTETensor,
    mode: MaybeUninit<NVTEQBHistogramMode>,
    checked: bool,
}

impl BalanceOf {
    fn get(&self) -> Result<Balance> {
        Ok(Balance {
            cutoff: check::rowwise("cutoff", self.cutoff)?,
            histogram: check::rowwise("histogram", self.histogram)?,
            bin_bounds: check::rowwise("bin_bounds", self.bin_bounds)?,
            mode: from_c("histogram_mode", self.mode)?,
            checked: self.checked,
        })
    }
}

/// The loss of handles of probabilities, tokens of each expert, the loss and the constants.
fn loss_of(
    rule: &LossRule,
    [probs, tokens_per_expert, loss, constants]: [NVTETensor; 4],
    total: &Total,
    stream: cudaStream_t,
) -> Result<()> {
    let inputs = rowwise([("probs", probs), ("tokens_per_expert", tokens_per_expert)])?;
    let outputs = rowwise([("aux_loss", loss), ("Const_buf", constants)])?;
    aux_loss(rule, inputs.each_ref(), total, outputs.each_ref(), stream)
}
