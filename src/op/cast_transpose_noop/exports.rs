//! C functions of cast_transpose_noop.h: transposes that a device flag can switch off.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use crate::check::{self, rowwise, tensor};
use crate::error::guard;
use crate::op::transformer_engine::QuantizationConfig;
use crate::op::transpose;
use crate::types::*;

/// Transposes as `nvte_transpose` does, unless the Float32 `noop` (null: none) is exactly 1 on the
/// device: then it writes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_transpose_with_noop(
    input: NVTETensor,
    noop: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_transpose_with_noop", || {
        let input = rowwise("input", input)?;
        let output = rowwise("output", output)?;
        transpose::transpose(&input, check::noop("noop", noop)?, ("output", &output), stream)
    });
}

/// Casts as `nvte_cast_transpose` does, unless the Float32 `noop` (null: none) is exactly 1 on the
/// device: then it writes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_with_noop(
    input: NVTETensor,
    noop: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_cast_transpose_with_noop", || {
        let (input, output) = (tensor("input", input)?, tensor("output", output)?);
        let config = QuantizationConfig::DEFAULT.with_noop(check::noop("noop", noop)?);
        transpose::cast_transpose(&input, &output, &config, stream)
    });
}
