//! `cargo xtask build`: the library, in release unless told otherwise.

use crate::process;
use crate::setup;
use crate::tree::Tree;
use anyhow::Result;

#[derive(clap::Args, Default)]
pub struct Args {
    /// Build without optimisation
    #[arg(long)]
    debug: bool,
}

pub fn run(tree: &Tree, args: &Args) -> Result<()> {
    setup::cuda(tree)?;
    let mut cargo = tree.cargo();
    cargo.args(["build", "--package", "nvte"]);
    if !args.debug {
        cargo.arg("--release");
    }
    process::inherit("cargo build", &mut cargo)
}
