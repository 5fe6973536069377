//! The functions of fused casts (`Function` of `args/function.rs`), bit for bit as the CUDA kernels
//! (`kernels/common/function.cuh`) compute them: float32, fused multiply-adds where they are
//! written, a polynomial for the exponential, an IEEE division.
// Constants are as long as the kernels have them; `x - x` is NaN for NaN and infinities.
#![allow(clippy::approx_constant, clippy::eq_op, clippy::excessive_precision)]

use crate::backend::args::{Function, Fusion};

const LOG2_E: f32 = 1.442_695;

/// `1 / (1 + 2^(a b))` for `a b` in [-125, 125].
#[inline(always)]
fn logistic2(a: f32, b: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer n, whose exponent bits 127 more make 2^n.
    const SHIFT: f32 = 12_582_912.0 + 127.0;
    let shifted = a.mul_add(b, SHIFT);
    let f = a.mul_add(b, SHIFT - shifted);
    let p = 0.001_326_471_5f32;
    let p = p.mul_add(f, 0.009_671_513);
    let p = p.mul_add(f, 0.055_507_34);
    let p = p.mul_add(f, 0.240_222_42);
    let p = p.mul_add(f, 0.693_147);
    let p = p.mul_add(f, 1.0);
    1.0 / p.mul_add(f32::from_bits(shifted.to_bits() << 23), 1.0)
}

/// `max(x, least)`, NaN for NaN.
#[inline(always)]
fn at_least(x: f32, least: f32) -> f32 {
    if x < least { least } else { x }
}

/// `min(x, most)`, NaN for NaN.
#[inline(always)]
fn at_most(x: f32, most: f32) -> f32 {
    if x > most { most } else { x }
}

/// A function f, and G for the linear half of its gated form, with their derivatives.
pub(crate) trait Curve: Copy + Send + Sync {
    fn value(self, x: f32) -> f32;
    fn slope(self, x: f32) -> f32;
    #[inline(always)]
    fn gate(self, x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn gate_slope(self, _: f32) -> f32 {
        1.0
    }
}

/// `x / (1 + exp(-z))`, `z = z1 x + z3 x^3`
#[derive(Clone, Copy)]
pub(crate) struct SigmoidLinear {
    /// `-log2(e)` times z1 and z3: what the power of two takes.
    t1: f32,
    t3: f32,
    /// The derivative of z: `d1 + d3 x^2`.
    d1: f32,
    d3: f32,
    /// From here on, on either side, the function is 0 or x.
    far: f32,
}

impl SigmoidLinear {
    pub(crate) const GELU: Self =
        Self { t1: -2.302_208_2, t3: -0.102_943_25, d1: 1.595_769_2, d3: 0.214_064_46, far: 9.9 };
    pub(crate) const SILU: Self = Self::linear(1.0);
    const QGELU: Self = Self::linear(1.702);

    const fn linear(z1: f32) -> Self {
        Self { t1: z1 * -LOG2_E, t3: 0.0, d1: z1, d3: 0.0, far: 86.0 / z1.abs() }
    }

    /// The sigmoid at x, and x where it is not far.
    #[inline(always)]
    fn sigmoid(self, x: f32) -> (f32, f32) {
        let near = at_most(at_least(x, -self.far), self.far);
        (logistic2(near, self.t3.mul_add(near * near, self.t1)), near)
    }
}

impl Curve for SigmoidLinear {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        at_least(x, -self.far) * self.sigmoid(x).0
    }
    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let (s, near) = self.sigmoid(x);
        (near * self.d3.mul_add(near * near, self.d1)).mul_add((-s).mul_add(s, s), s)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Sigmoid;

impl Curve for Sigmoid {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        let (s, near) = SigmoidLinear::SILU.sigmoid(x);
        s + (near - near) // NaN for NaN
    }
    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let (s, near) = SigmoidLinear::SILU.sigmoid(x);
        (-s).mul_add(s, s) + (near - near)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Relu;

impl Curve for Relu {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        if x > 0.0 { x } else { 0.0 }
    }
    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        if x > 0.0 { 1.0 } else { 0.0 }
    }
}

/// The square of ReLU.
#[derive(Clone, Copy)]
pub(crate) struct Srelu;

impl Curve for Srelu {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        if x > 0.0 { x * x } else { 0.0 }
    }
    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        if x > 0.0 { 2.0 * x } else { 0.0 }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct ClampedSilu {
    silu: SigmoidLinear,
    limit: f32,
    offset: f32,
}

impl Curve for ClampedSilu {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        self.silu.value(if x < self.limit { x } else { self.limit })
    }
    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let slope = self.silu.slope(if x < self.limit { x } else { self.limit });
        if x <= self.limit { slope } else { 0.0 }
    }
    #[inline(always)]
    fn gate(self, x: f32) -> f32 {
        let x = if x > -self.limit { x } else { -self.limit };
        (if x < self.limit { x } else { self.limit }) + self.offset
    }
    #[inline(always)]
    fn gate_slope(self, x: f32) -> f32 {
        if -self.limit <= x && x <= self.limit { 1.0 } else { 0.0 }
    }
}

/// `tanh(y)`
#[inline(always)]
fn tanh(y: f32) -> f32 {
    let square = y * y;
    let p = (-0.005_659_989f32).mul_add(square, 0.020_590_989);
    let p = p.mul_add(square, -0.053_721_067);
    let p = p.mul_add(square, 0.133_311_27);
    let p = p.mul_add(square, -0.333_332_6);
    let p = p.mul_add(square, 1.0);
    let near = at_most(at_least(y, -43.0), 43.0);
    let far = 2.0f32.mul_add(logistic2(near, -2.0 * LOG2_E), -1.0);
    if square < 0.390_625 { y * p } else { far + (near - near) }
}

#[derive(Clone, Copy)]
pub(crate) struct Situ {
    a: f32,
    b: f32,
}

impl Curve for Situ {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        self.a * tanh(x / self.a) * Sigmoid.value(x)
    }
    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let (t, s) = (tanh(x / self.a), Sigmoid.value(x));
        (-t).mul_add(t, 1.0) * s + self.a * t * Sigmoid.slope(x)
    }
    #[inline(always)]
    fn gate(self, x: f32) -> f32 {
        self.b * tanh(x / self.b)
    }
    #[inline(always)]
    fn gate_slope(self, x: f32) -> f32 {
        let t = tanh(x / self.b);
        (-t).mul_add(t, 1.0)
    }
}

/// `x`
#[derive(Clone, Copy)]
pub(crate) struct Identity;

impl Curve for Identity {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn slope(self, _: f32) -> f32 {
        1.0
    }
}

/// What to do with the function of a fusion, once its type is known.
pub(crate) trait WithCurve {
    type Output;
    fn call<C: Curve>(self, curve: C) -> Self::Output;
}

pub(crate) fn with_curve<W: WithCurve>(fusion: &Fusion, work: W) -> W::Output {
    let &Fusion { a, b, c, .. } = fusion;
    match fusion.function {
        Function::NVTEX_IDENTITY => work.call(Identity),
        Function::NVTEX_GELU => work.call(SigmoidLinear::GELU),
        Function::NVTEX_SILU => work.call(SigmoidLinear::SILU),
        Function::NVTEX_QGELU => work.call(SigmoidLinear::QGELU),
        Function::NVTEX_RELU => work.call(Relu),
        Function::NVTEX_SRELU => work.call(Srelu),
        Function::NVTEX_SIGMOID => work.call(Sigmoid),
        Function::NVTEX_CLAMPED_SILU => {
            work.call(ClampedSilu { silu: SigmoidLinear::linear(b), limit: a, offset: c })
        }
        Function::NVTEX_SITU => work.call(Situ { a, b }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f32, want: f64, x: f32, what: &str) {
        let error = (got as f64 - want).abs();
        assert!(error <= 1e-6 + 3e-6 * want.abs(), "{what}({x:e}): {got:e}, not {want:e}");
    }

    /// Values of the curve against float64, its slopes against theirs, over all bfloat16 up to 1e4.
    fn check(
        curve: impl Curve,
        what: &str,
        value: impl Fn(f64) -> f64,
        slope: impl Fn(f64) -> f64,
    ) {
        for bits in 0..=u16::MAX {
            let x = f32::from_bits((bits as u32) << 16);
            if x.is_nan() {
                continue;
            }
            if x.abs() < 1e4 {
                close(curve.value(x), value(x as f64), x, what);
                close(curve.slope(x), slope(x as f64), x, what);
            }
        }
    }

    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn curves_follow_float64() {
        let (c1, c3) = (2.0 * 0.79788456f32 as f64, 2.0 * 0.03567741f32 as f64);
        let z = |x: f64| c1 * x + c3 * x * x * x;
        let gelu_slope = |x: f64| {
            let s = sigmoid(z(x));
            if x.abs() > 30.0 { s } else { s + x * s * (1.0 - s) * (c1 + 3.0 * c3 * x * x) }
        };
        check(SigmoidLinear::GELU, "gelu", |x| x * sigmoid(z(x)), gelu_slope);
        for (curve, k, what) in
            [(SigmoidLinear::SILU, 1.0, "silu"), (SigmoidLinear::QGELU, 1.702f32 as f64, "qgelu")]
        {
            let slope = |x: f64| {
                let s = sigmoid(k * x);
                s + k * x * s * (1.0 - s)
            };
            check(curve, what, |x| x * sigmoid(k * x), slope);
        }
        check(Sigmoid, "sigmoid", sigmoid, |x| sigmoid(x) * (1.0 - sigmoid(x)));
        check(Relu, "relu", |x| x.max(0.0), |x| f64::from(x > 0.0));
        check(Srelu, "srelu", |x| x.max(0.0).powi(2), |x| (2.0 * x).max(0.0));
        let (a, b) = (4.0f32, 25.0f32);
        let (wide, up) = (4.0, 25.0);
        let slope = |x: f64| {
            let (t, s) = ((x / wide).tanh(), sigmoid(x));
            (1.0 - t * t) * s + wide * t * s * (1.0 - s)
        };
        check(Situ { a, b }, "situ", |x| wide * (x / wide).tanh() * sigmoid(x), slope);
        for i in -1000..1000 {
            let x = i as f32 / 8.0;
            let t = (x as f64 / up).tanh();
            close(Situ { a, b }.gate(x), up * t, x, "situ's gate");
            close(Situ { a, b }.gate_slope(x), 1.0 - t * t, x, "situ's gate");
        }
    }

    #[test]
    fn clamps_follow_their_definition() {
        let (limit, alpha, offset) = (0.5f32, 1.702f32, 1.0f32);
        let curve = ClampedSilu { silu: SigmoidLinear::linear(alpha), limit, offset };
        for i in -1000..1000 {
            let x = i as f32 / 256.0;
            let (m, k) = (x.min(limit) as f64, alpha as f64);
            let s = sigmoid(k * m);
            close(curve.value(x), m * s, x, "clamped silu");
            let slope = if x <= limit { s + k * m * s * (1.0 - s) } else { 0.0 };
            close(curve.slope(x), slope, x, "clamped silu");
            assert_eq!(curve.gate(x), x.clamp(-limit, limit) + offset);
            assert_eq!(curve.gate_slope(x), if x.abs() <= limit { 1.0 } else { 0.0 });
        }
        assert_eq!([curve.gate(f32::NAN), curve.gate_slope(f32::NAN)], [-0.5 + 1.0, 0.0]);
        assert_eq!(curve.value(f32::NAN), curve.value(0.5));
        assert_eq!(curve.slope(f32::NAN), 0.0);
    }

    #[test]
    fn special_values() {
        for curve in [SigmoidLinear::GELU, SigmoidLinear::SILU, SigmoidLinear::QGELU] {
            assert!(curve.value(f32::NAN).is_nan() && curve.slope(f32::NAN).is_nan());
            assert_eq!(
                [curve.value(f32::INFINITY), curve.slope(f32::INFINITY)],
                [f32::INFINITY, 1.0]
            );
            assert_eq!([curve.value(1e30), curve.value(0.0), curve.slope(0.0)], [1e30, 0.0, 0.5]);
            assert!(
                curve.value(-1e30).abs() < 1e-30 && curve.value(f32::NEG_INFINITY).abs() < 1e-30
            );
            assert!(curve.slope(-1e30).abs() < 1e-30);
        }
        assert!(Sigmoid.value(f32::NAN).is_nan() && Sigmoid.slope(f32::NAN).is_nan());
        assert_eq!([Sigmoid.value(f32::INFINITY), Sigmoid.value(0.0)], [1.0, 0.5]);
        assert_eq!([Relu.value(f32::NAN), Srelu.value(f32::NAN), Srelu.slope(f32::NAN)], [0.0; 3]);
        assert!(tanh(f32::NAN).is_nan());
        assert_eq!([tanh(f32::INFINITY), tanh(-1e9), tanh(-0.0)], [1.0, -1.0, -0.0]);
    }
}
