//! Data parallelism: ranks that have the same parameters and different batches. Gradients lie in buckets, each of which
//! is reduced by one call. Of a bucket that is divided, each rank keeps the sum of one part, updates the parameters
//! there, and gathers the values of the others. Experts that ranks share are on some of the ranks alone: their gradients
//! are reduced by those.

use super::ranks;
use super::unit::{Place, Queue, Unit};
use crate::error::{Error, Result};
use crate::nn::capi::Module;
use crate::nn::memory::{Block, Layout, Lifetime, lock};
use crate::nn::ops::{self, plain};
use crate::nn::sharded::{self, Residence, Residences, SharedResidences};
use crate::nn::{Context, Division, Gradient, Run, SharedLayer};
use crate::op::multi_tensor::step;
use crate::parallel::Communicator;
use crate::parallel::exports::NVTEXGridGroup::{NVTEX_GRID_EP, NVTEX_GRID_EXPERT_DP};
use crate::tensor::{Buffer, Tensor, bytes};
use crate::types::NVTEDType::{self, *};
use crate::types::cudaStream_t;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What the ranks divide among each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Nothing: all of them update all parameters.
    Replicated,
    /// Updates, and what the optimizer keeps.
    Optimizer,
    /// The parameters and their gradients, too: a rank has all of those of a layer only while it runs.
    Full,
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
    /// Other ranks have the other experts.
    experts: bool,
    /// Its value cannot be part of a bucket: it exists in blocks with scales alone, or in memory of the program.
    fixed: bool,
    /// The layer, among all of the engine, and the parameter's number there.
    layer: (usize, usize),
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
    /// The ranks that have the same parameters.
    ranks: Arc<Communicator>,
    /// They are experts, of which other ranks have others.
    experts: bool,
    /// The dtype of the values, if the ranks divide the bucket.
    divided: Option<NVTEDType>,
    /// The layer whose parameters come and go; these are in this bucket.
    layer: Option<usize>,
    unit: Option<Arc<Unit>>,
    /// Elements; a multiple of the number of ranks.
    count: usize,
    gradients: Buffer,
    values: Buffer,
}

impl Bucket {
    /// What this rank has of a parameter.
    fn division(&self, member: &Member) -> Option<Division> {
        let (first, share) = (member.first, self.count / self.ranks.size());
        self.divided.map(|_| Division { first, share, rank: self.ranks.rank() })
    }

    /// Elements of gradients that this rank keeps.
    fn kept(&self) -> usize {
        if self.layer.is_some() { self.count / self.ranks.size() } else { self.count }
    }

    /// The part of this rank, of `count` elements that all ranks divide.
    fn own(&self, count: usize) -> Range<usize> {
        let (share, rank) = (count / self.ranks.size(), self.ranks.rank());
        rank * share..(rank + 1) * share
    }
}

pub struct DataParallel {
    context: Arc<Context>,
    communicator: Arc<Communicator>,
    /// Those of the ranks that have the same experts.
    expert_ranks: Arc<Communicator>,
    modules: Vec<Arc<Module>>,
    /// What tells layers that their parameters come and go.
    residences: Vec<SharedResidences>,
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
        mut sharing: Sharing,
        stream: cudaStream_t,
    ) -> Result<Self> {
        let run = Run::outside(context, stream);
        if sharing.level == Level::Full && communicator.size() == 1 {
            // One rank has everything anyway.
            sharing.level = Level::Optimizer;
        }
        let found = ranks::agree(communicator, &run, find(&modules))?;
        let (mut members, layers, mut texts) = found;
        texts.insert(0, sharing.text());
        let text = texts.join("\n");
        let first = ranks::of_first(communicator, &run, text.as_bytes())?;
        let same = compare(communicator.rank(), &String::from_utf8_lossy(&first), &text);
        ranks::agree(communicator, &run, same)?;
        let expert_ranks = expert_ranks(context, communicator, &members);
        let expert_ranks = ranks::agree(communicator, &run, expert_ranks)?;

        let mut buckets = buckets(&mut members, &sharing, [communicator, &expert_ranks]);
        // One rank adds nothing to its gradients, and keeps them as they would travel.
        let alone = communicator.size() == 1 && sharing.level == Level::Replicated;
        let narrow = |member: &Member| member.value.rowwise.dtype == sharing.wire;
        let gradient_dtype = match alone && !sharing.accumulate && members.iter().all(narrow) {
            true => sharing.wire,
            false => kNVTEFloat32,
        };
        let (mut layout, mut places) = (Layout::default(), Vec::new());
        for bucket in &buckets {
            let count = bucket.kept();
            places.push(layout.array(gradient_dtype, count, BYTES_ALIGNMENT));
        }
        let gradients = run.block(layout.bytes(), Lifetime::Persistent)?;
        ops::zero(&gradients.buffer(0, kNVTEByte, &[layout.bytes()]), stream)?;
        for (bucket, place) in buckets.iter_mut().zip(places) {
            let count = bucket.kept();
            bucket.gradients = gradients.array(place, &[count]);
        }
        let unused = run.block(size_of::<i32>(), Lifetime::Persistent)?;
        for member in &members {
            let ranks = &buckets[member.bucket].ranks;
            for buffer in parts_of(&member.value) {
                let whole = Buffer::new(buffer.ptr(), kNVTEByte, &[buffer.bytes()]);
                ranks.broadcast(&whole, 0, &member.name, stream)?;
            }
        }
        let (context, communicator) = (Arc::clone(context), Arc::clone(communicator));
        let reductions = AtomicU64::new(0);
        let mut made = Self {
            context,
            communicator,
            expert_ranks,
            modules,
            residences: Vec::new(),
            sharing,
            members,
            buckets,
            gradients,
            unused,
            reductions,
        };
        made.take_values(&run)?;
        made.divide_values(&run, &layers)?;
        made.bind()?;
        made.attach(&layers);
        Ok(made)
    }

    /// Moves the values of divided buckets there.
    fn take_values(&mut self, run: &Run) -> Result<()> {
        for (index, bucket) in self.buckets.iter_mut().enumerate() {
            let Some(dtype) = bucket.divided.filter(|_| bucket.layer.is_none()) else { continue };
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

    /// Keeps this rank's part of the values of layers whose parameters come and go.
    fn divide_values(&mut self, run: &Run, layers: &[SharedLayer]) -> Result<()> {
        let Self { modules, members, buckets, sharing, .. } = self;
        let queue = Arc::<Queue>::default();
        for (index, bucket) in buckets.iter_mut().enumerate() {
            let (Some(dtype), Some(layer)) = (bucket.divided, bucket.layer) else { continue };
            let share = bucket.count / bucket.ranks.size();
            let block = run.block(bytes(share, dtype), Lifetime::Persistent)?;
            let values = block.buffer(0, dtype, &[share]);
            ops::zero(&values, run.stream)?;
            let mut places = Vec::new();
            for member in members.iter().filter(|member| member.bucket == index) {
                let Some(division) = bucket.division(member) else { continue };
                let part = division.own(member.numel());
                if !part.is_empty() {
                    let from = slice(&member.value.rowwise, part.clone());
                    let at = member.first + part.start - division.rank * share;
                    let to = slice(&values, at..at + part.len());
                    ops::copy(to.ptr(), from.ptr(), from.bytes(), run.stream)?;
                }
                for &(module, index) in &member.uses {
                    modules[module].forget(index)?;
                }
                let (_, of_layer) = member.layer;
                places.push(Place {
                    index: of_layer,
                    first: member.first,
                    dims: member.dims.clone(),
                });
            }
            bucket.values = values;
            bucket.unit = Some(Arc::new(Unit {
                name: format!("unit.{index}"),
                layer: Arc::downgrade(&layers[layer]),
                ranks: Arc::clone(&bucket.ranks),
                places,
                count: bucket.count,
                values,
                _block: block,
                gradients: bucket.gradients,
                wire: sharing.wire,
                accumulate: sharing.accumulate,
                now: Mutex::default(),
                queue: Arc::clone(&queue),
            }));
        }
        Ok(())
    }

    /// Puts layers around those whose parameters come and go, and around those that use parameters of such layers.
    fn attach(&mut self, layers: &[SharedLayer]) {
        let units = |layer: usize| -> Vec<Arc<dyn Residence>> {
            let of_layer = self.buckets.iter().filter(|bucket| bucket.layer == Some(layer));
            let units = of_layer.filter_map(|bucket| bucket.unit.as_ref());
            units.map(|unit| -> Arc<dyn Residence> { Arc::<Unit>::clone(unit) }).collect()
        };
        let mut residences = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            let own = units(index);
            let tied = lock(layer).tied();
            let tied = tied.and_then(|tied| {
                let known = layers.iter().position(|layer| Arc::ptr_eq(layer, &tied))?;
                let units = units(known);
                (!units.is_empty()).then_some((tied, units))
            });
            if !own.is_empty() || tied.is_some() {
                let of_layer = Arc::new(Mutex::new(Residences::new(own, tied)));
                sharded::shard(layer, &of_layer);
                residences.push(of_layer);
            }
        }
        self.residences = residences;
    }

    /// Gives the modules the memory of their gradients.
    fn bind(&self) -> Result<()> {
        for member in &self.members {
            let bucket = &self.buckets[member.bucket];
            if bucket.layer.is_some() {
                self.bind_parts(member, bucket);
                continue;
            }
            let dtype = bucket.gradients.dtype;
            let at = bucket.gradients.ptr().wrapping_byte_add(bytes(member.first, dtype));
            let gradient = plain(Buffer::new(at, dtype, &member.dims));
            let accumulate = self.sharing.accumulate || member.uses.len() > 1;
            let division = bucket.division(member);
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

    /// [`Self::bind`] of a parameter that comes and goes.
    fn bind_parts(&self, member: &Member, bucket: &Bucket) {
        let Some(division) = bucket.division(member) else { return };
        let part = division.own(member.numel());
        // Where there is nothing of the parameter on this rank, the place is any.
        let at = (member.first + part.start).saturating_sub(division.rank * division.share);
        let at = at.min(division.share - part.len());
        let own = [&bucket.values, &bucket.gradients].map(|row| slice(row, at..at + part.len()));
        for &(module, index) in &member.uses {
            self.modules[module].with_parameters(|mut parameters| {
                let parameter = &mut parameters[index].1;
                parameter.division = Some(division);
                parameter.own = Some(own);
                parameter.grad = Some(Unit::gradient(&member.dims));
            });
        }
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn communicator(&self) -> &Arc<Communicator> {
        &self.communicator
    }

    /// The ranks that have the same of a parameter, if it is one of experts that ranks share or not.
    pub fn ranks(&self, of_experts: bool) -> &Arc<Communicator> {
        if of_experts { &self.expert_ranks } else { &self.communicator }
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
                if bucket.layer.is_some() {
                    // Backward passes have summed them.
                    reduced.push(bucket.gradients);
                    continue;
                }
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
        let (communicator, stream) = (&bucket.ranks, run.stream);
        if communicator.size() == 1 {
            return Ok(vec![bucket.gradients]);
        }
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
                Some(_) => bucket.own(count),
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

    /// Brings all parameters together. Those that come and go stay until they are released.
    pub fn gather(&self, stream: cudaStream_t) -> Result<()> {
        let run = Run::outside(&self.context, stream);
        self.buckets
            .iter()
            .filter_map(|bucket| bucket.unit.as_ref())
            .try_for_each(|unit| unit.pin(&run))?;
        self.show_values()?;
        self.gather_updated(stream)
    }

    /// Lets parameters go that [`Self::gather`] has brought together.
    pub fn release(&self, stream: cudaStream_t) -> Result<()> {
        let run = Run::outside(&self.context, stream);
        let mut units = self.buckets.iter().filter_map(|bucket| bucket.unit.as_ref());
        units.try_for_each(|unit| unit.release(&run))?;
        self.show_values()
    }

    fn show_values(&self) -> Result<()> {
        let coming = |member: &&Member| self.buckets[member.bucket].layer.is_some();
        let mut uses = self.members.iter().filter(coming).flat_map(|member| &member.uses);
        uses.try_for_each(|&(module, index)| self.modules[module].show_value(index))
    }

    /// Gathers the values that each rank has updated, where they are whole on all ranks.
    pub fn gather_updated(&self, stream: cudaStream_t) -> Result<()> {
        if self.communicator.size() == 1 {
            return Ok(());
        }
        for (index, bucket) in self.buckets.iter().enumerate() {
            if let Some(unit) = &bucket.unit {
                unit.refresh(&Run::outside(&self.context, stream))?;
            } else if bucket.divided.is_some() && bucket.ranks.size() > 1 {
                let name = format!("values.{index}");
                let own = slice(&bucket.values, bucket.own(bucket.count));
                bucket.ranks.gather(&own, &bucket.values, &name, stream)?;
            }
        }
        Ok(())
    }
}

impl Drop for DataParallel {
    /// Modules must not write to gradients that are gone. Values stay where they are, with the block that they are in.
    fn drop(&mut self) {
        for of_layer in &self.residences {
            *lock(of_layer) = Residences::default();
        }
        let within = self.gradients.ptr() as usize;
        let within = within..within + self.gradients.bytes();
        for &(module, index) in self.members.iter().flat_map(|member| &member.uses) {
            self.modules[module].with_parameters(|mut parameters| {
                let parameter = &mut parameters[index].1;
                if parameter.own.take().is_some() {
                    (parameter.grad, parameter.division) = (None, None);
                    return;
                }
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

/// What modules consist of: parameters, layers, and a line of text for each parameter. What modules share is one.
type Found = (Vec<Member>, Vec<SharedLayer>, Vec<String>);

fn find(modules: &[Arc<Module>]) -> Result<Found> {
    let (mut members, mut layers, mut texts): Found = Default::default();
    for (m, module) in modules.iter().enumerate() {
        let mut places = Vec::new();
        for (layer, count) in module.layers() {
            let known = layers.iter().position(|known| Arc::ptr_eq(known, &layer));
            let at = known.unwrap_or(layers.len());
            if known.is_none() {
                layers.push(layer);
            }
            places.extend((0..count).map(|index| (at, index)));
        }
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
                // Scales of blocks belong to elements of several rows.
                let in_blocks =
                    p.format.as_ref().is_some_and(|format| !format.quantizer.transposes());
                let fixed = in_blocks || p.value.is_borrowed();
                let kind = if fixed { " that stays where it is" } else { "" };
                let (dims, dtype, origin) = (p.dims.clone(), p.dtype, p.origin());
                texts.push(format!("{name} {dims:?} of {dtype}{kind}, initially {origin}"));
                let (value, uses) = (value.clone(), vec![(m, index)]);
                let (layer, experts) = (places[index], p.shard.is_over(NVTEX_GRID_EP));
                let (bucket, first) = (0, 0);
                members.push(Member {
                    name,
                    uses,
                    value,
                    dims,
                    experts,
                    fixed,
                    layer,
                    bucket,
                    first,
                });
            }
            Ok(())
        })?;
    }
    Ok((members, layers, texts))
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

/// The ranks that have the same experts, if ranks share some.
fn expert_ranks(
    context: &Context,
    communicator: &Arc<Communicator>,
    members: &[Member],
) -> Result<Arc<Communicator>> {
    let grid = context.grid().filter(|_| members.iter().any(|member| member.experts));
    let Some(grid) = grid else { return Ok(Arc::clone(communicator)) };
    let [shared, same] = [NVTEX_GRID_EP, NVTEX_GRID_EXPERT_DP].map(|of| grid.communicator(of));
    let all = shared.size() * same.size();
    if communicator.size() != all {
        let expected = format!(
            "the {all} ranks of NVTEX_GRID_DP_CP, since modules have experts that {} of them share",
            shared.size()
        );
        return Err(Error::argument("communicator", expected, communicator.size()));
    }
    Ok(Arc::clone(same))
}

/// Puts the parameters into buckets, in their order; of one bucket after the other each is filled until it is large
/// enough. `ranks` are those with the same parameters, and those with the same experts.
fn buckets(
    members: &mut [Member],
    sharing: &Sharing,
    ranks: [&Arc<Communicator>; 2],
) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let most = sharing.bucket_bytes / size_of::<f32>();
    for member in members {
        let (experts, ranks) = (member.experts, ranks[usize::from(member.experts)]);
        let divided = (sharing.level != Level::Replicated && !member.fixed)
            .then_some(member.value.rowwise.dtype);
        let comes = sharing.level == Level::Full && ranks.size() > 1;
        let layer = divided.filter(|_| comes).map(|_| member.layer.0);
        let key = (experts, divided, layer);
        let open = buckets
            .iter()
            .rposition(|bucket| (bucket.experts, bucket.divided, bucket.layer) == key);
        let count = member.numel().next_multiple_of(ALIGNMENT);
        let fits = |at: &usize| {
            let filled = buckets[*at].count;
            filled == 0 || layer.is_some() || filled + count <= most
        };
        member.bucket = open.filter(fits).unwrap_or_else(|| {
            let (ranks, unit, count) = (Arc::clone(ranks), None, 0);
            let (gradients, values) = (Buffer::UNSET, Buffer::UNSET);
            buckets.push(Bucket { ranks, experts, divided, layer, unit, count, gradients, values });
            buckets.len() - 1
        });
        member.first = buckets[member.bucket].count;
        buckets[member.bucket].count += count;
    }
    for bucket in &mut buckets {
        bucket.count = bucket.count.next_multiple_of(ALIGNMENT * bucket.ranks.size());
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
