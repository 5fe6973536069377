#ifndef NVTE_CPP_MODULES_HPP
#define NVTE_CPP_MODULES_HPP

/* Generated from the C headers by tests/abi.rs. nvte/cpp/nvte.hpp includes it. */

#include "nvte/cpp/nvte.hpp"

namespace nvte {

/**
 * Creates a LayerNorm or RMSNorm: `nvte_layernorm_fwd` or `nvte_rmsnorm_fwd` with parameters.
 *
 * Input and output: `[..., hidden_size]`. Parameters: `weight`, and with LayerNorm `bias`.
 */
using Norm =
    ModuleOf<NVTEXNormConfig, nvtex_norm_config_init,
             nvtex_norm_create>;

/**
 * Creates a linear layer, `y = x W^T + b`.
 *
 * Shapes: input `[..., in_features]`, output `[..., out_features]`. Under a recipe, features must be
 * multiples of 16 (MXFP8: 32); rows may be any number.
 *
 * Parameters: `weight` `[out_features, in_features]`, `bias` `[out_features]`.
 *
 * Over several ranks the mode says what they share. Columns: the output is `[..., out_features / ranks]`, and parameters
 * have that many rows. Rows: the input is `[..., in_features / ranks]`, as many columns has the weight, and the bias is
 * whole. If ranks share rows (`sequence_parallel`), the input of a layer that shares outputs, and the output of one that
 * shares inputs, have the rows of this rank, the other one has all rows.
 *
 * Notes: on CUDA the FP8 product of the weight's gradient is faster if rows are a multiple of 16, and
 * with FP8 blocks the other products if rows are a multiple of 8. Otherwise a kernel of this library
 * computes them, and a product with a bias takes `4 * rows * out_features` bytes more of the context's
 * memory.
 */
using Linear =
    ModuleOf<NVTEXLinearConfig, nvtex_linear_config_init,
             nvtex_linear_create>;

/**
 * Creates a norm followed by a linear layer, which gets its input in FP8 from the norm where the
 * recipe allows it.
 *
 * As `nvtex_linear_create`; a second output, if not null, takes the norm's result, and its gradient
 * counts. Parameters: `layer_norm_weight`, `layer_norm_bias`, `weight`, `bias`.
 */
using LayerNormLinear =
    ModuleOf<NVTEXLayerNormLinearConfig, nvtex_layernorm_linear_config_init,
             nvtex_layernorm_linear_create>;

/**
 * Creates linear layers for rows that are sorted by layer, such as those of experts: the first
 * `m_splits[0]` rows (of the step) go through the first layer, and so on.
 *
 * Shapes: input `[..., in_features]`, output `[..., out_features]`. Each split keeps the rules for
 * rows of `nvtex_linear_create`. A part without rows gets gradients of 0.
 *
 * Parameters: for each part e `weight<e>` and `bias<e>`, as those of `nvtex_linear_create`. The name
 * of a part for `nvtex_context_delayed_scaling` is the module's followed by `.<e>`.
 *
 * Over several ranks each has a part of every weight, as of `nvtex_linear_create`; rows and splits are the same on all
 * of them (no `sequence_parallel`).
 *
 * Errors: splits that are not `num_gemms`, or do not sum to the rows.
 */
using GroupedLinear =
    ModuleOf<NVTEXGroupedLinearConfig, nvtex_grouped_linear_config_init,
             nvtex_grouped_linear_create>;

/**
 * Creates a norm followed by a linear layer, an activation and a second linear layer.
 *
 * Shapes: input and output `[..., hidden_size]`; a second output, if not null, takes the norm's
 * result, and its gradient counts. Sizes: as `nvtex_linear_create`.
 *
 * Parameters: `layer_norm_weight`, `layer_norm_bias`, `fc1_weight`
 * `[ffn_hidden_size (gated: twice that), hidden_size]`, `fc1_bias`, `fc2_weight`
 * `[hidden_size, ffn_hidden_size]`, `fc2_bias`.
 */
using LayerNormMLP =
    ModuleOf<NVTEXLayerNormMLPConfig, nvtex_layernorm_mlp_config_init,
             nvtex_layernorm_mlp_create>;

/**
 * Creates an attention of queries, keys and values, in high precision unless a recipe has `fp8_dpa`.
 *
 * Shapes: inputs `[s, b, h, d]` (NVTE_SBHD), `[b, s, h, d]` (NVTE_BSHD) or `[t, h, d]` (NVTE_THD),
 * with `num_attention_heads` heads of queries and `num_gqa_groups` of keys and values. The output has
 * as many elements as there are rows of heads times `head_dim_v`.
 *
 * Parameters: with a learnable softmax `softmax_offset`, Float32 `[num_attention_heads]`.
 *
 * Notes: masks with padding take their lengths from the step. The tape refers to the output, too.
 */
using Attention =
    ModuleOf<NVTEXAttentionConfig, nvtex_attention_config_init,
             nvtex_attention_create>;

/**
 * Creates projections to queries, keys and values, rotary embeddings, attention, and a projection of
 * its output.
 *
 * Shapes: input and output `[s, b, hidden_size]` (NVTE_SBHD), `[b, s, hidden_size]` (NVTE_BSHD) or
 * `[t, hidden_size]` (NVTE_THD, where `cu_seqlens_q` of the step says which tokens belong to a
 * sequence, and the others get the bias). Cross attention has a second input `[s_kv, b, hidden_size]`,
 * likewise.
 *
 * Parameters, each as those of `nvtex_linear_create` or `nvtex_layernorm_linear_create`: `qkv.` or
 * `layernorm_qkv.`, of cross attention `query_layer.` or `layernorm_query.` and `key_value.`; then
 * `q_norm.` and `k_norm.` as those of `nvtex_norm_create`, `core_attention.softmax_offset` (learnable
 * softmax) and `proj.`. Rows of the first weight are, for each group of heads, those of its queries,
 * its key and its value.
 */
using MultiheadAttention =
    ModuleOf<NVTEXMultiheadAttentionConfig, nvtex_multihead_attention_config_init,
             nvtex_multihead_attention_create>;

/**
 * Creates a layer of a Transformer: attention and an MLP, each with a norm before and a residual
 * around it.
 *
 * What it computes: with D = dropout, `y = x + D(attention(norm(x)))`, for a decoder then
 * `y = y + D(cross_attention(norm(y), memory))`, and `y + D(mlp(norm(y)))`. With parallel parts it is
 * `x + D(attention(norm(x)) + mlp(norm'(x)))`.
 *
 * Inputs: as `nvtex_multihead_attention_create`; of a decoder a second one.
 *
 * With `experts` the MLP is a layer of experts. Its losses and the numbers of tokens that have chosen each expert are the
 * second and third output, and the second `grad_outputs` is the gradient of the losses, as for `nvtex_moe_create`.
 *
 * Parameters: those of `nvtex_multihead_attention_create` behind `self_attention.` and
 * `inter_attention.`, those of `nvtex_layernorm_mlp_create` behind `layernorm_mlp.`, and
 * `layernorm.weight`, `layernorm.bias`. With `experts` those of its norm and of `nvtex_moe_create` stand behind
 * `layernorm_moe.` in place of those of the MLP.
 *
 * Notes: without dropout residuals are added by products, and their gradients by norms.
 */
using TransformerLayer =
    ModuleOf<NVTEXTransformerLayerConfig, nvtex_transformer_layer_config_init,
             nvtex_transformer_layer_create>;

/**
 * Creates a layer of experts (a mixture of experts): a router, an MLP for each expert, and one for all tokens.
 *
 * What it computes: the router's products give logits, from which `nvte_fused_topk_with_score_function_forward_v2`
 * chooses experts and their weights. Rows of tokens are copied to those of their experts, go through products of groups
 * (`nvte_grouped_gemm`), and are summed with their weights in Float32, in the order of the choices, rounded once. Without
 * `capacity_factor` no choice is dropped: there is memory for `top_k` rows of each token. The same bits come out in every
 * run.
 *
 * With `capacity_factor` an expert takes so many choices, in the order of ranks and then of tokens. Later ones are
 * dropped: they add 0 to the output, and 0 to the gradients of the token and of their weights, while the weights of the
 * token's other experts stay as they are. The third output counts all choices: those of an expert beyond its capacity
 * were dropped.
 *
 * Shapes: input and output `[..., hidden_size]`. A second output, Float32 `[2]`, takes the losses of balance and of the
 * size of the logits; a third, Int64 `[num_experts]`, the number of tokens that have chosen each expert. Both may be
 * null.
 *
 * Gradients: backward passes add those of both losses, whether the losses were asked for or not: each times its element of
 * the second `grad_outputs`, Float32 `[2]`, and times 1 without it.
 *
 * Parameters: `router.weight` `[num_experts, hidden_size]`, `router.expert_bias` `[num_experts]` (Float32, without
 * gradient), `experts.fc1_weight` `[num_experts, ffn_hidden_size (gated: twice that), hidden_size]`, `experts.fc1_bias`,
 * `experts.fc2_weight` `[num_experts, hidden_size, ffn_hidden_size]`, `experts.fc2_bias`, and the same of `shared.`
 * without the first dimension.
 *
 * Recipes: the products of experts follow the recipe, those of the router do not. Delayed and current scaling have one
 * scale for the rows of all experts, and one for their weights; FP8 blocks and MXFP8 pad the rows of each expert to a
 * multiple of 128, one scale to 16. NVFP4 and weights in FP8 alone are refused.
 *
 * Over several ranks (`expert_parallel_size`) each has `num_experts / ranks` experts, in the order of the ranks, and
 * tokens of its own, any number. Rows travel to the ranks of their experts and back. The gradients of experts are
 * complete, over the tokens of all ranks; others are those of the own tokens. The mean of the losses over the ranks is
 * that of all their tokens, as NVTEX_GRADIENTS_MEAN takes it: where gradients are sums over ranks, give `1 / ranks` as the
 * gradient of the losses, or divide their factors. The host waits for the numbers of rows, so that a graph cannot
 * capture it.
 *
 * With `capacity_factor` sizes are fixed, and nothing waits: under NCCL a graph can capture passes over ranks, too. All
 * ranks then have the same number of tokens in a pass. Each pair exchanges a slot for each of their tokens, in which a token
 * travels once for all of its experts of a rank. That rank sums their results with their weights, rounds the sum to
 * `dtype`, and sends it back, where the sums of all ranks are added in Float32 and rounded once more. The same choices are
 * dropped as by one rank that has all tokens.
 *
 * Ranks of tensor parallelism (`tensor_parallel_size`) have the same tokens and choices, and parts of each expert: rows of
 * W1 and columns of W2. Their results are parts of a sum over these ranks, which one all-reduce of the output makes, and one
 * of the gradient of the input; another one sums the gradients of weights of experts, 4 bytes a choice. The router and
 * the second biases are whole on each rank, and their gradients the same. Sizes that the ranks do not divide are refused.
 *
 * Notes: without other ranks nothing waits for the device, and graphs can capture passes. On CUDA the products need compute
 * capability 9.0.
 */
using Moe =
    ModuleOf<NVTEXMoeConfig, nvtex_moe_config_init,
             nvtex_moe_create>;

/**
 * Creates an embedding: `y = scale * weight[token]`, plus `position_weight[position]` if there are positions.
 *
 * Inputs: tokens `[..., s]`, and, if the module has positions, those of the tokens; Int32 or Int64, both the same.
 * Without the second input (null) a token's position is its place in the last dimension. Output:
 * `[..., s, hidden_size]`. Tokens that are not in the vocabulary, and positions that are not in the table, have rows
 * of zeros and no gradient.
 *
 * Parameters: `weight` `[vocabulary_size, hidden_size]`, `position_weight` `[max_positions, hidden_size]`. Their
 * gradients are sums in a fixed order.
 *
 * Over several ranks tokens are those of all of them. The output is whole, or has the rows of this rank if ranks share
 * rows (`sequence_parallel`): an equal share of the first dimension.
 *
 * Errors: a last dimension of more than `max_positions` tokens without positions.
 */
using Embedding =
    ModuleOf<NVTEXEmbeddingConfig, nvtex_embedding_config_init,
             nvtex_embedding_create>;

/**
 * Creates the head of a language model: logits `x W^T`, and their mean cross entropy against targets, as
 * `nvtex_linear_cross_entropy` computes it without ever having all logits in memory. It stays in high precision
 * whatever the recipe is.
 *
 * Inputs: hidden states `[..., hidden_size]`; targets, Int32 or Int64, one for each row; and a factor of the loss
 * for its gradients, Float32 `[1]` on the device (null: 1), such as that of loss scaling. Outputs, each of which may
 * be null: the mean loss `[1]` without the factor, the losses of the rows, both Float32, and all logits
 * `[..., vocabulary_size]`. Without targets there are only logits.
 *
 * Passes: a forward pass with a tape computes all gradients, since the logits exist only then. It writes that of the
 * weight to where it is bound, or adds it; one that is set to zeros is so before the forward pass, and a tape that
 * is used twice adds nothing. The backward pass takes no gradient of its outputs; it gives that of the hidden states.
 * Where the weight is that of an embedding, the embedding's backward pass adds to what this module has written.
 *
 * Over several ranks the hidden states are whole, or have the rows of this rank if ranks share rows
 * (`sequence_parallel`); targets and losses are those of all rows on each rank, and logits are
 * `[all rows, vocabulary_size / ranks]`.
 *
 * Parameters: `weight` `[vocabulary_size, hidden_size]`; none if it is an embedding's, which lists it.
 */
using LMHead =
    ModuleOf<NVTEXLMHeadConfig, nvtex_lm_head_config_init,
             nvtex_lm_head_create>;

/**
 * Creates a language model: what `nvtex_embedding_create`, `nvtex_transformer_layer_create`, `nvtex_norm_create` and
 * `nvtex_lm_head_create` make, in a row as `nvtex_sequential_create` puts them.
 *
 * Inputs: tokens, positions (null without `max_positions`, or for places in the last dimension), targets, factor of
 * the loss. Outputs: the mean loss, losses of rows, logits; each may be null.
 *
 * Parameters: `0.weight`, `0.position_weight`, those of layer i behind `<i + 1>.`, those of the norm behind
 * `<num_layers + 1>.`, and without `tied_embeddings` the weight of the head behind `<num_layers + 2>.`.
 *
 * Errors: those of the parts.
 */
using LanguageModel =
    ModuleOf<NVTEXLanguageModelConfig, nvtex_language_model_config_init,
             nvtex_language_model_create>;

}  // namespace nvte

#endif /* NVTE_CPP_MODULES_HPP */
