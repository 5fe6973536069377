//! Runs the CUDA backend against the CPU backend on the same random arguments, straight through
//! their tables: what a cast, transpose or recipe writes must be equal to the bit, products within
//! rounding. Without a CUDA device each test says so and passes.
//!
//! A failure prints `NVTE_CASE=<test>:<seed>:<index>`; with that variable set, only that case runs.

#[path = "../common/mod.rs"]
mod common;

mod attention;
mod cast;
mod cast_fused;
mod experts;
mod extremes;
mod gemm;
mod groups;
mod memory;
mod multi_tensor;
mod normalization;
mod pointwise;
mod recipe;
mod swizzle;
mod transpose;

use common::*;
use nvte::backend::args::*;
use nvte::backend::{cpu_table, cuda_table};
use nvte::types::NVTE_Norm_Type;
use nvte::types::NVTEDType::{self, *};
use nvte::types::NVTEScalingMode::{self, *};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

const HIGH: [NVTEDType; 3] = [kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16];
const ALL: [NVTEDType; 5] =
    [kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3, kNVTEFloat8E5M2];
const SEED: u64 = 0x5EED;

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 32) as usize * n) >> 32
    }

    fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Floats of several characters: any bits, everyday values, zeros with a few specials.
    fn floats(&mut self, dtype: NVTEDType, len: usize) -> Vec<u8> {
        let width = size(dtype);
        let mut bytes = self.bytes(len * width);
        if width == 1 {
            return bytes;
        }
        // Top two bytes: sign, exponent and some of the mantissa.
        let (low, high) = if dtype == kNVTEFloat16 { (0x2800, 0x4FFF) } else { (0x3C00, 0x42FF) };
        let special: &[u16] = if dtype == kNVTEFloat16 {
            &[0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0xFFFF, 1, 0x8001, 0x7BFF, 0x3555]
        } else {
            &[0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 1, 0x8001, 0x7F7F, 0x0042]
        };
        let (specials, everyday) =
            self.pick(&[(0, 0), (0, 100), (0, 100), (1, 100), (30, 100), (1, 0)]);
        let zeros = self.chance(10);
        for element in bytes.chunks_exact_mut(width) {
            let top = if self.chance(specials) {
                element.fill(0);
                self.pick(special)
            } else if zeros {
                element.fill(0);
                0
            } else if everyday == 100 {
                (self.next() as u16 & 0x8000) | self.within(low, high) as u16
            } else {
                continue;
            };
            element[width - 2..].copy_from_slice(&top.to_le_bytes());
        }
        bytes
    }

    fn scale(&mut self) -> f32 {
        let sign = self.pick(&[1.0, -1.0f32]);
        sign * match self.below(6) {
            0 => 1.0,
            1 => 2f32.powi(self.within(0, 80) as i32 - 40),
            2 => self.pick(&[0.0, 1e-45, 1e-39, f32::MIN_POSITIVE, 1e38, f32::MAX]),
            _ => self.unit() * 100.0,
        }
    }

    fn noop(&mut self) -> Option<f32> {
        match self.below(8) {
            0 => Some(1.0),
            1 => Some(0.0),
            2 => Some(self.pick(&[2.0, -1.0, 1.0000001, f32::NAN, 0.99999994])),
            _ => None,
        }
    }

    fn shape(&mut self) -> (usize, usize) {
        let (rows, cols) = match self.below(10) {
            0 => (1, self.within(1, 300_000)),
            1 => (self.within(1, 300_000), 1),
            2 | 3 => (self.within(1, 40), self.within(1, 40)),
            4 => (16 * self.within(1, 40), 16 * self.within(1, 40)),
            5 => (128 * self.within(1, 10), 128 * self.within(1, 10)),
            6 => (self.within(1, 9), self.within(1, 100_000)),
            7 => (self.within(1, 100_000), self.within(1, 9)),
            8 => (self.within(1, 1000), self.within(1, 1000)),
            _ => (self.within(1, 2500), self.within(1, 2500)),
        };
        (rows, cols)
    }

    /// A whole number of elements to move a pointer by.
    fn shift(&mut self) -> usize {
        if self.chance(50) { 0 } else { self.within(0, 17) }
    }
}

impl Rng {
    /// Floats whose areas of up to 128 x 128 are each of one character, so that there are blocks of
    /// zeros, of subnormals, of NaN.
    fn areas(&mut self, dtype: NVTEDType, (rows, cols): (usize, usize)) -> Vec<u8> {
        let width = size(dtype);
        let mut bytes = self.floats(dtype, rows * cols);
        let side = self.pick(&[16, 32, 128]);
        for row in (0..rows).step_by(side) {
            for col in (0..cols).step_by(side) {
                let (nan, top) = match dtype {
                    kNVTEFloat16 => (0x7E00u16, 0x03FF),
                    _ => (0x7FC0, 0x007F),
                };
                let kind = self.below(12);
                for r in row..rows.min(row + side) {
                    for c in col..cols.min(col + side) {
                        let element = &mut bytes[(r * cols + c) * width..][..width];
                        let top_bytes =
                            u16::from_le_bytes(element[width - 2..].try_into().unwrap());
                        let top_bytes = match kind {
                            0 => top_bytes & 0x8000,
                            1 => top_bytes & (0x8000 | top),
                            2 => nan,
                            _ => continue,
                        };
                        if kind == 0 {
                            element.fill(0);
                        }
                        element[width - 2..].copy_from_slice(&top_bytes.to_le_bytes());
                    }
                }
            }
        }
        bytes
    }

    fn block_shape(&mut self) -> (usize, usize) {
        match self.below(3) {
            // Around the sides of blocks and tiles.
            0 => {
                let mut side = || {
                    let near = self.pick(&[16, 32, 64, 128, 256, 384, 512, 1024]);
                    (near + self.within(0, 2)).saturating_sub(1).max(1)
                };
                (side(), side())
            }
            1 => (32 * self.within(1, 20), 32 * self.within(1, 40)),
            _ => self.shape(),
        }
    }
}

impl Buffers {
    fn input(&mut self, rng: &mut Rng, dtype: NVTEDType, len: usize) -> Id {
        let bytes = rng.floats(dtype, len);
        let shift = rng.shift() * size(dtype);
        self.add(bytes, shift)
    }

    /// Poisoned, so that an element that is not written shows.
    fn output(&mut self, rng: &mut Rng, dtype: NVTEDType, len: usize) -> Id {
        let shift = rng.shift() * size(dtype);
        self.add(vec![0xCD; len * size(dtype)], shift)
    }

    fn floats(&mut self, values: impl IntoIterator<Item = f32>) -> Id {
        self.add(values.into_iter().flat_map(f32::to_le_bytes).collect(), 0)
    }
}

impl Buffers {
    fn ints(&mut self, values: impl IntoIterator<Item = usize>) -> Id {
        self.add(values.into_iter().flat_map(|v| (v as i64).to_le_bytes()).collect(), 0)
    }
}

impl Buffers {
    /// Values in [-top, top].
    fn units(&mut self, rng: &mut Rng, dtype: NVTEDType, len: usize, top: f32) -> Id {
        let values: Vec<u8> = (0..len).flat_map(|_| (top * rng.unit()).to_le_bytes()).collect();
        let shift = rng.shift() * size(dtype);
        self.add(cast(&values, kNVTEFloat32, dtype), shift)
    }
}

/// A scale matrix: its dtype, rows, and the elements that each row needs.
fn scale_matrix(
    mode: NVTEScalingMode,
    colwise: bool,
    (rows, cols): (usize, usize),
) -> (NVTEDType, usize, usize) {
    let (down, across) = (rows.div_ceil(128), cols.div_ceil(128));
    match (mode, colwise) {
        (NVTE_MXFP8_1D_SCALING, false) => (kNVTEFloat8E8M0, 128 * down, 4 * across),
        (NVTE_MXFP8_1D_SCALING, true) => (kNVTEFloat8E8M0, 4 * down, 128 * across),
        (NVTE_BLOCK_SCALING_1D, false) => (kNVTEFloat32, across, rows),
        (NVTE_BLOCK_SCALING_1D, true) => (kNVTEFloat32, down, cols),
        (_, false) => (kNVTEFloat32, down, across),
        (_, true) => (kNVTEFloat32, across, down),
    }
}

const BLOCK_MODES: [NVTEScalingMode; 3] =
    [NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D];

impl Side<'_> {
    fn maybe<T>(&self, id: Option<Id>) -> *mut T {
        id.map_or(null_mut(), |id| self.at(id))
    }
}

/// What a call left in the buffers, guards checked and cut off; none if it was UNIMPLEMENTED.
struct Answer {
    outcome: Outcome,
    reason: String,
    contents: Vec<Vec<u8>>,
}

impl Answer {
    fn unimplemented(&self) -> bool {
        self.outcome.status == BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED
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

/// Runs a case on both backends, which may write to the given buffers only.
fn answers(
    buffers: &Buffers,
    outputs: &[Id],
    call: impl Fn(&Side) -> Outcome,
) -> Result<[Answer; 2], String> {
    let cpu = run(cpu_table(), buffers, &call).map_err(|e| format!("cpu: {e}"))?;
    let cuda = run(cuda_table()?, buffers, &call).map_err(|e| format!("cuda: {e}"))?;
    for (side, answer) in [("cpu", &cpu), ("cuda", &cuda)] {
        if answer.unimplemented() {
            return Err(format!("{side}: UNIMPLEMENTED: {}", answer.reason));
        }
        unchanged(buffers, &answer.contents, outputs.iter().copied())?;
    }
    Ok([cpu, cuda])
}

/// Runs a case on both backends and compares the listed buffers; all others must be as before.
fn both(
    buffers: &Buffers,
    outputs: &[(&str, NVTEDType, Option<Id>)],
    call: impl Fn(&Side) -> Outcome,
) -> Check {
    both_but(buffers, outputs, None, call)
}

/// As [`both`], but with a buffer where a backend may leave anything.
fn both_but(
    buffers: &Buffers,
    outputs: &[(&str, NVTEDType, Option<Id>)],
    workspace: Option<Id>,
    call: impl Fn(&Side) -> Outcome,
) -> Check {
    let written: Vec<Id> = outputs.iter().filter_map(|o| o.2).chain(workspace).collect();
    let [cpu, cuda] = answers(buffers, &written, call)?;
    for &(name, dtype, id) in outputs {
        if let Some(Id(id)) = id {
            equal(name, dtype, &cpu.contents[id], &cuda.contents[id])?;
        }
    }
    Ok(())
}

/// As `both`, of outputs that need not be equal to the bit.
fn nearly(
    buffers: &Buffers,
    dtype: NVTEDType,
    absolute: f64,
    outputs: &[Id],
    call: impl Fn(&Side) -> Outcome,
) -> Check {
    let [cpu, cuda] = answers(buffers, outputs, call)?;
    let mut all = outputs.iter();
    all.try_for_each(|&Id(id)| {
        close("output", dtype, absolute, &cpu.contents[id], &cuda.contents[id])
    })
}

/// After so many a test gives up.
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
        if let Err(error) = case(&mut Rng::new(name, seed, index), index) {
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

/// Runs a case on both backends; the listed buffers may differ by the given bounds and one spacing of
/// their types.
fn near(
    buffers: &Buffers,
    outputs: &[(&str, NVTEDType, Option<Id>, f64)],
    call: impl Fn(&Side) -> Outcome,
) -> Check {
    near_but(buffers, outputs, &[], call)
}

/// As [`near`], with buffers that may hold anything afterwards.
fn near_but(
    buffers: &Buffers,
    outputs: &[(&str, NVTEDType, Option<Id>, f64)],
    scratch: &[Id],
    call: impl Fn(&Side) -> Outcome,
) -> Check {
    let cpu = run(cpu_table(), buffers, &call).map_err(|e| format!("cpu: {e}"))?;
    let cuda = run(cuda_table()?, buffers, &call).map_err(|e| format!("cuda: {e}"))?;
    for (side, answer) in [("cpu", &cpu), ("cuda", &cuda)] {
        if answer.unimplemented() {
            return Err(format!("{side}: UNIMPLEMENTED: {}", answer.reason));
        }
        let written = outputs.iter().filter_map(|o| o.2).chain(scratch.iter().copied());
        unchanged(buffers, &answer.contents, written)?;
    }
    for &(name, dtype, id, bound) in outputs {
        if let Some(Id(id)) = id {
            close(name, dtype, bound, &cpu.contents[id], &cuda.contents[id])?;
        }
    }
    Ok(())
}
