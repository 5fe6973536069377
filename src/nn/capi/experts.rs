//! The layer of experts.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::create::{activation_of, dense_config};
use super::*;
use crate::op::fused_router::Rule;
use num_derive::FromPrimitive;

/// Scores of a router, of the logits of a token.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXMoeScore {
    /// The greatest logits are chosen, and weights are the softmax over those.
    NVTEX_MOE_SCORE_SOFTMAX = 0,
    /// Weights are the softmax over the logits of all experts; those of a token need not add up to 1.
    NVTEX_MOE_SCORE_SOFTMAX_OF_ALL = 1,
    /// Weights are sigmoids, divided by the sum of those chosen if these are several.
    NVTEX_MOE_SCORE_SIGMOID = 2,
    /// As NVTEX_MOE_SCORE_SIGMOID, with `sqrt(log(1 + exp(x)))`.
    NVTEX_MOE_SCORE_SQRTSOFTPLUS = 3,
}

from_c_enum!(NVTEXMoeScore, "an NVTEXMoeScore from 0 to 3");

/// Config of a layer of experts: `y = sum_k w_k f_k(x) + g(x)` for the experts k that a router chooses for the token x,
/// each an MLP `f(x) = act(x W1^T + b1) W2^T + b2`, and an MLP g for all tokens.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXMoeConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    pub hidden_size: usize,
    /// Elements of an expert after its activation. With a gated activation W1 has twice as many rows, first those
    /// of the function, then those of the gate.
    pub ffn_hidden_size: usize,
    pub num_experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Float16 or BFloat16, on the CPU backend also Float32 (default), of experts, inputs and outputs.
    pub dtype: MaybeUninit<NVTEDType>,
    /// Of the router: Float32 (default) or `dtype`. Its products stay in it whatever the recipe says; logits are Float32.
    pub router_dtype: MaybeUninit<NVTEDType>,
    /// Default: SWIGLU.
    pub activation: MaybeUninit<NVTE_Activation_Type>,
    /// Constants of CLAMPED_SWIGLU. Defaults: 7, 1.702, 1.
    pub clamp_limit: f32,
    pub clamp_alpha: f32,
    pub clamp_offset: f32,
    /// Whether experts and the shared MLP have biases. Default: false.
    pub bias: MaybeUninit<bool>,
    /// Default: NVTEX_MOE_SCORE_SOFTMAX.
    pub score: MaybeUninit<NVTEXMoeScore>,
    /// Experts come in groups of neighbours, of which only the best `group_top_k` are chosen from; the score of a group is
    /// the sum of its best `top_k / group_top_k`. 0 (default): there are none.
    pub num_groups: usize,
    pub group_top_k: usize,
    /// A bias of each expert that is added to its score for the choice alone; not with a softmax. The program moves it, by
    /// what the third output says. Default: false.
    pub expert_bias: MaybeUninit<bool>,
    /// Factor of the weights of experts. Default: 1.
    pub scaling_factor: f32,
    /// Factor c of the loss of balance, `c E / (k T^2) sum_e n_e sum_t s_te`: of T tokens n_e have chosen expert e, to
    /// which token t gives the score s_te, divided by those of all experts. Default: 0.
    pub balance_coefficient: f32,
    /// Factor c of the loss of the size of the logits, `c / T sum_t log(sum_e exp(x_te))^2`. Default: 0.
    pub z_coefficient: f32,
    /// Elements of the MLP for all tokens after its activation. 0 (default): there is none.
    pub shared_ffn_hidden_size: usize,
    /// Standard deviations of the initial weights: of first and last products, and of the router. Defaults: 0.023.
    pub init_std: f32,
    pub output_init_std: f32,
    pub router_init_std: f32,
    /// Seed of the initial weights.
    pub seed: u64,
    /// Ranks that share the experts: 1 (default): none; 0: those of NVTEX_GRID_EP; or the number of these. Each has
    /// `num_experts` divided by their number, and tokens of its own.
    pub expert_parallel_size: usize,
    /// An expert takes at most `ceil(capacity_factor * top_k * T / num_experts)` choices, computed in double, of the T
    /// tokens of all ranks that share the experts: with 1 as many as if all experts had the same number. Choices beyond are
    /// dropped. 0 (default): none is.
    pub capacity_factor: f32,
    /// Ranks that divide each expert and the shared MLP, as they divide an MLP (`NVTEXParallelConfig`): 1 (default): none;
    /// 0: those of NVTEX_GRID_TP; or the number of these. They have the same tokens, or, in a layer of a Transformer with
    /// `mlp.parallel.sequence_parallel`, parts of them; each has the router.
    pub tensor_parallel_size: usize,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 2],
}

config!(NVTEXMoeConfig {
    struct_size,
    name,
    hidden_size,
    ffn_hidden_size,
    num_experts,
    top_k,
    dtype,
    router_dtype,
    activation,
    clamp_limit,
    clamp_alpha,
    clamp_offset,
    bias,
    score,
    num_groups,
    group_top_k,
    expert_bias,
    scaling_factor,
    balance_coefficient,
    z_coefficient,
    shared_ffn_hidden_size,
    init_std,
    output_init_std,
    router_init_std,
    seed,
    expert_parallel_size,
    capacity_factor,
    tensor_parallel_size,
    reserved,
});

impl Default for NVTEXMoeConfig {
    fn default() -> Self {
        let no = MaybeUninit::new(false);
        Self {
            struct_size: size_of::<Self>(),
            name: std::ptr::null(),
            hidden_size: 0,
            ffn_hidden_size: 0,
            num_experts: 0,
            top_k: 0,
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            router_dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            activation: MaybeUninit::new(NVTE_Activation_Type::SWIGLU),
            clamp_limit: 7.0,
            clamp_alpha: 1.702,
            clamp_offset: 1.0,
            bias: no,
            score: MaybeUninit::new(NVTEXMoeScore::NVTEX_MOE_SCORE_SOFTMAX),
            num_groups: 0,
            group_top_k: 0,
            expert_bias: no,
            scaling_factor: 1.0,
            balance_coefficient: 0.0,
            z_coefficient: 0.0,
            shared_ffn_hidden_size: 0,
            init_std: 0.023,
            output_init_std: 0.023,
            router_init_std: 0.023,
            seed: 0,
            expert_parallel_size: 1,
            capacity_factor: 0.0,
            tensor_parallel_size: 1,
            reserved: [0; 2],
        }
    }
}

impl NVTEXMoeConfig {
    /// How experts are chosen.
    fn rule(&self) -> Result<Rule> {
        use NVTEXMoeScore::*;
        let (score_function, pre) = match from_c("config.score", self.score)? {
            NVTEX_MOE_SCORE_SOFTMAX => (1, false),
            NVTEX_MOE_SCORE_SOFTMAX_OF_ALL => (1, true),
            NVTEX_MOE_SCORE_SIGMOID => (0, false),
            NVTEX_MOE_SCORE_SQRTSOFTPLUS => (2, false),
        };
        let (experts, topk) = (self.num_experts, self.top_k);
        if !(1..=1 << 16).contains(&experts) {
            return Err(Error::argument("config.num_experts", "1 to 65536", experts));
        }
        if !(1..=experts).contains(&topk) {
            let expected = format!("1 to {experts} (num_experts)");
            return Err(Error::argument("config.top_k", expected, topk));
        }
        let (groups, chosen) = (self.num_groups, self.group_top_k);
        if (groups == 0) != (chosen == 0) {
            let expected = "0 together with num_groups, or neither";
            return Err(Error::argument("config.group_top_k", expected, chosen));
        }
        if groups > 0 && !experts.is_multiple_of(groups) {
            let expected = format!("a divisor of num_experts ({experts})");
            return Err(Error::argument("config.num_groups", expected, groups));
        }
        let fits = || topk.is_multiple_of(chosen) && topk / chosen <= experts / groups;
        if groups > 0 && (chosen > groups || !fits()) {
            let expected = format!(
                "a divisor of top_k ({topk}) of at most {groups} (num_groups), which leaves at most {} experts for \
                 each group",
                experts / groups
            );
            return Err(Error::argument("config.group_top_k", expected, chosen));
        }
        if truth(self.expert_bias) && score_function == 1 {
            let expected = "false (a softmax has no bias of experts)";
            return Err(Error::argument("config.expert_bias", expected, "true"));
        }
        if !self.scaling_factor.is_finite() {
            let got = self.scaling_factor;
            return Err(Error::argument("config.scaling_factor", "a finite number", got));
        }
        Ok(Rule {
            num_tokens: 0,
            num_experts: experts as i32,
            topk: topk as i32,
            use_pre_softmax: i32::from(pre),
            num_groups: groups as i32,
            group_topk: chosen as i32,
            scaling_factor: self.scaling_factor,
            score_function,
        })
    }

    /// The layers of an MLP with `ffn` elements, whose initial values begin at a place among the module's seeds.
    fn layers(
        &self,
        (field, ffn): (&str, usize),
        spread: Spread,
        gated: bool,
        first: u64,
    ) -> Result<[DenseConfig; 2]> {
        if ffn == 0 || ffn > 1 << 30 {
            return Err(Error::argument(format!("config.{field}"), "1 to 2^30", ffn));
        }
        let linear = |inputs, outputs, init_std, place| NVTEXLinearConfig {
            in_features: inputs,
            out_features: outputs,
            bias: self.bias,
            dtype: self.dtype,
            init_std,
            seed: splitmix(self.seed.wrapping_add(first + place)),
            ..NVTEXLinearConfig::default()
        };
        let outputs = if gated { 2 * ffn } else { ffn };
        let fc1 = linear(self.hidden_size, outputs, self.init_std, 0);
        let fc2 = linear(ffn, self.hidden_size, self.output_init_std, 1);
        let of_config = |linear: &NVTEXLinearConfig, names, side, blocks| -> Result<DenseConfig> {
            Ok(DenseConfig { names, side, blocks, spread, ..dense_config("config", linear)? })
        };
        let blocks = if gated { 2 } else { 1 };
        Ok([
            of_config(&fc1, ["fc1_weight", "fc1_bias"], Side::Column, blocks)?,
            of_config(&fc2, ["fc2_weight", "fc2_bias"], Side::Row, 1)?,
        ])
    }

    /// Checks the config, which has a name in errors. In a layer of a Transformer ranks may share rows, too, and scale their
    /// own parts of tensors, as `layer` says.
    pub(super) fn layer(&self, name: &'static str, layer: &Spread) -> Result<MoeConfig> {
        let size = self.tensor_parallel_size;
        self.checked(name, Spread { name, size, ..*layer }).map_err(|error| match name {
            "config" => error,
            name => {
                let message = error.message.replacen("config.", &format!("{name}."), 1);
                Error { message, ..error }
            }
        })
    }

    fn checked(&self, name: &'static str, spread: Spread) -> Result<MoeConfig> {
        zeros("config", &self.reserved)?;
        let hidden = self.hidden_size;
        if hidden == 0 || hidden > 1 << 30 {
            return Err(Error::argument("config.hidden_size", "1 to 2^30", hidden));
        }
        let dtype = high_precision("config.dtype", self.dtype)?;
        let router_dtype = high_precision("config.router_dtype", self.router_dtype)?;
        if ![NVTEDType::kNVTEFloat32, dtype].contains(&router_dtype) {
            let expected = format!("Float32 or {dtype}, as config.dtype");
            return Err(Error::argument("config.router_dtype", expected, router_dtype));
        }
        for (name, factor) in [
            ("balance_coefficient", self.balance_coefficient),
            ("z_coefficient", self.z_coefficient),
            ("capacity_factor", self.capacity_factor),
        ] {
            if !(factor.is_finite() && factor >= 0.0) {
                let name = format!("config.{name}");
                return Err(Error::argument(name, "a finite number, at least 0", factor));
            }
        }
        deviation("config.init_std", self.init_std)?;
        deviation("config.output_init_std", self.output_init_std)?;
        deviation("config.router_init_std", self.router_init_std)?;
        let clamp = [self.clamp_limit, self.clamp_alpha, self.clamp_offset];
        let activation = activation_of("config", self.activation, clamp)?;
        let gated = activation.gated;
        let router = NVTEXLinearConfig {
            in_features: hidden,
            out_features: self.num_experts,
            bias: MaybeUninit::new(false),
            dtype: self.router_dtype,
            init_std: self.router_init_std,
            seed: splitmix(self.seed.wrapping_add(4)),
            ..NVTEXLinearConfig::default()
        };
        let rule = self.rule()?;
        let ffn = ("ffn_hidden_size", self.ffn_hidden_size);
        let [fc1, fc2] = self.layers(ffn, spread, gated, 0)?;
        let shared = match self.shared_ffn_hidden_size {
            0 => None,
            ffn => Some(self.layers(("shared_ffn_hidden_size", ffn), spread, gated, 2)?),
        };
        Ok(MoeConfig {
            hidden,
            experts: self.num_experts,
            topk: self.top_k,
            rule,
            expert_bias: truth(self.expert_bias),
            balance: self.balance_coefficient,
            z: self.z_coefficient,
            router: dense_config("config", &router)?,
            fc1,
            activation,
            fc2,
            shared,
            ranks: self.expert_parallel_size,
            spread,
            capacity_factor: self.capacity_factor,
            name,
        })
    }
}

impl ModuleConfig for NVTEXMoeConfig {
    const KIND: &'static str = "moe";

    fn name(&self) -> (&'static str, *const c_char) {
        ("config.name", self.name)
    }

    fn build(&self) -> Result<Build> {
        let layer = self.layer("config", &Spread::ALONE)?;
        Ok(Box::new(move |run, name| Ok(Box::new(Moe::new(run, name, &layer)?))))
    }
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_moe_config_init(
    config: *mut NVTEXMoeConfig,
    struct_size: usize,
) {
    guard("nvtex_moe_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXMoeConfig::default()) }
    });
}

/// Creates a layer of experts (a mixture of experts): a router, an MLP for each expert, and one for all tokens.
///
/// What it computes: the router's products give logits, from which `nvte_fused_topk_with_score_function_forward_v2`
/// chooses experts and their weights. Rows of tokens are copied to those of their experts, go through products of groups
/// (`nvte_grouped_gemm`), and are summed with their weights in Float32, in the order of the choices, rounded once. Without
/// `capacity_factor` no choice is dropped: there is memory for `top_k` rows of each token. The same bits come out in every
/// run.
///
/// With `capacity_factor` an expert takes so many choices, in the order of ranks and then of tokens. Later ones are
/// dropped: they add 0 to the output, and 0 to the gradients of the token and of their weights, while the weights of the
/// token's other experts stay as they are. The third output counts all choices: those of an expert beyond its capacity
/// were dropped.
///
/// Shapes: input and output `[..., hidden_size]`. A second output, Float32 `[2]`, takes the losses of balance and of the
/// size of the logits; a third, Int64 `[num_experts]`, the number of tokens that have chosen each expert. Both may be
/// null.
///
/// Gradients: backward passes add those of both losses, whether the losses were asked for or not: each times its element of
/// the second `grad_outputs`, Float32 `[2]`, and times 1 without it.
///
/// Parameters: `router.weight` `[num_experts, hidden_size]`, `router.expert_bias` `[num_experts]` (Float32, without
/// gradient), `experts.fc1_weight` `[num_experts, ffn_hidden_size (gated: twice that), hidden_size]`, `experts.fc1_bias`,
/// `experts.fc2_weight` `[num_experts, hidden_size, ffn_hidden_size]`, `experts.fc2_bias`, and the same of `shared.`
/// without the first dimension.
///
/// Recipes: the products of experts follow the recipe, those of the router do not. Delayed and current scaling have one
/// scale for the rows of all experts, and one for their weights; FP8 blocks and MXFP8 pad the rows of each expert to a
/// multiple of 128, one scale to 16. NVFP4 and weights in FP8 alone are refused.
///
/// Over several ranks (`expert_parallel_size`) each has `num_experts / ranks` experts, in the order of the ranks, and
/// tokens of its own, any number. Rows travel to the ranks of their experts and back. The gradients of experts are
/// complete, over the tokens of all ranks; others are those of the own tokens. The mean of the losses over the ranks is
/// that of all their tokens, as NVTEX_GRADIENTS_MEAN takes it: where gradients are sums over ranks, give `1 / ranks` as the
/// gradient of the losses, or divide their factors. The host waits for the numbers of rows, so that a graph cannot
/// capture it.
///
/// With `capacity_factor` sizes are fixed, and nothing waits: under NCCL a graph can capture passes over ranks, too. All
/// ranks then have the same number of tokens in a pass. Each pair exchanges a slot for each of their tokens, in which a token
/// travels once for all of its experts of a rank. That rank sums their results with their weights, rounds the sum to
/// `dtype`, and sends it back, where the sums of all ranks are added in Float32 and rounded once more. The same choices are
/// dropped as by one rank that has all tokens.
///
/// Ranks of tensor parallelism (`tensor_parallel_size`) have the same tokens and choices, and parts of each expert: rows of
/// W1 and columns of W2. Their results are parts of a sum over these ranks, which one all-reduce of the output makes, and one
/// of the gradient of the input; another one sums the gradients of weights of experts, 4 bytes a choice. The router and
/// the second biases are whole on each rank, and their gradients the same. Sizes that the ranks do not divide are refused.
///
/// Notes: without other ranks nothing waits for the device, and graphs can capture passes. On CUDA the products need compute
/// capability 9.0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_moe_create(
    context: NVTEXContext,
    config: *const NVTEXMoeConfig,
    stream: cudaStream_t,
) -> NVTEXModule {
    // SAFETY: the caller vouches for the config.
    guard("nvtex_moe_create", || unsafe { create(context, config, stream) }).0
}
