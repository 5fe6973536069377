//! Reference of the rotary embedding (spec pointwise_norm, section 11).
#![allow(unsafe_code)]

use crate::backend::args::{Outcome, RopeArgs, RopePart, RopeStrides};
use crate::backend::buf::{load, store};
use crate::backend::cpu::{narrow, vectorized, widen};
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
        || (Vec::new(), Angles::default()),
        |(x, angles), row| {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let Some((position, sequence, f)) = (unsafe { place(a, row) }) else { return };
            for part in &a.parts {
                // SAFETY: the caller's promise: the angles have a row for the position.
                unsafe { angles.read(a, part, f) };
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
                        if step == 1 {
                            widen(std::slice::from_raw_parts(input, a.dim), x);
                        } else {
                            let read = |j: usize| input.add(j * step).read().to_f32();
                            x.iter_mut().enumerate().for_each(|(j, x)| *x = read(j));
                        }
                        turn(angles, a.interleaved, x);
                        let output = part.output.cast::<T>().add(to);
                        let y = std::slice::from_raw_parts_mut(output, a.dim);
                        narrow(x, y);
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

/// Cosines and sines by which the elements of a head are turned.
#[derive(Default)]
struct Angles {
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

impl Angles {
    /// Takes a row of freqs; none for a part without.
    ///
    /// # Safety
    /// The arguments are valid.
    unsafe fn read(&mut self, a: &RopeArgs, part: &RopePart, f: usize) {
        let count = if part.heads > 0 && !part.freqs.is_null() { a.rotated } else { 0 };
        resize(&mut self.cosines, count);
        resize(&mut self.sines, count);
        if count == 0 {
            return;
        }
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let freqs = unsafe { std::slice::from_raw_parts(part.freqs.add(f * count), count) };
        let to = self.cosines.iter_mut().zip(&mut self.sines);
        to.zip(freqs).for_each(|((cos, sin), angle)| (*cos, *sin) = (angle.cos(), angle.sin()));
        if a.backward {
            // The other way; each of a pair takes the angle of the other one.
            let swap = |x: &mut f32, y: &mut f32| (*x, *y) = (-*y, -*x);
            if a.interleaved {
                let pairs = self.sines.as_chunks_mut::<2>().0;
                pairs.iter_mut().for_each(|[x, y]| swap(x, y));
            } else {
                let (xs, ys) = self.sines.split_at_mut(count / 2);
                xs.iter_mut().zip(ys).for_each(|(x, y)| swap(x, y));
            }
        }
    }
}

vectorized! {
    /// Rotates the pairs of a head by the angles: neighbours if they are interleaved, else elements of the halves.
    fn turn(angles: &Angles, interleaved: bool, x: &mut [f32]) {
        let (cosines, sines) = (&angles.cosines[..], &angles.sines[..]);
        let half = cosines.len() / 2;
        let turned = |x: (f32, f32), cos: (f32, f32), sin: (f32, f32)| {
            (x.0.mul_add(cos.0, -(x.1 * sin.0)), x.1.mul_add(cos.1, x.0 * sin.1))
        };
        if interleaved {
            let pairs = x[..2 * half].as_chunks_mut::<2>().0.iter_mut();
            let angles = cosines.as_chunks::<2>().0.iter().zip(sines.as_chunks::<2>().0);
            for (x, (cos, sin)) in pairs.zip(angles) {
                (x[0], x[1]) = turned((x[0], x[1]), (cos[0], cos[1]), (sin[0], sin[1]));
            }
            return;
        }
        let (x, y) = x[..2 * half].split_at_mut(half);
        let (cos_x, cos_y) = cosines.split_at(half);
        let (sin_x, sin_y) = sines.split_at(half);
        let (y, cos_y, sin_y) = (&mut y[..half], &cos_y[..half], &sin_y[..half]);
        for j in 0..half {
            (x[j], y[j]) = turned((x[j], y[j]), (cos_x[j], cos_y[j]), (sin_x[j], sin_y[j]));
        }
    }
}
