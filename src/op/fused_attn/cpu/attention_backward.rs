//! Reference of the gradients of attention. The scores are computed anew for each result, whose terms are added
//! in a fixed order.

use super::attention::{COLS, Head, NEVER, ROWS, Scratch, Shared};
use super::sequence::{Rows, Sequence, longest, relative};
use super::tile::*;
use crate::backend::args::AttentionTensor;
use crate::backend::buf::{Buf, load, store};
use crate::backend::memory::zeros;
use crate::backend::pool::parallel;
use crate::numeric::{Element, dispatch};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl Shared<'_> {
    /// # Safety
    /// The arguments are valid.
    pub(super) unsafe fn backward(&self) {
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
            // SAFETY: the caller's promise of valid arguments.
            unsafe { self.head(s, j).query_gradients(scratch, rows, d) }
        });
        self.for_blocks(groups, (longest(&a.kv_side), COLS), |scratch, s, group, columns| {
            // SAFETY: the caller's promise of valid arguments.
            unsafe { self.key_gradients(scratch, s, group, columns, d) }
        });
        // SAFETY: the caller's promise of valid arguments.
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
            if let Some(old) = load::<f32>(a.grads_amax) {
                let amax = self.amax[1..].iter().map(|bits| bits.load(Relaxed)).max();
                let amax = f32::from_bits(amax.unwrap_or(0));
                let rounded =
                    dispatch!(a.dq.dtype, [F16, BF16], T => T::from_f32(amax).to_f32(), else amax);
                store(a.grads_amax, rounded.max(old));
            }
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
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            unsafe { head.load_columns(scratch, &inside, true) };
            let seen = s.rows(&inside);
            for start in seen.clone().step_by(ROWS) {
                let rows = start..(start + ROWS).min(seen.end);
                let m = rows.len();
                // SAFETY: the caller's promise of valid arguments.
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
        // In dense tensors the rows past the end of the sequence become 0.
        let written = if s.starts[1].is_some() { inside } else { columns };
        let len = written.len();
        // SAFETY: the caller's promise of valid arguments.
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
                    // SAFETY: the caller keeps to the `# Safety` section of this function.
                    unsafe { here.load_columns(scratch, &inside, true) };
                    let seen = s.rows(&inside);
                    let seen = seen.start.max(rows.start)..seen.end.min(rows.end);
                    for start in seen.clone().step_by(ROWS) {
                        let part = start..(start + ROWS).min(seen.end);
                        // SAFETY: the caller's promise of valid arguments.
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
            // SAFETY: the caller's promise of valid arguments; the tile is the task's own.
            unsafe { to.write(range, &sums) };
        });
    }

    /// # Safety
    /// The arguments are valid.
    unsafe fn sink_gradients(&self, d: &[f32]) {
        let a = self.a;
        // SAFETY: the caller keeps to the `# Safety` section of this function.
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
    /// `D = sum do o` of some rows.
    ///
    /// # Safety
    /// The arguments are valid, the rows the task's own.
    unsafe fn row_sums(&self, scratch: &mut Scratch, rows: Range<usize>, d: Buf<f32>) {
        let (shared, a, v) = (self.shared, self.shared.a, self.shared.a.dim_v);
        let inside = rows.start..rows.end.min(self.s.queries).max(rows.start);
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            self.load_rows(scratch, &inside);
            let o = shared.rows(&a.o, &self.s, 0, self.j, v);
            o.read(inside.clone(), floats(&mut scratch.v, inside.len() * v));
        }
        let pairs = scratch.d_o.chunks_exact(v).zip(scratch.v.chunks_exact(v));
        for (r, (d_o, o)) in inside.zip(pairs) {
            let sum: f64 = d_o.iter().zip(o).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
            let at = shared.stats_at(&self.s, self.j, r);
            // SAFETY: the caller's promise of valid arguments.
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
        self.scores(scratch, 0, rows, columns);
        floats(&mut scratch.dp, m * n);
        scratch.dp.truncate(m * n);
        let (d_o, values) = (Matrix(&scratch.d_o, v, 1), Matrix(&scratch.v, 1, v));
        product(&mut scratch.dp, (m, n, v), d_o, values, Update::Set(1.0));
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
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { self.load_rows(scratch, &inside) };
        for start in all.clone().step_by(COLS) {
            let columns = start..(start + COLS).min(all.end);
            // SAFETY: the caller's promise of valid arguments.
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
        // SAFETY: the caller's promise of valid arguments.
        unsafe {
            let dq = &mut dq[..written.len() * depth];
            shared.write((&a.dq, 1), &to, written, dq, shared.factors.dq);
        }
        scratch.sums[0] = dq;
    }
}
