//! What is measured: one entry for each operator and size.

mod attention;
mod decode;
mod experts;
#[path = "../../../tests/common/geometry.rs"]
mod geometry;
mod grouped;
mod language;
mod nvfp4;

use super::abi::{
    Api, Basic, Config, DType, Grouped, GroupedParam, Handle, MatmulAttribute, Param,
    QuantizationAttribute, StdVector, Tensor,
};
use super::machine::{Buffer, Call, Kind, Machine, Pool, mix, normal};
use anyhow::Result;
use geometry::{BLOCKS_1D, BLOCKS_2D, MXFP8, scale_shape};
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
    /// Only the library to measure can do this on the machine at hand.
    pub alone: bool,
    pub build: Box<BuildFn>,
}

impl Case {
    fn new(
        name: impl Into<String>,
        work: Work,
        build: impl for<'a> Fn(&Build<'a>) -> Result<Call<'a>> + 'static,
    ) -> Self {
        Self { name: name.into(), work, most_sets: 128, alone: false, build: Box::new(build) }
    }

    fn alone(self) -> Self {
        Self { alone: true, ..self }
    }
}

/// How the outputs of two libraries are compared.
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

    /// Codes of 2^-8 to 2^7.
    fn exponents(&self, shape: &[usize]) -> Result<Basic> {
        let memory = self.alloc(DType::E8m0, shape)?;
        let codes: Vec<u8> =
            (0..memory.bytes()).map(|i| 119 + (mix(i as u64) % 16) as u8).collect();
        self.machine.upload(memory.ptr, &codes)?;
        Ok(memory)
    }

    /// A grouped tensor whose members have these numbers of rows, which the device knows.
    fn group(&self, mode: i32, sizes: &[usize], cols: usize) -> Result<Grouped<'a>> {
        let (members, rows) = (sizes.len(), sizes.iter().sum());
        let array = |values: Vec<usize>| -> Result<Basic> {
            let memory = self.alloc(DType::I64, &[values.len()])?;
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            self.machine.upload(memory.ptr, &bytes)?;
            Ok(memory)
        };
        let offsets = (0..=members).map(|i| sizes[..i].iter().sum::<usize>() * cols).collect();
        Ok(Grouped::new(self.api, mode, members, rows, cols)
            .set(GroupedParam::FirstDims, &array(sizes.to_vec())?)
            .set(GroupedParam::Offsets, &array(offsets)?))
    }

    /// An E4M3 output of a cast from `[rows, cols]`, with scale, amax and scale_inv.
    fn fp8_output(&self, rows: usize, cols: usize, colwise: bool) -> Result<Tensor<'a>> {
        self.fp8_output_like(rows, cols, colwise, Rule::Equal)
    }

    /// As `fp8_output`, compared by `rule`.
    fn fp8_output_like(
        &self,
        rows: usize,
        cols: usize,
        colwise: bool,
        rule: Rule,
    ) -> Result<Tensor<'a>> {
        let scale_inv = self.output("scale_inv", DType::F32, &[1], Rule::Equal)?;
        let amax = self.updated("amax", self.floats(&[0.0])?, rule);
        let tensor = self
            .tensor(&self.output("data", DType::E4m3, &[rows, cols], rule)?)
            .set(Param::Scale, &self.floats(&[37.5])?)
            .set(Param::Amax, &amax)
            .set(Param::RowwiseScaleInv, &scale_inv);
        if !colwise {
            return Ok(tensor);
        }
        let transposed = self.output("columnwise data", DType::E4m3, &[cols, rows], rule)?;
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
        quantize_blocks("quantize mxfp8 row+col", MXFP8, rows, cols).alone(),
        dequantize_blocks("dequantize fp8 block 1x128", BLOCKS_1D, false, rows, cols),
        dequantize_blocks("dequantize fp8 block 1x128, col", BLOCKS_1D, true, rows, cols),
        dequantize_blocks("dequantize fp8 block 128x128", BLOCKS_2D, false, rows, cols),
        dequantize_blocks("dequantize mxfp8", MXFP8, false, rows, cols),
        dequantize_blocks("dequantize mxfp8, col", MXFP8, true, rows, cols),
        dbias("quantize fp8 row+col + dbias", false, rows, cols),
        dbias("quantize fp8 row+col + dbias + dgelu", true, rows, cols),
        activation("gelu -> bf16", Activation::Gelu, To::Bf16, rows, cols),
        activation("gelu -> fp8", Activation::Gelu, To::Fp8, rows, cols),
        activation("swiglu -> bf16", Activation::Swiglu, To::Bf16, rows, cols / 2),
        activation("swiglu -> fp8 row+col", Activation::Swiglu, To::Fp8Both, rows, cols / 2),
        activation("dswiglu -> bf16", Activation::Dswiglu, To::Bf16, rows, cols / 2),
        activation("dswiglu -> fp8 row+col", Activation::Dswiglu, To::Fp8Both, rows, cols / 2),
    ];
    for (members, rows, cols) in [(8, rows, cols), (128, 2 * rows, cols / 2)] {
        for (mode, name) in
            [(0, "fp8"), (BLOCKS_1D, "fp8 block 1x128"), (BLOCKS_2D, "fp8 block 128x128")]
        {
            let name = format!("group quantize {name} row+col, {members} members");
            cases.push(group_quantize(&name, mode, vec![rows / members; members], cols));
        }
        let name = format!("group quantize mxfp8 row+col, {members} members");
        cases.push(group_quantize(&name, MXFP8, vec![rows / members; members], cols).alone());
        let name = format!("group dequantize fp8 block 1x128, {members} members");
        cases.push(group_dequantize(&name, BLOCKS_1D, members, rows, cols));
    }
    for (mode, name) in [(0, "fp8"), (BLOCKS_1D, "fp8 block 1x128"), (MXFP8, "mxfp8")] {
        let name = format!("group quantize {name} row+col, 64 uneven members");
        let case = group_quantize(&name, mode, uneven(64, 2 * rows), cols / 2);
        // The other library's casts in blocks lose members that end inside of a block, and say so without end.
        cases.push(if mode == 0 { case } else { case.alone() });
    }
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
            // Sizes at which the choice of an algorithm matters most; NVTE_GEMM_TUNE measures it.
            let small = [
                (1024, 1024, 1024),
                (2048, 1024, 1024),
                (2048, 2048, 1024),
                (2048, 2048, 2048),
                (4096, 1024, 2048),
                (4096, 2048, 1024),
                (4096, 2048, 2048),
                (1024, 4096, 4096),
                (2048, 4096, 4096),
                (4096, 4096, 1024),
                (4096, 4096, 2048),
                (4096, 4096, 4096),
            ];
            list.extend(small.map(|(m, n, k)| gemm(Bf16, m, n, k)));
            // Few tokens, in the forward pass and for the gradient of its input.
            for dtype in [Bf16, E4m3] {
                for (n, k) in [(16384, 4096), (4096, 16384), (4096, 4096)] {
                    let few = gemm(dtype, 16, n, k);
                    list.extend([few, Gemm { transa: false, ..few }]);
                }
            }
            for size in [4096, 8192] {
                let cube = gemm(E4m3, size, size, size);
                for modes in [[BLOCKS_1D, BLOCKS_1D], [BLOCKS_2D, BLOCKS_1D], [MXFP8, MXFP8]] {
                    list.push(Gemm { modes, ..cube });
                }
            }
            list
        }
        Kind::Cpu => {
            let cube = gemm(F32, 2048, 2048, 2048);
            vec![
                cube,
                Gemm { transa: false, ..cube },
                Gemm { transa: false, transb: true, ..cube },
                gemm(F32, 1, 2048, 2048),
                gemm(F32, 2, 2048, 2048),
                gemm(Bf16, 1024, 1024, 1024),
                gemm(Bf16, 1, 2048, 2048),
                gemm(Bf16, 16, 2048, 2048),
                gemm(E4m3, 16, 2048, 2048),
                gemm(E4m3, 1024, 1024, 1024),
                Gemm { modes: [BLOCKS_2D, BLOCKS_1D], ..gemm(E4m3, 1024, 1024, 1024) },
                Gemm { modes: [MXFP8, MXFP8], ..gemm(E4m3, 1024, 1024, 1024) },
                Gemm { bias: true, gelu: true, ..gemm(Bf16, 1024, 1024, 1024) },
            ]
        }
    };
    cases.extend(gemms.into_iter().map(Gemm::case));
    let (matrices, seq) = match kind {
        Kind::Gpu => (64, 2048),
        Kind::Cpu => (8, 1024),
    };
    cases.extend([
        causal_softmax(matrices, seq),
        softmax_backward(matrices, seq, true),
        masked_softmax(matrices, seq),
        softmax_backward(matrices, seq, false),
        dropout(rows, cols, false),
        dropout(rows, cols, true),
        match kind {
            Kind::Gpu => adam(64, 4 << 20),
            Kind::Cpu => adam(16, 1 << 20),
        },
        rope("rope fwd sbhd 4096x4x32x128", 4096, false),
        rope("rope fwd interleaved sbhd 4096x4x32x128", 4096, true),
        rope("rope fwd sbhd 1x4x32x128", 1, false),
        qkv_rope(4096),
    ]);
    cases.extend(attention::cases(kind));
    cases.extend(experts::cases(kind));
    cases.extend(grouped::cases(kind));
    cases.extend(nvfp4::cases(kind));
    cases.extend(language::cases(kind));
    let rows = if kind == Kind::Gpu { 16384 } else { 1024 };
    for layer in [true, false] {
        for cols in [4096, 12288] {
            cases.push(norm_forward(layer, Bf16, rows, cols));
            cases.push(norm_forward(layer, E4m3, rows, cols));
            cases.push(norm_backward(layer, rows, cols));
        }
        let widths = [768, 1536, 2560, 4099, 5120, 7168, 8192, 16384];
        cases.extend(widths.map(|cols| norm_forward(layer, Bf16, rows, cols)));
        cases.extend([768, 4099].map(|cols| norm_backward(layer, rows, cols)));
        cases.push(norm_forward(layer, Bf16, 8, 4096));
    }
    cases
}

/// A row of the table beside other libraries.
pub struct Field {
    pub name: String,
    /// What the program for the other libraries calls the operator, where one of them has it.
    pub key: Option<&'static str>,
    pub case: Case,
}

/// Operators of the CPU backend that other libraries have, and what they are compared with.
pub fn cpu_field() -> Vec<Field> {
    use DType::{Bf16, E4m3, F32};
    let gemm = |dtype, m| Gemm { dtype, m, n: 2048, k: 2048, ..Gemm::default() };
    let bf16 = gemm(Bf16, 2048);
    let fp8 = gemm(E4m3, 2048);
    let (rows, cols) = (4096, 4096);
    let list = [
        (Some("product f32 2048 2048 2048"), gemm(F32, 2048).case()),
        (Some("product bf16 2048 2048 2048"), bf16.case()),
        (Some("product bf16 2048 2048 2048 gelu"), Gemm { bias: true, gelu: true, ..bf16 }.case()),
        (None, fp8.case()),
        (None, Gemm { modes: [MXFP8, MXFP8], ..fp8 }.case()),
        (None, Gemm { modes: [BLOCKS_2D, BLOCKS_1D], ..fp8 }.case()),
        (Some("product bf16 16 2048 2048"), gemm(Bf16, 16).case()),
        (None, gemm(E4m3, 16).case()),
        (Some("product bf16 1 2048 2048"), gemm(Bf16, 1).case()),
        (Some("product f32 1 2048 2048"), gemm(F32, 1).case()),
        (Some("product f32 2 2048 2048"), gemm(F32, 2).case()),
        (Some("layernorm f32 4096 4096"), norm_forward(true, F32, rows, cols)),
        (Some("layernorm bf16 4096 4096"), norm_forward(true, Bf16, rows, cols)),
        (Some("softmax bf16 16 1024"), softmax(16, 1024)),
        (Some("adam f32 16 1048576"), adam(16, 1 << 20)),
        (Some("attention f32 1024 8 64"), attention::causal(F32, 1024, 8, 64)),
        (Some("attention bf16 1024 8 64"), attention::causal(Bf16, 1024, 8, 64)),
        (
            Some("gelu bf16 4096 4096"),
            activation("gelu bf16", Activation::Gelu, To::Bf16, rows, cols),
        ),
        (Some("cast fp8 4096 4096"), quantize("cast bf16 -> fp8", rows, cols, false)),
        (None, quantize("cast bf16 -> fp8 row+col", rows, cols, true)),
        (None, transpose(rows, cols)),
        (None, quantize_blocks("cast bf16 -> fp8 block 1x128 row+col", BLOCKS_1D, rows, cols)),
        (None, quantize_blocks("cast bf16 -> fp8 block 128x128 row+col", BLOCKS_2D, rows, cols)),
        (None, quantize_blocks("cast bf16 -> mxfp8 row+col", MXFP8, rows, cols)),
        (None, dequantize_blocks("dequantize mxfp8", MXFP8, false, rows, cols)),
        (None, decode::step(1024, 2816, 256)),
    ];
    list.into_iter().map(|(key, case)| Field { name: case.name.clone(), key, case }).collect()
}

/// A cast of float32 to itself.
pub fn copy() -> Case {
    let (rows, cols) = (8192, 4096);
    Case::new("copy", bytes(rows, cols, 8, 4), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::F32, &[rows, cols])?);
        let y = b.tensor(&b.output("data", DType::F32, &[rows, cols], Rule::Equal)?);
        Ok(Box::new(move || api.nvte_quantize_v2(x.h(), y.h(), Handle::NULL, stream)))
    })
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

/// Dtype and shape of the row-wise or column-wise scales of a matrix in blocks, whose sides are
/// multiples of 512, and the shape of the data.
fn block_layout(
    mode: i32,
    colwise: bool,
    (rows, cols): (usize, usize),
) -> (DType, [usize; 2], [usize; 2]) {
    let scales = scale_shape(mode, colwise, (rows, cols));
    match mode {
        MXFP8 => (DType::E8m0, scales, [rows, cols]),
        _ => (DType::F32, scales, if colwise { [cols, rows] } else { [rows, cols] }),
    }
}

/// FP8 in blocks, in both directions; `rows` and `cols` are multiples of 512.
fn quantize_blocks(name: &str, mode: i32, rows: usize, cols: usize) -> Case {
    Case::new(name, bytes(rows, cols, 4, 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let output = |names: [&'static str; 2], colwise| -> Result<[Basic; 2]> {
            let (dtype, scales, data) = block_layout(mode, colwise, (rows, cols));
            let data = b.output(names[0], DType::E4m3, &data, Rule::Equal)?;
            Ok([data, b.output(names[1], dtype, &scales, Rule::Equal)?])
        };
        let row = output(["data", "scale_inv"], false)?;
        let col = output(["columnwise data", "columnwise scale_inv"], true)?;
        let y = Tensor::with_mode(api, mode)
            .set(Param::Rowwise, &row[0])
            .set(Param::Columnwise, &col[0])
            .set(Param::RowwiseScaleInv, &row[1])
            .set(Param::ColumnwiseScaleInv, &col[1]);
        Ok(Box::new(move || api.nvte_quantize_v2(x.h(), y.h(), Handle::NULL, stream)))
    })
}

/// Casts one direction back to bf16.
fn dequantize_blocks(name: &str, mode: i32, colwise: bool, rows: usize, cols: usize) -> Case {
    let case = Case::new(name, bytes(rows, cols, 3, 1), move |b| {
        let (api, stream) = (b.api, b.stream());
        let (dtype, scales, data) = block_layout(mode, colwise, (rows, cols));
        let data = b.random(DType::E4m3, &data)?;
        let scales = match dtype {
            DType::F32 => b.random(dtype, &scales)?,
            _ => b.exponents(&scales)?,
        };
        let (data_param, scale_param) = match colwise {
            false => (Param::Rowwise, Param::RowwiseScaleInv),
            true => (Param::Columnwise, Param::ColumnwiseScaleInv),
        };
        let x = Tensor::with_mode(api, mode).set(data_param, &data).set(scale_param, &scales);
        let y = b.tensor(&b.output("data", DType::Bf16, &[rows, cols], Rule::Equal)?);
        Ok(Box::new(move || api.nvte_dequantize(x.h(), y.h(), stream)))
    });
    case.alone()
}

/// Numbers of rows of members, multiples of 32 up to nearly twice the mean.
fn uneven(members: usize, rows: usize) -> Vec<usize> {
    let each = rows / members;
    let difference = |i: usize| 32 * (mix(i as u64 / 2) as usize % (each / 32));
    (0..members)
        .map(|i| if i % 2 == 0 { each + difference(i) } else { each - difference(i) })
        .collect()
}

/// Casts rows of one width, which belong to members with these numbers of rows.
fn group_quantize(name: &str, mode: i32, sizes: Vec<usize>, cols: usize) -> Case {
    let (members, rows) = (sizes.len(), sizes.iter().sum());
    Case::new(name, bytes(rows, cols, 4, 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.group(0, &sizes, cols)?;
        let x = x.set(GroupedParam::Rowwise, &b.random(DType::Bf16, &[rows * cols])?);
        let mut y = b.group(mode, &sizes, cols)?;
        let directions = [
            (GroupedParam::Rowwise, GroupedParam::RowwiseScaleInv, ["data", "scale_inv"]),
            (
                GroupedParam::Columnwise,
                GroupedParam::ColumnwiseScaleInv,
                ["columnwise data", "columnwise scale_inv"],
            ),
        ];
        for (i, (data_param, scale_param, names)) in directions.into_iter().enumerate() {
            let data = b.output(names[0], DType::E4m3, &[rows * cols], Rule::Equal)?;
            let scales = match mode {
                0 => b.floats(&vec![1.0; members])?,
                _ => {
                    let layout = |&rows: &usize| block_layout(mode, i == 1, (rows, cols));
                    // Members are narrower than the padding of the square blocks' scales.
                    let lens =
                        sizes.iter().map(layout).map(|(_, s, _)| s[0] * s[1].next_multiple_of(4));
                    b.alloc(layout(&rows).0, &[lens.sum()])?
                }
            };
            y = y.set(data_param, &data).set(scale_param, &scales);
        }
        if mode == 0 {
            y = y.set(GroupedParam::Scale, &b.floats(&vec![37.5; members])?);
        }
        Ok(Box::new(move || api.nvte_group_quantize(x.h(), y.h(), Handle::NULL, stream)))
    })
}

/// Casts row-wise data back to bf16.
fn group_dequantize(name: &str, mode: i32, members: usize, rows: usize, cols: usize) -> Case {
    Case::new(name, bytes(rows, cols, 3, 1), move |b| {
        let (api, stream) = (b.api, b.stream());
        let (dtype, scales, _) = block_layout(mode, false, (rows / members, cols));
        let scales = b.random(dtype, &[members * scales[0] * scales[1]])?;
        let sizes = vec![rows / members; members];
        let x = b
            .group(mode, &sizes, cols)?
            .set(GroupedParam::Rowwise, &b.random(DType::E4m3, &[rows * cols])?)
            .set(GroupedParam::RowwiseScaleInv, &scales);
        let data = b.output("data", DType::Bf16, &[rows * cols], Rule::Equal)?;
        let y = b.group(0, &sizes, cols)?.set(GroupedParam::Rowwise, &data);
        Ok(Box::new(move || api.nvte_group_dequantize(x.h(), y.h(), stream)))
    })
}

/// A cast in both directions with the sums of the columns, of a gradient or of its product with the
/// derivative of GELU.
fn dbias(name: &str, dgelu: bool, rows: usize, cols: usize) -> Case {
    let moved = if dgelu { 6 } else { 4 };
    Case::new(name, bytes(rows, cols, moved, moved - 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let act = b.tensor(&b.random(DType::Bf16, &[rows, if dgelu { cols } else { 1 }])?);
        let y =
            b.fp8_output_like(rows, cols, true, if dgelu { Rule::Close } else { Rule::Equal })?;
        // The float32 sums are added in another order.
        let dbias = b.tensor(&b.output("dbias", DType::Bf16, &[cols], Rule::Close)?);
        let call = move |workspace: Handle| match dgelu {
            false => api.nvte_quantize_dbias(x.h(), y.h(), dbias.h(), workspace, stream),
            true => {
                api.nvte_quantize_dbias_dgelu(x.h(), act.h(), y.h(), dbias.h(), workspace, stream);
            }
        };
        let query = Tensor::new(api);
        call(query.h());
        let workspace = b.tensor(&b.alloc(DType::F32, &[api.nvte_tensor_numel(query.h())])?);
        Ok(Box::new(move || call(workspace.h())))
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Activation {
    Gelu,
    Swiglu,
    Dswiglu,
}

#[derive(Clone, Copy, PartialEq)]
enum To {
    Bf16,
    Fp8,
    Fp8Both,
}

/// An activation of `[rows, cols]`, gated forms of `[rows, 2 cols]`.
fn activation(name: &str, activation: Activation, to: To, rows: usize, cols: usize) -> Case {
    // Bytes of the inputs, and width of the output, per element.
    let (input, width) = match activation {
        Activation::Gelu => (2, 1),
        Activation::Swiglu => (4, 1),
        Activation::Dswiglu => (6, 2),
    };
    let size = if to == To::Fp8 { 1 } else { 2 };
    Case::new(name, bytes(rows, cols, input + size * width, input), move |b| {
        let (api, stream) = (b.api, b.stream());
        let gated = activation != Activation::Gelu;
        let x = b.tensor(&b.random(DType::Bf16, &[rows, if gated { 2 * cols } else { cols }])?);
        let grad = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let y = match to {
            To::Bf16 => {
                b.tensor(&b.output("data", DType::Bf16, &[rows, width * cols], Rule::Close)?)
            }
            _ => {
                let both = to == To::Fp8Both;
                b.fp8_output_like(rows, width * cols, both, Rule::Close)?
            }
        };
        Ok(Box::new(move || match activation {
            Activation::Gelu => api.nvte_gelu(x.h(), y.h(), stream),
            Activation::Swiglu => api.nvte_swiglu(x.h(), y.h(), stream),
            Activation::Dswiglu => api.nvte_dswiglu(grad.h(), x.h(), y.h(), stream),
        }))
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
            // The owners of the handles are moved into the closure as well.
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
/// In blocks, m, n and k are multiples of 512.
#[derive(Clone, Copy)]
struct Gemm {
    dtype: DType,
    /// Scaling modes of A and B.
    modes: [i32; 2],
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
        let modes = [0; 2];
        Self { dtype, modes, m, n, k, transa: true, transb: false, bias: false, gelu: false }
    }
}

impl Gemm {
    fn case(self) -> Case {
        let Self { dtype, modes, m, n, k, transa, transb, bias, gelu } = self;
        let letter = |transposed| if transposed { 'T' } else { 'N' };
        let (a, b) = (letter(transa), letter(transb));
        let epilogue = match (bias, gelu) {
            (false, false) => "",
            (true, false) => " + bias",
            (false, true) => " + gelu",
            (true, true) => " + bias + gelu",
        };
        let blocks = match modes {
            [0, 0] => "".into(),
            [MXFP8, MXFP8] => " mx".into(),
            // The operands are named in the order of the product Bop Aop.
            [a, b] => format!(" block {}d x {}d", b - 1, a - 1),
        };
        let name = format!("gemm {}{blocks} {a}{b} {m}x{n}x{k}{epilogue}", dtype.name());
        let weight = (n * k * dtype.size()) as f64;
        let work = match m <= 32 && n * k > 1 << 22 {
            true => Work::Bytes {
                moved: weight + (m * k * dtype.size() + 2 * m * n) as f64,
                input: weight,
            },
            false => Work::Flops { count: 2.0 * m as f64 * n as f64 * k as f64, dtype },
        };
        let case = Case::new(name, work, move |b| self.build(b));
        let from_rows = dtype == DType::E4m3 && !transa;
        Case { alone: modes[0] == MXFP8 || from_rows, ..case }
    }

    fn build<'a>(self, b: &Build<'a>) -> Result<Call<'a>> {
        let Self { dtype, modes, m, n, k, transa, transb, bias, gelu } = self;
        let (api, stream) = (b.api, b.stream());
        let operand = |shape: [usize; 2], mode: i32| -> Result<Tensor<'a>> {
            let tensor =
                Tensor::with_mode(api, mode).set(Param::Rowwise, &b.random(dtype, &shape)?);
            let blocks = match mode {
                MXFP8 | BLOCKS_1D | BLOCKS_2D => scale_shape(mode, false, (shape[0], shape[1])),
                _ => [1, 1],
            };
            let scales = if mode == MXFP8 {
                let codes = b.alloc(DType::Byte, &blocks)?;
                b.machine.fill(codes.ptr, 127, codes.bytes())?;
                codes
            } else if dtype == DType::E4m3 {
                let values = normal(blocks[0] * blocks[1]);
                let values: Vec<f32> = values.iter().map(|v| v.abs() + 0.5).collect();
                let floats = b.floats(&values)?;
                Basic::new(floats.ptr, DType::F32, if mode == 0 { &[1] } else { &blocks })
            } else {
                return Ok(tensor);
            };
            Ok(tensor.set(Param::RowwiseScaleInv, &scales))
        };
        let left = operand(if transa { [n, k] } else { [k, n] }, modes[0])?;
        let right = operand(if transb { [k, m] } else { [m, k] }, modes[1])?;
        let out = if dtype == DType::E4m3 { DType::Bf16 } else { dtype };
        let in_blocks = modes[0] != 0;
        // In blocks there is one order of sums, and so one result.
        let rule = if in_blocks { Rule::Equal } else { Rule::Close };
        let d = b.tensor(&b.output("D", out, &[m, n], rule)?);
        let casts = if modes[0] == MXFP8 { 2 * k * (m + n) } else { 0 };
        let workspace = b.tensor(&b.alloc(DType::Byte, &[(32 << 20) + casts])?);
        let mut config = Config::matmul(api);
        config.set_flag(MatmulAttribute::SplitAccumulator, in_blocks);
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

/// The work counts each byte that must move: half of the scores, all results.
fn causal_softmax(matrices: usize, seq: usize) -> Case {
    let name = format!("causal softmax {matrices}x{seq}x{seq}");
    Case::new(name, bytes(matrices * seq, seq, 3, 1), move |b| {
        let (api, stream) = (b.api, b.stream());
        let shape = [matrices, seq, seq];
        let x = b.tensor(&b.random(DType::Bf16, &shape)?);
        let y = b.tensor(&b.output("results", DType::Bf16, &shape, Rule::Close)?);
        let forward = Api::nvte_scaled_upper_triang_masked_softmax_forward;
        Ok(Box::new(move || forward(api, x.h(), y.h(), 0.125, stream)))
    })
}

fn softmax(matrices: usize, seq: usize) -> Case {
    let name = format!("softmax {matrices}x{seq}x{seq}");
    Case::new(name, bytes(matrices * seq, seq, 4, 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let shape = [1, matrices, seq, seq];
        let x = b.tensor(&b.random(DType::Bf16, &shape)?);
        let y = b.tensor(&b.output("results", DType::Bf16, &shape, Rule::Close)?);
        Ok(Box::new(move || api.nvte_scaled_softmax_forward(x.h(), y.h(), 1.0, stream)))
    })
}

/// One mask for each 8 matrices, whose bytes are few beside the scores.
fn masked_softmax(matrices: usize, seq: usize) -> Case {
    let name = format!("masked softmax {matrices}x{seq}x{seq}");
    Case::new(name, bytes(matrices * seq, seq, 4, 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let (batch, heads) = (matrices / 8, 8);
        let shape = [batch, heads, seq, seq];
        let x = b.tensor(&b.random(DType::Bf16, &shape)?);
        let mask = b.tensor(&b.random(DType::Byte, &[batch, 1, seq, seq])?);
        let y = b.tensor(&b.output("results", DType::Bf16, &shape, Rule::Close)?);
        let forward = Api::nvte_scaled_masked_softmax_forward;
        Ok(Box::new(move || forward(api, x.h(), mask.h(), y.h(), 0.125, stream)))
    })
}

fn softmax_backward(matrices: usize, seq: usize, causal: bool) -> Case {
    // A causal mask halves what is read.
    let (kind, moved) = if causal { ("causal ", (4, 2)) } else { ("", (6, 4)) };
    let name = format!("{kind}softmax bwd {matrices}x{seq}x{seq}");
    Case::new(name, bytes(matrices * seq, seq, moved.0, moved.1), move |b| {
        let (api, stream) = (b.api, b.stream());
        let shape: &[usize] = if causal { &[matrices, seq, seq] } else { &[1, matrices, seq, seq] };
        let dy = b.tensor(&b.random(DType::Bf16, shape)?);
        let y = b.tensor(&b.random(DType::Bf16, shape)?);
        let dx = b.tensor(&b.output("gradients", DType::Bf16, shape, Rule::Close)?);
        let backward = match causal {
            true => Api::nvte_scaled_upper_triang_masked_softmax_backward,
            false => Api::nvte_scaled_softmax_backward,
        };
        Ok(Box::new(move || backward(api, dy.h(), y.h(), dx.h(), 0.125, stream)))
    })
}

fn dropout(rows: usize, cols: usize, backward: bool) -> Case {
    let name = if backward { "dropout bwd bf16" } else { "dropout bf16" };
    let work =
        Work::Bytes { moved: (rows * cols) as f64 * 4.125, input: (rows * cols) as f64 * 2.0 };
    Case::new(name, work, move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[rows, cols])?);
        let y = b.tensor(&b.output("data", DType::Bf16, &[rows, cols], Rule::Equal)?);
        let bits = [rows * cols / 8];
        if backward {
            let mask = b.tensor(&b.random(DType::Byte, &bits)?);
            return Ok(Box::new(move || {
                api.nvte_dropout_bwd(x.h(), mask.h(), y.h(), 0.1, stream);
            }));
        }
        let mask = b.tensor(&b.output("mask", DType::Byte, &bits, Rule::Equal)?);
        let state = b.alloc(DType::I64, &[2])?;
        b.machine.upload(state.ptr, &[7, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0])?;
        let state = b.tensor(&state);
        Ok(Box::new(move || {
            api.nvte_dropout_fwd(x.h(), y.h(), mask.h(), state.h(), 0.1, stream);
        }))
    })
}

fn adam(tensors: usize, numel: usize) -> Case {
    let name = format!("adam f32 {tensors}x{numel}");
    let elements = (tensors * numel) as f64;
    let work = Work::Bytes { moved: elements * 28.0, input: elements * 4.0 };
    let case = Case::new(name, work, move |b| {
        let (api, stream) = (b.api, b.stream());
        let noop = b.tensor(&b.alloc(DType::Byte, &[4])?);
        let shape = [numel];
        let mut lists: [Vec<Tensor>; 4] = Default::default();
        for _ in 0..tensors {
            let updated = |name| {
                Ok::<_, anyhow::Error>(b.updated(name, b.random(DType::F32, &shape)?, Rule::Close))
            };
            // No square is negative: 0x3f3f3f3f is 0.75.
            let v = b.updated("v", b.alloc(DType::F32, &shape)?, Rule::Close);
            b.machine.fill(v.ptr, 0x3f, v.bytes())?;
            let memory = [b.random(DType::F32, &shape)?, updated("p")?, updated("m")?, v];
            lists.iter_mut().zip(&memory).for_each(|(list, data)| list.push(b.tensor(data)));
        }
        let handles: Vec<Vec<Handle>> =
            lists.iter().map(|list| list.iter().map(Tensor::h).collect()).collect();
        let (chunk, count) = (65536, handles.len());
        Ok(Box::new(move || {
            let _ = &lists;
            let rows: Vec<_> = handles.iter().map(|list| list.as_ptr()).collect();
            let (rows, noop) = (rows.as_ptr(), noop.h());
            api.nvte_multi_tensor_adam_cuda(
                chunk, noop, rows, count, tensors, 1e-3, 0.9, 0.999, 1e-8, 10, 1, 1, 0.01, stream,
            );
        }))
    });
    Case { most_sets: 1, ..case }
}

/// Batch, heads and elements of rotary embeddings, and `NVTE_SBHD`.
const ROPE: [usize; 3] = [4, 32, 128];
const SBHD: i32 = 0;

fn rope(name: &str, seq: usize, interleaved: bool) -> Case {
    let [batch, heads, dim] = ROPE;
    Case::new(name, bytes(seq * batch * heads, dim, 4, 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let shape = [seq, batch, heads, dim];
        let x = b.tensor(&b.random(DType::Bf16, &shape)?);
        let freqs = b.tensor(&b.random(DType::F32, &[seq, 1, 1, dim])?);
        let y = b.tensor(&b.output("data", DType::Bf16, &shape, Rule::Close)?);
        let none = Tensor::new(api);
        let [s, n, h, d] = shape.map(|size| size as i32);
        Ok(Box::new(move || {
            api.nvte_fused_rope_forward(
                x.h(),
                none.h(),
                freqs.h(),
                none.h(),
                y.h(),
                SBHD,
                interleaved,
                1,
                0,
                s,
                n,
                h,
                d,
                d,
                n * h * d,
                h * d,
                d,
                1,
                stream,
            );
        }))
    })
}

/// Groups of four heads of queries, one of keys and one of values.
fn qkv_rope(seq: usize) -> Case {
    let [batch, heads, dim] = ROPE;
    let groups = heads / 4;
    let name = format!("qkv rope fwd sbhd {seq}x{batch}x{groups}x{}", 6 * dim);
    Case::new(name, bytes(seq * batch * groups, 6 * dim, 4, 2), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(DType::Bf16, &[seq, batch, groups, 6 * dim])?);
        let freqs = b.tensor(&b.random(DType::F32, &[seq, 1, 1, dim])?);
        let output = |name, heads: usize| {
            let shape = [seq, batch, groups * heads, dim];
            b.output(name, DType::Bf16, &shape, Rule::Close).map(|data| b.tensor(&data))
        };
        let (q, k, v) = (output("q", 4)?, output("k", 1)?, output("v", 1)?);
        let none = Tensor::new(api);
        let [s, n, h, d] = [seq, batch, groups, dim].map(|size| size as i32);
        Ok(Box::new(move || {
            api.nvte_fused_qkv_rope_forward(
                x.h(),
                freqs.h(),
                freqs.h(),
                none.h(),
                q.h(),
                k.h(),
                v.h(),
                SBHD,
                false,
                1,
                0,
                s,
                n,
                h,
                d,
                d,
                4 * d,
                d,
                d,
                stream,
            );
        }))
    })
}

const EPSILON: f32 = 1e-5;
/// The number of multiprocessors that front ends pass on an H200.
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
    let dtype = if out == DType::F32 { DType::F32 } else { DType::Bf16 };
    Case::new(name, bytes(rows, cols, dtype.size() + out.size(), dtype.size()), move |b| {
        let (api, stream) = (b.api, b.stream());
        let x = b.tensor(&b.random(dtype, &[rows, cols])?);
        let gamma = b.tensor(&b.random(dtype, &[cols])?);
        let beta = b.tensor(&b.random(dtype, &[cols])?);
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
