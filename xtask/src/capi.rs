//! The C and C++ programs of capi-tests/, built by CMake against an installed prefix.

use crate::process;
use crate::report::{Outcome, Report};
use crate::setup;
use crate::tree::Tree;
use anyhow::Result;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::thread;

/// Configures the CMake project in `source`, which finds nvte in `prefix`, and builds these targets of
/// it, or all if none is named.
pub fn build(
    tree: &Tree,
    source: &Path,
    name: &str,
    prefix: &Path,
    options: &[&str],
    targets: &[&str],
) -> Result<PathBuf> {
    let dir = tree.target.join(name);
    let cmake = setup::cmake(tree)?;
    let mut configure = tree.command(&cmake);
    configure.arg("-S").arg(source).arg("-B").arg(&dir).args(["-G", "Ninja"]);
    configure.arg(define("CMAKE_MAKE_PROGRAM", &setup::ninja(tree)?));
    configure.arg(define("CMAKE_PREFIX_PATH", prefix));
    configure.arg("-DCMAKE_BUILD_TYPE=Release").args(options);
    process::run(&format!("configure {name}"), &mut configure)?;
    let mut build = tree.command(&cmake);
    build.arg("--build").arg(&dir);
    if !targets.is_empty() {
        build.arg("--target").args(targets);
    }
    process::run(&format!("build {name}"), &mut build)?;
    Ok(dir)
}

fn define(variable: &str, value: &Path) -> String {
    format!("-D{variable}={}", value.display())
}

/// Runs the tests of a build folder, each of them once on each backend.
pub fn ctest(tree: &Tree, dir: &Path, report: &mut Report) -> Result<()> {
    let ctest = setup::cmake(tree)?.with_file_name("ctest");
    let jobs = thread::available_parallelism().map_or(1, |n| n.get()).to_string();
    let mut command = tree.command(ctest);
    command.args(["-V", "--parallel", &jobs]).arg("--test-dir").arg(dir);
    let output = process::capture("ctest", &mut command)?;
    let results = parse(&output.text);
    // A verdict that this program did not understand must not pass.
    if results.is_empty() || output.success == results.iter().any(TestResult::failed) {
        eprint!("{}", output.text);
        report.check("ctest", false);
    }
    for result in results {
        if result.failed() {
            eprint!("{}", result.output);
        }
        report.add(result.name, result.outcome);
    }
    Ok(())
}

struct TestResult {
    name: String,
    outcome: Outcome,
    output: String,
}

impl TestResult {
    fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::Fail)
    }
}

/// Reads `ctest -V`: output lines start with the test's number, and each test ends with
/// ` 3/12 Test  #3: cast.cuda ....***Skipped   0.01 sec`.
fn parse(text: &str) -> Vec<TestResult> {
    let mut results = Vec::new();
    let mut outputs: HashMap<&str, String> = HashMap::new();
    for line in text.lines() {
        let line = line.trim_start();
        if let Some((number, rest)) = line.split_once(':')
            && number.parse::<u32>().is_ok()
        {
            let output = outputs.entry(number).or_default();
            *output += rest.strip_prefix(' ').unwrap_or(rest);
            output.push('\n');
        } else if let Some((_, rest)) = line.split_once(" Test ")
            && let Some((number, rest)) =
                rest.trim_start().strip_prefix('#').and_then(|r| r.split_once(": "))
            && let Some((name, verdict)) = rest.split_once(' ')
        {
            let output = outputs.remove(number).unwrap_or_default();
            let outcome = if verdict.contains(" Passed ") {
                Outcome::Pass
            } else if verdict.contains("***Skipped") {
                let reason = output.lines().rfind(|line| !line.trim().is_empty());
                Outcome::Skip(reason.unwrap_or("no reason printed").to_owned())
            } else {
                Outcome::Fail
            };
            results.push(TestResult { name: name.to_owned(), outcome, output });
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use super::{Outcome, parse};

    #[test]
    fn reads_ctest() {
        let text = "\
test 1
    Start 1: cast.cpu

1: Test command: /build/cast
1: 12 cases
1/3 Test #1: cast.cpu .........   Passed    0.52 sec
    Start 2: cast.cuda
2: SKIP: no CUDA device
2/3 Test #2: cast.cuda ........***Skipped   0.01 sec
3: row 4: expected 1, got 2
3/3 Test #3: gemm.cpu .........***Failed    0.10 sec

67% tests passed, 1 tests failed out of 3
";
        let results = parse(text);
        assert_eq!(results.len(), 3);
        assert_eq!(results[0].name, "cast.cpu");
        assert!(matches!(results[0].outcome, Outcome::Pass));
        let Outcome::Skip(reason) = &results[1].outcome else { panic!("not skipped") };
        assert_eq!(reason, "SKIP: no CUDA device");
        assert!(results[2].failed());
        assert_eq!(results[2].output, "row 4: expected 1, got 2\n");
    }
}
