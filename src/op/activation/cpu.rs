//! Reference of activations with scales of the rows (spec pointwise, section 5).
#![allow(unsafe_code)]

use crate::backend::args::{Fusion, Outcome, ScaledActivationArgs};
use crate::backend::buf::Buf;
use crate::backend::cpu::vectorized;
use crate::backend::memory::zeros;
use crate::backend::pool::parallel;
use crate::function::{Curve, WithCurve, with_curve};
use crate::numeric::{Element, dispatch};
use crate::types::{NVTEDType, cudaStream_t};
use std::ffi::c_void;

/// Sums that a row's products are added to.
const SUMS: usize = 1024;

pub(crate) unsafe extern "C-unwind" fn scaled_activation(
    args: *const ScaledActivationArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let args = unsafe { &*args };
    let &ScaledActivationArgs { function, a, b, c, .. } = args;
    with_curve(&Fusion { function, a, b, c, ..Fusion::NONE }, Rows(args));
    Outcome::OK
}

/// Elements of one of the three high-precision types.
#[derive(Clone, Copy)]
struct Floats {
    ptr: *mut c_void,
    len: usize,
    dtype: NVTEDType,
}

// SAFETY: an address; what threads do with it is a promise to the methods below.
unsafe impl Send for Floats {}
// SAFETY: an address; what threads do with it is a promise to the methods below.
unsafe impl Sync for Floats {}

impl Floats {
    fn new(ptr: *const c_void, len: usize, dtype: NVTEDType) -> Self {
        Self { ptr: ptr.cast_mut(), len, dtype }
    }

    /// # Safety
    /// The elements are there, and nobody writes to the range.
    unsafe fn read(self, start: usize, to: &mut [f32]) {
        dispatch!(self.dtype, [F32, F16, BF16], T => {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let from = unsafe { Buf::<T>::new(self.ptr, self.len).slice(start, to.len()) };
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
        }, else unreachable!("a dtype of the arguments"));
    }

    /// # Safety
    /// The elements are there, and nobody else uses the range.
    unsafe fn write(self, start: usize, from: &[f32]) {
        dispatch!(self.dtype, [F32, F16, BF16], T => {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let to = unsafe { Buf::<T>::new(self.ptr, self.len).slice_mut(start, from.len()) };
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = T::from_f32(from));
        }, else unreachable!("a dtype of the arguments"));
    }
}

struct Rows<'a>(&'a ScaledActivationArgs);

impl WithCurve for Rows<'_> {
    type Output = ();

    fn call<C: Curve>(self, curve: C) {
        let &ScaledActivationArgs { rows, cols, interleave, gated, .. } = self.0;
        let width = if gated { 2 * cols } else { cols };
        let backward = !self.0.grad.is_null();
        let input = Floats::new(self.0.input, rows * width, self.0.input_dtype);
        let grad = Floats::new(self.0.grad, rows * cols, self.0.grad_dtype);
        let out_width = if backward { width } else { cols };
        let output = Floats::new(self.0.output, rows * out_width, self.0.output_dtype);
        let scales = Floats::new(self.0.scales, rows, self.0.scales_dtype);
        let grad_scales = (!self.0.grad_scales.is_null())
            .then(|| Floats::new(self.0.grad_scales, rows, self.0.grad_scales_dtype));
        let scratch = || [width, cols, out_width, cols].map(zeros::<f32>);
        parallel(rows).for_each_init(scratch, |[x, dy, y, products], row| {
            let mut scale = [0.0];
            // SAFETY: the arguments are valid; the row is this task's.
            unsafe {
                scales.read(row, &mut scale);
                input.read(row * width, x);
                if backward {
                    grad.read(row * cols, dy);
                }
            }
            // Blocks of a, each followed by as many of g.
            let (step, block) = if gated { (2 * interleave, interleave) } else { (cols, cols) };
            for (i, x) in x.chunks_exact(step).enumerate() {
                let (a, g) = x.split_at(block);
                let at = i * block;
                if backward {
                    let products = &mut products[at..][..block];
                    let (da, dg) = y[i * step..][..step].split_at_mut(block);
                    slopes(curve, a, g, &dy[at..][..block], scale[0], da, dg, products);
                } else {
                    values(curve, a, g, scale[0], &mut y[at..][..block]);
                }
            }
            // SAFETY: the arguments are valid, and each row belongs to one task.
            unsafe {
                output.write(row * out_width, y);
                if let Some(grad_scales) = grad_scales {
                    grad_scales.write(row, &[sum(products)]);
                }
            }
        });
    }
}

vectorized! {
    /// `y = v * scale`; `g` is empty unless the form is gated.
    fn values<C: Curve>(curve: C, a: &[f32], g: &[f32], scale: f32, y: &mut [f32]) {
        if g.is_empty() {
            for (y, &a) in y.iter_mut().zip(a) {
                *y = curve.value(a) * scale;
            }
        } else {
            for ((y, &a), &g) in y.iter_mut().zip(a).zip(g) {
                *y = curve.value(a) * curve.gate(g) * scale;
            }
        }
    }
}

vectorized! {
    /// The gradients of the halves, and the products that the gradient of the scale sums.
    #[allow(clippy::too_many_arguments)]
    fn slopes<C: Curve>(
        curve: C,
        a: &[f32],
        g: &[f32],
        grad: &[f32],
        scale: f32,
        da: &mut [f32],
        dg: &mut [f32],
        products: &mut [f32],
    ) {
        let n = a.len();
        let (grad, da, products) = (&grad[..n], &mut da[..n], &mut products[..n]);
        if g.is_empty() {
            for i in 0..n {
                da[i] = grad[i] * scale * curve.slope(a[i]);
                products[i] = grad[i] * curve.value(a[i]);
            }
            return;
        }
        let (g, dg) = (&g[..n], &mut dg[..n]);
        for i in 0..n {
            let (f, gate) = (curve.value(a[i]), curve.gate(g[i]));
            da[i] = grad[i] * scale * (curve.slope(a[i]) * gate);
            dg[i] = grad[i] * scale * (curve.gate_slope(g[i]) * f);
            products[i] = grad[i] * (f * gate);
        }
    }
}

/// The sum in the order that the arguments say.
fn sum(products: &[f32]) -> f32 {
    let mut sums = [0.0; SUMS];
    for part in products.chunks(SUMS) {
        sums.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
    }
    let mut len = SUMS;
    while len > 1 {
        len /= 2;
        for i in 0..len {
            sums[i] = sums[2 * i] + sums[2 * i + 1];
        }
    }
    sums[0]
}
