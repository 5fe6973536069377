//! `cargo xtask package`: a tarball, Debian packages, recipes for Conan, vcpkg and conda, and wheels, of an installation.

use crate::docs;
use crate::install;
use crate::process;
use crate::report::Report;
use crate::setup;
use crate::test::c_programs;
use crate::tree::Tree;
use crate::wheel;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::{env, fs};

#[derive(clap::Args)]
pub struct Args {
    /// Where to put the packages; what is there is removed
    #[arg(long, default_value = "target/packages")]
    out: PathBuf,
    /// An installation to pack; without it the library is built, for glibc 2.28 and newer
    #[arg(long)]
    prefix: Option<PathBuf>,
    /// Also libnvte.a, for programs that shall have the library inside
    #[arg(long = "static")]
    archive: bool,
}

pub fn run(tree: &Tree, args: &Args) -> Result<()> {
    let here = env::current_dir()?;
    let prefix = match &args.prefix {
        Some(prefix) => here.join(prefix),
        None => wheel::portable(tree)?,
    };
    if args.archive {
        install::archive(tree, &prefix)?;
    }
    let page = docs::build(tree)?;
    print!("{}", pack(tree, &prefix, &here.join(&args.out), page.parent())?);
    Ok(())
}

/// Packs an installation, with the pages of the documentation if there are any.
fn pack(tree: &Tree, prefix: &Path, out: &Path, site: Option<&Path>) -> Result<String> {
    let mut command = tree.command("python3");
    command.arg(tree.root.join("packaging/pack.py")).arg(prefix).arg(tree.version()?).arg(out);
    if let Some(site) = site {
        command.arg("--site").arg(site);
    }
    let mut text = process::run("pack the installation", &mut command)?;
    for wheel in wheel::pack(tree, prefix, out)? {
        text += &format!("{}\n", wheel.display());
    }
    Ok(text)
}

/// Packs an installation, and tries each package in a folder of its own with the first program of the README; `full`
/// fetches Conan and rattler-build.
pub fn test(tree: &Tree, prefix: &Path, full: bool, report: &mut Report) -> Result<()> {
    let work = tree.target.join("package-test");
    let out = tree.target.join("packages");
    let site = tree.target.join("docs/html");
    pack(tree, prefix, &out, Some(&*site).filter(|site| site.is_dir()))?;
    fs::create_dir_all(&work).with_context(|| work.display().to_string())?;
    let readme = fs::read_to_string(tree.root.join("README.md")).context("README.md")?;
    let program = work.join("program.c");
    fs::write(&program, c_programs(&readme).first().context("no program in README.md")?)?;
    let mut command = tree.command("python3");
    command.arg(tree.root.join("packaging/test.py")).args([&out, &work, &program]);
    command.env("CMAKE", setup::cmake(tree)?).env("PKG_CONFIG", setup::pkg_config(tree)?);
    if full {
        command.env("CONAN", setup::conan(tree)?);
        command.env("RATTLER_BUILD", setup::rattler_build(tree)?);
    }
    let label = "the packages";
    report.lines(label, &process::capture(label, &mut command)?);
    Ok(())
}
