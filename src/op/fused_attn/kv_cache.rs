//! Keys and values of earlier tokens: new ones go to their places on the pages of a cache (spec attention 18).
#![allow(unsafe_code)]

use super::rows::*;
use crate::backend::{self, args::*};
use crate::check;
use crate::device_check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Tensor};
use crate::types::NVTE_QKV_Format::{self, *};
use crate::types::NVTEDType::*;
use crate::types::cudaStream_t;
use std::ptr::null;

/// A copy of new keys and values to a cache.
pub struct ToCache<'a> {
    /// New keys and values.
    pub new: [&'a Tensor; 2],
    pub cache: [&'a Tensor; 2],
    pub page_table: &'a Tensor,
    pub cu_new_lens: &'a Tensor,
    pub cu_cached_lens: &'a Tensor,
    /// The number of sequences.
    pub batch: usize,
    /// Tokens of a sequence that the new keys and values have room for.
    pub max_new: usize,
    /// Tokens and pages of a sequence in the cache.
    pub max_length: usize,
    pub max_pages: usize,
    /// Without pages, sequence i lies in slot i, and the page table says in which slot it was before.
    pub paged: bool,
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
        (NVTE_BSHD, &[n, s, h, d]) => n >= b && (s, h, d) == (context, heads, dim),
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
        NVTE_BSHD => format!("[{b} or more, {context} (max_ctx_len), {heads}, {dim}]"),
        NVTE_SBHD => format!("[{context} (max_ctx_len) or more, {b}, {heads}, {dim}]"),
        _ => format!("[tokens, {heads}, {dim}]"),
    };
    Err(Error::argument(format_args!("{new_name}.shape"), expected, new.shape))
}

/// Copies the keys and values of new tokens, which lie in `format`, to their places.
pub fn copy_to_cache(copy: &ToCache, format: NVTE_QKV_Format, stream: cudaStream_t) -> Result<()> {
    if ![NVTE_BSHD, NVTE_SBHD, NVTE_THD].contains(&format) {
        let expected = "NVTE_SBHD, NVTE_BSHD or NVTE_THD";
        return Err(Error::argument("qkv_format", expected, format!("{format:?}")));
    }
    let (b, context, paged) = (copy.batch, copy.max_new, copy.paged);
    let (longest, pages) = (copy.max_length, copy.max_pages);
    let all = [
        ("new_k", &copy.new[0].rowwise),
        ("new_v", &copy.new[1].rowwise),
        ("k_cache", &copy.cache[0].rowwise),
        ("v_cache", &copy.cache[1].rowwise),
    ];
    check::dtype("new_k", all[0].1.dtype, TOKENS)?;
    for (name, buffer) in all {
        same_dtype(name, buffer, all[0].1)?;
        check::pointer(format_args!("{name}.data"), buffer)?;
    }
    if !longest.is_multiple_of(pages) {
        let expected = format!("a multiple of max_pages_per_seq ({pages})");
        return Err(Error::argument("max_seq_len", expected, longest));
    }
    let page = longest / pages;
    let cu_new = running_sums(("cu_new_lens", copy.cu_new_lens), b)?;
    let cu_cached = running_sums(("cu_cached_lens", copy.cu_cached_lens), b)?;
    let table = data(("page_table", copy.page_table), &[kNVTEInt32])?;
    check_elements("page_table", table, if paged { b * pages } else { b })?;
    let table: *const i32 = table.ptr().cast_const().cast();
    let mut moves = [MoveRowsArgs::NONE; 2];
    let mut slots = [0; 2];
    for (i, args) in moves.iter_mut().enumerate() {
        let ((new_name, new), (cache_name, cache)) = (all[i], all[2 + i]);
        let sizes = [b, context, page, if paged { 0 } else { b }];
        let [elements, new_rows, cache_pages] =
            token_elements((new_name, new), (cache_name, cache), format, sizes)?;
        // Packed tokens have no room for each sequence, and callers pass any `max_ctx_len`.
        let context = if format == NVTE_THD { longest.min(new_rows) } else { context };
        apart((new_name, new), (cache_name, cache))?;
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
            ..MoveRowsArgs::NONE
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
    // Entries past the end of a sequence are not read and may be anything.
    for (row, pair) in table.chunks_mut(per_sequence).zip(sums.windows(2)) {
        let used = ((pair[1] - pair[0]) as usize).div_ceil(page);
        row.iter_mut().skip(used).for_each(|page| *page = 0);
    }
    device_check::in_range(name, &table, 0, slots as i64 - 1)
}
