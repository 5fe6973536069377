//! `cargo xtask reproduce`: the last commit built twice, in two folders, gives the same bytes.

use crate::install::strip;
use crate::process;
use crate::tree::{Tree, empty_dir};
use anyhow::{Context, Result, bail};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Without optimization, which is faster and finds most of what depends on the folder
    #[arg(long)]
    dev: bool,
}

/// Two folders whose paths differ, in length too.
const FOLDERS: [&str; 2] = ["a", "another folder"];

pub fn run(tree: &Tree, args: &Args) -> Result<()> {
    // The builds take minutes, in which there may be another commit.
    let mut git = tree.command("git");
    let commit = process::run("git", git.args(["rev-parse", "HEAD"]).current_dir(&tree.root))?;
    let mut libraries = Vec::new();
    for folder in FOLDERS {
        let root = tree.target.join("reproduce").join(folder);
        libraries.push(built(tree, commit.trim(), &root, args.dev)?);
    }
    let [a, b] = [0, 1].map(|i: usize| fs::read(&libraries[i]));
    let (a, b) = (a.context("the first library")?, b.context("the second library")?);
    if a == b {
        println!("{} bytes, the same in both folders", a.len());
        return Ok(());
    }
    let first = a.iter().zip(&b).position(|(x, y)| x != y).unwrap_or(a.len().min(b.len()));
    let others = a.iter().zip(&b).filter(|(x, y)| x != y).count();
    bail!(
        "{} and {}: {} and {} bytes, {others} of them differ, the first at {first}",
        libraries[0].display(),
        libraries[1].display(),
        a.len(),
        b.len()
    )
}

/// What stands for folders of this machine in the bytes of the library: in messages of panics, and in C++.
fn prefixes(tree: &Tree, root: &Path) -> Result<Vec<(PathBuf, &'static str)>> {
    let sysroot = process::run("rustc", tree.command("rustc").args(["--print", "sysroot"]))?;
    let cargo = match env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => PathBuf::from(env::var_os("HOME").context("HOME")?).join(".cargo"),
    };
    Ok(vec![(root.into(), "/nvte"), (cargo, "/cargo"), (sysroot.trim().into(), "/rust")])
}

/// Builds the files of a commit in a folder, and gives the stripped library.
fn built(tree: &Tree, commit: &str, root: &Path, dev: bool) -> Result<PathBuf> {
    empty_dir(root)?;
    let archive = root.join("sources.tar");
    let mut git = tree.command("git");
    git.args(["archive", "--output"]).arg(&archive).arg(commit).current_dir(&tree.root);
    process::run("git archive", &mut git)?;
    process::run("tar", tree.command("tar").arg("-xf").arg(&archive).arg("-C").arg(root))?;
    let prefixes = prefixes(tree, root)?;
    // Words of flags are separated by this character, as folders may have spaces.
    let flags: Vec<_> = prefixes
        .iter()
        .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
        .collect();
    let mut build = tree.cargo();
    build.args(["build", "--package", "nvte", "--target-dir"]).arg(root.join("target"));
    build.current_dir(root).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    build.env("NVTE_CPU_ONLY", "1").env("CARGO_INCREMENTAL", "0").env("SOURCE_DATE_EPOCH", "0");
    // The C++ part names its folder to debuggers, of which the identity of the build is a sum.
    let map = format!("'-ffile-prefix-map={}=/nvte'", root.display());
    build.env("CXXFLAGS", &map).env("CFLAGS", &map).env("CC_SHELL_ESCAPED_FLAGS", "1");
    if dev {
        build.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "none");
    } else {
        build.arg("--release");
    }
    process::run(&format!("cargo build in {}", root.display()), &mut build)?;
    let profile = if dev { "debug" } else { "release" };
    let library = root.join("target").join(profile).join("libnvte.so");
    let stripped = root.join("libnvte.so.0");
    strip(tree, &library, &stripped)?;
    Ok(stripped)
}
