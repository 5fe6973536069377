//! Order of block scales: compact matrices, and the 128 x 4 tiles of block-scaled products (spec:
//! moe_layout, section 12).

pub(crate) mod cpu;
pub mod exports;

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::device_check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, GroupedTensor, Shape, Tensor};
use crate::types::NVTEScalingMode::*;
use crate::types::*;
use std::fmt::Display;

/// Where scales move to.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Tiles,
    /// The scale matrices need not fit the shape of the data.
    TilesUnchecked,
    Compact,
}

/// Rows and columns of a matrix.
type Extents = (usize, usize);

/// What the scales of data `[rows, cols]` cover: rows of the operand, blocks along the contraction.
fn valid(mode: NVTEScalingMode, colwise: bool, (rows, cols): Extents) -> Extents {
    let [lines, blocks] = mode.scaling().blocks(colwise, (rows, cols));
    (lines, blocks)
}

/// The same with the padding to whole tiles.
fn padded((m, k): Extents) -> Extents {
    (m.next_multiple_of(128), k.next_multiple_of(4))
}

/// Whether compact scales are stored `[k, m]`: column-wise ones of data that are not transposed.
fn transposed(mode: NVTEScalingMode, colwise: bool) -> bool {
    mode.scaling().rows_are_blocks(colwise)
}

fn field(colwise: bool) -> &'static str {
    if colwise { "columnwise_scale_inv" } else { "scale_inv" }
}

fn flag(name: impl Display, swizzled: bool, expected: bool) -> Result<()> {
    if swizzled == expected {
        return Ok(());
    }
    let name = format!("{name}.with_gemm_swizzled_scales");
    Err(Error::argument(name, u8::from(expected), u8::from(swizzled)))
}

fn mode(name: impl Display, got: NVTEScalingMode, allowed: &[NVTEScalingMode]) -> Result<()> {
    if allowed.contains(&got) {
        return Ok(());
    }
    let expected: Vec<String> = allowed.iter().map(|mode| mode.to_string()).collect();
    Err(Error::argument(format!("{name}.scaling_mode"), expected.join(" or "), got))
}

/// Scales of one byte each.
fn codes(name: impl Display, buffer: &Buffer, mode: NVTEScalingMode) -> Result<()> {
    use NVTEDType::*;
    let dtype = mode.scaling().scales[0];
    if !buffer.is_set() {
        return Err(Error::argument(name, format!("{dtype} scales"), "nothing"));
    }
    check::dtype(&name, buffer.dtype, &[dtype, kNVTEByte])?;
    check::pointer(name, buffer).map(drop)
}

/// Refuses a destination that overlaps the source.
fn distinct(name: impl Display, source: &Buffer, destination: &Buffer) -> Result<()> {
    check::apart(&[Memory::of(&"the input's", source)], &[Memory::of(&name, destination)])
}

/// The rules for a tensor on either side. Of its data only dtype and shape are used.
fn tensor(name: impl Display, tensor: &Tensor, swizzled: bool) -> Result<()> {
    mode(&name, tensor.mode, &[NVTE_MXFP8_1D_SCALING, NVTE_NVFP4_1D_SCALING])?;
    check::dtype(&name, tensor.dtype(), tensor.mode.scaling().elements)?;
    flag(name, tensor.swizzled, swizzled)
}

/// The scales of one direction of a tensor, and what they cover.
fn scales(name: impl Display, tensor: &Tensor, colwise: bool) -> Result<(&Buffer, Extents)> {
    let (data_field, data, scales) = match colwise {
        false => ("data", &tensor.rowwise, &tensor.rowwise_scale_inv),
        true => ("columnwise_data", &tensor.colwise, &tensor.colwise_scale_inv),
    };
    if !data.is_set() {
        let expected = format!("dtype and shape of the data of {}", field(colwise));
        return Err(Error::argument(format!("{name}.{data_field}"), expected, "nothing"));
    }
    codes(format_args!("{name}.{}", field(colwise)), scales, tensor.mode)?;
    Ok((scales, valid(tensor.mode, colwise, tensor.shape("tensor")?.flatten())))
}

/// `[m, k]` of a scale matrix that has the shape of its data.
fn exact(
    name: impl Display,
    (scales, valid): (&Buffer, Extents),
    transposed: bool,
) -> Result<Extents> {
    let (m, k) = padded(valid);
    let expected = if transposed { [k, m] } else { [m, k] };
    check::shape(name, &scales.shape, &Shape::new(&expected))?;
    Ok((m, k))
}

/// `[m, k]` of a scale matrix that has any shape of whole tiles.
fn whole_tiles(name: impl Display, scales: &Buffer, transposed: bool) -> Result<Extents> {
    match *scales.shape.dims() {
        [m, k] if !transposed && m % 128 == 0 && k % 4 == 0 => Ok((m, k)),
        [k, m] if transposed && m % 128 == 0 && k % 4 == 0 => Ok((m, k)),
        _ => {
            let expected = match transposed {
                false => "[m, k] with multiples m of 128 and k of 4",
                true => "[k, m] with multiples k of 4 and m of 128",
            };
            Err(Error::argument(format!("{name}.shape"), expected, scales.shape))
        }
    }
}

/// Checks a pair of tensors and adds its directions to the entries.
fn plan(
    (input_name, output_name): (impl Display, impl Display),
    input: &Tensor,
    output: &Tensor,
    way: Way,
    entries: &mut Vec<SwizzleEntry>,
) -> Result<()> {
    let to_tiles = way != Way::Compact;
    tensor(&input_name, input, !to_tiles)?;
    tensor(&output_name, output, to_tiles)?;
    mode(&output_name, output.mode, &[input.mode])?;
    // The compact side decides which directions move.
    let compact = if to_tiles { input } else { output };
    for colwise in [false, true] {
        let (data, scale_inv) = match colwise {
            false => (&compact.rowwise, &compact.rowwise_scale_inv),
            true => (&compact.colwise, &compact.colwise_scale_inv),
        };
        if !data.is_set() && !scale_inv.is_set() {
            continue;
        }
        let from_name = format_args!("{input_name}.{}", field(colwise));
        let to_name = format_args!("{output_name}.{}", field(colwise));
        let transposed = transposed(input.mode, colwise);
        let from = scales(&input_name, input, colwise)?;
        let to = scales(&output_name, output, colwise)?;
        let (m, k) = match way {
            Way::TilesUnchecked => whole_tiles(from_name, from.0, transposed)?,
            _ => {
                exact(to_name, to, transposed)?;
                exact(from_name, from, transposed)?
            }
        };
        if to.0.shape.numel() != from.0.shape.numel() {
            let expected = format!("{} elements, as the input", from.0.shape.numel());
            return Err(Error::argument(format!("{to_name}.shape"), expected, to.0.shape));
        }
        if m == 0 || k == 0 {
            continue;
        }
        distinct(to_name, from.0, to.0)?;
        entries.push(SwizzleEntry {
            source: from.0.ptr(),
            destination: to.0.ptr(),
            m,
            k,
            valid_m: from.1.0.min(m),
            valid_k: from.1.1.min(k),
            transposed,
        });
    }
    Ok(())
}

fn run(entries: &[SwizzleEntry], way: Way, stream: cudaStream_t) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let args = SwizzleArgs {
        entries: entries.as_ptr(),
        num_entries: entries.len(),
        unswizzle: way == Way::Compact,
        rows: 0,
        cols: 0,
        group: Group::NONE,
    };
    backend::run(&args, stream)
}

/// Moves the scales of one tensor.
fn single(input: &Tensor, output: &Tensor, way: Way, stream: cudaStream_t) -> Result<()> {
    let mut entries = Vec::with_capacity(2);
    plan(("input", "output"), input, output, way, &mut entries)?;
    run(&entries, way, stream)
}

/// Several pairs of tensors, in one kernel where the backend can.
fn multi(inputs: &[Tensor], outputs: &[Tensor], way: Way, stream: cudaStream_t) -> Result<()> {
    let mut entries = Vec::new();
    for (i, (input, output)) in inputs.iter().zip(outputs).enumerate() {
        let names = (format_args!("inputs[{i}]"), format_args!("outputs[{i}]"));
        plan(names, input, output, way, &mut entries)?;
    }
    run(&entries, way, stream)
}

/// The members of a grouped tensor. Where all of them are of one shape, scales that are swizzled may
/// come without the padding between members.
fn grouped(
    input: &GroupedTensor,
    output: &GroupedTensor,
    way: Way,
    stream: cudaStream_t,
) -> Result<()> {
    let to_tiles = way == Way::Tiles;
    for (name, tensor, swizzled) in [("input", input, !to_tiles), ("output", output, to_tiles)] {
        mode(name, tensor.mode, &[NVTE_MXFP8_1D_SCALING])?;
        flag(name, tensor.swizzled, swizzled)?;
    }
    let n = input.num_tensors;
    if output.num_tensors != n {
        return Err(Error::argument(
            "output.num_tensors",
            format!("{n} (as input)"),
            output.num_tensors,
        ));
    }
    check::shape("output.logical_shape", &output.logical_shape, &input.logical_shape)?;
    let (mut group, (rows, cols)) = check::members("input", input)?;
    let uniform = group.first_dims.is_null() && group.last_dims.is_null();
    let member = (rows / n, cols);
    let mut entries = Vec::with_capacity(2);
    // Elements from one member's source to the next one's.
    let mut steps = Vec::with_capacity(2);
    let select = |tensor: &GroupedTensor, colwise| match colwise {
        false => tensor.rowwise_scale_inv,
        true => tensor.colwise_scale_inv,
    };
    for colwise in [false, true] {
        if !select(if to_tiles { input } else { output }, colwise).is_set() {
            continue;
        }
        let (from, to) = (select(input, colwise), select(output, colwise));
        let from_name = format_args!("input.{}", field(colwise));
        let to_name = format_args!("output.{}", field(colwise));
        codes(from_name, &from, input.mode)?;
        codes(to_name, &to, output.mode)?;
        distinct(to_name, &from, &to)?;
        if !uniform {
            for (name, buffer) in [(from_name, &from), (to_name, &to)] {
                check::grouped_scales(
                    name,
                    buffer,
                    (input.mode, colwise),
                    &mut group,
                    (rows, cols),
                )?;
            }
        }
        let room = if colwise { &mut group.col_scales } else { &mut group.row_scales };
        *room = from.shape.numel().min(to.shape.numel());
        let (valid_m, valid_k) = valid(input.mode, colwise, member);
        let (m, k) = padded((valid_m, valid_k));
        if uniform {
            let total = m.saturating_mul(k).saturating_mul(n);
            let dense = match colwise {
                false => (valid_m * n).next_multiple_of(128).saturating_mul(k),
                true => valid_k.saturating_mul(n).next_multiple_of(4).saturating_mul(m),
            };
            let numel = |name, buffer: &Buffer, allowed: &[usize]| {
                if allowed.contains(&buffer.shape.numel()) {
                    return Ok(());
                }
                let allowed: Vec<String> = allowed.iter().map(usize::to_string).collect();
                let expected = format!("{} elements ({n} members)", allowed.join(" or "));
                Err(Error::argument(format!("{name}.shape"), expected, buffer.shape))
            };
            numel(to_name, &to, &[total])?;
            let from_sizes = [total, dense];
            numel(from_name, &from, &from_sizes[..if to_tiles { 2 } else { 1 }])?;
            steps.push(match from.shape.numel() == total {
                true => m * k,
                false if colwise => valid_k * m,
                false => valid_m * k,
            });
        }
        entries.push(SwizzleEntry {
            source: from.ptr(),
            destination: to.ptr(),
            m,
            k,
            valid_m,
            valid_k,
            transposed: colwise,
        });
    }
    if rows == 0 || cols == 0 || entries.is_empty() {
        return Ok(());
    }
    if entries.iter().zip(&steps).any(|(entry, &step)| step != entry.m * entry.k) {
        let nth = |entry: &SwizzleEntry, step: usize, i: usize| SwizzleEntry {
            source: entry.source.wrapping_byte_add(i * step),
            destination: entry.destination.wrapping_byte_add(i * entry.m * entry.k),
            ..*entry
        };
        let all = entries.iter().zip(&steps);
        let all: Vec<_> = all.flat_map(|(e, &step)| (0..n).map(move |i| nth(e, step, i))).collect();
        return run(&all, way, stream);
    }
    let args = SwizzleArgs {
        entries: entries.as_ptr(),
        num_entries: entries.len(),
        unswizzle: !to_tiles,
        rows,
        cols,
        group,
    };
    device_check::group("input", &group, (rows, cols), input.mode, stream)?;
    backend::run(&args, stream)
}

/// Codes of MXFP8 blocks from the scales of FP8 blocks of the same data.
fn block_scaling_to_mxfp8(input: &Tensor, output: &Tensor, stream: cudaStream_t) -> Result<()> {
    if input.rowwise.is_set() && input.rowwise.shape.numel() == 0 {
        return Ok(());
    }
    mode("input", input.mode, &[NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D])?;
    mode("output", output.mode, &[NVTE_MXFP8_1D_SCALING])?;
    flag("output", output.swizzled, true)?;
    check::fp8("input", input.rowwise.dtype)?;
    check::dtype("output", output.rowwise.dtype, &[input.rowwise.dtype])?;
    let shape = input.rowwise.shape;
    let [rows, cols] = *shape.dims() else {
        return Err(Error::argument("input.shape", "[rows, cols]", shape));
    };
    check::shape("output", &output.rowwise.shape, &shape)?;
    check::pointer("input.data", &input.rowwise)?;
    if output.rowwise.ptr() != input.rowwise.ptr() {
        let expected = format!("{:p}, the data of the input", input.rowwise.ptr());
        let got = format!("{:p}", output.rowwise.ptr());
        return Err(Error::argument("output.data", expected, got));
    }
    let of = (input.mode, false);
    let scale_inv = &input.rowwise_scale_inv;
    let (scales, stride) = check::block_scales("input.scale_inv", scale_inv, of, (rows, cols))?;
    let of = (output.mode, false);
    let scale_inv = &output.rowwise_scale_inv;
    let (codes, _) = check::block_scales("output.scale_inv", scale_inv, of, (rows, cols))?;
    check::apart(
        &[Memory::of(&"input.scale_inv", &input.rowwise_scale_inv)],
        &[Memory::of(&"output.scale_inv", &output.rowwise_scale_inv)],
    )?;
    let square = input.mode.square();
    let scales = scales.cast_const().cast();
    backend::run(&ScaleCodesArgs { scales, codes, rows, cols, stride, square }, stream)
}
