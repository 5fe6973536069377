//! Streams and events of a backend that has none: distinct handles, never looked into.
#![allow(unsafe_code)]

use crate::backend::args::Outcome;
use crate::types::{cudaEvent_t, cudaStream_t};
use std::ffi::c_int;

static HANDLES: [u8; 64] = [0; 64];

fn handle<T>(index: c_int) -> *mut T {
    HANDLES.as_ptr().wrapping_add(index as usize).cast_mut().cast()
}

pub(crate) unsafe extern "C-unwind" fn compute_stream(
    index: c_int,
    stream: *mut cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe { stream.write(handle(index)) };
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn compute_event(
    index: c_int,
    event: *mut cudaEvent_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe { event.write(handle(index)) };
    Outcome::OK
}

/// Work is complete on return: every branch is the stream itself.
pub(crate) unsafe extern "C-unwind" fn fork(
    stream: cudaStream_t,
    count: c_int,
    branches: *mut cudaStream_t,
) -> Outcome {
    for i in 0..count as usize {
        // SAFETY: the caller of a table entry vouches for its arguments.
        unsafe { branches.add(i).write(stream) };
    }
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn join(_: cudaStream_t, _: c_int) -> Outcome {
    Outcome::OK
}
