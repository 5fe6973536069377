//! The products of a linear layer, which all modules with weights are made of (spec: modules, section 7).

use super::callback;
use super::context::{Microbatch, Run};
use super::memory::Lifetime;
use super::ops::{self, Activation, Gemm};
use super::parameter::{Format, Init, Parameter, WEIGHT_SLOT, matrix};
use super::quantizer::{QTensor, Quantizer, Source, Usage, Write, is_high_precision};
use super::recipe::{BackwardOperands, ROLES, Recipe, Role};
use super::split::chunks::{self, For, Gathered, Rows, Summed};
use super::split::{self, GradSum, Shard, Side, Split, Spread};
use super::state::{Delayed, Pass, Settings, Slot};
use super::with_last;
use crate::error::{Error, Result};
use crate::op;
use crate::op::transformer_engine::{QuantizationConfig, non_tn_fp8_gemm_supported};
use crate::parallel::Communicator;
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTEDType::{self, *};
use crate::verbose::{self, Level};
use std::ffi::CString;
use std::ptr::null;
use std::sync::Arc;

/// Where the stochastic rounding of gradients begins in a call's sequence of random numbers, behind the dropouts.
const ROUNDING_SITE: u32 = 96;

/// How a layer's operands are cast in a step.
#[derive(Clone)]
pub(super) struct Active {
    recipe: Option<Arc<Recipe>>,
    /// All or none of the operands are in high precision, except for the weights of a disabled recipe.
    pub quantizers: [Quantizer; 3],
    delayed: Option<Arc<Delayed>>,
    /// Maxima are collected while the products stay in high precision.
    calibrating: bool,
    /// In a pass that is computed again: the scales of its input and of its weight, which the slots may have lost.
    pub scales: [Option<Arc<QTensor>>; 2],
    /// Seed and offset of the stochastic rounding of gradients.
    random: Option<Arc<QTensor>>,
    /// The ranks that have the other parts of the operands, by role, if their scales are those of the whole.
    pub ranks: [Option<Arc<Communicator>>; 3],
    /// The same of operands that ranks divide twice.
    pub more_ranks: [Option<Arc<Communicator>>; 3],
    /// An earlier pass has done this already: maxima stay as they are.
    pub again: bool,
}

impl Active {
    const HIGH_PRECISION: Self = Self {
        recipe: None,
        quantizers: [Quantizer::NONE; 3],
        delayed: None,
        calibrating: false,
        scales: [None, None],
        random: None,
        ranks: [None, None, None],
        more_ranks: [None, None, None],
        again: false,
    };

    /// How the operand of a role is cast for the products.
    pub(super) fn quantizer(&self, role: Role) -> Quantizer {
        if self.calibrating { Quantizer::NONE } else { self.quantizers[role as usize] }
    }

    pub(super) fn slot(&self, role: Role, with_amax: bool) -> Option<Slot> {
        let [ranks, sequence] =
            [&self.ranks, &self.more_ranks].map(|groups| groups[role as usize].clone());
        let Some(delayed) = &self.delayed else {
            let random = self.random.as_ref().filter(|_| role == Role::GradOutput);
            let random = random.map_or(Buffer::UNSET, |random| random.tensor.rowwise);
            let slot = Slot { random, ranks, sequence, ..Slot::NONE };
            let any = slot.random.is_set() || slot.ranks.is_some() || slot.sequence.is_some();
            return any.then_some(slot);
        };
        let mut slot = match role {
            Role::Input => delayed.slot(Pass::Forward, 0),
            Role::Weight => delayed.slot(Pass::Forward, WEIGHT_SLOT),
            Role::GradOutput => delayed.slot(Pass::Backward, 0),
        };
        if !with_amax || self.again {
            slot.amax = Buffer::UNSET;
        }
        if let (true, Some(Some(scale))) = (self.again, self.scales.get(role as usize)) {
            slot.scale = scale.tensor.rowwise;
        }
        (slot.ranks, slot.sequence) = (ranks, sequence);
        Some(slot)
    }

    /// A copy of the scale of input or weight, which an update may change before the backward pass.
    pub(super) fn keep_scale(&self, run: &Run, role: Role) -> Result<Option<Arc<QTensor>>> {
        let delayed = self.quantizers[role as usize].is_delayed();
        let slot = self.slot(role, false).filter(|_| delayed);
        let Some(slot) = slot else { return Ok(None) };
        let mut copy = QTensor::plain(run, (1, 1), kNVTEFloat32, Lifetime::Tape)?;
        copy.tensor.rowwise.shape = slot.scale.shape;
        let bytes = slot.scale.bytes();
        ops::copy(copy.tensor.rowwise.ptr(), slot.scale.ptr(), bytes, run.stream)?;
        Ok(Some(Arc::new(copy)))
    }

    /// In calibration, records the maximum of an operand.
    pub(super) fn calibrate(
        &self,
        run: &Run,
        role: Role,
        x: &Tensor,
        shape: (usize, usize),
    ) -> Result<()> {
        let quantizer = self.quantizers[role as usize];
        if !self.calibrating || self.again || !quantizer.is_delayed() {
            return Ok(());
        }
        let usage = Usage { rowwise: true, colwise: false };
        let slot = self.slot(role, true);
        let out = quantizer.empty(run, shape, usage, slot.as_ref(), Lifetime::Scratch)?;
        quantizer.cast(run, x, &out, null())
    }

    /// What the backward products multiply.
    pub(super) fn backward(&self) -> BackwardOperands {
        let recipe = self.recipe.as_ref().filter(|_| !self.calibrating);
        recipe.map_or(BackwardOperands::Quantized, |recipe| recipe.backward)
    }

    pub(super) fn split(&self, product: usize) -> bool {
        self.recipe.as_ref().is_some_and(|recipe| recipe.split[product])
    }
}

pub struct Dense {
    /// Name of the layer, unique in its context.
    pub(super) name: CString,
    pub weight: Parameter,
    pub bias: Option<Parameter>,
    pub inputs: usize,
    pub outputs: usize,
    pub dtype: NVTEDType,
    active: Active,
    /// The cast weight that is kept over microbatches.
    cached: Option<Arc<QTensor>>,
    pub again: Again,
    /// The ranks that share the weight, and which side of it.
    share: Option<(Split, Side)>,
}

/// What the backward pass computes once more, so that tapes need not hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    Nothing,
    /// The input.
    Input,
    /// The input and the product.
    Product,
}

/// Whether the product that gives the input's gradient reads a weight of `[outputs, inputs]` in FP8, with one
/// scale, only from its column-wise data.
fn needs_columns(dtype: NVTEDType, (rows, inputs, outputs): (usize, usize, usize)) -> Result<bool> {
    let as_it_lies = dtype == NVTEDType::kNVTEFloat8E4M3
        && op::gemm::reads_weight_as_it_lies((inputs, rows, outputs))?;
    Ok(!as_it_lies && !non_tn_fp8_gemm_supported()?)
}

/// The ranks whose maxima give the scales of the operands: those that have the other parts.
pub(super) fn scale_ranks(split: &Split, side: Side) -> [Option<Arc<Communicator>>; 3] {
    let divided = match side {
        Side::Column => [false, true, true],
        Side::Row => [true, true, false],
    };
    divided.map(|divided| split.scale_ranks().filter(|_| divided))
}

/// What a forward pass leaves for its backward pass.
pub struct DenseTape {
    active: Active,
    input: QTensor,
    /// None: it is read where it lies, or cast once more.
    weight: Option<Arc<QTensor>>,
    /// Rows of the products, of which other ranks may have some.
    rows: usize,
    /// The own rows of an input that backward passes gather again.
    own: Option<OwnRows>,
}

/// A rank's rows of an operand that others have parts of, and how they are cast.
struct OwnRows {
    rows: QTensor,
    quantizer: Quantizer,
}

impl OwnRows {
    /// Rows of all ranks as an operand, cast as the own ones.
    fn source<'a>(&self, whole: &'a Tensor) -> Source<'a> {
        match self.quantizer.is_none() {
            true => Source::Ready(whole),
            false => Source::Cast(whole),
        }
    }
}

impl DenseTape {
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether the gradient of the output is cast with a scale from its amax: whoever writes it may give that.
    pub fn scales_grad(&self) -> bool {
        self.active.quantizer(Role::GradOutput).is_current()
    }
}

/// The derivatives of an activation that products apply.
#[derive(Clone, Copy)]
pub struct Slopes<'a> {
    pub slopes: &'a Tensor,
    /// SwiGLU, else GELU.
    pub gated: bool,
    /// Where the sums of the columns of the gradient of its input go, without `gated`.
    pub sums: Option<&'a QTensor>,
}

/// Where the gradient of a layer's input goes.
#[derive(Clone, Copy)]
struct Dx<'a> {
    /// None: nobody wants it.
    to: Option<&'a Tensor>,
    /// What is added to it.
    add: Option<&'a Tensor>,
    /// What begins when it is there.
    sum: Option<&'a GradSum<'a>>,
    /// The gradient of the output, if it comes from other ranks.
    rows: Rows<'a>,
    /// The own rows of the layer's input, if others come from other ranks again.
    input: Option<(&'a OwnRows, &'a Split)>,
    /// The derivatives of an activation, if that was applied before the layer: the gradient is that of its input.
    slopes: Option<Slopes<'a>>,
}

impl Dx<'_> {
    const NONE: Self =
        Self { to: None, add: None, sum: None, rows: Rows::Here, input: None, slopes: None };
}

/// A product with what has the rows of its result: the derivatives of an activation, or what is added.
fn beside_of<'a>(slopes: Option<Slopes>, beside: Option<&'a Tensor>, gemm: Gemm<'a>) -> Gemm<'a> {
    match slopes {
        Some(_) => Gemm { slopes: beside, ..gemm },
        None => Gemm { add: beside, ..gemm },
    }
}

/// The gradient of a layer's output.
pub enum Grad<'a> {
    Ready(&'a Tensor),
    /// With the sums of its columns, as [`Dense::grad_sums`] has made room for them; none: the bias gets no gradient
    /// here.
    Summed(&'a Tensor, Option<&'a QTensor>),
    /// What this writes, along rows and columns if it casts, with the sums of its columns, for which
    /// [`Dense::bias_sums`] has made room.
    Computed(&'a Write<'a>, Option<&'a QTensor>),
    /// `f'(input) * grad`
    Activation {
        f: &'a Activation,
        grad: &'a Tensor,
        input: &'a Tensor,
    },
}

/// Sizes and initial values of a [`Dense`], of the whole where ranks share it.
#[derive(Clone, Copy)]
pub struct DenseConfig {
    /// What the config says of ranks, and which side of the weight they share.
    pub spread: Spread,
    pub side: Side,
    /// Parts of the outputs, each of which is shared.
    pub blocks: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub bias: bool,
    pub dtype: NVTEDType,
    pub deviation: f32,
    pub seed: u64,
    /// Names of the parameters.
    pub names: [&'static str; 2],
}

impl Dense {
    pub fn new(run: &Run, name: &str, config: &DenseConfig) -> Result<Self> {
        let &DenseConfig { dtype, side, blocks, .. } = config;
        let split = Split::of(run, &config.spread)?;
        let (mut inputs, mut outputs) = (config.inputs, config.outputs);
        let whole = [outputs, inputs];
        let shard = match &split {
            None => Shard::all(&whole),
            Some(split) => {
                let (what, size) = match side {
                    Side::Column => ("out_features", &mut outputs),
                    Side::Row => ("in_features", &mut inputs),
                };
                *size = blocks * split.share(&format!("layer {name:?}: {what}"), *size / blocks)?;
                split.shard(&whole, if side == Side::Column { 0 } else { 1 }, blocks)?
            }
        };
        let name = CString::new(name).unwrap_or_default();
        let quantized = run.frame.as_ref().filter(|frame| frame.quantized_weights);
        let mut active = Active::HIGH_PRECISION;
        let mut format = None;
        if let Some(recipe) = quantized.and_then(|frame| frame.recipe.as_ref()) {
            active = Self::activate(run, &name, recipe, None, (inputs, outputs))?;
            let quantizer = active.quantizers[Role::Weight as usize];
            let delayed = active.delayed.clone();
            if quantizer.is_nvfp4() {
                let layer = name.to_string_lossy();
                let message = format!(
                    "layer {layer:?}: weights in NVFP4 alone (NVTEX_CONTEXT_QUANTIZED_WEIGHTS) do not exist"
                );
                return Err(Error::unsupported(message));
            }
            format = (!quantizer.is_none()).then_some(Format { quantizer, delayed });
        }
        let init = Init::Normal { deviation: config.deviation, seed: config.seed };
        let of_bias = match (&split, side) {
            (Some(split), Side::Column) => split.shard(&whole[..1], 0, blocks)?,
            _ => Shard::all(&whole[..1]),
        };
        let weight = Parameter::of(run, config.names[0], shard, dtype, init, format)?;
        let bias = match config.bias {
            false => None,
            true => {
                let init = Init::Constant(0.0);
                Some(Parameter::of(run, config.names[1], of_bias, dtype, init, None)?)
            }
        };
        let share = split.map(|split| (split, side));
        if let Some((split, side)) = &share {
            active.ranks = scale_ranks(split, *side);
        }
        Ok(Self {
            name,
            weight,
            bias,
            inputs,
            outputs,
            dtype,
            active,
            cached: None,
            again: Again::Nothing,
            share,
        })
    }

    /// Weights and biases of several layers with the same inputs, `[layers, outputs, inputs]` and `[layers, outputs]`,
    /// of which this rank has some.
    pub fn stacked(
        run: &Run,
        name: &str,
        config: &DenseConfig,
        layers: impl Fn(&[usize]) -> Result<Shard>,
    ) -> Result<Self> {
        let &DenseConfig { inputs, outputs, dtype, deviation, seed, names, .. } = config;
        let init = Init::Normal { deviation, seed };
        let shard = layers(&[outputs, inputs])?;
        let of_bias = layers(&[outputs])?;
        let (outputs, inputs) = (shard.dims()[1], shard.dims()[2]);
        let weight = Parameter::of(run, names[0], shard, dtype, init, None)?;
        let bias = match config.bias {
            false => None,
            true => {
                let init = Init::Constant(0.0);
                Some(Parameter::of(run, names[1], of_bias, dtype, init, None)?)
            }
        };
        Ok(Self {
            name: CString::new(name).unwrap_or_default(),
            weight,
            bias,
            inputs,
            outputs,
            dtype,
            active: Active::HIGH_PRECISION,
            cached: None,
            again: Again::Nothing,
            share: None,
        })
    }

    /// The ranks that share the weight.
    pub fn split(&self) -> Option<&Split> {
        self.share.as_ref().map(|(split, _)| split)
    }

    /// The ranks that share rows of the input, but not of the output.
    fn column(&self) -> Option<&Split> {
        self.share.as_ref().filter(|(_, side)| *side == Side::Column).map(|(split, _)| split)
    }

    /// The ranks whose products are summed, and that may share rows of the output.
    fn row(&self) -> Option<&Split> {
        self.share.as_ref().filter(|(_, side)| *side == Side::Row).map(|(split, _)| split)
    }

    /// Whether the input is gathered from other ranks.
    fn gathers(&self) -> bool {
        self.column().is_some_and(|split| split.sequence)
    }

    /// Rows of the output for those of an input.
    pub fn output_rows(&self, rows: usize) -> Result<usize> {
        let rows = split::whole_rows(self.column(), rows);
        split::divided_rows(self.row(), "inputs[0]: rows", rows)
    }

    /// The shape of the output for that of an input.
    pub fn output_shape(&self, input: &Shape) -> Shape {
        let rows = input.flatten().0;
        let rows = split::own_rows(self.row(), split::whole_rows(self.column(), rows));
        with_last(&split::with_rows(input, rows), self.outputs)
    }

    /// The quantizers of a recipe, with the state that they need.
    fn activate(
        run: &Run,
        name: &CString,
        recipe: &Arc<Recipe>,
        old: Option<Arc<Delayed>>,
        (inputs, outputs): (usize, usize),
    ) -> Result<Active> {
        let choose = || recipe.quantizers(name);
        let quantizers = callback::within(run.context.memory.id(), choose)?;
        for role in ROLES {
            let multiple = quantizers[role as usize].alignment();
            for (field, size) in [("in_features", inputs), ("out_features", outputs)] {
                if !size.is_multiple_of(multiple) {
                    let layer = name.to_string_lossy();
                    let expected = format!("a multiple of {multiple} ({})", quantizers[0].scaling);
                    let name = format!("layer {layer:?}: {field}");
                    return Err(Error::argument(name, expected, size));
                }
            }
        }
        let delayed = match quantizers.iter().any(Quantizer::is_delayed) {
            false => None,
            true => {
                let forward = match quantizers[0].is_delayed() {
                    true => quantizers[0].dtype,
                    false => quantizers[1].dtype,
                };
                let settings = Settings {
                    rule: recipe.rule,
                    group: run.frame.as_ref().and_then(|frame| frame.group),
                    dtypes: [forward, quantizers[2].dtype],
                };
                Some(match old {
                    Some(old) => {
                        old.adapt(run, settings)?;
                        old
                    }
                    None => Delayed::new(run, &name.to_string_lossy(), settings)?,
                })
            }
        };
        let recipe = Some(Arc::clone(recipe));
        Ok(Active { recipe, quantizers, delayed, ..Active::HIGH_PRECISION })
    }

    /// Follows the context's recipe.
    pub(super) fn prepare(&mut self, run: &Run) -> Result<Active> {
        let Some(frame) = run.frame.as_ref().filter(|f| f.enabled || f.calibrating) else {
            return Ok(Active::HIGH_PRECISION);
        };
        let Some(recipe) = &frame.recipe else {
            return Ok(Active::HIGH_PRECISION);
        };
        let same = self.active.recipe.as_ref().is_some_and(|old| Arc::ptr_eq(old, recipe));
        if !same || self.active.delayed.as_ref().is_some_and(|d| d.group() != frame.group) {
            let old = self.active.delayed.clone();
            let sizes = (self.inputs, self.outputs);
            let active = Self::activate(run, &self.name, recipe, old, sizes)?;
            let weight = Role::Weight as usize;
            if active.quantizers[weight] != self.active.quantizers[weight] {
                self.cached = None;
            }
            self.active = active;
            if let Some((split, side)) = &self.share {
                self.active.ranks = scale_ranks(split, *side);
            }
        }
        Ok(Active { calibrating: !frame.enabled, ..self.active.clone() })
    }

    /// The weight as the products of so many rows take it.
    fn operand(&mut self, run: &Run, active: &Active, rows: usize) -> Result<Arc<QTensor>> {
        let quantizer = active.quantizer(Role::Weight);
        let shape = (self.outputs, self.inputs);
        match &self.weight.format {
            Some(_) if quantizer.is_none() => {
                return self.dequantized(run, &self.weight.value.tensor, shape).map(Arc::new);
            }
            Some(format) if format.quantizer != quantizer => {
                let name = format!("layer {:?}: weight", self.name.to_string_lossy());
                let expected = format!("the format that the recipe asks for ({quantizer})");
                return Err(Error::argument(name, expected, format.quantizer));
            }
            Some(_) => return Ok(Arc::clone(&self.weight.value)),
            None if quantizer.is_none() => {
                let tensor = matrix(&self.weight.value.tensor, shape);
                return Ok(Arc::new(QTensor::borrowed(tensor)));
            }
            None => {}
        }
        let weight = matrix(&self.weight.value.tensor, shape);
        let slot = active.slot(Role::Weight, run.training);
        let keep = run.microbatch != Microbatch::None || !run.skip_weights.is_null();
        let quantized = active.backward() == BackwardOperands::Quantized;
        // What is kept may be used for other numbers of rows.
        let sizes = (rows, self.inputs, self.outputs);
        // A weight that tapes do not hold is cast again for the backward pass.
        let training = run.training && self.weight.own.is_none();
        let columns =
            keep || training && (!quantizer.transposes() || needs_columns(quantizer.dtype, sizes)?);
        let usage = Usage { rowwise: true, colwise: quantized && columns };
        if !keep {
            let source = Source::Ready(&weight);
            return quantizer
                .produce(run, shape, self.dtype, usage, slot.as_ref(), &source)
                .map(Arc::new);
        }
        if let Some(cached) = &self.cached {
            if run.microbatch == Microbatch::Later && run.skip_weights.is_null() {
                return Ok(Arc::clone(cached));
            }
            // A tape of an earlier step may still read the old values.
            if Arc::strong_count(cached) == 1 || !run.skip_weights.is_null() {
                quantizer.cast(run, &weight, cached, run.skip_weights)?;
                return Ok(Arc::clone(cached));
            }
        }
        let cast = quantizer.empty(run, shape, usage, slot.as_ref(), Lifetime::Persistent)?;
        quantizer.cast(run, &weight, &cast, null())?;
        let cast = Arc::new(cast);
        self.cached = Some(Arc::clone(&cast));
        Ok(cast)
    }

    /// The row-wise data in high precision; as they are if they are in it.
    fn dequantized(&self, run: &Run, x: &Tensor, shape: (usize, usize)) -> Result<QTensor> {
        let mut rowwise = x.clone();
        if is_high_precision(x.dtype()) {
            return Ok(QTensor::borrowed(rowwise));
        }
        (rowwise.colwise, rowwise.colwise_scale_inv) = (Buffer::UNSET, Buffer::UNSET);
        let plain = QTensor::plain(run, shape, self.dtype, Lifetime::Tape)?;
        ops::dequantize(run, &rowwise, &plain.tensor)?;
        Ok(plain)
    }

    /// Refuses a step without the random numbers that this layer's casts need. For modules that write an output before
    /// this layer runs.
    pub fn check_step(&mut self, run: &Run) -> Result<()> {
        let random = run.training && self.prepare(run)?.quantizer(Role::GradOutput).is_stochastic();
        if random { run.rng_state().map(drop) } else { Ok(()) }
    }

    /// `y = x W^T + b`, plus `add`; x is what `source` gives, a matrix of `rows` rows. Where ranks share rows, x and y
    /// have those of this rank.
    pub fn forward(
        &mut self,
        run: &Run,
        rows: usize,
        source: &Source,
        y: &Tensor,
        add: Option<&Tensor>,
    ) -> Result<Box<DenseTape>> {
        self.forward_with(run, rows, source, y, add, None)
    }

    fn forward_with(
        &mut self,
        run: &Run,
        rows: usize,
        source: &Source,
        y: &Tensor,
        add: Option<&Tensor>,
        slopes: Option<Slopes>,
    ) -> Result<Box<DenseTape>> {
        let mut active = self.prepare(run)?;
        if run.training && active.quantizer(Role::GradOutput).is_stochastic() {
            active.random = Some(Arc::new(run.random(ROUNDING_SITE)?));
        }
        let dropped = self.again != Again::Nothing || self.gathers();
        if run.training && dropped {
            active.scales[Role::Input as usize] = active.keep_scale(run, Role::Input)?;
        }
        if run.training && self.weight.own.is_some() {
            active.scales[Role::Weight as usize] = active.keep_scale(run, Role::Weight)?;
        }
        self.note(run, &active);
        let own = self.own_input(run, &active, rows, source)?;
        let split = self.split().cloned();
        let gathered = match (&own, &split) {
            (Some(own), Some(split)) => Some(self.gather_input(run, split, &active, own)?),
            _ => None,
        };
        let gathered_source;
        let source = match (&own, &gathered) {
            (Some(own), Some(gathered)) => {
                gathered_source = own.source(gathered.whole());
                &gathered_source
            }
            _ => source,
        };
        let come = gathered.as_ref().map_or(Rows::Here, Rows::Come);
        let rows = split::whole_rows(self.column(), rows);
        let mut tape = match split.as_ref().filter(|_| self.row().is_some()) {
            None => {
                let result = Some((y, add, come));
                self.forward_as(run, active, rows, source, None, result, slopes)?
            }
            Some(split) => {
                if self.sums_parts(run, split, &active, rows)? {
                    let sums = Summed::new(run, split, y)?;
                    let result = Some((y, None, Rows::Go(&sums)));
                    let tape = self.forward_as(run, active, rows, source, None, result, None)?;
                    sums.finish(self.bias_value(), add)?;
                    tape
                } else {
                    let tape = split::reduce(Some(split), run, y, |part| {
                        let result = Some((part, None, Rows::Here));
                        self.forward_as(run, active, rows, source, None, result, None)
                    })?;
                    split::finish(run, y, self.bias_value(), add)?;
                    tape
                }
            }
        };
        if run.training && dropped {
            tape.input = split::nothing();
            drop(gathered);
            // Whoever computes the input again gives it to the backward pass.
            let own = own.filter(|_| self.again == Again::Nothing);
            tape.own = own.map(|mut own| {
                own.rows.drop_rowwise();
                own
            });
        }
        Ok(tape)
    }

    fn bias_value(&self) -> Option<&Tensor> {
        self.bias.as_ref().map(|bias| &bias.value.tensor)
    }

    /// The own rows of an input that other ranks share, cast if what is cast can be gathered; none if the input is whole.
    fn own_input(
        &self,
        run: &Run,
        active: &Active,
        rows: usize,
        source: &Source,
    ) -> Result<Option<OwnRows>> {
        let Some(split) = self.column().filter(|split| split.sequence) else { return Ok(None) };
        let quantizer = active.quantizer(Role::Input);
        let quantized = active.backward() == BackwardOperands::Quantized;
        if self.again == Again::Nothing && quantized && quantizer.gathers(rows) {
            let colwise = run.training && self.weight.grad.is_some();
            let usage = quantizer.gathered(Usage { rowwise: true, colwise });
            let slot = active.slot(Role::Input, run.training).unwrap_or(Slot::NONE);
            let slot = Slot { ranks: split.ranks(), ..slot };
            let shape = (rows, self.inputs);
            let rows = quantizer.produce(run, shape, self.dtype, usage, Some(&slot), source)?;
            return Ok(Some(OwnRows { rows, quantizer }));
        }
        self.plain_input(run, rows, source).map(Some)
    }

    /// The own rows of an input in high precision.
    fn plain_input(&self, run: &Run, rows: usize, source: &Source) -> Result<OwnRows> {
        let (quantizer, shape) = (Quantizer::NONE, (rows, self.inputs));
        let usage = Usage { rowwise: true, colwise: false };
        let rows = quantizer.produce(run, shape, self.dtype, usage, None, source)?;
        Ok(OwnRows { rows, quantizer })
    }

    /// Begins to gather the input of a forward product, which takes the rows of each rank by themselves if they are cast
    /// already.
    fn gather_input<'a>(
        &self,
        run: &'a Run,
        split: &'a Split,
        active: &Active,
        own: &OwnRows,
    ) -> Result<Gathered<'a>> {
        let cast = active.quantizers[Role::Input as usize].is_none() == own.quantizer.is_none();
        let rows = own.rows.tensor.rowwise.shape.flatten().0;
        let parts = cast && chunks::divides(run, split, rows, self.outputs)?;
        Gathered::begin(run, split, &own.quantizer, &own.rows.tensor, (For::Product, parts))
    }

    /// Whether the forward product gives the rows of each rank by themselves.
    fn sums_parts(&self, run: &Run, split: &Split, active: &Active, rows: usize) -> Result<bool> {
        let (own, quantizer) = (split::own_rows(Some(split), rows), active.quantizer(Role::Input));
        Ok(quantizer.divides(own) && chunks::divides(run, split, own, self.outputs)?)
    }

    /// Remembers which precision a pass has, and says so when it changes.
    pub(super) fn note(&mut self, run: &Run, active: &Active) {
        let roles = ROLES.map(|role| active.quantizer(role));
        if self.weight.multiplied != Some(roles) {
            self.weight.multiplied = Some(roles);
            verbose::line(Level::Dispatch, "precision", || {
                let [input, weight, grad] = roles;
                let why = match &run.frame {
                    _ if roles.iter().any(|role| !role.is_none()) => "",
                    None => " (no nvtex_context_begin)",
                    Some(frame) if !frame.enabled => " (begun without NVTEX_CONTEXT_ENABLED)",
                    Some(_) => " (the recipe says so)",
                };
                let layer = self.name.to_string_lossy();
                format!("{layer},input {input},weight {weight},grad_output {grad}{why}")
            });
        }
    }

    /// The tape of a forward pass that has left its input to this one; the product too if y is given.
    pub fn forward_again(
        &mut self,
        run: &Run,
        tape: &DenseTape,
        source: &Source,
        y: Option<&Tensor>,
    ) -> Result<Box<DenseTape>> {
        let rows = split::own_rows(self.column(), tape.rows);
        let Some(split) = self.column().filter(|split| split.sequence) else {
            return self.whole_again(run, tape, source, y);
        };
        let own = self.plain_input(run, rows, source)?;
        let whole = own.quantizer.gather(run, split, &own.rows.tensor, run.stream)?;
        let mut tape = self.whole_again(run, tape, &Source::Ready(&whole.tensor), y)?;
        if tape.input.is_borrowed() {
            // The products of the backward pass read what has been gathered.
            tape.input = whole;
        }
        Ok(tape)
    }

    /// [`Self::forward_again`] with all rows of the input.
    fn whole_again(
        &mut self,
        run: &Run,
        tape: &DenseTape,
        source: &Source,
        y: Option<&Tensor>,
    ) -> Result<Box<DenseTape>> {
        let active = Active { again: true, ..tape.active.clone() };
        let weight = tape.weight.clone();
        let result = y.map(|y| (y, None, Rows::Here));
        let mut tape = self.forward_as(run, active, tape.rows, source, weight, result, None)?;
        // The gradients of this tape are cast for the first time, although its forward pass was
        // computed again.
        tape.active.again = false;
        Ok(tape)
    }

    /// Whether products of so many rows may have GELU, or with `gated` SwiGLU, behind them ([`Self::forward_active`]),
    /// and those of the layer behind that its derivative ([`Self::backward_active`]).
    pub fn fuses(
        &mut self,
        run: &Run,
        behind: &mut Self,
        rows: usize,
        gated: bool,
    ) -> Result<bool> {
        if self.dtype != kNVTEBFloat16 {
            return Ok(false);
        }
        // The rows of each rank may be multiplied by themselves.
        let rows = split::own_rows(self.column(), rows);
        let ready = |layer: &Self| layer.again == Again::Nothing;
        if !ready(self) || !ready(behind) {
            return Ok(false);
        }
        let (active, next) = (self.prepare(run)?, behind.prepare(run)?);
        let sizes = [(behind.inputs, rows, self.inputs), (behind.inputs, rows, behind.outputs)];
        let all =
            |f: fn(&Quantizer) -> bool| active.quantizers.iter().chain(&next.quantizers).all(f);
        if all(Quantizer::is_none) {
            return Ok(!gated
                && op::gemm::fuses_gelu(sizes[0])?
                && op::gemm::fuses_gelu(sizes[1])?);
        }
        let quantized = |active: &Active| {
            !active.calibrating && active.backward() == BackwardOperands::Quantized
        };
        let [input, weight, _] = next.quantizers;
        let e4m3 = [input, weight, active.quantizers[0], active.quantizers[1]];
        let same_grads = active.quantizers[2].dtype == next.quantizers[2].dtype;
        let trained = |layer: &Self| run.training && layer.weight.grad.is_some();
        Ok((all(Quantizer::is_delayed) || all(Quantizer::is_current))
            && quantized(&active)
            && quantized(&next)
            && e4m3.iter().all(|quantizer| quantizer.dtype == kNVTEFloat8E4M3)
            && same_grads
            && !active.split(0)
            && next.split(1)
            && trained(self)
            && trained(behind)
            && !(gated && self.bias.is_some())
            && op::gemm::fuses_activation_in_fp8(sizes[0])?
            && op::gemm::fuses_activation_in_fp8(sizes[1])?)
    }

    /// `y = f(x W^T + b)`, with the derivatives in `slopes`; y is cast if it is FP8, else its amax is raised if it has one.
    pub fn forward_active(
        &mut self,
        run: &Run,
        rows: usize,
        source: &Source,
        slopes: Slopes,
        y: &Tensor,
    ) -> Result<Box<DenseTape>> {
        self.forward_with(run, rows, source, y, None, Some(slopes))
    }

    /// As [`Self::backward`], where x was an activation of something: `dx` is the gradient of that, which is written as y by
    /// [`Self::forward_active`].
    pub fn backward_active(
        &mut self,
        run: &Run,
        tape: &DenseTape,
        dy: &Grad,
        dx: &Tensor,
        slopes: Slopes,
    ) -> Result<()> {
        let dx = Dx { to: Some(dx), slopes: Some(slopes), ..Dx::NONE };
        self.backward_with(run, tape, dy, dx)
    }

    /// Where the gradient of the bias may be written for [`Grad::Computed`]; none if it is not wanted.
    pub fn bias_sums(&self, run: &Run) -> Result<Option<QTensor>> {
        let bias = self.bias.as_ref().filter(|bias| bias.grad.is_some());
        bias.map(|bias| bias.any_landing(run)).transpose()
    }

    /// Where the sums of the output's gradient go for [`Grad::Summed`], if whoever makes that gradient, or reads it
    /// anyway, should add it up. A cast of the gradient does so at no cost.
    pub fn grad_sums(&self, run: &Run, tape: &DenseTape) -> Result<Option<QTensor>> {
        let cast = !tape.active.quantizer(Role::GradOutput).is_none();
        let bias = self.bias.as_ref().filter(|bias| bias.grad.is_some());
        // For other dtypes no kernel adds up what it writes.
        let bias = bias.filter(|_| self.dtype == kNVTEBFloat16 && self.share.is_none() && !cast);
        bias.map(|bias| bias.landing(run, self.dtype)).transpose()
    }

    /// The gradient of the bias from [`Self::grad_sums`] that came after [`Self::backward`].
    pub fn deposit_sums(&self, run: &Run, sums: &QTensor) -> Result<()> {
        self.bias.as_ref().map_or(Ok(()), |bias| bias.deposit(run, sums))
    }

    #[allow(clippy::too_many_arguments)]
    fn forward_as(
        &mut self,
        run: &Run,
        active: Active,
        rows: usize,
        source: &Source,
        weight: Option<Arc<QTensor>>,
        result: Option<(&Tensor, Option<&Tensor>, Rows)>,
        slopes: Option<Slopes>,
    ) -> Result<Box<DenseTape>> {
        let quantizer = active.quantizer(Role::Input);
        let shape = (rows, self.inputs);
        let quantized = active.backward() == BackwardOperands::Quantized;
        let wgrad = run.training && self.weight.grad.is_some();
        let usage = Usage { rowwise: true, colwise: quantized && wgrad };
        let slot = active.slot(Role::Input, run.training);
        let slot = slot.as_ref();
        let mut original = None;
        if wgrad && active.backward() == BackwardOperands::HighPrecision {
            let none = Quantizer::NONE;
            original = Some(none.produce(run, shape, self.dtype, usage, None, source)?);
        }
        let source = match &original {
            Some(original) => &Source::Ready(&original.tensor),
            None => source,
        };
        let mut input = quantizer.produce(run, shape, self.dtype, usage, slot, source)?;
        active.calibrate(run, Role::Input, &input.tensor, shape)?;
        let mut weight = match weight {
            Some(weight) => weight,
            None => self.operand(run, &active, rows)?,
        };
        active.calibrate(run, Role::Weight, &weight.tensor, (self.outputs, self.inputs))?;
        let bias = match self.bias.as_ref().filter(|_| self.row().is_none()) {
            None => None,
            Some(bias) => Some(self.bias_operand(run, bias, &quantizer)?),
        };
        if let Some((y, add, rows)) = result {
            let gemm = Gemm {
                transa: true,
                bias: bias.as_ref().map(|bias| &bias.tensor),
                gated: slopes.is_some_and(|slopes| slopes.gated),
                split_accumulator: active.split(0),
                ..Gemm::default()
            };
            let beside = slopes.map(|slopes| slopes.slopes).or(add);
            rows.each((&input.tensor, y, beside), |x, y, beside| {
                beside_of(slopes, beside, gemm).run(run, &weight.tensor, x, y)
            })?;
        }
        // The backward pass reads the other direction; what is kept over steps stays.
        input.drop_rowwise();
        if let (false, Some(weight)) = (self.again == Again::Product, Arc::get_mut(&mut weight)) {
            weight.drop_rowwise();
        }
        let weight = Some(weight).filter(|weight| self.keeps(run, weight));
        if let Some(original) = original {
            input = original;
        }
        Ok(Box::new(DenseTape { active, input, weight, rows, own: None }))
    }

    /// Whether a tape has the operand of the weight. What is in high precision is read where it lies, and of a value that
    /// comes and goes tapes have nothing.
    fn keeps(&self, run: &Run, weight: &QTensor) -> bool {
        let kept = run.microbatch != Microbatch::None || !run.skip_weights.is_null();
        match self.weight.format {
            Some(_) => true,
            None if is_high_precision(weight.tensor.dtype()) => false,
            None => self.weight.own.is_none() || kept,
        }
    }

    /// The weight of a pass whose tape has none.
    fn weight_again(&self, run: &Run, tape: &DenseTape) -> Result<QTensor> {
        let shape = (self.outputs, self.inputs);
        let weight = matrix(&self.weight.value.tensor, shape);
        let active = Active { again: true, ..tape.active.clone() };
        let quantizer = active.quantizer(Role::Weight);
        if quantizer.is_none() {
            return Ok(QTensor::borrowed(weight));
        }
        let quantized = active.backward() == BackwardOperands::Quantized;
        let sizes = (tape.rows, self.inputs, self.outputs);
        let columns = !quantizer.transposes() || needs_columns(quantizer.dtype, sizes)?;
        let usage = Usage { rowwise: true, colwise: quantized && columns };
        let (slot, source) = (active.slot(Role::Weight, false), Source::Ready(&weight));
        quantizer.produce(run, shape, self.dtype, usage, slot.as_ref(), &source)
    }

    /// FP8 products add a bias to Float32 results only in BFloat16.
    fn bias_operand(&self, run: &Run, bias: &Parameter, quantizer: &Quantizer) -> Result<QTensor> {
        let value = &bias.value.tensor;
        if self.dtype != kNVTEFloat32 || !quantizer.is_fp8_product() {
            return Ok(QTensor::borrowed(value.clone()));
        }
        let shape = (1, self.outputs);
        let cast = QTensor::plain(run, shape, kNVTEBFloat16, Lifetime::Scratch)?;
        ops::quantize(run, &matrix(value, shape), &cast.tensor, &QuantizationConfig::DEFAULT)?;
        Ok(cast)
    }

    /// Gradients: of the parameters to where they are bound, of x to `dx`, plus `add`. Where ranks share rows, those of x
    /// and y have the rows of this rank.
    pub fn backward(
        &mut self,
        run: &Run,
        tape: &DenseTape,
        dy: &Grad,
        dx: Option<&Tensor>,
        add: Option<&Tensor>,
    ) -> Result<()> {
        self.backward_with(run, tape, dy, Dx { to: dx, add, ..Dx::NONE })
    }

    fn backward_with(&mut self, run: &Run, tape: &DenseTape, dy: &Grad, dx: Dx) -> Result<()> {
        let Some((split, side)) = self.share.clone() else {
            return self.backward_whole(run, tape, dy, dx);
        };
        if let (Side::Row, Grad::Ready(own)) = (side, dy) {
            if !split.sequence {
                return self.backward_whole(run, tape, dy, dx);
            }
            let rows = split::own_rows(Some(&split), tape.rows);
            let quantizer = tape.active.quantizer(Role::GradOutput);
            let parts = dx.to.is_some() && chunks::divides(run, &split, rows, self.inputs)?;
            let quantized = tape.active.backward() == BackwardOperands::Quantized;
            if quantized && quantizer.gathers(rows) {
                return self.backward_cast(run, tape, (&split, rows), own, (dx, parts));
            }
            let parts = parts && tape.active.quantizers[Role::GradOutput as usize].is_none();
            let wanted = (For::All, parts);
            let whole = Gathered::begin(run, &split, &Quantizer::NONE, own, wanted)?;
            let dx = Dx { rows: Rows::Come(&whole), ..dx };
            let bias = self.bias.as_ref().filter(|bias| bias.grad.is_some());
            let grad = match bias.filter(|_| quantizer.is_none()) {
                None => Grad::Ready(whole.whole()),
                Some(bias) => {
                    // While the others come.
                    let sums = bias.landing(run, self.dtype)?;
                    ops::sum_rows(run, own, &sums.tensor)?;
                    split.sum(run, &sums.tensor.rowwise)?;
                    bias.deposit(run, &sums)?;
                    Grad::Summed(whole.whole(), None)
                }
            };
            return self.backward_whole(run, tape, &grad, dx);
        }
        if side == Side::Row {
            return self.backward_whole(run, tape, dy, dx);
        }
        let own = tape.own.as_ref().filter(|_| self.weight.grad.is_some());
        let input = own.map(|own| (own, &split));
        let Some(to) = dx.to else {
            return self.backward_whole(run, tape, dy, Dx { input, ..dx });
        };
        let sum = GradSum::new(&split, run, to)?;
        let part = Dx { to: Some(sum.part()), add: None, sum: Some(&sum), input, ..dx };
        self.backward_whole(run, tape, dy, part)?;
        sum.end()?;
        split::finish(run, to, None, dx.add)
    }

    /// The operand that [`Self::forward`] had, of an input that has been gathered again.
    fn input_again(
        &mut self,
        run: &Run,
        tape: &DenseTape,
        own: &OwnRows,
        whole: &Tensor,
    ) -> Result<QTensor> {
        match own.quantizer {
            quantizer if quantizer.is_none() => {
                Ok(self.whole_again(run, tape, &Source::Ready(whole), None)?.input)
            }
            quantizer if quantizer.transposes() => QTensor::transposed(run, whole),
            _ => Ok(QTensor::borrowed(whole.clone())),
        }
    }

    /// [`Self::backward`] from rows that each rank casts before they are gathered.
    fn backward_cast(
        &mut self,
        run: &Run,
        tape: &DenseTape,
        (split, rows): (&Split, usize),
        dy: &Tensor,
        (dx, parts): (Dx, bool),
    ) -> Result<()> {
        let (active, shape) = (&tape.active, (rows, self.outputs));
        let quantizer = active.quantizer(Role::GradOutput);
        let wgrad = self.weight_target(run, tape)?;
        let bias = self.bias.as_ref().filter(|bias| bias.grad.is_some());
        let slot = active.slot(Role::GradOutput, true).unwrap_or(Slot::NONE);
        let slot = Slot { ranks: split.ranks(), ..slot };
        let needed = Usage { rowwise: dx.to.is_some(), colwise: wgrad.is_some() };
        let usage = quantizer.gathered(needed);
        let wanted = needed.rowwise || needed.colwise;
        // The sums are those of the own rows.
        let sums = bias.map(|bias| bias.landing(run, self.dtype)).transpose()?;
        let add_up = || match (bias, &sums) {
            (Some(bias), Some(sums)) => {
                split.sum(run, &sums.tensor.rowwise)?;
                bias.deposit(run, sums)
            }
            _ => Ok(()),
        };
        if !wanted {
            if let Some(sums) = &sums {
                ops::sum_rows(run, dy, &sums.tensor)?;
            }
            return add_up();
        }
        let own = match &sums {
            Some(sums) => quantizer.cast_dbias(run, dy, shape, usage, Some(&slot), &sums.tensor)?,
            None => {
                let source = Source::Ready(dy);
                quantizer.produce(run, shape, self.dtype, usage, Some(&slot), &source)?
            }
        };
        let wanted = if needed.colwise { For::All } else { For::Product };
        let gathered = Gathered::begin(run, split, &quantizer, &own.tensor, (wanted, parts))?;
        // While the rows of others come.
        add_up()?;
        let whole = gathered.whole();
        self.input_product(run, tape, whole, Dx { rows: Rows::Come(&gathered), ..dx })?;
        let Some(target) = &wgrad else { return Ok(()) };
        gathered.finish()?;
        let mut grad = whole.clone();
        let columns;
        if quantizer.transposes() {
            columns = QTensor::transposed(run, whole)?;
            grad.colwise = columns.tensor.colwise;
            grad.colwise_scale_inv = columns.tensor.colwise_scale_inv;
        }
        self.weight_product(run, tape, (&tape.input.tensor, &grad), target)
    }

    /// [`Self::backward`] of all rows; the gradient of x is this rank's part of a sum if others share the outputs.
    fn backward_whole(&mut self, run: &Run, tape: &DenseTape, dy: &Grad, dx: Dx) -> Result<()> {
        let active = &tape.active;
        let quantizer = active.quantizer(Role::GradOutput);
        let shape = (tape.rows, self.outputs);
        let wgrad = self.weight_target(run, tape)?;
        let bias = self.bias.as_ref().filter(|bias| bias.grad.is_some());
        // The product's epilogue would be a pass of its own, too: cuBLASLt has a kernel for it, of about the same speed.
        let landing;
        let dbias = match dy {
            Grad::Summed(_, sums) | Grad::Computed(_, sums) => *sums,
            _ => {
                landing = bias.map(|bias| bias.landing(run, self.dtype)).transpose()?;
                landing.as_ref()
            }
        };
        let summed = matches!(dy, Grad::Summed(..) | Grad::Computed(..));
        let sums = dbias.map(|dbias| &dbias.tensor).filter(|_| !summed);

        let usage = Usage { rowwise: dx.to.is_some(), colwise: wgrad.is_some() };
        let slot = active.slot(Role::GradOutput, true);
        let coming = match dx.rows {
            Rows::Come(gathered) => Some(gathered).filter(|gathered| gathered.in_parts()),
            _ => None,
        };
        let at_once = sums.filter(|_| coming.is_none());
        let grad = self.cast_grad(run, &quantizer, dy, shape, usage, slot.as_ref(), at_once)?;
        let Some(grad) = grad else {
            return Ok(());
        };
        let grad = &grad.tensor;
        active.calibrate(run, Role::GradOutput, grad, shape)?;
        // An input whose other rows are those of other ranks is gathered again, beside the product that does not need it. The
        // layer behind may have computed the gradient, from rows that it gathered: they must not wait for these.
        let input = match dx.input {
            None => None,
            Some((own, split)) => {
                let (quantizer, rows) = (&own.quantizer, &own.rows.tensor);
                let gathered = Gathered::begin(run, split, quantizer, rows, (For::Later, false))?;
                Some((own, gathered))
            }
        };
        self.input_product(run, tape, grad, dx)?;
        if let Some(coming) = coming {
            coming.finish()?;
            sums.map_or(Ok(()), |sums| ops::sum_rows(run, grad, sums))?;
        }
        if let Some((_, gathered)) = &input {
            gathered.finish()?;
        }
        if let Some(sum) = dx.sum {
            sum.begin()?;
        }
        if let Some(target) = &wgrad {
            let again;
            let input = match &input {
                None => &tape.input.tensor,
                Some((own, gathered)) => {
                    again = self.input_again(run, tape, own, gathered.whole())?;
                    &again.tensor
                }
            };
            self.weight_product(run, tape, (input, grad), target)?;
        }
        let bias = self.bias.as_ref().filter(|bias| bias.grad.is_some());
        match (bias, dbias) {
            (Some(bias), Some(dbias)) => bias.deposit(run, dbias),
            _ => Ok(()),
        }
    }

    /// Where the gradient of the weight goes, for which the tape must have the input.
    fn weight_target(&self, run: &Run, tape: &DenseTape) -> Result<Option<(Tensor, bool)>> {
        let active = &tape.active;
        let wgrad = self.weight.target(run);
        let has_input = match (active.backward(), &tape.own) {
            (_, Some(own)) => own.quantizer.transposes() || own.rows.has_colwise(),
            (BackwardOperands::Quantized, None) => tape.input.has_colwise(),
            (BackwardOperands::HighPrecision, None) => is_high_precision(tape.input.tensor.dtype()),
            (BackwardOperands::Dequantized, None) => true,
        };
        if wgrad.is_some() && !has_input {
            let expected = "a gradient of the weight that was bound before the forward pass";
            let name = format!("layer {:?}: weight", self.name.to_string_lossy());
            return Err(Error::argument(name, expected, "one bound after it"));
        }
        Ok(wgrad)
    }

    /// The product that gives the gradient of the input.
    fn input_product(&self, run: &Run, tape: &DenseTape, grad: &Tensor, dx: Dx) -> Result<()> {
        let Dx { to: Some(to), add, rows, slopes, .. } = dx else { return Ok(()) };
        let active = &tape.active;
        let again;
        let weight = match (active.backward(), &tape.weight) {
            (BackwardOperands::HighPrecision, _) => &self.weight.value.tensor,
            (_, Some(weight)) => &weight.tensor,
            (_, None) => {
                again = self.weight_again(run, tape)?;
                &again.tensor
            }
        };
        let quantized = active.backward() == BackwardOperands::Quantized;
        let one_direction = weight.dtype().is_fp8() && !weight.colwise.is_set();
        let columns = || needs_columns(weight.dtype(), (tape.rows, self.inputs, self.outputs));
        let weight = match quantized {
            true if one_direction && columns()? => QTensor::transposed(run, weight)?,
            true => QTensor::borrowed(weight.clone()),
            false => self.dequantized(run, weight, (self.outputs, self.inputs))?,
        };
        let gemm = Gemm {
            slope: slopes.is_some(),
            gated: slopes.is_some_and(|slopes| slopes.gated),
            split_accumulator: active.split(1),
            ..Gemm::default()
        };
        let sums = slopes.and_then(|slopes| slopes.sums).map(|sums| &sums.tensor);
        let beside = slopes.map(|slopes| slopes.slopes).or(add);
        rows.sums(run, sums, |sums_of| {
            let mut part = 0..;
            rows.each((grad, to, beside), |grad, to, beside| {
                let sums = part.next().and_then(sums_of);
                let gemm = Gemm { bias: sums.as_ref(), ..gemm };
                beside_of(slopes, beside, gemm).run(run, &weight.tensor, grad, to)
            })
        })
    }

    /// The product that gives the gradient of the weight.
    fn weight_product(
        &self,
        run: &Run,
        tape: &DenseTape,
        (input, grad): (&Tensor, &Tensor),
        &(ref target, accumulate): &(Tensor, bool),
    ) -> Result<()> {
        let active = &tape.active;
        let input = match active.backward() {
            BackwardOperands::Quantized => QTensor::borrowed(input.clone()),
            _ => self.dequantized(run, input, (tape.rows, self.inputs))?,
        };
        let gemm = Gemm {
            transb: true,
            accumulate,
            split_accumulator: active.split(2),
            ..Gemm::default()
        };
        gemm.run(run, &input.tensor, grad, target)
    }

    /// The gradient as the products take it; also writes `sums`. None if only sums were wanted and are
    /// there.
    #[allow(clippy::too_many_arguments)]
    fn cast_grad(
        &self,
        run: &Run,
        quantizer: &Quantizer,
        dy: &Grad,
        shape: (usize, usize),
        usage: Usage,
        slot: Option<&Slot>,
        sums: Option<&Tensor>,
    ) -> Result<Option<QTensor>> {
        let dtype = self.dtype;
        let Usage { rowwise, colwise } = usage;
        if !rowwise && !colwise && sums.is_none() {
            return Ok(None);
        }
        if quantizer.is_none() || !rowwise && !colwise {
            return self.plain_grad(run, dy, shape, sums).map(Some);
        }
        let cast = match (dy, sums) {
            (Grad::Computed(write, _), _) => {
                let usage = Usage { rowwise: true, colwise: true };
                let source = Source::Computed { write: *write, configurable: false };
                quantizer.produce(run, shape, dtype, usage, slot, &source)?
            }
            (Grad::Ready(dy) | Grad::Summed(dy, _), None) => {
                quantizer.produce(run, shape, dtype, usage, slot, &Source::Ready(dy))?
            }
            (Grad::Ready(dy) | Grad::Summed(dy, _), Some(sums)) => {
                quantizer.cast_dbias(run, dy, shape, usage, slot, sums)?
            }
            (Grad::Activation { f, grad, input }, None) => {
                let write = |out: &Tensor, config: &_| f.backward(run, grad, input, out, config);
                let source = Source::Computed { write: &write, configurable: true };
                quantizer.produce(run, shape, dtype, usage, slot, &source)?
            }
            (Grad::Activation { f, grad, input }, Some(sums)) => {
                let product = (*f, *grad, *input);
                quantizer.derive_dbias(run, product, shape, dtype, usage, slot, sums)?
            }
        };
        Ok(Some(cast))
    }

    /// [`Self::cast_grad`] in high precision.
    fn plain_grad(
        &self,
        run: &Run,
        dy: &Grad,
        shape: (usize, usize),
        sums: Option<&Tensor>,
    ) -> Result<QTensor> {
        let config = &QuantizationConfig::DEFAULT;
        let scratch = || QTensor::plain(run, shape, self.dtype, Lifetime::Scratch);
        let out = match (dy, sums) {
            (Grad::Activation { f, grad, input }, Some(sums)) if !f.gated => {
                let (derivative, out) = (Some((f.function, *input)), scratch()?);
                ops::quantize_dbias(run, derivative, grad, &out.tensor, sums, config)?;
                return Ok(out);
            }
            (Grad::Activation { f, grad, input }, _) => {
                let out = scratch()?;
                f.backward(run, grad, input, &out.tensor, config)?;
                out
            }
            (Grad::Computed(write, _), _) => {
                let out = scratch()?;
                write(&out.tensor, config)?;
                out
            }
            (Grad::Ready(dy) | Grad::Summed(dy, _), _) => QTensor::borrowed((*dy).clone()),
        };
        if let Some(sums) = sums {
            ops::sum_rows(run, &out.tensor, sums)?;
        }
        Ok(out)
    }

    /// The layer's parameters.
    pub fn parameters(&mut self) -> impl Iterator<Item = &mut Parameter> {
        std::iter::once(&mut self.weight).chain(&mut self.bias)
    }
}
