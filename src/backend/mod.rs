//! Backends: which ones exist, which one this process uses, and the call of a table entry.
#![allow(unsafe_code)]

pub mod args;
pub(crate) mod buf;
pub(crate) mod cpu;
#[cfg(nvte_cuda)]
mod cublaslt;
#[cfg(nvte_cuda)]
mod cuda;
#[cfg(nvte_cuda)]
mod cudnn_handle;
pub(crate) mod group;
#[cfg(nvte_cuda)]
mod library;
pub(crate) mod memory;
pub(crate) mod operators;
#[cfg(any(nvte_cuda, test))]
mod parts;
pub(crate) mod plugin;
pub(crate) mod pool;

use crate::env::{BackendChoice, drop_in, env};
use crate::error::{self, Error, Result};
use crate::fork;
use crate::types::cudaStream_t;
use crate::verbose::{self, Level};
use args::*;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt::{self, Display};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

impl Outcome {
    pub const OK: Self =
        Self { status: BackendStatus::NVTEX_BACKEND_OK as u32, reason: std::ptr::null() };

    pub fn unimplemented(reason: impl Into<String>) -> Self {
        Self {
            status: BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED as u32,
            reason: keep(reason.into()),
        }
    }

    pub fn device_error(reason: impl Into<String>) -> Self {
        Self {
            status: BackendStatus::NVTEX_BACKEND_DEVICE_ERROR as u32,
            reason: keep(reason.into()),
        }
    }

    pub fn reason(&self) -> String {
        if self.reason.is_null() {
            return "no reason given".into();
        }
        // SAFETY: a backend's reason is a C string that lives until the thread's next backend call.
        unsafe { CStr::from_ptr(self.reason) }.to_string_lossy().into_owned()
    }
}

/// Keeps a text for the thread until the next one.
fn keep(text: String) -> *const c_char {
    thread_local! {
        static KEPT: RefCell<CString> = RefCell::default();
    }
    error::keep(&KEPT, &text)
}

pub struct Backend {
    pub name: &'static CStr,
    /// Whether the memory of the backend is that of the host: what a call writes can be read when it returns.
    pub host_memory: bool,
    table: &'static OpTable,
}

impl Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name.to_string_lossy())
    }
}

/// The table of the CPU backend. Its functions are those of operators, which know this module, so that they
/// come here when the library is loaded.
static CPU_TABLE: OnceLock<&'static OpTable> = OnceLock::new();

/// Enters the table of the CPU backend. Called once, before any other function.
pub(crate) fn set_cpu_table(table: &'static OpTable) {
    CPU_TABLE.get_or_init(|| table);
}

/// The reference backend on host memory.
pub fn cpu_table() -> &'static OpTable {
    CPU_TABLE
        .get()
        .unwrap_or_else(|| unreachable!("the table is entered when the library is loaded"))
}

/// The CUDA backend, or why it cannot run here.
#[cfg(nvte_cuda)]
pub fn cuda_table() -> std::result::Result<&'static OpTable, String> {
    cuda::table()
}

/// The CUDA backend, which this build lacks.
#[cfg(not(nvte_cuda))]
pub fn cuda_table() -> std::result::Result<&'static OpTable, String> {
    Err("this build has no CUDA kernels".into())
}

static CURRENT: OnceLock<std::result::Result<Backend, String>> = OnceLock::new();

/// Set in a process that was forked after the CUDA backend had been chosen: CUDA does not work there.
static FORKED_WITH_CUDA: AtomicBool = AtomicBool::new(false);

/// The backend of this process, chosen at the first call and then fixed: pointers of one backend
/// mean nothing to another.
pub fn current() -> Result<&'static Backend> {
    let current = CURRENT.get().unwrap_or_else(|| {
        // Computed before, because values that are computed once may not need each other.
        env();
        fork::once(&CURRENT, start)
    });
    if FORKED_WITH_CUDA.load(Ordering::Relaxed) {
        return Err(Error::unsupported(
            "CUDA cannot be used in a process forked after its first CUDA call; fork before that, or \
             start the process by exec (in Python: multiprocessing's start method \"spawn\")",
        ));
    }
    current.as_ref().map_err(|why| Error::unsupported(why.as_str()))
}

#[cold]
fn start() -> std::result::Result<Backend, String> {
    let chosen = choose();
    verbose::line(Level::Dispatch, "backend", || match &chosen {
        Ok((backend, why)) => format!("{backend},{why}"),
        Err(why) => format!("none,{why}"),
    });
    chosen.map(|(backend, _)| backend)
}

/// Called in the child of a fork.
pub(crate) fn note_fork() {
    if matches!(CURRENT.get(), Some(Ok(backend)) if !backend.host_memory) {
        FORKED_WITH_CUDA.store(true, Ordering::Relaxed);
    }
}

/// The backend to use, and why.
fn choose() -> std::result::Result<(Backend, String), String> {
    let choice = env().backend.clone()?;
    let cpu =
        |why: String| Ok((Backend { name: c"cpu", host_memory: true, table: cpu_table() }, why));
    if choice == BackendChoice::Cpu {
        return cpu("NVTE_BACKEND=cpu".into());
    }
    match cuda_table() {
        Ok(table) => {
            let backend = Backend { name: c"cuda", host_memory: false, table };
            Ok((backend, "device found".into()))
        }
        Err(why) if choice == BackendChoice::Cuda => Err(format!("NVTE_BACKEND=cuda: {why}")),
        Err(why) if drop_in() => {
            Err(format!("no CUDA device ({why}); NVTE_BACKEND=cpu computes on the processor"))
        }
        Err(why) => cpu(format!("cuda declined: {why}")),
    }
}

/// Runs an operator with checked arguments on the backend of this process.
pub(crate) fn run<A: Operator>(args: &A, stream: cudaStream_t) -> Result<()> {
    let backend = current()?;
    let entry = A::entry(backend.table).ok_or_else(|| missing(backend, A::NAME))?;
    // SAFETY: the arguments have been checked by the operator's plan().
    let outcome = memory::caught(|| unsafe { entry(args, stream) })?;
    verbose::line(Level::Exec, "exec", || format!("{backend},{},{args:?}", A::NAME));
    finish(backend, A::NAME, outcome)?;
    if env().sync {
        call("stream_synchronize", |table| {
            // SAFETY: the stream is the caller's.
            table.stream_synchronize.map(|entry| unsafe { entry(stream) })
        })?;
    }
    Ok(())
}

/// How an attention would run.
pub(crate) struct Planned {
    pub(crate) workspace_bytes: usize,
    /// The backend's number of the implementation.
    pub(crate) implementation: u32,
    /// Its name, static.
    pub(crate) name: *const c_char,
    /// "name: reason" of other implementations, one a line, if the caller has asked for it.
    pub(crate) rejected: String,
}

/// What the backend of this process would do with an attention, and with `explain` why other implementations
/// declined. An error, with all reasons, if it can do nothing.
pub(crate) fn attention_plan(args: &AttentionArgs, explain: bool) -> Result<Planned> {
    let backend = current()?;
    let entry = backend.table.attention_plan.ok_or_else(|| missing(backend, "attention_plan"))?;
    let mut plan = AttentionPlan {
        explain: explain || verbose::enabled(Level::Dispatch),
        workspace_bytes: 0,
        implementation: 0,
        name: std::ptr::null(),
        rejected: std::ptr::null(),
    };
    // SAFETY: the arguments have been checked by the operator's plan().
    let outcome = memory::caught(|| unsafe { entry(args, &mut plan) })?;
    finish(backend, "attention_plan", outcome)?;
    let text = |text: *const c_char| match text.is_null() {
        true => String::new(),
        // SAFETY: a backend's text is a C string that lives until the thread's next backend call.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    };
    let AttentionPlan { workspace_bytes, implementation, name, .. } = plan;
    let rejected = text(plan.rejected);
    verbose::line(Level::Dispatch, "attention", || {
        format!("{backend},{},{}", text(name), rejected.replace('\n', ";"))
    });
    Ok(Planned { workspace_bytes, implementation, name, rejected })
}

/// Calls a table entry that is no operator: memory, streams, properties.
pub(crate) fn call(name: &str, body: impl FnOnce(&OpTable) -> Option<Outcome>) -> Result<()> {
    let backend = current()?;
    let outcome = body(backend.table).ok_or_else(|| missing(backend, name))?;
    finish(backend, name, outcome)
}

/// The properties of the current device.
pub(crate) fn device_properties() -> Result<DeviceProperties> {
    let mut properties = DeviceProperties { multiprocessors: 0, device: 0, product_workspace: 0 };
    call("device_properties", |table| {
        // SAFETY: the entry writes one struct.
        table.device_properties.map(|entry| unsafe { entry(&mut properties) })
    })?;
    Ok(properties)
}

/// The handle of cuDNN that belongs to this thread and the current device, made at the first call.
pub(crate) fn cudnn_handle() -> Result<*mut c_void> {
    let backend = current()?;
    #[cfg(nvte_cuda)]
    if !backend.host_memory {
        return cudnn_handle::get(device_properties()?.device);
    }
    Err(Error::unsupported(format!(
        "cuDNN computes on CUDA devices only, and the backend of this process is {backend}"
    )))
}

fn missing(backend: &Backend, entry: &str) -> Error {
    Error::unsupported(format!("backend {backend} has no {entry}"))
}

fn finish(backend: &Backend, entry: &str, outcome: Outcome) -> Result<()> {
    let text = || format!("{backend} ({entry}): {}", outcome.reason());
    match outcome.status() {
        BackendStatus::NVTEX_BACKEND_OK => Ok(()),
        BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED => {
            verbose::line(Level::Dispatch, "dispatch", || format!("declined,{}", text()));
            Err(Error::unsupported(text()))
        }
        BackendStatus::NVTEX_BACKEND_DEVICE_ERROR => Err(Error::device(text())),
    }
}
