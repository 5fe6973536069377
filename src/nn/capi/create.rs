//! From configs of layers to layers: defaults, checks, and what each config makes.
#![allow(unsafe_code)]

use super::*;
use crate::backend::args::Function::*;
use crate::sized;
use crate::tensor::FromC;
use crate::types::NVTE_Activation_Type::*;
use std::fmt::Debug;

/// Makes a module, which has a name by then.
pub(crate) type Build = Box<dyn FnOnce(&Run, &str) -> Result<Box<dyn Layer>>>;

/// A config of a module.
pub(crate) trait ModuleConfig: Config + Default {
    /// The beginning of names that are made up for modules without a name.
    const KIND: &'static str;

    /// The name that the program gives, and of which field.
    fn name(&self) -> (&'static str, *const c_char);

    /// Checks the config.
    fn build(&self) -> Result<Build>;
}

/// Creates a module under a name of its context.
///
/// # Safety
/// As [`read_config`]; the name is null or a C string.
pub(crate) unsafe fn create<T: ModuleConfig>(
    context: NVTEXContext,
    config: *const T,
    stream: cudaStream_t,
) -> Result<Handle<NVTEXModule_st>> {
    // SAFETY: the caller vouches for config and name.
    let (config, field, name) = unsafe {
        let config = read_config("config", config)?;
        let (field, name) = config.name();
        (config, field, text(field, name)?)
    };
    let build = config.build()?;
    let context = open(&CONTEXTS, "context", context)?;
    let name = context.take_name(field, &name, T::KIND)?;
    let module: Arc<str> = name.as_str().into();
    let run = Run { module: Some(Arc::clone(&module)), ..Run::outside(&context, stream) };
    let created =
        build(&run, &name).and_then(|layer| Module::new(&context, (module, T::KIND), layer));
    match created {
        Ok(module) => Ok(Handle(MODULES.insert(Arc::new(module))?)),
        Err(error) => {
            context.give_name(&name);
            Err(error)
        }
    }
}

impl Default for NVTEXParallelConfig {
    fn default() -> Self {
        Self {
            tensor_parallel_size: 1,
            sequence_parallel: MaybeUninit::new(false),
            context_parallel_size: 1,
            options: std::ptr::null(),
            reserved: [0; 3],
        }
    }
}

/// What a config says of ranks, and which side of a linear layer they share.
fn spread(
    config: &'static str,
    parallel: &NVTEXParallelConfig,
) -> Result<(Spread, NVTEXParallelMode)> {
    let name = format!("{config}.parallel");
    zeros(&name, &parallel.reserved)?;
    let mut spread = Spread {
        name: config,
        size: parallel.tensor_parallel_size,
        sequence: truth(parallel.sequence_parallel),
        local_scales: false,
    };
    let mut mode = NVTEXParallelMode::NVTEX_PARALLEL_DEFAULT;
    if !parallel.options.is_null() {
        let name = format!("{name}.options");
        // SAFETY: the caller vouches for the struct.
        let options = unsafe { sized::read(&name, parallel.options) };
        let options = options.map_err(Error::wrong_argument)?;
        mode = from_c(format_args!("{name}.mode"), options.mode)?;
        spread.local_scales = truth(options.local_scales);
    }
    Ok((spread, mode))
}

/// As [`spread`], of modules that say themselves which side ranks share.
pub(super) fn spread_of(name: &'static str, parallel: &NVTEXParallelConfig) -> Result<Spread> {
    let (spread, mode) = spread(name, parallel)?;
    match mode {
        NVTEXParallelMode::NVTEX_PARALLEL_DEFAULT => Ok(spread),
        _ => {
            let name = format!("{name}.parallel.options.mode");
            Err(Error::argument(name, "NVTEX_PARALLEL_DEFAULT", format!("{mode:?}")))
        }
    }
}

impl Default for NVTEXNormConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            name: std::ptr::null(),
            kind: MaybeUninit::new(NVTE_Norm_Type::LayerNorm),
            hidden_size: 0,
            epsilon: 1e-5,
            zero_centered_gamma: MaybeUninit::new(false),
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            sequence_parallel: MaybeUninit::new(false),
            reserved: [0; 4],
        }
    }
}

impl Default for NVTEXLinearConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            name: std::ptr::null(),
            in_features: 0,
            out_features: 0,
            bias: MaybeUninit::new(true),
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            init_std: 0.023,
            seed: 0,
            parallel: NVTEXParallelConfig::default(),
            reserved: [0; 4],
        }
    }
}

impl Default for NVTEXLayerNormLinearConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            norm: NVTEXNormConfig::default(),
            linear: NVTEXLinearConfig::default(),
            name: std::ptr::null(),
            in_features: 0,
            out_features: 0,
            bias: MaybeUninit::new(true),
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            init_std: 0.023,
            seed: 0,
            norm_type: MaybeUninit::new(NVTE_Norm_Type::LayerNorm),
            norm_epsilon: 1e-5,
            parallel: NVTEXParallelConfig::default(),
            reserved: [0; 4],
        }
    }
}

impl Default for NVTEXGroupedLinearConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            num_gemms: 0,
            linear: NVTEXLinearConfig::default(),
            name: std::ptr::null(),
            in_features: 0,
            out_features: 0,
            bias: MaybeUninit::new(true),
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            init_std: 0.023,
            seed: 0,
            reserved: [0; 4],
        }
    }
}

impl Default for NVTEXLayerNormMLPConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            name: std::ptr::null(),
            norm: NVTEXNormConfig::default(),
            hidden_size: 0,
            ffn_hidden_size: 0,
            activation: MaybeUninit::new(GELU),
            clamp_limit: 7.0,
            clamp_alpha: 1.702,
            clamp_offset: 1.0,
            bias: MaybeUninit::new(true),
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            init_std: 0.023,
            output_init_std: 0.023,
            seed: 0,
            checkpoint: MaybeUninit::new(false),
            parallel: NVTEXParallelConfig::default(),
            reserved: [0; 4],
        }
    }
}

impl Default for NVTEXAttentionConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            name: std::ptr::null(),
            num_attention_heads: 0,
            num_gqa_groups: 0,
            head_dim_qk: 0,
            head_dim_v: 0,
            attention_dropout: 0.0,
            qkv_format: MaybeUninit::new(NVTE_QKV_Format::NVTE_SBHD),
            attn_mask_type: MaybeUninit::new(NVTE_Mask_Type::NVTE_CAUSAL_MASK),
            window_size_left: -1,
            window_size_right: -1,
            bottom_right_diagonal: MaybeUninit::new(true),
            softmax_type: MaybeUninit::new(NVTE_Softmax_Type::NVTE_VANILLA_SOFTMAX),
            softmax_scale: 0.0,
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            checkpoint_core_attention: MaybeUninit::new(false),
            qk_norm_type: MaybeUninit::new(NVTEXQKNorm::NVTEX_QK_NORM_NONE),
            qk_norm_epsilon: 1e-6,
            qk_norm_before_rope: MaybeUninit::new(false),
            parallel: NVTEXParallelConfig::default(),
            context_parallel_kind: MaybeUninit::new(
                NVTEXContextParallelKind::NVTEX_CONTEXT_PARALLEL_AUTOMATIC,
            ),
            reserved: [0; 3],
        }
    }
}

impl Default for NVTEXMultiheadAttentionConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            name: std::ptr::null(),
            hidden_size: 0,
            attention: NVTEXAttentionConfig::default(),
            input_layernorm: MaybeUninit::new(false),
            norm: NVTEXNormConfig::default(),
            cross_attention: MaybeUninit::new(false),
            bias: MaybeUninit::new(true),
            rotary_interleaved: MaybeUninit::new(false),
            init_std: 0.023,
            output_init_std: 0.023,
            seed: 0,
            num_attention_heads: 0,
            num_gqa_groups: 0,
            norm_type: MaybeUninit::new(NVTE_Norm_Type::LayerNorm),
            norm_epsilon: 1e-5,
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            qkv_format: MaybeUninit::new(NVTE_QKV_Format::NVTE_SBHD),
            attn_mask_type: MaybeUninit::new(NVTE_Mask_Type::NVTE_CAUSAL_MASK),
            attention_dropout: 0.0,
            parallel: NVTEXParallelConfig::default(),
            reserved: [0; 4],
        }
    }
}

impl Default for NVTEXTransformerLayerConfig {
    fn default() -> Self {
        let no = MaybeUninit::new(false);
        Self {
            struct_size: size_of::<Self>(),
            name: std::ptr::null(),
            attention: NVTEXAttentionConfig::default(),
            mlp: NVTEXLayerNormMLPConfig::default(),
            hidden_dropout: 0.0,
            decoder: no,
            inter_mask_type: MaybeUninit::new(NVTE_Mask_Type::NVTE_NO_MASK),
            residual_post_layernorm: no,
            output_layernorm: no,
            parallel_attention_mlp: no,
            rotary_interleaved: no,
            hidden_size: 0,
            ffn_hidden_size: 0,
            num_attention_heads: 0,
            num_gqa_groups: 0,
            activation: MaybeUninit::new(GELU),
            norm_type: MaybeUninit::new(NVTE_Norm_Type::LayerNorm),
            norm_epsilon: 1e-5,
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            qkv_format: MaybeUninit::new(NVTE_QKV_Format::NVTE_SBHD),
            attn_mask_type: MaybeUninit::new(NVTE_Mask_Type::NVTE_CAUSAL_MASK),
            attention_dropout: 0.0,
            bias: MaybeUninit::new(true),
            init_std: 0.023,
            output_init_std: 0.023,
            seed: 0,
            checkpoint: no,
            parallel: NVTEXParallelConfig::default(),
            experts: std::ptr::null(),
            reserved: [0; 3],
        }
    }
}

/// The fields of a config that stand for fields of its parts. A field that has its default leaves the part as it is.
#[derive(Default)]
pub(super) struct Whole {
    /// The name of a part's field, and of the one in the whole config that a program may have meant.
    names: Vec<(String, String)>,
}

impl Whole {
    /// Gives a part the value of the whole. Names are those in the config.
    fn set<T: PartialEq + Copy + Debug>(
        &mut self,
        (top_name, top): (&str, T),
        (name, part): (&str, &mut T),
        default: T,
    ) -> Result<()> {
        if *part == default {
            self.names.push((format!("config.{name}"), format!("config.{top_name}")));
            *part = top;
        } else if top != default && top != *part {
            let expected = format!("its default, {default:?}, or that of config.{name}, {part:?}");
            return Err(Error::argument(
                format!("config.{top_name}"),
                expected,
                format!("{top:?}"),
            ));
        }
        Ok(())
    }

    /// As [`Whole::set`], of an enumeration.
    fn choose<T: FromC + PartialEq + Copy + Debug>(
        &mut self,
        (top_name, top): (&str, MaybeUninit<T>),
        (name, part): (&str, &mut MaybeUninit<T>),
        default: T,
    ) -> Result<()> {
        let top = from_c(format_args!("config.{top_name}"), top)?;
        let mut chosen = from_c(format_args!("config.{name}"), *part)?;
        self.set((top_name, top), (name, &mut chosen), default)?;
        *part = MaybeUninit::new(chosen);
        Ok(())
    }

    /// As [`Whole::set`], of a switch.
    fn switch(
        &mut self,
        (top_name, top): (&str, MaybeUninit<bool>),
        (name, part): (&str, &mut MaybeUninit<bool>),
        default: bool,
    ) -> Result<()> {
        let mut switched = truth(*part);
        self.set((top_name, truth(top)), (name, &mut switched), default)?;
        *part = MaybeUninit::new(switched);
        Ok(())
    }

    /// As [`Whole::set`], of how ranks share a part.
    fn parallel(
        &mut self,
        top: &NVTEXParallelConfig,
        (name, part): (&str, &mut NVTEXParallelConfig),
    ) -> Result<()> {
        let values = |config: &NVTEXParallelConfig| {
            let sizes = (config.tensor_parallel_size, config.context_parallel_size);
            (sizes, truth(config.sequence_parallel), config.options, config.reserved)
        };
        let (of_top, default) = (values(top), values(&NVTEXParallelConfig::default()));
        if values(part) == default {
            self.names.push((format!("config.{name}"), "config.parallel".into()));
            *part = *top;
        } else if of_top != default && of_top != values(part) {
            let expected = format!("its defaults, or the values of config.{name}");
            return Err(Error::argument("config.parallel", expected, "others"));
        }
        Ok(())
    }

    /// As [`Whole::set`], of the kind and the epsilon of a norm.
    fn norm(
        &mut self,
        (kind, epsilon): (MaybeUninit<NVTE_Norm_Type>, f32),
        (name, part): (&str, &mut NVTEXNormConfig),
    ) -> Result<()> {
        let field = format!("{name}.kind");
        self.choose(("norm_type", kind), (&field, &mut part.kind), NVTE_Norm_Type::LayerNorm)?;
        let field = format!("{name}.epsilon");
        self.set(("norm_epsilon", epsilon), (&field, &mut part.epsilon), 1e-5)
    }

    /// Errors of a part's field name the one of the whole where the part's was not set.
    fn name_errors<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|mut error| {
            for (part, top) in &self.names {
                error.message = error.message.replace(part, top);
            }
            error
        })
    }

    /// As [`Whole::name_errors`], of what is found when the module is made.
    fn build(self, build: Result<Build>) -> Result<Build> {
        let build = self.name_errors(build)?;
        Ok(Box::new(move |run, name| self.name_errors(build(run, name))))
    }
}

/// The fields that a linear layer's config and those with such a part have alike.
macro_rules! whole_linear {
    ($whole:ident, $config:ident) => {{
        let NVTEXLinearConfig { in_features, out_features, bias, dtype, init_std, seed, .. } =
            &mut $config.linear;
        $whole.set(("in_features", $config.in_features), ("linear.in_features", in_features), 0)?;
        let top = ("out_features", $config.out_features);
        $whole.set(top, ("linear.out_features", out_features), 0)?;
        $whole.switch(("bias", $config.bias), ("linear.bias", bias), true)?;
        let part = ("linear.dtype", dtype);
        $whole.choose(("dtype", $config.dtype), part, NVTEDType::kNVTEFloat32)?;
        $whole.set(("init_std", $config.init_std), ("linear.init_std", init_std), 0.023)?;
        $whole.set(("seed", $config.seed), ("linear.seed", seed), 0)?;
    }};
}

impl NVTEXLayerNormLinearConfig {
    /// The config whose parts say all.
    fn in_parts(&self) -> Result<(Self, Whole)> {
        let (mut config, mut whole) = (*self, Whole::default());
        zeros("config", &self.reserved)?;
        whole_linear!(whole, config);
        whole.norm((self.norm_type, self.norm_epsilon), ("norm", &mut config.norm))?;
        whole.parallel(&self.parallel, ("linear.parallel", &mut config.linear.parallel))?;
        Ok((config, whole))
    }
}

impl NVTEXGroupedLinearConfig {
    /// The config whose parts say all.
    fn in_parts(&self) -> Result<(Self, Whole)> {
        let (mut config, mut whole) = (*self, Whole::default());
        zeros("config", &self.reserved)?;
        whole_linear!(whole, config);
        Ok((config, whole))
    }
}

/// The fields of an attention that the configs with such a part have alike.
macro_rules! whole_attention {
    ($whole:ident, $config:ident) => {{
        use NVTE_Mask_Type::NVTE_CAUSAL_MASK;
        use NVTE_QKV_Format::NVTE_SBHD;
        let part = &mut $config.attention;
        let heads = ("attention.num_attention_heads", &mut part.num_attention_heads);
        $whole.set(("num_attention_heads", $config.num_attention_heads), heads, 0)?;
        let groups = ("attention.num_gqa_groups", &mut part.num_gqa_groups);
        $whole.set(("num_gqa_groups", $config.num_gqa_groups), groups, 0)?;
        let format = ("attention.qkv_format", &mut part.qkv_format);
        $whole.choose(("qkv_format", $config.qkv_format), format, NVTE_SBHD)?;
        let mask = ("attention.attn_mask_type", &mut part.attn_mask_type);
        $whole.choose(("attn_mask_type", $config.attn_mask_type), mask, NVTE_CAUSAL_MASK)?;
        let dropout = ("attention.attention_dropout", &mut part.attention_dropout);
        $whole.set(("attention_dropout", $config.attention_dropout), dropout, 0.0)?;
        $whole.parallel(&$config.parallel, ("attention.parallel", &mut part.parallel))?;
    }};
}

impl NVTEXMultiheadAttentionConfig {
    /// The config whose parts say all.
    fn in_parts(&self) -> Result<(Self, Whole)> {
        let (mut config, mut whole) = (*self, Whole::default());
        zeros("config", &self.reserved)?;
        whole_attention!(whole, config);
        let part = ("attention.dtype", &mut config.attention.dtype);
        whole.choose(("dtype", self.dtype), part, NVTEDType::kNVTEFloat32)?;
        whole.norm((self.norm_type, self.norm_epsilon), ("norm", &mut config.norm))?;
        Ok((config, whole))
    }
}

impl NVTEXTransformerLayerConfig {
    /// The config whose parts say all.
    pub(super) fn in_parts(&self) -> Result<(Self, Whole)> {
        let (mut config, mut whole) = (*self, Whole::default());
        zeros("config", &self.reserved)?;
        whole_attention!(whole, config);
        let mlp = &mut config.mlp;
        whole.set(
            ("hidden_size", self.hidden_size),
            ("mlp.hidden_size", &mut mlp.hidden_size),
            0,
        )?;
        let ffn = ("mlp.ffn_hidden_size", &mut mlp.ffn_hidden_size);
        whole.set(("ffn_hidden_size", self.ffn_hidden_size), ffn, 0)?;
        let activation = ("mlp.activation", &mut mlp.activation);
        whole.choose(("activation", self.activation), activation, GELU)?;
        whole.norm((self.norm_type, self.norm_epsilon), ("mlp.norm", &mut mlp.norm))?;
        let dtype = ("mlp.dtype", &mut mlp.dtype);
        whole.choose(("dtype", self.dtype), dtype, NVTEDType::kNVTEFloat32)?;
        whole.switch(("bias", self.bias), ("mlp.bias", &mut mlp.bias), true)?;
        whole.set(("init_std", self.init_std), ("mlp.init_std", &mut mlp.init_std), 0.023)?;
        let output = ("mlp.output_init_std", &mut mlp.output_init_std);
        whole.set(("output_init_std", self.output_init_std), output, 0.023)?;
        whole.set(("seed", self.seed), ("mlp.seed", &mut mlp.seed), 0)?;
        whole.parallel(&self.parallel, ("mlp.parallel", &mut mlp.parallel))?;
        let top = ("checkpoint", self.checkpoint);
        whole.switch(top, ("mlp.checkpoint", &mut mlp.checkpoint), false)?;
        let core = &mut config.attention.checkpoint_core_attention;
        whole.switch(top, ("attention.checkpoint_core_attention", core), false)?;
        Ok((config, whole))
    }
}

pub(super) fn high_precision(name: &str, dtype: MaybeUninit<NVTEDType>) -> Result<NVTEDType> {
    let dtype = from_c(name, dtype)?;
    check::high_precision(name.trim_end_matches(".dtype"), dtype)?;
    Ok(dtype)
}

fn norm_config(
    name: &str,
    config: &NVTEXNormConfig,
    hidden: usize,
    dtype: NVTEDType,
    names: [&'static str; 2],
) -> Result<NormConfig> {
    zeros(name, &config.reserved)?;
    let kind = from_c(format_args!("{name}.kind"), config.kind)?;
    let zero_centered = truth(config.zero_centered_gamma);
    let op = Norm { kind, epsilon: config.epsilon, zero_centered };
    Ok(NormConfig { op, hidden, dtype, names })
}

pub(super) fn dense_config(name: &'static str, config: &NVTEXLinearConfig) -> Result<DenseConfig> {
    zeros(name, &config.reserved)?;
    let (spread, mode) = spread(name, &config.parallel)?;
    let side = match mode {
        NVTEXParallelMode::NVTEX_PARALLEL_ROW => Side::Row,
        _ => Side::Column,
    };
    let dtype = high_precision(&format!("{name}.dtype"), config.dtype)?;
    let [deviation, _] = deviations(name, [config.init_std, 0.0])?;
    let sizes = [("in_features", config.in_features), ("out_features", config.out_features)];
    for (field, size) in sizes {
        if size == 0 || size > 1 << 31 {
            return Err(Error::argument(format!("{name}.{field}"), "1 to 2^31", size));
        }
    }
    Ok(DenseConfig {
        spread,
        side,
        blocks: 1,
        inputs: config.in_features,
        outputs: config.out_features,
        bias: truth(config.bias),
        dtype,
        deviation,
        seed: config.seed,
        names: ["weight", "bias"],
    })
}

const NORM_NAMES: [&str; 2] = ["layer_norm_weight", "layer_norm_bias"];

from_c_enum!(NVTE_Activation_Type, "an NVTE_Activation_Type from 0 to 11");

from_c_enum!(NVTE_Norm_Type, "an NVTE_Norm_Type, 0 or 1");

/// The activation of a number, and whether it is gated.
pub(super) fn activation_of(
    name: &str,
    kind: MaybeUninit<NVTE_Activation_Type>,
    clamp: [f32; 3],
) -> Result<Activation> {
    let kind = from_c(format_args!("{name}.activation"), kind)?;
    let (function, gated) = match kind {
        GELU => (NVTEX_GELU, false),
        GEGLU => (NVTEX_GELU, true),
        GLU => (NVTEX_SIGMOID, true),
        SILU => (NVTEX_SILU, false),
        SWIGLU => (NVTEX_SILU, true),
        RELU => (NVTEX_RELU, false),
        REGLU => (NVTEX_RELU, true),
        QGELU => (NVTEX_QGELU, false),
        QGEGLU => (NVTEX_QGELU, true),
        SRELU => (NVTEX_SRELU, false),
        SREGLU => (NVTEX_SRELU, true),
        CLAMPED_SWIGLU => (NVTEX_CLAMPED_SILU, true),
    };
    let constants = if kind == CLAMPED_SWIGLU { clamp } else { [0.0; 3] };
    Ok(Activation { function, constants, gated })
}

fn mlp_config(name: &'static str, config: &NVTEXLayerNormMLPConfig) -> Result<MlpConfig> {
    zeros(name, &config.reserved)?;
    let spread = spread_of(name, &config.parallel)?;
    let (hidden, ffn) = (config.hidden_size, config.ffn_hidden_size);
    for (field, size) in [("hidden_size", hidden), ("ffn_hidden_size", ffn)] {
        if size == 0 || size > 1 << 30 {
            return Err(Error::argument(format!("{name}.{field}"), "1 to 2^30", size));
        }
    }
    let dtype = high_precision(&format!("{name}.dtype"), config.dtype)?;
    deviations(name, [config.init_std, config.output_init_std])?;
    let clamp = [config.clamp_limit, config.clamp_alpha, config.clamp_offset];
    let activation = activation_of(name, config.activation, clamp)?;
    let linear = NVTEXLinearConfig {
        in_features: hidden,
        out_features: if activation.gated { 2 * ffn } else { ffn },
        bias: config.bias,
        dtype: config.dtype,
        init_std: config.init_std,
        seed: splitmix(config.seed),
        ..NVTEXLinearConfig::default()
    };
    let blocks = if activation.gated { 2 } else { 1 };
    let names = ["fc1_weight", "fc1_bias"];
    let fc1 = DenseConfig { names, spread, blocks, ..dense_config(name, &linear)? };
    let linear = NVTEXLinearConfig {
        in_features: ffn,
        out_features: hidden,
        init_std: config.output_init_std,
        seed: splitmix(config.seed.wrapping_add(1)),
        ..linear
    };
    let (names, side) = (["fc2_weight", "fc2_bias"], Side::Row);
    let fc2 = DenseConfig { names, spread, side, ..dense_config(name, &linear)? };
    let norm = norm_config(&format!("{name}.norm"), &config.norm, hidden, dtype, NORM_NAMES)?;
    Ok(MlpConfig { norm, fc1, activation, fc2, checkpoint: truth(config.checkpoint) })
}

/// The norm of heads.
fn head_norm(name: &str, config: &NVTEXAttentionConfig) -> Result<Option<HeadNorm>> {
    use NVTEXQKNorm::*;
    let (kind, l2) = match from_c(format_args!("{name}.qk_norm_type"), config.qk_norm_type)? {
        NVTEX_QK_NORM_NONE => return Ok(None),
        NVTEX_QK_NORM_L2 => (NVTE_Norm_Type::RMSNorm, true),
        NVTEX_QK_NORM_RMS => (NVTE_Norm_Type::RMSNorm, false),
        NVTEX_QK_NORM_LAYER => (NVTE_Norm_Type::LayerNorm, false),
    };
    let epsilon = config.qk_norm_epsilon;
    if !(epsilon.is_finite() && epsilon >= 0.0) {
        let name = format!("{name}.qk_norm_epsilon");
        return Err(Error::argument(name, "a finite number, at least 0", epsilon));
    }
    let before_rope = truth(config.qk_norm_before_rope);
    let op = Norm { kind, epsilon, zero_centered: false };
    Ok(Some(HeadNorm { op, l2, before_rope }))
}

fn attention_config(
    name: &str,
    config: &NVTEXAttentionConfig,
    dtype: NVTEDType,
) -> Result<AttentionConfig> {
    zeros(name, &config.reserved)?;
    let or = |value, other| if value == 0 { other } else { value };
    let format = from_c(format_args!("{name}.qkv_format"), config.qkv_format)?;
    use NVTE_QKV_Format::*;
    if !matches!(format, NVTE_SBHD | NVTE_BSHD | NVTE_THD) {
        let expected = "NVTE_SBHD, NVTE_BSHD or NVTE_THD";
        return Err(Error::argument(format!("{name}.qkv_format"), expected, format!("{format:?}")));
    }
    let kind = format_args!("{name}.context_parallel_kind");
    let kind = match from_c(kind, config.context_parallel_kind)? {
        NVTEXContextParallelKind::NVTEX_CONTEXT_PARALLEL_AUTOMATIC => {
            ContextParallelKind::Automatic
        }
        NVTEXContextParallelKind::NVTEX_CONTEXT_PARALLEL_ALL_TO_ALL => {
            ContextParallelKind::AllToAll
        }
        NVTEXContextParallelKind::NVTEX_CONTEXT_PARALLEL_ALL_GATHER => {
            ContextParallelKind::AllGather
        }
        NVTEXContextParallelKind::NVTEX_CONTEXT_PARALLEL_RING => ContextParallelKind::Ring,
    };
    Ok(AttentionConfig {
        heads: config.num_attention_heads,
        groups: or(config.num_gqa_groups, config.num_attention_heads),
        dim_qk: config.head_dim_qk,
        dim_v: or(config.head_dim_v, config.head_dim_qk),
        dropout: config.attention_dropout,
        format,
        mask: from_c(format_args!("{name}.attn_mask_type"), config.attn_mask_type)?,
        window: [config.window_size_left, config.window_size_right],
        bottom_right: truth(config.bottom_right_diagonal),
        softmax: from_c(format_args!("{name}.softmax_type"), config.softmax_type)?,
        scale: config.softmax_scale,
        dtype,
        checkpoint: truth(config.checkpoint_core_attention),
        norm: head_norm(name, config)?,
        site: 0,
        context_parallel: (config.parallel.context_parallel_size, kind),
    })
}

/// Packed tokens have sequences of different lengths.
fn check_packed(name: &str, mask: NVTE_Mask_Type) -> Result<()> {
    use NVTE_Mask_Type::*;
    match mask {
        NVTE_PADDING_MASK | NVTE_PADDING_CAUSAL_MASK | NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK => {
            Ok(())
        }
        mask => {
            let expected = "a mask with padding (qkv_format is NVTE_THD)";
            Err(Error::argument(name, expected, format!("{mask:?}")))
        }
    }
}

/// The attention of a module with projections, whose heads fill its width.
fn projected_attention(
    name: &str,
    config: &NVTEXAttentionConfig,
    hidden: usize,
    dtype: NVTEDType,
) -> Result<AttentionConfig> {
    let mut attention = attention_config(name, config, dtype)?;
    if attention.format == NVTE_QKV_Format::NVTE_THD {
        let mask = attention.mask;
        check_packed(&format!("{name}.attn_mask_type"), mask)?;
    }
    if attention.dim_qk == 0 {
        let heads = attention.heads.max(1);
        if !hidden.is_multiple_of(heads) {
            let expected = format!("a divisor of hidden_size ({hidden})");
            let name = format!("{name}.num_attention_heads");
            return Err(Error::argument(name, expected, heads));
        }
        attention.dim_qk = hidden / heads;
    }
    if config.head_dim_v != 0 && config.head_dim_v != attention.dim_qk {
        let expected = format!("0 or {}, as head_dim_qk", attention.dim_qk);
        return Err(Error::argument(format!("{name}.head_dim_v"), expected, config.head_dim_v));
    }
    attention.dim_v = attention.dim_qk;
    attention.check(name)?;
    let outputs = (attention.heads + 2 * attention.groups) * attention.dim_qk;
    if outputs > 1 << 31 {
        let expected = "at most 2^31 elements of all heads of queries, keys and values";
        return Err(Error::argument(format!("{name}.head_dim_qk"), expected, outputs));
    }
    if let Some(norm) = attention.norm.as_mut().filter(|norm| norm.l2) {
        norm.op.epsilon /= attention.dim_qk as f32;
    }
    Ok(attention)
}

/// Whether there is a second input, of which keys have no norms.
fn cross(name: &str, cross: MaybeUninit<bool>, attention: &AttentionConfig) -> Result<bool> {
    if truth(cross) && attention.norm.is_some() {
        return Err(Error::argument(
            name,
            "false (qk_norm_type is set, and cross attention has no such norms)",
            "true",
        ));
    }
    Ok(truth(cross))
}

pub(super) fn deviation(name: &str, deviation: f32) -> Result<f32> {
    match deviation.is_finite() && deviation >= 0.0 {
        true => Ok(deviation),
        false => Err(Error::argument(name, "a finite number, at least 0", deviation)),
    }
}

fn deviations(name: &str, [first, last]: [f32; 2]) -> Result<[f32; 2]> {
    deviation(&format!("{name}.init_std"), first)?;
    deviation(&format!("{name}.output_init_std"), last)?;
    Ok([first, last])
}

impl ModuleConfig for NVTEXNormConfig {
    const KIND: &'static str = "norm";

    fn name(&self) -> (&'static str, *const c_char) {
        ("config.name", self.name)
    }

    fn build(&self) -> Result<Build> {
        let dtype = high_precision("config.dtype", self.dtype)?;
        let norm = norm_config("config", self, self.hidden_size, dtype, ["weight", "bias"])?;
        let size = if truth(self.sequence_parallel) { 0 } else { 1 };
        let spread = Spread { size, ..Spread::ALONE };
        Ok(Box::new(move |run, _| Ok(Box::new(NormLayer::spread(run, &norm, &spread)?))))
    }
}

impl ModuleConfig for NVTEXLinearConfig {
    const KIND: &'static str = "linear";

    fn name(&self) -> (&'static str, *const c_char) {
        ("config.name", self.name)
    }

    fn build(&self) -> Result<Build> {
        let dense = dense_config("config", self)?;
        let (spread, mode) = spread("config", &self.parallel)?;
        if spread.size != 1 && mode == NVTEXParallelMode::NVTEX_PARALLEL_DEFAULT {
            let name = "config.parallel.options.mode";
            let expected =
                "NVTEX_PARALLEL_COLUMN or NVTEX_PARALLEL_ROW (tensor_parallel_size is not 1)";
            return Err(Error::argument(name, expected, format!("{mode:?}")));
        }
        Ok(Box::new(move |run, name| Ok(Box::new(Linear::new(run, name, None, &dense)?))))
    }
}

impl ModuleConfig for NVTEXLayerNormLinearConfig {
    const KIND: &'static str = "layernorm_linear";

    fn name(&self) -> (&'static str, *const c_char) {
        match self.name.is_null() {
            true => ("config.linear.name", self.linear.name),
            false => ("config.name", self.name),
        }
    }

    fn build(&self) -> Result<Build> {
        let (config, whole) = self.in_parts()?;
        whole.build(config.build_parts())
    }
}

impl NVTEXLayerNormLinearConfig {
    fn build_parts(&self) -> Result<Build> {
        let dense = dense_config("config.linear", &self.linear)?;
        if dense.side == Side::Row {
            let name = "config.linear.parallel.options.mode";
            let expected =
                "NVTEX_PARALLEL_DEFAULT or NVTEX_PARALLEL_COLUMN (the norm reads whole rows)";
            return Err(Error::argument(name, expected, "NVTEX_PARALLEL_ROW"));
        }
        let (hidden, dtype) = (dense.inputs, dense.dtype);
        let norm = norm_config("config.norm", &self.norm, hidden, dtype, NORM_NAMES)?;
        Ok(Box::new(move |run, name| Ok(Box::new(Linear::new(run, name, Some(&norm), &dense)?))))
    }
}

impl ModuleConfig for NVTEXGroupedLinearConfig {
    const KIND: &'static str = "grouped_linear";

    fn name(&self) -> (&'static str, *const c_char) {
        match self.name.is_null() {
            true => ("config.linear.name", self.linear.name),
            false => ("config.name", self.name),
        }
    }

    fn build(&self) -> Result<Build> {
        let (config, whole) = self.in_parts()?;
        whole.build(config.build_parts())
    }
}

impl NVTEXGroupedLinearConfig {
    fn build_parts(&self) -> Result<Build> {
        let count = self.num_gemms;
        if count == 0 || count > 1 << 16 {
            return Err(Error::argument("config.num_gemms", "1 to 65536", count));
        }
        let dense = dense_config("config.linear", &self.linear)?;
        if dense.spread.sequence {
            let name = "config.linear.parallel.sequence_parallel";
            let expected =
                "false (rows of a grouped layer are sorted by part, and whole on each rank)";
            let error = Error::argument(name, expected, true);
            return Err(Error::unsupported(error.message));
        }
        Ok(Box::new(move |run, name| Ok(Box::new(GroupedLinear::new(run, name, count, &dense)?))))
    }
}

impl ModuleConfig for NVTEXLayerNormMLPConfig {
    const KIND: &'static str = "layernorm_mlp";

    fn name(&self) -> (&'static str, *const c_char) {
        ("config.name", self.name)
    }

    fn build(&self) -> Result<Build> {
        let mlp = mlp_config("config", self)?;
        Ok(Box::new(move |run, name| Ok(Box::new(LayerNormMlp::new(run, name, &mlp)?))))
    }
}

impl ModuleConfig for NVTEXAttentionConfig {
    const KIND: &'static str = "attention";

    fn name(&self) -> (&'static str, *const c_char) {
        ("config.name", self.name)
    }

    fn build(&self) -> Result<Build> {
        let dtype = high_precision("config.dtype", self.dtype)?;
        let attention = attention_config("config", self, dtype)?;
        attention.check("config")?;
        if attention.norm.is_some() {
            let expected = "NVTEX_QK_NORM_NONE (only modules with projections have such norms)";
            return Err(Error::argument("config.qk_norm_type", expected, "a norm"));
        }
        if attention.checkpoint {
            let expected = "false (the tape of this module refers to tensors of the caller, which it cannot drop)";
            return Err(Error::argument("config.checkpoint_core_attention", expected, "true"));
        }
        let spread = spread_of("config", &self.parallel)?;
        Ok(Box::new(move |run, _| Ok(Box::new(DotProductAttention::new(run, attention, &spread)?))))
    }
}

impl ModuleConfig for NVTEXMultiheadAttentionConfig {
    const KIND: &'static str = "multihead_attention";

    fn name(&self) -> (&'static str, *const c_char) {
        ("config.name", self.name)
    }

    fn build(&self) -> Result<Build> {
        let (config, whole) = self.in_parts()?;
        whole.build(config.build_parts())
    }
}

impl NVTEXMultiheadAttentionConfig {
    fn build_parts(&self) -> Result<Build> {
        let dtype = high_precision("config.attention.dtype", self.attention.dtype)?;
        let hidden = self.hidden_size;
        let attention = projected_attention("config.attention", &self.attention, hidden, dtype)?;
        if hidden == 0 || hidden > 1 << 30 {
            return Err(Error::argument("config.hidden_size", "1 to 2^30", hidden));
        }
        let norm = match truth(self.input_layernorm) {
            true => Some(norm_config("config.norm", &self.norm, hidden, dtype, NORM_NAMES)?),
            false => None,
        };
        let multihead = MultiheadConfig {
            attention,
            spread: spread_of("config.attention", &self.attention.parallel)?,
            hidden,
            norm,
            cross: cross("config.cross_attention", self.cross_attention, &attention)?,
            bias: truth(self.bias),
            rotary_interleaved: truth(self.rotary_interleaved),
            deviations: deviations("config", [self.init_std, self.output_init_std])?,
            seeds: [0, 1, 2].map(|i| splitmix(self.seed.wrapping_add(i))),
        };
        Ok(Box::new(move |run, name| Ok(Box::new(MultiheadAttention::new(run, name, &multihead)?))))
    }
}

impl ModuleConfig for NVTEXTransformerLayerConfig {
    const KIND: &'static str = "transformer_layer";

    fn name(&self) -> (&'static str, *const c_char) {
        ("config.name", self.name)
    }

    fn build(&self) -> Result<Build> {
        let (config, whole) = self.in_parts()?;
        whole.build(config.build_parts())
    }
}

impl NVTEXTransformerLayerConfig {
    fn build_parts(&self) -> Result<Build> {
        let (hidden, seed) = (self.mlp.hidden_size, self.mlp.seed);
        let experts = match self.experts.is_null() {
            true => None,
            // SAFETY: whoever vouches for a config vouches for what it points to.
            false => Some(unsafe { read_config("config.experts", self.experts) }?),
        };
        let mut mlp = self.mlp;
        if let Some(experts) = experts.as_ref().filter(|_| mlp.ffn_hidden_size == 0) {
            mlp.ffn_hidden_size = experts.ffn_hidden_size;
        }
        let mlp = mlp_config("config.mlp", &mlp)?;
        let (dtype, spread) = (mlp.fc1.dtype, mlp.fc1.spread);
        let mlp = match experts {
            None => BranchConfig::Mlp(Box::new(mlp)),
            Some(experts) => self.experts(experts, mlp)?,
        };
        let parallel = truth(self.parallel_attention_mlp);
        let others = [
            ("decoder", truth(self.decoder)),
            ("residual_post_layernorm", truth(self.residual_post_layernorm)),
            ("output_layernorm", truth(self.output_layernorm)),
        ];
        for (field, set) in others {
            if parallel && set {
                let expected = "false (parallel_attention_mlp is true)";
                return Err(Error::argument(format!("config.{field}"), expected, "true"));
            }
        }
        let [(_, decoder), (_, residual_after_norm), (_, output_layernorm)] = others;
        if residual_after_norm && output_layernorm {
            let expected =
                "false (output_layernorm is true, and then self attention has no norm before it)";
            return Err(Error::argument("config.residual_post_layernorm", expected, "true"));
        }
        if !(0.0..1.0).contains(&self.hidden_dropout) {
            let expected = "at least 0 and less than 1";
            return Err(Error::argument("config.hidden_dropout", expected, self.hidden_dropout));
        }
        let norm = |names| norm_config("config.mlp.norm", &self.mlp.norm, hidden, dtype, names);
        let multihead = |cross: bool, normed: bool| -> Result<MultiheadConfig> {
            let attention =
                projected_attention("config.attention", &self.attention, hidden, dtype)?;
            Ok(MultiheadConfig {
                attention,
                spread: spread_of("config.attention", &self.attention.parallel)?,
                hidden,
                norm: if normed { Some(norm(NORM_NAMES)?) } else { None },
                cross,
                bias: truth(self.mlp.bias),
                rotary_interleaved: truth(self.rotary_interleaved),
                deviations: [self.mlp.init_std, self.mlp.output_init_std],
                seeds: [0, 1, 2].map(|i| {
                    let first = if cross { 5 } else { 2 };
                    splitmix(seed.wrapping_add(first + i))
                }),
            })
        };
        let inter_attention = match decoder {
            true => {
                let mut inter = multihead(true, true)?;
                cross("config.decoder", self.decoder, &inter.attention)?;
                inter.attention.mask = from_c("config.inter_mask_type", self.inter_mask_type)?;
                if inter.attention.format == NVTE_QKV_Format::NVTE_THD {
                    check_packed("config.inter_mask_type", inter.attention.mask)?;
                }
                inter.attention.window = [-1, -1];
                inter.attention.site = INTER_ATTENTION_SITE;
                Some(inter)
            }
            false => None,
        };
        let layer = LayerConfig {
            self_attention: multihead(false, !output_layernorm)?,
            inter_attention,
            mlp,
            spread,
            output_norm: if output_layernorm { Some(norm(["weight", "bias"])?) } else { None },
            dropout: self.hidden_dropout,
            residual_after_norm,
            parallel,
        };
        Ok(Box::new(move |run, name| Ok(Box::new(TransformerLayer::new(run, name, &layer)?))))
    }

    /// Experts in place of an MLP.
    fn experts(&self, mut experts: NVTEXMoeConfig, mlp: MlpConfig) -> Result<BranchConfig> {
        let MlpConfig { norm, fc1, checkpoint, .. } = mlp;
        if fc1.spread.sequence && fc1.spread.size != 1 && experts.tensor_parallel_size == 1 {
            let expected = "0, the ranks that share rows (config.mlp.parallel.sequence_parallel)";
            let name = "config.experts.tensor_parallel_size";
            return Err(Error::unsupported(Error::argument(name, expected, 1).message));
        }
        if checkpoint {
            let expected = "false (experts compute nothing again)";
            return Err(Error::argument("config.mlp.checkpoint", expected, "true"));
        }
        let hidden = self.mlp.hidden_size;
        if ![0, hidden].contains(&experts.hidden_size) {
            let (expected, got) =
                (format!("0 or {hidden}, as config.mlp.hidden_size"), experts.hidden_size);
            return Err(Error::argument("config.experts.hidden_size", expected, got));
        }
        experts.hidden_size = hidden;
        if experts.ffn_hidden_size == 0 {
            experts.ffn_hidden_size = self.mlp.ffn_hidden_size;
        }
        let dtype = from_c("config.experts.dtype", experts.dtype)?;
        if ![NVTEDType::kNVTEFloat32, fc1.dtype].contains(&dtype) {
            let expected = format!("{}, as config.mlp.dtype", fc1.dtype);
            return Err(Error::argument("config.experts.dtype", expected, dtype));
        }
        experts.dtype = MaybeUninit::new(fc1.dtype);
        experts.seed = experts.seed.wrapping_add(splitmix(self.mlp.seed.wrapping_add(8)));
        Ok(BranchConfig::Experts(norm, Box::new(experts.layer("config.experts", &fc1.spread)?)))
    }
}
