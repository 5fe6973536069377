//! Quantizers: how an operand of a product is cast, and by which operators (spec: modules, section 4).

use super::context::Run;
use super::memory::{Block, Layout, Lifetime};
use super::ops::{self, Activation, plain};
use super::split::{Split, label};
use super::state::Slot;
use crate::error::Result;
use crate::op::transformer_engine::QuantizationConfig;
use crate::parallel::Communicator;
use crate::tensor::{Buffer, Tensor, bytes};
use crate::types::NVTEDType::{self, *};
use crate::types::NVTEScalingMode::{self, *};
use crate::types::cudaStream_t;
use std::ffi::{c_int, c_void};
use std::fmt::{Display, Formatter};
use std::ptr::null;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// The operand stays in high precision.
    None,
    /// One scale, from earlier steps.
    Delayed,
    /// One scale, from the values themselves.
    Current { pow2: bool, epsilon: f32 },
    /// One scale for each 128 elements, or 128 x 128.
    Block { square: bool, pow2: bool, epsilon: f32 },
    /// One power of two for each 32 elements; `square`: the same one for 32 x 32.
    Mxfp8 { square: bool },
    /// One E4M3 number for each 16 elements, or 16 x 16, times one factor. `hadamard`: data along the columns are those
    /// of a random Hadamard transform. `stochastic`: values are rounded at random.
    Nvfp4 { square: bool, hadamard: bool, stochastic: bool },
}

/// Rows that share a scale in MXFP8.
const MXFP8_ROWS: usize = 32;

/// Signs of the random Hadamard transform, the same for both operands of a product, which it leaves as it is.
const SIGNS: c_int = 0b0101_1100_1001_1010;

impl Display for Scaling {
    fn fmt(&self, f: &mut Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Scaling::None => "high precision",
            Scaling::Delayed => "delayed scaling",
            Scaling::Current { .. } => "current scaling",
            Scaling::Block { square: false, .. } => "block scaling, 1 x 128",
            Scaling::Block { square: true, .. } => "block scaling, 128 x 128",
            Scaling::Mxfp8 { square: false } => "MXFP8",
            Scaling::Mxfp8 { square: true } => "MXFP8, 32 x 32",
            Scaling::Nvfp4 { square: false, .. } => "NVFP4",
            Scaling::Nvfp4 { square: true, .. } => "NVFP4, 16 x 16",
        })
    }
}

/// Format of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantizer {
    pub scaling: Scaling,
    pub dtype: NVTEDType,
}

impl Display for Quantizer {
    fn fmt(&self, f: &mut Formatter) -> std::fmt::Result {
        match self.is_none() {
            true => self.scaling.fmt(f),
            false => write!(f, "{} in {}", self.scaling, self.dtype),
        }
    }
}

/// Directions that are wanted: blocks along the rows, along the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub rowwise: bool,
    pub colwise: bool,
}

/// A tensor with the memory that it owns; without any it refers to the caller's.
pub struct QTensor {
    pub tensor: Tensor,
    row: Option<Block>,
    col: Option<Block>,
    /// Memory of several tensors, one of which this is.
    shared: Option<Arc<Block>>,
    /// Per tensor: `scale_inv`, then for current scaling scale and amax. NVFP4: the amax of each direction. High precision:
    /// the amax, if whoever writes the values raises it.
    _scalars: Option<Arc<Block>>,
    /// Seed and offset of stochastic rounding.
    random: Buffer,
    /// The groups of ranks whose maxima give the scale.
    ranks: [Option<Arc<Communicator>>; 2],
}

impl QTensor {
    /// A tensor of the caller.
    pub fn borrowed(tensor: Tensor) -> Self {
        let (row, col, shared, random) = (None, None, None, Buffer::UNSET);
        Self { tensor, row, col, shared, _scalars: None, random, ranks: [None, None] }
    }

    /// The same with its row-wise data in a block of several, or nowhere. Scales and amax stay.
    pub fn moved(&self, block: Option<&Arc<Block>>, data: *mut c_void) -> Self {
        let Buffer { dtype, shape, .. } = self.tensor.rowwise;
        let rowwise = Buffer::new(data, dtype, shape.dims());
        Self {
            tensor: Tensor { rowwise, ..self.tensor.clone() },
            row: None,
            col: None,
            shared: block.cloned(),
            _scalars: self._scalars.clone(),
            random: self.random,
            ranks: self.ranks.clone(),
        }
    }

    /// Allocates a matrix in high precision.
    pub fn plain(
        run: &Run,
        (rows, cols): (usize, usize),
        dtype: NVTEDType,
        lifetime: Lifetime,
    ) -> Result<Self> {
        let block = run.block(bytes(rows * cols, dtype), lifetime)?;
        let tensor = plain(block.buffer(0, dtype, &[rows, cols]));
        Ok(Self { row: Some(block), ..Self::borrowed(tensor) })
    }

    /// An amax for values in high precision, 0, for whoever writes them to raise it. Then casts need not look for it.
    pub fn add_amax(&mut self, run: &Run) -> Result<&Buffer> {
        let block = run.scratch(size_of::<f32>())?;
        self.tensor.amax = block.buffer(0, kNVTEFloat32, &[1]);
        self._scalars = Some(Arc::new(block));
        ops::zero(&self.tensor.amax, run.stream)?;
        Ok(&self.tensor.amax)
    }

    /// Raises a maximum to that of all ranks that have parts of the tensor.
    fn share_amax(&self, run: &Run, amax: &Buffer) -> Result<()> {
        let mut groups = self.ranks.iter().flatten();
        groups.try_for_each(|ranks| ranks.max(amax, label(run), run.stream))
    }

    /// Gives up the direction that only the forward product needs.
    pub fn drop_rowwise(&mut self) {
        if self.tensor.colwise.is_set() {
            self.tensor.rowwise = Buffer::UNSET;
            self.tensor.rowwise_scale_inv = Buffer::UNSET;
            self.row = None;
        }
    }

    /// The other direction of a tensor with one scale, from its row-wise data.
    pub fn transposed(run: &Run, from: &Tensor) -> Result<Self> {
        let (rows, cols) = from.rowwise.shape.flatten();
        let dtype = from.rowwise.dtype;
        let block = run.scratch(bytes(rows * cols, dtype))?;
        let mut tensor = Tensor::new(from.mode);
        tensor.colwise = block.buffer(0, dtype, &[cols, rows]);
        tensor.colwise_scale_inv = from.rowwise_scale_inv;
        ops::transpose(run, &from.rowwise, &tensor.colwise)?;
        Ok(Self { col: Some(block), ..Self::borrowed(tensor) })
    }

    /// Whether the memory belongs to somebody else.
    pub fn is_borrowed(&self) -> bool {
        self.row.is_none() && self.col.is_none() && self.shared.is_none()
    }

    pub fn has_colwise(&self) -> bool {
        self.tensor.colwise.is_set() || is_high_precision(self.tensor.dtype())
    }
}

/// Whether values are as they were before a cast.
pub fn is_high_precision(dtype: NVTEDType) -> bool {
    !dtype.is_fp8() && dtype != kNVTEFloat4E2M1
}

impl Quantizer {
    pub const NONE: Self = Self { scaling: Scaling::None, dtype: kNVTEFloat32 };

    pub fn is_none(&self) -> bool {
        self.scaling == Scaling::None
    }

    pub fn is_delayed(&self) -> bool {
        self.scaling == Scaling::Delayed
    }

    pub fn mode(&self) -> NVTEScalingMode {
        match self.scaling {
            Scaling::None | Scaling::Delayed | Scaling::Current { .. } => {
                NVTE_DELAYED_TENSOR_SCALING
            }
            Scaling::Block { square: false, .. } => NVTE_BLOCK_SCALING_1D,
            Scaling::Block { square: true, .. } => NVTE_BLOCK_SCALING_2D,
            Scaling::Mxfp8 { .. } => NVTE_MXFP8_1D_SCALING,
            Scaling::Nvfp4 { .. } => NVTE_NVFP4_1D_SCALING,
        }
    }

    pub fn is_nvfp4(&self) -> bool {
        matches!(self.scaling, Scaling::Nvfp4 { .. })
    }

    /// Whether casts need random numbers.
    pub fn is_stochastic(&self) -> bool {
        matches!(self.scaling, Scaling::Nvfp4 { stochastic: true, .. })
    }

    /// Whether a product takes operands of both kinds.
    pub fn multiplies(&self, other: &Self) -> bool {
        use Scaling::*;
        let e5m2 = kNVTEFloat8E5M2;
        match (self.scaling, other.scaling) {
            (None, None) | (Mxfp8 { .. }, Mxfp8 { .. }) | (Nvfp4 { .. }, Nvfp4 { .. }) => true,
            (Delayed | Current { .. }, Delayed | Current { .. }) => {
                // Tensor cores of Hopper have no product of two E5M2.
                !(self.dtype == e5m2 && other.dtype == e5m2)
            }
            (Block { square: a, .. }, Block { square: b, .. }) => !(a && b),
            _ => false,
        }
    }

    /// Whether tensor cores multiply it as FP8; MXFP8 they do not everywhere.
    pub fn is_fp8_product(&self) -> bool {
        !matches!(self.scaling, Scaling::None | Scaling::Mxfp8 { .. } | Scaling::Nvfp4 { .. })
    }

    /// Whether one direction of a tensor can be made from the other.
    pub fn transposes(&self) -> bool {
        matches!(self.scaling, Scaling::Delayed | Scaling::Current { .. })
    }

    /// What the features of a layer must be multiples of; its rows need not.
    pub fn alignment(&self) -> usize {
        match self.scaling {
            Scaling::None => 1,
            Scaling::Mxfp8 { .. } => 32,
            _ => 16,
        }
    }

    pub fn config(&self) -> QuantizationConfig {
        let mut config = QuantizationConfig::DEFAULT;
        match self.scaling {
            Scaling::Current { pow2, epsilon } | Scaling::Block { pow2, epsilon, .. } => {
                config.force_pow2_scales = pow2;
                config.amax_epsilon = epsilon;
            }
            Scaling::Mxfp8 { square } => config.mxfp8_2d = square,
            Scaling::Nvfp4 { square, .. } => config.nvfp4_2d = square,
            Scaling::None | Scaling::Delayed => {}
        }
        config
    }

    /// Whether the scale comes from all values.
    pub fn is_current(&self) -> bool {
        matches!(self.scaling, Scaling::Current { .. })
    }

    /// Whether an operator that takes no config can cast its result as this one does.
    fn is_default(&self) -> bool {
        match self.scaling {
            Scaling::None | Scaling::Delayed => true,
            Scaling::Current { .. } => false,
            Scaling::Block { pow2, epsilon, .. } => !pow2 && epsilon == 0.0,
            Scaling::Mxfp8 { square } => !square,
            Scaling::Nvfp4 { .. } => false,
        }
    }

    /// Memory for a matrix; of delayed scaling with the slot's scale and amax.
    pub fn empty(
        &self,
        run: &Run,
        (rows, cols): (usize, usize),
        usage: Usage,
        slot: Option<&Slot>,
        lifetime: Lifetime,
    ) -> Result<QTensor> {
        let (mode, numel) = (self.mode(), rows * cols);
        let mut tensor = Tensor::new(mode);
        let per_tensor = mode.per_tensor();
        let mut layout = Layout::default();
        let [scale_inv, scale, amax] = [0; 3].map(|_| layout.array(kNVTEFloat32, 1, 4));
        let scalars = if per_tensor || self.is_nvfp4() {
            Some(Arc::new(run.block(layout.bytes(), lifetime)?))
        } else {
            None
        };
        let mut direction = |colwise: bool| -> Result<Block> {
            let scaling = mode.scaling();
            let dims = if scaling.transposed(colwise) { [cols, rows] } else { [rows, cols] };
            let (scale_rows, scale_cols) = match per_tensor {
                true => (0, 0),
                false => {
                    let pitch = scaling.scale_pitch(colwise, (rows, cols));
                    (scaling.scale_dims(colwise, (rows, cols)).0, pitch)
                }
            };
            let scale_dtype = scaling.scales[0];
            let mut layout = Layout::default();
            let values = layout.array(self.dtype, numel, 1);
            let scales = layout.array(scale_dtype, scale_rows * scale_cols, 256);
            let block = run.block(layout.bytes(), lifetime)?;
            let data = block.array(values, &dims);
            let scale_inv = match &scalars {
                Some(scalars) if per_tensor => scalars.array(scale_inv, &[1]),
                _ => block.array(scales, &[scale_rows, scale_cols]),
            };
            match colwise {
                false => (tensor.rowwise, tensor.rowwise_scale_inv) = (data, scale_inv),
                true => (tensor.colwise, tensor.colwise_scale_inv) = (data, scale_inv),
            }
            Ok(block)
        };
        let row = if usage.rowwise { Some(direction(false)?) } else { None };
        let col = if usage.colwise { Some(direction(true)?) } else { None };
        match (self.scaling, slot, &scalars) {
            (Scaling::Delayed, Some(slot), _) => {
                tensor.scale = slot.scale;
                tensor.amax = slot.amax;
            }
            (Scaling::Current { .. }, _, Some(scalars)) => {
                tensor.scale = scalars.array(scale, &[1]);
                tensor.amax = scalars.array(amax, &[1]);
            }
            (Scaling::Nvfp4 { hadamard, .. }, _, Some(scalars)) => {
                tensor.amax = scalars.array(scale, &[1]);
                tensor.colwise_amax = scalars.array(if hadamard { amax } else { scale }, &[1]);
            }
            _ => {}
        }
        let random = slot.map_or(Buffer::UNSET, |slot| slot.random);
        let ranks =
            slot.map(|slot| [slot.ranks.clone(), slot.sequence.clone()]).unwrap_or_default();
        Ok(QTensor { tensor, row, col, shared: None, _scalars: scalars, random, ranks })
    }

    /// Casts `x` to a tensor of [`Self::empty`], unless a flag on the device is 1; null: there is none.
    pub fn cast(&self, run: &Run, x: &Tensor, out: &QTensor, noop: *const f32) -> Result<()> {
        let config = self.config().with_noop(noop);
        if let Scaling::Nvfp4 { hadamard, stochastic, .. } = self.scaling {
            let config = match stochastic && out.random.is_set() {
                true => config.with_random(out.random.ptr().cast_const().cast()),
                false => config,
            };
            return self.cast_nvfp4(run, x, out, hadamard, &config);
        }
        let out = self.with_scale(run, x, out, &config)?;
        ops::quantize(run, x, &out, &config)
    }

    /// Casts a row of elements of a tensor with one scale, of which other ranks cast the others.
    pub fn cast_part(
        &self,
        run: &Run,
        (x, to): (&Buffer, &Buffer),
        whole: &QTensor,
        ranks: &Communicator,
    ) -> Result<()> {
        let config = self.config();
        let (mut x, mut to) = (*x, *to);
        let zero;
        if x.shape.numel() == 0 {
            // The scale is to be here, too: a 0 has no other effect.
            zero = run.scratch(2 * size_of::<f32>())?;
            x = zero.buffer(0, kNVTEFloat32, &[1]);
            to = zero.buffer(size_of::<f32>(), to.dtype, &[1]);
            ops::zero(&x, run.stream)?;
        }
        let (x, mut part) = (plain(x), Tensor { rowwise: to, ..whole.tensor.clone() });
        let amax = part.amax;
        if self.is_current() {
            ops::amax(run, &x, &part, &config)?;
            ranks.max(&amax, label(run), run.stream)?;
            whole.share_amax(run, &amax)?;
            ops::scale(run, &part, &config)?;
            part.amax = Buffer::UNSET;
            return ops::quantize(run, &x, &part, &config);
        }
        ops::quantize(run, &x, &part, &config)?;
        ranks.max(&amax, label(run), run.stream)
    }

    /// What `x` is cast to; in current scaling its scale is made here, from an amax that comes with `x` if there is one.
    fn with_scale(
        &self,
        run: &Run,
        x: &Tensor,
        out: &QTensor,
        config: &QuantizationConfig,
    ) -> Result<Tensor> {
        let mut scaled = out.tensor.clone();
        if !self.is_current() {
            return Ok(scaled);
        }
        match x.amax.is_set() {
            true => scaled.amax = x.amax,
            false => ops::amax(run, x, &scaled, config)?,
        }
        out.share_amax(run, &scaled.amax)?;
        ops::scale(run, &scaled, config)?;
        // The cast must not raise the amax that belongs to the scale.
        scaled.amax = Buffer::UNSET;
        Ok(scaled)
    }

    /// Casts to NVFP4, one direction after the other where they have different values.
    fn cast_nvfp4(
        &self,
        run: &Run,
        x: &Tensor,
        cast: &QTensor,
        hadamard: bool,
        config: &QuantizationConfig,
    ) -> Result<()> {
        let out = &cast.tensor;
        let mut rows = out.clone();
        if hadamard {
            (rows.colwise, rows.colwise_scale_inv) = (Buffer::UNSET, Buffer::UNSET);
        }
        if rows.rowwise.is_set() || rows.colwise.is_set() {
            ops::amax(run, x, &rows, config)?;
            cast.share_amax(run, &rows.amax)?;
            ops::quantize(run, x, &rows, config)?;
        }
        if !hadamard || !out.colwise.is_set() {
            return Ok(());
        }
        let (count, length) = x.rowwise.shape.flatten();
        // The transform takes BFloat16, and gives the transposed matrix.
        let rounded;
        let x = match x.dtype() {
            kNVTEBFloat16 => x,
            _ => {
                rounded = QTensor::plain(run, (count, length), kNVTEBFloat16, Lifetime::Scratch)?;
                ops::quantize(run, x, &rounded.tensor, &QuantizationConfig::DEFAULT)?;
                &rounded.tensor
            }
        };
        let mixed = QTensor::plain(run, (length, count), kNVTEBFloat16, Lifetime::Scratch)?;
        ops::hadamard(run, x, &mixed.tensor, SIGNS)?;
        let mut columns = Tensor::new(out.mode);
        columns.rowwise = out.colwise;
        columns.rowwise_scale_inv = out.colwise_scale_inv;
        columns.amax = out.colwise_amax;
        ops::amax(run, &mixed.tensor, &columns, config)?;
        cast.share_amax(run, &columns.amax)?;
        ops::quantize(run, &mixed.tensor, &columns, config)
    }

    /// The operand for a product, of a result that `source` writes to whatever tensor it is given.
    pub fn produce(
        &self,
        run: &Run,
        shape: (usize, usize),
        dtype: NVTEDType,
        usage: Usage,
        slot: Option<&Slot>,
        source: &Source,
    ) -> Result<QTensor> {
        if self.is_none() {
            return match source {
                Source::Ready(x) | Source::Cast(x) => Ok(QTensor::borrowed((*x).clone())),
                Source::Computed { write, .. } => {
                    let out = QTensor::plain(run, shape, dtype, Lifetime::Tape)?;
                    write(&out.tensor, &QuantizationConfig::DEFAULT)?;
                    Ok(out)
                }
            };
        }
        if let Source::Cast(x) = source {
            return Ok(QTensor::borrowed((*x).clone()));
        }
        let out = self.empty(run, shape, usage, slot, Lifetime::Tape)?;
        let config = self.config();
        match source {
            Source::Ready(x) | Source::Cast(x) => self.cast(run, x, &out, null())?,
            Source::Computed { write, .. } if self.is_nvfp4() => {
                let x = QTensor::plain(run, shape, dtype, Lifetime::Scratch)?;
                write(&x.tensor, &QuantizationConfig::DEFAULT)?;
                self.cast(run, &x.tensor, &out, null())?;
            }
            Source::Computed { write, configurable } => {
                if self.is_default() || *configurable && !self.is_current() {
                    write(&out.tensor, &config)?;
                } else {
                    let (x, scaled) = self.computed(run, shape, dtype, &out, write)?;
                    ops::quantize(run, &x.tensor, &scaled, &config)?;
                }
            }
        }
        Ok(out)
    }

    /// Runs `write` to a result in high precision, gives `out` the scale that its cast needs, and
    /// casts.
    fn computed(
        &self,
        run: &Run,
        shape: (usize, usize),
        dtype: NVTEDType,
        out: &QTensor,
        write: &Write,
    ) -> Result<(QTensor, Tensor)> {
        let mut x = QTensor::plain(run, shape, dtype, Lifetime::Scratch)?;
        if self.is_current() {
            // The operator raises the amax on its way, which saves a pass over the result.
            x.add_amax(run)?;
        }
        write(&x.tensor, &QuantizationConfig::DEFAULT)?;
        let scaled = self.with_scale(run, &x.tensor, out, &self.config())?;
        Ok((x, scaled))
    }

    /// Whether ranks that have cast `rows` rows each can gather what they have made: scales are for a tensor, or for blocks
    /// within the rows of a rank.
    pub fn gathers(&self, rows: usize) -> bool {
        match self.scaling {
            Scaling::Mxfp8 { .. } => rows.is_multiple_of(MXFP8_ROWS),
            _ => self.transposes(),
        }
    }

    /// Whether products can take so many rows of a tensor by themselves.
    pub fn divides(&self, rows: usize) -> bool {
        self.is_none() || self.gathers(rows)
    }

    /// The directions that ranks cast and gather. The columns of a tensor with one scale are those of the gathered rows.
    pub fn gathered(&self, usage: Usage) -> Usage {
        match self.transposes() {
            true => Usage { rowwise: true, colwise: false },
            false => usage,
        }
    }

    /// Room for the rows of all ranks, of which `own` has those of this rank, as they have been cast. Scales of a tensor
    /// are equal on all ranks.
    pub fn room(&self, run: &Run, split: &Split, own: &Tensor) -> Result<QTensor> {
        let usage = Usage { rowwise: own.rowwise.is_set(), colwise: own.colwise.is_set() };
        let (rows, cols) = if usage.rowwise { own.rowwise } else { own.colwise }.shape.flatten();
        let shape = (rows * split.size(), cols);
        if self.is_none() {
            return QTensor::plain(run, shape, own.rowwise.dtype, Lifetime::Scratch);
        }
        let mut whole = self.empty(run, shape, usage, None, Lifetime::Scratch)?;
        if self.transposes() {
            whole.tensor.rowwise_scale_inv = own.rowwise_scale_inv;
        }
        Ok(whole)
    }

    /// The rows of all ranks, gathered on a stream that begins behind that of the run.
    pub fn gather(
        &self,
        run: &Run,
        split: &Split,
        from: &Tensor,
        stream: cudaStream_t,
    ) -> Result<QTensor> {
        let whole = self.room(run, split, from)?;
        let to = &whole.tensor;
        let gather = |own: &Buffer, all: &Buffer| split.gather_on(run, own, all, stream);
        if from.rowwise.is_set() {
            gather(&from.rowwise, &to.rowwise)?;
        }
        if from.colwise.is_set() {
            gather(&from.colwise, &to.colwise)?;
        }
        if from.mode.per_tensor() {
            return Ok(whole);
        }
        let rows = from.shape("x")?.flatten().0;
        let scales = [
            (from.rowwise_scale_inv, to.rowwise_scale_inv, rows),
            (from.colwise_scale_inv, to.colwise_scale_inv, rows / MXFP8_ROWS),
        ];
        for (from, to, rows) in scales.into_iter().filter(|(from, ..)| from.is_set()) {
            // Rows behind those of all ranks are padding.
            ops::zero(&to, stream)?;
            let rows_of = |buffer: &Buffer, rows: usize| {
                Buffer::new(buffer.ptr(), kNVTEByte, &[rows, buffer.shape.flatten().1])
            };
            gather(&rows_of(&from, rows), &rows_of(&to, rows * split.size()))?;
        }
        Ok(whole)
    }

    /// [`Self::produce`] of a gradient in high precision, with sums over its rows.
    pub fn cast_dbias(
        &self,
        run: &Run,
        x: &Tensor,
        shape: (usize, usize),
        usage: Usage,
        slot: Option<&Slot>,
        dbias: &Tensor,
    ) -> Result<QTensor> {
        let out = self.empty(run, shape, usage, slot, Lifetime::Scratch)?;
        if self.is_nvfp4() {
            self.cast(run, x, &out, null())?;
            ops::sum_rows(run, x, dbias)?;
            return Ok(out);
        }
        let config = self.config();
        let cast = self.with_scale(run, x, &out, &config)?;
        ops::quantize_dbias(run, None, x, &cast, dbias, &config)?;
        Ok(out)
    }

    /// [`Self::produce`] of a derivative's product with a gradient, with sums over its rows.
    #[allow(clippy::too_many_arguments)]
    pub fn derive_dbias(
        &self,
        run: &Run,
        (f, grad, input): (&Activation, &Tensor, &Tensor),
        shape: (usize, usize),
        dtype: NVTEDType,
        usage: Usage,
        slot: Option<&Slot>,
        dbias: &Tensor,
    ) -> Result<QTensor> {
        let out = self.empty(run, shape, usage, slot, Lifetime::Scratch)?;
        let config = self.config();
        if !f.gated && !self.is_current() && !self.is_nvfp4() {
            let derivative = Some((f.function, input));
            ops::quantize_dbias(run, derivative, grad, &out.tensor, dbias, &config)?;
            return Ok(out);
        }
        let write = |out: &Tensor, config: &_| f.backward(run, grad, input, out, config);
        if self.is_nvfp4() {
            let x = QTensor::plain(run, shape, dtype, Lifetime::Scratch)?;
            write(&x.tensor, &QuantizationConfig::DEFAULT)?;
            self.cast(run, &x.tensor, &out, null())?;
            ops::sum_rows(run, &x.tensor, dbias)?;
            return Ok(out);
        }
        let (x, scaled) = self.computed(run, shape, dtype, &out, &write)?;
        ops::quantize_dbias(run, None, &x.tensor, &scaled, dbias, &config)?;
        Ok(out)
    }
}

/// Where the values of an operand come from.
pub enum Source<'a> {
    Ready(&'a Tensor),
    /// Values that have been cast.
    Cast(&'a Tensor),
    Computed {
        write: &'a Write<'a>,
        /// Whether `write` can cast as the config says.
        configurable: bool,
    },
}

/// An operator that writes to any tensor, and casts if that has scales.
pub type Write<'a> = dyn Fn(&Tensor, &QuantizationConfig) -> Result<()> + 'a;
