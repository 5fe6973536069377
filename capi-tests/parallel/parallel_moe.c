// Layers of experts over threads that share them: outputs and gradients of each rank's tokens and
// of each rank's experts are those of one rank with all tokens, up to the order of sums in the
// router's products, which depends on the number of tokens. Ranks may also divide each expert.
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>

#include "threads.h"

enum { MOST = 4, PARAMETERS = 10, HIDDEN = 32, FFN = 64, EXPERTS = 8, TOP_K = 3 };

typedef struct Case {
  const char *name;
  int ranks;
  NVTEDType dtype;
  const NVTEXRecipeKind *recipe;
  size_t tokens[MOST];  // of each rank that has tokens of its own
  bool shared, bias;
  NVTEXMoeScore score;
  float capacity;
  int tp;  // ranks that divide each expert; 0: one
} Case;

// A pass over tokens of all ranks.
typedef struct Pass {
  const Case *c;
  size_t rows;
  char *x, *dy;  // on the host
  char *y, *dx;
  float losses[MOST][2];
  int64_t loads[MOST][EXPERTS];
  float *gradients[MOST][PARAMETERS];
  size_t counts[PARAMETERS], whole[PARAMETERS], *places[MOST][PARAMETERS], num;
  uint64_t digests[MOST];  // of outputs and gradients of inputs
  char names[PARAMETERS][40];
  bool declined;
} Pass;

static NVTETensor make(void *memory, NVTEDType dtype, NVTEShape shape) {
  NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  set_param(t, kNVTERowwiseData, memory, dtype, shape);
  return t;
}

static size_t divided(const Case *c) { return c->tp ? (size_t)c->tp : 1; }

static uint64_t digest_of(const char *bytes, size_t count) {
  uint64_t digest = count;
  for (size_t i = 0; i < count; i++) digest = mixed(digest + (unsigned char)bytes[i]);
  return digest;
}

static NVTEXContext context_of(const Case *c, NVTEXCommunicator comm) {
  NVTEXContext context = nvtex_context_create(NULL);
  if (!comm) return context;
  NVTEXGridConfig config;
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  config.tp = divided(c);
  config.ep = (size_t)nvtex_communicator_size(comm) / config.tp;
  NVTEXGrid grid = nvtex_grid_create(comm, &config);
  nvtex_context_set_grid(context, grid);
  nvtex_grid_destroy(grid);
  return context;
}

static NVTEXMoeConfig config_of(const Case *c, bool over_ranks) {
  NVTEXMoeConfig f;
  nvtex_moe_config_init(&f, sizeof f);
  f.hidden_size = HIDDEN;
  f.ffn_hidden_size = FFN;
  f.num_experts = EXPERTS;
  f.top_k = TOP_K;
  f.dtype = c->dtype;
  f.score = c->score;
  f.bias = c->bias;
  f.balance_coefficient = 0.4f;
  f.z_coefficient = 0.1f;
  f.shared_ffn_hidden_size = c->shared ? FFN : 0;
  f.init_std = f.output_init_std = 0.3f;
  f.router_init_std = 0.5f;
  f.seed = 11;
  f.expert_parallel_size = f.tensor_parallel_size = over_ranks ? 0 : 1;
  f.capacity_factor = c->capacity;
  return f;
}

static void run_pass(Pass *p, NVTEXCommunicator comm) {
  const Case *c = p->c;
  const int r = comm ? nvtex_communicator_rank(comm) : 0;
  const size_t tp = comm ? divided(c) : 1, group = (size_t)r / tp;
  size_t first = 0, rows = comm ? c->tokens[group] : p->rows;
  for (size_t i = 0; i < group; i++) first += c->tokens[i];
  NVTEXContext context = context_of(c, comm);
  NVTEXMoeConfig f = config_of(c, comm != NULL);
  NVTEXModule module = nvtex_moe_create(context, &f, NULL);
  RANK_OK(r);
  size_t num = nvtex_module_num_parameters(module);
  if (!RANK_CHECK(num <= PARAMETERS, "%zu parameters", num)) return;
  char *grads[PARAMETERS];
  NVTETensor bound[PARAMETERS];
  for (size_t i = 0; i < num; i++) {
    NVTEXParameter parameter;
    memset(&parameter, 0, sizeof parameter);
    parameter.struct_size = sizeof parameter;
    nvtex_module_parameter(module, i, &parameter);
    size_t count = numel(parameter.shape);
    p->places[r][i] = malloc(count * sizeof(size_t));
    if (!p->places[r][i]) abort();
    for (size_t j = 0; j < count; j++) p->places[r][i][j] = whole_index(&parameter, group, j);
    if (r == 0) {
      p->num = num;
      p->counts[i] = count;
      p->whole[i] = numel(parameter.whole_shape);
      snprintf(p->names[i], sizeof p->names[i], "%s", parameter.name);
    }
    grads[i] = nvtex_malloc(count * sizeof(float));
    bound[i] = make(grads[i], kNVTEFloat32, parameter.shape);
    nvtex_module_set_gradient(module, i, bound[i], false);
  }
  RANK_OK(r);
  const size_t size = dtype_size(c->dtype), bytes = rows * HIDDEN * size;
  const size_t at = first * HIDDEN * size;
  char *memory[] = {device_copy(p->x + at, bytes),
                    device_copy(p->dy + at, bytes),
                    nvtex_malloc(bytes),
                    nvtex_malloc(bytes),
                    nvtex_malloc(8),
                    nvtex_malloc(EXPERTS * 8),
                    NULL};
  // The mean of the losses over the ranks is that of one rank; gradients are summed here.
  const size_t groups = comm ? (size_t)nvtex_communicator_size(comm) / tp : 1;
  const float share = 1.0f / (float)groups;
  memory[6] = device_copy((float[]){share, share}, 8);
  NVTETensor t[7];
  for (size_t i = 0; i < 4; i++) t[i] = make(memory[i], c->dtype, SHAPE(rows, HIDDEN));
  t[4] = make(memory[4], kNVTEFloat32, SHAPE(2));
  t[5] = make(memory[5], kNVTEInt64, SHAPE(EXPERTS));
  t[6] = make(memory[6], kNVTEFloat32, SHAPE(2));
  NVTEXRecipe recipe = NULL;
  if (c->recipe) {
    NVTEXRecipeConfig config;
    nvtex_recipe_config_init(&config, sizeof config, *c->recipe);
    recipe = nvtex_recipe_create(&config);
  }
  nvtex_context_begin(context, recipe, recipe ? NVTEX_CONTEXT_ENABLED : 0, NULL);
  // Two steps: maxima of the first one are scales of the second.
  for (int step = 0; step < 2; step++) {
    NVTEXTape tape = NULL;
    NVTETensor outputs[] = {t[2], t[4], t[5]};
    nvtex_module_forward(module, &t[0], 1, outputs, 3, NULL, &tape, NULL);
    if (nvtex_last_status() == NVTEX_UNSUPPORTED && !comm) {
      p->declined = true;
      nvtex_clear_error();
      break;
    }
    RANK_OK(r);
    NVTETensor given[] = {t[1], t[6]};
    nvtex_module_backward(module, tape, given, 2, &t[3], 1, NULL);
    RANK_OK(r);
    nvtex_tape_destroy(tape);
    if (recipe && *c->recipe == NVTEX_RECIPE_DELAYED_SCALING) {
      nvtex_context_forward_update(context, NULL);
      nvtex_context_backward_update(context, NULL);
    }
    RANK_OK(r);
  }
  nvtex_context_end(context);
  char *results = malloc(2 * bytes + 1);
  if (!results) abort();
  nvtex_memcpy_to_host(results, memory[2], bytes, NULL);
  nvtex_memcpy_to_host(results + bytes, memory[3], bytes, NULL);
  nvtex_stream_synchronize(NULL);
  p->digests[r] = digest_of(results, 2 * bytes);
  if ((size_t)r % tp == 0) {
    memcpy(p->y + at, results, bytes);
    memcpy(p->dx + at, results + bytes, bytes);
  }
  free(results);
  nvtex_memcpy_to_host(p->losses[r], memory[4], 8, NULL);
  nvtex_memcpy_to_host(p->loads[r], memory[5], EXPERTS * 8, NULL);
  for (size_t i = 0; i < num; i++) {
    NVTEXParameter parameter;
    memset(&parameter, 0, sizeof parameter);
    parameter.struct_size = sizeof parameter;
    nvtex_module_parameter(module, i, &parameter);
    size_t count = numel(parameter.shape);
    p->gradients[r][i] = malloc(count * sizeof(float));
    if (!p->gradients[r][i]) abort();
    nvtex_memcpy_to_host(p->gradients[r][i], grads[i], count * sizeof(float), NULL);
  }
  nvtex_stream_synchronize(NULL);
  RANK_OK(r);
  nvtex_module_destroy(module);
  nvtex_recipe_destroy(recipe);
  nvtex_context_destroy(context);
  for (size_t i = 0; i < num; i++) {
    nvte_destroy_tensor(bound[i]);
    nvtex_free(grads[i]);
  }
  for (size_t i = 0; i < COUNT(memory); i++) {
    nvte_destroy_tensor(t[i]);
    nvtex_free(memory[i]);
  }
  RANK_OK(r);
}

static void pass_of_rank(Rank *r) { run_pass(r->argument, r->comm); }

// ---- Comparison

static double error_of(const double *got, const double *expected, size_t count) {
  double error = 0, size = 1e-300;
  for (size_t i = 0; i < count; i++) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return isfinite(error) ? sqrt(error / size) : (double)INFINITY;
}

// The greatest relative distance of a case to one rank.
static double bound_of(const Case *c) {
  // On tensor cores products of Float32 have 10 bits behind the point.
  if (c->recipe) return 2e-2;
  return c->dtype == kNVTEFloat32 ? 2e-6 : c->dtype == kNVTEFloat16 ? 1e-3 : 4e-3;
}

static void compare(const Case *c, const char *what, NVTEDType dtype, const void *got,
                    const void *expected, size_t count) {
  double *values[2];
  for (size_t side = 0; side < 2; side++) {
    values[side] = host_memory(count * sizeof(double));
    for (size_t i = 0; i < count; i++) {
      values[side][i] = get_value(dtype, side ? expected : got, i);
    }
  }
  const double distance = error_of(values[0], values[1], count);
  CHECK(distance <= bound_of(c), "%s: relative distance to one rank %g", what, distance);
}

static void free_gradients(Pass *p) {
  for (int r = 0; r < MOST; r++) {
    for (size_t i = 0; i < PARAMETERS; i++) {
      free(p->gradients[r][i]);
      free(p->places[r][i]);
    }
  }
}

static void check_case(const Case *c) {
  Pass serial;
  memset(&serial, 0, sizeof serial);
  serial.c = c;
  const size_t tp = divided(c);
  for (size_t r = 0; r < (size_t)c->ranks / tp; r++) serial.rows += c->tokens[r];
  const size_t all = serial.rows * HIDDEN, bytes = all * dtype_size(c->dtype);
  serial.x = random_values(c->dtype, all, -1, 1);
  serial.dy = random_values(c->dtype, all, -1, 1);
  Pass shared = serial;
  Pass *passes[] = {&serial, &shared};
  for (size_t i = 0; i < 2; i++) {
    passes[i]->y = host_memory(bytes);
    passes[i]->dx = host_memory(bytes);
  }
  run_pass(&serial, NULL);
  unsigned bad = failed_checks();
  if (!CHECK(bad == 0, "%u checks of one rank failed", bad)) return;
  if (serial.declined) {
    g_test.declined++;
    free_gradients(&serial);
    return;
  }
  run_ranks(c->ranks, 60, pass_of_rank, &shared);
  compare(c, "y", c->dtype, shared.y, serial.y, all);
  compare(c, "dx", c->dtype, shared.dx, serial.dx, all);
  for (size_t l = 0; l < 2; l++) {
    double sum = 0;
    for (int r = 0; r < c->ranks; r++) sum += shared.losses[r][l] / (double)c->ranks;
    const double expected = serial.losses[0][l];
    // On tensor cores the products of the router have 10 bits behind the point.
    const double limit = on_cuda() ? 1e-4 : 1e-5;
    CHECK(expected > 0 && fabs(sum - expected) <= limit * expected, "loss %zu: %g, expected %g", l,
          sum, expected);
  }
  for (int r = 0; r < c->ranks; r++) {
    CHECK(!memcmp(shared.loads[r], serial.loads[0], sizeof serial.loads[0]), "loads of %d", r);
    CHECK(shared.digests[r] == shared.digests[r - r % (int)tp], "rank %d has other bits", r);
  }
  for (size_t i = 0; i < serial.num; i++) {
    const size_t count = serial.whole[i], part = shared.counts[i];
    const float *expected = serial.gradients[0][i];
    CHECK_EQ(shared.whole[i], count);
    if (!strncmp(serial.names[i], "experts.", 8)) {
      const size_t halves = strcmp(serial.names[i], "experts.fc2_bias") ? tp : 1;
      CHECK_EQ(part * (size_t)c->ranks / tp * halves, count);
      float *own = host_memory(part * sizeof *own);
      for (int r = 0; r < c->ranks; r++) {
        for (size_t j = 0; j < part; j++) own[j] = expected[shared.places[r][i][j]];
        compare(c, serial.names[i], kNVTEFloat32, shared.gradients[r][i], own, part);
      }
      continue;
    }
    float *sum = host_memory(count * sizeof *sum);
    memset(sum, 0, count * sizeof *sum);
    for (int r = 0; r < c->ranks; r++) {
      // What ranks do not divide is complete on each of them.
      if (part == count && r % (int)tp) continue;
      for (size_t j = 0; j < part; j++) {
        sum[shared.places[r][i][j]] += shared.gradients[r][i][j];
      }
    }
    compare(c, serial.names[i], kNVTEFloat32, sum, expected, count);
  }
  free_gradients(&serial);
  free_gradients(&shared);
}

static void cases(void) {
  static const NVTEXRecipeKind delayed = NVTEX_RECIPE_DELAYED_SCALING,
                               current = NVTEX_RECIPE_CURRENT_SCALING,
                               block = NVTEX_RECIPE_BLOCK_SCALING, mx = NVTEX_RECIPE_MXFP8;
  static const Case all[] = {
      {"softmax", 2, kNVTEFloat32, NULL, {16, 16}, true, false, NVTEX_MOE_SCORE_SOFTMAX, 0, 0},
      {"sigmoid", 4, kNVTEFloat32, NULL, {9, 1, 30, 5}, false, true, NVTEX_MOE_SCORE_SIGMOID, 0, 0},
      {"softmax",
       2,
       kNVTEBFloat16,
       NULL,
       {40, 3},
       false,
       true,
       NVTEX_MOE_SCORE_SOFTMAX_OF_ALL,
       0,
       0},
      {"sqrtsoftplus",
       4,
       kNVTEFloat16,
       NULL,
       {8, 8, 8, 8},
       true,
       false,
       NVTEX_MOE_SCORE_SQRTSOFTPLUS,
       0,
       0},
      {"few tokens",
       4,
       kNVTEBFloat16,
       NULL,
       {1, 1, 1, 1},
       false,
       false,
       NVTEX_MOE_SCORE_SOFTMAX,
       0,
       0},
      {"delayed",
       2,
       kNVTEBFloat16,
       &delayed,
       {20, 28},
       false,
       false,
       NVTEX_MOE_SCORE_SOFTMAX,
       0,
       0},
      {"current",
       4,
       kNVTEBFloat16,
       &current,
       {20, 7, 3, 28},
       false,
       false,
       NVTEX_MOE_SCORE_SOFTMAX,
       0,
       0},
      {"block", 2, kNVTEBFloat16, &block, {20, 28}, false, false, NVTEX_MOE_SCORE_SOFTMAX, 0, 0},
      {"mxfp8", 4, kNVTEBFloat16, &mx, {20, 28, 4, 2}, false, false, NVTEX_MOE_SCORE_SIGMOID, 0, 0},
      {"capacity",
       4,
       kNVTEFloat32,
       NULL,
       {16, 16, 16, 16},
       true,
       true,
       NVTEX_MOE_SCORE_SIGMOID,
       0.8f,
       0},
      {"capacity", 2, kNVTEFloat16, NULL, {33, 33}, true, false, NVTEX_MOE_SCORE_SOFTMAX, 1.1f, 0},
      {"delayed with capacity",
       4,
       kNVTEBFloat16,
       &delayed,
       {20, 20, 20, 20},
       false,
       false,
       NVTEX_MOE_SCORE_SOFTMAX,
       0.9f,
       0},
      {"mxfp8 with capacity",
       2,
       kNVTEBFloat16,
       &mx,
       {40, 40},
       false,
       true,
       NVTEX_MOE_SCORE_SIGMOID,
       1.0f,
       0},
      {"divided", 2, kNVTEFloat32, NULL, {33}, true, true, NVTEX_MOE_SCORE_SOFTMAX, 0, 2},
      {"divided", 4, kNVTEBFloat16, NULL, {40}, false, true, NVTEX_MOE_SCORE_SIGMOID, 0.7f, 4},
      {"divided", 4, kNVTEFloat32, NULL, {20, 9}, true, true, NVTEX_MOE_SCORE_SIGMOID, 0, 2},
      {"divided with capacity",
       4,
       kNVTEFloat32,
       NULL,
       {24, 24},
       true,
       true,
       NVTEX_MOE_SCORE_SOFTMAX,
       0.8f,
       2},
      {"divided, delayed",
       4,
       kNVTEBFloat16,
       &delayed,
       {20, 28},
       true,
       false,
       NVTEX_MOE_SCORE_SOFTMAX,
       0,
       2},
      {"divided, current with capacity",
       4,
       kNVTEBFloat16,
       &current,
       {24, 24},
       false,
       true,
       NVTEX_MOE_SCORE_SOFTMAX,
       1.2f,
       2},
      {"divided, block",
       2,
       kNVTEBFloat16,
       &block,
       {40},
       false,
       false,
       NVTEX_MOE_SCORE_SOFTMAX,
       0,
       2},
      {"divided, mxfp8", 2, kNVTEBFloat16, &mx, {40}, true, false, NVTEX_MOE_SCORE_SIGMOID, 0, 2},
  };
  for (size_t i = 0; i < COUNT(all); i++) {
    const Case *c = &all[i];
    if (case_begin("%s, %s, %d ranks", c->name, dtype_name(c->dtype), c->ranks)) check_case(c);
  }
}

static void refusals(Rank *rank) {
  const int r = nvtex_communicator_rank(rank->comm);
  const Case c = {.dtype = kNVTEBFloat16};
  NVTEXContext context = context_of(&c, rank->comm);
  NVTEXMoeConfig f = config_of(&c, true);
  f.num_experts = 7;
  RANK_CHECK(!nvtex_moe_create(context, &f, NULL), "seven experts");
  RANK_ERROR(r, "config.num_experts: expected a multiple of 2, the ranks that share them, got 7");
  f = config_of(&c, true);
  f.expert_parallel_size = 3;
  RANK_CHECK(!nvtex_moe_create(context, &f, NULL), "three ranks");
  RANK_ERROR(r, "config.expert_parallel_size: expected 0, 1 or 2, the ranks of the grid");
  nvtex_context_destroy(context);
  const Case halves = {.dtype = kNVTEBFloat16, .tp = 2};
  context = context_of(&halves, rank->comm);
  f = config_of(&halves, true);
  f.ffn_hidden_size = 33;
  RANK_CHECK(!nvtex_moe_create(context, &f, NULL), "an odd size");
  RANK_ERROR(r, "config.ffn_hidden_size: expected a multiple of 2, the ranks that share them");
  f = config_of(&halves, true);
  f.tensor_parallel_size = 3;
  RANK_CHECK(!nvtex_moe_create(context, &f, NULL), "three ranks");
  RANK_ERROR(r, "config.tensor_parallel_size: expected 0, 1 or 2, the ranks of the grid");
  nvtex_context_destroy(context);
  RANK_OK(r);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  if (case_begin("refusals")) run_ranks(2, 60, refusals, NULL);
  cases();
  return test_end();
}
