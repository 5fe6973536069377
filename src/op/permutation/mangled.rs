//! The functions of permutation.h under the names that a C++ compiler gives them: the header that
//! callers were compiled with lacks `extern "C"`.
#![allow(unsafe_code, non_snake_case, clippy::too_many_arguments)]

use super::exports;
use crate::types::*;
use std::ffi::c_void;

#[unsafe(export_name = "_Z12nvte_permutePvS_S_S_S_S_S_iiiiP11CUstream_st")]
unsafe extern "C-unwind" fn permute(
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
    // SAFETY: the same promises.
    unsafe {
        exports::nvte_permute(
            input,
            output,
            sorted_row_id,
            row_id_map,
            prob,
            prob_grad,
            input_fwd,
            num_rows,
            topK,
            num_cols,
            num_out_tokens,
            stream,
        )
    }
}

#[unsafe(export_name = "_Z14nvte_unpermutePvS_S_S_iiiP11CUstream_st")]
unsafe extern "C-unwind" fn unpermute(
    input: NVTETensor,
    output: NVTETensor,
    row_id_map: NVTETensor,
    prob: NVTETensor,
    num_rows: i32,
    topK: i32,
    num_cols: i32,
    stream: cudaStream_t,
) {
    // SAFETY: the same promises.
    unsafe {
        exports::nvte_unpermute(input, output, row_id_map, prob, num_rows, topK, num_cols, stream)
    }
}

#[unsafe(export_name = "_Z28nvte_device_radix_sort_pairsPvPmPiS1_S1_S1_m")]
unsafe extern "C-unwind" fn device_radix_sort_pairs(
    temp_storage: *mut c_void,
    temp_storage_bytes: *mut usize,
    keys_in: *mut i32,
    keys_out: *mut i32,
    values_in: *mut i32,
    values_out: *mut i32,
    num_items: usize,
) {
    // SAFETY: the same promises.
    unsafe {
        exports::nvte_device_radix_sort_pairs(
            temp_storage,
            temp_storage_bytes,
            keys_in,
            keys_out,
            values_in,
            values_out,
            num_items,
        )
    }
}
