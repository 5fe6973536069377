//! Contexts: memory, the active recipe, and the state of delayed scaling.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;
use crate::parallel::exports::{GRIDS, NVTEXGrid};
use num_derive::FromPrimitive;

/// What a handle of a context points to. Only the library knows what it is.
pub enum NVTEXContext_st {}

/// Handle of a context.
pub type NVTEXContext = *mut NVTEXContext_st;

/// How long memory of an allocator is wanted.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEXLifetime {
    /// Until the call returns.
    NVTEX_LIFETIME_SCRATCH = 0,
    /// Until a tape is destroyed.
    NVTEX_LIFETIME_TAPE = 1,
    /// Until the module or the context is destroyed.
    NVTEX_LIFETIME_PERSISTENT = 2,
}

/// Allocates memory of the device, or returns null if there is none left. The rules of
/// `NVTEXContextConfig` for its functions hold.
pub type NVTEXAllocate = Option<
    unsafe extern "C-unwind" fn(
        user: *mut c_void,
        bytes: usize,
        alignment: usize,
        lifetime: NVTEXLifetime,
        stream: cudaStream_t,
    ) -> *mut c_void,
>;

/// Takes memory back. Work on the stream may still use it, so hand it out again to that stream alone,
/// or wait for the stream. The rules of `NVTEXContextConfig` for its functions hold, except that a C++
/// exception is only reported to stderr, and the memory counts as released.
pub type NVTEXRelease = Option<
    unsafe extern "C-unwind" fn(
        user: *mut c_void,
        ptr: *mut c_void,
        bytes: usize,
        lifetime: NVTEXLifetime,
        stream: cudaStream_t,
    ),
>;

/// Replaces each of `count` floats on the device by the largest of the group's ranks, on the stream.
/// It returns 0, or anything else for failure. The rules of `NVTEXContextConfig` for its functions
/// hold.
pub type NVTEXAllReduceMax = Option<
    unsafe extern "C-unwind" fn(
        user: *mut c_void,
        group: *mut c_void,
        data: *mut f32,
        count: usize,
        stream: cudaStream_t,
    ) -> c_int,
>;

/// What a context gets from the program. All fields may be null or 0.
///
/// The functions must not call functions of the same context, its modules, tapes and caches, not even those
/// that destroy: such a call is an error. A C++ exception that leaves one of them becomes an error of the call
/// that called it. They must end by returning or by an exception: `longjmp` out of them, and ending the thread
/// in them, is undefined behaviour.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXContextConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Argument of `allocate` and `release`, which are both set or both null (null: memory of
    /// `nvtex_malloc`, which is kept and used again).
    pub allocator: *mut c_void,
    pub allocate: NVTEXAllocate,
    pub release: NVTEXRelease,
    /// Passed to `all_reduce_max` (null: nothing is reduced).
    pub communicator: *mut c_void,
    pub all_reduce_max: NVTEXAllReduceMax,
    /// Multiprocessors that normalizations may keep busy; sums depend on it. 0: all of the device's, and
    /// 132 on the CPU backend.
    pub multiprocessor_count: i32,
    /// Without `allocate`: bytes that the context may keep unused when it asks the device for more.
    /// What is beyond goes back to the device first, and the device waits for its work then. Memory
    /// that a captured graph uses stays. 0: four times the most that passes have used at once, at
    /// least 4 MiB. SIZE_MAX: everything is kept.
    pub max_unused_bytes: usize,
}

/// Device memory of a context, in bytes. Blocks are counted as they are handed out, so sizes are rounded up.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXMemoryUse {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    /// In use now: scratch memory of calls, memory of tapes, and what lives as long as modules and the context.
    pub scratch: usize,
    pub tape: usize,
    pub persistent: usize,
    /// Kept for later calls; 0 with an allocator of the program.
    pub unused: usize,
    /// The most of each that was in use since the context was created, and the most of all three at once.
    pub most_scratch: usize,
    pub most_tape: usize,
    pub most_persistent: usize,
    pub most_at_once: usize,
}

/// Flag of `nvtex_context_begin`: modules multiply as the recipe says; without it in high precision.
pub const NVTEX_CONTEXT_ENABLED: u32 = 1;

/// Flag of `nvtex_context_begin`: modules collect the maxima of delayed scaling while they compute in
/// high precision.
pub const NVTEX_CONTEXT_CALIBRATING: u32 = 2;

/// Flag of `nvtex_context_begin`: modules that are created keep their weights in the recipe's format
/// alone.
pub const NVTEX_CONTEXT_QUANTIZED_WEIGHTS: u32 = 4;

/// Slots of delayed scaling.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXPass {
    /// 3 slots: input, weight, output (not used).
    NVTEX_PASS_FORWARD = 0,
    /// 2 slots: gradient of the output, gradient of the input (not used).
    NVTEX_PASS_BACKWARD = 1,
}

from_c_enum!(NVTEXPass, "an NVTEXPass, 0 or 1");

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_config_init(
    config: *mut NVTEXContextConfig,
    struct_size: usize,
) {
    guard("nvtex_context_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXContextConfig::default()) }
    });
}

/// Creates a context: all state of FP8 training that modules share.
///
/// There are no globals, so each thread and device may have one. A context is for one thread at a time,
/// and for one stream or for streams that wait for each other. Null config: defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_create(
    config: *const NVTEXContextConfig,
) -> NVTEXContext {
    guard("nvtex_context_create", || {
        // SAFETY: the caller vouches for the config.
        Ok(Handle(CONTEXTS.insert(unsafe { context(config) }?)?))
    })
    .0
}

/// Destroys a context. Modules and tapes that are left keep its memory until they are destroyed. Null
/// is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_destroy(context: NVTEXContext) {
    guard("nvtex_context_destroy", || destroy(&CONTEXTS, "context", context));
}

/// Spreads the modules of a context over the ranks of a grid, once and before there are modules: what their configs say
/// of `parallel` holds then, and updates of delayed scaling take the maxima of all ranks that have the same layers.
///
/// The context keeps what it needs of the grid, whose handle may be destroyed.
///
/// Errors: a context that has a grid, modules or an `all_reduce_max`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_set_grid(context: NVTEXContext, grid: NVTEXGrid) {
    guard("nvtex_context_set_grid", || {
        let context = open(&CONTEXTS, "context", context)?;
        context.set_grid(&GRIDS.get("grid", grid)?)
    });
}

/// Gives unused memory of the context back to the device until `bytes_to_keep` bytes of it are left,
/// and returns the bytes that went back (0 for a context with an allocator of the program).
///
/// Memory that has not been used for longest goes first. The device waits for its work. What passes
/// that were captured in graphs use stays, so that these graphs may be replayed as long as their
/// modules, tapes and caches live.
///
/// Do not call it while a stream of the process is being captured, because the device refuses to free
/// memory then.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_trim(context: NVTEXContext, bytes_to_keep: usize) -> usize {
    guard("nvtex_context_trim", || open(&CONTEXTS, "context", context)?.memory.trim(bytes_to_keep))
}

/// Tells how much device memory modules, tapes and caches of a context have: from its pool, or from the program's
/// allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_memory(
    context: NVTEXContext,
    memory: *mut NVTEXMemoryUse,
) {
    // SAFETY: the caller vouches for the struct.
    guard("nvtex_context_memory", || unsafe { memory_use(context, memory) });
}

/// Opens a region: forward passes and creations until the matching `nvtex_context_end` follow the
/// recipe. Regions nest; the innermost counts.
///
/// `flags` is the sum of `NVTEX_CONTEXT_*`; the recipe may be null if there are none. `amax_group` is
/// handed to `all_reduce_max`; null means this rank alone. Backward passes follow the recipe of their
/// forward pass, wherever they run. Without NVTEX_CONTEXT_ENABLED products are in high precision:
/// `nvtex_module_precision` says what a pass has used, and so does `NVTE_VERBOSE=dispatch`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_begin(
    context: NVTEXContext,
    recipe: NVTEXRecipe,
    flags: u32,
    amax_group: *mut c_void,
) {
    guard("nvtex_context_begin", || begin(context, recipe, flags, amax_group));
}

/// Closes the innermost region. Errors: no region is open.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_end(context: NVTEXContext) {
    guard("nvtex_context_end", || open(&CONTEXTS, "context", context)?.end());
}

/// Updates the histories and scales that forward passes use, for all layers with delayed scaling, after
/// reducing their maxima over the group. Call it once after the forward passes of a step.
///
/// Layers that did not run stay as they are
/// (`nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction`). The call may be captured in
/// a graph (an `update_interval` counts at capture).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_forward_update(
    context: NVTEXContext,
    stream: cudaStream_t,
) {
    guard("nvtex_context_forward_update", || {
        open(&CONTEXTS, "context", context)?.update(Pass::Forward, stream)
    });
}

/// Updates the histories and scales that backward passes use, as `nvtex_context_forward_update` does,
/// after the backward passes of a step.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_backward_update(
    context: NVTEXContext,
    stream: cudaStream_t,
) {
    guard("nvtex_context_backward_update", || {
        open(&CONTEXTS, "context", context)?.update(Pass::Backward, stream)
    });
}

/// Copies scales and history of a layer with delayed scaling to the host, and returns the length of the
/// history. It waits for the stream.
///
/// `layer` is a module's name, of `LayerNormMLP` followed by `.fc1` or `.fc2`.
///
/// Shapes: `scales` `[n]`, `history` `[length, n]` with n = 3 (forward) or 2 (backward). Row 0 is the
/// current maximum, the last row the newest of the others. Either may be null.
///
/// Errors: no such layer; fewer than `length * n` floats (`history_size`).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_delayed_scaling(
    context: NVTEXContext,
    layer: *const c_char,
    pass: MaybeUninit<NVTEXPass>,
    scales: *mut f32,
    history: *mut f32,
    history_size: usize,
    stream: cudaStream_t,
) -> usize {
    guard("nvtex_context_delayed_scaling", || {
        let room = (scales, history, history_size);
        // SAFETY: the caller vouches for the arrays.
        unsafe { delayed_scaling(context, layer, from_c("pass", pass)?, room, stream) }
    })
}

/// Returns the bytes that `nvtex_context_save` writes.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_state_size(context: NVTEXContext) -> usize {
    guard("nvtex_context_state_size", || open(&CONTEXTS, "context", context)?.state_size())
}

/// Writes the state of delayed scaling of all layers, by name, to host memory and returns its bytes. It
/// waits for the stream. The format is the same on every machine, and has a version and a checksum.
///
/// Errors: fewer than `nvtex_context_state_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_save(
    context: NVTEXContext,
    buffer: *mut c_void,
    bytes: usize,
    stream: cudaStream_t,
) -> usize {
    // SAFETY: the caller vouches for the bytes.
    guard("nvtex_context_save", || unsafe { save(context, buffer, bytes, stream) })
}

/// Restores what `nvtex_context_save` wrote: at once for layers that have run, for others when they
/// first run. Histories of another length keep their newest maxima.
///
/// Errors: bytes that are not such a state, have another version, are damaged or cut off; scales that
/// are not finite or not above 0; maxima that are not finite or below 0, as they are after a step that
/// has overflowed. Nothing is changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_load(
    context: NVTEXContext,
    buffer: *const c_void,
    bytes: usize,
    stream: cudaStream_t,
) {
    // SAFETY: the caller vouches for the bytes.
    guard("nvtex_context_load", || unsafe { load(context, buffer, bytes, stream) });
}

config!(NVTEXContextConfig {
    struct_size,
    allocator,
    allocate,
    release,
    communicator,
    all_reduce_max,
    multiprocessor_count,
    max_unused_bytes
});

config!(NVTEXMemoryUse {
    struct_size,
    scratch,
    tape,
    persistent,
    unused,
    most_scratch,
    most_tape,
    most_persistent,
    most_at_once
});

/// # Safety
/// `out` is null or begins with its size.
unsafe fn memory_use(context: NVTEXContext, out: *mut NVTEXMemoryUse) -> Result<()> {
    let (usage, unused) = open(&CONTEXTS, "context", context)?.memory.usage();
    let ([scratch, tape, persistent], [most_scratch, most_tape, most_persistent]) =
        (usage.now, usage.most);
    let most_at_once = usage.most_at_once;
    let struct_size = size_of::<NVTEXMemoryUse>();
    let value = NVTEXMemoryUse {
        struct_size,
        scratch,
        tape,
        persistent,
        unused,
        most_scratch,
        most_tape,
        most_persistent,
        most_at_once,
    };
    // SAFETY: the caller vouches for the struct.
    unsafe { fill("memory", out, value) }
}

impl Default for NVTEXContextConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            allocator: null_mut(),
            allocate: None,
            release: None,
            communicator: null_mut(),
            all_reduce_max: None,
            multiprocessor_count: 0,
            max_unused_bytes: 0,
        }
    }
}

fn c_lifetime(lifetime: Lifetime) -> NVTEXLifetime {
    match lifetime {
        Lifetime::Scratch => NVTEXLifetime::NVTEX_LIFETIME_SCRATCH,
        Lifetime::Tape => NVTEXLifetime::NVTEX_LIFETIME_TAPE,
        Lifetime::Persistent => NVTEXLifetime::NVTEX_LIFETIME_PERSISTENT,
    }
}

/// # Safety
/// As [`read_config`]; null gives defaults.
unsafe fn context(config: *const NVTEXContextConfig) -> Result<Arc<Context>> {
    let config = match config.is_null() {
        true => NVTEXContextConfig::default(),
        // SAFETY: the caller vouches for the config.
        false => unsafe { read_config("config", config) }?,
    };
    let callbacks = match (config.allocate, config.release) {
        (Some(allocate), Some(release)) => {
            let user = config.allocator as usize;
            Some(Callbacks {
                allocate: Box::new(move |bytes, alignment, lifetime, stream| {
                    let (user, lifetime) = (user as *mut c_void, c_lifetime(lifetime));
                    // SAFETY: the caller vouches for both functions.
                    callback::call("allocator.allocate", || unsafe {
                        allocate(user, bytes, alignment, lifetime, stream)
                    })
                }),
                release: Box::new(move |ptr, bytes, lifetime, stream| {
                    let (user, lifetime) = (user as *mut c_void, c_lifetime(lifetime));
                    // SAFETY: the program vouches for its function, which gets back what it gave.
                    callback::call("allocator.release", || unsafe {
                        release(user, ptr, bytes, lifetime, stream)
                    })
                }),
            })
        }
        (None, None) => None,
        (allocate, _) => {
            let (name, other) = match allocate {
                Some(_) => ("config.release", "config.allocate"),
                None => ("config.allocate", "config.release"),
            };
            return Err(Error::argument(name, format!("a function, as {other}"), "null"));
        }
    };
    let user = config.communicator as usize;
    let reduce = config.all_reduce_max.map(|reduce| -> Box<ReduceMax> {
        Box::new(move |group: Group, data, count, stream| {
            let (user, group) = (user as *mut c_void, group.to_c());
            // SAFETY: the caller vouches for the function.
            match callback::call("config.all_reduce_max", || unsafe {
                reduce(user, group, data, count, stream)
            })? {
                0 => Ok(()),
                status => Err(Error::device(format!("config.all_reduce_max returned {status}"))),
            }
        })
    });
    let multiprocessors = match config.multiprocessor_count {
        0 => None,
        count if count > 0 => Some(count),
        count => {
            let name = "config.multiprocessor_count";
            return Err(Error::argument(name, "0 or more", count));
        }
    };
    let max_unused = (config.max_unused_bytes != 0).then_some(config.max_unused_bytes);
    Ok(Context::new((callbacks, max_unused), reduce, multiprocessors))
}

fn begin(
    context: NVTEXContext,
    recipe: NVTEXRecipe,
    flags: u32,
    amax_group: *mut c_void,
) -> Result<()> {
    let context = open(&CONTEXTS, "context", context)?;
    if flags > 7 {
        return Err(Error::argument("flags", "a sum of NVTEX_CONTEXT_*, 0 to 7", flags));
    }
    let recipe = match recipe.is_null() && flags == 0 {
        true => None,
        false => Some(RECIPES.get("recipe", recipe)?),
    };
    let has = |flag: u32| flags & flag != 0;
    if recipe.is_some() && !has(NVTEX_CONTEXT_ENABLED) {
        verbose::line(
            Level::Dispatch,
            "precision",
            || "begin,products in high precision: flags lack NVTEX_CONTEXT_ENABLED",
        );
    }
    context.begin(Frame {
        recipe,
        enabled: has(NVTEX_CONTEXT_ENABLED),
        calibrating: has(NVTEX_CONTEXT_CALIBRATING),
        quantized_weights: has(NVTEX_CONTEXT_QUANTIZED_WEIGHTS),
        group: Group::from_c(amax_group),
    });
    Ok(())
}

/// # Safety
/// The arrays are null or as long as the export says.
unsafe fn delayed_scaling(
    context: NVTEXContext,
    layer: *const c_char,
    pass: NVTEXPass,
    (scales, history, history_size): (*mut f32, *mut f32, usize),
    stream: cudaStream_t,
) -> Result<usize> {
    let context = open(&CONTEXTS, "context", context)?;
    // SAFETY: the caller vouches for the string.
    let name = unsafe { text("layer", layer) }?;
    let Some((length, values)) = context.delayed_scaling(&name, stream)? else {
        let expected = "a layer that has run with delayed scaling";
        return Err(Error::argument("layer", expected, format!("{name:?}")));
    };
    let values = &values[pass as usize];
    if !history.is_null() && history_size < values.history.len() {
        let expected = format!("at least {}", values.history.len());
        return Err(Error::argument("history_size", expected, history_size));
    }
    for (to, from) in [(scales, &values.scale), (history, &values.history)] {
        if !to.is_null() {
            // SAFETY: the caller vouches for the arrays.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        }
    }
    Ok(length)
}

/// # Safety
/// `buffer` has `bytes` bytes.
unsafe fn save(
    context: NVTEXContext,
    buffer: *mut c_void,
    bytes: usize,
    stream: cudaStream_t,
) -> Result<usize> {
    let context = open(&CONTEXTS, "context", context)?;
    check::array("buffer", buffer.cast::<u8>(), ("bytes", bytes))?;
    let state = context.save(stream)?;
    if bytes < state.len() {
        return Err(Error::argument("bytes", format!("at least {}", state.len()), bytes));
    }
    // SAFETY: the caller vouches for the buffer.
    unsafe { std::ptr::copy_nonoverlapping(state.as_ptr(), buffer.cast(), state.len()) };
    Ok(state.len())
}

/// # Safety
/// `buffer` has `bytes` bytes.
unsafe fn load(
    context: NVTEXContext,
    buffer: *const c_void,
    bytes: usize,
    stream: cudaStream_t,
) -> Result<()> {
    let context = open(&CONTEXTS, "context", context)?;
    check::array("buffer", buffer.cast::<u8>(), ("bytes", bytes))?;
    let state = match bytes {
        0 => &[],
        // SAFETY: not null, and the caller vouches for the bytes.
        _ => unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), bytes) },
    };
    context.load(state, stream).map(drop)
}
