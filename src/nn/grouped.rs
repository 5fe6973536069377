//! `GroupedLinear`: the rows of one input go through linear layers of their own (spec: modules, section 11).

use super::context::Run;
use super::dense::{Dense, DenseConfig, DenseTape, Grad};
use super::parameter::{Parameter, splitmix};
use super::quantizer::Source;
use super::{Layer, Saved, Tape, Tensors, saved, with_last};
use crate::error::{Error, Result};
use crate::nn::ops::{self, plain};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTEDType;

/// `y_e = x_e W_e^T + b_e`, with the splits of the step.
pub struct GroupedLinear {
    parts: Vec<Dense>,
}

struct GroupedTape {
    /// First row and tape of each part that has rows.
    parts: Vec<Option<(usize, Box<DenseTape>)>>,
    rows: usize,
}

impl GroupedLinear {
    pub fn new(run: &Run, name: &str, count: usize, config: &DenseConfig) -> Result<Self> {
        let part = |e: usize| {
            let seed = splitmix(config.seed.wrapping_add(e as u64));
            Dense::new(run, &format!("{name}.{e}"), &DenseConfig { seed, ..*config })
        };
        Ok(Self { parts: (0..count).map(part).collect::<Result<_>>()? })
    }

    fn first(&self) -> &Dense {
        &self.parts[0]
    }

    /// Rows of each part, which sum to those of the input.
    fn splits<'a>(&self, run: &'a Run, rows: usize) -> Result<&'a [usize]> {
        let (splits, count) = (&run.splits, self.parts.len());
        if splits.len() != count {
            return Err(Error::argument(
                "step.num_splits",
                format!("{count} (num_gemms)"),
                splits.len(),
            ));
        }
        let sum = splits.iter().try_fold(0usize, |sum, &split| sum.checked_add(split));
        if sum != Some(rows) {
            let got = sum.map_or_else(|| "more than 2^64".to_owned(), |sum| sum.to_string());
            return Err(Error::argument("step.m_splits", format!("a sum of {rows} (rows)"), got));
        }
        Ok(splits)
    }
}

/// Rows of a matrix from `first` on.
fn slice(matrix: &Tensor, first: usize, rows: usize) -> Tensor {
    let buffer = &matrix.rowwise;
    let cols = buffer.shape.flatten().1;
    let at = first * cols * buffer.dtype.bits() / 8;
    plain(Buffer::new(buffer.ptr().wrapping_byte_add(at), buffer.dtype, &[rows, cols]))
}

impl Layer for GroupedLinear {
    fn arity(&self) -> (usize, usize) {
        (1, 1)
    }

    fn output(&self, input: &Buffer) -> (Shape, NVTEDType) {
        (with_last(&input.shape, self.first().outputs), input.dtype)
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved> {
        let &Dense { dtype, inputs: cols, outputs: out_cols, .. } = self.first();
        let (x, rows) = inputs.get(0)?.rows(dtype, cols)?;
        let y = outputs.get(0)?.matrix(dtype, (rows, out_cols))?;
        let splits = self.splits(run, rows)?;
        let (mut parts, mut first) = (Vec::new(), 0);
        for (part, &rows) in self.parts.iter_mut().zip(splits) {
            if rows == 0 {
                parts.push(None);
                continue;
            }
            let (x, y) = (slice(&x, first, rows), slice(&y, first, rows));
            let tape = part.forward(run, rows, &Source::Ready(&x), &y, None)?;
            parts.push(Some((first, tape)));
            first += rows;
        }
        Ok(Box::new(GroupedTape { parts, rows }))
    }

    fn backward(&mut self, run: &Run, tape: &Tape, [given, wanted]: [&Tensors; 2]) -> Result<()> {
        let tape: &GroupedTape = saved(tape)?;
        let &Dense { dtype, inputs: cols, outputs: out_cols, .. } = self.first();
        let dy = given.get(0)?.matrix(dtype, (tape.rows, out_cols))?;
        let dx = wanted.find_matrix(0, dtype, (tape.rows, cols))?;
        for (part, tape) in self.parts.iter_mut().zip(&tape.parts) {
            let Some((first, tape)) = tape else {
                zero_gradients(run, part)?;
                continue;
            };
            let dy = slice(&dy, *first, tape.rows());
            let dx = dx.as_ref().map(|dx| slice(dx, *first, tape.rows()));
            part.backward(run, tape, &Grad::Ready(&dy), dx.as_ref(), None)?;
        }
        Ok(())
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        let parts = self.parts.iter_mut().enumerate();
        parts
            .flat_map(|(e, part)| part.parameters().map(move |p| (format!("{}{e}", p.name), p)))
            .collect()
    }
}

/// The gradients of a part without rows, which are not to be added to others.
fn zero_gradients(run: &Run, part: &mut Dense) -> Result<()> {
    for parameter in part.parameters() {
        if let Some((grad, false)) = parameter.target(run) {
            ops::zero(&grad.rowwise, run.stream)?;
        }
    }
    Ok(())
}
