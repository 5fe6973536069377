//! What the benchmark needs of a machine: memory, copies, a stream, and a clock.

use super::abi::{Api, Basic, DType, Handle, Param, Tensor};
use anyhow::Result;
use std::ffi::c_void;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gpu,
    Cpu,
}

/// One run of an operator: queued on the stream of a GPU, done on return on a CPU.
pub type Call<'a> = Box<dyn Fn() + 'a>;

/// One measurement: mean seconds per call.
pub type Sampler<'a> = Box<dyn FnMut() -> Result<f64> + 'a>;

pub trait Machine {
    fn kind(&self) -> Kind;
    /// Name and what else identifies it in a report.
    fn describe(&self) -> String;
    /// Inputs are rotated among sets of at least this many bytes, so that no cache holds them.
    fn rotation_bytes(&self) -> usize;
    /// Dense bf16 and fp8 FLOP/s of the matrix units, where a figure is known.
    fn matrix_limits(&self) -> Option<MatrixLimits>;
    fn stream(&self) -> Handle;
    /// Waits for the stream; reports what failed on the device.
    fn synchronize(&self) -> Result<()>;
    fn alloc(&self, bytes: usize) -> Result<Buffer>;
    // Copies and fills are ordered by the stream. The caller keeps the ranges valid.
    fn upload(&self, dst: *mut c_void, src: &[u8]) -> Result<()>;
    fn download(&self, dst: &mut [u8], src: *const c_void) -> Result<()>;
    fn copy(&self, dst: *mut c_void, src: *const c_void, bytes: usize) -> Result<()>;
    fn fill(&self, dst: *mut c_void, byte: u8, bytes: usize) -> Result<()>;
    /// Warms the calls up and prepares to time them, one after the other, round and round.
    fn sampler<'a>(&'a self, calls: &'a [Call<'a>]) -> Result<Sampler<'a>>;
    /// Times `count` calls that the host makes one after the other.
    fn queue_sampler<'a>(&'a self, call: &'a Call<'a>, count: usize) -> Result<Sampler<'a>>;
    /// Times `count` replays, one after the other, of a graph of calls that have run before; none without graphs.
    fn replay_sampler<'a>(
        &'a self,
        calls: &'a [Call<'a>],
        count: usize,
    ) -> Result<Option<Sampler<'a>>>;
    /// Turns the collection of a profiler that waits for it on or off.
    fn profiler(&self, on: bool) -> Result<()>;
}

#[derive(Clone, Copy)]
pub struct MatrixLimits {
    pub bf16: f64,
    pub fp8: f64,
    pub source: &'static str,
}

/// Memory of a machine.
pub struct Buffer {
    pub ptr: *mut c_void,
    pub bytes: usize,
    pub free: fn(*mut c_void, usize),
}

impl Drop for Buffer {
    fn drop(&mut self) {
        (self.free)(self.ptr, self.bytes);
    }
}

/// How many calls one measurement makes: as many as fit the time, at most `most`, and every set
/// equally often.
pub fn repetitions(seconds_per_call: f64, target: f64, sets: usize, most: usize) -> usize {
    let fit = (target / seconds_per_call.max(1e-9)) as usize;
    fit.clamp(sets, most.max(sets)) / sets * sets
}

/// Normally distributed numbers in the machine's memory. Inputs are copies of it from a start that
/// the seed picks, which costs a large input no more than a copy.
pub struct Pool {
    buffers: Vec<(DType, Buffer)>,
}

const POOL: usize = (4 << 20) + 64 * 61;

impl Pool {
    pub fn new(machine: &dyn Machine) -> Result<Self> {
        let values = normal(POOL);
        let mut buffers = Vec::new();
        for dtype in [DType::F32, DType::Bf16, DType::E4m3, DType::E5m2, DType::Byte] {
            let bytes: Vec<u8> = match dtype {
                DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                DType::Bf16 => {
                    values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect()
                }
                DType::E5m2 => values.iter().map(|&v| e5m2(v)).collect(),
                _ => values.iter().map(|&v| e4m3(v)).collect(),
            };
            let buffer = machine.alloc(bytes.len())?;
            machine.upload(buffer.ptr, &bytes)?;
            buffers.push((dtype, buffer));
        }
        Ok(Self { buffers })
    }

    pub fn fill(&self, machine: &dyn Machine, dst: &Basic, seed: u64) -> Result<()> {
        let (_, pool) = self.buffers.iter().find(|(d, _)| *d == dst.dtype).expect("dtype in pool");
        // 64 elements keep the copies aligned.
        let mut from = (mix(seed) % (POOL as u64 / 64)) as usize * 64 * dst.dtype.size();
        let mut done = 0;
        while done < dst.bytes() {
            let bytes = (pool.bytes - from).min(dst.bytes() - done);
            let (to, source) =
                (dst.ptr.cast::<u8>().wrapping_add(done), pool.ptr.cast::<u8>().wrapping_add(from));
            machine.copy(to.cast(), source.cast(), bytes)?;
            done += bytes;
            from = 0;
        }
        Ok(())
    }
}

/// SplitMix64.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Sums of four uniform numbers, with mean 0 and variance 1.
pub fn normal(count: usize) -> Vec<f32> {
    let draw = |i| {
        let bits = mix(i as u64);
        let sum: u64 = (0..4).map(|j| (bits >> (16 * j)) & 0xFFFF).sum();
        (sum as f32 / 65536.0 - 2.0) * 3f32.sqrt()
    };
    (0..count).map(draw).collect()
}

/// The code next to a number on the side of zero; a subnormal becomes 0.
fn e5m2(value: f32) -> u8 {
    let (sign, magnitude) = ((value.to_bits() >> 24) as u8 & 0x80, value.to_bits() & 0x7FFF_FFFF);
    let code = (magnitude >> 21).saturating_sub((127 - 15) << 2).min(0x7B) as u8;
    sign | if code < 4 { 0 } else { code }
}

/// The number's E4M3 code, cut off to three bits of mantissa; below the normal range it is only
/// some small number.
fn e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = ((bits & 0x7FFF_FFFF) >> 20).saturating_sub((127 - 7) << 3).min(0x7E);
    magnitude as u8 | (bits >> 31 << 7) as u8
}

/// The best read + write bandwidth that this machine shows, and what showed it: a plain copy, or
/// the copy that a library makes as a cast from float32 to float32.
pub fn streaming_limit(machine: &dyn Machine, pool: &Pool, apis: &[Api]) -> Result<(f64, String)> {
    let n: usize = match machine.kind() {
        Kind::Gpu => 256 << 20,
        Kind::Cpu => 64 << 20,
    };
    let (source, target) = (machine.alloc(4 * n)?, machine.alloc(4 * n)?);
    let basic = |buffer: &Buffer| Basic::new(buffer.ptr, DType::F32, &[n / 4096, 4096]);
    pool.fill(machine, &basic(&source), 1)?;
    let mut best = (0.0, String::new());
    let mut offer = |name: String, call: Call| -> Result<()> {
        let calls = [call];
        let mut sampler = machine.sampler(&calls)?;
        let mut seconds = (0..5).map(|_| sampler()).collect::<Result<Vec<_>>>()?;
        seconds.sort_by(f64::total_cmp);
        let rate = 8.0 * n as f64 / seconds[2];
        if rate > best.0 {
            best = (rate, name);
        }
        Ok(())
    };
    let name = match machine.kind() {
        Kind::Gpu => "cuMemcpyDtoDAsync",
        Kind::Cpu => "memcpy on all threads",
    };
    let copy = || machine.copy(target.ptr, source.ptr, 4 * n).expect("copy of a live buffer");
    offer(name.into(), Box::new(copy))?;
    for api in apis {
        let input = Tensor::new(api).set(Param::Rowwise, &basic(&source));
        let output = Tensor::new(api).set(Param::Rowwise, &basic(&target));
        let call = || api.nvte_quantize_v2(input.h(), output.h(), Handle::NULL, machine.stream());
        call();
        machine.synchronize()?;
        if api.take_error().is_ok() {
            offer(format!("float32 cast of {}", api.name), Box::new(call))?;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_use_every_set_equally_often() {
        assert_eq!(repetitions(1e-3, 10e-3, 3, 512), 9);
        assert_eq!(repetitions(1e-6, 10e-3, 100, 512), 500);
        assert_eq!(repetitions(1.0, 10e-3, 4, 512), 4);
        assert_eq!(repetitions(0.0, 10e-3, 600, 512), 600);
    }

    #[test]
    fn random_numbers_are_normal() {
        let values = normal(1 << 16);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.02, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.02, "variance {variance}");
    }

    #[test]
    fn e5m2_codes() {
        let codes = [0.0, 1.0, -1.0, 57344.0, 1e9, -0.4375, 1.3, 1e-9].map(e5m2);
        assert_eq!(codes, [0x00, 0x3C, 0xBC, 0x7B, 0x7B, 0xB7, 0x3D, 0x00]);
    }

    #[test]
    fn e4m3_codes() {
        let codes = [0.0, 1.0, -1.0, 448.0, 1e9, -0.4375, 1.3, 2f32.powi(-6)].map(e4m3);
        assert_eq!(codes, [0x00, 0x38, 0xB8, 0x7E, 0x7E, 0xAE, 0x3A, 0x08]);
    }
}
