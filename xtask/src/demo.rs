//! `cargo xtask demo`: examples/mlp.c against an installed library, as an outside user builds it.

use crate::build;
use crate::capi;
use crate::install;
use crate::tree::Tree;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// Arguments for the program, after its data file
    #[arg(last = true)]
    arguments: Vec<String>,
}

pub fn run(tree: &Tree, args: &Args) -> Result<ExitCode> {
    build::run(tree, &build::Args::default())?;
    let prefix = install::fresh(tree)?;
    let program = compile(tree, &prefix, "examples", &[])?;
    let mut demo = tree.command(&program);
    demo.arg(tree.root.join("examples/digits.csv")).args(&args.arguments);
    let status = demo.status().with_context(|| program.display().to_string())?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub fn compile(tree: &Tree, prefix: &Path, name: &str, options: &[&str]) -> Result<PathBuf> {
    let source = tree.root.join("examples");
    Ok(capi::build(tree, &source, name, prefix, options)?.join("mlp"))
}
