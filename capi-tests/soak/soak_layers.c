// Eight threads, each with a context and four streams, train Transformer layers of every recipe for
// 3 seconds, or as many as the first argument says. Each step of a layer gives the same bits as its
// second one, or with delayed scaling and stochastic rounding values that are finite.
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>

#include "soak.h"

enum {
  THREADS = 8,
  STREAMS = 4,
  HIDDEN = 64,
  FFN = 128,
  HEADS = 2,
  ROWS = 64,
  MAX_PARAMETERS = 16
};
enum { VALUES = ROWS * HIDDEN };

static const struct {
  int kind;
  bool same;  // bits of steps are the same
} g_recipes[] = {{-1, true},
                 {NVTEX_RECIPE_DELAYED_SCALING, false},
                 {NVTEX_RECIPE_CURRENT_SCALING, true},
                 {NVTEX_RECIPE_BLOCK_SCALING, true},
                 {NVTEX_RECIPE_MXFP8, true},
                 {NVTEX_RECIPE_NVFP4, false}};

static double g_end;
static atomic_size_t g_steps;

typedef struct Worker {
  pthread_t thread;
  size_t index, differ, wrong;
  char error[512];
} Worker;

static NVTETensor tensor_over(void *ptr, NVTEDType dtype, NVTEShape shape) {
  const NVTEBasicTensor data = basic(ptr, dtype, shape);
  const NVTETensor result = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  nvte_set_tensor_param_v2(result, kNVTERowwiseData, &data, sizeof data);
  return result;
}

// A layer on a stream of its own: x, dy, y and dx one behind the other, gradients behind these.
typedef struct Lane {
  cudaStream_t stream;
  NVTEXContext context;
  NVTEXRecipe recipe;
  NVTEXModule layer;
  NVTETensor tensors[4], rng, grads[MAX_PARAMETERS];
  NVTEXStep options;
  size_t num_grads, steps;
  uint16_t *memory, *first, *now;
  bool same;
} Lane;

static void open_lane(Lane *l, size_t number) {
  memset(l, 0, sizeof *l);
  const size_t which = number % COUNT(g_recipes);
  l->same = g_recipes[which].same;
  l->stream = nvtex_stream_create();
  NVTEXContextConfig options;
  nvtex_context_config_init(&options, sizeof options);
  l->context = nvtex_context_create(&options);
  if (g_recipes[which].kind >= 0) {
    NVTEXRecipeConfig config;
    nvtex_recipe_config_init(&config, sizeof config, (NVTEXRecipeKind)g_recipes[which].kind);
    l->recipe = nvtex_recipe_create(&config);
  }
  NVTEXTransformerLayerConfig config;
  nvtex_transformer_layer_config_init(&config, sizeof config);
  config.attention.num_attention_heads = HEADS;
  config.attention.dtype = config.mlp.dtype = kNVTEBFloat16;
  config.mlp.hidden_size = HIDDEN;
  config.mlp.ffn_hidden_size = FFN;
  l->layer = nvtex_transformer_layer_create(l->context, &config, l->stream);
  const size_t parameters = 16 * HIDDEN * HIDDEN;
  l->memory = nvtex_malloc((5 * VALUES + parameters) * 2);
  l->first = malloc(2 * VALUES * 2);
  l->now = malloc(2 * VALUES * 2);
  uint16_t *host = malloc(2 * VALUES * 2);
  if (!l->first || !l->now || !host) abort();
  uint64_t state = number + 1;
  for (size_t i = 0; i < 2 * VALUES; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double unit = (double)(state >> 40) / (double)(1 << 24);
    host[i] = (uint16_t)encode_bits(kNVTEBFloat16, 2 * unit - 1);
  }
  nvtex_memcpy_to_device(l->memory, host, 2 * VALUES * 2, l->stream);
  nvtex_stream_synchronize(l->stream);
  free(host);
  for (size_t i = 0; i < 4; i++)
    l->tensors[i] = tensor_over(l->memory + i * VALUES, kNVTEBFloat16, SHAPE(ROWS, 1, HIDDEN));
  // Seed and offset of stochastic rounding.
  const int64_t seed[2] = {(int64_t)number, 0};
  nvtex_memcpy_to_device(l->memory + 4 * VALUES, seed, sizeof seed, l->stream);
  nvtex_stream_synchronize(l->stream);
  l->rng = tensor_over(l->memory + 4 * VALUES, kNVTEInt64, SHAPE(2));
  nvtex_step_init(&l->options, sizeof l->options);
  l->options.rng_state = l->rng;
  uint16_t *to = l->memory + 5 * VALUES;
  l->num_grads = nvtex_module_num_parameters(l->layer);
  for (size_t i = 0; i < l->num_grads && i < MAX_PARAMETERS; i++) {
    NVTEXParameter p = {.struct_size = sizeof p};
    nvtex_module_parameter(l->layer, i, &p);
    l->grads[i] = tensor_over(to, kNVTEBFloat16, p.shape);
    to += numel(p.shape);
    nvtex_module_set_gradient(l->layer, i, l->grads[i], false);
  }
}

static void close_lane(Lane *l) {
  nvtex_stream_synchronize(l->stream);
  nvtex_module_destroy(l->layer);
  nvtex_recipe_destroy(l->recipe);
  nvtex_context_destroy(l->context);
  nvte_destroy_tensors(l->tensors, 4);
  nvte_destroy_tensor(l->rng);
  nvte_destroy_tensors(l->grads, l->num_grads);
  nvtex_free(l->memory);
  free(l->first);
  free(l->now);
  nvtex_stream_destroy(l->stream);
}

static void queue_step(Lane *l) {
  NVTEXTape tape = NULL;
  nvtex_context_begin(l->context, l->recipe, l->recipe ? NVTEX_CONTEXT_ENABLED : 0, NULL);
  nvtex_module_forward(l->layer, &l->tensors[0], 1, &l->tensors[2], 1, &l->options, &tape,
                       l->stream);
  nvtex_context_end(l->context);
  nvtex_context_forward_update(l->context, l->stream);
  nvtex_module_backward(l->layer, tape, &l->tensors[1], 1, &l->tensors[3], 1, l->stream);
  nvtex_context_backward_update(l->context, l->stream);
  nvtex_tape_destroy(tape);
  l->steps++;
}

static void check_step(Worker *w, Lane *l) {
  uint16_t *to = l->steps == 2 ? l->first : l->now;
  nvtex_memcpy_to_host(to, l->memory + 2 * VALUES, 2 * VALUES * 2, l->stream);
  nvtex_stream_synchronize(l->stream);
  for (size_t i = 0; i < 2 * VALUES; i++) w->wrong += (to[i] & 0x7F80) == 0x7F80;
  if (l->steps > 2 && l->same) w->differ += memcmp(l->first, l->now, VALUES * 2) != 0;
}

static void *work(void *argument) {
  Worker *w = argument;
  size_t number = w->index * STREAMS;
  // Layers go and come, so that contexts and modules are made while others run.
  while (seconds() < g_end && nvtex_last_status() == NVTEX_OK) {
    Lane lanes[STREAMS];
    for (int i = 0; i < STREAMS; i++) open_lane(&lanes[i], number++);
    for (int step = 0; step < 20 && (step < 3 || seconds() < g_end); step++) {
      for (int i = 0; i < STREAMS; i++) queue_step(&lanes[i]);
      if (nvtex_last_status() != NVTEX_OK) break;
      for (int i = 0; i < STREAMS && step > 0; i++) check_step(w, &lanes[i]);
      g_steps += STREAMS;
    }
    snprintf(w->error, sizeof w->error, "%s", nvtex_last_error());
    for (int i = 0; i < STREAMS; i++) close_lane(&lanes[i]);
  }
  return NULL;
}

static void run(double length) {
  Worker workers[THREADS];
  g_end = seconds() + length;
  for (size_t i = 0; i < THREADS; i++) {
    workers[i] = (Worker){.index = i};
    CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
  }
  for (size_t i = 0; i < THREADS; i++) {
    CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
    CHECK(workers[i].error[0] == 0 || case_is_refused(workers[i].error), "thread %zu: %s", i,
          workers[i].error);
    CHECK(workers[i].differ == 0, "thread %zu: %zu steps differ", i, workers[i].differ);
    CHECK(workers[i].wrong == 0, "thread %zu: %zu values are not finite", i, workers[i].wrong);
  }
}

int main(int argc, char **argv) {
  test_begin(1, argv);
  const size_t length = wanted(argc, argv, 3);
  case_begin("%d threads with %d streams for %zu seconds", THREADS, STREAMS, length);
  run(length < 20 ? 1 : 10);
  const size_t host = host_bytes(), device = free_device_bytes();
  run((double)length);
  printf("%zu steps\n", (size_t)g_steps);
  // Each thread's arenas of the host's allocator take their time to fill.
  if (length >= 20) check_growth(host, device);
  return test_end();
}
