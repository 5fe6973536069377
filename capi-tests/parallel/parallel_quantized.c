// Weights in FP8 alone whose state ranks divide: each rank casts the elements that it has updated,
// and codes are what travels. They are the masters times one scale, rounded, whatever ranks divide;
// checkpoints are those of ranks that divide nothing.
#define _GNU_SOURCE

#include "../train/safetensors.h"
#include "threads.h"

enum { MOST = 4, STEPS = 3, ROWS = 16, IN = 48, MID = 80, OUT = 32 };
enum { WEIGHT1 = MID * IN, WEIGHT2 = OUT * MID, CODES = WEIGHT1 + WEIGHT2 };

static const size_t kIn[2] = {IN, MID}, kOut[2] = {MID, OUT};
static const size_t kCount[2] = {WEIGHT1, WEIGHT2}, kFirst[2] = {0, WEIGHT1};

typedef struct Setup {
  NVTEXRecipeKind recipe;
  NVTEXSharding sharding;
  // A checkpoint to go on from, and one to write.
  const char *from, *to;
  // Weights exist in high precision.
  bool high_precision;
} Setup;

static Setup g_setup;

// What a rank has at the end: codes of both weights, and the numbers that belong to them.
typedef struct Result {
  uint8_t codes[CODES];
  float scale[2], scale_inv[2];
} Result;

static Result g_results[MOST];
// All elements of the masters, of which each rank writes its own.
static float g_masters[CODES];
static size_t g_kept[MOST];

typedef struct Model {
  NVTEXContext context;
  NVTEXRecipe recipe;
  NVTEXModule modules[2];
  NVTEXDataParallel engine;
  NVTEXOptimizer optimizer;
  int rank;
} Model;

static Model begin(NVTEXCommunicator comm, int rank) {
  Model m = {.context = nvtex_context_create(NULL), .rank = rank};
  NVTEXRecipeConfig recipe;
  nvtex_recipe_config_init(&recipe, sizeof recipe, g_setup.recipe);
  m.recipe = nvtex_recipe_create(&recipe);
  const unsigned alone = g_setup.high_precision ? 0 : NVTEX_CONTEXT_QUANTIZED_WEIGHTS;
  nvtex_context_begin(m.context, m.recipe, NVTEX_CONTEXT_ENABLED | alone, NULL);
  for (size_t i = 0; i < 2; i++) {
    NVTEXLinearConfig c;
    nvtex_linear_config_init(&c, sizeof c);
    c.name = i ? "second" : "first";
    c.in_features = kIn[i];
    c.out_features = kOut[i];
    c.dtype = kNVTEBFloat16;
    m.modules[i] = nvtex_linear_create(m.context, &c, NULL);
  }
  nvtex_context_end(m.context);
  NVTEXDataParallelConfig engine;
  nvtex_data_parallel_config_init(&engine, sizeof engine);
  engine.sharding = g_setup.sharding;
  m.engine = nvtex_data_parallel_create(m.context, &engine, comm, m.modules, 2, NULL);
  NVTEXOptimizerConfig config;
  nvtex_optimizer_config_init(&config, sizeof config, NVTEX_UPDATE_ADAMW);
  config.learning_rate = 0.02f;
  config.data_parallel = m.engine;
  m.optimizer = nvtex_optimizer_create(m.context, &config, m.modules, 2, NULL);
  RANK_OK(rank);
  return m;
}

static void end(Model *m) {
  nvtex_optimizer_destroy(m->optimizer);
  nvtex_data_parallel_destroy(m->engine);
  for (size_t i = 0; i < 2; i++) nvtex_module_destroy(m->modules[i]);
  nvtex_recipe_destroy(m->recipe);
  nvtex_context_destroy(m->context);
  RANK_OK(m->rank);
}

static NVTETensor new_array(size_t cols, unsigned seed) {
  const size_t count = ROWS * cols;
  NVTETensor array = nvtex_array_create(kNVTEBFloat16, (size_t[]){ROWS, cols}, 2);
  uint16_t *values = malloc(count * sizeof *values);
  if (!values) abort();
  for (size_t i = 0; i < count; i++) {
    const double x = (double)(mixed(i * 0x9E3779B97F4A7C15u + seed) >> 11) * 0x1p-52 - 1;
    put_value(kNVTEBFloat16, values, i, x);
  }
  nvtex_array_set(array, values, count * sizeof *values, NULL);
  free(values);
  return array;
}

// The gradient of the output is given, and differs from rank to rank, as the input does.
static void step(Model *m, unsigned number) {
  const unsigned seed = number * 64 + (unsigned)m->rank;
  NVTETensor in = new_array(IN, seed), mid = new_array(MID, 0), out = new_array(OUT, 0);
  NVTETensor grad = new_array(OUT, seed + 32), mid_grad = new_array(MID, 0);
  NVTETensor in_grad = new_array(IN, 0);
  NVTEXTape tapes[2] = {0};
  nvtex_context_begin(m->context, m->recipe, NVTEX_CONTEXT_ENABLED, NULL);
  nvtex_module_forward(m->modules[0], &in, 1, &mid, 1, NULL, &tapes[0], NULL);
  nvtex_module_forward(m->modules[1], &mid, 1, &out, 1, NULL, &tapes[1], NULL);
  nvtex_context_end(m->context);
  nvtex_context_forward_update(m->context, NULL);
  nvtex_module_backward(m->modules[1], tapes[1], &grad, 1, &mid_grad, 1, NULL);
  nvtex_module_backward(m->modules[0], tapes[0], &mid_grad, 1, &in_grad, 1, NULL);
  nvtex_context_backward_update(m->context, NULL);
  nvtex_data_parallel_reduce(m->engine, NULL);
  nvtex_optimizer_step(m->optimizer, NULL);
  RANK_OK(m->rank);
  for (size_t i = 0; i < 2; i++) nvtex_tape_destroy(tapes[i]);
  const NVTETensor arrays[] = {in, mid, out, grad, mid_grad, in_grad};
  for (size_t i = 0; i < COUNT(arrays); i++) nvtex_array_destroy(arrays[i]);
}

static float number_of(NVTETensor tensor, NVTETensorParam param) {
  const NVTEBasicTensor number = nvte_get_tensor_param(tensor, param);
  float value = NAN;
  if (number.data_ptr) nvtex_memcpy_to_host(&value, number.data_ptr, sizeof value, NULL);
  nvtex_stream_synchronize(NULL);
  return value;
}

static void read_back(Model *m) {
  Result *r = &g_results[m->rank];
  g_kept[m->rank] = 0;
  nvtex_data_parallel_gather(m->engine, NULL);
  for (size_t i = 0; i < 2; i++) {
    const NVTEXParameter found = parameter_of(m->modules[i], 0);
    RANK_CHECK(nvte_tensor_type(found.value) == kNVTEFloat8E4M3, "weight %zu: dtype %d", i,
               (int)nvte_tensor_type(found.value));
    nvtex_memcpy_to_host(r->codes + kFirst[i], nvte_tensor_data(found.value), kCount[i], NULL);
    r->scale[i] = number_of(found.value, kNVTEScale);
    r->scale_inv[i] = number_of(found.value, kNVTERowwiseScaleInv);
    size_t first = 0, count = 0;
    nvtex_data_parallel_part(m->engine, m->modules[i], 0, &first, &count);
    RANK_CHECK(first + count <= kCount[i], "weight %zu: %zu from %zu on", i, count, first);
    g_kept[m->rank] += count;
    // Parameters 0 and 2 are the weights.
    NVTEXOptimizerParameter state = {.struct_size = sizeof state};
    nvtex_optimizer_parameter(m->optimizer, 2 * i, &state);
    RANK_CHECK(state.master.dtype == kNVTEFloat32, "weight %zu: no master", i);
    if (count > 0) {
      nvtex_memcpy_to_host(g_masters + kFirst[i] + first, state.master.data_ptr, count * 4, NULL);
    }
  }
  nvtex_stream_synchronize(NULL);
  nvtex_data_parallel_release(m->engine, NULL);
  RANK_OK(m->rank);
}

static void checkpoint(Model *m, NVTEXCommunicator comm, const char *path, bool save) {
  if (!path) return;
  NVTEXCheckpointConfig config;
  nvtex_checkpoint_config_init(&config, sizeof config);
  config.modules = m->modules;
  config.num_modules = 2;
  config.optimizer = m->optimizer;
  config.communicator = comm;
  (save ? nvtex_checkpoint_save : nvtex_checkpoint_load)(path, &config, NULL);
  RANK_OK(m->rank);
}

static void train(NVTEXCommunicator comm, int rank) {
  Model m = begin(comm, rank);
  checkpoint(&m, comm, g_setup.from, false);
  for (unsigned i = 0; i < STEPS && !g_setup.from; i++) step(&m, i);
  checkpoint(&m, comm, g_setup.to, true);
  read_back(&m);
  end(&m);
}

// Codes of all ranks are the masters times the scale, rounded. A scale that comes from the masters
// is 448 divided by their largest magnitude.
static void check_codes(int size, const char *what, bool fresh) {
  for (size_t i = 0; i < 2; i++) {
    const Result *r = &g_results[0];
    float largest = 0;
    size_t bad = 0;
    for (size_t e = kFirst[i]; e < kFirst[i] + kCount[i]; e++) {
      const double scaled = (double)(g_masters[e] * r->scale[i]);
      const double limited = scaled > 448 ? 448 : scaled < -448 ? -448 : scaled;
      const uint32_t expected = encode_bits(kNVTEFloat8E4M3, limited);
      largest = fmaxf(largest, fabsf(g_masters[e]));
      bad += bad < 2 && !CHECK(r->codes[e] == expected, "%s: code %zu: 0x%x, expected 0x%x", what,
                               e, r->codes[e], expected);
    }
    CHECK(r->scale_inv[i] == 1 / r->scale[i], "%s: %g for a scale of %g", what, r->scale_inv[i],
          r->scale[i]);
    if (fresh) CHECK_FLOAT(r->scale[i], 448 / largest);
  }
  for (int rank = 1; rank < size; rank++) {
    CHECK(!memcmp(&g_results[rank], &g_results[0], sizeof g_results[0]), "%s: rank %d differs",
          what, rank);
  }
}

static size_t read_file(const char *path, char *bytes, size_t room) {
  FILE *file = fopen(path, "rb");
  if (!CHECK(file != NULL, "no file")) return 0;
  const size_t count = fread(bytes, 1, room, file);
  fclose(file);
  return count;
}

static void check_recipe(NVTEXRecipeKind recipe, int size) {
  static const NVTEXSharding levels[] = {NVTEX_SHARDING_NONE, NVTEX_SHARDING_OPTIMIZER,
                                         NVTEX_SHARDING_FULL};
  enum { ROOM = 1 << 18 };
  static char files[2][ROOM];
  static Result whole;
  const bool fresh = recipe == NVTEX_RECIPE_CURRENT_SCALING;
  if (!case_begin("recipe %d, %d ranks", (int)recipe, size)) return;
  const char *path = in_folder("saved"), *other = in_folder("other");
  for (size_t level = 0; level < COUNT(levels); level++) {
    const char *to = level ? other : path;
    g_setup = (Setup){recipe, levels[level], NULL, to, false};
    run_threads(size, 60, train);
    check_codes(size, "trained", fresh);
    // What is divided is on one rank alone.
    size_t kept = 0;
    for (int rank = 0; rank < size; rank++) kept += g_kept[rank];
    CHECK_EQ(kept, level ? CODES : CODES * (size_t)size);
    // The same sums in the same order: nothing depends on what ranks divide.
    if (level) CHECK(!memcmp(&g_results[0], &whole, sizeof whole), "other codes if divided");
    whole = g_results[0];
    const size_t bytes = read_file(path, files[0], ROOM);
    CHECK(bytes > 4 * CODES && bytes < ROOM, "a file of %zu bytes", bytes);
    CHECK(read_file(to, files[1], ROOM) == bytes && !memcmp(files[0], files[1], bytes),
          "another checkpoint if divided");
    // What any number of ranks loads are these codes, and they would save the same.
    g_setup.from = path;
    g_setup.to = other;
    const int next = size % MOST + 1;
    run_threads(next, 60, train);
    check_codes(next, "loaded", fresh);
    CHECK(!memcmp(&g_results[0], &whole, sizeof whole), "other codes when loaded");
    CHECK(read_file(other, files[1], ROOM) == bytes && !memcmp(files[0], files[1], bytes),
          "another checkpoint after a load");
  }
}

// Weights in high precision whose layers have run, but have had no scale yet.
static void save_without_scales(NVTEXCommunicator comm, int rank) {
  Model m = begin(comm, rank);
  NVTETensor in = new_array(IN, 1), mid = new_array(MID, 0), out = new_array(OUT, 0);
  nvtex_context_begin(m.context, m.recipe, NVTEX_CONTEXT_ENABLED, NULL);
  nvtex_module_forward(m.modules[0], &in, 1, &mid, 1, NULL, NULL, NULL);
  nvtex_module_forward(m.modules[1], &mid, 1, &out, 1, NULL, NULL, NULL);
  nvtex_context_end(m.context);
  checkpoint(&m, comm, g_setup.to, true);
  const NVTETensor arrays[] = {in, mid, out};
  for (size_t i = 0; i < COUNT(arrays); i++) nvtex_array_destroy(arrays[i]);
  end(&m);
}

static void check_without_scales(void) {
  if (!case_begin("a checkpoint whose weights have had no scale")) return;
  const char *path = in_folder("saved");
  g_setup = (Setup){NVTEX_RECIPE_DELAYED_SCALING, NVTEX_SHARDING_FULL, NULL, path, true};
  run_threads(1, 60, save_without_scales);
  g_setup.high_precision = false;
  g_setup.from = path;
  g_setup.to = NULL;
  run_threads(2, 60, train);
  check_codes(2, "loaded", true);
}

int main(int argc, char **argv) {
  // Gathers and sums of divided layers run beside other layers, unless the caller says otherwise.
  setenv("NVTE_COMM_OVERLAP", "1", 0);
  test_begin(argc, argv);
  folder_begin();
  for (int size = 1; size <= MOST; size++) {
    check_recipe(NVTEX_RECIPE_DELAYED_SCALING, size);
    check_recipe(NVTEX_RECIPE_CURRENT_SCALING, size);
  }
  check_without_scales();
  folder_end();
  return test_end();
}
