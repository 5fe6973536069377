//! Reference of what moves rows of tokens (spec attention 14, 16 to 18).

use crate::backend::args::*;
use crate::backend::buf::Buf;
use crate::backend::pool::parallel;
use crate::types::{NVTE_QKV_Format, cudaStream_t};

/// First tokens of sequences. They lie on the device, so that they may be anything: differences wrap, and who
/// makes an index of them compares it with the size of what it leads to.
#[derive(Clone, Copy)]
pub(super) struct Sequences<'a>(&'a [i32]);

impl Sequences<'_> {
    /// # Safety
    /// `cu` points to `sequences + 1` numbers that nobody changes.
    pub(super) unsafe fn new(cu: *const i32, sequences: usize) -> Self {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        Self(unsafe { Buf::<i32>::new(cu.cast(), sequences + 1).slice(0, sequences + 1) })
    }

    /// First token of sequence s, in units of `unit` tokens.
    pub(super) fn start(self, s: usize, unit: usize) -> usize {
        self.0[s] as u32 as usize / unit
    }

    /// Tokens of sequence s, in units of `unit` tokens.
    pub(super) fn between(self, s: usize, unit: usize) -> usize {
        self.start(s + 1, unit).wrapping_sub(self.start(s, unit))
    }

    pub(super) fn len(self, s: usize) -> usize {
        self.0[s + 1].wrapping_sub(self.0[s]).max(0) as usize
    }

    pub(super) fn count(self) -> usize {
        self.0.len() - 1
    }

    /// The sequence of a token, empty ones left out.
    pub(super) fn of(self, token: usize, unit: usize) -> usize {
        let past = self.0[1..].partition_point(|&end| end as u32 as usize / unit <= token);
        past.min(self.count() - 1)
    }
}

/// Token i of a rank (see [`PartitionArgs`]).
pub(super) fn of_rank(sequences: Sequences, i: usize, rank: usize, world: usize) -> usize {
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
    // SAFETY: the arguments are valid: their arrays have an entry more than there are sequences.
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
                // SAFETY: both rows lie inside their tensors, which are distinct.
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
    // SAFETY: the arguments are valid: their arrays have entries for all sequences.
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
        // SAFETY: both slots exist, and no more than a slot is copied; it may be copied onto itself.
        unsafe { cache.add(i * slot).copy_from(cache.add(source * slot), bytes) };
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
    // SAFETY: the arguments are valid: the array has as many entries.
    let entries = unsafe { std::slice::from_raw_parts(a.entries, a.num_entries) };
    for entry in entries.iter().map(Shared) {
        let rows: usize = entry.0.dims.iter().product();
        parallel(rows).with_min_len(256).for_each(|row| entry.copy(row));
    }
    Outcome::OK
}
