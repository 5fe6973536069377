#ifndef NVTE_TRAIN_H
#define NVTE_TRAIN_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/module.h"

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
 * What a handle of an optimizer points to.
 */
typedef struct NVTEXOptimizer_st NVTEXOptimizer_st;

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
   * Float32 or BFloat16.
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
   * pointer.
   */
  NVTEBasicTensor gradient;
  NVTEBasicTensor master;
  NVTEBasicTensor state[2];
} NVTEXOptimizerParameter;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

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
 * optimizer makes Float32 gradients of 0 and binds them, until it is destroyed. A step reads values and gradients
 * that are bound then. Parameters that modules share (`nvtex_module_set_parameter` with the same memory) are one,
 * under the first name, and backward passes add to the gradient that the optimizer makes for it.
 *
 * Masters begin with the values of the parameters; for weights in FP8 alone these are dequantized.
 *
 * Notes: the modules live at least as long as the optimizer. Null config: defaults of AdamW.
 *
 * Errors: modules of another context, or given twice; no parameter to update; numbers out of their range; what the
 * function `choose` answers. Returns null.
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
 * Errors: a gradient that was unbound since the optimizer was created.
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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_TRAIN_H */
