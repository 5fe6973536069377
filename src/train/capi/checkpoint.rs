//! Checkpoints in the safetensors format.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;

/// What a checkpoint holds. Everything may be null or 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXCheckpointConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Modules of one context, with the state of delayed scaling of that context. They must have names that the
    /// program has given them: made up ones depend on the order in which modules were created.
    pub modules: *const NVTEXModule,
    pub num_modules: usize,
    /// An optimizer over these modules, or null: its masters take the place of the values of 16 bits, and moments,
    /// number of steps, learning rate and loss scale are in the checkpoint, too.
    pub optimizer: NVTEXOptimizer,
    /// A loader, or null: its position.
    pub loader: NVTEXTokenLoader,
    /// Further tensors on the device with their names, such as the seed and offset of random numbers: integers or
    /// numbers in high precision.
    pub names: *const *const c_char,
    pub tensors: *const NVTETensor,
    pub num_tensors: usize,
    /// The communicator of all ranks of a grid, or null: of one rank alone. With it saving and loading are calls of all ranks
    /// together, in the same order and with the same config.
    pub communicator: NVTEXCommunicator,
}

/// Sets the defaults, nothing, in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_checkpoint_config_init(
    config: *mut NVTEXCheckpointConfig,
    struct_size: usize,
) {
    guard("nvtex_checkpoint_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXCheckpointConfig::default()) }
    });
}

/// Writes a checkpoint. It waits for the stream.
///
/// Format: a safetensors file, which other programs read. Names: `<module>.<parameter>` of parameters (Float32 if
/// there is a master, else of their dtype; weights in FP8 alone dequantized), `optimizer.exp_avg.<module>.<parameter>`,
/// `optimizer.exp_avg_sq....`, `optimizer.momentum....`, `optimizer.counters` (I32: steps, skipped steps, good steps),
/// `optimizer.scalars` (F32: learning rate, loss scale), `recipe.state` (U8: what `nvtex_context_save` writes),
/// `tokens.position` (I64), and `extra.<name>`. In `__metadata__` are `nvte.checkpoint`, the version of all this, and
/// `nvte.sha256`, the SHA-256 of the file with the 64 digits of this value replaced by `0`. Parameters that modules
/// share are there once, under their first name. Moments in Float8E4M3 are there as the Float32 numbers that they stand
/// for, and come back as the same numbers.
///
/// The file is written under another name in the same folder, forced to the disk and renamed, so that after a crash
/// there is the older file or the new one.
///
/// Ranks: rank 0 of `config.communicator` writes the file, and what other ranks have parts of is sent to it: tensors in
/// the file are whole, whether ranks divide state or share weights. For equal values the file is the same on every
/// grid. What all ranks have, such as the loader's position and further tensors, is written as rank 0 has it. An error
/// of one rank is one of all. Without a communicator a rank writes what it has of weights that ranks share.
///
/// Errors: a file that cannot be written (`NVTEX_DEVICE_ERROR`); two tensors of one name; an optimizer that ranks
/// divide without the communicator of these.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_checkpoint_save(
    path: *const c_char,
    config: *const NVTEXCheckpointConfig,
    stream: cudaStream_t,
) {
    guard("nvtex_checkpoint_save", || {
        // SAFETY: the caller vouches for path, config and arrays.
        unsafe { with_checkpoint(path, config, |checkpoint, path| checkpoint.save(path, stream)) }
    });
}

/// Reads a checkpoint that `nvtex_checkpoint_save` wrote, of modules and an optimizer of the same shapes; masters and
/// dtypes may be others. Tensors that the config does not ask for are left alone. Captured graphs see the new values.
///
/// Ranks: their number and their grid may be others than those of the ranks which saved. Rank 0 checks the digest; each
/// rank reads the header, and its parts of parameters and state. All begin to change something when all have found
/// the file sound.
///
/// Errors: a file that is damaged, cut off or of another version; a missing tensor, or one of another shape or dtype;
/// a loader of other data. Nothing is changed then, unless the disk fails while tensors are read.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_checkpoint_load(
    path: *const c_char,
    config: *const NVTEXCheckpointConfig,
    stream: cudaStream_t,
) {
    guard("nvtex_checkpoint_load", || {
        // SAFETY: the caller vouches for path, config and arrays.
        unsafe { with_checkpoint(path, config, |checkpoint, path| checkpoint.load(path, stream)) }
    });
}

config!(NVTEXCheckpointConfig {
    struct_size,
    modules,
    num_modules,
    optimizer,
    loader,
    names,
    tensors,
    num_tensors,
    communicator,
});

impl Default for NVTEXCheckpointConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            modules: null(),
            num_modules: 0,
            optimizer: null_mut(),
            loader: null_mut(),
            names: null(),
            tensors: null(),
            num_tensors: 0,
            communicator: null_mut(),
        }
    }
}

/// # Safety
/// Path, config and its arrays are what the exports say.
unsafe fn with_checkpoint(
    path: *const c_char,
    config: *const NVTEXCheckpointConfig,
    body: impl FnOnce(&mut Checkpoint, &Path) -> Result<()>,
) -> Result<()> {
    // SAFETY: the caller vouches for both.
    let (path, config) = unsafe { (self::path("path", path)?, read_config("config", config)?) };
    let optimizer = optional(&OPTIMIZERS, "config.optimizer", config.optimizer)?;
    let context = optimizer.as_ref().map(|opened| opened.optimizer.context());
    let count = ("config.num_modules", config.num_modules);
    // SAFETY: the caller vouches for the arrays.
    let modules = unsafe { modules(config.modules, count, context) }?;
    let count = ("config.num_tensors", config.num_tensors);
    // SAFETY: as above.
    let (names, tensors) = unsafe {
        let names = check::slice("config.names", config.names, count)?;
        (names, check::tensors("config.tensors", config.tensors, count)?)
    };
    let mut extras = Vec::new();
    for (i, (&name, tensor)) in names.iter().zip(&tensors).enumerate() {
        let field = format!("config.names[{i}]");
        check::address(&field, name)?;
        // SAFETY: the caller vouches for the string.
        let name = unsafe { text(&field, name) }?;
        let buffer = tensor.rowwise;
        check::pointer(format_args!("config.tensors[{i}].data"), &buffer)?;
        extras.push(Extra { name, buffer });
    }
    let communicator = match config.communicator.is_null() {
        true => None,
        false => Some(COMMUNICATORS.get("config.communicator", config.communicator)?),
    };
    let loader = match config.loader.is_null() {
        true => None,
        false => Some(LOADERS.get("config.loader", config.loader)?),
    };
    let mut loader = loader.as_ref().map(|l| l.lock().unwrap_or_else(PoisonError::into_inner));
    let mut checkpoint = Checkpoint {
        context: modules.first().map(|module| Arc::clone(module.context())),
        modules,
        optimizer: optimizer.as_ref().map(|opened| &opened.optimizer),
        loader: loader.as_deref_mut(),
        extras,
        communicator,
    };
    body(&mut checkpoint, &path)
}
