//! What a backend sees: plain structs of checked arguments, a file for each operator family, and the table of
//! its functions (`table.rs`). cbindgen writes each file but the table's to `include/nvte/backend/<file>.h` for
//! the kernels of its family.
//!
//! The caller of a table entry guarantees that the arguments are valid: pointers cover their
//! shapes, dtypes are among those listed, sizes are not zero. An entry checks only what it itself
//! cannot do and then answers UNIMPLEMENTED, before it has written anything.

#![allow(non_camel_case_types)]

mod activation;
mod attention;
mod cast;
mod cross_entropy;
mod dropout;
mod embedding;
mod ep;
mod function;
mod fused_attn;
mod fused_rope;
mod fused_router;
mod gemm;
mod group;
mod grouped_gemm;
mod hadamard_transform;
mod multi_tensor;
mod normalization;
mod nvfp4;
mod nvtex;
mod operator;
mod outcome;
mod padding;
mod permutation;
pub mod plugin;
mod recipe;
mod sampling;
mod softmax;
mod swizzle;
mod table;
mod topk;
mod transformer_engine;
mod transpose;
mod utils;

pub use activation::*;
pub use attention::*;
pub use cast::*;
pub use cross_entropy::*;
pub use dropout::*;
pub use embedding::*;
pub use ep::*;
pub use function::*;
pub use fused_attn::*;
pub use fused_rope::*;
pub use fused_router::*;
pub use gemm::*;
pub use group::*;
pub use grouped_gemm::*;
pub use hadamard_transform::*;
pub use multi_tensor::*;
pub use normalization::*;
pub use nvfp4::*;
pub use nvtex::*;
pub use operator::{Entry, Facts, Operator, StatusNumber};
pub use outcome::*;
pub use padding::*;
pub use permutation::*;
pub use recipe::*;
pub use sampling::*;
pub use softmax::*;
pub use swizzle::*;
pub use table::*;
pub use topk::*;
pub use transformer_engine::*;
pub use transpose::*;
pub use utils::*;
