#ifndef NVTE_EMBEDDING_H
#define NVTE_EMBEDDING_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Looks up the rows of tokens in a table, and adds those of their positions in another one:
 * `output[t] = cast(scale * weight[tokens[t] - vocabulary_start] + position_weight[p])`.
 *
 * What it computes: product and sum are rounded to float32, the result once more. The position p is
 * `positions[t]`, or without positions `t % sequence_length`, t being the number of the row; a length of 0 stands
 * for the number of rows.
 *
 * Divided tables: the weight may be rows `vocabulary_start` and following of a vocabulary of `vocabulary_size`,
 * which is 0 for the rows of the weight. A token whose row is not here gives a row of zeros (without the position:
 * give the position table to one rank only), so that the sum over all ranks is the embedding.
 *
 * Wrong tokens: those that are not in the vocabulary, and positions that are not in the table, give zeros in place
 * of the row, and are counted: their number is added to `wrong`, which the caller sets to 0 and reads when it
 * likes. Without `wrong` nothing tells.
 *
 * Shapes: weight `[rows, h]`; `position_weight` `[positions, h]`; output `[..., h]`; tokens and positions one
 * element for each row of the output; wrong one element. Positions, `position_weight` and wrong may be null or
 * unset.
 *
 * Dtypes: weight and output each Float32, Float16 or BFloat16; `position_weight` as the weight; tokens Int32 or
 * Int64, positions as tokens; wrong Int32.
 *
 * Notes: nothing is written to an empty output.
 *
 * Errors: other dtypes or shapes; a vocabulary that ends before the rows of the weight; outputs that overlap
 * anything; null or misaligned pointers.
 */
void nvtex_embedding_forward(NVTETensor tokens,
                             NVTETensor weight,
                             NVTETensor positions,
                             NVTETensor position_weight,
                             NVTETensor output,
                             NVTETensor wrong,
                             float scale,
                             size_t sequence_length,
                             size_t vocabulary_start,
                             size_t vocabulary_size,
                             cudaStream_t stream);

/**
 * Computes the gradients of the tables of `nvtex_embedding_forward`: row k of `grad_weight` is
 * `scale * sum grad_output[t]` over all t whose token is `vocabulary_start + k`, and row p of
 * `grad_position_weight` the sum over all t at the position p.
 *
 * What it computes: sums are in float32 and in an order that the tokens determine, so that results are the same in
 * every run; they are added to what is there if `accumulate`, else the other rows become 0. Rows of the gradient
 * whose token or position has no row here count nowhere.
 *
 * Workspace: if it has no pointer, its shape and dtype become what the second call needs.
 *
 * Shapes: `grad_output` `[..., h]`; tokens and positions one element for each of its rows; `grad_weight`
 * `[rows, h]`; `grad_position_weight` `[positions, h]`. Positions and either gradient may be null or unset.
 *
 * Dtypes: gradients each Float32, Float16 or BFloat16; tokens and positions each Int32 or Int64.
 *
 * Errors: other dtypes or shapes; a workspace that is too small; outputs that overlap anything; null or misaligned
 * pointers.
 */
void nvtex_embedding_backward(NVTETensor tokens,
                              NVTETensor positions,
                              NVTETensor grad_output,
                              NVTETensor grad_weight,
                              NVTETensor grad_position_weight,
                              bool accumulate,
                              float scale,
                              size_t sequence_length,
                              size_t vocabulary_start,
                              NVTETensor workspace,
                              cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_EMBEDDING_H */
