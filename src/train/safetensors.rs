//! Files of the safetensors format: 8 bytes with the length of a header, the header in JSON, and the data of the
//! tensors. Those that this library writes have a digest of the whole file in the header.

use crate::error::{Error, Result};
use crate::nn::Shard;
use crate::nn::memory::{host_list, host_vec};
use crate::types::NVTEDType::{self, *};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The key of the digest in `__metadata__`: the SHA-256 of the file with the 64 digits of the digest replaced by 0.
const DIGEST_KEY: &str = "nvte.sha256";
const DIGEST_DIGITS: usize = 64;
/// The key of the version of what a checkpoint holds.
pub const VERSION_KEY: &str = "nvte.checkpoint";
/// Bytes before the header.
const HEAD: usize = 8;
/// The longest header that readers of the format accept.
const MOST_HEADER: u64 = 100_000_000;
const CHUNK: usize = 1 << 20;

/// A failure of the file system, with what was being done.
pub fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::device(format!("{what} {}: {error}", path.display()))
}

fn damaged(path: &Path, expected: impl std::fmt::Display, got: impl std::fmt::Display) -> Error {
    Error::argument(format!("path: {}", path.display()), expected, got)
}

/// The dtype of the format for a tensor of this library.
pub fn stored(dtype: NVTEDType) -> Option<Dtype> {
    Some(match dtype {
        kNVTEByte => Dtype::U8,
        kNVTEInt16 => Dtype::I16,
        kNVTEInt32 => Dtype::I32,
        kNVTEInt64 => Dtype::I64,
        kNVTEFloat32 => Dtype::F32,
        kNVTEFloat16 => Dtype::F16,
        kNVTEBFloat16 => Dtype::BF16,
        _ => return None,
    })
}

/// The dtype of a stored tensor, if it is of high precision.
pub fn high_precision(dtype: Dtype) -> Option<NVTEDType> {
    match dtype {
        Dtype::F32 => Some(kNVTEFloat32),
        Dtype::F16 => Some(kNVTEFloat16),
        Dtype::BF16 => Some(kNVTEBFloat16),
        _ => None,
    }
}

/// An open file, whose header is sound: the tensors lie one behind the other and fill the file.
pub struct File {
    path: PathBuf,
    file: fs::File,
    header: Vec<u8>,
    metadata: Metadata,
}

impl File {
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |what: &str, error: io::Error| failed(what, path, &error);
        let mut file = fs::File::open(path).map_err(|e| failed("cannot open", e))?;
        let size = file.metadata().map_err(|e| failed("cannot read", e))?.len();
        let mut head = [0; HEAD];
        if size < HEAD as u64 {
            let expected = "a safetensors file, which begins with the 8 bytes of a length";
            return Err(damaged(path, expected, format!("{size} bytes")));
        }
        file.read_exact(&mut head).map_err(|e| failed("cannot read", e))?;
        let length = u64::from_le_bytes(head);
        if length > MOST_HEADER.min(size - HEAD as u64) {
            let most = MOST_HEADER.min(size - HEAD as u64);
            let expected = format!("a safetensors file with a header of at most {most} bytes");
            return Err(damaged(path, expected, length));
        }
        let mut header = host_vec(0, HEAD + length as usize)?;
        header[..HEAD].copy_from_slice(&head);
        file.read_exact(&mut header[HEAD..]).map_err(|e| failed("cannot read", e))?;
        let metadata = Self::parse(&header)
            .map_err(|text| damaged(path, "a safetensors file with a sound header", text))?;
        // The tensors of a hostile header may end anywhere.
        let expected = (header.len() as u64).saturating_add(metadata.data_len() as u64);
        if size != expected {
            let expected = format!("{expected} bytes, as the header says");
            return Err(damaged(path, expected, format!("{size} bytes")));
        }
        Ok(Self { path: path.into(), file, header, metadata })
    }

    fn parse(header: &[u8]) -> std::result::Result<Metadata, String> {
        let text = std::str::from_utf8(&header[HEAD..]).map_err(|e| e.to_string())?;
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// A value of `__metadata__`.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// Compares the digest of the header with that of the file. A file without one is refused if it must have one.
    pub fn verify(&self, required: bool) -> Result<()> {
        let Some(digest) = self.value(DIGEST_KEY) else {
            return match required {
                false => Ok(()),
                true => {
                    let expected = format!("a digest, {DIGEST_KEY} in __metadata__");
                    Err(damaged(&self.path, expected, "a file without one"))
                }
            };
        };
        let place = self
            .header
            .windows(DIGEST_DIGITS)
            .position(|window| window == digest.as_bytes())
            .filter(|_| digest.len() == DIGEST_DIGITS);
        let Some(place) = place else {
            let expected = format!("{DIGEST_DIGITS} hexadecimal digits as {DIGEST_KEY}");
            return Err(damaged(&self.path, expected, format!("{digest:?}")));
        };
        let mut header = host_list(self.header.iter().copied())?;
        header[place..place + DIGEST_DIGITS].fill(b'0');
        let mut hash = Sha256::new();
        hash.update(&header);
        let mut chunk = host_vec(0_u8, CHUNK)?;
        let (mut at, mut left) = (self.header.len() as u64, self.metadata.data_len());
        while left > 0 {
            let part = left.min(CHUNK);
            self.read_at(&mut chunk[..part], at)?;
            hash.update(&chunk[..part]);
            (at, left) = (at + part as u64, left - part);
        }
        let actual = digits(hash);
        if actual != digest {
            let expected = format!("an undamaged file, with SHA-256 {digest}");
            return Err(damaged(&self.path, expected, actual));
        }
        Ok(())
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        self.file.read_exact_at(bytes, at).map_err(|e| failed("cannot read", &self.path, &e))
    }

    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// What the header says of a tensor.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.metadata.info(name)
    }

    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.find(name).ok_or_else(|| damaged(&self.path, format!("a tensor {name:?}"), "none"))
    }

    /// As [`Self::info`], of a shape.
    pub fn shaped(&self, name: &str, dims: &[usize]) -> Result<&TensorInfo> {
        let info = self.info(name)?;
        match info.shape == dims {
            true => Ok(info),
            false => Err(self.wrong(name, format!("shape {dims:?}"), format!("{:?}", info.shape))),
        }
    }

    /// An error about a tensor.
    pub fn wrong(
        &self,
        name: &str,
        expected: impl std::fmt::Display,
        got: impl std::fmt::Display,
    ) -> Error {
        Error::argument(format!("path: {}: tensor {name:?}", self.path.display()), expected, got)
    }

    /// The bytes of a tensor, or of a part of it.
    pub fn part(&self, info: &TensorInfo, first: usize, count: usize) -> Result<Vec<u8>> {
        let mut bytes = host_vec(0, count)?;
        let at = self.header.len() + info.data_offsets.0 + first;
        self.read_at(&mut bytes, at as u64)?;
        Ok(bytes)
    }

    pub fn bytes(&self, info: &TensorInfo) -> Result<Vec<u8>> {
        self.part(info, 0, info.data_offsets.1 - info.data_offsets.0)
    }

    /// The numbers of a tensor of a shape and a dtype of high precision; checked before anything is read.
    pub fn check_floats(&self, name: &str, dims: &[usize]) -> Result<NVTEDType> {
        let info = self.shaped(name, dims)?;
        high_precision(info.dtype)
            .ok_or_else(|| self.wrong(name, "F32, F16 or BF16", format!("{:?}", info.dtype)))
    }

    /// The numbers of some elements of a part of a tensor; the others are not read.
    pub fn floats_of(&self, name: &str, shard: &Shard, part: Range<usize>) -> Result<Vec<f32>> {
        let dtype = self.check_floats(name, &shard.whole)?;
        let size = crate::tensor::bytes(1, dtype);
        let mut bytes = host_vec(0, part.len() * size)?;
        let first = self.header.len() + self.info(name)?.data_offsets.0;
        let mut left = &mut bytes[..];
        for run in shard.runs(part) {
            let (to, rest) = left.split_at_mut(run.len() * size);
            self.read_at(to, (first + run.start * size) as u64)?;
            left = rest;
        }
        super::host::widened(&bytes, dtype)
    }
}

fn digits(hash: Sha256) -> String {
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A tensor to be written, whose bytes are fetched when it is its turn.
pub struct Item<'a> {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Box<dyn Fn() -> Result<Vec<u8>> + 'a>,
}

impl Item<'_> {
    fn size(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// A file that is not yet what it shall be, and goes unless it is kept.
struct Unfinished {
    path: PathBuf,
    kept: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Tensors in the order of a file: larger elements first, so that all are aligned.
pub fn in_order(mut items: Vec<Item>) -> Vec<Item> {
    items.sort_by(|a, b| b.dtype.bitsize().cmp(&a.dtype.bitsize()).then(a.name.cmp(&b.name)));
    items
}

/// Writes a file with a digest. It takes the place of an older one only when all of it is on the disk, so that a crash
/// leaves the older one or the new one.
///
/// The bytes of all tensors are fetched once, in order, also if the file cannot be written: other ranks may send
/// parts of them.
pub fn write(path: &Path, items: Vec<Item>, values: &[(&str, &str)]) -> Result<()> {
    let items = in_order(items);
    let mut left = items.iter();
    let written = write_items(path, &items, &mut left, values);
    if written.is_err() {
        left.for_each(|item| drop((item.bytes)()));
    }
    written
}

/// `left` are the tensors whose bytes have not been fetched.
fn write_items(
    path: &Path,
    items: &[Item],
    left: &mut std::slice::Iter<Item>,
    values: &[(&str, &str)],
) -> Result<()> {
    let mut names = HashSet::new();
    if let Some(item) = items.iter().find(|item| !names.insert(item.name.as_str())) {
        let got = format!("{:?} twice", item.name);
        return Err(Error::argument("tensors", "names that differ", got));
    }
    let (mut at, mut tensors) = (0, Vec::new());
    for item in items {
        let data_offsets = (at, at + item.size());
        at = data_offsets.1;
        let (dtype, shape) = (item.dtype, item.shape.clone());
        tensors.push((item.name.clone(), TensorInfo { dtype, shape, data_offsets }));
    }
    let zeros = "0".repeat(DIGEST_DIGITS);
    let unsound = |e: &dyn std::fmt::Display| Error::argument("tensors", "a sound header", e);
    let metadata = Metadata::new(None, tensors).map_err(|e| unsound(&e))?;
    let tensors = serde_json::to_string(&metadata).map_err(|e| unsound(&e))?;
    // In a fixed order, unlike that of `Metadata`, so that equal states make equal files.
    let values: BTreeMap<_, _> =
        values.iter().copied().chain([(DIGEST_KEY, zeros.as_str())]).collect();
    let values = serde_json::to_string(&values).map_err(|e| unsound(&e))?;
    let comma = if tensors == "{}" { "" } else { "," };
    let mut text = format!("{{\"__metadata__\":{values}{comma}{}", &tensors[1..]);
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    let Some(place) = text.find(&zeros) else {
        return Err(unsound(&"a header without the digest"));
    };
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text.as_bytes());

    let name = path.file_name().unwrap_or_default().to_string_lossy();
    static SAVES: AtomicU64 = AtomicU64::new(0);
    let number = SAVES.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_file_name(format!(".{name}.{}.{number}.tmp", std::process::id()));
    // What a process of the same number has left when it crashed.
    let _ = fs::remove_file(&temporary);
    let failed = |what: &str, error: io::Error| failed(what, &temporary, &error);
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).open(&temporary);
    let mut file = opened.map_err(|e| failed("cannot create", e))?;
    let mut unfinished = Unfinished { path: temporary.clone(), kept: false };
    let mut hash = Sha256::new();
    let mut put = |file: &mut fs::File, bytes: &[u8]| {
        hash.update(bytes);
        file.write_all(bytes).map_err(|e| failed("cannot write", e))
    };
    put(&mut file, &header)?;
    for item in left {
        let bytes = (item.bytes)()?;
        if bytes.len() != item.size() {
            let expected = format!("{} bytes of {:?}", item.size(), item.name);
            return Err(Error::argument("tensors", expected, bytes.len()));
        }
        put(&mut file, &bytes)?;
    }
    let digest = digits(hash);
    file.seek(SeekFrom::Start((HEAD + place) as u64)).map_err(|e| failed("cannot write", e))?;
    file.write_all(digest.as_bytes()).map_err(|e| failed("cannot write", e))?;
    file.sync_all().map_err(|e| failed("cannot write to the disk", e))?;
    fs::rename(&temporary, path).map_err(|e| failed("cannot rename", e))?;
    unfinished.kept = true;
    // The new name is on the disk when its folder is.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let synced = fs::File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| self::failed("cannot write to the disk", folder, &e))
}
