//! `NVTE_GEMM_TUNE=FILE`: which algorithm of cuBLASLt a product takes, measured once and kept in a file.
//!
//! The heuristic of cuBLASLt orders its algorithms by what it expects. At the first product of a problem that the
//! file does not have, those that it proposes run on the caller's operands, with scratch memory for what they
//! write; the fastest is appended to the file, and every later process takes it from there. A line holds for one
//! version of cuBLASLt and one kind of GPU; the library looks each algorithm over before it runs.
#![allow(unsafe_code)]

use crate::env::env;
use crate::fork;
use crate::stderr;
use cudarc::driver::sys as driver;
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The words of an algorithm, which cuBLASLt lets programs store.
pub(super) type Algorithm = [u64; 8];

/// How long the candidates of a problem run at most, all together, besides two runs of each.
const BUDGET_MS: f32 = 200.0;
const MOST_ROUNDS: usize = 25;
/// A candidate displaces the first one, which the heuristic prefers, if it takes less than this part of its time.
const WORTHWHILE: f32 = 0.98;

struct Kept {
    algorithms: HashMap<String, Algorithm>,
    /// Whether a failure to write has been reported.
    warned: bool,
}

fn kept() -> &'static Mutex<Kept> {
    static KEPT: OnceLock<Mutex<Kept>> = OnceLock::new();
    // Computed before, because values that are computed once may not need each other.
    let file = env().gemm_tune.as_deref();
    fork::once(&KEPT, || {
        let text = file.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        let algorithms = text.lines().filter_map(parse).collect();
        Mutex::new(Kept { algorithms, warned: false })
    })
}

/// Whether products are measured.
pub(super) fn is_on() -> bool {
    env().gemm_tune.is_some()
}

/// `key = words`, the words in hexadecimal digits; none for a line that is something else.
fn parse(line: &str) -> Option<(String, Algorithm)> {
    let (key, words) = line.rsplit_once(" = ")?;
    let words: Vec<u64> =
        words.split(' ').map(|word| u64::from_str_radix(word, 16).ok()).collect::<Option<_>>()?;
    Some((key.to_owned(), words.try_into().ok()?))
}

fn line(key: &str, algorithm: &Algorithm) -> String {
    let words = algorithm.map(|word| format!("{word:016x}"));
    format!("{key} = {}\n", words.join(" "))
}

/// The algorithm that was measured to be the fastest for a problem.
pub(super) fn find(key: &str) -> Option<Algorithm> {
    kept().lock().unwrap_or_else(PoisonError::into_inner).algorithms.get(key).copied()
}

/// Keeps an algorithm, in the file too.
pub(super) fn keep(key: String, algorithm: Algorithm) {
    let Some(file) = env().gemm_tune.as_deref() else { return };
    let mut kept = kept().lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = append(file, &line(&key, &algorithm))
        && !kept.warned
    {
        kept.warned = true;
        let file = file.display();
        stderr::print(format_args!("nvte: warning: NVTE_GEMM_TUNE: {file}: {error}"));
    }
    kept.algorithms.insert(key, algorithm);
}

/// One write, so that lines of several processes do not mix.
fn append(file: &Path, line: &str) -> std::io::Result<()> {
    OpenOptions::new().append(true).create(true).open(file)?.write_all(line.as_bytes())
}

/// The index of the fastest of some candidates; 0 if the difference is not worthwhile or nothing can be measured.
/// `run` starts a candidate on a stream, and says whether the library took it. Before each run the level 2 cache is
/// emptied: in a program, other work has used it since.
pub(super) fn fastest(
    candidates: usize,
    device: i32,
    stream: driver::CUstream,
    mut run: impl FnMut(usize) -> bool,
) -> usize {
    let cache = 2 * level_2_bytes(device);
    let (Some(events), Some(other)) = (Events::new(), Scratch::new(cache, stream)) else {
        return 0;
    };
    let mut time = |candidate| {
        other.zero(cache, stream);
        events.time(stream, || run(candidate)).unwrap_or(f32::INFINITY)
    };
    // The first run of each loads its code, the second shows how often they can run.
    let once: f32 =
        (0..2).map(|_| (0..candidates).map(&mut time).sum::<f32>()).last().unwrap_or(0.0);
    let rounds = (BUDGET_MS / once.max(1e-3)).clamp(3.0, MOST_ROUNDS as f32) as usize;
    let mut times = vec![Vec::with_capacity(rounds); candidates];
    for _ in 0..rounds {
        for (candidate, times) in times.iter_mut().enumerate() {
            times.push(time(candidate));
        }
    }
    let medians: Vec<f32> = times
        .iter_mut()
        .map(|times| {
            times.sort_by(f32::total_cmp);
            times[rounds / 2]
        })
        .collect();
    let best = (0..candidates).min_by(|&i, &j| medians[i].total_cmp(&medians[j])).unwrap_or(0);
    if medians[best] < WORTHWHILE * medians[0] { best } else { 0 }
}

/// Bytes of the level 2 cache.
fn level_2_bytes(device: i32) -> usize {
    let mut bytes = 0;
    let attribute = driver::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
    // SAFETY: writes one number; the device is one that exists.
    unsafe { driver::cuDeviceGetAttribute(&mut bytes, attribute, device) };
    usize::try_from(bytes).unwrap_or(0)
}

/// Two events of the driver.
struct Events([driver::CUevent; 2]);

impl Events {
    fn new() -> Option<Self> {
        let mut events = Self([std::ptr::null_mut(); 2]);
        for event in &mut events.0 {
            // SAFETY: writes one event, which drop() destroys.
            if unsafe { driver::cuEventCreate(event, 0) } != driver::CUresult::CUDA_SUCCESS {
                return None;
            }
        }
        Some(events)
    }

    /// Milliseconds that what `body` queues takes; none if it did not queue all.
    fn time(&self, stream: driver::CUstream, body: impl FnOnce() -> bool) -> Option<f32> {
        let [start, end] = self.0;
        let mut time = 0.0;
        let succeeded = |result| result == driver::CUresult::CUDA_SUCCESS;
        // SAFETY: the events live as long as `self`, the stream as long as the caller's call.
        let done = unsafe {
            succeeded(driver::cuEventRecord(start, stream))
                && body()
                && succeeded(driver::cuEventRecord(end, stream))
                && succeeded(driver::cuEventSynchronize(end))
                && succeeded(driver::cuEventElapsedTime_v2(&mut time, start, end))
        };
        done.then_some(time)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for event in self.0.into_iter().filter(|event| !event.is_null()) {
            // SAFETY: created above, used nowhere else.
            unsafe { driver::cuEventDestroy_v2(event) };
        }
    }
}

/// Zeros on the device, freed when it is dropped; none if there is no room.
pub(super) struct Scratch(driver::CUdeviceptr);

impl Scratch {
    pub(super) fn new(bytes: usize, stream: driver::CUstream) -> Option<Self> {
        let mut scratch = Self(0);
        // SAFETY: writes an address.
        let status = unsafe { driver::cuMemAlloc_v2(&mut scratch.0, bytes.max(256)) };
        (status == driver::CUresult::CUDA_SUCCESS && scratch.zero(bytes, stream)).then_some(scratch)
    }

    /// Queues the filling of at most as many bytes as there are; whether that succeeded.
    fn zero(&self, bytes: usize, stream: driver::CUstream) -> bool {
        // SAFETY: the memory was allocated with this size, and is freed after the device has done its work.
        let status = unsafe { driver::cuMemsetD8Async(self.0, 0, bytes, stream) };
        status == driver::CUresult::CUDA_SUCCESS
    }

    pub(super) fn address(&self) -> usize {
        self.0 as usize
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.0 != 0 {
            // SAFETY: allocated above. The call waits for the device, so no run uses it any more.
            unsafe { driver::cuMemFree_v2(self.0) };
        }
    }
}

/// Whether a stream is being captured: nothing can be measured then. Also true if the driver does not say.
pub(super) fn is_capturing(stream: driver::CUstream) -> bool {
    let mut status = driver::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    // SAFETY: writes one status.
    let asked = unsafe { driver::cuStreamIsCapturing(stream, &mut status) };
    asked != driver::CUresult::CUDA_SUCCESS
        || status != driver::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
}

/// The GPU's name without spaces.
pub(super) fn device_name(device: i32) -> String {
    let mut name = [0u8; 128];
    // SAFETY: writes a C string of at most 128 bytes; the device number is the current one's.
    unsafe { driver::cuDeviceGetName(name.as_mut_ptr().cast(), 128, device) };
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&name[..end]).replace(' ', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let algorithm = [0, 1, u64::MAX, 3, 4, 5, 6, 0x70];
        let text = line("13.1 GPU m 1 = odd", &algorithm);
        assert_eq!(parse(text.trim_end()), Some(("13.1 GPU m 1 = odd".into(), algorithm)));
    }

    #[test]
    fn other_lines_are_nothing() {
        for text in
            ["", "key", "key = ", "key = 1 2", "key = 1 2 3 4 5 6 7 g", "k = 1 2 3 4 5 6 7 8 9"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
