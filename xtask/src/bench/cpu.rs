//! The CPU: memory is the host's, a call is done when it returns.

use super::abi::Handle;
use super::machine::{Buffer, Call, Kind, Machine, MatrixLimits, Sampler, repetitions};
use anyhow::{Result, ensure};
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::fs::read_to_string;
use std::time::Instant;

/// Seconds of work in one measurement.
const SAMPLE_SECONDS: f64 = 50e-3;
const SAMPLE_CALLS: usize = 10_000;

pub struct Cpu {
    name: String,
    threads: usize,
    cache_bytes: usize,
}

impl Cpu {
    pub fn open() -> Result<Self> {
        let info = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let cache = read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").ok();
        let cache_kib = cache.and_then(|text| text.trim().strip_suffix('K')?.parse::<usize>().ok());
        // The variable by which rayon, and so the library's CPU backend, counts its threads.
        let threads = std::env::var("RAYON_NUM_THREADS").ok().and_then(|text| text.parse().ok());
        let threads = match threads {
            Some(count) if count > 0 => count,
            _ => std::thread::available_parallelism()?.get(),
        };
        Ok(Self {
            name: name.map_or("unknown CPU".into(), |(_, name)| name.trim().into()),
            threads,
            cache_bytes: cache_kib.unwrap_or(32 << 10) << 10,
        })
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 256).expect("size below isize::MAX")
}

impl Machine for Cpu {
    fn kind(&self) -> Kind {
        Kind::Cpu
    }

    fn describe(&self) -> String {
        let cache = self.cache_bytes >> 20;
        format!("{}, {} threads, {cache} MiB last-level cache", self.name, self.threads)
    }

    fn rotation_bytes(&self) -> usize {
        // Large servers have caches of many hundred MiB; the bound keeps the inputs in memory.
        (3 * self.cache_bytes).min(1 << 30)
    }

    fn matrix_limits(&self) -> Option<MatrixLimits> {
        None
    }

    fn stream(&self) -> Handle {
        Handle::NULL
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        fn free(ptr: *mut c_void, bytes: usize) {
            // SAFETY: allocated below, with this layout.
            unsafe { dealloc(ptr.cast(), layout(bytes)) }
        }
        assert!(bytes > 0);
        // SAFETY: the size is not zero.
        let ptr = unsafe { alloc(layout(bytes)) };
        ensure!(!ptr.is_null(), "no memory for {bytes} bytes");
        Ok(Buffer { ptr: ptr.cast(), bytes, free })
    }

    fn upload(&self, dst: *mut c_void, src: &[u8]) -> Result<()> {
        self.copy(dst, src.as_ptr().cast(), src.len())
    }

    fn download(&self, dst: &mut [u8], src: *const c_void) -> Result<()> {
        self.copy(dst.as_mut_ptr().cast(), src, dst.len())
    }

    fn copy(&self, dst: *mut c_void, src: *const c_void, bytes: usize) -> Result<()> {
        let part = bytes.div_ceil(self.threads).max(1 << 20);
        // Raw pointers do not cross threads, numbers do.
        let (dst, src) = (dst as usize, src as usize);
        std::thread::scope(|scope| {
            for start in (0..bytes).step_by(part) {
                let work = move || {
                    let (dst, src) = ((dst + start) as *mut u8, (src + start) as *const u8);
                    // SAFETY: the caller keeps both ranges valid and apart; the parts are disjoint.
                    unsafe { src.copy_to_nonoverlapping(dst, part.min(bytes - start)) }
                };
                if start + part < bytes {
                    scope.spawn(work);
                } else {
                    work();
                }
            }
        });
        Ok(())
    }

    fn fill(&self, dst: *mut c_void, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller keeps the range valid.
        unsafe { dst.cast::<u8>().write_bytes(byte, bytes) };
        Ok(())
    }

    fn sampler<'a>(&'a self, calls: &'a [Call<'a>]) -> Result<Sampler<'a>> {
        let time = move |count: usize| {
            let start = Instant::now();
            calls.iter().cycle().take(count).for_each(|call| call());
            start.elapsed().as_secs_f64() / count as f64
        };
        time(calls.len());
        let count = repetitions(time(calls.len()), SAMPLE_SECONDS, calls.len(), SAMPLE_CALLS);
        Ok(Box::new(move || Ok(time(count))))
    }

    fn queue_sampler<'a>(&'a self, call: &'a Call<'a>, count: usize) -> Result<Sampler<'a>> {
        Ok(Box::new(move || {
            let start = Instant::now();
            (0..count).for_each(|_| call());
            Ok(start.elapsed().as_secs_f64() / count as f64)
        }))
    }

    fn replay_sampler<'a>(
        &'a self,
        _calls: &'a [Call<'a>],
        _count: usize,
    ) -> Result<Option<Sampler<'a>>> {
        Ok(None)
    }

    fn profiler(&self, _on: bool) -> Result<()> {
        Ok(())
    }
}
