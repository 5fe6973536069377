//! Handles: numbers that C holds as pointers. A handle is an index, the generation of the slot and
//! the kind of object, so a stale, foreign or invented handle is an error, never a memory access.
//!
//! The slots of a slab are divided into stripes, each behind a lock of its own. There are enough
//! stripes that threads seldom want the same one, and so few that a fork can hold them all for a
//! moment (see `fork.rs`): a child must not inherit a lock that nobody in it will ever release.

use crate::error::{Error, Result};
use crate::fork::{self, Held};
use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};
use std::cell::RefCell;
use std::ffi::c_void;
use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

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
    NewtonSchulzContext = 0x5e,
    CommGemmContext = 0x5f,
    Policy = 0x60,
    Optimizer = 0x61,
    TokenLoader = 0x62,
    Graph = 0x63,
    Communicator = 0x64,
    Grid = 0x65,
    DataParallel = 0x66,
    Trainer = 0x67,
}

const KINDS: [Kind; 23] = [
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
    Kind::NewtonSchulzContext,
    Kind::CommGemmContext,
    Kind::Policy,
    Kind::Optimizer,
    Kind::TokenLoader,
    Kind::Graph,
    Kind::Communicator,
    Kind::Grid,
    Kind::DataParallel,
    Kind::Trainer,
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
            Kind::NewtonSchulzContext => "Newton-Schulz context",
            Kind::CommGemmContext => "distributed product context",
            Kind::Policy => "policy",
            Kind::Optimizer => "optimizer",
            Kind::TokenLoader => "token loader",
            Kind::Graph => "graph",
            Kind::Communicator => "communicator",
            Kind::Grid => "grid",
            Kind::DataParallel => "data-parallel engine",
            Kind::Trainer => "trainer",
        })
    }
}

/// Objects of one kind that can live at once.
pub const CAPACITY: usize = 1 << 26;
/// Slots that are allocated at once, and that a thread takes or returns at once.
const BATCH: usize = 64;
const STRIPES: usize = 64;
/// Number of generations of a slot. A slot that has used them all is never issued again, because
/// its next handle would equal its first one, which the program may still hold.
const GENERATIONS: u32 = 1 << 24;

struct Slot<T> {
    /// Times that the slot has been emptied.
    generation: u32,
    value: Option<T>,
}

/// A stripe holds every `STRIPES`-th batch. Batches are allocated when they are issued, and stay.
type Stripe<T> = Vec<Vec<Slot<T>>>;

/// The lock of a stripe. It is held while one object is copied or changed, so a thread that finds it
/// taken waits by yielding, and releasing it is a plain store: a lock with sleeping waiters would cost
/// every call a second locked instruction, to find out that nobody sleeps.
type Lock<T> = SpinMutex<Stripe<T>, Yield>;

/// All objects of one kind. Slots are never returned to the system, so handles may be used from any
/// thread until the process ends.
///
/// `C` is what handles point to in C: nothing, or an opaque struct that no other kind has.
pub struct Slab<T: 'static, C: 'static = c_void> {
    kind: Kind,
    stripes: [Lock<T>; STRIPES],
    free: Mutex<Free>,
    handle: PhantomData<fn() -> C>,
}

/// The slots that no thread has taken.
struct Free {
    /// Slots that were used before.
    indices: Vec<u32>,
    /// Slots issued so far, in whole batches: all before this index.
    issued: u32,
}

/// Free slots that each thread keeps for itself, by kind, so that creating and destroying takes no
/// lock that all threads want.
struct Cache([Vec<u32>; KINDS.len()]);

thread_local! {
    static CACHE: RefCell<Cache> = const { RefCell::new(Cache([const { Vec::new() }; KINDS.len()])) };
}

/// Where a handle points, if it was issued.
struct Place {
    bits: u64,
    index: u32,
    generation: u32,
}

/// Stripe, batch in the stripe and slot in the batch of an index.
#[inline]
fn position(index: u32) -> (usize, usize, usize) {
    let (batch, slot) = (index as usize / BATCH, index as usize % BATCH);
    (batch % STRIPES, batch / STRIPES, slot)
}

impl<T: 'static, C: 'static> Slab<T, C> {
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            stripes: [const { SpinMutex::new(Vec::new()) }; STRIPES],
            free: Mutex::new(Free { indices: Vec::new(), issued: 0 }),
            handle: PhantomData,
        }
    }
}

impl<T: Clone + Send + Sync + 'static, C: 'static> Slab<T, C> {
    pub fn insert(&'static self, value: T) -> Result<*mut C> {
        let index = self.take_index()?;
        let (stripe, batch, slot) = position(index);
        let mut stripe = self.stripe(stripe);
        let slot = &mut stripe[batch][slot];
        slot.value = Some(value);
        let kind = (self.kind as u64) << 56;
        let generation = u64::from(slot.generation) << 32;
        Ok((kind | generation | (u64::from(index) + 1)) as usize as *mut C)
    }

    fn take_index(&'static self) -> Result<u32> {
        self.cached(|cache| {
            if let Some(index) = cache.pop() {
                return Ok(index);
            }
            reserve(cache, 2 * BATCH + 1).ok_or_else(|| self.no_memory(8 * BATCH))?;
            lock(&SLABS)[self.position()] = Some(self);
            let mut free = lock(&self.free);
            let keep = free.indices.len().saturating_sub(BATCH);
            cache.extend(free.indices.drain(keep..));
            if let Some(index) = cache.pop() {
                return Ok(index);
            }
            let first = free.issued;
            self.allocate(first)?;
            free.issued += BATCH as u32;
            cache.extend((first + 1..free.issued).rev());
            Ok(first)
        })
    }
}

impl<T: Clone + 'static, C: 'static> Slab<T, C> {
    /// Destroys the object of a handle.
    pub fn remove(&self, argument: impl Display, handle: *mut C) -> Result<()> {
        let place = self.decode(&argument, handle)?;
        let mut stripe = self.stripe(position(place.index).0);
        let slot = self.live_slot(&argument, &mut stripe, &place)?;
        // A destructor may call back into the program, so it runs after the lock is released.
        let mut removed = None;
        if std::mem::needs_drop::<T>() {
            removed = slot.value.take();
        } else {
            slot.value = None;
        }
        slot.generation += 1;
        let reusable = slot.generation < GENERATIONS;
        drop(stripe);
        drop(removed);
        if reusable {
            self.give_index(place.index);
        }
        Ok(())
    }

    /// A copy of the object of a handle.
    #[inline]
    pub fn get(&self, argument: impl Display, handle: *const C) -> Result<T> {
        self.read(argument, handle, T::clone)
    }

    /// Applies `body` to the object of a handle. `body` must not look up handles of this kind.
    #[inline]
    pub fn read<R>(
        &self,
        argument: impl Display,
        handle: *const C,
        body: impl FnOnce(&T) -> R,
    ) -> Result<R> {
        let place = self.decode(&argument, handle)?;
        let (stripe, batch, slot) = position(place.index);
        let stripe = self.stripe(stripe);
        let slot = stripe.get(batch).map(|batch| &batch[slot]);
        let slot = slot.ok_or_else(|| self.no_handle(&argument, place.bits))?;
        match &slot.value {
            Some(value) if slot.generation == place.generation => Ok(body(value)),
            _ => Err(self.stale(&argument)),
        }
    }

    /// Changes the object of a handle. `body` must not look up handles of this kind.
    #[inline]
    pub fn write<R>(
        &self,
        argument: impl Display,
        handle: *mut C,
        body: impl FnOnce(&mut T) -> R,
    ) -> Result<R> {
        self.update(argument, handle, |value| Ok(body(value)))
    }

    /// As [`Self::write`], for a change that may fail.
    #[inline]
    pub fn update<R>(
        &self,
        argument: impl Display,
        handle: *mut C,
        body: impl FnOnce(&mut T) -> Result<R>,
    ) -> Result<R> {
        let place = self.decode(&argument, handle)?;
        let mut stripe = self.stripe(position(place.index).0);
        match &mut self.live_slot(&argument, &mut stripe, &place)?.value {
            Some(value) => body(value),
            None => Err(self.stale(&argument)),
        }
    }

    /// The slot of a handle, which holds the object of this handle.
    #[inline]
    fn live_slot<'a>(
        &self,
        argument: impl Display,
        stripe: &'a mut Stripe<T>,
        place: &Place,
    ) -> Result<&'a mut Slot<T>> {
        let (_, batch, slot) = position(place.index);
        let slot = stripe.get_mut(batch).map(|batch| &mut batch[slot]);
        let slot = slot.ok_or_else(|| self.no_handle(&argument, place.bits))?;
        match slot.value.is_some() && slot.generation == place.generation {
            true => Ok(slot),
            false => Err(self.stale(&argument)),
        }
    }

    #[cold]
    #[inline(never)]
    fn stale(&self, argument: impl Display) -> Error {
        Error::argument(argument, format!("a live {}", self.kind), "a handle already destroyed")
    }

    /// The place that a handle of this kind names. Whether its slot exists is seen when it is looked
    /// up.
    #[inline]
    fn decode(&self, argument: impl Display, handle: *const C) -> Result<Place> {
        let bits = handle as usize as u64;
        if bits >> 56 != self.kind as u64 {
            return Err(self.no_handle(&argument, bits));
        }
        let generation = (bits >> 32) as u32 % GENERATIONS;
        Ok(Place { bits, index: (bits as u32).wrapping_sub(1), generation })
    }

    #[cold]
    #[inline(never)]
    fn no_handle(&self, argument: impl Display, bits: u64) -> Error {
        let kind = KINDS.iter().find(|&&kind| kind as u64 == bits >> 56);
        // Of the names of kinds only these two begin with a vowel.
        let a = |kind: Kind| match kind {
            Kind::FusedAttnConfig | Kind::Optimizer => format!("an {kind} handle"),
            _ => format!("a {kind} handle"),
        };
        let got = match kind {
            _ if bits == 0 => "null".into(),
            Some(kind) if *kind == self.kind => format!("{bits:#x}, which was never issued"),
            Some(&kind) => a(kind),
            None => format!("{bits:#x}, which is no handle"),
        };
        Error::argument(argument, a(self.kind), got)
    }

    /// The place of its kind among all kinds.
    #[inline]
    fn position(&self) -> usize {
        self.kind as usize - KINDS[0] as usize
    }

    #[inline]
    fn stripe(&self, stripe: usize) -> SpinMutexGuard<'_, Stripe<T>> {
        self.stripes[stripe].lock()
    }

    /// Applies `body` to the free slots of this thread. While a thread is ending, its list no longer
    /// exists: then `body` gets an empty one, and what it leaves there goes to the list of all threads.
    fn cached<R>(&self, body: impl FnOnce(&mut Vec<u32>) -> R) -> R {
        let position = self.position();
        let mut body = Some(body);
        let mut apply = |cache: &mut Vec<u32>| body.take().map(|body| body(cache));
        let done = CACHE.try_with(|cache| apply(&mut cache.borrow_mut().0[position]));
        done.ok().flatten().unwrap_or_else(|| {
            let mut rest = Vec::new();
            let result = apply(&mut rest);
            lock(&self.free).add(rest.into_iter());
            result.unwrap_or_else(|| unreachable!("the body has not run yet"))
        })
    }

    /// Allocates the batch that begins with an index.
    fn allocate(&self, first: u32) -> Result<()> {
        if first as usize + BATCH > CAPACITY {
            let message = format!("out of {} handles: all {first} are in use", self.kind);
            return Err(Error::unsupported(message));
        }
        let mut batch = Vec::new();
        let bytes = BATCH * size_of::<Slot<T>>();
        reserve(&mut batch, BATCH).ok_or_else(|| self.no_memory(bytes))?;
        batch.resize_with(BATCH, || Slot { generation: 0, value: None });
        let mut stripe = self.stripe(position(first).0);
        stripe.try_reserve(1).map_err(|_| self.no_memory(bytes))?;
        stripe.push(batch);
        Ok(())
    }

    #[cold]
    fn no_memory(&self, bytes: usize) -> Error {
        Error::device(format!("out of host memory: {bytes} bytes for {} handles", self.kind))
    }

    fn give_index(&self, index: u32) {
        self.cached(|cache| {
            if reserve(cache, 2 * BATCH + 1).is_some() {
                cache.push(index);
            }
            if cache.len() > 2 * BATCH {
                lock(&self.free).add(cache.drain(..BATCH));
            }
        });
    }
}

impl Free {
    /// Takes slots that are free again. Without memory to note them, they are not used again.
    fn add(&mut self, indices: impl ExactSizeIterator<Item = u32>) {
        if self.indices.try_reserve(indices.len()).is_ok() {
            self.indices.extend(indices);
        }
    }
}

/// Makes room for `capacity` items in all; none if there is no memory for them.
fn reserve<T>(list: &mut Vec<T>, capacity: usize) -> Option<()> {
    if list.capacity() < capacity {
        list.try_reserve_exact(capacity - list.len()).ok()?;
    }
    Some(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A slab, whatever its objects are.
trait AnySlab: Sync {
    fn free(&self) -> &Mutex<Free>;
    /// Locks everything, in the order in which calls lock; gives up what it cannot have in time.
    fn hold(&'static self, deadline: Instant) -> Box<dyn Held>;
}

impl<T: Send + Sync + 'static, C: 'static> AnySlab for Slab<T, C> {
    fn free(&self) -> &Mutex<Free> {
        &self.free
    }

    fn hold(&'static self, deadline: Instant) -> Box<dyn Held> {
        let free = fork::patiently(deadline, || self.free.try_lock());
        let stripes = self.stripes.each_ref().map(|stripe| {
            fork::patiently(deadline, || stripe.try_lock().ok_or(TryLockError::WouldBlock))
        });
        Box::new((free, stripes))
    }
}

/// The slab of each kind, in the order of `KINDS`. A slab enters itself before it issues its first slots, so
/// that this file does not name the modules that have objects. Nobody who holds this lock waits for another
/// one, except for a fork, which takes this one first.
static SLABS: Mutex<[Option<&dyn AnySlab>; KINDS.len()]> = Mutex::new([None; KINDS.len()]);

/// Holds the locks of all handles until the results are dropped.
pub fn hold(deadline: Instant) -> Vec<Box<dyn Held>> {
    let slabs = fork::patiently(deadline, || SLABS.try_lock());
    let entered = slabs.iter().flat_map(|slabs| slabs.iter().flatten());
    let mut held: Vec<_> = entered.map(|slab| slab.hold(deadline)).collect();
    held.push(Box::new(slabs));
    held
}

impl Drop for Cache {
    /// A thread that ends gives its free slots back.
    fn drop(&mut self) {
        let slabs = *lock(&SLABS);
        for (slab, indices) in slabs.into_iter().zip(&mut self.0) {
            if let Some(slab) = slab {
                lock(slab.free()).add(indices.drain(..));
            }
        }
    }
}
