//! Reference of attention (spec attention 4 to 8, 12): tiles of rows and columns inside the band of
//! admissible scores, so that memory is linear in the lengths. Products and the softmax are float32.
//! The backward computes the scores anew for each of its results and adds in a fixed order.
#![allow(unsafe_code)]

use crate::backend::args::{AttentionArgs, AttentionPlan, AttentionSide, AttentionTensor, Outcome};
use crate::backend::buf::{Buf, load, store};
use crate::backend::cpu::vectorized;
use crate::backend::memory::{collect, resize, zeros};
use crate::backend::pool::parallel;
use crate::numeric::{Element, amax_bits, dispatch};
use crate::op::dropout::cpu::philox_of;
use crate::op::gemm::cpu::Product;
use crate::op::gemm::cpu::{from_floats, to_floats};
use crate::types::{NVTEDType, cudaStream_t};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Rows and columns of a tile.
const ROWS: usize = 128;
const COLS: usize = 128;
const NEVER: f32 = f32::NEG_INFINITY;

pub(crate) unsafe extern "C-unwind" fn attention_plan(
    args: *const AttentionArgs,
    plan: *mut AttentionPlan,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let (a, plan) = unsafe { (&*args, &mut *plan) };
    let used = [a.q, a.k, a.v, a.o, a.d_o, a.dq, a.dk, a.dv, a.bias, a.dbias];
    for tensor in used.iter().filter(|tensor| !tensor.data.is_null()) {
        if !known(tensor.dtype) {
            return Outcome::unimplemented(format!("cpu_tiled: dtype {}", tensor.dtype));
        }
    }
    *plan = AttentionPlan {
        workspace_bytes: 0,
        implementation: 0,
        name: c"cpu_tiled".as_ptr(),
        rejected: c"".as_ptr(),
        ..*plan
    };
    Outcome::OK
}

fn known(dtype: NVTEDType) -> bool {
    dispatch!(dtype, [F32, F16, BF16, E4M3, E5M2], _T => true, else false)
}

pub(crate) unsafe extern "C-unwind" fn attention(
    args: *const AttentionArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        let a = &*args;
        let shared = Shared::new(a);
        if a.backward { shared.backward() } else { shared.forward() }
    }
    Outcome::OK
}

/// Rows of one head of a sequence in memory.
#[derive(Clone, Copy)]
struct Rows {
    data: *mut c_void,
    dtype: NVTEDType,
    /// Elements from `data` to row 0, and from row to row.
    first: i64,
    row: i64,
    dim: usize,
    pages: Option<Pages>,
}

/// Pages of a sequence.
#[derive(Clone, Copy)]
struct Pages {
    /// Of the sequence: its page numbers.
    table: *const i32,
    /// Rows of a page.
    size: usize,
    /// Elements from page to page.
    stride: i64,
    /// Page numbers past it read this one: the table lies on the device and may hold anything.
    last: u32,
}

impl Rows {
    fn at(&self, r: usize) -> *mut c_void {
        let element = match self.pages {
            None => self.first + r as i64 * self.row,
            Some(Pages { table, size, stride, last }) => {
                // SAFETY: the table covers the rows of the sequence.
                let page = unsafe { table.add(r / size).read() } as u32;
                self.first + i64::from(page.min(last)) * stride + (r % size) as i64 * self.row
            }
        };
        self.data.wrapping_byte_offset(element as isize * (self.dtype.bits() / 8) as isize)
    }

    /// `to = float(rows)`
    ///
    /// # Safety
    /// The rows are there, and nobody writes to them meanwhile.
    unsafe fn read(&self, rows: Range<usize>, to: &mut [f32]) {
        dispatch!(self.dtype, [F32, F16, BF16, E4M3, E5M2], T => {
            // SAFETY: the caller's promise.
            let slice = |r, len| unsafe { Buf::<T>::new(self.at(r), len).slice(0, len) };
            if self.pages.is_none() && self.row == self.dim as i64 {
                to_floats(slice(rows.start, rows.len() * self.dim), to);
            } else {
                for (r, to) in rows.zip(to.chunks_exact_mut(self.dim)) {
                    to_floats(slice(r, self.dim), to);
                }
            }
        }, else {})
    }

    /// `rows = cast(from)`
    ///
    /// # Safety
    /// The rows are there, and nobody else uses them meanwhile.
    unsafe fn write(&self, rows: Range<usize>, from: &[f32]) {
        dispatch!(self.dtype, [F32, F16, BF16, E4M3, E5M2], T => {
            for (r, from) in rows.zip(from.chunks_exact(self.dim)) {
                // SAFETY: the caller's promise.
                let to = unsafe { Buf::<T>::new(self.at(r), self.dim).slice_mut(0, self.dim) };
                from_floats(from, to);
            }
        }, else {})
    }
}

/// A sequence: its rows and columns, where they begin if they are packed, and which scores count.
#[derive(Clone, Copy)]
struct Sequence {
    index: usize,
    queries: usize,
    keys: usize,
    starts: [Option<i64>; 2],
    /// Row r sees the columns from `r + left` to `r + right`.
    left: i64,
    right: i64,
}

impl Sequence {
    /// # Safety
    /// The arguments are valid.
    unsafe fn new(a: &AttentionArgs, index: usize) -> Self {
        // SAFETY: the caller's promise.
        let ((queries, q_start), (keys, kv_start)) =
            unsafe { (extent(&a.q_side, index), extent(&a.kv_side, index)) };
        let shift = if a.bottom_right { keys as i64 - queries as i64 } else { 0 };
        let bound = |window: i64, sign: i64, none: i64| match window {
            -1 => none,
            // No sequence is longer.
            window => shift + sign * window.min(1 << 48),
        };
        Self {
            index,
            queries,
            keys,
            starts: [q_start, kv_start],
            left: bound(a.window_left, -1, -(1 << 49)),
            right: bound(a.window_right, 1, 1 << 49),
        }
    }

    /// Columns that rows see: from the first of the first row to the last of the last one.
    fn columns(&self, rows: &Range<usize>) -> Range<usize> {
        band(rows, self.left, self.right, self.keys)
    }

    /// Rows that see columns.
    fn rows(&self, columns: &Range<usize>) -> Range<usize> {
        band(columns, -self.right, -self.left, self.queries)
    }
}

/// What a range of one side meets on the other, which has `length`.
fn band(range: &Range<usize>, low: i64, high: i64, length: usize) -> Range<usize> {
    let clip = |position: i64| position.clamp(0, length as i64) as usize;
    let (start, end) = (clip(range.start as i64 + low), clip(range.end as i64 + high));
    start..if range.is_empty() { start } else { end.max(start) }
}

/// The part of a range that lies in another, counted from the start of that.
fn relative(range: &Range<usize>, inside: &Range<usize>) -> Range<usize> {
    let clip = |x: usize| x.clamp(inside.start, inside.end) - inside.start;
    clip(range.start)..clip(range.end)
}

/// Length and, of a packed side, first row of a sequence. Never more than there is.
///
/// # Safety
/// The arrays of the side are valid.
unsafe fn extent(side: &AttentionSide, index: usize) -> (usize, Option<i64>) {
    // SAFETY: the caller's promise.
    let at = |array: *const i32, i: usize| i64::from(unsafe { array.add(i).read() });
    let mut length = side.max_seqlen as i64;
    if !side.cu_seqlens.is_null() {
        length = length.min(at(side.cu_seqlens, index + 1) - at(side.cu_seqlens, index));
    }
    let start = (!side.starts.is_null()).then(|| at(side.starts, index));
    if let Some(start) = start {
        length = if start < 0 { 0 } else { length.min(side.tokens as i64 - start) };
    }
    (length.max(0) as usize, start)
}

/// What all tasks share.
struct Shared<'a> {
    a: &'a AttentionArgs,
    sequences: Vec<Sequence>,
    fp8: bool,
    seed: u64,
    /// Offset of the generator in counters.
    counter: u64,
    /// Of 16 byte + rank: what is below it is dropped.
    level: u32,
    kept: f32,
    factors: Factors,
    /// Largest magnitudes: of the probabilities or the scores' gradient, and of the results.
    amax: [AtomicU32; 4],
}

/// What products are multiplied by.
struct Factors {
    scores: f32,
    /// Before and after P is cast.
    p: [f32; 2],
    dp: f32,
    d: f32,
    /// Before the gradient of the scores is cast, and what its products get.
    ds: f32,
    dq: f32,
    dk: f32,
    dv: f32,
}

// SAFETY: the addresses lead to memory of the caller, of which each task writes a part of its own.
unsafe impl Sync for Shared<'_> {}

/// Where a task keeps its tiles.
#[derive(Default)]
struct Scratch {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d_o: Vec<f32>,
    x: Vec<f32>,
    dp: Vec<f32>,
    sums: [Vec<f32>; 2],
    row: Vec<f32>,
    weights: Vec<f32>,
}

/// A head of the queries with the keys and values that it reads.
struct Head<'a> {
    shared: &'a Shared<'a>,
    s: Sequence,
    j: usize,
    q: Rows,
    k: Rows,
    v: Rows,
    bias: Option<Rows>,
    slope: f32,
    sink: f32,
}

/// `len` floats of a scratch buffer.
fn floats(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        resize(buffer, len);
    }
    &mut buffer[..len]
}

/// A matrix with the strides of its rows and columns.
#[derive(Clone, Copy)]
struct Matrix<'a>(&'a [f32], usize, usize);

/// `to = a b`, or `to += a b`; `to` is `[m, n]`.
fn product(to: &mut [f32], (m, n, k): (usize, usize, usize), a: Matrix, b: Matrix, add: bool) {
    let covers = |x: &Matrix, rows: usize, cols: usize| {
        rows * cols == 0 || (rows - 1) * x.1 + (cols - 1) * x.2 < x.0.len()
    };
    assert!(to.len() >= m * n && covers(&a, m, k) && covers(&b, k, n), "sizes of a product");
    // SAFETY: the matrices lie in the slices.
    unsafe {
        let product = Product {
            dims: (m, n, k),
            d: to.as_mut_ptr(),
            d_strides: (n, 1),
            a: (a.0.as_ptr(), a.1, a.2),
            b: (b.0.as_ptr(), b.1, b.2),
            alpha: 1.0,
            beta: if add { 1.0 } else { 0.0 },
        };
        product.run_here();
    }
}

/// `to += weights x`: `to` is `[m, width]`, x `[n, width]`. Row i of the weights counts in `seen(i)` and is 0
/// elsewhere. Rows of x that hold a NaN or an infinity do not reach the rows of `to` that do not see them,
/// although 0 times them is NaN.
fn product_of_seen(
    to: &mut [f32],
    (m, width, n): (usize, usize, usize),
    weights: Matrix,
    x: &[f32],
    seen: impl Fn(usize) -> Range<usize>,
) {
    let x = &x[..n * width];
    if (0..m).all(|i| seen(i) == (0..n)) || x.iter().all(|x| x.is_finite()) {
        return product(to, (m, width, n), weights, Matrix(x, width, 1), true);
    }
    let Matrix(values, row, column) = weights;
    for (i, to) in to.chunks_exact_mut(width).take(m).enumerate() {
        for k in seen(i) {
            let weight = values[i * row + k * column];
            for (to, &x) in to.iter_mut().zip(&x[k * width..(k + 1) * width]) {
                *to += weight * x;
            }
        }
    }
}

const LANES: usize = 16;

/// `exp(x)`; 0 below -86.5, infinite above 88.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to an integer n, which stays in the low bits.
    let shifted = x.mul_add(std::f32::consts::LOG2_E, 12_582_912.0);
    let n = shifted - 12_582_912.0;
    let f = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let p = 1.987_569_1e-4f32;
    let p = p.mul_add(f, 1.398_2e-3);
    let p = p.mul_add(f, 8.333_452e-3);
    let p = p.mul_add(f, 4.166_579_6e-2);
    let p = p.mul_add(f, 1.666_666_6e-1);
    let p = p.mul_add(f, 0.5);
    let p = p.mul_add(f * f, f) + 1.0;
    let power = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    let power = if x > 88.0 { f32::INFINITY } else { power };
    let power = if x < -86.5 { 0.0 } else { power };
    if x.is_nan() { x } else { power }
}

vectorized! {
    /// Largest value, NaN aside.
    fn largest(x: &[f32]) -> f32 {
        let mut lanes = [NEVER; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = if x > *lane { x } else { *lane };
            }
        }
        lanes.iter().chain(rest).fold(NEVER, |most, &x| most.max(x))
    }
}

vectorized! {
    /// `x = exp(x - shift)`, and the sum.
    fn exponentials(x: &mut [f32], shift: f32) -> f32 {
        let mut lanes = [0.0; LANES];
        let (chunks, rest) = x.as_chunks_mut::<LANES>();
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *x = exp(*x - shift);
                *lane += *x;
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *x = exp(*x - shift);
            *lane += *x;
        }
        lanes.iter().sum()
    }
}

vectorized! {
    fn multiply(x: &mut [f32], factor: f32) {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

vectorized! {
    fn multiply_add(x: &mut [f32], factor: f32, added: &[f32]) {
        for (x, &added) in x.iter_mut().zip(added) {
            *x = *x * factor + added;
        }
    }
}

vectorized! {
    /// `x += slope (first + i)`
    fn add_slope(x: &mut [f32], slope: f32, first: i64) {
        for (i, x) in x.iter_mut().enumerate() {
            *x += slope * (first + i as i64) as f32;
        }
    }
}

vectorized! {
    /// Probabilities p to z, and the gradients of z to those of the scores.
    fn gradients(p: &mut [f32], dp: &mut [f32], weights: &[f32], factor: f32, d: f32) {
        for ((p, dp), &weight) in p.iter_mut().zip(dp).zip(weights) {
            let kept = if weight == 0.0 { 0.0 } else { *dp * factor * weight };
            *dp = if *p == 0.0 { 0.0 } else { *p * (kept - d) };
            *p = if weight == 0.0 { 0.0 } else { *p * weight };
        }
    }
}

vectorized! {
    /// `x = float(cast(x factor))` by the type of `like`, and the largest bits of |x| before.
    fn round_like<T: Element>(like: T, x: &mut [f32], factor: f32) -> u32 {
        let _ = like;
        x.iter_mut().fold(0, |amax, x| {
            let bits = amax_bits(*x);
            *x = T::from_f32(*x * factor).to_f32();
            amax.max(bits)
        })
    }
}

fn round(dtype: NVTEDType, x: &mut [f32], factor: f32) -> u32 {
    dispatch!(dtype, [E4M3, E5M2], T => round_like(T::default(), x, factor), else 0)
}

vectorized! {
    /// Multiplies by `factor`, then by `scale`; the largest bits between.
    fn finish(x: &mut [f32], factor: f32, scale: f32) -> u32 {
        x.iter_mut().fold(0, |amax, x| {
            let result = *x * factor;
            *x = result * scale;
            amax.max(amax_bits(result))
        })
    }
}

/// The slope of head j of ALiBi.
fn slope(heads: usize, j: usize) -> f32 {
    let n = 1usize << heads.ilog2();
    let exponent = match j < n {
        true => -8.0 * (j + 1) as f64 / n as f64,
        false => -4.0 * (2 * (j - n) + 1) as f64 / n as f64,
    };
    exponent.exp2() as f32
}

/// Rows of a side that a sequence can have: packed sequences have no more than there are tokens.
fn longest(side: &AttentionSide) -> usize {
    side.max_seqlen.min(side.tokens)
}

impl<'a> Shared<'a> {
    /// # Safety
    /// The arguments are valid.
    unsafe fn new(a: &'a AttentionArgs) -> Self {
        let fp8 = a.q.dtype.is_fp8();
        // SAFETY: the caller's promise, here and below.
        let (one, scale_inv) = (
            |scale: *const f32| unsafe { load(scale) }.unwrap_or(1.0),
            |tensor: &AttentionTensor| unsafe { load(tensor.scale_inv) }.unwrap_or(1.0),
        );
        let [q, k, v, o, d_o, s, dp] = [&a.q, &a.k, &a.v, &a.o, &a.d_o, &a.s, &a.dp].map(scale_inv);
        let (seed, offset) = match a.rng_state.is_null() {
            true => (0, 0),
            // SAFETY: as above.
            false => unsafe { (*a.rng_state as u64, *a.rng_state.add(1) as u64) },
        };
        Self {
            a,
            // SAFETY: as above.
            sequences: collect((0..a.batch).map(|i| unsafe { Sequence::new(a, i) })),
            fp8,
            seed,
            counter: offset / 4,
            level: ((a.dropout * 4096.0 + 0.5) as u32).min(4080),
            kept: 1.0 / (1.0 - a.dropout),
            factors: Factors {
                scores: a.scale * q * k,
                p: [one(a.s.scale), s * v],
                dp: d_o * v,
                d: d_o * o,
                ds: one(a.dp.scale),
                dq: if fp8 { dp * k } else { a.scale },
                dk: if fp8 { dp * q } else { a.scale },
                dv: s * d_o,
            },
            amax: [const { AtomicU32::new(0) }; 4],
        }
    }

    fn raise(&self, which: usize, bits: u32) {
        self.amax[which].fetch_max(bits, Ordering::Relaxed);
    }

    /// # Safety
    /// The address is null or valid.
    unsafe fn store_amax(&self, which: usize, to: *mut f32) {
        if self.fp8 {
            // SAFETY: the caller's promise.
            unsafe { store(to, f32::from_bits(self.amax[which].load(Ordering::Relaxed))) };
        }
    }

    fn rows(
        &self,
        tensor: &AttentionTensor,
        s: &Sequence,
        side: usize,
        j: usize,
        dim: usize,
    ) -> Rows {
        let start = match s.starts[side] {
            Some(start) => start * tensor.row,
            None => s.index as i64 * tensor.batch,
        };
        let first = start + j as i64 * tensor.head;
        let AttentionTensor { data, dtype, row, .. } = *tensor;
        Rows { data, dtype, first, row, dim, pages: None }
    }

    /// Rows of keys or values, which may lie on pages.
    fn paged(
        &self,
        tensor: &AttentionTensor,
        s: &Sequence,
        j: usize,
        dim: usize,
        which: usize,
    ) -> Rows {
        let a = self.a;
        let (table, pages, size, count) = [
            (a.page_table_k, a.max_pages_k, a.page_size_k, a.num_pages_k),
            (a.page_table_v, a.max_pages_v, a.page_size_v, a.num_pages_v),
        ][which];
        let rows = self.rows(tensor, s, 1, j, dim);
        if table.is_null() {
            return rows;
        }
        let table = table.wrapping_add(s.index * pages);
        let pages = Pages { table, size, stride: tensor.batch, last: (count - 1) as u32 };
        Rows { first: j as i64 * tensor.head, pages: Some(pages), ..rows }
    }

    fn head(&self, s: Sequence, j: usize) -> Head<'_> {
        let a = self.a;
        let group = j / (a.q_side.heads / a.kv_side.heads);
        let AttentionTensor { data, dtype, batch, row, head, .. } = a.bias;
        Head {
            shared: self,
            s,
            j,
            q: self.rows(&a.q, &s, 0, j, a.dim_qk),
            k: self.paged(&a.k, &s, group, a.dim_qk, 0),
            v: self.paged(&a.v, &s, group, a.dim_v, 1),
            bias: (!data.is_null()).then(|| Rows {
                data,
                dtype,
                first: s.index as i64 * batch + j as i64 * head,
                row,
                dim: 0,
                pages: None,
            }),
            slope: if a.alibi { slope(a.q_side.heads, j) } else { 0.0 },
            // SAFETY: the offsets have an element for each head.
            sink: unsafe { load(a.sink.wrapping_add(if a.sink.is_null() { 0 } else { j })) }
                .unwrap_or(NEVER),
        }
    }

    /// Where the statistics of a row are.
    fn stats_at(&self, s: &Sequence, j: usize, r: usize) -> usize {
        let heads = self.a.q_side.heads;
        match s.starts[0] {
            Some(start) => (start as usize + r) * heads + j,
            None => (s.index * heads + j) * self.a.q_side.max_seqlen + r,
        }
    }

    fn stats_len(&self) -> usize {
        let side = &self.a.q_side;
        let rows = if side.starts.is_null() { self.a.batch * side.max_seqlen } else { side.tokens };
        rows * side.heads
    }

    /// Runs a task for each block of each head of each sequence.
    fn for_blocks(
        &self,
        heads: usize,
        (length, block): (usize, usize),
        task: impl Fn(&mut Scratch, Sequence, usize, Range<usize>) + Sync + Send,
    ) {
        let blocks = length.div_ceil(block);
        parallel(self.a.batch * heads * blocks).for_each_init(
            Scratch::default,
            |scratch, index| {
                let (i, j, start) =
                    (index / blocks / heads, index / blocks % heads, index % blocks * block);
                task(scratch, self.sequences[i], j, start..(start + block).min(length));
            },
        );
    }

    /// # Safety
    /// The arguments are valid.
    unsafe fn forward(&self) {
        let a = self.a;
        self.for_blocks(a.q_side.heads, (longest(&a.q_side), ROWS), |scratch, s, j, rows| {
            // SAFETY: the caller's promise; the rows are this task's own.
            unsafe { self.head(s, j).forward(scratch, rows) }
        });
        // SAFETY: as above.
        unsafe {
            self.store_amax(0, a.s.amax);
            self.store_amax(1, a.o.amax);
        }
    }

    /// # Safety
    /// The arguments are valid.
    unsafe fn backward(&self) {
        let a = self.a;
        let mut sums = zeros::<f32>(self.stats_len());
        // SAFETY: the vector is used through this buffer alone until the tasks are done.
        let d = unsafe { Buf::<f32>::new(sums.as_mut_ptr().cast(), sums.len()) };
        let (heads, groups) = (a.q_side.heads, a.kv_side.heads);
        let rows = (longest(&a.q_side), ROWS);
        self.for_blocks(heads, rows, |scratch, s, j, rows| {
            // SAFETY: the caller's promise; the rows are this task's own.
            unsafe { self.head(s, j).row_sums(scratch, rows, d) }
        });
        let d = &sums[..];
        self.for_blocks(heads, rows, |scratch, s, j, rows| {
            // SAFETY: as above.
            unsafe { self.head(s, j).query_gradients(scratch, rows, d) }
        });
        self.for_blocks(groups, (longest(&a.kv_side), COLS), |scratch, s, group, columns| {
            // SAFETY: as above.
            unsafe { self.key_gradients(scratch, s, group, columns, d) }
        });
        // SAFETY: as above.
        unsafe {
            if !a.dbias.data.is_null() {
                self.bias_gradients(d);
            }
            if !a.dsink.is_null() {
                self.sink_gradients(d);
            }
            self.store_amax(0, a.dp.amax);
            self.store_amax(1, a.dq.amax);
            self.store_amax(2, a.dk.amax);
            self.store_amax(3, a.dv.amax);
        }
    }

    /// Writes results: `rows = cast(x factor scale)`, with their largest magnitude.
    ///
    /// # Safety
    /// The rows are there and the task's own.
    unsafe fn write(
        &self,
        (tensor, which): (&AttentionTensor, usize),
        rows: &Rows,
        range: Range<usize>,
        x: &mut [f32],
        factor: f32,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = if rows.dtype.is_fp8() { load(tensor.scale).unwrap_or(1.0) } else { 1.0 };
            self.raise(which, finish(x, factor, scale));
            rows.write(range, x);
        }
    }

    /// dK and dV of some columns, summed over the heads of a group.
    ///
    /// # Safety
    /// The arguments are valid, the columns the task's own.
    unsafe fn key_gradients(
        &self,
        scratch: &mut Scratch,
        s: Sequence,
        group: usize,
        columns: Range<usize>,
        d: &[f32],
    ) {
        let a = self.a;
        let (qk, v) = (a.dim_qk, a.dim_v);
        let (dk_rows, dv_rows) =
            (self.rows(&a.dk, &s, 1, group, qk), self.rows(&a.dv, &s, 1, group, v));
        let [mut dk, mut dv] = std::mem::take(&mut scratch.sums);
        floats(&mut dk, COLS * qk).fill(0.0);
        floats(&mut dv, COLS * v).fill(0.0);
        let inside = columns.start..columns.end.min(s.keys).max(columns.start);
        let n = inside.len();
        let per_group = a.q_side.heads / a.kv_side.heads;
        for j in group * per_group..(group + 1) * per_group {
            let head = self.head(s, j);
            // SAFETY: the caller's promise.
            unsafe { head.load_columns(scratch, &inside, true) };
            let seen = s.rows(&inside);
            for start in seen.clone().step_by(ROWS) {
                let rows = start..(start + ROWS).min(seen.end);
                let m = rows.len();
                // SAFETY: as above.
                unsafe {
                    head.load_rows(scratch, &rows);
                    head.tile_gradients(scratch, &rows, &inside, d, true);
                }
                let (z, ds) = (Matrix(&scratch.x, 1, n), Matrix(&scratch.dp, 1, n));
                let seen = |c: usize| {
                    let seen = s.rows(&(inside.start + c..inside.start + c + 1));
                    relative(&seen, &rows)
                };
                product_of_seen(&mut dv, (n, v, m), z, &scratch.d_o, seen);
                product_of_seen(&mut dk, (n, qk, m), ds, &scratch.q, seen);
            }
        }
        // Of dense tensors the rows behind the sequence become 0.
        let written = if s.starts[1].is_some() { inside } else { columns };
        let len = written.len();
        // SAFETY: as above.
        unsafe {
            let (dk, dv) = (&mut dk[..len * qk], &mut dv[..len * v]);
            self.write((&a.dk, 2), &dk_rows, written.clone(), dk, self.factors.dk);
            self.write((&a.dv, 3), &dv_rows, written, dv, self.factors.dv);
        }
        scratch.sums = [dk, dv];
    }

    /// The bias's gradient: each tile of it is the sum over all that the bias was broadcast to.
    ///
    /// # Safety
    /// The arguments are valid.
    unsafe fn bias_gradients(&self, d: &[f32]) {
        let a = self.a;
        let (queries, keys, heads) = (a.q_side.max_seqlen, a.kv_side.max_seqlen, a.q_side.heads);
        let own = |stride: i64, count: usize| if stride == 0 { 1 } else { count };
        let of = |index: usize, stride: i64, count: usize| match stride {
            0 => 0..count,
            _ => index..index + 1,
        };
        let AttentionTensor { batch, row, head, .. } = a.dbias;
        let (batches, heads_own) = (own(batch, a.batch), own(head, heads));
        let row_blocks = if row == 0 { 1 } else { queries.div_ceil(ROWS) };
        let column_blocks = keys.div_ceil(COLS);
        let tasks = batches * heads_own * row_blocks * column_blocks;
        parallel(tasks).for_each_init(Scratch::default, |scratch, task| {
            let AttentionTensor { data, dtype, .. } = self.a.dbias;
            let (rest, column_block) = (task / column_blocks, task % column_blocks);
            let (rest, row_block) = (rest / row_blocks, rest % row_blocks);
            let (b, h) = (rest / heads_own, rest % heads_own);
            let columns = column_block * COLS..((column_block + 1) * COLS).min(keys);
            let rows = match row {
                0 => 0..queries,
                _ => row_block * ROWS..((row_block + 1) * ROWS).min(queries),
            };
            let (width, height) = (columns.len(), if row == 0 { 1 } else { rows.len() });
            let mut sums = zeros::<f32>(width * height);
            for i in of(b, batch, self.sequences.len()) {
                let s = self.sequences[i];
                let inside = columns.start..columns.end.min(s.keys).max(columns.start);
                for j in of(h, head, heads) {
                    let here = self.head(s, j);
                    // SAFETY: the caller's promise.
                    unsafe { here.load_columns(scratch, &inside, true) };
                    let seen = s.rows(&inside);
                    let seen = seen.start.max(rows.start)..seen.end.min(rows.end);
                    for start in seen.clone().step_by(ROWS) {
                        let part = start..(start + ROWS).min(seen.end);
                        // SAFETY: as above.
                        unsafe {
                            here.load_rows(scratch, &part);
                            here.tile_gradients(scratch, &part, &inside, d, false);
                        }
                        for (r, ds) in part.zip(scratch.dp.chunks_exact(inside.len())) {
                            let at = if row == 0 { 0 } else { (r - rows.start) * width };
                            for (sum, &ds) in sums[at..].iter_mut().zip(ds) {
                                *sum += ds;
                            }
                        }
                    }
                }
            }
            let first = b as i64 * batch + h as i64 * head + columns.start as i64;
            let to = Rows { data, dtype, first, row, dim: width, pages: None };
            let range = if row == 0 { 0..1 } else { rows };
            // SAFETY: as above; the tile is the task's own.
            unsafe { to.write(range, &sums) };
        });
    }

    /// # Safety
    /// The arguments are valid.
    unsafe fn sink_gradients(&self, d: &[f32]) {
        let a = self.a;
        // SAFETY: the caller's promise.
        let (dsink, stats) = unsafe {
            (
                Buf::<f32>::new(a.dsink.cast(), a.q_side.heads),
                Buf::<f32>::new(a.stats.cast(), self.stats_len()),
            )
        };
        parallel(a.q_side.heads).for_each(|j| {
            let mut sum = 0.0;
            for s in &self.sequences {
                let sink = self.head(*s, j).sink;
                for r in 0..s.queries {
                    let at = self.stats_at(s, j, r);
                    // SAFETY: nobody writes to the statistics.
                    let stats = unsafe { stats.slice(at, 1)[0] };
                    if stats != NEVER {
                        sum -= f64::from(sink - stats).exp() * f64::from(d[at]);
                    }
                }
            }
            // SAFETY: the element is this task's own.
            unsafe { dsink.slice_mut(j, 1)[0] = sum as f32 };
        });
    }
}

impl Head<'_> {
    /// # Safety
    /// The rows are inside the sequence.
    unsafe fn load_rows(&self, scratch: &mut Scratch, rows: &Range<usize>) {
        let a = self.shared.a;
        // SAFETY: the caller's promise.
        unsafe {
            self.q.read(rows.clone(), floats(&mut scratch.q, rows.len() * a.dim_qk));
            if a.backward {
                let d_o = self.shared.rows(&a.d_o, &self.s, 0, self.j, a.dim_v);
                d_o.read(rows.clone(), floats(&mut scratch.d_o, rows.len() * a.dim_v));
            }
        }
    }

    /// # Safety
    /// The columns are inside the sequence.
    unsafe fn load_columns(&self, scratch: &mut Scratch, columns: &Range<usize>, values: bool) {
        let a = self.shared.a;
        // SAFETY: the caller's promise.
        unsafe {
            self.k.read(columns.clone(), floats(&mut scratch.k, columns.len() * a.dim_qk));
            if values {
                self.v.read(columns.clone(), floats(&mut scratch.v, columns.len() * a.dim_v));
            }
        }
    }

    /// Scores of the loaded rows and columns in `x`, -inf where they are not admissible.
    fn scores(&self, scratch: &mut Scratch, rows: &Range<usize>, columns: &Range<usize>) {
        let (a, n, depth) = (self.shared.a, columns.len(), self.shared.a.dim_qk);
        let x = floats(&mut scratch.x, rows.len() * n);
        let k = Matrix(&scratch.k, 1, depth);
        product(x, (rows.len(), n, depth), Matrix(&scratch.q, depth, 1), k, false);
        for (r, x) in rows.clone().zip(x.chunks_exact_mut(n)) {
            match self.bias {
                None => multiply(x, self.shared.factors.scores),
                Some(bias) => {
                    let row = floats(&mut scratch.row, n);
                    let first = bias.first + r as i64 * bias.row + columns.start as i64;
                    let bias = Rows { first, row: 0, dim: n, ..bias };
                    // SAFETY: the bias has an element for every score.
                    unsafe { bias.read(0..1, row) };
                    multiply_add(x, self.shared.factors.scores, row);
                }
            }
            if a.alibi {
                add_slope(x, self.slope, columns.start as i64 - r as i64);
            }
            let seen = self.seen(r, columns);
            x[..seen.start].fill(NEVER);
            x[seen.end..].fill(NEVER);
        }
    }

    /// Which of the columns row r sees, counted from the first.
    fn seen(&self, r: usize, columns: &Range<usize>) -> Range<usize> {
        relative(&self.s.columns(&(r..r + 1)), columns)
    }

    /// What dropout multiplies the elements of a row by: 0 or `1 / (1 - dropout)`.
    fn weights(&self, r: usize, columns: &Range<usize>, weights: &mut [f32]) {
        let (shared, a) = (self.shared, self.shared.a);
        let tiles = |side: &AttentionSide| side.max_seqlen.div_ceil(16) as u64;
        let head = (self.s.index * a.q_side.heads + self.j) as u64;
        let row = (head * tiles(&a.q_side) + r as u64 / 16).wrapping_mul(tiles(&a.kv_side));
        let seen = self.seen(r, columns);
        let (first, end) = (columns.start + seen.start, columns.start + seen.end);
        let pair = r % 8 / 2;
        for (tile, other) in
            (first / 16..end.div_ceil(16)).flat_map(|t| (0..4).map(move |k| (t, k)))
        {
            let call = row.wrapping_add(tile as u64).wrapping_mul(16) + (4 * pair + other) as u64;
            let words = philox_of::<7>(shared.seed, shared.counter, call);
            let rank = ((pair + other) % 4 * 4 + pair) as u32;
            for (half, e) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let c = 16 * tile + 8 * half + 2 * other + e;
                if (first..end).contains(&c) {
                    let byte = words[2 * (r % 2) + e] >> (8 * (2 * half + r / 8 % 2)) & 0xFF;
                    let keep = 16 * byte + rank >= shared.level;
                    weights[c - columns.start] = if keep { shared.kept } else { 0.0 };
                }
            }
        }
    }

    /// # Safety
    /// The arguments are valid, the rows the task's own.
    unsafe fn forward(&self, scratch: &mut Scratch, rows: Range<usize>) {
        let (shared, a, v) = (self.shared, self.shared.a, self.shared.a.dim_v);
        let inside = rows.start..rows.end.min(self.s.queries).max(rows.start);
        let m = inside.len();
        let mut o = std::mem::take(&mut scratch.sums[0]);
        floats(&mut o, ROWS * v).fill(0.0);
        // Largest score, with the sink and without; sum of exponentials.
        let start = if self.sink == NEVER { 0.0 } else { 1.0 };
        let (mut most, mut seen, mut sum) = ([self.sink; ROWS], [NEVER; ROWS], [start; ROWS]);
        let all = self.s.columns(&inside);
        // SAFETY: the caller's promise.
        unsafe { self.load_rows(scratch, &inside) };
        // What is cast to FP8 is the probability itself: the sums come first.
        let sweeps = if shared.fp8 { 2 } else { 1 };
        for sweep in 0..sweeps {
            let last = sweep + 1 == sweeps;
            let mut stats = [0.0; ROWS];
            for start in all.clone().step_by(COLS) {
                let columns = start..(start + COLS).min(all.end);
                let n = columns.len();
                // SAFETY: as above.
                unsafe { self.load_columns(scratch, &columns, last) };
                self.scores(scratch, &inside, &columns);
                for (i, x) in scratch.x.chunks_exact_mut(n).take(m).enumerate() {
                    if sweep == 0 {
                        let here = largest(x);
                        seen[i] = seen[i].max(here);
                        let shift = most[i].max(here);
                        if shift == NEVER {
                            // NaN stays.
                            sum[i] += f64::from(exponentials(x, 0.0));
                        } else {
                            let fade = if most[i] == shift { 1.0 } else { exp(most[i] - shift) };
                            most[i] = shift;
                            sum[i] = sum[i] * f64::from(fade) + f64::from(exponentials(x, shift));
                            if fade != 1.0 {
                                multiply(&mut o[i * v..(i + 1) * v], fade);
                            }
                        }
                    } else {
                        if start == all.start {
                            stats[i] = log_sum(most[i], sum[i]);
                        }
                        let shift = if stats[i] == NEVER { 0.0 } else { stats[i] };
                        exponentials(x, shift);
                    }
                    if last && a.dropout > 0.0 {
                        let weights = floats(&mut scratch.weights, n);
                        weights.fill(0.0);
                        self.weights(inside.start + i, &columns, weights);
                        for (x, &weight) in x.iter_mut().zip(&*weights) {
                            *x = if weight == 0.0 { 0.0 } else { *x * weight };
                        }
                    }
                }
                if !last {
                    continue;
                }
                if shared.fp8 {
                    let x = &mut scratch.x[..m * n];
                    shared.raise(0, round(a.q.dtype, x, shared.factors.p[0]));
                }
                let seen = |i: usize| self.seen(inside.start + i, &columns);
                product_of_seen(&mut o, (m, v, n), Matrix(&scratch.x, n, 1), &scratch.v, seen);
            }
        }
        for (i, o) in o.chunks_exact_mut(v).take(m).enumerate() {
            if !shared.fp8 && sum[i] != 0.0 {
                multiply(o, (1.0 / sum[i]) as f32);
            }
        }
        let written = if self.s.starts[0].is_some() { inside } else { rows };
        for (i, r) in written.clone().enumerate() {
            let (stats, max) = if i < m && sum[i].is_nan() {
                (f32::NAN, f32::NAN)
            } else if i < m && seen[i] != NEVER {
                (log_sum(most[i], sum[i]), seen[i])
            } else {
                (NEVER, NEVER)
            };
            let at = shared.stats_at(&self.s, self.j, r);
            // SAFETY: as above.
            unsafe {
                a.stats.add(at).write(stats);
                if !a.max.is_null() {
                    a.max.add(at).write(max);
                }
            }
        }
        let to = shared.rows(&a.o, &self.s, 0, self.j, v);
        let factor = if shared.fp8 { shared.factors.p[1] } else { 1.0 };
        // SAFETY: as above.
        unsafe {
            let o = &mut o[..written.len() * v];
            shared.write((&a.o, 1), &to, written, o, factor);
        }
        scratch.sums[0] = o;
    }

    /// `D = sum do o` of some rows.
    ///
    /// # Safety
    /// The arguments are valid, the rows the task's own.
    unsafe fn row_sums(&self, scratch: &mut Scratch, rows: Range<usize>, d: Buf<f32>) {
        let (shared, a, v) = (self.shared, self.shared.a, self.shared.a.dim_v);
        let inside = rows.start..rows.end.min(self.s.queries).max(rows.start);
        // SAFETY: the caller's promise.
        unsafe {
            self.load_rows(scratch, &inside);
            let o = shared.rows(&a.o, &self.s, 0, self.j, v);
            o.read(inside.clone(), floats(&mut scratch.v, inside.len() * v));
        }
        let pairs = scratch.d_o.chunks_exact(v).zip(scratch.v.chunks_exact(v));
        for (r, (d_o, o)) in inside.zip(pairs) {
            let sum: f64 = d_o.iter().zip(o).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
            let at = shared.stats_at(&self.s, self.j, r);
            // SAFETY: as above.
            unsafe { d.slice_mut(at, 1)[0] = sum as f32 * shared.factors.d };
        }
    }

    /// z in `x` and the gradient of the scores in `dp`, of the loaded rows and columns; `cast` to FP8 if
    /// q is.
    ///
    /// # Safety
    /// The arguments are valid.
    unsafe fn tile_gradients(
        &self,
        scratch: &mut Scratch,
        rows: &Range<usize>,
        columns: &Range<usize>,
        d: &[f32],
        cast: bool,
    ) {
        let (shared, a) = (self.shared, self.shared.a);
        let (m, n, v) = (rows.len(), columns.len(), a.dim_v);
        self.scores(scratch, rows, columns);
        floats(&mut scratch.dp, m * n);
        scratch.dp.truncate(m * n);
        let (d_o, values) = (Matrix(&scratch.d_o, v, 1), Matrix(&scratch.v, 1, v));
        product(&mut scratch.dp, (m, n, v), d_o, values, false);
        let tiles = scratch.x.chunks_exact_mut(n).zip(scratch.dp.chunks_exact_mut(n));
        for (r, (x, dp)) in rows.clone().zip(tiles) {
            let at = shared.stats_at(&self.s, self.j, r);
            // SAFETY: the statistics have an element for each row.
            let stats = unsafe { a.stats.add(at).read() };
            exponentials(x, if stats == NEVER { 0.0 } else { stats });
            if stats.is_nan() {
                let seen = self.seen(r, columns);
                x[..seen.start].fill(0.0);
                x[seen.end..].fill(0.0);
            }
            let weights = floats(&mut scratch.weights, n);
            weights.fill(1.0);
            if a.dropout > 0.0 {
                self.weights(r, columns, weights);
            }
            gradients(x, dp, weights, shared.factors.dp, d[at]);
        }
        if shared.fp8 && cast {
            multiply(&mut scratch.dp, a.scale);
            shared.raise(0, round(a.d_o.dtype, &mut scratch.dp, shared.factors.ds));
            round(a.q.dtype, &mut scratch.x[..m * n], shared.factors.p[0]);
        }
    }

    /// dQ of some rows.
    ///
    /// # Safety
    /// The arguments are valid, the rows the task's own.
    unsafe fn query_gradients(&self, scratch: &mut Scratch, rows: Range<usize>, d: &[f32]) {
        let (shared, a, depth) = (self.shared, self.shared.a, self.shared.a.dim_qk);
        let inside = rows.start..rows.end.min(self.s.queries).max(rows.start);
        let mut dq = std::mem::take(&mut scratch.sums[0]);
        floats(&mut dq, ROWS * depth).fill(0.0);
        let all = self.s.columns(&inside);
        // SAFETY: the caller's promise.
        unsafe { self.load_rows(scratch, &inside) };
        for start in all.clone().step_by(COLS) {
            let columns = start..(start + COLS).min(all.end);
            // SAFETY: as above.
            unsafe {
                self.load_columns(scratch, &columns, true);
                self.tile_gradients(scratch, &inside, &columns, d, true);
            }
            let sizes = (inside.len(), depth, columns.len());
            let seen = |i: usize| self.seen(inside.start + i, &columns);
            let ds = Matrix(&scratch.dp, columns.len(), 1);
            product_of_seen(&mut dq, sizes, ds, &scratch.k, seen);
        }
        let written = if self.s.starts[0].is_some() { inside } else { rows };
        let to = shared.rows(&a.dq, &self.s, 0, self.j, depth);
        // SAFETY: as above.
        unsafe {
            let dq = &mut dq[..written.len() * depth];
            shared.write((&a.dq, 1), &to, written, dq, shared.factors.dq);
        }
        scratch.sums[0] = dq;
    }
}

/// `most + ln sum`; of nothing -inf.
fn log_sum(most: f32, sum: f64) -> f32 {
    if sum == 0.0 { NEVER } else { most + sum.ln() as f32 }
}
