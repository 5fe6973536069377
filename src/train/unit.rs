//! The parameters of one layer that ranks divide: each keeps a part of values and gradients, and has all of them only
//! while the layer runs.

use super::data_parallel::slice;
use crate::env::{Overlap, env};
use crate::error::Result;
use crate::nn::memory::{Block, Lifetime, lock};
use crate::nn::ops::{self, plain};
use crate::nn::sharded::{Needs, Residence};
use crate::nn::{Gradient, Microbatch, Parameter, Run, SharedLayer};
use crate::parallel::Communicator;
use crate::tensor::{Buffer, bytes};
use crate::types::NVTEDType::{self, *};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The place of a parameter in the row of all.
pub struct Place {
    /// Among the parameters of the layer.
    pub index: usize,
    pub first: usize,
    pub dims: Vec<usize>,
}

pub struct Unit {
    pub name: String,
    pub layer: Weak<Mutex<Box<dyn crate::nn::Layer>>>,
    pub ranks: Arc<Communicator>,
    pub places: Vec<Place>,
    /// Elements of the row, of which each rank has an equal part.
    pub count: usize,
    /// The part of this rank: values, which lie in a block, and Float32 gradients.
    pub values: Buffer,
    pub _block: Block,
    pub gradients: Buffer,
    /// The dtype of gradients on their way.
    pub wire: NVTEDType,
    /// Backward passes add to the gradients.
    pub accumulate: bool,
    pub now: Mutex<Now>,
    /// The reductions of all units of an engine.
    pub queue: Arc<Queue>,
}

/// The sum over the ranks of the gradients of one layer, which become the part of this rank.
#[derive(Clone)]
struct Reduction {
    name: String,
    ranks: Arc<Communicator>,
    gradients: Buffer,
    wire: NVTEDType,
    /// It is added to what is there.
    accumulate: bool,
}

/// Reductions that run beside the layer whose backward pass comes behind that of theirs.
#[derive(Default)]
pub struct Queue(Mutex<Queued>);

#[derive(Default)]
struct Queued {
    waiting: Vec<(Reduction, Block)>,
    /// The memory of one on the second stream, which is another one's only behind a join.
    running: Vec<Block>,
}

/// What this rank has at the moment.
#[derive(Default)]
pub struct Now {
    /// Passes that read the values, and a program that has asked for them.
    users: usize,
    pinned: bool,
    values: Option<Arc<Block>>,
    /// Values on their way, for the pass that comes next.
    coming: Option<Block>,
    gradients: Option<Block>,
}

impl Unit {
    /// The gradient of a parameter while there is no memory for it: passes know by it that one is wanted.
    pub fn gradient(dims: &[usize]) -> Gradient {
        let tensor = plain(Buffer::new(std::ptr::null_mut(), kNVTEFloat32, dims));
        Gradient { tensor, accumulate: false }
    }

    fn own(&self, whole: &Buffer) -> Buffer {
        let (share, rank) = (self.count / self.ranks.size(), self.ranks.rank());
        slice(whole, rank * share..(rank + 1) * share)
    }

    fn whole(&self, block: &Block) -> Buffer {
        block.buffer(0, self.values.dtype, &[self.count])
    }

    /// Applies `body` to the parameters of the layer, outside of passes.
    fn with_layer(
        &self,
        body: impl FnOnce(&SharedLayer, &mut [&mut Parameter]) -> Result<()>,
    ) -> Result<()> {
        let Some(layer) = self.layer.upgrade() else { return Ok(()) };
        let mut locked = layer.lock().unwrap_or_else(PoisonError::into_inner);
        crate::nn::sharded::with_parameters(&mut **locked, |all| body(&layer, all))
    }

    const VALUES: Needs = Needs { values: true, gradients: false };

    /// Brings the values together until they are released, or once more.
    pub fn pin(&self, run: &Run) -> Result<()> {
        self.with_layer(|_, all| {
            if lock(&self.now).pinned {
                return Ok(());
            }
            self.enter(run, all, Self::VALUES)?;
            lock(&self.now).pinned = true;
            Ok(())
        })?;
        self.refresh(run)
    }

    /// Follows an update of the parts of all ranks.
    pub fn refresh(&self, run: &Run) -> Result<()> {
        match &lock(&self.now).values {
            Some(block) => {
                self.ranks.gather(&self.values, &self.whole(block), &self.name, run.stream)
            }
            None => Ok(()),
        }
    }

    /// Gives up what [`Self::pin`] has brought; this rank's part is as it was left.
    pub fn release(&self, run: &Run) -> Result<()> {
        self.with_layer(|_, all| {
            let mut now = lock(&self.now);
            if !std::mem::take(&mut now.pinned) {
                return Ok(());
            }
            if let Some(block) = &now.values {
                let own = self.own(&self.whole(block));
                ops::copy(self.values.ptr(), own.ptr(), own.bytes(), run.stream)?;
            }
            drop(now);
            self.leave(run, all, Self::VALUES, false)
        })
    }

    /// Sums the gradients of all ranks, in memory for all of them, to the part of this one: at once, or beside the next
    /// layer's pass.
    fn reduce(&self, run: &Run, whole: Block) -> Result<()> {
        let accumulate = match run.microbatch {
            Microbatch::None => self.accumulate,
            Microbatch::First => false,
            Microbatch::Later => true,
        };
        let Self { name, ranks, gradients, wire, .. } = self;
        let (name, ranks) = (name.clone(), Arc::clone(ranks));
        let (gradients, wire) = (*gradients, *wire);
        let reduction = Reduction { name, ranks, gradients, wire, accumulate };
        match env().comm_overlap {
            Overlap::Off => reduction.run(run, &whole, reduction.scratch(run)?.as_ref()),
            _ => {
                lock(&self.queue.0).waiting.push((reduction, whole));
                Ok(())
            }
        }
    }
}

impl Reduction {
    /// Elements of all ranks.
    fn count(&self) -> usize {
        self.gradients.shape.numel() * self.ranks.size()
    }

    /// Memory for what travels, if that has another dtype.
    fn scratch(&self, run: &Run) -> Result<Option<Block>> {
        let narrow = self.wire != kNVTEFloat32;
        narrow.then(|| run.scratch(bytes(self.count(), self.wire))).transpose()
    }

    fn run(&self, run: &Run, whole: &Block, scratch: Option<&Block>) -> Result<()> {
        let (count, stream) = (self.count(), run.stream);
        let mut wire = whole.buffer(0, kNVTEFloat32, &[count]);
        if let Some(scratch) = scratch {
            let narrow = scratch.buffer(0, self.wire, &[count]);
            ops::add(run, &plain(wire), &plain(narrow), false)?;
            wire = narrow;
        }
        let (rank, share) = (self.ranks.rank(), self.gradients.shape.numel());
        let own = slice(&wire, rank * share..(rank + 1) * share);
        self.ranks.scatter_sum(&wire, &own, &self.name, stream)?;
        ops::add(run, &plain(own), &plain(self.gradients), self.accumulate)
    }
}

impl Queue {
    /// Begins what waits on the second stream.
    fn start(&self, run: &Run) -> Result<()> {
        let mut queued = lock(&self.0);
        if queued.waiting.is_empty() {
            return Ok(());
        }
        if !queued.running.is_empty() {
            run.join()?;
            queued.running.clear();
        }
        for (reduction, whole) in std::mem::take(&mut queued.waiting) {
            // It belongs to the stream of the call, which will have waited when it is given back.
            let scratch = reduction.scratch(run)?;
            let beside = Run { stream: run.beside()?, ..run.clone() };
            let begun = reduction.run(&beside, &whole, scratch.as_ref());
            queued.running.push(whole);
            queued.running.extend(scratch);
            begun?;
        }
        Ok(())
    }

    /// What is on the second stream by now has been waited for.
    fn joined(&self) {
        lock(&self.0).running.clear();
    }

    /// What follows on the stream of the call finds all sums.
    fn finish(&self, run: &Run) -> Result<()> {
        let mut queued = lock(&self.0);
        if !queued.running.is_empty() {
            run.join()?;
            queued.running.clear();
        }
        std::mem::take(&mut queued.waiting).into_iter().try_for_each(|(reduction, whole)| {
            reduction.run(run, &whole, reduction.scratch(run)?.as_ref())
        })
    }
}

impl Residence for Unit {
    fn begin(&self, run: &Run) -> Result<()> {
        let mut now = lock(&self.now);
        if env().comm_overlap == Overlap::Off || now.values.is_some() || now.coming.is_some() {
            return Ok(());
        }
        let block = run.block(bytes(self.count, self.values.dtype), Lifetime::Tape)?;
        let whole = self.whole(&block);
        let stream = run.beside()?;
        now.coming = Some(block);
        self.ranks.gather(&self.values, &whole, &self.name, stream)
    }

    fn stop(&self, run: &Run) -> Result<()> {
        let stopped = match lock(&self.now).coming.take() {
            None => Ok(()),
            // The memory is another one's as soon as the block is dropped.
            Some(_block) => run.join(),
        };
        stopped.and(self.queue.finish(run))
    }

    fn enter(&self, run: &Run, parameters: &mut [&mut Parameter], needs: Needs) -> Result<()> {
        let mut now = lock(&self.now);
        if needs.gradients && now.gradients.is_none() {
            let block = run.block(bytes(self.count, kNVTEFloat32), Lifetime::Tape)?;
            ops::zero(&block.buffer(0, kNVTEByte, &[block.bytes()]), run.stream)?;
            for Place { index, first, dims } in &self.places {
                let gradient = block.buffer(bytes(*first, kNVTEFloat32), kNVTEFloat32, dims);
                let accumulate = self.accumulate;
                parameters[*index].grad = Some(Gradient { tensor: plain(gradient), accumulate });
            }
            now.gradients = Some(block);
        }
        if needs.values {
            if now.values.is_none() {
                let dtype = self.values.dtype;
                let block = match now.coming.take() {
                    Some(block) => {
                        run.join()?;
                        self.queue.joined();
                        block
                    }
                    None => {
                        let block = run.block(bytes(self.count, dtype), Lifetime::Tape)?;
                        let whole = self.whole(&block);
                        self.ranks.gather(&self.values, &whole, &self.name, run.stream)?;
                        block
                    }
                };
                let block = Arc::new(block);
                for Place { index, first, dims } in &self.places {
                    let value = block.buffer(bytes(*first, dtype), dtype, dims);
                    parameters[*index].move_to(&block, value);
                }
                now.values = Some(block);
            }
            now.users += 1;
        }
        Ok(())
    }

    fn entered(&self, run: &Run) -> Result<()> {
        self.queue.start(run)
    }

    fn leave(
        &self,
        run: &Run,
        parameters: &mut [&mut Parameter],
        needs: Needs,
        complete: bool,
    ) -> Result<()> {
        let mut now = lock(&self.now);
        if needs.values {
            now.users -= 1;
            if now.users == 0 {
                for Place { index, .. } in &self.places {
                    parameters[*index].forget();
                }
                now.values = None;
            }
        }
        if !complete {
            return Ok(());
        }
        let Some(gradients) = now.gradients.take() else { return Ok(()) };
        for Place { index, dims, .. } in &self.places {
            parameters[*index].grad = Some(Self::gradient(dims));
        }
        drop(now);
        self.reduce(run, gradients)
    }
}
