// Communicators of processes: all collectives through shared memory, and ranks that are killed,
// stopped, missing or forked. Every rank is a child of its own, since a device does not survive a
// fork; the parent calls nothing.
#define _GNU_SOURCE

#include <dirent.h>

#include "children.h"

enum { MOST = 8 };

static char g_key[64];

// Runs all ranks; `victim` is to be killed, -1: none.
static void run(int size, int victim, Body body) {
  pid_t pids[MOST];
  for (int r = 0; r < size; r++) pids[r] = start(r, size, body);
  for (int r = 0; r < size; r++) {
    int got = finish(pids[r]);
    CHECK(got == (r == victim ? DIED : TEST_PASS), "rank %d ended with %d", r, got);
  }
}

static NVTEXCommunicator create(int rank, int size, double timeout) {
  NVTEXCommunicatorConfig config = communicator_config("world", timeout);
  return nvtex_communicator_create_shared(g_key, rank, size, &config);
}

static void die(void) { raise(SIGKILL); }

// ---- What works

static void collectives(int rank, int size) {
  NVTEXCommunicator comm = create(rank, size, 30);
  RANK_OK(rank);
  check_all(comm, 0);
  NVTEXCommunicator half = nvtex_communicator_split(comm, rank % 2, -rank, NULL);
  RANK_OK(rank);
  RANK_CHECK(nvtex_communicator_size(half) == (size + 1 - rank % 2) / 2, "rank %d", rank);
  check_collectives(half, kNVTEFloat32, 77, 3, 0);
  check_collectives(comm, kNVTEFloat32, 77, 3, 0);
  nvtex_communicator_destroy(half);
  nvtex_communicator_destroy(comm);
  // The same key again, at once.
  comm = create(rank, size, 30);
  RANK_OK(rank);
  check_collectives(comm, kNVTEBFloat16, 5, 4, 0);
  nvtex_communicator_destroy(comm);
  RANK_OK(rank);
}

static void of_launcher(int rank, int size) {
  char number[16], ranks[16];
  snprintf(number, sizeof number, "%d", rank);
  snprintf(ranks, sizeof ranks, "%d", size);
  setenv("RANK", number, 1);
  setenv("WORLD_SIZE", ranks, 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  NVTEXCommunicatorConfig config = communicator_config("world", 10);
  config.transport = NVTEX_TRANSPORT_SHARED;
  RANK_CHECK(!nvtex_communicator_from_environment(&config), "rank %d", rank);
  RANK_ERROR(rank, "NVTEX_RENDEZVOUS: expected a name");
  setenv("MASTER_PORT", g_key, 1);
  setenv("LOCAL_WORLD_SIZE", "1", 1);
  RANK_CHECK(!nvtex_communicator_from_environment(&config), "rank %d", rank);
  RANK_ERROR(rank, "LOCAL_WORLD_SIZE: expected 3, which is WORLD_SIZE, got 1");
  setenv("LOCAL_WORLD_SIZE", ranks, 1);
  NVTEXCommunicator comm = nvtex_communicator_from_environment(&config);
  RANK_OK(rank);
  RANK_CHECK(nvtex_communicator_rank(comm) == rank, "rank %d", rank);
  check_collectives(comm, kNVTEFloat32, 100, 1, 0);
  nvtex_communicator_destroy(comm);
  unsetenv("RANK");
  setenv("OMPI_COMM_WORLD_RANK", number, 1);
  setenv("OMPI_COMM_WORLD_SIZE", ranks, 1);
  unsetenv("MASTER_PORT");
  setenv("PMIX_NAMESPACE", g_key, 1);
  comm = nvtex_communicator_from_environment(&config);
  RANK_OK(rank);
  check_collectives(comm, kNVTEFloat32, 100, 1, 0);
  nvtex_communicator_destroy(comm);
  unsetenv("OMPI_COMM_WORLD_RANK");
  comm = nvtex_communicator_from_environment(&config);
  RANK_OK(rank);
  RANK_CHECK(nvtex_communicator_size(comm) == 1, "rank %d", rank);
  check_collectives(comm, kNVTEFloat32, 100, 1, 0);
  nvtex_communicator_destroy(comm);
  RANK_OK(rank);
}

// ---- Ranks that are killed

static int g_when;

static void killed(int rank, int size) {
  NVTEXCommunicator comm = create(rank, size, 30);
  RANK_OK(rank);
  char text[120];
  float *data = nvtex_malloc(4096);
  nvtex_all_reduce(comm, data, data, 1, kNVTEFloat32, NVTEX_REDUCTION_SUM, "warm", NULL);
  RANK_OK(rank);
  if (rank == 1) {
    // Before, or while the others wait; by itself, or between two pieces of a call.
    if (g_when == 1) sleep_for(0.5);
    die();
  }
  double start = seconds_now();
  const char *failed = NULL;
  if (g_when == 2) {
    while (!failed && seconds_now() - start < 6) {
      sleep_for(0.02);
      failed = nvtex_communicator_status(comm);
    }
    RANK_CHECK(failed && strstr(failed, "rank 1 (process"), "%s", failed ? failed : "sound");
  } else if (g_when == 3) {
    NVTEXTransfer transfer = {data, 4, kNVTEFloat32, 1, 1};
    nvtex_exchange(comm, &transfer, 1, "halo", NULL);
    snprintf(text, sizeof text,
             "communicator world (rank %d of %d): exchange #1 (halo): rank 1 (process", rank, size);
    RANK_ERROR(rank, text);
  } else {
    nvtex_all_reduce(comm, data, data, 1, kNVTEFloat32, NVTEX_REDUCTION_SUM, "layer.3", NULL);
    snprintf(text, sizeof text,
             "communicator world (rank %d of %d): all_reduce #3 (layer.3): rank 1 (process", rank,
             size);
    RANK_ERROR(rank, text);
  }
  double waited = seconds_now() - start;
  RANK_CHECK(waited < 5, "rank %d waited for %g s", rank, waited);
  nvtex_barrier(comm, NULL, NULL);
  RANK_ERROR(rank, "has ended; its last call was all_reduce #2 (warm)");
  nvtex_communicator_destroy(comm);
  RANK_OK(rank);
  // The survivors go on.
  int place = rank > 1 ? rank - 1 : rank;
  comm = create(place, size - 1, 30);
  RANK_OK(rank);
  check_collectives(comm, kNVTEFloat32, 10, 1, 0);
  nvtex_communicator_destroy(comm);
  nvtex_free(data);
}

// Killed in the middle of a long call, by somebody else. A pipe tells them that calls have begun.
static int g_begun[2];

static void busy(int rank, int size) {
  NVTEXCommunicator comm = create(rank, size, 30);
  RANK_OK(rank);
  enum { COUNT_OF_FLOATS = 1 << 20 };
  float *data = nvtex_malloc(COUNT_OF_FLOATS * sizeof(float));
  double end = seconds_now() + 20;
  bool told = false;
  while (nvtex_last_status() == NVTEX_OK && seconds_now() < end) {
    nvtex_all_reduce(comm, data, data, COUNT_OF_FLOATS, kNVTEFloat32, NVTEX_REDUCTION_SUM, NULL,
                     NULL);
    if (!told) told = write(g_begun[1], "", 1) == 1;
  }
  RANK_ERROR(rank, "rank 2 (process");
  nvtex_communicator_destroy(comm);
  nvtex_free(data);
}

static void kill_busy(void) {
  pid_t pids[3];
  if (pipe(g_begun)) abort();
  for (int r = 0; r < 3; r++) pids[r] = start(r, 3, busy);
  close(g_begun[1]);
  char none;
  CHECK_EQ(read(g_begun[0], &none, 1), 1);
  close(g_begun[0]);
  sleep_for(0.2);
  kill(pids[2], SIGKILL);
  double begin = seconds_now();
  for (int r = 0; r < 3; r++) {
    int got = finish(pids[r]);
    CHECK(got == (r == 2 ? DIED : TEST_PASS), "rank %d ended with %d", r, got);
  }
  CHECK(seconds_now() - begin < 5, "the survivors ended after %g s", seconds_now() - begin);
}

// A rank that is stopped for longer than the limit, and goes on afterwards.
static void stopped(int rank, int size) {
  NVTEXCommunicator comm = create(rank, size, 1);
  RANK_OK(rank);
  if (rank == 1) raise(SIGSTOP);
  nvtex_barrier(comm, NULL, NULL);
  RANK_ERROR(rank, "has not come within 1 s; its last call was create #1");
  nvtex_communicator_destroy(comm);
}

static void stop_and_go_on(void) {
  pid_t pids[2];
  for (int r = 0; r < 2; r++) pids[r] = start(r, 2, stopped);
  CHECK_EQ(finish(pids[0]), TEST_PASS);
  kill(pids[1], SIGCONT);
  CHECK_EQ(finish(pids[1]), TEST_PASS);
}

// ---- Creation

static void alone(int rank, int size) {
  if (rank == 1) return;
  double start = seconds_now();
  RANK_CHECK(!create(rank, size, 0.4), "rank %d", rank);
  RANK_ERROR(rank, "rank 1 has not come within 0.4 s; it has made no call");
  RANK_CHECK(seconds_now() - start < 2, "%g s", seconds_now() - start);
}

static void other_size(int rank, int size) {
  RANK_CHECK(!create(rank, rank ? size + 1 : size, 1), "rank %d", rank);
  if (rank == 1) RANK_ERROR(rank, "size: rank 0 has 2, rank 1 has 3");
  nvtex_clear_error();
}

static void other_config(int rank, int size) {
  NVTEXCommunicatorConfig config = communicator_config(rank ? "tp" : "dp", 5);
  RANK_CHECK(!nvtex_communicator_create_shared(g_key, rank, size, &config), "rank %d", rank);
  RANK_ERROR(rank, "name: rank 0 has \"dp, version");
}

static void abandoned(int rank, int size) {
  alarm(60);
  create(rank, size, 20);
}

static void stale_name(void) {
  // Rank 0 is killed while it waits: its name stays.
  pid_t pid = start(0, 2, abandoned);
  sleep_for(0.5);
  kill(pid, SIGKILL);
  CHECK_EQ(finish(pid), DIED);
  run(2, -1, collectives);
}

static void twice(void) {
  pid_t first = start(0, 2, abandoned);
  sleep_for(0.5);
  fflush(NULL);
  pid_t second = fork();
  if (second == 0) {
    RANK_CHECK(!create(0, 2, 1), "a handle");
    RANK_ERROR(
        0,
        "key: expected one that no other communicator is being created with, got that of process");
    _exit(atomic_load(&g_bad) ? TEST_FAIL : TEST_PASS);
  }
  CHECK_EQ(finish(second), TEST_PASS);
  pid_t partner = start(1, 2, abandoned);
  CHECK_EQ(finish(first), TEST_PASS);
  CHECK_EQ(finish(partner), TEST_PASS);
}

// ---- Fork

static void forked(int rank, int size) {
  NVTEXCommunicator comm = create(rank, size, 20);
  RANK_OK(rank);
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    nvtex_barrier(comm, NULL, NULL);
    RANK_ERROR(rank, "it was created by the process that has forked this one");
    nvtex_communicator_destroy(comm);
    RANK_OK(rank);
    _exit(atomic_load(&g_bad) ? TEST_FAIL : TEST_PASS);
  }
  RANK_CHECK(finish(pid) == TEST_PASS, "rank %d", rank);
  nvtex_barrier(comm, NULL, NULL);
  RANK_OK(rank);
  nvtex_communicator_destroy(comm);
}

// Names of this test that are left.
static int leftovers(void) {
  DIR *folder = opendir("/dev/shm");
  if (!folder) return 0;
  int found = 0;
  for (struct dirent *entry; (entry = readdir(folder));) {
    if (strstr(entry->d_name, g_key)) {
      fprintf(stderr, "left: %s\n", entry->d_name);
      found++;
    }
  }
  closedir(folder);
  return found;
}

int main(int argc, char **argv) {
  const int begun = begin_children(argc, argv);
  if (begun != TEST_PASS) return begun;
  snprintf(g_key, sizeof g_key, "capi-test-%ld", (long)getpid());
  static const int sizes[] = {1, 2, 3, 8};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    if (case_begin("collectives of %d", sizes[s])) run(sizes[s], -1, collectives);
  }
  if (case_begin("ranks of a launcher")) run(3, -1, of_launcher);
  for (g_when = 0; g_when < 4; g_when++) {
    if (case_begin("a rank is killed, %d", g_when)) run(4, 1, killed);
  }
  if (case_begin("a rank is killed in a call")) kill_busy();
  if (case_begin("a rank is stopped")) stop_and_go_on();
  if (case_begin("a rank is missing")) run(3, -1, alone);
  if (case_begin("another size")) run(2, -1, other_size);
  if (case_begin("another config")) run(2, -1, other_config);
  if (case_begin("a name that was left")) stale_name();
  if (case_begin("a key in use")) twice();
  if (case_begin("fork")) run(2, -1, forked);
  if (case_begin("nothing is left")) CHECK_EQ(leftovers(), 0);
  // The parent has used no library but for messages: its cases have no buffers.
  g_test.name[0] = 0;
  return g_test.failed_cases ? TEST_FAIL : g_test.cases ? TEST_PASS : TEST_FAIL;
}
