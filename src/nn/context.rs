//! Contexts: memory, the active recipe, the state of delayed scaling. There are no globals.

use super::SharedLayer;
use super::callback;
use super::kv_cache::KvCache;
use super::memory::{Block, Callbacks, Lifetime, Memory, host_list, lock};
use super::ops;
use super::parameter::WEIGHT_SLOT;
use super::quantizer::QTensor;
use super::recipe::{Group, Recipe};
use super::state::{self, Delayed, FIRST_SCALE, Named, Pass, Values};
use crate::backend::{self, args::DeviceProperties};
use crate::env::{Overlap, env};
use crate::error::{Error, Result};
use crate::op::nvtex::stream_is_capturing;
use crate::parallel::Communicator;
use crate::parallel::exports::NVTEXGridGroup;
use crate::parallel::grid::Grid;
use crate::tensor::{Shape, Tensor};
use crate::types::NVTEDType::*;
use crate::types::cudaStream_t;
use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// The arguments of `nvtex_context_begin`.
#[derive(Clone)]
pub struct Frame {
    pub recipe: Option<Arc<Recipe>>,
    pub enabled: bool,
    pub calibrating: bool,
    /// Modules that are created keep their weights in the recipe's format alone.
    pub quantized_weights: bool,
    pub group: Option<Group>,
}

/// Max-reduces floats on the device over a group of ranks.
pub type ReduceMax = dyn Fn(Group, *mut f32, usize, cudaStream_t) -> Result<()> + Send + Sync;

pub struct Context {
    pub memory: Arc<Memory>,
    pub reduce_max: Option<Box<ReduceMax>>,
    /// Multiprocessors that normalizations keep busy, if the program has said how many.
    multiprocessors: Option<c_int>,
    /// The device of the first pass.
    device: OnceLock<DeviceProperties>,
    /// The ranks that share modules, if there are others.
    grid: OnceLock<Arc<Grid>>,
    pub state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    frames: Vec<Frame>,
    names: HashSet<String>,
    pub delayed: Vec<Weak<Delayed>>,
    /// Loaded states whose layers have not run yet.
    pub pending: HashMap<String, (usize, [Values; 2])>,
    /// Updates of both passes so far.
    updates: [u64; 2],
    streams: HashMap<usize, Resources>,
}

/// What calls on one stream share.
#[derive(Default)]
struct Resources {
    workspace: Option<Arc<Block>>,
}

impl Context {
    pub fn new(
        (callbacks, max_unused): (Option<Callbacks>, Option<usize>),
        reduce_max: Option<Box<ReduceMax>>,
        multiprocessors: Option<c_int>,
    ) -> Arc<Self> {
        let memory = Memory::new(callbacks, max_unused);
        let (device, grid, state) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        Arc::new(Self { memory, reduce_max, multiprocessors, device, grid, state })
    }

    /// The device that the context works on. It is asked at the first pass, not before: until then a program
    /// may fork.
    pub fn device(&self) -> Result<DeviceProperties> {
        match self.device.get() {
            Some(device) => Ok(*device),
            None => {
                let device = backend::device_properties()?;
                Ok(*self.device.get_or_init(|| device))
            }
        }
    }

    /// Spreads the modules to come over ranks.
    pub fn set_grid(&self, grid: &Arc<Grid>) -> Result<()> {
        let refuse = |expected: &str, got: &str| Err(Error::argument("context", expected, got));
        if self.reduce_max.is_some() {
            let got = "one with all_reduce_max (a grid reduces the maxima itself)";
            return refuse("a context without all_reduce_max", got);
        }
        if !lock(&self.state).names.is_empty() {
            return refuse("a context without modules", "one that has modules already");
        }
        match self.grid.set(Arc::clone(grid)) {
            Ok(()) => Ok(()),
            Err(_) => refuse("a context without a grid", "one that has a grid already"),
        }
    }

    pub fn grid(&self) -> Option<&Arc<Grid>> {
        self.grid.get()
    }

    /// The ranks of a group, if there are others than this one.
    pub fn group(&self, group: NVTEXGridGroup) -> Option<&Arc<Communicator>> {
        self.grid()?.group(group)
    }

    /// Multiprocessors that normalizations keep busy.
    pub fn multiprocessors(&self) -> Result<c_int> {
        match self.multiprocessors {
            Some(count) => Ok(count),
            None => Ok(self.device()?.multiprocessors),
        }
    }

    /// Refuses calls that a function of the program makes on the context that has called it.
    pub fn check_free(&self, argument: &str) -> Result<()> {
        match callback::is_nested(self.memory.id()) {
            false => Ok(()),
            true => {
                let got = "one that is in use by the call that called this function";
                Err(Error::argument(argument, "a handle of a context that no call is using", got))
            }
        }
    }

    pub fn begin(&self, frame: Frame) {
        lock(&self.state).frames.push(frame);
    }

    pub fn end(&self) -> Result<()> {
        match lock(&self.state).frames.pop() {
            Some(_) => Ok(()),
            None => Err(Error::argument("context", "an open region (nvtex_context_begin)", "none")),
        }
    }

    pub fn frame(&self) -> Option<Frame> {
        lock(&self.state).frames.last().cloned()
    }

    /// Takes a name for a module; an empty one becomes the kind and a number.
    pub fn take_name(&self, argument: &str, name: &str, kind: &str) -> Result<String> {
        let mut state = lock(&self.state);
        let name = match name {
            "" => (0..).map(|i| format!("{kind}{i}")).find(|name| !state.names.contains(name)),
            name => Some(name.to_owned()),
        };
        let name = name.unwrap_or_default();
        if !state.names.insert(name.clone()) {
            let expected = "a name that no module of the context has";
            return Err(Error::argument(argument, expected, format!("{name:?}")));
        }
        Ok(name)
    }

    pub fn give_name(&self, name: &str) {
        lock(&self.state).names.remove(name);
    }

    pub fn update(&self, pass: Pass, stream: cudaStream_t) -> Result<()> {
        let count = lock(&self.state).updates[pass as usize];
        state::update(self, pass, count, stream)?;
        lock(&self.state).updates[pass as usize] += 1;
        Ok(())
    }

    pub(super) fn live(&self) -> Result<Vec<Arc<Delayed>>> {
        host_list(lock(&self.state).delayed.iter().filter_map(Weak::upgrade))
    }

    /// Length of the history and values of a layer's state.
    pub fn delayed_scaling(
        &self,
        name: &str,
        stream: cudaStream_t,
    ) -> Result<Option<(usize, [Values; 2])>> {
        match self.live()?.iter().find(|delayed| delayed.name == name) {
            Some(delayed) => delayed.values(stream).map(Some),
            None => Ok(lock(&self.state).pending.get(name).cloned()),
        }
    }

    /// States of all layers, by name; those still to come as they were loaded.
    fn states(&self, stream: cudaStream_t) -> Result<Vec<Named>> {
        let mut states: Vec<Named> = {
            let state = lock(&self.state);
            let pending = state.pending.iter();
            pending
                .map(|(name, (length, values))| (name.clone(), *length, values.clone()))
                .collect()
        };
        for delayed in self.live()? {
            let (length, values) = delayed.values(stream)?;
            states.push((delayed.name.clone(), length, values));
        }
        states.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(states)
    }

    pub fn state_size(&self) -> Result<usize> {
        let live: Vec<(String, usize)> =
            host_list(self.live()?.iter().map(|d| (d.name.clone(), d.length())))?;
        let state = lock(&self.state);
        let pending = state.pending.iter().map(|(name, (length, _))| (name.as_str(), *length));
        Ok(state::encoded_size(
            live.iter().map(|(name, length)| (name.as_str(), *length)).chain(pending),
        ))
    }

    pub fn save(&self, stream: cudaStream_t) -> Result<Vec<u8>> {
        state::encode(&self.states(stream)?)
    }

    /// Returns the names of the layers that there are now, if their weight had another scale than the first one.
    pub fn load(&self, bytes: &[u8], stream: cudaStream_t) -> Result<Vec<String>> {
        let states = state::decode(bytes)?;
        let (live, mut scaled) = (self.live()?, Vec::new());
        for (name, length, values) in states {
            match live.iter().find(|delayed| delayed.name == name) {
                Some(delayed) => {
                    let has_scale =
                        values[Pass::Forward as usize].scale[WEIGHT_SLOT] != FIRST_SCALE;
                    delayed.set_values(length, values, stream)?;
                    if has_scale {
                        scaled.push(name);
                    }
                }
                None => drop(lock(&self.state).pending.insert(name, (length, values))),
            }
        }
        Ok(scaled)
    }
}

/// Whether a step is one of several that share their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Microbatch {
    /// Weights are quantized anew, and gradients go where their binding says.
    None,
    /// Weights are cast and kept; gradients are overwritten.
    First,
    /// The kept weights are used; gradients are added.
    Later,
}

/// Everything about one call that is not a tensor of the module.
#[derive(Clone)]
pub struct Run {
    pub context: Arc<Context>,
    /// Name of the module that the call is of, for errors; none if there is no module.
    pub module: Option<Arc<str>>,
    pub stream: cudaStream_t,
    /// The stream is being captured into a graph.
    pub capturing: bool,
    pub frame: Option<Frame>,
    /// A tape is wanted.
    pub training: bool,
    pub microbatch: Microbatch,
    /// A flag on the device that forbids casting weights that are kept, or null.
    pub skip_weights: *const f32,
    /// Seed and offset of the random numbers.
    pub rng_state: Option<Tensor>,
    /// Where the module begins in the caller's sequence of random numbers.
    pub first_site: u32,
    /// Lengths of queries and keys, and where sequences of both begin.
    pub cu_seqlens: [Option<Tensor>; 4],
    /// The longest sequences of packed tokens.
    pub max_seqlen: [usize; 2],
    /// Angles of rotary embeddings.
    pub frequencies: Option<Tensor>,
    /// Rows of the parts of a grouped layer.
    pub splits: Vec<usize>,
    /// Keys and values of earlier tokens.
    pub kv_cache: Option<Arc<KvCache>>,
    /// The layer that runs behind this one.
    pub next: Option<SharedLayer>,
}

impl Run {
    /// A call outside of steps: creation of modules, copies of parameters.
    pub fn outside(context: &Arc<Context>, stream: cudaStream_t) -> Self {
        Self {
            context: Arc::clone(context),
            module: None,
            stream,
            capturing: stream_is_capturing(stream),
            frame: context.frame(),
            training: false,
            microbatch: Microbatch::None,
            skip_weights: std::ptr::null(),
            rng_state: None,
            first_site: 0,
            cu_seqlens: Default::default(),
            max_seqlen: [0; 2],
            frequencies: None,
            splits: Vec::new(),
            kv_cache: None,
            next: None,
        }
    }

    pub fn block(&self, bytes: usize, lifetime: Lifetime) -> Result<Block> {
        self.context.memory.block(bytes, lifetime, (self.stream, self.capturing))
    }

    pub fn scratch(&self, bytes: usize) -> Result<Block> {
        self.block(bytes, Lifetime::Scratch)
    }

    /// A stream for what ranks exchange while products run that do not wait for it, behind all that is on the stream of
    /// the call by now. It is that stream itself unless overlap is asked for.
    pub fn beside(&self) -> Result<cudaStream_t> {
        let mut branch = [self.stream];
        if env().comm_overlap != Overlap::Off {
            backend::domain()?.fork(self.stream, &mut branch)?;
        }
        Ok(branch[0])
    }

    /// What follows on the stream of the call comes behind what is on that of [`Self::beside`] by now.
    pub fn join(&self) -> Result<()> {
        if env().comm_overlap != Overlap::Off {
            backend::domain()?.join(self.stream, 1)
        } else {
            Ok(())
        }
    }

    /// The workspace of products, which all calls on a stream share.
    pub fn workspace(&self, bytes: usize) -> Result<Arc<Block>> {
        let mut state = lock(&self.context.state);
        let resources = state.streams.entry(self.stream as usize).or_default();
        if let Some(block) = resources.workspace.as_ref().filter(|b| b.bytes() >= bytes) {
            return Ok(self.shared(block));
        }
        let block = Arc::new(self.block(bytes, Lifetime::Persistent)?);
        resources.workspace = Some(Arc::clone(&block));
        Ok(block)
    }

    /// A block that was handed out to an earlier call.
    fn shared(&self, block: &Arc<Block>) -> Arc<Block> {
        if self.capturing {
            block.keep_for_graph();
        }
        Arc::clone(block)
    }

    /// The caller's state of the random numbers.
    pub fn rng_state(&self) -> Result<&Tensor> {
        let expected = "Int64 [2], seed and offset (for dropout, or gradients of NVFP4)";
        self.rng_state.as_ref().ok_or_else(|| Error::argument("step.rng_state", expected, "null"))
    }

    /// The state of the random numbers from `site` on.
    pub fn random(&self, site: u32) -> Result<QTensor> {
        let from = self.rng_state()?;
        let mut state = QTensor::plain(self, (1, 2), kNVTEInt64, Lifetime::Tape)?;
        state.tensor.rowwise.shape = Shape::new(&[2]);
        ops::rng_state(self, from, &state.tensor, self.first_site + site)?;
        Ok(state)
    }
}
