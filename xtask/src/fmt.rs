//! `cargo xtask fmt`: rustfmt, and clang-format of one fixed version.

use crate::process::{self, Output};
use crate::setup;
use crate::tree::{self, Tree};
use anyhow::{Result, bail};
use std::fs;
use std::path::PathBuf;

/// The bindings are workspaces of their own.
const WORKSPACES: [&str; 4] = [
    "Cargo.toml",
    "bindings/Cargo.toml",
    "bindings/candle/Cargo.toml",
    "bindings/onnxruntime/Cargo.toml",
];

#[derive(clap::Args)]
pub struct Args {
    /// Report what is not formatted instead of formatting it
    #[arg(long)]
    check: bool,
}

pub fn run(tree: &Tree, args: &Args) -> Result<()> {
    let mut failed = false;
    for output in [rust(tree, args.check)?, clang(tree, args.check)?] {
        if !output.success {
            eprint!("{}", output.text);
            failed = true;
        }
    }
    if failed {
        bail!("not formatted");
    }
    Ok(())
}

pub fn rust(tree: &Tree, check: bool) -> Result<Output> {
    let mut result = Output { success: true, text: String::new() };
    for workspace in WORKSPACES {
        let mut cargo = tree.cargo();
        cargo.args(["fmt", "--all", "--manifest-path"]).arg(tree.root.join(workspace));
        if check {
            cargo.arg("--check");
        }
        let output = process::capture("cargo fmt", &mut cargo)?;
        result.success &= output.success;
        result.text += &output.text;
    }
    Ok(result)
}

pub fn clang(tree: &Tree, check: bool) -> Result<Output> {
    let mut command = tree.command(setup::clang_format(tree)?);
    match check {
        true => command.args(["--dry-run", "-Werror"]),
        false => command.arg("-i"),
    };
    process::capture("clang-format", command.args(sources(tree)?))
}

/// C, C++ and CUDA sources, less what cbindgen writes and another test keeps fresh.
fn sources(tree: &Tree) -> Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    let folders = ["include", "kernels", "capi-tests", "drop-in", "examples", "programs", "src"];
    for dir in folders.into_iter().chain(["bindings/jax", "bindings/torch"]) {
        let extensions = ["c", "h", "cpp", "hpp", "cu", "cuh"];
        sources.extend(tree::files(&tree.root.join(dir), &extensions)?);
    }
    sources.retain(|path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        !text.lines().take(5).any(|line| line.contains("Generated"))
    });
    Ok(sources)
}
