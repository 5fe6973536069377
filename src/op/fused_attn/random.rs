//! States of random generators, and the number of sequences that the device knows: functions on bare addresses of
//! integers (spec attention 13).
#![allow(unsafe_code)]

use crate::backend::{self, args::*};
use crate::check;
use crate::error::{Error, Result};
use crate::types::NVTE_Fused_Attn_Backend::NVTE_F16_arbitrary_seqlen;
use crate::types::NVTEDType::{self, *};
use crate::types::cudaStream_t;
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null;

/// A pointer to device integers that must be there.
fn device_integers(name: &str, ptr: *const c_void, dtype: NVTEDType) -> Result<()> {
    check::raw_pointer(name, ptr.cast_mut(), 1, dtype).map(drop)
}

thread_local! {
    /// Where the random numbers of this thread's next call begin.
    static OFFSET: Cell<i64> = const { Cell::new(0) };
}

/// Fills the state of a generator, from the device or from values.
pub(crate) fn extract_seed_and_offset(
    args: &SeedArgs,
    on_device: bool,
    stream: cudaStream_t,
) -> Result<()> {
    device_integers("rng_state_ptr", args.state.cast_const().cast(), kNVTEInt64)?;
    if on_device {
        device_integers("seed_ptr", args.seed_at.cast(), kNVTEInt64)?;
        device_integers("offset_ptr", args.offset_at.cast(), kNVTEInt64)?;
    }
    backend::run(args, stream)
}

/// Fills a state with a seed of the device and an offset that grows with every call of the thread. `backend` is
/// the number of an `NVTE_Fused_Attn_Backend`.
pub(super) fn populate_rng_state(
    dst: *mut c_void,
    seed: *const c_void,
    (q_len, kv_len): (usize, usize),
    backend: i32,
    stream: cudaStream_t,
) -> Result<()> {
    device_integers("rng_state_dst", dst, kNVTEInt64)?;
    device_integers("seed", seed, kNVTEInt64)?;
    let step = match backend {
        _ if backend == NVTE_F16_arbitrary_seqlen as i32 => 16,
        _ => q_len.wrapping_mul(kv_len).div_ceil(128) as i64,
    };
    let offset = OFFSET.get();
    let args =
        SeedArgs { state: dst.cast(), seed_at: seed.cast(), offset_at: null(), seed: 0, offset };
    backend::run(&args, stream)?;
    OFFSET.set(offset.wrapping_add(step));
    Ok(())
}

/// Sequences that are not empty: entries of `cu_seqlens` above 0.
pub(super) fn runtime_num_segments(
    cu_seqlens: *const c_void,
    len: usize,
    stream: cudaStream_t,
) -> Result<u32> {
    if len == 0 {
        return Ok(0);
    }
    device_integers("cu_seqlens", cu_seqlens, kNVTEInt32)?;
    if u32::try_from(len).is_err() {
        return Err(Error::argument("len", "a number that fits into 32 bits", len));
    }
    // The array is read in pieces, so that a long one needs no copy of its whole length.
    const PIECE: usize = 1 << 12;
    let mut host = vec![0i32; len.min(PIECE)];
    let mut count = 0;
    for first in (0..len).step_by(PIECE) {
        let piece = PIECE.min(len - first);
        let from = cu_seqlens.wrapping_byte_add(4 * first);
        let to = host.as_mut_ptr().cast();
        let (domain, kind) = (backend::domain()?, CopyKind::NVTEX_COPY_TO_HOST);
        // SAFETY: the host buffer has room; the caller vouches for the device's.
        unsafe { domain.memcpy(to, from, 4 * piece, kind, stream) }?;
        domain.synchronize(stream)?;
        count += host[..piece].iter().filter(|&&end| end > 0).count() as u32;
    }
    Ok(count)
}
