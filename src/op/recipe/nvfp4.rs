//! Scales of NVFP4 tensors, and amax and casts of a part of a matrix for them (spec optim_nvfp4, section
//! 17).

use super::partial::{Blocks, Pair, empty, shard};
use super::*;
use NVTEDType::*;

/// Side of a block.
const BLOCK: usize = 16;

/// `data` of at least (or exactly) so many Float32.
fn float_data(name: &str, buffer: &Buffer, numel: usize, exact: bool) -> Result<*mut f32> {
    floats(name, buffer)?;
    let got = buffer.shape.numel();
    if got < numel || (exact && got != numel) {
        let more = if exact { "" } else { " or more" };
        let expected = format!("{numel}{more} elements");
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    Ok(buffer.ptr().cast())
}

/// The amax of an operand of a product, and the largest E4M3 scale of its blocks.
fn operand_amax(name: &str, tensor: &Tensor, rowwise: bool) -> Result<(*const f32, f32)> {
    let (field, buffer) = match rowwise {
        true => ("amax", &tensor.amax),
        false => ("columnwise_amax", &tensor.colwise_amax),
    };
    let name = format!("{name}.{field}");
    if buffer.ptr().is_null() {
        return Err(Error::argument(name, "Float32", "nothing"));
    }
    let amax = check::elements(&name, buffer, 1, kNVTEFloat32)?;
    check::dtype(name, buffer.dtype, &[kNVTEFloat32])?;
    Ok((amax.cast_const().cast(), tensor.e4m3_max as f32))
}

pub(super) fn per_tensor_scale(
    a: (&Tensor, bool),
    b: (&Tensor, bool),
    alpha: f32,
    output: &Buffer,
    stream: cudaStream_t,
) -> Result<()> {
    let (amax_a, max_a) = operand_amax("inpA", a.0, a.1)?;
    let (amax_b, max_b) = operand_amax("inpB", b.0, b.1)?;
    let args = Nvfp4AlphaArgs {
        amax_a,
        amax_b,
        output: float_data("alpha_out", output, 1, false)?,
        alpha,
        beta: 0.0,
        factor: 1.0 / (36.0 * max_a * max_b),
        with_beta: false,
    };
    backend::run(&args, stream)
}

pub(super) fn global_scale(amax: &Buffer, scale: &Buffer, stream: cudaStream_t) -> Result<()> {
    floats("global_amax", amax)?;
    let length = amax.shape.numel();
    let args = Nvfp4GlobalScaleArgs {
        amax: amax.ptr().cast(),
        scale: float_data("global_scale", scale, length, false)?,
        length,
    };
    let bytes = length * 4;
    let amax = Memory::new(&"global_amax", args.amax, bytes);
    check::apart(&[amax], &[Memory::new(&"global_scale", args.scale, bytes)])?;
    if length > 0 { backend::run(&args, stream) } else { Ok(()) }
}

pub(super) fn per_block_scale(
    block_amax: &Buffer,
    scale: &Buffer,
    global_amax: &Buffer,
    stream: cudaStream_t,
) -> Result<()> {
    floats("block_amax", block_amax)?;
    let length = block_amax.shape.numel();
    let args = Nvfp4BlockScaleArgs {
        input: block_amax.ptr().cast(),
        global_amax: float_data("global_amax", global_amax, 1, true)?,
        scale: float_data("scale", scale, length, false)?,
        codes: null_mut(),
        target_amax: null_mut(),
        tile_rows: 1,
        tile_cols: length,
        rows: 0,
        block_len: BLOCK,
    };
    blocks_apart(&args, ["block_amax", "scale", "", ""])?;
    if length > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// Refuses outputs that overlap anything; the names are those of the input, the scales, the codes and the
/// amax.
fn blocks_apart(args: &Nvfp4BlockScaleArgs, names: [&str; 4]) -> Result<()> {
    let bytes = args.tile_rows * args.tile_cols * 4;
    let inputs = [
        Memory::new(&names[0], args.input, bytes),
        Memory::new(&"global_amax", args.global_amax, 4),
    ];
    let outputs = [
        Memory::new(&names[1], args.scale, bytes),
        Memory::new(&names[2], args.codes, args.rows * args.tile_cols),
        Memory::new(&names[3], args.target_amax, 4),
    ];
    check::apart(&inputs, &outputs)
}

/// Blocks of a matrix, and the rows of the codes of their scales.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    pub tile_rows: usize,
    pub tile_cols: usize,
    pub rows_padded: usize,
    pub block_len: usize,
}

impl Tiles {
    fn empty(&self) -> bool {
        self.tile_rows == 0 || self.tile_cols == 0 || self.rows_padded == 0
    }

    fn check(&self) -> Result<()> {
        if self.block_len == 0 {
            return Err(Error::argument("block_len", "1 or more", 0));
        }
        let limit = isize::MAX as usize / 4;
        for (name, rows) in [("tile_rows", self.tile_rows), ("rows_padded", self.rows_padded)] {
            if rows.checked_mul(self.tile_cols).is_none_or(|numel| numel > limit) {
                let expected = format!("less than 2^61 elements with {} columns", self.tile_cols);
                return Err(Error::argument(name, expected, rows));
            }
        }
        Ok(())
    }

    /// Bytes `[rows_padded, tile_cols]`.
    fn codes(&self, name: &str, buffer: &Buffer) -> Result<*mut c_void> {
        check::dtype(name, buffer.dtype, &[kNVTEByte])?;
        check::elements(name, buffer, self.rows_padded * self.tile_cols, kNVTEByte)
    }
}

pub(super) fn expand_scale(
    input: &Buffer,
    output: &Buffer,
    tiles: Tiles,
    stream: cudaStream_t,
) -> Result<()> {
    tiles.check()?;
    let args = Nvfp4BlockScaleArgs {
        input: float_data("input", input, tiles.tile_rows * tiles.tile_cols, false)?,
        global_amax: std::ptr::null(),
        scale: null_mut(),
        codes: tiles.codes("output", output)?,
        target_amax: null_mut(),
        tile_rows: tiles.tile_rows,
        tile_cols: tiles.tile_cols,
        rows: tiles.rows_padded,
        block_len: tiles.block_len,
    };
    if tiles.empty() {
        return Ok(());
    }
    blocks_apart(&args, ["input", "", "output", ""])?;
    backend::run(&args, stream)
}

pub(super) fn fused_scale(
    block_amax: &Buffer,
    global_amax: &Buffer,
    scale: &Buffer,
    (target_scale, target_amax): Pair<&Buffer>,
    tiles: Tiles,
    stream: cudaStream_t,
) -> Result<()> {
    tiles.check()?;
    let numel = tiles.tile_rows * tiles.tile_cols;
    let args = Nvfp4BlockScaleArgs {
        input: float_data("block_amax", block_amax, numel, false)?,
        global_amax: float_data("global_amax", global_amax, 1, true)?,
        scale: float_data("per_block_scale", scale, numel, false)?,
        codes: tiles.codes("target_scale", target_scale)?,
        target_amax: float_data("target_amax", target_amax, 1, true)?,
        tile_rows: tiles.tile_rows,
        tile_cols: tiles.tile_cols,
        rows: tiles.rows_padded,
        block_len: tiles.block_len,
    };
    if tiles.empty() {
        return Ok(());
    }
    blocks_apart(&args, ["block_amax", "per_block_scale", "target_scale", "target_amax"])?;
    backend::run(&args, stream)
}

fn block_length(length: usize) -> Result<()> {
    match length {
        BLOCK => Ok(()),
        _ => Err(Error::argument("block_len", BLOCK, length)),
    }
}

pub(super) fn partial_amax(
    inp: &Tensor,
    amax: &Buffer,
    shape: Pair<usize>,
    (stride, step): Pair<usize>,
    (start, block_len): Pair<usize>,
    stream: cudaStream_t,
) -> Result<()> {
    let shard = shard("inp", inp, shape, start)?;
    block_length(block_len)?;
    let amax = Blocks::new("amax", amax, shape, BLOCK, (stride, step))?;
    amax.distinct("amax")?;
    check::apart(&[shard.memory(&"inp")], &[amax.memory(&"amax")])?;
    let args = Nvfp4PartialAmaxArgs { shard, amax: amax.ptr.cast(), stride, step };
    if empty(&shard) { Ok(()) } else { backend::run(&args, stream) }
}

pub(super) fn partial_cast(
    inp: &Tensor,
    out: &Buffer,
    (scale, global_scale): Pair<&Buffer>,
    shape: Pair<usize>,
    (stride, step): Pair<usize>,
    (start, block_len): Pair<usize>,
    stream: cudaStream_t,
) -> Result<()> {
    let shard = shard("inp", inp, shape, start)?;
    block_length(block_len)?;
    check::dtype("out", out.dtype, &[kNVTEByte])?;
    let bytes = (start + shard.length).div_ceil(2) - start / 2;
    let scale = Blocks::new("scale", scale, shape, BLOCK, (stride, step))?;
    let args = Nvfp4PartialCastArgs {
        shard,
        output: check::elements("out", out, bytes, kNVTEByte)?,
        scale: scale.ptr.cast(),
        global_scale: float_data("global_scale", global_scale, 1, false)?,
        stride,
        step,
    };
    let global = Memory::new(&"global_scale", args.global_scale, 4);
    let inputs = [shard.memory(&"inp"), scale.memory(&"scale"), global];
    check::apart(&inputs, &[Memory::new(&"out", args.output, bytes)])?;
    if shard.length == 0 { Ok(()) } else { backend::run(&args, stream) }
}
