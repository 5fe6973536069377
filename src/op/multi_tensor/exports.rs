//! C functions of multi_tensor.h: optimizers, norms and scales of many tensors in one call.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;
use crate::op::hadamard_transform::exports::split_amax_of;
use crate::op::hadamard_transform::{Maxima, group_amax};
use crate::tensor::from_c;
use std::mem::MaybeUninit;

/// The tensors of a call that takes one of these numbers of lists.
///
/// # Safety
/// `lists` is null or has `num_lists` entries, each null or a list of `num_tensors` handles.
unsafe fn read(
    chunk_size: i32,
    (lists, num_lists, num_tensors): (*mut *mut NVTETensor, usize, usize),
    counts: &[usize],
) -> Result<Lists> {
    if chunk_size < 1 {
        return Err(Error::argument("chunk_size", "at least 1", chunk_size));
    }
    if !counts.contains(&num_lists) {
        let counts: Vec<String> = counts.iter().map(|count| count.to_string()).collect();
        return Err(Error::argument("num_tensor_lists", counts.join(" or "), num_lists));
    }
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let lists = unsafe {
        check::slice("tensor_lists", lists.cast_const(), ("num_tensor_lists", num_lists))?
    };
    let length = ("num_tensors_per_list", num_tensors);
    let buffers = |(l, list): (usize, &*mut NVTETensor)| {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe { check::buffers(format_args!("tensor_lists[{l}]"), list.cast_const(), length) }
    };
    lists.iter().enumerate().map(buffers).collect::<Result<_>>().map(Lists)
}

/// Computes the Euclidean norm of all tensors of a list together, and with `per_tensor` of each.
///
/// What it computes: `ret = sqrt(sum x^2)` over all elements, `ret_per_tensor[t]` over those of tensor
/// t, in Float32 or better, in a fixed order. `noop_flag` becomes 1 if the sum of squares of some part
/// is not finite; it is not read. The norm of empty tensors, or of no tensor, is 0.
///
/// Lists: x.
///
/// Scratch: `output`, 320 or more entries. With `per_tensor` also `output_per_tensor`, of
/// `num_tensors_per_list * max_chunks_per_tensor` entries, which the caller sets to 0, where
/// `max_chunks_per_tensor >= ceil(n / chunk_size)` for the n elements of each tensor. Without
/// `per_tensor`, `output_per_tensor`, `ret_per_tensor` and `max_chunks_per_tensor` are ignored.
///
/// Dtypes: x Float32, Float16 or BFloat16, all tensors the same; scratch and results Float32; the flag
/// Int32.
///
/// Errors: other dtypes; a wrong number of lists; scratch that is too small; null or misaligned
/// pointers; `chunk_size` below 1.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_l2norm_cuda(
    chunk_size: i32,
    noop_flag: NVTETensor,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    output: NVTETensor,
    output_per_tensor: NVTETensor,
    ret: NVTETensor,
    ret_per_tensor: NVTETensor,
    per_tensor: i32,
    max_chunks_per_tensor: i32,
    stream: cudaStream_t,
) {
    let raw = (tensor_lists, num_tensor_lists, num_tensors_per_list);
    let buffers = ([output_per_tensor, ret_per_tensor], max_chunks_per_tensor);
    let per_tensor = (per_tensor != 0).then_some(buffers);
    let outputs = [noop_flag, output, ret];
    guard("nvte_multi_tensor_l2norm_cuda", || {
        // SAFETY: the caller vouches for the lists.
        let lists = unsafe { read(chunk_size, raw, &[1])? };
        let norms = norms(chunk_size, outputs, per_tensor)?;
        l2_norm(lists, &norms, None, stream)
    });
}

/// The outputs of a norm; `per_tensor` are scratch and norms of each tensor, and the most chunks of one.
fn norms(
    chunk_size: i32,
    [non_finite, output, ret]: [NVTETensor; 3],
    per_tensor: Option<([NVTETensor; 2], i32)>,
) -> Result<Norms> {
    Ok(Norms {
        non_finite: check::rowwise("noop_flag", non_finite)?,
        output: check::rowwise("output", output)?,
        ret: check::rowwise("ret", ret)?,
        per_tensor: match per_tensor {
            None => None,
            Some(([scratch, norms], most_chunks)) => Some((
                check::rowwise_or_unset("output_per_tensor", scratch)?,
                check::rowwise_or_unset("ret_per_tensor", norms)?,
                most_chunks,
            )),
        },
        chunk_size,
    })
}

/// Computes the norms of `nvte_multi_tensor_l2norm_cuda` for `x * inv_scale`, where `inv_scale` is one
/// Float32 on the device. x is not changed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_unscale_l2norm_cuda(
    chunk_size: i32,
    noop_flag: NVTETensor,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    output: NVTETensor,
    output_per_tensor: NVTETensor,
    ret: NVTETensor,
    ret_per_tensor: NVTETensor,
    inv_scale: NVTETensor,
    per_tensor: i32,
    max_chunks_per_tensor: i32,
    stream: cudaStream_t,
) {
    let raw = (tensor_lists, num_tensor_lists, num_tensors_per_list);
    let buffers = ([output_per_tensor, ret_per_tensor], max_chunks_per_tensor);
    let per_tensor = (per_tensor != 0).then_some(buffers);
    let outputs = [noop_flag, output, ret];
    guard("nvte_multi_tensor_unscale_l2norm_cuda", || {
        // SAFETY: the caller vouches for the lists.
        let lists = unsafe { read(chunk_size, raw, &[1])? };
        let norms = norms(chunk_size, outputs, per_tensor)?;
        l2_norm(lists, &norms, Some(&check::rowwise("inv_scale", inv_scale)?), stream)
    });
}

/// Takes one step of Adam (`mode` 0: weight decay is part of the gradient) or AdamW (other modes: it
/// acts on the parameter).
///
/// What it computes, in Float32, in this order of operations: in mode 0 `g += weight_decay * p`;
/// `m = beta1 * m + (1 - beta1) * g`; `v = beta2 * v + ((1 - beta2) * g) * g`;
/// `u = (m * (1 / b1)) / (sqrt(v * (1 / b2)) + epsilon)`; in other modes `u += weight_decay * p`;
/// `p = p - lr * u`. With `bias_correction` 1, `b1 = 1 - beta1^step` and `b2 = 1 - beta2^step`,
/// computed in Float64, otherwise both are 1. The caller counts the steps, from 1. Subnormal numbers
/// are kept.
///
/// Lists: g, p, m, v, or with a fifth list Float32 masters, which are read and updated in place of p; p
/// is then only written. Every tensor of the other lists has at least as many elements as that of list
/// 0.
///
/// Dtypes: g and p each Float32, Float16 or BFloat16; m and v both Float32 or both BFloat16.
///
/// Notes: `noop_flag` is not used, `chunk_size` has no influence. Nothing is written for empty tensors
/// or empty lists.
///
/// Errors: other dtypes, or several in one list; a wrong number of lists; too few elements; null or
/// misaligned pointers; a step below 1 with bias correction; `chunk_size` below 1.
///
/// Source: Kingma, Ba, Adam (2014); Loshchilov, Hutter, Decoupled Weight Decay Regularization (2017).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_adam_cuda(
    chunk_size: i32,
    noop_flag: NVTETensor,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    lr: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    step: i32,
    mode: i32,
    bias_correction: i32,
    weight_decay: f32,
    stream: cudaStream_t,
) {
    let raw = (tensor_lists, num_tensor_lists, num_tensors_per_list);
    let rule = AdamRule { beta1, beta2, epsilon, mode, bias_correction, weight_decay };
    let _ = noop_flag;
    guard("nvte_multi_tensor_adam_cuda", || {
        // SAFETY: the caller vouches for the lists.
        let lists = unsafe { read(chunk_size, raw, &[4, 5])? };
        adam(lists, rule, (lr, step), stream)
    });
}

/// Takes one step of Adam as `nvte_multi_tensor_adam_cuda` does, with Float32 masters that are stored
/// in two halves.
///
/// The fifth list holds the low 16 bits of each master (Int16). p (BFloat16) holds its high half, plus
/// 1 if the low half is negative, so that p is the master rounded to nearest, ties away from 0. Begin
/// with remainders of 0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_adam_param_remainder_cuda(
    chunk_size: i32,
    noop_flag: NVTETensor,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    lr: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    step: i32,
    mode: i32,
    bias_correction: i32,
    weight_decay: f32,
    stream: cudaStream_t,
) {
    let raw = (tensor_lists, num_tensor_lists, num_tensors_per_list);
    let rule = AdamRule { beta1, beta2, epsilon, mode, bias_correction, weight_decay };
    let _ = noop_flag;
    guard("nvte_multi_tensor_adam_param_remainder_cuda", || {
        // SAFETY: the caller vouches for the lists.
        let lists = unsafe { read(chunk_size, raw, &[5])? };
        adam_param_remainder(lists, rule, (lr, step), stream)
    });
}

/// Takes one step of Adam as `nvte_multi_tensor_adam_cuda` does, with FP8 parameters and Float32
/// masters.
///
/// What it computes: also `p = cast(master * scale)`, saturating (without a scale: 1),
/// `amax = max(amax, max|master|)`, NaN ignored, and `scale_inv = 1 / scale`. The scale is not changed.
///
/// Lists: g, p, m, v, master, scale, amax, scale_inv; the last three have one Float32 for each tensor,
/// or a null pointer.
///
/// Dtypes: p `fp8_dtype` (Float8E4M3 or Float8E5M2) or Byte; m and v Float32; g as in
/// `nvte_multi_tensor_adam_cuda`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_adam_fp8_cuda(
    chunk_size: i32,
    noop_flag: NVTETensor,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    lr: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    step: i32,
    mode: i32,
    bias_correction: i32,
    weight_decay: f32,
    fp8_dtype: MaybeUninit<NVTEDType>,
    stream: cudaStream_t,
) {
    let raw = (tensor_lists, num_tensor_lists, num_tensors_per_list);
    let rule = AdamRule { beta1, beta2, epsilon, mode, bias_correction, weight_decay };
    let _ = noop_flag;
    guard("nvte_multi_tensor_adam_fp8_cuda", || {
        // SAFETY: the caller vouches for the lists.
        let lists = unsafe { read(chunk_size, raw, &[8])? };
        adam_fp8(lists, rule, (lr, step), from_c("fp8_dtype", fp8_dtype)?, stream)
    });
}

/// Takes one step of Adam as `nvte_multi_tensor_adam_cuda` does, with rate, step and scale on the
/// device, so that a captured graph may change them.
///
/// `lr` and `inv_scale` (Float32) and `step` (Int32) are read when the kernels run. The gradients
/// become `g * inv_scale`, rounded to their dtype; the step itself uses the product in Float32. If
/// `noop_flag` (Int32) is 1, nothing is written.
///
/// Lists: g, p, m, v. Dtypes: as `nvte_multi_tensor_adam_cuda`.
///
/// Errors: as `nvte_multi_tensor_adam_cuda`, except that steps below 1 are no error and give a
/// correction of 0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_adam_capturable_cuda(
    chunk_size: i32,
    noop_flag: NVTETensor,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    lr: NVTETensor,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    step: NVTETensor,
    mode: i32,
    bias_correction: i32,
    weight_decay: f32,
    inv_scale: NVTETensor,
    stream: cudaStream_t,
) {
    let raw = (tensor_lists, num_tensor_lists, num_tensors_per_list);
    let rule = AdamRule { beta1, beta2, epsilon, mode, bias_correction, weight_decay };
    guard("nvte_multi_tensor_adam_capturable_cuda", || {
        // SAFETY: the caller vouches for the lists.
        let lists = unsafe { read(chunk_size, raw, &[4])? };
        let numbers = [
            &check::rowwise("lr", lr)?,
            &check::rowwise("step", step)?,
            &check::rowwise("inv_scale", inv_scale)?,
        ];
        let noop = check::rowwise("noop_flag", noop_flag)?;
        adam_capturable(&noop, lists, rule, numbers, stream)
    });
}

/// Takes one step of Adam as `nvte_multi_tensor_adam_capturable_cuda` does, with a fifth list of
/// Float32 masters.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_adam_capturable_master_cuda(
    chunk_size: i32,
    noop_flag: NVTETensor,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    lr: NVTETensor,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    step: NVTETensor,
    mode: i32,
    bias_correction: i32,
    weight_decay: f32,
    inv_scale: NVTETensor,
    stream: cudaStream_t,
) {
    let raw = (tensor_lists, num_tensor_lists, num_tensors_per_list);
    let rule = AdamRule { beta1, beta2, epsilon, mode, bias_correction, weight_decay };
    guard("nvte_multi_tensor_adam_capturable_master_cuda", || {
        // SAFETY: the caller vouches for the lists.
        let lists = unsafe { read(chunk_size, raw, &[5])? };
        let numbers = [
            &check::rowwise("lr", lr)?,
            &check::rowwise("step", step)?,
            &check::rowwise("inv_scale", inv_scale)?,
        ];
        let noop = check::rowwise("noop_flag", noop_flag)?;
        adam_capturable(&noop, lists, rule, numbers, stream)
    });
}

/// Takes one step of gradient descent with momentum and weight decay.
///
/// What it computes, in Float32, in this order of operations: `g = gradient * scale`; `g += wd * w`
/// unless `wd_after_momentum`; if `momentum` is not 0,
/// `b = first_run ? g : b * momentum + (1 - dampening) * g`, then
/// `g = nesterov ? g + momentum * b : b`; `g += wd * w` if `wd_after_momentum`;
/// `w = w + cast(-lr * g)`, each cast to the dtype of w. Without momentum b is not touched. If
/// `noop_flag` (Int32) is not 0, nothing is written.
///
/// Lists: gradient, w, b, or with a fourth list copies of the new w.
///
/// Dtypes: gradient Float32, Float16 or BFloat16; w and b Float32, or without copies also that of the
/// gradient; copies Float16 or BFloat16.
///
/// Notes: `chunk_size` has no influence. Nothing is written for empty tensors or empty lists.
///
/// Errors: other dtypes, or several in one list; a wrong number of lists; too few elements; null or
/// misaligned pointers; `chunk_size` below 1.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_sgd_cuda(
    chunk_size: i32,
    noop_flag: NVTETensor,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    wd: f32,
    momentum: f32,
    dampening: f32,
    lr: f32,
    nesterov: i32,
    first_run: i32,
    wd_after_momentum: i32,
    scale: f32,
    stream: cudaStream_t,
) {
    let raw = (tensor_lists, num_tensor_lists, num_tensors_per_list);
    let rule = SgdRule {
        weight_decay: wd,
        momentum,
        dampening,
        lr,
        nesterov,
        first_run,
        decay_after_momentum: wd_after_momentum,
        scale,
    };
    guard("nvte_multi_tensor_sgd_cuda", || {
        // SAFETY: the caller vouches for the lists.
        let lists = unsafe { read(chunk_size, raw, &[3, 4])? };
        sgd(&check::rowwise("noop_flag", noop_flag)?, lists, &rule, stream)
    });
}

/// Multiplies tensors by a number: `y = cast(x * scale)`.
///
/// `is_infinite` (Int32) becomes 1 if some x is not finite; it is not read, and results that overflow
/// do not count.
///
/// Lists: x, y, which may be the same tensors.
///
/// Dtypes: x and y each Float32, Float16 or BFloat16.
///
/// Notes: `chunk_size` has no influence. Nothing is written for empty tensors or empty lists.
///
/// Errors: other dtypes, or several in one list; a wrong number of lists; too few elements; null or
/// misaligned pointers; `chunk_size` below 1.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_scale_cuda(
    chunk_size: i32,
    is_infinite: NVTETensor,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    scale: f32,
    stream: cudaStream_t,
) {
    let raw = (tensor_lists, num_tensor_lists, num_tensors_per_list);
    guard("nvte_multi_tensor_scale_cuda", || {
        // SAFETY: the caller vouches for the lists.
        let lists = unsafe { read(chunk_size, raw, &[2])? };
        let is_infinite = check::rowwise("is_infinite", is_infinite)?;
        scale_tensors(&is_infinite, lists, Factor::Host(scale), stream)
    });
}

/// Multiplies tensors by a number as `nvte_multi_tensor_scale_cuda` does, where the scale is one
/// Float32 on the device.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_scale_tensor_cuda(
    chunk_size: i32,
    is_infinite: NVTETensor,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    scale: NVTETensor,
    stream: cudaStream_t,
) {
    let raw = (tensor_lists, num_tensor_lists, num_tensors_per_list);
    guard("nvte_multi_tensor_scale_tensor_cuda", || {
        // SAFETY: the caller vouches for the lists.
        let lists = unsafe { read(chunk_size, raw, &[2])? };
        let is_infinite = check::rowwise("is_infinite", is_infinite)?;
        let scale = check::rowwise("scale", scale)?;
        scale_tensors(&is_infinite, lists, Factor::Device(scale), stream)
    });
}

/// Computes the FP8 scales of many tensors from their amax.
///
/// What it computes: with `a = max(amax, epsilon)`, `scale = max_fp8 / a`, or 1 if a is 0, Inf or NaN.
/// An infinite quotient becomes the largest Float32. With `force_pow_2_scales` the mantissa is cleared.
/// Then `scale_inv = 1 / scale`. Subnormal numbers are kept.
///
/// Lists: amax (not negative), scale, scale_inv, elementwise. Dtypes: Float32.
///
/// Notes: `noop_flag` is not used, `chunk_size` has no influence.
///
/// Errors: other dtypes; a wrong number of lists; too few elements; null or misaligned pointers;
/// `chunk_size` below 1.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_compute_scale_and_scale_inv_cuda(
    chunk_size: i32,
    noop_flag: NVTETensor,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    max_fp8: f32,
    force_pow_2_scales: i32,
    epsilon: f32,
    stream: cudaStream_t,
) {
    let raw = (tensor_lists, num_tensor_lists, num_tensors_per_list);
    let _ = noop_flag;
    let rule = (max_fp8, force_pow_2_scales != 0, epsilon);
    guard("nvte_multi_tensor_compute_scale_and_scale_inv_cuda", || {
        // SAFETY: the caller vouches for the lists.
        let lists = unsafe { read(chunk_size, raw, &[3])? };
        scales_from_amax(lists, Some(rule), stream)
    });
}

/// Computes the E8M0 codes of many tensors from their amax.
///
/// What it computes: the code of `amax / 448` (amax times the Float32 nearest to 1/448), rounded up to
/// a power of two: 0xff for NaN, 0xfe at most otherwise, 0 for 0.
///
/// Lists: amax (not negative), scale_inv, elementwise. Dtypes: BFloat16; Byte or Float8E8M0.
///
/// Errors: as `nvte_multi_tensor_compute_scale_and_scale_inv_cuda`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_compute_scale_inv_e8m0_cuda(
    chunk_size: i32,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    stream: cudaStream_t,
) {
    let raw = (tensor_lists, num_tensor_lists, num_tensors_per_list);
    guard("nvte_multi_tensor_compute_scale_inv_e8m0_cuda", || {
        // SAFETY: the caller vouches for the lists.
        let lists = unsafe { read(chunk_size, raw, &[2])? };
        scales_from_amax(lists, None, stream)
    });
}

/// Computes the largest magnitudes of parts of a matrix, NaN ignored: `outputs[i].amax` is that of the
/// next `split_sections[i]` rows, and so is `outputs[i].columnwise_amax` if it has an address.
///
/// Parts: there may be any number. Rows after the last part do not count. A part without rows has a
/// maximum of 0, and its tensor may be null. Without tensors nothing happens.
///
/// Shapes: `[rows, cols]`; rows of each part and columns are multiples of 16.
///
/// Dtypes: BFloat16; maxima one Float32 each.
///
/// Errors: other dtypes or shapes; a part with rows and without `amax`; parts with more rows than the
/// input; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_amax(
    input: NVTETensor,
    outputs: *mut NVTETensor,
    split_sections: *const usize,
    num_tensors: usize,
    stream: cudaStream_t,
) {
    // SAFETY: the caller vouches for the arrays.
    guard("nvte_group_amax", || unsafe {
        split_amax_of(input, (outputs, split_sections, num_tensors), Maxima::Plain, stream)
    });
}

/// Computes the largest magnitude of each member of a grouped tensor, NaN ignored, 0 for an empty one:
/// `output.amax[t]`, and also `output.columnwise_amax[t]` if it has an address.
///
/// Members, dtypes, errors: as `nvte_group_hadamard_transform_amax_graph_safe`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_amax_graph_safe(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_amax_graph_safe", || {
        let input = check::grouped_tensor("input", input)?;
        let output = check::grouped_tensor("output", output)?;
        group_amax(&input, &output, Maxima::Plain, stream)
    });
}
