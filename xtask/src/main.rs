//! Tasks of the repository: `cargo xtask <command>`.

mod abi;
mod bench;
mod bindings;
mod build;
mod bundle;
mod capi;
mod demo;
mod dependencies;
mod docs;
mod drop_in;
mod fmt;
mod fuzz;
mod headers;
mod install;
mod kernels;
mod package;
mod plugins;
mod process;
mod report;
mod reproduce;
mod sanitized;
mod setup;
mod test;
mod tree;
mod wheel;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use tree::Tree;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    /// Folder that stands for the repository; set by a bundle, which has no sources.
    #[arg(long, global = true, hide = true)]
    root: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put the tools that this machine lacks (CUDA compiler, CMake, ...) into target/tools
    Setup,
    /// Build libnvte.so
    Build(build::Args),
    /// Install libnvte.so, headers, nvteConfig.cmake and nvte.pc
    Install(install::Args),
    /// Run all the tests that this machine can run
    Test(test::Args),
    /// Look for defects: the C tests with changed arguments
    Fuzz(fuzz::Args),
    /// Train a small network on real data through the C API: digits, or text
    Demo(demo::Args),
    /// Measure operators and layers
    Bench(bench::BenchArgs),
    /// Make a folder that runs tests, demo and bench on a GPU machine without Rust
    Bundle(bundle::Args),
    /// Build the Python wheel that puts this library in the place of Transformer Engine's
    Wheel(wheel::Args),
    /// Build the documentation site; with --check also run the programs of its pages
    Docs(docs::Args),
    /// Make a tarball, Debian packages, and recipes for Conan, vcpkg and conda
    Package(package::Args),
    /// Build the last commit in two folders, and compare the bytes of the libraries
    Reproduce(reproduce::Args),
    /// Format Rust, C, C++ and CUDA sources
    Fmt(fmt::Args),
}

fn run(cli: Cli) -> Result<ExitCode> {
    let bundled = cli.root.is_some();
    let tree = Tree::find(cli.root)?;
    match cli.command {
        Command::Setup => setup::run(&tree)?,
        Command::Build(args) => build::run(&tree, &args)?,
        Command::Install(args) => install::run(&tree, &args)?,
        Command::Test(args) => return test::run(&tree, &args),
        Command::Fuzz(args) => return fuzz::run(&tree, &args, bundled),
        Command::Demo(args) => return demo::run(&tree, &args),
        Command::Bench(mut args) => {
            if !bundled && args.lib.is_none() {
                build::run(&tree, &build::Args::default())?;
                args.lib = Some(tree.library());
            }
            bench::run(&args, &tree.root)?;
        }
        Command::Bundle(args) => bundle::run(&tree, &args)?,
        Command::Wheel(args) => wheel::run(&tree, &args)?,
        Command::Docs(args) => return docs::run(&tree, &args),
        Command::Package(args) => package::run(&tree, &args)?,
        Command::Reproduce(args) => reproduce::run(&tree, &args)?,
        Command::Fmt(args) => fmt::run(&tree, &args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    run(Cli::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
