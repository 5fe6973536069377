//! The plugins of examples/plugins, built as a vendor builds them, and judged by `nvtex-conform`: the good ones pass,
//! and the faulty one fails with each of its faults.

use crate::process;
use crate::report::Report;
use crate::test::c_programs;
use crate::tree::{Tree, empty_dir};
use anyhow::{Context, Result, bail};
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Sources that keep all promises.
const GOOD: [&str; 3] = ["host_ops", "limits", "own_device"];

pub fn test(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    let sources = tree.root.join("examples/plugins");
    let folder = tree.target.join("plugins");
    empty_dir(&folder)?;
    // The library loads no code from where others may write; cargo's folders may be writable by a group.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    let text = fs::read_to_string(sources.join("faulty.c")).context("faulty.c")?;
    let faults = faults(&text);
    if faults.is_empty() {
        bail!("faulty.c: no list kFaults was found");
    }
    for name in GOOD {
        let plugin = compile(tree, prefix, &sources, &folder, name)?;
        let passed = conform(tree, prefix, &plugin, None)?;
        report.check(format!("plugin {name} conforms"), passed == Some(0));
    }
    // The program of the guide, which a vendor begins with.
    let guide = fs::read_to_string(tree.root.join("docs/plugins.md")).context("docs/plugins.md")?;
    let [program] = c_programs(&guide)[..] else {
        bail!("docs/plugins.md: expected one program in C");
    };
    fs::write(folder.join("acme.c"), program).context("acme.c")?;
    let plugin = compile(tree, prefix, &folder, &folder, "acme")?;
    let passed = conform(tree, prefix, &plugin, None)?;
    report.check("the plugin of docs/plugins.md conforms", passed == Some(0));
    report.check("the headers refuse short enums", refuses_short_enums(tree, prefix, &sources)?);
    let trained = train(tree, prefix, &folder)?;
    report.check("a program trains on the device of plugin own_device", trained);
    let plugin = rust(tree, &sources.join("rust"), &folder)?;
    report.check("plugin rust conforms", conform(tree, prefix, &plugin, None)? == Some(0));
    let plugin = compile(tree, prefix, &sources, &folder, "faulty")?;
    for fault in faults {
        let (expected, what) = match fault {
            "none" => (0, "conforms without a fault"),
            _ => (1, "does not conform"),
        };
        let status = conform(tree, prefix, &plugin, Some(fault))?;
        report.check(format!("plugin faulty, {fault}: {what}"), status == Some(expected));
    }
    Ok(())
}

/// The plugin with faults, built in a folder of its own.
pub fn faulty(tree: &Tree, prefix: &Path) -> Result<PathBuf> {
    let folder = tree.target.join("faulty-plugin");
    empty_dir(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    compile(tree, prefix, &tree.root.join("examples/plugins"), &folder, "faulty")
}

/// The words of the list `kFaults` in a C source.
fn faults(text: &str) -> Vec<&str> {
    let list = text.split_once("kFaults[FAULTS] = {").and_then(|(_, rest)| rest.split_once("};"));
    let words =
        |(list, _): (_, &_)| -> Vec<_> { str::split(list, '"').skip(1).step_by(2).collect() };
    list.map(words).unwrap_or_default()
}

fn compile(
    tree: &Tree,
    prefix: &Path,
    sources: &Path,
    folder: &Path,
    name: &str,
) -> Result<PathBuf> {
    let plugin = folder.join(format!("lib{name}.so"));
    let mut compile = tree.command(env::var("CC").unwrap_or_else(|_| "cc".into()));
    compile.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared"]);
    compile.args(["-fPIC", "-o"]).arg(&plugin).arg(sources.join(format!("{name}.c")));
    compile.arg("-I").arg(prefix.join("include")).arg("-lm");
    process::run(&format!("compile plugin {name}"), &mut compile)?;
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755))?;
    Ok(plugin)
}

/// Structs with short enums are not those of the library: a plugin with them must not compile.
fn refuses_short_enums(tree: &Tree, prefix: &Path, sources: &Path) -> Result<bool> {
    let mut compile = tree.command(env::var("CC").unwrap_or_else(|_| "cc".into()));
    compile.args(["-std=c11", "-fshort-enums", "-fsyntax-only", "-I"]).arg(prefix.join("include"));
    let output = compile.arg(sources.join("host_ops.c")).output().context("the C compiler")?;
    let text = String::from_utf8_lossy(&output.stderr);
    Ok(!output.status.success() && text.contains("another size than in the library"))
}

/// Runs the demo in the memory of the plugin own_device: its operators, and the reference for what it has not.
fn train(tree: &Tree, prefix: &Path, folder: &Path) -> Result<bool> {
    let examples = tree.root.join("examples");
    let program = folder.join("mlp");
    let mut compile = tree.command(env::var("CC").unwrap_or_else(|_| "cc".into()));
    compile.args(["-std=c11", "-O2", "-o"]).arg(&program).arg(examples.join("mlp.c"));
    compile.arg("-I").arg(prefix.join("include")).arg("-L").arg(prefix.join("lib"));
    compile.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display())).args(["-lnvte", "-lm"]);
    process::run("compile the demo", &mut compile)?;
    let mut demo = tree.command(&program);
    demo.arg(examples.join("digits.csv")).env("NVTE_BACKEND", "heap");
    demo.env("NVTE_OP_PLUGINS", folder.join("libown_device.so"));
    let output = process::capture("train on the device of plugin own_device", &mut demo)?;
    if !output.success {
        eprint!("{}", output.text);
    }
    Ok(output.success)
}

/// Builds the plugin in Rust, a package that has nothing to do with this repository's.
fn rust(tree: &Tree, source: &Path, folder: &Path) -> Result<PathBuf> {
    let target = tree.target.join("rust-plugin");
    let mut cargo = tree.cargo();
    cargo.args(["build", "--release", "--manifest-path"]).arg(source.join("Cargo.toml"));
    process::run("build plugin rust", cargo.arg("--target-dir").arg(&target))?;
    let plugin = folder.join("librust_ops.so");
    fs::copy(target.join("release/librust_ops.so"), &plugin).context("librust_ops.so")?;
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755))?;
    Ok(plugin)
}

/// The exit status of `nvtex-conform`; its output appears if it is neither a verdict nor expected.
fn conform(tree: &Tree, prefix: &Path, plugin: &Path, fault: Option<&str>) -> Result<Option<i32>> {
    let mut command = tree.command(prefix.join("bin/nvtex-conform"));
    command.arg(plugin).args(["--cases", "ci", "--isolate"]).env("NVTE_BACKEND", "cpu");
    if let Some(fault) = fault {
        command.env("NVTE_OP_PLUGIN_FAULTY_FAULT", fault);
    }
    let output = command.output().context("nvtex-conform")?;
    let status = output.status.code();
    let expected = if fault.is_none_or(|fault| fault == "none") { Some(0) } else { Some(1) };
    if status != expected {
        eprint!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::faults;

    #[test]
    fn finds_faults() {
        let text = "a\nconst kFaults[FAULTS] = {\n  \"none\", \"wrong\",\n  \"crashes\"};\n\"b\"\n";
        assert_eq!(faults(text), ["none", "wrong", "crashes"]);
        assert!(faults("nothing").is_empty());
    }
}
