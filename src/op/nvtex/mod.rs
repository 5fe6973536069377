//! The additions of this library to the ABI: errors, version, backend, and device memory for C
//! programs that use no CUDA headers.
#![allow(unsafe_code)]

pub(crate) mod cpu;
pub mod exports;
pub(crate) mod rank_sum;

use super::transformer_engine::check_bytes;
use crate::backend::{self, args::CopyKind, graph::Graph};
use crate::error::{Error, Result};
use crate::handle::{Kind, Slab};
use crate::tensor::{Buffer, Shape, TENSORS, Tensor};
use crate::types::*;
use std::ffi::c_void;
use std::sync::Arc;

static GRAPHS: Slab<Arc<Graph>, exports::NVTEXGraph_st> = Slab::new(Kind::Graph);

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

/// A tensor with memory of its own.
fn array_create(dtype: NVTEDType, shape: Shape) -> Result<NVTETensor> {
    let mut tensor = Tensor::new(NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING);
    let bytes = Buffer::new(std::ptr::null_mut(), dtype, shape.dims()).bytes();
    let ptr = malloc(bytes)?;
    tensor.rowwise = Buffer::new(ptr, dtype, shape.dims());
    let made = TENSORS.insert(tensor);
    if made.is_err() {
        // SAFETY: the memory was allocated above, and nobody knows of it.
        unsafe { free(ptr) }?;
    }
    made
}

/// # Safety
/// The tensor is of [`array_create`], and has the memory that it got there.
unsafe fn array_destroy(handle: NVTETensor) -> Result<()> {
    if handle.is_null() {
        return Ok(());
    }
    let tensor = TENSORS.get("array", handle)?;
    TENSORS.remove("array", handle)?;
    // SAFETY: the caller vouches for the memory.
    unsafe { free(tensor.rowwise.ptr()) }
}

/// Copies all elements of a tensor to (`to_host`) or from memory of the host, of which there are `bytes`.
///
/// # Safety
/// The tensor has the memory that it says, and `host` has `bytes` bytes.
unsafe fn array_copy(
    handle: NVTETensor,
    (host, bytes): (*mut c_void, usize),
    to_host: bool,
    stream: cudaStream_t,
) -> Result<()> {
    let tensor = TENSORS.get("array", handle)?;
    let (device, needed) = (tensor.rowwise.ptr(), tensor.rowwise.bytes());
    if bytes != needed {
        let (shape, dtype) = (tensor.rowwise.shape, tensor.rowwise.dtype);
        return Err(Error::argument("bytes", format!("{needed} ({dtype} {shape})"), bytes));
    }
    // SAFETY: the caller vouches for both memories.
    unsafe {
        match to_host {
            false => memcpy(device, host, bytes, CopyKind::NVTEX_COPY_TO_DEVICE, stream),
            true => {
                memcpy(host, device, bytes, CopyKind::NVTEX_COPY_TO_HOST, stream)?;
                stream_synchronize(stream)
            }
        }
    }
}
