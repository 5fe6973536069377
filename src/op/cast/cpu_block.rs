//! Reference of quantize and dequantize in tiles: with FP8 block scaling and MXFP8, and per-tensor
//! casts that are fused (spec quantize 1.3, 1.4, 2, 3.2, 3.3, 4, 7.1).
#![allow(unsafe_code)]

use super::cpu::{raise_amax, scale_of_tensor, store_scale_inv};
use super::cpu_fused::{Make, Source, is_plain};
use crate::backend::args::{Cast, DequantizeArgs};
use crate::backend::buf::Buf;
use crate::backend::cpu::{
    copy_line, finish_lines, is_large, scale_of, store_transposed, transpose_tile, vectorized,
};
use crate::backend::fp8::{self, BLOCK, By, Lines, OfColumns, OfRows};
use crate::backend::memory::zeros;
use crate::backend::pool::parallel;
use crate::numeric::{Element, F32};
use crate::types::{NVTEDType, NVTEScalingMode};
use std::ffi::c_void;
use std::ops::Range;

/// Side of the tiles that tasks work on: a multiple of every block.
pub(super) const TILE: usize = fp8::TILE;
/// Blocks of a tile, at most.
const MOST_BLOCKS: usize = TILE * TILE / BLOCK;

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
pub(crate) fn exp2(code: u8) -> f32 {
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

impl<O: Element, S: Copy> Direction<O, S> {
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

    /// A tile of data that are not transposed.
    fn lines(&self, tile: &Tile) -> Lines<O> {
        tile.lines(self.data, self.cols)
    }

    /// Calls `visit` for each run of scales of a tile that lie one after another: with the place of the first one and
    /// the number of them, and with what tells the number of the block that each is of, block by block and row by row.
    fn scales(&self, tile: &Tile, block: (usize, usize), mut visit: impl FnMut(usize, usize, Run)) {
        if size_of::<S>() == 0 {
            return;
        }
        let ((height, width), colwise) = (self.layout.area(), self.layout.colwise);
        let down = tile.rows.len().div_ceil(height);
        let across = tile.cols.len().div_ceil(width);
        // Along the lines of the direction, or along the blocks of each line.
        let along_lines = self.layout.rows_are_blocks && self.layout.tiles == 0;
        let vertical = colwise != along_lines;
        let (runs, len) = if vertical { (across, down) } else { (down, across) };
        for run in 0..runs {
            let (row, col) = if vertical { (0, run * width) } else { (run * height, 0) };
            let start = self.layout.at(tile.rows.start + row, tile.cols.start + col);
            let step = if vertical { (height, 0) } else { (0, width) };
            visit(start, len, Run { first: (row, col), step, block });
        }
    }
}

/// Places in a tile that are one step apart.
#[derive(Clone, Copy)]
struct Run {
    first: (usize, usize),
    step: (usize, usize),
    block: (usize, usize),
}

impl Run {
    /// The number of the block that a place is in.
    fn block(self, i: usize) -> usize {
        let (row, col) = (self.first.0 + i * self.step.0, self.first.1 + i * self.step.1);
        row / self.block.0 * (TILE / self.block.1) + col / self.block.1
    }

    /// The first block, if each place is in the one after the last.
    fn in_order(self) -> Option<usize> {
        let one_each = match self.step {
            (0, width) => width == self.block.1,
            (height, _) => height == self.block.0 && self.block.1 == TILE,
        };
        one_each.then(|| self.block(0))
    }
}

/// The bits of the largest magnitudes of each `BLOCK` elements of a tile's rows and of its columns.
struct Maxima {
    rows: [[u32; TILE / BLOCK]; TILE],
    columns: [[u32; TILE]; TILE / BLOCK],
}

impl Maxima {
    const NONE: Self = Self { rows: [[0; TILE / BLOCK]; TILE], columns: [[0; TILE]; TILE / BLOCK] };
}

vectorized! {
    /// The maxima of blocks, row by row; past the edges of the matrix they are 0.
    fn largest_of(
        maxima: &Maxima,
        block: (usize, usize),
        blocks: &mut [u32; MOST_BLOCKS],
    ) {
        let (height, width) = block;
        let across = TILE / width;
        let largest = |of: &[u32]| of.iter().fold(0, |most: u32, &x| most.max(x));
        match (height, width) {
            // The numbers themselves, if blocks are the smallest ones.
            (1, BLOCK) => blocks.copy_from_slice(maxima.rows.as_flattened()),
            (BLOCK, 1) => blocks.copy_from_slice(maxima.columns.as_flattened()),
            (1, TILE) => {
                for (to, from) in blocks.iter_mut().zip(&maxima.rows) {
                    *to = from[0].max(from[1]).max(from[2].max(from[3]));
                }
            }
            (1, _) => {
                for (to, from) in blocks.chunks_exact_mut(across).zip(&maxima.rows) {
                    for (to, from) in to.iter_mut().zip(from.chunks_exact(width / BLOCK)) {
                        *to = largest(from);
                    }
                }
            }
            _ => {
                let bands = maxima.columns.chunks_exact(height / BLOCK);
                for (to, bands) in blocks.chunks_exact_mut(across).zip(bands) {
                    to.fill(0);
                    for band in bands {
                        if width == 1 {
                            to.iter_mut().zip(band).for_each(|(to, &from)| *to = from.max(*to));
                            continue;
                        }
                        for (to, from) in to.iter_mut().zip(band.chunks_exact(width)) {
                            *to = largest(from).max(*to);
                        }
                    }
                }
            }
        }
    }
}

/// Multipliers of a tile.
struct Multipliers {
    rows: OfRows,
    columns: OfColumns,
}

impl Multipliers {
    const ONE: Self =
        Self { rows: [[1.0; TILE / BLOCK]; TILE], columns: [[1.0; TILE]; TILE / BLOCK] };

    /// From those of blocks, row by row: into `rows` if blocks have one row, else into `columns`.
    fn spread(&mut self, (height, width): (usize, usize), blocks: &[f32; MOST_BLOCKS]) {
        let across = TILE / width;
        if (height, width) == (1, BLOCK) {
            self.rows.as_flattened_mut().copy_from_slice(blocks);
            return;
        }
        if (height, width) == (1, TILE) {
            self.rows.iter_mut().zip(blocks).for_each(|(to, &from)| *to = [from; TILE / BLOCK]);
            return;
        }
        if height == 1 {
            for (to, from) in self.rows.iter_mut().zip(blocks.chunks_exact(across)) {
                for (to, &from) in to.chunks_exact_mut(width / BLOCK).zip(from) {
                    to.fill(from);
                }
            }
            return;
        }
        for (band, to) in self.columns.iter_mut().enumerate() {
            let from = &blocks[band * BLOCK / height * across..][..across];
            if width == 1 {
                to.copy_from_slice(from);
                continue;
            }
            for (to, &from) in to.chunks_exact_mut(width).zip(from) {
                to.fill(from);
            }
        }
    }
}

/// What a thread works with.
struct Room<V: Element, O, S> {
    /// Elements of a tile: made, or copied from a matrix.
    elements: Vec<V>,
    codes: Vec<O>,
    turned: Vec<O>,
    ranks: Ranks<V>,
    maxima: Maxima,
    blocks: [u32; MOST_BLOCKS],
    scales: [S; MOST_BLOCKS],
    of_blocks: [f32; MOST_BLOCKS],
    by: Multipliers,
}

impl<V: Element, O: Element, S: Scale> Room<V, O, S> {
    fn new() -> Self {
        Self {
            elements: room(),
            codes: room(),
            turned: room(),
            ranks: Ranks::NONE,
            maxima: Maxima::NONE,
            blocks: [0; MOST_BLOCKS],
            scales: [S::default(); MOST_BLOCKS],
            of_blocks: [1.0; MOST_BLOCKS],
            by: Multipliers::ONE,
        }
    }
}

/// A tile as the lines of a buffer of its own.
fn lines_of<T: Copy>(tile: &mut [T]) -> Lines<T> {
    // SAFETY: the buffer lies there, and is not moved while the lines are in use.
    let data = unsafe { Buf::new(tile.as_mut_ptr().cast::<c_void>(), tile.len()) };
    Lines { data, start: 0, stride: TILE, large: false }
}

/// A direction, and the rows and columns of its blocks.
type Blocked<O, S> = (Direction<O, S>, (usize, usize));

/// A cast of a matrix in one direction or two.
struct Directions<O, S> {
    each: [Option<Blocked<O, S>>; 2],
}

impl<O: Element, S: Scale> Directions<O, S> {
    /// Casts a tile of a matrix, or the one whose elements the room has; returns the bits of its amax.
    ///
    /// # Safety
    /// Nobody else uses this tile of the outputs meanwhile, nor writes to the input's.
    unsafe fn quantize<V: Element>(
        &self,
        input: Option<&Lines<V>>,
        tile: &Tile,
        rule: &Rule,
        room: &mut Room<V, O, S>,
    ) -> u32 {
        let shape = (tile.rows.len(), tile.cols.len());
        let Room { elements, codes, turned, ranks, maxima, blocks, scales, of_blocks, by } = room;
        *ranks = Ranks::NONE;
        let made = lines_of(elements);
        // Elements of a matrix are copied, because its rows may displace each other from the nearest caches.
        let ahead = input;
        let (input, mut copy) = match input {
            Some(input) => (input, Some(&mut elements[..])),
            None => (&made, None),
        };
        let (of_rows, of_columns) = (&mut ranks.rows, &mut ranks.columns);
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let seen = unsafe { fp8::largest(input, shape, of_rows, of_columns, copy.as_deref_mut()) };
        if seen.is_none() {
            find_ranks(input, shape, ranks, copy);
        }
        // The scale of a block brings its amax to the largest code or below, that of a tensor may not.
        let bounded = seen == Some(true) && size_of::<S>() > 0;
        let input = &lines_of(elements);
        bits_of_ranks(ranks, maxima);
        let [one, other] = self.each.each_ref().map(Option::as_ref);
        // Both directions then have the same codes.
        let same = one.zip(other).is_some_and(|((_, one), (_, other))| one == other);
        let (mut amax, mut ordinary) = (0, true);
        for (i, (direction, block)) in self.each.iter().flatten().enumerate() {
            if i == 0 || !same {
                largest_of(maxima, *block, blocks);
                let count = shape.0.div_ceil(block.0) * (TILE / block.1);
                let all_ordinary;
                (amax, all_ordinary) = scales_of(&blocks[..count], rule, scales, of_blocks);
                ordinary &= all_ordinary;
                by.spread(*block, of_blocks);
            }
            direction.scales(tile, *block, |start, len, run| {
                // SAFETY: the entries are of this tile.
                let to = unsafe { direction.scales.slice_mut(start, len) };
                match run.in_order() {
                    Some(first) => to.copy_from_slice(&scales[first..][..len]),
                    None => {
                        to.iter_mut().enumerate().for_each(|(i, to)| *to = scales[run.block(i)]);
                    }
                }
            });
        }
        let scratch = lines_of(codes);
        let (mut by_rows, mut by_columns) = (None, None);
        for (direction, block) in self.each.iter().flatten() {
            let to = match same || direction.layout.transposed {
                true => scratch,
                false => direction.lines(tile),
            };
            match block.0 {
                1 => by_rows = Some((&by.rows, to)),
                _ => by_columns = Some((&by.columns, to)),
            }
        }
        // SAFETY: the lines are of this tile, or the scratch, which one of them uses.
        unsafe {
            if !(ordinary && fp8::encode_tile(input, shape, by_rows, by_columns, (bounded, ahead)))
            {
                if let Some((by, to)) = by_rows {
                    encode_by_rows(input, shape, by, &to);
                }
                if let Some((by, to)) = by_columns {
                    encode_by_columns(input, shape, by, &to);
                }
            }
        }
        for (direction, _) in self.each.iter().flatten() {
            if direction.layout.transposed {
                let (start, stride) =
                    (tile.cols.start * direction.rows + tile.rows.start, direction.rows);
                // SAFETY: the elements are of this tile.
                unsafe {
                    let tiles = (&codes[..], &mut turned[..]);
                    store_transposed(tiles, (TILE, TILE), shape, direction.data, (start, stride));
                }
            } else if same {
                for (row, line) in codes.chunks_exact(TILE).take(shape.0).enumerate() {
                    // SAFETY: the elements are of this tile.
                    let to = unsafe { direction.lines(tile).line_mut(row, shape.1) };
                    copy_line(&line[..shape.1], to, is_large::<O>(direction.data.len()));
                }
            }
        }
        finish_lines();
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
        by: &mut Multipliers,
    ) {
        let shape @ (rows, _) = (tile.rows.len(), tile.cols.len());
        if self.layout.transposed {
            for (line, col) in turned.chunks_exact_mut(TILE).zip(tile.cols.clone()) {
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                let from = unsafe { self.data.slice(col * self.rows + tile.rows.start, rows) };
                line[..rows].copy_from_slice(from);
            }
            transpose_tile(turned, scratch, TILE, TILE);
        }
        let block = self.layout.area();
        let mut of_blocks = [1.0; MOST_BLOCKS];
        self.scales(tile, block, |start, len, run| {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let from = unsafe { self.scales.slice(start, len) };
            match run.in_order() {
                Some(first) => {
                    let to = &mut of_blocks[first..][..len];
                    to.iter_mut().zip(from).for_each(|(to, scale)| *to = scale.inverse());
                }
                None => {
                    for (i, scale) in from.iter().enumerate() {
                        of_blocks[run.block(i)] = scale.inverse();
                    }
                }
            }
        });
        by.spread(block, &of_blocks);
        let from = if self.layout.transposed { lines_of(scratch) } else { self.lines(tile) };
        let to = tile.lines(output, self.cols);
        // SAFETY: the lines are of this tile, and the caller's promise.
        unsafe {
            if block.0 == 1 {
                if !fp8::decode_tile(&from, shape, By::Rows(&by.rows), &to) {
                    encode_by_rows(&from, shape, &by.rows, &to);
                }
            } else if !fp8::decode_tile(&from, shape, By::Columns(&by.columns), &to) {
                encode_by_columns(&from, shape, &by.columns, &to);
            }
        }
        finish_lines();
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

    /// This tile of a matrix that has so many columns.
    fn lines<T: Copy>(&self, data: Buf<T>, cols: usize) -> Lines<T> {
        let start = self.at(self.rows.start, cols);
        Lines { data, start, stride: cols, large: is_large::<T>(data.len()) }
    }
}

/// Room for a tile.
fn room<T: Element>() -> Vec<T> {
    zeros(TILE * TILE)
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

/// Ranks of the largest magnitudes of a tile, as [`fp8::largest`] finds them.
struct Ranks<V: Element> {
    rows: [[V::Rank; TILE / BLOCK]; TILE],
    columns: [[V::Rank; TILE]; TILE / BLOCK],
}

impl<V: Element> Ranks<V> {
    const NONE: Self = Self {
        rows: [[V::OF_ZERO; TILE / BLOCK]; TILE],
        columns: [[V::OF_ZERO; TILE]; TILE / BLOCK],
    };
}

vectorized! {
    /// As [`fp8::largest`], on any machine.
    ///
    /// Nobody writes to the input's part meanwhile.
    fn find_ranks<V: Element>(
        input: &Lines<V>,
        shape: (usize, usize),
        ranks: &mut Ranks<V>,
        copy: Option<&mut [V]>,
    ) {
        let mut copy = copy;
        for (row, of_row) in ranks.rows[..shape.0].iter_mut().enumerate() {
            // SAFETY: the caller keeps to what is said above.
            let line = unsafe { input.line(row, shape.1) };
            if let Some(copy) = &mut copy {
                copy[row * TILE..][..shape.1].copy_from_slice(line);
            }
            let columns = &mut ranks.columns[row / BLOCK];
            for ((part, columns), most) in
                line.chunks(BLOCK).zip(columns.chunks_mut(BLOCK)).zip(of_row)
            {
                for (x, column) in part.iter().zip(columns) {
                    let rank = x.rank();
                    *column = if rank > *column { rank } else { *column };
                    *most = if rank > *most { rank } else { *most };
                }
            }
        }
    }
}

vectorized! {
    fn bits_of_ranks<V: Element>(ranks: &Ranks<V>, maxima: &mut Maxima) {
        let bits = |rank: V::Rank| V::of_rank(rank).to_f32().to_bits();
        let rows = maxima.rows.as_flattened_mut().iter_mut().zip(ranks.rows.as_flattened());
        rows.for_each(|(to, rank)| *to = bits(*rank));
        let columns =
            maxima.columns.as_flattened_mut().iter_mut().zip(ranks.columns.as_flattened());
        columns.for_each(|(to, rank)| *to = bits(*rank));
    }
}

vectorized! {
    /// Scales of blocks with these amax values, and what the blocks are multiplied by. The bits of the largest amax, and
    /// true if the multipliers are as `fp8::encode_tile` needs them.
    fn scales_of<S: Scale>(
        maxima: &[u32],
        rule: &Rule,
        scales: &mut [S; MOST_BLOCKS],
        multipliers: &mut [f32; MOST_BLOCKS],
    ) -> (u32, bool) {
        let mut ordinary = true;
        let amax = maxima.iter().fold(0, |most: u32, &bits| most.max(bits));
        for ((&bits, scale), multiplier) in maxima.iter().zip(scales).zip(multipliers) {
            (*scale, *multiplier) = S::of(f32::from_bits(bits), rule);
            ordinary &= fp8::encodes_by(*multiplier);
        }
        (amax, ordinary)
    }
}

vectorized! {
    /// `output = cast(input * multiplier)`, where parts of rows have a multiplier.
    ///
    /// The lines are of one tile, which nobody else uses.
    fn encode_by_rows<I: Element, O: Element>(
        input: &Lines<I>,
        shape: (usize, usize),
        by: &OfRows,
        output: &Lines<O>,
    ) {
        for (row, by) in by[..shape.0].iter().enumerate() {
            // SAFETY: the caller keeps to what is said above.
            let (from, to) = unsafe { (input.line(row, shape.1), output.line_mut(row, shape.1)) };
            for ((from, to), by) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)).zip(by) {
                for (x, y) in from.iter().zip(to) {
                    *y = O::from_f32(x.to_f32() * by);
                }
            }
        }
    }
}

vectorized! {
    /// As [`encode_by_rows`], where parts of columns have a multiplier.
    fn encode_by_columns<I: Element, O: Element>(
        input: &Lines<I>,
        shape: (usize, usize),
        by: &OfColumns,
        output: &Lines<O>,
    ) {
        for row in 0..shape.0 {
            // SAFETY: the caller keeps to what is said above.
            let (from, to) = unsafe { (input.line(row, shape.1), output.line_mut(row, shape.1)) };
            for ((x, y), by) in from.iter().zip(to).zip(&by[row / BLOCK]) {
                *y = O::from_f32(x.to_f32() * by);
            }
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
            true => Elements::Stored(source.input),
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
    Stored(Buf<V>),
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
    let each = [
        direction(a.rowwise, a.rowwise_scale_inv, a.rowwise_scale_stride, false),
        direction(a.colwise, a.colwise_scale_inv, a.colwise_scale_stride, true),
    ];
    let directions = Directions { each };
    let amax = tiles(
        rows,
        cols,
        || Box::new(Room::new()),
        |tile, room| {
            let stored = match &elements {
                Elements::Stored(data) => Some(tile.lines(*data, cols)),
                Elements::Made(source) => {
                    // SAFETY: each task has its own tile.
                    unsafe { source.make(tile, &mut room.elements) };
                    None
                }
            };
            // SAFETY: each task has its own tile of the outputs.
            unsafe { directions.quantize(stored.as_ref(), tile, &rule, room) }
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
            || ([(); 2].map(|()| room::<I>()), Box::new(Multipliers::ONE)),
            |tile, (scratch, by)| {
                // SAFETY: each task has its own tile.
                unsafe { input.dequantize(output, tile, scratch, by) };
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
                    // Every finite number, beside ones of other exponents.
                    let scattered = (0..=u16::MAX).map(|i| i.wrapping_mul(0x9E37));
                    let bfloats: Vec<_> =
                        scattered.filter(|bits| bits & 0x7F80 != 0x7F80).map(BF16).collect();
                    check::<BF16, E4M3>(&bfloats, mode, layout);
                    check::<BF16, E5M2>(&bfloats, mode, layout);
                    let floats: Vec<_> =
                        (0..=0xFFFFu32).map(|i| F32(f32::from_bits(i * 0x1_0001))).collect();
                    check::<F32, E4M3>(&floats, mode, layout);
                }
            }
        }
    }
}
