//! Captures every operator of the CUDA backend in a graph, from the first call of the process: the first cases of
//! the generators that comparison uses, and of the other operators a chain of calls that is written here. It
//! replays the graph on other inputs. Then calls them all without a graph: device memory stays as
//! it was, and nothing waits for the stream. Without a CUDA device the test says so and passes.

mod attention;
#[path = "../common/mod.rs"]
mod common;
mod gemm;
mod hadamard;
mod moe;
#[path = "../cases/mod.rs"]
mod operators;

use Expect::*;
use GemmEpilogue::*;
use common::*;
use cudarc::driver::sys::{self, CUgraphNodeType::*, CUresult::*};
use nvte::backend::args::*;
use nvte::backend::cpu_table;
use nvte::types::NVTE_Norm_Type;
use nvte::types::NVTEDType::{self, *};
use nvte::types::NVTEScalingMode::{self, *};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What an instantiated graph may take of the device's memory.
const GRAPH_BYTES: usize = 64 << 20;
/// Rounds through all operators that fill the driver's queue of launches, so that its own buffers
/// have grown before memory is measured.
const WARM_UP: usize = 50;
const ROUNDS: usize = 200;
const TOP_SCALE: f32 = 1.5;
const WORKSPACE: usize = 8 << 20;
/// How long the stream is held at most, should an operator wait for it.
const HOLD: Duration = Duration::from_secs(20);

/// Cases of each generator of tests/cases that are captured.
const EACH: usize = 10;
/// Generated cases with larger buffers are left to comparison.
const CASE_BYTES: usize = 4 << 20;

struct Step {
    name: String,
    /// Whether each output depends on the values of the inputs, or only one at least.
    strict: bool,
    outputs: Vec<Output>,
    call: Box<dyn Fn(&Side) -> Outcome>,
}

/// The operators in order, and the buffers that they start from. Chains differ in the values of
/// the buffers only.
struct Chain {
    rng: Rng,
    buffers: Buffers,
    /// The outputs of the step that comes next.
    outputs: Vec<Output>,
    steps: Vec<Step>,
}

impl Chain {
    /// Values in [-1, 1], the largest of which differs from chain to chain.
    fn input(&mut self, dtype: NVTEDType, len: usize) -> Id {
        let top = self.scale() / TOP_SCALE;
        let values =
            (0..len).flat_map(|_| (top * self.rng.unit()).to_le_bytes()).collect::<Vec<_>>();
        self.buffers.add(cast(&values, kNVTEFloat32, dtype), 0)
    }

    /// In [0.5, TOP_SCALE].
    fn scale(&mut self) -> f32 {
        0.5 + self.rng.unit().abs()
    }

    fn scale_input(&mut self) -> Id {
        let scale = self.scale();
        self.buffers.float(scale)
    }

    /// A buffer that the next step reads and writes.
    fn in_place(
        &mut self,
        name: &'static str,
        dtype: NVTEDType,
        bytes: Vec<u8>,
        expect: Expect,
    ) -> Id {
        let id = self.buffers.add(bytes, 0);
        self.outputs.push(Output { name, dtype, id, expect });
        id
    }

    /// A poisoned buffer that the next step writes.
    fn output(&mut self, name: &'static str, dtype: NVTEDType, len: usize, expect: Expect) -> Id {
        self.in_place(name, dtype, vec![0xCD; len * size(dtype)], expect)
    }

    fn step(&mut self, name: &'static str, call: impl Fn(&Side) -> Outcome + 'static) {
        let outputs = std::mem::take(&mut self.outputs);
        self.steps.push(Step { name: name.into(), strict: true, outputs, call: Box::new(call) });
    }

    /// A step of a generated case, whose buffers come behind those that are there.
    fn case(&mut self, name: &str, case: Case) {
        let first = self.buffers.0.len();
        self.buffers.0.extend(case.buffers.0);
        let outputs = case.outputs.iter();
        let outputs = outputs.map(|output| Output { id: Id(first + output.id.0), ..*output });
        let (outputs, call) = (outputs.collect(), case.call);
        let call = Box::new(move |side: &Side| {
            side.first.set(first);
            let outcome = call(side);
            side.first.set(0);
            outcome
        });
        let name = format!("{name}: {}", case.what);
        self.steps.push(Step { name, strict: false, outputs, call });
    }

    fn run(&self, side: &Side) -> Check {
        self.steps.iter().try_for_each(|step| ok((step.call)(side), &step.name))
    }
}

/// One case of a generator, with the values that a seed gives.
fn generated((_, generate, name): Pick, index: usize, seed: u64) -> Case {
    generate(&mut Rng::new(name, SEED, index, Some(seed)), index)
}

/// Number of cases in comparison, generator, and its name.
type Pick = (usize, fn(&mut Rng, usize) -> Case, &'static str);

macro_rules! list {
    ($($module:ident: $($operator:ident $count:literal),*;)*) => {
        const GENERATORS: &[Pick] =
            &[$($(($count, operators::$module::$operator, stringify!($operator))),*),*];
    };
}
operators::operators!(list);

/// Whether the outputs of a case depend on the values of its inputs, if they shall: otherwise a replay that
/// ignores these would pass.
fn depends_on_values(cases: [&Case; 2]) -> Result<bool, String> {
    if cases[0].outputs.iter().all(|output| output.expect == Fixed) {
        return Ok(true);
    }
    let mut contents = Vec::new();
    for case in cases {
        let side = Side::open(cpu_table(), &case.buffers)?;
        side.fill()?;
        ok((case.call)(&side), &case.what)?;
        contents.push(side.contents()?);
    }
    let mut outputs = cases[0].outputs.iter().filter(|output| output.expect != Scratch);
    Ok(outputs.any(|output| contents[0][output.id.0] != contents[1][output.id.0]))
}

/// The first cases of each generator that are small and depend on the values of their inputs.
fn picks() -> Result<Vec<(Pick, usize)>, String> {
    let mut picks = Vec::new();
    for &pick in GENERATORS {
        let (count, _, name) = pick;
        let mut found = 0;
        for index in 0..count {
            let cases = [1, 2].map(|seed| generated(pick, index, seed));
            let bytes: usize = cases[0].buffers.0.iter().map(|buffer| buffer.bytes.len()).sum();
            if bytes > CASE_BYTES {
                continue;
            }
            if depends_on_values(cases.each_ref())? {
                picks.push((pick, index));
                found += 1;
            }
            if found == EACH {
                break;
            }
        }
        assert!(found == EACH, "{name}: {found} cases to capture");
    }
    Ok(picks)
}

fn chain(seed: u64, picks: &[(Pick, usize)]) -> Chain {
    let rng = Rng::new("capture", seed, 0, None);
    let mut chain = Chain { rng, buffers: Buffers::default(), outputs: vec![], steps: vec![] };
    let c = &mut chain;
    for &(pick, index) in picks {
        c.case(pick.2, generated(pick, index, seed));
    }
    let workspace = c.output("workspace", kNVTEByte, WORKSPACE, Scratch);
    let per_tensor = [NVTE_DELAYED_TENSOR_SCALING; 2];
    let blocks = [NVTE_BLOCK_SCALING_2D, NVTE_BLOCK_SCALING_1D];
    let mut gemm =
        |name, d_dtype, modes, gemm| self::gemm(c, name, workspace, d_dtype, modes, gemm);
    let (bf16, e4m3) = (kNVTEBFloat16, kNVTEFloat8E4M3);
    gemm("gemm bf16", bf16, per_tensor, (bf16, 512, NVTEX_EPILOGUE_NONE));
    gemm("gemm bf16 gelu", bf16, per_tensor, (bf16, 512, NVTEX_EPILOGUE_GELU_BIAS));
    gemm("gemm fp8", bf16, per_tensor, (e4m3, 512, NVTEX_EPILOGUE_NONE));
    gemm("gemm fp8 to fp8", e4m3, per_tensor, (e4m3, 512, NVTEX_EPILOGUE_NONE));
    gemm("gemm k = 0", bf16, per_tensor, (bf16, 0, NVTEX_EPILOGUE_BIAS));
    gemm("gemm fp8 blocks", bf16, blocks, (e4m3, 512, NVTEX_EPILOGUE_BIAS));
    gemm("gemm mxfp8", bf16, [NVTE_MXFP8_1D_SCALING; 2], (e4m3, 512, NVTEX_EPILOGUE_NONE));
    hadamard::steps(c, workspace);
    norm_forward(c, "layernorm to FP8", NVTE_Norm_Type::LayerNorm, NVTE_DELAYED_TENSOR_SCALING);
    norm_forward(c, "rmsnorm in blocks", NVTE_Norm_Type::RMSNorm, NVTE_BLOCK_SCALING_2D);
    gemm::steps(c);
    attention::steps(c);
    moe::steps(c);
    chain
}

fn block_scales(c: &mut Chain, len: usize) -> Id {
    let scales = (0..len).flat_map(|_| c.scale().to_le_bytes()).collect();
    c.buffers.add(scales, 0)
}

const SHARD: Shard =
    Shard { input: null(), start: 48, length: 200_000, rows: 384, cols: 640, dtype: kNVTEBFloat16 };

/// `B A^T` with both operands of one dtype, k long.
fn gemm(
    c: &mut Chain,
    name: &'static str,
    workspace: Id,
    d_dtype: NVTEDType,
    modes: [NVTEScalingMode; 2],
    (dtype, k, epilogue): (NVTEDType, usize, GemmEpilogue),
) {
    let (m, n, wide) = (256, 128, kNVTEBFloat16);
    let [a, b] = [m, n].map(|rows| c.input(dtype, rows * k));
    // One float past the alignment of an allocation: cuBLASLt wants 16 bytes.
    let scale = |c: &mut Chain, of: NVTEDType| {
        let scale = c.scale().to_le_bytes().into();
        is_fp8(of).then(|| c.buffers.add(scale, 4))
    };
    let scales = [(modes[0], m), (modes[1], n)].map(|(mode, outer)| {
        let (_, lines, needed) = scale_matrix(mode, false, (outer, k));
        match mode {
            NVTE_MXFP8_1D_SCALING => {
                // Scales are one half or one.
                let codes = c.rng.bytes(lines * needed).iter().map(|byte| 126 + byte % 2).collect();
                (Some(c.buffers.add(codes, 0)), needed)
            }
            NVTE_DELAYED_TENSOR_SCALING => (scale(c, dtype), 0),
            _ => (Some(block_scales(c, lines * needed)), needed),
        }
    });
    let scale_d = scale(c, d_dtype);
    let gelu = epilogue == NVTEX_EPILOGUE_GELU_BIAS;
    let with_bias = gelu || epilogue == NVTEX_EPILOGUE_BIAS;
    let bias = with_bias.then(|| c.input(wide, m));

    let added_in = with_bias.then_some(wide);
    let top = if is_fp8(dtype) { TOP_SCALE * TOP_SCALE } else { 1.0 };
    let (sum, activated) = product_bounds([dtype, dtype], k, top, added_in, gelu);
    let bound = if is_fp8(d_dtype) { TOP_SCALE as f64 * activated } else { activated };
    let d = c.output("d", d_dtype, n * m, Within(bound));
    let aux = gelu.then(|| c.output("aux", wide, n * m, Within(sum)));
    let fp8_d = is_fp8(d_dtype).then(|| {
        let amax = c.output("amax_d", kNVTEFloat32, 1, Within(sum));
        (amax, c.output("scale_inv_d", kNVTEFloat32, 1, Bits))
    });
    c.step(name, move |side| {
        let maybe = |id: Option<Id>| id.map_or(null_mut(), |id| side.at::<f32>(id));
        let scales_of = |i: usize| GemmScales {
            inv: maybe(scales[i].0).cast(),
            stride: scales[i].1,
            mode: modes[i],
            swizzled: false,
        };
        let args = GemmArgs {
            a: side.at(a),
            b: side.at(b),
            c: side.at(d),
            d: side.at(d),
            scales_a: scales_of(0),
            scales_b: scales_of(1),
            scale_d: maybe(scale_d),
            amax_d: maybe(fp8_d.map(|ids| ids.0)),
            scale_inv_d: maybe(fp8_d.map(|ids| ids.1)),
            bias: maybe(bias).cast(),
            aux: maybe(aux).cast(),
            workspace: side.at(workspace),
            workspace_bytes: WORKSPACE,
            m,
            n,
            k,
            alpha: 1.0,
            beta: 0.0,
            a_dtype: dtype,
            b_dtype: dtype,
            d_dtype,
            bias_dtype: wide,
            aux_dtype: wide,
            epilogue,
            nvfp4: Nvfp4Factors::NONE,
            transa: true,
            transb: false,
            split_accumulator: true,
            sm_count: 0,
            aux_slope: false,
            d_columns: std::ptr::null_mut(),
            d_columns_pitch: 0,
        };
        entry(side, side.table.gemm, args)
    });
}

/// Normalization to FP8 in both directions, whose codes may differ by one from the CPU's.
fn norm_forward(c: &mut Chain, name: &'static str, norm: NVTE_Norm_Type, mode: NVTEScalingMode) {
    let (rows, cols, dtype) = (256, 640, kNVTEBFloat16);
    let layer = norm == NVTE_Norm_Type::LayerNorm;
    let blocks = mode != NVTE_DELAYED_TENSOR_SCALING;
    let [x, weight, beta] = [rows * cols, cols, cols].map(|len| c.input(dtype, len));
    let scale = c.scale_input();
    // A code is a sixteenth of its value wide.
    let bound = if blocks { 0.07 * 448.0 } else { 0.5 };
    let [rowwise, colwise] = ["rowwise", "colwise"]
        .map(|name| c.output(name, kNVTEFloat8E4M3, rows * cols, Within(bound)));
    let entries = if blocks { rows / 128 * (cols / 128) } else { 1 };
    let [row_scales, col_scales] = ["scale_inv", "columnwise scale_inv"]
        .map(|name| c.output(name, kNVTEFloat32, entries, Within(1e-5)));
    let mu = layer.then(|| c.output("mu", kNVTEFloat32, rows, Within(1e-6)));
    let rsigma = c.output("rsigma", kNVTEFloat32, rows, Within(1e-4));
    c.step(name, move |side| {
        let cast = Cast {
            input: side.at(x),
            rowwise: side.at(rowwise),
            colwise: side.at(colwise),
            scale: if blocks { null() } else { side.at(scale) },
            rowwise_scale_inv: side.at(row_scales),
            colwise_scale_inv: side.at(col_scales),
            rows,
            cols,
            rowwise_scale_stride: if blocks { cols / 128 } else { 0 },
            colwise_scale_stride: if blocks { rows / 128 } else { 0 },
            mode,
            input_dtype: dtype,
            output_dtype: kNVTEFloat8E4M3,
            ..QUANTIZE
        };
        let args = NormForwardArgs {
            cast,
            residual: null(),
            sum: null_mut(),
            gamma: Gamma { data: side.at(weight), dtype, zero_centered: true, rounded: false },
            beta: if layer { side.at(beta) } else { null() },
            mu: mu.map_or(null_mut(), |mu| side.at(mu)),
            rsigma: side.at(rsigma),
            epsilon: 1e-5,
            norm,
            sm_count: 132,
        };
        entry(side, side.table.norm_forward, args)
    });
}

type Contents = Vec<Vec<u8>>;

fn on_cpu(chain: &Chain) -> Result<Contents, String> {
    let side = Side::open(cpu_table(), &chain.buffers)?;
    side.fill()?;
    chain.run(&side)?;
    side.contents()
}

fn compare(chain: &Chain, cpu: &Contents, cuda: &Contents) -> Check {
    for step in &chain.steps {
        let mut outputs = step.outputs.iter();
        let checked = outputs.try_for_each(|output| output.check(cpu, cuda));
        checked.map_err(|e| format!("{}: {e}", step.name))?;
    }
    let outputs = chain.steps.iter().flat_map(|step| &step.outputs);
    unchanged(&chain.buffers, cuda, outputs.map(|output| output.id))
}

/// If the inputs made no difference, a replay that ignores them would pass.
fn assert_different(chain: &Chain, [one, other]: &[Contents; 2]) {
    for step in chain.steps.iter().filter(|step| step.strict) {
        for output in step.outputs.iter().filter(|o| matches!(o.expect, Bits | Within(_))) {
            let id = output.id.0;
            assert!(one[id] != other[id], "{}: {} is always the same", step.name, output.name);
        }
    }
}

/// Calls the driver; the error is the function and what it answered.
macro_rules! driver {
    ($function:ident($($arg:expr),*)) => {
        // SAFETY: out-pointers are to locals; streams, graphs and nodes are open.
        match unsafe { sys::$function($($arg),*) } {
            CUDA_SUCCESS => Ok(()),
            error => Err(format!("{}: {error:?}", stringify!($function))),
        }
    };
}

fn free_memory() -> Result<usize, String> {
    let (mut free, mut total) = (0, 0);
    driver!(cuMemGetInfo_v2(&mut free, &mut total))?;
    Ok(free)
}

/// The graph of the chain.
fn capture_chain(chain: &Chain, side: &Side) -> Result<sys::CUgraph, String> {
    let stream = side.stream.cast();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    driver!(cuStreamBeginCapture_v2(stream, mode))?;
    for step in &chain.steps {
        ok((step.call)(side), &step.name)?;
        // An operator that breaks the capture need not notice.
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        driver!(cuStreamIsCapturing(stream, &mut status))?;
        if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
            return Err(format!("{}: then the capture is {status:?}", step.name));
        }
    }
    let mut graph = null_mut();
    driver!(cuStreamEndCapture(stream, &mut graph))?;
    Ok(graph)
}

/// The graph has device work only: no allocation and no host function.
fn check_nodes(graph: sys::CUgraph, steps: usize) -> Check {
    let mut count = 0;
    driver!(cuGraphGetNodes(graph, null_mut(), &mut count))?;
    let mut nodes = vec![null_mut(); count];
    driver!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count))?;
    for node in nodes {
        let mut kind = CU_GRAPH_NODE_TYPE_EMPTY;
        driver!(cuGraphNodeGetType(node, &mut kind))?;
        match kind {
            CU_GRAPH_NODE_TYPE_KERNEL | CU_GRAPH_NODE_TYPE_MEMCPY | CU_GRAPH_NODE_TYPE_MEMSET => {}
            _ => return Err(format!("the graph has a {kind:?}")),
        }
    }
    println!("capture: {steps} operators in {count} nodes");
    if count < steps { Err(format!("{count} nodes for {steps} operators")) } else { Ok(()) }
}

static RELEASED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn hold(_: *mut c_void) {
    let start = Instant::now();
    while !RELEASED.load(Ordering::Acquire) && start.elapsed() < HOLD {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Calls every operator while the stream cannot advance.
fn run_held(chain: &Chain, side: &Side) -> Check {
    let stream = side.stream.cast();
    driver!(cuLaunchHostFunc(stream, Some(hold), null_mut()))?;
    let held = chain.steps.iter().try_for_each(|step| {
        ok((step.call)(side), &step.name)?;
        // SAFETY: the stream is open.
        match unsafe { sys::cuStreamQuery(stream) } {
            CUDA_ERROR_NOT_READY => Ok(()),
            status => Err(format!("{} waited for the stream, now {status:?}", step.name)),
        }
    });
    RELEASED.store(true, Ordering::Release);
    synchronize(side.table, side.stream)?;
    held
}

fn prove(table: &'static OpTable) -> Check {
    let picks = picks()?;
    let chains = [1, 2].map(|seed| chain(seed, &picks));
    let expected = [on_cpu(&chains[0])?, on_cpu(&chains[1])?];
    let first = &chains[0];
    assert_different(first, &expected);

    let mut side = Side::open(table, &first.buffers)?;
    side.fill()?;
    let graph = capture_chain(first, &side)?;
    check_nodes(graph, first.steps.len())?;
    unchanged(&first.buffers, &side.contents()?, []).map_err(|e| format!("in the capture {e}"))?;

    let before = free_memory()?;
    let mut exec = null_mut();
    driver!(cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
    for (index, (chain, expected)) in chains.iter().zip(&expected).enumerate() {
        side.buffers = &chain.buffers;
        side.fill()?;
        driver!(cuGraphLaunch(exec, side.stream.cast()))?;
        let compared = side.contents().and_then(|contents| compare(chain, expected, &contents));
        compared.map_err(|e| format!("replay {index}: {e}"))?;
    }
    let taken = before.saturating_sub(free_memory()?);
    println!("capture: the graph takes {taken} bytes of device memory");
    if taken > GRAPH_BYTES {
        return Err(format!("{taken} bytes of device memory went to a graph and two replays"));
    }
    driver!(cuGraphExecDestroy(exec))?;
    driver!(cuGraphDestroy(graph))?;

    let rounds = |count| {
        (0..count).try_for_each(|_| first.run(&side))?;
        synchronize(table, side.stream)?;
        free_memory()
    };
    let (before, after) = (rounds(WARM_UP)?, rounds(ROUNDS)?);
    if after < before {
        return Err(format!("{ROUNDS} rounds: free device memory went from {before} to {after}"));
    }
    run_held(first, &side)
}

#[test]
fn capture() {
    let Some(table) = cuda("capture") else { return };
    prove(table).unwrap_or_else(|error| panic!("{error}"));
}
