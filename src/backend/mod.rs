//! Backends: which ones exist, which one this process uses, and the call of a table entry.
#![allow(unsafe_code)]

pub mod args;
pub(crate) mod buf;
pub(crate) mod cpu;
#[cfg(nvte_cuda)]
mod cublaslt;
#[cfg(nvte_cuda)]
mod cuda;
pub(crate) mod group;
#[cfg(nvte_cuda)]
mod library;
pub(crate) mod memory;
pub(crate) mod pool;

use crate::env::{BackendChoice, env};
use crate::error::{self, Error, Result};
use crate::fork;
use crate::types::cudaStream_t;
use crate::verbose::{self, Level};
use args::*;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Debug;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

impl OpTable {
    /// A table without functions.
    pub const EMPTY: Self = Self {
        struct_size: size_of::<Self>(),
        api_version: NVTEX_BACKEND_API_VERSION,
        quantize: None,
        dequantize: None,
        transpose: None,
        amax: None,
        scale_from_amax: None,
        delayed_scaling: None,
        gemm: None,
        memset: None,
        host_copy: None,
        offsets: None,
        scaled_activation: None,
        softmax: None,
        dropout: None,
        rope: None,
        device_arch: None,
        device_malloc: None,
        device_free: None,
        device_memcpy: None,
        read_back: None,
        stream_create: None,
        stream_destroy: None,
        stream_synchronize: None,
        stream_is_capturing: None,
        compute_stream: None,
        compute_event: None,
        swap_first_dims: None,
        transpose_dbias: None,
        requantize: None,
        swizzle: None,
        scale_codes: None,
        group_amax: None,
        partial_amax: None,
        partial_cast: None,
        norm_forward: None,
        norm_backward: None,
        move_rows: None,
        reindex_cache: None,
        grad_correction: None,
        half_lse: None,
        out_correction: None,
        partition: None,
        seed: None,
        copy_rows: None,
        attention_plan: None,
        attention: None,
        adam: None,
        sgd: None,
        l2_norm: None,
        scale_tensors: None,
        scales_from_amax: None,
        router_forward: None,
        router_backward: None,
        router_histogram: None,
        aux_loss: None,
        aux_loss_backward: None,
        padding: None,
        row_map: None,
        permute: None,
        unpermute: None,
        sort_pairs: None,
        topk: None,
        nvfp4_quantize: None,
        nvfp4_dequantize: None,
        hadamard: None,
        hadamard_amax: None,
        nvfp4_transpose: None,
        nvfp4_scale_transpose: None,
        nvfp4_alpha: None,
        nvfp4_global_scale: None,
        nvfp4_block_scale: None,
        nvfp4_partial_amax: None,
        nvfp4_partial_cast: None,
        grouped_gemm: None,
        grouped_bias: None,
        widen: None,
        fork: None,
        join: None,
        counters: None,
    };
}

impl Outcome {
    pub const OK: Self = Self { status: BackendStatus::NVTEX_BACKEND_OK, reason: std::ptr::null() };

    pub fn unimplemented(reason: impl Into<String>) -> Self {
        Self { status: BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED, reason: keep(reason.into()) }
    }

    pub fn device_error(reason: impl Into<String>) -> Self {
        Self { status: BackendStatus::NVTEX_BACKEND_DEVICE_ERROR, reason: keep(reason.into()) }
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

/// An argument struct and its entry in the table.
pub trait Operator: Debug + Sized {
    const NAME: &'static str;
    fn entry(
        table: &OpTable,
    ) -> Option<unsafe extern "C-unwind" fn(*const Self, cudaStream_t) -> Outcome>;
}

macro_rules! operators {
    ($($args:ident => $entry:ident),* $(,)?) => {$(
        impl Operator for $args {
            const NAME: &'static str = stringify!($entry);
            fn entry(
                table: &OpTable,
            ) -> Option<unsafe extern "C-unwind" fn(*const Self, cudaStream_t) -> Outcome> {
                table.$entry
            }
        }
    )*};
}

operators! {
    QuantizeArgs => quantize,
    DequantizeArgs => dequantize,
    TransposeArgs => transpose,
    AmaxArgs => amax,
    ScaleFromAmaxArgs => scale_from_amax,
    DelayedScalingArgs => delayed_scaling,
    GemmArgs => gemm,
    MemsetArgs => memset,
    HostCopyArgs => host_copy,
    OffsetsArgs => offsets,
    ScaledActivationArgs => scaled_activation,
    SwapFirstDimsArgs => swap_first_dims,
    TransposeDbiasArgs => transpose_dbias,
    RequantizeArgs => requantize,
    SwizzleArgs => swizzle,
    ScaleCodesArgs => scale_codes,
    GroupAmaxArgs => group_amax,
    PartialAmaxArgs => partial_amax,
    PartialCastArgs => partial_cast,
    SoftmaxArgs => softmax,
    DropoutArgs => dropout,
    RopeArgs => rope,
    NormForwardArgs => norm_forward,
    NormBackwardArgs => norm_backward,
    MoveRowsArgs => move_rows,
    ReindexCacheArgs => reindex_cache,
    GradCorrectionArgs => grad_correction,
    HalfLseArgs => half_lse,
    OutCorrectionArgs => out_correction,
    PartitionArgs => partition,
    SeedArgs => seed,
    CopyRowsArgs => copy_rows,
    AdamArgs => adam,
    SgdArgs => sgd,
    L2NormArgs => l2_norm,
    ScaleTensorsArgs => scale_tensors,
    ScalesFromAmaxArgs => scales_from_amax,
    AttentionArgs => attention,
    RouterForwardArgs => router_forward,
    RouterBackwardArgs => router_backward,
    RouterHistogramArgs => router_histogram,
    AuxLossArgs => aux_loss,
    AuxLossBackwardArgs => aux_loss_backward,
    PaddingArgs => padding,
    RowMapArgs => row_map,
    PermuteArgs => permute,
    UnpermuteArgs => unpermute,
    SortPairsArgs => sort_pairs,
    TopkArgs => topk,
    Nvfp4QuantizeArgs => nvfp4_quantize,
    Nvfp4DequantizeArgs => nvfp4_dequantize,
    HadamardArgs => hadamard,
    HadamardAmaxArgs => hadamard_amax,
    Nvfp4TransposeArgs => nvfp4_transpose,
    Nvfp4ScaleTransposeArgs => nvfp4_scale_transpose,
    Nvfp4AlphaArgs => nvfp4_alpha,
    Nvfp4GlobalScaleArgs => nvfp4_global_scale,
    Nvfp4BlockScaleArgs => nvfp4_block_scale,
    Nvfp4PartialAmaxArgs => nvfp4_partial_amax,
    Nvfp4PartialCastArgs => nvfp4_partial_cast,
    GroupedGemmArgs => grouped_gemm,
    GroupedBiasArgs => grouped_bias,
    WidenArgs => widen,
    CountersArgs => counters,
}

pub struct Backend {
    pub name: &'static str,
    table: &'static OpTable,
}

/// The reference backend on host memory.
pub fn cpu_table() -> &'static OpTable {
    &cpu::TABLE
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
        Ok((backend, why)) => format!("{},{why}", backend.name),
        Err(why) => format!("none,{why}"),
    });
    chosen.map(|(backend, _)| backend)
}

/// Called in the child of a fork.
pub(crate) fn note_fork() {
    if matches!(CURRENT.get(), Some(Ok(backend)) if backend.name == "cuda") {
        FORKED_WITH_CUDA.store(true, Ordering::Relaxed);
    }
}

/// The backend to use, and why.
fn choose() -> std::result::Result<(Backend, String), String> {
    let choice = env().backend.clone()?;
    let cpu = |why: String| Ok((Backend { name: "cpu", table: cpu_table() }, why));
    if choice == BackendChoice::Cpu {
        return cpu("NVTE_BACKEND=cpu".into());
    }
    match cuda_table() {
        Ok(table) => Ok((Backend { name: "cuda", table }, "device found".into())),
        Err(why) if choice == BackendChoice::Cuda => Err(format!("NVTE_BACKEND=cuda: {why}")),
        Err(why) => cpu(format!("cuda declined: {why}")),
    }
}

/// Runs an operator with checked arguments on the backend of this process.
pub(crate) fn run<A: Operator>(args: &A, stream: cudaStream_t) -> Result<()> {
    let backend = current()?;
    let entry = A::entry(backend.table).ok_or_else(|| missing(backend, A::NAME))?;
    // SAFETY: the arguments have been checked by the operator's plan().
    let outcome = memory::caught(|| unsafe { entry(args, stream) })?;
    verbose::line(Level::Exec, "exec", || format!("{},{},{args:?}", backend.name, A::NAME));
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
    /// A static name.
    pub(crate) implementation: *const c_char,
    /// "name: reason" of other implementations, one a line.
    pub(crate) rejected: String,
}

/// What the backend of this process would do with an attention. An error if nothing.
pub(crate) fn attention_plan(args: &AttentionArgs) -> Result<Planned> {
    let backend = current()?;
    let entry = backend.table.attention_plan.ok_or_else(|| missing(backend, "attention_plan"))?;
    let mut plan = AttentionPlan {
        workspace_bytes: 0,
        implementation: std::ptr::null(),
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
    let rejected = text(plan.rejected);
    verbose::line(Level::Dispatch, "attention", || {
        format!("{},{},{}", backend.name, text(plan.implementation), rejected.replace('\n', ";"))
    });
    let AttentionPlan { workspace_bytes, implementation, .. } = plan;
    Ok(Planned { workspace_bytes, implementation, rejected })
}

/// Calls a table entry that is no operator: memory, streams, properties.
pub(crate) fn call(name: &str, body: impl FnOnce(&OpTable) -> Option<Outcome>) -> Result<()> {
    let backend = current()?;
    let outcome = body(backend.table).ok_or_else(|| missing(backend, name))?;
    finish(backend, name, outcome)
}

fn missing(backend: &Backend, entry: &str) -> Error {
    Error::unsupported(format!("backend {} has no {entry}", backend.name))
}

fn finish(backend: &Backend, entry: &str, outcome: Outcome) -> Result<()> {
    let text = || format!("{} ({entry}): {}", backend.name, outcome.reason());
    match outcome.status {
        BackendStatus::NVTEX_BACKEND_OK => Ok(()),
        BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED => {
            verbose::line(Level::Dispatch, "dispatch", || format!("declined,{}", text()));
            Err(Error::unsupported(text()))
        }
        BackendStatus::NVTEX_BACKEND_DEVICE_ERROR => Err(Error::device(text())),
    }
}
