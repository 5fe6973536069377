//! The host as a device: memory, copies, and streams that need no work.
#![allow(unsafe_code)]

use crate::backend::args::{CopyKind, DeviceProperties, Outcome};
use crate::types::cudaStream_t;
use std::ffi::{c_int, c_void};

pub(crate) unsafe extern "C-unwind" fn device_arch(arch: *mut c_int) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe { arch.write(0) };
    Outcome::OK
}

/// The number of multiprocessors is that of an H100, so that sums over parts of the rows are divided as there.
pub(crate) unsafe extern "C-unwind" fn device_properties(
    properties: *mut DeviceProperties,
) -> Outcome {
    let of_the_host = DeviceProperties { multiprocessors: 132, device: 0, product_workspace: 0 };
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe { properties.write(of_the_host) };
    Outcome::OK
}

/// The size of huge pages, of which a translation of addresses covers as much memory as of 512 small ones, and the least
/// memory that is worth some.
const PAGE: usize = 2 << 20;
const LARGE: usize = 4 * PAGE;

pub(crate) unsafe extern "C-unwind" fn device_malloc(
    ptr: *mut *mut c_void,
    bytes: usize,
) -> Outcome {
    let mut memory = std::ptr::null_mut();
    let large = bytes >= LARGE;
    // SAFETY: both are powers of two and multiples of the pointer size.
    if unsafe { libc::posix_memalign(&mut memory, if large { PAGE } else { 256 }, bytes) } != 0 {
        return Outcome::device_error(format!("out of host memory: {bytes} bytes"));
    }
    #[cfg(target_os = "linux")]
    if large {
        // SAFETY: the memory has these bytes. A kernel without such pages refuses, and nothing is lost.
        unsafe { libc::madvise(memory, bytes, libc::MADV_HUGEPAGE) };
    }
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe { ptr.write(memory) };
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn device_free(ptr: *mut c_void) -> Outcome {
    // SAFETY: the pointer comes from `device_malloc`.
    unsafe { libc::free(ptr) };
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn device_memcpy(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    _: CopyKind,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe { std::ptr::copy(src.cast::<u8>(), dst.cast::<u8>(), bytes) };
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn read_back(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    copied: *mut bool,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        std::ptr::copy(src.cast::<u8>(), dst.cast::<u8>(), bytes);
        copied.write(true);
    }
    Outcome::OK
}

/// Any address that is not null does: work is complete before a stream is ever asked for.
pub(crate) unsafe extern "C-unwind" fn stream_create(stream: *mut cudaStream_t) -> Outcome {
    static STREAM: u8 = 0;
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe { stream.write((&raw const STREAM).cast_mut().cast()) };
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn stream_destroy(_: cudaStream_t) -> Outcome {
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn stream_synchronize(_: cudaStream_t) -> Outcome {
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn stream_is_capturing(
    _: cudaStream_t,
    capturing: *mut bool,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe { capturing.write(false) };
    Outcome::OK
}
