//! Casts to NVFP4 and back.

use super::operator::{Present, operator, size};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// One direction of an NVFP4 matrix: its lines are the rows, or for column-wise data the columns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4Lines {
    /// E2M1 codes of the lines, one after the other, the first of two in the lower half of a byte; null:
    /// the direction is not written. Lines have an even number of elements.
    pub data: *mut c_void,
    /// E4M3, one for each 16 elements of a line; padding is not touched.
    pub scales: *mut c_void,
    /// One float: the largest magnitude of the matrix, or of each member of a group; null: the global
    /// scale is 1. With `scaled_lines` one float for each line, which the cast sets first.
    pub amax: *mut f32,
    /// Scales from one line to the next; in tiles of 128 x 4 that rounded up to a multiple of 4.
    pub scale_stride: usize,
}

/// Which kernels an operator has in the reference: their order of random words and their rules for
/// numbers that are not finite.
///
/// The words of the 16 elements of a block are those of one call of Philox 4x32-10 with the seed as key
/// and the counter `offset + call + 2^64 sequence`; `random_call` of the CPU backend gives call and
/// sequence of a block.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nvfp4Variant {
    NVTEX_NVFP4_TUNED = 0,
    NVTEX_NVFP4_SQUARE = 1,
    NVTEX_NVFP4_GENERAL = 2,
    NVTEX_NVFP4_HADAMARD_COLUMNS = 3,
    NVTEX_NVFP4_HADAMARD = 4,
    NVTEX_NVFP4_HADAMARD_GROUP = 5,
}

/// How each block takes 4 or 6 as the magnitude of its largest element.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nvfp4Choice {
    /// Always 6.
    NVTEX_NVFP4_SIX = 0,
    /// By the sum of absolute errors.
    NVTEX_NVFP4_LEAST_ABSOLUTE = 1,
    /// By the sum of squared errors.
    NVTEX_NVFP4_LEAST_SQUARES = 2,
}

/// Cast of a `[rows, cols]` matrix x to NVFP4, in blocks of 16 elements of a row (row-wise) or of a
/// column (column-wise, stored transposed), or with `square` of 16 x 16.
///
/// `S = min(6 e4m3_max / amax, FLT_MAX)`, 1 if `amax` or that is 0; a block with the largest magnitude b
/// has the scale `s = e4m3(min(b * (S / 6), FLT_MAX))`, its elements the codes `e2m1(x * q)` with
/// `q = min(1 / (s * (1 / S)), FLT_MAX)`, each operation rounded to float32, S / 6 as a product with the
/// rounded sixth. NaN do not count as magnitudes.
///
/// With `fast_math` q is `bf16(min(S / s, bf16_max))` (the variant TUNED; HADAMARD: see there).
/// A choice other than SIX: `base = (b / 6) * S`, candidates `s6 = e4m3(base)` and `s4 = e4m3(1.5 base)`;
/// s4 is taken if the error of the dequantized block (`fast_error`: times S) is less.
/// `stochastic`: instead of nearest, `e2m1` rounds y to neighbours by a random byte u of the block's words:
/// `floor((|y| + u / 256 * d) / d) * d`, at most 6, with d = 2, 1 or 1/2 from 4, from 2 and below.
///
/// With `hadamard`, a BF16 matrix H `[16, 16]`, column-wise blocks have `sum over k of x[k] * H[k][n]` in
/// place of x[n], rounded to BF16 unless `fast_math`: products are added in pairs, pairs of these, and so
/// on. In its variants a NaN makes its block NaN (0x7F, codes 7), HADAMARD_COLUMNS has the scale NaN
/// for `amax` NaN, the others 1 for an `amax` that is not positive and 0 for Inf.
///
/// Groups (`offsets` is not null): member t has the rows from `offsets[t] / cols` to `offsets[t + 1] /
/// cols`; column-wise data of it begin at byte `offsets[t] / 2` and scales at `offsets[t] / 16`, as those
/// of a lone matrix; row-wise ones are as of one matrix. Rows past the last are not touched.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4QuantizeArgs {
    /// `[rows, cols]`, F32, F16 or BF16.
    pub input: *const c_void,
    pub rowwise: Nvfp4Lines,
    pub colwise: Nvfp4Lines,
    /// One float, or null: exactly 1 means that nothing may be written.
    pub noop: *const f32,
    /// `[16, 16]`, BF16, or null.
    pub hadamard: *const c_void,
    /// Seed and offset; null for zeros.
    pub rng_state: *const u64,
    /// `num_tensors + 1` entries on the device, multiples of `128 * cols`, ascending from 0; or null.
    pub offsets: *const i64,
    pub num_tensors: usize,
    pub rows: usize,
    pub cols: usize,
    /// For the random words: rows before this matrix in one that was split, and rows of that.
    pub first_row: usize,
    pub total_rows: usize,
    pub input_dtype: NVTEDType,
    /// 448 or 256.
    pub e4m3_max: f32,
    pub variant: Nvfp4Variant,
    pub choice: Nvfp4Choice,
    pub fast_error: bool,
    pub scaled_lines: bool,
    pub square: bool,
    /// Scales in tiles of 128 lines and 4 blocks.
    pub swizzled: bool,
    pub fast_math: bool,
    pub stochastic: bool,
}

operator! {
    nvfp4_quantize(Nvfp4QuantizeArgs) version 1 minor 0; |a|
    variants a.variant as u32 =>
        [tuned, square, general, hadamard_columns, hadamard, hadamard_group];
    dtypes a.input_dtype;
    features {
        NOOP = a.noop,
        GROUP = a.offsets,
        COLWISE = a.colwise.data,
        COLWISE_ONLY = a.rowwise.data.is_null(),
        FOUR_OVER_SIX = a.choice != Nvfp4Choice::NVTEX_NVFP4_SIX,
        SCALED_LINES = a.scaled_lines,
        SQUARE = a.square,
        SWIZZLED = a.swizzled,
        FAST_MATH = a.fast_math,
        STOCHASTIC = a.stochastic,
    }
    bytes size(a.rows * a.cols, a.input_dtype)
        + (usize::from(a.rowwise.data.present()) + usize::from(a.colwise.data.present())) * a.rows * a.cols / 2;
}

/// `y = cast(value * f)` of `[rows, cols]` in row-wise blocks, with `f = scale * amax * (1 / (6
/// e4m3_max))`, multiplied from the left, each operation rounded to float32.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4DequantizeArgs {
    pub input: Nvfp4Lines,
    pub output: *mut c_void,
    pub rows: usize,
    /// A multiple of 16.
    pub cols: usize,
    /// F32, F16 or BF16.
    pub output_dtype: NVTEDType,
    pub e4m3_max: f32,
    /// One amax for each row.
    pub scaled_lines: bool,
    pub swizzled: bool,
}

operator! {
    nvfp4_dequantize(Nvfp4DequantizeArgs) version 1 minor 0; |a|
    dtypes a.output_dtype;
    features { SCALED_LINES = a.scaled_lines, SWIZZLED = a.swizzled }
    bytes a.rows * a.cols / 2 + size(a.rows * a.cols, a.output_dtype);
}
