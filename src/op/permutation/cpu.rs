//! Reference of the permutation of rows (spec moe_layout, section 8). Sums are float64.
#![allow(unsafe_code)]

use crate::backend::args::{Outcome, PermuteArgs, RowMapArgs, SortPairsArgs, UnpermuteArgs};
use crate::backend::buf::Buf;
use crate::backend::memory::{collect, resize, zeros};
use crate::backend::pool::{parallel, sort_unstable_by_key};
use crate::numeric::{Element, dispatch};
use crate::types::cudaStream_t;

pub(crate) unsafe extern "C-unwind" fn row_map(
    args: *const RowMapArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let slots = a.tokens * a.topk;
    // SAFETY: there are so many ids, and `map` shares no memory with them.
    let (sorted, map) = unsafe {
        (
            Buf::<i32>::new(a.sorted.cast(), slots).slice(0, slots),
            Buf::<i32>::new(a.map.cast(), slots).slice_mut(0, slots),
        )
    };
    for (i, &slot) in sorted.iter().enumerate() {
        if let Some(slot) = usize::try_from(slot).ok().filter(|&slot| slot < slots) {
            map[slot % a.topk * a.tokens + slot / a.topk] = if i < a.rows { i as i32 } else { -1 };
        }
    }
    Outcome::OK
}

/// The row of slot k of token t.
fn row_of(map: &[i32], tokens: usize, (k, t): (usize, usize), rows: usize) -> Option<usize> {
    usize::try_from(map[k * tokens + t]).ok().filter(|&row| row < rows)
}

pub(crate) unsafe extern "C-unwind" fn permute(
    args: *const PermuteArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the caller vouches for the arguments, and `T` is their dtype.
        unsafe { permute_as::<T>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("permute: dtype"))
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn permute_as<T: Element>(a: &PermuteArgs) {
    let (tokens, topk, cols, rows) = (a.tokens, a.topk, a.cols, a.rows);
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (map, input, output, probs, grads, forward) = unsafe {
        (
            Buf::<i32>::new(a.map.cast(), tokens * topk).slice(0, tokens * topk),
            Buf::<T>::new(a.input, tokens * cols),
            Buf::<T>::new(a.output, rows * cols),
            Buf::<f32>::optional(a.probs.cast(), tokens * topk),
            Buf::<f32>::optional(a.prob_grads.cast(), tokens * topk),
            Buf::<T>::optional(a.forward, rows * cols),
        )
    };
    // The slot of each row: a map may name a row twice, but one task writes it.
    let mut slots: Vec<Option<(usize, usize)>> = zeros(rows);
    for (t, k) in (0..tokens).flat_map(|t| (0..topk).map(move |k| (t, k))) {
        if let Some(row) = row_of(map, tokens, (k, t), rows) {
            slots[row] = Some((t, k));
        }
    }
    parallel(rows).for_each(|row| {
        let Some((t, k)) = slots[row] else { return };
        // SAFETY: inputs are only read, and each row is the task of one thread.
        let (x, y) = unsafe { (input.slice(t * cols, cols), output.slice_mut(row * cols, cols)) };
        match probs {
            None => y.copy_from_slice(x),
            Some(probs) => {
                // SAFETY: there is a probability for each slot.
                let p = unsafe { probs.slice(t * topk + k, 1)[0] };
                y.iter_mut().zip(x).for_each(|(y, x)| *y = T::from_f32(x.to_f32() * p));
            }
        }
    });
    let (Some(grads), Some(forward)) = (grads, forward) else { return };
    parallel(tokens).for_each(|t| {
        // SAFETY: inputs are only read.
        let x = unsafe { input.slice(t * cols, cols) };
        for k in 0..topk {
            // SAFETY: there is a gradient for each slot, and each slot is the task of one thread.
            let (grad, forward) = unsafe {
                let row = row_of(map, tokens, (k, t), rows);
                let forward = row.map(|row| forward.slice(row * cols, cols));
                (grads.slice_mut(t * topk + k, 1), forward.unwrap_or_default())
            };
            let products = x.iter().zip(forward).map(|(x, f)| product(*x, *f));
            grad[0] = products.sum::<f64>() as f32;
        }
    });
}

fn product<T: Element>(a: T, b: T) -> f64 {
    f64::from(a.to_f32()) * f64::from(b.to_f32())
}

pub(crate) unsafe extern "C-unwind" fn unpermute(
    args: *const UnpermuteArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the caller vouches for the arguments, and `T` is their dtype.
        unsafe { unpermute_as::<T>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("unpermute: dtype"))
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn unpermute_as<T: Element>(a: &UnpermuteArgs) {
    let (tokens, topk, cols, rows) = (a.tokens, a.topk, a.cols, a.rows);
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (map, input, output, probs) = unsafe {
        (
            Buf::<i32>::new(a.map.cast(), tokens * topk).slice(0, tokens * topk),
            Buf::<T>::new(a.input, rows * cols),
            Buf::<T>::new(a.output, tokens * cols),
            Buf::<f32>::optional(a.probs.cast(), tokens * topk),
        )
    };
    parallel(tokens).for_each_init(Vec::new, |sums, t| {
        sums.clear();
        resize::<f64>(sums, cols);
        for k in 0..topk {
            let Some(row) = row_of(map, tokens, (k, t), rows) else { continue };
            // SAFETY: inputs are only read.
            let (x, p) = unsafe {
                let p = probs.map_or(1.0, |probs| probs.slice(t * topk + k, 1)[0]);
                (input.slice(row * cols, cols), p)
            };
            sums.iter_mut().zip(x).for_each(|(s, x)| *s += f64::from(x.to_f32()) * f64::from(p));
        }
        // SAFETY: each row is written by its own task.
        let y = unsafe { output.slice_mut(t * cols, cols) };
        y.iter_mut().zip(sums).for_each(|(y, s)| *y = T::from_f32(*s as f32));
    });
}

pub(crate) unsafe extern "C-unwind" fn sort_pairs(
    args: *const SortPairsArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    if a.workspace.is_null() {
        // SAFETY: the size is a number of the caller.
        unsafe { *a.workspace_bytes = 1 };
        return Outcome::OK;
    }
    let n = a.pairs;
    // SAFETY: there are so many pairs, and outputs share no memory with inputs.
    let (keys, values, sorted_keys, sorted_values) = unsafe {
        (
            Buf::<u32>::new(a.keys.cast(), n).slice(0, n),
            Buf::<i32>::new(a.values.cast(), n).slice(0, n),
            Buf::<u32>::new(a.sorted_keys.cast(), n).slice_mut(0, n),
            Buf::<i32>::new(a.sorted_values.cast(), n).slice_mut(0, n),
        )
    };
    // The place makes the order of equal keys that of the input, without memory for a stable sort.
    let mut places = collect(keys.iter().copied().enumerate());
    sort_unstable_by_key(&mut places, |&(place, key)| (key, place));
    for (i, (place, key)) in places.into_iter().enumerate() {
        (sorted_keys[i], sorted_values[i]) = (key, values[place]);
    }
    Outcome::OK
}
