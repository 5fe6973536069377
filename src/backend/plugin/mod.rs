//! Plugins: libraries of vendors that register implementations of operators. Here is the order of things: who may
//! load at a time, what discovery does once, and the list of all plugins, refused ones too.

mod host;
mod library;
mod manifest;
mod offer;
mod sources;
mod text;

pub use library::Entry;

use crate::backend::args::plugin::NVTEX_PLUGIN_ABI_MAJOR;
use crate::error::{Error, Result};
use crate::fork::{Held, patiently};
use crate::stderr;
use crate::trust;
use crate::verbose::{self, Level};
use manifest::Manifest;
use offer::Offer;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// What is known of a plugin, loaded or refused.
pub struct Record {
    pub name: CString,
    pub version: CString,
    pub vendor: CString,
    /// The library or the manifest, without links; empty for a plugin of the program.
    pub path: CString,
    /// Why it was refused; none if it was loaded.
    pub refused: Option<CString>,
    /// One line for each implementation or key of the manifest that was left out.
    pub notes: CString,
    /// Implementations and domains that it has registered.
    pub implementations: usize,
    pub domains: usize,
    after_fork_child: Option<AfterFork>,
}

#[derive(Clone, Copy)]
struct AfterFork {
    hook: unsafe extern "C" fn(*mut c_void),
    user: *mut c_void,
}

// SAFETY: the functions and the user's data of a plugin may be used on any thread; its texts are constant.
#[allow(unsafe_code)]
unsafe impl Send for AfterFork {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for AfterFork {}

/// All plugins in the order in which they were loaded or refused. Records are never freed.
static RECORDS: Mutex<Vec<&'static Record>> = Mutex::new(Vec::new());

/// The thread that loads plugins at the moment. Plugins run code of their own while they are loaded, so that this is
/// no lock that a call of an operator could want.
static LOADING: Mutex<Option<ThreadId>> = Mutex::new(None);
static LOADED: Condvar = Condvar::new();

/// Whether the plugins that the environment names have been loaded, or have failed to.
static DISCOVERED: AtomicBool = AtomicBool::new(false);
/// Why every operator fails: what the user named in the environment could not be loaded.
static FAILURE: OnceLock<String> = OnceLock::new();

fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to load plugins, which one thread has at a time.
struct Turn;

impl Turn {
    /// Waits until no other thread loads plugins. An error on a thread that does already: it is inside of a
    /// plugin's entry function or of a constructor of its library.
    fn take() -> Result<Self> {
        let own = thread::current().id();
        let mut loading = lock(&LOADING);
        while let Some(thread) = *loading {
            if thread == own {
                return Err(Error::unsupported(
                    "a plugin that is being loaded may neither run operators nor load plugins; its entry function \
                     only registers",
                ));
            }
            loading = LOADED.wait(loading).unwrap_or_else(PoisonError::into_inner);
        }
        *loading = Some(own);
        Ok(Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *lock(&LOADING) = None;
        LOADED.notify_all();
    }
}

/// Loads the plugins of the environment and of the system's folder, at the first call; later calls only answer again.
/// Other threads wait meanwhile. An error if one that the user named does not load.
pub fn discover() -> Result<()> {
    if !DISCOVERED.load(Ordering::Acquire) {
        let _turn = Turn::take()?;
        if !DISCOVERED.load(Ordering::Acquire) {
            if let Err(why) = discover_now() {
                let _ = FAILURE.set(why);
            }
            DISCOVERED.store(true, Ordering::Release);
        }
    }
    match FAILURE.get() {
        None => Ok(()),
        Some(why) => Err(Error::unsupported(why.as_str())),
    }
}

#[cold]
fn discover_now() -> std::result::Result<(), String> {
    let found = sources::sources()?;
    for warning in found.warnings {
        stderr::print(format_args!("nvte: warning: {warning}"));
    }
    let mut failure = Ok(());
    for source in found.plugins {
        let Err(why) = load_from(&source.path) else { continue };
        match source.named {
            Some(named) if source.required => {
                // The first one is the answer; the others are on record.
                failure = failure.and(Err(format!(
                    "NVTE_OP_PLUGINS: {named}: {why}; `?{named}` would make it optional"
                )));
            }
            _ if verbose::enabled(Level::Error) => {
                let path = source.path.display();
                stderr::print(format_args!("nvte: warning: plugin {path} is not used: {why}"));
            }
            _ => {}
        }
    }
    failure
}

/// Loads a library, or the one that a manifest names.
pub fn load(path: &Path) -> Result<()> {
    // Those of the environment come first, whoever calls when.
    discover()?;
    let _turn = Turn::take()?;
    load_from(path).map_err(Error::unsupported)
}

/// Registers what a function of the program offers, as if it were the entry of a library.
pub fn register(entry: Entry) -> Result<()> {
    discover()?;
    let _turn = Turn::take()?;
    let mut record = Offer::default();
    settle(&mut record, |offer| offer.take_from(entry)).map_err(Error::unsupported)
}

fn load_from(path: &Path) -> std::result::Result<(), String> {
    let mut offer = Offer::of(path);
    settle(&mut offer, |offer| {
        let mut file = trust::file(path)?;
        offer.path = file.clone();
        if file.extension().is_some_and(|ending| ending == manifest::ENDING) {
            let manifest =
                Manifest::read(&file).map_err(|why| format!("{}: {why}", file.display()))?;
            offer.name = manifest.name.clone();
            if let Some(major) = manifest.abi.filter(|major| *major != NVTEX_PLUGIN_ABI_MAJOR) {
                return Err(format!(
                    "its manifest says that it speaks version {major} of the plugin ABI, and this library speaks \
                     {NVTEX_PLUGIN_ABI_MAJOR}"
                ));
            }
            for key in &manifest.unknown {
                offer.note(format_args!("the manifest's key {key} is unknown"));
            }
            file = trust::file(&manifest.library)?;
            offer.manifest = Some(manifest);
        }
        offer.take_from(library::open(&file)?)
    })
}

/// Loads one plugin by `body`, keeps the record of it whatever comes of it, and says so.
fn settle(
    offer: &mut Offer,
    body: impl FnOnce(&mut Offer) -> std::result::Result<(), String>,
) -> std::result::Result<(), String> {
    let result = body(offer);
    let record = offer.record(result.as_ref().err());
    verbose::line(Level::Dispatch, "plugin", || {
        let name = offer.name_or_path();
        match &result {
            Ok(()) => format!(
                "{name},loaded,{} implementations and {} domains",
                record.implementations, record.domains
            ),
            Err(why) => format!("{name},refused,{why}"),
        }
    });
    lock(&RECORDS).push(Box::leak(Box::new(record)));
    result
}

/// The name of a loaded plugin may not come again.
fn name_is_free(name: &str) -> bool {
    let records = lock(&RECORDS);
    records
        .iter()
        .all(|record| record.refused.is_some() || record.name.to_bytes() != name.as_bytes())
}

/// How many plugins were loaded or refused.
pub fn count() -> usize {
    lock(&RECORDS).len()
}

/// A plugin in the order of loading.
pub fn record(index: usize) -> Option<&'static Record> {
    lock(&RECORDS).get(index).copied()
}

/// Waits until no other thread loads plugins, and keeps all from it until the result is dropped. This comes before
/// any other lock of a fork, because a thread that loads plugins needs those to go on. A plugin that takes longer
/// than the deadline, or forks in its entry function, does not hold the fork up.
pub fn hold_loading(deadline: Instant) -> Box<dyn Held> {
    let own = thread::current().id();
    loop {
        let loading = patiently(deadline, || LOADING.try_lock());
        let others = loading.as_ref().and_then(|loading| **loading).is_some_and(|id| id != own);
        if !others || Instant::now() >= deadline {
            return Box::new(loading);
        }
        drop(loading);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Keeps other threads from changing the list of plugins until the result is dropped.
pub fn hold(deadline: Instant) -> Box<dyn Held> {
    Box::new(patiently(deadline, || RECORDS.try_lock()))
}

/// Called in the child of a fork. A thread of the parent that was loading plugins, and took too long to be waited for,
/// does not exist here.
pub fn note_fork() {
    let mut loading = lock(&LOADING);
    if loading.is_some_and(|thread| thread != thread::current().id()) {
        *loading = None;
        if !DISCOVERED.swap(true, Ordering::AcqRel) {
            let _ =
                FAILURE.set("the process was forked while its plugins were being loaded".into());
        }
    }
    drop(loading);
    let records = lock(&RECORDS).clone();
    for AfterFork { hook, user } in records.iter().filter_map(|record| record.after_fork_child) {
        library::after_fork(hook, user);
    }
}
