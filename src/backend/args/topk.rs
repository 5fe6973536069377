//! The greatest elements of rows.

use super::operator::{operator, size};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// Of each row, the `k` greatest of its first elements, in the order of their indices; of equal ones
/// those of the lowest indices. Their order is that of the bits: NaN without a sign above all, 0 above -0, NaN
/// with a sign below all. A row of at most k elements comes whole, with keys of -1 and indices of -1
/// after it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TopkArgs {
    /// `[rows, cols]`
    pub keys: *const c_void,
    /// `[rows]`: how many elements of each row count, moved to `[0, cols]`; null for all.
    pub lengths: *const i32,
    /// `[rows, k]`
    pub top_keys: *mut c_void,
    /// `[rows, k]`
    pub top_indices: *mut i32,
    /// `rows * (NVTEX_TOPK_ROW_BYTES + 8 * chunks)` bytes, of `ceil(cols / NVTEX_TOPK_CHUNK)` chunks, aligned
    /// to 16.
    pub workspace: *mut c_void,
    pub rows: usize,
    pub cols: usize,
    pub k: usize,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
}

operator! {
    topk(TopkArgs) version 1 minor 0; |a|
    dtypes a.dtype;
    features { LENGTHS = a.lengths }
    bytes size(a.rows * (a.cols + a.k), a.dtype) + 4 * a.rows * a.k;
}

/// Elements of a row whose chosen ones are counted together.
pub const NVTEX_TOPK_CHUNK: usize = 8192;
/// Bytes of the workspace for each row, and as many again as `2 * 4` for each of its chunks.
pub const NVTEX_TOPK_ROW_BYTES: usize = 8192 + 16;
