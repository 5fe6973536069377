//! The CUDA kernels that a build made: how many of each source, their size, how long they took.

use anyhow::{Context, Result, ensure};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A section of the report about the newest build of each source under `release`, cargo's folder.
pub fn section(root: &Path, release: &Path, date: &str) -> Result<String> {
    let mut table =
        String::from("| source | kernels | object | compiled in |\n|---|--:|--:|--:|\n");
    let (mut all, mut bytes, mut time) = (0, 0, 0.0);
    for object in objects(root, release)? {
        let count = kernels(&object)?;
        let size = object.metadata()?.len();
        let seconds: f64 = fs::read_to_string(object.with_extension("seconds"))
            .with_context(|| format!("{}: compiled by an older build", object.display()))?
            .parse()?;
        let name = object.file_stem().expect("a file").display();
        table +=
            &format!("| {name}.cu | {count} | {} KB | {seconds:.0} s |\n", size.div_ceil(1000));
        (all, bytes, time) = (all + count, bytes + size, time + seconds);
    }
    ensure!(all > 0, "{}: no kernels; was the library built for the CPU alone?", release.display());
    let megabytes = bytes as f64 / 1e6;
    table += &format!("| all | {all} | {megabytes:.1} MB | {time:.0} s |\n");
    let cores = std::thread::available_parallelism()?;
    Ok(format!(
        "## Kernels\n\nInstances of kernels in each source, for the architectures of the build; each source was \
         compiled on one of {cores} cores; {date}.\n\n{table}"
    ))
}

/// Objects of the sources, where the build script leaves them: that of `cast/quantize.cu` is `cast-quantize.o`.
fn objects(root: &Path, release: &Path) -> Result<Vec<PathBuf>> {
    let store = release.join("nvte-kernels");
    let folder = root.join("kernels");
    let sources = crate::tree::files(&folder, &["cu"])?;
    let objects = sources.into_iter().filter_map(|source| {
        let name = source.strip_prefix(&folder).ok()?.to_string_lossy().replace('/', "-");
        let object = store.join(name).with_extension("o");
        object.is_file().then_some(object)
    });
    Ok(objects.collect())
}

/// By the names that the host's stubs, one for each kernel, and their static variables contain.
fn kernels(object: &Path) -> Result<usize> {
    let output = Command::new("nm").arg(object).output().context("nm")?;
    ensure!(output.status.success(), "nm {}: {}", object.display(), output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let name = |line: &'_ str| {
        let (_, name) = line.split_once("__device_stub__")?;
        let parts = [".cold", "E5__tmp", "E8__handle"];
        Some(parts.iter().fold(name, |name, part| name.trim_end_matches(part)).to_owned())
    };
    Ok(text.lines().filter_map(name).collect::<HashSet<_>>().len())
}
