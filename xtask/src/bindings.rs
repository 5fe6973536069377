//! The bindings of `bindings/`, tested on the CPU against an installed library, as a program that uses them has it.

use crate::process;
use crate::report::Report;
use crate::setup;
use crate::test::cargo_test;
use crate::tree::{self, Tree};
use anyhow::Result;
use std::path::Path;
use std::process::Command;

pub fn test(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    rust(tree, prefix, report)?;
    python(tree, prefix, report)
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

fn check(name: &str, output: process::Output, report: &mut Report) {
    if !output.success {
        eprint!("{}", output.text);
    }
    report.check(name, output.success);
}
