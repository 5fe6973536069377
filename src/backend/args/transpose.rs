//! Transposes.

use super::operator::operator;
use crate::types::NVTEDType;
use std::ffi::c_void;

/// Bit copy `output[c][r] = input[r][c]` of a `[rows, cols]` matrix.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TransposeArgs {
    pub input: *const c_void,
    pub output: *mut c_void,
    pub noop: *const f32,
    pub rows: usize,
    pub cols: usize,
    /// 1, 2 or 4 bytes.
    pub element_size: usize,
}

operator! {
    transpose(TransposeArgs) version 1 minor 0; |a|
    features { NOOP = a.noop }
    bytes 2 * a.rows * a.cols * a.element_size;
}

/// Swap of the first two dimensions: `output[j][i] = input[i][j]` of rows of bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SwapFirstDimsArgs {
    /// `[first, second, row_bytes]`
    pub input: *const c_void,
    /// `[second, first, row_bytes]`
    pub output: *mut c_void,
    pub first: usize,
    pub second: usize,
    pub row_bytes: usize,
}

operator! {
    swap_first_dims(SwapFirstDimsArgs) version 1 minor 0; |a|
    bytes 2 * a.first * a.second * a.row_bytes;
}

/// Transpose of an FP8 matrix with the sums of its columns: `output[c][r] = input[r][c]`, bit by bit,
/// and `dbias[c] = cast(sum over r of float(input[r][c]) * scale_inv)`, products rounded to float32 and
/// added in the order of [`Fusion::dbias`], each sum from 0 on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TransposeDbiasArgs {
    /// `[rows, cols]`
    pub input: *const c_void,
    /// `[cols, rows]`
    pub output: *mut c_void,
    /// One float, or null for 1.
    pub scale_inv: *const f32,
    /// `[cols]`
    pub dbias: *mut c_void,
    /// `rows.div_ceil(128) * cols` floats.
    pub workspace: *mut f32,
    /// May be 0.
    pub rows: usize,
    pub cols: usize,
    /// E4M3 or E5M2.
    pub dtype: NVTEDType,
    /// F32, F16 or BF16.
    pub dbias_dtype: NVTEDType,
}

operator! {
    transpose_dbias(TransposeDbiasArgs) version 1 minor 0; |a|
    dtypes a.dtype, a.dbias_dtype;
    features { SCALE_INV = a.scale_inv }
    bytes 2 * a.rows * a.cols;
}

/// Transpose of a matrix of 4-bit elements, two in a byte, the first in the low bits.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4TransposeArgs {
    /// `[rows, cols / 2]` bytes.
    pub input: *const c_void,
    /// `[cols, rows / 2]` bytes.
    pub output: *mut c_void,
    /// Even.
    pub rows: usize,
    /// Even.
    pub cols: usize,
}

operator! {
    nvfp4_transpose(Nvfp4TransposeArgs) version 1 minor 0; |a|
    bytes a.rows * a.cols;
}

/// Scales of the transpose of a matrix that has one scale for each 16 x 16:
/// `output[r][c] = r / 16 < row_tiles ? input[16 c][r / 16] : 0` for `r < rows` and `c < cols`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4ScaleTransposeArgs {
    /// Bytes, `16 * cols - 15` rows of at least `row_tiles`.
    pub input: *const c_void,
    /// Bytes, `rows` rows of at least `cols`, the rest of which is not written.
    pub output: *mut c_void,
    pub rows: usize,
    pub cols: usize,
    pub row_tiles: usize,
    /// Bytes from one row to the next.
    pub input_stride: usize,
    pub output_stride: usize,
}

operator! {
    nvfp4_scale_transpose(Nvfp4ScaleTransposeArgs) version 1 minor 0; |a|
}
