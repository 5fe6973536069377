//! `cargo xtask wheel`: the Python wheel that puts this library in the place of Transformer Engine's.

mod sysroot;

use crate::drop_in;
use crate::install::{self, strip};
use crate::process;
use crate::report::Report;
use crate::setup;
use crate::tree::{Tree, empty_dir};
use anyhow::{Context, Result, bail};
use std::env;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Where to put the wheel
    #[arg(long, default_value = "target/wheel")]
    out: PathBuf,
}

/// Newest versions that a wheel of this tag may ask of the machine.
const TAG: &str = "manylinux_2_28_x86_64";

pub fn run(tree: &Tree, args: &Args) -> Result<()> {
    setup::cuda(tree)?;
    let sysroot = sysroot::make(tree)?;
    let options = sysroot::link_options(&sysroot);
    let mut cargo = tree.cargo();
    cargo.args(["rustc", "--release", "--package", "nvte", "--lib", "--"]);
    // Undefined names would otherwise be left for the loader.
    for option in options.iter().map(String::as_str).chain(["-Wl,-z,defs"]) {
        cargo.args(["-C", &format!("link-arg={option}")]);
    }
    process::inherit("cargo rustc", &mut cargo)?;

    let lib = tree.target.join("wheel/lib");
    empty_dir(&lib)?;
    strip(tree, &tree.library(), &lib.join(install::SONAME))?;
    drop_in::build(tree, &lib, install::SONAME, &options)?;
    for file in [install::SONAME, drop_in::FILE] {
        let newer = sysroot::too_new(tree, &lib.join(file))?;
        if !newer.is_empty() {
            bail!("{file} needs more than {TAG} has: {}", newer.join(", "));
        }
    }
    let out = env::current_dir()?.join(&args.out);
    let wheel = pack(tree, &lib, &out)?;
    println!("{}", wheel.display());
    Ok(())
}

/// Packs the two libraries of a folder and the Python package into a wheel in the folder `out`.
fn pack(tree: &Tree, lib: &Path, out: &Path) -> Result<PathBuf> {
    let mut command = tree.command("python3");
    command.arg(tree.root.join("drop-in/python/pack.py"));
    command.args([&tree.version()?, TAG]).arg(lib).arg(out);
    let text = process::run("pack the wheel", &mut command)?;
    Ok(text.lines().last().context("pack.py printed no path")?.into())
}

/// Tests the wheel without a GPU, with a package that loads its library as Transformer Engine's does.
pub fn test(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    let out = tree.target.join("wheel-test");
    empty_dir(&out)?;
    let lib = out.join("lib");
    std::fs::create_dir_all(&lib)?;
    for file in [install::SONAME, drop_in::FILE] {
        crate::tree::copy(&prefix.join("lib").join(file), &lib.join(file))?;
    }
    let wheel = pack(tree, &lib, &out)?;
    let mut command = tree.command("python3");
    command.arg(tree.root.join("drop-in/python/test_wheel.py")).arg(&wheel);
    command.arg(out.join("environment"));
    let output = process::capture("the wheel's tests", &mut command)?;
    // A line of unittest for each test: `test_name (class) ... ok`.
    let mut tests = 0;
    for (name, verdict) in output.text.lines().filter_map(|line| line.split_once(" ... ")) {
        let name = name.split_whitespace().next().unwrap_or(name);
        report.check(format!("wheel: {name}"), verdict == "ok");
        tests += 1;
    }
    if !output.success || tests == 0 {
        eprint!("{}", output.text);
        report.check("the wheel's tests", false);
    }
    Ok(())
}
