//! Casts to NVFP4 whose column-wise data are of the Hadamard transform (spec: nvfp4, section 16).

use super::multiple;
use crate::backend::args::Nvfp4Variant::*;
use crate::backend::args::*;
use crate::check;
use crate::device_check;
use crate::error::{Error, Result};
use crate::op::cast::nvfp4::{Part, cast_of, check_mode, run, split};
use crate::op::transformer_engine::QuantizationConfig;
use crate::tensor::{Buffer, GroupedTensor, Shape, Tensor};
use crate::types::NVTEDType::*;
use crate::types::*;
use std::fmt::Display;

/// Elements of a block.
const BLOCK: usize = 16;

/// What the functions have in common: the arguments of a cast without outputs.
fn plan(
    (input, shape): (&Buffer, (usize, usize)),
    matrix: &Tensor,
    variant: Nvfp4Variant,
    config: &QuantizationConfig,
) -> Result<Nvfp4QuantizeArgs> {
    check::dtype("input", input.dtype, &[kNVTEBFloat16])?;
    multiple("input.shape", "rows", shape.0)?;
    multiple("input.shape", "columns", shape.1)?;
    check::input("hadamard_matrix", matrix)?;
    check::dtype("hadamard_matrix", matrix.dtype(), &[kNVTEBFloat16])?;
    check::shape("hadamard_matrix", &matrix.rowwise.shape, &Shape::new(&[BLOCK, BLOCK]))?;
    Ok(Nvfp4QuantizeArgs {
        hadamard: matrix.rowwise.ptr(),
        fast_math: config.use_fast_math,
        ..cast_of((input, kNVTEBFloat16), shape, variant, config)
    })
}

/// A row-wise matrix of the input.
fn matrix_of(input: &Tensor) -> Result<(&Buffer, (usize, usize))> {
    check::input("input", input)?;
    Ok((&input.rowwise, input.rowwise.shape.flatten()))
}

/// A buffer of at least so many elements of one of the types.
fn at_least(
    name: impl Display,
    buffer: &Buffer,
    numel: usize,
    dtypes: &[NVTEDType],
) -> Result<*mut std::ffi::c_void> {
    if !buffer.is_set() {
        return Err(Error::argument(name, format!("{numel} elements"), "nothing"));
    }
    check::dtype(&name, buffer.dtype, dtypes)?;
    if buffer.shape.numel() < numel {
        let expected = format!("{numel} or more elements");
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    check::pointer(name, buffer)
}

/// Bytes of the scales of `lines` lines of `length` elements: compact, or in whole tiles of 128 x 4.
fn scale_count((lines, length): (usize, usize), swizzled: bool) -> usize {
    match swizzled {
        true => lines.next_multiple_of(128) * (length / BLOCK).next_multiple_of(4),
        false => lines * (length / BLOCK),
    }
}

/// Data, scales and amax, of which the names are given, of `lines` lines of `length` elements; one amax,
/// or one for each of the members.
fn direction(
    tensor_name: impl Display,
    names: [&str; 3],
    [data, scales, amax]: [&Buffer; 3],
    dims @ (lines, length): (usize, usize),
    swizzled: bool,
    members: Option<usize>,
) -> Result<Nvfp4Lines> {
    let [data_name, scale_name, amax_name] = names;
    let count = scale_count(dims, swizzled);
    Ok(Nvfp4Lines {
        data: at_least(
            format_args!("{tensor_name}.{data_name}"),
            data,
            lines * length,
            &[kNVTEFloat4E2M1],
        )?,
        scales: at_least(
            format_args!("{tensor_name}.{scale_name}"),
            scales,
            count,
            &[kNVTEFloat8E4M3, kNVTEByte],
        )?,
        amax: match members {
            None => check::scalar(format_args!("{tensor_name}.{amax_name}"), amax)?,
            Some(n) => {
                let name = format_args!("{tensor_name}.{amax_name}");
                at_least(name, amax, n, &[kNVTEFloat32])?.cast()
            }
        },
        scale_stride: length / BLOCK,
    })
}

const ROWWISE: [&str; 3] = ["data", "scale_inv", "amax"];
const COLWISE: [&str; 3] = ["columnwise_data", "columnwise_scale_inv", "columnwise_amax"];

fn rowwise(name: impl Display, tensor: &Tensor, shape: (usize, usize)) -> Result<Nvfp4Lines> {
    let buffers = [&tensor.rowwise, &tensor.rowwise_scale_inv, &tensor.amax];
    direction(name, ROWWISE, buffers, shape, tensor.swizzled, None)
}

fn colwise(
    name: impl Display,
    tensor: &Tensor,
    (rows, cols): (usize, usize),
) -> Result<Nvfp4Lines> {
    let buffers = [&tensor.colwise, &tensor.colwise_scale_inv, &tensor.colwise_amax];
    direction(name, COLWISE, buffers, (cols, rows), tensor.swizzled, None)
}

/// Column-wise data in the row-wise fields of the output.
fn transposed(
    name: impl Display,
    tensor: &Tensor,
    (rows, cols): (usize, usize),
) -> Result<Nvfp4Lines> {
    check_mode(&name, tensor.mode)?;
    if tensor.swizzled {
        return Err(Error::argument(format!("{name}.with_gemm_swizzled_scales"), 0, 1));
    }
    let buffers = [&tensor.rowwise, &tensor.rowwise_scale_inv, &tensor.amax];
    direction(name, ROWWISE, buffers, (cols, rows), false, None)
}

/// The transform of the columns of a matrix, cast and transposed.
pub fn columnwise(
    input: &Tensor,
    output: &Tensor,
    matrix: &Tensor,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let (input, shape) = matrix_of(input)?;
    let args = plan((input, shape), matrix, NVTEX_NVFP4_HADAMARD_COLUMNS, config)?;
    let colwise = transposed("output", output, shape)?;
    run(&[Nvfp4QuantizeArgs { colwise, ..args }], stream)
}

/// A matrix by its rows, and the transform by its columns.
pub fn both(
    input: &Tensor,
    output: &Tensor,
    matrix: &Tensor,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let (input, shape) = matrix_of(input)?;
    let mut args = plan((input, shape), matrix, NVTEX_NVFP4_HADAMARD, config)?;
    check_mode("output", output.mode)?;
    let (by_row, by_col) = (output.rowwise.is_set(), output.colwise.is_set());
    if !by_row && !by_col {
        return Err(Error::argument("output.data", "row-wise or column-wise data", "no data"));
    }
    args.swizzled = output.swizzled;
    if by_row {
        args.rowwise = rowwise("output", output, shape)?;
    }
    if by_col {
        args.colwise = colwise("output", output, shape)?;
    }
    run(&[args], stream)
}

/// The parts of a matrix, of whole blocks of rows.
fn whole_blocks<'a>(
    whole: &Nvfp4QuantizeArgs,
    parts: &'a [Part],
) -> Result<Vec<(usize, &'a Tensor, Nvfp4QuantizeArgs)>> {
    for (i, part) in parts.iter().enumerate() {
        multiple(format_args!("split_sections[{i}]"), "rows", part.rows)?;
    }
    split(whole, parts)
}

/// As [`columnwise`], of the parts of a matrix.
pub fn split_columnwise(
    input: &Tensor,
    parts: &[Part],
    matrix: &Tensor,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let (input, shape) = matrix_of(input)?;
    let whole = plan((input, shape), matrix, NVTEX_NVFP4_HADAMARD_COLUMNS, config)?;
    let parts = whole_blocks(&whole, parts)?;
    let part = |(i, tensor, args): &(usize, &Tensor, Nvfp4QuantizeArgs)| {
        let name = format_args!("outputs[{i}]");
        let colwise = transposed(name, tensor, (args.rows, args.cols))?;
        Ok(Nvfp4QuantizeArgs { colwise, ..*args })
    };
    run(&parts.iter().map(part).collect::<Result<Vec<_>>>()?, stream)
}

/// Stochastic rounding of groups takes no default seed.
fn needs_rng_state(args: &Nvfp4QuantizeArgs) -> Result<()> {
    if args.stochastic && args.rng_state.is_null() {
        let expected = "Int64 [2] (because of stochastic_rounding)";
        return Err(Error::argument("quant_config.rng_state", expected, "nothing"));
    }
    Ok(())
}

/// As [`both`], of the parts of a matrix.
pub fn split_both(
    input: &Tensor,
    parts: &[Part],
    matrix: &Tensor,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let (input, shape) = matrix_of(input)?;
    let whole = plan((input, shape), matrix, NVTEX_NVFP4_HADAMARD_GROUP, config)?;
    needs_rng_state(&whole)?;
    let parts = whole_blocks(&whole, parts)?;
    let all = |set: fn(&Tensor) -> bool| parts.iter().all(|(_, tensor, _)| set(tensor));
    let by_row = all(|tensor| tensor.rowwise.is_set());
    let by_col = all(|tensor| tensor.colwise.is_set());
    let swizzled = parts.first().is_some_and(|(_, tensor, _)| tensor.swizzled);
    let part = |(i, tensor, args): &(usize, &Tensor, Nvfp4QuantizeArgs)| {
        let name = format_args!("outputs[{i}]");
        check_mode(name, tensor.mode)?;
        if !by_row && !by_col {
            let expected = "row-wise or column-wise data, as all others";
            return Err(Error::argument(format!("{name}.data"), expected, "nothing"));
        }
        if tensor.swizzled != swizzled {
            let field = format!("{name}.with_gemm_swizzled_scales");
            let (expected, got) = (u8::from(swizzled), u8::from(tensor.swizzled));
            return Err(Error::argument(field, expected, got));
        }
        let shape = (args.rows, args.cols);
        let mut args = Nvfp4QuantizeArgs { swizzled, ..*args };
        if by_row {
            args.rowwise = rowwise(name, tensor, shape)?;
        }
        if by_col {
            args.colwise = colwise(name, tensor, shape)?;
        }
        Ok(args)
    };
    run(&parts.iter().map(part).collect::<Result<Vec<_>>>()?, stream)
}

/// As [`both`], of the members of a group.
pub fn grouped(
    input: &GroupedTensor,
    output: &GroupedTensor,
    matrix: &Tensor,
    config: &QuantizationConfig,
    stream: cudaStream_t,
) -> Result<()> {
    check_mode("output", output.mode)?;
    let n = output.num_tensors;
    if n != input.num_tensors {
        return Err(Error::argument(
            "output.num_tensors",
            format!("{} (as input)", input.num_tensors),
            n,
        ));
    }
    let (group, shape @ (rows, cols)) = check::members("output", output)?;
    if !group.last_dims.is_null() {
        let expected = "nothing (all members have the columns of the group)";
        return Err(Error::argument("output.last_dims", expected, "an array"));
    }
    check::grouped_data("input.data", &input.rowwise, shape)?;
    let mut args = plan((&input.rowwise, shape), matrix, NVTEX_NVFP4_HADAMARD_GROUP, config)?;
    needs_rng_state(&args)?;
    if !output.rowwise.is_set() && !output.colwise.is_set() {
        return Err(Error::argument("output.data", "row-wise or column-wise data", "no data"));
    }
    args.swizzled = output.swizzled;
    // Tiles of scales of one member end where those of the next begin.
    let whole_tiles = |of: usize| match args.swizzled && cols % of != 0 {
        true => {
            let expected = format!("a multiple of {of} columns (because of swizzled scales)");
            Err(Error::argument("output.logical_shape", expected, output.logical_shape))
        }
        false => Ok(()),
    };
    let members = Some(n);
    if output.rowwise.is_set() {
        whole_tiles(4 * BLOCK)?;
        let buffers = [&output.rowwise, &output.rowwise_scale_inv, &output.amax];
        args.rowwise = direction("output", ROWWISE, buffers, shape, output.swizzled, members)?;
    }
    if output.colwise.is_set() {
        whole_tiles(128)?;
        let buffers = [&output.colwise, &output.colwise_scale_inv, &output.colwise_amax];
        let shape = (cols, rows);
        args.colwise = direction("output", COLWISE, buffers, shape, output.swizzled, members)?;
    }
    if !group.offsets.is_null() {
        device_check::row_offsets("output.tensor_offsets", group.offsets, n, shape, stream)?;
        return run(
            &[Nvfp4QuantizeArgs { offsets: group.offsets, num_tensors: n, ..args }],
            stream,
        );
    }
    // Members of one shape follow each other.
    let rows = rows / n;
    multiple("output.logical_shape", "rows of each member", rows)?;
    let part = |i: usize| {
        let (first_row, elements) = (i * rows, i * rows * cols);
        let part = |lines: &Nvfp4Lines, scale_stride| match lines.data.is_null() {
            true => *lines,
            false => Nvfp4Lines {
                data: lines.data.wrapping_byte_add(elements / 2),
                scales: lines.scales.wrapping_byte_add(elements / BLOCK),
                amax: lines.amax.wrapping_add(i),
                scale_stride,
            },
        };
        Nvfp4QuantizeArgs {
            input: args.input.wrapping_byte_add(2 * elements),
            rowwise: part(&args.rowwise, cols / BLOCK),
            colwise: part(&args.colwise, rows / BLOCK),
            rows,
            first_row,
            ..args
        }
    };
    if args.swizzled && !rows.is_multiple_of(128) {
        let expected = "members of a multiple of 128 rows (because of swizzled scales)";
        return Err(Error::argument("output.logical_shape", expected, output.logical_shape));
    }
    run(&(0..n).map(part).collect::<Vec<_>>(), stream)
}
