//! `cargo xtask bundle DIR`: all of the tests, the demo and the bench as programs beside an
//! installed library, with a script that runs them where there is a GPU and no Rust.

use crate::build;
use crate::capi;
use crate::demo;
use crate::drop_in;
use crate::fuzz;
use crate::install::{self, strip};
use crate::process;
use crate::tree::{Tree, copy, copy_dir, empty_dir};
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub struct Args {
    /// The folder to make; it must not exist, be empty, or be an older bundle
    dir: PathBuf,
    /// Test the code for another architecture on Hopper: 80 or 89 compiles for that one, to run on 9.0, and the library
    /// takes the device for it
    #[arg(long, value_parser = ["80", "89", "90"])]
    assume: Option<String>,
    /// Also the bindings, which takes minutes more: candle, with more than a hundred dependencies, is compiled
    #[arg(long)]
    bindings: bool,
}

/// Test programs that read the sources, which a bundle does not hold.
const NEED_SOURCES: &[&str] = &["abi"];

pub fn run(tree: &Tree, args: &Args) -> Result<()> {
    let archs = args.assume.as_ref().map(|arch| format!("{arch}@90"));
    let tree = &Tree { root: tree.root.clone(), target: tree.target.clone(), archs };
    let dir = std::env::current_dir()?.join(&args.dir);
    let filled = dir.is_dir() && fs::read_dir(&dir)?.next().is_some();
    if filled && !dir.join("run.sh").is_file() {
        bail!("{} holds something else than a bundle", dir.display());
    }
    build::run(tree, &build::Args::default())?;
    empty_dir(&dir)?;
    for part in ["capi", "drop-in", "rust", "demo", "bin"] {
        fs::create_dir_all(dir.join(part))?;
    }

    let prefix = dir.join("prefix");
    install::install(tree, &prefix, true, &[])?;
    let rpath =
        ["-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN/../prefix/lib"];
    let source = tree.root.join("capi-tests");
    let built = capi::build(tree, &source, "bundle-capi", &prefix, &rpath, &[])?;
    for entry in fs::read_dir(&built)? {
        let path = entry?.path();
        let is_program = path.is_file() && path.metadata()?.permissions().mode() & 0o111 != 0;
        if is_program {
            strip(tree, &path, &dir.join("capi").join(name(&path)))?;
        }
    }
    copy_dir(&tree.golden(), &dir.join("golden"))?;
    let clients = drop_in::clients(tree, &prefix, "bundle-drop-in")?;
    for file in ["loader", "libextension.so"] {
        strip(tree, &clients.join(file), &dir.join("drop-in").join(file))?;
    }
    let changed =
        capi::build(tree, &source.join("fuzz"), "bundle-fuzz", &prefix, &rpath, &["nvtefuzz"])?;
    strip(tree, &changed.join("libnvtefuzz.so"), &dir.join("bin/libnvtefuzz.so"))?;
    let differential = fuzz::differential::program(tree, &prefix, "bundle-differential")?;
    strip(tree, &differential, &dir.join("bin/nvte-differential"))?;

    let demos = demo::compile(tree, &prefix, "bundle-demo", &rpath)?;
    for demo in ["mlp", "gpt"] {
        strip(tree, &demos.join(demo), &dir.join("demo").join(demo))?;
    }
    copy(&tree.root.join("examples/digits.csv"), &dir.join("demo/digits.csv"))?;
    demo::write_sources(tree, &dir.join("demo/sources.txt"))?;

    let mut tests = tree.cargo();
    tests.args(["test", "--release", "--no-run", "--package", "nvte"]);
    for (name, path) in rust_tests(tests)? {
        strip(tree, &path, &dir.join("rust").join(name))?;
    }
    if args.bindings {
        bindings(tree, &prefix, &dir.join("bindings"))?;
    }
    let mut cargo = tree.cargo();
    process::run("build xtask", cargo.args(["build", "--release", "--package", "xtask"]))?;
    strip(tree, &tree.target.join("release/xtask"), &dir.join("bin/xtask"))?;

    let script = dir.join("run.sh");
    fs::write(&script, include_str!("bundle/run.sh"))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    println!("bundle in {}: run.sh all", dir.display());
    Ok(())
}

fn name(path: &Path) -> &std::ffi::OsStr {
    path.file_name().expect("a file")
}

/// Sources and tests of the bindings, and of those in Rust the programs.
fn bindings(tree: &Tree, prefix: &Path, dir: &Path) -> Result<()> {
    let sources = tree.root.join("bindings");
    for part in ["python", "jax", "torch", "onnxruntime"] {
        copy_dir(&sources.join(part), &dir.join(part))?;
    }
    copy(&sources.join("layouts.txt"), &dir.join("layouts.txt"))?;
    let bin = dir.join("bin");
    fs::create_dir_all(&bin)?;
    let cargo = |folder: &str, arguments: &[&str]| {
        let mut cargo = tree.cargo();
        cargo.args(arguments).args(["--release", "--manifest-path"]);
        cargo.arg(sources.join(folder).join("Cargo.toml"));
        cargo.env("CARGO_TARGET_DIR", tree.target.join("bundle-bindings").join(folder));
        cargo.env("NVTE_LIB_DIR", prefix.join("lib"));
        cargo
    };
    for (folder, example) in [("", "mlp"), ("candle", "train")] {
        for (name, path) in rust_tests(cargo(folder, &["test", "--no-run"]))? {
            strip(tree, &path, &bin.join(name))?;
        }
        process::run("build an example", &mut cargo(folder, &["build", "--example", example]))?;
        let built = tree.target.join("bundle-bindings").join(folder).join("release/examples");
        strip(tree, &built.join(example), &bin.join(example))?;
    }
    process::run("build the operators for ONNX Runtime", &mut cargo("onnxruntime", &["build"]))?;
    let library = "libnvte_onnxruntime.so";
    let built = tree.target.join("bundle-bindings/onnxruntime/release").join(library);
    strip(tree, &built, &bin.join(library))
}

/// Name and path of the test programs that `cargo test --no-run` builds.
fn rust_tests(mut cargo: Command) -> Result<Vec<(String, PathBuf)>> {
    let text = process::run("build Rust tests", cargo.arg("--message-format=json"))?;
    let mut tests = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let message: serde_json::Value = serde_json::from_str(line).context("cargo's message")?;
        let (Some(path), Some(name)) =
            (message["executable"].as_str(), message["target"]["name"].as_str())
        else {
            continue;
        };
        if message["profile"]["test"] == true && !NEED_SOURCES.contains(&name) {
            tests.push((name.to_owned(), path.into()));
        }
    }
    if tests.is_empty() {
        bail!("cargo built no test program");
    }
    Ok(tests)
}
