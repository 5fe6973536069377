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
    let mut ptr = std::ptr::null_mut();
    if bytes > 0 {
        backend::call("device_malloc", |table| {
            // SAFETY: the entry writes one pointer.
            table.device_malloc.map(|entry| unsafe { entry(&mut ptr, bytes) })
        })?;
    }
    Ok(ptr)
}

/// # Safety
/// `ptr` is null or came from [`malloc`].
pub(crate) unsafe fn free(ptr: *mut c_void) -> Result<()> {
    if ptr.is_null() {
        return Ok(());
    }
    backend::call("device_free", |table| {
        // SAFETY: the caller vouches for the pointer.
        table.device_free.map(|entry| unsafe { entry(ptr) })
    })
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
    backend::call("device_memcpy", |table| {
        // SAFETY: the caller vouches for the pointers.
        table.device_memcpy.map(|entry| unsafe { entry(dst, src, bytes, kind, stream) })
    })
}

fn stream_create() -> Result<cudaStream_t> {
    let mut stream = std::ptr::null_mut();
    backend::call("stream_create", |table| {
        // SAFETY: the entry writes one stream.
        table.stream_create.map(|entry| unsafe { entry(&mut stream) })
    })?;
    Ok(stream)
}

/// # Safety
/// `stream` is null or came from [`stream_create`].
unsafe fn stream_destroy(stream: cudaStream_t) -> Result<()> {
    if stream.is_null() {
        return Ok(());
    }
    backend::call("stream_destroy", |table| {
        // SAFETY: the caller vouches for the stream.
        table.stream_destroy.map(|entry| unsafe { entry(stream) })
    })
}

/// # Safety
/// `stream` is a stream of the backend, or null.
pub(crate) unsafe fn stream_synchronize(stream: cudaStream_t) -> Result<()> {
    backend::call("stream_synchronize", |table| {
        // SAFETY: the caller vouches for the stream.
        table.stream_synchronize.map(|entry| unsafe { entry(stream) })
    })
}

/// Whether work on the stream is being captured into a graph. Where nobody can tell it may be.
pub(crate) fn stream_is_capturing(stream: cudaStream_t) -> bool {
    let mut capturing = true;
    let asked = backend::call("stream_is_capturing", |table| {
        // SAFETY: the entry writes one flag.
        table.stream_is_capturing.map(|entry| unsafe { entry(stream, &mut capturing) })
    });
    asked.is_err() || capturing
}
