//! C functions of permutation.h. The ABI has them under C++ names, see `mangled.rs`.
#![allow(unsafe_code, non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::error::guard;

/// Copies the rows of tokens to the rows of their experts, or turns gradients of `nvte_unpermute` back.
///
/// Without data in `input_fwd`: `sorted_row_id` lists the slots `t * topK + k` in the order of their
/// experts. Slot r at place i becomes `row_id_map[k, t] = i`, -1 from `num_out_tokens` on, and
/// `output[i] = input[t]`, bit by bit; `prob` and `prob_grad` are not used.
/// With data in `input_fwd` (the input of that forward; input holds the gradients of its output): with the
/// map as an input, `output[row_id_map[k, t]] = cast(input[t] * prob[t, k])` and
/// `prob_grad[t, k] = sum_c input[t, c] * input_fwd[row_id_map[k, t], c]`, in float32, in a fixed order;
/// 0 where there is no row. Without `prob`, input is copied and `prob_grad` is not used.
/// Shapes: input `[num_rows, num_cols]`, output `[num_out_tokens, num_cols]` (as `input_fwd`),
/// `sorted_row_id` `[num_rows * topK]`, `row_id_map` `[topK, num_rows]`, `prob`, `prob_grad` `[num_rows, topK]`;
/// larger ones serve, and any numbers of columns and topK. Absent tensors may be null. Outputs may not
/// overlap anything.
/// Dtypes: Float32, Float16 or BFloat16 for rows; Int32 for ids; Float32 for probabilities.
/// Empty tensors: nothing is written.
/// Errors: other dtypes; tensors that are too small; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_permute(
    input: NVTETensor,
    output: NVTETensor,
    sorted_row_id: NVTETensor,
    row_id_map: NVTETensor,
    prob: NVTETensor,
    prob_grad: NVTETensor,
    input_fwd: NVTETensor,
    num_rows: i32,
    topK: i32,
    num_cols: i32,
    num_out_tokens: i32,
    stream: cudaStream_t,
) {
    guard("nvte_permute", || {
        let tensors = Permutation {
            input: check::rowwise_or_unset("input", input)?,
            output: check::rowwise_or_unset("output", output)?,
            sorted_row_id: check::rowwise_or_unset("sorted_row_id", sorted_row_id)?,
            row_id_map: check::rowwise_or_unset("row_id_map", row_id_map)?,
            prob: check::rowwise_or_unset("prob", prob)?,
            prob_grad: check::rowwise_or_unset("prob_grad", prob_grad)?,
            input_fwd: check::rowwise_or_unset("input_fwd", input_fwd)?,
        };
        permute(&tensors, &Sizes::new(num_rows, topK, num_cols)?, num_out_tokens, stream)
    });
}

/// Sums the rows of the experts of each token:
/// `output[t] = cast(sum_k input[row_id_map[k, t]] * prob[t, k])` in float32, k ascending, over those that
/// have a row (the id is 0 or more); no factor without `prob`. It is also the gradient of `nvte_permute`.
///
/// Shapes, dtypes, errors: as `nvte_permute`; output `[num_rows, num_cols]`. A token without rows
/// becomes 0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_unpermute(
    input: NVTETensor,
    output: NVTETensor,
    row_id_map: NVTETensor,
    prob: NVTETensor,
    num_rows: i32,
    topK: i32,
    num_cols: i32,
    stream: cudaStream_t,
) {
    guard("nvte_unpermute", || {
        let tensors = [
            &check::rowwise_or_unset("input", input)?,
            &check::rowwise_or_unset("output", output)?,
            &check::rowwise_or_unset("row_id_map", row_id_map)?,
            &check::rowwise_or_unset("prob", prob)?,
        ];
        unpermute(tensors, &Sizes::new(num_rows, topK, num_cols)?, stream)
    });
}

/// Sorts pairs of a key and a value by their keys as unsigned numbers, ascending; equal keys keep their
/// order. Negative keys come last.
///
/// Two calls: with a null `temp_storage`, `*temp_storage_bytes` (on the host) becomes what the second call
/// needs; then with that much memory on the device, or more, of which the number tells.
/// There is no stream: the work is in the default stream of the device, and no graph can capture it.
/// Shapes: `[num_items]`, at most 2^31 - 1; the outputs may not overlap anything.
/// Errors: null or misaligned pointers; more items; outputs that overlap anything; too little memory.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_device_radix_sort_pairs(
    temp_storage: *mut c_void,
    temp_storage_bytes: *mut usize,
    keys_in: *mut i32,
    keys_out: *mut i32,
    values_in: *mut i32,
    values_out: *mut i32,
    num_items: usize,
) {
    let (keys, values) = ([keys_in, keys_out], [values_in, values_out]);
    let pairs = Pairs { temp_storage, temp_storage_bytes, keys, values, num_items };
    guard("nvte_device_radix_sort_pairs", || sort_pairs(&pairs));
}
