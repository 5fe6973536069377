//! What C sees of recipes, contexts and modules (`crate::nn`): handles, and the checks of configs.
#![allow(unsafe_code)]

mod create;
pub mod exports;
mod kv_cache;

use crate::backend::args::Function::*;
use crate::check;
use crate::error::{Error, Handle, Result};
use crate::handle::{Kind as HandleKind, Slab};
use crate::nn::*;
use crate::tensor::{FromC, Shape, TENSORS, from_c, from_c_enum};
use crate::types::NVTE_Activation_Type::*;
use crate::types::*;
use crate::verbose::{self, Level};
use create::create;
use exports::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt::{self, Display, Formatter};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

pub static RECIPES: Slab<Arc<Recipe>> = Slab::new(HandleKind::Recipe);
pub static CONTEXTS: Slab<Arc<Context>> = Slab::new(HandleKind::Context);
pub static MODULES: Slab<Arc<Module>> = Slab::new(HandleKind::Module);
pub static TAPES: Slab<Arc<Tape>> = Slab::new(HandleKind::Tape);
pub static KV_CACHES: Slab<Arc<KvCache>> = Slab::new(HandleKind::KvCache);

/// A module with its place in a context.
pub struct Module {
    context: Arc<Context>,
    name: Arc<str>,
    /// Begins made-up names of such modules.
    kind: &'static str,
    layer: Mutex<Box<dyn Layer>>,
    parameters: Vec<View>,
}

/// What C holds of a parameter.
struct View {
    name: CString,
    value: usize,
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = TENSORS.remove("value", self.value as NVTETensor);
    }
}

impl Display for Module {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "{:?} ({})", self.name, self.kind)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.context.give_name(&self.name);
    }
}

impl Module {
    fn new(
        context: &Arc<Context>,
        (name, kind): (Arc<str>, &'static str),
        mut layer: Box<dyn Layer>,
    ) -> Result<Self> {
        let mut parameters = Vec::new();
        for (name, parameter) in layer.parameters() {
            let value = TENSORS.insert(parameter.value.tensor.clone())? as usize;
            parameters.push(View { name: CString::new(name).unwrap_or_default(), value });
        }
        let (context, layer) = (Arc::clone(context), Mutex::new(layer));
        Ok(Self { context, name, kind, layer, parameters })
    }

    /// A call of the module.
    fn run(&self, stream: cudaStream_t) -> Run {
        Run { module: Some(Arc::clone(&self.name)), ..Run::outside(&self.context, stream) }
    }

    fn num_parameters(&self) -> usize {
        self.parameters.len()
    }

    /// Applies `body` to a parameter.
    fn parameter<R>(
        &self,
        index: usize,
        body: impl FnOnce(&mut Parameter, &View) -> Result<R>,
    ) -> Result<R> {
        let mut layer = lock(&self.layer);
        let parameters = layer.parameters();
        let count = parameters.len();
        match parameters.into_iter().zip(&self.parameters).nth(index) {
            Some(((_, parameter), view)) => body(parameter, view),
            None => Err(Error::argument("index", format!("less than {count}"), index)),
        }
    }
}

/// What a forward pass has left.
pub struct Tape {
    module: Arc<Module>,
    saved: Mutex<Saved>,
    microbatch: Microbatch,
}

fn remove<T: Clone>(slab: &Slab<T>, name: &str, handle: *mut c_void) -> Result<()> {
    if handle.is_null() { Ok(()) } else { slab.remove(name, handle) }
}

/// An object with the context that it belongs to. Handles are only opened by [`open`] and [`destroy`], so
/// that no function of the program calls back into the context that has called it: locks are held then.
trait InContext: Clone + 'static {
    fn context(&self) -> &Arc<Context>;
}

impl InContext for Arc<Context> {
    fn context(&self) -> &Arc<Context> {
        self
    }
}

impl InContext for Arc<Module> {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl InContext for Arc<Tape> {
    fn context(&self) -> &Arc<Context> {
        &self.module.context
    }
}

impl InContext for Arc<KvCache> {
    fn context(&self) -> &Arc<Context> {
        KvCache::context(self)
    }
}

/// The object of a handle, for one call.
fn open<T: InContext>(slab: &Slab<T>, name: &str, handle: *const c_void) -> Result<T> {
    let object = slab.get(name, handle)?;
    object.context().check_free(name)?;
    Ok(object)
}

/// Destroys an object; null is ignored.
fn destroy<T: InContext>(slab: &Slab<T>, name: &str, handle: *mut c_void) -> Result<()> {
    if handle.is_null() {
        return Ok(());
    }
    // Dropped at the end, not by the slab: its memory goes back by functions of the program, which may
    // use other handles.
    let _object = open(slab, name, handle)?;
    slab.remove(name, handle)
}

/// A struct that begins with its size, and grows at its end.
trait Config: Copy {
    /// Where each field begins and ends.
    const FIELDS: &'static [(usize, usize)];

    /// Refuses a size that ends within a field: half of a pointer is none. Sizes of an earlier version end
    /// with one of its fields or with the padding behind; those of a later version are larger.
    fn check_size(name: &str, size: usize) -> Result<()> {
        let own = size_of::<Self>();
        let begins_or_ends = |&(begin, end): &(usize, usize)| size == begin || size == end;
        let earlier = size >= size_of::<usize>() && Self::FIELDS.iter().any(begins_or_ends);
        if earlier || (own..=own + MOST_GROWTH).contains(&size) {
            return Ok(());
        }
        let below = Self::FIELDS.iter().map(|&(_, end)| end).take_while(|&end| end < size).last();
        let below = below.filter(|_| size < own);
        let expected = match below {
            Some(end) => format!("{own} (of this version), or the end of a field such as {end}"),
            None => format!("{own} (of this version), as the init function sets it"),
        };
        Err(Error::argument(format!("{name}struct_size"), expected, size))
    }
}

/// How many bytes a later version of a struct may have more.
const MOST_GROWTH: usize = 1024;

/// The size of the field that a function returns.
const fn field_size<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// The fields of a struct of [`Config`], all of them.
macro_rules! config {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl Config for $type {
            const FIELDS: &'static [(usize, usize)] = {
                // Does not compile if a field is missing in the list.
                let _ = |value: &$type| {
                    let $type { $($field: _),* } = value;
                };
                &[$({
                    let begin = std::mem::offset_of!($type, $field);
                    (begin, begin + field_size(|value: &$type| &value.$field))
                }),*]
            };
        }
    };
}

config!(NVTEXRecipeConfig {
    struct_size,
    kind,
    format,
    margin,
    amax_history_len,
    amax_algo,
    update_interval,
    reduce_amax,
    input,
    weight,
    grad_output,
    split_accumulator_fprop,
    split_accumulator_dgrad,
    split_accumulator_wgrad,
    backward,
    choose,
    user,
    fp8_dpa
});
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
config!(NVTEXNormConfig {
    struct_size,
    name,
    kind,
    hidden_size,
    epsilon,
    zero_centered_gamma,
    dtype,
    reserved
});
config!(NVTEXLinearConfig {
    struct_size,
    name,
    in_features,
    out_features,
    bias,
    dtype,
    init_std,
    seed,
    parallel,
    reserved
});
config!(NVTEXLayerNormLinearConfig { struct_size, norm, linear });
config!(NVTEXGroupedLinearConfig { struct_size, num_gemms, linear });
config!(NVTEXLayerNormMLPConfig {
    struct_size,
    name,
    norm,
    hidden_size,
    ffn_hidden_size,
    activation,
    clamp_limit,
    clamp_alpha,
    clamp_offset,
    bias,
    dtype,
    init_std,
    output_init_std,
    seed,
    checkpoint,
    parallel,
    reserved
});
config!(NVTEXAttentionConfig {
    struct_size,
    name,
    num_attention_heads,
    num_gqa_groups,
    head_dim_qk,
    head_dim_v,
    attention_dropout,
    qkv_format,
    attn_mask_type,
    window_size_left,
    window_size_right,
    bottom_right_diagonal,
    softmax_type,
    softmax_scale,
    dtype,
    checkpoint_core_attention,
    qk_norm_type,
    qk_norm_epsilon,
    qk_norm_before_rope,
    parallel,
    reserved
});
config!(NVTEXMultiheadAttentionConfig {
    struct_size,
    name,
    hidden_size,
    attention,
    input_layernorm,
    norm,
    cross_attention,
    bias,
    rotary_interleaved,
    init_std,
    output_init_std,
    seed
});
config!(NVTEXTransformerLayerConfig {
    struct_size,
    name,
    attention,
    mlp,
    hidden_dropout,
    decoder,
    inter_mask_type,
    residual_post_layernorm,
    output_layernorm,
    parallel_attention_mlp,
    rotary_interleaved
});
config!(NVTEXRotaryConfig {
    struct_size,
    base,
    offset,
    interpolation_factor,
    pretrained_length,
    interleaved
});
config!(NVTEXStep {
    struct_size,
    microbatch,
    skip_weight_update,
    rng_state,
    cu_seqlens_q,
    cu_seqlens_kv,
    cu_seqlens_q_padded,
    cu_seqlens_kv_padded,
    max_seqlen_q,
    max_seqlen_kv,
    rotary_frequencies,
    kv_cache,
    m_splits,
    num_splits
});
config!(NVTEXKVCacheConfig {
    struct_size,
    max_batch_size,
    max_sequence_length,
    page_size,
    num_pages
});
config!(NVTEXParameter { struct_size, name, shape, dtype, value, quantized });

/// Writes the part of a config that a program knows of, with its size.
///
/// # Safety
/// `config` is null or has `size` bytes.
unsafe fn write_config<T: Config>(config: *mut T, size: usize, value: &T) -> Result<()> {
    check::address("config", config)?;
    T::check_size("", size)?;
    let size = size.min(size_of::<T>());
    // SAFETY: the caller vouches for the bytes; the first field is the size.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(value).cast::<u8>(),
            config.cast::<u8>(),
            size,
        );
        config.cast::<usize>().write(size);
    }
    Ok(())
}

/// Reads a config of this or an earlier version, whose missing fields have defaults, or of a later one
/// that uses nothing of what is new in it.
///
/// # Safety
/// `config` is null or has as many bytes as its first field says.
unsafe fn read_config<T: Config + Default>(name: &str, config: *const T) -> Result<T> {
    check::address(name, config)?;
    // SAFETY: the first field is the size.
    let size = unsafe { config.cast::<usize>().read() };
    T::check_size(&format!("{name}."), size)?;
    for at in size_of::<T>()..size {
        // SAFETY: the caller vouches for the bytes.
        let byte = unsafe { config.cast::<u8>().add(at).read() };
        if byte != 0 {
            let expected = format!("zeros behind byte {} (of this version)", size_of::<T>());
            let got = format!("{byte} at byte {at} of {size}");
            return Err(Error::argument(name, expected, got));
        }
    }
    let mut value = T::default();
    // SAFETY: the caller vouches for the bytes; every field takes any bits.
    unsafe {
        let to = std::ptr::from_mut(&mut value).cast::<u8>();
        std::ptr::copy_nonoverlapping(config.cast::<u8>(), to, size.min(size_of::<T>()));
    }
    Ok(value)
}

/// The numbers of an array.
///
/// # Safety
/// The array has as many as it says.
unsafe fn array<T: Copy>(
    name: &str,
    values: *const T,
    (count_name, count): (&str, usize),
) -> Result<Vec<T>> {
    check::array(name, values, (count_name, count))?;
    let mut read = host_room(count)?;
    // SAFETY: the caller vouches for the array.
    read.extend((0..count).map(|i| unsafe { values.add(i).read() }));
    Ok(read)
}

/// Anything but 0 is true.
fn flag(value: MaybeUninit<bool>) -> bool {
    // SAFETY: a C caller initialises the byte, whatever its value.
    unsafe { value.as_ptr().cast::<u8>().read() != 0 }
}

/// A string of C; empty for null.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn text(name: &str, text: *const c_char) -> Result<String> {
    if text.is_null() {
        return Ok(String::new());
    }
    // SAFETY: the caller vouches for the string.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) if text.len() < 256 => Ok(text.to_owned()),
        _ => Err(Error::argument(name, "UTF-8 of less than 256 bytes", format!("{text:?}"))),
    }
}

// ---- Recipes

const ROLE_OPTIONS: NVTEXRoleOptions =
    NVTEXRoleOptions { power_2_scales: MaybeUninit::new(false), amax_epsilon: 0.0, block_dim: 1 };

/// Defaults of a kind (spec: modules, section 2.2).
fn recipe_defaults(kind: NVTEXRecipeKind) -> NVTEXRecipeConfig {
    use NVTEXRecipeKind::*;
    let block = kind == NVTEX_RECIPE_BLOCK_SCALING;
    let e4m3 = block || kind == NVTEX_RECIPE_MXFP8;
    let options = NVTEXRoleOptions { power_2_scales: MaybeUninit::new(block), ..ROLE_OPTIONS };
    NVTEXRecipeConfig {
        struct_size: size_of::<NVTEXRecipeConfig>(),
        kind: MaybeUninit::new(kind),
        format: MaybeUninit::new(match e4m3 {
            true => NVTEXFormat::NVTEX_FORMAT_E4M3,
            false => NVTEXFormat::NVTEX_FORMAT_HYBRID,
        }),
        margin: 0.0,
        amax_history_len: 1024,
        amax_algo: MaybeUninit::new(NVTEXHistoryAlgo::NVTEX_HISTORY_MAX),
        update_interval: 1,
        reduce_amax: MaybeUninit::new(true),
        input: options,
        weight: NVTEXRoleOptions { block_dim: if block { 2 } else { 1 }, ..options },
        grad_output: options,
        split_accumulator_fprop: MaybeUninit::new(block),
        split_accumulator_dgrad: MaybeUninit::new(true),
        split_accumulator_wgrad: MaybeUninit::new(true),
        backward: MaybeUninit::new(NVTEXBackward::NVTEX_BACKWARD_QUANTIZED),
        choose: None,
        user: null_mut(),
        fp8_dpa: MaybeUninit::new(false),
    }
}

impl Default for NVTEXRecipeConfig {
    fn default() -> Self {
        recipe_defaults(NVTEXRecipeKind::NVTEX_RECIPE_DELAYED_SCALING)
    }
}

fn role_options(options: &NVTEXRoleOptions) -> RoleOptions {
    RoleOptions {
        pow2: flag(options.power_2_scales),
        epsilon: options.amax_epsilon,
        block_dim: options.block_dim,
    }
}

/// # Safety
/// As [`read_config`].
unsafe fn recipe(config: *const NVTEXRecipeConfig) -> Result<Recipe> {
    use NVTEXRecipeKind::*;
    // SAFETY: the caller vouches for the config.
    let config = unsafe { read_config("config", config) }?;
    let format: NVTEXFormat = from_c("config.format", config.format)?;
    if format == NVTEXFormat::NVTEX_FORMAT_E5M2 {
        let expected = "E4M3 or HYBRID (two E5M2 operands have no product)";
        return Err(Error::argument("config.format", expected, "E5M2"));
    }
    let algo: NVTEXHistoryAlgo = from_c("config.amax_algo", config.amax_algo)?;
    let kind = from_c("config.kind", config.kind)?;
    if config.choose.is_some() != (kind == NVTEX_RECIPE_CUSTOM) {
        let (expected, got) = match config.choose {
            Some(_) => ("null (the kind is not NVTEX_RECIPE_CUSTOM)", "a function"),
            None => ("a function (the kind is NVTEX_RECIPE_CUSTOM)", "null"),
        };
        return Err(Error::argument("config.choose", expected, got));
    }
    let recipe = Recipe {
        kind: match kind {
            NVTEX_RECIPE_DELAYED_SCALING => Kind::Delayed,
            NVTEX_RECIPE_CURRENT_SCALING => Kind::Current,
            NVTEX_RECIPE_BLOCK_SCALING => Kind::Block,
            NVTEX_RECIPE_MXFP8 => Kind::Mxfp8,
            NVTEX_RECIPE_CUSTOM => Kind::Custom(choice(config.choose, config.user as usize)),
        },
        hybrid: format == NVTEXFormat::NVTEX_FORMAT_HYBRID,
        rule: Rule {
            most_recent: algo == NVTEXHistoryAlgo::NVTEX_HISTORY_MOST_RECENT,
            history_length: config.amax_history_len,
            margin: config.margin,
            interval: config.update_interval,
            reduce: flag(config.reduce_amax),
        },
        roles: [&config.input, &config.weight, &config.grad_output].map(role_options),
        split: [
            config.split_accumulator_fprop,
            config.split_accumulator_dgrad,
            config.split_accumulator_wgrad,
        ]
        .map(flag),
        backward: match from_c("config.backward", config.backward)? {
            NVTEXBackward::NVTEX_BACKWARD_QUANTIZED => BackwardOperands::Quantized,
            NVTEXBackward::NVTEX_BACKWARD_HIGH_PRECISION => BackwardOperands::HighPrecision,
            NVTEXBackward::NVTEX_BACKWARD_DEQUANTIZED => BackwardOperands::Dequantized,
        },
        attention: flag(config.fp8_dpa),
    };
    recipe.check("config")?;
    Ok(recipe)
}

/// The caller's choice of quantizers.
fn choice(choose: NVTEXChoose, user: usize) -> Box<Choose> {
    Box::new(move |layer: &CString, role: Role| {
        let Some(choose) = choose else {
            return Ok(Quantizer::NONE);
        };
        let mut choice = NVTEXSlotChoice {
            scaling: MaybeUninit::new(NVTEXSlotScaling::NVTEX_SLOT_HIGH_PRECISION),
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat8E4M3),
            options: ROLE_OPTIONS,
        };
        let c_role = match role {
            Role::Input => NVTEXRole::NVTEX_ROLE_INPUT,
            Role::Weight => NVTEXRole::NVTEX_ROLE_WEIGHT,
            Role::GradOutput => NVTEXRole::NVTEX_ROLE_GRAD_OUTPUT,
        };
        let name = format!("recipe.choose({}, {})", layer.to_string_lossy(), role.name());
        let user = user as *mut c_void;
        // SAFETY: the caller vouches for the function.
        let status =
            callback::call(&name, || unsafe { choose(user, layer.as_ptr(), c_role, &mut choice) })?;
        if status != 0 {
            return Err(Error::argument(name, "0", status));
        }
        quantizer(&name, role, &choice)
    })
}

fn quantizer(name: &str, role: Role, choice: &NVTEXSlotChoice) -> Result<Quantizer> {
    use NVTEXSlotScaling::*;
    let RoleOptions { pow2, epsilon, block_dim } = role_options(&choice.options);
    let kind: NVTEXSlotScaling = from_c(format_args!("{name}.scaling"), choice.scaling)?;
    if !(epsilon.is_finite() && epsilon >= 0.0) {
        let name = format!("{name}.options.amax_epsilon");
        return Err(Error::argument(name, "a finite number, at least 0", epsilon));
    }
    let square_allowed =
        kind == NVTEX_SLOT_BLOCK || kind == NVTEX_SLOT_MXFP8 && role == Role::Weight;
    if block_dim != 1 && !(block_dim == 2 && square_allowed) {
        let expected = if square_allowed { "1 or 2" } else { "1" };
        return Err(Error::argument(format!("{name}.options.block_dim"), expected, block_dim));
    }
    let square = block_dim == 2;
    let scaling = match kind {
        NVTEX_SLOT_HIGH_PRECISION => return Ok(Quantizer::NONE),
        NVTEX_SLOT_DELAYED => Scaling::Delayed,
        NVTEX_SLOT_CURRENT => Scaling::Current { pow2, epsilon },
        NVTEX_SLOT_BLOCK => Scaling::Block { square, pow2, epsilon },
        NVTEX_SLOT_MXFP8 => Scaling::Mxfp8 { square },
    };
    let dtype = from_c(format_args!("{name}.dtype"), choice.dtype)?;
    check::fp8(name, dtype)?;
    Ok(Quantizer { scaling, dtype })
}

// ---- Contexts

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
                    // SAFETY: as above.
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
    let sm_count = match config.multiprocessor_count {
        0 => 132,
        count if count > 0 => count,
        count => {
            let name = "config.multiprocessor_count";
            return Err(Error::argument(name, "0 or more", count));
        }
    };
    let max_unused = (config.max_unused_bytes != 0).then_some(config.max_unused_bytes);
    Ok(Context::new((callbacks, max_unused), reduce, sm_count))
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
    context.load(state, stream)
}

// ---- Modules

/// # Safety
/// As [`read_config`]; null gives defaults.
unsafe fn rotary(
    frequencies: NVTETensor,
    config: *const NVTEXRotaryConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let config = match config.is_null() {
        true => NVTEXRotaryConfig::default(),
        // SAFETY: the caller vouches for the config.
        false => unsafe { read_config("config", config) }?,
    };
    let buffer = check::tensor("frequencies", frequencies)?.rowwise;
    check::dtype("frequencies", buffer.dtype, &[NVTEDType::kNVTEFloat32])?;
    let (rows, cols) = match *buffer.shape.dims() {
        [rows, 1, 1, cols] if cols > 0 && cols.is_multiple_of(2) => (rows, cols),
        _ => {
            let expected = "[rows, 1, 1, d2] with an even d2";
            return Err(Error::argument("frequencies.shape", expected, buffer.shape));
        }
    };
    check::pointer("frequencies.data", &buffer)?;
    let factor = f64::from(config.interpolation_factor);
    if !(factor.is_finite() && factor >= 0.0) {
        return Err(Error::argument("config.interpolation_factor", "at least 0", factor));
    }
    if !(config.base.is_finite() && config.base > 0.0) {
        return Err(Error::argument("config.base", "a finite number above 0", config.base));
    }
    let pretrained = config.pretrained_length as f64;
    let divisor = match rows as f64 > pretrained * factor && pretrained * factor > 0.0 {
        true => rows as f64 / pretrained,
        false if factor > 0.0 => factor,
        false => 1.0,
    };
    let pair = |column| if flag(config.interleaved) { column / 2 } else { column % (cols / 2) };
    let angle = |row: usize, column: usize| {
        let rate = f64::from(config.base).powf(-2.0 * pair(column) as f64 / cols as f64);
        ((config.offset as f64 + row as f64) / divisor * rate) as f32
    };
    let mut angles = host_room(rows * cols)?;
    for row in 0..rows {
        angles.extend((0..cols).map(|column| angle(row, column)));
    }
    upload(buffer.ptr(), &angles, stream)
}

/// # Safety
/// `out` is null or begins with its size.
unsafe fn describe(module: NVTEXModule, index: usize, out: *mut NVTEXParameter) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    check::address("parameter", out)?;
    // SAFETY: the first field is the size.
    let size = unsafe { out.cast::<usize>().read() };
    NVTEXParameter::check_size("parameter.", size)?;
    let size = size.min(size_of::<NVTEXParameter>());
    module.parameter(index, |parameter, view| {
        let described = NVTEXParameter {
            struct_size: size,
            name: view.name.as_ptr(),
            shape: Shape::new(&parameter.dims).to_c(),
            dtype: MaybeUninit::new(parameter.dtype),
            value: view.value as NVTETensor,
            quantized: MaybeUninit::new(parameter.format.is_some()),
        };
        // SAFETY: the caller vouches for the bytes.
        unsafe {
            let from = std::ptr::from_ref(&described).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, out.cast::<u8>(), size);
        }
        Ok(())
    })
}

fn set_parameter(module: NVTEXModule, index: usize, value: NVTETensor) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    let value = check::tensor("value", value)?;
    module.parameter(index, |parameter, view| {
        parameter.bind("value", &value)?;
        TENSORS.write("value", view.value as NVTETensor, |tensor| *tensor = value)
    })
}

fn assign_parameter(
    module: NVTEXModule,
    index: usize,
    value: NVTETensor,
    stream: cudaStream_t,
) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    let value = check::tensor("value", value)?;
    module.parameter(index, |parameter, _| {
        parameter.check("value", &value, check::HIGH_PRECISION)?;
        parameter.assign(&module.run(stream), &value, false)
    })
}

/// # Safety
/// `value` has `count` floats.
unsafe fn initial_value(
    module: NVTEXModule,
    index: usize,
    value: *mut f32,
    count: usize,
) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    check::array("value", value, ("count", count))?;
    module.parameter(index, |parameter, _| {
        if count != parameter.numel() {
            return Err(Error::argument("count", parameter.numel(), count));
        }
        // SAFETY: the caller vouches for the array.
        unsafe { std::ptr::copy_nonoverlapping(parameter.initial()?.as_ptr(), value, count) };
        Ok(())
    })
}

fn precision(
    module: NVTEXModule,
    index: usize,
    role: NVTEXRole,
    choice: *mut NVTEXSlotChoice,
) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    check::address("choice", choice)?;
    module.parameter(index, |parameter, view| {
        let Some(roles) = &parameter.multiplied else {
            let expected = "a weight whose products a forward pass has computed";
            let got = format!("{} ({:?}), for which there is none", index, view.name);
            return Err(Error::argument("index", expected, got));
        };
        let quantizer = &roles[role as usize];
        let high = quantizer.is_none();
        let dtype = if high { parameter.dtype } else { quantizer.dtype };
        let (options, scaling) = slot_choice(quantizer);
        // SAFETY: not null, and the caller vouches for the struct.
        unsafe {
            choice.write(NVTEXSlotChoice {
                scaling: MaybeUninit::new(scaling),
                dtype: MaybeUninit::new(dtype),
                options,
            });
        }
        Ok(())
    })
}

/// What a chooser would write for a quantizer.
fn slot_choice(quantizer: &Quantizer) -> (NVTEXRoleOptions, NVTEXSlotScaling) {
    use NVTEXSlotScaling::*;
    let options = |pow2, epsilon, square| NVTEXRoleOptions {
        power_2_scales: MaybeUninit::new(pow2),
        amax_epsilon: epsilon,
        block_dim: if square { 2 } else { 1 },
    };
    match quantizer.scaling {
        Scaling::None => (ROLE_OPTIONS, NVTEX_SLOT_HIGH_PRECISION),
        Scaling::Delayed => (ROLE_OPTIONS, NVTEX_SLOT_DELAYED),
        Scaling::Current { pow2, epsilon } => (options(pow2, epsilon, false), NVTEX_SLOT_CURRENT),
        Scaling::Block { square, pow2, epsilon } => {
            (options(pow2, epsilon, square), NVTEX_SLOT_BLOCK)
        }
        Scaling::Mxfp8 { square } => (options(false, 0.0, square), NVTEX_SLOT_MXFP8),
    }
}

fn set_gradient(
    module: NVTEXModule,
    index: usize,
    grad: NVTETensor,
    accumulate: bool,
) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    let grad = if grad.is_null() { None } else { Some(check::tensor("grad", grad)?) };
    module.parameter(index, |parameter, _| parameter.bind_grad("grad", grad.as_ref(), accumulate))
}

// ---- Passes

/// The tensors of an array of handles, as many as the module has.
///
/// # Safety
/// The array has `count` handles.
unsafe fn tensors(
    name: &'static str,
    (handles, count): (*const NVTETensor, usize),
    arity: usize,
) -> Result<Tensors> {
    check::array(name, handles, (&format!("num_{name}"), count))?;
    if count > arity {
        return Err(Error::argument(format!("num_{name}"), format!("at most {arity}"), count));
    }
    let mut list = vec![None; arity];
    for (i, slot) in list.iter_mut().enumerate().take(count) {
        // SAFETY: the caller vouches for the array.
        let handle = unsafe { handles.add(i).read() };
        if !handle.is_null() {
            *slot = Some(check::tensor(&format!("{name}[{i}]"), handle)?);
        }
    }
    Ok(Tensors { name, list })
}

/// # Safety
/// Arrays and structs are what the export says.
unsafe fn forward(
    module: NVTEXModule,
    inputs: (*const NVTETensor, usize),
    outputs: (*const NVTETensor, usize),
    step: *const NVTEXStep,
    tape: *mut NVTEXTape,
    stream: cudaStream_t,
) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    let step = match step.is_null() {
        true => NVTEXStep::default(),
        // SAFETY: the caller vouches for the struct.
        false => unsafe { read_config("step", step) }?,
    };
    let microbatch = match from_c("step.microbatch", step.microbatch)? {
        NVTEXMicrobatch::NVTEX_MICROBATCH_NONE => Microbatch::None,
        NVTEXMicrobatch::NVTEX_MICROBATCH_FIRST => Microbatch::First,
        NVTEXMicrobatch::NVTEX_MICROBATCH_LATER => Microbatch::Later,
    };
    check::noop("step.skip_weight_update", step.skip_weight_update)?;
    let mut layer = lock(&module.layer);
    let (num_inputs, num_outputs) = layer.arity();
    // SAFETY: the caller vouches for the arrays.
    let (inputs, outputs) = unsafe {
        (tensors("inputs", inputs, num_inputs)?, tensors("outputs", outputs, num_outputs)?)
    };
    let training = !tape.is_null();
    let optional = |name: &str, handle: NVTETensor| match handle.is_null() {
        true => Ok(None),
        false => check::tensor(&format!("step.{name}"), handle).map(Some),
    };
    let rng_state = optional("rng_state", step.rng_state)?;
    if let Some(state) = &rng_state {
        check::dtype("step.rng_state", state.rowwise.dtype, &[NVTEDType::kNVTEInt64])?;
        check::shape("step.rng_state", &state.rowwise.shape, &Shape::new(&[2]))?;
        check::pointer("step.rng_state.data", &state.rowwise)?;
    }
    let sums = |name: &str, handle: NVTETensor| {
        let sums = optional(name, handle)?;
        if let Some(rowwise) = sums.as_ref().map(|sums| &sums.rowwise) {
            check::dtype(format_args!("step.{name}"), rowwise.dtype, &[NVTEDType::kNVTEInt32])?;
            if rowwise.shape.numel() == 0 {
                let name = format!("step.{name}.shape");
                return Err(Error::argument(name, "[b + 1] for b sequences", rowwise.shape));
            }
            check::pointer(format_args!("step.{name}.data"), rowwise)?;
        }
        Ok(sums)
    };
    let frequencies = optional("rotary_frequencies", step.rotary_frequencies)?;
    if let Some(rowwise) = frequencies.as_ref().map(|table| &table.rowwise) {
        let name = "step.rotary_frequencies";
        check::dtype(name, rowwise.dtype, &[NVTEDType::kNVTEFloat32])?;
        check::pointer("step.rotary_frequencies.data", rowwise)?;
    }
    // SAFETY: the caller vouches for the array.
    let splits =
        unsafe { array("step.m_splits", step.m_splits, ("step.num_splits", step.num_splits)) }?;
    let kv_cache = kv_cache::of_step(&module.context, step.kv_cache, training)?;
    let run = Run {
        training,
        splits,
        kv_cache,
        microbatch,
        skip_weights: step.skip_weight_update,
        rng_state,
        cu_seqlens: [
            sums("cu_seqlens_q", step.cu_seqlens_q)?,
            sums("cu_seqlens_kv", step.cu_seqlens_kv)?,
            sums("cu_seqlens_q_padded", step.cu_seqlens_q_padded)?,
            sums("cu_seqlens_kv_padded", step.cu_seqlens_kv_padded)?,
        ],
        max_seqlen: [step.max_seqlen_q, step.max_seqlen_kv],
        frequencies,
        ..module.run(stream)
    };
    Tensors::apart(&inputs, &outputs)?;
    let saved = layer.forward(&run, &inputs, &outputs)?;
    drop(layer);
    if training {
        let saved = Mutex::new(saved);
        let made = TAPES.insert(Arc::new(Tape { module, saved, microbatch }))?;
        // SAFETY: the caller vouches for the pointer.
        unsafe { tape.write(made) };
    }
    Ok(())
}

/// # Safety
/// The arrays are what the export says.
unsafe fn backward(
    module: NVTEXModule,
    tape: NVTEXTape,
    grad_outputs: (*const NVTETensor, usize),
    grad_inputs: (*const NVTETensor, usize),
    stream: cudaStream_t,
) -> Result<()> {
    let module = open(&MODULES, "module", module)?;
    let tape = open(&TAPES, "tape", tape)?;
    if !Arc::ptr_eq(&tape.module, &module) {
        let expected = format!("a tape of this module, {module}");
        return Err(Error::argument("tape", expected, format!("one of {}", tape.module)));
    }
    let mut layer = lock(&module.layer);
    let (num_inputs, num_outputs) = layer.arity();
    // SAFETY: the caller vouches for the arrays.
    let (grad_outputs, grad_inputs) = unsafe {
        (
            tensors("grad_outputs", grad_outputs, num_outputs)?,
            tensors("grad_inputs", grad_inputs, num_inputs)?,
        )
    };
    Tensors::apart(&grad_outputs, &grad_inputs)?;
    let microbatch = tape.microbatch;
    let run = Run { training: true, microbatch, ..module.run(stream) };
    layer.backward(&run, &**lock(&tape.saved), [&grad_outputs, &grad_inputs])
}
