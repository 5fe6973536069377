//! Maxima and the scales that follow from them.

use super::group::Group;
use super::operator::{operator, size};
use crate::types::{NVTEDType, NVTEScalingMode};
use std::ffi::c_void;

/// `amax = max|x|` over `numel` elements (0 for none; NaN ignored).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AmaxArgs {
    pub input: *const c_void,
    pub amax: *mut f32,
    pub noop: *const f32,
    /// May be 0.
    pub numel: usize,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
}

operator! {
    amax(AmaxArgs) version 1 minor 0; |a|
    dtypes a.dtype;
    features { NOOP = a.noop }
    bytes size(a.numel, a.dtype);
}

/// `a = max(amax, epsilon)`; `scale = fp8_max / a`, 1 if `a` is 0, Inf or NaN; an infinite quotient
/// becomes the largest float; with `pow2` the mantissa is cleared.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaleFromAmaxArgs {
    pub amax: *const f32,
    pub scale: *mut f32,
    pub noop: *const f32,
    pub fp8_max: f32,
    pub epsilon: f32,
    pub pow2: bool,
    /// Values in each array.
    pub length: usize,
    /// `1 / scale`, or null.
    pub scale_inv: *mut f32,
    /// `1 / scale` once more, or null.
    pub colwise_scale_inv: *mut f32,
}

operator! {
    scale_from_amax(ScaleFromAmaxArgs) version 1 minor 0; |a|
    features {
        NOOP = a.noop,
        POW2 = a.pow2,
        SCALE_INV = a.scale_inv,
        COLWISE_SCALE_INV = a.colwise_scale_inv,
    }
}

/// Which amax of the history sets the scale.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmaxAlgo {
    NVTEX_AMAX_ALGO_MAX = 0,
    NVTEX_AMAX_ALGO_MOST_RECENT = 1,
}

/// One tensor of a delayed-scaling update; in place if the outputs equal the inputs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DelayedScalingEntry {
    /// `[length, num_scales]`, row 0 is the newest.
    pub history: *const f32,
    pub scale: *const f32,
    pub new_history: *mut f32,
    pub new_scale: *mut f32,
    pub num_scales: usize,
}

/// Rolls amax histories by one row and sets the scales from them.
///
/// For each column, with `last = history[0]` (or the reduced value, if there is one that is not 0):
/// row i takes row i + 1, the last row takes `last`, row 0 becomes 0;
/// `scale = scaled_max / amax` if `amax` is finite and positive, else unchanged; an infinite scale
/// becomes the largest float. With `keep_if_unused`, a column whose `last` is 0 keeps its history,
/// and its amax is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DelayedScalingArgs {
    /// Host array.
    pub entries: *const DelayedScalingEntry,
    pub num_entries: usize,
    /// Concatenation of `num_scales` reduced amax values for each entry, or null.
    pub reduced_amax: *const f32,
    /// Rows of every history, at least 1.
    pub length: usize,
    /// `fp8_max * 2^-margin`.
    pub scaled_max: f32,
    pub algo: AmaxAlgo,
    pub keep_if_unused: bool,
}

operator! {
    delayed_scaling(DelayedScalingArgs) version 1 minor 0; |a|
    variants a.algo as u32 => [max, most_recent];
    features { REDUCED_AMAX = a.reduced_amax, KEEP_IF_UNUSED = a.keep_if_unused }
}

/// `amax[t] = max|x|` over the elements of member t (0 for none; NaN ignored).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GroupAmaxArgs {
    pub input: *const c_void,
    /// One for each member.
    pub amax: *mut f32,
    pub noop: *const f32,
    /// Elements of the input, gaps between members and what follows the last of them included.
    pub numel: usize,
    pub rows: usize,
    pub cols: usize,
    pub group: Group,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
}

operator! {
    group_amax(GroupAmaxArgs) version 1 minor 0; |a|
    dtypes a.dtype;
    features { NOOP = a.noop }
    bytes size(a.numel, a.dtype);
}

/// A part of a row-major matrix `[rows, cols]`: the elements from `start` on, `length` of them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Shard {
    pub input: *const c_void,
    pub start: usize,
    pub length: usize,
    pub rows: usize,
    pub cols: usize,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
}

/// `max|x|` over the elements of a shard in each block of the whole matrix (0 for none; NaN ignored).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartialAmaxArgs {
    /// `length` may be 0.
    pub shard: Shard,
    /// Mode 3: floats, block (i, j) of 128 x 128 at `i * rowwise_stride + j * block_step`.
    /// Mode 1: of the input's dtype, block j of 32 in row i at `i * rowwise_stride + j`, or null;
    /// entries up to the next multiple of 4 in a row become 0.
    pub rowwise: *mut c_void,
    /// Mode 1: of the input's dtype, block i of 32 in column j at `i * colwise_stride + j`, or null;
    /// entries up to the next multiple of 128 in a row become 0.
    pub colwise: *mut c_void,
    pub rowwise_stride: usize,
    pub colwise_stride: usize,
    pub block_step: usize,
    /// The scaling mode, 1 or 3.
    pub mode: NVTEScalingMode,
}

operator! {
    partial_amax(PartialAmaxArgs) version 1 minor 0; |a|
    variants u32::from(a.mode.float_blocks()) => [mxfp8, fp8_blocks];
    dtypes a.shard.dtype;
    modes a.mode;
    features { COLWISE = a.colwise, COLWISE_ONLY = a.rowwise.is_null() }
}

/// Casts a shard with scales of the whole matrix, laid out as those maxima. Mode 3:
/// `y = cast(x * scale)`. Mode 1: `y = cast(x / 2^e)` with E8M0 codes, once for blocks along the rows,
/// once for blocks along the columns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartialCastArgs {
    pub shard: Shard,
    /// `length` elements each; mode 1: or null.
    pub rowwise: *mut c_void,
    /// Like `rowwise`, with scales in the other direction; in mode 1 only.
    pub colwise: *mut c_void,
    pub rowwise_scales: *const c_void,
    pub colwise_scales: *const c_void,
    pub rowwise_stride: usize,
    pub colwise_stride: usize,
    pub block_step: usize,
    /// The scaling mode, 1 or 3.
    pub mode: NVTEScalingMode,
    /// E4M3 or E5M2.
    pub output_dtype: NVTEDType,
}

operator! {
    partial_cast(PartialCastArgs) version 1 minor 0; |a|
    variants u32::from(a.mode.float_blocks()) => [mxfp8, fp8_blocks];
    dtypes a.shard.dtype, a.output_dtype;
    modes a.mode;
    features { COLWISE = a.colwise, COLWISE_ONLY = a.rowwise.is_null() }
}

/// `output[0] = ((alpha * amax_a) * amax_b) * factor`, and `output[1] = beta` if there is one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4AlphaArgs {
    pub amax_a: *const f32,
    pub amax_b: *const f32,
    pub output: *mut f32,
    pub alpha: f32,
    pub beta: f32,
    pub factor: f32,
    pub with_beta: bool,
}

operator! {
    nvfp4_alpha(Nvfp4AlphaArgs) version 1 minor 0; |a|
    features { BETA = a.with_beta }
}

/// `scale = G(amax)` with `G(a) = min(2688 / max(a, FLT_MIN), FLT_MAX)`, 1 unless `a > 0`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4GlobalScaleArgs {
    pub amax: *const f32,
    pub scale: *mut f32,
    /// The number of elements of both arrays.
    pub length: usize,
}

operator! {
    nvfp4_global_scale(Nvfp4GlobalScaleArgs) version 1 minor 0; |a|
}

/// Scales of square NVFP4 blocks: `s = min(input * (G(global_amax) * (1 / 6)), FLT_MAX)` with G as in
/// [`Nvfp4GlobalScaleArgs`], or the input as it is. `scale = s`, and `codes[r][c] = e4m3(s)` of the block
/// (r / block_len, c), 0 in rows of no block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4BlockScaleArgs {
    /// `[tile_rows, tile_cols]`
    pub input: *const f32,
    /// One float, or null if the input already holds scales.
    pub global_amax: *const f32,
    /// As the input, or null.
    pub scale: *mut f32,
    /// Bytes `[rows, tile_cols]`, or null.
    pub codes: *mut c_void,
    /// Becomes `global_amax`, or null.
    pub target_amax: *mut f32,
    pub tile_rows: usize,
    pub tile_cols: usize,
    /// Rows of the codes.
    pub rows: usize,
    /// Not 0.
    pub block_len: usize,
}

operator! {
    nvfp4_block_scale(Nvfp4BlockScaleArgs) version 1 minor 0; |a|
    features {
        GLOBAL_AMAX = a.global_amax,
        SCALE = a.scale,
        CODES = a.codes,
        TARGET_AMAX = a.target_amax,
    }
}

/// `max|x|` over the elements of a shard in each block of 16 x 16 of the whole matrix (0 for none; NaN
/// ignored), block (i, j) at `i * stride + j * step`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4PartialAmaxArgs {
    /// `length` may be 0.
    pub shard: Shard,
    pub amax: *mut f32,
    pub stride: usize,
    pub step: usize,
}

operator! {
    nvfp4_partial_amax(Nvfp4PartialAmaxArgs) version 1 minor 0; |a|
    dtypes a.shard.dtype;
}

/// `code = e2m1(x * q)` for the elements of a shard, with `q = min(1 / (e4m3(scale) * (1 / g)), FLT_MAX)` of
/// their block (FLT_MAX without a positive scale), `g = global_scale`, 1 unless it is positive. Element i
/// of the matrix is in byte `i / 2 - start / 2`, in the low bits if i is even; the other half of the first
/// and the last byte stays if it is not in the shard.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4PartialCastArgs {
    pub shard: Shard,
    pub output: *mut c_void,
    /// Laid out as the maxima of [`Nvfp4PartialAmaxArgs`].
    pub scale: *const f32,
    pub global_scale: *const f32,
    pub stride: usize,
    pub step: usize,
}

operator! {
    nvfp4_partial_cast(Nvfp4PartialCastArgs) version 1 minor 0; |a|
    dtypes a.shard.dtype;
}
