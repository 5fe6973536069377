//! `cargo xtask bench`: times the operators of the library against the limits of the machine and
//! against another library with the same C ABI.

// Libraries and the driver are called through pointers found when the program runs.
#![allow(unsafe_code)]

mod abi;
mod cases;
mod check;
mod cpu;
mod cpu_field;
mod field;
mod front_end;
mod gpu;
mod kernels;
mod layer;
mod machine;
mod module;
mod report;

use abi::Api;
use anyhow::{Context, Result, bail, ensure};
use cases::{Build, Case, Work};
use indicatif::{ProgressBar, ProgressStyle};
use machine::{Call, Kind, Machine, Pool, Sampler};
use report::{Limits, Row};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Each round measures every library once.
const ROUNDS: usize = 9;

/// Idle time before each sample of an operator that the matrix units bound, or of a layer: without it a
/// chip at its power limit shows how hot the rows before have left it (spreads of 15 %, with it under 1 %).
const REST: Duration = Duration::from_millis(50);

/// What to measure.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Suite {
    /// Operators, one by one
    #[default]
    Operators,
    /// Forward and backward pass of a Transformer layer
    Layer,
    /// Count and size of the CUDA kernels just built; needs no GPU
    Kernels,
    /// What others publish figures of, against everything on this machine that computes it; also writes a CSV file
    /// beside the report
    Field,
    /// What `--cpu-field` asks for
    #[value(skip)]
    CpuField,
}

#[derive(clap::Args, Clone, Debug, Default)]
pub struct BenchArgs {
    #[arg(value_enum, default_value = "operators")]
    pub suite: Suite,
    /// Library with the same C ABI to compare with
    #[arg(long, value_name = "[NAME=]LIB.so")]
    pub against: Option<String>,
    /// Only cases whose name contains this; BENCHMARKS.md is then left alone unless --out is given
    #[arg(long, value_name = "SUBSTR")]
    pub only: Option<String>,
    /// Library to measure [default: the one just built]
    #[arg(long, value_name = "LIB.so")]
    pub lib: Option<PathBuf>,
    /// First compare the outputs of the two libraries on the same inputs
    #[arg(long, requires = "against")]
    pub check: bool,
    /// Write all measurements as JSON
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
    /// Report to update [default: BENCHMARKS.md]
    #[arg(long, value_name = "BENCHMARKS.md")]
    pub out: Option<PathBuf>,
    /// Write no report
    #[arg(long)]
    pub no_write: bool,
    /// One thread of the CPU backend beside PyTorch and NumPy, as far as the python3 on the PATH has them
    #[arg(long)]
    pub cpu_field: bool,
    /// Layers: first measure transformer_engine.pytorch of the python3 on the PATH
    #[arg(long)]
    pub front_end: bool,
    /// Field: seconds of work without a rest, after which clock and power are read; 0 leaves them out
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub sustain: f64,
    /// Layers: let a profiler that was told to wait for it see one step of each
    #[arg(long)]
    pub profile: bool,
}

/// Variables that make libraries of linear algebra run code for another processor than this one.
const OVERRIDES: [&str; 7] = [
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
];

/// Removes them from the environment of what is measured, and says so.
fn unset_overrides() {
    for name in OVERRIDES {
        if let Some(value) = std::env::var_os(name) {
            println!("unset for the measurement: {name}={}", value.display());
            // SAFETY: no other thread runs yet.
            unsafe { std::env::remove_var(name) };
        }
    }
}

pub fn run(args: &BenchArgs, root: &Path) -> Result<()> {
    unset_overrides();
    if args.suite == Suite::Kernels {
        let release = library(args, root)?;
        let release = release.parent().context("the library has no folder")?;
        let section = kernels::section(root, release, &today()?)?;
        println!("\n{section}");
        return update_report(args, root, Kind::Gpu, &section);
    }
    if args.cpu_field {
        return run_cpu_field(args, root);
    }
    let machine = open_machine()?;
    let machine = machine.as_ref();
    match args.suite {
        Suite::Layer => return run_layers(args, root, machine),
        Suite::Field => return run_field(args, root, machine),
        Suite::Operators | Suite::Kernels | Suite::CpuField => {}
    }
    let kind = machine.kind();
    let mut apis = vec![Api::load("nvte", &library(args, root)?)?];
    if let Some(against) = &args.against {
        let (name, path) = against.split_once('=').unwrap_or(("other", against));
        apis.push(Api::load(name, Path::new(path))?);
    }
    let names: Vec<String> = apis.iter().map(|api| api.name.clone()).collect();
    let wanted = |case: &Case| args.only.as_ref().is_none_or(|only| case.name.contains(only));
    let operators: Vec<Case> = cases::operators(kind).into_iter().filter(wanted).collect();
    let host: Vec<Case> = cases::host_costs().into_iter().filter(wanted).collect();
    ensure!(!(operators.is_empty() && host.is_empty()), "no case has such a name");

    let pool = Pool::new(machine)?;
    let mut different = Vec::new();
    if args.check {
        let apis: &[Api; 2] = apis[..].try_into().context("two libraries to compare")?;
        println!("{}", report::table_line("output", &["difference".into(), String::new()]));
        for case in operators.iter().filter(|case| !case.alone) {
            match check::check(case, machine, &pool, apis) {
                Ok(true) => {}
                Ok(false) => different.push(case.name.clone()),
                Err(error) => {
                    println!("{}: {error:#}", case.name);
                    different.push(case.name.clone());
                }
            }
        }
    }

    let matrix = machine.matrix_limits();
    let limits = Limits { stream: machine::streaming_limit(machine, &pool, &apis)?, matrix };
    let mut section = preamble(machine, &apis, &limits)?;
    println!("\n{section}");
    let mut rows = Vec::new();
    for (title, list) in [("operator", &operators), ("host cost of one call", &host)] {
        if list.is_empty() {
            continue;
        }
        let table = measure(title, list, machine, &pool, &apis, &limits, &mut rows)?;
        section += &format!("\n{table}\n");
    }
    let missing = report::not_measured(&rows, &names);
    print!("{missing}");
    section += &missing;

    if let Some(path) = &args.json {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        let value = json!({
            "machine": machine.describe(), "date": today()?, "libraries": versions(&apis),
            "limits": limits.text(), "different": different, "rows": rows,
        });
        write(path, &format!("{value:#}\n"))?;
    }
    ensure!(different.is_empty(), "the libraries differ in: {}", different.join(", "));
    update_report(args, root, kind, &section)
}

fn run_layers(args: &BenchArgs, root: &Path, machine: &dyn Machine) -> Result<()> {
    ensure!(args.against.is_none(), "--against: modules are no part of the common ABI");
    // The front end is measured before the library here takes memory of the GPU.
    let peer = args.front_end.then(front_end::measure).transpose()?;
    let api = Api::load("nvte", &library(args, root)?)?;
    let pool = Pool::new(machine)?;
    let matrix = machine.matrix_limits();
    let apis = [api];
    let limits = Limits { stream: machine::streaming_limit(machine, &pool, &apis)?, matrix };
    let head = layer::preamble(machine, &today()?, &versions(&apis)[0], &limits);
    println!("\n{head}");
    let only = args.only.as_deref();
    let table = layer::run(machine, &apis[0], &pool, &limits, peer.as_ref(), only, args.profile)?;
    update_report(args, root, machine.kind(), &format!("{head}\n{table}"))
}

fn run_field(args: &BenchArgs, root: &Path, machine: &dyn Machine) -> Result<()> {
    let (table, csv) = field::run(args, root, machine)?;
    println!("\n{table}");
    if !args.no_write && (args.only.is_none() || args.out.is_some()) {
        let report = args.out.clone().unwrap_or_else(|| root.join("BENCHMARKS.md"));
        write(&report.with_file_name("BENCHMARKS-field.csv"), &csv)?;
    }
    update_report(args, root, machine.kind(), &table)
}

fn run_cpu_field(args: &BenchArgs, root: &Path) -> Result<()> {
    ensure!(args.against.is_none(), "--against: the table has columns for PyTorch and NumPy alone");
    // SAFETY: no other thread runs yet, and no library is loaded.
    unsafe {
        std::env::set_var("NVTE_BACKEND", "cpu");
        std::env::set_var("NVTE_NUM_THREADS", "1");
    }
    let machine = cpu::Cpu::open()?;
    let api = Api::load("nvte", &library(args, root)?)?;
    let section = cpu_field::section(&machine, &api, &today()?, args.only.as_deref())?;
    let args = BenchArgs { suite: Suite::CpuField, ..args.clone() };
    update_report(&args, root, Kind::Cpu, &section)
}

fn update_report(args: &BenchArgs, root: &Path, kind: Kind, section: &str) -> Result<()> {
    if args.no_write || (args.only.is_some() && args.out.is_none()) {
        return Ok(());
    }
    let path = args.out.clone().unwrap_or_else(|| root.join("BENCHMARKS.md"));
    let old = path.exists().then(|| std::fs::read_to_string(&path)).transpose()?;
    write(&path, &report::merge(old.as_deref(), (kind, args.suite), section))?;
    println!("wrote {}", path.display());
    Ok(())
}

/// The machine to measure. The library's backend is chosen with it, before a library is loaded:
/// pointers of one backend mean nothing to the other.
fn open_machine() -> Result<Box<dyn Machine>> {
    let wish = std::env::var("NVTE_BACKEND").unwrap_or_default();
    let machine: Box<dyn Machine> = match wish.as_str() {
        "cpu" => Box::new(cpu::Cpu::open()?),
        "cuda" => Box::new(gpu::Gpu::open()?.context("NVTE_BACKEND=cuda: no GPU here")?),
        "" | "auto" => match gpu::Gpu::open()? {
            Some(gpu) => Box::new(gpu),
            None => Box::new(cpu::Cpu::open()?),
        },
        other => bail!("NVTE_BACKEND: expected auto, cpu or cuda, got {other}"),
    };
    let backend = match machine.kind() {
        Kind::Gpu => "cuda",
        Kind::Cpu => "cpu",
    };
    // SAFETY: no library is loaded, and no thread of this program reads the environment.
    unsafe { std::env::set_var("NVTE_BACKEND", backend) };
    Ok(machine)
}

fn library(args: &BenchArgs, root: &Path) -> Result<PathBuf> {
    if let Some(path) = &args.lib {
        return Ok(path.clone());
    }
    // A bundle or an installation has lib/, a build target/release/.
    let places = ["target/release/libnvte.so", "lib/libnvte.so"].map(|place| root.join(place));
    let found = places.into_iter().find(|path| path.exists());
    found.with_context(|| format!("no libnvte.so under {}: give --lib", root.display()))
}

fn preamble(machine: &dyn Machine, apis: &[Api], limits: &Limits) -> Result<String> {
    let title = match machine.kind() {
        Kind::Gpu => "GPU",
        Kind::Cpu => "CPU",
    };
    Ok(format!(
        "## {title}\n\n{}; {}; {}; {ROUNDS} rounds.\n\nLimits: {}.\n",
        machine.describe(),
        today()?,
        versions(apis).join(" against "),
        limits.text()
    ))
}

fn versions(apis: &[Api]) -> Vec<String> {
    let text = |api: &Api| match &api.version {
        Some(version) => format!("{} {version}", api.name),
        None => api.name.clone(),
    };
    apis.iter().map(text).collect()
}

/// Measures the cases, prints each line as it comes, and returns the table.
fn measure(
    title: &str,
    cases: &[Case],
    machine: &dyn Machine,
    pool: &Pool,
    apis: &[Api],
    limits: &Limits,
    rows: &mut Vec<Row>,
) -> Result<String> {
    let names: Vec<String> = apis.iter().map(|api| api.name.clone()).collect();
    let host = matches!(cases[0].work, Work::Host);
    let mut table = report::head(title, &names, machine.kind(), host);
    println!("{table}");
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}")?;
    let bar = ProgressBar::new(cases.len() as u64).with_style(style);
    for case in cases {
        bar.set_message(case.name.clone());
        let samples = measure_case(case, machine, pool, apis);
        let row = Row { name: case.name.clone(), work: case.work, samples };
        let line = row.line(machine.kind(), limits);
        bar.suspend(|| println!("{line}"));
        table = table + "\n" + &line;
        rows.push(row);
        bar.inc(1);
    }
    bar.finish_and_clear();
    println!();
    Ok(table)
}

/// Seconds per call in each round, for each library.
fn measure_case(
    case: &Case,
    machine: &dyn Machine,
    pool: &Pool,
    apis: &[Api],
) -> Vec<Result<Vec<f64>, String>> {
    let text = |error: anyhow::Error| format!("{error:#}");
    // Declared before the samplers, because they borrow it.
    let can = |i| if case.alone && i > 0 { bail!("does not do this here") } else { Ok(()) };
    let prepare = |(i, api)| can(i).and_then(|()| prepare(case, machine, pool, api));
    let sets: Vec<_> = apis.iter().enumerate().map(prepare).collect();
    let mut samplers: Vec<Result<Sampler, String>> = Vec::new();
    for (set, api) in sets.iter().zip(apis) {
        samplers.push(match set {
            Ok((calls, _)) => sampler(case, machine, calls, api).map_err(text),
            Err(error) => Err(format!("{error:#}")),
        });
    }
    let mut samples: Vec<Result<Vec<f64>, String>> = vec![Ok(Vec::new()); apis.len()];
    for round in 0..ROUNDS {
        for i in 0..apis.len() {
            // Each library goes first in every other round.
            let i = if round % 2 == 0 { i } else { apis.len() - 1 - i };
            if machine.kind() == Kind::Gpu && matches!(case.work, Work::Flops { .. }) {
                std::thread::sleep(REST);
            }
            let sample = samplers[i].as_mut().map_err(|reason| reason.clone());
            match (sample.and_then(|sampler| sampler().map_err(text)), &mut samples[i]) {
                (Ok(seconds), Ok(list)) => list.push(seconds),
                (Err(reason), slot @ Ok(_)) => *slot = Err(reason),
                (_, Err(_)) => {}
            }
        }
    }
    samples
}

fn sampler<'a>(
    case: &Case,
    machine: &'a dyn Machine,
    calls: &'a [Call<'a>],
    api: &Api,
) -> Result<Sampler<'a>> {
    let sampler = match case.work {
        Work::Host => host_sampler(machine, &calls[0])?,
        _ => machine.sampler(calls)?,
    };
    // A call that failed under capture left a graph without its work.
    api.take_error()?;
    Ok(sampler)
}

/// As many sets of inputs as it takes to leave the caches cold, each called once.
fn prepare<'a>(
    case: &Case,
    machine: &'a dyn Machine,
    pool: &'a Pool,
    api: &'a Api,
) -> Result<(Vec<Call<'a>>, Vec<cases::Memory>)> {
    let (mut calls, mut memories, mut bytes) = (Vec::new(), Vec::new(), 0);
    let (most, enough) = match case.work {
        Work::Host => (1, 1),
        _ => (case.most_sets, machine.rotation_bytes()),
    };
    while calls.len() < most && bytes < enough {
        let (call, memory) = Build::set(case, api, machine, pool, calls.len(), 0xA5)?;
        call();
        machine.synchronize()?;
        api.take_error()?;
        // At least 1, so that the loop ends for a case without memory.
        bytes += memory.bytes().max(1);
        calls.push(call);
        memories.push(memory);
    }
    Ok((calls, memories))
}

/// Time of the host alone: few calls between two waits for the device, so that its queue never
/// fills and holds the host up.
fn host_sampler<'a>(machine: &'a dyn Machine, call: &'a Call<'a>) -> Result<Sampler<'a>> {
    const CALLS: u32 = 64;
    const BATCHES: usize = 21;
    let batch = move || -> Result<f64> {
        machine.synchronize()?;
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        Ok(start.elapsed().as_secs_f64() / f64::from(CALLS))
    };
    batch()?;
    Ok(Box::new(move || {
        let batches = (0..BATCHES).map(|_| batch()).collect::<Result<Vec<_>>>()?;
        machine.synchronize()?;
        Ok(report::median(&batches))
    }))
}

fn today() -> Result<String> {
    let days = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 86_400;
    Ok(report::date(i64::try_from(days)?))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
