//! Optimizers over the parameters of modules.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;

/// What a handle of an optimizer points to. Only the library knows what it is.
pub enum NVTEXOptimizer_st {}

/// Handle of an optimizer.
pub type NVTEXOptimizer = *mut NVTEXOptimizer_st;

/// How a parameter is updated.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXUpdateRule {
    /// AdamW: Adam with a weight decay that acts on the parameter.
    NVTEX_UPDATE_ADAMW = 0,
    /// Gradient descent with momentum; the weight decay is part of the gradient.
    NVTEX_UPDATE_SGD = 1,
    /// Muon for matrices; as the rule of a whole optimizer, AdamW for other parameters.
    NVTEX_UPDATE_MUON = 2,
    /// None: the parameter stays, and gets no gradient.
    NVTEX_UPDATE_NONE = 3,
}

from_c_enum!(NVTEXUpdateRule, "an NVTEXUpdateRule from 0 to 3");

/// In what an optimizer keeps parameters of 16 bits beside their values. Those in FP8 alone always have Float32
/// masters.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXMasters {
    /// Float32 masters.
    NVTEX_MASTERS_FLOAT32 = 0,
    /// The low 16 bits of Float32 masters, for BFloat16 parameters under AdamW; the value is the high half, rounded.
    /// Others have Float32 masters.
    NVTEX_MASTERS_REMAINDER = 1,
    /// None: values are updated and rounded in each step.
    NVTEX_MASTERS_NONE = 2,
}

from_c_enum!(NVTEXMasters, "an NVTEXMasters from 0 to 2");

/// How the learning rate follows from the number s of steps before this one, with W steps of warm-up and T in all:
/// `learning_rate * (s + 1) / (W + 1)` while s < W, then by `p = min(1, (s - W) / (T - W))`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXSchedule {
    /// `learning_rate`
    NVTEX_SCHEDULE_CONSTANT = 0,
    /// `learning_rate * (1 - (1 - last) * p)`, where `last` is `last_rate_factor`.
    NVTEX_SCHEDULE_LINEAR = 1,
    /// `learning_rate * (last + (1 - last) * (1 + cos(pi * p)) / 2)`
    NVTEX_SCHEDULE_COSINE = 2,
}

from_c_enum!(NVTEXSchedule, "an NVTEXSchedule from 0 to 2");

/// What holds for one parameter.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXUpdateOptions {
    pub rule: MaybeUninit<NVTEXUpdateRule>,
    pub weight_decay: f32,
    /// What the learning rate is multiplied by for this parameter.
    pub learning_rate_factor: f32,
}

/// Chooses the options of a parameter, which come with what the config says: `name` is the name of its module, a
/// point, and its name in the module. It returns 0, or anything else for failure. The rules of `NVTEXContextConfig`
/// for its functions hold.
pub type NVTEXChooseUpdate = Option<
    unsafe extern "C-unwind" fn(
        user: *mut c_void,
        name: *const c_char,
        shape: *const NVTEShape,
        options: *mut NVTEXUpdateOptions,
    ) -> c_int,
>;

/// What an optimizer does.
///
/// A step, in this order:
/// 1. The norm over all gradients, if there is something to clip, a dynamic loss scale, or `check_gradients`. If it
///    is not finite the step changes nothing, and counts as skipped.
/// 2. The numbers of the step, on the device: its number (skipped ones do not count), the learning rate, the loss
///    scale of the next step, and one factor for all gradients: `1 / (loss_scale * accumulation_steps)`, and if there
///    is something to clip `min(1, max_norm / (norm + 1e-6))`, where the norm is that after the first factor.
/// 3. The updates, which read gradients times this factor. Gradients stay as they are.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXOptimizerConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    pub rule: MaybeUninit<NVTEXUpdateRule>,
    pub learning_rate: f32,
    /// Of parameters of two or more dimensions; those of one (biases, gains of norms) have none.
    pub weight_decay: f32,
    /// Called for each parameter by `nvtex_optimizer_create`, or null.
    pub choose: NVTEXChooseUpdate,
    pub user: *mut c_void,
    /// Of AdamW, with the formula of `nvte_multi_tensor_adam_cuda`.
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    /// Float32 (default), BFloat16, or Float8E4M3: the first moment and the square root of the second, in blocks of 128
    /// elements with a Float32 scale each, rounded stochastically by the number of the step, so that the means of both
    /// stay what they are in Float32. They take 2.06 bytes for each element instead of 8. The CPU rounds to the same
    /// bits.
    pub moment_dtype: MaybeUninit<NVTEDType>,
    /// Of gradient descent and Muon: `b = momentum * b + g`, then `g + momentum * b` if `nesterov`, else b.
    pub momentum: f32,
    pub nesterov: MaybeUninit<bool>,
    /// Newton-Schulz iterations of Muon, which bring the update u of `[m, n]` to `0.2 * sqrt(max(m, n))` times a
    /// matrix near to the nearest orthogonal one; `p -= rate * (u + weight_decay * p)`.
    pub newton_schulz_steps: usize,
    pub masters: MaybeUninit<NVTEXMasters>,
    /// Masters begin with the modules' initial values before these were rounded (`nvtex_module_initial_value`), not
    /// with the values that parameters have.
    pub initial_masters: MaybeUninit<bool>,
    pub schedule: MaybeUninit<NVTEXSchedule>,
    pub warmup_steps: i32,
    /// With a schedule that is not constant more than `warmup_steps`.
    pub total_steps: i32,
    /// The last learning rate, as a part of the first; 0 to 1.
    pub last_rate_factor: f32,
    /// The largest norm that all gradients together may have. 0: they are not clipped.
    pub max_norm: f32,
    /// The norm is computed, and gradients that are not finite are skipped, also if nothing else needs it.
    pub check_gradients: MaybeUninit<bool>,
    /// Micro-batches of a step: gradients are divided by their number.
    pub accumulation_steps: i32,
    /// Backward passes add to gradients that the optimizer has made; call `nvtex_optimizer_zero_grad` before the
    /// first one of a step. Otherwise they overwrite them, unless `NVTEXMicrobatch` says something else.
    pub accumulate: MaybeUninit<bool>,
    /// What the program multiplies the loss by at the beginning (`nvtex_optimizer_loss_scale`).
    pub loss_scale: f32,
    /// Good steps in a row after which the loss scale grows. 0: it stays as it is.
    pub growth_interval: i32,
    /// What the loss scale is multiplied by after these, and after a skipped step.
    pub growth_factor: f32,
    pub backoff_factor: f32,
    /// Bounds of the loss scale.
    pub least_loss_scale: f32,
    pub most_loss_scale: f32,
    /// The engine that has made the gradients of all `modules`, or null: the gradients are those of this rank. A step
    /// follows a call of `nvtex_data_parallel_reduce`, and is a call of all ranks together.
    pub data_parallel: NVTEXDataParallel,
    /// Gradients that the optimizer makes have the dtype of their parameter (those of weights in FP8 alone are Float32),
    /// so that products write them without a cast and a step reads half of the bytes. Each is rounded once in a pass; with
    /// `accumulate` also at every addition. A gradient of Float16 needs a loss scale.
    pub low_precision_gradients: MaybeUninit<bool>,
}

/// The numbers of an optimizer after a step.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXOptimizerNumbers {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    /// Steps that have changed the parameters.
    pub step: i64,
    /// Steps that have changed nothing, because gradients were not finite.
    pub skipped: i64,
    /// The newest step was one of these.
    pub was_skipped: MaybeUninit<bool>,
    /// The learning rate of the newest step.
    pub learning_rate: f32,
    /// The norm of its gradients without loss scale, before clipping; 0 if it is not computed.
    pub norm: f32,
    /// What its gradients were multiplied by.
    pub gradient_scale: f32,
    /// The loss scale of the next step.
    pub loss_scale: f32,
}

/// A parameter as an optimizer knows it. Buffers are valid until the optimizer is destroyed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXOptimizerParameter {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    /// Name of the module, a point, and the name in it.
    pub name: *const c_char,
    pub options: NVTEXUpdateOptions,
    /// The gradient, the master, and the moments of AdamW or the momentum. Those that do not exist have a null
    /// pointer. If ranks divide the parameter (`nvtex_data_parallel_part`), all but the gradient are rows of the
    /// elements of this rank.
    pub gradient: NVTEBasicTensor,
    pub master: NVTEBasicTensor,
    pub state: [NVTEBasicTensor; 2],
    /// The scales of moments in Float8E4M3, one for each 128 elements of the row of all: `scale * code` is the first
    /// moment, and the square root of the second. Null pointers for other moments.
    pub state_scales: [NVTEBasicTensor; 2],
}

/// Sets the defaults of a rule in the first `struct_size` bytes of a config: learning rate 1e-3 (gradient descent:
/// 0.1), weight decay 0.01 (gradient descent: 0), betas 0.9 and 0.999, epsilon 1e-8, Float32 moments, momentum 0.95
/// with `nesterov` (gradient descent: 0.9 without), 5 Newton-Schulz iterations, Float32 masters, a constant learning
/// rate, no clipping, loss scale 1 which stays, and factors of 2 and 0.5 within 1 and 2^24 for one that does not.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_optimizer_config_init(
    config: *mut NVTEXOptimizerConfig,
    struct_size: usize,
    rule: MaybeUninit<NVTEXUpdateRule>,
) {
    guard("nvtex_optimizer_config_init", || {
        let defaults = defaults(from_c("rule", rule)?);
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &defaults) }
    });
}

/// Creates an optimizer over the parameters of modules of a context.
///
/// Gradients: a parameter that has a gradient bound (`nvtex_module_set_gradient`) keeps it; for the others the
/// optimizer makes gradients of 0, Float32 or as `low_precision_gradients` says, and binds them, until it is destroyed. A step reads values and gradients
/// that are bound then. Parameters that modules share (`nvtex_module_set_parameter` with the same memory) are one,
/// under the first name, and backward passes add to the gradient that the optimizer makes for it.
///
/// Masters begin with the values of the parameters; for weights in FP8 alone these are dequantized.
///
/// Notes: the modules live at least as long as the optimizer. Null config: defaults of AdamW.
///
/// Errors: modules of another context, or given twice; no parameter to update; numbers out of their range; what the
/// function `choose` answers; gradients that `data_parallel` has not made; Muon for a parameter that ranks divide.
/// Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_optimizer_create(
    context: NVTEXContext,
    config: *const NVTEXOptimizerConfig,
    modules: *const NVTEXModule,
    num_modules: usize,
    stream: cudaStream_t,
) -> NVTEXOptimizer {
    guard("nvtex_optimizer_create", || {
        // SAFETY: the caller vouches for config and array.
        unsafe { create(context, config, (modules, num_modules), stream) }
    })
    .0
}

/// Destroys an optimizer, and unbinds the gradients that it has made. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_optimizer_destroy(optimizer: NVTEXOptimizer) {
    guard("nvtex_optimizer_destroy", || destroy(&OPTIMIZERS, "optimizer", optimizer));
}

/// Sets all gradients to 0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_optimizer_zero_grad(
    optimizer: NVTEXOptimizer,
    stream: cudaStream_t,
) {
    guard("nvtex_optimizer_zero_grad", || {
        open(&OPTIMIZERS, "optimizer", optimizer)?.optimizer.zero_grad(stream)
    });
}

/// Updates all parameters by their gradients.
///
/// It does not wait for the device. It may be captured in a graph, also from its first call, together with the
/// passes: everything that changes from step to step lies on the device.
///
/// With `data_parallel` the step works on the gradients of all ranks together, and gathers the values that other ranks
/// have updated. The norm counts each element once.
///
/// Errors: a gradient that was unbound since the optimizer was created; with `data_parallel` gradients that were not
/// reduced since the step before.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_optimizer_step(
    optimizer: NVTEXOptimizer,
    stream: cudaStream_t,
) {
    guard("nvtex_optimizer_step", || {
        open(&OPTIMIZERS, "optimizer", optimizer)?.optimizer.step(stream)
    });
}

/// Sets the learning rate that the schedule starts from, for the steps on the stream from here on, those of a
/// captured graph too.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_optimizer_set_learning_rate(
    optimizer: NVTEXOptimizer,
    learning_rate: f32,
    stream: cudaStream_t,
) {
    guard("nvtex_optimizer_set_learning_rate", || {
        let opened = open(&OPTIMIZERS, "optimizer", optimizer)?;
        not_negative("learning_rate", learning_rate)?;
        opened.optimizer.set_rate(learning_rate, stream)
    });
}

/// Returns the loss scale, Float32 `[1]` on the device, which belongs to the optimizer. A program that scales the
/// loss multiplies its gradient by this number, or begins the backward pass with it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_optimizer_loss_scale(
    optimizer: NVTEXOptimizer,
) -> NVTETensor {
    guard("nvtex_optimizer_loss_scale", || {
        let opened = open(&OPTIMIZERS, "optimizer", optimizer)?;
        Ok(Handle(opened.loss_scale as NVTETensor))
    })
    .0
}

/// Reads the numbers of the newest step, and waits for the stream.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_optimizer_numbers(
    optimizer: NVTEXOptimizer,
    numbers: *mut NVTEXOptimizerNumbers,
    stream: cudaStream_t,
) {
    guard("nvtex_optimizer_numbers", || {
        let opened = open(&OPTIMIZERS, "optimizer", optimizer)?;
        // SAFETY: the caller vouches for the struct.
        let size = unsafe { size_of_answer("numbers", numbers) }?;
        let read = opened.optimizer.read_numbers(stream)?;
        let answer = NVTEXOptimizerNumbers {
            struct_size: size,
            step: read.step.into(),
            skipped: read.skipped.into(),
            was_skipped: MaybeUninit::new(read.skip != 0),
            learning_rate: read.rate,
            norm: read.norm,
            gradient_scale: read.grad_scale,
            loss_scale: read.loss_scale,
        };
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(numbers, size, &answer) }
    });
}

/// Returns the number of parameters of an optimizer, with those that it does not update.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_optimizer_num_parameters(optimizer: NVTEXOptimizer) -> usize {
    guard("nvtex_optimizer_num_parameters", || {
        Ok(open(&OPTIMIZERS, "optimizer", optimizer)?.optimizer.entries.len())
    })
}

/// Describes the parameter number `index` of an optimizer.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_optimizer_parameter(
    optimizer: NVTEXOptimizer,
    index: usize,
    parameter: *mut NVTEXOptimizerParameter,
) {
    // SAFETY: the caller vouches for the struct.
    guard("nvtex_optimizer_parameter", || unsafe { describe(optimizer, index, parameter) });
}

config!(NVTEXOptimizerConfig {
    struct_size,
    rule,
    learning_rate,
    weight_decay,
    choose,
    user,
    beta1,
    beta2,
    epsilon,
    moment_dtype,
    momentum,
    nesterov,
    newton_schulz_steps,
    masters,
    initial_masters,
    schedule,
    warmup_steps,
    total_steps,
    last_rate_factor,
    max_norm,
    check_gradients,
    accumulation_steps,
    accumulate,
    loss_scale,
    growth_interval,
    growth_factor,
    backoff_factor,
    least_loss_scale,
    most_loss_scale,
    data_parallel,
    low_precision_gradients,
});

config!(NVTEXOptimizerNumbers {
    struct_size,
    step,
    skipped,
    was_skipped,
    learning_rate,
    norm,
    gradient_scale,
    loss_scale,
});

config!(NVTEXOptimizerParameter {
    struct_size,
    name,
    options,
    gradient,
    master,
    state,
    state_scales
});

fn defaults(rule: NVTEXUpdateRule) -> NVTEXOptimizerConfig {
    let sgd = rule == NVTEXUpdateRule::NVTEX_UPDATE_SGD;
    NVTEXOptimizerConfig {
        struct_size: size_of::<NVTEXOptimizerConfig>(),
        rule: MaybeUninit::new(rule),
        learning_rate: if sgd { 0.1 } else { 1e-3 },
        weight_decay: if sgd { 0.0 } else { 0.01 },
        choose: None,
        user: null_mut(),
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        moment_dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
        momentum: if sgd { 0.9 } else { 0.95 },
        nesterov: MaybeUninit::new(!sgd),
        newton_schulz_steps: 5,
        masters: MaybeUninit::new(NVTEXMasters::NVTEX_MASTERS_FLOAT32),
        initial_masters: MaybeUninit::new(false),
        schedule: MaybeUninit::new(NVTEXSchedule::NVTEX_SCHEDULE_CONSTANT),
        warmup_steps: 0,
        total_steps: 0,
        last_rate_factor: 0.0,
        max_norm: 0.0,
        check_gradients: MaybeUninit::new(false),
        accumulation_steps: 1,
        accumulate: MaybeUninit::new(false),
        loss_scale: 1.0,
        growth_interval: 0,
        growth_factor: 2.0,
        backoff_factor: 0.5,
        least_loss_scale: 1.0,
        most_loss_scale: 16_777_216.0,
        data_parallel: null_mut(),
        low_precision_gradients: MaybeUninit::new(false),
    }
}

impl Default for NVTEXOptimizerConfig {
    fn default() -> Self {
        defaults(NVTEXUpdateRule::NVTEX_UPDATE_ADAMW)
    }
}

/// The size of a struct that a function fills.
///
/// # Safety
/// `answer` is null or begins with its size.
pub(super) unsafe fn size_of_answer<T: Config>(name: &str, answer: *const T) -> Result<usize> {
    check::address(name, answer)?;
    // SAFETY: the first field is the size.
    let size = unsafe { answer.cast::<usize>().read() };
    T::check_size(&format!("{name}."), size)?;
    Ok(size.min(size_of::<T>()))
}

fn not_negative(name: &str, value: f32) -> Result<()> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(()),
        false => Err(Error::argument(name, "a finite number, at least 0", value)),
    }
}

fn update(rule: NVTEXUpdateRule) -> Update {
    match rule {
        NVTEXUpdateRule::NVTEX_UPDATE_ADAMW => Update::AdamW,
        NVTEXUpdateRule::NVTEX_UPDATE_SGD => Update::Sgd,
        NVTEXUpdateRule::NVTEX_UPDATE_MUON => Update::Muon,
        NVTEXUpdateRule::NVTEX_UPDATE_NONE => Update::None,
    }
}

fn c_options(options: &Options) -> NVTEXUpdateOptions {
    let rule = match options.update {
        Update::AdamW => NVTEXUpdateRule::NVTEX_UPDATE_ADAMW,
        Update::Sgd => NVTEXUpdateRule::NVTEX_UPDATE_SGD,
        Update::Muon => NVTEXUpdateRule::NVTEX_UPDATE_MUON,
        Update::None => NVTEXUpdateRule::NVTEX_UPDATE_NONE,
    };
    NVTEXUpdateOptions {
        rule: MaybeUninit::new(rule),
        weight_decay: options.weight_decay,
        learning_rate_factor: options.rate_factor,
    }
}

/// Checks a config.
fn settings(config: &NVTEXOptimizerConfig) -> Result<Settings> {
    for (field, value) in [
        ("learning_rate", config.learning_rate),
        ("weight_decay", config.weight_decay),
        ("epsilon", config.epsilon),
        ("max_norm", config.max_norm),
    ] {
        not_negative(&format!("config.{field}"), value)?;
    }
    for (field, value) in
        [("beta1", config.beta1), ("beta2", config.beta2), ("momentum", config.momentum)]
    {
        if !(0.0..1.0).contains(&value) {
            return Err(Error::argument(format!("config.{field}"), "0 to less than 1", value));
        }
    }
    for (field, value) in [
        ("loss_scale", config.loss_scale),
        ("growth_factor", config.growth_factor),
        ("backoff_factor", config.backoff_factor),
        ("least_loss_scale", config.least_loss_scale),
        ("most_loss_scale", config.most_loss_scale),
    ] {
        if !(value.is_finite() && value >= f32::MIN_POSITIVE) {
            let name = format!("config.{field}");
            return Err(Error::argument(name, "a finite number above 0", value));
        }
    }
    for (field, value, least) in [
        ("warmup_steps", config.warmup_steps, 0),
        ("total_steps", config.total_steps, 0),
        ("accumulation_steps", config.accumulation_steps, 1),
        ("growth_interval", config.growth_interval, 0),
    ] {
        if value < least {
            let name = format!("config.{field}");
            return Err(Error::argument(name, format!("{least} or more"), value));
        }
    }
    if config.most_loss_scale < config.least_loss_scale {
        let expected = format!("at least config.least_loss_scale, {}", config.least_loss_scale);
        return Err(Error::argument("config.most_loss_scale", expected, config.most_loss_scale));
    }
    if !(0.0..=1.0).contains(&config.last_rate_factor) {
        let name = "config.last_rate_factor";
        return Err(Error::argument(name, "0 to 1", config.last_rate_factor));
    }
    if config.newton_schulz_steps > 100 {
        let name = "config.newton_schulz_steps";
        return Err(Error::argument(name, "0 to 100", config.newton_schulz_steps));
    }
    let moment_dtype = from_c("config.moment_dtype", config.moment_dtype)?;
    use NVTEDType::*;
    let moments = &[kNVTEFloat32, kNVTEBFloat16, kNVTEFloat8E4M3];
    check::dtype("config.moment", moment_dtype, moments)?;
    let schedule = match from_c("config.schedule", config.schedule)? {
        NVTEXSchedule::NVTEX_SCHEDULE_CONSTANT => RateRule::NVTEX_RATE_CONSTANT,
        NVTEXSchedule::NVTEX_SCHEDULE_LINEAR => RateRule::NVTEX_RATE_LINEAR,
        NVTEXSchedule::NVTEX_SCHEDULE_COSINE => RateRule::NVTEX_RATE_COSINE,
    };
    let constant = schedule == RateRule::NVTEX_RATE_CONSTANT;
    if !constant && config.total_steps <= config.warmup_steps {
        let expected = format!("more than config.warmup_steps, {}", config.warmup_steps);
        return Err(Error::argument("config.total_steps", expected, config.total_steps));
    }
    Ok(Settings {
        options: Options {
            update: update(from_c("config.rule", config.rule)?),
            weight_decay: config.weight_decay,
            rate_factor: 1.0,
        },
        rate: config.learning_rate,
        schedule,
        warmup_steps: config.warmup_steps,
        total_steps: config.total_steps,
        last: config.last_rate_factor,
        adam: AdamSettings {
            beta1: config.beta1,
            beta2: config.beta2,
            epsilon: config.epsilon,
            moment_dtype,
        },
        momentum: config.momentum,
        nesterov: truth(config.nesterov),
        iterations: config.newton_schulz_steps,
        masters: match from_c("config.masters", config.masters)? {
            NVTEXMasters::NVTEX_MASTERS_FLOAT32 => Masters::Float,
            NVTEXMasters::NVTEX_MASTERS_REMAINDER => Masters::Remainder,
            NVTEXMasters::NVTEX_MASTERS_NONE => Masters::None,
        },
        initial_masters: truth(config.initial_masters),
        clipping: Clipping { max_norm: config.max_norm, check: truth(config.check_gradients) },
        loss: LossScaling {
            first: config.loss_scale,
            growth: config.growth_factor,
            backoff: config.backoff_factor,
            interval: config.growth_interval,
            least: config.least_loss_scale,
            most: config.most_loss_scale,
        },
        accumulation: config.accumulation_steps,
        accumulate: truth(config.accumulate),
        low_precision_gradients: truth(config.low_precision_gradients),
    })
}

/// # Safety
/// As [`read_config`] and [`modules`]; a null config gives defaults.
unsafe fn create(
    context: NVTEXContext,
    config: *const NVTEXOptimizerConfig,
    (handles, count): (*const NVTEXModule, usize),
    stream: cudaStream_t,
) -> Result<Handle<NVTEXOptimizer_st>> {
    let context = open(&CONTEXTS, "context", context)?;
    let config = match config.is_null() {
        true => NVTEXOptimizerConfig::default(),
        // SAFETY: the caller vouches for the config.
        false => unsafe { read_config("config", config) }?,
    };
    // SAFETY: the caller vouches for the array.
    let modules = unsafe { modules(handles, ("num_modules", count), Some(&context)) }?;
    let engine = optional(&ENGINES, "config.data_parallel", config.data_parallel)?;
    Ok(Handle(OPTIMIZERS.insert(optimizer_of(&context, &config, modules, engine, stream)?)?))
}

/// An optimizer as a config describes it, but for the engine.
pub(super) fn optimizer_of(
    context: &Arc<Context>,
    config: &NVTEXOptimizerConfig,
    modules: Vec<Arc<Module>>,
    engine: Option<Arc<DataParallel>>,
    stream: cudaStream_t,
) -> Result<Arc<Opened>> {
    let settings = settings(config)?;
    let user = config.user as usize;
    let choose = |name: &str, dims: &[usize], options: &mut Options| -> Result<()> {
        let Some(choose) = config.choose else { return Ok(()) };
        let mut chosen = c_options(options);
        let shape = Shape::new(dims).to_c();
        let c_name = CString::new(name).unwrap_or_default();
        let body = || {
            // SAFETY: the program vouches for its function.
            callback::call("config.choose", || unsafe {
                choose(user as *mut c_void, c_name.as_ptr(), &shape, &mut chosen)
            })
        };
        let status = callback::within(context.memory.id(), body)?;
        if status != 0 {
            return Err(Error::argument("config.choose", "the function to return 0", status));
        }
        *options = Options {
            update: update(from_c("options.rule", chosen.rule)?),
            weight_decay: chosen.weight_decay,
            rate_factor: chosen.learning_rate_factor,
        };
        Ok(())
    };
    let optimizer = Optimizer::new(context, modules, (settings, &choose), engine, stream)?;
    let name = |entry: &Entry| CString::new(entry.name.as_str()).unwrap_or_default();
    let names = optimizer.entries.iter().map(name).collect();
    let loss_scale = TENSORS.insert(optimizer.loss_scale())? as usize;
    Ok(Arc::new(Opened { optimizer, names, loss_scale }))
}

/// # Safety
/// `out` is null or begins with its size.
unsafe fn describe(
    optimizer: NVTEXOptimizer,
    index: usize,
    out: *mut NVTEXOptimizerParameter,
) -> Result<()> {
    let opened = open(&OPTIMIZERS, "optimizer", optimizer)?;
    // SAFETY: the caller vouches for the struct.
    let size = unsafe { size_of_answer("parameter", out) }?;
    let entries = &opened.optimizer.entries;
    let Some(entry) = entries.get(index) else {
        return Err(Error::argument("index", format!("less than {}", entries.len()), index));
    };
    let basic = |buffer: Option<Buffer>| buffer.unwrap_or(Buffer::UNSET).to_c();
    let answer = NVTEXOptimizerParameter {
        struct_size: size,
        name: opened.names[index].as_ptr(),
        options: c_options(&entry.options),
        gradient: basic(opened.optimizer.gradient_of(entry)),
        master: basic(entry.master),
        state: entry.state.map(basic),
        state_scales: entry.scales.map(basic),
    };
    // SAFETY: the caller vouches for the bytes.
    unsafe { write_config(out, size, &answer) }
}
