//! Transposes, alone and with casts (spec: quantize, sections 9.1 to 9.7; of
//! NVFP4 data: optim_nvfp4, section 18).

pub(crate) mod cpu;
pub(crate) mod cpu_dbias;
pub(crate) mod cpu_nvfp4;
pub mod exports;
pub mod exports_derivatives;

use super::cast;
use super::transformer_engine::QuantizationConfig;
use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::*;
use crate::workspace::Workspace;

/// Plans a cast that must write both directions, per tensor.
fn plan_both(input: &Tensor, output: &Tensor, config: &QuantizationConfig) -> Result<Option<Cast>> {
    check::per_tensor("output", output).map_err(|error| Error::unsupported(error.message))?;
    let args = cast::plan_quantize(input, output, config)?;
    if !output.rowwise.is_set() {
        return Err(Error::argument("output.data", "row-wise data", "no data"));
    }
    if !output.colwise.is_set() {
        return Err(Error::argument("output.columnwise_data", "column-wise data", "no data"));
    }
    Ok(args)
}

/// [`plan_both`] with one `scale_inv` for both directions.
fn plan_cast_transpose(
    input: &Tensor,
    output: &Tensor,
    config: &QuantizationConfig,
) -> Result<Option<Cast>> {
    let args = plan_both(input, output, config)?;
    let (row, col) = (output.rowwise_scale_inv.ptr(), output.colwise_scale_inv.ptr());
    if row != col {
        let expected = format!("the address of output.scale_inv ({row:p})");
        let name = "output.columnwise_scale_inv";
        return Err(Error::argument(name, expected, format!("{col:p}")));
    }
    Ok(args)
}

/// A cast that must write both directions, with one `scale_inv` for both.
pub(crate) fn cast_transpose(
    input: &Tensor,
    output: &Tensor,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    cast::run(plan_cast_transpose(input, output, config)?, stream)
}

/// Casts that must write both directions, of each pair of an input and an output.
fn multi_cast_transpose(
    pairs: impl ExactSizeIterator<Item = Result<[Tensor; 2]>>,
    stream: cudaStream_t,
) -> Result<()> {
    let plan = |input: &_, output: &_| plan_both(input, output, &QuantizationConfig::DEFAULT);
    cast::for_each_pair(pairs, plan, stream)
}

/// [`cast_transpose`] with sums over the rows, of a derivative's product with the input if there is a
/// function.
fn cast_transpose_dbias(
    derivative: Option<(Function, &Tensor)>,
    input: &Tensor,
    output: &Tensor,
    dbias: &Tensor,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<()> {
    let plan = || plan_cast_transpose(input, output, &QuantizationConfig::DEFAULT);
    cast::quantize_dbias(derivative, input, &dbias.rowwise, workspace, plan, stream)
}

/// [`cast_transpose_dbias`] of the gradient of an activation.
fn derivative_dbias(
    function: Function,
    input: &Tensor,
    act_input: &Tensor,
    output: &Tensor,
    dbias: &Tensor,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<()> {
    cast_transpose_dbias(Some((function, act_input)), input, output, dbias, workspace, stream)
}

/// [`cast_transpose`] of the gradient of a gated activation.
fn gated_derivative(
    function: Function,
    input: &Tensor,
    act_input: &Tensor,
    output: &Tensor,
    stream: cudaStream_t,
) -> Result<()> {
    check::input("act_input", act_input)?;
    check::high_precision("act_input", act_input.dtype())?;
    check::input("input", input)?;
    check::dtype("input", input.dtype(), &[act_input.dtype()])?;
    let (shape, (rows, cols)) = (act_input.rowwise.shape, act_input.rowwise.shape.flatten());
    if cols % 2 != 0 {
        return Err(Error::argument("act_input.data.shape", "an even last dimension", shape));
    }
    if input.rowwise.shape.flatten() != (rows, cols / 2) {
        let expected = format!("[{rows}, {}] as a matrix", cols / 2);
        return Err(Error::argument("input.data.shape", expected, input.rowwise.shape));
    }
    let args = plan_cast_transpose(act_input, output, &QuantizationConfig::DEFAULT)?;
    let fusion = Fusion {
        form: Form::NVTEX_FORM_GATED_DERIVATIVE,
        function,
        act_input: act_input.rowwise.ptr(),
        ..Fusion::NONE
    };
    let input = input.rowwise.ptr();
    cast::run(args.map(|args| Cast { input, fusion, ..args }), stream)
}

/// A bit copy of a matrix, unless a flag on the device is 1; null: there is none. The name of the output
/// is what the caller calls it.
pub(crate) fn transpose(
    input: &Buffer,
    noop: *const f32,
    (output_name, output): (&str, &Buffer),
    stream: cudaStream_t,
) -> Result<()> {
    use NVTEDType::*;
    for (name, buffer) in [("input", input), (output_name, output)] {
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
        input: check::pointer("input.data", input)?,
        output: check::pointer(format_args!("{output_name}.data"), output)?,
        noop,
        rows,
        cols,
        element_size: input.dtype.bits() / 8,
    };
    check::apart(
        &[Memory::of(&"input.data", input)],
        &[Memory::of(&format_args!("{output_name}.data"), output)],
    )?;
    if rows > 0 && cols > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// A transpose of FP8 data with the sums of the columns.
fn fp8_transpose_dbias(
    input: &Tensor,
    output: &Tensor,
    dbias: &Buffer,
    workspace: &mut Workspace,
    stream: cudaStream_t,
) -> Result<()> {
    check::per_tensor("input", input)?;
    check::per_tensor("transposed_output", output)?;
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
    let Some(workspace) = workspace.take(NVTEDType::kNVTEFloat32, shape)? else {
        return Ok(());
    };
    check::scalar("input.scale_inv", &input.rowwise_scale_inv)?;
    let name = "transposed_output.scale_inv";
    let args = TransposeDbiasArgs {
        input: check::pointer("input.data", data)?,
        output: check::pointer("transposed_output.data", transposed)?,
        scale_inv: check::optional_scalar(name, &output.rowwise_scale_inv)?,
        dbias: check::pointer("dbias.data", dbias)?,
        workspace: workspace.cast(),
        rows,
        cols,
        dtype: data.dtype,
        dbias_dtype: dbias.dtype,
    };
    let outputs = [
        Memory::of(&"transposed_output.data", transposed),
        Memory::of(&"dbias.data", dbias),
        Memory::new(&"workspace.data", args.workspace, shape.numel() * 4),
    ];
    check::apart(&[Memory::of(&"input.data", data)], &outputs)?;
    if cols > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// A swap of the first two dimensions.
pub(crate) fn swap_first_dims(input: &Tensor, output: &Tensor, stream: cudaStream_t) -> Result<()> {
    for (name, tensor) in [("input", input), ("output", output)] {
        check::per_tensor(name, tensor)?;
        if !tensor.rowwise.is_set() {
            return Err(Error::argument(format!("{name}.data"), "row-wise data", "no data"));
        }
    }
    let (input, output) = (&input.rowwise, &output.rowwise);
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
        input: check::pointer("input.data", input)?,
        output: check::pointer("output.data", output)?,
        first,
        second,
        row_bytes: bits / 8,
    };
    check::apart(&[Memory::of(&"input.data", input)], &[Memory::of(&"output.data", output)])?;
    if input.shape.numel() > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// Bytes of two dimensions.
fn byte_matrix(name: &str, data: &Buffer) -> Result<(usize, usize)> {
    check::dtype(name, data.dtype, &[NVTEDType::kNVTEByte])?;
    let &[rows, cols] = data.shape.dims() else {
        return Err(Error::argument(format!("{name}.shape"), "2 dimensions", data.shape));
    };
    check::pointer(format_args!("{name}.data"), data)?;
    Ok((rows, cols))
}

/// A transpose of elements of 4 bits.
fn nvfp4_data(input: &Buffer, output: &Buffer, stream: cudaStream_t) -> Result<()> {
    let (rows, bytes) = byte_matrix("input", input)?;
    byte_matrix("output", output)?;
    if !rows.is_multiple_of(2) {
        return Err(Error::argument("input.shape", "an even number of rows", input.shape));
    }
    check::shape("output", &output.shape, &Shape::new(&[2 * bytes, rows / 2]))?;
    let args =
        Nvfp4TransposeArgs { input: input.ptr(), output: output.ptr(), rows, cols: 2 * bytes };
    check::apart(&[Memory::of(&"input.data", input)], &[Memory::of(&"output.data", output)])?;
    if rows > 0 && bytes > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// A transpose of the scales of square blocks.
fn nvfp4_scale(
    input: &Buffer,
    output: &Buffer,
    m_tiles: usize,
    k_tiles: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let (input_rows, input_stride) = byte_matrix("input", input)?;
    let (rows, output_stride) = byte_matrix("output", output)?;
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
    check::apart(&[Memory::of(&"input.data", input)], &[Memory::of(&"output.data", output)])?;
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
