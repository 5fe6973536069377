// Data parallelism: ranks that train together on parts of a batch against plain loops in double
// over all of it, with and without divided optimizer state and divided weights; checkpoints of any
// number of ranks and on any grid;
// what ranks must have alike; and a rank that is killed while others go on from the last
// checkpoint.
#define _GNU_SOURCE

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "../train/safetensors.h"
#include "threads.h"

enum { MOST = 3, THREADS = 4, DIED = 99, IN = 24, MID = 40, OUT = 10, BATCH = 24, PARAMETERS = 4 };
enum { WEIGHT1 = MID * IN, WEIGHT2 = OUT * MID, ALL = WEIGHT1 + MID + WEIGHT2 + OUT };
static const size_t kSizes[PARAMETERS] = {WEIGHT1, MID, WEIGHT2, OUT};
static const size_t kFirst[PARAMETERS] = {0, WEIGHT1, WEIGHT1 + MID, WEIGHT1 + MID + WEIGHT2};

typedef struct Setup {
  NVTEXSharding sharding;
  NVTEDType wire, dtype;
  int microbatches;
  float max_norm;
  size_t bucket;
  NVTEXUpdateRule rule;
  NVTEXMasters masters;
  // Ranks that share weights: rows of the first one, columns of the second.
  size_t tp;
} Setup;

static Setup g_setup;
static const double kRate = 0.01, kDecay = 0.1, kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-8;

// ---- The same training in double, on all of the batch

typedef struct Reference {
  double p[ALL], m[ALL], v[ALL];
  int steps;
} Reference;

static double unit(uint64_t seed, size_t i) {
  return (double)(mixed(i * 0x9E3779B97F4A7C15u + seed) >> 11) * 0x1p-52 - 1;
}

static float first_value(size_t i) { return (float)(0.3 * unit(1, i)); }
static float input(int step, size_t i) { return (float)unit(100 + (uint64_t)step, i); }
static float target(int step, size_t i) { return (float)unit(200 + (uint64_t)step, i); }

static void reference_begin(Reference *r) {
  memset(r, 0, sizeof *r);
  for (size_t i = 0; i < ALL; i++) r->p[i] = (double)first_value(i);
}

static void reference_step(Reference *r, const Setup *s) {
  static _Thread_local double x[BATCH][IN], h[BATCH][MID], dy[BATCH][OUT], dh[BATCH][MID], g[ALL];
  const double *w1 = r->p, *b1 = w1 + WEIGHT1, *w2 = b1 + MID, *b2 = w2 + WEIGHT2;
  memset(g, 0, sizeof g);
  double *gw1 = g, *gb1 = gw1 + WEIGHT1, *gw2 = gb1 + MID, *gb2 = gw2 + WEIGHT2;
  for (size_t n = 0; n < BATCH; n++) {
    for (size_t i = 0; i < IN; i++) x[n][i] = (double)input(r->steps, n * IN + i);
    for (size_t j = 0; j < MID; j++) {
      h[n][j] = b1[j];
      for (size_t i = 0; i < IN; i++) h[n][j] += x[n][i] * w1[j * IN + i];
    }
    for (size_t k = 0; k < OUT; k++) {
      double y = b2[k];
      for (size_t j = 0; j < MID; j++) y += h[n][j] * w2[k * MID + j];
      dy[n][k] = (y - (double)target(r->steps, n * OUT + k)) / BATCH;
      gb2[k] += dy[n][k];
    }
    for (size_t j = 0; j < MID; j++) {
      dh[n][j] = 0;
      for (size_t k = 0; k < OUT; k++) {
        dh[n][j] += dy[n][k] * w2[k * MID + j];
        gw2[k * MID + j] += dy[n][k] * h[n][j];
      }
      gb1[j] += dh[n][j];
      for (size_t i = 0; i < IN; i++) gw1[j * IN + i] += dh[n][j] * x[n][i];
    }
  }
  double square = 0, factor = 1;
  for (size_t i = 0; i < ALL; i++) square += g[i] * g[i];
  double limit = (double)s->max_norm;
  if (limit > 0 && limit < sqrt(square)) factor = limit / (sqrt(square) + 1e-6);
  r->steps++;
  for (size_t i = 0; i < ALL; i++) {
    bool matrix = i < WEIGHT1 || (i >= kFirst[2] && i < kFirst[3]);
    double gradient = g[i] * factor, decay = matrix ? kDecay : 0;
    if (s->rule == NVTEX_UPDATE_SGD) {
      r->m[i] = kBeta1 * r->m[i] + gradient + decay * r->p[i];
      r->p[i] -= kRate * r->m[i];
      continue;
    }
    r->m[i] = kBeta1 * r->m[i] + (1 - kBeta1) * gradient;
    r->v[i] = kBeta2 * r->v[i] + (1 - kBeta2) * gradient * gradient;
    double m = r->m[i] / (1 - pow(kBeta1, r->steps)), v = r->v[i] / (1 - pow(kBeta2, r->steps));
    r->p[i] -= kRate * (m / (sqrt(v) + kEpsilon) + decay * r->p[i]);
  }
}

// ---- A rank's model

typedef struct Model {
  const Setup *setup;
  NVTEXCommunicator comm;
  NVTEXGrid grid;
  // Of those that share batches.
  int rank, size, steps;
  NVTEXContext context;
  NVTEXModule modules[2];
  NVTEXDataParallel engine;
  NVTEXOptimizer optimizer;
} Model;

static NVTETensor new_array(NVTEDType dtype, size_t rows, size_t cols) {
  return nvtex_array_create(dtype, (size_t[]){rows, cols}, 2);
}

static void set_array(NVTETensor array, NVTEDType dtype, const float *values, size_t count) {
  char *bytes = malloc(count * dtype_size(dtype));
  if (!bytes) abort();
  for (size_t i = 0; i < count; i++) put_value(dtype, bytes, i, (double)values[i]);
  nvtex_array_set(array, bytes, count * dtype_size(dtype), NULL);
  free(bytes);
}

static void get_values(NVTEDType dtype, const void *device, float *values, size_t count) {
  char *bytes = malloc(count * dtype_size(dtype));
  if (!bytes) abort();
  nvtex_memcpy_to_host(bytes, device, count * dtype_size(dtype), NULL);
  nvtex_stream_synchronize(NULL);
  for (size_t i = 0; i < count; i++) values[i] = (float)get_value(dtype, bytes, i);
  free(bytes);
}

static NVTEXDataParallelConfig engine_config(const Setup *s) {
  NVTEXDataParallelConfig config;
  nvtex_data_parallel_config_init(&config, sizeof config);
  config.sharding = s->sharding;
  config.wire_dtype = s->wire;
  if (s->bucket) config.bucket_bytes = s->bucket;
  return config;
}

static NVTEXOptimizerConfig optimizer_config(const Setup *s) {
  NVTEXOptimizerConfig config;
  nvtex_optimizer_config_init(&config, sizeof config, s->rule);
  config.learning_rate = (float)kRate;
  config.weight_decay = (float)kDecay;
  config.beta1 = config.momentum = (float)kBeta1;
  config.beta2 = (float)kBeta2;
  config.max_norm = s->max_norm;
  config.masters = s->masters;
  config.accumulation_steps = s->microbatches;
  return config;
}

// The number in all parameters of element i of a rank's part of parameter p.
static size_t place(const NVTEXParameter *found, size_t p, size_t i) {
  const NVTEShape *own = &found->shape, *whole = &found->whole_shape;
  size_t at[2] = {own->ndim > 1 ? i / own->data[1] : i, own->ndim > 1 ? i % own->data[1] : 0};
  size_t *shared = &at[found->shared_dimension];
  for (size_t n = 0; n < found->num_pieces; n++) {
    const NVTEXParameterPiece *piece = &found->pieces[n];
    if (*shared < piece->part || *shared >= piece->part + piece->length) continue;
    *shared += piece->whole - piece->part;
    break;
  }
  return kFirst[p] + (whole->ndim > 1 ? at[0] * whole->data[1] + at[1] : at[0]);
}

// Modules alone. The values of ranks other than 0 are wrong until they have those of rank 0.
static Model begin_modules(const Setup *s, NVTEXCommunicator comm) {
  Model m = {.setup = s, .comm = comm};
  m.context = nvtex_context_create(NULL);
  NVTEXCommunicator dp = comm;
  if (s->tp) {
    NVTEXGridConfig sizes = {.struct_size = sizeof sizes, .tp = s->tp};
    m.grid = nvtex_grid_create(comm, &sizes);
    nvtex_context_set_grid(m.context, m.grid);
    dp = nvtex_grid_communicator(m.grid, NVTEX_GRID_DP);
  }
  m.rank = nvtex_communicator_rank(dp);
  m.size = nvtex_communicator_size(dp);
  for (size_t i = 0; i < 2; i++) {
    NVTEXLinearConfig c;
    nvtex_linear_config_init(&c, sizeof c);
    c.name = i ? "second" : "first";
    c.in_features = i ? MID : IN;
    c.out_features = i ? OUT : MID;
    c.dtype = s->dtype;
    const NVTEXParallelOptions options = {.struct_size = sizeof options,
                                          .mode = i ? NVTEX_PARALLEL_ROW : NVTEX_PARALLEL_COLUMN};
    if (s->tp) c.parallel = (NVTEXParallelConfig){.context_parallel_size = 1, .options = &options};
    m.modules[i] = nvtex_linear_create(m.context, &c, NULL);
  }
  for (size_t p = 0; p < PARAMETERS; p++) {
    float values[WEIGHT1];
    const NVTEXParameter found = parameter_of(m.modules[p / 2], p % 2);
    const size_t count = numel(found.shape);
    for (size_t i = 0; i < count; i++) {
      values[i] = m.rank == 0 ? first_value(place(&found, p, i)) : 7;
    }
    NVTETensor array = nvtex_array_create(kNVTEFloat32, found.shape.data, found.shape.ndim);
    set_array(array, kNVTEFloat32, values, count);
    nvtex_module_assign_parameter(m.modules[p / 2], p % 2, array, NULL);
    nvtex_array_destroy(array);
  }
  return m;
}

static Model begin(const Setup *s, NVTEXCommunicator comm) {
  Model m = begin_modules(s, comm);
  NVTEXDataParallelConfig config = engine_config(s);
  NVTEXCommunicator dp = s->tp ? nvtex_grid_communicator(m.grid, NVTEX_GRID_DP) : comm;
  m.engine = nvtex_data_parallel_create(m.context, &config, dp, m.modules, 2, NULL);
  NVTEXOptimizerConfig o = optimizer_config(s);
  o.data_parallel = m.engine;
  m.optimizer = nvtex_optimizer_create(m.context, &o, m.modules, 2, NULL);
  RANK_OK(m.rank);
  return m;
}

static void end(Model *m) {
  nvtex_optimizer_destroy(m->optimizer);
  nvtex_data_parallel_destroy(m->engine);
  for (size_t i = 0; i < 2; i++) nvtex_module_destroy(m->modules[i]);
  nvtex_context_destroy(m->context);
  if (m->grid) nvtex_grid_destroy(m->grid);
  RANK_OK(m->rank);
}

// Passes over one microbatch of this rank's part of the batch.
static void passes(Model *m, int microbatch) {
  const NVTEDType dtype = m->setup->dtype;
  const int parts = m->size * m->setup->microbatches;
  const size_t rows = (size_t)(BATCH / parts);
  const size_t first = (size_t)(m->rank * m->setup->microbatches + microbatch) * rows;
  float x[BATCH * IN], y[BATCH * OUT];
  for (size_t i = 0; i < rows * IN; i++) x[i] = input(m->steps, first * IN + i);
  const size_t tp = m->setup->tp ? m->setup->tp : 1;
  NVTETensor in = new_array(dtype, rows, IN), mid = new_array(dtype, rows, MID / tp);
  NVTETensor out = new_array(dtype, rows, OUT), grad = new_array(dtype, rows, OUT);
  NVTETensor mid_grad = new_array(dtype, rows, MID / tp), in_grad = new_array(dtype, rows, IN);
  set_array(in, dtype, x, rows * IN);
  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  step.microbatch = microbatch ? NVTEX_MICROBATCH_LATER : NVTEX_MICROBATCH_FIRST;
  NVTEXTape tapes[2] = {0};
  nvtex_module_forward(m->modules[0], &in, 1, &mid, 1, &step, &tapes[0], NULL);
  nvtex_module_forward(m->modules[1], &mid, 1, &out, 1, &step, &tapes[1], NULL);
  get_values(dtype, nvte_tensor_data(out), y, rows * OUT);
  for (size_t i = 0; i < rows * OUT; i++) {
    y[i] = (y[i] - target(m->steps, first * OUT + i)) / (float)rows;
  }
  set_array(grad, dtype, y, rows * OUT);
  nvtex_module_backward(m->modules[1], tapes[1], &grad, 1, &mid_grad, 1, NULL);
  nvtex_module_backward(m->modules[0], tapes[0], &mid_grad, 1, &in_grad, 1, NULL);
  for (size_t i = 0; i < 2; i++) nvtex_tape_destroy(tapes[i]);
  const NVTETensor arrays[] = {in, mid, out, grad, mid_grad, in_grad};
  for (size_t i = 0; i < COUNT(arrays); i++) nvtex_array_destroy(arrays[i]);
}

static void step(Model *m) {
  for (int i = 0; i < m->setup->microbatches; i++) passes(m, i);
  nvtex_data_parallel_reduce(m->engine, NULL);
  nvtex_optimizer_step(m->optimizer, NULL);
  m->steps++;
}

// What counts on this rank, at its place in all parameters.
static void read_parameters(const Model *m, float *values) {
  nvtex_data_parallel_gather(m->engine, NULL);
  for (size_t p = 0; p < PARAMETERS; p++) {
    const NVTEXParameter found = parameter_of(m->modules[p / 2], p % 2);
    const size_t count = numel(found.shape);
    float own[WEIGHT1];
    get_values(m->setup->dtype, nvte_tensor_data(found.value), own, count);
    for (size_t i = 0; i < count && found.pieces[0].counts; i++) {
      values[place(&found, p, i)] = own[i];
    }
  }
  nvtex_data_parallel_release(m->engine, NULL);
}

// In float32 all parameters are close. In 16 bits, and in TF32, as which tensor cores take float32,
// Adam turns small gradients, whose sign is not certain, into whole steps, so that only the mean
// is.
static void check_parameters(const float *got, const Reference *r, const char *what) {
  double worst = 0, squares = 0;
  for (size_t i = 0; i < ALL; i++) {
    double error = fabs((double)got[i] - r->p[i]);
    squares += error * error;
    if (!(error <= worst)) worst = error;
  }
  const bool wide = g_setup.dtype == kNVTEFloat32 && !on_cuda();
  const bool exact = g_setup.wire == kNVTEFloat32;
  double error = wide ? worst : sqrt(squares / ALL), most = wide ? exact ? 2e-5 : 3e-4 : 4e-3;
  RANK_CHECK(error <= most, "%s: the parameters are off by %g, up to %g", what, error, worst);
}

// ---- Training against the reference

static const NVTEXSharding kLevels[] = {NVTEX_SHARDING_NONE, NVTEX_SHARDING_OPTIMIZER,
                                        NVTEX_SHARDING_FULL};

static float g_result[THREADS][ALL];

static void train(NVTEXCommunicator comm, int rank) {
  Model m = begin(&g_setup, comm);
  size_t kept = 0;
  for (size_t p = 0; p < PARAMETERS; p++) {
    size_t first = ALL, count = ALL;
    nvtex_data_parallel_part(m.engine, m.modules[p / 2], p % 2, &first, &count);
    RANK_CHECK(first + count <= kSizes[p], "parameter %zu: %zu from %zu on", p, count, first);
    NVTEXOptimizerParameter found = {.struct_size = sizeof found};
    nvtex_optimizer_parameter(m.optimizer, p, &found);
    RANK_CHECK(numel(found.state[0].shape) == count, "parameter %zu: state of %zu, not %zu", p,
               numel(found.state[0].shape), count);
    kept += count;
  }
  // No rank has all of what is divided.
  if (g_setup.sharding == NVTEX_SHARDING_NONE || nvtex_communicator_size(comm) == 1) {
    RANK_CHECK(kept == ALL, "rank %d has %zu elements", rank, kept);
  } else {
    RANK_CHECK(kept < ALL, "rank %d has all elements", rank);
  }
  for (int i = 0; i < 3; i++) step(&m);
  read_parameters(&m, g_result[m.rank]);
  RANK_OK(rank);
  end(&m);
}

static void check_training(void) {
  static Reference r;
  static float replicated[ALL];
  for (int size = 1; size <= MOST; size++) {
    for (size_t level = 0; level < COUNT(kLevels); level++) {
      g_setup.sharding = kLevels[level];
      run_threads(size, 30, train);
      reference_begin(&r);
      for (int i = 0; i < 3; i++) reference_step(&r, &g_setup);
      for (int rank = 0; rank < size; rank++) {
        char what[64];
        snprintf(what, sizeof what, "rank %d of %d, sharding %d", rank, size, g_setup.sharding);
        check_parameters(g_result[rank], &r, what);
        CHECK(!memcmp(g_result[rank], g_result[0], sizeof g_result[0]), "%s has other bits", what);
      }
      // Sums are those of the same numbers in the same order, whatever ranks divide. Norms are not.
      // With all divided, ranks are summed before microbatches are.
      const bool same = kLevels[level] != NVTEX_SHARDING_FULL || g_setup.microbatches == 1;
      if (level && same && g_setup.max_norm == 0) {
        CHECK(!memcmp(g_result[0], replicated, sizeof replicated), "other bits if divided");
      }
      memcpy(replicated, g_result[0], sizeof replicated);
    }
  }
  unsigned bad = failed_checks();
  CHECK(bad == 0, "%u checks failed", bad);
}

// One rank alone keeps gradients as they would travel, unless something is divided.
static void train_narrow(NVTEXCommunicator comm, int rank) {
  Model m = begin(&g_setup, comm);
  const bool whole = g_setup.sharding == NVTEX_SHARDING_NONE;
  for (size_t p = 0; p < PARAMETERS; p++) {
    NVTEXOptimizerParameter found = {.struct_size = sizeof found};
    nvtex_optimizer_parameter(m.optimizer, p, &found);
    RANK_CHECK(found.gradient.dtype == (whole ? kNVTEBFloat16 : kNVTEFloat32),
               "parameter %zu: a gradient of dtype %d", p, (int)found.gradient.dtype);
  }
  for (int i = 0; i < 3; i++) step(&m);
  read_parameters(&m, g_result[0]);
  RANK_OK(rank);
  end(&m);
}

static void check_narrow(void) {
  static Reference r;
  g_setup = (Setup){0,    kNVTEBFloat16,      kNVTEBFloat16,         2, 0.05f,
                    4096, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_FLOAT32, 0};
  for (size_t level = 0; level < 2; level++) {
    g_setup.sharding = kLevels[level];
    run_threads(1, 30, train_narrow);
    reference_begin(&r);
    for (int i = 0; i < 3; i++) reference_step(&r, &g_setup);
    check_parameters(g_result[0], &r, level ? "divided" : "whole");
  }
}

// ---- Checkpoints

static const char *g_path, *g_other;

static void checkpoint(Model *m, const char *path, bool save) {
  NVTEXCheckpointConfig config;
  nvtex_checkpoint_config_init(&config, sizeof config);
  config.modules = m->modules;
  config.num_modules = 2;
  config.optimizer = m->optimizer;
  config.communicator = m->comm;
  (save ? nvtex_checkpoint_save : nvtex_checkpoint_load)(path, &config, NULL);
}

static void train_and_save(NVTEXCommunicator comm, int rank) {
  Model m = begin(&g_setup, comm);
  for (int i = 0; i < 2; i++) step(&m);
  checkpoint(&m, g_path, true);
  RANK_OK(rank);
  step(&m);
  read_parameters(&m, g_result[m.rank]);
  end(&m);
}

static void load_and_go_on(NVTEXCommunicator comm, int rank) {
  Model m = begin(&g_setup, comm);
  checkpoint(&m, g_path, false);
  RANK_OK(rank);
  checkpoint(&m, g_other, true);
  RANK_OK(rank);
  m.steps = 2;
  step(&m);
  read_parameters(&m, g_result[m.rank]);
  RANK_OK(rank);
  end(&m);
}

// Each grid saves, and each goes on from what each has saved.
static const struct {
  size_t tp, dp;
} kGrids[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}};

static void train_on_grid(NVTEXCommunicator comm, int rank) {
  Model m = begin(&g_setup, comm);
  for (int i = 0; i < 3; i++) step(&m);
  read_parameters(&m, g_result[m.rank]);
  RANK_OK(rank);
  end(&m);
}

static void check_same_file(const char *what) {
  size_t sizes[2];
  char *files[2];
  for (int i = 0; i < 2; i++) {
    FILE *file = fopen(i ? g_other : g_path, "rb");
    if (!CHECK(file != NULL, "%s: no file", what)) return;
    files[i] = malloc(1 << 20);
    if (!files[i]) abort();
    sizes[i] = fread(files[i], 1, 1 << 20, file);
    fclose(file);
  }
  CHECK(sizes[0] > 1000 && sizes[0] == sizes[1] && !memcmp(files[0], files[1], sizes[0]),
        "%s: %zu and %zu bytes that differ", what, sizes[0], sizes[1]);
  free(files[0]);
  free(files[1]);
}

static void check_checkpoints(void) {
  static Reference r;
  static float next[ALL];
  g_path = in_folder("first");
  g_other = in_folder("second");
  reference_begin(&r);
  for (int i = 0; i < 3; i++) reference_step(&r, &g_setup);
  for (int from = 1; from <= MOST; from++) {
    g_setup.sharding = from == 2 ? NVTEX_SHARDING_FULL : NVTEX_SHARDING_OPTIMIZER;
    run_threads(from, 30, train_and_save);
    memcpy(next, g_result[0], sizeof next);
    for (int to = 1; to <= MOST; to++) {
      for (size_t level = 0; level < COUNT(kLevels); level++) {
        g_setup.sharding = kLevels[level];
        run_threads(to, 30, load_and_go_on);
        char what[64];
        snprintf(what, sizeof what, "from %d to %d ranks, sharding %d", from, to, g_setup.sharding);
        check_same_file(what);
        check_parameters(g_result[0], &r, what);
        if (from == to && g_setup.max_norm == 0) {
          CHECK(!memcmp(next, g_result[0], sizeof next), "%s: another next step", what);
        }
      }
    }
  }
  unsigned bad = failed_checks();
  CHECK(bad == 0, "%u checks failed", bad);
}

static void check_grids(void) {
  static Reference r;
  g_path = in_folder("first");
  g_other = in_folder("second");
  reference_begin(&r);
  for (int i = 0; i < 3; i++) reference_step(&r, &g_setup);
  for (size_t from = 0; from < COUNT(kGrids); from++) {
    char what[80];
    for (size_t level = 0; level < COUNT(kLevels); level++) {
      g_setup.tp = kGrids[from].tp;
      g_setup.sharding = kLevels[level];
      memset(g_result, 0, sizeof g_result);
      run_threads((int)(g_setup.tp * kGrids[from].dp), 30, train_on_grid);
      snprintf(what, sizeof what, "tp %zu dp %zu", g_setup.tp, kGrids[from].dp);
      for (size_t d = 0; d < kGrids[from].dp; d++) check_parameters(g_result[d], &r, what);
    }
    run_threads((int)(g_setup.tp * kGrids[from].dp), 30, train_and_save);
    for (size_t to = 0; to < COUNT(kGrids); to++) {
      g_setup.tp = kGrids[to].tp;
      g_setup.sharding = kLevels[(from + to) % COUNT(kLevels)];
      memset(g_result, 0, sizeof g_result);
      run_threads((int)(g_setup.tp * kGrids[to].dp), 30, load_and_go_on);
      snprintf(what, sizeof what, "from tp %zu dp %zu to tp %zu dp %zu", kGrids[from].tp,
               kGrids[from].dp, kGrids[to].tp, kGrids[to].dp);
      check_same_file(what);
      check_parameters(g_result[0], &r, what);
    }
  }
  unsigned bad = failed_checks();
  CHECK(bad == 0, "%u checks failed", bad);
}

// A layer of which ranks have several pieces of a weight: its file is the same on every grid, since
// its initial values are.
static void save_layer(NVTEXCommunicator comm, int rank) {
  NVTEXContext context = nvtex_context_create(NULL);
  int size = nvtex_communicator_size(comm);
  NVTEXGridConfig sizes = {.struct_size = sizeof sizes, .tp = (size_t)size};
  NVTEXGrid grid = nvtex_grid_create(comm, &sizes);
  nvtex_context_set_grid(context, grid);
  NVTEXTransformerLayerConfig layer;
  nvtex_transformer_layer_config_init(&layer, sizeof layer);
  layer.name = "layer";
  layer.mlp.hidden_size = 64;
  layer.mlp.ffn_hidden_size = 96;
  layer.mlp.activation = SWIGLU;
  layer.attention.num_attention_heads = 8;
  layer.attention.num_gqa_groups = 4;
  layer.attention.parallel.tensor_parallel_size = layer.mlp.parallel.tensor_parallel_size = 0;
  NVTEXModule module = nvtex_transformer_layer_create(context, &layer, NULL);
  NVTEXCheckpointConfig config;
  nvtex_checkpoint_config_init(&config, sizeof config);
  config.modules = &module;
  config.num_modules = 1;
  config.communicator = comm;
  nvtex_checkpoint_save(size == 1 ? g_path : g_other, &config, NULL);
  RANK_OK(rank);
  // What a rank reads is its part.
  for (size_t p = 0; p < nvtex_module_num_parameters(module); p++) {
    const NVTEXParameter found = parameter_of(module, p);
    nvte_memset(nvte_tensor_data(found.value), 0, numel(found.shape) * 4, NULL);
  }
  nvtex_checkpoint_load(size == 1 ? g_path : g_other, &config, NULL);
  nvtex_checkpoint_save(g_other, &config, NULL);
  RANK_OK(rank);
  nvtex_module_destroy(module);
  nvtex_context_destroy(context);
  nvtex_grid_destroy(grid);
}

static void check_pieces(void) {
  g_path = in_folder("first");
  g_other = in_folder("second");
  for (int size = 1; size <= 4; size *= 2) {
    run_threads(size, 30, save_layer);
    check_same_file("a layer on a grid");
  }
}

static void refused_on_grids(NVTEXCommunicator comm, int rank) {
  Model m = begin(&g_setup, comm);
  NVTEXOptimizerConfig o;
  nvtex_optimizer_config_init(&o, sizeof o, NVTEX_UPDATE_MUON);
  o.data_parallel = m.engine;
  nvtex_optimizer_create(m.context, &o, m.modules, 2, NULL);
  RANK_ERROR(rank, "parameter \"first.weight\": options.rule: expected an update of single");
  // The ranks that share weights are not all that have parts.
  m.comm = nvtex_grid_communicator(m.grid, NVTEX_GRID_TP);
  checkpoint(&m, in_folder("none"), true);
  RANK_ERROR(rank, "config.communicator: expected all ranks, at least the 4 that have parts");
  m.comm = comm;
  step(&m);
  RANK_OK(rank);
  end(&m);
}

// ---- What is refused, on all ranks

static void refused(NVTEXCommunicator comm, int rank) {
  const bool odd = rank == 1;
  Model m = begin_modules(&g_setup, comm);
  NVTEXDataParallelConfig config = engine_config(&g_setup);
  // A gradient of the program on one rank.
  NVTETensor own = nvtex_array_create(kNVTEFloat32, (size_t[]){MID}, 1);
  if (odd) nvtex_module_set_gradient(m.modules[0], 1, own, false);
  nvtex_data_parallel_create(m.context, &config, comm, m.modules, 2, NULL);
  RANK_ERROR(rank, odd ? "create: gradient of \"first.bias\": expected none"
                       : "rank 1: gradient of \"first.bias\": expected none");
  nvtex_module_set_gradient(m.modules[0], 1, NULL, false);
  nvtex_array_destroy(own);
  // Another config, and other modules.
  config.gradients = odd ? NVTEX_GRADIENTS_SUM : NVTEX_GRADIENTS_MEAN;
  nvtex_data_parallel_create(m.context, &config, comm, m.modules, 2, NULL);
  RANK_ERROR(rank, "as rank 0 has");
  config.gradients = NVTEX_GRADIENTS_MEAN;
  nvtex_data_parallel_create(m.context, &config, comm, m.modules, odd ? 1 : 2, NULL);
  RANK_ERROR(rank, "\"second.weight [10, 40] of Float32");
  // Optimizers that do not suit the engine.
  m.engine = nvtex_data_parallel_create(m.context, &config, comm, m.modules, 2, NULL);
  RANK_OK(rank);
  NVTEXOptimizerConfig o = optimizer_config(&g_setup);
  nvtex_optimizer_create(m.context, &o, m.modules, 2, NULL);
  RANK_ERROR(rank, "config.data_parallel: expected the engine that divides gradients");
  nvtex_optimizer_config_init(&o, sizeof o, NVTEX_UPDATE_MUON);
  o.data_parallel = m.engine;
  nvtex_optimizer_create(m.context, &o, m.modules, 2, NULL);
  RANK_ERROR(rank, "parameter \"first.weight\": options.rule: expected an update of single");
  o = optimizer_config(&g_setup);
  o.data_parallel = m.engine;
  m.optimizer = nvtex_optimizer_create(m.context, &o, m.modules, 2, NULL);
  RANK_OK(rank);
  // A step without a reduction changes nothing.
  float before[ALL], after[ALL];
  read_parameters(&m, before);
  nvtex_optimizer_step(m.optimizer, NULL);
  RANK_ERROR(rank, "optimizer: expected gradients that nvtex_data_parallel_reduce has summed");
  read_parameters(&m, after);
  RANK_CHECK(!memcmp(before, after, sizeof before), "rank %d has changed", rank);
  step(&m);
  RANK_OK(rank);
  // A file that the first rank cannot write, a missing one, and no communicator.
  checkpoint(&m, "/nowhere/at/all", true);
  RANK_ERROR(rank, rank ? "rank 0: cannot create /nowhere/at/" : "cannot create /nowhere/at/");
  checkpoint(&m, "/nowhere/at/all", false);
  RANK_ERROR(rank, "cannot open /nowhere/at/all");
  m.comm = NULL;
  checkpoint(&m, "/nowhere/at/all", true);
  RANK_ERROR(rank, "config.communicator: expected a communicator: ranks have parts");
  // All is well afterwards.
  step(&m);
  RANK_OK(rank);
  end(&m);
}

// ---- Processes: one is killed, and the others go on from the last checkpoint

static char g_key[64];

static NVTEXCommunicator join(int rank, int size) {
  NVTEXCommunicatorConfig config = communicator_config("dp", 30);
  NVTEXCommunicator comm = nvtex_communicator_create_shared(g_key, rank, size, &config);
  RANK_OK(rank);
  return comm;
}

static void survive(int rank, int size) {
  static Reference r;
  NVTEXCommunicator comm = join(rank, size);
  Model m = begin(&g_setup, comm);
  for (int i = 0; i < 2; i++) step(&m);
  checkpoint(&m, g_path, true);
  step(&m);
  RANK_OK(rank);
  for (int i = 0; i < m.setup->microbatches; i++) passes(&m, i);
  if (rank == 1) raise(SIGKILL);
  double start = seconds_now();
  nvtex_data_parallel_reduce(m.engine, NULL);
  RANK_ERROR(rank, "rank 1 (process");
  RANK_CHECK(seconds_now() - start < 5, "rank %d waited for %g s", rank, seconds_now() - start);
  nvtex_optimizer_step(m.optimizer, NULL);
  nvtex_clear_error();
  end(&m);
  nvtex_communicator_destroy(comm);
  comm = join(rank > 1 ? rank - 1 : rank, size - 1);
  m = begin(&g_setup, comm);
  checkpoint(&m, g_path, false);
  RANK_OK(rank);
  m.steps = 2;
  step(&m);
  read_parameters(&m, g_result[0]);
  reference_begin(&r);
  for (int i = 0; i < 3; i++) reference_step(&r, &g_setup);
  g_test.backend = nvtex_backend_name();  // for the tolerance: this child has begun no test
  check_parameters(g_result[0], &r, "after a rank was killed");
  end(&m);
  nvtex_communicator_destroy(comm);
  RANK_OK(rank);
}

static void run_processes(int size, int victim, void (*body)(int rank, int size)) {
  pid_t pids[MOST];
  for (int r = 0; r < size; r++) {
    fflush(NULL);
    pids[r] = fork();
    if (pids[r] < 0) abort();
    if (pids[r] > 0) continue;
    // Not longer than the test, whatever happens.
    alarm(60);
    body(r, size);
    fflush(NULL);
    _exit(atomic_load(&g_bad) ? TEST_FAIL : TEST_PASS);
  }
  for (int r = 0; r < size; r++) {
    int status = 0;
    while (waitpid(pids[r], &status, 0) != pids[r]) {
      if (errno != EINTR) abort();
    }
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    int got = killed ? DIED : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    CHECK(got == (r == victim ? DIED : TEST_PASS), "rank %d ended with %d", r, got);
  }
}

#define ADAM kNVTEFloat32, kNVTEFloat32, 1, 0, 0, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_FLOAT32, 0

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    Setup setup;
  } cases[] = {
      {"AdamW", {0, ADAM}},
      {"small buckets",
       {0, kNVTEFloat32, kNVTEFloat32, 1, 0, 4096, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_FLOAT32, 0}},
      {"accumulation and clipping",
       {0, kNVTEFloat32, kNVTEFloat32, 2, 0.05f, 0, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_FLOAT32, 0}},
      {"gradient descent",
       {0, kNVTEFloat32, kNVTEFloat32, 4, 0, 1, NVTEX_UPDATE_SGD, NVTEX_MASTERS_FLOAT32, 0}},
      {"gradients of 16 bits on the wire",
       {0, kNVTEBFloat16, kNVTEFloat32, 1, 0, 0, NVTEX_UPDATE_SGD, NVTEX_MASTERS_FLOAT32, 0}},
      {"parameters of 16 bits with masters",
       {0, kNVTEFloat32, kNVTEBFloat16, 1, 0, 0, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_FLOAT32, 0}},
      {"parameters of 16 bits with remainders",
       {0, kNVTEFloat32, kNVTEBFloat16, 1, 0, 4096, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_REMAINDER,
        0}},
  };
  test_arguments(argc, argv);
  folder_begin();
  g_path = in_folder("first");
  snprintf(g_key, sizeof g_key, "capi-training-%ld", (long)getpid());
  // Processes come first: a device does not survive a fork.
  if (case_begin("a rank is killed")) {
    g_setup = (Setup){NVTEX_SHARDING_OPTIMIZER, ADAM};
    run_processes(3, 1, survive);
  }
  test_begin(argc, argv);
  for (size_t i = 0; i < COUNT(cases); i++) {
    g_setup = cases[i].setup;
    if (case_begin("training: %s", cases[i].name)) check_training();
  }
  if (case_begin("training: one rank keeps gradients of 16 bits")) check_narrow();
  for (size_t i = 0; i < COUNT(cases); i++) {
    g_setup = cases[i].setup;
    if (i != 2 && i < 5) continue;
    if (case_begin("checkpoints: %s", cases[i].name)) check_checkpoints();
  }
  for (size_t i = 0; i < COUNT(cases); i++) {
    g_setup = cases[i].setup;
    if (i < 2 || i == 4) continue;
    if (case_begin("grids: %s", cases[i].name)) check_grids();
  }
  if (case_begin("grids: pieces of weights")) check_pieces();
  if (case_begin("refused on grids")) {
    g_setup = (Setup){NVTEX_SHARDING_OPTIMIZER, ADAM};
    g_setup.tp = 2;
    run_threads(4, 30, refused_on_grids);
  }
  if (case_begin("refused")) {
    g_setup = (Setup){NVTEX_SHARDING_OPTIMIZER, ADAM};
    run_threads(3, 30, refused);
  }
  folder_end();
  return test_end();
}
