//! `DotProductAttention` and `MultiheadAttention` (spec: modules, sections 12 and 14).

use super::attention_fp8::{Fp8Heads, Probabilities};
use super::context::Run;
use super::context_parallel::{ContextParallelKind, SequenceRanks};
use super::dense::{Again, DenseConfig, Grad};
use super::kv_cache::{Cached, KvCache};
use super::linear::{Linear, LinearTape};
use super::memory::Lifetime;
use super::norm::{NormConfig, NormLayer, NormTape};
use super::ops::{self, QkvRope, plain};
use super::parameter::{Init, Parameter, matrix};
use super::quantizer::QTensor;
use super::split::{self, Shard, Side, Split, Spread};
use super::{Argument, Layer, Saved, Tape, Tensors, named, saved};
use crate::error::{Error, Result};
use crate::op::fused_attn::attention::{Attention, Backward, Inputs, More};
use crate::op::fused_attn::layout::Layout;
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTE_Mask_Type::*;
use crate::types::NVTE_QKV_Format::*;
use crate::types::NVTE_QKV_Layout_Group::*;
use crate::types::NVTE_Softmax_Type::*;
use crate::types::NVTEDType::{self, *};
use crate::types::*;

/// A norm of the heads of queries and keys.
#[derive(Clone, Copy)]
pub struct HeadNorm {
    pub op: ops::Norm,
    /// `x / |x|`: without parameters.
    pub l2: bool,
    /// The norm comes before the rotary embedding, not after it.
    pub before_rope: bool,
}

#[derive(Clone, Copy)]
pub struct AttentionConfig {
    pub heads: usize,
    pub groups: usize,
    pub dim_qk: usize,
    pub dim_v: usize,
    /// Dropout of the probabilities.
    pub dropout: f32,
    /// Sequence first, batch first, or packed tokens.
    pub format: NVTE_QKV_Format,
    pub mask: NVTE_Mask_Type,
    pub window: [i64; 2],
    pub bottom_right: bool,
    pub softmax: NVTE_Softmax_Type,
    /// Factor of the scores; 0 stands for `1 / sqrt(dim_qk)`.
    pub scale: f32,
    pub dtype: NVTEDType,
    /// The tape holds neither result nor statistics; the backward pass computes them again.
    pub checkpoint: bool,
    /// Norm of each head of queries and keys, in modules with projections.
    pub norm: Option<HeadNorm>,
    /// Where the dropout begins in a call's sequence of random numbers.
    pub site: u32,
    /// Ranks that share each sequence (1: none, 0: those of the context's grid), and how.
    pub context_parallel: (usize, ContextParallelKind),
}

impl AttentionConfig {
    /// Refuses what is out of range. `name` prefixes the fields.
    pub fn check(&self, name: &str) -> Result<()> {
        let refuse = |field: &str, expected: &str, got: &dyn std::fmt::Display| {
            Err(Error::argument(format!("{name}.{field}"), expected, got))
        };
        let most = 1 << 16;
        let sizes = [
            ("num_attention_heads", self.heads),
            ("num_gqa_groups", self.groups),
            ("head_dim_qk", self.dim_qk),
            ("head_dim_v", self.dim_v),
        ];
        for (field, size) in sizes {
            if size == 0 || size > most {
                return refuse(field, "1 to 65536", &size);
            }
        }
        if !self.heads.is_multiple_of(self.groups) {
            let expected = format!("a divisor of num_attention_heads ({})", self.heads);
            return refuse("num_gqa_groups", &expected, &self.groups);
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return refuse("attention_dropout", "at least 0 and less than 1", &self.dropout);
        }
        for (field, size) in ["left", "right"].into_iter().zip(self.window) {
            if size < -1 {
                return refuse(&format!("window_size_{field}"), "-1 (unbounded) or more", &size);
            }
        }
        if !self.scale.is_finite() {
            return refuse("softmax_scale", "a finite number", &self.scale);
        }
        Ok(())
    }

    fn scale(&self) -> f32 {
        let dim = self.dim_qk as f32;
        let scale = if self.scale == 0.0 { 1.0 / dim.sqrt() } else { self.scale };
        // Norms by the root mean square are longer, for queries and keys by the root of dim each.
        if self.norm.is_some_and(|norm| norm.l2) { scale / dim } else { scale }
    }

    /// Queries, keys and values in tensors of their own.
    fn separate(&self) -> Layout {
        Layout::separate(self.format)
    }
}

/// An attention with its parameter, the softmax's offset.
pub struct Core {
    /// Of the heads of this rank.
    config: AttentionConfig,
    /// The ranks that have the other heads.
    split: Option<Split>,
    offset: Option<Parameter>,
    probabilities: Probabilities,
    /// The ranks that share each sequence, if there are others.
    ranks: Option<SequenceRanks>,
}

/// What both passes of an attention know, beside q, k, v and o.
pub struct CoreTape {
    op: Attention,
    cu_seqlens: [Option<Tensor>; 4],
    page_table: Option<Tensor>,
    rng_state: Option<QTensor>,
    stats: QTensor,
    /// The FP8 tensors that the pass has read in place of queries, keys and values in high precision.
    fp8: Option<Box<Fp8Heads>>,
}

impl Core {
    pub fn new(run: &Run, config: AttentionConfig, spread: &Spread) -> Result<Self> {
        let split = Split::of(run, spread)?;
        let (whole, mut config) = (config, config);
        if let Some(split) = &split {
            config.heads =
                split.share(&format!("{}.num_attention_heads", spread.name), whole.heads)?;
            config.groups =
                split.share(&format!("{}.num_gqa_groups", spread.name), whole.groups)?;
        }
        let offset = match config.softmax {
            NVTE_LEARNABLE_SOFTMAX => {
                let (name, dims) = ("softmax_offset", [whole.heads]);
                let shard = match &split {
                    Some(split) => split.shard(&dims, 0, 1)?,
                    None => Shard::all(&dims),
                };
                Some(Parameter::of(run, name, shard, kNVTEFloat32, Init::Constant(0.0), None)?)
            }
            _ => None,
        };
        let probabilities = Probabilities::new(run, config.dropout)?;
        let ranks = SequenceRanks::new(run, spread.name, &config)?;
        Ok(Self { config, split, offset, probabilities, ranks })
    }

    /// How many ranks share each sequence.
    fn sequence_ranks(&self) -> usize {
        self.ranks.as_ref().map_or(1, SequenceRanks::size)
    }

    /// q, k, v and o as the layout has them.
    fn forward_to(
        &self,
        run: &Run,
        layout: Layout,
        parts: [&Tensor; 3],
        o: &Tensor,
        max_seqlen: [usize; 2],
        cu_seqlens: [Option<Tensor>; 4],
    ) -> Result<Box<CoreTape>> {
        let op = self.op(run, layout, max_seqlen);
        self.run(run, op, parts, None, o, cu_seqlens)
    }

    /// The new queries and all keys and values, which end together.
    fn forward_cached(
        &self,
        run: &Run,
        (q, length): (&Tensor, usize),
        cached: &Cached,
        o: &Tensor,
    ) -> Result<Box<CoreTape>> {
        if self.ranks.is_some() {
            let expected = "null (ranks share each sequence, and have no cache)";
            let error = Error::argument("step.kv_cache", expected, "a cache");
            return Err(Error::unsupported(error.message));
        }
        let group = if cached.table.is_some() { NVTE_Paged_KV_HD_HD_HD } else { NVTE_HD_HD_HD };
        let layout = Layout { group, q: self.config.format, kv: NVTE_BSHD };
        let op = self.op(run, layout, [length, cached.max_length]);
        let mask = match op.mask {
            NVTE_NO_MASK | NVTE_PADDING_MASK => NVTE_PADDING_MASK,
            _ => NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK,
        };
        let op = Attention { mask, bottom_right: true, ..op };
        let [new, all] = cached.cu_seqlens.clone();
        let parts = [q, &cached.k, &cached.v];
        self.run(run, op, parts, cached.table.as_ref(), o, [Some(new), Some(all), None, None])
    }

    fn op(&self, run: &Run, layout: Layout, max_seqlen: [usize; 2]) -> Attention {
        let config = &self.config;
        Attention {
            mask: config.mask,
            window: config.window,
            bottom_right: config.bottom_right,
            softmax: config.softmax,
            scale: config.scale(),
            dropout: if run.training { config.dropout } else { 0.0 },
            training: run.training,
            max_seqlen,
            other_heads: self.split.as_ref().map_or([0; 2], |split| split.others(config.heads)),
            ..Attention::new(layout)
        }
    }

    fn run(
        &self,
        run: &Run,
        op: Attention,
        parts: [&Tensor; 3],
        page_table: Option<&Tensor>,
        o: &Tensor,
        cu_seqlens: [Option<Tensor>; 4],
    ) -> Result<Box<CoreTape>> {
        let (config, dropout) = (&self.config, op.dropout);
        for (name, sums) in ["q", "kv"].into_iter().zip(&cu_seqlens) {
            if op.padding() && sums.is_none() {
                let name = format!("step.cu_seqlens_{name}");
                return Err(Error::argument(name, "Int32 [b + 1] (the mask has padding)", "null"));
            }
        }
        let rng_state = if dropout > 0.0 { Some(run.random(config.site)?) } else { None };
        let stats = QTensor::borrowed(plain(Buffer::UNSET));
        let page_table = page_table.cloned();
        let recipe =
            run.frame.as_ref().filter(|frame| frame.enabled).and_then(|f| f.recipe.as_ref());
        let fp8 = match recipe.is_some_and(|recipe| recipe.attention) && run.kv_cache.is_none() {
            true => {
                let ranks = self.split.as_ref().and_then(Split::scale_ranks);
                let sequence = self.ranks.as_ref().map(SequenceRanks::communicator);
                Some(Box::new(Fp8Heads::new(run, op.layout.group, parts, [ranks, sequence])?))
            }
            false => None,
        };
        let mut tape = Box::new(CoreTape { op, cu_seqlens, page_table, rng_state, stats, fp8 });
        tape.stats = self.forward_again(run, &tape, parts, o)?;
        Ok(tape)
    }

    /// Computes the output `o` of a tape again, and returns its statistics.
    fn forward_again(
        &self,
        run: &Run,
        tape: &CoreTape,
        parts: [&Tensor; 3],
        o: &Tensor,
    ) -> Result<QTensor> {
        let page_table = tape.page_table.as_ref();
        let inputs = match &tape.fp8 {
            None => self.inputs(tape, parts),
            Some(fp8) => Inputs {
                s: Some(&self.probabilities.tensor),
                ..self.inputs(tape, fp8.parts.each_ref())
            },
        };
        match &self.ranks {
            None => ops::attention_forward(run, &tape.op, inputs, page_table, o),
            Some(ranks) => ranks.forward(run, &tape.op, inputs, o),
        }
    }

    fn inputs<'a>(&'a self, tape: &'a CoreTape, [q, k, v]: [&'a Tensor; 3]) -> Inputs<'a> {
        Inputs {
            q,
            k,
            v,
            cu_seqlens: tape.cu_seqlens.each_ref().map(Option::as_ref),
            bias: None,
            softmax_offset: self.offset.as_ref().map(|offset| &offset.value.tensor),
            rng_state: tape.rng_state.as_ref().map(|state| &state.tensor),
            s: None,
        }
    }

    fn backward_to(
        &self,
        run: &Run,
        tape: &CoreTape,
        parts: [&Tensor; 3],
        [o, d_o, stats]: [&Tensor; 3],
        [dq, dk, dv]: [&Tensor; 3],
        more: More,
    ) -> Result<bool> {
        let read = match &tape.fp8 {
            Some(fp8) => Some(fp8.dequantized(run, self.config.dtype)?),
            None => None,
        };
        let parts = read.as_ref().map_or(parts, |(parts, _)| parts.each_ref());
        let offset = self.offset.as_ref().filter(|offset| offset.grad.is_some());
        let doffset = offset.map(|offset| offset.landing(run, kNVTEFloat32)).transpose()?;
        let tensors = Backward {
            inputs: self.inputs(tape, parts),
            o,
            d_o,
            stats,
            dp: None,
            dq,
            dk,
            dv,
            dbias: None,
            doffset: doffset.as_ref().map(|landed| &landed.tensor),
            more,
        };
        let gives_more = match &self.ranks {
            None => ops::attention_backward(run, &tape.op, &tensors)?,
            Some(ranks) => ranks.backward(run, &tape.op, &tensors).map(|()| false)?,
        };
        if let (Some(offset), Some(landed)) = (offset, &doffset) {
            offset.deposit(run, landed)?;
        }
        Ok(gives_more)
    }
}

/// `softmax(scale q k^T) v` of three inputs.
pub struct DotProductAttention {
    core: Core,
}

struct AttentionTape {
    core: Box<CoreTape>,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
}

impl DotProductAttention {
    pub fn new(run: &Run, config: AttentionConfig, spread: &Spread) -> Result<Self> {
        Ok(Self { core: Core::new(run, config, spread)? })
    }

    /// A tensor of heads, and the length of its sequences (packed tokens: what the step says).
    fn heads(
        &self,
        x: &Argument,
        (heads, dim): (usize, usize),
        packed: usize,
    ) -> Result<(Tensor, usize)> {
        let data = x.data(self.core.config.dtype)?;
        let shape = data.shape;
        let length = match (self.core.config.format, shape.dims()) {
            (NVTE_THD, &[_, h, d]) if (h, d) == (heads, dim) => Some(packed),
            (NVTE_SBHD, &[s, _, h, d]) if (h, d) == (heads, dim) => Some(s),
            (NVTE_BSHD, &[_, s, h, d]) if (h, d) == (heads, dim) => Some(s),
            _ => None,
        };
        match length.filter(|_| shape.numel() > 0) {
            Some(length) => Ok((plain(data), length)),
            None => {
                let order = match self.core.config.format {
                    NVTE_SBHD => "length, batch",
                    NVTE_THD => "tokens",
                    _ => "batch, length",
                };
                let expected = format!("[{order}, {heads}, {dim}] (heads, elements of a head)");
                Err(Error::argument(format!("{x}.shape"), expected, shape))
            }
        }
    }

    /// Queries, keys and values are of one batch, and values as long as keys.
    fn check_dims(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<()> {
        let at = match self.core.config.format {
            // A packed tensor may have more tokens than its sequences.
            NVTE_THD => return Ok(()),
            NVTE_SBHD => 1,
            _ => 0,
        };
        let [q, k, v] = [q, k, v].map(|x| x.rowwise.shape);
        let batch = q.dims()[at];
        if k.dims()[at] != batch {
            let expected = format!("a batch of {batch}, as inputs[0]");
            return Err(Error::argument("inputs[1].shape", expected, k));
        }
        if v.dims()[..2] != k.dims()[..2] {
            let expected = format!("batch and length of inputs[1] ({k})");
            return Err(Error::argument("inputs[2].shape", expected, v));
        }
        Ok(())
    }

    /// An output like the queries, with heads as a dimension of their own or not.
    fn output(&self, x: &Argument, q: &Tensor) -> Result<Tensor> {
        let config = &self.core.config;
        let mut dims = q.rowwise.shape.dims().to_vec();
        let last = dims.len() - 1;
        dims[last] = config.dim_v;
        let rows = dims[..last - 1].iter().product();
        let flat = rows_of_heads(x, config.dtype, rows, (config.heads, config.dim_v))?;
        Ok(plain(Buffer::new(flat.ptr(), flat.dtype, &dims)))
    }
}

/// Data of `rows` rows of heads, in whatever shape.
fn rows_of_heads(
    x: &Argument,
    dtype: NVTEDType,
    rows: usize,
    (heads, dim): (usize, usize),
) -> Result<Buffer> {
    let data = x.data(dtype)?;
    let (shape, numel) = (data.shape, rows * heads * dim);
    if shape.numel() != numel {
        let expected = format!("{numel} elements: {rows} rows of {heads} heads of {dim}");
        return Err(Error::argument(format!("{x}.shape"), expected, shape));
    }
    Ok(data)
}

impl Layer for DotProductAttention {
    fn arity(&self) -> (usize, usize) {
        (3, 1)
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved> {
        let AttentionConfig { heads, groups, dim_qk, dim_v, .. } = self.core.config;
        let [packed_q, packed_kv] = run.max_seqlen;
        let (q, length_q) = self.heads(&inputs.get(0)?, (heads, dim_qk), packed_q)?;
        let (k, length_kv) = self.heads(&inputs.get(1)?, (groups, dim_qk), packed_kv)?;
        let (v, _) = self.heads(&inputs.get(2)?, (groups, dim_v), packed_kv)?;
        self.check_dims(&q, &k, &v)?;
        let o = self.output(&outputs.get(0)?, &q)?;
        let layout = self.core.config.separate();
        let (parts, lengths) = ([&q, &k, &v], [length_q, length_kv]);
        let core = self.core.forward_to(run, layout, parts, &o, lengths, run.cu_seqlens.clone())?;
        Ok(Box::new(AttentionTape { core, q, k, v, o }))
    }

    fn backward(&mut self, run: &Run, tape: &Tape, [given, wanted]: [&Tensors; 2]) -> Result<()> {
        let tape: &AttentionTape = saved(tape)?;
        let d_o = self.output(&given.get(0)?, &tape.q)?;
        let inputs = [&tape.q, &tape.k, &tape.v];
        let mut scratch = Vec::new();
        let mut grads = Vec::new();
        for (i, input) in inputs.into_iter().enumerate() {
            let dtype = self.core.config.dtype;
            let (rows, cols) = input.rowwise.shape.flatten();
            let buffer = match wanted.find(i) {
                Some(grad) => rows_of_heads(&grad, dtype, rows, (1, cols))?,
                None => {
                    scratch.push(QTensor::plain(run, (rows, cols), dtype, Lifetime::Scratch)?);
                    scratch[scratch.len() - 1].tensor.rowwise
                }
            };
            grads.push(plain(Buffer::new(buffer.ptr(), buffer.dtype, input.rowwise.shape.dims())));
        }
        let grads = [&grads[0], &grads[1], &grads[2]];
        let outputs = [&tape.o, &d_o, &tape.core.stats.tensor];
        self.core.backward_to(run, &tape.core, inputs, outputs, grads, More::NONE).map(drop)
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        named("", &mut self.core.offset)
    }
}

pub struct MultiheadConfig {
    pub attention: AttentionConfig,
    /// What the config says of ranks.
    pub spread: Spread,
    pub hidden: usize,
    /// Norm in front of the first projection.
    pub norm: Option<NormConfig>,
    /// Keys and values come from a second input.
    pub cross: bool,
    pub bias: bool,
    pub rotary_interleaved: bool,
    pub deviations: [f32; 2],
    pub seeds: [u64; 3],
}

/// Projections to queries, keys and values, attention, and a projection back.
pub struct MultiheadAttention {
    core: Core,
    /// The name, unique in the context.
    name: String,
    hidden: usize,
    /// Heads of queries, and of keys and values, on all ranks together.
    pub all_heads: (usize, usize),
    rotary_interleaved: bool,
    /// Norms of the heads of queries and keys.
    norms: Option<[NormLayer; 2]>,
    /// Projection to queries, keys and values, or with a second input to the queries alone.
    first: Linear,
    key_value: Option<Linear>,
    proj: Linear,
    /// Prefixes of the parameters.
    names: [&'static str; 3],
}

/// Queries, keys and values: a tensor that holds them together, or each of its own.
struct Heads {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    _owners: Vec<QTensor>,
}

impl Heads {
    fn all(&self) -> [&Tensor; 3] {
        [&self.q, &self.k, &self.v]
    }
}

/// Tapes are boxed: they are large, and go through many frames of the stack.
pub struct MultiheadTape {
    first: Box<LinearTape>,
    key_value: Option<Box<LinearTape>>,
    heads: Heads,
    /// Tapes of the norms of queries and keys.
    norms: Option<[NormTape; 2]>,
    core: Box<CoreTape>,
    /// The attention's output; none if it is to be computed again.
    o: Option<QTensor>,
    proj: Box<LinearTape>,
    frequencies: Option<Tensor>,
    /// Where packed tokens begin.
    sequences: Option<Tensor>,
    /// Length, batch; and the length of the second input.
    sizes: [usize; 3],
}

impl MultiheadAttention {
    pub fn new(run: &Run, name: &str, config: &MultiheadConfig) -> Result<Self> {
        let (a, spread) = (config.attention, config.spread);
        let core = Core::new(run, a, &spread)?;
        if config.cross && core.ranks.is_some() {
            let expected = "1 (cross attention is on one rank alone)";
            let name = "config.attention.parallel.context_parallel_size";
            let error = Error::argument(name, expected, core.sequence_ranks());
            return Err(Error::unsupported(error.message));
        }
        let (q, kv) = (a.heads * a.dim_qk, 2 * a.groups * a.dim_qk);
        let (dtype, bias) = (a.dtype, config.bias);
        let dense = |inputs, outputs, which: usize| DenseConfig {
            spread,
            side: if which == 2 { Side::Row } else { Side::Column },
            blocks: 1,
            inputs,
            outputs,
            bias,
            dtype,
            deviation: config.deviations[which / 2],
            seed: config.seeds[which],
            names: ["weight", "bias"],
        };
        let norm = config.norm.as_ref();
        let names = match (config.cross, norm.is_some()) {
            (false, true) => ["layernorm_qkv.", "", "proj."],
            (false, false) => ["qkv.", "", "proj."],
            (true, true) => ["layernorm_query.", "key_value.", "proj."],
            (true, false) => ["query_layer.", "key_value.", "proj."],
        };
        let part = |i: usize| format!("{name}.{}", names[i].trim_end_matches('.'));
        let hidden = config.hidden;
        let first_outputs = if config.cross { q } else { q + kv };
        let first = Linear::new(run, &part(0), norm, &dense(hidden, first_outputs, 0))?;
        let key_value = match config.cross {
            true => Some(Linear::new(run, &part(1), None, &dense(hidden, kv, 1))?),
            false => None,
        };
        let mut proj = Linear::new(run, &part(2), None, &dense(q, hidden, 2))?;
        if a.checkpoint {
            proj.dense.again = Again::Input;
        }
        let norms = match a.norm {
            None => None,
            Some(norm) => {
                let (hidden, names) = (a.dim_qk, ["weight", "bias"]);
                let config = NormConfig { op: norm.op, hidden, dtype, names };
                let norms = [NormLayer::new(run, &config)?, NormLayer::new(run, &config)?];
                Some(norms.map(|norm| norm.of_parts(core.split.as_ref())))
            }
        };
        let (name, rotary_interleaved) = (name.to_owned(), config.rotary_interleaved);
        Ok(Self {
            core,
            name,
            norms,
            hidden,
            all_heads: (a.heads, a.groups),
            rotary_interleaved,
            first,
            key_value,
            proj,
            names,
        })
    }

    /// The ranks that have the other heads.
    fn split(&self) -> Option<&Split> {
        self.core.split.as_ref()
    }

    /// Length and batch of all rows, from those of this rank: ranks share the first dimension.
    fn whole_lengths(&self, [length, batch]: [usize; 2]) -> [usize; 2] {
        match self.core.config.format {
            NVTE_BSHD => [length, split::whole_rows(self.split(), batch)],
            _ => [split::whole_rows(self.split(), length), batch],
        }
    }

    /// Length and batch of a tensor of rows.
    fn lengths(&self, x: &Argument) -> Result<[usize; 2]> {
        let shape = x.tensor.rowwise.shape;
        match (self.core.config.format, shape.dims()) {
            (NVTE_SBHD, &[s, b, h]) | (NVTE_BSHD, &[b, s, h]) if h == self.hidden => Ok([s, b]),
            (NVTE_THD, &[t, h]) if h == self.hidden => Ok([t, 1]),
            (format, _) => {
                let order = match format {
                    NVTE_SBHD => "length, batch",
                    NVTE_THD => "tokens",
                    _ => "batch, length",
                };
                let expected = format!("[{order}, {}]", self.hidden);
                Err(Error::argument(format!("{x}.shape"), expected, shape))
            }
        }
    }

    /// The input's rows, checked: as a matrix, with length and batch.
    pub(super) fn input(&self, x: &Argument) -> Result<(Tensor, usize, [usize; 2])> {
        let (matrix, rows) = x.rows(self.core.config.dtype, self.hidden)?;
        Ok((matrix, rows, self.lengths(x)?))
    }

    /// Dimensions of `heads` heads in the format of this attention.
    fn dims(&self, [length, batch]: [usize; 2], heads: usize) -> Shape {
        let dim = self.core.config.dim_qk;
        match self.core.config.format {
            NVTE_SBHD => Shape::new(&[length, batch, heads, dim]),
            NVTE_THD => Shape::new(&[length, heads, dim]),
            _ => Shape::new(&[batch, length, heads, dim]),
        }
    }

    /// Zeros where attention leaves packed tokens of no sequence as they are: products read them all.
    fn clear(&self, run: &Run, tensor: &QTensor) -> Result<()> {
        match self.core.config.format {
            NVTE_THD => ops::zero(&tensor.tensor.rowwise, run.stream),
            _ => Ok(()),
        }
    }

    fn alone(&self, run: &Run, lengths: [usize; 2], heads: usize) -> Result<QTensor> {
        let config = &self.core.config;
        let shape = (lengths[0] * lengths[1], heads * config.dim_qk);
        let mut tensor = QTensor::plain(run, shape, config.dtype, Lifetime::Tape)?;
        tensor.tensor.rowwise.shape = self.dims(lengths, heads);
        Ok(tensor)
    }

    /// The `which`-th of the heads of each group of a packed tensor.
    fn part(&self, packed: &Tensor, lengths: [usize; 2], heads: usize, which: usize) -> Tensor {
        let config = &self.core.config;
        let at = which * config.dim_qk * config.dtype.bits() / 8;
        let ptr = packed.rowwise.ptr().wrapping_byte_add(at);
        plain(Buffer::new(ptr, config.dtype, self.dims(lengths, heads).dims()))
    }

    fn rope<'a>(
        &self,
        [length, batch]: [usize; 2],
        frequencies: Option<&'a Tensor>,
        starts: Option<&'a Tensor>,
        cu_seqlens: Option<&'a Tensor>,
    ) -> Result<QkvRope<'a>> {
        let AttentionConfig { heads, groups, dim_qk: d, format, .. } = self.core.config;
        let small = |n: usize| {
            i32::try_from(n).map_err(|_| Error::argument("inputs[0].shape", "sizes below 2^31", n))
        };
        let sequences = cu_seqlens.map_or(batch, |sums| sums.rowwise.shape.numel() - 1);
        let turned = frequencies.map_or(0, |f| f.rowwise.shape.flatten().1);
        if let Some(frequencies) = frequencies {
            // With a cache or packed tokens the number of rows is checked where they are used.
            let whole = length * self.core.sequence_ranks();
            let least = if starts.is_none() && cu_seqlens.is_none() { whole } else { 1 };
            let shape = frequencies.rowwise.shape;
            let good = matches!(shape.dims(), [rows, 1, 1, _] if *rows >= least);
            if !good || !turned.is_multiple_of(2) || turned > d {
                let expected = format!("[{least} or more, 1, 1, an even number up to {d}]");
                return Err(Error::argument("step.rotary_frequencies.shape", expected, shape));
            }
        }
        Ok(QkvRope {
            format,
            interleaved: self.rotary_interleaved,
            sizes: [small(length)?, small(sequences)?, small(groups)?, small(d)?, small(turned)?],
            split: [small(heads / groups * d)?, small(d)?, small(d)?],
            frequencies,
            starts,
            cu_seqlens,
            ranks: self.core.ranks.as_ref().map_or([1, 0], SequenceRanks::place),
        })
    }

    /// Whether queries, keys and values can stay together.
    fn stays_packed(&self, frequencies: Option<&Tensor>) -> bool {
        let config = &self.core.config;
        let alone = self.core.ranks.is_none();
        alone && config.heads == config.groups && frequencies.is_none() && config.norm.is_none()
    }

    fn packed_layout(&self) -> Layout {
        let group = if self.key_value.is_some() { NVTE_HD_H2D } else { NVTE_H3D };
        Layout { group, ..self.core.config.separate() }
    }

    /// Queries, keys and values on their own: turned, and normalized if there are norms.
    fn separated(
        &self,
        run: &Run,
        lengths: [usize; 2],
        rope: &QkvRope,
        packed: &Tensor,
    ) -> Result<(Heads, Option<[NormTape; 2]>)> {
        let AttentionConfig { heads, groups, norm, .. } = &self.core.config;
        let owners = vec![
            self.alone(run, lengths, *heads)?,
            self.alone(run, lengths, *groups)?,
            self.alone(run, lengths, *groups)?,
        ];
        let [q, k, v] = [0, 1, 2].map(|i| owners[i].tensor.clone());
        owners.iter().try_for_each(|owner| self.clear(run, owner))?;
        let heads = Heads { q, k, v, _owners: owners };
        if norm.is_some() {
            let (heads, tapes) = self.normed(run, lengths, rope, packed, heads)?;
            return Ok((heads, Some(tapes)));
        }
        rope.run(run, false, packed, heads.all())?;
        Ok((heads, None))
    }

    /// Writes y, plus `add`, and z = norm(x) if that is asked for. `memory` is the second input.
    pub fn forward_to(
        &mut self,
        run: &Run,
        (x, own_rows, lengths): (&Tensor, usize, [usize; 2]),
        memory: Option<(&Tensor, usize, [usize; 2])>,
        y: &Tensor,
        add: Option<&Tensor>,
        z: Option<&Tensor>,
    ) -> Result<Box<MultiheadTape>> {
        // Attention reads all rows, of which the input may have those of this rank.
        let rows = split::whole_rows(self.split(), own_rows);
        let lengths = self.whole_lengths(lengths);
        let memory = memory.map(|(memory, rows, own)| (memory, rows, self.whole_lengths(own)));
        let AttentionConfig { heads, groups, dtype, dim_qk, .. } = self.core.config;
        let cross = self.key_value.is_some();
        // Cumulative lengths of the queries and, if there is no second input, of the keys.
        let cu_seqlens = match (cross, &run.cu_seqlens) {
            (true, lengths) => lengths.clone(),
            (false, [q, _, padded, _]) => [q.clone(), q.clone(), padded.clone(), padded.clone()],
        };
        let thd = self.core.config.format == NVTE_THD;
        let frequencies = run.frequencies.clone().filter(|_| !cross);
        let shape = (rows, self.first.dense.outputs);
        let packed = QTensor::plain(run, shape, dtype, Lifetime::Tape)?;
        let first = self.first.forward_to(run, (x, own_rows), &packed.tensor, None, z)?;
        let mut length_kv = lengths[0];
        let mut layout = self.packed_layout();
        let cache = run.kv_cache.as_deref().filter(|_| !cross);
        if let Some(cache) = cache {
            cache.check(lengths, thd, frequencies.as_ref())?;
        }
        let sequences = match thd {
            true => {
                Some(self.sequences(run, cache, &cu_seqlens, frequencies.as_ref(), lengths[0])?)
            }
            false => None,
        };
        let stays_packed = self.stays_packed(frequencies.as_ref()) && cache.is_none();
        let (mut key_value, mut norms, part) = (None, None, &packed.tensor);
        let tensors = match (&mut self.key_value, memory) {
            (Some(linear), Some((memory, rows_kv, lengths_kv))) => {
                if lengths_kv[1] != lengths[1] {
                    let expected = format!("a batch of {}, as inputs[0]", lengths[1]);
                    return Err(Error::argument("inputs[1].shape", expected, lengths_kv[1]));
                }
                length_kv = lengths_kv[0];
                let shape = (linear.dense.output_rows(rows_kv)?, linear.dense.outputs);
                let kv = QTensor::plain(run, shape, dtype, Lifetime::Tape)?;
                key_value =
                    Some(linear.forward_to(run, (memory, rows_kv), &kv.tensor, None, None)?);
                Heads {
                    q: self.part(part, lengths, heads, 0),
                    k: self.part(&kv.tensor, lengths_kv, groups, 0),
                    v: self.part(&kv.tensor, lengths_kv, groups, 1),
                    _owners: vec![packed, kv],
                }
            }
            (Some(_), None) => {
                return Err(Error::argument("inputs[1]", "a tensor handle", "null"));
            }
            (None, Some(_)) => {
                return Err(Error::argument("inputs[1]", "null (self attention)", "a tensor"));
            }
            (None, None) if stays_packed => Heads {
                q: self.part(part, lengths, heads, 0),
                k: self.part(part, lengths, heads, 1),
                v: self.part(part, lengths, heads, 2),
                _owners: vec![packed],
            },
            (None, None) => {
                layout = self.core.config.separate();
                let starts = cache.map(|cache| cache.starts());
                let sums = sequences.as_ref();
                let rope = self.rope(lengths, frequencies.as_ref(), starts.as_ref(), sums)?;
                let (heads, tapes) = self.separated(run, lengths, &rope, part)?;
                norms = tapes;
                heads
            }
        };
        let o = QTensor::plain(run, (rows, heads * dim_qk), dtype, Lifetime::Tape)?;
        self.clear(run, &o)?;
        let shaped = self.part(&o.tensor, lengths, heads, 0);
        // Of packed tokens the longest sequence is that of all ranks.
        let shared = if thd { self.core.sequence_ranks() } else { 1 };
        let longest = |all: usize, said: usize| if thd && said > 0 { said } else { all * shared };
        let max_seqlen = [
            longest(lengths[0], run.max_seqlen[0]),
            longest(length_kv, run.max_seqlen[cross as usize]),
        ];
        let mut core = match cache {
            None => {
                self.core.forward_to(run, layout, tensors.all(), &shaped, max_seqlen, cu_seqlens)?
            }
            Some(cache) => {
                let length = if thd { cache.new_tokens().1.max(1) } else { lengths[0] };
                let place = (self.core.config.format, length);
                let cached = cache.append(run, &self.name, [&tensors.k, &tensors.v], place)?;
                self.core.forward_cached(run, (&tensors.q, length), &cached, &shaped)?
            }
        };
        let proj = self.proj.forward_to(run, (&o.tensor, rows), y, add, None)?;
        let sizes = [lengths[0], lengths[1], length_kv];
        let mut o = Some(o);
        if self.core.config.checkpoint {
            (o, core.stats) = (None, QTensor::borrowed(plain(Buffer::UNSET)));
        }
        let mut heads = tensors;
        if core.fp8.is_some() && norms.is_none() {
            // Nobody reads the separate queries, keys and values again.
            heads._owners.clear();
        }
        let tape = MultiheadTape {
            first,
            key_value,
            heads,
            norms,
            core,
            o,
            proj,
            frequencies,
            sequences,
            sizes,
        };
        Ok(Box::new(tape))
    }

    /// The sums of lengths from which packed tokens are counted.
    fn sequences(
        &self,
        run: &Run,
        cache: Option<&KvCache>,
        [sums, _, padded, _]: &[Option<Tensor>; 4],
        frequencies: Option<&Tensor>,
        tokens: usize,
    ) -> Result<Tensor> {
        if let Some(cache) = cache {
            return Ok(cache.new_tokens().0);
        }
        let Some(sums) = sums else {
            let expected = "Int32 [b + 1] (the format is NVTE_THD)";
            return Err(Error::argument("step.cu_seqlens_q", expected, "null"));
        };
        let least = match (padded, run.max_seqlen[0]) {
            (None, longest) if longest > 0 => longest,
            _ => tokens * self.core.sequence_ranks(),
        };
        if let Some(frequencies) = frequencies {
            let shape = frequencies.rowwise.shape;
            if shape.flatten().0 < least {
                let name = "step.rotary_frequencies.shape";
                return Err(Error::argument(name, format!("{least} rows or more"), shape));
            }
        }
        let (name, sums) = match padded {
            Some(padded) => ("step.cu_seqlens_q_padded.shape", padded),
            None => ("step.cu_seqlens_q.shape", sums),
        };
        if sums.rowwise.shape.numel() == 0 {
            return Err(Error::argument(name, "[b + 1]", sums.rowwise.shape));
        }
        Ok(sums.clone())
    }

    /// Splits a packed tensor, with norms of queries and keys in front of the turns or behind them.
    fn normed(
        &self,
        run: &Run,
        lengths: [usize; 2],
        rope: &QkvRope,
        packed: &Tensor,
        mut raw: Heads,
    ) -> Result<(Heads, [NormTape; 2])> {
        let (Some([q_norm, k_norm]), Some(norm)) = (&self.norms, self.core.config.norm) else {
            return Err(Error::argument("config.qk_norm_type", "a norm", "none"));
        };
        let split = QkvRope { frequencies: None, ..*rope };
        if norm.before_rope { &split } else { rope }.run(run, false, packed, raw.all())?;
        let AttentionConfig { heads, groups, .. } = self.core.config;
        let apply = |layer: &NormLayer, x: &Tensor, heads: usize| -> Result<(QTensor, NormTape)> {
            let out = self.alone(run, lengths, heads)?;
            let rows = lengths[0] * lengths[1] * heads;
            let tape = layer.tape(run, &matrix(x, (rows, layer.hidden)), rows)?;
            layer.write(run, &tape, &matrix(&out.tensor, (rows, layer.hidden)))?;
            if norm.before_rope {
                rope.turn(run, false, heads, &out.tensor)?;
            }
            Ok((out, tape))
        };
        let (q, q_tape) = apply(q_norm, &raw.q, heads)?;
        let (k, k_tape) = apply(k_norm, &raw.k, groups)?;
        (raw.q, raw.k) = (q.tensor.clone(), k.tensor.clone());
        raw._owners.extend([q, k]);
        Ok((raw, [q_tape, k_tape]))
    }

    /// The gradient of [`Self::normed`]; those of queries, keys and values change.
    fn normed_backward(
        &self,
        run: &Run,
        rope: &QkvRope,
        tapes: &[NormTape; 2],
        packed: &Tensor,
        grads: [&Tensor; 3],
    ) -> Result<()> {
        let (Some(layers), Some(norm)) = (&self.norms, self.core.config.norm) else {
            return Err(Error::argument("config.qk_norm_type", "a norm", "none"));
        };
        let AttentionConfig { heads, groups, dtype, .. } = self.core.config;
        let mut raw = Vec::new();
        for (i, heads) in [heads, groups].into_iter().enumerate() {
            if norm.before_rope {
                rope.turn(run, true, heads, grads[i])?;
            }
            let (layer, shape) = (&layers[i], grads[i].rowwise.shape);
            let flat = (shape.numel() / layer.hidden, layer.hidden);
            let mut dx = QTensor::plain(run, flat, dtype, Lifetime::Scratch)?;
            layer.backward_to(run, &tapes[i], &matrix(grads[i], flat), None, Some(&dx.tensor))?;
            dx.tensor.rowwise.shape = shape;
            raw.push(dx);
        }
        let split = QkvRope { frequencies: None, ..*rope };
        let parts = [&raw[0].tensor, &raw[1].tensor, grads[2]];
        if norm.before_rope { &split } else { rope }.run(run, true, packed, parts)
    }

    /// Gradients; `dz` and `add` as in `Linear`, `dmemory` is that of the second input.
    #[allow(clippy::too_many_arguments)]
    pub fn backward_to(
        &mut self,
        run: &Run,
        tape: &MultiheadTape,
        dy: &Grad,
        dz: Option<&Tensor>,
        add: Option<&Tensor>,
        dx: Option<&Tensor>,
        dmemory: Option<&Tensor>,
    ) -> Result<()> {
        let AttentionConfig { heads, groups, dtype, dim_qk, .. } = self.core.config;
        let [length, batch, length_kv] = tape.sizes;
        let (lengths, rows) = ([length, batch], length * batch);
        let scratch = |shape| QTensor::plain(run, shape, dtype, Lifetime::Scratch);
        let again;
        let (o, stats, proj) = match &tape.o {
            Some(o) => (o, &tape.core.stats, &tape.proj),
            None => {
                let o = scratch((rows, heads * dim_qk))?;
                self.clear(run, &o)?;
                let shaped = self.part(&o.tensor, lengths, heads, 0);
                let parts = tape.heads.all();
                let stats = self.core.forward_again(run, &tape.core, parts, &shaped)?;
                let proj = self.proj.forward_again(run, &tape.proj, &o.tensor)?;
                again = (o, stats, proj);
                (&again.0, &again.1, &again.2)
            }
        };
        let d_o = scratch((rows, heads * dim_qk))?;
        self.proj.backward_to(run, proj, dy, None, None, Some(&d_o.tensor))?;
        let mut packed = scratch((rows, self.first.dense.outputs))?;
        self.clear(run, &packed)?;
        let [o, d_o] = [o, &d_o].map(|t| self.part(&t.tensor, lengths, heads, 0));
        let outputs = [&o, &d_o, &stats.tensor];
        let whole = &packed.tensor.clone();
        let mut sums = None;
        if let Some(key_value) = &tape.key_value {
            let kv = scratch((length_kv * batch, 2 * groups * dim_qk))?;
            self.clear(run, &kv)?;
            let dq = self.part(whole, lengths, heads, 0);
            let lengths_kv = [length_kv, batch];
            let [dk, dv] = [0, 1].map(|which| self.part(&kv.tensor, lengths_kv, groups, which));
            let grads = [&dq, &dk, &dv];
            self.core.backward_to(run, &tape.core, tape.heads.all(), outputs, grads, More::NONE)?;
            if let Some(linear) = &mut self.key_value {
                linear.backward_to(
                    run,
                    key_value,
                    &Grad::Ready(&kv.tensor),
                    None,
                    None,
                    dmemory,
                )?;
            }
        } else if self.stays_packed(tape.frequencies.as_ref()) {
            let [dq, dk, dv] = [0, 1, 2].map(|which| self.part(whole, lengths, heads, which));
            let grads = [&dq, &dk, &dv];
            // What attention adds up on its way is the gradient of the bias before it.
            let own = self.first.grad_sums(run, &tape.first)?;
            let mut more = More::NONE;
            if self.core.ranks.is_none() {
                more.sums = own.as_ref().map(|sums| &sums.tensor);
                if self.first.scales_grad(&tape.first) {
                    more.amax = Some(packed.add_amax(run)?);
                }
            }
            let parts = tape.heads.all();
            if self.core.backward_to(run, &tape.core, parts, outputs, grads, more)? {
                sums = own;
            } else {
                packed.tensor.amax = Buffer::UNSET;
            }
        } else {
            let parts = [
                self.alone(run, lengths, heads)?,
                self.alone(run, lengths, groups)?,
                self.alone(run, lengths, groups)?,
            ];
            parts.iter().try_for_each(|part| self.clear(run, part))?;
            let grads = [&parts[0].tensor, &parts[1].tensor, &parts[2].tensor];
            self.core.backward_to(run, &tape.core, tape.heads.all(), outputs, grads, More::NONE)?;
            let sequences = tape.sequences.as_ref();
            let rope = self.rope(lengths, tape.frequencies.as_ref(), None, sequences)?;
            match &tape.norms {
                None => {
                    if self.first.scales_grad(&tape.first) {
                        packed.add_amax(run)?;
                    }
                    rope.run(run, true, &packed.tensor, grads)?;
                }
                Some(norms) => self.normed_backward(run, &rope, norms, whole, grads)?,
            }
        }
        let grad = match &sums {
            Some(sums) => Grad::Summed(&packed.tensor, Some(sums)),
            None => Grad::Ready(&packed.tensor),
        };
        self.first.backward_to(run, &tape.first, &grad, dz, add, dx)
    }

    /// As [`Linear::grad_sums`].
    pub fn grad_sums(&self, run: &Run, tape: &MultiheadTape) -> Result<Option<QTensor>> {
        self.proj.grad_sums(run, &tape.proj)
    }

    /// Parameters with a prefix.
    pub fn all_parameters(&mut self, prefix: &str) -> Vec<(String, &mut Parameter)> {
        let l2 = self.core.config.norm.is_some_and(|norm| norm.l2);
        let Self { first, key_value, core, norms, proj, names, .. } = self;
        let mut all = named(&format!("{prefix}{}", names[0]), first.parts());
        if let Some(linear) = key_value {
            all.extend(named(&format!("{prefix}{}", names[1]), linear.parts()));
        }
        if let (Some([q, k]), false) = (norms, l2) {
            all.extend(named(&format!("{prefix}q_norm."), q.parts()));
            all.extend(named(&format!("{prefix}k_norm."), k.parts()));
        }
        all.extend(named(&format!("{prefix}core_attention."), &mut core.offset));
        all.extend(named(&format!("{prefix}{}", names[2]), proj.parts()));
        all
    }
}

impl Layer for MultiheadAttention {
    fn arity(&self) -> (usize, usize) {
        (2, 1)
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved> {
        let (x, rows, lengths) = self.input(&inputs.get(0)?)?;
        let memory = inputs.find(1).map(|memory| self.input(&memory)).transpose()?;
        if self.key_value.is_some() && run.kv_cache.is_some() {
            return Err(Error::argument(
                "step.kv_cache",
                "null (cross attention has no cache)",
                "a cache",
            ));
        }
        let shape = (rows, self.hidden);
        let y = outputs.get(0)?.matrix(self.core.config.dtype, shape)?;
        let memory = memory.as_ref().map(|(memory, rows, lengths)| (memory, *rows, *lengths));
        Ok(self.forward_to(run, (&x, rows, lengths), memory, &y, None, None)?)
    }

    fn backward(&mut self, run: &Run, tape: &Tape, [given, wanted]: [&Tensors; 2]) -> Result<()> {
        let tape: &MultiheadTape = saved(tape)?;
        let dtype = self.core.config.dtype;
        let [length, batch, length_kv] = tape.sizes;
        let own = |rows: usize| (split::own_rows(self.split(), rows), self.hidden);
        let shape = own(length * batch);
        let dy = given.get(0)?.matrix(dtype, shape)?;
        let dx = wanted.find_matrix(0, dtype, shape)?;
        let shape = own(length_kv * batch);
        let dmemory = wanted.find_matrix(1, dtype, shape)?;
        let dy = Grad::Ready(&dy);
        self.backward_to(run, tape, &dy, None, None, dx.as_ref(), dmemory.as_ref())
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        self.all_parameters("")
    }
}
