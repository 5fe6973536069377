//! Modules that ranks share: which of them has what, and how parts become a whole. A column-parallel layer has some of
//! the outputs of a product, a row-parallel one some of its inputs, so that its product is a part of a sum. Ranks that
//! share rows, too, have some of the rows wherever they do not multiply. Modules say what they need by these functions
//! alone; without other ranks all of them return what they were given.

pub mod chunks;

use super::context::Run;
use super::memory::Lifetime;
use super::ops::{self, plain};
use super::quantizer::QTensor;
use crate::error::{Error, Result};
use crate::parallel::Communicator;
use crate::parallel::exports::NVTEXGridGroup::{self, NVTEX_GRID_EP, NVTEX_GRID_TP};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::cudaStream_t;
use std::cell::Cell;
use std::fmt::{self, Display, Formatter};
use std::ops::Range;
use std::sync::Arc;

/// Which side of a product ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Its outputs: rows of the weight.
    Column,
    /// Its inputs: columns of the weight.
    Row,
}

/// What a config says of the ranks of a module, before it is known which there are.
#[derive(Clone, Copy)]
pub struct Spread {
    /// The config.
    pub name: &'static str,
    /// Ranks; 0: as many as the context's grid has.
    pub size: usize,
    /// They share rows, too.
    pub sequence: bool,
    /// Each rank scales its own part of a tensor by itself, where a scale comes from all values.
    pub local_scales: bool,
}

impl Spread {
    pub const ALONE: Self = Self { name: "config", size: 1, sequence: false, local_scales: false };

    /// Whether it says the same as that of another config.
    pub fn same(&self, other: &Self) -> bool {
        let fields = |one: &Self| (one.size, one.sequence, one.local_scales);
        fields(self) == fields(other)
    }
}

impl Display for Spread {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Self { size, sequence, local_scales, .. } = self;
        write!(f, "tensor_parallel_size {size}, sequence_parallel {sequence}")?;
        if *local_scales { f.write_str(", local_scales true") } else { Ok(()) }
    }
}

/// The ranks that share the weights of a module; there are at least two.
#[derive(Clone)]
pub struct Split {
    ranks: Arc<Communicator>,
    /// They share rows, too.
    pub sequence: bool,
    local_scales: bool,
}

/// A rank's part of a parameter: of one dimension it has some pieces, one behind the other.
#[derive(Clone, Debug)]
pub struct Shard {
    /// The ranks that have the parts.
    pub over: NVTEXGridGroup,
    /// The dimensions of the whole.
    pub whole: Vec<usize>,
    pub dim: usize,
    pub pieces: Vec<Piece>,
    /// Of a parameter of experts that ranks divide twice: the experts of this rank, which are indices of the first
    /// dimension. `dim` is another one then, which NVTEX_GRID_TP divides.
    pub experts: Option<Range<usize>>,
}

/// Consecutive indices of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first index in the whole and in the part.
    pub whole: usize,
    pub part: usize,
    pub length: usize,
}

impl Shard {
    /// All of a parameter.
    pub fn all(dims: &[usize]) -> Self {
        let length = dims.first().copied().unwrap_or(1);
        let pieces = vec![Piece { whole: 0, part: 0, length }];
        Self { over: NVTEX_GRID_TP, whole: dims.to_vec(), dim: 0, pieces, experts: None }
    }

    /// The dimensions of the part.
    pub fn dims(&self) -> Vec<usize> {
        let mut dims = self.whole.clone();
        if let Some(dim) = dims.get_mut(self.dim) {
            *dim = self.pieces.iter().map(|piece| piece.length).sum();
        }
        if let (Some(experts), Some(first)) = (&self.experts, dims.first_mut()) {
            *first = experts.len();
        }
        dims
    }

    /// The part among the experts of this rank, and the part that these are of all of them.
    pub fn levels(&self) -> Vec<Self> {
        let Some(experts) = &self.experts else { return vec![self.clone()] };
        let mut of_rank = Self { experts: None, ..self.clone() };
        of_rank.whole[0] = experts.len();
        let piece = Piece { whole: experts.start, part: 0, length: experts.len() };
        let (over, whole) = (NVTEX_GRID_EP, self.whole.clone());
        let of_all = Self { over, whole, dim: 0, pieces: vec![piece], experts: None };
        vec![of_rank, of_all]
    }

    pub fn is_all(&self) -> bool {
        self.dims() == self.whole
    }

    /// Whether ranks of a group have parts.
    pub fn is_over(&self, group: NVTEXGridGroup) -> bool {
        let experts = group == NVTEX_GRID_EP && self.experts.is_some();
        experts || self.over == group && !self.is_all()
    }

    /// Where elements of the part, row by row, are in the whole: runs of elements, one behind the other.
    pub fn runs(&self, part: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let size = |dims: &[usize]| dims.iter().product::<usize>();
        let split = self.dim.min(self.whole.len());
        let (before, rest) = self.whole.split_at(split);
        let (dim, after) = rest.split_first().map_or((1, 1), |(&dim, rest)| (dim, size(rest)));
        let own: usize = self.pieces.iter().map(|piece| piece.length).sum();
        // Of what lies before the dimension this rank may have only that of its experts.
        let each = self.experts.as_ref().map_or(0, |_| size(&before[1..]));
        let outer = self
            .experts
            .as_ref()
            .map_or(0..size(before), |experts| experts.start * each..experts.end * each);
        let all = outer.clone().flat_map(move |index| {
            let of_piece = move |piece: &Piece| {
                let place =
                    |outer: usize, length: usize, first: usize| (outer * length + first) * after;
                let part = place(index - outer.start, own, piece.part);
                (part, place(index, dim, piece.whole), piece.length * after)
            };
            self.pieces.iter().map(of_piece)
        });
        all.filter_map(move |(first, whole, count)| {
            let start = part.start.max(first);
            let end = part.end.min(first + count);
            (start < end).then(|| whole + start - first..whole + end - first)
        })
    }

    /// The index in the whole of an index of the divided dimension of the part.
    pub fn index(&self, part: usize) -> usize {
        let found = self.pieces.iter().find(|piece| part < piece.part + piece.length);
        found.map_or(part, |piece| piece.whole + part - piece.part)
    }
}

impl Split {
    /// The ranks of a module; none if it is on this rank alone.
    pub fn of(run: &Run, spread: &Spread) -> Result<Option<Self>> {
        let ranks = run.context.group(NVTEX_GRID_TP);
        let size = ranks.map_or(1, |ranks| ranks.size());
        if ![0, 1, size].contains(&spread.size) {
            let expected = match size {
                1 => "1 (nvtex_context_set_grid gives a module other ranks)".into(),
                _ => format!("0, 1 or {size}, the ranks of the grid that share weights"),
            };
            let name = format!("{}.parallel.tensor_parallel_size", spread.name);
            return Err(Error::argument(name, expected, spread.size));
        }
        let &Spread { sequence, local_scales, .. } = spread;
        let ranks = ranks.filter(|_| spread.size != 1);
        Ok(ranks.map(|ranks| Self { ranks: Arc::clone(ranks), sequence, local_scales }))
    }

    pub fn size(&self) -> usize {
        self.ranks.size()
    }

    /// Whether this rank does what one of them has to do.
    pub fn is_first(&self) -> bool {
        self.ranks.rank() == 0
    }

    /// Gathers the same number of values of each rank.
    pub fn gather_values(&self, run: &Run, own: &Buffer, all: &Buffer) -> Result<()> {
        self.gather_on(run, own, all, run.stream)
    }

    /// [`Self::gather_values`] on a stream.
    pub fn gather_on(
        &self,
        run: &Run,
        own: &Buffer,
        all: &Buffer,
        stream: cudaStream_t,
    ) -> Result<()> {
        self.ranks.gather(own, all, label(run), stream)
    }

    /// The ranks whose maxima give the scales of a tensor of which each has a part.
    pub fn scale_ranks(&self) -> Option<Arc<Communicator>> {
        (!self.local_scales).then(|| Arc::clone(&self.ranks))
    }

    /// The ranks, which give what they gather one scale.
    pub fn ranks(&self) -> Option<Arc<Communicator>> {
        Some(Arc::clone(&self.ranks))
    }

    /// The own share of a number of things.
    pub fn share(&self, what: &str, count: usize) -> Result<usize> {
        match count.is_multiple_of(self.size()) {
            true => Ok(count / self.size()),
            false => {
                let expected = format!("a multiple of {}, the ranks that share them", self.size());
                Err(Error::argument(what, expected, count))
            }
        }
    }

    /// The own part of a parameter whose dimension `dim` has `blocks` blocks, each of which is divided.
    pub fn shard(&self, dims: &[usize], dim: usize, blocks: usize) -> Result<Shard> {
        let block = dims[dim] / blocks;
        let length = self.share("a dimension of a weight", block)?;
        let pieces = (0..blocks).map(|i| {
            let (whole, part) = (i * block + self.ranks.rank() * length, i * length);
            Piece { whole, part, length }
        });
        let (over, whole) = (NVTEX_GRID_TP, dims.to_vec());
        Ok(Shard { over, whole, dim, pieces: pieces.collect(), experts: None })
    }

    /// Where each rank has `own` things: those of the ranks before, and those of all others.
    pub fn others(&self, own: usize) -> [usize; 2] {
        [self.ranks.rank() * own, (self.size() - 1) * own]
    }

    /// Elements of the whole before those of this rank, where ranks share rows.
    pub fn elements_before(&self, own: usize) -> usize {
        if self.sequence { self.ranks.rank() * own } else { 0 }
    }

    /// Replaces a gradient that is a sum over this rank's part by that over all.
    pub fn sum(&self, run: &Run, data: &Buffer) -> Result<()> {
        self.ranks.sum(data, label(run), run.stream)
    }
}

/// What the ranks exchange, for their messages: the module.
pub fn label(run: &Run) -> &str {
    run.module.as_deref().unwrap_or("")
}

/// Rows of the whole, of which each rank has `rows`.
pub fn whole_rows(split: Option<&Split>, rows: usize) -> usize {
    split.filter(|split| split.sequence).map_or(rows, |split| rows * split.size())
}

/// The own rows of a whole.
pub fn own_rows(split: Option<&Split>, whole: usize) -> usize {
    split.filter(|split| split.sequence).map_or(whole, |split| whole / split.size())
}

/// As [`own_rows`], for a whole that the program has given.
pub fn divided_rows(split: Option<&Split>, what: &str, whole: usize) -> Result<usize> {
    split.filter(|split| split.sequence).map_or(Ok(whole), |split| split.share(what, whole))
}

/// The rows of all ranks, for products that read them: `x` itself if each rank has them all.
pub fn gather(split: Option<&Split>, run: &Run, x: &Tensor) -> Result<QTensor> {
    let Some(split) = split.filter(|split| split.sequence) else {
        return Ok(QTensor::borrowed(x.clone()));
    };
    let (rows, cols) = x.rowwise.shape.flatten();
    let shape = (rows * split.size(), cols);
    let whole = QTensor::plain(run, shape, x.rowwise.dtype, Lifetime::Scratch)?;
    split.ranks.gather(&x.rowwise, &whole.tensor.rowwise, label(run), run.stream)?;
    Ok(whole)
}

/// The sum over ranks of the gradient of an input, which may run beside the product that follows that gradient's.
pub struct GradSum<'a> {
    split: &'a Split,
    run: &'a Run,
    part: QTensor,
    dx: &'a Tensor,
    begun: Cell<bool>,
}

impl<'a> GradSum<'a> {
    /// Of parts that a product will write to [`Self::part`]; the sum, or the own rows of it, goes to `dx`.
    pub fn new(split: &'a Split, run: &'a Run, dx: &'a Tensor) -> Result<Self> {
        let part = match split.sequence {
            false => QTensor::borrowed(dx.clone()),
            true => {
                let (rows, cols) = dx.rowwise.shape.flatten();
                let shape = (rows * split.size(), cols);
                QTensor::plain(run, shape, dx.rowwise.dtype, Lifetime::Scratch)?
            }
        };
        Ok(Self { split, run, part, dx, begun: Cell::new(false) })
    }

    pub fn part(&self) -> &Tensor {
        &self.part.tensor
    }

    /// Begins the sum, when the product has been queued.
    pub fn begin(&self) -> Result<()> {
        let (ranks, part) = (&self.split.ranks, &self.part.tensor.rowwise);
        ranks.make_way(part.bytes() / ranks.size(), label(self.run), self.run.stream)?;
        let stream = self.run.beside()?;
        self.begun.set(true);
        let summed = match self.split.sequence {
            false => ranks.sum(part, label(self.run), stream),
            true => ranks.scatter_sum(part, &self.dx.rowwise, label(self.run), stream),
        };
        // The sum may have gone another way.
        summed.and(ranks.give_up(label(self.run), stream))
    }

    /// What follows comes behind the sum.
    pub fn end(&self) -> Result<()> {
        if self.begun.take() { self.run.join() } else { Ok(()) }
    }
}

impl Drop for GradSum<'_> {
    /// After an error, too, the memory of the part is another one's only when the sum is done.
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Writes to `y` the sum over the ranks of what `product` writes, or the own rows of it.
pub fn reduce<T>(
    split: Option<&Split>,
    run: &Run,
    y: &Tensor,
    product: impl FnOnce(&Tensor) -> Result<T>,
) -> Result<T> {
    let Some(split) = split else { return product(y) };
    if !split.sequence {
        let done = product(y)?;
        split.sum(run, &y.rowwise)?;
        return Ok(done);
    }
    let (rows, cols) = y.rowwise.shape.flatten();
    let shape = (rows * split.size(), cols);
    let part = QTensor::plain(run, shape, y.rowwise.dtype, Lifetime::Scratch)?;
    let done = product(&part.tensor)?;
    split.ranks.scatter_sum(&part.tensor.rowwise, &y.rowwise, label(run), run.stream)?;
    Ok(done)
}

/// Adds a bias and another tensor to a sum over ranks, in Float32, rounded once.
pub fn finish(run: &Run, y: &Tensor, bias: Option<&Tensor>, add: Option<&Tensor>) -> Result<()> {
    let (rows, cols) = y.rowwise.shape.flatten();
    match (bias, add) {
        (None, None) => Ok(()),
        (None, Some(add)) => ops::add(run, add, y, true),
        (Some(bias), Some(add)) => ops::bias_add(run, y, bias, add),
        (Some(bias), None) => {
            let zeros = QTensor::plain(run, (rows, cols), y.rowwise.dtype, Lifetime::Scratch)?;
            ops::zero(&zeros.tensor.rowwise, run.stream)?;
            ops::bias_add(run, y, bias, &zeros.tensor)
        }
    }
}

/// A matrix of other rows in the place of a tensor of a caller.
pub fn with_rows(shape: &Shape, rows: usize) -> Shape {
    let (old, _) = shape.flatten();
    let dims = shape.dims();
    // A shape that is refused later may have any number of rows.
    let scaled = |first: usize| (first as u128 * rows as u128 / old.max(1) as u128) as usize;
    let first = dims.first().map_or(rows, |&first| scaled(first));
    let rest = dims.iter().copied().skip(1);
    Shape::new(&[first].into_iter().chain(rest).collect::<Vec<_>>())
}

/// A tensor of no data, where a tape holds what is gathered again.
pub fn nothing() -> QTensor {
    QTensor::borrowed(plain(Buffer::UNSET))
}
