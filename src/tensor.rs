//! Tensor records: what handles of tensors and grouped tensors stand for.

use crate::error::{Error, Result};
use crate::fork::{self, Held};
use crate::handle::{Kind, Slab};
use crate::types::*;
use num_traits::FromPrimitive;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fmt::{self, Display};
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

pub static TENSORS: Slab<Tensor> = Slab::new(Kind::Tensor);
pub static GROUPED: Slab<GroupedTensor> = Slab::new(Kind::GroupedTensor);

/// Largest rank.
pub const MAX_DIMS: usize = 15;

/// Dimensions that a shape holds itself.
const INLINE: usize = 5;

/// Dimensions, at most 15, whose product in bytes fits the address space.
///
/// Records of tensors are copied with every call, and each has seven shapes. So a shape holds few dimensions
/// itself, which nearly all tensors have, and refers to those of higher ranks.
#[derive(Clone, Copy)]
pub struct Shape(Dims);

#[derive(Clone, Copy)]
enum Dims {
    /// The first `ndim` entries are the dimensions, the others are 0.
    Few {
        ndim: u8,
        dims: [usize; INLINE],
    },
    Many(&'static [usize]),
}

/// All shapes of more than `INLINE` dimensions that the process has used, each once. They stay, because a shape
/// may be copied anywhere; programs use few of them.
static MANY: Mutex<BTreeSet<&'static [usize]>> = Mutex::new(BTreeSet::new());

#[cold]
fn many(dims: &[usize]) -> Dims {
    let mut known = MANY.lock().unwrap_or_else(PoisonError::into_inner);
    Dims::Many(known.get(dims).copied().unwrap_or_else(|| {
        let kept: &'static [usize] = Box::leak(dims.into());
        known.insert(kept);
        kept
    }))
}

/// Holds the lock of the shapes until the result is dropped.
pub fn hold(deadline: Instant) -> Box<dyn Held> {
    Box::new(fork::patiently(deadline, || MANY.try_lock()))
}

impl Shape {
    /// The shape of an unset buffer.
    pub const UNSET: Self = Self(Dims::Few { ndim: 1, dims: [0; INLINE] });

    #[inline]
    pub fn new(dims: &[usize]) -> Self {
        let dims = &dims[..dims.len().min(MAX_DIMS)];
        if dims.len() > INLINE {
            return Self(many(dims));
        }
        let mut few = [0; INLINE];
        few[..dims.len()].copy_from_slice(dims);
        Self(Dims::Few { ndim: dims.len() as u8, dims: few })
    }

    pub fn from_c(argument: impl Display, shape: &NVTEShape) -> Result<Self> {
        Self::check(argument, shape).map(|_| Self::checked(shape))
    }

    /// Checks what C passed, and returns [`Self::extent`] of it.
    fn check(argument: impl Display, shape: &NVTEShape) -> Result<usize> {
        let Some(dims) = shape.data.get(..shape.ndim) else {
            let name = format!("{argument}.ndim");
            return Err(Error::argument(name, "at most 15", shape.ndim));
        };
        let extent = extent(dims).filter(|&numel| numel <= isize::MAX as usize);
        extent.ok_or_else(|| {
            let expected = "dimensions whose product is less than 2^63";
            Error::argument(argument, expected, Self::new(dims))
        })
    }

    /// What C passed, after [`Self::check`].
    #[inline]
    fn checked(shape: &NVTEShape) -> Self {
        let ndim = shape.ndim;
        if ndim > INLINE {
            return Self(many(&shape.data[..ndim.min(MAX_DIMS)]));
        }
        let dims = std::array::from_fn(|i| if i < ndim { shape.data[i] } else { 0 });
        Self(Dims::Few { ndim: ndim as u8, dims })
    }

    pub fn to_c(self) -> NVTEShape {
        let mut data = [0; MAX_DIMS];
        data[..self.dims().len()].copy_from_slice(self.dims());
        NVTEShape { data, ndim: self.dims().len() }
    }

    #[inline]
    pub fn dims(&self) -> &[usize] {
        match &self.0 {
            Dims::Few { ndim, dims } => &dims[..*ndim as usize],
            Dims::Many(dims) => dims,
        }
    }

    /// Product of the dimensions; 1 for rank 0.
    pub fn numel(&self) -> usize {
        self.dims().iter().product()
    }

    /// As a matrix: all dimensions but the last, and the last.
    pub fn flatten(&self) -> (usize, usize) {
        match self.dims() {
            [] => (1, 1),
            [rows @ .., cols] => (rows.iter().product(), *cols),
        }
    }

    /// The first dimension moved to the end: what a transposed buffer stands for.
    pub fn rotated(&self) -> Self {
        self.changed(|dims| dims.rotate_left(usize::from(!dims.is_empty())))
    }

    /// The last dimension moved to the front: how a transposed buffer is stored.
    pub fn transposed(&self) -> Self {
        self.changed(|dims| dims.rotate_right(usize::from(!dims.is_empty())))
    }

    fn changed(&self, change: impl FnOnce(&mut [usize])) -> Self {
        let mut dims = [0; MAX_DIMS];
        let dims = &mut dims[..self.dims().len()];
        dims.copy_from_slice(self.dims());
        change(dims);
        Self::new(dims)
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Self) -> bool {
        self.dims() == other.dims()
    }
}

impl Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

/// Product of the dimensions that are not 0: a zero must not hide that the others overflow, because
/// rows and columns are also used apart.
fn extent(dims: &[usize]) -> Option<usize> {
    let mut nonzero = dims.iter().filter(|&&dim| dim != 0);
    nonzero.try_fold(1usize, |product, &dim| product.checked_mul(dim))
}

/// An enumeration as an argument of C: any number may arrive.
pub trait FromC: FromPrimitive + Copy + PartialEq {
    /// The legal values, for messages.
    const WHAT: &'static str;
    /// The variant that is no value but counts the others.
    const COUNT: Option<Self> = None;

    #[inline]
    fn from_number(number: i32) -> Option<Self> {
        Self::from_i32(number).filter(|value| Some(*value) != Self::COUNT)
    }
}

#[inline]
pub fn from_c<T: FromC>(argument: impl Display, value: MaybeUninit<T>) -> Result<T> {
    let number = raw_enum(value);
    T::from_number(number).ok_or_else(|| Error::argument(argument, T::WHAT, number))
}

/// The number that C passed for an enumeration.
#[allow(unsafe_code)]
#[inline]
fn raw_enum<T: Copy>(value: MaybeUninit<T>) -> i32 {
    const { assert!(size_of::<T>() == size_of::<i32>()) };
    // SAFETY: a C caller initialises all 4 bytes, whatever their value, and every value is an i32.
    unsafe { value.as_ptr().cast::<i32>().read() }
}

/// Makes an enumeration, which derives `FromPrimitive`, an argument: what is legal, for messages, and the
/// variant that only counts the others, if it has one. (`num_enum` takes none with the representation of C.)
macro_rules! from_c_enum {
    ($type:ident, $what:literal $(, $count:ident)?) => {
        impl $crate::tensor::FromC for $type {
            const WHAT: &'static str = $what;
            $(const COUNT: Option<Self> = Some(Self::$count);)?
        }
    };
}
pub(crate) use from_c_enum;

from_c_enum!(NVTEDType, "an NVTEDType from 0 to 10", kNVTENumTypes);
from_c_enum!(NVTEScalingMode, "an NVTEScalingMode (0 to 4, or 100)");
from_c_enum!(NVTETensorParam, "an NVTETensorParam from 0 to 9", kNVTENumTensorParams);
from_c_enum!(
    NVTEGroupedTensorParam,
    "an NVTEGroupedTensorParam from 0 to 10",
    kNVTENumGroupedTensorParams
);

impl Display for NVTEDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use NVTEDType::*;
        f.write_str(match self {
            kNVTEByte => "Byte",
            kNVTEInt16 => "Int16",
            kNVTEInt32 => "Int32",
            kNVTEInt64 => "Int64",
            kNVTEFloat32 => "Float32",
            kNVTEFloat16 => "Float16",
            kNVTEBFloat16 => "BFloat16",
            kNVTEFloat8E4M3 => "Float8E4M3",
            kNVTEFloat8E5M2 => "Float8E5M2",
            kNVTEFloat8E8M0 => "Float8E8M0",
            kNVTEFloat4E2M1 => "Float4E2M1",
            kNVTENumTypes => "NumTypes",
        })
    }
}

impl Display for NVTEScalingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One buffer of a tensor. The address is kept as a number: only backends dereference it.
#[derive(Clone, Copy)]
pub struct Buffer {
    address: usize,
    pub dtype: NVTEDType,
    pub shape: Shape,
}

impl Buffer {
    pub const UNSET: Self =
        Self { address: 0, dtype: NVTEDType::kNVTEFloat32, shape: Shape::UNSET };

    pub fn new(ptr: *mut c_void, dtype: NVTEDType, dims: &[usize]) -> Self {
        Self { address: ptr as usize, dtype, shape: Shape::new(dims) }
    }

    pub fn from_c(argument: impl Display, basic: &NVTEBasicTensor) -> Result<Self> {
        let mut buffer = Self::UNSET;
        buffer.set(argument, basic).map(|()| buffer)
    }

    /// Takes over what C passed. After an error the buffer is unchanged.
    pub fn set(&mut self, argument: impl Display, basic: &NVTEBasicTensor) -> Result<()> {
        let dtype: NVTEDType = from_c(format_args!("{argument}.dtype"), basic.dtype)?;
        let extent = Shape::check(format_args!("{argument}.shape"), &basic.shape)?;
        if extent.checked_mul(dtype.bits()).is_none_or(|bits| bits / 8 > isize::MAX as usize) {
            let expected = "dimensions whose product is less than 2^63 bytes";
            let got = Shape::checked(&basic.shape);
            return Err(Error::argument(format!("{argument}.shape"), expected, got));
        }
        self.address = basic.data_ptr as usize;
        self.dtype = dtype;
        self.shape = Shape::checked(&basic.shape);
        Ok(())
    }

    pub fn to_c(self) -> NVTEBasicTensor {
        NVTEBasicTensor {
            data_ptr: self.ptr(),
            dtype: MaybeUninit::new(self.dtype),
            shape: self.shape.to_c(),
        }
    }

    pub fn ptr(&self) -> *mut c_void {
        self.address as *mut c_void
    }

    /// Present: anything but a null pointer with the shape `(0)`.
    pub fn is_set(&self) -> bool {
        self.address != 0 || !matches!(self.shape.0, Dims::Few { ndim: 1, dims: [0, ..] })
    }

    pub fn bytes(&self) -> usize {
        bytes(self.shape.numel(), self.dtype)
    }

    /// The product fits, because `set` takes no other shape.
    pub fn bits(&self) -> usize {
        self.shape.numel().saturating_mul(self.dtype.bits())
    }
}

/// Bytes of `numel` elements, rounded down; the largest number for more.
pub fn bytes(numel: usize, dtype: NVTEDType) -> usize {
    (numel / 8).saturating_mul(dtype.bits()).saturating_add(numel % 8 * dtype.bits() / 8)
}

#[derive(Clone)]
pub struct Tensor {
    pub rowwise: Buffer,
    pub colwise: Buffer,
    pub scale: Buffer,
    pub amax: Buffer,
    pub rowwise_scale_inv: Buffer,
    pub colwise_scale_inv: Buffer,
    pub colwise_amax: Buffer,
    pub mode: NVTEScalingMode,
    pub swizzled: bool,
    pub row_scaled: bool,
    pub e4m3_max: i32,
}

impl Tensor {
    pub const fn new(mode: NVTEScalingMode) -> Self {
        Self {
            rowwise: Buffer::UNSET,
            colwise: Buffer::UNSET,
            scale: Buffer::UNSET,
            amax: Buffer::UNSET,
            rowwise_scale_inv: Buffer::UNSET,
            colwise_scale_inv: Buffer::UNSET,
            colwise_amax: Buffer::UNSET,
            mode,
            swizzled: false,
            row_scaled: false,
            e4m3_max: 448,
        }
    }

    fn only_colwise(&self) -> bool {
        self.colwise.is_set() && !self.rowwise.is_set()
    }

    /// Whether the scales are in the tiles of the matrix units. Scales that are never in tiles stay as they
    /// are, whatever the flag says: callers set it for all modes.
    pub fn tiled(&self) -> bool {
        self.swizzled && self.mode.scaling().swizzles
    }

    /// Element type of the data.
    pub fn dtype(&self) -> NVTEDType {
        if self.only_colwise() { self.colwise.dtype } else { self.rowwise.dtype }
    }

    /// Logical shape.
    pub fn shape(&self, argument: &str) -> Result<Shape> {
        match self.mode {
            _ if !self.only_colwise() => Ok(self.rowwise.shape),
            NVTEScalingMode::NVTE_INVALID_SCALING => {
                Err(Error::argument(argument, "a tensor with a scaling mode", self.mode))
            }
            mode if mode.scaling().transposed(true) => Ok(self.colwise.shape.rotated()),
            _ => Ok(self.colwise.shape),
        }
    }
}

#[derive(Clone)]
pub struct GroupedTensor {
    pub num_tensors: usize,
    pub logical_shape: Shape,
    pub mode: NVTEScalingMode,
    pub rowwise: Buffer,
    pub colwise: Buffer,
    pub scale: Buffer,
    pub amax: Buffer,
    pub rowwise_scale_inv: Buffer,
    pub colwise_scale_inv: Buffer,
    pub colwise_amax: Buffer,
    pub first_dims: Buffer,
    pub last_dims: Buffer,
    pub offsets: Buffer,
    pub swizzled: bool,
}

impl GroupedTensor {
    pub fn new(mode: NVTEScalingMode, num_tensors: usize, logical_shape: Shape) -> Self {
        let unset = Buffer::UNSET;
        let dims = Buffer { dtype: NVTEDType::kNVTEInt64, ..unset };
        Self {
            num_tensors,
            logical_shape,
            mode,
            rowwise: unset,
            colwise: unset,
            scale: unset,
            amax: unset,
            rowwise_scale_inv: unset,
            colwise_scale_inv: unset,
            colwise_amax: unset,
            first_dims: dims,
            last_dims: dims,
            offsets: dims,
            swizzled: false,
        }
    }

    pub fn dtype(&self) -> NVTEDType {
        let only_colwise = self.colwise.is_set() && !self.rowwise.is_set();
        if only_colwise { self.colwise.dtype } else { self.rowwise.dtype }
    }

    /// As [`Tensor::tiled`].
    pub fn tiled(&self) -> bool {
        self.swizzled && self.mode.scaling().swizzles
    }
}
