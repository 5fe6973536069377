// What a process may meet: fork, threads and memory that the system refuses, and small stacks.
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "child.h"

enum { ROWS = 512, COLS = 1024, SIDE = 256 };

// Tensors of the host, made before any fork.
typedef struct Work {
  float *x, *y, *a, *d;
  NVTETensor x_tensor, y_tensor, a_tensor, d_tensor, none, workspace;
} Work;

static Work work_new(void) {
  static char workspace[1 << 20];
  Work w = {.x = host_memory(ROWS * COLS * 4), .y = host_memory(ROWS * COLS * 4)};
  w.a = host_memory(SIDE * SIDE * 4), w.d = host_memory(SIDE * SIDE * 4);
  for (int i = 0; i < ROWS * COLS; i++) w.x[i] = (float)(i % 37 - 18);
  for (int i = 0; i < SIDE * SIDE; i++) w.a[i] = 0.5f;
  w.x_tensor = tensor(w.x, kNVTEFloat32, SHAPE(ROWS, COLS));
  w.y_tensor = tensor(w.y, kNVTEFloat32, SHAPE(ROWS, COLS));
  w.a_tensor = tensor(w.a, kNVTEFloat32, SHAPE(SIDE, SIDE));
  w.d_tensor = tensor(w.d, kNVTEFloat32, SHAPE(SIDE, SIDE));
  w.none = empty_tensor();
  w.workspace = tensor(workspace, kNVTEByte, SHAPE(sizeof workspace));
  return w;
}

// Functions that run in a child, whose checks the parent does not see: 0 or the line that failed.
#define NEED(condition)                \
  do {                                 \
    if (!(condition)) return __LINE__; \
  } while (0)

// Operators that share their work among threads.
static int run_operators(const Work *w) {
  memset(w->y, 0xFF, ROWS * COLS * 4);
  memset(w->d, 0xFF, SIDE * SIDE * 4);
  nvte_relu(w->x_tensor, w->y_tensor, NULL);
  NEED(nvtex_last_status() == NVTEX_OK);
  for (int i = 0; i < ROWS * COLS; i++) NEED(w->y[i] == (w->x[i] > 0 ? w->x[i] : 0));
  nvte_cublas_gemm(w->a_tensor, w->a_tensor, w->d_tensor, w->none, w->none, true, false, false,
                   w->workspace, false, false, 0, NULL);
  NEED(nvtex_last_status() == NVTEX_OK);
  for (int i = 0; i < SIDE * SIDE; i++) NEED(w->d[i] == 0.25f * SIDE);
  return 0;
}

// Runs `body` in a forked child, which an alarm ends if it hangs.
static void expect_of_child(int (*body)(const Work *), const Work *w, const char *what) {
  int ends[2];
  if (pipe(ends) != 0) abort();
  pid_t pid = fork_child();
  if (pid == 0) {
    alarm(60);
    const int line = body(w);
    if (line && nvtex_last_status()) fprintf(stderr, "%s\n", nvtex_last_error());
    _exit(write(ends[1], &line, sizeof line) == sizeof line ? 0 : 1);
  }
  close(ends[1]);
  int line = 0;
  const bool told = read(ends[0], &line, sizeof line) == sizeof line;
  close(ends[0]);
  int status = wait_for_child(pid);
  CHECK(!WIFSIGNALED(status), "%s: signal %d (%d: it hung)", what, WTERMSIG(status), SIGALRM);
  CHECK(told && line == 0, "%s: line %d failed in the child", what, line);
}

// ---- Fork

static int run_with_threads(const Work *w) {
  nvtex_set_num_threads(3);
  NEED(nvtex_num_threads() == 3);
  const int line = run_operators(w);
  if (line) return line;
  // A child of the child.
  pid_t pid = fork_child();
  if (pid == 0) {
    alarm(60);
    _exit(run_operators(w) ? 1 : 0);
  }
  NEED(wait_for_child(pid) == 0);
  return 0;
}

static atomic_bool stop;

static void *keep_busy(void *work) {
  int line = 0;
  while (!atomic_load(&stop) && !line) line = run_operators(work);
  return line ? work : NULL;
}

static void test_fork(void) {
  if (case_begin("fork")) {
    nvtex_set_num_threads(3);
    Work w = work_new();
    CHECK_EQ(run_operators(&w), 0);
    for (int i = 0; i < 3; i++) expect_of_child(run_operators, &w, "first use");
    expect_of_child(run_with_threads, &w, "threads of its own");
    CHECK_EQ(run_operators(&w), 0);
    nvtex_set_num_threads(0);
  }
  if (case_begin("fork while other threads are in operators")) {
    enum { THREADS = 3, FORKS = 40 };
    nvtex_set_num_threads(3);
    Work mine = work_new(), theirs[THREADS];
    pthread_t threads[THREADS];
    atomic_store(&stop, false);
    for (int t = 0; t < THREADS; t++) {
      theirs[t] = work_new();
      if (pthread_create(&threads[t], NULL, keep_busy, &theirs[t]) != 0) abort();
    }
    for (int i = 0; i < FORKS; i++) expect_of_child(run_operators, &mine, "fork");
    atomic_store(&stop, true);
    for (int t = 0; t < THREADS; t++) {
      void *failed = NULL;
      pthread_join(threads[t], &failed);
      CHECK(!failed, "thread %d", t);
    }
    nvtex_set_num_threads(0);
  }
}

// ---- Threads that cannot be created

static void *nothing(void *argument) { return argument; }

static int run_without_threads(const Work *w) {
  struct rlimit one = {1, 1};
  NEED(setrlimit(RLIMIT_NPROC, &one) == 0);
  // The limit does not hold for root.
  if (geteuid() == 0) NEED(setuid(65534) == 0);
  pthread_t thread;
  NEED(pthread_create(&thread, NULL, nothing, NULL) != 0);
  nvtex_set_num_threads(4);
  const int line = run_operators(w);
  if (line) return line;
  NEED(nvtex_num_threads() == 1);
  return 0;
}

static void test_threads(void) {
  if (case_begin("threads that cannot be created")) {
    Work w = work_new();
    expect_of_child(run_without_threads, &w, "no threads");
  }
}

// ---- Memory that cannot be had

static size_t address_space(void) {
  size_t pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%zu", &pages) != 1) abort();
  fclose(file);
  return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static int run_without_memory(const Work *w) {
  // A product in float32 of which the result is BF16 takes a copy of 64 MiB.
  enum { M = 4096, K = 16, LEFT = 8 << 20 };
  nvtex_set_num_threads(1);
  int line = run_operators(w);
  if (line) return line;
  float *a = malloc((size_t)M * K * 4), *gamma = malloc(M * 4), *sigma = malloc(M * 4);
  uint16_t *d = malloc((size_t)M * M * 2);
  float *x = malloc((size_t)M * M * 4), *z = malloc((size_t)M * M * 4);
  NEED(a && gamma && sigma && d && x && z);
  for (int i = 0; i < M * K; i++) a[i] = 1;
  for (int i = 0; i < M; i++) gamma[i] = 2;
  for (size_t i = 0; i < (size_t)M * M; i++) d[i] = 0x5A5A, x[i] = i % 2 ? 3 : -3;
  NVTETensor ta = tensor(a, kNVTEFloat32, SHAPE(M, K));
  NVTETensor td = tensor(d, kNVTEBFloat16, SHAPE(M, M));
  NVTETensor norm_workspace = empty_tensor();
  NVTETensor tx = tensor(x, kNVTEFloat32, SHAPE(M, M)), tz = tensor(z, kNVTEFloat32, SHAPE(M, M));
  NVTETensor tg = tensor(gamma, kNVTEFloat32, SHAPE(M)), ts = tensor(sigma, kNVTEFloat32, SHAPE(M));
  nvte_rmsnorm_fwd(tx, tg, 0, tz, ts, norm_workspace, 1, false, NULL);
  NVTEBasicTensor basic_workspace;
  nvte_get_tensor_param_v2(norm_workspace, kNVTERowwiseData, &basic_workspace,
                           sizeof basic_workspace, NULL);
  static char memory[1 << 16];
  NEED(basic_workspace.shape.ndim == 1 && basic_workspace.shape.data[0] <= sizeof memory);
  basic_workspace.data_ptr = memory;
  nvte_set_tensor_param_v2(norm_workspace, kNVTERowwiseData, &basic_workspace,
                           sizeof basic_workspace);
  NEED(nvtex_last_status() == NVTEX_OK);
  // A single row of 16 million logits, of which the CPU backend takes a copy.
  static int32_t target = 7, token = -1;
  static int64_t random[2] = {1, 2};
  static float loss = -1, logsumexp = -1;
  NVTETensor logits = tensor(x, kNVTEFloat32, SHAPE(1, (size_t)M * M));
  NVTETensor ttarget = tensor(&target, kNVTEInt32, SHAPE(1));
  NVTETensor ttoken = tensor(&token, kNVTEInt32, SHAPE(1));
  NVTETensor trandom = tensor(random, kNVTEInt64, SHAPE(2));
  NVTETensor tloss = tensor(&loss, kNVTEFloat32, SHAPE(1));
  NVTETensor tlog = tensor(&logsumexp, kNVTEFloat32, SHAPE(1));
  NVTEXCrossEntropyOptions options;
  nvtex_cross_entropy_options_init(&options, sizeof options);
  options.reduction = NVTEX_LOSS_NONE;
  NEED(nvtex_last_status() == NVTEX_OK);

  struct rlimit before, limit;
  NEED(getrlimit(RLIMIT_AS, &before) == 0);
  limit = (struct rlimit){address_space() + LEFT, before.rlim_max};
  NEED(setrlimit(RLIMIT_AS, &limit) == 0);
  nvte_cublas_gemm(ta, ta, td, w->none, w->none, true, false, false, w->workspace, false, false, 0,
                   NULL);
  NEED(nvtex_last_status() == NVTEX_DEVICE_ERROR);
  NEED(strstr(nvtex_last_error(), "nvte_cublas_gemm: "));
  NEED(strstr(nvtex_last_error(), "out of host memory: 67108864 bytes"));
  for (size_t i = 0; i < (size_t)M * M; i++) NEED(d[i] == 0x5A5A);
  nvtex_clear_error();
  nvtex_cross_entropy_forward(logits, ttarget, tloss, tlog, NULL, NULL, &options, NULL);
  NEED(nvtex_last_status() == NVTEX_DEVICE_ERROR);
  NEED(strstr(nvtex_last_error(), "nvtex_cross_entropy_forward: out of host memory: 67108864"));
  nvtex_clear_error();
  nvtex_sample_tokens(logits, ttoken, trandom, 1, 0, 1, NULL);
  NEED(nvtex_last_status() == NVTEX_DEVICE_ERROR);
  NEED(strstr(nvtex_last_error(), "nvtex_sample_tokens: out of host memory: 67108864 bytes"));
  NEED(loss == -1 && logsumexp == -1 && token == -1);
  nvtex_clear_error();
  // A normalization needs no copy of its 64 MiB.
  nvte_rmsnorm_fwd(tx, tg, 0, tz, ts, norm_workspace, 1, false, NULL);
  NEED(nvtex_last_status() == NVTEX_OK);
  for (size_t i = 0; i < (size_t)M * M; i++) NEED(z[i] == (i % 2 ? 2 : -2));

  // The failure must leave no trace.
  NEED(setrlimit(RLIMIT_AS, &before) == 0);
  nvte_cublas_gemm(ta, ta, td, w->none, w->none, true, false, false, w->workspace, false, false, 0,
                   NULL);
  NEED(nvtex_last_status() == NVTEX_OK);
  for (size_t i = 0; i < (size_t)M * M; i++) NEED(d[i] == 0x4180);  // 16
  return 0;
}

static void test_memory(void) {
  if (case_begin("memory that cannot be had")) {
    Work w = work_new();
    expect_of_child(run_without_memory, &w, "little memory");
  }
}

static void test_lengths(void) {
  if (case_begin("more sequences than a number of 32 bits counts")) {
    Buffer *lengths = buffer(16);
    nvte_get_runtime_num_segments(lengths->ptr, NULL, (size_t)1 << 35, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "len", "expected", "34359738368");
  }
}

// ---- Small stacks

// The layer that has most: of a decoder, in FP8, with dropout and what is computed again.
static void *run_large_layer(void *unused) {
  (void)unused;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXRecipeConfig options;
  nvtex_recipe_config_init(&options, sizeof options, NVTEX_RECIPE_DELAYED_SCALING);
  NVTEXRecipe recipe = nvtex_recipe_create(&options);
  NVTEXTransformerLayerConfig config;
  nvtex_transformer_layer_config_init(&config, sizeof config);
  config.attention.num_attention_heads = 4;
  config.attention.num_gqa_groups = 2;
  config.attention.checkpoint_core_attention = true;
  config.mlp.hidden_size = 64;
  config.mlp.ffn_hidden_size = 128;
  config.hidden_dropout = 0.5f;
  config.decoder = true;
  nvtex_context_begin(context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
  NVTEXModule layer = nvtex_transformer_layer_create(context, &config, NULL);
  EXPECT_OK();
  enum { BYTES = 16 * 2 * 64 * 4 };
  Buffer *x = buffer(BYTES), *y = buffer(BYTES), *dx = buffer(BYTES), *dmemory = buffer(BYTES);
  float *values = random_values(kNVTEFloat32, BYTES / 4, -1, 1);
  upload(x->ptr, values, BYTES);
  NVTETensor tx = tensor(x->ptr, kNVTEFloat32, SHAPE(16, 2, 64));
  NVTETensor ty = tensor(y->ptr, kNVTEFloat32, SHAPE(16, 2, 64));
  NVTETensor inputs[] = {tx, tx};
  NVTETensor grads[] = {tensor(dx->ptr, kNVTEFloat32, SHAPE(16, 2, 64)),
                        tensor(dmemory->ptr, kNVTEFloat32, SHAPE(16, 2, 64))};
  const int64_t seed[] = {1, 2};
  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  step.rng_state = tensor(buffer_from(seed, sizeof seed, 0)->ptr, kNVTEInt64, SHAPE(2));
  NVTEXTape tape = NULL;
  nvtex_module_forward(layer, inputs, 2, &ty, 1, &step, &tape, NULL);
  EXPECT_OK();
  nvtex_context_end(context);
  nvtex_context_forward_update(context, NULL);
  nvtex_module_backward(layer, tape, &ty, 1, grads, 2, NULL);
  nvtex_context_backward_update(context, NULL);
  EXPECT_OK();
  CHECK(!untouched(y) && !untouched(dx) && !untouched(dmemory), "nothing was computed");
  nvtex_tape_destroy(tape);
  nvtex_module_destroy(layer);
  nvtex_recipe_destroy(recipe);
  nvtex_context_destroy(context);
  EXPECT_OK();
  return NULL;
}

static void *run_layer(void *unused) {
  (void)unused;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXTransformerLayerConfig config;
  nvtex_transformer_layer_config_init(&config, sizeof config);
  config.attention.num_attention_heads = 4;
  config.mlp.hidden_size = 64;
  config.mlp.ffn_hidden_size = 128;
  NVTEXModule layer = nvtex_transformer_layer_create(context, &config, NULL);
  EXPECT_OK();
  enum { BYTES = 16 * 2 * 64 * 4 };
  Buffer *x = buffer(BYTES), *y = buffer(BYTES), *dx = buffer(BYTES);
  float *values = random_values(kNVTEFloat32, BYTES / 4, -1, 1);
  upload(x->ptr, values, BYTES);
  NVTETensor tx = tensor(x->ptr, kNVTEFloat32, SHAPE(16, 2, 64));
  NVTETensor ty = tensor(y->ptr, kNVTEFloat32, SHAPE(16, 2, 64));
  NVTETensor tdx = tensor(dx->ptr, kNVTEFloat32, SHAPE(16, 2, 64));
  NVTEXTape tape = NULL;
  nvtex_module_forward(layer, &tx, 1, &ty, 1, NULL, &tape, NULL);
  EXPECT_OK();
  nvtex_module_backward(layer, tape, &ty, 1, &tdx, 1, NULL);
  EXPECT_OK();
  CHECK(!untouched(y) && !untouched(dx), "nothing was computed");
  nvtex_tape_destroy(tape);
  nvtex_module_destroy(layer);
  nvtex_context_destroy(context);
  EXPECT_OK();
  return NULL;
}

static void *run_work(void *work) {
  CHECK_EQ(run_operators(work), 0);
  return NULL;
}

static void run_on_stack(size_t bytes, void *(*body)(void *), void *argument) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  if (pthread_attr_setstacksize(&attributes, bytes) != 0) abort();
  if (pthread_create(&thread, &attributes, body, argument) != 0) abort();
  pthread_join(thread, NULL);
  pthread_attr_destroy(&attributes);
}

static void test_stacks(void) {
  if (case_begin("operators on a stack of 128 KiB")) {
    Work w = work_new();
    run_on_stack(128 << 10, run_work, &w);
    nvtex_set_num_threads(1);
    run_on_stack(128 << 10, run_work, &w);
    nvtex_set_num_threads(0);
  }
  if (case_begin("a layer on a stack of 256 KiB")) {
    run_on_stack(256 << 10, run_layer, NULL);
    run_on_stack(256 << 10, run_large_layer, NULL);
    nvtex_set_num_threads(1);
    run_on_stack(256 << 10, run_layer, NULL);
    run_on_stack(256 << 10, run_large_layer, NULL);
    nvtex_set_num_threads(0);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_lengths();
  if (on_cuda()) {
    // A process with a CUDA context neither forks nor lives within such limits, and how much of the
    // stack the driver takes is not for the library to say.
    printf("left out on cuda: fork, threads, memory, stacks\n");
    return test_end();
  }
  test_fork();
#ifdef __SANITIZE_ADDRESS__
  printf("left out with AddressSanitizer, which breaks these limits: threads, memory, stacks\n");
#else
  test_threads();
  test_memory();
  test_stacks();
#endif
  return test_end();
}
