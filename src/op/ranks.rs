//! Contexts of operators on tensors that lie distributed over the ranks of a communicator, of which there may be one:
//! its ranks, and the memory that the operators need beside their tensors.
#![allow(unsafe_code)]

use super::nvtex;
use crate::backend;
use crate::error::{Error, Result};
use crate::handle::Slab;
use crate::parallel::{Communicator, exports};
use crate::types::{cudaStream_t, ncclComm_t};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// The communicator of several ranks; none for one rank, where `comm` is not looked at. The numbers come with the names
/// of their arguments.
pub fn several(
    (comm_name, comm): (&str, ncclComm_t),
    (ranks_name, ranks): (&str, i32),
    rank: Option<i32>,
) -> Result<Option<Arc<Communicator>>> {
    if ranks < 1 {
        return Err(Error::argument(ranks_name, "1 or more", ranks));
    }
    if let Some(rank) = rank.filter(|rank| !(0..ranks).contains(rank)) {
        return Err(Error::argument("rank", format!("0 to {}", ranks - 1), rank));
    }
    if ranks == 1 {
        return Ok(None);
    }
    let communicator = exports::of_nccl(comm_name, comm)?;
    if communicator.size() != ranks as usize {
        let expected = format!("{} (the size of {comm_name})", communicator.size());
        return Err(Error::argument(ranks_name, expected, ranks));
    }
    if let Some(rank) = rank.filter(|&rank| communicator.rank() != rank as usize) {
        let expected = format!("{} (the rank of {comm_name})", communicator.rank());
        return Err(Error::argument("rank", expected, rank));
    }
    Ok(Some(communicator))
}

/// A piece of device memory, for the calls on one stream of one device.
struct Block {
    device: c_int,
    stream: usize,
    ptr: usize,
    bytes: usize,
    /// A graph may use it at any time.
    captured: bool,
}

/// The memory of a context: calls on a stream use the same block one after the other, and those on other
/// streams another one, so that nothing waits.
#[derive(Default)]
pub struct Context {
    /// The ranks, if there are several.
    pub ranks: Option<Arc<Communicator>>,
    blocks: Mutex<Vec<Block>>,
}

/// The contexts of one kind.
pub type Contexts = Slab<Arc<Context>>;

impl Context {
    pub fn new(ranks: Option<Arc<Communicator>>) -> Arc<Self> {
        Arc::new(Self { ranks, blocks: Mutex::default() })
    }

    /// How much of a dimension this rank has: of P ranks each has `ceil(size / P)` of it while there is something left.
    pub fn share(&self, size: i64) -> i64 {
        let (rank, ranks) =
            self.ranks.as_ref().map_or((0, 1), |r| (r.rank() as i64, r.size() as i64));
        let most = size.max(0).div_euclid(ranks) + i64::from(size.max(0) % ranks > 0);
        (size - rank.saturating_mul(most)).clamp(0, most)
    }

    /// Calls `body` with `bytes` bytes, aligned to 256, for work on the stream; null for none. The memory of
    /// a stream grows when a call needs more than all before, and is never cleared. Until `body` returns, no
    /// other thread can put work that uses the context between its own.
    pub fn with_memory<R>(
        &self,
        bytes: usize,
        stream: cudaStream_t,
        body: impl FnOnce(*mut c_void) -> Result<R>,
    ) -> Result<R> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes == 0 {
            return body(std::ptr::null_mut());
        }
        let device = backend::device_properties()?.device;
        let capturing = nvtex::stream_is_capturing(stream);
        let of_stream =
            |block: &&mut Block| (block.device, block.stream) == (device, stream as usize);
        let ptr = match blocks.iter_mut().filter(of_stream).find(|block| block.bytes >= bytes) {
            Some(block) => {
                block.captured |= capturing;
                block.ptr
            }
            None => {
                let ptr = nvtex::malloc(bytes)? as usize;
                let stream = stream as usize;
                // The smaller block goes, unless a graph refers to it. (A device frees nothing while it captures.)
                if !capturing {
                    blocks.retain(|block| {
                        let keep =
                            (block.device, block.stream) != (device, stream) || block.captured;
                        keep || block.free().is_err()
                    });
                }
                blocks.push(Block { device, stream, ptr, bytes, captured: capturing });
                ptr
            }
        };
        body(ptr as *mut c_void)
    }
}

impl Block {
    /// The device waits for the work that uses the block.
    fn free(&self) -> Result<()> {
        // SAFETY: the context owns the block and forgets it.
        unsafe { nvtex::free(self.ptr as *mut c_void) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let blocks = self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner);
        // An error at the end of the process leaves the memory to the driver.
        blocks.iter().for_each(|block| _ = block.free());
    }
}

/// Destroys a context; null is ignored.
pub fn destroy(contexts: &'static Contexts, context: *mut c_void) -> Result<()> {
    if context.is_null() { Ok(()) } else { contexts.remove("ctx", context) }
}
