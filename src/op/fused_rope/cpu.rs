//! Reference of the rotary embedding (spec pointwise_norm, section 11).
#![allow(unsafe_code)]

use crate::backend::args::{Outcome, RopeArgs, RopePart, RopeStrides};
use crate::backend::buf::{load, store};
use crate::backend::memory::resize;
use crate::backend::pool::parallel;
use crate::numeric::{Element, amax_bits, dispatch};
use crate::types::cudaStream_t;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub(crate) unsafe extern "C-unwind" fn rope(args: *const RopeArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the caller vouches for the arguments, and `T` is their dtype.
        unsafe { rope_as::<T>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("rope: dtype"))
}

// SAFETY: pointers of the caller, who promises that they are good for what the arguments say; each
// task writes its own elements.
unsafe impl Sync for RopeArgs {}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn rope_as<T: Element>(a: &RopeArgs) {
    let rows = if a.cu_seqlens.is_null() { a.positions * a.sequences } else { a.positions };
    let most = AtomicU32::new(0);
    parallel(rows).for_each_init(
        || (Vec::new(), Vec::new()),
        |(x, sines), row| {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let Some((position, sequence, f)) = (unsafe { place(a, row) }) else { return };
            for part in &a.parts {
                // SAFETY: the caller's promise: the angles have a row for the position.
                unsafe { angles(a, part, f, sines) };
                for head in 0..part.heads {
                    let at = |s: &RopeStrides| {
                        position * s.position
                            + sequence * s.sequence
                            + head / part.heads_per_group * s.group
                            + head % part.heads_per_group * s.head
                    };
                    let (from, to) = (at(&part.input_strides), at(&part.output_strides));
                    // SAFETY: heads lie in the tensors at these strides, and each token is the task of one thread.
                    unsafe {
                        let input = part.input.cast::<T>().add(from);
                        let step = part.input_strides.element;
                        resize(x, a.dim);
                        let read = |j: usize| input.add(j * step).read().to_f32();
                        x.iter_mut().enumerate().for_each(|(j, x)| *x = read(j));
                        turn(a, x, sines);
                        let output = part.output.cast::<T>().add(to);
                        let y = std::slice::from_raw_parts_mut(output, a.dim);
                        y.iter_mut().zip(x.iter()).for_each(|(y, &x)| *y = T::from_f32(x));
                        if !a.amax.is_null() {
                            let bits = y.iter().map(|y| amax_bits(y.to_f32())).max();
                            most.fetch_max(bits.unwrap_or(0), Relaxed);
                        }
                    }
                }
            }
        },
    );
    // SAFETY: the address is null, or that of a float.
    unsafe {
        if let Some(old) = load::<f32>(a.amax) {
            store(a.amax, f32::from_bits(most.into_inner()).max(old));
        }
    }
}

/// Position and sequence by which the tensors are indexed, and the row of freqs; none for a token of
/// no sequence.
///
/// # Safety
/// The arguments are valid.
unsafe fn place(a: &RopeArgs, row: usize) -> Option<(usize, usize, usize)> {
    let (at, position, sequence, length) = if a.cu_seqlens.is_null() {
        let (position, sequence) = (row / a.sequences, row % a.sequences);
        ((position, sequence), position, sequence, a.positions)
    } else {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let start = |n: usize| unsafe { *a.cu_seqlens.add(n) } as u32 as usize / a.cp_size;
        let sequence = (0..a.sequences).find(|&n| start(n) <= row && row < start(n + 1))?;
        ((row, 0), row - start(sequence), sequence, start(sequence + 1) - start(sequence))
    };
    let start = match a.start_positions.is_null() {
        true => 0,
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        false => unsafe { *a.start_positions.add(sequence) },
    };
    let f = match (a.cp_size, position < length / 2) {
        (1, _) => position,
        (_, true) => position + a.cp_rank * length / 2,
        (_, false) => position + length * a.cp_size - (a.cp_rank + 1) * length / 2 - length / 2,
    };
    // The device may hold any start: a negative row has no angles.
    let f = f.checked_add_signed(start as isize)?;
    Some((at.0, at.1, f.min(a.freqs_rows - 1)))
}

/// Cosines and sines of a row of freqs; empty for a part without.
///
/// # Safety
/// The arguments are valid.
unsafe fn angles(a: &RopeArgs, part: &RopePart, f: usize, sines: &mut Vec<(f32, f32)>) {
    sines.clear();
    if part.heads > 0 && !part.freqs.is_null() {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let freqs = unsafe { std::slice::from_raw_parts(part.freqs.add(f * a.rotated), a.rotated) };
        resize(sines, freqs.len());
        sines.iter_mut().zip(freqs).for_each(|(sine, angle)| *sine = (angle.cos(), angle.sin()));
    }
}

/// Rotates the pairs of a head by the angles.
fn turn(a: &RopeArgs, x: &mut [f32], angles: &[(f32, f32)]) {
    for pair in 0..angles.len() / 2 {
        let (j, p) = match a.interleaved {
            true => (2 * pair, 2 * pair + 1),
            false => (pair, pair + a.rotated / 2),
        };
        let ((cos_j, sin_j), (cos_p, sin_p)) = (angles[j], angles[p]);
        let (sin_j, sin_p) = if a.backward { (-sin_p, -sin_j) } else { (sin_j, sin_p) };
        (x[j], x[p]) = (x[j].mul_add(cos_j, -(x[p] * sin_j)), x[p].mul_add(cos_p, x[j] * sin_p));
    }
}
