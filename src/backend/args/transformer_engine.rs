//! Bytes that are set, and offsets of the members of a group.

use super::operator::{operator, when};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// Sets bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemsetArgs {
    pub ptr: *mut c_void,
    pub bytes: usize,
    pub value: u8,
}

operator! {
    memset(MemsetArgs) version 1 minor 0; |a|
    bytes a.bytes;
}

/// One output of a prefix sum.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OffsetsOutput {
    pub ptr: *mut c_void,
    /// `out[i] = stride * prefix(i)`, in 64-bit arithmetic that wraps.
    pub stride: i64,
    /// Int32 (truncates) or Int64.
    pub dtype: NVTEDType,
    /// The output starts with a 0 and has one entry more.
    pub leading_zero: bool,
}

/// Prefix sums: `prefix(i) = sum of first[j] * last[j], j <= i` (`last` null: 1).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OffsetsArgs {
    pub first: *const c_void,
    pub last: *const c_void,
    /// Host array.
    pub outputs: *const OffsetsOutput,
    pub num_outputs: usize,
    pub length: usize,
    /// Int32 or Int64.
    pub first_dtype: NVTEDType,
    pub last_dtype: NVTEDType,
}

operator! {
    offsets(OffsetsArgs) version 1 minor 0; |a|
    dtypes a.first_dtype, when(a.last, a.last_dtype);
    features { LAST = a.last }
}
