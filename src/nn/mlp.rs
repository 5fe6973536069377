//! `LayerNormMLP`: norm, linear, activation, linear (spec: modules, section 9).

use super::context::Run;
use super::dense::{Again, Dense, DenseConfig, DenseTape, Grad, Slopes};
use super::memory::Lifetime;
use super::norm::{NormConfig, NormLayer, NormTape};
use super::ops::Activation;
use super::parameter::Parameter;
use super::quantizer::{QTensor, Source};
use super::{Layer, Saved, Tape, Tensors, named, saved};
use crate::backend::args::Function;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::verbose::{self, Level};
use std::cell::{Cell, RefCell};

pub struct MlpConfig {
    pub norm: NormConfig,
    pub fc1: DenseConfig,
    pub activation: Activation,
    pub fc2: DenseConfig,
    /// The tape holds neither the activation nor its input; the backward pass computes them again.
    pub checkpoint: bool,
}

/// `y = f(norm(x) W1^T + b1) W2^T + b2`; the norm's result is the second output, if it is wanted.
pub struct LayerNormMlp {
    norm: NormLayer,
    fc1: Dense,
    activation: Activation,
    fc2: Dense,
    checkpoint: bool,
    /// Whether products applied the activation in the last pass.
    fused: Option<bool>,
}

pub struct MlpTape {
    norm: NormTape,
    /// The norm's result, if the caller wanted it.
    z: Option<Tensor>,
    fc1: Box<DenseTape>,
    /// The input of the activation, or its derivatives there if `fused`; none if it is to be computed again.
    hidden: Option<QTensor>,
    /// Whether the product before the activation applied it: then the one behind it applies its derivative.
    fused: bool,
    fc2: Box<DenseTape>,
    rows: usize,
}

impl LayerNormMlp {
    pub fn new(run: &Run, name: &str, config: &MlpConfig) -> Result<Self> {
        let fc1 = Dense::new(run, &format!("{name}.fc1"), &config.fc1)?;
        let rows_shared = fc1.split().filter(|split| split.sequence);
        let mut mlp = Self {
            norm: NormLayer::new(run, &config.norm)?.of_parts(rows_shared),
            fc1,
            activation: config.activation,
            fc2: Dense::new(run, &format!("{name}.fc2"), &config.fc2)?,
            checkpoint: config.checkpoint,
            fused: None,
        };
        if config.checkpoint {
            (mlp.fc1.again, mlp.fc2.again) = (Again::Product, Again::Input);
        }
        Ok(mlp)
    }

    /// Whether products apply the activation and its derivative.
    fn fuses(&mut self, run: &Run, rows: usize) -> Result<bool> {
        let Activation { function, gated, .. } = self.activation;
        let known = function == if gated { Function::NVTEX_SILU } else { Function::NVTEX_GELU };
        let fused = known && !self.checkpoint && self.fc1.fuses(run, &mut self.fc2, rows, gated)?;
        if self.fused != Some(fused) {
            self.fused = Some(fused);
            verbose::line(Level::Dispatch, "activation", || {
                let how = if fused { "in the products" } else { "in a pass of its own" };
                format!("{},{how}", self.fc1.name.to_string_lossy())
            });
        }
        Ok(fused)
    }

    /// Writes y, plus `add`, and z = norm(x) if that is asked for.
    pub fn forward_to(
        &mut self,
        run: &Run,
        (x, rows): (&Tensor, usize),
        y: &Tensor,
        add: Option<&Tensor>,
        z: Option<&Tensor>,
    ) -> Result<Box<MlpTape>> {
        let products = self.fc1.output_rows(rows)?;
        let fused = self.fuses(run, products)?;
        let norm = self.norm.tape(run, x, rows)?;
        let layer = &self.norm;
        let write = |out: &Tensor, _: &_| layer.write(run, &norm, out);
        let source = match z {
            Some(z) => {
                self.fc1.check_step(run)?;
                self.fc2.check_step(run)?;
                layer.write(run, &norm, z)?;
                Source::Ready(z)
            }
            None => Source::Computed { write: &write, configurable: false },
        };
        let shape = (products, self.fc1.outputs);
        let hidden = QTensor::plain(run, shape, self.fc1.dtype, Lifetime::Tape)?;
        let f = &self.activation;
        let (fc1, fc2);
        if fused {
            let slopes = Slopes { slopes: &hidden.tensor, gated: f.gated, sums: None };
            let (layer, tape) = (RefCell::new(&mut self.fc1), Cell::new(None));
            let write = |out: &Tensor, _: &_| {
                let mut layer = layer.borrow_mut();
                tape.set(Some(layer.forward_active(run, rows, &source, slopes, out)?));
                Ok(())
            };
            let active = Source::Computed { write: &write, configurable: false };
            fc2 = self.fc2.forward(run, products, &active, y, add)?;
            fc1 = match tape.take() {
                Some(tape) => tape,
                None => unreachable!("the second layer computes its input"),
            };
        } else {
            fc1 = self.fc1.forward(run, rows, &source, &hidden.tensor, None)?;
            let write = |out: &Tensor, config: &_| f.forward(run, &hidden.tensor, out, config);
            let active = Source::Computed { write: &write, configurable: true };
            fc2 = self.fc2.forward(run, products, &active, y, add)?;
        }
        let hidden = (!self.checkpoint).then_some(hidden);
        Ok(Box::new(MlpTape { norm, z: z.cloned(), fc1, hidden, fused, fc2, rows }))
    }

    /// The activation's input and the tapes of both products, as the forward pass had them.
    fn forward_again(
        &mut self,
        run: &Run,
        tape: &MlpTape,
    ) -> Result<(QTensor, [Box<DenseTape>; 2])> {
        let layer = &self.norm;
        let write = |out: &Tensor, _: &_| layer.write(run, &tape.norm, out);
        let source = match &tape.z {
            Some(z) => Source::Ready(z),
            None => Source::Computed { write: &write, configurable: false },
        };
        let shape = (self.fc1.output_rows(tape.rows)?, self.fc1.outputs);
        let hidden = QTensor::plain(run, shape, self.fc1.dtype, Lifetime::Scratch)?;
        let fc1 = self.fc1.forward_again(run, &tape.fc1, &source, Some(&hidden.tensor))?;
        let f = &self.activation;
        let write = |out: &Tensor, config: &_| f.forward(run, &hidden.tensor, out, config);
        let source = Source::Computed { write: &write, configurable: true };
        let fc2 = self.fc2.forward_again(run, &tape.fc2, &source, None)?;
        Ok((hidden, [fc1, fc2]))
    }

    /// `dz` is the gradient of the norm's result beside that from y, `add` that of x beside this one. The sums of dx over
    /// the rows go to `dx_sums`.
    #[allow(clippy::too_many_arguments)]
    pub fn backward_to(
        &mut self,
        run: &Run,
        tape: &MlpTape,
        dy: &Tensor,
        dz: Option<&Tensor>,
        add: Option<&Tensor>,
        dx: Option<&Tensor>,
        dx_sums: Option<&QTensor>,
    ) -> Result<()> {
        let again;
        let (hidden, fc1, fc2) = match &tape.hidden {
            Some(hidden) => (hidden, &tape.fc1, &tape.fc2),
            None => {
                again = self.forward_again(run, tape)?;
                (&again.0, &again.1[0], &again.1[1])
            }
        };
        // The norm reads y's gradient, too, if that is added to x's, and adds it up.
        let same = add.is_some_and(|add| add.rowwise.ptr() == dy.rowwise.ptr());
        let dy_sums = if same { self.fc2.grad_sums(run, fc2)? } else { None };
        let dy = &if dy_sums.is_some() { Grad::Summed(dy, None) } else { Grad::Ready(dy) };
        let dtype = self.fc1.dtype;
        let shape = (tape.rows, self.fc1.inputs);
        let total = QTensor::plain(run, shape, dtype, Lifetime::Scratch)?;
        let (hidden, f) = (&hidden.tensor, &self.activation);
        if tape.fused {
            let sums = self.fc1.bias_sums(run)?;
            let slopes = Slopes { slopes: hidden, gated: f.gated, sums: sums.as_ref() };
            let layer = RefCell::new(&mut self.fc2);
            let write =
                |out: &Tensor, _: &_| layer.borrow_mut().backward_active(run, fc2, dy, out, slopes);
            let dh = Grad::Computed(&write, sums.as_ref());
            self.fc1.backward(run, fc1, &dh, Some(&total.tensor), dz)?;
        } else {
            let shape = (self.fc1.output_rows(tape.rows)?, self.fc2.inputs);
            let grad = QTensor::plain(run, shape, dtype, Lifetime::Scratch)?;
            self.fc2.backward(run, fc2, dy, Some(&grad.tensor), None)?;
            let dh = Grad::Activation { f, grad: &grad.tensor, input: hidden };
            self.fc1.backward(run, fc1, &dh, Some(&total.tensor), dz)?;
        }
        let sums = [dy_sums.as_ref(), dx_sums];
        self.norm.backward_with_sums(run, &tape.norm, &total.tensor, add, dx, sums)?;
        dy_sums.map_or(Ok(()), |sums| self.fc2.deposit_sums(run, &sums))
    }

    pub fn parts(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let Self { norm, fc1, fc2, .. } = self;
        norm.parts().chain(fc1.parameters()).chain(fc2.parameters())
    }
}

impl Layer for LayerNormMlp {
    fn arity(&self) -> (usize, usize) {
        (1, 2)
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved> {
        let (dtype, hidden) = (self.fc1.dtype, self.fc1.inputs);
        let (x, rows) = inputs.get(0)?.rows(dtype, hidden)?;
        let y = outputs.get(0)?.matrix(dtype, (rows, hidden))?;
        let z = outputs.find_matrix(1, dtype, (rows, hidden))?;
        Ok(self.forward_to(run, (&x, rows), &y, None, z.as_ref())?)
    }

    fn backward(&mut self, run: &Run, tape: &Tape, [given, wanted]: [&Tensors; 2]) -> Result<()> {
        let tape: &MlpTape = saved(tape)?;
        let (dtype, shape) = (self.fc1.dtype, (tape.rows, self.fc1.inputs));
        let dy = given.get(0)?.matrix(dtype, shape)?;
        let dz = given.find_matrix(1, dtype, shape)?;
        let dx = wanted.find_matrix(0, dtype, shape)?;
        self.backward_to(run, tape, &dy, dz.as_ref(), None, dx.as_ref(), None)
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        named("", self.parts())
    }
}
