//! `cargo xtask demo`: a program of examples/ against an installed library, as an outside user
//! builds it.

use crate::build;
use crate::capi;
use crate::install;
use crate::tree::{self, Tree, has_gpu};
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

#[derive(clap::Args)]
pub struct Args {
    /// What to train
    #[arg(value_enum, default_value = "mlp")]
    demo: Demo,
    /// Backend to build and to train on. Default: NVTE_BACKEND; without it, the library chooses where it runs,
    /// and the CUDA backend is built if there is a GPU, or if it was built here before
    #[arg(long, value_enum)]
    backend: Option<Backend>,
    /// Arguments for the program, after those that it gets from here
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Backend {
    Cpu,
    Cuda,
}

#[derive(Clone, Copy, ValueEnum)]
enum Demo {
    /// A classifier of handwritten digits
    Mlp,
    /// A GPT that learns to write this repository's sources, or any file: `-- --text FILE`
    Gpt,
}

/// Folders of sources, and the ends of their files' names.
const SOURCES: [&str; 7] =
    ["capi-tests", "examples", "include", "kernels", "src", "tests", "xtask/src"];
const ENDS: [&str; 6] = ["rs", "c", "h", "cpp", "cu", "cuh"];

impl Args {
    /// Kernels take minutes to compile, and their compiler has to be downloaded: without a GPU nobody waits
    /// for them who has not asked.
    fn cpu_alone(&self, tree: &Tree) -> bool {
        let asked = match self.backend {
            Some(backend) => Some(backend == Backend::Cuda),
            None => env::var("NVTE_BACKEND").ok().map(|name| name == "cuda"),
        };
        !asked.unwrap_or_else(has_gpu) && !tree.has_kernels()
    }
}

pub fn run(tree: &Tree, args: &Args) -> Result<ExitCode> {
    build::run(tree, &build::Args { cpu: args.cpu_alone(tree), debug: false })?;
    let prefix = install::fresh(tree)?;
    let programs = compile(tree, &prefix, "examples", &[])?;
    let program = programs.join(match args.demo {
        Demo::Mlp => "mlp",
        Demo::Gpt => "gpt",
    });
    let mut demo = tree.command(&program);
    if let Some(name) = args.backend.and_then(|backend| backend.to_possible_value()) {
        demo.env("NVTE_BACKEND", name.get_name());
    }
    match args.demo {
        Demo::Mlp => demo.arg(tree.root.join("examples/digits.csv")),
        Demo::Gpt => {
            let text = programs.join("sources.txt");
            write_sources(tree, &text)?;
            demo.arg("--text").arg(text)
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
