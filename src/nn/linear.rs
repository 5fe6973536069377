//! `Linear` and `LayerNormLinear` (spec: modules, sections 7 and 8).

use super::context::Run;
use super::dense::{Dense, DenseConfig, DenseTape, Grad};
use super::memory::Lifetime;
use super::norm::{NormConfig, NormLayer, NormTape};
use super::parameter::Parameter;
use super::quantizer::{QTensor, Source};
use super::{Layer, Saved, Tape, Tensors, named, saved};
use crate::error::Result;
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTEDType;

/// `y = x W^T + b`, of `norm(x)` if there is a norm; its result is a second output, if that is wanted.
pub struct Linear {
    norm: Option<NormLayer>,
    pub dense: Dense,
}

pub struct LinearTape {
    norm: Option<NormTape>,
    dense: Box<DenseTape>,
    rows: usize,
}

impl Linear {
    pub fn new(
        run: &Run,
        name: &str,
        norm: Option<&NormConfig>,
        dense: &DenseConfig,
    ) -> Result<Self> {
        let dense = Dense::new(run, name, dense)?;
        let rows_shared = dense.split().filter(|split| split.sequence);
        let norm = norm.map(|norm| NormLayer::new(run, norm)).transpose()?;
        Ok(Self { norm: norm.map(|norm| norm.of_parts(rows_shared)), dense })
    }

    /// Writes y, plus `add`, and z = norm(x) if that is asked for.
    pub fn forward_to(
        &mut self,
        run: &Run,
        (x, rows): (&Tensor, usize),
        y: &Tensor,
        add: Option<&Tensor>,
        z: Option<&Tensor>,
    ) -> Result<Box<LinearTape>> {
        let Some(layer) = &self.norm else {
            let dense = self.dense.forward(run, rows, &Source::Ready(x), y, add)?;
            return Ok(Box::new(LinearTape { norm: None, dense, rows }));
        };
        let norm = layer.tape(run, x, rows)?;
        let write = |out: &Tensor, _: &_| layer.write(run, &norm, out);
        let source = match z {
            Some(z) => {
                self.dense.check_step(run)?;
                layer.write(run, &norm, z)?;
                Source::Ready(z)
            }
            None => Source::Computed { write: &write, configurable: false },
        };
        let dense = self.dense.forward(run, rows, &source, y, add)?;
        Ok(Box::new(LinearTape { norm: Some(norm), dense, rows }))
    }

    /// The tape of a forward pass without a norm that has left its input to this one.
    pub fn forward_again(
        &mut self,
        run: &Run,
        tape: &LinearTape,
        x: &Tensor,
    ) -> Result<Box<LinearTape>> {
        let dense = self.dense.forward_again(run, &tape.dense, &Source::Ready(x), None)?;
        Ok(Box::new(LinearTape { norm: None, dense, rows: tape.rows }))
    }

    /// `dz` is the gradient of the norm's result beside that from y, `add` that of x beside this one.
    pub fn backward_to(
        &mut self,
        run: &Run,
        tape: &LinearTape,
        dy: &Grad,
        dz: Option<&Tensor>,
        add: Option<&Tensor>,
        dx: Option<&Tensor>,
    ) -> Result<()> {
        let (Some(layer), Some(norm)) = (&self.norm, &tape.norm) else {
            return self.dense.backward(run, &tape.dense, dy, dx, add);
        };
        let shape = (tape.rows, self.dense.inputs);
        let total = QTensor::plain(run, shape, self.dense.dtype, Lifetime::Scratch)?;
        self.dense.backward(run, &tape.dense, dy, Some(&total.tensor), dz)?;
        layer.backward_to(run, norm, &total.tensor, add, dx)
    }

    /// As [`DenseTape::scales_grad`].
    pub fn scales_grad(&self, tape: &LinearTape) -> bool {
        tape.dense.scales_grad()
    }

    /// As [`Dense::grad_sums`].
    pub fn grad_sums(&self, run: &Run, tape: &LinearTape) -> Result<Option<QTensor>> {
        self.dense.grad_sums(run, &tape.dense)
    }

    pub fn parts(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.norm.iter_mut().flat_map(NormLayer::parts).chain(self.dense.parameters())
    }
}

impl Layer for Linear {
    fn arity(&self) -> (usize, usize) {
        (1, if self.norm.is_some() { 2 } else { 1 })
    }

    fn output(&self, input: &Buffer) -> (Shape, NVTEDType) {
        (self.dense.output_shape(&input.shape), input.dtype)
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved> {
        let (dtype, cols) = (self.dense.dtype, self.dense.inputs);
        let (x, rows) = inputs.get(0)?.rows(dtype, cols)?;
        let shape = (self.dense.output_rows(rows)?, self.dense.outputs);
        let y = outputs.get(0)?.matrix(dtype, shape)?;
        let z = outputs.find_matrix(1, dtype, (rows, cols))?;
        Ok(self.forward_to(run, (&x, rows), &y, None, z.as_ref())?)
    }

    fn backward(&mut self, run: &Run, tape: &Tape, [given, wanted]: [&Tensors; 2]) -> Result<()> {
        let tape: &LinearTape = saved(tape)?;
        let &Dense { dtype, inputs, outputs, .. } = &self.dense;
        let dy = given.get(0)?.matrix(dtype, (self.dense.output_rows(tape.rows)?, outputs))?;
        let shape = (tape.rows, inputs);
        let dz = given.find_matrix(1, dtype, shape)?;
        let dx = wanted.find_matrix(0, dtype, shape)?;
        self.backward_to(run, tape, &Grad::Ready(&dy), dz.as_ref(), None, dx.as_ref())
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        named("", self.parts())
    }
}
