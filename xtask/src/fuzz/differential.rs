//! `cargo xtask fuzz --differential`: two libraries, or one library on two backends, make the same random calls
//! (capi-tests/differential/differential.cpp).

use super::{Args, Backend};
use crate::build;
use crate::capi;
use crate::install;
use crate::plugins;
use crate::process;
use crate::report::Report;
use crate::tree::{Tree, empty_dir};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Builds the program, which is linked to no library.
pub fn program(tree: &Tree, prefix: &Path, name: &str) -> Result<PathBuf> {
    let source = tree.root.join("capi-tests/differential");
    Ok(capi::build(tree, &source, name, prefix, &[], &[])?.join("nvte-differential"))
}

/// A library and how it is to start.
type Side<'a> = (&'a Path, &'a str);

fn command(tree: &Tree, program: &Path, sides: [Side; 2], seed: u64, seconds: u64) -> Command {
    let mut command = tree.command(program);
    for (library, settings) in sides {
        command.arg(library).arg(settings);
    }
    command.arg(seed.to_string()).arg(seconds.to_string());
    command
}

/// On CUDA another library is compared with this one on CUDA, since it may have no other memory.
pub fn run(tree: &Tree, args: &Args, bundled: bool) -> Result<ExitCode> {
    let (program, prefix, out) = if bundled {
        (tree.root.join("bin/nvte-differential"), tree.root.join("prefix"), env::temp_dir())
    } else {
        build::run(tree, &build::Args::default())?;
        let prefix = install::fresh(tree)?;
        let program = program(tree, &prefix, "differential")?;
        (program, prefix, tree.target.join("differential"))
    };
    let out = env::var_os("OUT").map_or(out, PathBuf::from);
    let library = prefix.join("lib/libnvte.so.0");
    let backend = args.backend.to_possible_value().expect("none is hidden");
    let backend = backend.get_name();
    let same = args.twice || args.against.is_some();
    let first = if same { backend } else { Backend::CPU_NAME };
    let second = args.against.as_deref().unwrap_or(&library);
    let sides = [(library.as_path(), first), (second, backend)];
    let mut command = command(tree, &program, sides, args.seed, args.seconds);
    let status = command
        .args(&args.operator)
        .env("NVTE_DIFFERENTIAL_OUT", &out)
        .status()
        .with_context(|| program.display().to_string())?;
    Ok(match status.code() {
        Some(0) => ExitCode::SUCCESS,
        Some(code) => ExitCode::from(code as u8),
        None => ExitCode::FAILURE,
    })
}

/// A library gives the same bits again, and one that does not is found. One whose cast of a single element is wrong is
/// found, its call is made small, and the C program that is written fails with it and passes without it.
pub fn test(tree: &Tree, prefix: &Path, report: &mut Report) -> Result<()> {
    let program = program(tree, prefix, "differential")?;
    let library = prefix.join("lib/libnvte.so.0");
    let out = tree.target.join("differential-out");
    empty_dir(&out)?;
    let plugin = plugins::faulty(tree, prefix)?;
    let seeded = format!("NVTE_OP_PLUGINS={}", plugin.display());
    let with = |fault: &str| format!("cpu,{seeded},NVTE_OP_PLUGIN_FAULTY_FAULT={fault}");
    let twice = |settings: &str, only: &str| {
        let sides = [(library.as_path(), settings); 2];
        let mut search = command(tree, &program, sides, 1, 5);
        process::capture("calls made twice", search.arg(only).env("NVTE_DIFFERENTIAL_OUT", &out))
    };
    let (same, random) = (twice("cpu", "all")?, twice(&with("random"), "quantize.cast")?);
    if !same.success || random.success {
        eprint!("{}{}", same.text, random.text);
    }
    report.check("each operator gives the same bits again", same.success);
    let found = random.text.contains("FINDING quantize.cast");
    report.check("other bits the second time are found", found);
    empty_dir(&out)?;
    let settings = with("wrong");
    let wrong = [(library.as_path(), "cpu"), (library.as_path(), settings.as_str())];
    let mut search = command(tree, &program, wrong, 1, 10);
    search.arg("quantize.cast").env("NVTE_DIFFERENTIAL_OUT", &out);
    let output = process::capture("a library with one wrong operator", &mut search)?;
    let small = output.text.contains("1x1: row-wise data[0] of 1: expected");
    if output.success || !small {
        eprint!("{}", output.text);
    }
    report.check("a wrong element is found and its call made small", !output.success && small);
    let found = fs::read_dir(&out)?.filter_map(|entry| Some(entry.ok()?.path()));
    let Some(source) = found.into_iter().find(|path| path.extension().is_some_and(|e| e == "c"))
    else {
        bail!("no program was written");
    };
    let binary = out.join("program");
    let mut compile = tree.command(env::var("CC").unwrap_or_else(|_| "cc".into()));
    compile.args(["-std=c11", "-O1", "-Wall", "-Werror", "-o"]).arg(&binary).arg(&source);
    compile.arg("-I").arg(prefix.join("include")).arg("-L").arg(prefix.join("lib"));
    compile.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display())).arg("-lnvte");
    process::run("compile the program of a failure", &mut compile)?;
    let status = |with: bool| -> Result<Option<i32>> {
        let mut run = tree.command(&binary);
        run.env("NVTE_BACKEND", "cpu");
        if with {
            run.env("NVTE_OP_PLUGINS", &plugin).env("NVTE_OP_PLUGIN_FAULTY_FAULT", "wrong");
        }
        Ok(run.output().context("the program of a failure")?.status.code())
    };
    let fails = status(true)? == Some(1) && status(false)? == Some(0);
    report.check("the C program of a failure fails with it and passes without", fails);
    Ok(())
}
