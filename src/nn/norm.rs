//! LayerNorm and RMSNorm as modules and as parts of modules (spec: modules, section 10).

use super::context::Run;
use super::memory::{Block, Lifetime};
use super::ops;
use super::parameter::{Init, Parameter};
use super::quantizer::QTensor;
use super::split::{Split, Spread};
use super::{Layer, Saved, Tape, Tensors, named, saved};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Tensor};
use crate::types::NVTE_Norm_Type::*;
use crate::types::NVTEDType::{self, *};

pub struct NormConfig {
    pub op: ops::Norm,
    pub hidden: usize,
    pub dtype: NVTEDType,
    /// Names of the parameters.
    pub names: [&'static str; 2],
}

/// A normalization of the rows with its parameters.
pub struct NormLayer {
    op: ops::Norm,
    gamma: Parameter,
    beta: Option<Parameter>,
    pub hidden: usize,
    dtype: NVTEDType,
    /// The ranks that have the other rows, whose gradients of the parameters are added.
    others: Option<Split>,
}

/// The input, and what the backward pass needs of its rows.
pub struct NormTape {
    x: Tensor,
    stats: Stats,
    rows: usize,
}

struct Stats {
    _block: Block,
    mu: Tensor,
    rsigma: Tensor,
}

impl NormLayer {
    pub fn new(run: &Run, config: &NormConfig) -> Result<Self> {
        let &NormConfig { op, hidden, dtype, names } = config;
        if hidden == 0 || hidden > 1 << 31 {
            return Err(Error::argument("config.hidden_size", "1 to 2^31", hidden));
        }
        if !(op.epsilon.is_finite() && op.epsilon >= 0.0) {
            return Err(Error::argument(
                "config.epsilon",
                "a finite number, at least 0",
                op.epsilon,
            ));
        }
        let one = Init::Constant(if op.zero_centered { 0.0 } else { 1.0 });
        let new = |name, init| Parameter::new(run, name, &[hidden], dtype, init, None);
        let gamma = new(names[0], one)?;
        let beta = match op.kind {
            LayerNorm => Some(new(names[1], Init::Constant(0.0))?),
            RMSNorm => None,
        };
        Ok(Self { op, gamma, beta, hidden, dtype, others: None })
    }

    /// A norm by itself, whose rows ranks may share.
    pub fn spread(run: &Run, config: &NormConfig, spread: &Spread) -> Result<Self> {
        let split = Split::of(run, spread)?;
        Ok(Self::new(run, config)?.of_parts(split.as_ref()))
    }

    /// The same for rows of which other ranks have some.
    pub fn of_parts(self, split: Option<&Split>) -> Self {
        Self { others: split.cloned(), ..self }
    }

    /// The tape of a pass, whose statistics [`Self::write`] fills.
    pub fn tape(&self, run: &Run, x: &Tensor, rows: usize) -> Result<NormTape> {
        let half = (4 * rows).next_multiple_of(256);
        let lifetime = if run.training { Lifetime::Tape } else { Lifetime::Scratch };
        let block = run.block(2 * half, lifetime)?;
        let mu = ops::plain(block.buffer(0, kNVTEFloat32, &[rows]));
        let rsigma = ops::plain(block.buffer(half, kNVTEFloat32, &[rows]));
        Ok(NormTape { x: x.clone(), stats: Stats { _block: block, mu, rsigma }, rows })
    }

    /// `z = norm(x)`, cast if z has scales.
    pub fn write(&self, run: &Run, tape: &NormTape, z: &Tensor) -> Result<()> {
        let beta = self.beta.as_ref().map(|beta| &beta.value.tensor);
        let stats = [&tape.stats.mu, &tape.stats.rsigma];
        self.op.forward(run, &tape.x, (&self.gamma.value.tensor, beta), z, stats)
    }

    /// Gradients: of the parameters to where they are bound, of x to `dx`, plus `add`.
    pub fn backward_to(
        &self,
        run: &Run,
        tape: &NormTape,
        dz: &Tensor,
        add: Option<&Tensor>,
        dx: Option<&Tensor>,
    ) -> Result<()> {
        self.backward_with_sums(run, tape, dz, add, dx, [None; 2])
    }

    /// The same, and the sums of `add` and of `dx` over the rows: gradients of biases whose outputs these belong to.
    pub fn backward_with_sums(
        &self,
        run: &Run,
        tape: &NormTape,
        dz: &Tensor,
        add: Option<&Tensor>,
        dx: Option<&Tensor>,
        more: [Option<&QTensor>; 2],
    ) -> Result<()> {
        let bound = |p: &Parameter| p.grad.is_some();
        if more.iter().all(Option::is_none)
            && dx.is_none()
            && !bound(&self.gamma)
            && !self.beta.as_ref().is_some_and(bound)
        {
            return Ok(());
        }
        let scratch;
        let dx = match dx {
            Some(dx) => dx,
            None => {
                let shape = (tape.rows, self.hidden);
                scratch = QTensor::plain(run, shape, self.dtype, Lifetime::Scratch)?;
                &scratch.tensor
            }
        };
        let stats = [&tape.stats.mu, &tape.stats.rsigma];
        let gamma = &self.gamma.value.tensor;
        let backward = |sums| self.op.backward(run, dz, &tape.x, stats, gamma, add, dx, sums, more);
        if let (Some(split), Some(beta)) = (&self.others, self.beta.as_ref().filter(|p| bound(p)))
            && bound(&self.gamma)
        {
            // One sum over the ranks for both.
            let shape = (2, self.hidden);
            let scratch = QTensor::plain(run, shape, self.dtype, Lifetime::Scratch)?;
            let both = &scratch.tensor.rowwise;
            let row = |index: usize| {
                let first = both.ptr().wrapping_byte_add(index * both.bytes() / 2);
                ops::plain(Buffer::new(first, self.dtype, &[self.hidden]))
            };
            let sums = [row(0), row(1)];
            backward([&sums[0], &sums[1]])?;
            split.sum(run, both)?;
            self.gamma.receive(run, &sums[0])?;
            return beta.receive(run, &sums[1]);
        }
        let dgamma = self.gamma.landing(run, self.dtype)?;
        let dbeta = self.beta.as_ref().unwrap_or(&self.gamma).landing(run, self.dtype)?;
        backward([&dgamma.tensor, &dbeta.tensor])?;
        if let Some(split) = &self.others {
            let both = [(Some(&self.gamma), &dgamma), (self.beta.as_ref(), &dbeta)];
            for (parameter, sum) in both {
                if parameter.is_some_and(bound) {
                    split.sum(run, &sum.tensor.rowwise)?;
                }
            }
        }
        self.gamma.deposit(run, &dgamma)?;
        match &self.beta {
            Some(beta) => beta.deposit(run, &dbeta),
            None => Ok(()),
        }
    }

    pub fn parts(&mut self) -> impl Iterator<Item = &mut Parameter> {
        std::iter::once(&mut self.gamma).chain(&mut self.beta)
    }
}

impl Layer for NormLayer {
    fn arity(&self) -> (usize, usize) {
        (1, 1)
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved> {
        let (x, rows) = inputs.get(0)?.rows(self.dtype, self.hidden)?;
        let z = outputs.get(0)?.matrix(self.dtype, (rows, self.hidden))?;
        let tape = self.tape(run, &x, rows)?;
        self.write(run, &tape, &z)?;
        Ok(Box::new(tape))
    }

    fn backward(&mut self, run: &Run, tape: &Tape, [given, wanted]: [&Tensors; 2]) -> Result<()> {
        let tape: &NormTape = saved(tape)?;
        let shape = (tape.rows, self.hidden);
        let dz = given.get(0)?.matrix(self.dtype, shape)?;
        let dx = wanted.find_matrix(0, self.dtype, shape)?;
        self.backward_to(run, tape, &dz, None, dx.as_ref())
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        named("", self.parts())
    }
}
