//! Casts of a matrix or a group, by scaling mode.

use super::function::{Fusion, fusion_variant};
use super::group::Group;
use super::operator::{Present, operator, size};
use crate::types::{NVTEDType, NVTEScalingMode};
use std::ffi::c_void;

/// Cast of the elements v of a `[rows, cols]` matrix, by scaling mode. Without a fusion v is the
/// input x; else, in modes 1 to 3, v is rounded to the input's dtype first.
///
/// Per tensor (mode 0): `y = cast(x * scale)` for FP8 outputs, `y = cast(x)` otherwise; `amax =
/// max(amax, max|x|)` (NaN ignored); `scale_inv = 1 / scale`.
///
/// FP8 blocks (modes 2 and 3): each block of 128 elements (1D: of a row for row-wise data, of a column
/// for column-wise data; 2D: 128 x 128) has `a = max(max|x|, epsilon)`, `s = fp8_max / a` (1 if `a` is
/// 0, Inf or NaN; an infinite quotient becomes the largest finite value of the input dtype; with `pow2`
/// the mantissa is cleared), `y = cast(x * s)` and `scale_inv = 1 / s`, a float. Scale matrices:
/// 1D row-wise `[cols / 128][row]`, column-wise `[rows / 128][col]`;
/// 2D row-wise `[rows / 128][cols / 128]`, column-wise `[cols / 128][rows / 128]`.
///
/// MXFP8 (mode 1): blocks of 32 (of a row, of a column, or 32 x 32 with `square_blocks`) with the E8M0
/// code `e = e8m0(max|x| / fp8_max)`, rounded up, and `y = cast(x * 2^(127 - e))`. Codes: row-wise
/// `[row][cols / 32]`, column-wise `[rows / 32][col]`, or with `swizzled` in tiles of 128 x 4; padding up
/// to multiples of 128 and 4 is set to 0.
///
/// Other structs have it inside of them: it never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    /// `[rows, cols]` (see [`Form`]), F32, F16 or BF16.
    pub input: *const c_void,
    /// `[rows, cols]`, or null.
    pub rowwise: *mut c_void,
    /// `[cols, rows]` (MXFP8: `[rows, cols]`), or null.
    pub colwise: *mut c_void,
    /// Mode 0: one float (groups: one per member), or null for 1. Read only if the output is FP8.
    pub scale: *const f32,
    /// Modes 0 and 1: one non-negative float, accumulated with integer max, or null (groups: null).
    pub amax: *mut f32,
    /// Mode 0: one float each, or null (groups: null). Else the scale matrix of each direction that is written.
    pub rowwise_scale_inv: *mut c_void,
    pub colwise_scale_inv: *mut c_void,
    /// One float, or null: exactly 1 means that nothing may be written.
    pub noop: *const f32,
    pub rows: usize,
    pub cols: usize,
    /// Elements from one row of a scale matrix to the next; 0 in mode 0.
    pub rowwise_scale_stride: usize,
    pub colwise_scale_stride: usize,
    /// Modes 2 and 3.
    pub epsilon: f32,
    pub mode: NVTEScalingMode,
    /// F32, F16 or BF16.
    pub input_dtype: NVTEDType,
    /// E4M3 or E5M2; in mode 0 also F32, F16 and BF16.
    pub output_dtype: NVTEDType,
    /// Modes 2 and 3.
    pub pow2: bool,
    /// Mode 1.
    pub square_blocks: bool,
    /// Mode 1.
    pub swizzled: bool,
    pub fusion: Fusion,
    /// The members of the output, and those of the input.
    pub group: Group,
}

/// A cast by itself, see [`Cast`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QuantizeArgs {
    pub cast: Cast,
}

operator! {
    quantize(QuantizeArgs) version 1 minor 0; |a|
    variants fusion_variant(&a.cast.fusion) => [
        cast, dbias,
        gelu, silu, qgelu, relu, srelu,
        dgelu, dsilu, dqgelu, drelu, dsrelu,
        geglu, swiglu, qgeglu, reglu, sreglu, glu, clamped_swiglu, situglu,
        dgeglu, dswiglu, dqgeglu, dreglu, dsreglu, dglu, dclamped_swiglu, dsituglu,
        dbias_dgelu, dbias_dsilu, dbias_dqgelu, dbias_drelu, dbias_dsrelu,
    ];
    dtypes a.cast.input_dtype, a.cast.output_dtype;
    modes a.cast.mode;
    features {
        NOOP = a.cast.noop,
        GROUP = a.cast.group,
        COLWISE = a.cast.colwise,
        COLWISE_ONLY = a.cast.rowwise.is_null(),
        AMAX = a.cast.amax,
        DBIAS = a.cast.fusion.dbias,
        ROW_SCALES = a.cast.fusion.row_scales,
        POW2 = a.cast.pow2,
        SQUARE_BLOCKS = a.cast.square_blocks,
        SWIZZLED = a.cast.swizzled,
    }
    bytes a.cast.bytes();
}

impl Cast {
    /// Bytes of the data that a cast reads and writes.
    pub(super) fn bytes(&self) -> usize {
        use super::function::Form::*;
        let elements = self.rows * self.cols;
        let read = match self.fusion.form {
            NVTEX_FORM_PLAIN | NVTEX_FORM_ACTIVATION => elements,
            NVTEX_FORM_DERIVATIVE | NVTEX_FORM_GATED => 2 * elements,
            NVTEX_FORM_GATED_DERIVATIVE => elements / 2 + elements,
        };
        let outputs = [self.rowwise, self.colwise].iter().filter(|output| output.present()).count();
        size(read, self.input_dtype) + outputs * size(elements, self.output_dtype)
    }

    /// Rows of the workspace for dbias: one for each 128 rows of each member.
    pub const fn dbias_workspace_rows(rows: usize, num_tensors: usize) -> usize {
        rows.div_ceil(128) + num_tensors
    }
}

/// `y = cast(float(x) * scale_inv)` of `[rows, cols]`, with scales as [`Cast`] describes
/// them. With `colwise` the input are column-wise data: `[cols, rows]` (MXFP8: `[rows, cols]`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DequantizeArgs {
    pub input: *const c_void,
    pub output: *mut c_void,
    /// Mode 0: one float (groups: one per member). Else the scale matrix of the direction that is read.
    pub scale_inv: *const c_void,
    pub rows: usize,
    pub cols: usize,
    /// Elements from one row of the scale matrix to the next; 0 in mode 0 and for groups.
    pub scale_stride: usize,
    pub mode: NVTEScalingMode,
    /// E4M3 or E5M2.
    pub input_dtype: NVTEDType,
    /// F32, F16 or BF16.
    pub output_dtype: NVTEDType,
    pub colwise: bool,
    /// Mode 1.
    pub swizzled: bool,
    /// The members of input and output.
    pub group: Group,
}

operator! {
    dequantize(DequantizeArgs) version 1 minor 0; |a|
    dtypes a.input_dtype, a.output_dtype;
    modes a.mode;
    features { GROUP = a.group, COLWISE = a.colwise, SWIZZLED = a.swizzled }
    bytes size(a.rows * a.cols, a.input_dtype) + size(a.rows * a.cols, a.output_dtype);
}

/// Row-wise MXFP8 data to column-wise ones, for groups of whole rows.
///
/// `v = float(input) * 2^(code - 127)`, rounded to BF16 with `through_bf16`; `dequantized = bf16(v)`;
/// `colwise` and its codes as [`Cast`] has them for an input v. Codes of both directions are in
/// tiles of 128 x 4: of the row-wise ones, which are copied, as of one matrix; of the column-wise ones,
/// group by group. Rows from `offsets[num_groups]` on are not touched.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RequantizeArgs {
    /// `[rows, cols]`, aligned to 16 bytes, as are `colwise` and `dequantized`.
    pub input: *const c_void,
    /// `[row][cols / 32]`
    pub codes: *const u8,
    /// `[rows, cols]`, E4M3.
    pub colwise: *mut c_void,
    pub rowwise_codes: *mut u8,
    pub colwise_codes: *mut u8,
    /// `[rows, cols]`, BF16, or null.
    pub dequantized: *mut c_void,
    /// First element of each group and the end, on the device: multiples of `128 * cols`, ascending.
    pub offsets: *const i64,
    pub num_groups: usize,
    /// Multiples of 128.
    pub rows: usize,
    pub cols: usize,
    /// Codes from one row to the next.
    pub code_stride: usize,
    /// E4M3 or E5M2.
    pub input_dtype: NVTEDType,
    pub through_bf16: bool,
}

operator! {
    requantize(RequantizeArgs) version 1 minor 0; |a|
    dtypes a.input_dtype;
    features { DEQUANTIZED = a.dequantized, THROUGH_BF16 = a.through_bf16 }
    bytes a.rows * a.cols * if a.dequantized.is_null() { 2 } else { 4 };
}
