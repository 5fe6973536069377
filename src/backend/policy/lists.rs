//! The lists of candidates that follow from a policy and from what is registered, and the domain that they are for.
#![allow(unsafe_code)]

use super::{Extra, Policy, lock, refresh_extras, set_extra};
use crate::backend::args::plugin::NVTEX_CALL_DETERMINISTIC;
use crate::backend::args::{OPERATORS, OpTable};
use crate::backend::domain::{CPU, CUDA, Domain};
use crate::backend::registry::{self, Code, Impl, VARIANTS, place};
use crate::env::{drop_in, env};
use crate::error::{Error, Result};
use crate::verbose::{self, Level};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock};

/// The implementations that are asked for a variant, in order.
#[derive(Clone, Copy)]
pub struct Chain {
    /// Place of the variant among those of all operators.
    pub place: usize,
    pub candidates: &'static [&'static Impl],
    /// The functions of the first one if it is the library's own.
    pub direct: Option<&'static OpTable>,
}

/// What follows from a policy and from what is registered: the lists of all variants. Never changed.
pub struct View {
    pub(super) generation: u64,
    /// Flags of the records that plugins get.
    pub flags: u32,
    pub policy: &'static Policy,
    pub domain: &'static Domain,
    chains: Box<[Chain]>,
    /// What it has replaced and a thread may still read. Nobody goes back to it, but a program that looks for lost
    /// memory finds it here.
    _former: Option<&'static View>,
}

impl View {
    /// The list at the place of a variant.
    #[inline]
    pub fn chain(&self, place: usize) -> &Chain {
        &self.chains[place]
    }

    pub fn is_candidate(&self, op: u32, variant: u32, one: &Impl) -> bool {
        let chain = self.chain(place(op, variant)).candidates;
        chain.iter().any(|candidate| std::ptr::eq(*candidate, one))
    }

    /// Why each other implementation of the variant is no candidate.
    #[cold]
    pub fn excluded(&self, op: u32, variant: u32) -> Vec<(&'static Impl, String)> {
        let others = registry::impls(op)
            .into_iter()
            .filter(|one| one.covers(variant) && !self.is_candidate(op, variant, one));
        let settings = &self.policy.settings;
        let why = |one: &'static Impl| {
            let why =
                settings.excludes(one, self.domain).unwrap_or_else(|| match settings.strict {
                    true => "behind the first word of the order, which is strict".into(),
                    false => "the order does not name it".into(),
                });
            (one, why)
        };
        others.map(why).collect()
    }
}

/// Held while lists are built, so that threads that want the same ones do not each build them.
pub(super) static BUILDING: Mutex<()> = Mutex::new(());

/// Builds the lists of a policy.
#[cold]
pub(super) fn build(policy: &'static Policy) -> Result<&'static View> {
    registry::discover()?;
    let domain = match &policy.settings.domain {
        Some(name) => registry::domain(name).ok_or_else(|| no_domain("a policy's domain", name))?,
        None => default_domain()?,
    };
    domain.start()?;
    let _building = lock(&BUILDING);
    if let Some(view) = policy.view() {
        return Ok(view);
    }
    // SAFETY: a view is never freed.
    let old = unsafe { policy.view.load(Ordering::Acquire).as_ref() };
    let (generation, registered) = registry::snapshot();
    let mut chains = Vec::with_capacity(VARIANTS);
    for (op, registered) in registered.iter().enumerate() {
        for variant in 0..OPERATORS[op].variant_count as u32 {
            let place = (op as u32, variant);
            let candidates = policy.settings.candidates(place, domain, registered);
            // A list that has not changed is shared with the view before, so that commits cost little memory.
            let same = |old: &&[&'static Impl]| {
                old.len() == candidates.len()
                    && old.iter().zip(&candidates).all(|(a, b)| std::ptr::eq(*a, *b))
            };
            let before = old.map(|old| old.chain(chains.len()).candidates).filter(same);
            let candidates = before.unwrap_or_else(|| candidates.leak());
            let direct = match candidates.first() {
                Some(Impl { code: Code::BuiltIn(table), domain: own, .. })
                    if std::ptr::eq(*own, domain) =>
                {
                    Some(*table)
                }
                _ => None,
            };
            chains.push(Chain { place: chains.len(), candidates, direct });
        }
    }
    let flags = if policy.deterministic() { NVTEX_CALL_DETERMINISTIC } else { 0 };
    let view = View { generation, flags, policy, domain, chains: chains.into(), _former: old };
    let view: &'static View = Box::leak(Box::new(view));
    policy.view.store(std::ptr::from_ref(view).cast_mut(), Ordering::Release);
    refresh_extras();
    set_extra(Extra::Start, false);
    Ok(view)
}

fn no_domain(argument: &str, name: &str) -> Error {
    let known = registry::domains();
    let known: Vec<_> = known.iter().map(|domain| domain.name()).collect();
    let cuda = match known.contains(&CUDA) {
        false if name == CUDA => "; this build has no CUDA kernels",
        _ => "",
    };
    let expected = format!("one of auto, {}", known.join(", "));
    let text = format!("{argument}: expected {expected}, got {name:?}{cuda}");
    Error::unsupported(text)
}

/// The domain of calls whose policy names none, chosen at the first one and then fixed.
fn default_domain() -> Result<&'static Domain> {
    static DEFAULT: OnceLock<&'static Domain> = OnceLock::new();
    if let Some(domain) = DEFAULT.get() {
        return Ok(domain);
    }
    // Chosen without a lock, because functions of plugins are asked; threads that come here together choose alike.
    let chosen = choose();
    verbose::line(Level::Dispatch, "backend", || match &chosen {
        Ok((domain, why)) => format!("{domain},{why}"),
        Err(why) => format!("none,{}", why.message),
    });
    chosen.map(|(domain, _)| *DEFAULT.get_or_init(|| domain))
}

/// The domain to use, and why.
fn choose() -> Result<(&'static Domain, String)> {
    let name = env().backend.as_str();
    if name != "auto" {
        let domain = registry::domain(name).ok_or_else(|| no_domain("NVTE_BACKEND", name))?;
        return match domain.start() {
            Ok(()) => Ok((domain, format!("NVTE_BACKEND={name}"))),
            Err(error) => {
                Err(Error { message: format!("NVTE_BACKEND={name}: {}", error.message), ..error })
            }
        };
    }
    let no_cuda = match registry::domain(CUDA).map(|cuda| (cuda, cuda.start())) {
        Some((cuda, Ok(()))) => return Ok((cuda, "device found".into())),
        Some((_, Err(why))) => why.message,
        None => "this build has no CUDA kernels".into(),
    };
    let with_devices: Vec<_> =
        registry::domains().into_iter().filter(|domain| domain.plugin_devices() > 0).collect();
    match with_devices[..] {
        [] if drop_in() => Err(Error::unsupported(format!(
            "no CUDA device ({no_cuda}); NVTE_BACKEND=cpu computes on the processor"
        ))),
        [] => Ok((
            registry::domain(CPU).ok_or_else(|| no_domain("NVTE_BACKEND", CPU))?,
            format!("cuda declined: {no_cuda}"),
        )),
        [domain] => Ok((domain, "the domain of a plugin has a device".into())),
        [first, second, ..] => Err(Error::unsupported(format!(
            "NVTE_BACKEND: expected {first} or {second}, which both have devices, got auto"
        ))),
    }
}
