#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
// The comments of the generated part are those of the C headers.
#![allow(rustdoc::bare_urls, rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

mod config;
mod context;
mod error;
#[rustfmt::skip]
#[allow(clippy::doc_lazy_continuation, clippy::doc_overindented_list_items)]
mod generated;
mod module;
mod stream;
mod tensor;

pub use context::{Context, Recipe, Region};
pub use error::{Error, Result};
pub use generated::*;
pub use module::{Module, Parameter, Precision, Sequential, Step, Tape, rotary_frequencies};
pub use nvte_sys as sys;
pub use stream::Stream;
pub use tensor::{AnyTensor, BF16, E4M3, E5M2, Element, F16, Missing, Tensor};

use std::ffi::CStr;

/// Returns the version of the library, such as "0.1.0".
pub fn version() -> String {
    // SAFETY: the function returns a text that lives as long as the process.
    unsafe { CStr::from_ptr(sys::nvtex_version()) }.to_string_lossy().into_owned()
}

/// Returns the device that operators run on: "cuda", "cpu", or that of a plugin.
///
/// Errors: `NVTE_BACKEND` asks for one that cannot run.
pub fn backend_name() -> Result<String> {
    // SAFETY: the function has no conditions.
    let name = error::call(|| unsafe { sys::nvtex_backend_name() })?;
    // SAFETY: without an error it is a text that lives as long as the process.
    Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}
