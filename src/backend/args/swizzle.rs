//! Orders of block scales.

use super::group::Group;
use super::operator::operator;
use std::ffi::c_void;

/// A matrix of one-byte block scales for a product: `[m, k]`, a row for each row of the operand and a
/// column for each block along the contraction.
///
/// Entry (i, j) lies at `i * k + j` in the compact order (`j * m + i` if `transposed`), and at
/// `((i / 128) * (k / 4) + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4` in tiles.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SwizzleEntry {
    pub source: *const c_void,
    /// Memory other than the source.
    pub destination: *mut c_void,
    /// A multiple of 128. Groups: this and the next three follow from the members, and are not read.
    pub m: usize,
    /// A multiple of 4.
    pub k: usize,
    /// To tiles: entries with i >= valid_m or j >= valid_k become 0.
    pub valid_m: usize,
    pub valid_k: usize,
    pub transposed: bool,
}

/// Moves block scales from the compact order to tiles, or back.
///
/// With a group, an entry stands for the matrices of all members, one after the other: those of the
/// row-wise scales (`transposed`: of the column-wise ones) of MXFP8 data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SwizzleArgs {
    /// Host array; groups: at most 2.
    pub entries: *const SwizzleEntry,
    pub num_entries: usize,
    /// From tiles to the compact order, padding included.
    pub unswizzle: bool,
    /// Rows of the data of the group.
    pub rows: usize,
    pub cols: usize,
    pub group: Group,
}

operator! {
    swizzle(SwizzleArgs) version 1 minor 0; |a|
    variants u32::from(a.unswizzle) => [to_tiles, from_tiles];
    features { GROUP = a.group }
}

/// Exponents of the row-wise scales of FP8 blocks as E8M0 codes of MXFP8 blocks, in tiles: all four
/// codes of 128 columns are `bits(scale) >> 23 & 0xFF`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaleCodesArgs {
    /// 1D: `[cols / 128][row]`; `square`: `[rows / 128][cols / 128]`.
    pub scales: *const f32,
    /// Tiles of `[rows, cols / 32]` codes; those of rows past the end are 0 (`square`: those of the
    /// block).
    pub codes: *mut c_void,
    pub rows: usize,
    pub cols: usize,
    /// Elements from one row of `scales` to the next.
    pub stride: usize,
    pub square: bool,
}

operator! {
    scale_codes(ScaleCodesArgs) version 1 minor 0; |a|
    features { SQUARE = a.square }
}
