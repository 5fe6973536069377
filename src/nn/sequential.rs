//! `Sequential`: layers in a row, each of which reads what the one before has written.

use super::context::Run;
use super::memory::{Lifetime, lock};
use super::parameter::Parameter;
use super::quantizer::QTensor;
use super::{Coming, Layer, Saved, SharedLayer, Tape, Tensors, saved, sharded};
use crate::error::Result;
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTEDType;
use std::sync::Arc;

/// A layer with the name that it has in errors.
pub struct Part {
    pub module: Arc<str>,
    pub layer: SharedLayer,
}

/// The parameters are those of the parts, which whoever made them lists.
pub struct Sequential {
    parts: Vec<Part>,
}

struct SequentialTape {
    tapes: Vec<Saved>,
    /// What each part but the last has written.
    between: Vec<QTensor>,
}

impl Sequential {
    /// `parts` is not empty.
    pub fn new(parts: Vec<Part>) -> Self {
        Self { parts }
    }

    fn arity_of(&self, index: usize) -> (usize, usize) {
        lock(&self.parts[index].layer).arity()
    }

    fn last(&self) -> usize {
        self.parts.len() - 1
    }

    /// The tensors of a part: `chained` in place of what the parts pass on, and what the caller has given to the
    /// first part, and to the last part behind those of the first one.
    fn of_part(&self, index: usize, of_caller: &Tensors, chained: Option<Tensor>) -> Tensors {
        let (count, _) = self.arity_of(index);
        let (first, _) = self.arity_of(0);
        let mut list = vec![None; count];
        if index == 0 {
            list.clone_from_slice(&of_caller.list[..count]);
        } else {
            list[0] = chained;
            if index == self.last() {
                list[1..].clone_from_slice(&of_caller.list[first..]);
            }
        }
        Tensors { name: of_caller.name, list }
    }

    /// The call of a part, behind which that of `next` comes. Each part has random numbers of its own.
    fn run_of(&self, index: usize, next: Option<usize>, run: &Run) -> Run {
        let before = self.parts[..index].iter().map(|part| lock(&part.layer).sites());
        let first_site = run.first_site + before.sum::<u32>();
        let next = next.and_then(|next| self.parts.get(next));
        let next = next.map(|part| Arc::clone(&part.layer)).or_else(|| run.next.clone());
        let module = Some(Arc::clone(&self.parts[index].module));
        Run { module, first_site, next, ..run.clone() }
    }
}

/// One tensor in place of the first of `count`.
fn only(name: &'static str, tensor: Tensor, count: usize) -> Tensors {
    let mut list = vec![None; count];
    list[0] = Some(tensor);
    Tensors { name, list }
}

impl Layer for Sequential {
    fn arity(&self) -> (usize, usize) {
        let (inputs, _) = self.arity_of(0);
        let (of_last, outputs) = self.arity_of(self.last());
        (if self.last() == 0 { inputs } else { inputs + of_last - 1 }, outputs)
    }

    fn output(&self, input: &Buffer) -> (Shape, NVTEDType) {
        self.parts.iter().fold((input.shape, input.dtype), |(shape, dtype), part| {
            let between = Buffer::new(input.ptr(), dtype, shape.dims());
            lock(&part.layer).output(&between)
        })
    }

    fn sites(&self) -> u32 {
        self.parts.iter().map(|part| lock(&part.layer).sites()).sum()
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved> {
        let lifetime = if run.training { Lifetime::Tape } else { Lifetime::Scratch };
        let mut tape = SequentialTape { tapes: Vec::new(), between: Vec::new() };
        let mut x = inputs.get(0)?.tensor.clone();
        for (i, part) in self.parts.iter().enumerate() {
            let run = self.run_of(i, Some(i + 1), run);
            let inputs = self.of_part(i, inputs, Some(x.clone()));
            let mut layer = lock(&part.layer);
            if i == self.last() {
                tape.tapes.push(layer.forward(&run, &inputs, outputs)?);
                break;
            }
            let (shape, dtype) = layer.output(&x.rowwise);
            let mut y = QTensor::plain(&run, shape.flatten(), dtype, lifetime)?;
            y.tensor.rowwise.shape = shape;
            let count = layer.arity().1;
            let saved = layer.forward(&run, &inputs, &only("outputs", y.tensor.clone(), count))?;
            x = y.tensor.clone();
            if run.training {
                tape.tapes.push(saved);
            } else {
                // What the part has read is handed out again.
                tape.between.clear();
            }
            tape.between.push(y);
        }
        Ok(Box::new(tape))
    }

    fn backward(&mut self, run: &Run, tape: &Tape, [given, wanted]: [&Tensors; 2]) -> Result<()> {
        let SequentialTape { tapes, between } = saved(tape)?;
        let mut grad: Option<QTensor> = None;
        for (i, part) in self.parts.iter().enumerate().rev() {
            let dx = match i {
                0 => None,
                _ => {
                    let x = &between[i - 1].tensor.rowwise;
                    let mut dx =
                        QTensor::plain(run, x.shape.flatten(), x.dtype, Lifetime::Scratch)?;
                    dx.tensor.rowwise.shape = x.shape;
                    Some(dx)
                }
            };
            let wanted = self.of_part(i, wanted, dx.as_ref().map(|dx| dx.tensor.clone()));
            let (run, count) = (self.run_of(i, i.checked_sub(1), run), self.arity_of(i).1);
            let own = grad.as_ref().map(|grad| only(given.name, grad.tensor.clone(), count));
            let given = own.as_ref().unwrap_or(given);
            lock(&part.layer).backward(&run, &*tapes[i], [given, &wanted])?;
            grad = dx;
        }
        Ok(())
    }

    fn prepare(&mut self, run: &Run, coming: Coming) -> Result<()> {
        let parts = match coming {
            Coming::Forward => &self.parts[..1],
            Coming::Backward => &self.parts[self.last()..],
            Coming::Nothing => &self.parts,
        };
        parts.iter().try_for_each(|part| sharded::prepare(&part.layer, run, coming))
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        Vec::new()
    }
}
