//! Policies: which implementations may run, and in which order they are asked.
//!
//! A policy is a text such as `prefer=vendor; deny_vendors=acme; gemm=vendor:apex|*`, from variables or from the
//! program (`settings.rs`). Equal policies are one object, which is never freed. It keeps the lists of candidates that
//! follow from it and from what is registered (`lists.rs`); a call takes the list of its variant and looks at nothing
//! else. Threads may have policies of their own (`scopes.rs`).
#![allow(unsafe_code)]

mod lists;
mod scopes;
mod settings;

pub use lists::{Chain, View};
pub use scopes::{
    Extra, floor, has_extra, no_extras, pop, push, refresh_extras, scoped, set_extra,
};
pub use settings::Settings;

use crate::backend::registry::{self, Impl, Text};
use crate::env::env;
use crate::error::{Error, Result};
use crate::fork::{self, Held};
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Settings that the process has met, and their lists of candidates.
pub struct Policy {
    pub settings: Settings,
    /// The settings as a text.
    pub text: Text,
    view: AtomicPtr<View>,
}

impl Policy {
    pub fn deterministic(&self) -> bool {
        self.settings.deterministic
    }

    /// The lists, unless others are registered by now.
    #[inline]
    fn view(&self) -> Option<&'static View> {
        let view = self.view.load(Ordering::Acquire);
        // SAFETY: a view is never freed.
        let view = unsafe { view.as_ref() }?;
        (view.generation == registry::generation()).then_some(view)
    }

    /// This policy with the changes of a text.
    pub fn derive(&self, argument: &str, changes: &str) -> Result<&'static Self> {
        let mut settings = self.settings.clone();
        settings.change(argument, changes)?;
        Ok(intern(settings))
    }
}

/// All policies, by their text.
static POLICIES: Mutex<BTreeMap<String, &'static Policy>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps other threads from making policies and lists until the result is dropped.
pub fn hold(deadline: Instant) -> Box<dyn Held> {
    let building = fork::patiently(deadline, || lists::BUILDING.try_lock());
    let set = fork::patiently(deadline, || SET.try_lock());
    Box::new((building, set, fork::patiently(deadline, || POLICIES.try_lock())))
}

fn intern(settings: Settings) -> &'static Policy {
    let text = settings.to_string();
    let mut policies = lock(&POLICIES);
    if let Some(policy) = policies.get(&text) {
        return policy;
    }
    let policy = Policy { settings, text: text.as_str().into(), view: AtomicPtr::new(null_mut()) };
    let policy: &'static Policy = Box::leak(Box::new(policy));
    policies.insert(text, policy);
    policy
}

/// The policy without any settings.
pub fn defaults() -> &'static Policy {
    intern(Settings::default())
}

/// The policy of the variables; an error if one of them is wrong.
pub fn of_environment() -> Result<&'static Policy> {
    static ENVIRONMENT: OnceLock<std::result::Result<&Policy, String>> = OnceLock::new();
    env();
    let policy = fork::once(&ENVIRONMENT, || {
        Settings::of_environment().map(intern).map_err(|error| error.message)
    });
    policy.as_ref().copied().map_err(Error::wrong_argument)
}

/// The policy of the process, null until it is asked for and after the program has taken its own back.
static PROCESS: AtomicPtr<Policy> = AtomicPtr::new(null_mut());

/// The policy that the program has set for the process, if it has.
static SET: Mutex<Option<&'static Policy>> = Mutex::new(None);

/// The policy of the process.
pub fn of_process() -> Result<&'static Policy> {
    // SAFETY: a policy is never freed.
    if let Some(policy) = unsafe { PROCESS.load(Ordering::Acquire).as_ref() } {
        return Ok(policy);
    }
    let environment = of_environment()?;
    let set = lock(&SET);
    let policy = set.unwrap_or(environment);
    PROCESS.store(std::ptr::from_ref(policy).cast_mut(), Ordering::Release);
    Ok(policy)
}

/// Sets the policy of the process, none for that of the variables, and returns what was set before.
pub fn set_process(policy: Option<&'static Policy>) -> Option<&'static Policy> {
    let mut set = lock(&SET);
    let pointer = policy.map_or(null_mut(), |policy| std::ptr::from_ref(policy).cast_mut());
    PROCESS.store(pointer, Ordering::Release);
    std::mem::replace(&mut *set, policy)
}

/// The policy of calls of this thread.
pub fn current() -> Result<&'static Policy> {
    scopes::of_thread().map_or_else(of_process, Ok)
}

/// The lists of the process, if nothing else has to be looked at.
#[inline]
pub fn usual() -> Option<&'static View> {
    if !no_extras() {
        return None;
    }
    // SAFETY: a policy is never freed.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }?.view()
}

/// The lists of calls of this thread.
pub fn view() -> Result<&'static View> {
    let policy = current()?;
    match policy.view() {
        Some(view) => Ok(view),
        None => lists::build(policy),
    }
}

/// The lists from which sizes and support are told: those of the process, whatever policies a thread has on its
/// stack, because front ends ask on one thread and run on another. Only the domain is that of the thread's calls.
pub fn view_for_sizes() -> Result<&'static View> {
    let process = of_process()?;
    let policy = match scopes::of_thread() {
        Some(own) if own.settings.domain != process.settings.domain => {
            intern(process.settings.in_domain_of(&own.settings))
        }
        _ => process,
    };
    match policy.view() {
        Some(view) => Ok(view),
        None => lists::build(policy),
    }
}

/// 64 bits of the policy of this thread's calls and of what is registered, equal in all processes where these are.
pub fn fingerprint() -> Result<u64> {
    registry::discover()?;
    let (_, registered) = registry::snapshot();
    let line = |one: &&Impl| format!("{} {} {}", one.name(), one.id, one.version);
    let mut lines: Vec<String> = registered.iter().flatten().map(line).collect();
    lines.sort_unstable();
    lines.push(current()?.text.to_string());
    // FNV-1a, whose value is the same everywhere.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    Ok(lines.join("\n").bytes().fold(0xcbf2_9ce4_8422_2325, hash))
}
