// Graphs that are captured, replayed and destroyed: 200 times, or as often as the first argument
// says. Results stay the same, and the device's memory does not shrink. Needs a backend with
// graphs.
#define _POSIX_C_SOURCE 200809L
#include "soak.h"

enum { ROWS = 64, COLS = 256 };

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
  Buffer *y = buffer(bytes), *z = buffer(bytes);
  const NVTETensor in = tensor(x->ptr, kNVTEBFloat16, shape),
                   middle = tensor(y->ptr, kNVTEBFloat16, shape),
                   out = tensor(z->ptr, kNVTEBFloat16, shape);
  const cudaStream_t stream = nvtex_stream_create();
  void *first = NULL;
  size_t host = 0, device = 0;
  for (size_t i = 0; i < count + 20; i++) {
    if (i == 20) host = host_bytes(), device = free_device_bytes();
    nvte_memset(z->ptr, (int)(i & 255), bytes, stream);
    nvtex_graph_begin(stream);
    for (int n = 0; n < 8; n++) {
      nvte_gelu(in, middle, stream);
      nvte_silu(middle, out, stream);
    }
    const NVTEXGraph graph = nvtex_graph_end(stream);
    nvtex_graph_replay(graph, stream);
    nvtex_graph_replay(graph, stream);
    nvtex_stream_synchronize(stream);
    nvtex_graph_destroy(graph);
    if (i % 100 == 0) {
      void *got = malloc(bytes);
      download(got, z->ptr, bytes);
      if (i > 0) CHECK(memcmp(got, first, bytes) == 0, "graph %zu gives other results", i);
      free(first);
      first = got;
    }
    if (nvtex_last_status() != NVTEX_OK) break;
  }
  EXPECT_OK();
  check_growth(host, device);
  free(first);
  nvtex_stream_destroy(stream);
  return test_end();
}
