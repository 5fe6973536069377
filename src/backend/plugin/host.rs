//! What the library gives to the entry function of a plugin: functions that stage what it registers.
#![allow(unsafe_code)]

use super::manifest::Manifest;
use super::text::{MOST_NAME, MOST_TEXT, name, read};
use crate::backend::args::OPERATORS;
use crate::backend::args::plugin::*;
use crate::backend::registry::find_op;
use crate::env;
use crate::sized::{self, Grows};
use crate::stderr;
use crate::verbose::{self, Level};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

// SAFETY: the structs have the layout of C, begin with their size, and hold numbers, pointers and functions that may
// be null. The first version ended with the named fields.
unsafe impl Grows for Impl {
    const LEAST: usize = offset_of!(Impl, user) + size_of::<*mut c_void>();
}
// SAFETY: as above.
unsafe impl Grows for Domain {
    const LEAST: usize = offset_of!(Domain, last_error) + size_of::<*mut c_void>();
}
// SAFETY: as above.
unsafe impl Grows for Plugin {
    const LEAST: usize = offset_of!(Plugin, after_fork_child) + size_of::<*mut c_void>();
}

/// Largest argument struct that a plugin may have been built with.
const MOST_ARGS: usize = 4096;

/// An implementation whose struct has been read and found good.
pub struct StagedImpl {
    /// Number of the operator.
    pub op: u32,
    /// The variant, if it is for one alone.
    pub variant: Option<u32>,
    pub id: String,
    /// None: that of the plugin.
    pub vendor: Option<String>,
    pub domain: String,
    /// Numbers and functions; its texts are gone when the entry function has returned.
    pub given: Impl,
}

pub struct StagedDomain {
    pub name: String,
    pub given: Domain,
}

/// What an entry function has registered.
#[derive(Default)]
pub struct Staged {
    pub implementations: Vec<StagedImpl>,
    pub domains: Vec<StagedDomain>,
    /// What was left out, and why.
    pub notes: Vec<String>,
    /// Why the plugin is refused as a whole: the first reason.
    pub refused: Option<String>,
}

/// What `NVTEXHost.context` points to. It is never freed, so that a plugin that registers after its entry function
/// has returned gets an answer.
pub struct Staging {
    host: Host,
    /// What the plugin says of itself, while the entry function runs.
    plugin: *const Plugin,
    /// Of the manifest, if there is one.
    name: Option<String>,
    options: BTreeMap<String, String>,
    /// What `option` has answered, which plugins may keep.
    answers: Mutex<Vec<CString>>,
    /// None when the entry function has returned.
    staged: Mutex<Option<Staged>>,
}

// SAFETY: the struct is written once, before anybody else knows it, but for what locks protect; functions and data of
// plugins may be used on any thread.
unsafe impl Sync for Staging {}

/// All of them, which a program that looks for lost memory finds here.
static STAGINGS: Mutex<Vec<&'static Staging>> = Mutex::new(Vec::new());

impl Staging {
    pub fn begin(plugin: *const Plugin, manifest: Option<&Manifest>) -> &'static Self {
        let staging = Box::leak(Box::new(Self {
            host: Host {
                struct_size: size_of::<Host>(),
                abi_major: NVTEX_PLUGIN_ABI_MAJOR,
                abi_minor: NVTEX_PLUGIN_ABI_MINOR,
                library_version: concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast(),
                context: std::ptr::null_mut(),
                add_impl: Some(add_impl),
                add_domain: Some(add_domain),
                option: Some(option),
                log: Some(log),
                op_info: Some(op_info),
            },
            plugin,
            name: manifest.map(|manifest| manifest.name.clone()),
            options: manifest.map(|manifest| manifest.options.clone()).unwrap_or_default(),
            answers: Mutex::default(),
            staged: Mutex::new(Some(Staged::default())),
        }));
        staging.host.context = (&raw mut *staging).cast();
        STAGINGS.lock().unwrap_or_else(PoisonError::into_inner).push(staging);
        staging
    }

    pub fn host(&'static self) -> &'static Host {
        &self.host
    }

    /// Nothing is registered from here on.
    pub fn end(&self) -> Staged {
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Staged>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Name of the plugin, as far as it is known while its entry function runs.
    fn plugin_name(&self) -> Option<String> {
        // SAFETY: the struct is there while the entry function runs, and the name is a C string or null.
        let own = || unsafe { read("plugin.name", (*self.plugin).name, MOST_NAME) }.ok().flatten();
        self.name.clone().or_else(own)
    }
}

/// What becomes of one registration.
enum Verdict {
    /// It is left out, and the rest of the plugin stands.
    LeftOut(String),
    /// The whole plugin is refused.
    Refused(String),
}

impl From<String> for Verdict {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

/// Runs `body` on what the context has staged, and answers as `add_impl` and `add_domain` do.
fn stage(context: *mut c_void, body: impl FnOnce(&mut Staged) -> Result<(), Verdict>) -> i32 {
    // SAFETY: a context is null by mistake or that of a host, which is never freed.
    let Some(staging) = (unsafe { context.cast::<Staging>().as_ref() }) else {
        stderr::print(format_args!("nvte: warning: a plugin registers without NVTEXHost.context"));
        return NVTEX_PLUGIN_FAILED;
    };
    let mut staged = staging.lock();
    let Some(staged) = staged.as_mut() else {
        let name = staging.name.as_deref().unwrap_or("without a manifest");
        stderr::print(format_args!(
            "nvte: warning: plugin {name}: registers after its entry function has returned, which changes nothing"
        ));
        return NVTEX_PLUGIN_FAILED;
    };
    let verdict = catch_unwind(AssertUnwindSafe(|| body(staged)));
    match verdict {
        Ok(Ok(())) => NVTEX_PLUGIN_OK,
        Ok(Err(Verdict::LeftOut(why))) => {
            staged.notes.push(why);
            NVTEX_PLUGIN_DECLINED
        }
        Ok(Err(Verdict::Refused(why))) => {
            staged.refused.get_or_insert(why);
            NVTEX_PLUGIN_FAILED
        }
        Err(_) => {
            staged.refused.get_or_insert("a defect of this library".into());
            NVTEX_PLUGIN_FAILED
        }
    }
}

unsafe extern "C" fn add_impl(context: *mut c_void, given: *const Impl) -> i32 {
    stage(context, |staged| {
        // SAFETY: the plugin vouches for its struct.
        let given = unsafe { sized::read("impl", given) }?;
        // SAFETY: its texts are C strings.
        let good = unsafe { check_impl(&given) }?;
        staged.implementations.push(good);
        Ok(())
    })
}

unsafe extern "C" fn add_domain(context: *mut c_void, given: *const Domain) -> i32 {
    stage(context, |staged| {
        // SAFETY: the plugin vouches for its struct.
        let given = unsafe { sized::read("domain", given) }?;
        // SAFETY: its name is a C string.
        let good = unsafe { check_domain(&given) }?;
        staged.domains.push(good);
        Ok(())
    })
}

/// # Safety
/// The texts of the struct are null or C strings.
unsafe fn check_impl(given: &Impl) -> Result<StagedImpl, Verdict> {
    // SAFETY: the caller's promise.
    let (op, id) =
        unsafe { (read("impl.op", given.op, 2 * MOST_NAME)?, name("impl.id", given.id)?) };
    let op =
        op.ok_or_else(|| format!("{id}: impl.op: expected the name of an operator, got null"))?;
    let of = format!("{op}: {id}");
    let wrong = |field: &str, expected: &str, got: String| {
        Err(Verdict::Refused(format!("{of}: impl.{field}: expected {expected}, got {got}")))
    };
    if given.execute.is_none() {
        return wrong("execute", "a function", "null".into());
    }
    // SAFETY: the caller's promise.
    let (vendor, domain) = unsafe {
        (
            read(&format!("{of}: impl.vendor"), given.vendor, MOST_NAME)?,
            name(&format!("{of}: impl.domain"), given.domain)?,
        )
    };
    if !(NVTEX_KIND_DEFAULT..=NVTEX_KIND_REFERENCE).contains(&given.kind) {
        return wrong("kind", "an NVTEX_KIND", given.kind.to_string());
    }
    if given.priority != NVTEX_PRIORITY_OF_KIND && !(0..=1000).contains(&given.priority) {
        return wrong(
            "priority",
            "NVTEX_PRIORITY_OF_KIND or 0 to 1000",
            given.priority.to_string(),
        );
    }
    if given.max_arch != 0 && given.max_arch < given.min_arch {
        let expected = format!("0 or at least min_arch, {}", given.min_arch);
        return wrong("max_arch", &expected, given.max_arch.to_string());
    }
    const FLAGS: u32 = NVTEX_IMPL_CAPTURABLE
        | NVTEX_IMPL_DETERMINISTIC
        | NVTEX_IMPL_FORK_SAFE
        | NVTEX_IMPL_BATCH_INVARIANT;
    if given.flags & !FLAGS != 0 {
        return wrong(
            "flags",
            "flags NVTEX_IMPL that this library knows",
            format!("{:#x}", given.flags),
        );
    }
    if given.numerics > NVTEX_NUMERICS_APPROX {
        return wrong("numerics", "an NVTEX_NUMERICS", given.numerics.to_string());
    }
    for (field, value) in [("rtol", given.rtol), ("atol", given.atol)] {
        let good = match given.numerics {
            NVTEX_NUMERICS_APPROX => value >= 0.0 && value.is_finite(),
            _ => value == 0.0,
        };
        if !good {
            let expected = "0, or with NVTEX_NUMERICS_APPROX a finite number of at least 0";
            return wrong(field, expected, value.to_string());
        }
    }
    let Some((number, variant)) = find_op(&op) else {
        return Err(Verdict::LeftOut(format!(
            "{of}: this library has no operator or variant of that name"
        )));
    };
    let info = OPERATORS[number as usize];
    let (major, minor) = (given.op_version >> 16, given.op_version & 0xFFFF);
    let (own_major, own_minor) = (info.version >> 16, info.version & 0xFFFF);
    if major != own_major {
        return Err(Verdict::LeftOut(format!(
            "{of}: it was built with version {major} of the operator's arguments, and this library has version {own_major}"
        )));
    }
    let own = info.args_size;
    let (good, expected) = match minor.cmp(&own_minor) {
        std::cmp::Ordering::Less => {
            ((1..=own).contains(&given.args_size), format!("at most {own}"))
        }
        std::cmp::Ordering::Equal => (given.args_size == own, own.to_string()),
        std::cmp::Ordering::Greater => {
            ((own..=MOST_ARGS).contains(&given.args_size), format!("{own} to {MOST_ARGS}"))
        }
    };
    if !good {
        let expected =
            format!("the size of the argument struct of version {major}.{minor}, {expected} bytes");
        return wrong("args_size", &expected, given.args_size.to_string());
    }
    Ok(StagedImpl { op: number, variant, id, vendor, domain, given: *given })
}

/// # Safety
/// The name is null or a C string.
unsafe fn check_domain(given: &Domain) -> Result<StagedDomain, Verdict> {
    // SAFETY: the caller's promise.
    let name = unsafe { name("domain.name", given.name) }?;
    let missing = |field: &str| {
        Err(Verdict::Refused(format!("domain {name}: {field}: expected a function, got null")))
    };
    let required = [
        ("device_count", given.device_count.is_none()),
        ("current_device", given.current_device.is_none()),
        ("device_arch", given.device_arch.is_none()),
        ("malloc", given.malloc.is_none()),
        ("free", given.free.is_none()),
        ("memcpy", given.memcpy.is_none()),
    ];
    if let Some((field, _)) = required.iter().find(|(_, missing)| *missing) {
        return missing(field);
    }
    if given.flags & !(NVTEX_DOMAIN_HOST_ACCESSIBLE | NVTEX_DOMAIN_ASYNC) != 0 {
        return Err(Verdict::Refused(format!(
            "domain {name}: flags: expected flags NVTEX_DOMAIN that this library knows, got {:#x}",
            given.flags
        )));
    }
    if given.flags & NVTEX_DOMAIN_ASYNC != 0 && given.stream_synchronize.is_none() {
        return missing("stream_synchronize");
    }
    if given.stream_create.is_some() != given.stream_destroy.is_some() {
        return missing("stream_create and stream_destroy, one without the other");
    }
    Ok(StagedDomain { name, given: *given })
}

unsafe extern "C" fn option(context: *mut c_void, key: *const c_char) -> *const c_char {
    let find = || {
        // SAFETY: a context is null by mistake or that of a host, which is never freed.
        let staging = unsafe { context.cast::<Staging>().as_ref() }?;
        // SAFETY: the key is a C string or null.
        let key = unsafe { read("key", key, MOST_TEXT) }.ok().flatten()?;
        // The plugin's name is not known any more when its entry function has returned.
        let running = staging.lock().is_some();
        let name = if running { staging.plugin_name() } else { staging.name.clone() };
        if name.is_none() {
            stderr::print(format_args!(
                "nvte: warning: a plugin asks for option {key} without a manifest and before it has set NVTEXPlugin.name"
            ));
        }
        let value =
            env::plugin_option(&name?, &key).or_else(|| staging.options.get(&key).cloned())?;
        let value = CString::new(value).ok()?;
        let text = value.as_ptr();
        staging.answers.lock().unwrap_or_else(PoisonError::into_inner).push(value);
        Some(text)
    };
    match catch_unwind(AssertUnwindSafe(find)) {
        Ok(Some(text)) => text,
        _ => std::ptr::null(),
    }
}

unsafe extern "C" fn log(level: i32, text: *const c_char) {
    let _ = catch_unwind(|| {
        let level = match level {
            ..=1 => Level::Error,
            2 => Level::Check,
            3 => Level::Dispatch,
            _ => Level::Exec,
        };
        if text.is_null() {
            return;
        }
        verbose::line(level, "log", || {
            // SAFETY: the plugin vouches for a C string.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            text.replace(|c: char| c.is_control(), " ")
        });
    });
}

unsafe extern "C" fn op_info(op: u32) -> *const OpInfo {
    OPERATORS.get(op as usize).map_or(std::ptr::null(), |info| *info)
}
