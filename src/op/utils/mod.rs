//! Host values to the device without a copy node (spec: core, section 14).
#![allow(unsafe_code)]

pub(crate) mod cpu;
pub mod exports;

use super::transformer_engine::check_bytes;
use crate::backend::{self, args::HostCopyArgs};
use crate::check;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::types::*;
use std::ffi::c_void;

fn copy_host_to_device(
    host: *const c_void,
    (device_name, device): (&str, *mut c_void),
    bytes: usize,
    host_name: &str,
    stream: cudaStream_t,
) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    check_bytes("num_bytes", bytes)?;
    if host.is_null() {
        return Err(Error::argument(host_name, format!("a pointer to {bytes} bytes"), "null"));
    }
    let words = bytes.div_ceil(4);
    let device = check::raw_pointer(device_name, device, words, NVTEDType::kNVTEInt32)?;
    backend::run(&HostCopyArgs { host, device, bytes }, stream)
}

fn convert_pointers_to_tensor(
    host_ptrs: *const u64,
    output: &Tensor,
    count: i64,
    stream: cudaStream_t,
) -> Result<()> {
    let output = &output.rowwise;
    let Ok(count) = usize::try_from(count) else {
        return Err(Error::argument("count", "not negative", count));
    };
    if count > 0 && output.bytes() / size_of::<u64>() < count {
        let expected = format!("room for {count} pointers");
        let got = format!("{} of {}", output.shape, output.dtype);
        return Err(Error::argument("output.shape", expected, got));
    }
    let device = ("output.data", output.ptr());
    copy_host_to_device(host_ptrs.cast(), device, count * size_of::<u64>(), "host_ptrs", stream)
}
