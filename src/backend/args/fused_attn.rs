//! What surrounds attention: rows moved, corrections of parts, seeds.

use super::operator::operator;
use crate::types::NVTEDType;
use std::ffi::c_void;

/// What rows a [`MoveRowsArgs`] moves. `s` is the sequence of token t: `cu[s] <= t < cu[s + 1]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowMap {
    /// Row t of `dst` is the row of the first (`index` 0) or second (1) half of its sequence, for
    /// `c = cu / 2`: `dst[t] = src[t + c[s + index]]`.
    NVTEX_ROWS_HALF = 0,
    /// `dst[i] = src[j]` with token j of rank `i / (rows / world)`, see [`PartitionArgs`].
    NVTEX_ROWS_TO_RANKS = 1,
    /// `dst[j] = src[i]`, the inverse of NVTEX_ROWS_TO_RANKS.
    NVTEX_ROWS_FROM_RANKS = 2,
    /// `dst[t] = src[t]` for the first `cu_valid[s + 1] - cu_valid[s]` tokens of each sequence.
    NVTEX_ROWS_VALID = 3,
    /// Row i is token `i % length` of sequence `i / length` in dst, packed in src.
    NVTEX_ROWS_UNPACK = 4,
    /// The inverse of NVTEX_ROWS_UNPACK.
    NVTEX_ROWS_PACK = 5,
    /// Token n of the new ones of sequence s (`cu`), row i = s `length` + n: to its place in a cache, where
    /// `cu_valid` counts cached and new tokens together. In src it is row `i` (`index`
    /// `NVTE_BSHD`), `n sequences + s` (`NVTE_SBHD`) or `cu[s] + n` (`NVTE_THD`). Token p of a sequence lies
    /// on page `page_table[s pages + p / page]`, or with a null table on page s.
    NVTEX_ROWS_TO_CACHE = 6,
}

/// Moves rows of bytes between places that sequences on the device determine. A row whose place in src or
/// dst would lie outside of them, or whose entry outside of the page table, does not move.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MoveRowsArgs {
    pub src: *const c_void,
    pub dst: *mut c_void,
    pub row_bytes: usize,
    /// Rows of the map: of dst, or of the padded side.
    pub rows: usize,
    /// The map is applied to `outer` matrices, `src_outer` and `dst_outer` rows apart.
    pub outer: usize,
    pub src_outer: usize,
    pub dst_outer: usize,
    /// Rows that each matrix of src and of dst has.
    pub src_rows: usize,
    pub dst_rows: usize,
    /// `sequences + 1` first tokens.
    pub cu: *const i32,
    pub cu_valid: *const i32,
    pub sequences: usize,
    pub index: usize,
    pub world: usize,
    pub length: usize,
    pub page_table: *const i32,
    pub pages: usize,
    pub page: usize,
    pub map: RowMap,
}

operator! {
    move_rows(MoveRowsArgs) version 1 minor 0; |a|
    variants a.map as u32 => [half, to_ranks, from_ranks, valid, unpack, pack, to_cache];
    features { PAGED = a.page_table }
}

/// Moves the sequences of a cache `[slots, page, ...]` to the front: for i from 0 to n, ascending, the first
/// `cached - new` tokens of slot `from[i]` become those of slot i. n is the position after the last
/// descent of `from`, or `sequences`. Nothing moves where `from[0]` is 0 and `from[i]` is i, nor from a slot
/// that the cache does not have.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReindexCacheArgs {
    pub cache: *mut c_void,
    pub from: *const i32,
    pub cu_new: *const i32,
    pub cu_cached: *const i32,
    /// At most `slots`.
    pub sequences: usize,
    pub slots: usize,
    pub page: usize,
    pub row_bytes: usize,
}

operator! {
    reindex_cache(ReindexCacheArgs) version 1 minor 0; |a|
}

/// What a correction does to a half of each sequence.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfOp {
    NVTEX_HALF_NONE = 0,
    NVTEX_HALF_COPY = 1,
    NVTEX_HALF_ADD = 2,
    NVTEX_HALF_ZERO = 3,
}

/// `grad[t] op= step[u]` by halves of sequences; u is t if `full`, else t counted in halves. Nothing happens
/// to t if step has no row u that is needed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradCorrectionArgs {
    pub grad: *mut c_void,
    pub step: *const c_void,
    pub cu: *const i32,
    pub sequences: usize,
    /// Tokens of grad; step has as many if `full`, else half.
    pub tokens: usize,
    /// Elements of a token.
    pub width: usize,
    /// Matrices of tokens that follow each other.
    pub outer: usize,
    /// F32, F16 or BF16; Byte without additions.
    pub dtype: NVTEDType,
    pub first: HalfOp,
    pub second: HalfOp,
    pub full: bool,
}

operator! {
    grad_correction(GradCorrectionArgs) version 1 minor 0; |a|
    dtypes a.dtype;
    features { FULL = a.full }
}

/// Logarithms of sums of exponentials `[heads, len]` (packed) or `[sequences, heads, len]`: those of the
/// second half of each sequence, with `c = cu / 2` and t from 0 to `c[sequences]`.
///
/// Packed: position `t + c[s + 1]` of lse belongs to t of step; else `r + c[s + 1] - c[s]` to
/// `r = t - c[s]`. Read: `step = lse`. Correct: `lse = log(exp(lse) + exp(step))`. Positions past
/// `lse_len` or `step_len` are left out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HalfLseArgs {
    pub lse: *mut f32,
    pub step: *mut f32,
    pub cu: *const i32,
    pub sequences: usize,
    pub heads: usize,
    pub lse_len: usize,
    pub step_len: usize,
    pub packed: bool,
    pub correct: bool,
}

operator! {
    half_lse(HalfLseArgs) version 1 minor 0; |a|
    variants u32::from(a.correct) => [read, correct];
    features { PACKED = a.packed }
}

/// `out = out exp(old_lse - lse) + step exp(step_lse - lse)` for tokens `[tokens, heads, width]`, where
/// a zero element contributes 0 whatever its factor. With `second_half` step has the second halves of the
/// sequences. Tokens without a place in out or in the logarithms are left out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OutCorrectionArgs {
    pub out: *mut c_void,
    pub step: *const c_void,
    pub old_lse: *const f32,
    pub lse: *const f32,
    pub step_lse: *const f32,
    pub cu: *const i32,
    pub sequences: usize,
    /// Tokens of step, and of out.
    pub tokens: usize,
    pub out_tokens: usize,
    pub heads: usize,
    pub width: usize,
    /// As in [`HalfLseArgs`].
    pub lse_len: usize,
    pub step_len: usize,
    /// F32, F16 or BF16.
    pub dtype: NVTEDType,
    pub second_half: bool,
    pub packed: bool,
}

operator! {
    out_correction(OutCorrectionArgs) version 1 minor 0; |a|
    dtypes a.dtype;
    features { SECOND_HALF = a.second_half, PACKED = a.packed }
}

/// Joins the attention of some queries to other keys with what there is: with `l = log(exp(lse) + exp(step_lse))`,
/// `out = out exp(lse - l) + step exp(step_lse - l)` in float32, then `lse = l`. `first`: there is nothing yet, and both
/// are copied. A logarithm of -Inf contributes 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MergeAttentionArgs {
    /// `[tokens, heads, width]`
    pub out: *mut f32,
    /// `[heads, tokens]`
    pub lse: *mut f32,
    /// As `out`.
    pub step: *const c_void,
    /// As `lse`.
    pub step_lse: *const f32,
    pub tokens: usize,
    pub heads: usize,
    pub width: usize,
    /// F32, F16 or BF16, of step.
    pub dtype: NVTEDType,
    pub first: bool,
}

operator! {
    merge_attention(MergeAttentionArgs) version 1 minor 0; |a|
    dtypes a.dtype;
    features { FIRST = a.first }
}

/// Tokens of a rank: each sequence (`e = cu / world`, `L = e[s + 1] - e[s]` tokens for each rank) is cut
/// into `2 world` chunks, of which rank k has chunk k and the k-th from the end.
/// Token i of the rank, `r = i - e[s]`, is token
/// `r + e[s] world + (L / 2) (r < L / 2 ? k : 2 (world - 1) - k)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartitionArgs {
    pub indices: *mut i32,
    pub cu: *const i32,
    pub sequences: usize,
    /// Tokens of a rank.
    pub tokens: usize,
    pub world: usize,
    pub rank: usize,
}

operator! {
    partition(PartitionArgs) version 1 minor 0; |a|
}

/// How many tokens some chunks of packed sequences have, and where these begin in a tensor that has parts of the sequences.
/// Sequence s has room for `starts[s + 1] - starts[s]` tokens, which are cut into `chunks` chunks of c, and has
/// `cu[s + 1] - cu[s]` tokens. Those of the chunks in both ranges are counted, running sums are written to `lengths`, and
/// `starts[s] / divisor + skipped c` to `firsts`; its last element is `starts[sequences] / divisor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChunkLengthsArgs {
    /// `[sequences + 1]`, as the other arrays.
    pub cu: *const i32,
    pub starts: *const i32,
    pub lengths: *mut i32,
    pub firsts: *mut i32,
    pub sequences: usize,
    pub chunks: usize,
    /// The first chunk of a range, and the one behind the last.
    pub range: [usize; 2],
    pub other_range: [usize; 2],
    pub divisor: usize,
    pub skipped: usize,
}

operator! {
    chunk_lengths(ChunkLengthsArgs) version 1 minor 0; |a|
}

/// `state = {seed, offset}`, of which each is a value, or a value added to one on the device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SeedArgs {
    pub state: *mut i64,
    pub seed_at: *const i64,
    pub offset_at: *const i64,
    pub seed: i64,
    pub offset: i64,
}

operator! {
    seed(SeedArgs) version 1 minor 0; |a|
    features { SEED_AT = a.seed_at, OFFSET_AT = a.offset_at }
}

/// One matrix of rows of a [`CopyRowsArgs`], with up to three dimensions of rows; steps in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyRowsEntry {
    pub src: *const c_void,
    pub dst: *mut c_void,
    pub dims: [usize; 3],
    pub src_steps: [usize; 3],
    pub dst_steps: [usize; 3],
    pub src_bytes: usize,
    /// Not less than `src_bytes`; the bytes beyond become zeros.
    pub dst_bytes: usize,
}

/// Copies rows from one order to another.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyRowsArgs {
    /// Array on the host, without empty entries.
    pub entries: *const CopyRowsEntry,
    pub num_entries: usize,
}

operator! {
    copy_rows(CopyRowsArgs) version 1 minor 0; |a|
}
