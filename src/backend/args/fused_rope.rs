//! Rotary embedding.

use super::operator::operator;
use crate::types::NVTEDType;
use std::ffi::c_void;

/// Elements from one index to the next.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RopeStrides {
    /// From one position to the next; in packed sequences from one token to the next.
    pub position: usize,
    pub sequence: usize,
    /// From one group of heads to the next.
    pub group: usize,
    /// From one head of a group to the next.
    pub head: usize,
    pub element: usize,
}

/// Heads that turn by the same angles.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RopePart {
    pub input: *const c_void,
    /// May be `input` if the strides are equal.
    pub output: *mut c_void,
    /// `[.., rotated]` angles in radians, or null: the part is copied.
    pub freqs: *const f32,
    /// Heads of all groups together; 0 for a part that is absent.
    pub heads: usize,
    pub heads_per_group: usize,
    pub input_strides: RopeStrides,
    /// The element stride is 1.
    pub output_strides: RopeStrides,
}

/// Rotary embedding of heads of `dim` elements, the first `rotated` of which turn in pairs (j, p):
/// `p = j + rotated / 2`, or `p = j + 1` for even j if interleaved.
///
/// Forward: `y_j = x_j cos(a_j) - x_p sin(a_j)`, `y_p = x_p cos(a_p) + x_j sin(a_p)`. Backward, its
/// adjoint: `y_j = x_j cos(a_j) + x_p sin(a_p)`, `y_p = x_p cos(a_p) - x_j sin(a_j)`. Float32, one
/// rounding to the dtype; other elements are copied.
///
/// The angles a of position i of sequence n are row `f = i + start_positions[n]` of freqs; with
/// `cp_size > 1` and the local length L, `f + cp_rank L / 2` for `i < L / 2`, else
/// `f + L cp_size - (cp_rank + 1) L / 2 - L / 2`. Positions whose row would be negative are not written.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RopeArgs {
    pub parts: [RopePart; 3],
    /// `[sequences + 1]`, or null. Packed sequences: n has the tokens from `cu_seqlens[n] / cp_size` to
    /// `cu_seqlens[n + 1] / cp_size`; tokens of no sequence are not written.
    pub cu_seqlens: *const i32,
    /// `[sequences]`, or null.
    pub start_positions: *const i32,
    /// Positions of each sequence, tokens of all if they are packed.
    pub positions: usize,
    pub sequences: usize,
    pub dim: usize,
    /// Even, at most `dim`.
    pub rotated: usize,
    pub cp_size: usize,
    pub cp_rank: usize,
    /// Rows that the freqs of all parts have, one or more; positions past them have the angles of the last.
    pub freqs_rows: usize,
    pub interleaved: bool,
    pub backward: bool,
    /// F32, F16 or BF16, of inputs and outputs.
    pub dtype: NVTEDType,
    /// Raised to the largest magnitude of what is written; null: not wanted.
    pub amax: *mut f32,
}

operator! {
    rope(RopeArgs) version 1 minor 1; |a|
    variants 2 * u32::from(a.parts[1].heads != 0) + u32::from(a.backward) =>
        [forward, backward, qkv_forward, qkv_backward];
    dtypes a.dtype;
    features {
        PACKED = a.cu_seqlens,
        START_POSITIONS = a.start_positions,
        CONTEXT_PARALLEL = a.cp_size > 1,
        INTERLEAVED = a.interleaved,
        AMAX = a.amax,
    }
}
