//! One generator for each operator: from random numbers and the index of a case to its buffers, its outputs and
//! the call. Comparison runs as many cases of each as its row says; capture makes a graph of the first few.

pub mod cast;
pub mod cast_fused;
pub mod experts;
pub mod groups;
pub mod language;
pub mod memory;
pub mod multi_tensor;
pub mod normalization;
pub mod pointwise;
pub mod recipe;
pub mod swizzle;
pub mod symmetric;
pub mod transpose;

use crate::common::*;
use nvte::backend::args::*;
use nvte::types::NVTE_Norm_Type;
use nvte::types::NVTEDType::{self, *};
use nvte::types::NVTEScalingMode::{self, *};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// Gives a macro all generators, by module, with the numbers of cases.
macro_rules! operators {
    ($use:ident) => {
        $use! {
            cast: quantize 600, dequantize 300, quantize_blocks 900, dequantize_blocks 600, requantize 100;
            cast_fused: quantize_fused 1800;
            experts: router_forward 300, router_backward 300, router_weights 200, router_z_loss 200, expert_rows 200, zero_gaps 200, permutations 200, paddings 200,
                topk 200;
            groups: quantize_groups 1200, dequantize_groups 400, swizzle_groups 200, group_amax 300;
            language: cross_entropy 400, combine_cross_entropy 60, total_loss 90, embedding 200, sum_rows 200, merge_attention 200, chunk_lengths 200,
                sample_tokens 150;
            memory: offsets 200, memset_and_host_copy 200;
            multi_tensor: adam 300, sgd 150, scale_tensors 150, add 150, l2_norm 150,
                scales_from_amax 100, step_numbers 200, muon 150;
            normalization: norm_forward 500, norm_backward 400;
            pointwise: scaled_activation 480, softmax 480, dropout 300, rope 400;
            recipe: amax 200, scale_from_amax 300, delayed_scaling 150, partial_amax 400, partial_cast 600;
            swizzle: swizzle 300, scale_codes 100;
            symmetric: symmetric_gemm 40;
            transpose: transpose 300, transpose_dbias 200, swap_first_dims 200;
        }
    };
}
pub(crate) use operators;
