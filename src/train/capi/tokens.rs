//! Batches of tokens from files.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;
use crate::nn::memory::host_room;
use crate::parallel::exports::NVTEXGridGroup::{NVTEX_GRID_CP, NVTEX_GRID_DP};
use crate::parallel::exports::{GRIDS, NVTEXGrid};
use crate::parallel::grid::Grid;

/// What a handle of a token loader points to. Only the library knows what it is.
pub enum NVTEXTokenLoader_st {}

/// Handle of a token loader.
pub type NVTEXTokenLoader = *mut NVTEXTokenLoader_st;

/// Which tokens a loader gives out, and in which order.
///
/// Each file is divided into windows of `sequence` tokens, one behind the other from its first token on; a window is
/// given out with the token that follows it. Row r of batch number n of a rank is the window at the place
/// `n * batch * world + rank * batch + r` of an epoch, and windows that do not fill a batch for every rank are left
/// out. An epoch has the windows in the order of the files, or by a permutation that follows from seed and epoch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXTokenLoaderConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Files of nothing but tokens, little-endian.
    pub paths: *const *const c_char,
    pub num_paths: usize,
    /// Bytes of a token: 1, 2 (default) or 4.
    pub token_bytes: usize,
    /// Rows of a batch, of this rank; with `grid` of all ranks together.
    pub batch: usize,
    /// Tokens of a window.
    pub sequence: usize,
    /// Default: true.
    pub shuffle: MaybeUninit<bool>,
    pub seed: u64,
    /// The number of this rank, and of all. With `grid` they stay as they are.
    pub rank: usize,
    pub world: usize,
    /// Tokens must be less than this number. 0 (default): any.
    pub vocabulary: usize,
    /// A grid, or null (default). Its groups NVTEX_GRID_DP divide each batch, and its groups NVTEX_GRID_CP each row:
    /// what goes to the device is the part of this rank, as `nvtex_context_parallel_split` makes it. The loader reads
    /// the grid when it is created.
    pub grid: NVTEXGrid,
}

/// Where a loader is. It may be kept, and given to a loader of the same files and the same config, but for the rank.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXTokenPosition {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    /// Batches that each rank has been given so far.
    pub batches: u64,
    /// What the loader must be like: windows, seed, tokens of a window, and rows of all ranks together.
    pub windows: u64,
    pub seed: u64,
    pub sequence: u64,
    pub rows: u64,
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_token_loader_config_init(
    config: *mut NVTEXTokenLoaderConfig,
    struct_size: usize,
) {
    guard("nvtex_token_loader_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXTokenLoaderConfig::default()) }
    });
}

/// Creates a loader. Destroy it with `nvtex_token_loader_destroy`.
///
/// Errors: files that cannot be opened (`NVTEX_DEVICE_ERROR`), or end within a token; fewer windows than one batch for
/// every rank; numbers out of their range. Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_token_loader_create(
    config: *const NVTEXTokenLoaderConfig,
) -> NVTEXTokenLoader {
    guard("nvtex_token_loader_create", || {
        // SAFETY: the caller vouches for config and arrays.
        let loader = TokenLoader::new(unsafe { settings(config) }?)?;
        Ok(Handle(LOADERS.insert(Arc::new(Mutex::new(loader)))?))
    })
    .0
}

/// Destroys a loader. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_token_loader_destroy(loader: NVTEXTokenLoader) {
    guard("nvtex_token_loader_destroy", || match loader.is_null() {
        true => Ok(()),
        false => LOADERS.remove("loader", loader),
    });
}

/// Returns the batches of each rank in an epoch.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_token_loader_epoch_batches(loader: NVTEXTokenLoader) -> usize {
    guard("nvtex_token_loader_epoch_batches", || {
        with(loader, |loader| Ok(loader.batches_in_epoch() as usize))
    })
}

/// Writes the next batch to the host: `[batch, sequence + 1]`, of which the first `sequence` tokens of a row are inputs
/// and the last `sequence` targets.
///
/// Errors: a `count` that is not `batch * (sequence + 1)`; a file that cannot be read or has become shorter; tokens out
/// of range. The loader stays where it is then.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_token_loader_next(
    loader: NVTEXTokenLoader,
    tokens: *mut i32,
    count: usize,
) {
    guard("nvtex_token_loader_next", || {
        with(loader, |loader| {
            let expected = loader.settings().batch * (loader.settings().sequence + 1);
            if count != expected {
                return Err(Error::argument("count", expected, count));
            }
            check::array("tokens", tokens, ("count", count))?;
            let batch = loader.next()?;
            // SAFETY: the caller vouches for the array.
            unsafe { std::ptr::copy_nonoverlapping(batch.as_ptr(), tokens, count) };
            Ok(())
        })
    });
}

/// Copies the next batch to the device: inputs and targets, each `[batch, sequence]`, Int32 or Int64. With a grid these
/// are the rows and columns of this rank, `[batch / dp, sequence / cp]`. The copies are on the stream; a captured graph
/// that reads the tensors sees the new batch when it is replayed afterwards.
///
/// Errors: as `nvtex_token_loader_next`; other shapes and dtypes; a stream that is being captured.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_token_loader_next_on_device(
    loader: NVTEXTokenLoader,
    inputs: NVTETensor,
    targets: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvtex_token_loader_next_on_device", || {
        let inputs = check::rowwise("inputs", inputs)?;
        let targets = check::rowwise("targets", targets)?;
        with(loader, |loader| {
            for (name, tensor) in [("inputs", &inputs), ("targets", &targets)] {
                check_part(name, tensor, loader.settings(), stream)?;
            }
            let columns = loader.settings().columns();
            let tokens = loader.next()?;
            for (buffer, first) in [(&inputs, 0), (&targets, 1)] {
                let rows = tokens.chunks_exact(loader.settings().sequence + 1);
                let part = rows.flat_map(|row| columns.iter().map(move |&at| row[at + first]));
                write_part(buffer, part, stream)?;
            }
            Ok(())
        })
    });
}

/// Writes the place in its row of each token that `nvtex_token_loader_next_on_device` copies: the second input of an
/// embedding with a table of positions, which counts them itself where rows are not divided. They are the same for every
/// batch.
///
/// Shapes and dtypes: as `nvtex_token_loader_next_on_device`. Errors: other ones; a stream that is being captured.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_token_loader_positions(
    loader: NVTEXTokenLoader,
    positions: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvtex_token_loader_positions", || {
        let positions = check::rowwise("positions", positions)?;
        with(loader, |loader| {
            let settings = loader.settings();
            check_part("positions", &positions, settings, stream)?;
            let columns = settings.columns();
            let part = (0..settings.batch).flat_map(|_| columns.iter().map(|&at| at as i32));
            write_part(&positions, part, stream)
        })
    });
}

/// Tells where a loader is.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_token_loader_position(
    loader: NVTEXTokenLoader,
    position: *mut NVTEXTokenPosition,
) {
    guard("nvtex_token_loader_position", || {
        with(loader, |loader| {
            // SAFETY: the caller vouches for the struct.
            let struct_size = unsafe { size_of_answer("position", position) }?;
            let Position { batches, windows, seed, sequence, rows } = loader.position();
            let answer = NVTEXTokenPosition { struct_size, batches, windows, seed, sequence, rows };
            // SAFETY: the caller vouches for the bytes.
            unsafe { write_config(position, struct_size, &answer) }
        })
    });
}

/// Goes to a position: the next batch is the one that follows it. Errors: the position of a loader of other data.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_token_loader_seek(
    loader: NVTEXTokenLoader,
    position: *const NVTEXTokenPosition,
) {
    guard("nvtex_token_loader_seek", || {
        with(loader, |loader| {
            // SAFETY: the caller vouches for the struct.
            let NVTEXTokenPosition { batches, windows, seed, sequence, rows, .. } =
                unsafe { read_config("position", position) }?;
            loader.seek(Position { batches, windows, seed, sequence, rows })
        })
    });
}

config!(NVTEXTokenLoaderConfig {
    struct_size,
    paths,
    num_paths,
    token_bytes,
    batch,
    sequence,
    shuffle,
    seed,
    rank,
    world,
    vocabulary,
    grid,
});

config!(NVTEXTokenPosition { struct_size, batches, windows, seed, sequence, rows });

impl Default for NVTEXTokenLoaderConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            paths: null(),
            num_paths: 0,
            token_bytes: 2,
            batch: 1,
            sequence: 1024,
            shuffle: MaybeUninit::new(true),
            seed: 0,
            rank: 0,
            world: 1,
            vocabulary: 0,
            grid: null_mut(),
        }
    }
}

impl Default for NVTEXTokenPosition {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            batches: 0,
            windows: 0,
            seed: 0,
            sequence: 0,
            rows: 0,
        }
    }
}

fn with<R>(
    loader: NVTEXTokenLoader,
    body: impl FnOnce(&mut TokenLoader) -> Result<R>,
) -> Result<R> {
    let loader = LOADERS.get("loader", loader)?;
    let mut loader = loader.lock().unwrap_or_else(PoisonError::into_inner);
    body(&mut loader)
}

/// # Safety
/// As [`read_config`]; the array has as many paths as it says.
unsafe fn settings(config: *const NVTEXTokenLoaderConfig) -> Result<TokenSettings> {
    // SAFETY: the caller vouches for the config.
    let config = unsafe { read_config("config", config) }?;
    // SAFETY: the caller vouches for the array.
    let paths = unsafe {
        check::slice("config.paths", config.paths, ("config.num_paths", config.num_paths))?
    };
    // SAFETY: the caller vouches for the strings.
    let of = |(i, &path): (usize, &*const c_char)| unsafe {
        self::path(&format!("config.paths[{i}]"), path)
    };
    let paths = paths.iter().enumerate().map(of).collect::<Result<Vec<_>>>()?;
    if ![1, 2, 4].contains(&config.token_bytes) {
        return Err(Error::argument("config.token_bytes", "1, 2 or 4", config.token_bytes));
    }
    for (field, value) in [
        ("num_paths", config.num_paths),
        ("batch", config.batch),
        ("sequence", config.sequence),
        ("world", config.world),
    ] {
        if value == 0 || value > 1 << 30 {
            return Err(Error::argument(format!("config.{field}"), "1 to 2^30", value));
        }
    }
    if config.rank >= config.world {
        let expected = format!("less than config.world, {}", config.world);
        return Err(Error::argument("config.rank", expected, config.rank));
    }
    if config.vocabulary > 1 << 31 {
        return Err(Error::argument("config.vocabulary", "0 to 2^31", config.vocabulary));
    }
    let alone = TokenSettings {
        paths,
        token_bytes: config.token_bytes,
        batch: config.batch,
        sequence: config.sequence,
        shuffle: truth(config.shuffle),
        seed: config.seed,
        rank: config.rank,
        world: config.world,
        vocabulary: config.vocabulary,
        part: (0, 1),
    };
    if config.grid.is_null() {
        return Ok(alone);
    }
    let grid = GRIDS.get("config.grid", config.grid)?;
    on_grid(alone, &grid)
}

/// The settings of a rank whose grid divides batches and rows.
fn on_grid(whole: TokenSettings, grid: &Grid) -> Result<TokenSettings> {
    let of = |group| {
        let ranks = grid.communicator(group);
        (ranks.rank(), ranks.size())
    };
    let ((rank, world), part) = (of(NVTEX_GRID_DP), of(NVTEX_GRID_CP));
    if (whole.rank, whole.world) != (0, 1) {
        let got = format!("{} of {}", whole.rank, whole.world);
        let expected = "0 of 1, as the init function sets them (the grid says the others)";
        return Err(Error::argument("config.rank, config.world", expected, got));
    }
    if !whole.batch.is_multiple_of(world) {
        let expected = format!("a multiple of {world}, the ranks that divide each batch");
        return Err(Error::argument("config.batch", expected, whole.batch));
    }
    if part.1 > 1 && !whole.sequence.is_multiple_of(2 * part.1) {
        let expected = format!("a multiple of {}, twice the ranks that divide rows", 2 * part.1);
        return Err(Error::argument("config.sequence", expected, whole.sequence));
    }
    Ok(TokenSettings { batch: whole.batch / world, rank, world, part, ..whole })
}

/// Checks a tensor that gets a number for each token of this rank.
fn check_part(
    name: &str,
    tensor: &Buffer,
    settings: &TokenSettings,
    stream: cudaStream_t,
) -> Result<()> {
    let shape = Shape::new(&[settings.batch, settings.sequence / settings.part.1]);
    check::shape(name, &tensor.shape, &shape)?;
    check::dtype(name, tensor.dtype, &[NVTEDType::kNVTEInt32, NVTEDType::kNVTEInt64])?;
    check::pointer(format_args!("{name}.data"), tensor)?;
    if stream_is_capturing(stream) {
        let got = "one that is being captured: a graph would repeat this batch";
        return Err(Error::argument("stream", "a stream that is not captured", got));
    }
    Ok(())
}

fn write_part(
    buffer: &Buffer,
    part: impl Iterator<Item = i32>,
    stream: cudaStream_t,
) -> Result<()> {
    let count = buffer.shape.numel();
    match buffer.dtype {
        NVTEDType::kNVTEInt64 => {
            let mut wide = host_room(count)?;
            wide.extend(part.map(i64::from));
            upload(buffer.ptr(), &wide, stream)
        }
        _ => {
            let mut narrow = host_room(count)?;
            narrow.extend(part);
            upload(buffer.ptr(), &narrow, stream)
        }
    }
}
