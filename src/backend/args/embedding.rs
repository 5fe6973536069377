//! Tables of rows for tokens.

use super::operator::{operator, size};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// `output[t] = cast(scale * weight[tokens[t] - start] + position_weight[p])` in float32, where p is
/// `positions[t]`, or `t % period` without them. A token whose row is not here (below `start`, or from
/// `start + rows` on) and a position that the table does not have give rows of 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingArgs {
    /// `[tokens]`
    pub tokens: *const c_void,
    /// `[rows, cols]`
    pub weight: *const c_void,
    /// `[tokens]`, of the dtype of the tokens, or null.
    pub positions: *const c_void,
    /// `[position_rows, cols]` of the dtype of the weight, or null.
    pub position_weight: *const c_void,
    /// `[count, cols]`
    pub output: *mut c_void,
    /// Null, or a number to which the tokens that are not in `[0, total)` and the positions that are not in
    /// `[0, position_rows)` are added.
    pub wrong: *mut i32,
    pub count: usize,
    pub rows: usize,
    pub cols: usize,
    pub position_rows: usize,
    pub start: usize,
    pub total: usize,
    /// At least 1.
    pub period: usize,
    pub scale: f32,
    /// F32, F16 or BF16.
    pub weight_dtype: NVTEDType,
    /// F32, F16 or BF16.
    pub output_dtype: NVTEDType,
    /// Int32 or Int64.
    pub token_dtype: NVTEDType,
}

operator! {
    embedding(EmbeddingArgs) version 1 minor 0; |a|
    dtypes a.weight_dtype, a.output_dtype;
    features { POSITIONS = a.position_weight, WRONG = a.wrong }
    bytes size(a.count * a.cols, a.weight_dtype) + size(a.count * a.cols, a.output_dtype);
}

/// Keys to sort the rows of a gradient by, and the numbers of these rows: `keys[i] = indices[i] - start`, or
/// `i % period` without indices, and `rows` if that is not in `[0, rows)`; `values[i] = i`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RowKeysArgs {
    /// `[count]`, or null.
    pub indices: *const c_void,
    /// `[count]`
    pub keys: *mut u32,
    /// `[count]`
    pub values: *mut i32,
    pub count: usize,
    /// Less than 2^32.
    pub rows: usize,
    pub start: usize,
    /// At least 1.
    pub period: usize,
    /// Int32 or Int64.
    pub index_dtype: NVTEDType,
}

operator! {
    row_keys(RowKeysArgs) version 1 minor 0; |a|
}

/// `output[k] = cast(output[k] + scale * sum input[values[i]])` over the i with `keys[i] = k`, for all k below
/// `rows` that are among the keys. The sum is in float32 and an order that is fixed by the keys: that of i within
/// parts of [`NVTEX_ROW_SUM_PART`] of them, then that of the parts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SumRowsArgs {
    /// `[count, cols]`
    pub input: *const c_void,
    /// `[count]`, ascending.
    pub keys: *const u32,
    /// `[count]`
    pub values: *const i32,
    /// `[rows, cols]`
    pub output: *mut c_void,
    /// `[2 * ceil(count / NVTEX_ROW_SUM_PART), cols]` floats, aligned to 16 bytes.
    pub workspace: *mut f32,
    pub count: usize,
    pub rows: usize,
    pub cols: usize,
    pub scale: f32,
    /// F32, F16 or BF16.
    pub input_dtype: NVTEDType,
    /// F32, F16 or BF16.
    pub output_dtype: NVTEDType,
}

operator! {
    sum_rows(SumRowsArgs) version 1 minor 0; |a|
    dtypes a.input_dtype, a.output_dtype;
    bytes size(a.count * a.cols, a.input_dtype) + 2 * size(a.rows.min(a.count) * a.cols, a.output_dtype);
}

/// Sorted rows that are added one after the other.
pub const NVTEX_ROW_SUM_PART: usize = 32;
