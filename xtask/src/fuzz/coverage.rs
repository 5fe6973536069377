//! `cargo xtask fuzz --coverage TARGET`: files, texts and sequences of calls, guided by the coverage of the library's code
//! (capi-tests/fuzz/coverage.c), and what was found by it, once in each test.

use super::Args;
use crate::process;
use crate::report::Report;
use crate::tree::{self, Tree};
use anyhow::{Context, Result};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What the compiler puts into the library: a count for each edge of its control flow, and the operands of comparisons.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
                     -Cllvm-args=-sanitizer-coverage-trace-pc-guard \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";

fn compile(tree: &Tree, include: &Path, library: &Path, program: &Path) -> Result<()> {
    let source = tree.root.join("capi-tests/fuzz/coverage.c");
    let mut compile = tree.command(env::var("CC").unwrap_or_else(|_| "cc".into()));
    compile.args(["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(include);
    compile.arg("-I").arg(tree.root.join("capi-tests")).arg(source).arg("-o").arg(program);
    compile.arg("-L").arg(library).arg(format!("-Wl,-rpath,{}", library.display()));
    // The library calls the program at each edge.
    compile.args(["-Wl,--export-dynamic", "-lnvte", "-lpthread", "-ldl", "-lm"]);
    process::run("compile the coverage fuzzer", &mut compile).map(drop)
}

fn corpora(tree: &Tree) -> PathBuf {
    tree.root.join("tests/corpus")
}

pub fn run(tree: &Tree, args: &Args, target: &str) -> Result<ExitCode> {
    let host = process::run("rustc", tree.command("rustc").args(["--print", "host-tuple"]))?;
    let host = host.trim();
    let folder = tree.target.join("coverage");
    let mut build = tree.cargo();
    build.args(["build", "--package", "nvte", "--target", host, "--target-dir"]).arg(&folder);
    build.env("RUSTFLAGS", FLAGS).env("NVTE_CPU_ONLY", "1").env("CARGO_INCREMENTAL", "0");
    build.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    process::run("cargo build for coverage", &mut build)?;
    let library = folder.join(host).join("debug");
    tree::link(Path::new("libnvte.so"), &library.join("libnvte.so.0"))?;
    let program = folder.join("coverage");
    compile(tree, &tree.root.join("include"), &library, &program)?;
    let corpus = corpora(tree).join(target);
    fs::create_dir_all(&corpus).with_context(|| corpus.display().to_string())?;
    let mut search = tree.command(&program);
    search.arg(target).arg(&corpus).arg(args.seconds.to_string()).arg(args.seed.to_string());
    search.env("NVTE_BACKEND", "cpu").env("NVTE_VERBOSE", "none");
    let status = search.status().with_context(|| program.display().to_string())?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All inputs of tests/corpus once, with the installed library.
pub fn test(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    let program = tree.target.join("coverage-corpus");
    compile(tree, &prefix.join("include"), &prefix.join("lib"), &program)?;
    let folder = corpora(tree);
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let target = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut run = tree.command(&program);
        run.arg(&target).arg(&path).env("NVTE_BACKEND", "cpu").env("NVTE_VERBOSE", "none");
        let output = process::capture(&format!("corpus {target}"), &mut run)?;
        if !output.success {
            eprint!("{}", output.text);
        }
        report.check(format!("corpus {target}"), output.success);
    }
    Ok(())
}
