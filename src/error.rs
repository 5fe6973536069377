//! Errors, and the guard at the C boundary that turns them and panics into the caller's error mode.
#![allow(unsafe_code, non_camel_case_types)]

use crate::env::env;
use crate::verbose::{self, Level};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, Ordering};

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

/// What a failing call does after it has stored status and message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Return = 0,
    Abort = 1,
    Throw = 2,
}

#[derive(Debug)]
pub struct Error {
    pub kind: Kind,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A wrong argument: `name` as the caller knows it, such as `output.scale_inv`.
    pub fn argument(name: impl Display, expected: impl Display, got: impl Display) -> Self {
        Self { kind: Kind::Argument, message: format!("{name}: expected {expected}, got {got}") }
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Self { kind: Kind::Unsupported, message: message.into() }
    }

    pub fn device(message: impl Into<String>) -> Self {
        Self { kind: Kind::Device, message: message.into() }
    }
}

/// Status code (0: none) and message of the thread's last failing call.
#[derive(Default)]
struct Last {
    status: i32,
    message: CString,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

pub fn last_status() -> i32 {
    LAST.with_borrow(|last| last.status)
}

/// Valid until the thread's next failing call.
pub fn last_message() -> *const c_char {
    LAST.with_borrow(|last| last.message.as_ptr())
}

pub fn clear() {
    LAST.take();
}

/// Mode set by the program; negative while the environment decides.
static MODE: AtomicI32 = AtomicI32::new(-1);

fn mode() -> Mode {
    match MODE.load(Ordering::Relaxed) {
        0 => Mode::Return,
        1 => Mode::Abort,
        2 => Mode::Throw,
        _ => env().on_error,
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
    let message = CString::new(text).unwrap_or_default();
    let mode = mode();
    if mode == Mode::Abort || (mode == Mode::Return && verbose::enabled(Level::Error)) {
        eprintln!("nvte: error: {}", message.to_string_lossy());
    }
    if mode == Mode::Abort {
        std::process::abort();
    }
    let text = LAST.with_borrow_mut(|last| {
        *last = Last { status: error.kind as i32, message };
        last.message.as_ptr()
    });
    if mode == Mode::Throw {
        // SAFETY: the text is a C string, and every export unwinds ("C-unwind"). It is copied by
        // the exception. No borrow of LAST is held.
        unsafe { nvte_throw_runtime_error(text) }
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
