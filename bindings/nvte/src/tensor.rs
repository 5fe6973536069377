//! Tensors with memory of their own.

use crate::Stream;
use crate::error::{Error, Result, call, quietly};
use crate::generated::DType;
use nvte_sys as sys;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::{fmt, ptr};

/// A type of elements, as the host sees them.
///
/// # Safety
///
/// `DTYPE` is the library's name of a type of this size, all of whose bit patterns are values.
pub unsafe trait Element: Copy + 'static {
    /// What the library calls the type.
    const DTYPE: DType;
}

macro_rules! element {
    ($($type:ty: $dtype:ident),*) => {$(
        // SAFETY: the type has the size of this dtype, and all of its bit patterns are values.
        unsafe impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

element!(u8: Byte, i16: Int16, i32: Int32, i64: Int64, f32: Float32);
element!(F16: Float16, BF16: BFloat16, E4M3: Float8E4M3, E5M2: Float8E5M2);

/// The bits of a Float16 (IEEE 754 half precision). [`Tensor::cast`] converts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The bits of a BFloat16: the upper half of those of a Float32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct BF16(pub u16);

/// The bits of a Float8E4M3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct E4M3(pub u8);

/// The bits of a Float8E5M2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct E5M2(pub u8);

impl From<BF16> for f32 {
    fn from(value: BF16) -> f32 {
        f32::from_bits(u32::from(value.0) << 16)
    }
}

/// A tensor on the device, with memory of its own that is freed when it is dropped.
///
/// Operators write through shared references, because a module may hold on to its tensors: the contents are like those
/// of a `Cell`. So a tensor may move to another thread, but two threads cannot use one at the same time.
///
/// ```
/// use nvte::{Stream, Tensor};
///
/// let stream = Stream::default();
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &stream)?;
/// assert_eq!(x.shape(), [2, 2]);
/// assert_eq!(x.to_vec(&stream)?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), nvte::Error>(())
/// ```
pub struct Tensor<T: Element> {
    handle: sys::NVTETensor,
    memory: *mut c_void,
    shape: Vec<usize>,
    element: PhantomData<T>,
}

// SAFETY: any thread may use the memory and the handle, one at a time; the type is not Sync.
unsafe impl<T: Element> Send for Tensor<T> {}

impl<T: Element> Tensor<T> {
    /// Makes a tensor of zeros.
    pub fn zeros(shape: &[usize], stream: &Stream) -> Result<Self> {
        let tensor = Self::allocate(shape)?;
        if tensor.bytes() > 0 {
            // SAFETY: the memory has this size.
            call(|| unsafe { sys::nvte_memset(tensor.memory, 0, tensor.bytes(), stream.raw()) })?;
        }
        Ok(tensor)
    }

    /// Makes a tensor with these elements, in row-major order.
    pub fn from_slice(values: &[T], shape: &[usize], stream: &Stream) -> Result<Self> {
        let tensor = Self::allocate(shape)?;
        tensor.write(values, stream)?;
        Ok(tensor)
    }

    /// Copies elements to the tensor, on the stream. Errors: not as many as the tensor has.
    pub fn write(&self, values: &[T], stream: &Stream) -> Result<()> {
        if values.len() != self.len() {
            let (got, shape) = (values.len(), &self.shape);
            let expected = self.len();
            return Err(Error::argument(format!(
                "Tensor::write: expected {expected} elements (shape {shape:?}), got {got}"
            )));
        }
        let from = values.as_ptr().cast();
        // SAFETY: both have so many bytes, and the function has read those of the host when it returns.
        call(|| unsafe {
            sys::nvtex_memcpy_to_device(self.memory, from, self.bytes(), stream.raw());
        })
    }

    /// Copies the elements to the host, when the work on the stream is done.
    pub fn to_vec(&self, stream: &Stream) -> Result<Vec<T>> {
        let mut values: Vec<T> = Vec::with_capacity(self.len());
        let to = values.as_mut_ptr().cast();
        // SAFETY: there is room for so many bytes, which are there after the synchronization. Should the copy fail,
        // no element counts.
        unsafe {
            call(|| sys::nvtex_memcpy_to_host(to, self.memory, self.bytes(), stream.raw()))?;
            stream.synchronize()?;
            values.set_len(self.len());
        }
        Ok(values)
    }

    /// Writes the elements to another tensor of this shape, each rounded to its type (for Float32, Float16 and
    /// BFloat16).
    pub fn cast<U: Element>(&self, to: &Tensor<U>, stream: &Stream) -> Result<()> {
        // SAFETY: the handles are valid, and the library checks everything else.
        call(|| unsafe {
            sys::nvte_quantize_v2(self.handle, to.handle, ptr::null_mut(), stream.raw());
        })
    }

    /// Dimensions, the slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn bytes(&self) -> usize {
        self.len() * size_of::<T>()
    }

    fn allocate(shape: &[usize]) -> Result<Self> {
        let length = shape.iter().try_fold(size_of::<T>(), |bytes, n| bytes.checked_mul(*n));
        let Some(bytes) = length.filter(|bytes| *bytes <= isize::MAX as usize) else {
            return Err(Error::argument(format!("Tensor: shape {shape:?} has too many elements")));
        };
        // SAFETY: the function has no conditions.
        let memory = call(|| unsafe { sys::nvtex_malloc(bytes) })?;
        let handle = ptr::null_mut();
        let mut tensor = Tensor { handle, memory, shape: shape.to_vec(), element: PhantomData };
        // SAFETY: the shape is read before the function returns; the memory lives as long as the handle.
        call(|| unsafe {
            tensor.handle = sys::nvte_create_tensor(sys::NVTE_DELAYED_TENSOR_SCALING);
            let shape = sys::nvte_make_shape(shape.as_ptr(), shape.len());
            let buffer = sys::NVTEBasicTensor { data_ptr: memory, dtype: T::DTYPE as i32, shape };
            let (address, size) = ((&raw const buffer).cast(), size_of_val(&buffer));
            sys::nvte_set_tensor_param_v2(tensor.handle, sys::kNVTERowwiseData, address, size);
        })?;
        Ok(tensor)
    }
}

impl<T: Element> Drop for Tensor<T> {
    fn drop(&mut self) {
        // SAFETY: both belong to this tensor, or are null, which the functions ignore. The device frees memory when
        // the work that uses it is done.
        quietly(|| unsafe {
            sys::nvte_destroy_tensor(self.handle);
            sys::nvtex_free(self.memory);
        });
    }
}

impl<T: Element> fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor {:?} {:?}", T::DTYPE, self.shape)
    }
}

mod sealed {
    pub trait Sealed {}
    impl<T: super::Element> Sealed for super::Tensor<T> {}
    impl Sealed for super::Missing {}
}

/// Stands for an optional tensor that is not there, before others in a list.
#[derive(Clone, Copy, Debug)]
pub struct Missing;

impl AnyTensor for Missing {
    fn raw(&self) -> sys::NVTETensor {
        ptr::null_mut()
    }

    fn dtype(&self) -> DType {
        DType::Byte
    }

    fn dims(&self) -> &[usize] {
        &[]
    }
}

/// A tensor of any type of elements, for arguments: a [`Tensor`], or [`Missing`].
pub trait AnyTensor: sealed::Sealed {
    /// The handle as C has it, which lives as long as the tensor; null for a missing one.
    fn raw(&self) -> sys::NVTETensor;
    /// What the library calls the type of the elements.
    fn dtype(&self) -> DType;
    /// Dimensions, the slowest first.
    fn dims(&self) -> &[usize];
}

impl<T: Element> AnyTensor for Tensor<T> {
    fn raw(&self) -> sys::NVTETensor {
        self.handle
    }

    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn dims(&self) -> &[usize] {
        &self.shape
    }
}
