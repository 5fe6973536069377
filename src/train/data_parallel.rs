//! Data parallelism: ranks that have the same parameters and different batches. Gradients lie in buckets, each of which
//! is reduced by one call. Of a bucket that is divided, each rank keeps the sum of one part, updates the parameters
//! there, and gathers the values of the others.

use super::ranks;
use crate::error::{Error, Result};
use crate::nn::capi::Module;
use crate::nn::memory::{Block, Layout, Lifetime};
use crate::nn::ops::{self, plain};
use crate::nn::{Context, Division, Gradient, Run};
use crate::op::multi_tensor::step;
use crate::parallel::Communicator;
use crate::tensor::{Buffer, Tensor, bytes};
use crate::types::NVTEDType::{self, *};
use crate::types::cudaStream_t;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the ranks divide among each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Nothing: all of them update all parameters.
    Replicated,
    /// Updates, and what the optimizer keeps.
    Optimizer,
}

#[derive(Clone, Copy, Debug)]
pub struct Sharing {
    pub level: Level,
    /// The sum is divided by the number of ranks.
    pub average: bool,
    /// The dtype of gradients on their way.
    pub wire: NVTEDType,
    pub bucket_bytes: usize,
    /// Backward passes add to the gradients.
    pub accumulate: bool,
}

impl Sharing {
    /// What all ranks must have alike.
    fn text(&self) -> String {
        let Self { level, average, wire, bucket_bytes, accumulate } = self;
        let sum = if *average { "mean" } else { "sum" };
        format!(
            "sharding {level:?}, {sum} of gradients in {wire}, buckets of {bucket_bytes} bytes, accumulate {accumulate}"
        )
    }
}

/// Elements that parameters and the parts of ranks begin at multiples of, so that they are aligned to 256 bytes in
/// every dtype of two bytes or more.
const ALIGNMENT: usize = 128;

/// What addresses of buckets are multiples of.
const BYTES_ALIGNMENT: usize = 256;

/// A parameter with its place in a bucket.
struct Member {
    name: String,
    /// Module and index: several if modules share it.
    uses: Vec<(usize, usize)>,
    value: Tensor,
    dims: Vec<usize>,
    /// Its value cannot be part of a bucket: it is in FP8 alone, or in memory of the program.
    fixed: bool,
    bucket: usize,
    first: usize,
}

impl Member {
    fn numel(&self) -> usize {
        self.dims.iter().product()
    }
}

/// Parameters whose gradients are reduced by one call.
struct Bucket {
    /// The dtype of the values, if the ranks divide the bucket.
    divided: Option<NVTEDType>,
    /// Elements; a multiple of the number of ranks.
    count: usize,
    gradients: Buffer,
    values: Buffer,
}

pub struct DataParallel {
    context: Arc<Context>,
    communicator: Arc<Communicator>,
    modules: Vec<Arc<Module>>,
    sharing: Sharing,
    members: Vec<Member>,
    buckets: Vec<Bucket>,
    gradients: Block,
    /// A flag of operators that nobody reads.
    unused: Block,
    /// Reductions so far.
    reductions: AtomicU64,
}

impl DataParallel {
    /// Collective: all ranks compare what they have, and take the values of rank 0.
    pub fn new(
        context: &Arc<Context>,
        communicator: &Arc<Communicator>,
        modules: Vec<Arc<Module>>,
        sharing: Sharing,
        stream: cudaStream_t,
    ) -> Result<Self> {
        let run = Run::outside(context, stream);
        let (mut members, mut texts) = ranks::agree(communicator, &run, find(&modules))?;
        texts.insert(0, sharing.text());
        let text = texts.join("\n");
        let first = ranks::of_first(communicator, &run, text.as_bytes())?;
        let same = compare(communicator.rank(), &String::from_utf8_lossy(&first), &text);
        ranks::agree(communicator, &run, same)?;

        let mut buckets = buckets(&mut members, &sharing, communicator.size());
        let (mut layout, mut places) = (Layout::default(), Vec::new());
        for bucket in &buckets {
            places.push(layout.array(kNVTEFloat32, bucket.count, BYTES_ALIGNMENT));
        }
        let gradients = run.block(layout.bytes(), Lifetime::Persistent)?;
        ops::zero(&gradients.buffer(0, kNVTEByte, &[layout.bytes()]), stream)?;
        for (bucket, place) in buckets.iter_mut().zip(places) {
            bucket.gradients = gradients.array(place, &[bucket.count]);
        }
        let unused = run.block(size_of::<i32>(), Lifetime::Persistent)?;
        for member in &members {
            for buffer in parts_of(&member.value) {
                let whole = Buffer::new(buffer.ptr(), kNVTEByte, &[buffer.bytes()]);
                communicator.broadcast(&whole, 0, &member.name, stream)?;
            }
        }
        let (context, communicator) = (Arc::clone(context), Arc::clone(communicator));
        let reductions = AtomicU64::new(0);
        let mut made = Self {
            context,
            communicator,
            modules,
            sharing,
            members,
            buckets,
            gradients,
            unused,
            reductions,
        };
        made.take_values(&run)?;
        made.bind()?;
        Ok(made)
    }

    /// Moves the values of divided buckets there.
    fn take_values(&mut self, run: &Run) -> Result<()> {
        for (index, bucket) in self.buckets.iter_mut().enumerate() {
            let Some(dtype) = bucket.divided else { continue };
            let size = bytes(bucket.count, dtype);
            let block = Arc::new(run.block(size, Lifetime::Persistent)?);
            bucket.values = block.buffer(0, dtype, &[bucket.count]);
            ops::zero(&bucket.values, run.stream)?;
            for member in self.members.iter().filter(|member| member.bucket == index) {
                let (from, at) = (member.value.rowwise, bytes(member.first, dtype));
                let to = block.buffer(at, dtype, &member.dims);
                ops::copy(to.ptr(), from.ptr(), from.bytes(), run.stream)?;
                for &(module, index) in &member.uses {
                    self.modules[module].move_to(index, &block, to)?;
                }
            }
        }
        Ok(())
    }

    /// Gives the modules the memory of their gradients.
    fn bind(&self) -> Result<()> {
        for member in &self.members {
            let bucket = &self.buckets[member.bucket];
            let at = bucket.gradients.ptr().wrapping_byte_add(bytes(member.first, kNVTEFloat32));
            let gradient = plain(Buffer::new(at, kNVTEFloat32, &member.dims));
            let accumulate = self.sharing.accumulate || member.uses.len() > 1;
            let division = bucket.divided.map(|_| Division {
                first: member.first,
                share: bucket.count / self.communicator.size(),
                rank: self.communicator.rank(),
            });
            for &(module, index) in &member.uses {
                self.modules[module].with_parameters(|mut parameters| {
                    let parameter = &mut parameters[index].1;
                    parameter.division = division;
                    parameter.bind_grad("gradient", Some(&gradient), accumulate)
                })?;
            }
        }
        Ok(())
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn communicator(&self) -> &Arc<Communicator> {
        &self.communicator
    }

    /// Whether ranks have parts of the state of an optimizer.
    pub fn is_divided(&self) -> bool {
        self.buckets.iter().any(|bucket| bucket.divided.is_some())
    }

    /// Whether the engine has made the gradient of a parameter of a module.
    pub fn has(&self, module: &Arc<Module>, index: usize) -> bool {
        let Some(module) = self.modules.iter().position(|known| Arc::ptr_eq(known, module)) else {
            return false;
        };
        self.members.iter().any(|member| member.uses.contains(&(module, index)))
    }

    /// Reductions so far.
    pub fn reductions(&self) -> u64 {
        self.reductions.load(Ordering::Relaxed)
    }

    pub fn zero(&self, stream: cudaStream_t) -> Result<()> {
        ops::zero(&self.gradients.buffer(0, kNVTEByte, &[self.gradients.bytes()]), stream)
    }

    /// Sums the gradients of all ranks: of divided buckets the own part.
    pub fn reduce(&self, stream: cudaStream_t) -> Result<()> {
        let (run, ranks) = (Run::outside(&self.context, stream), self.communicator.size());
        if ranks > 1 {
            let mut reduced = Vec::new();
            for (index, bucket) in self.buckets.iter().enumerate() {
                reduced.extend(self.reduce_bucket(&run, index, bucket)?);
            }
            if self.sharing.average {
                let flag = self.unused.ptr().cast();
                step::scale(reduced, 1.0 / ranks as f32, flag, stream)?;
            }
        }
        self.reductions.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Returns what has been summed.
    fn reduce_bucket(&self, run: &Run, index: usize, bucket: &Bucket) -> Result<Vec<Buffer>> {
        let (communicator, stream) = (&self.communicator, run.stream);
        let name = format!("gradients.{index}");
        // What is divided is one call, since every rank has one part of it; the others may be any number.
        let step = match bucket.divided {
            Some(_) => bucket.count,
            None => (self.sharing.bucket_bytes / size_of::<f32>()).max(ALIGNMENT),
        };
        let mut reduced = Vec::new();
        let mut at = 0;
        while at < bucket.count {
            let count = step.min(bucket.count - at);
            let piece = slice(&bucket.gradients, at..at + count);
            let part = match bucket.divided {
                Some(_) => self.own(count),
                None => 0..count,
            };
            let to = slice(&piece, part.clone());
            let scratch = match self.sharing.wire {
                kNVTEFloat32 => None,
                dtype => Some((run.scratch(bytes(count, dtype))?, dtype)),
            };
            let wire = match &scratch {
                None => piece,
                Some((block, dtype)) => block.buffer(0, *dtype, &[count]),
            };
            if scratch.is_some() {
                ops::add(run, &plain(piece), &plain(wire), false)?;
            }
            match bucket.divided {
                Some(_) => {
                    communicator.scatter_sum(&wire, &slice(&wire, part.clone()), &name, stream)?
                }
                None => communicator.sum(&wire, &name, stream)?,
            }
            if scratch.is_some() {
                ops::add(run, &plain(slice(&wire, part)), &plain(to), false)?;
            }
            reduced.push(to);
            at += count;
        }
        Ok(reduced)
    }

    /// The part of this rank, of `count` elements that all ranks divide.
    fn own(&self, count: usize) -> Range<usize> {
        let (share, rank) = (count / self.communicator.size(), self.communicator.rank());
        rank * share..(rank + 1) * share
    }

    /// Gathers the values that each rank has updated.
    pub fn gather(&self, stream: cudaStream_t) -> Result<()> {
        if self.communicator.size() == 1 {
            return Ok(());
        }
        for (index, bucket) in self.buckets.iter().enumerate() {
            if bucket.divided.is_some() {
                let name = format!("values.{index}");
                let own = slice(&bucket.values, self.own(bucket.count));
                self.communicator.gather(&own, &bucket.values, &name, stream)?;
            }
        }
        Ok(())
    }
}

impl Drop for DataParallel {
    /// Modules must not write to gradients that are gone. Values stay where they are, with the block that they are in.
    fn drop(&mut self) {
        let within = self.gradients.ptr() as usize;
        let within = within..within + self.gradients.bytes();
        for &(module, index) in self.members.iter().flat_map(|member| &member.uses) {
            self.modules[module].with_parameters(|mut parameters| {
                let parameter = &mut parameters[index].1;
                let own =
                    |bound: &Gradient| within.contains(&(bound.tensor.rowwise.ptr() as usize));
                if parameter.grad.as_ref().is_some_and(own) {
                    (parameter.grad, parameter.division) = (None, None);
                }
            });
        }
    }
}

/// Elements of a buffer as a row of their own.
pub fn slice(buffer: &Buffer, part: Range<usize>) -> Buffer {
    let at = bytes(part.start, buffer.dtype);
    Buffer::new(buffer.ptr().wrapping_byte_add(at), buffer.dtype, &[part.len()])
}

/// All parameters of modules, and a line of text for each. What modules share is one.
fn find(modules: &[Arc<Module>]) -> Result<(Vec<Member>, Vec<String>)> {
    let (mut members, mut texts): (Vec<Member>, Vec<String>) = Default::default();
    for (m, module) in modules.iter().enumerate() {
        module.with_parameters(|parameters| -> Result<()> {
            for (index, (name, p)) in parameters.into_iter().enumerate() {
                let (name, value) = (format!("{}.{name}", module.name()), &p.value.tensor);
                if p.grad.is_some() {
                    let argument = format!("gradient of {name:?}");
                    let expected = "none: the engine makes the memory of gradients";
                    return Err(Error::argument(argument, expected, "one that is bound"));
                }
                let same = |known: &&mut Member| known.value.rowwise.ptr() == value.rowwise.ptr();
                if let Some(known) =
                    members.iter_mut().find(same).filter(|_| value.rowwise.is_set())
                {
                    known.uses.push((m, index));
                    continue;
                }
                let fixed = p.format.is_some() || p.value.is_borrowed();
                let kind = if fixed { " that stays where it is" } else { "" };
                let (dims, dtype, origin) = (p.dims.clone(), p.dtype, p.origin());
                texts.push(format!("{name} {dims:?} of {dtype}{kind}, initially {origin}"));
                let (value, uses) = (value.clone(), vec![(m, index)]);
                members.push(Member { name, uses, value, dims, fixed, bucket: 0, first: 0 });
            }
            Ok(())
        })?;
    }
    Ok((members, texts))
}

/// What two ranks must have alike; an error with the first line in which they differ.
fn compare(rank: usize, first: &str, own: &str) -> Result<()> {
    if first == own {
        return Ok(());
    }
    let (mut theirs, mut ours) = (first.lines(), own.lines());
    loop {
        let (expected, got) = (theirs.next(), ours.next());
        if expected != got {
            let line = |text: Option<&str>| text.unwrap_or("nothing more").to_owned();
            let expected = format!("{:?}, as rank 0 has", line(expected));
            let got = format!("{:?} on rank {rank}", line(got));
            return Err(Error::argument("parameters", expected, got));
        }
    }
}

/// Puts the parameters into buckets, in their order; of one bucket after the other each is filled until it is large
/// enough.
fn buckets(members: &mut [Member], sharing: &Sharing, ranks: usize) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let most = sharing.bucket_bytes / size_of::<f32>();
    for member in members {
        let divided = match sharing.level {
            Level::Optimizer if !member.fixed => Some(member.value.rowwise.dtype),
            _ => None,
        };
        let open = buckets.iter().rposition(|bucket| bucket.divided == divided);
        let count = member.numel().next_multiple_of(ALIGNMENT);
        let fits = |at: &usize| {
            let filled = buckets[*at].count;
            filled == 0 || filled + count <= most
        };
        member.bucket = open.filter(fits).unwrap_or_else(|| {
            let (gradients, values) = (Buffer::UNSET, Buffer::UNSET);
            buckets.push(Bucket { divided, count: 0, gradients, values });
            buckets.len() - 1
        });
        member.first = buckets[member.bucket].count;
        buckets[member.bucket].count += count;
    }
    for bucket in &mut buckets {
        bucket.count = bucket.count.next_multiple_of(ALIGNMENT * ranks);
    }
    buckets
}

/// What a value consists of.
fn parts_of(value: &Tensor) -> impl Iterator<Item = Buffer> {
    let Tensor { rowwise, colwise, scale, amax, .. } = value;
    let scales = [value.rowwise_scale_inv, value.colwise_scale_inv, value.colwise_amax];
    let all = [*rowwise, *colwise, *scale, *amax].into_iter().chain(scales);
    all.filter(|buffer| buffer.is_set() && buffer.bytes() > 0)
}
