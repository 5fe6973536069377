//! Matrix products.

use super::operator::{Present, operator, size, when};
use crate::types::{NVTEDType, NVTEScalingMode};
use std::ffi::{c_int, c_void};

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
    /// A has twice as many columns as D, those of `g` before those of `u`: `D = silu(g) * u`, and `aux` has the
    /// derivatives by both, `[n, 2 m]`. Only with `aux_slope` and operands in FP8.
    NVTEX_EPILOGUE_SWIGLU = 7,
    /// `D[:, i] = v[:, i] * aux[:, i]` and `D[:, m + i] = v[:, i] * aux[:, m + i]`, where `aux` and D have twice as many
    /// columns as A. Only with `aux_slope` and operands in FP8.
    NVTEX_EPILOGUE_DSWIGLU = 8,
}

impl GemmEpilogue {
    /// A bias, or its gradient.
    fn has_bias(self) -> bool {
        use GemmEpilogue::*;
        matches!(
            self,
            NVTEX_EPILOGUE_BIAS
                | NVTEX_EPILOGUE_GELU_BIAS
                | NVTEX_EPILOGUE_BGRAD
                | NVTEX_EPILOGUE_DGELU_BGRAD
        )
    }

    /// What GELU is applied to, or its gradient.
    pub fn has_aux(self) -> bool {
        use GemmEpilogue::*;
        !matches!(self, NVTEX_EPILOGUE_NONE | NVTEX_EPILOGUE_BIAS | NVTEX_EPILOGUE_BGRAD)
    }
}

/// Scales of one operand of a matrix product, as [`Cast`] describes them: row-wise ones if the
/// operand is stored `[outer, k]`, column-wise ones of MXFP8 data that are stored `[k, outer]`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GemmScales {
    /// FP8 operands: one float in mode 0, else the scale matrix. Null for other operands.
    pub inv: *const c_void,
    /// Elements from one row of the scale matrix to the next; 0 in mode 0.
    pub stride: usize,
    pub mode: NVTEScalingMode,
    /// Modes 1 and 4.
    pub swizzled: bool,
}

/// Factors of products of NVFP4 operands, on the device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4Factors {
    /// Largest magnitudes of the operands: alpha becomes `((alpha * amax_a) * amax_b) * factor`. Null: no
    /// such factors.
    pub amax_a: *const f32,
    pub amax_b: *const f32,
    pub factor: f32,
    /// Both are null, or both stand for `alpha` and `beta` of the product; then `amax_a` is null.
    pub alpha: *const f32,
    pub beta: *const f32,
}

impl Nvfp4Factors {
    pub const NONE: Self = Self {
        amax_a: std::ptr::null(),
        amax_b: std::ptr::null(),
        factor: 0.0,
        alpha: std::ptr::null(),
        beta: std::ptr::null(),
    };
}

impl GemmScales {
    /// One float, or null for an operand in high precision.
    pub const fn per_tensor(inv: *const f32) -> Self {
        let mode = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
        Self { inv: inv.cast(), stride: 0, mode, swizzled: false }
    }

    /// Whether this is FP8 block scaling.
    pub fn in_blocks(&self) -> bool {
        self.mode.float_blocks()
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
///
/// NVFP4 operands (mode 4, both; `transa`, not `transb`) are E2M1 codes `[outer, k / 2]`, two in a byte, the
/// first in the low bits; k is a multiple of 16. Their scales are E4M3 codes `[outer][k / 16]`, each for 16
/// elements along k, or with `swizzled` in tiles of 128 x 4.
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
    /// Also of a BFloat16 D, with `aux_slope` and operands in FP8.
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
    pub nvfp4: Nvfp4Factors,
    pub transa: bool,
    pub transb: bool,
    /// Promote FP8 partial sums to full float32 registers every 128 products; FP8 blocks always do.
    pub split_accumulator: bool,
    /// Multiprocessors to use, 0 for all.
    pub sm_count: c_int,
    /// `aux` has `dgelu(v)` in place of `v`: GELU writes it, and its derivative multiplies by what it reads. With operands
    /// in FP8 `amax_d` is then raised to `max|v|`, or to that of a D in BFloat16, not set to it, and `d_columns` is
    /// wanted of an FP8 D.
    pub aux_slope: bool,
    /// D transposed, only of an FP8 D with `aux_slope`. Null: not wanted.
    pub d_columns: *mut c_void,
    /// Elements from a row of `d_columns` to the next: D has some rows of a matrix of so many.
    pub d_columns_pitch: usize,
}

/// Index of a product among its variants, by the mode of an operand and whether one is FP8.
pub(super) fn product_variant(mode: NVTEScalingMode, fp8: bool) -> u32 {
    use NVTEScalingMode::*;
    match mode {
        NVTE_MXFP8_1D_SCALING => 2,
        NVTE_BLOCK_SCALING_1D | NVTE_BLOCK_SCALING_2D => 3,
        NVTE_NVFP4_1D_SCALING => 4,
        NVTE_DELAYED_TENSOR_SCALING | NVTE_INVALID_SCALING => u32::from(fp8),
    }
}

operator! {
    gemm(GemmArgs) version 1 minor 3; |a|
    variants product_variant(a.scales_a.mode, a.a_dtype.is_fp8() || a.b_dtype.is_fp8()) =>
        [high_precision, fp8, mxfp8, fp8_blocks, nvfp4];
    dtypes a.a_dtype, a.b_dtype, a.d_dtype, when(a.epilogue.has_bias(), a.bias_dtype),
        when(a.epilogue.has_aux(), a.aux_dtype);
    modes a.scales_a.mode, a.scales_b.mode;
    features {
        BIAS = matches!(a.epilogue, GemmEpilogue::NVTEX_EPILOGUE_BIAS | GemmEpilogue::NVTEX_EPILOGUE_GELU_BIAS),
        GELU = matches!(a.epilogue, GemmEpilogue::NVTEX_EPILOGUE_GELU | GemmEpilogue::NVTEX_EPILOGUE_GELU_BIAS),
        BGRAD = matches!(a.epilogue, GemmEpilogue::NVTEX_EPILOGUE_BGRAD | GemmEpilogue::NVTEX_EPILOGUE_DGELU_BGRAD),
        DGELU = matches!(a.epilogue, GemmEpilogue::NVTEX_EPILOGUE_DGELU | GemmEpilogue::NVTEX_EPILOGUE_DGELU_BGRAD),
        BETA = a.beta != 0.0 || a.nvfp4.beta.present(),
        DEVICE_SCALARS = a.nvfp4.alpha,
        DEVICE_AMAX = a.nvfp4.amax_a,
        SWIZZLED = a.scales_a.swizzled || a.scales_b.swizzled,
        SPLIT_ACCUMULATOR = a.split_accumulator,
        AMAX_D = a.amax_d,
        AUX_SLOPE = a.aux_slope,
        SWIGLU = matches!(a.epilogue, GemmEpilogue::NVTEX_EPILOGUE_SWIGLU | GemmEpilogue::NVTEX_EPILOGUE_DSWIGLU),
        D_COLUMNS = a.d_columns,
    }
    bytes size(a.m * a.k, a.a_dtype) + size(a.n * a.k, a.b_dtype)
        + (if a.beta == 0.0 { 1 } else { 2 }) * size(a.m * a.n, a.d_dtype)
        + when(a.epilogue.has_aux(), size(a.m * a.n, a.aux_dtype)).unwrap_or(0);
    workspace a.workspace_bytes;
}

/// `D = alpha A B^T + beta C + diagonal I`, `[n, n]`, where A B^T and C are symmetric but for rounding: D is symmetric,
/// and follows from what is on and below its diagonal.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SymmetricGemmArgs {
    /// `[n, k]`, or with `transposed` `[k, n]`.
    pub a: *const c_void,
    pub b: *const c_void,
    /// Read only if `beta` is not 0. Is not D.
    pub c: *const c_void,
    pub d: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_bytes: usize,
    pub n: usize,
    /// At least 1.
    pub k: usize,
    pub alpha: f32,
    pub beta: f32,
    pub diagonal: f32,
    /// Of all matrices.
    pub dtype: NVTEDType,
    pub transposed: bool,
}

operator! {
    symmetric_gemm(SymmetricGemmArgs) version 1 minor 0; |a|
    dtypes a.dtype;
    features { BETA = a.beta != 0.0, DIAGONAL = a.diagonal != 0.0, TRANSPOSED = a.transposed }
    bytes 2 * size(a.n * a.k, a.dtype) + size(a.n * a.n, a.dtype);
    workspace a.workspace_bytes;
}
