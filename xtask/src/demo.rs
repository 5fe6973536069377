//! `cargo xtask demo`: a program of examples/ against an installed library, as an outside user
//! builds it.

use crate::build;
use crate::capi;
use crate::install;
use crate::tree::{self, Tree};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

#[derive(clap::Args)]
pub struct Args {
    /// What to train
    #[arg(value_enum, default_value = "mlp")]
    demo: Demo,
    /// Arguments for the program, after those that it gets from here
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Demo {
    /// A classifier of handwritten digits
    Mlp,
    /// A GPT that learns to write this repository's sources, or any file: `-- --text FILE`
    Gpt,
}

/// Folders of sources, and the ends of their files' names.
const SOURCES: [&str; 6] = ["capi-tests", "examples", "include", "kernels", "src", "xtask/src"];
const ENDS: [&str; 6] = ["rs", "c", "h", "cpp", "cu", "cuh"];

pub fn run(tree: &Tree, args: &Args) -> Result<ExitCode> {
    build::run(tree, &build::Args::default())?;
    let prefix = install::fresh(tree)?;
    let programs = compile(tree, &prefix, "examples", &[])?;
    let program = programs.join(match args.demo {
        Demo::Mlp => "mlp",
        Demo::Gpt => "gpt",
    });
    let mut demo = tree.command(&program);
    match args.demo {
        Demo::Mlp => demo.arg(tree.root.join("examples/digits.csv")),
        Demo::Gpt => {
            let text = programs.join("sources.txt");
            write_sources(tree, &text)?;
            demo.arg("--text").arg(text).arg("--out").arg(tree.target.join("gpt.svg"))
        }
    };
    // Paths among the arguments are relative to where cargo was called.
    let status = demo.args(&args.arguments).current_dir(env::current_dir()?).status();
    let status = status.with_context(|| program.display().to_string())?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds the programs of examples/ and returns their folder.
pub fn compile(tree: &Tree, prefix: &Path, name: &str, options: &[&str]) -> Result<PathBuf> {
    capi::build(tree, &tree.root.join("examples"), name, prefix, options, &[])
}

/// All sources of the repository, one after the other.
pub fn write_sources(tree: &Tree, path: &Path) -> Result<()> {
    let mut text = Vec::new();
    for dir in SOURCES {
        for source in tree::files(&tree.root.join(dir), &ENDS)? {
            text.extend(fs::read(&source).with_context(|| source.display().to_string())?);
        }
    }
    fs::write(path, text).with_context(|| path.display().to_string())
}
