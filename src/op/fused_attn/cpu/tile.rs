//! Arithmetic on tiles of scores: products, exponentials, casts.

use super::attention::NEVER;
use crate::backend::cpu::vectorized;
use crate::backend::memory::resize;
use crate::numeric::{Element, amax_bits, dispatch, exp};
use crate::op::gemm::cpu::Product;
use crate::types::NVTEDType;
use std::ops::Range;

/// `len` floats of a scratch buffer.
pub(super) fn floats(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        resize(buffer, len);
    }
    &mut buffer[..len]
}

/// A matrix with the strides of its rows and columns.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a>(pub(super) &'a [f32], pub(super) usize, pub(super) usize);

/// What becomes of a product.
#[derive(Clone, Copy)]
pub(super) enum Update {
    /// It is multiplied by this number, and written.
    Set(f32),
    Add,
}

/// `to = alpha a b`, or `to += a b`; `to` is `[m, n]`.
pub(super) fn product(
    to: &mut [f32],
    (m, n, k): (usize, usize, usize),
    a: Matrix,
    b: Matrix,
    update: Update,
) {
    let covers = |x: &Matrix, rows: usize, cols: usize| {
        rows * cols == 0 || (rows - 1) * x.1 + (cols - 1) * x.2 < x.0.len()
    };
    assert!(to.len() >= m * n && covers(&a, m, k) && covers(&b, k, n), "sizes of a product");
    // SAFETY: the matrices lie in the slices.
    unsafe {
        let product = Product {
            dims: (m, n, k),
            d: to.as_mut_ptr(),
            d_strides: (n, 1),
            a: (a.0.as_ptr(), a.1, a.2),
            b: (b.0.as_ptr(), b.1, b.2),
            alpha: if let Update::Set(alpha) = update { alpha } else { 1.0 },
            beta: if let Update::Add = update { 1.0 } else { 0.0 },
        };
        product.run_here();
    }
}

/// `to += weights x`: `to` is `[m, width]`, x `[n, width]`. Row i of the weights counts in `seen(i)` and is 0
/// elsewhere. Rows of x that hold a NaN or an infinity do not reach the rows of `to` that do not see them,
/// although 0 times them is NaN.
pub(super) fn product_of_seen(
    to: &mut [f32],
    (m, width, n): (usize, usize, usize),
    weights: Matrix,
    x: &[f32],
    seen: impl Fn(usize) -> Range<usize>,
) {
    let x = &x[..n * width];
    if (0..m).all(|i| seen(i) == (0..n)) || x.iter().all(|x| x.is_finite()) {
        return product(to, (m, width, n), weights, Matrix(x, width, 1), Update::Add);
    }
    let Matrix(values, row, column) = weights;
    for (i, to) in to.chunks_exact_mut(width).take(m).enumerate() {
        for k in seen(i) {
            let weight = values[i * row + k * column];
            for (to, &x) in to.iter_mut().zip(&x[k * width..(k + 1) * width]) {
                *to += weight * x;
            }
        }
    }
}

pub(super) const LANES: usize = 16;

vectorized! {
    /// The largest value; NaN are ignored.
    pub(super) fn largest(x: &[f32]) -> f32 {
        let mut lanes = [NEVER; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = if x > *lane { x } else { *lane };
            }
        }
        lanes.iter().chain(rest).fold(NEVER, |most, &x| most.max(x))
    }
}

vectorized! {
    /// `x = exp(x - shift)`, and the sum.
    pub(super) fn exponentials(x: &mut [f32], shift: f32) -> f32 {
        let mut lanes = [0.0; LANES];
        let (chunks, rest) = x.as_chunks_mut::<LANES>();
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *x = exp(*x - shift);
                *lane += *x;
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *x = exp(*x - shift);
            *lane += *x;
        }
        lanes.iter().sum()
    }
}

vectorized! {
    pub(super) fn multiply(x: &mut [f32], factor: f32) {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

vectorized! {
    pub(super) fn add(x: &mut [f32], added: &[f32]) {
        x.iter_mut().zip(added).for_each(|(x, &added)| *x += added);
    }
}

vectorized! {
    /// `x += slope (first + i)`
    pub(super) fn add_slope(x: &mut [f32], slope: f32, first: i64) {
        for (i, x) in x.iter_mut().enumerate() {
            *x += slope * (first + i as i64) as f32;
        }
    }
}

vectorized! {
    /// Probabilities p to z, and the gradients of z to those of the scores.
    pub(super) fn gradients(p: &mut [f32], dp: &mut [f32], weights: &[f32], factor: f32, d: f32) {
        for ((p, dp), &weight) in p.iter_mut().zip(dp).zip(weights) {
            let kept = if weight == 0.0 { 0.0 } else { *dp * factor * weight };
            *dp = if *p == 0.0 { 0.0 } else { *p * (kept - d) };
            *p = if weight == 0.0 { 0.0 } else { *p * weight };
        }
    }
}

vectorized! {
    /// `x = float(cast(x factor))` by the type of `like`, and the largest bits of |x| before.
    pub(super) fn round_like<T: Element>(like: T, x: &mut [f32], factor: f32) -> u32 {
        let _ = like;
        x.iter_mut().fold(0, |amax, x| {
            let bits = amax_bits(*x);
            *x = T::from_f32(*x * factor).to_f32();
            amax.max(bits)
        })
    }
}

pub(super) fn round(dtype: NVTEDType, x: &mut [f32], factor: f32) -> u32 {
    dispatch!(dtype, [E4M3, E5M2], T => round_like(T::default(), x, factor), else 0)
}

vectorized! {
    /// Multiplies by `factor`, then by `scale`; the largest bits between.
    pub(super) fn finish(x: &mut [f32], factor: f32, scale: f32) -> u32 {
        x.iter_mut().fold(0, |amax, x| {
            let result = *x * factor;
            *x = result * scale;
            amax.max(amax_bits(result))
        })
    }
}

/// `most + ln sum`; -inf if the sum is 0.
pub(super) fn log_sum(most: f32, sum: f64) -> f32 {
    if sum == 0.0 { NEVER } else { most + sum.ln() as f32 }
}
