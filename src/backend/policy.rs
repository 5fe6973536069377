//! Policies: which implementations may run, and in which order they are asked.
//!
//! A policy is a text such as `prefer=vendor; deny_vendors=acme; gemm=vendor:apex|*`, from variables or from the
//! program. Equal policies are one object, which is never freed. It keeps the lists of candidates that follow from
//! it and from what is registered; a call takes the list of its variant and looks at nothing else.
#![allow(unsafe_code)]

use super::args::plugin::{NVTEX_CALL_DETERMINISTIC, NVTEX_IMPL_DETERMINISTIC};
use super::args::{OPERATORS, OpTable};
use super::domain::{CPU, CUDA, Domain};
use super::registry::{self, Code, Impl, Kind, Text, VARIANTS, op_name, place, variant_name};
use super::trace;
use crate::env::{drop_in, env};
use crate::error::{Error, Result};
use crate::fork::{self, Held};
use crate::verbose::{self, Level};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// A word of an order, which stands for implementations.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Kind(Kind),
    /// `vendor:NAME`
    Vendor(String),
    /// `impl:ID`
    Id(String),
    /// `*`: all that are left, in the order that `prefer` gives.
    Rest,
}

impl Token {
    fn parse(word: &str) -> Option<Self> {
        let named = |prefix: &str| {
            word.strip_prefix(prefix).filter(|name| !name.is_empty()).map(str::to_owned)
        };
        match word {
            "*" => Some(Self::Rest),
            "default" | "flagos" => Some(Self::Kind(Kind::Default)),
            "vendor" => Some(Self::Kind(Kind::Vendor)),
            "reference" => Some(Self::Kind(Kind::Reference)),
            _ => named("vendor:").map(Self::Vendor).or_else(|| named("impl:").map(Self::Id)),
        }
    }

    fn matches(&self, one: &Impl) -> bool {
        match self {
            Self::Kind(kind) => one.kind == *kind,
            Self::Vendor(name) => {
                one.vendor.as_ref().is_some_and(|vendor| vendor.eq_ignore_ascii_case(name))
            }
            Self::Id(id) => one.id.eq_ignore_ascii_case(id),
            Self::Rest => true,
        }
    }
}

impl Display for Token {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => kind.fmt(f),
            Self::Vendor(name) => write!(f, "vendor:{name}"),
            Self::Id(id) => write!(f, "impl:{id}"),
            Self::Rest => f.write_str("*"),
        }
    }
}

/// What an order is for. The narrowest that there is decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    All,
    Op(u32),
    Variant(u32, u32),
}

/// What a policy says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    prefer: Option<Kind>,
    strict: bool,
    orders: BTreeMap<Subject, Vec<Token>>,
    /// None: all vendors.
    allow: Option<BTreeSet<String>>,
    deny: BTreeSet<String>,
    deterministic: bool,
    /// None: the domain of the process.
    domain: Option<String>,
}

const ORDER_WORDS: &str = "default, vendor, reference, vendor:NAME, impl:ID or *, divided by |";

impl Settings {
    /// Changes what `text` names: pieces `name=value`, divided by semicolons. `argument` is where the text comes
    /// from.
    pub fn change(&mut self, argument: &str, text: &str) -> Result<()> {
        if text.trim().is_empty() {
            return Ok(());
        }
        for piece in text.split(';') {
            let wrong =
                |expected: String| Error::argument(argument, expected, format!("{piece:?}"));
            let Some((name, value)) = piece.split_once('=') else {
                return Err(wrong("pieces NAME=VALUE, divided by semicolons".into()));
            };
            let [name, value] = [name, value].map(|part| part.trim().to_ascii_lowercase());
            let switch = || match value.as_str() {
                "0" => Ok(false),
                "1" => Ok(true),
                _ => Err(wrong(format!("{name}=0 or {name}=1"))),
            };
            match name.as_str() {
                "prefer" => match Token::parse(&value) {
                    Some(Token::Kind(kind)) => self.prefer = Some(kind),
                    _ => {
                        return Err(wrong(
                            "prefer=default, prefer=vendor or prefer=reference".into(),
                        ));
                    }
                },
                "strict" => self.strict = switch()?,
                "deterministic" => self.deterministic = switch()?,
                "allow_vendors" => self.allow = vendors(&value, "all").map_err(wrong)?,
                "deny_vendors" => {
                    self.deny = vendors(&value, "").map_err(wrong)?.unwrap_or_default()
                }
                "domain" => {
                    if value.is_empty() {
                        return Err(wrong(
                            "domain=NAME, or domain=auto for that of the process".into(),
                        ));
                    }
                    self.domain = Some(value).filter(|value| value != "auto");
                }
                _ => self.change_order(argument, piece)?,
            }
        }
        Ok(())
    }

    /// Changes one order: `order=...` for all operators, `gemm=...`, or `softmax.causal_forward=...`.
    fn change_order(&mut self, argument: &str, piece: &str) -> Result<()> {
        let wrong = |expected: &str| Error::argument(argument, expected, format!("{piece:?}"));
        let (name, value) = piece
            .split_once('=')
            .ok_or_else(|| wrong("pieces OPERATOR=ORDER, divided by semicolons"))?;
        let name = name.trim();
        let subjects = match name.eq_ignore_ascii_case("order") {
            true => vec![Subject::All],
            false => subjects(name),
        };
        if subjects.is_empty() {
            return Err(wrong(
                "an operator, one of its variants, or order, prefer, strict, allow_vendors, deny_vendors, \
                 deterministic or domain before =",
            ));
        }
        let words = value.split('|').map(|word| Token::parse(&word.trim().to_ascii_lowercase()));
        let order = words.collect::<Option<Vec<_>>>().ok_or_else(|| wrong(ORDER_WORDS))?;
        for subject in subjects {
            self.orders.insert(subject, order.clone());
        }
        Ok(())
    }

    /// What the variables say.
    fn of_environment() -> Result<Self> {
        let mut settings = Self::default();
        let (of, mut pieces) = (&env().policy, Vec::new());
        pieces.push(("NVTE_PREFER", "prefer", &of.prefer));
        pieces.push(("NVTE_STRICT", "strict", &of.strict));
        pieces.push(("NVTE_ALLOW_VENDORS", "allow_vendors", &of.allow_vendors));
        pieces.push(("NVTE_DENY_VENDORS", "deny_vendors", &of.deny_vendors));
        for (variable, name, value) in pieces {
            match value {
                Some(value) if value.contains(';') => {
                    return Err(Error::argument(variable, "no semicolon", format!("{value:?}")));
                }
                Some(value) => settings.change(variable, &format!("{name}={value}"))?,
                None => {}
            }
        }
        for piece in of.op_order.iter().flat_map(|orders| orders.split(';')) {
            settings.change_order("NVTE_OP_ORDER", piece)?;
        }
        Ok(settings)
    }

    /// The order for a variant, and whether the program or the user has named its first word.
    fn order(&self, op: u32, variant: u32) -> (Vec<Token>, bool) {
        let subjects = [Subject::Variant(op, variant), Subject::Op(op), Subject::All];
        match subjects.iter().find_map(|subject| self.orders.get(subject)) {
            Some(order) => (order.clone(), true),
            None => (self.default_order().map(Token::Kind).to_vec(), self.prefer.is_some()),
        }
    }

    fn default_order(&self) -> [Kind; 3] {
        match self.prefer.unwrap_or(Kind::Default) {
            Kind::Default => [Kind::Default, Kind::Vendor, Kind::Reference],
            Kind::Vendor => [Kind::Vendor, Kind::Default, Kind::Reference],
            Kind::Reference => [Kind::Reference, Kind::Default, Kind::Vendor],
        }
    }

    /// Why an implementation of the variant is no candidate in a domain, whatever the order; none if it is one.
    fn excludes(&self, one: &Impl, domain: &Domain) -> Option<String> {
        let in_domain = std::ptr::eq(one.domain, domain);
        let stands_in =
            one.domain.is_host() && one.kind == Kind::Reference && domain.host_accessible();
        if !in_domain && !stands_in {
            return Some(format!("domain {}, the call is on {domain}", one.domain));
        }
        if let Some(vendor) = one.vendor.as_deref().map(str::to_ascii_lowercase) {
            if self.deny.contains(&vendor) {
                return Some(format!("vendor {vendor} is denied (deny_vendors)"));
            }
            if self.allow.as_ref().is_some_and(|allowed| !allowed.contains(&vendor)) {
                return Some(format!("vendor {vendor} is not allowed (allow_vendors)"));
            }
        }
        if self.deterministic && !one.has(NVTEX_IMPL_DETERMINISTIC) {
            return Some("not deterministic".into());
        }
        one.lost_in_fork().then(|| "forked process".into())
    }

    /// The implementations of a variant that are asked, in order.
    fn candidates(
        &self,
        (op, variant): (u32, u32),
        domain: &Domain,
        registered: &[&'static Impl],
    ) -> Vec<&'static Impl> {
        let eligible = |one: &&Impl| one.covers(variant) && self.excludes(one, domain).is_none();
        let mut left: Vec<_> = registered.iter().copied().filter(eligible).collect();
        let kinds = self.default_order();
        let rank = |one: &Impl| kinds.iter().position(|kind| *kind == one.kind);
        let mut chosen = Vec::with_capacity(left.len());
        let (order, named) = self.order(op, variant);
        for token in order {
            let mut matching: Vec<_> = left.extract_if(.., |one| token.matches(one)).collect();
            match token {
                Token::Rest => matching.sort_by(|a, b| {
                    let key = |one: &Impl| (rank(one), -one.priority);
                    key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
                }),
                _ => matching
                    .sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.id.cmp(&b.id))),
            }
            chosen.append(&mut matching);
            // Where nobody has named the first word, it is the first that matches anything.
            if self.strict && (named || !chosen.is_empty()) {
                break;
            }
        }
        chosen
    }
}

/// A list of names; `none` is an empty one, and none is `all`.
fn vendors(value: &str, all: &str) -> std::result::Result<Option<BTreeSet<String>>, String> {
    if value == "none" {
        return Ok(Some(BTreeSet::new()));
    }
    if value == all {
        return if all.is_empty() { Err("names of vendors, or none".into()) } else { Ok(None) };
    }
    let names: BTreeSet<_> = value.split(',').map(|name| name.trim().to_owned()).collect();
    match names.contains("") {
        true => Err("names of vendors, divided by commas, or none".into()),
        false => Ok(Some(names)),
    }
}

/// What a name before an order stands for.
fn subjects(name: &str) -> Vec<Subject> {
    let found = registry::find_op(name).map(|(op, variant)| match variant {
        None => Subject::Op(op),
        Some(variant) => Subject::Variant(op, variant),
    });
    found.into_iter().collect()
}

impl Display for Settings {
    /// A text from which the same settings can be made.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut pieces = Vec::new();
        let names = |names: &BTreeSet<String>| match names.is_empty() {
            true => "none".to_owned(),
            false => names.iter().map(String::as_str).collect::<Vec<_>>().join(","),
        };
        pieces.extend(self.prefer.map(|prefer| format!("prefer={prefer}")));
        pieces.extend(self.strict.then(|| "strict=1".into()));
        for (subject, order) in &self.orders {
            let order: Vec<_> = order.iter().map(Token::to_string).collect();
            let name = match *subject {
                Subject::All => "order",
                Subject::Op(op) => op_name(op),
                Subject::Variant(op, variant) => variant_name(op, variant),
            };
            pieces.push(format!("{name}={}", order.join("|")));
        }
        pieces.extend(self.allow.as_ref().map(|allow| format!("allow_vendors={}", names(allow))));
        pieces
            .extend((!self.deny.is_empty()).then(|| format!("deny_vendors={}", names(&self.deny))));
        pieces.extend(self.deterministic.then(|| "deterministic=1".into()));
        pieces.extend(self.domain.as_ref().map(|domain| format!("domain={domain}")));
        f.write_str(&pieces.join(";"))
    }
}

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
    generation: u64,
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

/// Held while lists are built, so that threads that want the same ones do not each build them.
static BUILDING: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps other threads from making policies and lists until the result is dropped.
pub fn hold(deadline: Instant) -> Box<dyn Held> {
    let building = fork::patiently(deadline, || BUILDING.try_lock());
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

/// What calls have to look at beside the lists of the process; 0 for most processes, which a call tells by one
/// load.
static EXTRAS: AtomicU32 = AtomicU32::new(Extra::Start as u32);

#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Extra {
    /// The variables have not been looked at.
    Start = 1,
    /// Some thread has had a policy of its own, or asked for explanations.
    Threads = 2,
    /// Counters are on.
    Counters = 4,
    /// A line is printed for each operator, or its stream is waited for.
    Env = 8,
    /// Operators are written to a trace.
    #[allow(dead_code, reason = "for the trace")]
    Trace = 16,
    /// What plugins promise is checked.
    Check = 32,
}

/// Whether a call has to look at anything beside the lists of the process.
#[inline]
pub fn no_extras() -> bool {
    EXTRAS.load(Ordering::Relaxed) == 0
}

#[inline]
pub fn has_extra(extra: Extra) -> bool {
    EXTRAS.load(Ordering::Relaxed) & extra as u32 != 0
}

pub fn set_extra(extra: Extra, on: bool) {
    match on {
        true => EXTRAS.fetch_or(extra as u32, Ordering::Relaxed),
        false => EXTRAS.fetch_and(!(extra as u32), Ordering::Relaxed),
    };
}

/// Looks again at the level of lines, which a program may change, and at the variables.
pub fn refresh_extras() {
    set_extra(Extra::Env, verbose::enabled(Level::Exec) || env().sync);
    set_extra(Extra::Trace, trace::is_wanted());
}

/// Policies that a thread can have on its stack.
pub const MOST_SCOPES: usize = 32;

/// The policies of a thread. It has no destructor, so that it exists as long as the thread.
struct Scopes {
    depth: Cell<usize>,
    /// Scopes below belong to the caller of a plugin's function.
    floor: Cell<usize>,
    stack: [Cell<Option<&'static Policy>>; MOST_SCOPES],
}

thread_local! {
    static SCOPES: Scopes = const {
        Scopes { depth: Cell::new(0), floor: Cell::new(0), stack: [const { Cell::new(None) }; MOST_SCOPES] }
    };
}

/// The policy of the calling thread alone.
fn of_thread() -> Option<&'static Policy> {
    if !has_extra(Extra::Threads) {
        return None;
    }
    SCOPES.with(|scopes| scopes.depth.get().checked_sub(1).and_then(|top| scopes.stack[top].get()))
}

/// The policy of calls of this thread.
pub fn current() -> Result<&'static Policy> {
    of_thread().map_or_else(of_process, Ok)
}

pub fn push(policy: &'static Policy) -> Result<()> {
    set_extra(Extra::Threads, true);
    SCOPES.with(|scopes| {
        let depth = scopes.depth.get();
        let Some(place) = scopes.stack.get(depth) else {
            return Err(Error::unsupported(format!(
                "a thread has at most {MOST_SCOPES} policies on its stack: a scope was opened and never closed"
            )));
        };
        place.set(Some(policy));
        scopes.depth.set(depth + 1);
        Ok(())
    })
}

pub fn pop() -> Result<()> {
    SCOPES.with(|scopes| {
        let (depth, floor) = (scopes.depth.get(), scopes.floor.get());
        if depth > floor {
            scopes.depth.set(depth - 1);
            return Ok(());
        }
        Err(Error::unsupported(match floor {
            0 => "this thread has no policy on its stack",
            _ => "a plugin's function cannot close scopes that its caller has opened",
        }))
    })
}

/// A policy on the thread's stack until this is dropped.
pub struct Scoped {
    pushed: bool,
}

/// Runs what follows under a policy, if it is not the current one.
pub fn scoped(policy: &'static Policy) -> Result<Scoped> {
    let pushed = !std::ptr::eq(current()?, policy);
    if pushed {
        push(policy)?;
    }
    Ok(Scoped { pushed })
}

impl Drop for Scoped {
    fn drop(&mut self) {
        if self.pushed {
            let _ = pop();
        }
    }
}

/// Closes, when it is dropped, scopes that a plugin's function has left open.
pub struct Floor {
    depth: usize,
    floor: usize,
}

/// Keeps a plugin's function from closing scopes of its caller.
pub fn floor() -> Floor {
    if !has_extra(Extra::Threads) {
        return Floor { depth: 0, floor: 0 };
    }
    SCOPES.with(|scopes| {
        let depth = scopes.depth.get();
        Floor { depth, floor: scopes.floor.replace(depth) }
    })
}

impl Drop for Floor {
    fn drop(&mut self) {
        if has_extra(Extra::Threads) {
            SCOPES.with(|scopes| {
                scopes.depth.set(self.depth);
                scopes.floor.set(self.floor);
            });
        }
    }
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
        None => build(policy),
    }
}

/// The lists from which sizes and support are told: those of the process, whatever policies a thread has on its
/// stack, because front ends ask on one thread and run on another. Only the domain is that of the thread's calls.
pub fn view_for_sizes() -> Result<&'static View> {
    let process = of_process()?;
    let policy = match of_thread() {
        Some(own) if own.settings.domain != process.settings.domain => {
            intern(Settings { domain: own.settings.domain.clone(), ..process.settings.clone() })
        }
        _ => process,
    };
    match policy.view() {
        Some(view) => Ok(view),
        None => build(policy),
    }
}

/// Builds the lists of a policy.
#[cold]
fn build(policy: &'static Policy) -> Result<&'static View> {
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
