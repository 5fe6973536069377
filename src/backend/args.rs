//! What a backend sees: one plain struct of checked arguments per operator family, and the table
//! of function pointers that every backend fills. cbindgen writes them to `include/nvte/backend.h`,
//! which kernels include.
//!
//! The caller of a table entry guarantees that the arguments are valid: pointers cover their
//! shapes, dtypes are among those listed, sizes are not zero. An entry checks only what it itself
//! cannot do and then answers UNIMPLEMENTED, before it has written anything.

#![allow(non_camel_case_types)]

use crate::types::{NVTE_Norm_Type, NVTEDType, NVTEScalingMode, cudaEvent_t, cudaStream_t};
use std::ffi::{c_char, c_int, c_void};

/// Bump when a struct below changes incompatibly.
pub const NVTEX_BACKEND_API_VERSION: u32 = 4;

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
    /// For NVTEX_FORM_PLAIN and NVTEX_FORM_DERIVATIVE: `[cols]` (groups: `[num_tensors, cols]`) of the
    /// input's dtype, or null: the sum of v over the rows (of a member), in float32 in this order:
    /// within each 128 rows (that begin a member) the sums of 4 rows one after the other, then pairs of
    /// those, then the 16 pairs one after the other; of those blocks the i-th is added to sum i % 8, and
    /// these 8 are added one after the other. Sums begin at +0, so that none is -0.
    pub dbias: *mut c_void,
    /// With dbias: `dbias_workspace_rows() * cols` floats.
    pub workspace: *mut f32,
    /// For NVTEX_FORM_GATED of groups or to blocks: `[rows]` of the input's dtype, or null; v is
    /// multiplied by its row's. The row of a member's element is that of the whole,
    /// `(offset + element) / cols`.
    pub row_scales: *const c_void,
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
        row_scales: std::ptr::null(),
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
    /// Values in each array.
    pub length: usize,
    /// `1 / scale`, or null.
    pub scale_inv: *mut f32,
    /// The same again, or null.
    pub colwise_scale_inv: *mut f32,
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

/// Scales of one operand of a matrix product, as [`QuantizeArgs`] describes them: row-wise ones if the
/// operand is stored `[outer, k]`, column-wise ones of MXFP8 data that are stored `[k, outer]`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GemmScales {
    /// FP8 operands: one float in mode 0, else the scale matrix. Null for other operands.
    pub inv: *const c_void,
    /// Elements from one row of the scale matrix to the next; 0 in mode 0.
    pub stride: usize,
    pub mode: NVTEScalingMode,
    /// Mode 1.
    pub swizzled: bool,
}

impl GemmScales {
    /// One float, or null for an operand in high precision.
    pub const fn per_tensor(inv: *const f32) -> Self {
        let mode = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
        Self { inv: inv.cast(), stride: 0, mode, swizzled: false }
    }

    /// Whether this is FP8 block scaling.
    pub fn in_blocks(&self) -> bool {
        use NVTEScalingMode::*;
        matches!(self.mode, NVTE_BLOCK_SCALING_1D | NVTE_BLOCK_SCALING_2D)
    }
}

/// `D = epilogue(alpha * scale_a * scale_b * (Bop Aop) + beta * C)`, row-major D `[n, m]`.
///
/// `Aop [k, m]` is A `[k, m]`, or with `transa` A^T of A `[m, k]`; `Bop [n, k]` is B `[n, k]`, or with
/// `transb` B^T of B `[k, n]`. Read column-major this is the BLAS product with the same flags. An FP8 D
/// is `cast(v * scale_d)`, with `amax_d = max|v|` and `scale_inv_d = 1 / scale_d`.
///
/// Operands in blocks have other scales along k, so these go into the sum: in MXFP8 (both operands in
/// mode 1) each element is multiplied by its scale. In FP8 blocks (modes 2 and 3, one of them in mode 2;
/// `transa`, not `transb`) the partial sums p of each 128 of k are added up as `y = fma(p * s, t, y)`,
/// where s is the scale of B and t that of A, or the other way round if B is in mode 3; if `beta` is 1,
/// `alpha * y` is rounded to D's dtype before C is added. The epilogues of FP8 blocks are none, bias and
/// dGELU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GemmArgs {
    pub a: *const c_void,
    pub b: *const c_void,
    /// Read only if `beta` is not 0; may equal `d`. Its dtype is that of D.
    pub c: *const c_void,
    pub d: *mut c_void,
    pub scales_a: GemmScales,
    pub scales_b: GemmScales,
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
    /// Promote FP8 partial sums to full float32 registers every 128 products; FP8 blocks always do.
    pub split_accumulator: bool,
    /// Multiprocessors to use, 0 for all.
    pub sm_count: c_int,
}

impl GemmArgs {
    /// The casts of MXFP8 operands to matrices of `dtype` at `a` and `b`, and the product of those.
    pub(crate) fn dequantized(
        &self,
        dtype: NVTEDType,
        a: *mut c_void,
        b: *mut c_void,
    ) -> ([DequantizeArgs; 2], Self) {
        let cast = |input, output, scales: &GemmScales, input_dtype, outer, colwise| {
            let (rows, cols) = if colwise { (self.k, outer) } else { (outer, self.k) };
            DequantizeArgs {
                input,
                output,
                scale_inv: scales.inv,
                rows,
                cols,
                scale_stride: scales.stride,
                mode: scales.mode,
                input_dtype,
                output_dtype: dtype,
                colwise,
                swizzled: scales.swizzled,
                group: Group::NONE,
            }
        };
        let casts = [
            cast(self.a, a, &self.scales_a, self.a_dtype, self.m, !self.transa),
            cast(self.b, b, &self.scales_b, self.b_dtype, self.n, self.transb),
        ];
        let none = GemmScales::per_tensor(std::ptr::null());
        let product =
            Self { a, b, scales_a: none, scales_b: none, a_dtype: dtype, b_dtype: dtype, ..*self };
        (casts, product)
    }
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

/// An activation whose rows have scales, or its derivatives, in float32. With v of [`Form`] without
/// the scales:
///
/// Forward: `output[r][h] = cast(v * scales[r])`.
///
/// Backward: with `sg = grad * scales[r]`, plain `output = cast(sg * f'(a))`; gated, the left half is
/// `cast(sg * (f'(a) * G(g)))`, the right half `cast(sg * (G'(g) * f(a)))`. `grad_scales[r] = cast(sum
/// of grad * w)` with `w = f(a)`, or `f(a) * G(g)`, in this order: the product of element h is added
/// to sum h % 1024; neighbouring pairs of these 1024 sums are added, then neighbouring pairs of the
/// results, until one is left.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaledActivationArgs {
    /// `[rows, cols]`, gated `[rows, 2 cols]`.
    pub input: *const c_void,
    /// `[rows, cols]`, or null: forward.
    pub grad: *const c_void,
    /// Forward `[rows, cols]`, backward as the input.
    pub output: *mut c_void,
    /// `[rows]`
    pub scales: *const c_void,
    /// `[rows]`, or null. Only backward.
    pub grad_scales: *mut c_void,
    pub rows: usize,
    pub cols: usize,
    /// A gated row is a sequence of `interleave` elements of a, as many of g, and so on: `cols` for
    /// the usual halves, else a divisor of it that is a multiple of 32.
    pub interleave: usize,
    pub gated: bool,
    pub function: Function,
    pub a: f32,
    pub b: f32,
    pub c: f32,
    /// Each F32, F16 or BF16.
    pub input_dtype: NVTEDType,
    pub grad_dtype: NVTEDType,
    pub output_dtype: NVTEDType,
    pub scales_dtype: NVTEDType,
    pub grad_scales_dtype: NVTEDType,
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

/// Row-wise MXFP8 data to column-wise ones, for groups of whole rows.
///
/// `v = float(input) * 2^(code - 127)`, rounded to BF16 with `through_bf16`; `dequantized = bf16(v)`;
/// `colwise` and its codes as [`QuantizeArgs`] has them for an input v. Codes of both directions are in
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

/// Which keys a query of a softmax sees.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftmaxMask {
    /// All.
    NVTEX_SOFTMAX_UNMASKED = 0,
    /// All; where the byte of the mask is 1, the score is -10000.
    NVTEX_SOFTMAX_BYTES = 1,
    /// Query i sees the keys `j <= i`.
    NVTEX_SOFTMAX_CAUSAL = 2,
    /// Query i sees the keys `j <= i + keys - queries`.
    NVTEX_SOFTMAX_CAUSAL_BOTTOM_RIGHT = 3,
}

/// Softmax over the keys that a query sees, 0 for those that it does not; of `[matrices, queries,
/// keys]` elements.
///
/// Forward: `y = exp(t - max t) / sum exp(t - max t)` with `t = scale * x`, and with a mask of bytes 0
/// in rows whose largest `t` is -10000. Backward: `dx = scale * y * (dy - sum(dy * y))`. Float32
/// throughout, one rounding to the dtype; a NaN that is seen makes its row NaN.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxArgs {
    /// x; dy for the backward.
    pub input: *const c_void,
    /// y for the backward, null for the forward.
    pub results: *const c_void,
    /// May be `input`.
    pub output: *mut c_void,
    /// Forward with `NVTEX_SOFTMAX_BYTES`: matrix m has the bytes `[queries, keys]` from
    /// `m / matrices_per_mask * queries * keys` on.
    pub mask: *const u8,
    pub matrices_per_mask: usize,
    pub matrices: usize,
    pub queries: usize,
    pub keys: usize,
    pub scale: f32,
    pub visible: SoftmaxMask,
    /// F32, F16 or BF16, of all tensors.
    pub dtype: NVTEDType,
}

/// `y = keep ? cast(x * 1 / (1 - probability)) : 0`; bit `i % 8` of the byte `i / 8` of the mask says
/// whether element i is kept, and the bits after the last element are 0.
///
/// Forward: the bits are drawn. Elements 16 c to 16 c + 15 take the 16 bytes of four words of Philox
/// 4x32-10 with the seed as key and the counter `offset / 4 + 2^64 c`, from word `offset % 4` on;
/// element i of them takes of word `i % 8 / 2` the byte `i / 8 + (i even ? 2 : 0)`, the least
/// significant one being 0, and is kept unless that is less than `floor(256 * probability)`.
///
/// With a residual the forward is `y = cast(residual + (keep ? (x + bias) * 1 / (1 - probability) : 0))`,
/// in float32.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DropoutArgs {
    pub input: *const c_void,
    /// May be `input`.
    pub output: *mut c_void,
    /// `ceil(numel / 8)` bytes; read by the backward.
    pub mask: *mut u8,
    /// Seed and offset for the forward, null for the backward.
    pub rng_state: *const u64,
    /// FP8 inputs: x is multiplied by this float first.
    pub scale_inv: *const f32,
    pub numel: usize,
    /// At least 0 and less than 1.
    pub probability: f32,
    /// F32, F16, BF16, E4M3 or E5M2.
    pub input_dtype: NVTEDType,
    /// F32, F16 or BF16; as the input unless that is FP8.
    pub output_dtype: NVTEDType,
    /// As the input, which is not FP8 then, or null.
    pub residual: *const c_void,
    /// `[cols]` of the input's dtype, for each row of the input, or null; null without a residual.
    pub bias: *const c_void,
    pub cols: usize,
}

/// Elements from one index to the next.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RopeStrides {
    /// From one position to the next; of packed sequences: from one token.
    pub position: usize,
    pub sequence: usize,
    /// From one group of heads to the next.
    pub group: usize,
    /// From one head of a group to the next.
    pub head: usize,
    pub element: usize,
}

/// Heads that turn by the same angles.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RopePart {
    pub input: *const c_void,
    /// May be `input` if the strides are equal.
    pub output: *mut c_void,
    /// `[.., rotated]` angles in radians, or null: the part is copied.
    pub freqs: *const f32,
    /// Of all groups; 0 for a part that is not there.
    pub heads: usize,
    pub heads_per_group: usize,
    pub input_strides: RopeStrides,
    /// The element stride is 1.
    pub output_strides: RopeStrides,
}

/// Rotary embedding of heads of `dim` elements, the first `rotated` of which turn in pairs (j, p):
/// `p = j + rotated / 2`, or `p = j + 1` for even j if interleaved.
///
/// Forward: `y_j = x_j cos(a_j) - x_p sin(a_j)`, `y_p = x_p cos(a_p) + x_j sin(a_p)`. Backward, its
/// adjoint: `y_j = x_j cos(a_j) + x_p sin(a_p)`, `y_p = x_p cos(a_p) - x_j sin(a_j)`. Float32, one
/// rounding to the dtype; other elements are copied.
///
/// The angles a of position i of sequence n are row `f = i + start_positions[n]` of freqs; with
/// `cp_size > 1` and the local length L, `f + cp_rank L / 2` for `i < L / 2`, else
/// `f + L cp_size - (cp_rank + 1) L / 2 - L / 2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RopeArgs {
    pub parts: [RopePart; 3],
    /// `[sequences + 1]`, or null. Packed sequences: n has the tokens from `cu_seqlens[n] / cp_size` to
    /// `cu_seqlens[n + 1] / cp_size`; tokens of no sequence are not written.
    pub cu_seqlens: *const i32,
    /// `[sequences]`, or null.
    pub start_positions: *const i32,
    /// Positions of each sequence, tokens of all if they are packed.
    pub positions: usize,
    pub sequences: usize,
    pub dim: usize,
    /// Even, at most `dim`.
    pub rotated: usize,
    pub cp_size: usize,
    pub cp_rank: usize,
    pub interleaved: bool,
    pub backward: bool,
    /// F32, F16 or BF16, of inputs and outputs.
    pub dtype: NVTEDType,
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

/// A matrix of one-byte block scales for a product: `[m, k]`, a row for each row of the operand and a
/// column for each block along the contraction.
///
/// Entry (i, j) lies at `i * k + j` in the compact order (`j * m + i` if `transposed`), and at
/// `((i / 128) * (k / 4) + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4` in tiles.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SwizzleEntry {
    pub source: *const c_void,
    /// Not the source.
    pub destination: *mut c_void,
    /// A multiple of 128. Groups: this and the next three follow from the members, and are not read.
    pub m: usize,
    /// A multiple of 4.
    pub k: usize,
    /// To tiles: entries with i >= valid_m or j >= valid_k become 0.
    pub valid_m: usize,
    pub valid_k: usize,
    pub transposed: bool,
}

/// Moves block scales from the compact order to tiles, or back.
///
/// With a group, an entry stands for the matrices of all members, one after the other: those of the
/// row-wise scales (`transposed`: of the column-wise ones) of MXFP8 data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SwizzleArgs {
    /// Host array; groups: at most 2.
    pub entries: *const SwizzleEntry,
    pub num_entries: usize,
    /// From tiles to the compact order, padding included.
    pub unswizzle: bool,
    /// Of the group.
    pub rows: usize,
    pub cols: usize,
    pub group: Group,
}

/// Exponents of the row-wise scales of FP8 blocks as E8M0 codes of MXFP8 blocks, in tiles: all four
/// codes of 128 columns are `bits(scale) >> 23 & 0xFF`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaleCodesArgs {
    /// 1D: `[cols / 128][row]`; `square`: `[rows / 128][cols / 128]`.
    pub scales: *const f32,
    /// Tiles of `[rows, cols / 32]` codes; those of rows past the end are 0 (`square`: those of the
    /// block).
    pub codes: *mut c_void,
    pub rows: usize,
    pub cols: usize,
    /// Elements from one row of `scales` to the next.
    pub stride: usize,
    pub square: bool,
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
    /// 1 or 3.
    pub mode: NVTEScalingMode,
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
    /// Mode 1 only, as its scales.
    pub colwise: *mut c_void,
    pub rowwise_scales: *const c_void,
    pub colwise_scales: *const c_void,
    pub rowwise_stride: usize,
    pub colwise_stride: usize,
    pub block_step: usize,
    /// 1 or 3.
    pub mode: NVTEScalingMode,
    /// E4M3 or E5M2.
    pub output_dtype: NVTEDType,
}

/// A tensor of attention. Element x of row r and head j of sequence i is at
/// `i * batch + r * row + j * head + x`; if the side is ragged, at
/// `(starts[i] + r) * row + j * head + x`; of a page p of paged keys and values, at
/// `p * batch + r * row + j * head + x`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttentionTensor {
    /// Null: the tensor is not there. Aligned to 16 bytes if those of a head, or of a row of a bias, are a
    /// multiple of that, else to an element: who reads vectors looks at the strides.
    pub data: *mut c_void,
    pub dtype: NVTEDType,
    /// Elements; times the element's size a multiple of 16 bytes wherever `data` is read or written by
    /// vectors.
    pub batch: i64,
    pub row: i64,
    pub head: i64,
    /// Of FP8 tensors; may be null (1, and no amax). An output has its amax written before it is
    /// multiplied by `scale`; `scale_inv` is not written.
    pub scale: *const f32,
    pub scale_inv: *const f32,
    pub amax: *mut f32,
}

/// The queries' or the keys' side of attention.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttentionSide {
    /// Sequence i has `cu_seqlens[i + 1] - cu_seqlens[i]` rows; null: all have `max_seqlen`.
    pub cu_seqlens: *const i32,
    /// First rows of the sequences, `batch + 1`, or null: the side is dense, `max_seqlen` rows each.
    pub starts: *const i32,
    pub max_seqlen: usize,
    /// Rows of a ragged tensor.
    pub tokens: usize,
    pub heads: usize,
}

/// Softmax(scale q k^T + bias) v and its gradients, one args struct for both passes.
///
/// Scores of sequence i, head j, row r, column c:
/// `x = scale * (q_r . k_c) + bias + slope_j (c - r)`, admissible iff r and c are inside their lengths
/// Lq and Lk, `c <= r + shift + window_right` and `c >= r + shift - window_left` (-1: no bound), with
/// `shift = Lk - Lq` if `bottom_right`, else 0. Query head j reads key head
/// `j / (q_side.heads / kv_side.heads)`.
///
/// Forward: `m = max x`, `l = sum exp(x - m)`, both with the sink `a_j` as one more score without a
/// value; `stats = m + ln l`; `p = exp(x - stats)`; `z = keep p / (1 - dropout)`; `o = sum z v`. A row
/// without an admissible column has o = 0 and stats = max = -inf, with a sink too. Rows of dense tensors that lie past
/// their sequence become 0 (stats, max: -inf); of ragged tensors they are not touched.
///
/// Backward: `D = sum do o`, `dp = do . v_c`, `ds = p (keep dp / (1 - dropout) - D)`,
/// `dv = sum z do`, `dbias = sum ds`, `dq = scale sum ds k`, `dk = scale sum ds q`,
/// `dsink_j = -sum exp(a_j - stats) D`. p is selected by the mask, since stats may be -inf.
///
/// FP8 (spec of `s` and `dp`): `x = acc scale q.scale_inv k.scale_inv`; p, after dropout, is multiplied by
/// `s.scale` and cast to q's dtype, o gets `s.scale_inv v.scale_inv`; `s.amax = max p` before that.
/// Backward: ds is multiplied by `scale`, its amax goes to `dp.amax`, and `ds dp.scale` is cast to do's
/// dtype; dq and dk get `dp.scale_inv` and k's and q's `scale_inv`.
///
/// Dropout: each call of Philox 4x32-7, with the seed as key and the counter `offset / 4 + 2^64 G`, serves
/// 16 elements of a tile of 16 rows and columns: element (i, j, r, c) takes byte
/// `2 (c / 8 % 2) + r / 8 % 2` of word `2 (r % 2) + c % 2`, the least significant byte being 0, with
/// `G = 16 (((i heads + j) ceil(q_side.max_seqlen / 16) + r / 16) ceil(kv_side.max_seqlen / 16) + c / 16)
/// + 4 (r % 8 / 2) + c % 8 / 2`. It is dropped iff
/// `16 byte + 4 ((r % 8 / 2 + c % 8 / 2) % 4) + r % 8 / 2 < min(floor(4096 dropout + 0.5), 4080)`, in
/// float32: the probability is rounded to multiples of 1/4096, which a tile has as a mean.
///
/// There is a batch, a head and an element of each; the length of a side may be 0, and what lies outside a
/// sequence may be NaN.
// A line of the formula begins with a plus.
#[allow(clippy::doc_lazy_continuation)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttentionArgs {
    pub q: AttentionTensor,
    pub k: AttentionTensor,
    pub v: AttentionTensor,
    /// Written by the forward, read by the backward.
    pub o: AttentionTensor,
    /// The following four are the backward's; its absence is what tells the forward.
    pub d_o: AttentionTensor,
    pub dq: AttentionTensor,
    pub dk: AttentionTensor,
    pub dv: AttentionTensor,
    /// Of q's dtype, of FP8 q in high precision, or null; `batch`, `head` and `row` are 0 where the bias is
    /// broadcast.
    pub bias: AttentionTensor,
    /// Likewise, contiguous with a 0 stride where it is summed, or null. All of it is written. Of FP8 scores
    /// too it is the sum of ds before `scale` and the cast.
    pub dbias: AttentionTensor,
    /// FP8 only: scale, scale_inv and amax of the probabilities and of the scores' gradient.
    pub s: AttentionTensor,
    pub dp: AttentionTensor,
    pub q_side: AttentionSide,
    pub kv_side: AttentionSide,
    pub batch: usize,
    /// Elements of a head of q and k.
    pub dim_qk: usize,
    /// Elements of a head of v and o.
    pub dim_v: usize,
    /// F32, written by the forward, read by the backward: natural logarithm. Element (i, j, r) is at
    /// `(i heads + j) q_side.max_seqlen + r`; if q is ragged at `(starts[i] + r) heads + j`.
    pub stats: *mut f32,
    /// Largest admissible x of each row without the sink, laid out as `stats`; or null.
    pub max: *mut f32,
    /// `[q_side.heads]`, or null: no sink.
    pub sink: *const f32,
    pub dsink: *mut f32,
    /// `[batch, max_pages]`, or null: not paged. Page numbers of the keys; token t of sequence i is row
    /// `t % page_size` of page `page_table_k[i * max_pages_k + t / page_size_k]`.
    pub page_table_k: *const i32,
    pub page_table_v: *const i32,
    pub max_pages_k: usize,
    pub max_pages_v: usize,
    pub page_size_k: usize,
    pub page_size_v: usize,
    pub scale: f32,
    /// Probability that an element is dropped; 0: none is.
    pub dropout: f32,
    /// Seed and offset, on the device.
    pub rng_state: *const i64,
    /// -1: unbounded.
    pub window_left: i64,
    pub window_right: i64,
    pub bottom_right: bool,
    /// `n = 2^floor(log2 heads)`; `slope_j = 2^(-8 (j + 1) / n)` for `j < n`, else
    /// `2^(-4 (2 (j - n) + 1) / n)`.
    pub alibi: bool,
    pub backward: bool,
    /// The backward adds in a fixed order.
    pub deterministic: bool,
    pub workspace: *mut c_void,
    /// At least what [`AttentionPlan`] says.
    pub workspace_bytes: usize,
}

/// What a backend would do with an [`AttentionArgs`], whose pointers may be null where only their
/// being there does not matter: a plan looks at shapes, strides, dtypes and options, and takes a
/// pointer that is not null as "is there".
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttentionPlan {
    pub workspace_bytes: usize,
    /// Name of the implementation, static.
    pub implementation: *const c_char,
    /// "name: reason" of those that were rejected before it, one a line; valid until the thread's next
    /// backend call.
    pub rejected: *const c_char,
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
    pub scaled_activation:
        Option<unsafe extern "C" fn(*const ScaledActivationArgs, cudaStream_t) -> Outcome>,
    pub softmax: Option<unsafe extern "C" fn(*const SoftmaxArgs, cudaStream_t) -> Outcome>,
    pub dropout: Option<unsafe extern "C" fn(*const DropoutArgs, cudaStream_t) -> Outcome>,
    pub rope: Option<unsafe extern "C" fn(*const RopeArgs, cudaStream_t) -> Outcome>,

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

    pub swap_first_dims:
        Option<unsafe extern "C" fn(*const SwapFirstDimsArgs, cudaStream_t) -> Outcome>,
    pub transpose_dbias:
        Option<unsafe extern "C" fn(*const TransposeDbiasArgs, cudaStream_t) -> Outcome>,
    pub requantize: Option<unsafe extern "C" fn(*const RequantizeArgs, cudaStream_t) -> Outcome>,
    pub swizzle: Option<unsafe extern "C" fn(*const SwizzleArgs, cudaStream_t) -> Outcome>,
    pub scale_codes: Option<unsafe extern "C" fn(*const ScaleCodesArgs, cudaStream_t) -> Outcome>,
    pub group_amax: Option<unsafe extern "C" fn(*const GroupAmaxArgs, cudaStream_t) -> Outcome>,
    pub partial_amax: Option<unsafe extern "C" fn(*const PartialAmaxArgs, cudaStream_t) -> Outcome>,
    pub partial_cast: Option<unsafe extern "C" fn(*const PartialCastArgs, cudaStream_t) -> Outcome>,
    pub norm_forward: Option<unsafe extern "C" fn(*const NormForwardArgs, cudaStream_t) -> Outcome>,
    pub norm_backward:
        Option<unsafe extern "C" fn(*const NormBackwardArgs, cudaStream_t) -> Outcome>,
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
    /// The implementation of a pass and its workspace; UNIMPLEMENTED with all reasons if there is none.
    pub attention_plan:
        Option<unsafe extern "C" fn(*const AttentionArgs, *mut AttentionPlan) -> Outcome>,
    pub attention: Option<unsafe extern "C" fn(*const AttentionArgs, cudaStream_t) -> Outcome>,
    pub adam: Option<unsafe extern "C" fn(*const AdamArgs, cudaStream_t) -> Outcome>,
    pub sgd: Option<unsafe extern "C" fn(*const SgdArgs, cudaStream_t) -> Outcome>,
    pub l2_norm: Option<unsafe extern "C" fn(*const L2NormArgs, cudaStream_t) -> Outcome>,
    pub scale_tensors:
        Option<unsafe extern "C" fn(*const ScaleTensorsArgs, cudaStream_t) -> Outcome>,
    pub scales_from_amax:
        Option<unsafe extern "C" fn(*const ScalesFromAmaxArgs, cudaStream_t) -> Outcome>,
}

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
/// `v = g (rsigma x)`. v is cast as [`QuantizeArgs`] says of an input in F32, except that the amax of
/// an output in F32, F16 or BF16 is that of the rounded values.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NormForwardArgs {
    /// From x, `[rows, cols]`, to the result; without a fusion, a group or a noop flag. There may be
    /// no rows, but at least one column. In mode 0 there are row-wise data.
    pub cast: QuantizeArgs,
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
    /// Room for sums over some of the rows, `[parts, cols]` for dgamma, then for dbeta.
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
}

impl NormBackwardArgs {
    /// How many sums over rows there are: two for each multiprocessor that may be used, while
    /// there are rows for them.
    pub fn parts(rows: usize, sm_count: c_int) -> usize {
        rows.min(2 * sm_count.max(1) as usize).max(1)
    }
}

/// One of the tensors that an operator takes a list of: what `data` is, each operator says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MultiTensor {
    pub data: [*mut c_void; 8],
    /// Elements of each buffer; not 0 unless the operator says so.
    pub numel: usize,
}

/// What holds the parameters of an [`AdamArgs`] in float32.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdamMaster {
    /// Nothing: `data[1]` is read and written.
    NVTEX_ADAM_NO_MASTER = 0,
    /// `data[4]`, of F32: `data[1]` is only written, from the new master.
    NVTEX_ADAM_FLOAT_MASTER = 1,
    /// `data[1]`, of BF16, and `data[4]`, of Int16: the remainder is the low half of the master's bits,
    /// the parameter the high half, plus 1 if the remainder is negative.
    NVTEX_ADAM_REMAINDER = 2,
}

/// One step of Adam on many tensors, in this order of operations, each rounded to float32:
///
/// `g *= inv_scale`; if `l2`, `g += weight_decay * p`;
/// `m = beta1 * m + (1 - beta1) * g`; `v = beta2 * v + ((1 - beta2) * g) * g`;
/// `u = (m * (1 / bias1)) / (sqrt(v * (1 / bias2)) + epsilon)`; unless `l2`, `u += weight_decay * p`;
/// `p = p - lr * u`.
///
/// Data of a tensor: gradient g, parameter p, moments m and v, master (see [`AdamMaster`]). FP8
/// parameters have a float master and three floats: scale, amax and scale_inv, or null each. Then
/// `data[1] = cast(p * scale)` (1 without a scale), `amax = max(amax, max|p|)` by the integer maximum of
/// the bits, NaN ignored, and `scale_inv = 1 / scale`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AdamArgs {
    /// Host array.
    pub tensors: *const MultiTensor,
    pub num_tensors: usize,
    pub lr: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    pub weight_decay: f32,
    pub bias1: f32,
    pub bias2: f32,
    /// On the device, or null: instead of `lr`.
    pub device_lr: *const f32,
    /// On the device, or null: `bias1 = 1 - beta1^step`, `bias2 = 1 - beta2^step` instead, as
    /// `bias_correction` computes them.
    pub device_step: *const i32,
    /// On the device, or null for 1; if there is one, the scaled gradient is also stored.
    pub inv_scale: *const f32,
    /// Null, or a flag that forbids everything if it is 1.
    pub noop: *const i32,
    pub l2: bool,
    pub master: AdamMaster,
    /// F32, F16 or BF16.
    pub grad_dtype: NVTEDType,
    /// F32, F16, BF16, E4M3 or E5M2.
    pub param_dtype: NVTEDType,
    /// F32 or BF16; F32 if the parameters are FP8.
    pub moment_dtype: NVTEDType,
}

impl AdamArgs {
    /// `1 - beta^step` in float64, by repeated squaring from the lowest bit of the step on, rounded to
    /// float32; 0 for steps below 1.
    pub fn bias_correction(beta: f32, step: i32) -> f32 {
        let (mut power, mut square, mut bits) = (1.0, f64::from(beta), step.max(0));
        while bits > 0 {
            if bits & 1 == 1 {
                power *= square;
            }
            square *= square;
            bits >>= 1;
        }
        (1.0 - power) as f32
    }
}

/// One step of gradient descent on many tensors, in this order of operations, each rounded to float32:
///
/// `g *= scale`; `g += weight_decay * w` unless `decay_after_momentum`; with a momentum that is not 0,
/// `b = g` in the first run, else `b = b * momentum + (1 - dampening) * g`, then
/// `g = g + momentum * b` if `nesterov`, else `g = b`; `g += weight_decay * w` if
/// `decay_after_momentum`; `d = -lr * g`, rounded to the dtype of the weights; `w = w + d`.
/// Decay of 0 adds nothing. Data of a tensor: gradient, weight w, momentum b, copy of the new weight or
/// null. Without momentum b is not touched.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SgdArgs {
    /// Host array.
    pub tensors: *const MultiTensor,
    pub num_tensors: usize,
    pub lr: f32,
    pub momentum: f32,
    pub dampening: f32,
    pub weight_decay: f32,
    pub scale: f32,
    pub nesterov: bool,
    pub first_run: bool,
    pub decay_after_momentum: bool,
    /// A flag that forbids everything unless it is 0.
    pub noop: *const i32,
    /// F32, F16 or BF16.
    pub grad_dtype: NVTEDType,
    /// F32, F16 or BF16, of weights and momentum.
    pub weight_dtype: NVTEDType,
    /// F16 or BF16 beside F32 weights, of all copies.
    pub copy_dtype: NVTEDType,
}

/// `norm = sqrt(sum (x * inv_scale)^2)` over the elements of all tensors, squared and summed in float32 or
/// better, in a fixed order. Data of a tensor: x. Tensors may be empty; there may be none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct L2NormArgs {
    /// Host array.
    pub tensors: *const MultiTensor,
    pub num_tensors: usize,
    /// On the device, or null for 1.
    pub inv_scale: *const f32,
    pub norm: *mut f32,
    /// The norm of each tensor, or null.
    pub tensor_norms: *mut f32,
    /// Workspace of `partials` floats.
    pub workspace: *mut f32,
    pub partials: usize,
    /// With `tensor_norms`: workspace of `num_tensors * chunks` floats, `ceil(numel / chunk) <= chunks`.
    pub tensor_workspace: *mut f32,
    pub chunks: usize,
    pub chunk: usize,
    /// Set to 1 if the sum of some part is not finite.
    pub non_finite: *mut i32,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
}

/// `y = cast(x * scale)` of many tensors. Data of a tensor: x, y, which may be the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaleTensorsArgs {
    /// Host array.
    pub tensors: *const MultiTensor,
    pub num_tensors: usize,
    pub scale: f32,
    /// On the device, or null: instead of `scale`.
    pub device_scale: *const f32,
    /// Set to 1 if some x is not finite.
    pub non_finite: *mut i32,
    /// F32, F16 or BF16.
    pub input_dtype: NVTEDType,
    pub output_dtype: NVTEDType,
}

/// Scales of many tensors from their amax.
///
/// Floats: amax, scale, scale_inv, as [`ScaleFromAmaxArgs`] defines them. E8M0: a BF16 amax and the code
/// of `amax / 448`, rounded up to a power of two: 0xff for NaN, at most 0xfe otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScalesFromAmaxArgs {
    /// Host array.
    pub tensors: *const MultiTensor,
    pub num_tensors: usize,
    pub fp8_max: f32,
    pub epsilon: f32,
    pub pow2: bool,
    pub e8m0: bool,
}
