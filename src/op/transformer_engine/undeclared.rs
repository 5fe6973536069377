//! C functions that no header declares: programs look them up by their names.
#![allow(unsafe_code)]

use crate::backend;
use crate::error::{Handle, guard};
use std::ffi::c_void;

/// A `cudnnHandle_t` for the calling thread and its current device, the same at each call. It is made at the
/// first one and never destroyed.
///
/// Errors: no cuDNN (`libcudnn.so.9`); another backend than CUDA; null is returned.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_cudnn_handle() -> *mut c_void {
    guard("nvte_get_cudnn_handle", || Ok(Handle(backend::cudnn_handle()?))).0
}

/// Whether kernels written in CuTe's Python language are part of the library: there are none.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_is_cutedsl_backend_built() -> i32 {
    0
}

/// Does nothing, because there are no kernels to turn on or off.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_set_cutedsl_backend(enabled: i32) {
    let _ = enabled;
}
