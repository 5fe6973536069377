//! Linear layers of experts, whose rows lie sorted by expert. How many rows each expert has is only known to the device.

use super::context::{Microbatch, Run};
use super::dense::{Active, Dense, DenseConfig, scale_ranks};
use super::memory::{Block, Lifetime};
use super::ops::{self, experts};
use super::parameter::{Parameter, matrix};
use super::quantizer::{QTensor, Quantizer, Usage, is_high_precision};
use super::recipe::{BackwardOperands, ROLES, Role};
use super::split::{Piece, Shard, Side, Split};
use super::state::Slot;
use crate::error::{Error, Result};
use crate::parallel::Communicator;
use crate::parallel::exports::NVTEXGridGroup::NVTEX_GRID_EP;
use crate::tensor::{Buffer, GroupedTensor, Shape, Tensor, bytes};
use crate::types::NVTEDType::*;
use crate::types::NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
use std::ptr::null;
use std::sync::Arc;

/// The experts of a module: how many there are, which of them this rank has, and what of each.
#[derive(Clone)]
pub struct Share {
    pub experts: usize,
    /// The ranks that have the other ones.
    pub ranks: Option<Arc<Communicator>>,
    /// The ranks that have the other parts of the own ones.
    pub split: Option<Split>,
}

impl Share {
    /// The number of experts of this rank.
    pub fn local(&self) -> usize {
        self.experts / self.ranks.as_ref().map_or(1, |ranks| ranks.size())
    }

    /// What this rank has of a parameter with dimensions `dims` for each expert: outputs, and inputs if it is a weight.
    fn shard(&self, config: &DenseConfig, dims: &[usize]) -> Result<Shard> {
        let length = self.local();
        let first = self.ranks.as_ref().map_or(0, |ranks| ranks.rank()) * length;
        let whole = [&[self.experts], dims].concat();
        let dim = if config.side == Side::Column { 1 } else { 2 };
        if let Some(split) = self.split.as_ref().filter(|_| dim < whole.len()) {
            let mut shard = split.shard(&whole, dim, config.blocks)?;
            shard.experts = self.ranks.as_ref().map(|_| first..first + length);
            return Ok(shard);
        }
        let pieces = vec![Piece { whole: first, part: 0, length }];
        Ok(Shard { over: NVTEX_GRID_EP, whole, dim: 0, pieces, experts: None })
    }

    /// The second group of ranks whose maxima give the scales of the operands, by role.
    fn scale_ranks(&self, side: Side) -> [Option<Arc<Communicator>>; 3] {
        self.split.as_ref().map(|split| scale_ranks(split, side)).unwrap_or_default()
    }
}

/// Numbers that every product of experts reads, on the device.
pub struct Constants {
    /// Zeros and ones of Float32.
    _floats: Block,
    zero: Buffer,
    one: Buffer,
    /// 0, 1, 2...: where copies of one number go.
    _places: Block,
    places: Buffer,
}

impl Constants {
    /// Of `count` experts.
    pub fn new(run: &Run, count: usize) -> Result<Self> {
        let floats = run.block(8, Lifetime::Persistent)?;
        ops::upload(floats.ptr(), &[0.0f32, 1.0], run.stream)?;
        let places = run.block(4 * count, Lifetime::Persistent)?;
        let numbers: Vec<i32> = (0..count as i32).collect();
        ops::upload(places.ptr(), &numbers, run.stream)?;
        Ok(Self {
            zero: floats.buffer(0, kNVTEFloat32, &[1]),
            one: floats.buffer(4, kNVTEFloat32, &[1]),
            places: places.buffer(0, kNVTEInt32, &[count, 1]),
            _floats: floats,
            _places: places,
        })
    }

    pub fn one(&self) -> Buffer {
        self.one
    }

    /// `to` becomes copies of one float.
    fn copies(&self, run: &Run, from: &Buffer, to: Buffer) -> Result<()> {
        let to = Buffer::new(to.ptr(), kNVTEFloat32, &[to.shape.numel(), 1]);
        experts::to_rows(run, [from, &to, &self.places], None)
    }
}

/// The rows of experts in a pass.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Rows for which there is memory, at least as many as experts have.
    pub rows: usize,
    /// Int64 `[experts]`: the rows of each one, padding included.
    pub counts: Buffer,
}

/// Matrices of experts as products take them, with the memory that they own.
pub struct Members {
    group: GroupedTensor,
    /// What only the row-wise data need.
    rowwise: (Option<QTensor>, Vec<Block>),
    _offsets: Option<QTensor>,
    _blocks: Vec<Block>,
}

impl Members {
    /// In high precision, of a matrix that holds all of them.
    fn plain(x: &Tensor, count: usize, counts: Option<Buffer>) -> Self {
        let (rows, cols) = x.rowwise.shape.flatten();
        let shape = Shape::new(&[rows, cols]);
        let mut group = GroupedTensor::new(NVTE_DELAYED_TENSOR_SCALING, count, shape);
        group.rowwise = x.rowwise;
        group.first_dims = counts.unwrap_or(group.first_dims);
        Self { group, rowwise: (None, Vec::new()), _offsets: None, _blocks: Vec::new() }
    }

    /// Whether the values are those of the matrix that they were made of.
    fn is_plain(&self) -> bool {
        is_high_precision(self.group.dtype())
    }

    /// Gives up the direction that only the forward product needs.
    fn drop_rowwise(&mut self) {
        if self.group.colwise.is_set() {
            self.group.rowwise = Buffer::UNSET;
            self.group.rowwise_scale_inv = Buffer::UNSET;
            self.rowwise = (None, Vec::new());
        }
    }

    /// Casts a matrix of `count` members. Modes with one scale for a tensor have one for all members.
    #[allow(clippy::too_many_arguments)]
    fn cast(
        run: &Run,
        constants: &Constants,
        quantizer: &Quantizer,
        x: &Tensor,
        (count, counts): (usize, Option<Buffer>),
        usage: Usage,
        slot: Option<&Slot>,
        lifetime: Lifetime,
    ) -> Result<Self> {
        let mut members = Self::plain(x, count, counts);
        if quantizer.is_none() {
            return Ok(members);
        }
        let (rows, cols) = x.rowwise.shape.flatten();
        if let Some(counts) = &counts {
            let offsets = experts::offsets(run, counts, cols)?;
            members.group.offsets = offsets.tensor.rowwise;
            members._offsets = Some(offsets);
        }
        let source = members.group.clone();
        let mode = quantizer.mode();
        let group = &mut members.group;
        (group.mode, group.rowwise) = (mode, Buffer::UNSET);
        let config = quantizer.config();
        if quantizer.transposes() {
            let along = Usage { rowwise: true, colwise: false };
            let cast = quantizer.empty(run, (rows, cols), along, slot, lifetime)?;
            quantizer.cast(run, x, &cast, null())?;
            let scales = run.block(8 * count, lifetime)?;
            let [inverse, scale] =
                [0, 1].map(|i| scales.buffer(4 * count * i, kNVTEFloat32, &[count]));
            constants.copies(run, &cast.tensor.rowwise_scale_inv, inverse)?;
            group.rowwise = cast.tensor.rowwise;
            group.rowwise_scale_inv = inverse;
            if usage.colwise {
                constants.copies(run, &cast.tensor.scale, scale)?;
                let block = run.block(bytes(rows * cols, quantizer.dtype), lifetime)?;
                group.colwise = block.buffer(0, quantizer.dtype, &[rows * cols]);
                group.colwise_scale_inv = inverse;
                let columns = GroupedTensor { rowwise: Buffer::UNSET, scale, ..group.clone() };
                experts::group_quantize(run, &source, &columns, &config)?;
                members._blocks.push(block);
            }
            members.rowwise.0 = Some(cast);
            members._blocks.push(scales);
            return Ok(members);
        }
        let scaling = mode.scaling();
        let direction = |colwise: bool| -> Result<([Buffer; 2], [Block; 2])> {
            let entries = match counts {
                Some(_) => scaling.scale_entries(colwise, (rows, cols)),
                None => count * scaling.scale_entries(colwise, (rows / count, cols)),
            };
            let data = run.block(bytes(rows * cols, quantizer.dtype), lifetime)?;
            let scales = run.block(bytes(entries, scaling.scales[0]), lifetime)?;
            let buffers = [
                data.buffer(0, quantizer.dtype, &[rows * cols]),
                scales.buffer(0, scaling.scales[0], &[entries]),
            ];
            Ok((buffers, [data, scales]))
        };
        if usage.rowwise {
            let (buffers, blocks) = direction(false)?;
            [group.rowwise, group.rowwise_scale_inv] = buffers;
            members.rowwise.1.extend(blocks);
        }
        if usage.colwise {
            let (buffers, blocks) = direction(true)?;
            [group.colwise, group.colwise_scale_inv] = buffers;
            members._blocks.extend(blocks);
        }
        experts::group_quantize(run, &source, group, &config)?;
        Ok(members)
    }
}

/// `y_e = x_e W_e^T + b_e` for the rows of each expert e.
pub struct ExpertLinear {
    pub dense: Dense,
    share: Share,
    /// What ranks divide of each expert.
    side: Side,
    /// The cast weights that are kept over microbatches.
    cached: Option<Arc<Members>>,
}

pub struct ExpertTape {
    active: Active,
    input: Members,
    /// None if it is read where it lies, or cast again.
    weight: Option<Arc<Members>>,
    layout: Layout,
}

impl ExpertTape {
    /// Whether the backward pass reads the input of the forward pass as it was.
    pub fn reads_input(&self) -> bool {
        self.input.is_plain()
    }
}

impl ExpertLinear {
    pub fn new(run: &Run, name: &str, config: &DenseConfig, share: &Share) -> Result<Self> {
        let quantized = run.frame.as_ref().is_some_and(|frame| frame.quantized_weights);
        if quantized {
            let message = format!(
                "layer {name:?}: weights of experts in FP8 alone (NVTEX_CONTEXT_QUANTIZED_WEIGHTS) do not exist"
            );
            return Err(Error::unsupported(message));
        }
        let dense = Dense::stacked(run, name, config, |dims| share.shard(config, dims))?;
        Ok(Self { dense, share: share.clone(), side: config.side, cached: None })
    }

    /// How the operands of a pass are cast.
    fn prepare(&mut self, run: &Run) -> Result<Active> {
        let mut active = self.dense.prepare(run)?;
        let layer = self.dense.name.to_string_lossy();
        if active.quantizers.iter().any(Quantizer::is_nvfp4) {
            let message = format!(
                "layer {layer:?}: expected a recipe other than NVFP4 (products of experts take FP8 and 16 bits)"
            );
            return Err(Error::unsupported(message));
        }
        if active.backward() == BackwardOperands::Dequantized {
            let message = format!(
                "layer {layer:?}: NVTEX_BACKWARD_DEQUANTIZED does not exist for experts; \
                 NVTEX_BACKWARD_QUANTIZED and NVTEX_BACKWARD_HIGH_PRECISION do"
            );
            return Err(Error::unsupported(message));
        }
        active.ranks = [0; 3].map(|_| self.share.ranks.clone());
        active.more_ranks = self.share.scale_ranks(self.side);
        Ok(active)
    }

    /// What the rows of an expert have to be a multiple of.
    pub fn alignment(&mut self, run: &Run) -> Result<usize> {
        let active = self.prepare(run)?;
        let of_role = |role| match active.quantizer(role) {
            quantizer if quantizer.is_none() => 1,
            // Columns of a transposed member begin at multiples of 16 bytes.
            quantizer if quantizer.transposes() => 16,
            // Scales of a member are those of its rows among all rows.
            _ => 128,
        };
        Ok(ROLES.map(of_role).into_iter().max().unwrap_or(1))
    }

    fn matrices(&self, x: &Tensor) -> Tensor {
        matrix(x, (self.share.local() * self.dense.outputs, self.dense.inputs))
    }

    /// The weights as products take them.
    fn operand(
        &mut self,
        run: &Run,
        constants: &Constants,
        active: &Active,
    ) -> Result<Arc<Members>> {
        let weight = self.matrices(&self.dense.weight.value.tensor);
        let (quantizer, count) = (active.quantizer(Role::Weight), self.share.local());
        active.calibrate(run, Role::Weight, &weight, weight.rowwise.shape.flatten())?;
        if quantizer.is_none() {
            return Ok(Arc::new(Members::plain(&weight, count, None)));
        }
        let keep = run.microbatch != Microbatch::None;
        if let Some(cached) = &self.cached
            && run.microbatch == Microbatch::Later
        {
            return Ok(Arc::clone(cached));
        }
        let quantized = active.backward() == BackwardOperands::Quantized;
        // A weight that tapes do not hold is cast again for the backward pass.
        let training = run.training && self.dense.weight.own.is_none();
        let usage = Usage { rowwise: true, colwise: quantized && (keep || training) };
        let slot = active.slot(Role::Weight, run.training);
        let lifetime = if keep { Lifetime::Persistent } else { Lifetime::Tape };
        let of = (count, None);
        let slot = slot.as_ref();
        let cast = Members::cast(run, constants, &quantizer, &weight, of, usage, slot, lifetime)?;
        let cast = Arc::new(cast);
        self.cached = keep.then(|| Arc::clone(&cast));
        Ok(cast)
    }

    /// Whether a tape has the operand of the weights. What is in high precision is read where it lies, and of values that
    /// come and go tapes have nothing.
    fn keeps(&self, run: &Run, weight: &Members) -> bool {
        let kept = run.microbatch != Microbatch::None || self.dense.weight.own.is_none();
        kept && !weight.is_plain()
    }

    /// The weights of a pass whose tape has none.
    fn operand_again(&self, run: &Run, constants: &Constants, active: &Active) -> Result<Members> {
        let weight = self.matrices(&self.dense.weight.value.tensor);
        let mut active = active.clone();
        active.again = true;
        let (quantizer, of) = (active.quantizer(Role::Weight), (self.share.local(), None));
        if quantizer.is_none() || active.backward() != BackwardOperands::Quantized {
            return Ok(Members::plain(&weight, of.0, None));
        }
        let usage = Usage { rowwise: true, colwise: true };
        let slot = active.slot(Role::Weight, false);
        let (slot, lifetime) = (slot.as_ref(), Lifetime::Scratch);
        Members::cast(run, constants, &quantizer, &weight, of, usage, slot, lifetime)
    }

    /// Rows of an output, of which those of no expert are zeros.
    fn output(&self, run: &Run, y: &Tensor, layout: &Layout) -> Result<Members> {
        ops::zero(&y.rowwise, run.stream)?;
        Ok(Members::plain(y, self.share.local(), Some(layout.counts)))
    }

    pub fn forward(
        &mut self,
        run: &Run,
        constants: &Constants,
        layout: &Layout,
        x: &Tensor,
        y: &Tensor,
    ) -> Result<ExpertTape> {
        let mut active = self.prepare(run)?;
        if run.training && self.dense.weight.own.is_some() {
            active.scales[Role::Weight as usize] = active.keep_scale(run, Role::Weight)?;
        }
        self.dense.note(run, &active);
        let quantizer = active.quantizer(Role::Input);
        let shape = (layout.rows, self.dense.inputs);
        let of = (self.share.local(), Some(layout.counts));
        let quantized = active.backward() == BackwardOperands::Quantized;
        let wgrad = run.training && self.dense.weight.grad.is_some();
        let usage = Usage { rowwise: true, colwise: quantized && wgrad };
        let slot = active.slot(Role::Input, run.training);
        active.calibrate(run, Role::Input, x, shape)?;
        let (slot, lifetime) = (slot.as_ref(), Lifetime::Tape);
        let mut input = Members::cast(run, constants, &quantizer, x, of, usage, slot, lifetime)?;
        let weight = self.operand(run, constants, &active)?;
        let out = self.output(run, y, layout)?;
        let product = experts::GroupedGemm {
            transa: true,
            transb: false,
            factors: [&constants.one, &constants.zero],
            split_accumulator: active.split(0),
        };
        product.run(run, &weight.group, &input.group, &out.group)?;
        // Of results that are parts of a sum one has the bias.
        let adds = self.side == Side::Column
            || self.share.split.as_ref().is_none_or(|split| split.is_first());
        if let Some(bias) = self.dense.bias.as_ref().filter(|_| adds) {
            let size = (self.share.local(), self.dense.outputs);
            let bias = Members::plain(&matrix(&bias.value.tensor, size), size.0, None);
            experts::group_bias(run, &out.group, &bias.group)?;
        }
        match quantized {
            // The backward pass reads the other direction.
            true => input.drop_rowwise(),
            false => input = Members::plain(x, of.0, of.1),
        }
        let weight = Some(weight).filter(|weight| self.keeps(run, weight));
        Ok(ExpertTape { active, input, weight, layout: *layout })
    }

    /// Gradients: of the parameters to where they are bound, of x to `dx`.
    pub fn backward(
        &self,
        run: &Run,
        constants: &Constants,
        tape: &ExpertTape,
        dy: &Tensor,
        dx: Option<&Tensor>,
    ) -> Result<()> {
        let (active, layout) = (&tape.active, &tape.layout);
        let of = (self.share.local(), Some(layout.counts));
        let quantizer = active.quantizer(Role::GradOutput);
        let wgrad = self.dense.weight.target(run);
        let quantized = active.backward() == BackwardOperands::Quantized;
        let usage = Usage { rowwise: dx.is_some(), colwise: wgrad.is_some() };
        let slot = active.slot(Role::GradOutput, true);
        active.calibrate(run, Role::GradOutput, dy, dy.rowwise.shape.flatten())?;
        let slot = slot.as_ref();
        let lifetime = Lifetime::Scratch;
        let grad = Members::cast(run, constants, &quantizer, dy, of, usage, slot, lifetime)?;
        if let Some(bias) = self.dense.bias.as_ref().filter(|bias| bias.grad.is_some()) {
            let sums = bias.landing(run, self.dense.dtype)?;
            let mut source = Members::plain(dy, of.0, of.1);
            let offsets = experts::offsets(run, &layout.counts, self.dense.outputs)?;
            source.group.offsets = offsets.tensor.rowwise;
            experts::group_sum_rows(run, &source.group, &sums.tensor.rowwise)?;
            bias.deposit(run, &sums)?;
        }
        if let Some(dx) = dx {
            let again;
            let weight = match &tape.weight {
                Some(weight) if quantized => weight,
                _ => {
                    again = self.operand_again(run, constants, active)?;
                    &again
                }
            };
            let weight = &weight.group;
            let out = self.output(run, dx, layout)?;
            let product = experts::GroupedGemm {
                transa: false,
                transb: false,
                factors: [&constants.one, &constants.zero],
                split_accumulator: active.split(1),
            };
            product.run(run, weight, &grad.group, &out.group)?;
        }
        if let Some((target, accumulate)) = wgrad {
            if quantized && !quantizer.is_none() && !tape.input.group.colwise.is_set() {
                let expected = "a gradient of the weight that was bound before the forward pass";
                let name = format!("layer {:?}: weight", self.dense.name.to_string_lossy());
                return Err(Error::argument(name, expected, "one bound after it"));
            }
            let out = Members::plain(&self.matrices(&target), of.0, None);
            let product = experts::GroupedGemm {
                transa: false,
                transb: true,
                factors: [
                    &constants.one,
                    if accumulate { &constants.one } else { &constants.zero },
                ],
                split_accumulator: active.split(2),
            };
            product.run(run, &tape.input.group, &grad.group, &out.group)?;
        }
        Ok(())
    }

    pub fn parameters(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.dense.parameters()
    }
}
