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

/// A random fusion of a cast: what it is, and its buffers.
struct Fused {
    fusion: Fusion,
    input: Id,
    act_input: Option<Id>,
    row_scales: Option<Id>,
    dbias: Option<Id>,
    workspace: Option<Id>,
}

impl Fused {
    /// For `members` matrices of `cols` columns with `numel` elements v in all, gaps included. Only
    /// those of one width have sums over rows.
    fn new(
        rng: &mut Rng,
        b: &mut Buffers,
        (form, function): (Form, Function),
        (mode, dtype): (NVTEScalingMode, NVTEDType),
        (numel, cols, members): (usize, Option<usize>, usize),
    ) -> Self {
        let [fa, fb, fc] = match function {
            Function::NVTEX_CLAMPED_SILU => [1.5, 1.702, 1.0],
            Function::NVTEX_SITU => [4.0, 25.0, 0.0],
            _ => [0.0; 3],
        };
        let input_len = match form {
            Form::NVTEX_FORM_GATED => 2 * numel,
            Form::NVTEX_FORM_GATED_DERIVATIVE => numel / 2,
            _ => numel,
        };
        let backward =
            matches!(form, Form::NVTEX_FORM_DERIVATIVE | Form::NVTEX_FORM_GATED_DERIVATIVE);
        let input = b.input(rng, dtype, input_len);
        let act_input = backward.then(|| b.input(rng, dtype, numel));
        let rows = cols.filter(|&cols| cols > 0).map(|cols| numel / cols);
        let scaled = form == Form::NVTEX_FORM_GATED && mode == NVTE_MXFP8_1D_SCALING;
        let row_scales =
            rows.filter(|_| scaled && rng.chance(50)).map(|rows| b.input(rng, dtype, rows));
        let (dbias, workspace) = match (rows, cols) {
            (Some(rows), Some(cols)) if rng.chance(60) => {
                let workspace_rows = QuantizeArgs::dbias_workspace_rows(rows, members);
                let dbias = b.output(rng, dtype, members.max(1) * cols);
                (Some(dbias), Some(b.output(rng, kNVTEFloat32, workspace_rows * cols)))
            }
            _ => (None, None),
        };
        let fusion = Fusion { form, function, a: fa, b: fb, c: fc, ..Fusion::NONE };
        Self { fusion, input, act_input, row_scales, dbias, workspace }
    }

    fn on(&self, side: &Side) -> Fusion {
        Fusion {
            act_input: side.maybe(self.act_input),
            dbias: side.maybe(self.dbias),
            workspace: side.maybe(self.workspace),
            row_scales: side.maybe(self.row_scales),
            ..self.fusion
        }
    }
}

const FORMS: [Form; 5] = [
    Form::NVTEX_FORM_DERIVATIVE,
    Form::NVTEX_FORM_PLAIN,
    Form::NVTEX_FORM_ACTIVATION,
    Form::NVTEX_FORM_GATED,
    Form::NVTEX_FORM_GATED_DERIVATIVE,
];
const FUNCTIONS: [Function; 9] = [
    Function::NVTEX_GELU,
    Function::NVTEX_SILU,
    Function::NVTEX_RELU,
    Function::NVTEX_QGELU,
    Function::NVTEX_SRELU,
    Function::NVTEX_SIGMOID,
    Function::NVTEX_CLAMPED_SILU,
    Function::NVTEX_SITU,
    Function::NVTEX_IDENTITY,
];
const MODES: [NVTEScalingMode; 4] = [
    NVTE_DELAYED_TENSOR_SCALING,
    NVTE_MXFP8_1D_SCALING,
    NVTE_BLOCK_SCALING_1D,
    NVTE_BLOCK_SCALING_2D,
];

/// What a cast has besides elements and scales, at random.
struct Options {
    wanted: [bool; 2],
    epsilon: f32,
    pow2: bool,
    square_blocks: bool,
    swizzled: bool,
}

impl Options {
    fn new(rng: &mut Rng, mode: NVTEScalingMode) -> Self {
        let mxfp8 = mode == NVTE_MXFP8_1D_SCALING;
        Self {
            wanted: rng.pick(&[[true, false], [true, true], [true, true], [false, true]]),
            epsilon: rng.pick(&[0.0, 0.0, 1.0, 1e-20]),
            pow2: !mxfp8 && rng.chance(50),
            square_blocks: mxfp8 && rng.chance(40),
            swizzled: mxfp8 && rng.chance(40),
        }
    }
}

#[test]
fn quantize_fused() {
    cases("quantize_fused", 1800, |rng, index| {
        let mode = MODES[index % 4];
        let (form, function) = (FORMS[index / 4 % 5], FUNCTIONS[index / 20 % 9]);
        let (per_tensor, mxfp8) = (mode == MODES[0], mode == NVTE_MXFP8_1D_SCALING);
        let input_dtype = rng.pick(&HIGH);
        let output_dtype = if per_tensor { rng.pick(&ALL) } else { rng.pick(&FP8) };
        let (rows, cols) = rng.block_shape();
        let cols = if form == Form::NVTEX_FORM_GATED_DERIVATIVE { cols + cols % 2 } else { cols };
        let mut b = Buffers::default();
        let elements = (rows * cols, Some(cols), 0);
        let fused = Fused::new(rng, &mut b, (form, function), (mode, input_dtype), elements);
        let o = Options::new(rng, mode);
        let data = o.wanted.map(|wanted| wanted.then(|| b.output(rng, output_dtype, rows * cols)));
        let slack = if mxfp8 || per_tensor { 0 } else { rng.pick(&[0, 0, 1, 4]) };
        let matrices = [false, true].map(|colwise| match per_tensor {
            true => (kNVTEFloat32, 1, 1),
            false => scale_matrix(mode, colwise, (rows, cols)),
        });
        let strides = matrices.map(|(_, _, needed)| needed + slack);
        let has_scales = is_fp8(output_dtype);
        let [row_scales, col_scales] = [0, 1].map(|i| {
            let (dtype, lines, _) = matrices[i];
            (o.wanted[i] && has_scales).then(|| b.output(rng, dtype, lines * strides[i]))
        });
        let scale = (per_tensor && rng.chance(80)).then(|| b.float(rng.scale()));
        let old_amax = rng.pick(&[0.0, 1e-3, 1e30]);
        let amax = ((per_tensor || mxfp8) && rng.chance(60)).then(|| b.float(old_amax));
        // As bytes: every bit of a scale counts, and so do the entries that are not written.
        let outputs = [
            ("rowwise", output_dtype, data[0]),
            ("colwise", output_dtype, data[1]),
            ("rowwise scale_inv", kNVTEByte, row_scales),
            ("colwise scale_inv", kNVTEByte, col_scales),
            ("amax", kNVTEFloat32, amax),
            ("dbias", input_dtype, fused.dbias),
        ];
        both_but(&b, &outputs, fused.workspace, |side| {
            let args = QuantizeArgs {
                input: side.at(fused.input),
                rowwise: side.maybe(data[0]),
                colwise: side.maybe(data[1]),
                scale: side.maybe(scale),
                amax: side.maybe(amax),
                rowwise_scale_inv: side.maybe(row_scales),
                colwise_scale_inv: side.maybe(col_scales),
                noop: null(),
                rows,
                cols,
                rowwise_scale_stride: if per_tensor { 0 } else { strides[0] },
                colwise_scale_stride: if per_tensor { 0 } else { strides[1] },
                epsilon: o.epsilon,
                mode,
                input_dtype,
                output_dtype,
                pow2: o.pow2,
                square_blocks: o.square_blocks,
                swizzled: o.swizzled,
                fusion: fused.on(side),
                group: Group::NONE,
            };
            entry(side, side.table.quantize, args)
        })
        .map_err(|e| {
            format!(
                "{mode:?}, {form:?} of {function:?}, {input_dtype:?} to {output_dtype:?}, \
                 {rows}x{cols}, directions {:?}, dbias {}, pow2 {}, epsilon {}, square {}, \
                 swizzled {}: {e}",
                o.wanted,
                fused.dbias.is_some(),
                o.pow2,
                o.epsilon,
                o.square_blocks,
                o.swizzled
            )
        })
    });
}

/// Members of a group at random.
struct Members {
    shapes: Vec<(usize, usize)>,
    /// One more than shapes.
    offsets: Vec<usize>,
    varying: [bool; 2],
    logical: (usize, usize),
    /// Elements of a buffer of data.
    numel: usize,
}

impl Members {
    fn new(rng: &mut Rng, varying: [bool; 2], gaps: bool) -> Self {
        let count = rng.pick(&[1, 2, 3, 8, 40]);
        let top = if count > 8 { 200 } else { 700 };
        let side = |rng: &mut Rng| match rng.below(5) {
            0 => rng.within(1, 9),
            1 => 128 * rng.within(1, top / 128),
            2 => 16 * rng.within(1, top / 16),
            _ => rng.within(1, top),
        };
        let (rows, cols) = (side(rng), side(rng));
        let mut member = || {
            let mut dim = |varying, fixed| match varying {
                true if rng.chance(15) => 0,
                true => side(rng),
                false => fixed,
            };
            (dim(varying[0], rows), dim(varying[1], cols))
        };
        let shapes: Vec<_> = (0..count).map(|_| member()).collect();
        let gap = if gaps && varying != [false; 2] && rng.chance(20) { 16 } else { 0 };
        let mut offsets = vec![0];
        for (rows, cols) in &shapes {
            offsets.push(offsets[offsets.len() - 1] + rows * cols + gap);
        }
        let spare = if rng.chance(30) { rng.within(1, 200) } else { 0 };
        let sum = |dim: fn(&(usize, usize)) -> usize| shapes.iter().map(dim).sum::<usize>();
        let logical = match varying {
            [false, false] => (count * rows, cols),
            [true, false] => (sum(|s| s.0) + spare, cols),
            [false, true] => (rows, sum(|s| s.1) + spare),
            [true, true] => (1, sum(|s| s.0 * s.1) + spare),
        };
        let numel = offsets[count].max(logical.0 * logical.1);
        Self { shapes, offsets, varying, logical, numel }
    }

    /// Entries of all scales in one direction, and their type.
    fn scales(&self, mode: NVTEScalingMode, colwise: bool) -> (NVTEDType, usize) {
        let dtype = scale_matrix(mode, colwise, (1, 1)).0;
        let entries = self.shapes.iter().map(|&shape| {
            let (_, lines, needed) = scale_matrix(mode, colwise, shape);
            lines * needed.next_multiple_of(4)
        });
        (dtype, entries.sum())
    }
}

#[test]
fn quantize_groups() {
    cases("quantize_groups", 1200, |rng, index| {
        let mode = MODES[index % 4];
        let varying = [[true, false], [false, false], [false, true], [true, true]][index / 4 % 4];
        // The forms of the functions of groups; gated ones have one width.
        let form = FORMS[if varying[1] { rng.below(3) } else { rng.below(4) }];
        let function = rng.pick(&FUNCTIONS);
        let per_tensor = mode == MODES[0];
        let input_dtype = rng.pick(&HIGH);
        let output_dtype = if per_tensor { rng.pick(&ALL) } else { rng.pick(&FP8) };
        let members = Members::new(rng, varying, form != Form::NVTEX_FORM_GATED);
        let (count, (rows, cols)) = (members.shapes.len(), members.logical);
        if rows * cols == 0 {
            return Ok(());
        }
        let mut b = Buffers::default();
        let int64 = |b: &mut Buffers, values: &mut dyn Iterator<Item = usize>| {
            b.add(values.flat_map(|value| (value as i64).to_le_bytes()).collect(), 0)
        };
        let first = varying[0].then(|| int64(&mut b, &mut members.shapes.iter().map(|s| s.0)));
        let last = varying[1].then(|| int64(&mut b, &mut members.shapes.iter().map(|s| s.1)));
        let with_offsets = varying != [false; 2] || rng.chance(50);
        let offsets = with_offsets.then(|| int64(&mut b, &mut members.offsets.iter().copied()));
        let elements = (members.numel, (!varying[1]).then_some(cols), count);
        let fused = Fused::new(rng, &mut b, (form, function), (mode, input_dtype), elements);
        let o = Options::new(rng, mode);
        let data =
            o.wanted.map(|wanted| wanted.then(|| b.output(rng, output_dtype, members.numel)));
        let [row_scales, col_scales] = [0, 1].map(|i| {
            let (dtype, entries) = members.scales(mode, i == 1);
            (o.wanted[i] && !per_tensor).then(|| b.output(rng, dtype, entries))
        });
        let scale =
            (per_tensor && rng.chance(80)).then(|| b.floats((0..count).map(|_| rng.scale())));
        let plain = fused.dbias.is_none() && form == Form::NVTEX_FORM_PLAIN;
        let noop = if plain { rng.noop().map(|flag| b.float(flag)) } else { None };
        let outputs = [
            ("rowwise", output_dtype, data[0]),
            ("colwise", output_dtype, data[1]),
            ("rowwise scale_inv", kNVTEByte, row_scales),
            ("colwise scale_inv", kNVTEByte, col_scales),
            ("dbias", input_dtype, fused.dbias),
        ];
        both_but(&b, &outputs, fused.workspace, |side| {
            let args = QuantizeArgs {
                input: side.at(fused.input),
                rowwise: side.maybe(data[0]),
                colwise: side.maybe(data[1]),
                scale: side.maybe(scale),
                amax: null_mut(),
                rowwise_scale_inv: side.maybe(row_scales),
                colwise_scale_inv: side.maybe(col_scales),
                noop: side.maybe(noop),
                rows,
                cols,
                rowwise_scale_stride: 0,
                colwise_scale_stride: 0,
                epsilon: o.epsilon,
                mode,
                input_dtype,
                output_dtype,
                pow2: o.pow2,
                square_blocks: o.square_blocks,
                swizzled: o.swizzled,
                fusion: fused.on(side),
                group: Group {
                    num_tensors: count,
                    first_dims: side.maybe(first),
                    last_dims: side.maybe(last),
                    offsets: side.maybe(offsets),
                },
            };
            entry(side, side.table.quantize, args)
        })
        .map_err(|e| {
            format!(
                "{mode:?}, {form:?} of {function:?}, {input_dtype:?} to {output_dtype:?}, members \
                 {:?} at {:?}, varying {:?}, directions {:?}, dbias {}, square {}, swizzled {}: {e}",
                members.shapes,
                members.offsets,
                members.varying,
                o.wanted,
                fused.dbias.is_some(),
                o.square_blocks,
                o.swizzled
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

impl Buffers {
    fn ints(&mut self, values: impl IntoIterator<Item = usize>) -> Id {
        self.add(values.into_iter().flat_map(|v| (v as i64).to_le_bytes()).collect(), 0)
    }
}

#[test]
fn dequantize_groups() {
    const MODES: [NVTEScalingMode; 4] = [
        NVTE_DELAYED_TENSOR_SCALING,
        NVTE_MXFP8_1D_SCALING,
        NVTE_BLOCK_SCALING_1D,
        NVTE_BLOCK_SCALING_2D,
    ];
    cases("dequantize_groups", 400, |rng, index| {
        let mode = MODES[index % 4];
        let (input_dtype, output_dtype) = (FP8[index / 4 % 2], HIGH[index / 8 % 3]);
        let (colwise, swizzled) = (rng.chance(50), mode == NVTE_MXFP8_1D_SCALING && rng.chance(50));
        let (vary_rows, vary_cols) = (rng.chance(60), rng.chance(40));
        let count = rng.pick(&[1, 2, 5, 8, 33, 70]);
        let most = if count > 8 { 150 } else { 700 };
        let aligned = rng.chance(50);
        let side = |rng: &mut Rng| match rng.below(6) {
            0 => 0,
            _ if aligned => 16 * rng.within(1, most / 16),
            _ => rng.within(1, most),
        };
        let even = (side(rng).max(1), side(rng).max(1));
        let shapes: Vec<_> = (0..count)
            .map(|_| {
                let rows = if vary_rows { side(rng) } else { even.0 };
                (rows, if vary_cols { side(rng) } else { even.1 })
            })
            .collect();
        let gap = if vary_rows && !vary_cols { rng.pick(&[0, 0, 16, 3]) } else { 0 };
        let (mut at, mut entries) = (vec![0], 0);
        for &(rows, cols) in &shapes {
            at.push(at.last().unwrap() + rows * cols + gap);
            let (_, lines, needed) = scale_matrix(mode, colwise, (rows, cols));
            entries += if index % 4 == 0 { 1 } else { lines * needed.next_multiple_of(4) };
        }
        let total = *at.last().unwrap();
        let (mut rows, mut cols) = match (vary_rows, vary_cols) {
            (false, false) => (count * even.0, even.1),
            (true, false) => (shapes.iter().map(|s| s.0).sum(), even.1),
            (false, true) => (even.0, shapes.iter().map(|s| s.1).sum()),
            (true, true) => (1, total),
        };
        if vary_cols {
            cols += rng.pick(&[1, 100]);
        } else if vary_rows {
            rows += rng.pick(&[1, 100]);
        }
        let capacity = total.max(rows * cols);
        let scale_dtype =
            if mode == NVTE_MXFP8_1D_SCALING { kNVTEFloat8E8M0 } else { kNVTEFloat32 };
        let mut b = Buffers::default();
        let input = b.input(rng, input_dtype, capacity);
        let scale_inv = b.input(rng, scale_dtype, entries);
        let output = b.output(rng, output_dtype, capacity);
        let first_dims = vary_rows.then(|| b.ints(shapes.iter().map(|s| s.0)));
        let last_dims = vary_cols.then(|| b.ints(shapes.iter().map(|s| s.1)));
        let offsets =
            (vary_rows || vary_cols || rng.chance(50)).then(|| b.ints(at.iter().copied()));
        both(&b, &[("output", output_dtype, Some(output))], |side| {
            let args = DequantizeArgs {
                input: side.at(input),
                output: side.at(output),
                scale_inv: side.at(scale_inv),
                rows,
                cols,
                scale_stride: 0,
                mode,
                input_dtype,
                output_dtype,
                colwise,
                swizzled,
                group: Group {
                    num_tensors: count,
                    first_dims: side.maybe(first_dims),
                    last_dims: side.maybe(last_dims),
                    offsets: side.maybe(offsets),
                },
            };
            entry(side, side.table.dequantize, args)
        })
        .map_err(|e| {
            format!(
                "{mode:?}, {input_dtype:?} to {output_dtype:?}, {shapes:?}, colwise {colwise}, \
                 swizzled {swizzled}: {e}"
            )
        })
    });
}

#[test]
fn requantize() {
    cases("requantize", 100, |rng, index| {
        let input_dtype = FP8[index % 2];
        let cols = 128 * rng.within(1, 6);
        let tiles: Vec<_> = (0..rng.pick(&[1, 2, 3, 40])).map(|_| rng.within(0, 3)).collect();
        let rows = 128 * (tiles.iter().sum::<usize>() + rng.below(2)).max(1);
        let code_stride = cols / 32 + rng.pick(&[0, 0, 4, 3]);
        let mut at = vec![0];
        tiles.iter().for_each(|t| at.push(at.last().unwrap() + 128 * t * cols));
        let mut b = Buffers::default();
        let bytes = rng.bytes(rows * cols);
        let input = b.add(bytes, 0);
        // Mostly such that values are neither 0 nor Inf.
        let everyday = rng.chance(70);
        let codes = (0..rows * code_stride)
            .map(|_| if everyday { 100 + rng.below(50) as u8 } else { rng.next() as u8 })
            .collect();
        let codes = b.add(codes, rng.pick(&[0, 0, 1]));
        let colwise = b.add(vec![0xCD; rows * cols], 0);
        let [row_codes, col_codes] =
            [0, 1].map(|_| b.add(vec![0xCD; rows * cols / 32], rng.pick(&[0, 0, 1])));
        let copy = rng.chance(50).then(|| b.add(vec![0xCD; rows * cols * 2], 0));
        let offsets = b.ints(at.iter().copied());
        let through_bf16 = rng.chance(50);
        let outputs = [
            ("colwise", kNVTEFloat8E4M3, Some(colwise)),
            ("row codes", kNVTEByte, Some(row_codes)),
            ("column codes", kNVTEByte, Some(col_codes)),
            ("dequantized", kNVTEBFloat16, copy),
        ];
        both(&b, &outputs, |side| {
            let args = RequantizeArgs {
                input: side.at(input),
                codes: side.at(codes),
                colwise: side.at(colwise),
                rowwise_codes: side.at(row_codes),
                colwise_codes: side.at(col_codes),
                dequantized: side.maybe(copy),
                offsets: side.at(offsets),
                num_groups: tiles.len(),
                rows,
                cols,
                code_stride,
                input_dtype,
                through_bf16,
            };
            entry(side, side.table.requantize, args)
        })
        .map_err(|e| format!("{input_dtype:?}, {rows}x{cols}, {tiles:?}, bf16 {through_bf16}: {e}"))
    });
}

#[test]
fn transpose_dbias() {
    cases("transpose_dbias", 200, |rng, index| {
        let (dtype, dbias_dtype) = (FP8[index % 2], HIGH[index / 2 % 3]);
        let (rows, cols) = rng.shape();
        let rows = if rng.chance(5) { 0 } else { rows };
        let mut b = Buffers::default();
        let input = b.input(rng, dtype, rows * cols);
        let output = b.output(rng, dtype, rows * cols);
        let dbias = b.output(rng, dbias_dtype, cols);
        let workspace = b.add(vec![0xCD; rows.div_ceil(128) * cols * 4], 0);
        let scale = rng.scale();
        let scale_inv = rng.chance(80).then(|| b.float(scale));
        let outputs = [
            ("output", kNVTEByte, Some(output)),
            ("dbias", dbias_dtype, Some(dbias)),
            ("workspace", kNVTEFloat32, Some(workspace)),
        ];
        both(&b, &outputs, |side| {
            let args = TransposeDbiasArgs {
                input: side.at(input),
                output: side.at(output),
                scale_inv: side.maybe(scale_inv),
                dbias: side.at(dbias),
                workspace: side.at(workspace),
                rows,
                cols,
                dtype,
                dbias_dtype,
            };
            entry(side, side.table.transpose_dbias, args)
        })
        .map_err(|e| format!("{dtype:?}, {dbias_dtype:?}, {rows}x{cols}, scale {scale:e}: {e}"))
    });
}

#[test]
fn swap_first_dims() {
    cases("swap_first_dims", 200, |rng, _| {
        let row_bytes = match rng.below(4) {
            0 => rng.pick(&[1, 2, 4, 8, 16, 32, 3, 6, 24]),
            1 => rng.within(1, 300),
            2 => 16 * rng.within(1, 200),
            _ => rng.within(1, 100_000),
        };
        let most = (2_000_000 / row_bytes).clamp(1, 400_000);
        let first = rng.within(1, most.isqrt());
        let second = rng.within(1, most / first);
        let (first, second) = if rng.chance(50) { (first, second) } else { (second, first) };
        let bytes = first * second * row_bytes;
        let mut b = Buffers::default();
        let shift = |rng: &mut Rng| rng.pick(&[0, 0, 8, 4, 2, 1]);
        let (values, from, to) = (rng.bytes(bytes), shift(rng), shift(rng));
        let (input, output) = (b.add(values, from), b.add(vec![0xCD; bytes], to));
        both(&b, &[("output", kNVTEByte, Some(output))], |side| {
            let (input, output) = (side.at(input), side.at(output));
            let args = SwapFirstDimsArgs { input, output, first, second, row_bytes };
            entry(side, side.table.swap_first_dims, args)
        })
        .map_err(|e| format!("{first}x{second} of {row_bytes} bytes, shifts {from}, {to}: {e}"))
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
        let length = rng.pick(&[1, 1, 7, 300]);
        let amax = b.floats((0..length).map(|i| value / (1 << (i % 8)) as f32));
        let scale = b.floats((0..length).map(|_| -7.0));
        let mut inverse = |chance| rng.chance(chance).then(|| b.floats((0..length).map(|_| -7.0)));
        let (scale_inv, colwise_scale_inv) = (inverse(50), inverse(30));
        let noop = rng.noop().map(|flag| b.float(flag));
        let (fp8_max, pow2) = (rng.pick(&[448.0, 57344.0]), rng.chance(50));
        let epsilon = rng.pick(&[0.0, 0.0, 1e-12, 1.0]);
        let outputs = [
            ("scale", kNVTEFloat32, Some(scale)),
            ("scale_inv", kNVTEFloat32, scale_inv),
            ("colwise scale_inv", kNVTEFloat32, colwise_scale_inv),
        ];
        both(&b, &outputs, |side| {
            let args = ScaleFromAmaxArgs {
                amax: side.at(amax),
                scale: side.at(scale),
                noop: side.maybe(noop),
                fp8_max,
                epsilon,
                pow2,
                length,
                scale_inv: side.maybe(scale_inv),
                colwise_scale_inv: side.maybe(colwise_scale_inv),
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
            scales_a: GemmScales::per_tensor(side.maybe(scale_a_id)),
            scales_b: GemmScales::per_tensor(side.maybe(scale_b_id)),
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

#[test]
fn scaled_activation() {
    cases("scaled_activation", 480, |rng, index| {
        let backward = index % 2 == 1;
        let (gated, function, [a, b, c]) = [
            (false, Function::NVTEX_SRELU, [0.0; 3]),
            (true, Function::NVTEX_SILU, [0.0; 3]),
            (true, Function::NVTEX_CLAMPED_SILU, [1.5, 1.702, 1.0]),
            (true, Function::NVTEX_SITU, [4.0, 25.0, 0.0]),
        ][index / 2 % 4];
        let block = 32 * rng.within(1, 3);
        let (cols, interleave) = match rng.below(4) {
            0 => (block * rng.within(1, 30), block),
            1 => (8 * rng.within(1, 400), 0),
            2 => (rng.within(1, 40), 0),
            _ => (rng.within(1, 3000), 0),
        };
        let (rows, interleave) =
            (rng.within(1, 60), if interleave > 0 { interleave } else { cols });
        let width = if gated { 2 * cols } else { cols };
        let same = rng.chance(30).then(|| rng.pick(&HIGH));
        let dtypes = [0; 5].map(|_| same.unwrap_or(rng.pick(&HIGH)));
        let [input_dtype, grad_dtype, output_dtype, scales_dtype, grad_scales_dtype] = dtypes;
        let mut buffers = Buffers::default();
        let input = buffers.input(rng, input_dtype, rows * width);
        let grad = backward.then(|| buffers.input(rng, grad_dtype, rows * cols));
        let out_width = if backward { width } else { cols };
        let output = buffers.output(rng, output_dtype, rows * out_width);
        let scales = buffers.input(rng, scales_dtype, rows);
        let grad_scales =
            (backward && rng.chance(80)).then(|| buffers.output(rng, grad_scales_dtype, rows));
        let outputs = [
            ("output", output_dtype, Some(output)),
            ("grad_scales", grad_scales_dtype, grad_scales),
        ];
        both(&buffers, &outputs, |side| {
            let args = ScaledActivationArgs {
                input: side.at(input),
                grad: side.maybe(grad),
                output: side.at(output),
                scales: side.at(scales),
                grad_scales: side.maybe(grad_scales),
                rows,
                cols,
                interleave,
                gated,
                function,
                a,
                b,
                c,
                input_dtype,
                grad_dtype,
                output_dtype,
                scales_dtype,
                grad_scales_dtype,
            };
            entry(side, side.table.scaled_activation, args)
        })
        .map_err(|e| format!("{function:?} {dtypes:?}, {rows}x{cols} by {interleave}: {e}"))
    });
}

/// Scaling modes of A and B.
const BLOCKS: [[NVTEScalingMode; 2]; 4] = [
    [NVTE_BLOCK_SCALING_1D; 2],
    [NVTE_BLOCK_SCALING_2D, NVTE_BLOCK_SCALING_1D],
    [NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D],
    [NVTE_MXFP8_1D_SCALING; 2],
];

/// Runs one product of operands in blocks; Some(reason) if CUDA does not implement it.
fn gemm_blocks_case(
    rng: &mut Rng,
    index: usize,
    workspace: (*mut c_void, usize),
) -> Result<Option<String>, String> {
    let modes = BLOCKS[index % 4];
    let mx = modes[0] == NVTE_MXFP8_1D_SCALING;
    let (m, mut n, mut k) = (8 * rng.within(1, 40), 8 * rng.within(1, 40), 16 * rng.below(41));
    if modes[1] == NVTE_BLOCK_SCALING_2D || mx {
        n += rng.below(8);
    }
    if mx {
        k += rng.below(16);
    }
    let epilogue = [NVTEX_EPILOGUE_NONE, NVTEX_EPILOGUE_BIAS, NVTEX_EPILOGUE_DGELU][index / 4 % 3];
    let [a_dtype, b_dtype] =
        rng.pick(&[[FP8[0], FP8[0]], [FP8[0], FP8[1]], [FP8[1], FP8[0]], [FP8[0], FP8[0]]]);
    let d_dtype = if (index / 12).is_multiple_of(2) { kNVTEBFloat16 } else { kNVTEFloat32 };
    let [transa, transb] = if mx { [rng.chance(50), rng.chance(50)] } else { [true, false] };
    let swizzled = mx && rng.chance(50);
    let (alpha, beta) = (rng.pick(&[1.0, -0.5]), rng.pick(&[0.0, 0.0, 1.0, 0.5]));
    let mut b = Buffers::default();
    let matrix = |rng: &mut Rng, b: &mut Buffers, dtype, len: usize| {
        let values: Vec<u8> = (0..len).flat_map(|_| rng.unit().to_le_bytes()).collect();
        b.add(cast(&values, kNVTEFloat32, dtype), 0)
    };
    let (a_id, b_id) = (matrix(rng, &mut b, a_dtype, m * k), matrix(rng, &mut b, b_dtype, n * k));
    let d_id = matrix(rng, &mut b, d_dtype, n * m);
    let bias = matrix(rng, &mut b, kNVTEBFloat16, m);
    let aux = matrix(rng, &mut b, kNVTEBFloat16, n * m);
    // Up to 2.
    let scales = [(0, m, !transa), (1, n, transb)].map(|(i, outer, colwise)| {
        let blocks = if mx { k.div_ceil(32).next_multiple_of(4) } else { k.div_ceil(128) };
        let padded = outer.next_multiple_of(128);
        let (stride, len) = match modes[i] {
            NVTE_BLOCK_SCALING_1D => {
                (outer.next_multiple_of(4), outer.next_multiple_of(4) * blocks)
            }
            NVTE_BLOCK_SCALING_2D => {
                (blocks.next_multiple_of(4), outer.div_ceil(128) * blocks.next_multiple_of(4))
            }
            _ => (if colwise { padded } else { blocks }, padded * blocks),
        };
        let bytes = match mx {
            true => rng.bytes(len).iter().map(|byte| 121 + byte % 8).collect(),
            false => (0..len).flat_map(|_| (1.0 + rng.unit()).to_le_bytes()).collect(),
        };
        (b.add(bytes, 0), stride)
    });
    let call = |side: &Side| {
        let on_device = !std::ptr::eq(side.table, cpu_table());
        let (workspace, workspace_bytes) = if on_device { workspace } else { (null_mut(), 0) };
        let scales_of = |i: usize| GemmScales {
            inv: side.at(scales[i].0),
            stride: scales[i].1,
            mode: modes[i],
            swizzled,
        };
        let args = GemmArgs {
            a: side.at(a_id),
            b: side.at(b_id),
            c: side.at(d_id),
            d: side.at(d_id),
            scales_a: scales_of(0),
            scales_b: scales_of(1),
            scale_d: null(),
            amax_d: null_mut(),
            scale_inv_d: null_mut(),
            bias: if epilogue == NVTEX_EPILOGUE_BIAS { side.at(bias) } else { null_mut() },
            aux: if epilogue == NVTEX_EPILOGUE_DGELU { side.at(aux) } else { null_mut() },
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
            bias_dtype: kNVTEBFloat16,
            aux_dtype: kNVTEBFloat16,
            epilogue,
            transa,
            transb,
            split_accumulator: true,
            sm_count: 0,
        };
        entry(side, side.table.gemm, args)
    };
    let context = |e: String| {
        format!(
            "{modes:?}: {a_dtype:?} x {b_dtype:?} -> {d_dtype:?}, m {m}, n {n}, k {k}, \
             alpha {alpha}, beta {beta}, {epilogue:?}, swizzled {swizzled}: {e}"
        )
    };
    let cuda = run(cuda_table()?, &b, &call).map_err(|e| context(format!("cuda: {e}")))?;
    if cuda.unimplemented() {
        return Ok(Some(format!("{modes:?} to {d_dtype:?}, {epilogue:?}: {}", cuda.reason)));
    }
    let cpu = run(cpu_table(), &b, &call).map_err(|e| context(format!("cpu: {e}")))?;
    for answer in [&cpu, &cuda] {
        unchanged(&b, &answer.contents, [d_id]).map_err(context)?;
    }
    // MXFP8 runs as BFloat16, with float32 sums.
    let operands = if mx { [kNVTEBFloat16; 2] } else { [a_dtype, b_dtype] };
    let added_in = (beta != 0.0 || epilogue == NVTEX_EPILOGUE_BIAS).then_some(d_dtype);
    let activated = epilogue == NVTEX_EPILOGUE_DGELU;
    let (_, bound) = product_bounds(operands, k, 4.0 * alpha, added_in, activated);
    close("d", d_dtype, bound, &cpu.contents[d_id.0], &cuda.contents[d_id.0]).map_err(context)?;
    Ok(None)
}

#[test]
fn gemm_blocks() {
    let Some(table) = cuda("gemm_blocks") else { return };
    let bytes = 32 << 20;
    let workspace = (malloc(table, bytes).expect("workspace"), bytes);
    let (mut ran, mut missing, mut refused) = (0, Vec::new(), BTreeMap::new());
    let all = cases("gemm_blocks", 1200, |rng, index| {
        match gemm_blocks_case(rng, index, workspace)? {
            None => ran += 1,
            // The first kind of epilogue and output is what the operators promise.
            Some(reason) if index / 4 % 6 == 0 => missing.push(reason),
            Some(reason) => {
                *refused
                    .entry(reason.split(": cuBLASLt").next().unwrap().to_owned())
                    .or_insert(0) += 1
            }
        }
        Ok(())
    });
    free(table, workspace.0);
    eprintln!("gemm_blocks: {ran} products ran; UNIMPLEMENTED: {refused:#?}");
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

/// A sum over `rows` rows in the order that [`Fusion`] says.
fn column_sum(rows: usize, v: impl Fn(usize) -> f32) -> f32 {
    let at = |r: usize| if r < rows { v(r) } else { 0.0 };
    let four = |r: usize| 0.0 + at(r) + at(r + 1) + at(r + 2) + at(r + 3);
    let mut sums = [0f32; 8];
    for block in 0..rows.div_ceil(128) {
        let pairs = (0..16).map(|i| block * 128 + i * 8).map(|r| four(r) + four(r + 4));
        sums[block % 8] += pairs.fold(0.0, |sum, pair| sum + pair);
    }
    sums.iter().fold(0.0, |sum, eighth| sum + eighth)
}

#[test]
fn dbias_past_2_31() {
    cases("dbias_past_2_31", 1, |rng, _| {
        let table = cuda_table()?;
        let (rows, cols) = (65_537, 32_771);
        let numel = rows * cols;
        let floats: Vec<u8> = (0..PERIOD).flat_map(|_| rng.unit().to_le_bytes()).collect();
        let block = cast(&floats, kNVTEFloat32, kNVTEBFloat16);
        let (values, expected) =
            (decode(&block, kNVTEBFloat16), cast(&block, kNVTEBFloat16, kNVTEFloat8E4M3));
        let input = periodic(table, &block, 2, numel)?;
        let output = malloc(table, numel)?;
        let dbias = malloc(table, cols * 2)?;
        let workspace = malloc(table, QuantizeArgs::dbias_workspace_rows(rows, 0) * cols * 4)?;
        let args = QuantizeArgs {
            input,
            rowwise: output,
            rows,
            cols,
            input_dtype: kNVTEBFloat16,
            output_dtype: kNVTEFloat8E4M3,
            fusion: Fusion { dbias, workspace: workspace.cast(), ..Fusion::NONE },
            ..QUANTIZE
        };
        // SAFETY: the buffers have that many elements.
        ok(unsafe { table.quantize.unwrap()(&args, null_mut()) }, "quantize")?;
        let (mut result, mut sums) = (vec![0; numel], vec![0; cols * 2]);
        download(table, &mut result, output, null_mut())?;
        download(table, &mut sums, dbias, null_mut())?;
        [input, output, dbias, workspace].into_iter().for_each(|ptr| free(table, ptr));
        if let Some(part) = result.chunks(PERIOD).position(|part| part != &expected[..part.len()]) {
            return Err(format!("wrong in the {PERIOD} elements from {}", part * PERIOD));
        }
        for col in (0..cols).step_by(101).chain(cols - 3..cols) {
            let sum = column_sum(rows, |row| values[(row * cols + col) % PERIOD]);
            let want = cast(&sum.to_le_bytes(), kNVTEFloat32, kNVTEBFloat16);
            if sums[2 * col..][..2] != want {
                return Err(format!("dbias[{col}] is {:?}, not {want:?}", &sums[2 * col..][..2]));
            }
        }
        Ok(())
    });
}

/// Shapes of the members of a group, and what of them is on the device.
struct Batch {
    dims: Vec<(usize, usize)>,
    rows: usize,
    cols: usize,
    first: Option<Id>,
    last: Option<Id>,
    offsets: Option<Id>,
    numel: usize,
}

impl Batch {
    fn random(rng: &mut Rng, b: &mut Buffers) -> Self {
        let n = rng.pick(&[1, 2, 5, 31, 32, 33, 128, 300, 1100]);
        let most = rng.pick(&[3, 40, 300]).min(3000 / n + 2);
        let (varying_rows, varying_cols) = (rng.chance(60), rng.chance(40));
        let gaps = rng.chance(30);
        let (rows, cols) = (rng.within(1, most), rng.within(1, most));
        let mut dims = Vec::new();
        let mut offsets = vec![0];
        for _ in 0..n {
            let mut size = |varying, fixed| match varying {
                true if rng.chance(10) => 0,
                true if rng.chance(5) => rng.within(1, 10 * most),
                true => rng.within(1, most),
                false => fixed,
            };
            dims.push((size(varying_rows, rows), size(varying_cols, cols)));
            let (rows, cols) = dims[dims.len() - 1];
            let gap = if gaps { rng.within(0, 20) } else { 0 };
            offsets.push(offsets[offsets.len() - 1] + rows * cols + gap);
        }
        let total = |of: fn(&(usize, usize)) -> usize| dims.iter().map(of).sum::<usize>();
        let numel = offsets[n] + rng.pick(&[0, 0, 1000]);
        let (rows, cols) = match (varying_rows, varying_cols) {
            (true, true) => (1, numel),
            (_, false) => (total(|d| d.0), cols),
            (false, true) => (rows, total(|d| d.1)),
        };
        let mut array = |wanted, values: &mut dyn Iterator<Item = usize>| {
            let bytes: Vec<u8> = values.flat_map(|v| (v as i64).to_le_bytes()).collect();
            let id = b.add(bytes, 0);
            if wanted { Some(id) } else { None }
        };
        let first = array(varying_rows, &mut dims.iter().map(|d| d.0));
        let last = array(varying_cols, &mut dims.iter().map(|d| d.1));
        let varying = varying_rows || varying_cols || gaps;
        let offsets = array(varying || rng.chance(50), &mut offsets.into_iter());
        Self { dims, rows, cols, first, last, offsets, numel }
    }

    fn group(&self, side: &Side) -> Group {
        Group {
            num_tensors: self.dims.len(),
            first_dims: side.maybe(self.first),
            last_dims: side.maybe(self.last),
            offsets: side.maybe(self.offsets),
        }
    }
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

impl std::fmt::Display for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let (n, rows, cols) = (self.dims.len(), self.rows, self.cols);
        write!(f, "{n} members of {rows}x{cols}")?;
        write!(
            f,
            ", on the device {:?}",
            [self.first, self.last, self.offsets].map(|a| a.is_some())
        )
    }
}

#[test]
fn swizzle() {
    cases("swizzle", 300, |rng, _| {
        struct Matrix {
            source: Id,
            destination: Id,
            m: usize,
            k: usize,
            valid: (usize, usize),
            transposed: bool,
        }
        let mut b = Buffers::default();
        let n = rng.pick(&[1, 1, 2, 59, 60, 61, 130, 520]);
        let (unswizzle, most) = (rng.chance(40), if n > 10 { 3 } else { 20 });
        let matrices: Vec<_> = (0..n)
            .map(|_| {
                let (m, k) = (128 * rng.within(1, most), 4 * rng.within(1, 2 * most));
                let bytes = rng.bytes(m * k);
                let source = b.add(bytes, rng.shift());
                let destination = b.output(rng, kNVTEByte, m * k);
                let valid = (rng.within(0, m), rng.within(0, k));
                Matrix { source, destination, m, k, valid, transposed: rng.chance(50) }
            })
            .collect();
        let outputs: Vec<_> =
            matrices.iter().map(|a| ("destination", kNVTEByte, Some(a.destination))).collect();
        both(&b, &outputs, |side| {
            let entries: Vec<_> = matrices
                .iter()
                .map(|a| SwizzleEntry {
                    source: side.at(a.source),
                    destination: side.at(a.destination),
                    m: a.m,
                    k: a.k,
                    valid_m: a.valid.0,
                    valid_k: a.valid.1,
                    transposed: a.transposed,
                })
                .collect();
            let args = SwizzleArgs {
                entries: entries.as_ptr(),
                num_entries: n,
                unswizzle,
                rows: 0,
                cols: 0,
                group: Group::NONE,
            };
            entry(side, side.table.swizzle, args)
        })
        .map_err(|e| format!("{n} matrices, unswizzle {unswizzle}: {e}"))
    });
}

#[test]
fn swizzle_groups() {
    cases("swizzle_groups", 200, |rng, _| {
        let mut b = Buffers::default();
        let members = Batch::random(rng, &mut b);
        let unswizzle = rng.chance(40);
        let directions = rng.pick(&[&[false][..], &[true], &[false, true]]);
        let buffers: Vec<_> = directions
            .iter()
            .map(|&transposed| {
                let size = |&(rows, cols): &(usize, usize)| {
                    let (m, k) = if transposed { (cols, rows) } else { (rows, cols) };
                    m.next_multiple_of(128) * k.div_ceil(32).next_multiple_of(4)
                };
                let bytes = members.dims.iter().map(size).sum::<usize>() + 100;
                let values = rng.bytes(bytes);
                (b.add(values, rng.shift()), b.output(rng, kNVTEByte, bytes), transposed)
            })
            .collect();
        let outputs: Vec<_> =
            buffers.iter().map(|a| ("destination", kNVTEByte, Some(a.1))).collect();
        both(&b, &outputs, |side| {
            let entries: Vec<_> = buffers
                .iter()
                .map(|&(source, destination, transposed)| SwizzleEntry {
                    source: side.at(source),
                    destination: side.at(destination),
                    m: 0,
                    k: 0,
                    valid_m: 0,
                    valid_k: 0,
                    transposed,
                })
                .collect();
            let args = SwizzleArgs {
                entries: entries.as_ptr(),
                num_entries: entries.len(),
                unswizzle,
                rows: members.rows,
                cols: members.cols,
                group: members.group(side),
            };
            entry(side, side.table.swizzle, args)
        })
        .map_err(|e| format!("{members}, directions {directions:?}, unswizzle {unswizzle}: {e}"))
    });
}

#[test]
fn scale_codes() {
    cases("scale_codes", 100, |rng, _| {
        let (rows, cols, square) = (rng.within(1, 1000), rng.within(1, 1000), rng.chance(50));
        let (down, across) = (rows.div_ceil(128), cols.div_ceil(128));
        let (lines, least) = if square { (down, across) } else { (across, rows) };
        let stride = least + rng.within(0, 5);
        let mut b = Buffers::default();
        let scales = b.input(rng, kNVTEFloat32, lines * stride);
        let codes = b.output(rng, kNVTEByte, down * across * 512);
        both(&b, &[("codes", kNVTEByte, Some(codes))], |side| {
            let (scales, codes) = (side.at(scales), side.at(codes));
            let args = ScaleCodesArgs { scales, codes, rows, cols, stride, square };
            entry(side, side.table.scale_codes, args)
        })
        .map_err(|e| format!("{rows}x{cols}, square {square}: {e}"))
    });
}

#[test]
fn group_amax() {
    cases("group_amax", 300, |rng, index| {
        let dtype = HIGH[index % 3];
        let mut b = Buffers::default();
        let members = Batch::random(rng, &mut b);
        let input = b.input(rng, dtype, members.numel);
        let amax = b.output(rng, kNVTEFloat32, members.dims.len());
        let noop = rng.noop().map(|flag| b.float(flag));
        both(&b, &[("amax", kNVTEFloat32, Some(amax))], |side| {
            let args = GroupAmaxArgs {
                input: side.at(input),
                amax: side.at(amax),
                noop: side.maybe(noop),
                numel: members.numel,
                rows: members.rows,
                cols: members.cols,
                group: members.group(side),
                dtype,
            };
            entry(side, side.table.group_amax, args)
        })
        .map_err(|e| format!("{dtype:?}, {members}: {e}"))
    });
}

/// A part of a matrix of everyday or odd shape, and its input, whose vectors are often aligned.
fn shard(rng: &mut Rng, b: &mut Buffers, dtype: NVTEDType) -> (Id, Shard) {
    let (rows, cols) = rng.block_shape();
    let numel = rows * cols;
    let (start, length) = match rng.below(4) {
        0 => (0, numel),
        1 => {
            let start = rng.below(numel) / 16 * 16;
            (start, rng.below(numel - start + 1) / 16 * 16)
        }
        _ => {
            let start = rng.below(numel);
            (start, rng.below(numel - start + 1))
        }
    };
    let shift = if rng.chance(60) { start % 16 } else { rng.shift() };
    let bytes = rng.floats(dtype, length);
    let input = b.add(bytes, shift * size(dtype));
    (input, Shard { input: null(), start, length, rows, cols, dtype })
}

/// Rows, columns and dtype of the scales or maxima of a mode.
fn block_matrix(mode: NVTEScalingMode, colwise: bool, s: &Shard) -> (usize, usize) {
    let (down, across) = (s.rows.div_ceil(128), s.cols.div_ceil(128));
    match (mode, colwise) {
        (NVTE_MXFP8_1D_SCALING, false) => (128 * down, 4 * across),
        (NVTE_MXFP8_1D_SCALING, true) => (4 * down, 128 * across),
        _ => (down, across),
    }
}

const PARTIAL_MODES: [NVTEScalingMode; 2] = [NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_2D];

#[test]
fn partial_amax() {
    cases("partial_amax", 400, |rng, index| {
        let (dtype, mode) = (HIGH[index % 3], PARTIAL_MODES[index / 3 % 2]);
        let mxfp8 = mode == NVTE_MXFP8_1D_SCALING;
        let mut b = Buffers::default();
        let (input, shard) = shard(rng, &mut b, dtype);
        let wanted = if mxfp8 {
            rng.pick(&[[true, true], [true, false], [false, true]])
        } else {
            [true, false]
        };
        let block_step = if mxfp8 { 1 } else { rng.within(1, 3) };
        let amax_dtype = if mxfp8 { dtype } else { kNVTEFloat32 };
        let [(rowwise, rowwise_stride), (colwise, colwise_stride)] = [false, true].map(|colwise| {
            let (rows, cols) = block_matrix(mode, colwise, &shard);
            let stride = cols * block_step + rng.pick(&[0, 0, 128]);
            let id = wanted[usize::from(colwise)].then(|| b.output(rng, amax_dtype, rows * stride));
            (id, stride)
        });
        let outputs = [("rowwise", amax_dtype, rowwise), ("colwise", amax_dtype, colwise)];
        both(&b, &outputs, |side| {
            let args = PartialAmaxArgs {
                shard: Shard { input: side.at(input), ..shard },
                rowwise: side.maybe(rowwise),
                colwise: side.maybe(colwise),
                rowwise_stride,
                colwise_stride,
                block_step,
                mode,
            };
            entry(side, side.table.partial_amax, args)
        })
        .map_err(|e| format!("{mode:?}, {shard:?}, directions {wanted:?}: {e}"))
    });
}

#[test]
fn partial_cast() {
    cases("partial_cast", 600, |rng, index| {
        let (dtype, mode) = (HIGH[index % 3], PARTIAL_MODES[index / 3 % 2]);
        let output_dtype = FP8[index / 6 % 2];
        let mxfp8 = mode == NVTE_MXFP8_1D_SCALING;
        let mut b = Buffers::default();
        let (input, mut shard) = shard(rng, &mut b, dtype);
        if shard.length == 0 {
            shard.length = 1;
            b.0[input.0].bytes = rng.floats(dtype, 1);
        }
        let wanted = if mxfp8 {
            rng.pick(&[[true, true], [true, false], [false, true]])
        } else {
            [true, false]
        };
        let block_step = if mxfp8 { 1 } else { rng.within(1, 3) };
        let scale_dtype = if mxfp8 { kNVTEByte } else { kNVTEFloat32 };
        let [row, col] = [false, true].map(|colwise| {
            let (rows, cols) = block_matrix(mode, colwise, &shard);
            let stride = cols * block_step + rng.pick(&[0, 0, 128]);
            let wanted = wanted[usize::from(colwise)];
            let scales = wanted.then(|| b.input(rng, scale_dtype, rows * stride));
            let shift = if rng.chance(60) { shard.start % 16 } else { rng.shift() };
            let output = wanted.then(|| b.add(vec![0xCD; shard.length], shift));
            (output, scales, stride)
        });
        let outputs = [("rowwise", output_dtype, row.0), ("colwise", output_dtype, col.0)];
        both(&b, &outputs, |side| {
            let args = PartialCastArgs {
                shard: Shard { input: side.at(input), ..shard },
                rowwise: side.maybe(row.0),
                colwise: side.maybe(col.0),
                rowwise_scales: side.maybe::<c_void>(row.1),
                colwise_scales: side.maybe::<c_void>(col.1),
                rowwise_stride: row.2,
                colwise_stride: col.2,
                block_step,
                mode,
                output_dtype,
            };
            entry(side, side.table.partial_cast, args)
        })
        .map_err(|e| format!("{mode:?} to {output_dtype:?}, {shard:?}, directions {wanted:?}: {e}"))
    });
}

/// Both orders of a matrix of more than 2^31 scales.
#[test]
fn swizzle_past_2_31() {
    cases("swizzle_past_2_31", 1, |rng, _| {
        let table = cuda_table()?;
        let (m, k) = (128 * 4099, 4096);
        let block = rng.bytes(PERIOD);
        let source = periodic(table, &block, 1, m * k)?;
        let destination = malloc(table, m * k)?;
        let (valid_m, valid_k, transposed) = (m, k, false);
        let matrix = SwizzleEntry { source, destination, m, k, valid_m, valid_k, transposed };
        let args = SwizzleArgs {
            entries: &matrix,
            num_entries: 1,
            unswizzle: false,
            rows: 0,
            cols: 0,
            group: Group::NONE,
        };
        // SAFETY: the buffers have that many bytes.
        ok(unsafe { table.swizzle.unwrap()(&args, null_mut()) }, "swizzle")?;
        let mut tile_row = vec![0; 128 * k];
        let last = destination.cast::<u8>().wrapping_add((m - 128) * k).cast();
        download(table, &mut tile_row, last, null_mut())?;
        free(table, source);
        free(table, destination);
        for (at, byte) in tile_row.into_iter().enumerate() {
            let (tile, at) = (at / 512, at % 512);
            let row = m - 128 + at % 16 / 4 * 32 + at / 16;
            if byte != block[(row * k + tile * 4 + at % 4) % PERIOD] {
                return Err(format!("byte {at} of tile {tile} in the last row of tiles is wrong"));
            }
        }
        Ok(())
    });
}

impl Buffers {
    /// Values in [-top, top].
    fn units(&mut self, rng: &mut Rng, dtype: NVTEDType, len: usize, top: f32) -> Id {
        let values: Vec<u8> = (0..len).flat_map(|_| (top * rng.unit()).to_le_bytes()).collect();
        let shift = rng.shift() * size(dtype);
        self.add(cast(&values, kNVTEFloat32, dtype), shift)
    }
}

#[test]
fn softmax() {
    use SoftmaxMask::*;
    let masks = [
        NVTEX_SOFTMAX_UNMASKED,
        NVTEX_SOFTMAX_BYTES,
        NVTEX_SOFTMAX_CAUSAL,
        NVTEX_SOFTMAX_CAUSAL_BOTTOM_RIGHT,
    ];
    cases("softmax", 480, |rng, index| {
        let (dtype, visible) = (HIGH[index % 3], masks[index / 3 % 4]);
        let backward = index / 12 % 2 == 1;
        let keys = match rng.below(5) {
            0 => rng.within(1, 80),
            1 => 8 * rng.within(1, 600),
            2 => rng.within(1, 5000),
            3 => 8 * rng.within(1000, 6000),
            _ => rng.pick(&[128, 512, 2048, 8192, 16384, 32768, 32776]),
        };
        let most = (200_000 / keys).clamp(1, 300);
        let queries = rng.within(1, most);
        let matrices_per_mask = rng.within(1, 3);
        let matrices = matrices_per_mask * rng.within(1, 3);
        let numel = matrices * queries * keys;
        let mut b = Buffers::default();
        let input = b.units(rng, dtype, numel, 3.0);
        let results = backward.then(|| b.units(rng, dtype, numel, 1.0 / keys as f32));
        let masked = !backward && visible == NVTEX_SOFTMAX_BYTES;
        let mask = masked.then(|| {
            let mut bytes = rng.bytes(numel / matrices_per_mask);
            bytes.iter_mut().for_each(|byte| *byte %= 3);
            // A row without anything.
            bytes[..keys].fill(1);
            b.add(bytes, rng.shift())
        });
        let output = b.output(rng, dtype, numel);
        let output = if rng.chance(25) { input } else { output };
        let scale = rng.pick(&[1.0, 0.125, -2.0]);
        nearly(&b, dtype, 4e-6, &[output], |side| {
            let args = SoftmaxArgs {
                input: side.at(input),
                results: side.maybe(results),
                output: side.at(output),
                mask: side.maybe(mask),
                matrices_per_mask,
                matrices,
                queries,
                keys,
                scale,
                visible,
                dtype,
            };
            entry(side, side.table.softmax, args)
        })
        .map_err(|e| format!("{dtype:?} {visible:?} {matrices}x{queries}x{keys} {backward}: {e}"))
    });
}

#[test]
fn dropout() {
    cases("dropout", 300, |rng, index| {
        let (input_dtype, output_dtype) = match index % 9 {
            i @ 0..6 => (FP8[i % 2], HIGH[i / 2]),
            i => (HIGH[i - 6], HIGH[i - 6]),
        };
        let forward = is_fp8(input_dtype) || index / 9 % 2 == 0;
        let numel = match rng.below(3) {
            0 => rng.within(1, 1200),
            1 => 512 * rng.within(1, 300),
            _ => rng.within(1, 200_000),
        };
        let mut b = Buffers::default();
        let input = b.input(rng, input_dtype, numel);
        let output = b.output(rng, output_dtype, numel);
        let output = if input_dtype == output_dtype && rng.chance(25) { input } else { output };
        let mask_bytes = rng.bytes(numel.div_ceil(8));
        let mask = b.add(mask_bytes, rng.below(3));
        let state = [rng.next(), rng.next() >> rng.pick(&[0, 30, 60])];
        let state: Vec<u8> = state.into_iter().flat_map(u64::to_le_bytes).collect();
        let rng_state = forward.then(|| b.add(state, 0));
        let scale_inv = b.float(rng.scale());
        let probability = rng.pick(&[0.0, 0.1, 0.5, 0.001, 0.999]);
        let written = forward.then_some(mask);
        let outputs = [("output", output_dtype, Some(output)), ("mask", kNVTEByte, written)];
        both(&b, &outputs, |side| {
            let args = DropoutArgs {
                input: side.at(input),
                output: side.at(output),
                mask: side.at(mask),
                rng_state: side.maybe(rng_state),
                scale_inv: side.at(scale_inv),
                numel,
                probability,
                input_dtype,
                output_dtype,
            };
            entry(side, side.table.dropout, args)
        })
        .map_err(|e| format!("{input_dtype:?} to {output_dtype:?}, {numel} {forward}: {e}"))
    });
}

#[test]
fn rope() {
    cases("rope", 400, |rng, index| {
        let (dtype, interleaved, backward) =
            (HIGH[index % 3], index / 3 % 2 == 1, index / 6 % 2 == 1);
        let cp_size = rng.pick(&[1, 1, 2, 3]);
        let packed = rng.chance(30);
        let (mut positions, sequences) = (2 * rng.within(1, 60), rng.within(1, 9));
        let dim = rng.pick(&[2, 6, 16, 64, 80, 128, 256, 600]);
        let rotated = if rng.chance(70) { dim } else { dim / 4 * 2 };
        let freqs_rows = positions * cp_size * sequences + 50;
        let mut b = Buffers::default();
        let mut ints =
            |values: Vec<i32>| b.add(values.into_iter().flat_map(i32::to_le_bytes).collect(), 0);
        let starts = rng.chance(30).then(|| {
            let starts = (0..sequences).map(|_| rng.below(50) as i32).collect();
            ints(starts)
        });
        let cu_seqlens = packed.then(|| {
            let mut cu = vec![0];
            for n in 0..sequences {
                cu.push(cu[n] + 2 * (cp_size * rng.below(positions / 2 + 1)) as i32);
            }
            positions = cu[sequences] as usize / cp_size + 3;
            ints(cu)
        });
        let tokens = if packed { positions } else { positions * sequences };
        // One tensor, or queries, keys and values of groups.
        let groups = rng.within(1, 5);
        let members: Vec<usize> =
            if rng.chance(50) { vec![1] } else { vec![rng.within(1, 4), 1, 1] };
        let group: usize = members.iter().sum::<usize>() * dim;
        let sequence_first = rng.chance(50);
        let strides = |group: usize| RopeStrides {
            position: if packed || sequence_first { 1 } else { sequences } * groups * group,
            sequence: if packed {
                0
            } else if sequence_first {
                positions * groups * group
            } else {
                groups * group
            },
            group,
            head: dim,
            element: 1,
        };
        let whole = b.units(rng, dtype, tokens * groups * group, 1.0);
        let mut parts = Vec::new();
        for (i, &heads) in members.iter().enumerate() {
            let other = b.units(rng, dtype, tokens * groups * heads * dim, 1.0);
            let turns = i < 2 && rng.chance(90);
            let freqs = turns.then(|| b.units(rng, kNVTEFloat32, freqs_rows * rotated, 1000.0));
            parts.push((heads, other, freqs));
        }
        let outputs: Vec<Id> =
            if backward { vec![whole] } else { parts.iter().map(|part| part.1).collect() };
        nearly(&b, dtype, 2e-6, &outputs, |side| {
            let mut first = 0;
            let part = |i: usize| {
                let Some(&(heads, other, freqs)) = parts.get(i) else { return NO_ROPE_PART };
                let here = side.at::<u8>(whole).wrapping_add(first * size(dtype)).cast();
                first += heads * dim;
                let (own, shared) = (strides(heads * dim), strides(group));
                let (input, output) =
                    if backward { (side.at(other), here) } else { (here, side.at(other)) };
                let (input_strides, output_strides) =
                    if backward { (own, shared) } else { (shared, own) };
                RopePart {
                    input,
                    output,
                    freqs: side.maybe(freqs),
                    heads: groups * heads,
                    heads_per_group: heads,
                    input_strides,
                    output_strides,
                }
            };
            let args = RopeArgs {
                parts: [0, 1, 2].map(part),
                cu_seqlens: side.maybe(cu_seqlens),
                start_positions: side.maybe(starts),
                positions,
                sequences,
                dim,
                rotated,
                cp_size,
                cp_rank: cp_size - 1,
                interleaved,
                backward,
                dtype,
            };
            entry(side, side.table.rope, args)
        })
        .map_err(|e| {
            format!("{dtype:?} {positions}x{sequences}x{groups}x{members:?}x{dim} {rotated}: {e}")
        })
    });
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
