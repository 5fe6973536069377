//! C functions of topk.h.
#![allow(unsafe_code, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::error::guard;
use crate::workspace::{self, Asks};

/// Finds the k greatest elements of each row, and where they are.
///
/// What it computes: of the first `lengths_in[b]` elements of row b (of all elements without lengths)
/// the k greatest, in the order of their indices; of equal ones those with the lowest indices. Bits are
/// compared: NaN without a sign is greatest, NaN with a sign least, and 0 is greater than -0. A row of
/// at most k elements comes whole, followed by keys of -1 and indices of -1.
///
/// Workspace: if it has no pointer, its shape and dtype become what the second call needs; nothing else
/// is looked at then.
///
/// Shapes: `keys_in` `[batch_size, seq_len]`; `lengths_in` `[batch_size]` or without a pointer;
/// `keys_out` and `indices_out` `[batch_size, k]`. Larger tensors will do.
///
/// Dtypes: `keys_in` Float32, Float16 or BFloat16; `keys_out` is written as the same; lengths Int32;
/// indices are written as Int32. Outputs may declare other dtypes if they have enough bytes.
///
/// Notes: nothing is written to empty tensors.
///
/// Errors: other dtypes; tensors of too few bytes; outputs that overlap anything; null or misaligned
/// pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_topk(
    stream: cudaStream_t,
    keys_in: NVTETensor,
    lengths_in: NVTETensor,
    keys_out: NVTETensor,
    indices_out: NVTETensor,
    workspace: NVTETensor,
    batch_size: i32,
    seq_len: i32,
    k: i32,
) {
    // A call that asks for the size of the workspace may leave these out.
    let tensors = || {
        Ok(Tensors {
            keys: check::rowwise("keys_in", keys_in)?,
            lengths: check::rowwise("lengths_in", lengths_in)?,
            top_keys: check::rowwise("keys_out", keys_out)?,
            top_indices: check::rowwise("indices_out", indices_out)?,
        })
    };
    guard("nvte_topk", || {
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            topk(tensors, [batch_size, seq_len, k], workspace, stream)
        })
    });
}
