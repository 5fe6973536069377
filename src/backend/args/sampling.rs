//! Tokens drawn from logits.

use super::operator::{operator, size};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// One token for each row of logits x, drawn among the kept ones with probabilities that are proportional to
/// integer weights: 2^31 for the maximum m of the row, `floor(exp((x - m) / temperature) * 2^31)` for others; NaN
/// counts as -Inf.
///
/// Kept are the `top_k` greatest, and of these, in descending order, the first whose weights come to at least
/// `ceil(top_p * W)`, W being the sum of the `top_k`; of equal logits those of the lowest indices come first.
///
/// The draw: words 0 and 1 of Philox 4x32-10 with the seed as key and the counter `offset + 2^64 row` are the low and
/// the high half of r. With the sum S of the kept weights, the token is the first in the order of indices at which
/// the sum of kept weights exceeds `floor(r S / 2^64)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SampleTokensArgs {
    /// `[rows, cols]`
    pub logits: *const c_void,
    /// `[rows]`
    pub tokens: *mut i32,
    /// Seed and offset.
    pub rng_state: *const u64,
    pub rows: usize,
    /// Less than 2^31.
    pub cols: usize,
    /// 1 to `cols`.
    pub top_k: usize,
    /// Above 0.
    pub temperature: f32,
    /// Above 0, at most 1.
    pub top_p: f32,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
}

operator! {
    sample_tokens(SampleTokensArgs) version 1 minor 0; |a|
    dtypes a.dtype;
    features { TOP_K = a.top_k < a.cols, TOP_P = a.top_p < 1.0 }
    bytes size(a.rows * a.cols, a.dtype) + 4 * a.rows;
}
