// The pool of compute streams and events (core.md section 15).
#include "nvte/multi_stream.h"

#include <limits.h>

#include "support.h"

static void test_pool(void) {
  if (!case_begin("pool")) return;
  CHECK_EQ(nvte_get_num_compute_streams(), 4);
  cudaStream_t streams[4];
  cudaEvent_t events[4];
  for (int i = 0; i < 4; i++) {
    streams[i] = nvte_get_compute_stream(i);
    events[i] = nvte_get_compute_stream_event(i);
    EXPECT_OK();
  }
  for (int i = 0; i < 4; i++) {
    CHECK(nvte_get_compute_stream(i) == streams[i], "stream %d changed", i);
    CHECK(nvte_get_compute_stream_event(i) == events[i], "event %d changed", i);
    if (!on_cuda()) continue;
    CHECK(streams[i] != NULL && events[i] != NULL, "stream or event %d is null", i);
    for (int j = 0; j < i; j++) {
      CHECK(streams[i] != streams[j] && events[i] != events[j], "%d and %d are the same", i, j);
    }
  }
  EXPECT_OK();
}

static void test_work(void) {
  if (!case_begin("work on each stream")) return;
  enum { BYTES = 1 << 16 };
  Buffer *buffers[4];
  for (int i = 0; i < 4; i++) buffers[i] = buffer(BYTES);
  for (int i = 0; i < 4; i++)
    nvte_memset(buffers[i]->ptr, i + 1, BYTES, nvte_get_compute_stream(i));
  for (int i = 0; i < 4; i++) nvtex_stream_synchronize(nvte_get_compute_stream(i));
  EXPECT_OK();
  for (int i = 0; i < 4; i++) CHECK(all_bytes(buffers[i], i + 1), "stream %d", i);
}

static void test_wrong_index(void) {
  const int wrong[] = {-1, 4, 5, 1000, INT_MAX, INT_MIN};
  for (size_t i = 0; i < COUNT(wrong); i++) {
    if (!case_begin("index %d", wrong[i])) continue;
    CHECK(nvte_get_compute_stream(wrong[i]) == NULL, "a stream");
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_compute_stream: idx", "expected", "got");
    CHECK(nvte_get_compute_stream_event(wrong[i]) == NULL, "an event");
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_compute_stream_event: idx", "expected", "got");
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_pool();
  test_work();
  test_wrong_index();
  return test_end();
}
