//! The CUDA backend: the launchers of `kernels/`, and matrix products through cuBLASLt, or where that has
//! none through the kernel of grouped products.
#![allow(unsafe_code)]

use super::args::*;
use super::cublaslt;
use super::operators::operators;
use super::parts::{PartSizes, parts};
use crate::fork;
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

/// Operators that run by kernels of this library.
pub(super) static KERNELS: OpTable = OpTable { gemm: None, ..LAUNCHERS };

/// Operators that run by cuBLASLt.
pub(super) static PRODUCTS: OpTable = OpTable { gemm: Some(gemm), ..OpTable::EMPTY };

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
    /// Values of a part of A or B, of MXFP8 or NVFP4, in BF16, stored the way round that the operand is.
    fn nvte_cuda_operand_values(
        args: *const GemmArgs,
        of_b: bool,
        part: *const ProductPart,
        values: *mut c_void,
        stream: cudaStream_t,
    ) -> Outcome;
    /// A part of D, and what else the epilogue writes, of its sums `[ns, ms]` in float32 before alpha; zeros if
    /// they are null. B is read for the gradient of a bias only. `columns` are m floats, which are used where
    /// D's rows are in several parts; those come in their order.
    fn nvte_cuda_finish_product(
        args: *const GemmArgs,
        part: *const ProductPart,
        sums: *const f32,
        columns: *mut f32,
        stream: cudaStream_t,
    ) -> Outcome;
    /// D of a product with few elements along k and no epilogue.
    fn nvte_cuda_shallow_gemm(args: *const GemmArgs, stream: cudaStream_t) -> Outcome;
    /// D of a product of few rows of B with a weight in FP8 that does not lie along k.
    fn nvte_cuda_narrow_gemm(args: *const GemmArgs, stream: cudaStream_t) -> Outcome;
    /// A product of whole tiles in BF16 with an epilogue of GELU or its derivative.
    fn nvte_cuda_gelu_product(args: *const GemmArgs, stream: cudaStream_t) -> Outcome;
    /// Copies three scales, each of which may be null, to the starts of three 16-byte slots.
    fn nvte_cuda_align_scales(
        a: *const f32,
        b: *const f32,
        d: *const f32,
        slots: *mut f32,
        stream: cudaStream_t,
    ) -> Outcome;
}

/// A part of a product: rows n to n + ns and columns m to m + ms of D, and k to k + ks of what is summed. The
/// same struct is in `kernels/gemm/gemm.cu`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct ProductPart {
    m: usize,
    n: usize,
    k: usize,
    ms: usize,
    ns: usize,
    ks: usize,
}

impl ProductPart {
    const fn whole(args: &GemmArgs) -> Self {
        Self { m: 0, n: 0, k: 0, ms: args.m, ns: args.n, ks: args.k }
    }
}

/// Devices that the process sees.
pub(super) fn device_count() -> c_int {
    let mut count = 0;
    // SAFETY: writes one integer.
    let probe = unsafe { nvte_cuda_probe(&mut count) };
    if probe.status() == BackendStatus::NVTEX_BACKEND_OK { count } else { 0 }
}

/// The table, or why there is no device to run it.
pub(super) fn table() -> Result<&'static OpTable, String> {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let ready = fork::once(&READY, || {
        let mut count = 0;
        // SAFETY: writes one integer.
        let probe = unsafe { nvte_cuda_probe(&mut count) };
        if probe.status() != BackendStatus::NVTEX_BACKEND_OK {
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
    // The kernel that writes D's columns has written this as well.
    let scale_inv = |()| match args.scale_inv_d.is_null() || !args.d_columns.is_null() {
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
    match outcome.status() {
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
        |outcome: &Outcome| outcome.status() == BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED;
    match first {
        Err(first) if unimplemented(&first) => {
            // The text of `first` lives until the next outcome replaces it.
            let reason = first.reason();
            second().map_err(|second| match unimplemented(&second) {
                true => Outcome::unimplemented(format!("{reason}; {}", second.reason())),
                false => second,
            })
        }
        result => result,
    }
}

/// Rows or columns of D up to which MXFP8 operands that have no room as 16-bit matrices are multiplied by the
/// kernel of grouped products before all else.
const NARROW: usize = 256;

/// Elements along k up to which a product costs what writing D costs, for which a kernel of this library is made.
const SHALLOW: usize = 64;

/// Whether GELU costs less in cuBLASLt's epilogue than in the kernel of this library, as it does without a bias and with
/// many elements along k: 8192 x 12288 with k 4096 takes 1071 and 1082 us on an H200, but with a bias 1100 and 1082.
fn is_deep_gelu(args: &GemmArgs) -> bool {
    args.epilogue == GemmEpilogue::NVTEX_EPILOGUE_GELU && args.k >= 4096 && !args.a_dtype.is_fp8()
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
    // SAFETY: the arguments are checked.
    let shallow = || done(unsafe { nvte_cuda_shallow_gemm(args, stream) });
    // SAFETY: the arguments are checked.
    let narrow = || done(unsafe { nvte_cuda_narrow_gemm(args, stream) });
    // SAFETY: the arguments are checked.
    let gelu = || done(unsafe { nvte_cuda_gelu_product(args, stream) });
    // No other kernel knows derivatives of activations as operands.
    if args.aux_slope {
        return gelu();
    }
    let cast_product =
        |args: GemmArgs| or_else(multiply(&args), || by_float32(&args, device, stream));
    let otherwise = || match args.scales_a.mode {
        NVTEScalingMode::NVTE_MXFP8_1D_SCALING => {
            let cast = dequantized(args, stream).and_then(cast_product);
            let in_parts = || in_parts(args, device, stream);
            let own_product = || own_product(args, stream);
            // The kernel reads each code once; products of parts multiply twice as fast.
            match args.m.min(args.n) > NARROW {
                true => or_else(or_else(cast, in_parts), own_product),
                false => or_else(or_else(cast, own_product), in_parts),
            }
        }
        NVTEScalingMode::NVTE_NVFP4_1D_SCALING => {
            let cast = nvfp4_values(args, stream).and_then(cast_product);
            or_else(cast, || in_parts(args, device, stream))
        }
        _ if args.scales_a.in_blocks() => {
            let product = with_checked_blocks(args).and_then(|()| multiply(args));
            or_else(product, || own_product(args, stream))
        }
        _ => {
            let usual = || match args.a_dtype.is_fp8() {
                true => {
                    let aligned = with_aligned_scales(args, stream);
                    let product = aligned.and_then(|args| multiply(&args));
                    or_else(product, || own_product(args, stream))
                }
                false => or_else(multiply(args), || by_float32(args, device, stream)),
            };
            match args.a_dtype.is_fp8() && !args.transa {
                true => or_else(narrow(), usual),
                false if args.k <= SHALLOW => or_else(shallow(), usual),
                false if args.epilogue.has_aux() => {
                    let gelu = || or_else(gelu(), usual);
                    match is_deep_gelu(args) {
                        true => or_else(multiply(args), gelu),
                        false => gelu(),
                    }
                }
                false => usual(),
            }
        }
    };
    match in_tiles(args) && takes_block_scales()? {
        true => {
            let product = with_factors(args, stream).and_then(|args| multiply(&args));
            or_else(product, otherwise)
        }
        false => otherwise(),
    }
}

/// Whether operands in MXFP8 or NVFP4 lie as cuBLASLt documents it for its products of such: along k, which is the
/// innermost dimension, scales in tiles of 128 x 4, and all in multiples of 16 bytes; and D has no scales of its own.
fn in_tiles(args: &GemmArgs) -> bool {
    use NVTEScalingMode::*;
    let mode = args.scales_a.mode;
    let step = if mode == NVTE_NVFP4_1D_SCALING { 32 } else { 16 };
    let aligned = [args.a, args.b, args.scales_a.inv, args.scales_b.inv];
    matches!(mode, NVTE_MXFP8_1D_SCALING | NVTE_NVFP4_1D_SCALING)
        && args.scales_a.swizzled
        && args.scales_b.swizzled
        && (args.transa && !args.transb)
        && args.k.is_multiple_of(step)
        && aligned.iter().all(|address| (*address as usize).is_multiple_of(16))
        && !args.d_dtype.is_fp8()
}

/// Whether the device's tensor cores take scales of blocks.
fn takes_block_scales() -> Result<bool, Outcome> {
    let mut arch = 0;
    // SAFETY: writes one integer.
    done(unsafe { kernels::device_arch(&mut arch) })?;
    Ok(arch >= 100)
}

/// A product of NVFP4 operands with alpha and beta on the device, at the start of the workspace, if the largest
/// magnitudes of the operands go into them; another one as it is.
fn with_factors(args: &GemmArgs, stream: cudaStream_t) -> Result<GemmArgs, Outcome> {
    if args.nvfp4.amax_a.is_null() {
        return Ok(*args);
    }
    let (output, rest) = take(args, 2 * size_of::<f32>(), "for alpha and beta")?;
    Ok(GemmArgs { nvfp4: device_factors(args, output.cast(), stream)?, ..rest })
}

/// Alpha and beta of a product of NVFP4 operands, at `output` if largest magnitudes go into them, otherwise as they
/// are.
fn device_factors(
    args: &GemmArgs,
    output: *mut f32,
    stream: cudaStream_t,
) -> Result<Nvfp4Factors, Outcome> {
    let mut nvfp4 = args.nvfp4;
    if !nvfp4.amax_a.is_null() {
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
    Ok(nvfp4)
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

/// The arguments of a product whose result goes to `sums` in float32 without anything else, not even alpha.
fn only_sums(args: &GemmArgs, sums: *mut c_void) -> GemmArgs {
    GemmArgs {
        c: sums,
        d: sums,
        scale_d: std::ptr::null(),
        amax_d: std::ptr::null_mut(),
        scale_inv_d: std::ptr::null_mut(),
        bias: std::ptr::null_mut(),
        aux: std::ptr::null_mut(),
        alpha: 1.0,
        beta: 0.0,
        nvfp4: Nvfp4Factors::NONE,
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
    // Bytes of what the kernel of grouped products keeps about a group of one member.
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
    let [a, b] = operands.map(|(_, data, scales, dtype, outer, transposed)| {
        matrix(data, scales, dtype, (outer, args.k), transposed)
    });
    let direct = args.epilogue == GemmEpilogue::NVTEX_EPILOGUE_NONE && !args.d_dtype.is_fp8();
    let sums_bytes = if direct { 0 } else { args.m * args.n * size_of::<f32>() };
    // All bytes are asked for at once, so that the message says how many are needed.
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

/// Turns sums in float32 before alpha, or zeros if there are none, into D and what the epilogue writes.
fn finish(args: &GemmArgs, sums: *const f32, stream: cudaStream_t) -> Result<(), Outcome> {
    clear_amax(args, stream)?;
    finish_part(args, &ProductPart::whole(args), sums, std::ptr::null_mut(), stream)
}

/// Parts of D raise its amax.
fn clear_amax(args: &GemmArgs, stream: cudaStream_t) -> Result<(), Outcome> {
    if args.amax_d.is_null() {
        return Ok(());
    }
    let clear = MemsetArgs { ptr: args.amax_d.cast(), bytes: size_of::<f32>(), value: 0 };
    // SAFETY: one device float.
    done(unsafe { kernels::memset(&clear, stream) })
}

/// As [`finish`], for a part of D; `columns` as `nvte_cuda_finish_product` has them.
fn finish_part(
    args: &GemmArgs,
    part: &ProductPart,
    sums: *const f32,
    columns: *mut f32,
    stream: cudaStream_t,
) -> Result<(), Outcome> {
    // SAFETY: the arguments have been checked by the operator's plan; the sums have the part's size.
    done(unsafe { nvte_cuda_finish_product(args, part, sums, columns, stream) })
}

/// The product of MXFP8 or NVFP4 operands that have no room in the workspace as 16-bit matrices: sums of a part
/// of D in float32, over one part of k after the other. Values of the operands are exact in bfloat16 unless
/// those of MXFP8 leave its normal range.
fn in_parts(args: &GemmArgs, device: c_int, stream: cudaStream_t) -> Result<(), Outcome> {
    const WHAT: &str = "in parts";
    let sums_rows = args.epilogue == GemmEpilogue::NVTEX_EPILOGUE_DGELU_BGRAD;
    let columns_bytes = if sums_rows { args.m * size_of::<f32>() } else { 0 };
    let (columns, rest) = take(args, columns_bytes, WHAT)?;
    let Some(size) = PartSizes::new((args.m, args.n, args.k), rest.workspace_bytes) else {
        // What the smallest parts need.
        return take(&rest, 64 << 10, WHAT).and_then(|_| Err(Outcome::unimplemented(WHAT)));
    };
    let [sums_bytes, a_bytes, b_bytes] = size.bytes();
    let (sums, rest) = take(&rest, sums_bytes, WHAT)?;
    let (a, rest) = take(&rest, a_bytes, WHAT)?;
    let (b, _) = take(&rest, b_bytes, WHAT)?;
    let product = GemmArgs {
        a,
        b,
        scales_a: GemmScales::per_tensor(std::ptr::null()),
        scales_b: GemmScales::per_tensor(std::ptr::null()),
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
        a_dtype: NVTEDType::kNVTEBFloat16,
        b_dtype: NVTEDType::kNVTEBFloat16,
        ..only_sums(args, sums)
    };
    verbose::line(Level::Dispatch, "dispatch", || {
        format!(
            "gemm,in parts,m {} of {},n {} of {},k {} of {}",
            size.m, args.m, size.n, args.n, size.k, args.k
        )
    });
    clear_amax(args, stream)?;
    // What of the operands has been cast.
    let mut cast = [None; 2];
    for (n, ns) in parts(args.n, size.n) {
        for (m, ms) in parts(args.m, size.m) {
            for (k, ks) in parts(args.k, size.k) {
                let part = ProductPart { m, n, k, ms, ns, ks };
                for (of_b, values, place) in [(false, a, (m, k)), (true, b, (n, k))] {
                    let cast = &mut cast[usize::from(of_b)];
                    if *cast != Some(place) {
                        // SAFETY: the operator's plan has checked the arguments, and the workspace has room.
                        let outcome =
                            unsafe { nvte_cuda_operand_values(args, of_b, &part, values, stream) };
                        done(outcome)?;
                        *cast = Some(place);
                    }
                }
                let beta = if k == 0 { 0.0 } else { 1.0 };
                let product = GemmArgs { m: ms, n: ns, k: ks, beta, ..product };
                done(cublaslt::gemm(&product, device, stream))?;
            }
            let part = ProductPart { m, n, k: 0, ms, ns, ks: args.k };
            finish_part(args, &part, sums.cast(), columns.cast(), stream)?;
        }
    }
    Ok(())
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
    let whole = ProductPart::whole(args);
    for (of_b, values) in [(false, a), (true, b)] {
        // SAFETY: the arguments have been checked, the outputs lie in the workspace.
        done(unsafe { nvte_cuda_operand_values(args, of_b, &whole, values, stream) })?;
    }
    let nvfp4 = device_factors(args, part(0).cast(), stream)?;
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
