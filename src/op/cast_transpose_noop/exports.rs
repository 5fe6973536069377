//! C functions of cast_transpose_noop.h: transposes that a device flag can switch off.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use crate::error::guard;
use crate::op::transpose;
use crate::types::*;

/// As `nvte_transpose`; writes nothing if the Float32 `noop` (null: none) is exactly 1 on the
/// device.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_transpose_with_noop(
    input: NVTETensor,
    noop: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_transpose_with_noop", || {
        transpose::transpose(input, noop, ("output", output), stream)
    });
}

/// As `nvte_cast_transpose`; writes nothing if the Float32 `noop` (null: none) is exactly 1 on the
/// device.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_with_noop(
    input: NVTETensor,
    noop: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_cast_transpose_with_noop", || {
        transpose::cast_transpose(input, noop, output, stream)
    });
}
