//! Attention and what it needs besides itself (spec attention 1 to 18).
//!
//! | subject | files |
//! |---|---|
//! | attention | `attention.rs`: options and tensors; `call.rs`: both passes; `problem.rs`: sizes, checks, strides; `layout.rs`; `operand.rs`: a tensor with its name |
//! | context parallelism | `context_parallel.rs` |
//! | packed sequences, orders of dimensions | `packing.rs` |
//! | caches of keys and values | `kv_cache.rs` |
//! | states of random generators | `random.rs` |
//! | what the functions on rows of tokens share | `rows.rs` |
//! | C functions | `exports.rs`; `exports/calls.rs`, `exports/options.rs`: from handles and numbers to records; `exports/objects.rs`: configs and parameters |
//! | reference | `cpu.rs` |

pub mod attention;
pub mod call;
pub(crate) mod context_parallel;
pub(crate) mod cpu;
pub mod exports;
pub mod kv_cache;
pub mod layout;
mod operand;
mod packing;
mod problem;
pub(crate) mod random;
mod rows;
