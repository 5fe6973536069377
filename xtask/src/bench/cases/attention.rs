//! Attention: 16384 tokens in all, 2048 elements of the heads together.

use super::*;
use crate::bench::abi::{Attention, Pack};

#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    causal: bool,
}

const NVTE_BSHD_BSHD_BSHD: i32 = 9;
const NVTE_NO_MASK: i32 = 0;
const NVTE_CAUSAL_MASK: i32 = 2;

pub fn cases(kind: Kind) -> Vec<Case> {
    let mut cases = Vec::new();
    let (tokens, width) = if kind == Kind::Gpu { (16384, 2048) } else { (1024, 256) };
    let mut add = |seq: usize, dim: usize, causal: bool| {
        let shape = Shape { batch: tokens / seq, seq, heads: width / dim, dim, causal };
        cases.extend([false, true].map(|backward| shape.case(backward)));
    };
    for seq in [tokens / 8, tokens / 2, tokens] {
        add(seq, 128, true);
    }
    add(tokens, 128, false);
    add(tokens / 2, 64, true);
    cases
}

impl Shape {
    fn case(self, backward: bool) -> Case {
        let Self { batch, seq, heads, dim, causal } = self;
        let pass = if backward { "backward" } else { "forward" };
        let mask = if causal { "causal" } else { "full" };
        let name = format!("attention {pass} {mask} {batch}x{seq}x{heads}x{dim}");
        let scores = (batch * heads) as f64 * (seq * seq) as f64 / if causal { 2.0 } else { 1.0 };
        let count = scores * dim as f64 * if backward { 10.0 } else { 4.0 };
        let case = Case::new(name, Work::Flops { count, dtype: DType::Bf16 }, move |b| {
            let call = Forward::new(self, b, !backward)?;
            if !backward {
                return Ok(Box::new(move || call.run()));
            }
            call.run();
            let call = self.backward(call, b)?;
            Ok(Box::new(move || call.run()))
        });
        Case { most_sets: 4, ..case }
    }

    fn dims(&self) -> [usize; 4] {
        [self.batch, self.seq, self.heads, self.dim]
    }

    fn options(&self, params: &Attention, first: u32) {
        let mask = if self.causal { NVTE_CAUSAL_MASK } else { NVTE_NO_MASK };
        params.set(first, &mask);
        params.set(first + 7, &(self.dim as f32).sqrt().recip());
        params.set(first + 8, &NVTE_BSHD_BSHD_BSHD);
    }

    fn backward<'a>(&self, forward: Forward<'a>, b: &Build<'a>) -> Result<Backward<'a>> {
        let params = Attention::backward(b.api);
        let input = |name, dtype, dims: &[usize]| {
            b.output(name, dtype, dims, Rule::Close).map(|memory| b.tensor(&memory))
        };
        let mut tensors = vec![b.tensor(&b.random(DType::Bf16, &self.dims())?)];
        for name in ["dQ", "dK", "dV"] {
            tensors.push(input(name, DType::Bf16, &self.dims())?);
        }
        tensors.push(Tensor::new(b.api));
        let empty = tensors[4].h();
        let [q, k, v, o] = [0, 1, 2, 3].map(|i| forward.tensors[i].h());
        let [d_o, dq, dk, dv] = [0, 1, 2, 3].map(|i| tensors[i].h());
        let handles = [q, k, v, o, d_o, empty, empty];
        handles.iter().zip(0..).for_each(|(handle, at)| params.set(at, handle));
        params.set(7, &forward.pack.address());
        let handles = [dq, dk, dv, empty, empty, empty, empty, empty, empty];
        handles.iter().zip(8..).for_each(|(handle, at)| params.set(at, handle));
        self.options(&params, 19);
        params.set(33, &self.seq);
        params.set(34, &self.seq);
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
        for _ in 0..3 {
            tensors.push(b.tensor(&b.random(DType::Bf16, &shape.dims())?));
        }
        let o = match compared {
            true => b.output("O", DType::Bf16, &shape.dims(), Rule::Close)?,
            false => b.alloc(DType::Bf16, &shape.dims())?,
        };
        tensors.push(b.tensor(&o));
        let rng_state = b.alloc(DType::I64, &[2])?;
        b.machine.fill(rng_state.ptr, 0, rng_state.bytes())?;
        tensors.extend([b.tensor(&rng_state), Tensor::new(api)]);
        let [q, k, v, o, rng_state, empty] = [0, 1, 2, 3, 4, 5].map(|i| tensors[i].h());
        let handles = [q, k, v, empty, empty, empty, o];
        handles.iter().zip(0..).for_each(|(handle, at)| params.set(at, handle));
        let pack = Pack::new(api);
        params.set(7, &pack.address());
        (8..14).for_each(|at| params.set(at, &empty));
        params.set(14, &rng_state);
        shape.options(&params, 18);
        params.set(29, &shape.seq);
        params.set(30, &shape.seq);
        params.set(32, &b.stream());
        let workspace = with_workspace(b, |workspace| {
            params.set(31, &workspace);
            params.run();
        })?;
        params.set(31, &workspace.h());
        tensors.push(workspace);
        let stats = b.alloc(DType::F32, &[shape.batch, shape.heads, shape.seq, 1])?;
        pack.place(0, &stats);
        Ok(Self { params, tensors, pack })
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
