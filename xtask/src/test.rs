//! `cargo xtask test`: all that this machine can test, and a table of it.

use crate::abi;
use crate::bindings;
use crate::capi;
use crate::dependencies;
use crate::docs;
use crate::drop_in;
use crate::fmt;
use crate::fuzz;
use crate::headers;
use crate::install;
use crate::kernels;
use crate::package;
use crate::plugins;
use crate::process;
use crate::report::{Outcome, Report};
use crate::sanitized;
use crate::setup;
use crate::tree::{Tree, copy_dir, empty_dir, has_gpu, runs};
use crate::wheel;
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};

#[derive(clap::Args)]
pub struct Args {
    /// Run only this step; may be given more than once
    #[arg(long, value_enum)]
    only: Vec<Step>,
    /// Also what takes long and seldom finds what the rest does not: every case of the long C programs,
    /// wrong arguments under valgrind beside AddressSanitizer, all C and C++ under UBSan, the library's own code under
    /// AddressSanitizer, threads under ThreadSanitizer, limits of kernels, 60 seconds of changed arguments for 20,
    /// libnvte.a in a program, the library as wheels have it, and with JAX, LibTorch, candle, ONNX Runtime, Conan and
    /// rattler-build, which are fetched
    #[arg(long)]
    full: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Step {
    /// rustfmt, clang-format, clippy, and the licences of dependencies
    Lint,
    /// Tests in Rust, which also say whether the generated headers are fresh
    Rust,
    /// Each public header alone, and all in two orders, as C11 and C++17
    Headers,
    /// Names and versions that the library exports, and the types of its functions by abidiff
    Abi,
    /// The C and C++ tests against an installed library, on each backend
    Capi,
    /// Programs that find a moved installation through CMake and pkg-config
    Consumers,
    /// Programs that have the library inside; only if it is named, or with --full
    Static,
    /// The plugins of examples/, judged by `nvtex-conform`
    Plugins,
    /// The bindings for Rust, Python, JAX and LibTorch, against an installed library
    Bindings,
    /// The documentation site, its links, and the programs of its pages
    Docs,
    /// Tarball, Debian packages, and recipes for package managers, each tried in a folder of its own
    Packages,
    /// The library that stands in for another one: its layouts and names
    DropIn,
    /// The Python wheel, beside a package that loads its library as Transformer Engine's does
    Wheel,
    /// Wrong arguments under AddressSanitizer, or under valgrind where the compiler lacks it
    Memory,
    /// The C and C++ tests, with what they use of the headers, and libtransformer_engine.so under UBSan; only if it is
    /// named, or with --full
    Undefined,
    /// The library itself compiled for AddressSanitizer, with checks of overflows: its tests in Rust, and C programs;
    /// only if it is named, or with --full
    Address,
    /// Registry, policies, tapes, trace, layers in threads and ranks that are threads, under ThreadSanitizer;
    /// only if it is named, or with --full
    Threads,
    /// Code, registers and shared memory of each kernel, for each architecture; only if it is named, or with --full
    Kernels,
    /// `cargo xtask fuzz` on the CPU, with the same seed each time, and whether its differential mode finds a wrong
    /// operator
    Fuzz,
}

/// Programs of capi-tests/ that pass wrong arguments or make calls fail, and a part of the names of those cases.
const WRONG_ARGUMENTS: [(&str, &str); 21] = [
    ("bad_input", ""),
    ("bad_handles", ""),
    ("bad_memory", ""),
    ("module_faults", ""),
    ("old_headers", ""),
    ("plugin_register", ""),
    ("plugin_load", ""),
    ("transformer_engine", ""),
    ("nvtex", ""),
    ("utils", ""),
    ("multi_stream", ""),
    ("cast", "refused"),
    ("cast_transpose_noop", "wrong"),
    ("transpose", "refuses"),
    ("gemm", "config"),
    ("gemm_block", "refused"),
    ("gemm_nvfp4", "refused"),
    ("hadamard_transform", "refused"),
    ("recipe_nvfp4", "refused"),
    ("transpose_nvfp4", "refused"),
    ("fused_attn_calls", "wrong"),
];

/// Those of them that run layers. Compilers load a field of an `Option` before they ask whether there is one, which
/// valgrind takes for an error.
const NOT_UNDER_VALGRIND: [&str; 1] = ["module_faults"];

pub fn run(tree: &Tree, args: &Args) -> Result<ExitCode> {
    println!(
        "GPU: {}",
        if has_gpu() { "present" } else { "none, tests that need one are skipped" }
    );
    setup::cuda(tree)?;
    let mut report = Report::default();
    let mut prefix = None;
    for step in Step::value_variants() {
        let named = args.only.contains(step);
        let rare = matches!(
            step,
            Step::Undefined | Step::Address | Step::Threads | Step::Kernels | Step::Static
        );
        if !named && (!args.only.is_empty() || (rare && !args.full)) {
            continue;
        }
        let name = step.to_possible_value().expect("no step is hidden").get_name().to_owned();
        report.begin(name);
        let result =
            match step {
                Step::Lint => lint(tree, &mut report),
                Step::Rust => rust(tree, &mut report),
                Step::Headers => headers::run(tree, &mut report),
                Step::Abi => {
                    installed(tree, &mut prefix).and_then(|p| abi::test(tree, &p, &mut report))
                }
                Step::Capi => installed(tree, &mut prefix)
                    .and_then(|p| c_tests(tree, &p, args.full, &mut report)),
                Step::Consumers => {
                    installed(tree, &mut prefix).and_then(|p| consumers(tree, &p, &mut report))
                }
                Step::Static => {
                    installed(tree, &mut prefix).and_then(|p| archive(tree, &p, &mut report))
                }
                Step::Plugins => {
                    installed(tree, &mut prefix).and_then(|p| plugins::test(tree, &p, &mut report))
                }
                Step::Bindings => installed(tree, &mut prefix)
                    .and_then(|p| bindings::test(tree, &p, args.full, &mut report)),
                Step::Docs => {
                    installed(tree, &mut prefix).and_then(|p| docs::test(tree, &p, &mut report))
                }
                Step::Packages => installed(tree, &mut prefix)
                    .and_then(|p| package::test(tree, &p, args.full, &mut report)),
                Step::DropIn => {
                    installed(tree, &mut prefix).and_then(|p| drop_in::test(tree, &p, &mut report))
                }
                Step::Wheel => installed(tree, &mut prefix)
                    .and_then(|p| wheel::test(tree, &p, args.full, &mut report)),
                Step::Memory => installed(tree, &mut prefix)
                    .and_then(|p| memory(tree, &p, args.full, &mut report)),
                Step::Undefined => {
                    installed(tree, &mut prefix).and_then(|p| undefined(tree, &p, &mut report))
                }
                Step::Address => sanitized::memory(tree, &mut report),
                Step::Threads => sanitized::threads(tree, &mut report),
                Step::Kernels => {
                    installed(tree, &mut prefix).and_then(|p| kernels::test(tree, &p, &mut report))
                }
                Step::Fuzz => installed(tree, &mut prefix).and_then(|p| {
                    let clean = fuzz::in_tests(tree, &p, if args.full { 60 } else { 20 })?;
                    report.check("calls with changed arguments", clean);
                    fuzz::coverage::test(tree, &p, &mut report)?;
                    fuzz::differential::test(tree, &p, &mut report)
                }),
            };
        // The other steps are run nevertheless, because they may find something else.
        if let Err(error) = result {
            eprintln!("{error:#}");
            report.add(format!("{error}"), Outcome::Fail);
        }
    }
    Ok(if report.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn lint(tree: &Tree, report: &mut Report) -> Result<()> {
    let mut check = |name: &str, output: process::Output| {
        if !output.success {
            eprint!("{}", output.text);
        }
        report.check(name, output.success);
    };
    check("cargo fmt", fmt::rust(tree, true)?);
    check("clang-format", fmt::clang(tree, true)?);
    let mut clippy = tree.cargo();
    clippy.args(["clippy", "--workspace", "--all-targets", "--release", "--", "-D", "warnings"]);
    check("cargo clippy", process::capture("cargo clippy", &mut clippy)?);
    let sources = dependencies::check(tree);
    if let Err(faults) = &sources {
        eprintln!("{faults}");
    }
    report.check("licences and sources of dependencies", sources.is_ok());
    Ok(())
}

fn rust(tree: &Tree, report: &mut Report) -> Result<()> {
    let runs: [&[&str]; 2] =
        [&["test", "--release", "--no-fail-fast"], &["test", "--package", "xtask"]];
    for arguments in runs {
        let label = format!("cargo {}", arguments.join(" "));
        let mut cargo = tree.cargo();
        cargo.args(arguments).args(["--", "--show-output"]);
        cargo_test(&label, &mut cargo, report)?;
    }
    Ok(())
}

/// Runs a `cargo test`, and reports each test.
pub fn cargo_test(label: &str, cargo: &mut Command, report: &mut Report) -> Result<()> {
    let output = process::capture(label, cargo)?;
    let results = libtest(&output.text);
    let failed = results.iter().any(|(_, outcome)| matches!(outcome, Outcome::Fail));
    if !output.success {
        eprint!("{}", output.text);
    }
    // A build that failed, or a test program that crashed, has no line of its own.
    if results.is_empty() || output.success == failed {
        report.check(label, false);
    }
    for (name, outcome) in results {
        report.add(name, outcome);
    }
    Ok(())
}

/// Reads libtest's lines: `test NAME ... ok`, `... FAILED`, `... ignored, REASON`. A test that
/// finds out while it runs prints `NAME: skipped: REASON`.
fn libtest(text: &str) -> Vec<(String, Outcome)> {
    let verdict = |line: &str| {
        let (name, verdict) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let outcome = match verdict {
            "ok" => Outcome::Pass,
            "FAILED" => Outcome::Fail,
            _ => Outcome::Skip(verdict.strip_prefix("ignored")?.trim_start_matches(", ").into()),
        };
        Some((name.to_owned(), outcome))
    };
    let mut results: Vec<_> = text.lines().filter_map(verdict).collect();
    for (name, reason) in text.lines().filter_map(|line| line.split_once(": skipped: ")) {
        if let Some((_, outcome @ Outcome::Pass)) = results.iter_mut().find(|r| r.0 == name) {
            *outcome = Outcome::Skip(reason.to_owned());
        }
    }
    results
}

/// Gives the folder of the installed library, which several steps share.
fn installed(tree: &Tree, prefix: &mut Option<PathBuf>) -> Result<PathBuf> {
    if prefix.is_none() {
        *prefix = Some(install::built(tree)?);
    }
    Ok(prefix.clone().expect("installed above"))
}

/// Unless all are wanted, the long programs run one of this many of their cases, always the same ones.
const EVERY: u32 = 4;

fn c_tests(tree: &Tree, prefix: &Path, full: bool, report: &mut Report) -> Result<()> {
    let source = tree.root.join("capi-tests");
    let every = format!("-DNVTE_TEST_EVERY={}", if full { 1 } else { EVERY });
    let dir = capi::build(tree, &source, "capi-tests", prefix, &[&every], &[])?;
    capi::ctest(tree, &dir, report)
}

/// Builds against a copy: what install writes must not depend on where it was written.
fn consumers(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    let moved = tree.target.join("moved prefix");
    empty_dir(&moved)?;
    copy_dir(prefix, &moved)?;

    let source = tree.root.join("capi-tests/consumer_c");
    let program = capi::build(tree, &source, "consumer_c", &moved, &[], &[])?.join("consumer_c");
    let name = "consumer_c through CMake";
    report.check(name, on_cpu(name, tree, &mut tree.command(&program))?);

    let pkg_config = |package: &str, arguments: &[&str]| {
        let mut command = tree.command(setup::pkg_config(tree)?);
        command.env("PKG_CONFIG_PATH", moved.join("lib/pkgconfig")).args(arguments).arg(package);
        process::run("pkg-config", &mut command)
    };
    let folder = shell_words(&pkg_config("nvte", &["--variable=libdir"])?).concat();
    let compile = |(variable, default): (&str, &str),
                   standard: &str,
                   source: &Path,
                   name: &str,
                   package: &str| {
        let flags = shell_words(&pkg_config(package, &["--cflags", "--libs"])?);
        let program = tree.target.join(name);
        let mut compile = tree.command(env::var(variable).unwrap_or_else(|_| default.into()));
        compile.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"]);
        let path = format!("-Wl,-rpath,{folder}");
        compile.arg(&program).arg(source).args(flags).args([&path, "-lm"]);
        process::run(&format!("compile {name}"), &mut compile)?;
        Ok::<_, anyhow::Error>(program)
    };
    let source = tree.root.join("capi-tests/consumer_cpp/main.cpp");
    let program = compile(("CXX", "c++"), "-std=c++17", &source, "consumer_cpp", "nvte")?;
    let name = "consumer_cpp through pkg-config";
    report.check(name, on_cpu(name, tree, &mut tree.command(&program))?);
    let source = tree.root.join("capi-tests/drop_in/linked.cpp");
    let package = "nvte-transformer-engine";
    let program = compile(("CXX", "c++"), "-std=c++17", &source, "drop_in_linked", package)?;
    let name = "a program of libtransformer_engine.so through pkg-config";
    report.check(name, on_cpu(name, tree, &mut tree.command(&program))?);

    let source = tree.root.join("examples/layer.cpp");
    let program = compile(("CXX", "c++"), "-std=c++20", &source, "layer", "nvte")?;
    let name = "examples/layer.cpp through pkg-config";
    report.check(name, on_cpu(name, tree, &mut tree.command(&program))?);

    let example = |name: &str| {
        let source = tree.root.join("examples").join(name).with_extension("c");
        compile(("CC", "cc"), "-std=c11", &source, name, "nvte")
    };
    let (generate, gpt) = (example("generate")?, example("gpt")?);
    let mut check = tree.command("python3");
    check.arg(tree.root.join("capi-tests/generate/check.py")).args([generate, gpt]);
    let name = "examples/generate.c writes what a model has learned";
    report.check(name, on_cpu(name, tree, check.arg(tree.target.join("generated")))?);

    let readme = fs::read_to_string(tree.root.join("README.md")).context("README.md")?;
    for (index, text) in c_programs(&readme).iter().enumerate() {
        let name = format!("readme_{}", index + 1);
        let source = tree.target.join(&name).with_extension("c");
        fs::write(&source, text).with_context(|| source.display().to_string())?;
        let program = compile(("CC", "cc"), "-std=c11", &source, &name, "nvte")?;
        let name = format!("C program {} of README.md", index + 1);
        report.check(&name, on_cpu(&name, tree, &mut tree.command(&program))?);
    }
    Ok(())
}

/// Programs with libnvte.a find no shared library, and run.
fn archive(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    let folder = tree.target.join("static prefix");
    empty_dir(&folder)?;
    copy_dir(prefix, &folder)?;
    install::archive(tree, &folder)?;
    let source = tree.root.join("capi-tests/consumer_c");
    let options = ["-DNVTE_STATIC=ON"];
    let dir = capi::build(tree, &source, "consumer_static", &folder, &options, &[])?;
    let mut programs = vec![("consumer_c through CMake", dir.join("consumer_c"))];
    let readme = fs::read_to_string(tree.root.join("README.md")).context("README.md")?;
    let text = c_programs(&readme).into_iter().find(|text| text.contains("nvtex_module_forward"));
    let source = tree.target.join("static.c");
    fs::write(&source, text.context("a program of README.md with a module")?)?;
    let mut pkg_config = tree.command(setup::pkg_config(tree)?);
    pkg_config.env("PKG_CONFIG_PATH", folder.join("lib/pkgconfig"));
    let flags = pkg_config.args(["--cflags", "--libs", "nvte-static"]);
    let flags = shell_words(&process::run("pkg-config", flags)?);
    programs.push(("a program of README.md through pkg-config", tree.target.join("static")));
    let mut compile = tree.command(env::var("CC").unwrap_or_else(|_| "cc".into()));
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"]);
    process::run("compile", compile.arg(&programs[1].1).arg(&source).args(flags))?;
    for (name, program) in programs {
        let needed = drop_in::output(tree, "readelf", &["-d"], &program)?;
        let alone = !needed.contains("libnvte");
        let name = format!("{name}, with the library inside");
        let ran = on_cpu(&name, tree, &mut tree.command(&program))?;
        report.check(name, alone && ran);
    }
    Ok(())
}

/// The C programs of a Markdown text.
pub fn c_programs(markdown: &str) -> Vec<&str> {
    let blocks = markdown.split("\n```c\n").skip(1);
    blocks.filter_map(|block| Some(block.split_once("\n```")?.0)).collect()
}

/// pkg-config escapes a space in a path by a backslash.
fn shell_words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut characters = text.trim().chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => words.last_mut().expect("one word").extend(characters.next()),
            c if c.is_whitespace() => words.push(String::new()),
            c => words.last_mut().expect("one word").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn memory(tree: &Tree, prefix: &Path, full: bool, report: &mut Report) -> Result<()> {
    let source = tree.root.join("capi-tests");
    let programs = WRONG_ARGUMENTS.map(|(test, _)| test);
    let skip = |report: &mut Report, tool, reason: &str| {
        report.add(format!("wrong arguments under {tool}"), Outcome::Skip(reason.to_owned()));
    };
    let asan = has_sanitizers(tree, "address,undefined")?;
    if asan {
        let options = ["-DNVTE_SANITIZE=address,undefined"];
        let dir = capi::build(tree, &source, "capi-tests-asan", prefix, &options, &programs)?;
        wrong_arguments(tree, "AddressSanitizer", &dir, &[], report)?;
    } else {
        let reason = "the C compiler links no program with -fsanitize=address,undefined";
        skip(report, "AddressSanitizer", reason);
    }
    if asan && !full {
        return Ok(());
    }
    if !runs("valgrind", "--version") {
        skip(report, "valgrind", "valgrind is not installed");
        return Ok(());
    }
    let dir = capi::build(tree, &source, "capi-tests", prefix, &[], &programs)?;
    wrong_arguments(tree, "valgrind", &dir, &["valgrind", "--quiet", "--error-exitcode=99"], report)
}

/// Runs the programs in a folder on the CPU, behind the words of a tool if there are any, as many at a time
/// as there are processors.
fn wrong_arguments(
    tree: &Tree,
    tool: &str,
    dir: &Path,
    words: &[&str],
    report: &mut Report,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let worker = || -> Result<Vec<(usize, bool)>> {
        let mut done = Vec::new();
        while let index = next.fetch_add(1, Ordering::Relaxed)
            && let Some((test, case)) = WRONG_ARGUMENTS.get(index)
        {
            if !words.is_empty() && NOT_UNDER_VALGRIND.contains(test) {
                continue;
            }
            let program = dir.join(test);
            let mut command = match words {
                [] => tree.command(program),
                [tool, options @ ..] => {
                    let mut command = tree.command(tool);
                    command.args(options).arg(program);
                    command
                }
            };
            if !case.is_empty() {
                command.arg(case);
            }
            command.env("NVTE_TEST_PLUGINS", dir);
            done.push((index, on_cpu(&format!("{test} under {tool}"), tree, &mut command)?));
        }
        Ok(done)
    };
    let mut results = thread::scope(|scope| {
        let count = thread::available_parallelism().map_or(1, |n| n.get());
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(worker)).collect();
        let results = workers.into_iter().map(|w| w.join().expect("no panic"));
        results.collect::<Result<Vec<_>>>()
    })?
    .concat();
    results.sort_unstable();
    for (index, passed) in results {
        report.check(format!("{} under {tool}", WRONG_ARGUMENTS[index].0), passed);
    }
    Ok(())
}

/// Of the programs that take long, one of so many cases runs under UBSan.
const EVERY_UNDEFINED: u32 = 20;

fn undefined(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    if !has_sanitizers(tree, "undefined")? {
        let reason = "the C compiler links no program with -fsanitize=undefined".to_owned();
        report.add("C and C++ under UBSan", Outcome::Skip(reason));
        return Ok(());
    }
    let folder = tree.target.join("undefined prefix");
    empty_dir(&folder)?;
    copy_dir(prefix, &folder)?;
    let flags = ["-fsanitize=undefined", "-fno-sanitize-recover=undefined"].map(String::from);
    drop_in::build(tree, &folder.join("lib"), install::SONAME, &flags)?;
    let clients = drop_in::clients(tree, &folder, "drop_in_undefined")?;
    capi::ctest(tree, &clients, report)?;
    let every = format!("-DNVTE_TEST_EVERY={EVERY_UNDEFINED}");
    let options = ["-DNVTE_SANITIZE=undefined", &every];
    let source = tree.root.join("capi-tests");
    let dir = capi::build(tree, &source, "capi-tests-undefined", &folder, &options, &[])?;
    capi::ctest(tree, &dir, report)
}

fn has_sanitizers(tree: &Tree, names: &str) -> Result<bool> {
    let source = tree.target.join("sanitized.c");
    fs::write(&source, "int main(void) { return 0; }\n").context("sanitized.c")?;
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compile = tree.command(&compiler);
    compile
        .arg(format!("-fsanitize={names}"))
        .arg(&source)
        .arg("-o")
        .arg(tree.target.join("sanitized"));
    let output = compile.output().with_context(|| compiler)?;
    Ok(output.status.success())
}

/// Runs a test program on the CPU backend; its output appears if it fails.
fn on_cpu(name: &str, tree: &Tree, program: &mut Command) -> Result<bool> {
    program.env("NVTE_BACKEND", "cpu").env("NVTE_TEST_DATA", tree.golden());
    // A request for absurdly many bytes is one of the tests.
    program.env("ASAN_OPTIONS", "allocator_may_return_null=1");
    let output = process::capture(name, program)?;
    if !output.success {
        eprint!("{}", output.text);
    }
    Ok(output.success)
}

#[cfg(test)]
mod tests {
    use super::{Outcome, c_programs, libtest, shell_words};

    #[test]
    fn finds_c_programs() {
        let text = "a\n```c\nint x;\nint y;\n```\nb\n```cmake\nz\n```\n```c\nint w;\n```\n";
        assert_eq!(c_programs(text), ["int x;\nint y;", "int w;"]);
    }

    #[test]
    fn reads_libtest() {
        let text = "running 4 tests\ntest a::b ... ok\ntest c ... FAILED\n\
                    test d ... ignored, needs a GPU\ntest e ... ok\n\nsuccesses:\n\n\
                    ---- e stdout ----\ne: skipped: no driver\n\ntest result: FAILED. 2 passed\n";
        let results = libtest(text);
        assert_eq!(results.len(), 4);
        assert!(matches!(results[0], (ref name, Outcome::Pass) if name == "a::b"));
        assert!(matches!(results[1].1, Outcome::Fail));
        assert!(matches!(results[2].1, Outcome::Skip(ref reason) if reason == "needs a GPU"));
        assert!(matches!(results[3].1, Outcome::Skip(ref reason) if reason == "no driver"));
    }

    #[test]
    fn splits_flags() {
        let words = shell_words("-I/a\\ b/include  -L/a\\ b/lib -lnvte\n");
        assert_eq!(words, ["-I/a b/include", "-L/a b/lib", "-lnvte"]);
    }
}
