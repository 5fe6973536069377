//! Dropout.

use super::operator::{operator, size, when};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// `y = keep ? cast(x * 1 / (1 - probability)) : 0`; bit `i % 8` of the byte `i / 8` of the mask says
/// whether element i is kept, and the bits after the last element are 0.
///
/// Forward: the bits are drawn. Elements 16 c to 16 c + 15 take the 16 bytes of four words of Philox
/// 4x32-10 with the seed as key and the counter `offset / 4 + 2^64 c`, from word `offset % 4` on;
/// element i of them takes of word `i % 8 / 2` the byte `i / 8 + (i even ? 2 : 0)`, the least
/// significant one being 0, and is kept unless that is less than `floor(256 * probability)`.
///
/// With a residual the forward is `y = cast(residual + (keep ? (x + bias) * 1 / (1 - probability) : 0))`,
/// in float32.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DropoutArgs {
    pub input: *const c_void,
    /// May be `input`.
    pub output: *mut c_void,
    /// `ceil(numel / 8)` bytes; read by the backward.
    pub mask: *mut u8,
    /// Seed and offset for the forward, null for the backward.
    pub rng_state: *const u64,
    /// FP8 inputs: x is multiplied by this float first.
    pub scale_inv: *const f32,
    pub numel: usize,
    /// At least 0 and less than 1.
    pub probability: f32,
    /// F32, F16, BF16, E4M3 or E5M2.
    pub input_dtype: NVTEDType,
    /// F32, F16 or BF16; as the input unless that is FP8.
    pub output_dtype: NVTEDType,
    /// As the input, which is not FP8 then, or null.
    pub residual: *const c_void,
    /// `[cols]` of the input's dtype, for each row of the input, or null; null without a residual.
    pub bias: *const c_void,
    pub cols: usize,
    /// Elements 16 c to 16 c + 15 have the random numbers of c + `first`: the input is a part of a whole. 0 for the
    /// backward.
    pub first: usize,
}

operator! {
    dropout(DropoutArgs) version 1 minor 1; |a|
    variants u32::from(a.rng_state.is_null()) => [forward, backward];
    dtypes a.input_dtype, a.output_dtype;
    features { RESIDUAL = a.residual, BIAS = a.bias, SCALE_INV = a.scale_inv, FIRST = a.first != 0 }
    bytes size(a.numel, a.input_dtype) + size(a.numel, a.output_dtype) + a.numel.div_ceil(8)
        + when(a.residual, size(a.numel, a.input_dtype)).unwrap_or(0);
}
