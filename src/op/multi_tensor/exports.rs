//! C functions of multi_tensor.h: optimizers, norms and scales of many tensors in one call.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;
use crate::op::hadamard_transform;

fn lists(lists: *mut *mut NVTETensor, num_lists: usize, num_tensors: usize) -> Lists {
    Lists { lists, num_lists, num_tensors }
}

/// Euclidean norm of all tensors of the list, and of each.
///
/// Formula: `ret = sqrt(sum x^2)` over all elements, `ret_per_tensor[t]` over those of tensor t, in Float32
/// or better, in a fixed order. `noop_flag` becomes 1 if the sum of squares of some part is not finite; it
/// is not read.
/// Lists: x. Scratch: `output`, 320 or more entries; with `per_tensor` also `output_per_tensor`, of
/// `num_tensors_per_list * max_chunks_per_tensor` entries, which the caller sets to 0;
/// `max_chunks_per_tensor >= ceil(n / chunk_size)` for n elements of each tensor. Without `per_tensor` the
/// last three are ignored.
/// Dtypes: x Float32, Float16 or BFloat16, all tensors the same; scratch and results Float32; the flag
/// Int32.
/// Empty tensors: a norm of 0, also if there is no tensor.
/// Errors: other dtypes; a wrong number of lists; scratch that is too small; null or misaligned pointers;
/// `chunk_size` below 1.
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
    let lists = lists(tensor_lists, num_tensor_lists, num_tensors_per_list);
    let norms =
        Norms { output, output_per_tensor, ret, ret_per_tensor, per_tensor, max_chunks_per_tensor };
    guard("nvte_multi_tensor_l2norm_cuda", || {
        l2_norm((chunk_size, noop_flag), lists, &norms, None, stream)
    });
}

/// `nvte_multi_tensor_l2norm_cuda` of `x * inv_scale`, one Float32 on the device; x is not changed.
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
    let lists = lists(tensor_lists, num_tensor_lists, num_tensors_per_list);
    let norms =
        Norms { output, output_per_tensor, ret, ret_per_tensor, per_tensor, max_chunks_per_tensor };
    guard("nvte_multi_tensor_unscale_l2norm_cuda", || {
        l2_norm((chunk_size, noop_flag), lists, &norms, Some(inv_scale), stream)
    });
}

/// One step of Adam (`mode` 0: decay as part of the gradient) or AdamW (other modes: of the parameter).
///
/// Formula, in Float32, in this order of operations: mode 0: `g += weight_decay * p`;
/// `m = beta1 * m + (1 - beta1) * g`; `v = beta2 * v + ((1 - beta2) * g) * g`;
/// `u = (m * (1 / b1)) / (sqrt(v * (1 / b2)) + epsilon)`; other modes: `u += weight_decay * p`; `p = p - lr * u`.
/// If `bias_correction` is 1, `b1 = 1 - beta1^step` and `b2 = 1 - beta2^step`, computed in Float64, else 1.
/// The step counts from 1 and is the caller's to count. Subnormal numbers are kept.
/// Lists: g, p, m, v, or with a fifth list the Float32 masters, which then stand for p: p is only written.
/// Every tensor of the other lists has at least as many elements as that of list 0.
/// Dtypes: g and p each Float32, Float16 or BFloat16; m and v both Float32 or both BFloat16.
/// `noop_flag` is not used, `chunk_size` has no influence.
/// Empty tensors, or none: nothing is written for them.
/// Errors: other dtypes, or several in one list; a wrong number of lists; too few elements; null or
/// misaligned pointers; a step below 1 with bias correction; `chunk_size` below 1.
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
    let lists = lists(tensor_lists, num_tensor_lists, num_tensors_per_list);
    let rule = AdamRule { beta1, beta2, epsilon, mode, bias_correction, weight_decay };
    let _ = noop_flag;
    guard("nvte_multi_tensor_adam_cuda", || adam(chunk_size, lists, rule, (lr, step), stream));
}

/// `nvte_multi_tensor_adam_cuda` with masters in halves: the fifth list holds the low 16 bits of each
/// Float32 master (Int16), p (BFloat16) its high half, plus 1 if the low half is negative, so that p is
/// the master rounded to nearest, ties away from 0. Begin with remainders of 0.
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
    let lists = lists(tensor_lists, num_tensor_lists, num_tensors_per_list);
    let rule = AdamRule { beta1, beta2, epsilon, mode, bias_correction, weight_decay };
    let _ = noop_flag;
    guard("nvte_multi_tensor_adam_param_remainder_cuda", || {
        adam_param_remainder(chunk_size, lists, rule, (lr, step), stream)
    });
}

/// `nvte_multi_tensor_adam_cuda` with FP8 parameters and Float32 masters.
///
/// Lists: g, p, m, v, master, scale, amax, scale_inv; the last three are one Float32 for each tensor, or
/// have a null pointer. `p = cast(master * scale)`, saturating (without a scale: 1);
/// `amax = max(amax, max|master|)`, NaN ignored; `scale_inv = 1 / scale`. The scale is not changed.
/// Dtypes: p `fp8_dtype` (Float8E4M3 or Float8E5M2) or Byte; m and v Float32; g as there.
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
    let lists = lists(tensor_lists, num_tensor_lists, num_tensors_per_list);
    let rule = AdamRule { beta1, beta2, epsilon, mode, bias_correction, weight_decay };
    let _ = noop_flag;
    guard("nvte_multi_tensor_adam_fp8_cuda", || {
        adam_fp8(chunk_size, lists, rule, (lr, step), fp8_dtype, stream)
    });
}

/// `nvte_multi_tensor_adam_cuda` with numbers on the device, as a captured graph needs them.
///
/// `lr` and `inv_scale` (Float32) and `step` (Int32) are read when the kernels run. The gradients become
/// `g * inv_scale`, rounded to their dtype; the step itself uses the product in Float32. If `noop_flag`
/// (Int32) is 1, nothing is written.
/// Lists: g, p, m, v. Dtypes, errors: as there; steps below 1 are no error and give a correction of 0.
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
    let lists = lists(tensor_lists, num_tensor_lists, num_tensors_per_list);
    let rule = AdamRule { beta1, beta2, epsilon, mode, bias_correction, weight_decay };
    let numbers = [lr, step, inv_scale];
    guard("nvte_multi_tensor_adam_capturable_cuda", || {
        adam_capturable((chunk_size, noop_flag), lists, rule, numbers, false, stream)
    });
}

/// `nvte_multi_tensor_adam_capturable_cuda` with a fifth list of Float32 masters.
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
    let lists = lists(tensor_lists, num_tensor_lists, num_tensors_per_list);
    let rule = AdamRule { beta1, beta2, epsilon, mode, bias_correction, weight_decay };
    let numbers = [lr, step, inv_scale];
    guard("nvte_multi_tensor_adam_capturable_master_cuda", || {
        adam_capturable((chunk_size, noop_flag), lists, rule, numbers, true, stream)
    });
}

/// One step of gradient descent with momentum and weight decay.
///
/// Formula, in Float32, in this order of operations: `g = gradient * scale`; `g += wd * w` unless
/// `wd_after_momentum`; if `momentum` is not 0: `b = first_run ? g : b * momentum + (1 - dampening) * g`,
/// then `g = nesterov ? g + momentum * b : b`; `g += wd * w` if `wd_after_momentum`;
/// `w = w + cast(-lr * g)`, each cast to the dtype of w. Without momentum b is not touched.
/// If `noop_flag` (Int32) is not 0, nothing is written.
/// Lists: gradient, w, b, or with a fourth list copies of the new w.
/// Dtypes: gradient Float32, Float16 or BFloat16; w and b Float32, or without copies also that of the
/// gradient; copies Float16 or BFloat16.
/// Empty tensors, or none: nothing is written for them. `chunk_size` has no influence.
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
    let lists = lists(tensor_lists, num_tensor_lists, num_tensors_per_list);
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
    guard("nvte_multi_tensor_sgd_cuda", || sgd((chunk_size, noop_flag), lists, &rule, stream));
}

/// `y = cast(x * scale)`.
///
/// `is_infinite` (Int32) becomes 1 if some x is not finite; it is not read, and results that overflow do
/// not count.
/// Lists: x, y, which may be the same tensors.
/// Dtypes: x and y each Float32, Float16 or BFloat16.
/// Empty tensors, or none: nothing is written for them. `chunk_size` has no influence.
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
    let lists = lists(tensor_lists, num_tensor_lists, num_tensors_per_list);
    guard("nvte_multi_tensor_scale_cuda", || {
        scale_tensors((chunk_size, is_infinite), lists, Factor::Host(scale), stream)
    });
}

/// `nvte_multi_tensor_scale_cuda` with a scale of one Float32 on the device.
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
    let lists = lists(tensor_lists, num_tensor_lists, num_tensors_per_list);
    guard("nvte_multi_tensor_scale_tensor_cuda", || {
        scale_tensors((chunk_size, is_infinite), lists, Factor::Device(scale), stream)
    });
}

/// FP8 scales from amax: `a = max(amax, epsilon)`; `scale = max_fp8 / a`, 1 if a is 0, Inf or NaN; an
/// infinite quotient becomes the largest Float32; with `force_pow_2_scales` the mantissa is cleared;
/// `scale_inv = 1 / scale`. Subnormal numbers are kept.
///
/// Lists: amax (not negative), scale, scale_inv, elementwise. Dtypes: Float32.
/// `noop_flag` is not used, `chunk_size` has no influence.
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
    let lists = lists(tensor_lists, num_tensor_lists, num_tensors_per_list);
    let _ = noop_flag;
    let rule = (max_fp8, force_pow_2_scales != 0, epsilon);
    guard("nvte_multi_tensor_compute_scale_and_scale_inv_cuda", || {
        scales_from_amax(chunk_size, lists, Some(rule), stream)
    });
}

/// E8M0 codes of `amax / 448` (amax times the Float32 nearest to 1/448), rounded up to a power of two: 0xff
/// for NaN, 0xfe at most otherwise, 0 for 0.
///
/// Lists: amax (not negative), scale_inv, elementwise. Dtypes: BFloat16; Byte or Float8E8M0.
/// Errors: as `nvte_multi_tensor_compute_scale_and_scale_inv_cuda`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_tensor_compute_scale_inv_e8m0_cuda(
    chunk_size: i32,
    tensor_lists: *mut *mut NVTETensor,
    num_tensor_lists: usize,
    num_tensors_per_list: usize,
    stream: cudaStream_t,
) {
    let lists = lists(tensor_lists, num_tensor_lists, num_tensors_per_list);
    guard("nvte_multi_tensor_compute_scale_inv_e8m0_cuda", || {
        scales_from_amax(chunk_size, lists, None, stream)
    });
}

/// `outputs[i].amax = max|x|` over the next `split_sections[i]` rows of a matrix, NaN ignored, and
/// `outputs[i].columnwise_amax` the same where it is. Rows after the last part do not count. Any number of
/// parts; those without rows have maxima of 0, and may have no tensor.
///
/// Shapes: `[rows, cols]`; rows of each part and columns multiples of 16. Dtypes: BFloat16; maxima one
/// Float32 each. No tensors: nothing happens.
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
        hadamard_transform::split_amax_plain(input, outputs, split_sections, num_tensors, stream)
    });
}

/// `output.amax[t] = max|x|` over member t of a grouped tensor, NaN ignored, 0 for an empty one, and
/// `output.columnwise_amax[t]` the same where it is.
///
/// Members as `nvte_group_hadamard_transform_amax_graph_safe` has them; dtypes and errors as there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_amax_graph_safe(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_amax_graph_safe", || {
        hadamard_transform::group_amax_plain(input, output, stream)
    });
}
