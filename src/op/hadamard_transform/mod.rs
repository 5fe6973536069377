//! Random Hadamard transforms and the largest magnitudes that go with them (spec: optim_nvfp4,
//! sections 14 and 15).

mod cast_fusion;
pub(crate) mod cpu;
pub mod exports;

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::device_check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, GroupedTensor, Tensor};
use crate::types::*;
use std::ffi::c_int;
use std::fmt::Display;
use std::ptr::{null, null_mut};

/// Rows that are transformed together.
const SIZE: usize = 16;

fn multiple(name: impl Display, what: &str, got: usize) -> Result<()> {
    match got.is_multiple_of(SIZE) {
        true => Ok(()),
        false => Err(Error::argument(name, format!("a multiple of {SIZE} {what}"), got)),
    }
}

/// BFloat16 data of two dimensions or more, as a matrix of rows and columns in multiples of 16.
fn matrix(input: &Tensor) -> Result<(&Buffer, (usize, usize))> {
    check::input("input", input)?;
    let data = &input.rowwise;
    check::dtype("input", data.dtype, &[NVTEDType::kNVTEBFloat16])?;
    if data.shape.dims().len() < 2 {
        return Err(Error::argument("input.shape", "2 or more dimensions", data.shape));
    }
    let (rows, cols) = data.shape.flatten();
    multiple("input.shape", "rows", rows)?;
    multiple("input.shape", "columns", cols)?;
    Ok((data, (rows, cols)))
}

pub(crate) fn transform(
    input: &Tensor,
    output: &Tensor,
    sign_mask: c_int,
    stream: cudaStream_t,
) -> Result<()> {
    let (input, (rows, cols)) = matrix(input)?;
    check::per_tensor("output", output)?;
    let output = &output.rowwise;
    if output.ptr().is_null() {
        return Ok(());
    }
    check::dtype("output", output.dtype, &[NVTEDType::kNVTEBFloat16])?;
    if output.shape.numel() != rows * cols {
        let expected = format!("[{cols}, {rows}]");
        return Err(Error::argument("output.shape", expected, output.shape));
    }
    let args = HadamardArgs {
        input: input.ptr(),
        output: check::pointer("output.data", output)?,
        rows,
        cols,
        sign_mask: sign_mask as u32,
    };
    check::apart(&[Memory::of(&"input.data", input)], &[Memory::of(&"output.data", output)])?;
    if rows > 0 && cols > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// Whose maxima are computed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Maxima {
    /// The maxima of the elements, and of their transform with these signs.
    Transform(c_int),
    /// The maxima of the elements, written to both fields.
    Plain,
}

impl Maxima {
    fn args(self, input: &Buffer, (rows, cols): (usize, usize)) -> HadamardAmaxArgs {
        let (sign_mask, transform) = match self {
            Self::Transform(mask) => (mask as u32, true),
            Self::Plain => (0, false),
        };
        HadamardAmaxArgs {
            input: input.ptr(),
            rows,
            cols,
            sign_mask,
            transform,
            members: null(),
            num_members: 0,
            group: Group::NONE,
            amax: null_mut(),
            colwise_amax: null_mut(),
        }
    }
}

/// The `amax` and `columnwise_amax` of an output; each may be absent, and lies outside of the input.
fn targets(
    name: impl Display,
    output: &Tensor,
    rows: usize,
    input: &Buffer,
) -> Result<HadamardMember> {
    let amax = check::optional_scalar(format_args!("{name}.amax"), &output.amax)?;
    let colwise_amax =
        check::optional_scalar(format_args!("{name}.columnwise_amax"), &output.colwise_amax)?;
    check::apart(
        &[Memory::of(&"input.data", input)],
        &[Memory::new(&format_args!("{name}.amax"), amax, 4)],
    )?;
    check::apart(
        &[Memory::of(&"input.data", input)],
        &[Memory::new(&format_args!("{name}.columnwise_amax"), colwise_amax, 4)],
    )?;
    Ok(HadamardMember { rows, amax, colwise_amax })
}

fn amax(input: &Tensor, output: &Tensor, mask: c_int, stream: cudaStream_t) -> Result<()> {
    let (input, (rows, cols)) = matrix(input)?;
    let member = targets("output", output, rows, input)?;
    if member.amax.is_null() && member.colwise_amax.is_null() {
        return Ok(());
    }
    let args = Maxima::Transform(mask).args(input, (rows, cols));
    backend::run(&HadamardAmaxArgs { members: &member, num_members: 1, ..args }, stream)
}

/// Maxima of parts of a matrix, each of the next `splits[i]` rows; an output may be absent.
fn split_amax(
    input: &Tensor,
    outputs: &[Option<Tensor>],
    splits: &[usize],
    maxima: Maxima,
    stream: cudaStream_t,
) -> Result<()> {
    let (input, (rows, cols)) = matrix(input)?;
    let mut total = 0usize;
    let mut members = backend::memory::reserve("a list of tensors", outputs.len())?;
    for (i, (output, &split)) in outputs.iter().zip(splits).enumerate() {
        multiple(format_args!("split_sections[{i}]"), "rows", split)?;
        total = total.saturating_add(split);
        let absent = HadamardMember { rows: split, amax: null_mut(), colwise_amax: null_mut() };
        let member = match output {
            Some(output) => targets(format_args!("outputs[{i}]"), output, split, input)?,
            None => absent,
        };
        let missing = match maxima {
            Maxima::Plain => member.amax.is_null(),
            Maxima::Transform(_) => member.amax.is_null() && member.colwise_amax.is_null(),
        };
        if missing && split > 0 {
            let expected = match maxima {
                Maxima::Plain => "one Float32",
                Maxima::Transform(_) => "one Float32 here or as columnwise_amax",
            };
            return Err(Error::argument(format!("outputs[{i}].amax"), expected, "nothing"));
        }
        members.push(member);
    }
    if total > rows {
        let expected = format!("at most {rows} rows in all, as the input has");
        return Err(Error::argument("split_sections", expected, total));
    }
    let args = maxima.args(input, (total, cols));
    let num_members = members.len();
    backend::run(&HadamardAmaxArgs { members: members.as_ptr(), num_members, ..args }, stream)
}

/// Maxima of the members of a group.
pub(crate) fn group_amax(
    input: &GroupedTensor,
    output: &GroupedTensor,
    maxima: Maxima,
    stream: cudaStream_t,
) -> Result<()> {
    if input.mode != NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING {
        let expected = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
        return Err(Error::argument("input.scaling_mode", expected, input.mode));
    }
    check::dtype("input", input.rowwise.dtype, &[NVTEDType::kNVTEBFloat16])?;
    let n = output.num_tensors;
    if n != input.num_tensors {
        return Err(Error::argument(
            "output.num_tensors",
            format!("{} (as input)", input.num_tensors),
            n,
        ));
    }
    let (group, (rows, cols)) = check::members("output", output)?;
    if !group.last_dims.is_null() {
        let expected = "nothing (all members have the columns of the group)";
        return Err(Error::argument("output.last_dims", expected, "an array"));
    }
    multiple("output.logical_shape", "columns", cols)?;
    let uniform = group.first_dims.is_null() && group.offsets.is_null();
    multiple("output.logical_shape", "rows", rows)?;
    if uniform {
        multiple("output.logical_shape", "rows of each member", rows / n)?;
    }
    let field = |name: &str, buffer: &Buffer, required: bool| -> Result<*mut f32> {
        if buffer.ptr().is_null() && !required {
            return Ok(null_mut());
        }
        let expected = || format!("Float32 [{n}], one for each member");
        if !buffer.is_set() {
            return Err(Error::argument(name, expected(), "nothing"));
        }
        check::dtype(name, buffer.dtype, &[NVTEDType::kNVTEFloat32])?;
        if buffer.shape.numel() != n {
            return Err(Error::argument(format!("{name}.shape"), expected(), buffer.shape));
        }
        Ok(check::pointer(name, buffer)?.cast())
    };
    let (with_row, with_col) = (output.rowwise.is_set(), output.colwise.is_set());
    let row_needed = with_row || (maxima == Maxima::Plain && !with_col);
    let amax = field("output.amax", &output.amax, row_needed)?;
    let colwise_amax = field("output.columnwise_amax", &output.colwise_amax, with_col)?;
    if amax.is_null() && colwise_amax.is_null() {
        let expected = format!("Float32 [{n}] here or as columnwise_amax");
        return Err(Error::argument("output.amax", expected, "nothing"));
    }
    let data = check::grouped_data("input.data", &input.rowwise, (rows, cols))?;
    let args = maxima.args(&input.rowwise, (rows, cols));
    let mode = NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
    device_check::group("output", &group, (rows, cols), mode, stream)?;
    backend::run(&HadamardAmaxArgs { input: data, group, amax, colwise_amax, ..args }, stream)
}
