//! C functions of fused_rope.h: rotary position embedding.
#![allow(unsafe_code, clippy::missing_safety_doc)]
#![allow(clippy::too_many_arguments)]

use super::*;
use crate::check::truth;
use crate::error::guard;

/// Turns pairs of elements of each head by the angles of its position.
///
/// `y_j = x_j cos(a_j) - x_p sin(a_j)` and `y_p = x_p cos(a_p) + x_j sin(a_p)` for `j < d2 / 2` with
/// `p = j + d2 / 2`, or with `interleaved` for even j with `p = j + 1`; elements from d2 on are copied.
/// The angles a (radians) of position i of sequence n are row `f = i + start_positions[n]` of freqs
/// (without start positions: i). With `cp_size > 1` a rank has the chunks `cp_rank` and
/// `2 * cp_size - 1 - cp_rank` of the `2 * cp_size` equal chunks of each sequence, one after the other.
/// Formats and shapes: `NVTE_SBHD` `[s, b, h, d]`; `NVTE_BSHD` `[b, s, h, d]`; `NVTE_THD` `[t, h, d]`,
/// where sequence n has the tokens from `cu_seqlens[n] / cp_size` to `cu_seqlens[n + 1] / cp_size`
/// (tokens of no sequence are not written). The strides are those of the input, in elements, not
/// negative (`NVTE_THD` ignores `stride_b`); the output is contiguous, and may be the input if that is,
/// too.
/// freqs `[S_max, 1, 1, d2]`, which has every row that is asked for; `cu_seqlens` `[b + 1 or more]`;
/// `start_positions` `[b or more]`, or no data for none.
/// Dtypes: Float32, Float16, BFloat16, the same for both; freqs Float32; cu_seqlens and
/// start_positions Int32.
/// Empty tensors: nothing is written.
/// Errors: other dtypes, formats or sizes; odd or too large d2; odd s with `cp_size > 1`; null or
/// misaligned pointers.
/// Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_rope_forward(
    input: NVTETensor,
    cu_seqlens: NVTETensor,
    freqs: NVTETensor,
    start_positions: NVTETensor,
    output: NVTETensor,
    qkv_format: MaybeUninit<NVTE_QKV_Format>,
    interleaved: MaybeUninit<bool>,
    cp_size: i32,
    cp_rank: i32,
    s: i32,
    b: i32,
    h: i32,
    d: i32,
    d2: i32,
    stride_s_or_t: i32,
    stride_b: i32,
    stride_h: i32,
    stride_d: i32,
    stream: cudaStream_t,
) {
    let form = Form {
        format: qkv_format,
        interleaved: truth(interleaved),
        backward: false,
        cp: [cp_size, cp_rank],
        sizes: [s, b, h, d, d2],
    };
    let tensors = [("input", input), ("output", output)];
    let strides = [stride_s_or_t, stride_b, stride_h, stride_d];
    guard("nvte_fused_rope_forward", || {
        rope(tensors, [cu_seqlens, freqs, start_positions], &form, strides, stream)
    });
}

/// Gradients of `nvte_fused_rope_forward`, its adjoint: `dx_j = dy_j cos(a_j) + dy_p sin(a_p)` and
/// `dx_p = dy_p cos(a_p) - dy_j sin(a_j)`. The strides are those of `output_grads`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_rope_backward(
    output_grads: NVTETensor,
    cu_seqlens: NVTETensor,
    freqs: NVTETensor,
    start_positions: NVTETensor,
    input_grads: NVTETensor,
    qkv_format: MaybeUninit<NVTE_QKV_Format>,
    interleaved: MaybeUninit<bool>,
    cp_size: i32,
    cp_rank: i32,
    s: i32,
    b: i32,
    h: i32,
    d: i32,
    d2: i32,
    stride_s_or_t: i32,
    stride_b: i32,
    stride_h: i32,
    stride_d: i32,
    stream: cudaStream_t,
) {
    let form = Form {
        format: qkv_format,
        interleaved: truth(interleaved),
        backward: true,
        cp: [cp_size, cp_rank],
        sizes: [s, b, h, d, d2],
    };
    let tensors = [("output_grads", output_grads), ("input_grads", input_grads)];
    let strides = [stride_s_or_t, stride_b, stride_h, stride_d];
    guard("nvte_fused_rope_backward", || {
        rope(tensors, [cu_seqlens, freqs, start_positions], &form, strides, stream)
    });
}

/// Splits groups of heads into queries, keys and values, and turns queries and keys as
/// `nvte_fused_rope_forward` does, each by its own freqs (no data: they are copied).
///
/// Shapes: `qkv_input` contiguous `[s, b, h, q + k + v]` (`NVTE_SBHD`) or `[b, s, h, q + k + v]`
/// (`NVTE_BSHD`), with h groups of q, k and v elements (`qkv_split_arg_list_0`, `_1`, `_2`, multiples
/// of d); `q_out` contiguous `[.., .., h * q / d, d]`, `k_out` and `v_out` likewise.
/// `start_positions` count with any `cp_size`.
/// Dtypes, errors: as there; `NVTE_THD` is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_qkv_rope_forward(
    qkv_input: NVTETensor,
    q_freqs: NVTETensor,
    k_freqs: NVTETensor,
    start_positions: NVTETensor,
    q_out: NVTETensor,
    k_out: NVTETensor,
    v_out: NVTETensor,
    qkv_format: MaybeUninit<NVTE_QKV_Format>,
    interleaved: MaybeUninit<bool>,
    cp_size: i32,
    cp_rank: i32,
    s: i32,
    b: i32,
    h: i32,
    d: i32,
    d2: i32,
    qkv_split_arg_list_0: i32,
    qkv_split_arg_list_1: i32,
    qkv_split_arg_list_2: i32,
    stream: cudaStream_t,
) {
    let form = Form {
        format: qkv_format,
        interleaved: truth(interleaved),
        backward: false,
        cp: [cp_size, cp_rank],
        sizes: [s, b, h, d, d2],
    };
    let split = [qkv_split_arg_list_0, qkv_split_arg_list_1, qkv_split_arg_list_2];
    let names = ["q_out", "k_out", "v_out"];
    let angles = [q_freqs, k_freqs, start_positions];
    guard("nvte_fused_qkv_rope_forward", || {
        let whole = ("qkv_input", qkv_input);
        qkv_rope(whole, names, [q_out, k_out, v_out], angles, &form, split, stream)
    });
}

/// Gradients of `nvte_fused_qkv_rope_forward` without start positions, gathered into
/// `qkv_grad_input`, all of whose elements are written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_qkv_rope_backward(
    q_grad_out: NVTETensor,
    k_grad_out: NVTETensor,
    v_grad_out: NVTETensor,
    q_freqs: NVTETensor,
    k_freqs: NVTETensor,
    qkv_grad_input: NVTETensor,
    qkv_format: MaybeUninit<NVTE_QKV_Format>,
    interleaved: MaybeUninit<bool>,
    cp_size: i32,
    cp_rank: i32,
    s: i32,
    b: i32,
    h: i32,
    d: i32,
    d2: i32,
    qkv_split_arg_list_0: i32,
    qkv_split_arg_list_1: i32,
    qkv_split_arg_list_2: i32,
    stream: cudaStream_t,
) {
    let form = Form {
        format: qkv_format,
        interleaved: truth(interleaved),
        backward: true,
        cp: [cp_size, cp_rank],
        sizes: [s, b, h, d, d2],
    };
    let split = [qkv_split_arg_list_0, qkv_split_arg_list_1, qkv_split_arg_list_2];
    let names = ["q_grad_out", "k_grad_out", "v_grad_out"];
    let angles = [q_freqs, k_freqs, null_mut()];
    guard("nvte_fused_qkv_rope_backward", || {
        let (grads, whole) =
            ([q_grad_out, k_grad_out, v_grad_out], ("qkv_grad_input", qkv_grad_input));
        qkv_rope(whole, names, grads, angles, &form, split, stream)
    });
}
