//! Steps of training: all that a program without needs of its own does between two batches.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;
use crate::backend::{self, graph, graph::Graph};
use crate::nn::capi::{NVTEXRecipe, NVTEXStep, NVTEXTape, RECIPES, TAPES, backward, forward};
use crate::nn::memory::{Block, Lifetime, lock};
use crate::nn::{Frame, Pass, Recipe, Run, ops};
use crate::parallel::exports::NVTEXGridGroup::NVTEX_GRID_DP_CP;

/// What a handle of a trainer points to. Only the library knows what it is.
pub enum NVTEXTrainer_st {}

/// Handle of a trainer.
pub type NVTEXTrainer = *mut NVTEXTrainer_st;

/// What a trainer trains, and how.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXTrainerConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// A module whose first output is a loss that needs no gradient, as `nvtex_language_model_create` and
    /// `nvtex_lm_head_create` make it.
    pub model: NVTEXModule,
    /// Null (default): products are in high precision.
    pub recipe: NVTEXRecipe,
    /// Null (default): AdamW with its defaults. A step has one batch and makes the engine itself: `accumulate` is false,
    /// `accumulation_steps` 1 and `data_parallel` null.
    pub optimizer: *const NVTEXOptimizerConfig,
    /// How ranks of the context's grid train together; null (default): with the defaults. `accumulate` is false.
    pub data_parallel: *const NVTEXDataParallelConfig,
    /// On the CUDA backend the third step is captured in a graph, and replayed from then on. This needs a stream that is
    /// not the default one, and a model that does not wait for the device: no experts over several ranks. Default: true.
    pub graph: MaybeUninit<bool>,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_trainer_config_init(
    config: *mut NVTEXTrainerConfig,
    struct_size: usize,
) {
    guard("nvtex_trainer_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXTrainerConfig::default()) }
    });
}

/// Creates a trainer of a model: an optimizer over its parameters, and in a context with a grid a data-parallel engine over
/// NVTEX_GRID_DP_CP. Collective there. Destroy it with `nvtex_trainer_destroy`; it keeps model and recipe alive.
///
/// Errors: those of `nvtex_data_parallel_create` and `nvtex_optimizer_create`; a `data_parallel` that divides something
/// in a context without a grid. Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_trainer_create(
    context: NVTEXContext,
    config: *const NVTEXTrainerConfig,
    stream: cudaStream_t,
) -> NVTEXTrainer {
    guard("nvtex_trainer_create", || {
        let context = open(&CONTEXTS, "context", context)?;
        // SAFETY: the caller vouches for the config and what it points to.
        let trainer = unsafe { Trainer::new(&context, config, stream) }?;
        Ok(Handle(TRAINERS.insert(Arc::new(trainer))?))
    })
    .0
}

/// Destroys a trainer with its optimizer, engine and graph. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_trainer_destroy(trainer: NVTEXTrainer) {
    guard("nvtex_trainer_destroy", || destroy(&TRAINERS, "trainer", trainer));
}

/// Trains a model by one batch. It does the same as, in this order:
/// 1. `nvtex_context_begin` with the recipe, `nvtex_module_forward` with a tape, `nvtex_context_end`,
///    `nvtex_context_forward_update`,
/// 2. `nvtex_module_backward`, `nvtex_context_backward_update`,
/// 3. `nvtex_data_parallel_reduce` and `nvtex_optimizer_step`,
/// 4. `nvtex_all_reduce` of the losses of ranks that have rows of their own.
///
/// Inputs: those of the model. A replayed step reads them where those of the captured one were, so that they are the
/// same tensors with other contents; `step`, which may be null, stays as it was, too.
///
/// It does not wait for the device, unless a rank waits for others. Collective in a context with a grid.
///
/// Errors: those of the functions above; once a step was captured, tensors in other memory or of another shape.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_trainer_step(
    trainer: NVTEXTrainer,
    inputs: *const NVTETensor,
    num_inputs: usize,
    step: *const NVTEXStep,
    stream: cudaStream_t,
) {
    guard("nvtex_trainer_step", || {
        let trainer = open(&TRAINERS, "trainer", trainer)?;
        // SAFETY: the caller vouches for array and struct.
        unsafe { trainer.step((inputs, num_inputs), step, stream) }
    });
}

/// Returns the loss of the newest step: the mean over the ranks that have rows of their own. It waits for the stream.
/// Errors: there was no step.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_trainer_loss(
    trainer: NVTEXTrainer,
    stream: cudaStream_t,
) -> f32 {
    guard("nvtex_trainer_loss", || open(&TRAINERS, "trainer", trainer)?.loss(stream))
}

/// Returns the optimizer of a trainer, for checkpoints and its numbers. It lives as long as the trainer.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_trainer_optimizer(trainer: NVTEXTrainer) -> NVTEXOptimizer {
    guard("nvtex_trainer_optimizer", || {
        Ok(Handle(open(&TRAINERS, "trainer", trainer)?.optimizer_handle as NVTEXOptimizer))
    })
    .0
}

/// Returns the data-parallel engine of a trainer, or null in a context without a grid. It lives as long as the trainer.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_trainer_data_parallel(trainer: NVTEXTrainer) -> NVTEXDataParallel {
    guard("nvtex_trainer_data_parallel", || {
        Ok(Handle(open(&TRAINERS, "trainer", trainer)?.engine_handle as NVTEXDataParallel))
    })
    .0
}

config!(NVTEXTrainerConfig {
    struct_size,
    model,
    recipe,
    optimizer,
    data_parallel,
    graph,
    reserved
});

impl Default for NVTEXTrainerConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            model: null_mut(),
            recipe: null_mut(),
            optimizer: null(),
            data_parallel: null(),
            graph: MaybeUninit::new(true),
            reserved: [0; 4],
        }
    }
}

/// Steps that run before one is captured: first calls allocate memory, and make connections.
const WARM_UP: u64 = 2;

/// Address and shape of an input.
type Input = Option<(usize, Shape)>;

#[derive(Default)]
struct Progress {
    steps: u64,
    /// The captured step, and what it reads.
    graph: Option<(Graph, Vec<Input>)>,
}

/// All fields but the first are read only.
pub(super) struct Trainer {
    /// Goes first: the graph uses the memory of the others.
    progress: Mutex<Progress>,
    context: Arc<Context>,
    model: Arc<Module>,
    recipe: Option<Arc<Recipe>>,
    optimizer: Arc<Opened>,
    engine: Option<Arc<DataParallel>>,
    optimizer_handle: usize,
    engine_handle: usize,
    /// One Float32, and its tensor.
    loss: Block,
    loss_handle: usize,
    graph: bool,
}

impl Drop for Trainer {
    fn drop(&mut self) {
        lock(&self.progress).graph = None;
        let _ = OPTIMIZERS.remove("optimizer", self.optimizer_handle as NVTEXOptimizer);
        if self.engine_handle != 0 {
            let _ = ENGINES.remove("data_parallel", self.engine_handle as NVTEXDataParallel);
        }
        let _ = TENSORS.remove("loss", self.loss_handle as NVTETensor);
    }
}

impl InContext for Arc<Trainer> {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

/// An error of a config that the trainer's config points to.
fn within(field: &str, mut error: Error) -> Error {
    if let Some(rest) = error.message.strip_prefix("config.") {
        error.message = format!("config.{field}.{rest}");
    }
    error
}

/// Refuses what a step of one batch has no place for.
fn forbid(field: &str, expected: &str, got: impl std::fmt::Display, wrong: bool) -> Result<()> {
    match wrong {
        false => Ok(()),
        true => Err(Error::argument(format!("config.{field}"), expected, got)),
    }
}

impl Trainer {
    /// # Safety
    /// As [`read_config`], for the configs that it points to, too.
    unsafe fn new(
        context: &Arc<Context>,
        config: *const NVTEXTrainerConfig,
        stream: cudaStream_t,
    ) -> Result<Self> {
        // SAFETY: the caller vouches for the config.
        let config = unsafe { read_config("config", config) }?;
        crate::nn::capi::config::zeros("config", &config.reserved)?;
        let model = open(&MODULES, "config.model", config.model)?;
        if !Arc::ptr_eq(model.context(), context) {
            let got = "a module of another context";
            return Err(Error::argument("config.model", "a module of the same context", got));
        }
        let recipe = match config.recipe.is_null() {
            true => None,
            false => Some(RECIPES.get("config.recipe", config.recipe)?),
        };
        let optimizer = match config.optimizer.is_null() {
            true => NVTEXOptimizerConfig::default(),
            // SAFETY: the caller vouches for the config.
            false => unsafe { read_config("config.optimizer", config.optimizer) }?,
        };
        // SAFETY: the caller vouches for the config.
        let sharing = unsafe { sharing(config.data_parallel) }
            .map_err(|error| within("data_parallel", error))?;
        let of_optimizer = truth(optimizer.accumulate);
        forbid("optimizer.accumulate", "false", true, of_optimizer)?;
        forbid("data_parallel.accumulate", "false", true, sharing.accumulate)?;
        let batches = optimizer.accumulation_steps;
        forbid("optimizer.accumulation_steps", "1", batches, batches != 1)?;
        let given = !optimizer.data_parallel.is_null();
        forbid("optimizer.data_parallel", "null", "an engine", given)?;
        let engine = match context.grid() {
            None => {
                let divided = sharing.level != Level::Replicated;
                let expected = "NVTEX_SHARDING_NONE (nvtex_context_set_grid gives ranks)";
                forbid("data_parallel.sharding", expected, "another one", divided)?;
                None
            }
            Some(grid) => {
                let (ranks, modules) =
                    (grid.communicator(NVTEX_GRID_DP_CP), vec![Arc::clone(&model)]);
                let made = DataParallel::new(context, ranks, modules, sharing, stream)?;
                Some(Arc::new(made))
            }
        };
        let modules = vec![Arc::clone(&model)];
        let optimizer = optimizer_of(context, &optimizer, modules, engine.clone(), stream)
            .map_err(|error| within("optimizer", error))?;
        let run = Run::outside(context, stream);
        let loss = run.block(size_of::<f32>(), Lifetime::Persistent)?;
        let tensor = ops::plain(loss.buffer(0, NVTEDType::kNVTEFloat32, &[1]));
        let mut made = Self {
            progress: Mutex::default(),
            context: Arc::clone(context),
            model,
            recipe,
            optimizer,
            engine,
            optimizer_handle: 0,
            engine_handle: 0,
            loss,
            loss_handle: 0,
            graph: truth(config.graph),
        };
        made.loss_handle = TENSORS.insert(tensor)? as usize;
        made.optimizer_handle = OPTIMIZERS.insert(Arc::clone(&made.optimizer))? as usize;
        if let Some(engine) = &made.engine {
            made.engine_handle = ENGINES.insert(Arc::clone(engine))? as usize;
        }
        Ok(made)
    }

    /// # Safety
    /// As `nvtex_module_forward`.
    unsafe fn step(
        &self,
        inputs: (*const NVTETensor, usize),
        step: *const NVTEXStep,
        stream: cudaStream_t,
    ) -> Result<()> {
        let mut progress = lock(&self.progress);
        let captures = self.graph && backend::domain()?.name() == backend::domain::CUDA;
        if captures && stream.is_null() {
            let expected = "a stream that was created (config.graph captures steps)";
            return Err(Error::argument("stream", expected, "null"));
        }
        // SAFETY: the caller vouches for the array.
        let found = unsafe { places(inputs) }?;
        if captures && progress.graph.is_none() && progress.steps == WARM_UP {
            graph::begin(stream)?;
            // SAFETY: the caller vouches for the arguments.
            let recorded = unsafe { self.pass(inputs, step, stream) };
            let graph = graph::end(stream);
            recorded?;
            progress.graph = Some((graph?, found.clone()));
        }
        match &progress.graph {
            None => {
                // SAFETY: the caller vouches for the arguments.
                unsafe { self.pass(inputs, step, stream) }?;
            }
            Some((graph, expected)) => {
                if let Some(i) = expected.iter().zip(&found).position(|(a, b)| a != b) {
                    let expected = "the tensor of the step that was captured, with other contents";
                    return Err(Error::argument(format!("inputs[{i}]"), expected, "another one"));
                }
                if expected.len() != found.len() {
                    let count = expected.len();
                    let expected = format!("{count}, as in the step that was captured");
                    return Err(Error::argument("num_inputs", expected, found.len()));
                }
                graph.replay(stream)?;
            }
        }
        progress.steps += 1;
        Ok(())
    }

    /// Both passes and the update.
    ///
    /// # Safety
    /// As `nvtex_module_forward`.
    unsafe fn pass(
        &self,
        inputs: (*const NVTETensor, usize),
        step: *const NVTEXStep,
        stream: cudaStream_t,
    ) -> Result<()> {
        let mut tape: NVTEXTape = null_mut();
        let outputs = [self.loss_handle as NVTETensor];
        self.context.begin(Frame {
            recipe: self.recipe.clone(),
            enabled: self.recipe.is_some(),
            calibrating: false,
            quantized_weights: false,
            group: None,
        });
        let outputs = (outputs.as_ptr(), outputs.len());
        // SAFETY: the caller vouches for inputs and step.
        let passed = unsafe { forward(&self.model, inputs, outputs, step, &mut tape, stream) };
        self.context.end()?;
        passed?;
        let updated = self.context.update(Pass::Forward, stream);
        let nothing = (null(), 0);
        // SAFETY: there are no gradients of the loss, and none of tokens.
        let passed =
            updated.and_then(|()| unsafe { backward(&self.model, tape, nothing, nothing, stream) });
        destroy(&TAPES, "tape", tape)?;
        passed?;
        self.context.update(Pass::Backward, stream)?;
        if let Some(engine) = &self.engine {
            engine.reduce(stream)?;
        }
        self.optimizer.optimizer.step(stream)?;
        match self.context.group(NVTEX_GRID_DP_CP) {
            Some(ranks) => {
                ranks.sum(&self.loss.buffer(0, NVTEDType::kNVTEFloat32, &[1]), "loss", stream)
            }
            None => Ok(()),
        }
    }

    fn loss(&self, stream: cudaStream_t) -> Result<f32> {
        if lock(&self.progress).steps == 0 {
            return Err(Error::argument("trainer", "one with a step behind it", "a new one"));
        }
        let mut sum = [0.0_f32];
        ops::download(&mut sum, self.loss.ptr(), stream)?;
        let ranks = self.context.group(NVTEX_GRID_DP_CP).map_or(1, |ranks| ranks.size());
        Ok(sum[0] / ranks as f32)
    }
}

/// Where the tensors of an array are.
///
/// # Safety
/// The array has as many handles as it says.
unsafe fn places((handles, count): (*const NVTETensor, usize)) -> Result<Vec<Input>> {
    // SAFETY: the caller vouches for the array.
    let tensors = unsafe { check::optional_tensors("inputs", handles, ("num_inputs", count)) }?;
    let place =
        |tensor: &crate::tensor::Tensor| (tensor.rowwise.ptr() as usize, tensor.rowwise.shape);
    Ok(tensors.iter().map(|tensor| tensor.as_ref().map(place)).collect())
}
