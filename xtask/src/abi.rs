//! What programs that were linked before rely on: the names and versions that the library exports, and the types of
//! the headers' functions, by libabigail's `abidiff` against a kept baseline. tests/abi/release.rs holds the same of
//! this library's own functions with rules of its own.

use crate::drop_in;
use crate::process;
use crate::report::{Outcome, Report};
use crate::tree::{Tree, copy_dir, empty_dir, files, runs};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

/// The types of the functions that programs have been linked to; `NVTE_BLESS=1 cargo xtask test --only abi` writes it.
const BASELINE: &str = "tests/nvte.abi";

/// C++ programs link to these by one name or the other.
const ALSO: [&str; 5] = [
    "_Z24nvte_built_with_cublasmpv",
    "_Z29nvte_multi_stream_cublas_gemmPKPvS1_PS_S1_S2_ibbbS2_bbiP11CUstream_st",
    "nvte_device_radix_sort_pairs",
    "nvte_permute",
    "nvte_unpermute",
];

/// Structs that say how long they are may become longer.
const GROWS: &str = "[suppress_type]\nname_regexp = ^NVTEX\nhas_data_member_inserted_at = end\n";

/// Changes that a program would not survive: in which header, what stands there, and what is put there instead.
const BREAKS: [(&str, &str, &str, &str); 3] = [
    ("a parameter more", "parallel.h", "void nvtex_barrier(", "void nvtex_barrier(int more, "),
    ("a field before others", "module.h", "  size_t num_pages;", "  int more; size_t num_pages;"),
    (
        "another number",
        "module.h",
        "NVTEX_RECIPE_CURRENT_SCALING = 1",
        "NVTEX_RECIPE_CURRENT_SCALING = 77",
    ),
];

pub fn test(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    let library = prefix.join("lib/libnvte.so.0");
    let listing = drop_in::output(tree, "readelf", &["--dyn-syms", "--wide"], &library)?;
    let (exported, expected) = (exported(&listing), expected(tree)?);
    for name in expected.difference(&exported) {
        eprintln!("{name} is not exported");
    }
    for name in exported.difference(&expected) {
        eprintln!("{name} is exported and in no record");
    }
    report.check("exported names and versions are those of the records", exported == expected);

    let name = "types of functions by abidiff";
    if !cfg!(target_arch = "x86_64") || !runs("abidiff", "--version") || !runs("abidw", "--version")
    {
        let reason = "abidiff is not installed (Debian: abigail-tools), or not on x86-64";
        report.add(name, Outcome::Skip(reason.into()));
        return Ok(());
    }
    let folder = tree.target.join("abi");
    empty_dir(&folder)?;
    fs::write(folder.join("grows.ini"), GROWS)?;
    let include = tree.root.join("include");
    let baseline = tree.root.join(BASELINE);
    if env::var_os("NVTE_BLESS").is_some_and(|wish| wish == "1") {
        describe(tree, &include, &folder, &baseline)?;
    }
    let today = folder.join("today.abi");
    describe(tree, &include, &folder, &today)?;
    let compared = compare(tree, &folder, &baseline, &today)?;
    if !compared.success {
        eprint!("{}", compared.text);
    }
    report.check(name, compared.success);
    for (what, header, from, to) in BREAKS {
        let changed = folder.join("include");
        copy_dir(&include, &changed)?;
        let path = changed.join("nvte").join(header);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        fs::write(&path, text.replacen(from, to, 1))?;
        let broken = folder.join("broken.abi");
        describe(tree, &changed, &folder, &broken)?;
        let found = !compare(tree, &folder, &today, &broken)?.success;
        report.check(format!("abidiff finds {what}"), found);
    }
    Ok(())
}

/// The functions that `readelf --dyn-syms` shows as defined: `name@@VERSION`.
fn exported(listing: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let (kind, section, name) = (*words.get(3)?, *words.get(6)?, *words.get(7)?);
        (kind == "FUNC" && section != "UND").then(|| name.to_owned())
    };
    listing.lines().filter_map(name).collect()
}

/// The functions of the other library's ABI, and those of the record of this library's own.
fn expected(tree: &Tree) -> Result<BTreeSet<String>> {
    let path = tree.root.join("tests/nvtex_abi.txt");
    let record = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let own = record.lines().filter_map(|line| {
        let mut words = line.strip_prefix("function ")?.split(' ');
        Some(format!("{}@@NVTEX_{}", words.next()?, words.next()?))
    });
    let theirs = drop_in::functions(tree)?;
    let theirs =
        theirs.iter().map(String::as_str).chain(ALSO).map(|name| format!("{name}@@NVTE_2.20"));
    Ok(own.chain(theirs).collect())
}

/// Describes the types of all functions of the headers: those of pointers to them, because abidw reads C alone, and
/// the functions themselves are in Rust.
fn describe(tree: &Tree, include: &Path, folder: &Path, out: &Path) -> Result<()> {
    let mut headers = files(&include.join("nvte"), &["h"])?;
    headers.retain(|path| !path.starts_with(include.join("nvte/cpp")));
    let texts = headers.iter().map(fs::read_to_string).collect::<Result<String, _>>()?;
    let mut program = String::from("#include \"nvte/nvte.h\"\n");
    for name in expected(tree)?.iter().filter_map(|name| name.split("@@").next()) {
        if [" ", "*"].iter().any(|before| texts.contains(&format!("{before}{name}("))) {
            program += &format!("__typeof__({name}) *pointer_to_{name} = {name};\n");
        }
    }
    let object = folder.join("pointers.so");
    fs::write(folder.join("pointers.c"), program)?;
    let mut compile = tree.command(env::var("CC").unwrap_or_else(|_| "cc".into()));
    // The description has the source's name as the compiler was given it, and must not name a folder of this machine.
    compile.current_dir(folder).args(["-std=gnu11", "-g", "-fPIC", "-shared", "-I"]).arg(include);
    process::run("compile pointers.c", compile.args(["-o", "pointers.so", "pointers.c"]))?;
    let mut abidw = tree.command("abidw");
    abidw.args(["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--out-file"]);
    process::run("abidw", abidw.arg(out).arg(&object)).map(drop)
}

fn compare(tree: &Tree, folder: &Path, old: &Path, new: &Path) -> Result<process::Output> {
    let mut abidiff = tree.command("abidiff");
    abidiff.args(["--no-added-syms", "--no-show-locs", "--suppressions"]);
    process::capture("abidiff", abidiff.arg(folder.join("grows.ini")).arg(old).arg(new))
}
