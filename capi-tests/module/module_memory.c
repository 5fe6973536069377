// Layers that four threads make, run and destroy at once, thousands of times: neither the host nor
// the device keeps memory of them, and what a context's allocator gave comes back.
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "support.h"

enum { THREADS = 4, STEPS = 10000, HIDDEN = 64, ROWS = 32, MAX_PARAMETERS = 16 };
// Growth that is no leak: pages of the host's allocator.
enum { HOST_SLACK = 8 << 20 };

// An allocator that counts what it has given.
typedef struct Counter {
  size_t blocks, bytes;
} Counter;

static void *counted_allocate(void *user, size_t bytes, size_t alignment, NVTEXLifetime lifetime,
                              cudaStream_t stream) {
  (void)alignment, (void)lifetime, (void)stream;
  Counter *counter = user;
  counter->blocks++;
  counter->bytes += bytes;
  return nvtex_malloc(bytes);
}

static void counted_release(void *user, void *ptr, size_t bytes, NVTEXLifetime lifetime,
                            cudaStream_t stream) {
  (void)lifetime;
  Counter *counter = user;
  counter->blocks--;
  counter->bytes -= bytes;
  nvtex_stream_synchronize(stream);
  nvtex_free(ptr);
}

// What a thread works with, and what it found.
typedef struct Worker {
  pthread_t thread;
  int index;
  size_t steps;
  Counter counter;
  bool counts;  // with the allocator above
  char error[256];
} Worker;

// The harness's tensors belong to one thread.
static NVTETensor tensor_over(void *ptr, NVTEShape shape) {
  const NVTEBasicTensor data = basic(ptr, kNVTEBFloat16, shape);
  const NVTETensor result = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  nvte_set_tensor_param_v2(result, kNVTERowwiseData, &data, sizeof data);
  return result;
}

// One layer from its creation to its end.
static void run_layer(NVTEXContext context, NVTEXRecipe recipe, uint16_t *memory,
                      const NVTETensor x[4], cudaStream_t stream) {
  NVTEXTransformerLayerConfig config;
  nvtex_transformer_layer_config_init(&config, sizeof config);
  config.attention.num_attention_heads = 1;
  config.attention.dtype = config.mlp.dtype = kNVTEBFloat16;
  config.mlp.hidden_size = HIDDEN;
  config.mlp.ffn_hidden_size = 2 * HIDDEN;
  const NVTEXModule layer = nvtex_transformer_layer_create(context, &config, stream);
  const size_t count = nvtex_module_num_parameters(layer);
  NVTETensor grads[MAX_PARAMETERS] = {NULL};
  for (size_t i = 0; i < count && i < MAX_PARAMETERS; i++) {
    NVTEXParameter p = {.struct_size = sizeof p};
    nvtex_module_parameter(layer, i, &p);
    grads[i] = tensor_over(memory, p.shape);
    memory += numel(p.shape);
    nvtex_module_set_gradient(layer, i, grads[i], false);
  }
  NVTEXTape tape = NULL;
  nvtex_context_begin(context, recipe, recipe ? NVTEX_CONTEXT_ENABLED : 0, NULL);
  nvtex_module_forward(layer, &x[0], 1, &x[1], 1, NULL, &tape, stream);
  nvtex_context_end(context);
  nvtex_context_forward_update(context, stream);
  nvtex_module_backward(layer, tape, &x[2], 1, &x[3], 1, stream);
  nvtex_context_backward_update(context, stream);
  nvtex_tape_destroy(tape);
  nvtex_module_destroy(layer);
  nvte_destroy_tensors(grads, count);
}

static void *work(void *argument) {
  Worker *w = argument;
  const size_t parameters = 64 * HIDDEN * HIDDEN, rows = ROWS * HIDDEN;
  const cudaStream_t stream = nvtex_stream_create();
  uint16_t *memory = nvtex_malloc((parameters + 4 * rows) * sizeof *memory);
  nvte_memset(memory, 0, (parameters + 4 * rows) * sizeof *memory, stream);
  NVTETensor x[4];
  const NVTEShape shape = {{ROWS, 1, HIDDEN}, .ndim = 3};
  for (size_t i = 0; i < 4; i++) x[i] = tensor_over(memory + parameters + i * rows, shape);
  for (size_t step = 0; step < w->steps && nvtex_last_status() == NVTEX_OK; step += 10) {
    NVTEXContextConfig config;
    nvtex_context_config_init(&config, sizeof config);
    if (w->counts) {
      config.allocator = &w->counter;
      config.allocate = counted_allocate;
      config.release = counted_release;
    }
    const NVTEXContext context = nvtex_context_create(&config);
    const int kind = (int)(step / 10 + (size_t)w->index) % 5 - 1;
    NVTEXRecipe recipe = NULL;
    if (kind >= 0) {
      NVTEXRecipeConfig options;
      nvtex_recipe_config_init(&options, sizeof options, (NVTEXRecipeKind)kind);
      options.amax_history_len = 4;
      recipe = nvtex_recipe_create(&options);
    }
    for (int i = 0; i < 10; i++) run_layer(context, recipe, memory, x, stream);
    nvtex_recipe_destroy(recipe);
    nvtex_context_destroy(context);
  }
  nvtex_stream_synchronize(stream);
  nvte_destroy_tensors(x, 4);
  nvtex_free(memory);
  nvtex_stream_destroy(stream);
  snprintf(w->error, sizeof w->error, "%s", nvtex_last_error());
  return NULL;
}

// `steps` layers in all, on all threads.
static void run_threads(size_t steps, bool counts) {
  Worker workers[THREADS];
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (Worker){.index = i, .steps = steps / THREADS, .counts = counts};
    CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
    CHECK(workers[i].error[0] == '\0' || case_is_refused(workers[i].error), "thread %d: %s", i,
          workers[i].error);
    CHECK_EQ(workers[i].counter.blocks, 0);
    CHECK_EQ(workers[i].counter.bytes, 0);
  }
}

// Bytes of the process in memory.
static size_t host_bytes(void) {
  FILE *file = fopen("/proc/self/statm", "r");
  unsigned long pages = 0, resident = 0;
  if (file == NULL || fscanf(file, "%lu %lu", &pages, &resident) != 2) resident = 0;
  if (file != NULL) fclose(file);
  return resident * (size_t)sysconf(_SC_PAGESIZE);
}

// Free bytes of the device, by the driver; 0 without one.
static size_t free_device_bytes(void) {
  int (*info)(size_t *, size_t *) = NULL;
  void *driver = on_cuda() ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
  if (driver != NULL) *(void **)&info = dlsym(driver, "cuMemGetInfo_v2");
  size_t available = 0, total = 0;
  return info != NULL && info(&available, &total) == 0 ? available : 0;
}

static void test_leaks(void) {
  if (case_begin("a context's allocator gets everything back")) run_threads(10 * THREADS * 5, true);
  if (case_begin("%d layers on %d threads leave nothing", STEPS, THREADS)) {
    run_threads(STEPS / 4, false);
    const size_t host = host_bytes(), device = free_device_bytes();
    CHECK(host > 0, "no /proc/self/statm");
    run_threads(STEPS, false);
    const size_t host_after = host_bytes(), device_after = free_device_bytes();
    CHECK(host_after <= host + HOST_SLACK, "host: %zu bytes, then %zu", host, host_after);
    CHECK(device_after >= device, "device: %zu bytes free, then %zu", device, device_after);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_leaks();
  return test_end();
}
