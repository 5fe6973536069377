//! Reference of what an optimizer does beside Adam and gradient descent: the numbers of a step, and Muon.
#![allow(unsafe_code)]

use super::cpu::{BLOCK, Data, for_each, tensors};
use crate::backend::args::*;
use crate::backend::buf::load;
use crate::types::{NVTEDType::*, cudaStream_t};

fn scheduled_rate(a: &StepNumbersArgs, base: f32, before: i32) -> f32 {
    let (rate, steps, warmup) = (f64::from(base), f64::from(before), f64::from(a.warmup_steps));
    if before < a.warmup_steps {
        return (rate * (steps + 1.0) / (warmup + 1.0)) as f32;
    }
    let decay = f64::from(a.total_steps) - warmup;
    let p = if steps - warmup < decay { (steps - warmup) / decay } else { 1.0 };
    let left = match a.schedule {
        RateRule::NVTEX_RATE_CONSTANT => return base,
        RateRule::NVTEX_RATE_LINEAR => 1.0 - p,
        RateRule::NVTEX_RATE_COSINE => 0.5 * (1.0 + (std::f64::consts::PI * p).cos()),
    };
    let last = f64::from(a.last);
    (rate * (last + (1.0 - last) * left)) as f32
}

pub(crate) unsafe extern "C-unwind" fn step_numbers(
    args: *const StepNumbersArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let (a, mut n) = unsafe { (&*args, (*args).numbers.read()) };
    let square = |i: usize| {
        // SAFETY: there are that many norms.
        let norm = f64::from(unsafe { a.norms.add(i).read() });
        norm * norm
    };
    let sum = (0..a.num_norms).fold(0.0, |sum, i| sum + square(i));
    let unscale = a.factor / n.loss_scale;
    n.norm = sum.sqrt() as f32 * unscale;
    n.grad_scale = unscale;
    if a.max_norm > 0.0 {
        let clip = a.max_norm / (n.norm + 1e-6);
        if clip < 1.0 {
            n.grad_scale = unscale * clip;
        }
    }
    let skip = n.non_finite != 0 || !n.norm.is_finite();
    (n.skip, n.non_finite) = (i32::from(skip), 0);
    let before = n.step;
    if skip {
        n.skipped += 1;
        n.good_steps = 0;
        if a.growth_interval > 0 {
            n.loss_scale = a.least_scale.max(n.loss_scale * a.backoff);
        }
    } else {
        n.step += 1;
        n.good_steps += 1;
        if a.growth_interval > 0 && n.good_steps >= a.growth_interval {
            n.loss_scale = a.most_scale.min(n.loss_scale * a.growth);
            n.good_steps = 0;
        }
    }
    n.rate = scheduled_rate(a, n.base_rate, before);
    // SAFETY: the arguments have the numbers, and that many factors and rates.
    unsafe {
        a.numbers.write(n);
        (0..a.num_rates).for_each(|i| a.rates.add(i).write(n.rate * a.factors.add(i).read()));
    }
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn muon(args: *const MuonArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let (a, tensors) = unsafe { (&*args, tensors((*args).tensors, (*args).num_tensors)) };
    match a.part {
        MuonPart::NVTEX_MUON_MOMENTUM => {
            // SAFETY: the numbers on the device are there.
            let (noop, scale) = unsafe { (load(a.noop), load(a.grad_scale).unwrap_or(1.0)) };
            if noop == Some(1) {
                return Outcome::OK;
            }
            for_each(&Data::of(a, tensors), |data, range| {
                let a = data.args;
                let [mut g, mut b] = [[0.0; BLOCK]; 2];
                // SAFETY: the arguments have these buffers and dtypes; a range belongs to one task.
                unsafe {
                    data.load(0, a.grad_dtype, range.clone(), &mut g);
                    data.load(1, kNVTEFloat32, range.clone(), &mut b);
                    for (g, b) in g.iter_mut().zip(&mut b) {
                        let scaled = *g * scale;
                        *b = a.momentum * *b + scaled;
                        *g = if a.nesterov { scaled + a.momentum * *b } else { *b };
                    }
                    data.store(1, kNVTEFloat32, range.clone(), &b);
                    data.store(2, kNVTEBFloat16, range, &g);
                }
                0
            });
        }
        MuonPart::NVTEX_MUON_NORMALIZE => {
            for (t, data) in Data::of(a, tensors).into_iter().enumerate() {
                // SAFETY: there is a norm for each tensor.
                let divisor = unsafe { a.norms.add(t).read() } + a.epsilon;
                for_each(&[data], |data, range| {
                    let mut u = [0.0; BLOCK];
                    // SAFETY: the arguments have this buffer; a range belongs to one task.
                    unsafe {
                        data.load(0, kNVTEBFloat16, range.clone(), &mut u);
                        u.iter_mut().for_each(|u| *u /= divisor);
                        data.store(0, kNVTEBFloat16, range, &u);
                    }
                    0
                });
            }
        }
    }
    Outcome::OK
}
