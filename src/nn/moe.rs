//! A layer of experts: a router gives each token to some of many MLPs, and adds what they make of it.

use super::context::Run;
use super::dense::{Again, Dense, DenseConfig, DenseTape, Grad};
use super::expert_linear::{Constants, ExpertLinear, ExpertTape, Layout, Share};
use super::memory::Lifetime;
use super::ops::{self, Activation, experts, plain};
use super::parameter::{Init, Parameter};
use super::quantizer::{QTensor, Source};
use super::{Layer, Saved, Tape, Tensors, named, saved};
use crate::error::{Error, Result};
use crate::op::ep::exchange::Plan;
use crate::op::fused_router::{LossRule, Rule};
use crate::op::permutation::Weights;
use crate::op::transformer_engine::QuantizationConfig;
use crate::parallel::Communicator;
use crate::parallel::exports::NVTEXGridGroup::NVTEX_GRID_EP;
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTEDType::{self, *};
use std::sync::Arc;

pub struct MoeConfig {
    pub hidden: usize,
    pub experts: usize,
    pub topk: usize,
    /// How experts are chosen; the number of tokens is that of the call.
    pub rule: Rule,
    /// Whether a bias of the experts helps to choose.
    pub expert_bias: bool,
    /// Factors of the losses of balance and of the size of the logits.
    pub balance: f32,
    pub z: f32,
    pub router: DenseConfig,
    pub fc1: DenseConfig,
    pub activation: Activation,
    pub fc2: DenseConfig,
    /// An MLP for all tokens beside the experts.
    pub shared: Option<[DenseConfig; 2]>,
    /// Ranks that share the experts; 0: those of the grid.
    pub ranks: usize,
    /// The config.
    pub name: &'static str,
}

/// `y = sum_k w_k expert_k(x) + shared(x)`, with the experts k of the token x.
pub struct Moe {
    pub hidden: usize,
    pub dtype: NVTEDType,
    topk: usize,
    rule: Rule,
    balance: f32,
    z: f32,
    share: Share,
    constants: Constants,
    router: Dense,
    expert_bias: Option<Parameter>,
    fc1: ExpertLinear,
    activation: Activation,
    fc2: ExpertLinear,
    shared: Option<[Dense; 2]>,
}

/// What the choice of experts has left.
struct Routed {
    router: Box<DenseTape>,
    logits: QTensor,
    /// Int32 `[tokens, topk]`
    indices: QTensor,
    intermediate: QTensor,
    weights: QTensor,
    /// Int32 `[topk, tokens]`: the row of each choice.
    map: QTensor,
    /// Int64 `[experts]`: tokens of all ranks that have chosen it, if somebody asks.
    loads: Option<QTensor>,
    /// Tokens of all ranks.
    total: usize,
    /// Of the loss of balance.
    constants: Option<[QTensor; 2]>,
}

/// How rows go to the experts of other ranks.
struct Journey {
    ranks: Arc<Communicator>,
    plan: Plan,
    /// Rows of the own tokens.
    rows: usize,
}

struct SharedTape {
    fc1: Box<DenseTape>,
    hidden: QTensor,
    fc2: Box<DenseTape>,
}

pub struct MoeTape {
    x: Tensor,
    tokens: usize,
    routed: Routed,
    journey: Option<Journey>,
    layout: Layout,
    _counts: QTensor,
    /// Rows of the experts, their result, and before and after the activation, as far as they are read again.
    _rows: Option<QTensor>,
    hidden: QTensor,
    _active: Option<QTensor>,
    results: QTensor,
    fc1: ExpertTape,
    fc2: ExpertTape,
    shared: Option<SharedTape>,
}

impl Moe {
    pub fn new(run: &Run, name: &str, config: &MoeConfig) -> Result<Self> {
        let ranks = run.context.group(NVTEX_GRID_EP);
        let size = ranks.map_or(1, |ranks| ranks.size());
        if ![0, 1, size].contains(&config.ranks) {
            let expected = match size {
                1 => "1 (nvtex_context_set_grid gives a module other ranks)".into(),
                _ => format!("0, 1 or {size}, the ranks of the grid that share experts"),
            };
            let name = format!("{}.expert_parallel_size", config.name);
            return Err(Error::argument(name, expected, config.ranks));
        }
        let ranks = ranks.filter(|_| config.ranks != 1).cloned();
        if ranks.is_some() && !config.experts.is_multiple_of(size) {
            let expected = format!("a multiple of {size}, the ranks that share them");
            let name = format!("{}.num_experts", config.name);
            return Err(Error::argument(name, expected, config.experts));
        }
        let share = Share { experts: config.experts, ranks };
        let mut router = Dense::new(run, &format!("{name}.router"), &config.router)?;
        router.again = Again::Input;
        let expert_bias = match config.expert_bias {
            false => None,
            true => {
                let (dims, init) = ([config.experts], Init::Constant(0.0));
                Some(Parameter::new(run, "expert_bias", &dims, kNVTEFloat32, init, None)?)
            }
        };
        let part = |part: &str| format!("{name}.{part}");
        let shared = match &config.shared {
            None => None,
            Some([fc1, fc2]) => Some([
                Dense::new(run, &part("shared.fc1"), fc1)?,
                Dense::new(run, &part("shared.fc2"), fc2)?,
            ]),
        };
        Ok(Self {
            hidden: config.hidden,
            dtype: config.fc1.dtype,
            topk: config.topk,
            rule: config.rule,
            balance: config.balance,
            z: config.z,
            constants: Constants::new(run, share.local())?,
            router,
            expert_bias,
            fc1: ExpertLinear::new(run, &part("experts.fc1"), &config.fc1, &share)?,
            activation: config.activation,
            fc2: ExpertLinear::new(run, &part("experts.fc2"), &config.fc2, &share)?,
            shared,
            share,
        })
    }

    /// A matrix in the memory of the tape, or of the call if there is none.
    fn kept(&self, run: &Run, shape: (usize, usize), dtype: NVTEDType) -> Result<QTensor> {
        let lifetime = if run.training { Lifetime::Tape } else { Lifetime::Scratch };
        QTensor::plain(run, shape, dtype, lifetime)
    }

    fn scratch(&self, run: &Run, shape: (usize, usize), dtype: NVTEDType) -> Result<QTensor> {
        QTensor::plain(run, shape, dtype, Lifetime::Scratch)
    }

    fn rule(&self, tokens: usize) -> Result<Rule> {
        match i32::try_from(tokens) {
            Ok(num_tokens) => Ok(Rule { num_tokens, ..self.rule }),
            Err(_) => Err(Error::argument("inputs[0].shape", "less than 2^31 rows", tokens)),
        }
    }

    /// The tokens in the dtype of the router. Its operands stay in high precision whatever the recipe says.
    fn router_input(&self, run: &Run, x: &Tensor, tokens: usize) -> Result<QTensor> {
        if self.router.dtype == self.dtype {
            return Ok(QTensor::borrowed(x.clone()));
        }
        let wide = self.scratch(run, (tokens, self.hidden), self.router.dtype)?;
        ops::quantize(run, x, &wide.tensor, &QuantizationConfig::DEFAULT)?;
        Ok(wide)
    }

    fn route(&mut self, run: &Run, x: &Tensor, tokens: usize, loads: bool) -> Result<Routed> {
        let (experts_of_all, topk) = (self.share.experts, self.topk);
        let wide = self.router_input(run, x, tokens)?;
        let all = (tokens, experts_of_all);
        let logits = self.kept(run, all, kNVTEFloat32)?;
        let plain_run = Run { frame: None, ..run.clone() };
        let source = Source::Ready(&wide.tensor);
        let router = self.router.forward(&plain_run, tokens, &source, &logits.tensor, None)?;
        let rule = self.rule(tokens)?;
        let probs = self.scratch(run, all, kNVTEFloat32)?;
        let indices = self.kept(run, (tokens, topk), kNVTEInt32)?;
        let intermediate = self.kept(run, all, kNVTEFloat32)?;
        let bias = self.expert_bias.as_ref().map_or(Buffer::UNSET, Parameter::buffer);
        let outputs = [&probs, &indices, &intermediate].map(|x| x.tensor.rowwise);
        let tensors = [logits.tensor.rowwise, bias, outputs[0], outputs[1], outputs[2]];
        experts::route(run, &rule, tensors)?;
        let weights = self.kept(run, (tokens, topk), kNVTEFloat32)?;
        let tensors = [&probs, &weights, &indices].map(|x| &x.tensor.rowwise);
        experts::chosen_weights(run, tensors, false)?;
        let map = self.kept(run, (topk, tokens), kNVTEInt32)?;
        let loads = match loads || self.share.ranks.is_some() {
            false => None,
            true => {
                let mut loads = self.kept(run, (1, experts_of_all), kNVTEInt64)?;
                loads.tensor.rowwise.shape = Shape::new(&[experts_of_all]);
                let [indices, map, loads_of] = [&indices, &map, &loads].map(|x| &x.tensor.rowwise);
                experts::place_rows(run, indices, map, loads_of, (1, usize::MAX))?;
                Some(loads)
            }
        };
        let (constants, total) = (None, tokens);
        Ok(Routed { router, logits, indices, intermediate, weights, map, loads, total, constants })
    }

    /// Where the rows of the experts of this rank are. With other ranks the host waits for the numbers of all of them.
    fn lay_out(
        &self,
        run: &Run,
        routed: &mut Routed,
        alignment: usize,
    ) -> Result<(Layout, QTensor, Option<Journey>)> {
        let (local, tokens) = (self.share.local(), routed.map.tensor.rowwise.shape.flatten().1);
        let choices = tokens * self.topk;
        let mut counts = self.kept(run, (1, local), kNVTEInt64)?;
        counts.tensor.rowwise.shape = Shape::new(&[local]);
        let counts_of = counts.tensor.rowwise;
        let Some(ranks) = &self.share.ranks else {
            let padding = choices.min(local) * (alignment - 1);
            let rows = (choices + padding).next_multiple_of(alignment);
            let [indices, map] = [&routed.indices, &routed.map].map(|x| &x.tensor.rowwise);
            experts::place_rows(run, indices, map, &counts_of, (alignment, rows))?;
            return Ok((Layout { rows, counts: counts_of }, counts, None));
        };
        if run.capturing {
            return Err(Error::unsupported(
                "experts of several ranks cannot be captured: the host waits for the numbers of rows of all ranks",
            ));
        }
        let (size, all) = (ranks.size(), self.share.experts);
        let table = run.scratch(8 * size * all)?;
        let table = table.buffer(0, kNVTEInt64, &[size, all]);
        let Some(loads) = &routed.loads else {
            return Err(Error::unsupported("experts of several ranks need their loads"));
        };
        let loads = loads.tensor.rowwise;
        ranks.gather(&loads, &table, super::split::label(run), run.stream)?;
        let mut numbers = super::memory::host_vec(0i64, size * all)?;
        ops::download(&mut numbers, table.ptr(), run.stream)?;
        let of_all: Vec<i64> =
            (0..all).map(|e| (0..size).map(|rank| numbers[rank * all + e]).sum()).collect();
        ops::upload(loads.ptr(), &of_all, run.stream)?;
        routed.total = (of_all.iter().sum::<i64>().max(1) as usize).div_ceil(self.topk);
        let numbers = numbers.into_iter().map(|rows| rows.max(0) as usize).collect();
        let plan = Plan::new((ranks.rank(), size), all, numbers, alignment, usize::MAX);
        let own: Vec<i64> = plan.counts().into_iter().map(|rows| rows as i64).collect();
        ops::upload(counts_of.ptr(), &own, run.stream)?;
        let layout = Layout { rows: plan.total().max(alignment), counts: counts_of };
        let journey = Journey { ranks: Arc::clone(ranks), plan, rows: choices };
        Ok((layout, counts, Some(journey)))
    }

    /// Moves rows that are sorted by expert to the ranks of the experts, or (`back`) from there.
    fn travel(
        &self,
        run: &Run,
        journey: &Journey,
        [own, of_experts]: [&QTensor; 2],
        back: bool,
    ) -> Result<()> {
        let to = if back { own } else { of_experts };
        ops::zero(&to.tensor.rowwise, run.stream)?;
        let memory = (own.tensor.rowwise.ptr(), of_experts.tensor.rowwise.ptr());
        let width = self.hidden * self.dtype.bits() / 8;
        // SAFETY: both matrices have the rows of the plan.
        #[allow(unsafe_code)]
        unsafe {
            let label = super::split::label(run);
            journey.plan.exchange(&journey.ranks, memory, (width, back), label, run.stream)
        }
    }

    /// A factor of a loss, of which this rank has a part: the mean over the ranks is the loss of all of their tokens.
    fn factor_of_mean(&self, factor: f32) -> f32 {
        factor * self.share.ranks.as_ref().map_or(1, |ranks| ranks.size()) as f32
    }

    /// Writes the losses: that of balance, and that of the size of the logits.
    fn losses(&self, run: &Run, routed: &mut Routed, losses: Option<&Tensor>) -> Result<()> {
        let (tokens, all) = routed.logits.tensor.rowwise.shape.flatten();
        let own;
        let losses = match losses {
            Some(losses) => losses.rowwise,
            None => {
                own = self.scratch(run, (1, 2), kNVTEFloat32)?;
                own.tensor.rowwise
            }
        };
        ops::zero(&losses, run.stream)?;
        let number =
            |i: usize| Buffer::new(losses.ptr().wrapping_byte_add(4 * i), kNVTEFloat32, &[1]);
        if let (Some(loads), true) = (&routed.loads, self.balance != 0.0) {
            let scores = self.scratch(run, (tokens, all), kNVTEFloat32)?;
            let chosen = self.scratch(run, (tokens, self.topk), kNVTEInt32)?;
            let intermediate = self.kept(run, (tokens, all), kNVTEFloat32)?;
            let mut constants = self.kept(run, (1, 2), kNVTEFloat32)?;
            constants.tensor.rowwise.shape = Shape::new(&[2]);
            let tensors =
                [&routed.logits, &scores, &chosen, &intermediate].map(|x| x.tensor.rowwise);
            experts::scores(run, &self.rule(tokens)?, tensors)?;
            let rule = LossRule {
                num_experts: all as i32,
                num_rows: tokens as i32,
                num_cols: all as i32,
                topk: self.topk as i32,
                coeff: self.factor_of_mean(self.balance),
            };
            let [scores, loads, of_loss] = [&scores, loads, &constants].map(|x| &x.tensor.rowwise);
            let tensors = [scores, loads, &number(0), of_loss];
            experts::balance(run, &rule, routed.total, tensors)?;
            routed.constants = Some([intermediate, constants]);
        }
        if self.z != 0.0 {
            let terms = self.scratch(run, (tokens, 1), kNVTEFloat32)?;
            let factor = self.factor_of_mean(self.z) / routed.total as f32;
            let of_tokens = Buffer::new(terms.tensor.rowwise.ptr(), kNVTEFloat32, &[tokens]);
            experts::z_loss(run, &routed.logits.tensor.rowwise, &of_tokens, factor)?;
            ops::sum_rows(run, &terms.tensor, &plain(number(1)))?;
        }
        Ok(())
    }

    /// Writes y, plus `add`; and the losses and loads that are asked for.
    pub fn forward_to(
        &mut self,
        run: &Run,
        (x, tokens): (&Tensor, usize),
        y: &Tensor,
        add: Option<&Tensor>,
        [losses, loads]: [Option<&Tensor>; 2],
    ) -> Result<Box<MoeTape>> {
        let with_balance = self.balance != 0.0 && (run.training || losses.is_some());
        let alignment = self.fc1.alignment(run)?.max(self.fc2.alignment(run)?);
        let mut routed = self.route(run, x, tokens, with_balance || loads.is_some())?;
        let (layout, counts, journey) = self.lay_out(run, &mut routed, alignment)?;
        if losses.is_some() || run.training && (self.balance != 0.0 || self.z != 0.0) {
            self.losses(run, &mut routed, losses)?;
        }
        if let (Some(out), Some(loads)) = (loads, &routed.loads) {
            let loads = &loads.tensor.rowwise;
            ops::copy(out.rowwise.ptr(), loads.ptr(), loads.bytes(), run.stream)?;
        }

        let (dtype, hidden) = (self.dtype, self.hidden);
        let map = routed.map.tensor.rowwise;
        let rows = self.kept(run, (layout.rows, hidden), dtype)?;
        match &journey {
            None => {
                ops::zero(&rows.tensor.rowwise, run.stream)?;
                experts::to_rows(run, [&x.rowwise, &rows.tensor.rowwise, &map], None)?;
            }
            Some(journey) => {
                let sorted = self.scratch(run, (journey.rows, hidden), dtype)?;
                experts::to_rows(run, [&x.rowwise, &sorted.tensor.rowwise, &map], None)?;
                self.travel(run, journey, [&sorted, &rows], false)?;
            }
        }
        let width = self.fc1.dense.outputs;
        let before = self.kept(run, (layout.rows, width), dtype)?;
        let constants = &self.constants;
        let fc1 = self.fc1.forward(run, constants, &layout, &rows.tensor, &before.tensor)?;
        let active = self.kept(run, (layout.rows, self.fc2.dense.inputs), dtype)?;
        let config = &QuantizationConfig::DEFAULT;
        self.activation.forward(run, &before.tensor, &active.tensor, config)?;
        let mut results = self.kept(run, (layout.rows, hidden), dtype)?;
        let fc2 = self.fc2.forward(run, constants, &layout, &active.tensor, &results.tensor)?;
        if let Some(journey) = &journey {
            let own = self.kept(run, (journey.rows, hidden), dtype)?;
            self.travel(run, journey, [&own, &results], true)?;
            results = own;
        }
        // The last product adds what comes before it.
        let sum = match &self.shared {
            None => QTensor::borrowed(y.clone()),
            Some(_) => self.scratch(run, (tokens, hidden), dtype)?,
        };
        let tensors = [&results.tensor.rowwise, &sum.tensor.rowwise, &map];
        experts::from_rows(run, tensors, Some(&routed.weights.tensor.rowwise))?;
        if let Some(add) = add {
            ops::add(run, add, &sum.tensor, true)?;
        }
        let mut shared_tape = None;
        if let Some([fc1, fc2]) = &mut self.shared {
            let (f, width) = (&self.activation, fc1.outputs);
            let hidden = QTensor::plain(run, (tokens, width), dtype, Lifetime::Tape)?;
            let fc1 = fc1.forward(run, tokens, &Source::Ready(x), &hidden.tensor, None)?;
            let write = |out: &Tensor, config: &_| f.forward(run, &hidden.tensor, out, config);
            let source = Source::Computed { write: &write, configurable: true };
            let fc2 = fc2.forward(run, tokens, &source, y, Some(&sum.tensor))?;
            shared_tape = Some(SharedTape { fc1, hidden, fc2 });
        }
        Ok(Box::new(MoeTape {
            x: x.clone(),
            tokens,
            routed,
            journey,
            layout,
            _counts: counts,
            _rows: fc1.reads_input().then_some(rows),
            hidden: before,
            _active: fc2.reads_input().then_some(active),
            results,
            fc1,
            fc2,
            shared: shared_tape,
        }))
    }

    /// The gradient of the logits from that of the weights of the chosen experts, and from those of the losses.
    fn logits_grad(
        &self,
        run: &Run,
        tape: &MoeTape,
        weights: &QTensor,
        losses: Option<&Tensor>,
    ) -> Result<QTensor> {
        let (routed, all) = (&tape.routed, (tape.tokens, self.share.experts));
        let probs = self.scratch(run, all, kNVTEFloat32)?;
        let tensors = [&probs, weights, &routed.indices].map(|x| &x.tensor.rowwise);
        experts::chosen_weights(run, tensors, true)?;
        let logits = self.scratch(run, all, kNVTEFloat32)?;
        let tensors = [&routed.intermediate, &probs, &logits].map(|x| &x.tensor.rowwise);
        let rule = self.rule(tape.tokens)?;
        experts::route_backward(run, &rule, routed.indices.tensor.rowwise, tensors)?;
        let factor = |i: usize| match losses {
            None => self.constants.one(),
            Some(losses) => {
                let at = losses.rowwise.ptr().wrapping_byte_add(4 * i);
                Buffer::new(at, kNVTEFloat32, &[1])
            }
        };
        if let (Some([intermediate, constants]), Some(loads)) = (&routed.constants, &routed.loads) {
            let part = self.scratch(run, all, kNVTEFloat32)?;
            // The gradients of probabilities are not read any more.
            let [constants, loads, scores] = [constants, loads, &probs].map(|x| &x.tensor.rowwise);
            experts::balance_backward(run, [constants, loads, &factor(0), scores])?;
            let [intermediate, to] = [intermediate, &part].map(|x| &x.tensor.rowwise);
            experts::scores_backward(run, &rule, [intermediate, scores, to])?;
            ops::add(run, &part.tensor, &logits.tensor, true)?;
        }
        if self.z != 0.0 {
            let tensors = [&routed.logits.tensor.rowwise, &factor(1), &logits.tensor.rowwise];
            let factor = self.factor_of_mean(self.z) / routed.total as f32;
            experts::z_loss_backward(run, tensors, factor)?;
        }
        Ok(logits)
    }

    /// `losses` is the gradient of both losses, 1 each without it; `add` that of x beside this one.
    pub fn backward_to(
        &mut self,
        run: &Run,
        tape: &MoeTape,
        dy: &Tensor,
        losses: Option<&Tensor>,
        add: Option<&Tensor>,
        dx: Option<&Tensor>,
    ) -> Result<()> {
        let (dtype, hidden, layout) = (self.dtype, self.hidden, &tape.layout);
        let (routed, tokens) = (&tape.routed, tape.tokens);
        let map = routed.map.tensor.rowwise;
        // Results of experts: those of the own tokens, then those of the own experts.
        let own_rows = tape.journey.as_ref().map_or(layout.rows, |journey| journey.rows);
        let own = self.scratch(run, (own_rows, hidden), dtype)?;
        ops::zero(&own.tensor.rowwise, run.stream)?;
        let weights = self.scratch(run, (tokens, self.topk), kNVTEFloat32)?;
        let gradient = Some((&weights.tensor.rowwise, &tape.results.tensor.rowwise));
        let of = Weights { probs: &routed.weights.tensor.rowwise, gradient };
        experts::to_rows(run, [&dy.rowwise, &own.tensor.rowwise, &map], Some(&of))?;
        let results = match &tape.journey {
            None => own,
            Some(journey) => {
                let results = self.scratch(run, (layout.rows, hidden), dtype)?;
                self.travel(run, journey, [&own, &results], false)?;
                results
            }
        };
        let constants = &self.constants;
        let active = self.scratch(run, (layout.rows, self.fc2.dense.inputs), dtype)?;
        self.fc2.backward(run, constants, &tape.fc2, &results.tensor, Some(&active.tensor))?;
        drop(results);
        let before = self.scratch(run, (layout.rows, self.fc1.dense.outputs), dtype)?;
        let f = &self.activation;
        let (input, config) = (&tape.hidden.tensor, &QuantizationConfig::DEFAULT);
        f.backward(run, &active.tensor, input, &before.tensor, config)?;
        drop(active);
        let rows = match dx {
            None => None,
            Some(_) => Some(self.scratch(run, (layout.rows, hidden), dtype)?),
        };
        let out = rows.as_ref().map(|rows| &rows.tensor);
        self.fc1.backward(run, constants, &tape.fc1, &before.tensor, out)?;
        drop(before);

        // The gradient of x, of which each part is added to those before.
        let sum = match (&self.shared, dx) {
            (None, Some(dx)) => Some(QTensor::borrowed(dx.clone())),
            (Some(_), Some(_)) => Some(self.scratch(run, (tokens, hidden), dtype)?),
            (_, None) => None,
        };
        if let (Some(sum), Some(rows)) = (&sum, rows) {
            let sorted = match &tape.journey {
                None => rows,
                Some(journey) => {
                    let sorted = self.scratch(run, (journey.rows, hidden), dtype)?;
                    self.travel(run, journey, [&sorted, &rows], true)?;
                    sorted
                }
            };
            let tensors = [&sorted.tensor.rowwise, &sum.tensor.rowwise, &map];
            experts::from_rows(run, tensors, None)?;
            if let Some(add) = add {
                ops::add(run, add, &sum.tensor, true)?;
            }
        }
        let logits = self.logits_grad(run, tape, &weights, losses)?;
        self.router_backward(run, tape, &logits, sum.as_ref())?;
        if let (Some([fc1, fc2]), Some(tape)) = (&mut self.shared, &tape.shared) {
            let grad = QTensor::plain(run, (tokens, fc2.inputs), dtype, Lifetime::Scratch)?;
            fc2.backward(run, &tape.fc2, &Grad::Ready(dy), Some(&grad.tensor), None)?;
            let f = &self.activation;
            let dh = Grad::Activation { f, grad: &grad.tensor, input: &tape.hidden.tensor };
            fc1.backward(run, &tape.fc1, &dh, dx, sum.as_ref().map(|sum| &sum.tensor))?;
        }
        if let Some(bias) = &self.expert_bias
            && let Some((grad, false)) = bias.target(run)
        {
            ops::zero(&grad.rowwise, run.stream)?;
        }
        Ok(())
    }

    /// Gradients of the router's weight, and of x, to which it is added.
    fn router_backward(
        &mut self,
        run: &Run,
        tape: &MoeTape,
        logits: &QTensor,
        sum: Option<&QTensor>,
    ) -> Result<()> {
        let (dtype, tokens) = (self.router.dtype, tape.tokens);
        let plain_run = Run { frame: None, ..run.clone() };
        let wide = self.router_input(run, &tape.x, tokens)?;
        let narrow;
        let logits = match dtype {
            kNVTEFloat32 => &logits.tensor,
            _ => {
                narrow = self.scratch(run, (tokens, self.share.experts), dtype)?;
                let config = &QuantizationConfig::DEFAULT;
                ops::quantize(run, &logits.tensor, &narrow.tensor, config)?;
                &narrow.tensor
            }
        };
        let part = match sum {
            None => None,
            Some(_) => Some(self.scratch(run, (tokens, self.hidden), dtype)?),
        };
        let dx = part.as_ref().map(|part| &part.tensor);
        let source = Source::Ready(&wide.tensor);
        let router = self.router.forward_again(&plain_run, &tape.routed.router, &source, None)?;
        self.router.backward(&plain_run, &router, &Grad::Ready(logits), dx, None)?;
        match (&part, sum) {
            (Some(part), Some(sum)) => ops::add(run, &part.tensor, &sum.tensor, true),
            _ => Ok(()),
        }
    }

    pub fn parts(&mut self) -> Vec<(String, &mut Parameter)> {
        let mut all = named("router.", self.router.parameters());
        all.extend(named("router.", &mut self.expert_bias));
        all.extend(named("experts.", self.fc1.parameters()));
        all.extend(named("experts.", self.fc2.parameters()));
        if let Some([fc1, fc2]) = &mut self.shared {
            all.extend(named("shared.", fc1.parameters()));
            all.extend(named("shared.", fc2.parameters()));
        }
        all
    }

    /// The second and third output of a call, or their gradients.
    pub fn extras(&self, tensors: &Tensors) -> Result<[Option<Tensor>; 2]> {
        let of = |index: usize, dtype: NVTEDType, count: usize| -> Result<Option<Tensor>> {
            let Some(given) = tensors.find(index) else { return Ok(None) };
            let mut buffer = given.data(dtype)?;
            if buffer.shape.numel() != count {
                let name = format!("{given}.shape");
                return Err(Error::argument(name, format!("[{count}]"), buffer.shape));
            }
            buffer.shape = Shape::new(&[count]);
            Ok(Some(plain(buffer)))
        };
        Ok([of(1, kNVTEFloat32, 2)?, of(2, kNVTEInt64, self.share.experts)?])
    }

    /// The gradient of the losses, if it is given.
    pub fn losses_grad(&self, given: &Tensors) -> Result<Option<Tensor>> {
        if let Some(third) = given.find(2) {
            return Err(Error::argument(third, "null (numbers have no gradient)", "a tensor"));
        }
        let [losses, _] = self.extras(given)?;
        Ok(losses)
    }
}

impl Layer for Moe {
    fn arity(&self) -> (usize, usize) {
        (1, 3)
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved> {
        let (x, tokens) = inputs.get(0)?.rows(self.dtype, self.hidden)?;
        let y = outputs.get(0)?.matrix(self.dtype, (tokens, self.hidden))?;
        let [losses, loads] = self.extras(outputs)?;
        let extras = [losses.as_ref(), loads.as_ref()];
        Ok(self.forward_to(run, (&x, tokens), &y, None, extras)?)
    }

    fn backward(&mut self, run: &Run, tape: &Tape, [given, wanted]: [&Tensors; 2]) -> Result<()> {
        let tape: &MoeTape = saved(tape)?;
        let shape = (tape.tokens, self.hidden);
        let dy = given.get(0)?.matrix(self.dtype, shape)?;
        let dx = wanted.find_matrix(0, self.dtype, shape)?;
        let losses = self.losses_grad(given)?;
        self.backward_to(run, tape, &dy, losses.as_ref(), None, dx.as_ref())
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        self.parts()
    }
}
