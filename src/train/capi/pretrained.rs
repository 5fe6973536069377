//! Weights of other programs.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;

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
    let heads = config.num_attention_heads;
    let groups = if config.num_key_value_heads == 0 { heads } else { config.num_key_value_heads };
    if heads == 0 || !heads.is_multiple_of(groups) {
        let name = "config.num_attention_heads";
        let expected = format!("a multiple of config.num_key_value_heads, {groups}");
        return Err(Error::argument(name, expected, heads));
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
