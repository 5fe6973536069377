//! Scratch memory of an operator. A caller of the C ABI asks for its size with a first call and gives the
//! memory with a second one; a layer lends what the one call needs. The operator is the same for both.

use crate::check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, TENSORS, bytes};
use crate::types::{NVTEDType, NVTETensor};
use std::ffi::c_void;

/// How a tensor of the caller asks for the size of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    WithoutPointer,
    WithoutElements,
}

/// Where an operator gets its scratch memory from.
pub enum Workspace<'a> {
    /// A tensor of the caller of a C function.
    Tensor { buffer: Buffer, asks: bool },
    /// A function that gives memory of a number of bytes, aligned to 256 of them, for the time of the call.
    Lender(&'a mut dyn FnMut(usize) -> Result<*mut c_void>),
}

impl Workspace<'_> {
    /// The caller only wants to know the size. Addresses of tensors may be missing then.
    pub fn asks(&self) -> bool {
        matches!(self, Self::Tensor { asks: true, .. })
    }

    /// Whether the caller has room for elements of a dtype and shape; false if it only asked for these, and
    /// the operator then has no more to do. A workspace that is too small is an error. For operators that
    /// ask for memory but do not touch it.
    pub fn has_room(&mut self, dtype: NVTEDType, shape: Shape) -> Result<bool> {
        match self {
            Self::Tensor { buffer, asks: true } => {
                bytes_of(dtype, &shape)?;
                // Memory of no elements has no address, and the second call would ask again.
                let shape = if shape.numel() == 0 { Shape::new(&[1]) } else { shape };
                *buffer = Buffer::new(buffer.ptr(), dtype, shape.dims());
                Ok(false)
            }
            Self::Tensor { buffer, asks: false } => {
                let needed = bytes_of(dtype, &shape)?;
                if buffer.bytes() < needed {
                    let expected = format!("{needed} or more bytes ({dtype} {shape})");
                    let got = format!("{} bytes", buffer.bytes());
                    return Err(Error::argument("workspace.shape", expected, got));
                }
                Ok(true)
            }
            Self::Lender(_) => Ok(true),
        }
    }

    /// Memory for elements of a dtype and shape; none if the caller only asked for these, and the operator
    /// then has no more to do. To be called once by an operator.
    pub fn take(&mut self, dtype: NVTEDType, shape: Shape) -> Result<Option<*mut c_void>> {
        if !self.has_room(dtype, shape)? {
            return Ok(None);
        }
        match self {
            Self::Tensor { buffer, .. } => {
                check::raw_pointer("workspace.data", buffer.ptr(), shape.numel(), dtype).map(Some)
            }
            Self::Lender(lend) => lend(bytes_of(dtype, &shape)?).map(Some),
        }
    }
}

/// Bytes of the elements of a shape, whose product is checked here.
fn bytes_of(dtype: NVTEDType, shape: &Shape) -> Result<usize> {
    let numel = shape.dims().iter().try_fold(1usize, |numel, &dim| numel.checked_mul(dim));
    let numel = numel.filter(|&numel| bytes(numel, dtype) <= isize::MAX as usize);
    let numel = numel
        .ok_or_else(|| Error::argument("workspace", "a shape of less than 2^63 bytes", shape))?;
    Ok(bytes(numel, dtype))
}

/// Runs an operator with the workspace of a handle, which gets dtype and shape if the call asks for them.
pub fn of_handle(
    handle: NVTETensor,
    asks: Asks,
    operator: impl FnOnce(&mut Workspace) -> Result<()>,
) -> Result<()> {
    let buffer = check::rowwise("workspace", handle)?;
    let asks = match asks {
        Asks::WithoutPointer => buffer.ptr().is_null(),
        Asks::WithoutElements => buffer.shape.numel() == 0,
    };
    let mut workspace = Workspace::Tensor { buffer, asks };
    operator(&mut workspace)?;
    match workspace {
        Workspace::Tensor { buffer, asks: true } => {
            TENSORS.write("workspace", handle, |tensor| tensor.rowwise = buffer)
        }
        _ => Ok(()),
    }
}
