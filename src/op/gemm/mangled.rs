//! A function without a declaration, under the name that a C++ compiler gives it.
#![allow(unsafe_code)]

use crate::error::other_name;

other_name!(
    "_Z29nvte_multi_stream_cublas_gemmPKPvS1_PS_S1_S2_ibbbS2_bbiP11CUstream_st",
    super::exports::nvte_multi_tensor_gemm
);
