//! Backends: the call of an operator by the implementation that a policy chooses, in the domain of its memory.
#![allow(unsafe_code)]

pub mod args;
pub(crate) mod buf;
pub(crate) mod call;
pub(crate) mod cpu;
#[cfg(nvte_cuda)]
mod cublaslt;
#[cfg(nvte_cuda)]
mod cuda;
#[cfg(nvte_cuda)]
mod cudnn_handle;
pub(crate) mod domain;
pub(crate) mod explain;
pub(crate) mod fp8;
pub(crate) mod graph;
pub(crate) mod group;
#[cfg(feature = "cuda")]
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod operators;
#[cfg(any(nvte_cuda, test))]
mod parts;
pub(crate) mod plugin;
pub(crate) mod policy;
pub(crate) mod pool;
pub(crate) mod registry;
mod scratch;
mod trace;
#[cfg(nvte_cuda)]
mod tune;

use crate::error::{self, Error, Result};
use crate::fork::Held;
use crate::types::cudaStream_t;
use crate::verbose::{self, Level};
use args::*;
use call::{Operation, Opinion};
#[cfg(nvte_cuda)]
use domain::CUDA;
use domain::{CPU, Domain, Functions};
use registry::{BuiltIns, Impl, Kind};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;
use std::time::Instant;

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

/// The table of the CPU backend. Its functions are those of operators, which know this module, so that they
/// come here when the library is loaded.
static CPU_TABLE: OnceLock<&'static OpTable> = OnceLock::new();

/// Enters the table of the CPU backend. Called once, before any other function.
pub(crate) fn set_cpu_table(table: &'static OpTable) {
    CPU_TABLE.get_or_init(|| table);
    registry::set_built_ins(built_ins);
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

/// The domains and implementations of the library itself.
fn built_ins() -> BuiltIns {
    #[allow(unused_mut, reason = "a build without CUDA has no more than these")]
    let mut all = BuiltIns {
        domains: vec![(CPU, 0, Functions::BuiltIn(|| Ok(cpu_table())))],
        impls: vec![("reference.cpu", None, CPU, Kind::Reference, cpu_table())],
    };
    #[cfg(nvte_cuda)]
    {
        let vendor = |id, table| (id, Some("nvidia"), CUDA, Kind::Vendor, table);
        all.domains.push((CUDA, args::plugin::NVTEX_DOMAIN_ASYNC, Functions::BuiltIn(cuda_table)));
        all.impls.push(vendor("vendor.nvidia", &cuda::KERNELS));
        all.impls.push(vendor("vendor.cublaslt", &cuda::PRODUCTS));
    }
    all
}

/// The locks of this module and those below, until the results are dropped.
pub(crate) fn hold(deadline: Instant) -> Vec<Box<dyn Held>> {
    vec![
        policy::hold(deadline),
        registry::hold(deadline),
        scratch::hold(deadline),
        trace::hold(deadline),
    ]
}

/// Called in the child of a fork, when no locks are held.
pub(crate) fn note_fork() {
    registry::note_fork();
    scratch::note_fork();
    trace::note_fork();
}

/// The domain of calls of this thread: pointers of one domain mean nothing to another.
pub(crate) fn domain() -> Result<&'static Domain> {
    match policy::usual() {
        Some(view) => Ok(view.domain),
        None => Ok(policy::view()?.domain),
    }
}

/// Runs an operator with checked arguments by the first candidate that takes it.
#[inline]
pub(crate) fn run<A: Operator>(args: &A, stream: cudaStream_t) -> Result<()> {
    if let Some(view) = policy::usual() {
        let place = registry::place(A::NUMBER, args.variant());
        let chain = view.chain(place);
        if let Some(entry) = chain.direct.and_then(A::entry) {
            // SAFETY: the arguments have been checked by the operator's plan().
            let outcome = memory::caught(|| unsafe { entry(args, stream) })?;
            if outcome.status() == BackendStatus::NVTEX_BACKEND_OK {
                call::note(place, chain.candidates[0]);
                return Ok(());
            }
            return refused(args, stream, chain.candidates[0], outcome);
        }
        return with_operation(args, stream, |operation| call::run_unseen(operation, view, chain));
    }
    with_operation(args, stream, dispatch)
}

/// What follows when the first candidate has not run a call.
#[cold]
#[inline(never)]
fn refused<A: Operator>(
    args: &A,
    stream: cudaStream_t,
    one: &'static Impl,
    outcome: Outcome,
) -> Result<()> {
    match outcome.status() {
        // It has written nothing. The others are asked after it is asked again, which has the same answer.
        BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED => with_operation(args, stream, dispatch),
        _ => with_operation(args, stream, |operation| {
            Err(call::failed(one, operation, &outcome.reason()))
        }),
    }
}

/// Runs a call, or says who would run it where the thread has asked for that.
fn dispatch(operation: &Operation) -> Result<()> {
    match explain::is_on() {
        true => explain::explain(operation, policy::view()?),
        false => call::run(operation),
    }
}

/// Applies `body` to a call of whichever operator it is.
fn with_operation<A: Operator, R>(
    args: &A,
    stream: cudaStream_t,
    body: impl FnOnce(&Operation) -> R,
) -> R {
    let direct = |table: &'static OpTable| {
        // SAFETY: the arguments have been checked by the operator's plan().
        A::entry(table).map(|entry| memory::caught(|| unsafe { entry(args, stream) }))
    };
    body(&Operation {
        op: A::NUMBER,
        variant: args.variant(),
        args: std::ptr::from_ref(args).cast(),
        args_size: size_of::<A>(),
        stream,
        workspace: args.workspace(),
        facts: &|facts| *facts = args.facts(),
        bytes: &|| args.bytes(),
        direct: &direct,
        text: args,
    })
}

/// How an attention would run.
pub(crate) struct Planned {
    pub(crate) workspace_bytes: usize,
    /// The number of the implementation among those of the backend; [`NO_OWN`] if it has none.
    pub(crate) implementation: u32,
    /// The name of what runs it, static.
    pub(crate) name: *const c_char,
    /// "name: reason" of other implementations, one a line, if the caller has asked for it.
    pub(crate) rejected: String,
}

/// A number that no implementation of a backend has: the backend declines.
const NO_OWN: u32 = u32::MAX;

/// Whether a view has nobody but one of the library's own for an attention.
fn only_own(view: &policy::View, place: usize) -> Option<&'static OpTable> {
    let chain = view.chain(place);
    chain.direct.filter(|_| chain.candidates.len() == 1)
}

/// Who would run an attention under the policy of the process, which is the same for every thread that asks, and
/// with `explain` why others would not. The workspace is for whichever candidate may run it. An error, with all
/// reasons, if nobody takes it.
pub(crate) fn attention_plan(args: &AttentionArgs, explain: bool) -> Result<Planned> {
    let explain = explain || verbose::enabled(Level::Dispatch);
    let view = policy::view_for_sizes()?;
    let place = registry::place(AttentionArgs::NUMBER, args.variant());
    let planned = match only_own(view, place) {
        // If it declines, everybody's reasons are told.
        Some(table) => match own_plan(args, table, explain)? {
            Ok(planned) => planned,
            Err(_) => plan_among(args, explain, view)?,
        },
        None => plan_among(args, explain, view)?,
    };
    verbose::line(Level::Dispatch, "attention", || {
        let domain = view.domain;
        // SAFETY: the name of an implementation is a C string that is never freed.
        let name = unsafe { CStr::from_ptr(planned.name) }.to_string_lossy();
        format!("{domain},{name},{}", planned.rejected.replace('\n', ";"))
    });
    Ok(planned)
}

/// What one of the library's own would do with an attention, or why it declines.
fn own_plan(
    args: &AttentionArgs,
    table: &'static OpTable,
    explain: bool,
) -> Result<std::result::Result<Planned, String>> {
    let Some(entry) = table.attention_plan else {
        return Ok(Err("it plans no attention".into()));
    };
    let mut plan = AttentionPlan {
        explain,
        workspace_bytes: 0,
        implementation: 0,
        name: std::ptr::null(),
        rejected: std::ptr::null(),
    };
    // SAFETY: the arguments have been checked by the operator's plan().
    let outcome = memory::caught(|| unsafe { entry(args, &mut plan) })?;
    match outcome.status() {
        BackendStatus::NVTEX_BACKEND_OK => {}
        BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED => return Ok(Err(outcome.reason())),
        _ => return Err(Error::device(format!("attention_plan: {}", outcome.reason()))),
    }
    let AttentionPlan { workspace_bytes, implementation, name, .. } = plan;
    let rejected = match plan.rejected.is_null() {
        true => String::new(),
        // SAFETY: a backend's text is a C string that lives until the thread's next backend call.
        false => unsafe { CStr::from_ptr(plan.rejected) }.to_string_lossy().into_owned(),
    };
    Ok(Ok(Planned { workspace_bytes, implementation, name, rejected }))
}

/// The plan where there are several candidates: the workspace is the most that one of those needs that take the
/// call.
fn plan_among(args: &AttentionArgs, explain: bool, view: &'static policy::View) -> Result<Planned> {
    let mut own = None;
    let mut plan_own = |_: &'static Impl, table: &'static OpTable| {
        Ok(own_plan(args, table, explain)?.map(|planned| own.insert(planned).workspace_bytes))
    };
    let opinions = with_operation(args, std::ptr::null_mut(), |operation| {
        let opinions = call::opinions(operation, view, &mut plan_own)?;
        let takes = |(_, opinion): &(_, Opinion)| matches!(opinion, Opinion::Takes(_));
        match opinions.iter().any(takes) {
            true => Ok(opinions),
            false => Err(call::nobody(operation, view, &opinions)),
        }
    })?;
    let first = opinions.iter().find(|(_, opinion)| matches!(opinion, Opinion::Takes(_)));
    let first = first.map_or(c"".as_ptr(), |(first, _)| match (&first.code, &own) {
        (registry::Code::BuiltIn(_), Some(own)) => own.name,
        _ => first.id.as_ptr(),
    });
    let declined = opinions.iter().filter_map(|(one, opinion)| match opinion {
        Opinion::Declines(why) => Some(format!("{}: {why}", one.id)),
        Opinion::Takes(_) => None,
    });
    let mut rejected: Vec<String> = declined.collect();
    let mut implementation = NO_OWN;
    if let Some(own) = own {
        implementation = own.implementation;
        rejected.extend(Some(own.rejected).filter(|text| !text.is_empty()));
    }
    Ok(Planned {
        workspace_bytes: call::most_workspace(&opinions),
        implementation,
        name: first,
        rejected: rejected.join("\n"),
    })
}

/// Bytes of workspace with which a call, whose own workspace is null, is run by whichever candidate may run it.
/// `own` has a function of a backend write what that needs to `needed`.
pub(crate) fn workspace<A: Operator>(args: &A, needed: &dyn Fn() -> usize) -> Result<usize> {
    let sizes = policy::view_for_sizes()?;
    with_operation(args, std::ptr::null_mut(), |operation| {
        let opinions = call::opinions(operation, sizes, &mut |_, table| {
            let outcome =
                (operation.direct)(table).unwrap_or(Ok(Outcome::unimplemented("no entry")))?;
            Ok(match outcome.status() {
                BackendStatus::NVTEX_BACKEND_OK => Ok(needed()),
                _ => Err(outcome.reason()),
            })
        })?;
        let takes = |(_, opinion): &(_, Opinion)| matches!(opinion, Opinion::Takes(_));
        match opinions.iter().any(takes) {
            true => Ok(call::most_workspace(&opinions)),
            false => Err(call::nobody(operation, sizes, &opinions)),
        }
    })
}

/// The properties of the current device.
pub(crate) fn device_properties() -> Result<DeviceProperties> {
    domain()?.properties()
}

/// The handle of cuDNN that belongs to this thread and the current device, made at the first call.
pub(crate) fn cudnn_handle() -> Result<*mut c_void> {
    let domain = domain()?;
    #[cfg(nvte_cuda)]
    if domain.name() == CUDA {
        return cudnn_handle::get(device_properties()?.device);
    }
    Err(Error::unsupported(format!(
        "cuDNN computes on CUDA devices only, and the domain of this call is {domain}"
    )))
}
