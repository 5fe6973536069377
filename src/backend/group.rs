//! Members of grouped tensors on the CPU backend.
#![allow(unsafe_code)]

use super::args::Group;
use super::buf::Buf;
use crate::types::NVTEScalingMode;

/// One matrix of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    /// Its number in the group.
    pub index: usize,
    pub rows: usize,
    pub cols: usize,
    /// First element in the buffers of data.
    pub at: usize,
    /// First entry in the buffers of row-wise and of column-wise scales.
    pub row_scales: usize,
    pub col_scales: usize,
}

impl Group {
    /// The members of a group of the logical shape `[rows, cols]`; for a single matrix that one.
    /// `mode` says how long the scales of each are.
    ///
    /// # Safety
    /// The arrays have the lengths that [`Group`] says; no member is larger than the buffers.
    pub(crate) unsafe fn members(
        &self,
        (rows, cols): (usize, usize),
        mode: NVTEScalingMode,
    ) -> Vec<Member> {
        let single = Member { index: 0, rows, cols, at: 0, row_scales: 0, col_scales: 0 };
        if self.num_tensors == 0 {
            return vec![single];
        }
        let n = self.num_tensors;
        let uniform_rows = if self.last_dims.is_null() { rows / n } else { rows };
        // SAFETY: the caller's promise; lengths on the device are not negative.
        let array = |ptr: *const i64, len| unsafe { Buf::<i64>::optional(ptr.cast(), len) };
        // SAFETY: as above.
        let at = |array: Option<Buf<i64>>, i| array.map(|a| unsafe { a.slice(i, 1)[0] } as usize);
        let (first, last) = (array(self.first_dims, n), array(self.last_dims, n));
        let offsets = array(self.offsets, n + 1);
        let mut members = Vec::with_capacity(n);
        let mut next = single;
        for index in 0..n {
            next.index = index;
            next.rows = at(first, index).unwrap_or(uniform_rows);
            next.cols = at(last, index).unwrap_or(cols);
            next.at = at(offsets, index).unwrap_or(next.at);
            members.push(next);
            next.at += next.rows * next.cols;
            next.row_scales += scale_entries(mode, false, (next.rows, next.cols));
            next.col_scales += scale_entries(mode, true, (next.rows, next.cols));
        }
        members
    }
}

/// First and second dimension of the scale matrix of a `[rows, cols]` matrix in blocks, without
/// (FP8 blocks) or with (MXFP8) padding.
pub(crate) fn scale_dims(
    mode: NVTEScalingMode,
    colwise: bool,
    (rows, cols): (usize, usize),
) -> (usize, usize) {
    use NVTEScalingMode::*;
    let (across, down) = (cols.div_ceil(128), rows.div_ceil(128));
    match (mode, colwise) {
        (NVTE_MXFP8_1D_SCALING, false) => (128 * down, 4 * across),
        (NVTE_MXFP8_1D_SCALING, true) => (4 * down, 128 * across),
        (NVTE_BLOCK_SCALING_1D, false) => (across, rows),
        (NVTE_BLOCK_SCALING_1D, true) => (down, cols),
        (_, false) => (down, across),
        (_, true) => (across, down),
    }
}

/// Elements from one row of a member's scale matrix to the next: a multiple of 4.
pub(crate) fn scale_pitch(mode: NVTEScalingMode, colwise: bool, shape: (usize, usize)) -> usize {
    scale_dims(mode, colwise, shape).1.next_multiple_of(4)
}

/// Entries of a member's scale matrix with its padding; 1 in mode 0.
pub(crate) fn scale_entries(mode: NVTEScalingMode, colwise: bool, shape: (usize, usize)) -> usize {
    if mode == NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING {
        return 1;
    }
    scale_dims(mode, colwise, shape).0 * scale_pitch(mode, colwise, shape)
}
