//! The GPU through the driver API: its primary context, which libraries that use the runtime API
//! share, one stream, and timing by replay of CUDA graphs.

use super::abi::Handle;
use super::machine::{Buffer, Call, Kind, Machine, MatrixLimits, Sampler, repetitions};
use anyhow::{Context, Result};
use cudarc::driver::sys as cu;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

/// Seconds of work and calls in one graph.
const GRAPH_SECONDS: f64 = 10e-3;
const GRAPH_CALLS: usize = 512;

pub struct Gpu {
    name: String,
    driver: c_int,
    multiprocessors: c_int,
    l2_bytes: usize,
    /// The stream lives until the process ends.
    stream: cu::CUstream,
}

macro_rules! cu {
    // SAFETY: each use passes pointers to live locals, or handles that its owner keeps valid.
    ($name:ident($($arg:expr),*)) => {
        unsafe { cu::$name($($arg),*) }.result().context(stringify!($name))
    };
}

impl Gpu {
    /// The first visible GPU, or none if this machine has no driver or no device.
    pub fn open() -> Result<Option<Self>> {
        // SAFETY: loads the driver library, if there is one.
        if !unsafe { cu::is_culib_present() } {
            return Ok(None);
        }
        // SAFETY: no arguments to get wrong.
        match unsafe { cu::cuInit(0) } {
            cu::CUresult::CUDA_ERROR_NO_DEVICE | cu::CUresult::CUDA_ERROR_STUB_LIBRARY => {
                return Ok(None);
            }
            status => status.result().context("cuInit")?,
        }
        let (mut device, mut driver, mut context, mut stream) = (0, 0, null_mut(), null_mut());
        cu!(cuDeviceGet(&mut device, 0))?;
        cu!(cuDriverGetVersion(&mut driver))?;
        cu!(cuDevicePrimaryCtxRetain(&mut context, device))?;
        cu!(cuCtxSetCurrent(context))?;
        let flags = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        cu!(cuStreamCreate(&mut stream, flags))?;
        let mut name = [0; 256];
        cu!(cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
        // SAFETY: the driver wrote a NUL-terminated string.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let attribute = |which| {
            let mut value = 0;
            cu!(cuDeviceGetAttribute(&mut value, which, device)).map(|()| value)
        };
        use cu::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        };
        Ok(Some(Self {
            name,
            driver,
            multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            l2_bytes: attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
            stream,
        }))
    }

    /// Captures `count` calls, round and round, as a graph.
    fn capture(&self, calls: &[Call<'_>], count: usize) -> Result<Graph> {
        // Relaxed: a library may do on the way what a stricter mode forbids, such as loading a
        // kernel's code, and nothing here captures on another thread.
        let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        cu!(cuStreamBeginCapture_v2(self.stream, mode))?;
        for call in calls.iter().cycle().take(count) {
            call();
        }
        let (mut graph, mut exec) = (null_mut(), null_mut());
        cu!(cuStreamEndCapture(self.stream, &mut graph))?;
        let result = cu!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        cu!(cuGraphDestroy(graph))?;
        result.map(|()| Graph { exec })
    }
}

impl Machine for Gpu {
    fn kind(&self) -> Kind {
        Kind::Gpu
    }

    fn describe(&self) -> String {
        format!(
            "{}, {} multiprocessors, {:.0} MiB L2, driver for CUDA {}.{}",
            self.name,
            self.multiprocessors,
            self.l2_bytes as f64 / f64::from(1 << 20),
            self.driver / 1000,
            self.driver % 1000 / 10
        )
    }

    fn rotation_bytes(&self) -> usize {
        // Three times would do for a cache that forgets the oldest line first; this one does not.
        8 * self.l2_bytes
    }

    fn matrix_limits(&self) -> Option<MatrixLimits> {
        let source = "best seen through cuBLASLt on random data, 8192 cubed";
        self.name.contains("H200").then_some(MatrixLimits { bf16: 790e12, fp8: 1500e12, source })
    }

    fn stream(&self) -> Handle {
        Handle(self.stream.cast())
    }

    fn synchronize(&self) -> Result<()> {
        cu!(cuStreamSynchronize(self.stream))
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        fn free(ptr: *mut c_void, _bytes: usize) {
            // Fails only after an earlier failure of the device, which has been reported.
            let _ = cu!(cuMemFree_v2(ptr as u64));
        }
        let mut ptr = 0;
        cu!(cuMemAlloc_v2(&mut ptr, bytes))?;
        Ok(Buffer { ptr: ptr as *mut c_void, bytes, free })
    }

    fn upload(&self, dst: *mut c_void, src: &[u8]) -> Result<()> {
        cu!(cuMemcpyHtoDAsync_v2(dst as u64, src.as_ptr().cast(), src.len(), self.stream))?;
        self.synchronize()
    }

    fn download(&self, dst: &mut [u8], src: *const c_void) -> Result<()> {
        cu!(cuMemcpyDtoHAsync_v2(dst.as_mut_ptr().cast(), src as u64, dst.len(), self.stream))?;
        self.synchronize()
    }

    fn copy(&self, dst: *mut c_void, src: *const c_void, bytes: usize) -> Result<()> {
        cu!(cuMemcpyDtoDAsync_v2(dst as u64, src as u64, bytes, self.stream))
    }

    fn fill(&self, dst: *mut c_void, byte: u8, bytes: usize) -> Result<()> {
        cu!(cuMemsetD8Async(dst as u64, byte, bytes, self.stream))
    }

    fn sampler<'a>(&'a self, calls: &'a [Call<'a>]) -> Result<Sampler<'a>> {
        let (start, end) = (Event::new()?, Event::new()?);
        // The first pass loads kernels and makes library handles, outside capture and clock.
        for _ in 0..2 {
            start.record(self.stream)?;
            calls.iter().for_each(|call| call());
            end.record(self.stream)?;
            self.synchronize()?;
        }
        let once = start.seconds_until(&end)? / calls.len() as f64;
        let count = repetitions(once, GRAPH_SECONDS, calls.len(), GRAPH_CALLS);
        let graph = self.capture(calls, count)?;
        Ok(Box::new(move || {
            // While the first replay runs, the host queues the second with its events, so that the
            // host's own time lies outside the measured span.
            graph.launch(self.stream)?;
            start.record(self.stream)?;
            graph.launch(self.stream)?;
            end.record(self.stream)?;
            self.synchronize()?;
            Ok(start.seconds_until(&end)? / count as f64)
        }))
    }

    fn queue_sampler<'a>(&'a self, call: &'a Call<'a>, count: usize) -> Result<Sampler<'a>> {
        let (start, end) = (Event::new()?, Event::new()?);
        Ok(Box::new(move || {
            start.record(self.stream)?;
            (0..count).for_each(|_| call());
            end.record(self.stream)?;
            self.synchronize()?;
            Ok(start.seconds_until(&end)? / count as f64)
        }))
    }

    fn replay_sampler<'a>(
        &'a self,
        calls: &'a [Call<'a>],
        count: usize,
    ) -> Result<Option<Sampler<'a>>> {
        let (start, end) = (Event::new()?, Event::new()?);
        let graph = self.capture(calls, calls.len())?;
        Ok(Some(Box::new(move || {
            start.record(self.stream)?;
            for _ in 0..count {
                graph.launch(self.stream)?;
            }
            end.record(self.stream)?;
            self.synchronize()?;
            Ok(start.seconds_until(&end)? / (count * calls.len()) as f64)
        })))
    }

    fn profiler(&self, on: bool) -> Result<()> {
        if on { cu!(cuProfilerStart()) } else { cu!(cuProfilerStop()) }
    }
}

struct Graph {
    exec: cu::CUgraphExec,
}

impl Graph {
    fn launch(&self, stream: cu::CUstream) -> Result<()> {
        cu!(cuGraphLaunch(self.exec, stream))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = cu!(cuGraphExecDestroy(self.exec));
    }
}

struct Event(cu::CUevent);

impl Event {
    fn new() -> Result<Self> {
        let mut event = null_mut();
        cu!(cuEventCreate(&mut event, cu::CUevent_flags::CU_EVENT_DEFAULT as u32))?;
        Ok(Self(event))
    }

    fn record(&self, stream: cu::CUstream) -> Result<()> {
        cu!(cuEventRecord(self.0, stream))
    }

    /// Both events must have been reached.
    fn seconds_until(&self, end: &Event) -> Result<f64> {
        let mut milliseconds = 0.0;
        cu!(cuEventElapsedTime_v2(&mut milliseconds, self.0, end.0))?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = cu!(cuEventDestroy_v2(self.0));
    }
}
