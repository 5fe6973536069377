// Trainers: their steps have the bits of the calls that they stand for; and models of layers that
// are alike, which have the bits of their parts in a row.
#define _POSIX_C_SOURCE 200809L
#include "support.h"

enum { BATCH = 2, LENGTH = 16, ROWS = BATCH * LENGTH, HIDDEN = 32, VOCABULARY = 48, STEPS = 5 };

static const size_t kTokens[] = {BATCH, LENGTH};

typedef struct Setup {
  const char *name;
  // -1: none.
  int recipe;
  NVTEDType dtype;
  bool tied, grid;
  NVTEXSharding sharding;
  // Experts in place of each MLP, and the rows of each among as many as it would have on average.
  size_t experts;
  float capacity;
} Setup;

static NVTEXLanguageModelConfig config_of(const Setup *s) {
  NVTEXLanguageModelConfig c;
  nvtex_language_model_config_init(&c, sizeof c);
  CHECK(c.tied_embeddings && c.layer.qkv_format == NVTE_BSHD, "the defaults");
  c.vocabulary_size = VOCABULARY;
  c.max_positions = LENGTH;
  c.num_layers = 2;
  c.tied_embeddings = s->tied;
  c.layer.hidden_size = HIDDEN;
  c.layer.ffn_hidden_size = 2 * HIDDEN;
  c.layer.num_attention_heads = 2;
  c.layer.dtype = s->dtype;
  c.layer.seed = 7;
  static NVTEXMoeConfig experts;
  nvtex_moe_config_init(&experts, sizeof experts);
  experts.num_experts = s->experts;
  experts.top_k = 2;
  experts.balance_coefficient = 0.01f;
  experts.capacity_factor = s->capacity;
  experts.expert_parallel_size = experts.tensor_parallel_size = 0;
  if (s->experts) c.layer.experts = &experts;
  return c;
}

static NVTEXRecipe recipe_of(const Setup *s) {
  if (s->recipe < 0) return NULL;
  NVTEXRecipeConfig c;
  nvtex_recipe_config_init(&c, sizeof c, (NVTEXRecipeKind)s->recipe);
  return nvtex_recipe_create(&c);
}

static NVTEXOptimizerConfig optimizer_of(void) {
  NVTEXOptimizerConfig c;
  nvtex_optimizer_config_init(&c, sizeof c, NVTEX_UPDATE_ADAMW);
  c.learning_rate = 1e-2f;
  c.max_norm = 1;
  c.initial_masters = true;
  return c;
}

// The bytes of a parameter.
static void *value_of(NVTEXModule model, size_t index, size_t *bytes, char *name, size_t room) {
  NVTEXParameter p = {.struct_size = sizeof p};
  nvtex_module_parameter(model, index, &p);
  EXPECT_OK();
  *bytes = numel(p.shape) * dtype_size(p.dtype);
  void *host = host_memory(*bytes);
  download(host, nvte_tensor_data(p.value), *bytes);
  snprintf(name, room, "%s", p.name);
  return host;
}

static void compare_parameters(NVTEXModule a, NVTEXModule b) {
  const size_t count = nvtex_module_num_parameters(a);
  if (!CHECK_EQ(nvtex_module_num_parameters(b), count)) return;
  for (size_t i = 0; i < count; i++) {
    char names[2][128];
    size_t bytes[2];
    const void *x = value_of(a, i, &bytes[0], names[0], sizeof names[0]);
    const void *y = value_of(b, i, &bytes[1], names[1], sizeof names[1]);
    CHECK(!strcmp(names[0], names[1]), "%s and %s", names[0], names[1]);
    CHECK(bytes[0] == bytes[1] && !memcmp(x, y, bytes[0]), "%s differs", names[0]);
  }
}

static void set_batch(NVTETensor *inputs, unsigned step) {
  int32_t tokens[ROWS], targets[ROWS];
  for (unsigned i = 0; i < ROWS; i++) {
    tokens[i] = (int32_t)((i * i + step) % VOCABULARY);
    targets[i] = (int32_t)((i * i + step + 1) % VOCABULARY);
  }
  nvtex_array_set(inputs[0], tokens, sizeof tokens, NULL);
  nvtex_array_set(inputs[2], targets, sizeof targets, NULL);
  nvtex_stream_synchronize(NULL);
}

// What the header says that a step does, in calls of its own.
static void step_by_hand(NVTEXContext context, NVTEXRecipe recipe, NVTEXModule model,
                         NVTEXDataParallel engine, NVTEXOptimizer optimizer, NVTETensor *inputs,
                         NVTETensor loss, cudaStream_t stream) {
  NVTEXTape tape = NULL;
  nvtex_context_begin(context, recipe, recipe ? NVTEX_CONTEXT_ENABLED : 0, NULL);
  nvtex_module_forward(model, inputs, 3, &loss, 1, NULL, &tape, stream);
  nvtex_context_end(context);
  nvtex_context_forward_update(context, stream);
  nvtex_module_backward(model, tape, NULL, 0, NULL, 0, stream);
  nvtex_context_backward_update(context, stream);
  nvtex_tape_destroy(tape);
  if (engine) nvtex_data_parallel_reduce(engine, stream);
  nvtex_optimizer_step(optimizer, stream);
}

static void steps(const Setup *s) {
  if (!case_begin("Steps, %s", s->name)) return;
  NVTEXCommunicator alone = NULL;
  nvtex_communicator_create_local(1, NULL, &alone);
  const NVTEXGridConfig sizes = {.struct_size = sizeof sizes};
  const NVTEXGrid grid = nvtex_grid_create(alone, &sizes);
  NVTEXContext contexts[2];
  NVTEXModule models[2];
  const NVTEXLanguageModelConfig of_model = config_of(s);
  const cudaStream_t stream = nvtex_stream_create();
  for (int i = 0; i < 2; i++) {
    contexts[i] = nvtex_context_create(NULL);
    if (s->grid) nvtex_context_set_grid(contexts[i], grid);
    models[i] = nvtex_language_model_create(contexts[i], &of_model, stream);
  }
  const NVTEXRecipe recipe = recipe_of(s);
  NVTEXDataParallelConfig ranks;
  nvtex_data_parallel_config_init(&ranks, sizeof ranks);
  ranks.sharding = s->sharding;
  NVTEXDataParallel engine = NULL;
  if (s->grid)
    engine = nvtex_data_parallel_create(contexts[0], &ranks, alone, &models[0], 1, stream);
  NVTEXOptimizerConfig of_optimizer = optimizer_of();
  NVTEXTrainerConfig config;
  nvtex_trainer_config_init(&config, sizeof config);
  config.model = models[1];
  config.recipe = recipe;
  config.optimizer = &of_optimizer;
  config.data_parallel = &ranks;
  const NVTEXTrainer trainer = nvtex_trainer_create(contexts[1], &config, stream);
  EXPECT_OK();
  of_optimizer.data_parallel = engine;
  const NVTEXOptimizer optimizer =
      nvtex_optimizer_create(contexts[0], &of_optimizer, &models[0], 1, stream);
  CHECK(!nvtex_trainer_data_parallel(trainer) == !s->grid, "an engine");
  NVTETensor inputs[3] = {nvtex_array_create(kNVTEInt32, kTokens, 2), NULL,
                          nvtex_array_create(kNVTEInt32, kTokens, 2)};
  const NVTETensor loss = nvtex_array_create(kNVTEFloat32, NULL, 0);
  float first = 0, got = 0;
  for (unsigned i = 0; i < STEPS; i++) {
    set_batch(inputs, i);
    step_by_hand(contexts[0], recipe, models[0], engine, optimizer, inputs, loss, stream);
    nvtex_trainer_step(trainer, inputs, 3, NULL, stream);
    float expected = 0;
    nvtex_array_get(loss, &expected, sizeof expected, stream);
    got = nvtex_trainer_loss(trainer, stream);
    EXPECT_OK();
    CHECK_FLOAT(got, expected);
    if (i == 0) first = got;
  }
  CHECK(got < first, "the loss went from %g to %g", first, got);
  if (engine) {
    nvtex_data_parallel_gather(engine, stream);
    nvtex_data_parallel_gather(nvtex_trainer_data_parallel(trainer), stream);
  }
  compare_parameters(models[0], models[1]);
  NVTEXOptimizerNumbers numbers = {.struct_size = sizeof numbers};
  nvtex_optimizer_numbers(nvtex_trainer_optimizer(trainer), &numbers, stream);
  CHECK_EQ(numbers.step, STEPS);
  // A captured step reads the same tensors, and as many.
  if (on_cuda()) {
    NVTETensor other[3] = {inputs[0], inputs[2], inputs[2]};
    nvtex_trainer_step(trainer, other, 3, NULL, stream);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "inputs[1]", "captured");
    nvtex_trainer_step(trainer, inputs, 2, NULL, stream);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "num_inputs", "3");
    nvtex_trainer_step(trainer, inputs, 3, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "stream");
  }
  // The trainer keeps the model, and what it gave out ends with it.
  nvtex_module_destroy(models[1]);
  nvtex_trainer_step(trainer, inputs, 3, NULL, stream);
  EXPECT_OK();
  const NVTEXOptimizer of_trainer = nvtex_trainer_optimizer(trainer);
  nvtex_stream_synchronize(stream);
  nvtex_trainer_destroy(trainer);
  nvtex_optimizer_step(of_trainer, stream);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "optimizer");
  nvtex_trainer_step(trainer, inputs, 3, NULL, stream);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "trainer");
  nvtex_optimizer_destroy(optimizer);
  nvtex_data_parallel_destroy(engine);
  nvtex_module_destroy(models[0]);
  nvtex_array_destroy(inputs[0]), nvtex_array_destroy(inputs[2]), nvtex_array_destroy(loss);
  for (int i = 0; i < 2; i++) nvtex_context_destroy(contexts[i]);
  nvtex_recipe_destroy(recipe);
  nvtex_grid_destroy(grid);
  nvtex_communicator_destroy(alone);
  nvtex_stream_destroy(stream);
  EXPECT_OK();
}

// Loss and logits of a model.
static float pass(NVTEXModule model, NVTETensor *inputs, NVTEDType dtype, void *host) {
  const size_t shape[] = {ROWS, VOCABULARY};
  const NVTETensor loss = nvtex_array_create(kNVTEFloat32, NULL, 0);
  const NVTETensor logits = nvtex_array_create(dtype, shape, 2);
  const NVTETensor outputs[] = {loss, NULL, logits};
  nvtex_module_forward(model, inputs, 3, outputs, 3, NULL, NULL, NULL);
  float value = 0;
  nvtex_array_get(loss, &value, sizeof value, NULL);
  nvtex_array_get(logits, host, ROWS * VOCABULARY * dtype_size(dtype), NULL);
  EXPECT_OK();
  nvtex_array_destroy(loss), nvtex_array_destroy(logits);
  return value;
}

static void parts(const Setup *s) {
  if (!case_begin("Parts in a row, %s", s->name)) return;
  const NVTEXContext context = nvtex_context_create(NULL);
  const NVTEXLanguageModelConfig config = config_of(s);
  const NVTEXModule model = nvtex_language_model_create(context, &config, NULL);
  NVTEXModule row[5];
  NVTEXEmbeddingConfig embedding;
  nvtex_embedding_config_init(&embedding, sizeof embedding);
  embedding.vocabulary_size = VOCABULARY;
  embedding.hidden_size = HIDDEN;
  embedding.max_positions = LENGTH;
  embedding.dtype = s->dtype;
  row[0] = nvtex_embedding_create(context, &embedding, NULL);
  for (int i = 1; i <= 2; i++)
    row[i] = nvtex_transformer_layer_create(context, &config.layer, NULL);
  NVTEXNormConfig norm;
  nvtex_norm_config_init(&norm, sizeof norm);
  norm.hidden_size = HIDDEN;
  norm.dtype = s->dtype;
  row[3] = nvtex_norm_create(context, &norm, NULL);
  NVTEXLMHeadConfig head;
  nvtex_lm_head_config_init(&head, sizeof head);
  head.vocabulary_size = VOCABULARY;
  head.hidden_size = HIDDEN;
  head.dtype = s->dtype;
  if (s->tied) head.tied_to = row[0];
  row[4] = nvtex_lm_head_create(context, &head, NULL);
  const NVTEXModule by_hand = nvtex_sequential_create(context, row, NULL, 5);
  for (int i = 0; i < 5; i++) nvtex_module_destroy(row[i]);
  EXPECT_OK();
  const size_t count = nvtex_module_num_parameters(model);
  for (size_t i = 0; i < count; i++) {
    NVTEXParameter p = {.struct_size = sizeof p};
    nvtex_module_parameter(model, i, &p);
    nvtex_module_assign_parameter(by_hand, i, p.value, NULL);
    // Deviations: what is added to residuals is smaller, by the root of twice the layers.
    const bool weight = strstr(p.name, "weight") && p.shape.ndim == 2;
    const bool residual = strstr(p.name, "proj.weight") || strstr(p.name, "fc2_weight");
    const size_t n = numel(p.shape);
    float *initial = host_memory(n * sizeof *initial);
    nvtex_module_initial_value(model, i, initial, n);
    EXPECT_OK();
    double squares = 0;
    for (size_t k = 0; k < n; k++) squares += (double)initial[k] * initial[k];
    const double expected = residual ? 0.023 / 2 : 0.023, got = sqrt(squares / (double)n);
    if (weight) CHECK(fabs(got / expected - 1) < 0.1, "%s: deviation %g", p.name, got);
  }
  compare_parameters(model, by_hand);
  NVTETensor inputs[3] = {nvtex_array_create(kNVTEInt32, kTokens, 2), NULL,
                          nvtex_array_create(kNVTEInt32, kTokens, 2)};
  set_batch(inputs, 3);
  const size_t bytes = ROWS * VOCABULARY * dtype_size(s->dtype);
  void *logits[2] = {host_memory(bytes), host_memory(bytes)};
  const float loss = pass(model, inputs, s->dtype, logits[0]);
  CHECK_FLOAT(pass(by_hand, inputs, s->dtype, logits[1]), loss);
  CHECK(!memcmp(logits[0], logits[1], bytes), "logits differ");
  nvtex_array_destroy(inputs[0]), nvtex_array_destroy(inputs[2]);
  nvtex_module_destroy(model), nvtex_module_destroy(by_hand);
  nvtex_context_destroy(context);
}

static void limit_of_logits(void) {
  if (!case_begin("A limit of the logits")) return;
  const Setup plain = {"float32", -1, kNVTEFloat32, true, false, NVTEX_SHARDING_NONE, 0, 0};
  float losses[2];
  size_t most[2];
  for (size_t i = 0; i < 2; i++) {
    const NVTEXContext context = nvtex_context_create(NULL);
    NVTEXLanguageModelConfig config = config_of(&plain);
    config.vocabulary_size = 32768;
    config.workspace_limit = i;  // 1 byte: the logits of 16 rows, the fewest, at a time.
    const NVTEXModule model = nvtex_language_model_create(context, &config, NULL);
    const size_t tokens[] = {32, LENGTH};
    NVTETensor inputs[3] = {nvtex_array_create(kNVTEInt32, tokens, 2), NULL,
                            nvtex_array_create(kNVTEInt32, tokens, 2)};
    int32_t numbers[32 * LENGTH];
    for (int k = 0; k < 32 * LENGTH; k++) numbers[k] = k * 37 % 32768;
    for (int k = 0; k < 3; k += 2) nvtex_array_set(inputs[k], numbers, sizeof numbers, NULL);
    const NVTETensor loss = nvtex_array_create(kNVTEFloat32, NULL, 0);
    nvtex_module_forward(model, inputs, 3, &loss, 1, NULL, NULL, NULL);
    nvtex_array_get(loss, &losses[i], sizeof losses[i], NULL);
    NVTEXMemoryUse memory = {.struct_size = sizeof memory};
    nvtex_context_memory(context, &memory);
    most[i] = memory.most_scratch;
    EXPECT_OK();
    nvtex_array_destroy(inputs[0]), nvtex_array_destroy(inputs[2]), nvtex_array_destroy(loss);
    nvtex_module_destroy(model);
    nvtex_context_destroy(context);
  }
  CHECK(fabsf(losses[1] - losses[0]) < 1e-4f, "losses %g and %g", (double)losses[0],
        (double)losses[1]);
  CHECK(most[1] < most[0], "%zu and %zu bytes", most[0], most[1]);
}

static void refused(NVTEXContext context, const NVTEXTrainerConfig *config, const char *part,
                    const char *other) {
  CHECK(!nvtex_trainer_create(context, config, NULL), "a trainer");
  EXPECT_ERROR(ANY_ERROR, "nvtex_trainer_create", part, other);
}

static void wrong_arguments(void) {
  if (!case_begin("Wrong arguments")) return;
  const Setup plain = {"float32", -1, kNVTEFloat32, true, false, NVTEX_SHARDING_NONE, 0, 0};
  const NVTEXContext context = nvtex_context_create(NULL), stranger = nvtex_context_create(NULL);
#define REFUSED(change, ...)                                                     \
  do {                                                                           \
    NVTEXLanguageModelConfig c = config_of(&plain);                              \
    c.change;                                                                    \
    CHECK(!nvtex_language_model_create(context, &c, NULL), "a model");           \
    EXPECT_ERROR(ANY_ERROR, "nvtex_language_model_create: config", __VA_ARGS__); \
  } while (0)
  REFUSED(vocabulary_size = 0, "config.vocabulary_size");
  REFUSED(num_layers = SIZE_MAX, "num_layers");
  REFUSED(layer.name = "twice", "layer.name");
  REFUSED(layer.decoder = true, "layer.decoder");
  REFUSED(layer.num_attention_heads = 5, "layer.");
  REFUSED(layer.hidden_dropout = 2, "config.layer.hidden_dropout");
  REFUSED(layer.dtype = kNVTEInt32, "config.layer.dtype");
  REFUSED(layer.hidden_size = 0, "config.layer.hidden_size");
  REFUSED(reserved[1] = 1, "reserved[1]");
  REFUSED(struct_size = 4, "struct_size");
#undef REFUSED
  const NVTEXLanguageModelConfig of_model = config_of(&plain);
  const NVTEXModule model = nvtex_language_model_create(context, &of_model, NULL);
  NVTEXTrainerConfig good;
  nvtex_trainer_config_init(&good, sizeof good);
  good.model = model;
  refused(context, NULL, "config", "");
  refused(stranger, &good, "config.model", "another context");
  NVTEXTrainerConfig config = good;
  config.model = NULL;
  refused(context, &config, "config.model", "");
  NVTEXOptimizerConfig optimizer = optimizer_of();
  config = good;
  config.optimizer = &optimizer;
  optimizer.accumulate = true;
  refused(context, &config, "config.optimizer.accumulate", "false");
  optimizer = optimizer_of();
  optimizer.accumulation_steps = 2;
  refused(context, &config, "config.optimizer.accumulation_steps", "2");
  optimizer = optimizer_of();
  optimizer.learning_rate = -1;
  refused(context, &config, "config.optimizer.learning_rate", "-1");
  NVTEXDataParallelConfig ranks;
  nvtex_data_parallel_config_init(&ranks, sizeof ranks);
  config = good;
  config.data_parallel = &ranks;
  ranks.accumulate = true;
  refused(context, &config, "config.data_parallel.accumulate", "false");
  ranks.accumulate = false;
  ranks.sharding = NVTEX_SHARDING_FULL;
  refused(context, &config, "config.data_parallel.sharding", "nvtex_context_set_grid");
  const NVTEXTrainer trainer = nvtex_trainer_create(context, &good, NULL);
  EXPECT_OK();
  CHECK(nvtex_trainer_loss(trainer, NULL) == 0, "a loss");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "trainer", "step");
  nvtex_trainer_step(trainer, NULL, 0, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_trainer_step");
  nvtex_trainer_destroy(trainer);
  nvtex_trainer_destroy(NULL);
  nvtex_module_destroy(model);
  nvtex_context_destroy(context), nvtex_context_destroy(stranger);
  EXPECT_OK();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  const NVTEDType dtype = on_cuda() ? kNVTEBFloat16 : kNVTEFloat32;
  const Setup setups[] = {
      {"high precision", -1, dtype, true, false, NVTEX_SHARDING_NONE, 0, 0},
      {"delayed scaling", NVTEX_RECIPE_DELAYED_SCALING, dtype, true, false, NVTEX_SHARDING_NONE, 0,
       0},
      {"FP8 blocks, a head of its own", NVTEX_RECIPE_BLOCK_SCALING, dtype, false, false,
       NVTEX_SHARDING_NONE, 0, 0},
      {"a grid", NVTEX_RECIPE_CURRENT_SCALING, dtype, true, true, NVTEX_SHARDING_NONE, 0, 0},
      {"a divided optimizer", -1, dtype, true, true, NVTEX_SHARDING_OPTIMIZER, 0, 0},
      {"experts", -1, dtype, true, false, NVTEX_SHARDING_NONE, 4, 0},
      {"experts with a capacity", -1, dtype, true, true, NVTEX_SHARDING_OPTIMIZER, 4, 1},
      {"experts with a capacity, delayed scaling", NVTEX_RECIPE_DELAYED_SCALING, dtype, true, true,
       NVTEX_SHARDING_FULL, 4, 0.75f},
  };
  for (size_t i = 0; i < COUNT(setups); i++) steps(&setups[i]);
  parts(&setups[0]);
  parts(&setups[2]);
  limit_of_logits();
  wrong_arguments();
  case_end();
  return test_end();
}
