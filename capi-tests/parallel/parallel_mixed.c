// Ranks that share weights, sequences and batches at once: a layer of a Transformer on grids of up
// to 2 x 2 x 2 ranks against the same layer on one rank. Compared are outputs, gradients of inputs,
// and the sum of the gradients of every parameter. Then what ranks of fully sharded data
// parallelism have in memory. What ranks exchange runs beside products.
#define _POSIX_C_SOURCE 200809L

#include "threads.h"

enum {
  MOST = 8,
  LENGTH = 64,
  BATCH = 4,
  HIDDEN = 128,
  FFN = 256,
  HEADS = 8,
  GROUPS = 4,
  ALL = LENGTH * BATCH * HIDDEN,
  MAX_PARAMETERS = 24,
  MAX_WEIGHT = 2 * FFN * HIDDEN,
};

typedef enum Recipe { FLOAT32, BFLOAT16, DELAYED, RECIPES } Recipe;
static const char *const kRecipes[RECIPES] = {"Float32", "BFloat16", "delayed scaling"};
// Of differences from one rank: their root mean square against that of the values, and the largest
// one against the largest value. FP8 differs by a step where sums are rounded in another order.
static const double kTolerance[RECIPES][2] = {{1e-5, 1e-5}, {1.6e-2, 3e-2}, {0.2, 0.25}};

// A rank's place: its numbers among those that share weights, sequences and batches.
typedef struct Place {
  size_t tp, cp, dp, t, c, d;
  bool rows;
} Place;

typedef struct Result {
  double output[ALL], input_grad[ALL];
  size_t parameters;
  double grads[MAX_PARAMETERS][MAX_WEIGHT];
} Result;

static Recipe g_recipe;
static Place g_sizes;
static Result g_serial;

static NVTEDType dtype(void) { return g_recipe == FLOAT32 ? kNVTEFloat32 : kNVTEBFloat16; }

static double value(int which, size_t i) {
  uint64_t r = mixed((uint64_t)i * 0x9E3779B97F4A7C15u + (uint64_t)which * 0xD1B54A32D192ED03u + 1);
  return (double)(r >> 11) * 0x1p-52 - 1;
}

static size_t own_length(Place p) { return LENGTH / p.cp / (p.rows ? p.tp : 1); }
static size_t own_count(Place p) { return own_length(p) * (BATCH / p.dp) * HIDDEN; }

// The element of the whole that is the element i of the part of a rank: of 2 P chunks of each
// sequence the ranks have one from the front and one from the back.
static size_t in_whole(Place p, size_t i) {
  const size_t batch = BATCH / p.dp, chunk = LENGTH / (2 * p.cp);
  const size_t column = i % HIDDEN, sequence = i / HIDDEN % batch;
  size_t row = i / HIDDEN / batch + (p.rows ? p.t * own_length(p) : 0);
  row = (row < chunk ? p.c : 2 * p.cp - 1 - p.c) * chunk + row % chunk;
  return (row * BATCH + p.d * batch + sequence) * HIDDEN + column;
}

static NVTETensor new_part(Place p, int which) {
  const size_t count = own_count(p);
  NVTETensor made = nvtex_array_create(dtype(), (size_t[]){own_length(p), BATCH / p.dp, HIDDEN}, 3);
  char *host = calloc(count, dtype_size(dtype()));
  if (!host) abort();
  for (size_t i = 0; which && i < count; i++) {
    put_value(dtype(), host, i, value(which, in_whole(p, i)));
  }
  nvtex_array_set(made, host, count * dtype_size(dtype()), NULL);
  free(host);
  return made;
}

static double *values_at(const void *device, NVTEDType of, size_t count) {
  char *host = malloc(count * dtype_size(of));
  double *values = malloc(count * sizeof *values);
  if (!host || !values) abort();
  nvtex_memcpy_to_host(host, device, count * dtype_size(of), NULL);
  nvtex_stream_synchronize(NULL);
  for (size_t i = 0; i < count; i++) values[i] = get_value(of, host, i);
  free(host);
  return values;
}

// The element of a whole parameter that is the element i of a rank's part.
static size_t in_parameter(const NVTEXParameter *p, size_t i) {
  const size_t cols = p->shape.ndim > 1 ? p->shape.data[1] : 1;
  size_t at[2] = {i / cols, i % cols}, *shared = &at[p->shared_dimension];
  for (size_t k = 0; k < p->num_pieces; k++) {
    const NVTEXParameterPiece *piece = &p->pieces[k];
    if (*shared < piece->part || *shared >= piece->part + piece->length) continue;
    *shared += piece->whole - piece->part;
    break;
  }
  return at[0] * (p->whole_shape.ndim > 1 ? p->whole_shape.data[1] : 1) + at[1];
}

static NVTEXModule new_layer(NVTEXContext context, Place p) {
  NVTEXTransformerLayerConfig c;
  nvtex_transformer_layer_config_init(&c, sizeof c);
  c.mlp.hidden_size = HIDDEN;
  c.mlp.ffn_hidden_size = FFN;
  c.mlp.activation = SWIGLU;
  c.mlp.seed = 3;
  c.mlp.init_std = c.mlp.output_init_std = 0.1f;
  c.attention.num_attention_heads = HEADS;
  c.attention.num_gqa_groups = GROUPS;
  c.mlp.dtype = c.attention.dtype = dtype();
  c.mlp.parallel = c.attention.parallel = (NVTEXParallelConfig){.sequence_parallel = p.rows};
  return nvtex_transformer_layer_create(context, &c, NULL);
}

// Passes of a rank; of one alone the results are kept, others compare theirs with them.
static void check(const char *what, int rank, const double *got, const double *expected,
                  size_t count, size_t (*place)(const void *, size_t), const void *of) {
  double error = 0, square = 0, worst = 0, most = 0;
  for (size_t i = 0; i < count; i++) {
    const double e = expected[place(of, i)], off = fabs(got[i] - e);
    error += off * off;
    square += e * e;
    if (!(off <= worst)) worst = off;
    if (fabs(e) > most) most = fabs(e);
  }
  // Tensor cores take Float32 as TF32.
  static const double kTensorCores[2] = {1e-3, 4e-3};
  const double *limit = on_cuda() && g_recipe == FLOAT32 ? kTensorCores : kTolerance[g_recipe];
  RANK_CHECK(sqrt(error) <= limit[0] * sqrt(square) + 1e-12 && worst <= limit[1] * most + 1e-12,
             "rank %d: %s: off by %g, at most %g of %g", rank, what,
             sqrt(error / (square + 1e-300)), worst, most);
}

static size_t place_of_row(const void *place, size_t i) {
  return in_whole(*(const Place *)place, i);
}
static size_t place_of_weight(const void *p, size_t i) { return in_parameter(p, i); }

static void passes(NVTEXCommunicator world, int rank, Place p, bool serial) {
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXGridConfig sizes = {.struct_size = sizeof sizes, .tp = p.tp, .cp = p.cp, .dp = p.dp};
  NVTEXGrid grid = nvtex_grid_create(world, &sizes);
  nvtex_context_set_grid(context, grid);
  NVTEXModule layer = new_layer(context, p);
  NVTEXDataParallelConfig config;
  nvtex_data_parallel_config_init(&config, sizeof config);
  config.gradients = NVTEX_GRADIENTS_SUM;
  NVTEXCommunicator ranks = nvtex_grid_communicator(grid, NVTEX_GRID_DP_CP);
  NVTEXDataParallel engine = nvtex_data_parallel_create(context, &config, ranks, &layer, 1, NULL);
  // An optimizer that never makes a step tells where the gradients are.
  NVTEXOptimizerConfig o;
  nvtex_optimizer_config_init(&o, sizeof o, NVTEX_UPDATE_SGD);
  o.data_parallel = engine;
  NVTEXOptimizer optimizer = nvtex_optimizer_create(context, &o, &layer, 1, NULL);
  RANK_OK(rank);
  NVTETensor x = new_part(p, 1), dy = new_part(p, 2), y = new_part(p, 0), dx = new_part(p, 0);
  NVTEXRecipe recipe = NULL;
  if (g_recipe == DELAYED) {
    NVTEXRecipeConfig of_recipe;
    nvtex_recipe_config_init(&of_recipe, sizeof of_recipe, NVTEX_RECIPE_DELAYED_SCALING);
    recipe = nvtex_recipe_create(&of_recipe);
  }
  for (int step = 0; step < (recipe ? 3 : 1); step++) {
    NVTEXTape tape = NULL;
    if (recipe) nvtex_context_begin(context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
    nvtex_module_forward(layer, &x, 1, &y, 1, NULL, &tape, NULL);
    RANK_OK(rank);
    if (recipe) nvtex_context_end(context);
    nvtex_context_forward_update(context, NULL);
    nvtex_module_backward(layer, tape, &dy, 1, &dx, 1, NULL);
    nvtex_context_backward_update(context, NULL);
    nvtex_tape_destroy(tape);
    nvtex_data_parallel_reduce(engine, NULL);
    RANK_OK(rank);
  }
  double *output = values_at(nvte_tensor_data(y), dtype(), own_count(p));
  double *input_grad = values_at(nvte_tensor_data(dx), dtype(), own_count(p));
  if (serial) {
    memcpy(g_serial.output, output, sizeof g_serial.output);
    memcpy(g_serial.input_grad, input_grad, sizeof g_serial.input_grad);
  }
  check("output", rank, output, g_serial.output, own_count(p), place_of_row, &p);
  check("gradient of x", rank, input_grad, g_serial.input_grad, own_count(p), place_of_row, &p);
  const size_t parameters = nvtex_module_num_parameters(layer);
  RANK_CHECK(parameters > 8 && parameters <= MAX_PARAMETERS, "%zu parameters", parameters);
  for (size_t i = 0; i < parameters; i++) {
    NVTEXParameter found = {.struct_size = sizeof found};
    nvtex_module_parameter(layer, i, &found);
    NVTEXOptimizerParameter of = {.struct_size = sizeof of};
    nvtex_optimizer_parameter(optimizer, i, &of);
    const size_t count = numel(found.shape);
    double *grad = values_at(of.gradient.data_ptr, kNVTEFloat32, count);
    if (serial) memcpy(g_serial.grads[i], grad, count * sizeof *grad);
    check(found.name, rank, grad, g_serial.grads[i], count, place_of_weight, &found);
    free(grad);
  }
  RANK_OK(rank);
  free(output);
  free(input_grad);
  const NVTETensor arrays[] = {x, dy, y, dx};
  for (size_t i = 0; i < COUNT(arrays); i++) nvtex_array_destroy(arrays[i]);
  nvtex_optimizer_destroy(optimizer);
  nvtex_data_parallel_destroy(engine);
  nvtex_module_destroy(layer);
  nvtex_context_destroy(context);
  if (recipe) nvtex_recipe_destroy(recipe);
  nvtex_grid_destroy(grid);
  RANK_OK(rank);
}

static void on_grid(NVTEXCommunicator world, int rank) {
  const size_t r = (size_t)rank;
  Place p = g_sizes;
  p.t = r % p.tp, p.c = r / p.tp % p.cp, p.d = r / (p.tp * p.cp);
  passes(world, rank, p, p.tp * p.cp * p.dp == 1);
}

// ---- What a rank has in memory

enum { WIDTH = 256, LAYERS = 12, MIDDLE = 64 };

static NVTEXSharding g_sharding;
static size_t g_used[MOST];

static void use_memory(NVTEXCommunicator world, int rank) {
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXModule layers[LAYERS];
  for (size_t i = 0; i < LAYERS; i++) {
    NVTEXLinearConfig c;
    nvtex_linear_config_init(&c, sizeof c);
    c.in_features = c.out_features = WIDTH;
    c.seed = i;
    layers[i] = nvtex_linear_create(context, &c, NULL);
  }
  NVTEXModule model = nvtex_sequential_create(context, layers, NULL, LAYERS);
  for (size_t i = 0; i < LAYERS; i++) nvtex_module_destroy(layers[i]);
  NVTEXDataParallelConfig config;
  nvtex_data_parallel_config_init(&config, sizeof config);
  config.sharding = g_sharding;
  NVTEXDataParallel engine = nvtex_data_parallel_create(context, &config, world, &model, 1, NULL);
  NVTEXOptimizerConfig o;
  nvtex_optimizer_config_init(&o, sizeof o, NVTEX_UPDATE_SGD);
  o.data_parallel = engine;
  NVTEXOptimizer optimizer = nvtex_optimizer_create(context, &o, &model, 1, NULL);
  NVTETensor arrays[4];
  for (size_t i = 0; i < COUNT(arrays); i++) {
    arrays[i] = nvtex_array_create(kNVTEFloat32, (size_t[]){MIDDLE, WIDTH}, 2);
  }
  NVTEXMemoryUse before = {.struct_size = sizeof before}, during = {.struct_size = sizeof during};
  nvtex_context_memory(context, &before);
  g_used[rank] = before.scratch + before.tape + before.persistent;
  NVTEXTape tape = NULL;
  nvtex_module_forward(model, &arrays[0], 1, &arrays[1], 1, NULL, &tape, NULL);
  nvtex_context_memory(context, &during);
  // Behind a pass nothing is left but what the tape has: the inputs of layers.
  const size_t inputs = (size_t)LAYERS * MIDDLE * WIDTH * sizeof(float);
  RANK_CHECK(during.scratch + during.tape <= inputs + (64 << 10), "rank %d: a tape of %zu bytes",
             rank, during.scratch + during.tape);
  nvtex_module_backward(model, tape, &arrays[2], 1, &arrays[3], 1, NULL);
  nvtex_tape_destroy(tape);
  nvtex_data_parallel_reduce(engine, NULL);
  nvtex_optimizer_step(optimizer, NULL);
  RANK_OK(rank);
  NVTEXParameter found = {.struct_size = sizeof found};
  nvtex_module_parameter(model, 0, &found);
  const bool full = g_sharding == NVTEX_SHARDING_FULL;
  RANK_CHECK((nvte_tensor_data(found.value) == NULL) == full, "rank %d: a value", rank);
  // A program may have all of it for a while, and loses nothing by it.
  nvtex_data_parallel_gather(engine, NULL);
  nvtex_context_memory(context, &during);
  const size_t all = (size_t)LAYERS * WIDTH * WIDTH * sizeof(float);
  RANK_CHECK(nvte_tensor_data(found.value) != NULL, "rank %d: no value", rank);
  RANK_CHECK(!full || during.tape >= all, "rank %d: %zu bytes", rank, during.tape);
  nvtex_data_parallel_release(engine, NULL);
  nvtex_context_memory(context, &during);
  RANK_CHECK(during.tape + during.scratch <= 64 << 10, "rank %d: %zu bytes stay", rank,
             during.tape);
  for (size_t i = 0; i < COUNT(arrays); i++) nvtex_array_destroy(arrays[i]);
  nvtex_optimizer_destroy(optimizer);
  nvtex_data_parallel_destroy(engine);
  nvtex_module_destroy(model);
  nvtex_context_destroy(context);
  RANK_OK(rank);
}

static uint16_t g_gradient[2][MOST][MIDDLE * WIDTH];

// Layers of experts between others, which take the memory of their weights.
static void run_experts(NVTEXCommunicator world, int rank) {
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXModule layers[3];
  NVTEXMoeConfig moe;
  nvtex_moe_config_init(&moe, sizeof moe);
  moe.hidden_size = WIDTH;
  moe.ffn_hidden_size = MIDDLE;
  moe.dtype = kNVTEBFloat16;
  moe.num_experts = 4;
  moe.top_k = 2;
  moe.init_std = moe.output_init_std = moe.router_init_std = 0.1f;
  for (size_t i = 0; i < COUNT(layers); i++) {
    moe.seed = i;
    layers[i] = nvtex_moe_create(context, &moe, NULL);
  }
  NVTEXModule model = nvtex_sequential_create(context, layers, NULL, COUNT(layers));
  for (size_t i = 0; i < COUNT(layers); i++) nvtex_module_destroy(layers[i]);
  NVTEXDataParallelConfig config;
  nvtex_data_parallel_config_init(&config, sizeof config);
  config.sharding = g_sharding;
  NVTEXDataParallel engine = nvtex_data_parallel_create(context, &config, world, &model, 1, NULL);
  NVTETensor arrays[4];
  static _Thread_local uint16_t values[MIDDLE * WIDTH];
  for (size_t i = 0; i < COUNT(arrays); i++) {
    arrays[i] = nvtex_array_create(kNVTEBFloat16, (size_t[]){MIDDLE, WIDTH}, 2);
    for (size_t j = 0; j < COUNT(values); j++) {
      put_value(kNVTEBFloat16, values, j, value((int)i * 8 + rank, j));
    }
    nvtex_array_set(arrays[i], values, sizeof values, NULL);
  }
  NVTEXTape tape = NULL;
  nvtex_module_forward(model, &arrays[0], 1, &arrays[1], 1, NULL, &tape, NULL);
  if (nvtex_last_status() == NVTEX_UNSUPPORTED) {
    nvtex_clear_error();  // products of experts need Hopper
  } else {
    // Behind this, weights come back to another place.
    nvtex_data_parallel_gather(engine, NULL);
    nvtex_data_parallel_release(engine, NULL);
    nvtex_module_backward(model, tape, &arrays[2], 1, &arrays[3], 1, NULL);
    nvtex_array_get(arrays[3], g_gradient[g_sharding == NVTEX_SHARDING_FULL][rank], sizeof values,
                    NULL);
  }
  nvtex_tape_destroy(tape);
  for (size_t i = 0; i < COUNT(arrays); i++) nvtex_array_destroy(arrays[i]);
  nvtex_data_parallel_destroy(engine);
  nvtex_module_destroy(model);
  nvtex_context_destroy(context);
  RANK_OK(rank);
}

// What only modules can do that are whole.
static void refuse(NVTEXCommunicator world, int rank) {
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXLinearConfig c;
  nvtex_linear_config_init(&c, sizeof c);
  c.name = "layer";
  c.in_features = c.out_features = MIDDLE;
  NVTEXModule layer = nvtex_linear_create(context, &c, NULL);
  NVTEXDataParallelConfig config;
  nvtex_data_parallel_config_init(&config, sizeof config);
  config.sharding = NVTEX_SHARDING_FULL;
  NVTEXDataParallel engine = nvtex_data_parallel_create(context, &config, world, &layer, 1, NULL);
  RANK_OK(rank);
  NVTETensor array = nvtex_array_create(kNVTEFloat32, (size_t[]){MIDDLE, MIDDLE}, 2);
  nvtex_module_assign_parameter(layer, 0, array, NULL);
  RANK_ERROR(rank, "expected a value that is whole on this rank (nvtex_data_parallel_gather)");
  nvtex_module_set_parameter(layer, 0, array);
  RANK_ERROR(rank, "expected a parameter that is whole on each rank (NVTEX_SHARDING_FULL)");
  nvtex_module_set_gradient(layer, 0, array, false);
  RANK_ERROR(rank, "expected a parameter that is whole on each rank (NVTEX_SHARDING_FULL)");
  NVTEXCheckpointConfig file;
  nvtex_checkpoint_config_init(&file, sizeof file);
  file.modules = &layer;
  file.num_modules = 1;
  file.communicator = world;
  nvtex_checkpoint_save("/tmp/nvte-nothing", &file, NULL);
  RANK_ERROR(rank, "config.optimizer: expected the optimizer of the ranks that have parts");
  // Whole modules take what they are given, and keep it when the engine is gone.
  float *ones = malloc(sizeof(float) * MIDDLE * MIDDLE);
  if (!ones) abort();
  for (size_t i = 0; i < (size_t)MIDDLE * MIDDLE; i++) ones[i] = 1;
  nvtex_array_set(array, ones, sizeof(float) * MIDDLE * MIDDLE, NULL);
  nvtex_data_parallel_gather(engine, NULL);
  nvtex_module_assign_parameter(layer, 0, array, NULL);
  nvtex_data_parallel_release(engine, NULL);
  nvtex_data_parallel_gather(engine, NULL);
  nvtex_data_parallel_destroy(engine);
  NVTEXParameter found = {.struct_size = sizeof found};
  nvtex_module_parameter(layer, 0, &found);
  double *got = values_at(nvte_tensor_data(found.value), kNVTEFloat32, (size_t)MIDDLE * MIDDLE);
  for (size_t i = 0; i < (size_t)MIDDLE * MIDDLE; i++) {
    if (!RANK_CHECK(got[i] == 1, "rank %d: element %zu is %g", rank, i, got[i])) break;
  }
  free(got);
  free(ones);
  nvtex_array_destroy(array);
  nvtex_module_destroy(layer);
  nvtex_context_destroy(context);
  RANK_OK(rank);
}

int main(int argc, char **argv) {
  static const Place grids[] = {{.tp = 2, .cp = 2, .dp = 1},
                                {.tp = 2, .cp = 2, .dp = 1, .rows = true},
                                {.tp = 2, .cp = 1, .dp = 2, .rows = true},
                                {.tp = 1, .cp = 2, .dp = 2},
                                {.tp = 2, .cp = 2, .dp = 2},
                                {.tp = 2, .cp = 2, .dp = 2, .rows = true}};
  setenv("NVTE_COMM_OVERLAP", "1", 1);
  test_begin(argc, argv);
  for (int recipe = 0; recipe < RECIPES; recipe++) {
    g_recipe = (Recipe)recipe;
    bool serial = false;
    for (size_t i = 0; i < COUNT(grids); i++) {
      const Place *g = &grids[i];
      if (!case_begin("tp %zu, cp %zu, dp %zu%s: %s", g->tp, g->cp, g->dp,
                      g->rows ? ", shared rows" : "", kRecipes[recipe])) {
        continue;
      }
      if (!serial) {
        g_sizes = (Place){.tp = 1, .cp = 1, .dp = 1};
        run_threads(1, 60, on_grid);
        serial = true;
      }
      g_sizes = *g;
      run_threads((int)(g->tp * g->cp * g->dp), 60, on_grid);
    }
  }
  if (case_begin("memory of ranks")) {
    const size_t weights = (size_t)LAYERS * WIDTH * WIDTH * sizeof(float);
    size_t used[2];
    for (int full = 0; full < 2; full++) {
      g_sharding = full ? NVTEX_SHARDING_FULL : NVTEX_SHARDING_OPTIMIZER;
      run_threads(4, 60, use_memory);
      used[full] = g_used[1];
    }
    CHECK(used[0] >= 2 * weights, "%zu bytes of whole weights and gradients", used[0]);
    // A fourth of these and of the momentum, and little else.
    CHECK(used[1] <= weights * 8 / 10, "%zu bytes of parts of %zu", used[1], weights);
  }
  if (case_begin("experts, all divided")) {
    for (int full = 0; full < 2; full++) {
      g_sharding = full ? NVTEX_SHARDING_FULL : NVTEX_SHARDING_OPTIMIZER;
      run_threads(2, 60, run_experts);
    }
    CHECK(!memcmp(g_gradient[0], g_gradient[1], sizeof g_gradient[0]), "other bits if divided");
  }
  if (case_begin("refused")) run_threads(2, 60, refuse);
  return test_end();
}
