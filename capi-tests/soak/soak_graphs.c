// Graphs that are captured, replayed and destroyed: 200 times, or as often as the first argument
// says. Results stay the same, and the device's memory does not shrink. Needs a backend with
// graphs.
#define _POSIX_C_SOURCE 200809L
#include "soak.h"

enum { ROWS = 64, COLS = 256 };

enum { WARM_UP = 20, ROUNDS = 3 };

typedef struct Work {
  Buffer *result;
  NVTETensor in, middle, out;
  cudaStream_t stream;
  void *first;
} Work;

static void run(Work *w, size_t count) {
  const size_t bytes = w->result->bytes;
  for (size_t i = 0; i < count && nvtex_last_status() == NVTEX_OK; i++) {
    nvte_memset(w->result->ptr, (int)(i & 255), bytes, w->stream);
    nvtex_graph_begin(w->stream);
    for (int n = 0; n < 8; n++) {
      nvte_gelu(w->in, w->middle, w->stream);
      nvte_silu(w->middle, w->out, w->stream);
    }
    const NVTEXGraph graph = nvtex_graph_end(w->stream);
    nvtex_graph_replay(graph, w->stream);
    nvtex_graph_replay(graph, w->stream);
    nvtex_stream_synchronize(w->stream);
    nvtex_graph_destroy(graph);
    if (i % 100 != 0) continue;
    void *got = malloc(bytes);
    download(got, w->result->ptr, bytes);
    if (w->first) CHECK(memcmp(got, w->first, bytes) == 0, "graph %zu gives other results", i);
    free(w->first);
    w->first = got;
  }
}

int main(int argc, char **argv) {
  test_begin(1, argv);
  if (!on_cuda()) {
    printf("the CPU backend has no graphs\n");
    return TEST_SKIP;
  }
  const size_t count = wanted(argc, argv, 200);
  case_begin("%zu graphs", count);
  const NVTEShape shape = SHAPE(ROWS, COLS);
  const size_t bytes = ROWS * COLS * 2;
  Buffer *x = buffer_from(random_values(kNVTEBFloat16, ROWS * COLS, -2, 2), bytes, 0);
  Buffer *y = buffer(bytes);
  Work w = {.result = buffer(bytes), .stream = nvtex_stream_create()};
  w.in = tensor(x->ptr, kNVTEBFloat16, shape);
  w.middle = tensor(y->ptr, kNVTEBFloat16, shape);
  w.out = tensor(w.result->ptr, kNVTEBFloat16, shape);
  run(&w, WARM_UP);
  for (int round = 1; round <= ROUNDS; round++) {
    const size_t host = host_bytes(), device = free_device_bytes();
    run(&w, count);
    EXPECT_OK();
    if (round < ROUNDS && may_be_of_others(device)) continue;
    check_growth(host, device);
    break;
  }
  free(w.first);
  nvtex_stream_destroy(w.stream);
  return test_end();
}
