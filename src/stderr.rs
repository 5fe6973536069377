//! Writes lines to stderr.
#![allow(unsafe_code)]

use std::fmt::Arguments;
use std::io::Error;

/// Writes a line to stderr. What cannot be written is lost: a message must never end the process.
/// The line goes out in one piece and without a lock, which a child of fork() could find locked.
pub fn print(text: Arguments) {
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
