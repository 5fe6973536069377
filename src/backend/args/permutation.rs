//! Rows of tokens to the rows of their experts and back.

use super::operator::{Present, operator, size};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// Where the rows go: for `i < slots`, with `r = sorted[i]`,
/// `map[r % topk * tokens + r / topk] = i < rows ? i : -1`. An r that is not below `slots` is left out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RowMapArgs {
    pub sorted: *const i32,
    /// `[topk, tokens]`
    pub map: *mut i32,
    pub tokens: usize,
    pub topk: usize,
    pub rows: usize,
}

operator! {
    row_map(RowMapArgs) version 1 minor 0; |a|
}

/// `output[map[k, t]] = x` for all k and t, unless `map[k, t]` is not below `rows`, with
/// `x = input[t]`, or `input[t] * probs[t, k]` in float32. With `forward`, also
/// `prob_grads[t, k] = sum_c input[t, c] * forward[map[k, t], c]` in float32, in a fixed order; 0
/// without a row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PermuteArgs {
    /// `[tokens, cols]`
    pub input: *const c_void,
    /// `[rows, cols]`
    pub output: *mut c_void,
    /// `[topk, tokens]`
    pub map: *const i32,
    /// `[tokens, topk]`, or null.
    pub probs: *const f32,
    /// `[tokens, topk]`; null without `forward`.
    pub prob_grads: *mut f32,
    /// `[rows, cols]`, or null; null without probs.
    pub forward: *const c_void,
    pub tokens: usize,
    pub topk: usize,
    pub cols: usize,
    pub rows: usize,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
}

operator! {
    permute(PermuteArgs) version 1 minor 0; |a|
    variants match (a.probs.present(), a.forward.present()) {
        (_, true) => 2,
        (weighted, false) => u32::from(weighted),
    } => [plain, weighted, gradient];
    dtypes a.dtype;
    bytes size((a.tokens + a.rows) * a.cols, a.dtype);
}

/// `output[t] = cast(sum_k input[map[k, t]] * probs[t, k])` in float32, k ascending, over those that
/// have a row below `rows`; the probabilities are 1 if null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UnpermuteArgs {
    /// `[rows, cols]`
    pub input: *const c_void,
    /// `[tokens, cols]`
    pub output: *mut c_void,
    /// `[topk, tokens]`
    pub map: *const i32,
    /// `[tokens, topk]`, or null.
    pub probs: *const f32,
    pub tokens: usize,
    pub topk: usize,
    pub cols: usize,
    pub rows: usize,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
}

operator! {
    unpermute(UnpermuteArgs) version 1 minor 0; |a|
    variants u32::from(a.probs.present()) => [plain, weighted];
    dtypes a.dtype;
    bytes size((a.tokens + a.rows) * a.cols, a.dtype);
}

/// Sorts pairs by their keys as unsigned numbers, ascending; equal ones keep their order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SortPairsArgs {
    /// Null: only `*workspace_bytes` is written.
    pub workspace: *mut c_void,
    /// What the sort of as many pairs needs, not 0; not read.
    pub workspace_bytes: *mut usize,
    pub keys: *const u32,
    pub sorted_keys: *mut u32,
    pub values: *const i32,
    pub sorted_values: *mut i32,
    pub pairs: usize,
    /// Bits of the keys from the lowest on that may differ from 0, at most 32; 0: all of them. A hint, by which fewer
    /// passes suffice. The size of the workspace does not depend on it.
    pub key_bits: u32,
}

operator! {
    sort_pairs(SortPairsArgs) version 1 minor 1; |a|
}
