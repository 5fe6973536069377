//! The other library's layers, through its PyTorch front end, in the same run on the same GPU.

use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::process::{Command, Stdio};

const PROGRAM: &str = include_str!("front_end.py");
const FUSED: &str = "Selected backend = FusedAttention";
const SELECTED: &str = "Selected backend = ";

/// Seconds of a step by the name of the case.
pub type Times = HashMap<String, f64>;

/// Measures `transformer_engine.pytorch` of the python3 on the PATH.
///
/// Where cuDNN's parts do not load, that front end falls back to unfused attention and says so in its debug
/// output alone, and its layers take up to 1.6 times as long. So a first pass reads that output, and anything but
/// fused attention is an error.
pub fn measure() -> Result<Times> {
    let output = python(&["--check"], true)?;
    let chosen = output.lines().filter_map(|line| Some(line.split_once(SELECTED)?.1.trim()));
    let chosen: Vec<&str> = chosen.collect();
    ensure!(
        output.contains(FUSED),
        "the front end did not say that its attention is fused; it selected {chosen:?}"
    );
    let other = chosen.iter().find(|name| !name.starts_with("FusedAttention"));
    ensure!(other.is_none(), "the front end selected {}, not FusedAttention", other.unwrap_or(&""));

    let output = python(&[], false)?;
    let times: Times = output
        .lines()
        .filter_map(|line| {
            let (name, milliseconds) = line.split_once('\t')?;
            Some((name.to_owned(), milliseconds.trim().parse::<f64>().ok()? / 1e3))
        })
        .collect();
    ensure!(!times.is_empty(), "the front end measured nothing:\n{output}");
    Ok(times)
}

/// Runs the program and returns what it prints; with `debug`, what its log says as well.
fn python(arguments: &[&str], debug: bool) -> Result<String> {
    let mut command = Command::new("python3");
    // Variables that choose our backend must not reach the other library.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("NVTE_")) {
        command.env_remove(name);
    }
    if debug {
        command.env("NVTE_DEBUG", "1").env("NVTE_DEBUG_LEVEL", "2");
    }
    command.args(["-c", PROGRAM]).args(arguments).env("PYTHONUNBUFFERED", "1");
    let output = command.stdin(Stdio::null()).output().context("python3")?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<&str> = stderr.lines().rev().take(15).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    ensure!(output.status.success(), "the front end: {}\n{}", output.status, tail.join("\n"));
    Ok(if debug { stdout + &stderr } else { stdout })
}
