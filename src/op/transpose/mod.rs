//! Transposes, alone and with casts (spec: quantize, sections 9.1 to 9.7; of
//! NVFP4 data: optim_nvfp4, section 18).

pub(crate) mod cpu;
pub(crate) mod cpu_dbias;
pub(crate) mod cpu_nvfp4;
pub mod exports;

use super::cast;
use super::transformer_engine::QuantizationConfig;
use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::*;
use std::ptr::null_mut;

/// Plans a cast that must write both directions, per tensor.
fn plan_both(input: &Tensor, output: &Tensor, noop: NVTETensor) -> Result<Option<QuantizeArgs>> {
    check::per_tensor("output", output).map_err(|error| Error::unsupported(error.message))?;
    let args = cast::plan_quantize(input, output, ("noop", noop), &QuantizationConfig::DEFAULT)?;
    if !output.rowwise.is_set() {
        return Err(Error::argument("output.data", "row-wise data", "no data"));
    }
    if !output.colwise.is_set() {
        return Err(Error::argument("output.columnwise_data", "column-wise data", "no data"));
    }
    Ok(args)
}

/// [`plan_both`] with one `scale_inv` for both.
fn plan_cast_transpose(
    input: &Tensor,
    output: &Tensor,
    noop: NVTETensor,
) -> Result<Option<QuantizeArgs>> {
    let args = plan_both(input, output, noop)?;
    let (row, col) = (output.rowwise_scale_inv.ptr(), output.colwise_scale_inv.ptr());
    if row != col {
        let expected = format!("the address of output.scale_inv ({row:p})");
        let name = "output.columnwise_scale_inv";
        return Err(Error::argument(name, expected, format!("{col:p}")));
    }
    Ok(args)
}

/// A cast that must write both directions, with one `scale_inv` for both.
pub fn cast_transpose(
    input: NVTETensor,
    noop: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    let input = check::tensor("input", input)?;
    let output = check::tensor("output", output)?;
    match plan_cast_transpose(&input, &output, noop)? {
        Some(args) => cast::run(&args, stream),
        None => Ok(()),
    }
}

fn multi_cast_transpose(
    num_tensors: usize,
    inputs: *const NVTETensor,
    outputs: *const NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    let plan = |input: &_, output: &_| plan_both(input, output, null_mut());
    cast::for_each_pair(("input_list", inputs), ("output_list", outputs), num_tensors, plan, stream)
}

/// [`cast_transpose`] with sums over the rows, of a derivative's product with the input if there is a
/// function.
fn cast_transpose_dbias(
    derivative: Option<(Function, NVTETensor)>,
    input: NVTETensor,
    output: NVTETensor,
    dbias_and_workspace: [NVTETensor; 2],
    stream: cudaStream_t,
) -> Result<()> {
    let plan = |input: &_, output: &_| plan_cast_transpose(input, output, null_mut());
    cast::quantize_dbias(derivative, input, output, dbias_and_workspace, plan, stream)
}

/// [`cast_transpose`] of the gradient of a gated activation.
fn gated_cast_transpose(
    function: Function,
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    let input = check::tensor("input", input)?;
    let act_input = check::tensor("act_input", act_input)?;
    let output = check::tensor("output", output)?;
    check::input("act_input", &act_input)?;
    check::high_precision("act_input", act_input.dtype())?;
    check::input("input", &input)?;
    check::dtype("input", input.dtype(), &[act_input.dtype()])?;
    let (shape, (rows, cols)) = (act_input.rowwise.shape, act_input.rowwise.shape.flatten());
    if cols % 2 != 0 {
        return Err(Error::argument("act_input.data.shape", "an even last dimension", shape));
    }
    if input.rowwise.shape.flatten() != (rows, cols / 2) {
        let expected = format!("[{rows}, {}] as a matrix", cols / 2);
        return Err(Error::argument("input.data.shape", expected, input.rowwise.shape));
    }
    let Some(args) = plan_cast_transpose(&act_input, &output, null_mut())? else {
        return Ok(());
    };
    let fusion = Fusion {
        form: Form::NVTEX_FORM_GATED_DERIVATIVE,
        function,
        act_input: act_input.rowwise.ptr(),
        ..Fusion::NONE
    };
    cast::run(&QuantizeArgs { input: input.rowwise.ptr(), fusion, ..args }, stream)
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
    check::apart(
        &[Memory::of(&"input.data", &input)],
        &[Memory::of(&format_args!("{output_name}.data"), &output)],
    )?;
    if rows > 0 && cols > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// A transpose of FP8 data with the sums of the columns.
pub fn fp8_transpose_dbias(
    input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    let input = check::tensor("input", input)?;
    let output = check::tensor("transposed_output", output)?;
    let dbias = check::tensor("dbias", dbias)?.rowwise;
    check::per_tensor("input", &input)?;
    check::per_tensor("transposed_output", &output)?;
    let (data, transposed) = (&input.rowwise, &output.rowwise);
    check::fp8("input.data", data.dtype)?;
    check::dtype("transposed_output.data", transposed.dtype, &[data.dtype])?;
    check::high_precision("dbias", dbias.dtype)?;
    let &[rows, cols] = data.shape.dims() else {
        return Err(Error::argument("input.shape", "2 dimensions", data.shape));
    };
    check::shape("transposed_output", &transposed.shape, &Shape::new(&[cols, rows]))?;
    check::shape("dbias", &dbias.shape, &Shape::new(&[cols]))?;
    // Never empty, so that a workspace without a pointer always asks.
    let shape = Shape::new(&[rows.div_ceil(128).max(1), cols]);
    let Some(workspace) = check::workspace(workspace, NVTEDType::kNVTEFloat32, shape)? else {
        return Ok(());
    };
    check::scalar("input.scale_inv", &input.rowwise_scale_inv)?;
    let name = "transposed_output.scale_inv";
    let args = TransposeDbiasArgs {
        input: check::pointer("input.data", data)?,
        output: check::pointer("transposed_output.data", transposed)?,
        scale_inv: check::optional_scalar(name, &output.rowwise_scale_inv)?,
        dbias: check::pointer("dbias.data", &dbias)?,
        workspace: workspace.cast(),
        rows,
        cols,
        dtype: data.dtype,
        dbias_dtype: dbias.dtype,
    };
    let outputs = [
        Memory::of(&"transposed_output.data", transposed),
        Memory::of(&"dbias.data", &dbias),
        Memory::new(&"workspace.data", args.workspace, shape.numel() * 4),
    ];
    check::apart(&[Memory::of(&"input.data", data)], &outputs)?;
    if cols > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// A swap of the first two dimensions.
pub fn swap_first_dims(input: NVTETensor, output: NVTETensor, stream: cudaStream_t) -> Result<()> {
    let input = check::tensor("input", input)?;
    let output = check::tensor("output", output)?;
    for (name, tensor) in [("input", &input), ("output", &output)] {
        check::per_tensor(name, tensor)?;
        if !tensor.rowwise.is_set() {
            return Err(Error::argument(format!("{name}.data"), "row-wise data", "no data"));
        }
    }
    let (input, output) = (input.rowwise, output.rowwise);
    check::dtype("output", output.dtype, &[input.dtype])?;
    let &[first, second, ref rest @ ..] = input.shape.dims() else {
        return Err(Error::argument("input.shape", "2 or more dimensions", input.shape));
    };
    let swapped = [&[second, first], rest].concat();
    check::shape("output", &output.shape, &Shape::new(&swapped))?;
    let bits = rest.iter().product::<usize>() * input.dtype.bits();
    if !bits.is_multiple_of(8) {
        let expected = format!("whole bytes ({}) after the first two dimensions", input.dtype);
        return Err(Error::argument("input.shape", expected, input.shape));
    }
    let args = SwapFirstDimsArgs {
        input: check::pointer("input.data", &input)?,
        output: check::pointer("output.data", &output)?,
        first,
        second,
        row_bytes: bits / 8,
    };
    check::apart(&[Memory::of(&"input.data", &input)], &[Memory::of(&"output.data", &output)])?;
    if input.shape.numel() > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// Bytes of two dimensions.
fn byte_matrix(name: &str, handle: NVTETensor) -> Result<(Buffer, (usize, usize))> {
    let data = check::tensor(name, handle)?.rowwise;
    check::dtype(name, data.dtype, &[NVTEDType::kNVTEByte])?;
    let &[rows, cols] = data.shape.dims() else {
        return Err(Error::argument(format!("{name}.shape"), "2 dimensions", data.shape));
    };
    check::pointer(format_args!("{name}.data"), &data)?;
    Ok((data, (rows, cols)))
}

/// A transpose of elements of 4 bits.
fn nvfp4_data(input: NVTETensor, output: NVTETensor, stream: cudaStream_t) -> Result<()> {
    let (input, (rows, bytes)) = byte_matrix("input", input)?;
    let (output, _) = byte_matrix("output", output)?;
    if !rows.is_multiple_of(2) {
        return Err(Error::argument("input.shape", "an even number of rows", input.shape));
    }
    check::shape("output", &output.shape, &Shape::new(&[2 * bytes, rows / 2]))?;
    let args =
        Nvfp4TransposeArgs { input: input.ptr(), output: output.ptr(), rows, cols: 2 * bytes };
    check::apart(&[Memory::of(&"input.data", &input)], &[Memory::of(&"output.data", &output)])?;
    if rows > 0 && bytes > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// A transpose of the scales of square blocks.
fn nvfp4_scale(
    input: NVTETensor,
    output: NVTETensor,
    m_tiles: usize,
    k_tiles: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let (input, (input_rows, input_stride)) = byte_matrix("input", input)?;
    let (output, (rows, output_stride)) = byte_matrix("output", output)?;
    if rows == 0 || m_tiles == 0 || k_tiles == 0 {
        return Ok(());
    }
    if input_rows.div_ceil(16) < m_tiles || input_stride < k_tiles {
        let expected = format!("[more than 16 * {}, {k_tiles} or more]", m_tiles - 1);
        return Err(Error::argument("input.shape", expected, input.shape));
    }
    if output_stride < m_tiles {
        let expected = format!("{m_tiles} or more columns");
        return Err(Error::argument("output.shape", expected, output.shape));
    }
    check::apart(&[Memory::of(&"input.data", &input)], &[Memory::of(&"output.data", &output)])?;
    let args = Nvfp4ScaleTransposeArgs {
        input: input.ptr(),
        output: output.ptr(),
        rows,
        cols: m_tiles,
        row_tiles: k_tiles,
        input_stride,
        output_stride,
    };
    backend::run(&args, stream)
}
