// Modules that ranks share: every module on 2 and 4 ranks, whose rows are shared or not, against
// the same module on one rank. Compared are outputs, gradients of inputs, and the gradient of every
// parameter, by the pieces that the parameters say they have. Products that are divided into parts
// which are multiplied as they come, in a process of its own, must give the same bits.
#define _DEFAULT_SOURCE

#include <pthread.h>
#include <sys/mman.h>

#include "child.h"
#include "ranks.h"

enum {
  MOST = 4,
  BATCH = 2,
  MOST_ROWS = 512,
  HIDDEN = 128,
  WIDE = 640,
  FFN = 256,
  HEADS = 8,
  GROUPS = 4,
  DIM = 16,
  VOCABULARY = 64,
  MAX_PARAMETERS = 24,
  STEPS = 3,
};

// Rows of all ranks.
static size_t g_rows = 128;

// Products are divided from one tile of 128 rows on.
static bool g_small_parts;

// ---- What is tested

typedef enum Kind {
  COLUMN,
  ROW,
  GROUPED_COLUMN,
  GROUPED_ROW,
  NORM,
  NORM_COLUMN,
  NORM_COLUMN_RMS,
  MLP_GELU,
  MLP_SWIGLU,
  MLP_CHECKPOINT,
  MLP_WIDE_GELU,
  MLP_WIDE_SWIGLU,
  ATTENTION,
  ATTENTION_SINK,
  ATTENTION_DROPOUT,
  MULTIHEAD,
  MULTIHEAD_GROUPS,
  MULTIHEAD_NORMS,
  MULTIHEAD_CROSS,
  LAYER,
  LAYER_POST,
  LAYER_PARALLEL,
  LAYER_DROPOUT,
  LAYER_EXPERTS,
  EMBEDDING,
  POSITIONS,
  HEAD,
  KINDS,
} Kind;

static const char *const kNames[KINDS] = {
    "column",
    "row",
    "grouped, column",
    "grouped, row",
    "norm",
    "norm and column",
    "RMSNorm and column",
    "MLP, GELU",
    "MLP, SwiGLU",
    "MLP again",
    "wide MLP, GELU",
    "wide MLP, SwiGLU",
    "attention",
    "attention with sinks",
    "attention with dropout",
    "multihead",
    "with groups",
    "with norms",
    "cross",
    "layer",
    "layer, post-norm",
    "layer, parallel",
    "layer, dropout",
    "layer, experts",
    "embedding",
    "positions",
    "head",
};

typedef enum Recipe { FLOAT32, BFLOAT16, DELAYED, CURRENT, BLOCKS, MXFP8, RECIPES } Recipe;

static const char *const kRecipes[RECIPES] = {"Float32", "BFloat16", "delayed",
                                              "current", "blocks",   "MXFP8"};

// Of differences from one rank: their root mean square against that of the values, and the largest
// one against the largest value. Casts to FP8 differ by a step where sums are rounded in another
// order, which a layer of several products makes more of.
static const double kTolerance[RECIPES][2] = {{1e-5, 1e-5},  {1.6e-2, 3e-2}, {4e-2, 0.125},
                                              {4e-2, 0.125}, {6e-2, 0.125},  {6e-2, 0.125}};
static const double kLayerTolerance[2] = {0.2, 0.25};

// How much farther than one rank's values those of several may be from what one rank has in
// Float32. Of a bias a rank has few values, whose errors may be larger by chance.
static const double kFarther = 1.75;

// How ranks share an input or an output: nothing, the first dimension if they share rows, or
// columns.
typedef enum Shared { WHOLE, FIRST, COLUMNS } Shared;

typedef struct Matrix {
  size_t rows, cols;
  Shared shared;
} Matrix;

typedef struct Shapes {
  size_t inputs;
  Matrix input[3], output;
} Shapes;

// Products of GPUs apply activations where there are this many inputs.
static bool is_wide(Kind kind) { return kind == MLP_WIDE_GELU || kind == MLP_WIDE_SWIGLU; }

static Shapes shapes_of(Kind kind) {
  Matrix rows = {g_rows, is_wide(kind) ? WIDE : HIDDEN, FIRST};
  Matrix heads = {g_rows, HEADS * DIM, COLUMNS}, groups = {g_rows, GROUPS * DIM, COLUMNS};
  switch (kind) {
    case COLUMN:
    case GROUPED_COLUMN:
    case NORM_COLUMN:
    case NORM_COLUMN_RMS:
      return (Shapes){1, {rows}, {g_rows, FFN, COLUMNS}};
    case ROW:
    case GROUPED_ROW:
      return (Shapes){1, {{g_rows, FFN, COLUMNS}}, rows};
    case ATTENTION:
    case ATTENTION_SINK:
    case ATTENTION_DROPOUT:
      return (Shapes){3, {heads, groups, groups}, heads};
    case EMBEDDING:
    case POSITIONS:
      return (Shapes){.inputs = 0, .output = rows};
    // Losses of rows.
    case HEAD:
      return (Shapes){1, {rows}, {g_rows, 1, WHOLE}};
    case MULTIHEAD_CROSS:
      return (Shapes){2, {rows, {2 * g_rows, HIDDEN, FIRST}}, rows};
    default:
      return (Shapes){1, {rows}, rows};
  }
}

// Rows of the parts of a grouped layer.
static const size_t kSplits[] = {32, 64, 32};

static NVTEXModule create(NVTEXContext context, Kind kind, NVTEDType dtype,
                          NVTEXParallelConfig parallel) {
  NVTEXParallelOptions options = {.struct_size = sizeof options};
  const bool row = kind == ROW || kind == GROUPED_ROW;
  if (kind <= GROUPED_ROW) {
    options.mode = row ? NVTEX_PARALLEL_ROW : NVTEX_PARALLEL_COLUMN;
    parallel.options = &options;
  }
  NVTEXLinearConfig linear;
  nvtex_linear_config_init(&linear, sizeof linear);
  linear.dtype = dtype;
  linear.in_features = row ? FFN : HIDDEN;
  linear.out_features = row ? HIDDEN : FFN;
  linear.seed = 5;
  linear.init_std = 0.1f;
  linear.parallel = parallel;
  NVTEXLayerNormMLPConfig mlp;
  nvtex_layernorm_mlp_config_init(&mlp, sizeof mlp);
  mlp.hidden_size = is_wide(kind) ? WIDE : HIDDEN;
  mlp.ffn_hidden_size = FFN;
  const bool gated = kind == MLP_SWIGLU || kind == MLP_WIDE_SWIGLU || kind >= LAYER;
  mlp.activation = gated ? SWIGLU : GELU;
  // No product applies SwiGLU behind a bias.
  mlp.bias = kind != MLP_WIDE_SWIGLU;
  mlp.checkpoint = kind == MLP_CHECKPOINT;
  mlp.dtype = dtype;
  mlp.seed = 7;
  mlp.init_std = mlp.output_init_std = 0.1f;
  mlp.parallel = parallel;
  NVTEXMultiheadAttentionConfig multihead;
  nvtex_multihead_attention_config_init(&multihead, sizeof multihead);
  multihead.hidden_size = HIDDEN;
  multihead.seed = 9;
  multihead.init_std = multihead.output_init_std = 0.1f;
  multihead.input_layernorm = kind == MULTIHEAD;
  multihead.cross_attention = kind == MULTIHEAD_CROSS;
  NVTEXAttentionConfig *attention = &multihead.attention;
  attention->num_attention_heads = HEADS;
  attention->num_gqa_groups = kind == MULTIHEAD ? HEADS : GROUPS;
  attention->dtype = dtype;
  attention->parallel = parallel;
  if (kind == MULTIHEAD_CROSS) attention->attn_mask_type = NVTE_NO_MASK;
  if (kind == MULTIHEAD_NORMS) attention->qk_norm_type = NVTEX_QK_NORM_RMS;
  attention->attention_dropout = kind == ATTENTION_DROPOUT || kind == LAYER_DROPOUT ? 0.25f : 0.0f;
  if (kind == ATTENTION_SINK) attention->softmax_type = NVTE_LEARNABLE_SOFTMAX;
  switch (kind) {
    case EMBEDDING:
    case POSITIONS: {
      NVTEXEmbeddingConfig embedding;
      nvtex_embedding_config_init(&embedding, sizeof embedding);
      embedding.vocabulary_size = VOCABULARY;
      embedding.hidden_size = HIDDEN;
      embedding.max_positions = kind == POSITIONS ? BATCH + 1 : 0;
      embedding.dtype = dtype;
      embedding.seed = 3;
      embedding.parallel = &parallel;
      return nvtex_embedding_create(context, &embedding, NULL);
    }
    case HEAD: {
      NVTEXLMHeadConfig head;
      nvtex_lm_head_config_init(&head, sizeof head);
      head.vocabulary_size = VOCABULARY;
      head.hidden_size = HIDDEN;
      head.dtype = dtype;
      head.init_std = 0.1f;
      head.label_smoothing = 0.1f;
      head.parallel = &parallel;
      return nvtex_lm_head_create(context, &head, NULL);
    }
    case COLUMN:
    case ROW:
      return nvtex_linear_create(context, &linear, NULL);
    case GROUPED_COLUMN:
    case GROUPED_ROW: {
      NVTEXGroupedLinearConfig grouped;
      nvtex_grouped_linear_config_init(&grouped, sizeof grouped);
      grouped.num_gemms = COUNT(kSplits);
      grouped.linear = linear;
      return nvtex_grouped_linear_create(context, &grouped, NULL);
    }
    case NORM: {
      NVTEXNormConfig norm;
      nvtex_norm_config_init(&norm, sizeof norm);
      norm.hidden_size = HIDDEN;
      norm.dtype = dtype;
      norm.sequence_parallel = parallel.sequence_parallel;
      return nvtex_norm_create(context, &norm, NULL);
    }
    case NORM_COLUMN:
    case NORM_COLUMN_RMS: {
      NVTEXLayerNormLinearConfig config;
      nvtex_layernorm_linear_config_init(&config, sizeof config);
      config.linear = linear;
      if (kind == NORM_COLUMN_RMS) config.norm.kind = RMSNorm;
      return nvtex_layernorm_linear_create(context, &config, NULL);
    }
    case MLP_GELU:
    case MLP_SWIGLU:
    case MLP_CHECKPOINT:
    case MLP_WIDE_GELU:
    case MLP_WIDE_SWIGLU:
      return nvtex_layernorm_mlp_create(context, &mlp, NULL);
    case ATTENTION:
    case ATTENTION_SINK:
    case ATTENTION_DROPOUT:
      attention->head_dim_qk = DIM;
      return nvtex_attention_create(context, attention, NULL);
    case MULTIHEAD:
    case MULTIHEAD_GROUPS:
    case MULTIHEAD_NORMS:
    case MULTIHEAD_CROSS:
      return nvtex_multihead_attention_create(context, &multihead, NULL);
    default: {
      NVTEXTransformerLayerConfig layer;
      nvtex_transformer_layer_config_init(&layer, sizeof layer);
      layer.attention = multihead.attention;
      layer.mlp = mlp;
      layer.output_layernorm = kind == LAYER_POST;
      layer.parallel_attention_mlp = kind == LAYER_PARALLEL;
      layer.hidden_dropout = kind == LAYER_DROPOUT ? 0.25f : 0.0f;
      NVTEXMoeConfig experts;
      nvtex_moe_config_init(&experts, sizeof experts);
      experts.num_experts = 4;
      experts.top_k = 2;
      experts.balance_coefficient = 0.1f;
      experts.shared_ffn_hidden_size = FFN;
      experts.init_std = experts.output_init_std = 0.1f;
      experts.router_init_std = 0.3f;
      experts.tensor_parallel_size = parallel.tensor_parallel_size;
      if (kind == LAYER_EXPERTS) layer.experts = &experts;
      return nvtex_transformer_layer_create(context, &layer, NULL);
    }
  }
}

// ---- One rank's part of a whole

typedef struct Place {
  int rank, size;
  bool sequence;
} Place;

static size_t own_rows(const Matrix *m, Place p) {
  return m->shared == FIRST && p.sequence ? m->rows / (size_t)p.size : m->rows;
}

static size_t own_cols(const Matrix *m, Place p) {
  return m->shared == COLUMNS ? m->cols / (size_t)p.size : m->cols;
}

// The element of the whole matrix that is the element i of the part.
static size_t in_whole(const Matrix *m, Place p, size_t i) {
  size_t rows = own_rows(m, p), cols = own_cols(m, p), r = i / cols, c = i % cols;
  if (rows < m->rows) r += (size_t)p.rank * rows;
  if (cols < m->cols) c += (size_t)p.rank * cols;
  return r * m->cols + c;
}

// A value of tensor number `which`; those of weights are the module's own.
static double value(int which, size_t i) {
  uint64_t r = mixed((uint64_t)i * 0x9E3779B97F4A7C15u + (uint64_t)which * 0xD1B54A32D192ED03u + 1);
  return (double)(r >> 11) * 0x1p-52 - 1;
}

// ---- A module on one rank, or on its part

typedef struct Values {
  size_t count;
  double *x;
} Values;

typedef struct Result {
  Values output, input_grads[3];
  size_t parameters;
  char names[MAX_PARAMETERS][80];
  Values initial[MAX_PARAMETERS], grads[MAX_PARAMETERS];
} Result;

static Values values(size_t count) {
  Values v = {count, calloc(count + 1, sizeof(double))};
  if (!v.x) abort();
  return v;
}

static void free_result(Result *r) {
  free(r->output.x);
  for (int i = 0; i < 3; i++) free(r->input_grads[i].x);
  for (size_t i = 0; i < r->parameters; i++) {
    free(r->initial[i].x);
    free(r->grads[i].x);
  }
}

static Values read_values(const void *device, NVTEDType dtype, size_t count) {
  Values v = values(count);
  char *host = malloc(count * dtype_size(dtype) + 1);
  if (!host) abort();
  nvtex_memcpy_to_host(host, device, count * dtype_size(dtype), NULL);
  nvtex_stream_synchronize(NULL);
  for (size_t i = 0; i < count; i++) v.x[i] = get_value(dtype, host, i);
  free(host);
  return v;
}

// Tensors of a rank, which are freed together.
typedef struct Memory {
  void *memory[128];
  NVTETensor tensors[128];
  size_t count;
} Memory;

static NVTETensor own_tensor(Memory *m, const double *x, size_t count, NVTEDType dtype,
                             NVTEShape shape) {
  char *host = calloc(count + 1, dtype_size(dtype));
  if (!host || m->count == COUNT(m->memory)) abort();
  for (size_t i = 0; x && i < count; i++) put_value(dtype, host, i, x[i]);
  void *memory = device_copy(host, count * dtype_size(dtype));
  free(host);
  m->memory[m->count] = memory;
  NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  NVTEBasicTensor basic = {memory, dtype, shape};
  nvte_set_tensor_param(&t, kNVTERowwiseData, &basic);
  return m->tensors[m->count++] = t;
}

static void free_memory(Memory *m) {
  for (size_t i = 0; i < m->count; i++) {
    nvte_destroy_tensor(m->tensors[i]);
    nvtex_free(m->memory[i]);
  }
}

// The shape of a rank's part; attention by itself has heads of their own.
static NVTEShape part_shape(Kind kind, const Matrix *m, Place p) {
  size_t rows = own_rows(m, p), cols = own_cols(m, p);
  NVTEShape shape = {{rows / BATCH, BATCH, cols}, 3};
  if (kind >= ATTENTION && kind <= ATTENTION_DROPOUT) {
    shape = (NVTEShape){{rows / BATCH, BATCH, cols / DIM, DIM}, 4};
  }
  return shape;
}

static NVTETensor part_of(Memory *memory, Kind kind, const Matrix *m, Place p, NVTEDType dtype,
                          int which) {
  size_t count = own_rows(m, p) * own_cols(m, p);
  Values v = values(count);
  for (size_t i = 0; which >= 0 && i < count; i++) v.x[i] = value(which, in_whole(m, p, i));
  NVTETensor t = own_tensor(memory, v.x, count, dtype, part_shape(kind, m, p));
  free(v.x);
  return t;
}

// Numbers below VOCABULARY, the same on all ranks.
static NVTETensor own_tokens(Memory *m) {
  int64_t tokens[MOST_ROWS];
  for (size_t i = 0; i < g_rows; i++) tokens[i] = (int64_t)(mixed(i + 77) % VOCABULARY);
  if (m->count == COUNT(m->memory)) abort();
  NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  NVTEBasicTensor basic = {
      device_copy(tokens, g_rows * sizeof *tokens), kNVTEInt64, {{g_rows / BATCH, BATCH}, 2}};
  nvte_set_tensor_param(&t, kNVTERowwiseData, &basic);
  m->memory[m->count] = basic.data_ptr;
  return m->tensors[m->count++] = t;
}

static void run_module(NVTEXContext context, Kind kind, Recipe recipe, Place p, Result *result,
                       NVTEXParameter *described) {
  NVTEDType dtype = recipe == FLOAT32 ? kNVTEFloat32 : kNVTEBFloat16;
  NVTEXParallelConfig parallel = {.tensor_parallel_size = p.size > 1 ? 0 : 1,
                                  .sequence_parallel = p.sequence,
                                  .context_parallel_size = 1};
  memset(result, 0, sizeof *result);
  NVTEXModule module = create(context, kind, dtype, parallel);
  RANK_OK(p.rank);
  if (!module) return;
  Memory memory = {.count = 0};
  NVTETensor grads[MAX_PARAMETERS];
  result->parameters = nvtex_module_num_parameters(module);
  for (size_t i = 0; i < result->parameters; i++) {
    NVTEXParameter *d = &described[i];
    *d = (NVTEXParameter){.struct_size = sizeof *d};
    nvtex_module_parameter(module, i, d);
    RANK_OK(p.rank);
    size_t count = numel(d->shape);
    snprintf(result->names[i], sizeof result->names[i], "%s", d->name);
    result->initial[i] = read_values(nvte_tensor_data(d->value), d->dtype, count);
    if (d->shape.ndim == 1) {
      // Biases and norms are constant at first, and sinks are 0.
      Values v = values(count);
      for (size_t k = 0; k < count; k++) {
        v.x[k] = result->initial[i].x[k] + 0.25 * value(100 + (int)i, whole_index(d, 0, k));
      }
      nvtex_module_assign_parameter(module, i, own_tensor(&memory, v.x, count, d->dtype, d->shape),
                                    NULL);
      free(v.x);
    }
    grads[i] = own_tensor(&memory, NULL, count, d->dtype, d->shape);
    nvtex_module_set_gradient(module, i, grads[i], false);
    RANK_OK(p.rank);
  }
  Shapes shapes = shapes_of(kind);
  NVTETensor inputs[3], input_grads[3];
  for (size_t i = 0; i < shapes.inputs; i++) {
    inputs[i] = part_of(&memory, kind, &shapes.input[i], p, dtype, (int)i);
    input_grads[i] = part_of(&memory, kind, &shapes.input[i], p, dtype, -1);
  }
  size_t num_inputs = shapes.inputs, num_outputs = 1, num_grads = 1, at = 0;
  NVTEDType output_dtype = kind == HEAD ? kNVTEFloat32 : dtype;
  NVTETensor outputs[2] = {NULL}, output_grad = NULL;
  if (kind >= EMBEDDING) inputs[num_inputs++] = own_tokens(&memory);
  if (kind == HEAD) {
    outputs[at++] = own_tensor(&memory, NULL, 1, kNVTEFloat32, (NVTEShape){{1}, 1});
    num_grads = 0;
    num_outputs = 2;
  } else {
    output_grad = part_of(&memory, kind, &shapes.output, p, dtype, 10);
  }
  NVTETensor output = outputs[at] = part_of(&memory, kind, &shapes.output, p, output_dtype, -1);
  int64_t seed[2] = {11, 4};
  void *state = device_copy(seed, sizeof seed);
  NVTETensor random = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  NVTEBasicTensor basic = {state, kNVTEInt64, {{2}, 1}};
  nvte_set_tensor_param(&random, kNVTERowwiseData, &basic);

  NVTEXRecipe scaling = NULL;
  if (recipe > BFLOAT16) {
    static const NVTEXRecipeKind kKinds[RECIPES] = {
        [DELAYED] = NVTEX_RECIPE_DELAYED_SCALING,
        [CURRENT] = NVTEX_RECIPE_CURRENT_SCALING,
        [BLOCKS] = NVTEX_RECIPE_BLOCK_SCALING,
        [MXFP8] = NVTEX_RECIPE_MXFP8,
    };
    NVTEXRecipeConfig config;
    nvtex_recipe_config_init(&config, sizeof config, kKinds[recipe]);
    scaling = nvtex_recipe_create(&config);
  }
  for (int step = 0; step < (recipe == DELAYED ? STEPS : 1); step++) {
    NVTEXStep options;
    nvtex_step_init(&options, sizeof options);
    options.rng_state = random;
    options.m_splits = kSplits;
    options.num_splits = COUNT(kSplits);
    NVTEXTape tape = NULL;
    if (scaling) nvtex_context_begin(context, scaling, NVTEX_CONTEXT_ENABLED, NULL);
    nvtex_module_forward(module, inputs, num_inputs, outputs, num_outputs, &options, &tape, NULL);
    RANK_OK(p.rank);
    if (scaling) nvtex_context_end(context);
    nvtex_context_forward_update(context, NULL);
    nvtex_module_backward(module, tape, &output_grad, num_grads, input_grads, shapes.inputs, NULL);
    RANK_OK(p.rank);
    nvtex_context_backward_update(context, NULL);
    nvtex_tape_destroy(tape);
    RANK_OK(p.rank);
  }
  size_t written = numel(nvte_tensor_shape(output));
  result->output = read_values(nvte_tensor_data(output), output_dtype, written);
  for (size_t i = 0; i < shapes.inputs; i++) {
    size_t count = numel(nvte_tensor_shape(input_grads[i]));
    result->input_grads[i] = read_values(nvte_tensor_data(input_grads[i]), dtype, count);
  }
  for (size_t i = 0; i < result->parameters; i++) {
    size_t count = numel(described[i].shape);
    result->grads[i] = read_values(nvte_tensor_data(grads[i]), described[i].dtype, count);
  }
  nvtex_recipe_destroy(scaling);
  nvte_destroy_tensor(random);
  nvtex_free(state);
  free_memory(&memory);
  RANK_OK(p.rank);
  // The pieces are the module's.
  for (size_t i = 0; i < result->parameters; i++) {
    NVTEXParameterPiece *copy = malloc(described[i].num_pieces * sizeof *copy);
    if (!copy) abort();
    memcpy(copy, described[i].pieces, described[i].num_pieces * sizeof *copy);
    described[i].pieces = copy;
  }
  nvtex_module_destroy(module);
}

// ---- Ranks against one

// The bits of what each rank has computed: of one process, and of the one whose products are
// divided.
enum { DIVIDED = 6, SIZES = 2 };

typedef uint64_t Bits[RECIPES][DIVIDED][SIZES][MOST];

static struct {
  Kind kind;
  Recipe recipe;
  int size;
  bool sequence;
  // Of ranks that share rows.
  uint64_t (*bits)[MOST];
  NVTEXCommunicator comms[MOST];
  Result serial, exact;
  NVTEXParameter described[MAX_PARAMETERS];
  // Elements of each parameter that ranks count.
  atomic_size_t counted[MAX_PARAMETERS];
} g_run;

// The largest values are those of the whole, of which a part may have small ones alone. `exact`,
// unless it is null, is what Float32 gives.
static void compare(const char *what, Place p, const Values *got, const Values *whole,
                    const Values *exact, const size_t *places, const double tolerance[2]) {
  double squares = 0, differences = 0, most = 0, largest = 0, own_error = 0, error = 0;
  for (size_t i = 0; i < whole->count; i++) {
    squares += whole->x[i] * whole->x[i];
    most = fmax(most, fabs(whole->x[i]));
  }
  for (size_t i = 0; i < got->count; i++) {
    double difference = got->x[i] - whole->x[places[i]];
    differences += difference * difference;
    largest = fmax(largest, fabs(difference));
    // The maximum leaves out what is not a number.
    if (isnan(difference)) largest = INFINITY;
    double from = exact ? got->x[i] - exact->x[places[i]] : 0;
    own_error += from * from;
    from = exact ? whole->x[places[i]] - exact->x[places[i]] : 0;
    error += from * from;
  }
  double mean = sqrt(differences / (double)got->count);
  double of_whole = sqrt(squares / (double)whole->count);
  RANK_CHECK(of_whole > 0, "%s: all values are 0", what);
  RANK_CHECK(mean <= tolerance[0] * of_whole && largest <= tolerance[1] * most,
             "%s, %s, %s, rank %d of %d%s: root mean square %.3g of %.3g, largest %.3g of %.3g",
             kNames[g_run.kind], kRecipes[g_run.recipe], what, p.rank, p.size,
             p.sequence ? " with rows" : "", mean, of_whole, largest, most);
  own_error = sqrt(own_error / (double)got->count);
  error = sqrt(error / (double)got->count);
  RANK_CHECK(own_error <= kFarther * error + 4e-3 * of_whole,
             "%s, %s, %s, rank %d of %d%s: from Float32 %.3g, one rank %.3g, values %.3g",
             kNames[g_run.kind], kRecipes[g_run.recipe], what, p.rank, p.size,
             p.sequence ? " with rows" : "", own_error, error, of_whole);
}

static const double *tolerance(void) {
  // Tensor cores take FP32 as TF32.
  static const double kTensorCores[2] = {1e-3, 4e-3};
  if (on_cuda() && g_run.recipe == FLOAT32) return kTensorCores;
  bool layer = g_run.kind >= LAYER && g_run.kind <= LAYER_DROPOUT;
  return layer && g_run.recipe > BFLOAT16 ? kLayerTolerance : kTolerance[g_run.recipe];
}

static void compare_matrix(const char *what, Place p, const Matrix *m, const Values *got,
                           const Values *whole, const Values *exact) {
  size_t count = own_rows(m, p) * own_cols(m, p);
  RANK_CHECK(got->count == count, "%s: %zu", what, got->count);
  size_t *places = calloc(count + 1, sizeof *places);
  if (!places) abort();
  for (size_t i = 0; i < count; i++) places[i] = in_whole(m, p, i);
  compare(what, p, got, whole, exact, places, tolerance());
  free(places);
}

static NVTEXContext new_context(void) {
  NVTEXContextConfig config;
  nvtex_context_config_init(&config, sizeof config);
  if (g_small_parts) config.multiprocessor_count = 1;
  return nvtex_context_create(&config);
}

static void add_bits(uint64_t *bits, const Values *v) {
  for (size_t i = 0; i < v->count; i++) {
    uint64_t x;
    memcpy(&x, &v->x[i], sizeof x);
    *bits = mixed(*bits ^ x);
  }
}

static uint64_t result_bits(const Result *r) {
  uint64_t bits = 1;
  add_bits(&bits, &r->output);
  for (int i = 0; i < 3; i++) add_bits(&bits, &r->input_grads[i]);
  for (size_t i = 0; i < r->parameters; i++) add_bits(&bits, &r->grads[i]);
  return bits;
}

static void *rank_main(void *argument) {
  Place p = {(int)(intptr_t)argument, g_run.size, g_run.sequence};
  enter_rank(p.rank, p.size);
  NVTEXGridConfig config = {.struct_size = sizeof config, .tp = (size_t)g_run.size};
  NVTEXGrid grid = nvtex_grid_create(g_run.comms[p.rank], &config);
  RANK_OK(p.rank);
  NVTEXContext context = new_context();
  nvtex_context_set_grid(context, grid);
  nvtex_grid_destroy(grid);
  RANK_OK(p.rank);
  Result own;
  NVTEXParameter described[MAX_PARAMETERS];
  run_module(context, g_run.kind, g_run.recipe, p, &own, described);
  if (g_run.bits && p.sequence) g_run.bits[p.size > 2][p.rank] = result_bits(&own);
  const Result *serial = &g_run.serial, *exact = &g_run.exact;
  RANK_CHECK(own.parameters == serial->parameters, "rank %d: %zu", p.rank, own.parameters);
  if (own.parameters == serial->parameters && own.output.x && serial->output.x) {
    Shapes shapes = shapes_of(g_run.kind);
    compare_matrix("output", p, &shapes.output, &own.output, &serial->output, &exact->output);
    for (size_t i = 0; i < shapes.inputs; i++) {
      compare_matrix("gradient of an input", p, &shapes.input[i], &own.input_grads[i],
                     &serial->input_grads[i], &exact->input_grads[i]);
    }
    for (size_t i = 0; i < own.parameters; i++) {
      const NVTEXParameter *d = &described[i];
      size_t count = own.grads[i].count, *places = calloc(count + 1, sizeof *places);
      if (!places) abort();
      RANK_CHECK(same_shape(d->whole_shape, g_run.described[i].shape), "%s: shape", own.names[i]);
      for (size_t k = 0; k < count; k++) places[k] = whole_index(d, 0, k);
      const double kSame[2] = {0, 0};
      bool constant = d->shape.ndim == 1;
      if (!constant) {
        compare(own.names[i], p, &own.initial[i], &serial->initial[i], NULL, places, kSame);
      }
      compare(own.names[i], p, &own.grads[i], &serial->grads[i], &exact->grads[i], places,
              tolerance());
      size_t other = count;
      for (size_t k = 0; k < d->num_pieces; k++) {
        other = count / d->shape.data[d->shared_dimension] * d->pieces[k].length;
        if (d->pieces[k].counts) atomic_fetch_add(&g_run.counted[i], other);
      }
      free(places);
    }
  }
  for (size_t i = 0; i < own.parameters; i++) free((void *)(uintptr_t)described[i].pieces);
  free_result(&own);
  nvtex_context_destroy(context);
  RANK_OK(p.rank);
  return NULL;
}

static void run_ranks(int size, bool sequence) {
  g_run.size = size;
  g_run.sequence = sequence;
  for (int i = 0; i < MAX_PARAMETERS; i++) atomic_store(&g_run.counted[i], 0);
  NVTEXCommunicatorConfig config = communicator_config("world", 60);
  config.staging_bytes = 1 << 18;
  create_ranks(size, &config, g_run.comms);
  if (!EXPECT_OK()) return;
  pthread_t threads[MOST];
  for (int r = 0; r < size; r++) {
    if (pthread_create(&threads[r], NULL, rank_main, (void *)(intptr_t)r)) abort();
  }
  for (int r = 0; r < size; r++) pthread_join(threads[r], NULL);
  destroy_ranks(size, g_run.comms);
  EXPECT_OK();
  for (size_t i = 0; i < g_run.serial.parameters; i++) {
    CHECK(atomic_load(&g_run.counted[i]) == g_run.serial.grads[i].count, "%s: %zu of %zu count",
          g_run.serial.names[i], atomic_load(&g_run.counted[i]), g_run.serial.grads[i].count);
  }
}

static void test_module(Kind kind, Recipe recipe) {
  g_run.kind = kind;
  g_run.recipe = recipe;
  nvtex_stream_synchronize(NULL);
  NVTEXContext context = new_context();
  run_module(context, kind, recipe, (Place){0, 1, false}, &g_run.serial, g_run.described);
  nvtex_context_destroy(context);
  context = new_context();
  NVTEXParameter described[MAX_PARAMETERS];
  run_module(context, kind, FLOAT32, (Place){0, 1, false}, &g_run.exact, described);
  nvtex_context_destroy(context);
  for (size_t i = 0; i < g_run.exact.parameters; i++) {
    free((void *)(uintptr_t)described[i].pieces);
  }
  if (EXPECT_OK() && g_run.serial.output.x && g_run.exact.output.x) {
    for (int size = 2; size <= MOST; size *= 2) {
      // The rows of a grouped layer are whole on each rank.
      const bool grouped = kind == GROUPED_COLUMN || kind == GROUPED_ROW;
      // Products in parts are those of ranks that share rows. Wide ones have no other cases.
      const bool rows_alone = g_run.bits && !is_wide(kind);
      for (int sequence = rows_alone; sequence < (grouped ? 1 : 2); sequence++) {
        run_ranks(size, sequence);
      }
    }
  }
  for (size_t i = 0; i < g_run.serial.parameters; i++) {
    free((void *)(uintptr_t)g_run.described[i].pieces);
  }
  free_result(&g_run.serial);
  free_result(&g_run.exact);
  CHECK_EQ(failed_checks(), 0);
}

// ---- What is refused

static void *refused(void *argument) {
  int rank = (int)(intptr_t)argument;
  NVTEXGridConfig config = {.struct_size = sizeof config, .tp = 2};
  NVTEXGrid grid = nvtex_grid_create(g_run.comms[rank], &config);
  NVTEXContext context = nvtex_context_create(NULL);
  nvtex_context_set_grid(context, grid);
  RANK_OK(rank);
  NVTEXLinearConfig linear;
  nvtex_linear_config_init(&linear, sizeof linear);
  linear.in_features = linear.out_features = 33;
  linear.parallel.tensor_parallel_size = 2;
  nvtex_linear_create(context, &linear, NULL);
  RANK_ERROR(rank, "config.parallel.options.mode: expected NVTEX_PARALLEL_COLUMN or");
  NVTEXParallelOptions options = {.struct_size = sizeof options, .mode = NVTEX_PARALLEL_COLUMN};
  linear.parallel.options = &options;
  nvtex_linear_create(context, &linear, NULL);
  RANK_ERROR(rank, "out_features: expected a multiple of 2");
  linear.parallel.tensor_parallel_size = 4;
  nvtex_linear_create(context, &linear, NULL);
  RANK_ERROR(rank, "config.parallel.tensor_parallel_size: expected 0, 1 or 2");
  NVTEXGroupedLinearConfig grouped;
  nvtex_grouped_linear_config_init(&grouped, sizeof grouped);
  grouped.num_gemms = 2;
  grouped.linear = linear;
  grouped.linear.parallel.sequence_parallel = true;
  nvtex_grouped_linear_create(context, &grouped, NULL);
  RANK_ERROR(rank, "config.linear.parallel.sequence_parallel: expected false");
  NVTEXAttentionConfig attention;
  nvtex_attention_config_init(&attention, sizeof attention);
  attention.num_attention_heads = 6;
  attention.num_gqa_groups = 3;
  attention.head_dim_qk = DIM;
  attention.parallel.tensor_parallel_size = 0;
  nvtex_attention_create(context, &attention, NULL);
  RANK_ERROR(rank, "config.num_gqa_groups: expected a multiple of 2");
  NVTEXMoeConfig experts;
  nvtex_moe_config_init(&experts, sizeof experts);
  experts.num_experts = experts.top_k = 2;
  NVTEXTransformerLayerConfig layer;
  nvtex_transformer_layer_config_init(&layer, sizeof layer);
  layer.attention.num_attention_heads = 4;
  layer.mlp.hidden_size = layer.mlp.ffn_hidden_size = HIDDEN;
  layer.attention.parallel.sequence_parallel = layer.mlp.parallel.sequence_parallel = true;
  layer.attention.parallel.tensor_parallel_size = layer.mlp.parallel.tensor_parallel_size = 0;
  layer.experts = &experts;
  nvtex_transformer_layer_create(context, &layer, NULL);
  RANK_ERROR(rank, "config.experts.tensor_parallel_size: expected 0, the ranks that share rows");
  nvtex_context_destroy(context);
  nvtex_grid_destroy(grid);
  RANK_OK(rank);
  return NULL;
}

static void test_refusals(void) {
  NVTEXCommunicatorConfig config = communicator_config("world", 60);
  nvtex_communicator_create_local(2, &config, g_run.comms);
  pthread_t threads[2];
  for (int r = 0; r < 2; r++) {
    if (pthread_create(&threads[r], NULL, refused, (void *)(intptr_t)r)) abort();
  }
  for (int r = 0; r < 2; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < 2; r++) nvtex_communicator_destroy(g_run.comms[r]);
  EXPECT_OK();
  CHECK_EQ(failed_checks(), 0);
}

// ---- Products in parts

static void test_divided(Bits bits) {
  static const Kind kDivided[DIVIDED] = {ROW,           NORM_COLUMN,     MLP_CHECKPOINT,
                                         MLP_WIDE_GELU, MLP_WIDE_SWIGLU, LAYER};
  const size_t rows = g_rows;
  g_rows = MOST_ROWS;
  g_small_parts = true;
  for (int recipe = 0; recipe < RECIPES; recipe++) {
    for (int i = 0; i < DIVIDED; i++) {
      // GELU is applied by products of BFloat16 on GPUs, SwiGLU by those of FP8 alone.
      const bool scaled = recipe == DELAYED || recipe == CURRENT;
      const bool gated = kDivided[i] == MLP_WIDE_SWIGLU;
      const bool applied = on_cuda() && (scaled || (recipe == BFLOAT16 && !gated));
      if (is_wide(kDivided[i]) && !applied) continue;
      if (!case_begin("%s, %s, in parts", kRecipes[recipe], kNames[kDivided[i]])) continue;
      g_run.bits = bits[recipe][i];
      test_module(kDivided[i], (Recipe)recipe);
    }
  }
  g_run.bits = NULL;
  g_rows = rows;
  g_small_parts = false;
}

// The bits of both processes.
static Bits *g_bits;

static int divided_process(int argc, char **argv) {
  setenv("NVTE_COMM_OVERLAP", "2", 1);
  test_begin(argc, argv);
  test_divided(g_bits[1]);
  const int result = test_end();
  // A filter may name cases of the other process alone.
  return g_test.cases == 0 ? TEST_PASS : result;
}

int main(int argc, char **argv) {
  const int access = PROT_READ | PROT_WRITE;
  void *shared = mmap(NULL, 2 * sizeof *g_bits, access, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) abort();
  g_bits = shared;
  const pid_t pid = fork_child();
  if (pid == 0) {
    const int result = divided_process(argc, argv);
    fflush(NULL);
    _exit(result);
  }
  const int status = wait_for_child(pid);
  test_begin(argc, argv);
  for (int recipe = 0; recipe < RECIPES; recipe++) {
    for (int kind = 0; kind < KINDS; kind++) {
      // What the recipe does not change.
      bool attention = kind >= ATTENTION && kind <= ATTENTION_DROPOUT;
      bool products = kind != NORM && !attention && kind < EMBEDDING;
      if (recipe > BFLOAT16 && !products) continue;
      // Wide ones are for products in parts, and for as many rows as these have.
      if (is_wide((Kind)kind)) continue;
      // Another rounding may choose other experts; on GPUs these have 16 bits.
      if (kind == LAYER_EXPERTS && (recipe != FLOAT32 || on_cuda())) continue;
      if (case_begin("%s, %s", kRecipes[recipe], kNames[kind])) {
        test_module((Kind)kind, (Recipe)recipe);
      }
    }
  }
  if (case_begin("what is refused")) test_refusals();
  test_divided(g_bits[0]);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == TEST_PASS, "products in parts: status %d",
        status);
  // The kernels of a GPU may add in another order where there are fewer rows.
  CHECK(on_cuda() || memcmp(g_bits[0], g_bits[1], sizeof *g_bits) == 0, "other bits in parts");
  munmap(shared, 2 * sizeof *g_bits);
  return test_end();
}
