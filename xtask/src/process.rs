//! Runs a command while showing that it is alive, and keeps its output for when it fails.

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

pub struct Output {
    pub success: bool,
    pub text: String,
}

const SPIN: Duration = Duration::from_millis(120);
/// Without a terminal, one line this often says that a long step still runs.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// Runs to the end whatever the exit status, and returns stdout and stderr as they came.
pub fn capture(label: &str, command: &mut Command) -> Result<Output> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{label}: cannot run {}", command.get_program().display()))?;
    let (sender, lines) = channel();
    let readers = [
        forward(child.stdout.take().expect("piped"), sender.clone()),
        forward(child.stderr.take().expect("piped"), sender),
    ];

    let terminal = std::io::stderr().is_terminal();
    let bar = if terminal { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {wide_msg:.dim}")?);
    bar.set_prefix(label.to_owned());
    bar.enable_steady_tick(SPIN);
    if !terminal {
        eprintln!("   {label} ...");
    }
    let start = Instant::now();
    let mut text = String::new();
    loop {
        match lines.recv_timeout(HEARTBEAT) {
            Ok(line) => {
                bar.set_message(line.trim().to_owned());
                text += &line;
            }
            Err(RecvTimeoutError::Timeout) if !terminal => {
                let last = text.lines().last().unwrap_or_default();
                eprintln!("   {label}: {} s, {last}", start.elapsed().as_secs());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    for reader in readers {
        reader.join().expect("reader thread");
    }
    let status = child.wait()?;
    bar.finish_and_clear();
    let mark = if status.success() { "ok" } else { "FAILED" };
    eprintln!("{mark:>6} {label} ({:.1} s)", start.elapsed().as_secs_f64());
    if !status.success() {
        text += &format!("({status})\n");
    }
    Ok(Output { success: status.success(), text })
}

/// Like `capture`, but a failure prints the output and is an error.
pub fn run(label: &str, command: &mut Command) -> Result<String> {
    let output = capture(label, command)?;
    if !output.success {
        eprintln!("{command:?}\n{}", output.text);
        bail!("{label} failed");
    }
    Ok(output.text)
}

/// Runs with this process's own terminal; for programs that show their progress themselves.
pub fn inherit(label: &str, command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{label}: cannot start"))?;
    if !status.success() {
        bail!("{label} failed ({status})");
    }
    Ok(())
}

fn forward(pipe: impl Read + Send + 'static, lines: Sender<String>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            // The receiver lives until both pipes are closed.
            let _ = lines.send(String::from_utf8_lossy(&line).into_owned());
            line.clear();
        }
    })
}
