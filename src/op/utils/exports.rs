//! C functions of utils.h: host values to the device without a copy node.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;

/// Copies `num_bytes` bytes from the host to the device. The bytes travel as kernel parameters, so the
/// host buffer may be pageable and may be reused on return, and a captured graph replays the values.
///
/// Errors: null pointers; a device address that is not aligned to 4 bytes. With no bytes nothing
/// happens.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_copy_host_to_device_via_kernel(
    host_ptr: *const c_void,
    device_ptr: *mut c_void,
    num_bytes: usize,
    stream: cudaStream_t,
) {
    guard("nvte_copy_host_to_device_via_kernel", || {
        copy_host_to_device(host_ptr, ("device_ptr", device_ptr), num_bytes, "host_ptr", stream)
    });
}

/// Copies `count` 64-bit values from the host to the row-wise data of a tensor. Deprecated:
/// `nvte_copy_host_to_device_via_kernel`.
///
/// Errors: null pointers; a tensor that is too small; a negative count.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_convert_pointers_to_tensor(
    host_ptrs: *const u64,
    output: NVTETensor,
    count: i64,
    stream: cudaStream_t,
) {
    guard("nvte_convert_pointers_to_tensor", || {
        let output = check::tensor("output", output)?;
        convert_pointers_to_tensor(host_ptrs, &output, count, stream)
    });
}
