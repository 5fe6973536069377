//! Amax and casts of a part of a matrix, as an optimizer that is sharded over ranks holds it (spec
//! quantize 10.5 and 10.6).

use super::*;
use NVTEDType::*;
use NVTEScalingMode::*;

pub(super) type Pair<T> = (T, T);

/// The elements from `start` on of the matrix `[rows, cols]`.
pub(super) fn shard(
    name: &str,
    tensor: &Tensor,
    (rows, cols): Pair<usize>,
    start: usize,
) -> Result<Shard> {
    check::per_tensor(name, tensor)?;
    // An unset buffer stands for a shard without elements.
    let data = &tensor.rowwise;
    check::high_precision(name, data.dtype)?;
    check::pointer(format_args!("{name}.data"), data)?;
    let length = data.shape.numel();
    let end = start.checked_add(length);
    let Some(numel) = rows.checked_mul(cols).filter(|&numel| numel <= isize::MAX as usize / 4)
    else {
        let got = format!("[{rows}, {cols}]");
        return Err(Error::argument("the shape of the matrix", "less than 2^61 elements", got));
    };
    if end.is_none_or(|end| end > numel) {
        let expected =
            format!("at most {numel} ([{rows}, {cols}]) less {length} elements of {name}");
        return Err(Error::argument("start_offset", expected, start));
    }
    Ok(Shard { input: data.ptr(), start, length, rows, cols, dtype: data.dtype })
}

/// Floats at two strides, one for each block of `side * side` elements of a matrix.
pub(super) struct Blocks {
    pub ptr: *mut c_void,
    /// The bytes as far as the strides reach.
    bytes: usize,
    down: usize,
    across: usize,
    strides: Pair<usize>,
}

impl Blocks {
    pub fn new(
        name: &str,
        buffer: &Buffer,
        (h, w): Pair<usize>,
        side: usize,
        strides: Pair<usize>,
    ) -> Result<Self> {
        floats(name, buffer)?;
        let (down, across) = (h.div_ceil(side), w.div_ceil(side));
        let last = |count: usize, stride: usize| count.checked_sub(1)?.checked_mul(stride);
        let least = match down * across {
            0 => Some(0),
            _ => last(down, strides.0)
                .zip(last(across, strides.1))
                .and_then(|(down, across)| down.checked_add(across)?.checked_add(1)),
        };
        let Some(least) = least.filter(|&least| least <= buffer.shape.numel()) else {
            let least = least.map_or("2^64".into(), |least| least.to_string());
            let (h, w) = strides;
            let expected = format!(
                "{least} or more elements ({down} x {across} blocks at strides of {h} and {w})"
            );
            return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
        };
        Ok(Self { ptr: buffer.ptr(), bytes: least * 4, down, across, strides })
    }

    /// Refuses strides at which two blocks have one float, which threads would write at once.
    pub fn distinct(&self, name: &str) -> Result<()> {
        let (h, w) = self.strides;
        // The blocks of one line fit between those of the next line, in either direction.
        let nested = |inner: usize, count: usize, outer: usize, lines: usize| {
            (count <= 1 || inner > 0) && (lines <= 1 || outer > count.saturating_sub(1) * inner)
        };
        if self.bytes == 0
            || nested(w, self.across, h, self.down)
            || nested(h, self.down, w, self.across)
        {
            return Ok(());
        }
        let expected = format!("strides that keep {} x {} blocks apart", self.down, self.across);
        Err(Error::argument(format!("{name}_stride_h"), expected, format!("{h} and {w}")))
    }

    pub fn memory<'a>(&self, name: &'a dyn Display) -> Memory<'a> {
        Memory::new(name, self.ptr, self.bytes)
    }
}

impl Shard {
    pub(super) fn memory<'a>(&self, name: &'a dyn Display) -> Memory<'a> {
        Memory::new(name, self.input, self.length * self.dtype.bits() / 8)
    }
}

fn block_length(length: usize) -> Result<()> {
    if length == 128 { Ok(()) } else { Err(Error::argument("block_len", 128, length)) }
}

/// Whether there is neither a matrix nor anything to write.
pub(super) fn empty(shard: &Shard) -> bool {
    shard.rows == 0 || shard.cols == 0
}

pub(super) fn block_amax(
    inp: &Tensor,
    amax: &Buffer,
    shape: Pair<usize>,
    (stride, block_step): Pair<usize>,
    start: usize,
    block_len: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let shard = shard("inp", inp, shape, start)?;
    block_length(block_len)?;
    let amax = Blocks::new("amax", amax, shape, 128, (stride, block_step))?;
    amax.distinct("amax")?;
    check::apart(&[shard.memory(&"inp")], &[amax.memory(&"amax")])?;
    let args = PartialAmaxArgs {
        shard,
        rowwise: amax.ptr,
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
    inp: &Tensor,
    (out, output_dtype): (&Buffer, NVTEDType),
    scale: &Buffer,
    shape: Pair<usize>,
    (stride, block_step): Pair<usize>,
    start: usize,
    block_len: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let shard = shard("inp", inp, shape, start)?;
    block_length(block_len)?;
    check::fp8("out_dtype", output_dtype)?;
    if out.dtype.bits() != 8 {
        let expected = "Float8E4M3 or Float8E5M2 or Byte";
        return Err(Error::argument("out.dtype", expected, out.dtype));
    }
    let scale = Blocks::new("scale", scale, shape, 128, (stride, block_step))?;
    let rowwise = output("out", out, &shard)?;
    let inputs = [shard.memory(&"inp"), scale.memory(&"scale")];
    check::apart(&inputs, &[Memory::of(&"out", out)])?;
    let args = PartialCastArgs {
        shard,
        rowwise,
        colwise: null_mut(),
        rowwise_scales: scale.ptr,
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

/// A matrix with an entry for each MXFP8 block in one direction, and the elements from one of its rows to
/// the next; 0 for a buffer that is not set.
fn mxfp8_blocks(
    name: &str,
    buffer: &Buffer,
    (rows, cols): Pair<usize>,
    colwise: bool,
    dtypes: &[NVTEDType],
) -> Result<usize> {
    if !buffer.is_set() {
        return Ok(0);
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
            check::pointer(format_args!("{name}.data"), buffer)?;
            Ok(stride)
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
    input: &Tensor,
    amax: Pair<&Buffer>,
    shape: Pair<c_int>,
    start: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let shape = dimensions(shape)?;
    let shard = shard("input", input, shape, start)?;
    let dtypes = [shard.dtype];
    let rowwise_stride = mxfp8_blocks("amax_rowwise", amax.0, shape, false, &dtypes)?;
    let colwise_stride = mxfp8_blocks("amax_colwise", amax.1, shape, true, &dtypes)?;
    let outputs = [Memory::of(&"amax_rowwise", amax.0), Memory::of(&"amax_colwise", amax.1)];
    check::apart(&[shard.memory(&"input")], &outputs)?;
    if empty(&shard) {
        return Ok(());
    }
    let (rowwise, colwise) = (amax.0.ptr(), amax.1.ptr());
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
    input: &Tensor,
    outputs: Pair<&Buffer>,
    scales: Pair<&Buffer>,
    shape: Pair<c_int>,
    start: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let shape = dimensions(shape)?;
    let shard = shard("input", input, shape, start)?;
    let codes = [kNVTEFloat8E8M0, kNVTEByte];
    let mut output_dtype = None;
    let mut direction = |name: &str, buffer: &Buffer, scale_name: &str, scales, colwise| {
        let stride = mxfp8_blocks(scale_name, scales, shape, colwise, &codes)?;
        let (wanted, has_scales) = (buffer.is_set(), stride > 0);
        if wanted != has_scales {
            let (name, got) = if wanted { (scale_name, "nothing") } else { (name, "nothing") };
            let expected = "output and codes of one direction, or neither";
            return Err(Error::argument(name, expected, got));
        }
        if !wanted {
            return Ok((null_mut(), stride));
        }
        let allowed = [kNVTEFloat8E4M3, kNVTEFloat8E5M2, kNVTEByte];
        check::dtype(
            name,
            buffer.dtype,
            output_dtype.as_ref().map_or(&allowed, std::slice::from_ref),
        )?;
        output_dtype = Some(buffer.dtype);
        Ok((output(name, buffer, &shard)?, stride))
    };
    let row = direction("output_rowwise", outputs.0, "scale_inv_rowwise", scales.0, false)?;
    let col = direction("output_colwise", outputs.1, "scale_inv_colwise", scales.1, true)?;
    let inputs = [
        shard.memory(&"input"),
        Memory::of(&"scale_inv_rowwise", scales.0),
        Memory::of(&"scale_inv_colwise", scales.1),
    ];
    let written = [
        Memory::new(&"output_rowwise", row.0, shard.length),
        Memory::new(&"output_colwise", col.0, shard.length),
    ];
    check::apart(&inputs, &written)?;
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
        rowwise_scales: scales.0.ptr(),
        colwise_scales: scales.1.ptr(),
        rowwise_stride: row.1,
        colwise_stride: col.1,
        block_step: 1,
        mode: NVTE_MXFP8_1D_SCALING,
        output_dtype: if output_dtype == kNVTEByte { kNVTEFloat8E4M3 } else { output_dtype },
    };
    backend::run(&args, stream)
}
