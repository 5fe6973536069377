//! C functions of multi_stream.h: the pool of compute streams.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::{Handle, guard};

/// Returns the number of streams, and of events, in the pool of a device: 4.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_num_compute_streams() -> i32 {
    NUM_STREAMS
}

/// Returns stream `idx` of the current device's pool. It is non-blocking, has high priority and is
/// never destroyed. On the CPU backend it stands for nothing.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_compute_stream(idx: i32) -> cudaStream_t {
    guard("nvte_get_compute_stream", || Ok(Handle(compute_stream(idx)?))).0
}

/// Returns event `idx` of the current device's pool. It has no timing and is never destroyed. On the
/// CPU backend it stands for nothing.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_compute_stream_event(idx: i32) -> cudaEvent_t {
    guard("nvte_get_compute_stream_event", || Ok(Handle(compute_event(idx)?))).0
}
