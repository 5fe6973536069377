//! What is measured: one entry for each operator and size.

use super::abi::{Api, Basic, Config, DType, Handle, MatmulAttribute, Param, StdVector, Tensor};
use super::machine::{Buffer, Call, Kind, Machine, Pool, normal};
use anyhow::Result;
use std::cell::{Cell, RefCell};

/// What one call does, by which its time is judged.
#[derive(Clone, Copy)]
pub enum Work {
    /// Bytes moved, each counted once, and those of them that the high-precision input has.
    Bytes { moved: f64, input: f64 },
    /// Floating-point operations on operands of this type.
    Flops { count: f64, dtype: DType },
    /// Next to nothing: the time is the host's cost of a call.
    Host,
}

type BuildFn = dyn for<'a> Fn(&Build<'a>) -> Result<Call<'a>>;

pub struct Case {
    pub name: String,
    pub work: Work,
    /// Bound on the sets of inputs, for cases with many tensors each.
    pub most_sets: usize,
    pub build: Box<BuildFn>,
}

impl Case {
    fn new(
        name: impl Into<String>,
        work: Work,
        build: impl for<'a> Fn(&Build<'a>) -> Result<Call<'a>> + 'static,
    ) -> Self {
        Self { name: name.into(), work, most_sets: 128, build: Box::new(build) }
    }
}

/// How the outputs of two libraries compare.
#[derive(Clone, Copy)]
pub enum Rule {
    /// Byte by byte.
    Equal,
    /// By the norm of the difference.
    Close,
}

pub struct Output {
    pub name: &'static str,
    pub memory: Basic,
    pub rule: Rule,
}

/// Memory of one set, and where in it the outputs lie.
pub struct Memory {
    pub outputs: Vec<Output>,
    buffers: Vec<Buffer>,
}

impl Memory {
    pub fn bytes(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.bytes).sum()
    }
}

/// Makes the tensors of one set. The same `set` gives the same inputs.
pub struct Build<'a> {
    pub api: &'a Api,
    machine: &'a dyn Machine,
    pool: &'a Pool,
    /// What fills an output before the call. Two libraries get different values, so that a byte
    /// that one of them leaves unwritten shows.
    poison: u8,
    seed: Cell<u64>,
    outputs: RefCell<Vec<Output>>,
    buffers: RefCell<Vec<Buffer>>,
}

impl<'a> Build<'a> {
    pub fn set(
        case: &Case,
        api: &'a Api,
        machine: &'a dyn Machine,
        pool: &'a Pool,
        set: usize,
        poison: u8,
    ) -> Result<(Call<'a>, Memory)> {
        let seed = Cell::new(set as u64 * 1000);
        let (outputs, buffers) = Default::default();
        let build = Self { api, machine, pool, poison, seed, outputs, buffers };
        let call = (case.build)(&build)?;
        api.take_error()?;
        machine.synchronize()?;
        let (outputs, buffers) = (build.outputs.into_inner(), build.buffers.into_inner());
        Ok((call, Memory { outputs, buffers }))
    }

    fn next_seed(&self) -> u64 {
        self.seed.replace(self.seed.get() + 1)
    }

    fn alloc(&self, dtype: DType, shape: &[usize]) -> Result<Basic> {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        let buffer = self.machine.alloc(bytes)?;
        let memory = Basic::new(buffer.ptr, dtype, shape);
        self.buffers.borrow_mut().push(buffer);
        Ok(memory)
    }

    /// Normally distributed values.
    fn random(&self, dtype: DType, shape: &[usize]) -> Result<Basic> {
        let memory = self.alloc(dtype, shape)?;
        self.pool.fill(self.machine, &memory, self.next_seed())?;
        Ok(memory)
    }

    fn floats(&self, values: &[f32]) -> Result<Basic> {
        let memory = self.alloc(DType::F32, &[values.len()])?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.machine.upload(memory.ptr, &bytes)?;
        Ok(memory)
    }

    fn output(
        &self,
        name: &'static str,
        dtype: DType,
        shape: &[usize],
        rule: Rule,
    ) -> Result<Basic> {
        let memory = self.alloc(dtype, shape)?;
        self.machine.fill(memory.ptr, self.poison, memory.bytes())?;
        Ok(self.updated(name, memory, rule))
    }

    /// Memory that the call reads and writes.
    fn updated(&self, name: &'static str, memory: Basic, rule: Rule) -> Basic {
        self.outputs.borrow_mut().push(Output { name, memory, rule });
        memory
    }

    fn tensor(&self, data: &Basic) -> Tensor<'a> {
        Tensor::new(self.api).set(Param::Rowwise, data)
    }

    fn stream(&self) -> Handle {
        self.machine.stream()
    }

    /// An E4M3 output of a cast from `[rows, cols]`, with scale, amax and scale_inv.
    fn fp8_output(&self, rows: usize, cols: usize, colwise: bool) -> Result<Tensor<'a>> {
        let scale_inv = self.output("scale_inv", DType::F32, &[1], Rule::Equal)?;
        let amax = self.updated("amax", self.floats(&[0.0])?, Rule::Equal);
        let tensor = self
            .tensor(&self.output("data", DType::E4m3, &[rows, cols], Rule::Equal)?)
            .set(Param::Scale, &self.floats(&[37.5])?)
            .set(Param::Amax, &amax)
            .set(Param::RowwiseScaleInv, &scale_inv);
        if !colwise {
            return Ok(tensor);
        }
        let transposed = self.output("columnwise data", DType::E4m3, &[cols, rows], Rule::Equal)?;
        Ok(tensor.set(Param::Columnwise, &transposed).set(Param::ColumnwiseScaleInv, &scale_inv))
    }
}

/// Every case of a kind of machine.
pub fn operators(kind: Kind) -> Vec<Case> {
    let (rows, cols) = (8192, 8192);
    let mut cases = vec![
        quantize("quantize delayed fp8 row", rows, cols, false),
        quantize("quantize delayed fp8 row+col", rows, cols, true),
        cast_transpose(rows, cols),
        amax(rows, cols),
        current_scaling(rows, cols),
        dequantize(rows, cols),
        transpose(rows, cols),
        quantize("quantize 512x1024 fp8 row", 512, 1024, false),
        quantize("quantize 512x1024 fp8 row+col", 512, 1024, true),
        delayed_update(64, 1024),
        quantize_blocks("quantize fp8 block 1x128 row+col", BLOCKS_1D, rows, cols),
        quantize_blocks("quantize fp8 block 128x128 row+col", BLOCKS_2D, rows, cols),
    ];
    let gemm = |dtype, m, n, k| Gemm { dtype, m, n, k, ..Gemm::default() };
    use DType::{Bf16, E4m3, F32};
    let gemms = match kind {
        Kind::Gpu => {
            let shapes =
                [(8192, 8192, 8192), (8192, 12288, 4096), (8192, 4096, 16384), (4096, 2560, 2560)];
            let mut list: Vec<Gemm> = [Bf16, E4m3]
                .into_iter()
                .flat_map(|dtype| shapes.map(|(m, n, k)| gemm(dtype, m, n, k)))
                .collect();
            let cube = gemm(Bf16, 8192, 8192, 8192);
            list.push(Gemm { transa: false, ..cube });
            list.push(Gemm { transa: false, transb: true, ..cube });
            let wide = gemm(Bf16, 8192, 12288, 4096);
            list.push(Gemm { bias: true, ..wide });
            list.push(Gemm { gelu: true, ..wide });
            list.push(Gemm { bias: true, gelu: true, ..wide });
            list
        }
        Kind::Cpu => {
            let cube = gemm(F32, 2048, 2048, 2048);
            vec![
                cube,
                Gemm { transa: false, ..cube },
                Gemm { transa: false, transb: true, ..cube },
                gemm(Bf16, 1024, 1024, 1024),
                gemm(E4m3, 1024, 1024, 1024),
                Gemm { bias: true, gelu: true, ..gemm(Bf16, 1024, 1024, 1024) },
            ]
        }
    };
    cases.extend(gemms.into_iter().map(Gemm::case));
    let rows = if kind == Kind::Gpu { 16384 } else { 1024 };
    for layer in [true, false] {
        for cols in [4096, 12288] {
            cases.push(norm_forward(layer, Bf16, rows, cols));
            cases.push(norm_forward(layer, E4m3, rows, cols));
            cases.push(norm_backward(layer, rows, cols));
        }
        cases.extend([768, 2560, 7168].map(|cols| norm_forward(layer, Bf16, rows, cols)));
        cases.push(norm_forward(layer, Bf16, 8, 4096));
    }
    cases
}

/// The host's share of a call.
pub fn host_costs() -> Vec<Case> {
    let create = Case::new("nvte_create_tensor + nvte_destroy_tensor", Work::Host, |b| {
        let api = b.api;
        Ok(Box::new(move || drop(Tensor::new(api))))
    });
    let set = Case::new("nvte_set_tensor_param_v2", Work::Host, |b| {
        let (api, data) = (b.api, b.random(DType::Bf16, &[64, 64])?);
        let x = Tensor::new(api);
        let size = size_of::<Basic>();
        Ok(Box::new(move || api.nvte_set_tensor_param_v2(x.h(), Param::Rowwise, &data, size)))
    });
    let quantize = quantize("nvte_quantize_v2, 16x16", 16, 16, false);
    let gemm = Gemm { m: 64, n: 64, k: 64, ..Gemm::default() }.case();
    let name = "nvte_cublas_gemm_v2, bf16 64x64x64".into();
    let gemm = Case { name, work: Work::Host, ..gemm };
    vec![create, set, Case { work: Work::Host, ..quantize }, gemm]
}

/// `input` bytes of bf16 and `moved` bytes in all, per element.
fn bytes(rows: usize, cols: usize, moved: usize, input: usize) -> Work {
    let numel = (rows * cols) as f64;
    Work::Bytes { moved: numel * moved as f64, input: numel * input as f64 }
}

fn quantize(name: &str, rows: usize, cols: usize, colwise: bool) -> Case {
    Case::new(name, bytes(rows, cols, 3 + usize::from(colwise), 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let y = b.fp8_output(rows, cols, colwise)?;
        Ok(Box::new(move || api.nvte_quantize_v2(x.h(), y.h(), Handle::NULL, stream)))
    })
}

/// `NVTEScalingMode`
const BLOCKS_1D: i32 = 2;
const BLOCKS_2D: i32 = 3;

/// FP8 with one float for 128 elements, or for 128 x 128; `rows` and `cols` are multiples of 512.
fn quantize_blocks(name: &str, mode: i32, rows: usize, cols: usize) -> Case {
    Case::new(name, bytes(rows, cols, 4, 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let (row_scales, col_scales) = match mode {
            BLOCKS_1D => ([cols / 128, rows], [rows / 128, cols]),
            _ => ([rows / 128, cols / 128], [cols / 128, rows / 128]),
        };
        let fp8 = |name, shape: [usize; 2]| b.output(name, DType::E4m3, &shape, Rule::Equal);
        let scales = |name, shape: [usize; 2]| b.output(name, DType::F32, &shape, Rule::Equal);
        let y = Tensor::with_mode(api, mode)
            .set(Param::Rowwise, &fp8("data", [rows, cols])?)
            .set(Param::Columnwise, &fp8("columnwise data", [cols, rows])?)
            .set(Param::RowwiseScaleInv, &scales("scale_inv", row_scales)?)
            .set(Param::ColumnwiseScaleInv, &scales("columnwise scale_inv", col_scales)?);
        Ok(Box::new(move || api.nvte_quantize_v2(x.h(), y.h(), Handle::NULL, stream)))
    })
}

fn cast_transpose(rows: usize, cols: usize) -> Case {
    Case::new("cast_transpose bf16 -> fp8", bytes(rows, cols, 4, 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let y = b.fp8_output(rows, cols, true)?;
        Ok(Box::new(move || api.nvte_cast_transpose(x.h(), y.h(), stream)))
    })
}

fn amax(rows: usize, cols: usize) -> Case {
    Case::new("amax", bytes(rows, cols, 2, 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let amax = b.output("amax", DType::F32, &[1], Rule::Equal)?;
        let y = Tensor::new(api).set(Param::Amax, &amax);
        Ok(Box::new(move || api.nvte_compute_amax(x.h(), y.h(), stream)))
    })
}

/// Three calls, of which two read the input: the count of bytes says so.
fn current_scaling(rows: usize, cols: usize) -> Case {
    Case::new("current scaling: amax, scale, quantize", bytes(rows, cols, 5, 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let data = b.output("data", DType::E4m3, &[rows, cols], Rule::Equal)?;
        let scalar = |name| b.output(name, DType::F32, &[1], Rule::Equal);
        let (scale, scale_inv, amax) = (scalar("scale")?, scalar("scale_inv")?, scalar("amax")?);
        let tensor =
            || b.tensor(&data).set(Param::Scale, &scale).set(Param::RowwiseScaleInv, &scale_inv);
        // The cast gets no amax, else it would compute it again.
        let (with_amax, without) = (tensor().set(Param::Amax, &amax), tensor());
        let config = Config::quantization(api);
        Ok(Box::new(move || {
            api.nvte_compute_amax(x.h(), with_amax.h(), stream);
            api.nvte_compute_scale_from_amax(with_amax.h(), config.h(), stream);
            api.nvte_quantize_v2(x.h(), without.h(), config.h(), stream);
        }))
    })
}

fn dequantize(rows: usize, cols: usize) -> Case {
    Case::new("dequantize fp8 -> bf16", bytes(rows, cols, 3, 1), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b
            .tensor(&b.random(DType::E4m3, &[rows, cols])?)
            .set(Param::RowwiseScaleInv, &b.floats(&[0.75])?);
        let y = b.tensor(&b.output("data", DType::Bf16, &[rows, cols], Rule::Equal)?);
        Ok(Box::new(move || api.nvte_dequantize(x.h(), y.h(), stream)))
    })
}

fn transpose(rows: usize, cols: usize) -> Case {
    Case::new("transpose fp8", bytes(rows, cols, 2, 1), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::E4m3, &[rows, cols])?);
        let y = b.tensor(&b.output("data", DType::E4m3, &[cols, rows], Rule::Equal)?);
        Ok(Box::new(move || api.nvte_transpose(x.h(), y.h(), stream)))
    })
}

/// The reduced amax values are not zero, so that each call rolls the histories.
fn delayed_update(tensors: usize, length: usize) -> Case {
    let numel = tensors * (length + 1);
    let name = format!("delayed scaling update, {tensors} x history {length}");
    let case = Case::new(name, bytes(1, numel, 8, 4), move |b| {
        let (api, stream) = (b.api, b.stream());
        let values: Vec<f32> = normal(numel + tensors).iter().map(|v| v.abs() + 0.1).collect();
        let (reduced, rest) = values.split_at(tensors);
        let reduced = b.tensor(&b.floats(reduced)?);
        let (scales, histories) = rest.split_at(tensors);
        let scales = b.updated("scales", b.floats(scales)?, Rule::Equal);
        let histories = b.updated("histories", b.floats(histories)?, Rule::Equal);
        let history = |i| {
            let part = histories.part(i * length, length);
            b.tensor(&Basic::new(part.ptr, part.dtype, &[length, 1]))
        };
        let history_tensors: Vec<_> = (0..tensors).map(history).collect();
        let scale_tensors: Vec<_> = (0..tensors).map(|i| b.tensor(&scales.part(i, 1))).collect();
        let handles = |list: &[Tensor]| list.iter().map(|t| t.h()).collect::<Vec<_>>();
        let (history_handles, scale_handles) = (handles(&history_tensors), handles(&scale_tensors));
        let owned = (history_tensors, scale_tensors);
        Ok(Box::new(move || {
            // The handles' owners move in with them.
            let _ = &owned;
            api.nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
                reduced.h(),
                &StdVector::new(&history_handles),
                &StdVector::new(&scale_handles),
                c"max".as_ptr(),
                DType::E4m3,
                0.0,
                stream,
            );
        }))
    });
    Case { most_sets: 8, ..case }
}

/// Row-major `D [m, n] = op(B) [m, k] . op(A) [k, n]`; with `transa` A is stored `[n, k]`, with
/// `transb` B is stored `[k, m]`. The default is the product of a linear layer's forward pass, "TN".
#[derive(Clone, Copy)]
struct Gemm {
    dtype: DType,
    m: usize,
    n: usize,
    k: usize,
    transa: bool,
    transb: bool,
    bias: bool,
    gelu: bool,
}

impl Default for Gemm {
    fn default() -> Self {
        let (dtype, m, n, k) = (DType::Bf16, 0, 0, 0);
        Self { dtype, m, n, k, transa: true, transb: false, bias: false, gelu: false }
    }
}

impl Gemm {
    fn case(self) -> Case {
        let Self { dtype, m, n, k, transa, transb, bias, gelu } = self;
        let letter = |transposed| if transposed { 'T' } else { 'N' };
        let (a, b) = (letter(transa), letter(transb));
        let epilogue = match (bias, gelu) {
            (false, false) => "",
            (true, false) => " + bias",
            (false, true) => " + gelu",
            (true, true) => " + bias + gelu",
        };
        let name = format!("gemm {} {a}{b} {m}x{n}x{k}{epilogue}", dtype.name());
        let work = Work::Flops { count: 2.0 * m as f64 * n as f64 * k as f64, dtype };
        Case::new(name, work, move |b| self.build(b))
    }

    fn build<'a>(self, b: &Build<'a>) -> Result<Call<'a>> {
        let Self { dtype, m, n, k, transa, transb, bias, gelu } = self;
        let (api, stream) = (b.api, b.stream());
        let operand = |shape: [usize; 2]| -> Result<Tensor<'a>> {
            let tensor = b.tensor(&b.random(dtype, &shape)?);
            Ok(match dtype {
                DType::E4m3 => tensor.set(Param::RowwiseScaleInv, &b.floats(&[1.0])?),
                _ => tensor,
            })
        };
        let left = operand(if transa { [n, k] } else { [k, n] })?;
        let right = operand(if transb { [k, m] } else { [m, k] })?;
        let out = if dtype == DType::E4m3 { DType::Bf16 } else { dtype };
        let d = b.tensor(&b.output("D", out, &[m, n], Rule::Close)?);
        let workspace = b.tensor(&b.alloc(DType::Byte, &[32 << 20])?);
        let mut config = Config::matmul(api);
        if bias {
            config.set_tensor(MatmulAttribute::Bias, b.tensor(&b.random(out, &[n])?));
        }
        if gelu {
            let aux = b.tensor(&b.output("pre-gelu", out, &[m, n], Rule::Close)?);
            config.set_tensor(MatmulAttribute::Aux, aux);
            config.set_flag(MatmulAttribute::WithGelu, true);
        }
        let flags = (i32::from(transa), i32::from(transb));
        Ok(Box::new(move || {
            api.nvte_cublas_gemm_v2(
                flags.0,
                flags.1,
                &1.0,
                left.h(),
                right.h(),
                &0.0,
                d.h(),
                d.h(),
                workspace.h(),
                config.h(),
                stream,
            );
        }))
    }
}

const EPSILON: f32 = 1e-5;
/// As the front ends of an H200 pass it.
const SM_COUNT: i32 = 132;

fn norm_name(layer: bool) -> &'static str {
    if layer { "layernorm" } else { "rmsnorm" }
}

/// Calls once to learn the shape of the workspace, and gives it memory.
fn with_workspace<'a>(b: &Build<'a>, call: impl Fn(Handle)) -> Result<Tensor<'a>> {
    let workspace = Tensor::new(b.api);
    call(workspace.h());
    let shape = b.api.nvte_tensor_shape(workspace.h());
    let memory = b.alloc(DType::Byte, &shape.dims[..shape.ndim])?;
    Ok(workspace.set(Param::Rowwise, &memory))
}

fn norm_forward(layer: bool, out: DType, rows: usize, cols: usize) -> Case {
    let name = format!("{} {rows}x{cols} -> {}", norm_name(layer), out.name());
    Case::new(name, bytes(rows, cols, 2 + out.size(), 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let gamma = b.tensor(&b.random(DType::Bf16, &[cols])?);
        let beta = b.tensor(&b.random(DType::Bf16, &[cols])?);
        let z = match out {
            DType::E4m3 => b
                .tensor(&b.output("z", out, &[rows, cols], Rule::Close)?)
                .set(Param::Scale, &b.floats(&[37.5])?)
                .set(Param::Amax, &b.updated("amax", b.floats(&[0.0])?, Rule::Close))
                .set(
                    Param::RowwiseScaleInv,
                    &b.output("scale_inv", DType::F32, &[1], Rule::Equal)?,
                ),
            _ => b.tensor(&b.output("z", out, &[rows, cols], Rule::Close)?),
        };
        let column = |name| b.output(name, DType::F32, &[rows], Rule::Close);
        let mu = if layer { b.tensor(&column("mu")?) } else { Tensor::new(api) };
        let rsigma = b.tensor(&column("rsigma")?);
        let call = move |x: &Tensor, workspace| match layer {
            true => api.nvte_layernorm_fwd(
                x.h(),
                gamma.h(),
                beta.h(),
                EPSILON,
                z.h(),
                mu.h(),
                rsigma.h(),
                workspace,
                SM_COUNT,
                false,
                stream,
            ),
            false => api.nvte_rmsnorm_fwd(
                x.h(),
                gamma.h(),
                EPSILON,
                z.h(),
                rsigma.h(),
                workspace,
                SM_COUNT,
                false,
                stream,
            ),
        };
        let workspace = with_workspace(b, |workspace| call(&x, workspace))?;
        Ok(Box::new(move || call(&x, workspace.h())))
    })
}

fn norm_backward(layer: bool, rows: usize, cols: usize) -> Case {
    let name = format!("{} backward {rows}x{cols}", norm_name(layer));
    Case::new(name, bytes(rows, cols, 6, 4), move |b| {
        let (api, stream) = (b.api, b.stream());
        let input = |shape: &[usize]| b.random(DType::Bf16, shape).map(|memory| b.tensor(&memory));
        let (dz, x, gamma) = (input(&[rows, cols])?, input(&[rows, cols])?, input(&[cols])?);
        let column = || b.random(DType::F32, &[rows]).map(|memory| b.tensor(&memory));
        let (mu, rsigma) = (column()?, column()?);
        let output = |name, shape: &[usize]| {
            b.output(name, DType::Bf16, shape, Rule::Close).map(|memory| b.tensor(&memory))
        };
        let (dx, dgamma) = (output("dx", &[rows, cols])?, output("dgamma", &[cols])?);
        let dbeta = if layer { output("dbeta", &[cols])? } else { Tensor::new(api) };
        let call = move |x: &Tensor, workspace| match layer {
            true => api.nvte_layernorm_bwd(
                dz.h(),
                x.h(),
                mu.h(),
                rsigma.h(),
                gamma.h(),
                dx.h(),
                dgamma.h(),
                dbeta.h(),
                workspace,
                SM_COUNT,
                false,
                stream,
            ),
            false => api.nvte_rmsnorm_bwd(
                dz.h(),
                x.h(),
                rsigma.h(),
                gamma.h(),
                dx.h(),
                dgamma.h(),
                workspace,
                SM_COUNT,
                false,
                stream,
            ),
        };
        let workspace = with_workspace(b, |workspace| call(&x, workspace))?;
        Ok(Box::new(move || call(&x, workspace.h())))
    })
}
