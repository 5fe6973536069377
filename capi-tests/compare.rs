//! Runs the CUDA backend against the CPU backend on the same random arguments, straight through
//! their tables: what a cast, transpose or recipe writes must be equal to the bit, products within
//! rounding. Without a CUDA device each test says so and passes.
//!
//! A failure prints `NVTE_CASE=<test>:<seed>:<index>`; with that variable set, only that case runs.

mod common;

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

/// Runs a case on both backends and compares the listed buffers; all others must be as before.
fn both(
    buffers: &Buffers,
    outputs: &[(&str, NVTEDType, Option<Id>)],
    call: impl Fn(&Side) -> Outcome,
) -> Check {
    let cpu = run(cpu_table(), buffers, &call).map_err(|e| format!("cpu: {e}"))?;
    let cuda = run(cuda_table()?, buffers, &call).map_err(|e| format!("cuda: {e}"))?;
    for (side, answer) in [("cpu", &cpu), ("cuda", &cuda)] {
        if answer.unimplemented() {
            return Err(format!("{side}: UNIMPLEMENTED: {}", answer.reason));
        }
        unchanged(buffers, &answer.contents, outputs.iter().filter_map(|o| o.2))?;
    }
    for &(name, dtype, id) in outputs {
        if let Some(Id(id)) = id {
            equal(name, dtype, &cpu.contents[id], &cuda.contents[id])?;
        }
    }
    Ok(())
}

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
    for index in indices {
        if let Err(error) = case(&mut Rng::new(name, seed, index), index) {
            panic!(
                "{error}\nto repeat: NVTE_CASE={name}:{seed}:{index} \
                 cargo test --release --test compare {name}"
            );
        }
    }
    all
}

fn quantize_case(rng: &mut Rng, index: usize) -> Check {
    let (input_dtype, output_dtype) = (HIGH[index % 3], ALL[index / 3 % 5]);
    let (rows, cols) = rng.shape();
    let mut b = Buffers::default();
    let input = b.input(rng, input_dtype, rows * cols);
    let (with_row, with_col) =
        rng.pick(&[(true, false), (true, true), (true, true), (false, true)]);
    let rowwise = with_row.then(|| b.output(rng, output_dtype, rows * cols));
    let colwise = with_col.then(|| b.output(rng, output_dtype, rows * cols));
    let scale = rng.chance(80).then(|| b.float(rng.scale()));
    let old_amax = rng.pick(&[0.0, 0.0, 1e-3, 1.0, 1e30, f32::INFINITY]);
    let amax = rng.chance(80).then(|| b.float(old_amax));
    let scale_inv = (is_fp8(output_dtype) && rng.chance(90)).then(|| b.float(-7.0));
    let own = rng.chance(30).then(|| b.float(-7.0));
    let col_scale_inv = if is_fp8(output_dtype) { own.or(scale_inv) } else { None };
    let noop = rng.noop().map(|flag| b.float(flag));
    let outputs = [
        ("rowwise", output_dtype, rowwise),
        ("colwise", output_dtype, colwise),
        ("amax", kNVTEFloat32, amax),
        ("scale_inv", kNVTEFloat32, scale_inv),
        ("colwise scale_inv", kNVTEFloat32, col_scale_inv),
    ];
    both(&b, &outputs, |side| {
        let args = QuantizeArgs {
            input: side.at(input),
            rowwise: side.maybe(rowwise),
            colwise: side.maybe(colwise),
            scale: side.maybe(scale),
            amax: side.maybe(amax),
            rowwise_scale_inv: side.maybe(scale_inv),
            colwise_scale_inv: side.maybe(col_scale_inv),
            noop: side.maybe(noop),
            rows,
            cols,
            input_dtype,
            output_dtype,
            ..QUANTIZE
        };
        entry(side, side.table.quantize, args)
    })
    .map_err(|e| format!("{input_dtype:?} to {output_dtype:?}, {rows}x{cols}: {e}"))
}

#[test]
fn quantize() {
    cases("quantize", 600, quantize_case);
}

#[test]
fn dequantize() {
    cases("dequantize", 300, |rng, index| {
        let (input_dtype, output_dtype) = (FP8[index % 2], HIGH[index / 2 % 3]);
        let (rows, cols) = rng.shape();
        let mut b = Buffers::default();
        let input = b.input(rng, input_dtype, rows * cols);
        let output = b.output(rng, output_dtype, rows * cols);
        let scale_inv = b.float(rng.scale());
        let colwise = rng.chance(50);
        both(&b, &[("output", output_dtype, Some(output))], |side| {
            let args = DequantizeArgs {
                input: side.at(input),
                output: side.at(output),
                scale_inv: side.at(scale_inv),
                rows,
                cols,
                input_dtype,
                output_dtype,
                colwise,
                ..DEQUANTIZE
            };
            entry(side, side.table.dequantize, args)
        })
        .map_err(|e| format!("{input_dtype:?} to {output_dtype:?}, {rows}x{cols} {colwise}: {e}"))
    });
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

#[test]
fn quantize_blocks() {
    cases("quantize_blocks", 900, |rng, index| {
        let mode = BLOCK_MODES[index % 3];
        let mxfp8 = mode == NVTE_MXFP8_1D_SCALING;
        let (input_dtype, output_dtype) = (HIGH[index / 3 % 3], FP8[index / 9 % 2]);
        let (rows, cols) = rng.block_shape();
        let mut b = Buffers::default();
        let values = rng.areas(input_dtype, (rows, cols));
        let input = b.add(values, rng.shift() * size(input_dtype));
        let wanted = rng.pick(&[[true, false], [true, true], [true, true], [false, true]]);
        let data = wanted.map(|wanted| wanted.then(|| b.output(rng, output_dtype, rows * cols)));
        let slack = if mxfp8 { 0 } else { rng.pick(&[0, 0, 1, 4]) };
        let matrices = [false, true].map(|colwise| scale_matrix(mode, colwise, (rows, cols)));
        let [row_stride, col_stride] = matrices.map(|(_, _, needed)| needed + slack);
        let [row_scales, col_scales] = [0, 1].map(|i| {
            let (dtype, lines, needed) = matrices[i];
            wanted[i].then(|| b.output(rng, dtype, lines * (needed + slack)))
        });
        let old_amax = rng.pick(&[0.0, 1e-3, 1e30]);
        let amax = (mxfp8 && rng.chance(50)).then(|| b.float(old_amax));
        let noop = rng.noop().map(|flag| b.float(flag));
        let epsilon = rng.pick(&[0.0, 0.0, 1.0, 1e-20, 1e30]);
        let pow2 = !mxfp8 && rng.chance(50);
        let (square_blocks, swizzled) = (mxfp8 && rng.chance(40), mxfp8 && rng.chance(40));
        // As bytes: every bit of a scale counts, and so do the entries that are not written.
        let outputs = [
            ("rowwise", output_dtype, data[0]),
            ("colwise", output_dtype, data[1]),
            ("rowwise scale_inv", kNVTEByte, row_scales),
            ("colwise scale_inv", kNVTEByte, col_scales),
            ("amax", kNVTEFloat32, amax),
        ];
        both(&b, &outputs, |side| {
            let args = QuantizeArgs {
                input: side.at(input),
                rowwise: side.maybe(data[0]),
                colwise: side.maybe(data[1]),
                scale: null(),
                amax: side.maybe(amax),
                rowwise_scale_inv: side.maybe(row_scales),
                colwise_scale_inv: side.maybe(col_scales),
                noop: side.maybe(noop),
                rows,
                cols,
                rowwise_scale_stride: row_stride,
                colwise_scale_stride: col_stride,
                epsilon,
                mode,
                input_dtype,
                output_dtype,
                pow2,
                square_blocks,
                swizzled,
                fusion: Fusion::NONE,
                group: Group::NONE,
            };
            entry(side, side.table.quantize, args)
        })
        .map_err(|e| {
            format!(
                "{mode:?}, {input_dtype:?} to {output_dtype:?}, {rows}x{cols}, directions {wanted:?}, \
                 pow2 {pow2}, epsilon {epsilon}, square {square_blocks}, swizzled {swizzled}: {e}"
            )
        })
    });
}

#[test]
fn dequantize_blocks() {
    cases("dequantize_blocks", 600, |rng, index| {
        let mode = BLOCK_MODES[index % 3];
        let mxfp8 = mode == NVTE_MXFP8_1D_SCALING;
        let (input_dtype, output_dtype) = (FP8[index / 3 % 2], HIGH[index / 6 % 3]);
        let (rows, cols) = rng.block_shape();
        let (colwise, swizzled) = (rng.chance(50), mxfp8 && rng.chance(40));
        let (scale_dtype, lines, needed) = scale_matrix(mode, colwise, (rows, cols));
        let scale_stride = needed + if mxfp8 { 0 } else { rng.pick(&[0, 0, 1, 4]) };
        let mut b = Buffers::default();
        let input = b.input(rng, input_dtype, rows * cols);
        let scale_inv = b.input(rng, scale_dtype, lines * scale_stride);
        let output = b.output(rng, output_dtype, rows * cols);
        both(&b, &[("output", output_dtype, Some(output))], |side| {
            let args = DequantizeArgs {
                input: side.at(input),
                output: side.at(output),
                scale_inv: side.at(scale_inv),
                rows,
                cols,
                scale_stride,
                mode,
                input_dtype,
                output_dtype,
                colwise,
                swizzled,
                group: Group::NONE,
            };
            entry(side, side.table.dequantize, args)
        })
        .map_err(|e| {
            format!(
                "{mode:?}, {input_dtype:?} to {output_dtype:?}, {rows}x{cols}, colwise {colwise}, \
                 swizzled {swizzled}: {e}"
            )
        })
    });
}

#[test]
fn transpose() {
    cases("transpose", 300, |rng, index| {
        let (element_size, dtype) =
            [(1, kNVTEByte), (2, kNVTEFloat16), (4, kNVTEFloat32)][index % 3];
        let (rows, cols) = rng.shape();
        let mut b = Buffers::default();
        let bytes = rng.bytes(rows * cols * element_size);
        let input = b.add(bytes, rng.shift() * element_size);
        let output = b.output(rng, dtype, rows * cols);
        let noop = rng.noop().map(|flag| b.float(flag));
        // As bytes, since a transpose keeps the bits of a NaN.
        both(&b, &[("output", kNVTEByte, Some(output))], |side| {
            let (input, output, noop) = (side.at(input), side.at(output), side.maybe(noop));
            let args = TransposeArgs { input, output, noop, rows, cols, element_size };
            entry(side, side.table.transpose, args)
        })
        .map_err(|e| format!("{element_size} bytes, {rows}x{cols}: {e}"))
    });
}

#[test]
fn amax() {
    cases("amax", 200, |rng, index| {
        let dtype = HIGH[index % 3];
        let (rows, cols) = rng.shape();
        let numel = if rng.chance(5) { 0 } else { rows * cols };
        let mut b = Buffers::default();
        let input = b.input(rng, dtype, numel);
        let amax = b.float(rng.pick(&[0.0, 123.0, f32::NAN]));
        let noop = rng.noop().map(|flag| b.float(flag));
        both(&b, &[("amax", kNVTEFloat32, Some(amax))], |side| {
            let (input, amax, noop) = (side.at(input), side.at(amax), side.maybe(noop));
            entry(side, side.table.amax, AmaxArgs { input, amax, noop, numel, dtype })
        })
        .map_err(|e| format!("{dtype:?}, {numel}: {e}"))
    });
}

#[test]
fn scale_from_amax() {
    cases("scale_from_amax", 300, |rng, _| {
        let special = rng.pick(&[0.0, f32::INFINITY, f32::NAN, 1e-45, 1e-39, 1e-36, f32::MAX]);
        let value = if rng.chance(40) { special } else { rng.scale().abs() };
        let mut b = Buffers::default();
        let (amax, scale) = (b.float(value), b.float(-7.0));
        let noop = rng.noop().map(|flag| b.float(flag));
        let (fp8_max, pow2) = (rng.pick(&[448.0, 57344.0]), rng.chance(50));
        let epsilon = rng.pick(&[0.0, 0.0, 1e-12, 1.0]);
        both(&b, &[("scale", kNVTEFloat32, Some(scale))], |side| {
            let args = ScaleFromAmaxArgs {
                amax: side.at(amax),
                scale: side.at(scale),
                noop: side.maybe(noop),
                fp8_max,
                epsilon,
                pow2,
            };
            entry(side, side.table.scale_from_amax, args)
        })
        .map_err(|e| format!("amax {value:e}, epsilon {epsilon:e}, pow2 {pow2}: {e}"))
    });
}

#[test]
fn delayed_scaling() {
    struct Tensor {
        history: Id,
        scale: Id,
        new_history: Id,
        new_scale: Id,
        num_scales: usize,
    }
    cases("delayed_scaling", 150, |rng, _| {
        let mut b = Buffers::default();
        let length = rng.pick(&[1, 2, 3, 16, 64, 1024, 1500]);
        let num_entries = rng.pick(&[1, 1, 2, 7, 33, 300]);
        let num_entries = if length > 100 { num_entries.min(7) } else { num_entries };
        let value = |rng: &mut Rng| match rng.below(12) {
            0 | 1 => 0.0,
            2 => rng.pick(&[f32::INFINITY, f32::NAN, 1e-45, 1e-38, f32::MAX, -0.0]),
            _ => rng.unit().abs() * 100.0,
        };
        let mut names = Vec::new();
        let mut tensors = Vec::new();
        for _ in 0..num_entries {
            let num_scales = rng.pick(&[1, 2, 3, 40]);
            let history = b.floats((0..length * num_scales).map(|_| value(rng)));
            let scale = b.floats((0..num_scales).map(|_| value(rng)));
            let in_place = rng.chance(50);
            let mut output = |from: Id, len| {
                if in_place { from } else { b.add(vec![0xCD; len * 4], 0) }
            };
            let new_history = output(history, length * num_scales);
            let new_scale = output(scale, num_scales);
            names.push(("history", kNVTEFloat32, Some(new_history)));
            names.push(("scale", kNVTEFloat32, Some(new_scale)));
            tensors.push(Tensor { history, scale, new_history, new_scale, num_scales });
        }
        let total: usize = tensors.iter().map(|t| t.num_scales).sum();
        let reduced = rng.chance(50).then(|| b.floats((0..total).map(|_| value(rng))));
        let algo =
            rng.pick(&[AmaxAlgo::NVTEX_AMAX_ALGO_MAX, AmaxAlgo::NVTEX_AMAX_ALGO_MOST_RECENT]);
        let keep_if_unused = rng.chance(50);
        let scaled_max = rng.pick(&[448.0, 57344.0, 224.0]);
        both(&b, &names, |side| {
            let entries: Vec<_> = tensors
                .iter()
                .map(|t| DelayedScalingEntry {
                    history: side.at(t.history),
                    scale: side.at(t.scale),
                    new_history: side.at(t.new_history),
                    new_scale: side.at(t.new_scale),
                    num_scales: t.num_scales,
                })
                .collect();
            let args = DelayedScalingArgs {
                entries: entries.as_ptr(),
                num_entries,
                reduced_amax: side.maybe(reduced),
                length,
                scaled_max,
                algo,
                keep_if_unused,
            };
            entry(side, side.table.delayed_scaling, args)
        })
        .map_err(|e| format!("{num_entries} of length {length}, {algo:?}, {keep_if_unused}: {e}"))
    });
}

#[test]
fn offsets() {
    cases("offsets", 200, |rng, _| {
        const INTS: [NVTEDType; 2] = [kNVTEInt32, kNVTEInt64];
        let mut b = Buffers::default();
        let length = rng.pick(&[1, 2, 4, 31, 255, 256, 257, 1024, 1025, 5000]);
        let [first_dtype, last_dtype] = [rng.pick(&INTS), rng.pick(&INTS)];
        let top = rng.pick(&[10, 1000, 1_000_000, usize::from(u16::MAX) << 15]);
        let dims = |rng: &mut Rng, b: &mut Buffers, dtype| {
            let negative = rng.chance(10);
            let values = (0..length).map(|_| {
                let dim = if rng.chance(10) { 0 } else { rng.within(1, top) as i64 };
                (if negative { -dim } else { dim }).to_le_bytes()[..size(dtype)].to_vec()
            });
            let bytes = values.collect::<Vec<_>>().concat();
            b.add(bytes, 0)
        };
        let first = dims(rng, &mut b, first_dtype);
        let last = rng.chance(50).then(|| dims(rng, &mut b, last_dtype));
        let outputs: Vec<_> = (0..rng.pick(&[1, 2, 3, 8, 9, 20]))
            .map(|_| {
                let dtype = rng.pick(&INTS);
                let stride = rng.pick(&[1, 7, 128, 0, -3, 1 << 33]);
                let leading_zero = rng.chance(50);
                let ptr = b.add(vec![0xCD; (length + usize::from(leading_zero)) * size(dtype)], 0);
                (ptr, stride, dtype, leading_zero)
            })
            .collect();
        let names: Vec<_> = outputs.iter().map(|o| ("output", o.2, Some(o.0))).collect();
        both(&b, &names, |side| {
            let outputs: Vec<_> = outputs
                .iter()
                .map(|&(ptr, stride, dtype, leading_zero)| OffsetsOutput {
                    ptr: side.at(ptr),
                    stride,
                    dtype,
                    leading_zero,
                })
                .collect();
            let args = OffsetsArgs {
                first: side.at(first),
                last: side.maybe(last),
                outputs: outputs.as_ptr(),
                num_outputs: outputs.len(),
                length,
                first_dtype,
                last_dtype,
            };
            entry(side, side.table.offsets, args)
        })
        .map_err(|e| format!("{length} of {first_dtype:?} and {last_dtype:?}: {e}"))
    });
}

#[test]
fn memset_and_host_copy() {
    cases("memset_and_host_copy", 200, |rng, index| {
        let bytes = match rng.below(4) {
            0 => rng.within(1, 20),
            1 => rng.pick(&[4, 16, 128, 2047, 2048, 2049, 4095, 4096, 4097, 8192]),
            2 => rng.within(1, 10_000),
            _ => rng.within(1, 3_000_000),
        };
        let mut b = Buffers::default();
        if index % 2 == 0 {
            let (ptr, value) = (b.add(vec![0xCD; bytes], rng.within(0, 33)), rng.next() as u8);
            both(&b, &[("memset", kNVTEByte, Some(ptr))], |side| {
                entry(side, side.table.memset, MemsetArgs { ptr: side.at(ptr), bytes, value })
            })
        } else {
            let bytes = bytes.min(100_000);
            let values = rng.bytes(bytes);
            let device = b.add(vec![0xCD; bytes], 4 * rng.within(0, 9));
            both(&b, &[("host_copy", kNVTEByte, Some(device))], |side| {
                // A copy that is gone before the stream has run.
                let host = values.clone();
                let host = host.as_ptr().cast();
                entry(
                    side,
                    side.table.host_copy,
                    HostCopyArgs { host, device: side.at(device), bytes },
                )
            })
        }
        .map_err(|e| format!("{bytes} bytes: {e}"))
    });
}

use GemmEpilogue::*;

const EPILOGUES: [GemmEpilogue; 7] = [
    NVTEX_EPILOGUE_NONE,
    NVTEX_EPILOGUE_BIAS,
    NVTEX_EPILOGUE_GELU,
    NVTEX_EPILOGUE_GELU_BIAS,
    NVTEX_EPILOGUE_BGRAD,
    NVTEX_EPILOGUE_DGELU,
    NVTEX_EPILOGUE_DGELU_BGRAD,
];
/// Per combination of types, transposes and epilogue: plain multiples of 16, then anything.
const VARIANTS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct GemmKind {
    a: usize,
    b: usize,
    d: usize,
    transa: bool,
    transb: bool,
    epilogue: usize,
}

impl GemmKind {
    fn of(mut index: usize) -> Self {
        let mut digit = |base| {
            let digit = index % base;
            index /= base;
            digit
        };
        Self {
            epilogue: digit(7),
            transa: digit(2) == 1,
            transb: digit(2) == 1,
            d: digit(5),
            b: digit(5),
            a: digit(5),
        }
    }

    /// What the operators promise on Hopper.
    fn required(&self) -> bool {
        let (a, b, d) = (ALL[self.a], ALL[self.b], ALL[self.d]);
        self.epilogue == 0
            && if is_fp8(a) {
                let both_wide = a == kNVTEFloat8E5M2 && b == kNVTEFloat8E5M2;
                is_fp8(b) && !both_wide && self.transa && !self.transb && d == kNVTEBFloat16
            } else {
                a == b && (d == a || d == kNVTEFloat32)
            }
    }
}

impl std::fmt::Display for GemmKind {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let flag = |t| if t { 'T' } else { 'N' };
        let (a, b, d) = (ALL[self.a], ALL[self.b], ALL[self.d]);
        let (ta, tb) = (flag(self.transa), flag(self.transb));
        write!(f, "{a:?} x {b:?} -> {d:?} {ta}{tb} {:?}", EPILOGUES[self.epilogue])
    }
}

/// Runs one product; Some(reason) if CUDA does not implement it.
fn gemm_case(
    rng: &mut Rng,
    kind: GemmKind,
    plain: bool,
    workspace: (*mut c_void, usize),
) -> Result<Option<String>, String> {
    let (a_dtype, b_dtype, d_dtype) = (ALL[kind.a], ALL[kind.b], ALL[kind.d]);
    let epilogue = EPILOGUES[kind.epilogue];
    let mut dim = |top| {
        if plain {
            16 * rng.within(1, top / 16)
        } else {
            match rng.below(6) {
                0 => rng.within(1, 8),
                1 => 8 * rng.within(1, top / 8),
                _ => rng.within(1, top),
            }
        }
    };
    let (m, n, mut k) = (dim(300), dim(300), dim(700));
    if !plain && rng.chance(5) {
        k = 0;
    }
    let mut b = Buffers::default();
    let matrix = |rng: &mut Rng, b: &mut Buffers, dtype, len: usize, shifted: bool| {
        let values: Vec<u8> = (0..len).flat_map(|_| rng.unit().to_le_bytes()).collect();
        let bytes = cast(&values, kNVTEFloat32, dtype);
        let shift = if plain || !shifted { 0 } else { rng.shift() * size(dtype) };
        b.add(bytes, shift)
    };
    let a_id = matrix(rng, &mut b, a_dtype, m * k, true);
    let b_id = matrix(rng, &mut b, b_dtype, n * k, true);
    let beta = if plain { 0.0 } else { rng.pick(&[0.0, 0.0, 1.0, -0.5]) };
    // With beta 0, C is NaN: it must not be read.
    let d_id = if beta == 0.0 {
        b.add(vec![0xFF; n * m * size(d_dtype)], 0)
    } else {
        matrix(rng, &mut b, d_dtype, n * m, true)
    };
    let c_id = if beta != 0.0 && rng.chance(50) {
        matrix(rng, &mut b, d_dtype, n * m, true)
    } else {
        d_id
    };
    let alpha = if plain { 1.0 } else { rng.pick(&[1.0, 1.0, 0.5, -2.0]) };
    let scale = |rng: &mut Rng, b: &mut Buffers, dtype| {
        let value = if is_fp8(dtype) { 0.5 + rng.unit().abs() } else { 1.0 };
        (value, is_fp8(dtype).then(|| b.float(value)))
    };
    let (scale_a, scale_a_id) = scale(rng, &mut b, a_dtype);
    let (scale_b, scale_b_id) = scale(rng, &mut b, b_dtype);
    let (scale_d, scale_d_id) = scale(rng, &mut b, d_dtype);
    let amax_d = (is_fp8(d_dtype) && rng.chance(80)).then(|| b.float(0.0));
    let scale_inv_d = (is_fp8(d_dtype) && rng.chance(80)).then(|| b.float(-7.0));
    let wide = if is_fp8(d_dtype) { kNVTEBFloat16 } else { d_dtype };
    let bias_dtype = if plain { wide } else { rng.pick(&[wide, wide, HIGH[0], HIGH[1], HIGH[2]]) };
    let aux_dtype = if plain { wide } else { rng.pick(&[wide, wide, HIGH[0], HIGH[1], HIGH[2]]) };
    let gelu = matches!(epilogue, NVTEX_EPILOGUE_GELU | NVTEX_EPILOGUE_GELU_BIAS);
    let dgelu = matches!(epilogue, NVTEX_EPILOGUE_DGELU | NVTEX_EPILOGUE_DGELU_BGRAD);
    let reads_bias = matches!(epilogue, NVTEX_EPILOGUE_BIAS | NVTEX_EPILOGUE_GELU_BIAS);
    let bias_len = if epilogue == NVTEX_EPILOGUE_BGRAD { n } else { m };
    let writes_bias = matches!(epilogue, NVTEX_EPILOGUE_BGRAD | NVTEX_EPILOGUE_DGELU_BGRAD);
    let bias = (reads_bias || writes_bias).then(|| {
        if reads_bias {
            matrix(rng, &mut b, bias_dtype, bias_len, true)
        } else {
            b.output(rng, bias_dtype, bias_len)
        }
    });
    let aux = (gelu || dgelu).then(|| matrix(rng, &mut b, aux_dtype, n * m, true));
    let split_accumulator = rng.chance(50);
    let sm_count = if plain { 0 } else { rng.pick(&[0, 0, 0, 16]) };
    let with_workspace = rng.chance(70);

    let call = |side: &Side| {
        let on_device = with_workspace && !std::ptr::eq(side.table, cpu_table());
        let (workspace, workspace_bytes) = if on_device { workspace } else { (null_mut(), 0) };
        let args = GemmArgs {
            a: side.at(a_id),
            b: side.at(b_id),
            c: side.at(c_id),
            d: side.at(d_id),
            scale_inv_a: side.maybe(scale_a_id),
            scale_inv_b: side.maybe(scale_b_id),
            scale_d: side.maybe(scale_d_id),
            amax_d: side.maybe(amax_d),
            scale_inv_d: side.maybe(scale_inv_d),
            bias: side.maybe(bias),
            aux: side.maybe(aux),
            workspace,
            workspace_bytes,
            m,
            n,
            k,
            alpha,
            beta,
            a_dtype,
            b_dtype,
            d_dtype,
            bias_dtype,
            aux_dtype,
            epilogue,
            transa: kind.transa,
            transb: kind.transb,
            split_accumulator,
            sm_count,
        };
        entry(side, side.table.gemm, args)
    };
    let context = |e: String| {
        format!(
            "{kind}: m {m}, n {n}, k {k}, alpha {alpha}, beta {beta}, bias {bias_dtype:?}, \
             aux {aux_dtype:?}, split {split_accumulator}: {e}"
        )
    };
    let cuda = run(cuda_table()?, &b, &call).map_err(|e| context(format!("cuda: {e}")))?;
    if cuda.unimplemented() {
        return Ok(Some(cuda.reason));
    }
    let cpu = run(cpu_table(), &b, &call).map_err(|e| context(format!("cpu: {e}")))?;
    if cpu.unimplemented() {
        return Err(context(format!("cpu: UNIMPLEMENTED: {}", cpu.reason)));
    }
    let written_aux = if gelu { aux } else { None };
    let written_bias = if writes_bias { bias } else { None };
    let outputs = [Some(d_id), amax_d, scale_inv_d, written_aux, written_bias];
    for answer in [&cpu, &cuda] {
        unchanged(&b, &answer.contents, outputs.into_iter().flatten()).map_err(context)?;
    }

    let added_in = (reads_bias || beta != 0.0).then_some(wide);
    let scale = alpha * scale_a * scale_b;
    let (sum, activated) = product_bounds([a_dtype, b_dtype], k, scale, added_in, gelu || dgelu);
    let result = |id: Id| (&cpu.contents[id.0][..], &cuda.contents[id.0][..]);
    let compare = |name, dtype, absolute, id: Option<Id>| match id {
        Some(id) => close(name, dtype, absolute, result(id).0, result(id).1),
        None => Ok(()),
    };
    let summed = match epilogue {
        NVTEX_EPILOGUE_BGRAD => (k.max(1) as f64).sqrt() * 2f64.powi(-18),
        _ => activated * (n as f64).sqrt() * 4.0 + (n as f64).sqrt() * spacing(wide).0,
    };
    compare("d", d_dtype, activated * scale_d as f64, Some(d_id))
        .and_then(|()| compare("aux", aux_dtype, sum, written_aux))
        .and_then(|()| compare("bias", bias_dtype, summed, written_bias))
        .and_then(|()| compare("amax_d", kNVTEFloat32, activated, amax_d))
        .and_then(|()| compare("scale_inv_d", kNVTEFloat32, 0.0, scale_inv_d))
        .map_err(context)?;
    Ok(None)
}

#[test]
fn gemm() {
    let Some(table) = cuda("gemm") else { return };
    let bytes = 32 << 20;
    let workspace = (malloc(table, bytes).expect("workspace"), bytes);
    let kinds = 5 * 5 * 5 * 2 * 2 * 7;
    let (mut ran, mut missing) = (0, Vec::new());
    let mut reasons: BTreeMap<String, (usize, GemmKind)> = BTreeMap::new();
    let all = cases("gemm", kinds * VARIANTS, |rng, index| {
        let (kind, plain) = (GemmKind::of(index / VARIANTS), index % VARIANTS == 0);
        match gemm_case(rng, kind, plain, workspace)? {
            None => ran += 1,
            Some(reason) => {
                if plain && kind.required() {
                    missing.push(format!("{kind}: {reason}"));
                }
                reasons.entry(reason).or_insert((0, kind)).0 += 1;
            }
        }
        Ok(())
    });
    free(table, workspace.0);
    eprintln!("gemm: {ran} products ran; UNIMPLEMENTED:");
    for (reason, (count, kind)) in reasons {
        eprintln!("  {count} times: {reason} (first: {kind})");
    }
    assert!(!all || ran > 0);
    assert!(missing.is_empty(), "must run on Hopper:\n{}", missing.join("\n"));
}

/// Every float, to both FP8 types, in both layouts.
#[test]
fn every_float_to_fp8() {
    const SIDE: usize = 4096;
    const AREA: usize = SIDE * SIDE;
    const CHUNKS: usize = (1 << 32) / AREA;
    // Unoptimised code is too slow for all of them.
    let step = if cfg!(debug_assertions) { 17 } else { 1 };
    let mut input = vec![0u32; AREA];
    let mut results = [vec![0xCD; 2 * AREA], vec![0xCD; 2 * AREA]];
    let Some(table) = cuda("every_float_to_fp8") else { return };
    let [device_input, device_output] =
        [4 * AREA, 2 * AREA].map(|bytes| malloc(table, bytes).expect("device memory"));
    cases("every_float_to_fp8", CHUNKS.div_ceil(step), |_, index| {
        let first = (index * step * AREA) as u32;
        input.iter_mut().enumerate().for_each(|(i, bits)| *bits = first + i as u32);
        // SAFETY: floats may be seen as bytes.
        let bytes = unsafe { std::slice::from_raw_parts(input.as_ptr().cast(), 4 * AREA) };
        upload(table, device_input, bytes, null_mut())?;
        for output_dtype in FP8 {
            let quantize = |table: &OpTable, input, output: *mut c_void| {
                let args = QuantizeArgs {
                    input,
                    rowwise: output,
                    colwise: output.cast::<u8>().wrapping_add(AREA).cast(),
                    rows: SIDE,
                    cols: SIDE,
                    input_dtype: kNVTEFloat32,
                    output_dtype,
                    ..QUANTIZE
                };
                // SAFETY: the buffers have the sizes that the arguments say.
                ok(unsafe { table.quantize.unwrap()(&args, null_mut()) }, "quantize")
            };
            let [cpu, cuda] = &mut results;
            quantize(cpu_table(), input.as_ptr().cast(), cpu.as_mut_ptr().cast())?;
            quantize(table, device_input, device_output)?;
            download(table, cuda, device_output, null_mut())?;
            equal("rowwise", output_dtype, &cpu[..AREA], &cuda[..AREA])
                .and_then(|()| equal("colwise", output_dtype, &cpu[AREA..], &cuda[AREA..]))
                .map_err(|e| format!("{output_dtype:?}, floats from {first:#010x}: {e}"))?;
        }
        Ok(())
    });
    free(table, device_input);
    free(table, device_output);
}

/// Every half and bfloat16, to every type.
#[test]
fn every_half_to_all() {
    cases("every_half_to_all", 10, |_, index| {
        let (input_dtype, output_dtype) = (HIGH[1 + index % 2], ALL[index / 2]);
        let mut b = Buffers::default();
        let input = b.add((0..=u16::MAX).flat_map(u16::to_le_bytes).collect(), 0);
        let [rowwise, colwise] = [0; 2].map(|_| b.add(vec![0xCD; size(output_dtype) << 16], 0));
        let amax = b.float(0.0);
        let outputs = [
            ("rowwise", output_dtype, Some(rowwise)),
            ("colwise", output_dtype, Some(colwise)),
            ("amax", kNVTEFloat32, Some(amax)),
        ];
        both(&b, &outputs, |side| {
            let args = QuantizeArgs {
                input: side.at(input),
                rowwise: side.at(rowwise),
                colwise: side.at(colwise),
                amax: side.at(amax),
                rows: 256,
                cols: 256,
                input_dtype,
                output_dtype,
                ..QUANTIZE
            };
            entry(side, side.table.quantize, args)
        })
        .map_err(|e| format!("{input_dtype:?} to {output_dtype:?}: {e}"))
    });
}

/// Period of the inputs with more than 2^31 elements: a prime, so that no power of two shifts it
/// onto itself.
const PERIOD: usize = 16_777_213;

/// Device memory with `numel` elements that repeat `block`.
fn periodic(
    table: &OpTable,
    block: &[u8],
    width: usize,
    numel: usize,
) -> Result<*mut c_void, String> {
    let ptr = malloc(table, numel * width)?;
    for start in (0..numel * width).step_by(block.len()) {
        let len = block.len().min(numel * width - start);
        let to = ptr.cast::<u8>().wrapping_add(start).cast();
        upload(table, to, &block[..len], null_mut())?;
    }
    Ok(ptr)
}

#[test]
fn transpose_past_2_31() {
    cases("transpose_past_2_31", 1, |rng, _| {
        let table = cuda_table()?;
        let (rows, cols) = (65_537, 32_771);
        let block = rng.bytes(PERIOD);
        let input = periodic(table, &block, 1, rows * cols)?;
        let output = malloc(table, rows * cols)?;
        let noop = null();
        let args = TransposeArgs { input, output, noop, rows, cols, element_size: 1 };
        // SAFETY: the buffers have that many bytes.
        ok(unsafe { table.transpose.unwrap()(&args, null_mut()) }, "transpose")?;
        let mut result = vec![0; rows * cols];
        download(table, &mut result, output, null_mut())?;
        free(table, input);
        free(table, output);
        for at in (0..rows * cols).step_by(7).chain(rows * cols - 1000..rows * cols) {
            let (row, col) = (at % rows, at / rows);
            if result[at] != block[(row * cols + col) % PERIOD] {
                return Err(format!("element [{col}, {row}] is wrong"));
            }
        }
        Ok(())
    });
}

#[test]
fn quantize_past_2_31() {
    cases("quantize_past_2_31", 1, |rng, _| {
        let table = cuda_table()?;
        let numel = (1 << 31) + 1_000_003;
        let block = rng.floats(kNVTEBFloat16, PERIOD);
        let expected = cast(&block, kNVTEBFloat16, kNVTEFloat8E4M3);
        let input = periodic(table, &block, 2, numel)?;
        let output = malloc(table, numel)?;
        let args = QuantizeArgs {
            input,
            rowwise: output,
            rows: 1,
            cols: numel,
            input_dtype: kNVTEBFloat16,
            output_dtype: kNVTEFloat8E4M3,
            ..QUANTIZE
        };
        // SAFETY: the buffers have that many elements.
        ok(unsafe { table.quantize.unwrap()(&args, null_mut()) }, "quantize")?;
        let mut result = vec![0; numel];
        download(table, &mut result, output, null_mut())?;
        free(table, input);
        free(table, output);
        match result.chunks(PERIOD).position(|part| part != &expected[..part.len()]) {
            Some(part) => Err(format!("wrong in the {PERIOD} elements from {}", part * PERIOD)),
            None => Ok(()),
        }
    });
}

/// A normalization's weight, of everyday values.
fn gamma(b: &mut Buffers, rng: &mut Rng, dtype: NVTEDType, cols: usize) -> Id {
    everyday(b, rng, dtype, cols, 1.0)
}

/// Values in [-top, top], anywhere in memory.
fn everyday(b: &mut Buffers, rng: &mut Rng, dtype: NVTEDType, len: usize, top: f32) -> Id {
    let values: Vec<u8> = (0..len).flat_map(|_| (top * rng.unit()).to_le_bytes()).collect();
    let shift = rng.shift() * size(dtype);
    b.add(cast(&values, kNVTEFloat32, dtype), shift)
}

impl Rng {
    fn norm_shape(&mut self) -> (usize, usize) {
        match self.below(6) {
            0 => (self.within(1, 300), 8 * self.within(1, 300)),
            1 => (self.within(1, 40), self.within(1, 3000)),
            2 => (self.within(1, 6), 64 * self.within(64, 512)),
            3 => (self.within(1, 3), self.within(1, 150_000)),
            4 => (self.within(500, 4000), self.within(1, 64)),
            _ => (self.within(1, 200), 256 * self.within(1, 16)),
        }
    }
}

/// The results are close, not equal: the order of sums is that of the threads. 4e-6 of the terms is
/// what float32 may be off; a result that then rounds the other way is one spacing off.
#[test]
fn norm_forward() {
    cases("norm_forward", 500, |rng, index| {
        let layer = index % 2 == 0;
        let (x_dtype, z_dtype) = (HIGH[index / 2 % 3], ALL[index / 6 % 5]);
        let gamma_dtype = if rng.chance(60) { x_dtype } else { rng.pick(&HIGH) };
        let (rows, cols) = rng.norm_shape();
        let mut b = Buffers::default();
        let x = everyday(&mut b, rng, x_dtype, rows * cols, 2.0);
        let residual = rng.chance(30).then(|| everyday(&mut b, rng, x_dtype, rows * cols, 1.0));
        let sum = residual.map(|_| b.output(rng, x_dtype, rows * cols));
        let weight = gamma(&mut b, rng, gamma_dtype, cols);
        let beta = layer.then(|| gamma(&mut b, rng, gamma_dtype, cols));
        let mu = layer.then(|| b.output(rng, kNVTEFloat32, rows));
        let rsigma = b.output(rng, kNVTEFloat32, rows);
        let z = b.output(rng, z_dtype, rows * cols);
        let transposed = rng.chance(20).then(|| b.output(rng, z_dtype, rows * cols));
        let amax = rng.chance(70).then(|| b.float(0.0));
        let scale = b.float(1.5 + rng.unit());
        let scale_inv = b.float(-7.0);
        let (zero_centered, sm_count) = (rng.chance(30), rng.pick(&[132, 132, 64, 1]));
        let call = |side: &Side| {
            let cast = QuantizeArgs {
                input: side.at(x),
                rowwise: side.at(z),
                colwise: side.maybe(transposed),
                scale: side.at(scale),
                amax: side.maybe(amax),
                rowwise_scale_inv: side.at(scale_inv),
                rows,
                cols,
                input_dtype: x_dtype,
                output_dtype: z_dtype,
                ..QUANTIZE
            };
            let cast = match is_fp8(z_dtype) {
                true => cast,
                false => QuantizeArgs { scale: null(), rowwise_scale_inv: null_mut(), ..cast },
            };
            let args = NormForwardArgs {
                cast,
                residual: side.maybe(residual),
                sum: side.maybe(sum),
                gamma: Gamma {
                    data: side.at(weight),
                    dtype: gamma_dtype,
                    zero_centered,
                    rounded: false,
                },
                beta: side.maybe(beta),
                mu: side.maybe(mu),
                rsigma: side.at(rsigma),
                epsilon: 1e-5,
                norm: if layer { NVTE_Norm_Type::LayerNorm } else { NVTE_Norm_Type::RMSNorm },
                sm_count,
            };
            entry(side, side.table.norm_forward, args)
        };
        // v is at most sqrt(cols), and is scaled by at most 2.5.
        let bound = 8e-6 * (cols as f64).sqrt().min(20.0);
        let outputs = [
            ("z", z_dtype, Some(z), bound),
            ("transposed", z_dtype, transposed, bound),
            ("sum", x_dtype, sum, 0.0),
            ("mu", kNVTEFloat32, mu, 1e-5),
            ("rsigma", kNVTEFloat32, Some(rsigma), 1e-2 * 4e-6 * (cols as f64).sqrt() + 4e-5),
            ("amax", kNVTEFloat32, amax, bound + amax_spacing(z_dtype)),
            ("scale_inv", kNVTEFloat32, is_fp8(z_dtype).then_some(scale_inv), 0.0),
        ];
        near(&b, &outputs, call).map_err(|e| {
            format!(
                "{x_dtype:?}, {gamma_dtype:?} to {z_dtype:?}, {rows}x{cols}, layer {layer}: {e}"
            )
        })
    });
}

/// An amax of rounded values may be that of another rounding.
fn amax_spacing(z_dtype: NVTEDType) -> f64 {
    if is_fp8(z_dtype) { 0.0 } else { 30.0 * spacing(z_dtype).0 }
}

#[test]
fn norm_backward() {
    cases("norm_backward", 400, |rng, index| {
        let (layer, x_dtype) = (index % 2 == 0, HIGH[index / 2 % 3]);
        let dtype = if rng.chance(60) { x_dtype } else { rng.pick(&HIGH) };
        let (rows, cols) = rng.norm_shape();
        let mut b = Buffers::default();
        let dz = everyday(&mut b, rng, dtype, rows * cols, 1.0);
        let x = everyday(&mut b, rng, x_dtype, rows * cols, 2.0);
        let add = rng.chance(40).then(|| everyday(&mut b, rng, dtype, rows * cols, 1.0));
        let weight = gamma(&mut b, rng, dtype, cols);
        let mu = layer.then(|| b.floats((0..rows).map(|_| 0.5 * rng.unit())));
        let rsigma = b.floats((0..rows).map(|_| 1.0 + 0.5 * rng.unit()));
        let dx = b.output(rng, x_dtype, rows * cols);
        let dgamma = b.output(rng, dtype, cols);
        let dbeta = layer.then(|| b.output(rng, dtype, cols));
        let (zero_centered, sm_count) = (rng.chance(30), rng.pick(&[132, 132, 64, 1]));
        let parts = NormBackwardArgs::parts(rows, sm_count);
        let partial = b.add(vec![0xCD; 8 * parts * cols], 0);
        let call = |side: &Side| {
            let args = NormBackwardArgs {
                dz: side.at(dz),
                x: side.at(x),
                add: side.maybe(add),
                mu: side.maybe(mu),
                rsigma: side.at(rsigma),
                gamma: Gamma { data: side.at(weight), dtype, zero_centered, rounded: false },
                dx: side.at(dx),
                dgamma: side.at(dgamma),
                dbeta: side.maybe(dbeta),
                partial: side.at(partial),
                parts,
                rows,
                cols,
                x_dtype,
                norm: if layer { NVTE_Norm_Type::LayerNorm } else { NVTE_Norm_Type::RMSNorm },
                sm_count,
            };
            entry(side, side.table.norm_backward, args)
        };
        let summed = 1e-5 * (rows as f64);
        let outputs = [
            ("dx", x_dtype, Some(dx), 4e-5),
            ("dgamma", dtype, Some(dgamma), summed),
            ("dbeta", dtype, dbeta, summed),
        ];
        near_but(&b, &outputs, &[partial], call)
            .map_err(|e| format!("{x_dtype:?}, {dtype:?}, {rows}x{cols}, layer {layer}: {e}"))
    });
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
