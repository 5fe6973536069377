//! What a backend sees: one plain struct of checked arguments per operator family, and the table
//! of function pointers that every backend fills. cbindgen writes them to `include/nvte/backend.h`,
//! which kernels include.
//!
//! The caller of a table entry guarantees that the arguments are valid: pointers cover their
//! shapes, dtypes are among those listed, sizes are not zero. An entry checks only what it itself
//! cannot do and then answers UNIMPLEMENTED, before it has written anything.

#![allow(non_camel_case_types)]

use crate::types::{NVTEDType, NVTEScalingMode, cudaEvent_t, cudaStream_t};
use std::ffi::{c_char, c_int, c_void};

/// Bump when a struct below changes incompatibly.
pub const NVTEX_BACKEND_API_VERSION: u32 = 3;

/// Answer of a backend.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendStatus {
    /// Done, or queued on the stream.
    NVTEX_BACKEND_OK = 0,
    /// This backend cannot do this case; nothing was written.
    NVTEX_BACKEND_UNIMPLEMENTED = 1,
    /// The device, its driver or a library failed.
    NVTEX_BACKEND_DEVICE_ERROR = 2,
}

/// Status and, unless OK, a text that stays valid until the thread's next backend call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub status: BackendStatus,
    pub reason: *const c_char,
}

/// Member matrices that lie one after the other in one buffer; dimensions are on the device.
///
/// Member t is `[first_dims[t], last_dims[t]]`, contiguous and row-major, and begins at element
/// `offsets[t]`; column-wise data of it begin there too. A null `first_dims` stands for `rows` of the
/// arguments (`rows / num_tensors` if `last_dims` is null, too), a null `last_dims` for `cols`, null
/// `offsets` for members without gaps. The matrices that a mode's scales form are concatenated
/// likewise, each padded as that of a lone matrix. Elements that no member has are not touched.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// 0: a single matrix, and no other field is read.
    pub num_tensors: usize,
    pub first_dims: *const i64,
    pub last_dims: *const i64,
    /// `num_tensors + 1` entries.
    pub offsets: *const i64,
}

impl Group {
    /// A single matrix.
    pub const NONE: Self = Self {
        num_tensors: 0,
        first_dims: std::ptr::null(),
        last_dims: std::ptr::null(),
        offsets: std::ptr::null(),
    };
}

/// A function f of one number, with its parameters a, b and c.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `x`
    NVTEX_IDENTITY = 0,
    /// `x / (1 + exp(-2 x (0.79788456 + 0.03567741 x^2)))`, the tanh form of GELU.
    NVTEX_GELU = 1,
    /// `x / (1 + exp(-x))`
    NVTEX_SILU = 2,
    /// `x / (1 + exp(-1.702 x))`
    NVTEX_QGELU = 3,
    /// `max(x, 0)`, 0 for NaN
    NVTEX_RELU = 4,
    /// `max(x, 0)^2`, 0 for NaN
    NVTEX_SRELU = 5,
    /// `1 / (1 + exp(-x))`
    NVTEX_SIGMOID = 6,
    /// `m / (1 + exp(-b m))` with `m = min(x, a)`; the other half of a gated form becomes
    /// `min(max(x, -a), a) + c`.
    NVTEX_CLAMPED_SILU = 7,
    /// `a tanh(x / a) / (1 + exp(-x))`; the other half of a gated form becomes `b tanh(x / b)`.
    NVTEX_SITU = 8,
}

/// How the elements v that are cast come from the inputs, in float32. `f'` is the derivative, G the
/// function of the linear half (the identity unless the function says otherwise).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `v = input`
    NVTEX_FORM_PLAIN = 0,
    /// `v = f(input)`
    NVTEX_FORM_ACTIVATION = 1,
    /// `v = f'(act_input) * input`
    NVTEX_FORM_DERIVATIVE = 2,
    /// Input `[rows, 2 cols]` = (a | g): `v = f(a) * G(g)`
    NVTEX_FORM_GATED = 3,
    /// Input `[rows, cols / 2]`, act_input `[rows, cols]` = (a | g): the left half is
    /// `v = (f'(a) * input) * G(g)`, the right half `v = (G'(g) * input) * f(a)`.
    NVTEX_FORM_GATED_DERIVATIVE = 4,
}

/// Form and function of a fused cast.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Fusion {
    pub form: Form,
    pub function: Function,
    pub a: f32,
    pub b: f32,
    pub c: f32,
    /// For the derivatives, of the input's dtype.
    pub act_input: *const c_void,
    /// `[cols]` (groups: `[num_tensors, cols]`) of the input's dtype, or null: the sum of v over the
    /// rows (of a member), in float32 in this order: within each 128 rows (that begin a member) the
    /// sums of 4 rows one after the other, then pairs of those, then the 16 pairs one after the other;
    /// of those blocks the i-th is added to sum i % 8, and these 8 are added one after the other.
    pub dbias: *mut c_void,
    /// With dbias: `dbias_workspace_rows() * cols` floats.
    pub workspace: *mut f32,
}

impl Fusion {
    /// A plain cast.
    pub const NONE: Self = Self {
        form: Form::NVTEX_FORM_PLAIN,
        function: Function::NVTEX_IDENTITY,
        a: 0.0,
        b: 0.0,
        c: 0.0,
        act_input: std::ptr::null(),
        dbias: std::ptr::null_mut(),
        workspace: std::ptr::null_mut(),
    };
}

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
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QuantizeArgs {
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
    /// The output's members, and the input's.
    pub group: Group,
}

impl QuantizeArgs {
    /// Rows of the workspace for dbias: one for each 128 rows of each member.
    pub const fn dbias_workspace_rows(rows: usize, num_tensors: usize) -> usize {
        rows.div_ceil(128) + num_tensors
    }
}

/// `y = cast(float(x) * scale_inv)` of `[rows, cols]`, with scales as [`QuantizeArgs`] describes
/// them. With `colwise` the input are column-wise data: `[cols, rows]` (MXFP8: `[rows, cols]`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DequantizeArgs {
    pub input: *const c_void,
    pub output: *mut c_void,
    /// Mode 0: one float. Else the scale matrix of the direction that is read.
    pub scale_inv: *const c_void,
    pub rows: usize,
    pub cols: usize,
    /// Elements from one row of the scale matrix to the next; 0 in mode 0.
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

/// What happens to `v = alpha * scale_a * scale_b * (Bop Aop) + beta * C` on its way to D.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmEpilogue {
    /// `D = v`
    NVTEX_EPILOGUE_NONE = 0,
    /// `D = v + bias`
    NVTEX_EPILOGUE_BIAS = 1,
    /// `aux = v; D = gelu(v)`
    NVTEX_EPILOGUE_GELU = 2,
    /// `aux = v + bias; D = gelu(v + bias)`
    NVTEX_EPILOGUE_GELU_BIAS = 3,
    /// `D = v; bias[j] = sum over k of Bop[j, k]`, length n
    NVTEX_EPILOGUE_BGRAD = 4,
    /// `D = v * dgelu(aux)`
    NVTEX_EPILOGUE_DGELU = 5,
    /// `D = v * dgelu(aux); bias[i] = sum over rows of D[:, i]`, length m
    NVTEX_EPILOGUE_DGELU_BGRAD = 6,
}

/// `D = epilogue(alpha * scale_a * scale_b * (Bop Aop) + beta * C)`, row-major D `[n, m]`.
///
/// `Aop [k, m]` is A `[k, m]`, or with `transa` A^T of A `[m, k]`; `Bop [n, k]` is B `[n, k]`, or with
/// `transb` B^T of B `[k, n]`. Read column-major this is the BLAS product with the same flags. An FP8 D
/// is `cast(v * scale_d)`, with `amax_d = max|v|` and `scale_inv_d = 1 / scale_d`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GemmArgs {
    pub a: *const c_void,
    pub b: *const c_void,
    /// Read only if `beta` is not 0; may equal `d`. Its dtype is that of D.
    pub c: *const c_void,
    pub d: *mut c_void,
    /// One float each for FP8 operands, else null.
    pub scale_inv_a: *const f32,
    pub scale_inv_b: *const f32,
    /// FP8 D only; each may be null.
    pub scale_d: *const f32,
    pub amax_d: *mut f32,
    pub scale_inv_d: *mut f32,
    /// Bias, read or written as the epilogue says.
    pub bias: *mut c_void,
    /// `[n, m]`, read or written as the epilogue says.
    pub aux: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_bytes: usize,
    pub m: usize,
    pub n: usize,
    /// May be 0.
    pub k: usize,
    pub alpha: f32,
    pub beta: f32,
    pub a_dtype: NVTEDType,
    pub b_dtype: NVTEDType,
    pub d_dtype: NVTEDType,
    pub bias_dtype: NVTEDType,
    pub aux_dtype: NVTEDType,
    pub epilogue: GemmEpilogue,
    pub transa: bool,
    pub transb: bool,
    /// Promote FP8 partial sums to full float32 registers every 128 products.
    pub split_accumulator: bool,
    /// Multiprocessors to use, 0 for all.
    pub sm_count: c_int,
}

/// Sets bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemsetArgs {
    pub ptr: *mut c_void,
    pub bytes: usize,
    pub value: u8,
}

/// Copies host bytes to the device; the host buffer may be reused on return.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostCopyArgs {
    pub host: *const c_void,
    /// Aligned to 4 bytes.
    pub device: *mut c_void,
    pub bytes: usize,
}

/// One output of a prefix sum.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OffsetsOutput {
    pub ptr: *mut c_void,
    /// `out[i] = stride * prefix(i)`, in 64-bit arithmetic that wraps.
    pub stride: i64,
    /// Int32 (truncates) or Int64.
    pub dtype: NVTEDType,
    /// The output starts with a 0 and has one entry more.
    pub leading_zero: bool,
}

/// Prefix sums: `prefix(i) = sum of first[j] * last[j], j <= i` (`last` null: 1).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OffsetsArgs {
    pub first: *const c_void,
    pub last: *const c_void,
    /// Host array.
    pub outputs: *const OffsetsOutput,
    pub num_outputs: usize,
    pub length: usize,
    /// Int32 or Int64.
    pub first_dtype: NVTEDType,
    pub last_dtype: NVTEDType,
}

/// What rows a [`MoveRowsArgs`] moves. `s` is the sequence of token t: `cu[s] <= t < cu[s + 1]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowMap {
    /// Row t of `dst` is the row of the first (`index` 0) or second (1) half of its sequence, for
    /// `c = cu / 2`: `dst[t] = src[t + c[s + index]]`.
    NVTEX_ROWS_HALF = 0,
    /// `dst[i] = src[j]` with token j of rank `i / (rows / world)`, see [`PartitionArgs`].
    NVTEX_ROWS_TO_RANKS = 1,
    /// `dst[j] = src[i]`, the inverse.
    NVTEX_ROWS_FROM_RANKS = 2,
    /// `dst[t] = src[t]` for the first `cu_valid[s + 1] - cu_valid[s]` tokens of each sequence.
    NVTEX_ROWS_VALID = 3,
    /// Row i is token `i % length` of sequence `i / length` in dst, packed in src.
    NVTEX_ROWS_UNPACK = 4,
    /// The inverse.
    NVTEX_ROWS_PACK = 5,
    /// Token n of the new ones of sequence s (`cu`), row i = s `length` + n: to its place in a cache, where
    /// `cu_valid` counts cached and new tokens together. In src it is row `i` (`index`
    /// `NVTE_BSHD`), `n sequences + s` (`NVTE_SBHD`) or `cu[s] + n` (`NVTE_THD`). Token p of a sequence lies
    /// on page `page_table[s pages + p / page]`, or with a null table on page s.
    NVTEX_ROWS_TO_CACHE = 6,
}

/// Moves rows of bytes between places that sequences on the device determine.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MoveRowsArgs {
    pub src: *const c_void,
    pub dst: *mut c_void,
    pub row_bytes: usize,
    /// Rows of the map: of dst, or of the padded side.
    pub rows: usize,
    /// The map is applied to `outer` matrices, `src_outer` and `dst_outer` rows apart.
    pub outer: usize,
    pub src_outer: usize,
    pub dst_outer: usize,
    /// `sequences + 1` first tokens.
    pub cu: *const i32,
    pub cu_valid: *const i32,
    pub sequences: usize,
    pub index: usize,
    pub world: usize,
    pub length: usize,
    pub page_table: *const i32,
    pub pages: usize,
    pub page: usize,
    pub map: RowMap,
}

/// Moves the sequences of a cache `[slots, page, ...]` to the front: for i from 0 to n, ascending, the first
/// `cached - new` tokens of slot `from[i]` become those of slot i. n is the position after the last
/// descent of `from`, or `sequences`. Nothing moves where `from[0]` is 0 and `from[i]` is i.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReindexCacheArgs {
    pub cache: *mut c_void,
    pub from: *const i32,
    pub cu_new: *const i32,
    pub cu_cached: *const i32,
    pub sequences: usize,
    pub page: usize,
    pub row_bytes: usize,
}

/// What a correction does to a half of each sequence.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfOp {
    NVTEX_HALF_NONE = 0,
    NVTEX_HALF_COPY = 1,
    NVTEX_HALF_ADD = 2,
    NVTEX_HALF_ZERO = 3,
}

/// `grad[t] op= step[u]` by halves of sequences; u is t if `full`, else t counted in halves.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradCorrectionArgs {
    pub grad: *mut c_void,
    pub step: *const c_void,
    pub cu: *const i32,
    pub sequences: usize,
    /// Tokens of grad; step has as many if `full`, else half.
    pub tokens: usize,
    /// Elements of a token.
    pub width: usize,
    /// Matrices of tokens one after the other.
    pub outer: usize,
    /// F32, F16 or BF16; Byte without additions.
    pub dtype: NVTEDType,
    pub first: HalfOp,
    pub second: HalfOp,
    pub full: bool,
}

/// Logarithms of sums of exponentials `[heads, len]` (packed) or `[sequences, heads, len]`: those of the
/// second half of each sequence, with `c = cu / 2` and t from 0 to `c[sequences]`.
///
/// Packed: position `t + c[s + 1]` of lse belongs to t of step; else `r + c[s + 1] - c[s]` to
/// `r = t - c[s]`. Read: `step = lse`. Correct: `lse = log(exp(lse) + exp(step))`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HalfLseArgs {
    pub lse: *mut f32,
    pub step: *mut f32,
    pub cu: *const i32,
    pub sequences: usize,
    pub heads: usize,
    pub lse_len: usize,
    pub step_len: usize,
    pub packed: bool,
    pub correct: bool,
}

/// `out = out exp(old_lse - lse) + step exp(step_lse - lse)` for tokens `[tokens, heads, width]`, where
/// a zero element contributes 0 whatever its factor. With `second_half` step has the second halves of the
/// sequences.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OutCorrectionArgs {
    pub out: *mut c_void,
    pub step: *const c_void,
    pub old_lse: *const f32,
    pub lse: *const f32,
    pub step_lse: *const f32,
    pub cu: *const i32,
    pub sequences: usize,
    /// Tokens of step.
    pub tokens: usize,
    pub heads: usize,
    pub width: usize,
    /// As in [`HalfLseArgs`].
    pub lse_len: usize,
    pub step_len: usize,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
    pub second_half: bool,
    pub packed: bool,
}

/// Tokens of a rank: each sequence (`e = cu / world`, `L = e[s + 1] - e[s]` tokens for each rank) is cut
/// into `2 world` chunks, of which rank k has chunk k and the k-th from the end.
/// Token i of the rank, `r = i - e[s]`, is token
/// `r + e[s] world + (L / 2) (r < L / 2 ? k : 2 (world - 1) - k)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartitionArgs {
    pub indices: *mut i32,
    pub cu: *const i32,
    pub sequences: usize,
    /// Tokens of a rank.
    pub tokens: usize,
    pub world: usize,
    pub rank: usize,
}

/// `state = {seed, offset}`, of which each is a value, or a value added to one on the device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SeedArgs {
    pub state: *mut i64,
    pub seed_at: *const i64,
    pub offset_at: *const i64,
    pub seed: i64,
    pub offset: i64,
}

/// One matrix of rows of a [`CopyRowsArgs`], with up to three dimensions of rows; steps in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyRowsEntry {
    pub src: *const c_void,
    pub dst: *mut c_void,
    pub dims: [usize; 3],
    pub src_steps: [usize; 3],
    pub dst_steps: [usize; 3],
    pub src_bytes: usize,
    /// Not less than `src_bytes`; zeros behind those.
    pub dst_bytes: usize,
}

/// Copies rows from one order to another.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyRowsArgs {
    /// Host array; no entry is empty.
    pub entries: *const CopyRowsEntry,
    pub num_entries: usize,
}

/// Direction of a copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    NVTEX_COPY_TO_DEVICE = 0,
    NVTEX_COPY_TO_HOST = 1,
    NVTEX_COPY_ON_DEVICE = 2,
}

/// Functions of a backend. A null entry is unimplemented.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OpTable {
    /// Bytes of this struct as the backend was built.
    pub struct_size: usize,
    /// `NVTEX_BACKEND_API_VERSION` as the backend was built.
    pub api_version: u32,

    pub quantize: Option<unsafe extern "C" fn(*const QuantizeArgs, cudaStream_t) -> Outcome>,
    pub dequantize: Option<unsafe extern "C" fn(*const DequantizeArgs, cudaStream_t) -> Outcome>,
    pub transpose: Option<unsafe extern "C" fn(*const TransposeArgs, cudaStream_t) -> Outcome>,
    pub amax: Option<unsafe extern "C" fn(*const AmaxArgs, cudaStream_t) -> Outcome>,
    pub scale_from_amax:
        Option<unsafe extern "C" fn(*const ScaleFromAmaxArgs, cudaStream_t) -> Outcome>,
    pub delayed_scaling:
        Option<unsafe extern "C" fn(*const DelayedScalingArgs, cudaStream_t) -> Outcome>,
    pub gemm: Option<unsafe extern "C" fn(*const GemmArgs, cudaStream_t) -> Outcome>,
    pub memset: Option<unsafe extern "C" fn(*const MemsetArgs, cudaStream_t) -> Outcome>,
    pub host_copy: Option<unsafe extern "C" fn(*const HostCopyArgs, cudaStream_t) -> Outcome>,
    pub offsets: Option<unsafe extern "C" fn(*const OffsetsArgs, cudaStream_t) -> Outcome>,

    /// 10 * major + minor of the current device, 0 for a backend without one.
    pub device_arch: Option<unsafe extern "C" fn(arch: *mut c_int) -> Outcome>,
    /// Memory of the current device, aligned to 256 bytes. `bytes` is not 0.
    pub device_malloc: Option<unsafe extern "C" fn(ptr: *mut *mut c_void, bytes: usize) -> Outcome>,
    pub device_free: Option<unsafe extern "C" fn(ptr: *mut c_void) -> Outcome>,
    /// Asynchronous on the stream, except that copies from and to pageable memory may block.
    pub device_memcpy: Option<
        unsafe extern "C" fn(
            dst: *mut c_void,
            src: *const c_void,
            bytes: usize,
            kind: CopyKind,
            stream: cudaStream_t,
        ) -> Outcome,
    >,
    pub stream_create: Option<unsafe extern "C" fn(stream: *mut cudaStream_t) -> Outcome>,
    pub stream_destroy: Option<unsafe extern "C" fn(stream: cudaStream_t) -> Outcome>,
    pub stream_synchronize: Option<unsafe extern "C" fn(stream: cudaStream_t) -> Outcome>,
    /// Stream `index` of the current device's pool, created on first use.
    pub compute_stream:
        Option<unsafe extern "C" fn(index: c_int, stream: *mut cudaStream_t) -> Outcome>,
    /// Event `index` of the current device's pool, created on first use.
    pub compute_event:
        Option<unsafe extern "C" fn(index: c_int, event: *mut cudaEvent_t) -> Outcome>,

    pub move_rows: Option<unsafe extern "C" fn(*const MoveRowsArgs, cudaStream_t) -> Outcome>,
    pub reindex_cache:
        Option<unsafe extern "C" fn(*const ReindexCacheArgs, cudaStream_t) -> Outcome>,
    pub grad_correction:
        Option<unsafe extern "C" fn(*const GradCorrectionArgs, cudaStream_t) -> Outcome>,
    pub half_lse: Option<unsafe extern "C" fn(*const HalfLseArgs, cudaStream_t) -> Outcome>,
    pub out_correction:
        Option<unsafe extern "C" fn(*const OutCorrectionArgs, cudaStream_t) -> Outcome>,
    pub partition: Option<unsafe extern "C" fn(*const PartitionArgs, cudaStream_t) -> Outcome>,
    pub seed: Option<unsafe extern "C" fn(*const SeedArgs, cudaStream_t) -> Outcome>,
    pub copy_rows: Option<unsafe extern "C" fn(*const CopyRowsArgs, cudaStream_t) -> Outcome>,
}
