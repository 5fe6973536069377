//! Errors, and the guard at the C boundary that turns them and panics into the caller's error mode.
#![allow(unsafe_code, non_camel_case_types)]

use crate::env::{drop_in, env};
use crate::stderr;
use crate::verbose::{self, Level};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::LocalKey;

pub use crate::env::Mode;

/// Kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An argument is wrong; the message names it.
    Argument = 1,
    /// Valid, but not available in this build or on this device.
    Unsupported = 2,
    /// The device, its driver or one of its libraries failed.
    Device = 3,
    /// A defect of this library.
    Internal = 4,
}

#[derive(Debug)]
pub struct Error {
    pub kind: Kind,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A wrong argument: `name` as the caller knows it, such as `output.scale_inv`. Never inlined, so that
    /// the making of a message takes no room in functions that have arguments to check.
    #[cold]
    #[inline(never)]
    pub fn argument(name: impl Display, expected: impl Display, got: impl Display) -> Self {
        Self { kind: Kind::Argument, message: format!("{name}: expected {expected}, got {got}") }
    }

    /// A wrong argument, of which the message says all.
    pub fn wrong_argument(message: impl Into<String>) -> Self {
        Self { kind: Kind::Argument, message: message.into() }
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Self { kind: Kind::Unsupported, message: message.into() }
    }

    pub fn device(message: impl Into<String>) -> Self {
        Self { kind: Kind::Device, message: message.into() }
    }
}

/// The messages of a thread's failing calls.
#[derive(Default)]
struct Messages {
    /// The message of the call whose status is kept.
    first: Option<CString>,
    newest: Option<CString>,
}

/// Most plugins that a thread is inside of, each called by an operator that the one before has called. Each has
/// errors of its own, so that what fails there and is dealt with leaves no trace for the caller.
pub const MOST_NESTED: usize = 8;

/// What is known of a thread's failing calls, and of the plugins that it is inside of. They are together because a
/// variable of a thread takes as long to find as the rest of a short call of a plugin.
pub struct State {
    /// Kind of the first failure since it was cleared; 0 if there was none.
    status: Cell<i32>,
    /// Failing calls so far.
    count: Cell<u64>,
    /// What `count` was with the failure that `status` keeps.
    first: Cell<u64>,
    /// How many of `inside` are used.
    nested: Cell<usize>,
    /// Addresses that stand for what the thread is inside of.
    inside: [Cell<*const c_void>; MOST_NESTED],
}

thread_local! {
    static STATE: State = const {
        State {
            status: Cell::new(0),
            count: Cell::new(0),
            first: Cell::new(0),
            nested: Cell::new(0),
            inside: [const { Cell::new(std::ptr::null()) }; MOST_NESTED],
        }
    };
    /// The state above has no destructor and always exists; this one is gone when calls come from
    /// destructors of an ending thread.
    static MESSAGES: RefCell<[Messages; MOST_NESTED + 1]> = const {
        RefCell::new([const { Messages { first: None, newest: None } }; MOST_NESTED + 1])
    };
}

/// The errors of the caller of a plugin, while the plugin runs.
pub struct Nested<'a> {
    state: &'a State,
    status: i32,
    count: u64,
    first: u64,
}

impl State {
    /// Calls `body` with the state of this thread.
    #[inline]
    pub fn of_thread<R>(body: impl FnOnce(&Self) -> R) -> R {
        STATE.with(body)
    }

    /// Whether the thread is inside of what the address stands for.
    #[inline]
    pub fn is_inside(&self, what: *const c_void) -> bool {
        self.nested.get() > 0 && self.is_among(what)
    }

    #[cold]
    fn is_among(&self, what: *const c_void) -> bool {
        self.inside.iter().take(self.nested.get()).any(|inside| inside.get() == what)
    }

    /// Gives a plugin a state without errors until the result is dropped. Calls that fail in it return. None if the
    /// thread is inside of too many.
    #[inline]
    pub fn enter(&self, what: *const c_void) -> Option<Nested<'_>> {
        let nested = self.nested.get();
        self.inside.get(nested)?.set(what);
        self.nested.set(nested + 1);
        let (count, first) = (self.count.get(), self.first.get());
        Some(Nested { state: self, status: self.status.replace(0), count, first })
    }
}

impl Drop for Nested<'_> {
    /// Brings back what was there before.
    #[inline]
    fn drop(&mut self) {
        let state = self.state;
        if state.count.get() != self.count {
            with_messages(|messages| *messages = Messages::default());
            state.count.set(self.count);
            state.first.set(self.first);
        }
        state.nested.set(state.nested.get() - 1);
        state.status.set(self.status);
    }
}

/// Plugins that the thread is inside of.
fn nested() -> usize {
    STATE.with(|state| state.nested.get())
}

/// Stands for a message while the thread is ending.
const NO_MESSAGE: &CStr = c"a call failed while its thread was ending, where messages are not kept";

pub fn status() -> i32 {
    STATE.with(|state| state.status.get())
}

/// Message of the failure that the status is of. Valid until [`clear`].
pub fn message() -> *const c_char {
    match status() {
        0 => c"".as_ptr(),
        _ => pointer(|messages| messages.first.as_deref()),
    }
}

/// Failing calls of this thread so far.
pub fn count() -> u64 {
    STATE.with(|state| state.count.get())
}

/// Message of the newest failure, if more than `count` calls have failed; else null. The kept
/// failure is forgotten if it is one of those after the first `count`. Valid until the thread's
/// next failing call.
pub fn take(count: u64) -> *const c_char {
    if self::count() <= count {
        return std::ptr::null();
    }
    if STATE.with(|state| state.first.get()) > count {
        clear();
    }
    pointer(|messages| messages.newest.as_deref())
}

pub fn clear() {
    STATE.with(|state| state.status.set(0));
    with_messages(|messages| messages.first = None);
}

fn pointer(of: impl FnOnce(&mut Messages) -> Option<&CStr>) -> *const c_char {
    let text = with_messages(|messages| of(messages).map(CStr::as_ptr));
    text.flatten().unwrap_or(NO_MESSAGE.as_ptr())
}

/// Calls `body` with the messages of this thread; none while the thread is ending, or in a signal
/// handler that interrupted this function.
fn with_messages<R>(body: impl FnOnce(&mut Messages) -> R) -> Option<R> {
    let place = nested().min(MOST_NESTED);
    let apply = |messages: &RefCell<[Messages; MOST_NESTED + 1]>| {
        messages.try_borrow_mut().ok().map(|mut messages| body(&mut messages[place]))
    };
    MESSAGES.try_with(apply).ok().flatten()
}

/// Keeps what the thread's first failing call left, because it is the cause of those that follow.
fn record(kind: Kind, message: &CStr) {
    let first = STATE.with(|state| {
        state.count.set(state.count.get() + 1);
        let first = state.status.get() == 0;
        if first {
            state.status.set(kind as i32);
            state.first.set(state.count.get());
        }
        first
    });
    with_messages(|messages| {
        messages.newest = Some(message.into());
        if first {
            messages.first = messages.newest.clone();
        }
    });
}

/// Keeps a text in a variable of the thread, for C to read until the next one is kept there.
pub fn keep(variable: &'static LocalKey<RefCell<CString>>, text: &str) -> *const c_char {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let kept = variable.try_with(|variable| {
        *variable.borrow_mut() = text;
        variable.borrow().as_ptr()
    });
    kept.unwrap_or(NO_MESSAGE.as_ptr())
}

/// Mode set by the program; negative while the environment decides.
static MODE: AtomicI32 = AtomicI32::new(-1);

fn mode() -> Mode {
    if nested() > 0 {
        // A plugin's function is no C++ code of the program, and deals with errors itself.
        return Mode::Return;
    }
    match MODE.load(Ordering::Relaxed) {
        0 => Mode::Return,
        1 => Mode::Abort,
        2 => Mode::Throw,
        _ => env().on_error.unwrap_or(if drop_in() { Mode::Throw } else { Mode::Return }),
    }
}

/// Sets the mode of the process and returns the previous one.
pub fn set_mode(new: Mode) -> Mode {
    let old = mode();
    MODE.store(new as i32, Ordering::Relaxed);
    old
}

unsafe extern "C-unwind" {
    /// Throws `std::runtime_error`; never returns.
    fn nvte_throw_runtime_error(message: *const c_char) -> !;
}

/// Runs the body of the export `function`. An error or panic is stored for the thread and handled
/// by the error mode; if that is to return, the caller gets the type's default.
pub fn guard<T: Default>(function: &str, body: impl FnOnce() -> Result<T>) -> T {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error,
        Err(panic) => Error { kind: Kind::Internal, message: panic_text(&*panic) },
    };
    fail(function, error);
    T::default()
}

#[cold]
fn fail(function: &str, error: Error) {
    let text = format!("{function}: {}", error.message).replace('\0', " ");
    let mode = mode();
    if mode == Mode::Abort || (mode == Mode::Return && verbose::enabled(Level::Error)) {
        stderr::print(format_args!("nvte: error: {text}"));
    }
    if mode == Mode::Abort {
        std::process::abort();
    }
    let message = CString::new(text).unwrap_or_default();
    record(error.kind, &message);
    if mode == Mode::Throw {
        // SAFETY: the text is a C string, and every export unwinds ("C-unwind"). It is copied by
        // the exception, and freed when that passes this function.
        unsafe { nvte_throw_runtime_error(message.as_ptr()) }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or(panic.downcast_ref::<String>().map(String::as_str));
    format!("internal error: {}", text.unwrap_or("panic without a message"))
}

/// A pointer as the result of an export; null after a failure.
pub struct Handle<T>(pub *mut T);

impl<T> Default for Handle<T> {
    fn default() -> Self {
        Self(std::ptr::null_mut())
    }
}

/// Exports a C function under one more name: a jump, which passes all arguments on as they are.
macro_rules! other_name {
    ($symbol:literal, $function:path) => {
        const _: () = {
            #[unsafe(naked)]
            #[unsafe(export_name = $symbol)]
            unsafe extern "C-unwind" fn jump() {
                #[cfg(target_arch = "x86_64")]
        core::arch::naked_asm!("jmp {}", sym $function);
                #[cfg(target_arch = "aarch64")]
        core::arch::naked_asm!("b {}", sym $function);
            }
        };
    };
}
pub(crate) use other_name;
