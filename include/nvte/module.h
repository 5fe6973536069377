#ifndef NVTE_MODULE_H
#define NVTE_MODULE_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/parallel.h"

/**
 * Flag of `nvtex_context_begin`: modules multiply as the recipe says; without it in high precision.
 */
#define NVTEX_CONTEXT_ENABLED 1

/**
 * Flag of `nvtex_context_begin`: modules collect the maxima of delayed scaling while they compute in
 * high precision.
 */
#define NVTEX_CONTEXT_CALIBRATING 2

/**
 * Flag of `nvtex_context_begin`: modules that are created keep their weights in the recipe's format
 * alone.
 */
#define NVTEX_CONTEXT_QUANTIZED_WEIGHTS 4

/**
 * How operands of matrix products are scaled.
 */
typedef enum NVTEXRecipeKind {
  /**
   * One scale for a tensor, from the maxima of earlier steps.
   */
  NVTEX_RECIPE_DELAYED_SCALING = 0,
  /**
   * One scale for a tensor, from its own maximum.
   */
  NVTEX_RECIPE_CURRENT_SCALING = 1,
  /**
   * A scale for each 128 elements, or 128 x 128.
   */
  NVTEX_RECIPE_BLOCK_SCALING = 2,
  /**
   * A power of two for each 32 elements, or 32 x 32 of a weight.
   */
  NVTEX_RECIPE_MXFP8 = 3,
  /**
   * The function `choose` says how each operand is scaled.
   */
  NVTEX_RECIPE_CUSTOM = 4,
  /**
   * NVFP4: a Float8E4M3 for each 16 elements, or 16 x 16 of a weight, and a factor for the tensor.
   * For modules in Float32 or BFloat16, with inputs of a multiple of 16 rows.
   */
  NVTEX_RECIPE_NVFP4 = 5,
} NVTEXRecipeKind;

/**
 * FP8 types of a recipe.
 */
typedef enum NVTEXFormat {
  NVTEX_FORMAT_E4M3 = 0,
  /**
   * E5M2 for everything. Every recipe refuses it, because two E5M2 operands cannot be multiplied.
   */
  NVTEX_FORMAT_E5M2 = 1,
  /**
   * E4M3, and E5M2 for gradients.
   */
  NVTEX_FORMAT_HYBRID = 2,
} NVTEXFormat;

/**
 * Which maximum of a history counts.
 */
typedef enum NVTEXHistoryAlgo {
  NVTEX_HISTORY_MAX = 0,
  NVTEX_HISTORY_MOST_RECENT = 1,
} NVTEXHistoryAlgo;

/**
 * Operands of the products of the backward pass.
 */
typedef enum NVTEXBackward {
  /**
   * Gradients, inputs and weights as the recipe casts them.
   */
  NVTEX_BACKWARD_QUANTIZED = 0,
  /**
   * Gradients, inputs and weights in high precision. Not with delayed scaling.
   */
  NVTEX_BACKWARD_HIGH_PRECISION = 1,
  /**
   * Gradients in high precision, and inputs and weights cast back from what the forward pass read. Not
   * with delayed scaling.
   */
  NVTEX_BACKWARD_DEQUANTIZED = 2,
} NVTEXBackward;

/**
 * Operands of the products of a layer.
 */
typedef enum NVTEXRole {
  NVTEX_ROLE_INPUT = 0,
  NVTEX_ROLE_WEIGHT = 1,
  NVTEX_ROLE_GRAD_OUTPUT = 2,
} NVTEXRole;

/**
 * Scaling of an operand, for `NVTEX_RECIPE_CUSTOM`.
 */
typedef enum NVTEXSlotScaling {
  /**
   * The operand stays in high precision.
   */
  NVTEX_SLOT_HIGH_PRECISION = 0,
  NVTEX_SLOT_DELAYED = 1,
  NVTEX_SLOT_CURRENT = 2,
  NVTEX_SLOT_BLOCK = 3,
  NVTEX_SLOT_MXFP8 = 4,
  NVTEX_SLOT_NVFP4 = 5,
} NVTEXSlotScaling;

/**
 * How long memory of an allocator is wanted.
 */
typedef enum NVTEXLifetime {
  /**
   * Until the call returns.
   */
  NVTEX_LIFETIME_SCRATCH = 0,
  /**
   * Until a tape is destroyed.
   */
  NVTEX_LIFETIME_TAPE = 1,
  /**
   * Until the module or the context is destroyed.
   */
  NVTEX_LIFETIME_PERSISTENT = 2,
} NVTEXLifetime;

/**
 * Slots of delayed scaling.
 */
typedef enum NVTEXPass {
  /**
   * 3 slots: input, weight, output (not used).
   */
  NVTEX_PASS_FORWARD = 0,
  /**
   * 2 slots: gradient of the output, gradient of the input (not used).
   */
  NVTEX_PASS_BACKWARD = 1,
} NVTEXPass;

/**
 * Which side of the weight of a linear layer ranks share.
 */
typedef enum NVTEXParallelMode {
  /**
   * As the kind of the module has it; of `nvtex_linear_create` neither.
   */
  NVTEX_PARALLEL_DEFAULT = 0,
  /**
   * The outputs: each rank has some rows of the weight, and writes some columns of the result.
   */
  NVTEX_PARALLEL_COLUMN = 1,
  /**
   * The inputs: each rank reads some columns of the input. The results are summed over the ranks, then the bias is
   * added.
   */
  NVTEX_PARALLEL_ROW = 2,
} NVTEXParallelMode;

/**
 * Norms of the heads of queries and keys.
 */
typedef enum NVTEXQKNorm {
  NVTEX_QK_NORM_NONE = 0,
  /**
   * `x / sqrt(sum(x^2) + epsilon)`, without parameters.
   */
  NVTEX_QK_NORM_L2 = 1,
  NVTEX_QK_NORM_RMS = 2,
  NVTEX_QK_NORM_LAYER = 3,
} NVTEXQKNorm;

/**
 * How the ranks that share each sequence do their attention.
 */
typedef enum NVTEXContextParallelKind {
  /**
   * NVTEX_CONTEXT_PARALLEL_ALL_TO_ALL where that is possible and moves fewer bytes, unless there is a window to the
   * left; else NVTEX_CONTEXT_PARALLEL_ALL_GATHER.
   */
  NVTEX_CONTEXT_PARALLEL_AUTOMATIC = 0,
  /**
   * A rank gets some of the heads of whole sequences; heads of queries and of keys are multiples of the ranks. All
   * masks, packed tokens and dropout, which drops the same elements as on one rank.
   */
  NVTEX_CONTEXT_PARALLEL_ALL_TO_ALL = 1,
  /**
   * A rank gets the keys and values that its queries see. No dropout; masks with padding only of packed tokens, which
   * have a causal mask, or neither a mask nor a window, and of which a rank gets all keys and values.
   */
  NVTEX_CONTEXT_PARALLEL_ALL_GATHER = 2,
  /**
   * A rank gets the keys and values of one rank after the other, so that its memory does not grow with the whole
   * sequence. As NVTEX_CONTEXT_PARALLEL_ALL_GATHER, which it is if there is a window to the left: what that leaves comes at
   * once. No window to the right alone.
   */
  NVTEX_CONTEXT_PARALLEL_RING = 3,
} NVTEXContextParallelKind;

/**
 * Scores of a router, of the logits of a token.
 */
typedef enum NVTEXMoeScore {
  /**
   * The greatest logits are chosen, and weights are the softmax over those.
   */
  NVTEX_MOE_SCORE_SOFTMAX = 0,
  /**
   * Weights are the softmax over the logits of all experts; those of a token need not add up to 1.
   */
  NVTEX_MOE_SCORE_SOFTMAX_OF_ALL = 1,
  /**
   * Weights are sigmoids, divided by the sum of those chosen if these are several.
   */
  NVTEX_MOE_SCORE_SIGMOID = 2,
  /**
   * As NVTEX_MOE_SCORE_SIGMOID, with `sqrt(log(1 + exp(x)))`.
   */
  NVTEX_MOE_SCORE_SQRTSOFTPLUS = 3,
} NVTEXMoeScore;

/**
 * Place of a step among the microbatches that share their weights.
 */
typedef enum NVTEXMicrobatch {
  /**
   * Weights are cast in each step; gradients are written or added as they were bound.
   */
  NVTEX_MICROBATCH_NONE = 0,
  /**
   * Weights are cast and kept; gradients are overwritten.
   */
  NVTEX_MICROBATCH_FIRST = 1,
  /**
   * The kept weights are used; gradients are added.
   */
  NVTEX_MICROBATCH_LATER = 2,
} NVTEXMicrobatch;

/**
 * What a handle of a context points to. Only the library knows what it is.
 */
typedef struct NVTEXContext_st NVTEXContext_st;

/**
 * What a handle of a cache of keys and values points to. Only the library knows what it is.
 */
typedef struct NVTEXKVCache_st NVTEXKVCache_st;

/**
 * What a handle of a module points to. Only the library knows what it is.
 */
typedef struct NVTEXModule_st NVTEXModule_st;

/**
 * What a handle of a recipe points to. Only the library knows what it is.
 */
typedef struct NVTEXRecipe_st NVTEXRecipe_st;

/**
 * What a handle of a tape points to. Only the library knows what it is.
 */
typedef struct NVTEXTape_st NVTEXTape_st;

/**
 * What a recipe says of one role.
 */
typedef struct NVTEXRoleOptions {
  /**
   * Rounds scales down to powers of two (current scaling, FP8 blocks).
   */
  bool power_2_scales;
  /**
   * The least maximum that counts (current scaling, FP8 blocks).
   */
  float amax_epsilon;
  /**
   * 1: blocks along rows; 2: square ones (FP8 blocks; MXFP8 and NVFP4 weights).
   */
  int32_t block_dim;
} NVTEXRoleOptions;

/**
 * The choice for one operand.
 */
typedef struct NVTEXSlotChoice {
  enum NVTEXSlotScaling scaling;
  /**
   * Float8E4M3 or Float8E5M2; Float4E2M1 of NVFP4.
   */
  NVTEDType dtype;
  struct NVTEXRoleOptions options;
} NVTEXSlotChoice;

/**
 * Chooses for an operand of the layer `layer` (a module's name, followed by a dot and the part if it
 * has parts) by writing to `choice`, which at first says what the kind of the recipe says; of
 * `NVTEX_RECIPE_CUSTOM` high precision. So a layer stays in high precision where all its roles do. It
 * returns 0, or anything else for failure. An unknown number is an error. The rules of
 * `NVTEXContextConfig` for its functions hold.
 */
typedef int (*NVTEXChoose)(void *user,
                           const char *layer,
                           enum NVTEXRole role,
                           struct NVTEXSlotChoice *choice);

/**
 * A recipe. `nvtex_recipe_config_init` sets the defaults.
 */
typedef struct NVTEXRecipeConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  enum NVTEXRecipeKind kind;
  /**
   * FP8 types. Default: hybrid; E4M3 in block recipes.
   */
  enum NVTEXFormat format;
  /**
   * Delayed scaling multiplies scales by `2^-margin`. Default 0.
   */
  float margin;
  /**
   * Delayed scaling: maxima that are kept. Default 1024.
   */
  size_t amax_history_len;
  enum NVTEXHistoryAlgo amax_algo;
  /**
   * Delayed scaling: histories and scales change in every n-th update, with n this number. The maxima
   * of the updates between count as those of one step. Default 1.
   */
  uint32_t update_interval;
  /**
   * Delayed scaling: maxima are reduced over the group of `nvtex_context_begin`. Default true.
   */
  bool reduce_amax;
  struct NVTEXRoleOptions input;
  struct NVTEXRoleOptions weight;
  struct NVTEXRoleOptions grad_output;
  /**
   * Sums the products of each pass more precisely. Defaults: false, true, true; for FP8 blocks,
   * which need it, always true.
   */
  bool split_accumulator_fprop;
  bool split_accumulator_dgrad;
  bool split_accumulator_wgrad;
  /**
   * Default: quantized.
   */
  enum NVTEXBackward backward;
  /**
   * The function that chooses for each layer and role, and its first argument. Null (default): all are
   * as the kind says, which `NVTEX_RECIPE_CUSTOM` has nothing to say about.
   */
  NVTEXChoose choose;
  void *user;
  /**
   * Attention reads queries, keys and values in E4M3, with one scale for a tensor from its own
   * maximum. Its result is in high precision, and so are the gradients, which are those of what the
   * forward pass has read. This is for delayed and current scaling, without a cache of keys and
   * values. Default: false.
   */
  bool fp8_dpa;
  /**
   * NVFP4: inputs and gradients go through a random Hadamard transform of each 16 rows before they are
   * cast for the product of the weight's gradient. Default: true.
   */
  bool nvfp4_hadamard;
  /**
   * NVFP4: gradients are rounded stochastically, by the `rng_state` of the step, which is needed then.
   * Default: true.
   */
  bool nvfp4_stochastic_rounding;
} NVTEXRecipeConfig;

/**
 * Handle of a recipe.
 */
typedef struct NVTEXRecipe_st *NVTEXRecipe;

/**
 * Allocates memory of the device, or returns null if there is none left. The rules of
 * `NVTEXContextConfig` for its functions hold.
 */
typedef void *(*NVTEXAllocate)(void *user,
                               size_t bytes,
                               size_t alignment,
                               enum NVTEXLifetime lifetime,
                               cudaStream_t stream);

/**
 * Takes memory back. Work on the stream may still use it, so hand it out again to that stream alone,
 * or wait for the stream. The rules of `NVTEXContextConfig` for its functions hold, except that a C++
 * exception is only reported to stderr, and the memory counts as released.
 */
typedef void (*NVTEXRelease)(void *user,
                             void *ptr,
                             size_t bytes,
                             enum NVTEXLifetime lifetime,
                             cudaStream_t stream);

/**
 * Replaces each of `count` floats on the device by the largest of the group's ranks, on the stream.
 * It returns 0, or anything else for failure. The rules of `NVTEXContextConfig` for its functions
 * hold.
 */
typedef int (*NVTEXAllReduceMax)(void *user,
                                 void *group,
                                 float *data,
                                 size_t count,
                                 cudaStream_t stream);

/**
 * What a context gets from the program. All fields may be null or 0.
 *
 * The functions must not call functions of the same context, its modules, tapes and caches, not even those
 * that destroy: such a call is an error. A C++ exception that leaves one of them becomes an error of the call
 * that called it. They must end by returning or by an exception: `longjmp` out of them, and ending the thread
 * in them, is undefined behaviour.
 */
typedef struct NVTEXContextConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Argument of `allocate` and `release`, which are both set or both null (null: memory of
   * `nvtex_malloc`, which is kept and used again).
   */
  void *allocator;
  NVTEXAllocate allocate;
  NVTEXRelease release;
  /**
   * Passed to `all_reduce_max` (null: nothing is reduced).
   */
  void *communicator;
  NVTEXAllReduceMax all_reduce_max;
  /**
   * Multiprocessors that normalizations may keep busy; sums depend on it. 0: all of the device's, and
   * 132 on the CPU backend.
   */
  int32_t multiprocessor_count;
  /**
   * Without `allocate`: bytes that the context may keep unused when it asks the device for more.
   * What is beyond goes back to the device first, and the device waits for its work then. Memory
   * that a captured graph uses stays. 0: four times the most that passes have used at once, at
   * least 4 MiB. SIZE_MAX: everything is kept.
   */
  size_t max_unused_bytes;
} NVTEXContextConfig;

/**
 * Handle of a context.
 */
typedef struct NVTEXContext_st *NVTEXContext;

/**
 * Device memory of a context, in bytes. Blocks are counted as they are handed out, so sizes are rounded up.
 */
typedef struct NVTEXMemoryUse {
  /**
   * Bytes of this struct; set it before the call.
   */
  size_t struct_size;
  /**
   * In use now: scratch memory of calls, memory of tapes, and what lives as long as modules and the context.
   */
  size_t scratch;
  size_t tape;
  size_t persistent;
  /**
   * Kept for later calls; 0 with an allocator of the program.
   */
  size_t unused;
  /**
   * The most of each that was in use since the context was created, and the most of all three at once.
   */
  size_t most_scratch;
  size_t most_tape;
  size_t most_persistent;
  size_t most_at_once;
} NVTEXMemoryUse;

/**
 * Config of a norm, as a module or as the first part of one.
 */
typedef struct NVTEXNormConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Name, unique in its context; for null or an empty one a name is made up.
   */
  const char *name;
  /**
   * Default: LayerNorm.
   */
  NVTE_Norm_Type kind;
  /**
   * Elements of a row.
   */
  size_t hidden_size;
  /**
   * Default: 1e-5.
   */
  float epsilon;
  /**
   * The weight is stored as its distance from 1.
   */
  bool zero_centered_gamma;
  /**
   * Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
   */
  NVTEDType dtype;
  /**
   * Of a norm that is a module: the ranks that share weights share its rows, so that the gradients of its parameters
   * are summed over them. Default: false.
   */
  bool sequence_parallel;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[4];
} NVTEXNormConfig;

/**
 * Handle of a module.
 */
typedef struct NVTEXModule_st *NVTEXModule;

/**
 * What else there is to say about ranks. Set all of it to 0, then `struct_size`, then what is wanted.
 */
typedef struct NVTEXParallelOptions {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Of linear layers.
   */
  enum NVTEXParallelMode mode;
  /**
   * Where a scale comes from all values of a tensor of which each rank has a part (current scaling, NVFP4), each rank
   * scales its own part: less to wait for, but values that depend on the number of ranks. Default: false.
   */
  bool local_scales;
} NVTEXParallelOptions;

/**
 * How a module is spread over the ranks of its context's grid (`nvtex_context_set_grid`).
 *
 * Sizes in configs are those of the whole module. Parameters are parts of it, as `nvtex_module_parameter` says, with
 * the initial values that they have in the whole; all ranks give the same seeds. Inputs and outputs are parts where this
 * is said below, and gradients are complete: the library has summed what comes from the parts of other ranks.
 * All ranks make the same calls in the same order, and bind the same gradients.
 */
typedef struct NVTEXParallelConfig {
  /**
   * Ranks that share each weight: 1 (default): the module is not divided, and the same on all ranks; 0: those of
   * NVTEX_GRID_TP; or the number of these. They share outputs of the products that come first in a module (rows of
   * the weight; in the MLP those of the function and of its gate each; heads) and the inputs of those that come last
   * (columns of the weight), after which one sum over the ranks follows. Inputs and outputs of modules are whole, those
   * of attention without projections have the own heads.
   */
  size_t tensor_parallel_size;
  /**
   * The same ranks share the rows between products, too: inputs and outputs, norms, dropout and residuals have an
   * equal share of the first dimension, in the order of the ranks. Default: false.
   */
  bool sequence_parallel;
  /**
   * Ranks that share each sequence. Default: 1.
   */
  size_t context_parallel_size;
  /**
   * Null (default): none. It is read when the module is created.
   */
  const struct NVTEXParallelOptions *options;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[3];
} NVTEXParallelConfig;

/**
 * `y = x W^T + b`
 */
typedef struct NVTEXLinearConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Name, unique in its context; for null or an empty one a name is made up.
   */
  const char *name;
  size_t in_features;
  size_t out_features;
  /**
   * Default: true.
   */
  bool bias;
  /**
   * Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
   */
  NVTEDType dtype;
  /**
   * Standard deviation of the initial weight. Default: 0.023.
   */
  float init_std;
  /**
   * Seed of the initial weight.
   */
  uint64_t seed;
  /**
   * How ranks share the module.
   */
  struct NVTEXParallelConfig parallel;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[4];
} NVTEXLinearConfig;

/**
 * `y = norm(x) W^T + b`. The norm's `hidden_size`, `name` and `dtype` are ignored.
 *
 * A field from `name` on is one of a part, or of several, for programs that need not name the parts. A part's own field
 * holds where the one here has its default; where both have another value they must be the same.
 */
typedef struct NVTEXLayerNormLinearConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  struct NVTEXNormConfig norm;
  struct NVTEXLinearConfig linear;
  /**
   * `linear.name`.
   */
  const char *name;
  /**
   * `linear.in_features`. Default: 0.
   */
  size_t in_features;
  /**
   * `linear.out_features`. Default: 0.
   */
  size_t out_features;
  /**
   * `linear.bias`. Default: true.
   */
  bool bias;
  /**
   * Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `linear.dtype`.
   */
  NVTEDType dtype;
  /**
   * Standard deviation of the initial weight: `linear.init_std`. Default: 0.023.
   */
  float init_std;
  /**
   * Seed of the initial weight: `linear.seed`. Default: 0.
   */
  uint64_t seed;
  /**
   * `norm.kind`. Default: LayerNorm.
   */
  NVTE_Norm_Type norm_type;
  /**
   * `norm.epsilon`. Default: 1e-5.
   */
  float norm_epsilon;
  /**
   * How ranks share the module: `linear.parallel`.
   */
  struct NVTEXParallelConfig parallel;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[4];
} NVTEXLayerNormLinearConfig;

/**
 * `y_e = x_e W_e^T + b_e`
 *
 * A field from `name` on is one of a part, or of several, for programs that need not name the parts. A part's own field
 * holds where the one here has its default; where both have another value they must be the same.
 */
typedef struct NVTEXGroupedLinearConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Parts, each with a weight of its own.
   */
  size_t num_gemms;
  /**
   * Config of each part, with one name for all. Initial weights differ.
   */
  struct NVTEXLinearConfig linear;
  /**
   * `linear.name`.
   */
  const char *name;
  /**
   * `linear.in_features`. Default: 0.
   */
  size_t in_features;
  /**
   * `linear.out_features`. Default: 0.
   */
  size_t out_features;
  /**
   * `linear.bias`. Default: true.
   */
  bool bias;
  /**
   * Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `linear.dtype`.
   */
  NVTEDType dtype;
  /**
   * Standard deviation of the initial weight: `linear.init_std`. Default: 0.023.
   */
  float init_std;
  /**
   * Seed of the initial weight: `linear.seed`. Default: 0.
   */
  uint64_t seed;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[4];
} NVTEXGroupedLinearConfig;

/**
 * `y = f(norm(x) W1^T + b1) W2^T + b2`. The norm's `hidden_size`, `name` and `dtype` are ignored.
 */
typedef struct NVTEXLayerNormMLPConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Name, unique in its context; for null or an empty one a name is made up.
   */
  const char *name;
  struct NVTEXNormConfig norm;
  size_t hidden_size;
  /**
   * Elements after the activation. With a gated activation W1 has twice as many rows, first those
   * of the function f, then those of the gate.
   */
  size_t ffn_hidden_size;
  /**
   * Default: GELU.
   */
  NVTE_Activation_Type activation;
  /**
   * Constants of CLAMPED_SWIGLU. Defaults: 7, 1.702, 1.
   */
  float clamp_limit;
  float clamp_alpha;
  float clamp_offset;
  /**
   * Whether both linear layers have a bias. Default: true.
   */
  bool bias;
  /**
   * Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
   */
  NVTEDType dtype;
  /**
   * Standard deviations of the initial weights. Defaults: 0.023.
   */
  float init_std;
  float output_init_std;
  /**
   * Seed of the initial weights.
   */
  uint64_t seed;
  /**
   * Tapes hold the input, but neither the norm's result nor the input and the result of the
   * activation. The backward pass computes these again, to the same bits, from weights that tapes
   * then hold for both passes. Default: false.
   */
  bool checkpoint;
  /**
   * How ranks share the module.
   */
  struct NVTEXParallelConfig parallel;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[4];
} NVTEXLayerNormMLPConfig;

/**
 * `softmax(scale q k^T) v`, as `nvte_fused_attn_fwd_v2` has it.
 */
typedef struct NVTEXAttentionConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Name, unique in its context; for null or an empty one a name is made up.
   */
  const char *name;
  size_t num_attention_heads;
  /**
   * Heads of keys and values. 0: as many as of queries.
   */
  size_t num_gqa_groups;
  size_t head_dim_qk;
  /**
   * Elements of a head of values; 0 stands for `head_dim_qk`.
   */
  size_t head_dim_v;
  /**
   * Dropout of the probabilities, in passes with a tape. Default: 0.
   */
  float attention_dropout;
  /**
   * NVTE_SBHD (default), NVTE_BSHD, or NVTE_THD (packed tokens, only with masks that have padding).
   */
  NVTE_QKV_Format qkv_format;
  /**
   * Default: NVTE_CAUSAL_MASK.
   */
  NVTE_Mask_Type attn_mask_type;
  /**
   * The numbers of keys before and after a query that it sees; -1 (default): all.
   */
  int64_t window_size_left;
  int64_t window_size_right;
  /**
   * Windows of masks that are not causal are aligned at the bottom right. Default: true.
   */
  bool bottom_right_diagonal;
  NVTE_Softmax_Type softmax_type;
  /**
   * Factor of the scores; 0 (default) stands for `1 / sqrt(head_dim_qk)`.
   */
  float softmax_scale;
  /**
   * Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
   */
  NVTEDType dtype;
  /**
   * In modules with projections: tapes hold queries, keys and values, but not the attention's
   * result and statistics, which the backward pass computes again, to the same bits. Default:
   * false.
   */
  bool checkpoint_core_attention;
  /**
   * In self attention of modules with projections: normalizes each head of queries and keys, after
   * or before the rotary embedding. Default: none.
   */
  enum NVTEXQKNorm qk_norm_type;
  /**
   * Default: 1e-6.
   */
  float qk_norm_epsilon;
  /**
   * Default: false.
   */
  bool qk_norm_before_rope;
  /**
   * How ranks share the module.
   */
  struct NVTEXParallelConfig parallel;
  /**
   * How ranks that share each sequence do their attention. Default: automatic.
   */
  enum NVTEXContextParallelKind context_parallel_kind;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[3];
} NVTEXAttentionConfig;

/**
 * Config of projections, attention, and a projection. The attention's `name` is ignored; if its
 * `head_dim_qk` is 0 (default), it is `hidden_size / num_attention_heads`, and `head_dim_v` is the
 * same.
 *
 * A field from `num_attention_heads` on is one of a part, or of several, for programs that need not name the parts. A part's own field
 * holds where the one here has its default; where both have another value they must be the same.
 */
typedef struct NVTEXMultiheadAttentionConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Name, unique in its context; for null or an empty one a name is made up.
   */
  const char *name;
  size_t hidden_size;
  struct NVTEXAttentionConfig attention;
  /**
   * A norm in front of the first projection. Default: false. Its `hidden_size`, `name` and `dtype` are
   * ignored.
   */
  bool input_layernorm;
  struct NVTEXNormConfig norm;
  /**
   * Keys and values come from a second input. Default: false.
   */
  bool cross_attention;
  /**
   * Whether the projections have biases. Default: true.
   */
  bool bias;
  /**
   * Rotary embeddings rotate neighbours, not the halves of a head. Default: false.
   */
  bool rotary_interleaved;
  /**
   * Standard deviations of the initial weights, of the first projections and of the last. Default: 0.023.
   */
  float init_std;
  float output_init_std;
  /**
   * Seed of the initial weights.
   */
  uint64_t seed;
  /**
   * `attention.num_attention_heads`. Default: 0.
   */
  size_t num_attention_heads;
  /**
   * Heads of keys and values: `attention.num_gqa_groups`. Default: 0, as many as of queries.
   */
  size_t num_gqa_groups;
  /**
   * `norm.kind`. Default: LayerNorm.
   */
  NVTE_Norm_Type norm_type;
  /**
   * `norm.epsilon`. Default: 1e-5.
   */
  float norm_epsilon;
  /**
   * Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `attention.dtype`.
   */
  NVTEDType dtype;
  /**
   * `attention.qkv_format`. Default: NVTE_SBHD.
   */
  NVTE_QKV_Format qkv_format;
  /**
   * `attention.attn_mask_type`. Default: NVTE_CAUSAL_MASK.
   */
  NVTE_Mask_Type attn_mask_type;
  /**
   * Dropout of the probabilities, in passes with a tape: `attention.attention_dropout`. Default: 0.
   */
  float attention_dropout;
  /**
   * How ranks share the module: `attention.parallel`.
   */
  struct NVTEXParallelConfig parallel;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[4];
} NVTEXMultiheadAttentionConfig;

/**
 * Config of a layer of experts: `y = sum_k w_k f_k(x) + g(x)` for the experts k that a router chooses for the token x,
 * each an MLP `f(x) = act(x W1^T + b1) W2^T + b2`, and an MLP g for all tokens.
 */
typedef struct NVTEXMoeConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Name, unique in its context; for null or an empty one a name is made up.
   */
  const char *name;
  size_t hidden_size;
  /**
   * Elements of an expert after its activation. With a gated activation W1 has twice as many rows, first those
   * of the function, then those of the gate.
   */
  size_t ffn_hidden_size;
  size_t num_experts;
  /**
   * Experts of a token.
   */
  size_t top_k;
  /**
   * Float16 or BFloat16, on the CPU backend also Float32 (default), of experts, inputs and outputs.
   */
  NVTEDType dtype;
  /**
   * Of the router: Float32 (default) or `dtype`. Its products stay in it whatever the recipe says; logits are Float32.
   */
  NVTEDType router_dtype;
  /**
   * Default: SWIGLU.
   */
  NVTE_Activation_Type activation;
  /**
   * Constants of CLAMPED_SWIGLU. Defaults: 7, 1.702, 1.
   */
  float clamp_limit;
  float clamp_alpha;
  float clamp_offset;
  /**
   * Whether experts and the shared MLP have biases. Default: false.
   */
  bool bias;
  /**
   * Default: NVTEX_MOE_SCORE_SOFTMAX.
   */
  enum NVTEXMoeScore score;
  /**
   * Experts come in groups of neighbours, of which only the best `group_top_k` are chosen from; the score of a group is
   * the sum of its best `top_k / group_top_k`. 0 (default): there are none.
   */
  size_t num_groups;
  size_t group_top_k;
  /**
   * A bias of each expert that is added to its score for the choice alone; not with a softmax. The program moves it, by
   * what the third output says. Default: false.
   */
  bool expert_bias;
  /**
   * Factor of the weights of experts. Default: 1.
   */
  float scaling_factor;
  /**
   * Factor c of the loss of balance, `c E / (k T^2) sum_e n_e sum_t s_te`: of T tokens n_e have chosen expert e, to
   * which token t gives the score s_te, divided by those of all experts. Default: 0.
   */
  float balance_coefficient;
  /**
   * Factor c of the loss of the size of the logits, `c / T sum_t log(sum_e exp(x_te))^2`. Default: 0.
   */
  float z_coefficient;
  /**
   * Elements of the MLP for all tokens after its activation. 0 (default): there is none.
   */
  size_t shared_ffn_hidden_size;
  /**
   * Standard deviations of the initial weights: of first and last products, and of the router. Defaults: 0.023.
   */
  float init_std;
  float output_init_std;
  float router_init_std;
  /**
   * Seed of the initial weights.
   */
  uint64_t seed;
  /**
   * Ranks that share the experts: 1 (default): none; 0: those of NVTEX_GRID_EP; or the number of these. Each has
   * `num_experts` divided by their number, and tokens of its own.
   */
  size_t expert_parallel_size;
  /**
   * An expert takes at most `ceil(capacity_factor * top_k * T / num_experts)` choices, computed in double, of the T
   * tokens of all ranks that share the experts: with 1 as many as if all experts had the same number. Choices beyond are
   * dropped. 0 (default): none is.
   */
  float capacity_factor;
  /**
   * Ranks that divide each expert and the shared MLP, as they divide an MLP (`NVTEXParallelConfig`): 1 (default): none;
   * 0: those of NVTEX_GRID_TP; or the number of these. They have the same tokens, or, in a layer of a Transformer with
   * `mlp.parallel.sequence_parallel`, parts of them; each has the router.
   */
  size_t tensor_parallel_size;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[2];
} NVTEXMoeConfig;

/**
 * A layer of a Transformer.
 *
 * A field from `hidden_size` on is one of a part, or of several, for programs that need not name the parts. A part's own field
 * holds where the one here has its default; where both have another value they must be the same.
 */
typedef struct NVTEXTransformerLayerConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Name, unique in its context; for null or an empty one a name is made up.
   */
  const char *name;
  /**
   * The self attention, as for `nvtex_multihead_attention_create`.
   */
  struct NVTEXAttentionConfig attention;
  /**
   * The MLP, as for `nvtex_layernorm_mlp_create`. It also gives sizes, norms, bias, deviations and
   * seed of the whole layer.
   */
  struct NVTEXLayerNormMLPConfig mlp;
  /**
   * Dropout of what is added to the residuals, in passes with a tape. Default: 0.
   */
  float hidden_dropout;
  /**
   * Adds attention to a second input, without a mask unless `inter_mask_type` says so. Default: false.
   */
  bool decoder;
  NVTE_Mask_Type inter_mask_type;
  /**
   * Residuals are the norms' results. Default: false.
   */
  bool residual_post_layernorm;
  /**
   * The layer has a norm at its end instead of the one before the self attention. Default: false.
   */
  bool output_layernorm;
  /**
   * Attention and MLP both read the layer's input, and their sum is added to it. This excludes
   * `decoder`, `residual_post_layernorm` and `output_layernorm`. Default: false.
   */
  bool parallel_attention_mlp;
  /**
   * Rotary embeddings rotate neighbours, not the halves of a head. Default: false.
   */
  bool rotary_interleaved;
  /**
   * Elements of a row: `mlp.hidden_size`. Default: 0.
   */
  size_t hidden_size;
  /**
   * Elements after the activation of the MLP: `mlp.ffn_hidden_size`. Default: 0.
   */
  size_t ffn_hidden_size;
  /**
   * `attention.num_attention_heads`. Default: 0.
   */
  size_t num_attention_heads;
  /**
   * Heads of keys and values: `attention.num_gqa_groups`. Default: 0, as many as of queries.
   */
  size_t num_gqa_groups;
  /**
   * `mlp.activation`. Default: GELU.
   */
  NVTE_Activation_Type activation;
  /**
   * Of all norms of rows: `mlp.norm.kind`. Default: LayerNorm.
   */
  NVTE_Norm_Type norm_type;
  /**
   * Of all norms of rows: `mlp.norm.epsilon`. Default: 1e-5.
   */
  float norm_epsilon;
  /**
   * Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `mlp.dtype`.
   */
  NVTEDType dtype;
  /**
   * `attention.qkv_format`. Default: NVTE_SBHD.
   */
  NVTE_QKV_Format qkv_format;
  /**
   * Of the self attention: `attention.attn_mask_type`. Default: NVTE_CAUSAL_MASK.
   */
  NVTE_Mask_Type attn_mask_type;
  /**
   * Dropout of the probabilities, in passes with a tape: `attention.attention_dropout`. Default: 0.
   */
  float attention_dropout;
  /**
   * Whether the linear layers have biases: `mlp.bias`. Default: true.
   */
  bool bias;
  /**
   * Standard deviations of the initial weights: `mlp.init_std`, `mlp.output_init_std`. Defaults: 0.023.
   */
  float init_std;
  float output_init_std;
  /**
   * Seed of the initial weights: `mlp.seed`. Default: 0.
   */
  uint64_t seed;
  /**
   * Tapes leave out what is cheap to compute again: `mlp.checkpoint` and
   * `attention.checkpoint_core_attention`. Default: false.
   */
  bool checkpoint;
  /**
   * How ranks share the layer: `mlp.parallel` and `attention.parallel`.
   */
  struct NVTEXParallelConfig parallel;
  /**
   * Experts in place of the MLP, as for `nvtex_moe_create`, or null (default). Of `mlp` the layer then has the norm, sizes,
   * dtype, bias of the attention, deviations of the attention, and seed. A `hidden_size` or `ffn_hidden_size` of 0 of the
   * experts is that of `mlp`, Float32 is its dtype, and their seeds differ from layer to layer as `mlp.seed` does. Ranks
   * that share the weights of the attention have the experts each for itself, unless `experts.tensor_parallel_size` says
   * that they divide them; so they do where they share rows.
   */
  const struct NVTEXMoeConfig *experts;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[3];
} NVTEXTransformerLayerConfig;

/**
 * Config of an embedding.
 */
typedef struct NVTEXEmbeddingConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Name, unique in its context; for null or an empty one a name is made up.
   */
  const char *name;
  /**
   * Tokens that there are: rows of the weight.
   */
  size_t vocabulary_size;
  size_t hidden_size;
  /**
   * Rows of a learned table of positions. 0 (default): there is none.
   */
  size_t max_positions;
  /**
   * Factor of the rows of tokens. Default: 1.
   */
  float scale;
  /**
   * Float32 (default), Float16 or BFloat16, of parameters and outputs.
   */
  NVTEDType dtype;
  /**
   * Standard deviations of the initial tables of tokens and of positions. Defaults: 0.023.
   */
  float init_std;
  float position_init_std;
  /**
   * Seed of the initial tables.
   */
  uint64_t seed;
  /**
   * How ranks share the module: each has some rows of the weight. Null (default): it is on this rank alone. It is read
   * when the module is created.
   */
  const struct NVTEXParallelConfig *parallel;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[3];
} NVTEXEmbeddingConfig;

/**
 * Config of the head of a language model.
 */
typedef struct NVTEXLMHeadConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Name, unique in its context; for null or an empty one a name is made up.
   */
  const char *name;
  /**
   * Rows of the weight.
   */
  size_t vocabulary_size;
  size_t hidden_size;
  /**
   * An embedding of the same context whose weight is this module's, too; then sizes and dtype are those of the
   * embedding, and `vocabulary_size` and `hidden_size` are 0 or the same. Null (default): the module has a
   * weight of its own.
   */
  NVTEXModule tied_to;
  /**
   * Float32 (default), Float16 or BFloat16, of the parameter and the hidden states.
   */
  NVTEDType dtype;
  /**
   * Standard deviation of the initial weight. Default: 0.023.
   */
  float init_std;
  /**
   * Seed of the initial weight.
   */
  uint64_t seed;
  /**
   * The target of tokens that do not count. Default: -100.
   */
  int64_t ignored_target;
  /**
   * The part of a target's weight that is spread over the whole vocabulary, 0 to 1. Default: 0.
   */
  float label_smoothing;
  /**
   * Factor of the square of the logsumexp, which is added to the loss. Default: 0.
   */
  float z_loss;
  /**
   * Bytes that logits may take at a time. 0 (default): 500 MB. Over several ranks each has all of its own logits in
   * memory.
   */
  size_t workspace_limit;
  /**
   * How ranks share the module: each has some rows of the weight, and the logits of these. Null (default): it is on
   * this rank alone. It is read when the module is created.
   */
  const struct NVTEXParallelConfig *parallel;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[3];
} NVTEXLMHeadConfig;

/**
 * Config of a language model: an embedding, layers that are alike, a norm and a head in a row.
 */
typedef struct NVTEXLanguageModelConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  size_t vocabulary_size;
  /**
   * Rows of a learned table of positions. 0 (default): there is none, for steps with `rotary_frequencies`.
   */
  size_t max_positions;
  size_t num_layers;
  /**
   * Each of the layers. Its sizes, dtype, norm, seed, deviations and ranks are those of the whole model: seeds of the
   * parts follow from it and differ, and the deviation of what is added to residuals (`output_init_std`, also of
   * `experts`) is divided by `sqrt(2 num_layers)`. It is no decoder, and has no name. Default of `qkv_format` here:
   * NVTE_BSHD, for tokens `[batch, length]`.
   */
  struct NVTEXTransformerLayerConfig layer;
  /**
   * The head has the weight of the embedding. Default: true.
   */
  bool tied_embeddings;
  /**
   * Bytes that logits may take at a time, as of NVTEXLMHeadConfig.
   */
  size_t workspace_limit;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[3];
} NVTEXLanguageModelConfig;

/**
 * Angles of rotary embeddings.
 */
typedef struct NVTEXRotaryConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Default: 10000.
   */
  float base;
  /**
   * Position of the first row. Default: 0.
   */
  size_t offset;
  /**
   * Divides positions by this factor; 0 (default): none.
   */
  float interpolation_factor;
  /**
   * With a factor f and more rows than f times this length, positions are divided by `rows / length`
   * instead. 0 (default): never.
   */
  size_t pretrained_length;
  /**
   * The two entries of a pair's angle are neighbours, instead of lying in the two halves of the
   * row.
   */
  bool interleaved;
} NVTEXRotaryConfig;

/**
 * Consecutive indices of the dimension of a parameter that ranks share.
 */
typedef struct NVTEXParameterPiece {
  /**
   * The first index in the whole parameter, and in this rank's part of it.
   */
  size_t whole;
  size_t part;
  size_t length;
  /**
   * False: another rank of the grid that shares weights has the same elements, and counts them.
   */
  bool counts;
} NVTEXParameterPiece;

/**
 * A parameter of a module.
 */
typedef struct NVTEXParameter {
  /**
   * Bytes of this struct; set it before the call.
   */
  size_t struct_size;
  /**
   * The name. The caller may read it until the module is destroyed.
   */
  const char *name;
  NVTEShape shape;
  /**
   * The dtype, in high precision.
   */
  NVTEDType dtype;
  /**
   * The value: in high precision, or in FP8 with its scales if the weight exists in FP8 alone. The
   * caller may use it until the module is destroyed or the value is bound anew.
   */
  NVTETensor value;
  /**
   * The value is in FP8.
   */
  bool quantized;
  /**
   * The shape of the whole parameter, of which this rank may have a part.
   */
  NVTEShape whole_shape;
  /**
   * The dimension that ranks share, and what this rank has of it: one piece of the first dimension if it has all. The
   * caller may read the pieces until the module is destroyed. A sum over all elements of a model, such as that of
   * the squares of its gradients, adds what counts over the ranks that share weights.
   */
  size_t shared_dimension;
  size_t num_pieces;
  const struct NVTEXParameterPiece *pieces;
} NVTEXParameter;

/**
 * Handle of a cache of keys and values.
 */
typedef struct NVTEXKVCache_st *NVTEXKVCache;

/**
 * Options of a forward pass; its backward pass has the same.
 */
typedef struct NVTEXStep {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  enum NVTEXMicrobatch microbatch;
  /**
   * One Float32 on the device, or null. While it is 1, kept weights stay as they are, so that a
   * graph that is captured once can be replayed for each microbatch.
   */
  NVTETensor skip_weight_update;
  /**
   * Seed and offset of the random numbers, Int64 `[2]` on the device, needed if there is dropout. A
   * call uses the sequence from this offset on; add 128 for each call.
   */
  NVTETensor rng_state;
  /**
   * Where the sequences of queries, and those of keys and values, begin without padding: Int32
   * `[b + 1]` on the device, or null. They are for masks with padding; self attention reads the
   * first array for both.
   */
  NVTETensor cu_seqlens_q;
  NVTETensor cu_seqlens_kv;
  /**
   * Where the sequences begin in NVTE_THD, if there is padding between them: arrays like the two
   * before.
   */
  NVTETensor cu_seqlens_q_padded;
  NVTETensor cu_seqlens_kv_padded;
  /**
   * The longest sequences, for NVTE_THD. 0 (in modules with projections): as long as all tokens.
   */
  size_t max_seqlen_q;
  size_t max_seqlen_kv;
  /**
   * Angles by which the first d2 elements of queries and keys of self attention are rotated:
   * Float32 `[length or more, 1, 1, d2]` (`nvtex_rotary_frequencies`). Null: none. With NVTE_THD
   * there are `max_seqlen_q` rows or more, or rows for all tokens if that is 0 or there is padding
   * between sequences.
   */
  NVTETensor rotary_frequencies;
  /**
   * A cache of the same context, or null. Self attention appends its keys and values to those of
   * earlier tokens in the cache, and reads all of them. There is no tape then. Inputs are the new
   * tokens of the sequences of `nvtex_kv_cache_step`: for each sequence they come first, so that
   * their number may differ, or they are packed (NVTE_THD, without `cu_seqlens_q`). Frequencies
   * have `max_sequence_length + length - 1` rows or more, for packed tokens `max_sequence_length`.
   */
  NVTEXKVCache kv_cache;
  /**
   * Rows of each part of a grouped linear layer, on the host; they may be 0. They are read before the call
   * returns.
   */
  const size_t *m_splits;
  size_t num_splits;
} NVTEXStep;

/**
 * Handle of a tape.
 */
typedef struct NVTEXTape_st *NVTEXTape;

/**
 * Sizes of a cache of keys and values.
 */
typedef struct NVTEXKVCacheConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Most sequences at a time.
   */
  size_t max_batch_size;
  /**
   * Most tokens of a sequence.
   */
  size_t max_sequence_length;
  /**
   * Tokens of a page, a divisor of `max_sequence_length`. 0 (default): each sequence has one
   * contiguous piece of memory for all its tokens.
   */
  size_t page_size;
  /**
   * Pages of all sequences together. 0 (default): enough for all of `max_sequence_length`.
   */
  size_t num_pages;
} NVTEXKVCacheConfig;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Sets the defaults of a kind of recipe in the first `struct_size` bytes of a config.
 *
 * Errors: null; a `struct_size` that has no room for the field `struct_size` itself; an unknown kind.
 */
void nvtex_recipe_config_init(struct NVTEXRecipeConfig *config,
                              size_t struct_size,
                              enum NVTEXRecipeKind kind);

/**
 * Creates a recipe, which never changes. Destroy it with `nvtex_recipe_destroy`; contexts that use it
 * keep it alive.
 *
 * Errors: fields that are unknown, out of range, or do not go together; each is named.
 */
NVTEXRecipe nvtex_recipe_create(const struct NVTEXRecipeConfig *config);

/**
 * Destroys a recipe. Null is ignored.
 */
void nvtex_recipe_destroy(NVTEXRecipe recipe);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_context_config_init(struct NVTEXContextConfig *config, size_t struct_size);

/**
 * Creates a context: all state of FP8 training that modules share.
 *
 * There are no globals, so each thread and device may have one. A context is for one thread at a time,
 * and for one stream or for streams that wait for each other. Null config: defaults.
 */
NVTEXContext nvtex_context_create(const struct NVTEXContextConfig *config);

/**
 * Destroys a context. Modules and tapes that are left keep its memory until they are destroyed. Null
 * is ignored.
 */
void nvtex_context_destroy(NVTEXContext context);

/**
 * Spreads the modules of a context over the ranks of a grid, once and before there are modules: what their configs say
 * of `parallel` holds then, and updates of delayed scaling take the maxima of all ranks that have the same layers.
 *
 * The context keeps what it needs of the grid, whose handle may be destroyed.
 *
 * Errors: a context that has a grid, modules or an `all_reduce_max`.
 */
void nvtex_context_set_grid(NVTEXContext context,
                            NVTEXGrid grid);

/**
 * Gives unused memory of the context back to the device until `bytes_to_keep` bytes of it are left,
 * and returns the bytes that went back (0 for a context with an allocator of the program).
 *
 * Memory that has not been used for longest goes first. The device waits for its work. What passes
 * that were captured in graphs use stays, so that these graphs may be replayed as long as their
 * modules, tapes and caches live.
 *
 * Do not call it while a stream of the process is being captured, because the device refuses to free
 * memory then.
 */
size_t nvtex_context_trim(NVTEXContext context,
                          size_t bytes_to_keep);

/**
 * Tells how much device memory modules, tapes and caches of a context have: from its pool, or from the program's
 * allocator.
 */
void nvtex_context_memory(NVTEXContext context,
                          struct NVTEXMemoryUse *memory);

/**
 * Opens a region: forward passes and creations until the matching `nvtex_context_end` follow the
 * recipe. Regions nest; the innermost counts.
 *
 * `flags` is the sum of `NVTEX_CONTEXT_*`; the recipe may be null if there are none. `amax_group` is
 * handed to `all_reduce_max`; null means this rank alone. Backward passes follow the recipe of their
 * forward pass, wherever they run. Without NVTEX_CONTEXT_ENABLED products are in high precision:
 * `nvtex_module_precision` says what a pass has used, and so does `NVTE_VERBOSE=dispatch`.
 */
void nvtex_context_begin(NVTEXContext context,
                         NVTEXRecipe recipe,
                         uint32_t flags,
                         void *amax_group);

/**
 * Closes the innermost region. Errors: no region is open.
 */
void nvtex_context_end(NVTEXContext context);

/**
 * Updates the histories and scales that forward passes use, for all layers with delayed scaling, after
 * reducing their maxima over the group. Call it once after the forward passes of a step.
 *
 * Layers that did not run stay as they are
 * (`nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction`). The call may be captured in
 * a graph (an `update_interval` counts at capture).
 */
void nvtex_context_forward_update(NVTEXContext context,
                                  cudaStream_t stream);

/**
 * Updates the histories and scales that backward passes use, as `nvtex_context_forward_update` does,
 * after the backward passes of a step.
 */
void nvtex_context_backward_update(NVTEXContext context,
                                   cudaStream_t stream);

/**
 * Copies scales and history of a layer with delayed scaling to the host, and returns the length of the
 * history. It waits for the stream.
 *
 * `layer` is a module's name, of `LayerNormMLP` followed by `.fc1` or `.fc2`.
 *
 * Shapes: `scales` `[n]`, `history` `[length, n]` with n = 3 (forward) or 2 (backward). Row 0 is the
 * current maximum, the last row the newest of the others. Either may be null.
 *
 * Errors: no such layer; fewer than `length * n` floats (`history_size`).
 */
size_t nvtex_context_delayed_scaling(NVTEXContext context,
                                     const char *layer,
                                     enum NVTEXPass pass,
                                     float *scales,
                                     float *history,
                                     size_t history_size,
                                     cudaStream_t stream);

/**
 * Returns the bytes that `nvtex_context_save` writes.
 */
size_t nvtex_context_state_size(NVTEXContext context);

/**
 * Writes the state of delayed scaling of all layers, by name, to host memory and returns its bytes. It
 * waits for the stream. The format is the same on every machine, and has a version and a checksum.
 *
 * Errors: fewer than `nvtex_context_state_size` bytes.
 */
size_t nvtex_context_save(NVTEXContext context,
                          void *buffer,
                          size_t bytes,
                          cudaStream_t stream);

/**
 * Restores what `nvtex_context_save` wrote: at once for layers that have run, for others when they
 * first run. Histories of another length keep their newest maxima.
 *
 * Errors: bytes that are not such a state, have another version, are damaged or cut off; scales that
 * are not finite or not above 0; maxima that are not finite or below 0, as they are after a step that
 * has overflowed. Nothing is changed then.
 */
void nvtex_context_load(NVTEXContext context,
                        const void *buffer,
                        size_t bytes,
                        cudaStream_t stream);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_norm_config_init(struct NVTEXNormConfig *config, size_t struct_size);

/**
 * Creates a LayerNorm or RMSNorm: `nvte_layernorm_fwd` or `nvte_rmsnorm_fwd` with parameters.
 *
 * Input and output: `[..., hidden_size]`. Parameters: `weight`, and with LayerNorm `bias`.
 */
NVTEXModule nvtex_norm_create(NVTEXContext context,
                              const struct NVTEXNormConfig *config,
                              cudaStream_t stream);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_linear_config_init(struct NVTEXLinearConfig *config, size_t struct_size);

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
NVTEXModule nvtex_linear_create(NVTEXContext context,
                                const struct NVTEXLinearConfig *config,
                                cudaStream_t stream);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_layernorm_linear_config_init(struct NVTEXLayerNormLinearConfig *config,
                                        size_t struct_size);

/**
 * Creates a norm followed by a linear layer, which gets its input in FP8 from the norm where the
 * recipe allows it.
 *
 * As `nvtex_linear_create`; a second output, if not null, takes the norm's result, and its gradient
 * counts. Parameters: `layer_norm_weight`, `layer_norm_bias`, `weight`, `bias`.
 */
NVTEXModule nvtex_layernorm_linear_create(NVTEXContext context,
                                          const struct NVTEXLayerNormLinearConfig *config,
                                          cudaStream_t stream);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_grouped_linear_config_init(struct NVTEXGroupedLinearConfig *config, size_t struct_size);

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
NVTEXModule nvtex_grouped_linear_create(NVTEXContext context,
                                        const struct NVTEXGroupedLinearConfig *config,
                                        cudaStream_t stream);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_layernorm_mlp_config_init(struct NVTEXLayerNormMLPConfig *config, size_t struct_size);

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
NVTEXModule nvtex_layernorm_mlp_create(NVTEXContext context,
                                       const struct NVTEXLayerNormMLPConfig *config,
                                       cudaStream_t stream);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_attention_config_init(struct NVTEXAttentionConfig *config, size_t struct_size);

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
NVTEXModule nvtex_attention_create(NVTEXContext context,
                                   const struct NVTEXAttentionConfig *config,
                                   cudaStream_t stream);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_multihead_attention_config_init(struct NVTEXMultiheadAttentionConfig *config,
                                           size_t struct_size);

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
NVTEXModule nvtex_multihead_attention_create(NVTEXContext context,
                                             const struct NVTEXMultiheadAttentionConfig *config,
                                             cudaStream_t stream);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_transformer_layer_config_init(struct NVTEXTransformerLayerConfig *config,
                                         size_t struct_size);

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
NVTEXModule nvtex_transformer_layer_create(NVTEXContext context,
                                           const struct NVTEXTransformerLayerConfig *config,
                                           cudaStream_t stream);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_moe_config_init(struct NVTEXMoeConfig *config, size_t struct_size);

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
NVTEXModule nvtex_moe_create(NVTEXContext context,
                             const struct NVTEXMoeConfig *config,
                             cudaStream_t stream);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_embedding_config_init(struct NVTEXEmbeddingConfig *config, size_t struct_size);

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
NVTEXModule nvtex_embedding_create(NVTEXContext context,
                                   const struct NVTEXEmbeddingConfig *config,
                                   cudaStream_t stream);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_lm_head_config_init(struct NVTEXLMHeadConfig *config, size_t struct_size);

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
NVTEXModule nvtex_lm_head_create(NVTEXContext context,
                                 const struct NVTEXLMHeadConfig *config,
                                 cudaStream_t stream);

/**
 * Creates a module of modules in a row: the first output of each is the first input of the next.
 *
 * `names` are those of the parts, unique and without dots, before the names of their parameters: `layer0.weight`.
 * Null: "0", "1" and so on. The new module keeps the others alive, so that their handles may be destroyed at once,
 * or used further: for their parameters, for passes of their own, or in another row.
 *
 * Inputs: those of the first module, followed by those of the last one but its first. Outputs: those of the last one.
 * Of an embedding, layers and a head: tokens, positions, targets, factor of the loss; loss, losses of rows, logits.
 * Memory between the modules is the context's. With dropout a call uses 128 random numbers for each module.
 *
 * Parameters: those of all modules, in their order.
 *
 * Errors: modules of other contexts; one module twice; no module.
 */
NVTEXModule nvtex_sequential_create(NVTEXContext context,
                                    const NVTEXModule *modules,
                                    const char *const *names,
                                    size_t count);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_language_model_config_init(struct NVTEXLanguageModelConfig *config, size_t struct_size);

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
NVTEXModule nvtex_language_model_create(NVTEXContext context,
                                        const struct NVTEXLanguageModelConfig *config,
                                        cudaStream_t stream);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_rotary_config_init(struct NVTEXRotaryConfig *config, size_t struct_size);

/**
 * Writes the angles of rotary embeddings: `a(p, i) = p base^(-2 i / d2)` for positions p from `offset`
 * on and pairs i. They are computed in float64 on the host.
 *
 * Shapes: `frequencies` `[rows, 1, 1, d2]`, Float32, d2 even. Null config: defaults.
 */
void nvtex_rotary_frequencies(NVTETensor frequencies,
                              const struct NVTEXRotaryConfig *config,
                              cudaStream_t stream);

/**
 * Destroys a module; tapes that are left keep what they need. Null is ignored.
 */
void nvtex_module_destroy(NVTEXModule module);

/**
 * Returns the number of parameters of a module.
 */
size_t nvtex_module_num_parameters(NVTEXModule module);

/**
 * Describes the parameter number `index` of a module.
 */
void nvtex_module_parameter(NVTEXModule module, size_t index, struct NVTEXParameter *parameter);

/**
 * Binds the value of a parameter to the memory of a tensor of its shape and dtype, which every pass
 * reads from then on. Errors: parameters in FP8.
 */
void nvtex_module_set_parameter(NVTEXModule module, size_t index, NVTETensor value);

/**
 * Copies a tensor (Float32, Float16 or BFloat16) to the value of a parameter, and casts it: to FP8
 * with the scales of the recipe if the weight exists in FP8 alone.
 */
void nvtex_module_assign_parameter(NVTEXModule module,
                                   size_t index,
                                   NVTETensor value,
                                   cudaStream_t stream);

/**
 * Computes the initial value of a parameter on the host, before rounding, from seed and deviation, for
 * copies of higher precision than the parameter has. Errors: a `count` that is not its number of
 * elements.
 */
void nvtex_module_initial_value(NVTEXModule module,
                                size_t index,
                                float *value,
                                size_t count);

/**
 * Tells how an operand of the products of a weight was cast in the module's last forward pass: the
 * scaling, FP8 dtype and options, or NVTEX_SLOT_HIGH_PRECISION and the dtype of the module.
 *
 * `index` is the number of the weight among the parameters. Errors: a parameter that is no weight of
 * products, or of a module that has not run.
 */
void nvtex_module_precision(NVTEXModule module,
                            size_t index,
                            enum NVTEXRole role,
                            struct NVTEXSlotChoice *choice);

/**
 * Binds the gradient of a parameter to a tensor of its shape, of its dtype or Float32. Null: no
 * gradient is computed.
 *
 * Backward passes write there, or add if `accumulate`, unless a microbatch says otherwise. Bind it
 * before the forward pass.
 */
void nvtex_module_set_gradient(NVTEXModule module, size_t index, NVTETensor grad, bool accumulate);

/**
 * Sets the defaults in the first `struct_size` bytes of a step.
 */
void nvtex_step_init(struct NVTEXStep *step, size_t struct_size);

/**
 * Runs the forward pass of a module.
 *
 * Arrays: `inputs` and `outputs` hold what the function that created the module says. Missing and null
 * entries at their end are optional ones. Outputs overlap neither inputs nor each other.
 *
 * Tape: if `tape` is not null, it takes what the backward pass needs; several may be in flight. A tape
 * refers to the inputs, the norm's result and the parameters, which must stay as they are until the
 * backward pass is done. Without a tape the maxima of delayed scaling stay as they are.
 *
 * Notes: a null `step` means defaults. The first call of a layer under a recipe allocates; later ones
 * with the same sizes do not, and can be captured in a graph.
 */
void nvtex_module_forward(NVTEXModule module,
                          const NVTETensor *inputs,
                          size_t num_inputs,
                          const NVTETensor *outputs,
                          size_t num_outputs,
                          const struct NVTEXStep *step,
                          NVTEXTape *tape,
                          cudaStream_t stream);

/**
 * Runs the backward pass of a module: writes the gradients of the inputs that `grad_inputs` has, and
 * those of the parameters that are bound.
 *
 * `grad_outputs` is like the outputs of the forward pass; null for an optional output is a gradient of
 * 0. The tape stays, and may be used again. Gradients of inputs overlap neither those of outputs nor
 * each other. Operators follow the policy that the forward pass had (`nvtex_policy_push`), whatever that of the
 * calling thread is.
 */
void nvtex_module_backward(NVTEXModule module,
                           NVTEXTape tape,
                           const NVTETensor *grad_outputs,
                           size_t num_grad_outputs,
                           const NVTETensor *grad_inputs,
                           size_t num_grad_inputs,
                           cudaStream_t stream);

/**
 * Destroys a tape. Null is ignored.
 */
void nvtex_tape_destroy(NVTEXTape tape);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_kv_cache_config_init(struct NVTEXKVCacheConfig *config, size_t struct_size);

/**
 * Creates a cache of keys and values for passes of `nvtex_module_forward` without a tape: text is read
 * in pieces of any length and written token by token.
 *
 * One cache serves all attentions of its context; each gets its memory, for `num_pages * page_size`
 * tokens, in its first pass. A causal mask is aligned to the bottom right of a sequence; other masks
 * let all of its tokens count.
 *
 * The lengths of the sequences and their pages are also on the device, where passes read them. So a
 * pass may be captured in a graph, and replayed after each `nvtex_kv_cache_step` with the same `batch`
 * and no longer pieces, with a contiguous cache until `nvtex_kv_cache_reorder` is called.
 *
 * Errors: sizes that are 0 or do not go together.
 */
NVTEXKVCache nvtex_kv_cache_create(NVTEXContext context,
                                   const struct NVTEXKVCacheConfig *config,
                                   cudaStream_t stream);

/**
 * Destroys a cache. Null is ignored.
 */
void nvtex_kv_cache_destroy(NVTEXKVCache cache);

/**
 * Begins a step, before its passes: sequence i gets `new_tokens[i]` tokens (0 or more) behind those
 * that it has.
 *
 * Sequences that are not there yet begin empty. Sequences from `batch` on get none in this step. The
 * call must not be captured in a graph.
 *
 * Errors: more than `max_sequence_length` tokens; more pages than are free. Nothing changes then.
 */
void nvtex_kv_cache_step(NVTEXKVCache cache,
                         const size_t *new_tokens,
                         size_t batch,
                         cudaStream_t stream);

/**
 * Returns the tokens of a sequence, with those of the current step; 0 for one that is not there.
 */
size_t nvtex_kv_cache_length(NVTEXKVCache cache, size_t sequence);

/**
 * Forgets the tokens of a sequence from `length` on; 0 makes room for another sequence. Errors: the
 * sequence has fewer tokens.
 */
void nvtex_kv_cache_truncate(NVTEXKVCache cache, size_t sequence, size_t length);

/**
 * Makes sequence i what sequence `from[i]` was, or empty for -1; there are `count` sequences then. A
 * sequence that goes to several places has its pages copied; others only change their tables.
 *
 * Errors: no such sequence; not enough pages for the copies. Nothing changes then.
 */
void nvtex_kv_cache_reorder(NVTEXKVCache cache,
                            const int64_t *from,
                            size_t count,
                            cudaStream_t stream);

/**
 * Copies the rows of whole sequences that this rank has to `part`: tokens, labels, positions, or what else has a row for
 * each token.
 *
 * The length of `whole` is divided into as many chunks as twice the ranks of the communicator, of which rank r of P gets
 * the chunks r and 2 P - 1 - r, so that causal attention costs all ranks the same.
 *
 * Shapes: `whole` `[length, ...]` (NVTE_SBHD) or `[batch, length, ...]` (NVTE_BSHD), `part` the same with the P-th part of
 * the length, which is a multiple of 2 P. Any dtype. No rank waits for another one.
 */
void nvtex_context_parallel_split(NVTEXCommunicator communicator,
                                  NVTETensor whole,
                                  NVTETensor part,
                                  NVTE_QKV_Format format,
                                  cudaStream_t stream);

/**
 * Brings the rows of all ranks back together in `whole`, on each of them: the inverse of `nvtex_context_parallel_split`,
 * with its shapes. Collective.
 */
void nvtex_context_parallel_merge(NVTEXCommunicator communicator,
                                  NVTETensor part,
                                  NVTETensor whole,
                                  NVTE_QKV_Format format,
                                  cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_MODULE_H */
