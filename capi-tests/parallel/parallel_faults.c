// Faults of ranks that run modules: ranks that run other modules than the others, that fail alone,
// that are killed or aborted between two passes, and what works afterwards. What ranks exchange
// runs beside products.
#define _GNU_SOURCE

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "threads.h"

enum { MOST = 3, WIDTH = 32, ROWS = 8, DIED = 99 };

static double seconds_since(double start) { return seconds_now() - start; }

static NVTEXModule new_linear(NVTEXContext context, const char *name, NVTEDType dtype,
                              const NVTEXParallelOptions *options) {
  NVTEXLinearConfig c;
  nvtex_linear_config_init(&c, sizeof c);
  c.name = name;
  c.in_features = c.out_features = WIDTH;
  c.dtype = dtype;
  c.bias = false;
  c.parallel.tensor_parallel_size = options ? 0 : 1;
  c.parallel.options = options;
  c.parallel.sequence_parallel = options && options->mode == NVTEX_PARALLEL_COLUMN;
  return nvtex_linear_create(context, &c, NULL);
}

// ---- Ranks that run something else than the others

typedef enum Difference { SKIPPED, ROWS_OF_BATCH, DTYPE, RECIPE } Difference;
static const struct {
  const char *name, *message;
} kDifferences[] = {
    {"a rank skips a module", "name: rank 0 has \"first\", rank 1 has \"second\""},
    {"batches of other sizes", "count: rank 0 has 256, rank 1 has 128"},
    {"another dtype", "dtype: rank 0 has kNVTEFloat32, rank 1 has kNVTEBFloat16"},
    {"another recipe", "dtype: rank 0 has kNVTEFloat8E4M3, rank 1 has kNVTEFloat32"},
};
static Difference g_difference;

static void run_another(NVTEXCommunicator world, int rank) {
  const bool odd = rank == 1;
  NVTEXContext context = nvtex_context_create(NULL);
  const NVTEXGridConfig sizes = {.struct_size = sizeof sizes, .tp = 2};
  NVTEXGrid grid = nvtex_grid_create(world, &sizes);
  nvtex_context_set_grid(context, grid);
  NVTEXParallelOptions options = {.struct_size = sizeof options, .mode = NVTEX_PARALLEL_ROW};
  if (g_difference == RECIPE) options.mode = NVTEX_PARALLEL_COLUMN;
  const NVTEDType dtype = odd && g_difference == DTYPE ? kNVTEBFloat16 : kNVTEFloat32;
  const NVTEXModule modules[] = {new_linear(context, "first", dtype, &options),
                                 new_linear(context, "second", dtype, &options)};
  RANK_OK(rank);
  const bool row = options.mode == NVTEX_PARALLEL_ROW;
  const size_t rows = odd && g_difference == ROWS_OF_BATCH ? ROWS / 2 : ROWS;
  const size_t in[] = {rows, row ? WIDTH / 2 : WIDTH};
  const size_t out[] = {row ? rows : 2 * rows, row ? WIDTH : WIDTH / 2};
  NVTETensor x = nvtex_array_create(dtype, in, 2), y = nvtex_array_create(dtype, out, 2);
  NVTEXRecipeConfig config;
  nvtex_recipe_config_init(&config, sizeof config, NVTEX_RECIPE_DELAYED_SCALING);
  NVTEXRecipe recipe = nvtex_recipe_create(&config);
  const double start = seconds_now();
  if (g_difference == RECIPE && !odd) {
    nvtex_context_begin(context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
  }
  for (int i = odd && g_difference == SKIPPED ? 1 : 0; i < 2; i++) {
    nvtex_module_forward(modules[i], &x, 1, &y, 1, NULL, NULL, NULL);
    RANK_ERROR(rank, kDifferences[g_difference].message);
  }
  if (g_difference == RECIPE && !odd) nvtex_context_end(context);
  RANK_CHECK(seconds_since(start) < 5, "rank %d waited for %g s", rank, seconds_since(start));
  nvtex_array_destroy(x);
  nvtex_array_destroy(y);
  for (int i = 0; i < 2; i++) nvtex_module_destroy(modules[i]);
  nvtex_recipe_destroy(recipe);
  nvtex_context_destroy(context);
  nvtex_grid_destroy(grid);
  RANK_OK(rank);
}

// ---- Layers whose parameters ranks divide

typedef struct Model {
  NVTEXContext context;
  NVTEXModule all, layers[2];
  NVTEXDataParallel engine;
  NVTETensor x, y, weight;
} Model;

static void fill(NVTETensor array, size_t count, float value) {
  float *values = malloc(count * sizeof *values);
  if (!values) abort();
  for (size_t i = 0; i < count; i++) values[i] = value;
  nvtex_array_set(array, values, count * sizeof *values, NULL);
  free(values);
}

// All elements of the weight of a layer.
static void set_weight(const Model *m, int layer, float value) {
  nvtex_data_parallel_gather(m->engine, NULL);
  fill(m->weight, (size_t)WIDTH * WIDTH, value);
  nvtex_module_assign_parameter(m->layers[layer], 0, m->weight, NULL);
  nvtex_data_parallel_release(m->engine, NULL);
}

static Model begin(NVTEXCommunicator world) {
  Model m = {.context = nvtex_context_create(NULL)};
  m.layers[0] = new_linear(m.context, "first", kNVTEFloat32, NULL);
  m.layers[1] = new_linear(m.context, "second", kNVTEFloat32, NULL);
  m.all = nvtex_sequential_create(m.context, m.layers, NULL, 2);
  NVTEXDataParallelConfig config;
  nvtex_data_parallel_config_init(&config, sizeof config);
  config.sharding = NVTEX_SHARDING_FULL;
  m.engine = nvtex_data_parallel_create(m.context, &config, world, &m.all, 1, NULL);
  m.x = nvtex_array_create(kNVTEFloat32, (size_t[]){ROWS, WIDTH}, 2);
  m.y = nvtex_array_create(kNVTEFloat32, (size_t[]){ROWS, WIDTH}, 2);
  m.weight = nvtex_array_create(kNVTEFloat32, (size_t[]){WIDTH, WIDTH}, 2);
  fill(m.x, (size_t)ROWS * WIDTH, 1);
  return m;
}

static void end(Model *m) {
  nvtex_data_parallel_destroy(m->engine);
  nvtex_module_destroy(m->all);
  for (int i = 0; i < 2; i++) nvtex_module_destroy(m->layers[i]);
  nvtex_array_destroy(m->x);
  nvtex_array_destroy(m->y);
  nvtex_array_destroy(m->weight);
  nvtex_context_destroy(m->context);
}

static NVTEXTape forward(const Model *m) {
  NVTEXTape tape = NULL;
  nvtex_module_forward(m->all, &m->x, 1, &m->y, 1, NULL, &tape, NULL);
  return tape;
}

static void check_output(const Model *m, int rank, float expected) {
  float got[ROWS * WIDTH];
  nvtex_array_get(m->y, got, sizeof got, NULL);
  RANK_OK(rank);
  for (size_t i = 0; i < COUNT(got); i++) {
    if (!RANK_CHECK(got[i] == expected, "rank %d: y[%zu] is %g, expected %g", rank, i, got[i],
                    expected)) {
      break;
    }
  }
}

// A layer fails on all ranks, while the parameters of the next one are already on their way: these
// are not what a later pass reads.
static void fail_together(NVTEXCommunicator world, int rank) {
  Model m = begin(world);
  set_weight(&m, 0, 0.5f);
  set_weight(&m, 1, 0.25f);
  RANK_OK(rank);
  NVTETensor narrow = nvtex_array_create(kNVTEFloat32, (size_t[]){ROWS, WIDTH / 2}, 2);
  NVTEXTape tape = NULL;
  nvtex_module_forward(m.all, &narrow, 1, &m.y, 1, NULL, &tape, NULL);
  RANK_ERROR(rank, "inputs[0].shape: expected [..., 32]");
  RANK_CHECK(tape == NULL, "rank %d: a tape of a pass that has failed", rank);
  set_weight(&m, 1, 2);
  tape = forward(&m);
  check_output(&m, rank, WIDTH * 0.5f * WIDTH * 2);
  // The same of a backward pass, whose gradient has another shape.
  nvtex_module_backward(m.all, tape, &narrow, 1, NULL, 0, NULL);
  RANK_ERROR(rank, "grad_outputs[0]");
  nvtex_tape_destroy(tape);
  set_weight(&m, 0, 0.25f);
  nvtex_tape_destroy(forward(&m));
  check_output(&m, rank, WIDTH * 0.25f * WIDTH * 2);
  NVTEXMemoryUse use = {.struct_size = sizeof use};
  nvtex_context_memory(m.context, &use);
  // What is left is the gradient of the layer whose backward pass has failed.
  RANK_CHECK(use.tape <= sizeof(float) * WIDTH * WIDTH, "rank %d: %zu bytes of tapes are left",
             rank, use.tape);
  nvtex_array_destroy(narrow);
  end(&m);
  RANK_OK(rank);
}

// One rank gives up between the passes of the others.
static void fail_alone(NVTEXCommunicator world, int rank) {
  Model m = begin(world);
  NVTEXTape tape = forward(&m);
  RANK_OK(rank);
  const double start = seconds_now();
  if (rank == 1) {
    nvtex_communicator_abort(world, "a batch cannot be read");
  } else {
    nvtex_module_backward(m.all, tape, &m.y, 1, &m.x, 1, NULL);
    RANK_ERROR(rank, "rank 1 has aborted: a batch cannot be read");
    nvtex_data_parallel_gather(m.engine, NULL);
    RANK_ERROR(rank, "rank 1 has aborted: a batch cannot be read");
  }
  RANK_CHECK(seconds_since(start) < 5, "rank %d waited for %g s", rank, seconds_since(start));
  nvtex_tape_destroy(tape);
  end(&m);
  nvtex_clear_error();
}

// A rank that is late, but within the limit, is waited for.
static void come_late(NVTEXCommunicator world, int rank) {
  Model m = begin(world);
  set_weight(&m, 0, 0.5f);
  set_weight(&m, 1, 0.25f);
  if (rank == 1) sleep_for(0.5);
  NVTEXTape tape = forward(&m);
  check_output(&m, rank, WIDTH * 0.5f * WIDTH * 0.25f);
  if (rank == 0) sleep_for(0.5);
  nvtex_module_backward(m.all, tape, &m.y, 1, &m.x, 1, NULL);
  nvtex_tape_destroy(tape);
  end(&m);
  RANK_OK(rank);
}

static void *abort_soon(void *world) {
  sleep_for(0.3);
  nvtex_communicator_abort(world, "by another thread");
  return NULL;
}

// Another thread of a rank ends what this one waits for.
static void abort_beside(NVTEXCommunicator world, int rank) {
  if (rank == 0) sleep_for(1);
  pthread_t other;
  if (rank == 1 && pthread_create(&other, NULL, abort_soon, world)) abort();
  const double start = seconds_now();
  nvtex_barrier(world, "step", NULL);
  RANK_ERROR(rank, "rank 1 has aborted: by another thread");
  RANK_CHECK(seconds_since(start) < 5, "rank %d waited for %g s", rank, seconds_since(start));
  if (rank == 1) pthread_join(other, NULL);
}

// ---- Processes

static char g_key[64];

static NVTEXCommunicator join(int rank, int size) {
  NVTEXCommunicatorConfig config = communicator_config("world", 30);
  NVTEXCommunicator comm = nvtex_communicator_create_shared(g_key, rank, size, &config);
  RANK_OK(rank);
  return comm;
}

// A rank is killed while the others have a part of each weight: they end the pass with its name,
// and go on without it.
static void survive(int rank) {
  int size = 3;
  NVTEXCommunicator world = join(rank, size);
  Model m = begin(world);
  NVTEXTape tape = forward(&m);
  RANK_OK(rank);
  if (rank == 1) raise(SIGKILL);
  const double start = seconds_now();
  nvtex_module_backward(m.all, tape, &m.y, 1, &m.x, 1, NULL);
  RANK_ERROR(rank, "rank 1 (process");
  RANK_CHECK(seconds_since(start) < 5, "rank %d waited for %g s", rank, seconds_since(start));
  nvtex_tape_destroy(tape);
  end(&m);
  nvtex_clear_error();
  nvtex_communicator_destroy(world);
  world = join(rank / 2, size - 1);
  m = begin(world);
  set_weight(&m, 0, 0.5f);
  set_weight(&m, 1, 0.5f);
  tape = forward(&m);
  check_output(&m, rank, WIDTH * 0.5f * WIDTH * 0.5f);
  nvtex_module_backward(m.all, tape, &m.y, 1, &m.x, 1, NULL);
  nvtex_tape_destroy(tape);
  end(&m);
  nvtex_communicator_destroy(world);
  RANK_OK(rank);
}

// There is no library of NCCL at the place that is said.
static void no_library(int rank) {
  setenv("NVTE_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  unsigned char id[128];
  nvtex_communicator_nccl_unique_id(id);
  RANK_CHECK(nvtex_last_status() == NVTEX_UNSUPPORTED, "status %d", nvtex_last_status());
  RANK_ERROR(rank, "NCCL");
}

static void run_processes(int size, int victim, void (*body)(int rank)) {
  pid_t pids[MOST];
  for (int r = 0; r < size; r++) {
    fflush(NULL);
    pids[r] = fork();
    if (pids[r] < 0) abort();
    if (pids[r] > 0) continue;
    // Not longer than the test, whatever happens.
    alarm(60);
    body(r);
    fflush(NULL);
    _exit(atomic_load(&g_bad) ? TEST_FAIL : TEST_PASS);
  }
  for (int r = 0; r < size; r++) {
    int status = 0;
    while (waitpid(pids[r], &status, 0) != pids[r]) {
      if (errno != EINTR) abort();
    }
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const int got = killed              ? DIED
                    : WIFEXITED(status) ? WEXITSTATUS(status)
                                        : 128 + WTERMSIG(status);
    CHECK(got == (r == victim ? DIED : TEST_PASS), "rank %d ended with %d", r, got);
  }
}

int main(int argc, char **argv) {
  test_arguments(argc, argv);
  setenv("NVTE_COMM_OVERLAP", "1", 1);
  snprintf(g_key, sizeof g_key, "capi-faults-%ld", (long)getpid());
  // Processes come first: a device does not survive a fork.
  if (case_begin("a rank is killed between passes")) run_processes(3, 1, survive);
  if (case_begin("no library of NCCL")) run_processes(1, -1, no_library);
  test_begin(argc, argv);
  for (size_t i = 0; i < COUNT(kDifferences); i++) {
    g_difference = (Difference)i;
    if (case_begin("%s", kDifferences[i].name)) run_threads(2, 30, run_another);
  }
  if (case_begin("a layer fails on all ranks")) run_threads(2, 30, fail_together);
  if (case_begin("a rank gives up between passes")) run_threads(2, 30, fail_alone);
  if (case_begin("a rank is late")) run_threads(3, 30, come_late);
  if (case_begin("another thread aborts")) run_threads(2, 30, abort_beside);
  return test_end();
}
