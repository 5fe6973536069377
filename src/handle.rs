//! Handles: numbers that C holds as pointers. A handle is an index, the generation of the slot and
//! the kind of object, so a stale, foreign or invented handle is an error, never a memory access.

use crate::error::{Error, Result};
use std::cell::RefCell;
use std::ffi::c_void;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

/// What a handle stands for. The numbers are part of the handle; 0 is no kind, so that small
/// numbers and addresses are not handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tensor = 0x51,
    GroupedTensor = 0x52,
    QuantizationConfig = 0x53,
    MatmulConfig = 0x54,
    GroupedMatmulConfig = 0x55,
    FusedAttnConfig = 0x56,
    FusedAttnFwdParams = 0x57,
    FusedAttnBwdParams = 0x58,
    Recipe = 0x59,
    Context = 0x5a,
    Module = 0x5b,
    Tape = 0x5c,
    KvCache = 0x5d,
}

const KINDS: [Kind; 13] = [
    Kind::Tensor,
    Kind::GroupedTensor,
    Kind::QuantizationConfig,
    Kind::MatmulConfig,
    Kind::GroupedMatmulConfig,
    Kind::FusedAttnConfig,
    Kind::FusedAttnFwdParams,
    Kind::FusedAttnBwdParams,
    Kind::Recipe,
    Kind::Context,
    Kind::Module,
    Kind::Tape,
    Kind::KvCache,
];

impl Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Tensor => "tensor",
            Kind::GroupedTensor => "grouped tensor",
            Kind::QuantizationConfig => "quantization config",
            Kind::MatmulConfig => "matmul config",
            Kind::GroupedMatmulConfig => "grouped matmul config",
            Kind::FusedAttnConfig => "attention config",
            Kind::FusedAttnFwdParams => "forward attention parameters",
            Kind::FusedAttnBwdParams => "backward attention parameters",
            Kind::Recipe => "recipe",
            Kind::Context => "context",
            Kind::Module => "module",
            Kind::Tape => "tape",
            Kind::KvCache => "KV cache",
        })
    }
}

/// Slots of chunk 0; each further chunk doubles the total.
const FIRST: usize = 1024;
const CHUNKS: usize = 16;
/// Objects of one kind that can live at once.
pub const CAPACITY: usize = FIRST * ((1 << CHUNKS) - 1);
const GENERATION_MASK: u64 = 0xff_ffff;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

type Chunk<T> = Box<[RwLock<Slot<T>>]>;

/// All objects of one kind. Slots never move and are never returned to the system, so handles may
/// be used from any thread until the process ends.
pub struct Slab<T: 'static> {
    kind: Kind,
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
    /// Slots handed out so far, in whole batches.
    issued: AtomicU32,
    free: Mutex<Vec<u32>>,
}

/// Free slots that a thread keeps for itself, so that creating and destroying takes no global lock.
const BATCH: usize = 64;

struct Cache([Vec<u32>; KINDS.len()]);

thread_local! {
    static CACHE: RefCell<Cache> = const { RefCell::new(Cache([const { Vec::new() }; KINDS.len()])) };
}

impl<T: Clone + 'static> Slab<T> {
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            chunks: [const { OnceLock::new() }; CHUNKS],
            issued: AtomicU32::new(0),
            free: Mutex::new(Vec::new()),
        }
    }

    pub fn insert(&self, value: T) -> Result<*mut c_void> {
        let index = self.take_index()?;
        let mut slot = self.slot(index).write().unwrap_or_else(PoisonError::into_inner);
        slot.value = Some(value);
        let kind = (self.kind as u64) << 56;
        let generation = (u64::from(slot.generation) & GENERATION_MASK) << 32;
        Ok((kind | generation | (u64::from(index) + 1)) as usize as *mut c_void)
    }

    /// Destroys the object of a handle.
    pub fn remove(&self, argument: &str, handle: *mut c_void) -> Result<()> {
        let (index, generation) = self.decode(argument, handle)?;
        let mut slot = self.slot(index).write().unwrap_or_else(PoisonError::into_inner);
        self.check_live(argument, &slot, generation)?;
        slot.value = None;
        slot.generation = slot.generation.wrapping_add(1);
        drop(slot);
        self.give_index(index);
        Ok(())
    }

    /// A copy of the object of a handle.
    pub fn get(&self, argument: &str, handle: *const c_void) -> Result<T> {
        self.read(argument, handle, T::clone)
    }

    /// Applies `body` to the object of a handle. `body` must not look up handles of this kind.
    pub fn read<R>(
        &self,
        argument: &str,
        handle: *const c_void,
        body: impl FnOnce(&T) -> R,
    ) -> Result<R> {
        let (index, generation) = self.decode(argument, handle)?;
        let slot = self.slot(index).read().unwrap_or_else(PoisonError::into_inner);
        self.check_live(argument, &slot, generation).map(body)
    }

    /// Changes the object of a handle. `body` must not look up handles of this kind.
    pub fn write<R>(
        &self,
        argument: &str,
        handle: *mut c_void,
        body: impl FnOnce(&mut T) -> R,
    ) -> Result<R> {
        let (index, generation) = self.decode(argument, handle)?;
        let mut slot = self.slot(index).write().unwrap_or_else(PoisonError::into_inner);
        self.check_live(argument, &slot, generation)?;
        match &mut slot.value {
            Some(value) => Ok(body(value)),
            None => Err(self.stale(argument)),
        }
    }

    fn check_live<'a>(&self, argument: &str, slot: &'a Slot<T>, generation: u32) -> Result<&'a T> {
        let current = (u64::from(slot.generation) & GENERATION_MASK) as u32;
        slot.value.as_ref().filter(|_| current == generation).ok_or_else(|| self.stale(argument))
    }

    fn stale(&self, argument: &str) -> Error {
        Error::argument(argument, format!("a live {}", self.kind), "a handle already destroyed")
    }

    /// Index and generation of a handle that this slab has issued at some time.
    fn decode(&self, argument: &str, handle: *const c_void) -> Result<(u32, u32)> {
        let bits = handle as usize as u64;
        let index = (bits as u32).wrapping_sub(1);
        if bits >> 56 != self.kind as u64 || index >= self.issued.load(Ordering::Acquire) {
            return Err(self.no_handle(argument, bits));
        }
        Ok((index, ((bits >> 32) & GENERATION_MASK) as u32))
    }

    #[cold]
    fn no_handle(&self, argument: &str, bits: u64) -> Error {
        let kind = KINDS.iter().find(|&&kind| kind as u64 == bits >> 56);
        let got = match kind {
            _ if bits == 0 => "null".into(),
            Some(kind) if *kind == self.kind => format!("{bits:#x}, which was never issued"),
            Some(kind) => format!("a {kind} handle"),
            None => format!("{bits:#x}, which is no handle"),
        };
        Error::argument(argument, format!("a {} handle", self.kind), got)
    }

    /// The slot of an issued index.
    fn slot(&self, index: u32) -> &RwLock<Slot<T>> {
        let position = index as usize / FIRST + 1;
        let chunk = position.ilog2() as usize;
        let first = FIRST * ((1 << chunk) - 1);
        let slots = self.chunks[chunk].get_or_init(|| {
            let empty = || RwLock::new(Slot { generation: 0, value: None });
            std::iter::repeat_with(empty).take(FIRST << chunk).collect()
        });
        &slots[index as usize - first]
    }

    /// Applies `body` to the free slots of this thread; of nobody once the thread is ending.
    fn cached<R>(&self, body: impl FnOnce(&mut Vec<u32>) -> R) -> R {
        let position = self.kind as usize - KINDS[0] as usize;
        let mut body = Some(body);
        let mut apply = |cache: &mut Vec<u32>| body.take().map(|body| body(cache));
        let done = CACHE.try_with(|cache| apply(&mut cache.borrow_mut().0[position]));
        done.ok().flatten().unwrap_or_else(|| {
            let mut rest = Vec::new();
            let result = apply(&mut rest);
            self.free_list().append(&mut rest);
            result.unwrap_or_else(|| unreachable!("the body has not run yet"))
        })
    }

    fn free_list(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_index(&self) -> Result<u32> {
        self.cached(|cache| {
            if let Some(index) = cache.pop() {
                return Ok(index);
            }
            let mut free = self.free_list();
            let keep = free.len().saturating_sub(BATCH);
            cache.extend(free.drain(keep..));
            if cache.is_empty() {
                let first = self.issued.load(Ordering::Relaxed);
                let end = first + BATCH as u32;
                if end as usize > CAPACITY {
                    let message = format!("out of {} handles: {first} are live", self.kind);
                    return Err(Error::unsupported(message));
                }
                cache.extend((first..end).rev());
                self.issued.store(end, Ordering::Release);
            }
            Ok(cache.pop().unwrap_or_default())
        })
    }

    fn give_index(&self, index: u32) {
        self.cached(|cache| {
            cache.push(index);
            if cache.len() > 2 * BATCH {
                self.free_list().extend(cache.drain(..BATCH));
            }
        });
    }
}

impl Drop for Cache {
    /// A thread that ends gives its free slots back.
    fn drop(&mut self) {
        for (kind, indices) in KINDS.iter().zip(&mut self.0) {
            let free = match kind {
                Kind::Tensor => &crate::tensor::TENSORS.free,
                Kind::GroupedTensor => &crate::tensor::GROUPED.free,
                Kind::QuantizationConfig => &crate::op::transformer_engine::CONFIGS.free,
                Kind::MatmulConfig => &crate::op::gemm::CONFIGS.free,
                Kind::GroupedMatmulConfig => &crate::op::gemm::GROUPED_CONFIGS.free,
                Kind::FusedAttnConfig => &crate::op::fused_attn::CONFIGS.slab.free,
                Kind::FusedAttnFwdParams => &crate::op::fused_attn::FWD.slab.free,
                Kind::FusedAttnBwdParams => &crate::op::fused_attn::BWD.slab.free,
                Kind::Recipe => &crate::op::module::RECIPES.free,
                Kind::Context => &crate::op::module::CONTEXTS.free,
                Kind::Module => &crate::op::module::MODULES.free,
                Kind::Tape => &crate::op::module::TAPES.free,
                Kind::KvCache => &crate::op::module::KV_CACHES.free,
            };
            free.lock().unwrap_or_else(PoisonError::into_inner).append(indices);
        }
    }
}
