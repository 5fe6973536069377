//! Transformer Engine core behind a C ABI. The functions are in `op::*::exports`, `nn::capi` and `train::capi`;
//! C callers see them through `include/nvte/*.h`.
#![deny(unsafe_code, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

#[doc(hidden)]
pub mod backend;
mod check;
mod cpu_table;
mod device_check;
mod env;
mod error;
mod fork;
mod function;
mod handle;
mod nn;
#[doc(hidden)]
pub mod numeric;
mod op;
mod parallel;
mod random;
mod reserve;
#[doc(hidden)]
pub mod scaling;
mod sized;
mod start;
mod stderr;
mod tensor;
mod train;
mod trust;
#[doc(hidden)]
pub mod types;
mod verbose;
mod workspace;

#[global_allocator]
static ALLOCATOR: reserve::Reserve = reserve::Reserve::new();
