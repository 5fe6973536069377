//! Streams.

use crate::error::{Result, call, quietly};
use nvte_sys as sys;
use std::fmt;
use std::ptr;

/// A queue of work on the device, which runs in order. On the CPU backend it stands for nothing, because calls return
/// when their work is done.
///
/// The default stream is there without being created: `Stream::default()`.
#[derive(Default)]
pub struct Stream(Handle);

struct Handle(sys::cudaStream_t);

impl Default for Handle {
    fn default() -> Self {
        Handle(ptr::null_mut())
    }
}

// SAFETY: any thread may queue work on a stream, and destroy it; CUDA orders what threads do.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream on the current device.
    pub fn new() -> Result<Self> {
        // SAFETY: the function has no conditions.
        Ok(Stream(Handle(call(|| unsafe { sys::nvtex_stream_create() })?)))
    }

    /// Waits until the work on the stream is done. Errors: some of the work failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is there until it is dropped.
        call(|| unsafe { sys::nvtex_stream_synchronize(self.raw()) })
    }

    /// The stream as C has it; null is the default stream.
    pub fn raw(&self) -> sys::cudaStream_t {
        self.0.0
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it was created by nvtex_stream_create, or is null, which the function ignores.
        quietly(|| unsafe { sys::nvtex_stream_destroy(self.raw()) });
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.raw()).finish()
    }
}
