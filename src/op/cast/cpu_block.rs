//! Reference of quantize and dequantize in tiles: with FP8 block scaling and MXFP8, and per-tensor
//! casts that are fused (spec quantize 1.3, 1.4, 2, 3.2, 3.3, 4, 7.1).
#![allow(unsafe_code)]

use super::cpu::{raise_amax, scale_of_tensor, store_scale_inv};
use super::cpu_fused::{Make, Source, is_plain};
use crate::backend::args::{Cast, DequantizeArgs};
use crate::backend::buf::Buf;
use crate::backend::cpu::{scale_of, transpose_tile, vectorized};
use crate::backend::pool::parallel;
use crate::numeric::{Element, F32, amax_bits};
use crate::types::{NVTEDType, NVTEScalingMode};
use std::ffi::c_void;
use std::ops::Range;

/// Side of the tiles that tasks work on: a multiple of every block.
pub(super) const TILE: usize = 128;

/// The E8M0 code of a non-negative value: the exponent of the next power of two, from 2^-127 to
/// 2^127; 254 for Inf and 255 for NaN.
#[inline(always)]
pub(crate) fn e8m0(v: f32) -> u8 {
    let (exponent, mantissa) = (v.to_bits() >> 23, v.to_bits() & 0x7F_FFFF);
    // A subnormal up to 2^-127 rounds up to just that.
    let least = if exponent == 0 { 0x40_0000 } else { 0 };
    let code = exponent + u32::from(mantissa > least);
    let code = if code < 254 { code } else { 254 };
    if v.is_nan() { 255 } else { code as u8 }
}

/// The value of an E8M0 code.
#[inline(always)]
pub(super) fn exp2(code: u8) -> f32 {
    f32::from_bits(match code {
        0 => 0x0040_0000,
        255 => 0x7FFF_FFFF,
        _ => (code as u32) << 23,
    })
}

/// 1 / [`exp2`].
#[inline(always)]
pub(crate) fn reciprocal(code: u8) -> f32 {
    if code == 255 { exp2(255) } else { exp2(254 - code) }
}

/// What the scale of a block depends on besides its amax.
struct Rule {
    fp8_max: f32,
    /// Largest finite value of the input's dtype, in place of an infinite scale.
    largest: f32,
    epsilon: f32,
    pow2: bool,
    /// In per-tensor scaling, the number that every element is multiplied by.
    scale: f32,
}

/// An entry of a scale matrix.
trait Scale: Copy + Default + Send + Sync {
    /// The entry for a block, and what quantization multiplies the block by.
    fn of(amax: f32, rule: &Rule) -> (Self, f32);
}

trait Inverse: Scale {
    /// What dequantization multiplies by.
    fn inverse(self) -> f32;
}

/// Per-tensor scaling has no scale matrix.
impl Scale for () {
    #[inline(always)]
    fn of(_: f32, rule: &Rule) -> (Self, f32) {
        ((), rule.scale)
    }
}

/// FP8 blocks.
impl Scale for f32 {
    #[inline(always)]
    fn of(amax: f32, rule: &Rule) -> (Self, f32) {
        let scale = scale_of(amax, rule.fp8_max, rule.epsilon, rule.pow2, rule.largest);
        (1.0 / scale, scale)
    }
}

impl Inverse for f32 {
    fn inverse(self) -> f32 {
        self
    }
}

/// MXFP8: an E8M0 code.
impl Scale for u8 {
    #[inline(always)]
    fn of(amax: f32, rule: &Rule) -> (Self, f32) {
        let code = e8m0(amax * (1.0 / rule.fp8_max));
        (code, reciprocal(code))
    }
}

impl Inverse for u8 {
    fn inverse(self) -> f32 {
        exp2(self)
    }
}

/// Where the scale matrix of one direction holds the scale of an element.
#[derive(Clone, Copy)]
struct Layout {
    colwise: bool,
    stride: usize,
    /// Swizzled: tiles of 4 blocks along the blocked dimension. Else 0.
    tiles: usize,
    /// Logarithms of the rows and columns that share an entry.
    logs: (u32, u32),
    rows_are_blocks: bool,
    /// Whether column-wise data are stored transposed.
    transposed: bool,
}

impl Layout {
    fn new(mode: NVTEScalingMode, colwise: bool, stride: usize, tiles: usize) -> Self {
        let (rows, cols) = match mode.per_tensor() {
            // The scale is the same everywhere: whatever is worked on at once.
            true => (TILE, TILE),
            false => mode.scaling().area(colwise),
        };
        Self {
            colwise,
            stride,
            tiles,
            logs: (rows.ilog2(), cols.ilog2()),
            rows_are_blocks: mode.scaling().rows_are_blocks(colwise),
            transposed: mode.scaling().transposed(colwise),
        }
    }

    /// Rows and columns that share an entry.
    fn area(&self) -> (usize, usize) {
        (1 << self.logs.0, 1 << self.logs.1)
    }

    fn at(&self, row: usize, col: usize) -> usize {
        let (i, j) = (row >> self.logs.0, col >> self.logs.1);
        let (line, block) = if self.colwise { (j, i) } else { (i, j) };
        if self.tiles > 0 {
            let tile = line / 128 * self.tiles + block / 4;
            return tile * 512 + line % 32 * 16 + line % 128 / 32 * 4 + block % 4;
        }
        match self.rows_are_blocks {
            true => block * self.stride + line,
            false => line * self.stride + block,
        }
    }
}

/// Data and scales of one direction of a `[rows, cols]` matrix.
struct Direction<O, S> {
    data: Buf<O>,
    scales: Buf<S>,
    layout: Layout,
    rows: usize,
    cols: usize,
}

impl<O: Element, S: Scale> Direction<O, S> {
    /// # Safety
    /// The pointers cover data and scales of that layout.
    unsafe fn new(
        data: *const c_void,
        scales: *const c_void,
        layout: Layout,
        (rows, cols): (usize, usize),
    ) -> Self {
        // Every entry lies before the end of the row of entries (swizzled: of tiles) of the last one.
        let last = match layout.tiles {
            0 => layout.at(rows - 1, cols - 1),
            tiles if layout.colwise => cols.next_multiple_of(128) * 4 * tiles - 1,
            tiles => rows.next_multiple_of(128) * 4 * tiles - 1,
        };
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            Self {
                data: Buf::new(data, rows * cols),
                scales: Buf::new(scales, last + 1),
                layout,
                rows,
                cols,
            }
        }
    }

    /// Casts a tile, in blocks of `block` rows and columns; returns the bits of its amax. Lines of
    /// the tile are `stride` elements apart in the input.
    ///
    /// # Safety
    /// Nobody else uses this tile of the outputs meanwhile.
    unsafe fn quantize<V: Element>(
        &self,
        (input, stride): (&[V], usize),
        tile: &Tile,
        (height, width): (usize, usize),
        rule: &Rule,
        [scratch, turned]: &mut [Vec<O>; 2],
    ) -> u32 {
        let line = |row: usize| &input[(row - tile.rows.start) * stride..][..tile.cols.len()];
        let (area_rows, area_cols) = self.layout.area();
        let mut amax = 0;
        for top in tile.rows.clone().step_by(height) {
            let band = top..tile.rows.end.min(top + height);
            let mut maxima = [0; TILE];
            for row in band.clone() {
                raise(line(row), &mut maxima);
            }
            // Past the edge of the matrix the maxima are 0.
            combine(&mut maxima, width);
            let (mut scales, mut of_blocks) = ([S::default(); TILE], [0.0; TILE]);
            scales_of(&maxima[..TILE / width], rule, &mut scales, &mut of_blocks);
            let mut multipliers = [0.0; TILE];
            for (block, left) in (0..tile.cols.len()).step_by(width).enumerate() {
                let (bits, scale) = (maxima[block], scales[block]);
                multipliers[left..left + width].fill(of_blocks[block]);
                let cols = left..tile.cols.len().min(left + width);
                for row in band.clone().step_by(area_rows) {
                    for col in cols.clone().step_by(area_cols) {
                        let at = self.layout.at(row, tile.cols.start + col);
                        // SAFETY: the entry is of this tile.
                        unsafe { self.scales.slice_mut(at, 1)[0] = scale };
                    }
                }
                amax = amax.max(bits);
            }
            for row in band {
                let to = if self.layout.transposed {
                    &mut scratch[(row - tile.rows.start) * TILE..][..tile.cols.len()]
                } else {
                    // SAFETY: the elements are of this tile.
                    unsafe { self.data.slice_mut(tile.at(row, self.cols), tile.cols.len()) }
                };
                multiply(line(row), &multipliers, to);
            }
        }
        if self.layout.transposed {
            transpose_tile(scratch, turned, TILE, TILE);
            for (line, col) in turned.chunks_exact(TILE).zip(tile.cols.clone()) {
                let start = col * self.rows + tile.rows.start;
                // SAFETY: the elements are of this tile.
                let to = unsafe { self.data.slice_mut(start, tile.rows.len()) };
                to.copy_from_slice(&line[..tile.rows.len()]);
            }
        }
        amax
    }
}

impl<O: Element, S: Inverse> Direction<O, S> {
    /// Casts a tile back.
    ///
    /// # Safety
    /// Nobody else uses this tile of the output meanwhile, nobody writes to the input.
    unsafe fn dequantize<I: Element>(
        &self,
        output: Buf<I>,
        tile: &Tile,
        [scratch, turned]: &mut [Vec<O>; 2],
    ) {
        if self.layout.transposed {
            for (line, col) in turned.chunks_exact_mut(TILE).zip(tile.cols.clone()) {
                let start = col * self.rows + tile.rows.start;
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                let from = unsafe { self.data.slice(start, tile.rows.len()) };
                line[..from.len()].copy_from_slice(from);
            }
            transpose_tile(turned, scratch, TILE, TILE);
        }
        let (height, width) = self.layout.area();
        for top in tile.rows.clone().step_by(height) {
            let mut multipliers = [0.0; TILE];
            for left in (0..tile.cols.len()).step_by(width) {
                let at = self.layout.at(top, tile.cols.start + left);
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                let scale = unsafe { self.scales.slice(at, 1)[0] };
                multipliers[left..left + width].fill(scale.inverse());
            }
            for row in top..tile.rows.end.min(top + height) {
                let start = tile.at(row, self.cols);
                let from = if self.layout.transposed {
                    &scratch[(row - tile.rows.start) * TILE..][..tile.cols.len()]
                } else {
                    // SAFETY: the caller keeps to the `# Safety` section of this function.
                    unsafe { self.data.slice(start, tile.cols.len()) }
                };
                // SAFETY: the elements are of this tile.
                multiply(from, &multipliers, unsafe { output.slice_mut(start, tile.cols.len()) });
            }
        }
    }
}

/// Rows and columns of a task.
pub(super) struct Tile {
    pub rows: Range<usize>,
    pub cols: Range<usize>,
}

impl Tile {
    pub fn at(&self, row: usize, cols: usize) -> usize {
        row * cols + self.cols.start
    }
}

/// Room for a tile.
fn room<T: Element>() -> Vec<T> {
    vec![T::default(); TILE * TILE]
}

/// Runs `work` on all tiles of a `[rows, cols]` matrix in parallel, each thread with its own
/// scratch; returns the largest result.
fn tiles<T>(
    rows: usize,
    cols: usize,
    scratch: impl Fn() -> T + Sync + Send,
    work: impl Fn(&Tile, &mut T) -> u32 + Sync + Send,
) -> u32 {
    let across = cols.div_ceil(TILE);
    let part = |i: usize, len: usize| i * TILE..len.min((i + 1) * TILE);
    parallel(rows.div_ceil(TILE) * across).max_init(scratch, |scratch, task| {
        let (row, col) = (part(task / across, rows), part(task % across, cols));
        work(&Tile { rows: row, cols: col }, scratch)
    })
}

vectorized! {
    /// Raises each maximum to the magnitude of its element.
    fn raise<I: Element>(input: &[I], maxima: &mut [u32; TILE]) {
        for (x, max) in input.iter().zip(maxima) {
            *max = amax_bits(x.to_f32()).max(*max);
        }
    }
}

vectorized! {
    /// The largest of each `width` maxima takes the place of the block's number.
    fn combine(maxima: &mut [u32; TILE], width: usize) {
        if width == 1 {
            return;
        }
        for block in 0..TILE / width {
            let mut lanes = [0; 16];
            for part in maxima[block * width..][..width].chunks_exact(16) {
                for (most, &x) in lanes.iter_mut().zip(part) {
                    *most = if x > *most { x } else { *most };
                }
            }
            maxima[block] = lanes.into_iter().fold(0, u32::max);
        }
    }
}

vectorized! {
    /// Scales of blocks with these amax values, and what the blocks are multiplied by.
    fn scales_of<S: Scale>(
        maxima: &[u32],
        rule: &Rule,
        scales: &mut [S; TILE],
        multipliers: &mut [f32; TILE],
    ) {
        for ((&bits, scale), multiplier) in maxima.iter().zip(scales).zip(multipliers) {
            (*scale, *multiplier) = S::of(f32::from_bits(bits), rule);
        }
    }
}

vectorized! {
    /// `output = cast(input * multiplier)`
    fn multiply<I: Element, O: Element>(input: &[I], multipliers: &[f32; TILE], output: &mut [O]) {
        for ((x, m), y) in input.iter().zip(multipliers).zip(output) {
            *y = O::from_f32(x.to_f32() * m);
        }
    }
}

/// A cast in blocks.
///
/// # Safety
/// The arguments are valid and have the dtypes `I` and `O`.
pub(super) unsafe fn quantize<I: Element, O: Element>(a: &Cast) {
    // SAFETY: the caller's promise, and the entries of the mode's scale matrices.
    unsafe {
        let source = Source::<I>::new(a);
        let elements = match is_plain(&a.fusion) {
            true => Elements::Stored(source.input.slice(0, a.rows * a.cols)),
            false => Elements::Made(&source),
        };
        match a.mode {
            NVTEScalingMode::NVTE_MXFP8_1D_SCALING => {
                let blocks = a.rows.div_ceil(32).next_multiple_of(4);
                zero(
                    a.rowwise,
                    a.rowwise_scale_inv,
                    a.rows.next_multiple_of(128),
                    a.rowwise_scale_stride,
                );
                zero(a.colwise, a.colwise_scale_inv, blocks, a.colwise_scale_stride);
                quantize_as::<I, O, u8>(a, elements)
            }
            _ => quantize_as::<I, O, f32>(a, elements),
        }
        source.reduce();
    }
}

/// A per-tensor cast that is fused.
///
/// # Safety
/// The arguments are valid and have the dtypes `I` and `O`.
pub(super) unsafe fn quantize_per_tensor<I: Element, O: Element>(a: &Cast) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        let source = Source::<I>::new(a);
        quantize_as::<F32, O, ()>(a, Elements::Made(&source));
        source.reduce();
        store_scale_inv::<O>(a, scale_of_tensor::<O>(a));
    }
}

/// Clears a matrix of codes, for the sake of its padding.
///
/// # Safety
/// Unless `data` is null, `codes` points to `rows` rows of `stride` codes.
unsafe fn zero(data: *const c_void, codes: *mut c_void, rows: usize, stride: usize) {
    if !data.is_null() {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { Buf::<u8>::new(codes, rows * stride).slice_mut(0, rows * stride).fill(0) };
    }
}

/// Where a cast finds its elements.
enum Elements<'a, V> {
    Stored(&'a [V]),
    Made(&'a dyn Make<V>),
}

/// # Safety
/// As [`quantize`], with scale matrices of `S`.
unsafe fn quantize_as<V: Element, O: Element, S: Scale>(a: &Cast, elements: Elements<V>) {
    let rule = Rule {
        fp8_max: O::DTYPE.fp8_max(),
        largest: match a.input_dtype {
            NVTEDType::kNVTEFloat16 => 65504.0,
            NVTEDType::kNVTEBFloat16 => f32::from_bits(0x7F7F_0000),
            _ => f32::MAX,
        },
        epsilon: a.epsilon,
        pow2: a.pow2,
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        scale: unsafe { scale_of_tensor::<O>(a) },
    };
    let direction = |data: *mut c_void, scales, stride, colwise| {
        let blocked = if colwise { a.rows } else { a.cols };
        let tiles = if a.swizzled { blocked.div_ceil(128) } else { 0 };
        let layout = Layout::new(a.mode, colwise, stride, tiles);
        let block = if a.square_blocks { (32, 32) } else { layout.area() };
        // SAFETY: plan() has checked that data and scales have room for the matrix.
        let new = || unsafe { Direction::<O, S>::new(data, scales, layout, (a.rows, a.cols)) };
        (!data.is_null()).then(|| (new(), block))
    };
    let (rows, cols) = (a.rows, a.cols);
    let directions = [
        direction(a.rowwise, a.rowwise_scale_inv, a.rowwise_scale_stride, false),
        direction(a.colwise, a.colwise_scale_inv, a.colwise_scale_stride, true),
    ];
    let amax = tiles(
        rows,
        cols,
        || (room::<V>(), [(); 2].map(|()| room::<O>())),
        |tile, (made, scratch)| {
            let input = match &elements {
                Elements::Stored(input) => (&input[tile.at(tile.rows.start, cols)..], cols),
                Elements::Made(source) => {
                    // SAFETY: each task has its own tile.
                    unsafe { source.make(tile, made) };
                    (&made[..], TILE)
                }
            };
            let cast = |(direction, block): &(Direction<O, S>, _)| {
                // SAFETY: each task has its own tile of the outputs.
                unsafe { direction.quantize(input, tile, *block, &rule, scratch) }
            };
            directions.iter().flatten().map(cast).max().unwrap_or(0)
        },
    );
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe { raise_amax(a, amax) }
}

/// # Safety
/// The arguments are valid and have the dtypes `I` and `O`.
pub(super) unsafe fn dequantize<I: Element, O: Element>(a: &DequantizeArgs) {
    // SAFETY: the caller's promise, and the entries of the mode's scale matrices.
    unsafe {
        match a.mode {
            NVTEScalingMode::NVTE_MXFP8_1D_SCALING => dequantize_as::<I, O, u8>(a),
            _ => dequantize_as::<I, O, f32>(a),
        }
    }
}

/// # Safety
/// As [`dequantize`], with a scale matrix of `S`.
unsafe fn dequantize_as<I: Element, O: Element, S: Inverse>(a: &DequantizeArgs) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    for member in unsafe { a.group.members((a.rows, a.cols), a.mode) } {
        let shape = (member.rows, member.cols);
        if shape.0 == 0 || shape.1 == 0 {
            continue;
        }
        let blocked = if a.colwise { shape.0 } else { shape.1 };
        let lone = a.group.num_tensors == 0;
        let stride = match lone {
            true => a.scale_stride,
            false => a.mode.scaling().scale_pitch(a.colwise, shape),
        };
        let swizzled = if a.swizzled { blocked.div_ceil(128) } else { 0 };
        let layout = Layout::new(a.mode, a.colwise, stride, swizzled);
        let scales = if a.colwise { member.col_scales } else { member.row_scales };
        // SAFETY: the caller's promise; input and output are distinct.
        let (input, output) = unsafe {
            let input = a.input.cast::<I>().add(member.at).cast();
            let scales = a.scale_inv.cast::<S>().add(scales).cast();
            (
                Direction::<I, S>::new(input, scales, layout, shape),
                Buf::<O>::new(a.output.cast::<O>().add(member.at).cast(), shape.0 * shape.1),
            )
        };
        tiles(
            shape.0,
            shape.1,
            || [(); 2].map(|()| room::<I>()),
            |tile, scratch| {
                // SAFETY: each task has its own tile.
                unsafe { input.dequantize(output, tile, scratch) };
                0
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::args::{Fusion, Group};
    use crate::numeric::*;
    use NVTEScalingMode::*;
    use std::ptr::null;

    #[test]
    fn e8m0_rounds_up() {
        let bits = |bits| e8m0(f32::from_bits(bits));
        assert_eq!([e8m0(0.0), bits(1), bits(0x40_0000), bits(0x40_0001)], [0, 0, 0, 1]);
        assert_eq!([bits(0x7F_FFFF), bits(0x80_0000), bits(0x80_0001)], [1, 1, 2]);
        assert_eq!([e8m0(1.0), e8m0(1.0000001), e8m0(2.0), e8m0(3.0)], [127, 128, 128, 129]);
        assert_eq!([e8m0(2f32.powi(127)), e8m0(f32::MAX)], [254, 254]);
        assert_eq!([e8m0(f32::INFINITY), e8m0(f32::NAN)], [254, 255]);
        for code in 0..255 {
            assert_eq!(e8m0(exp2(code)), code);
        }
    }

    #[test]
    fn codes_are_powers_of_two() {
        for code in 0..255 {
            let value = 2f64.powi(code as i32 - 127);
            assert_eq!(exp2(code) as f64, value);
            assert_eq!(reciprocal(code) as f64, 1.0 / value);
        }
        assert!(exp2(255).is_nan() && reciprocal(255).is_nan());
    }

    fn rule(dtype: NVTEDType) -> Rule {
        Rule { fp8_max: dtype.fp8_max(), largest: f32::MAX, epsilon: 0.0, pow2: false, scale: 1.0 }
    }

    #[test]
    fn mxfp8_multiplies_by_the_rounded_inverse() {
        for (dtype, bits) in
            [(NVTEDType::kNVTEFloat8E4M3, 0x3B12_4925), (NVTEDType::kNVTEFloat8E5M2, 0x3792_4925)]
        {
            let inverse = f32::from_bits(bits);
            for amax in [448.0f32, 57344.0, 1.0, 1.75, 1e-38, f32::MAX] {
                let code = e8m0(amax * inverse);
                assert_eq!(u8::of(amax, &rule(dtype)), (code, reciprocal(code)));
            }
        }
    }

    #[test]
    fn block_scales_cap_and_truncate() {
        let e4m3 = rule(NVTEDType::kNVTEFloat8E4M3);
        assert_eq!(f32::of(2.0, &e4m3), (1.0 / 224.0, 224.0));
        for amax in [0.0, f32::INFINITY] {
            assert_eq!(f32::of(amax, &e4m3), (1.0, 1.0));
        }
        let tiny = f32::from_bits(1);
        assert_eq!(f32::of(tiny, &e4m3), (f32::from_bits(0x0020_0000), f32::MAX));
        let half = Rule { largest: 65504.0, pow2: true, ..rule(NVTEDType::kNVTEFloat8E4M3) };
        assert_eq!(f32::of(tiny, &half), (2f32.powi(-15), 32768.0));
        let floor = Rule { epsilon: 4.0, ..rule(NVTEDType::kNVTEFloat8E4M3) };
        assert_eq!([f32::of(1.0, &floor).1, f32::of(8.0, &floor).1], [112.0, 56.0]);
    }

    #[test]
    fn swizzled_entries_fill_their_tiles() {
        let (rows, cols) = (256, 384);
        for colwise in [false, true] {
            let tiles = (if colwise { rows } else { cols }) / 128;
            let layout = Layout::new(NVTE_MXFP8_1D_SCALING, colwise, 0, tiles);
            let (height, width) = layout.area();
            let mut seen = vec![false; rows * cols / 32];
            for row in (0..rows).step_by(height) {
                for col in (0..cols).step_by(width) {
                    assert!(!std::mem::replace(&mut seen[layout.at(row, col)], true));
                }
            }
            assert!(seen.into_iter().all(|seen| seen));
        }
        let layout = Layout::new(NVTE_MXFP8_1D_SCALING, false, 0, 3);
        assert_eq!([layout.at(0, 32), layout.at(1, 0), layout.at(32, 0)], [1, 16, 4]);
        assert_eq!([layout.at(0, 128), layout.at(128, 0), layout.at(255, 383)], [512, 1536, 3071]);
    }

    /// Casts all 16-bit patterns and back, every element compared with its scale alone.
    fn check<I: Element, O: Element + PartialEq>(
        input: &[I],
        mode: NVTEScalingMode,
        (cols, colwise, swizzled): (usize, bool, bool),
    ) {
        let rows = input.len() / cols;
        let (numel, mxfp8) = (rows * cols, mode == NVTE_MXFP8_1D_SCALING);
        let stride = if mxfp8 { cols.next_multiple_of(128) } else { rows.max(cols) };
        let entries = stride.max(512) * rows.next_multiple_of(128);
        let (mut data, mut floats, mut codes) =
            (vec![O::default(); numel], vec![0f32; entries], vec![0u8; entries]);
        let scales: *mut c_void =
            if mxfp8 { codes.as_mut_ptr().cast() } else { floats.as_mut_ptr().cast() };
        let [rowwise, columnwise] = [!colwise, colwise].map(|wanted| match wanted {
            true => data.as_mut_ptr().cast(),
            false => std::ptr::null_mut(),
        });
        let args = Cast {
            input: input.as_ptr().cast(),
            rowwise,
            colwise: columnwise,
            scale: null(),
            amax: std::ptr::null_mut(),
            rowwise_scale_inv: scales,
            colwise_scale_inv: scales,
            noop: null(),
            rows,
            cols,
            rowwise_scale_stride: stride,
            colwise_scale_stride: stride,
            epsilon: 0.0,
            mode,
            input_dtype: I::DTYPE,
            output_dtype: O::DTYPE,
            pow2: true,
            square_blocks: false,
            swizzled,
            fusion: Fusion::NONE,
            group: Group::NONE,
        };
        let mut back = vec![F32::default(); numel];
        let back_args = DequantizeArgs {
            input: data.as_ptr().cast(),
            output: back.as_mut_ptr().cast(),
            scale_inv: scales,
            rows,
            cols,
            scale_stride: stride,
            mode,
            input_dtype: O::DTYPE,
            output_dtype: F32::DTYPE,
            colwise,
            swizzled,
            group: Group::NONE,
        };
        // SAFETY: the arrays have the sizes that the arguments say.
        unsafe {
            quantize::<I, O>(&args);
            dequantize::<O, F32>(&back_args);
        }
        let tiles = if swizzled { (if colwise { rows } else { cols }).div_ceil(128) } else { 0 };
        let layout = Layout::new(mode, colwise, stride, tiles);
        let mut amax = vec![0f32; entries];
        let at = |i: usize| layout.at(i / cols, i % cols);
        for (i, x) in input[..numel].iter().enumerate() {
            amax[at(i)] = amax[at(i)].max(x.to_f32().abs());
        }
        for (i, x) in input[..numel].iter().enumerate() {
            let (inverse, scale) = match mxfp8 {
                true => (exp2(codes[at(i)]), reciprocal(codes[at(i)])),
                false => (floats[at(i)], 1.0 / floats[at(i)]),
            };
            // Scales are powers of two: the largest element uses the upper binade of the format.
            if amax[at(i)].is_normal() && amax[at(i)] * scale > 0.0 && scale < 1e30 {
                let top = amax[at(i)] as f64 * scale as f64 / O::DTYPE.fp8_max() as f64;
                assert!(top > 0.499 && top <= 1.0000001, "{top} of {:e}", amax[at(i)]);
            }
            let stored = if layout.transposed { data[i % cols * rows + i / cols] } else { data[i] };
            let want = O::from_f32(x.to_f32() * scale);
            assert!(stored == want, "element {i} of {rows}x{cols}: {:e}", x.to_f32());
            let want = want.to_f32() * inverse;
            assert!(back[i].0 == want || (back[i].0.is_nan() && want.is_nan()), "element {i}");
        }
    }

    #[test]
    fn casts_every_pattern_as_the_scalar_code() {
        for mode in [NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D] {
            for kind in 0..4 {
                let (colwise, swizzled) = (kind % 2 == 1, kind / 2 == 1);
                if swizzled && mode != NVTE_MXFP8_1D_SCALING {
                    continue;
                }
                for cols in [1, 37, 256, 4001] {
                    let layout = (cols, colwise, swizzled);
                    let halves: Vec<_> = (0..=u16::MAX).map(F16).collect();
                    check::<F16, E4M3>(&halves, mode, layout);
                    let bfloats: Vec<_> = (0..=u16::MAX).map(BF16).collect();
                    check::<BF16, E5M2>(&bfloats, mode, layout);
                    let floats: Vec<_> =
                        (0..=0xFFFFu32).map(|i| F32(f32::from_bits(i * 0x1_0001))).collect();
                    check::<F32, E4M3>(&floats, mode, layout);
                }
            }
        }
    }
}
