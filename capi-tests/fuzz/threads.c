// Eight threads that share the library and nothing else: handles come and go, operators run on
// buffers of their own, calls fail and leave their message to their own thread, a layer takes steps
// in a context of its own. Each result is compared with that of the same work done by one thread.
//
// To look for races: NVTE_BACKEND=cpu valgrind --tool=helgrind (or drd) threads 2 1, where the
// arguments are the numbers of threads and rounds.
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvte/nvte.h"

enum { ROWS = 32, COLS = 64, MAX_THREADS = 64 };

typedef struct Result {
  float gelu[ROWS * COLS], product[ROWS * ROWS], layer[ROWS * COLS];
} Result;

static int g_rounds = 20;
static Result g_expected;

#define REQUIRE(condition)                                                                    \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, nvtex_last_error()); \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)

static NVTETensor tensor(void *data, size_t rows, size_t cols) {
  NVTEBasicTensor basic;
  memset(&basic, 0, sizeof basic);
  basic.data_ptr = data;
  basic.dtype = kNVTEFloat32;
  basic.shape.data[0] = rows;
  basic.shape.data[1] = cols;
  basic.shape.ndim = 2;
  NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  nvte_set_tensor_param_v2(t, kNVTERowwiseData, &basic, sizeof basic);
  return t;
}

static float *device(size_t n) {
  float *p = nvtex_malloc(n * sizeof(float));
  REQUIRE(p);
  return p;
}

static void work(Result *result) {
  float input[ROWS * COLS];
  for (int i = 0; i < ROWS * COLS; i++) input[i] = (float)(i % 37 - 18) / 16;
  cudaStream_t stream = nvtex_stream_create();
  float *x = device(ROWS * COLS), *y = device(ROWS * COLS), *d = device(ROWS * ROWS);
  nvtex_memcpy_to_device(x, input, sizeof input, stream);
  NVTETensor tx = tensor(x, ROWS, COLS), ty = tensor(y, ROWS, COLS), td = tensor(d, ROWS, ROWS);

  nvte_gelu(tx, ty, stream);
  nvtex_memcpy_to_host(result->gelu, y, sizeof result->gelu, stream);
  NVTETensor none = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  nvte_cublas_gemm(tx, tx, td, none, none, true, false, false, none, false, false, 0, stream);
  nvtex_memcpy_to_host(result->product, d, sizeof result->product, stream);
  REQUIRE(nvtex_last_status() == NVTEX_OK);

  // Refused, in words that name this thread's own wrong call.
  nvte_gelu(tx, td, stream);
  REQUIRE(nvtex_last_status() == NVTEX_INVALID_ARGUMENT && strstr(nvtex_last_error(), "nvte_gelu"));
  nvtex_clear_error();
  nvte_destroy_tensor(none);
  nvte_gelu(tx, none, stream);
  REQUIRE(nvtex_last_status() == NVTEX_INVALID_ARGUMENT);
  nvtex_clear_error();

  NVTEXContextConfig config;
  nvtex_context_config_init(&config, sizeof config);
  NVTEXContext context = nvtex_context_create(&config);
  NVTEXLinearConfig linear;
  nvtex_linear_config_init(&linear, sizeof linear);
  linear.in_features = linear.out_features = COLS;
  NVTEXModule module = nvtex_linear_create(context, &linear, stream);
  REQUIRE(module);
  NVTEXTape tape = NULL;
  nvtex_module_forward(module, &tx, 1, &ty, 1, NULL, &tape, stream);
  nvtex_memcpy_to_host(result->layer, y, sizeof result->layer, stream);
  nvtex_module_backward(module, tape, &tx, 1, &ty, 1, stream);
  nvtex_stream_synchronize(stream);
  REQUIRE(nvtex_last_status() == NVTEX_OK);
  nvtex_tape_destroy(tape);
  nvtex_module_destroy(module);
  nvtex_context_destroy(context);

  nvte_destroy_tensor(tx);
  nvte_destroy_tensor(ty);
  nvte_destroy_tensor(td);
  nvtex_free(x);
  nvtex_free(y);
  nvtex_free(d);
  nvtex_stream_destroy(stream);
  REQUIRE(nvtex_last_status() == NVTEX_OK);
}

static void *thread(void *unused) {
  (void)unused;
  Result *result = malloc(sizeof *result);
  if (!result) abort();
  for (int i = 0; i < g_rounds; i++) {
    memset(result, 0, sizeof *result);
    work(result);
    REQUIRE(memcmp(result, &g_expected, sizeof *result) == 0);
  }
  free(result);
  return NULL;
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 8;
  if (argc > 2) g_rounds = atoi(argv[2]);
  if (threads < 1 || threads > MAX_THREADS) return 2;
  if (!nvtex_backend_name()) {
    fprintf(stderr, "no backend: %s\n", nvtex_last_error());
    return 77;
  }
  work(&g_expected);
  pthread_t ids[MAX_THREADS];
  for (int i = 0; i < threads; i++) REQUIRE(pthread_create(&ids[i], NULL, thread, NULL) == 0);
  for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
  printf("%s: %d threads, %d rounds each\n", nvtex_backend_name(), threads, g_rounds);
  return 0;
}
