//! Where attention uses cuDNN, and how `kernels/fused_attn/cudnn.cu` opens it.
#![allow(unsafe_code)]

use super::library;
use crate::env::{CudnnChoice, env};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

unsafe extern "C" {
    /// Stores both values, for all threads.
    fn nvte_cuda_cudnn(
        choice: CudnnChoice,
        open: unsafe extern "C" fn(name: *const c_char) -> *mut c_void,
    );
}

/// Called once, before the first attention.
pub(super) fn start() {
    // SAFETY: nobody reads the values yet.
    unsafe { nvte_cuda_cudnn(env().attention_cudnn, open) };
}

/// # Safety
/// `name` is a C string.
unsafe extern "C" fn open(name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map_or(null_mut(), library::open)
}
