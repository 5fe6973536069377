//! C functions of embedding.h: rows of a table for tokens, and the table's gradients.
#![allow(unsafe_code, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::check::truth;
use crate::error::guard;
use crate::workspace::{self, Asks};
use std::mem::MaybeUninit;

/// Looks up the rows of tokens in a table, and adds those of their positions in another one:
/// `output[t] = cast(scale * weight[tokens[t] - vocabulary_start] + position_weight[p])`.
///
/// What it computes: product and sum are rounded to float32, the result once more. The position p is
/// `positions[t]`, or without positions `t % sequence_length`, t being the number of the row; a length of 0 stands
/// for the number of rows.
///
/// Divided tables: the weight may be rows `vocabulary_start` and following of a vocabulary of `vocabulary_size`,
/// which is 0 for the rows of the weight. A token whose row is not here gives a row of zeros (without the position:
/// give the position table to one rank only), so that the sum over all ranks is the embedding.
///
/// Wrong tokens: those that are not in the vocabulary, and positions that are not in the table, give zeros in place
/// of the row, and are counted: their number is added to `wrong`, which the caller sets to 0 and reads when it
/// likes. Without `wrong` nothing tells.
///
/// Shapes: weight `[rows, h]`; `position_weight` `[positions, h]`; output `[..., h]`; tokens and positions one
/// element for each row of the output; wrong one element. Positions, `position_weight` and wrong may be null or
/// unset.
///
/// Dtypes: weight and output each Float32, Float16 or BFloat16; `position_weight` as the weight; tokens Int32 or
/// Int64, positions as tokens; wrong Int32.
///
/// Notes: nothing is written to an empty output.
///
/// Errors: other dtypes or shapes; a vocabulary that ends before the rows of the weight; outputs that overlap
/// anything; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_embedding_forward(
    tokens: NVTETensor,
    weight: NVTETensor,
    positions: NVTETensor,
    position_weight: NVTETensor,
    output: NVTETensor,
    wrong: NVTETensor,
    scale: f32,
    sequence_length: usize,
    vocabulary_start: usize,
    vocabulary_size: usize,
    stream: cudaStream_t,
) {
    guard("nvtex_embedding_forward", || {
        let lookup = Lookup {
            tokens: &check::rowwise("tokens", tokens)?,
            weight: &check::tensor("weight", weight)?,
            positions: &check::rowwise_or_unset("positions", positions)?,
            position_weight: &check::rowwise_or_unset("position_weight", position_weight)?,
            wrong: &check::rowwise_or_unset("wrong", wrong)?,
        };
        let (sequence, start, size) = (sequence_length, vocabulary_start, vocabulary_size);
        let rule = Rule { scale, sequence, start, size };
        forward(&lookup, &check::tensor("output", output)?, &rule, stream)
    });
}

/// Computes the gradients of the tables of `nvtex_embedding_forward`: row k of `grad_weight` is
/// `scale * sum grad_output[t]` over all t whose token is `vocabulary_start + k`, and row p of
/// `grad_position_weight` the sum over all t at the position p.
///
/// What it computes: sums are in float32 and in an order that the tokens determine, so that results are the same in
/// every run; they are added to what is there if `accumulate`, else the other rows become 0. Rows of the gradient
/// whose token or position has no row here count nowhere.
///
/// Workspace: if it has no pointer, its shape and dtype become what the second call needs.
///
/// Shapes: `grad_output` `[..., h]`; tokens and positions one element for each of its rows; `grad_weight`
/// `[rows, h]`; `grad_position_weight` `[positions, h]`. Positions and either gradient may be null or unset.
///
/// Dtypes: gradients each Float32, Float16 or BFloat16; tokens and positions each Int32 or Int64.
///
/// Errors: other dtypes or shapes; a workspace that is too small; outputs that overlap anything; null or misaligned
/// pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_embedding_backward(
    tokens: NVTETensor,
    positions: NVTETensor,
    grad_output: NVTETensor,
    grad_weight: NVTETensor,
    grad_position_weight: NVTETensor,
    accumulate: MaybeUninit<bool>,
    scale: f32,
    sequence_length: usize,
    vocabulary_start: usize,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvtex_embedding_backward", || {
        let given = Gradients {
            tokens: &check::rowwise("tokens", tokens)?,
            positions: &check::rowwise_or_unset("positions", positions)?,
            grad_output: &check::tensor("grad_output", grad_output)?,
            grad_weight: &check::rowwise_or_unset("grad_weight", grad_weight)?,
            grad_position_weight: &check::rowwise_or_unset(
                "grad_position_weight",
                grad_position_weight,
            )?,
            accumulate: truth(accumulate),
        };
        let (sequence, start) = (sequence_length, vocabulary_start);
        let rule = Rule { scale, sequence, start, size: 0 };
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            backward(&given, &rule, workspace, stream)
        })
    });
}
