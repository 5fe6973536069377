//! What plugins read: the header of the versions, sizes and features of operators, a C program that checks all
//! offsets, and `tests/backend_abi.json`, the record of everything that may only grow.

use crate::{backend_sources, check_fresh, root};
use nvte::backend::args::OPERATORS;
use nvte::backend::args::plugin::{NVTEX_PLUGIN_ABI_MAJOR, NVTEX_PLUGIN_ABI_MINOR};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::fs;

const HEAD: &str = "\
#ifndef NVTE_BACKEND_OPERATORS_H
#define NVTE_BACKEND_OPERATORS_H

/* Generated from src/backend/operators.rs and src/backend/args by tests/abi.rs. */

#include \"nvte/types.h\"
";

const TOOLS: &str = "
/**
 * Fails to compile unless enumerations and structs have the sizes that they have in the library: options such as
 * -fshort-enums and -fpack-struct change them.
 */
#ifdef __cplusplus
#define NVTEX_ASSERT_SIZE(TYPE, BYTES) \\
  static_assert(sizeof(TYPE) == BYTES, #TYPE \" has another size than in the library\")
#else
#define NVTEX_ASSERT_SIZE(TYPE, BYTES) \\
  _Static_assert(sizeof(TYPE) == BYTES, #TYPE \" has another size than in the library\")
#endif

";

const OPERATORS_HEAD: &str = "
/*
 * Of each operator NVTEX_OP_<NAME>_VERSION, the version of its arguments as major << 16 | minor, their size, and
 * the bits of its features.
 */
";

/// The argument struct of an operator.
fn arguments(name: &str) -> String {
    let words = name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]);
    format!("{}Args", words.collect::<String>())
}

/// A text of a constant of the library.
fn text(pointer: *const c_char) -> &'static str {
    // SAFETY: the library's texts are constants that end with a NUL.
    unsafe { CStr::from_ptr(pointer) }.to_str().expect("ASCII")
}

/// The texts of an array of the library.
fn texts(array: *const *const c_char, count: usize) -> Vec<&'static str> {
    // SAFETY: the library's arrays are constants of as many elements.
    (0..count).map(|i| text(unsafe { *array.add(i) })).collect()
}

/// Structs and enumerations between the library and its own kernels, which no plugin sees.
const INTERNAL: &[&str] =
    &["Outcome", "BackendStatus", "AttentionPlan", "DeviceProperties", "StatusNumber"];

/// A struct in the layout of C.
struct Layout {
    size: usize,
    align: usize,
    /// Name, type and offset.
    fields: Vec<(String, String, usize)>,
}

/// What the files of `src/backend/args` declare.
struct Declared {
    /// The fields of each struct, with their types.
    structs: BTreeMap<String, Vec<(String, String)>>,
    /// The values of each enumeration.
    enums: BTreeMap<String, Vec<(String, i64)>>,
}

/// The parts of a text between commas that no bracket encloses, without white space at their ends.
fn parts(text: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in text.replace("->", "RETURNS").chars() {
        match c {
            '(' | '[' | '<' => depth += 1,
            ')' | ']' | '>' => depth -= 1,
            _ => {}
        }
        match c {
            ',' if depth == 0 => parts.push(String::new()),
            c => parts.last_mut().expect("a part").push(c),
        }
    }
    // However rustfmt breaks the lines of a type.
    let words = |part: &String| {
        let line = part.split_whitespace().collect::<Vec<_>>().join(" ");
        let line = line.replace("< ", "<").replace(", >", ">").replace("( ", "(");
        line.replace(", )", ")").replace("RETURNS", "->")
    };
    let parts = parts.iter().map(words);
    parts.filter(|part| !part.is_empty()).collect()
}

/// The bodies of the items that `keyword` introduces in a source text, without comments.
fn bodies<'a>(text: &'a str, keyword: &'a str) -> impl Iterator<Item = (String, String)> + 'a {
    let start = format!("\npub {keyword} ");
    let starts = text.match_indices(&start).map(|(at, start)| at + start.len());
    let starts: Vec<_> = starts.collect();
    starts.into_iter().filter_map(move |at| {
        let (name, rest) = text[at..].split_once(" {\n")?;
        let lines = rest.split_once("\n}")?.0.lines();
        let code = lines.filter(|line| !line.trim_start().starts_with("//"));
        Some((name.to_owned(), code.collect::<Vec<_>>().join(" ")))
    })
}

fn declared(sources: impl Iterator<Item = String>) -> Declared {
    let (mut structs, mut enums) = (BTreeMap::new(), BTreeMap::new());
    for text in sources {
        for (name, body) in bodies(&text, "struct") {
            let field = |part: String| {
                let part = part.strip_prefix("pub ").expect("a public field");
                let (name, kind) = part.split_once(": ").expect("a field");
                (name.to_owned(), kind.to_owned())
            };
            structs.insert(name, parts(&body).into_iter().map(field).collect());
        }
        for (name, body) in bodies(&text, "enum") {
            let value = |part: String| {
                let (name, value) = part.split_once(" = ").expect("a value");
                (name.to_owned(), value.parse().expect("a number"))
            };
            enums.insert(name, parts(&body).into_iter().map(value).collect());
        }
    }
    for name in INTERNAL {
        enums.remove(*name);
    }
    Declared { structs, enums }
}

impl Declared {
    /// Size and alignment of a type.
    fn measure(&self, kind: &str) -> (usize, usize) {
        if let Some(array) = kind.strip_prefix('[') {
            let (element, count) = array.trim_end_matches(']').split_once("; ").expect("an array");
            let (size, align) = self.measure(element);
            return (size * count.parse::<usize>().expect("a number"), align);
        }
        let bytes = match kind {
            "bool" | "u8" => 1,
            "i32" | "u32" | "f32" | "c_int" | "StatusNumber" => 4,
            "NVTEDType" | "NVTEScalingMode" | "NVTE_Norm_Type" => 4,
            "i64" | "u64" | "usize" | "cudaStream_t" => 8,
            _ if kind.starts_with("*const ") || kind.starts_with("*mut ") => 8,
            _ if kind.starts_with("Option<unsafe extern \"C\" fn(") => 8,
            _ if self.enums.contains_key(kind) => 4,
            _ => {
                let layout = self.layout(kind);
                return (layout.size, layout.align);
            }
        };
        (bytes, bytes)
    }

    fn layout(&self, name: &str) -> Layout {
        let fields = self.structs.get(name).unwrap_or_else(|| panic!("{name}: unknown type"));
        let mut layout = Layout { size: 0, align: 1, fields: Vec::new() };
        for (name, kind) in fields {
            let (size, align) = self.measure(kind);
            let offset = layout.size.next_multiple_of(align);
            layout.fields.push((name.clone(), kind.clone(), offset));
            layout.size = offset + size;
            layout.align = layout.align.max(align);
        }
        layout.size = layout.size.next_multiple_of(layout.align);
        layout
    }
}

/// The structs that plugins see, those of the interface and those of operators, apart.
fn seen() -> (Declared, Vec<String>, Vec<String>) {
    let interface =
        fs::read_to_string(root().join("src/backend/args/plugin.rs")).expect("plugin.rs");
    let own: Vec<_> = bodies(&interface, "struct").map(|(name, _)| name).collect();
    let declared = declared(backend_sources().into_values().chain([interface]));
    let others = declared.structs.keys();
    let others = others.filter(|name| !own.contains(name) && !INTERNAL.contains(&name.as_str()));
    let others = others.cloned().collect();
    (declared, own, others)
}

/// `backend/operators.h`.
pub fn operators_header() -> String {
    let (declared, _, structs) = seen();
    let mut header = HEAD.to_owned();
    for family in backend_sources().keys() {
        header += &format!("#include \"nvte/backend/{family}.h\"\n");
    }
    header += TOOLS;
    for kind in ["NVTEDType", "NVTEScalingMode", "NVTE_Norm_Type"] {
        header += &format!("NVTEX_ASSERT_SIZE({kind}, 4);\n");
    }
    for name in declared.enums.keys() {
        header += &format!("NVTEX_ASSERT_SIZE(NVTEX{name}, 4);\n");
    }
    for name in &structs {
        header += &format!("NVTEX_ASSERT_SIZE(NVTEX{name}, {});\n", declared.layout(name).size);
    }
    header += OPERATORS_HEAD;
    for info in OPERATORS {
        let name = text(info.name);
        let (upper, arguments) = (name.to_uppercase(), arguments(name));
        header += &format!(
            "\n#define NVTEX_OP_{upper}_VERSION 0x{:x}u\n\
             #define NVTEX_OP_{upper}_SIZE sizeof(NVTEX{arguments})\n",
            info.version
        );
        for (bit, feature) in texts(info.features, info.feature_count).iter().enumerate() {
            header += &format!("#define NVTEX_{upper}_{feature} (UINT64_C(1) << {bit})\n");
        }
    }
    header + "\n#endif  /* NVTE_BACKEND_OPERATORS_H */\n"
}

/// The same assertions for the structs of `plugin.h`.
pub fn interface_sizes() -> String {
    let (declared, interface, _) = seen();
    let line = |name: &String| {
        format!("NVTEX_ASSERT_SIZE(NVTEX{name}, {});\n", declared.layout(name).size)
    };
    interface.iter().map(line).collect()
}

/// Everything that plugins rely on, as it is now; all of it appears to be there since the first minor version.
fn current() -> Value {
    let (declared, interface, structs) = seen();
    let open = |name: &String, version: [u32; 2]| {
        let layout = declared.layout(name);
        let fields = layout.fields.iter().map(|(name, kind, at)| json!([name, kind, at, 0]));
        json!({
            "version": version,
            "size": layout.size,
            "fields": fields.collect::<Vec<_>>(),
            "features": [],
            "variants": [],
        })
    };
    let (mut growing, mut closed) = (Map::new(), Map::new());
    for info in OPERATORS {
        let name = text(info.name);
        let version = [info.version >> 16, info.version & 0xffff];
        let mut entry = open(&arguments(name), version);
        assert_eq!(entry["size"], info.args_size, "{name}: size that follows from the fields");
        let features = texts(info.features, info.feature_count);
        entry["operator"] = json!(name);
        entry["features"] = features.iter().map(|feature| json!([feature, 0])).collect();
        entry["variants"] = json!(texts(info.variants, info.variant_count));
        growing.insert(arguments(name), entry);
    }
    for name in &interface {
        growing.insert(name.clone(), open(name, [NVTEX_PLUGIN_ABI_MAJOR, NVTEX_PLUGIN_ABI_MINOR]));
    }
    for name in structs.iter().filter(|name| !growing.contains_key(*name)) {
        let layout = declared.layout(name);
        let fields: Vec<_> =
            layout.fields.iter().map(|(name, kind, at)| json!([name, kind, at])).collect();
        closed.insert(name.clone(), json!({ "size": layout.size, "fields": fields }));
    }
    json!({
        "abi_major": NVTEX_PLUGIN_ABI_MAJOR,
        "enums": declared.enums,
        "closed": closed,
        "open": growing,
    })
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The list of an entry as it is to be recorded: what was there with its minor version, what is new with `minor`.
/// Without `minor` nothing may be new. An element is a text, or an array that ends with its minor version.
fn grown(old: &Value, new: &Value, minor: Option<u64>) -> Result<Value, String> {
    let (old, new) = (array(old), array(new));
    let bare = |value: &Value| match value.as_array() {
        Some(parts) => json!(parts[..parts.len() - 1]),
        None => value.clone(),
    };
    for (i, was) in old.iter().enumerate() {
        match new.get(i) {
            None => return Err(format!("{} is gone", bare(was))),
            Some(is) if bare(is) != bare(was) => {
                return Err(format!("{} is where {} was; append", bare(is), bare(was)));
            }
            Some(_) => {}
        }
    }
    let added = new[old.len()..].iter().map(|is| match (minor, is.as_array()) {
        (None, _) => Err(format!("{} is new: raise the minor version", bare(is))),
        (Some(minor), Some(parts)) => {
            let mut parts = parts.clone();
            *parts.last_mut().expect("a minor version") = json!(minor);
            Ok(Value::from(parts))
        }
        (Some(_), None) => Ok(is.clone()),
    });
    old.iter().cloned().map(Ok).chain(added).collect()
}

/// An open struct as it is to be recorded. Majors of 0 promise nothing.
fn open_entry(old: &Value, new: &Value) -> Result<Value, String> {
    let version = |entry: &Value, part: usize| entry["version"][part].as_u64().unwrap_or(0);
    let (was, is) = (old, new);
    let (major, minor) = (version(is, 0), version(is, 1));
    if (major, minor) < (version(was, 0), version(was, 1)) {
        return Err(format!("version {} is older than {}", is["version"], was["version"]));
    }
    let since = match major > version(was, 0) || major == 0 {
        true => return Ok(is.clone()),
        false => (minor > version(was, 1)).then_some(minor),
    };
    let mut entry = is.clone();
    for list in ["fields", "features", "variants"] {
        entry[list] =
            grown(&was[list], &is[list], since).map_err(|why| format!("{list}: {why}"))?;
    }
    let first_new = array(&is["fields"]).get(array(&was["fields"]).len());
    match first_new {
        // What fills the end of the old struct is not 0 in memory that an older library has made.
        Some(field) if field[2].as_u64() < was["size"].as_u64() => Err(format!(
            "fields: {} begins before the end of the struct as it was, {}",
            field[0], was["size"]
        )),
        None if is["size"] != was["size"] => {
            Err(format!("size: {}, was {}", is["size"], was["size"]))
        }
        _ => Ok(entry),
    }
}

/// The record as it is to be, from what it was and what the sources say, or all that breaks its rules. Another major
/// of the interface begins a new one.
fn record(old: &Value, new: &Value) -> Result<Value, Vec<String>> {
    if old["abi_major"] != new["abi_major"] {
        return Ok(new.clone());
    }
    let mut wrong = Vec::new();
    let mut result = new.clone();
    for kind in ["enums", "closed", "open"] {
        for (name, was) in old[kind].as_object().into_iter().flatten() {
            let is = &new[kind][name];
            let entry = match kind {
                _ if is.is_null() => Err("is gone".into()),
                "open" => open_entry(was, is),
                "closed" if is != was => {
                    Err("has changed, but others have it inside of them".into())
                }
                "enums" if !array(is).starts_with(array(was)) => Err("has other values".into()),
                _ => Ok(is.clone()),
            };
            match entry {
                Ok(entry) => result[kind][name] = entry,
                Err(why) => wrong.push(format!("{name}: {why}")),
            }
        }
    }
    if wrong.is_empty() { Ok(result) } else { Err(wrong) }
}

/// JSON with a line for each array of plain values.
fn write(value: &Value, indent: usize, to: &mut String) {
    let line = format!("\n{}", " ".repeat(indent + 1));
    let end = format!("\n{}", " ".repeat(indent));
    match value {
        Value::Array(list) if list.iter().any(|v| v.is_array() || v.is_object()) => {
            for (i, element) in list.iter().enumerate() {
                *to += if i == 0 { "[" } else { "," };
                *to += &line;
                write(element, indent + 1, to);
            }
            *to += &(end + "]");
        }
        Value::Object(map) if !map.is_empty() => {
            for (i, (name, element)) in map.iter().enumerate() {
                *to += if i == 0 { "{" } else { "," };
                *to += &format!("{line}{}: ", json!(name));
                write(element, indent + 1, to);
            }
            *to += &(end + "}");
        }
        plain => *to += &plain.to_string(),
    }
}

#[test]
fn what_plugins_rely_on_only_grows() {
    let path = root().join("tests/backend_abi.json");
    let old = fs::read_to_string(&path)
        .map_or(Value::Null, |text| serde_json::from_str(&text).expect("backend_abi.json: JSON"));
    let record = record(&old, &current()).unwrap_or_else(|wrong| {
        panic!(
            "plugins that exist would read the wrong bytes:\n{}\nRaise the major version of the operator, or of \
             the interface (NVTEX_PLUGIN_ABI_MAJOR) where a struct or enumeration is shared.",
            wrong.join("\n")
        )
    });
    let mut text = String::new();
    write(&record, 0, &mut text);
    let mut stale = Vec::new();
    check_fresh(&path, &(text + "\n"), &mut stale);
    assert!(stale.is_empty(), "stale; run NVTE_BLESS=1 cargo test --test abi: {stale:?}");
}

/// A C program in which the compiler checks the offsets that the record has.
#[test]
fn layout_program_is_fresh() {
    let mut text = String::from(
        "/* Generated by tests/abi.rs: the compiler checks the offset of every field that plugins read. */\n\
         #include <stdio.h>\n\n#include \"nvte/plugin.h\"\n\n\
         #define AT(TYPE, FIELD, OFFSET) \\\n  \
         _Static_assert(offsetof(TYPE, FIELD) == OFFSET, #TYPE \".\" #FIELD)\n\n",
    );
    let (declared, interface, structs) = seen();
    let mut count = 0;
    for name in interface.iter().chain(&structs) {
        for (field, _, at) in declared.layout(name).fields {
            text += &format!("AT(NVTEX{name}, {field}, {at});\n");
            count += 1;
        }
    }
    text += &format!("\nint main(void) {{\n  printf(\"{count} fields\\n\");\n  return 0;\n}}\n");
    let mut stale = Vec::new();
    check_fresh(&root().join("capi-tests/plugin/layout.c"), &text, &mut stale);
    assert!(stale.is_empty(), "stale; run NVTE_BLESS=1 cargo test --test abi: {stale:?}");
}

/// A record of one struct of each kind.
fn example() -> Value {
    json!({
        "abi_major": 1,
        "enums": { "Mask": [["NONE", 0], ["CAUSAL", 1]] },
        "closed": { "Group": { "size": 16, "fields": [["count", "usize", 0], ["dims", "*const i64", 8]] } },
        "open": { "SoftmaxArgs": {
            "version": [1, 2],
            "size": 16,
            "fields": [["input", "*const c_void", 0, 0], ["dtype", "NVTEDType", 8, 1]],
            "features": [["MASK", 0], ["SINK", 2]],
            "variants": ["softmax.forward"],
        } },
    })
}

#[test]
fn additions_are_recorded_with_the_version_that_brings_them() {
    let old = example();
    assert_eq!(record(&old, &old), Ok(old.clone()));
    let mut new = old.clone();
    new["enums"]["Mask"] = json!([["NONE", 0], ["CAUSAL", 1], ["WINDOW", 2]]);
    let entry = &mut new["open"]["SoftmaxArgs"];
    entry["version"] = json!([1, 3]);
    entry["size"] = json!(24);
    // The sources do not know since when a field is there.
    entry["fields"] = json!([
        ["input", "*const c_void", 0, 0],
        ["dtype", "NVTEDType", 8, 0],
        ["bias", "*const c_void", 16, 0]
    ]);
    entry["features"] = json!([["MASK", 0], ["SINK", 0], ["BIAS", 0]]);
    entry["variants"] = json!(["softmax.forward", "softmax.backward"]);
    let recorded = record(&old, &new).expect("additions");
    let entry = &recorded["open"]["SoftmaxArgs"];
    assert_eq!(entry["fields"][1], json!(["dtype", "NVTEDType", 8, 1]));
    assert_eq!(entry["fields"][2], json!(["bias", "*const c_void", 16, 3]));
    assert_eq!(entry["features"], json!([["MASK", 0], ["SINK", 2], ["BIAS", 3]]));
    assert_eq!(recorded["enums"]["Mask"][2], json!(["WINDOW", 2]));
}

#[test]
fn whatever_else_changes_is_refused() {
    let refused = |change: &dyn Fn(&mut Value), why: &str| {
        let (old, mut new) = (example(), example());
        change(&mut new);
        let wrong = record(&old, &new).expect_err(why);
        assert!(wrong.len() == 1 && wrong[0].contains(why), "{wrong:?}: expected {why}");
    };
    let softmax = |new: &mut Value, field: &str, value: Value| {
        new["open"]["SoftmaxArgs"][field] = value;
    };
    let (input, dtype) =
        (json!(["input", "*const c_void", 0, 0]), json!(["dtype", "NVTEDType", 8, 1]));
    let bias = |at: u64| json!(["bias", "*const c_void", at, 0]);
    refused(&|new| softmax(new, "fields", json!([input, bias(8), dtype])), "is where");
    refused(&|new| softmax(new, "fields", json!([input])), "is gone");
    refused(&|new| softmax(new, "fields", json!([input, ["dtype", "u32", 8, 1]])), "is where");
    refused(&|new| softmax(new, "fields", json!([input, dtype, bias(16)])), "raise the minor");
    refused(&|new| softmax(new, "features", json!([["MASK", 0], ["BIAS", 2]])), "is where");
    refused(
        &|new| softmax(new, "features", json!([["MASK", 0], ["SINK", 2], ["BIAS", 0]])),
        "raise the minor",
    );
    refused(&|new| softmax(new, "variants", json!([])), "is gone");
    refused(&|new| softmax(new, "size", json!(32)), "size");
    refused(&|new| softmax(new, "version", json!([1, 1])), "older");
    let in_the_padding = |new: &mut Value| {
        softmax(new, "version", json!([1, 3]));
        softmax(new, "fields", json!([input, dtype, ["flag", "bool", 12, 0]]));
    };
    refused(&in_the_padding, "before the end");
    refused(&|new| new["closed"]["Group"]["size"] = json!(24), "inside of them");
    refused(&|new| new["enums"]["Mask"] = json!([["NONE", 0], ["CAUSAL", 2]]), "other values");
    refused(
        &|new| _ = new["open"].as_object_mut().expect("a map").remove("SoftmaxArgs"),
        "is gone",
    );
}

#[test]
fn another_major_version_begins_anew() {
    let mut new = example();
    new["open"]["SoftmaxArgs"]["version"] = json!([2, 0]);
    new["open"]["SoftmaxArgs"]["fields"] = json!([]);
    assert_eq!(record(&example(), &new), Ok(new.clone()));
    new["closed"]["Group"]["size"] = json!(24);
    assert!(record(&example(), &new).is_err());
    new["abi_major"] = json!(2);
    assert_eq!(record(&example(), &new), Ok(new.clone()));
}
