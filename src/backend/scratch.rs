//! Memory that implementations of plugins ask for, beside the workspace of the arguments: a block for each device
//! and stream, and on the host for each thread. Work on a stream is done in order, so that calls on it can share a
//! block. A block that is too small is replaced by a larger one; blocks of devices are never freed, because queued
//! and captured work may use them at any time.
#![allow(unsafe_code)]

use super::domain::Domain;
use super::memory;
use crate::error::Result;
use crate::fork::{self, Held};
use crate::types::cudaStream_t;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Domain, device and stream.
type Key = (usize, i32, usize);

/// Address and bytes.
#[derive(Clone, Copy)]
pub struct Block {
    ptr: usize,
    bytes: usize,
}

/// The unused blocks of devices.
static BLOCKS: Mutex<BTreeMap<Key, Vec<Block>>> = Mutex::new(BTreeMap::new());

/// A line of a cache, of which blocks of the host are multiples.
#[derive(Clone, Copy, Default)]
#[repr(align(256))]
pub struct Line {
    _bytes: [u64; 32],
}

thread_local! {
    /// The unused blocks of this thread on the host.
    static HOST: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Keeps other threads from taking blocks until the result is dropped.
pub fn hold(deadline: Instant) -> Box<dyn Held> {
    Box::new(fork::patiently(deadline, || BLOCKS.try_lock()))
}

/// Called in the child of a fork, where blocks of devices mean nothing.
pub fn note_fork() {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Bytes behind a block that tell whether more was written than was asked for.
pub const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xA5;

/// A block until it is dropped. A call inside of the call that has it gets another one.
pub enum Scratch {
    Host(Vec<Line>),
    Device(Key, Block),
}

impl Scratch {
    pub fn ptr(&self) -> *mut c_void {
        match self {
            Self::Host(lines) => lines.as_ptr().cast_mut().cast(),
            Self::Device(_, block) => block.ptr as *mut c_void,
        }
    }

    /// Fills a block of the host that was taken with a guard. What is in the block before its guard is NaN in every
    /// float, because a plugin must not rely on what it finds there.
    pub fn fill(&self, bytes: usize) {
        let ptr = self.ptr().cast::<u8>();
        // SAFETY: the block has so many bytes and a guard, and only its owner uses it.
        unsafe {
            ptr.write_bytes(0xFF, bytes);
            ptr.add(bytes).write_bytes(GUARD_BYTE, GUARD);
        }
    }

    /// Whether the guard of a block that was filled is no longer whole.
    pub fn is_overrun(&self, bytes: usize) -> bool {
        // SAFETY: as above; `fill` has written the bytes.
        let guard = unsafe {
            std::slice::from_raw_parts(self.ptr().cast::<u8>().cast_const().add(bytes), GUARD)
        };
        guard.iter().any(|byte| *byte != GUARD_BYTE)
    }
}

/// A block of at least as many bytes, for a domain, device and stream.
pub fn take(
    (domain, device, stream): (&'static Domain, i32, cudaStream_t),
    bytes: usize,
) -> Result<Scratch> {
    if domain.is_host() {
        let lines = bytes.div_ceil(size_of::<Line>());
        let unused = HOST.try_with(|blocks| blocks.borrow_mut().pop()).ok().flatten();
        let mut block = unused.unwrap_or_default();
        if block.len() < lines {
            block = memory::reserve("scratch memory", lines)?;
            block.resize(lines, Line::default());
        }
        return Ok(Scratch::Host(block));
    }
    let key = (std::ptr::from_ref(domain) as usize, device, stream as usize);
    let unused = BLOCKS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_mut(&key)
        .and_then(|blocks| blocks.pop_if(|block| block.bytes >= bytes));
    match unused {
        Some(block) => Ok(Scratch::Device(key, block)),
        None => {
            // Sizes double, so that what is left behind is less than what is used.
            let bytes = bytes.checked_next_power_of_two().unwrap_or(bytes);
            let ptr = domain.malloc(bytes)? as usize;
            Ok(Scratch::Device(key, Block { ptr, bytes }))
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        match self {
            Self::Host(lines) => {
                let lines = std::mem::take(lines);
                let _ = HOST.try_with(|blocks| blocks.borrow_mut().push(lines));
            }
            Self::Device(key, block) => {
                let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
                let blocks = blocks.entry(*key).or_default();
                // The largest is the last, which is taken first.
                blocks.push(*block);
                blocks.sort_unstable_by_key(|block| block.bytes);
            }
        }
    }
}
