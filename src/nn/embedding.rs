//! `Embedding`: rows of a table for tokens, and of another one for their positions.

use super::context::Run;
use super::ops;
use super::parameter::{Init, Parameter, splitmix};
use super::split::{self, Shard, Split, Spread};
use super::{Argument, Layer, Saved, Tape, Tensors, named, saved};
use crate::check;
use crate::error::{Error, Result};
use crate::op::embedding::{Gradients, Lookup, Rule};
use crate::tensor::{Buffer, Shape};
use crate::types::NVTEDType::{self, *};

pub struct EmbeddingConfig {
    /// What the config says of ranks: each has some rows of the table of tokens.
    pub spread: Spread,
    pub vocabulary: usize,
    pub hidden: usize,
    /// Rows of the table of positions; 0: there is none.
    pub positions: usize,
    /// Factor of the rows of tokens.
    pub scale: f32,
    pub dtype: NVTEDType,
    /// Standard deviations of the initial tables of tokens and positions.
    pub deviations: [f32; 2],
    pub seed: u64,
}

/// `y = scale * weight[token] + position_weight[position]`
pub struct Embedding {
    weight: Parameter,
    position: Option<Parameter>,
    hidden: usize,
    scale: f32,
    dtype: NVTEDType,
    /// The ranks that have the other tokens.
    split: Option<Split>,
}

struct EmbeddingTape {
    tokens: Buffer,
    positions: Buffer,
    rule: Rule,
}

impl Embedding {
    pub fn new(run: &Run, config: &EmbeddingConfig) -> Result<Self> {
        let &EmbeddingConfig { vocabulary, hidden, positions, scale, dtype, seed, .. } = config;
        let table = |name, rows, deviation, seed| {
            let init = Init::Normal { deviation, seed };
            Parameter::new(run, name, &[rows, hidden], dtype, init, None)
        };
        let [deviation, of_positions] = config.deviations;
        let position = match positions {
            0 => None,
            rows => {
                let seed = splitmix(seed.wrapping_add(1));
                Some(table("position_weight", rows, of_positions, seed)?)
            }
        };
        let (split, whole) = (Split::of(run, &config.spread)?, [vocabulary, hidden]);
        let shard = match &split {
            Some(split) => split.shard(&whole, 0, 1)?,
            None => Shard::all(&whole),
        };
        let init = Init::Normal { deviation, seed };
        let weight = Parameter::of(run, "weight", shard, dtype, init, None)?;
        Ok(Self { weight, position, hidden, scale, dtype, split })
    }

    fn rule(&self, sequence: usize) -> Rule {
        let shard = &self.weight.shard;
        let (start, size) = match &self.split {
            Some(_) => (shard.index(0), shard.whole[0]),
            None => (0, 0),
        };
        Rule { scale: self.scale, sequence, start, size }
    }
}

impl Argument<'_> {
    /// Whole numbers, of any shape with at least one of them.
    pub(super) fn integers(&self) -> Result<Buffer> {
        let data = &self.tensor.rowwise;
        check::dtype(self, data.dtype, &[kNVTEInt32, kNVTEInt64])?;
        if data.shape.numel() == 0 {
            return Err(Error::argument(format!("{self}.shape"), "1 element or more", data.shape));
        }
        check::pointer(format_args!("{self}.data"), data)?;
        Ok(*data)
    }
}

impl Layer for Embedding {
    fn arity(&self) -> (usize, usize) {
        (2, 1)
    }

    fn output(&self, input: &Buffer) -> (Shape, NVTEDType) {
        let dims = input.shape.dims().iter().copied().chain([self.hidden]);
        let shape = Shape::new(&dims.collect::<Vec<_>>());
        let rows = split::own_rows(self.split.as_ref(), input.shape.numel());
        (split::with_rows(&shape, rows), self.dtype)
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved> {
        let tokens = inputs.get(0)?.integers()?;
        let (split, count) = (self.split.as_ref(), tokens.shape.numel());
        let rows = split::divided_rows(split, "inputs[0]: tokens", count)?;
        let y = outputs.get(0)?.matrix(self.dtype, (rows, self.hidden))?;
        let sequence = tokens.shape.dims().last().copied().unwrap_or(1);
        let positions = match (inputs.find(1), &self.position) {
            (None, None) => Buffer::UNSET,
            (Some(given), Some(_)) => given.integers()?,
            (Some(given), None) => {
                let expected = "null (the module has no table of positions)";
                return Err(Error::argument(given, expected, "a tensor"));
            }
            (None, Some(table)) if sequence > table.dims[0] => {
                let expected = format!("[..., {}] or less, as max_positions", table.dims[0]);
                return Err(Error::argument("inputs[0].shape", expected, tokens.shape));
            }
            (None, Some(_)) => Buffer::UNSET,
        };
        // One rank adds the rows of positions to its own, which are 0 for tokens of others.
        let position = self.position.as_ref().filter(|_| split.is_none_or(Split::is_first));
        let position_weight = position.map_or(Buffer::UNSET, |p| p.buffer());
        let lookup = Lookup {
            tokens: &tokens,
            weight: &self.weight.value.tensor,
            positions: &positions,
            position_weight: &position_weight,
            wrong: &Buffer::UNSET,
        };
        let rule = self.rule(sequence);
        split::reduce(split, run, &y, |y| ops::embedding_forward(run, &lookup, y, &rule))?;
        Ok(Box::new(EmbeddingTape { tokens, positions, rule }))
    }

    fn backward(&mut self, run: &Run, tape: &Tape, [given, wanted]: [&Tensors; 2]) -> Result<()> {
        let EmbeddingTape { tokens, positions, rule } = saved(tape)?;
        for index in 0..2 {
            if let Some(wanted) = wanted.find(index) {
                let expected = "null (tokens and positions have no gradients)";
                return Err(Error::argument(wanted, expected, "a tensor"));
            }
        }
        let rows = split::own_rows(self.split.as_ref(), tokens.shape.numel());
        let dy = given.get(0)?.matrix(self.dtype, (rows, self.hidden))?;
        let whole = split::gather(self.split.as_ref(), run, &dy)?;
        let begun = std::mem::take(&mut self.weight.begun);
        let targets = [self.weight.target(run), self.position.as_ref().and_then(|p| p.target(run))];
        for (i, target) in targets.into_iter().enumerate() {
            let Some((target, accumulate)) = target else { continue };
            let mut tables = [Buffer::UNSET; 2];
            tables[i] = target.rowwise;
            let gradients = Gradients {
                tokens,
                positions,
                grad_output: &whole.tensor,
                grad_weight: &tables[0],
                grad_position_weight: &tables[1],
                accumulate: accumulate || i == 0 && begun,
            };
            ops::embedding_backward(run, &gradients, rule)?;
        }
        Ok(())
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        named("", std::iter::once(&mut self.weight).chain(&mut self.position))
    }

    fn reads_in_backward(&self) -> bool {
        false
    }
}
