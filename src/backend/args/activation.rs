//! Activations whose rows have scales. Those of casts are in `function.rs`.

use super::function::{Function, activation_variant};
use super::operator::{operator, when};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// An activation whose rows have scales, or its derivatives, in float32. With v of [`Form`] without
/// the scales:
///
/// Forward: `output[r][h] = cast(v * scales[r])`.
///
/// Backward: with `sg = grad * scales[r]`, plain `output = cast(sg * f'(a))`; gated, the left half is
/// `cast(sg * (f'(a) * G(g)))`, the right half `cast(sg * (G'(g) * f(a)))`. `grad_scales[r] = cast(sum
/// of grad * w)` with `w = f(a)`, or `f(a) * G(g)`, in this order: the product of element h is added
/// to sum h % 1024; neighbouring pairs of these 1024 sums are added, then neighbouring pairs of the
/// results, until one is left.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaledActivationArgs {
    /// `[rows, cols]`, gated `[rows, 2 cols]`.
    pub input: *const c_void,
    /// `[rows, cols]`, or null: forward.
    pub grad: *const c_void,
    /// Forward `[rows, cols]`, backward as the input.
    pub output: *mut c_void,
    /// `[rows]`
    pub scales: *const c_void,
    /// `[rows]`, or null. Only backward.
    pub grad_scales: *mut c_void,
    pub rows: usize,
    pub cols: usize,
    /// A gated row is a sequence of `interleave` elements of a, as many of g, and so on: `cols` for
    /// the usual halves, else a divisor of it that is a multiple of 32.
    pub interleave: usize,
    pub gated: bool,
    pub function: Function,
    pub a: f32,
    pub b: f32,
    pub c: f32,
    /// Each F32, F16 or BF16.
    pub input_dtype: NVTEDType,
    pub grad_dtype: NVTEDType,
    pub output_dtype: NVTEDType,
    pub scales_dtype: NVTEDType,
    pub grad_scales_dtype: NVTEDType,
}

operator! {
    scaled_activation(ScaledActivationArgs) version 1 minor 0; |a|
    variants activation_variant(a.gated, !a.grad.is_null(), a.function) => [
        gelu, silu, qgelu, relu, srelu,
        dgelu, dsilu, dqgelu, drelu, dsrelu,
        geglu, swiglu, qgeglu, reglu, sreglu, glu, clamped_swiglu, situglu,
        dgeglu, dswiglu, dqgeglu, dreglu, dsreglu, dglu, dclamped_swiglu, dsituglu,
    ];
    dtypes a.input_dtype, when(a.grad, a.grad_dtype), a.output_dtype, a.scales_dtype,
        when(a.grad_scales, a.grad_scales_dtype);
    features { INTERLEAVED = a.gated && a.interleave != a.cols, GRAD_SCALES = a.grad_scales }
}
