//! What makes layers a model: embedding, head, and modules in a row.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::op::cross_entropy::{Reduction, Rule as LossRule};

/// Config of an embedding.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXEmbeddingConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    /// Tokens that there are: rows of the weight.
    pub vocabulary_size: usize,
    pub hidden_size: usize,
    /// Rows of a learned table of positions. 0 (default): there is none.
    pub max_positions: usize,
    /// Factor of the rows of tokens. Default: 1.
    pub scale: f32,
    /// Float32 (default), Float16 or BFloat16, of parameters and outputs.
    pub dtype: MaybeUninit<NVTEDType>,
    /// Standard deviations of the initial tables of tokens and of positions. Defaults: 0.023.
    pub init_std: f32,
    pub position_init_std: f32,
    /// Seed of the initial tables.
    pub seed: u64,
    /// How ranks share the module: each has some rows of the weight. Null (default): it is on this rank alone. It is read
    /// when the module is created.
    pub parallel: *const NVTEXParallelConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 3],
}

/// Config of the head of a language model.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXLMHeadConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    /// Rows of the weight.
    pub vocabulary_size: usize,
    pub hidden_size: usize,
    /// An embedding of the same context whose weight is this module's, too; then sizes and dtype are those of the
    /// embedding, and `vocabulary_size` and `hidden_size` are 0 or the same. Null (default): the module has a
    /// weight of its own.
    pub tied_to: NVTEXModule,
    /// Float32 (default), Float16 or BFloat16, of the parameter and the hidden states.
    pub dtype: MaybeUninit<NVTEDType>,
    /// Standard deviation of the initial weight. Default: 0.023.
    pub init_std: f32,
    /// Seed of the initial weight.
    pub seed: u64,
    /// The target of tokens that do not count. Default: -100.
    pub ignored_target: i64,
    /// The part of a target's weight that is spread over the whole vocabulary, 0 to 1. Default: 0.
    pub label_smoothing: f32,
    /// Factor of the square of the logsumexp, which is added to the loss. Default: 0.
    pub z_loss: f32,
    /// Bytes that logits may take at a time. 0 (default): 500 MB. Over several ranks each has all of its own logits in
    /// memory.
    pub workspace_limit: usize,
    /// How ranks share the module: each has some rows of the weight, and the logits of these. Null (default): it is on
    /// this rank alone. It is read when the module is created.
    pub parallel: *const NVTEXParallelConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 3],
}

/// Config of a language model: an embedding, layers that are alike, a norm and a head in a row.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXLanguageModelConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    pub vocabulary_size: usize,
    /// Rows of a learned table of positions. 0 (default): there is none, for steps with `rotary_frequencies`.
    pub max_positions: usize,
    pub num_layers: usize,
    /// Each of the layers. Its sizes, dtype, norm, seed, deviations and ranks are those of the whole model: seeds of the
    /// parts follow from it and differ, and the deviation of what is added to residuals (`output_init_std`, also of
    /// `experts`) is divided by `sqrt(2 num_layers)`. It is no decoder, and has no name. Default of `qkv_format` here:
    /// NVTE_BSHD, for tokens `[batch, length]`.
    pub layer: NVTEXTransformerLayerConfig,
    /// The head has the weight of the embedding. Default: true.
    pub tied_embeddings: MaybeUninit<bool>,
    /// Bytes that logits may take at a time, as of NVTEXLMHeadConfig.
    pub workspace_limit: usize,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 3],
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_embedding_config_init(
    config: *mut NVTEXEmbeddingConfig,
    struct_size: usize,
) {
    guard("nvtex_embedding_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXEmbeddingConfig::default()) }
    });
}

/// Creates an embedding: `y = scale * weight[token]`, plus `position_weight[position]` if there are positions.
///
/// Inputs: tokens `[..., s]`, and, if the module has positions, those of the tokens; Int32 or Int64, both the same.
/// Without the second input (null) a token's position is its place in the last dimension. Output:
/// `[..., s, hidden_size]`. Tokens that are not in the vocabulary, and positions that are not in the table, have rows
/// of zeros and no gradient.
///
/// Parameters: `weight` `[vocabulary_size, hidden_size]`, `position_weight` `[max_positions, hidden_size]`. Their
/// gradients are sums in a fixed order.
///
/// Over several ranks tokens are those of all of them. The output is whole, or has the rows of this rank if ranks share
/// rows (`sequence_parallel`): an equal share of the first dimension.
///
/// Errors: a last dimension of more than `max_positions` tokens without positions.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_embedding_create(
    context: NVTEXContext,
    config: *const NVTEXEmbeddingConfig,
    stream: cudaStream_t,
) -> NVTEXModule {
    // SAFETY: the caller vouches for the config.
    guard("nvtex_embedding_create", || unsafe { create(context, config, stream) }).0
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_lm_head_config_init(
    config: *mut NVTEXLMHeadConfig,
    struct_size: usize,
) {
    guard("nvtex_lm_head_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXLMHeadConfig::default()) }
    });
}

/// Creates the head of a language model: logits `x W^T`, and their mean cross entropy against targets, as
/// `nvtex_linear_cross_entropy` computes it without ever having all logits in memory. It stays in high precision
/// whatever the recipe is.
///
/// Inputs: hidden states `[..., hidden_size]`; targets, Int32 or Int64, one for each row; and a factor of the loss
/// for its gradients, Float32 `[1]` on the device (null: 1), such as that of loss scaling. Outputs, each of which may
/// be null: the mean loss `[1]` without the factor, the losses of the rows, both Float32, and all logits
/// `[..., vocabulary_size]`. Without targets there are only logits.
///
/// Passes: a forward pass with a tape computes all gradients, since the logits exist only then. It writes that of the
/// weight to where it is bound, or adds it; one that is set to zeros is so before the forward pass, and a tape that
/// is used twice adds nothing. The backward pass takes no gradient of its outputs; it gives that of the hidden states.
/// Where the weight is that of an embedding, the embedding's backward pass adds to what this module has written.
///
/// Over several ranks the hidden states are whole, or have the rows of this rank if ranks share rows
/// (`sequence_parallel`); targets and losses are those of all rows on each rank, and logits are
/// `[all rows, vocabulary_size / ranks]`.
///
/// Parameters: `weight` `[vocabulary_size, hidden_size]`; none if it is an embedding's, which lists it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_lm_head_create(
    context: NVTEXContext,
    config: *const NVTEXLMHeadConfig,
    stream: cudaStream_t,
) -> NVTEXModule {
    // SAFETY: the caller vouches for the config.
    guard("nvtex_lm_head_create", || unsafe { create(context, config, stream) }).0
}

/// Creates a module of modules in a row: the first output of each is the first input of the next.
///
/// `names` are those of the parts, unique and without dots, before the names of their parameters: `layer0.weight`.
/// Null: "0", "1" and so on. The new module keeps the others alive, so that their handles may be destroyed at once,
/// or used further: for their parameters, for passes of their own, or in another row.
///
/// Inputs: those of the first module, followed by those of the last one but its first. Outputs: those of the last one.
/// Of an embedding, layers and a head: tokens, positions, targets, factor of the loss; loss, losses of rows, logits.
/// Memory between the modules is the context's. With dropout a call uses 128 random numbers for each module.
///
/// Parameters: those of all modules, in their order.
///
/// Errors: modules of other contexts; one module twice; no module.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_sequential_create(
    context: NVTEXContext,
    modules: *const NVTEXModule,
    names: *const *const c_char,
    count: usize,
) -> NVTEXModule {
    // SAFETY: the caller vouches for the arrays.
    guard("nvtex_sequential_create", || unsafe { sequential(context, modules, names, count) }).0
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_language_model_config_init(
    config: *mut NVTEXLanguageModelConfig,
    struct_size: usize,
) {
    guard("nvtex_language_model_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXLanguageModelConfig::default()) }
    });
}

/// Creates a language model: what `nvtex_embedding_create`, `nvtex_transformer_layer_create`, `nvtex_norm_create` and
/// `nvtex_lm_head_create` make, in a row as `nvtex_sequential_create` puts them.
///
/// Inputs: tokens, positions (null without `max_positions`, or for places in the last dimension), targets, factor of
/// the loss. Outputs: the mean loss, losses of rows, logits; each may be null.
///
/// Parameters: `0.weight`, `0.position_weight`, those of layer i behind `<i + 1>.`, those of the norm behind
/// `<num_layers + 1>.`, and without `tied_embeddings` the weight of the head behind `<num_layers + 2>.`.
///
/// Errors: those of the parts.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_language_model_create(
    context: NVTEXContext,
    config: *const NVTEXLanguageModelConfig,
    stream: cudaStream_t,
) -> NVTEXModule {
    guard("nvtex_language_model_create", || {
        // SAFETY: the caller vouches for the config.
        let config = unsafe { read_config("config", config) }?;
        zeros("config", &config.reserved)?;
        // SAFETY: as before.
        Ok(unsafe { language_model(context, &config, stream) }?.0)
    })
    .0
}

config!(NVTEXLanguageModelConfig {
    struct_size,
    vocabulary_size,
    max_positions,
    num_layers,
    layer,
    tied_embeddings,
    workspace_limit,
    reserved
});

impl Default for NVTEXLanguageModelConfig {
    fn default() -> Self {
        let format = MaybeUninit::new(NVTE_QKV_Format::NVTE_BSHD);
        Self {
            struct_size: size_of::<Self>(),
            vocabulary_size: 0,
            max_positions: 0,
            num_layers: 0,
            layer: NVTEXTransformerLayerConfig { qkv_format: format, ..Default::default() },
            tied_embeddings: MaybeUninit::new(true),
            workspace_limit: 0,
            reserved: [0; 3],
        }
    }
}

config!(NVTEXEmbeddingConfig {
    struct_size,
    name,
    vocabulary_size,
    hidden_size,
    max_positions,
    scale,
    dtype,
    init_std,
    position_init_std,
    seed,
    parallel,
    reserved
});

config!(NVTEXLMHeadConfig {
    struct_size,
    name,
    vocabulary_size,
    hidden_size,
    tied_to,
    dtype,
    init_std,
    seed,
    ignored_target,
    label_smoothing,
    z_loss,
    workspace_limit,
    parallel,
    reserved
});

impl Default for NVTEXEmbeddingConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            name: std::ptr::null(),
            vocabulary_size: 0,
            hidden_size: 0,
            max_positions: 0,
            scale: 1.0,
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            init_std: 0.023,
            position_init_std: 0.023,
            seed: 0,
            parallel: std::ptr::null(),
            reserved: [0; 3],
        }
    }
}

impl Default for NVTEXLMHeadConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            name: std::ptr::null(),
            vocabulary_size: 0,
            hidden_size: 0,
            tied_to: null_mut(),
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            init_std: 0.023,
            seed: 0,
            ignored_target: LossRule::default().ignored,
            label_smoothing: 0.0,
            z_loss: 0.0,
            workspace_limit: 0,
            parallel: std::ptr::null(),
            reserved: [0; 3],
        }
    }
}

/// Refuses a size that is not in a range.
fn in_range(field: &str, least: usize, most: usize, size: usize) -> Result<()> {
    match (least..=most).contains(&size) {
        true => Ok(()),
        false => {
            let expected = format!("{least} to {most}");
            Err(Error::argument(format!("config.{field}"), expected, size))
        }
    }
}

const MOST_ROWS: usize = (1 << 31) - 1;
const MOST_COLUMNS: usize = 1 << 30;

impl ModuleConfig for NVTEXEmbeddingConfig {
    const KIND: &'static str = "embedding";

    fn name(&self) -> (&'static str, *const c_char) {
        ("config.name", self.name)
    }

    fn build(&self) -> Result<Build> {
        zeros("config", &self.reserved)?;
        in_range("vocabulary_size", 1, MOST_ROWS, self.vocabulary_size)?;
        in_range("hidden_size", 1, MOST_COLUMNS, self.hidden_size)?;
        in_range("max_positions", 0, MOST_ROWS, self.max_positions)?;
        if !self.scale.is_finite() {
            return Err(Error::argument("config.scale", "a finite number", self.scale));
        }
        let config = EmbeddingConfig {
            spread: spread_at(self.parallel)?,
            vocabulary: self.vocabulary_size,
            hidden: self.hidden_size,
            positions: self.max_positions,
            scale: self.scale,
            dtype: high_precision("config.dtype", self.dtype)?,
            deviations: [
                deviation("config.init_std", self.init_std)?,
                deviation("config.position_init_std", self.position_init_std)?,
            ],
            seed: self.seed,
        };
        Ok(Box::new(move |run, _| Ok(Box::new(Embedding::new(run, &config)?))))
    }
}

/// What a config says of ranks, if it says anything.
fn spread_at(parallel: *const NVTEXParallelConfig) -> Result<Spread> {
    match parallel.is_null() {
        true => Ok(Spread::ALONE),
        // SAFETY: the caller vouches for the struct.
        false => spread_of("config", unsafe { &*parallel }),
    }
}

/// An embedding whose weight another module uses, with the sizes and the dtype of that weight.
fn tied(handle: NVTEXModule) -> Result<(Arc<Module>, [usize; 2], NVTEDType)> {
    let module = open(&MODULES, "config.tied_to", handle)?;
    if module.kind != NVTEXEmbeddingConfig::KIND {
        return Err(Error::argument("config.tied_to", "an embedding", &module));
    }
    let whole = |weight: &mut Parameter| (weight.shard.whole.clone(), weight.dtype);
    let (dims, dtype) = module.parameter(0, |weight, _| Ok(whole(weight)))?;
    Ok((module, [dims[0], dims[1]], dtype))
}

impl ModuleConfig for NVTEXLMHeadConfig {
    const KIND: &'static str = "lm_head";

    fn name(&self) -> (&'static str, *const c_char) {
        ("config.name", self.name)
    }

    fn build(&self) -> Result<Build> {
        zeros("config", &self.reserved)?;
        let tied = if self.tied_to.is_null() { None } else { Some(tied(self.tied_to)?) };
        let mut sizes = [self.vocabulary_size, self.hidden_size];
        let mut dtype = high_precision("config.dtype", self.dtype)?;
        if let Some((_, of_weight, of_embedding)) = &tied {
            for ((field, size), of_weight) in
                ["vocabulary_size", "hidden_size"].into_iter().zip(&mut sizes).zip(of_weight)
            {
                if *size != 0 && *size != *of_weight {
                    let expected = format!("0 or {of_weight}, as the embedding has it");
                    return Err(Error::argument(format!("config.{field}"), expected, *size));
                }
                *size = *of_weight;
            }
            dtype = *of_embedding;
        }
        let [vocabulary, hidden] = sizes;
        in_range("vocabulary_size", 1, MOST_ROWS, vocabulary)?;
        in_range("hidden_size", 1, MOST_COLUMNS, hidden)?;
        let (smoothing, z_loss) = (self.label_smoothing, self.z_loss);
        if !(0.0..=1.0).contains(&smoothing) {
            return Err(Error::argument("config.label_smoothing", "0 to 1", smoothing));
        }
        if !(z_loss.is_finite() && z_loss >= 0.0) {
            return Err(Error::argument("config.z_loss", "a finite number, at least 0", z_loss));
        }
        let config = HeadConfig {
            spread: spread_at(self.parallel)?,
            vocabulary,
            hidden,
            dtype,
            deviation: deviation("config.init_std", self.init_std)?,
            seed: self.seed,
            rule: LossRule {
                reduction: Reduction::Mean,
                ignored: self.ignored_target,
                label_smoothing: smoothing,
                z_loss,
                ..LossRule::default()
            },
            limit: self.workspace_limit,
        };
        Ok(Box::new(move |run, _| {
            let layer = match tied {
                Some((module, ..)) => {
                    of_context(&run.context, "config.tied_to", &module)?;
                    Some(Arc::clone(&module.layer))
                }
                None => None,
            };
            Ok(Box::new(LmHead::new(run, &config, layer)?))
        }))
    }
}

/// Refuses a module of another context.
fn of_context(context: &Arc<Context>, argument: &str, module: &Module) -> Result<()> {
    match Arc::ptr_eq(context, &module.context) {
        true => Ok(()),
        false => Err(Error::argument(argument, "a module of this context", "one of another")),
    }
}

/// # Safety
/// The arrays have `count` entries; names are null or C strings.
pub(crate) unsafe fn sequential(
    context: NVTEXContext,
    modules: *const NVTEXModule,
    names: *const *const c_char,
    count: usize,
) -> Result<Handle<NVTEXModule_st>> {
    let context = open(&CONTEXTS, "context", context)?;
    if count == 0 {
        return Err(Error::argument("count", "1 or more", count));
    }
    // SAFETY: the caller vouches for the arrays.
    let handles = unsafe { array("modules", modules, ("count", count)) }?;
    let names = match names.is_null() {
        true => vec![std::ptr::null(); count],
        // SAFETY: the caller vouches for the array.
        false => unsafe { array("names", names, ("count", count)) }?,
    };
    let mut parts: Vec<(String, Arc<Module>)> = Vec::new();
    for (i, (handle, name)) in handles.into_iter().zip(names).enumerate() {
        let module = open(&MODULES, &format!("modules[{i}]"), handle)?;
        of_context(&context, &format!("modules[{i}]"), &module)?;
        if parts.iter().any(|(_, other)| Arc::ptr_eq(other, &module)) {
            let got = format!("{module}, which is there already");
            return Err(Error::argument(format!("modules[{i}]"), "each module once", got));
        }
        let argument = format!("names[{i}]");
        // SAFETY: the caller vouches for the string.
        let name = match unsafe { text(&argument, name) }? {
            name if name.is_empty() => i.to_string(),
            name => name,
        };
        if name.contains('.') || parts.iter().any(|(other, _)| *other == name) {
            let expected = "names without dots that differ";
            return Err(Error::argument(argument, expected, format!("{name:?}")));
        }
        parts.push((name, module));
    }
    let name = context.take_name("name", "", "sequential")?;
    let layers = parts.iter().map(|(_, module)| Part {
        module: Arc::clone(&module.name),
        layer: Arc::clone(&module.layer),
    });
    let layer = Box::new(Sequential::new(layers.collect()));
    let module = Module::of_parts(&context, (name.as_str().into(), "sequential"), layer, parts);
    Ok(Handle(MODULES.insert(Arc::new(module))?))
}

/// Modules that are destroyed at the end; a row of them keeps what it needs.
#[derive(Default)]
pub(crate) struct Parts(pub(crate) Vec<NVTEXModule>);

impl Parts {
    /// # Safety
    /// As [`create`].
    unsafe fn add<T: ModuleConfig>(
        &mut self,
        context: NVTEXContext,
        config: &T,
        stream: cudaStream_t,
    ) -> Result<NVTEXModule> {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        let Handle(module) = unsafe { create(context, config, stream) }?;
        self.0.push(module);
        Ok(module)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        for &module in &self.0 {
            let _ = MODULES.remove("module", module);
        }
    }
}

const MOST_LAYERS: usize = 1 << 16;

/// An embedding, layers, a norm and a head in a row, and what it is made of.
///
/// # Safety
/// What the config of the layer points to is what it says.
pub(crate) unsafe fn language_model(
    context: NVTEXContext,
    config: &NVTEXLanguageModelConfig,
    stream: cudaStream_t,
) -> Result<(Handle<NVTEXModule_st>, Parts)> {
    in_range("num_layers", 0, MOST_LAYERS, config.num_layers)?;
    // What the parts call their configs is mostly said by the config of the layer.
    let of_layer = |mut error: Error| {
        let field = error.message.strip_prefix("config.");
        let own = |field: &&str| {
            !["vocabulary_size", "max_positions"].iter().any(|own| field.starts_with(own))
        };
        if let Some(field) = field.filter(own) {
            error.message = format!("config.layer.{field}");
        }
        error
    };
    for (field, forbidden) in
        [("name", !config.layer.name.is_null()), ("decoder", truth(config.layer.decoder))]
    {
        if forbidden {
            let expected =
                "its default (layers of a model differ in their names, and read one input)";
            return Err(Error::argument(
                format!("config.layer.{field}"),
                expected,
                "another value",
            ));
        }
    }
    let (whole, _) = config.layer.in_parts().map_err(of_layer)?;
    let mlp = whole.mlp;
    let seed_of = |part: usize| splitmix(mlp.seed ^ splitmix(part as u64 + 1));
    let residuals = (2.0 * config.num_layers as f32).sqrt();
    let mut layer = config.layer;
    // The parts say it, so that the fields for programs that need not name them must be as the defaults have them.
    (layer.seed, layer.output_init_std) =
        (0, NVTEXTransformerLayerConfig::default().output_init_std);
    layer.mlp.output_init_std = mlp.output_init_std / residuals;
    let experts = match layer.experts.is_null() {
        true => None,
        // SAFETY: the caller vouches for the struct.
        false => Some(unsafe { read_config("config.layer.experts", layer.experts) }?),
    };
    let experts = experts.map(|experts: NVTEXMoeConfig| NVTEXMoeConfig {
        output_init_std: experts.output_init_std / residuals,
        ..experts
    });
    layer.experts = experts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let embedding = NVTEXEmbeddingConfig {
        vocabulary_size: config.vocabulary_size,
        hidden_size: mlp.hidden_size,
        max_positions: config.max_positions,
        dtype: mlp.dtype,
        init_std: mlp.init_std,
        position_init_std: mlp.init_std,
        seed: seed_of(0),
        parallel: &mlp.parallel,
        ..Default::default()
    };
    let norm = NVTEXNormConfig {
        hidden_size: mlp.hidden_size,
        dtype: mlp.dtype,
        sequence_parallel: mlp.parallel.sequence_parallel,
        ..mlp.norm
    };
    let mut parts = Parts::default();
    // SAFETY: configs are of this version; the caller vouches for what the layer points to.
    let model = unsafe {
        let embedding = parts.add(context, &embedding, stream).map_err(of_layer)?;
        for i in 0..config.num_layers {
            layer.mlp.seed = seed_of(i + 1);
            parts.add(context, &layer, stream).map_err(of_layer)?;
        }
        parts.add(context, &norm, stream).map_err(of_layer)?;
        let head = NVTEXLMHeadConfig {
            workspace_limit: config.workspace_limit,
            vocabulary_size: config.vocabulary_size,
            hidden_size: mlp.hidden_size,
            dtype: mlp.dtype,
            init_std: mlp.init_std,
            seed: seed_of(config.num_layers + 1),
            parallel: &mlp.parallel,
            tied_to: if truth(config.tied_embeddings) { embedding } else { null_mut() },
            ..Default::default()
        };
        parts.add(context, &head, stream)?;
        sequential(context, parts.0.as_ptr(), std::ptr::null(), parts.0.len())?
    };
    Ok((model, parts))
}
