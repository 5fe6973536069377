//! The CPU backend beside PyTorch and NumPy: one thread each, in one run, by the CPU time of the process, so that
//! other programs on the machine disturb it little.

use super::abi::Api;
use super::cases::{self, Field};
use super::machine::{Call, Machine, Pool, repetitions};
use super::report::{self, rate_text, table_line, time_text};
use super::{Work, prepare};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const PROGRAM: &str = include_str!("cpu_field.py");
/// Each round measures every library once; the fastest sample counts.
const ROUNDS: usize = 5;
const SAMPLE_SECONDS: f64 = 0.15;
const SAMPLE_CALLS: usize = 10_000;

/// Operators of other libraries, which the python3 on the PATH runs.
struct Peers {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    names: [String; 2],
}

impl Peers {
    fn start() -> Result<Self> {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("python3")?;
        let input = child.stdin.take().context("no input of python3")?;
        let mut output = BufReader::new(child.stdout.take().context("no output of python3")?);
        let names = pair(&mut output)?;
        Ok(Self { child, input, output, names })
    }

    /// Seconds of a call of each library, where it has the operator.
    fn sample(&mut self, key: &str) -> Result<[Option<f64>; 2]> {
        writeln!(self.input, "{key}")?;
        let texts = pair(&mut self.output)?;
        Ok(texts.map(|text| Some(text.parse::<f64>().ok()? / 1e3)))
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // It has nothing to finish.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The two words of a line.
fn pair(output: &mut impl BufRead) -> Result<[String; 2]> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    let words = line.trim().split_once('\t');
    let (one, other) = words.with_context(|| format!("python3 printed {line:?}"))?;
    Ok([one.into(), other.into()])
}

/// CPU time that this process has taken so far, in seconds.
fn cpu_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on Linux, and the structure is ours.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0, "the clock of the process");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn sample(call: &Call, count: usize) -> f64 {
    let start = cpu_time();
    (0..count).for_each(|_| call());
    (cpu_time() - start) / count as f64
}

/// The section of the report. The library was loaded with one thread.
pub fn section(machine: &dyn Machine, api: &Api, date: &str, only: Option<&str>) -> Result<String> {
    let pool = Pool::new(machine)?;
    let mut peers = Peers::start()?;
    let rate = streaming_rate(machine, api, &pool)?;
    let [torch, numpy] = peers.names.clone();
    let mut table = format!(
        "## CPU beside PyTorch and NumPy\n\n{}, one thread; {date}; nvte {}; {torch}; {numpy}. CPU time of the \
         process, the fastest of {ROUNDS} rounds that alternate, each on the same inputs. `ratio` is PyTorch's time \
         over ours. `of memory`: share of the {} that a cast of float32 to itself moves.\n\n",
        machine.describe(),
        api.version.as_deref().unwrap_or(""),
        rate_text(rate, "B/s"),
    );
    let cells = ["nvte", "PyTorch", "NumPy", "ratio", "of memory"].map(String::from);
    table += &format!("{}\n|---|--:|--:|--:|--:|--:|\n", table_line("operator", &cells));
    println!("{table}");
    for Field { name, key, case } in cases::cpu_field() {
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let case = cases::Case { most_sets: 1, ..case };
        let (calls, _memory) = prepare(&case, machine, &pool, api)?;
        let call = &calls[0];
        let count = repetitions(sample(call, 1), SAMPLE_SECONDS, 1, SAMPLE_CALLS);
        let mut best = [Some(f64::INFINITY); 3];
        for _ in 0..ROUNDS {
            let [torch, numpy] = match key {
                Some(key) => peers.sample(key)?,
                None => [None; 2],
            };
            let samples = [Some(sample(call, count)), torch, numpy];
            for (best, sample) in best.iter_mut().zip(samples) {
                *best = best.zip(sample).map(|(best, sample)| best.min(sample));
            }
        }
        api.take_error()?;
        let dash = || String::from("-");
        let mut cells = best.map(|time| time.map_or_else(dash, time_text)).to_vec();
        let ours = best[0].context("a sample of ours")?;
        cells.push(best[1].map_or_else(dash, |torch| format!("{:.2}", torch / ours)));
        cells.push(match case.work {
            Work::Bytes { moved, .. } => report::percent(moved / ours / rate, 0),
            _ => dash(),
        });
        let line = table_line(&name, &cells);
        println!("{line}");
        table = table + &line + "\n";
    }
    Ok(table)
}

/// Bytes per second of CPU time that one thread moves in a cast of float32 to itself.
fn streaming_rate(machine: &dyn Machine, api: &Api, pool: &Pool) -> Result<f64> {
    let case = cases::copy();
    let Work::Bytes { moved, .. } = case.work else { unreachable!("a cast moves bytes") };
    let (calls, _memory) = prepare(&case, machine, pool, api)?;
    let fastest = (0..ROUNDS).map(|_| sample(&calls[0], 2)).fold(f64::INFINITY, f64::min);
    ensure!(fastest > 0.0, "the clock of the process stands still");
    Ok(moved / fastest)
}
