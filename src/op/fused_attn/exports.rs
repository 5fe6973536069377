//! C functions of fused_attn.h: layouts, configs and parameters of attention, and the helpers of packed
//! sequences, context parallelism and caches.
#![allow(
    unsafe_code,
    non_camel_case_types,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::too_many_arguments
)]

mod calls;
mod objects;
mod options;

use super::attention::Attention;
use super::context_parallel::{self, OutCorrection, Ranks};
use super::kv_cache::{ToCache, copy_to_cache};
use super::layout::Layout;
use super::problem::Problem;
use super::rows::{count, positive};
use super::{packing, random};
use crate::backend::{self, args::*};
use crate::check::{self, truth};
use crate::error::{self, Error, Handle, Result, guard};
use crate::tensor::{Tensor, from_c, from_c_enum};
use crate::types::*;
use NVTE_QKV_Format::*;
use NVTEDType::*;
use calls::{BackwardCall, ForwardCall, NVTETensorReference};
use num_derive::FromPrimitive;
use objects::{BWD, CONFIGS, FWD};
use options::{CGradients, COptions, number, problem_of_config};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null;

/// The tensor of a handle that is passed by reference.
///
/// # Safety
/// `handle` is null or points to a handle.
unsafe fn referred(name: &str, handle: NVTETensorReference) -> Result<Tensor> {
    check::address(name, handle)?;
    // SAFETY: the caller's promise; it is not null.
    check::tensor(name, unsafe { handle.read() })
}

/// What happens to a half of each sequence.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn half_op(argument: &str, name: *const c_char) -> Result<HalfOp> {
    let expected = "\"add\", \"copy\", \"none\" or \"zero\"";
    if name.is_null() {
        return Err(Error::argument(argument, expected, "null"));
    }
    // SAFETY: the caller's promise; it is not null.
    Ok(match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"add" => HalfOp::NVTEX_HALF_ADD,
        b"copy" => HalfOp::NVTEX_HALF_COPY,
        b"none" => HalfOp::NVTEX_HALF_NONE,
        b"zero" => HalfOp::NVTEX_HALF_ZERO,
        other => {
            return Err(Error::argument(argument, expected, String::from_utf8_lossy(other)));
        }
    })
}

fn layout(qkv_layout: MaybeUninit<NVTE_QKV_Layout>) -> Result<Layout> {
    options::layout("qkv_layout", number(qkv_layout))
}

/// Keeps a text for the thread until the next one.
fn keep(text: &str) -> *const c_char {
    thread_local! {
        static KEPT: RefCell<CString> = RefCell::default();
    }
    error::keep(&KEPT, text)
}

/// Returns which of queries, keys and values a layout interleaves.
///
/// Errors: no layout from 0 to 25 (the result is then 0).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_qkv_layout_group(
    qkv_layout: MaybeUninit<NVTE_QKV_Layout>,
) -> NVTE_QKV_Layout_Group {
    guard("nvte_get_qkv_layout_group", || Ok(layout(qkv_layout)?.group))
}

/// Returns the order of dimensions of a layout.
///
/// Errors: no layout from 0 to 25 (the result is then 0).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_qkv_format(
    qkv_layout: MaybeUninit<NVTE_QKV_Layout>,
) -> NVTE_QKV_Format {
    guard("nvte_get_qkv_format", || Ok(layout(qkv_layout)?.format()))
}

/// Returns the order of dimensions of the queries of a layout.
///
/// Errors: no layout from 0 to 25 (the result is then 0).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_q_format(
    qkv_layout: MaybeUninit<NVTE_QKV_Layout>,
) -> NVTE_QKV_Format {
    guard("nvte_get_q_format", || Ok(layout(qkv_layout)?.q))
}

/// Returns the order of dimensions of the keys and values of a layout.
///
/// Errors: no layout from 0 to 25 (the result is then 0).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_kv_format(
    qkv_layout: MaybeUninit<NVTE_QKV_Layout>,
) -> NVTE_QKV_Format {
    guard("nvte_get_kv_format", || Ok(layout(qkv_layout)?.kv))
}

/// Creates a config of attention with defaults. Destroy it with `nvte_destroy_fused_attn_config`.
///
/// Defaults: training, no mask, no bias, no window, alignment at the bottom right, the usual softmax,
/// no dropout, `attn_scale` 1, BFloat16, no layout, sizes of 0. Formats that are not set are those of
/// the layout.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_create_fused_attn_config() -> NVTEFusedAttnConfig {
    guard("nvte_create_fused_attn_config", || Ok(Handle(CONFIGS.create()?))).0
}

/// Destroys a config of attention. Null is an error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_destroy_fused_attn_config(config: NVTEFusedAttnConfig) {
    guard("nvte_destroy_fused_attn_config", || CONFIGS.destroy(config));
}

/// Copies an attribute of a config to `buf`, and its size to `size_written` (null: nowhere). With a
/// null `buf` only the size is written.
///
/// Types and errors: as `nvte_set_fused_attn_config_attribute`, except that `buf` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_get_fused_attn_config_attribute(
    config: NVTEFusedAttnConfig,
    attr: MaybeUninit<NVTEFusedAttnConfigAttribute>,
    buf: *mut c_void,
    size_in_bytes: usize,
    size_written: *mut usize,
) {
    // SAFETY: the caller vouches for the buffers.
    guard("nvte_get_fused_attn_config_attribute", || unsafe {
        CONFIGS.get(config, attr, buf, size_in_bytes, size_written)
    });
}

/// Sets an attribute of a config from the bytes at `buf`. Values are checked when they are used.
///
/// Types: flags are one byte; enumerations, formats and layouts have their own types; dropout and scale
/// are `float`, window sizes `int64_t`, other sizes `size_t`.
///
/// Errors: no config, no such attribute; a null `buf`; `size_in_bytes` below the size of the type.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_set_fused_attn_config_attribute(
    config: NVTEFusedAttnConfig,
    attr: MaybeUninit<NVTEFusedAttnConfigAttribute>,
    buf: *const c_void,
    size_in_bytes: usize,
) {
    // SAFETY: the caller vouches for the buffer.
    guard("nvte_set_fused_attn_config_attribute", || unsafe {
        CONFIGS.set(config, attr, buf, size_in_bytes)
    });
}

/// Creates parameters of a forward pass of attention with defaults. Destroy them with
/// `nvte_destroy_fused_attn_fwd_params`.
///
/// Defaults: no tensors; options as those of `nvte_create_fused_attn_config`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_create_fused_attn_fwd_params() -> NVTEFusedAttnFwdParams {
    guard("nvte_create_fused_attn_fwd_params", || Ok(Handle(FWD.create()?))).0
}

/// Destroys parameters of a forward pass of attention. Null is an error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_destroy_fused_attn_fwd_params(params: NVTEFusedAttnFwdParams) {
    guard("nvte_destroy_fused_attn_fwd_params", || FWD.destroy(params));
}

/// Copies an attribute of parameters, as `nvte_get_fused_attn_config_attribute` does for a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_get_fused_attn_fwd_params_attribute(
    params: NVTEFusedAttnFwdParams,
    attr: MaybeUninit<NVTEFusedAttnFwdParamsAttribute>,
    buf: *mut c_void,
    size_in_bytes: usize,
    size_written: *mut usize,
) {
    // SAFETY: the caller vouches for the buffers.
    guard("nvte_get_fused_attn_fwd_params_attribute", || unsafe {
        FWD.get(params, attr, buf, size_in_bytes, size_written)
    });
}

/// Sets an attribute of parameters, as `nvte_set_fused_attn_config_attribute` does for a config. `buf`
/// holds the `NVTETensor` of a tensor or of the workspace, the address of the pack, or the
/// `cudaStream_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_set_fused_attn_fwd_params_attribute(
    params: NVTEFusedAttnFwdParams,
    attr: MaybeUninit<NVTEFusedAttnFwdParamsAttribute>,
    buf: *const c_void,
    size_in_bytes: usize,
) {
    // SAFETY: the caller vouches for the buffer.
    guard("nvte_set_fused_attn_fwd_params_attribute", || unsafe {
        FWD.set(params, attr, buf, size_in_bytes)
    });
}

/// Creates parameters of a backward pass of attention with defaults. Destroy them with
/// `nvte_destroy_fused_attn_bwd_params`.
///
/// Defaults: no tensors; options as those of `nvte_create_fused_attn_config`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_create_fused_attn_bwd_params() -> NVTEFusedAttnBwdParams {
    guard("nvte_create_fused_attn_bwd_params", || Ok(Handle(BWD.create()?))).0
}

/// Destroys parameters of a backward pass of attention. Null is an error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_destroy_fused_attn_bwd_params(params: NVTEFusedAttnBwdParams) {
    guard("nvte_destroy_fused_attn_bwd_params", || BWD.destroy(params));
}

/// Copies an attribute of parameters, as `nvte_get_fused_attn_config_attribute` does for a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_get_fused_attn_bwd_params_attribute(
    params: NVTEFusedAttnBwdParams,
    attr: MaybeUninit<NVTEFusedAttnBwdParamsAttribute>,
    buf: *mut c_void,
    size_in_bytes: usize,
    size_written: *mut usize,
) {
    // SAFETY: the caller vouches for the buffers.
    guard("nvte_get_fused_attn_bwd_params_attribute", || unsafe {
        BWD.get(params, attr, buf, size_in_bytes, size_written)
    });
}

/// Sets an attribute of parameters, as `nvte_set_fused_attn_config_attribute` does for a config. `buf`
/// holds the `NVTETensor` of a tensor or of the workspace, the address of the pack, or the
/// `cudaStream_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_set_fused_attn_bwd_params_attribute(
    params: NVTEFusedAttnBwdParams,
    attr: MaybeUninit<NVTEFusedAttnBwdParamsAttribute>,
    buf: *const c_void,
    size_in_bytes: usize,
) {
    // SAFETY: the caller vouches for the buffer.
    guard("nvte_set_fused_attn_bwd_params_attribute", || unsafe {
        BWD.set(params, attr, buf, size_in_bytes)
    });
}

/// Copies the first (`half_idx` 0) or second (1) half of every packed sequence.
///
/// Shapes: tensor `[t, h, d]` or `[2, t, h, d]`; half the same with t / 2 tokens; cu_seqlens Int32
/// `[b + 1]`, the first tokens of the sequences, all even.
///
/// Dtypes: any, the same for both tensors.
///
/// Errors: other shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cp_thd_read_half_tensor(
    tensor: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    half: NVTETensor,
    half_idx: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_cp_thd_read_half_tensor", || {
        // SAFETY: the caller vouches for the references.
        let (tensor, cu_seqlens) =
            unsafe { (referred("tensor", tensor)?, referred("cu_seqlens", cu_seqlens)?) };
        let half = check::tensor("half", half)?;
        context_parallel::read_half(&tensor, &cu_seqlens, &half, half_idx, stream)
    });
}

/// Merges the log-sum-exp of a step into that of the second half of every sequence, in place:
/// `lse = log(exp(lse) + exp(lse_per_step))`.
///
/// Shapes (Float32): with `lse_packed` `[h, t]` and `[h, t / 2 or more]`, otherwise `[b, h, s]` and
/// `[b, h, s / 2]`.
///
/// Errors: other shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cp_thd_second_half_lse_correction(
    lse: NVTETensor,
    lse_per_step: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    lse_packed: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_cp_thd_second_half_lse_correction", || {
        // SAFETY: the caller vouches for the references.
        let (step, cu) = unsafe {
            (referred("lse_per_step", lse_per_step)?, referred("cu_seqlens", cu_seqlens)?)
        };
        let lse = check::tensor("lse", lse)?;
        let (lse, step) = (("lse", &lse), ("lse_per_step", &step));
        context_parallel::half_lse(lse, step, &cu, lse_packed != 0, true, stream)
    });
}

/// Copies the log-sum-exp of the second half of every sequence; entries of half_lse that stand for no
/// token stay as they are.
///
/// Shapes (Float32): as `nvte_cp_thd_second_half_lse_correction`, with `second_half_lse_seqlen` as the
/// last dimension of half_lse.
///
/// Errors: other shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cp_thd_read_second_half_lse(
    lse: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    half_lse: NVTETensor,
    lse_packed: c_int,
    second_half_lse_seqlen: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_cp_thd_read_second_half_lse", || {
        // SAFETY: the caller vouches for the references.
        let (lse, cu) = unsafe { (referred("lse", lse)?, referred("cu_seqlens", cu_seqlens)?) };
        let length = count("second_half_lse_seqlen", second_half_lse_seqlen)?;
        let half_lse = check::tensor("half_lse", half_lse)?;
        let shape = half_lse.rowwise.shape;
        if shape.dims().last() != Some(&length) {
            let expected = format!("{length} (second_half_lse_seqlen) as the last dimension");
            return Err(Error::argument("half_lse.shape", expected, shape));
        }
        let (lse, half_lse) = (("lse", &lse), ("half_lse", &half_lse));
        context_parallel::half_lse(lse, half_lse, &cu, lse_packed != 0, false, stream)
    });
}

/// Merges the output of a step into an output, in place:
/// `out = out exp(old_lse - lse) + out_per_step exp(lse_per_step - lse)`, in float32. Elements that are
/// zero stay zero.
///
/// Shapes: out `[t, h, d]`; out_per_step the same, or with `only_second_half` `[t / 2, h, d]`;
/// log-sum-exps Float32, with `lse_packed` `[h, t]`, otherwise `[b, h, s]`.
///
/// Dtypes: Float32, Float16 or BFloat16, the same for both outputs.
///
/// Errors: other shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cp_thd_out_correction(
    out: NVTETensor,
    out_per_step: NVTETensorReference,
    old_lse: NVTETensorReference,
    lse: NVTETensorReference,
    lse_per_step: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    only_second_half: c_int,
    lse_packed: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_cp_thd_out_correction", || {
        let out = check::tensor("out", out)?;
        // SAFETY: the caller vouches for the references.
        let (step, old_lse, lse, step_lse, cu) = unsafe {
            (
                referred("out_per_step", out_per_step)?,
                referred("old_lse", old_lse)?,
                referred("lse", lse)?,
                referred("lse_per_step", lse_per_step)?,
                referred("cu_seqlens", cu_seqlens)?,
            )
        };
        let tensors = OutCorrection {
            out: &out,
            out_per_step: &step,
            old_lse: &old_lse,
            lse: &lse,
            lse_per_step: &step_lse,
            cu_seqlens: &cu,
        };
        let (second_half, packed) = (only_second_half != 0, lse_packed != 0);
        context_parallel::out_correction(&tensors, second_half, packed, stream)
    });
}

/// Merges the gradient of a step into a gradient, in place, separately for the first and the second
/// half of every sequence.
///
/// What happens to a half: "add", "copy", "none" or "zero". Allowed are (add, none), (copy, none),
/// (copy, zero), (add, copy), and each of them the other way round.
///
/// Shapes: grad `[t, h, d]` or `[2, t, h, d]`; grad_per_step the same for (add, copy), otherwise with t
/// / 2 tokens.
///
/// Dtypes: Float32, Float16 or BFloat16; with "zero" also Byte.
///
/// Errors: other pairs, shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cp_thd_grad_correction(
    grad: NVTETensor,
    grad_per_step: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    first_half: *const c_char,
    second_half: *const c_char,
    stream: cudaStream_t,
) {
    guard("nvte_cp_thd_grad_correction", || {
        // SAFETY: the caller vouches for the references and the texts.
        let (step, cu_seqlens, halves) = unsafe {
            (
                referred("grad_per_step", grad_per_step)?,
                referred("cu_seqlens", cu_seqlens)?,
                (half_op("first_half", first_half)?, half_op("second_half", second_half)?),
            )
        };
        let grad = check::tensor("grad", grad)?;
        context_parallel::grad_correction(&grad, &step, &cu_seqlens, halves, stream)
    });
}

/// Lists the tokens that a rank has in context parallelism: each sequence is cut into `2 world_size`
/// chunks, and rank k has chunk k and the k-th from the end.
///
/// Shapes: output Int32 `[total_tokens / world_size]`.
///
/// Errors: a `total_tokens` that is not a multiple of 2 world_size; a rank outside of the world; other
/// shapes or dtypes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cp_thd_get_partitioned_indices(
    cu_seqlens: NVTETensorReference,
    output: NVTETensor,
    total_tokens: c_int,
    world_size: c_int,
    rank: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_cp_thd_get_partitioned_indices", || {
        // SAFETY: the caller vouches for the reference.
        let cu_seqlens = unsafe { referred("cu_seqlens", cu_seqlens)? };
        let ranks = Ranks::new(total_tokens, world_size)?;
        let output = check::tensor("output", output)?;
        context_parallel::partitioned_indices(&cu_seqlens, &output, ranks, rank, stream)
    });
}

/// Orders tokens by the rank to which `nvte_cp_thd_get_partitioned_indices` assigns them.
///
/// Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same for both.
///
/// Errors: a `total_tokens` that is not a multiple of 2 world_size; other shapes or dtypes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_thd_sequence_order_to_cp_rank_order(
    inp: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    out: NVTETensor,
    world_size: c_int,
    total_tokens: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_thd_sequence_order_to_cp_rank_order", || {
        let (ranks, map) = (Ranks::new(total_tokens, world_size)?, RowMap::NVTEX_ROWS_TO_RANKS);
        // SAFETY: the caller vouches for the references.
        let (inp, cu) = unsafe { (referred("inp", inp)?, referred("cu_seqlens", cu_seqlens)?) };
        let out = check::tensor("out", out)?;
        context_parallel::reorder(&inp, &cu, &out, ranks, map, stream)
    });
}

/// Orders the tokens of all ranks by sequence again: the inverse of
/// `nvte_thd_sequence_order_to_cp_rank_order`.
///
/// Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same for both.
///
/// Errors: a `total_tokens` that is not a multiple of 2 world_size; other shapes or dtypes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_thd_cp_rank_order_to_sequence_order(
    inp: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    out: NVTETensor,
    world_size: c_int,
    total_tokens: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_thd_cp_rank_order_to_sequence_order", || {
        let (ranks, map) = (Ranks::new(total_tokens, world_size)?, RowMap::NVTEX_ROWS_FROM_RANKS);
        // SAFETY: the caller vouches for the references.
        let (inp, cu) = unsafe { (referred("inp", inp)?, referred("cu_seqlens", cu_seqlens)?) };
        let out = check::tensor("out", out)?;
        context_parallel::reorder(&inp, &cu, &out, ranks, map, stream)
    });
}

/// Copies the tokens of packed sequences, without their padding: of sequence s, which begins at
/// `cu_seqlens_padded[s]`, the first `cu_seqlens[s + 1] - cu_seqlens[s]`. Other rows of out stay as
/// they are.
///
/// Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same for both.
///
/// Errors: other shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_thd_copy_valid_tokens_from_per_split_to_rank_local(
    inp: NVTETensorReference,
    cu_seqlens_padded: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    out: NVTETensor,
    total_tokens: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_thd_copy_valid_tokens_from_per_split_to_rank_local", || {
        // SAFETY: the caller vouches for the references.
        let (inp, padded, cu) = unsafe {
            (
                referred("inp", inp)?,
                referred("cu_seqlens_padded", cu_seqlens_padded)?,
                referred("cu_seqlens", cu_seqlens)?,
            )
        };
        let (total, out) = (count("total_tokens", total_tokens)?, check::tensor("out", out)?);
        packing::copy_valid(&inp, &padded, &cu, &out, total, stream)
    });
}

/// Spreads packed tokens `[t, h, d]` over `[b, max_seq_len, h, d]`; rows past the end of a sequence
/// stay as they are.
///
/// Shapes: cu_seqlens Int32 `[b + 1 or more]`.
///
/// Dtypes: Float32, Float16, BFloat16, Float8E4M3 or Float8E5M2, the same for both tensors.
///
/// Errors: other shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_convert_thd_to_bshd(
    tensor: NVTETensor,
    cu_seqlens: NVTETensor,
    new_tensor: NVTETensor,
    b: c_int,
    max_seq_len: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_convert_thd_to_bshd", || {
        let new_tensor = check::tensor("new_tensor", new_tensor)?;
        let (shape, packed) = (new_tensor.rowwise.shape, check::tensor("tensor", tensor)?);
        let cu_seqlens = check::tensor("cu_seqlens", cu_seqlens)?;
        let sizes = [count("b", b)?, count("max_seq_len", max_seq_len)?];
        if shape.dims().get(..2) != Some(&sizes[..]) {
            let expected = format!("[{}, {}, heads, dim]", sizes[0], sizes[1]);
            return Err(Error::argument("new_tensor.shape", expected, shape));
        }
        let (packed, padded) = (("tensor", &packed), ("new_tensor", &new_tensor));
        packing::convert(packed, padded, &cu_seqlens, RowMap::NVTEX_ROWS_UNPACK, stream)
    });
}

/// Packs the tokens of `[b, s, h, d]` into `[t, h, d]`. The argument `t` is not used.
///
/// Shapes: cu_seqlens Int32 `[b + 1 or more]`.
///
/// Dtypes: Float32, Float16, BFloat16, Float8E4M3 or Float8E5M2, the same for both tensors.
///
/// Errors: other shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_convert_bshd_to_thd(
    tensor: NVTETensor,
    cu_seqlens: NVTETensor,
    new_tensor: NVTETensor,
    t: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_convert_bshd_to_thd", || {
        let _ = t;
        let (packed, padded) =
            (check::tensor("new_tensor", new_tensor)?, check::tensor("tensor", tensor)?);
        let cu_seqlens = check::tensor("cu_seqlens", cu_seqlens)?;
        let (packed, padded) = (("new_tensor", &packed), ("tensor", &padded));
        packing::convert(packed, padded, &cu_seqlens, RowMap::NVTEX_ROWS_PACK, stream)
    });
}

/// Copies the keys and values of new tokens to their places in a cache.
///
/// Places: sequence i has `cu_new_lens[i + 1] - cu_new_lens[i]` new tokens, and with them
/// `cu_cached_lens[i + 1] - cu_cached_lens[i]` in all. Its token p lies on page
/// `page_table[i][p / page_size]`. Without pages (`is_non_paged`) it lies in slot i: then page_table
/// holds the old slots `[b or more]` of the sequences that go on, which are first moved to the front.
///
/// Shapes: caches `[pages, page_size, h, d]`, with page_size = max_seq_len / max_pages_per_seq; new
/// tokens, by qkv_format, `[b or more, max_ctx_len, h, d]`, `[s, b, h, d]` or packed `[t, h, d]`; cumulative
/// lengths Int32 `[b + 1 or more]`; the page table of b max_pages_per_seq elements or more.
///
/// Dtypes: Float32, Float16, BFloat16, Float8E4M3 or Float8E5M2, the same for both caches and the new
/// keys and values.
///
/// Notes: nothing happens if a cache or the new keys or values have no data. Packed new tokens are all
/// copied, whatever `max_ctx_len` says.
///
/// Errors: other shapes, formats or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_copy_to_kv_cache(
    new_k: NVTETensor,
    new_v: NVTETensor,
    k_cache: NVTETensor,
    v_cache: NVTETensor,
    page_table: NVTETensor,
    cu_new_lens: NVTETensor,
    cu_cached_lens: NVTETensor,
    qkv_format: MaybeUninit<NVTE_QKV_Format>,
    b: c_int,
    max_ctx_len: c_int,
    max_seq_len: c_int,
    max_pages_per_seq: c_int,
    is_non_paged: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_copy_to_kv_cache", || {
        let (new_k, new_v) = (check::tensor("new_k", new_k)?, check::tensor("new_v", new_v)?);
        let (k_cache, v_cache) =
            (check::tensor("k_cache", k_cache)?, check::tensor("v_cache", v_cache)?);
        if [&new_k, &new_v, &k_cache, &v_cache].iter().any(|tensor| !tensor.rowwise.is_set()) {
            return Ok(());
        }
        let copy = ToCache {
            new: [&new_k, &new_v],
            cache: [&k_cache, &v_cache],
            page_table: &check::tensor("page_table", page_table)?,
            cu_new_lens: &check::tensor("cu_new_lens", cu_new_lens)?,
            cu_cached_lens: &check::tensor("cu_cached_lens", cu_cached_lens)?,
            batch: positive("b", b)?,
            max_new: count("max_ctx_len", max_ctx_len)?,
            max_length: positive("max_seq_len", max_seq_len)?,
            max_pages: positive("max_pages_per_seq", max_pages_per_seq)?,
            paged: is_non_paged == 0,
        };
        copy_to_cache(&copy, from_c("qkv_format", qkv_format)?, stream)
    });
}

/// Separates interleaved queries, keys and values: from `[s, b, n, 3, d]` in memory to
/// `[3, b, s, n, d]`. The handle of the input has the shape `[s, b, n, d]`.
///
/// Dtypes: Float16 or BFloat16, the same for both.
///
/// Errors: other shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_prepare_flash_attn_fwd(
    qkvi: NVTETensor,
    qkv: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_prepare_flash_attn_fwd", || {
        let (qkvi, qkv) = (check::tensor("qkvi", qkvi)?, check::tensor("qkv", qkv)?);
        packing::separate(&qkvi, &qkv, stream)
    });
}

/// Interleaves queries, keys and values `[b, s, n, d]` as `[s, b, n, 3, d]`.
///
/// Dtypes: Float16 or BFloat16, the same for all.
///
/// Errors: other shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_prepare_flash_attn_bwd(
    q: NVTETensor,
    k: NVTETensor,
    v: NVTETensor,
    qkv: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_prepare_flash_attn_bwd", || {
        let (q, k) = (check::tensor("q", q)?, check::tensor("k", k)?);
        let (v, qkv) = (check::tensor("v", v)?, check::tensor("qkv", qkv)?);
        packing::join([&q, &k, &v], &qkv, stream)
    });
}

/// Transposes tensors `[b, s, h, d]` or `[s, b, h, d]` (original_format) to `[b, h, s, d or more]`,
/// with zeros behind each d.
///
/// Dtypes: any, the same for an input and its output.
///
/// Errors: another format; other shapes or dtypes; null or misaligned pointers. Nothing is written
/// then.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_transpose_to_bhsd(
    inputs: *mut NVTETensor,
    outputs: *mut NVTETensor,
    num_tensors: usize,
    original_format: MaybeUninit<NVTE_QKV_Format>,
    stream: cudaStream_t,
) {
    guard("nvte_multi_tensor_transpose_to_bhsd", || {
        let format: NVTE_QKV_Format = from_c("original_format", original_format)?;
        if format != NVTE_BSHD && format != NVTE_SBHD {
            let got = format!("{format:?}");
            return Err(Error::argument("original_format", "NVTE_SBHD or NVTE_BSHD", got));
        }
        let count = ("num_tensors", num_tensors);
        // SAFETY: the caller vouches for the arrays.
        let (inputs, outputs) = unsafe {
            (check::tensors("inputs", inputs, count)?, check::tensors("outputs", outputs, count)?)
        };
        let entry = |from: (&_, &_), to: (&_, &_)| packing::transpose_to_bhsd(from, to, format);
        packing::copy_each(&inputs, &outputs, entry, stream)
    });
}

/// Copies matrices `[r, c]` to wider ones, with zeros behind each row.
///
/// Dtypes: any, the same for an input and its output.
///
/// Errors: other shapes or dtypes; an output that overlaps its input; null or misaligned pointers.
/// Nothing is written then.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_pad_last_dim(
    inputs: *mut NVTETensor,
    outputs: *mut NVTETensor,
    num_tensors: usize,
    stream: cudaStream_t,
) {
    guard("nvte_multi_tensor_pad_last_dim", || {
        let count = ("num_tensors", num_tensors);
        // SAFETY: the caller vouches for the arrays.
        let (inputs, outputs) = unsafe {
            (check::tensors("inputs", inputs, count)?, check::tensors("outputs", outputs, count)?)
        };
        packing::copy_each(&inputs, &outputs, packing::pad_last_dim, stream)
    });
}

/// Fills the state of a random generator: the seed at `seed`, and an offset that grows with every call
/// of the thread.
///
/// The offset grows by 16 for `NVTE_F16_arbitrary_seqlen`, otherwise by
/// `q_max_seqlen kv_max_seqlen / 128`, rounded up. `rng_state_dst` (Int64 `[2]`) and `seed` (Int64) are
/// device addresses, not tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_populate_rng_state_async(
    rng_state_dst: NVTETensor,
    seed: NVTETensor,
    q_max_seqlen: usize,
    kv_max_seqlen: usize,
    backend: MaybeUninit<NVTE_Fused_Attn_Backend>,
    stream: cudaStream_t,
) {
    guard("nvte_populate_rng_state_async", || {
        let lengths = (q_max_seqlen, kv_max_seqlen);
        random::populate_rng_state(rng_state_dst, seed, lengths, number(backend), stream)
    });
}

/// Counts how many of the first `len` entries of cu_seqlens are above 0. It waits for the stream.
///
/// `cu_seqlens` (Int32) is a device address, not a tensor; `workspace` is not used.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_get_runtime_num_segments(
    cu_seqlens: NVTETensor,
    workspace: NVTETensor,
    len: usize,
    stream: cudaStream_t,
) -> u32 {
    guard("nvte_get_runtime_num_segments", || {
        let _ = workspace;
        random::runtime_num_segments(cu_seqlens, len, stream)
    })
}

/// Fills the state of a random generator, `{seed, offset}`.
///
/// With `captured` these are the value at `seed_ptr`, and the value at `offset_ptr` plus
/// `offset_intragraph`, read on the device; otherwise `seed_val` and `offset_val`.
///
/// Errors: null or misaligned pointers that are needed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_extract_seed_and_offset(
    rng_state_ptr: *mut i64,
    captured: c_int,
    seed_ptr: *mut i64,
    seed_val: u64,
    offset_ptr: *mut i64,
    offset_val: u64,
    offset_intragraph: u32,
    stream: cudaStream_t,
) {
    guard("nvte_extract_seed_and_offset", || {
        let on_device = captured != 0;
        let args = SeedArgs {
            state: rng_state_ptr,
            seed_at: if on_device { seed_ptr } else { null() },
            offset_at: if on_device { offset_ptr } else { null() },
            seed: if on_device { 0 } else { seed_val as i64 },
            offset: if on_device { offset_intragraph.into() } else { offset_val as i64 },
        };
        random::extract_seed_and_offset(&args, on_device, stream)
    });
}

/// What one implementation of attention computes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXAttentionPass {
    NVTEX_ATTENTION_FORWARD = 0,
    NVTEX_ATTENTION_BACKWARD = 1,
}

from_c_enum!(NVTEXAttentionPass, "an NVTEXAttentionPass from 0 to 1");

/// Returns the kind of implementation that would run an attention: `NVTE_FP8` for FP8 queries,
/// otherwise `NVTE_F16_arbitrary_seqlen`, or `NVTE_No_Backend` if none can. A config of training asks
/// for both passes.
///
/// `message` (null: nowhere) becomes "" or the reason why none can; it is valid until the thread's next
/// call of this function or of `nvtex_fused_attn_query`. The answer depends on the config and the
/// device alone. With FP8 queries `do_dtype` may be the dtype of the gradient before its cast: the
/// backward pass takes it in FP8.
///
/// Errors: no config; a number that stands for no layout, format, dtype, mask, bias or softmax. A
/// request that is well formed and cannot be run is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_get_fused_attn_backend_v2(
    cfg: NVTEFusedAttnConfig,
    message: *mut *const c_char,
) -> NVTE_Fused_Attn_Backend {
    let number = guard("nvte_get_fused_attn_backend_v2", || {
        // SAFETY: the caller vouches for the address.
        unsafe { backend::buf::store(message, c"".as_ptr()) };
        let supported = problem_of_config(cfg)?.supported();
        Ok(Chosen(supported.unwrap_or_else(|reason| {
            // SAFETY: the caller vouches for the address.
            unsafe { backend::buf::store(message, keep(&reason)) };
            NVTE_Fused_Attn_Backend::NVTE_No_Backend
        })))
    });
    number.0
}

/// The result of a choice; none after an error.
struct Chosen(NVTE_Fused_Attn_Backend);

impl Default for Chosen {
    fn default() -> Self {
        Self(NVTE_Fused_Attn_Backend::NVTE_No_Backend)
    }
}

/// Returns what `nvte_get_fused_attn_backend_v2` returns, for a batch of one, one dtype for all
/// tensors, and a bias `[1, h, s_q, s_kv]`.
///
/// Layouts with pages get `NVTE_No_Backend`, because the arguments say nothing about pages.
///
/// Errors: a kv_dtype that is not q_dtype; unknown numbers.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_fused_attn_backend(
    is_training: MaybeUninit<bool>,
    q_dtype: MaybeUninit<NVTEDType>,
    kv_dtype: MaybeUninit<NVTEDType>,
    qkv_layout: MaybeUninit<NVTE_QKV_Layout>,
    bias_type: MaybeUninit<NVTE_Bias_Type>,
    attn_mask_type: MaybeUninit<NVTE_Mask_Type>,
    softmax_type: MaybeUninit<NVTE_Softmax_Type>,
    dropout: f32,
    num_attn_heads: usize,
    num_gqa_groups: usize,
    max_seqlen_q: usize,
    max_seqlen_kv: usize,
    head_dim_qk: usize,
    head_dim_v: usize,
    window_size_left: i64,
    window_size_right: i64,
    return_max_logit: MaybeUninit<bool>,
    cuda_graph: MaybeUninit<bool>,
    deterministic: MaybeUninit<bool>,
) -> NVTE_Fused_Attn_Backend {
    let chosen = guard("nvte_get_fused_attn_backend", || {
        let (q, kv): (NVTEDType, NVTEDType) =
            (from_c("q_dtype", q_dtype)?, from_c("kv_dtype", kv_dtype)?);
        if q != kv {
            return Err(Error::argument("kv_dtype", format!("{q} (q_dtype)"), kv));
        }
        let layout = layout(qkv_layout)?;
        let max_seqlen = [max_seqlen_q, max_seqlen_kv];
        // `cuda_graph` has no influence: every call can be captured.
        let _ = cuda_graph;
        let attention = Attention {
            mask: from_c("attn_mask_type", attn_mask_type)?,
            bias: from_c("bias_type", bias_type)?,
            softmax: from_c("softmax_type", softmax_type)?,
            window: [window_size_left, window_size_right],
            dropout,
            training: truth(is_training),
            deterministic: truth(deterministic),
            max_logit: truth(return_max_logit),
            max_seqlen,
            ..Attention::new(layout)
        };
        let problem = Problem {
            attention,
            scaling: NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING,
            qkv_dtype: q,
            o_dtype: q,
            do_dtype: q,
            dqkv_dtype: q,
            bias_dtype: if q.is_fp8() { kNVTEBFloat16 } else { q },
            batch: 1,
            heads: [num_attn_heads, num_gqa_groups],
            dim_qk: head_dim_qk,
            dim_v: head_dim_v,
            tokens: max_seqlen,
            pages: Default::default(),
            bias: [1, num_attn_heads, max_seqlen_q, max_seqlen_kv],
        };
        Ok(Chosen(problem.supported().unwrap_or(NVTE_Fused_Attn_Backend::NVTE_No_Backend)))
    });
    chosen.0
}

/// Tells which implementation would run one pass of an attention, and why others declined.
///
/// Outputs, each of which may be null:
/// - `implementation`: its name, a static text, or null if there is none.
/// - `rejected`: the implementations that were asked before it, as "name: reason", one a line; if there
///   is none, the reasons why, with what would do. It is valid until the thread's next call of this
///   function or of `nvte_get_fused_attn_backend_v2`.
/// - `workspace_bytes`: what a query for the workspace would answer.
///
/// The result is that of `nvte_get_fused_attn_backend_v2` for this pass alone.
///
/// Errors: as `nvte_get_fused_attn_backend_v2`; an unknown pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_fused_attn_query(
    config: NVTEFusedAttnConfig,
    pass: MaybeUninit<NVTEXAttentionPass>,
    implementation: *mut *const c_char,
    rejected: *mut *const c_char,
    workspace_bytes: *mut usize,
) -> NVTE_Fused_Attn_Backend {
    let chosen = guard("nvtex_fused_attn_query", || {
        let pass: NVTEXAttentionPass = from_c("pass", pass)?;
        let backward = pass == NVTEXAttentionPass::NVTEX_ATTENTION_BACKWARD;
        let problem = problem_of_config(config)?;
        let (kind, name, reasons, bytes) = match problem.plan(backward, true) {
            Ok(planned) => {
                let bytes = problem.workspace_bytes(planned.workspace_bytes);
                (problem.kind(), planned.name, keep(&planned.rejected), bytes)
            }
            Err(error) => {
                (NVTE_Fused_Attn_Backend::NVTE_No_Backend, null(), keep(&error.message), 0)
            }
        };
        // SAFETY: the caller vouches for the addresses.
        unsafe {
            backend::buf::store(implementation, name);
            backend::buf::store(rejected, reasons);
            backend::buf::store(workspace_bytes, bytes);
        }
        Ok(Chosen(kind))
    });
    chosen.0
}

/// Computes attention, `O = softmax(attn_scale Q K^T + bias) V`, as the parameters describe it.
///
/// Two calls with the same parameters:
/// - First the workspace has no data, and the pack at `Aux_CTX_Tensors`, whose tensors
///   `nvte_tensor_pack_create` has made, has the `size` 0 (in C `NVTETensorPack pack = {0}`). The
///   workspace and the tensors of the pack take the shapes and dtypes that they need, `size` becomes
///   their number, and nothing runs.
/// - Then the workspace and the Stats and Max of the pack have memory, and the pass runs. The backward
///   pass takes the pack without Max.
///
/// Shapes:
/// - Q, K, V: those of `qkv_layout`, without the 2 or 3 of interleaved layouts. Query head j reads key
///   head `j / (h_q / h_kv)`. Paged keys and values are `[pages, page_size, h, d]`, with page tables
///   Int32 `[b or more, max_pages_per_seq]`. K and V of `[b, s, h, d]` or `[b, h, s, d]` may have more
///   sequences than Q, which are not read.
/// - O: as Q, in `o_format`, with heads of as many elements as those of V.
/// - Lengths: `max_seqlen_*`; with a padding mask those that `cu_seqlens_*`, Int32 `[b + 1 or more]`,
///   bound. The tokens of packed (THD) sequence i begin at `cu_seqlens_*_padded[i]` if that is given
///   (also Int32 `[b + 1 or more]`), otherwise at `cu_seqlens_*[i]`. With packed queries, b is the
///   number of elements of `cu_seqlens_q` less 1.
/// - Bias: `[1 or b, 1 or h, 1 or s_q, s_kv]`.
///
/// Dtypes: Q, K and V Float16, BFloat16 or Float32, and O the same; or Float8E4M3 or Float8E5M2 with a
/// scale_inv, and then O in FP8 (with a scale) or of 16 or 32 bits, and S may have scale, scale_inv and
/// amax of the probabilities. The bias is read in Q's dtype whatever its handle says, or with FP8 in
/// the dtype of its handle.
///
/// Options:
/// - Masks: scores count inside of the lengths; under a causal mask for columns up to the row; in a
///   window from `row - window_size_left` to `row + window_size_right` (-1: unbounded). Rows are
///   counted from the top left, or from the bottom right of a sequence's scores if the mask or
///   `bottom_right_diagonal` says so.
/// - SoftmaxOffset: Float32, for each head one more score without a value. If it is absent and the
///   softmax is off by one, it is 0.
/// - Dropout happens in training only and needs `rng_state`, Int64 `{seed, offset}`.
///
/// Aux_CTX_Tensors, in this order: Stats (the natural logarithm of the sum of exponentials, Float32
/// `[b, h, s_q, 1]` or `[t_q, h, 1]`); with `return_max_logit` Max (of the same shape, the largest
/// score); and if they are used, rng_state, bias and offset, which come to point to the inputs.
///
/// Notes:
/// - A row without a score becomes 0, its Stats and Max -Inf. So do rows past the end of a sequence;
///   packed tokens of no sequence are not touched. If there are no rows nothing is written.
/// - Keys and values past the end of a sequence never reach a result. A NaN or infinity that only later
///   queries see reaches no earlier query on the CPU backend; on CUDA it may reach earlier queries of
///   the same tile of the causal or window mask.
/// - `cuda_graph` has no influence.
///
/// Errors: sizes, dtypes and options that do not fit; null or misaligned pointers (tensors whose heads
/// are a multiple of 16 bytes are aligned to 16 bytes); what no implementation of the backend takes
/// (`nvtex_fused_attn_query` says why).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_attn_fwd_v2(params: NVTEFusedAttnFwdParams) {
    guard("nvte_fused_attn_fwd_v2", || {
        // SAFETY: the caller vouches for the pack.
        unsafe { ForwardCall::of_params(params)?.run() }
    });
}

/// Computes attention as `nvte_fused_attn_fwd_v2` does, with the parameters as arguments. Tensors that
/// are not needed may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_attn_fwd(
    Q: NVTETensor,
    K: NVTETensor,
    V: NVTETensor,
    Bias: NVTETensor,
    SoftmaxOffset: NVTETensor,
    S: NVTETensor,
    O: NVTETensor,
    Aux_CTX_Tensors: *mut NVTETensorPack,
    cu_seqlens_q: NVTETensor,
    cu_seqlens_kv: NVTETensor,
    cu_seqlens_q_padded: NVTETensor,
    cu_seqlens_kv_padded: NVTETensor,
    page_table_k: NVTETensor,
    page_table_v: NVTETensor,
    rng_state: NVTETensor,
    max_seqlen_q: usize,
    max_seqlen_kv: usize,
    is_training: MaybeUninit<bool>,
    return_max_logit: MaybeUninit<bool>,
    cuda_graph: MaybeUninit<bool>,
    attn_scale: f32,
    dropout: f32,
    qkv_layout: MaybeUninit<NVTE_QKV_Layout>,
    o_format: MaybeUninit<NVTE_QKV_Format>,
    qkv_scale_inv_format: MaybeUninit<NVTE_QKV_Format>,
    bias_type: MaybeUninit<NVTE_Bias_Type>,
    attn_mask_type: MaybeUninit<NVTE_Mask_Type>,
    softmax_type: MaybeUninit<NVTE_Softmax_Type>,
    window_size_left: i64,
    window_size_right: i64,
    bottom_right_diagonal: MaybeUninit<bool>,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_fused_attn_fwd", || {
        // `cuda_graph` has no influence: every call can be captured.
        let _ = cuda_graph;
        let options = COptions {
            layout: number(qkv_layout),
            o_format: number(o_format),
            qkv_scale_inv_format: number(qkv_scale_inv_format),
            gradients: None,
            mask: number(attn_mask_type),
            bias: number(bias_type),
            window: [window_size_left, window_size_right],
            bottom_right: truth(bottom_right_diagonal),
            softmax: number(softmax_type),
            dropout,
            scale: attn_scale,
            training: truth(is_training),
            deterministic: false,
            max_logit: truth(return_max_logit),
            max_seqlen: [max_seqlen_q, max_seqlen_kv],
        };
        let call = ForwardCall {
            options,
            qkv: [Q, K, V],
            bias: Bias,
            softmax_offset: SoftmaxOffset,
            s: S,
            o: O,
            pack: Aux_CTX_Tensors,
            cu_seqlens: [cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded],
            page_tables: [page_table_k, page_table_v],
            rng_state,
            workspace,
            stream,
        };
        // SAFETY: the caller vouches for the pack.
        unsafe { call.run() }
    });
}

/// Computes the gradients of `nvte_fused_attn_fwd_v2`, which replace what their tensors hold.
///
/// Inputs: Q, K, V, O, dO, and the pack at `Aux_CTX_Tensors` without Max: Stats and, if they are used,
/// rng_state, bias and offset, in this order. In a pack of 4 tensors or more the offset is the fourth,
/// also if no bias is used. Dropout drops what the forward pass dropped with the same state.
///
/// Outputs: dQ, dK and dV have the shapes of `dqkv_layout` and the dtype of Q, or with FP8 Q any dtype;
/// rows past the end of a sequence are treated as those of O in the forward pass. dBias (of the bias's
/// shape, summed where the bias is broadcast) and dSoftmaxOffset (Float32, one for each head) may be
/// absent.
///
/// Workspace: while it has no data, the call only sets its shape and dtype.
///
/// Notes: with `deterministic` sums are in a fixed order, as they always are on the CPU. There are no
/// gradients of paged keys and values. With FP8, S is as in the forward pass, and dP has scale,
/// scale_inv and amax of the scores' gradient.
///
/// Errors: as `nvte_fused_attn_fwd_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_attn_bwd_v2(params: NVTEFusedAttnBwdParams) {
    guard("nvte_fused_attn_bwd_v2", || {
        // SAFETY: the caller vouches for the pack.
        unsafe { BackwardCall::of_params(params)?.run() }
    });
}

/// Computes the gradients of attention as `nvte_fused_attn_bwd_v2` does, with the parameters as
/// arguments. Tensors that are not needed may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fused_attn_bwd(
    Q: NVTETensor,
    K: NVTETensor,
    V: NVTETensor,
    O: NVTETensor,
    dO: NVTETensor,
    S: NVTETensor,
    dP: NVTETensor,
    Aux_CTX_Tensors: *const NVTETensorPack,
    dQ: NVTETensor,
    dK: NVTETensor,
    dV: NVTETensor,
    dBias: NVTETensor,
    dSoftmaxOffset: NVTETensor,
    cu_seqlens_q: NVTETensor,
    cu_seqlens_kv: NVTETensor,
    cu_seqlens_q_padded: NVTETensor,
    cu_seqlens_kv_padded: NVTETensor,
    max_seqlen_q: usize,
    max_seqlen_kv: usize,
    attn_scale: f32,
    dropout: f32,
    qkv_layout: MaybeUninit<NVTE_QKV_Layout>,
    o_format: MaybeUninit<NVTE_QKV_Format>,
    do_format: MaybeUninit<NVTE_QKV_Format>,
    dqkv_layout: MaybeUninit<NVTE_QKV_Layout>,
    qkv_scale_inv_format: MaybeUninit<NVTE_QKV_Format>,
    do_scale_inv_format: MaybeUninit<NVTE_QKV_Format>,
    bias_type: MaybeUninit<NVTE_Bias_Type>,
    attn_mask_type: MaybeUninit<NVTE_Mask_Type>,
    softmax_type: MaybeUninit<NVTE_Softmax_Type>,
    window_size_left: i64,
    window_size_right: i64,
    bottom_right_diagonal: MaybeUninit<bool>,
    deterministic: MaybeUninit<bool>,
    cuda_graph: MaybeUninit<bool>,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_fused_attn_bwd", || {
        // `cuda_graph` has no influence: every call can be captured.
        let _ = cuda_graph;
        let options = COptions {
            layout: number(qkv_layout),
            o_format: number(o_format),
            qkv_scale_inv_format: number(qkv_scale_inv_format),
            gradients: Some(CGradients {
                do_format: number(do_format),
                dqkv_layout: number(dqkv_layout),
                do_scale_inv_format: number(do_scale_inv_format),
            }),
            mask: number(attn_mask_type),
            bias: number(bias_type),
            window: [window_size_left, window_size_right],
            bottom_right: truth(bottom_right_diagonal),
            softmax: number(softmax_type),
            dropout,
            scale: attn_scale,
            training: true,
            deterministic: truth(deterministic),
            max_logit: false,
            max_seqlen: [max_seqlen_q, max_seqlen_kv],
        };
        let call = BackwardCall {
            options,
            qkv: [Q, K, V],
            o: O,
            d_o: dO,
            s: S,
            dp: dP,
            pack: Aux_CTX_Tensors,
            gradients: [dQ, dK, dV],
            dbias: dBias,
            doffset: dSoftmaxOffset,
            cu_seqlens: [cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded],
            workspace,
            stream,
        };
        // SAFETY: the caller vouches for the pack.
        unsafe { call.run() }
    });
}
