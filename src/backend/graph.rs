//! Graphs: work on a stream that is recorded once and runs again by one call.
#![allow(unsafe_code)]

use super::domain::Domain;
use crate::error::{Error, Result};
use crate::types::cudaStream_t;
#[cfg(nvte_cuda)]
use cudarc::driver::sys as driver;

/// Recorded work, ready to run.
pub struct Graph {
    domain: &'static Domain,
    /// A `CUgraphExec`.
    #[cfg_attr(not(nvte_cuda), allow(dead_code))]
    executable: usize,
}

/// The error of a domain that has no graphs.
#[cold]
fn none(domain: &Domain) -> Error {
    Error::unsupported(format!("domain {domain} has no graphs (only domain cuda has)"))
}

#[cfg(nvte_cuda)]
fn check(function: &str, result: driver::CUresult) -> Result<()> {
    match result {
        driver::CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(Error::device(format!("{function} returned {error:?}"))),
    }
}

/// The domain of the thread's calls, which must be able to record.
fn domain() -> Result<&'static Domain> {
    let domain = super::domain()?;
    match domain.name() == super::domain::CUDA && cfg!(nvte_cuda) {
        true => Ok(domain),
        false => Err(none(domain)),
    }
}

/// Begins to record what is put on a stream, instead of running it.
pub fn begin(stream: cudaStream_t) -> Result<()> {
    let domain = domain()?;
    if stream.is_null() {
        let expected = "a stream that was created (nothing records the default stream)";
        return Err(Error::argument("stream", expected, "null"));
    }
    if domain.is_capturing(stream)? {
        let expected = "a stream that is not being recorded";
        return Err(Error::argument("stream", expected, "one that is"));
    }
    #[cfg(nvte_cuda)]
    {
        // Calls that are no work of a stream, such as an allocation, are legal meanwhile, and stay outside.
        let mode = driver::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the caller vouches for the stream.
        check("cuStreamBeginCapture", unsafe {
            driver::cuStreamBeginCapture_v2(stream.cast(), mode)
        })
    }
    #[cfg(not(nvte_cuda))]
    Err(none(domain))
}

/// Ends the recording of a stream.
pub fn end(stream: cudaStream_t) -> Result<Graph> {
    let domain = domain()?;
    if stream.is_null() || !domain.is_capturing(stream)? {
        let expected = "a stream that is being recorded";
        return Err(Error::argument("stream", expected, "one that is not"));
    }
    #[cfg(nvte_cuda)]
    {
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is being recorded; both functions write one handle.
        unsafe {
            check("cuStreamEndCapture", driver::cuStreamEndCapture(stream.cast(), &mut graph))?;
            let made = driver::cuGraphInstantiateWithFlags(&mut executable, graph, 0);
            driver::cuGraphDestroy(graph);
            check("cuGraphInstantiate", made)?;
        }
        Ok(Graph { domain, executable: executable as usize })
    }
    #[cfg(not(nvte_cuda))]
    Err(none(domain))
}

impl Graph {
    /// Puts the recorded work on a stream.
    pub fn replay(&self, stream: cudaStream_t) -> Result<()> {
        #[cfg(nvte_cuda)]
        // SAFETY: the handle lives as long as `self`; the caller vouches for the stream.
        return check("cuGraphLaunch", unsafe {
            driver::cuGraphLaunch(self.executable as driver::CUgraphExec, stream.cast())
        });
        #[cfg(not(nvte_cuda))]
        {
            let _ = stream;
            Err(none(self.domain))
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // After a fork the driver must not be called.
        #[cfg(nvte_cuda)]
        if self.domain.start().is_ok() {
            // SAFETY: the handle was made above. The driver waits until a replay that runs is done with it.
            unsafe { driver::cuGraphExecDestroy(self.executable as driver::CUgraphExec) };
        }
    }
}
