//! `DotProductAttention` and `MultiheadAttention` (spec: modules, sections 12 and 14).

use super::context::Run;
use super::dense::DenseConfig;
use super::linear::{Linear, LinearTape};
use super::memory::Lifetime;
use super::norm::NormConfig;
use super::ops::{self, AttentionTensors, QkvRope, plain};
use super::parameter::{Init, Parameter};
use super::quantizer::QTensor;
use super::{Layer, Saved, Tensors, matrix_of, named, saved};
use crate::check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTE_QKV_Format::*;
use crate::types::NVTE_QKV_Layout::*;
use crate::types::NVTE_Softmax_Type::*;
use crate::types::NVTEDType::{self, *};
use crate::types::*;
use std::any::Any;

#[derive(Clone, Copy)]
pub struct AttentionConfig {
    pub heads: usize,
    pub groups: usize,
    pub dim_qk: usize,
    pub dim_v: usize,
    /// Of the probabilities.
    pub dropout: f32,
    /// Sequence first, batch first, or packed tokens.
    pub format: NVTE_QKV_Format,
    pub mask: NVTE_Mask_Type,
    pub window: [i64; 2],
    pub bottom_right: bool,
    pub softmax: NVTE_Softmax_Type,
    /// Of the scores; 0: `1 / sqrt(dim_qk)`.
    pub scale: f32,
    pub dtype: NVTEDType,
    /// Where the dropout begins in a call's sequence of random numbers.
    pub site: u32,
}

impl AttentionConfig {
    fn check(&self) -> Result<()> {
        let refuse = |field: &str, expected: &str, got: &dyn std::fmt::Display| {
            Err(Error::argument(format!("config.{field}"), expected, got))
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
        if !self.scale.is_finite() {
            return refuse("softmax_scale", "a finite number", &self.scale);
        }
        Ok(())
    }

    fn scale(&self) -> f32 {
        if self.scale == 0.0 { 1.0 / (self.dim_qk as f32).sqrt() } else { self.scale }
    }

    /// Queries, keys and values in tensors of their own.
    fn separate(&self) -> NVTE_QKV_Layout {
        match self.format {
            NVTE_SBHD => NVTE_SBHD_SBHD_SBHD,
            NVTE_THD => NVTE_THD_THD_THD,
            _ => NVTE_BSHD_BSHD_BSHD,
        }
    }
}

/// An attention with its parameter, the softmax's offset.
pub struct Core {
    config: AttentionConfig,
    offset: Option<Parameter>,
}

/// What both passes of an attention know, beside q, k, v and o.
pub struct CoreTape {
    op: ops::Attention,
    cu_seqlens: [Option<Tensor>; 4],
    rng_state: Option<QTensor>,
    stats: QTensor,
}

impl Core {
    pub fn new(run: &Run, config: AttentionConfig) -> Result<Self> {
        config.check()?;
        let offset = match config.softmax {
            NVTE_LEARNABLE_SOFTMAX => {
                let (name, dims) = ("softmax_offset", [config.heads]);
                Some(Parameter::new(run, name, &dims, kNVTEFloat32, Init::Constant(0.0), None)?)
            }
            _ => None,
        };
        Ok(Self { config, offset })
    }

    /// q, k, v and o as the layout has them.
    fn forward_to(
        &self,
        run: &Run,
        layout: NVTE_QKV_Layout,
        [q, k, v]: [&Tensor; 3],
        o: &Tensor,
        max_seqlen: [usize; 2],
        cu_seqlens: [Option<Tensor>; 4],
    ) -> Result<CoreTape> {
        let config = &self.config;
        let dropout = if run.training { config.dropout } else { 0.0 };
        let op = ops::Attention {
            layout,
            mask: config.mask,
            window: config.window,
            bottom_right: config.bottom_right,
            softmax: config.softmax,
            dropout,
            scale: config.scale(),
            max_seqlen,
        };
        let rng_state = if dropout > 0.0 { Some(run.random(config.site)?) } else { None };
        let tensors = AttentionTensors {
            q,
            k,
            v,
            cu_seqlens: &cu_seqlens,
            softmax_offset: self.offset.as_ref().map(|offset| &offset.value.tensor),
            rng_state: rng_state.as_ref().map(|state| &state.tensor),
        };
        let stats = op.forward(run, &tensors, o)?;
        Ok(CoreTape { op, cu_seqlens, rng_state, stats })
    }

    fn backward_to(
        &self,
        run: &Run,
        tape: &CoreTape,
        [q, k, v]: [&Tensor; 3],
        [o, d_o]: [&Tensor; 2],
        grads: [&Tensor; 3],
    ) -> Result<()> {
        let tensors = AttentionTensors {
            q,
            k,
            v,
            cu_seqlens: &tape.cu_seqlens,
            softmax_offset: self.offset.as_ref().map(|offset| &offset.value.tensor),
            rng_state: tape.rng_state.as_ref().map(|state| &state.tensor),
        };
        let offset = self.offset.as_ref().filter(|offset| offset.grad.is_some());
        let doffset = offset.map(|offset| offset.landing(run, kNVTEFloat32)).transpose()?;
        let sums = doffset.as_ref().map(|landed| &landed.tensor);
        tape.op.backward(run, &tensors, [o, d_o, &tape.stats.tensor], grads, sums)?;
        match (offset, &doffset) {
            (Some(offset), Some(landed)) => offset.deposit(run, landed),
            _ => Ok(()),
        }
    }
}

/// `softmax(scale q k^T) v` of three inputs.
pub struct DotProductAttention {
    core: Core,
}

struct AttentionTape {
    core: CoreTape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
}

impl DotProductAttention {
    pub fn new(run: &Run, config: AttentionConfig) -> Result<Self> {
        Ok(Self { core: Core::new(run, config)? })
    }

    /// A tensor of heads, and the length of its sequences (packed tokens: what the step says).
    fn heads(
        &self,
        name: &str,
        tensor: Option<&Tensor>,
        (heads, dim): (usize, usize),
        packed: usize,
    ) -> Result<(Tensor, usize)> {
        let Some(tensor) = tensor else {
            return Err(Error::argument(name, "a tensor handle", "null"));
        };
        check::input(name, tensor)?;
        check::dtype(name, tensor.dtype(), &[self.core.config.dtype])?;
        let shape = tensor.rowwise.shape;
        let length = match (self.core.config.format, shape.dims()) {
            (NVTE_THD, &[_, h, d]) if (h, d) == (heads, dim) => Some(packed),
            (NVTE_SBHD, &[s, _, h, d]) if (h, d) == (heads, dim) => Some(s),
            (NVTE_BSHD, &[_, s, h, d]) if (h, d) == (heads, dim) => Some(s),
            _ => None,
        };
        match length.filter(|_| shape.numel() > 0) {
            Some(length) => Ok((plain(tensor.rowwise), length)),
            None => {
                let expected = format!("{:?} with {heads} heads of {dim}", self.core.config.format);
                Err(Error::argument(format!("{name}.shape"), expected, shape))
            }
        }
    }

    /// An output like the queries, with heads as a dimension of their own or not.
    fn output(&self, name: &str, tensor: Option<&Tensor>, q: &Tensor) -> Result<Tensor> {
        let config = &self.core.config;
        let mut dims = q.rowwise.shape.dims().to_vec();
        let last = dims.len() - 1;
        dims[last] = config.dim_v;
        let rows = dims[..last - 1].iter().product();
        let flat = matrix_of_heads(name, tensor, config.dtype, rows, (config.heads, config.dim_v))?;
        Ok(plain(Buffer::new(flat.ptr(), flat.dtype, &dims)))
    }
}

/// Data of `rows` rows of heads, in whatever shape.
fn matrix_of_heads(
    name: &str,
    tensor: Option<&Tensor>,
    dtype: NVTEDType,
    rows: usize,
    (heads, dim): (usize, usize),
) -> Result<Buffer> {
    let Some(tensor) = tensor else {
        return Err(Error::argument(name, "a tensor handle", "null"));
    };
    check::input(name, tensor)?;
    check::dtype(name, tensor.dtype(), &[dtype])?;
    let (shape, numel) = (tensor.rowwise.shape, rows * heads * dim);
    if shape.numel() != numel {
        let expected = format!("{numel} elements: {rows} rows of {heads} heads of {dim}");
        return Err(Error::argument(format!("{name}.shape"), expected, shape));
    }
    Ok(tensor.rowwise)
}

impl Layer for DotProductAttention {
    fn arity(&self) -> (usize, usize) {
        (3, 1)
    }

    fn forward(&mut self, run: &Run, inputs: Tensors, outputs: Tensors) -> Result<Saved> {
        let AttentionConfig { heads, groups, dim_qk, dim_v, .. } = self.core.config;
        let [packed_q, packed_kv] = run.max_seqlen;
        let (q, length_q) =
            self.heads("inputs[0]", inputs[0].as_ref(), (heads, dim_qk), packed_q)?;
        let (k, length_kv) =
            self.heads("inputs[1]", inputs[1].as_ref(), (groups, dim_qk), packed_kv)?;
        let (v, _) = self.heads("inputs[2]", inputs[2].as_ref(), (groups, dim_v), packed_kv)?;
        let o = self.output("outputs[0]", outputs[0].as_ref(), &q)?;
        let layout = self.core.config.separate();
        let (parts, lengths) = ([&q, &k, &v], [length_q, length_kv]);
        let core = self.core.forward_to(run, layout, parts, &o, lengths, run.cu_seqlens.clone())?;
        Ok(Box::new(AttentionTape { core, q, k, v, o }))
    }

    fn backward(
        &mut self,
        run: &Run,
        tape: &(dyn Any + Send),
        grad_outputs: Tensors,
        grad_inputs: Tensors,
    ) -> Result<()> {
        let tape: &AttentionTape = saved(tape)?;
        let d_o = self.output("grad_outputs[0]", grad_outputs[0].as_ref(), &tape.q)?;
        let inputs = [&tape.q, &tape.k, &tape.v];
        let mut scratch = Vec::new();
        let mut grads = Vec::new();
        for (i, input) in inputs.into_iter().enumerate() {
            let name = format!("grad_inputs[{i}]");
            let (rows, cols) = input.rowwise.shape.flatten();
            let buffer = match &grad_inputs[i] {
                Some(grad) => {
                    let dtype = self.core.config.dtype;
                    matrix_of_heads(&name, Some(grad), dtype, rows, (1, cols))?
                }
                None => {
                    let dtype = self.core.config.dtype;
                    scratch.push(QTensor::plain(run, (rows, cols), dtype, Lifetime::Scratch)?);
                    scratch[scratch.len() - 1].tensor.rowwise
                }
            };
            grads.push(plain(Buffer::new(buffer.ptr(), buffer.dtype, input.rowwise.shape.dims())));
        }
        let grads = [&grads[0], &grads[1], &grads[2]];
        self.core.backward_to(run, &tape.core, inputs, [&tape.o, &d_o], grads)
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        named("", &mut self.core.offset)
    }
}

pub struct MultiheadConfig {
    pub attention: AttentionConfig,
    pub hidden: usize,
    /// In front of the first projection.
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
    hidden: usize,
    rotary_interleaved: bool,
    /// To all three, or to the queries alone.
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

pub struct MultiheadTape {
    first: LinearTape,
    key_value: Option<LinearTape>,
    heads: Heads,
    core: CoreTape,
    o: QTensor,
    proj: LinearTape,
    frequencies: Option<Tensor>,
    /// Length, batch; and the length of the second input.
    sizes: [usize; 3],
}

impl MultiheadAttention {
    pub fn new(run: &Run, name: &str, config: &MultiheadConfig) -> Result<Self> {
        let a = config.attention;
        let core = Core::new(run, a)?;
        let (q, kv) = (a.heads * a.dim_qk, 2 * a.groups * a.dim_qk);
        let (dtype, bias) = (a.dtype, config.bias);
        let dense = |inputs, outputs, which: usize| DenseConfig {
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
        let proj = Linear::new(run, &part(2), None, &dense(q, hidden, 2))?;
        let rotary_interleaved = config.rotary_interleaved;
        Ok(Self { core, hidden, rotary_interleaved, first, key_value, proj, names })
    }

    /// Length and batch of a tensor of rows.
    fn lengths(&self, name: &str, tensor: &Tensor) -> Result<[usize; 2]> {
        let shape = tensor.rowwise.shape;
        match (self.core.config.format, shape.dims()) {
            (NVTE_SBHD, &[s, b, h]) | (NVTE_BSHD, &[b, s, h]) if h == self.hidden => Ok([s, b]),
            (format, _) => {
                let order = if format == NVTE_SBHD { "length, batch" } else { "batch, length" };
                let expected = format!("[{order}, {}]", self.hidden);
                Err(Error::argument(format!("{name}.shape"), expected, shape))
            }
        }
    }

    /// The input's rows, checked: as a matrix, with length and batch.
    pub fn input(
        &self,
        name: &str,
        tensor: Option<&Tensor>,
    ) -> Result<(Tensor, usize, [usize; 2])> {
        let dtype = self.core.config.dtype;
        let (matrix, rows) = super::rows_of(name, tensor, dtype, self.hidden)?;
        let lengths = tensor.map(|tensor| self.lengths(name, tensor)).transpose()?;
        Ok((matrix, rows, lengths.unwrap_or_default()))
    }

    /// Dimensions of heads in the format.
    fn dims(&self, [length, batch]: [usize; 2], heads: usize) -> [usize; 4] {
        let dim = self.core.config.dim_qk;
        match self.core.config.format {
            NVTE_SBHD => [length, batch, heads, dim],
            _ => [batch, length, heads, dim],
        }
    }

    fn alone(&self, run: &Run, lengths: [usize; 2], heads: usize) -> Result<QTensor> {
        let config = &self.core.config;
        let shape = (lengths[0] * lengths[1], heads * config.dim_qk);
        let mut tensor = QTensor::plain(run, shape, config.dtype, Lifetime::Tape)?;
        tensor.tensor.rowwise.shape = Shape::new(&self.dims(lengths, heads));
        Ok(tensor)
    }

    /// The `which`-th of the heads of each group of a packed tensor.
    fn part(&self, packed: &Tensor, lengths: [usize; 2], heads: usize, which: usize) -> Tensor {
        let config = &self.core.config;
        let at = which * config.dim_qk * config.dtype.bits() / 8;
        let ptr = packed.rowwise.ptr().wrapping_byte_add(at);
        plain(Buffer::new(ptr, config.dtype, &self.dims(lengths, heads)))
    }

    fn rope<'a>(
        &self,
        [length, batch]: [usize; 2],
        frequencies: Option<&'a Tensor>,
    ) -> Result<QkvRope<'a>> {
        let AttentionConfig { heads, groups, dim_qk: d, format, .. } = self.core.config;
        let small = |n: usize| {
            i32::try_from(n).map_err(|_| Error::argument("inputs[0].shape", "sizes below 2^31", n))
        };
        let turned = frequencies.map_or(0, |f| f.rowwise.shape.flatten().1);
        Ok(QkvRope {
            format,
            interleaved: self.rotary_interleaved,
            sizes: [small(length)?, small(batch)?, small(groups)?, small(d)?, small(turned)?],
            split: [small(heads / groups * d)?, small(d)?, small(d)?],
            frequencies,
        })
    }

    /// Whether queries, keys and values can stay together.
    fn stays_packed(&self, frequencies: Option<&Tensor>) -> bool {
        self.core.config.heads == self.core.config.groups && frequencies.is_none()
    }

    fn packed_layout(&self) -> NVTE_QKV_Layout {
        match (self.core.config.format, self.key_value.is_some()) {
            (NVTE_SBHD, false) => NVTE_SBH3D,
            (NVTE_SBHD, true) => NVTE_SBHD_SBH2D,
            (_, false) => NVTE_BSH3D,
            (_, true) => NVTE_BSHD_BSH2D,
        }
    }

    /// Writes y, plus `add`, and z = norm(x) if that is asked for. `memory` is the second input.
    pub fn forward_to(
        &mut self,
        run: &Run,
        (x, rows, lengths): (&Tensor, usize, [usize; 2]),
        memory: Option<(&Tensor, usize, [usize; 2])>,
        y: &Tensor,
        add: Option<&Tensor>,
        z: Option<&Tensor>,
    ) -> Result<MultiheadTape> {
        let AttentionConfig { heads, groups, dtype, dim_qk, .. } = self.core.config;
        let cross = self.key_value.is_some();
        // Of the queries and, if there is no second input, of the keys.
        let cu_seqlens = match (cross, &run.cu_seqlens) {
            (true, lengths) => lengths.clone(),
            (false, [q, _, padded, _]) => [q.clone(), q.clone(), padded.clone(), padded.clone()],
        };
        let frequencies = run.frequencies.clone().filter(|_| !cross);
        let shape = (rows, self.first.dense.outputs);
        let packed = QTensor::plain(run, shape, dtype, Lifetime::Tape)?;
        let first = self.first.forward_to(run, (x, rows), &packed.tensor, None, z)?;
        let mut length_kv = lengths[0];
        let mut layout = self.packed_layout();
        let stays_packed = self.stays_packed(frequencies.as_ref());
        let (mut key_value, part) = (None, &packed.tensor);
        let tensors = match (&mut self.key_value, memory) {
            (Some(linear), Some((memory, rows_kv, lengths_kv))) => {
                if lengths_kv[1] != lengths[1] {
                    let expected = format!("a batch of {}, as inputs[0]", lengths[1]);
                    return Err(Error::argument("inputs[1].shape", expected, lengths_kv[1]));
                }
                length_kv = lengths_kv[0];
                let shape = (rows_kv, linear.dense.outputs);
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
                let owners = vec![
                    self.alone(run, lengths, heads)?,
                    self.alone(run, lengths, groups)?,
                    self.alone(run, lengths, groups)?,
                ];
                let [q, k, v] = [0, 1, 2].map(|i| owners[i].tensor.clone());
                let rope = self.rope(lengths, frequencies.as_ref())?;
                rope.run(run, false, part, [&q, &k, &v])?;
                Heads { q, k, v, _owners: owners }
            }
        };
        let o = QTensor::plain(run, (rows, heads * dim_qk), dtype, Lifetime::Tape)?;
        let shaped = self.part(&o.tensor, lengths, heads, 0);
        let max_seqlen = [lengths[0], length_kv];
        let core =
            self.core.forward_to(run, layout, tensors.all(), &shaped, max_seqlen, cu_seqlens)?;
        let proj = self.proj.forward_to(run, (&o.tensor, rows), y, add, None)?;
        let sizes = [lengths[0], lengths[1], length_kv];
        Ok(MultiheadTape { first, key_value, heads: tensors, core, o, proj, frequencies, sizes })
    }

    /// Gradients; `dz` and `add` as in `Linear`, `dmemory` is that of the second input.
    #[allow(clippy::too_many_arguments)]
    pub fn backward_to(
        &mut self,
        run: &Run,
        tape: &MultiheadTape,
        dy: &Tensor,
        dz: Option<&Tensor>,
        add: Option<&Tensor>,
        dx: Option<&Tensor>,
        dmemory: Option<&Tensor>,
    ) -> Result<()> {
        let AttentionConfig { heads, groups, dtype, dim_qk, .. } = self.core.config;
        let [length, batch, length_kv] = tape.sizes;
        let (lengths, rows) = ([length, batch], length * batch);
        let scratch = |shape| QTensor::plain(run, shape, dtype, Lifetime::Scratch);
        let d_o = scratch((rows, heads * dim_qk))?;
        self.proj.backward_to(run, &tape.proj, dy, None, None, Some(&d_o.tensor))?;
        let packed = scratch((rows, self.first.dense.outputs))?;
        let [o, d_o] = [&tape.o, &d_o].map(|t| self.part(&t.tensor, lengths, heads, 0));
        let outputs = [&o, &d_o];
        let whole = &packed.tensor;
        if let Some(key_value) = &tape.key_value {
            let kv = scratch((length_kv * batch, 2 * groups * dim_qk))?;
            let dq = self.part(whole, lengths, heads, 0);
            let lengths_kv = [length_kv, batch];
            let [dk, dv] = [0, 1].map(|which| self.part(&kv.tensor, lengths_kv, groups, which));
            let grads = [&dq, &dk, &dv];
            self.core.backward_to(run, &tape.core, tape.heads.all(), outputs, grads)?;
            if let Some(linear) = &mut self.key_value {
                linear.backward_to(run, key_value, &kv.tensor, None, None, dmemory)?;
            }
        } else if self.stays_packed(tape.frequencies.as_ref()) {
            let [dq, dk, dv] = [0, 1, 2].map(|which| self.part(whole, lengths, heads, which));
            let grads = [&dq, &dk, &dv];
            self.core.backward_to(run, &tape.core, tape.heads.all(), outputs, grads)?;
        } else {
            let parts = [
                self.alone(run, lengths, heads)?,
                self.alone(run, lengths, groups)?,
                self.alone(run, lengths, groups)?,
            ];
            let grads = [&parts[0].tensor, &parts[1].tensor, &parts[2].tensor];
            self.core.backward_to(run, &tape.core, tape.heads.all(), outputs, grads)?;
            self.rope(lengths, tape.frequencies.as_ref())?.run(run, true, whole, grads)?;
        }
        self.first.backward_to(run, &tape.first, whole, dz, add, dx)
    }

    /// Parameters with a prefix.
    pub fn all_parameters(&mut self, prefix: &str) -> Vec<(String, &mut Parameter)> {
        let Self { first, key_value, core, proj, names, .. } = self;
        let mut all = named(&format!("{prefix}{}", names[0]), first.parts());
        if let Some(linear) = key_value {
            all.extend(named(&format!("{prefix}{}", names[1]), linear.parts()));
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

    fn forward(&mut self, run: &Run, inputs: Tensors, outputs: Tensors) -> Result<Saved> {
        let (x, rows, lengths) = self.input("inputs[0]", inputs[0].as_ref())?;
        let memory = match &inputs[1] {
            Some(memory) => Some(self.input("inputs[1]", Some(memory))?),
            None => None,
        };
        let shape = (rows, self.hidden);
        let y = matrix_of("outputs[0]", outputs[0].as_ref(), self.core.config.dtype, shape)?;
        let memory = memory.as_ref().map(|(memory, rows, lengths)| (memory, *rows, *lengths));
        Ok(Box::new(self.forward_to(run, (&x, rows, lengths), memory, &y, None, None)?))
    }

    fn backward(
        &mut self,
        run: &Run,
        tape: &(dyn Any + Send),
        grad_outputs: Tensors,
        grad_inputs: Tensors,
    ) -> Result<()> {
        let tape: &MultiheadTape = saved(tape)?;
        let dtype = self.core.config.dtype;
        let [length, batch, length_kv] = tape.sizes;
        let shape = (length * batch, self.hidden);
        let dy = matrix_of("grad_outputs[0]", grad_outputs[0].as_ref(), dtype, shape)?;
        let optional = super::optional_matrix;
        let dx = optional("grad_inputs[0]", grad_inputs[0].as_ref(), dtype, shape)?;
        let shape = (length_kv * batch, self.hidden);
        let dmemory = optional("grad_inputs[1]", grad_inputs[1].as_ref(), dtype, shape)?;
        self.backward_to(run, tape, &dy, None, None, dx.as_ref(), dmemory.as_ref())
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        self.all_parameters("")
    }
}
