// Ranks as threads of one process.
#ifndef NVTE_CAPI_TESTS_THREADS_H
#define NVTE_CAPI_TESTS_THREADS_H

#include "ranks.h"

// A rank of a communicator, which is a thread, and what the test gives it.
typedef struct Rank {
  void (*body)(struct Rank *);
  NVTEXCommunicator comm;
  int rank, size;
  void *argument;
} Rank;

static void *thread_main(void *argument) {
  Rank *r = argument;
  enter_rank(r->rank, r->size);
  r->body(r);
  return NULL;
}

// Runs the body on so many ranks, which wait for each other no longer than `limit` seconds.
static void run_ranks(int size, double limit, void (*body)(Rank *), void *argument) {
  enum { MOST_THREADS = 8 };
  NVTEXCommunicatorConfig config = communicator_config("world", limit);
  NVTEXCommunicator comms[MOST_THREADS] = {0};
  if (size > MOST_THREADS) abort();
  // A device may take longer to start than ranks wait for each other.
  nvtex_stream_synchronize(NULL);
  create_ranks(size, &config, comms);
  if (!EXPECT_OK()) return;
  Rank ranks[MOST_THREADS];
  pthread_t threads[MOST_THREADS];
  for (int r = 0; r < size; r++) {
    ranks[r] = (Rank){body, comms[r], r, size, argument};
    if (pthread_create(&threads[r], NULL, thread_main, &ranks[r])) abort();
  }
  for (int r = 0; r < size; r++) pthread_join(threads[r], NULL);
  destroy_ranks(size, comms);
  EXPECT_OK();
  unsigned bad = failed_checks();
  CHECK(bad == 0, "%u checks of ranks failed", bad);
}

// The same for a body that needs only its communicator and rank.
typedef void (*Body)(NVTEXCommunicator world, int rank);

static inline void call_body(Rank *r) { (*(const Body *)r->argument)(r->comm, r->rank); }

static inline void run_threads(int size, double limit, Body body) {
  run_ranks(size, limit, call_body, &body);
}

#endif  // NVTE_CAPI_TESTS_THREADS_H
