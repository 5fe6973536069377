//! Every public header compiles alone, and every two of them together, as C11 and as C++17.

use crate::report::{Outcome, Report};
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
}

const LANGUAGES: [Language; 2] = [
    Language { name: "C11", variable: "CC", compiler: "cc", flags: ["-std=c11", "-x", "c"] },
    Language {
        name: "C++17",
        variable: "CXX",
        compiler: "c++",
        flags: ["-std=c++17", "-x", "c++"],
    },
];

pub fn run(tree: &Tree, report: &mut Report) -> Result<()> {
    let include = tree.root.join("include");
    for language in &LANGUAGES {
        let mut headers = tree::files(&include, &["h"])?;
        if language.name == "C11" {
            headers.retain(|path| !path.starts_with(include.join("nvte/cpp")));
        }
        let next = AtomicUsize::new(0);
        // One worker takes a header with all those after it.
        let worker = || -> Result<Vec<(usize, Option<String>)>> {
            let mut done = Vec::new();
            loop {
                let first = next.fetch_add(1, Ordering::Relaxed);
                if first >= headers.len() {
                    return Ok(done);
                }
                done.push((first, check(tree, language, &include, &headers[first..])?));
            }
        };
        let mut results = thread::scope(|scope| {
            let count = thread::available_parallelism().map_or(1, |n| n.get());
            let workers: Vec<_> = (0..count).map(|_| scope.spawn(worker)).collect();
            let results = workers.into_iter().map(|w| w.join().expect("header check"));
            results.collect::<Result<Vec<_>>>()
        })?
        .concat();
        results.sort();
        for (index, failure) in results {
            let header = headers[index].strip_prefix(&include).expect("under include");
            let outcome = match failure {
                None => Outcome::Pass,
                Some(text) => {
                    eprint!("{text}");
                    Outcome::Fail
                }
            };
            report.add(format!("{} as {}", header.display(), language.name), outcome);
        }
    }
    Ok(())
}

/// The first header alone, then before each of the others; the text of the first failure.
fn check(
    tree: &Tree,
    language: &Language,
    include: &Path,
    headers: &[PathBuf],
) -> Result<Option<String>> {
    let first = &headers[0];
    for second in headers {
        let pair = if second == first { vec![first] } else { vec![first, second] };
        let output = compile(tree, language, include, &pair)?;
        if !output.status.success() {
            let names: Vec<_> = pair.iter().map(|path| path.display().to_string()).collect();
            let errors = String::from_utf8_lossy(&output.stderr);
            return Ok(Some(format!("{} as {}:\n{errors}", names.join(" and "), language.name)));
        }
    }
    Ok(None)
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
