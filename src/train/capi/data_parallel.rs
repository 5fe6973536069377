//! Data parallelism over the parameters of modules.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;

/// What a handle of a data-parallel engine points to. Only the library knows what it is.
pub enum NVTEXDataParallel_st {}

/// Handle of a data-parallel engine.
pub type NVTEXDataParallel = *mut NVTEXDataParallel_st;

/// What the ranks of a data-parallel group divide among each other.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXSharding {
    /// Nothing: each rank has the sum of all gradients, and updates all parameters.
    NVTEX_SHARDING_NONE = 0,
    /// The update, and what the optimizer keeps: each rank has the sum of its part of the gradients, and masters and
    /// state of this part; the values that others have updated are gathered.
    NVTEX_SHARDING_OPTIMIZER = 2,
    /// The parameters and their gradients, too: each rank keeps its part, and has all parameters of a layer only while
    /// the layer runs. They are gathered for its forward pass and again for its backward pass, behind which the
    /// gradients of all ranks are summed.
    NVTEX_SHARDING_FULL = 3,
}

from_c_enum!(NVTEXSharding, "an NVTEXSharding: 0, 2 or 3");

/// How the gradients of all ranks become one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXGradients {
    /// Their mean, for losses that are means over the batch of a rank.
    NVTEX_GRADIENTS_MEAN = 0,
    NVTEX_GRADIENTS_SUM = 1,
}

from_c_enum!(NVTEXGradients, "an NVTEXGradients from 0 to 1");

/// How ranks train together. All of them say the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXDataParallelConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Default: NVTEX_SHARDING_NONE.
    pub sharding: MaybeUninit<NVTEXSharding>,
    /// Default: NVTEX_GRADIENTS_MEAN.
    pub gradients: MaybeUninit<NVTEXGradients>,
    /// The dtype of gradients on their way, Float32 (default) or BFloat16. They are added in Float32 by ranks, and
    /// kept in Float32. A rank without others, whose parameters all have this dtype, keeps them in it, unless something is
    /// divided or added to them.
    pub wire_dtype: MaybeUninit<NVTEDType>,
    /// Bytes of gradients that are reduced by one call, or one parameter if that is larger. Default: 64 MiB.
    pub bucket_bytes: usize,
    /// Backward passes add to the gradients: call `nvtex_optimizer_zero_grad` before the first one of a step.
    /// Otherwise they overwrite them, unless `NVTEXMicrobatch` says something else.
    pub accumulate: MaybeUninit<bool>,
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_data_parallel_config_init(
    config: *mut NVTEXDataParallelConfig,
    struct_size: usize,
) {
    guard("nvtex_data_parallel_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXDataParallelConfig::default()) }
    });
}

/// Makes the ranks of a communicator train modules of a context together, each with batches of its own. Collective:
/// the ranks compare names, shapes, dtypes and seeds of the parameters, and take the values of rank 0.
///
/// The engine makes gradients of 0, Float32 or as `wire_dtype` says, and binds them. With NVTEX_SHARDING_OPTIMIZER it
/// also moves the values of parameters into memory of its own, from which they can be gathered at once; weights in FP8
/// blocks, MXFP8 or NVFP4 alone and values in memory of the program stay where they are, and are not divided. With
/// NVTEX_SHARDING_FULL each layer of the modules (of `nvtex_sequential_create` each part) has its parameters only while
/// it runs: `NVTEXParameter.value` has null data otherwise, and passes are collective calls, which all ranks make in
/// the same order. So create it behind the modules, before the optimizer and before anything is captured in a graph.
///
/// A step of the program: backward passes over all microbatches; `nvtex_data_parallel_reduce`;
/// `nvtex_optimizer_step` of an optimizer that has the engine in its config.
///
/// Notes: modules and communicator live at least as long as the engine, which lives as long as an optimizer that has
/// it. Null config: defaults. Errors: gradients that are bound already; ranks that differ, with the first difference;
/// an error of one rank is one of all. Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_data_parallel_create(
    context: NVTEXContext,
    config: *const NVTEXDataParallelConfig,
    communicator: NVTEXCommunicator,
    modules: *const NVTEXModule,
    num_modules: usize,
    stream: cudaStream_t,
) -> NVTEXDataParallel {
    guard("nvtex_data_parallel_create", || {
        let context = open(&CONTEXTS, "context", context)?;
        let communicator = COMMUNICATORS.get("communicator", communicator)?;
        // SAFETY: the caller vouches for config and array.
        let (sharing, modules) = unsafe {
            let count = ("num_modules", num_modules);
            (sharing(config)?, self::modules(modules, count, Some(&context))?)
        };
        let made = DataParallel::new(&context, &communicator, modules, sharing, stream)?;
        Ok(Handle(ENGINES.insert(Arc::new(made))?))
    })
    .0
}

/// Destroys an engine, and unbinds the gradients that it has made when no optimizer has it any more. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_data_parallel_destroy(data_parallel: NVTEXDataParallel) {
    guard("nvtex_data_parallel_destroy", || destroy(&ENGINES, "data_parallel", data_parallel));
}

/// Reduces the gradients of all ranks: call it behind the last backward pass of a step. With NVTEX_SHARDING_OPTIMIZER and
/// NVTEX_SHARDING_FULL a gradient then is that of all ranks in the part of this rank, and means nothing elsewhere.
///
/// Collective, as `nvtex_all_reduce`: with ranks of NCCL it may be captured in a graph, from its second call on.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_data_parallel_reduce(
    data_parallel: NVTEXDataParallel,
    stream: cudaStream_t,
) {
    guard("nvtex_data_parallel_reduce", || {
        open(&ENGINES, "data_parallel", data_parallel)?.reduce(stream)
    });
}

/// Gathers the values of divided parameters, of which each rank has updated its part. `nvtex_optimizer_step` does this
/// itself: the function is for optimizers of the program. Collective.
///
/// With NVTEX_SHARDING_FULL every rank has all parameters from then on, until `nvtex_data_parallel_release`: passes of one
/// rank alone are possible, values may be read and assigned (on all ranks alike), and modules may be used further
/// when the engine is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_data_parallel_gather(
    data_parallel: NVTEXDataParallel,
    stream: cudaStream_t,
) {
    guard("nvtex_data_parallel_gather", || {
        open(&ENGINES, "data_parallel", data_parallel)?.gather(stream)
    });
}

/// Lets parameters go that `nvtex_data_parallel_gather` has brought together under NVTEX_SHARDING_FULL; each rank keeps its
/// part, as it is then. Otherwise it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_data_parallel_release(
    data_parallel: NVTEXDataParallel,
    stream: cudaStream_t,
) {
    guard("nvtex_data_parallel_release", || {
        open(&ENGINES, "data_parallel", data_parallel)?.release(stream)
    });
}

/// Tells which elements of a flattened parameter this rank updates: `count` elements from number `first` on. All of
/// them, unless ranks divide the parameter.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_data_parallel_part(
    data_parallel: NVTEXDataParallel,
    module: NVTEXModule,
    index: usize,
    first: *mut usize,
    count: *mut usize,
) {
    guard("nvtex_data_parallel_part", || {
        let engine = open(&ENGINES, "data_parallel", data_parallel)?;
        let module = open(&MODULES, "module", module)?;
        check::address("first", first)?;
        check::address("count", count)?;
        if !engine.has(&module, index) {
            let expected = "a parameter of a module that the engine was created with";
            return Err(Error::argument("index", expected, format!("{index} of {module}")));
        }
        let part = module.with_parameters(|parameters| {
            let parameter = &parameters[index].1;
            let count = parameter.numel();
            parameter.division.map_or(0..count, |division| division.own(count))
        });
        // SAFETY: not null, and the caller vouches for the numbers.
        unsafe {
            first.write(part.start);
            count.write(part.len());
        }
        Ok(())
    });
}

config!(NVTEXDataParallelConfig {
    struct_size,
    sharding,
    gradients,
    wire_dtype,
    bucket_bytes,
    accumulate,
});

impl Default for NVTEXDataParallelConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            sharding: MaybeUninit::new(NVTEXSharding::NVTEX_SHARDING_NONE),
            gradients: MaybeUninit::new(NVTEXGradients::NVTEX_GRADIENTS_MEAN),
            wire_dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            bucket_bytes: 64 << 20,
            accumulate: MaybeUninit::new(false),
        }
    }
}

/// # Safety
/// As [`read_config`]; a null config gives defaults.
pub(super) unsafe fn sharing(config: *const NVTEXDataParallelConfig) -> Result<Sharing> {
    let config = match config.is_null() {
        true => NVTEXDataParallelConfig::default(),
        // SAFETY: the caller vouches for the config.
        false => unsafe { read_config("config", config) }?,
    };
    let wire = from_c("config.wire_dtype", config.wire_dtype)?;
    check::dtype("config.wire", wire, &[NVTEDType::kNVTEFloat32, NVTEDType::kNVTEBFloat16])?;
    if config.bucket_bytes == 0 || config.bucket_bytes > 1 << 40 {
        return Err(Error::argument("config.bucket_bytes", "1 to 2^40", config.bucket_bytes));
    }
    Ok(Sharing {
        level: match from_c("config.sharding", config.sharding)? {
            NVTEXSharding::NVTEX_SHARDING_NONE => Level::Replicated,
            NVTEXSharding::NVTEX_SHARDING_OPTIMIZER => Level::Optimizer,
            NVTEXSharding::NVTEX_SHARDING_FULL => Level::Full,
        },
        average: from_c("config.gradients", config.gradients)?
            == NVTEXGradients::NVTEX_GRADIENTS_MEAN,
        wire,
        bucket_bytes: config.bucket_bytes,
        accumulate: truth(config.accumulate),
    })
}
