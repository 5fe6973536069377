//! Reference of the cross entropy. Exponentials are float32, their sums float64.
#![allow(unsafe_code)]

use crate::backend::args::{
    CombineCrossEntropyArgs, CrossEntropyArgs, CrossEntropyPass, Outcome, TotalLossArgs,
};
use crate::backend::buf::{Buf, load, store};
use crate::backend::cpu::{vectorized, widen};
use crate::backend::memory;
use crate::backend::pool::parallel;
use crate::numeric::{Element, dispatch, exp};
use crate::types::{NVTEDType, cudaStream_t};
use CrossEntropyPass::*;
use std::ffi::c_void;

/// Targets as they lie in memory.
#[derive(Clone, Copy)]
enum Targets {
    Int32(Buf<i32>),
    Int64(Buf<i64>),
}

impl Targets {
    /// # Safety
    /// As [`Buf::new`].
    unsafe fn new(ptr: *const c_void, dtype: NVTEDType, len: usize) -> Self {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            match dtype {
                NVTEDType::kNVTEInt32 => Self::Int32(Buf::new(ptr, len)),
                _ => Self::Int64(Buf::new(ptr, len)),
            }
        }
    }

    fn get(self, at: usize) -> i64 {
        // SAFETY: nobody writes to the targets.
        unsafe {
            match self {
                Self::Int32(targets) => i64::from(targets.slice(at, 1)[0]),
                Self::Int64(targets) => targets.slice(at, 1)[0],
            }
        }
    }
}

/// What of the loss is not the sum of exponentials.
#[derive(Clone, Copy)]
struct Terms {
    total: usize,
    label_smoothing: f32,
    z_loss: f32,
}

impl Terms {
    /// The loss, without terms whose factor is 0.
    fn loss(self, logsumexp: f64, target: f64, sum: f64) -> f32 {
        let term = |factor: f32, value: f64| match factor {
            0.0 => 0.0,
            _ => f64::from(factor) * value,
        };
        let smoothed = term(self.label_smoothing, sum / self.total as f64);
        let squared = term(self.z_loss, logsumexp * logsumexp);
        (logsumexp - term(1.0 - self.label_smoothing, target) - smoothed + squared) as f32
    }
}

pub(crate) unsafe extern "C-unwind" fn cross_entropy(
    args: *const CrossEntropyArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the caller vouches for the arguments, and `T` is their dtype.
        unsafe { cross_entropy_as::<T>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("cross_entropy: dtype"))
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn cross_entropy_as<T: Element>(a: &CrossEntropyArgs) {
    let &CrossEntropyArgs { tokens, start, total, label_smoothing, z_loss, pass, .. } = a;
    let (columns, of_ignored, grad_per_token) = (a.vocabulary, a.ignored, a.grad_per_token);
    let terms = Terms { total: a.total, label_smoothing: a.label_smoothing, z_loss: a.z_loss };
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (logits, targets, loss, logsumexp, partials, gradients, grad, count) = unsafe {
        (
            Buf::<T>::new(a.logits, tokens * columns),
            Targets::new(a.targets, a.target_dtype, tokens),
            Buf::<f32>::optional(a.loss.cast(), tokens),
            Buf::<f32>::optional(a.logsumexp.cast(), tokens),
            Buf::<f32>::optional(a.partials.cast(), 4 * tokens),
            Buf::<T>::optional(a.grad_logits, tokens * columns),
            Buf::<f32>::optional(a.grad.cast(), if a.grad_per_token { tokens } else { 1 }),
            load(a.count),
        )
    };
    parallel(tokens).with_min_len(8192 / columns.min(8192)).for_each_init(Vec::new, |x, t| {
        let target = targets.get(t);
        let ignored = target == of_ignored;
        let known = usize::try_from(target).is_ok_and(|target| target < total);
        let column = usize::try_from(target).ok().and_then(|target| target.checked_sub(start));
        let column = column.filter(|column| known && !ignored && *column < columns);
        if ignored {
            x.clear();
        } else {
            memory::resize(x, columns);
            // SAFETY: nobody else writes to this row, and this thread does so later.
            widen(unsafe { logits.slice(t * columns, columns) }, x);
        }
        let mut log = 0.0;
        // SAFETY: each token is the task of one thread, which reads and writes what is its own.
        let put = |buffer: Option<Buf<f32>>, at: usize, value: f32| unsafe {
            if let Some(buffer) = buffer {
                buffer.slice_mut(at, 1)[0] = value;
            }
        };
        if pass == NVTEX_CROSS_ENTROPY_BACKWARD {
            // SAFETY: as above.
            log = logsumexp.map_or(0.0, |buffer| unsafe { f64::from(buffer.slice(t, 1)[0]) });
        } else {
            let sums = sums_of(x);
            let logit = match (ignored || known, column) {
                (false, _) => f64::NAN,
                (true, column) => column.map_or(0.0, |column| f64::from(x[column])),
            };
            if pass == NVTEX_CROSS_ENTROPY_PARTIAL {
                let values = [f64::from(sums.most), sums.exponentials, logit, sums.logits];
                for (part, value) in values.into_iter().enumerate() {
                    put(partials, part * tokens + t, value as f32);
                }
                return;
            }
            if !ignored {
                log = f64::from(sums.most) + sums.exponentials.ln();
            }
            let value = if ignored { 0.0 } else { terms.loss(log, logit, sums.logits) };
            put(loss, t, value);
            put(logsumexp, t, log as f32);
        }
        let Some(gradients) = gradients else { return };
        // SAFETY: as above; the row has been read.
        let row = unsafe { gradients.slice_mut(t * columns, columns) };
        if ignored {
            row.fill(T::from_f32(0.0));
            return;
        }
        let of_token = if grad_per_token { t } else { 0 };
        // SAFETY: nobody writes to the gradients of the losses.
        let grad = grad.map_or(1.0, |grad| unsafe { grad.slice(of_token, 1)[0] });
        let grad = if known { grad / count.map_or(1.0, |count| count.max(1.0)) } else { f32::NAN };
        let log = log as f32;
        let weight = grad * (1.0 + 2.0 * z_loss * log);
        let smoothed = grad * label_smoothing / total as f32;
        slopes(x, log, weight, smoothed, row);
        if let Some(column) = column {
            let p = weight * exp(x[column] - log) - smoothed;
            row[column] = T::from_f32(p - grad * (1.0 - label_smoothing));
        }
    });
}

/// What a row of logits comes to.
struct Sums {
    most: f32,
    /// Of the exponentials of logits less the maximum.
    exponentials: f64,
    logits: f64,
}

/// Partial sums and maxima of a row: element `i` goes to number `i % LANES`.
const LANES: usize = 16;

vectorized! {
    fn sums_of(x: &[f32]) -> Sums {
        let (whole, rest) = x.as_chunks::<LANES>();
        // NaN is no maximum; it spreads by the sums.
        let mut most = [f32::NEG_INFINITY; LANES];
        let raise = |(most, &x): (&mut f32, &f32)| *most = if x > *most { x } else { *most };
        whole.iter().for_each(|x| most.iter_mut().zip(x).for_each(raise));
        most.iter_mut().zip(rest).for_each(raise);
        let most = most.into_iter().fold(f32::NEG_INFINITY, f32::max);
        let below = if most == f32::NEG_INFINITY { 0.0 } else { most };
        let mut sums = [(0.0f64, 0.0f64); LANES];
        let add = |(sums, &x): (&mut (f64, f64), &f32)| {
            sums.0 += f64::from(exp(x - below));
            sums.1 += f64::from(x);
        };
        whole.iter().for_each(|x| sums.iter_mut().zip(x).for_each(add));
        sums.iter_mut().zip(rest).for_each(add);
        Sums {
            most,
            exponentials: sums.iter().map(|sums| sums.0).sum(),
            logits: sums.iter().map(|sums| sums.1).sum(),
        }
    }
}

vectorized! {
    /// Gradients of logits but for that of the target.
    fn slopes<T: Element>(x: &[f32], log: f32, weight: f32, smoothed: f32, to: &mut [T]) {
        for (to, x) in to.iter_mut().zip(x) {
            *to = T::from_f32(weight * exp(x - log) - smoothed);
        }
    }
}

pub(crate) unsafe extern "C-unwind" fn combine_cross_entropy(
    args: *const CombineCrossEntropyArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let &CombineCrossEntropyArgs { parts, tokens, ignored, .. } = a;
    let terms = Terms { total: a.total, label_smoothing: a.label_smoothing, z_loss: a.z_loss };
    // SAFETY: the caller vouches for the arguments.
    let (partials, targets, loss, logsumexp) = unsafe {
        (
            Buf::<f32>::new(a.partials.cast(), a.parts * 4 * a.tokens),
            Targets::new(a.targets, a.target_dtype, a.tokens),
            Buf::<f32>::new(a.loss.cast(), a.tokens),
            Buf::<f32>::optional(a.logsumexp.cast(), a.tokens),
        )
    };
    parallel(tokens).with_min_len(1024).for_each(|t| {
        // SAFETY: nobody writes to the partials.
        let get = |part: usize, which: usize| unsafe {
            partials.slice((4 * part + which) * tokens + t, 1)[0]
        };
        let most = (0..parts).map(|part| get(part, 0)).fold(f32::NEG_INFINITY, f32::max);
        let below = if most == f32::NEG_INFINITY { 0.0 } else { most };
        let (mut exponentials, mut logit, mut sum) = (0.0, 0.0, 0.0);
        for part in 0..parts {
            exponentials += f64::from(get(part, 1)) * f64::from((get(part, 0) - below).exp());
            logit += f64::from(get(part, 2));
            sum += f64::from(get(part, 3));
        }
        let log = f64::from(most) + exponentials.ln();
        let (value, log) = match targets.get(t) == ignored {
            true => (0.0, 0.0),
            false => (terms.loss(log, logit, sum), log),
        };
        // SAFETY: each token is the task of one thread.
        unsafe {
            loss.slice_mut(t, 1)[0] = value;
            if let Some(logsumexp) = logsumexp {
                logsumexp.slice_mut(t, 1)[0] = log as f32;
            }
        }
    });
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn total_loss(
    args: *const TotalLossArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: the caller vouches for the arguments.
    unsafe {
        if !a.targets.is_null() {
            let targets = Targets::new(a.targets, a.target_dtype, a.tokens);
            let count = (0..a.tokens).filter(|&t| targets.get(t) != a.ignored).count();
            store(a.count, count as f32);
        }
        if !a.losses.is_null() {
            let losses = Buf::<f32>::new(a.losses.cast(), a.tokens).slice(0, a.tokens);
            let sum: f64 = losses.iter().map(|&loss| f64::from(loss)).sum();
            let count = if a.mean { f64::from(*a.count).max(1.0) } else { 1.0 };
            store(a.total, (sum / count) as f32);
        }
    }
    Outcome::OK
}
