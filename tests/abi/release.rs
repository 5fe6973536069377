//! The record of what programs that are linked to this library's own functions rely on: `nvtex_abi.txt`, with the
//! signatures, the values of enumerations and the layouts of structs.
//!
//! Its first line is `unreleased VERSION` or `release VERSION`. Before a release the record follows the headers. From
//! the release on the headers may only add to it, until a version that promises nothing to older programs.

use super::{SLICES, check_fresh, declarations, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A struct: its size, its alignment, and each field's offset, size and declaration.
#[derive(Clone, Debug, Default, PartialEq)]
struct Struct {
    size: usize,
    align: usize,
    fields: Vec<(usize, usize, String)>,
}

impl Struct {
    /// Whether callers say how much of it they have, so that it may become longer.
    fn grows(&self) -> bool {
        self.fields.first().is_some_and(|field| field.2 == "size_t struct_size")
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Record {
    released: bool,
    version: String,
    /// The version that brought a function, and its declaration.
    functions: BTreeMap<String, (String, String)>,
    /// Enumeration and name of each number.
    values: BTreeMap<(String, String), i64>,
    structs: BTreeMap<String, Struct>,
}

/// The version without its last number.
fn version() -> String {
    format!("{}.{}", env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"))
}

/// The version whose programs still run: before 1.0 each minor version, then each major one.
fn series(version: &str) -> &str {
    match version.split_once('.') {
        Some((major, _)) if major != "0" => major,
        _ => version,
    }
}

/// The headers that programs include, in the order of `nvte.h`; those of plugins have a record of their own.
fn headers() -> impl Iterator<Item = String> {
    let names = ["types"].into_iter().chain(SLICES.iter().copied());
    names.map(|name| {
        let path = root().join(format!("include/nvte/{name}.h"));
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    })
}

fn without_comments(header: &str) -> String {
    let mut code = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        code += before;
        rest = comment.split_once("*/").expect("closed comment").1;
    }
    let code = code + rest;
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or(line));
    lines.fold(String::new(), |text, line| text + line + "\n")
}

/// Name and body of the structs or enumerations of this library's own in a header without comments.
fn bodies<'a>(code: &'a str, keyword: &str) -> Vec<(String, &'a str)> {
    let start = format!("typedef {keyword} NVTEX");
    let parts = code.split(&start).skip(1);
    let body = |part: &'a str| {
        let (name, rest) = part.split_once('{')?;
        let name = format!("NVTEX{}", name.trim());
        let known = name.chars().all(|c| c.is_alphanumeric() || c == '_');
        known.then_some((name, rest.split_once('}')?.0))
    };
    parts.filter_map(body).collect()
}

/// The declarations of a struct's fields, each in one line.
fn fields(body: &str) -> Vec<String> {
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    body.split(';').map(one_line).filter(|text| !text.is_empty()).collect()
}

/// The name that a field's declaration declares.
fn field_name(declaration: &str) -> &str {
    if let Some((_, pointer)) = declaration.split_once("(*") {
        return pointer.split(')').next().unwrap_or(pointer);
    }
    let head = declaration.split('[').next().unwrap_or(declaration);
    head.rsplit([' ', '*']).next().unwrap_or(head)
}

/// What the headers declare now; the C compiler says where fields lie.
fn current() -> Record {
    let mut record = Record { version: version(), ..Record::default() };
    let mut probe =
        String::from("#include <stdio.h>\n#include \"nvte/nvte.h\"\nint main(void) {\n");
    let mut declared = Vec::new();
    for header in headers() {
        let code = without_comments(&header);
        for (name, signature) in declarations(&header) {
            if name.starts_with("nvtex_") {
                let text = format!("{}({})", signature.returns, signature.params.join(", "));
                record.functions.insert(name, (version(), text));
            }
        }
        for (name, body) in bodies(&code, "enum") {
            for entry in body.split(',').filter_map(|entry| entry.split_once('=')) {
                let value =
                    entry.1.trim().parse().unwrap_or_else(|_| panic!("{name}: {}", entry.1));
                record.values.insert((name.clone(), entry.0.trim().to_owned()), value);
            }
        }
        for (name, body) in bodies(&code, "struct") {
            probe += &format!("  printf(\"%zu %zu\\n\", sizeof({name}), _Alignof({name}));\n");
            for field in fields(body) {
                let part = field_name(&field);
                probe += &format!(
                    "  printf(\"%zu %zu\\n\", offsetof({name}, {part}), sizeof((({name} *)0)->{part}));\n"
                );
            }
            declared.push((name, fields(body)));
        }
    }
    let mut numbers = run(&(probe + "  return 0;\n}\n")).into_iter();
    let mut pair = || numbers.next().expect("a line for each struct and field");
    for (name, declarations) in declared {
        let (size, align) = pair();
        let fields = declarations.into_iter().map(|text| {
            let (at, bytes) = pair();
            (at, bytes, text)
        });
        let fields = fields.collect();
        record.structs.insert(name, Struct { size, align, fields });
    }
    record
}

/// The two numbers in each line that a C program prints.
fn run(program: &str) -> Vec<(usize, usize)> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (folder.join("layouts.c"), folder.join("layouts"));
    fs::write(&source, program).expect("layouts.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compile = Command::new(compiler);
    compile
        .args(["-std=c11", "-I"])
        .arg(root().join("include"))
        .arg(&source)
        .arg("-o")
        .arg(&binary);
    assert!(compile.status().expect("a C compiler").success(), "{}", source.display());
    let output = Command::new(&binary).output().expect("layouts");
    let text = String::from_utf8(output.stdout).expect("numbers");
    let number = |text: &str| text.parse().expect("a number");
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(a, b)| (number(a), number(b)))
        .collect()
}

fn write(record: &Record) -> String {
    let state = if record.released { "release" } else { "unreleased" };
    let mut text = format!("{state} {}\n", record.version);
    for (name, (since, signature)) in &record.functions {
        text += &format!("function {name} {since} {signature}\n");
    }
    for ((kind, name), value) in &record.values {
        text += &format!("value {kind} {name} {value}\n");
    }
    for (name, layout) in &record.structs {
        text += &format!("struct {name} {} {}\n", layout.size, layout.align);
        for (at, size, field) in &layout.fields {
            text += &format!("field {name} {at} {size} {field}\n");
        }
    }
    text
}

fn read(text: &str) -> Record {
    let mut record = Record::default();
    for line in text.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{line}"));
        match words[..] {
            [state @ ("release" | "unreleased"), version] => {
                (record.released, record.version) = (state == "release", version.into());
            }
            ["function", name, since, signature] => {
                record.functions.insert(name.into(), (since.into(), signature.into()));
            }
            ["value", kind, name, value] => {
                let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
                record.values.insert((kind.into(), name.into()), value);
            }
            ["struct", name, size, align] => {
                let layout =
                    Struct { size: number(size), align: number(align), fields: Vec::new() };
                record.structs.insert(name.into(), layout);
            }
            ["field", name, at, rest] => {
                let (size, text) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                let field = (number(at), number(size), text.into());
                record.structs.get_mut(name).unwrap_or_else(|| panic!("{line}")).fields.push(field);
            }
            _ => panic!("nvtex_abi.txt: {line}"),
        }
    }
    record
}

/// All that breaks a program that was built with the headers of `old`.
fn broken(old: &Record, new: &Record) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, (_, was)) in &old.functions {
        match new.functions.get(name) {
            None => wrong.push(format!("{name} is gone")),
            Some((_, is)) if is != was => wrong.push(format!("{name} is {is}, was {was}")),
            Some(_) => {}
        }
    }
    for ((kind, name), was) in &old.values {
        match new.values.get(&(kind.clone(), name.clone())) {
            None => wrong.push(format!("{kind}: {name} is gone")),
            Some(is) if is != was => wrong.push(format!("{kind}: {name} is {is}, was {was}")),
            Some(_) => {}
        }
    }
    for (name, was) in &old.structs {
        let Some(is) = new.structs.get(name) else {
            wrong.push(format!("{name} is gone"));
            continue;
        };
        let reserved = |field: &&(usize, usize, String)| field_name(&field.2) == "reserved";
        let gone = was.fields.iter().filter(|field| !is.fields.contains(field));
        for field in gone.filter(|field| !reserved(field)) {
            wrong.push(format!("{name}: `{}` is not at byte {} any more", field.2, field.0));
        }
        if is.align != was.align {
            wrong.push(format!("{name}: alignment {}, was {}", is.align, was.align));
        }
        let added = is.fields.iter().filter(|field| !was.fields.contains(field));
        // Older programs have set reserved fields to 0. What fills the end of their struct need not be 0.
        let room = was.fields.iter().find(reserved).map_or(0..0, |room| room.0..room.0 + room.1);
        for field in added.filter(|field| field.0 < was.size) {
            if !room.contains(&field.0) || field.0 + field.1 > room.end {
                let text = "begins before the old end and is in no reserved field";
                wrong.push(format!("{name}: `{}` {text}", field.2));
            }
        }
        if is.size < was.size || is.size != was.size && !was.grows() {
            wrong.push(format!("{name}: {} bytes, were {}", is.size, was.size));
        }
    }
    wrong
}

/// The structs that programs fill, with other names: what a program has that was compiled with these headers.
fn snapshot() -> String {
    let suffix = format!("_{}", version().replace('.', "_"));
    let all: Vec<_> = headers().map(|header| without_comments(&header)).collect();
    let all: Vec<_> = all.iter().flat_map(|code| bodies(code, "struct")).collect();
    let names: BTreeSet<_> = all.iter().map(|(name, _)| name.clone()).collect();
    let renamed = |field: &str| {
        let word = |word: &str| match names.contains(word) {
            true => format!("{word}{suffix}"),
            false => word.to_owned(),
        };
        field.split(' ').map(word).collect::<Vec<_>>().join(" ")
    };
    let mut text = format!(
        "/* Generated by tests/abi.rs: the structs that grow, as version {} has them. */\n\
         #include \"nvte/nvte.h\"\n",
        version()
    );
    // In the order of the headers, so that a struct stands before those that hold it.
    for (name, body) in &all {
        text += &format!("\ntypedef struct {name}{suffix} {{\n");
        for field in fields(body) {
            text += &format!("  {};\n", renamed(&field));
        }
        text += &format!("}} {name}{suffix};\n");
    }
    text
}

fn wish() -> String {
    std::env::var("NVTE_BLESS").unwrap_or_default()
}

/// Writes or compares the record and the snapshot beside it, which only change before a release.
fn keep(path: &Path, record: &Record, stale: &mut Vec<PathBuf>) {
    let name = format!("nvtex_{}.h", record.version.replace('.', "_"));
    let header = root().join("capi-tests/api/old").join(name);
    if wish() == "release" {
        fs::write(path, write(record)).expect("nvtex_abi.txt");
        fs::write(header, snapshot()).expect("the snapshot");
    } else {
        check_fresh(path, &write(record), stale);
        check_fresh(&header, &snapshot(), stale);
    }
}

#[test]
fn what_programs_rely_on_only_grows() {
    let path = root().join("tests/nvtex_abi.txt");
    let old = fs::read_to_string(&path).map(|text| read(&text)).unwrap_or_default();
    let mut new = current();
    let mut stale = Vec::new();
    if old.released && series(&old.version) == series(&new.version) {
        let wrong = broken(&old, &new);
        assert!(wrong.is_empty(), "programs that exist would break:\n{}", wrong.join("\n"));
        for (name, (since, _)) in &old.functions {
            new.functions.get_mut(name).expect("not gone").0.clone_from(since);
        }
    }
    if wish() == "release" {
        new.released = true;
        keep(&path, &new, &mut stale);
    } else if !old.released {
        keep(&path, &new, &mut stale);
    }
    assert!(stale.is_empty(), "stale; run NVTE_BLESS=1 cargo test --test abi: {stale:?}");
}

#[test]
fn finds_what_breaks_programs() {
    const OLD: &str = "release 1.2\nfunction nvtex_a 1.0 void(int)\nvalue NVTEXKind NVTEX_ONE 1\n\
                       struct NVTEXConfig 16 8\nfield NVTEXConfig 0 8 size_t struct_size\n\
                       field NVTEXConfig 8 4 int32_t count\nstruct NVTEXPair 8 4\n\
                       field NVTEXPair 0 4 int32_t x\nfield NVTEXPair 4 4 int32_t y\n";
    let old = read(OLD);
    assert_eq!(write(&old), OLD);
    let changed = |from: &str, to: &str| {
        assert!(OLD.contains(from), "{from}");
        broken(&old, &read(&OLD.replace(from, to)))
    };
    assert!(broken(&old, &old).is_empty());
    let more = "value NVTEXKind NVTEX_ONE 1\nvalue NVTEXKind NVTEX_TWO 2\n";
    assert!(changed("value NVTEXKind NVTEX_ONE 1\n", more).is_empty());
    let grown = "int32_t count\nfield NVTEXConfig 16 8 size_t room\n";
    let longer =
        OLD.replace("NVTEXConfig 16 8", "NVTEXConfig 24 8").replace("int32_t count\n", grown);
    assert!(broken(&old, &read(&longer)).is_empty());
    assert_eq!(changed("void(int)", "void(long)"), ["nvtex_a is void(long), was void(int)"]);
    assert_eq!(changed("function nvtex_a 1.0 void(int)\n", ""), ["nvtex_a is gone"]);
    assert_eq!(changed("NVTEX_ONE 1", "NVTEX_ONE 3"), ["NVTEXKind: NVTEX_ONE is 3, was 1"]);
    let inside = "int32_t count\nfield NVTEXConfig 12 4 int32_t more\n";
    assert_eq!(
        changed("int32_t count\n", inside),
        ["NVTEXConfig: `int32_t more` begins before the old end and is in no reserved field"]
    );
    assert_eq!(
        changed("field NVTEXConfig 8 4 int32_t count\n", ""),
        ["NVTEXConfig: `int32_t count` is not at byte 8 any more"]
    );
    let reserved = read(&OLD.replace("int32_t count\n", "int32_t count[1]\n").replace(
        "field NVTEXPair 0 4 int32_t x\nfield NVTEXPair 4 4 int32_t y",
        "field NVTEXPair 0 8 int32_t reserved[2]",
    ));
    let taken = |fields| {
        let text = write(&reserved).replace("field NVTEXPair 0 8 int32_t reserved[2]", fields);
        broken(&reserved, &read(&text))
    };
    assert!(
        taken("field NVTEXPair 0 4 int32_t x\nfield NVTEXPair 4 4 int32_t reserved[1]").is_empty()
    );
    assert_eq!(taken("field NVTEXPair 4 8 int64_t x").len(), 1);
    assert_eq!(changed("NVTEXPair 8 4", "NVTEXPair 12 4"), ["NVTEXPair: 12 bytes, were 8"]);
    assert_eq!((series("0.3"), series("1.3")), ("0.3", "1"));
}
