// Ranks that a launcher has started, on GPUs by NCCL or on the CPU by shared memory: every
// collective against plain loops, in both orders of sums, then the bandwidth of each by size.
// Skipped without a launcher.
//
//   nvtex-run -n 2 --gpus ./parallel_launched [LARGEST_MIB]   (default 1024 on CUDA, 16 on the CPU)
//   nvtex-run -n 2 --gpus ./parallel_launched kill            rank 1 is killed between its calls:
//   the others say so
//
// Bandwidth is that of the wire: bytes that a rank sends, by the time of a call.
#define _POSIX_C_SOURCE 200809L

#include <signal.h>

#include "ranks.h"

enum { WARM = 5, CALLS = 20 };

typedef struct Row {
  const char *name;
  // Bytes sent by a rank for each byte of the larger buffer, of n ranks: factor (n - 1) / n.
  double factor;
} Row;

static const Row kRows[] = {{"all_gather", 1}, {"reduce_scatter", 1}, {"all_reduce", 2},
                            {"all_to_all", 1}, {"broadcast", 1},      {"exchange", 1}};

// One call on `bytes` of BF16.
static void call_row(size_t row, NVTEXCommunicator comm, char *a, char *b, size_t bytes) {
  int rank = nvtex_communicator_rank(comm), size = nvtex_communicator_size(comm);
  size_t count = bytes / 2, part = count / (size_t)size;
  NVTEXTransfer transfers[] = {{a, count, kNVTEBFloat16, (rank + 1) % size, 0},
                               {b, count, kNVTEBFloat16, (rank + size - 1) % size, 1}};
  switch (row) {
    case 0:
      nvtex_all_gather(comm, a, b, part, kNVTEBFloat16, NULL, NULL);
      break;
    case 1:
      nvtex_reduce_scatter(comm, a, b, part, kNVTEBFloat16, NVTEX_REDUCTION_SUM, NULL, NULL);
      break;
    case 2:
      nvtex_all_reduce(comm, a, b, count, kNVTEBFloat16, NVTEX_REDUCTION_SUM, NULL, NULL);
      break;
    case 3:
      nvtex_all_to_all(comm, a, b, part, kNVTEBFloat16, NULL, NULL);
      break;
    case 4:
      nvtex_broadcast(comm, a, count, kNVTEBFloat16, 0, NULL, NULL);
      break;
    default:
      nvtex_exchange(comm, transfers, 2, NULL, NULL);
  }
}

static void measure(NVTEXCommunicator comm, const char *sums, size_t largest) {
  int rank = nvtex_communicator_rank(comm), size = nvtex_communicator_size(comm);
  char *a = nvtex_malloc(largest), *b = nvtex_malloc(largest);
  RANK_CHECK(a && b, "rank %d: out of memory", rank);
  if (rank == 0) {
    printf("%s sums, %d ranks, BF16; microseconds and GB/s of the wire for each rank\n%10s", sums,
           size, "bytes");
    for (size_t row = 0; row < COUNT(kRows); row++) printf("  %20s", kRows[row].name);
    printf("\n");
  }
  for (size_t bytes = 64 << 10; bytes <= largest; bytes *= 4) {
    if (rank == 0) printf("%10zu", bytes);
    for (size_t row = 0; row < COUNT(kRows); row++) {
      for (int i = 0; i < WARM; i++) call_row(row, comm, a, b, bytes);
      nvtex_barrier(comm, NULL, NULL);
      nvtex_stream_synchronize(NULL);
      double start = seconds_now();
      for (int i = 0; i < CALLS; i++) call_row(row, comm, a, b, bytes);
      nvtex_stream_synchronize(NULL);
      double time = (seconds_now() - start) / CALLS;
      // A message of a ring and a broadcast travel whole.
      double share = row < 4 ? (double)(size - 1) / size : 1;
      if (rank == 0) {
        printf("  %10.1f %9.2f", time * 1e6,
               kRows[row].factor * share * (double)bytes / time / 1e9);
      }
      RANK_OK(rank);
    }
    if (rank == 0) printf("\n");
    fflush(stdout);
  }
  nvtex_free(a);
  nvtex_free(b);
}

static void killed(NVTEXCommunicator comm) {
  enum { BYTES = 64 << 20 };
  int rank = nvtex_communicator_rank(comm);
  char *a = nvtex_malloc(BYTES), *b = nvtex_malloc(BYTES);
  double begin = seconds_now(), end = begin + 30;
  for (int i = 0; seconds_now() < end; i++) {
    if (rank == 1 && seconds_now() - begin > 2) raise(SIGKILL);
    call_row(2, comm, a, b, BYTES);
    nvtex_stream_synchronize(NULL);
    if (nvtex_last_status() != NVTEX_OK) break;
  }
  double after = seconds_now() - begin - 2;
  printf("rank %d: after %.2f s: %s\n", rank, after, nvtex_last_error());
  RANK_CHECK(after < 6, "rank %d: %g s", rank, after);
  RANK_ERROR(rank, "rank 1 (process");
}

int main(int argc, char **argv) {
  if (!getenv("RANK") && !getenv("OMPI_COMM_WORLD_RANK")) {
    printf("no launcher has started this program\n");
    return TEST_SKIP;
  }
  bool kill_one = argc > 1 && strcmp(argv[1], "kill") == 0;
  size_t mebibytes = argc > 1 && !kill_one ? strtoul(argv[1], NULL, 10) : 0;
  char *none[] = {argv[0], NULL};
  test_begin(1, none);
  // Its multicast is not used here.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  if (mebibytes == 0) mebibytes = on_cuda() ? 1024 : 16;
  NVTEXCommunicatorConfig config = communicator_config("world", 60);
  config.staging_bytes = 0;
  NVTEXCommunicator ordered = nvtex_communicator_from_environment(&config);
  if (!ordered) {
    fprintf(stderr, "%s\n", nvtex_last_error());
    return TEST_FAIL;
  }
  int rank = nvtex_communicator_rank(ordered), size = nvtex_communicator_size(ordered);
  if (kill_one) {
    killed(ordered);
    nvtex_communicator_destroy(ordered);
    return atomic_load(&g_bad) ? TEST_FAIL : TEST_PASS;
  }
  config.sum_order = NVTEX_SUM_FAST;
  config.check = NVTEX_CALL_CHECK_ON;
  NVTEXCommunicator fast = nvtex_communicator_from_environment(&config);
  RANK_OK(rank);
  check_all(ordered, 0);
  // Shares of sums.
  check_collectives(ordered, kNVTEBFloat16, 300007, 1, 0);
  check_collectives(ordered, kNVTEFloat32, 300007, 2, 0);
  // Sums that are rounded at each hop.
  check_all(fast, 0.02);
  NVTEXCommunicator half = nvtex_communicator_split(ordered, rank % 2, -rank, "half");
  RANK_OK(rank);
  RANK_CHECK(nvtex_communicator_size(half) == (size + 1 - rank % 2) / 2, "rank %d", rank);
  check_collectives(half, kNVTEBFloat16, 1000, 3, 0);
  nvtex_stream_synchronize(NULL);
  nvtex_communicator_destroy(half);
  RANK_OK(rank);
  unsigned bad = atomic_load(&g_bad);
  printf("rank %d of %d: %s\n", rank, size, bad ? "checks failed" : "all collectives are right");
  fflush(stdout);
  measure(ordered, "ordered", mebibytes << 20);
  config.check = NVTEX_CALL_CHECK_OFF;
  nvtex_communicator_destroy(fast);
  fast = nvtex_communicator_from_environment(&config);
  RANK_OK(rank);
  measure(fast, "fast", mebibytes << 20);
  nvtex_communicator_destroy(fast);
  nvtex_communicator_destroy(ordered);
  RANK_OK(rank);
  return atomic_load(&g_bad) ? TEST_FAIL : TEST_PASS;
}
