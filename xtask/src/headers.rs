//! Every public header compiles alone, and all of them together in two orders, as C11 and as C++17;
//! the classes of C++20 as C++20.

use crate::report::Report;
use crate::tree::{self, Tree};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, thread};

struct Language {
    name: &'static str,
    variable: &'static str,
    compiler: &'static str,
    flags: [&'static str; 3],
    /// Of the headers that it is for.
    extension: &'static str,
}

const LANGUAGES: [Language; 3] = [
    Language {
        name: "C11",
        variable: "CC",
        compiler: "cc",
        flags: ["-std=c11", "-x", "c"],
        extension: "h",
    },
    Language {
        name: "C++17",
        variable: "CXX",
        compiler: "c++",
        flags: ["-std=c++17", "-x", "c++"],
        extension: "h",
    },
    Language {
        name: "C++20",
        variable: "CXX",
        compiler: "c++",
        flags: ["-std=c++20", "-x", "c++"],
        extension: "hpp",
    },
];

/// How the headers of the kit that judges plugins begin, which are for C alone.
const KIT: &str = "conform";

pub fn run(tree: &Tree, report: &mut Report) -> Result<()> {
    let include = tree.root.join("include");
    for language in &LANGUAGES {
        let mut headers = tree::files(&include, &[language.extension])?;
        // These need POSIX, and what they say is compiled with the program that includes them.
        let of_kit = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(KIT))
        };
        headers.retain(|path| !of_kit(path));
        if language.name == "C11" {
            headers.retain(|path| !path.starts_with(include.join("nvte/cpp")));
        }
        let relative =
            |path: &PathBuf| path.strip_prefix(&include).unwrap_or(path).display().to_string();
        let mut checks: Vec<(String, Vec<&PathBuf>)> =
            headers.iter().map(|header| (relative(header), vec![header])).collect();
        checks.push(("all headers in order".into(), headers.iter().collect()));
        checks.push(("all headers in reverse order".into(), headers.iter().rev().collect()));
        let next = AtomicUsize::new(0);
        let worker = || -> Result<Vec<(usize, Output)>> {
            let mut done = Vec::new();
            while let index = next.fetch_add(1, Ordering::Relaxed)
                && let Some((_, headers)) = checks.get(index)
            {
                done.push((index, compile(tree, language, &include, headers)?));
            }
            Ok(done)
        };
        let mut results = thread::scope(|scope| {
            let count = thread::available_parallelism().map_or(1, |n| n.get());
            let workers: Vec<_> = (0..count).map(|_| scope.spawn(worker)).collect();
            let results = workers.into_iter().map(|w| w.join().expect("header check"));
            results.collect::<Result<Vec<_>>>()
        })?
        .concat();
        results.sort_by_key(|(index, _)| *index);
        for (index, output) in results {
            let name = format!("{} as {}", checks[index].0, language.name);
            if !output.status.success() {
                eprint!("{name}:\n{}", String::from_utf8_lossy(&output.stderr));
            }
            report.check(name, output.status.success());
        }
    }
    Ok(())
}

fn compile(
    tree: &Tree,
    language: &Language,
    include: &Path,
    headers: &[&PathBuf],
) -> Result<Output> {
    let compiler = env::var(language.variable).unwrap_or_else(|_| language.compiler.to_owned());
    let mut command = tree.command(&compiler);
    command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"]).arg(include);
    for header in headers {
        command.arg("-include").arg(header);
    }
    command.args(language.flags).arg("/dev/null").output().with_context(|| compiler)
}
