//! LayerNorm and RMSNorm.

use super::cast::Cast;
use super::operator::{operator, size, when};
use crate::types::{NVTE_Norm_Type, NVTEDType};
use std::ffi::{c_int, c_void};

/// The weight of a normalization, `g = gamma`, or `gamma + 1` if it is stored centred at zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gamma {
    /// `[cols]`
    pub data: *const c_void,
    /// F32, F16 or BF16; also of beta and, backward, of `dz`, `add`, `dgamma` and `dbeta`.
    pub dtype: NVTEDType,
    pub zero_centered: bool,
    /// Rounds `gamma + 1` to gamma's dtype.
    pub rounded: bool,
}

/// Normalizes each row x of a matrix, in float32, and casts the result.
///
/// LayerNorm: `mu = mean(x)`, `rsigma = 1 / sqrt(mean((x - mu)^2) + epsilon)`,
/// `v = g (rsigma (x - mu)) + beta`. RMSNorm: `rsigma = 1 / sqrt(mean(x^2) + epsilon)`,
/// `v = g (rsigma x)`. v is cast as [`Cast`] says of an input in F32, except that the amax of
/// an output in F32, F16 or BF16 is that of the rounded values.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NormForwardArgs {
    /// From x, `[rows, cols]`, to the result; without a fusion, a group or a noop flag. There may be
    /// no rows, but at least one column. In mode 0 there are row-wise data.
    pub cast: Cast,
    /// As x, or null: what is added to x before it is normalized, and where the sum, rounded to the
    /// dtype of x, goes (it may be x or `residual`).
    pub residual: *const c_void,
    pub sum: *mut c_void,
    pub gamma: Gamma,
    /// `[cols]`; null for RMSNorm.
    pub beta: *const c_void,
    /// `[rows]`; null for RMSNorm.
    pub mu: *mut f32,
    /// `[rows]`
    pub rsigma: *mut f32,
    pub epsilon: f32,
    pub norm: NVTE_Norm_Type,
    /// Multiprocessors to use at most.
    pub sm_count: c_int,
}

operator! {
    norm_forward(NormForwardArgs) version 1 minor 0; |a|
    variants a.norm as u32 => [layernorm, rmsnorm];
    dtypes a.cast.input_dtype, a.cast.output_dtype, a.gamma.dtype;
    modes a.cast.mode;
    features {
        RESIDUAL = a.residual,
        COLWISE = a.cast.colwise,
        COLWISE_ONLY = a.cast.rowwise.is_null(),
        AMAX = a.cast.amax,
        POW2 = a.cast.pow2,
        SQUARE_BLOCKS = a.cast.square_blocks,
        SWIZZLED = a.cast.swizzled,
        ZERO_CENTERED = a.gamma.zero_centered,
    }
    bytes a.cast.bytes()
        + when(a.residual, 2 * size(a.cast.rows * a.cast.cols, a.cast.input_dtype)).unwrap_or(0);
}

/// Gradients of a normalization, in float32. With `y = rsigma (x - mu)` (RMSNorm: `mu = 0`) and
/// `d = g dz`, for each row: `dx = rsigma (d - mean(d y) y - mean(d)) + add` (RMSNorm: without
/// `mean(d)`); over the rows: `dgamma = sum(dz y)`, `dbeta = sum(dz)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NormBackwardArgs {
    /// `[rows, cols]`
    pub dz: *const c_void,
    /// `[rows, cols]`
    pub x: *const c_void,
    /// `[rows, cols]`, or null.
    pub add: *const c_void,
    /// `[rows]`; null for RMSNorm.
    pub mu: *const f32,
    /// `[rows]`
    pub rsigma: *const f32,
    pub gamma: Gamma,
    /// `[rows, cols]`, of the dtype of x; may be `dz`, `x` or `add` if that has this dtype.
    pub dx: *mut c_void,
    /// `[cols]`
    pub dgamma: *mut c_void,
    /// `[cols]`; null for RMSNorm.
    pub dbeta: *mut c_void,
    /// Room for sums over some of the rows, `[parts, cols]` for dgamma, then for dbeta, then for `add_sums` and
    /// `dx_sums` if one of them is wanted.
    pub partial: *mut f32,
    /// As `parts()` says; at least 1.
    pub parts: usize,
    /// May be 0.
    pub rows: usize,
    /// At least 1.
    pub cols: usize,
    /// F32, F16 or BF16.
    pub x_dtype: NVTEDType,
    pub norm: NVTE_Norm_Type,
    /// Multiprocessors to use at most.
    pub sm_count: c_int,
    /// `[cols]`, of gamma's dtype, or null: the sums of `add` and of dx over the rows, dx before it is rounded or
    /// afterwards. With either of them dx is not `add`.
    pub add_sums: *mut c_void,
    pub dx_sums: *mut c_void,
}

operator! {
    norm_backward(NormBackwardArgs) version 1 minor 1; |a|
    variants a.norm as u32 => [layernorm, rmsnorm];
    dtypes a.x_dtype, a.gamma.dtype;
    features {
        ADD = a.add,
        ZERO_CENTERED = a.gamma.zero_centered,
        SUMS = !a.add_sums.is_null() || !a.dx_sums.is_null(),
    }
    bytes size(a.rows * a.cols, a.gamma.dtype) * (if a.add.is_null() { 1 } else { 2 })
        + 2 * size(a.rows * a.cols, a.x_dtype);
}

impl NormBackwardArgs {
    /// How many sums over rows there are: two for each multiprocessor that may be used, while
    /// there are rows for them.
    pub fn parts(rows: usize, sm_count: c_int) -> usize {
        rows.min(2 * sm_count.max(1) as usize).max(1)
    }
}
