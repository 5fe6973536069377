//! From row-wise MXFP8 to column-wise MXFP8 group by group (spec: quantize, section 8).

use crate::backend::{self, args::RequantizeArgs};
use crate::check::{self, Memory};
use crate::device_check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTEDType::*;
use crate::types::NVTEScalingMode::NVTE_MXFP8_1D_SCALING;
use crate::types::*;
use std::ffi::c_void;

/// E8M0 codes, at least so many.
fn codes(name: &str, buffer: &Buffer, numel: usize) -> Result<*mut c_void> {
    if !buffer.is_set() {
        return Err(Error::argument(name, "E8M0 codes", "nothing"));
    }
    check::dtype(name, buffer.dtype, &[kNVTEFloat8E8M0, kNVTEByte])?;
    if buffer.shape.numel() < numel {
        let expected = format!("{numel} or more codes");
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    check::pointer(name, buffer)
}

/// Data of `shape`, aligned to 16 bytes.
fn data(name: &str, buffer: &Buffer, shape: &Shape) -> Result<*mut c_void> {
    check::shape(name, &buffer.shape, shape)?;
    let ptr = check::pointer(name, buffer)?;
    if (ptr as usize).is_multiple_of(16) {
        return Ok(ptr);
    }
    Err(Error::argument(name, "a pointer aligned to 16 bytes", format!("{ptr:p}")))
}

/// Casts row-wise data of `input` again, to column-wise ones of `output`. The caller marks the scales of the
/// output as swizzled.
pub(super) fn requantize(
    input: &Tensor,
    output: &Tensor,
    offsets: &Buffer,
    dequantized: &Buffer,
    through_bf16: bool,
    stream: cudaStream_t,
) -> Result<()> {
    for (name, tensor) in [("input", input), ("output", output)] {
        if tensor.mode != NVTE_MXFP8_1D_SCALING {
            let name = format!("{name}.scaling_mode");
            return Err(Error::argument(name, NVTE_MXFP8_1D_SCALING, tensor.mode));
        }
    }
    if input.swizzled {
        return Err(Error::argument("input.with_gemm_swizzled_scales", 0, 1));
    }
    let shape = input.rowwise.shape;
    check::fp8("input.data", input.rowwise.dtype)?;
    let (rows, cols) = match *shape.dims() {
        [rows, cols] if rows % 128 == 0 && cols % 128 == 0 => (rows, cols),
        _ => {
            let expected = "2 dimensions, multiples of 128";
            return Err(Error::argument("input.shape", expected, shape));
        }
    };
    let blocks = cols / 32;
    let code_stride = match *input.rowwise_scale_inv.shape.dims() {
        [_, stride] => stride,
        _ => blocks,
    };
    if code_stride < blocks {
        let expected = format!("{blocks} or more codes in each row");
        let got = input.rowwise_scale_inv.shape;
        return Err(Error::argument("input.scale_inv.shape", expected, got));
    }
    check::dtype("output.columnwise_data", output.colwise.dtype, &[kNVTEFloat8E4M3])?;
    let given = &output.colwise_scale_inv;
    // The last row needs no more than its blocks. Saturated, it is more than any buffer has.
    let read = rows.saturating_mul(code_stride).saturating_sub(code_stride - blocks);
    let scale_inv = codes("input.scale_inv", &input.rowwise_scale_inv, read)?;
    check::dtype("tensor_offsets", offsets.dtype, &[kNVTEInt64])?;
    let Some(num_groups) = offsets.shape.numel().checked_sub(1).filter(|&n| n > 0) else {
        let expected = "2 or more elements: the first of each group, and the end";
        return Err(Error::argument("tensor_offsets.shape", expected, offsets.shape));
    };
    let with_copy = !dequantized.ptr().is_null();
    if with_copy {
        check::dtype("dequantized", dequantized.dtype, &[kNVTEBFloat16])?;
        if dequantized.shape.numel() != rows * cols {
            let expected = format!("{} elements", rows * cols);
            return Err(Error::argument("dequantized.shape", expected, dequantized.shape));
        }
    }
    let args = RequantizeArgs {
        input: data("input.data", &input.rowwise, &shape)?,
        codes: scale_inv.cast_const().cast(),
        colwise: data("output.columnwise_data", &output.colwise, &shape)?,
        rowwise_codes: codes("output.scale_inv", &output.rowwise_scale_inv, rows * blocks)?.cast(),
        colwise_codes: codes("output.columnwise_scale_inv", given, rows * blocks)?.cast(),
        dequantized: match with_copy {
            true => data("dequantized.data", dequantized, &dequantized.shape)?,
            false => std::ptr::null_mut(),
        },
        offsets: check::pointer("tensor_offsets.data", offsets)?.cast_const().cast(),
        num_groups,
        rows,
        cols,
        code_stride,
        input_dtype: input.rowwise.dtype,
        through_bf16,
    };
    let inputs = [
        Memory::new(&"input.data", args.input, rows * cols),
        Memory::new(&"input.scale_inv", args.codes, read),
        Memory::of(&"tensor_offsets", offsets),
    ];
    let outputs = [
        Memory::new(&"output.columnwise_data", args.colwise, rows * cols),
        Memory::new(&"output.scale_inv", args.rowwise_codes, rows * blocks),
        Memory::new(&"output.columnwise_scale_inv", args.colwise_codes, rows * blocks),
        Memory::new(&"dequantized", args.dequantized, rows * cols * 2),
    ];
    check::apart(&inputs, &outputs)?;
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    let shape = (rows, cols);
    device_check::row_offsets("tensor_offsets", args.offsets, num_groups, shape, stream)?;
    backend::run(&args, stream)
}
