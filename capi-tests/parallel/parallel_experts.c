// Training of a model with experts that some ranks share, and whose copies other ranks have: grids
// of 2 x 2 ranks and others against one rank that sees the tokens of all of them. The gradients of
// an expert are those of the ranks that have it, all others those of all ranks. Then checkpoints,
// which are the same bytes on every grid.
#define _POSIX_C_SOURCE 200809L

#include <unistd.h>

#include "threads.h"

enum {
  MOST = 4,
  HIDDEN = 32,
  FFN = 48,
  EXPERTS = 8,
  TOP_K = 2,
  ROWS = 12,  // of a rank among four
  ALL = MOST * ROWS * HIDDEN,
  STEPS = 3,
  MAX_PARAMETERS = 8,
  MAX_WEIGHT = EXPERTS * 2 * FFN * HIDDEN,
};

typedef struct Grid {
  int ranks;
  size_t ep;
  NVTEXSharding sharding;
  size_t tp;  // ranks that divide each expert; 0: one
} Grid;

typedef struct Values {
  size_t parameters, counts[MAX_PARAMETERS];
  float of[MAX_PARAMETERS][MAX_WEIGHT], losses[STEPS];
} Values;

typedef enum Recipe { PLAIN, DELAYED, CURRENT, RECIPES } Recipe;
static const char *const kRecipes[RECIPES] = {"no recipe", "delayed scaling", "current scaling"};
static const char *const kSharding[] = {"none", "", "optimizer", "full"};

static Recipe g_recipe;
static bool g_clipped;
static Grid g_grid;
static char g_loads[128], g_saves[128];
static int g_steps;
// Of one rank: groups of ranks that share experts, whose tokens it takes one after the other.
static size_t g_passes = 1;
static Values g_values;

// On CUDA experts have 16 bits.
static NVTEDType dtype(void) {
  return g_recipe == PLAIN && !on_cuda() ? kNVTEFloat32 : kNVTEBFloat16;
}

static double value(int which, size_t i) {
  uint64_t r = mixed((uint64_t)i * 0x9E3779B97F4A7C15u + (uint64_t)which * 0xD1B54A32D192ED03u + 1);
  return (double)(r >> 11) * 0x1p-52 - 1;
}

// Rows of a step, from the row `first` of all, times a power of two.
static NVTETensor new_rows(int which, size_t first, size_t rows, double factor) {
  NVTETensor made = nvtex_array_create(dtype(), (size_t[]){rows, HIDDEN}, 2);
  char *host = calloc(rows * HIDDEN, dtype_size(dtype()));
  if (!host) abort();
  for (size_t i = 0; which && i < rows * HIDDEN; i++) {
    put_value(dtype(), host, i, factor * value(which, first * HIDDEN + i));
  }
  nvtex_array_set(made, host, rows * HIDDEN * dtype_size(dtype()), NULL);
  free(host);
  return made;
}

static NVTEXModule new_model(NVTEXContext context) {
  NVTEXLinearConfig linear;
  nvtex_linear_config_init(&linear, sizeof linear);
  linear.in_features = linear.out_features = HIDDEN;
  linear.dtype = dtype();
  linear.init_std = 0.2f;
  linear.seed = 5;
  NVTEXMoeConfig moe;
  nvtex_moe_config_init(&moe, sizeof moe);
  moe.hidden_size = HIDDEN;
  moe.ffn_hidden_size = FFN;
  moe.num_experts = EXPERTS;
  moe.top_k = TOP_K;
  moe.dtype = dtype();
  moe.bias = true;
  moe.balance_coefficient = 0.5f;
  moe.z_coefficient = 0.2f;
  moe.init_std = moe.output_init_std = 0.2f;
  moe.router_init_std = 0.5f;
  moe.seed = 11;
  moe.expert_parallel_size = moe.tensor_parallel_size = 0;
  NVTEXModule parts[] = {nvtex_linear_create(context, &linear, NULL),
                         nvtex_moe_create(context, &moe, NULL)};
  NVTEXModule model = nvtex_sequential_create(context, parts, NULL, COUNT(parts));
  for (size_t i = 0; i < COUNT(parts); i++) nvtex_module_destroy(parts[i]);
  return model;
}

// Keeps the values of all ranks, each its part. Ranks that have the same part keep the same values.
static void keep(NVTEXModule model, int rank, size_t expert_rank) {
  static pthread_mutex_t one_by_one = PTHREAD_MUTEX_INITIALIZER;
  const size_t count = nvtex_module_num_parameters(model);
  RANK_CHECK(count <= MAX_PARAMETERS, "rank %d: %zu parameters", rank, count);
  for (size_t i = 0; i < count; i++) {
    NVTEXParameter p = {.struct_size = sizeof p};
    nvtex_module_parameter(model, i, &p);
    const size_t own = numel(p.shape), all = numel(p.whole_shape);
    const NVTEDType of = nvte_tensor_type(p.value);
    const bool shared = own < all;
    RANK_CHECK(all <= MAX_WEIGHT, "rank %d: %s", rank, p.name);
    char *host = malloc(own * dtype_size(of));
    if (!host) abort();
    nvtex_memcpy_to_host(host, nvte_tensor_data(p.value), own * dtype_size(of), NULL);
    nvtex_stream_synchronize(NULL);
    pthread_mutex_lock(&one_by_one);
    g_values.parameters = count;
    g_values.counts[i] = all;
    for (size_t j = 0; (shared || rank == 0) && j < own; j++) {
      g_values.of[i][whole_index(&p, expert_rank, j)] = (float)get_value(of, host, j);
    }
    pthread_mutex_unlock(&one_by_one);
    free(host);
  }
}

static void train(NVTEXCommunicator world, int rank) {
  const Grid g = g_grid;
  NVTEXContext context = nvtex_context_create(NULL);
  const size_t tp = g.tp ? g.tp : 1, data_ranks = (size_t)g.ranks / tp;
  const size_t data_rank = (size_t)rank / tp;
  NVTEXGridConfig sizes = {.struct_size = sizeof sizes, .tp = tp, .ep = g.ep};
  NVTEXGrid grid = nvtex_grid_create(world, &sizes);
  nvtex_context_set_grid(context, grid);
  NVTEXModule model = new_model(context);
  NVTEXDataParallelConfig config;
  nvtex_data_parallel_config_init(&config, sizeof config);
  config.sharding = g.sharding;
  config.bucket_bytes = 16 << 10;  // several buckets
  NVTEXCommunicator ranks = nvtex_grid_communicator(grid, NVTEX_GRID_DP_CP);
  NVTEXDataParallel engine = nvtex_data_parallel_create(context, &config, ranks, &model, 1, NULL);
  RANK_OK(rank);
  NVTEXOptimizerConfig o;
  nvtex_optimizer_config_init(&o, sizeof o, g_saves[0] ? NVTEX_UPDATE_ADAMW : NVTEX_UPDATE_SGD);
  o.learning_rate = g_saves[0] ? 1e-2f : g_clipped ? 0.5f : 0.02f;
  o.momentum = 0.5f;
  o.max_norm = g_clipped ? 0.1f : 0;
  // One rank takes the tokens of each group of ranks that share experts after those of the others:
  // losses of balance are those of a group.
  const size_t passes = g.ranks == 1 ? g_passes : 1;
  const size_t rows = MOST * ROWS / data_ranks / passes;
  o.accumulation_steps = (int32_t)passes;
  o.data_parallel = engine;
  NVTEXOptimizer optimizer = nvtex_optimizer_create(context, &o, &model, 1, NULL);
  RANK_OK(rank);
  NVTEXCheckpointConfig file;
  nvtex_checkpoint_config_init(&file, sizeof file);
  file.modules = &model;
  file.num_modules = 1;
  file.optimizer = optimizer;
  file.communicator = world;
  if (g_loads[0]) nvtex_checkpoint_load(g_loads, &file, NULL);
  RANK_OK(rank);
  NVTEXRecipe recipe = NULL;
  if (g_recipe != PLAIN) {
    NVTEXRecipeConfig of_recipe;
    nvtex_recipe_config_init(
        &of_recipe, sizeof of_recipe,
        g_recipe == DELAYED ? NVTEX_RECIPE_DELAYED_SCALING : NVTEX_RECIPE_CURRENT_SCALING);
    recipe = nvtex_recipe_create(&of_recipe);
  }
  NVTETensor y = new_rows(0, 0, rows, 1), dx = new_rows(0, 0, rows, 1);
  for (int step = 0; step < g_steps; step++) {
    for (size_t pass = 0; pass < passes; pass++) {
      const size_t first = (data_rank * passes + pass) * rows;
      // A loss is a mean over the rows of a pass.
      NVTETensor x = new_rows(2 * step + 1, first, rows, 1);
      NVTETensor dy = new_rows(2 * step + 2, first, rows, (double)ROWS / (double)rows);
      NVTEXStep of_step;
      nvtex_step_init(&of_step, sizeof of_step);
      if (passes > 1) {
        of_step.microbatch = pass ? NVTEX_MICROBATCH_LATER : NVTEX_MICROBATCH_FIRST;
      }
      NVTEXTape tape = NULL;
      if (recipe) nvtex_context_begin(context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
      nvtex_module_forward(model, &x, 1, &y, 1, &of_step, &tape, NULL);
      RANK_OK(rank);
      if (recipe) nvtex_context_end(context);
      nvtex_context_forward_update(context, NULL);
      nvtex_module_backward(model, tape, &dy, 1, &dx, 1, NULL);
      nvtex_context_backward_update(context, NULL);
      nvtex_tape_destroy(tape);
      nvtex_array_destroy(x);
      nvtex_array_destroy(dy);
      RANK_OK(rank);
    }
    nvtex_data_parallel_reduce(engine, NULL);
    nvtex_optimizer_step(optimizer, NULL);
    RANK_OK(rank);
  }
  if (g_saves[0]) nvtex_checkpoint_save(g_saves, &file, NULL);
  RANK_OK(rank);
  nvtex_data_parallel_gather(engine, NULL);
  keep(model, rank, data_rank % g.ep);
  RANK_OK(rank);
  nvtex_array_destroy(y);
  nvtex_array_destroy(dx);
  nvtex_optimizer_destroy(optimizer);
  nvtex_data_parallel_destroy(engine);
  nvtex_module_destroy(model);
  nvtex_context_destroy(context);
  if (recipe) nvtex_recipe_destroy(recipe);
  nvtex_grid_destroy(grid);
  RANK_OK(rank);
}

// Experts whose ranks are not those that sum gradients.
static void refuse(NVTEXCommunicator world, int rank) {
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXGridConfig sizes = {.struct_size = sizeof sizes, .ep = 2};
  NVTEXGrid grid = nvtex_grid_create(world, &sizes);
  nvtex_context_set_grid(context, grid);
  NVTEXModule model = new_model(context);
  NVTEXCommunicator pair = nvtex_grid_communicator(grid, NVTEX_GRID_EP);
  RANK_OK(rank);
  RANK_CHECK(!nvtex_data_parallel_create(context, NULL, pair, &model, 1, NULL), "rank %d", rank);
  RANK_ERROR(rank, "communicator: expected the 4 ranks of NVTEX_GRID_DP_CP");
  NVTEXCommunicator all = nvtex_grid_communicator(grid, NVTEX_GRID_DP_CP);
  NVTEXDataParallel engine = nvtex_data_parallel_create(context, NULL, all, &model, 1, NULL);
  NVTEXOptimizerConfig o;
  nvtex_optimizer_config_init(&o, sizeof o, NVTEX_UPDATE_MUON);
  o.data_parallel = engine;
  RANK_CHECK(!nvtex_optimizer_create(context, &o, &model, 1, NULL), "rank %d", rank);
  RANK_ERROR(rank, "other ranks have parts of this parameter");
  nvtex_data_parallel_destroy(engine);
  nvtex_module_destroy(model);
  nvtex_context_destroy(context);
  nvtex_grid_destroy(grid);
  RANK_OK(rank);
}

static void run(Grid grid) {
  g_grid = grid;
  run_threads(grid.ranks, 60, train);
}

// ---- Comparison

static void compare(const Values *expected, double limit) {
  CHECK_EQ(g_values.parameters, expected->parameters);
  for (size_t i = 0; i < expected->parameters; i++) {
    double error = 0, square = 1e-300;
    for (size_t j = 0; j < expected->counts[i]; j++) {
      const double e = expected->of[i][j], off = g_values.of[i][j] - e;
      error += off * off;
      square += e * e;
    }
    const double distance = sqrt(error / square);
    CHECK(distance <= limit, "parameter %zu: relative distance %g", i, distance);
  }
}

static Values g_kept;

// `tensor`: that ranks also divide each expert, alone and those of two ranks that share them;
// otherwise there are two replicas of the experts.
static void against_one_rank(bool tensor) {
  const size_t divided = tensor ? 2 : 0;
  g_steps = STEPS;
  g_recipe = PLAIN;
  for (int clipped = 0; clipped < 2; clipped++) {
    g_clipped = clipped != 0;
    bool serial = false;
    for (int sharding = 0; sharding <= 3; sharding++) {
      if (sharding == 1) continue;
      if (!case_begin("ep 2 x %s against one rank, sharding %s%s",
                      tensor ? "tp 2 and tp 2" : "dp 2", kSharding[sharding],
                      clipped ? ", clipped" : "")) {
        continue;
      }
      if (!serial) {
        g_passes = tensor ? 1 : 2;
        run((Grid){1, 1, NVTEX_SHARDING_NONE, 0});
        g_passes = 1;
        g_kept = g_values;
        serial = true;
      }
      run((Grid){4, 2, (NVTEXSharding)sharding, divided});
      compare(&g_kept, on_cuda() ? 3e-2 : 2e-6);
      if (!tensor || sharding) continue;
      run((Grid){2, 1, NVTEX_SHARDING_NONE, divided});
      compare(&g_kept, on_cuda() ? 3e-2 : 2e-6);
    }
  }
}

// What ranks divide among each other changes no bit.
static void levels(void) {
  static const size_t sizes[] = {1, 2, 4};
  g_steps = STEPS;
  g_clipped = false;
  for (int recipe = 0; recipe < RECIPES; recipe++) {
    g_recipe = (Recipe)recipe;
    for (size_t i = 0; i < COUNT(sizes); i++) {
      if (!case_begin("levels of sharding, ep %zu of 4 ranks, %s", sizes[i], kRecipes[recipe])) {
        continue;
      }
      run((Grid){4, sizes[i], NVTEX_SHARDING_NONE, 0});
      g_kept = g_values;
      run((Grid){4, sizes[i], NVTEX_SHARDING_OPTIMIZER, 0});
      compare(&g_kept, 0);
      run((Grid){4, sizes[i], NVTEX_SHARDING_FULL, 0});
      compare(&g_kept, 0);
    }
  }
  g_recipe = PLAIN;
}

static char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  *size = 0;
  if (!CHECK(file != NULL, "no file %s", path)) return NULL;
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  char *data = host_memory(*size);
  CHECK_EQ(fread(data, 1, *size, file), *size);
  fclose(file);
  return data;
}

static void checkpoints(void) {
  static const Grid grids[] = {
      {1, 1, NVTEX_SHARDING_NONE, 0},      {2, 2, NVTEX_SHARDING_NONE, 0},
      {4, 2, NVTEX_SHARDING_NONE, 0},      {4, 4, NVTEX_SHARDING_OPTIMIZER, 0},
      {4, 2, NVTEX_SHARDING_OPTIMIZER, 0}, {4, 2, NVTEX_SHARDING_FULL, 0},
      {2, 1, NVTEX_SHARDING_FULL, 0},      {2, 1, NVTEX_SHARDING_NONE, 2},
      {4, 2, NVTEX_SHARDING_NONE, 2},      {4, 1, NVTEX_SHARDING_OPTIMIZER, 2},
      {4, 2, NVTEX_SHARDING_FULL, 2}};
  char first[64], second[64];
  snprintf(first, sizeof first, "/tmp/nvte-experts-%d-a", (int)getpid());
  snprintf(second, sizeof second, "/tmp/nvte-experts-%d-b", (int)getpid());
  g_recipe = PLAIN;
  g_clipped = true;
  bool saved = false;
  for (size_t i = 0; i < COUNT(grids); i++) {
    const Grid *g = &grids[i];
    if (!case_begin("checkpoint, %d ranks, ep %zu, tp %zu, sharding %s", g->ranks, g->ep, g->tp,
                    kSharding[g->sharding])) {
      continue;
    }
    if (!saved) {
      g_steps = 2;
      snprintf(g_saves, sizeof g_saves, "%s", first);
      run((Grid){4, 2, NVTEX_SHARDING_OPTIMIZER, 0});
      g_kept = g_values;
      saved = true;
    }
    g_steps = 0;
    snprintf(g_loads, sizeof g_loads, "%s", first);
    snprintf(g_saves, sizeof g_saves, "%s", second);
    run(*g);
    compare(&g_kept, 0);
    size_t sizes[2];
    const char *a = read_file(first, &sizes[0]), *b = read_file(second, &sizes[1]);
    CHECK(a && b && sizes[0] == sizes[1] && !memcmp(a, b, sizes[0]), "%zu bytes and %zu differ",
          sizes[0], sizes[1]);
    remove(second);
  }
  remove(first);
  g_loads[0] = g_saves[0] = 0;
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  against_one_rank(false);
  against_one_rank(true);
  levels();
  checkpoints();
  if (case_begin("refused")) run_threads(4, 60, refuse);
  return test_end();
}
