//! Copies between memories.

/// Direction of a copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    NVTEX_COPY_TO_DEVICE = 0,
    NVTEX_COPY_TO_HOST = 1,
    NVTEX_COPY_ON_DEVICE = 2,
}
