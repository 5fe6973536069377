//! A layer of experts: a router gives each token to some of many MLPs, and adds what they make of it.

use super::context::Run;
use super::dense::{Again, Dense, DenseConfig, DenseTape, Grad};
use super::expert_linear::{Constants, ExpertLinear, ExpertTape, Layout, Share};
use super::memory::Lifetime;
use super::ops::experts::{self, Bounds};
use super::ops::{self, Activation, plain};
use super::parameter::{Init, Parameter};
use super::quantizer::{QTensor, Source};
use super::split::{self, Split, Spread};
use super::{Layer, Saved, Tape, Tensors, named, saved};
use crate::error::{Error, Result};
use crate::op;
use crate::op::ep::Places;
use crate::op::ep::exchange::{Matrix, Plan};
use crate::op::fused_router::{LossRule, Rule};
use crate::op::permutation::Weights;
use crate::op::transformer_engine::QuantizationConfig;
use crate::parallel::Communicator;
use crate::parallel::exports::NVTEXGridGroup::{NVTEX_GRID_EP, NVTEX_GRID_TP};
use crate::parallel::peer_rows::{Part, Rows};
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
    /// Ranks that divide each expert.
    pub spread: Spread,
    /// Rows of an expert among as many as each would have if all had the same number; 0: as many as choose it.
    pub capacity_factor: f32,
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
    capacity_factor: f32,
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
    /// Int32 `[topk, tokens]`: the row of each choice, or its slot.
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

/// How tokens go to the experts of other ranks if the rows of experts are limited: each rank has a slot for every token
/// of every rank, in which it has that token once for all of its experts, or nothing. It sums their results before these
/// go back, so that nobody needs numbers of rows on the host.
struct Slots {
    ranks: Arc<Communicator>,
    /// Of all ranks.
    count: usize,
    /// Int32 `[topk, count]`: the row of each choice of the token in a slot, if this rank has the expert.
    map: QTensor,
    /// `[count, topk]`
    weights: QTensor,
}

/// Numbers of rows on the device.
struct Numbers {
    /// Int64 `[experts]`: rows with padding; `[2 + experts]` and `[experts]`: see [`Bounds`].
    counts: QTensor,
    starts: QTensor,
    lengths: QTensor,
    limit: usize,
}

impl Numbers {
    fn bounds(&self) -> Bounds {
        let [numbers, lengths] = [&self.starts, &self.lengths].map(|x| x.tensor.rowwise);
        Bounds { numbers, lengths }
    }
}

struct SharedTape {
    fc1: Box<DenseTape>,
    hidden: QTensor,
    fc2: Box<DenseTape>,
}

pub struct MoeTape {
    /// The own rows.
    x: Tensor,
    own: usize,
    /// Tokens of all ranks that share rows.
    tokens: usize,
    routed: Routed,
    journey: Option<Journey>,
    slots: Option<Slots>,
    layout: Layout,
    numbers: Numbers,
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
        let split = Self::split_of(run, config)?;
        let share = Share { experts: config.experts, ranks, split };
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
            capacity_factor: config.capacity_factor,
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

    /// The ranks that divide each expert.
    fn split_of(run: &Run, config: &MoeConfig) -> Result<Option<Split>> {
        let size = run.context.group(NVTEX_GRID_TP).map_or(1, |ranks| ranks.size());
        if ![0, 1, size].contains(&config.spread.size) {
            let expected = match size {
                1 => "1 (nvtex_context_set_grid gives a module other ranks)".into(),
                _ => format!("0, 1 or {size}, the ranks of the grid that share weights"),
            };
            let name = format!("{}.tensor_parallel_size", config.name);
            return Err(Error::argument(name, expected, config.spread.size));
        }
        let split = Split::of(run, &config.spread)?;
        let shared = config.shared.as_ref().map_or(0, |[_, fc2]| fc2.inputs);
        let sizes = [("ffn_hidden_size", config.fc2.inputs), ("shared_ffn_hidden_size", shared)];
        for (field, size) in sizes {
            if let Some(split) = &split {
                split.share(&format!("{}.{field}", config.name), size)?;
            }
        }
        Ok(split)
    }

    /// The ranks that divide each expert and share rows, too.
    pub fn rows_shared(&self) -> Option<&Split> {
        self.share.split.as_ref().filter(|split| split.sequence)
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
                let loads = self.numbers(run, experts_of_all)?;
                // With slots other ranks say how many tokens have chosen their experts.
                if self.share.ranks.is_none() || self.capacity_factor == 0.0 {
                    let starts = self.numbers(run, 2 + experts_of_all)?;
                    let bounds = Bounds { numbers: starts.tensor.rowwise, lengths: Buffer::UNSET };
                    let [indices, map, loads] = [&indices, &map, &loads].map(|x| &x.tensor.rowwise);
                    experts::place_rows(run, indices, [map, loads], &bounds, &Places::ALL)?;
                }
                Some(loads)
            }
        };
        let (constants, total) = (None, tokens);
        Ok(Routed { router, logits, indices, intermediate, weights, map, loads, total, constants })
    }

    /// Int64 numbers that a backward pass may read.
    fn numbers(&self, run: &Run, count: usize) -> Result<QTensor> {
        let mut numbers = self.kept(run, (1, count), kNVTEInt64)?;
        numbers.tensor.rowwise.shape = Shape::new(&[count]);
        Ok(numbers)
    }

    /// Memory for the numbers of rows of the own experts.
    fn numbers_of(&self, run: &Run, limit: usize) -> Result<Numbers> {
        let local = self.share.local();
        let [counts, starts, lengths] = [local, 2 + local, local].map(|n| self.numbers(run, n));
        Ok(Numbers { counts: counts?, starts: starts?, lengths: lengths?, limit })
    }

    /// The most rows of an expert without padding, which so many tokens of all ranks may choose; 0: any number.
    fn limit(&self, tokens: usize) -> usize {
        let even = tokens as f64 * self.topk as f64 / self.share.experts as f64;
        let limit = (f64::from(self.capacity_factor) * even).ceil() as usize;
        limit.min(tokens * self.topk)
    }

    /// How choices of the tokens of all ranks, as many as there may be here, become rows, and how many there are of these.
    fn places(&self, (tokens, all): (usize, usize), alignment: usize) -> (Places, usize) {
        let (local, choices) = (self.share.local(), tokens * self.topk);
        let limit = self.limit(all);
        let most = if limit == 0 { choices } else { choices.min(local * limit) };
        let padding = choices.min(local) * (alignment - 1);
        let rows = (most + padding).next_multiple_of(alignment);
        (Places { alignment, capacity: rows, limit, ..Places::ALL }, rows)
    }

    /// Where the rows of the experts of this rank are. With other ranks the host waits for the numbers of all of them.
    fn lay_out(
        &self,
        run: &Run,
        routed: &mut Routed,
        alignment: usize,
    ) -> Result<(Layout, Numbers, Option<Journey>)> {
        let tokens = routed.map.tensor.rowwise.shape.flatten().1;
        let choices = tokens * self.topk;
        let (places, rows) = self.places((tokens, tokens), alignment);
        let numbers_of = self.numbers_of(run, places.limit)?;
        let counts_of = numbers_of.counts.tensor.rowwise;
        let Some(ranks) = &self.share.ranks else {
            let [indices, map] = [&routed.indices, &routed.map].map(|x| &x.tensor.rowwise);
            experts::place_rows(run, indices, [map, &counts_of], &numbers_of.bounds(), &places)?;
            return Ok((Layout { rows, counts: counts_of }, numbers_of, None));
        };
        if run.capturing {
            return Err(Error::unsupported(
                "experts of several ranks cannot be captured without a capacity_factor: the host waits for the numbers of \
                 rows of all ranks",
            ));
        }
        let (size, all) = (ranks.size(), self.share.experts);
        let table = run.scratch(8 * size * all)?;
        let table = table.buffer(0, kNVTEInt64, &[size, all]);
        let Some(loads) = &routed.loads else {
            return Err(Error::unsupported("experts of several ranks need their loads"));
        };
        let loads = loads.tensor.rowwise;
        ranks.gather(&loads, &table, split::label(run), run.stream)?;
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
        Ok((layout, numbers_of, Some(journey)))
    }

    /// As [`Self::lay_out`] with limited rows: nobody waits. All ranks have as many tokens as this one.
    fn lay_out_slots(
        &self,
        run: &Run,
        ranks: &Arc<Communicator>,
        routed: &mut Routed,
        alignment: usize,
    ) -> Result<(Layout, Numbers, Slots)> {
        let (size, local, topk) = (ranks.size(), self.share.local(), self.topk);
        let tokens = routed.map.tensor.rowwise.shape.flatten().1;
        let count = size * tokens;
        if count * topk > i32::MAX as usize {
            let expected = format!("at most {} rows", i32::MAX as usize / (size * topk));
            return Err(Error::argument("inputs[0].shape", expected, tokens));
        }
        let [indices, map] = [&routed.indices, &routed.map].map(|x| x.tensor.rowwise);
        let used = [self.numbers(run, size)?, self.numbers(run, 2 + size)?];
        let [used, starts] = [&used[0], &used[1]].map(|x| x.tensor.rowwise);
        let bounds = Bounds { numbers: starts, lengths: Buffer::UNSET };
        let own = Places {
            group: local,
            limit: tokens.max(1),
            fixed: true,
            capacity: count,
            ..Places::ALL
        };
        experts::place_rows(run, &indices, [&map, &used], &bounds, &own)?;
        let [sent_indices, received_indices, sent_weights] =
            [0; 3].map(|_| self.scratch(run, (count, topk), kNVTEFloat32));
        let sent = [sent_indices?, sent_weights?];
        let received = [received_indices?, self.kept(run, (count, topk), kNVTEFloat32)?];
        // A slot without a token has the experts -1.
        for (tensor, byte) in sent.iter().zip([0xFF, 0]) {
            let buffer = &tensor.tensor.rowwise;
            if buffer.bytes() > 0 {
                op::transformer_engine::memset(buffer.ptr(), byte, buffer.bytes(), run.stream)?;
            }
        }
        // Elements are copied bit by bit.
        let numbers = Buffer::new(indices.ptr(), kNVTEFloat32, &[tokens, topk]);
        let weights = routed.weights.tensor.rowwise;
        for (from, to) in [numbers, weights].iter().zip(&sent) {
            experts::to_rows(run, [from, &to.tensor.rowwise, &map], None)?;
        }
        self.exchange_slots(run, ranks, &[[&sent[0], &received[0]], [&sent[1], &received[1]]])?;
        let [chosen, weights] = received;
        let chosen = Buffer::new(chosen.tensor.rowwise.ptr(), kNVTEInt32, &[count, topk]);
        let (places, rows) = self.places((count, count), alignment);
        let first = ranks.rank() * local;
        let map = self.kept(run, (topk, count), kNVTEInt32)?;
        let numbers = self.numbers_of(run, places.limit)?;
        let [map_of, counts] = [&map, &numbers.counts].map(|x| x.tensor.rowwise);
        let (places, bounds) = (Places { first, ..places }, numbers.bounds());
        experts::place_rows(run, &chosen, [&map_of, &counts], &bounds, &places)?;
        if let Some(loads) = &routed.loads {
            let label = split::label(run);
            ranks.gather(&bounds.lengths, &loads.tensor.rowwise, label, run.stream)?;
        }
        routed.total = count.max(1);
        let slots = Slots { ranks: Arc::clone(ranks), count, map, weights };
        Ok((Layout { rows, counts }, numbers, slots))
    }

    /// Zeros the rows that no token has.
    fn zero_gaps(&self, run: &Run, rows: &QTensor, numbers: &Numbers) -> Result<()> {
        experts::zero_gaps(run, &rows.tensor.rowwise, &numbers.bounds(), numbers.limit)
    }

    /// Exchanges what is in the slots: of each pair what is sent, and what comes.
    fn exchange_slots(
        &self,
        run: &Run,
        ranks: &Communicator,
        pairs: &[[&QTensor; 2]],
    ) -> Result<()> {
        let part = |[from, to]: &[&QTensor; 2]| {
            let [from, to] = [from, to].map(|x| x.tensor.rowwise);
            (from.ptr(), to.ptr(), from.bytes() / ranks.size())
        };
        let parts: Vec<_> = pairs.iter().map(part).collect();
        // SAFETY: both tensors of a pair have the same slots of each rank.
        #[allow(unsafe_code)]
        unsafe {
            ranks.exchange_parts(&parts, split::label(run), run.stream)
        }
    }

    /// Tokens to the slots of the ranks of their experts; what comes from all ranks.
    fn to_slots(&self, run: &Run, slots: &Slots, x: &Tensor, map: &Buffer) -> Result<QTensor> {
        let shape = (slots.count, self.hidden);
        let received = self.scratch(run, shape, self.dtype)?;
        let data = Part::new(x.rowwise.ptr(), received.tensor.rowwise.ptr(), 0);
        let rows = i32::MAX as usize;
        let stored = Rows { slots_only: true, ..self.stored(slots, map, rows, data) };
        // SAFETY: the plans are those of these tokens and slots.
        #[allow(unsafe_code)]
        if unsafe { slots.ranks.send_rows(&stored, split::label(run), run.stream)? } {
            return Ok(received);
        }
        let sent = self.scratch(run, shape, self.dtype)?;
        experts::to_rows(run, [&x.rowwise, &sent.tensor.rowwise, map], None)?;
        self.exchange_slots(run, &slots.ranks, &[[&sent, &received]])?;
        Ok(received)
    }

    /// What the plans say of rows of `dtype` that a kernel stores.
    fn stored(&self, slots: &Slots, map: &Buffer, rows: usize, data: Part) -> Rows {
        Rows {
            map: map.ptr().cast_const().cast(),
            of_slots: slots.map.tensor.rowwise.ptr().cast_const().cast(),
            tokens: slots.count / slots.ranks.size(),
            limit: slots.count / slots.ranks.size(),
            planes: self.topk,
            rows,
            data: Part { width: self.hidden * self.dtype.bits() / 8, ..data },
            dtype: self.dtype,
            ..Rows::NONE
        }
    }

    /// Tokens to the rows of their experts on all ranks; rows that no token has become 0.
    fn send_rows(
        &self,
        run: &Run,
        slots: &Slots,
        (x, map): (&Tensor, &Buffer),
        (rows, numbers): (&QTensor, &Numbers),
    ) -> Result<()> {
        let to = &rows.tensor.rowwise;
        let data = Part::new(x.rowwise.ptr(), to.ptr(), 0);
        let Bounds { numbers: starts, lengths } = numbers.bounds();
        let stored = Rows {
            starts: starts.ptr().wrapping_byte_add(16).cast_const().cast(),
            lengths: lengths.ptr().cast_const().cast(),
            experts: lengths.shape.numel(),
            most: numbers.limit,
            ..self.stored(slots, map, to.shape.flatten().0, data)
        };
        // SAFETY: the plans are those of these tokens and rows.
        #[allow(unsafe_code)]
        let sent = unsafe { slots.ranks.send_rows(&stored, split::label(run), run.stream)? };
        if !sent {
            self.zero_gaps(run, rows, numbers)?;
            let received = self.to_slots(run, slots, x, map)?;
            let tensors = [&received, rows, &slots.map].map(|x| &x.tensor.rowwise);
            experts::to_rows(run, tensors, None)?;
        }
        Ok(())
    }

    /// Sums rows of the own experts for each slot, times their weights if there are some, sends them back, and writes the
    /// sums over the ranks of each own token.
    fn sum_slots(
        &self,
        run: &Run,
        slots: &Slots,
        (rows, weights): (&QTensor, Option<&Buffer>),
        (sum, map): (&Tensor, &Buffer),
    ) -> Result<()> {
        let of_rows = &rows.tensor.rowwise;
        let data = Part::new(of_rows.ptr(), sum.rowwise.ptr(), 0);
        let mut stored = self.stored(slots, map, of_rows.shape.flatten().0, data);
        stored.probs = weights.map_or(std::ptr::null(), |weights| weights.ptr().cast());
        // SAFETY: the plans are those of these rows and tokens.
        #[allow(unsafe_code)]
        if unsafe { slots.ranks.sum_rows(&stored, split::label(run), run.stream)? } {
            return Ok(());
        }
        let shape = (slots.count, self.hidden);
        let [sent, received] = [0; 2].map(|_| self.scratch(run, shape, self.dtype));
        let (sent, received) = (sent?, received?);
        let tensors = [rows, &sent, &slots.map].map(|x| &x.tensor.rowwise);
        experts::from_rows(run, tensors, weights)?;
        self.exchange_slots(run, &slots.ranks, &[[&sent, &received]])?;
        experts::from_rows(run, [&received.tensor.rowwise, &sum.rowwise, map], None)
    }

    /// Moves rows that are sorted by expert to the ranks of the experts, or (`back`) from there.
    fn travel(
        &self,
        run: &Run,
        journey: &Journey,
        [own, of_experts]: [&QTensor; 2],
        back: bool,
    ) -> Result<()> {
        let [own, experts] = [own, of_experts].map(|rows| rows.tensor.rowwise);
        let (rows, cols) = experts.shape.flatten();
        if !back && (journey.plan.has_padding() || journey.plan.total() < rows) {
            ops::zero(&experts, run.stream)?;
        }
        let matrix =
            Matrix { own: own.ptr(), experts: experts.ptr(), rows, cols, dtype: self.dtype };
        let bytes = journey.plan.room([cols * self.dtype.bits() / 8].into_iter());
        let memory = run.scratch(bytes)?;
        let memory = memory.buffer(0, kNVTEByte, &[bytes]).ptr();
        // SAFETY: both matrices have the rows of the plan.
        #[allow(unsafe_code)]
        unsafe {
            let (label, matrices) = (split::label(run), (&[matrix][..], back));
            journey.plan.exchange(&journey.ranks, matrices, memory, label, run.stream)
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
        (own, own_tokens): (&Tensor, usize),
        y: &Tensor,
        add: Option<&Tensor>,
        [losses, loads]: [Option<&Tensor>; 2],
    ) -> Result<Box<MoeTape>> {
        // Ranks that divide each expert do everything else alike, with the same tokens.
        let split = self.share.split.clone();
        let split = split.as_ref();
        let (whole, tokens) =
            (split::gather(split, run, own)?, split::whole_rows(split, own_tokens));
        let x = &whole.tensor;
        let with_balance = self.balance != 0.0 && (run.training || losses.is_some());
        let alignment = self.fc1.alignment(run)?.max(self.fc2.alignment(run)?);
        let mut routed = self.route(run, x, tokens, with_balance || loads.is_some())?;
        let with_slots = self.share.ranks.clone().filter(|_| self.capacity_factor != 0.0);
        let (layout, numbers, journey, slots) = match &with_slots {
            Some(ranks) => {
                let made = self.lay_out_slots(run, ranks, &mut routed, alignment)?;
                (made.0, made.1, None, Some(made.2))
            }
            None => {
                let made = self.lay_out(run, &mut routed, alignment)?;
                (made.0, made.1, made.2, None)
            }
        };
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
        match (&journey, &slots) {
            (None, None) => {
                self.zero_gaps(run, &rows, &numbers)?;
                experts::to_rows(run, [&x.rowwise, &rows.tensor.rowwise, &map], None)?;
            }
            (None, Some(slots)) => {
                self.send_rows(run, slots, (x, &map), (&rows, &numbers))?;
            }
            (Some(journey), _) => {
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
            Some(_) => self.scratch(run, (own_tokens, hidden), dtype)?,
        };
        split::reduce(split, run, &sum.tensor, |sum| match &slots {
            Some(slots) => {
                let weights = Some(&slots.weights.tensor.rowwise);
                self.sum_slots(run, slots, (&results, weights), (sum, &map))
            }
            None => {
                let tensors = [&results.tensor.rowwise, &sum.rowwise, &map];
                experts::from_rows(run, tensors, Some(&routed.weights.tensor.rowwise))
            }
        })?;
        if let Some(add) = add {
            ops::add(run, add, &sum.tensor, true)?;
        }
        let mut shared_tape = None;
        if let Some([fc1, fc2]) = &mut self.shared {
            let f = &self.activation;
            let shape = (fc1.output_rows(own_tokens)?, fc1.outputs);
            let hidden = QTensor::plain(run, shape, dtype, Lifetime::Tape)?;
            let fc1 = fc1.forward(run, own_tokens, &Source::Ready(own), &hidden.tensor, None)?;
            let write = |out: &Tensor, config: &_| f.forward(run, &hidden.tensor, out, config);
            let source = Source::Computed { write: &write, configurable: true };
            let fc2 = fc2.forward(run, shape.0, &source, y, Some(&sum.tensor))?;
            shared_tape = Some(SharedTape { fc1, hidden, fc2 });
        }
        Ok(Box::new(MoeTape {
            x: own.clone(),
            own: own_tokens,
            tokens,
            routed,
            journey,
            slots,
            layout,
            numbers,
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

    /// The gradients of the results of the own experts, and those of the own tokens' weights.
    fn results_grad(
        &self,
        run: &Run,
        tape: &MoeTape,
        slots: &Slots,
        dy: &Tensor,
        weights: &QTensor,
    ) -> Result<QTensor> {
        let map = tape.routed.map.tensor.rowwise;
        let received = self.to_slots(run, slots, dy, &map)?;
        let results = self.scratch(run, (tape.layout.rows, self.hidden), self.dtype)?;
        self.zero_gaps(run, &results, &tape.numbers)?;
        let [own, all] = [0; 2].map(|_| self.scratch(run, (slots.count, self.topk), kNVTEFloat32));
        let (own, all) = (own?, all?);
        let gradient = Some((&own.tensor.rowwise, &tape.results.tensor.rowwise));
        let of = Weights { probs: &slots.weights.tensor.rowwise, gradient };
        let tensors = [&received, &results, &slots.map].map(|x| &x.tensor.rowwise);
        experts::to_rows(run, tensors, Some(&of))?;
        self.exchange_slots(run, &slots.ranks, &[[&own, &all]])?;
        // Of the ranks of a token one has the gradient of a weight, and all others have 0.
        let tensors = [&all.tensor.rowwise, &weights.tensor.rowwise, &map];
        experts::from_rows(run, tensors, None)?;
        Ok(results)
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
        let split = self.share.split.clone();
        let split = split.as_ref();
        let (own_dy, whole) = (dy, split::gather(split, run, dy)?);
        let dy = &whole.tensor;
        let weights = self.scratch(run, (tokens, self.topk), kNVTEFloat32)?;
        // Gradients of results: those of the own tokens, then those of the own experts.
        let results = match &tape.slots {
            Some(slots) => self.results_grad(run, tape, slots, dy, &weights)?,
            None => {
                let own_rows = tape.journey.as_ref().map_or(layout.rows, |journey| journey.rows);
                let own = self.scratch(run, (own_rows, hidden), dtype)?;
                match &tape.journey {
                    None => self.zero_gaps(run, &own, &tape.numbers)?,
                    Some(_) => ops::zero(&own.tensor.rowwise, run.stream)?,
                }
                let gradient = Some((&weights.tensor.rowwise, &tape.results.tensor.rowwise));
                let of = Weights { probs: &routed.weights.tensor.rowwise, gradient };
                experts::to_rows(run, [&dy.rowwise, &own.tensor.rowwise, &map], Some(&of))?;
                match &tape.journey {
                    None => own,
                    Some(journey) => {
                        let results = self.scratch(run, (layout.rows, hidden), dtype)?;
                        self.travel(run, journey, [&own, &results], false)?;
                        results
                    }
                }
            }
        };
        if let Some(split) = split {
            // Each rank had parts of the results.
            split.sum(run, &weights.tensor.rowwise)?;
        }
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
            (Some(_), Some(_)) => Some(self.scratch(run, (tape.own, hidden), dtype)?),
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
            split::reduce(split, run, &sum.tensor, |sum| match &tape.slots {
                Some(slots) => self.sum_slots(run, slots, (&sorted, None), (sum, &map)),
                None => {
                    let tensors = [&sorted.tensor.rowwise, &sum.rowwise, &map];
                    experts::from_rows(run, tensors, None)
                }
            })?;
            if let Some(add) = add {
                ops::add(run, add, &sum.tensor, true)?;
            }
        }
        let logits = self.logits_grad(run, tape, &weights, losses)?;
        self.router_backward(run, tape, &logits, sum.as_ref())?;
        if let (Some([fc1, fc2]), Some(tape)) = (&mut self.shared, &tape.shared) {
            let shape = tape.hidden.tensor.rowwise.shape.flatten();
            let grad = QTensor::plain(run, (shape.0, fc2.inputs), dtype, Lifetime::Scratch)?;
            fc2.backward(run, &tape.fc2, &Grad::Ready(own_dy), Some(&grad.tensor), None)?;
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
        let split = self.share.split.clone();
        let x = split::gather(split.as_ref(), run, &tape.x)?;
        let wide = self.router_input(run, &x.tensor, tokens)?;
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
            (Some(part), Some(sum)) => {
                let all = &part.tensor.rowwise;
                let before = split.map_or(0, |split| split.elements_before(tape.own * self.hidden));
                let at = all.ptr().wrapping_byte_add(before * dtype.bits() / 8);
                let own = Buffer::new(at, dtype, &[tape.own, self.hidden]);
                ops::add(run, &plain(own), &sum.tensor, true)
            }
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
        let shape = (tape.own, self.hidden);
        let dy = given.get(0)?.matrix(self.dtype, shape)?;
        let dx = wanted.find_matrix(0, self.dtype, shape)?;
        let losses = self.losses_grad(given)?;
        self.backward_to(run, tape, &dy, losses.as_ref(), None, dx.as_ref())
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        self.parts()
    }
}
