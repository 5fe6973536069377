//! Products whose rows ranks share, a part at a time: rows of other ranks are multiplied as they come, and rows for other
//! ranks are on their way while the next ones are computed. Messages are on a second stream. Rows of a product do
//! not depend on each other, so that results have the bits of the whole product wherever the kernels for both sizes add in
//! the same order.

use super::{Split, label};
use crate::env::{Overlap, env};
use crate::error::Result;
use crate::nn::context::Run;
use crate::nn::memory::Lifetime;
use crate::nn::ops;
use crate::nn::quantizer::{QTensor, Quantizer};
use crate::tensor::{Buffer, Tensor, bytes};
use crate::types::NVTEDType::kNVTEByte;
use crate::types::cudaStream_t;
use std::cell::Cell;
use std::ops::Range;

/// Rows of a tile of a product. Parts are whole tiles, to which scales of MXFP8 are padded, too.
const TILE: usize = 128;

/// Whether products take the rows of each rank by themselves: if these have a tile for seven of eight multiprocessors or more.
pub fn divides(run: &Run, split: &Split, rows: usize, outputs: usize) -> Result<bool> {
    if env().comm_overlap != Overlap::Chunks || !split.sequence || !rows.is_multiple_of(TILE) {
        return Ok(false);
    }
    let tiles = rows / TILE * outputs.div_ceil(TILE);
    let processors = usize::try_from(run.context.multiprocessors()?).unwrap_or(1);
    Ok(8 * tiles >= 7 * processors)
}

/// Some rows of the row-wise data of a matrix that is cast row by row.
fn rows_of(tensor: &Tensor, rows: &Range<usize>) -> Tensor {
    let part = |buffer: &Buffer| {
        let cols = buffer.shape.flatten().1;
        let first = buffer.ptr().wrapping_byte_add(bytes(rows.start * cols, buffer.dtype));
        Buffer::new(first, buffer.dtype, &[rows.len(), cols])
    };
    let mut of = Tensor::new(tensor.mode);
    of.rowwise = part(&tensor.rowwise);
    of.rowwise_scale_inv = match tensor.mode.per_tensor() {
        true => tensor.rowwise_scale_inv,
        false => part(&tensor.rowwise_scale_inv),
    };
    of
}

/// Some rows of a result, which may be cast both ways: column-wise data keep the shape of the whole.
fn result_rows(tensor: &Tensor, rows: &Range<usize>) -> Tensor {
    let mut of = rows_of(tensor, rows);
    (of.scale, of.amax) = (tensor.scale, tensor.amax);
    if tensor.colwise.is_set() {
        let whole = &tensor.colwise;
        let first = whole.ptr().wrapping_byte_add(bytes(rows.start, whole.dtype));
        of.colwise = Buffer::new(first, whole.dtype, whole.shape.dims());
    }
    of
}

/// How the rows of a product come and go.
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    /// All of them are here, and stay.
    Here,
    /// They come from the other ranks.
    Come(&'a Gathered<'a>),
    /// Their sums go to the other ranks.
    Go(&'a Summed<'a>),
}

impl Rows<'_> {
    /// Runs `product` of rows of x, which gives rows of y, and of another matrix that has those.
    pub fn each(
        &self,
        (x, y, beside): (&Tensor, &Tensor, Option<&Tensor>),
        mut product: impl FnMut(&Tensor, &Tensor, Option<&Tensor>) -> Result<()>,
    ) -> Result<()> {
        match self {
            Self::Come(gathered) if gathered.parts => gathered.each(|x, rows| {
                let beside = beside.map(|beside| rows_of(beside, rows));
                product(x, &result_rows(y, rows), beside.as_ref())
            }),
            Self::Go(summed) => summed.each(|rows, part| product(&rows_of(x, rows), part, None)),
            Self::Here | Self::Come(_) => product(x, y, beside),
        }
    }

    /// Runs `products`, each part of which writes sums over its rows to where it is told, and gives the sums over all.
    pub fn sums(
        &self,
        run: &Run,
        sums: Option<&Tensor>,
        products: impl FnOnce(&dyn Fn(usize) -> Option<Tensor>) -> Result<()>,
    ) -> Result<()> {
        let gathered = match self {
            Self::Come(gathered) if gathered.parts => Some(gathered),
            _ => None,
        };
        let (Some(gathered), Some(sums)) = (gathered, sums) else {
            return products(&|_| sums.cloned());
        };
        let (ranks, to) = (&gathered.split.ranks, &sums.rowwise);
        let shape = (ranks.size(), to.shape.numel());
        let parts = QTensor::plain(run, shape, to.dtype, Lifetime::Scratch)?;
        products(&|part| Some(rows_of(&parts.tensor, &(part..part + 1))))?;
        ranks.sum_parts(&parts.tensor.rowwise, to, run.stream)
    }
}

/// What is on the second stream of a run, and is waited for at the end, whatever happens: behind it memory is another
/// one's.
struct Beside<'a> {
    run: &'a Run,
    busy: Cell<bool>,
}

impl<'a> Beside<'a> {
    fn new(run: &'a Run) -> Self {
        Self { run, busy: Cell::new(false) }
    }

    /// The second stream, behind all that is on the first by now.
    fn fork(&self) -> Result<cudaStream_t> {
        let stream = self.run.beside()?;
        self.busy.set(true);
        Ok(stream)
    }

    /// Says that more will be on the second stream, which need not wait for the first.
    fn goes_on(&self) {
        self.busy.set(true);
    }

    /// What follows on the first stream comes behind all that is on the second by now.
    fn join(&self) -> Result<()> {
        if self.busy.take() { self.run.join() } else { Ok(()) }
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

/// What the rows of other ranks are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// A product that follows at once.
    Product,
    /// This, and others that need all rows.
    All,
    /// Something that other work comes before.
    Later,
}

/// The rows of all ranks, of which those of others may still be on their way.
pub struct Gathered<'a> {
    beside: Beside<'a>,
    split: &'a Split,
    own: Tensor,
    whole: QTensor,
    /// Products take the rows of each rank by themselves.
    parts: bool,
    wanted: For,
    stream: cudaStream_t,
    /// Set where the whole lies in memory that other ranks write to: whether what follows on the stream of the run finds all
    /// of their rows there.
    come: Option<Cell<bool>>,
}

impl<'a> Gathered<'a> {
    /// Begins to gather what each rank has cast. The rest of the products' operands should be there: what follows is what
    /// it is hidden behind.
    pub fn begin(
        run: &'a Run,
        split: &'a Split,
        quantizer: &Quantizer,
        own: &Tensor,
        (wanted, parts): (For, bool),
    ) -> Result<Self> {
        let mut own = own.clone();
        let beside = Beside::new(run);
        let chunks = env().comm_overlap == Overlap::Chunks;
        if parts && wanted == For::Product {
            (own.colwise, own.colwise_scale_inv) = (Buffer::UNSET, Buffer::UNSET);
        }
        // Scales of blocks would be messages of their own.
        if own.mode.per_tensor() && !own.colwise.is_set() {
            let forked = Cell::new(run.stream);
            let fork = || {
                if chunks {
                    forked.set(beside.fork()?);
                }
                Ok(forked.get())
            };
            let streams = (run.stream, &fork as &dyn Fn() -> Result<cudaStream_t>);
            let begun = split.ranks.begin_gather(&own.rowwise, label(run), streams)?;
            let stream = forked.get();
            if let Some(place) = begun {
                let (rows, cols) = own.rowwise.shape.flatten();
                let mut whole = Tensor::new(own.mode);
                let shape = [rows * split.size(), cols];
                whole.rowwise = Buffer::new(place.cast(), own.rowwise.dtype, &shape);
                whole.rowwise_scale_inv = own.rowwise_scale_inv;
                let (whole, come) = (QTensor::borrowed(whole), Some(Cell::new(false)));
                let gathered = Self { beside, split, own, whole, parts, wanted, stream, come };
                if !parts || wanted != For::Product {
                    gathered.put_own()?;
                }
                if !parts && wanted != For::Later {
                    gathered.finish()?;
                }
                return Ok(gathered);
            }
        }
        let come = None;
        if !parts {
            let later = wanted == For::Later && chunks;
            let stream = if later { beside.fork()? } else { run.stream };
            let whole = quantizer.gather(run, split, &own, stream)?;
            return Ok(Self { beside, split, own, whole, parts, wanted, stream, come });
        }
        let whole = quantizer.room(run, split, &own)?;
        let stream = beside.fork()?;
        let gathered = Self { beside, split, own, whole, parts, wanted, stream, come };
        gathered.send(1)?;
        Ok(gathered)
    }

    /// All rows, once they have come.
    pub fn whole(&self) -> &Tensor {
        &self.whole.tensor
    }

    /// Whether products take parts of the rows.
    pub fn in_parts(&self) -> bool {
        self.parts
    }

    /// Queues the messages over a distance between ranks.
    fn send(&self, distance: usize) -> Result<()> {
        let Self { split, own, stream, .. } = self;
        let (run, whole) = (self.beside.run, &self.whole.tensor);
        let from = self.behind(distance);
        let shift = |own: &Buffer, whole: &Buffer| {
            let part = part_of(whole, from, own.bytes());
            split.ranks.shift(own, &part, distance, label(run), *stream)
        };
        shift(&own.rowwise, &whole.rowwise)?;
        match own.mode.per_tensor() {
            true => Ok(()),
            false => shift(&own.rowwise_scale_inv, &whole.rowwise_scale_inv),
        }
    }

    /// Queues what completes [`Self::whole`] behind the last message: the own rows, or if they are cast in another way for
    /// products over the rows, what all ranks have cast so.
    fn send_rest(&self) -> Result<()> {
        let Self { split, own, stream, .. } = self;
        let (run, whole) = (self.beside.run, &self.whole.tensor);
        if own.mode.per_tensor() {
            return self.put_own();
        }
        for (own, whole) in
            [(&own.colwise, &whole.colwise), (&own.colwise_scale_inv, &whole.colwise_scale_inv)]
        {
            if own.is_set() {
                split.ranks.gather(&flat(own), &flat(whole), label(run), *stream)?;
            }
        }
        Ok(())
    }

    /// Queues the copy of the own rows to those of all.
    fn put_own(&self) -> Result<()> {
        let own = &self.own.rowwise;
        let to = part_of(&self.whole.tensor.rowwise, self.split.ranks.rank(), own.bytes());
        ops::copy(to.ptr(), own.ptr(), to.bytes(), self.stream)
    }

    /// The rank that is so far behind this one.
    fn behind(&self, distance: usize) -> usize {
        let ranks = self.split.size();
        (self.split.ranks.rank() + ranks - distance) % ranks
    }

    /// Runs `product` of the own rows, and of those of each other rank when they have come.
    fn each(&self, mut product: impl FnMut(&Tensor, &Range<usize>) -> Result<()>) -> Result<()> {
        let rows = self.own.rowwise.shape.flatten().0;
        let of = |rank: usize| rank * rows..(rank + 1) * rows;
        product(&rows_of(&self.own, &(0..rows)), &of(self.split.ranks.rank()))?;
        let ranks = self.split.size();
        for distance in 1..ranks {
            if self.come.is_some() {
                self.wait(distance..distance + 1)?;
            } else {
                // What is queued behind this is not waited for.
                self.beside.join()?;
                if distance + 1 < ranks {
                    self.beside.goes_on();
                    self.send(distance + 1)?;
                } else if self.wanted == For::All {
                    self.beside.goes_on();
                    self.send_rest()?;
                }
            }
            let rows = of(self.behind(distance));
            product(&rows_of(&self.whole.tensor, &rows), &rows)?;
        }
        Ok(())
    }

    /// Waits for rows of other ranks where they come to memory that these write to.
    fn wait(&self, distances: Range<usize>) -> Result<()> {
        let (run, ranks) = (self.beside.run, &self.split.ranks);
        if let Some(come) = &self.come
            && distances.end == ranks.size()
        {
            come.set(true);
        }
        ranks.await_gather(distances, label(run), run.stream)
    }

    /// What follows finds all rows in [`Self::whole`].
    pub fn finish(&self) -> Result<()> {
        if self.come.as_ref().is_some_and(|come| !come.get()) {
            self.wait(1..self.split.size())?;
        }
        self.beside.join()
    }
}

impl Drop for Gathered<'_> {
    /// After an error, too, other ranks find their memory free.
    fn drop(&mut self) {
        if self.come.is_some() {
            let run = self.beside.run;
            let finished = self.finish();
            let _ = finished.and_then(|()| self.split.ranks.end_gather(label(run), run.stream));
        }
    }
}

/// Sums over the ranks of the rows of a product, of which each rank gets its share.
pub struct Summed<'a> {
    beside: Beside<'a>,
    split: &'a Split,
    y: &'a Tensor,
    /// What this rank has for each other one, and for itself.
    sent: QTensor,
    /// What all ranks have for this one, in their order, where it does not stay in memory that others write to.
    parts: Cell<Option<QTensor>>,
    /// Nothing of it is on its way any more.
    finished: Cell<bool>,
}

impl<'a> Summed<'a> {
    /// Sums of which `y` gets the own rows.
    pub fn new(run: &'a Run, split: &'a Split, y: &'a Tensor) -> Result<Self> {
        let (rows, cols) = y.rowwise.shape.flatten();
        let matrices = |count: usize| {
            QTensor::plain(run, (count * rows, cols), y.rowwise.dtype, Lifetime::Scratch)
        };
        let sent = matrices(split.size())?;
        let (parts, finished) = (Cell::new(None), Cell::new(false));
        Ok(Self { beside: Beside::new(run), split, y, sent, parts, finished })
    }

    /// Runs `product` of the rows of each other rank, which are sent at once, and then of the own ones.
    fn each(&self, mut product: impl FnMut(&Range<usize>, &Tensor) -> Result<()>) -> Result<()> {
        let (run, ranks) = (self.beside.run, &self.split.ranks);
        let (rank, size, rows) = (ranks.rank(), ranks.size(), self.y.rowwise.shape.flatten().0);
        let of = |rank: usize| rank * rows..(rank + 1) * rows;
        let (sent, mut parts) = (&self.sent.tensor, None);
        ranks.make_way(self.y.rowwise.bytes(), label(run), run.stream)?;
        for distance in 1..size {
            let part = rows_of(sent, &of(distance - 1));
            product(&of((rank + distance) % size), &part)?;
            let stream = self.beside.fork()?;
            if parts.is_none() && ranks.post(&part.rowwise, distance, label(run), stream)? {
                continue;
            }
            if parts.is_none() {
                let (dtype, shape) = (self.y.rowwise.dtype, sent.rowwise.shape.flatten());
                parts = Some(QTensor::plain(run, shape, dtype, Lifetime::Scratch)?);
            }
            if let Some(parts) = &parts {
                let from = rows_of(&parts.tensor, &of((rank + size - distance) % size));
                ranks.shift(&part.rowwise, &from.rowwise, distance, label(run), stream)?;
            }
        }
        let own = match &parts {
            Some(parts) => rows_of(&parts.tensor, &of(rank)),
            None => rows_of(sent, &of(size - 1)),
        };
        self.parts.set(parts);
        product(&of(rank), &own)
    }

    /// Writes the sums, in the order of the ranks, and adds a bias and another tensor to them.
    pub fn finish(&self, bias: Option<&Tensor>, add: Option<&Tensor>) -> Result<()> {
        self.beside.join()?;
        self.finished.set(true);
        let (run, ranks, y) = (self.beside.run, &self.split.ranks, &self.y.rowwise);
        let added = match self.parts.take() {
            Some(parts) => {
                ranks.sum_parts(&parts.tensor.rowwise, y, run.stream)?;
                false
            }
            None => {
                let (rows, size) = (y.shape.flatten().0, ranks.size());
                let own = rows_of(&self.sent.tensor, &((size - 1) * rows..size * rows));
                let rest = [bias, add].map(|one| one.map(|one| &one.rowwise));
                ranks.sum_posted(&own.rowwise, y, rest, label(run), run.stream)?
            }
        };
        if added { Ok(()) } else { super::finish(run, self.y, bias, add) }
    }
}

impl Drop for Summed<'_> {
    /// After an error on all ranks their memory is free.
    fn drop(&mut self) {
        if !self.finished.get() {
            let run = self.beside.run;
            let joined = self.beside.join();
            let _ = joined.and_then(|()| self.split.ranks.give_up(label(run), run.stream));
        }
    }
}

/// Bytes without what they mean.
fn flat(buffer: &Buffer) -> Buffer {
    Buffer::new(buffer.ptr(), kNVTEByte, &[buffer.bytes()])
}

/// One of the parts of so many bytes of a buffer.
fn part_of(whole: &Buffer, index: usize, bytes: usize) -> Buffer {
    Buffer::new(whole.ptr().wrapping_byte_add(index * bytes), kNVTEByte, &[bytes])
}
