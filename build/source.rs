//! The text of kernels, by which their objects are found again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A source with all headers of ours that it includes in their places, wherever these lie. Comments and
/// empty lines count only where the object says which line an instruction comes from.
pub fn flattened(source: &Path, folders: &[PathBuf; 2], with_lines: bool) -> String {
    let mut text = String::new();
    append(source, folders, with_lines, &mut BTreeSet::new(), &mut text);
    text
}

fn append(
    file: &Path,
    folders: &[PathBuf; 2],
    with_lines: bool,
    seen: &mut BTreeSet<PathBuf>,
    flat: &mut String,
) {
    if !seen.insert(file.to_owned()) {
        return;
    }
    let text =
        fs::read_to_string(file).unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display()));
    let text = if with_lines { text } else { without_comments(&text) };
    for line in text.lines() {
        let name = line.strip_prefix("#include \"").and_then(|rest| rest.split('"').next());
        let header = name.and_then(|name| {
            let beside = file.parent().unwrap().join(name);
            let others = folders.iter().map(|folder| folder.join(name));
            [beside].into_iter().chain(others).find(|path| path.is_file())
        });
        match header {
            Some(header) => append(&header, folders, with_lines, seen, flat),
            None => {
                flat.push_str(line);
                flat.push('\n');
            }
        }
    }
}

/// C++ without comments, empty lines and the spaces around a line.
fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['/', '"', '\'']) {
        let (before, tail) = rest.split_at(at);
        code.push_str(before);
        let length = if tail.starts_with("//") {
            tail.find('\n').unwrap_or(tail.len())
        } else if tail.starts_with("/*") {
            code.push(' ');
            tail.find("*/").map_or(tail.len(), |end| end + 2)
        } else {
            // A quote may not begin a literal (`1'000`): what follows is kept either way.
            let length = literal(tail);
            code.push_str(&tail[..length]);
            length
        };
        rest = &tail[length..];
    }
    code.push_str(rest);
    let lines = code.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

/// Bytes of the literal, or else of the one character, that `text` starts with.
fn literal(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut escaped = false;
    for (at, &byte) in text.as_bytes().iter().enumerate().skip(1) {
        match byte {
            _ if quote == b'/' => return 1,
            b'\n' => return 1,
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if byte == quote => return at + 1,
            _ => {}
        }
    }
    1
}

/// The files of an extension in a folder and in those below.
pub fn find_files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for path in entries.map(|entry| entry.unwrap().path()) {
        match path.is_dir() {
            true => find_files(&path, extension, found),
            false if path.extension().is_some_and(|e| e == extension) => found.push(path),
            false => {}
        }
    }
}
