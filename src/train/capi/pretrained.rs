//! Weights of other programs.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;
use crate::nn::capi::layers::*;
use crate::nn::capi::model::*;
use std::fmt::Display;

/// Rows of a stored tensor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXSourceRows {
    /// The name of the tensor in the file.
    pub name: *const c_char,
    pub first_row: usize,
    /// 0: all rows from the first one on.
    pub num_rows: usize,
}

/// A parameter, and the rows that it is made of, one behind the other.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXPretrainedParameter {
    pub module: NVTEXModule,
    /// The number of the parameter in its module.
    pub index: usize,
    pub rows: *const NVTEXSourceRows,
    pub num_rows: usize,
}

/// The modules of a model of the Llama or Qwen family.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXLlamaConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// The beginning of all names but that of the head. Null: `model.`.
    pub prefix: *const c_char,
    /// Layers made by `nvtex_transformer_layer_create` with RMSNorm, SWIGLU, and heads like these.
    pub layers: *const NVTEXModule,
    pub num_layers: usize,
    /// 0: as the first layer has it, and likewise the next field.
    pub num_attention_heads: usize,
    /// Heads of keys and values. 0: as many as of queries.
    pub num_key_value_heads: usize,
    /// The modules around the layers, or null: their first parameter whose name ends with `weight`.
    pub embedding: NVTEXModule,
    pub norm: NVTEXModule,
    pub head: NVTEXModule,
}

/// Sets parameters from the tensors of a safetensors file, of an index of such files, or of a folder with
/// `model.safetensors` or `model.safetensors.index.json`.
///
/// Dtypes: F32, F16 and BF16, which are cast to that of the parameter. The masters that `optimizer` has for these
/// parameters are set as well; it may be null.
///
/// Errors: a file that is damaged; missing tensors; other shapes or dtypes; rows that are not as many as those of the
/// parameter. Nothing is changed then, unless the disk fails while tensors are read.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_pretrained_load(
    path: *const c_char,
    parameters: *const NVTEXPretrainedParameter,
    num_parameters: usize,
    optimizer: NVTEXOptimizer,
    stream: cudaStream_t,
) {
    guard("nvtex_pretrained_load", || {
        // SAFETY: the caller vouches for path, structs and arrays.
        unsafe { load(path, (parameters, num_parameters), optimizer, stream) }
    });
}

/// What a `config.json` as Hugging Face writes it says of a model of the Llama or Qwen family.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXLlamaSizes {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    pub vocabulary_size: usize,
    pub hidden_size: usize,
    pub ffn_hidden_size: usize,
    pub num_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// The longest sequence that the model was made for; 0 if the file does not say it.
    pub max_positions: usize,
    /// Keys that a query sees, the one of its own token among them. 0: all.
    pub sliding_window: usize,
    /// Of all norms.
    pub norm_epsilon: f32,
    /// `base` and `interpolation_factor` (1: none) of `NVTEXRotaryConfig`.
    pub rotary_base: f32,
    pub rotary_factor: f32,
    /// The projections to queries, keys and values have biases.
    pub bias: MaybeUninit<bool>,
    /// Heads of queries and keys have norms of their own, NVTEX_QK_NORM_RMS with `qk_norm_before_rope`.
    pub qk_norm: MaybeUninit<bool>,
    /// The head has the weight of the embedding.
    pub tied_embeddings: MaybeUninit<bool>,
    /// Of the stored weights: Float32, Float16 or BFloat16.
    pub dtype: MaybeUninit<NVTEDType>,
}

/// Reads the sizes of a model from the `config.json` of a folder, or of the folder that a file is in.
///
/// Errors: `model_type` other than llama, mistral, qwen2 and qwen3; `hidden_act` other than silu; `rope_scaling` other
/// than linear; sizes that are missing or do not go together. Nothing is written then.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_llama_sizes(
    path: *const c_char,
    sizes: *mut NVTEXLlamaSizes,
) {
    guard("nvtex_llama_sizes", || {
        // SAFETY: the caller vouches for path and struct.
        unsafe {
            let size = super::optimizer::size_of_answer("sizes", sizes)?;
            let read = LlamaSizes::read(&self::path("path", path)?)?;
            write_config(sizes, size, &c_sizes(&read))
        }
    });
}

fn c_sizes(sizes: &LlamaSizes) -> NVTEXLlamaSizes {
    NVTEXLlamaSizes {
        struct_size: size_of::<NVTEXLlamaSizes>(),
        vocabulary_size: sizes.vocabulary,
        hidden_size: sizes.hidden,
        ffn_hidden_size: sizes.ffn,
        num_layers: sizes.layers,
        num_attention_heads: sizes.heads,
        num_key_value_heads: sizes.groups,
        head_dim: sizes.head_dim,
        max_positions: sizes.positions,
        sliding_window: sizes.window,
        norm_epsilon: sizes.epsilon,
        rotary_base: sizes.rotary_base,
        rotary_factor: sizes.rotary_factor,
        bias: MaybeUninit::new(sizes.bias),
        qk_norm: MaybeUninit::new(sizes.head_norms),
        tied_embeddings: MaybeUninit::new(sizes.tied),
        dtype: MaybeUninit::new(sizes.dtype),
    }
}

config!(NVTEXLlamaSizes {
    struct_size,
    vocabulary_size,
    hidden_size,
    ffn_hidden_size,
    num_layers,
    num_attention_heads,
    num_key_value_heads,
    head_dim,
    max_positions,
    sliding_window,
    norm_epsilon,
    rotary_base,
    rotary_factor,
    bias,
    qk_norm,
    tied_embeddings,
    dtype,
});

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_llama_config_init(
    config: *mut NVTEXLlamaConfig,
    struct_size: usize,
) {
    guard("nvtex_llama_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXLlamaConfig::default()) }
    });
}

/// Sets the parameters of a model of the Llama or Qwen family from files as Hugging Face stores them, as
/// `nvtex_pretrained_load` does.
///
/// Names, behind `<prefix>layers.<i>.`: `input_layernorm`, `self_attn.{q,k,v,o}_proj`, `self_attn.{q,k}_norm`,
/// `post_attention_layernorm`, `mlp.{gate,up,down}_proj`, each with `.weight`; `<prefix>embed_tokens.weight`,
/// `<prefix>norm.weight`, and `lm_head.weight`, or without it the weight of the embedding. Biases that the files do not
/// have become 0. The rotary embedding of these models is that of `nvtex_rotary_frequencies` without `interleaved`.
///
/// Heads have no place in the shapes of weights: those of the layers, of this config, and of a `config.json` beside the
/// weights must be the same.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_llama_load(
    path: *const c_char,
    config: *const NVTEXLlamaConfig,
    optimizer: NVTEXOptimizer,
    stream: cudaStream_t,
) {
    guard("nvtex_llama_load", || {
        // SAFETY: the caller vouches for path, config and arrays.
        unsafe { load_llama(path, config, optimizer, stream) }
    });
}

config!(NVTEXLlamaConfig {
    struct_size,
    prefix,
    layers,
    num_layers,
    num_attention_heads,
    num_key_value_heads,
    embedding,
    norm,
    head,
});

impl Default for NVTEXLlamaConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            prefix: null(),
            layers: null(),
            num_layers: 0,
            num_attention_heads: 0,
            num_key_value_heads: 0,
            embedding: null_mut(),
            norm: null_mut(),
            head: null_mut(),
        }
    }
}

/// Creates a model of the Llama or Qwen family from a folder as Hugging Face stores it: embedding, layers, norm and head
/// in a row, with the sizes of `config.json` and the weights of the files.
///
/// Shapes: as `nvtex_sequential_create` of these modules. Inputs are tokens `[batch, length]` (layers in NVTE_BSHD), null,
/// and targets; outputs are the loss, losses of rows, and logits. A step has `rotary_frequencies` by the `rotary_base` and
/// the `rotary_factor` of `nvtex_llama_sizes`.
///
/// Dtypes: Float32, Float16 or BFloat16, of parameters and activations.
///
/// Errors: as `nvtex_llama_sizes` and `nvtex_llama_load`. Returns null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_llama_create(
    context: NVTEXContext,
    path: *const c_char,
    dtype: MaybeUninit<NVTEDType>,
    stream: cudaStream_t,
) -> NVTEXModule {
    // SAFETY: the caller vouches for the path.
    guard("nvtex_llama_create", || unsafe { create_llama(context, path, dtype, stream) }).0
}

/// # Safety
/// The path is a C string.
unsafe fn create_llama(
    context: NVTEXContext,
    path: *const c_char,
    dtype: MaybeUninit<NVTEDType>,
    stream: cudaStream_t,
) -> Result<Handle<NVTEXModule_st>> {
    // SAFETY: the caller vouches for the path.
    let path = unsafe { self::path("path", path) }?;
    check::high_precision("dtype", from_c("dtype", dtype)?)?;
    let sizes = LlamaSizes::read(&path)?;
    let hidden_size = sizes.hidden;
    let mut layer = NVTEXTransformerLayerConfig {
        hidden_size,
        ffn_hidden_size: sizes.ffn,
        num_attention_heads: sizes.heads,
        num_gqa_groups: sizes.groups,
        activation: MaybeUninit::new(NVTE_Activation_Type::SWIGLU),
        norm_type: MaybeUninit::new(NVTE_Norm_Type::RMSNorm),
        norm_epsilon: sizes.epsilon,
        qkv_format: MaybeUninit::new(NVTE_QKV_Format::NVTE_BSHD),
        bias: MaybeUninit::new(sizes.bias),
        dtype,
        ..Default::default()
    };
    layer.attention.head_dim_qk = sizes.head_dim;
    layer.attention.qk_norm_epsilon = sizes.epsilon;
    if sizes.head_norms {
        layer.attention.qk_norm_type = MaybeUninit::new(NVTEXQKNorm::NVTEX_QK_NORM_RMS);
        layer.attention.qk_norm_before_rope = MaybeUninit::new(true);
    }
    if sizes.window > 0 {
        layer.attention.window_size_left = sizes.window as i64 - 1;
    }
    let config = NVTEXLanguageModelConfig {
        vocabulary_size: sizes.vocabulary,
        num_layers: sizes.layers,
        layer,
        tied_embeddings: MaybeUninit::new(sizes.tied),
        ..Default::default()
    };
    // SAFETY: the config points to nothing.
    let (model, parts) = unsafe { language_model(context, &config, stream) }?;
    let opened: Result<Vec<_>> =
        parts.0.iter().map(|&part| open(&MODULES, "module", part)).collect();
    let mut opened = opened?.into_iter();
    let llama = Llama {
        prefix: "model.".into(),
        heads: sizes.heads,
        groups: sizes.groups,
        embedding: opened.next(),
        layers: opened.by_ref().take(sizes.layers).collect(),
        norm: opened.next(),
        head: opened.next().filter(|_| !sizes.tied),
    };
    let files = Pretrained::open(&path)?;
    let loaded = llama.targets(&files).and_then(|targets| files.load(&targets, None, stream));
    match loaded {
        Ok(()) => Ok(model),
        Err(error) => {
            MODULES.remove("module", model.0)?;
            Err(error)
        }
    }
}

/// # Safety
/// Path, structs and arrays are what the export says.
unsafe fn load(
    path: *const c_char,
    (parameters, count): (*const NVTEXPretrainedParameter, usize),
    optimizer: NVTEXOptimizer,
    stream: cudaStream_t,
) -> Result<()> {
    // SAFETY: the caller vouches for both.
    let (path, parameters) = unsafe {
        let count = ("num_parameters", count);
        (self::path("path", path)?, check::slice("parameters", parameters, count)?)
    };
    let optimizer = optional(&OPTIMIZERS, "optimizer", optimizer)?;
    let mut targets = Vec::new();
    for (i, parameter) in parameters.iter().enumerate() {
        let field = |field: &str| format!("parameters[{i}].{field}");
        let module = open(&MODULES, &field("module"), parameter.module)?;
        // SAFETY: the caller vouches for the array.
        let rows = unsafe {
            let count = ("num_rows", parameter.num_rows);
            check::slice(field("rows"), parameter.rows, count)?
        };
        let of = |(r, rows): (usize, &NVTEXSourceRows)| -> Result<Rows> {
            let name = field(&format!("rows[{r}].name"));
            check::address(&name, rows.name)?;
            // SAFETY: the caller vouches for the string.
            let name = unsafe { text(&name, rows.name) }?;
            let (first, count) = (rows.first_row, rows.num_rows);
            Ok(Rows { name, first, count, or_zeros: None, whole: None })
        };
        let rows = rows.iter().enumerate().map(of).collect::<Result<_>>()?;
        targets.push(Target { module, index: parameter.index, rows });
    }
    let files = Pretrained::open(&path)?;
    files.load(&targets, optimizer.as_ref().map(|opened| &opened.optimizer), stream)
}

/// # Safety
/// Path, config and its arrays are what the export says.
unsafe fn load_llama(
    path: *const c_char,
    config: *const NVTEXLlamaConfig,
    optimizer: NVTEXOptimizer,
    stream: cudaStream_t,
) -> Result<()> {
    // SAFETY: the caller vouches for all of them.
    let (path, config, layers, prefix) = unsafe {
        let config = read_config("config", config)?;
        let count = ("config.num_layers", config.num_layers);
        let layers = modules(config.layers, count, None)?;
        (self::path("path", path)?, config, layers, text("config.prefix", config.prefix)?)
    };
    let optimizer = optional(&OPTIMIZERS, "optimizer", optimizer)?;
    let (mut heads, mut groups) = (config.num_attention_heads, config.num_key_value_heads);
    if heads == 0 && groups == 0 {
        (heads, groups) = layers.first().and_then(|layer| layer.heads()).unwrap_or((0, 0));
    }
    groups = if groups == 0 { heads } else { groups };
    if heads == 0 || !heads.is_multiple_of(groups) {
        let name = "config.num_attention_heads";
        let expected = format!("a multiple of config.num_key_value_heads, {groups}");
        return Err(Error::argument(name, expected, heads));
    }
    let check = |whose: &dyn Display, of_model: (usize, usize)| -> Result<()> {
        for (field, got, expected) in [
            ("num_attention_heads", heads, of_model.0),
            ("num_key_value_heads", groups, of_model.1),
        ] {
            if got != expected {
                let expected = format!("{expected}, as {whose} has it");
                return Err(Error::argument(format!("config.{field}"), expected, got));
            }
        }
        Ok(())
    };
    for layer in &layers {
        check(layer, layer.heads().unwrap_or((heads, groups)))?;
    }
    if let Some(sizes) = LlamaSizes::find(&path)? {
        check(&format_args!("the config.json of {}", path.display()), (sizes.heads, sizes.groups))?;
    }
    let llama = Llama {
        prefix: if config.prefix.is_null() { "model.".into() } else { prefix },
        heads,
        groups,
        layers,
        embedding: optional(&MODULES, "config.embedding", config.embedding)?,
        norm: optional(&MODULES, "config.norm", config.norm)?,
        head: optional(&MODULES, "config.head", config.head)?,
    };
    let files = Pretrained::open(&path)?;
    let targets = llama.targets(&files)?;
    files.load(&targets, optimizer.as_ref().map(|opened| &opened.optimizer), stream)
}
