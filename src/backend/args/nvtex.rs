//! The device: its properties, and copies between memories.

use std::ffi::c_int;

/// Direction of a copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    NVTEX_COPY_TO_DEVICE = 0,
    NVTEX_COPY_TO_HOST = 1,
    NVTEX_COPY_ON_DEVICE = 2,
}

/// What operators want to know of the current device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// How many parts an operator may be divided into so that all run at once, where its result depends on that.
    pub multiprocessors: c_int,
    /// Its number among the devices of the process.
    pub device: c_int,
    /// Bytes of workspace with which products run fastest; 0 if they use none.
    pub product_workspace: usize,
}
