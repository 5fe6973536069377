//! `LmHead`: the end of a language model, from hidden states to the loss or to logits.

use super::context::Run;
use super::memory::{Lifetime, lock};
use super::ops::{self, Gemm};
use super::parameter::{Init, Parameter, matrix};
use super::quantizer::QTensor;
use super::split::{self, Shard, Split, Spread};
use super::{Layer, Saved, SharedLayer, Tape, Tensors, named, saved};
use crate::error::{Error, Result};
use crate::op::cross_entropy::{Linear, Losses, Rule};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTEDType::{self, *};
use std::sync::Arc;

pub struct HeadConfig {
    /// What the config says of ranks: each has some columns of the logits.
    pub spread: Spread,
    pub vocabulary: usize,
    pub hidden: usize,
    pub dtype: NVTEDType,
    pub deviation: f32,
    pub seed: u64,
    pub rule: Rule,
    /// Bytes that logits may take; 0 for a choice of the operator.
    pub limit: usize,
}

/// Where the weight is.
enum Weight {
    Own(Box<Parameter>),
    /// The first parameter of another layer.
    Tied(SharedLayer),
}

/// `loss = mean of cross_entropy(x W^T, targets)`. The logits are never all in memory: parts of them become their
/// gradients, which are multiplied at once. So the pass forward computes all gradients.
pub struct LmHead {
    weight: Weight,
    /// The ranks that have the other columns. Each has all of its logits in memory at once.
    split: Option<Split>,
    columns: Columns,
    hidden: usize,
    dtype: NVTEDType,
    rule: Rule,
    limit: usize,
}

/// The columns of the logits that this rank has.
#[derive(Clone, Copy)]
struct Columns {
    start: usize,
    count: usize,
    whole: usize,
}

/// The gradient of the hidden states; none if only logits were wanted.
struct HeadTape {
    grad: Option<QTensor>,
    rows: usize,
}

impl LmHead {
    pub fn new(run: &Run, config: &HeadConfig, tied: Option<SharedLayer>) -> Result<Self> {
        let &HeadConfig { vocabulary: whole, hidden, dtype, deviation, seed, rule, limit, .. } =
            config;
        let split = Split::of(run, &config.spread)?;
        let shard = match &split {
            Some(split) => split.shard(&[whole, hidden], 0, 1)?,
            None => Shard::all(&[whole, hidden]),
        };
        let columns = Columns { start: shard.index(0), count: shard.dims()[0], whole };
        let weight = match tied {
            Some(layer) => Weight::Tied(layer),
            None => {
                let init = Init::Normal { deviation, seed };
                Weight::Own(Box::new(Parameter::of(run, "weight", shard, dtype, init, None)?))
            }
        };
        let mut head = Self { weight, split, columns, hidden, dtype, rule, limit };
        let same = head.with_weight(|weight| Ok(weight.dims[0] == columns.count))?;
        match same {
            true => Ok(head),
            false => {
                let name = format!("{}.parallel", config.spread.name);
                let expected = "that of the embedding (tied_to), whose weight is divided otherwise";
                Err(Error::argument(name, expected, config.spread))
            }
        }
    }

    fn with_weight<R>(&mut self, body: impl FnOnce(&mut Parameter) -> Result<R>) -> Result<R> {
        match &mut self.weight {
            Weight::Own(parameter) => body(parameter),
            Weight::Tied(layer) => {
                let mut layer = lock(layer);
                match layer.parameters().into_iter().next() {
                    Some((_, parameter)) => body(parameter),
                    None => {
                        Err(Error::argument("config.tied_to", "a module with a weight", "none"))
                    }
                }
            }
        }
    }
}

impl Columns {
    /// Losses, and gradients in training, of a vocabulary of which each rank has some columns: ranks exchange four
    /// numbers for each row.
    fn divided(
        &self,
        run: &Run,
        split: &Split,
        (linear, rule): (&Linear, &Rule),
        logits: Option<&Tensor>,
        losses: &Losses,
        grad: Option<&Tensor>,
    ) -> Result<()> {
        let (x, weight) = (linear.hidden, linear.weight);
        let rows = x.rowwise.shape.flatten().0;
        let (dtype, shape) = (x.dtype(), (rows, self.count));
        let rule = Rule { start: self.start, size: self.whole, ..*rule };
        let own = QTensor::plain(run, shape, dtype, Lifetime::Scratch)?;
        match logits {
            Some(logits) => {
                let (from, to) = (&logits.rowwise, &own.tensor.rowwise);
                ops::copy(to.ptr(), from.ptr(), from.bytes(), run.stream)?;
            }
            None => {
                let gemm = Gemm { transa: true, ..Gemm::default() };
                gemm.run(run, weight, x, &own.tensor)?;
            }
        }
        let floats = |dims: &[usize]| -> Result<QTensor> {
            let numel = dims.iter().product();
            let mut made = QTensor::plain(run, (1, numel), kNVTEFloat32, Lifetime::Scratch)?;
            made.tensor.rowwise.shape = Shape::new(dims);
            Ok(made)
        };
        let (part, all) = (floats(&[4, rows])?, floats(&[split.size(), 4, rows])?);
        let (part, all) = (&part.tensor.rowwise, &all.tensor.rowwise);
        let targets = &linear.targets;
        ops::partial_cross_entropy(run, &own.tensor, targets, part, &rule)?;
        split.gather_values(run, part, all)?;
        let sums = floats(&[rows])?;
        let losses = Losses { logsumexp: sums.tensor.rowwise, ..*losses };
        ops::combine_cross_entropy(run, all, targets, &losses, &rule)?;
        let Some(grad) = grad else { return Ok(()) };
        ops::cross_entropy_grad(run, &own.tensor, targets, &losses, linear.grad, &rule)?;
        if let Some(target) = linear.grad_weight {
            let accumulate = linear.accumulate;
            let gemm = Gemm { transb: true, accumulate, ..Gemm::default() };
            gemm.run(run, x, &own.tensor, target)?;
        }
        split::reduce(Some(split), run, grad, |part| {
            Gemm::default().run(run, weight, &own.tensor, part)
        })
    }
}

/// Floats that the caller has room for.
fn floats(tensors: &Tensors, index: usize, count: usize) -> Result<Option<Buffer>> {
    let Some(argument) = tensors.find(index) else { return Ok(None) };
    let data = argument.data(kNVTEFloat32)?;
    if data.shape.numel() != count {
        let expected = format!("{count} elements");
        return Err(Error::argument(format!("{argument}.shape"), expected, data.shape));
    }
    Ok(Some(data))
}

impl Layer for LmHead {
    fn arity(&self) -> (usize, usize) {
        (3, 3)
    }

    fn output(&self, _: &Buffer) -> (Shape, NVTEDType) {
        (Shape::new(&[1]), kNVTEFloat32)
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved> {
        let (x, own_rows) = inputs.get(0)?.rows(self.dtype, self.hidden)?;
        let split = self.split.clone();
        let whole = split::gather(split.as_ref(), run, &x)?;
        let (x, rows) = (whole.tensor.clone(), split::whole_rows(split.as_ref(), own_rows));
        let columns = self.columns;
        let (dtype, shape) = (self.dtype, (own_rows, self.hidden));
        let logits = outputs.find_matrix(2, dtype, (rows, columns.count))?;
        let targets = inputs.find(1).map(|targets| targets.integers()).transpose()?;
        let scale = floats(inputs, 2, 1)?.unwrap_or(Buffer::UNSET);
        let total = floats(outputs, 0, 1)?;
        let own_losses = floats(outputs, 1, rows)?;
        if targets.is_none() && (total.is_some() || own_losses.is_some()) {
            let expected = "targets (there is an output for losses)";
            return Err(Error::argument("inputs[1]", expected, "null"));
        }
        let wanted = targets.is_some();
        if let Some(targets) = targets.filter(|targets| targets.shape.numel() != rows) {
            let expected = format!("{rows} elements, one for each row of inputs[0]");
            return Err(Error::argument("inputs[1].shape", expected, targets.shape));
        }
        if !wanted && logits.is_none() {
            let expected = "a tensor for the loss or, as outputs[2], one for logits";
            return Err(Error::argument("outputs[0]", expected, "null"));
        }
        let (rule, limit, weight_shape) = (self.rule, self.limit, (columns.count, self.hidden));
        self.with_weight(|weight| {
            let value = matrix(&weight.value.tensor, weight_shape);
            if let Some(logits) = &logits {
                let gemm = Gemm { transa: true, ..Gemm::default() };
                gemm.run(run, &value, &x, logits)?;
            }
            let Some(targets) = &targets else {
                return Ok(HeadTape { grad: None, rows: own_rows });
            };
            let scratch = |count| QTensor::plain(run, (1, count), kNVTEFloat32, Lifetime::Scratch);
            let numbers = scratch(2)?;
            let number = |at: usize| {
                let ptr = numbers.tensor.rowwise.ptr().wrapping_byte_add(4 * at);
                Buffer::new(ptr, kNVTEFloat32, &[1])
            };
            let scratch_losses = scratch(if own_losses.is_some() { 1 } else { rows })?;
            let mut loss = own_losses.unwrap_or(scratch_losses.tensor.rowwise);
            loss.shape = Shape::new(&[rows]);
            let losses = Losses {
                loss,
                logsumexp: Buffer::UNSET,
                total: total.unwrap_or(number(0)),
                count: number(1),
            };
            let grad = match run.training {
                true => Some(QTensor::plain(run, shape, dtype, Lifetime::Tape)?),
                false => None,
            };
            let target = if run.training { weight.target(run) } else { None };
            let grad_weight = target.as_ref().map(|(target, _)| matrix(target, weight_shape));
            let linear = Linear {
                hidden: &x,
                weight: &value,
                targets,
                grad: &scale,
                grad_hidden: grad.as_ref().map(|grad| &grad.tensor),
                grad_weight: grad_weight.as_ref(),
                accumulate: target.as_ref().is_some_and(|(_, accumulate)| *accumulate),
                limit,
            };
            match &split {
                None => ops::linear_cross_entropy(run, &linear, &losses, &rule)?,
                Some(split) => {
                    let grad = grad.as_ref().map(|grad| &grad.tensor);
                    let linear = (&linear, &rule);
                    columns.divided(run, split, linear, logits.as_ref(), &losses, grad)?;
                }
            }
            weight.begun = target.is_some();
            Ok(HeadTape { grad, rows: own_rows })
        })
        .map(|tape| Box::new(tape) as Saved)
    }

    fn backward(&mut self, run: &Run, tape: &Tape, [given, wanted]: [&Tensors; 2]) -> Result<()> {
        let HeadTape { grad, rows } = saved(tape)?;
        for index in 0..3 {
            if let Some(given) = given.find(index) {
                let expected =
                    "null (give the gradient of the loss to the forward pass, as inputs[2])";
                return Err(Error::argument(given, expected, "a tensor"));
            }
        }
        for index in 1..3 {
            if let Some(wanted) = wanted.find(index) {
                let expected = "null (only the hidden states have a gradient)";
                return Err(Error::argument(wanted, expected, "a tensor"));
            }
        }
        let Some(grad) = grad else {
            let expected = "a tape of a pass that had targets";
            return Err(Error::argument("tape", expected, "one of a pass without"));
        };
        let Some(dx) = wanted.find_matrix(0, self.dtype, (*rows, self.hidden))? else {
            return Ok(());
        };
        let (to, from): (&Tensor, &Tensor) = (&dx, &grad.tensor);
        ops::copy(to.rowwise.ptr(), from.rowwise.ptr(), from.rowwise.bytes(), run.stream)
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        match &mut self.weight {
            Weight::Own(parameter) => named("", std::iter::once(&mut **parameter)),
            Weight::Tied(_) => Vec::new(),
        }
    }

    fn has_gradients_in_forward(&self) -> bool {
        true
    }

    fn reads_in_backward(&self) -> bool {
        false
    }

    fn tied(&self) -> Option<SharedLayer> {
        match &self.weight {
            Weight::Own(_) => None,
            Weight::Tied(layer) => Some(Arc::clone(layer)),
        }
    }
}
