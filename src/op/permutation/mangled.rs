//! The functions of permutation.h under the names that a C++ compiler gives them: the header that
//! callers were compiled with lacks `extern "C"`.
#![allow(unsafe_code)]

use crate::error::other_name;

other_name!("_Z12nvte_permutePvS_S_S_S_S_S_iiiiP11CUstream_st", super::exports::nvte_permute);
other_name!("_Z14nvte_unpermutePvS_S_S_iiiP11CUstream_st", super::exports::nvte_unpermute);
other_name!(
    "_Z28nvte_device_radix_sort_pairsPvPmPiS1_S1_S1_m",
    super::exports::nvte_device_radix_sort_pairs
);
