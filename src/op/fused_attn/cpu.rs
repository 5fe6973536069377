//! Reference of what moves tokens around attention (spec attention 14 to 18).
#![allow(unsafe_code)]

use crate::backend::args::*;
use crate::backend::buf::Buf;
use crate::backend::pool::parallel;
use crate::numeric::{Element, dispatch};
use crate::types::{NVTE_QKV_Format, NVTEDType, cudaStream_t};

/// First tokens of sequences. They lie on the device, so that they may be anything: differences wrap, and who
/// makes an index of them compares it with the size of what it leads to.
#[derive(Clone, Copy)]
struct Sequences<'a>(&'a [i32]);

impl Sequences<'_> {
    /// # Safety
    /// `cu` points to `sequences + 1` numbers that nobody changes.
    unsafe fn new(cu: *const i32, sequences: usize) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Buf::<i32>::new(cu.cast(), sequences + 1).slice(0, sequences + 1) })
    }

    /// First token of sequence s, in units of `unit` tokens.
    fn start(self, s: usize, unit: usize) -> usize {
        self.0[s] as u32 as usize / unit
    }

    /// Tokens of sequence s, in units of `unit` tokens.
    fn between(self, s: usize, unit: usize) -> usize {
        self.start(s + 1, unit).wrapping_sub(self.start(s, unit))
    }

    fn len(self, s: usize) -> usize {
        self.0[s + 1].wrapping_sub(self.0[s]).max(0) as usize
    }

    fn count(self) -> usize {
        self.0.len() - 1
    }

    /// The sequence of a token, empty ones left out.
    fn of(self, token: usize, unit: usize) -> usize {
        let past = self.0[1..].partition_point(|&end| end as u32 as usize / unit <= token);
        past.min(self.count() - 1)
    }
}

/// Token i of a rank (see [`PartitionArgs`]).
fn of_rank(sequences: Sequences, i: usize, rank: usize, world: usize) -> usize {
    let s = sequences.of(i, world);
    let start = sequences.start(s, world);
    let (half, r) = (sequences.between(s, world) / 2, i.wrapping_sub(start));
    let chunks = if r < half { rank } else { 2 * (world - 1) - rank };
    r.wrapping_add(start * world).wrapping_add(half.wrapping_mul(chunks))
}

/// Source and destination of row i, if it moves; they may lie outside.
fn moved(
    a: &MoveRowsArgs,
    cu: Sequences,
    valid: Option<Sequences>,
    i: usize,
) -> Option<(usize, usize)> {
    use RowMap::*;
    match a.map {
        NVTEX_ROWS_HALF => {
            let inside = i < cu.start(cu.count(), 2);
            inside.then(|| (i + cu.start(cu.of(i, 2) + a.index, 2), i))
        }
        NVTEX_ROWS_TO_RANKS | NVTEX_ROWS_FROM_RANKS => {
            let each = a.rows / a.world;
            let j = of_rank(cu, i % each, i / each, a.world);
            Some(if a.map == NVTEX_ROWS_TO_RANKS { (j, i) } else { (i, j) })
        }
        NVTEX_ROWS_VALID => {
            let s = cu.of(i, 1);
            let r = i.checked_sub(cu.start(s, 1))?;
            (r < valid?.len(s)).then_some((i, i))
        }
        NVTEX_ROWS_UNPACK | NVTEX_ROWS_PACK => {
            let (s, r) = (i / a.length, i % a.length);
            let packed = cu.start(s, 1) + r;
            let pair = if a.map == NVTEX_ROWS_UNPACK { (packed, i) } else { (i, packed) };
            (r < cu.len(s)).then_some(pair)
        }
        NVTEX_ROWS_TO_CACHE => {
            let (s, n) = (i / a.length, i % a.length);
            if n >= cu.len(s) {
                return None;
            }
            let src = match a.index {
                _ if a.index == NVTE_QKV_Format::NVTE_BSHD as usize => i,
                _ if a.index == NVTE_QKV_Format::NVTE_SBHD as usize => n * a.sequences + s,
                _ => cu.start(s, 1) + n,
            };
            let position = (valid?.len(s) + n).checked_sub(cu.len(s))?;
            let page = if a.page_table.is_null() {
                s
            } else if position / a.page < a.pages {
                // SAFETY: the page table has `pages` entries for each sequence.
                unsafe { *a.page_table.add(s * a.pages + position / a.page) as u32 as usize }
            } else {
                return None;
            };
            Some((src, page * a.page + position % a.page))
        }
    }
}

/// Rows of bytes from one place to another.
pub(crate) unsafe extern "C-unwind" fn move_rows(
    args: *const MoveRowsArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: as above.
    let (cu, valid) = unsafe {
        let valid = !a.cu_valid.is_null();
        (Sequences::new(a.cu, a.sequences), valid.then(|| Sequences::new(a.cu_valid, a.sequences)))
    };
    for outer in 0..a.outer {
        for i in 0..a.rows {
            if let Some((src, dst)) = moved(a, cu, valid, i)
                && src < a.src_rows
                && dst < a.dst_rows
            {
                let (src, dst) = (outer * a.src_outer + src, outer * a.dst_outer + dst);
                // SAFETY: as above; source and destination are distinct.
                unsafe {
                    let from = a.src.cast::<u8>().add(src * a.row_bytes);
                    let to = a.dst.cast::<u8>().add(dst * a.row_bytes);
                    to.copy_from_nonoverlapping(from, a.row_bytes);
                }
            }
        }
    }
    Outcome::OK
}

/// How many sequences move: up to the last descent.
fn active(from: &[i32]) -> usize {
    let descent = from.windows(2).rposition(|pair| pair[1] < pair[0]);
    descent.map_or(from.len(), |i| i + 1)
}

/// Sequences of a cache to the front.
pub(crate) unsafe extern "C-unwind" fn reindex_cache(
    args: *const ReindexCacheArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: as above.
    let (from, new, cached) = unsafe {
        (
            Buf::<i32>::new(a.from.cast(), a.sequences).slice(0, a.sequences),
            Sequences::new(a.cu_new, a.sequences),
            Sequences::new(a.cu_cached, a.sequences),
        )
    };
    let slot = a.page * a.row_bytes;
    for (i, &source) in from.iter().enumerate().take(active(from)) {
        let source = source as u32 as usize;
        if (from[0] == 0 && source == i) || source >= a.slots {
            continue;
        }
        let bytes = cached.len(i).saturating_sub(new.len(i)).min(a.page) * a.row_bytes;
        let cache = a.cache.cast::<u8>();
        // SAFETY: as above, both slots exist; a slot may be copied onto itself.
        unsafe { cache.add(i * slot).copy_from(cache.add(source * slot), bytes) };
    }
    Outcome::OK
}

/// Gradients of a step into those of all.
pub(crate) unsafe extern "C-unwind" fn grad_correction(
    args: *const GradCorrectionArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    match a.dtype {
        // Codes are copied like any other bytes.
        // SAFETY: as above.
        NVTEDType::kNVTEByte => unsafe { correct_grad::<crate::numeric::E4M3>(a) },
        _ => {
            return dispatch!(a.dtype, [F32, F16, BF16], T => {
            // SAFETY: as above, and the dtype is that of the arguments.
            unsafe { correct_grad::<T>(a) };
            Outcome::OK
        }, else Outcome::unimplemented("grad_correction: dtype"));
        }
    }
    Outcome::OK
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn correct_grad<T: Element>(a: &GradCorrectionArgs) {
    let step_tokens = if a.full { a.tokens } else { a.tokens / 2 };
    // SAFETY: the caller's promise; grad and step are distinct.
    let (cu, grad, step) = unsafe {
        (
            Sequences::new(a.cu, a.sequences),
            Buf::<T>::new(a.grad, a.outer * a.tokens * a.width),
            Buf::<T>::new(a.step, a.outer * step_tokens * a.width),
        )
    };
    let tokens = a.tokens.min(cu.start(cu.count(), 1));
    for outer in 0..a.outer {
        for t in 0..tokens {
            let s = cu.of(t, 1);
            let (start, half) = (cu.start(s, 1), cu.len(s) / 2);
            let r = t.wrapping_sub(start);
            let (op, in_half) =
                if r < half { (a.first, r) } else { (a.second, r.wrapping_sub(half)) };
            let u = if a.full { t } else { (start / 2).wrapping_add(in_half) };
            if matches!(op, HalfOp::NVTEX_HALF_COPY | HalfOp::NVTEX_HALF_ADD) && u >= step_tokens {
                continue;
            }
            // SAFETY: as above.
            let to = unsafe { grad.slice_mut((outer * a.tokens + t) * a.width, a.width) };
            let from = || {
                // SAFETY: as above.
                unsafe { step.slice((outer * step_tokens + u) * a.width, a.width) }
            };
            match op {
                HalfOp::NVTEX_HALF_NONE => {}
                HalfOp::NVTEX_HALF_ZERO => to.fill(T::default()),
                HalfOp::NVTEX_HALF_COPY => to.copy_from_slice(from()),
                HalfOp::NVTEX_HALF_ADD => {
                    for (x, y) in to.iter_mut().zip(from()) {
                        *x = T::from_f32(x.to_f32() + y.to_f32());
                    }
                }
            }
        }
    }
}

/// `log(exp(a) + exp(b))`
fn log_sum(a: f32, b: f32) -> f32 {
    let (most, least) = (a.max(b), a.min(b));
    if most == f32::NEG_INFINITY { most } else { most + (least - most).exp().ln_1p() }
}

/// Places in lse and in step of token t of the halves, for a head.
struct HalfPlace {
    lse: usize,
    step: usize,
}

impl HalfPlace {
    /// In a row of each, at a position in it; none if that is past the row.
    fn new(row: usize, [lse_len, step_len]: [usize; 2], [lse, step]: [usize; 2]) -> Option<Self> {
        let inside = lse < lse_len && step < step_len;
        inside.then(|| Self { lse: row * lse_len + lse, step: row * step_len + step })
    }
}

fn half_place(
    cu: Sequences,
    (packed, heads): (bool, usize),
    lens: [usize; 2],
    head: usize,
    t: usize,
) -> Option<HalfPlace> {
    let s = cu.of(t, 2);
    if packed {
        return HalfPlace::new(head, lens, [t + cu.start(s + 1, 2), t]);
    }
    let r = t.wrapping_sub(cu.start(s, 2));
    HalfPlace::new(s * heads + head, lens, [r.wrapping_add(cu.between(s, 2)), r])
}

/// Logarithms of the second halves.
pub(crate) unsafe extern "C-unwind" fn half_lse(
    args: *const HalfLseArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: as above.
    let cu = unsafe { Sequences::new(a.cu, a.sequences) };
    // No more than step has room for, whatever the sequences say.
    let room = a.step_len * if a.packed { 1 } else { a.sequences };
    for head in 0..a.heads {
        for t in 0..cu.start(cu.count(), 2).min(room) {
            let lens = [a.lse_len, a.step_len];
            let Some(at) = half_place(cu, (a.packed, a.heads), lens, head, t) else { continue };
            // SAFETY: as above.
            let (lse, step) = unsafe { (&mut *a.lse.add(at.lse), &mut *a.step.add(at.step)) };
            if a.correct { *lse = log_sum(*lse, *step) } else { *step = *lse }
        }
    }
    Outcome::OK
}

/// `x exp(from - to)`; 0 for 0.
fn rescaled(x: f32, from: f32, to: f32) -> f32 {
    if x == 0.0 || from == f32::NEG_INFINITY { 0.0 } else { x * (from - to).exp() }
}

/// Outputs of a step into those of all.
pub(crate) unsafe extern "C-unwind" fn out_correction(
    args: *const OutCorrectionArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: as above, and the dtype is that of the arguments.
        unsafe { correct_out::<T>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("out_correction: dtype"))
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn correct_out<T: Element>(a: &OutCorrectionArgs) {
    // SAFETY: the caller's promise; the buffers are distinct.
    let cu = unsafe { Sequences::new(a.cu, a.sequences) };
    let unit = if a.second_half { 2 } else { 1 };
    for t in 0..a.tokens.min(cu.start(cu.count(), unit)) {
        let s = cu.of(t, unit);
        let token = if a.second_half { t + cu.start(s + 1, 2) } else { t };
        if token >= a.out_tokens {
            continue;
        }
        for head in 0..a.heads {
            let lens = [a.lse_len, a.step_len];
            let at = if a.second_half {
                half_place(cu, (a.packed, a.heads), lens, head, t)
            } else if a.packed {
                HalfPlace::new(head, lens, [t; 2])
            } else {
                let r = t.wrapping_sub(cu.start(s, 1));
                HalfPlace::new(s * a.heads + head, lens, [r; 2])
            };
            let Some(at) = at else { continue };
            let start = |token| (token * a.heads + head) * a.width;
            // SAFETY: as above.
            unsafe {
                let (old, lse) = (*a.old_lse.add(at.lse), *a.lse.add(at.lse));
                let step_lse = *a.step_lse.add(at.step);
                for i in 0..a.width {
                    let out = &mut *a.out.cast::<T>().add(start(token) + i);
                    let step = *a.step.cast::<T>().add(start(t) + i);
                    let sum =
                        rescaled(out.to_f32(), old, lse) + rescaled(step.to_f32(), step_lse, lse);
                    *out = T::from_f32(sum);
                }
            }
        }
    }
}

/// Tokens of a rank.
pub(crate) unsafe extern "C-unwind" fn partition(
    args: *const PartitionArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        let a = &*args;
        let cu = Sequences::new(a.cu, a.sequences);
        let indices = Buf::<i32>::new(a.indices.cast(), a.tokens).slice_mut(0, a.tokens);
        for (i, index) in indices.iter_mut().enumerate() {
            *index = of_rank(cu, i, a.rank, a.world) as i32;
        }
    }
    Outcome::OK
}

/// State of a random generator.
pub(crate) unsafe extern "C-unwind" fn seed(args: *const SeedArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        let a = &*args;
        let base = |at: *const i64| if at.is_null() { 0 } else { at.read() };
        a.state.write(base(a.seed_at).wrapping_add(a.seed));
        a.state.add(1).write(base(a.offset_at).wrapping_add(a.offset));
    }
    Outcome::OK
}

/// An entry that tasks share.
struct Shared<'a>(&'a CopyRowsEntry);
// SAFETY: tasks write disjoint rows.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    fn copy(&self, row: usize) {
        let e = self.0;
        let at = [row / (e.dims[1] * e.dims[2]), row / e.dims[2] % e.dims[1], row % e.dims[2]];
        let offset =
            |steps: [usize; 3]| -> usize { std::iter::zip(at, steps).map(|(i, s)| i * s).sum() };
        // SAFETY: the caller of the table entry vouches for the rows.
        unsafe {
            let from = e.src.cast::<u8>().add(offset(e.src_steps));
            let to = e.dst.cast::<u8>().add(offset(e.dst_steps));
            to.copy_from_nonoverlapping(from, e.src_bytes);
            to.add(e.src_bytes).write_bytes(0, e.dst_bytes - e.src_bytes);
        }
    }
}

/// Rows from one order to another.
pub(crate) unsafe extern "C-unwind" fn copy_rows(
    args: *const CopyRowsArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: as above.
    let entries = unsafe { std::slice::from_raw_parts(a.entries, a.num_entries) };
    for entry in entries.iter().map(Shared) {
        let rows: usize = entry.0.dims.iter().product();
        parallel(rows).with_min_len(256).for_each(|row| entry.copy(row));
    }
    Outcome::OK
}
