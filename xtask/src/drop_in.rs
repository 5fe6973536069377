//! `libtransformer_engine.so`, which stands beside `libnvte.so.0` for programs that were written for the
//! other library: how it is compiled, and what a test asks of it.

use crate::capi;
use crate::process;
use crate::report::Report;
use crate::tree::{HARDENING, Tree};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

const SOURCES: [&str; 3] = ["comm_overlap.cpp", "device.cpp", "libraries.cpp"];
pub const FILE: &str = "libtransformer_engine.so";

/// Compiles the file against `soname` in the folder `lib` into that folder, with further options for the linker.
pub fn build(tree: &Tree, lib: &Path, soname: &str, options: &[String]) -> Result<()> {
    let source = tree.root.join("drop-in");
    // Unlinked first: a program may have the old file mapped.
    let _ = fs::remove_file(lib.join(FILE));
    let mut compile = tree.command(env::var("CXX").unwrap_or_else(|_| "c++".into()));
    compile.args(["-std=c++17", "-O2", "-fPIC", "-shared", "-s"]);
    compile.args(["-Wall", "-Wextra"]);
    compile.args(HARDENING);
    compile.arg("-I").arg(tree.root.join("include")).args(SOURCES.map(|name| source.join(name)));
    compile.arg("-o").arg(lib.join(FILE)).arg(format!("-Wl,-soname,{FILE}"));
    // Its own calls stay inside of it even where the library that it replaces is loaded too.
    compile.args(["-Wl,-Bsymbolic", "-Wl,-z,defs"]);
    compile.arg(format!("-Wl,--version-script={}", source.join("exports.map").display()));
    compile.args(["-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN", "-L"]).arg(lib);
    compile.args(options).args([&format!("-l:{soname}"), "-ldl"]);
    process::run(&format!("compile {FILE}"), &mut compile)?;
    Ok(())
}

/// The names in the list of what the file shows.
fn listed(tree: &Tree) -> Result<BTreeSet<String>> {
    let path = tree.root.join("drop-in/exports.map");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let name = |line: &str| {
        let name = line.trim().strip_suffix(';')?;
        name.chars().all(|c| c.is_alphanumeric() || c == '_').then(|| name.to_owned())
    };
    Ok(text.lines().filter_map(name).collect())
}

/// The dynamic symbols that a library defines.
fn exported(tree: &Tree, library: &Path) -> Result<BTreeSet<String>> {
    let text = output(tree, "nm", &["--dynamic", "--defined-only", "--format=posix"], library)?;
    let name = |line: &str| Some(line.split_whitespace().next()?.split('@').next()?.to_owned());
    Ok(text.lines().filter_map(name).collect())
}

/// What a program of binutils prints about a file.
pub fn output(tree: &Tree, program: &str, options: &[&str], file: &Path) -> Result<String> {
    let mut command = tree.command(program);
    let output = command.args(options).arg(file).output().with_context(|| program.to_owned())?;
    if !output.status.success() {
        bail!("{program} {}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Names of the C functions of the ABI, and of its C functions whose names are mangled because their header
/// is one of C++.
pub fn functions(tree: &Tree) -> Result<Vec<String>> {
    const MANGLED: [&str; 3] = [
        "_Z12nvte_permutePvS_S_S_S_S_S_iiiiP11CUstream_st",
        "_Z14nvte_unpermutePvS_S_S_iiiP11CUstream_st",
        "_Z28nvte_device_radix_sort_pairsPvPmPiS1_S1_S1_m",
    ];
    let path = tree.root.join("tests/abi.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let manifest: serde_json::Value = serde_json::from_str(&text).context("abi.json")?;
    let functions = manifest["functions"].as_object().context("functions of abi.json")?;
    let exported = functions.iter().filter(|(_, function)| function["exported"] == true);
    let undeclared = manifest["exported_without_declaration"].as_array();
    let undeclared = undeclared.into_iter().flatten().filter_map(|name| name.as_str());
    let names = exported.map(|(name, _)| name.as_str()).chain(undeclared).chain(MANGLED);
    Ok(names.map(str::to_owned).collect())
}

/// A source that takes the address of every name, as the extensions of Python do together.
fn addresses(names: &[String]) -> String {
    let mut text = String::from("extern \"C\" {\n");
    for (index, name) in names.iter().enumerate() {
        text += &format!("extern char name_{index} __asm__(\"{name}\");\n");
    }
    text += "}\nextern const void *const addresses[];\nconst void *const addresses[] = {\n";
    for index in 0..names.len() {
        text += &format!("&name_{index},\n");
    }
    text + "nullptr};\n"
}

/// Exported C functions that a relocation refers to: another library could take their place.
fn replaceable(relocations: &str, exported: &BTreeSet<String>) -> Vec<String> {
    let symbol = |line: &str| {
        // Offset, info, type, value and name; relative ones have no name.
        let name = line.split_whitespace().nth(4)?.split('@').next()?.to_owned();
        exported.contains(&name).then_some(name)
    };
    relocations.lines().filter_map(symbol).collect()
}

/// Checks the installed file with a stand-in for an extension, built from the library's headers.
pub fn test(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    let lib = prefix.join("lib");
    let file = lib.join(FILE);
    let (expected, shown) = (listed(tree)?, exported(tree, &file)?);
    for name in expected.symmetric_difference(&shown) {
        eprintln!(
            "{FILE}: {name} is only in {}",
            if expected.contains(name) { "the list" } else { "the file" }
        );
    }
    report.check(format!("{FILE} shows what is listed"), expected == shown);
    for library in [&file, &lib.join("libnvte.so")] {
        let relocations = output(tree, "readelf", &["--relocs", "--wide"], library)?;
        let found = replaceable(&relocations, &exported(tree, library)?);
        let name = library.file_name().expect("a file").display();
        if !found.is_empty() {
            eprintln!("{name} refers to its own exported functions: {found:?}");
        }
        report.check(format!("{name} calls its own functions"), found.is_empty());
    }

    let dir = clients(tree, prefix, "drop_in")?;
    capi::ctest(tree, &dir, report)
}

/// Builds the stand-in for an extension and the programs around it, into the folder of that name.
pub fn clients(tree: &Tree, prefix: &Path, name: &str) -> Result<PathBuf> {
    let names: Vec<_> = functions(tree)?.into_iter().chain(listed(tree)?).collect();
    let source = tree.target.join("drop_in_addresses.cpp");
    fs::write(&source, addresses(&names)).with_context(|| source.display().to_string())?;
    let option = format!("-DNVTE_ADDRESSES={}", source.display());
    capi::build(tree, &tree.root.join("capi-tests/drop_in"), name, prefix, &[&option], &[])
}

#[cfg(test)]
mod tests {
    use super::{addresses, replaceable};
    use std::collections::BTreeSet;

    #[test]
    fn finds_replaceable_calls() {
        let text = "Relocation section '.rela.dyn' at offset 0x1 contains 3 entries:\n\
            000000000081a0  0000000000000008 R_X86_64_RELATIVE                      5b2c40\n\
            000000000081b0  0000000300000006 R_X86_64_GLOB_DAT      0000000000001000 nvte_a + 0\n\
            000000000081b8  0000000400000007 R_X86_64_JUMP_SLOT     0000000000000000 free@GLIBC_2.2.5 + 0\n";
        let exported = BTreeSet::from(["nvte_a".to_owned(), "nvte_b".to_owned()]);
        assert_eq!(replaceable(text, &exported), ["nvte_a"]);
    }

    #[test]
    fn takes_addresses() {
        let text = addresses(&["_Z1fv".to_owned()]);
        assert!(text.contains("extern char name_0 __asm__(\"_Z1fv\");\n"));
        assert!(text.contains("= {\n&name_0,\nnullptr};\n"));
    }
}
