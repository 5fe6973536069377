//! What a fused cast starts from: the elements v of its form, and their sums over the rows (spec
//! quantize 4, 9.2, 9.3).
#![allow(unsafe_code)]

use super::cpu_block::{TILE, Tile};
use crate::backend::args::{Cast, Form, Fusion};
use crate::backend::buf::Buf;
use crate::backend::cpu::{narrow, vectorized, widen};
use crate::backend::pool::parallel;
use crate::function::{Curve, WithCurve, with_curve};
use crate::numeric::Element;

/// True if v is the input and its sums are not wanted.
pub(super) fn is_plain(fusion: &Fusion) -> bool {
    fusion.form == Form::NVTEX_FORM_PLAIN && fusion.dbias.is_null()
}

/// The elements v of a `[rows, cols]` matrix.
pub(super) struct Source<'a, I> {
    fusion: &'a Fusion,
    /// The output may be the input or `act_input`: elements are read where they are used.
    pub input: Buf<I>,
    act_input: Buf<I>,
    row_scales: Option<&'a [I]>,
    rows: usize,
    cols: usize,
    /// `dbias`, and the sums of each 128 rows.
    sums: Option<(Buf<I>, Buf<f32>)>,
}

// SAFETY: of the fusion, no pointers are used; of the inputs, each task reads the elements of its tiles.
unsafe impl<I: Sync> Sync for Source<'_, I> {}

impl<'a, I: Element> Source<'a, I> {
    /// # Safety
    /// The arguments are valid, have the input dtype `I` and no group.
    pub(super) unsafe fn new(a: &'a Cast) -> Self {
        let &Cast { ref fusion, rows, cols, .. } = a;
        let width = match fusion.form {
            Form::NVTEX_FORM_GATED => 2 * cols,
            Form::NVTEX_FORM_GATED_DERIVATIVE => cols / 2,
            _ => cols,
        };
        let act_len = if fusion.act_input.is_null() { 0 } else { rows * cols };
        // SAFETY: the caller's promise; the scales are distinct from the outputs.
        unsafe {
            Self {
                fusion,
                input: Buf::new(a.input, rows * width),
                act_input: Buf::new(fusion.act_input, act_len),
                row_scales: Buf::optional(fusion.row_scales, rows)
                    .map(|scales| scales.slice(0, rows)),
                rows,
                cols,
                sums: Buf::optional(fusion.dbias, cols).map(|dbias| {
                    (dbias, Buf::new(fusion.workspace.cast(), rows.div_ceil(TILE) * cols))
                }),
            }
        }
    }

    /// v in a row, from a column on.
    ///
    /// # Safety
    /// Nobody writes to the elements of the inputs meanwhile.
    unsafe fn line(&self, row: usize, col: usize, v: &mut [f32]) {
        let (n, half) = (v.len(), self.cols / 2);
        let mut floats = [[0.0; TILE]; 2];
        let [first, second] = &mut floats;
        let (first, second) = (&mut first[..n], &mut second[..n]);
        let at = row * self.cols + col;
        // Asks for what the tile beside this one copies of the row, too.
        let copy = |from: Buf<I>, start, to: &mut [f32]| {
            from.prefetch(start + n, n);
            // SAFETY: the caller's promise, of the slices that this lends for the time of a copy.
            widen(unsafe { from.slice(start, n) }, to);
        };
        match self.fusion.form {
            Form::NVTEX_FORM_PLAIN => copy(self.input, at, v),
            Form::NVTEX_FORM_ACTIVATION => {
                copy(self.input, at, first);
                with_curve(self.fusion, Part::Value { a: first, v });
            }
            Form::NVTEX_FORM_DERIVATIVE => {
                copy(self.act_input, at, first);
                copy(self.input, at, v);
                with_curve(self.fusion, Part::Slope { a: first, v });
            }
            Form::NVTEX_FORM_GATED => {
                let start = row * 2 * self.cols + col;
                copy(self.input, start, first);
                copy(self.input, start + self.cols, second);
                with_curve(self.fusion, Part::Gated { a: first, g: second, v: &mut *v });
                if let Some(scales) = self.row_scales {
                    let scale = scales[row].to_f32();
                    v.iter_mut().for_each(|v| *v *= scale);
                }
            }
            Form::NVTEX_FORM_GATED_DERIVATIVE if col < half && half < col + n => {
                let (left, right) = v.split_at_mut(half - col);
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                unsafe {
                    self.line(row, col, left);
                    self.line(row, half, right);
                }
            }
            Form::NVTEX_FORM_GATED_DERIVATIVE => {
                let left = col < half;
                let col = col % half;
                let start = row * self.cols + col;
                copy(self.act_input, start, first);
                copy(self.act_input, start + half, second);
                copy(self.input, row * half + col, v);
                with_curve(
                    self.fusion,
                    match left {
                        true => Part::Left { a: first, g: second, v },
                        false => Part::Right { a: first, g: second, v },
                    },
                );
            }
        }
    }

    /// Adds up the sums of the tiles.
    ///
    /// # Safety
    /// All tiles have been filled.
    pub(super) unsafe fn reduce(&self) {
        let Some((dbias, workspace)) = self.sums else { return };
        parallel(self.cols.div_ceil(TILE)).for_each(|part| {
            let (start, width) = (part * TILE, TILE.min(self.cols - part * TILE));
            let mut sums = [[0.0; TILE]; 8];
            for block in 0..self.rows.div_ceil(TILE) {
                // SAFETY: the tiles have been filled.
                add(
                    unsafe { workspace.slice(block * self.cols + start, width) },
                    &mut sums[block % 8],
                );
            }
            let mut total = [0.0; TILE];
            sums.iter().for_each(|sum| add(sum, &mut total));
            // SAFETY: each task writes its own part.
            narrow(&total[..width], unsafe { dbias.slice_mut(start, width) });
        });
    }
}

/// Makes elements.
pub(super) trait Make<V>: Sync {
    /// Fills a tile, in lines of `TILE`, with v rounded to `V`, and keeps the sums of its columns.
    ///
    /// # Safety
    /// Nobody else uses this tile meanwhile.
    unsafe fn make(&self, tile: &Tile, to: &mut [V]);
}

impl<I: Element, V: Element> Make<V> for Source<'_, I> {
    unsafe fn make(&self, tile: &Tile, to: &mut [V]) {
        let width = tile.cols.len();
        let mut line = [0.0; TILE];
        // Sums of 4 rows, of 8 rows, and of the tile.
        let (mut four, mut pair, mut all) = ([0.0; TILE], [0.0; TILE], [0.0; TILE]);
        for (r, (row, to)) in tile.rows.clone().zip(to.chunks_exact_mut(TILE)).enumerate() {
            // SAFETY: outputs are distinct from the inputs, except for the elements of this tile, which
            // are written later.
            unsafe { self.line(row, tile.cols.start, &mut line[..width]) };
            narrow(&line[..width], &mut to[..width]);
            if self.sums.is_some() {
                add(&line, &mut four);
                if r % 4 == 3 {
                    add(&std::mem::replace(&mut four, [0.0; TILE]), &mut pair);
                }
                if r % 8 == 7 {
                    add(&std::mem::replace(&mut pair, [0.0; TILE]), &mut all);
                }
            }
        }
        if let Some((_, workspace)) = self.sums {
            add(&four, &mut pair);
            add(&pair, &mut all);
            let start = tile.at(tile.rows.start / TILE, self.cols);
            // SAFETY: the sums are of this tile.
            unsafe { workspace.slice_mut(start, width) }.copy_from_slice(&all[..width]);
        }
    }
}

fn add(values: &[f32], sums: &mut [f32; TILE]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// What to compute from the activation half `a` and the linear half `g`; where a derivative is wanted,
/// `v` is the gradient before.
enum Part<'a> {
    Value { a: &'a [f32], v: &'a mut [f32] },
    Slope { a: &'a [f32], v: &'a mut [f32] },
    Gated { a: &'a [f32], g: &'a [f32], v: &'a mut [f32] },
    Left { a: &'a [f32], g: &'a [f32], v: &'a mut [f32] },
    Right { a: &'a [f32], g: &'a [f32], v: &'a mut [f32] },
}

impl WithCurve for Part<'_> {
    type Output = ();
    fn call<C: Curve>(self, curve: C) {
        evaluate(curve, self)
    }
}

vectorized! {
    fn evaluate<C: Curve>(curve: C, part: Part) {
        let each = std::iter::zip::<&[f32], &[f32]>;
        match part {
            Part::Value { a, v } => v.iter_mut().zip(a).for_each(|(v, &a)| *v = curve.value(a)),
            Part::Slope { a, v } => {
                v.iter_mut().zip(a).for_each(|(v, &a)| *v *= curve.slope(a));
            }
            Part::Gated { a, g, v } => {
                for (v, (&a, &g)) in v.iter_mut().zip(each(a, g)) {
                    *v = curve.value(a) * curve.gate(g);
                }
            }
            Part::Left { a, g, v } => {
                for (v, (&a, &g)) in v.iter_mut().zip(each(a, g)) {
                    *v = (curve.slope(a) * *v) * curve.gate(g);
                }
            }
            Part::Right { a, g, v } => {
                for (v, (&a, &g)) in v.iter_mut().zip(each(a, g)) {
                    *v = (curve.gate_slope(g) * *v) * curve.value(a);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::args::{Function, Group, QuantizeArgs};
    use crate::numeric::*;
    use crate::op::cast::cpu::quantize;
    use crate::types::NVTEScalingMode::{self, *};
    use std::ptr::{null, null_mut};

    const FORMS: [Form; 5] = [
        Form::NVTEX_FORM_PLAIN,
        Form::NVTEX_FORM_ACTIVATION,
        Form::NVTEX_FORM_DERIVATIVE,
        Form::NVTEX_FORM_GATED,
        Form::NVTEX_FORM_GATED_DERIVATIVE,
    ];
    const MODES: [NVTEScalingMode; 4] = [
        NVTE_DELAYED_TENSOR_SCALING,
        NVTE_MXFP8_1D_SCALING,
        NVTE_BLOCK_SCALING_1D,
        NVTE_BLOCK_SCALING_2D,
    ];

    /// v at a row and column, one element alone.
    struct Definition<'a> {
        form: Form,
        input: &'a [f32],
        act: &'a [f32],
        cols: usize,
        at: (usize, usize),
    }

    impl WithCurve for Definition<'_> {
        type Output = f32;
        fn call<C: Curve>(self, curve: C) -> f32 {
            let Self { form, input, act, cols, at: (r, c) } = self;
            let half = cols / 2;
            match form {
                Form::NVTEX_FORM_PLAIN => input[r * cols + c],
                Form::NVTEX_FORM_ACTIVATION => curve.value(input[r * cols + c]),
                Form::NVTEX_FORM_DERIVATIVE => curve.slope(act[r * cols + c]) * input[r * cols + c],
                Form::NVTEX_FORM_GATED => {
                    let row = &input[r * 2 * cols..];
                    curve.value(row[c]) * curve.gate(row[cols + c])
                }
                Form::NVTEX_FORM_GATED_DERIVATIVE => {
                    let (x, row) = (input[r * half + c % half], &act[r * cols..]);
                    let (a, g) = (row[c % half], row[half + c % half]);
                    match c < half {
                        true => curve.slope(a) * x * curve.gate(g),
                        false => curve.gate_slope(g) * x * curve.value(a),
                    }
                }
            }
        }
    }

    /// The sum of a column in the order that `Fusion` says, with zeros for the rows that are not there.
    fn column_sum(rows: usize, v: impl Fn(usize) -> f32) -> f32 {
        let at = |r: usize| if r < rows { v(r) } else { 0.0 };
        let four = |r: usize| 0.0 + at(r) + at(r + 1) + at(r + 2) + at(r + 3);
        let block = |b: usize| {
            (0..16).fold(0.0, |sum, i| {
                let r = b * 128 + i * 8;
                sum + (four(r) + four(r + 4))
            })
        };
        let eighth = |i| (i..rows.div_ceil(128)).step_by(8).fold(0.0, |sum, b| sum + block(b));
        (0..8).fold(0.0, |sum, i| sum + eighth(i))
    }

    fn values<T: Element>(len: usize, seed: usize) -> Vec<T> {
        let value = |i: usize| {
            let bits = (i + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            bits as f32 / (1 << 23) as f32 * 4.0 - 4.0
        };
        (0..len).map(|i| T::from_f32(value(i))).collect()
    }

    /// Against the plain cast of elements made one by one.
    fn check<I: Element + PartialEq, O: Element + PartialEq>(
        mode: NVTEScalingMode,
        (rows, cols): (usize, usize),
        (form, function): (Form, Function),
    ) {
        let numel = rows * cols;
        let input_len = match form {
            Form::NVTEX_FORM_GATED => 2 * numel,
            Form::NVTEX_FORM_GATED_DERIVATIVE => numel / 2,
            _ => numel,
        };
        let (input, act) = (values::<I>(input_len, 1), values::<I>(numel, 77));
        let (mut dbias, mut workspace) =
            (vec![I::default(); cols], vec![0f32; rows.div_ceil(128) * cols]);
        let fusion = Fusion {
            form,
            function,
            a: 3.0,
            b: 1.5,
            c: 0.5,
            act_input: act.as_ptr().cast(),
            dbias: dbias.as_mut_ptr().cast(),
            workspace: workspace.as_mut_ptr(),
            ..Fusion::NONE
        };
        let floats = |from: &[I]| from.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
        let (input_floats, act_floats) = (floats(&input), floats(&act));
        let v = |r: usize, c: usize| {
            let definition =
                Definition { form, input: &input_floats, act: &act_floats, cols, at: (r, c) };
            with_curve(&fusion, definition)
        };
        let all: Vec<f32> = (0..numel).map(|i| v(i / cols, i % cols)).collect();
        let rounded: Vec<I> = all.iter().map(|&v| I::from_f32(v)).collect();
        let per_tensor = mode == NVTE_DELAYED_TENSOR_SCALING;

        let run = |input: *const std::ffi::c_void, input_dtype, fusion| {
            let (mut row, mut col) = (vec![O::default(); numel], vec![O::default(); numel]);
            let [row_stride, col_stride] =
                [false, true].map(|colwise| mode.scaling().scale_pitch(colwise, (rows, cols)));
            let entries =
                |colwise, stride| mode.scaling().scale_dims(colwise, (rows, cols)).0 * stride;
            let mut row_scales = vec![0f32; entries(false, row_stride)];
            let mut col_scales = vec![0f32; entries(true, col_stride)];
            let (scale, mut amax) = (7.5f32, 0f32);
            let args = Cast {
                input,
                rowwise: row.as_mut_ptr().cast(),
                colwise: col.as_mut_ptr().cast(),
                scale: &scale,
                amax: &mut amax,
                rowwise_scale_inv: row_scales.as_mut_ptr().cast(),
                colwise_scale_inv: col_scales.as_mut_ptr().cast(),
                noop: null(),
                rows,
                cols,
                rowwise_scale_stride: row_stride,
                colwise_scale_stride: col_stride,
                epsilon: 0.0,
                mode,
                input_dtype,
                output_dtype: O::DTYPE,
                pow2: false,
                square_blocks: rows % 2 == 0,
                swizzled: false,
                fusion,
                group: Group::NONE,
            };
            // SAFETY: the arrays have the shapes that the arguments say.
            unsafe { quantize(&QuantizeArgs { cast: args }, null_mut()) };
            (row, col, row_scales, col_scales, amax)
        };
        let got = run(input.as_ptr().cast(), I::DTYPE, fusion);
        let want = match per_tensor {
            true => run(all.as_ptr().cast(), F32::DTYPE, Fusion::NONE),
            false => run(rounded.as_ptr().cast(), I::DTYPE, Fusion::NONE),
        };
        let what = || format!("{mode}, {form:?} of {function:?}, {rows}x{cols}");
        assert!(got.0 == want.0 && got.1 == want.1, "{}: data", what());
        assert!(got.2 == want.2 && got.3 == want.3 && got.4 == want.4, "{}: scales", what());
        for (c, &got) in dbias.iter().enumerate() {
            let want = I::from_f32(column_sum(rows, |r| all[r * cols + c]));
            assert!(got == want, "{}: dbias[{c}]", what());
        }
    }

    #[test]
    fn fused_casts_are_plain_casts_of_v() {
        let functions = [
            Function::NVTEX_IDENTITY,
            Function::NVTEX_GELU,
            Function::NVTEX_SILU,
            Function::NVTEX_QGELU,
            Function::NVTEX_RELU,
            Function::NVTEX_SRELU,
            Function::NVTEX_SIGMOID,
            Function::NVTEX_CLAMPED_SILU,
            Function::NVTEX_SITU,
        ];
        for (i, function) in functions.into_iter().enumerate() {
            for form in FORMS {
                for (j, shape) in
                    [(1, 2), (3, 130), (300, 134), (130, 2), (2600, 6)].into_iter().enumerate()
                {
                    let mode = MODES[(i + j) % 4];
                    check::<F32, E4M3>(mode, shape, (form, function));
                    check::<BF16, E5M2>(mode, shape, (form, function));
                    check::<F16, E4M3>(mode, shape, (form, function));
                    check::<F16, F16>(NVTE_DELAYED_TENSOR_SCALING, shape, (form, function));
                }
            }
        }
    }
}
