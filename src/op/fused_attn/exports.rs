//! C functions of fused_attn.h: layouts, configs and parameters of attention, and the helpers of packed
//! sequences, context parallelism and caches.
#![allow(unsafe_code, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::error::{Handle, guard};

/// Which of queries, keys and values a layout interleaves.
///
/// Errors: no layout from 0 to 25 (the result is then 0).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_qkv_layout_group(
    qkv_layout: MaybeUninit<NVTE_QKV_Layout>,
) -> NVTE_QKV_Layout_Group {
    guard("nvte_get_qkv_layout_group", || Ok(layout(qkv_layout)?.group))
}

/// The order of dimensions of a layout.
///
/// Errors: no layout from 0 to 25 (the result is then 0).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_qkv_format(
    qkv_layout: MaybeUninit<NVTE_QKV_Layout>,
) -> NVTE_QKV_Format {
    guard("nvte_get_qkv_format", || Ok(layout(qkv_layout)?.all))
}

/// The order of dimensions of the queries of a layout.
///
/// Errors: no layout from 0 to 25 (the result is then 0).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_q_format(
    qkv_layout: MaybeUninit<NVTE_QKV_Layout>,
) -> NVTE_QKV_Format {
    guard("nvte_get_q_format", || Ok(layout(qkv_layout)?.q))
}

/// The order of dimensions of the keys and values of a layout.
///
/// Errors: no layout from 0 to 25 (the result is then 0).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_get_kv_format(
    qkv_layout: MaybeUninit<NVTE_QKV_Layout>,
) -> NVTE_QKV_Format {
    guard("nvte_get_kv_format", || Ok(layout(qkv_layout)?.kv))
}

/// Creates a config of attention with defaults. Destroy with `nvte_destroy_fused_attn_config`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_create_fused_attn_config() -> NVTEFusedAttnConfig {
    guard("nvte_create_fused_attn_config", || Ok(Handle(CONFIGS.create()?))).0
}

/// Destroys a config of attention. Null is an error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_destroy_fused_attn_config(config: NVTEFusedAttnConfig) {
    guard("nvte_destroy_fused_attn_config", || CONFIGS.destroy(config));
}

/// Copies an attribute to `buf` and its size to `size_written` (null: nowhere). With a null `buf` only
/// the size.
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

/// Sets an attribute from `size_in_bytes` bytes at `buf`; flags are one byte. Values are checked when they
/// are used.
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

/// Creates parameters of a forward attention with defaults. Destroy with `nvte_destroy_fused_attn_fwd_params`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_create_fused_attn_fwd_params() -> NVTEFusedAttnFwdParams {
    guard("nvte_create_fused_attn_fwd_params", || Ok(Handle(FWD.create()?))).0
}

/// Destroys parameters of a forward attention. Null is an error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_destroy_fused_attn_fwd_params(params: NVTEFusedAttnFwdParams) {
    guard("nvte_destroy_fused_attn_fwd_params", || FWD.destroy(params));
}

/// Copies an attribute to `buf` and its size to `size_written` (null: nowhere). With a null `buf` only
/// the size.
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

/// Sets an attribute from `size_in_bytes` bytes at `buf`; flags are one byte. Values are checked when they
/// are used.
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

/// Creates parameters of a backward attention with defaults. Destroy with `nvte_destroy_fused_attn_bwd_params`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_create_fused_attn_bwd_params() -> NVTEFusedAttnBwdParams {
    guard("nvte_create_fused_attn_bwd_params", || Ok(Handle(BWD.create()?))).0
}

/// Destroys parameters of a backward attention. Null is an error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_destroy_fused_attn_bwd_params(params: NVTEFusedAttnBwdParams) {
    guard("nvte_destroy_fused_attn_bwd_params", || BWD.destroy(params));
}

/// Copies an attribute to `buf` and its size to `size_written` (null: nowhere). With a null `buf` only
/// the size.
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

/// Sets an attribute from `size_in_bytes` bytes at `buf`; flags are one byte. Values are checked when they
/// are used.
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
/// Shapes: tensor `[t, h, d]` or `[2, t, h, d]`, half with t / 2 tokens; cu_seqlens Int32 `[b + 1]`, first
/// tokens, even. Dtypes: any, the same.
/// Errors: other shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cp_thd_read_half_tensor(
    tensor: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    half: NVTETensor,
    half_idx: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_cp_thd_read_half_tensor", || unsafe {
        // SAFETY: the caller vouches for the references.
        read_half(tensor, cu_seqlens, half, half_idx, stream)
    });
}

/// Merges the log-sum-exp of a step into that of the second half of every sequence, in place:
/// `lse = log(exp(lse) + exp(lse_per_step))`.
///
/// Shapes (Float32): packed `[h, t]` and `[h, t / 2 or more]`, else `[b, h, s]` and `[b, h, s / 2]`.
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
        half_lse(("lse", lse), ("lse_per_step", step), cu, lse_packed != 0, true, stream)
    });
}

/// Copies the log-sum-exp of the second half of every sequence; entries that have none stay.
///
/// Shapes (Float32): as `nvte_cp_thd_second_half_lse_correction`, with `second_half_lse_seqlen` as the last
/// dimension of half_lse.
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
        let shape = check::tensor("half_lse", half_lse)?.rowwise.shape;
        if shape.dims().last() != Some(&length) {
            let expected = format!("{length} (second_half_lse_seqlen) as the last dimension");
            return Err(Error::argument("half_lse.shape", expected, shape));
        }
        super::half_lse(("lse", lse), ("half_lse", half_lse), cu, lse_packed != 0, false, stream)
    });
}

/// Merges the output of a step, in place:
/// `out = out exp(old_lse - lse) + out_per_step exp(lse_per_step - lse)`, in float32; zero elements stay zero.
///
/// Shapes: out `[t, h, d]`, out_per_step the same or, `only_second_half`, `[t / 2, h, d]`; log-sum-exps Float32,
/// packed `[h, t]`, else `[b, h, s]`. Dtypes: Float32, Float16, BFloat16, the same for both.
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
        let handles = OutCorrection { out, out_per_step, old_lse, lse, lse_per_step, cu_seqlens };
        // SAFETY: the caller vouches for the references.
        unsafe { out_correction(&handles, only_second_half != 0, lse_packed != 0, stream) }
    });
}

/// Merges the gradient of a step, in place, into the first and the second half of every sequence: "add",
/// "copy", "none" or "zero" for each, of which (add, none), (copy, none), (copy, zero) and (add, copy) and their
/// exchanges make sense.
///
/// Shapes: grad `[t, h, d]` or `[2, t, h, d]`; grad_per_step the same for (add, copy), else t / 2 tokens. Dtypes:
/// Float32, Float16, BFloat16; with zero also Byte.
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
    guard("nvte_cp_thd_grad_correction", || unsafe {
        // SAFETY: the caller vouches for the references and the texts.
        grad_correction(grad, grad_per_step, cu_seqlens, (first_half, second_half), stream)
    });
}

/// The tokens that a rank has, where each sequence is cut into `2 world_size` chunks and rank k has chunk k
/// and the k-th from the end.
///
/// Shapes: output Int32 `[total_tokens / world_size]`.
/// Errors: total_tokens not a multiple of 2 world_size; a rank outside; shapes or dtypes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cp_thd_get_partitioned_indices(
    cu_seqlens: NVTETensorReference,
    output: NVTETensor,
    total_tokens: c_int,
    world_size: c_int,
    rank: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_cp_thd_get_partitioned_indices", || unsafe {
        // SAFETY: the caller vouches for the reference.
        partitioned_indices(cu_seqlens, output, (total_tokens, world_size, rank), stream)
    });
}

/// Orders tokens by rank, as `nvte_cp_thd_get_partitioned_indices` assigns them.
///
/// Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same.
/// Errors: total_tokens not a multiple of 2 world_size; other shapes or dtypes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_thd_sequence_order_to_cp_rank_order(
    inp: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    out: NVTETensor,
    world_size: c_int,
    total_tokens: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_thd_sequence_order_to_cp_rank_order", || unsafe {
        // SAFETY: the caller vouches for the references.
        reorder(
            inp,
            cu_seqlens,
            out,
            (world_size, total_tokens),
            RowMap::NVTEX_ROWS_TO_RANKS,
            stream,
        )
    });
}

/// Orders the tokens of all ranks by sequence: the inverse of `nvte_thd_sequence_order_to_cp_rank_order`.
///
/// Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same.
/// Errors: total_tokens not a multiple of 2 world_size; other shapes or dtypes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_thd_cp_rank_order_to_sequence_order(
    inp: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    out: NVTETensor,
    world_size: c_int,
    total_tokens: c_int,
    stream: cudaStream_t,
) {
    guard("nvte_thd_cp_rank_order_to_sequence_order", || unsafe {
        // SAFETY: the caller vouches for the references.
        reorder(
            inp,
            cu_seqlens,
            out,
            (world_size, total_tokens),
            RowMap::NVTEX_ROWS_FROM_RANKS,
            stream,
        )
    });
}

/// Copies the tokens of packed sequences that are no padding: of sequence s, which begins at
/// `cu_seqlens_padded[s]`, the first `cu_seqlens[s + 1] - cu_seqlens[s]`. Other rows of out stay.
///
/// Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same.
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
    guard("nvte_thd_copy_valid_tokens_from_per_split_to_rank_local", || unsafe {
        // SAFETY: the caller vouches for the references.
        copy_valid(inp, (cu_seqlens_padded, cu_seqlens), out, total_tokens, stream)
    });
}

/// Spreads packed tokens `[t, h, d]` over `[b, max_seq_len, h, d]`; rows past the end of a sequence stay.
///
/// Shapes: cu_seqlens Int32 `[b + 1]`. Dtypes: Float32, Float16, BFloat16, Float8E4M3, Float8E5M2, the same.
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
        let shape = check::tensor("new_tensor", new_tensor)?.rowwise.shape;
        let sizes = [count("b", b)?, count("max_seq_len", max_seq_len)?];
        if shape.dims().get(..2) != Some(&sizes[..]) {
            let expected = format!("[{}, {}, heads, dim]", sizes[0], sizes[1]);
            return Err(Error::argument("new_tensor.shape", expected, shape));
        }
        let (packed, padded) = (("tensor", tensor), ("new_tensor", new_tensor));
        convert(packed, padded, cu_seqlens, RowMap::NVTEX_ROWS_UNPACK, stream)
    });
}

/// Packs the tokens of `[b, s, h, d]` into `[t, h, d]`. `t` is not used.
///
/// Shapes: cu_seqlens Int32 `[b + 1]`. Dtypes: Float32, Float16, BFloat16, Float8E4M3, Float8E5M2, the same.
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
        let (packed, padded) = (("new_tensor", new_tensor), ("tensor", tensor));
        convert(packed, padded, cu_seqlens, RowMap::NVTEX_ROWS_PACK, stream)
    });
}

/// Copies the keys and values of new tokens to their places in a cache.
///
/// Sequence i has `cu_new_lens[i + 1] - cu_new_lens[i]` new tokens, and with them
/// `cu_cached_lens[i + 1] - cu_cached_lens[i]` in all. Token p of it lies on page
/// `page_table[i][p / page_size]`, or without pages (`is_non_paged`) in slot i, where first the sequences that
/// go on (page_table is then their old slots `[b]`) are moved to the front.
/// Shapes: caches `[pages, page_size, h, d]`, page_size = max_seq_len / max_pages_per_seq; new tokens
/// `[b, max_ctx_len, h, d]`, `[s, b, h, d]` or packed `[t, h, d]` (qkv_format). Dtypes: Float32, Float16, BFloat16,
/// Float8E4M3, Float8E5M2, the same for all four. Nothing happens if one of the four has no data.
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
        let handles = ToCache {
            new: [new_k, new_v],
            cache: [k_cache, v_cache],
            page_table,
            cu_new_lens,
            cu_cached_lens,
        };
        let sizes = CacheSizes { b, max_ctx_len, max_seq_len, max_pages_per_seq };
        copy_to_cache(&handles, qkv_format, &sizes, is_non_paged == 0, stream)
    });
}

/// Separates interleaved queries, keys and values: `[s, b, n, 3, d]` in memory, of which the handle has the
/// shape `[s, b, n, d]`, to `[3, b, s, n, d]`.
///
/// Dtypes: Float16, BFloat16, the same.
/// Errors: other shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_prepare_flash_attn_fwd(
    qkvi: NVTETensor,
    qkv: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_prepare_flash_attn_fwd", || prepare_forward(qkvi, qkv, stream));
}

/// Interleaves queries, keys and values `[b, s, n, d]` as `[s, b, n, 3, d]`.
///
/// Dtypes: Float16, BFloat16, the same.
/// Errors: other shapes or dtypes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_prepare_flash_attn_bwd(
    q: NVTETensor,
    k: NVTETensor,
    v: NVTETensor,
    qkv: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_prepare_flash_attn_bwd", || prepare_backward([q, k, v], qkv, stream));
}

/// Transposes tensors `[b, s, h, d]` or `[s, b, h, d]` (original_format) to `[b, h, s, d or more]`, zeros
/// behind each d.
///
/// Dtypes: any, the same for input and output.
/// Errors: another format; other shapes or dtypes; null or misaligned pointers. Nothing is written then.
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
        // SAFETY: the caller vouches for the arrays.
        let entries = unsafe {
            pairs(inputs, outputs, num_tensors, |from_name, from, to_name, to| {
                transpose_to_bhsd(from_name, from, to_name, to, format)
            })?
        };
        run_copies(&entries, stream)
    });
}

/// Copies matrices `[r, c]` to wider ones, zeros behind each row.
///
/// Dtypes: any, the same for input and output.
/// Errors: other shapes or dtypes; null or misaligned pointers. Nothing is written then.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_pad_last_dim(
    inputs: *mut NVTETensor,
    outputs: *mut NVTETensor,
    num_tensors: usize,
    stream: cudaStream_t,
) {
    guard("nvte_multi_tensor_pad_last_dim", || {
        // SAFETY: the caller vouches for the arrays.
        let entries = unsafe { pairs(inputs, outputs, num_tensors, pad_last_dim)? };
        run_copies(&entries, stream)
    });
}

/// Fills the state of a random generator: the seed at `seed`, and an offset that grows with every call of the
/// thread, by 16 for `NVTE_F16_arbitrary_seqlen`, else by `q_max_seqlen kv_max_seqlen / 128`, rounded up.
///
/// `rng_state_dst` (Int64 `[2]`) and `seed` (Int64) are device addresses, not tensors.
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
        populate_rng_state(rng_state_dst, seed, (q_max_seqlen, kv_max_seqlen), backend, stream)
    });
}

/// The number of the first `len` entries of cu_seqlens that are above 0. Waits for the stream.
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
        runtime_num_segments(cu_seqlens, len, stream)
    })
}

/// Fills the state of a random generator, `{seed, offset}`: the values at `seed_ptr` and, plus
/// `offset_intragraph`, `offset_ptr` on the device if `captured`, else `seed_val` and `offset_val`.
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
        device_integers("rng_state_ptr", rng_state_ptr.cast(), kNVTEInt64)?;
        let mut args = SeedArgs {
            state: rng_state_ptr,
            seed_at: null(),
            offset_at: null(),
            seed: seed_val as i64,
            offset: offset_val as i64,
        };
        if captured != 0 {
            device_integers("seed_ptr", seed_ptr.cast(), kNVTEInt64)?;
            device_integers("offset_ptr", offset_ptr.cast(), kNVTEInt64)?;
            args.seed_at = seed_ptr;
            args.offset_at = offset_ptr;
            (args.seed, args.offset) = (0, offset_intragraph.into());
        }
        backend::run(&args, stream)
    });
}
