//! Device memory of contexts: blocks that return to where they came from, in the order of a stream.
#![allow(unsafe_code)]

use super::callback;
use crate::backend::{self, domain::Domain};
use crate::error::{Error, Result};
use crate::op::nvtex;
use crate::tensor::{Buffer, bytes};
use crate::types::{NVTEDType, cudaStream_t};
use crate::verbose::{self, Level};
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a block is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until the call returns.
    Scratch = 0,
    /// Until a tape is destroyed.
    Tape = 1,
    /// Until a module or a context is destroyed.
    Persistent = 2,
}

/// `count` copies of a value on the host. An error where there is no memory for them.
pub fn host_vec<T: Copy>(value: T, count: usize) -> Result<Vec<T>> {
    let mut values = host_room(count)?;
    values.resize(count, value);
    Ok(values)
}

/// An empty vector with room for `count` values.
pub fn host_room<T>(count: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    reserve(&mut values, count)?;
    Ok(values)
}

/// The values of an iterator that knows how many there are at most. An error where there is no memory for them.
pub fn host_list<T>(values: impl Iterator<Item = T>) -> Result<Vec<T>> {
    let (least, most) = values.size_hint();
    let mut list = host_room(most.unwrap_or(least))?;
    list.extend(values);
    Ok(list)
}

/// Puts a value behind those of a vector.
pub fn push<T>(values: &mut Vec<T>, value: T) -> Result<()> {
    if values.len() == values.capacity() {
        reserve(values, values.len().max(4))?;
    }
    values.push(value);
    Ok(())
}

/// Makes room for `more` values behind those of a vector.
pub fn reserve<T>(values: &mut Vec<T>, more: usize) -> Result<()> {
    values.try_reserve_exact(more).map_err(|_| {
        let bytes = (values.len() as u128 + more as u128) * size_of::<T>() as u128;
        Error::device(format!("out of host memory: {bytes} bytes asked for"))
    })
}

/// Arrays one behind the other in a block. Both the places of the arrays and the size of the block follow
/// from the same calls, so that they cannot disagree.
#[derive(Default)]
pub struct Layout {
    bytes: usize,
}

/// The place of an array in a block.
#[derive(Clone, Copy)]
pub struct Place {
    at: usize,
    dtype: NVTEDType,
    count: usize,
}

impl Layout {
    /// `count` elements from the next multiple of `alignment` bytes on.
    pub fn array(&mut self, dtype: NVTEDType, count: usize, alignment: usize) -> Place {
        let at = self.bytes.next_multiple_of(alignment);
        self.bytes = at + bytes(count, dtype);
        Place { at, dtype, count }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Bytes, alignment, lifetime, stream.
pub type Allocate =
    dyn Fn(usize, usize, Lifetime, cudaStream_t) -> Result<*mut c_void> + Send + Sync;
/// Address, bytes, lifetime, stream.
pub type Release = dyn Fn(*mut c_void, usize, Lifetime, cudaStream_t) -> Result<()> + Send + Sync;

/// The caller's allocator.
pub struct Callbacks {
    pub allocate: Box<Allocate>,
    pub release: Box<Release>,
}

/// A block of the pool that nobody uses.
struct Unused {
    ptr: usize,
    /// The number of releases of the pool when the block came back.
    since: u64,
    lifetime: Lifetime,
}

/// Blocks that a context has had from the device.
#[derive(Default)]
struct Pool {
    /// Unused blocks by stream and size.
    unused: HashMap<(usize, usize), Vec<Unused>>,
    unused_bytes: usize,
    /// Bytes in use but for those of persistent blocks, now and at most.
    used_bytes: usize,
    most_used_bytes: usize,
    /// Blocks that captured work uses, which a graph may repeat at any time: they stay.
    captured: HashSet<usize>,
    releases: u64,
}

/// Where blocks come from: the caller's allocator, or a pool that keeps what it has had from the device.
/// A block of a stream is handed out again to calls on that stream alone, which run after the work that
/// used it; so nothing has to wait, and after the first step nothing is allocated any more.
pub struct Memory {
    callbacks: Option<Callbacks>,
    /// Bytes that the pool may keep unused when it asks the device for more; without a number see
    /// [`Pool::allowance`].
    max_unused: Option<usize>,
    /// The domain of the first block. All blocks come from it, because addresses of one domain mean nothing to
    /// another.
    domain: OnceLock<&'static Domain>,
    pool: Mutex<Pool>,
    usage: Mutex<Usage>,
}

/// Bytes that are handed out, by [`Lifetime`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub now: [usize; 3],
    /// The most of each lifetime, and of all together.
    pub most: [usize; 3],
    pub most_at_once: usize,
}

impl Usage {
    fn add(&mut self, lifetime: Lifetime, bytes: usize) {
        let at = lifetime as usize;
        self.now[at] += bytes;
        self.most[at] = self.most[at].max(self.now[at]);
        self.most_at_once = self.most_at_once.max(self.now.iter().sum());
    }
}

/// What addresses of blocks are multiples of.
const ALIGNMENT: usize = 256;

impl Pool {
    /// The bound where the program gives none: a few times what is used at once, as modules of several
    /// shapes that run in turns need it.
    fn allowance(&self) -> usize {
        self.most_used_bytes.saturating_mul(4).max(4 << 20)
    }

    /// Gives unused blocks back to the device until `keep` bytes of them are left, those that have waited
    /// longest first. Persistent ones come from modules that are gone, which a graph may still refer to:
    /// they go only if the program asks for it.
    fn shrink(&mut self, domain: &Domain, keep: usize, persistent: bool) -> Result<usize> {
        if self.unused_bytes <= keep {
            return Ok(0);
        }
        let mut candidates = Vec::new();
        for (&key, blocks) in &self.unused {
            for block in blocks {
                let wanted = persistent || block.lifetime != Lifetime::Persistent;
                if wanted && !self.captured.contains(&block.ptr) {
                    candidates.push((block.since, key, block.ptr));
                }
            }
        }
        candidates.sort_unstable();
        let before = self.unused_bytes;
        for (_, key, ptr) in candidates {
            if self.unused_bytes <= keep {
                break;
            }
            // SAFETY: the pool owns the block, and nobody holds it any more. The device waits for the work
            // that still uses it.
            unsafe { domain.free(ptr as *mut c_void) }?;
            self.unused_bytes -= key.1;
            if let Some(blocks) = self.unused.get_mut(&key) {
                blocks.retain(|block| block.ptr != ptr);
                if blocks.is_empty() {
                    self.unused.remove(&key);
                }
            }
        }
        Ok(before - self.unused_bytes)
    }
}

impl Memory {
    pub fn new(callbacks: Option<Callbacks>, max_unused: Option<usize>) -> Arc<Self> {
        let (pool, usage) = (Mutex::default(), Mutex::default());
        Arc::new(Self { callbacks, max_unused, domain: OnceLock::new(), pool, usage })
    }

    /// A number that identifies this memory. It tells on whose behalf a function of the program is
    /// called.
    pub fn id(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// `capturing`: the stream is being captured into a graph.
    pub fn block(
        self: &Arc<Self>,
        bytes: usize,
        lifetime: Lifetime,
        (stream, capturing): (cudaStream_t, bool),
    ) -> Result<Block> {
        let memory = Arc::clone(self);
        let mut block = Block { memory, ptr: 0, bytes, lifetime, stream: stream as usize };
        if bytes == 0 {
            return Ok(block);
        }
        block.ptr = match &self.callbacks {
            Some(own) => {
                let allocate = || (own.allocate)(bytes, ALIGNMENT, lifetime, stream);
                let ptr = callback::within(self.id(), allocate)?;
                if ptr.is_null() || !(ptr as usize).is_multiple_of(ALIGNMENT) {
                    let what = format!("{bytes} bytes aligned to {ALIGNMENT}");
                    let message = format!("allocator.allocate: expected {what}, got {ptr:p}");
                    return Err(Error::device(message));
                }
                ptr as usize
            }
            None => {
                block.bytes = Self::class(bytes);
                self.take(block.stream, block.bytes, lifetime, capturing)?
            }
        };
        lock(&self.usage).add(lifetime, block.bytes);
        Ok(block)
    }

    /// What is handed out, and the bytes that wait to be handed out again.
    pub fn usage(&self) -> (Usage, usize) {
        (*lock(&self.usage), lock(&self.pool).unused_bytes)
    }

    /// The domain of all blocks; an error if the thread's calls are in another one.
    fn domain(&self) -> Result<&'static Domain> {
        let current = backend::domain()?;
        let own = *self.domain.get_or_init(|| current);
        match std::ptr::eq(own, current) {
            true => Ok(own),
            false => Err(Error::unsupported(format!(
                "a context serves one domain: expected calls in {own}, got one in {current} (the policy of the thread)"
            ))),
        }
    }

    /// Sizes are rounded up, so that blocks of nearly the same size stand in for each other.
    fn class(bytes: usize) -> usize {
        let step = if bytes < 1 << 20 { 512 } else { 1 << 20 };
        bytes.checked_next_multiple_of(step).unwrap_or(bytes)
    }

    fn take(
        &self,
        stream: usize,
        bytes: usize,
        lifetime: Lifetime,
        capturing: bool,
    ) -> Result<usize> {
        let domain = self.domain()?;
        let mut pool = lock(&self.pool);
        let kept = pool.unused.get_mut(&(stream, bytes)).and_then(Vec::pop);
        let ptr = match kept {
            Some(block) => {
                pool.unused_bytes -= bytes;
                block.ptr
            }
            None => {
                // The device would refuse to free memory while it captures.
                if !capturing {
                    let keep = self.max_unused.unwrap_or_else(|| pool.allowance());
                    // Memory that the device does not take back stays in the pool, and is no reason to
                    // fail.
                    let _ = pool.shrink(domain, keep, false);
                }
                let got = nvtex::malloc(bytes);
                let explain = |e: Error| {
                    let message = format!("a block of {bytes} bytes: {}", e.message);
                    Error { message, ..e }
                };
                got.map_err(explain)? as usize
            }
        };
        if lifetime != Lifetime::Persistent {
            pool.used_bytes += bytes;
            pool.most_used_bytes = pool.most_used_bytes.max(pool.used_bytes);
        }
        if capturing {
            pool.captured.insert(ptr);
        }
        Ok(ptr)
    }

    fn give(&self, block: &Block) {
        let mut pool = lock(&self.pool);
        if block.lifetime != Lifetime::Persistent {
            pool.used_bytes -= block.bytes;
        }
        pool.unused_bytes += block.bytes;
        pool.releases += 1;
        let unused = Unused { ptr: block.ptr, since: pool.releases, lifetime: block.lifetime };
        pool.unused.entry((block.stream, block.bytes)).or_default().push(unused);
    }

    /// Gives unused memory back to the device until `keep` bytes of it are left, and returns how much that
    /// was. What captured graphs use stays.
    pub fn trim(&self, keep: usize) -> Result<usize> {
        match self.domain.get() {
            Some(domain) => lock(&self.pool).shrink(domain, keep, true),
            None => Ok(0),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(domain) = self.domain.get() else { return };
        for block in lock(&self.pool).unused.values().flatten() {
            // SAFETY: the pool owns the block, and nobody holds it any more. An error at the end of
            // the process leaves the memory to the driver.
            let _ = unsafe { domain.free(block.ptr as *mut c_void) };
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

    /// An array of the layout that the block was made for, or its first elements.
    pub fn array(&self, place: Place, dims: &[usize]) -> Buffer {
        let count: usize = dims.iter().product();
        assert!(count <= place.count, "{count} elements of an array of {}", place.count);
        self.buffer(place.at, place.dtype, dims)
    }

    /// Says that captured work uses the block, which has been handed out before.
    pub fn keep_for_graph(&self) {
        lock(&self.memory.pool).captured.insert(self.ptr);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.ptr == 0 {
            return;
        }
        lock(&self.memory.usage).now[self.lifetime as usize] -= self.bytes;
        let Some(own) = &self.memory.callbacks else {
            return self.memory.give(self);
        };
        let stream = self.stream as cudaStream_t;
        let release = || (own.release)(self.ptr(), self.bytes, self.lifetime, stream);
        // The block counts as released, whatever the function says.
        if let Err(error) = callback::within(self.memory.id(), release) {
            verbose::line(Level::Error, "callback", || error.message);
        }
    }
}
