//! Domains: memory spaces with their streams. `cpu` and `cuda` are made of the tables of the library's own
//! backends, others of the functions that a plugin has registered.
#![allow(unsafe_code)]

use super::args::plugin::{
    Domain as Hooks, NVTEX_DOMAIN_ASYNC, NVTEX_DOMAIN_HOST_ACCESSIBLE, NVTEX_PLUGIN_OK,
};
use super::args::{BackendStatus, CopyKind, DeviceProperties, OpTable, Outcome};
use crate::error::{Error, Result};
use crate::types::{NVTEDType, cudaEvent_t, cudaStream_t};
use std::ffi::{CStr, CString, c_int, c_void};
use std::fmt::{self, Display};
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Domain {
    name: CString,
    flags: u32,
    is_host: bool,
    functions: Functions,
    /// Whether calls have been made in it.
    used: AtomicBool,
    /// Set in a child of `fork` whose parent had used a device of it.
    forked: AtomicBool,
}

/// Where the functions of a domain come from.
pub enum Functions {
    /// The table of a backend of the library, or why it cannot run here.
    BuiltIn(fn() -> std::result::Result<&'static OpTable, String>),
    Plugin(Hooks),
}

// SAFETY: a plugin promises that its functions may be called from any thread, and its pointers are only given back
// to them.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

/// The name of the domain of the host, where the reference runs.
pub const CPU: &str = "cpu";
pub const CUDA: &str = "cuda";

impl Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Calls an entry of a built-in table, or a hook of a plugin; the name of either is that of the entry.
macro_rules! invoke {
    ($domain:expr, $entry:ident($($arg:expr),*), $hook:ident($($hook_arg:expr),*) else $absent:expr) => {
        match &$domain.functions {
            Functions::BuiltIn(table) => {
                let table = table().map_err(Error::unsupported)?;
                let entry = table.$entry.ok_or_else(|| $domain.missing(stringify!($entry)))?;
                // SAFETY: the caller of this function vouches for pointers and streams.
                let outcome = unsafe { entry($($arg),*) };
                $domain.finish(stringify!($entry), outcome)
            }
            Functions::Plugin(hooks) => match hooks.$hook {
                Some(hook) => {
                    // SAFETY: as above; the plugin gets back the pointer that it has given.
                    let status = unsafe { hook(hooks.user $(, $hook_arg)*) };
                    $domain.answer(stringify!($hook), status)
                }
                None => $absent,
            },
        }
    };
}

impl Domain {
    pub fn new(name: &str, flags: u32, functions: Functions) -> Self {
        let is_host = name == CPU;
        let name = CString::new(name).unwrap_or_default();
        let (used, forked) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { name, flags, is_host, functions, used, forked }
    }

    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    pub fn c_name(&self) -> &CStr {
        &self.name
    }

    /// Whether it is the library's domain of the host, where what a call writes can be read when it returns.
    pub fn is_host(&self) -> bool {
        self.is_host
    }

    /// Whether the reference can run in it.
    pub fn host_accessible(&self) -> bool {
        self.is_host() || self.flags & NVTEX_DOMAIN_HOST_ACCESSIBLE != 0
    }

    /// Whether a call may return before its work is done.
    pub fn is_async(&self) -> bool {
        self.flags & NVTEX_DOMAIN_ASYNC != 0
    }

    /// Readies it for calls: an error if it cannot run in this process.
    pub fn start(&self) -> Result<()> {
        if self.forked.load(Ordering::Relaxed) {
            return Err(Error::unsupported(match self.name() {
                CUDA => "CUDA cannot be used in a process forked after its first CUDA call; fork before that, or \
                         start the process by exec (in Python: multiprocessing's start method \"spawn\")"
                    .into(),
                name => format!(
                    "domain {name} cannot be used in a process forked after its first use; fork before that, or \
                     start the process by exec"
                ),
            }));
        }
        if let Functions::BuiltIn(table) = &self.functions {
            table().map_err(|why| Error::unsupported(format!("domain {self}: {why}")))?;
        }
        self.used.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Called in the child of a fork.
    pub fn note_fork(&self) {
        if !self.is_host() && self.used.load(Ordering::Relaxed) {
            self.forked.store(true, Ordering::Relaxed);
        }
    }

    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Devices of it; 0 where it cannot tell.
    pub fn devices(&self) -> i32 {
        match &self.functions {
            Functions::Plugin(_) => self.plugin_devices(),
            Functions::BuiltIn(_) if self.is_host() => 1,
            #[cfg(nvte_cuda)]
            Functions::BuiltIn(_) => super::cuda::device_count(),
            #[cfg(not(nvte_cuda))]
            Functions::BuiltIn(_) => 0,
        }
    }

    /// Devices of a plugin's domain; 0 where it cannot tell.
    pub fn plugin_devices(&self) -> i32 {
        let Functions::Plugin(hooks) = &self.functions else { return 0 };
        let mut count = 0;
        // SAFETY: the hook writes one integer.
        let asked = hooks.device_count.map(|hook| unsafe { hook(hooks.user, &mut count) });
        if asked == Some(NVTEX_PLUGIN_OK) { count } else { 0 }
    }

    #[cold]
    fn missing(&self, function: &str) -> Error {
        Error::unsupported(format!("domain {self} has no {function}"))
    }

    fn finish(&self, entry: &str, outcome: Outcome) -> Result<()> {
        let text = || format!("{self} ({entry}): {}", outcome.reason());
        match outcome.status() {
            BackendStatus::NVTEX_BACKEND_OK => Ok(()),
            BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED => Err(Error::unsupported(text())),
            _ => Err(Error::device(text())),
        }
    }

    fn answer(&self, hook: &str, status: i32) -> Result<()> {
        if status == NVTEX_PLUGIN_OK {
            return Ok(());
        }
        Err(Error::device(format!("{self} ({hook}): {}", self.last_error())))
    }

    #[cold]
    fn last_error(&self) -> String {
        let Functions::Plugin(hooks) = &self.functions else { return String::new() };
        // SAFETY: the plugin gets back the pointer that it has given.
        let text = hooks.last_error.map(|hook| unsafe { hook(hooks.user) });
        match text.filter(|text| !text.is_null()) {
            // SAFETY: the text is a C string until the plugin's next call on this thread.
            Some(text) => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            None => "no reason given".into(),
        }
    }

    /// 10 * major + minor of the current device, 0 where devices have no such number.
    pub fn arch(&self) -> Result<u32> {
        let (mut arch, mut number) = (0, 0);
        let device = self.device()?;
        invoke!(self, device_arch(&mut arch), device_arch(device, &mut number) else Ok(()))?;
        Ok(if number > 0 { number } else { arch.max(0) as u32 })
    }

    /// Ordinal of the device that the calling thread uses.
    pub fn device(&self) -> Result<c_int> {
        match &self.functions {
            Functions::Plugin(hooks) => {
                let mut device = 0;
                if let Some(hook) = hooks.current_device {
                    // SAFETY: the hook writes one integer.
                    let status = unsafe { hook(hooks.user, &mut device) };
                    self.answer("current_device", status)?;
                }
                Ok(device)
            }
            Functions::BuiltIn(_) if self.is_host() => Ok(0),
            Functions::BuiltIn(_) => Ok(self.properties()?.device),
        }
    }

    /// What operators want to know of the current device.
    pub fn properties(&self) -> Result<DeviceProperties> {
        let mut properties =
            DeviceProperties { multiprocessors: 1, device: 0, product_workspace: 0 };
        match &self.functions {
            Functions::BuiltIn(_) => {
                invoke!(self, device_properties(&mut properties), device_count(&mut 0) else Ok(()))?;
            }
            Functions::Plugin(_) => {
                properties.device = self.device()?;
                let (device, count) = (properties.device, &mut properties.multiprocessors);
                invoke!(self, device_arch(&mut 0), multiprocessors(device, count) else Ok(()))?;
            }
        }
        Ok(properties)
    }

    /// Memory of the current device, aligned to 256 bytes. `bytes` is not 0.
    pub fn malloc(&self, bytes: usize) -> Result<*mut c_void> {
        let mut ptr = std::ptr::null_mut();
        invoke!(self, device_malloc(&mut ptr, bytes), malloc(&mut ptr, bytes) else Err(self.missing("malloc")))?;
        if ptr.is_null() || !(ptr as usize).is_multiple_of(256) {
            let got = format!(
                "{self} (malloc): expected an address that is a multiple of 256, got {ptr:p}"
            );
            return Err(Error::device(got));
        }
        Ok(ptr)
    }

    /// # Safety
    /// The memory is of [`Self::malloc`], and nobody uses it any more.
    pub unsafe fn free(&self, ptr: *mut c_void) -> Result<()> {
        invoke!(self, device_free(ptr), free(ptr) else Err(self.missing("free")))
    }

    /// Asynchronous on the stream, except that copies from and to pageable memory may block.
    ///
    /// # Safety
    /// The pointers cover `bytes` bytes of the memories that `kind` says.
    pub unsafe fn memcpy(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        bytes: usize,
        kind: CopyKind,
        stream: cudaStream_t,
    ) -> Result<()> {
        invoke!(
            self,
            device_memcpy(dst, src, bytes, kind, stream),
            memcpy(dst, src, bytes, kind as i32, stream) else Err(self.missing("memcpy"))
        )
    }

    /// Copies device bytes to the host and waits for them. False, and nothing was copied, while the stream is
    /// being captured into a graph.
    ///
    /// # Safety
    /// The pointers cover `bytes` bytes of host and device memory.
    pub unsafe fn read_back(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        bytes: usize,
        stream: cudaStream_t,
    ) -> Result<bool> {
        if let Functions::Plugin(_) = &self.functions {
            if self.is_capturing(stream)? {
                return Ok(false);
            }
            // SAFETY: the caller vouches for the pointers.
            unsafe { self.memcpy(dst, src, bytes, CopyKind::NVTEX_COPY_TO_HOST, stream)? };
            self.synchronize(stream)?;
            return Ok(true);
        }
        let mut copied = false;
        invoke!(
            self,
            read_back(dst, src, bytes, &mut copied, stream),
            device_count(&mut 0) else Ok(())
        )?;
        Ok(copied)
    }

    pub fn stream_create(&self) -> Result<cudaStream_t> {
        let mut stream = std::ptr::null_mut();
        let one = || {
            Err(Error::unsupported(format!(
                "domain {self} has one stream, null, and creates no others"
            )))
        };
        invoke!(self, stream_create(&mut stream), stream_create(&mut stream) else one())?;
        Ok(stream)
    }

    /// # Safety
    /// The stream is of [`Self::stream_create`].
    pub unsafe fn stream_destroy(&self, stream: cudaStream_t) -> Result<()> {
        invoke!(self, stream_destroy(stream), stream_destroy(stream) else Ok(()))
    }

    pub fn synchronize(&self, stream: cudaStream_t) -> Result<()> {
        invoke!(self, stream_synchronize(stream), stream_synchronize(stream) else Ok(()))
    }

    /// Whether the stream is being captured into a graph.
    pub fn is_capturing(&self, stream: cudaStream_t) -> Result<bool> {
        let (mut capturing, mut number) = (false, 0);
        invoke!(
            self,
            stream_is_capturing(stream, &mut capturing),
            stream_capturing(stream, &mut number) else Ok(())
        )?;
        Ok(capturing || number != 0)
    }

    /// Stream `index` of the current device's pool, created on first use.
    pub fn compute_stream(&self, index: c_int) -> Result<cudaStream_t> {
        let mut stream = std::ptr::null_mut();
        invoke!(
            self,
            compute_stream(index, &mut stream),
            compute_stream(index, &mut stream) else Ok(())
        )?;
        Ok(stream)
    }

    /// Event `index` of the current device's pool, created on first use.
    pub fn compute_event(&self, index: c_int) -> Result<cudaEvent_t> {
        let mut event = std::ptr::null_mut();
        invoke!(self, compute_event(index, &mut event), compute_event(index, &mut event) else Ok(()))?;
        Ok(event)
    }

    /// Streams of the calling thread, at most 4, that wait for what is on `stream` by now. A domain that cannot
    /// do this gives the stream itself, on which [`Self::join`] has nothing to do.
    pub fn fork(&self, stream: cudaStream_t, branches: &mut [cudaStream_t]) -> Result<()> {
        let (count, first) = (branches.len() as c_int, branches.as_mut_ptr());
        invoke!(self, fork(stream, count, first), fork(stream, count, first) else {
            branches.fill(stream);
            Ok(())
        })
    }

    /// Reduces slots of ranks, `pitch` bytes apart, in their order; with `max` to the greatest values.
    ///
    /// # Safety
    /// The slots and `to` have `count` elements, at multiples of their size; the pitch is a multiple of 16.
    pub unsafe fn rank_sum(
        &self,
        (slots, pitch, ranks): (*const c_void, usize, usize),
        to: *mut c_void,
        count: usize,
        (dtype, max): (NVTEDType, bool),
        stream: cudaStream_t,
    ) -> Result<()> {
        invoke!(
            self,
            rank_sum(slots, pitch, ranks, to, count, dtype, max, stream),
            device_count(&mut 0) else Err(self.missing("rank_sum"))
        )
    }

    /// `stream` waits for what is on the first `count` of the branches by now.
    pub fn join(&self, stream: cudaStream_t, count: c_int) -> Result<()> {
        invoke!(self, join(stream, count), join(stream, count) else Ok(()))
    }
}
