//! A pool of streams and events for work that runs side by side (spec: core, section 15).
#![allow(unsafe_code)]

pub(crate) mod cpu;
pub mod exports;

use crate::backend;
use crate::error::{Error, Result};
use crate::types::*;

const NUM_STREAMS: i32 = 4;

fn check_index(idx: i32) -> Result<()> {
    match idx {
        0..NUM_STREAMS => Ok(()),
        _ => Err(Error::argument("idx", format!("0 to {}", NUM_STREAMS - 1), idx)),
    }
}

fn compute_stream(idx: i32) -> Result<cudaStream_t> {
    check_index(idx)?;
    let mut stream = std::ptr::null_mut();
    backend::call("compute_stream", |table| {
        // SAFETY: the entry writes one stream.
        table.compute_stream.map(|entry| unsafe { entry(idx, &mut stream) })
    })?;
    Ok(stream)
}

fn compute_event(idx: i32) -> Result<cudaEvent_t> {
    check_index(idx)?;
    let mut event = std::ptr::null_mut();
    backend::call("compute_event", |table| {
        // SAFETY: the entry writes one event.
        table.compute_event.map(|entry| unsafe { entry(idx, &mut event) })
    })?;
    Ok(event)
}
