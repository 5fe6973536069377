//! Reference of amax, scale from amax, and delayed scaling (spec quantize 1.4, 10.1, 10.3, 10.4).
#![allow(unsafe_code)]

use crate::backend::args::*;
use crate::backend::buf::Buf;
use crate::backend::cpu::{is_noop, scale_of};
use crate::backend::pool::{chunks, parallel};
use crate::numeric::dispatch;
use crate::op::cast::cpu::max_magnitude;
use crate::types::{NVTEScalingMode, cudaStream_t};

/// `amax = max|x|`
pub(crate) unsafe extern "C-unwind" fn amax(args: *const AmaxArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: the flag is null or points to a float.
    if unsafe { is_noop(a.noop) } {
        return Outcome::OK;
    }
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: plan() has checked that the input has these elements.
        let input = unsafe { Buf::<T>::new(a.input, a.numel).slice(0, a.numel) };
        let (tasks, range) = chunks(a.numel);
        let bits = parallel(tasks).max_init(|| (), |(), task| max_magnitude(&input[range(task)]));
        // SAFETY: plan() has checked the address.
        unsafe { a.amax.write(f32::from_bits(bits)) };
        Outcome::OK
    }, else Outcome::unimplemented("amax: dtype"))
}

/// `amax[t] = max|x|` over member t.
pub(crate) unsafe extern "C-unwind" fn group_amax(
    args: *const GroupAmaxArgs,
    stream: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let mode = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
    let size = a.dtype.bits() / 8;
    // SAFETY: the arrays of the group have the lengths that plan() has checked.
    let members = unsafe { a.group.members((a.rows, a.cols), mode) };
    for member in members {
        let args = AmaxArgs {
            input: a.input.wrapping_byte_add(member.at * size),
            amax: a.amax.wrapping_add(member.index),
            noop: a.noop,
            numel: member.rows * member.cols,
            dtype: a.dtype,
        };
        // SAFETY: the member lies in the input.
        let outcome = unsafe { amax(&args, stream) };
        if outcome.status() != BackendStatus::NVTEX_BACKEND_OK {
            return outcome;
        }
    }
    Outcome::OK
}

/// `scale = fp8_max / max(amax, epsilon)`
pub(crate) unsafe extern "C-unwind" fn scale_from_amax(
    args: *const ScaleFromAmaxArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        let a = &*args;
        if is_noop(a.noop) {
            return Outcome::OK;
        }
        for i in 0..a.length {
            let scale = scale_of(a.amax.add(i).read(), a.fp8_max, a.epsilon, a.pow2, f32::MAX);
            a.scale.add(i).write(scale);
            for inverse in [a.scale_inv, a.colwise_scale_inv] {
                if !inverse.is_null() {
                    inverse.add(i).write(1.0 / scale);
                }
            }
        }
    }
    Outcome::OK
}

/// Rolls the histories and sets the scales.
pub(crate) unsafe extern "C-unwind" fn delayed_scaling(
    args: *const DelayedScalingArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        let a = &*args;
        let entries = Buf::<DelayedScalingEntry>::new(a.entries.cast(), a.num_entries);
        let mut first = 0;
        for entry in entries.slice(0, a.num_entries) {
            for column in 0..entry.num_scales {
                let reduced = match a.reduced_amax.is_null() {
                    true => 0.0,
                    false => a.reduced_amax.add(first + column).read(),
                };
                update_column(a, entry, column, reduced);
            }
            first += entry.num_scales;
        }
    }
    Outcome::OK
}

/// `reduced` is 0 if there is none.
///
/// # Safety
/// The arguments are valid; outputs are the inputs or distinct from them.
unsafe fn update_column(
    a: &DelayedScalingArgs,
    entry: &DelayedScalingEntry,
    column: usize,
    reduced: f32,
) {
    // SAFETY: rows are below `length`, and the arrays have `length * num_scales` elements.
    let old = |row: usize| unsafe { entry.history.add(row * entry.num_scales + column).read() };
    // SAFETY: rows are below `length`, and the new history is as long as the old one.
    let set = |row: usize, value| unsafe {
        entry.new_history.add(row * entry.num_scales + column).write(value)
    };

    let last = if reduced != 0.0 { reduced } else { old(0) };
    let keep = a.keep_if_unused && last == 0.0;
    let amax = match a.algo {
        _ if keep => 0.0,
        AmaxAlgo::NVTEX_AMAX_ALGO_MOST_RECENT => last,
        // `f32::max` ignores NaN.
        AmaxAlgo::NVTEX_AMAX_ALGO_MAX => (1..a.length).map(old).fold(last.max(0.0), f32::max),
    };

    // Rows are moved from row 0 on, so that in place each row is read before it is written.
    for row in 0..a.length {
        set(
            row,
            match row {
                _ if keep => old(row),
                0 => 0.0,
                _ if row + 1 < a.length => old(row + 1),
                _ => last,
            },
        );
    }

    // SAFETY: `column` is below `num_scales`.
    unsafe {
        let scale = match amax.is_finite() && amax > 0.0 {
            true => a.scaled_max / amax,
            false => entry.scale.add(column).read(),
        };
        let scale = if scale.is_infinite() { f32::MAX } else { scale };
        entry.new_scale.add(column).write(scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delayed(
        history: &mut [f32],
        scale: &mut [f32],
        reduced: Option<&[f32]>,
        algo: AmaxAlgo,
        keep_if_unused: bool,
    ) {
        let entry = DelayedScalingEntry {
            history: history.as_ptr(),
            scale: scale.as_ptr(),
            new_history: history.as_mut_ptr(),
            new_scale: scale.as_mut_ptr(),
            num_scales: scale.len(),
        };
        let args = DelayedScalingArgs {
            entries: &entry,
            num_entries: 1,
            reduced_amax: reduced.map_or(std::ptr::null(), |r| r.as_ptr()),
            length: history.len() / scale.len(),
            scaled_max: 448.0,
            algo,
            keep_if_unused,
        };
        // SAFETY: the arrays have the shapes that the arguments say.
        unsafe { delayed_scaling(&args, std::ptr::null_mut()) };
    }

    use AmaxAlgo::{NVTEX_AMAX_ALGO_MAX as MAX, NVTEX_AMAX_ALGO_MOST_RECENT as RECENT};

    #[test]
    fn delayed_scaling_rolls_in_place() {
        let (mut history, mut scale) = ([1.0, 7.0, 4.0, 2.0, 3.0, 0.5], [9.0, 9.0]);
        delayed(&mut history, &mut scale, None, MAX, false);
        assert_eq!(history, [0.0, 0.0, 3.0, 0.5, 1.0, 7.0]);
        assert_eq!(scale, [112.0, 64.0]);
        delayed(&mut history, &mut scale, None, RECENT, false);
        assert_eq!(history, [0.0, 0.0, 1.0, 7.0, 0.0, 0.0]);
        assert_eq!(scale, [112.0, 64.0], "an amax of 0 keeps the scale");
    }

    #[test]
    fn delayed_scaling_takes_the_reduced_amax() {
        let (mut history, mut scale) = ([100.0, 0.0, 2.0, 5.0], [9.0, 3.0]);
        delayed(&mut history, &mut scale, Some(&[4.0, 0.0]), MAX, true);
        assert_eq!(history, [0.0, 0.0, 4.0, 5.0], "column 1 is unused and keeps its history");
        assert_eq!(scale, [112.0, 3.0]);
    }

    #[test]
    fn delayed_scaling_of_special_values() {
        let mut history = [f32::INFINITY, f32::NAN, 1e-45, 2.0];
        let mut scale = [3.0, f32::INFINITY, 3.0, f32::NAN];
        delayed(&mut history, &mut scale, None, RECENT, false);
        assert_eq!(scale, [3.0, f32::MAX, f32::MAX, 224.0]);
        assert_eq!(history, [0.0; 4], "a single row becomes 0");
    }
}
