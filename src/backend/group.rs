//! Members of grouped tensors on the CPU backend.
#![allow(unsafe_code)]

use super::args::Group;
use super::buf::Buf;
use super::memory::room;
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
    /// Whatever the arrays hold, each member lies inside of the data, and its scales in theirs: see [`Group`].
    ///
    /// # Safety
    /// The arrays have the lengths that [`Group`] says.
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
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let array = |ptr: *const i64, len| unsafe { Buf::<i64>::optional(ptr.cast(), len) };
        // A negative value becomes one that is too large.
        // SAFETY: nobody writes to the arrays while the backend runs.
        let at = |array: Option<Buf<i64>>, i| array.map(|a| unsafe { a.slice(i, 1)[0] } as usize);
        let (first, last) = (array(self.first_dims, n), array(self.last_dims, n));
        let offsets = array(self.offsets, n + 1);
        let rooms = match mode {
            NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING => [usize::MAX; 2],
            _ => [self.row_scales, self.col_scales],
        };
        let shape = |index| {
            let shape = match (at(first, index), at(last, index)) {
                (None, None) => (rows / n, cols),
                (Some(first), None) if first <= self.most_dim => (first, cols),
                (None, Some(last)) if last <= self.most_dim => (rows, last),
                (Some(first), Some(last))
                    if first.checked_mul(last).is_some_and(|numel| numel <= rows * cols)
                        && first.max(last) <= self.most_dim =>
                {
                    (first, last)
                }
                _ => (0, 0),
            };
            let scales = [false, true].map(|colwise| mode.scaling().scale_entries(colwise, shape));
            match scales[0] <= rooms[0] && scales[1] <= rooms[1] {
                true => (shape, scales),
                false => ((0, 0), [0; 2]),
            }
        };
        let mut members = room(n);
        // Where the next member's data and scales begin unless the group is wrong.
        let (mut data, mut totals) = (0, [0usize; 2]);
        for index in 0..n {
            let ((rows, cols), scales) = shape(index);
            let begin = |at: usize, length, end| at.min(end - length);
            data = begin(at(offsets, index).unwrap_or(data), rows * cols, self.elements);
            members.push(Member {
                index,
                rows,
                cols,
                at: data,
                row_scales: begin(totals[0], scales[0], rooms[0]),
                col_scales: begin(totals[1], scales[1], rooms[1]),
            });
            data += rows * cols;
            totals = [0, 1].map(|i| totals[i].saturating_add(scales[i]));
        }
        members
    }
}
