//! What attention needs besides itself: layouts, configs and parameters, the helpers of packed
//! sequences, context parallelism and caches (spec attention 2, 9, 14 to 18).
#![allow(unsafe_code)]

pub mod attention;
pub(crate) mod cpu;
pub(crate) mod cpu_attention;
pub mod exports;
pub mod layout;
mod operand;
mod problem;

pub(crate) use exports::objects::{BWD, CONFIGS, FWD};

use crate::backend::{self, args::*};
use crate::check::{self, HIGH_PRECISION, Memory};
use crate::device_check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, from_c};
use crate::types::*;
use NVTE_QKV_Format::*;
use NVTEDType::*;
use layout::Layout;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null;

/// A handle that C++ passes by reference; C passes its address.
pub(crate) type NVTETensorReference = *const NVTETensor;

/// The handle behind a reference.
///
/// # Safety
/// `handle` is null or points to a handle.
unsafe fn referred(name: &str, handle: NVTETensorReference) -> Result<NVTETensor> {
    check::address(name, handle)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { handle.read() })
}

/// Row-wise data that must be there, of one of the dtypes (none: any).
fn data(name: &str, handle: NVTETensor, dtypes: &[NVTEDType]) -> Result<Buffer> {
    let buffer = check::tensor(name, handle)?.rowwise;
    if !buffer.is_set() {
        return Err(Error::argument(format_args!("{name}.data"), "row-wise data", "no data"));
    }
    if !dtypes.is_empty() {
        check::dtype(name, buffer.dtype, dtypes)?;
    }
    check::pointer(format_args!("{name}.data"), &buffer)?;
    Ok(buffer)
}

const TOKENS: &[NVTEDType] =
    &[kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3, kNVTEFloat8E5M2];

/// First tokens of sequences: the array and the number of sequences, of which there is one or more.
fn sequences(name: &str, handle: NVTETensor) -> Result<(*const i32, usize)> {
    let buffer = data(name, handle, &[kNVTEInt32])?;
    match *buffer.shape.dims() {
        [length] if length > 1 => Ok((buffer.ptr().cast_const().cast(), length - 1)),
        _ => Err(Error::argument(
            format_args!("{name}.shape"),
            "one dimension of 2 or more",
            buffer.shape,
        )),
    }
}

/// First tokens of `sequences` sequences, and the end of the last; there may be more.
fn running_sums(name: &str, handle: NVTETensor, sequences: usize) -> Result<*const i32> {
    let buffer = data(name, handle, &[kNVTEInt32])?;
    check_elements(name, &buffer, sequences + 1)?;
    Ok(buffer.ptr().cast_const().cast())
}

/// `NVTE_CHECK=device`: refuses sums of lengths that fall or end above `high`.
fn check_sums(
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
fn check_elements(name: &str, buffer: &Buffer, least: usize) -> Result<()> {
    if buffer.shape.numel() >= least {
        return Ok(());
    }
    let expected = format!("{least} elements or more");
    Err(Error::argument(format_args!("{name}.shape"), expected, buffer.shape))
}

fn same_dtype(name: &str, got: &Buffer, like: &Buffer) -> Result<()> {
    check::dtype(name, got.dtype, &[like.dtype])
}

fn count(name: &str, number: c_int) -> Result<usize> {
    usize::try_from(number).map_err(|_| Error::argument(name, "not negative", number))
}

fn positive(name: &str, number: c_int) -> Result<usize> {
    match count(name, number)? {
        0 => Err(Error::argument(name, "more than 0", number)),
        number => Ok(number),
    }
}

/// Tokens and the elements of each, of `[.., tokens, heads, dim]`, and how many matrices of them.
fn tokens(name: &str, buffer: &Buffer) -> Result<(usize, usize, usize)> {
    match *buffer.shape.dims() {
        [tokens, heads, dim] => Ok((1, tokens, heads * dim)),
        [outer, tokens, heads, dim] => Ok((outer, tokens, heads * dim)),
        _ => {
            let expected = "[tokens, heads, dim] or [2, tokens, heads, dim]";
            Err(Error::argument(format_args!("{name}.shape"), expected, buffer.shape))
        }
    }
}

fn row_bytes(buffer: &Buffer, elements: usize) -> usize {
    crate::tensor::bytes(elements, buffer.dtype)
}

const MOVE: MoveRowsArgs = MoveRowsArgs {
    src: null(),
    dst: std::ptr::null_mut(),
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

/// Refuses to write what is read: threads would read what others have written.
fn apart(src: (&str, &Buffer), dst: (&str, &Buffer)) -> Result<()> {
    check::apart(&[Memory::of(&src.0, src.1)], &[Memory::of(&dst.0, dst.1)])
}

fn run_moves(args: &MoveRowsArgs, stream: cudaStream_t) -> Result<()> {
    match args.rows * args.outer * args.row_bytes {
        0 => Ok(()),
        _ => backend::run(args, stream),
    }
}

/// # Safety
/// As [`referred`].
unsafe fn read_half(
    tensor: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    half: NVTETensor,
    half_idx: c_int,
    stream: cudaStream_t,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (tensor, cu_seqlens) =
        unsafe { (referred("tensor", tensor)?, referred("cu_seqlens", cu_seqlens)?) };
    let (src, dst) = (data("tensor", tensor, &[])?, data("half", half, &[])?);
    let (cu, sequences) = sequences("cu_seqlens", cu_seqlens)?;
    same_dtype("half", &dst, &src)?;
    let (outer, total, width) = tokens("tensor", &src)?;
    let mut expected: Vec<usize> = src.shape.dims().to_vec();
    let at = expected.len() - 3;
    expected[at] = total / 2;
    check::shape("half", &dst.shape, &Shape::new(&expected))?;
    if !(0..2).contains(&half_idx) {
        return Err(Error::argument("half_idx", "0 or 1", half_idx));
    }
    apart(("tensor", &src), ("half", &dst))?;
    check_sums("cu_seqlens", cu, sequences, total, stream)?;
    let args = MoveRowsArgs {
        src: src.ptr(),
        dst: dst.ptr(),
        row_bytes: row_bytes(&src, width),
        rows: total / 2,
        outer,
        src_outer: total,
        dst_outer: total / 2,
        src_rows: total,
        dst_rows: total / 2,
        cu,
        sequences,
        index: half_idx as usize,
        ..MOVE
    };
    run_moves(&args, stream)
}

/// What both functions on logarithms of halves check.
fn half_lse(
    (lse_name, lse): (&str, NVTETensor),
    (step_name, step): (&str, NVTETensor),
    cu_seqlens: NVTETensor,
    packed: bool,
    correct: bool,
    stream: cudaStream_t,
) -> Result<()> {
    let (lse, step) =
        (data(lse_name, lse, &[kNVTEFloat32])?, data(step_name, step, &[kNVTEFloat32])?);
    let (cu, sequences) = sequences("cu_seqlens", cu_seqlens)?;
    let sizes = lse_sizes((lse_name, &lse), (step_name, &step), (packed, true), sequences)?;
    apart((step_name, &step), (lse_name, &lse))?;
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

/// Handles of a correction of outputs.
struct OutCorrection {
    out: NVTETensor,
    out_per_step: NVTETensorReference,
    old_lse: NVTETensorReference,
    lse: NVTETensorReference,
    lse_per_step: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
}

/// # Safety
/// As [`referred`].
unsafe fn out_correction(
    handles: &OutCorrection,
    second_half: bool,
    packed: bool,
    stream: cudaStream_t,
) -> Result<()> {
    let get = |name, handle, dtypes| {
        // SAFETY: the caller's promise.
        data(name, unsafe { referred(name, handle) }?, dtypes)
    };
    let out = data("out", handles.out, HIGH_PRECISION)?;
    let step = get("out_per_step", handles.out_per_step, HIGH_PRECISION)?;
    let old_lse = get("old_lse", handles.old_lse, &[kNVTEFloat32])?;
    let lse = get("lse", handles.lse, &[kNVTEFloat32])?;
    let step_lse = get("lse_per_step", handles.lse_per_step, &[kNVTEFloat32])?;
    // SAFETY: the caller's promise.
    let (cu, sequences) =
        sequences("cu_seqlens", unsafe { referred("cu_seqlens", handles.cu_seqlens) }?)?;
    same_dtype("out_per_step", &step, &out)?;
    let &[total, heads, width] = out.shape.dims() else {
        return Err(Error::argument("out.shape", "[tokens, heads, dim]", out.shape));
    };
    let step_tokens = if second_half { total / 2 } else { total };
    check::shape("out_per_step", &step.shape, &Shape::new(&[step_tokens, heads, width]))?;
    check::shape("old_lse", &old_lse.shape, &lse.shape)?;
    let sizes =
        lse_sizes(("lse", &lse), ("lse_per_step", &step_lse), (packed, second_half), sequences)?;
    if sizes.heads != heads || (packed && sizes.lse_len < total) {
        let expected = format!("{heads} heads of {total} tokens or more");
        return Err(Error::argument("lse.shape", expected, lse.shape));
    }
    for (name, input) in
        [("out_per_step", &step), ("old_lse", &old_lse), ("lse", &lse), ("lse_per_step", &step_lse)]
    {
        apart((name, input), ("out", &out))?;
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

/// # Safety
/// `name` is null or a C string.
unsafe fn half_op(argument: &str, name: *const c_char) -> Result<HalfOp> {
    let expected = "\"add\", \"copy\", \"none\" or \"zero\"";
    if name.is_null() {
        return Err(Error::argument(argument, expected, "null"));
    }
    // SAFETY: the caller's promise.
    Ok(match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"add" => HalfOp::NVTEX_HALF_ADD,
        b"copy" => HalfOp::NVTEX_HALF_COPY,
        b"none" => HalfOp::NVTEX_HALF_NONE,
        b"zero" => HalfOp::NVTEX_HALF_ZERO,
        other => {
            return Err(Error::argument(argument, expected, String::from_utf8_lossy(other)));
        }
    })
}

/// # Safety
/// As [`referred`] and [`half_op`].
unsafe fn grad_correction(
    grad: NVTETensor,
    grad_per_step: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    (first_half, second_half): (*const c_char, *const c_char),
    stream: cudaStream_t,
) -> Result<()> {
    use HalfOp::*;
    // SAFETY: the caller's promise.
    let (step, cu_seqlens, first, second) = unsafe {
        (
            referred("grad_per_step", grad_per_step)?,
            referred("cu_seqlens", cu_seqlens)?,
            half_op("first_half", first_half)?,
            half_op("second_half", second_half)?,
        )
    };
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
    let (grad, step) = (data("grad", grad, dtypes)?, data("grad_per_step", step, dtypes)?);
    let (cu, sequences) = sequences("cu_seqlens", cu_seqlens)?;
    same_dtype("grad_per_step", &step, &grad)?;
    let (outer, total, width) = tokens("grad", &grad)?;
    let mut expected = grad.shape.dims().to_vec();
    let at = expected.len() - 3;
    expected[at] = if full { total } else { total / 2 };
    check::shape("grad_per_step", &step.shape, &Shape::new(&expected))?;
    apart(("grad_per_step", &step), ("grad", &grad))?;
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

/// Checks the ranks of context parallelism; tokens and ranks.
fn ranks(total_tokens: c_int, world_size: c_int) -> Result<(usize, usize)> {
    let world = positive("world_size", world_size)?;
    let total = positive("total_tokens", total_tokens)?;
    if !total.is_multiple_of(2 * world) {
        let expected = format!("a multiple of 2 * world_size ({})", 2 * world);
        return Err(Error::argument("total_tokens", expected, total));
    }
    Ok((total, world))
}

/// # Safety
/// As [`referred`].
unsafe fn partitioned_indices(
    cu_seqlens: NVTETensorReference,
    output: NVTETensor,
    (total_tokens, world_size, rank): (c_int, c_int, c_int),
    stream: cudaStream_t,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (cu, sequences) = sequences("cu_seqlens", unsafe { referred("cu_seqlens", cu_seqlens) }?)?;
    let (total, world) = ranks(total_tokens, world_size)?;
    if !(0..world_size).contains(&rank) {
        return Err(Error::argument("rank", format!("from 0 to {}", world - 1), rank));
    }
    let output = data("output", output, &[kNVTEInt32])?;
    check::shape("output", &output.shape, &Shape::new(&[total / world]))?;
    check_sums("cu_seqlens", cu, sequences, total, stream)?;
    let args = PartitionArgs {
        indices: output.ptr().cast(),
        cu,
        sequences,
        tokens: total / world,
        world,
        rank: rank as usize,
    };
    backend::run(&args, stream)
}

/// # Safety
/// As [`referred`].
unsafe fn reorder(
    inp: NVTETensorReference,
    cu_seqlens: NVTETensorReference,
    out: NVTETensor,
    (world_size, total_tokens): (c_int, c_int),
    map: RowMap,
    stream: cudaStream_t,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (inp, cu_seqlens) = unsafe { (referred("inp", inp)?, referred("cu_seqlens", cu_seqlens)?) };
    let (total, world) = ranks(total_tokens, world_size)?;
    let (src, dst) = token_pair(("inp", inp), ("out", out), total)?;
    let (cu, sequences) = sequences("cu_seqlens", cu_seqlens)?;
    check_sums("cu_seqlens", cu, sequences, total, stream)?;
    let args = MoveRowsArgs {
        src: src.ptr(),
        dst: dst.ptr(),
        row_bytes: row_bytes(&src, src.shape.numel() / total),
        rows: total,
        src_rows: total,
        dst_rows: total,
        cu,
        sequences,
        world,
        map,
        ..MOVE
    };
    run_moves(&args, stream)
}

/// Two tensors of the same shape and dtype with `total` rows.
fn token_pair(
    (src_name, src): (&str, NVTETensor),
    (dst_name, dst): (&str, NVTETensor),
    total: usize,
) -> Result<(Buffer, Buffer)> {
    let (src, dst) = (data(src_name, src, &[])?, data(dst_name, dst, &[])?);
    if src.shape.dims().first() != Some(&total) {
        let expected = format!("[{total}, ...]");
        return Err(Error::argument(format_args!("{src_name}.shape"), expected, src.shape));
    }
    same_dtype(dst_name, &dst, &src)?;
    check::shape(dst_name, &dst.shape, &src.shape)?;
    apart((src_name, &src), (dst_name, &dst))?;
    Ok((src, dst))
}

/// # Safety
/// As [`referred`].
unsafe fn copy_valid(
    inp: NVTETensorReference,
    (cu_padded, cu_valid): (NVTETensorReference, NVTETensorReference),
    out: NVTETensor,
    total_tokens: c_int,
    stream: cudaStream_t,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (inp, cu_padded, cu_valid) = unsafe {
        (
            referred("inp", inp)?,
            referred("cu_seqlens_padded", cu_padded)?,
            referred("cu_seqlens", cu_valid)?,
        )
    };
    let total = count("total_tokens", total_tokens)?;
    let (src, dst) = token_pair(("inp", inp), ("out", out), total)?;
    let (cu, padded) = sequences("cu_seqlens_padded", cu_padded)?;
    let (cu_valid, sequences) = sequences("cu_seqlens", cu_valid)?;
    if padded != sequences {
        let expected = format!("{} entries, as cu_seqlens", sequences + 1);
        return Err(Error::argument("cu_seqlens_padded.shape", expected, padded + 1));
    }
    check_sums("cu_seqlens_padded", cu, sequences, total, stream)?;
    check_sums("cu_seqlens", cu_valid, sequences, total, stream)?;
    let args = MoveRowsArgs {
        src: src.ptr(),
        dst: dst.ptr(),
        row_bytes: row_bytes(&src, src.shape.numel() / total.max(1)),
        rows: total,
        src_rows: total,
        dst_rows: total,
        cu,
        cu_valid,
        sequences,
        map: RowMap::NVTEX_ROWS_VALID,
        ..MOVE
    };
    run_moves(&args, stream)
}

/// Between packed tokens `[tokens, heads, dim]` and padded ones `[sequences, length, heads, dim]`.
fn convert(
    (packed_name, packed): (&str, NVTETensor),
    (padded_name, padded): (&str, NVTETensor),
    cu_seqlens: NVTETensor,
    map: RowMap,
    stream: cudaStream_t,
) -> Result<()> {
    let (packed, padded) = (data(packed_name, packed, TOKENS)?, data(padded_name, padded, TOKENS)?);
    same_dtype(padded_name, &padded, &packed)?;
    let &[b, length, heads, dim] = padded.shape.dims() else {
        let expected = "[sequences, length, heads, dim]";
        return Err(Error::argument(format_args!("{padded_name}.shape"), expected, padded.shape));
    };
    let tokens = match *packed.shape.dims() {
        [tokens, h, d] if (h, d) == (heads, dim) => tokens,
        _ => {
            let expected = format!("[tokens, {heads}, {dim}]");
            return Err(Error::argument(
                format_args!("{packed_name}.shape"),
                expected,
                packed.shape,
            ));
        }
    };
    let cu = running_sums("cu_seqlens", cu_seqlens, b)?;
    check_sums("cu_seqlens", cu, b, tokens, stream)?;
    let unpacks = map == RowMap::NVTEX_ROWS_UNPACK;
    let pair = [(packed_name, packed), (padded_name, padded)];
    let [(src_name, src), (dst_name, dst)] = if unpacks { pair } else { [pair[1], pair[0]] };
    apart((src_name, &src), (dst_name, &dst))?;
    let rows = b * length;
    let args = MoveRowsArgs {
        src: src.ptr(),
        dst: dst.ptr(),
        row_bytes: row_bytes(&src, heads * dim),
        rows,
        src_rows: if unpacks { tokens } else { rows },
        dst_rows: if unpacks { rows } else { tokens },
        cu,
        sequences: b,
        length,
        map,
        ..MOVE
    };
    run_moves(&args, stream)
}

/// Handles of a copy to a cache.
pub(crate) struct ToCache {
    pub new: [NVTETensor; 2],
    pub cache: [NVTETensor; 2],
    pub page_table: NVTETensor,
    pub cu_new_lens: NVTETensor,
    pub cu_cached_lens: NVTETensor,
}

/// Sizes of a copy to a cache, as the caller gives them.
pub(crate) struct CacheSizes {
    pub b: c_int,
    pub max_ctx_len: c_int,
    pub max_seq_len: c_int,
    pub max_pages_per_seq: c_int,
}

/// Elements of a token, of which a cache has `slots` pages or more, and new tokens the format; rows of the
/// new tokens, and pages of the cache.
fn token_elements(
    (new_name, new): (&str, &Buffer),
    (cache_name, cache): (&str, &Buffer),
    format: NVTE_QKV_Format,
    [b, context, page, slots]: [usize; 4],
) -> Result<[usize; 3]> {
    let (pages, heads, dim) = match *cache.shape.dims() {
        [pages, page_dim, heads, dim] if page_dim == page && pages >= slots => (pages, heads, dim),
        _ => {
            let expected = match slots {
                0 => format!("[pages, {page}, heads, dim]"),
                _ => format!("[{slots} (b) or more, {page}, heads, dim]"),
            };
            return Err(Error::argument(format_args!("{cache_name}.shape"), expected, cache.shape));
        }
    };
    let good = match (format, new.shape.dims()) {
        (NVTE_BSHD, &[n, s, h, d]) => (n, s, h, d) == (b, context, heads, dim),
        (NVTE_SBHD, &[s, n, h, d]) => (n, h, d) == (b, heads, dim) && s >= context,
        (NVTE_THD, &[_, h, d]) => (h, d) == (heads, dim),
        _ => false,
    };
    if good {
        let rows = match *new.shape.dims() {
            [first, second, _, _] => first * second,
            _ => new.shape.dims()[0],
        };
        return Ok([heads * dim, rows, pages]);
    }
    let expected = match format {
        NVTE_BSHD => format!("[{b}, {context} (max_ctx_len), {heads}, {dim}]"),
        NVTE_SBHD => format!("[{context} (max_ctx_len) or more, {b}, {heads}, {dim}]"),
        _ => format!("[tokens, {heads}, {dim}]"),
    };
    Err(Error::argument(format_args!("{new_name}.shape"), expected, new.shape))
}

pub(crate) fn copy_to_cache(
    handles: &ToCache,
    format: MaybeUninit<NVTE_QKV_Format>,
    sizes: &CacheSizes,
    paged: bool,
    stream: cudaStream_t,
) -> Result<()> {
    let all = [
        ("new_k", handles.new[0]),
        ("new_v", handles.new[1]),
        ("k_cache", handles.cache[0]),
        ("v_cache", handles.cache[1]),
    ];
    let mut buffers = [Buffer::UNSET; 4];
    for ((name, handle), buffer) in all.iter().zip(&mut buffers) {
        *buffer = check::tensor(name, *handle)?.rowwise;
    }
    if buffers.iter().any(|buffer| !buffer.is_set()) {
        return Ok(());
    }
    let format: NVTE_QKV_Format = from_c("qkv_format", format)?;
    if ![NVTE_BSHD, NVTE_SBHD, NVTE_THD].contains(&format) {
        let expected = "NVTE_SBHD, NVTE_BSHD or NVTE_THD";
        return Err(Error::argument("qkv_format", expected, format!("{format:?}")));
    }
    check::dtype("new_k", buffers[0].dtype, TOKENS)?;
    for ((name, _), buffer) in all.iter().zip(&buffers) {
        same_dtype(name, buffer, &buffers[0])?;
        check::pointer(format_args!("{name}.data"), buffer)?;
    }
    let b = positive("b", sizes.b)?;
    let context = count("max_ctx_len", sizes.max_ctx_len)?;
    let (longest, pages) = (
        positive("max_seq_len", sizes.max_seq_len)?,
        positive("max_pages_per_seq", sizes.max_pages_per_seq)?,
    );
    if !longest.is_multiple_of(pages) {
        let expected = format!("a multiple of max_pages_per_seq ({pages})");
        return Err(Error::argument("max_seq_len", expected, longest));
    }
    let page = longest / pages;
    let cu_new = running_sums("cu_new_lens", handles.cu_new_lens, b)?;
    let cu_cached = running_sums("cu_cached_lens", handles.cu_cached_lens, b)?;
    let table = data("page_table", handles.page_table, &[kNVTEInt32])?;
    check_elements("page_table", &table, if paged { b * pages } else { b })?;
    let table: *const i32 = table.ptr().cast_const().cast();
    let mut moves = [MOVE; 2];
    let mut slots = [0; 2];
    for (i, args) in moves.iter_mut().enumerate() {
        let (new, cache) = (&buffers[i], &buffers[2 + i]);
        let sizes = [b, context, page, if paged { 0 } else { b }];
        let [elements, new_rows, cache_pages] =
            token_elements((all[i].0, new), (all[2 + i].0, cache), format, sizes)?;
        apart((all[i].0, new), (all[2 + i].0, cache))?;
        slots[i] = cache_pages;
        *args = MoveRowsArgs {
            src: new.ptr(),
            dst: cache.ptr(),
            row_bytes: row_bytes(new, elements),
            rows: b * context,
            src_rows: new_rows,
            dst_rows: cache_pages * page,
            cu: cu_new,
            cu_valid: cu_cached,
            sequences: b,
            index: format as usize,
            length: context.max(1),
            page_table: if paged { table } else { null() },
            pages,
            page,
            map: RowMap::NVTEX_ROWS_TO_CACHE,
            ..MOVE
        };
    }
    check_sums("cu_new_lens", cu_new, b, moves[0].src_rows.min(moves[1].src_rows), stream)?;
    check_sums("cu_cached_lens", cu_cached, b, b * longest, stream)?;
    let slots_of_both = slots[0].min(slots[1]);
    check_slots((table, if paged { pages } else { 1 }, page), cu_cached, b, slots_of_both, stream)?;
    for (args, slots) in moves.iter().zip(slots) {
        if !paged && args.row_bytes > 0 {
            let reindex = ReindexCacheArgs {
                cache: args.dst,
                from: table,
                cu_new,
                cu_cached,
                sequences: b,
                slots,
                page,
                row_bytes: args.row_bytes,
            };
            backend::run(&reindex, stream)?;
        }
        run_moves(args, stream)?;
    }
    Ok(())
}

/// `NVTE_CHECK=device`: refuses page numbers, or slots that sequences come from, that a cache does not have.
fn check_slots(
    (table, per_sequence, page): (*const i32, usize, usize),
    cu_cached: *const i32,
    sequences: usize,
    slots: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let name = "page_table";
    // SAFETY: the arrays have been checked to have as many elements.
    let (table, sums) = unsafe {
        (
            device_check::read(name, table, sequences * per_sequence, stream)?,
            device_check::read("cu_cached_lens", cu_cached, sequences + 1, stream)?,
        )
    };
    let (Some(mut table), Some(sums)) = (table, sums) else { return Ok(()) };
    // What lies behind a sequence is not read and may be anything.
    for (row, pair) in table.chunks_mut(per_sequence).zip(sums.windows(2)) {
        let used = ((pair[1] - pair[0]) as usize).div_ceil(page);
        row.iter_mut().skip(used).for_each(|page| *page = 0);
    }
    device_check::in_range(name, &table, 0, slots as i64 - 1)
}

/// Copies all entries that are not empty.
fn run_copies(entries: &[CopyRowsEntry], stream: cudaStream_t) -> Result<()> {
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

fn halves(name: &str, handle: NVTETensor) -> Result<(Buffer, [usize; 4])> {
    let buffer = data(name, handle, &[kNVTEFloat16, kNVTEBFloat16])?;
    match *buffer.shape.dims() {
        [a, b, c, d] => Ok((buffer, [a, b, c, d])),
        _ => Err(Error::argument(format_args!("{name}.shape"), "4 dimensions", buffer.shape)),
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

fn prepare_forward(qkvi: NVTETensor, qkv: NVTETensor, stream: cudaStream_t) -> Result<()> {
    let (interleaved, [s, b, heads, dim]) = halves("qkvi", qkvi)?;
    let qkv = data("qkv", qkv, &[interleaved.dtype])?;
    check::shape("qkv", &qkv.shape, &Shape::new(&[3, b, s, heads, dim]))?;
    // The input's shape is that of the queries, which keys and values lie between.
    let whole = Memory::new(&"qkvi", interleaved.ptr(), qkv.bytes());
    check::apart(&[whole], &[Memory::of(&"qkv", &qkv)])?;
    let part = row_bytes(&qkv, b * s * heads * dim);
    let parts = [0, 1, 2].map(|c| qkv.ptr().cast::<u8>().wrapping_add(c * part).cast());
    interleave(&interleaved, parts, [s, b, heads, dim], false, stream)
}

fn prepare_backward(parts: [NVTETensor; 3], qkv: NVTETensor, stream: cudaStream_t) -> Result<()> {
    let (q, [b, s, heads, dim]) = halves("q", parts[0])?;
    let mut buffers = [q; 3];
    for (i, name) in [(1, "k"), (2, "v")] {
        buffers[i] = data(name, parts[i], &[q.dtype])?;
        check::shape(name, &buffers[i].shape, &q.shape)?;
    }
    let qkv = data("qkv", qkv, &[q.dtype])?;
    if qkv.shape.numel() != 3 * q.shape.numel() {
        let expected = format!("{} elements ([{s}, {b}, {heads}, 3, {dim}])", 3 * q.shape.numel());
        return Err(Error::argument("qkv.shape", expected, qkv.shape));
    }
    for (name, part) in ["q", "k", "v"].into_iter().zip(&buffers) {
        apart((name, part), ("qkv", &qkv))?;
    }
    interleave(&qkv, buffers.map(|part| part.ptr()), [s, b, heads, dim], true, stream)
}

/// Pairs of tensors of host arrays.
///
/// # Safety
/// The arrays are null or have `count` handles.
unsafe fn pairs(
    inputs: *const NVTETensor,
    outputs: *const NVTETensor,
    count: usize,
    pair: impl Fn(&str, Buffer, &str, Buffer) -> Result<CopyRowsEntry>,
) -> Result<Vec<CopyRowsEntry>> {
    check::array("inputs", inputs, ("num_tensors", count))?;
    check::array("outputs", outputs, ("num_tensors", count))?;
    let mut entries = Vec::new();
    for i in 0..count {
        // SAFETY: the caller's promise.
        let (input, output) = unsafe { (inputs.add(i).read(), outputs.add(i).read()) };
        let names = (format!("inputs[{i}]"), format!("outputs[{i}]"));
        let (from, to) = (data(&names.0, input, &[])?, data(&names.1, output, &[])?);
        same_dtype(&names.1, &to, &from)?;
        apart((&names.0, &from), (&names.1, &to))?;
        entries.push(pair(&names.0, from, &names.1, to)?);
    }
    Ok(entries)
}

fn transpose_to_bhsd(
    in_name: &str,
    from: Buffer,
    out_name: &str,
    to: Buffer,
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
    let (row, out_row) = (row_bytes(&from, dim), row_bytes(&to, wide));
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

fn pad_last_dim(in_name: &str, from: Buffer, out_name: &str, to: Buffer) -> Result<CopyRowsEntry> {
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
    let (row, out_row) = (row_bytes(&from, cols), row_bytes(&to, wide));
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

/// A pointer to device integers that must be there.
fn device_integers(name: &str, ptr: *const c_void, dtype: NVTEDType) -> Result<()> {
    check::raw_pointer(name, ptr.cast_mut(), 1, dtype).map(drop)
}

thread_local! {
    /// Where the random numbers of this thread's next call begin.
    static OFFSET: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
}

/// Fills the state of a generator, from the device or from values.
pub(crate) fn extract_seed_and_offset(
    args: &SeedArgs,
    on_device: bool,
    stream: cudaStream_t,
) -> Result<()> {
    device_integers("rng_state_ptr", args.state.cast_const().cast(), kNVTEInt64)?;
    if on_device {
        device_integers("seed_ptr", args.seed_at.cast(), kNVTEInt64)?;
        device_integers("offset_ptr", args.offset_at.cast(), kNVTEInt64)?;
    }
    backend::run(args, stream)
}

fn populate_rng_state(
    dst: *mut c_void,
    seed: *const c_void,
    (q_len, kv_len): (usize, usize),
    backend: MaybeUninit<NVTE_Fused_Attn_Backend>,
    stream: cudaStream_t,
) -> Result<()> {
    device_integers("rng_state_dst", dst, kNVTEInt64)?;
    device_integers("seed", seed, kNVTEInt64)?;
    // SAFETY: a C caller initialises all 4 bytes, whatever their value.
    let backend = unsafe { backend.as_ptr().cast::<i32>().read() };
    let step = match backend {
        _ if backend == NVTE_Fused_Attn_Backend::NVTE_F16_arbitrary_seqlen as i32 => 16,
        _ => q_len.wrapping_mul(kv_len).div_ceil(128) as i64,
    };
    let offset = OFFSET.get();
    let args =
        SeedArgs { state: dst.cast(), seed_at: seed.cast(), offset_at: null(), seed: 0, offset };
    backend::run(&args, stream)?;
    OFFSET.set(offset.wrapping_add(step));
    Ok(())
}

/// Sequences that are not empty: entries of `cu_seqlens` above 0.
fn runtime_num_segments(
    cu_seqlens: *const c_void,
    len: usize,
    stream: cudaStream_t,
) -> Result<u32> {
    if len == 0 {
        return Ok(0);
    }
    device_integers("cu_seqlens", cu_seqlens, kNVTEInt32)?;
    if u32::try_from(len).is_err() {
        return Err(Error::argument("len", "a number that fits into 32 bits", len));
    }
    // In pieces, so that a long array needs no copy of its length.
    const PIECE: usize = 1 << 12;
    let mut host = vec![0i32; len.min(PIECE)];
    let mut count = 0;
    for first in (0..len).step_by(PIECE) {
        let piece = PIECE.min(len - first);
        let from = cu_seqlens.wrapping_byte_add(4 * first);
        let to = host.as_mut_ptr().cast();
        backend::call("device_memcpy", |table| {
            let copy = table.device_memcpy?;
            // SAFETY: the host buffer has room; the caller vouches for the device's.
            Some(unsafe { copy(to, from, 4 * piece, CopyKind::NVTEX_COPY_TO_HOST, stream) })
        })?;
        backend::call("stream_synchronize", |table| {
            // SAFETY: the stream is the caller's.
            table.stream_synchronize.map(|entry| unsafe { entry(stream) })
        })?;
        count += host[..piece].iter().filter(|&&end| end > 0).count() as u32;
    }
    Ok(count)
}
