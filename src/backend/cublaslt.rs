//! Matrix products through cuBLASLt, which is opened when the first product runs. Descriptors and
//! the algorithm of a problem are kept per thread, so that a repeated call asks for nothing anew.
#![allow(unsafe_code)]

use super::args::{GemmArgs, GemmEpilogue, Outcome};
use super::library;
use super::tune::{self, Scratch};
use crate::types::{NVTEDType, NVTEScalingMode, cudaStream_t};
use crate::verbose::{self, Level};
use cudarc::cublaslt::sys::cublasLtMatmulAlgoConfigAttributes_t::*;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t::*;
use cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t::*;
use cudarc::cublaslt::sys::*;
use cudarc::driver::sys as driver;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_void};
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Problems that a thread remembers before it starts over.
const CACHE_SIZE: usize = 1024;

/// Algorithms that the heuristic is asked for; the best that the library accepts is taken, or the fastest.
const CANDIDATES: usize = 8;
const MEASURED_CANDIDATES: usize = 48;

/// Everything that the choice of an algorithm depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Problem {
    device: c_int,
    m: usize,
    n: usize,
    k: usize,
    workspace_bytes: usize,
    dtypes: [NVTEDType; 5],
    modes: [NVTEScalingMode; 2],
    epilogue: u32,
    transa: bool,
    transb: bool,
    fast_accumulation: bool,
    with_c: bool,
    in_place: bool,
    with_amax: bool,
    /// Alpha and beta are pointers to the device.
    factors_on_device: bool,
    sm_count: c_int,
    /// Alignment of A, B, C, D and aux in bytes, at most 256.
    alignments: [u16; 5],
}

/// Of the sizes and of what products of the same sizes differ in most often; the rest is compared. A key of
/// all fields would take longer to hash than to find.
impl Hash for Problem {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, d, ..] = self.dtypes.map(|dtype| dtype as u64);
        let layout = u64::from(self.transa) | u64::from(self.transb) << 1;
        let c = u64::from(self.with_c) | u64::from(self.in_place) << 1;
        let epilogue = u64::from(self.epilogue);
        state.write_usize(self.m);
        state.write_usize(self.n);
        state.write_usize(self.k);
        state.write_u64(a | b << 8 | d << 16 | layout << 24 | c << 32 | epilogue << 40);
    }
}

/// The attributes of a product that change from call to call: addresses of what belongs to A, B and D.
const POINTERS: [cublasLtMatmulDescAttributes_t; 6] = [
    CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
    CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
    CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
    CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
];

/// Descriptors and algorithm of a problem.
struct Plan {
    handle: cublasLtHandle_t,
    operation: cublasLtMatmulDesc_t,
    /// The values of [`POINTERS`] in `operation`; null: never set.
    pointers: [*const c_void; POINTERS.len()],
    a: cublasLtMatrixLayout_t,
    b: cublasLtMatrixLayout_t,
    c: cublasLtMatrixLayout_t,
    d: cublasLtMatrixLayout_t,
    algo: cublasLtMatmulAlgo_t,
}

impl Default for Plan {
    fn default() -> Self {
        let layout = std::ptr::null_mut();
        Self {
            handle: std::ptr::null_mut(),
            operation: std::ptr::null_mut(),
            pointers: [std::ptr::null(); POINTERS.len()],
            a: layout,
            b: layout,
            c: layout,
            d: layout,
            algo: cublasLtMatmulAlgo_t { data: [0; 8] },
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: each descriptor is null or was created by cuBLASLt and is used nowhere else.
        unsafe {
            if !self.operation.is_null() {
                cublasLtMatmulDescDestroy(self.operation);
            }
            for layout in [self.a, self.b, self.c, self.d] {
                if !layout.is_null() {
                    cublasLtMatrixLayoutDestroy(layout);
                }
            }
        }
    }
}

/// A plan, or why the library has none.
type Planned = Result<Plan, cublasStatus_t>;

type Plans = FxHashMap<Problem, Planned>;

thread_local! {
    static PLANS: RefCell<Plans> = RefCell::default();
}

/// Runs a product with checked arguments and k > 0.
pub(super) fn gemm(args: &GemmArgs, device: c_int, stream: cudaStream_t) -> Outcome {
    if let Err(reason) = library() {
        return Outcome::unimplemented(reason.as_str());
    }
    let problem = Problem::new(args, device);
    let run = |plans: &mut Plans| {
        let planned = match plans.get_mut(&problem) {
            Some(planned) => planned,
            None => add_plan(plans, args, &problem, stream)?,
        };
        match planned {
            Ok(plan) => plan.run(args, stream),
            Err(status) => Err(Failure::NoAlgorithm(*status)),
        }
    };
    // In a thread that ends, destructors may multiply after the thread's plans are gone.
    let result = PLANS
        .try_with(|plans| run(&mut plans.borrow_mut()))
        .unwrap_or_else(|_| run(&mut Plans::default()));
    match result {
        Ok(()) => Outcome::OK,
        Err(Failure::NoAlgorithm(status)) => Outcome::unimplemented(no_algorithm(args, status)),
        Err(Failure::Call(call, status)) => {
            Outcome::device_error(format!("{call}: {}", status_text(status)))
        }
    }
}

/// Plans a problem that the thread does not know yet.
#[cold]
fn add_plan<'a>(
    plans: &'a mut Plans,
    args: &GemmArgs,
    problem: &Problem,
    stream: cudaStream_t,
) -> Result<&'a mut Planned, Failure> {
    let plan = match relaxed_capture(|| Plan::new(args, problem, stream)) {
        Ok(plan) => Ok(plan),
        Err(Failure::NoAlgorithm(status)) => Err(status),
        Err(failure) => return Err(failure),
    };
    if plans.len() >= CACHE_SIZE {
        plans.clear();
    }
    Ok(plans.entry(*problem).insert_entry(plan).into_mut())
}

enum Failure {
    NoAlgorithm(cublasStatus_t),
    Call(&'static str, cublasStatus_t),
}

fn check(call: &'static str, status: cublasStatus_t) -> Result<(), Failure> {
    match status {
        cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(Failure::Call(call, status)),
    }
}

fn status_text(status: cublasStatus_t) -> String {
    // SAFETY: returns a static string for every status.
    unsafe { CStr::from_ptr(cublasLtGetStatusString(status)) }.to_string_lossy().into_owned()
}

fn no_algorithm(args: &GemmArgs, status: cublasStatus_t) -> String {
    let layout = |transposed| if transposed { 'T' } else { 'N' };
    let hint = match args.a_dtype.is_fp8() || args.b_dtype.is_fp8() {
        true if args.scales_a.in_blocks() => {
            "; its FP8 blocks need compute capability 9.0, 16-byte aligned data, at most one E5M2"
        }
        true => {
            "; its FP8 needs k and m in multiples of 16, 16-byte aligned data, at most one E5M2"
        }
        false => "",
    };
    format!(
        "cuBLASLt has no algorithm for {}{} of {} and {} to {}, m {}, n {}, k {}, {:?} ({}){hint}",
        layout(args.transa),
        layout(args.transb),
        args.a_dtype,
        args.b_dtype,
        args.d_dtype,
        args.m,
        args.n,
        args.k,
        args.epilogue,
        status_text(status),
    )
}

impl Problem {
    fn new(args: &GemmArgs, device: c_int) -> Self {
        let alignment = |ptr: *const c_void| 1u16 << (ptr as usize).trailing_zeros().min(8);
        let factors_on_device = !args.nvfp4.alpha.is_null();
        // Without amaxes only the device knows beta.
        let beta_unknown = factors_on_device && args.nvfp4.amax_a.is_null();
        let one_scale = args.scales_a.mode == NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
        let per_tensor = args.a_dtype.is_fp8() && one_scale;
        Self {
            device,
            m: args.m,
            n: args.n,
            k: args.k,
            workspace_bytes: args.workspace_bytes,
            dtypes: [args.a_dtype, args.b_dtype, args.d_dtype, args.bias_dtype, args.aux_dtype],
            modes: [args.scales_a.mode, args.scales_b.mode],
            epilogue: args.epilogue as u32,
            transa: args.transa,
            transb: args.transb,
            fast_accumulation: per_tensor && !args.split_accumulator,
            with_c: args.beta != 0.0 || beta_unknown,
            in_place: args.c == args.d.cast_const(),
            with_amax: !args.amax_d.is_null(),
            factors_on_device,
            sm_count: args.sm_count,
            alignments: [
                alignment(args.a),
                alignment(args.b),
                alignment(args.c),
                alignment(args.d),
                alignment(args.aux),
            ],
        }
    }
}

fn data_type(dtype: NVTEDType) -> cudaDataType {
    match dtype {
        NVTEDType::kNVTEFloat16 => cudaDataType::CUDA_R_16F,
        NVTEDType::kNVTEBFloat16 => cudaDataType::CUDA_R_16BF,
        NVTEDType::kNVTEFloat8E4M3 => cudaDataType::CUDA_R_8F_E4M3,
        NVTEDType::kNVTEFloat8E5M2 => cudaDataType::CUDA_R_8F_E5M2,
        NVTEDType::kNVTEFloat4E2M1 => cudaDataType::CUDA_R_4F_E2M1,
        _ => cudaDataType::CUDA_R_32F,
    }
}

fn epilogue(epilogue: GemmEpilogue) -> cublasLtEpilogue_t {
    use cublasLtEpilogue_t::*;
    match epilogue {
        GemmEpilogue::NVTEX_EPILOGUE_NONE => CUBLASLT_EPILOGUE_DEFAULT,
        GemmEpilogue::NVTEX_EPILOGUE_BIAS => CUBLASLT_EPILOGUE_BIAS,
        GemmEpilogue::NVTEX_EPILOGUE_GELU => CUBLASLT_EPILOGUE_GELU_AUX,
        GemmEpilogue::NVTEX_EPILOGUE_GELU_BIAS => CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        GemmEpilogue::NVTEX_EPILOGUE_BGRAD => CUBLASLT_EPILOGUE_BGRADB,
        GemmEpilogue::NVTEX_EPILOGUE_DGELU => CUBLASLT_EPILOGUE_DGELU,
        GemmEpilogue::NVTEX_EPILOGUE_DGELU_BGRAD => CUBLASLT_EPILOGUE_DGELU_BGRAD,
        GemmEpilogue::NVTEX_EPILOGUE_SWIGLU | GemmEpilogue::NVTEX_EPILOGUE_DSWIGLU => {
            unreachable!("products with slopes are not cuBLASLt's")
        }
    }
}

/// Attribute value of a scaling mode; none for what the library assumes anyway.
fn scale_mode(mode: NVTEScalingMode) -> Option<cublasLtMatmulMatrixScale_t> {
    use cublasLtMatmulMatrixScale_t::*;
    match mode {
        NVTEScalingMode::NVTE_BLOCK_SCALING_1D => Some(CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F),
        NVTEScalingMode::NVTE_BLOCK_SCALING_2D => Some(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F),
        NVTEScalingMode::NVTE_MXFP8_1D_SCALING => Some(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0),
        NVTEScalingMode::NVTE_NVFP4_1D_SCALING => Some(CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3),
        _ => None,
    }
}

/// An attribute of an algorithm that is a number of 32 bits.
fn config(
    algo: &cublasLtMatmulAlgo_t,
    attribute: cublasLtMatmulAlgoConfigAttributes_t,
) -> Option<i32> {
    let (mut value, mut written) = (0_i32, 0);
    // SAFETY: the value has the size that is passed.
    let status = unsafe {
        cublasLtMatmulAlgoConfigGetAttribute(
            algo,
            attribute,
            (&raw mut value).cast(),
            size_of::<i32>(),
            &mut written,
        )
    };
    (status == cublasStatus_t::CUBLAS_STATUS_SUCCESS).then_some(value)
}

impl Plan {
    fn new(args: &GemmArgs, problem: &Problem, stream: cudaStream_t) -> Result<Self, Failure> {
        let mut plan = Self { handle: handle(problem.device)?, ..Self::default() };
        plan.describe(args, problem)?;
        match tune::is_on() && !args.a.is_null() {
            true => plan.measure(args, problem, stream)?,
            false => plan.algo = plan.preferred(problem)?,
        }
        verbose::line(Level::Dispatch, "dispatch", || format!("cublaslt,planned,{problem:?}"));
        Ok(plan)
    }

    /// Creates the descriptors. cuBLASLt is column-major: our row-major D `[n, m]` is its `m x n`.
    fn describe(&mut self, args: &GemmArgs, problem: &Problem) -> Result<(), Failure> {
        let float = NVTEDType::kNVTEFloat32;
        let compute = match [args.a_dtype, args.b_dtype, args.d_dtype] == [float; 3] {
            true => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let (m, n, k) = (args.m as u64, args.n as u64, args.k as u64);
        let (a_rows, a_cols) = if args.transa { (k, m) } else { (m, k) };
        let (b_rows, b_cols) = if args.transb { (n, k) } else { (k, n) };
        let d_type = data_type(args.d_dtype);
        // An FP8 D has a C of the bias type, which is never read.
        let bias_float16 = args.bias_dtype == NVTEDType::kNVTEFloat16 && !args.bias.is_null();
        let c_type = match args.d_dtype.is_fp8() {
            true if bias_float16 => cudaDataType::CUDA_R_16F,
            true => cudaDataType::CUDA_R_16BF,
            false => d_type,
        };
        // SAFETY: cuBLASLt writes the descriptors; drop() destroys them.
        unsafe {
            check(
                "cublasLtMatmulDescCreate",
                cublasLtMatmulDescCreate(&mut self.operation, compute, cudaDataType::CUDA_R_32F),
            )?;
            let layouts = [
                (&mut self.a, data_type(args.a_dtype), a_rows, a_cols),
                (&mut self.b, data_type(args.b_dtype), b_rows, b_cols),
                (&mut self.c, c_type, m, n),
                (&mut self.d, d_type, m, n),
            ];
            for (layout, dtype, rows, cols) in layouts {
                let status = cublasLtMatrixLayoutCreate(layout, dtype, rows, cols, rows as i64);
                check("cublasLtMatrixLayoutCreate", status)?;
            }
        }
        // The values of cublasOperation_t: 0 as it is, 1 transposed.
        self.set(CUBLASLT_MATMUL_DESC_TRANSA, i32::from(args.transa))?;
        self.set(CUBLASLT_MATMUL_DESC_TRANSB, i32::from(args.transb))?;
        self.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(args.epilogue) as u32)?;
        if problem.fast_accumulation {
            self.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1i8)?;
        }
        if problem.factors_on_device {
            let mode = cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_DEVICE;
            self.set(CUBLASLT_MATMUL_DESC_POINTER_MODE, mode as i32)?;
        }
        if problem.sm_count > 0 {
            self.set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, problem.sm_count)?;
        }
        for (attribute, scales) in [
            (CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &args.scales_a),
            (CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &args.scales_b),
        ] {
            if let Some(mode) = scale_mode(scales.mode) {
                self.set(attribute, mode as i32)?;
            }
        }
        // FP8 operands have other defaults than D's dtype.
        if !args.bias.is_null() {
            self.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(args.bias_dtype) as i32)?;
        }
        if !args.aux.is_null() {
            let dtype = data_type(args.aux_dtype) as i32;
            self.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, dtype)?;
            self.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, args.m as i64)?;
        }
        // The heuristic looks at which pointers are set.
        self.set_pointers(args)
    }

    fn set<T>(&self, attribute: cublasLtMatmulDescAttributes_t, value: T) -> Result<(), Failure> {
        let value = (&raw const value).cast();
        // SAFETY: the value has the size that is passed.
        let status = unsafe {
            cublasLtMatmulDescSetAttribute(self.operation, attribute, value, size_of::<T>())
        };
        check("cublasLtMatmulDescSetAttribute", status)
    }

    /// Sets the addresses that are others than at the call before.
    fn set_pointers(&mut self, args: &GemmArgs) -> Result<(), Failure> {
        let pointers = [
            args.scales_a.inv,
            args.scales_b.inv,
            args.scale_d.cast(),
            args.amax_d.cast_const().cast(),
            args.bias.cast_const(),
            args.aux.cast_const(),
        ];
        for (i, pointer) in pointers.into_iter().enumerate() {
            if pointer != self.pointers[i] && !pointer.is_null() {
                self.set(POINTERS[i], pointer)?;
                self.pointers[i] = pointer;
            }
        }
        Ok(())
    }

    /// The first candidate that the library accepts.
    fn first(
        &self,
        candidates: &[cublasLtMatmulHeuristicResult_t],
    ) -> Result<cublasLtMatmulAlgo_t, Failure> {
        let usable = candidates.iter().find(|candidate| self.accepts(candidate));
        usable
            .map(|candidate| candidate.algo)
            .ok_or(Failure::NoAlgorithm(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED))
    }

    /// The first candidate that the library accepts, or one that was measured to be faster where the heuristic
    /// overlooks two things, in products of 16 bits without more than a bias (cuBLASLt 13.1, H200, us):
    ///
    /// - A k that is split in two, and the sums of which another kernel adds, where a kernel without a workspace fills
    ///   the GPU: gradients of weights of 3072 x 768 of 16384 rows 108 -> 92 and 103 -> 93.
    /// - What is written weighs much against k: kernels whose two consumers take turns write behind the other's
    ///   products. 16384 x 3072 x 768 116 -> 95, 16384 x 768 x 768 32 -> 30, 4096 x 50304 x 768 431 -> 390, and
    ///   50304 x 768 x 4096 added to float32 460 -> 416; with k 3072 they would lose 4 %.
    fn preferred(&self, problem: &Problem) -> Result<cublasLtMatmulAlgo_t, Failure> {
        use NVTEDType::{kNVTEBFloat16, kNVTEFloat16};
        let candidates = self.candidates(problem, CANDIDATES)?;
        let algo = self.first(&candidates)?;
        let first = candidates.iter().find(|candidate| candidate.algo.data == algo.data);
        let [a, b, d, ..] = problem.dtypes;
        let is_16bit = [a, b].iter().all(|dtype| [kNVTEBFloat16, kNVTEFloat16].contains(dtype));
        let plain = [GemmEpilogue::NVTEX_EPILOGUE_NONE, GemmEpilogue::NVTEX_EPILOGUE_BIAS];
        let plain = plain.iter().any(|epilogue| *epilogue as u32 == problem.epilogue);
        // Products of few rows are bound by what they read, and were not measured.
        let large = problem.m.min(problem.n) >= 256;
        let Some(first) = first.filter(|_| is_16bit && plain && large && !d.is_fp8()) else {
            return Ok(algo);
        };
        let better = match config(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) {
            Some(1) => {
                // Algorithms of a kind number those whose consumers take turns before those whose do not.
                let kind = config(&algo, CUBLASLT_ALGO_CONFIG_ID);
                let takes_turns = |candidate: &&cublasLtMatmulHeuristicResult_t| {
                    let algo = &candidate.algo;
                    config(algo, CUBLASLT_ALGO_CONFIG_ID) == kind
                        && config(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) == Some(1)
                        && config(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)
                            .is_some_and(|option| (1..4).contains(&option))
                        && self.accepts(candidate)
                };
                let element = if d == NVTEDType::kNVTEFloat32 { 4 } else { 2 };
                let bytes = element * (1 + usize::from(problem.with_c));
                let writes_much = bytes * 640 >= problem.k && first.wavesCount >= 2.0;
                candidates.iter().filter(|_| writes_much).find(takes_turns).map(|found| found.algo)
            }
            _ => {
                let whole = Problem { workspace_bytes: 0, ..*problem };
                let fills = |candidate: &&cublasLtMatmulHeuristicResult_t| {
                    (0.9..=1.0).contains(&candidate.wavesCount) && self.accepts(candidate)
                };
                let unsplit = self.candidates(&whole, CANDIDATES).unwrap_or_default();
                unsplit.iter().find(fills).map(|found| found.algo)
            }
        };
        Ok(better.unwrap_or(algo))
    }

    /// Takes the algorithm that is the fastest for a problem: from the file, else by running all candidates. In a
    /// capture nothing can run, and the first candidate is taken.
    fn measure(
        &mut self,
        args: &GemmArgs,
        problem: &Problem,
        stream: cudaStream_t,
    ) -> Result<(), Failure> {
        // SAFETY: returns a number.
        let version = unsafe { cublasLtGetVersion() };
        let name = tune::device_name(problem.device);
        let key = format!("{version} {name} {:?}", Problem { device: 0, ..*problem });
        if let Some(data) = tune::find(&key) {
            // SAFETY: all zero is a valid result.
            let mut kept: cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
            kept.algo = cublasLtMatmulAlgo_t { data };
            if self.accepts(&kept) {
                self.algo = kept.algo;
                return Ok(());
            }
        }
        let mut candidates = self.candidates(problem, MEASURED_CANDIDATES)?;
        // What the heuristic proposes depends on the room that there is.
        let whole = Problem { workspace_bytes: 0, ..*problem };
        candidates.extend(self.candidates(&whole, MEASURED_CANDIDATES).unwrap_or_default());
        candidates.retain(|candidate| self.accepts(candidate));
        self.algo = self.first(&candidates)?;
        if tune::is_capturing(stream.cast()) {
            return Ok(());
        }
        // What a product writes, and what it may add to, is scratch memory here. A vector has at most m or n
        // elements, of 4 bytes at most, as an element of D has.
        let whole = (args.m * args.n * 4).next_multiple_of(256);
        let vector = (args.m.max(args.n) * 4).next_multiple_of(256);
        let Some(scratch) = Scratch::new(2 * whole + vector + 256, stream.cast()) else {
            return Ok(());
        };
        let d = scratch.address() as *mut c_void;
        let at = |present: bool, offset: usize| match present {
            true => (scratch.address() + offset) as *mut c_void,
            false => std::ptr::null_mut(),
        };
        let c = if problem.in_place { d.cast_const() } else { args.c };
        let trial = GemmArgs {
            c,
            d,
            aux: at(!args.aux.is_null(), whole),
            bias: at(!args.bias.is_null(), 2 * whole),
            amax_d: at(!args.amax_d.is_null(), 2 * whole + vector).cast(),
            ..*args
        };
        let best = tune::fastest(candidates.len(), problem.device, stream.cast(), |i| {
            self.algo = candidates[i].algo;
            self.run(&trial, stream).is_ok()
        });
        self.algo = candidates[best].algo;
        tune::keep(key, self.algo.data);
        verbose::line(Level::Dispatch, "dispatch", || {
            format!("cublaslt,measured,{best} of {} candidates is the fastest", candidates.len())
        });
        Ok(())
    }

    /// Algorithms that the heuristic proposes, at most `most`, those it prefers first.
    fn candidates(
        &self,
        problem: &Problem,
        most: usize,
    ) -> Result<Vec<cublasLtMatmulHeuristicResult_t>, Failure> {
        let mut preference = std::ptr::null_mut();
        // SAFETY: cuBLASLt writes the preference, which is destroyed below; the attributes have the
        // sizes that are passed; there is room for as many results as are asked for.
        unsafe {
            let created = cublasLtMatmulPreferenceCreate(&mut preference);
            check("cublasLtMatmulPreferenceCreate", created)?;
            let workspace = (
                CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const problem.workspace_bytes).cast(),
                size_of::<usize>(),
            );
            let alignments = problem.alignments.map(u32::from);
            // Partial sums of a split k are added in float32, not in D's dtype.
            let reductions =
                cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
            let reductions = (
                CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                (&raw const reductions).cast(),
                size_of::<u32>(),
            );
            let mut attributes = vec![workspace, reductions];
            for (attribute, value) in [
                (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignments[0]),
                (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignments[1]),
                (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignments[2]),
                (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignments[3]),
            ] {
                attributes.push((attribute, (&raw const *value).cast(), size_of::<u32>()));
            }
            let mut status = cublasStatus_t::CUBLAS_STATUS_SUCCESS;
            for (attribute, value, size) in attributes {
                if status == cublasStatus_t::CUBLAS_STATUS_SUCCESS {
                    status =
                        cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, size);
                }
            }
            let mut results: Vec<cublasLtMatmulHeuristicResult_t> = vec![std::mem::zeroed(); most];
            let mut found = 0;
            if status == cublasStatus_t::CUBLAS_STATUS_SUCCESS {
                status = cublasLtMatmulAlgoGetHeuristic(
                    self.handle,
                    self.operation,
                    self.a,
                    self.b,
                    self.c,
                    self.d,
                    preference,
                    most as c_int,
                    results.as_mut_ptr(),
                    &mut found,
                );
            }
            cublasLtMatmulPreferenceDestroy(preference);
            if status != cublasStatus_t::CUBLAS_STATUS_SUCCESS {
                return Err(Failure::NoAlgorithm(status));
            }
            results.truncate(usize::try_from(found).unwrap_or(0));
            Ok(results)
        }
    }

    /// Whether the library would run a candidate: the heuristic proposes some that it refuses.
    fn accepts(&self, candidate: &cublasLtMatmulHeuristicResult_t) -> bool {
        let success = cublasStatus_t::CUBLAS_STATUS_SUCCESS;
        // SAFETY: as for the heuristic; the check writes one result.
        candidate.state == success
            && unsafe {
                let mut result: cublasLtMatmulHeuristicResult_t = std::mem::zeroed();
                cublasLtMatmulAlgoCheck(
                    self.handle,
                    self.operation,
                    self.a,
                    self.b,
                    self.c,
                    self.d,
                    &candidate.algo,
                    &mut result,
                ) == success
            }
    }

    fn run(&mut self, args: &GemmArgs, stream: cudaStream_t) -> Result<(), Failure> {
        self.set_pointers(args)?;
        let c = if args.d_dtype.is_fp8() { std::ptr::null() } else { args.c };
        let (alpha, beta): (*const f32, *const f32) = match args.nvfp4.alpha.is_null() {
            true => (&args.alpha, &args.beta),
            false => (args.nvfp4.alpha, args.nvfp4.beta),
        };
        // SAFETY: the buffers have been checked against the problem that the plan was made for.
        let status = unsafe {
            cublasLtMatmul(
                self.handle,
                self.operation,
                alpha.cast(),
                args.a,
                self.a,
                args.b,
                self.b,
                beta.cast(),
                c,
                self.c,
                args.d,
                self.d,
                &self.algo,
                args.workspace,
                args.workspace_bytes,
                stream.cast(),
            )
        };
        match status {
            // Refused before anything was written.
            cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => Err(Failure::NoAlgorithm(status)),
            status => check("cublasLtMatmul", status),
        }
    }
}

/// Runs calls that may allocate while the thread captures a graph: in relaxed mode they are legal
/// and stay outside the graph.
pub(super) fn relaxed_capture<T>(body: impl FnOnce() -> T) -> T {
    let exchange = |mode: &mut driver::CUstreamCaptureMode| {
        // SAFETY: swaps a per-thread setting; a failure leaves it, and the calls below report.
        unsafe { driver::cuThreadExchangeStreamCaptureMode(mode) }
    };
    let mut mode = driver::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    exchange(&mut mode);
    let result = body();
    exchange(&mut mode);
    result
}

/// The library handle of a device, shared by all threads.
fn handle(device: c_int) -> Result<cublasLtHandle_t, Failure> {
    static HANDLES: Mutex<Vec<(c_int, usize)>> = Mutex::new(Vec::new());
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, handle)) = handles.iter().find(|(of, _)| *of == device) {
        return Ok(*handle as cublasLtHandle_t);
    }
    let mut handle = std::ptr::null_mut();
    // SAFETY: writes one handle, which lives as long as the process.
    check("cublasLtCreate", unsafe { cublasLtCreate(&mut handle) })?;
    handles.push((device, handle as usize));
    Ok(handle)
}

/// Opens cuBLASLt once; the reason if it cannot be found.
fn library() -> &'static Result<(), String> {
    static LIBRARY: OnceLock<Result<(), String>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        const NAME: &str = "libcublasLt.so.13";
        // Opened first, so that the loader finds it by name afterwards.
        library::open(NAME);
        // SAFETY: loads the libraries if they are there; asked first, since later calls panic.
        let (blas, cuda) = unsafe { (is_culib_present(), driver::is_culib_present()) };
        if !cuda {
            return Err("the driver library libcuda.so.1 is not to be found".into());
        }
        if !blas {
            return Err(format!("{NAME} is not to be found {}", library::SEARCHED));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::args::{GemmScales, Nvfp4Factors};

    /// A product of operands `[outer, k]` with scales in tiles, at addresses that nothing reads.
    fn args(dtype: NVTEDType, mode: NVTEScalingMode) -> GemmArgs {
        let at = |address: usize| address as *mut c_void;
        let scales = |address| GemmScales { inv: at(address), stride: 8, mode, swizzled: true };
        let factors = mode == NVTEScalingMode::NVTE_NVFP4_1D_SCALING;
        let factor = if factors { at(0x7000).cast_const().cast() } else { std::ptr::null() };
        GemmArgs {
            a: at(0x1000),
            b: at(0x2000),
            c: at(0x3000),
            d: at(0x3000),
            scales_a: scales(0x4000),
            scales_b: scales(0x5000),
            scale_d: std::ptr::null(),
            amax_d: std::ptr::null_mut(),
            scale_inv_d: std::ptr::null_mut(),
            bias: std::ptr::null_mut(),
            aux: std::ptr::null_mut(),
            workspace: at(0x6000),
            workspace_bytes: 32 << 20,
            m: 384,
            n: 128,
            k: 256,
            alpha: 1.0,
            beta: 0.0,
            a_dtype: dtype,
            b_dtype: dtype,
            d_dtype: NVTEDType::kNVTEBFloat16,
            bias_dtype: NVTEDType::kNVTEBFloat16,
            aux_dtype: NVTEDType::kNVTEBFloat16,
            epilogue: GemmEpilogue::NVTEX_EPILOGUE_NONE,
            nvfp4: Nvfp4Factors { alpha: factor, beta: factor, ..Nvfp4Factors::NONE },
            transa: true,
            transb: false,
            split_accumulator: false,
            sm_count: 0,
            aux_slope: false,
            d_columns: std::ptr::null_mut(),
            d_columns_pitch: 0,
        }
    }

    fn attribute<T: Default>(plan: &Plan, attribute: cublasLtMatmulDescAttributes_t) -> T {
        let (mut value, mut written) = (T::default(), 0);
        // SAFETY: the value has the size that is passed.
        let status = unsafe {
            let value = (&raw mut value).cast();
            let size = size_of::<T>();
            cublasLtMatmulDescGetAttribute(plan.operation, attribute, value, size, &mut written)
        };
        assert_eq!(status, cublasStatus_t::CUBLAS_STATUS_SUCCESS, "{attribute:?}");
        value
    }

    /// Dtype, rows, columns and leading dimension.
    fn layout(layout: cublasLtMatrixLayout_t) -> (u32, u64, u64, i64) {
        use cublasLtMatrixLayoutAttribute_t::*;
        let (mut dtype, mut rows, mut cols, mut ld, mut written) = (0u32, 0u64, 0u64, 0i64, 0);
        let attributes: [(_, *mut c_void, _); 4] = [
            (CUBLASLT_MATRIX_LAYOUT_TYPE, (&raw mut dtype).cast(), 4),
            (CUBLASLT_MATRIX_LAYOUT_ROWS, (&raw mut rows).cast(), 8),
            (CUBLASLT_MATRIX_LAYOUT_COLS, (&raw mut cols).cast(), 8),
            (CUBLASLT_MATRIX_LAYOUT_LD, (&raw mut ld).cast(), 8),
        ];
        for (attribute, value, size) in attributes {
            // SAFETY: each value has the size that is passed.
            let status = unsafe {
                cublasLtMatrixLayoutGetAttribute(layout, attribute, value, size, &mut written)
            };
            assert_eq!(status, cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        }
        (dtype, rows, cols, ld)
    }

    /// What cuBLASLt's documentation asks of operands with scales of blocks. Descriptors need no device; with one,
    /// the heuristic is asked whether it has such a product, which it has from compute capability 10.0 on.
    #[test]
    fn products_with_block_scales_are_described() {
        use NVTEDType::*;
        use NVTEScalingMode::*;
        library::open("libcublasLt.so.13");
        // SAFETY: loads the library if it is there.
        if !unsafe { is_culib_present() } {
            println!(
                "backend::cublaslt::tests::products_with_block_scales_are_described: skipped: \
                 libcublasLt.so.13 is not to be found"
            );
            return;
        }
        for (dtype, mode, scale_mode, code, pointer_mode) in [
            (kNVTEFloat8E4M3, NVTE_MXFP8_1D_SCALING, 2, cudaDataType::CUDA_R_8F_E4M3, 0),
            (kNVTEFloat4E2M1, NVTE_NVFP4_1D_SCALING, 1, cudaDataType::CUDA_R_4F_E2M1, 1),
        ] {
            let args = args(dtype, mode);
            let problem = Problem::new(&args, 0);
            let mut plan = Plan::default();
            assert!(plan.describe(&args, &problem).is_ok());
            for (mode, pointer, scales) in [
                (
                    CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                    CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                    args.scales_a,
                ),
                (
                    CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
                    CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                    args.scales_b,
                ),
            ] {
                assert_eq!(attribute::<i32>(&plan, mode), scale_mode);
                assert_eq!(attribute::<usize>(&plan, pointer), scales.inv as usize);
            }
            assert_eq!(attribute::<i32>(&plan, CUBLASLT_MATMUL_DESC_TRANSA), 1);
            assert_eq!(attribute::<i32>(&plan, CUBLASLT_MATMUL_DESC_TRANSB), 0);
            assert_eq!(attribute::<i8>(&plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM), 0);
            assert_eq!(attribute::<i32>(&plan, CUBLASLT_MATMUL_DESC_POINTER_MODE), pointer_mode);
            assert_eq!(layout(plan.a), (code as u32, 256, 384, 256));
            assert_eq!(layout(plan.b), (code as u32, 256, 128, 256));
            assert_eq!(layout(plan.d), (cudaDataType::CUDA_R_16BF as u32, 384, 128, 384));

            let (Some(major), Ok(())) = (major_capability(), handle_of(&mut plan)) else {
                println!("{mode:?}: described; no device to ask");
                continue;
            };
            let answer = plan.candidates(&problem, CANDIDATES).map_err(|failure| match failure {
                Failure::NoAlgorithm(status) | Failure::Call(_, status) => status,
            });
            let answer = answer.map(|found| found.len());
            println!("{mode:?} on compute capability {major}: {answer:?}");
            assert_eq!(matches!(answer, Ok(1..)), major >= 10);
        }
    }

    /// The first part of the device's compute capability, if there is a device.
    fn major_capability() -> Option<i32> {
        use cudarc::driver::sys::*;
        let (mut device, mut major) = (0, 0);
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        // SAFETY: calls the driver if it is there, which writes two integers.
        let found = unsafe {
            is_culib_present()
                && cuInit(0) == CUresult::CUDA_SUCCESS
                && cuDeviceGet(&mut device, 0) == CUresult::CUDA_SUCCESS
                && cuDeviceGetAttribute(&mut major, attribute, device) == CUresult::CUDA_SUCCESS
        };
        found.then_some(major)
    }

    fn handle_of(plan: &mut Plan) -> Result<(), Failure> {
        plan.handle = handle(0)?;
        Ok(())
    }
}
