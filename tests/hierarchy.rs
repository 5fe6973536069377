//! The modules of `src` lie on floors: a module names itself and those below it. That keeps circles out, so
//! that each can be read, tested and replaced with nothing but what lies below.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules from the lowest floor to the highest. A folder of which no file is listed is one module.
const FLOORS: &[&str] = &[
    // Modules that need nothing of this library: the types of C, number formats, lines on stderr,
    // locks around fork(), the allocator.
    "types",
    "scaling",
    "numeric",
    "random",
    "stderr",
    "fork",
    "reserve",
    // From where code may be loaded.
    "trust",
    // Structs of C that grow.
    "sized",
    // Modules that every call needs.
    "env",
    "verbose",
    "error",
    "handle",
    "scaling",
    "tensor",
    // Backends: what they see, and what their functions share.
    "backend::operators",
    "backend::args",
    "backend::buf",
    "backend::memory",
    "backend::pool",
    "backend::cpu",
    "backend::fp8",
    "backend::group",
    // The CUDA backend, and the choice of a backend.
    "backend::library",
    "backend::parts",
    "backend::tune",
    "backend::cublaslt",
    "backend::cudnn_handle",
    "backend::cuda",
    // Who runs what: domains, what is registered, who may run, who does, and why.
    "backend::domain",
    "backend::registry",
    "backend::trace",
    "backend::policy",
    "backend::scratch",
    "backend::call",
    "backend::explain",
    "backend",
    // Plugins, which register what they implement.
    "backend::plugin",
    // Checks that the operators share.
    "check",
    "device_check",
    "workspace",
    "function",
    // Operators. A slice may call those above it in this list.
    "op::attribute",
    "op::transformer_engine",
    "op::nvtex",
    "op::dispatch",
    "op::utils",
    "op::multi_stream",
    "op::cast",
    "op::transpose",
    "op::cast_transpose_noop",
    "op::recipe",
    "op::activation",
    "op::normalization",
    "op::gemm",
    "op::dropout",
    "op::softmax",
    "op::fused_rope",
    "op::fused_router",
    "op::fused_attn",
    "op::hadamard_transform",
    "op::multi_tensor",
    "op::padding",
    "op::permutation",
    "op::swizzle",
    "op::topk",
    "op::cross_entropy",
    "op::embedding",
    "op::sampling",
    // Ranks and what they do together; then the operators over ranks.
    "parallel",
    "op::ranks",
    "op::newton_schulz",
    "op::comm_gemm",
    "op::ep",
    "op",
    // The table of the functions of the CPU backend.
    "cpu_table",
    // Layers, and their C functions.
    "nn",
    "nn::capi",
    // Training: optimizers, checkpoints, data, and their C functions.
    "train",
    "train::capi",
    // What runs when the library is loaded.
    "start",
];

/// The files of a folder and its folders, as paths of modules (`op::cast::cpu`).
fn files(folder: &Path, module: &str, found: &mut BTreeMap<String, PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of src") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let name = if module.is_empty() { stem.clone() } else { format!("{module}::{stem}") };
        match path.is_dir() {
            true => files(&path, &name, found),
            false if stem == "mod" => _ = found.insert(module.to_owned(), path),
            false if path.extension().is_some_and(|extension| extension == "rs") => {
                _ = found.insert(name, path);
            }
            false => {}
        }
    }
}

/// The floor of a path: that of the longest listed module that begins it.
fn floor(path: &str) -> Option<usize> {
    let begins = |module: &&str| {
        path.strip_prefix(*module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let longest = FLOORS.iter().copied().filter(begins).max_by_key(|module| module.len())?;
    FLOORS.iter().position(|module| *module == longest)
}

/// Adds the paths of a use tree such as `a::{self, b::c}`, and returns what follows it.
fn tree<'a>(prefix: &str, text: &'a str, paths: &mut BTreeSet<String>) -> &'a str {
    let end = text.find(|c: char| !c.is_alphanumeric() && !"_:*".contains(c)).unwrap_or(text.len());
    let (head, mut rest) = text.split_at(end);
    let path = format!("{prefix}{head}");
    if !(head.ends_with("::") || head.is_empty()) || !rest.starts_with('{') {
        paths.insert(path);
        return rest;
    }
    while let Some(next) = rest.strip_prefix(['{', ',']) {
        rest = next.trim_start();
        if !rest.starts_with('}') {
            rest = tree(&path, rest, paths).trim_start();
        }
    }
    rest.strip_prefix('}').unwrap_or(rest)
}

/// All paths that a file mentions and that begin at the crate, as `a::b`.
fn mentioned(module: &str, is_folder: bool, source: &str) -> BTreeSet<String> {
    let code = source.lines().map(|line| line.split("//").next().unwrap_or_default());
    // In a module inside of a file this names the file itself.
    let code =
        code.filter(|line| !line.starts_with("    ") || !line.trim().starts_with("use super::"));
    let code = code.collect::<Vec<_>>().join("\n");
    let mut paths = BTreeSet::new();
    let starts = |word: &'static str| {
        code.match_indices(word).filter(|(at, _)| {
            !code[..*at].ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c))
        })
    };
    for (at, word) in starts("crate::") {
        tree("", &code[at + word.len()..], &mut paths);
    }
    for (at, _) in starts("super::") {
        let mut rest = &code[at..];
        // The parent of `a::b` is `a`.
        let mut parent = module;
        while let Some(next) = rest.strip_prefix("super::") {
            parent = parent.rsplit_once("::").map_or("", |(parent, _)| parent);
            rest = next;
        }
        let prefix = if parent.is_empty() { String::new() } else { format!("{parent}::") };
        tree(&prefix, rest, &mut paths);
    }
    if is_folder {
        // The file of a folder may name the files that it declares without a root.
        let declared = code.lines().filter_map(|line| line.strip_suffix(';')?.rsplit_once("mod "));
        for (_, child) in declared {
            let named =
                [" ", "(", "!", "&"].iter().any(|c| code.contains(&format!("{c}{child}::")));
            if named {
                paths.insert(format!("{module}::{child}"));
            }
        }
    }
    paths
}

#[test]
fn modules_know_only_what_lies_below() {
    let mut sources = BTreeMap::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut sources);
    let mut wrong = Vec::new();
    for (module, path) in sources.iter().filter(|(module, _)| *module != "lib") {
        let Some(own) = floor(module) else {
            wrong.push(format!("{module} is not listed in FLOORS"));
            continue;
        };
        let source = fs::read_to_string(path).expect("source");
        let is_folder = path.file_name().is_some_and(|name| name == "mod.rs");
        for path in mentioned(module, is_folder, &source) {
            if let Some(other) = floor(&path).filter(|other| *other > own) {
                let (own, other) = (FLOORS[own], FLOORS[other]);
                wrong.push(format!("{module} names {path}, but {other} lies above {own}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
