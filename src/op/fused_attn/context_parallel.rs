//! Context parallelism of packed sequences, each of which is cut into `2 world_size` chunks: which tokens a rank
//! has, and how the results of its steps are merged (spec attention 14, 15).

use super::rows::*;
use crate::backend::{self, args::*};
use crate::check::{self, HIGH_PRECISION};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTEDType::*;
use crate::types::cudaStream_t;

/// Copies the first (0) or second (1) half of every sequence.
pub(crate) fn read_half(
    tensor: &Tensor,
    cu_seqlens: &Tensor,
    half: &Tensor,
    half_idx: i32,
    stream: cudaStream_t,
) -> Result<()> {
    let (src, dst) = (data(("tensor", tensor), &[])?, data(("half", half), &[])?);
    let (cu, sequences) = sequences(("cu_seqlens", cu_seqlens))?;
    same_dtype("half", dst, src)?;
    let (outer, total, width) = tokens("tensor", src)?;
    check::shape("half", &dst.shape, &with_tokens(src, total / 2))?;
    if !(0..2).contains(&half_idx) {
        return Err(Error::argument("half_idx", "0 or 1", half_idx));
    }
    apart(("tensor", src), ("half", dst))?;
    check_sums("cu_seqlens", cu, sequences, total, stream)?;
    let args = MoveRowsArgs {
        src: src.ptr(),
        dst: dst.ptr(),
        row_bytes: row_bytes(src, width),
        rows: total / 2,
        outer,
        src_outer: total,
        dst_outer: total / 2,
        src_rows: total,
        dst_rows: total / 2,
        cu,
        sequences,
        index: half_idx as usize,
        ..MoveRowsArgs::NONE
    };
    run_moves(&args, stream)
}

/// The shape of a tensor `[.., tokens, heads, dim]` with another number of tokens.
fn with_tokens(like: &Buffer, tokens: usize) -> Shape {
    let mut dims = like.shape.dims().to_vec();
    let at = dims.len() - 3;
    dims[at] = tokens;
    Shape::new(&dims)
}

/// Merges logarithms of a step into those of the second halves (`correct`), or copies these to `step`.
pub(super) fn half_lse(
    lse: Argument,
    step: Argument,
    cu_seqlens: &Tensor,
    packed: bool,
    correct: bool,
    stream: cudaStream_t,
) -> Result<()> {
    let names = (lse.0, step.0);
    let (lse, step) = (data(lse, &[kNVTEFloat32])?, data(step, &[kNVTEFloat32])?);
    let (cu, sequences) = sequences(("cu_seqlens", cu_seqlens))?;
    let sizes = lse_sizes((names.0, lse), (names.1, step), (packed, true), sequences)?;
    apart((names.1, step), (names.0, lse))?;
    let most = sizes.lse_len * if packed { 1 } else { sequences };
    check_sums("cu_seqlens", cu, sequences, most, stream)?;
    let args = HalfLseArgs {
        lse: lse.ptr().cast(),
        step: step.ptr().cast(),
        cu,
        sequences,
        heads: sizes.heads,
        lse_len: sizes.lse_len,
        step_len: sizes.step_len,
        packed,
        correct,
    };
    if sizes.heads * sizes.step_len > 0 { backend::run(&args, stream) } else { Ok(()) }
}

struct LseSizes {
    heads: usize,
    lse_len: usize,
    step_len: usize,
}

/// Shapes of logarithms: `[heads, len]`, or `[sequences, heads, len]`; those of a step are half as long
/// if it has halves.
fn lse_sizes(
    (lse_name, lse): (&str, &Buffer),
    (step_name, step): (&str, &Buffer),
    (packed, halves): (bool, bool),
    sequences: usize,
) -> Result<LseSizes> {
    let (heads, lse_len) = match *lse.shape.dims() {
        [heads, len] if packed => (heads, len),
        [b, heads, len] if !packed && b == sequences => (heads, len),
        _ => {
            let expected = match packed {
                true => "[heads, tokens]".into(),
                false => format!("[{sequences}, heads, length]"),
            };
            return Err(Error::argument(format_args!("{lse_name}.shape"), expected, lse.shape));
        }
    };
    let least = if halves { lse_len / 2 } else { lse_len };
    let step_len = match *step.shape.dims() {
        [h, len] if packed && h == heads && len >= least => len,
        [b, h, len] if !packed && (b, h, len) == (sequences, heads, least) => len,
        _ => {
            let expected = match packed {
                true => format!("[{heads}, {least} or more]"),
                false => format!("[{sequences}, {heads}, {least}]"),
            };
            return Err(Error::argument(format_args!("{step_name}.shape"), expected, step.shape));
        }
    };
    Ok(LseSizes { heads, lse_len, step_len })
}

/// The tensors of a correction of outputs.
pub(super) struct OutCorrection<'a> {
    pub(super) out: &'a Tensor,
    pub(super) out_per_step: &'a Tensor,
    pub(super) old_lse: &'a Tensor,
    pub(super) lse: &'a Tensor,
    pub(super) lse_per_step: &'a Tensor,
    pub(super) cu_seqlens: &'a Tensor,
}

/// Merges the output of a step into `out`.
pub(super) fn out_correction(
    tensors: &OutCorrection,
    second_half: bool,
    packed: bool,
    stream: cudaStream_t,
) -> Result<()> {
    let out = data(("out", tensors.out), HIGH_PRECISION)?;
    let step = data(("out_per_step", tensors.out_per_step), HIGH_PRECISION)?;
    let old_lse = data(("old_lse", tensors.old_lse), &[kNVTEFloat32])?;
    let lse = data(("lse", tensors.lse), &[kNVTEFloat32])?;
    let step_lse = data(("lse_per_step", tensors.lse_per_step), &[kNVTEFloat32])?;
    let (cu, sequences) = sequences(("cu_seqlens", tensors.cu_seqlens))?;
    same_dtype("out_per_step", step, out)?;
    let &[total, heads, width] = out.shape.dims() else {
        return Err(Error::argument("out.shape", "[tokens, heads, dim]", out.shape));
    };
    let step_tokens = if second_half { total / 2 } else { total };
    check::shape("out_per_step", &step.shape, &Shape::new(&[step_tokens, heads, width]))?;
    check::shape("old_lse", &old_lse.shape, &lse.shape)?;
    let sizes =
        lse_sizes(("lse", lse), ("lse_per_step", step_lse), (packed, second_half), sequences)?;
    if sizes.heads != heads || (packed && sizes.lse_len < total) {
        let expected = format!("{heads} heads of {total} tokens or more");
        return Err(Error::argument("lse.shape", expected, lse.shape));
    }
    for (name, input) in
        [("out_per_step", step), ("old_lse", old_lse), ("lse", lse), ("lse_per_step", step_lse)]
    {
        apart((name, input), ("out", out))?;
    }
    check_sums("cu_seqlens", cu, sequences, total, stream)?;
    let args = OutCorrectionArgs {
        out: out.ptr(),
        step: step.ptr(),
        old_lse: old_lse.ptr().cast(),
        lse: lse.ptr().cast(),
        step_lse: step_lse.ptr().cast(),
        cu,
        sequences,
        tokens: step_tokens,
        out_tokens: total,
        heads,
        width,
        lse_len: sizes.lse_len,
        step_len: sizes.step_len,
        dtype: out.dtype,
        second_half,
        packed,
    };
    if step.shape.numel() > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// Merges the gradient of a step into the first and the second halves of `grad`.
pub(crate) fn grad_correction(
    grad: &Tensor,
    grad_per_step: &Tensor,
    cu_seqlens: &Tensor,
    (first, second): (HalfOp, HalfOp),
    stream: cudaStream_t,
) -> Result<()> {
    use HalfOp::*;
    let full = match (first, second) {
        (NVTEX_HALF_ADD, NVTEX_HALF_COPY) | (NVTEX_HALF_COPY, NVTEX_HALF_ADD) => true,
        (NVTEX_HALF_ADD | NVTEX_HALF_COPY, NVTEX_HALF_NONE)
        | (NVTEX_HALF_NONE, NVTEX_HALF_ADD | NVTEX_HALF_COPY)
        | (NVTEX_HALF_COPY, NVTEX_HALF_ZERO)
        | (NVTEX_HALF_ZERO, NVTEX_HALF_COPY) => false,
        _ => {
            let expected = "one of the pairs (add, none), (copy, none), (add, copy), (copy, zero) in either order";
            return Err(Error::argument("first_half and second_half", expected, "another pair"));
        }
    };
    let moves = matches!((first, second), (NVTEX_HALF_ZERO, _) | (_, NVTEX_HALF_ZERO));
    let dtypes: &[_] = if moves {
        &[kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEByte]
    } else {
        HIGH_PRECISION
    };
    let grad = data(("grad", grad), dtypes)?;
    let step = data(("grad_per_step", grad_per_step), dtypes)?;
    let (cu, sequences) = sequences(("cu_seqlens", cu_seqlens))?;
    same_dtype("grad_per_step", step, grad)?;
    let (outer, total, width) = tokens("grad", grad)?;
    let expected = with_tokens(grad, if full { total } else { total / 2 });
    check::shape("grad_per_step", &step.shape, &expected)?;
    apart(("grad_per_step", step), ("grad", grad))?;
    check_sums("cu_seqlens", cu, sequences, total, stream)?;
    let args = GradCorrectionArgs {
        grad: grad.ptr(),
        step: step.ptr(),
        cu,
        sequences,
        tokens: total,
        width,
        outer,
        dtype: grad.dtype,
        first,
        second,
        full,
    };
    if grad.shape.numel() > 0 { backend::run(&args, stream) } else { Ok(()) }
}

/// Ranks, and the tokens that they share.
#[derive(Clone, Copy)]
pub(crate) struct Ranks {
    total: usize,
    world: usize,
}

impl Ranks {
    pub(crate) fn new(total_tokens: i32, world_size: i32) -> Result<Self> {
        let world = positive("world_size", world_size)?;
        let total = positive("total_tokens", total_tokens)?;
        if !total.is_multiple_of(2 * world) {
            let expected = format!("a multiple of 2 * world_size ({})", 2 * world);
            return Err(Error::argument("total_tokens", expected, total));
        }
        Ok(Self { total, world })
    }
}

/// Writes the numbers of the tokens that a rank has.
pub(super) fn partitioned_indices(
    cu_seqlens: &Tensor,
    output: &Tensor,
    Ranks { total, world }: Ranks,
    rank: i32,
    stream: cudaStream_t,
) -> Result<()> {
    let (cu, sequences) = sequences(("cu_seqlens", cu_seqlens))?;
    let rank = match usize::try_from(rank) {
        Ok(rank) if rank < world => rank,
        _ => return Err(Error::argument("rank", format!("from 0 to {}", world - 1), rank)),
    };
    let output = data(("output", output), &[kNVTEInt32])?;
    check::shape("output", &output.shape, &Shape::new(&[total / world]))?;
    check_sums("cu_seqlens", cu, sequences, total, stream)?;
    let args = PartitionArgs {
        indices: output.ptr().cast(),
        cu,
        sequences,
        tokens: total / world,
        world,
        rank,
    };
    backend::run(&args, stream)
}

/// Moves tokens between the order of sequences and that of ranks, as `map` says.
pub(crate) fn reorder(
    inp: &Tensor,
    cu_seqlens: &Tensor,
    out: &Tensor,
    Ranks { total, world }: Ranks,
    map: RowMap,
    stream: cudaStream_t,
) -> Result<()> {
    let (src, dst) = token_pair(("inp", inp), ("out", out), total)?;
    let (cu, sequences) = sequences(("cu_seqlens", cu_seqlens))?;
    check_sums("cu_seqlens", cu, sequences, total, stream)?;
    let args = MoveRowsArgs {
        src: src.ptr(),
        dst: dst.ptr(),
        row_bytes: row_bytes(src, src.shape.numel() / total),
        rows: total,
        src_rows: total,
        dst_rows: total,
        cu,
        sequences,
        world,
        map,
        ..MoveRowsArgs::NONE
    };
    run_moves(&args, stream)
}

/// Joins the attention of queries to some keys, `step` with the logarithms `step_lse`, with that to others: `out` in
/// Float32 of as many elements, with `lse`. Logarithms are `[heads, tokens]`, where tokens are the first dimension of
/// `out`, and heads all between that and the last. `first`: there is nothing yet.
pub(crate) fn merge(
    [out, lse, step, step_lse]: [&Buffer; 4],
    tokens: usize,
    first: bool,
    stream: cudaStream_t,
) -> Result<()> {
    let numel = step.shape.numel();
    let rows = lse.shape.numel();
    if rows == 0 || tokens == 0 {
        return Ok(());
    }
    check::high_precision("step", step.dtype)?;
    let args = MergeAttentionArgs {
        out: check::elements("out", out, numel, kNVTEFloat32)?.cast(),
        lse: check::elements("lse", lse, rows, kNVTEFloat32)?.cast(),
        step: check::elements("step", step, numel, step.dtype)?,
        step_lse: check::elements("step_lse", step_lse, rows, kNVTEFloat32)?.cast_const().cast(),
        tokens,
        heads: rows / tokens,
        width: numel / rows,
        dtype: step.dtype,
        first,
    };
    backend::run(&args, stream)
}

/// Some chunks of all sequences, of which each is cut into `of`: those in both ranges, in a tensor that has the part
/// `1 / divisor` of each sequence, behind `skipped` chunks of it.
pub(crate) struct Chunks {
    pub(crate) of: usize,
    pub(crate) ranges: [[usize; 2]; 2],
    pub(crate) divisor: usize,
    pub(crate) skipped: usize,
}

/// Running sums of the lengths of chunks, and where they begin, from those of whole sequences.
pub(crate) fn chunk_lengths(
    [sums, starts]: [&Tensor; 2],
    [lengths, firsts]: [&Buffer; 2],
    chunks: &Chunks,
    stream: cudaStream_t,
) -> Result<()> {
    let (cu, sequences) = sequences(("cu_seqlens", sums))?;
    let starts = running_sums(("cu_seqlens_padded", starts), sequences)?;
    let array = |name, to: &Buffer| check::elements(name, to, sequences + 1, kNVTEInt32);
    let args = ChunkLengthsArgs {
        cu,
        starts,
        lengths: array("lengths", lengths)?.cast(),
        firsts: array("firsts", firsts)?.cast(),
        sequences,
        chunks: chunks.of,
        range: chunks.ranges[0],
        other_range: chunks.ranges[1],
        divisor: chunks.divisor,
        skipped: chunks.skipped,
    };
    backend::run(&args, stream)
}
