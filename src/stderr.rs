//! Writes lines to stderr, or to the function that the program has set for them. Neither takes a lock, which a child
//! of fork() could find locked.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CString, c_char, c_void};
use std::fmt::Arguments;
use std::io::Error;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Which lines are written; each level adds to the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    None,
    /// Messages of failing calls, and warnings.
    Error,
    /// Messages, and also arguments that are legal but probably not meant.
    Check,
    /// The same, and also the backends and implementations chosen, and why others declined.
    Dispatch,
    /// The same, and also one line for each operator run.
    Exec,
}

/// A program's function for lines: the line's level, its text, and what the program has given for the function.
pub type Callback = unsafe extern "C" fn(level: i32, text: *const c_char, user: *mut c_void);

/// Where lines go instead of stderr.
pub struct Sink {
    pub callback: Callback,
    pub user: *mut c_void,
    /// Lines of later levels are not written.
    pub level: Level,
}

static SINK: AtomicPtr<Sink> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// Whether the thread is inside of the program's function: what that causes goes to stderr.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

fn sink() -> Option<&'static Sink> {
    // SAFETY: sinks are never freed.
    unsafe { SINK.load(Ordering::Acquire).as_ref() }
}

/// Sends lines to a program's function, or to stderr again. A former sink is not freed: another thread may be about
/// to write to it.
pub fn set_sink(sink: Option<Sink>) {
    let new = sink.map_or(std::ptr::null_mut(), |sink| Box::into_raw(Box::new(sink)));
    SINK.store(new, Ordering::Release);
}

/// The level that the program has set with its function, if there is one.
pub fn level() -> Option<Level> {
    sink().map(|sink| sink.level)
}

/// Whether this thread is inside of the program's function for lines.
pub fn is_within() -> bool {
    WITHIN.get()
}

/// Writes an error or a warning, whatever the level is.
pub fn print(text: Arguments) {
    line(Level::Error, text);
}

/// Writes a line.
pub fn line(level: Level, text: Arguments) {
    match sink().filter(|_| !WITHIN.get()) {
        None => write(text),
        Some(sink) => {
            let text = CString::new(format!("{text}").replace('\0', " ")).unwrap_or_default();
            WITHIN.set(true);
            // SAFETY: the program vouches for its function, which does not throw.
            unsafe { (sink.callback)(level as i32, text.as_ptr(), sink.user) };
            WITHIN.set(false);
        }
    }
}

/// Writes a line to stderr in one piece. What cannot be written is lost: a message must never end the process.
fn write(text: Arguments) {
    let line = format!("{text}\n");
    without_sigpipe(|| {
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            // SAFETY: the pointer and the length are those of a slice.
            let written =
                unsafe { libc::write(libc::STDERR_FILENO, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(written) {
                Ok(written) => rest = &rest[written..],
                Err(_) if Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
                Err(_) => return,
            }
        }
    });
}

/// Runs `body` so that writing to a pipe without a reader fails instead of killing the process: the
/// signal is held back, and taken away if it was not there before.
fn without_sigpipe(body: impl FnOnce()) {
    // SAFETY: signal sets are plain data that the calls below fill; all arguments point to them.
    unsafe {
        let mut pipe: libc::sigset_t = std::mem::zeroed();
        let (mut old, mut pending) = (pipe, pipe);
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        let was_pending = libc::sigismember(&pending, libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut old);
        body();
        if !was_pending {
            let now: libc::timespec = std::mem::zeroed();
            libc::sigtimedwait(&pipe, std::ptr::null_mut(), &now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
    }
}
