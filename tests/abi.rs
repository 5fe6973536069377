//! Generates the C headers from the sources and compares them with the tree;
//! `NVTE_BLESS=1 cargo test --test abi` rewrites them. Compares the headers with the ABI manifest.

use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};
use nvte::scaling::MODES;
use nvte::types::*;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::{env, fs};

#[path = "../src/op/activation/table.rs"]
mod activations;
#[path = "abi/backend.rs"]
mod backend;
#[path = "abi/bindings.rs"]
mod bindings;
#[path = "abi/c_header.rs"]
mod c_header;
#[path = "abi/release.rs"]
mod release;

/// Slices: `src/op/<name>/exports.rs`, with `exports_derivatives.rs` where there is one, becomes
/// `include/nvte/<name>.h`; ranks are in `src/parallel`, the level of layers is in `module.h`.
const SLICES: &[&str] = &[
    "transformer_engine",
    "utils",
    "multi_stream",
    "cast",
    "cast_transpose_noop",
    "activation",
    "transpose",
    "recipe",
    "swizzle",
    "topk",
    "fused_attn",
    "gemm",
    "softmax",
    "dropout",
    "fused_rope",
    "fused_router",
    "normalization",
    "padding",
    "permutation",
    "multi_tensor",
    "hadamard_transform",
    "newton_schulz",
    "comm_gemm",
    "ep",
    "cross_entropy",
    "embedding",
    "sampling",
    "nvtex",
    "dispatch",
    "parallel",
    "module",
    "train",
];

/// The files of `src/nn/capi` that become `include/nvte/module.h`, in its order.
const LAYER_SOURCES: &[&str] = &[
    "recipe",
    "context",
    "layers",
    "experts",
    "model",
    "rotary",
    "parameters",
    "step",
    "kv_cache",
    "context_parallel",
];

/// The files of `src/train/capi` that become `include/nvte/train.h`, in its order.
const TRAIN_SOURCES: &[&str] =
    &["data_parallel", "optimizer", "trainer", "tokens", "checkpoint", "pretrained"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn config(header: &str, includes: &[String]) -> Config {
    let mut config = Config {
        language: Language::C,
        cpp_compat: true,
        style: Style::Both,
        documentation_style: DocumentationStyle::Doxy,
        include_guard: Some(format!("NVTE_{}_H", header.replace('/', "_").to_uppercase())),
        autogen_warning: Some("/* Generated from the Rust sources by tests/abi.rs. */".into()),
        no_includes: true,
        sys_includes: ["stdbool.h", "stddef.h", "stdint.h"].map(String::from).into(),
        includes: includes.iter().map(|i| format!("nvte/{i}")).collect(),
        usize_is_size_t: true,
        tab_width: 2,
        line_length: 100,
        ..Config::default()
    };
    config.enumeration.prefix_with_name = false;
    config
}

/// Names of the public items that `keyword` introduces in a source text.
fn public_items(text: &str, keyword: &str) -> Vec<String> {
    let start = format!("pub {keyword} ");
    let names = text.lines().filter_map(|line| line.trim_start().strip_prefix(&start));
    let end = |c: char| !c.is_alphanumeric() && c != '_';
    names.map(|rest| rest.split(end).next().unwrap_or_default().to_owned()).collect()
}

/// The version of the headers, for the preprocessor.
fn version_macros() -> String {
    let [major, minor, patch] = [
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ];
    format!(
        "\n/**\n * Version of these headers; `nvtex_version_number` returns that of the library.\n */\n\
         #define NVTE_VERSION_MAJOR {major}\n#define NVTE_VERSION_MINOR {minor}\n\
         #define NVTE_VERSION_PATCH {patch}\n\n\
         /**\n * A version as a number, so that later versions are greater: \
         `#if NVTE_VERSION >= NVTE_MAKE_VERSION(0, 1, 0)`.\n */\n\
         #define NVTE_MAKE_VERSION(major, minor, patch) \
         ((major) * 1000000 + (minor) * 1000 + (patch))\n\
         #define NVTE_VERSION \\\n  \
         NVTE_MAKE_VERSION(NVTE_VERSION_MAJOR, NVTE_VERSION_MINOR, NVTE_VERSION_PATCH)\n"
    )
}

fn types_header() -> String {
    let path = root().join("src/types.rs");
    let text = fs::read_to_string(&path).expect("types.rs");
    let mut config = config("types", &[]);
    // Opaque structs and pointers that the headers of CUDA and NCCL declare likewise.
    config.after_includes = Some(
        version_macros()
            + "\ntypedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n\
         typedef struct ncclComm *ncclComm_t;\n\
         typedef struct ncclWindow_vidmem ncclWindow_vidmem;",
    );
    for keyword in ["struct", "enum", "type"] {
        config.export.include.extend(public_items(&text, keyword));
    }
    let theirs = ["CUstream_st", "CUevent_st", "cudaStream_t", "cudaEvent_t"]
        .into_iter()
        .chain(["ncclComm", "ncclComm_t", "ncclWindow_vidmem"])
        .map(String::from);
    config.export.exclude.extend(theirs);
    config.export.include.retain(|name| !config.export.exclude.contains(name));
    config.export.body.insert(
        "NVTETensorPack".into(),
        "#ifdef __cplusplus\n  static constexpr int MAX_SIZE = 10;\n  NVTETensorPack() : tensors(), \
         size(0) {}\n#endif"
            .into(),
    );
    render(config, &[path])
}

/// What backends see: the text of each file of `src/backend/args`, by its name.
fn backend_sources() -> BTreeMap<String, String> {
    let files = fs::read_dir(root().join("src/backend/args")).expect("args");
    let sources = files.map(|file| {
        let path = file.expect("entry").path();
        let name = path.file_stem().expect("name").to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).expect("source"))
    });
    let own = ["mod", "table", "operator", "plugin"];
    sources.filter(|(name, _)| !own.contains(&name.as_str())).collect()
}

/// `<family>.rs` becomes `backend/<family>.h`, which includes those of the families that it uses. The table of
/// functions is the library's own and has no header.
fn backend_headers() -> BTreeMap<String, String> {
    let sources = backend_sources();
    let items = |text: &str| {
        let keywords = ["struct", "enum"];
        keywords.map(|keyword| public_items(text, keyword)).concat()
    };
    let renamed = sources.values().flat_map(|text| items(text));
    let renamed: Vec<_> = renamed.map(|name| (name.clone(), format!("NVTEX{name}"))).collect();
    let header = |name: &String, text: &String| {
        let used = |family: &&String| text.contains(&format!("\nuse super::{family}::"));
        let header = format!("backend/{name}");
        let families = sources.keys().filter(used).map(|family| format!("backend/{family}.h"));
        let includes: Vec<_> = ["types.h".to_owned()].into_iter().chain(families).collect();
        let mut config = config(&header, &includes);
        config.export.include = items(text);
        config.export.rename.extend(renamed.iter().cloned());
        // To C a status is the enumeration, to Rust its number.
        let status = ("StatusNumber".into(), "enum NVTEXBackendStatus".into());
        config.export.rename.extend([status]);
        (header, render(config, &[root().join(format!("src/backend/args/{name}.rs"))]))
    };
    sources.iter().map(|(name, text)| header(name, text)).collect()
}

/// What every plugin sees: the structs of the interface, and the arguments of all operators.
fn plugin_header() -> String {
    let path = root().join("src/backend/args/plugin.rs");
    let text = fs::read_to_string(&path).expect("plugin.rs");
    let mut config = config("plugin", &["nvtex.h".into(), "backend/operators.h".into()]);
    config.export.include = public_items(&text, "struct");
    let renamed = |name: &String| (name.clone(), format!("NVTEX{name}"));
    config.export.rename = config.export.include.iter().map(renamed).collect();
    config.after_includes = Some(PLUGIN_HEAD.into());
    config.trailer = Some(format!("{}{PLUGIN_ENTRY}", backend::interface_sizes()));
    render(config, &[path])
}

const PLUGIN_HEAD: &str = "
/**
 * The version of an operator's arguments that a plugin is built with, and their size: two initializers,
 * `.op_version = NVTEX_BUILT_WITH(SOFTMAX)` sets `op_version` and `args_size` of an NVTEXImpl.
 */
#define NVTEX_BUILT_WITH(OP) NVTEX_OP_##OP##_VERSION, NVTEX_OP_##OP##_SIZE
";

const PLUGIN_ENTRY: &str = "
/** Makes a symbol visible whatever the compiler's default is. */
#ifdef __GNUC__
#define NVTEX_PLUGIN_EXPORT __attribute__((visibility(\"default\")))
#else
#define NVTEX_PLUGIN_EXPORT
#endif

#ifdef __cplusplus
extern \"C\" {
#endif

/**
 * The entry function, which a plugin defines and exports. It fills `plugin` and registers what the plugin has
 * through `host`, without work on a device. If it does not return 0, nothing of it is registered.
 */
NVTEX_PLUGIN_EXPORT int32_t nvtex_plugin_v0(const NVTEXHost *host, NVTEXPlugin *plugin);

#ifdef __cplusplus
}
#endif
";

/// Some functions take references, which are addresses to C.
const REFERENCE: &str = "
#ifdef __cplusplus
typedef const NVTETensor &NVTETensorReference;
#else
typedef const NVTETensor *NVTETensorReference;
#endif";

fn slice_header(slice: &str) -> String {
    let sources: Vec<PathBuf> = match slice {
        "module" => {
            LAYER_SOURCES.iter().map(|name| root().join(format!("src/nn/capi/{name}.rs"))).collect()
        }
        "parallel" => vec![root().join("src/parallel/exports.rs")],
        "train" => TRAIN_SOURCES
            .iter()
            .map(|name| root().join(format!("src/train/capi/{name}.rs")))
            .collect(),
        _ => {
            let sources = [
                "exports.rs",
                "exports_derivatives.rs",
                "exports_plugins.rs",
                "exports_domains.rs",
            ];
            let sources = sources.map(|name| root().join(format!("src/op/{slice}/{name}")));
            sources.into_iter().filter(|path| path.exists()).collect()
        }
    };
    let mut includes = vec!["types.h".to_owned()];
    if slice == "dispatch" {
        includes.push("plugin.h".into());
    }
    if slice == "module" {
        includes.push("parallel.h".into());
    }
    if slice == "train" {
        includes.extend(["module.h", "parallel.h"].map(String::from));
    }
    let mut config = config(slice, &includes);
    if slice == "fused_attn" {
        config.after_includes = Some(REFERENCE.into());
    }
    render(config, &sources)
}

fn umbrella_header() -> String {
    let mut text = String::from(
        "#ifndef NVTE_NVTE_H\n#define NVTE_NVTE_H\n\n/* Generated by tests/abi.rs. */\n\n",
    );
    for slice in SLICES {
        text += &format!("#include \"nvte/{slice}.h\"\n");
    }
    text + "\n#endif /* NVTE_NVTE_H */\n"
}

const SCALING_HEAD: &str = "\
#ifndef NVTE_BACKEND_SCALING_H
#define NVTE_BACKEND_SCALING_H

/* Generated from src/scaling.rs by tests/abi.rs. */

#include \"nvte/types.h\"

/**
 * ROW(mode, lines, length, line_padding, block_padding, transposes, block_major, scale_bytes) of
 * each scaling mode.
 *
 * `lines`, `length`: lines that share a scale, and elements of a line that do; 0 if the tensor has
 * one scale. `line_padding`, `block_padding`: lines and blocks of the scale matrix are rounded up
 * to multiples of these. `transposes`: column-wise data and their scales are stored transposed.
 * `block_major`: scales of one block of all lines lie side by side, not those of one line.
 */
#define NVTEX_SCALING_MODES(ROW)";

/// The table of scaling modes, for the kernels.
fn scaling_header() -> String {
    let mut text = SCALING_HEAD.to_owned();
    for row in &MODES {
        let ([lines, length], [line_padding, block_padding]) = (row.block, row.padding);
        let (transposes, block_major, bytes) = (row.transposes, row.block_major, row.scale_bytes());
        text += &format!(
            " \\\n  ROW({:?}, {lines}, {length}, {line_padding}, {block_padding}, {transposes}, \
             {block_major}, {bytes})",
            row.mode
        );
    }
    text + "\n\n#endif  /* NVTE_BACKEND_SCALING_H */\n"
}

fn render(config: Config, sources: &[PathBuf]) -> String {
    let builder = sources.iter().fold(Builder::new().with_config(config), |b, s| b.with_src(s));
    let mut bytes = Vec::new();
    builder.generate().expect("cbindgen").write(&mut bytes);
    String::from_utf8(bytes).expect("UTF-8")
}

/// Compares a generated file with the tree, or writes it with `NVTE_BLESS=1`.
fn check_fresh(path: &Path, text: &str, stale: &mut Vec<PathBuf>) {
    let current = fs::read_to_string(path).unwrap_or_default();
    if current == text {
        return;
    }
    if env::var_os("NVTE_BLESS").is_some_and(|v| v == "1") {
        fs::write(path, text).expect("write header");
    } else {
        stale.push(path.to_owned());
    }
}

#[test]
fn headers_are_fresh() {
    let dir = root().join("include/nvte");
    let mut stale = Vec::new();
    check_fresh(&dir.join("types.h"), &types_header(), &mut stale);
    for (header, text) in backend_headers() {
        check_fresh(&dir.join(format!("{header}.h")), &text, &mut stale);
    }
    check_fresh(&dir.join("plugin.h"), &plugin_header(), &mut stale);
    check_fresh(&dir.join("backend/operators.h"), &backend::operators_header(), &mut stale);
    check_fresh(&dir.join("backend/scaling.h"), &scaling_header(), &mut stale);
    check_fresh(&dir.join("nvte.h"), &umbrella_header(), &mut stale);
    for slice in SLICES {
        check_fresh(&dir.join(format!("{slice}.h")), &slice_header(slice), &mut stale);
    }
    assert!(stale.is_empty(), "stale; run NVTE_BLESS=1 cargo test --test abi: {stale:?}");
}

#[test]
fn activations_are_fresh() {
    let mut stale = Vec::new();
    for (path, text) in activations::files() {
        check_fresh(&root().join("src/op").join(path), &text, &mut stale);
    }
    assert!(stale.is_empty(), "stale; run NVTE_BLESS=1 cargo test --test abi twice: {stale:?}");
}

#[test]
fn every_slice_is_listed() {
    let entries = fs::read_dir(root().join("src/op")).expect("src/op");
    let dirs: BTreeSet<String> = entries
        .filter_map(|e| e.ok())
        .filter(|e| e.path().is_dir())
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    let operators = SLICES.iter().filter(|slice| !["module", "parallel", "train"].contains(slice));
    let listed: BTreeSet<String> = operators.map(|s| s.to_string()).collect();
    assert_eq!(dirs, listed);
}

/// A function as a header or the manifest declares it: result and parameter types, normalised.
#[derive(Debug, PartialEq)]
struct Signature {
    returns: String,
    params: Vec<String>,
}

/// A type without spelling differences: no `enum`/`struct` keywords, no `const` of the value itself.
fn normalise(text: &str) -> String {
    let spaced = text.replace("NVTETensorReference", "const NVTETensor &").replace('*', " * ");
    let words: Vec<&str> =
        spaced.split_whitespace().filter(|w| *w != "enum" && *w != "struct").collect();
    let mut words = words.as_slice();
    if !words.contains(&"*") && words.first() == Some(&"const") {
        words = &words[1..];
    }
    if words.last() == Some(&"const") {
        words = &words[..words.len() - 1];
    }
    words.join(" ").replace("int32_t", "int").replace("uint32_t", "unsigned int")
}

/// The functions that a header declares.
fn declarations(header: &str) -> BTreeMap<String, Signature> {
    let mut code = String::new();
    let mut rest = header;
    while let Some(start) = rest.find("/*") {
        code += &rest[..start];
        rest = rest[start..].split_once("*/").expect("closed comment").1;
    }
    code += rest;
    let lines = code.lines().filter(|l| !l.starts_with('#') && !l.starts_with("extern"));
    let code: String = lines.collect::<Vec<_>>().join(" ");
    let mut found = BTreeMap::new();
    // A member of a struct that points to a function has its parameters behind a star.
    let member = |s: &str| s.split_once('(').is_some_and(|(_, rest)| rest.starts_with('*'));
    let function = |s: &&str| s.trim_end().ends_with(')') && !s.contains("typedef ") && !member(s);
    for statement in code.split(';').filter(function) {
        let (head, params) = statement.split_once('(').expect("parameters");
        let head = head.rsplit(['}', '{']).next().unwrap_or(head).trim();
        let name_at = head.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |i| i + 1);
        let params = params.trim_end().trim_end_matches(')').trim();
        let params = params.split(',').filter(|p| !p.trim().is_empty() && p.trim() != "void");
        let without_name = |param: &str| {
            let end = param.trim_end().rfind(|c: char| !c.is_alphanumeric() && c != '_');
            normalise(&param[..end.map_or(0, |i| i + 1)])
        };
        let signature = Signature {
            returns: normalise(&head[..name_at]),
            params: params.map(without_name).collect(),
        };
        found.insert(head[name_at..].to_owned(), signature);
    }
    found
}

fn manifest() -> Value {
    let text = fs::read_to_string(root().join("tests/abi.json")).expect("abi.json");
    serde_json::from_str(&text).expect("JSON")
}

fn manifest_signature(function: &Value) -> Signature {
    let text = |value: &Value| normalise(value.as_str().expect("a type"));
    let params = function["params"].as_array().expect("params");
    Signature {
        returns: text(&function["returns"]),
        params: params.iter().map(|param| text(&param[1])).collect(),
    }
}

/// Functions that no header of C can declare, with their symbols: one takes a `std::vector`
/// (`include/nvte/cpp/recipe.h`), the other one has no C linkage.
const CPP_ONLY: &[(&str, &str)] = &[
    (
        "nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction",
        "nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction",
    ),
    ("nvte_built_with_cublasmp", "_Z24nvte_built_with_cublasmpv"),
];

/// Symbols that programs import under the names of a C++ compiler, beside those of C.
const MANGLED: &[&str] = &[
    "_Z12nvte_permutePvS_S_S_S_S_S_iiiiP11CUstream_st",
    "_Z14nvte_unpermutePvS_S_S_iiiP11CUstream_st",
    "_Z28nvte_device_radix_sort_pairsPvPmPiS1_S1_S1_m",
    "_Z29nvte_multi_stream_cublas_gemmPKPvS1_PS_S1_S2_ibbbS2_bbiP11CUstream_st",
];

/// What the headers of all slices declare.
fn declared() -> BTreeSet<String> {
    SLICES.iter().flat_map(|slice| declarations(&slice_header(slice)).into_keys()).collect()
}

#[test]
fn signatures_match_the_manifest() {
    let manifest = manifest();
    let functions = manifest["functions"].as_object().expect("functions");
    for slice in SLICES {
        let header = fs::read_to_string(root().join(format!("include/nvte/{slice}.h")));
        for (name, signature) in declarations(&header.expect("header")) {
            if name.starts_with("nvtex_") {
                assert!(!functions.contains_key(&name), "{name} is of the ABI");
                continue;
            }
            let expected = functions.get(&name).unwrap_or_else(|| panic!("{name}: not of the ABI"));
            assert_eq!(expected["header"], format!("{slice}.h"), "{name}: header");
            assert_eq!(signature, manifest_signature(expected), "{name}");
        }
    }
}

#[test]
fn no_function_is_missing() {
    let (manifest, mut there) = (manifest(), declared());
    there.extend(CPP_ONLY.iter().map(|(name, _)| name.to_string()));
    let functions = manifest["functions"].as_object().expect("functions");
    let missing: Vec<_> = functions.keys().filter(|name| !there.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Values of the enumerations in a generated header.
fn enum_values(header: &str) -> BTreeMap<String, i64> {
    let entries =
        header.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once(" = "));
    entries.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

#[test]
fn enums_match_the_manifest() {
    let manifest = manifest();
    let header = fs::read_to_string(root().join("include/nvte/types.h")).expect("types.h");
    let values = enum_values(&header);
    let mut compared = 0;
    for (name, expected) in manifest["enums"].as_object().expect("enums") {
        if !header.contains(&format!("typedef enum {name} {{")) {
            continue;
        }
        for (entry, value) in expected["values"].as_object().expect("values") {
            assert_eq!(values.get(entry).copied(), value.as_i64(), "{name}: {entry}");
            compared += 1;
        }
    }
    assert!(compared > 60, "only {compared} values found in types.h");
}

#[test]
fn structs_match_the_manifest() {
    let manifest = manifest();
    macro_rules! layout {
        ($type:ident: $($field:ident),*) => {(
            stringify!($type),
            size_of::<$type>(),
            align_of::<$type>(),
            vec![$((stringify!($field), offset_of!($type, $field))),*],
        )};
    }
    let layouts = [
        layout!(NVTEShape: data, ndim),
        layout!(NVTEBasicTensor: data_ptr, dtype, shape),
        layout!(NVTETensorPack: tensors, size),
        layout!(NVTECommWindow: window, offset, scale_window, scale_offset),
        layout!(NVTEEpGroupConfig:
            struct_size, ep_size, num_experts, max_tokens_per_rank, max_recv_tokens_per_rank,
            hidden_dim, num_comm_sms, max_token_dtype, zero_copy, num_topk, drop_on_overflow),
        layout!(NVTEEpLayerConfig: struct_size, top_k, dispatch_output_per_expert_alignment),
    ];
    for (name, size, align, fields) in layouts {
        let expected = &manifest["structs"][name];
        assert_eq!(
            (Some(size as u64), Some(align as u64)),
            (expected["size"].as_u64(), expected["align"].as_u64()),
            "{name}"
        );
        let list = expected["fields"].as_array().expect("fields");
        let list: Vec<_> = list
            .iter()
            .map(|f| (f[0].as_str().unwrap(), f[2].as_u64().unwrap() as usize))
            .collect();
        assert_eq!(fields, list, "{name}");
    }
}

/// A C program that takes the address of every function of the ABI and of those beyond it: a missing export
/// fails to link.
#[test]
fn symbols_program_is_fresh() {
    let mut text = String::from(
        "/* Generated by tests/abi.rs: links every function that the headers declare, and those that none \
         does. */\n#include <stdio.h>\n\n#include \"nvte/nvte.h\"\n\n\
         typedef void (*function)(void);\n\n",
    );
    let manifest = manifest();
    let undeclared = manifest["exported_without_declaration"].as_array().expect("names");
    let undeclared = undeclared.iter().map(|name| name.as_str().expect("a name"));
    let others = CPP_ONLY.iter().map(|(_, symbol)| *symbol).chain(MANGLED.iter().copied());
    let others: Vec<_> = undeclared.chain(others).collect();
    for symbol in &others {
        text += &format!("extern void {symbol}(void);\n");
    }
    text += "\nstatic const function functions[] = {\n";
    for slice in SLICES {
        for name in declarations(&slice_header(slice)).keys() {
            text += &format!("    (function){name},\n");
        }
    }
    for symbol in &others {
        text += &format!("    {symbol},\n");
    }
    text += "};\n\nint main(void) {\n  size_t count = sizeof functions / sizeof *functions;\n  \
             for (size_t i = 0; i < count; i++) {\n    if (!functions[i]) return 1;\n  }\n  \
             printf(\"%zu functions\\n\", count);\n  return 0;\n}\n";
    let mut stale = Vec::new();
    check_fresh(&root().join("capi-tests/api/symbols.c"), &text, &mut stale);
    assert!(stale.is_empty(), "stale; run NVTE_BLESS=1 cargo test --test abi: {stale:?}");
}
