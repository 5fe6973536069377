//! The kernels in a built library, as cuobjdump shows them: each has code for every architecture of the build, and
//! none asks for more registers or static shared memory than a launch may have. Dynamic shared memory is chosen by
//! launchers; what a smaller GPU would refuse of it, a bundle with `--assume` finds.

use crate::report::{Outcome, Report};
use crate::setup;
use crate::tree::Tree;
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

/// Registers of a multiprocessor, which a block shares; the same since compute capability 5.0.
const REGISTERS: u64 = 64 * 1024;
/// A warp takes registers in units of 8 for each thread.
const REGISTER_UNIT: u64 = 8;
const WARP: u64 = 32;
/// Static shared memory of a block on every architecture; more is dynamic.
const STATIC_SHARED: u64 = 48 * 1024;
/// What the system keeps for itself of each block, from compute capability 8.0 on. The listing counts it in from 9.0 on.
const SYSTEM_SHARED: u64 = 1024;
/// Threads of a block of a kernel that declares no bound.
const MOST_THREADS: u64 = 1024;

#[derive(Clone, Debug, Default, PartialEq)]
struct Usage {
    registers: u64,
    shared: u64,
    /// The bound of `__launch_bounds__`.
    threads: Option<u64>,
}

/// By architecture and name.
type Kernels = BTreeMap<(String, String), Usage>;

pub fn test(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    let library = prefix.join("lib/libnvte.so.0");
    let cuobjdump = setup::cuobjdump(tree)?;
    let listing = |option: &str, kernels: &mut Kernels| -> Result<bool> {
        let mut command = tree.command(&cuobjdump);
        let mut child = command
            .arg(option)
            .arg(&library)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cuobjdump")?;
        // The listing of sections has gigabytes, of which few lines are needed.
        read(BufReader::new(child.stdout.take().expect("piped")), kernels)?;
        Ok(child.wait()?.success())
    };
    let mut kernels = Kernels::new();
    listing("-res-usage", &mut kernels)?;
    if kernels.is_empty() {
        report.add(
            "limits of kernels",
            Outcome::Skip("the library was built without kernels".into()),
        );
        return Ok(());
    }
    ensure!(listing("-elf", &mut kernels)?, "cuobjdump cannot read {}", library.display());
    let faults = faults(&kernels);
    for fault in &faults {
        eprintln!("{fault}");
    }
    let archs: BTreeSet<&str> = kernels.keys().map(|(arch, _)| arch.as_str()).collect();
    let archs = archs.into_iter().collect::<Vec<_>>().join(", ");
    println!("{} kernels of {archs}", kernels.len());
    report.check(format!("limits of kernels ({archs})"), faults.is_empty());
    Ok(())
}

/// Reads lines of `cuobjdump -res-usage` and `cuobjdump -elf`.
fn read(mut lines: impl BufRead, kernels: &mut Kernels) -> Result<()> {
    let (mut arch, mut name, mut bound) = (String::new(), String::new(), false);
    let mut bytes = Vec::new();
    while lines.read_until(b'\n', &mut bytes)? > 0 {
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim();
        if let Some(found) = line.strip_prefix("arch = ") {
            found.clone_into(&mut arch);
            name.clear();
        } else if let Some(found) = line.strip_prefix("Function ") {
            found.trim_end_matches(':').clone_into(&mut name);
        } else if let Some(found) = line.strip_prefix(".nv.info.") {
            found.clone_into(&mut name);
            bound = false;
        } else if line.starts_with('.') {
            name.clear();
        } else if line.starts_with("REG:") && !name.is_empty() {
            let usage = kernels.entry((arch.clone(), name.clone())).or_default();
            usage.registers = number(line, "REG:");
            usage.shared = number(line, "SHARED:");
        } else if line.ends_with("EIATTR_MAX_THREADS") {
            bound = true;
        } else if bound && let Some(value) = line.strip_prefix("Value:") {
            bound = false;
            let sides = value.split_whitespace().filter_map(|n| n.strip_prefix("0x"));
            let threads = sides.map(|n| u64::from_str_radix(n, 16).unwrap_or(1)).product();
            if let Some(usage) = kernels.get_mut(&(arch.clone(), name.clone())) {
                usage.threads = Some(threads);
            }
        }
        bytes.clear();
    }
    Ok(())
}

fn number(line: &str, key: &str) -> u64 {
    let rest = line.split_once(key).map_or("", |(_, rest)| rest);
    rest.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_default()
}

/// What could not be launched, or is missing.
fn faults(kernels: &Kernels) -> Vec<String> {
    let archs: BTreeSet<&str> = kernels.keys().map(|(arch, _)| arch.as_str()).collect();
    let mut of_name = BTreeMap::<&str, BTreeSet<&str>>::new();
    let mut faults = Vec::new();
    for ((arch, name), usage) in kernels {
        of_name.entry(name).or_default().insert(arch);
        let threads = usage.threads.unwrap_or(MOST_THREADS).next_multiple_of(WARP);
        let registers = usage.registers.next_multiple_of(REGISTER_UNIT) * threads;
        if registers > REGISTERS {
            faults.push(format!(
                "{arch}, {name}: {} registers in each of {threads} threads; a block has {REGISTERS}",
                usage.registers
            ));
        }
        if usage.shared > STATIC_SHARED + SYSTEM_SHARED {
            faults.push(format!(
                "{arch}, {name}: {} bytes of static shared memory; a block may have {STATIC_SHARED}",
                usage.shared
            ));
        }
    }
    for (name, has) in of_name {
        // A kernel that needs an architecture has it in its name.
        let missing: Vec<_> = archs.difference(&has).copied().collect();
        if !missing.is_empty() && !["sm90", "sm100"].iter().any(|arch| name.contains(arch)) {
            faults.push(format!("{name}: no code for {}", missing.join(", ")));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::{Kernels, Usage, faults, read};

    const USAGE: &str = "Fatbin elf code:\n================\narch = sm_80\n\nResource usage:\n Common:\n  GLOBAL:0\n \
        Function one:\n  REG:48 STACK:0 SHARED:1056 LOCAL:0 CONSTANT[0]:644 TEXTURE:0\n Function two:\n  \
        REG:128 STACK:0 SHARED:50176 LOCAL:0 CONSTANT[0]:644\nFatbin elf code:\narch = sm_90a\n Function one:\n  \
        REG:72 STACK:0 SHARED:60000 LOCAL:0 CONSTANT[0]:644\n";
    const SECTIONS: &str = "arch = sm_80\n\n.section .nv.info.one\n.nv.info.two\n\t<0x1>\n\tAttribute:\tEIATTR_MAX_THREADS\n\t\
        Format:\tEIFMT_SVAL\n\tValue:\t0x200 0x1 0x1 \n\tValue:\t0x7 0x1 0x1\n";

    #[test]
    fn reads_listings_and_finds_faults() {
        let mut kernels = Kernels::new();
        read(USAGE.as_bytes(), &mut kernels).expect("text");
        read(SECTIONS.as_bytes(), &mut kernels).expect("text");
        let usage = |arch: &str, name: &str| kernels[&(arch.to_owned(), name.to_owned())].clone();
        assert_eq!(usage("sm_80", "one"), Usage { registers: 48, shared: 1056, threads: None });
        let two = Usage { registers: 128, shared: 50176, threads: Some(512) };
        assert_eq!(usage("sm_80", "two"), two);
        let found = faults(&kernels).join("\n");
        // 72 registers in each of 1024 threads, 60000 bytes, and a kernel without code for 9.0.
        assert_eq!(found.lines().count(), 3, "{found}");
        assert!(found.contains("sm_90a, one: 72 registers in each of 1024 threads"), "{found}");
        assert!(found.contains("sm_90a, one: 60000 bytes"), "{found}");
        assert!(found.contains("two: no code for sm_90a"), "{found}");
    }
}
