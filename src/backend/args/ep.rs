//! The rows that tokens get among those of their experts.

use super::operator::{operator, when};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// The rows of the choices `i = t * topk + k`, whose expert is `chosen[i] - first`, none unless it is below `experts`.
/// Each expert has as many rows as choices, in their order, one after the other, padded to the next multiple of
/// `alignment` unless it has none; the experts' rows follow each other. A row that is not below `capacity`
/// does not exist.
///
/// With `group` the expert is `(chosen[i] - first) / group`, as of ranks that have `group` experts each, and of the choices
/// of a token that have the same one only the first has a row. With `limit` an expert has at most that many rows before
/// the padding, and later choices have none. With `fixed` each expert has `limit` rows, however many have chosen it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExpertRowsArgs {
    /// `[tokens, topk]` in Int32 or Int64.
    pub chosen: *const c_void,
    /// `[2]`: becomes `tokens` and `topk`.
    pub sizes: *mut i64,
    /// `[experts]`: becomes the first row of each expert.
    pub starts: *mut i64,
    /// `[tokens, topk]`: becomes the row of each choice, -1 without one.
    pub rows: *mut i32,
    /// `[planes, tokens]`: becomes the same the other way round, -1 from `topk` on.
    pub map: *mut i32,
    /// `[experts]` in Int32 or Int64: becomes the number of rows below `capacity`, padding included; or null.
    pub counts: *mut c_void,
    /// `[1]`, as `counts`: becomes the number of all rows, also beyond `capacity`; or null.
    pub total: *mut c_void,
    /// May be 0, as `topk`.
    pub tokens: usize,
    pub topk: usize,
    /// At least `topk`.
    pub planes: usize,
    pub experts: usize,
    /// At least 1.
    pub alignment: usize,
    /// At most 2^31 - 1.
    pub capacity: usize,
    pub chosen_dtype: NVTEDType,
    pub counts_dtype: NVTEDType,
    /// `[experts]`: becomes the number of choices of each expert, also of those that have no row; or null.
    pub lengths: *mut i64,
    pub first: usize,
    /// 0: an expert is a number of `chosen`.
    pub group: usize,
    /// 0: none.
    pub limit: usize,
    /// Only with a limit.
    pub fixed: bool,
}

operator! {
    expert_rows(ExpertRowsArgs) version 1 minor 1; |a|
    dtypes a.chosen_dtype, when(a.counts, a.counts_dtype), when(a.total, a.counts_dtype);
    features {
        COUNTS = a.counts,
        TOTAL = a.total,
        LENGTHS = a.lengths,
        FIRST = a.first != 0,
        GROUP = a.group != 0,
        LIMIT = a.limit != 0,
        FIXED = a.fixed,
    }
}

/// Zeros the rows that no choice has: of each expert those from `starts[e] + lengths[e]` on, up to the first row of the next
/// expert, behind the last one up to `rows`. With `limit` an expert has at most that many rows of choices.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ZeroGapsArgs {
    /// `[rows, width]` bytes.
    pub output: *mut c_void,
    /// `[experts]`: the first row of each expert, in their order.
    pub starts: *const i64,
    /// `[experts]`: the number of choices of each.
    pub lengths: *const i64,
    /// At least 1.
    pub experts: usize,
    pub rows: usize,
    /// Even, as the address.
    pub width: usize,
    /// 0: none.
    pub limit: usize,
}

operator! {
    zero_gaps(ZeroGapsArgs) version 1 minor 0; |a|
}
