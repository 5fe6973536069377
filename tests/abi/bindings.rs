//! What the bindings of `bindings/` and the C++ classes take from the C headers: declarations for Rust and Python,
//! configs as builders, one class for each module, and the layouts of structs as a C compiler sees them.

use crate::c_header::{Field, Item, Kind, Type, Variant, items};
use crate::{SLICES, check_fresh, root, scaling_header, slice_header, types_header};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, process};

/// Implementations of operators are written in C: their interface has no binding.
const NOT_BOUND: [&str; 1] = ["dispatch"];

/// All that the bindings know.
struct Headers {
    /// Names and texts of the headers.
    texts: Vec<(String, String)>,
    items: Vec<Item>,
    enums: BTreeMap<String, Vec<Variant>>,
    structs: BTreeMap<String, Vec<Field>>,
    functions: BTreeMap<String, (Vec<Field>, Type)>,
}

/// A function that creates a module of a config, and nothing else.
struct Module<'a> {
    item: &'a Item,
    config: &'a str,
}

impl Headers {
    fn read() -> Self {
        let slices = SLICES.iter().filter(|slice| !NOT_BOUND.contains(slice));
        let mut texts = vec![("types.h".to_owned(), types_header())];
        texts.extend(slices.map(|slice| (format!("{slice}.h"), slice_header(slice))));
        let items = items(texts.iter().map(|(_, text)| text.as_str()));
        let (mut enums, mut structs, mut functions) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for item in &items {
            let name = item.name.clone();
            match &item.kind {
                Kind::Enum(variants) => drop(enums.insert(name, variants.clone())),
                Kind::Struct(fields) => drop(structs.insert(name, fields.clone())),
                Kind::Function { params, returns } => {
                    functions.insert(name, (params.clone(), returns.clone()));
                }
                _ => {}
            }
        }
        Headers { texts, items, enums, structs, functions }
    }

    /// The function that sets the defaults of a config, unless it wants to know more than the config.
    fn initializer(&self, config: &str) -> Option<&str> {
        let takes = |params: &[Field]| match params {
            [first, _] => points_to(&first.kind) == Some(config),
            _ => false,
        };
        let functions = self.functions.iter();
        let found =
            functions.filter(|(name, (params, _))| name.ends_with("_config_init") && takes(params));
        found.map(|(name, _)| name.as_str()).next()
    }

    fn modules(&self) -> Vec<Module<'_>> {
        fn of(item: &Item) -> Option<Module<'_>> {
            let Item { name, kind: Kind::Function { params, returns }, .. } = item else {
                return None;
            };
            let [context, config, stream] = &params[..] else { return None };
            let named = |field: &Field, name: &str| field.kind == Type::Named(name.into());
            let config = points_to(&config.kind)?;
            let create = name.ends_with("_create") && *returns == Type::Named("NVTEXModule".into());
            let fits = create && named(context, "NVTEXContext") && named(stream, "cudaStream_t");
            fits.then_some(Module { item, config })
        }
        self.items.iter().filter_map(of).collect()
    }

    /// Configs that get a builder, in the order of the headers: those of modules and of what the safe crate has beside
    /// them, and the configs inside of these.
    fn configs(&self) -> Vec<&Item> {
        let others = ["NVTEXRecipeConfig", "NVTEXContextConfig", "NVTEXRotaryConfig"];
        let modules = self.modules();
        let all = modules.iter().map(|module| module.config).chain(others);
        let mut open: Vec<String> = all.map(String::from).collect();
        let mut wanted = BTreeSet::new();
        while let Some(name) = open.pop() {
            let fields = self.structs[&name].iter();
            let inner = fields.filter_map(|field| match &field.kind {
                Type::Named(name) if self.structs.contains_key(name) => Some(name.clone()),
                _ => None,
            });
            open.extend(inner.filter(|name| plain(name) != "Shape"));
            wanted.insert(name);
        }
        self.items.iter().filter(|item| wanted.contains(&item.name)).collect()
    }

    /// Enumerations that programs in other languages name.
    fn safe_enums(&self) -> Vec<&Item> {
        let others = ["NVTEXPass", "NVTEXRole", "NVTEXMicrobatch", "NVTEXStatus"];
        let mut wanted = BTreeSet::from(others.map(String::from));
        wanted.extend(["NVTEXRecipeKind", "NVTEXSlotScaling", "NVTEDType"].map(String::from));
        for config in self.configs() {
            for field in &self.structs[&config.name] {
                if let Type::Named(name) = &field.kind
                    && self.enums.contains_key(name)
                {
                    wanted.insert(name.clone());
                }
            }
        }
        self.items.iter().filter(|item| wanted.contains(&item.name)).collect()
    }

    /// How a field of a config is set.
    fn setting<'a>(&'a self, field: &'a Field) -> Setting<'a> {
        match &field.kind {
            Type::Pointer { .. } if field.name == "name" => Setting::Name,
            Type::Named(name) if name == "NVTEXModule" => Setting::Module,
            Type::Named(name) if self.enums.contains_key(name) => Setting::Enum(name),
            Type::Named(name) if self.structs.contains_key(name) => Setting::Config(name),
            Type::Named(name) if rust_number(name).is_some() && field.name != "struct_size" => {
                Setting::Number(name)
            }
            _ => Setting::Other,
        }
    }
}

enum Setting<'a> {
    Name,
    Number(&'a str),
    Enum(&'a str),
    Config(&'a str),
    Module,
    /// Addresses, other handles, and room for later versions.
    Other,
}

fn points_to(kind: &Type) -> Option<&str> {
    match kind {
        Type::Pointer { to, .. } => match &**to {
            Type::Named(name) => Some(name),
            _ => None,
        },
        _ => None,
    }
}

/// A name without the mark of this library: `NVTEXLinearConfig` is `LinearConfig`, `NVTE_Mask_Type` is `MaskType`.
fn plain(name: &str) -> String {
    let rest = name.strip_prefix("NVTEX").or_else(|| name.strip_prefix("NVTE")).unwrap_or(name);
    rest.replace('_', "")
}

/// The variants of an enumeration without what all of their names begin with, and without counts.
fn variants(all: &[Variant]) -> Vec<(String, &Variant)> {
    let first = &all[0].name;
    let common = |end: &usize| all.iter().all(|v| v.name.starts_with(&first[..*end]));
    let ends = first.char_indices().filter(|(_, c)| *c == '_').map(|(i, _)| i + 1);
    let end = ends.rev().find(common).unwrap_or(0);
    let stripped = all.iter().map(|variant| {
        let name = &variant.name[end..];
        (name.strip_prefix("kNVTE").unwrap_or(name).to_owned(), variant)
    });
    stripped.filter(|(name, _)| !name.starts_with("Num")).collect()
}

/// `CAUSAL_MASK` is `CausalMask`; what is no word, such as `SBHD` and `MXFP8`, stays as it is.
fn camel(name: &str) -> String {
    if name.chars().any(|c| c.is_lowercase()) {
        return name.replace('_', "");
    }
    let word = |word: &str| match word.contains(['A', 'E', 'I', 'O', 'U'])
        && !word.contains(|c: char| c.is_numeric())
    {
        true => word[..1].to_owned() + &word[1..].to_lowercase(),
        false => word.to_owned(),
    };
    name.split('_').map(word).collect()
}

fn rust_docs(docs: &[String], indent: &str) -> String {
    let mut text = String::new();
    for line in docs {
        let space = if line.is_empty() { "" } else { " " };
        writeln!(text, "{indent}///{space}{line}").expect("a string");
    }
    text
}

fn rust_number(name: &str) -> Option<&str> {
    Some(match name {
        "bool" => "bool",
        "size_t" => "usize",
        "int" | "int32_t" => "i32",
        "uint32_t" => "u32",
        "int64_t" => "i64",
        "uint64_t" => "u64",
        "int8_t" => "i8",
        "uint8_t" => "u8",
        "int16_t" => "i16",
        "uint16_t" => "u16",
        "float" => "f32",
        "double" => "f64",
        _ => return None,
    })
}

fn rust_type(kind: &Type) -> String {
    match kind {
        Type::Named(name) => match name.as_str() {
            "void" => "c_void".into(),
            "char" => "c_char".into(),
            name => rust_number(name).unwrap_or(name).to_owned(),
        },
        Type::Pointer { to, constant } => match &**to {
            Type::Function { params, returns } => {
                format!(
                    "Option<unsafe extern \"C\" fn({}){}>",
                    rust_params(params),
                    rust_result(returns)
                )
            }
            to => format!("*{} {}", if *constant { "const" } else { "mut" }, rust_type(to)),
        },
        Type::Array(of, length) => format!("[{}; {length}]", rust_type(of)),
        Type::Function { .. } => panic!("a function is no type of a value"),
    }
}

fn rust_params(params: &[Field]) -> String {
    let param = |field: &Field| {
        let name = match field.name.as_str() {
            name @ ("type" | "in" | "ref" | "fn" | "loop" | "match" | "move" | "use" | "where") => {
                format!("r#{name}")
            }
            name => name.to_owned(),
        };
        match name.is_empty() {
            true => rust_type(&field.kind),
            false => format!("{name}: {}", rust_type(&field.kind)),
        }
    };
    params.iter().map(param).collect::<Vec<_>>().join(", ")
}

fn rust_result(returns: &Type) -> String {
    match returns {
        Type::Named(name) if name == "void" => String::new(),
        kind => format!(" -> {}", rust_type(kind)),
    }
}

const RUST_NOTE: &str = "// Generated from the C headers by tests/abi.rs.\n";

/// `nvte-sys`: what the headers declare, for Rust.
fn sys(headers: &Headers) -> String {
    let mut text = String::from(RUST_NOTE);
    text += "use std::ffi::{c_char, c_void};\n";
    let mut functions = String::new();
    let mut layouts = String::new();
    for Item { docs, name, kind } in &headers.items {
        let above = rust_docs(docs, "");
        text += "\n";
        match kind {
            Kind::Constant(value) => {
                let kind = if *value < 0 { "i32" } else { "u32" };
                text += &format!("{above}pub const {name}: {kind} = {value};\n");
            }
            Kind::Enum(variants) => {
                text += &format!("{above}pub type {name} = i32;\n");
                for Variant { docs, name: variant, value } in variants {
                    let docs = rust_docs(docs, "");
                    text += &format!("{docs}pub const {variant}: {name} = {value};\n");
                }
            }
            Kind::Struct(fields) => {
                text += &format!(
                    "{above}#[repr(C)]\n#[derive(Clone, Copy, Debug)]\npub struct {name} {{\n"
                );
                layouts += &format!("    layout!({name}:");
                for field in fields {
                    let (docs, kind) = (rust_docs(&field.docs, "    "), rust_type(&field.kind));
                    text += &format!("{docs}    pub {}: {kind},\n", field.name);
                    layouts += &format!(" {}", field.name);
                }
                layouts += "),\n";
                text += "}\n";
            }
            Kind::Opaque => {
                text += &format!(
                    "{above}#[repr(C)]\n#[derive(Debug)]\npub struct {name} {{\n    _bytes: [u8; 0],\n    \
                     _nowhere: crate::Opaque,\n}}\n"
                );
            }
            Kind::Alias(kind) => {
                let undeclared = match kind {
                    Type::Pointer { to, .. } => match &**to {
                        Type::Named(tag) if tag.ends_with("_st") || tag == "ncclComm" => Some(tag),
                        _ => None,
                    },
                    _ => None,
                };
                if let Some(tag) = undeclared
                    && !headers.items.iter().any(|item| item.name == *tag)
                {
                    text += &format!(
                        "/// What a handle points to.\n#[repr(C)]\n#[derive(Debug)]\npub struct {tag} {{\n    \
                         _bytes: [u8; 0],\n    _nowhere: crate::Opaque,\n}}\n"
                    );
                }
                text += &format!("{above}pub type {name} = {};\n", rust_type(kind));
            }
            Kind::Function { params, returns } => {
                let docs = rust_docs(docs, "    ");
                let (params, result) = (rust_params(params), rust_result(returns));
                functions += &format!("{docs}    pub fn {name}({params}){result};\n");
            }
        }
    }
    let layouts = format!(
        "/// Sizes, alignments and offsets of the structs.\n#[cfg(test)]\n\
                           pub(crate) fn layouts() -> Vec<String> {{\n    vec![\n{layouts}    ]\n}}\n"
    );
    format!(
        "{text}\nunsafe extern \"C-unwind\" {{\n{functions}}}\n\n{}",
        layouts.replace("    layout!", "        crate::layout!")
    )
}

/// The safe crate: enumerations, configs as builders, and modules.
fn safe(headers: &Headers) -> String {
    let mut text = String::from(RUST_NOTE);
    text += "use crate::config::{Names, initialized};\nuse crate::module::module;\nuse nvte_sys as sys;\n";
    for item in headers.safe_enums() {
        let name = plain(&item.name);
        text += &format!(
            "\n{}#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\n#[repr(i32)]\n#[non_exhaustive]\n\
             pub enum {name} {{\n",
            rust_docs(&item.docs, "")
        );
        let variants = variants(&headers.enums[&item.name]);
        for (short, variant) in &variants {
            let docs = match variant.docs.is_empty() {
                true => format!("    /// `{}`\n", variant.name),
                false => rust_docs(&variant.docs, "    "),
            };
            text += &format!("{docs}    {} = {},\n", camel(short), variant.value);
        }
        text += &format!(
            "}}\n\nimpl {name} {{\n    /// The variant with this number in C, if there is one.\n    \
             pub fn from_c(number: i32) -> Option<Self> {{\n        match number {{\n"
        );
        for (short, variant) in &variants {
            text += &format!("            {} => Some(Self::{}),\n", variant.value, camel(short));
        }
        text += "            _ => None,\n        }\n    }\n}\n";
    }
    for item in headers.configs() {
        let (raw, name) = (&item.name, plain(&item.name));
        text += &format!(
            "\n{}#[derive(Clone, Debug)]\npub struct {name} {{\n    pub(crate) raw: sys::{raw},\n    \
             /// Keeps the texts that `raw` points to.\n    #[allow(dead_code)]\n    \
             pub(crate) names: Names,\n}}\n\nimpl {name} {{\n",
            rust_docs(&item.docs, "")
        );
        if let Some(init) = headers.initializer(raw) {
            text += &format!(
                "    /// Makes a config with the library's defaults.\n    pub fn new() -> Self {{\n        \
                 // SAFETY: the function writes a config of this size.\n        \
                 let raw = initialized(|raw, size| unsafe {{ sys::{init}(raw, size) }});\n        \
                 Self {{ raw, names: Names::default() }}\n    }}\n"
            );
        }
        for field in &headers.structs[raw] {
            let (docs, field_name) = (rust_docs(&field.docs, "    "), &field.name);
            let docs = match docs.is_empty() {
                true => format!("    /// Sets `{field_name}`.\n"),
                false => docs,
            };
            text += &match headers.setting(field) {
                Setting::Name => format!(
                    "\n{docs}    pub fn name(mut self, name: &str) -> Self {{\n        \
                     self.raw.name = self.names.add(name);\n        self\n    }}\n"
                ),
                Setting::Number(kind) => format!(
                    "\n{docs}    pub fn {field_name}(mut self, value: {}) -> Self {{\n        \
                     self.raw.{field_name} = value;\n        self\n    }}\n",
                    rust_number(kind).expect("a number")
                ),
                Setting::Enum(kind) => format!(
                    "\n{docs}    pub fn {field_name}(mut self, value: {}) -> Self {{\n        \
                     self.raw.{field_name} = value as i32;\n        self\n    }}\n",
                    plain(kind)
                ),
                Setting::Module => format!(
                    "\n{docs}    pub fn {field_name}(mut self, module: &crate::Module<'_>) -> Self {{\n        \
                     self.raw.{field_name} = module.raw();\n        self\n    }}\n"
                ),
                Setting::Config(kind) => {
                    let kind = plain(kind);
                    format!(
                        "\n{docs}    ///\n    /// The function gets what is set so far, and returns what shall be.\n    \
                         pub fn {field_name}(mut self, change: impl FnOnce({kind}) -> {kind}) -> Self {{\n        \
                         let (raw, names) = (self.raw.{field_name}, self.names.clone());\n        \
                         let changed = change({kind} {{ raw, names }});\n        \
                         self.raw.{field_name} = changed.raw;\n        self.names.join(changed.names);\n        \
                         self\n    }}\n"
                    )
                }
                Setting::Other => continue,
            };
        }
        text += "}\n";
        if headers.initializer(raw).is_some() {
            text += &format!(
                "\nimpl Default for {name} {{\n    fn default() -> Self {{\n        Self::new()\n    }}\n}}\n"
            );
        }
    }
    for Module { item, config } in headers.modules() {
        let (docs, config) = (rust_docs(&item.docs, "    "), plain(config));
        let name = config.trim_end_matches("Config");
        text += &format!("\nmodule! {{\n{docs}    {name}, {config}, {}\n}}\n", item.name);
    }
    text
}

fn python_type(headers: &Headers, kind: &Type, field: bool) -> String {
    match kind {
        Type::Named(name) => match name.as_str() {
            "void" => "None".into(),
            "bool" => "c_bool".into(),
            "float" => "c_float".into(),
            "double" => "c_double".into(),
            "int" => "c_int".into(),
            "size_t" => "c_size_t".into(),
            name if rust_number(name).is_some() => format!("c_{}", name.trim_end_matches("_t")),
            name if headers.enums.contains_key(name) => "c_int".into(),
            name if headers.structs.contains_key(name) => name.to_owned(),
            name => {
                match headers.items.iter().find(|item| item.name == name).map(|item| &item.kind) {
                    Some(Kind::Alias(Type::Pointer { to, .. }))
                        if matches!(**to, Type::Function { .. }) =>
                    {
                        name.to_owned()
                    }
                    _ => "c_void_p".into(),
                }
            }
        },
        Type::Pointer { to, constant } => match &**to {
            Type::Named(name) if name == "char" && *constant => "c_char_p".into(),
            Type::Function { params, returns } if !field => {
                let params = params.iter().map(|param| python_type(headers, &param.kind, true));
                let all = [python_type(headers, returns, true)].into_iter().chain(params);
                format!("CFUNCTYPE({})", all.collect::<Vec<_>>().join(", "))
            }
            _ => "c_void_p".into(),
        },
        Type::Array(of, length) => format!("{} * {length}", python_type(headers, of, field)),
        Type::Function { .. } => panic!("a function is no type of a value"),
    }
}

const PYTHON_NOTE: &str = "# Generated from the C headers by tests/abi.rs.\n";

/// The rows of the header of scaling modes: lines and length of a block, paddings of lines and blocks, whether
/// column-wise data are transposed, whether scales of one block of all lines lie side by side, and bytes of a scale.
fn python_scaling() -> String {
    let mut text = String::from(
        "# Of each scaling mode: lines and length of a block, padding of lines and blocks, whether column-wise data are\n\
         # transposed, whether scales of one block of all lines lie side by side, and bytes of a scale.\n\
         SCALING_MODES = {\n",
    );
    for row in scaling_header().lines().filter_map(|line| line.trim().strip_prefix("ROW(")) {
        let row = row.trim_end_matches([' ', '\\', ')']).replace("true", "True");
        if let Some((mode, values)) = row.replace("false", "False").split_once(", ") {
            text += &format!("    {mode}: ({values}),\n");
        }
    }
    text + "}\n"
}

/// `nvte/_abi.py`: what the headers declare, for ctypes.
fn ctypes(headers: &Headers) -> String {
    let mut text = format!(
        "\"\"\"What the C headers declare, for ctypes.\"\"\"\n\n{PYTHON_NOTE}\n\
         from ctypes import (\n    CFUNCTYPE, Structure, c_bool, c_char_p, c_double, c_float, c_int, c_int8, c_int16, \
         c_int32, c_int64,\n    c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)\n\n"
    );
    let (mut enums, mut functions) = (String::new(), String::new());
    for Item { name, kind, .. } in &headers.items {
        match kind {
            Kind::Constant(value) => text += &format!("{name} = {value}\n"),
            Kind::Enum(all) => {
                for variant in all {
                    text += &format!("{} = {}\n", variant.name, variant.value);
                }
                enums += &format!("    \"{}\": {{", plain(name));
                let pairs = variants(all).into_iter();
                let pairs =
                    pairs.map(|(short, v)| format!("\"{}\": {}", short.to_lowercase(), v.value));
                enums += &format!("{}}},\n", pairs.collect::<Vec<_>>().join(", "));
            }
            Kind::Struct(fields) => {
                text += &format!("\n\nclass {name}(Structure):\n    _fields_ = [\n");
                for field in fields {
                    let kind = python_type(headers, &field.kind, true);
                    text += &format!("        (\"{}\", {kind}),\n", field.name);
                }
                text += "    ]\n    # Fields that are enumerations, with the name of these.\n    _enums_ = {";
                let named = fields.iter().filter_map(|field| match headers.setting(field) {
                    Setting::Enum(kind) => Some(format!("\"{}\": \"{}\"", field.name, plain(kind))),
                    _ => None,
                });
                text += &format!("{}}}\n\n\n", named.collect::<Vec<_>>().join(", "));
            }
            Kind::Alias(kind @ Type::Pointer { to, .. })
                if matches!(**to, Type::Function { .. }) =>
            {
                text += &format!("{name} = {}\n", python_type(headers, kind, false));
            }
            Kind::Opaque | Kind::Alias(_) => {}
            Kind::Function { params, returns } => {
                let params: Vec<_> =
                    params.iter().map(|param| python_type(headers, &param.kind, true)).collect();
                let result = match python_type(headers, returns, true).as_str() {
                    kind if kind.starts_with("CFUNCTYPE") => "c_void_p".to_owned(),
                    kind => kind.to_owned(),
                };
                functions += &format!("    \"{name}\": ({result}, [{}]),\n", params.join(", "));
            }
        }
    }
    text += &format!("\n\n{}", python_scaling());
    format!(
        "{text}\n\n# Names of the values of enumerations.\nENUMS = {{\n{enums}}}\n\n\
         # Result and parameters of each function.\nFUNCTIONS = {{\n{functions}}}\n"
    )
}

fn python_docs(docs: &[String], indent: &str) -> String {
    let docs = docs.iter().map(|line| match line.is_empty() {
        true => "\n".to_owned(),
        false => format!("{indent}{}\n", line.replace('\\', "\\\\")),
    });
    docs.collect()
}

fn python_hint(headers: &Headers, field: &Field) -> Option<String> {
    Some(match headers.setting(field) {
        Setting::Name => "str".into(),
        Setting::Number("bool") => "bool".into(),
        Setting::Number("float" | "double") => "float".into(),
        Setting::Number(_) => "int".into(),
        Setting::Enum(kind) | Setting::Config(kind) => plain(kind),
        Setting::Module => "Module".into(),
        Setting::Other => return None,
    })
}

/// `nvte/_modules.py`: the types of configs, and a class for each module.
fn python_modules(headers: &Headers) -> String {
    let mut text = format!(
        "\"\"\"Modules, and the types of their configs.\"\"\"\n\n{PYTHON_NOTE}\nfrom __future__ import annotations\n\n\
         from typing import Literal, TypedDict\n\nfrom . import _abi\nfrom ._core import Context, Module, Stream\n\n"
    );
    for item in headers.safe_enums() {
        let values = variants(&headers.enums[&item.name]);
        let values = values.iter().map(|(short, _)| format!("\"{}\"", short.to_lowercase()));
        let values = values.collect::<Vec<_>>().join(", ");
        text += &format!("{} = Literal[{values}]\n", plain(&item.name));
    }
    for item in headers.configs() {
        text += &format!(
            "\n\nclass {}(TypedDict, total=False):\n    \"\"\"{}\"\"\"\n\n",
            plain(&item.name),
            python_docs(&item.docs, "    ").trim()
        );
        for field in &headers.structs[&item.name] {
            if let Some(hint) = python_hint(headers, field) {
                text += &format!("    {}: {hint}\n", field.name);
            }
        }
    }
    let mut names = Vec::new();
    for Module { item, config } in headers.modules() {
        let name = plain(config).trim_end_matches("Config").to_owned();
        text += &format!(
            "\n\nclass {name}(Module):\n    \"\"\"\n{}\n    Arguments that are None have the library's defaults:\n",
            python_docs(&item.docs, "    ")
        );
        let fields: Vec<_> = headers.structs[config]
            .iter()
            .filter_map(|field| Some((field, python_hint(headers, field)?)))
            .collect();
        for (field, _) in &fields {
            let docs = field.docs.join(" ").replace('\\', "\\\\");
            let colon = if docs.is_empty() { "" } else { ": " };
            text += &format!("\n    - {}{colon}{docs}", field.name);
        }
        let create = &item.name;
        let init = headers.initializer(config).expect("a config of a module has defaults");
        text += &format!(
            "\n    \"\"\"\n\n    _config = _abi.{config}\n    _init = \"{init}\"\n    _create = \"{create}\"\n\n    \
             def __init__(\n        self,\n        context: Context,\n        *,\n"
        );
        for (field, hint) in &fields {
            text += &format!("        {}: {hint} | None = None,\n", field.name);
        }
        text += "        stream: Stream = None,\n    ) -> None:\n        self._make(context, stream, {\n";
        for (field, _) in &fields {
            text += &format!("            \"{0}\": {0},\n", field.name);
        }
        text += "        })\n";
        names.push(name);
    }
    let names: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
    text + &format!("\n\n__all__ = [{}]\n", names.join(", "))
}

/// `nvte/cpp/modules.hpp`: a class for each module.
fn cpp_modules(headers: &Headers) -> String {
    let mut text = String::from(
        "#ifndef NVTE_CPP_MODULES_HPP\n#define NVTE_CPP_MODULES_HPP\n\n\
         /* Generated from the C headers by tests/abi.rs. nvte/cpp/nvte.hpp includes it. */\n\n#include \"nvte/cpp/nvte.hpp\"\n\nnamespace nvte {\n",
    );
    for Module { item, config } in headers.modules() {
        let init = headers.initializer(config).expect("a config of a module has defaults");
        text += "\n/**\n";
        for line in &item.docs {
            text += &format!(" *{}{line}\n", if line.is_empty() { "" } else { " " });
        }
        text += &format!(
            " */\nusing {} =\n    ModuleOf<{config}, {init},\n             {}>;\n",
            plain(config).trim_end_matches("Config"),
            item.name
        );
    }
    text + "\n}  // namespace nvte\n\n#endif /* NVTE_CPP_MODULES_HPP */\n"
}

/// Sizes, alignments and offsets of structs, as a C compiler sees them: `NAME SIZE ALIGNMENT FIELD=OFFSET...`.
fn layouts(headers: &Headers) -> String {
    let folder = env::temp_dir().join(format!("nvte-layouts-{}", process::id()));
    fs::create_dir_all(folder.join("nvte")).expect("a folder for temporary files");
    let mut program = String::from("#include <stdio.h>\n");
    // The headers as they shall be: another test may be writing those of the tree.
    for (name, text) in &headers.texts {
        fs::write(folder.join("nvte").join(name), text).expect("a header");
        program += &format!("#include \"nvte/{name}\"\n");
    }
    program += "int main(void) {\n";
    for (name, fields) in &headers.structs {
        program += &format!("  printf(\"{name} %zu %zu\", sizeof({name}), _Alignof({name}));\n");
        for Field { name: field, .. } in fields {
            program += &format!("  printf(\" {field}=%zu\", offsetof({name}, {field}));\n");
        }
        program += "  putchar('\\n');\n";
    }
    program += "  return 0;\n}\n";
    let (source, binary) = (folder.join("layouts.c"), folder.join("layouts"));
    fs::write(&source, program).expect("layouts.c");
    let mut compile = Command::new(env::var("CC").unwrap_or_else(|_| "cc".into()));
    compile.args(["-std=c11", "-o"]).arg(&binary).arg(&source).arg("-I").arg(&folder);
    assert!(compile.status().expect("a C compiler").success(), "layouts.c does not compile");
    let output = Command::new(&binary).output().expect("layouts");
    fs::remove_dir_all(&folder).expect("the folder of this test");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn bindings_are_fresh() {
    let headers = Headers::read();
    let files = [
        ("bindings/nvte-sys/src/generated.rs", sys(&headers)),
        ("bindings/nvte/src/generated.rs", safe(&headers)),
        ("bindings/python/nvte/_abi.py", ctypes(&headers)),
        ("bindings/python/nvte/_modules.py", python_modules(&headers)),
        ("include/nvte/cpp/modules.hpp", cpp_modules(&headers)),
        ("bindings/layouts.txt", layouts(&headers)),
    ];
    let mut stale: Vec<PathBuf> = Vec::new();
    for (path, text) in files {
        check_fresh(&root().join(path), &text, &mut stale);
    }
    assert!(stale.is_empty(), "stale; run NVTE_BLESS=1 cargo test --test abi twice: {stale:?}");
}
