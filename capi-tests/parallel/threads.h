// Ranks as threads of one process.
#ifndef NVTE_CAPI_TESTS_THREADS_H
#define NVTE_CAPI_TESTS_THREADS_H

#include "ranks.h"

typedef void (*Body)(NVTEXCommunicator world, int rank);
typedef struct Thread {
  Body body;
  NVTEXCommunicator world;
  int rank, size;
} Thread;

static void *thread_main(void *argument) {
  Thread *t = argument;
  enter_rank(t->rank, t->size);
  t->body(t->world, t->rank);
  return NULL;
}

// Runs the body on so many ranks, which wait for each other no longer than `limit` seconds.
static void run_threads(int size, double limit, Body body) {
  enum { MOST_THREADS = 8 };
  NVTEXCommunicatorConfig config = communicator_config("world", limit);
  NVTEXCommunicator ranks[MOST_THREADS] = {0};
  if (size > MOST_THREADS) abort();
  // A device may take longer to start than ranks wait for each other.
  nvtex_stream_synchronize(NULL);
  create_ranks(size, &config, ranks);
  if (!EXPECT_OK()) return;
  Thread threads[MOST_THREADS];
  pthread_t ids[MOST_THREADS];
  for (int r = 0; r < size; r++) {
    threads[r] = (Thread){body, ranks[r], r, size};
    if (pthread_create(&ids[r], NULL, thread_main, &threads[r])) abort();
  }
  for (int r = 0; r < size; r++) pthread_join(ids[r], NULL);
  destroy_ranks(size, ranks);
  EXPECT_OK();
  unsigned bad = failed_checks();
  CHECK(bad == 0, "%u checks of ranks failed", bad);
}

#endif  // NVTE_CAPI_TESTS_THREADS_H
