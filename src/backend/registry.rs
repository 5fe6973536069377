//! The registry: which implementations of which operators there are, and the domains that they run in.
//!
//! Only writers and builders of candidate lists (`policy/lists.rs`) take its lock. Calls read lists that are never
//! changed; a commit raises the generation, by which a call sees that its list is an old one. Implementations,
//! domains and plugins are never freed, so that pointers to them always mean something.
#![allow(unsafe_code)]

use super::args::plugin::{
    self, Call, NVTEX_IMPL_CAPTURABLE, NVTEX_IMPL_DETERMINISTIC, NVTEX_IMPL_FORK_SAFE,
    NVTEX_KIND_DEFAULT, NVTEX_KIND_REFERENCE, NVTEX_KIND_VENDOR, NVTEX_NUMERICS_APPROX,
    NVTEX_NUMERICS_BITS, NVTEX_NUMERICS_ORDER, NVTEX_PRIORITY_OF_KIND, Needs,
};
use super::args::{
    AttentionArgs, FIRST_VARIANTS, Facts, GemmArgs, GroupedGemmArgs, OPERATORS, OpTable, Operator,
};
use super::domain::{Domain, Functions};
use crate::fork::{self, Held};
use crate::types::{NVTEDType, NVTEScalingMode};
use num_traits::FromPrimitive;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt::{self, Display};
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Where an implementation comes from, and its place among others where nobody says anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Default = NVTEX_KIND_DEFAULT,
    Vendor = NVTEX_KIND_VENDOR,
    Reference = NVTEX_KIND_REFERENCE,
}

impl Kind {
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Default, Self::Vendor, Self::Reference]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }

    /// The priority of an implementation that names none.
    pub fn priority(self) -> i32 {
        match self {
            Self::Default => 150,
            Self::Vendor => 100,
            Self::Reference => 50,
        }
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Vendor => "vendor",
            Self::Reference => "reference",
        })
    }
}

pub enum Code {
    /// The functions of a backend of the library, which take their arguments directly.
    BuiltIn(&'static OpTable),
    Plugin(PluginCode),
}

/// The functions of a plugin's implementation.
pub struct PluginCode {
    pub supports: Option<Execute>,
    pub needs: Option<Asks>,
    pub execute: Execute,
    pub user: *mut c_void,
}

pub type Asks =
    unsafe extern "C" fn(user: *mut c_void, call: *const Call, needs: *mut Needs) -> i32;
pub type Execute = unsafe extern "C" fn(user: *mut c_void, call: *const Call) -> i32;

// SAFETY: a plugin promises that its functions may be called from any thread, and its pointer is only given back to
// them.
unsafe impl Send for PluginCode {}
// SAFETY: as above.
unsafe impl Sync for PluginCode {}

/// What calls of an implementation came to. Failures are always counted, the others while counters are on.
#[derive(Default)]
pub struct Counters {
    pub calls: AtomicU64,
    pub declined: AtomicU64,
    pub failed: AtomicU64,
    pub host_ns: AtomicU64,
}

impl Counters {
    pub fn clear(&self) {
        for counter in [&self.calls, &self.declined, &self.failed, &self.host_ns] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// A text that C can read, too.
pub struct Text(CString);

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(CString::new(text.replace('\0', " ")).unwrap_or_default())
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

impl Text {
    pub fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr()
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// A registered implementation.
pub struct Impl {
    pub id: Text,
    pub vendor: Option<Text>,
    pub domain: &'static Domain,
    pub kind: Kind,
    pub priority: i32,
    /// Number of the operator.
    pub op: u32,
    /// Index among the variants of the operator; none: all of them.
    pub variant: Option<u32>,
    pub args_size: usize,
    pub limits: Limits,
    pub flags: u32,
    pub numerics: Numerics,
    pub code: Code,
    pub counters: Counters,
    /// Name of the plugin, empty for what the library itself has.
    pub plugin: Text,
    /// Its version, or that of the library.
    pub version: Text,
    /// Forks behind the process when this was registered.
    forks: u32,
}

/// Which calls of an operator an implementation takes; see `NVTEXImpl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// 0: any, as in the next three.
    pub min_arch: u32,
    pub max_arch: u32,
    pub dtypes: u64,
    pub modes: u32,
    pub features: u64,
}

impl Limits {
    pub const NONE: Self =
        Self { min_arch: 0, max_arch: 0, dtypes: 0, modes: 0, features: u64::MAX };

    /// Whether a call uses nothing but what the implementation has declared to take.
    #[inline]
    pub fn admits(&self, facts: &Facts) -> bool {
        let within = |used: u64, taken: u64| taken == 0 || used & !taken == 0;
        within(facts.dtypes, self.dtypes)
            && within(facts.modes.into(), self.modes.into())
            && facts.features & !self.features == 0
    }

    /// What of a call of an operator the implementation has not declared to take.
    #[cold]
    pub fn outside(&self, op: u32, facts: &Facts) -> String {
        let mut parts = Vec::new();
        let mut note = |what: &str, used: u64, taken: u64, name: &dyn Fn(u32) -> String| {
            let bits = (0..64).filter(|bit| (used & !taken) >> bit & 1 == 1);
            let names: Vec<String> = bits.map(name).collect();
            if !names.is_empty() {
                parts.push(format!("{what} {}", names.join(", ")));
            }
        };
        let any = |taken: u64| if taken == 0 { u64::MAX } else { taken };
        note("dtype", facts.dtypes, any(self.dtypes), &|bit| {
            NVTEDType::from_u32(bit).map_or(bit.to_string(), |dtype| dtype.to_string())
        });
        note("scaling mode", facts.modes.into(), any(self.modes.into()), &|bit| {
            NVTEScalingMode::from_u32(bit).map_or(bit.to_string(), |mode| format!("{mode:?}"))
        });
        note("feature", facts.features, self.features, &|bit| feature_name(op, bit));
        format!("does not take {}", parts.join(", "))
    }
}

/// How near results are to the reference; see `NVTEXImpl`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Numerics {
    pub class: u32,
    pub rtol: f32,
    pub atol: f32,
}

impl Numerics {
    /// Those of the library's own implementations. The reference is what others are compared with. Kernels add in an
    /// order of their own; tensor cores also round on the way: operands to TF32 or BF16, sums of FP8 products, and
    /// the probabilities of attention, at most twice to BF16.
    fn of_own(kind: Kind, op: u32) -> Self {
        let rounds = [GemmArgs::NUMBER, GroupedGemmArgs::NUMBER, AttentionArgs::NUMBER];
        let (class, rtol) = match kind {
            Kind::Reference => (NVTEX_NUMERICS_BITS, 0.0),
            _ if rounds.contains(&op) => (NVTEX_NUMERICS_APPROX, 1.0 / 128.0),
            Kind::Default | Kind::Vendor => (NVTEX_NUMERICS_ORDER, 0.0),
        };
        Self { class, rtol, atol: 0.0 }
    }
}

impl Impl {
    /// What it was registered for: an operator or a variant.
    pub fn name(&self) -> &'static str {
        self.variant.map_or(op_name(self.op), |variant| variant_name(self.op, variant))
    }

    /// Whether an order that names their id could not tell the two apart.
    fn clashes(&self, other: &Self) -> bool {
        let overlap =
            self.variant.is_none() || other.variant.is_none() || self.variant == other.variant;
        self.op == other.op && overlap && *self.id == *other.id
    }

    /// Whether it was registered for this variant of its operator.
    pub fn covers(&self, variant: u32) -> bool {
        self.variant.is_none_or(|own| own == variant)
    }

    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether it was registered before a fork that it does not survive.
    pub fn lost_in_fork(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed) && !self.has(NVTEX_IMPL_FORK_SAFE)
    }
}

/// Name of an operator.
pub fn op_name(op: u32) -> &'static str {
    static_text(OPERATORS[op as usize].name)
}

/// Name of an operator, or full name of one of its variants, for C.
pub fn c_name(op: u32, variant: Option<u32>) -> *const c_char {
    let info = OPERATORS[op as usize];
    match variant {
        None => info.name,
        // SAFETY: the list has as many names as the operator has variants.
        Some(variant) => unsafe { *info.variants.add(variant as usize) },
    }
}

/// Full name of a variant.
pub fn variant_name(op: u32, variant: u32) -> &'static str {
    static_text(c_name(op, Some(variant)))
}

fn feature_name(op: u32, bit: u32) -> String {
    let info = OPERATORS[op as usize];
    match (bit as usize) < info.feature_count {
        // SAFETY: the list has as many names.
        true => static_text(unsafe { *info.features.add(bit as usize) }).to_owned(),
        false => bit.to_string(),
    }
}

fn static_text(text: *const c_char) -> &'static str {
    // SAFETY: the names of operators are constants.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default()
}

/// Place of a variant among those of all operators.
#[inline]
pub fn place(op: u32, variant: u32) -> usize {
    (FIRST_VARIANTS[op as usize] + variant) as usize
}

/// Variants of all operators.
pub const VARIANTS: usize = FIRST_VARIANTS[OPERATORS.len()] as usize;

/// The operator of a name and, if the name is that of a variant, its index.
pub fn find_op(name: &str) -> Option<(u32, Option<u32>)> {
    let op = name.split('.').next().unwrap_or_default();
    let op =
        (0..OPERATORS.len() as u32).find(|&number| op_name(number).eq_ignore_ascii_case(op))?;
    if name.eq_ignore_ascii_case(op_name(op)) {
        return Some((op, None));
    }
    let mut variants = 0..OPERATORS[op as usize].variant_count as u32;
    let variant = variants.find(|&variant| variant_name(op, variant).eq_ignore_ascii_case(name))?;
    Some((op, Some(variant)))
}

#[derive(Default)]
struct Registry {
    domains: Vec<&'static Domain>,
    /// By the number of the operator.
    impls: Vec<Vec<&'static Impl>>,
    /// In the order in which they were registered.
    all: Vec<&'static Impl>,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

/// Raised by each commit.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// Forks behind this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The number of what is registered: lists of candidates of another one are old.
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// The library's own domains and the tables of its implementations. They lie above this module, and come here
/// when the library is loaded.
pub struct BuiltIns {
    pub domains: Vec<(&'static str, u32, Functions)>,
    /// Id, vendor, domain, kind, table.
    pub impls: Vec<(&'static str, Option<&'static str>, &'static str, Kind, &'static OpTable)>,
}

static BUILT_INS: OnceLock<fn() -> BuiltIns> = OnceLock::new();

/// Says what the library itself has. Called once, before any other function.
pub fn set_built_ins(built_ins: fn() -> BuiltIns) {
    BUILT_INS.get_or_init(|| built_ins);
}

/// Something that loads the plugins that are configured; cheap when that was done.
type Discover = fn() -> crate::error::Result<()>;

static DISCOVER: OnceLock<Discover> = OnceLock::new();

/// Says how plugins are found. Called when the library is loaded.
pub fn set_discover(discover: Discover) {
    DISCOVER.get_or_init(|| discover);
}

/// Loads the plugins that are configured, if that has not been done. No lock may be held.
pub fn discover() -> crate::error::Result<()> {
    DISCOVER.get().map_or(Ok(()), |discover| discover())
}

impl Registry {
    fn new() -> Self {
        let mut new = Self::default();
        new.impls.resize_with(OPERATORS.len(), Vec::new);
        let BuiltIns { domains, impls } = BUILT_INS.get().map_or_else(
            || unreachable!("the built-ins are entered when the library is loaded"),
            |built_ins| built_ins(),
        );
        for (name, flags, functions) in domains {
            new.domains.push(Box::leak(Box::new(Domain::new(name, flags, functions))));
        }
        for (id, vendor, domain, kind, table) in impls {
            let Some(domain) = new.domain(domain) else { continue };
            // docs/plugins.md has the reasons why all of them give equal bits each time.
            let all = NVTEX_IMPL_CAPTURABLE | NVTEX_IMPL_DETERMINISTIC | NVTEX_IMPL_FORK_SAFE;
            for op in (0..OPERATORS.len() as u32).filter(|&op| table.has(op)) {
                new.enter(Impl {
                    id: id.into(),
                    vendor: vendor.map(Text::from),
                    domain,
                    kind,
                    priority: kind.priority(),
                    op,
                    variant: None,
                    args_size: OPERATORS[op as usize].args_size,
                    limits: Limits::NONE,
                    flags: all,
                    numerics: Numerics::of_own(kind, op),
                    code: Code::BuiltIn(table),
                    counters: Counters::default(),
                    plugin: "".into(),
                    version: env!("CARGO_PKG_VERSION").into(),
                    forks: 0,
                });
            }
        }
        new
    }

    fn enter(&mut self, new: Impl) {
        let new: &'static Impl = Box::leak(Box::new(new));
        self.impls[new.op as usize].push(new);
        self.all.push(new);
    }

    fn domain(&self, name: &str) -> Option<&'static Domain> {
        self.domains.iter().copied().find(|domain| domain.name().eq_ignore_ascii_case(name))
    }
}

/// The registry, locked, with the built-ins in it.
fn lock() -> MutexGuard<'static, Option<Registry>> {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    registry.get_or_insert_with(Registry::new);
    registry
}

fn read<R>(body: impl FnOnce(&Registry) -> R) -> R {
    match &*lock() {
        Some(registry) => body(registry),
        None => unreachable!("the registry was made by its lock"),
    }
}

/// Keeps other threads from changing the registry until the result is dropped.
pub fn hold(deadline: Instant) -> Box<dyn Held> {
    Box::new(fork::patiently(deadline, || REGISTRY.try_lock()))
}

/// Called in the child of a fork.
pub fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    GENERATION.fetch_add(1, Ordering::Release);
    read(|registry| {
        registry.domains.iter().for_each(|domain| domain.note_fork());
        registry.all.iter().for_each(|one| one.counters.clear());
    });
}

/// Implementations of an operator, in the order in which they were registered, and the generation of this list.
pub fn impls(op: u32) -> Vec<&'static Impl> {
    read(|registry| registry.impls[op as usize].clone())
}

/// All that is registered, in the order in which it was.
pub fn all() -> Vec<&'static Impl> {
    read(|registry| registry.all.clone())
}

/// What is registered, by operator, and its generation.
pub fn snapshot() -> (u64, Vec<Vec<&'static Impl>>) {
    read(|registry| (GENERATION.load(Ordering::Relaxed), registry.impls.clone()))
}

pub fn domains() -> Vec<&'static Domain> {
    read(|registry| registry.domains.clone())
}

pub fn domain(name: &str) -> Option<&'static Domain> {
    read(|registry| registry.domain(name))
}

/// What a plugin registers, all of it or nothing: nobody sees it before the commit.
pub struct Transaction {
    plugin: String,
    version: String,
    impls: Vec<Impl>,
    domains: Vec<&'static Domain>,
}

impl Transaction {
    /// Name and version of the plugin.
    pub fn new(plugin: &str, version: &str) -> Self {
        let (plugin, version) = (plugin.to_owned(), version.to_owned());
        Self { plugin, version, impls: Vec::new(), domains: Vec::new() }
    }

    /// Stages a domain whose name and required hooks have been checked.
    pub fn add_domain(&mut self, name: &str, given: &plugin::Domain) -> Result<(), String> {
        if name.eq_ignore_ascii_case("auto") || self.find_domain(name).is_some() {
            return Err(format!("domain {name}: expected a name that no other domain has"));
        }
        let domain = Domain::new(name, given.flags, Functions::Plugin(*given));
        self.domains.push(Box::leak(Box::new(domain)));
        Ok(())
    }

    fn find_domain(&self, name: &str) -> Option<&'static Domain> {
        let mut own = self.domains.iter().copied();
        own.find(|own| own.name().eq_ignore_ascii_case(name)).or_else(|| domain(name))
    }

    /// Stages an implementation of an operator, or of one of its variants. Texts and numbers have been checked;
    /// the pointers to texts in `given` are not read. An error refuses the whole plugin.
    pub fn add_impl(
        &mut self,
        (op, variant): (u32, Option<u32>),
        id: &str,
        vendor: &str,
        domain: &str,
        given: &plugin::Impl,
    ) -> Result<(), String> {
        let name = variant.map_or(op_name(op), |variant| variant_name(op, variant));
        let wrong = |why: String| Err(format!("{id} ({name}): {why}"));
        let Some(domain) = self.find_domain(domain) else {
            return wrong(format!(
                "domain: expected one that is registered (register a domain before its implementations), got \
                 {domain:?}"
            ));
        };
        if domain.is_async() && given.flags & NVTEX_IMPL_CAPTURABLE == 0 {
            return wrong(format!(
                "flags: expected NVTEX_IMPL_CAPTURABLE, because work of the domain {domain} is queued on streams"
            ));
        }
        let (Some(kind), Some(execute)) = (Kind::from_number(given.kind), given.execute) else {
            return wrong("expected a kind from 1 to 3 and a function execute".into());
        };
        let plugin::Impl { args_size, min_arch, max_arch, dtypes, modes, features, flags, .. } =
            *given;
        let new = Impl {
            id: id.into(),
            vendor: Some(vendor).filter(|vendor| !vendor.is_empty()).map(Text::from),
            domain,
            kind,
            priority: match given.priority {
                NVTEX_PRIORITY_OF_KIND => kind.priority(),
                priority => priority,
            },
            op,
            variant,
            args_size,
            limits: Limits { min_arch, max_arch, dtypes, modes, features },
            flags,
            numerics: Numerics { class: given.numerics, rtol: given.rtol, atol: given.atol },
            code: Code::Plugin(PluginCode {
                supports: given.supports,
                needs: given.needs,
                execute,
                user: given.user,
            }),
            counters: Counters::default(),
            plugin: self.plugin.as_str().into(),
            version: self.version.as_str().into(),
            forks: FORKS.load(Ordering::Relaxed),
        };
        if self.impls.iter().any(|other| other.clashes(&new)) {
            return wrong(
                "the plugin has another implementation of the operator with this id".into(),
            );
        }
        self.impls.push(new);
        Ok(())
    }

    /// Registers all that was staged. Calls that begin after it has returned see it.
    pub fn commit(self) -> Result<(), String> {
        let mut registry = lock();
        let Some(registry) = registry.as_mut() else {
            unreachable!("the registry was made by its lock")
        };
        if let Some(taken) = self.domains.iter().find(|own| registry.domain(own.name()).is_some()) {
            return Err(format!("domain {taken}: expected a name that no other domain has"));
        }
        for new in &self.impls {
            let same = registry.impls[new.op as usize].iter().find(|other| other.clashes(new));
            if let Some(other) = same {
                let (id, name, plugin) = (&new.id, new.name(), &*other.plugin);
                return Err(format!(
                    "{id} ({name}): plugin {plugin:?} has registered this id before"
                ));
            }
        }
        registry.domains.extend(&self.domains);
        for new in self.impls {
            registry.enter(new);
        }
        GENERATION.fetch_add(1, Ordering::Release);
        Ok(())
    }
}
