//! Parameters of modules: value, initial value, gradient.

use super::context::{Microbatch, Run};
use super::memory::{Block, Lifetime, host_vec};
use super::ops::{self, plain};
use super::quantizer::{QTensor, Quantizer, Usage};
use super::split::Shard;
use super::state::{Delayed, Pass, Slot};
use crate::backend::pool::chunks_mut;
use crate::check;
use crate::error::{Error, Result};
use crate::op::transformer_engine::QuantizationConfig;
use crate::parallel::Communicator;
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTEDType::{self, *};
use std::ops::Range;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Where initial values come from.
#[derive(Clone, Copy, Debug)]
pub enum Init {
    Constant(f32),
    /// Normal numbers of mean 0, from a seed.
    Normal {
        deviation: f32,
        seed: u64,
    },
}

/// Where a gradient goes.
pub struct Gradient {
    pub tensor: Tensor,
    pub accumulate: bool,
}

/// The format of a weight that has no value in high precision.
pub struct Format {
    pub quantizer: Quantizer,
    pub delayed: Option<Arc<Delayed>>,
}

impl Format {
    /// Where scale and amax of a weight are.
    pub fn slot(&self) -> Option<Slot> {
        self.delayed.as_ref().map(|delayed| delayed.slot(Pass::Forward, WEIGHT_SLOT))
    }
}

/// How the ranks of a data-parallel group divide what they keep of a parameter: rank r has the elements from
/// `r * share` to `(r + 1) * share` of a row of parameters, in which this one begins at `first`.
#[derive(Clone, Copy, Debug)]
pub struct Division {
    pub first: usize,
    pub share: usize,
    pub rank: usize,
}

impl Division {
    /// The elements of a rank, of `count` that the parameter has.
    pub fn of(&self, rank: usize, count: usize) -> Range<usize> {
        let within = |at: usize| at.saturating_sub(self.first).min(count);
        within(rank * self.share)..within((rank + 1) * self.share)
    }

    /// The elements of this rank.
    pub fn own(&self, count: usize) -> Range<usize> {
        self.of(self.rank, count)
    }
}

/// The weight among the slots of the forward pass.
pub const WEIGHT_SLOT: usize = 1;

pub struct Parameter {
    pub name: &'static str,
    pub dims: Vec<usize>,
    /// The part of the whole parameter that this rank has.
    pub shard: Shard,
    /// The dtype of the value in high precision.
    pub dtype: NVTEDType,
    init: Init,
    pub value: Arc<QTensor>,
    /// The format of a quantized weight.
    pub format: Option<Format>,
    pub grad: Option<Gradient>,
    /// Another layer that uses the parameter has written its part of the gradient, to which the parameter's own
    /// layer has to add.
    pub begun: bool,
    /// Of a weight: how the operands of its products were cast in the last forward pass, by role.
    pub multiplied: Option<[Quantizer; 3]>,
    /// Which elements this rank updates, if other ranks update the others.
    pub division: Option<Division>,
    /// These elements of value and gradient, if this rank has the others only while a layer runs.
    pub own: Option<[Buffer; 2]>,
}

impl Parameter {
    /// Makes a parameter with memory and its initial value, which `format` casts.
    pub fn new(
        run: &Run,
        name: &'static str,
        dims: &[usize],
        dtype: NVTEDType,
        init: Init,
        format: Option<Format>,
    ) -> Result<Self> {
        Self::of(run, name, Shard::all(dims), dtype, init, format)
    }

    /// The same of a part of a parameter, whose initial value is that part of the whole one's.
    pub fn of(
        run: &Run,
        name: &'static str,
        shard: Shard,
        dtype: NVTEDType,
        init: Init,
        format: Option<Format>,
    ) -> Result<Self> {
        let dims = &shard.dims()[..];
        let shape = Shape::new(dims).flatten();
        let value = match &format {
            None => {
                let mut value = QTensor::plain(run, shape, dtype, Lifetime::Persistent)?;
                value.tensor.rowwise.shape = Shape::new(dims);
                value
            }
            Some(format) => {
                // A direction that backward passes can make from the other needs no memory meanwhile.
                let usage = Usage { rowwise: true, colwise: !format.quantizer.transposes() };
                let slot = format.slot();
                format.quantizer.empty(run, shape, usage, slot.as_ref(), Lifetime::Persistent)?
            }
        };
        let dims = dims.to_vec();
        let value = Arc::new(value);
        let parameter = Self {
            name,
            dims,
            shard,
            dtype,
            init,
            value,
            format,
            grad: None,
            begun: false,
            multiplied: None,
            division: None,
            own: None,
        };
        let host = QTensor::plain(run, shape, kNVTEFloat32, Lifetime::Scratch)?;
        ops::upload(host.tensor.rowwise.ptr(), &parameter.initial()?, run.stream)?;
        // The upload has read the values on return, but the scratch must outlive the casts: it is
        // handed out again only to work that comes after them.
        let rounded = QTensor::plain(run, shape, dtype, Lifetime::Scratch)?;
        ops::quantize(run, &host.tensor, &rounded.tensor, &QuantizationConfig::DEFAULT)?;
        parameter.assign(run, &rounded.tensor, true)?;
        Ok(parameter)
    }

    /// The value in high precision.
    pub fn buffer(&self) -> Buffer {
        self.value.tensor.rowwise
    }

    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// The initial value, before it is rounded. The same on every machine.
    pub fn initial(&self) -> Result<Vec<f32>> {
        match self.init {
            Init::Constant(value) => host_vec(value, self.numel()),
            Init::Normal { deviation, seed } => {
                let mut values = host_vec(0.0, self.numel())?;
                // Whole rows of the last dimension, of which each is a run of numbers of the whole.
                let cols = self.dims.last().copied().unwrap_or(1).max(1);
                let rows = (1 << 13) / cols + 1;
                chunks_mut(&mut values, cols).with_min_len(rows).for_each(|(row, values)| {
                    let first = self.place(row * cols);
                    let mut pair = [0.0; 2];
                    for (i, value) in values.iter_mut().enumerate() {
                        let at = first + i;
                        if i == 0 || at.is_multiple_of(2) {
                            pair = normal_pair(seed, at as u64 / 2);
                        }
                        *value = (pair[at % 2] * f64::from(deviation)) as f32;
                    }
                });
                Ok(values)
            }
        }
    }

    /// The place in the whole of an element of the part, which begins a row of the last dimension.
    fn place(&self, element: usize) -> usize {
        let (mut rest, mut place, mut pitch) = (element, 0, 1);
        for (dim, (&own, &whole)) in self.dims.iter().zip(&self.shard.whole).enumerate().rev() {
            let index = rest % own;
            rest /= own;
            let index = match &self.shard.experts {
                _ if dim == self.shard.dim => self.shard.index(index),
                Some(experts) if dim == 0 => experts.start + index,
                _ => index,
            };
            place += pitch * index;
            pitch *= whole;
        }
        place
    }

    /// Copies a matrix in high precision to the value. The first scale of a weight with delayed
    /// scaling is that of the values themselves.
    pub fn assign(&self, run: &Run, from: &Tensor, first: bool) -> Result<()> {
        let shape = Shape::new(&self.dims).flatten();
        if self.own.is_some() && self.value.tensor.rowwise.ptr().is_null() {
            let expected = "a value that is whole on this rank (nvtex_data_parallel_gather)";
            return Err(Error::argument(format!("parameter {:?}", self.name), expected, "a part"));
        }
        let from = matrix(from, shape);
        let Some(format) = &self.format else {
            let to = matrix(&self.value.tensor, shape);
            return ops::quantize(run, &from, &to, &QuantizationConfig::DEFAULT);
        };
        if first && format.quantizer.is_delayed() {
            let config = QuantizationConfig::DEFAULT;
            ops::amax(run, &from, &self.value.tensor, &config)?;
            ops::scale(run, &self.value.tensor, &config)?;
        }
        format.quantizer.cast(run, &from, &self.value, null())
    }

    /// Uses the caller's memory for the value.
    pub fn bind(&mut self, name: &str, value: &Tensor) -> Result<()> {
        if self.format.is_some() {
            let got = "a parameter in FP8 alone";
            return Err(Error::argument(name, "a parameter in high precision", got));
        }
        self.check_stays(name)?;
        self.check(name, value, &[self.dtype])?;
        self.value = Arc::new(QTensor::borrowed(value.clone()));
        Ok(())
    }

    /// Uses a part of a block for the value, which the caller has copied there.
    pub fn move_to(&mut self, block: &Arc<Block>, value: Buffer) {
        self.value = Arc::new(self.value.moved(Some(block), value.ptr()));
    }

    /// Gives up the value, of which other ranks have the other parts.
    pub fn forget(&mut self) {
        self.value = Arc::new(self.value.moved(None, null_mut()));
    }

    /// Casts this rank's elements of a weight in FP8 alone.
    pub fn cast_part(
        &self,
        run: &Run,
        (from, to): (&Buffer, &Buffer),
        ranks: &Communicator,
    ) -> Result<()> {
        match &self.format {
            Some(format) => format.quantizer.cast_part(run, (from, to), &self.value, ranks),
            None => Ok(()),
        }
    }

    /// Where the value always is: all of it, or this rank's part.
    pub fn home(&self) -> Buffer {
        self.own.map_or(self.value.tensor.rowwise, |[value, _]| value)
    }

    /// What modules that share the parameter have alike; 0 if that is not known.
    pub fn identity(&self) -> usize {
        match self.own {
            // Parts of several parameters may begin at one place.
            Some(_) => std::ptr::from_ref(self) as usize,
            None => self.value.tensor.rowwise.ptr() as usize,
        }
    }

    /// Refuses what would take the place of memory that comes and goes.
    fn check_stays(&self, name: &str) -> Result<()> {
        match self.own {
            None => Ok(()),
            Some(_) => {
                let expected = "a parameter that is whole on each rank (NVTEX_SHARDING_FULL)";
                Err(Error::argument(name, expected, "one of which ranks have parts"))
            }
        }
    }

    /// Where initial values come from, to compare ranks.
    pub fn origin(&self) -> String {
        format!("{:?}", self.init)
    }

    /// Binds the gradient to the caller's memory.
    pub fn bind_grad(&mut self, name: &str, grad: Option<&Tensor>, accumulate: bool) -> Result<()> {
        self.check_stays(name)?;
        if let Some(grad) = grad {
            self.check(name, grad, &[self.dtype, kNVTEFloat32])?;
        }
        self.grad = grad.map(|grad| Gradient { tensor: grad.clone(), accumulate });
        Ok(())
    }

    pub fn check(&self, name: &str, tensor: &Tensor, dtypes: &[NVTEDType]) -> Result<()> {
        check::input(name, tensor)?;
        check::dtype(name, tensor.dtype(), dtypes)?;
        check::shape(name, &tensor.rowwise.shape, &Shape::new(&self.dims))
    }

    /// The gradient as a tensor, and whether the step adds to it.
    pub fn target(&self, run: &Run) -> Option<(Tensor, bool)> {
        let grad = self.grad.as_ref()?;
        let accumulate = match run.microbatch {
            Microbatch::None => grad.accumulate,
            Microbatch::First => false,
            Microbatch::Later => true,
        };
        Some((grad.tensor.clone(), accumulate))
    }

    /// Where an operator can write the gradient in `dtype`: the bound memory if it is to be overwritten
    /// with such values, else scratch, from which [`Self::deposit`] takes it.
    pub fn landing(&self, run: &Run, dtype: NVTEDType) -> Result<QTensor> {
        match self.target(run) {
            Some((tensor, false)) if tensor.dtype() == dtype => Ok(QTensor::borrowed(tensor)),
            _ => {
                let shape = Shape::new(&self.dims);
                let mut scratch = QTensor::plain(run, shape.flatten(), dtype, Lifetime::Scratch)?;
                scratch.tensor.rowwise.shape = shape;
                Ok(scratch)
            }
        }
    }

    /// The same for an operator that writes any dtype of high precision.
    pub fn any_landing(&self, run: &Run) -> Result<QTensor> {
        let dtype = self.target(run).map_or(kNVTEFloat32, |(tensor, _)| tensor.dtype());
        self.landing(run, dtype)
    }

    pub fn deposit(&self, run: &Run, landed: &QTensor) -> Result<()> {
        if landed.is_borrowed() { Ok(()) } else { self.receive(run, &landed.tensor) }
    }

    /// Puts a gradient where it is wanted.
    pub fn receive(&self, run: &Run, grad: &Tensor) -> Result<()> {
        match self.target(run) {
            Some((tensor, accumulate)) => ops::add(run, grad, &tensor, accumulate),
            None => Ok(()),
        }
    }
}

/// The row-wise data as a matrix.
pub fn matrix(tensor: &Tensor, (rows, cols): (usize, usize)) -> Tensor {
    let mut buffer = tensor.rowwise;
    buffer.shape = Shape::new(&[rows, cols]);
    plain(buffer)
}

/// Two independent normal numbers (Box and Muller) from the i-th numbers of a seed.
fn normal_pair(seed: u64, i: u64) -> [f64; 2] {
    let uniform = |n: u64| {
        let bits = splitmix(splitmix(seed).wrapping_add(n));
        ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let radius = (-2.0 * uniform(2 * i).ln()).sqrt();
    let angle = std::f64::consts::TAU * uniform(2 * i + 1);
    [radius * angle.cos(), radius * angle.sin()]
}

/// Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators (2014).
pub fn splitmix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
