//! What goes with grouped products: biases, integers and offsets (spec: gemm_comm, sections 7 and 8).

use super::*;
use crate::device_check;
use crate::types::NVTEDType::*;

/// Checks an addition and gives its arguments; none if there is no element.
fn plan_bias(
    output: &GroupedTensor,
    bias: &GroupedTensor,
    scale: Option<&Buffer>,
) -> Result<Option<GroupedBiasArgs>> {
    for (name, tensor) in [("output", output), ("bias", bias)] {
        check::grouped_per_tensor(name, tensor)?;
        let uniform = "nothing (members have the same number of columns)";
        if tensor.last_dims.is_set() {
            return Err(Error::argument(format!("{name}.last_dims"), uniform, "a tensor"));
        }
    }
    let n = output.num_tensors;
    if bias.num_tensors != n {
        let expected = format!("{n} members (as output)");
        return Err(Error::argument("bias.num_tensors", expected, bias.num_tensors));
    }
    let (group, (rows, cols)) = check::any_members("output", output)?;
    if bias.first_dims.is_set() {
        let expected = "nothing (each member has one row)";
        return Err(Error::argument("bias.first_dims", expected, "a tensor"));
    }
    if bias.logical_shape.dims() != [n, cols] {
        let expected = format!("[{n}, {cols}], a row for each member of output");
        return Err(Error::argument("bias.logical_shape", expected, bias.logical_shape));
    }
    if rows == 0 || cols == 0 {
        return Ok(None);
    }
    let dtype = output.dtype();
    check::high_precision("output", dtype)?;
    check::dtype("bias", bias.dtype(), &[dtype])?;
    let scale = match scale {
        None => std::ptr::null(),
        Some(scale) => {
            check::dtype("scale", scale.dtype, &[kNVTEFloat32])?;
            check::shape("scale", &scale.shape, &Shape::new(&[rows]))?;
            check::pointer("scale.data", scale)?.cast_const().cast()
        }
    };
    Ok(Some(GroupedBiasArgs {
        output: check::grouped_data("output.data", &output.rowwise, (rows, cols))?,
        bias: check::grouped_data("bias.data", &bias.rowwise, (n, cols))?,
        scale,
        first_dims: group.first_dims,
        num_tensors: n,
        rows,
        cols,
        dtype,
    }))
}

pub(crate) fn bias_add(
    output: &GroupedTensor,
    bias: &GroupedTensor,
    scale: Option<&Buffer>,
    stream: cudaStream_t,
) -> Result<()> {
    let Some(args) = plan_bias(output, bias, scale)? else {
        return Ok(());
    };
    let (rows, cols) = (args.rows, args.cols);
    let group = Group {
        num_tensors: args.num_tensors,
        first_dims: args.first_dims,
        most_dim: rows,
        elements: rows * cols,
        ..Group::NONE
    };
    device_check::group("output", &group, (rows, cols), NVTE_DELAYED_TENSOR_SCALING, stream)?;
    backend::run(&args, stream)
}

/// A bare array of `length` integers on the device.
fn integers<T>(name: &str, array: *const T, length: usize, dtype: NVTEDType) -> Result<*mut T> {
    if length > isize::MAX as usize / 8 {
        return Err(Error::argument(name, "less than 2^60 elements", length));
    }
    Ok(check::raw_pointer(name, array.cast_mut().cast(), length, dtype)?.cast())
}

pub(super) fn widen(
    src: *const i32,
    dst: *mut i64,
    length: usize,
    factor: i64,
    stream: cudaStream_t,
) -> Result<()> {
    let input = integers("src", src, length, kNVTEInt32)?.cast_const();
    let output = integers("dst", dst, length, kNVTEInt64)?;
    if length == 0 {
        return Ok(());
    }
    backend::run(&WidenArgs { input, output, length, factor }, stream)
}

pub(crate) fn offsets(
    first_dims: *const i64,
    offsets: *mut i64,
    length: usize,
    stride: i64,
    stream: cudaStream_t,
) -> Result<()> {
    let first = integers("first_dims", first_dims, length, kNVTEInt64)?;
    let ptr = integers("offsets", offsets, length + 1, kNVTEInt64)?.cast();
    if length == 0 {
        return backend::run(&MemsetArgs { ptr, bytes: size_of::<i64>(), value: 0 }, stream);
    }
    let output = OffsetsOutput { ptr, stride, dtype: kNVTEInt64, leading_zero: true };
    let args = OffsetsArgs {
        first: first.cast_const().cast(),
        last: std::ptr::null(),
        outputs: &output,
        num_outputs: 1,
        length,
        first_dtype: kNVTEInt64,
        last_dtype: kNVTEInt64,
    };
    backend::run(&args, stream)
}
