//! Softmax of scores.

use super::operator::{operator, size};
use crate::types::NVTEDType;
use std::ffi::c_void;

/// Which keys a query of a softmax sees.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftmaxMask {
    /// Every query sees every key.
    NVTEX_SOFTMAX_UNMASKED = 0,
    /// Every query sees every key; where the byte of the mask is 1, the score is -10000.
    NVTEX_SOFTMAX_BYTES = 1,
    /// Query i sees the keys `j <= i`.
    NVTEX_SOFTMAX_CAUSAL = 2,
    /// Query i sees the keys `j <= i + keys - queries`.
    NVTEX_SOFTMAX_CAUSAL_BOTTOM_RIGHT = 3,
}

/// Softmax over the keys that a query sees, 0 for those that it does not; of `[matrices, queries,
/// keys]` elements.
///
/// Forward: `y = exp(t - max t) / sum exp(t - max t)` with `t = scale * x`, and with a mask of bytes 0
/// in rows whose largest `t` is -10000. Backward: `dx = scale * y * (dy - sum(dy * y))`. Float32
/// throughout, one rounding to the dtype; a NaN that is seen makes its row NaN.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxArgs {
    /// x; dy for the backward.
    pub input: *const c_void,
    /// y for the backward, null for the forward.
    pub results: *const c_void,
    /// May be `input`.
    pub output: *mut c_void,
    /// Forward with `NVTEX_SOFTMAX_BYTES`: matrix m has the bytes `[queries, keys]` from
    /// `m / matrices_per_mask * queries * keys` on.
    pub mask: *const u8,
    pub matrices_per_mask: usize,
    pub matrices: usize,
    pub queries: usize,
    pub keys: usize,
    pub scale: f32,
    pub visible: SoftmaxMask,
    /// F32, F16 or BF16, of all tensors.
    pub dtype: NVTEDType,
}

operator! {
    softmax(SoftmaxArgs) version 1 minor 0; |a|
    variants 2 * a.visible as u32 + u32::from(!a.results.is_null()) => [
        plain_forward, plain_backward, masked_forward, masked_backward,
        causal_forward, causal_backward, causal_bottom_forward, causal_bottom_backward,
    ];
    dtypes a.dtype;
    bytes (if a.results.is_null() { 2 } else { 3 }) * size(a.matrices * a.queries * a.keys, a.dtype);
}
