//! Reference of the corrections of context parallelism (spec attention 15).

use super::rows::{Sequences, of_rank};
use crate::backend::args::*;
use crate::backend::buf::Buf;
use crate::numeric::{Element, dispatch};
use crate::types::{NVTEDType, cudaStream_t};

/// Adds the gradients of a step to those of all steps.
pub(crate) unsafe extern "C-unwind" fn grad_correction(
    args: *const GradCorrectionArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    match a.dtype {
        // Codes are copied like any other bytes.
        // SAFETY: the arguments are valid, and elements of a byte are theirs.
        NVTEDType::kNVTEByte => unsafe { correct_grad::<crate::numeric::E4M3>(a) },
        _ => {
            return dispatch!(a.dtype, [F32, F16, BF16], T => {
            // SAFETY: the arguments are valid, and the dtype is theirs.
            unsafe { correct_grad::<T>(a) };
            Outcome::OK
        }, else Outcome::unimplemented("grad_correction: dtype"));
        }
    }
    Outcome::OK
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn correct_grad<T: Element>(a: &GradCorrectionArgs) {
    let step_tokens = if a.full { a.tokens } else { a.tokens / 2 };
    // SAFETY: the caller's promise; grad and step are distinct.
    let (cu, grad, step) = unsafe {
        (
            Sequences::new(a.cu, a.sequences),
            Buf::<T>::new(a.grad, a.outer * a.tokens * a.width),
            Buf::<T>::new(a.step, a.outer * step_tokens * a.width),
        )
    };
    let tokens = a.tokens.min(cu.start(cu.count(), 1));
    for outer in 0..a.outer {
        for t in 0..tokens {
            let s = cu.of(t, 1);
            let (start, half) = (cu.start(s, 1), cu.len(s) / 2);
            let r = t.wrapping_sub(start);
            let (op, in_half) =
                if r < half { (a.first, r) } else { (a.second, r.wrapping_sub(half)) };
            let u = if a.full { t } else { (start / 2).wrapping_add(in_half) };
            if matches!(op, HalfOp::NVTEX_HALF_COPY | HalfOp::NVTEX_HALF_ADD) && u >= step_tokens {
                continue;
            }
            // SAFETY: token t lies inside the tensor, and no other row of it is in use.
            let to = unsafe { grad.slice_mut((outer * a.tokens + t) * a.width, a.width) };
            let from = || {
                // SAFETY: token u lies inside the tensor, which nobody writes.
                unsafe { step.slice((outer * step_tokens + u) * a.width, a.width) }
            };
            match op {
                HalfOp::NVTEX_HALF_NONE => {}
                HalfOp::NVTEX_HALF_ZERO => to.fill(T::default()),
                HalfOp::NVTEX_HALF_COPY => to.copy_from_slice(from()),
                HalfOp::NVTEX_HALF_ADD => {
                    for (x, y) in to.iter_mut().zip(from()) {
                        *x = T::from_f32(x.to_f32() + y.to_f32());
                    }
                }
            }
        }
    }
}

/// `log(exp(a) + exp(b))`
fn log_sum(a: f32, b: f32) -> f32 {
    let (most, least) = (a.max(b), a.min(b));
    if most == f32::NEG_INFINITY { most } else { most + (least - most).exp().ln_1p() }
}

/// Places in lse and in step of token t of the halves, for a head.
struct HalfPlace {
    lse: usize,
    step: usize,
}

impl HalfPlace {
    /// The place in a row of each array at a position; none if that is past the end of the row.
    fn new(row: usize, [lse_len, step_len]: [usize; 2], [lse, step]: [usize; 2]) -> Option<Self> {
        let inside = lse < lse_len && step < step_len;
        inside.then(|| Self { lse: row * lse_len + lse, step: row * step_len + step })
    }
}

fn half_place(
    cu: Sequences,
    (packed, heads): (bool, usize),
    lens: [usize; 2],
    head: usize,
    t: usize,
) -> Option<HalfPlace> {
    let s = cu.of(t, 2);
    if packed {
        return HalfPlace::new(head, lens, [t + cu.start(s + 1, 2), t]);
    }
    let r = t.wrapping_sub(cu.start(s, 2));
    HalfPlace::new(s * heads + head, lens, [r.wrapping_add(cu.between(s, 2)), r])
}

/// Logarithms of the second halves.
pub(crate) unsafe extern "C-unwind" fn half_lse(
    args: *const HalfLseArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: the arguments are valid: the array has an entry more than there are sequences.
    let cu = unsafe { Sequences::new(a.cu, a.sequences) };
    // There are no more tokens than the step has room for, whatever the sequences say.
    let room = a.step_len * if a.packed { 1 } else { a.sequences };
    for head in 0..a.heads {
        for t in 0..cu.start(cu.count(), 2).min(room) {
            let lens = [a.lse_len, a.step_len];
            let Some(at) = half_place(cu, (a.packed, a.heads), lens, head, t) else { continue };
            // SAFETY: both places lie inside their tensors, which are distinct.
            let (lse, step) = unsafe { (&mut *a.lse.add(at.lse), &mut *a.step.add(at.step)) };
            if a.correct { *lse = log_sum(*lse, *step) } else { *step = *lse }
        }
    }
    Outcome::OK
}

/// `x exp(from - to)`; 0 for 0.
fn rescaled(x: f32, from: f32, to: f32) -> f32 {
    if x == 0.0 || from == f32::NEG_INFINITY { 0.0 } else { x * (from - to).exp() }
}

/// Outputs of a step into those of all.
pub(crate) unsafe extern "C-unwind" fn out_correction(
    args: *const OutCorrectionArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the arguments are valid, and the dtype is theirs.
        unsafe { correct_out::<T>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("out_correction: dtype"))
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn correct_out<T: Element>(a: &OutCorrectionArgs) {
    // SAFETY: the caller's promise; the buffers are distinct.
    let cu = unsafe { Sequences::new(a.cu, a.sequences) };
    let unit = if a.second_half { 2 } else { 1 };
    for t in 0..a.tokens.min(cu.start(cu.count(), unit)) {
        let s = cu.of(t, unit);
        let token = if a.second_half { t + cu.start(s + 1, 2) } else { t };
        if token >= a.out_tokens {
            continue;
        }
        for head in 0..a.heads {
            let lens = [a.lse_len, a.step_len];
            let at = if a.second_half {
                half_place(cu, (a.packed, a.heads), lens, head, t)
            } else if a.packed {
                HalfPlace::new(head, lens, [t; 2])
            } else {
                let r = t.wrapping_sub(cu.start(s, 1));
                HalfPlace::new(s * a.heads + head, lens, [r; 2])
            };
            let Some(at) = at else { continue };
            let start = |token| (token * a.heads + head) * a.width;
            // SAFETY: the tokens and places lie inside their tensors, which are distinct.
            unsafe {
                let (old, lse) = (*a.old_lse.add(at.lse), *a.lse.add(at.lse));
                let step_lse = *a.step_lse.add(at.step);
                for i in 0..a.width {
                    let out = &mut *a.out.cast::<T>().add(start(token) + i);
                    let step = *a.step.cast::<T>().add(start(t) + i);
                    let sum =
                        rescaled(out.to_f32(), old, lse) + rescaled(step.to_f32(), step_lse, lse);
                    *out = T::from_f32(sum);
                }
            }
        }
    }
}

pub(crate) unsafe extern "C-unwind" fn merge_attention(
    args: *const MergeAttentionArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the arguments are valid, and the dtype is theirs.
        unsafe { merge::<T>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("merge_attention: dtype"))
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn merge<T: Element>(a: &MergeAttentionArgs) {
    for token in 0..a.tokens {
        for head in 0..a.heads {
            let (at, row) = (head * a.tokens + token, (token * a.heads + head) * a.width);
            // SAFETY: the tokens and heads lie inside their tensors, which are distinct.
            unsafe {
                let (lse, step_lse) = (&mut *a.lse.add(at), *a.step_lse.add(at));
                let old = if a.first { f32::NEG_INFINITY } else { *lse };
                let most = old.max(step_lse);
                let sum = match most == f32::NEG_INFINITY {
                    true => most,
                    false => most + (old.min(step_lse) - most).exp().ln_1p(),
                };
                for i in 0..a.width {
                    let out = &mut *a.out.add(row + i);
                    let before = if a.first { 0.0 } else { rescaled(*out, old, sum) };
                    let step = (*a.step.cast::<T>().add(row + i)).to_f32();
                    *out = before + rescaled(step, step_lse, sum);
                }
                *lse = sum;
            }
        }
    }
}

/// Lengths of chunks of sequences, and where they begin.
pub(crate) unsafe extern "C-unwind" fn chunk_lengths(
    args: *const ChunkLengthsArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        let a = &*args;
        let count = a.sequences + 1;
        let [cu, starts] = [a.cu, a.starts]
            .map(|sums| Buf::<i32>::new(sums.cast_mut().cast(), count).slice(0, count));
        let [lengths, firsts] =
            [a.lengths, a.firsts].map(|out| Buf::<i32>::new(out.cast(), count).slice_mut(0, count));
        let (divisor, mut sum) = (a.divisor as i64, 0);
        for s in 0..a.sequences {
            let [first, end, begin, stop] =
                [starts[s], starts[s + 1], cu[s], cu[s + 1]].map(i64::from);
            let chunk = (end - first) / a.chunks as i64;
            lengths[s] = sum as i32;
            firsts[s] = (first / divisor + a.skipped as i64 * chunk) as i32;
            for [from, to] in
                [a.range, a.other_range].map(|range| range.map(|at| at as i64 * chunk))
            {
                sum += (stop - begin - from).min(to - from).max(0);
            }
        }
        lengths[a.sequences] = sum as i32;
        firsts[a.sequences] = (i64::from(starts[a.sequences]) / divisor) as i32;
    }
    Outcome::OK
}

/// Tokens of a rank.
pub(crate) unsafe extern "C-unwind" fn partition(
    args: *const PartitionArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe {
        let a = &*args;
        let cu = Sequences::new(a.cu, a.sequences);
        let indices = Buf::<i32>::new(a.indices.cast(), a.tokens).slice_mut(0, a.tokens);
        for (i, index) in indices.iter_mut().enumerate() {
            *index = of_rank(cu, i, a.rank, a.world) as i32;
        }
    }
    Outcome::OK
}
