//! Weights of other programs: a table says of which rows of which stored tensors a parameter is made, and there is one
//! for the names of Llama and Qwen as Hugging Face stores them.

use super::host;
use super::optimizer::Optimizer;
use super::safetensors::{File, failed};
use crate::error::{Error, Result};
use crate::nn::capi::Module;
use crate::nn::memory::host_room;
use crate::types::NVTEDType;
use crate::types::cudaStream_t;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows of a stored tensor.
#[derive(Clone, Debug)]
pub struct Rows {
    pub name: String,
    pub first: usize,
    /// 0: all from the first on.
    pub count: usize,
    /// Zeros stand for a tensor that is not there, and they are as many.
    pub or_zeros: Option<usize>,
    /// How many rows the stored tensor must have, unless it may have any number.
    pub whole: Option<usize>,
}

impl Rows {
    fn all(name: String) -> Self {
        Self { name, first: 0, count: 0, or_zeros: None, whole: None }
    }
}

/// A parameter, and the rows that it is made of, from its first one on.
pub struct Target {
    pub module: Arc<Module>,
    pub index: usize,
    pub rows: Vec<Rows>,
}

/// The files of a model.
pub struct Pretrained {
    path: PathBuf,
    files: Vec<File>,
    /// The file of each tensor.
    places: HashMap<String, usize>,
}

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";

impl Pretrained {
    /// Opens a file, an index of files, or a folder with one of both under its usual name.
    pub fn open(path: &Path) -> Result<Self> {
        let mut path = path.to_path_buf();
        if path.is_dir() {
            let single = path.join(SINGLE);
            path = if single.exists() { single } else { path.join(INDEX) };
        }
        let mut opened = Self { path: path.clone(), files: Vec::new(), places: HashMap::new() };
        if path.extension().is_none_or(|extension| extension != "json") {
            let file = File::open(&path)?;
            file.verify(false)?;
            opened.places.extend(file.names().into_iter().map(|name| (name, 0)));
            opened.files.push(file);
            return Ok(opened);
        }
        let wrong = |expected: &str, got: String| {
            Err(Error::argument(format!("path: {}", path.display()), expected, got))
        };
        let index = json(&path, "an index in JSON")?;
        let Some(map) = index.get("weight_map").and_then(|map| map.as_object()) else {
            return wrong("an index with an object weight_map", "another one".into());
        };
        let mut files = BTreeMap::new();
        for (name, file) in map {
            // Only files beside the index: no path of another place.
            let file =
                file.as_str().filter(|file| Path::new(file).file_name() == Some(file.as_ref()));
            let Some(file) = file else {
                return wrong(
                    "names of files beside the index",
                    format!("another one of {name:?}"),
                );
            };
            let next = files.len();
            let place = *files.entry(file).or_insert(next);
            opened.places.insert(name.clone(), place);
        }
        let mut ordered: Vec<_> = files.into_iter().collect();
        ordered.sort_by_key(|&(_, place)| place);
        for (name, _) in ordered {
            let file = File::open(&path.with_file_name(name))?;
            file.verify(false)?;
            opened.files.push(file);
        }
        Ok(opened)
    }

    fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    fn file(&self, name: &str) -> Result<&File> {
        match self.places.get(name) {
            Some(&place) => Ok(&self.files[place]),
            None => {
                let argument = format!("path: {}", self.path.display());
                Err(Error::argument(argument, format!("a tensor {name:?}"), "none"))
            }
        }
    }

    /// The dtype of a stored tensor, the place of its rows in bytes, and how many rows these are.
    fn piece(&self, rows: &Rows, inner: &[usize]) -> Result<Option<Piece<'_>>> {
        if rows.or_zeros.is_some() && !self.has(&rows.name) {
            return Ok(None);
        }
        let file = self.file(&rows.name)?;
        let shape = &file.info(&rows.name)?.shape;
        if shape.is_empty() || shape[1..] != *inner {
            let expected = format!("rows of shape {inner:?}");
            return Err(file.wrong(&rows.name, expected, format!("shape {shape:?}")));
        }
        if let Some(whole) = rows.whole.filter(|whole| *whole != shape[0]) {
            return Err(file.wrong(&rows.name, format!("{whole} rows"), shape[0]));
        }
        let dtype = file.check_floats(&rows.name, shape)?;
        let count = if rows.count == 0 { shape[0].saturating_sub(rows.first) } else { rows.count };
        if rows.first.saturating_add(count) > shape[0] {
            let expected = format!("{} rows or more", rows.first.saturating_add(count));
            return Err(file.wrong(&rows.name, expected, shape[0]));
        }
        let row =
            inner.iter().product::<usize>() * if dtype == NVTEDType::kNVTEFloat32 { 4 } else { 2 };
        Ok(Some(Piece { file, dtype, at: rows.first * row, bytes: count * row, rows: count }))
    }

    fn pieces(&self, target: &Target, dims: &[usize]) -> Result<Vec<(usize, Option<Piece<'_>>)>> {
        let inner = dims.get(1..).unwrap_or(&[]);
        let mut pieces = Vec::new();
        for rows in &target.rows {
            let piece = self.piece(rows, inner)?;
            let count = piece.as_ref().map_or(rows.or_zeros.unwrap_or(0), |piece| piece.rows);
            pieces.push((count, piece));
        }
        let total: usize = pieces.iter().map(|(count, _)| count).sum();
        if dims.first() != Some(&total) {
            let names: Vec<&str> = target.rows.iter().map(|rows| rows.name.as_str()).collect();
            let mut names = names;
            names.dedup();
            let argument = format!("path: {}: rows of {}", self.path.display(), names.join(", "));
            let expected = format!("{} of them", dims.first().copied().unwrap_or(1));
            return Err(Error::argument(argument, expected, total));
        }
        Ok(pieces)
    }

    /// Sets parameters, and the masters that an optimizer has for them. Names, shapes and dtypes are checked before
    /// anything is changed.
    pub fn load(
        &self,
        targets: &[Target],
        optimizer: Option<&Optimizer>,
        stream: cudaStream_t,
    ) -> Result<()> {
        let dims = |target: &Target| -> Result<Vec<usize>> {
            target.module.with_parameters(|parameters| match parameters.get(target.index) {
                Some((_, parameter)) => Ok(parameter.dims.clone()),
                None => {
                    let expected = format!("less than {}", parameters.len());
                    Err(Error::argument("index", expected, target.index))
                }
            })
        };
        for target in targets {
            self.pieces(target, &dims(target)?)?;
        }
        for target in targets {
            let dims = dims(target)?;
            let inner: usize = dims.iter().skip(1).product();
            let mut values: Vec<f32> = host_room(dims.iter().product())?;
            for (rows, (count, piece)) in target.rows.iter().zip(self.pieces(target, &dims)?) {
                match piece {
                    None => values.resize(values.len() + count * inner, 0.0),
                    Some(piece) => {
                        let info = piece.file.info(&rows.name)?;
                        let bytes = piece.file.part(info, piece.at, piece.bytes)?;
                        values.extend(host::widened(&bytes, piece.dtype)?);
                    }
                }
            }
            let found = optimizer.and_then(|optimizer| {
                Some((optimizer, optimizer.find(&target.module, target.index)?))
            });
            match found {
                Some((optimizer, entry)) => optimizer.set_master(entry, (&values, true), stream)?,
                None => {
                    let run = target.module.run(stream);
                    target.module.with_parameters(|parameters| {
                        host::assign(&run, parameters[target.index].1, (&values, true))
                    })?;
                }
            }
        }
        Ok(())
    }
}

struct Piece<'a> {
    file: &'a File,
    dtype: NVTEDType,
    at: usize,
    bytes: usize,
    rows: usize,
}

/// A file in JSON.
fn json(path: &Path, expected: &str) -> Result<serde_json::Value> {
    let text = std::fs::read(path).map_err(|e| failed("cannot read", path, &e))?;
    serde_json::from_slice(&text)
        .map_err(|e| Error::argument(format!("path: {}", path.display()), expected, e))
}

/// What the config of a model of the Llama family says.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaSizes {
    pub vocabulary: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub layers: usize,
    pub heads: usize,
    pub groups: usize,
    pub head_dim: usize,
    pub positions: usize,
    /// Keys that a query sees, itself among them; 0: all.
    pub window: usize,
    pub epsilon: f32,
    pub rotary_base: f32,
    /// What positions are divided by.
    pub rotary_factor: f32,
    pub bias: bool,
    pub head_norms: bool,
    pub tied: bool,
    pub dtype: NVTEDType,
}

impl LlamaSizes {
    /// Reads the config beside the weights. `path` is the folder, or a file in it.
    pub fn read(path: &Path) -> Result<Self> {
        let path = Self::path(path);
        let json = json(&path, "a config in JSON")?;
        let config = Config { path, json };
        let kinds = ["llama", "mistral", "qwen2", "qwen3"];
        let kind = config.choice("model_type", &kinds)?.unwrap_or("llama");
        config.choice("hidden_act", &["silu"])?;
        let (hidden, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
        let or = |size: Option<usize>, other| size.unwrap_or(other);
        let groups = or(config.find_size("num_key_value_heads")?, heads);
        let head_dim = or(config.find_size("head_dim")?, hidden / heads);
        if !heads.is_multiple_of(groups) {
            let expected = format!("a divisor of num_attention_heads, {heads}");
            return Err(config.wrong("num_key_value_heads", &expected, groups));
        }
        let windowed = config.truth("use_sliding_window", kind == "mistral")?;
        let window = if windowed { config.find_size("sliding_window")? } else { None };
        // Older files have the angles at the top, newer ones in an object of their own.
        let angles = ["rope_parameters", "rope_scaling"];
        let angles = angles.iter().find_map(|name| config.json.get(name)?.as_object());
        let angle = |name: &str| angles.and_then(|angles| angles.get(name));
        let kind_of_angles = angle("rope_type").or(angle("type")).and_then(|kind| kind.as_str());
        let rotary_factor = match kind_of_angles {
            None | Some("default") => 1.0,
            Some("linear") => angle("factor").and_then(|factor| factor.as_f64()).unwrap_or(1.0),
            Some(other) => {
                let expected = "\"default\" or \"linear\" as rope_type";
                let error = config.wrong("rope_scaling", expected, format!("{other:?}"));
                return Err(Error::unsupported(error.message));
            }
        };
        let base = angle("rope_theta").and_then(|base| base.as_f64());
        let base = base.or(config.find_number("rope_theta")?).unwrap_or(10000.0);
        let dtype =
            ["dtype", "torch_dtype"].iter().find_map(|name| config.json.get(name)?.as_str());
        Ok(Self {
            vocabulary: config.size("vocab_size")?,
            hidden,
            ffn: config.size("intermediate_size")?,
            layers: config.size("num_hidden_layers")?,
            heads,
            groups,
            head_dim,
            positions: or(config.find_size("max_position_embeddings")?, 0),
            window: window.unwrap_or(0),
            epsilon: config.find_number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rotary_base: base as f32,
            rotary_factor: rotary_factor as f32,
            bias: config.truth("attention_bias", kind == "qwen2")?,
            head_norms: kind == "qwen3",
            tied: config.truth("tie_word_embeddings", false)?,
            dtype: match dtype {
                Some("bfloat16") => NVTEDType::kNVTEBFloat16,
                Some("float16") => NVTEDType::kNVTEFloat16,
                _ => NVTEDType::kNVTEFloat32,
            },
        })
    }

    /// The same, or nothing where there is no such file.
    pub fn find(path: &Path) -> Result<Option<Self>> {
        if Self::path(path).exists() { Self::read(path).map(Some) } else { Ok(None) }
    }

    fn path(path: &Path) -> PathBuf {
        let beside = path.with_file_name(CONFIG);
        // A path that is not there names the folder of a model, unless it has a config beside it.
        let in_folder = path.is_dir() || !(path.is_file() || beside.is_file());
        if in_folder { path.join(CONFIG) } else { beside }
    }
}

/// A config of a model, with the path that errors name.
struct Config {
    path: PathBuf,
    json: serde_json::Value,
}

impl Config {
    #[cold]
    fn wrong(&self, name: &str, expected: &str, got: impl std::fmt::Display) -> Error {
        Error::argument(format!("path: {}: {name}", self.path.display()), expected, got)
    }

    /// The value of a name, unless it is null.
    fn get(&self, name: &str) -> Option<&serde_json::Value> {
        self.json.get(name).filter(|value| !value.is_null())
    }

    fn find_size(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_u64() {
            Some(size @ 1..=0x7FFF_FFFF) => Ok(Some(size as usize)),
            _ => Err(self.wrong(name, "1 to 2^31 - 1", value)),
        }
    }

    fn size(&self, name: &str) -> Result<usize> {
        self.find_size(name)?.ok_or_else(|| self.wrong(name, "a size", "none"))
    }

    fn find_number(&self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number > 0.0 => Ok(Some(number)),
            _ => Err(self.wrong(name, "a number above 0", value)),
        }
    }

    fn truth(&self, name: &str, default: bool) -> Result<bool> {
        let Some(value) = self.get(name) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.wrong(name, "true or false", value))
    }

    fn choice(&self, name: &str, choices: &[&'static str]) -> Result<Option<&'static str>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match choices.iter().find(|choice| value.as_str() == Some(choice)) {
            Some(choice) => Ok(Some(choice)),
            None => {
                let expected = format!("one of {}", choices.join(", "));
                Err(Error::unsupported(self.wrong(name, &expected, value).message))
            }
        }
    }
}

/// The modules of a model of the Llama family.
pub struct Llama {
    /// The beginning of all names but that of the head: `model.`.
    pub prefix: String,
    pub heads: usize,
    pub groups: usize,
    pub layers: Vec<Arc<Module>>,
    pub embedding: Option<Arc<Module>>,
    pub norm: Option<Arc<Module>>,
    pub head: Option<Arc<Module>>,
}

impl Llama {
    /// Of which stored tensors the parameters are made.
    pub fn targets(&self, files: &Pretrained) -> Result<Vec<Target>> {
        let mut targets = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            let prefix = format!("{}layers.{i}.", self.prefix);
            for (index, (name, dims)) in shapes(layer).into_iter().enumerate() {
                let rows = self.of_layer(&prefix, &name, &dims).ok_or_else(|| {
                    let expected = "a parameter that a layer of Llama or Qwen has";
                    Error::argument(format!("layers[{i}]"), expected, format!("{name:?}"))
                })?;
                targets.push(Target { module: Arc::clone(layer), index, rows });
            }
        }
        let embedding = format!("{}embed_tokens.weight", self.prefix);
        // Models whose head has the weight of the embedding store it once.
        let head = "lm_head.weight".to_owned();
        let head = if files.has(&head) { head } else { embedding.clone() };
        let parts = [
            ("embedding", &self.embedding, embedding),
            ("norm", &self.norm, format!("{}norm.weight", self.prefix)),
            ("head", &self.head, head),
        ];
        for (argument, module, stored) in parts {
            let Some(module) = module else { continue };
            let shapes = shapes(module);
            let Some(index) = shapes.iter().position(|(name, _)| name.ends_with("weight")) else {
                return Err(Error::argument(argument, "a module with a weight", module));
            };
            let module = Arc::clone(module);
            targets.push(Target { module, index, rows: vec![Rows::all(stored)] });
        }
        Ok(targets)
    }

    fn of_layer(&self, prefix: &str, name: &str, dims: &[usize]) -> Option<Vec<Rows>> {
        let one = |stored: &str| Some(vec![Rows::all(format!("{prefix}{stored}"))]);
        let bias = |stored: &str, count: usize| Rows {
            or_zeros: Some(count),
            ..Rows::all(format!("{prefix}{stored}"))
        };
        let name = name.strip_prefix("self_attention.").unwrap_or(name);
        let name = name.strip_prefix("layernorm_").unwrap_or(name);
        match name {
            "qkv.layer_norm_weight" => one("input_layernorm.weight"),
            "qkv.weight" => Some(self.fused(&format!("{prefix}self_attn."), "weight", dims)),
            "qkv.bias" => Some(self.fused(&format!("{prefix}self_attn."), "bias", dims)),
            "q_norm.weight" => one("self_attn.q_norm.weight"),
            "k_norm.weight" => one("self_attn.k_norm.weight"),
            "proj.weight" => one("self_attn.o_proj.weight"),
            "proj.bias" => Some(vec![bias("self_attn.o_proj.bias", dims[0])]),
            "mlp.layer_norm_weight" => one("post_attention_layernorm.weight"),
            "mlp.fc1_weight" => Some(vec![
                Rows::all(format!("{prefix}mlp.gate_proj.weight")),
                Rows::all(format!("{prefix}mlp.up_proj.weight")),
            ]),
            "mlp.fc1_bias" => Some(vec![
                bias("mlp.gate_proj.bias", dims[0] / 2),
                bias("mlp.up_proj.bias", dims[0] / 2),
            ]),
            "mlp.fc2_weight" => one("mlp.down_proj.weight"),
            "mlp.fc2_bias" => Some(vec![bias("mlp.down_proj.bias", dims[0])]),
            _ => None,
        }
    }

    /// Rows of queries, keys and values, group by group, as the fused projection has them.
    fn fused(&self, prefix: &str, what: &str, dims: &[usize]) -> Vec<Rows> {
        let dim = dims[0] / (self.heads + 2 * self.groups);
        let queries = self.heads / self.groups * dim;
        let zeros = |count| (what == "bias").then_some(count);
        let rows = |part: &str, group: usize, count: usize| Rows {
            name: format!("{prefix}{part}_proj.{what}"),
            first: group * count,
            count,
            or_zeros: zeros(count),
            whole: Some(self.groups * count),
        };
        (0..self.groups)
            .flat_map(|g| [rows("q", g, queries), rows("k", g, dim), rows("v", g, dim)])
            .collect()
    }
}

/// Names and shapes of the parameters of a module.
fn shapes(module: &Arc<Module>) -> Vec<(String, Vec<usize>)> {
    module.with_parameters(|parameters| {
        parameters.into_iter().map(|(name, p)| (name, p.dims.clone())).collect()
    })
}
