//! State of delayed scaling: scales and histories of one layer on the device (spec: modules, 3.3, 3.4),
//! their update, and their form in files.

use super::context::{Context, Run};
use super::memory::{Block, Lifetime, host_list, host_room, host_vec, lock};
use super::ops;
use super::recipe::{Group, MOST_HISTORY, Rule};
use crate::backend::args::AmaxAlgo;
use crate::error::{Error, Result};
use crate::op::nvtex::stream_is_capturing;
use crate::op::recipe::{Rule as UpdateRule, delayed_scaling_after_reduction};
use crate::parallel::Communicator;
use crate::parallel::exports::NVTEXGridGroup::NVTEX_GRID_ALL_BUT_PP;
use crate::tensor::Buffer;
use crate::types::NVTEDType::{self, *};
use crate::types::cudaStream_t;
use std::sync::{Arc, Mutex};

/// Which pass a slot belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    Forward = 0,
    Backward = 1,
}

/// Slots of a layer: input, weight, output; gradients of output and input.
const SLOTS: [usize; 2] = [3, 2];

/// What the cast of one operand reads and writes beside the operand: scale and current amax of delayed scaling, and
/// seed and offset of stochastic rounding.
pub struct Slot {
    pub scale: Buffer,
    pub amax: Buffer,
    pub random: Buffer,
    /// The ranks that have the other parts of the operand, if its scale is that of the whole.
    pub ranks: Option<Arc<Communicator>>,
    /// Those that have the other rows of its sequences, likewise.
    pub sequence: Option<Arc<Communicator>>,
}

impl Slot {
    pub const NONE: Self = Self {
        scale: Buffer::UNSET,
        amax: Buffer::UNSET,
        random: Buffer::UNSET,
        ranks: None,
        sequence: None,
    };
}

/// Slots of one pass: `scale[n]`, and `history[L, n]` with the current amax in row 0 and the newest of
/// the others in the last row.
struct Direction {
    scale: Block,
    history: Block,
    dtype: NVTEDType,
    count: usize,
}

/// Scales and histories on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    pub scale: Vec<f32>,
    pub history: Vec<f32>,
}

pub struct Inner {
    directions: [Direction; 2],
    rule: Rule,
    group: Option<Group>,
}

/// State of one layer, known to its context by the layer's name.
pub struct Delayed {
    pub name: String,
    inner: Mutex<Inner>,
}

/// The settings of a recipe that a layer's state depends on.
#[derive(Clone, Copy, PartialEq)]
pub struct Settings {
    pub rule: Rule,
    pub group: Option<Group>,
    pub dtypes: [NVTEDType; 2],
}

/// Scales before the first update.
pub const FIRST_SCALE: f32 = 1.0;

fn initial(length: usize) -> Result<[Values; 2]> {
    let [forward, backward] = counts(length).map(|[scales, maxima]| -> Result<Values> {
        Ok(Values { scale: host_vec(FIRST_SCALE, scales)?, history: host_vec(0.0, maxima)? })
    });
    Ok([forward?, backward?])
}

impl Delayed {
    /// New state, or that which a file had for the name.
    pub fn new(run: &Run, name: &str, settings: Settings) -> Result<Arc<Self>> {
        let loaded = lock(&run.context.state).pending.remove(name);
        let values = match loaded {
            Some((length, values)) => resized(values, length, settings.rule.history_length)?,
            None => initial(settings.rule.history_length)?,
        };
        let direction = |pass: Pass| -> Result<Direction> {
            let (count, length) = (SLOTS[pass as usize], settings.rule.history_length);
            Ok(Direction {
                scale: run.block(4 * count, Lifetime::Persistent)?,
                history: run.block(4 * count * length, Lifetime::Persistent)?,
                dtype: settings.dtypes[pass as usize],
                count,
            })
        };
        let directions = [direction(Pass::Forward)?, direction(Pass::Backward)?];
        let inner = Inner { directions, rule: settings.rule, group: settings.group };
        inner.write(&values, run.stream)?;
        let state = Arc::new(Self { name: name.into(), inner: Mutex::new(inner) });
        let mut context = lock(&run.context.state);
        context.delayed.retain(|weak| weak.strong_count() > 0);
        context.delayed.push(Arc::downgrade(&state));
        Ok(state)
    }

    /// Follows a recipe whose fields have changed.
    pub fn adapt(&self, run: &Run, settings: Settings) -> Result<()> {
        let mut inner = lock(&self.inner);
        let (old, new) = (inner.rule.history_length, settings.rule.history_length);
        if old != new {
            let values = resized(inner.read(run.stream)?, old, new)?;
            for direction in &mut inner.directions {
                direction.history = run.block(4 * direction.count * new, Lifetime::Persistent)?;
            }
            inner.rule.history_length = new;
            inner.write(&values, run.stream)?;
        }
        inner.rule = settings.rule;
        inner.group = settings.group;
        for (direction, dtype) in inner.directions.iter_mut().zip(settings.dtypes) {
            direction.dtype = dtype;
        }
        Ok(())
    }

    pub fn slot(&self, pass: Pass, index: usize) -> Slot {
        let inner = lock(&self.inner);
        let direction = &inner.directions[pass as usize];
        Slot {
            scale: direction.scale.buffer(4 * index, kNVTEFloat32, &[1]),
            amax: direction.history.buffer(4 * index, kNVTEFloat32, &[1]),
            ..Slot::NONE
        }
    }

    pub fn group(&self) -> Option<Group> {
        lock(&self.inner).group
    }

    /// Rows of the histories.
    pub fn length(&self) -> usize {
        lock(&self.inner).rule.history_length
    }

    pub fn values(&self, stream: cudaStream_t) -> Result<(usize, [Values; 2])> {
        let inner = lock(&self.inner);
        Ok((inner.rule.history_length, inner.read(stream)?))
    }

    pub fn set_values(
        &self,
        length: usize,
        values: [Values; 2],
        stream: cudaStream_t,
    ) -> Result<()> {
        let inner = lock(&self.inner);
        inner.write(&resized(values, length, inner.rule.history_length)?, stream)
    }
}

impl Inner {
    fn write(&self, values: &[Values; 2], stream: cudaStream_t) -> Result<()> {
        for (direction, values) in self.directions.iter().zip(values) {
            ops::upload(direction.scale.ptr(), &values.scale, stream)?;
            ops::upload(direction.history.ptr(), &values.history, stream)?;
        }
        Ok(())
    }

    fn read(&self, stream: cudaStream_t) -> Result<[Values; 2]> {
        let mut values = initial(self.rule.history_length)?;
        for (direction, values) in self.directions.iter().zip(&mut values) {
            ops::download(&mut values.scale, direction.scale.ptr(), stream)?;
            ops::download(&mut values.history, direction.history.ptr(), stream)?;
        }
        Ok(values)
    }
}

/// Histories of another length: the current amax and the newest of the others are kept.
fn resized(mut values: [Values; 2], old: usize, new: usize) -> Result<[Values; 2]> {
    for (values, count) in values.iter_mut().zip(SLOTS) {
        let mut history = host_vec(0.0, new * count)?;
        history[..count].copy_from_slice(&values.history[..count]);
        let kept = (old.min(new) - 1) * count;
        let (from, to) = (values.history.len() - kept, history.len() - kept);
        history[to..].copy_from_slice(&values.history[from..]);
        values.history = history;
    }
    Ok(values)
}

/// One update of all layers of a context in one pass: reduction over ranks, then histories and scales.
/// A launch for each distinct rule; `count` is the number of updates before.
pub fn update(context: &Context, pass: Pass, count: u64, stream: cudaStream_t) -> Result<()> {
    let mut live = context.live()?;
    live.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let inners = host_list(live.iter().map(|state| lock(&state.inner)))?;
    let mut rest: Vec<&Inner> = host_list(inners.iter().map(|guard| &**guard))?;
    while let Some(first) = rest.first() {
        let key = |inner: &Inner| (inner.rule, inner.group, inner.directions[pass as usize].dtype);
        let chosen = key(first);
        let of_key =
            |is: bool| rest.iter().copied().filter(move |inner| (key(inner) == chosen) == is);
        let same = host_list(of_key(true))?;
        rest = host_list(of_key(false))?;
        if (count + 1).is_multiple_of(u64::from(chosen.0.interval)) {
            update_group(context, pass, &same, chosen, stream)?;
        }
    }
    Ok(())
}

fn update_group(
    context: &Context,
    pass: Pass,
    inners: &[&Inner],
    (rule, group, dtype): (Rule, Option<Group>, NVTEDType),
    stream: cudaStream_t,
) -> Result<()> {
    let directions = host_list(inners.iter().map(|inner| &inner.directions[pass as usize]))?;
    let length = rule.history_length;
    let floats = |block: &Block, dims: &[usize]| block.buffer(0, kNVTEFloat32, dims);
    let pair =
        |d: &&Direction| [floats(&d.history, &[length, d.count]), floats(&d.scale, &[d.count])];
    let pairs = host_list(directions.iter().map(pair))?;
    let total: usize = directions.iter().map(|d| d.count).sum();
    let of_grid = context.group(NVTEX_GRID_ALL_BUT_PP).filter(|_| rule.reduce);
    let reduce = match (group, &context.reduce_max) {
        (Some(group), Some(reduce)) if rule.reduce => Some((group, reduce)),
        _ => None,
    };
    let gathered = match (of_grid, reduce) {
        (None, None) => None,
        _ => {
            let block = {
                let place = (stream, stream_is_capturing(stream));
                context.memory.block(4 * total, Lifetime::Scratch, place)?
            };
            let mut at = 0;
            for direction in &directions {
                let dst = block.ptr().wrapping_byte_add(at);
                ops::copy(dst, direction.history.ptr(), 4 * direction.count, stream)?;
                at += 4 * direction.count;
            }
            match (of_grid, reduce) {
                (Some(ranks), _) => {
                    ranks.max(&floats(&block, &[total]), "delayed scaling", stream)?
                }
                (None, Some((group, reduce))) => reduce(group, block.ptr().cast(), total, stream)?,
                (None, None) => {}
            }
            Some(block)
        }
    };
    let reduced = gathered.as_ref().map_or(Buffer::UNSET, |block| floats(block, &[total]));
    let update = UpdateRule {
        algo: match rule.most_recent {
            true => AmaxAlgo::NVTEX_AMAX_ALGO_MOST_RECENT,
            false => AmaxAlgo::NVTEX_AMAX_ALGO_MAX,
        },
        scaled_max: dtype.fp8_max() * (-rule.margin).exp2(),
    };
    delayed_scaling_after_reduction(&reduced, &pairs, &update, stream)
}

/// States by name, as a file holds them: the magic, the number of states, then for each the name
/// (length, bytes), the length of the histories and the values of both passes; at the end the CRC-32 of
/// all before. Integers are u32, all little-endian.
const MAGIC: &[u8; 12] = b"nvtex-fp8\0\x01\0";
const CRC_BYTES: usize = 4;

pub type Named = (String, usize, [Values; 2]);

/// Numbers of scales and of maxima of each pass, in a state with histories of `length` rows.
fn counts(length: usize) -> [[usize; 2]; 2] {
    SLOTS.map(|count| [count, count.saturating_mul(length)])
}

/// Bytes of [`encode`] for names and lengths of histories.
pub fn encoded_size<'a>(states: impl Iterator<Item = (&'a str, usize)>) -> usize {
    let entry = |(name, length): (&str, usize)| {
        8 + name.len() + 4 * counts(length).into_iter().flatten().sum::<usize>()
    };
    MAGIC.len() + 4 + states.map(entry).sum::<usize>() + CRC_BYTES
}

pub fn encode(states: &[Named]) -> Result<Vec<u8>> {
    let size = encoded_size(states.iter().map(|(name, length, _)| (name.as_str(), *length)));
    let mut bytes = host_room(size)?;
    bytes.extend(MAGIC);
    let number = |bytes: &mut Vec<u8>, n: usize| bytes.extend((n as u32).to_le_bytes());
    number(&mut bytes, states.len());
    for (name, length, values) in states {
        number(&mut bytes, name.len());
        bytes.extend(name.as_bytes());
        number(&mut bytes, *length);
        for values in values {
            for x in values.scale.iter().chain(&values.history) {
                bytes.extend(x.to_le_bytes());
            }
        }
    }
    let crc = crc32(&bytes);
    bytes.extend(crc.to_le_bytes());
    Ok(bytes)
}

pub fn decode(bytes: &[u8]) -> Result<Vec<Named>> {
    let wrong = |expected: &str, got: String| Error::argument("buffer", expected, got);
    let mut reader = Reader { bytes, at: 0 };
    let head = reader.take(MAGIC.len())?;
    if head[..10] != MAGIC[..10] {
        return Err(wrong("a file of nvtex_context_save", "one that begins otherwise".into()));
    }
    if head != MAGIC {
        let version = u16::from_le_bytes([head[10], head[11]]);
        return Err(wrong("version 1 of the format", format!("version {version}")));
    }
    // The file is whole if it ends where the states end; only then its checksum means anything.
    let mut walk = Reader { ..reader };
    for _ in 0..walk.number()? {
        walk.state()?;
    }
    let end = walk.at;
    let crc = walk.number()? as u32;
    if walk.at != bytes.len() {
        let expected = format!("{} bytes, the size of the saved states", walk.at);
        return Err(wrong(&expected, format!("{} bytes", bytes.len())));
    }
    let actual = crc32(&bytes[..end]);
    if crc != actual {
        return Err(wrong("an undamaged file", format!("checksum {actual:#x}, stored {crc:#x}")));
    }
    let mut states = Vec::new();
    for _ in 0..reader.number()? {
        states.push(reader.state()?.values()?);
    }
    Ok(states)
}

/// A file, and how far it has been read.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A state as the file holds it.
struct Stored<'a> {
    name: &'a [u8],
    length: usize,
    /// Scales and maxima of each pass.
    floats: [[&'a [u8]; 2]; 2],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.saturating_add(count);
        match self.bytes.get(self.at..end) {
            Some(taken) => {
                self.at = end;
                Ok(taken)
            }
            None => {
                let got = format!("{}: it is truncated or damaged", self.bytes.len());
                Err(Error::argument("buffer", format!("a file of at least {end} bytes"), got))
            }
        }
    }

    fn number(&mut self) -> Result<usize> {
        Ok(self.take(4)?.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte)))
    }

    fn state(&mut self) -> Result<Stored<'a>> {
        let size = self.number()?;
        let name = self.take(size)?;
        let length = self.number()?;
        let mut floats = [[&[][..]; 2]; 2];
        for (slice, count) in floats.iter_mut().flatten().zip(counts(length).into_iter().flatten())
        {
            *slice = self.take(count.saturating_mul(4))?;
        }
        Ok(Stored { name, length, floats })
    }
}

impl Stored<'_> {
    /// The values, all of which must be such as scaling makes them.
    fn values(&self) -> Result<Named> {
        let Ok(name) = std::str::from_utf8(self.name) else {
            return Err(Error::argument("buffer", "names in UTF-8", "other bytes"));
        };
        if self.length == 0 || self.length > MOST_HISTORY {
            let expected = format!("histories of 1 to {MOST_HISTORY} rows for layer {name:?}");
            return Err(Error::argument("buffer", expected, self.length));
        }
        let read = |pass: usize, which: usize| -> Result<Vec<f32>> {
            let bytes = self.floats[pass][which];
            let mut values = host_room(bytes.len() / 4)?;
            for (i, bytes) in bytes.chunks_exact(4).enumerate() {
                let value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                // A scale of 0 would divide by 0; a maximum of 0 says that there was none.
                let least = if which == 0 { f32::MIN_POSITIVE } else { 0.0 };
                if !(value.is_finite() && value >= least) {
                    let (kind, expected) = match which {
                        0 => ("scale", "a finite number above 0"),
                        _ => ("amax", "a finite number, at least 0"),
                    };
                    let pass = ["forward", "backward"][pass];
                    let argument = format!("buffer: layer {name:?}, {pass} pass, {kind}[{i}]");
                    return Err(Error::argument(argument, expected, value));
                }
                values.push(value);
            }
            Ok(values)
        };
        let both = |pass| Ok(Values { scale: read(pass, 0)?, history: read(pass, 1)? });
        Ok((name.to_owned(), self.length, [both(0)?, both(1)?]))
    }
}

/// The CRC of Ethernet and zip files.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, &byte: &u8| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    };
    !bytes.iter().fold(!0, step)
}
