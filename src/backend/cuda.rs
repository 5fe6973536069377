//! The CUDA backend: the launchers of `kernels/`, and matrix products through cuBLASLt.
#![allow(unsafe_code)]

use super::args::*;
use super::cublaslt;
use super::group::scale_pitch;
use super::library;
use crate::env::{CudnnChoice, env};
use crate::types::{NVTEDType, NVTEScalingMode, cudaStream_t};
use crate::verbose::{self, Level};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

unsafe extern "C" {
    /// Fills every entry but `gemm`.
    fn nvte_cuda_table(table: *mut OpTable);
    /// Number of devices, or why there is none. Needs no driver.
    fn nvte_cuda_probe(device_count: *mut c_int) -> Outcome;
    /// Device that the runtime uses on this thread.
    fn nvte_cuda_current_device(device: *mut c_int) -> Outcome;
    /// Where attention uses cuDNN, and how it opens libraries. Called before the table is used.
    fn nvte_cuda_cudnn(
        choice: CudnnChoice,
        open: unsafe extern "C" fn(name: *const c_char) -> *mut c_void,
    );
    fn nvte_cuda_dequantize(args: *const DequantizeArgs, stream: cudaStream_t) -> Outcome;
    /// `scale_inv = 1 / scale`; 1 if `scale` is null.
    fn nvte_cuda_scale_reciprocal(
        scale: *const f32,
        scale_inv: *mut f32,
        stream: cudaStream_t,
    ) -> Outcome;
    /// Values `[outer, k]` of an NVFP4 operand of a product, in BF16.
    fn nvte_cuda_nvfp4_values(
        codes: *const c_void,
        scales: *const GemmScales,
        outer: usize,
        k: usize,
        values: *mut c_void,
        stream: cudaStream_t,
    ) -> Outcome;
    fn nvte_cuda_nvfp4_alpha(args: *const Nvfp4AlphaArgs, stream: cudaStream_t) -> Outcome;
    /// The product over k = 0, to a D in high precision.
    fn nvte_cuda_empty_product(args: *const GemmArgs, stream: cudaStream_t) -> Outcome;
    /// Copies three scales, each of which may be null, to the starts of three 16-byte slots.
    fn nvte_cuda_align_scales(
        a: *const f32,
        b: *const f32,
        d: *const f32,
        slots: *mut f32,
        stream: cudaStream_t,
    ) -> Outcome;
}

pub(super) fn table() -> Result<&'static OpTable, String> {
    static TABLE: OnceLock<Result<OpTable, String>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut count = 0;
        // SAFETY: writes one integer.
        let probe = unsafe { nvte_cuda_probe(&mut count) };
        if probe.status != BackendStatus::NVTEX_BACKEND_OK {
            return Err(probe.reason());
        }
        if count == 0 {
            return Err("no CUDA device".into());
        }
        Ok(launchers())
    });
    table.as_ref().map_err(Clone::clone)
}

fn launchers() -> OpTable {
    let mut table = OpTable::EMPTY;
    // SAFETY: fills the table it is given.
    unsafe { nvte_cuda_table(&mut table) };
    // SAFETY: stores two values.
    unsafe { nvte_cuda_cudnn(env().attention_cudnn, open_library) };
    table.gemm = Some(gemm);
    table
}

/// # Safety
/// `name` is a C string.
unsafe extern "C" fn open_library(name: *const c_char) -> *mut c_void {
    // SAFETY: as promised by the caller.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map_or(std::ptr::null_mut(), library::open)
}

/// # Safety
/// `args` has been checked by the operator's plan; the stream is the caller's.
unsafe extern "C-unwind" fn gemm(args: *const GemmArgs, stream: cudaStream_t) -> Outcome {
    // SAFETY: as promised by the caller.
    let args = unsafe { &*args };
    if args.k == 0 {
        return empty_product(args, stream);
    }
    let mut device = 0;
    // SAFETY: writes one integer.
    let outcome = unsafe { nvte_cuda_current_device(&mut device) };
    if outcome.status != BackendStatus::NVTEX_BACKEND_OK {
        return outcome;
    }
    let prepared = match args.scales_a.mode {
        NVTEScalingMode::NVTE_MXFP8_1D_SCALING => dequantized(args, stream),
        NVTEScalingMode::NVTE_NVFP4_1D_SCALING => nvfp4_values(args, stream),
        _ if args.scales_a.in_blocks() => with_checked_blocks(args),
        _ => with_aligned_scales(args, stream),
    };
    let args = &match prepared {
        Ok(args) => args,
        Err(outcome) => return outcome,
    };
    let outcome = cublaslt::gemm(args, device, stream);
    if outcome.status != BackendStatus::NVTEX_BACKEND_OK || args.scale_inv_d.is_null() {
        return outcome;
    }
    // SAFETY: both are device floats.
    unsafe { nvte_cuda_scale_reciprocal(args.scale_d, args.scale_inv_d, stream) }
}

/// The product of MXFP8 operands, cast to bfloat16 (for a D in float16, to that) in the workspace: exact
/// unless a value leaves that type's normal range.
fn dequantized(args: &GemmArgs, stream: cudaStream_t) -> Result<GemmArgs, Outcome> {
    let [a_bytes, b_bytes] =
        [args.m, args.n].map(|outer| (outer * args.k * 2).next_multiple_of(256));
    let needed = a_bytes + b_bytes;
    let Some(workspace_bytes) = args.workspace_bytes.checked_sub(needed) else {
        let got = args.workspace_bytes;
        return Err(Outcome::unimplemented(format!(
            "MXFP8 operands are cast to 16 bits in the workspace: it needs {needed} bytes after its \
             first 256-byte boundary, got {got}"
        )));
    };
    let part = |at| args.workspace.wrapping_byte_add(at);
    // cuBLASLt has no product of BF16 operands to F16.
    let half = args.d_dtype == NVTEDType::kNVTEFloat16;
    let dtype = if half { NVTEDType::kNVTEFloat16 } else { NVTEDType::kNVTEBFloat16 };
    let (casts, product) = args.dequantized(dtype, part(0), part(a_bytes));
    for cast in &casts {
        // SAFETY: the arguments have been checked, the outputs lie in the workspace.
        let outcome = unsafe { nvte_cuda_dequantize(cast, stream) };
        if outcome.status != BackendStatus::NVTEX_BACKEND_OK {
            return Err(outcome);
        }
    }
    Ok(GemmArgs { workspace: part(needed), workspace_bytes, ..product })
}

/// The product of NVFP4 operands, cast to bfloat16 in the workspace, which is exact, with alpha and beta on
/// the device.
fn nvfp4_values(args: &GemmArgs, stream: cudaStream_t) -> Result<GemmArgs, Outcome> {
    const FACTORS: usize = 256;
    let [a_bytes, b_bytes] =
        [args.m, args.n].map(|outer| (outer * args.k * 2).next_multiple_of(256));
    let needed = a_bytes + b_bytes + FACTORS;
    let Some(workspace_bytes) = args.workspace_bytes.checked_sub(needed) else {
        let got = args.workspace_bytes;
        return Err(Outcome::unimplemented(format!(
            "NVFP4 operands are cast to 16 bits in the workspace: it needs {needed} bytes after its \
             first 256-byte boundary, got {got}"
        )));
    };
    let part = |at| args.workspace.wrapping_byte_add(at);
    let done = |outcome: Outcome| match outcome.status {
        BackendStatus::NVTEX_BACKEND_OK => Ok(()),
        _ => Err(outcome),
    };
    let (a, b) = (part(FACTORS), part(FACTORS + a_bytes));
    // SAFETY: the arguments have been checked, the outputs lie in the workspace.
    unsafe {
        done(nvte_cuda_nvfp4_values(args.a, &args.scales_a, args.m, args.k, a, stream))?;
        done(nvte_cuda_nvfp4_values(args.b, &args.scales_b, args.n, args.k, b, stream))?;
    }
    let mut nvfp4 = args.nvfp4;
    if !nvfp4.amax_a.is_null() {
        let output = part(0).cast::<f32>();
        let factors = Nvfp4AlphaArgs {
            amax_a: nvfp4.amax_a,
            amax_b: nvfp4.amax_b,
            output,
            alpha: args.alpha,
            beta: args.beta,
            factor: nvfp4.factor,
            with_beta: true,
        };
        // SAFETY: as above.
        done(unsafe { nvte_cuda_nvfp4_alpha(&factors, stream) })?;
        (nvfp4.alpha, nvfp4.beta) = (output, output.wrapping_add(1));
    }
    let none = GemmScales::per_tensor(std::ptr::null());
    Ok(GemmArgs {
        a,
        b,
        scales_a: none,
        scales_b: none,
        a_dtype: NVTEDType::kNVTEBFloat16,
        b_dtype: NVTEDType::kNVTEBFloat16,
        nvfp4,
        workspace: part(needed),
        workspace_bytes,
        ..*args
    })
}

/// cuBLASLt has no attribute for the pitch of a scale matrix.
fn with_checked_blocks(args: &GemmArgs) -> Result<GemmArgs, Outcome> {
    let operands = [("A", &args.scales_a, args.m), ("B", &args.scales_b, args.n)];
    for (name, scales, outer) in operands {
        let pitch = scale_pitch(scales.mode, false, (outer, args.k));
        let (stride, address) = (scales.stride, scales.inv);
        if stride != pitch || !(address as usize).is_multiple_of(16) {
            return Err(Outcome::unimplemented(format!(
                "cuBLASLt takes the scales of {name} from rows of {pitch} floats at an address \
                 aligned to 16 bytes, got rows of {stride} at {address:p}"
            )));
        }
    }
    Ok(*args)
}

/// cuBLASLt refuses scales that are not aligned to 16 bytes, as in an array with one scale for each
/// tensor. Such scales are copied to the end of the workspace.
fn with_aligned_scales(args: &GemmArgs, stream: cudaStream_t) -> Result<GemmArgs, Outcome> {
    const ALIGNMENT: usize = 16;
    const SLOTS: usize = 3 * ALIGNMENT;
    let scales = [args.scales_a.inv.cast(), args.scales_b.inv.cast(), args.scale_d];
    if scales.iter().all(|scale: &*const f32| (*scale as usize).is_multiple_of(ALIGNMENT)) {
        return Ok(*args);
    }
    let Some(rest) = args.workspace_bytes.checked_sub(SLOTS) else {
        let text =
            format!("FP8 scales not aligned to {ALIGNMENT} bytes need a workspace of {SLOTS}");
        return Err(Outcome::unimplemented(text));
    };
    verbose::line(Level::Check, "check", || "gemm,scale_inv: not aligned to 16 bytes: copied");
    let rest = rest / ALIGNMENT * ALIGNMENT;
    let slots = args.workspace.wrapping_byte_add(rest).cast::<f32>();
    let [a, b, d] = scales;
    // SAFETY: the workspace, aligned to 256 bytes, has room for three slots from there on.
    let outcome = unsafe { nvte_cuda_align_scales(a, b, d, slots, stream) };
    if outcome.status != BackendStatus::NVTEX_BACKEND_OK {
        return Err(outcome);
    }
    let slot = |index: usize, scale: *const f32| match scale.is_null() {
        true => scale,
        false => slots.wrapping_byte_add(index * ALIGNMENT).cast_const(),
    };
    Ok(GemmArgs {
        scales_a: GemmScales::per_tensor(slot(0, a)),
        scales_b: GemmScales::per_tensor(slot(1, b)),
        scale_d: slot(2, d),
        workspace_bytes: rest,
        ..*args
    })
}

/// The product over k = 0, which cuBLASLt refuses.
fn empty_product(args: &GemmArgs, stream: cudaStream_t) -> Outcome {
    if args.d_dtype.is_fp8() {
        return Outcome::unimplemented("a product with k = 0 has no FP8 output");
    }
    // SAFETY: the arguments have been checked by the operator's plan.
    unsafe { nvte_cuda_empty_product(args, stream) }
}
