//! A function without C linkage, under the name that a C++ compiler gives it.
#![allow(unsafe_code)]

/// `bool nvte_built_with_cublasmp()`: whether cuBLASMp does the communication of products. It never does here;
/// programs take a yes as the leave to use it in objects for overlap.
#[unsafe(export_name = "_Z24nvte_built_with_cublasmpv")]
extern "C-unwind" fn built_with_cublasmp() -> bool {
    false
}
