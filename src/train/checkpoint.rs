//! Checkpoints: parameters, the state of an optimizer, of recipes, of a loader and of the program, in one file. Of
//! several ranks the first one writes whole tensors, whatever parts of them the ranks have, so that the file does not
//! depend on their number.

use super::data_parallel::slice;
use super::host;
use super::optimizer::{Entry, Numbers, Optimizer};
use super::ranks;
use super::safetensors::{self, File, Item, VERSION_KEY, stored};
use super::tokens::{Position, TokenLoader};
use crate::error::{Error, Result};
use crate::nn::capi::Module;
use crate::nn::memory::{Lifetime, host_list, host_room, host_vec};
use crate::nn::ops::{self, plain};
use crate::nn::{Context, Parameter, Piece, Run, Shard};
use crate::parallel::Communicator;
use crate::parallel::exports::NVTEXGridGroup::{self, NVTEX_GRID_EP, NVTEX_GRID_TP};
use crate::tensor::{Buffer, bytes};
use crate::types::NVTEDType::*;
use crate::types::cudaStream_t;
use ::safetensors::tensor::Dtype;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// The version of the names and their meaning.
const VERSION: &str = "1";
const RECIPE_STATE: &str = "recipe.state";
const COUNTERS: &str = "optimizer.counters";
const SCALARS: &str = "optimizer.scalars";
const POSITION: &str = "tokens.position";

/// A tensor of the program, such as the state of random numbers.
pub struct Extra {
    pub name: String,
    pub buffer: Buffer,
}

/// What a checkpoint is of.
pub struct Checkpoint<'a> {
    pub context: Option<Arc<Context>>,
    pub modules: Vec<Arc<Module>>,
    pub optimizer: Option<&'a Optimizer>,
    pub loader: Option<&'a mut TokenLoader>,
    pub extras: Vec<Extra>,
    /// Of all ranks, if there are several.
    pub communicator: Option<Arc<Communicator>>,
}

/// A checkpoint that has been read and is sound, but for its large tensors.
struct Checked<'a> {
    file: File,
    parameters: Vec<Stored<'a>>,
    numbers: Option<Numbers>,
    position: Option<Position>,
    extras: Vec<(Buffer, Vec<u8>)>,
    recipes: Option<Vec<u8>>,
}

/// A parameter, and what the optimizer knows of it.
struct Stored<'a> {
    module: &'a Arc<Module>,
    index: usize,
    name: String,
    /// What this rank has of the tensors in the file.
    shard: Shard,
    entry: Option<&'a Entry>,
    /// In a save: how the parts of ranks become a whole, one step after the other.
    joins: Vec<Join>,
}

/// The ranks that have the parts of a parameter: by tensor parallelism, or those of its experts.
struct Join {
    ranks: Arc<Communicator>,
    /// One of them is the rank that writes, or one of which that rank needs the result.
    needed: bool,
    /// What each of them has.
    shards: Vec<Shard>,
}

impl Join {
    /// All of an array of which `own` are the bytes of this rank's part. Empty on a rank that does not want it.
    fn whole(&self, own: &[u8], run: &Run, wanted: bool) -> Result<Vec<u8>> {
        if !self.needed {
            return Ok(Vec::new());
        }
        let all = ranks::gather(&self.ranks, run, own)?;
        if !wanted || own.is_empty() {
            return Ok(Vec::new());
        }
        let mut left = &all[..];
        let count = |dims: &[usize]| dims.iter().product::<usize>();
        let size = own.len() / count(&self.shards[self.ranks.rank()].dims());
        let mut whole = host_vec(0, count(&self.shards[0].whole) * size)?;
        for shard in &self.shards {
            for run in shard.runs(0..count(&shard.dims())) {
                let (from, rest) = left.split_at(run.len() * size);
                whole[run.start * size..run.end * size].copy_from_slice(from);
                left = rest;
            }
        }
        Ok(whole)
    }
}

impl Stored<'_> {
    /// The dimensions of the tensors in the file.
    fn dims(&self) -> Vec<usize> {
        self.shard.whole.clone()
    }

    fn with<R>(&self, body: impl FnOnce(&mut Parameter) -> R) -> R {
        self.module.with_parameters(|mut parameters| body(parameters[self.index].1))
    }

    /// Arrays of the optimizer, of which this rank may have a part.
    fn state(&self) -> Vec<(String, Buffer)> {
        let Some(entry) = self.entry else { return Vec::new() };
        let names = entry.state_names().into_iter().zip(entry.state);
        names
            .filter_map(|(kind, buffer)| Some((format!("optimizer.{kind}.{}", self.name), buffer?)))
            .collect()
    }
}

fn bytes_of(floats: &[f32]) -> Result<Vec<u8>> {
    let mut bytes = host_room(size_of_val(floats))?;
    bytes.extend(floats.iter().flat_map(|x| x.to_le_bytes()));
    Ok(bytes)
}

impl Checkpoint<'_> {
    /// All parameters. What modules share is one, under its first name.
    fn parameters(&self) -> Vec<Stored<'_>> {
        let (mut stored, mut known) = (Vec::new(), Vec::new());
        for module in &self.modules {
            let found = module.with_parameters(|parameters| -> Vec<_> {
                let of =
                    |(name, p): (String, &mut Parameter)| (name, p.shard.clone(), p.identity());
                parameters.into_iter().map(of).collect()
            });
            for (index, (name, mut shard, identity)) in found.into_iter().enumerate() {
                if identity != 0 && known.contains(&identity) {
                    continue;
                }
                known.push(identity);
                let entry = self.optimizer.and_then(|optimizer| optimizer.find(module, index));
                let name = format!("{}.{name}", module.name());
                if self.communicator.is_none() {
                    // A file of one rank alone has what this rank has.
                    shard = Shard::all(&shard.dims());
                }
                stored.push(Stored { module, index, name, shard, entry, joins: Vec::new() });
            }
        }
        stored
    }

    /// The parameters, of which the optimizer must not have others.
    fn all_parameters(&self) -> Result<Vec<Stored<'_>>> {
        let stored = self.parameters();
        let is_stored =
            |entry: &Entry| stored.iter().any(|s| s.entry.is_some_and(|own| ptr::eq(own, entry)));
        let entries = self.optimizer.into_iter().flat_map(|optimizer| &optimizer.entries);
        match entries.into_iter().find(|entry| !is_stored(entry)) {
            Some(entry) => {
                let expected = "an optimizer over config.modules alone";
                let got = format!("one that has {:?} of another module", entry.name);
                Err(Error::argument("config.optimizer", expected, got))
            }
            None => Ok(stored),
        }
    }

    /// The value that a checkpoint holds of a parameter.
    fn item<'a>(&'a self, stored: Arc<Stored<'a>>, stream: cudaStream_t) -> Item<'a> {
        let master = stored.entry.is_some_and(|entry| entry.master.is_some());
        let (dtype, quantized) = stored.with(|p| (p.dtype, p.format.is_some()));
        let dtype = if master || quantized { kNVTEFloat32 } else { dtype };
        let (name, shape) = (stored.name.clone(), stored.dims());
        let own = move |stored: &Stored| {
            let needed = self.needs(stored);
            if let (Some(_), Some(entry)) = (self.optimizer, stored.entry)
                && let Some(master) = entry.master
            {
                let master = self.undivided(entry, &master, needed, stream)?;
                let high = match entry.remainder() {
                    true => self.value(stored, needed, stream)?,
                    false => Vec::new(),
                };
                if !needed {
                    return Ok(Vec::new());
                }
                return bytes_of(&Optimizer::master_values(entry, &master, &high)?);
            }
            if !quantized {
                return self.value(stored, needed, stream);
            }
            if !needed {
                return Ok(Vec::new());
            }
            let run = stored.module.run(stream);
            let dims = stored.shard.dims();
            let numel = dims.iter().product::<usize>();
            let block = run.block(4 * numel, Lifetime::Scratch)?;
            let cols = dims.last().copied().unwrap_or(1);
            let matrix = block.buffer(0, kNVTEFloat32, &[numel / cols.max(1), cols]);
            stored.with(|p| ops::dequantize(&run, &p.value.tensor, &plain(matrix)))?;
            host::bytes(&matrix, stream)
        };
        let bytes = move || self.joined(&stored, own(&stored)?, stream);
        Item {
            name,
            dtype: self::stored(dtype).unwrap_or(Dtype::F32),
            shape,
            bytes: Box::new(bytes),
        }
    }

    /// Whether this rank writes the file.
    fn writes(&self) -> bool {
        self.communicator.as_ref().is_none_or(|of| of.rank() == 0)
    }

    /// A call outside of steps, if something here has a context.
    fn run(&self, stream: cudaStream_t) -> Option<Run> {
        let of_optimizer = || self.optimizer.map(|optimizer| optimizer.context());
        let context = self.context.as_ref().or_else(of_optimizer)?;
        Some(Run::outside(context, stream))
    }

    /// The error of the first rank that has one, on all of them.
    fn agree<T>(&self, result: Result<T>, stream: cudaStream_t) -> Result<T> {
        match (&self.communicator, self.run(stream)) {
            (Some(communicator), Some(run)) => ranks::agree(communicator, &run, result),
            _ => result,
        }
    }

    /// The ranks of a group, if they have parts of parameters.
    fn split_ranks(&self, stored: &[Stored], group: NVTEXGridGroup) -> Option<Arc<Communicator>> {
        let ranks = self.context.as_ref()?.group(group)?;
        stored.iter().any(|one| one.shard.is_over(group)).then(|| Arc::clone(ranks))
    }

    /// Whether all ranks that have parts of something make the call.
    fn check_ranks(&self, stored: &[Stored]) -> Result<()> {
        let is_away = |one: &&Stored| {
            one.entry.is_none() && one.with(|p| p.own.is_some() && p.buffer().ptr().is_null())
        };
        if let Some(one) = stored.iter().find(is_away) {
            let expected = "the optimizer of the ranks that have parts of parameters, or whole \
                            parameters (nvtex_data_parallel_gather)";
            return Err(Error::argument(
                "config.optimizer",
                expected,
                format!("null, and a part of {:?}", one.name),
            ));
        }
        let divided = self.optimizer.and_then(|of| of.data_parallel()).filter(|of| of.is_divided());
        let divided = divided.map_or(1, |divided| divided.communicator().size());
        let [split, experts] = [NVTEX_GRID_TP, NVTEX_GRID_EP]
            .map(|group| self.split_ranks(stored, group).map_or(1, |ranks| ranks.size()));
        let size = split * divided.max(experts);
        let name = "config.communicator";
        match &self.communicator {
            Some(communicator) if communicator.size().is_multiple_of(size) => Ok(()),
            Some(communicator) => {
                let expected = format!("all ranks, at least the {size} that have parts");
                Err(Error::argument(name, expected, communicator.size()))
            }
            None if size == 1 => Ok(()),
            None => {
                let expected = "a communicator: ranks have parts of config.optimizer";
                Err(Error::argument(name, expected, "null"))
            }
        }
    }

    /// Lets all ranks know what each of those has that divide parameters. Collective.
    fn find_parts(&self, stored: &mut [Stored], stream: cudaStream_t) -> Result<()> {
        let writes = self.writes();
        // Parts of experts are joined before the experts of ranks.
        let wanted = self.find_parts_of(stored, NVTEX_GRID_EP, [writes; 2], stream)?;
        self.find_parts_of(stored, NVTEX_GRID_TP, [writes, wanted], stream)?;
        Ok(())
    }

    /// The same for the ranks of a group; whether the result of one of them is wanted. `wanted` says this of the own
    /// rank: of parameters that one group divides, and of those that are joined again afterwards.
    fn find_parts_of(
        &self,
        stored: &mut [Stored],
        group: NVTEXGridGroup,
        wanted: [bool; 2],
        stream: cudaStream_t,
    ) -> Result<bool> {
        let (Some(ranks), Some(run)) = (self.split_ranks(stored, group), self.run(stream)) else {
            return Ok(wanted[0]);
        };
        let level = |one: &Stored| one.shard.levels().into_iter().find(|of| of.is_over(group));
        let mut own = wanted.map(usize::from).to_vec();
        for piece in stored.iter().filter_map(level).flat_map(|level| level.pieces) {
            own.extend([piece.whole, piece.part, piece.length]);
        }
        let bytes: Vec<u8> = own.iter().flat_map(|x| x.to_le_bytes()).collect();
        let all = ranks::gather(&ranks, &run, &bytes)?;
        let all: Vec<usize> =
            all.as_chunks().0.iter().map(|&bytes| usize::from_le_bytes(bytes)).collect();
        let of_ranks = || all.chunks_exact(own.len());
        let needed = [0, 1].map(|i| of_ranks().any(|numbers| numbers[i] == 1));
        let mut at = needed.len();
        for one in stored.iter_mut() {
            let Some(level) = level(one) else { continue };
            let count = 3 * level.pieces.len();
            let of_rank = |numbers: &[usize]| {
                let pieces = numbers[at..at + count].as_chunks().0.iter();
                let pieces = pieces.map(|&[whole, part, length]| Piece { whole, part, length });
                Shard { pieces: pieces.collect(), ..level.clone() }
            };
            let shards = of_ranks().map(of_rank).collect();
            let needed = needed[usize::from(!one.joins.is_empty())];
            one.joins.insert(0, Join { ranks: Arc::clone(&ranks), needed, shards });
            at += count;
        }
        Ok(needed[0])
    }

    /// Whether this rank has to read its part of a parameter for the rank that writes.
    fn needs(&self, stored: &Stored) -> bool {
        stored.joins.first().map_or(self.writes(), |join| join.needed)
    }

    /// All bytes of an array from those of the part that this rank has among those that share a parameter.
    fn joined(&self, stored: &Stored, own: Vec<u8>, stream: cudaStream_t) -> Result<Vec<u8>> {
        let mut all = own;
        for (i, join) in stored.joins.iter().enumerate() {
            let wanted = stored.joins.get(i + 1).map_or(self.writes(), |next| next.needed);
            all = join.whole(&all, &stored.module.run(stream), wanted)?;
        }
        Ok(all)
    }

    /// The bytes of a value in high precision, where they are needed.
    fn value(&self, stored: &Stored, needed: bool, stream: cudaStream_t) -> Result<Vec<u8>> {
        match (stored.entry, stored.with(|p| p.own)) {
            (Some(entry), Some([value, _])) => self.undivided(entry, &value, needed, stream),
            _ if needed => host::bytes(&stored.with(|p| p.buffer()), stream),
            _ => Ok(Vec::new()),
        }
    }

    /// The bytes of an array that ranks of data parallelism may have divided, where they are needed.
    fn undivided(
        &self,
        entry: &Entry,
        own: &Buffer,
        needed: bool,
        stream: cudaStream_t,
    ) -> Result<Vec<u8>> {
        let optimizer = self.optimizer.filter(|_| entry.division.is_some());
        let of_ranks = optimizer.and_then(|optimizer| optimizer.data_parallel());
        let (Some(division), Some(of_ranks)) = (entry.division, of_ranks) else {
            return if needed { host::bytes(own, stream) } else { Ok(Vec::new()) };
        };
        let of_experts = entry.over.contains(&NVTEX_GRID_EP);
        let (communicator, count) = (of_ranks.ranks(of_experts), entry.numel());
        let run = Run::outside(of_ranks.context(), stream);
        let block = run.scratch(bytes(count, own.dtype))?;
        let whole = block.buffer(0, own.dtype, &[count]);
        let part = |rank| slice(&whole, division.of(rank, count));
        if own.bytes() > 0 {
            ops::copy(part(division.rank).ptr(), own.ptr(), own.bytes(), stream)?;
        }
        for rank in 0..communicator.size() {
            let part = part(rank);
            if part.bytes() > 0 {
                communicator.broadcast(&part, rank, &entry.name, stream)?;
            }
        }
        if needed { host::bytes(&whole, stream) } else { Ok(Vec::new()) }
    }

    pub fn save(&self, path: &Path, stream: cudaStream_t) -> Result<()> {
        let items = self.all_parameters().and_then(|stored| {
            self.check_ranks(&stored)?;
            Ok((self.fixed_items(stream)?, stored))
        });
        let (mut items, mut stored) = self.agree(items, stream)?;
        self.find_parts(&mut stored, stream)?;
        self.add_items(&mut items, stored, stream);
        let saved = match self.writes() {
            true => safetensors::write(path, items, &[(VERSION_KEY, VERSION)]),
            // In the order of the rank that writes.
            false => safetensors::in_order(items).iter().try_for_each(|item| {
                (item.bytes)()?;
                Ok(())
            }),
        };
        self.agree(saved, stream)
    }

    /// The tensors of parameters and of an optimizer.
    fn add_items<'a>(
        &'a self,
        items: &mut Vec<Item<'a>>,
        stored: Vec<Stored<'a>>,
        stream: cudaStream_t,
    ) {
        for stored in stored {
            let stored = Arc::new(stored);
            if let Some(entry) = stored.entry {
                for (name, buffer) in stored.state() {
                    let dtype = self::stored(buffer.dtype).unwrap_or(Dtype::F32);
                    let (shape, stored) = (stored.dims(), Arc::clone(&stored));
                    let bytes = Box::new(move || {
                        let run = stored.module.run(stream);
                        let (own, _memory) = entry.in_high_precision(&run, &buffer)?;
                        let own = self.undivided(entry, &own, self.needs(&stored), stream)?;
                        self.joined(&stored, own, stream)
                    });
                    items.push(Item { name, dtype, shape, bytes });
                }
            }
            items.push(self.item(stored, stream));
        }
    }

    /// The other tensors of the file.
    fn fixed_items(&self, stream: cudaStream_t) -> Result<Vec<Item<'_>>> {
        let mut items = Vec::new();
        let fixed = |name: &str, dtype, shape: Vec<usize>, bytes: Vec<u8>| Item {
            name: name.into(),
            dtype,
            shape,
            bytes: Box::new(move || host_list(bytes.iter().copied())),
        };
        if let Some(optimizer) = self.optimizer {
            let numbers = optimizer.read_numbers(stream)?;
            let counters = [numbers.step, numbers.skipped, numbers.good_steps];
            let bytes = counters.iter().flat_map(|x| x.to_le_bytes()).collect();
            items.push(fixed(COUNTERS, Dtype::I32, vec![counters.len()], bytes));
            let scalars = [numbers.base_rate, numbers.loss_scale];
            items.push(fixed(SCALARS, Dtype::F32, vec![scalars.len()], bytes_of(&scalars)?));
        }
        if let Some(context) = &self.context {
            let state = context.save(stream)?;
            items.push(fixed(RECIPE_STATE, Dtype::U8, vec![state.len()], state));
        }
        if let Some(loader) = &self.loader {
            let numbers = loader.position().numbers();
            let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            items.push(fixed(POSITION, Dtype::I64, vec![numbers.len()], bytes));
        }
        for Extra { name, buffer } in &self.extras {
            let shape = buffer.shape.dims().to_vec();
            let Some(dtype) = stored(buffer.dtype) else {
                let expected = "a dtype of integers or of high precision";
                return Err(Error::argument(format!("tensor {name:?}"), expected, buffer.dtype));
            };
            let bytes = Box::new(move || host::bytes(buffer, stream));
            items.push(Item { name: format!("extra.{name}"), dtype, shape, bytes });
        }
        Ok(items)
    }

    /// Reads a checkpoint. Everything is checked on all ranks before anything is changed.
    pub fn load(&mut self, path: &Path, stream: cudaStream_t) -> Result<()> {
        let position = {
            let checked = self.agree(self.check(path, stream), stream)?;
            let position = checked.position;
            self.agree(self.read(checked, stream), stream)?;
            position
        };
        match (&mut self.loader, position) {
            (Some(loader), Some(position)) => loader.seek(position),
            _ => Ok(()),
        }
    }

    fn check(&self, path: &Path, stream: cudaStream_t) -> Result<Checked<'_>> {
        let file = File::open(path)?;
        // One rank reads all of the file for the others.
        if self.writes() {
            file.verify(true)?;
        }
        match file.value(VERSION_KEY) {
            Some(VERSION) => {}
            other => {
                let expected = format!("{VERSION:?} as {VERSION_KEY} in __metadata__");
                let argument = format!("path: {}", path.display());
                return Err(Error::argument(argument, expected, format!("{other:?}")));
            }
        }
        let parameters = self.all_parameters()?;
        for stored in &parameters {
            file.check_floats(&stored.name, &stored.shard.whole)?;
            for (name, _) in stored.state() {
                file.check_floats(&name, &stored.shard.whole)?;
            }
        }
        let typed = |name: &str, dtype: Dtype, dims: &[usize]| -> Result<Vec<u8>> {
            let info = file.shaped(name, dims)?;
            if info.dtype != dtype {
                return Err(file.wrong(name, format!("{dtype:?}"), format!("{:?}", info.dtype)));
            }
            file.bytes(info)
        };
        let numbers = match self.optimizer {
            None => None,
            Some(optimizer) => {
                let counters = typed(COUNTERS, Dtype::I32, &[3])?;
                let scalars = host::widened(&typed(SCALARS, Dtype::F32, &[2])?, kNVTEFloat32)?;
                let (counters, _) = counters.as_chunks::<4>();
                let mut numbers = optimizer.read_numbers(stream)?;
                numbers.step = i32::from_le_bytes(counters[0]);
                numbers.skipped = i32::from_le_bytes(counters[1]);
                numbers.good_steps = i32::from_le_bytes(counters[2]);
                (numbers.base_rate, numbers.loss_scale) = (scalars[0], scalars[1]);
                Some(numbers)
            }
        };
        let position = match &self.loader {
            None => None,
            Some(loader) => {
                let bytes = typed(POSITION, Dtype::I64, &[Position::NUMBERS])?;
                let (numbers, _) = bytes.as_chunks::<8>();
                let position = Position::from_numbers(|i| i64::from_le_bytes(numbers[i]));
                loader.check(&position)?;
                Some(position)
            }
        };
        let mut extras = Vec::new();
        for Extra { name, buffer } in &self.extras {
            let Some(dtype) = stored(buffer.dtype) else {
                let expected = "a dtype of integers or of high precision";
                return Err(Error::argument(format!("tensor {name:?}"), expected, buffer.dtype));
            };
            extras.push((*buffer, typed(&format!("extra.{name}"), dtype, buffer.shape.dims())?));
        }
        let recipes = match &self.context {
            Some(_) => Some(file.bytes(file.info(RECIPE_STATE)?)?),
            None => None,
        };
        Ok(Checked { file, parameters, numbers, position, extras, recipes })
    }

    fn read(&self, checked: Checked, stream: cudaStream_t) -> Result<()> {
        let Checked { file, parameters, numbers, extras, recipes, .. } = checked;
        // The state of recipes is checked as a whole by the context, before it changes anything.
        let scaled = match (&self.context, recipes) {
            (Some(context), Some(recipes)) => context.load(&recipes, stream)?,
            _ => Vec::new(),
        };
        // A weight in FP8 alone has the scale that it had when it was saved, if that is known.
        let has_scale = |p: &mut Parameter| {
            let delayed = p.format.as_ref().and_then(|format| format.delayed.as_ref());
            delayed.is_some_and(|delayed| scaled.contains(&delayed.name))
        };
        for stored in &parameters {
            let first = !stored.with(has_scale);
            let count = stored.shard.dims().iter().product();
            let values = file.floats_of(&stored.name, &stored.shard, 0..count)?;
            match (self.optimizer, stored.entry) {
                (Some(optimizer), Some(entry)) => {
                    optimizer.set_master(entry, (&values, first), stream)?;
                }
                _ => {
                    let run = stored.module.run(stream);
                    stored.with(|p| host::assign(&run, p, (&values, first)))?;
                }
            }
            for (name, buffer) in stored.state() {
                let run = stored.module.run(stream);
                let part = stored.entry.map_or(0..buffer.shape.numel(), Entry::part);
                if part.is_empty() {
                    continue;
                }
                let values = file.floats_of(&name, &stored.shard, part)?;
                let entry = stored.entry;
                if !entry.map_or(Ok(false), |entry| entry.set_moment(&buffer, &values, stream))? {
                    host::fill(&run, &values, &buffer)?;
                }
            }
        }
        if let (Some(optimizer), Some(numbers)) = (self.optimizer, numbers) {
            optimizer.write_numbers(numbers, stream)?;
        }
        for (buffer, bytes) in extras {
            ops::upload(buffer.ptr(), &bytes, stream)?;
        }
        Ok(())
    }
}
