//! Attention: 16384 tokens in all, 2048 elements of the heads together; and one token on a cache.

use super::*;
use crate::bench::abi::{Attention, Pack};

/// What is added to the scores, beside the mask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extra {
    None,
    Alibi,
    /// One bias for all sequences.
    Bias,
    Dropout,
}

#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    queries: usize,
    keys: usize,
    /// Heads of queries, and of keys.
    heads: [usize; 2],
    /// Elements of a head of queries and keys, and of values.
    dims: [usize; 2],
    causal: bool,
    extra: Extra,
    dtype: DType,
}

const NVTE_BSHD_BSHD_BSHD: i32 = 9;
const NVTE_NO_MASK: i32 = 0;
const NVTE_CAUSAL_MASK: i32 = 2;
const NVTE_NO_BIAS: i32 = 0;
const NVTE_POST_SCALE_BIAS: i32 = 2;
const NVTE_ALIBI: i32 = 3;

pub fn cases(kind: Kind) -> Vec<Case> {
    let (tokens, width) = if kind == Kind::Gpu { (16384, 2048) } else { (1024, 256) };
    let shape = |seq: usize, dim: usize, causal: bool| Shape {
        batch: tokens / seq,
        queries: seq,
        keys: seq,
        heads: [width / dim; 2],
        dims: [dim; 2],
        causal,
        extra: Extra::None,
        dtype: DType::Bf16,
    };
    let half = shape(tokens / 2, 128, true);
    let list = [
        shape(tokens / 8, 128, true),
        half,
        shape(tokens, 128, true),
        shape(tokens, 128, false),
        shape(tokens / 2, 64, true),
        Shape { dims: [192, 128], ..half },
        shape(tokens / 2, 256, true),
        shape(tokens, 256, false),
        Shape { extra: Extra::Alibi, ..half },
        Shape { extra: Extra::Bias, ..shape(tokens / 8, 128, false) },
        Shape { extra: Extra::Dropout, ..half },
        Shape { dtype: DType::F32, ..shape(tokens / 8, 64, true) },
        Shape { dtype: DType::F32, ..shape(tokens / 8, 128, true) },
    ];
    let mut cases: Vec<_> =
        list.iter().flat_map(|shape| [shape.case(false), shape.case(true)]).collect();
    for shape in [half, shape(tokens, 128, false)] {
        let shape = Shape { dtype: DType::E4m3, ..shape };
        cases.extend([shape.case(false), shape.case(true)]);
    }
    let token = Shape { batch: tokens / 256, queries: 1, causal: false, ..half };
    cases.push(Shape { heads: [32, 4], ..token }.case(false));
    cases
}

/// A causal forward pass of one sequence.
pub fn causal(dtype: DType, seq: usize, heads: usize, dim: usize) -> Case {
    let (heads, dims, extra) = ([heads; 2], [dim; 2], Extra::None);
    Shape { batch: 1, queries: seq, keys: seq, heads, dims, causal: true, extra, dtype }.case(false)
}

impl Shape {
    fn name(&self, backward: bool) -> String {
        let Self { batch, queries, heads: [heads, groups], dims: [dim, dim_v], .. } = *self;
        let pass = if backward { "backward" } else { "forward" };
        let kind = match self.dtype {
            DType::E4m3 => "attention fp8",
            DType::F32 => "attention f32",
            _ => "attention",
        };
        if queries == 1 {
            return format!("{kind} decode {batch}x1x{heads}/{groups}x{dim}, cache {}", self.keys);
        }
        let mask = if self.causal { "causal" } else { "full" };
        let dims = if dim == dim_v { dim.to_string() } else { format!("{dim}/{dim_v}") };
        let extra = match self.extra {
            Extra::None => "",
            Extra::Alibi => " + alibi",
            Extra::Bias if backward => " + bias + dbias",
            Extra::Bias => " + bias",
            Extra::Dropout => " + dropout",
        };
        format!("{kind} {pass} {mask} {batch}x{queries}x{heads}x{dims}{extra}")
    }

    fn work(&self, backward: bool) -> Work {
        let Self { batch, queries, keys, heads: [heads, groups], dims: [dim, dim_v], .. } = *self;
        if queries == 1 {
            let of_a_dim = batch * self.dtype.size() * (heads + groups * keys);
            let moved = (of_a_dim * (dim + dim_v)) as f64;
            return Work::Bytes { moved, input: moved };
        }
        let scores = (batch * heads * queries * keys) as f64 / if self.causal { 2.0 } else { 1.0 };
        // Products: of q and k, and of p and v; backward dq, dk and q and k again, dp and dv.
        let dims = if backward { 3 * dim + 2 * dim_v } else { dim + dim_v };
        Work::Flops { count: scores * 2.0 * dims as f64, dtype: self.dtype }
    }

    fn case(self, backward: bool) -> Case {
        let case = Case::new(self.name(backward), self.work(backward), move |b| {
            let call = Forward::new(self, b, !backward)?;
            if !backward {
                return Ok(Box::new(move || call.run()));
            }
            call.run();
            let call = self.backward(call, b)?;
            Ok(Box::new(move || call.run()))
        });
        // The other library throws for FP32, and for FP8 as it is called here.
        Case { most_sets: 4, alone: self.dtype != DType::Bf16, ..case }
    }

    fn q(&self) -> [usize; 4] {
        [self.batch, self.queries, self.heads[0], self.dims[0]]
    }
    fn k(&self) -> [usize; 4] {
        [self.batch, self.keys, self.heads[1], self.dims[0]]
    }
    fn v(&self) -> [usize; 4] {
        [self.batch, self.keys, self.heads[1], self.dims[1]]
    }
    fn o(&self) -> [usize; 4] {
        [self.batch, self.queries, self.heads[0], self.dims[1]]
    }
    fn bias(&self) -> [usize; 4] {
        [1, self.heads[0], self.queries, self.keys]
    }

    fn options(&self, params: &Attention, first: u32) {
        let mask = if self.causal { NVTE_CAUSAL_MASK } else { NVTE_NO_MASK };
        let bias = match self.extra {
            Extra::Alibi => NVTE_ALIBI,
            Extra::Bias => NVTE_POST_SCALE_BIAS,
            Extra::None | Extra::Dropout => NVTE_NO_BIAS,
        };
        let dropout = if self.extra == Extra::Dropout { 0.1f32 } else { 0.0 };
        params.set(first, &mask);
        params.set(first + 1, &bias);
        params.set(first + 6, &dropout);
        params.set(first + 7, &(self.dims[0] as f32).sqrt().recip());
        params.set(first + 8, &NVTE_BSHD_BSHD_BSHD);
    }

    fn backward<'a>(&self, forward: Forward<'a>, b: &Build<'a>) -> Result<Backward<'a>> {
        let params = Attention::backward(b.api);
        // Another library draws other numbers for dropout.
        let fp8 = self.dtype == DType::E4m3;
        let dtype = if fp8 { DType::E5m2 } else { self.dtype };
        let output = |name, dims: &[usize]| {
            let memory = match fp8 || self.extra == Extra::Dropout {
                true => b.alloc(dtype, dims)?,
                false => b.output(name, dtype, dims, Rule::Close)?,
            };
            Forward::tensor(b, &memory)
        };
        let mut tensors = vec![
            Forward::tensor(b, &b.random(dtype, &self.o())?)?,
            output("dQ", &self.q())?,
            output("dK", &self.k())?,
            output("dV", &self.v())?,
            Tensor::new(b.api),
        ];
        tensors.push(match self.extra {
            Extra::Bias => output("dBias", &self.bias())?,
            _ => Tensor::new(b.api),
        });
        tensors.push(Forward::factors(b, Tensor::new(b.api), dtype)?);
        let [q, k, v, o, s] = [0, 1, 2, 3, 7].map(|i| forward.tensors[i].h());
        let [d_o, dq, dk, dv, empty, d_bias, dp] = [0, 1, 2, 3, 4, 5, 6].map(|i| tensors[i].h());
        let handles = [q, k, v, o, d_o, s, dp];
        handles.iter().zip(0..).for_each(|(handle, at)| params.set(at, handle));
        params.set(7, &forward.pack.address());
        let handles = [dq, dk, dv, d_bias, empty, empty, empty, empty, empty];
        handles.iter().zip(8..).for_each(|(handle, at)| params.set(at, handle));
        self.options(&params, 19);
        params.set(33, &self.queries);
        params.set(34, &self.keys);
        params.set(36, &b.stream());
        let workspace = with_workspace(b, |workspace| {
            params.set(35, &workspace);
            params.run();
        })?;
        params.set(35, &workspace.h());
        tensors.push(workspace);
        Ok(Backward { params, _tensors: tensors, _forward: forward })
    }
}

/// A forward, its tensors (q, k, v, o first) and the auxiliary ones.
struct Forward<'a> {
    params: Attention<'a>,
    tensors: Vec<Tensor<'a>>,
    pack: Pack<'a>,
}

impl<'a> Forward<'a> {
    fn new(shape: Shape, b: &Build<'a>, compared: bool) -> Result<Self> {
        let api: &'a Api = b.api;
        let params = Attention::forward(api);
        let mut tensors = Vec::new();
        for dims in [shape.q(), shape.k(), shape.v()] {
            tensors.push(Self::tensor(b, &b.random(shape.dtype, &dims)?)?);
        }
        let o = match compared && shape.extra != Extra::Dropout {
            true => b.output("O", shape.dtype, &shape.o(), Rule::Close)?,
            false => b.alloc(shape.dtype, &shape.o())?,
        };
        tensors.push(Self::tensor(b, &o)?);
        let rng_state = b.alloc(DType::I64, &[2])?;
        b.machine.fill(rng_state.ptr, 0, rng_state.bytes())?;
        tensors.extend([b.tensor(&rng_state), Tensor::new(api)]);
        tensors.push(match shape.extra {
            Extra::Bias => b.tensor(&b.random(DType::Bf16, &shape.bias())?),
            _ => Tensor::new(api),
        });
        // The tensor of the probabilities has only factors and amax.
        tensors.push(Self::factors(b, Tensor::new(api), shape.dtype)?);
        let [q, k, v, o, rng_state, empty, bias, s] =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|i| tensors[i].h());
        let handles = [q, k, v, bias, empty, s, o];
        handles.iter().zip(0..).for_each(|(handle, at)| params.set(at, handle));
        let pack = Pack::new(api);
        params.set(7, &pack.address());
        (8..14).for_each(|at| params.set(at, &empty));
        params.set(14, &rng_state);
        shape.options(&params, 18);
        params.set(29, &shape.queries);
        params.set(30, &shape.keys);
        params.set(32, &b.stream());
        let workspace = with_workspace(b, |workspace| {
            params.set(31, &workspace);
            params.run();
        })?;
        params.set(31, &workspace.h());
        tensors.push(workspace);
        let stats = b.alloc(DType::F32, &[shape.batch, shape.heads[0], shape.queries, 1])?;
        pack.place(0, &stats);
        Ok(Self { params, tensors, pack })
    }

    fn tensor(b: &Build<'a>, memory: &Basic) -> Result<Tensor<'a>> {
        Self::factors(b, b.tensor(memory), memory.dtype)
    }

    /// Gives an 8-bit tensor its factors and amax.
    fn factors(b: &Build<'a>, tensor: Tensor<'a>, dtype: DType) -> Result<Tensor<'a>> {
        if !matches!(dtype, DType::E4m3 | DType::E5m2) {
            return Ok(tensor);
        }
        let [scale, amax, scale_inv] = [b.floats(&[1.0])?, b.floats(&[0.0])?, b.floats(&[1.0])?];
        Ok(tensor
            .set(Param::Scale, &scale)
            .set(Param::Amax, &amax)
            .set(Param::RowwiseScaleInv, &scale_inv))
    }

    fn run(&self) {
        self.params.run();
    }
}

struct Backward<'a> {
    params: Attention<'a>,
    _tensors: Vec<Tensor<'a>>,
    _forward: Forward<'a>,
}

impl Backward<'_> {
    fn run(&self) {
        self.params.run();
    }
}
