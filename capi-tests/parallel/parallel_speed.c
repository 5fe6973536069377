// What ranks gain that a launcher has started, on GPUs by NCCL or on the CPU by shared memory:
// layers whose weights they share against the same layers on one rank, products beside what moves
// for them, attention over shared sequences, and a model that they divide. Without a launcher all
// of it is skipped.
//
//   nvtex-run -n 2 --gpus ./parallel_speed [layers] [products] [context] [model [NUMBER]]
//
// The default is all of them; the number is that of the model's layers, 32 by default.
//
// NVTE_COMM_OVERLAP says what runs beside products; the library reads it once, so that each of its
// values needs a run.
//
// Times are those of the host's clock on rank 0, from an idle device to an idle device, the median
// of the rounds. On the CPU sizes are small, so that the program itself is tested.
#define _POSIX_C_SOURCE 200809L

#include "ranks.h"

enum { ROUNDS = 5, MOST_STEPS = 20, MOST_PARAMETERS = 32 };

static NVTEXCommunicator g_world;
static int g_rank, g_size;
static size_t g_layers = 32;

typedef struct Timed {
  void (*body)(void *);
  void *argument;
  cudaStream_t stream;
} Timed;

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

// Seconds of one call, of which all ranks make as many.
static double seconds_of(Timed t) {
  double rounds[ROUNDS];
  for (int i = 0; i < 3; i++) t.body(t.argument);
  nvtex_stream_synchronize(t.stream);
  double once = seconds_now();
  t.body(t.argument);
  nvtex_stream_synchronize(t.stream);
  once = seconds_now() - once;
  // Rank 0 decides how many calls make 50 ms.
  int32_t count = (int32_t)fmin(MOST_STEPS, fmax(1, 0.05 / once));
  void *shared = device_copy(&count, sizeof count);
  nvtex_broadcast(g_world, shared, sizeof count, kNVTEByte, 0, NULL, t.stream);
  nvtex_memcpy_to_host(&count, shared, sizeof count, t.stream);
  nvtex_stream_synchronize(t.stream);
  nvtex_free(shared);
  for (int round = 0; round < ROUNDS; round++) {
    // A chip that has rested runs at its full clock.
    sleep_for(0.05);
    nvtex_barrier(g_world, NULL, t.stream);
    nvtex_stream_synchronize(t.stream);
    const double start = seconds_now();
    for (int i = 0; i < count; i++) t.body(t.argument);
    nvtex_stream_synchronize(t.stream);
    rounds[round] = (seconds_now() - start) / count;
  }
  qsort(rounds, ROUNDS, sizeof *rounds, by_size);
  RANK_OK(g_rank);
  return rounds[ROUNDS / 2];
}

// A tensor of random numbers, of which some repeat.
static NVTETensor random_array(NVTEDType dtype, const size_t *shape, size_t ndim) {
  enum { SOME = 1 << 16 };
  static uint16_t values[SOME];
  size_t count = 1;
  for (size_t i = 0; i < ndim; i++) count *= shape[i];
  for (size_t i = 0; i < SOME; i++) put_value(dtype, values, i, random_uniform(-1, 1));
  NVTETensor made = nvtex_array_create(dtype, shape, ndim);
  for (size_t i = 0; i < count; i += SOME) {
    const size_t part = count - i < SOME ? count - i : SOME;
    nvtex_memcpy_to_device((char *)nvte_tensor_data(made) + i * sizeof *values, values,
                           part * sizeof *values, NULL);
  }
  nvtex_stream_synchronize(NULL);
  RANK_OK(g_rank);
  return made;
}

// A module with what its steps read and write.
typedef struct Session {
  NVTEXContext context;
  NVTEXModule module;
  NVTEXRecipe recipe;
  NVTETensor inputs[3], input_grads[3], output, output_grad, grads[MOST_PARAMETERS];
  size_t num_inputs, num_grads;
  bool backward;
  cudaStream_t stream;
  NVTEXGraph graph;
} Session;

static NVTEXContext new_context(size_t tp, size_t cp) {
  NVTEXContext context = nvtex_context_create(NULL);
  if (tp * cp > 1) {
    NVTEXGridConfig config = {.struct_size = sizeof config, .tp = tp, .cp = cp};
    NVTEXGrid grid = nvtex_grid_create(g_world, &config);
    nvtex_context_set_grid(context, grid);
    nvtex_grid_destroy(grid);
  }
  return context;
}

typedef enum Recipe { BF16, DELAYED, CURRENT, RECIPES } Recipe;
static const char *const kRecipes[RECIPES] = {"BF16", "delayed", "current"};

static NVTEXRecipe new_recipe(Recipe recipe) {
  if (recipe == BF16) return NULL;
  NVTEXRecipeConfig config;
  nvtex_recipe_config_init(
      &config, sizeof config,
      recipe == CURRENT ? NVTEX_RECIPE_CURRENT_SCALING : NVTEX_RECIPE_DELAYED_SCALING);
  return nvtex_recipe_create(&config);
}

static void bind_gradients(Session *s) {
  s->num_grads = nvtex_module_num_parameters(s->module);
  if (!RANK_CHECK(s->num_grads <= MOST_PARAMETERS, "%zu parameters", s->num_grads)) abort();
  for (size_t i = 0; i < s->num_grads; i++) {
    NVTEXParameter found = {.struct_size = sizeof found};
    nvtex_module_parameter(s->module, i, &found);
    s->grads[i] = nvtex_array_create(found.dtype, found.shape.data, found.shape.ndim);
    nvtex_module_set_gradient(s->module, i, s->grads[i], false);
  }
  RANK_OK(g_rank);
}

static void pass(void *argument) {
  Session *s = argument;
  NVTEXTape tape = NULL;
  nvtex_context_begin(s->context, s->recipe, s->recipe ? NVTEX_CONTEXT_ENABLED : 0, s->stream);
  nvtex_module_forward(s->module, s->inputs, s->num_inputs, &s->output, 1, NULL,
                       s->backward ? &tape : NULL, s->stream);
  nvtex_context_end(s->context);
  if (!s->backward) return;
  nvtex_context_forward_update(s->context, s->stream);
  nvtex_module_backward(s->module, tape, &s->output_grad, 1, s->input_grads, s->num_inputs,
                        s->stream);
  nvtex_context_backward_update(s->context, s->stream);
  nvtex_tape_destroy(tape);
}

static void replay(void *argument) {
  Session *s = argument;
  nvtex_graph_replay(s->graph, s->stream);
}

static void end_session(Session *s) {
  nvtex_module_destroy(s->module);
  nvtex_recipe_destroy(s->recipe);
  nvtex_context_destroy(s->context);
  for (size_t i = 0; i < s->num_grads; i++) nvtex_array_destroy(s->grads[i]);
  for (size_t i = 0; i < s->num_inputs; i++) {
    nvtex_array_destroy(s->inputs[i]);
    nvtex_array_destroy(s->input_grads[i]);
  }
  nvtex_array_destroy(s->output);
  nvtex_array_destroy(s->output_grad);
  RANK_OK(g_rank);
}

// ---- Layers

typedef struct Layer {
  size_t hidden, heads, length, batch;
  Recipe recipe;
} Layer;

// By calls, and as replays of a graph.
typedef struct Times {
  double calls, graph;
} Times;

static Times time_layer(Layer l, size_t tp) {
  Session s = {.context = new_context(tp, 1), .recipe = new_recipe(l.recipe), .backward = true};
  NVTEXTransformerLayerConfig c;
  nvtex_transformer_layer_config_init(&c, sizeof c);
  c.mlp.hidden_size = l.hidden;
  c.mlp.ffn_hidden_size = 4 * l.hidden;
  c.attention.num_attention_heads = c.attention.num_gqa_groups = l.heads;
  c.mlp.dtype = c.attention.dtype = kNVTEBFloat16;
  if (tp > 1) {
    c.mlp.parallel = c.attention.parallel = (NVTEXParallelConfig){.sequence_parallel = true};
  }
  s.module = nvtex_transformer_layer_create(s.context, &c, NULL);
  RANK_OK(g_rank);
  bind_gradients(&s);
  const size_t shape[] = {l.length / tp, l.batch, l.hidden};
  s.num_inputs = 1;
  s.inputs[0] = random_array(kNVTEBFloat16, shape, 3);
  s.output_grad = random_array(kNVTEBFloat16, shape, 3);
  s.input_grads[0] = nvtex_array_create(kNVTEBFloat16, shape, 3);
  s.output = nvtex_array_create(kNVTEBFloat16, shape, 3);
  s.stream = nvtex_stream_create();
  Times times = {.calls = seconds_of((Timed){pass, &s, s.stream})};
  if (on_cuda()) {
    nvtex_graph_begin(s.stream);
    pass(&s);
    s.graph = nvtex_graph_end(s.stream);
    times.graph = seconds_of((Timed){replay, &s, s.stream});
    nvtex_graph_destroy(s.graph);
  }
  nvtex_stream_destroy(s.stream);
  end_session(&s);
  return times;
}

static void layers(void) {
  const size_t ranks = (size_t)g_size;
  if (g_rank == 0) {
    printf("Layers, forward and backward pass: 1 rank, %d ranks, share of %d times the speed\n",
           g_size, g_size);
  }
  for (int i = 0; i < (on_cuda() ? 2 : 1) * RECIPES; i++) {
    Layer l = {.hidden = 128, .heads = 4, .length = 64, .batch = 1};
    if (on_cuda()) l = (Layer){.hidden = i < RECIPES ? 4096 : 8192, .length = 2048, .batch = 4};
    if (on_cuda()) l.heads = l.hidden / 128;
    l.recipe = (Recipe)(i % RECIPES);
    const Times alone = time_layer(l, 1), shared = time_layer(l, ranks);
    if (g_rank) continue;
    printf("  hidden %5zu, %zu x %zu tokens, %-8s %9.3f ms %9.3f ms  %5.1f %%", l.hidden, l.batch,
           l.length, kRecipes[l.recipe], alone.calls * 1e3, shared.calls * 1e3,
           100 * alone.calls / shared.calls / g_size);
    if (on_cuda()) {
      printf(", as a graph %9.3f ms %9.3f ms  %5.1f %%", alone.graph * 1e3, shared.graph * 1e3,
             100 * alone.graph / shared.graph / g_size);
    }
    printf("\n");
    fflush(stdout);
  }
}

// ---- Products

typedef struct Product {
  size_t rows, inputs, outputs;
  bool row;
  Recipe recipe;
} Product;

// A linear layer of the sizes of a rank, alone or with what the ranks exchange.
static double time_product(Product p, bool alone) {
  const size_t tp = (size_t)g_size;
  Session s = {.context = new_context(alone ? 1 : tp, 1), .recipe = new_recipe(p.recipe)};
  NVTEXParallelOptions options = {.struct_size = sizeof options};
  options.mode = p.row ? NVTEX_PARALLEL_ROW : NVTEX_PARALLEL_COLUMN;
  NVTEXLinearConfig c;
  nvtex_linear_config_init(&c, sizeof c);
  c.in_features = p.row && alone ? p.inputs / tp : p.inputs;
  c.out_features = !p.row && alone ? p.outputs / tp : p.outputs;
  c.bias = false;
  c.dtype = kNVTEBFloat16;
  if (!alone) c.parallel = (NVTEXParallelConfig){.sequence_parallel = true};
  if (!alone) c.parallel.options = &options;
  s.module = nvtex_linear_create(s.context, &c, NULL);
  const size_t in[] = {p.row || alone ? p.rows : p.rows / tp, p.row ? p.inputs / tp : p.inputs};
  const size_t out[] = {!p.row || alone ? p.rows : p.rows / tp, p.row ? p.outputs : p.outputs / tp};
  s.num_inputs = 1;
  s.inputs[0] = random_array(kNVTEBFloat16, in, 2);
  s.output = nvtex_array_create(kNVTEBFloat16, out, 2);
  const double time = seconds_of((Timed){.body = pass, .argument = &s});
  end_session(&s);
  return time;
}

typedef struct Moved {
  char *small, *large;
  size_t count;
  bool row, fp8;
} Moved;

static void move(void *argument) {
  const Moved *m = argument;
  if (m->row) {
    nvtex_reduce_scatter(g_world, m->large, m->small, m->count, kNVTEBFloat16, NVTEX_REDUCTION_SUM,
                         NULL, NULL);
  } else {
    nvtex_all_gather(g_world, m->small, m->large, m->count, m->fp8 ? kNVTEByte : kNVTEBFloat16,
                     NULL, NULL);
  }
}

static void products(void) {
  static const struct {
    const char *name;
    size_t inputs, outputs;
    bool row;
  } kProducts[] = {{"qkv: gather + product", 1, 3, false},
                   {"fc1: gather + product", 1, 4, false},
                   {"proj: product + sum", 1, 1, true},
                   {"fc2: product + sum", 4, 1, true}};
  if (g_rank == 0) {
    printf(
        "Products of ranks that share rows: product alone, exchange alone, both, and both by the "
        "longer of the two\n");
  }
  for (int i = 0; i < 16; i++) {
    const size_t k = (size_t)i % COUNT(kProducts), unit = !on_cuda() ? 64 : i / 8 ? 8192 : 4096;
    if (!on_cuda() && i >= 8) break;
    Product p = {on_cuda() ? 8192 : 128, unit * kProducts[k].inputs, unit * kProducts[k].outputs,
                 kProducts[k].row, i / 4 % 2 ? DELAYED : BF16};
    Moved m = {.row = p.row, .fp8 = p.recipe != BF16};
    m.count = p.rows / (size_t)g_size * (p.row ? p.outputs : p.inputs);
    m.small = nvtex_malloc(m.count * 2);
    m.large = nvtex_malloc(m.count * 2 * (size_t)g_size);
    const double product = time_product(p, true),
                 moved = seconds_of((Timed){.body = move, .argument = &m});
    const double both = time_product(p, false);
    nvtex_free(m.small);
    nvtex_free(m.large);
    if (g_rank) continue;
    printf("  %5zu x %5zu x %5zu %-8s %-22s %8.1f us %8.1f us %8.1f us  %.2f\n", p.rows, p.inputs,
           p.outputs, kRecipes[p.recipe], kProducts[k].name, product * 1e6, moved * 1e6, both * 1e6,
           both / fmax(product, moved));
    fflush(stdout);
  }
}

// ---- Attention

static double time_attention(size_t length, size_t cp, NVTEXContextParallelKind kind,
                             bool backward) {
  Session s = {.context = new_context(1, cp), .backward = backward, .num_inputs = 3};
  NVTEXAttentionConfig c;
  nvtex_attention_config_init(&c, sizeof c);
  c.num_attention_heads = 32;
  c.num_gqa_groups = 8;
  c.head_dim_qk = c.head_dim_v = 128;
  c.attn_mask_type = NVTE_CAUSAL_MASK;
  c.dtype = kNVTEBFloat16;
  c.parallel.context_parallel_size = cp > 1 ? 0 : 1;
  c.context_parallel_kind = kind;
  s.module = nvtex_attention_create(s.context, &c, NULL);
  RANK_OK(g_rank);
  for (size_t i = 0; i < 3; i++) {
    const size_t shape[] = {length / cp, 1, i ? c.num_gqa_groups : c.num_attention_heads, 128};
    s.inputs[i] = random_array(kNVTEBFloat16, shape, 4);
    s.input_grads[i] = nvtex_array_create(kNVTEBFloat16, shape, 4);
  }
  const size_t shape[] = {length / cp, 1, (size_t)c.num_attention_heads, 128};
  s.output = nvtex_array_create(kNVTEBFloat16, shape, 4);
  s.output_grad = random_array(kNVTEBFloat16, shape, 4);
  const double time = seconds_of((Timed){.body = pass, .argument = &s});
  end_session(&s);
  return time;
}

static void context(void) {
  static const struct {
    const char *name;
    NVTEXContextParallelKind kind;
  } kKinds[] = {{"all-gather", NVTEX_CONTEXT_PARALLEL_ALL_GATHER},
                {"all-to-all", NVTEX_CONTEXT_PARALLEL_ALL_TO_ALL},
                {"ring", NVTEX_CONTEXT_PARALLEL_RING}};
  if (g_rank == 0) {
    printf(
        "Causal attention, 32 heads and 8 groups of 128, BF16: forward, both; share of %d times "
        "the speed\n",
        g_size);
  }
  for (size_t length = on_cuda() ? 32768 : 64; length <= (on_cuda() ? 131072 : 64); length *= 4) {
    double alone[2];
    for (int b = 0; b < 2; b++) alone[b] = time_attention(length, 1, kKinds[0].kind, b);
    if (g_rank == 0) {
      printf("  %6zu tokens, 1 rank      %9.2f ms %9.2f ms\n", length, alone[0] * 1e3,
             alone[1] * 1e3);
    }
    for (size_t k = 0; k < COUNT(kKinds); k++) {
      double shared[2];
      for (int b = 0; b < 2; b++) {
        shared[b] = time_attention(length, (size_t)g_size, kKinds[k].kind, b);
      }
      if (g_rank) continue;
      printf("  %6zu tokens, %-11s %9.2f ms %9.2f ms  %5.1f %% %5.1f %%\n", length, kKinds[k].name,
             shared[0] * 1e3, shared[1] * 1e3, 100 * alone[0] / shared[0] / g_size,
             100 * alone[1] / shared[1] / g_size);
      fflush(stdout);
    }
  }
}

// ---- A model that ranks divide fully

// Llama-3.1-8B, or as much of it as memory has room for; the whole vocabulary on each rank.
typedef struct Model {
  size_t layers, hidden, ffn, heads, groups, vocabulary, length;
} Model;

// Operations of a training step for each token: 6 for each weight of a product and 12 for each pair
// of a query and a key in each dimension, of which a causal mask leaves half.
static double model_flops(Model m) {
  const double h = (double)m.hidden, kv = h * (double)m.groups / (double)m.heads;
  const double layer = 2 * h * h + 2 * h * kv + 3 * h * (double)m.ffn;
  const double weights = (double)m.layers * layer + h * (double)m.vocabulary;
  return 6 * weights + 6 * (double)m.layers * h * (double)m.length;
}

typedef struct Training {
  NVTEXTrainer trainer;
  NVTETensor inputs[3];
  NVTEXStep step;
  cudaStream_t stream;
} Training;

static void train_step(void *argument) {
  const Training *t = argument;
  nvtex_trainer_step(t->trainer, t->inputs, 3, &t->step, t->stream);
  nvtex_stream_synchronize(t->stream);
}

// With `codes` the weights of products exist in FP8 alone, so that codes are gathered.
static double time_model(Model m, Recipe format, bool codes, float *loss) {
  Training t = {.stream = nvtex_stream_create(), .step = {.struct_size = sizeof t.step}};
  const NVTEXContext context = nvtex_context_create(NULL);
  const NVTEXGridConfig all = {.struct_size = sizeof all};
  const NVTEXGrid grid = nvtex_grid_create(g_world, &all);
  nvtex_context_set_grid(context, grid);
  const NVTEXRecipe recipe = new_recipe(format);
  NVTEXLanguageModelConfig c;
  nvtex_language_model_config_init(&c, sizeof c);
  c.num_layers = m.layers, c.vocabulary_size = m.vocabulary, c.tied_embeddings = false;
  c.workspace_limit = 1 << 30;
  c.layer.hidden_size = m.hidden, c.layer.ffn_hidden_size = m.ffn;
  c.layer.num_attention_heads = m.heads, c.layer.num_gqa_groups = m.groups;
  c.layer.activation = SWIGLU, c.layer.norm_type = RMSNorm;
  c.layer.bias = false, c.layer.dtype = kNVTEBFloat16;
  const unsigned flags = NVTEX_CONTEXT_ENABLED | NVTEX_CONTEXT_QUANTIZED_WEIGHTS;
  if (codes) nvtex_context_begin(context, recipe, flags, NULL);
  const NVTEXModule model = nvtex_language_model_create(context, &c, t.stream);
  if (codes) nvtex_context_end(context);
  RANK_OK(g_rank);
  NVTEXDataParallelConfig ranks;
  nvtex_data_parallel_config_init(&ranks, sizeof ranks);
  ranks.sharding = NVTEX_SHARDING_FULL, ranks.wire_dtype = kNVTEBFloat16;
  NVTEXTrainerConfig config;
  nvtex_trainer_config_init(&config, sizeof config);
  config.model = model, config.recipe = recipe, config.data_parallel = &ranks;
  t.trainer = nvtex_trainer_create(context, &config, t.stream);
  RANK_OK(g_rank);
  int32_t *tokens = malloc(m.length * sizeof *tokens);
  for (int i = 0; i < 3; i += 2) {
    for (size_t k = 0; k < m.length; k++) {
      // Ranks have other tokens, though the same random numbers.
      const size_t token = (size_t)random_uniform(0, (double)m.vocabulary - 1);
      tokens[k] = (int32_t)((token + 7919 * (size_t)g_rank) % m.vocabulary);
    }
    t.inputs[i] = nvtex_array_create(kNVTEInt32, (size_t[]){1, m.length}, 2);
    nvtex_array_set(t.inputs[i], tokens, m.length * sizeof *tokens, t.stream);
  }
  free(tokens);
  const size_t angles[] = {m.length, 1, 1, m.hidden / m.heads};
  t.step.rotary_frequencies = nvtex_array_create(kNVTEFloat32, angles, 4);
  nvtex_rotary_frequencies(t.step.rotary_frequencies, NULL, t.stream);
  const double time = seconds_of((Timed){.body = train_step, .argument = &t});
  *loss = nvtex_trainer_loss(t.trainer, t.stream);
  nvtex_trainer_destroy(t.trainer);
  nvtex_module_destroy(model);
  nvtex_recipe_destroy(recipe);
  nvtex_context_destroy(context);
  nvtex_grid_destroy(grid);
  for (int i = 0; i < 3; i += 2) nvtex_array_destroy(t.inputs[i]);
  nvtex_array_destroy(t.step.rotary_frequencies);
  nvtex_stream_destroy(t.stream);
  RANK_OK(g_rank);
  return time;
}

static void model(void) {
  Model m = {g_layers, 4096, 14336, 32, 8, 128256, 8192};
  if (!on_cuda()) m = (Model){2, 128, 256, 4, 2, 512, 64};
  if (g_rank == 0) {
    printf(
        "Llama, %zu layers of %zu, vocabulary of %zu, divided fully, %zu tokens a rank: a step\n",
        m.layers, m.hidden, m.vocabulary, m.length);
  }
  for (int i = 0; i < 2 * RECIPES; i++) {
    const Recipe recipe = (Recipe)(i / 2);
    const bool codes = i % 2;
    if (codes && recipe == BF16) continue;
    float loss;
    const double time = time_model(m, recipe, codes, &loss);
    RANK_CHECK(isfinite(loss), "loss %g", loss);
    if (g_rank) continue;
    const double rate = (double)m.length / time;
    char what[32];
    snprintf(what, sizeof what, "%s%s", kRecipes[recipe], codes ? ", weights in FP8" : "");
    printf("  %-23s %9.1f ms, %7.0f tokens/s and %4.0f TFLOP/s a rank, loss %.3f\n", what,
           time * 1e3, rate, rate * model_flops(m) * 1e-12, loss);
    fflush(stdout);
  }
}

int main(int argc, char **argv) {
  if (!getenv("RANK") && !getenv("OMPI_COMM_WORLD_RANK")) {
    printf("no launcher has started this program\n");
    return TEST_SKIP;
  }
  char *none[] = {argv[0], NULL};
  test_begin(1, none);
  // Its multicast is not used here.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  NVTEXCommunicatorConfig config = communicator_config("world", 60);
  config.staging_bytes = 0;
  g_world = nvtex_communicator_from_environment(&config);
  if (!g_world) {
    fprintf(stderr, "%s\n", nvtex_last_error());
    return TEST_FAIL;
  }
  g_rank = nvtex_communicator_rank(g_world);
  g_size = nvtex_communicator_size(g_world);
  const char *overlap = getenv("NVTE_COMM_OVERLAP");
  if (g_rank == 0) printf("NVTE_COMM_OVERLAP=%s\n", overlap ? overlap : "0");
  static const struct {
    const char *name;
    void (*body)(void);
  } kParts[] = {{"layers", layers}, {"products", products}, {"context", context}, {"model", model}};
  for (size_t i = 0; i < COUNT(kParts); i++) {
    bool wanted = argc == 1;
    for (int k = 1; k < argc; k++) {
      wanted |= strcmp(argv[k], kParts[i].name) == 0;
      if (atoi(argv[k]) > 0) g_layers = (size_t)atoi(argv[k]);
    }
    if (wanted) kParts[i].body();
  }
  nvtex_communicator_destroy(g_world);
  RANK_OK(g_rank);
  return atomic_load(&g_bad) ? TEST_FAIL : TEST_PASS;
}
