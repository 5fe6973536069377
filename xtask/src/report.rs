//! What ran, what failed, what was skipped and why.

use crate::process::Output;
use std::time::{Duration, Instant};

pub enum Outcome {
    Pass,
    Fail,
    Skip(String),
}

struct Step {
    name: String,
    results: Vec<(String, Outcome)>,
    time: Duration,
}

#[derive(Default)]
pub struct Report {
    steps: Vec<Step>,
    start: Option<Instant>,
}

impl Report {
    pub fn begin(&mut self, name: String) {
        self.end();
        eprintln!("== {name}");
        self.start = Some(Instant::now());
        self.steps.push(Step { name, results: Vec::new(), time: Duration::ZERO });
    }

    fn end(&mut self) {
        if let (Some(step), Some(start)) = (self.steps.last_mut(), self.start.take()) {
            step.time = start.elapsed();
            eprintln!("== {}: {:.1} s", step.name, step.time.as_secs_f64());
        }
    }

    pub fn add(&mut self, name: impl Into<String>, outcome: Outcome) {
        let name = name.into();
        match &outcome {
            Outcome::Pass => eprintln!("       pass {name}"),
            Outcome::Fail => eprintln!("     FAILED {name}"),
            Outcome::Skip(reason) => eprintln!("    skipped {name}: {reason}"),
        }
        self.steps.last_mut().expect("a step has begun").results.push((name, outcome));
    }

    pub fn check(&mut self, name: impl Into<String>, success: bool) {
        self.add(name, if success { Outcome::Pass } else { Outcome::Fail });
    }

    /// Adds the lines `NAME ... ok` of a program's output, `FAILED`, or `skipped: REASON`. A program that fails
    /// without such a line is a fault of its own.
    pub fn lines(&mut self, program: &str, output: &Output) {
        let mut found = [0; 2];
        for (name, verdict) in output.text.lines().filter_map(|line| line.split_once(" ... ")) {
            let outcome = match verdict.split_once(": ") {
                None if verdict == "ok" => Outcome::Pass,
                Some(("skipped", reason)) => Outcome::Skip(reason.to_owned()),
                _ if verdict.starts_with("FAILED") => Outcome::Fail,
                _ => continue,
            };
            found[usize::from(matches!(outcome, Outcome::Fail))] += 1;
            self.add(name, outcome);
        }
        if !output.success {
            eprint!("{}", output.text);
        }
        if found == [0, 0] || output.success == (found[1] > 0) {
            self.check(program, false);
        }
    }

    /// Prints the table and returns whether nothing failed.
    pub fn finish(mut self) -> bool {
        self.end();
        println!("\n{:<10}{:>8}{:>8}{:>9}{:>9}", "step", "passed", "failed", "skipped", "seconds");
        let mut total = [0; 3];
        for step in &self.steps {
            let count = step.count();
            total = [0, 1, 2].map(|i| total[i] + count[i]);
            let [passed, failed, skipped] = count;
            let time = step.time.as_secs_f64();
            println!("{:<10}{passed:>8}{failed:>8}{skipped:>9}{time:>9.1}", step.name);
        }
        for step in &self.steps {
            for (name, outcome) in &step.results {
                match outcome {
                    Outcome::Pass => {}
                    Outcome::Fail => println!("FAILED  {}: {name}", step.name),
                    Outcome::Skip(reason) => println!("skipped {}: {name}: {reason}", step.name),
                }
            }
        }
        let [passed, failed, skipped] = total;
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        failed == 0 && passed > 0
    }
}

impl Step {
    fn count(&self) -> [usize; 3] {
        let mut count = [0; 3];
        for (_, outcome) in &self.results {
            count[match outcome {
                Outcome::Pass => 0,
                Outcome::Fail => 1,
                Outcome::Skip(_) => 2,
            }] += 1;
        }
        count
    }
}
