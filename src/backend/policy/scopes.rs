//! What calls of a thread look at beside the policy of the process: the policies on the thread's stack, and whether
//! anybody counts, prints, traces or checks.

use super::{Policy, current};
use crate::backend::trace;
use crate::env::env;
use crate::error::{Error, Result};
use crate::verbose::{self, Level};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// What calls have to look at beside the lists of the process; 0 for most processes, which a call tells by one
/// load.
static EXTRAS: AtomicU32 = AtomicU32::new(Extra::Start as u32);

#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Extra {
    /// The variables have not been looked at.
    Start = 1,
    /// Some thread has had a policy of its own, or asked for explanations.
    Threads = 2,
    /// Counters are on.
    Counters = 4,
    /// A line is printed for each operator, or its stream is waited for.
    Env = 8,
    /// Operators are written to a trace.
    Trace = 16,
    /// What plugins promise is checked.
    Check = 32,
}

/// Whether a call has to look at anything beside the lists of the process.
#[inline]
pub fn no_extras() -> bool {
    EXTRAS.load(Ordering::Relaxed) == 0
}

#[inline]
pub fn has_extra(extra: Extra) -> bool {
    EXTRAS.load(Ordering::Relaxed) & extra as u32 != 0
}

pub fn set_extra(extra: Extra, on: bool) {
    match on {
        true => EXTRAS.fetch_or(extra as u32, Ordering::Relaxed),
        false => EXTRAS.fetch_and(!(extra as u32), Ordering::Relaxed),
    };
}

/// Looks again at the level of lines, which a program may change, and at the variables.
pub fn refresh_extras() {
    set_extra(Extra::Env, verbose::enabled(Level::Exec) || env().sync);
    set_extra(Extra::Trace, trace::is_wanted());
}

/// Policies that a thread can have on its stack.
const MOST_SCOPES: usize = 32;

/// The policies of a thread. It has no destructor, so that it exists as long as the thread.
struct Scopes {
    depth: Cell<usize>,
    /// Scopes below belong to the caller of a plugin's function.
    floor: Cell<usize>,
    stack: [Cell<Option<&'static Policy>>; MOST_SCOPES],
}

thread_local! {
    static SCOPES: Scopes = const {
        Scopes { depth: Cell::new(0), floor: Cell::new(0), stack: [const { Cell::new(None) }; MOST_SCOPES] }
    };
}

/// The policy of the calling thread alone.
pub(super) fn of_thread() -> Option<&'static Policy> {
    if !has_extra(Extra::Threads) {
        return None;
    }
    SCOPES.with(|scopes| scopes.depth.get().checked_sub(1).and_then(|top| scopes.stack[top].get()))
}

pub fn push(policy: &'static Policy) -> Result<()> {
    set_extra(Extra::Threads, true);
    SCOPES.with(|scopes| {
        let depth = scopes.depth.get();
        let Some(place) = scopes.stack.get(depth) else {
            return Err(Error::unsupported(format!(
                "a thread has at most {MOST_SCOPES} policies on its stack: a scope was opened and never closed"
            )));
        };
        place.set(Some(policy));
        scopes.depth.set(depth + 1);
        Ok(())
    })
}

pub fn pop() -> Result<()> {
    SCOPES.with(|scopes| {
        let (depth, floor) = (scopes.depth.get(), scopes.floor.get());
        if depth > floor {
            scopes.depth.set(depth - 1);
            return Ok(());
        }
        Err(Error::unsupported(match floor {
            0 => "this thread has no policy on its stack",
            _ => "a plugin's function cannot close scopes that its caller has opened",
        }))
    })
}

/// A policy on the thread's stack until this is dropped.
pub struct Scoped {
    pushed: bool,
}

/// Runs what follows under a policy, if it is not the current one.
pub fn scoped(policy: &'static Policy) -> Result<Scoped> {
    let pushed = !std::ptr::eq(current()?, policy);
    if pushed {
        push(policy)?;
    }
    Ok(Scoped { pushed })
}

impl Drop for Scoped {
    fn drop(&mut self) {
        if self.pushed {
            let _ = pop();
        }
    }
}

/// Closes, when it is dropped, scopes that a plugin's function has left open.
pub struct Floor {
    depth: usize,
    floor: usize,
}

/// Keeps a plugin's function from closing scopes of its caller.
pub fn floor() -> Floor {
    if !has_extra(Extra::Threads) {
        return Floor { depth: 0, floor: 0 };
    }
    SCOPES.with(|scopes| {
        let depth = scopes.depth.get();
        Floor { depth, floor: scopes.floor.replace(depth) }
    })
}

impl Drop for Floor {
    fn drop(&mut self) {
        if has_extra(Extra::Threads) {
            SCOPES.with(|scopes| {
                scopes.depth.set(self.depth);
                scopes.floor.set(self.floor);
            });
        }
    }
}
