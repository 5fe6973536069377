//! `cargo xtask docs`: the documentation site, and the programs that its pages contain.

use crate::install;
use crate::process;
use crate::report::Report;
use crate::setup;
use crate::tree::Tree;
use anyhow::Result;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[derive(clap::Args)]
pub struct Args {
    /// Also compile and run the programs of the pages, on the CPU
    #[arg(long)]
    check: bool,
    /// An installation to run them with; without it the library is built and installed
    #[arg(long, requires = "check")]
    prefix: Option<PathBuf>,
}

pub fn run(tree: &Tree, args: &Args) -> Result<ExitCode> {
    println!("{}", build(tree)?.display());
    if !args.check {
        return Ok(ExitCode::SUCCESS);
    }
    let prefix = match &args.prefix {
        Some(prefix) => env::current_dir()?.join(prefix),
        None => install::built(tree)?,
    };
    let mut report = Report::default();
    report.begin("docs".to_owned());
    programs(tree, &prefix, &mut report)?;
    Ok(if report.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub fn test(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    report.check("the documentation site: pages and links", build(tree).is_ok());
    programs(tree, prefix, report)
}

/// Builds the site; returns its first page. What Sphinx warns of, and links that lead nowhere, are errors.
pub fn build(tree: &Tree) -> Result<PathBuf> {
    let out = tree.target.join("docs");
    let mut command = python(tree)?;
    command.arg(tree.root.join("docs/site/build.py")).arg(&tree.root).arg(&out);
    process::run("build the documentation", command.arg(tree.version()?))?;
    let mut pictures = python(tree)?;
    pictures.arg(tree.root.join("docs/site/pictures.py")).arg("--check");
    process::run("compare the pictures", &mut pictures)?;
    Ok(out.join("html/index.html"))
}

/// Compiles and runs the programs of the pages; each is a line of the report.
fn programs(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    let mut command = python(tree)?;
    command.arg(tree.root.join("docs/site/programs.py")).arg(&tree.root);
    command.arg(tree.target.join("docs-programs")).arg(prefix);
    // CMake's package looks for pkg-config too, and Meson for both.
    command.env("CMAKE", setup::cmake(tree)?).env("NINJA", setup::ninja(tree)?);
    command.env("PKG_CONFIG", setup::pkg_config(tree)?);
    let label = "the programs of the documentation";
    report.lines(label, &process::capture(label, &mut command)?);
    Ok(())
}

/// Python with Sphinx and Meson on its path.
fn python(tree: &Tree) -> Result<Command> {
    let mut command = tree.command("python3");
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONPATH", setup::sphinx(tree)?);
    Ok(command)
}
