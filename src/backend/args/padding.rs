//! Rows of tensors with rows of zeros added or left out.

use super::operator::operator;
use std::ffi::c_void;

/// Bytes of one tensor: `copied` of them from `input` to `output`, and `zeroed` zeros after them. None
/// of the addresses is aligned to more than an element.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PaddedTensor {
    pub input: *const c_void,
    pub output: *mut c_void,
    pub copied: usize,
    pub zeroed: usize,
}

/// Copies of many tensors.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PaddingArgs {
    /// Host array; none of them is empty.
    pub tensors: *const PaddedTensor,
    pub num_tensors: usize,
}

operator! {
    padding(PaddingArgs) version 1 minor 0; |a|
}
