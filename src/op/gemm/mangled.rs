//! A function without a declaration, under the name that a C++ compiler gives it.
#![allow(unsafe_code, non_snake_case, clippy::too_many_arguments)]

use super::exports;
use crate::types::*;
use std::mem::MaybeUninit;

#[unsafe(export_name = "_Z29nvte_multi_stream_cublas_gemmPKPvS1_PS_S1_S2_ibbbS2_bbiP11CUstream_st")]
unsafe extern "C-unwind" fn multi_stream_cublas_gemm(
    A: *const NVTETensor,
    B: *const NVTETensor,
    D: *mut NVTETensor,
    bias: *const NVTETensor,
    pre_gelu_out: *mut NVTETensor,
    num_gemms: i32,
    transa: MaybeUninit<bool>,
    transb: MaybeUninit<bool>,
    grad: MaybeUninit<bool>,
    workspace: *mut NVTETensor,
    accumulate: MaybeUninit<bool>,
    use_split_accumulator: MaybeUninit<bool>,
    math_sm_count: i32,
    stream: cudaStream_t,
) {
    // SAFETY: the same promises.
    unsafe {
        exports::nvte_multi_tensor_gemm(
            A,
            B,
            D,
            bias,
            pre_gelu_out,
            num_gemms,
            transa,
            transb,
            grad,
            workspace,
            accumulate,
            use_split_accumulator,
            math_sm_count,
            stream,
        )
    }
}
