//! Operators, one folder a slice. A slice bears the name of its ABI header: `exports.rs` holds the
//! C functions, which turn handles into tensors, `mod.rs` the checks that turn tensors into arguments, and
//! `cpu.rs` the reference.

pub mod activation;
mod attribute;
pub mod cast;
pub mod cast_transpose_noop;
pub mod comm_gemm;
pub mod cross_entropy;
pub mod dispatch;
pub mod dropout;
pub mod embedding;
pub mod ep;
pub mod fused_attn;
pub mod fused_rope;
pub mod fused_router;
pub mod gemm;
pub mod hadamard_transform;
pub mod multi_stream;
pub mod multi_tensor;
pub mod newton_schulz;
pub mod normalization;
pub mod nvtex;
pub mod padding;
pub mod permutation;
pub mod ranks;
pub mod recipe;
pub mod sampling;
pub mod softmax;
pub mod swizzle;
pub mod topk;
pub mod transformer_engine;
pub mod transpose;
pub mod utils;
