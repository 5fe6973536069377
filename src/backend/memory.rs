//! Memory of the host for the time of a call. Its size depends on the caller's arguments, so that
//! there may not be enough: that is an error of the call, not the end of the process.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::panic::resume_unwind;

/// Room for `len` elements of `what` that are still to be added.
pub(crate) fn reserve<T>(what: &str, len: usize) -> Result<Vec<T>> {
    let mut memory = Vec::new();
    let bytes = len.saturating_mul(size_of::<T>());
    memory.try_reserve_exact(len).map_err(|_| out_of_memory(what, bytes))?;
    Ok(memory)
}

fn out_of_memory(what: &str, bytes: usize) -> Error {
    Error::device(format!("out of host memory: {bytes} bytes for {what}"))
}

/// Makes `memory` `len` elements long; if that fails, says how many bytes that would be.
fn resized<T: Clone + Default>(memory: &mut Vec<T>, len: usize) -> std::result::Result<(), usize> {
    let more = len.saturating_sub(memory.len());
    memory.try_reserve_exact(more).map_err(|_| len.saturating_mul(size_of::<T>()))?;
    memory.resize(len, T::default());
    Ok(())
}

/// `len` zeros (or defaults) for a kernel of the CPU backend: if memory is short, an [`Error`] unwinds
/// to the call of the backend's entry, which returns it. Kernels ask for what they need before they write,
/// except for scratch of a few rows for each thread.
pub(crate) fn zeros<T: Clone + Default>(len: usize) -> Vec<T> {
    let mut memory = Vec::new();
    resize(&mut memory, len);
    memory
}

/// Makes `memory` `len` elements long, new ones being zeros. Unwinds like [`zeros`].
pub(crate) fn resize<T: Clone + Default>(memory: &mut Vec<T>, len: usize) {
    if let Err(bytes) = resized(memory, len) {
        raise(out_of_memory("intermediate results", bytes));
    }
}

/// Room for `len` elements. Unwinds like [`zeros`].
pub(crate) fn room<T>(len: usize) -> Vec<T> {
    reserve("intermediate results", len).unwrap_or_else(|error| raise(error))
}

/// The elements of an iterator that knows their number. Unwinds like [`zeros`].
pub(crate) fn collect<T>(elements: impl ExactSizeIterator<Item = T>) -> Vec<T> {
    let mut memory = room(elements.len());
    memory.extend(elements);
    memory
}

/// Unwinds unless `bytes` can be had, as far as one can tell without keeping them.
pub(crate) fn expect(bytes: usize) {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping that nobody else knows, and that is removed again.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0);
        if memory == libc::MAP_FAILED {
            raise(out_of_memory("the matrix product", bytes));
        }
        libc::munmap(memory, bytes);
    }
}

/// Unwinds with an error that [`caught`] returns, without the message of a panic.
fn raise(error: Error) -> ! {
    resume_unwind(Box::new(error))
}

/// The result of `body`, or the error with which it unwound. Other panics unwind further.
pub(crate) fn caught<T>(body: impl FnOnce() -> T) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).map_err(|panic| {
        match panic.downcast::<Error>() {
            Ok(error) => *error,
            Err(panic) => resume_unwind(panic),
        }
    })
}
