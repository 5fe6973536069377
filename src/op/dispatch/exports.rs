//! C functions of dispatch.h: operators, implementations, policies, explanations.
#![allow(unsafe_code, non_camel_case_types, clippy::missing_safety_doc)]

use super::POLICIES;
use crate::backend::args::OPERATORS;
use crate::backend::args::plugin::OpInfo as NVTEXOpInfo;
use crate::backend::call;
use crate::backend::explain::{self, Explanation};
use crate::backend::policy::{self, Extra};
use crate::backend::registry::{self, Impl, Text};
use crate::check::truth;
use crate::error::{Error, Handle, Result, guard};
use crate::sized::{self, Grows};
use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;

/// What a handle of a policy points to. Only the library knows what it is.
pub enum NVTEXPolicy_st {}

/// Handle of a policy.
pub type NVTEXPolicy = *mut NVTEXPolicy_st;

/// What is known of an implementation. Texts live as long as the process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXImplInfo {
    /// The size of the struct, set by the caller: so many bytes of it are filled.
    pub struct_size: usize,
    /// Number of the operator.
    pub op: u32,
    /// NVTEX_KIND_DEFAULT, NVTEX_KIND_VENDOR or NVTEX_KIND_REFERENCE.
    pub kind: u32,
    /// The operator or the variant that it was registered for: `softmax`, `softmax.causal_forward`.
    pub name: *const c_char,
    pub id: *const c_char,
    /// Null if it names none.
    pub vendor: *const c_char,
    pub domain: *const c_char,
    /// The plugin that has registered it; null for the library's own.
    pub plugin: *const c_char,
    /// The version of the plugin, or of the library.
    pub version: *const c_char,
    /// As the fields of NVTEXImpl.
    pub priority: i32,
    pub min_arch: u32,
    pub max_arch: u32,
    pub modes: u32,
    pub dtypes: u64,
    pub features: u64,
    pub flags: u32,
    pub numerics: u32,
    pub rtol: f32,
    pub atol: f32,
}

/// What calls of an implementation came to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXImplCounters {
    /// The size of the struct, set by the caller: so many bytes of it are filled.
    pub struct_size: usize,
    /// Calls that it has run.
    pub calls: u64,
    /// Calls that it was asked to run, and declined.
    pub declined: u64,
    /// Calls in which it failed; counted also while counters are off.
    pub failed: u64,
    /// Time of the host in the calls that it has run, with the search for it, in nanoseconds.
    pub host_ns: u64,
}

/// An implementation that does not run a call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXRefusal {
    pub id: *const c_char,
    /// Why it would not run the call; null if it would be asked next.
    pub reason: *const c_char,
}

/// What would become of a call of an operator. Valid until the callback returns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXExplanation {
    pub struct_size: usize,
    /// The variant: `softmax.causal_forward`.
    pub name: *const c_char,
    /// The arguments as a text for people.
    pub arguments: *const c_char,
    /// Id of the implementation that would be asked first to run the call; null if there is none.
    pub chosen: *const c_char,
    /// All other implementations of the variant.
    pub others: *const NVTEXRefusal,
    pub num_others: usize,
}

/// Returns the number of operators. They are numbered from 0 on.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_op_count() -> usize {
    OPERATORS.len()
}

/// Returns what is known of an operator: name, version of its arguments, variants, features. Null with an error for
/// a number that no operator has.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_op_info(op: u32) -> *const NVTEXOpInfo {
    let info = guard("nvtex_op_info", || {
        let info = OPERATORS.get(op as usize).ok_or_else(|| {
            Error::argument("op", format_args!("less than {}", OPERATORS.len()), op)
        })?;
        Ok(Handle(std::ptr::from_ref::<NVTEXOpInfo>(info).cast_mut()))
    });
    info.0
}

/// Returns the number of implementations that are registered, of all operators. It loads the plugins that are
/// configured, if that has not been done.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_impl_count() -> usize {
    guard("nvtex_impl_count", || {
        registry::discover()?;
        Ok(registry::all().len())
    })
}

/// Writes what is known of an implementation, and returns whether there is one of this index. An index stays with
/// its implementation; those that are registered later follow.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_impl_info(index: usize, info: *mut NVTEXImplInfo) -> bool {
    guard("nvtex_impl_info", || {
        let one = implementation(index)?;
        let text = |text: &Text| if text.is_empty() { null() } else { text.as_ptr() };
        let filled = NVTEXImplInfo {
            struct_size: 0,
            op: one.op,
            kind: one.kind as u32,
            name: registry::c_name(one.op, one.variant),
            id: one.id.as_ptr(),
            vendor: one.vendor.as_ref().map_or(null(), text),
            domain: one.domain.c_name().as_ptr(),
            plugin: text(&one.plugin),
            version: one.version.as_ptr(),
            priority: one.priority,
            min_arch: one.limits.min_arch,
            max_arch: one.limits.max_arch,
            modes: one.limits.modes,
            dtypes: one.limits.dtypes,
            features: one.limits.features,
            flags: one.flags,
            numerics: one.numerics.class,
            rtol: one.numerics.rtol,
            atol: one.numerics.atol,
        };
        // SAFETY: the caller vouches for the struct.
        unsafe { sized::write("info", info, &filled) }.map_err(Error::wrong_argument)?;
        Ok(true)
    })
}

/// Writes what calls of an implementation came to since counters were turned on, and returns whether there is one of
/// this index.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_impl_counters(
    index: usize,
    counters: *mut NVTEXImplCounters,
) -> bool {
    guard("nvtex_impl_counters", || {
        let own = &implementation(index)?.counters;
        let filled = NVTEXImplCounters {
            struct_size: 0,
            calls: own.calls.load(Ordering::Relaxed),
            declined: own.declined.load(Ordering::Relaxed),
            failed: own.failed.load(Ordering::Relaxed),
            host_ns: own.host_ns.load(Ordering::Relaxed),
        };
        // SAFETY: the caller vouches for the struct.
        unsafe { sized::write("counters", counters, &filled) }.map_err(Error::wrong_argument)?;
        Ok(true)
    })
}

/// Turns counters of implementations on or off, for the process, and returns whether they were on. Those of all
/// implementations become 0 when they are turned on.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_dispatch_counters(on: MaybeUninit<bool>) -> bool {
    guard("nvtex_dispatch_counters", || {
        let (on, before) = (truth(on), policy::has_extra(Extra::Counters));
        if on && !before {
            registry::all().iter().for_each(|one| one.counters.clear());
        }
        policy::set_extra(Extra::Counters, on);
        Ok(before)
    })
}

/// Turns checks of what plugins promise on or off, for the process, and returns whether they were on. A plugin then
/// fails the call in which its `supports` or `needs` answers otherwise when NVTEX_CALL_QUERY is set than when it is not,
/// or in which it writes behind its scratch memory, where that is the host's. Each call asks twice, so that this is for
/// tests; `nvtex-conform` does it.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_dispatch_check(on: MaybeUninit<bool>) -> bool {
    guard("nvtex_dispatch_check", || {
        let before = policy::has_extra(Extra::Check);
        policy::set_extra(Extra::Check, truth(on));
        Ok(before)
    })
}

/// Returns the id of the implementation that has last run a variant (`softmax.causal_forward`; an operator without
/// variants by its own name) in this process; null if none has.
///
/// Errors: no variant has the name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_impl_last(variant: *const c_char) -> *const c_char {
    let id = guard("nvtex_impl_last", || {
        // SAFETY: the caller vouches for a C string.
        let name = unsafe { text("variant", variant) }?;
        let expected = "the name of a variant, such as softmax.causal_forward";
        let wrong = || Error::argument("variant", expected, format!("{name:?}"));
        let (op, variant) = registry::find_op(name).ok_or_else(wrong)?;
        let single = OPERATORS[op as usize].variant_count == 1;
        let variant = variant.or(single.then_some(0)).ok_or_else(wrong)?;
        Ok(Handle(call::last(op, variant).map_or(null_mut(), |one| one.id.as_ptr().cast_mut())))
    });
    id.0
}

/// Returns a number that each registration of a plugin raises.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_dispatch_generation() -> u64 {
    registry::generation()
}

/// Returns 64 bits of the policy of the calling thread and of the operators, ids and versions of what is registered.
/// They are equal in processes where these are equal, whatever was loaded first and from where: ranks compare them.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_dispatch_fingerprint() -> u64 {
    guard("nvtex_dispatch_fingerprint", policy::fingerprint)
}

/// Creates a policy: `base`, or the defaults if that is null, with the changes of a text.
///
/// A policy says which implementations may run, and in which order they are asked. The text has pieces
/// `NAME=VALUE`, divided by semicolons; names and values are read without case:
///
/// - `prefer=default|vendor|reference`: the kind that is asked first. The other two follow. (`flagos` is another
///   word for `default`.) Of one kind, a higher priority comes first, and of one priority the lower id.
/// - `OPERATOR=WORD|WORD` (`gemm=vendor:acme|*`) or `VARIANT=WORD|WORD` (`softmax.causal_forward=impl:a.b`): the
///   order for one operator or variant in place of `prefer`; `order=WORD|WORD` is for all that have none of their
///   own. A word is `default`, `vendor`, `reference`, `vendor:NAME`, `impl:ID`, or `*` for all that are left. What no
///   word stands for is not asked.
/// - `strict=1`: nothing but what the first word stands for runs. Where neither an order nor `prefer` is given, this is
///   the first of the words default, vendor and reference that stands for anything.
/// - `allow_vendors=NAME,NAME`, `none` or `all`; `deny_vendors=NAME,NAME` or `none`: vendors whose implementations
///   may run, and those whose may not. Denied beats allowed. They bind all implementations that name a vendor.
/// - `deterministic=1`: implementations that are not deterministic do not run, and attentions add in a fixed order, as
///   with their own option of this name. That may change the size of their workspace.
/// - `domain=NAME`: the domain of calls, of memory and of streams; `domain=auto`: that of the process.
///
/// Names of vendors, ids and domains need not exist when the policy is created.
///
/// Errors: a piece that is not of this form, or names an operator that does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_policy_create(
    base: NVTEXPolicy,
    changes: *const c_char,
) -> NVTEXPolicy {
    let handle = guard("nvtex_policy_create", || {
        let base = if base.is_null() { policy::defaults() } else { POLICIES.get("base", base)? };
        // SAFETY: the caller vouches for a C string.
        let changes = unsafe { text("changes", changes) }?;
        Ok(Handle(POLICIES.insert(base.derive("changes", changes)?)?))
    });
    handle.0
}

/// Creates a policy of what the variables `NVTE_PREFER`, `NVTE_STRICT`, `NVTE_OP_ORDER`, `NVTE_ALLOW_VENDORS` and
/// `NVTE_DENY_VENDORS` were at the first call. Their values are those of the pieces of `nvtex_policy_create`;
/// `NVTE_OP_ORDER` holds orders, divided by semicolons.
///
/// Errors: a wrong value. It fails every operator, too, unless the program has set a policy of the process.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_policy_from_env() -> NVTEXPolicy {
    let handle =
        guard("nvtex_policy_from_env", || Ok(Handle(POLICIES.insert(policy::of_environment()?)?)));
    handle.0
}

/// Creates a handle of the policy of the calling thread: the top of its stack, or else that of the process. Threads
/// do not inherit policies: push this one there.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_policy_current() -> NVTEXPolicy {
    let handle = guard("nvtex_policy_current", || Ok(Handle(POLICIES.insert(policy::current()?)?)));
    handle.0
}

/// Returns a text from which `nvtex_policy_create` makes the same policy. It lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_policy_text(policy: NVTEXPolicy) -> *const c_char {
    let text = guard("nvtex_policy_text", || {
        Ok(Handle(POLICIES.get("policy", policy)?.text.as_ptr().cast_mut()))
    });
    text.0
}

/// Destroys the handle of a policy. Where the policy is in use, it stays in use. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_policy_destroy(policy: NVTEXPolicy) {
    guard("nvtex_policy_destroy", || match policy.is_null() {
        true => Ok(()),
        false => POLICIES.remove("policy", policy),
    });
}

/// Sets the policy of the process, null for that of the variables, and returns a handle of what was set before,
/// null if that was the policy of the variables.
///
/// Whether an attention is supported, and the sizes that queries report, follow this policy, never that of a thread's
/// stack. What was captured in a graph stays as it is.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_policy_set(policy: NVTEXPolicy) -> NVTEXPolicy {
    let former = guard("nvtex_policy_set", || {
        let new = match policy.is_null() {
            true => None,
            false => Some(POLICIES.get("policy", policy)?),
        };
        match policy::set_process(new) {
            Some(former) => Ok(Handle(POLICIES.insert(former)?)),
            None => Ok(Handle(null_mut())),
        }
    });
    former.0
}

/// Puts a policy on the stack of the calling thread, whose calls follow it until `nvtex_policy_pop`. A tape keeps the
/// policy of its forward pass, and the backward pass follows that on any thread.
///
/// Errors: 32 policies are on the stack.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_policy_push(policy: NVTEXPolicy) {
    guard("nvtex_policy_push", || policy::push(POLICIES.get("policy", policy)?));
}

/// Takes the last policy from the stack of the calling thread.
///
/// Errors: there is none.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_policy_pop() {
    guard("nvtex_policy_pop", policy::pop);
}

/// Has operators of the calling thread explain themselves until `nvtex_explain_end`: functions of the library check
/// their arguments and choose implementations as ever, but what operators would write is not written. For each operator
/// `callback` gets what would run, what would not, and why. An implementation that would be asked may still decline
/// when it runs. A call that no implementation takes fails as it would otherwise.
///
/// Functions that are no operators (memory, copies, streams) act as ever.
///
/// Errors: operators of the thread explain themselves already; a null callback.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_explain_begin(
    callback: Option<unsafe extern "C" fn(user: *mut c_void, explanation: *const NVTEXExplanation)>,
    user: *mut c_void,
) {
    guard("nvtex_explain_begin", || {
        let callback = callback.ok_or_else(|| Error::argument("callback", "a function", "null"))?;
        explain::begin(Box::new(move |explanation: &Explanation| {
            let c = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
            let [name, arguments] = [explanation.name, explanation.arguments].map(c);
            let chosen = explanation.chosen.map(c);
            let others: Vec<_> = explanation
                .others
                .iter()
                .map(|(id, reason)| (c(id), reason.as_deref().map(c)))
                .collect();
            let pointer =
                |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
            let refusals: Vec<_> = others
                .iter()
                .map(|(id, reason)| NVTEXRefusal { id: id.as_ptr(), reason: pointer(reason) })
                .collect();
            let explanation = NVTEXExplanation {
                struct_size: size_of::<NVTEXExplanation>(),
                name: name.as_ptr(),
                arguments: arguments.as_ptr(),
                chosen: pointer(&chosen),
                others: refusals.as_ptr(),
                num_others: refusals.len(),
            };
            // SAFETY: the caller vouches for the function, and gets back its pointer.
            unsafe { callback(user, &explanation) };
        }))
    });
}

/// Has operators of the calling thread run again.
///
/// Errors: they do not explain themselves.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_explain_end() {
    guard("nvtex_explain_end", explain::end);
}

// SAFETY: the layout is that of C, begins with the size, and null pointers and zeros are values of all fields.
unsafe impl Grows for NVTEXImplInfo {
    const LEAST: usize = size_of::<Self>();
}

// SAFETY: as above.
unsafe impl Grows for NVTEXImplCounters {
    const LEAST: usize = size_of::<Self>();
}

fn implementation(index: usize) -> Result<&'static Impl> {
    registry::discover()?;
    let all = registry::all();
    let wrong = || Error::argument("index", format_args!("less than {}", all.len()), index);
    all.get(index).copied().ok_or_else(wrong)
}

/// # Safety
/// `text` is null or a C string that outlives the result.
unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(Error::argument(name, "a text", "null"));
    }
    // SAFETY: as promised by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::argument(name, "a text in UTF-8", format_args!("{text:?}")))
}
