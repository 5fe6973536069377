//! `LmHead`: the end of a language model, from hidden states to the loss or to logits.

use super::context::Run;
use super::memory::{Lifetime, lock};
use super::ops::{self, Gemm};
use super::parameter::{Init, Parameter, matrix};
use super::quantizer::QTensor;
use super::{Layer, Saved, SharedLayer, Tape, Tensors, named, saved};
use crate::error::{Error, Result};
use crate::op::cross_entropy::{Linear, Losses, Rule};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTEDType::{self, *};

pub struct HeadConfig {
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
    vocabulary: usize,
    hidden: usize,
    dtype: NVTEDType,
    rule: Rule,
    limit: usize,
}

/// The gradient of the hidden states; none if only logits were wanted.
struct HeadTape {
    grad: Option<QTensor>,
    rows: usize,
}

impl LmHead {
    pub fn new(run: &Run, config: &HeadConfig, tied: Option<SharedLayer>) -> Result<Self> {
        let &HeadConfig { vocabulary, hidden, dtype, deviation, seed, rule, limit } = config;
        let weight = match tied {
            Some(layer) => Weight::Tied(layer),
            None => {
                let (dims, init) = ([vocabulary, hidden], Init::Normal { deviation, seed });
                Weight::Own(Box::new(Parameter::new(run, "weight", &dims, dtype, init, None)?))
            }
        };
        Ok(Self { weight, vocabulary, hidden, dtype, rule, limit })
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
        let (x, rows) = inputs.get(0)?.rows(self.dtype, self.hidden)?;
        let (dtype, shape) = (self.dtype, (rows, self.hidden));
        let logits = outputs.find_matrix(2, dtype, (rows, self.vocabulary))?;
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
        let (rule, limit, weight_shape) = (self.rule, self.limit, (self.vocabulary, self.hidden));
        self.with_weight(|weight| {
            let value = matrix(&weight.value.tensor, weight_shape);
            if let Some(logits) = &logits {
                let gemm = Gemm { transa: true, ..Gemm::default() };
                gemm.run(run, &value, &x, logits)?;
            }
            let Some(targets) = &targets else { return Ok(HeadTape { grad: None, rows }) };
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
            ops::linear_cross_entropy(run, &linear, &losses, &rule)?;
            weight.begun = target.is_some();
            Ok(HeadTape { grad, rows })
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
}
