//! The rows that others publish figures of, against everything on this machine that computes them, in one run: the
//! other library with our ABI, cuBLASLt's best candidate, and what field.py finds in the machine's Python.

use super::abi::Api;
use super::cases::{self, Case, Work};
use super::machine::{Kind, Machine, Pool};
use super::report::{self, Limits};
use super::{BenchArgs, library, measure_case, prepare, sampler};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = include_str!("field.py");

/// Names of cases, which field.py reads too.
const ROWS: [&str; 24] = [
    "gemm bf16 TN 8192x8192x8192",
    "gemm bf16 TN 8192x12288x4096",
    "gemm bf16 TN 4096x2560x2560",
    "gemm fp8 TN 8192x8192x8192",
    "gemm fp8 TN 4096x2560x2560",
    "gemm fp8 block 1d x 2d TN 4096x4096x4096",
    "gemm fp8 block 1d x 2d TN 8192x8192x8192",
    "attention forward causal 2x8192x16x128",
    "attention backward causal 2x8192x16x128",
    "attention forward full 1x16384x16x128",
    "attention backward full 1x16384x16x128",
    "attention forward causal 2x8192x32x64",
    "attention backward causal 2x8192x32x64",
    "attention forward full 1x16384x8x256",
    "attention backward full 1x16384x8x256",
    "attention fp8 forward causal 2x8192x16x128",
    "attention fp8 backward causal 2x8192x16x128",
    "attention fp8 forward full 1x16384x16x128",
    "attention fp8 backward full 1x16384x16x128",
    "layernorm 16384x4096 -> bf16",
    "rmsnorm 16384x4096 -> bf16",
    "rmsnorm 16384x16384 -> bf16",
    "topk bf16 64x65536, 2048",
    "topk f32 64x65536, 2048",
];

/// One implementation of a row. What was not measured is zero.
struct Entry {
    row: String,
    who: String,
    /// Seconds of a call after a rest, and in a row without one.
    rested: f64,
    sustained: f64,
    megahertz: f64,
    watts: f64,
}

pub fn run(args: &BenchArgs, root: &Path, machine: &dyn Machine) -> Result<(String, String)> {
    ensure!(machine.kind() == Kind::Gpu, "the field is that of GPUs");
    let lib = library(args, root)?;
    let mut apis = vec![Api::load("nvte", &lib)?];
    if let Some(against) = &args.against {
        let (name, path) = against.split_once('=').unwrap_or(("other", against));
        apis.push(Api::load(name, Path::new(path))?);
    }
    let only = args.only.as_deref().unwrap_or("");
    let mut listed = cases::operators(Kind::Gpu);
    listed.retain(|case| ROWS.contains(&case.name.as_str()) && case.name.contains(only));
    let pool = Pool::new(machine)?;
    let limits = Limits {
        stream: super::machine::streaming_limit(machine, &pool, &apis)?,
        matrix: machine.matrix_limits(),
    };
    let mut entries = Vec::new();
    let mut missing = Vec::new();
    for case in &listed {
        let samples = measure_case(case, machine, &pool, &apis);
        for (api, samples) in apis.iter().zip(samples) {
            match samples {
                Ok(samples) => {
                    let rested = report::median(&samples);
                    let (sustained, megahertz, watts) = match api.name.as_str() {
                        "nvte" => sustain(case, machine, &pool, api, args.sustain)?,
                        _ => (0.0, 0.0, 0.0),
                    };
                    let (row, who) = (case.name.clone(), api.name.clone());
                    entries.push(Entry { row, who, rested, sustained, megahertz, watts });
                }
                Err(reason) => missing.push(format!("{}, {}: {reason}", case.name, api.name)),
            }
        }
    }
    entries.extend(best_candidates(&lib, &listed)?);
    python(args.sustain, &listed, &mut entries, &mut missing)?;
    let table = table(machine, &limits, args.sustain, &listed, &entries, &missing)?;
    Ok((table, csv(&entries)))
}

/// Seconds of a call when the chip does nothing else for some time, with its clock and power at the end.
fn sustain(
    case: &Case,
    machine: &dyn Machine,
    pool: &Pool,
    api: &Api,
    seconds: f64,
) -> Result<(f64, f64, f64)> {
    if seconds == 0.0 {
        return Ok((0.0, 0.0, 0.0));
    }
    let (calls, _memory) = prepare(case, machine, pool, api)?;
    let mut sample = sampler(case, machine, &calls, api)?;
    let (start, mut last) = (Instant::now(), Vec::new());
    let state = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs_f64(0.9 * seconds));
        state()
    });
    while start.elapsed().as_secs_f64() < seconds {
        let one = sample()?;
        if start.elapsed().as_secs_f64() > 0.8 * seconds {
            last.push(one);
        }
    }
    let (megahertz, watts) = state.join().ok().context("the thread of nvidia-smi")??;
    Ok((last.iter().sum::<f64>() / last.len().max(1) as f64, megahertz, watts))
}

fn state() -> Result<(f64, f64)> {
    // The first GPU that is visible here is the one that works.
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let gpu = visible.split(',').next().filter(|gpu| !gpu.is_empty()).unwrap_or("0");
    let arguments =
        ["--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-i", gpu];
    let output = Command::new("nvidia-smi").args(arguments).output().context("nvidia-smi")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut values = text.lines().next().unwrap_or("").split(',').map(|x| x.trim().parse());
    match (values.next(), values.next()) {
        (Some(Ok(megahertz)), Some(Ok(watts))) => Ok((megahertz, watts)),
        _ => anyhow::bail!("nvidia-smi: no clock and power in {text:?}"),
    }
}

/// The products once more in a process of their own, whose library measures all candidates of cuBLASLt first.
fn best_candidates(lib: &Path, listed: &[Case]) -> Result<Vec<Entry>> {
    if !listed.iter().any(|case| case.name.starts_with("gemm")) {
        return Ok(Vec::new());
    }
    let folder = std::env::temp_dir().join(format!("nvte-field-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (file, json) = (folder.join("tune"), folder.join("rows.json"));
    let status = Command::new(std::env::current_exe()?)
        .args(["bench", "--no-write", "--only", "gemm ", "--lib"])
        .arg(lib)
        .arg("--json")
        .arg(&json)
        .env("NVTE_GEMM_TUNE", &file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    ensure!(status.success(), "the measurement of cuBLASLt's candidates: {status}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    std::fs::remove_dir_all(&folder)?;
    let rows = report["rows"].as_array().context("rows in the report")?;
    let entry = |row: &serde_json::Value| {
        let name = row["name"].as_str()?;
        let rested = row["seconds"][0]["median"].as_f64()?;
        listed.iter().any(|case| case.name == name).then(|| Entry {
            row: name.into(),
            who: "nvte, cuBLASLt's best candidate".into(),
            rested,
            sustained: 0.0,
            megahertz: 0.0,
            watts: 0.0,
        })
    };
    Ok(rows.iter().filter_map(entry).collect())
}

fn python(
    seconds: f64,
    listed: &[Case],
    entries: &mut Vec<Entry>,
    missing: &mut Vec<String>,
) -> Result<()> {
    let output = Command::new("python3")
        .args(["-c", PROGRAM])
        .arg(seconds.to_string())
        .args(listed.iter().map(|case| &case.name))
        .stdin(Stdio::null())
        .output()
        .context("python3")?;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [row, who, values @ ..] = &fields[..] else { continue };
        let numbers: Vec<f64> = values.iter().filter_map(|value| value.parse().ok()).collect();
        let (row, who) = (row.to_string(), who.to_string());
        if let [rested, sustained, megahertz, watts] = numbers[..] {
            entries.push(Entry { row, who, rested, sustained, megahertz, watts });
        } else {
            missing.push(format!("{row}, {who}: {}", values.join(" ").trim_start_matches("! ")));
        }
    }
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        missing.push(format!("Python: {}", stderr.lines().last().unwrap_or("failed")));
    }
    Ok(())
}

fn table(
    machine: &dyn Machine,
    limits: &Limits,
    seconds: f64,
    listed: &[Case],
    entries: &[Entry],
    missing: &[String],
) -> Result<String> {
    let mut text = format!(
        "## The field on one GPU\n\n{}; {}. Limits: {}.\n\nEvery implementation of a row that this machine has, in \
         one run. `rested`: after 50 ms without work; `sustained`: the mean over the last fifth of {seconds} s of \
         work, with the clock and the power at its end (`-`: not measured). `ratio`: its time over that of nvte, \
         rested; above 1, nvte is faster.\n\n",
        machine.describe(),
        super::today()?,
        limits.text()
    );
    let columns = ["rested", "rate", "sustained", "clock", "power", "ratio"];
    text += &report::table_line("operator, by whom", &columns.map(String::from));
    text += &format!("\n|---|{}\n", "--:|".repeat(columns.len()));
    for case in listed {
        let of_row: Vec<&Entry> = entries.iter().filter(|entry| entry.row == case.name).collect();
        let ours = of_row.iter().find(|entry| entry.who == "nvte").map(|entry| entry.rested);
        for entry in of_row {
            let shown = |value: f64, text: String| if value == 0.0 { "-".into() } else { text };
            let cells = [
                report::time_text(entry.rested),
                rate(case.work, entry.rested),
                shown(entry.sustained, report::time_text(entry.sustained)),
                shown(entry.megahertz, format!("{:.0} MHz", entry.megahertz)),
                shown(entry.watts, format!("{:.0} W", entry.watts)),
                ours.map_or("-".into(), |ours| format!("{:.2}", entry.rested / ours)),
            ];
            text += &report::table_line(&format!("{}: {}", case.name, entry.who), &cells);
            text.push('\n');
        }
    }
    for reason in missing {
        text += &format!("\nNot measured: {reason}\n");
    }
    Ok(text)
}

fn rate(work: Work, seconds: f64) -> String {
    match work {
        Work::Bytes { moved, .. } => report::rate_text(moved / seconds, "B/s"),
        Work::Flops { count, .. } => report::rate_text(count / seconds, "FLOP/s"),
        Work::Host => "-".into(),
    }
}

fn csv(entries: &[Entry]) -> String {
    let mut text = String::from("operator,by,rested_s,sustained_s,clock_mhz,power_w\n");
    for Entry { row, who, rested, sustained, megahertz, watts } in entries {
        let fields = [rested, sustained, megahertz, watts].map(|value| match *value {
            0.0 => String::new(),
            value => format!("{value:.6e}"),
        });
        text += &format!("\"{row}\",\"{who}\",{}\n", fields.join(","));
    }
    text
}
