//! Rows of zeros after the rows of many tensors, and without them again (spec: moe_layout, section 11).

pub(crate) mod cpu;
pub mod exports;

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, bytes};
use crate::types::{NVTEDType::*, *};

/// The lists of a call, all of one length.
struct Lists<'a> {
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    rows: &'a [i32],
    /// The argument that `rows` come from, for messages.
    rows_name: &'static str,
}

/// All tensors as matrices: the input, the output, and its rows.
fn tensors(lists: &Lists) -> Result<Vec<PaddedTensor>> {
    let Lists { inputs, outputs, rows, .. } = lists;
    let Some(first) = inputs.first() else { return Ok(Vec::new()) };
    let dtype = first.dtype;
    if dtype == kNVTEFloat4E2M1 {
        let expected = "a dtype of whole bytes";
        return Err(Error::argument("input_list[0].dtype", expected, dtype));
    }
    let mut tensors = backend::memory::reserve("a list of tensors", inputs.len())?;
    for (i, ((input, output), &rows)) in inputs.iter().zip(outputs).zip(*rows).enumerate() {
        let matrix = |list: &str, buffer: &Buffer| -> Result<_> {
            check::dtype(format_args!("{list}[{i}]"), buffer.dtype, &[dtype])?;
            let &[rows, cols] = buffer.shape.dims() else {
                let name = format!("{list}[{i}].shape");
                return Err(Error::argument(name, "2 dimensions", buffer.shape));
            };
            let data = check::pointer(format_args!("{list}[{i}].data"), buffer)?;
            Ok((data, rows, cols))
        };
        let (from, from_rows, cols) = matrix("input_list", input)?;
        let (to, to_rows, to_cols) = matrix("output_list", output)?;
        let unpadding = lists.rows_name == UNPADDED;
        let rows = match usize::try_from(rows) {
            Ok(rows) if unpadding && rows <= from_rows => rows,
            Ok(rows) if !unpadding && rows >= from_rows => rows,
            _ => {
                let bound = if unpadding { "0 to" } else { "at least" };
                let expected = format!("{bound} {from_rows}, the rows of the input");
                let name = format!("{}[{i}]", lists.rows_name);
                return Err(Error::argument(name, expected, rows));
            }
        };
        if (to_rows, to_cols) != (rows, cols) {
            let expected = format!("[{rows}, {cols}]");
            let got = format!("[{to_rows}, {to_cols}]");
            return Err(Error::argument(format!("output_list[{i}].shape"), expected, got));
        }
        let copied = rows.min(from_rows);
        check::apart(
            &[Memory::new(
                &format_args!("input_list[{i}].data"),
                from,
                bytes(copied * cols, dtype),
            )],
            &[Memory::new(&format_args!("output_list[{i}].data"), to, bytes(rows * cols, dtype))],
        )?;
        tensors.push(PaddedTensor {
            input: from,
            output: to,
            copied: bytes(copied * cols, dtype),
            zeroed: bytes((rows - copied) * cols, dtype),
        });
    }
    Ok(tensors)
}

const PADDED: &str = "padded_num_rows_list";
const UNPADDED: &str = "unpadded_num_rows_list";

fn run(lists: &Lists, stream: cudaStream_t) -> Result<()> {
    let mut tensors = tensors(lists)?;
    tensors.retain(|tensor| tensor.copied + tensor.zeroed > 0);
    let args = PaddingArgs { tensors: tensors.as_ptr(), num_tensors: tensors.len() };
    if tensors.is_empty() { Ok(()) } else { backend::run(&args, stream) }
}
