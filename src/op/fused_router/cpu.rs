//! Reference of the router (spec moe_layout, sections 2 to 7). Sums are float64.
#![allow(unsafe_code)]

use crate::backend::args::{
    AuxLossArgs, AuxLossBackwardArgs, Outcome, RouterBackwardArgs, RouterForwardArgs,
    RouterHistogramArgs, RouterScore, RouterWeightsArgs, RouterZLossArgs, Routing,
};
use crate::backend::buf::{Buf, load};
use crate::backend::memory;
use crate::backend::pool::{chunks_mut, parallel};
use crate::numeric::{BF16, Element, F32, dispatch};
use crate::types::NVTEDType::{self, kNVTEFloat32};
use crate::types::cudaStream_t;
use RouterScore::*;
use std::cmp::Reverse;
use std::ffi::c_void;

const EPSILON: f64 = 1e-20;

/// Orders scores as the choice does: 0 and -0 are equal, NaN comes before all numbers.
fn order(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    match score.is_nan() {
        true => 0,
        false => bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 },
    }
}

/// The `count` best of `candidates`, best first: the greater score, then the lower index.
fn best(scores: &[f32], candidates: impl Iterator<Item = usize>, count: usize) -> Vec<usize> {
    let mut found: Vec<usize> = candidates.collect();
    let key = |&i: &usize| (Reverse(order(scores[i])), i);
    if count < found.len() {
        found.select_nth_unstable_by_key(count, key);
        found.truncate(count);
    }
    found.sort_unstable_by_key(key);
    found
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn sqrtsoftplus(x: f32) -> f32 {
    if x > 20.0 { x.sqrt() } else { x.exp().ln_1p().sqrt() }
}

/// The softmax of a row in place; NaN if all logits are -Inf.
fn softmax(x: &mut [f32]) {
    // `f32::max` ignores NaN, which then spread by the sum.
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|x| *x = (*x - most).exp());
    let weight = (1.0 / x.iter().map(|&x| f64::from(x)).sum::<f64>()) as f32;
    x.iter_mut().for_each(|x| *x *= weight);
}

fn normalize(x: &mut [f32]) {
    let sum = (x.iter().map(|&x| f64::from(x)).sum::<f64>() + EPSILON) as f32;
    x.iter_mut().for_each(|x| *x /= sum);
}

/// The rows of [`Routing`] and its indices as numbers.
#[derive(Clone, Copy)]
struct Rows {
    routing: Routing,
    experts: usize,
    topk: usize,
}

// SAFETY: addresses, of which each task uses the rows of its own tokens.
unsafe impl Sync for Rows {}

impl Rows {
    /// # Safety
    /// The buffers cover row `token`, which nobody else uses.
    unsafe fn write(&self, token: usize, chosen: &[usize]) {
        let bytes = |at: *mut u8, width: usize| {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let row =
                unsafe { Buf::new(at.cast(), (token + 1) * width).slice_mut(token * width, width) };
            row.fill(0);
            row
        };
        let Routing { bytes: map, bits, indices, index_dtype } = self.routing;
        if !map.is_null() {
            let row = bytes(map, self.experts);
            chosen.iter().for_each(|&e| row[e] = 1u8);
        }
        if !bits.is_null() {
            let row = bytes(bits, self.experts.div_ceil(8));
            chosen.iter().for_each(|&e| row[e / 8] |= 1 << (e % 8));
        }
        for (i, &e) in chosen.iter().enumerate().filter(|_| !indices.is_null()) {
            let at = token * self.topk + i;
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            unsafe {
                match index_dtype {
                    NVTEDType::kNVTEInt16 => indices.cast::<i16>().add(at).write(e as i16),
                    NVTEDType::kNVTEInt32 => indices.cast::<i32>().add(at).write(e as i32),
                    _ => indices.cast::<i64>().add(at).write(e as i64),
                }
            }
        }
    }

    /// # Safety
    /// The buffers cover row `token`, and nobody writes to it.
    unsafe fn read(&self, token: usize) -> Vec<usize> {
        let Routing { bytes, bits, indices, index_dtype } = self.routing;
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            if !bytes.is_null() {
                let row = bytes.add(token * self.experts);
                return (0..self.experts).filter(|&e| *row.add(e) != 0).collect();
            }
            if !bits.is_null() {
                let row = bits.add(token * self.experts.div_ceil(8));
                return (0..self.experts)
                    .filter(|&e| *row.add(e / 8) >> (e % 8) & 1 == 1)
                    .collect();
            }
            let index = |at: usize| match index_dtype {
                NVTEDType::kNVTEInt16 => i64::from(*indices.cast::<i16>().add(at)),
                NVTEDType::kNVTEInt32 => i64::from(*indices.cast::<i32>().add(at)),
                _ => *indices.cast::<i64>().add(at),
            };
            let row =
                (0..self.topk).filter_map(|i| usize::try_from(index(token * self.topk + i)).ok());
            row.filter(|&e| e < self.experts).collect()
        }
    }
}

fn floats<T: Element>(values: &[T]) -> Vec<f32> {
    memory::collect(values.iter().map(|x| x.to_f32()))
}

pub(crate) unsafe extern "C-unwind" fn router_forward(
    args: *const RouterForwardArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the caller vouches for the arguments, and `T` is the dtype of the logits.
        unsafe {
            if a.probs_dtype == kNVTEFloat32 {
                forward_as::<T, F32>(a)
            } else {
                forward_as::<T, T>(a)
            }
        };
        Outcome::OK
    }, else Outcome::unimplemented("router: dtype"))
}

/// The experts among which the choice is made.
fn candidates(a: &RouterForwardArgs, biased: &[f32]) -> Vec<usize> {
    if a.groups == 0 {
        return memory::collect(0..a.experts);
    }
    let (width, of_each) = (a.experts / a.groups, a.topk / a.group_topk);
    let group = |g: usize| g * width..(g + 1) * width;
    let sum = |g| best(biased, group(g), of_each).into_iter().fold(0.0, |sum, e| sum + biased[e]);
    let sums: Vec<f32> = memory::collect((0..a.groups).map(sum));
    best(&sums, 0..a.groups, a.group_topk).into_iter().flat_map(group).collect()
}

/// # Safety
/// The arguments are valid, logits have the dtype `T`, probabilities `P`.
unsafe fn forward_as<T: Element, P: Element>(a: &RouterForwardArgs) {
    let experts = a.experts;
    let rows = Rows { routing: a.routing, experts, topk: a.topk };
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (logits, probs, intermediate, cutoff, bias) = unsafe {
        let numel = a.tokens * experts;
        let bias = dispatch!(a.bias_dtype, [F32, F16, BF16], B => {
            Buf::<B>::optional(a.expert_bias, experts).map(|bias| floats(bias.slice(0, experts)))
        }, else None);
        (
            Buf::<T>::new(a.logits, numel),
            Buf::<P>::new(a.probs, numel),
            Buf::<f32>::new(a.intermediate.cast(), numel),
            Buf::<f32>::optional(a.cutoff.cast(), a.tokens),
            bias,
        )
    };
    let (bias, a) = (bias.as_deref(), Shared(a));
    parallel(a.get().tokens).with_min_len(4096 / experts.min(4096)).for_each(|token| {
        let a = a.get();
        // SAFETY: each token is the task of one thread.
        let (logits, probs, intermediate) = unsafe {
            (
                floats(logits.slice(token * experts, experts)),
                probs.slice_mut(token * experts, experts),
                intermediate.slice_mut(token * experts, experts),
            )
        };
        let mut scores = logits.clone();
        match a.score {
            NVTEX_ROUTER_SIGMOID => scores.iter_mut().for_each(|x| *x = sigmoid(*x)),
            NVTEX_ROUTER_SQRTSOFTPLUS => scores.iter_mut().for_each(|x| *x = sqrtsoftplus(*x)),
            NVTEX_ROUTER_SOFTMAX if a.pre_softmax => softmax(&mut scores),
            NVTEX_ROUTER_SOFTMAX => {}
        }
        let late_softmax = a.score == NVTEX_ROUTER_SOFTMAX && !a.pre_softmax;
        match a.score {
            NVTEX_ROUTER_SQRTSOFTPLUS => intermediate.copy_from_slice(&logits),
            _ if late_softmax => intermediate.fill(f32::NEG_INFINITY),
            _ => intermediate.copy_from_slice(&scores),
        }
        if a.all && a.score != NVTEX_ROUTER_SOFTMAX {
            normalize(&mut scores);
        }
        let mut biased = scores.clone();
        if let Some(bias) = bias {
            biased.iter_mut().zip(bias).for_each(|(score, &bias)| *score += bias);
        }
        let count = a.topk + usize::from(cutoff.is_some());
        let mut chosen = best(&biased, candidates(a, &biased).into_iter(), count);
        if let Some(cutoff) = cutoff {
            let dropped = chosen.pop().expect("one more than the top");
            // SAFETY: there is a cutoff for each token, which is the task of one thread.
            let row = unsafe { cutoff.slice_mut(token, 1) };
            row[0] = biased[dropped];
        }
        // SAFETY: there is a row for each token, which is the task of one thread.
        unsafe { rows.write(token, &chosen) };
        if a.all {
            probs.iter_mut().zip(&scores).for_each(|(p, &score)| *p = P::from_f32(score));
            return;
        }
        let mut weights: Vec<f32> = chosen.iter().map(|&e| scores[e]).collect();
        if late_softmax {
            softmax(&mut weights);
            chosen.iter().zip(&weights).for_each(|(&e, &weight)| intermediate[e] = weight);
        } else if a.score != NVTEX_ROUTER_SOFTMAX && a.topk > 1 {
            normalize(&mut weights);
        }
        probs.fill(P::from_f32(0.0));
        for (&e, &weight) in chosen.iter().zip(&weights) {
            probs[e] = P::from_f32(a.scaling_factor * weight);
        }
    });
}

/// Arguments for many threads.
struct Shared<'a, A>(&'a A);

// SAFETY: read only; what lies behind the addresses is split by token.
unsafe impl<A> Sync for Shared<'_, A> {}

impl<A> Shared<'_, A> {
    fn get(&self) -> &A {
        self.0
    }
}

pub(crate) unsafe extern "C-unwind" fn router_backward(
    args: *const RouterBackwardArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the caller vouches for the arguments, and `T` is the dtype of the gradients.
        unsafe {
            if a.grad_dtype == kNVTEFloat32 {
                backward_as::<T, F32>(a)
            } else {
                backward_as::<T, T>(a)
            }
        };
        Outcome::OK
    }, else Outcome::unimplemented("router: dtype"))
}

/// # Safety
/// The arguments are valid, gradients of the logits have the dtype `T`, those of the
/// probabilities `G`.
unsafe fn backward_as<T: Element, G: Element>(a: &RouterBackwardArgs) {
    let experts = a.experts;
    let rows = Rows { routing: a.routing, experts, topk: a.topk };
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (intermediate, grad, output) = unsafe {
        let numel = a.tokens * experts;
        (
            Buf::<f32>::new(a.intermediate.cast(), numel),
            Buf::<G>::new(a.grad, numel),
            Buf::<T>::new(a.grad_logits, numel),
        )
    };
    let a = Shared(a);
    parallel(a.get().tokens).with_min_len(4096 / experts.min(4096)).for_each(|token| {
        let a = a.get();
        // SAFETY: each token is the task of one thread.
        let (values, grad, output, routed) = unsafe {
            (
                intermediate.slice(token * experts, experts),
                grad.slice(token * experts, experts),
                output.slice_mut(token * experts, experts),
                if a.all { memory::collect(0..experts) } else { rows.read(token) },
            )
        };
        let y = |e: usize| match a.score {
            NVTEX_ROUTER_SQRTSOFTPLUS => sqrtsoftplus(values[e]),
            _ => values[e],
        };
        let mut g = memory::zeros::<f32>(experts);
        routed.iter().for_each(|&e| g[e] = grad[e].to_f32() * a.scaling_factor);
        let dot: f64 = routed.iter().map(|&e| f64::from(g[e]) * f64::from(y(e))).sum();
        let mut dx = memory::zeros::<f32>(experts);
        if a.score == NVTEX_ROUTER_SOFTMAX {
            let row = |e: usize| y(e) * (g[e] - dot as f32);
            match a.pre_softmax {
                true => dx.iter_mut().enumerate().for_each(|(e, dx)| *dx = row(e)),
                false => routed.iter().for_each(|&e| dx[e] = row(e)),
            }
        } else {
            if a.topk > 1 || a.all {
                let sum = routed.iter().map(|&e| f64::from(y(e))).sum::<f64>() + EPSILON;
                for &e in &routed {
                    g[e] = (f64::from(g[e]) / sum - dot / (sum * sum)) as f32;
                }
            }
            for &e in &routed {
                dx[e] = match a.score {
                    NVTEX_ROUTER_SIGMOID => g[e] * y(e) * (1.0 - y(e)),
                    _ => {
                        let slope = if values[e] > 20.0 { 1.0 } else { sigmoid(values[e]) };
                        g[e] * (slope / (2.0 * y(e) + EPSILON as f32))
                    }
                };
            }
        }
        output.iter_mut().zip(&dx).for_each(|(output, &dx)| *output = T::from_f32(dx));
    });
}

pub(crate) unsafe extern "C-unwind" fn router_histogram(
    args: *const RouterHistogramArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let (experts, bins) = (a.experts, a.bins);
    // SAFETY: the tensors have these sizes, and the histogram shares no memory with them.
    let (scores, cutoff, bounds, histogram) = unsafe {
        (
            Buf::<f32>::new(a.scores.cast(), a.tokens * experts).slice(0, a.tokens * experts),
            Buf::<f32>::new(a.cutoff.cast(), a.tokens).slice(0, a.tokens),
            Buf::<f32>::new(a.bin_bounds.cast(), 2).slice(0, 2),
            Buf::<i32>::new(a.histogram.cast(), experts * bins).slice_mut(0, experts * bins),
        )
    };
    let (lower, scale) = (bounds[0], bins as f32 / (bounds[1] - bounds[0]));
    chunks_mut(histogram, bins).for_each(|(expert, counts)| {
        for (token, cutoff) in cutoff.iter().enumerate() {
            let distance = ((cutoff - scores[token * experts + expert]) - lower) * scale;
            // The conversion saturates, and NaN becomes 0.
            let bin = (distance.floor() as i32).clamp(0, (bins - 1).min(i32::MAX as usize) as i32);
            counts[bin as usize] = counts[bin as usize].wrapping_add(1);
        }
    });
    Outcome::OK
}

/// # Safety
/// `counts` points to `cols` numbers of the dtype.
unsafe fn counts(counts: *const c_void, dtype: NVTEDType, cols: usize) -> Vec<f32> {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        match dtype {
            NVTEDType::kNVTEInt16 => memory::collect(
                Buf::<i16>::new(counts, cols).slice(0, cols).iter().map(|&n| f32::from(n)),
            ),
            NVTEDType::kNVTEInt32 => memory::collect(
                Buf::<i32>::new(counts, cols).slice(0, cols).iter().map(|&n| n as f32),
            ),
            NVTEDType::kNVTEInt64 => memory::collect(
                Buf::<i64>::new(counts, cols).slice(0, cols).iter().map(|&n| n as f32),
            ),
            NVTEDType::kNVTEBFloat16 => floats(Buf::<BF16>::new(counts, cols).slice(0, cols)),
            _ => memory::collect(Buf::<f32>::new(counts, cols).slice(0, cols).iter().copied()),
        }
    }
}

pub(crate) unsafe extern "C-unwind" fn aux_loss(
    args: *const AuxLossArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the caller vouches for the arguments, and `T` is the dtype of the probabilities.
        unsafe {
            let total = load(a.device_total).map_or(a.total_tokens, |total| total as f32);
            let c = a.experts * a.coeff / a.topk / total / total;
            let counts = counts(a.counts, a.counts_dtype, a.cols);
            let probs = Buf::<T>::new(a.probs, a.rows * a.cols).slice(0, a.rows * a.cols);
            let (rows, cols) = (a.rows, a.cols);
            let product = |(p, &n): (&T, &f32)| f64::from(p.to_f32()) * f64::from(n);
            let sums = parallel(rows).map(|row| -> f64 {
                probs[row * cols..][..cols].iter().zip(&counts).map(product).sum()
            });
            let loss = (f64::from(c) * sums.iter().sum::<f64>()) as f32;
            a.loss.cast::<T>().write(T::from_f32(loss));
            a.constants.write(c);
            a.constants.add(1).write(loss);
        }
        Outcome::OK
    }, else Outcome::unimplemented("aux_loss: dtype"))
}

pub(crate) unsafe extern "C-unwind" fn aux_loss_backward(
    args: *const AuxLossBackwardArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the caller vouches for the arguments, and `T` is the dtype of the gradients.
        let (counts, c, grad, output) = unsafe {
            let numel = a.rows * a.cols;
            (
                counts(a.counts, a.counts_dtype, a.cols),
                *a.constants,
                a.grad_loss.cast::<T>().read().to_f32(),
                Buf::<T>::new(a.grad_probs, numel).slice_mut(0, numel),
            )
        };
        let row: Vec<T> = memory::collect(counts.iter().map(|&n| T::from_f32((c * n) * grad)));
        chunks_mut(output, a.cols).for_each(|(_, output)| output.copy_from_slice(&row));
        Outcome::OK
    }, else Outcome::unimplemented("aux_loss_backward: dtype"))
}

pub(crate) unsafe extern "C-unwind" fn router_weights(
    args: *const RouterWeightsArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let (experts, topk) = (a.experts, a.topk);
    // SAFETY: the tensors have these sizes, and what is written shares no memory with the others.
    let (probs, weights, indices) = unsafe {
        (
            Buf::<f32>::new(a.probs.cast(), a.tokens * experts).slice_mut(0, a.tokens * experts),
            Buf::<f32>::new(a.weights.cast(), a.tokens * topk).slice_mut(0, a.tokens * topk),
            Buf::<i32>::new(a.indices.cast(), a.tokens * topk).slice(0, a.tokens * topk),
        )
    };
    if a.backward {
        probs.fill(0.0);
    }
    for (i, (weight, &index)) in weights.iter_mut().zip(indices).enumerate() {
        let expert = usize::try_from(index).ok().filter(|&expert| expert < experts);
        let prob = expert.map(|expert| &mut probs[i / topk * experts + expert]);
        match (prob, a.backward) {
            (Some(prob), true) => *prob = *weight,
            (prob, false) => *weight = prob.map_or(0.0, |prob| *prob),
            (None, true) => {}
        }
    }
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn router_z_loss(
    args: *const RouterZLossArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let numel = a.tokens * a.experts;
    // SAFETY: the tensors have these sizes, and what is written shares no memory with the others.
    let (logits, terms, grads, grad) = unsafe {
        (
            Buf::<f32>::new(a.logits.cast(), numel).slice(0, numel),
            Buf::<f32>::optional(a.terms.cast(), a.tokens),
            Buf::<f32>::optional(a.grad_logits.cast(), numel),
            load(a.grad_loss).unwrap_or(0.0f32),
        )
    };
    for (t, row) in logits.chunks_exact(a.experts).enumerate() {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&x| f64::from(x - most).exp()).sum();
        let log = f64::from(most) + sum.ln();
        match &grads {
            None => {
                if let Some(terms) = &terms {
                    // SAFETY: there is a term for each token.
                    unsafe { terms.slice_mut(t, 1)[0] = (f64::from(a.factor) * log * log) as f32 };
                }
            }
            Some(grads) => {
                // SAFETY: each row is that of one token.
                let grads = unsafe { grads.slice_mut(t * a.experts, a.experts) };
                let weight = 2.0 * f64::from(a.factor) * f64::from(grad) * log;
                for (grad, &x) in grads.iter_mut().zip(row) {
                    *grad = (f64::from(*grad) + weight * (f64::from(x) - log).exp()) as f32;
                }
            }
        }
    }
    Outcome::OK
}
