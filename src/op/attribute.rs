//! Typed attributes behind `void*` and a size: how tensors and configs are read and written from C.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::handle::Slab;
use std::ffi::c_void;

/// A plain value that C hands over as bytes. `bytemuck::AnyBitPattern`, which says the same, is neither for
/// pointers nor for structs with a `MaybeUninit` of an enumeration, so that half of these types could not have it.
///
/// # Safety
/// Every pattern of bits is a value of the type, which has no padding that anybody reads.
pub unsafe trait Plain: Copy {}

// SAFETY: integers accept every bit pattern.
unsafe impl Plain for u8 {}
// SAFETY: integers accept every bit pattern.
unsafe impl Plain for i32 {}
// SAFETY: integers accept every bit pattern.
unsafe impl Plain for i64 {}
// SAFETY: every bit pattern is a float, if only a NaN.
unsafe impl Plain for f32 {}
// SAFETY: pointers accept every bit pattern; nobody follows one of C.
unsafe impl Plain for *mut c_void {}
// SAFETY: its enumeration is a MaybeUninit; the rest are integers and a pointer.
unsafe impl Plain for crate::types::NVTEBasicTensor {}

/// Reads a `T` that the caller passed as `buf` and `size_in_bytes`.
///
/// # Safety
/// `buf` is null or points to `size_in_bytes` readable bytes.
#[inline]
pub unsafe fn read<T: Plain>(buf: *const c_void, size_in_bytes: usize) -> Result<T> {
    // SAFETY: the caller's promise is that of `with`.
    unsafe { with(buf, size_in_bytes, |value: &T| Ok(*value)) }
}

/// Applies `body` to a `T` that the caller passed as `buf` and `size_in_bytes`: where it is, so that large
/// values are not copied, or to a copy if it is not aligned.
///
/// # Safety
/// `buf` is null or points to `size_in_bytes` readable bytes.
#[inline]
pub unsafe fn with<T: Plain, R>(
    buf: *const c_void,
    size_in_bytes: usize,
    body: impl FnOnce(&T) -> Result<R>,
) -> Result<R> {
    check_size::<T>(size_in_bytes)?;
    let value = buf.cast::<T>();
    if value.is_null() {
        return Err(Error::argument("buf", "a pointer to the value", "null"));
    }
    // SAFETY: the caller vouches for the bytes, of which any are a value. A reference is only made of an aligned
    // address.
    unsafe { if value.is_aligned() { body(&*value) } else { body(&value.read_unaligned()) } }
}

/// The object whose attribute is asked for. Where only the size is wanted, a null handle stands for
/// any object: the size is the same for all.
pub fn object<T: Clone>(
    slab: &Slab<T>,
    handle: *mut c_void,
    buf: *mut c_void,
    any: &T,
) -> Result<T> {
    if handle.is_null() && buf.is_null() { Ok(any.clone()) } else { slab.get("config", handle) }
}

/// Writes a `T` and its size for the caller; with a null `buf` only the size. An error writes nothing.
///
/// # Safety
/// `buf` is null or points to `size_in_bytes` writable bytes; `size_written` is null or valid.
pub unsafe fn write<T: Plain>(
    value: impl FnOnce() -> Result<T>,
    buf: *mut c_void,
    size_in_bytes: usize,
    size_written: *mut usize,
) -> Result<()> {
    let value = value()?;
    if !buf.is_null() {
        check_size::<T>(size_in_bytes)?;
        // SAFETY: the caller vouches for the bytes; they need no alignment.
        unsafe { buf.cast::<T>().write_unaligned(value) };
    }
    if !size_written.is_null() {
        // SAFETY: the caller vouches for the pointer.
        unsafe { size_written.write_unaligned(size_of::<T>()) };
    }
    Ok(())
}

#[inline]
fn check_size<T>(size_in_bytes: usize) -> Result<()> {
    if size_in_bytes < size_of::<T>() {
        let expected = format!("at least {}", size_of::<T>());
        return Err(Error::argument("size_in_bytes", expected, size_in_bytes));
    }
    Ok(())
}
