//! Statistics, tables, and the Markdown report.

use super::Suite;
use super::abi::DType;
use super::cases::Work;
use super::machine::{Kind, MatrixLimits};
use serde_json::{Value, json};

pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    (low + high) / 2.0
}

/// (slowest - fastest) / median
fn spread(samples: &[f64]) -> f64 {
    let max = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let min = samples.iter().copied().fold(f64::INFINITY, f64::min);
    (max - min) / median(samples)
}

pub struct Limits {
    /// Bytes per second, read + write, and what showed it.
    pub stream: (f64, String),
    pub matrix: Option<MatrixLimits>,
}

impl Limits {
    fn of(&self, work: Work) -> Option<f64> {
        match work {
            Work::Bytes { .. } => Some(self.stream.0),
            Work::Flops { dtype: DType::Bf16, .. } => self.matrix.map(|limit| limit.bf16),
            Work::Flops { dtype: DType::E4m3, .. } => self.matrix.map(|limit| limit.fp8),
            Work::Flops { .. } | Work::Host => None,
        }
    }

    pub fn text(&self) -> String {
        let mut text = format!("memory {} ({})", rate_text(self.stream.0, "B/s"), self.stream.1);
        if let Some(limit) = self.matrix {
            let (bf16, fp8) = (rate_text(limit.bf16, "FLOP/s"), rate_text(limit.fp8, "FLOP/s"));
            text += &format!("; matrix units {bf16} bf16, {fp8} fp8 ({})", limit.source);
        }
        text
    }
}

/// One case: seconds per call in each round, for each library, or why there are none.
pub struct Row {
    pub name: String,
    pub work: Work,
    pub samples: Vec<Result<Vec<f64>, String>>,
}

impl Row {
    /// How many times as long the other library takes: the median over the rounds, each of which
    /// ran both.
    fn ratio(&self) -> Option<f64> {
        let [Ok(ours), Ok(other)] = &self.samples[..] else { return None };
        let ratios: Vec<f64> = ours.iter().zip(other).map(|(ours, other)| other / ours).collect();
        Some(median(&ratios))
    }

    /// A line of the table whose head `head` gives.
    pub fn line(&self, kind: Kind, limits: &Limits) -> String {
        let mut cells = Vec::new();
        for (i, samples) in self.samples.iter().enumerate() {
            let cell = |text: &dyn Fn(f64) -> String| match samples {
                Ok(samples) => text(median(samples)),
                Err(_) => "-".into(),
            };
            cells.push(cell(&time_text));
            cells.push(samples.as_ref().map_or("-".into(), |s| percent(spread(s), 1)));
            if i == 0 && !matches!(self.work, Work::Host) {
                cells.push(cell(&|seconds| self.rate(seconds)));
                if kind == Kind::Cpu {
                    cells.push(cell(&|seconds| self.input_rate(seconds)));
                }
                cells.push(cell(&|seconds| match limits.of(self.work) {
                    Some(limit) => percent(self.speed(seconds) / limit, 0),
                    None => "-".into(),
                }));
            }
        }
        if self.samples.len() > 1 {
            cells.push(self.ratio().map_or("-".into(), |ratio| format!("{ratio:.2}")));
        }
        table_line(&self.name, &cells)
    }

    fn speed(&self, seconds: f64) -> f64 {
        match self.work {
            Work::Bytes { moved, .. } => moved / seconds,
            Work::Flops { count, .. } => count / seconds,
            Work::Host => 0.0,
        }
    }

    fn rate(&self, seconds: f64) -> String {
        let unit = match self.work {
            Work::Flops { .. } => "FLOP/s",
            Work::Bytes { .. } | Work::Host => "B/s",
        };
        rate_text(self.speed(seconds), unit)
    }

    fn input_rate(&self, seconds: f64) -> String {
        match self.work {
            Work::Bytes { input, .. } => rate_text(input / seconds, "B/s"),
            Work::Flops { .. } | Work::Host => "-".into(),
        }
    }

    pub fn json(&self) -> Value {
        let (bytes, flops) = match self.work {
            Work::Bytes { moved, .. } => (Some(moved), None),
            Work::Flops { count, .. } => (None, Some(count)),
            Work::Host => (None, None),
        };
        let samples = |result: &Result<Vec<f64>, String>| match result {
            Ok(samples) => json!({ "median": median(samples), "rounds": samples }),
            Err(reason) => json!({ "error": reason }),
        };
        let seconds: Vec<Value> = self.samples.iter().map(samples).collect();
        let ratio = self.ratio();
        json!({ "name": self.name, "bytes": bytes, "flops": flops, "seconds": seconds, "ratio": ratio })
    }
}

/// What could not be measured: for each library and reason the cases.
pub fn not_measured(rows: &[Row], names: &[String]) -> String {
    let mut reasons: Vec<((&str, &str), Vec<&str>)> = Vec::new();
    for row in rows {
        for (samples, name) in row.samples.iter().zip(names) {
            let Err(reason) = samples else { continue };
            let key = (name.as_str(), reason.as_str());
            match reasons.iter_mut().find(|(listed, _)| *listed == key) {
                Some((_, cases)) => cases.push(&row.name),
                None => reasons.push((key, vec![&row.name])),
            }
        }
    }
    let line = |((name, reason), cases): ((&str, &str), Vec<&str>)| {
        format!("\nNot measured, {name}: {reason}: {}\n", cases.join("; "))
    };
    reasons.into_iter().map(line).collect()
}

/// Head of a table of `Row::line`s.
pub fn head(first: &str, names: &[String], kind: Kind, host: bool) -> String {
    let mut cells = Vec::new();
    for (i, name) in names.iter().enumerate() {
        cells.extend([name.clone(), "spread".into()]);
        if i == 0 && !host {
            cells.push("rate".into());
            if kind == Kind::Cpu {
                cells.push("input".into());
            }
            cells.push("of limit".into());
        }
    }
    if names.len() > 1 {
        cells.push("ratio".into());
    }
    let rule: String = "|---|".to_owned() + &"--:|".repeat(cells.len());
    format!("{}\n{rule}", table_line(first, &cells))
}

pub fn table_line(name: &str, cells: &[String]) -> String {
    let cells: String = cells.iter().map(|cell| format!(" {cell:>10} |")).collect();
    format!("| {name:<46} |{cells}")
}

pub fn percent(part: f64, decimals: usize) -> String {
    format!("{:.decimals$}%", 100.0 * part)
}

pub fn time_text(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 1e-6 => (s * 1e9, "ns"),
        s if s < 1e-3 => (s * 1e6, "µs"),
        s => (s * 1e3, "ms"),
    };
    format!("{} {unit}", digits(value))
}

pub fn rate_text(per_second: f64, unit: &str) -> String {
    let (value, prefix) = match per_second {
        // Memory rates stay in GB/s, so that a column has one unit.
        r if r >= 1e12 && unit == "FLOP/s" => (r / 1e12, "T"),
        r => (r / 1e9, "G"),
    };
    format!("{} {prefix}{unit}", digits(value))
}

/// Three or four significant digits.
fn digits(value: f64) -> String {
    let decimals = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

const INTRO: &str = "# Benchmarks

`cargo xtask bench` measures the operators of this library on the machine at hand and writes its
section of this file: a GPU's, or, where there is none, the CPU's. `NVTE_BACKEND=cpu` measures the
CPU on a machine with a GPU too. With `--against NAME=LIB.so` another library with the same C ABI
runs in the same process, alternating with this one round by round; `--check` first compares the
outputs of the two. `cargo xtask bench layer` writes the sections of Transformer layers.

How to read the tables: times are medians over the rounds, `spread` is (slowest - fastest) / median.
`rate` counts each byte of inputs and outputs once, `input` those of the input alone; `of limit`
compares the rate with the limit stated above the table. `ratio` is the other library's time over
this library's: above 1, this library is faster. Inputs are random and rotate among sets larger than
the cache. A GPU's times are replays of CUDA graphs, without the host's cost, which has a table of its
own; before a sample of what its matrix units bound, it rests for 50 ms, so that each finds the same
clock.
";

fn markers(kind: Kind, suite: Suite) -> [String; 2] {
    let kind = if kind == Kind::Gpu { "gpu" } else { "cpu" };
    let suite = match suite {
        Suite::Operators => "",
        Suite::Layer => " layer",
        Suite::Kernels => " kernels",
        Suite::Field | Suite::CpuField => " field",
    };
    ["begin", "end"].map(|edge| format!("<!-- {edge} {kind}{suite} -->"))
}

/// The report with one section replaced, or added where there was none; the rest stays.
pub fn merge(old: Option<&str>, (kind, suite): (Kind, Suite), section: &str) -> String {
    let old = old.unwrap_or(INTRO);
    let [begin, end] = markers(kind, suite);
    let section = format!("{begin}\n{}\n{end}", section.trim());
    let place = old.find(&begin).and_then(|from| {
        let length = old[from..].find(&end)? + end.len();
        Some(from..from + length)
    });
    match place {
        Some(range) => format!("{}{section}{}", &old[..range.start], &old[range.end..]),
        None => format!("{}\n\n{section}\n", old.trim_end()),
    }
}

/// `YYYY-MM-DD` of days since 1970-01-01 (the civil-from-days algorithm of the C++ date library).
pub fn date(days: i64) -> String {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), 1.0);
    }

    fn row(samples: Vec<Result<Vec<f64>, String>>) -> Row {
        let work = Work::Bytes { moved: 2e5, input: 1e5 };
        Row { name: "copy".into(), work, samples }
    }

    #[test]
    fn ratio_is_taken_within_rounds() {
        // The clock halves in the last round; each round still says 2.
        let row = row(vec![Ok(vec![1e-6, 1e-6, 2e-6]), Ok(vec![2e-6, 2e-6, 4e-6])]);
        assert_eq!(row.ratio(), Some(2.0));
    }

    #[test]
    fn lines_match_their_head() {
        let limits = Limits { stream: (400e9, "copy".into()), matrix: None };
        let names = ["ours".to_string(), "other".to_string()];
        let columns = |text: &str| text.lines().next().unwrap().matches('|').count();
        let both = row(vec![Ok(vec![1e-6; 3]), Ok(vec![2e-6; 3])]);
        let line = both.line(Kind::Gpu, &limits);
        for part in ["1.00 µs", "200 GB/s", "50%", "0.0%", "2.00 |"] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert_eq!(columns(&line), columns(&head("operator", &names, Kind::Gpu, false)));
        let failed = row(vec![Ok(vec![1e-6; 3]), Err("no".into())]);
        assert_eq!(columns(&failed.line(Kind::Gpu, &limits)), columns(&line));
        let failed = [failed];
        assert_eq!(not_measured(&failed, &names), "\nNot measured, other: no: copy\n");
        let alone = row(vec![Ok(vec![1e-6; 3])]).line(Kind::Cpu, &limits);
        assert!(alone.contains("200 GB/s |   100 GB/s"), "{alone}");
        assert_eq!(columns(&alone), columns(&head("operator", &names[..1], Kind::Cpu, false)));
        let host = Row { work: Work::Host, ..both }.line(Kind::Gpu, &limits);
        assert_eq!(columns(&host), columns(&head("call", &names, Kind::Gpu, true)));
    }

    #[test]
    fn units() {
        assert_eq!(time_text(4.8e-5), "48.0 µs");
        assert_eq!(time_text(1.383e-3), "1.38 ms");
        assert_eq!(time_text(2.5e-7), "250 ns");
        assert_eq!(rate_text(4.195e12, "B/s"), "4195 GB/s");
        assert_eq!(rate_text(7.9e14, "FLOP/s"), "790 TFLOP/s");
    }

    #[test]
    fn merge_keeps_the_other_section() {
        let [gpu, cpu] = [Kind::Gpu, Kind::Cpu].map(|kind| (kind, Suite::Operators));
        let one = merge(None, gpu, "gpu 1");
        assert!(one.starts_with(INTRO.trim_end()));
        let both = merge(Some(&one), cpu, "cpu 1\n");
        let newer = merge(Some(&both), gpu, "gpu 2");
        assert_eq!(newer, both.replace("gpu 1", "gpu 2"));
        assert!(newer.contains("cpu 1"));
        assert_eq!(merge(Some(&newer), cpu, "cpu 1"), newer);
        let layers = merge(Some(&newer), (Kind::Gpu, Suite::Layer), "layers");
        assert_eq!(merge(Some(&layers), gpu, "gpu 1"), layers.replace("gpu 2", "gpu 1"));
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(20_454), "2026-01-01");
    }
}
