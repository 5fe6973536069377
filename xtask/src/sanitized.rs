//! The library compiled for a sanitizer of Rust's compiler: threads under ThreadSanitizer, with the standard library
//! compiled for it too, because an instrumented program sees no lock of one that is not; and memory under
//! AddressSanitizer, with checks of overflows and of what the standard library asks of unsafe code.

use crate::process;
use crate::report::{Outcome, Report};
use crate::test::cargo_test;
use crate::tree::{self, Tree, runs};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Programs of capi-tests/ whose threads share registry, policies, tapes and the trace, train layers side by side, or are
/// the ranks of communicators.
const OF_THREADS: [&str; 13] = [
    "dispatch/concurrency",
    "dispatch/failure",
    "dispatch/plugin_load",
    "dispatch/plugin_register",
    "dispatch/policy",
    "dispatch/selection",
    "dispatch/tape",
    "module/module_memory",
    "parallel/parallel_context",
    "parallel/parallel_experts",
    "parallel/parallel_moe",
    "parallel/parallel_threads",
    "soak/soak_layers",
];

/// Programs of capi-tests/ that call all parts of the library on the CPU, and of how many cases one is run.
const OF_MEMORY: [(&str, u32); 24] = [
    ("activation/activation", 40),
    ("api/bad_handles", 1),
    ("api/bad_input", 1),
    ("api/bad_memory", 1),
    ("cast/cast", 40),
    ("cast/group_bounds", 20),
    ("embedding/embedding", 1),
    ("fused_attn/attention_bounds", 10),
    ("fused_attn/fused_attn_matrix", 40),
    ("fused_rope/fused_rope", 10),
    ("fused_router/fused_router", 10),
    ("gemm/gemm", 40),
    ("gemm/gemm_block", 40),
    ("gemm/gemm_grouped", 10),
    ("gemm/gemm_nvfp4", 20),
    ("module/module_faults", 1),
    ("module/recipe_state", 1),
    ("multi_tensor/multi_tensor", 10),
    ("normalization/normalization", 40),
    ("permutation/permutation", 10),
    ("swizzle/swizzle", 20),
    ("train/checkpoint", 1),
    ("train/optimizer", 4),
    ("train/pretrained", 1),
];

/// What Rust's compiler needs for one of its sanitizers.
struct Sanitizer {
    /// As `-Zsanitizer` and the C compiler's `-fsanitize` have it.
    name: &'static str,
    title: &'static str,
    host: String,
    runtime: PathBuf,
    folder: PathBuf,
}

impl Sanitizer {
    /// None if this Rust has no runtime of it.
    fn find(
        tree: &Tree,
        name: &'static str,
        title: &'static str,
        short: &str,
    ) -> Result<Option<Self>> {
        let host = print(tree, "host-tuple")?;
        let libraries = sysroot(tree)?.join("lib/rustlib").join(&host).join("lib");
        let end = format!("_rt.{short}.a");
        let is_runtime = |path: &PathBuf| {
            path.file_name().is_some_and(|name| {
                let name = name.to_string_lossy();
                name.starts_with("librustc-") && name.ends_with(&end)
            })
        };
        let runtime = tree::files(&libraries, &["a"])?.into_iter().find(is_runtime);
        let folder = tree.target.join(short);
        Ok(runtime.map(|runtime| Self { name, title, host, runtime, folder }))
    }

    /// `cargo ARGUMENTS` for the library, on the CPU alone.
    fn cargo(&self, tree: &Tree, arguments: &[&str]) -> Command {
        let mut cargo = tree.cargo();
        cargo.args(arguments).args(["--package", "nvte", "--target", &self.host]);
        cargo.arg("--target-dir").arg(&self.folder).env("RUSTC_BOOTSTRAP", "1");
        cargo.env("RUSTFLAGS", format!("-Zsanitizer={}", self.name)).env("NVTE_CPU_ONLY", "1");
        // A trap needs no runtime, which would be that of another compiler.
        let undefined = "-fsanitize=undefined -fsanitize-undefined-trap-on-error";
        cargo.env("CXXFLAGS", format!("-fsanitize={} {undefined}", self.name));
        cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").env("CARGO_INCREMENTAL", "0");
        cargo
    }

    /// The folder of the library that `cargo build` has made.
    fn library(&self) -> Result<PathBuf> {
        let library = self.folder.join(&self.host).join("debug");
        tree::link(Path::new("libnvte.so"), &library.join("libnvte.so.0"))?;
        Ok(library)
    }

    /// Compiles a program of capi-tests/ for the sanitizer.
    fn program(&self, tree: &Tree, library: &Path, source: &str, program: &Path) -> Result<()> {
        let (compiler, tests) = (compiler(), tree.root.join("capi-tests"));
        let mut compile = tree.command(&compiler);
        compile.args(["-std=c11", "-O1", "-g", "-c"]).arg(format!("-fsanitize={}", self.name));
        compile.arg("-I").arg(tree.root.join("include")).arg("-I").arg(&tests);
        compile.arg(tests.join(source).with_extension("c"));
        let object = program.with_extension("o");
        process::run(&format!("compile {source}"), compile.arg("-o").arg(&object))?;
        // The runtime of the library's compiler, in place of that of the C compiler.
        let mut link = tree.command(&compiler);
        link.arg(&object).arg("-o").arg(program).arg("-L").arg(library);
        link.arg(format!("-Wl,-rpath,{}", library.display())).arg("-Wl,--whole-archive");
        link.arg(&self.runtime).args(["-Wl,--no-whole-archive", "-Wl,--export-dynamic", "-lnvte"]);
        link.args(["-lpthread", "-ldl", "-lm", "-lrt", "-lstdc++"]);
        process::run(&format!("link {source}"), &mut link).map(drop)
    }

    /// Runs a program on the CPU, and reports it.
    fn check(
        &self,
        tree: &Tree,
        program: &Path,
        set: &[(&str, &str)],
        report: &mut Report,
    ) -> Result<()> {
        // Some kernels place programs at more addresses than the runtime can shadow.
        let mut run = if runs("setarch", "--version") {
            let mut run = tree.command("setarch");
            run.arg("-R").arg(program);
            run
        } else {
            tree.command(program)
        };
        run.env("NVTE_BACKEND", "cpu").envs(set.iter().copied());
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{name} under {}", self.title);
        let output = process::capture(&name, &mut run)?;
        if !output.success {
            eprint!("{}", output.text);
        }
        report.check(name, output.success);
        Ok(())
    }
}

fn compiler() -> String {
    env::var("CC").unwrap_or_else(|_| "cc".into())
}

fn print(tree: &Tree, what: &str) -> Result<String> {
    let text = process::run("rustc --print", tree.command("rustc").args(["--print", what]))?;
    Ok(text.trim().to_owned())
}

fn sysroot(tree: &Tree) -> Result<PathBuf> {
    print(tree, "sysroot").map(PathBuf::from)
}

pub fn threads(tree: &Tree, report: &mut Report) -> Result<()> {
    let skip = |report: &mut Report, reason: &str| {
        report.add("threads under ThreadSanitizer", Outcome::Skip(reason.to_owned()));
        Ok(())
    };
    if !sysroot(tree)?.join("lib/rustlib/src/rust/library/std").is_dir() {
        let reason =
            "the source of Rust's standard library is missing (rustup component add rust-src)";
        return skip(report, reason);
    }
    let Some(sanitizer) = Sanitizer::find(tree, "thread", "ThreadSanitizer", "tsan")? else {
        return skip(report, "this Rust has no runtime of ThreadSanitizer");
    };
    let mut build = sanitizer.cargo(tree, &["build", "-Zbuild-std"]);
    process::run("cargo build for ThreadSanitizer", &mut build)?;
    let library = sanitizer.library()?;
    let folder = sanitizer.folder.join("programs");
    tree::empty_dir(&folder)?;
    let (compiler, include) = (compiler(), tree.root.join("include"));
    for plugin in tree::files(&tree.root.join("capi-tests/dispatch/plugins"), &["c"])? {
        let name = plugin.file_stem().unwrap_or_default();
        let mut compile = tree.command(&compiler);
        compile.args(["-std=c11", "-O1", "-g", "-shared", "-fPIC", "-I"]);
        compile.arg(&include).arg(&plugin);
        compile.arg("-o").arg(folder.join(name).with_extension("so"));
        process::run(&format!("compile {}", name.display()), &mut compile)?;
    }
    let plugins = folder.to_string_lossy();
    // A child of fork does not have the threads of its parent, but the runtime's records of them.
    let set = [
        ("NVTE_TEST_PLUGINS", &*plugins),
        ("NVTE_TEST_EVERY", "4"),
        ("TSAN_OPTIONS", "report_thread_leaks=0"),
    ];
    for source in OF_THREADS {
        let program = folder.join(source.rsplit('/').next().unwrap_or(source));
        sanitizer.program(tree, &library, source, &program)?;
        sanitizer.check(tree, &program, &set, report)?;
    }
    fs::remove_dir_all(&folder).context("remove the programs")
}

/// The tests inside of the library, and programs of capi-tests/.
pub fn memory(tree: &Tree, report: &mut Report) -> Result<()> {
    let Some(sanitizer) = Sanitizer::find(tree, "address", "AddressSanitizer", "asan")? else {
        let reason = "this Rust has no runtime of AddressSanitizer".to_owned();
        report.add("the library under AddressSanitizer", Outcome::Skip(reason));
        return Ok(());
    };
    // What lives as long as the process is no leak.
    let options = ("ASAN_OPTIONS", "detect_leaks=0");
    let mut tests = sanitizer.cargo(tree, &["test", "--lib"]);
    tests.env(options.0, options.1).env("NVTE_BACKEND", "cpu");
    cargo_test("cargo test --lib under AddressSanitizer", &mut tests, report)?;
    let mut build = sanitizer.cargo(tree, &["build"]);
    process::run("cargo build for AddressSanitizer", &mut build)?;
    let library = sanitizer.library()?;
    let folder = sanitizer.folder.join("programs");
    tree::empty_dir(&folder)?;
    let golden = tree.golden();
    let golden = golden.to_string_lossy();
    for (source, every) in OF_MEMORY {
        let program = folder.join(source.rsplit('/').next().unwrap_or(source));
        sanitizer.program(tree, &library, source, &program)?;
        let every = every.to_string();
        let set = [options, ("NVTE_TEST_DATA", &*golden), ("NVTE_TEST_EVERY", &*every)];
        sanitizer.check(tree, &program, &set, report)?;
    }
    fs::remove_dir_all(&folder).context("remove the programs")
}
