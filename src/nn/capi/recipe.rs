//! Recipes: which formats and scales the operands of products have (spec: modules, section 2).
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;
use num_derive::FromPrimitive;

/// What a handle of a recipe points to. Only the library knows what it is.
pub enum NVTEXRecipe_st {}

/// Handle of a recipe.
pub type NVTEXRecipe = *mut NVTEXRecipe_st;

/// How operands of matrix products are scaled.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXRecipeKind {
    /// One scale for a tensor, from the maxima of earlier steps.
    NVTEX_RECIPE_DELAYED_SCALING = 0,
    /// One scale for a tensor, from its own maximum.
    NVTEX_RECIPE_CURRENT_SCALING = 1,
    /// A scale for each 128 elements, or 128 x 128.
    NVTEX_RECIPE_BLOCK_SCALING = 2,
    /// A power of two for each 32 elements, or 32 x 32 of a weight.
    NVTEX_RECIPE_MXFP8 = 3,
    /// The function `choose` says how each operand is scaled.
    NVTEX_RECIPE_CUSTOM = 4,
    /// NVFP4: a Float8E4M3 for each 16 elements, or 16 x 16 of a weight, and a factor for the tensor.
    /// For modules in Float32 or BFloat16, with inputs of a multiple of 16 rows.
    NVTEX_RECIPE_NVFP4 = 5,
}

from_c_enum!(NVTEXRecipeKind, "an NVTEXRecipeKind from 0 to 5");

/// FP8 types of a recipe.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXFormat {
    NVTEX_FORMAT_E4M3 = 0,
    /// E5M2 for everything. Every recipe refuses it, because two E5M2 operands cannot be multiplied.
    NVTEX_FORMAT_E5M2 = 1,
    /// E4M3, and E5M2 for gradients.
    NVTEX_FORMAT_HYBRID = 2,
}

from_c_enum!(NVTEXFormat, "an NVTEXFormat from 0 to 2");

/// Which maximum of a history counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXHistoryAlgo {
    NVTEX_HISTORY_MAX = 0,
    NVTEX_HISTORY_MOST_RECENT = 1,
}

from_c_enum!(NVTEXHistoryAlgo, "an NVTEXHistoryAlgo, 0 or 1");

/// Operands of the products of a layer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXRole {
    NVTEX_ROLE_INPUT = 0,
    NVTEX_ROLE_WEIGHT = 1,
    NVTEX_ROLE_GRAD_OUTPUT = 2,
}

from_c_enum!(NVTEXRole, "an NVTEXRole from 0 to 2");

/// What a recipe says of one role.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXRoleOptions {
    /// Rounds scales down to powers of two (current scaling, FP8 blocks).
    pub power_2_scales: MaybeUninit<bool>,
    /// The least maximum that counts (current scaling, FP8 blocks).
    pub amax_epsilon: f32,
    /// 1: blocks along rows; 2: square ones (FP8 blocks; MXFP8 and NVFP4 weights).
    pub block_dim: i32,
}

/// Scaling of an operand, for `NVTEX_RECIPE_CUSTOM`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXSlotScaling {
    /// The operand stays in high precision.
    NVTEX_SLOT_HIGH_PRECISION = 0,
    NVTEX_SLOT_DELAYED = 1,
    NVTEX_SLOT_CURRENT = 2,
    NVTEX_SLOT_BLOCK = 3,
    NVTEX_SLOT_MXFP8 = 4,
    NVTEX_SLOT_NVFP4 = 5,
}

from_c_enum!(NVTEXSlotScaling, "an NVTEXSlotScaling from 0 to 5");

/// The choice for one operand.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXSlotChoice {
    pub scaling: MaybeUninit<NVTEXSlotScaling>,
    /// Float8E4M3 or Float8E5M2; Float4E2M1 of NVFP4.
    pub dtype: MaybeUninit<NVTEDType>,
    pub options: NVTEXRoleOptions,
}

/// Chooses for an operand of the layer `layer` (a module's name, followed by a dot and the part if it
/// has parts) by writing to `choice`, which at first says what the kind of the recipe says; of
/// `NVTEX_RECIPE_CUSTOM` high precision. So a layer stays in high precision where all its roles do. It
/// returns 0, or anything else for failure. An unknown number is an error. The rules of
/// `NVTEXContextConfig` for its functions hold.
pub type NVTEXChoose = Option<
    unsafe extern "C-unwind" fn(
        user: *mut c_void,
        layer: *const c_char,
        role: NVTEXRole,
        choice: *mut NVTEXSlotChoice,
    ) -> c_int,
>;

/// Operands of the products of the backward pass.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXBackward {
    /// Gradients, inputs and weights as the recipe casts them.
    NVTEX_BACKWARD_QUANTIZED = 0,
    /// Gradients, inputs and weights in high precision. Not with delayed scaling.
    NVTEX_BACKWARD_HIGH_PRECISION = 1,
    /// Gradients in high precision, and inputs and weights cast back from what the forward pass read. Not
    /// with delayed scaling.
    NVTEX_BACKWARD_DEQUANTIZED = 2,
}

from_c_enum!(NVTEXBackward, "an NVTEXBackward from 0 to 2");

/// A recipe. `nvtex_recipe_config_init` sets the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXRecipeConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    pub kind: MaybeUninit<NVTEXRecipeKind>,
    /// FP8 types. Default: hybrid; E4M3 in block recipes.
    pub format: MaybeUninit<NVTEXFormat>,
    /// Delayed scaling multiplies scales by `2^-margin`. Default 0.
    pub margin: f32,
    /// Delayed scaling: maxima that are kept. Default 1024.
    pub amax_history_len: usize,
    pub amax_algo: MaybeUninit<NVTEXHistoryAlgo>,
    /// Delayed scaling: histories and scales change in every n-th update, with n this number. The maxima
    /// of the updates between count as those of one step. Default 1.
    pub update_interval: u32,
    /// Delayed scaling: maxima are reduced over the group of `nvtex_context_begin`. Default true.
    pub reduce_amax: MaybeUninit<bool>,
    pub input: NVTEXRoleOptions,
    pub weight: NVTEXRoleOptions,
    pub grad_output: NVTEXRoleOptions,
    /// Sums the products of each pass more precisely. Defaults: false, true, true; for FP8 blocks,
    /// which need it, always true.
    pub split_accumulator_fprop: MaybeUninit<bool>,
    pub split_accumulator_dgrad: MaybeUninit<bool>,
    pub split_accumulator_wgrad: MaybeUninit<bool>,
    /// Default: quantized.
    pub backward: MaybeUninit<NVTEXBackward>,
    /// The function that chooses for each layer and role, and its first argument. Null (default): all are
    /// as the kind says, which `NVTEX_RECIPE_CUSTOM` has nothing to say about.
    pub choose: NVTEXChoose,
    pub user: *mut c_void,
    /// Attention reads queries, keys and values in E4M3, with one scale for a tensor from its own
    /// maximum. Its result is in high precision, and so are the gradients, which are those of what the
    /// forward pass has read. This is for delayed and current scaling, without a cache of keys and
    /// values. Default: false.
    pub fp8_dpa: MaybeUninit<bool>,
    /// NVFP4: inputs and gradients go through a random Hadamard transform of each 16 rows before they are
    /// cast for the product of the weight's gradient. Default: true.
    pub nvfp4_hadamard: MaybeUninit<bool>,
    /// NVFP4: gradients are rounded stochastically, by the `rng_state` of the step, which is needed then.
    /// Default: true.
    pub nvfp4_stochastic_rounding: MaybeUninit<bool>,
}

/// Sets the defaults of a kind of recipe in the first `struct_size` bytes of a config.
///
/// Errors: null; a `struct_size` that has no room for the field `struct_size` itself; an unknown kind.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_recipe_config_init(
    config: *mut NVTEXRecipeConfig,
    struct_size: usize,
    kind: MaybeUninit<NVTEXRecipeKind>,
) {
    guard("nvtex_recipe_config_init", || {
        let default = recipe_defaults(from_c("kind", kind)?);
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &default) }
    });
}

/// Creates a recipe, which never changes. Destroy it with `nvtex_recipe_destroy`; contexts that use it
/// keep it alive.
///
/// Errors: fields that are unknown, out of range, or do not go together; each is named.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_recipe_create(
    config: *const NVTEXRecipeConfig,
) -> NVTEXRecipe {
    guard("nvtex_recipe_create", || {
        // SAFETY: the caller vouches for the config.
        Ok(Handle(RECIPES.insert(Arc::new(unsafe { recipe(config) }?))?))
    })
    .0
}

/// Destroys a recipe. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_recipe_destroy(recipe: NVTEXRecipe) {
    guard("nvtex_recipe_destroy", || remove(&RECIPES, "recipe", recipe));
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
    fp8_dpa,
    nvfp4_hadamard,
    nvfp4_stochastic_rounding
});

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
        weight: NVTEXRoleOptions {
            block_dim: if block || kind == NVTEX_RECIPE_NVFP4 { 2 } else { 1 },
            ..options
        },
        grad_output: options,
        split_accumulator_fprop: MaybeUninit::new(block),
        split_accumulator_dgrad: MaybeUninit::new(true),
        split_accumulator_wgrad: MaybeUninit::new(true),
        backward: MaybeUninit::new(NVTEXBackward::NVTEX_BACKWARD_QUANTIZED),
        choose: None,
        user: null_mut(),
        fp8_dpa: MaybeUninit::new(false),
        nvfp4_hadamard: MaybeUninit::new(true),
        nvfp4_stochastic_rounding: MaybeUninit::new(true),
    }
}

impl Default for NVTEXRecipeConfig {
    fn default() -> Self {
        recipe_defaults(NVTEXRecipeKind::NVTEX_RECIPE_DELAYED_SCALING)
    }
}

fn role_options(options: &NVTEXRoleOptions) -> RoleOptions {
    RoleOptions {
        pow2: truth(options.power_2_scales),
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
        let expected = "E4M3 or HYBRID (two E5M2 operands cannot be multiplied)";
        return Err(Error::argument("config.format", expected, "E5M2"));
    }
    let algo: NVTEXHistoryAlgo = from_c("config.amax_algo", config.amax_algo)?;
    let kind = from_c("config.kind", config.kind)?;
    if config.choose.is_none() && kind == NVTEX_RECIPE_CUSTOM {
        let expected = "a function (the kind is NVTEX_RECIPE_CUSTOM)";
        return Err(Error::argument("config.choose", expected, "null"));
    }
    let hadamard = truth(config.nvfp4_hadamard);
    let stochastic = truth(config.nvfp4_stochastic_rounding);
    let recipe = Recipe {
        kind: match kind {
            NVTEX_RECIPE_DELAYED_SCALING => Kind::Delayed,
            NVTEX_RECIPE_CURRENT_SCALING => Kind::Current,
            NVTEX_RECIPE_BLOCK_SCALING => Kind::Block,
            NVTEX_RECIPE_MXFP8 => Kind::Mxfp8,
            NVTEX_RECIPE_CUSTOM => Kind::Custom,
            NVTEX_RECIPE_NVFP4 => Kind::Nvfp4,
        },
        choose: config
            .choose
            .map(|choose| choice(choose, config.user as usize, (hadamard, stochastic))),
        hadamard,
        stochastic,
        hybrid: format == NVTEXFormat::NVTEX_FORMAT_HYBRID,
        rule: Rule {
            most_recent: algo == NVTEXHistoryAlgo::NVTEX_HISTORY_MOST_RECENT,
            history_length: config.amax_history_len,
            margin: config.margin,
            interval: config.update_interval,
            reduce: truth(config.reduce_amax),
        },
        roles: [&config.input, &config.weight, &config.grad_output].map(role_options),
        split: [
            config.split_accumulator_fprop,
            config.split_accumulator_dgrad,
            config.split_accumulator_wgrad,
        ]
        .map(truth),
        backward: match from_c("config.backward", config.backward)? {
            NVTEXBackward::NVTEX_BACKWARD_QUANTIZED => BackwardOperands::Quantized,
            NVTEXBackward::NVTEX_BACKWARD_HIGH_PRECISION => BackwardOperands::HighPrecision,
            NVTEXBackward::NVTEX_BACKWARD_DEQUANTIZED => BackwardOperands::Dequantized,
        },
        attention: truth(config.fp8_dpa),
    };
    recipe.check("config")?;
    Ok(recipe)
}

type ChooseFunction = unsafe extern "C-unwind" fn(
    user: *mut c_void,
    layer: *const c_char,
    role: NVTEXRole,
    choice: *mut NVTEXSlotChoice,
) -> c_int;

/// The caller's choice of quantizers.
fn choice(choose: ChooseFunction, user: usize, nvfp4: (bool, bool)) -> Box<Choose> {
    Box::new(move |layer: &CString, role: Role, default: Quantizer| {
        let (options, scaling) = slot_choice(&default);
        let mut choice = NVTEXSlotChoice {
            scaling: MaybeUninit::new(scaling),
            dtype: MaybeUninit::new(match default.is_none() {
                true => NVTEDType::kNVTEFloat8E4M3,
                false => default.dtype,
            }),
            options,
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
            return Err(Error::argument(name, "the function to return 0", status));
        }
        quantizer(&name, role, &choice, nvfp4)
    })
}

fn quantizer(
    name: &str,
    role: Role,
    choice: &NVTEXSlotChoice,
    nvfp4: (bool, bool),
) -> Result<Quantizer> {
    use NVTEXSlotScaling::*;
    let RoleOptions { pow2, epsilon, block_dim } = role_options(&choice.options);
    let kind: NVTEXSlotScaling = from_c(format_args!("{name}.scaling"), choice.scaling)?;
    if !(epsilon.is_finite() && epsilon >= 0.0) {
        let name = format!("{name}.options.amax_epsilon");
        return Err(Error::argument(name, "a finite number, at least 0", epsilon));
    }
    let square_allowed = kind == NVTEX_SLOT_BLOCK
        || matches!(kind, NVTEX_SLOT_MXFP8 | NVTEX_SLOT_NVFP4) && role == Role::Weight;
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
        NVTEX_SLOT_NVFP4 => Scaling::nvfp4(role, square, nvfp4),
    };
    let dtype = from_c(format_args!("{name}.dtype"), choice.dtype)?;
    match kind {
        NVTEX_SLOT_NVFP4 => check::dtype(name, dtype, &[NVTEDType::kNVTEFloat4E2M1])?,
        _ => check::fp8(name, dtype)?,
    }
    Ok(Quantizer { scaling, dtype })
}

/// What a chooser would write for a quantizer.
pub(super) fn slot_choice(quantizer: &Quantizer) -> (NVTEXRoleOptions, NVTEXSlotScaling) {
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
        Scaling::Nvfp4 { square, .. } => (options(false, 0.0, square), NVTEX_SLOT_NVFP4),
    }
}
