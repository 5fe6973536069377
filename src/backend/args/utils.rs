//! Copies from the host.

use super::operator::operator;
use std::ffi::c_void;

/// Copies host bytes to the device; the host buffer may be reused on return.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostCopyArgs {
    pub host: *const c_void,
    /// Aligned to 4 bytes.
    pub device: *mut c_void,
    pub bytes: usize,
}

operator! {
    host_copy(HostCopyArgs) version 1 minor 0; |a|
    bytes a.bytes;
}
