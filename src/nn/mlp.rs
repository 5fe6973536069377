//! `LayerNormMLP`: norm, linear, activation, linear (spec: modules, section 9).

use super::context::Run;
use super::dense::{Again, Dense, DenseConfig, DenseTape, Grad, Slopes};
use super::memory::Lifetime;
use super::norm::{NormConfig, NormLayer, NormTape};
use super::ops::Activation;
use super::parameter::Parameter;
use super::quantizer::{QTensor, Source, is_high_precision};
use super::{Layer, Saved, Tape, Tensors, named, saved};
use crate::backend::args::Function;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::verbose::{self, Level};

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
    /// The input of the activation, or its derivatives there if `active` is set; none if it is to be computed again.
    hidden: Option<QTensor>,
    /// The activation, cast if the layer behind casts it, if it was computed with the product before it: so is its
    /// derivative with that behind it.
    active: Option<QTensor>,
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
        if fused {
            let mut active = self.fc2.room_for_input(run, products)?;
            let slopes =
                Slopes { slopes: &hidden.tensor, gated: self.activation.gated, sums: None };
            let fc1 = self.fc1.forward_active(run, rows, &source, slopes, &active.tensor)?;
            let source = match is_high_precision(active.tensor.dtype()) {
                true => Source::Ready(&active.tensor),
                false => Source::Cast(&active.tensor),
            };
            let fc2 = self.fc2.forward(run, products, &source, y, add)?;
            active.drop_rowwise();
            let (hidden, active) = (Some(hidden), Some(active));
            return Ok(Box::new(MlpTape { norm, z: z.cloned(), fc1, hidden, active, fc2, rows }));
        }
        let fc1 = self.fc1.forward(run, rows, &source, &hidden.tensor, None)?;
        let f = &self.activation;
        let write = |out: &Tensor, config: &_| f.forward(run, &hidden.tensor, out, config);
        let source = Source::Computed { write: &write, configurable: true };
        let fc2 = self.fc2.forward(run, products, &source, y, add)?;
        let hidden = (!self.checkpoint).then_some(hidden);
        Ok(Box::new(MlpTape { norm, z: z.cloned(), fc1, hidden, active: None, fc2, rows }))
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
        let (grad, sums);
        let dh = if tape.active.is_some() {
            grad = self.fc1.room_for_grad(run, fc1)?;
            sums = self.fc1.bias_sums(run)?;
            let (slopes, gated, sums) = (&hidden.tensor, self.activation.gated, sums.as_ref());
            let slopes = Slopes { slopes, gated, sums };
            self.fc2.backward_active(run, fc2, dy, &grad.tensor, slopes)?;
            Grad::Summed(&grad.tensor, sums)
        } else {
            let shape = (self.fc1.output_rows(tape.rows)?, self.fc2.inputs);
            grad = QTensor::plain(run, shape, dtype, Lifetime::Scratch)?;
            self.fc2.backward(run, fc2, dy, Some(&grad.tensor), None)?;
            Grad::Activation { f: &self.activation, grad: &grad.tensor, input: &hidden.tensor }
        };
        let shape = (tape.rows, self.fc1.inputs);
        let total = QTensor::plain(run, shape, dtype, Lifetime::Scratch)?;
        self.fc1.backward(run, fc1, &dh, Some(&total.tensor), dz)?;
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
