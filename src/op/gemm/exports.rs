//! C functions of gemm.h: matrix products and their configs.
#![allow(unsafe_code, non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::error::{Handle, guard};

/// Creates a matmul config with defaults. Destroy it with `nvte_destroy_matmul_config`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_create_matmul_config() -> NVTEMatmulConfig {
    guard("nvte_create_matmul_config", || Ok(Handle(CONFIGS.insert(MatmulConfig::default())?))).0
}

/// Copies an attribute to `buf` and its size to `size_written` (required). With a null `buf` only the
/// size.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_get_matmul_config_attribute(
    config: NVTEMatmulConfig,
    attr: MaybeUninit<NVTEMatmulConfigAttribute>,
    buf: *mut c_void,
    size_in_bytes: usize,
    size_written: *mut usize,
) {
    // SAFETY: the caller vouches for the buffers.
    guard("nvte_get_matmul_config_attribute", || unsafe {
        get_attribute(config, attr, buf, size_in_bytes, size_written)
    });
}

/// Sets an attribute from `size_in_bytes` bytes at `buf`. Tensors stored here must live until the
/// products that use the config have been called.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_set_matmul_config_attribute(
    config: NVTEMatmulConfig,
    attr: MaybeUninit<NVTEMatmulConfigAttribute>,
    buf: *const c_void,
    size_in_bytes: usize,
) {
    // SAFETY: the caller vouches for the buffer.
    guard("nvte_set_matmul_config_attribute", || unsafe {
        set_attribute(config, attr, buf, size_in_bytes)
    });
}

/// Destroys a matmul config. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_destroy_matmul_config(config: NVTEMatmulConfig) {
    guard("nvte_destroy_matmul_config", || {
        if config.is_null() { Ok(()) } else { CONFIGS.remove("config", config) }
    });
}

/// Creates a grouped matmul config with defaults. Destroy it with
/// `nvte_destroy_grouped_matmul_config`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_create_grouped_matmul_config() -> NVTEGroupedMatmulConfig {
    guard("nvte_create_grouped_matmul_config", || {
        Ok(Handle(GROUPED_CONFIGS.insert(GroupedMatmulConfig::default())?))
    })
    .0
}

/// Copies an attribute to `buf` and its size to `size_written` (required). With a null `buf` only the
/// size. Averages that were never set read as 0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_get_grouped_matmul_config_attribute(
    config: NVTEGroupedMatmulConfig,
    attr: MaybeUninit<NVTEGroupedMatmulConfigAttribute>,
    buf: *mut c_void,
    size_in_bytes: usize,
    size_written: *mut usize,
) {
    // SAFETY: the caller vouches for the buffers.
    guard("nvte_get_grouped_matmul_config_attribute", || unsafe {
        get_grouped_attribute(config, attr, buf, size_in_bytes, size_written)
    });
}

/// Sets an attribute from `size_in_bytes` bytes at `buf`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_set_grouped_matmul_config_attribute(
    config: NVTEGroupedMatmulConfig,
    attr: MaybeUninit<NVTEGroupedMatmulConfigAttribute>,
    buf: *const c_void,
    size_in_bytes: usize,
) {
    // SAFETY: the caller vouches for the buffer.
    guard("nvte_set_grouped_matmul_config_attribute", || unsafe {
        set_grouped_attribute(config, attr, buf, size_in_bytes)
    });
}

/// Destroys a grouped matmul config. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_destroy_grouped_matmul_config(config: NVTEGroupedMatmulConfig) {
    guard("nvte_destroy_grouped_matmul_config", || {
        if config.is_null() { Ok(()) } else { GROUPED_CONFIGS.remove("config", config) }
    });
}

/// `D = Bop Aop`, plus D if `accumulate`, with an epilogue; row-major D `[n, m]`.
///
/// Shapes: `Aop [k, m]` is A, or A^T of A `[m, k]` with `transa`; `Bop [n, k]` is B, or B^T of B
/// `[k, n]` with `transb`. Read column-major it is the BLAS product with the same flags.
/// Dtypes: Float32, Float16, BFloat16, FP8 operands with scales; an FP8 D needs `scale` and sets
/// `scale_inv` and, if there, `amax`.
/// Epilogue (tensors without an address are absent; `v` is the product):
/// neither `D = v`; bias `D = v + bias`; pre_gelu_out `D = gelu(v)`, `pre_gelu_out = v`; both
/// `D = gelu(v + bias)`, `pre_gelu_out = v + bias`. With `grad`: bias `bias[j] = sum over k of
/// Bop[j, k]`; pre_gelu_out `D = v * dgelu(pre_gelu_out)`; both that, and `bias` the sum over the
/// rows of D. GELU is the tanh form.
/// FP8 per tensor: unless `nvte_is_non_tn_fp8_gemm_supported`, each operand is read from the data that
/// are contiguous along k: row-wise for A with `transa` and B without `transb`, else column-wise.
/// FP8 blocks (1D x 1D, 1D x 2D, 2D x 1D) and MXFP8 (both): always from the direction whose blocks lie
/// along k, the same as above; each element counts with its scale, in the layouts of `nvte_quantize`.
/// FP8 blocks are summed in float32 per 128 of k, hence `use_split_accumulator` must be set; k % 16,
/// m % 8 and, if B is 1D, n % 8 must be 0; epilogues: bias, dGELU without bias. CUDA casts MXFP8
/// operands to BFloat16, for which `workspace` must have `2 k (m + n)` bytes and 768 more for
/// alignment; values outside that type's normal range lose bits.
/// NVFP4 (both): from the direction whose blocks lie along k, each element with its scale, compact or
/// swizzled, and the product with `amaxA * amaxB / (36 * maxA * maxB)`, the amaxes of that direction and the
/// tensors' `NVFP4E4M3Max`. D is Float32 or BFloat16; no epilogue `bias` with `grad` alone; k % 16 must be 0.
/// CUDA casts operands to BFloat16, exactly, for which `workspace` must have `2 k (m + n)` bytes and 1024
/// more.
/// `workspace`: bytes of device memory, may have none; `math_sm_count` 0: all multiprocessors.
/// Empty D: nothing is written.
/// Errors: dimensions that do not fit; missing data or scales; other scaling modes, or modes that do
/// not go together; combinations that the device's library has no algorithm for, or a workspace
/// without room for the casts (status unsupported).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cublas_gemm(
    A: NVTETensor,
    B: NVTETensor,
    D: NVTETensor,
    bias: NVTETensor,
    pre_gelu_out: NVTETensor,
    transa: MaybeUninit<bool>,
    transb: MaybeUninit<bool>,
    grad: MaybeUninit<bool>,
    workspace: NVTETensor,
    accumulate: MaybeUninit<bool>,
    use_split_accumulator: MaybeUninit<bool>,
    math_sm_count: i32,
    stream: cudaStream_t,
) {
    let beta = ("accumulate", if truth(accumulate) { 1.0 } else { 0.0 });
    let flags = [transa, transb, grad, use_split_accumulator];
    let product = legacy([A, B, D, bias, pre_gelu_out, workspace], flags, 1.0, beta, math_sm_count);
    guard("nvte_cublas_gemm", || product.run(stream));
}

/// As `nvte_cublas_gemm`, with `D = alpha * Bop Aop + beta * D`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cublas_gemm_scaled(
    A: NVTETensor,
    B: NVTETensor,
    D: NVTETensor,
    bias: NVTETensor,
    pre_gelu_out: NVTETensor,
    transa: MaybeUninit<bool>,
    transb: MaybeUninit<bool>,
    grad: MaybeUninit<bool>,
    workspace: NVTETensor,
    alpha: f32,
    beta: f32,
    use_split_accumulator: MaybeUninit<bool>,
    math_sm_count: i32,
    stream: cudaStream_t,
) {
    let beta = ("beta", beta);
    let flags = [transa, transb, grad, use_split_accumulator];
    let product =
        legacy([A, B, D, bias, pre_gelu_out, workspace], flags, alpha, beta, math_sm_count);
    guard("nvte_cublas_gemm_scaled", || product.run(stream));
}

/// As `nvte_cublas_gemm`, with `D = *alpha * Bop Aop + *beta * C` (host pointers, but device pointers for
/// NVFP4 operands without amax) and options from a config (null: defaults). C may be D, null (D), or another matrix like D. The gradient epilogues
/// are chosen by a `dbias` tensor or `with_dgelu`; GELU and dGELU need the aux tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cublas_gemm_v2(
    transa: i32,
    transb: i32,
    alpha: *const f32,
    A: NVTETensor,
    B: NVTETensor,
    beta: *const f32,
    C: NVTETensor,
    D: NVTETensor,
    workspace: NVTETensor,
    config: NVTEMatmulConfig,
    stream: cudaStream_t,
) {
    guard("nvte_cublas_gemm_v2", || {
        let config = match config.is_null() {
            true => MatmulConfig::default(),
            false => CONFIGS.get("config", config)?,
        };
        let transposed = (transa != 0, transb != 0);
        let on_device = nvfp4::factors_on_device([A, B], transposed)?;
        let factors = [alpha, beta];
        let (alpha, beta) = match on_device {
            true => (1.0, 0.0),
            // SAFETY: the caller vouches for the two pointers.
            false => unsafe { (factor("alpha", alpha)?, factor("beta", beta)?) },
        };
        let product = Product {
            a: A,
            b: B,
            c: C,
            d: D,
            transa: transa != 0,
            transb: transb != 0,
            alpha,
            beta: ("beta", beta),
            epilogue: config_epilogue(&config)?,
            workspace,
            split_accumulator: ("config.use_split_accumulator", config.split_accumulator),
            sm_count: ("config.sm_count", config.sm_count),
        };
        match on_device {
            true => product.run_with_factors(factors, stream),
            false => product.run(stream),
        }
    });
}

/// A C bool, of which any byte may arrive.
pub(crate) fn truth(value: MaybeUninit<bool>) -> bool {
    // SAFETY: a C caller initialises the byte.
    unsafe { value.as_ptr().cast::<u8>().read() != 0 }
}

/// The product of the functions without a config.
fn legacy(
    [a, b, d, bias, pre_gelu_out, workspace]: [NVTETensor; 6],
    flags: [MaybeUninit<bool>; 4],
    alpha: f32,
    beta: (&str, f32),
    math_sm_count: i32,
) -> Product<'_> {
    let [transa, transb, grad, split_accumulator] = flags.map(truth);
    Product {
        a,
        b,
        c: std::ptr::null_mut(),
        d,
        transa,
        transb,
        alpha,
        beta,
        epilogue: Epilogue { bias: ("bias", bias), aux: ("pre_gelu_out", pre_gelu_out), grad },
        workspace,
        split_accumulator: ("use_split_accumulator", split_accumulator),
        sm_count: ("math_sm_count", math_sm_count),
    }
}
