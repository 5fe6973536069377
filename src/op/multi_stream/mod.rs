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
    backend::domain()?.compute_stream(idx)
}

fn compute_event(idx: i32) -> Result<cudaEvent_t> {
    check_index(idx)?;
    backend::domain()?.compute_event(idx)
}
