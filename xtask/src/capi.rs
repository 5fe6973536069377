//! The C and C++ programs of capi-tests/, built by CMake against an installed prefix.

use crate::process;
use crate::report::{Outcome, Report};
use crate::setup;
use crate::tree::Tree;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::{fs, thread};

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
    // Where an earlier run found the package is in the cache, and would be preferred.
    configure.arg("-U").arg("nvte_DIR");
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
    let results = dir.join("results.xml");
    // Results of an earlier run must not pass for those of this one.
    let _ = fs::remove_file(&results);
    let mut command = tree.command(ctest);
    command.args(["--parallel", &jobs, "--output-junit"]).arg(&results);
    command.arg("--test-dir").arg(dir);
    let output = process::capture("ctest", &mut command)?;
    let text = fs::read_to_string(&results).with_context(|| results.display().to_string())?;
    let results = junit(&text)?;
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

/// The test cases of a JUnit report as CTest writes it. A test that could not be started is `notrun` as one
/// that skipped itself is; only the message of the latter names the exit status.
fn junit(text: &str) -> Result<Vec<TestResult>> {
    let document = roxmltree::Document::parse(text).context("the JUnit report of ctest")?;
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    let result = |case: roxmltree::Node| {
        let child = |name| case.children().find(|node| node.has_tag_name(name));
        let name = case.attribute("name").context("a test case without a name")?.to_owned();
        let output = child("system-out").and_then(|node| node.text()).unwrap_or_default();
        let message = child("skipped").and_then(|node| node.attribute("message"));
        let outcome = match (case.attribute("status"), message) {
            (Some("run"), _) => Outcome::Pass,
            (Some("notrun"), Some(message)) if message.starts_with("SKIP_RETURN_CODE") => {
                let reason = output.lines().rfind(|line| !line.trim().is_empty());
                Outcome::Skip(reason.unwrap_or("no reason printed").to_owned())
            }
            _ => Outcome::Fail,
        };
        Ok(TestResult { name, outcome, output: output.to_owned() })
    };
    cases.map(result).collect()
}

#[cfg(test)]
mod tests {
    use super::{Outcome, junit};

    #[test]
    fn reads_junit() {
        let text = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="(empty)" tests="4" failures="1" disabled="0" skipped="2">
	<testcase name="cast.cpu" classname="cast.cpu" time="0.52" status="run">
		<properties/>
		<system-out>12 cases</system-out>
	</testcase>
	<testcase name="cast.cuda" classname="cast.cuda" time="0.01" status="notrun">
		<skipped message="SKIP_RETURN_CODE=77"/>
		<system-out>one
SKIP: no CUDA device
</system-out>
	</testcase>
	<testcase name="gemm.cpu" classname="gemm.cpu" time="0.1" status="fail">
		<failure message="Failed"/>
		<system-out>row 4: expected &lt;1&gt;, got 2</system-out>
	</testcase>
	<testcase name="topk.cpu" classname="topk.cpu" time="0" status="notrun">
		<skipped message="Unable to find executable"/>
		<system-out></system-out>
	</testcase>
</testsuite>"#;
        let results = junit(text).expect("a report");
        assert_eq!(results.len(), 4);
        assert_eq!(results[0].name, "cast.cpu");
        assert!(matches!(results[0].outcome, Outcome::Pass));
        let Outcome::Skip(reason) = &results[1].outcome else { panic!("not skipped") };
        assert_eq!(reason, "SKIP: no CUDA device");
        assert!(results[2].failed());
        assert_eq!(results[2].output, "row 4: expected <1>, got 2");
        assert!(results[3].failed());
        assert!(junit("no report").is_err());
    }
}
