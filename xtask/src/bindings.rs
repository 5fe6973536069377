//! The bindings of `bindings/`, tested on the CPU against an installed library, as a program that uses them has it.
//! Those for JAX and LibTorch are tested where these are installed; `--full` fetches them, candle and ONNX Runtime.

use crate::process;
use crate::report::{Outcome, Report};
use crate::setup;
use crate::test::cargo_test;
use crate::tree::{self, Tree};
use anyhow::Result;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn test(tree: &Tree, prefix: &Path, full: bool, report: &mut Report) -> Result<()> {
    rust(tree, prefix, report)?;
    candle(tree, prefix, full, report)?;
    onnxruntime(tree, prefix, full, report)?;
    python(tree, prefix, report)?;
    jax(tree, prefix, full, report)?;
    torch(tree, prefix, full, report)
}

/// Formats are checked with those of the repository's other sources.
fn rust(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    let pkg_config = setup::pkg_config(tree)?;
    let cargo = |arguments: &[&str]| {
        let mut cargo = tree.cargo();
        cargo.args(arguments).arg("--manifest-path").arg(tree.root.join("bindings/Cargo.toml"));
        cargo.env("CARGO_TARGET_DIR", tree.target.join("bindings"));
        cargo.env("PKG_CONFIG", &pkg_config);
        cargo.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).env_remove("NVTE_LIB_DIR");
        // Programs of documentation have no run path.
        cargo.env("LD_LIBRARY_PATH", prefix.join("lib")).env("NVTE_BACKEND", "cpu");
        cargo
    };
    let mut clippy = cargo(&["clippy", "--all-targets"]);
    let output = process::capture("clippy of the bindings", clippy.args(["--", "-Dwarnings"]))?;
    check("cargo clippy of the bindings", output, report);
    cargo_test("cargo test of the bindings", &mut cargo(&["test", "--no-fail-fast"]), report)?;
    let example = ["run", "--example", "mlp"];
    let output = process::capture("the example of the Rust binding", &mut cargo(&example))?;
    check("the example of the Rust binding trains", output, report);
    let mut doc = cargo(&["doc", "--no-deps"]);
    let doc = doc.env("DOCS_RS", "1").env("RUSTDOCFLAGS", "-Dwarnings");
    check("cargo doc of the bindings", process::capture("cargo doc of the bindings", doc)?, report);
    Ok(())
}

/// Modules as operators of candle, which is fetched and compiled.
fn candle(tree: &Tree, prefix: &Path, full: bool, report: &mut Report) -> Result<()> {
    if !full {
        let reason = "candle has more than a hundred dependencies (--full fetches them)";
        report.add("candle binding", Outcome::Skip(reason.to_owned()));
        return Ok(());
    }
    let cargo = |arguments: &[&str]| {
        let mut cargo = tree.cargo();
        let manifest = tree.root.join("bindings/candle/Cargo.toml");
        cargo.args(arguments).arg("--release").arg("--manifest-path").arg(manifest);
        cargo.env("CARGO_TARGET_DIR", tree.target.join("candle")).env("NVTE_BACKEND", "cpu");
        cargo.env("NVTE_LIB_DIR", prefix.join("lib")).env("LD_LIBRARY_PATH", prefix.join("lib"));
        cargo
    };
    cargo_test("cargo test of the candle binding", &mut cargo(&["test"]), report)?;
    let output = process::capture("candle", &mut cargo(&["run", "--example", "train"]))?;
    check("the example of the candle binding trains", output, report);
    Ok(())
}

/// Operators for graphs of ONNX, in the library that ONNX Runtime loads.
fn onnxruntime(tree: &Tree, prefix: &Path, full: bool, report: &mut Report) -> Result<()> {
    if !full {
        let reason = "--full fetches ONNX Runtime";
        report.add("ONNX Runtime binding", Outcome::Skip(reason.to_owned()));
        return Ok(());
    }
    let folder = tree.root.join("bindings/onnxruntime");
    let target = tree.target.join("onnxruntime");
    let mut build = tree.cargo();
    build.args(["build", "--release", "--manifest-path"]).arg(folder.join("Cargo.toml"));
    build.env("CARGO_TARGET_DIR", &target).env("NVTE_LIB_DIR", prefix.join("lib"));
    process::run("build the operators for ONNX Runtime", &mut build)?;
    let packages = [setup::onnxruntime(tree)?, tree.root.join("bindings/python")];
    for (label, program) in [
        ("ONNX Runtime binding", "tests/test_onnxruntime.py"),
        ("export to ONNX", "tests/test_export.py"),
    ] {
        let mut test = tree.command("python3");
        test.env("PYTHONPATH", env::join_paths(&packages)?).env("PYTHONDONTWRITEBYTECODE", "1");
        test.env("LD_LIBRARY_PATH", prefix.join("lib")).env("NVTE_BACKEND", "cpu");
        test.env("NVTE_LIBRARY", prefix.join("lib/libnvte.so"));
        test.arg(folder.join(program)).arg(target.join("release/libnvte_onnxruntime.so"));
        test.arg(target.join("export"));
        report.lines(label, &process::capture(label, &mut test)?);
    }
    Ok(())
}

/// The tests need nothing but Python; those that use NumPy say so if it is not there.
fn python(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    let folder = tree.root.join("bindings/python");
    let python = || {
        let mut python: Command = tree.command("python3");
        python.env("PYTHONPATH", &folder).env("PYTHONDONTWRITEBYTECODE", "1");
        python.env("NVTE_LIBRARY", prefix.join("lib/libnvte.so")).env("NVTE_BACKEND", "cpu");
        python
    };
    for test in tree::files(&folder.join("tests"), &["py"])? {
        let name = test.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let output = process::capture(&format!("Python {name}"), python().arg(&test))?;
        check(&format!("Python binding: {name}"), output, report);
    }
    let mut quickstart = python();
    let quickstart = quickstart.arg(folder.join("examples/quickstart.py"));
    let output = process::capture("the example of the Python binding", quickstart)?;
    check("the example of the Python binding runs", output, report);
    Ok(())
}

/// Handlers of XLA, compiled against the headers of jaxlib, and what they compute.
fn jax(tree: &Tree, prefix: &Path, full: bool, report: &mut Report) -> Result<()> {
    let folder = tree.root.join("bindings/jax");
    let mut paths = vec![folder.clone()];
    if full {
        paths.push(setup::jax(tree)?);
    }
    let python = || {
        let mut python: Command = tree.command("python3");
        python.env("PYTHONPATH", env::join_paths(&paths).expect("paths without colons"));
        python.env("PYTHONDONTWRITEBYTECODE", "1").env("JAX_PLATFORMS", "cpu");
        python
    };
    if !python().args(["-c", "import jax"]).output()?.status.success() {
        let reason = "python3 has no jax (--full fetches it)";
        report.add("JAX binding", Outcome::Skip(reason.to_owned()));
        return Ok(());
    }
    let handlers = tree.target.join("jax_handlers.so");
    let mut build = python();
    build.arg(folder.join("build.py")).arg("--prefix").arg(prefix).arg("--out").arg(&handlers);
    process::run("compile the handlers for JAX", &mut build)?;
    let mut test = python();
    test.env("NVTE_JAX_HANDLERS", &handlers).env("NVTE_BACKEND", "cpu");
    let output = process::capture("JAX", test.arg(folder.join("tests/test_jax.py")))?;
    check("JAX binding: test_jax.py", output, report);
    Ok(())
}

/// The extension of LibTorch, linked with a C++ program that trains with it.
fn torch(tree: &Tree, prefix: &Path, full: bool, report: &mut Report) -> Result<()> {
    let mut home = env::var_os("LIBTORCH").map_or_else(|| PathBuf::from("/usr"), PathBuf::from);
    let is_there = |home: &Path| home.join("include/torch/library.h").is_file();
    if full && !is_there(&home) {
        home = setup::torch(tree)?;
    }
    if !is_there(&home) {
        let reason = "no LibTorch in LIBTORCH or /usr (Debian: libtorch-dev; --full fetches it)";
        report.add("LibTorch binding", Outcome::Skip(reason.to_owned()));
        return Ok(());
    }
    let folder = tree.root.join("bindings/torch");
    let program = tree.target.join("torch_test");
    let mut compile = tree.command(env::var("CXX").unwrap_or_else(|_| "c++".into()));
    compile.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compile.args(["nvte_torch.cpp", "test.cpp"].map(|name| folder.join(name)));
    compile.arg("-I").arg(prefix.join("include"));
    // Headers of Debian lie where the compiler looks anyway, and must not come before its own.
    if home != Path::new("/usr") {
        compile.arg("-isystem").arg(home.join("include")).arg("-L").arg(home.join("lib"));
    }
    compile.arg("-isystem").arg(home.join("include/torch/csrc/api/include"));
    compile.arg("-L").arg(prefix.join("lib")).args(["-lnvte", "-ltorch_cpu", "-lc10"]);
    for lib in [prefix.join("lib"), home.join("lib")] {
        compile.arg(format!("-Wl,-rpath,{}", lib.display()));
    }
    process::run("compile the extension of LibTorch", &mut compile)?;
    let mut run = tree.command(&program);
    let label = "LibTorch binding";
    report.lines(label, &process::capture(label, run.env("NVTE_BACKEND", "cpu"))?);
    Ok(())
}

fn check(name: &str, output: process::Output, report: &mut Report) {
    if !output.success {
        eprint!("{}", output.text);
    }
    report.check(name, output.success);
}
