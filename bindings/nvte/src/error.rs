//! Failing calls of the library as `Result`.

use crate::generated::Status;
use nvte_sys as sys;
use std::ffi::CStr;
use std::fmt;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// A call of the library that failed. Its outputs are as they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    message: String,
}

impl Error {
    /// Makes an error of this crate's own checks.
    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Error { status: Status::InvalidArgument, message: message.into() }
    }

    /// What kind of failure it is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Function, argument, what was expected, what was got.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Runs calls of the library, and tells whether one of them failed. An error that other code of this thread has left
/// is neither reported here nor cleared.
pub(crate) fn call<T>(calls: impl FnOnce() -> T) -> Result<T> {
    // SAFETY: these functions have no conditions; the message is copied before the next call.
    unsafe {
        let before = sys::nvtex_error_count();
        let result = calls();
        if sys::nvtex_error_count() == before {
            return Ok(result);
        }
        // The status is that of the first failure since it was cleared, which is ours unless there was one before.
        let status = sys::nvtex_last_status();
        let message = sys::nvtex_take_error(before);
        let message = match message.is_null() {
            true => "the library gave no message".to_owned(),
            false => CStr::from_ptr(message).to_string_lossy().into_owned(),
        };
        Err(Error { status: Status::from_c(status).unwrap_or(Status::InternalError), message })
    }
}

/// For destructors, which report nothing: a failure there must not be taken for one of the caller's calls.
pub(crate) fn quietly(calls: impl FnOnce()) {
    let _ = call(calls);
}
