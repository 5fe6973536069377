//! Reference of attention and of what moves tokens around it.
#![allow(unsafe_code)]

mod attention;
mod attention_backward;
mod context_parallel;
mod random;
mod rows;
mod sequence;
mod tile;

pub(crate) use attention::{attention, attention_plan};
pub(crate) use context_parallel::{
    chunk_lengths, grad_correction, half_lse, merge_attention, out_correction, partition,
};
pub(crate) use random::seed;
pub(crate) use rows::{copy_rows, move_rows, reindex_cache};
