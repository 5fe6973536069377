//! What the functions on rows of tokens share: checks of tensors and of running sums of lengths, and moves of
//! rows.
#![allow(unsafe_code)]

use crate::backend::{self, args::*};
use crate::check::{self, Memory};
use crate::device_check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Tensor, bytes};
use crate::types::NVTEDType::{self, *};
use crate::types::cudaStream_t;
use std::ffi::c_int;
use std::ptr::{null, null_mut};

/// Dtypes of tokens that are moved from one order to another.
pub(super) const TOKENS: &[NVTEDType] =
    &[kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3, kNVTEFloat8E5M2];

/// A tensor argument and its name.
pub(super) type Argument<'a> = (&'a str, &'a Tensor);

/// Row-wise data that must be there, of one of the dtypes (none: any).
pub(super) fn data<'a>((name, tensor): Argument<'a>, dtypes: &[NVTEDType]) -> Result<&'a Buffer> {
    let buffer = &tensor.rowwise;
    if !buffer.is_set() {
        return Err(Error::argument(format_args!("{name}.data"), "row-wise data", "no data"));
    }
    if !dtypes.is_empty() {
        check::dtype(name, buffer.dtype, dtypes)?;
    }
    check::pointer(format_args!("{name}.data"), buffer)?;
    Ok(buffer)
}

/// First tokens of sequences: the array and the number of sequences, of which there is one or more.
pub(super) fn sequences(argument: Argument) -> Result<(*const i32, usize)> {
    let buffer = data(argument, &[kNVTEInt32])?;
    match *buffer.shape.dims() {
        [length] if length > 1 => Ok((buffer.ptr().cast_const().cast(), length - 1)),
        _ => {
            let name = format_args!("{}.shape", argument.0);
            Err(Error::argument(name, "one dimension of 2 or more", buffer.shape))
        }
    }
}

/// First tokens of `sequences` sequences, and the end of the last; there may be more.
pub(super) fn running_sums(argument: Argument, sequences: usize) -> Result<*const i32> {
    let buffer = data(argument, &[kNVTEInt32])?;
    check_elements(argument.0, buffer, sequences + 1)?;
    Ok(buffer.ptr().cast_const().cast())
}

/// `NVTE_CHECK=device`: refuses sums of lengths that fall or end above `high`.
pub(super) fn check_sums(
    name: &str,
    sums: *const i32,
    sequences: usize,
    high: usize,
    stream: cudaStream_t,
) -> Result<()> {
    // SAFETY: the array has been checked to have an element more than there are sequences.
    match unsafe { device_check::read(name, sums, sequences + 1, stream) }? {
        Some(sums) => device_check::ascending(name, &sums, high as i64),
        None => Ok(()),
    }
}

/// Refuses an array of fewer than `least` elements.
pub(super) fn check_elements(name: &str, buffer: &Buffer, least: usize) -> Result<()> {
    if buffer.shape.numel() >= least {
        return Ok(());
    }
    let expected = format!("{least} elements or more");
    Err(Error::argument(format_args!("{name}.shape"), expected, buffer.shape))
}

pub(super) fn same_dtype(name: &str, got: &Buffer, like: &Buffer) -> Result<()> {
    check::dtype(name, got.dtype, &[like.dtype])
}

/// A number of C that must not be negative.
pub(super) fn count(name: &str, number: c_int) -> Result<usize> {
    usize::try_from(number).map_err(|_| Error::argument(name, "not negative", number))
}

/// A number of C that must be positive.
pub(super) fn positive(name: &str, number: c_int) -> Result<usize> {
    match count(name, number)? {
        0 => Err(Error::argument(name, "more than 0", number)),
        number => Ok(number),
    }
}

/// How many matrices of tokens `[.., tokens, heads, dim]` is, their tokens, and the elements of each.
pub(super) fn tokens(name: &str, buffer: &Buffer) -> Result<(usize, usize, usize)> {
    match *buffer.shape.dims() {
        [tokens, heads, dim] => Ok((1, tokens, heads * dim)),
        [outer, tokens, heads, dim] => Ok((outer, tokens, heads * dim)),
        _ => {
            let expected = "[tokens, heads, dim] or [2, tokens, heads, dim]";
            Err(Error::argument(format_args!("{name}.shape"), expected, buffer.shape))
        }
    }
}

/// Two tensors of the same shape and dtype with `total` rows.
pub(super) fn token_pair<'a>(
    src: Argument<'a>,
    dst: Argument<'a>,
    total: usize,
) -> Result<(&'a Buffer, &'a Buffer)> {
    let ((src_name, dst_name), src, dst) = ((src.0, dst.0), data(src, &[])?, data(dst, &[])?);
    if src.shape.dims().first() != Some(&total) {
        let expected = format!("[{total}, ...]");
        return Err(Error::argument(format_args!("{src_name}.shape"), expected, src.shape));
    }
    same_dtype(dst_name, dst, src)?;
    check::shape(dst_name, &dst.shape, &src.shape)?;
    apart((src_name, src), (dst_name, dst))?;
    Ok((src, dst))
}

pub(super) fn row_bytes(buffer: &Buffer, elements: usize) -> usize {
    bytes(elements, buffer.dtype)
}

/// Refuses to write what is read: threads would read what others have written.
pub(super) fn apart(src: (&str, &Buffer), dst: (&str, &Buffer)) -> Result<()> {
    check::apart(&[Memory::of(&src.0, src.1)], &[Memory::of(&dst.0, dst.1)])
}

impl MoveRowsArgs {
    /// A move of no rows.
    pub(super) const NONE: Self = Self {
        src: null(),
        dst: null_mut(),
        row_bytes: 0,
        rows: 0,
        outer: 1,
        src_outer: 0,
        dst_outer: 0,
        src_rows: 0,
        dst_rows: 0,
        cu: null(),
        cu_valid: null(),
        sequences: 0,
        index: 0,
        world: 1,
        length: 1,
        page_table: null(),
        pages: 0,
        page: 1,
        map: RowMap::NVTEX_ROWS_HALF,
    };
}

/// Moves rows, if there is anything to move.
pub(super) fn run_moves(args: &MoveRowsArgs, stream: cudaStream_t) -> Result<()> {
    match args.rows * args.outer * args.row_bytes {
        0 => Ok(()),
        _ => backend::run(args, stream),
    }
}
