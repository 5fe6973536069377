//! `cargo xtask wheel`: the Python wheels, of which one puts this library in the place of Transformer Engine's.

mod sysroot;

use crate::drop_in;
use crate::install;
use crate::process;
use crate::report::Report;
use crate::setup;
use crate::tree::{Tree, empty_dir};
use anyhow::{Result, anyhow, bail};
use std::env;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Where to put the wheels
    #[arg(long, default_value = "target/wheel")]
    out: PathBuf,
}

/// Newest versions that a wheel of this tag may ask of the machine.
const TAG: &str = "manylinux_2_28_x86_64";

pub fn run(tree: &Tree, args: &Args) -> Result<()> {
    let prefix = portable(tree)?;
    for wheel in pack(tree, &prefix, &env::current_dir()?.join(&args.out))? {
        println!("{}", wheel.display());
    }
    Ok(())
}

/// Builds the library and installs it into an emptied folder, linked for older machines than the one that builds it.
pub fn portable(tree: &Tree) -> Result<PathBuf> {
    setup::cuda(tree)?;
    let sysroot = sysroot::make(tree)?;
    let mut options = sysroot::link_options(&sysroot);
    let mut cargo = tree.cargo();
    cargo.args(["rustc", "--release", "--package", "nvte", "--lib", "--"]);
    // Undefined names would otherwise be left for the loader.
    for option in options.iter().map(String::as_str).chain(["-Wl,-z,defs"]) {
        cargo.args(["-C", &format!("link-arg={option}")]);
    }
    process::inherit("cargo rustc", &mut cargo)?;

    let prefix = tree.target.join("portable");
    empty_dir(&prefix)?;
    // A linker of programs also looks at what the machine's own libstdc++ needs, which is newer.
    options.push("-Wl,--allow-shlib-undefined".to_owned());
    install::install(tree, &prefix, true, &options)?;
    let programs = std::fs::read_dir(prefix.join("bin"))?.map(|entry| Ok(entry?.path()));
    let programs = programs.collect::<Result<Vec<_>>>()?;
    let libraries = [install::SONAME, drop_in::FILE].map(|file| prefix.join("lib").join(file));
    for file in programs.iter().chain(&libraries) {
        let newer = sysroot::too_new(tree, file)?;
        if !newer.is_empty() {
            bail!("{} needs more than {TAG} has: {}", file.display(), newer.join(", "));
        }
    }
    Ok(prefix)
}

/// Packs an installation into wheels in the folder `out`: that of the Python package nvte, and the one that stands in
/// for Transformer Engine's library.
pub fn pack(tree: &Tree, prefix: &Path, out: &Path) -> Result<[PathBuf; 2]> {
    let mut command = tree.command("python3");
    command.arg(tree.root.join("packaging/wheels.py")).arg(prefix);
    command.args([&tree.version()?, TAG]).arg(out);
    let text = process::run("pack the wheels", &mut command)?;
    let paths: Vec<_> = text.lines().map(PathBuf::from).collect();
    paths.try_into().map_err(|paths| anyhow!("wheels.py printed {paths:?}"))
}

/// Tests the wheel without a GPU, with a package that loads its library as Transformer Engine's does. With `full` the
/// library is linked for older machines, as that of a wheel is.
pub fn test(tree: &Tree, prefix: &Path, full: bool, report: &mut Report) -> Result<()> {
    let out = tree.target.join("wheel-test");
    empty_dir(&out)?;
    let linked = sysroot::check(tree, &sysroot::make(tree)?, &tree.library());
    if let Err(error) = &linked {
        eprintln!("{error:#}");
    }
    report.check("wheel: an older machine has what the library needs", linked.is_ok());
    let prefix = if full { portable(tree)? } else { prefix.to_owned() };
    let [_, wheel] = pack(tree, &prefix, &out)?;
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
