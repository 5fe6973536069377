//! Reference of attention (spec attention 4 to 8, 12): tiles of rows and columns inside the band of
//! admissible scores, so that memory is linear in the lengths. Products and the softmax are float32.

use super::sequence::{Pages, Rows, Sequence, longest, relative};
use super::tile::*;
use crate::backend::args::{AttentionArgs, AttentionPlan, AttentionSide, AttentionTensor, Outcome};
use crate::backend::buf::{load, store};
use crate::backend::memory::collect;
use crate::backend::pool::parallel;
use crate::numeric::{dispatch, exp};
use crate::random::philox_of;
use crate::types::{NVTEDType, cudaStream_t};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Rows and columns of a tile.
pub(super) const ROWS: usize = 128;
pub(super) const COLS: usize = 128;
/// The score of a column that does not count.
pub(super) const NEVER: f32 = f32::NEG_INFINITY;

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
    if !a.sums.is_null() {
        return Outcome::unimplemented("cpu_tiled: sums of the gradients");
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

/// What all tasks share.
pub(super) struct Shared<'a> {
    pub(super) a: &'a AttentionArgs,
    pub(super) sequences: Vec<Sequence>,
    pub(super) fp8: bool,
    pub(super) seed: u64,
    /// Offset of the generator in counters.
    pub(super) counter: u64,
    /// An element is dropped if 16 times its random byte plus its rank is below this.
    pub(super) level: u32,
    pub(super) kept: f32,
    pub(super) factors: Factors,
    /// Largest magnitudes: of the probabilities or the scores' gradient, and of the results.
    pub(super) amax: [AtomicU32; 4],
}

/// What products are multiplied by.
pub(super) struct Factors {
    pub(super) scores: f32,
    /// Factors of P before and after it is cast.
    pub(super) p: [f32; 2],
    pub(super) dp: f32,
    pub(super) d: f32,
    /// Factor of the gradient of the scores before it is cast; its products have the factors that
    /// follow.
    pub(super) ds: f32,
    pub(super) dq: f32,
    pub(super) dk: f32,
    pub(super) dv: f32,
}

// SAFETY: the addresses lead to memory of the caller, of which each task writes a part of its own.
unsafe impl Sync for Shared<'_> {}

/// Where a task keeps its tiles.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) d_o: Vec<f32>,
    pub(super) x: Vec<f32>,
    pub(super) dp: Vec<f32>,
    pub(super) sums: [Vec<f32>; 2],
    pub(super) row: Vec<f32>,
    pub(super) weights: Vec<f32>,
}

/// A head of the queries with the keys and values that it reads.
pub(super) struct Head<'a> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) s: Sequence,
    pub(super) j: usize,
    pub(super) q: Rows,
    pub(super) k: Rows,
    pub(super) v: Rows,
    pub(super) bias: Option<Rows>,
    pub(super) slope: f32,
    pub(super) sink: f32,
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

impl<'a> Shared<'a> {
    /// # Safety
    /// The arguments are valid.
    pub(super) unsafe fn new(a: &'a AttentionArgs) -> Self {
        let fp8 = a.q.dtype.is_fp8();
        // SAFETY: the caller's promise, here and below.
        let (one, scale_inv) = (
            |scale: *const f32| unsafe { load(scale) }.unwrap_or(1.0),
            |tensor: &AttentionTensor| unsafe { load(tensor.scale_inv) }.unwrap_or(1.0),
        );
        let [q, k, v, o, d_o, s, dp] = [&a.q, &a.k, &a.v, &a.o, &a.d_o, &a.s, &a.dp].map(scale_inv);
        let (seed, offset) = match a.rng_state.is_null() {
            true => (0, 0),
            // SAFETY: the caller's promise of valid arguments.
            false => unsafe { (*a.rng_state as u64, *a.rng_state.add(1) as u64) },
        };
        Self {
            a,
            // SAFETY: the caller's promise of valid arguments.
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

    pub(super) fn raise(&self, which: usize, bits: u32) {
        self.amax[which].fetch_max(bits, Ordering::Relaxed);
    }

    /// # Safety
    /// The address is null or valid.
    pub(super) unsafe fn store_amax(&self, which: usize, to: *mut f32) {
        if self.fp8 {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            unsafe { store(to, f32::from_bits(self.amax[which].load(Ordering::Relaxed))) };
        }
    }

    pub(super) fn rows(
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
    pub(super) fn paged(
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

    pub(super) fn head(&self, s: Sequence, j: usize) -> Head<'_> {
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
    pub(super) fn stats_at(&self, s: &Sequence, j: usize, r: usize) -> usize {
        let heads = self.a.q_side.heads;
        match s.starts[0] {
            Some(start) => (start as usize + r) * heads + j,
            None => (s.index * heads + j) * self.a.q_side.max_seqlen + r,
        }
    }

    pub(super) fn stats_len(&self) -> usize {
        let side = &self.a.q_side;
        let rows = if side.starts.is_null() { self.a.batch * side.max_seqlen } else { side.tokens };
        rows * side.heads
    }

    /// Runs a task for each block of each head of each sequence.
    pub(super) fn for_blocks(
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
    pub(super) unsafe fn forward(&self) {
        let a = self.a;
        self.for_blocks(a.q_side.heads, (longest(&a.q_side), ROWS), |scratch, s, j, rows| {
            // SAFETY: the caller's promise; the rows are this task's own.
            unsafe { self.head(s, j).forward(scratch, rows) }
        });
        // SAFETY: the caller's promise of valid arguments.
        unsafe {
            self.store_amax(0, a.s.amax);
            self.store_amax(1, a.o.amax);
        }
    }

    /// Writes results: `rows = cast(x factor scale)`, with their largest magnitude.
    ///
    /// # Safety
    /// The rows are there and the task's own.
    pub(super) unsafe fn write(
        &self,
        (tensor, which): (&AttentionTensor, usize),
        rows: &Rows,
        range: Range<usize>,
        x: &mut [f32],
        factor: f32,
    ) {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            let cast = rows.dtype.is_fp8();
            if self.fp8 || cast {
                let scale = if cast { load(tensor.scale).unwrap_or(1.0) } else { 1.0 };
                self.raise(which, finish(x, factor, scale));
            } else if factor != 1.0 {
                multiply(x, factor);
            }
            rows.write(range, x);
        }
    }
}

impl Head<'_> {
    /// # Safety
    /// The rows are inside the sequence.
    pub(super) unsafe fn load_rows(&self, scratch: &mut Scratch, rows: &Range<usize>) {
        let a = self.shared.a;
        // SAFETY: the caller keeps to the `# Safety` section of this function.
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
    pub(super) unsafe fn load_columns(
        &self,
        scratch: &mut Scratch,
        columns: &Range<usize>,
        values: bool,
    ) {
        let a = self.shared.a;
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            self.k.read(columns.clone(), floats(&mut scratch.k, columns.len() * a.dim_qk));
            if values {
                self.v.read(columns.clone(), floats(&mut scratch.v, columns.len() * a.dim_v));
            }
        }
    }

    /// Scores of rows and columns in `x`, -inf where they are not admissible. The rows are the loaded ones from number
    /// `first` on.
    pub(super) fn scores(
        &self,
        scratch: &mut Scratch,
        first: usize,
        rows: &Range<usize>,
        columns: &Range<usize>,
    ) {
        let (a, n, depth) = (self.shared.a, columns.len(), self.shared.a.dim_qk);
        let x = floats(&mut scratch.x, rows.len() * n);
        let (q, k) = (&scratch.q[first * depth..], Matrix(&scratch.k, 1, depth));
        let update = Update::Set(self.shared.factors.scores);
        product(x, (rows.len(), n, depth), Matrix(q, depth, 1), k, update);
        for (r, x) in rows.clone().zip(x.chunks_exact_mut(n)) {
            if let Some(bias) = self.bias {
                let row = floats(&mut scratch.row, n);
                let first = bias.first + r as i64 * bias.row + columns.start as i64;
                let bias = Rows { first, row: 0, dim: n, ..bias };
                // SAFETY: the bias has an element for every score.
                unsafe { bias.read(0..1, row) };
                add(x, row);
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
    pub(super) fn seen(&self, r: usize, columns: &Range<usize>) -> Range<usize> {
        relative(&self.s.columns(&(r..r + 1)), columns)
    }

    /// What dropout multiplies the elements of a row by: 0 or `1 / (1 - dropout)`.
    pub(super) fn weights(&self, r: usize, columns: &Range<usize>, weights: &mut [f32]) {
        let (shared, a) = (self.shared, self.shared.a);
        let tiles = |side: &AttentionSide| side.max_seqlen.div_ceil(16) as u64;
        let before = self.s.index * (a.q_side.heads + a.other_heads) + a.heads_before;
        let head = (before + self.j) as u64;
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
    pub(super) unsafe fn forward(&self, scratch: &mut Scratch, rows: Range<usize>) {
        let (shared, a, v) = (self.shared, self.shared.a, self.shared.a.dim_v);
        let inside = rows.start..rows.end.min(self.s.queries).max(rows.start);
        let m = inside.len();
        let mut o = std::mem::take(&mut scratch.sums[0]);
        floats(&mut o, ROWS * v).fill(0.0);
        // Largest score, with the sink and without; sum of exponentials.
        let start = if self.sink == NEVER { 0.0 } else { 1.0 };
        let (mut most, mut seen, mut sum) = ([self.sink; ROWS], [NEVER; ROWS], [start; ROWS]);
        let all = self.s.columns(&inside);
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { self.load_rows(scratch, &inside) };
        // FP8 casts the probability itself, so the sums are computed in a sweep before.
        let sweeps = if shared.fp8 { 2 } else { 1 };
        for sweep in 0..sweeps {
            let last = sweep + 1 == sweeps;
            let mut stats = [0.0; ROWS];
            if sweep == 1 {
                for i in 0..m {
                    let log = log_sum(most[i], sum[i]);
                    stats[i] = if log == NEVER { 0.0 } else { log };
                }
            }
            for start in all.clone().step_by(COLS) {
                let columns = start..(start + COLS).min(all.end);
                let n = columns.len();
                // SAFETY: the caller's promise of valid arguments.
                unsafe { self.load_columns(scratch, &columns, last) };
                // Rows at either end that see none of these columns have nothing of them.
                let sees = |i: &usize| !self.seen(inside.start + i, &columns).is_empty();
                let Some(first) = (0..m).find(sees) else { continue };
                let end = (first..m).rfind(sees).map_or(first, |last| last + 1);
                let part = inside.start + first..inside.start + end;
                self.scores(scratch, first, &part, &columns);
                for (i, x) in (first..end).zip(scratch.x.chunks_exact_mut(n)) {
                    if sweep == 0 {
                        let here = largest(x);
                        seen[i] = seen[i].max(here);
                        let shift = most[i].max(here);
                        if shift == NEVER {
                            // A sum that is NaN stays NaN.
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
                        exponentials(x, stats[i]);
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
                    let x = &mut scratch.x[..part.len() * n];
                    shared.raise(0, round(a.q.dtype, x, shared.factors.p[0]));
                }
                let seen = |i: usize| self.seen(part.start + i, &columns);
                let (o, x) = (&mut o[first * v..], Matrix(&scratch.x, n, 1));
                product_of_seen(o, (part.len(), v, n), x, &scratch.v, seen);
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
            // SAFETY: the caller's promise of valid arguments.
            unsafe {
                a.stats.add(at).write(stats);
                if !a.max.is_null() {
                    a.max.add(at).write(max);
                }
            }
        }
        let to = shared.rows(&a.o, &self.s, 0, self.j, v);
        let factor = if shared.fp8 { shared.factors.p[1] } else { 1.0 };
        // SAFETY: the caller's promise of valid arguments.
        unsafe {
            let o = &mut o[..written.len() * v];
            shared.write((&a.o, 1), &to, written, o, factor);
        }
        scratch.sums[0] = o;
    }
}
