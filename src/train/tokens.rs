//! Batches of tokens from files. A file holds tokens of 1, 2 or 4 bytes, one behind the other; windows of a length of
//! them, each with the token that follows, are given out in order or by a permutation of a seed.
//!
//! Files are read at the places of the windows, not mapped: a file that gets shorter meanwhile is an error then, not
//! the end of the process, and the system keeps what is read in memory just the same.

use super::safetensors::failed;
use crate::error::{Error, Result};
use crate::nn::memory::{host_room, host_vec};
use crate::nn::splitmix;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct TokenSettings {
    pub paths: Vec<PathBuf>,
    /// 1, 2 or 4.
    pub token_bytes: usize,
    pub batch: usize,
    pub sequence: usize,
    pub shuffle: bool,
    pub seed: u64,
    pub rank: usize,
    pub world: usize,
    /// Tokens must be less; 0: any.
    pub vocabulary: usize,
    /// The number of this rank among those that divide each row, and how many these are.
    pub part: (usize, usize),
}

impl TokenSettings {
    /// The columns of a row that this rank has: two chunks of equal length, for causal attention to cost all ranks the
    /// same.
    pub fn columns(&self) -> Vec<usize> {
        let (rank, size) = self.part;
        let length = self.sequence / (2 * size);
        let chunk = |chunk: usize| chunk * length..(chunk + 1) * length;
        match size {
            1 => (0..self.sequence).collect(),
            _ => chunk(rank).chain(chunk(2 * size - 1 - rank)).collect(),
        }
    }
}

/// Where a loader is, and of what data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Batches given out so far.
    pub batches: u64,
    pub windows: u64,
    pub seed: u64,
    pub sequence: u64,
    pub rows: u64,
}

impl Position {
    pub const NUMBERS: usize = 5;

    pub fn numbers(&self) -> [i64; Self::NUMBERS] {
        [self.batches, self.windows, self.seed, self.sequence, self.rows].map(|x| x as i64)
    }

    pub fn from_numbers(number: impl Fn(usize) -> i64) -> Self {
        let [batches, windows, seed, sequence, rows] = std::array::from_fn(|i| number(i) as u64);
        Self { batches, windows, seed, sequence, rows }
    }
}

struct Source {
    path: PathBuf,
    file: File,
    /// Windows before this file's.
    first: u64,
}

pub struct TokenLoader {
    settings: TokenSettings,
    sources: Vec<Source>,
    windows: u64,
    batches: u64,
}

impl TokenLoader {
    pub fn new(settings: TokenSettings) -> Result<Self> {
        let (mut sources, mut windows) = (Vec::new(), 0_u64);
        let window = settings.sequence as u64;
        for path in &settings.paths {
            let failed = |e| failed("cannot open", path, &e);
            let file = File::open(path).map_err(failed)?;
            let metadata = file.metadata().map_err(failed)?;
            if !metadata.is_file() {
                let argument = format!("config.paths: {}", path.display());
                return Err(Error::argument(argument, "a file", "something else"));
            }
            let bytes = metadata.len();
            let token = settings.token_bytes as u64;
            if !bytes.is_multiple_of(token) {
                let expected = format!("whole tokens of {token} bytes");
                let argument = format!("config.paths: {}", path.display());
                return Err(Error::argument(argument, expected, format!("{bytes} bytes")));
            }
            // The last window needs the token behind it, too.
            let own = (bytes / token).saturating_sub(1) / window;
            sources.push(Source { path: path.clone(), file, first: windows });
            windows += own;
        }
        let loader = Self { settings, sources, windows, batches: 0 };
        if loader.batches_in_epoch() == 0 {
            let expected = format!(
                "files with at least {} windows of {} tokens, one batch for each rank",
                loader.rows(),
                window
            );
            return Err(Error::argument("config.paths", expected, format!("{windows} windows")));
        }
        Ok(loader)
    }

    pub fn settings(&self) -> &TokenSettings {
        &self.settings
    }

    /// Rows of the batches of all ranks together.
    fn rows(&self) -> u64 {
        (self.settings.batch as u64).saturating_mul(self.settings.world as u64)
    }

    /// Batches of each rank in which no window comes twice. Windows that do not fill a last batch are left out.
    pub fn batches_in_epoch(&self) -> u64 {
        self.windows / self.rows()
    }

    pub fn position(&self) -> Position {
        let settings = &self.settings;
        Position {
            batches: self.batches,
            windows: self.windows,
            seed: settings.seed,
            sequence: settings.sequence as u64,
            rows: self.rows(),
        }
    }

    /// Refuses the position of a loader of other data.
    pub fn check(&self, position: &Position) -> Result<()> {
        let own = self.position();
        let same = Position { batches: position.batches, ..own };
        if *position != same {
            let expected = format!(
                "a position of {} windows of {} tokens, seed {} and {} rows a step",
                own.windows, own.sequence, own.seed, own.rows
            );
            let got = format!(
                "one of {} windows of {} tokens, seed {} and {} rows",
                position.windows, position.sequence, position.seed, position.rows
            );
            return Err(Error::argument("position", expected, got));
        }
        // Checkpoints have it as a signed number, and the next batches are counted from here.
        if i64::try_from(position.batches).is_err() {
            return Err(Error::argument("position.batches", "less than 2^63", position.batches));
        }
        Ok(())
    }

    pub fn seek(&mut self, position: Position) -> Result<()> {
        self.check(&position)?;
        self.batches = position.batches;
        Ok(())
    }

    /// The next batch of this rank, `[batch, sequence + 1]`.
    pub fn next(&mut self) -> Result<Vec<i32>> {
        let TokenSettings { batch, sequence, rank, .. } = self.settings;
        let each = self.batches_in_epoch();
        let (epoch, step) = (self.batches / each, self.batches % each);
        let mut tokens = host_room(batch * (sequence + 1))?;
        let mut bytes = host_vec(0_u8, (sequence + 1) * self.settings.token_bytes)?;
        for row in 0..batch {
            let place = step * self.rows() + (rank * batch + row) as u64;
            let window = match self.settings.shuffle {
                true => {
                    permuted(place, self.windows, splitmix(self.settings.seed ^ splitmix(epoch)))
                }
                false => place,
            };
            self.read(window, &mut bytes, &mut tokens)?;
        }
        self.batches += 1;
        Ok(tokens)
    }

    fn read(&self, window: u64, bytes: &mut [u8], tokens: &mut Vec<i32>) -> Result<()> {
        let after = self.sources.partition_point(|source| source.first <= window);
        let source = &self.sources[after - 1];
        let at =
            (window - source.first) * (self.settings.sequence * self.settings.token_bytes) as u64;
        let read = source.file.read_exact_at(bytes, at);
        read.map_err(|e| failed("cannot read", &source.path, &e))?;
        let first = tokens.len();
        match self.settings.token_bytes {
            1 => tokens.extend(bytes.iter().map(|&byte| i32::from(byte))),
            2 => tokens.extend(
                bytes.as_chunks::<2>().0.iter().map(|&bytes| i32::from(u16::from_le_bytes(bytes))),
            ),
            _ => tokens.extend(bytes.as_chunks::<4>().0.iter().map(|&b| i32::from_le_bytes(b))),
        }
        let bound = match self.settings.vocabulary {
            0 => i64::from(i32::MAX) + 1,
            vocabulary => vocabulary as i64,
        };
        let wrong = |&token: &i32| token < 0 || i64::from(token) >= bound;
        if let Some(i) = tokens[first..].iter().position(wrong) {
            let place = at / self.settings.token_bytes as u64 + i as u64;
            let argument = format!("{}: token {place}", source.path.display());
            let got = tokens[first + i] as u32;
            return Err(Error::argument(argument, format!("less than {bound}"), got));
        }
        Ok(())
    }
}

/// The image of `place` under a permutation of `0..count` that a key gives: a Feistel network over the next power of
/// 4, which is walked until it comes back below `count`. It needs no table, so that a position is a few numbers.
fn permuted(place: u64, count: u64, key: u64) -> u64 {
    let half = (64 - count.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1_u64 << half) - 1;
    let mut x = place;
    loop {
        let (mut left, mut right) = (x >> half, x & mask);
        for round in 0..6_u64 {
            let mixed = splitmix(key ^ splitmix(right ^ (round << 56))) & mask;
            (left, right) = (right, left ^ mixed);
        }
        x = left << half | right;
        if x < count {
            return x;
        }
    }
}
