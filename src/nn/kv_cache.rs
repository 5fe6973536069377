//! Keys and values of earlier tokens, for generating text (spec: modules, section 16).
//!
//! Every cache has pages: the contiguous one has pages of a whole sequence, and its tables are only
//! read after sequences have changed places.

use super::context::{Context, Run};
use super::memory::{Block, Layout, Lifetime, Place, host_room, host_vec, lock, reserve};
use super::ops::{self, plain};
use super::quantizer::QTensor;
use crate::error::{Error, Result};
use crate::op::fused_attn::kv_cache::ToCache;
use crate::tensor::{Shape, Tensor};
use crate::types::NVTE_QKV_Format;
use crate::types::NVTEDType::{self, *};
use crate::types::cudaStream_t;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy)]
pub struct CacheConfig {
    pub max_batch: usize,
    /// Most tokens of a sequence.
    pub max_length: usize,
    /// Tokens of a page, a divisor of `max_length`.
    pub page: usize,
    pub pages: usize,
}

/// Where the tokens of a sequence are.
#[derive(Clone, Default)]
struct Sequence {
    length: usize,
    pages: Vec<usize>,
}

/// What the steps change.
struct State {
    sequences: Vec<Sequence>,
    /// Whether a page belongs to a sequence.
    taken: Vec<bool>,
    /// The page table on the device is that of `sequences`.
    table_is_current: bool,
    /// Sequences of the step, and the most new tokens of one.
    batch: usize,
    longest: usize,
    /// The new tokens of all sequences together.
    total: usize,
    /// Keys and values by the name of the attention.
    layers: HashMap<String, [Arc<QTensor>; 2]>,
}

/// Places of the Int32 arrays in `indices`, and the size of all.
struct Places {
    /// Sums of the numbers of new tokens, and of all tokens.
    sums: [Place; 2],
    /// First positions of the new tokens.
    starts: Place,
    table: Place,
    bytes: usize,
}

impl Places {
    fn new(config: &CacheConfig) -> Self {
        let &CacheConfig { max_batch, max_length, page, .. } = config;
        let mut layout = Layout::default();
        let mut array = |count| layout.array(kNVTEInt32, count, 4);
        // Sums have one entry more than there are sequences.
        let sums = [array(max_batch + 1), array(max_batch + 1)];
        let starts = array(max_batch);
        let table = array(max_batch * (max_length / page));
        Self { sums, starts, table, bytes: layout.bytes() }
    }
}

pub struct KvCache {
    context: Arc<Context>,
    config: CacheConfig,
    indices: Block,
    places: Places,
    state: Mutex<State>,
}

/// What an attention reads in place of the new keys and values.
pub struct Cached {
    pub k: Tensor,
    pub v: Tensor,
    /// The page table; none if sequence i lies where a dense tensor has it.
    pub table: Option<Tensor>,
    pub cu_seqlens: [Tensor; 2],
    pub max_length: usize,
    _owners: [Arc<QTensor>; 2],
}

impl KvCache {
    pub fn new(run: &Run, config: CacheConfig) -> Result<Self> {
        let places = Places::new(&config);
        let taken = host_vec(false, config.pages)?;
        let indices = run.block(places.bytes, Lifetime::Persistent)?;
        ops::zero(&indices.buffer(0, kNVTEByte, &[places.bytes]), run.stream)?;
        let state = State {
            sequences: Vec::new(),
            taken,
            table_is_current: false,
            batch: 0,
            longest: 0,
            total: 0,
            layers: HashMap::new(),
        };
        let context = Arc::clone(&run.context);
        Ok(Self { context, config, indices, places, state: Mutex::new(state) })
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Checks the number of sequences of a step.
    pub fn check_batch(&self, batch: usize) -> Result<()> {
        let most = self.config.max_batch;
        if (1..=most).contains(&batch) {
            return Ok(());
        }
        Err(Error::argument("batch", format!("1 to {most} (max_batch_size)"), batch))
    }

    pub fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// One of the arrays in `indices`, or its first elements.
    fn array(&self, place: Place, dims: &[usize]) -> Tensor {
        plain(self.indices.array(place, dims))
    }

    pub fn length(&self, sequence: usize) -> usize {
        lock(&self.state).sequences.get(sequence).map_or(0, |sequence| sequence.length)
    }

    /// Begins a step, in which sequence i gets `new[i]` tokens.
    pub fn step(&self, new: &[usize], stream: cudaStream_t) -> Result<()> {
        let CacheConfig { max_batch, max_length, page, .. } = self.config;
        let batch = new.len();
        self.check_batch(batch)?;
        let mut state = lock(&self.state);
        let mut needed = 0;
        for (i, &tokens) in new.iter().enumerate() {
            let old = state.sequences.get(i).cloned().unwrap_or_default();
            let room = max_length - old.length;
            if tokens > room {
                let expected = format!(
                    "at most {room} (max_sequence_length {max_length}, {} are cached)",
                    old.length
                );
                return Err(Error::argument(format!("new_tokens[{i}]"), expected, tokens));
            }
            needed += (old.length + tokens).div_ceil(page) - old.pages.len();
        }
        let free = state.taken.iter().filter(|&&taken| !taken).count();
        if needed > free {
            let expected = format!("tokens for at most {free} more pages (num_pages)");
            return Err(Error::argument(
                "new_tokens",
                expected,
                format!("tokens for {needed} more"),
            ));
        }
        // What can fail on the host is done before anything changes.
        let per = max_length / page;
        let table_changes = needed > 0 || !state.table_is_current;
        let mut table = host_vec(0i32, if table_changes { max_batch * per } else { 0 })?;
        let mut sums: [Vec<i32>; 2] = [host_room(batch + 1)?, host_room(batch + 1)?];
        sums.iter_mut().for_each(|sums| sums.push(0));
        let mut starts = host_room(batch)?;
        let more = batch.saturating_sub(state.sequences.len());
        reserve(&mut state.sequences, more)?;
        let sequences = state.sequences.len() + more;
        state.sequences.resize(sequences, Sequence::default());
        for (i, &tokens) in new.iter().enumerate() {
            let old = state.sequences[i].length;
            state.grow(i, old + tokens, page);
            starts.push(old as i32);
            for (sums, more) in sums.iter_mut().zip([tokens, old + tokens]) {
                sums.push(sums[sums.len() - 1] + more as i32);
            }
        }
        state.batch = batch;
        state.longest = new.iter().copied().max().unwrap_or(0);
        state.total = new.iter().sum();
        let [new_sums, all_sums] = self.places.sums;
        let arrays = [(new_sums, &sums[0]), (all_sums, &sums[1]), (self.places.starts, &starts)];
        for (place, values) in arrays {
            ops::upload(self.array(place, &[values.len()]).rowwise.ptr(), values, stream)?;
        }
        if table_changes {
            for (i, sequence) in state.sequences.iter().enumerate() {
                for (entry, &page) in table[i * per..].iter_mut().zip(&sequence.pages) {
                    *entry = page as i32;
                }
            }
            ops::upload(
                self.array(self.places.table, &[table.len()]).rowwise.ptr(),
                &table,
                stream,
            )?;
            state.table_is_current = true;
        }
        Ok(())
    }

    /// Forgets the tokens of a sequence from `length` on.
    pub fn truncate(&self, sequence: usize, length: usize) -> Result<()> {
        let mut state = lock(&self.state);
        let old = state.sequences.get(sequence).map_or(0, |sequence| sequence.length);
        if length > old {
            return Err(Error::argument("length", format!("at most {old}, its length"), length));
        }
        let keep = length.div_ceil(self.config.page);
        if let Some(sequence) = state.sequences.get_mut(sequence) {
            sequence.length = length;
            let freed = sequence.pages.split_off(keep);
            freed.into_iter().for_each(|page| state.taken[page] = false);
        }
        state.batch = 0;
        Ok(())
    }

    /// Sequence i becomes what sequence `from[i]` is; none: an empty one. Others are forgotten.
    pub fn reorder(&self, from: &[Option<usize>], stream: cudaStream_t) -> Result<()> {
        let CacheConfig { max_batch, page, .. } = self.config;
        if from.len() > max_batch {
            let expected = format!("at most {max_batch} (max_batch_size)");
            return Err(Error::argument("count", expected, from.len()));
        }
        let mut state = lock(&self.state);
        let known = state.sequences.len();
        let mut users = host_vec(0usize, known)?;
        for (i, &source) in from.iter().enumerate() {
            match source {
                Some(source) if source < known => users[source] += 1,
                Some(source) => {
                    let expected = format!("less than {known} (sequences), or -1");
                    return Err(Error::argument(format!("from[{i}]"), expected, source));
                }
                None => {}
            }
        }
        let held = |sequence: &Sequence| sequence.pages.len();
        let needed: usize =
            users.iter().zip(&state.sequences).map(|(&n, sequence)| n * held(sequence)).sum();
        if needed > self.config.pages {
            let expected = format!("copies of at most {} pages (num_pages)", self.config.pages);
            return Err(Error::argument("from", expected, format!("copies of {needed} pages")));
        }
        let sequences = host_room(from.len())?;
        let mut moved = host_vec(false, known)?;
        let old = std::mem::replace(&mut state.sequences, sequences);
        for (sequence, &users) in old.iter().zip(&users) {
            sequence.pages.iter().for_each(|&page| state.taken[page] = users > 0);
        }
        let mut copies = Vec::new();
        for (i, &source) in from.iter().enumerate() {
            state.sequences.push(Sequence::default());
            let Some(source) = source else { continue };
            // The first one takes the pages, others copy them.
            if !std::mem::replace(&mut moved[source], true) {
                state.sequences[i] = old[source].clone();
            } else {
                state.grow(i, old[source].length, page);
                let pages = old[source].pages.iter().copied();
                copies.extend(pages.zip(state.sequences[i].pages.iter().copied()));
            }
        }
        state.table_is_current = false;
        state.batch = 0;
        for tensor in state.layers.values().flatten() {
            let buffer = &tensor.tensor.rowwise;
            let bytes = buffer.bytes() / self.config.pages;
            let at = |page: usize| buffer.ptr().wrapping_byte_add(page * bytes);
            for &(from, to) in &copies {
                ops::copy(at(to), at(from), bytes, stream)?;
            }
        }
        Ok(())
    }

    /// Sums of the new tokens of the sequences of the step, and the most of one.
    pub fn new_tokens(&self) -> (Tensor, usize) {
        let state = lock(&self.state);
        (self.array(self.places.sums[0], &[state.batch + 1]), state.longest)
    }

    /// First positions of the sequences of the step.
    pub fn starts(&self) -> Tensor {
        let batch = lock(&self.state).batch;
        self.array(self.places.starts, &[batch])
    }

    /// Checks the tokens of a pass, which are as long as the longest sequence of new ones or, packed, as
    /// all of them, and the angles for them.
    pub fn check(
        &self,
        [length, batch]: [usize; 2],
        packed: bool,
        frequencies: Option<&Tensor>,
    ) -> Result<()> {
        let state = lock(&self.state);
        if state.batch == 0 {
            let expected = "a cache whose step nvtex_kv_cache_step has begun";
            return Err(Error::argument("step.kv_cache", expected, "a cache without a step"));
        }
        if packed {
            if length < state.total {
                let expected = format!("{} tokens or more", state.total);
                return Err(Error::argument("inputs[0].shape", expected, length));
            }
        } else if batch != state.batch || length < state.longest {
            let expected =
                format!("a batch of {} and {} tokens or more", state.batch, state.longest);
            let got = format!("a batch of {batch} and {length} tokens");
            return Err(Error::argument("inputs[0].shape", expected, got));
        }
        // Rows that are not new tokens are rotated as well, in any later replay of a graph, unless
        // tokens are packed.
        let behind = if packed { 0 } else { length - 1 };
        let most = self.config.max_length + behind;
        match frequencies.map(|tensor| (tensor, tensor.rowwise.shape.flatten().0)) {
            Some((tensor, rows)) if rows < most => {
                let expected = format!("{most} rows (max_sequence_length + length - 1) or more");
                let got = tensor.rowwise.shape;
                Err(Error::argument("step.rotary_frequencies.shape", expected, got))
            }
            _ => Ok(()),
        }
    }

    /// Appends the keys and values of a layer, and returns all of them.
    pub fn append(
        &self,
        run: &Run,
        layer: &str,
        [k, v]: [&Tensor; 2],
        (format, length): (NVTE_QKV_Format, usize),
    ) -> Result<Cached> {
        let CacheConfig { max_length, page, pages, .. } = self.config;
        let mut state = lock(&self.state);
        let heads = |tensor: &Tensor| {
            let dims = tensor.rowwise.shape.dims();
            [pages, page, dims[dims.len() - 2], dims[dims.len() - 1]]
        };
        let dtype = k.rowwise.dtype;
        let owners = match state.layers.get(layer) {
            Some(owners) => owners.clone(),
            None => {
                let (k, v) = (heads(k), heads(v));
                let owners = [Self::memory(run, &k, dtype)?, Self::memory(run, &v, dtype)?];
                state.layers.insert(layer.to_owned(), owners.clone());
                owners
            }
        };
        for (tensor, owner) in [k, v].into_iter().zip(&owners) {
            let (dims, cached) = (heads(tensor), &owner.tensor.rowwise);
            if cached.shape.dims() != dims || cached.dtype != dtype {
                let expected = format!("a cache of {} in {dtype} for {layer}", Shape::new(&dims));
                let got = format!("{} in {}", cached.shape, cached.dtype);
                return Err(Error::argument("step.kv_cache", expected, got));
            }
        }
        let batch = state.batch;
        let table = self.array(self.places.table, &[batch, max_length / page]);
        let sums = self.places.sums.map(|place| self.array(place, &[batch + 1]));
        let copy = ToCache {
            new: [k, v],
            cache: [&owners[0].tensor, &owners[1].tensor],
            page_table: &table,
            cu_new_lens: &sums[0],
            cu_cached_lens: &sums[1],
            batch,
            max_new: length,
            max_length,
            max_pages: max_length / page,
            paged: true,
        };
        ops::copy_to_kv_cache(run, &copy, format)?;
        let in_place = |(i, sequence): (usize, &Sequence)| {
            sequence.pages.first().is_none_or(|&first| first == i)
        };
        let dense =
            page == max_length && state.sequences.iter().take(batch).enumerate().all(in_place);
        let view = |owner: &QTensor| {
            let mut buffer = owner.tensor.rowwise;
            let dims = buffer.shape;
            if dense {
                buffer.shape = Shape::new(&[batch, page, dims.dims()[2], dims.dims()[3]]);
            }
            plain(buffer)
        };
        Ok(Cached {
            k: view(&owners[0]),
            v: view(&owners[1]),
            table: (!dense).then_some(table),
            cu_seqlens: sums,
            max_length,
            _owners: owners,
        })
    }

    /// Memory of all pages of a layer; zeros, so that what is masked is no NaN.
    fn memory(run: &Run, dims: &[usize], dtype: NVTEDType) -> Result<Arc<QTensor>> {
        let shape = Shape::new(dims);
        let mut tensor = QTensor::plain(run, shape.flatten(), dtype, Lifetime::Persistent)?;
        tensor.tensor.rowwise.shape = shape;
        ops::zero(&tensor.tensor.rowwise, run.stream)?;
        Ok(Arc::new(tensor))
    }
}

impl State {
    /// Gives a sequence pages for `length` tokens, of which there are enough: the i-th page first, so
    /// that sequences that fill a page lie as in a dense tensor.
    fn grow(&mut self, i: usize, length: usize, page: usize) {
        while self.sequences[i].pages.len() < length.div_ceil(page) {
            let own = (self.taken.get(i) == Some(&false)).then_some(i);
            let Some(next) = own.or_else(|| self.taken.iter().position(|&taken| !taken)) else {
                break;
            };
            self.taken[next] = true;
            self.sequences[i].pages.push(next);
            self.table_is_current = false;
        }
        self.sequences[i].length = length;
    }
}
