//! Amax and casts of a part of a matrix, as an optimizer that is sharded over ranks holds it (spec
//! quantize 10.5 and 10.6).

use super::*;
use NVTEDType::*;
use NVTEScalingMode::*;

pub(super) type Pair<T> = (T, T);

/// The elements from `start` on of the matrix `[rows, cols]`.
pub(super) fn shard(
    name: &str,
    handle: NVTETensor,
    (rows, cols): Pair<usize>,
    start: usize,
) -> Result<Shard> {
    let tensor = check::tensor(name, handle)?;
    check::per_tensor(name, &tensor)?;
    // Unset is a shard without elements.
    let data = &tensor.rowwise;
    check::high_precision(name, data.dtype)?;
    check::pointer(format_args!("{name}.data"), data)?;
    let length = data.shape.numel();
    let end = start.checked_add(length);
    let Some(numel) = rows.checked_mul(cols).filter(|&numel| numel <= isize::MAX as usize / 4)
    else {
        let got = format!("[{rows}, {cols}]");
        return Err(Error::argument("shape of the matrix", "less than 2^61 elements", got));
    };
    if end.is_none_or(|end| end > numel) {
        let expected =
            format!("at most {numel} ([{rows}, {cols}]) less {length} elements of {name}");
        return Err(Error::argument("start_offset", expected, start));
    }
    Ok(Shard { input: data.ptr(), start, length, rows, cols, dtype: data.dtype })
}

/// One float for each block of 128 x 128.
fn block_floats(name: &str, handle: NVTETensor, (h, w): Pair<usize>) -> Result<*mut c_void> {
    let buffer = floats(name, handle)?;
    let (down, across) = (h.div_ceil(128), w.div_ceil(128));
    if buffer.shape.numel() < down * across {
        let expected = format!("{down} x {across} elements or more");
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    Ok(buffer.ptr())
}

fn block_length(length: usize) -> Result<()> {
    if length == 128 { Ok(()) } else { Err(Error::argument("block_len", 128, length)) }
}

/// Whether there is neither a matrix nor anything to write.
pub(super) fn empty(shard: &Shard) -> bool {
    shard.rows == 0 || shard.cols == 0
}

pub(super) fn block_amax(
    inp: NVTETensor,
    amax: NVTETensor,
    shape: Pair<usize>,
    (stride, block_step): Pair<usize>,
    start: usize,
    block_len: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let shard = shard("inp", inp, shape, start)?;
    block_length(block_len)?;
    let args = PartialAmaxArgs {
        shard,
        rowwise: block_floats("amax", amax, shape)?,
        colwise: null_mut(),
        rowwise_stride: stride,
        colwise_stride: 0,
        block_step,
        mode: NVTE_BLOCK_SCALING_2D,
    };
    if empty(&shard) { Ok(()) } else { backend::run(&args, stream) }
}

#[allow(clippy::too_many_arguments)]
pub(super) fn block_cast(
    inp: NVTETensor,
    (out, output_dtype): (NVTETensor, NVTEDType),
    scale: NVTETensor,
    shape: Pair<usize>,
    (stride, block_step): Pair<usize>,
    start: usize,
    block_len: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let shard = shard("inp", inp, shape, start)?;
    block_length(block_len)?;
    check::fp8("out_dtype", output_dtype)?;
    let out = check::tensor("out", out)?.rowwise;
    if out.dtype.bits() != 8 {
        let expected = "Float8E4M3 or Float8E5M2 or Byte";
        return Err(Error::argument("out.dtype", expected, out.dtype));
    }
    let args = PartialCastArgs {
        shard,
        rowwise: output("out", &out, &shard)?,
        colwise: null_mut(),
        rowwise_scales: block_floats("scale", scale, shape)?,
        colwise_scales: std::ptr::null(),
        rowwise_stride: stride,
        colwise_stride: 0,
        block_step,
        mode: NVTE_BLOCK_SCALING_2D,
        output_dtype,
    };
    if shard.length == 0 { Ok(()) } else { backend::run(&args, stream) }
}

/// As many bytes as the shard has elements.
fn output(name: &str, buffer: &Buffer, shard: &Shard) -> Result<*mut c_void> {
    if buffer.shape.numel() != shard.length {
        let expected = format!("{} elements, as the input", shard.length);
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    check::pointer(format_args!("{name}.data"), buffer)
}

/// A matrix with an entry for each MXFP8 block in one direction: its address, and the elements from
/// one of its rows to the next. Null and 0 for a null handle.
fn mxfp8_blocks(
    name: &str,
    handle: NVTETensor,
    (rows, cols): Pair<usize>,
    colwise: bool,
    dtypes: &[NVTEDType],
) -> Result<(*mut c_void, usize)> {
    let buffer = check::tensor_or_empty(name, handle)?.rowwise;
    if !buffer.is_set() {
        return Ok((null_mut(), 0));
    }
    check::dtype(name, buffer.dtype, dtypes)?;
    let (first, second, of) = match colwise {
        false => (rows, cols.div_ceil(32), (128, 4)),
        true => (rows.div_ceil(32), cols, (4, 128)),
    };
    match *buffer.shape.dims() {
        [down, stride]
            if down >= first && stride >= second && down % of.0 == 0 && stride % of.1 == 0 =>
        {
            Ok((check::pointer(format_args!("{name}.data"), &buffer)?, stride))
        }
        _ => {
            let expected = format!(
                "[{first}, {second}] or more, multiples of {} and {} ([{rows}, {cols}])",
                of.0, of.1
            );
            Err(Error::argument(format!("{name}.shape"), expected, buffer.shape))
        }
    }
}

fn dimensions((rows, cols): Pair<c_int>) -> Result<Pair<usize>> {
    let dimension = |name, value: c_int| {
        usize::try_from(value).map_err(|_| Error::argument(name, "0 or more", value))
    };
    Ok((dimension("rows", rows)?, dimension("cols", cols)?))
}

pub(super) fn mxfp8_amax(
    input: NVTETensor,
    amax: Pair<NVTETensor>,
    shape: Pair<c_int>,
    start: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let shape = dimensions(shape)?;
    let shard = shard("input", input, shape, start)?;
    let dtypes = [shard.dtype];
    let (rowwise, rowwise_stride) = mxfp8_blocks("amax_rowwise", amax.0, shape, false, &dtypes)?;
    let (colwise, colwise_stride) = mxfp8_blocks("amax_colwise", amax.1, shape, true, &dtypes)?;
    if empty(&shard) {
        return Ok(());
    }
    if rowwise.is_null() && colwise.is_null() {
        let expected = "a matrix here or as amax_colwise";
        return Err(Error::argument("amax_rowwise", expected, "nothing"));
    }
    let args = PartialAmaxArgs {
        shard,
        rowwise,
        colwise,
        rowwise_stride,
        colwise_stride,
        block_step: 1,
        mode: NVTE_MXFP8_1D_SCALING,
    };
    backend::run(&args, stream)
}

pub(super) fn mxfp8_cast(
    input: NVTETensor,
    outputs: Pair<NVTETensor>,
    scales: Pair<NVTETensor>,
    shape: Pair<c_int>,
    start: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let shape = dimensions(shape)?;
    let shard = shard("input", input, shape, start)?;
    let codes = [kNVTEFloat8E8M0, kNVTEByte];
    let mut output_dtype = None;
    let mut direction = |name: &str, handle, scale_name: &str, scales, colwise| {
        let (scales, stride) = mxfp8_blocks(scale_name, scales, shape, colwise, &codes)?;
        let buffer = check::tensor_or_empty(name, handle)?.rowwise;
        let (wanted, has_scales) = (buffer.is_set(), stride > 0);
        if wanted != has_scales {
            let (name, got) = if wanted { (scale_name, "nothing") } else { (name, "nothing") };
            let expected = "output and codes of one direction, or neither";
            return Err(Error::argument(name, expected, got));
        }
        if !wanted {
            return Ok((null_mut(), scales, stride));
        }
        let allowed = [kNVTEFloat8E4M3, kNVTEFloat8E5M2, kNVTEByte];
        check::dtype(
            name,
            buffer.dtype,
            output_dtype.as_ref().map_or(&allowed, std::slice::from_ref),
        )?;
        output_dtype = Some(buffer.dtype);
        Ok((output(name, &buffer, &shard)?, scales, stride))
    };
    let row = direction("output_rowwise", outputs.0, "scale_inv_rowwise", scales.0, false)?;
    let col = direction("output_colwise", outputs.1, "scale_inv_colwise", scales.1, true)?;
    if shard.length == 0 {
        return Ok(());
    }
    let Some(output_dtype) = output_dtype else {
        let expected = "a tensor here or as output_colwise";
        return Err(Error::argument("output_rowwise", expected, "nothing"));
    };
    let args = PartialCastArgs {
        shard,
        rowwise: row.0,
        colwise: col.0,
        rowwise_scales: row.1,
        colwise_scales: col.1,
        rowwise_stride: row.2,
        colwise_stride: col.2,
        block_step: 1,
        mode: NVTE_MXFP8_1D_SCALING,
        output_dtype: if output_dtype == kNVTEByte { kNVTEFloat8E4M3 } else { output_dtype },
    };
    backend::run(&args, stream)
}
