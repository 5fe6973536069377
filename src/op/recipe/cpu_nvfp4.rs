//! Reference of the scales of NVFP4 tensors, and of amax and casts of a part of a matrix for them (spec
//! optim_nvfp4, section 17).
#![allow(unsafe_code)]

use crate::backend::args::*;
use crate::backend::buf::{Buf, load, store};
use crate::backend::memory::zeros;
use crate::backend::pool::{chunks_mut, parallel};
use crate::numeric::{E4M3, Element, amax_bits, dispatch, e2m1};
use crate::types::cudaStream_t;

/// Side of a block.
const BLOCK: usize = 16;

pub(crate) unsafe extern "C-unwind" fn alpha(
    args: *const Nvfp4AlphaArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        let a = &*args;
        a.output.write(a.alpha * a.amax_a.read() * a.amax_b.read() * a.factor);
        if a.with_beta {
            a.output.add(1).write(a.beta);
        }
    }
    Outcome::OK
}

/// `G` of [`Nvfp4GlobalScaleArgs`].
fn global_scale_of(amax: f32) -> f32 {
    if amax > 0.0 { (2688.0 / amax.max(f32::MIN_POSITIVE)).min(f32::MAX) } else { 1.0 }
}

pub(crate) unsafe extern "C-unwind" fn global_scale(
    args: *const Nvfp4GlobalScaleArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let (amax, scale) = unsafe {
        let a = &*args;
        let scale = Buf::<f32>::new(a.scale.cast(), a.length).slice_mut(0, a.length);
        (Buf::<f32>::new(a.amax.cast(), a.length), scale)
    };
    for (i, scale) in scale.iter_mut().enumerate() {
        // SAFETY: the arguments are valid: there are as many amax values as scales.
        *scale = global_scale_of(unsafe { amax.slice(i, 1)[0] });
    }
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn block_scale(
    args: *const Nvfp4BlockScaleArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let (cols, numel) = (a.tile_cols, a.tile_rows * a.tile_cols);
    // SAFETY: the arguments are valid: the buffers have the elements that their comments say.
    let (global_amax, input, scale, codes) = unsafe {
        (
            load(a.global_amax),
            Buf::<f32>::new(a.input.cast(), numel).slice(0, numel),
            Buf::<f32>::optional(a.scale.cast(), numel),
            Buf::<u8>::optional(a.codes, a.rows * cols),
        )
    };
    let sixth = global_amax.map(|amax| global_scale_of(amax) * (1.0 / 6.0));
    let scale_of = |x: f32| sixth.map_or(x, |sixth| (x * sixth).min(f32::MAX));
    if let Some(scale) = scale {
        // SAFETY: there is a scale for each element of the input, and nothing else uses them now.
        for (to, &x) in unsafe { scale.slice_mut(0, numel) }.iter_mut().zip(input) {
            *to = scale_of(x);
        }
    }
    if let Some(codes) = codes {
        // SAFETY: there are codes for all rows, and nothing else uses them now.
        let codes = unsafe { codes.slice_mut(0, a.rows * cols) };
        for (row, line) in codes.chunks_exact_mut(cols.max(1)).enumerate() {
            let tile = row / a.block_len;
            if tile >= a.tile_rows {
                line.fill(0);
                continue;
            }
            for (to, &x) in line.iter_mut().zip(&input[tile * cols..][..cols]) {
                *to = E4M3::from_f32(scale_of(x)).0;
            }
        }
    }
    if let Some(amax) = global_amax {
        // SAFETY: the arguments are valid: the copy goes to one float, or nowhere for null.
        unsafe { store(a.target_amax, amax) };
    }
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn partial_amax(
    args: *const Nvfp4PartialAmaxArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.shard.dtype, [F32, F16, BF16], T => {
        // SAFETY: the arguments are valid, and the dtype of the call is the one that they name.
        unsafe { maxima::<T>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("nvfp4_partial_amax: dtype"))
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn maxima<T: Element>(a: &Nvfp4PartialAmaxArgs) {
    let s = &a.shard;
    let (columns_of, rows, across) = (s.columns(), s.rows, s.cols.div_ceil(BLOCK));
    let (stride, step) = (a.stride, a.step);
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (input, amax) = unsafe {
        (
            Buf::<T>::new(s.input, s.length).slice(0, s.length),
            Buf::<f32>::new(a.amax.cast(), usize::MAX),
        )
    };
    parallel(rows.div_ceil(BLOCK)).for_each(|line| {
        let mut maxima = zeros(across);
        for row in line * BLOCK..rows.min(line * BLOCK + BLOCK) {
            let (columns, at) = columns_of(row);
            for (x, col) in input[at..][..columns.len()].iter().zip(columns) {
                maxima[col / BLOCK] = amax_bits(x.to_f32()).max(maxima[col / BLOCK]);
            }
        }
        for (i, bits) in maxima.into_iter().enumerate() {
            // SAFETY: each block has its own entry.
            unsafe { amax.slice_mut(line * stride + i * step, 1)[0] = f32::from_bits(bits) };
        }
    });
}

pub(crate) unsafe extern "C-unwind" fn partial_cast(
    args: *const Nvfp4PartialCastArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.shard.dtype, [F32, F16, BF16], T => {
        // SAFETY: the arguments are valid, and the dtype of the call is the one that they name.
        unsafe { cast::<T>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("nvfp4_partial_cast: dtype"))
}

/// Bytes that one task writes.
const CHUNK: usize = 1 << 13;

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn cast<T: Element>(a: &Nvfp4PartialCastArgs) {
    let s = &a.shard;
    let (start, cols, stride, step) = (s.start, s.cols, a.stride, a.step);
    let (first, end) = (start / 2, start + s.length);
    let bytes = end.div_ceil(2) - first;
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (input, output, scales, global) = unsafe {
        (
            Buf::<T>::new(s.input, s.length).slice(0, s.length),
            Buf::<u8>::new(a.output, bytes).slice_mut(0, bytes),
            Buf::<f32>::new(a.scale.cast(), usize::MAX),
            a.global_scale.read(),
        )
    };
    let inverse = 1.0 / if global <= 0.0 { 1.0 } else { global };
    let factor = |at: usize| {
        let (row, col) = (at / cols, at % cols);
        // SAFETY: each block has an entry.
        let entry = unsafe { scales.slice(row / BLOCK * stride + col / BLOCK * step, 1)[0] };
        let scale = E4M3::from_f32(entry).to_f32();
        if scale > 0.0 { (1.0 / (scale * inverse)).min(f32::MAX) } else { f32::MAX }
    };
    chunks_mut(output, CHUNK).for_each(|(chunk, bytes)| {
        for (i, byte) in bytes.iter_mut().enumerate() {
            let pair = (first + chunk * CHUNK + i) * 2;
            for (at, shift) in [(pair, 0), (pair + 1, 4)] {
                if at >= start && at < end {
                    let code = e2m1(input[at - start].to_f32() * factor(at));
                    *byte = *byte & !(0xF << shift) | code << shift;
                }
            }
        }
    });
}
