//! Operators of routers and of experts.

use super::{Run, with_scratch, within};
use crate::error::Result;
use crate::nn::memory::Lifetime;
use crate::nn::quantizer::QTensor;
use crate::op;
use crate::op::ep::Places;
use crate::op::fused_router::{Experts, LossRule, Rule, Tensors, Total};
use crate::op::gemm::config::GroupedMatmulConfig;
use crate::op::gemm::grouped::{GroupedProduct, Source, WORKSPACE_BYTES, setup_bytes};
use crate::op::permutation::{self, Weights};
use crate::op::transformer_engine::QuantizationConfig;
use crate::tensor::{Buffer, GroupedTensor, Shape};
use crate::types::NVTEDType::*;

/// Chooses experts: probabilities of all, the chosen ones and what the gradient needs.
pub fn route(
    run: &Run,
    rule: &Rule,
    [logits, bias, probs, indices, intermediate]: [Buffer; 5],
) -> Result<()> {
    let experts = Experts::Indices(indices);
    let tensors = Tensors { logits, expert_bias: bias, probs, experts, intermediate };
    within(run, "router", op::fused_router::forward(rule, &tensors, run.stream))
}

/// The gradient of the logits from that of the probabilities.
pub fn route_backward(
    run: &Run,
    rule: &Rule,
    indices: Buffer,
    tensors: [&Buffer; 3],
) -> Result<()> {
    let experts = Experts::Indices(indices);
    within(run, "router", op::fused_router::backward(rule, &experts, tensors, run.stream))
}

/// Scores of all experts, from which their balance is judged.
pub fn scores(
    run: &Run,
    rule: &Rule,
    [logits, scores, indices, intermediate]: [Buffer; 4],
) -> Result<()> {
    let experts = Experts::Indices(indices);
    let (expert_bias, probs) = (Buffer::UNSET, scores);
    let tensors = Tensors { logits, expert_bias, probs, experts, intermediate };
    within(run, "scores", op::fused_router::scores(rule, &tensors, run.stream))
}

/// The gradient of the logits from that of the scores.
pub fn scores_backward(run: &Run, rule: &Rule, tensors: [&Buffer; 3]) -> Result<()> {
    within(run, "scores", op::fused_router::scores_backward(rule, tensors, run.stream))
}

/// The loss of the balance of `rule`, whose rows are the own tokens of `total`.
pub fn balance(
    run: &Run,
    rule: &LossRule,
    total: usize,
    [scores, counts, loss, constants]: [&Buffer; 4],
) -> Result<()> {
    let total = Total::Number(i32::try_from(total).unwrap_or(i32::MAX));
    let (inputs, outputs) = ([scores, counts], [loss, constants]);
    let result = op::fused_router::aux_loss(rule, inputs, &total, outputs, run.stream);
    within(run, "aux_loss", result)
}

/// The gradient of the scores from that of the loss of balance.
pub fn balance_backward(
    run: &Run,
    [constants, counts, grad_loss, grad_scores]: [&Buffer; 4],
) -> Result<()> {
    let small = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let (rows, cols) = grad_scores.shape.flatten();
    let result = op::fused_router::aux_loss_backward(
        (small(rows), small(cols)),
        [constants, counts],
        [grad_loss, grad_scores],
        run.stream,
    );
    within(run, "aux_loss", result)
}

/// The weights of the chosen experts, or (`backward`) the gradients of all probabilities.
pub fn chosen_weights(run: &Run, tensors: [&Buffer; 3], backward: bool) -> Result<()> {
    within(run, "router_weights", op::fused_router::weights(tensors, backward, run.stream))
}

/// A term of the loss of the size of the logits for each token.
pub fn z_loss(run: &Run, logits: &Buffer, terms: &Buffer, factor: f32) -> Result<()> {
    within(run, "z_loss", op::fused_router::z_loss(logits, terms, factor, run.stream))
}

/// Adds the gradient of the sum of the terms.
pub fn z_loss_backward(run: &Run, tensors: [&Buffer; 3], factor: f32) -> Result<()> {
    within(run, "z_loss", op::fused_router::z_loss_backward(tensors, factor, run.stream))
}

/// Where the rows of experts are: Int64 `[2 + experts]`, from the third on the first row of each, and `[experts]`, the
/// number of choices of each.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub numbers: Buffer,
    pub lengths: Buffer,
}

/// Where the rows of choices are, sorted by expert (`op::ep::place_rows`).
pub fn place_rows(
    run: &Run,
    chosen: &Buffer,
    [map, counts]: [&Buffer; 2],
    bounds: &Bounds,
    places: &Places,
) -> Result<()> {
    let (tokens, topk) = chosen.shape.flatten();
    let rows = run.scratch(4 * tokens * topk)?;
    let rows = rows.buffer(0, kNVTEInt32, &[tokens, topk]);
    let outputs = [&rows, map, &bounds.numbers, counts];
    let placed = op::ep::place_rows(chosen, outputs, &bounds.lengths, places, run.stream);
    within(run, "expert_rows", placed)
}

/// Zeros the rows of experts that no choice has.
pub fn zero_gaps(run: &Run, rows: &Buffer, bounds: &Bounds, limit: usize) -> Result<()> {
    let Bounds { numbers, lengths } = bounds;
    let starts = Buffer::new(numbers.ptr().wrapping_byte_add(16), kNVTEInt64, lengths.shape.dims());
    let zeroed = op::ep::zero_gaps(rows, [&starts, lengths], limit, run.stream);
    within(run, "zero_gaps", zeroed)
}

/// Copies rows of tokens to those of experts; see `op::permutation::to_rows`.
pub fn to_rows(run: &Run, tensors: [&Buffer; 3], weights: Option<&Weights>) -> Result<()> {
    within(run, "permute", permutation::to_rows(tensors, weights, run.stream))
}

/// Sums rows of experts for each token.
pub fn from_rows(run: &Run, tensors: [&Buffer; 3], weights: Option<&Buffer>) -> Result<()> {
    within(run, "unpermute", permutation::from_rows(tensors, weights, run.stream))
}

/// Casts all members of a group.
pub fn group_quantize(
    run: &Run,
    input: &GroupedTensor,
    output: &GroupedTensor,
    config: &QuantizationConfig,
) -> Result<()> {
    within(run, "group_quantize", op::cast::group_quantize(input, output, config, run.stream))
}

/// `sums` = the sums of each member over its rows.
pub fn group_sum_rows(run: &Run, input: &GroupedTensor, sums: &Buffer) -> Result<()> {
    let result =
        with_scratch(run, |workspace| op::cast::group_sum_rows(input, sums, workspace, run.stream));
    within(run, "group_sum_rows", result)
}

/// Adds to each row of a group the bias of its member.
pub fn group_bias(run: &Run, output: &GroupedTensor, bias: &GroupedTensor) -> Result<()> {
    within(run, "group_bias", op::gemm::group::bias_add(output, bias, None, run.stream))
}

/// Where the members of `cols` columns begin and end, in elements: Int64, one more than there are members.
pub fn offsets(run: &Run, first_dims: &Buffer, cols: usize) -> Result<QTensor> {
    let count = first_dims.shape.numel();
    let mut offsets = QTensor::plain(run, (1, count + 1), kNVTEInt64, Lifetime::Tape)?;
    offsets.tensor.rowwise.shape = Shape::new(&[count + 1]);
    let (from, to) = (first_dims.ptr().cast_const().cast(), offsets.tensor.rowwise.ptr().cast());
    let result = op::gemm::group::offsets(from, to, count, cols as i64, run.stream);
    within(run, "offsets", result)?;
    Ok(offsets)
}

/// A product for each member of groups.
pub struct GroupedGemm<'a> {
    pub transa: bool,
    pub transb: bool,
    /// One float each: 1, and 1 if the result is added to what D holds, else 0.
    pub factors: [&'a Buffer; 2],
    pub split_accumulator: bool,
}

impl GroupedGemm<'_> {
    pub fn run(
        &self,
        run: &Run,
        a: &GroupedTensor,
        b: &GroupedTensor,
        d: &GroupedTensor,
    ) -> Result<()> {
        let bytes = setup_bytes(b.num_tensors);
        let setup = run.scratch(bytes)?;
        let product = GroupedProduct {
            a: Source::Group(a.clone()),
            transa: self.transa,
            b: b.clone(),
            transb: self.transb,
            c: None,
            d: Source::Group(d.clone()),
            alpha: *self.factors[0],
            beta: *self.factors[1],
            setup_workspace: setup.buffer(0, kNVTEByte, &[bytes]),
            workspace: run.workspace(WORKSPACE_BYTES)?.buffer(0, kNVTEByte, &[WORKSPACE_BYTES]),
            config: GroupedMatmulConfig {
                split_accumulator: self.split_accumulator,
                ..GroupedMatmulConfig::default()
            },
        };
        within(run, "grouped_gemm", product.run(run.stream))
    }
}
