//! What C sees of caches of keys and values: handles and the checks of their sizes.

use super::*;

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
) -> Result<Handle<c_void>> {
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
        return Err(Error::argument("step.kv_cache", expected, "that of another context"));
    }
    if training {
        let expected = "null (a tape is asked for)";
        return Err(Error::argument("step.kv_cache", expected, "a cache"));
    }
    Ok(Some(cache))
}
