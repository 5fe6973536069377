//! fork(): the child keeps only the thread that called it, so a lock that another thread of the parent
//! held at that moment would stay locked in the child for ever. Around every fork the library
//! therefore takes its own locks for a moment: none is held by another thread then, and what they
//! protect is whole. This covers handles, errors and values that are computed once. It does not cover
//! layers: one that another thread was running when the process forked cannot be used in the child.
//! Messages need no lock (see `verbose.rs`).
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a fork waits for the locks. Calls hold them for less than a microsecond, except while a
/// backend starts. The limit is for a signal handler that forks after it has interrupted a thread
/// inside of the library: that thread's lock cannot become free, and the fork goes on without it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Something that keeps locks until it is dropped.
pub trait Held {}
impl<T> Held for T {}

thread_local! {
    /// The locks that this thread holds while it forks.
    static HELD: RefCell<Vec<Box<dyn Held>>> = const { RefCell::new(Vec::new()) };
}

/// Held while a value of the process is computed.
static COMPUTING: Mutex<()> = Mutex::new(());

/// The value of `cell`, computed at the first call. `compute` must not come back to this function
/// for a value that does not exist yet.
pub fn once<T>(cell: &'static OnceLock<T>, compute: impl FnOnce() -> T) -> &'static T {
    if let Some(value) = cell.get() {
        return value;
    }
    let _computing = COMPUTING.lock().unwrap_or_else(PoisonError::into_inner);
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

extern "C" fn prepare() {
    // Has no environment to read, so it may as well be computed now.
    crate::backend::cpu::vectors();
    let deadline = Instant::now() + PATIENCE;
    // Fails only while the thread is ending; then the fork goes on without the locks.
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        held.push(Box::new(patiently(deadline, || COMPUTING.try_lock())));
        held.extend(crate::handle::hold(deadline));
    });
}

/// Runs in the parent and in the child.
extern "C" fn release() {
    let _ = HELD.try_with(|held| held.borrow_mut().clear());
}

extern "C" fn child() {
    release();
    crate::backend::note_fork();
}

extern "C" fn register() {
    // SAFETY: the handlers are functions of this library; they are forgotten when it is unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(release), Some(child)) };
}

/// Runs `register` when the library is loaded, before any thread can be inside of a call.
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;
