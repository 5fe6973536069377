#ifndef NVTE_TRAIN_H
#define NVTE_TRAIN_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/module.h"
#include "nvte/parallel.h"

/**
 * What the ranks of a data-parallel group divide among each other.
 */
typedef enum NVTEXSharding {
  /**
   * Nothing: each rank has the sum of all gradients, and updates all parameters.
   */
  NVTEX_SHARDING_NONE = 0,
  /**
   * The update, and what the optimizer keeps: each rank has the sum of its part of the gradients, and masters and
   * state of this part; the values that others have updated are gathered.
   */
  NVTEX_SHARDING_OPTIMIZER = 2,
  /**
   * The parameters and their gradients, too: each rank keeps its part, and has all parameters of a layer only while
   * the layer runs. They are gathered for its forward pass and again for its backward pass, behind which the
   * gradients of all ranks are summed.
   */
  NVTEX_SHARDING_FULL = 3,
} NVTEXSharding;

/**
 * How the gradients of all ranks become one.
 */
typedef enum NVTEXGradients {
  /**
   * Their mean, for losses that are means over the batch of a rank.
   */
  NVTEX_GRADIENTS_MEAN = 0,
  NVTEX_GRADIENTS_SUM = 1,
} NVTEXGradients;

/**
 * How a parameter is updated.
 */
typedef enum NVTEXUpdateRule {
  /**
   * AdamW: Adam with a weight decay that acts on the parameter.
   */
  NVTEX_UPDATE_ADAMW = 0,
  /**
   * Gradient descent with momentum; the weight decay is part of the gradient.
   */
  NVTEX_UPDATE_SGD = 1,
  /**
   * Muon for matrices; as the rule of a whole optimizer, AdamW for other parameters.
   */
  NVTEX_UPDATE_MUON = 2,
  /**
   * None: the parameter stays, and gets no gradient.
   */
  NVTEX_UPDATE_NONE = 3,
} NVTEXUpdateRule;

/**
 * In what an optimizer keeps parameters of 16 bits beside their values. Those in FP8 alone always have Float32
 * masters.
 */
typedef enum NVTEXMasters {
  /**
   * Float32 masters.
   */
  NVTEX_MASTERS_FLOAT32 = 0,
  /**
   * The low 16 bits of Float32 masters, for BFloat16 parameters under AdamW; the value is the high half, rounded.
   * Others have Float32 masters.
   */
  NVTEX_MASTERS_REMAINDER = 1,
  /**
   * None: values are updated and rounded in each step.
   */
  NVTEX_MASTERS_NONE = 2,
} NVTEXMasters;

/**
 * How the learning rate follows from the number s of steps before this one, with W steps of warm-up and T in all:
 * `learning_rate * (s + 1) / (W + 1)` while s < W, then by `p = min(1, (s - W) / (T - W))`.
 */
typedef enum NVTEXSchedule {
  /**
   * `learning_rate`
   */
  NVTEX_SCHEDULE_CONSTANT = 0,
  /**
   * `learning_rate * (1 - (1 - last) * p)`, where `last` is `last_rate_factor`.
   */
  NVTEX_SCHEDULE_LINEAR = 1,
  /**
   * `learning_rate * (last + (1 - last) * (1 + cos(pi * p)) / 2)`
   */
  NVTEX_SCHEDULE_COSINE = 2,
} NVTEXSchedule;

/**
 * What a handle of a data-parallel engine points to. Only the library knows what it is.
 */
typedef struct NVTEXDataParallel_st NVTEXDataParallel_st;

/**
 * What a handle of an optimizer points to. Only the library knows what it is.
 */
typedef struct NVTEXOptimizer_st NVTEXOptimizer_st;

/**
 * What a handle of a token loader points to. Only the library knows what it is.
 */
typedef struct NVTEXTokenLoader_st NVTEXTokenLoader_st;

/**
 * What a handle of a trainer points to. Only the library knows what it is.
 */
typedef struct NVTEXTrainer_st NVTEXTrainer_st;

/**
 * How ranks train together. All of them say the same.
 */
typedef struct NVTEXDataParallelConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Default: NVTEX_SHARDING_NONE.
   */
  enum NVTEXSharding sharding;
  /**
   * Default: NVTEX_GRADIENTS_MEAN.
   */
  enum NVTEXGradients gradients;
  /**
   * The dtype of gradients on their way, Float32 (default) or BFloat16. They are added in Float32 by ranks, and
   * kept in Float32. A rank without others, whose parameters all have this dtype, keeps them in it, unless something is
   * divided or added to them.
   */
  NVTEDType wire_dtype;
  /**
   * Bytes of gradients that are reduced by one call, or one parameter if that is larger. Default: 64 MiB.
   */
  size_t bucket_bytes;
  /**
   * Backward passes add to the gradients: call `nvtex_optimizer_zero_grad` before the first one of a step.
   * Otherwise they overwrite them, unless `NVTEXMicrobatch` says something else.
   */
  bool accumulate;
} NVTEXDataParallelConfig;

/**
 * Handle of a data-parallel engine.
 */
typedef struct NVTEXDataParallel_st *NVTEXDataParallel;

/**
 * What holds for one parameter.
 */
typedef struct NVTEXUpdateOptions {
  enum NVTEXUpdateRule rule;
  float weight_decay;
  /**
   * What the learning rate is multiplied by for this parameter.
   */
  float learning_rate_factor;
} NVTEXUpdateOptions;

/**
 * Chooses the options of a parameter, which come with what the config says: `name` is the name of its module, a
 * point, and its name in the module. It returns 0, or anything else for failure. The rules of `NVTEXContextConfig`
 * for its functions hold.
 */
typedef int (*NVTEXChooseUpdate)(void *user,
                                 const char *name,
                                 const NVTEShape *shape,
                                 struct NVTEXUpdateOptions *options);

/**
 * What an optimizer does.
 *
 * A step, in this order:
 * 1. The norm over all gradients, if there is something to clip, a dynamic loss scale, or `check_gradients`. If it
 *    is not finite the step changes nothing, and counts as skipped.
 * 2. The numbers of the step, on the device: its number (skipped ones do not count), the learning rate, the loss
 *    scale of the next step, and one factor for all gradients: `1 / (loss_scale * accumulation_steps)`, and if there
 *    is something to clip `min(1, max_norm / (norm + 1e-6))`, where the norm is that after the first factor.
 * 3. The updates, which read gradients times this factor. Gradients stay as they are.
 */
typedef struct NVTEXOptimizerConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  enum NVTEXUpdateRule rule;
  float learning_rate;
  /**
   * Of parameters of two or more dimensions; those of one (biases, gains of norms) have none.
   */
  float weight_decay;
  /**
   * Called for each parameter by `nvtex_optimizer_create`, or null.
   */
  NVTEXChooseUpdate choose;
  void *user;
  /**
   * Of AdamW, with the formula of `nvte_multi_tensor_adam_cuda`.
   */
  float beta1;
  float beta2;
  float epsilon;
  /**
   * Float32 (default), BFloat16, or Float8E4M3: the first moment and the square root of the second, in blocks of 128
   * elements with a Float32 scale each, rounded stochastically by the number of the step, so that the means of both
   * stay what they are in Float32. They take 2.06 bytes for each element instead of 8. The CPU rounds to the same
   * bits.
   */
  NVTEDType moment_dtype;
  /**
   * Of gradient descent and Muon: `b = momentum * b + g`, then `g + momentum * b` if `nesterov`, else b.
   */
  float momentum;
  bool nesterov;
  /**
   * Newton-Schulz iterations of Muon, which bring the update u of `[m, n]` to `0.2 * sqrt(max(m, n))` times a
   * matrix near to the nearest orthogonal one; `p -= rate * (u + weight_decay * p)`.
   */
  size_t newton_schulz_steps;
  enum NVTEXMasters masters;
  /**
   * Masters begin with the modules' initial values before these were rounded (`nvtex_module_initial_value`), not
   * with the values that parameters have.
   */
  bool initial_masters;
  enum NVTEXSchedule schedule;
  int32_t warmup_steps;
  /**
   * With a schedule that is not constant more than `warmup_steps`.
   */
  int32_t total_steps;
  /**
   * The last learning rate, as a part of the first; 0 to 1.
   */
  float last_rate_factor;
  /**
   * The largest norm that all gradients together may have. 0: they are not clipped.
   */
  float max_norm;
  /**
   * The norm is computed, and gradients that are not finite are skipped, also if nothing else needs it.
   */
  bool check_gradients;
  /**
   * Micro-batches of a step: gradients are divided by their number.
   */
  int32_t accumulation_steps;
  /**
   * Backward passes add to gradients that the optimizer has made; call `nvtex_optimizer_zero_grad` before the
   * first one of a step. Otherwise they overwrite them, unless `NVTEXMicrobatch` says something else.
   */
  bool accumulate;
  /**
   * What the program multiplies the loss by at the beginning (`nvtex_optimizer_loss_scale`).
   */
  float loss_scale;
  /**
   * Good steps in a row after which the loss scale grows. 0: it stays as it is.
   */
  int32_t growth_interval;
  /**
   * What the loss scale is multiplied by after these, and after a skipped step.
   */
  float growth_factor;
  float backoff_factor;
  /**
   * Bounds of the loss scale.
   */
  float least_loss_scale;
  float most_loss_scale;
  /**
   * The engine that has made the gradients of all `modules`, or null: the gradients are those of this rank. A step
   * follows a call of `nvtex_data_parallel_reduce`, and is a call of all ranks together.
   */
  NVTEXDataParallel data_parallel;
  /**
   * Gradients that the optimizer makes have the dtype of their parameter (those of weights in FP8 alone are Float32),
   * so that products write them without a cast and a step reads half of the bytes. Each is rounded once in a pass; with
   * `accumulate` also at every addition. A gradient of Float16 needs a loss scale.
   */
  bool low_precision_gradients;
} NVTEXOptimizerConfig;

/**
 * Handle of an optimizer.
 */
typedef struct NVTEXOptimizer_st *NVTEXOptimizer;

/**
 * The numbers of an optimizer after a step.
 */
typedef struct NVTEXOptimizerNumbers {
  /**
   * Bytes of this struct; set it before the call.
   */
  size_t struct_size;
  /**
   * Steps that have changed the parameters.
   */
  int64_t step;
  /**
   * Steps that have changed nothing, because gradients were not finite.
   */
  int64_t skipped;
  /**
   * The newest step was one of these.
   */
  bool was_skipped;
  /**
   * The learning rate of the newest step.
   */
  float learning_rate;
  /**
   * The norm of its gradients without loss scale, before clipping; 0 if it is not computed.
   */
  float norm;
  /**
   * What its gradients were multiplied by.
   */
  float gradient_scale;
  /**
   * The loss scale of the next step.
   */
  float loss_scale;
} NVTEXOptimizerNumbers;

/**
 * A parameter as an optimizer knows it. Buffers are valid until the optimizer is destroyed.
 */
typedef struct NVTEXOptimizerParameter {
  /**
   * Bytes of this struct; set it before the call.
   */
  size_t struct_size;
  /**
   * Name of the module, a point, and the name in it.
   */
  const char *name;
  struct NVTEXUpdateOptions options;
  /**
   * The gradient, the master, and the moments of AdamW or the momentum. Those that do not exist have a null
   * pointer. If ranks divide the parameter (`nvtex_data_parallel_part`), all but the gradient are rows of the
   * elements of this rank.
   */
  NVTEBasicTensor gradient;
  NVTEBasicTensor master;
  NVTEBasicTensor state[2];
  /**
   * The scales of moments in Float8E4M3, one for each 128 elements of the row of all: `scale * code` is the first
   * moment, and the square root of the second. Null pointers for other moments.
   */
  NVTEBasicTensor state_scales[2];
} NVTEXOptimizerParameter;

/**
 * What a trainer trains, and how.
 */
typedef struct NVTEXTrainerConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * A module whose first output is a loss that needs no gradient, as `nvtex_language_model_create` and
   * `nvtex_lm_head_create` make it.
   */
  NVTEXModule model;
  /**
   * Null (default): products are in high precision.
   */
  NVTEXRecipe recipe;
  /**
   * Null (default): AdamW with its defaults. A step has one batch and makes the engine itself: `accumulate` is false,
   * `accumulation_steps` 1 and `data_parallel` null.
   */
  const struct NVTEXOptimizerConfig *optimizer;
  /**
   * How ranks of the context's grid train together; null (default): with the defaults. `accumulate` is false.
   */
  const struct NVTEXDataParallelConfig *data_parallel;
  /**
   * On the CUDA backend the third step is captured in a graph, and replayed from then on. This needs a stream that is
   * not the default one, and a model that does not wait for the device: no experts over several ranks. Default: true.
   */
  bool graph;
  /**
   * Zeros: room for what later versions add.
   */
  uint64_t reserved[4];
} NVTEXTrainerConfig;

/**
 * Handle of a trainer.
 */
typedef struct NVTEXTrainer_st *NVTEXTrainer;

/**
 * Which tokens a loader gives out, and in which order.
 *
 * Each file is divided into windows of `sequence` tokens, one behind the other from its first token on; a window is
 * given out with the token that follows it. Row r of batch number n of a rank is the window at the place
 * `n * batch * world + rank * batch + r` of an epoch, and windows that do not fill a batch for every rank are left
 * out. An epoch has the windows in the order of the files, or by a permutation that follows from seed and epoch.
 */
typedef struct NVTEXTokenLoaderConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Files of nothing but tokens, little-endian.
   */
  const char *const *paths;
  size_t num_paths;
  /**
   * Bytes of a token: 1, 2 (default) or 4.
   */
  size_t token_bytes;
  /**
   * Rows of a batch, of this rank; with `grid` of all ranks together.
   */
  size_t batch;
  /**
   * Tokens of a window.
   */
  size_t sequence;
  /**
   * Default: true.
   */
  bool shuffle;
  uint64_t seed;
  /**
   * The number of this rank, and of all. With `grid` they stay as they are.
   */
  size_t rank;
  size_t world;
  /**
   * Tokens must be less than this number. 0 (default): any.
   */
  size_t vocabulary;
  /**
   * A grid, or null (default). Its groups NVTEX_GRID_DP divide each batch, and its groups NVTEX_GRID_CP each row:
   * what goes to the device is the part of this rank, as `nvtex_context_parallel_split` makes it. The loader reads
   * the grid when it is created.
   */
  NVTEXGrid grid;
} NVTEXTokenLoaderConfig;

/**
 * Handle of a token loader.
 */
typedef struct NVTEXTokenLoader_st *NVTEXTokenLoader;

/**
 * Where a loader is. It may be kept, and given to a loader of the same files and the same config, but for the rank.
 */
typedef struct NVTEXTokenPosition {
  /**
   * Bytes of this struct; set it before the call.
   */
  size_t struct_size;
  /**
   * Batches that each rank has been given so far.
   */
  uint64_t batches;
  /**
   * What the loader must be like: windows, seed, tokens of a window, and rows of all ranks together.
   */
  uint64_t windows;
  uint64_t seed;
  uint64_t sequence;
  uint64_t rows;
} NVTEXTokenPosition;

/**
 * What a checkpoint holds. Everything may be null or 0.
 */
typedef struct NVTEXCheckpointConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * Modules of one context, with the state of delayed scaling of that context. They must have names that the
   * program has given them: made up ones depend on the order in which modules were created.
   */
  const NVTEXModule *modules;
  size_t num_modules;
  /**
   * An optimizer over these modules, or null: its masters take the place of the values of 16 bits, and moments,
   * number of steps, learning rate and loss scale are in the checkpoint, too.
   */
  NVTEXOptimizer optimizer;
  /**
   * A loader, or null: its position.
   */
  NVTEXTokenLoader loader;
  /**
   * Further tensors on the device with their names, such as the seed and offset of random numbers: integers or
   * numbers in high precision.
   */
  const char *const *names;
  const NVTETensor *tensors;
  size_t num_tensors;
  /**
   * The communicator of all ranks of a grid, or null: of one rank alone. With it saving and loading are calls of all ranks
   * together, in the same order and with the same config.
   */
  NVTEXCommunicator communicator;
} NVTEXCheckpointConfig;

/**
 * Rows of a stored tensor.
 */
typedef struct NVTEXSourceRows {
  /**
   * The name of the tensor in the file.
   */
  const char *name;
  size_t first_row;
  /**
   * 0: all rows from the first one on.
   */
  size_t num_rows;
} NVTEXSourceRows;

/**
 * A parameter, and the rows that it is made of, one behind the other.
 */
typedef struct NVTEXPretrainedParameter {
  NVTEXModule module;
  /**
   * The number of the parameter in its module.
   */
  size_t index;
  const struct NVTEXSourceRows *rows;
  size_t num_rows;
} NVTEXPretrainedParameter;

/**
 * What a `config.json` as Hugging Face writes it says of a model of the Llama or Qwen family.
 */
typedef struct NVTEXLlamaSizes {
  /**
   * Bytes of this struct; set it before the call.
   */
  size_t struct_size;
  size_t vocabulary_size;
  size_t hidden_size;
  size_t ffn_hidden_size;
  size_t num_layers;
  size_t num_attention_heads;
  size_t num_key_value_heads;
  /**
   * Elements of a head.
   */
  size_t head_dim;
  /**
   * The longest sequence that the model was made for; 0 if the file does not say it.
   */
  size_t max_positions;
  /**
   * Keys that a query sees, the one of its own token among them. 0: all.
   */
  size_t sliding_window;
  /**
   * Of all norms.
   */
  float norm_epsilon;
  /**
   * `base` and `interpolation_factor` (1: none) of `NVTEXRotaryConfig`.
   */
  float rotary_base;
  float rotary_factor;
  /**
   * The projections to queries, keys and values have biases.
   */
  bool bias;
  /**
   * Heads of queries and keys have norms of their own, NVTEX_QK_NORM_RMS with `qk_norm_before_rope`.
   */
  bool qk_norm;
  /**
   * The head has the weight of the embedding.
   */
  bool tied_embeddings;
  /**
   * Of the stored weights: Float32, Float16 or BFloat16.
   */
  NVTEDType dtype;
} NVTEXLlamaSizes;

/**
 * The modules of a model of the Llama or Qwen family.
 */
typedef struct NVTEXLlamaConfig {
  /**
   * Bytes of this struct.
   */
  size_t struct_size;
  /**
   * The beginning of all names but that of the head. Null: `model.`.
   */
  const char *prefix;
  /**
   * Layers made by `nvtex_transformer_layer_create` with RMSNorm, SWIGLU, and heads like these.
   */
  const NVTEXModule *layers;
  size_t num_layers;
  /**
   * 0: as the first layer has it, and likewise the next field.
   */
  size_t num_attention_heads;
  /**
   * Heads of keys and values. 0: as many as of queries.
   */
  size_t num_key_value_heads;
  /**
   * The modules around the layers, or null: their first parameter whose name ends with `weight`.
   */
  NVTEXModule embedding;
  NVTEXModule norm;
  NVTEXModule head;
} NVTEXLlamaConfig;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_data_parallel_config_init(struct NVTEXDataParallelConfig *config, size_t struct_size);

/**
 * Makes the ranks of a communicator train modules of a context together, each with batches of its own. Collective:
 * the ranks compare names, shapes, dtypes and seeds of the parameters, and take the values of rank 0.
 *
 * The engine makes gradients of 0, Float32 or as `wire_dtype` says, and binds them. With NVTEX_SHARDING_OPTIMIZER it
 * also moves the values of parameters into memory of its own, from which they can be gathered at once; weights in FP8
 * blocks, MXFP8 or NVFP4 alone and values in memory of the program stay where they are, and are not divided. With
 * NVTEX_SHARDING_FULL each layer of the modules (of `nvtex_sequential_create` each part) has its parameters only while
 * it runs: `NVTEXParameter.value` has null data otherwise, and passes are collective calls, which all ranks make in
 * the same order. So create it behind the modules, before the optimizer and before anything is captured in a graph.
 *
 * A step of the program: backward passes over all microbatches; `nvtex_data_parallel_reduce`;
 * `nvtex_optimizer_step` of an optimizer that has the engine in its config.
 *
 * Notes: modules and communicator live at least as long as the engine, which lives as long as an optimizer that has
 * it. Null config: defaults. Errors: gradients that are bound already; ranks that differ, with the first difference;
 * an error of one rank is one of all. Returns null.
 */
NVTEXDataParallel nvtex_data_parallel_create(NVTEXContext context,
                                             const struct NVTEXDataParallelConfig *config,
                                             NVTEXCommunicator communicator,
                                             const NVTEXModule *modules,
                                             size_t num_modules,
                                             cudaStream_t stream);

/**
 * Destroys an engine, and unbinds the gradients that it has made when no optimizer has it any more. Null is ignored.
 */
void nvtex_data_parallel_destroy(NVTEXDataParallel data_parallel);

/**
 * Reduces the gradients of all ranks: call it behind the last backward pass of a step. With NVTEX_SHARDING_OPTIMIZER and
 * NVTEX_SHARDING_FULL a gradient then is that of all ranks in the part of this rank, and means nothing elsewhere.
 *
 * Collective, as `nvtex_all_reduce`: with ranks of NCCL it may be captured in a graph, from its second call on.
 */
void nvtex_data_parallel_reduce(NVTEXDataParallel data_parallel,
                                cudaStream_t stream);

/**
 * Gathers the values of divided parameters, of which each rank has updated its part. `nvtex_optimizer_step` does this
 * itself: the function is for optimizers of the program. Collective.
 *
 * With NVTEX_SHARDING_FULL every rank has all parameters from then on, until `nvtex_data_parallel_release`: passes of one
 * rank alone are possible, values may be read and assigned (on all ranks alike), and modules may be used further
 * when the engine is gone.
 */
void nvtex_data_parallel_gather(NVTEXDataParallel data_parallel,
                                cudaStream_t stream);

/**
 * Lets parameters go that `nvtex_data_parallel_gather` has brought together under NVTEX_SHARDING_FULL; each rank keeps its
 * part, as it is then. Otherwise it does nothing.
 */
void nvtex_data_parallel_release(NVTEXDataParallel data_parallel,
                                 cudaStream_t stream);

/**
 * Tells which elements of a flattened parameter this rank updates: `count` elements from number `first` on. All of
 * them, unless ranks divide the parameter.
 */
void nvtex_data_parallel_part(NVTEXDataParallel data_parallel,
                              NVTEXModule module,
                              size_t index,
                              size_t *first,
                              size_t *count);

/**
 * Sets the defaults of a rule in the first `struct_size` bytes of a config: learning rate 1e-3 (gradient descent:
 * 0.1), weight decay 0.01 (gradient descent: 0), betas 0.9 and 0.999, epsilon 1e-8, Float32 moments, momentum 0.95
 * with `nesterov` (gradient descent: 0.9 without), 5 Newton-Schulz iterations, Float32 masters, a constant learning
 * rate, no clipping, loss scale 1 which stays, and factors of 2 and 0.5 within 1 and 2^24 for one that does not.
 */
void nvtex_optimizer_config_init(struct NVTEXOptimizerConfig *config,
                                 size_t struct_size,
                                 enum NVTEXUpdateRule rule);

/**
 * Creates an optimizer over the parameters of modules of a context.
 *
 * Gradients: a parameter that has a gradient bound (`nvtex_module_set_gradient`) keeps it; for the others the
 * optimizer makes gradients of 0, Float32 or as `low_precision_gradients` says, and binds them, until it is destroyed. A step reads values and gradients
 * that are bound then. Parameters that modules share (`nvtex_module_set_parameter` with the same memory) are one,
 * under the first name, and backward passes add to the gradient that the optimizer makes for it.
 *
 * Masters begin with the values of the parameters; for weights in FP8 alone these are dequantized.
 *
 * Notes: the modules live at least as long as the optimizer. Null config: defaults of AdamW.
 *
 * Errors: modules of another context, or given twice; no parameter to update; numbers out of their range; what the
 * function `choose` answers; gradients that `data_parallel` has not made; Muon for a parameter that ranks divide.
 * Returns null.
 */
NVTEXOptimizer nvtex_optimizer_create(NVTEXContext context,
                                      const struct NVTEXOptimizerConfig *config,
                                      const NVTEXModule *modules,
                                      size_t num_modules,
                                      cudaStream_t stream);

/**
 * Destroys an optimizer, and unbinds the gradients that it has made. Null is ignored.
 */
void nvtex_optimizer_destroy(NVTEXOptimizer optimizer);

/**
 * Sets all gradients to 0.
 */
void nvtex_optimizer_zero_grad(NVTEXOptimizer optimizer, cudaStream_t stream);

/**
 * Updates all parameters by their gradients.
 *
 * It does not wait for the device. It may be captured in a graph, also from its first call, together with the
 * passes: everything that changes from step to step lies on the device.
 *
 * With `data_parallel` the step works on the gradients of all ranks together, and gathers the values that other ranks
 * have updated. The norm counts each element once.
 *
 * Errors: a gradient that was unbound since the optimizer was created; with `data_parallel` gradients that were not
 * reduced since the step before.
 */
void nvtex_optimizer_step(NVTEXOptimizer optimizer,
                          cudaStream_t stream);

/**
 * Sets the learning rate that the schedule starts from, for the steps on the stream from here on, those of a
 * captured graph too.
 */
void nvtex_optimizer_set_learning_rate(NVTEXOptimizer optimizer,
                                       float learning_rate,
                                       cudaStream_t stream);

/**
 * Returns the loss scale, Float32 `[1]` on the device, which belongs to the optimizer. A program that scales the
 * loss multiplies its gradient by this number, or begins the backward pass with it.
 */
NVTETensor nvtex_optimizer_loss_scale(NVTEXOptimizer optimizer);

/**
 * Reads the numbers of the newest step, and waits for the stream.
 */
void nvtex_optimizer_numbers(NVTEXOptimizer optimizer,
                             struct NVTEXOptimizerNumbers *numbers,
                             cudaStream_t stream);

/**
 * Returns the number of parameters of an optimizer, with those that it does not update.
 */
size_t nvtex_optimizer_num_parameters(NVTEXOptimizer optimizer);

/**
 * Describes the parameter number `index` of an optimizer.
 */
void nvtex_optimizer_parameter(NVTEXOptimizer optimizer,
                               size_t index,
                               struct NVTEXOptimizerParameter *parameter);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_trainer_config_init(struct NVTEXTrainerConfig *config, size_t struct_size);

/**
 * Creates a trainer of a model: an optimizer over its parameters, and in a context with a grid a data-parallel engine over
 * NVTEX_GRID_DP_CP. Collective there. Destroy it with `nvtex_trainer_destroy`; it keeps model and recipe alive.
 *
 * Errors: those of `nvtex_data_parallel_create` and `nvtex_optimizer_create`; a `data_parallel` that divides something
 * in a context without a grid. Returns null.
 */
NVTEXTrainer nvtex_trainer_create(NVTEXContext context,
                                  const struct NVTEXTrainerConfig *config,
                                  cudaStream_t stream);

/**
 * Destroys a trainer with its optimizer, engine and graph. Null is ignored.
 */
void nvtex_trainer_destroy(NVTEXTrainer trainer);

/**
 * Trains a model by one batch. It does the same as, in this order:
 * 1. `nvtex_context_begin` with the recipe, `nvtex_module_forward` with a tape, `nvtex_context_end`,
 *    `nvtex_context_forward_update`,
 * 2. `nvtex_module_backward`, `nvtex_context_backward_update`,
 * 3. `nvtex_data_parallel_reduce` and `nvtex_optimizer_step`,
 * 4. `nvtex_all_reduce` of the losses of ranks that have rows of their own.
 *
 * Inputs: those of the model. A replayed step reads them where those of the captured one were, so that they are the
 * same tensors with other contents; `step`, which may be null, stays as it was, too.
 *
 * It does not wait for the device, unless a rank waits for others. Collective in a context with a grid.
 *
 * Errors: those of the functions above; once a step was captured, tensors in other memory or of another shape.
 */
void nvtex_trainer_step(NVTEXTrainer trainer,
                        const NVTETensor *inputs,
                        size_t num_inputs,
                        const NVTEXStep *step,
                        cudaStream_t stream);

/**
 * Returns the loss of the newest step: the mean over the ranks that have rows of their own. It waits for the stream.
 * Errors: there was no step.
 */
float nvtex_trainer_loss(NVTEXTrainer trainer,
                         cudaStream_t stream);

/**
 * Returns the optimizer of a trainer, for checkpoints and its numbers. It lives as long as the trainer.
 */
NVTEXOptimizer nvtex_trainer_optimizer(NVTEXTrainer trainer);

/**
 * Returns the data-parallel engine of a trainer, or null in a context without a grid. It lives as long as the trainer.
 */
NVTEXDataParallel nvtex_trainer_data_parallel(NVTEXTrainer trainer);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_token_loader_config_init(struct NVTEXTokenLoaderConfig *config, size_t struct_size);

/**
 * Creates a loader. Destroy it with `nvtex_token_loader_destroy`.
 *
 * Errors: files that cannot be opened (`NVTEX_DEVICE_ERROR`), or end within a token; fewer windows than one batch for
 * every rank; numbers out of their range. Returns null.
 */
NVTEXTokenLoader nvtex_token_loader_create(const struct NVTEXTokenLoaderConfig *config);

/**
 * Destroys a loader. Null is ignored.
 */
void nvtex_token_loader_destroy(NVTEXTokenLoader loader);

/**
 * Returns the batches of each rank in an epoch.
 */
size_t nvtex_token_loader_epoch_batches(NVTEXTokenLoader loader);

/**
 * Writes the next batch to the host: `[batch, sequence + 1]`, of which the first `sequence` tokens of a row are inputs
 * and the last `sequence` targets.
 *
 * Errors: a `count` that is not `batch * (sequence + 1)`; a file that cannot be read or has become shorter; tokens out
 * of range. The loader stays where it is then.
 */
void nvtex_token_loader_next(NVTEXTokenLoader loader,
                             int32_t *tokens,
                             size_t count);

/**
 * Copies the next batch to the device: inputs and targets, each `[batch, sequence]`, Int32 or Int64. With a grid these
 * are the rows and columns of this rank, `[batch / dp, sequence / cp]`. The copies are on the stream; a captured graph
 * that reads the tensors sees the new batch when it is replayed afterwards.
 *
 * Errors: as `nvtex_token_loader_next`; other shapes and dtypes; a stream that is being captured.
 */
void nvtex_token_loader_next_on_device(NVTEXTokenLoader loader,
                                       NVTETensor inputs,
                                       NVTETensor targets,
                                       cudaStream_t stream);

/**
 * Writes the place in its row of each token that `nvtex_token_loader_next_on_device` copies: the second input of an
 * embedding with a table of positions, which counts them itself where rows are not divided. They are the same for every
 * batch.
 *
 * Shapes and dtypes: as `nvtex_token_loader_next_on_device`. Errors: other ones; a stream that is being captured.
 */
void nvtex_token_loader_positions(NVTEXTokenLoader loader,
                                  NVTETensor positions,
                                  cudaStream_t stream);

/**
 * Tells where a loader is.
 */
void nvtex_token_loader_position(NVTEXTokenLoader loader, struct NVTEXTokenPosition *position);

/**
 * Goes to a position: the next batch is the one that follows it. Errors: the position of a loader of other data.
 */
void nvtex_token_loader_seek(NVTEXTokenLoader loader,
                             const struct NVTEXTokenPosition *position);

/**
 * Sets the defaults, nothing, in the first `struct_size` bytes of a config.
 */
void nvtex_checkpoint_config_init(struct NVTEXCheckpointConfig *config, size_t struct_size);

/**
 * Writes a checkpoint. It waits for the stream.
 *
 * Format: a safetensors file, which other programs read. Names: `<module>.<parameter>` of parameters (Float32 if
 * there is a master, else of their dtype; weights in FP8 alone dequantized), `optimizer.exp_avg.<module>.<parameter>`,
 * `optimizer.exp_avg_sq....`, `optimizer.momentum....`, `optimizer.counters` (I32: steps, skipped steps, good steps),
 * `optimizer.scalars` (F32: learning rate, loss scale), `recipe.state` (U8: what `nvtex_context_save` writes),
 * `tokens.position` (I64), and `extra.<name>`. In `__metadata__` are `nvte.checkpoint`, the version of all this, and
 * `nvte.sha256`, the SHA-256 of the file with the 64 digits of this value replaced by `0`. Parameters that modules
 * share are there once, under their first name. Moments in Float8E4M3 are there as the Float32 numbers that they stand
 * for, and come back as the same numbers.
 *
 * The file is written under another name in the same folder, forced to the disk and renamed, so that after a crash
 * there is the older file or the new one.
 *
 * Ranks: rank 0 of `config.communicator` writes the file, and what other ranks have parts of is sent to it: tensors in
 * the file are whole, whether ranks divide state or share weights. For equal values the file is the same on every
 * grid. What all ranks have, such as the loader's position and further tensors, is written as rank 0 has it. An error
 * of one rank is one of all. Without a communicator a rank writes what it has of weights that ranks share.
 *
 * Errors: a file that cannot be written (`NVTEX_DEVICE_ERROR`); two tensors of one name; an optimizer that ranks
 * divide without the communicator of these.
 */
void nvtex_checkpoint_save(const char *path,
                           const struct NVTEXCheckpointConfig *config,
                           cudaStream_t stream);

/**
 * Reads a checkpoint that `nvtex_checkpoint_save` wrote, of modules and an optimizer of the same shapes; masters and
 * dtypes may be others. Tensors that the config does not ask for are left alone. Captured graphs see the new values.
 *
 * Ranks: their number and their grid may be others than those of the ranks which saved. Rank 0 checks the digest; each
 * rank reads the header, and its parts of parameters and state. All begin to change something when all have found
 * the file sound.
 *
 * Errors: a file that is damaged, cut off or of another version; a missing tensor, or one of another shape or dtype;
 * a loader of other data. Nothing is changed then, unless the disk fails while tensors are read.
 */
void nvtex_checkpoint_load(const char *path,
                           const struct NVTEXCheckpointConfig *config,
                           cudaStream_t stream);

/**
 * Sets parameters from the tensors of a safetensors file, of an index of such files, or of a folder with
 * `model.safetensors` or `model.safetensors.index.json`.
 *
 * Dtypes: F32, F16 and BF16, which are cast to that of the parameter. The masters that `optimizer` has for these
 * parameters are set as well; it may be null.
 *
 * Errors: a file that is damaged; missing tensors; other shapes or dtypes; rows that are not as many as those of the
 * parameter. Nothing is changed then, unless the disk fails while tensors are read.
 */
void nvtex_pretrained_load(const char *path,
                           const struct NVTEXPretrainedParameter *parameters,
                           size_t num_parameters,
                           NVTEXOptimizer optimizer,
                           cudaStream_t stream);

/**
 * Reads the sizes of a model from the `config.json` of a folder, or of the folder that a file is in.
 *
 * Errors: `model_type` other than llama, mistral, qwen2 and qwen3; `hidden_act` other than silu; `rope_scaling` other
 * than linear; sizes that are missing or do not go together. Nothing is written then.
 */
void nvtex_llama_sizes(const char *path,
                       struct NVTEXLlamaSizes *sizes);

/**
 * Sets the defaults in the first `struct_size` bytes of a config.
 */
void nvtex_llama_config_init(struct NVTEXLlamaConfig *config, size_t struct_size);

/**
 * Sets the parameters of a model of the Llama or Qwen family from files as Hugging Face stores them, as
 * `nvtex_pretrained_load` does.
 *
 * Names, behind `<prefix>layers.<i>.`: `input_layernorm`, `self_attn.{q,k,v,o}_proj`, `self_attn.{q,k}_norm`,
 * `post_attention_layernorm`, `mlp.{gate,up,down}_proj`, each with `.weight`; `<prefix>embed_tokens.weight`,
 * `<prefix>norm.weight`, and `lm_head.weight`, or without it the weight of the embedding. Biases that the files do not
 * have become 0. The rotary embedding of these models is that of `nvtex_rotary_frequencies` without `interleaved`.
 *
 * Heads have no place in the shapes of weights: those of the layers, of this config, and of a `config.json` beside the
 * weights must be the same.
 */
void nvtex_llama_load(const char *path,
                      const struct NVTEXLlamaConfig *config,
                      NVTEXOptimizer optimizer,
                      cudaStream_t stream);

/**
 * Creates a model of the Llama or Qwen family from a folder as Hugging Face stores it: embedding, layers, norm and head
 * in a row, with the sizes of `config.json` and the weights of the files.
 *
 * Shapes: as `nvtex_sequential_create` of these modules. Inputs are tokens `[batch, length]` (layers in NVTE_BSHD), null,
 * and targets; outputs are the loss, losses of rows, and logits. A step has `rotary_frequencies` by the `rotary_base` and
 * the `rotary_factor` of `nvtex_llama_sizes`.
 *
 * Dtypes: Float32, Float16 or BFloat16, of parameters and activations.
 *
 * Errors: as `nvtex_llama_sizes` and `nvtex_llama_load`. Returns null.
 */
NVTEXModule nvtex_llama_create(NVTEXContext context,
                               const char *path,
                               NVTEDType dtype,
                               cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_TRAIN_H */
