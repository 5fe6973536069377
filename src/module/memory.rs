//! Device memory of contexts: blocks that return to where they came from, in the order of a stream.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::op::nvtex;
use crate::tensor::Buffer;
use crate::types::{NVTEDType, cudaStream_t};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a block is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until the call returns.
    Scratch,
    /// Until a tape is destroyed.
    Tape,
    /// Until a module or a context is destroyed.
    Persistent,
}

/// Bytes, alignment, lifetime, stream.
pub type Allocate = dyn Fn(usize, usize, Lifetime, cudaStream_t) -> *mut c_void + Send + Sync;
/// Address, bytes, lifetime, stream.
pub type Release = dyn Fn(*mut c_void, usize, Lifetime, cudaStream_t) + Send + Sync;

/// The caller's allocator.
pub struct Callbacks {
    pub allocate: Box<Allocate>,
    pub release: Box<Release>,
}

/// Addresses of free blocks by stream and size.
type Free = HashMap<(usize, usize), Vec<usize>>;

/// Where blocks come from: the caller's allocator, or a pool that keeps what it has had from the device.
/// A block of a stream is handed out again to calls on that stream alone, which run after the work that
/// used it; so nothing has to wait, and after the first step nothing is allocated any more.
pub struct Memory {
    callbacks: Option<Callbacks>,
    free: Mutex<Free>,
}

/// What addresses of blocks are multiples of.
const ALIGNMENT: usize = 256;

impl Memory {
    pub fn new(callbacks: Option<Callbacks>) -> Arc<Self> {
        Arc::new(Self { callbacks, free: Mutex::default() })
    }

    pub fn block(
        self: &Arc<Self>,
        bytes: usize,
        lifetime: Lifetime,
        stream: cudaStream_t,
    ) -> Result<Block> {
        let memory = Arc::clone(self);
        let mut block = Block { memory, ptr: 0, bytes, lifetime, stream: stream as usize };
        if bytes == 0 {
            return Ok(block);
        }
        let ptr = match &self.callbacks {
            Some(own) => {
                let ptr = (own.allocate)(bytes, ALIGNMENT, lifetime, stream);
                if ptr.is_null() || !(ptr as usize).is_multiple_of(ALIGNMENT) {
                    let what = format!("{bytes} bytes aligned to {ALIGNMENT}");
                    let message = format!("allocator.allocate: expected {what}, got {ptr:p}");
                    return Err(Error::device(message));
                }
                ptr as usize
            }
            None => {
                block.bytes = Self::class(bytes);
                self.take(block.stream, block.bytes)?
            }
        };
        block.ptr = ptr;
        Ok(block)
    }

    /// Sizes are rounded up, so that blocks of nearly the same size stand in for each other.
    fn class(bytes: usize) -> usize {
        let step = if bytes < 1 << 20 { 512 } else { 1 << 20 };
        bytes.checked_next_multiple_of(step).unwrap_or(bytes)
    }

    fn take(&self, stream: usize, bytes: usize) -> Result<usize> {
        match lock(&self.free).get_mut(&(stream, bytes)).and_then(Vec::pop) {
            Some(ptr) => Ok(ptr),
            None => Ok(nvtex::malloc(bytes)? as usize),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for &ptr in lock(&self.free).values().flatten() {
            // SAFETY: the pool owns the block, and nobody holds it any more. An error at the end of
            // the process leaves the memory to the driver.
            let _ = unsafe { nvtex::free(ptr as *mut c_void) };
        }
    }
}

/// A piece of device memory, released when dropped.
pub struct Block {
    memory: Arc<Memory>,
    ptr: usize,
    bytes: usize,
    lifetime: Lifetime,
    stream: usize,
}

impl Block {
    pub fn ptr(&self) -> *mut c_void {
        self.ptr as *mut c_void
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The block as a buffer from its `at`-th byte on.
    pub fn buffer(&self, at: usize, dtype: NVTEDType, dims: &[usize]) -> Buffer {
        Buffer::new((self.ptr + at) as *mut c_void, dtype, dims)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.ptr == 0 {
            return;
        }
        match &self.memory.callbacks {
            Some(own) => {
                (own.release)(self.ptr(), self.bytes, self.lifetime, self.stream as cudaStream_t);
            }
            None => {
                let key = (self.stream, self.bytes);
                lock(&self.memory.free).entry(key).or_default().push(self.ptr);
            }
        }
    }
}
