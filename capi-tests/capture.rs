//! Captures every operator of the CUDA backend in a graph, from the first call of the process, and
//! replays the graph on other inputs. Then calls them all without a graph: device memory stays as
//! it was, and nothing waits for the stream. Without a CUDA device the test says so and passes.

mod common;

use GemmEpilogue::*;
use common::*;
use cudarc::driver::sys::{self, CUgraphNodeType::*, CUresult::*};
use nvte::backend::args::*;
use nvte::backend::cpu_table;
use nvte::types::NVTE_Norm_Type;
use nvte::types::NVTEDType::{self, *};
use nvte::types::NVTEScalingMode::{self, *};
use std::ffi::c_void;
use std::hint::black_box;
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

/// How an output on CUDA may differ from the CPU's.
#[derive(Clone, Copy)]
enum Expect {
    Bits,
    /// As `Bits`, and no input has an influence.
    Fixed,
    Within(f64),
    /// Anything.
    Scratch,
}
use Expect::*;

struct Output {
    name: &'static str,
    dtype: NVTEDType,
    id: Id,
    expect: Expect,
}

struct Step {
    name: &'static str,
    outputs: Vec<Output>,
    call: Box<dyn Fn(&Side) -> Outcome>,
}

/// The operators in order, and the buffers that they start from. Chains differ in the values of
/// the buffers only.
struct Chain {
    rng: Rng,
    buffers: Buffers,
    /// Of the step that comes next.
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
        self.steps.push(Step { name, outputs, call: Box::new(call) });
    }

    fn run(&self, side: &Side) -> Check {
        self.steps.iter().try_for_each(|step| ok((step.call)(side), step.name))
    }
}

fn chain(seed: u64) -> Chain {
    let rng = Rng::new("capture", seed, 0);
    let mut chain = Chain { rng, buffers: Buffers::default(), outputs: vec![], steps: vec![] };
    let c = &mut chain;
    quantize(c, "quantize row", false);
    quantize(c, "quantize row and column", true);
    dequantize(c, "dequantize", false);
    dequantize(c, "dequantize transposed", true);
    transpose(c, "transpose of 1 byte", kNVTEByte);
    transpose(c, "transpose of 2 bytes", kNVTEFloat16);
    transpose(c, "transpose of 4 bytes", kNVTEInt32);
    amax(c, "amax of many", 1_000_003);
    amax(c, "amax of few", 100);
    scale_from_amax(c);
    delayed_scaling(c);
    memset(c, "memset of few bytes", 1003);
    memset(c, "memset of many bytes", 100_003);
    host_copy(c, "host copy of few bytes", 1003);
    host_copy(c, "host copy of many bytes", 40_003);
    offsets(c);
    let workspace = c.output("workspace", kNVTEByte, WORKSPACE, Scratch);
    let gemm = |c: &mut _, name, d_dtype, gemm| self::gemm(c, name, workspace, d_dtype, gemm);
    gemm(c, "gemm bf16", kNVTEBFloat16, (kNVTEBFloat16, 512, NVTEX_EPILOGUE_NONE));
    gemm(c, "gemm bf16 gelu", kNVTEBFloat16, (kNVTEBFloat16, 512, NVTEX_EPILOGUE_GELU_BIAS));
    gemm(c, "gemm fp8", kNVTEBFloat16, (kNVTEFloat8E4M3, 512, NVTEX_EPILOGUE_NONE));
    gemm(c, "gemm fp8 to fp8", kNVTEFloat8E4M3, (kNVTEFloat8E4M3, 512, NVTEX_EPILOGUE_NONE));
    gemm(c, "gemm k = 0", kNVTEBFloat16, (kNVTEBFloat16, 0, NVTEX_EPILOGUE_BIAS));
    norm_forward(c, "layernorm", NVTE_Norm_Type::LayerNorm, NVTE_DELAYED_TENSOR_SCALING);
    norm_forward(c, "rmsnorm in blocks", NVTE_Norm_Type::RMSNorm, NVTE_BLOCK_SCALING_2D);
    norm_backward(c, "layernorm backward", kNVTEBFloat16);
    norm_backward(c, "layernorm backward of other dtypes", kNVTEFloat32);
    chain
}

fn quantize(c: &mut Chain, name: &'static str, with_colwise: bool) {
    let (rows, cols) = (384, 640);
    let (input_dtype, output_dtype) = (kNVTEBFloat16, kNVTEFloat8E4M3);
    let (input, scale) = (c.input(input_dtype, rows * cols), c.scale_input());
    let rowwise = c.output("rowwise", output_dtype, rows * cols, Bits);
    let colwise = with_colwise.then(|| c.output("colwise", output_dtype, rows * cols, Bits));
    let amax = c.in_place("amax", kNVTEFloat32, 1e-3f32.to_le_bytes().into(), Bits);
    let scale_inv = c.output("scale_inv", kNVTEFloat32, 1, Bits);
    c.step(name, move |side| {
        let args = QuantizeArgs {
            input: side.at(input),
            rowwise: side.at(rowwise),
            colwise: colwise.map_or(null_mut(), |id| side.at(id)),
            scale: side.at(scale),
            amax: side.at(amax),
            rowwise_scale_inv: side.at(scale_inv),
            rows,
            cols,
            input_dtype,
            output_dtype,
            ..QUANTIZE
        };
        entry(side, side.table.quantize, args)
    });
}

fn dequantize(c: &mut Chain, name: &'static str, colwise: bool) {
    let (rows, cols) = (384, 640);
    let (input_dtype, output_dtype) = (kNVTEFloat8E4M3, kNVTEBFloat16);
    let (input, scale_inv) = (c.input(input_dtype, rows * cols), c.scale_input());
    let output = c.output("output", output_dtype, rows * cols, Bits);
    c.step(name, move |side| {
        let args = DequantizeArgs {
            input: side.at(input),
            output: side.at(output),
            scale_inv: side.at(scale_inv),
            rows,
            cols,
            input_dtype,
            output_dtype,
            colwise,
            ..DEQUANTIZE
        };
        entry(side, side.table.dequantize, args)
    });
}

fn transpose(c: &mut Chain, name: &'static str, dtype: NVTEDType) {
    let (rows, cols, element_size) = (384, 640, size(dtype));
    let bytes = c.rng.bytes(rows * cols * element_size);
    let input = c.buffers.add(bytes, 0);
    // As bytes, since a transpose keeps the bits of a NaN.
    let output = c.output("output", kNVTEByte, rows * cols * element_size, Bits);
    c.step(name, move |side| {
        let (input, output, noop) = (side.at(input), side.at(output), null());
        let args = TransposeArgs { input, output, noop, rows, cols, element_size };
        entry(side, side.table.transpose, args)
    });
}

fn amax(c: &mut Chain, name: &'static str, numel: usize) {
    let dtype = kNVTEBFloat16;
    let input = c.input(dtype, numel);
    let amax = c.output("amax", kNVTEFloat32, 1, Bits);
    c.step(name, move |side| {
        let (input, amax, noop) = (side.at(input), side.at(amax), null());
        entry(side, side.table.amax, AmaxArgs { input, amax, noop, numel, dtype })
    });
}

fn scale_from_amax(c: &mut Chain) {
    let amax = c.scale_input();
    let scale = c.output("scale", kNVTEFloat32, 1, Bits);
    c.step("scale_from_amax", move |side| {
        let args = ScaleFromAmaxArgs {
            amax: side.at(amax),
            scale: side.at(scale),
            noop: null(),
            fp8_max: 448.0,
            epsilon: 0.0,
            pow2: false,
        };
        entry(side, side.table.scale_from_amax, args)
    });
}

fn delayed_scaling(c: &mut Chain) {
    let length = 16;
    let tensors = [1, 40].map(|num_scales| {
        let mut floats = |name, len| {
            let bytes = (0..len).flat_map(|_| c.scale().to_le_bytes()).collect();
            c.in_place(name, kNVTEFloat32, bytes, Bits)
        };
        (floats("history", length * num_scales), floats("scale", num_scales), num_scales)
    });
    c.step("delayed_scaling", move |side| {
        let entries = tensors.map(|(history, scale, num_scales)| DelayedScalingEntry {
            history: side.at(history),
            scale: side.at(scale),
            new_history: side.at(history),
            new_scale: side.at(scale),
            num_scales,
        });
        let args = DelayedScalingArgs {
            entries: entries.as_ptr(),
            num_entries: entries.len(),
            reduced_amax: null(),
            length,
            scaled_max: 448.0,
            algo: AmaxAlgo::NVTEX_AMAX_ALGO_MAX,
            keep_if_unused: false,
        };
        entry(side, side.table.delayed_scaling, args)
    });
}

fn memset(c: &mut Chain, name: &'static str, bytes: usize) {
    let ptr = c.output("bytes", kNVTEByte, bytes, Fixed);
    c.step(name, move |side| {
        entry(side, side.table.memset, MemsetArgs { ptr: side.at(ptr), bytes, value: 0x5A })
    });
}

fn host_copy(c: &mut Chain, name: &'static str, bytes: usize) {
    let device = c.output("bytes", kNVTEByte, bytes, Fixed);
    c.step(name, move |side| {
        let mut host: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        let args = HostCopyArgs { host: host.as_ptr().cast(), device: side.at(device), bytes };
        let outcome = entry(side, side.table.host_copy, args);
        // The copy has been taken by now; `black_box` keeps the write before the free.
        host.fill(0xEE);
        black_box(&host);
        outcome
    });
}

fn offsets(c: &mut Chain) {
    let length = 1500;
    let dims: Vec<u8> =
        (0..length).flat_map(|_| (c.rng.next() as i32 >> 20).to_le_bytes()).collect();
    let first = c.buffers.add(dims, 0);
    let wide = c.output("offsets", kNVTEInt64, length + 1, Bits);
    let narrow = c.output("offsets", kNVTEInt32, length, Bits);
    c.step("offsets", move |side| {
        let output = |id, stride, dtype, leading_zero| OffsetsOutput {
            ptr: side.at(id),
            stride,
            dtype,
            leading_zero,
        };
        let outputs = [output(wide, 128, kNVTEInt64, true), output(narrow, 7, kNVTEInt32, false)];
        let args = OffsetsArgs {
            first: side.at(first),
            last: null(),
            outputs: outputs.as_ptr(),
            num_outputs: outputs.len(),
            length,
            first_dtype: kNVTEInt32,
            last_dtype: kNVTEInt32,
        };
        entry(side, side.table.offsets, args)
    });
}

/// `B A^T` with both operands of one dtype, k long.
fn gemm(
    c: &mut Chain,
    name: &'static str,
    workspace: Id,
    d_dtype: NVTEDType,
    (dtype, k, epilogue): (NVTEDType, usize, GemmEpilogue),
) {
    let (m, n, wide) = (256, 128, kNVTEBFloat16);
    let [a, b] = [m, n].map(|rows| c.input(dtype, rows * k));
    // One float past the alignment of an allocation: cuBLASLt wants 16 bytes.
    let mut scale = |of: NVTEDType| {
        let scale = c.scale().to_le_bytes().into();
        is_fp8(of).then(|| c.buffers.add(scale, 4))
    };
    let [scale_inv_a, scale_inv_b, scale_d] = [dtype, dtype, d_dtype].map(&mut scale);
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
        let args = GemmArgs {
            a: side.at(a),
            b: side.at(b),
            c: side.at(d),
            d: side.at(d),
            scale_inv_a: maybe(scale_inv_a),
            scale_inv_b: maybe(scale_inv_b),
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
            transa: true,
            transb: false,
            split_accumulator: true,
            sm_count: 0,
        };
        entry(side, side.table.gemm, args)
    });
}

/// To FP8 in both directions, whose codes may differ by one from the CPU's.
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
        let cast = QuantizeArgs {
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

fn norm_backward(c: &mut Chain, name: &'static str, dtype: NVTEDType) {
    let (rows, cols, x_dtype) = (500, 640, kNVTEBFloat16);
    let [dz, weight] = [rows * cols, cols].map(|len| c.input(dtype, len));
    let x = c.input(x_dtype, rows * cols);
    let [mu, rsigma] = [rows; 2].map(|len| c.input(kNVTEFloat32, len));
    let dx = c.output("dx", x_dtype, rows * cols, Within(1e-4));
    let dgamma = c.output("dgamma", dtype, cols, Within(1e-2));
    let dbeta = c.output("dbeta", dtype, cols, Within(1e-2));
    let parts = NormBackwardArgs::parts(rows, 132);
    let partial = c.output("partial", kNVTEFloat32, 2 * parts * cols, Scratch);
    c.step(name, move |side| {
        let args = NormBackwardArgs {
            dz: side.at(dz),
            x: side.at(x),
            add: null(),
            mu: side.at(mu),
            rsigma: side.at(rsigma),
            gamma: Gamma { data: side.at(weight), dtype, zero_centered: false, rounded: false },
            dx: side.at(dx),
            dgamma: side.at(dgamma),
            dbeta: side.at(dbeta),
            partial: side.at(partial),
            parts,
            rows,
            cols,
            x_dtype,
            norm: NVTE_Norm_Type::LayerNorm,
            sm_count: 132,
        };
        entry(side, side.table.norm_backward, args)
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
    let outputs = || chain.steps.iter().flat_map(|s| s.outputs.iter().map(move |o| (s.name, o)));
    for (step, &Output { name, dtype, id: Id(id), expect }) in outputs() {
        match expect {
            Bits | Fixed => equal(name, dtype, &cpu[id], &cuda[id]),
            Within(bound) => close(name, dtype, bound, &cpu[id], &cuda[id]),
            Scratch => Ok(()),
        }
        .map_err(|e| format!("{step}: {e}"))?;
    }
    unchanged(&chain.buffers, cuda, outputs().map(|(_, output)| output.id))
}

/// If the inputs made no difference, a replay that ignores them would pass.
fn assert_different(chain: &Chain, [one, other]: &[Contents; 2]) {
    for step in &chain.steps {
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
        ok((step.call)(side), step.name)?;
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
        ok((step.call)(side), step.name)?;
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
    let chains = [chain(1), chain(2)];
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
