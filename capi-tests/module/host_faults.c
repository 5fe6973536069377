// The host's allocator refuses memory, beginning with each allocation that the calls of a training
// step make, one after the other, once or from there on, each in a process of its own. The calls
// end well, by what the library keeps for small requests, or say what failed; the process lives,
// and the next step gives the same bits as if nothing had failed.
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "../train/safetensors.h"
#include "child.h"

// ---- The allocator of this program and of all libraries in it

// Allocations until the one that fails; below 0 none does.
static atomic_long g_left = -1;
static atomic_bool g_all;  // all after it fail, too
static atomic_size_t g_count, g_refused;

static bool refused(void) {
  atomic_fetch_add(&g_count, 1);
  if (atomic_load(&g_left) < 0) return false;
  if (atomic_fetch_sub(&g_left, 1) > 0) return false;
  if (atomic_load(&g_all)) atomic_store(&g_left, 0);
  atomic_fetch_add(&g_refused, 1);
  errno = ENOMEM;
  return true;
}

static void arm(long left, bool all) {
  atomic_store(&g_all, all);
  atomic_store(&g_left, left);
}

#ifdef __GLIBC__
#define CAN_REFUSE true
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes) { return refused() ? NULL : __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return refused() ? NULL : __libc_calloc(count, bytes); }
void *realloc(void *memory, size_t bytes) {
  return refused() ? NULL : __libc_realloc(memory, bytes);
}
int posix_memalign(void **memory, size_t alignment, size_t bytes) {
  void *block = refused() ? NULL : __libc_memalign(alignment, bytes);
  if (!block) return ENOMEM;
  *memory = block;
  return 0;
}
#else
#define CAN_REFUSE false
#endif

// ---- A layer and what trains it

enum { HIDDEN = 32, HEADS = 2, FFN = 64, ROWS = 16 };
// More than the calls here allocate, and fewer than all of them do.
enum { MOST = 1 << 16, FEWEST = 20 };

typedef struct Step {
  size_t ffn;
  NVTEDType moments;
  NVTEXContext context;
  NVTEXRecipe recipe;
  NVTEXModule layer;
  NVTEXOptimizer optimizer;
  Buffer *inputs, *outputs;
  NVTETensor x, dy, y, dx;
  const char *file;
} Step;

static NVTEXModule create_layer(const Step *s) {
  NVTEXTransformerLayerConfig config;
  nvtex_transformer_layer_config_init(&config, sizeof config);
  config.attention.num_attention_heads = HEADS;
  config.attention.dtype = config.mlp.dtype = kNVTEBFloat16;
  config.mlp.hidden_size = HIDDEN;
  config.mlp.ffn_hidden_size = s->ffn;
  return nvtex_transformer_layer_create(s->context, &config, NULL);
}

static NVTEXOptimizer create_optimizer(const Step *s, NVTEXModule layer) {
  NVTEXOptimizerConfig config;
  nvtex_optimizer_config_init(&config, sizeof config, NVTEX_UPDATE_ADAMW);
  config.moment_dtype = s->moments;
  // Steps do not change the weights, so that each gives the same bits.
  config.learning_rate = 0;
  return nvtex_optimizer_create(s->context, &config, &layer, 1, NULL);
}

static void open_step(Step *s, int kind, bool large) {
  memset(s, 0, sizeof *s);
  // A matrix of more than 2^16 elements: its moments are larger than what the reserve serves.
  s->ffn = large ? 36 * FFN : FFN;
  s->moments = large ? kNVTEFloat8E4M3 : kNVTEFloat32;
  s->context = nvtex_context_create(NULL);
  if (kind >= 0) {
    NVTEXRecipeConfig config;
    nvtex_recipe_config_init(&config, sizeof config, (NVTEXRecipeKind)kind);
    config.amax_history_len = 1;  // so that a step's scales follow from the step before alone
    s->recipe = nvtex_recipe_create(&config);
  }
  s->layer = create_layer(s);
  s->optimizer = create_optimizer(s, s->layer);
  const size_t bytes = ROWS * HIDDEN * 2;
  const NVTEShape shape = SHAPE(ROWS, 1, HIDDEN);
  s->inputs = buffer_from(random_values(kNVTEBFloat16, ROWS * HIDDEN * 2, -1, 1), 2 * bytes, 0);
  s->outputs = buffer(2 * bytes);
  s->x = tensor(s->inputs->ptr, kNVTEBFloat16, shape);
  s->dy = tensor(s->inputs->ptr + bytes, kNVTEBFloat16, shape);
  s->y = tensor(s->outputs->ptr, kNVTEBFloat16, shape);
  s->dx = tensor(s->outputs->ptr + bytes, kNVTEBFloat16, shape);
  s->file = in_folder("checkpoint");
  EXPECT_OK();
}

static void close_step(Step *s) {
  nvtex_optimizer_destroy(s->optimizer);
  nvtex_module_destroy(s->layer);
  nvtex_recipe_destroy(s->recipe);
  nvtex_context_destroy(s->context);
  EXPECT_OK();
}

// ---- Calls, each of which gives the name of the one that failed, or null

#define TRY(call)                                        \
  do {                                                   \
    if (failed) break;                                   \
    call;                                                \
    if (nvtex_last_status() != NVTEX_OK) failed = #call; \
  } while (0)

static const char *train(const Step *s) {
  const char *failed = NULL;
  NVTEXTape tape = NULL;
  TRY(nvtex_context_begin(s->context, s->recipe, s->recipe ? NVTEX_CONTEXT_ENABLED : 0, NULL));
  const bool begun = !failed;
  TRY(nvtex_module_forward(s->layer, &s->x, 1, &s->y, 1, NULL, &tape, NULL));
  // A call that ends well keeps the error of the one before.
  if (begun) nvtex_context_end(s->context);
  TRY(nvtex_context_forward_update(s->context, NULL));
  TRY(nvtex_module_backward(s->layer, tape, &s->dy, 1, &s->dx, 1, NULL));
  TRY(nvtex_context_backward_update(s->context, NULL));
  TRY(nvtex_optimizer_step(s->optimizer, NULL));
  nvtex_tape_destroy(tape);
  return failed;
}

static const char *create(const Step *s) {
  const char *failed = NULL;
  NVTEXModule layer = NULL;
  NVTEXOptimizer optimizer = NULL;
  TRY(layer = create_layer(s));
  TRY(optimizer = create_optimizer(s, layer));
  nvtex_optimizer_destroy(optimizer);
  nvtex_module_destroy(layer);
  return failed;
}

static const char *save_and_load(const Step *s) {
  const char *failed = NULL;
  NVTEXCheckpointConfig config;
  nvtex_checkpoint_config_init(&config, sizeof config);
  config.modules = &s->layer;
  config.num_modules = 1;
  config.optimizer = s->optimizer;
  TRY(nvtex_checkpoint_save(s->file, &config, NULL));
  TRY(nvtex_checkpoint_load(s->file, &config, NULL));
  return failed;
}
#undef TRY

// ---- A process for each allocation

// What a child says, in memory that it shares with its parent.
static struct Report {
  size_t refused, count;
  char failed[128], text[512];
  bool differs;
} *g_report;

static void in_child(const Step *s, const char *(*calls)(const Step *), long n, bool all,
                     const void *expected) {
  atomic_store(&g_refused, 0);
  arm(n, all);
  const char *failed = calls(s);
  arm(-1, false);
  g_report->refused = atomic_load(&g_refused);
  snprintf(g_report->failed, sizeof g_report->failed, "%s", failed ? failed : "");
  snprintf(g_report->text, sizeof g_report->text, "%s", failed ? nvtex_last_error() : "");
  nvtex_clear_error();
  memset(s->outputs->ptr, POISON_VALUE, s->outputs->bytes);
  g_report->differs = train(s) || memcmp(s->outputs->ptr, expected, s->outputs->bytes) != 0;
}

static void test(const char *name, int kind, bool large, const char *(*calls)(const Step *)) {
  for (int all = 0; all < 2; all++) {
    if (!case_begin("no memory %s one of the allocations of %s", all ? "from" : "for", name))
      continue;
    Step s;
    open_step(&s, kind, large);
    // Scales that follow from steps before have come to rest after some, and threads have what they
    // keep.
    for (int i = 0; i < 8; i++) CHECK(!train(&s) && !calls(&s), "%s", nvtex_last_error());
    CHECK(!train(&s), "%s", nvtex_last_error());
    const void *expected = buffer_read(s.outputs);
    size_t n = 0, errors = 0;
    // Where cases are left out, so are allocations, evenly.
    for (; n < MOST; n += g_test.every) {
      memset(g_report, 0, sizeof *g_report);
      const pid_t pid = fork_child();
      if (pid == 0) {
        alarm(60);
        in_child(&s, calls, (long)n, all, expected);
        _exit(0);
      }
      const int status = wait_for_child(pid);
      if (!CHECK(status == 0, "allocation %zu: wait status %d", n, status)) break;
      if (!g_report->refused) break;
      const char *text = g_report->text;
      errors += g_report->failed[0] != 0;
      CHECK(!text[0] || strstr(text, "memory") || strstr(text, "alloc"),
            "allocation %zu: \"%s\" does not say what failed", n, text);
      CHECK(!g_report->differs, "allocation %zu: the next step differs", n);
    }
    CHECK(n >= FEWEST && n < MOST, "%zu allocations", n);
    if (getenv("NVTE_TEST_TABLE")) printf("%s: %zu of %zu end as errors\n", g_test.name, errors, n);
    close_step(&s);
  }
}

int main(int argc, char **argv) {
  setenv("NVTE_VERBOSE", "none", 0);  // messages that are expected
  setenv("NVTE_NUM_THREADS", "1", 1);
  test_begin(argc, argv);
  // A child of a process that has used CUDA cannot.
  if (!CAN_REFUSE || strcmp(g_test.backend, "cpu") != 0) return TEST_SKIP;
  g_report =
      mmap(NULL, sizeof *g_report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (g_report == MAP_FAILED) abort();
  folder_begin();
  test("a step", -1, false, train);
  test("a step with delayed scaling", NVTEX_RECIPE_DELAYED_SCALING, false, train);
  test("a step with MXFP8", NVTEX_RECIPE_MXFP8, false, train);
  test("a layer's and an optimizer's creation", -1, false, create);
  test("a checkpoint", -1, false, save_and_load);
  test("a checkpoint of moments in FP8", -1, true, save_and_load);
  folder_end();
  return test_end();
}
