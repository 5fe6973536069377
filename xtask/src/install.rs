//! `cargo xtask install --prefix DIR`: a relocatable tree that CMake and pkg-config find.

use crate::build;
use crate::dependencies;
use crate::drop_in;
use crate::process;
use crate::tree::{self, HARDENING, Tree, copy, copy_dir, empty_dir};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Changes with the first release that breaks binaries; the build script gives the library this name.
pub const SONAME: &str = "libnvte.so.0";

#[derive(clap::Args)]
pub struct Args {
    /// Where to install
    #[arg(long)]
    prefix: PathBuf,
    /// Also libtransformer_engine.so, for programs that were written for the other library
    #[arg(long)]
    drop_in: bool,
    /// Also libnvte.a, for programs that shall have the library inside
    #[arg(long = "static")]
    archive: bool,
}

/// What a program with libnvte.a links beside it.
const SYSTEM: &str = "-lstdc++ -lgcc_s -lpthread -ldl -lrt -lm -lc";

pub fn run(tree: &Tree, args: &Args) -> Result<()> {
    build::run(tree, &build::Args::default())?;
    let prefix = env::current_dir()?.join(&args.prefix);
    install(tree, &prefix, args.drop_in, &[])?;
    if args.archive {
        archive(tree, &prefix)?;
    }
    println!("installed nvte {} in {}", tree.version()?, prefix.display());
    Ok(())
}

/// Builds the library and installs it into an emptied folder of the target directory.
pub fn built(tree: &Tree) -> Result<PathBuf> {
    let mut build = tree.cargo();
    process::run("cargo build", build.args(["build", "--release", "--package", "nvte"]))?;
    fresh(tree)
}

/// Installs the built library into an emptied folder of the target directory.
pub fn fresh(tree: &Tree) -> Result<PathBuf> {
    let prefix = tree.prefix();
    empty_dir(&prefix)?;
    install(tree, &prefix, true, &[])?;
    Ok(prefix)
}

/// Installs the built library; `link` are options for the linker of what is compiled beside it.
pub fn install(tree: &Tree, prefix: &Path, drop_in: bool, link: &[String]) -> Result<()> {
    let version = tree.version()?;
    let lib = prefix.join("lib");
    for dir in ["cmake/nvte", "pkgconfig"] {
        let dir = lib.join(dir);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    }

    check_names(tree)?;
    let file = format!("libnvte.so.{version}");
    // Unlinked first: a program may have the old file mapped.
    let _ = fs::remove_file(lib.join(&file));
    strip(tree, &tree.library(), &lib.join(&file))?;
    tree::link(Path::new(&file), &lib.join(SONAME))?;
    tree::link(Path::new(SONAME), &lib.join("libnvte.so"))?;
    if drop_in {
        drop_in::build(tree, &lib, SONAME, link)?;
    }

    for dir in ["nvte", "transformer_engine"] {
        let to = prefix.join("include").join(dir);
        copy_dir(&tree.root.join("include").join(dir), &to)?;
    }
    let mut templates = vec![
        ("nvteConfig.cmake.in", "cmake/nvte/nvteConfig.cmake"),
        ("nvteConfigVersion.cmake.in", "cmake/nvte/nvteConfigVersion.cmake"),
        ("nvte.pc.in", "pkgconfig/nvte.pc"),
    ];
    if drop_in {
        templates.push(("nvte-transformer-engine.pc.in", "pkgconfig/nvte-transformer-engine.pc"));
    }
    for (template, to) in templates {
        let path = tree.root.join("cmake").join(template);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let text = text.replace("@VERSION@", &version).replace("@SONAME@", SONAME);
        let text = text.replace("@SYSTEM@", SYSTEM);
        fs::write(lib.join(to), text).with_context(|| to.to_owned())?;
    }
    programs(tree, prefix, link)?;
    let doc = prefix.join("share/doc/nvte");
    fs::create_dir_all(&doc).with_context(|| doc.display().to_string())?;
    copy(&tree.root.join("LICENSE"), &doc.join("LICENSE"))?;
    dependencies::write(tree, &doc)
}

/// Builds and installs the library as an archive, with the pkg-config file that links it.
pub fn archive(tree: &Tree, prefix: &Path) -> Result<()> {
    let mut build = tree.cargo();
    build.args(["rustc", "--release", "--package", "nvte", "--lib", "--crate-type", "staticlib"]);
    // Of an archive a linker takes the objects that it needs. The one with what runs at the start of a program has no
    // name that anything needs, so there must be one object of this library alone.
    build.args(["--", "-C", "codegen-units=1"]);
    process::run("cargo rustc --crate-type staticlib", &mut build)?;
    let lib = prefix.join("lib");
    let mut strip = tree.command("strip");
    strip.args(["--strip-debug", "-o"]).arg(lib.join("libnvte.a"));
    process::run("strip libnvte.a", strip.arg(tree.target.join("release/libnvte.a")))?;
    let template = tree.root.join("cmake/nvte-static.pc.in");
    let text = fs::read_to_string(&template).with_context(|| template.display().to_string())?;
    let text = text.replace("@VERSION@", &tree.version()?).replace("@SYSTEM@", SYSTEM);
    fs::write(lib.join("pkgconfig/nvte-static.pc"), text).context("nvte-static.pc")
}

/// Compiles the programs that belong to the library into `bin`; each is one C file.
fn programs(tree: &Tree, prefix: &Path, link: &[String]) -> Result<()> {
    let bin = prefix.join("bin");
    fs::create_dir_all(&bin).with_context(|| bin.display().to_string())?;
    for source in tree::files(&tree.root.join("programs"), &["c"])? {
        let name = source.file_stem().unwrap_or_default();
        let mut compile = tree.command(env::var("CC").unwrap_or_else(|_| "cc".into()));
        compile.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"]);
        compile
            .arg(bin.join(name))
            .args(HARDENING)
            .arg(&source)
            .arg("-I")
            .arg(prefix.join("include"));
        compile.args(link).arg("-L").arg(prefix.join("lib"));
        compile.args(["-Wl,-rpath,$ORIGIN/../lib", "-lnvte", "-lpthread", "-ldl", "-lm"]);
        process::run(&format!("compile {}", name.display()), &mut compile)?;
    }
    Ok(())
}

pub fn strip(tree: &Tree, from: &Path, to: &Path) -> Result<()> {
    let mut strip = tree.command("strip");
    let output = strip.arg("-o").arg(to).arg(from).output().context("strip (of binutils)")?;
    if !output.status.success() {
        bail!("strip {}: {}", from.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Checks the soname, without which the library would be recorded by path in every program linked to it, and that
/// each symbol has a version, without which a program could not say what it needs.
fn check_names(tree: &Tree) -> Result<()> {
    let library = tree.library();
    let text = drop_in::output(tree, "readelf", &["-d"], &library)?;
    if !text.contains(&format!("Library soname: [{SONAME}]")) {
        bail!("{}: soname is not {SONAME}", library.display());
    }
    let text = drop_in::output(tree, "readelf", &["--dyn-syms", "--wide"], &library)?;
    let bare = without_version(&text);
    if !bare.is_empty() {
        bail!("{}: symbols without a version: {}", library.display(), bare.join(", "));
    }
    Ok(())
}

/// The functions that `readelf --dyn-syms` shows as defined and without one of our versions: those of this library
/// have NVTEX_, others NVTE_.
fn without_version(text: &str) -> Vec<String> {
    let name = |line: &str| {
        // Number, address, size, type, binding, visibility, section and name.
        let words: Vec<_> = line.split_whitespace().collect();
        let (kind, section, name) = (*words.get(3)?, *words.get(6)?, *words.get(7)?);
        if kind != "FUNC" || section == "UND" {
            return None;
        }
        let (symbol, version) = name.split_once("@@").unwrap_or((name, ""));
        let expected = if symbol.starts_with("nvtex_") { "NVTEX_" } else { "NVTE_" };
        (!version.starts_with(expected)).then(|| name.to_owned())
    };
    text.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn finds_symbols_without_version() {
        let text = "   Num:    Value          Size Type    Bind   Vis      Ndx Name\n\
             1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND free@GLIBC_2.2.5 (2)\n\
             2: 0000000000001000    16 FUNC    GLOBAL DEFAULT   14 nvte_a@@NVTE_2.20\n\
             3: 0000000000001010    16 FUNC    GLOBAL DEFAULT   14 nvtex_b@@NVTEX_0.1\n\
             4: 0000000000001020    16 FUNC    GLOBAL DEFAULT   14 nvtex_c@@NVTE_2.20\n\
             5: 0000000000001030    16 FUNC    GLOBAL DEFAULT   14 nvte_d\n\
             6: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS NVTE_2.20\n";
        assert_eq!(super::without_version(text), ["nvtex_c@@NVTE_2.20", "nvte_d"]);
    }
}
