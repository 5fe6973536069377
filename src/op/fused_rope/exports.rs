//! C functions of fused_rope.h: rotary position embedding.
#![allow(unsafe_code, clippy::missing_safety_doc)]
#![allow(clippy::too_many_arguments)]

use super::*;
use crate::check::truth;
use crate::error::guard;
use crate::tensor::from_c;
use std::mem::MaybeUninit;

/// Rotates pairs of elements of each head by the angles of its position (rotary embedding).
///
/// What it computes: `y_j = x_j cos(a_j) - x_p sin(a_j)` and `y_p = x_p cos(a_p) + x_j sin(a_p)`, for
/// `j < d2 / 2` with `p = j + d2 / 2`, or with `interleaved` for even j with `p = j + 1`. Elements from
/// d2 on are copied. The angles a (radians) of position i of sequence n are row
/// `i + start_positions[n]` of freqs (without start positions: row i).
///
/// Context parallelism: with `cp_size > 1` a rank has the chunks `cp_rank` and
/// `2 * cp_size - 1 - cp_rank` of the `2 * cp_size` equal chunks of each sequence, one after the other.
///
/// Shapes: by format `NVTE_SBHD` `[s, b, h, d]`, `NVTE_BSHD` `[b, s, h, d]`, or `NVTE_THD` `[t, h, d]`,
/// where sequence n has the tokens from `cu_seqlens[n] / cp_size` to `cu_seqlens[n + 1] / cp_size`
/// (tokens of no sequence are not written). The strides are those of the input, in elements, and not
/// negative (`NVTE_THD` ignores `stride_b`). The output is contiguous, and may be the input if that is
/// contiguous, too. freqs is `[S_max, 1, 1, d2]` and has every row that is asked for; `cu_seqlens`
/// `[b + 1 or more]`; `start_positions` `[b or more]`, or no data for none.
///
/// Dtypes: Float32, Float16 or BFloat16, the same for both; freqs Float32; cu_seqlens and
/// start_positions Int32.
///
/// Notes: nothing is written to empty tensors.
///
/// Errors: other dtypes, formats or sizes; a d2 that is odd or too large; odd s with `cp_size > 1`;
/// null or misaligned pointers.
///
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
    let (cp, sizes) = ([cp_size, cp_rank], [s, b, h, d, d2]);
    let strides = [stride_s_or_t, stride_b, stride_h, stride_d];
    guard("nvte_fused_rope_forward", || {
        let form = form(qkv_format, interleaved, false, cp, sizes)?;
        let (x, y) = (check::tensor("input", input)?, check::tensor("output", output)?);
        let cu_seqlens = match form.format {
            NVTE_THD => Some(check::rowwise("cu_seqlens", cu_seqlens)?),
            _ => None,
        };
        let freqs = check::rowwise("freqs", freqs)?;
        let starts = check::rowwise_or_unset("start_positions", start_positions)?;
        let tensors = [("input", &x), ("output", &y)];
        rope(tensors, cu_seqlens.as_ref(), [&freqs, &starts], &form, strides, stream)
    });
}

/// Computes the gradients of `nvte_fused_rope_forward`: `dx_j = dy_j cos(a_j) + dy_p sin(a_p)` and
/// `dx_p = dy_p cos(a_p) - dy_j sin(a_j)`. The strides are those of `output_grads`; all else is as in
/// the forward pass.
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
    let (cp, sizes) = ([cp_size, cp_rank], [s, b, h, d, d2]);
    let strides = [stride_s_or_t, stride_b, stride_h, stride_d];
    guard("nvte_fused_rope_backward", || {
        let form = form(qkv_format, interleaved, true, cp, sizes)?;
        let (x, y) = (
            check::tensor("output_grads", output_grads)?,
            check::tensor("input_grads", input_grads)?,
        );
        let cu_seqlens = match form.format {
            NVTE_THD => Some(check::rowwise("cu_seqlens", cu_seqlens)?),
            _ => None,
        };
        let freqs = check::rowwise("freqs", freqs)?;
        let starts = check::rowwise_or_unset("start_positions", start_positions)?;
        let tensors = [("output_grads", &x), ("input_grads", &y)];
        rope(tensors, cu_seqlens.as_ref(), [&freqs, &starts], &form, strides, stream)
    });
}

/// Splits groups of heads into queries, keys and values, and rotates queries and keys as
/// `nvte_fused_rope_forward` does, each by its own freqs (without data in freqs they are copied).
///
/// Shapes: `qkv_input` contiguous `[s, b, h, q + k + v]` (`NVTE_SBHD`) or `[b, s, h, q + k + v]`
/// (`NVTE_BSHD`), with h groups of q, k and v elements (`qkv_split_arg_list_0`, `_1`, `_2`, multiples
/// of d); `q_out` contiguous `[.., .., h * q / d, d]`, `k_out` and `v_out` likewise. `start_positions`
/// are added with any `cp_size`.
///
/// Dtypes, errors: as `nvte_fused_rope_forward`; `NVTE_THD` is not supported.
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
    let (cp, sizes) = ([cp_size, cp_rank], [s, b, h, d, d2]);
    let split = [qkv_split_arg_list_0, qkv_split_arg_list_1, qkv_split_arg_list_2];
    let parts = [("q_out", q_out), ("k_out", k_out), ("v_out", v_out)];
    let angles = [q_freqs, k_freqs, start_positions];
    guard("nvte_fused_qkv_rope_forward", || {
        let form = form(qkv_format, interleaved, false, cp, sizes)?;
        qkv_rope(("qkv_input", qkv_input), parts, angles, form, split, stream)
    });
}

/// Computes the gradients of `nvte_fused_qkv_rope_forward` without start positions, gathered in
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
    let (cp, sizes) = ([cp_size, cp_rank], [s, b, h, d, d2]);
    let split = [qkv_split_arg_list_0, qkv_split_arg_list_1, qkv_split_arg_list_2];
    let parts =
        [("q_grad_out", q_grad_out), ("k_grad_out", k_grad_out), ("v_grad_out", v_grad_out)];
    let angles = [q_freqs, k_freqs, null_mut()];
    guard("nvte_fused_qkv_rope_backward", || {
        let form = form(qkv_format, interleaved, true, cp, sizes)?;
        qkv_rope(("qkv_grad_input", qkv_grad_input), parts, angles, form, split, stream)
    });
}

fn form(
    format: MaybeUninit<NVTE_QKV_Format>,
    interleaved: MaybeUninit<bool>,
    backward: bool,
    cp: [i32; 2],
    sizes: [i32; 5],
) -> Result<Form> {
    let format = from_c("qkv_format", format)?;
    Ok(Form { format, interleaved: truth(interleaved), backward, cp, sizes })
}

/// Runs a rotation of the parts of a tensor; the last handles are those of angles of queries and of keys
/// and of start positions.
fn qkv_rope(
    (whole_name, whole): (&str, NVTETensor),
    parts: [(&str, NVTETensor); 3],
    [q_freqs, k_freqs, start_positions]: [NVTETensor; 3],
    form: Form,
    split: [i32; 3],
    stream: cudaStream_t,
) -> Result<()> {
    let names = parts.map(|(name, _)| name);
    let whole = check::tensor(whole_name, whole)?;
    let [q, k, v] = parts.map(|(name, part)| check::tensor(name, part));
    let call = QkvRope {
        whole: (whole_name, &whole),
        names,
        parts: [&q?, &k?, &v?],
        freqs: [
            &check::rowwise_or_unset("q_freqs", q_freqs)?,
            &check::rowwise_or_unset("k_freqs", k_freqs)?,
        ],
        start_positions: &check::rowwise_or_unset("start_positions", start_positions)?,
        cu_seqlens: None,
        form,
        split,
        amax: None,
    };
    call.run(stream)
}
