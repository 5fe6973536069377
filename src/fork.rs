//! fork(): the child keeps only the thread that called it, so a lock that another thread of the parent
//! held at that moment would stay locked in the child for ever. Around every fork the library
//! therefore takes its own locks for a moment: none is held by another thread then, and what they
//! protect is whole. This covers handles, errors, groups of expert parallelism, and values that are
//! computed once. It does not cover layers and contexts: one that another thread was using when the process
//! forked cannot be used in the child.
//! Messages need no lock (see `stderr.rs`). The handlers, which know all locks, are in `start.rs`.

use std::cell::Cell;
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};
use std::time::Instant;

/// Something that keeps locks until it is dropped.
pub trait Held {}
impl<T> Held for T {}

/// Held while a value of the process is computed.
static COMPUTING: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread holds [`COMPUTING`].
    static COMPUTES: Cell<bool> = const { Cell::new(false) };
}

/// Says that the thread computes, until it is dropped.
struct Computes;

impl Computes {
    fn begin() -> Self {
        COMPUTES.set(true);
        Self
    }
}

impl Drop for Computes {
    fn drop(&mut self) {
        COMPUTES.set(false);
    }
}

/// The value of `cell`, computed at the first call. `compute` may ask for other values, but not for this one.
pub fn once<T>(cell: &'static OnceLock<T>, compute: impl FnOnce() -> T) -> &'static T {
    if let Some(value) = cell.get() {
        return value;
    }
    if COMPUTES.get() {
        return cell.get_or_init(compute);
    }
    let _computing = COMPUTING.lock().unwrap_or_else(PoisonError::into_inner);
    let _computes = Computes::begin();
    cell.get_or_init(compute)
}

/// Tries to lock until the deadline has passed.
pub fn patiently<G>(
    deadline: Instant,
    attempt: impl Fn() -> Result<G, TryLockError<G>>,
) -> Option<G> {
    loop {
        match attempt() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

/// Keeps other threads from computing values until the result is dropped.
pub fn hold(deadline: Instant) -> Box<dyn Held> {
    Box::new(patiently(deadline, || COMPUTING.try_lock()))
}
