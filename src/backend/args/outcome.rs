//! What a backend answers.

use super::operator::StatusNumber;
use std::ffi::c_char;

/// Answer of a backend.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendStatus {
    /// Done, or queued on the stream.
    NVTEX_BACKEND_OK = 0,
    /// This backend cannot do this case; nothing was written.
    NVTEX_BACKEND_UNIMPLEMENTED = 1,
    /// The device, its driver or a library failed.
    NVTEX_BACKEND_DEVICE_ERROR = 2,
}

/// Status and, unless OK, a text that stays valid until the thread's next backend call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub status: StatusNumber,
    pub reason: *const c_char,
}

impl BackendStatus {
    /// What a number from C stands for.
    pub const fn of(number: StatusNumber) -> Self {
        match number {
            0 => Self::NVTEX_BACKEND_OK,
            1 => Self::NVTEX_BACKEND_UNIMPLEMENTED,
            _ => Self::NVTEX_BACKEND_DEVICE_ERROR,
        }
    }
}

impl Outcome {
    pub const fn status(&self) -> BackendStatus {
        BackendStatus::of(self.status)
    }
}
