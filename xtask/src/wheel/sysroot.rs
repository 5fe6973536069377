//! Libraries to link against, so that the result runs on older machines than the one that builds it.
//!
//! A library of glibc holds each function in all the versions that it ever had, and the linker takes the
//! newest. The libraries made here have the same names and the newest versions that the oldest machine knows,
//! and no code. What that machine lacks altogether comes from `compat.cpp`.

use crate::drop_in::output;
use crate::process;
use crate::tree::{Tree, empty_dir};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The newest version of each family: glibc 2.28 and the libstdc++ of GCC 8, which manylinux_2_28 names.
const NEWEST: [(&str, [u32; 3]); 4] = [
    ("GLIBC_", [2, 28, 0]),
    ("GLIBCXX_", [3, 4, 25]),
    ("CXXABI_", [1, 3, 11]),
    ("GCC_", [8, 0, 0]),
];

const LIBC: &str = "libc.so.6";
const THREADS: &str = "libpthread.so.0";
const LOADING: &str = "libdl.so.2";
const REALTIME: &str = "librt.so.1";
/// Name for the linker and name for the loader.
const LIBRARIES: [(&str, &str); 6] = [
    ("", LIBC),
    ("libm.so", "libm.so.6"),
    ("libpthread.so", THREADS),
    ("libdl.so", LOADING),
    ("librt.so", REALTIME),
    ("libstdc++.so", "libstdc++.so.6"),
];
const LOADER: &str = "ld-linux-x86-64.so.2";

#[derive(Clone, Debug, PartialEq)]
struct Symbol {
    name: String,
    version: String,
    is_data: bool,
    size: u64,
}

/// Family and number of a version such as `GLIBC_2.2.5`; none for private ones.
fn number(version: &str) -> Option<(usize, [u32; 3])> {
    let family = NEWEST.iter().position(|(family, _)| version.starts_with(family))?;
    let mut number = [0; 3];
    for (index, part) in version[NEWEST[family].0.len()..].split('.').enumerate() {
        *number.get_mut(index)? = part.parse().ok()?;
    }
    Some((family, number))
}

fn is_old_enough(version: &str) -> bool {
    number(version).is_some_and(|(family, number)| number <= NEWEST[family].1)
}

/// The symbols of `readelf --dyn-syms`, each in the newest version that is old enough, and whether a newer
/// one is the default.
fn symbols(text: &str) -> Vec<(Symbol, bool)> {
    let mut newest = BTreeMap::<&str, ([u32; 3], Symbol)>::new();
    let mut moved = BTreeSet::new();
    for line in text.lines() {
        // Number, address, size, type, binding, visibility, section and name.
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, _, size, kind, "GLOBAL" | "WEAK" | "UNIQUE", _, section, full, ..] = words[..]
        else {
            continue;
        };
        let Some((name, version)) = full.split_once('@') else { continue };
        let is_default = version.starts_with('@');
        let version = version.trim_start_matches('@');
        let is_marker =
            section == "UND" || section == "ABS" || name.contains("version_placeholder");
        let Some((_, number)) = number(version).filter(|_| !is_marker) else { continue };
        if !is_old_enough(version) {
            if is_default {
                moved.insert(name);
            }
            continue;
        }
        if newest.get(name).is_some_and(|(other, _)| *other >= number) {
            continue;
        }
        let size = size.strip_prefix("0x").map_or(size.parse(), |s| u64::from_str_radix(s, 16));
        let symbol = Symbol {
            name: name.to_owned(),
            version: version.to_owned(),
            is_data: kind == "OBJECT",
            size: size.unwrap_or(8).max(1),
        };
        newest.insert(name, (number, symbol));
    }
    let result = newest.into_values().map(|(_, symbol)| symbol);
    result.map(|s| (s.clone(), moved.contains(s.name.as_str()))).collect()
}

/// The library that had a symbol before glibc 2.34 brought all of them together in libc.
fn home(name: &str) -> &'static str {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if starts(&["dl"]) {
        LOADING
    } else if starts(&["pthread_", "sem_"]) {
        THREADS
    } else if starts(&["shm_", "aio_", "lio_", "mq_", "timer_"]) {
        REALTIME
    } else {
        LIBC
    }
}

/// Assembler text that defines the symbols, and the script that lists their versions.
fn texts(symbols: &[Symbol]) -> (String, String) {
    let mut code = String::new();
    for (index, symbol) in symbols.iter().enumerate() {
        let Symbol { name, version, is_data, size } = symbol;
        let (section, kind) = if *is_data { (".data", "object") } else { (".text", "function") };
        code += &format!(
            "{section}\n.globl stub_{index}\n.type stub_{index}, @{kind}\n.size stub_{index}, {size}\n\
             stub_{index}: .skip {size}\n.symver stub_{index}, {name}@@{version}\n"
        );
    }
    code += ".section .note.GNU-stack,\"\",@progbits\n";
    let versions: BTreeSet<_> = symbols.iter().map(|symbol| symbol.version.as_str()).collect();
    let mut script: String = versions.iter().map(|version| format!("{version} {{ }};\n")).collect();
    if !script.is_empty() {
        // A version of its own: in one of the others it would hide that version's symbols.
        script += "NONE { local: *; };\n";
    }
    (code, script)
}

/// The path of a library that the compiler links.
fn find(tree: &Tree, name: &str) -> Result<PathBuf> {
    let mut command = tree.command(compiler());
    let output = command.arg(format!("-print-file-name={name}")).output().context("c++")?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if !path.is_absolute() {
        bail!("the C++ compiler does not find {name}; the wheel is built on Linux with glibc");
    }
    Ok(path)
}

fn compiler() -> String {
    env::var("CXX").unwrap_or_else(|_| "c++".into())
}

/// Makes the libraries and returns their folder.
pub fn make(tree: &Tree) -> Result<PathBuf> {
    let dir = tree.target.join("wheel/sysroot");
    empty_dir(&dir)?;
    let mut all = BTreeMap::<&str, Vec<Symbol>>::new();
    for soname in LIBRARIES.iter().map(|(_, soname)| *soname).chain([LOADER]) {
        let path = find(tree, soname)?;
        let text = output(tree, "readelf", &["--dyn-syms", "--wide"], &path)?;
        for (symbol, moved) in symbols(&text) {
            let from = if moved && soname == LIBC { home(&symbol.name) } else { soname };
            all.entry(from).or_default().push(symbol);
        }
        all.entry(soname).or_default();
    }
    for (soname, symbols) in &all {
        library(tree, &dir, soname, symbols)?;
    }
    for (name, soname) in LIBRARIES.iter().filter(|(name, _)| !name.is_empty()) {
        crate::tree::link(Path::new(soname), &dir.join(name))?;
    }

    let object = dir.join("compat.o");
    let mut compile = tree.command(compiler());
    compile.args(["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Werror", "-c"]);
    compile.arg(tree.root.join("drop-in/compat.cpp")).arg("-o").arg(&object);
    process::run("compile compat.cpp", &mut compile)?;
    let archive = dir.join("libcompat.a");
    let mut ar = tree.command("ar");
    process::run("ar", ar.arg("rcs").arg(&archive).arg(&object))?;
    // What glibc gives each program as code of its own, such as atexit.
    let rest = find(tree, "libc_nonshared.a")?;
    let script = format!(
        "GROUP ( {} {} {} AS_NEEDED ( {} ) )\n",
        dir.join(LIBC).display(),
        archive.display(),
        rest.display(),
        dir.join(LOADER).display()
    );
    fs::write(dir.join("libc.so"), script).context("libc.so")?;
    Ok(dir)
}

fn library(tree: &Tree, dir: &Path, soname: &str, symbols: &[Symbol]) -> Result<()> {
    let (code, script) = texts(symbols);
    let source = dir.join(soname).with_extension("s");
    let versions = dir.join(soname).with_extension("map");
    fs::write(&source, code).with_context(|| source.display().to_string())?;
    fs::write(&versions, script).with_context(|| versions.display().to_string())?;
    let mut link = tree.command(compiler());
    link.args(["-shared", "-nostdlib", &format!("-Wl,-soname,{soname}")]).arg(&source);
    if !symbols.is_empty() {
        link.arg(format!("-Wl,--version-script={}", versions.display()));
    }
    link.arg("-o").arg(dir.join(soname));
    process::run(&format!("make {soname}"), &mut link)?;
    Ok(())
}

/// Options of the compiler that link against the libraries in the folder.
pub fn link_options(dir: &Path) -> Vec<String> {
    vec![format!("-L{}", dir.display())]
}

/// What a library asks for that is newer than the oldest machine has, such as `pow@GLIBC_2.29`.
pub fn too_new(tree: &Tree, library: &Path) -> Result<Vec<String>> {
    let text = output(tree, "readelf", &["--dyn-syms", "--wide"], library)?;
    Ok(newer(&text))
}

/// Checks that the oldest machine has all that a library asks for, whatever the version: the link of a wheel without
/// compiling the library anew.
pub fn check(tree: &Tree, dir: &Path, library: &Path) -> Result<()> {
    let text = output(tree, "readelf", &["--dyn-syms", "--wide"], library)?;
    let code: String = undefined(&text).iter().map(|name| format!(".quad {name}\n")).collect();
    let source = dir.join("undefined.s");
    let end = ".section .note.GNU-stack,\"\",@progbits\n";
    fs::write(&source, format!(".data\n{code}{end}")).context("undefined.s")?;
    let mut link = tree.command(compiler());
    link.args(["-shared", "-Wl,-z,defs"]).args(link_options(dir)).arg(&source);
    link.args(["-lpthread", "-ldl", "-lrt", "-lm", "-o"]).arg(dir.join("undefined.so"));
    process::run("link what the library needs of an older machine", &mut link)?;
    Ok(())
}

/// The names that a library needs; it does without weak ones.
fn undefined(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let [_, _, _, _, "GLOBAL", _, "UND", full, ..] = words[..] {
            names.push(full.split('@').next().unwrap_or(full));
        }
    }
    names
}

fn newer(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let (section, name) = (*words.get(6)?, *words.get(7)?);
        let (_, version) = name.split_once('@')?;
        // The wheel brings the library of these versions.
        let own = version.starts_with("NVTE_") || version.starts_with("NVTEX_");
        (section == "UND" && !own && !is_old_enough(version)).then(|| name.to_owned())
    };
    text.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::{home, newer, number, symbols};

    const TEXT: &str = "
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     8: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND memcpy@GLIBC_2.14 (2)
    11: 0000000000087ba0    20 FUNC    GLOBAL DEFAULT   16 pthread_create@GLIBC_2.2.5
    12: 0000000000087ba0    20 FUNC    GLOBAL DEFAULT   16 pthread_create@@GLIBC_2.34
    13: 00000000000a7ba0    20 FUNC    GLOBAL DEFAULT   16 memcpy@GLIBC_2.2.5
    14: 00000000000a8ba0    20 IFUNC   GLOBAL DEFAULT   16 memcpy@@GLIBC_2.14
    15: 00000000000a9ba0     8 OBJECT  GLOBAL DEFAULT   31 stdout@@GLIBC_2.2.5
    16: 00000000000a9ba0    60 FUNC    GLOBAL DEFAULT   16 stat64@@GLIBC_2.33
    17: 00000000000a9ba0    60 FUNC    GLOBAL DEFAULT   16 __libc_dlopen@@GLIBC_PRIVATE
    18: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND pow@GLIBC_2.29 (3)
    19: 0000000000000000     0 FUNC    WEAK   DEFAULT  UND gettid
    20: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND nvte_gelu@NVTE_2.20 (4)
";

    #[test]
    fn takes_the_newest_that_is_old_enough() {
        let found = symbols(TEXT);
        let names: Vec<_> = found
            .iter()
            .map(|(s, moved)| format!("{}@{} {} {moved}", s.name, s.version, s.is_data))
            .collect();
        assert_eq!(
            names,
            [
                "memcpy@GLIBC_2.14 false false",
                "pthread_create@GLIBC_2.2.5 false true",
                "stdout@GLIBC_2.2.5 true false",
            ]
        );
    }

    #[test]
    fn compares_versions() {
        assert_eq!(number("GLIBC_2.2.5"), Some((0, [2, 2, 5])));
        assert_eq!(number("GLIBCXX_3.4.25"), Some((1, [3, 4, 25])));
        assert_eq!(number("GLIBC_PRIVATE"), None);
        assert_eq!(newer(TEXT), ["pow@GLIBC_2.29"]);
    }

    #[test]
    fn knows_where_functions_were() {
        assert_eq!(home("dlopen"), "libdl.so.2");
        assert_eq!(home("sem_wait"), "libpthread.so.0");
        assert_eq!(home("fstat64"), "libc.so.6");
    }
}
