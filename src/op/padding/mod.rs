//! Rows of zeros after the rows of many tensors, and without them again (spec: moe_layout, section 11).

pub(crate) mod cpu;
pub mod exports;

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::bytes;
use crate::types::{NVTEDType::*, *};

/// The lists of a call.
struct Lists {
    num_tensors: usize,
    inputs: *const NVTETensor,
    outputs: *mut NVTETensor,
    rows: *const i32,
    /// Of `rows`, for messages.
    rows_name: &'static str,
}

/// All tensors as matrices: the input, the output, and its rows.
fn tensors(lists: &Lists) -> Result<Vec<PaddedTensor>> {
    let n = lists.num_tensors;
    check::array("input_list", lists.inputs, ("num_tensors", n))?;
    check::array("output_list", lists.outputs.cast_const(), ("num_tensors", n))?;
    check::array(lists.rows_name, lists.rows, ("num_tensors", n))?;
    if n == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the caller's arrays have that many entries.
    #[allow(unsafe_code)]
    let (inputs, outputs, rows) = unsafe {
        (
            std::slice::from_raw_parts(lists.inputs, n),
            std::slice::from_raw_parts(lists.outputs.cast_const(), n),
            std::slice::from_raw_parts(lists.rows, n),
        )
    };
    let dtype = check::tensor("input_list[0]", inputs[0])?.rowwise.dtype;
    if dtype == kNVTEFloat4E2M1 {
        let expected = "a dtype of whole bytes";
        return Err(Error::argument("input_list[0].dtype", expected, dtype));
    }
    let mut tensors = backend::memory::reserve("a list of tensors", n)?;
    for (i, ((&input, &output), &rows)) in inputs.iter().zip(outputs).zip(rows).enumerate() {
        let matrix = |list: &str, handle| -> Result<_> {
            let name = format!("{list}[{i}]");
            let tensor = check::tensor(&name, handle)?;
            check::dtype(&name, tensor.rowwise.dtype, &[dtype])?;
            let &[rows, cols] = tensor.rowwise.shape.dims() else {
                let shape = tensor.rowwise.shape;
                return Err(Error::argument(format!("{name}.shape"), "2 dimensions", shape));
            };
            let data = check::pointer(format_args!("{name}.data"), &tensor.rowwise)?;
            Ok((data, rows, cols))
        };
        let (from, from_rows, cols) = matrix("input_list", input)?;
        let (to, to_rows, to_cols) = matrix("output_list", output)?;
        let unpadding = lists.rows_name == UNPADDED;
        let name = format!("{}[{i}]", lists.rows_name);
        let rows = match usize::try_from(rows) {
            Ok(rows) if unpadding && rows <= from_rows => rows,
            Ok(rows) if !unpadding && rows >= from_rows => rows,
            _ => {
                let bound = if unpadding { "0 to" } else { "at least" };
                let expected = format!("{bound} {from_rows}, the rows of the input");
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
