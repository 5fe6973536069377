//! Reference of the casts to NVFP4 and back (spec nvfp4, sections 8 to 13 and 16).
#![allow(unsafe_code)]

use crate::backend::args::Nvfp4Choice::*;
use crate::backend::args::Nvfp4Variant::{self, *};
use crate::backend::args::{Nvfp4DequantizeArgs, Nvfp4Lines, Nvfp4QuantizeArgs, Outcome};
use crate::backend::buf::{self, Buf};
use crate::backend::cpu::{is_noop, vectorized, widen};
use crate::backend::memory::collect;
use crate::backend::pool::parallel;
use crate::numeric::*;
use crate::random::philox;
use crate::types::cudaStream_t;

/// Arguments that threads share: addresses of memory of which each writes its own part.
struct Shared<'a, T>(&'a T);

// SAFETY: the methods that use the addresses say what threads may do.
unsafe impl<T> Sync for Shared<'_, T> {}

impl<T> Shared<'_, T> {
    fn get(&self) -> &T {
        self.0
    }
}

/// Elements of a block.
const BLOCK: usize = 16;

pub(crate) unsafe extern "C-unwind" fn nvfp4_quantize(
    args: *const Nvfp4QuantizeArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: the arguments are valid: the flag is null or one float.
    if unsafe { is_noop(a.noop) } {
        return Outcome::OK;
    }
    dispatch!(a.input_dtype, [F32, F16, BF16], I => {
        // SAFETY: the arguments are valid, and the dtype of the call is the one that they name.
        unsafe { run::<I>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("nvfp4_quantize: input dtype"))
}

/// Rows that have scales and column-wise data of their own.
struct Member {
    index: usize,
    first: usize,
    rows: usize,
    /// Bytes before the member's column-wise data and scales.
    data: usize,
    scales: usize,
    /// Distance of the column-wise scales of neighbouring columns.
    stride: usize,
    /// Rows of all members together.
    packed_rows: usize,
}

/// # Safety
/// The arguments are valid.
unsafe fn members(a: &Nvfp4QuantizeArgs) -> Vec<Member> {
    let stride = a.colwise.scale_stride;
    if a.offsets.is_null() {
        let (rows, packed_rows) = (a.rows, a.total_rows);
        return vec![Member { index: 0, first: 0, rows, data: 0, scales: 0, stride, packed_rows }];
    }
    let n = a.num_tensors + 1;
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let offsets = unsafe { Buf::<i64>::new(a.offsets.cast(), n).slice(0, n) };
    let packed_rows = offsets[a.num_tensors] as usize / a.cols;
    // Offsets that are wrong still give whole blocks of the matrix's rows; a negative offset becomes
    // one that is too large.
    let row = |at: i64| (at as usize / a.cols).min(a.rows) / 128 * 128;
    let member = |(index, ends): (usize, &[i64])| {
        let [first, end] = [ends[0], ends[1]].map(row);
        let (rows, from) = (end.saturating_sub(first), first * a.cols);
        Member {
            index,
            first,
            rows,
            data: from / 2,
            scales: from / 16,
            stride: rows / BLOCK,
            packed_rows,
        }
    };
    collect(offsets.windows(2).enumerate().map(member))
}

/// The global scale of an operator's variant for the largest magnitude of a tensor.
fn global_scale(variant: Nvfp4Variant, amax: f32, e4m3_max: f32) -> Nvfp4Scale {
    let scale = e4m3_max * 6.0 / amax;
    match variant {
        NVTEX_NVFP4_HADAMARD_COLUMNS if amax.is_nan() => Nvfp4Scale::of_global(f32::NAN),
        NVTEX_NVFP4_HADAMARD | NVTEX_NVFP4_HADAMARD_GROUP => {
            Nvfp4Scale::of_global(if amax > 0.0 { scale.min(f32::MAX) } else { 1.0 })
        }
        _ => Nvfp4Scale::new(amax, e4m3_max),
    }
}

/// Sequence and call of the generator for the words of a block (spec nvfp4, sections 9 and 16), and
/// whether its halves of 8 elements are exchanged.
fn random_call(
    (a, packed_rows): (&Nvfp4QuantizeArgs, usize),
    colwise: bool,
    r: usize,
    c: usize,
) -> (usize, usize, bool) {
    let r = r + a.first_row;
    let (tile_r, tile_c) = (r % 128, c % 128);
    let across = a.cols.div_ceil(128);
    let tile = c / 128 + r / 128 * across;
    let rows = a.total_rows;
    // Tiles of `height` rows in strips of `per` that are followed column by column.
    let strips = |height: usize, per: usize| {
        let down = r / height;
        (down % per, per * (c / 128 + down / per * across))
    };
    match a.variant {
        NVTEX_NVFP4_TUNED => {
            let (in_r, in_c) = (tile_r % 64, tile_c % 64);
            let sub = tile_r / 64 * 2 + tile_c / 64;
            let calls = if a.colwise.data.is_null() { 2 } else { 4 };
            if colwise {
                let lane = in_c / 2;
                let warp = (in_r / 16 + 4 - lane / 2 % 4) % 4;
                (32 * warp + lane + 128 * tile, sub * calls + 2 + c % 2, false)
            } else {
                let thread = in_r % 32 * 4 + in_c / 16;
                (thread + 128 * tile, sub * calls + in_r / 32, thread % 32 >= 16)
            }
        }
        NVTEX_NVFP4_SQUARE => {
            let both = !a.colwise.data.is_null() && !a.rowwise.data.is_null();
            let (strip, half) = (tile_r / 32, tile_r % 32 / 16);
            let calls = if both { 4 } else { 2 };
            if colwise {
                (tile_c + 128 * tile, strip * calls + half, false)
            } else {
                let thread = tile_r % 16 * 8 + tile_c / 16;
                let before = if both { 2 } else { 0 };
                (thread + 128 * tile, strip * calls + before + half, thread % 32 >= 16)
            }
        }
        NVTEX_NVFP4_GENERAL if colwise => {
            let before = if a.rowwise.data.is_null() { 0 } else { 4 };
            let thread = tile_c / 2 % 32 * 8 + tile_r / 16;
            (thread + 256 * tile, before + tile_c / 64 * 2 + c % 2, false)
        }
        NVTEX_NVFP4_GENERAL => (tile_r % 32 * 8 + tile_c / 16 + 256 * tile, tile_r / 32, false),
        NVTEX_NVFP4_HADAMARD_COLUMNS => {
            let (k, lin) = strips(64, (strip_rows(rows, a.cols).min(rows) / 64).max(1));
            (tile_c + 256 * k + 256 * lin, tile_r % 64 / 16, false)
        }
        NVTEX_NVFP4_HADAMARD | NVTEX_NVFP4_HADAMARD_GROUP => {
            let (k, lin) = strips(128, rows.min(1024).div_ceil(128).max(1));
            let sequence = 512 * k + 512 * lin;
            if colwise {
                return (128 + tile_c + sequence, tile_r / 16, false);
            }
            if a.variant == NVTEX_NVFP4_HADAMARD {
                let thread = tile_r / 16 * 32 + tile_r % 16 * 2 + tile_c / 64;
                return (256 + thread + 512 + sequence, tile_c % 64 / 16, false);
            }
            let thread = tile_r % 32 / 4 * 32 + tile_r % 4 * 8 + tile_c / 16;
            let strip = rows.min(1024).div_ceil(128).max(1);
            let before = 512 * strip * across * (packed_rows / 128);
            (256 + thread + 512 + sequence + before, tile_r / 32, false)
        }
    }
}

/// Rows of the strips of HADAMARD_COLUMNS.
fn strip_rows(rows: usize, cols: usize) -> usize {
    let other = if rows == 8192 { cols } else { rows };
    match other {
        _ if rows != 8192 && cols != 8192 => (),
        5120 | 3584 => return 512,
        10240 | 11328 => return 1024,
        2560 => return 1280,
        512 => return 256,
        _ => (),
    }
    if rows < 1024 || cols < 1024 { 512 } else { 1024 }
}

vectorized! {
    /// `x factor + plus`: with -0 the product as it is, with 0 no negative 0.
    fn scaled(x: &[f32; BLOCK], factor: f32, plus: f32) -> [f32; BLOCK] {
        let mut y = [0.0; BLOCK];
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = x * factor + plus);
        y
    }
}

vectorized! {
    /// The codes of a block, to nearest.
    fn nearest(y: &[f32; BLOCK]) -> [u8; BLOCK] {
        let mut codes = [0; BLOCK];
        codes.iter_mut().zip(y).for_each(|(code, &y)| *code = e2m1(y));
        codes
    }
}

/// Rounds to one of the two neighbours by a random byte.
fn stochastic(y: f32, byte: u32) -> u8 {
    let a = y.abs();
    let step = if a >= 4.0 {
        2.0
    } else if a >= 2.0 {
        1.0
    } else {
        0.5
    };
    let t = (byte as f32 / 256.0).mul_add(step, a);
    let nearest = e2m1(((t / step).floor() * step).min(6.0));
    if y.is_nan() { 7 } else { nearest | (y.to_bits() >> 28) as u8 & 8 }
}

/// The sum in pairs of the products with column n of a matrix.
fn transformed(x: &[f32; BLOCK], matrix: &[BF16], n: usize) -> f32 {
    let mut sums: [f32; BLOCK] = std::array::from_fn(|k| x[k] * matrix[k * BLOCK + n].to_f32());
    for len in [8, 4, 2, 1] {
        for i in 0..len {
            sums[i] = sums[2 * i] + sums[2 * i + 1];
        }
    }
    sums[0]
}

/// What the cast of a line needs beside its elements.
struct Context<'a> {
    a: &'a Nvfp4QuantizeArgs,
    scale: Nvfp4Scale,
    amax: f32,
    rng: [u64; 2],
}

impl Context<'_> {
    /// Scale and codes of a block with the largest magnitude `most`.
    fn cast(
        &self,
        x: &[f32; BLOCK],
        most: f32,
        calls: (usize, usize, bool),
    ) -> (E4M3, [u8; BLOCK]) {
        let (a, scale) = (self.a, &self.scale);
        let propagates = a.variant as i32 >= NVTEX_NVFP4_HADAMARD_COLUMNS as i32;
        if propagates && (most.is_nan() || scale.global.is_nan()) {
            return (E4M3(0x7F), [7; BLOCK]);
        }
        let code = scale.block(most);
        let y = if a.fast_math && a.variant == NVTEX_NVFP4_TUNED {
            let factor = (scale.global / code.to_f32()).min(f32::from_bits(0x7F7F_0000));
            scaled(x, BF16::from_f32(factor).to_f32(), 0.0)
        } else {
            let product = code.to_f32() * scale.inverse;
            let factor =
                if propagates && product.is_nan() { product } else { scale.multiplier(code) };
            scaled(x, factor, -0.0)
        };
        if !a.stochastic {
            return (code, nearest(&y));
        }
        let (sequence, call, exchanged) = calls;
        let (low, carry) = self.rng[1].overflowing_add(call as u64);
        let words = philox(self.rng[0], low, (sequence as u64).wrapping_add(u64::from(carry)));
        let codes = std::array::from_fn(|i| {
            let i_word = if exchanged { i ^ 8 } else { i };
            stochastic(y[i], words[i_word / 4] >> (8 * (i % 4)) & 255)
        });
        (code, codes)
    }

    /// As `cast`, with the magnitude `most / 4` and `most / 6` of the code 1: scales, codes and errors.
    fn candidates(&self, x: &[f32; BLOCK], most: f32) -> [(E4M3, [u8; BLOCK], f32); 2] {
        let a = self.a;
        let base = most / 6.0 * self.scale.global;
        [base, base * 1.5].map(|base| {
            let code = E4M3::from_f32(base.min(448.0));
            let s = code.to_f32();
            let factor = self.scale.multiplier(code);
            let codes = nearest(&scaled(x, factor, -0.0));
            let mut error = 0.0;
            for (x, code) in x.iter().zip(codes) {
                let value = e2m1_value(code) * s;
                let d = match a.fast_error {
                    true => value - x * self.scale.global,
                    false => value * self.amax / (6.0 * a.e4m3_max) - x,
                };
                let squares = a.choice == NVTEX_NVFP4_LEAST_SQUARES;
                error += if squares { d * d } else { d.abs() };
            }
            (code, codes, error)
        })
    }
}

/// Sum of the errors of the lines of a tile, in pairs.
fn tree_sum(mut sums: [f32; BLOCK]) -> f32 {
    for len in [8, 4, 2, 1] {
        for i in 0..len {
            sums[i] += sums[i + len];
        }
    }
    sums[0]
}

/// Index of a scale in lines of `stride`, or in tiles of 128 x 4.
pub(crate) fn scale_index(line: usize, block: usize, stride: usize, swizzled: bool) -> usize {
    if !swizzled {
        return line * stride + block;
    }
    (line / 128 * stride.div_ceil(4) + block / 4) * 512
        + line % 32 * 16
        + line % 128 / 32 * 4
        + block % 4
}

vectorized! {
    /// The largest magnitude; with `nan`, NaN if there is one.
    fn largest(x: &[f32; BLOCK], nan: bool) -> f32 {
        const INFINITY: u32 = f32::INFINITY.to_bits();
        // Magnitudes are ordered as their bits are, with NaN behind infinity.
        let most = x.iter().fold(0, |most: u32, x| {
            let bits = x.abs().to_bits();
            most.max(if nan || bits <= INFINITY { bits } else { 0 })
        });
        f32::from_bits(most)
    }
}

/// # Safety
/// The arguments are valid and have the dtype `I`.
unsafe fn run<I: Element>(a: &Nvfp4QuantizeArgs) {
    let (rows, cols) = (a.rows, a.cols);
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (input, matrix, rng, members) = unsafe {
        (
            Buf::<I>::new(a.input, rows * cols).slice(0, rows * cols),
            Buf::<BF16>::optional(a.hadamard, BLOCK * BLOCK).map(|m| m.slice(0, BLOCK * BLOCK)),
            [0, 1].map(|i| {
                buf::load(a.rng_state.wrapping_add(i * usize::from(!a.rng_state.is_null())))
                    .unwrap_or(0)
            }),
            members(a),
        )
    };
    if a.scaled_lines {
        let most = |x: &mut dyn Iterator<Item = usize>| {
            f32::from_bits(x.map(|i| amax_bits(input[i].to_f32())).max().unwrap_or(0))
        };
        if !a.rowwise.data.is_null() {
            (0..rows).for_each(|r| {
                // SAFETY: the arguments are valid: there is an amax for each row.
                unsafe {
                    buf::store(amax_at(&a.rowwise, r), most(&mut (r * cols..(r + 1) * cols)))
                };
            });
        }
        if !a.colwise.data.is_null() {
            (0..cols).for_each(|c| {
                let mut column = (c..rows * cols).step_by(cols);
                // SAFETY: the arguments are valid: there is an amax for each column.
                unsafe { buf::store(amax_at(&a.colwise, c), most(&mut column)) };
            });
        }
    }
    let shared = Shared(a);
    for member in &members {
        let bands = member.rows.div_ceil(BLOCK);
        parallel(bands).for_each(|band| {
            for left in (0..cols).step_by(BLOCK) {
                // SAFETY: the arguments are valid; blocks do not overlap, so each is written by one task.
                unsafe { tile(shared.get(), input, matrix, rng, member, (band * BLOCK, left)) };
            }
        });
    }
}

/// Address of the amax of a line or member.
fn amax_at(lines: &Nvfp4Lines, index: usize) -> *mut f32 {
    if lines.amax.is_null() { lines.amax } else { lines.amax.wrapping_add(index) }
}

/// The blocks of 16 rows and columns, from row `top` of a member and column `left` on.
///
/// # Safety
/// The arguments are valid; nobody else uses what is written.
unsafe fn tile<I: Element>(
    a: &Nvfp4QuantizeArgs,
    input: &[I],
    matrix: Option<&[BF16]>,
    rng: [u64; 2],
    member: &Member,
    (top, left): (usize, usize),
) {
    let (height, width) = (BLOCK.min(member.rows - top), BLOCK.min(a.cols - left));
    let mut x = [[0.0; BLOCK]; BLOCK];
    for (r, row) in x.iter_mut().enumerate().take(height) {
        let first = (member.first + top + r) * a.cols + left;
        widen(&input[first..][..width], &mut row[..width]);
    }
    let nan = a.variant as i32 >= NVTEX_NVFP4_HADAMARD_COLUMNS as i32;
    let of_tile = if a.square { largest(&x.map(|x| largest(&x, nan)), nan) } else { 0.0 };
    for colwise in [false, true] {
        let lines = if colwise { &a.colwise } else { &a.rowwise };
        if lines.data.is_null() {
            continue;
        }
        // Lines of this tile, and where they and their blocks are in the output.
        let (count, elements) = if colwise { (width, height) } else { (height, width) };
        let (line0, block) = match colwise {
            false => (member.first + top, left / BLOCK),
            true => (left, top / BLOCK),
        };
        let values: [[f32; BLOCK]; BLOCK] = std::array::from_fn(|line| {
            let x: [f32; BLOCK] =
                std::array::from_fn(|i| if colwise { x[i][line] } else { x[line][i] });
            match matrix {
                Some(matrix) if colwise => std::array::from_fn(|n| {
                    let y = transformed(&x, matrix, n);
                    if a.fast_math { y } else { BF16::from_f32(y).to_f32() }
                }),
                _ => x,
            }
        });
        let most = |line: usize| if a.square { of_tile } else { largest(&values[line], nan) };
        let context = |line: usize| {
            let index = if a.scaled_lines { line0 + line } else { member.index };
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let amax = unsafe { buf::load(amax_at(lines, index).cast_const()) };
            let scale = match amax {
                Some(amax) => global_scale(a.variant, amax, a.e4m3_max),
                None => Nvfp4Scale::of_global(1.0),
            };
            Context { a, scale, amax: amax.unwrap_or(0.0), rng }
        };
        let candidates: Vec<_> = match a.choice {
            NVTEX_NVFP4_SIX => Vec::new(),
            _ => (0..BLOCK)
                .map(|i| context(i.min(count - 1)).candidates(&values[i], most(i)))
                .collect(),
        };
        let sums = [0, 1].map(|which| match a.choice {
            NVTEX_NVFP4_SIX => 0.0,
            _ => tree_sum(std::array::from_fn(|i| candidates[i][which].2)),
        });
        for line in 0..count {
            let (scale, codes) = if a.choice == NVTEX_NVFP4_SIX {
                let calls = random_call(
                    (a, member.packed_rows),
                    colwise,
                    member.first + top + if colwise { 0 } else { line },
                    left + if colwise { line } else { 0 },
                );
                context(line).cast(&values[line], most(line), calls)
            } else {
                let [six, four] = &candidates[line];
                let errors = if a.square { sums } else { [six.2, four.2] };
                let best = if errors[1] < errors[0] { four } else { six };
                (best.0, best.1)
            };
            let (length, data, scales, stride) = match colwise {
                false => (a.cols, 0, 0, lines.scale_stride),
                true => (member.rows, member.data, member.scales, member.stride),
            };
            let first = if colwise { top } else { left };
            let at = scales + scale_index(line0 + line, block, stride, a.swizzled);
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            unsafe {
                Buf::<E4M3>::new(lines.scales, at + 1).slice_mut(at, 1)[0] = scale;
                let start = data + ((line0 + line) * length + first) / 2;
                let bytes =
                    Buf::<u8>::new(lines.data, start + elements / 2).slice_mut(start, elements / 2);
                for (byte, pair) in bytes.iter_mut().zip(codes.chunks(2)) {
                    *byte = pair[0] | pair[1] << 4;
                }
            }
        }
    }
}

pub(crate) unsafe extern "C-unwind" fn nvfp4_dequantize(
    args: *const Nvfp4DequantizeArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.output_dtype, [F32, F16, BF16], O => {
        // SAFETY: the arguments are valid, and the dtype of the call is the one that they name.
        unsafe { dequantize::<O>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("nvfp4_dequantize: output dtype"))
}

/// # Safety
/// The arguments are valid and have the dtype `O`.
unsafe fn dequantize<O: Element>(a: &Nvfp4DequantizeArgs) {
    let (rows, cols) = (a.rows, a.cols);
    let shared = Shared(a);
    parallel(rows).for_each(|r| {
        let a = shared.get();
        // SAFETY: the caller's promise; each row is written by one thread.
        let (codes, y, amax) = unsafe {
            (
                Buf::<u8>::new(a.input.data, rows * cols / 2).slice(r * cols / 2, cols / 2),
                Buf::<O>::new(a.output, rows * cols).slice_mut(r * cols, cols),
                *amax_at(&a.input, if a.scaled_lines { r } else { 0 }),
            )
        };
        for (block, (y, codes)) in y.chunks_mut(BLOCK).zip(codes.chunks(BLOCK / 2)).enumerate() {
            let at = scale_index(r, block, a.input.scale_stride, a.swizzled);
            // SAFETY: the arguments are valid: there is a scale for each block of each row.
            let scale = unsafe { Buf::<E4M3>::new(a.input.scales, at + 1).slice(at, 1)[0] };
            let factor = scale.to_f32() * amax * (1.0 / (6.0 * a.e4m3_max));
            for (pair, code) in y.chunks_mut(2).zip(codes) {
                pair[0] = O::from_f32(e2m1_value(code & 15) * factor);
                pair[1] = O::from_f32(e2m1_value(code >> 4) * factor);
            }
        }
    });
}
