//! The greatest elements of rows (spec: moe_layout, section 13).

pub(crate) mod cpu;
pub mod exports;

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape};
use crate::types::{NVTEDType::*, *};
use crate::workspace::Workspace;
use std::ptr::null;

const ALIGNMENT: usize = 16;

/// Tensors of a call. Callers of the ABI are not held to the dtypes of outputs: what counts is their room.
struct Tensors {
    keys: Buffer,
    /// The lengths of the rows; without an address all rows have the same length.
    lengths: Buffer,
    top_keys: Buffer,
    top_indices: Buffer,
}

fn topk(
    tensors: impl FnOnce() -> Result<Tensors>,
    sizes: [i32; 3],
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<()> {
    let size = |i: usize, name: &str| {
        usize::try_from(sizes[i]).map_err(|_| Error::argument(name, "0 or more", sizes[i]))
    };
    let (rows, cols, k) = (size(0, "batch_size")?, size(1, "seq_len")?, size(2, "k")?);
    let chunks = cols.div_ceil(NVTEX_TOPK_CHUNK).max(1);
    let workspace_bytes = rows * (NVTEX_TOPK_ROW_BYTES + chunks * 8) + ALIGNMENT - 1;
    let shape = Shape::new(&[workspace_bytes]);
    let Some(workspace) = workspace.take(kNVTEByte, shape)? else { return Ok(()) };
    let Tensors { keys, lengths, top_keys, top_indices } = &tensors()?;
    let dtype = keys.dtype;
    check::high_precision("keys_in", dtype)?;
    let lengths = match lengths.ptr().is_null() {
        true => null(),
        false => {
            check::dtype("lengths_in", lengths.dtype, &[kNVTEInt32])?;
            check::elements("lengths_in", lengths, rows, kNVTEInt32)?.cast_const().cast()
        }
    };
    let args = TopkArgs {
        keys: check::elements("keys_in", keys, rows * cols, dtype)?,
        lengths,
        top_keys: check::elements("keys_out", top_keys, rows * k, dtype)?,
        top_indices: check::elements("indices_out", top_indices, rows * k, kNVTEInt32)?.cast(),
        workspace: workspace.wrapping_byte_add(workspace.align_offset(ALIGNMENT)),
        rows,
        cols,
        k,
        dtype,
    };
    let element_bytes = dtype.bits() / 8;
    check::apart(
        &[
            Memory::new(&"keys_in.data", args.keys, rows * cols * element_bytes),
            Memory::new(&"lengths_in.data", args.lengths, rows * 4),
        ],
        &[
            Memory::new(&"keys_out.data", args.top_keys, rows * k * element_bytes),
            Memory::new(&"indices_out.data", args.top_indices, rows * k * 4),
            Memory::new(&"workspace.data", workspace, workspace_bytes),
        ],
    )?;
    if rows * k == 0 { Ok(()) } else { backend::run(&args, stream) }
}
