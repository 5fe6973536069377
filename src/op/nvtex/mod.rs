//! The additions of this library to the ABI: errors, version, backend, and device memory for C
//! programs that use no CUDA headers.
#![allow(unsafe_code)]

pub(crate) mod cpu;
pub mod exports;

use super::transformer_engine::check_bytes;
use crate::backend::{self, args::CopyKind};
use crate::error::{Error, Result};
use crate::types::*;
use std::ffi::c_void;

pub(crate) fn malloc(bytes: usize) -> Result<*mut c_void> {
    check_bytes("bytes", bytes)?;
    if bytes > 0 { backend::domain()?.malloc(bytes) } else { Ok(std::ptr::null_mut()) }
}

/// # Safety
/// `ptr` is null or came from [`malloc`].
pub(crate) unsafe fn free(ptr: *mut c_void) -> Result<()> {
    if ptr.is_null() {
        return Ok(());
    }
    // SAFETY: the caller vouches for the pointer.
    unsafe { backend::domain()?.free(ptr) }
}

/// # Safety
/// The pointers cover `bytes` bytes.
pub(crate) unsafe fn memcpy(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    kind: CopyKind,
    stream: cudaStream_t,
) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    check_bytes("bytes", bytes)?;
    for (name, null) in [("dst", dst.is_null()), ("src", src.is_null())] {
        if null {
            return Err(Error::argument(name, format!("a pointer to {bytes} bytes"), "null"));
        }
    }
    // SAFETY: the caller vouches for the pointers.
    unsafe { backend::domain()?.memcpy(dst, src, bytes, kind, stream) }
}

fn stream_create() -> Result<cudaStream_t> {
    backend::domain()?.stream_create()
}

/// # Safety
/// `stream` is null or came from [`stream_create`].
unsafe fn stream_destroy(stream: cudaStream_t) -> Result<()> {
    if stream.is_null() {
        return Ok(());
    }
    // SAFETY: the caller vouches for the stream.
    unsafe { backend::domain()?.stream_destroy(stream) }
}

/// # Safety
/// `stream` is a stream of the backend, or null.
pub(crate) unsafe fn stream_synchronize(stream: cudaStream_t) -> Result<()> {
    backend::domain()?.synchronize(stream)
}

/// Whether work on the stream is being captured into a graph. Where nobody can tell it may be.
pub(crate) fn stream_is_capturing(stream: cudaStream_t) -> bool {
    backend::domain().and_then(|domain| domain.is_capturing(stream)).unwrap_or(true)
}
