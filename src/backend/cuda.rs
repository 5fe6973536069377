//! The CUDA backend: the launchers of `kernels/`, and matrix products through cuBLASLt, or where that has
//! none through the kernel of grouped products.
#![allow(unsafe_code)]

use super::args::*;
use super::cublaslt;
use super::operators::operators;
use crate::types::{NVTEDType, NVTEScalingMode, cudaEvent_t, cudaStream_t};
use crate::verbose::{self, Level};
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

macro_rules! launchers {
    (
        operators { $($entry:ident($args:ident) = $cpu:path;)* }
        functions {
            $($(#[$doc:meta])* $name:ident($($param:ident: $type:ty),* $(,)?) = $name_cpu:path;)*
        }
    ) => {
        /// What `kernels/` defines: a C function `nvte_cuda_<entry>` for each entry of the table.
        mod kernels {
            use super::*;

            unsafe extern "C-unwind" {
                $(
                    #[link_name = concat!("nvte_cuda_", stringify!($entry))]
                    pub fn $entry(args: *const $args, stream: cudaStream_t) -> Outcome;
                )*
                $(
                    #[link_name = concat!("nvte_cuda_", stringify!($name))]
                    pub fn $name($($param: $type),*) -> Outcome;
                )*
            }
        }

        const LAUNCHERS: OpTable =
            OpTable { $($entry: Some(kernels::$entry),)* $($name: Some(kernels::$name),)* };
    };
}
operators!(launchers);

/// The launchers, except for matrix products, which have none: they go through cuBLASLt. (A constant is no
/// code, so that the launcher which `LAUNCHERS` names for them need not exist.)
static TABLE: OpTable = OpTable { gemm: Some(gemm), ..LAUNCHERS };

unsafe extern "C" {
    /// Number of devices, or why there is none. Needs no driver.
    fn nvte_cuda_probe(device_count: *mut c_int) -> Outcome;
    /// Device that the runtime uses on this thread.
    fn nvte_cuda_current_device(device: *mut c_int) -> Outcome;
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
    /// D, and what else the epilogue writes, of sums `[n, m]` in float32 with alpha and the scales of the
    /// operands; zeros if they are null. The operands are read for the gradient of a bias only.
    fn nvte_cuda_finish_product(
        args: *const GemmArgs,
        sums: *const f32,
        stream: cudaStream_t,
    ) -> Outcome;
    /// Copies three scales, each of which may be null, to the starts of three 16-byte slots.
    fn nvte_cuda_align_scales(
        a: *const f32,
        b: *const f32,
        d: *const f32,
        slots: *mut f32,
        stream: cudaStream_t,
    ) -> Outcome;
}

/// The table, or why there is no device to run it.
pub(super) fn table() -> Result<&'static OpTable, String> {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let ready = READY.get_or_init(|| {
        let mut count = 0;
        // SAFETY: writes one integer.
        let probe = unsafe { nvte_cuda_probe(&mut count) };
        if probe.status != BackendStatus::NVTEX_BACKEND_OK {
            return Err(probe.reason());
        }
        if count == 0 {
            return Err("no CUDA device".into());
        }
        Ok(())
    });
    ready.clone().map(|()| &TABLE)
}

/// # Safety
/// `args` has been checked by the operator's plan; the stream is the caller's.
unsafe extern "C-unwind" fn gemm(args: *const GemmArgs, stream: cudaStream_t) -> Outcome {
    // SAFETY: as promised by the caller.
    let args = unsafe { &*args };
    let scale_inv = |()| match args.scale_inv_d.is_null() {
        true => Ok(()),
        false => {
            // SAFETY: both are device floats.
            done(unsafe { nvte_cuda_scale_reciprocal(args.scale_d, args.scale_inv_d, stream) })
        }
    };
    match product(args, stream).and_then(scale_inv) {
        Ok(()) => Outcome::OK,
        Err(outcome) => outcome,
    }
}

/// An outcome as a result; what fails is to be reported.
fn done(outcome: Outcome) -> Result<(), Outcome> {
    match outcome.status {
        BackendStatus::NVTEX_BACKEND_OK => Ok(()),
        _ => Err(outcome),
    }
}

/// `second` where `first` is not implemented; a reason of both if neither is.
fn or_else(
    first: Result<(), Outcome>,
    second: impl FnOnce() -> Result<(), Outcome>,
) -> Result<(), Outcome> {
    let unimplemented =
        |outcome: &Outcome| outcome.status == BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED;
    match first {
        Err(first) if unimplemented(&first) => {
            // The next outcome takes the place of the text.
            let reason = first.reason();
            second().map_err(|second| match unimplemented(&second) {
                true => Outcome::unimplemented(format!("{reason}; {}", second.reason())),
                false => second,
            })
        }
        result => result,
    }
}

/// D with all that belongs to it but `scale_inv`.
fn product(args: &GemmArgs, stream: cudaStream_t) -> Result<(), Outcome> {
    if args.k == 0 {
        return finish(args, std::ptr::null(), stream);
    }
    let mut device = 0;
    // SAFETY: writes one integer.
    done(unsafe { nvte_cuda_current_device(&mut device) })?;
    let multiply = |args: &GemmArgs| done(cublaslt::gemm(args, device, stream));
    match args.scales_a.mode {
        NVTEScalingMode::NVTE_MXFP8_1D_SCALING => match dequantized(args, stream) {
            Ok(args) => or_else(multiply(&args), || by_float32(&args, device, stream)),
            Err(outcome) => or_else(Err(outcome), || own_product(args, stream)),
        },
        NVTEScalingMode::NVTE_NVFP4_1D_SCALING => multiply(&nvfp4_values(args, stream)?),
        _ if args.scales_a.in_blocks() => {
            let product = with_checked_blocks(args).and_then(|()| multiply(args));
            or_else(product, || own_product(args, stream))
        }
        _ if args.a_dtype.is_fp8() => {
            let product = with_aligned_scales(args, stream).and_then(|args| multiply(&args));
            or_else(product, || own_product(args, stream))
        }
        _ => or_else(multiply(args), || by_float32(args, device, stream)),
    }
}

/// A part of the workspace, aligned to 256 bytes, and what is left.
fn take(args: &GemmArgs, bytes: usize, what: &str) -> Result<(*mut c_void, GemmArgs), Outcome> {
    let bytes = bytes.next_multiple_of(256);
    let Some(workspace_bytes) = args.workspace_bytes.checked_sub(bytes) else {
        let got = args.workspace_bytes;
        return Err(Outcome::unimplemented(format!(
            "{what} the workspace needs {bytes} bytes after its first 256-byte boundary, got {got}"
        )));
    };
    let workspace = args.workspace.wrapping_byte_add(bytes);
    Ok((args.workspace, GemmArgs { workspace, workspace_bytes, ..*args }))
}

/// The arguments of a product whose result goes to `sums` in float32 without anything else.
fn only_sums(args: &GemmArgs, sums: *mut c_void) -> GemmArgs {
    GemmArgs {
        c: sums,
        d: sums,
        scale_d: std::ptr::null(),
        amax_d: std::ptr::null_mut(),
        scale_inv_d: std::ptr::null_mut(),
        bias: std::ptr::null_mut(),
        aux: std::ptr::null_mut(),
        beta: 0.0,
        d_dtype: NVTEDType::kNVTEFloat32,
        epilogue: GemmEpilogue::NVTEX_EPILOGUE_NONE,
        ..*args
    }
}

/// A product whose result, bias or aux buffer has a dtype that cuBLASLt does not have: as one to float32,
/// and a kernel that does the rest.
fn by_float32(args: &GemmArgs, device: c_int, stream: cudaStream_t) -> Result<(), Outcome> {
    let sums_bytes = args.m * args.n * size_of::<f32>();
    let (sums, args) = take(args, sums_bytes, "to multiply to Float32 first,")?;
    done(cublaslt::gemm(&only_sums(&args, sums), device, stream))?;
    finish(&args, sums.cast(), stream)
}

/// A product of FP8 operands whose sizes, addresses or dtypes cuBLASLt does not take: by the kernel of
/// grouped products, which takes any, as a group of one. It has no epilogues, so that a result with one, or
/// in FP8, comes as sums in float32 first.
fn own_product(args: &GemmArgs, stream: cudaStream_t) -> Result<(), Outcome> {
    const WHAT: &str = "without cuBLASLt";
    // What the kernel keeps about a group of one.
    const GROUP_BYTES: usize = 2048;
    let matrix = |data: *const c_void, scales: &GemmScales, dtype, (outer, inner), transposed| {
        GroupedMatrix {
            data: data.cast_mut(),
            members: std::ptr::null(),
            outer_dims: std::ptr::null(),
            inner_dims: std::ptr::null(),
            offsets: std::ptr::null(),
            scale_inv: scales.inv,
            elements: outer * inner,
            scale_entries: {
                let stored = if transposed { (inner, outer) } else { (outer, inner) };
                scales.mode.scaling().scale_entries(transposed, stored)
            },
            outer,
            inner,
            mode: scales.mode,
            dtype,
            transposed,
            swizzled: scales.swizzled,
        }
    };
    let operands = [
        ("A", args.a, &args.scales_a, args.a_dtype, args.m, !args.transa),
        ("B", args.b, &args.scales_b, args.b_dtype, args.n, args.transb),
    ];
    for (name, _, scales, _, outer, transposed) in operands {
        let shape = if transposed { (args.k, outer) } else { (outer, args.k) };
        let pitch = match scales.mode {
            NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING => 0,
            mode => mode.scaling().scale_pitch(transposed, shape),
        };
        if scales.stride != pitch {
            let stride = scales.stride;
            return Err(Outcome::unimplemented(format!(
                "{WHAT} the scales of {name} lie in rows of {pitch}, got rows of {stride}"
            )));
        }
    }
    let mxfp8 = args.scales_b.mode == NVTEScalingMode::NVTE_MXFP8_1D_SCALING;
    if mxfp8 && args.epilogue == GemmEpilogue::NVTEX_EPILOGUE_BGRAD {
        let text = format!("{WHAT} there is no bias gradient of MXFP8");
        return Err(Outcome::unimplemented(text));
    }
    let [a, b] = operands.map(|(_, data, scales, dtype, outer, transposed)| {
        matrix(data, scales, dtype, (outer, args.k), transposed)
    });
    let direct = args.epilogue == GemmEpilogue::NVTEX_EPILOGUE_NONE && !args.d_dtype.is_fp8();
    let sums_bytes = if direct { 0 } else { args.m * args.n * size_of::<f32>() };
    // All of it at once, so that the message says what is needed.
    let setup_bytes = 256 + GROUP_BYTES;
    let (part, _) = take(args, setup_bytes + sums_bytes, WHAT)?;
    let workspace = part.wrapping_byte_add(256);
    let sums = part.wrapping_byte_add(setup_bytes);
    let product = if direct { *args } else { only_sums(args, sums) };
    let factors = [product.alpha, product.beta];
    let copy =
        HostCopyArgs { host: factors.as_ptr().cast(), device: part, bytes: size_of_val(&factors) };
    let none = GemmScales::per_tensor(std::ptr::null());
    let output = |data| matrix(data, &none, product.d_dtype, (args.n, args.m), false);
    let alpha = part.cast::<f32>().cast_const();
    let group = GroupedGemmArgs {
        a,
        b,
        c: output(product.c),
        d: output(product.d),
        alpha,
        beta: alpha.wrapping_add(1),
        alpha_stride: 0,
        beta_stride: 0,
        num_tensors: 1,
        setup_workspace: workspace,
        setup_bytes: GROUP_BYTES,
        workspace,
        workspace_bytes: GROUP_BYTES,
        mean_m: args.m,
        mean_n: args.n,
        mean_k: args.k,
        split_accumulator: args.split_accumulator,
        sm_count: args.sm_count,
    };
    verbose::line(Level::Dispatch, "dispatch", || {
        format!("gemm,own kernel,m {},n {},k {}", args.m, args.n, args.k)
    });
    // SAFETY: the workspace has room for the factors and the group; the kernel stays inside of the
    // matrices, which the operator's plan has checked.
    unsafe {
        done(kernels::host_copy(&copy, stream))?;
        done(kernels::grouped_gemm(&group, stream))?;
    }
    if direct { Ok(()) } else { finish(args, sums.cast(), stream) }
}

/// Turns sums in float32, or zeros if there are none, into D and what the epilogue writes.
fn finish(args: &GemmArgs, sums: *const f32, stream: cudaStream_t) -> Result<(), Outcome> {
    if !args.amax_d.is_null() {
        let clear = MemsetArgs { ptr: args.amax_d.cast(), bytes: size_of::<f32>(), value: 0 };
        // SAFETY: one device float.
        done(unsafe { kernels::memset(&clear, stream) })?;
    }
    // SAFETY: the arguments have been checked by the operator's plan; the sums have D's size.
    done(unsafe { nvte_cuda_finish_product(args, sums, stream) })
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
        done(unsafe { kernels::dequantize(cast, stream) })?;
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
        // SAFETY: the arguments have been checked, and the workspace has room for both factors.
        done(unsafe { kernels::nvfp4_alpha(&factors, stream) })?;
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

/// What cuBLASLt wants of FP8 blocks. It has no attribute for the pitch of a scale matrix.
fn with_checked_blocks(args: &GemmArgs) -> Result<(), Outcome> {
    let sizes = [("k", args.k, 16), ("m", args.m, 8), ("n", args.n, 8)];
    // The rows of B are free where its scales are those of whole blocks.
    let square = args.scales_b.mode.square();
    for (name, size, of) in &sizes[..if square { 2 } else { 3 }] {
        if !size.is_multiple_of(*of) {
            return Err(Outcome::unimplemented(format!(
                "cuBLASLt takes FP8 blocks with {name} in multiples of {of}, got {size}"
            )));
        }
    }
    let operands = [("A", &args.scales_a, args.m), ("B", &args.scales_b, args.n)];
    for (name, scales, outer) in operands {
        let pitch = scales.mode.scaling().scale_pitch(false, (outer, args.k));
        let (stride, address) = (scales.stride, scales.inv);
        if stride != pitch || !(address as usize).is_multiple_of(16) {
            return Err(Outcome::unimplemented(format!(
                "cuBLASLt takes the scales of {name} from rows of {pitch} floats at an address \
                 aligned to 16 bytes, got rows of {stride} at {address:p}"
            )));
        }
    }
    Ok(())
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
    done(unsafe { nvte_cuda_align_scales(a, b, d, slots, stream) })?;
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
