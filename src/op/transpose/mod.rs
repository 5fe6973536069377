//! Transposes (spec: quantize, sections 9.1 and 9.5).

pub(crate) mod cpu;
pub mod exports;

use super::cast;
use super::transformer_engine::QuantizationConfig;
use crate::backend::{self, args::*};
use crate::check;
use crate::error::{Error, Result};
use crate::tensor::Shape;
use crate::types::*;

/// A cast that must write both directions, with one `scale_inv` for both.
pub fn cast_transpose(
    input: NVTETensor,
    noop: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    let input = check::tensor("input", input)?;
    let output = check::tensor("output", output)?;
    check::per_tensor("output", &output).map_err(|error| Error::unsupported(error.message))?;
    let args = cast::plan_quantize(&input, &output, ("noop", noop), &QuantizationConfig::DEFAULT)?;
    if !output.rowwise.is_set() {
        return Err(Error::argument("output.data", "row-wise data", "no data"));
    }
    if !output.colwise.is_set() {
        return Err(Error::argument("output.columnwise_data", "column-wise data", "no data"));
    }
    let (row, col) = (output.rowwise_scale_inv.ptr(), output.colwise_scale_inv.ptr());
    if row != col {
        let expected = format!("the address of output.scale_inv ({row:p})");
        let name = "output.columnwise_scale_inv";
        return Err(Error::argument(name, expected, format!("{col:p}")));
    }
    match args {
        Some(args) => backend::run(&args, stream),
        None => Ok(()),
    }
}

/// A bit copy of a matrix; `output_name` is what the export calls its output.
pub fn transpose(
    input: NVTETensor,
    noop: NVTETensor,
    (output_name, output): (&str, NVTETensor),
    stream: cudaStream_t,
) -> Result<()> {
    use NVTEDType::*;
    let input = check::tensor("input", input)?.rowwise;
    let output = check::tensor(output_name, output)?.rowwise;
    let noop = check::noop("noop", noop)?;
    for (name, buffer) in [("input", &input), (output_name, &output)] {
        if !buffer.is_set() {
            return Err(Error::argument(format!("{name}.data"), "row-wise data", "no data"));
        }
    }
    let dtypes = [kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3, kNVTEFloat8E5M2];
    check::dtype("input", input.dtype, &dtypes)?;
    check::dtype(output_name, output.dtype, &[input.dtype])?;
    let &[rows, cols] = input.shape.dims() else {
        return Err(Error::argument("input.shape", "2 dimensions", input.shape));
    };
    check::shape(output_name, &output.shape, &Shape::new(&[cols, rows]))?;
    let args = TransposeArgs {
        input: check::pointer("input.data", &input)?,
        output: check::pointer(format_args!("{output_name}.data"), &output)?,
        noop,
        rows,
        cols,
        element_size: input.dtype.bits() / 8,
    };
    if rows > 0 && cols > 0 { backend::run(&args, stream) } else { Ok(()) }
}
