// A context's allocator that fails once, at every allocation that a training step makes, one after
// the other: each time the call that needed the memory fails and says so, everything that was lent
// comes back, and the next step gives the same bits as one before which nothing failed.
#include "support.h"

enum { HIDDEN = 64, HEADS = 2, FFN = 128, ROWS = 32, MAX_PARAMETERS = 16, MAX_BYTES = 1 << 20 };
// More than any step here allocates: a loop that reaches it would not end.
enum { MOST = 4000 };

// An allocator that fails at the allocation of this number, from 1 on; 0: never.
typedef struct Faulty {
  size_t fail_at, count, blocks, bytes;
  bool failed;
} Faulty;

static void *allocate(void *user, size_t bytes, size_t alignment, NVTEXLifetime lifetime,
                      cudaStream_t stream) {
  (void)alignment, (void)lifetime, (void)stream;
  Faulty *f = user;
  if (++f->count == f->fail_at) {
    f->failed = true;
    return NULL;
  }
  f->blocks++;
  f->bytes += bytes;
  return nvtex_malloc(bytes);
}

static void release(void *user, void *ptr, size_t bytes, NVTEXLifetime lifetime,
                    cudaStream_t stream) {
  (void)lifetime;
  Faulty *f = user;
  f->blocks--;
  f->bytes -= bytes;
  nvtex_stream_synchronize(stream);
  nvtex_free(ptr);
}

static void arm(Faulty *f, size_t fail_at) {
  f->fail_at = fail_at;
  f->count = 0;
  f->failed = false;
}

// Everything that a training step reads and writes, in one block of memory, of which the first part
// are inputs.
typedef struct Step {
  Faulty faulty;
  NVTEXContext context;
  NVTEXRecipe recipe;
  NVTEXModule layer;
  Buffer *inputs, *outputs;
  NVTETensor x, dy, y, dx;
  cudaStream_t stream;
} Step;

static void open_context(Step *s) {
  NVTEXContextConfig config;
  nvtex_context_config_init(&config, sizeof config);
  config.allocator = &s->faulty;
  config.allocate = allocate;
  config.release = release;
  s->context = nvtex_context_create(&config);
  EXPECT_OK();
}

static NVTEXModule create_layer(const Step *s) {
  NVTEXTransformerLayerConfig config;
  nvtex_transformer_layer_config_init(&config, sizeof config);
  config.attention.num_attention_heads = HEADS;
  config.attention.dtype = config.mlp.dtype = kNVTEBFloat16;
  config.mlp.hidden_size = HIDDEN;
  config.mlp.ffn_hidden_size = FFN;
  return nvtex_transformer_layer_create(s->context, &config, s->stream);
}

static void open_step(Step *s, int kind) {
  memset(s, 0, sizeof *s);
  open_context(s);
  if (kind >= 0) {
    NVTEXRecipeConfig config;
    nvtex_recipe_config_init(&config, sizeof config, (NVTEXRecipeKind)kind);
    config.amax_history_len = 1;  // so that a step's scales follow from the step before alone
    s->recipe = nvtex_recipe_create(&config);
  }
  s->layer = create_layer(s);
  EXPECT_OK();
  const NVTEShape shape = SHAPE(ROWS, 1, HIDDEN);
  const size_t bytes = ROWS * HIDDEN * 2;
  g_test.rng = 7;
  s->inputs = buffer_from(random_values(kNVTEBFloat16, ROWS * HIDDEN * 2, -1, 1), 2 * bytes, 0);
  s->outputs = buffer(MAX_BYTES);
  s->x = tensor(s->inputs->ptr, kNVTEBFloat16, shape);
  s->dy = tensor(s->inputs->ptr + bytes, kNVTEBFloat16, shape);
  s->y = tensor(s->outputs->ptr, kNVTEBFloat16, shape);
  s->dx = tensor(s->outputs->ptr + bytes, kNVTEBFloat16, shape);
  unsigned char *to = s->outputs->ptr + 2 * bytes;
  for (size_t i = 0; i < nvtex_module_num_parameters(s->layer); i++) {
    NVTEXParameter p = {.struct_size = sizeof p};
    nvtex_module_parameter(s->layer, i, &p);
    nvtex_module_set_gradient(s->layer, i, tensor(to, kNVTEBFloat16, p.shape), false);
    to += (numel(p.shape) * 2 + 255) / 256 * 256;
  }
  CHECK(to <= s->outputs->ptr + MAX_BYTES, "%zu bytes of outputs", (size_t)(to - s->outputs->ptr));
  EXPECT_OK();
}

static void close_step(Step *s) {
  nvtex_module_destroy(s->layer);
  nvtex_recipe_destroy(s->recipe);
  nvtex_context_destroy(s->context);
  EXPECT_OK();
  CHECK_EQ(s->faulty.blocks, 0);
  CHECK_EQ(s->faulty.bytes, 0);
}

// One step. The name of the call that failed, or null; its text stays the thread's error.
static const char *run_step(Step *s) {
  const char *failed = NULL;
  NVTEXTape tape = NULL;
  char text[1024] = "";
#define TRY(call)                                                      \
  do {                                                                 \
    if (failed) break;                                                 \
    call;                                                              \
    if (nvtex_last_status() != NVTEX_OK) failed = #call;               \
    if (failed) snprintf(text, sizeof text, "%s", nvtex_last_error()); \
  } while (0)
  nvtex_context_begin(s->context, s->recipe, s->recipe ? NVTEX_CONTEXT_ENABLED : 0, NULL);
  if (nvtex_last_status() != NVTEX_OK) return "nvtex_context_begin";
  TRY(nvtex_module_forward(s->layer, &s->x, 1, &s->y, 1, NULL, &tape, s->stream));
  const NVTEXStatus status = nvtex_last_status();
  nvtex_clear_error();
  nvtex_context_end(s->context);
  EXPECT_OK();
  TRY(nvtex_context_forward_update(s->context, s->stream));
  TRY(nvtex_module_backward(s->layer, tape, &s->dy, 1, &s->dx, 1, s->stream));
  TRY(nvtex_context_backward_update(s->context, s->stream));
#undef TRY
  if (failed && !case_is_refused(text)) {
    CHECK(status == NVTEX_OK || tape == NULL, "%s gave a tape", failed);
    CHECK(strncmp(text, failed, strcspn(failed, "(")) == 0, "the error of %s is \"%s\"", failed,
          text);
    CHECK(strstr(text, "memory") || strstr(text, "alloc"), "\"%s\" does not say what failed", text);
  }
  nvtex_clear_error();
  nvtex_tape_destroy(tape);
  EXPECT_OK();
  return failed;
}

// The outputs of a step in which nothing fails.
static void *result(Step *s) {
  arm(&s->faulty, 0);
  void *poison = host_memory(MAX_BYTES);
  memset(poison, POISON_VALUE, MAX_BYTES);
  upload(s->outputs->ptr, poison, MAX_BYTES);
  const char *failed = run_step(s);
  CHECK(!failed, "%s failed without a cause", failed);
  nvtex_stream_synchronize(s->stream);
  return buffer_read(s->outputs);
}

static void test_steps(void) {
  static const struct {
    const char *name;
    int kind;
  } recipes[] = {{"no recipe", -1},
                 {"delayed scaling", NVTEX_RECIPE_DELAYED_SCALING},
                 {"current scaling", NVTEX_RECIPE_CURRENT_SCALING},
                 {"block scaling", NVTEX_RECIPE_BLOCK_SCALING},
                 {"MXFP8", NVTEX_RECIPE_MXFP8}};
  for (size_t r = 0; r < COUNT(recipes); r++) {
    if (!case_begin("every allocation of a step fails once, %s", recipes[r].name)) continue;
    Step s;
    open_step(&s, recipes[r].kind);
    // Scales that follow from steps before have come to rest after some.
    for (int i = 0; i < 8; i++) result(&s);
    const void *expected = result(&s);
    CHECK(memcmp(result(&s), expected, MAX_BYTES) == 0, "steps differ without a failure");
    const size_t blocks = s.faulty.blocks;
    size_t n = 1, forward = 0;
    for (; n < MOST; n++) {
      arm(&s.faulty, n);
      const char *failed = run_step(&s);
      if (!s.faulty.failed) {
        CHECK(!failed, "%s failed without a cause", failed);
        break;
      }
      if (!CHECK(failed, "allocation %zu failed, and no call says so", n)) break;
      forward += strstr(failed, "forward") != NULL;
      CHECK(s.faulty.blocks == blocks, "allocation %zu: %zu blocks are lent, %zu before", n,
            s.faulty.blocks, blocks);
      const void *got = result(&s);
      CHECK(memcmp(got, expected, MAX_BYTES) == 0, "allocation %zu: the next step differs", n);
    }
    CHECK(n > 4 && n < MOST && forward > 0, "%zu allocations", n);
    close_step(&s);
  }
}

static void test_creation(void) {
  if (!case_begin("every allocation of a layer's creation fails once")) return;
  Step s;
  memset(&s, 0, sizeof s);
  open_context(&s);
  size_t n = 1;
  for (; n < MOST; n++) {
    arm(&s.faulty, n);
    const NVTEXModule layer = create_layer(&s);
    if (!s.faulty.failed) {
      EXPECT_OK();
      CHECK(layer, "no layer");
      nvtex_module_destroy(layer);
      break;
    }
    CHECK(layer == NULL, "a layer without memory");
    EXPECT_ERROR(ANY_ERROR, "nvtex_transformer_layer_create", "allocat");
    if (!CHECK_EQ(s.faulty.blocks, 0)) break;
  }
  CHECK(n > 1 && n < MOST, "%zu allocations", n);
  nvtex_context_destroy(s.context);
  EXPECT_OK();
  CHECK_EQ(s.faulty.blocks, 0);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_steps();
  test_creation();
  return test_end();
}
