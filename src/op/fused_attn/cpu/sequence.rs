//! Where the rows of a sequence lie in the tensors of an attention, and which scores of it count.

use crate::backend::args::{AttentionArgs, AttentionSide};
use crate::backend::buf::Buf;
use crate::numeric::dispatch;
use crate::op::gemm::cpu::{from_floats, to_floats};
use crate::types::NVTEDType;
use std::ffi::c_void;
use std::ops::Range;

/// Rows of one head of a sequence in memory.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) data: *mut c_void,
    pub(super) dtype: NVTEDType,
    /// Elements from `data` to row 0, and from row to row.
    pub(super) first: i64,
    pub(super) row: i64,
    pub(super) dim: usize,
    pub(super) pages: Option<Pages>,
}

/// Pages of a sequence.
#[derive(Clone, Copy)]
pub(super) struct Pages {
    /// The page numbers of the sequence.
    pub(super) table: *const i32,
    /// Rows of a page.
    pub(super) size: usize,
    /// Elements from page to page.
    pub(super) stride: i64,
    /// Page numbers past it read this one: the table lies on the device and may hold anything.
    pub(super) last: u32,
}

impl Rows {
    pub(super) fn at(&self, r: usize) -> *mut c_void {
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
    pub(super) unsafe fn read(&self, rows: Range<usize>, to: &mut [f32]) {
        dispatch!(self.dtype, [F32, F16, BF16, E4M3, E5M2], T => {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
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
    pub(super) unsafe fn write(&self, rows: Range<usize>, from: &[f32]) {
        dispatch!(self.dtype, [F32, F16, BF16, E4M3, E5M2], T => {
            for (r, from) in rows.zip(from.chunks_exact(self.dim)) {
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                let to = unsafe { Buf::<T>::new(self.at(r), self.dim).slice_mut(0, self.dim) };
                from_floats(from, to);
            }
        }, else {})
    }
}

/// A sequence: its rows and columns, where they begin if they are packed, and which scores count.
#[derive(Clone, Copy)]
pub(super) struct Sequence {
    pub(super) index: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) starts: [Option<i64>; 2],
    /// Row r sees the columns from `r + left` to `r + right`.
    pub(super) left: i64,
    pub(super) right: i64,
}

impl Sequence {
    /// # Safety
    /// The arguments are valid.
    pub(super) unsafe fn new(a: &AttentionArgs, index: usize) -> Self {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let ((queries, q_start), (keys, kv_start)) =
            unsafe { (extent(&a.q_side, index), extent(&a.kv_side, index)) };
        let shift = if a.bottom_right { keys as i64 - queries as i64 } else { 0 };
        let bound = |window: i64, sign: i64, none: i64| match window {
            -1 => none,
            // Sequences are shorter than 2^48, so that a window of this size is unbounded, and the sum
            // cannot overflow.
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
    pub(super) fn columns(&self, rows: &Range<usize>) -> Range<usize> {
        band(rows, self.left, self.right, self.keys)
    }

    /// Rows that see columns.
    pub(super) fn rows(&self, columns: &Range<usize>) -> Range<usize> {
        band(columns, -self.right, -self.left, self.queries)
    }
}

/// The range of the other side, which has `length` rows or columns, that a range of one side meets.
pub(super) fn band(range: &Range<usize>, low: i64, high: i64, length: usize) -> Range<usize> {
    let clip = |position: i64| position.clamp(0, length as i64) as usize;
    let (start, end) = (clip(range.start as i64 + low), clip(range.end as i64 + high));
    start..if range.is_empty() { start } else { end.max(start) }
}

/// The part of a range that lies in another, counted from the start of that.
pub(super) fn relative(range: &Range<usize>, inside: &Range<usize>) -> Range<usize> {
    let clip = |x: usize| x.clamp(inside.start, inside.end) - inside.start;
    clip(range.start)..clip(range.end)
}

/// Length and, of a packed side, first row of a sequence. Never more than there is.
///
/// # Safety
/// The arrays of the side are valid.
pub(super) unsafe fn extent(side: &AttentionSide, index: usize) -> (usize, Option<i64>) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
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

/// Rows of a side that a sequence can have: packed sequences have no more than there are tokens.
pub(super) fn longest(side: &AttentionSide) -> usize {
    side.max_seqlen.min(side.tokens)
}
