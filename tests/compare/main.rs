//! Runs the CUDA backend against the CPU backend on the same random arguments, straight through
//! their tables: what a cast, transpose or recipe writes must be equal to the bit, products within
//! rounding. Without a CUDA device each test says so and passes.
//!
//! A failure prints `NVTE_CASE=<test>:<seed>:<index>`; with that variable set, only that case runs.

#[path = "../common/mod.rs"]
mod common;

#[path = "../cases/mod.rs"]
mod operators;

mod attention;
mod extremes;
mod gemm;

use common::*;
use nvte::backend::args::*;
use nvte::backend::{cpu_table, cuda_table};
use nvte::types::NVTEDType::{self, *};
use nvte::types::NVTEScalingMode::{self, *};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// What a call left in the buffers, guards checked and cut off; none if it was UNIMPLEMENTED.
struct Answer {
    outcome: Outcome,
    reason: String,
    contents: Vec<Vec<u8>>,
}

impl Answer {
    fn unimplemented(&self) -> bool {
        self.outcome.status() == BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED
    }
}

fn run(
    table: &'static OpTable,
    buffers: &Buffers,
    call: &dyn Fn(&Side) -> Outcome,
) -> Result<Answer, String> {
    let side = Side::open(table, buffers)?;
    side.fill()?;
    let outcome = call(&side);
    let mut answer = Answer { outcome, reason: reason(outcome), contents: Vec::new() };
    if !answer.unimplemented() {
        ok(outcome, "call")?;
    }
    answer.contents = side.contents()?;
    if answer.unimplemented() {
        unchanged(buffers, &answer.contents, [])
            .map_err(|e| format!("UNIMPLEMENTED ({}), but {e}", answer.reason))?;
    }
    Ok(answer)
}

/// Runs a case on both backends, which may write to its outputs only, and compares these.
fn compare(case: &Case) -> Check {
    let compared = || {
        let cpu = run(cpu_table(), &case.buffers, &case.call).map_err(|e| format!("cpu: {e}"))?;
        let cuda =
            run(cuda_table()?, &case.buffers, &case.call).map_err(|e| format!("cuda: {e}"))?;
        for (side, answer) in [("cpu", &cpu), ("cuda", &cuda)] {
            if answer.unimplemented() {
                return Err(format!("{side}: UNIMPLEMENTED: {}", answer.reason));
            }
            unchanged(&case.buffers, &answer.contents, case.outputs.iter().map(|o| o.id))?;
        }
        case.outputs.iter().try_for_each(|output| output.check(&cpu.contents, &cuda.contents))
    };
    compared().map_err(|e| format!("{}: {e}", case.what))
}

/// A test gives up after this many failures.
const MOST_FAILURES: usize = 20;

/// Calls `case` for every index, or for the one in NVTE_CASE; false if not all ran.
fn cases(name: &str, count: usize, mut case: impl FnMut(&mut Rng, usize) -> Check) -> bool {
    if cuda(name).is_none() {
        return false;
    }
    let one = std::env::var("NVTE_CASE").ok().map(|text| {
        let parts: Vec<&str> = text.split(':').collect();
        let [test, seed, index] = parts[..] else { panic!("NVTE_CASE={text}: test:seed:index") };
        (test.to_owned(), seed.parse().expect("NVTE_CASE"), index.parse().expect("NVTE_CASE"))
    });
    let (seed, indices) = match one {
        Some((test, ..)) if test != name => return false,
        Some((_, seed, index)) => (seed, index..index + 1),
        None => (SEED, 0..count),
    };
    let all = indices.len() == count;
    let mut failed = 0;
    for index in indices {
        if let Err(error) = case(&mut Rng::new(name, seed, index, None), index) {
            eprintln!(
                "{error}\nto repeat: NVTE_CASE={name}:{seed}:{index} \
                 cargo test --release --test compare {name}"
            );
            failed += 1;
            if failed == MOST_FAILURES {
                break;
            }
        }
    }
    assert!(failed == 0, "{name}: {failed} cases failed");
    all
}

/// A test for each generator of tests/cases.
macro_rules! tests {
    ($($module:ident: $($operator:ident $count:literal),*;)*) => { $($(
        #[test]
        fn $operator() {
            let name = stringify!($operator);
            cases(name, $count, |rng, index| compare(&operators::$module::$operator(rng, index)));
        }
    )*)* };
}
operators::operators!(tests);
