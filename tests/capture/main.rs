//! Captures every operator of the CUDA backend in a graph, from the first call of the process, and
//! replays the graph on other inputs. Then calls them all without a graph: device memory stays as
//! it was, and nothing waits for the stream. Without a CUDA device the test says so and passes.

mod attention;
#[path = "../common/mod.rs"]
mod common;
mod gemm;
mod hadamard;
mod moe;

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
    quantize_fused(c, "quantize with dbias", NVTE_DELAYED_TENSOR_SCALING, PLAIN);
    quantize_fused(c, "quantize of a derivative", NVTE_DELAYED_TENSOR_SCALING, DERIVATIVE);
    quantize_fused(c, "quantize of a derivative, MXFP8", NVTE_MXFP8_1D_SCALING, DERIVATIVE);
    quantize_fused(c, "quantize of a derivative, 1D", NVTE_BLOCK_SCALING_1D, DERIVATIVE);
    quantize_fused(c, "quantize of a gated activation, 2D", NVTE_BLOCK_SCALING_2D, GATED);
    quantize_group(c, "quantize of a group", NVTE_DELAYED_TENSOR_SCALING);
    quantize_group(c, "quantize of a group, MXFP8", NVTE_MXFP8_1D_SCALING);
    quantize_group(c, "quantize of a group, 1D", NVTE_BLOCK_SCALING_1D);
    quantize_group(c, "quantize of a group, 2D", NVTE_BLOCK_SCALING_2D);
    dequantize(c, "dequantize", false);
    dequantize(c, "dequantize transposed", true);
    transpose(c, "transpose of 1 byte", kNVTEByte);
    transpose(c, "transpose of 2 bytes", kNVTEFloat16);
    transpose(c, "transpose of 4 bytes", kNVTEInt32);
    for mode in [NVTE_DELAYED_TENSOR_SCALING, NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_1D] {
        dequantize_group(c, mode);
    }
    requantize(c);
    transpose_dbias(c);
    swap_first_dims(c, 1);
    swap_first_dims(c, 16);
    swap_first_dims(c, 240);
    amax(c, "amax of many", 1_000_003);
    amax(c, "amax of few", 100);
    scale_from_amax(c);
    delayed_scaling(c);
    memset(c, "memset of few bytes", 1003);
    memset(c, "memset of many bytes", 100_003);
    host_copy(c, "host copy of few bytes", 1003);
    host_copy(c, "host copy of many bytes", 40_003);
    offsets(c);
    scaled_activation(c, "scaled activation", false);
    scaled_activation(c, "scaled activation backward", true);
    swizzle(c, "swizzle of few", 3);
    swizzle(c, "swizzle of many", 100);
    group_amax(c);
    partial_amax(c);
    partial_cast(c);
    softmax(c, "softmax", 40, false);
    softmax(c, "softmax backward", 40, true);
    softmax(c, "softmax of long rows", 40_000, false);
    dropout(c, "dropout", false);
    dropout(c, "dropout between sums", true);
    adam(c);
    sgd(c);
    l2_norm(c);
    scale_tensors(c);
    add(c);
    scales_from_amax(c);
    rope(c);
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
    norm_forward(c, "layernorm", NVTE_Norm_Type::LayerNorm, NVTE_DELAYED_TENSOR_SCALING);
    norm_forward(c, "rmsnorm in blocks", NVTE_Norm_Type::RMSNorm, NVTE_BLOCK_SCALING_2D);
    norm_backward(c, "layernorm backward", kNVTEBFloat16);
    norm_backward(c, "layernorm backward of other dtypes", kNVTEFloat32);
    gemm::steps(c);
    attention::steps(c);
    moe::steps(c);
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

const PLAIN: Form = Form::NVTEX_FORM_PLAIN;
const DERIVATIVE: Form = Form::NVTEX_FORM_DERIVATIVE;
const GATED: Form = Form::NVTEX_FORM_GATED;

/// Entries of the scales of `[rows, cols]` with sides that are multiples of 128 and the elements of
/// one row of them, by direction, and their type.
fn scales(mode: NVTEScalingMode, (rows, cols): (usize, usize)) -> ([(usize, usize); 2], NVTEDType) {
    match mode {
        NVTE_MXFP8_1D_SCALING => {
            ([(rows * cols / 32, cols / 32), (rows * cols / 32, cols)], kNVTEFloat8E8M0)
        }
        NVTE_BLOCK_SCALING_1D => {
            ([(rows * cols / 128, rows), (rows * cols / 128, cols)], kNVTEFloat32)
        }
        NVTE_BLOCK_SCALING_2D => {
            let (down, across) = (rows / 128, cols / 128);
            let pitch = |needed: usize| needed.next_multiple_of(4);
            (
                [(down * pitch(across), pitch(across)), (across * pitch(down), pitch(down))],
                kNVTEFloat32,
            )
        }
        _ => ([(1, 0); 2], kNVTEFloat32),
    }
}

/// Inputs of one binade can have the same E8M0 codes.
fn expect_scales(mode: NVTEScalingMode) -> Expect {
    if mode == NVTE_MXFP8_1D_SCALING { Fixed } else { Bits }
}

fn quantize_fused(c: &mut Chain, name: &'static str, mode: NVTEScalingMode, form: Form) {
    let (rows, cols) = (384, 640);
    let (input_dtype, output_dtype) = (kNVTEBFloat16, kNVTEFloat8E4M3);
    let width = if form == GATED { 2 * cols } else { cols };
    let input = c.input(input_dtype, rows * width);
    let act_input = (form == DERIVATIVE).then(|| c.input(input_dtype, rows * cols));
    let data = ["rowwise", "colwise"].map(|name| c.output(name, output_dtype, rows * cols, Bits));
    let (matrices, scale_dtype) = scales(mode, (rows, cols));
    // As bytes, since padding is not written.
    let mut matrix = |name, i: usize| {
        c.output(name, kNVTEByte, matrices[i].0 * size(scale_dtype), expect_scales(mode))
    };
    let scale_inv = [matrix("scale_inv", 0), matrix("columnwise_scale_inv", 1)];
    let scale = c.scale_input();
    let sums = (form != GATED).then(|| {
        let workspace_rows = QuantizeArgs::dbias_workspace_rows(rows, 0);
        let dbias = c.output("dbias", input_dtype, cols, Bits);
        (dbias, c.output("workspace", kNVTEFloat32, workspace_rows * cols, Scratch))
    });
    c.step(name, move |side| {
        let args = QuantizeArgs {
            input: side.at(input),
            rowwise: side.at(data[0]),
            colwise: side.at(data[1]),
            scale: side.at(scale),
            rowwise_scale_inv: side.at(scale_inv[0]),
            colwise_scale_inv: side.at(scale_inv[1]),
            rows,
            cols,
            rowwise_scale_stride: matrices[0].1,
            colwise_scale_stride: matrices[1].1,
            mode,
            input_dtype,
            output_dtype,
            fusion: Fusion {
                form,
                function: Function::NVTEX_GELU,
                act_input: act_input.map_or(null_mut(), |id| side.at(id)),
                dbias: sums.map_or(null_mut(), |(dbias, _)| side.at(dbias)),
                workspace: sums.map_or(null_mut(), |(_, workspace)| side.at(workspace)),
                ..Fusion::NONE
            },
            ..QUANTIZE
        };
        entry(side, side.table.quantize, args)
    });
}

fn quantize_group(c: &mut Chain, name: &'static str, mode: NVTEScalingMode) {
    const MEMBERS: [usize; 3] = [128, 0, 256];
    let (rows, cols, n) = (384, 640, MEMBERS.len());
    let (input_dtype, output_dtype) = (kNVTEBFloat16, kNVTEFloat8E4M3);
    let int64 = |c: &mut Chain, values: &[usize]| {
        let bytes = values.iter().flat_map(|&value| (value as i64).to_le_bytes()).collect();
        c.buffers.add(bytes, 0)
    };
    let first_dims = int64(c, &MEMBERS);
    let offsets = int64(c, &[0, 128 * cols, 128 * cols, rows * cols]);
    let input = c.input(input_dtype, rows * cols);
    let data = ["rowwise", "colwise"].map(|name| c.output(name, output_dtype, rows * cols, Bits));
    let per_tensor = mode == NVTE_DELAYED_TENSOR_SCALING;
    let scale_inv = (!per_tensor).then(|| {
        ["scale_inv", "columnwise_scale_inv"].map(|name| {
            let i = usize::from(name != "scale_inv");
            let member = |&rows: &usize| scales(mode, (rows, cols)).0[i].0;
            let entries: usize = MEMBERS.iter().map(member).sum();
            c.output(
                name,
                kNVTEByte,
                entries * size(scales(mode, (rows, cols)).1),
                expect_scales(mode),
            )
        })
    });
    let factors: Vec<u8> = (0..n).flat_map(|_| c.scale().to_le_bytes()).collect();
    let scale = c.buffers.add(factors, 0);
    let dbias = c.output("dbias", input_dtype, n * cols, Bits);
    let workspace_rows = QuantizeArgs::dbias_workspace_rows(rows, n);
    let workspace = c.output("workspace", kNVTEFloat32, workspace_rows * cols, Scratch);
    c.step(name, move |side| {
        let scale_inv = |i: usize| scale_inv.map_or(null_mut(), |ids| side.at(ids[i]));
        let args = QuantizeArgs {
            input: side.at(input),
            rowwise: side.at(data[0]),
            colwise: side.at(data[1]),
            scale: side.at(scale),
            rowwise_scale_inv: scale_inv(0),
            colwise_scale_inv: scale_inv(1),
            rows,
            cols,
            mode,
            input_dtype,
            output_dtype,
            fusion: Fusion { dbias: side.at(dbias), workspace: side.at(workspace), ..Fusion::NONE },
            group: Group {
                num_tensors: n,
                first_dims: side.at(first_dims),
                offsets: side.at(offsets),
                ..Group::NONE
            },
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

/// Three members of different rows, read column-wise.
fn dequantize_group(c: &mut Chain, mode: NVTEScalingMode) {
    let (dims, cols) = ([128, 7, 300], 256);
    let (rows, input_dtype, output_dtype) = (500, kNVTEFloat8E4M3, kNVTEBFloat16);
    let input = c.input(input_dtype, rows * cols);
    let scale_inv = match mode {
        NVTE_MXFP8_1D_SCALING => {
            let codes = (0..5120).map(|_| 120 + (c.rng.next() >> 61) as u8).collect();
            c.buffers.add(codes, 0)
        }
        _ => c.input(kNVTEFloat32, 5120),
    };
    let ints = |c: &mut Chain, values: &[usize]| {
        c.buffers.add(values.iter().flat_map(|&v| (v as i64).to_le_bytes()).collect(), 0)
    };
    let first_dims = ints(c, &dims);
    let offsets = ints(c, &[0, 128 * cols, 135 * cols, 435 * cols]);
    let output = c.output("output", output_dtype, rows * cols, Bits);
    c.step("dequantize a group", move |side| {
        let args = DequantizeArgs {
            input: side.at(input),
            output: side.at(output),
            scale_inv: side.at(scale_inv),
            rows,
            cols,
            mode,
            input_dtype,
            output_dtype,
            colwise: true,
            group: Group {
                num_tensors: dims.len(),
                first_dims: side.at(first_dims),
                last_dims: null(),
                offsets: side.at(offsets),
                ..LARGE_GROUP
            },
            ..DEQUANTIZE
        };
        entry(side, side.table.dequantize, args)
    });
}

fn requantize(c: &mut Chain) {
    let (rows, cols, input_dtype) = (384, 256, kNVTEFloat8E4M3);
    let input = c.input(input_dtype, rows * cols);
    let codes = (0..rows * cols / 32).map(|_| 120 + (c.rng.next() >> 61) as u8).collect();
    let codes = c.buffers.add(codes, 0);
    let ends = [0, 128 * cols, 384 * cols];
    let offsets = c.buffers.add(ends.iter().flat_map(|&v| (v as i64).to_le_bytes()).collect(), 0);
    let colwise = c.output("colwise", kNVTEFloat8E4M3, rows * cols, Bits);
    let rowwise_codes = c.output("rowwise codes", kNVTEByte, rows * cols / 32, Bits);
    let colwise_codes = c.output("colwise codes", kNVTEByte, rows * cols / 32, Bits);
    let dequantized = c.output("dequantized", kNVTEBFloat16, rows * cols, Bits);
    c.step("requantize", move |side| {
        let args = RequantizeArgs {
            input: side.at(input),
            codes: side.at(codes),
            colwise: side.at(colwise),
            rowwise_codes: side.at(rowwise_codes),
            colwise_codes: side.at(colwise_codes),
            dequantized: side.at(dequantized),
            offsets: side.at(offsets),
            num_groups: ends.len() - 1,
            rows,
            cols,
            code_stride: cols / 32,
            input_dtype,
            through_bf16: false,
        };
        entry(side, side.table.requantize, args)
    });
}

fn transpose_dbias(c: &mut Chain) {
    let (rows, cols, dtype, dbias_dtype) = (384, 640, kNVTEFloat8E4M3, kNVTEBFloat16);
    let (input, scale_inv) = (c.input(dtype, rows * cols), c.scale_input());
    let output = c.output("output", dtype, rows * cols, Bits);
    let dbias = c.output("dbias", dbias_dtype, cols, Bits);
    let workspace = c.output("partial sums", kNVTEFloat32, rows / 128 * cols, Bits);
    c.step("transpose_dbias", move |side| {
        let args = TransposeDbiasArgs {
            input: side.at(input),
            output: side.at(output),
            scale_inv: side.at(scale_inv),
            dbias: side.at(dbias),
            workspace: side.at(workspace),
            rows,
            cols,
            dtype,
            dbias_dtype,
        };
        entry(side, side.table.transpose_dbias, args)
    });
}

fn swap_first_dims(c: &mut Chain, row_bytes: usize) {
    let (first, second) = (48, 100);
    let bytes = c.rng.bytes(first * second * row_bytes);
    let input = c.buffers.add(bytes, 0);
    let output = c.output("output", kNVTEByte, first * second * row_bytes, Bits);
    c.step("swap_first_dims", move |side| {
        let (input, output) = (side.at(input), side.at(output));
        let args = SwapFirstDimsArgs { input, output, first, second, row_bytes };
        entry(side, side.table.swap_first_dims, args)
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
            length: 1,
            scale_inv: null_mut(),
            colwise_scale_inv: null_mut(),
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

fn scaled_activation(c: &mut Chain, name: &'static str, backward: bool) {
    let (rows, cols, dtype) = (64, 640, kNVTEBFloat16);
    let (input, scales) = (c.input(dtype, rows * 2 * cols), c.input(dtype, rows));
    let grad = backward.then(|| c.input(dtype, rows * cols));
    let width = if backward { 2 * cols } else { cols };
    let output = c.output("output", dtype, rows * width, Bits);
    let grad_scales = backward.then(|| c.output("grad_scales", kNVTEFloat32, rows, Bits));
    c.step(name, move |side| {
        let args = ScaledActivationArgs {
            input: side.at(input),
            grad: grad.map_or(null_mut(), |id| side.at(id)),
            output: side.at(output),
            scales: side.at(scales),
            grad_scales: grad_scales.map_or(null_mut(), |id| side.at(id)),
            rows,
            cols,
            interleave: cols,
            gated: true,
            function: Function::NVTEX_SILU,
            a: 0.0,
            b: 0.0,
            c: 0.0,
            input_dtype: dtype,
            grad_dtype: dtype,
            output_dtype: dtype,
            scales_dtype: dtype,
            grad_scales_dtype: kNVTEFloat32,
        };
        entry(side, side.table.scaled_activation, args)
    });
}

fn block_scales(c: &mut Chain, len: usize) -> Id {
    let scales = (0..len).flat_map(|_| c.scale().to_le_bytes()).collect();
    c.buffers.add(scales, 0)
}

fn swizzle(c: &mut Chain, name: &'static str, count: usize) {
    let (m, k) = (256, 12);
    let matrices: Vec<_> = (0..count)
        .map(|_| {
            let bytes = c.rng.bytes(m * k);
            (c.buffers.add(bytes, 0), c.output("scales", kNVTEByte, m * k, Bits))
        })
        .collect();
    c.step(name, move |side| {
        let entry_of = |&(source, destination): &(Id, Id)| SwizzleEntry {
            source: side.at(source),
            destination: side.at(destination),
            m,
            k,
            valid_m: 200,
            valid_k: 10,
            transposed: true,
        };
        let entries: Vec<_> = matrices.iter().map(entry_of).collect();
        let args = SwizzleArgs {
            entries: entries.as_ptr(),
            num_entries: entries.len(),
            unswizzle: false,
            rows: 0,
            cols: 0,
            group: Group::NONE,
        };
        entry(side, side.table.swizzle, args)
    });
}

fn group_amax(c: &mut Chain) {
    let (dtype, rows, cols, num_tensors) = (kNVTEBFloat16, 1200, 640, 12);
    let input = c.input(dtype, rows * cols);
    let amax = c.output("amax", kNVTEFloat32, num_tensors, Bits);
    c.step("group_amax", move |side| {
        let args = GroupAmaxArgs {
            input: side.at(input),
            amax: side.at(amax),
            noop: null(),
            numel: rows * cols,
            rows,
            cols,
            group: Group { num_tensors, ..Group::NONE },
            dtype,
        };
        entry(side, side.table.group_amax, args)
    });
}

const SHARD: Shard =
    Shard { input: null(), start: 48, length: 200_000, rows: 384, cols: 640, dtype: kNVTEBFloat16 };

fn partial_amax(c: &mut Chain) {
    let input = c.input(SHARD.dtype, SHARD.length);
    let rowwise = c.output("rowwise", SHARD.dtype, 384 * 20, Bits);
    let colwise = c.output("colwise", SHARD.dtype, 12 * 640, Bits);
    c.step("partial_amax", move |side| {
        let args = PartialAmaxArgs {
            shard: Shard { input: side.at(input), ..SHARD },
            rowwise: side.at(rowwise),
            colwise: side.at(colwise),
            rowwise_stride: 20,
            colwise_stride: 640,
            block_step: 1,
            mode: NVTEScalingMode::NVTE_MXFP8_1D_SCALING,
        };
        entry(side, side.table.partial_amax, args)
    });
}

fn partial_cast(c: &mut Chain) {
    let input = c.input(SHARD.dtype, SHARD.length);
    let scales: Vec<u8> = (0..3 * 5).flat_map(|_| c.scale().to_le_bytes()).collect();
    let scales = c.buffers.add(scales, 0);
    let output_dtype = kNVTEFloat8E4M3;
    let output = c.output("output", output_dtype, SHARD.length, Bits);
    c.step("partial_cast", move |side| {
        let args = PartialCastArgs {
            shard: Shard { input: side.at(input), ..SHARD },
            rowwise: side.at(output),
            colwise: null_mut(),
            rowwise_scales: side.at(scales),
            colwise_scales: null(),
            rowwise_stride: 5,
            colwise_stride: 0,
            block_step: 1,
            mode: NVTEScalingMode::NVTE_BLOCK_SCALING_2D,
            output_dtype,
        };
        entry(side, side.table.partial_cast, args)
    });
}

fn softmax(c: &mut Chain, name: &'static str, keys: usize, backward: bool) {
    let (matrices, queries, dtype) = (3, 40, kNVTEBFloat16);
    let numel = matrices * queries * keys;
    let input = c.input(dtype, numel);
    let results = backward.then(|| c.input(dtype, numel));
    let output = c.output("output", dtype, numel, Within(1e-4));
    c.step(name, move |side| {
        let args = SoftmaxArgs {
            input: side.at(input),
            results: results.map_or(null(), |id| side.at::<c_void>(id).cast_const()),
            output: side.at(output),
            mask: null(),
            matrices_per_mask: matrices,
            matrices,
            queries,
            keys,
            scale: 3.0,
            visible: SoftmaxMask::NVTEX_SOFTMAX_CAUSAL_BOTTOM_RIGHT,
            dtype,
        };
        entry(side, side.table.softmax, args)
    });
}

fn dropout(c: &mut Chain, name: &'static str, add: bool) {
    let (numel, cols, dtype) = (100_000, 1000, kNVTEBFloat16);
    let input = c.input(dtype, numel);
    let added = add.then(|| (c.input(dtype, numel), c.input(dtype, cols)));
    let state = c.rng.bytes(16);
    let state = c.buffers.add(state, 0);
    let output = c.output("output", dtype, numel, Bits);
    let mask = c.output("mask", kNVTEByte, numel / 8, Bits);
    c.step(name, move |side| {
        let (residual, bias): (*mut c_void, *mut c_void) =
            added.map_or((null_mut(), null_mut()), |(x, y)| (side.at(x), side.at(y)));
        let args = DropoutArgs {
            input: side.at(input),
            output: side.at(output),
            mask: side.at(mask),
            rng_state: side.at(state),
            scale_inv: null(),
            numel,
            probability: 0.25,
            input_dtype: dtype,
            output_dtype: dtype,
            residual,
            bias,
            cols,
        };
        entry(side, side.table.dropout, args)
    });
}

/// Buffers of several tensors, one after the other, as the next step needs them.
fn entries(side: &Side, numel: usize, tensors: &[Vec<Id>]) -> Vec<MultiTensor> {
    let entry = |buffers: &Vec<Id>| {
        let mut data = [null_mut(); 8];
        data.iter_mut().zip(buffers).for_each(|(data, &id)| *data = side.at(id));
        MultiTensor { data, numel }
    };
    tensors.iter().map(entry).collect()
}

/// A tensor of the next step, read and written.
fn updated(c: &mut Chain, name: &'static str, numel: usize) -> Id {
    let bytes = (0..numel).flat_map(|_| c.scale().to_le_bytes()).collect();
    c.in_place(name, kNVTEFloat32, bytes, Bits)
}

fn adam(c: &mut Chain) {
    let (numel, dtype) = (1000, kNVTEFloat32);
    let tensors: Vec<_> = (0..40)
        .map(|_| {
            let g = updated(c, "g", numel);
            vec![g, updated(c, "p", numel), updated(c, "m", numel), updated(c, "v", numel)]
        })
        .collect();
    let (lr, inv_scale) = (c.scale_input(), c.scale_input());
    let step = c.buffers.add(7i32.to_le_bytes().to_vec(), 0);
    let noop = c.buffers.add(vec![0; 4], 0);
    c.step("adam", move |side| {
        let entries = entries(side, numel, &tensors);
        let args = AdamArgs {
            tensors: entries.as_ptr(),
            num_tensors: entries.len(),
            lr: 0.0,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1,
            bias1: 1.0,
            bias2: 1.0,
            device_lr: side.at(lr),
            device_step: side.at(step),
            inv_scale: side.at(inv_scale),
            noop: side.at(noop),
            l2: false,
            master: AdamMaster::NVTEX_ADAM_NO_MASTER,
            grad_dtype: dtype,
            param_dtype: dtype,
            moment_dtype: dtype,
        };
        entry(side, side.table.adam, args)
    });
}

fn sgd(c: &mut Chain) {
    let (numel, dtype) = (1000, kNVTEFloat32);
    let tensors = vec![vec![
        c.input(dtype, numel),
        updated(c, "w", numel),
        updated(c, "b", numel),
        c.output("copy", kNVTEFloat16, numel, Bits),
    ]];
    let noop = c.buffers.add(vec![0; 4], 0);
    c.step("sgd", move |side| {
        let entries = entries(side, numel, &tensors);
        let args = SgdArgs {
            tensors: entries.as_ptr(),
            num_tensors: entries.len(),
            lr: 0.1,
            momentum: 0.9,
            dampening: 0.1,
            weight_decay: 0.1,
            scale: 0.5,
            nesterov: true,
            first_run: false,
            decay_after_momentum: true,
            noop: side.at(noop),
            grad_dtype: dtype,
            weight_dtype: dtype,
            copy_dtype: kNVTEFloat16,
        };
        entry(side, side.table.sgd, args)
    });
}

fn l2_norm(c: &mut Chain) {
    let (numel, count, dtype) = (20_000, 5, kNVTEBFloat16);
    let (chunk, chunks) = (8192, 3);
    let tensors: Vec<_> = (0..count).map(|_| vec![c.input(dtype, numel)]).collect();
    let inv_scale = c.scale_input();
    let norm = c.output("norm", kNVTEFloat32, 1, Within(1e-3));
    let tensor_norms = c.output("tensor norms", kNVTEFloat32, count, Within(1e-3));
    let workspace = c.output("workspace", kNVTEFloat32, 320, Scratch);
    let parts = vec![0; count * chunks * 4];
    let tensor_workspace = c.in_place("tensor workspace", kNVTEFloat32, parts, Scratch);
    let non_finite = c.in_place("flag", kNVTEInt32, vec![0; 4], Fixed);
    c.step("l2_norm", move |side| {
        let entries = entries(side, numel, &tensors);
        let args = L2NormArgs {
            tensors: entries.as_ptr(),
            num_tensors: entries.len(),
            inv_scale: side.at(inv_scale),
            norm: side.at(norm),
            tensor_norms: side.at(tensor_norms),
            workspace: side.at(workspace),
            partials: 320,
            tensor_workspace: side.at(tensor_workspace),
            chunks,
            chunk,
            non_finite: side.at(non_finite),
            dtype,
        };
        entry(side, side.table.l2_norm, args)
    });
}

fn scale_tensors(c: &mut Chain) {
    let (numel, dtype) = (50_000, kNVTEBFloat16);
    let tensors = vec![vec![c.input(kNVTEFloat32, numel), c.output("output", dtype, numel, Bits)]];
    let scale = c.scale_input();
    let non_finite = c.in_place("flag", kNVTEInt32, vec![0; 4], Fixed);
    c.step("scale_tensors", move |side| {
        let entries = entries(side, numel, &tensors);
        let args = ScaleTensorsArgs {
            tensors: entries.as_ptr(),
            num_tensors: entries.len(),
            scale: 1.0,
            device_scale: side.at(scale),
            non_finite: side.at(non_finite),
            input_dtype: kNVTEFloat32,
            output_dtype: dtype,
        };
        entry(side, side.table.scale_tensors, args)
    });
}

fn add(c: &mut Chain) {
    let (numel, src_dtype, dst_dtype) = (50_000, kNVTEBFloat16, kNVTEFloat32);
    let src = c.input(src_dtype, numel);
    let dst = c.in_place("dst", dst_dtype, vec![0; 4 * numel], Bits);
    c.step("add", move |side| {
        let (src, dst) = (side.at(src), side.at(dst));
        entry(side, side.table.add, AddArgs { src, dst, numel, src_dtype, dst_dtype })
    });
}

fn scales_from_amax(c: &mut Chain) {
    let tensors: Vec<_> = (0..100)
        .map(|_| {
            let amax = c.scale_input();
            let mut output = |name| c.output(name, kNVTEFloat32, 1, Bits);
            vec![amax, output("scale"), output("scale_inv")]
        })
        .collect();
    c.step("scales_from_amax", move |side| {
        let entries = entries(side, 1, &tensors);
        let args = ScalesFromAmaxArgs {
            tensors: entries.as_ptr(),
            num_tensors: entries.len(),
            fp8_max: 448.0,
            epsilon: 0.0,
            pow2: false,
            e8m0: false,
        };
        entry(side, side.table.scales_from_amax, args)
    });
}

fn rope(c: &mut Chain) {
    let (positions, sequences, heads, dim, dtype) = (64, 3, 4, 64, kNVTEBFloat16);
    let numel = positions * sequences * heads * dim;
    let (input, freqs) = (c.input(dtype, numel), c.input(kNVTEFloat32, positions * dim));
    let output = c.output("output", dtype, numel, Within(1e-5));
    c.step("rope", move |side| {
        let token = heads * dim;
        let strides = RopeStrides {
            position: sequences * token,
            sequence: token,
            group: 0,
            head: dim,
            element: 1,
        };
        let part = RopePart {
            input: side.at(input),
            output: side.at(output),
            freqs: side.at(freqs),
            heads,
            heads_per_group: heads,
            input_strides: strides,
            output_strides: strides,
        };
        let args = RopeArgs {
            parts: [part, NO_ROPE_PART, NO_ROPE_PART],
            cu_seqlens: null(),
            start_positions: null(),
            positions,
            sequences,
            dim,
            rotated: dim,
            cp_size: 1,
            cp_rank: 0,
            freqs_rows: positions,
            interleaved: false,
            backward: false,
            dtype,
        };
        entry(side, side.table.rope, args)
    });
}

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
    let scales = [(modes[0], m), (modes[1], n)].map(|(mode, outer)| match mode {
        NVTE_MXFP8_1D_SCALING => {
            // Half or one.
            let codes = c.rng.bytes(outer * k / 32).iter().map(|byte| 126 + byte % 2).collect();
            (Some(c.buffers.add(codes, 0)), k / 32)
        }
        NVTE_BLOCK_SCALING_1D => (Some(block_scales(c, outer * k / 128)), outer),
        NVTE_BLOCK_SCALING_2D => (Some(block_scales(c, outer.div_ceil(128) * k / 128)), k / 128),
        _ => (scale(c, dtype), 0),
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
    // SAFETY: nothing else reads the environment yet. Its plans too are made during the capture.
    unsafe { std::env::set_var("NVTE_ATTENTION_CUDNN", "1") };
    let Some(table) = cuda("capture") else { return };
    prove(table).unwrap_or_else(|error| panic!("{error}"));
}
