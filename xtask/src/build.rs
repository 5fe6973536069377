//! `cargo xtask build`: the library, in release unless told otherwise.

use crate::process;
use crate::setup;
use crate::tree::Tree;
use anyhow::Result;

#[derive(clap::Args, Default)]
pub struct Args {
    /// Build without optimisation
    #[arg(long)]
    pub debug: bool,
    /// Build the CPU backend alone; what was compiled for the CUDA backend stays for the next build with it
    #[arg(long)]
    pub cpu: bool,
}

pub fn run(tree: &Tree, args: &Args) -> Result<()> {
    let mut cargo = tree.cargo();
    cargo.args(["build", "--package", "nvte"]);
    if args.cpu {
        // Cargo keeps this build beside the one with the feature; the kernels are not touched.
        cargo.arg("--no-default-features");
    } else {
        setup::cuda(tree)?;
    }
    if !args.debug {
        cargo.arg("--release");
    }
    process::inherit("cargo build", &mut cargo)
}
