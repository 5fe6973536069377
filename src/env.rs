//! Every environment variable that the library reads, once.

use crate::fork;
use crate::stderr;
use crate::trust;
use std::ffi::{OsStr, OsString};
use std::fmt::Arguments;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use crate::stderr::Level;

/// What the variables say about the choice among implementations; none for what is not set. Read by
/// `backend::policy`, for which a wrong value fails every operator.
pub struct PolicyEnv {
    /// `NVTE_PREFER=default|vendor|reference`
    pub prefer: Option<String>,
    /// `NVTE_STRICT=0|1`
    pub strict: Option<String>,
    /// `NVTE_OP_ORDER=operator=word|word;operator=word`
    pub op_order: Option<String>,
    /// `NVTE_ALLOW_VENDORS=name,name`, or `none`
    pub allow_vendors: Option<String>,
    /// `NVTE_DENY_VENDORS=name,name`, or `none`
    pub deny_vendors: Option<String>,
}

/// What a failing call does after it has stored status and message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Return = 0,
    Abort = 1,
    Throw = 2,
}

/// Most threads that can be asked for.
pub const MOST_THREADS: usize = 1024;

/// What `NVTE_TRACE` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trace {
    Off,
    /// Only ranges for the tools of CUDA.
    Ranges,
    /// A file, in whose name `%p` stands for the number of the process.
    File(String),
}

/// What `NVTE_COMM_OVERLAP` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Exchanges and products follow each other.
    Off,
    /// Ranks exchange what no product waits for beside the products.
    Beside,
    /// Products that wait for other ranks, or that others wait for, are divided, too.
    Chunks,
}

pub struct Env {
    /// `NVTE_BACKEND=auto|cpu|cuda`, or the domain of a plugin. A wrong value fails every operator: another
    /// backend than the one asked for may not take over.
    pub backend: String,
    pub policy: PolicyEnv,
    /// `NVTE_ON_ERROR=return|abort|throw`, if it is set.
    pub on_error: Option<Mode>,
    /// `NVTE_VERBOSE=none|error|check|dispatch|exec|all`
    pub verbose: Level,
    /// `NVTE_SYNC=1`: wait for the device after each operator, so that its faults are reported.
    pub sync: bool,
    /// `NVTE_TRACE=nvtx`, or a file: what operators ran when. Ignored in a process with privileges of its own.
    pub trace: Trace,
    /// `NVTE_CHECK=device`: read sizes that only the device knows back and check them before use.
    pub check_device: bool,
    /// `NVTE_WAIT_SECONDS=60`: how long a product waits for counters that other work clears.
    pub wait: Duration,
    /// `NVTE_NUM_THREADS=N`: threads of the CPU backend; 0 for as many as there are processors.
    pub num_threads: usize,
    /// `NVTE_NORM_FWD_USE_CUDNN=1`, `NVTE_NORM_BWD_USE_CUDNN=1`, `NVTE_ZERO_CENTERED_GAMMA_IN_WTYPE=1`:
    /// what the functions that set these switches set.
    pub norm_switches: [bool; 3],
    /// `NVTE_GEMM_TUNE=FILE`: products on CUDA measure the algorithms of cuBLASLt once, and keep the fastest there.
    /// Ignored in a process with privileges of its own.
    #[cfg_attr(not(nvte_cuda), expect(dead_code, reason = "only CUDA builds use cuBLASLt"))]
    pub gemm_tune: Option<PathBuf>,
    /// `NVTE_CUDA_LIB_PATH`: colon-separated folders searched first for CUDA's libraries. Absolute,
    /// and such that nobody else can write to them; none in a process with privileges of its own.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "only CUDA builds open libraries")
    )]
    pub cuda_lib_path: Vec<PathBuf>,
    /// `NVTE_NCCL_LIBRARY=/path/of/libnccl.so.2`: the file of NCCL, in place of the loader's. Ignored in a process with
    /// privileges of its own.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "only CUDA builds open libraries")
    )]
    pub nccl_library: Option<String>,
    /// `NVTE_COMM_TIMEOUT=300`: seconds that a rank waits for another one.
    pub comm_timeout: Duration,
    /// `NVTE_COMM_CHECK=1`: ranks compare their calls also where that costs a meeting.
    pub comm_check: bool,
    /// `NVTE_COMM_OVERLAP=0|1|2`: what ranks exchange beside their products.
    pub comm_overlap: Overlap,
    /// `NVTE_COMM_PEER`: bytes of a rank's part from which ranks of one host write to each other's GPUs by copies.
    /// Smaller ones are faster by kernels, ours up to some size and NCCL's from there.
    pub comm_peer: usize,
    /// `NVTE_OP_PLUGINS=/path/of/library.so,name,?optional`, or `none`: the plugins to load. A wrong value and
    /// a plugin that does not load fail every operator. Ignored in a process with privileges of its own.
    pub op_plugins: String,
    /// `NVTE_OP_PLUGIN_PATH`: colon-separated folders whose manifests are read, before those of the system.
    /// Ignored in a process with privileges of its own.
    pub op_plugin_path: Vec<PathBuf>,
}

const DEFAULT_WAIT: Duration = Duration::from_secs(60);
/// What `NVTE_COMM_PEER` means: never, from 1 MiB, always by copies.
const PEER_BYTES: &[(&str, usize)] = &[("0", usize::MAX), ("1", 1 << 20), ("all", 0)];
const DEFAULT_LIMIT: Duration = Duration::from_secs(300);

/// Whether the process uses the library in place of the one whose ABI it speaks.
static DROP_IN: AtomicBool = AtomicBool::new(false);

/// Says whether the process uses the library in place of the one whose ABI it speaks.
pub fn set_drop_in(on: bool) {
    DROP_IN.store(on, Ordering::Relaxed);
}

/// Whether the library stands in for the one whose ABI it speaks. Then it also refuses what programs
/// written for that one expect to be refused, failing calls throw, and the CPU backend runs only if it
/// is asked for.
pub fn drop_in() -> bool {
    DROP_IN.load(Ordering::Relaxed)
}

/// The environment as it was at the first call.
pub fn env() -> &'static Env {
    static ENV: OnceLock<Env> = OnceLock::new();
    fork::once(&ENV, read)
}

fn read() -> Env {
    let modes = [("return", Mode::Return), ("abort", Mode::Abort), ("throw", Mode::Throw)];
    let levels = [
        ("none", Level::None),
        ("error", Level::Error),
        ("check", Level::Check),
        ("dispatch", Level::Dispatch),
        ("exec", Level::Exec),
        ("all", Level::Exec),
    ];
    Env {
        backend: text("NVTE_BACKEND").map_or("auto".into(), |name| name.to_ascii_lowercase()),
        policy: PolicyEnv {
            prefer: text("NVTE_PREFER"),
            strict: text("NVTE_STRICT"),
            op_order: text("NVTE_OP_ORDER"),
            allow_vendors: text("NVTE_ALLOW_VENDORS"),
            deny_vendors: text("NVTE_DENY_VENDORS"),
        },
        on_error: std::env::var_os("NVTE_ON_ERROR")
            .filter(|value| !value.is_empty())
            .map(|_| or_default(choice("NVTE_ON_ERROR", &modes, Mode::Return), Mode::Return)),
        verbose: or_default(choice("NVTE_VERBOSE", &levels, Level::Error), Level::Error),
        sync: switch("NVTE_SYNC"),
        trace: match unprivileged("NVTE_TRACE").to_string_lossy() {
            path if path.is_empty() => Trace::Off,
            path if path == "nvtx" => Trace::Ranges,
            path => Trace::File(path.into_owned()),
        },
        check_device: or_default(
            choice("NVTE_CHECK", &[("none", false), ("device", true)], false),
            false,
        ),
        wait: or_default(seconds("NVTE_WAIT_SECONDS", DEFAULT_WAIT), DEFAULT_WAIT),
        num_threads: or_default(number("NVTE_NUM_THREADS", 1, MOST_THREADS), 0),
        norm_switches: [
            "NVTE_NORM_FWD_USE_CUDNN",
            "NVTE_NORM_BWD_USE_CUDNN",
            "NVTE_ZERO_CENTERED_GAMMA_IN_WTYPE",
        ]
        .map(switch),
        gemm_tune: Some(unprivileged("NVTE_GEMM_TUNE"))
            .filter(|file| !file.is_empty())
            .map(PathBuf::from),
        cuda_lib_path: library_folders(),
        nccl_library: Some(unprivileged("NVTE_NCCL_LIBRARY"))
            .filter(|file| !file.is_empty())
            .map(|file| file.to_string_lossy().into_owned()),
        comm_timeout: or_default(seconds("NVTE_COMM_TIMEOUT", DEFAULT_LIMIT), DEFAULT_LIMIT),
        comm_check: switch("NVTE_COMM_CHECK"),
        comm_overlap: or_default(
            choice(
                "NVTE_COMM_OVERLAP",
                &[("0", Overlap::Off), ("1", Overlap::Beside), ("2", Overlap::Chunks)],
                Overlap::Off,
            ),
            Overlap::Off,
        ),
        comm_peer: or_default(
            choice("NVTE_COMM_PEER", PEER_BYTES, PEER_BYTES[1].1),
            PEER_BYTES[1].1,
        ),
        op_plugins: unprivileged("NVTE_OP_PLUGINS").to_string_lossy().into_owned(),
        op_plugin_path: folders(&unprivileged("NVTE_OP_PLUGIN_PATH")),
    }
}

/// The folders of `NVTE_CUDA_LIB_PATH`. Code is loaded from them, so those that somebody else could
/// put a library into are left out, and a warning says why.
fn library_folders() -> Vec<PathBuf> {
    let paths = std::env::var_os("NVTE_CUDA_LIB_PATH").unwrap_or_default();
    let trusted = |folder: &PathBuf| match trust::folder(folder) {
        None => true,
        Some(why) => {
            let folder = folder.display();
            warn(format_args!("NVTE_CUDA_LIB_PATH: {folder} is not searched: {why}"));
            false
        }
    };
    folders(&paths).into_iter().filter(trusted).collect()
}

fn folders(paths: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(paths).filter(|folder| !folder.as_os_str().is_empty()).collect()
}

/// The value of a variable that decides which code runs, or names a file to write; empty in a process that has more privileges than
/// the user who started it and set the variable.
fn unprivileged(name: &str) -> OsString {
    match std::env::var_os(name) {
        Some(value) if !value.is_empty() && trust::privileged() => {
            let why = "the process has more privileges than the user who started it";
            warn(format_args!("{name} is ignored: {why}"));
            OsString::new()
        }
        value => value.unwrap_or_default(),
    }
}

/// `NVTE_OP_PLUGIN_<PLUGIN>_<KEY>`: an option of a plugin, in place of what its manifest says. Read when the
/// plugin asks for it. In the name, letters are upper case, and what is no letter or digit is `_`.
pub fn plugin_option(plugin: &str, key: &str) -> Option<String> {
    let word = |text: &str| text.to_ascii_uppercase().replace(|c: char| !c.is_alphanumeric(), "_");
    let name = format!("NVTE_OP_PLUGIN_{}_{}", word(plugin), word(key));
    let value = unprivileged(&name);
    (!value.is_empty()).then(|| value.to_string_lossy().into_owned())
}

/// A variable of what has started the process, such as its rank. Read when it is asked for.
pub fn launcher(name: &str) -> Option<String> {
    text(name)
}

/// The value of a variable; none if it is unset or empty.
fn text(name: &str) -> Option<String> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some(value.to_string_lossy().into_owned())
}

fn switch(name: &str) -> bool {
    or_default(choice(name, &[("0", false), ("1", true)], false), false)
}

/// The value of a variable that takes one of a few words; unset and empty mean `default`.
fn choice<T: Copy>(name: &str, words: &[(&str, T)], default: T) -> Result<T, String> {
    let value = std::env::var_os(name).unwrap_or_default();
    if value.is_empty() {
        return Ok(default);
    }
    let found = words.iter().find(|(word, _)| value.eq_ignore_ascii_case(word));
    found.map(|&(_, value)| value).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        format!("{name}: expected one of {}, got {value:?}", words.join(", "))
    })
}

/// The value of a variable that takes a time; unset and empty mean `default`.
fn seconds(name: &str, default: Duration) -> Result<Duration, String> {
    let value = std::env::var_os(name).unwrap_or_default();
    if value.is_empty() {
        return Ok(default);
    }
    // A year, so that deadlines and nanoseconds cannot overflow.
    const MOST: f64 = 365.0 * 86400.0;
    let number = value.to_str().and_then(|text| text.parse::<f64>().ok());
    match number.filter(|number| *number > 0.0 && *number <= MOST) {
        Some(number) => Ok(Duration::from_secs_f64(number)),
        None => {
            Err(format!("{name}: expected seconds, more than 0, at most {MOST}, got {value:?}"))
        }
    }
}

/// The value of a variable that takes a number from `least` to `most`; 0 if unset or empty.
fn number(name: &str, least: usize, most: usize) -> Result<usize, String> {
    let value = std::env::var_os(name).unwrap_or_default();
    if value.is_empty() {
        return Ok(0);
    }
    let number = value.to_str().and_then(|text| text.parse().ok());
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("{name}: expected a number from {least} to {most}, got {value:?}"))
}

/// A variable whose wrong values are reported but harmless: they count as the default.
fn or_default<T>(value: Result<T, String>, default: T) -> T {
    value.unwrap_or_else(|message| {
        warn(format_args!("{message}; using the default"));
        default
    })
}

fn warn(text: Arguments) {
    stderr::print(format_args!("nvte: warning: {text}"));
}
