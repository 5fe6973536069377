//! Operators, one folder a slice. A slice bears the name of its ABI header: `exports.rs` holds the
//! C functions, `mod.rs` the checks that turn handles into arguments, `cpu.rs` the reference.

mod attribute;
pub mod cast;
pub mod cast_transpose_noop;
pub mod fused_attn;
pub mod gemm;
pub mod multi_stream;
pub mod nvtex;
pub mod recipe;
pub mod transformer_engine;
pub mod transpose;
pub mod utils;
