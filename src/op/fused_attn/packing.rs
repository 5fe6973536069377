//! Orders of tokens: packed sequences and padded ones, queries, keys and values that are interleaved or on their
//! own, transposed and widened rows (spec attention 9, 16, 17).

use super::rows::*;
use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor};
use crate::types::NVTE_QKV_Format::{self, *};
use crate::types::NVTEDType::*;
use crate::types::cudaStream_t;
use std::ffi::c_void;

/// Copies the tokens of packed sequences that are no padding.
pub(super) fn copy_valid(
    inp: &Tensor,
    cu_seqlens_padded: &Tensor,
    cu_seqlens: &Tensor,
    out: &Tensor,
    total: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let (src, dst) = token_pair(("inp", inp), ("out", out), total)?;
    let (cu, padded) = sequences(("cu_seqlens_padded", cu_seqlens_padded))?;
    let (cu_valid, sequences) = sequences(("cu_seqlens", cu_seqlens))?;
    if padded != sequences {
        let expected = format!("{} entries, as cu_seqlens", sequences + 1);
        return Err(Error::argument("cu_seqlens_padded.shape", expected, padded + 1));
    }
    check_sums("cu_seqlens_padded", cu, sequences, total, stream)?;
    check_sums("cu_seqlens", cu_valid, sequences, total, stream)?;
    let args = MoveRowsArgs {
        src: src.ptr(),
        dst: dst.ptr(),
        row_bytes: row_bytes(src, src.shape.numel() / total.max(1)),
        rows: total,
        src_rows: total,
        dst_rows: total,
        cu,
        cu_valid,
        sequences,
        map: RowMap::NVTEX_ROWS_VALID,
        ..MoveRowsArgs::NONE
    };
    run_moves(&args, stream)
}

/// Between packed tokens `[tokens, heads, dim]` and padded ones `[sequences, length, heads, dim]`.
pub(super) fn convert(
    packed: Argument,
    padded: Argument,
    cu_seqlens: &Tensor,
    map: RowMap,
    stream: cudaStream_t,
) -> Result<()> {
    let (packed_name, padded_name) = (packed.0, padded.0);
    let (packed, padded) = (data(packed, TOKENS)?, data(padded, TOKENS)?);
    same_dtype(padded_name, padded, packed)?;
    let &[b, length, heads, dim] = padded.shape.dims() else {
        let expected = "[sequences, length, heads, dim]";
        return Err(Error::argument(format_args!("{padded_name}.shape"), expected, padded.shape));
    };
    let tokens = match *packed.shape.dims() {
        [tokens, h, d] if (h, d) == (heads, dim) => tokens,
        _ => {
            let name = format_args!("{packed_name}.shape");
            let expected = format!("[tokens, {heads}, {dim}]");
            return Err(Error::argument(name, expected, packed.shape));
        }
    };
    let cu = running_sums(("cu_seqlens", cu_seqlens), b)?;
    check_sums("cu_seqlens", cu, b, tokens, stream)?;
    let unpacks = map == RowMap::NVTEX_ROWS_UNPACK;
    let pair = [(packed_name, packed), (padded_name, padded)];
    let [(src_name, src), (dst_name, dst)] = if unpacks { pair } else { [pair[1], pair[0]] };
    apart((src_name, src), (dst_name, dst))?;
    let rows = b * length;
    let args = MoveRowsArgs {
        src: src.ptr(),
        dst: dst.ptr(),
        row_bytes: row_bytes(src, heads * dim),
        rows,
        src_rows: if unpacks { tokens } else { rows },
        dst_rows: if unpacks { rows } else { tokens },
        cu,
        sequences: b,
        length,
        map,
        ..MoveRowsArgs::NONE
    };
    run_moves(&args, stream)
}

/// Copies all entries that are not empty.
pub(super) fn run_copies(entries: &[CopyRowsEntry], stream: cudaStream_t) -> Result<()> {
    let entries: Vec<CopyRowsEntry> = entries
        .iter()
        .filter(|e| e.dims.iter().product::<usize>() * e.dst_bytes > 0)
        .copied()
        .collect();
    if entries.is_empty() {
        return Ok(());
    }
    backend::run(&CopyRowsArgs { entries: entries.as_ptr(), num_entries: entries.len() }, stream)
}

/// A tensor of four dimensions in 16 bits.
fn halves<'a>(argument: Argument<'a>) -> Result<(&'a Buffer, [usize; 4])> {
    let buffer = data(argument, &[kNVTEFloat16, kNVTEBFloat16])?;
    match *buffer.shape.dims() {
        [a, b, c, d] => Ok((buffer, [a, b, c, d])),
        _ => {
            let name = format_args!("{}.shape", argument.0);
            Err(Error::argument(name, "4 dimensions", buffer.shape))
        }
    }
}

/// Queries, keys and values out of, or into, a tensor `[s, b, heads, 3, dim]`, from or to contiguous
/// `[b, s, heads, dim]`.
fn interleave(
    interleaved: &Buffer,
    parts: [*mut c_void; 3],
    [s, b, heads, dim]: [usize; 4],
    into: bool,
    stream: cudaStream_t,
) -> Result<()> {
    let row = row_bytes(interleaved, dim);
    let apart = [3 * heads * row, b * 3 * heads * row, 3 * row];
    let contiguous = [s * heads * row, heads * row, row];
    let entry = |(c, part): (usize, &*mut c_void)| {
        let inner = interleaved.ptr().cast::<u8>().wrapping_add(c * row).cast::<c_void>();
        let (src, dst) = if into { (*part, inner) } else { (inner, *part) };
        let (src_steps, dst_steps) = if into { (contiguous, apart) } else { (apart, contiguous) };
        CopyRowsEntry {
            src,
            dst,
            dims: [b, s, heads],
            src_steps,
            dst_steps,
            src_bytes: row,
            dst_bytes: row,
        }
    };
    let entries: Vec<CopyRowsEntry> = parts.iter().enumerate().map(entry).collect();
    run_copies(&entries, stream)
}

/// Separates interleaved queries, keys and values.
pub(super) fn separate(qkvi: &Tensor, qkv: &Tensor, stream: cudaStream_t) -> Result<()> {
    let (interleaved, [s, b, heads, dim]) = halves(("qkvi", qkvi))?;
    let qkv = data(("qkv", qkv), &[interleaved.dtype])?;
    check::shape("qkv", &qkv.shape, &Shape::new(&[3, b, s, heads, dim]))?;
    // The input's shape is that of the queries, which keys and values lie between.
    let whole = Memory::new(&"qkvi", interleaved.ptr(), qkv.bytes());
    check::apart(&[whole], &[Memory::of(&"qkv", qkv)])?;
    let part = row_bytes(qkv, b * s * heads * dim);
    let parts = [0, 1, 2].map(|c| qkv.ptr().cast::<u8>().wrapping_add(c * part).cast());
    interleave(interleaved, parts, [s, b, heads, dim], false, stream)
}

/// Interleaves queries, keys and values: the inverse of [`separate`].
pub(super) fn join(parts: [&Tensor; 3], qkv: &Tensor, stream: cudaStream_t) -> Result<()> {
    let (q, [b, s, heads, dim]) = halves(("q", parts[0]))?;
    let mut buffers = [q; 3];
    for (i, name) in [(1, "k"), (2, "v")] {
        buffers[i] = data((name, parts[i]), &[q.dtype])?;
        check::shape(name, &buffers[i].shape, &q.shape)?;
    }
    let qkv = data(("qkv", qkv), &[q.dtype])?;
    if qkv.shape.numel() != 3 * q.shape.numel() {
        let expected = format!("{} elements ([{s}, {b}, {heads}, 3, {dim}])", 3 * q.shape.numel());
        return Err(Error::argument("qkv.shape", expected, qkv.shape));
    }
    for (name, part) in ["q", "k", "v"].into_iter().zip(buffers) {
        apart((name, part), ("qkv", qkv))?;
    }
    interleave(qkv, buffers.map(|part| part.ptr()), [s, b, heads, dim], true, stream)
}

/// Copies each input to its output, as `entry` says.
pub(super) fn copy_each(
    inputs: &[Tensor],
    outputs: &[Tensor],
    entry: impl Fn((&str, &Buffer), (&str, &Buffer)) -> Result<CopyRowsEntry>,
    stream: cudaStream_t,
) -> Result<()> {
    let mut entries = Vec::new();
    for (i, (input, output)) in inputs.iter().zip(outputs).enumerate() {
        let (in_name, out_name) = (format!("inputs[{i}]"), format!("outputs[{i}]"));
        let (from, to) = (data((&in_name, input), &[])?, data((&out_name, output), &[])?);
        same_dtype(&out_name, to, from)?;
        apart((&in_name, from), (&out_name, to))?;
        entries.push(entry((&in_name, from), (&out_name, to))?);
    }
    run_copies(&entries, stream)
}

/// From `[b, s, heads, dim]` or `[s, b, heads, dim]` to `[b, heads, s, dim or more]`.
pub(super) fn transpose_to_bhsd(
    (in_name, from): (&str, &Buffer),
    (out_name, to): (&str, &Buffer),
    format: NVTE_QKV_Format,
) -> Result<CopyRowsEntry> {
    let &[first, second, heads, dim] = from.shape.dims() else {
        return Err(Error::argument(format_args!("{in_name}.shape"), "4 dimensions", from.shape));
    };
    let (b, s) = if format == NVTE_BSHD { (first, second) } else { (second, first) };
    let wide = match *to.shape.dims() {
        [ob, oh, os, wide] if (ob, oh, os) == (b, heads, s) && wide >= dim => wide,
        _ => {
            let expected = format!("[{b}, {heads}, {s}, {dim} or more]");
            return Err(Error::argument(format_args!("{out_name}.shape"), expected, to.shape));
        }
    };
    let (row, out_row) = (row_bytes(from, dim), row_bytes(to, wide));
    let token = heads * row;
    let (b_step, s_step) =
        if format == NVTE_BSHD { (s * token, token) } else { (token, b * token) };
    Ok(CopyRowsEntry {
        src: from.ptr(),
        dst: to.ptr(),
        dims: [b, heads, s],
        src_steps: [b_step, row, s_step],
        dst_steps: [heads * s * out_row, s * out_row, out_row],
        src_bytes: row,
        dst_bytes: out_row,
    })
}

/// From `[rows, cols]` to `[rows, cols or more]`.
pub(super) fn pad_last_dim(
    (in_name, from): (&str, &Buffer),
    (out_name, to): (&str, &Buffer),
) -> Result<CopyRowsEntry> {
    let &[rows, cols] = from.shape.dims() else {
        return Err(Error::argument(format_args!("{in_name}.shape"), "2 dimensions", from.shape));
    };
    let wide = match *to.shape.dims() {
        [r, wide] if r == rows && wide >= cols => wide,
        _ => {
            let expected = format!("[{rows}, {cols} or more]");
            return Err(Error::argument(format_args!("{out_name}.shape"), expected, to.shape));
        }
    };
    let (row, out_row) = (row_bytes(from, cols), row_bytes(to, wide));
    Ok(CopyRowsEntry {
        src: from.ptr(),
        dst: to.ptr(),
        dims: [1, 1, rows],
        src_steps: [0, 0, row],
        dst_steps: [0, 0, out_row],
        src_bytes: row,
        dst_bytes: out_row,
    })
}
