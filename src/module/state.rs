//! State of delayed scaling: scales and histories of one layer on the device (spec: modules, 3.3, 3.4),
//! their update, and their form in files.

use super::context::{Context, Run};
use super::memory::{Block, Lifetime, lock};
use super::ops::{self, plain};
use super::recipe::{Group, Rule};
use crate::backend::args::AmaxAlgo;
use crate::error::{Error, Result};
use crate::op::recipe::Rule as UpdateRule;
use crate::tensor::{Buffer, Tensor};
use crate::types::NVTEDType::{self, *};
use crate::types::cudaStream_t;
use std::sync::{Arc, Mutex, MutexGuard};

/// Which pass a slot belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    Forward = 0,
    Backward = 1,
}

/// Slots of a layer: input, weight, output; gradients of output and input.
const SLOTS: [usize; 2] = [3, 2];

/// Scale and current amax of one operand.
pub struct Slot {
    pub scale: Buffer,
    pub amax: Buffer,
}

/// Slots of one pass: `scale[n]`, and `history[L, n]` with the current amax in row 0 and the newest of
/// the others in the last row.
struct Direction {
    scale: Block,
    history: Block,
    dtype: NVTEDType,
    count: usize,
}

/// On the host.
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

/// What a layer's state must agree with.
#[derive(Clone, Copy, PartialEq)]
pub struct Settings {
    pub rule: Rule,
    pub group: Option<Group>,
    pub dtypes: [NVTEDType; 2],
}

fn initial(length: usize) -> [Values; 2] {
    SLOTS.map(|count| Values { scale: vec![1.0; count], history: vec![0.0; length * count] })
}

impl Delayed {
    /// New state, or that which a file had for the name.
    pub fn new(run: &Run, name: &str, settings: Settings) -> Result<Arc<Self>> {
        let loaded = lock(&run.context.state).pending.remove(name);
        let values = match loaded {
            Some((length, values)) => resized(values, length, settings.rule.history_length),
            None => initial(settings.rule.history_length),
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
            let values = resized(inner.read(run.stream)?, old, new);
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
        inner.write(&resized(values, length, inner.rule.history_length), stream)
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
        let mut values = initial(self.rule.history_length);
        for (direction, values) in self.directions.iter().zip(&mut values) {
            ops::download(&mut values.scale, direction.scale.ptr(), stream)?;
            ops::download(&mut values.history, direction.history.ptr(), stream)?;
        }
        Ok(values)
    }
}

/// Histories of another length: the current amax and the newest of the others are kept.
fn resized(mut values: [Values; 2], old: usize, new: usize) -> [Values; 2] {
    for (values, count) in values.iter_mut().zip(SLOTS) {
        let mut history = vec![0.0; new * count];
        history[..count].copy_from_slice(&values.history[..count]);
        let kept = (old.min(new) - 1) * count;
        let (from, to) = (values.history.len() - kept, history.len() - kept);
        history[to..].copy_from_slice(&values.history[from..]);
        values.history = history;
    }
    values
}

/// One update of all layers of a context in one pass: reduction over ranks, then histories and scales.
/// A launch for each distinct rule; `count` is the number of updates before.
pub fn update(context: &Context, pass: Pass, count: u64, stream: cudaStream_t) -> Result<()> {
    let mut live: Vec<Arc<Delayed>> = {
        let state = lock(&context.state);
        state.delayed.iter().filter_map(|weak| weak.upgrade()).collect()
    };
    live.sort_by(|a, b| a.name.cmp(&b.name));
    let inners: Vec<MutexGuard<Inner>> = live.iter().map(|state| lock(&state.inner)).collect();
    let mut rest: Vec<&Inner> = inners.iter().map(|guard| &**guard).collect();
    while let Some(first) = rest.first() {
        let key = |inner: &Inner| (inner.rule, inner.group, inner.directions[pass as usize].dtype);
        let chosen = key(first);
        let (same, others) = rest.iter().partition(|inner| key(inner) == chosen);
        rest = others;
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
    let directions: Vec<&Direction> =
        inners.iter().map(|inner| &inner.directions[pass as usize]).collect();
    let length = rule.history_length;
    let tensor = |block: &Block, dims: &[usize]| plain(block.buffer(0, kNVTEFloat32, dims));
    let histories: Vec<Tensor> =
        directions.iter().map(|d| tensor(&d.history, &[length, d.count])).collect();
    let scales: Vec<Tensor> = directions.iter().map(|d| tensor(&d.scale, &[d.count])).collect();
    let total: usize = directions.iter().map(|d| d.count).sum();
    let reduce = match (group, &context.reduce_max) {
        (Some(group), Some(reduce)) if rule.reduce => Some((group, reduce)),
        _ => None,
    };
    let gathered = match reduce {
        None => None,
        Some((group, reduce)) => {
            let block = context.memory.block(4 * total, Lifetime::Scratch, stream)?;
            let mut at = 0;
            for direction in &directions {
                let dst = block.ptr().wrapping_byte_add(at);
                ops::copy(dst, direction.history.ptr(), 4 * direction.count, stream)?;
                at += 4 * direction.count;
            }
            reduce(group, block.ptr().cast(), total, stream)?;
            Some(block)
        }
    };
    let reduced = gathered.as_ref().map(|block| tensor(block, &[total]));
    let update = UpdateRule {
        algo: match rule.most_recent {
            true => AmaxAlgo::NVTEX_AMAX_ALGO_MOST_RECENT,
            false => AmaxAlgo::NVTEX_AMAX_ALGO_MAX,
        },
        scaled_max: dtype.fp8_max() * (-rule.margin).exp2(),
    };
    ops::delayed_scaling(reduced.as_ref(), &histories, &scales, &update, stream)
}

/// States by name, as a file holds them: the magic, the number of states, then for each the name
/// (length, bytes), the length of the histories and the values of both passes; at the end the CRC-32 of
/// all before. Integers are u32, all little-endian.
const MAGIC: &[u8; 12] = b"nvtex-fp8\0\x01\0";

pub type Named = (String, usize, [Values; 2]);

/// Bytes of [`encode`] for names and lengths of histories.
pub fn encoded_size<'a>(states: impl Iterator<Item = (&'a str, usize)>) -> usize {
    let per_row: usize = SLOTS.iter().sum();
    let entry = |(name, length): (&str, usize)| 8 + name.len() + 4 * per_row * (length + 1);
    MAGIC.len() + 4 + states.map(entry).sum::<usize>() + 4
}

pub fn encode(states: &[Named]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
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
    bytes
}

pub fn decode(bytes: &[u8]) -> Result<Vec<Named>> {
    let wrong = |expected: &str, got: String| Error::argument("buffer", expected, got);
    let truncated = || wrong("a whole file", format!("{} bytes", bytes.len()));
    let Some((head, _)) = bytes.split_at_checked(MAGIC.len()) else {
        return Err(truncated());
    };
    if head[..10] != MAGIC[..10] {
        return Err(wrong("a file of nvtex_context_save", format!("it begins with {head:?}")));
    }
    if head != MAGIC {
        let version = u16::from_le_bytes([head[10], head[11]]);
        return Err(wrong("version 1 of the format", format!("version {version}")));
    }
    let Some((body, crc)) = bytes.split_last_chunk::<4>() else {
        return Err(truncated());
    };
    let (crc, actual) = (u32::from_le_bytes(*crc), crc32(body));
    if crc != actual {
        return Err(wrong("an undamaged file", format!("checksum {actual:#x}, stored {crc:#x}")));
    }
    let mut reader = Reader(&body[MAGIC.len()..]);
    let mut states = Vec::new();
    for _ in 0..reader.number().ok_or_else(truncated)? {
        states.push(reader.state().ok_or_else(truncated)?);
    }
    if !reader.0.is_empty() {
        return Err(wrong("nothing after the last state", format!("{} bytes", reader.0.len())));
    }
    Ok(states)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<usize> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?) as usize)
    }

    fn floats(&mut self, count: usize) -> Option<Vec<f32>> {
        let bytes = self.take(count.checked_mul(4)?)?;
        Some(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    fn state(&mut self) -> Option<Named> {
        let length = self.number()?;
        let name = String::from_utf8(self.take(length)?.to_vec()).ok()?;
        let rows = self.number().filter(|&rows| rows > 0)?;
        let mut values = initial(1);
        for (values, count) in values.iter_mut().zip(SLOTS) {
            values.scale = self.floats(count)?;
            values.history = self.floats(rows.checked_mul(count)?)?;
        }
        Some((name, rows, values))
    }
}

/// The CRC of Ethernet and zip files.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, &byte: &u8| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    };
    !bytes.iter().fold(!0, step)
}
