//! The last branch of a layer of a Transformer: a norm, and an MLP or experts behind it.

use super::context::Run;
use super::memory::Lifetime;
use super::mlp::{LayerNormMlp, MlpConfig, MlpTape};
use super::moe::{Moe, MoeConfig, MoeTape};
use super::norm::{NormConfig, NormLayer, NormTape};
use super::parameter::Parameter;
use super::quantizer::QTensor;
use super::{Tensors, named};
use crate::error::Result;
use crate::tensor::Tensor;

pub enum BranchConfig {
    Mlp(Box<MlpConfig>),
    Experts(NormConfig, Box<MoeConfig>),
}

/// It is on the heap, since a layer passes through many frames of the stack.
pub enum Branch {
    Mlp(Box<LayerNormMlp>),
    Experts(Box<NormLayer>, Box<Moe>),
}

pub enum BranchTape {
    Mlp(Box<MlpTape>),
    Experts(Box<ExpertsTape>),
}

pub struct ExpertsTape {
    norm: NormTape,
    /// The norm's result.
    _normed: QTensor,
    moe: Box<MoeTape>,
    rows: usize,
}

/// Tensors of a call beside the rows.
#[derive(Default)]
pub struct Others<'a> {
    /// What is added to y, or to the gradient of x.
    pub add: Option<&'a Tensor>,
    /// The norm's result, or its gradient.
    pub z: Option<&'a Tensor>,
    /// Of experts: their losses, or the gradient of these.
    pub losses: Option<&'a Tensor>,
    /// Of experts: how many tokens have chosen each.
    pub loads: Option<&'a Tensor>,
    /// Where the sums of the gradient of x over the rows go.
    pub dx_sums: Option<&'a QTensor>,
}

impl Branch {
    pub fn new(run: &Run, name: &str, config: &BranchConfig) -> Result<Self> {
        Ok(match config {
            BranchConfig::Mlp(config) => {
                let name = format!("{name}.layernorm_mlp");
                Self::Mlp(Box::new(LayerNormMlp::new(run, &name, config)?))
            }
            BranchConfig::Experts(norm, config) => {
                let name = format!("{name}.layernorm_moe");
                let moe = Box::new(Moe::new(run, &name, config)?);
                let norm = NormLayer::new(run, norm)?.of_parts(moe.rows_shared());
                Self::Experts(Box::new(norm), moe)
            }
        })
    }

    /// Writes y, and z = norm(x) if that is asked for.
    pub fn forward_to(
        &mut self,
        run: &Run,
        (x, rows): (&Tensor, usize),
        y: &Tensor,
        Others { add, z, losses, loads, .. }: Others,
    ) -> Result<BranchTape> {
        let (norm, moe) = match self {
            Self::Mlp(mlp) => {
                return mlp.forward_to(run, (x, rows), y, add, z).map(BranchTape::Mlp);
            }
            Self::Experts(norm, moe) => (norm, moe),
        };
        let tape = norm.tape(run, x, rows)?;
        let normed = match z {
            Some(z) => QTensor::borrowed(z.clone()),
            None => QTensor::plain(run, (rows, moe.hidden), moe.dtype, Lifetime::Tape)?,
        };
        norm.write(run, &tape, &normed.tensor)?;
        let moe = moe.forward_to(run, (&normed.tensor, rows), y, add, [losses, loads])?;
        Ok(BranchTape::Experts(Box::new(ExpertsTape { norm: tape, _normed: normed, moe, rows })))
    }

    /// `z` is the gradient of the norm's result beside that from y, `add` that of x beside this one.
    pub fn backward_to(
        &mut self,
        run: &Run,
        tape: &BranchTape,
        dy: &Tensor,
        Others { add, z, losses, dx_sums, .. }: Others,
        dx: Option<&Tensor>,
    ) -> Result<()> {
        match (self, tape) {
            (Self::Mlp(mlp), BranchTape::Mlp(tape)) => {
                mlp.backward_to(run, tape, dy, z, add, dx, dx_sums)
            }
            (Self::Experts(norm, moe), BranchTape::Experts(tape)) => {
                let shape = (tape.rows, moe.hidden);
                let total = QTensor::plain(run, shape, moe.dtype, Lifetime::Scratch)?;
                let total = &total.tensor;
                moe.backward_to(run, &tape.moe, dy, losses, z, Some(total))?;
                norm.backward_with_sums(run, &tape.norm, total, add, dx, [None, dx_sums])
            }
            _ => unreachable!("a tape is of the branch that has made it"),
        }
    }

    /// The second and third output of a call, or their gradients: of experts alone.
    pub fn extras(&self, tensors: &Tensors) -> Result<[Option<Tensor>; 2]> {
        match self {
            Self::Mlp(_) => Ok([None, None]),
            Self::Experts(_, moe) => moe.extras(tensors),
        }
    }

    /// The gradient of the losses of experts, if it is given.
    pub fn losses_grad(&self, given: &Tensors) -> Result<Option<Tensor>> {
        match self {
            Self::Mlp(_) => Ok(None),
            Self::Experts(_, moe) => moe.losses_grad(given),
        }
    }

    /// How many outputs [`Self::extras`] knows.
    pub fn num_extras(&self) -> usize {
        if matches!(self, Self::Experts(..)) { 2 } else { 0 }
    }

    pub fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        match self {
            Self::Mlp(mlp) => named("layernorm_mlp.", mlp.parts()),
            Self::Experts(norm, moe) => {
                let mut all = named("layernorm_moe.", norm.parts());
                let of_moe = moe.parts().into_iter();
                all.extend(of_moe.map(|(name, p)| (format!("layernorm_moe.{name}"), p)));
                all
            }
        }
    }
}
