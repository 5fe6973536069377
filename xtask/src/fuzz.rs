//! `cargo xtask fuzz`: the C tests with a library in front of libnvte that adds calls with changed arguments
//! (capi-tests/fuzz/fuzz.cpp says what it looks for).

pub mod coverage;
pub mod differential;

use crate::build;
use crate::capi;
use crate::install;
use crate::tree::{Tree, runs};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

#[derive(clap::Args)]
pub struct Args {
    /// How long to look
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the first run, from which the next runs count on. Equal seeds make equal calls
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this program of capi-tests
    #[arg(long)]
    program: Option<String>,
    /// Changed calls for each call of a program. Default: differs from run to run
    #[arg(long)]
    rate: Option<f64>,
    /// Run one of this many cases of a program. Default: differs from run to run
    #[arg(long)]
    every: Option<u32>,
    /// Runs at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// End after this many runs
    #[arg(long)]
    runs: Option<u64>,
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Under compute-sanitizer's memcheck (with --backend cuda), which sees what kernels do outside of buffers
    #[arg(long)]
    memcheck: bool,
    /// Random valid calls of all operators instead, on the CPU and on the backend; what differs becomes a small C
    /// program
    #[arg(long)]
    differential: bool,
    /// Files, texts or sequences of calls instead, guided by the coverage of the library's code: state, checkpoint,
    /// pretrained, policy, manifest or calls. Inputs are kept in tests/corpus
    #[arg(long, value_name = "TARGET", conflicts_with = "differential")]
    coverage: Option<String>,
    /// With --differential: another library with the same ABI, in the place of this one on the backend
    #[arg(long, requires = "differential")]
    against: Option<PathBuf>,
    /// With --differential: each call twice on the backend, under a policy with `deterministic=1`, whose bits have to be
    /// the same
    #[arg(long, requires = "differential", conflicts_with = "against")]
    twice: bool,
    /// With --differential: only this operator or variant
    #[arg(long, requires = "differential")]
    operator: Option<String>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Backend {
    Cpu,
    Cuda,
}

impl Backend {
    const CPU_NAME: &str = "cpu";
}

/// Programs without calls that could be changed: one only links, one ends by an exception when a call fails, the
/// others run their calls in threads or child processes, or count or refuse allocations.
const LEFT_OUT: &[&str] =
    &["symbols", "cpp_layer", "module_cpp20", "nvtex", "module_memory", "host_faults"];
/// Exit statuses of the interposed library.
const FOUND: i32 = 86;
/// A run is stopped after this time; what it did until then counts.
const RUN_LIMIT: Duration = Duration::from_secs(20);
/// A run that does not even react to being stopped.
const KILL_LIMIT: Duration = Duration::from_secs(180);
/// Bytes in front of the report for the call that runs.
const NOTE_BYTES: usize = 8192;
const MEMCHECK_FAILED: i32 = 99;

pub struct Programs {
    pub library: PathBuf,
    pub tests: Vec<PathBuf>,
    pub data: PathBuf,
    pub reports: PathBuf,
}

struct Run {
    seed: u64,
    program: PathBuf,
    rate: f64,
    every: u32,
}

#[derive(Default)]
struct Totals {
    runs: u64,
    /// Calls that were made, accepted and refused, by function.
    functions: BTreeMap<String, [u64; 3]>,
    /// What was found, by a short name that is the same for the same defect.
    findings: BTreeMap<String, String>,
}

pub fn run(tree: &Tree, args: &Args, bundled: bool) -> Result<ExitCode> {
    if args.differential {
        return differential::run(tree, args, bundled);
    }
    if let Some(target) = &args.coverage {
        return coverage::run(tree, args, target);
    }
    let programs = if bundled {
        bundled_programs(&tree.root)?
    } else {
        build::run(tree, &build::Args::default())?;
        programs(tree, &install::fresh(tree)?)?
    };
    let clean = search(tree, &programs, args)?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// As in `cargo xtask test`: the seed is fixed, so that the same sources give the same result.
pub fn in_tests(tree: &Tree, prefix: &Path, seconds: u64) -> Result<bool> {
    let args = Args {
        seconds,
        seed: 1,
        program: None,
        rate: None,
        every: None,
        jobs: 2,
        runs: None,
        backend: Backend::Cpu,
        memcheck: false,
        differential: false,
        coverage: None,
        against: None,
        twice: false,
        operator: None,
    };
    search(tree, &programs(tree, prefix)?, &args)
}

fn programs(tree: &Tree, prefix: &Path) -> Result<Programs> {
    let source = tree.root.join("capi-tests");
    let tests = capi::build(tree, &source, "capi-tests", prefix, &[], &[])?;
    let fuzz = capi::build(tree, &source.join("fuzz"), "fuzz", prefix, &[], &[])?;
    Ok(Programs {
        library: fuzz.join("libnvtefuzz.so"),
        tests: executables(&tests)?,
        data: tree.golden(),
        reports: fuzz,
    })
}

fn bundled_programs(root: &Path) -> Result<Programs> {
    Ok(Programs {
        library: root.join("bin/libnvtefuzz.so"),
        tests: executables(&root.join("capi"))?,
        data: root.join("golden"),
        reports: env::temp_dir(),
    })
}

fn executables(dir: &Path) -> Result<Vec<PathBuf>> {
    use std::os::unix::fs::PermissionsExt;
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let library = path.extension().is_some_and(|extension| extension == "so");
        if path.is_file() && !library && path.metadata()?.permissions().mode() & 0o111 != 0 {
            found.push(path);
        }
    }
    found.retain(|path| !LEFT_OUT.contains(&name(path).as_str()));
    found.sort();
    Ok(found)
}

fn name(path: &Path) -> String {
    path.file_name().expect("a file").to_string_lossy().into_owned()
}

/// Runs programs until the time is over. True if nothing was found.
fn search(tree: &Tree, programs: &Programs, args: &Args) -> Result<bool> {
    let mut tests = programs.tests.clone();
    if let Some(wanted) = &args.program {
        tests.retain(|path| name(path) == *wanted);
    }
    if tests.is_empty() {
        bail!("no such program in capi-tests");
    }
    let sanitizer = args.memcheck.then(compute_sanitizer).transpose()?;
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let totals = Mutex::new(Totals::default());
    let next = Mutex::new(0u64);
    let worker = || -> Result<()> {
        loop {
            let turn = {
                let mut next = next.lock().expect("no panic");
                *next += 1;
                *next - 1
            };
            if Instant::now() >= end || args.runs.is_some_and(|runs| turn >= runs) {
                return Ok(());
            }
            let run = choose(args, &tests, turn);
            let limit = end.saturating_duration_since(Instant::now()).min(RUN_LIMIT);
            // A program that was asked for by name may take its time.
            let limit = if args.runs.is_some() { RUN_LIMIT } else { limit };
            one_run(tree, programs, args, sanitizer.as_deref(), &run, limit, &totals)?;
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })?;
    let totals = totals.into_inner().expect("no panic");
    print(programs, &totals);
    if totals.functions.is_empty() {
        bail!("no call was made: does the backend run here?");
    }
    Ok(totals.findings.is_empty())
}

/// The run of a turn: each program once in a random order, then again.
fn choose(args: &Args, tests: &[PathBuf], turn: u64) -> Run {
    let count = tests.len() as u64;
    let mut order: Vec<usize> = (0..tests.len()).collect();
    let round = args.seed.wrapping_add(turn / count);
    order.sort_by_key(|&index| mix(round ^ mix(index as u64)));
    let seed = args.seed.wrapping_add(turn);
    let random = mix(seed);
    let program = match &args.program {
        Some(_) => tests[0].clone(),
        None => tests[order[(turn % count) as usize]].clone(),
    };
    Run {
        seed,
        program,
        rate: args.rate.unwrap_or([0.5, 1.0, 3.0][(random % 3) as usize]),
        every: args.every.unwrap_or([3, 10, 30, 100][(random / 3 % 4) as usize]),
    }
}

/// splitmix64
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn one_run(
    tree: &Tree,
    programs: &Programs,
    args: &Args,
    sanitizer: Option<&Path>,
    run: &Run,
    limit: Duration,
    totals: &Mutex<Totals>,
) -> Result<()> {
    let base = programs.reports.join(format!("fuzz-{}-{}", std::process::id(), run.seed));
    let (report, log) = (base.with_extension("report"), base.with_extension("log"));
    // The program makes it anew.
    let _ = fs::remove_file(&report);
    let mut command = match sanitizer {
        Some(sanitizer) => {
            let mut command = tree.command(sanitizer);
            command.args(["--tool", "memcheck", "--report-api-errors=no", "--error-exitcode"]);
            command.arg(MEMCHECK_FAILED.to_string()).arg(&run.program);
            command
        }
        None => tree.command(&run.program),
    };
    let backend = args.backend.to_possible_value().expect("none is hidden");
    command
        .env("NVTE_BACKEND", backend.get_name())
        .env("NVTE_VERBOSE", "none")
        .env("NVTE_WAIT_SECONDS", "1")
        .env("NVTE_TEST_DATA", &programs.data)
        .env("NVTE_TEST_EVERY", run.every.to_string())
        .env("NVTE_FUZZ_SEED", run.seed.to_string())
        .env("NVTE_FUZZ_RATE", run.rate.to_string())
        .env("NVTE_FUZZ_REPORT", &report)
        .env("LD_PRELOAD", &programs.library)
        .stdin(Stdio::null())
        .stdout(fs::File::create(&log).with_context(|| log.display().to_string())?)
        .stderr(fs::File::options().append(true).open(&log)?);
    let (status, stopped) = wait(&mut command, limit)?;
    let text = fs::read(&report).unwrap_or_default();
    let (note, rest) = text.split_at(text.len().min(NOTE_BYTES));
    let (note, rest) = (until_zero(note), until_zero(rest));

    let mut totals = totals.lock().expect("no panic");
    totals.runs += 1;
    let mut found = Vec::new();
    for line in rest.lines() {
        match line.split_once(' ') {
            Some(("count", counts)) => add(&mut totals.functions, counts),
            Some(("found", what)) => found.push(what.to_owned()),
            _ => {}
        }
    }
    // If the test itself finds something wrong (status 1) after calls that it did not make, that is no
    // finding.
    let code = status.code();
    if code == Some(MEMCHECK_FAILED) && found.is_empty() {
        found.push("memcheck reports an error".to_owned());
    }
    if code.is_none() && !stopped && found.is_empty() {
        found.push(format!("the program was ended: {status}"));
    }
    if code == Some(FOUND) && found.is_empty() {
        found.push("the interposed library ended the program".to_owned());
    }
    if found.is_empty() {
        let _ = fs::remove_file(&report);
        let _ = fs::remove_file(&log);
        return Ok(());
    }
    let program = name(&run.program);
    let function =
        note.split_once('\n').map_or("", |(_, call)| call.split('(').next().unwrap_or(""));
    let short = format!("{function}: {}", without_numbers(&found[0]));
    let mut all = format!("{program}: {}\n  {}\n", found.join("\n  "), note.replace('\n', "\n  "));
    for line in rest.lines().filter(|line| line.starts_with("frame ")).take(12) {
        writeln!(all, "  {line}")?;
    }
    if sanitizer.is_some() {
        let output = fs::read_to_string(&log).unwrap_or_default();
        for line in output.lines().filter(|line| line.starts_with("=========")).take(20) {
            writeln!(all, "  {line}")?;
        }
    }
    let memcheck = if args.memcheck { " --memcheck" } else { "" };
    writeln!(
        all,
        "  again: cargo xtask fuzz --program {program} --seed {} --rate {} --every {} --runs 1 --jobs 1 \
         --backend {}{memcheck}\n  log: {}",
        run.seed,
        run.rate,
        run.every,
        backend.get_name(),
        log.display()
    )?;
    if !totals.findings.contains_key(&short) {
        eprintln!("FINDING {all}");
    }
    totals.findings.entry(short).or_insert(all);
    Ok(())
}

/// Asks the program to end when its time is over (its status is then 0), and kills it if it does not.
fn wait(command: &mut Command, limit: Duration) -> Result<(std::process::ExitStatus, bool)> {
    let mut child = command.spawn().with_context(|| command.get_program().display().to_string())?;
    let start = Instant::now();
    let mut stopped = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, stopped));
        }
        if !stopped && start.elapsed() >= limit {
            stopped = true;
            // A child that has not been waited for keeps its number.
            Command::new("kill").arg(child.id().to_string()).status().context("kill")?;
        }
        if start.elapsed() >= KILL_LIMIT {
            child.kill()?;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn until_zero(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// `FUNCTION MADE ACCEPTED REFUSED`
fn add(functions: &mut BTreeMap<String, [u64; 3]>, line: &str) {
    let mut words = line.split(' ');
    let Some(function) = words.next() else { return };
    let counts = functions.entry(function.to_owned()).or_default();
    for (count, word) in counts.iter_mut().zip(words) {
        *count += word.parse::<u64>().unwrap_or_default();
    }
}

fn without_numbers(text: &str) -> String {
    let mut short = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if short.ends_with('N') => {}
            '0'..='9' => short.push('N'),
            c => short.push(c),
        }
    }
    short
}

fn print(programs: &Programs, totals: &Totals) {
    let sum = |i: usize| totals.functions.values().map(|counts| counts[i]).sum::<u64>();
    println!(
        "{} runs of {} programs: {} changed calls of {} functions, {} accepted, {} refused; {} findings",
        totals.runs,
        programs.tests.len(),
        sum(0),
        totals.functions.len(),
        sum(1),
        sum(2),
        totals.findings.len()
    );
    for (index, finding) in totals.findings.values().enumerate() {
        println!("{}. {finding}", index + 1);
    }
}

fn compute_sanitizer() -> Result<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let homes = homes.chain([PathBuf::from("/usr/local/cuda")]);
    let paths = homes.map(|home| home.join("bin/compute-sanitizer"));
    [PathBuf::from("compute-sanitizer")]
        .into_iter()
        .chain(paths)
        .find(|path| runs(path, "--version"))
        .context("compute-sanitizer is not installed")
}

#[cfg(test)]
mod tests {
    use super::{add, without_numbers};
    use std::collections::BTreeMap;

    #[test]
    fn reads_counts() {
        let mut functions = BTreeMap::new();
        add(&mut functions, "nvte_gelu 7 4 3");
        add(&mut functions, "nvte_gelu 2 2 0");
        assert_eq!(functions["nvte_gelu"], [9, 6, 3]);
    }

    #[test]
    fn shortens() {
        assert_eq!(without_numbers("12 bytes past x of 640"), "N bytes past x of N");
    }
}
