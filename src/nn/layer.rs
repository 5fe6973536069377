//! `TransformerLayer` (spec: modules, section 15).

use super::attention::{MultiheadAttention, MultiheadConfig, MultiheadTape};
use super::branch::{Branch, BranchConfig, BranchTape, Others};
use super::context::Run;
use super::dense::Grad;
use super::memory::{Block, Lifetime};
use super::norm::{NormConfig, NormLayer, NormTape};
use super::ops::{self, plain};
use super::parameter::Parameter;
use super::quantizer::QTensor;
use super::split::{Split, Spread};
use super::{Layer, Saved, Tape, Tensors, named, saved};
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::types::NVTEDType::{self, *};

pub struct LayerConfig {
    pub self_attention: MultiheadConfig,
    /// Cross attention of a decoder.
    pub inter_attention: Option<MultiheadConfig>,
    pub mlp: BranchConfig,
    /// What the config of the MLP says of ranks.
    pub spread: Spread,
    /// Norm after the layer.
    pub output_norm: Option<NormConfig>,
    /// Dropout of what is added to the residual.
    pub dropout: f32,
    /// The residual is the norm's result, not its input.
    pub residual_after_norm: bool,
    /// Attention and MLP read the same input.
    pub parallel: bool,
}

/// Attention, attention to a second input, MLP, each added to a residual.
///
/// Its parts and their tapes take tens of kilobytes each; on the heap they pass from function to
/// function in a pointer, so that threads with small stacks can use layers.
pub struct TransformerLayer {
    self_attention: Box<MultiheadAttention>,
    inter_attention: Option<Box<MultiheadAttention>>,
    mlp: Branch,
    output_norm: Option<NormLayer>,
    residual: Residual,
    residual_after_norm: bool,
    parallel: bool,
}

/// Where dropouts begin in a call's sequence of random numbers, after that of the attention itself.
const SELF_SITE: u32 = 16;
pub const INTER_ATTENTION_SITE: u32 = 32;
const INTER_SITE: u32 = 48;
const MLP_SITE: u32 = 64;

/// Which elements a dropout kept; none if there was no dropout.
type Mask = Option<Block>;

struct LayerTape {
    self_attention: Box<MultiheadTape>,
    self_mask: Mask,
    inter: Option<(Box<MultiheadTape>, Mask)>,
    mlp: BranchTape,
    mlp_mask: Mask,
    output: Option<NormTape>,
    rows: usize,
    memory_rows: usize,
    /// What the parts have read from each other.
    _kept: Vec<QTensor>,
}

/// The sums of residuals and branches.
#[derive(Clone)]
struct Residual {
    dropout: f32,
    hidden: usize,
    dtype: NVTEDType,
    /// The ranks that have the other rows.
    others: Option<Split>,
}

impl Residual {
    fn tensor(&self, run: &Run, rows: usize, lifetime: Lifetime) -> Result<QTensor> {
        QTensor::plain(run, (rows, self.hidden), self.dtype, lifetime)
    }

    /// Bytes of a mask: a bit for each element.
    fn mask_bytes(&self, rows: usize) -> usize {
        (rows * self.hidden).div_ceil(8)
    }

    fn mask(&self, rows: usize, block: &Block) -> Tensor {
        plain(block.buffer(0, kNVTEByte, &[self.mask_bytes(rows)]))
    }

    /// `y = residual + dropout(branch)`. Without dropout the branch's last product adds the residual.
    fn join<T>(
        &self,
        run: &Run,
        (rows, site): (usize, u32),
        residual: &Tensor,
        y: &Tensor,
        branch: impl FnOnce(&Tensor, Option<&Tensor>) -> Result<T>,
    ) -> Result<(T, Mask)> {
        if !run.training || self.dropout == 0.0 {
            return Ok((branch(y, Some(residual))?, None));
        }
        let out = self.tensor(run, rows, Lifetime::Scratch)?;
        let out = &out.tensor;
        let tape = branch(out, None)?;
        let state = run.random(site)?;
        let block = run.block(self.mask_bytes(rows), Lifetime::Tape)?;
        let mask = self.mask(rows, &block);
        let own = rows * self.hidden;
        let before = self.others.as_ref().map_or(0, |split| split.elements_before(own));
        let random = (&state.tensor, before);
        ops::dropout_add(run, out, residual, y, &mask, random, self.dropout)?;
        Ok((tape, Some(block)))
    }

    /// The gradient of a branch, from that of the sum.
    fn branch(&self, run: &Run, rows: usize, mask: &Mask, dy: &Tensor) -> Result<QTensor> {
        let Some(mask) = mask else {
            return Ok(QTensor::borrowed(dy.clone()));
        };
        let grad = self.tensor(run, rows, Lifetime::Scratch)?;
        ops::dropout_grad(run, dy, &self.mask(rows, mask), &grad.tensor, self.dropout)?;
        Ok(grad)
    }
}

impl TransformerLayer {
    pub fn new(run: &Run, name: &str, config: &LayerConfig) -> Result<Self> {
        let part = |part: &str| format!("{name}.{part}");
        let attention = |name: &str, config: &MultiheadConfig| {
            MultiheadAttention::new(run, &part(name), config).map(Box::new)
        };
        let inter = config.inter_attention.as_ref();
        let own = &config.self_attention;
        let (spread, of_mlp) = (own.spread, config.spread);
        if !spread.same(&of_mlp) {
            let expected = format!("the same as {}.parallel ({spread})", spread.name);
            return Err(Error::argument(format!("{}.parallel", of_mlp.name), expected, of_mlp));
        }
        let others = Split::of(run, &spread)?;
        let others = others.filter(|split| split.sequence);
        let norm = config.output_norm.as_ref().map(|c| NormLayer::new(run, c)).transpose()?;
        Ok(Self {
            self_attention: attention("self_attention", own)?,
            inter_attention: inter.map(|c| attention("inter_attention", c)).transpose()?,
            mlp: Branch::new(run, name, &config.mlp)?,
            output_norm: norm.map(|norm| norm.of_parts(others.as_ref())),
            residual: Residual {
                dropout: config.dropout,
                hidden: own.hidden,
                dtype: own.attention.dtype,
                others,
            },
            residual_after_norm: config.residual_after_norm,
            parallel: config.parallel,
        })
    }
}

/// The gradient of a residual, as that of a norm's result or as that of its input.
fn places(after_norm: bool, grad: &Tensor) -> (Option<&Tensor>, Option<&Tensor>) {
    if after_norm { (Some(grad), None) } else { (None, Some(grad)) }
}

impl Layer for TransformerLayer {
    fn arity(&self) -> (usize, usize) {
        (2, 1 + self.mlp.num_extras())
    }

    fn heads(&self) -> Option<(usize, usize)> {
        Some(self.self_attention.all_heads)
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved> {
        let Self { self_attention, inter_attention, mlp, residual, .. } = self;
        let (x, rows, lengths) = self_attention.input(&inputs.get(0)?)?;
        let memory = inputs.find(1).map(|memory| self_attention.input(&memory)).transpose()?;
        let memory_rows = memory.as_ref().map_or(0, |(_, rows, _)| *rows);
        let memory = memory.as_ref().map(|(memory, rows, lengths)| (memory, *rows, *lengths));
        let shape = (rows, residual.hidden);
        let out = outputs.get(0)?.matrix(residual.dtype, shape)?;
        let [losses, loads] = mlp.extras(outputs)?;
        let (losses, loads) = (losses.as_ref(), loads.as_ref());
        let lifetime = if run.training { Lifetime::Tape } else { Lifetime::Scratch };
        let keep = || residual.tensor(run, rows, lifetime);
        let mut kept = Vec::new();
        let input = (&x, rows, lengths);

        if self.parallel {
            let ((attention, mlp), mask) =
                residual.join(run, (rows, MLP_SITE), &x, &out, |y, add| {
                    let sum = keep()?;
                    let attention =
                        self_attention.forward_to(run, input, memory, &sum.tensor, add, None)?;
                    let add = Some(&sum.tensor);
                    let others = Others { add, losses, loads, ..Others::default() };
                    let mlp = mlp.forward_to(run, (&x, rows), y, others)?;
                    Ok((attention, mlp))
                })?;
            return Ok(Box::new(LayerTape {
                self_attention: attention,
                self_mask: None,
                inter: None,
                mlp,
                mlp_mask: mask,
                output: None,
                rows,
                memory_rows,
                _kept: kept,
            }));
        }

        let normed = |wanted: bool| if wanted { keep().map(Some) } else { Ok(None) };
        let own_memory = if inter_attention.is_some() { None } else { memory };
        let (mut y, z) = (keep()?, normed(self.residual_after_norm)?);
        let z_out = z.as_ref().map(|z| &z.tensor);
        let (attention, self_mask) =
            residual.join(run, (rows, SELF_SITE), z_out.unwrap_or(&x), &y.tensor, |y, add| {
                self_attention.forward_to(run, input, own_memory, y, add, z_out)
            })?;
        kept.extend(z);

        let mut inter = None;
        if let Some(layer) = inter_attention {
            let next = keep()?;
            let input = (&y.tensor, rows, lengths);
            inter = Some(residual.join(
                run,
                (rows, INTER_SITE),
                &y.tensor,
                &next.tensor,
                |out, add| layer.forward_to(run, input, memory, out, add, None),
            )?);
            kept.push(std::mem::replace(&mut y, next));
        }

        let last = self.output_norm.as_ref().map(|_| keep()).transpose()?;
        let target = last.as_ref().map_or(&out, |last| &last.tensor);
        let z = normed(self.residual_after_norm)?;
        let z_out = z.as_ref().map(|z| &z.tensor);
        let from = z_out.unwrap_or(&y.tensor);
        let (mlp, mlp_mask) = residual.join(run, (rows, MLP_SITE), from, target, |out, add| {
            let others = Others { add, z: z_out, losses, loads, ..Others::default() };
            mlp.forward_to(run, (&y.tensor, rows), out, others)
        })?;
        let mut output = None;
        if let Some(norm) = &self.output_norm {
            let tape = norm.tape(run, target, rows)?;
            norm.write(run, &tape, &out)?;
            output = Some(tape);
        }
        kept.push(y);
        kept.extend(z);
        kept.extend(last);
        let tape = LayerTape {
            self_attention: attention,
            self_mask,
            inter,
            mlp,
            mlp_mask,
            output,
            rows,
            memory_rows,
            _kept: kept,
        };
        Ok(Box::new(tape))
    }

    fn backward(&mut self, run: &Run, tape: &Tape, [given, wanted]: [&Tensors; 2]) -> Result<()> {
        let tape: &LayerTape = saved(tape)?;
        let (residual, rows) = (self.residual.clone(), tape.rows);
        let (dtype, shape) = (residual.dtype, (rows, residual.hidden));
        let dy = given.get(0)?.matrix(dtype, shape)?;
        let dx = wanted.find_matrix(0, dtype, shape)?;
        let shape = (tape.memory_rows, residual.hidden);
        let dmemory = wanted.find_matrix(1, dtype, shape)?;
        let scratch = || residual.tensor(run, rows, Lifetime::Scratch);
        let (dx, dmemory) = (dx.as_ref(), dmemory.as_ref());
        let losses = self.mlp.losses_grad(given)?;
        let losses = losses.as_ref();
        let attention = &mut self.self_attention;

        if self.parallel {
            let branch = residual.branch(run, rows, &tape.mlp_mask, &dy)?;
            let sum = scratch()?;
            let (branch, dsum) = (&branch.tensor, Some(&sum.tensor));
            let (own, of_branch) = (&tape.self_attention, Grad::Ready(branch));
            attention.backward_to(run, own, &of_branch, None, Some(&dy), dsum, dmemory)?;
            let others = Others { add: dsum, losses, ..Others::default() };
            return self.mlp.backward_to(run, &tape.mlp, branch, others, dx);
        }

        let mut grad = QTensor::borrowed(dy);
        if let (Some(norm), Some(output)) = (&self.output_norm, &tape.output) {
            let next = scratch()?;
            norm.backward_to(run, output, &grad.tensor, None, Some(&next.tensor))?;
            grad = next;
        }
        let branch = residual.branch(run, rows, &tape.mlp_mask, &grad.tensor)?;
        let next = scratch()?;
        let (dz, add) = places(self.residual_after_norm, &grad.tensor);
        // What the MLP's norm writes is the gradient of the attention's output, unless something lies between them.
        let adjacent = self.inter_attention.is_none() && tape.self_mask.is_none();
        let sums = match adjacent {
            true => attention.grad_sums(run, &tape.self_attention)?,
            false => None,
        };
        let dx_sums = sums.as_ref();
        let others = Others { add, z: dz, losses, dx_sums, ..Others::default() };
        self.mlp.backward_to(run, &tape.mlp, &branch.tensor, others, Some(&next.tensor))?;
        grad = next;

        let mut own_dmemory = dmemory;
        if let (Some(layer), Some((inter, mask))) = (&mut self.inter_attention, &tape.inter) {
            let branch = residual.branch(run, rows, mask, &grad.tensor)?;
            let next = scratch()?;
            let (add, out) = (Some(&grad.tensor), Some(&next.tensor));
            let of_branch = Grad::Ready(&branch.tensor);
            layer.backward_to(run, inter, &of_branch, None, add, out, dmemory)?;
            grad = next;
            own_dmemory = None;
        }

        let branch = residual.branch(run, rows, &tape.self_mask, &grad.tensor)?;
        let (dz, add) = places(self.residual_after_norm, &grad.tensor);
        let own = &tape.self_attention;
        let of_branch = match &sums {
            Some(sums) => Grad::Summed(&branch.tensor, Some(sums)),
            None => Grad::Ready(&branch.tensor),
        };
        attention.backward_to(run, own, &of_branch, dz, add, dx, own_dmemory)
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        let mut all = self.self_attention.all_parameters("self_attention.");
        if let Some(inter) = &mut self.inter_attention {
            all.extend(inter.all_parameters("inter_attention."));
        }
        all.extend(self.mlp.parameters());
        if let Some(norm) = &mut self.output_norm {
            all.extend(named("layernorm.", norm.parts()));
        }
        all
    }
}
