//! C functions of ep.h.
#![allow(unsafe_code, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::error::guard;
use std::mem::MaybeUninit;

/// Begins expert parallelism on the current device in a group of `ep_size` ranks, of which there may be one. Then
/// `ep_comm` is not looked at and may be null. Otherwise it is a communicator of NCCL or what `nvtex_communicator_as_nccl`
/// gives, and lives until `nvte_ep_shutdown`. Expert e is on rank `e / (num_experts / ep_size)`. Where ranks are threads
/// of a process, a group is that of the calling thread.
///
/// With several ranks all functions but `nvte_ep_shutdown` and `nvte_ep_handle_mem_size` are called by all ranks in the
/// same order. Without `drop_on_overflow` they wait on the host for the numbers of rows, so that they cannot be captured in a
/// graph. With it sizes are fixed, and nothing waits: each pair of ranks exchanges `max_tokens_per_rank` slots, in which a
/// token is once for all of its experts of a rank, and that rank sums their results before they go back. Under NCCL such
/// calls can be captured. `max_tokens_per_rank`, `top_k` and all dtypes are then the same on all ranks.
///
/// `max_recv_tokens_per_rank` is the most rows that a dispatch gives; 0: any number. `hidden_dim`,
/// `max_token_dtype`, `num_comm_sms` and `num_topk` are checked and not used.
/// Errors: numbers out of range; tokens of less than 16 bytes; `zero_copy` or `drop_on_overflow` without
/// `max_recv_tokens_per_rank`; a device that has a group; a communicator of another size; `zero_copy`
/// (`NVTEX_UNSUPPORTED`).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_ep_initialize(
    ep_comm: *mut c_void,
    group_config: *const NVTEEpGroupConfig,
) {
    guard("nvte_ep_initialize", || {
        // SAFETY: the caller vouches for the struct.
        initialize(ep_comm.cast(), &unsafe { config("group_config", group_config, 40)? })
    });
}

/// Ends the groups of all devices. It always succeeds, also without a group.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvte_ep_shutdown() {
    groups().clear();
}

/// Bytes of `handle_mem`, device memory of the caller in which a layer keeps the plan of its tokens.
///
/// Errors: `top_k` below 1; no group on the current device; returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_ep_handle_mem_size(
    layer_cfg: *const NVTEEpLayerConfig,
) -> usize {
    // SAFETY: the caller vouches for the struct.
    guard("nvte_ep_handle_mem_size", || handle_mem_size(&unsafe { layer(layer_cfg)? }))
}

/// Plans where the tokens of `topk_idx` go, in `handle_mem`.
///
/// An expert gets a row for each token that has chosen it, in the order of ranks and then of tokens, and unless it has
/// none rows of padding up to a multiple of `dispatch_output_per_expert_alignment`. The experts' rows follow each other.
/// Shapes: `topk_idx` `[T, top_k]` in Int32 or Int64, where numbers that are no expert stand for none;
/// `recv_tokens_per_expert` `[num_experts / ep_size]` becomes the rows of each expert of this rank with padding, and
/// `total_recv_tokens_per_rank` `[1]` their sum: Int32 or Int64, both the same, each may be null or have no
/// address. `handle_mem`: `nvte_ep_handle_mem_size` bytes, aligned to 8.
/// Rows beyond `max_recv_tokens_per_rank` do not exist, and `recv_tokens_per_expert` does not count them; the sum
/// does, so that it says how many were dropped: those of the experts with the highest numbers, of the last ranks and
/// tokens. Unless `drop_on_overflow` is set they are an error: with several ranks on all of them, with one rank with
/// `NVTE_CHECK=device`, before anything is written.
/// Errors: other shapes or dtypes; more tokens than the group's config says; too little memory; outputs that
/// overlap anything.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_ep_prepare(
    handle_mem: NVTETensor,
    topk_idx: NVTETensor,
    recv_tokens_per_expert: NVTETensor,
    total_recv_tokens_per_rank: NVTETensor,
    layer_cfg: *const NVTEEpLayerConfig,
    stream: cudaStream_t,
) {
    guard("nvte_ep_prepare", || {
        let (group, state) = state(handle_mem)?;
        // SAFETY: the caller vouches for the struct.
        let layer = unsafe { layer(layer_cfg)? };
        let topk_idx = check::rowwise("topk_idx", topk_idx)?;
        let counts = counts(recv_tokens_per_expert, total_recv_tokens_per_rank)?;
        let plan = prepare((&state, &group, &layer), &topk_idx, &counts, stream)?;
        run_plan((&state, &group), &layer, plan, stream)
    });
}

/// Copies tokens to the rows of their experts, by the plan in `handle_mem`: `recv_tokens[row] = tokens[t]` and
/// `recv_topk_weights[row] = topk_weights[t, k]`. All other rows become 0.
///
/// Shapes: tokens `[T, H]`, `recv_tokens` `[R, H]`, of which rows from R on are left out (with several ranks and without
/// `drop_on_overflow` R is at least the number of rows of the plan that exist); `topk_weights`
/// `[T, top_k]`, `recv_topk_weights` `[R]`. `topk_idx` is not read and may be null. Without `topk_weights` (null
/// or no address) there are no weights.
/// Dtypes: Float32, Float16 or BFloat16; or MXFP8, row-wise, whose rows of scales, not swizzled, are copied as
/// well; weights are Float32. Windows must be all zero.
/// Errors: other shapes, dtypes or scaling modes; more tokens than the group's config says; outputs that overlap
/// anything; windows (`NVTEX_UNSUPPORTED`). With `NVTE_CHECK=device` other sizes than those of the plan.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_ep_dispatch(
    handle_mem: NVTETensor,
    topk_idx: NVTETensor,
    tokens: NVTETensor,
    tokens_win: NVTECommWindow,
    topk_weights: NVTETensor,
    topk_weights_win: NVTECommWindow,
    recv_tokens: NVTETensor,
    recv_tokens_win: NVTECommWindow,
    recv_topk_weights: NVTETensor,
    recv_topk_weights_win: NVTECommWindow,
    stream: cudaStream_t,
) {
    let _ = topk_idx;
    let tensors = [tokens, topk_weights, recv_tokens, recv_topk_weights];
    let windows = [tokens_win, topk_weights_win, recv_tokens_win, recv_topk_weights_win];
    guard("nvte_ep_dispatch", || {
        let (group, state) = state(handle_mem)?;
        let dispatch = dispatch((&state, &group), tensors, windows, (true, stream))?;
        run_dispatch((&state, &group), &dispatch, stream)
    });
}

/// `nvte_ep_prepare` and `nvte_ep_dispatch`, one after the other. Nothing is written if one of them refuses its
/// arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_ep_prepare_and_dispatch(
    handle_mem: NVTETensor,
    topk_idx: NVTETensor,
    tokens: NVTETensor,
    tokens_win: NVTECommWindow,
    topk_weights: NVTETensor,
    topk_weights_win: NVTECommWindow,
    recv_tokens: NVTETensor,
    recv_tokens_win: NVTECommWindow,
    recv_topk_weights: NVTETensor,
    recv_topk_weights_win: NVTECommWindow,
    recv_tokens_per_expert: NVTETensor,
    total_recv_tokens_per_rank: NVTETensor,
    layer_cfg: *const NVTEEpLayerConfig,
    stream: cudaStream_t,
) {
    let tensors = [tokens, topk_weights, recv_tokens, recv_topk_weights];
    let windows = [tokens_win, topk_weights_win, recv_tokens_win, recv_topk_weights_win];
    guard("nvte_ep_prepare_and_dispatch", || {
        let (group, state) = state(handle_mem)?;
        // SAFETY: the caller vouches for the struct.
        let layer = unsafe { layer(layer_cfg)? };
        let topk_idx = check::rowwise("topk_idx", topk_idx)?;
        let counts = counts(recv_tokens_per_expert, total_recv_tokens_per_rank)?;
        let plan = prepare((&state, &group, &layer), &topk_idx, &counts, stream)?;
        let dispatch = dispatch((&state, &group), tensors, windows, (false, stream))?;
        run_plan((&state, &group), &layer, plan, stream)?;
        run_dispatch((&state, &group), &dispatch, stream)
    });
}

/// `result[t] = cast(sum of expert_out[row] over the rows of token t)` in float32, in the order of its experts;
/// 0 without rows. Rows that do not exist, also beyond R, do not count. With several ranks and `drop_on_overflow` the sum
/// over a token's experts of one rank is cast to the dtype, then the sum of these over the ranks, in the order in which
/// the token has chosen them first.
///
/// Shapes: `expert_out` `[R, H]`, result `[T, H]`. Dtypes: Float32, Float16 or BFloat16, the same for both.
/// Errors: as `nvte_ep_dispatch`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_ep_combine(
    handle_mem: NVTETensor,
    expert_out: NVTETensor,
    expert_out_win: NVTECommWindow,
    result: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_ep_combine", || {
        let (group, state) = state(handle_mem)?;
        no_window("expert_out_win", &expert_out_win)?;
        let expert_out = plain("expert_out", expert_out)?;
        let result = plain("result", result)?;
        let (input, output) = (("expert_out", &expert_out), ("result", &result));
        let sums = sums((&state, &group), input, output)?;
        let none = ("", &Buffer::UNSET);
        apart(&state, [input, none], [output, none])?;
        state.check_plan("result", sums.tokens, None, stream)?;
        run_all_sums((&state, &group), (sums, None), stream)
    });
}

/// The gradients of `nvte_ep_dispatch`: `grad_tokens` as `nvte_ep_combine` of grad, and
/// `grad_topk_weights[t, k] = g_recv_topk_weights[row]`, 0 without a row.
///
/// Shapes: grad `[R, H]`, `grad_tokens` `[T, H]`; `g_recv_topk_weights` `[R]`, `grad_topk_weights` `[T, top_k]`
/// in Float32.
/// Errors: as `nvte_ep_dispatch`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_ep_dispatch_bwd(
    handle_mem: NVTETensor,
    grad: NVTETensor,
    grad_win: NVTECommWindow,
    g_recv_topk_weights: NVTETensor,
    g_recv_topk_weights_win: NVTECommWindow,
    grad_tokens: NVTETensor,
    grad_topk_weights: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_ep_dispatch_bwd", || {
        let (group, state) = state(handle_mem)?;
        no_window("grad_win", &grad_win)?;
        no_window("g_recv_topk_weights_win", &g_recv_topk_weights_win)?;
        let (grad, grad_tokens) = (plain("grad", grad)?, plain("grad_tokens", grad_tokens)?);
        let received = check::rowwise("g_recv_topk_weights", g_recv_topk_weights)?;
        let weights = check::rowwise("grad_topk_weights", grad_topk_weights)?;
        let inputs = [("grad", &grad), ("g_recv_topk_weights", &received)];
        let outputs = [("grad_tokens", &grad_tokens), ("grad_topk_weights", &weights)];
        let sums = sums((&state, &group), inputs[0], outputs[0])?;
        let sizes = (sums.tokens, sums.rows);
        let weights = weight_grads(&state, inputs[1], outputs[1], sizes)?;
        apart(&state, inputs, outputs)?;
        state.check_plan("grad_topk_weights", sums.tokens, Some(weights.1), stream)?;
        run_all_sums((&state, &group), (sums, Some(weights)), stream)
    });
}

/// The gradient of `nvte_ep_combine`: `grad_expert_out[row] = grad[t]`, and 0 in all other rows. It is
/// `nvte_ep_dispatch` without weights.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_ep_combine_bwd(
    handle_mem: NVTETensor,
    grad: NVTETensor,
    grad_win: NVTECommWindow,
    grad_expert_out: NVTETensor,
    grad_expert_out_win: NVTECommWindow,
    stream: cudaStream_t,
) {
    guard("nvte_ep_combine_bwd", || {
        let (group, state) = state(handle_mem)?;
        no_window("grad_win", &grad_win)?;
        no_window("grad_expert_out_win", &grad_expert_out_win)?;
        let grad = check::tensor("grad", grad)?;
        let output = check::tensor("grad_expert_out", grad_expert_out)?;
        let (input, output) = (("grad", &grad), ("grad_expert_out", &output));
        let dispatch = Dispatch::plan((&state, &group), input, output, None, (true, stream))?;
        run_dispatch((&state, &group), &dispatch, stream)
    });
}

/// The group of the current device, and where the plan in a layer's memory lies.
fn state(handle_mem: NVTETensor) -> Result<(Group, State)> {
    let group = Group::current()?;
    let state = State::new(&check::rowwise("handle_mem", handle_mem)?, &group)?;
    Ok((group, state))
}

/// The buffer of a tensor without scales.
fn plain(name: &str, handle: NVTETensor) -> Result<Buffer> {
    let tensor = check::tensor(name, handle)?;
    check::per_tensor(name, &tensor)?;
    Ok(tensor.rowwise)
}

fn counts(per_expert: NVTETensor, total: NVTETensor) -> Result<Counts> {
    Ok(Counts {
        per_expert: check::rowwise_or_unset("recv_tokens_per_expert", per_expert)?,
        total: check::rowwise_or_unset("total_recv_tokens_per_rank", total)?,
    })
}

fn dispatch(
    layer: (&State, &Group),
    [tokens, weights, recv_tokens, recv_weights]: [NVTETensor; 4],
    windows: [NVTECommWindow; 4],
    prepared: (bool, cudaStream_t),
) -> Result<Dispatch> {
    let names = ["tokens_win", "topk_weights_win", "recv_tokens_win", "recv_topk_weights_win"];
    for (name, window) in names.iter().zip(&windows) {
        no_window(name, window)?;
    }
    let tokens = check::tensor("tokens", tokens)?;
    let recv_tokens = check::tensor("recv_tokens", recv_tokens)?;
    let weights = check::rowwise_or_unset("topk_weights", weights)?;
    let recv_weights = check::rowwise_or_unset("recv_topk_weights", recv_weights)?;
    let pair = [("topk_weights", &weights), ("recv_topk_weights", &recv_weights)];
    let weights = weights.is_set().then_some(pair);
    let (input, output) = (("tokens", &tokens), ("recv_tokens", &recv_tokens));
    Dispatch::plan(layer, input, output, weights, prepared)
}

/// # Safety
/// `config` is null or points to a struct of as many bytes as it says.
unsafe fn layer(config: *const NVTEEpLayerConfig) -> Result<Layer> {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    Layer::of_config(&unsafe { self::config("layer_cfg", config, 24)? })
}

/// A config that says how large it is, in its first field; what lies beyond is 0. 0 means `least` bytes.
///
/// # Safety
/// `T` may be all zeros, and `config` is null or points to as many bytes as its first field says.
unsafe fn config<T: Copy>(name: &str, config: *const T, least: usize) -> Result<T> {
    check::address(name, config)?;
    // SAFETY: the caller's promise; the address is neither null nor misaligned.
    let size = match unsafe { config.cast::<usize>().read() } {
        0 => least,
        size => size,
    };
    if size < least {
        let expected = format!("0, or {least} or more");
        return Err(Error::argument(format!("{name}.struct_size"), expected, size));
    }
    let mut copy = MaybeUninit::<T>::zeroed();
    let bytes = size.min(size_of::<T>());
    // SAFETY: both have as many bytes, and any values are valid.
    unsafe {
        copy.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(config.cast(), bytes);
        Ok(copy.assume_init())
    }
}
