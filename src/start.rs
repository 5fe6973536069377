//! What happens when the library is loaded, before any thread can be inside of a call: the CPU backend enters its
//! table, and the handlers of fork() are registered (see `fork.rs`).
#![allow(unsafe_code)]

use crate::fork::Held;
use crate::{backend, cpu_table, fork, handle, op, parallel, tensor};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// How long a fork waits for the locks. Calls hold them for less than a microsecond, except while a
/// backend starts or plugins are loaded. The limit is for a signal handler that forks after it has interrupted a thread
/// inside of the library: that thread's lock cannot become free, and the fork goes on without it.
const PATIENCE: Duration = Duration::from_secs(5);

thread_local! {
    /// The locks that this thread holds while it forks.
    static HELD: RefCell<Vec<Box<dyn Held>>> = const { RefCell::new(Vec::new()) };
}

extern "C" fn prepare() {
    // A value that the process computes once without the lock of such values.
    backend::cpu::vectors();
    let deadline = Instant::now() + PATIENCE;
    // Fails only while the thread is ending; then the fork goes on without the locks.
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        held.push(backend::plugin::hold_loading(deadline));
        held.push(fork::hold(deadline));
        held.push(tensor::hold(deadline));
        held.push(op::ep::hold(deadline));
        held.push(parallel::hold(deadline));
        held.extend(handle::hold(deadline));
        held.extend(backend::hold(deadline));
        held.push(backend::plugin::hold(deadline));
    });
}

/// Runs in the parent and in the child.
extern "C" fn release() {
    let _ = HELD.try_with(|held| held.borrow_mut().clear());
}

extern "C" fn child() {
    release();
    backend::note_fork();
    backend::plugin::note_fork();
    parallel::note_fork();
}

extern "C" fn start() {
    backend::set_cpu_table(&cpu_table::TABLE);
    backend::registry::set_discover(backend::plugin::discover);
    // SAFETY: the handlers are functions of this library; they are forgotten when it is unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(release), Some(child)) };
}

/// Makes the loader run `start`.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
