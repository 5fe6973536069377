//! Caches of keys and values.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;

/// What a handle of a cache of keys and values points to. Only the library knows what it is.
pub enum NVTEXKVCache_st {}

/// Handle of a cache of keys and values.
pub type NVTEXKVCache = *mut NVTEXKVCache_st;

/// Sizes of a cache of keys and values.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXKVCacheConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Most sequences at a time.
    pub max_batch_size: usize,
    /// Most tokens of a sequence.
    pub max_sequence_length: usize,
    /// Tokens of a page, a divisor of `max_sequence_length`. 0 (default): each sequence has one
    /// contiguous piece of memory for all its tokens.
    pub page_size: usize,
    /// Pages of all sequences together. 0 (default): enough for all of `max_sequence_length`.
    pub num_pages: usize,
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_kv_cache_config_init(
    config: *mut NVTEXKVCacheConfig,
    struct_size: usize,
) {
    guard("nvtex_kv_cache_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXKVCacheConfig::default()) }
    });
}

/// Creates a cache of keys and values for passes of `nvtex_module_forward` without a tape: text is read
/// in pieces of any length and written token by token.
///
/// One cache serves all attentions of its context; each gets its memory, for `num_pages * page_size`
/// tokens, in its first pass. A causal mask is aligned to the bottom right of a sequence; other masks
/// let all of its tokens count.
///
/// The lengths of the sequences and their pages are also on the device, where passes read them. So a
/// pass may be captured in a graph, and replayed after each `nvtex_kv_cache_step` with the same `batch`
/// and no longer pieces, with a contiguous cache until `nvtex_kv_cache_reorder` is called.
///
/// Errors: sizes that are 0 or do not go together.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_kv_cache_create(
    context: NVTEXContext,
    config: *const NVTEXKVCacheConfig,
    stream: cudaStream_t,
) -> NVTEXKVCache {
    // SAFETY: the caller vouches for the config.
    guard("nvtex_kv_cache_create", || unsafe { create(context, config, stream) }).0
}

/// Destroys a cache. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_kv_cache_destroy(cache: NVTEXKVCache) {
    guard("nvtex_kv_cache_destroy", || destroy(&KV_CACHES, "cache", cache));
}

/// Begins a step, before its passes: sequence i gets `new_tokens[i]` tokens (0 or more) behind those
/// that it has.
///
/// Sequences that are not there yet begin empty. Sequences from `batch` on get none in this step. The
/// call must not be captured in a graph.
///
/// Errors: more than `max_sequence_length` tokens; more pages than are free. Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_kv_cache_step(
    cache: NVTEXKVCache,
    new_tokens: *const usize,
    batch: usize,
    stream: cudaStream_t,
) {
    // SAFETY: the caller vouches for the array.
    guard("nvtex_kv_cache_step", || unsafe { step(cache, (new_tokens, batch), stream) });
}

/// Returns the tokens of a sequence, with those of the current step; 0 for one that is not there.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_kv_cache_length(cache: NVTEXKVCache, sequence: usize) -> usize {
    guard("nvtex_kv_cache_length", || Ok(open(&KV_CACHES, "cache", cache)?.length(sequence)))
}

/// Forgets the tokens of a sequence from `length` on; 0 makes room for another sequence. Errors: the
/// sequence has fewer tokens.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_kv_cache_truncate(
    cache: NVTEXKVCache,
    sequence: usize,
    length: usize,
) {
    guard("nvtex_kv_cache_truncate", || {
        open(&KV_CACHES, "cache", cache)?.truncate(sequence, length)
    });
}

/// Makes sequence i what sequence `from[i]` was, or empty for -1; there are `count` sequences then. A
/// sequence that goes to several places has its pages copied; others only change their tables.
///
/// Errors: no such sequence; not enough pages for the copies. Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_kv_cache_reorder(
    cache: NVTEXKVCache,
    from: *const i64,
    count: usize,
    stream: cudaStream_t,
) {
    // SAFETY: the caller vouches for the array.
    guard("nvtex_kv_cache_reorder", || unsafe { reorder(cache, (from, count), stream) });
}

config!(NVTEXKVCacheConfig {
    struct_size,
    max_batch_size,
    max_sequence_length,
    page_size,
    num_pages
});

impl Default for NVTEXKVCacheConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            max_batch_size: 0,
            max_sequence_length: 0,
            page_size: 0,
            num_pages: 0,
        }
    }
}

/// # Safety
/// As [`read_config`].
pub(super) unsafe fn create(
    context: NVTEXContext,
    config: *const NVTEXKVCacheConfig,
    stream: cudaStream_t,
) -> Result<Handle<NVTEXKVCache_st>> {
    let context = open(&CONTEXTS, "context", context)?;
    // SAFETY: the caller vouches for the config.
    let config = unsafe { read_config("config", config) }?;
    let (batch, length) = (config.max_batch_size, config.max_sequence_length);
    for (field, size) in [("max_batch_size", batch), ("max_sequence_length", length)] {
        if size == 0 || size > 1 << 24 {
            return Err(Error::argument(format!("config.{field}"), "1 to 2^24", size));
        }
    }
    if batch * length > 1 << 30 {
        let expected = "at most 2^30 tokens (max_batch_size * max_sequence_length)";
        return Err(Error::argument("config.max_sequence_length", expected, batch * length));
    }
    let page = if config.page_size == 0 { length } else { config.page_size };
    if page > length || !length.is_multiple_of(page) {
        let expected = format!("0 or a divisor of max_sequence_length ({length})");
        return Err(Error::argument("config.page_size", expected, page));
    }
    let enough = batch * (length / page);
    let pages = if config.num_pages == 0 { enough } else { config.num_pages };
    let least = if page == length { enough } else { 1 };
    if pages < least || pages > enough {
        let expected = format!("0 or {least} to {enough} (all sequences)");
        return Err(Error::argument("config.num_pages", expected, pages));
    }
    let config = CacheConfig { max_batch: batch, max_length: length, page, pages };
    let cache = KvCache::new(&Run::outside(&context, stream), config)?;
    Ok(Handle(KV_CACHES.insert(Arc::new(cache))?))
}

/// # Safety
/// The array has as many numbers as it says.
pub(super) unsafe fn step(
    cache: NVTEXKVCache,
    (new_tokens, batch): (*const usize, usize),
    stream: cudaStream_t,
) -> Result<()> {
    let cache = open(&KV_CACHES, "cache", cache)?;
    cache.check_batch(batch)?;
    // SAFETY: the caller vouches for the array.
    let new = unsafe { array("new_tokens", new_tokens, ("batch", batch)) }?;
    cache.step(&new, stream)
}

/// # Safety
/// The array has as many numbers as it says.
pub(super) unsafe fn reorder(
    cache: NVTEXKVCache,
    (from, count): (*const i64, usize),
    stream: cudaStream_t,
) -> Result<()> {
    let cache = open(&KV_CACHES, "cache", cache)?;
    let mut sources = Vec::new();
    // SAFETY: the caller vouches for the array.
    for (i, source) in unsafe { array("from", from, ("count", count)) }?.into_iter().enumerate() {
        sources.push(match usize::try_from(source) {
            Ok(source) => Some(source),
            Err(_) if source == -1 => None,
            Err(_) => {
                return Err(Error::argument(format!("from[{i}]"), "a sequence, or -1", source));
            }
        });
    }
    cache.reorder(&sources, stream)
}

/// The cache of a step.
pub(super) fn of_step(
    context: &Arc<Context>,
    handle: NVTEXKVCache,
    training: bool,
) -> Result<Option<Arc<KvCache>>> {
    if handle.is_null() {
        return Ok(None);
    }
    let cache = open(&KV_CACHES, "step.kv_cache", handle)?;
    if !cache.is_of(context) {
        let expected = "a cache of the module's context";
        return Err(Error::argument("step.kv_cache", expected, "a cache of another context"));
    }
    if training {
        let expected = "null (a tape is asked for)";
        return Err(Error::argument("step.kv_cache", expected, "a cache"));
    }
    Ok(Some(cache))
}
