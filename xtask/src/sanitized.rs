//! The programs of threads under ThreadSanitizer, against a library of which everything is built for it, the standard
//! library of Rust too: an instrumented program sees no lock of a standard library that is not.

use crate::process;
use crate::report::{Outcome, Report};
use crate::tree::{self, Tree, runs};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Programs of capi-tests/dispatch whose threads share registry, policies, tapes and the trace.
const PROGRAMS: [&str; 7] =
    ["concurrency", "failure", "plugin_load", "plugin_register", "policy", "selection", "tape"];

pub fn test(tree: &Tree, report: &mut Report) -> Result<()> {
    let skip = |report: &mut Report, reason: &str| {
        report.add("threads under ThreadSanitizer", Outcome::Skip(reason.to_owned()));
    };
    let rustc = |what| process::run("rustc --print", tree.command("rustc").args(["--print", what]));
    let sysroot = PathBuf::from(rustc("sysroot")?.trim());
    let host = rustc("host-tuple")?.trim().to_owned();
    if !sysroot.join("lib/rustlib/src/rust/library/std").is_dir() {
        skip(
            report,
            "the source of Rust's standard library is missing (rustup component add rust-src)",
        );
        return Ok(());
    }
    let runtimes = tree::files(&sysroot.join("lib/rustlib").join(&host).join("lib"), &["a"])?;
    let name = |path: &Path| {
        path.file_name().is_some_and(|name| {
            let name = name.to_string_lossy();
            name.starts_with("librustc-") && name.ends_with("_rt.tsan.a")
        })
    };
    let Some(runtime) = runtimes.iter().find(|path| name(path)) else {
        skip(report, "this Rust has no runtime of ThreadSanitizer");
        return Ok(());
    };
    let target = tree.target.join("tsan");
    let mut build = tree.cargo();
    build.args(["build", "--package", "nvte", "-Zbuild-std", "--target", &host, "--target-dir"]);
    build.arg(&target).env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=thread");
    build.env("CXXFLAGS", "-fsanitize=thread").env("NVTE_CPU_ONLY", "1");
    build.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").env("CARGO_INCREMENTAL", "0");
    process::run("cargo build for ThreadSanitizer", &mut build)?;
    let library = target.join(&host).join("debug");
    tree::link(Path::new("libnvte.so"), &library.join("libnvte.so.0"))?;
    let folder = target.join("programs");
    tree::empty_dir(&folder)?;
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let include = tree.root.join("include");
    let source = tree.root.join("capi-tests");
    for plugin in tree::files(&source.join("dispatch/plugins"), &["c"])? {
        let name = plugin.file_stem().unwrap_or_default();
        let mut compile = tree.command(&compiler);
        compile
            .args(["-std=c11", "-O1", "-g", "-shared", "-fPIC", "-I"])
            .arg(&include)
            .arg(&plugin);
        compile.arg("-o").arg(folder.join(name).with_extension("so"));
        process::run(&format!("compile {}", name.display()), &mut compile)?;
    }
    let setarch = runs("setarch", "--version");
    for program in PROGRAMS {
        let mut compile = tree.command(&compiler);
        compile.args(["-std=c11", "-O1", "-g", "-fsanitize=thread", "-c", "-I"]).arg(&include);
        compile
            .arg("-I")
            .arg(&source)
            .arg(source.join("dispatch").join(program).with_extension("c"));
        let object = folder.join(program).with_extension("o");
        process::run(&format!("compile {program}"), compile.arg("-o").arg(&object))?;
        // The runtime of the library's compiler, in place of that of the C compiler.
        let mut link = tree.command(&compiler);
        link.arg(&object).arg("-o").arg(folder.join(program)).arg("-L").arg(&library);
        link.arg(format!("-Wl,-rpath,{}", library.display())).arg("-Wl,--whole-archive");
        link.arg(runtime).args(["-Wl,--no-whole-archive", "-Wl,--export-dynamic", "-lnvte"]);
        process::run(
            &format!("link {program}"),
            link.args(["-lpthread", "-ldl", "-lm", "-lrt", "-lstdc++"]),
        )?;
        // Some kernels place programs at more addresses than the runtime can shadow.
        let mut run =
            if setarch { tree.command("setarch") } else { tree.command(folder.join(program)) };
        if setarch {
            run.arg("-R").arg(folder.join(program));
        }
        run.env("NVTE_BACKEND", "cpu").env("NVTE_TEST_PLUGINS", &folder);
        // A child of fork does not have the threads of its parent, but the runtime's records of them.
        run.env("TSAN_OPTIONS", "report_thread_leaks=0");
        let output = process::capture(&format!("{program} under ThreadSanitizer"), &mut run)?;
        if !output.success {
            eprint!("{}", output.text);
        }
        report.check(format!("{program} under ThreadSanitizer"), output.success);
    }
    fs::remove_dir_all(&folder).context("remove the programs")
}
