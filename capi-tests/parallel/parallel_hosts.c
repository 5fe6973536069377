// Ranks that share no memory, as on several hosts: their collectives are the program's own, over
// sockets, and what they hear of each other comes by TCP. A rank that is killed is named on all
// others within 5 s, one that has stopped is not, and one that leaves is no failure.
#define _GNU_SOURCE

#include <sys/socket.h>

#include "children.h"

enum { SIZE = 3 };

// Both ends of the connections of the ranks to rank 0. All processes keep all of them open, so that
// nobody sees there that another one has ended.
static int g_ends[SIZE][2];

static atomic_int g_told;
static char g_message[1024];

typedef struct Place {
  int rank;
} Place;

static bool move(int fd, void *data, size_t bytes, bool out) {
  for (char *at = data; bytes > 0;) {
    const ssize_t done = out ? send(fd, at, bytes, MSG_NOSIGNAL) : read(fd, at, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done;
    bytes -= (size_t)done;
  }
  return true;
}

// Rank 0 gets the parts of all, and sends them to all.
static int over_sockets(void *user, const void *send, void *recv, size_t bytes) {
  const int rank = ((const Place *)user)->rank;
  char *all = recv;
  memmove(all + (size_t)rank * bytes, send, bytes);
  bool good = true;
  if (rank > 0) {
    good = move(g_ends[rank][1], all + (size_t)rank * bytes, bytes, true) &&
           move(g_ends[rank][1], all, SIZE * bytes, false);
    return good ? 0 : 1;
  }
  for (int r = 1; r < SIZE; r++) {
    good = good && move(g_ends[r][0], all + (size_t)r * bytes, bytes, false);
  }
  for (int r = 1; r < SIZE; r++) good = good && move(g_ends[r][0], all, SIZE * bytes, true);
  return good ? 0 : 1;
}

// Ends the waits of this process.
static void end_waits(void *user) {
  const int rank = ((const Place *)user)->rank;
  for (int r = 1; r < SIZE; r++) {
    if (rank == 0 || rank == r) shutdown(g_ends[r][rank > 0], SHUT_RD);
  }
}

static void tell(void *user, const char *message) {
  (void)user;
  snprintf(g_message, sizeof g_message, "%s", message);
  atomic_store(&g_told, 1);
}

static Place g_place;

static NVTEXCommunicator create(int rank, int size) {
  g_place.rank = rank;
  NVTEXCollectives table;
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  table.user = &g_place;
  table.all_gather = over_sockets;
  table.abort = end_waits;
  NVTEXCommunicatorConfig config = communicator_config("hosts", 30);
  config.on_failure = tell;
  NVTEXCommunicator comm = nvtex_communicator_create_callbacks(&table, rank, size, &config);
  RANK_OK(rank);
  return comm;
}

static void sum(NVTEXCommunicator comm, const char *name) {
  float *data = device_copy(&(float){1}, sizeof(float));
  nvtex_all_reduce(comm, data, data, 1, kNVTEFloat32, NVTEX_REDUCTION_SUM, name, NULL);
  nvtex_stream_synchronize(NULL);
  nvtex_free(data);
}

// A failure of this rank that names the one that was killed, within 5 s of `start`.
static void expect_end(int rank, NVTEXCommunicator comm, int victim, double start) {
  while (!nvtex_communicator_status(comm) && seconds_now() < start + 10) sleep_for(0.02);
  const double seconds = seconds_now() - start;
  const char *status = nvtex_communicator_status(comm);
  char expected[64];
  snprintf(expected, sizeof expected, "rank %d (process ", victim);
  RANK_CHECK(seconds <= 5, "rank %d: %g s", rank, seconds);
  RANK_CHECK(status && strstr(status, expected) && strstr(status, "has ended; its last known call"),
             "rank %d: %s", rank, status ? status : "no failure");
  while (!atomic_load(&g_told) && seconds_now() < start + 10) sleep_for(0.02);
  RANK_CHECK(atomic_load(&g_told) && strstr(g_message, expected), "rank %d: \"%s\"", rank,
             g_message);
}

static int g_victim;

// One rank is killed while the others wait for it in a collective.
static void killed(int rank, int size) {
  NVTEXCommunicator comm = create(rank, size);
  sum(comm, "first");
  RANK_OK(rank);
  // All know of the last call of each.
  sleep_for(0.5);
  if (rank == g_victim) raise(SIGKILL);
  const double start = seconds_now();
  sum(comm, "second");
  RANK_ERROR(rank, "(second)");
  expect_end(rank, comm, g_victim, start);
  sum(comm, "third");
  RANK_ERROR(rank, "has ended");
  nvtex_communicator_destroy(comm);
}

// One rank is killed while the others make no calls.
static void killed_in_silence(int rank, int size) {
  NVTEXCommunicator comm = create(rank, size);
  sum(comm, "first");
  RANK_OK(rank);
  sleep_for(0.5);
  if (rank == g_victim) raise(SIGKILL);
  expect_end(rank, comm, g_victim, seconds_now());
  nvtex_communicator_destroy(comm);
}

// A rank that has stopped goes on later.
static void stopped(int rank, int size) {
  NVTEXCommunicator comm = create(rank, size);
  sum(comm, "first");
  if (rank == g_victim) raise(SIGSTOP);
  sum(comm, "second");
  RANK_OK(rank);
  RANK_CHECK(!nvtex_communicator_status(comm), "rank %d: %s", rank,
             nvtex_communicator_status(comm));
  nvtex_communicator_destroy(comm);
}

// Ranks leave one after the other.
static void left(int rank, int size) {
  NVTEXCommunicator comm = create(rank, size);
  sum(comm, "first");
  RANK_OK(rank);
  sleep_for(rank == g_victim ? 0 : 1);
  RANK_CHECK(!nvtex_communicator_status(comm), "rank %d: %s", rank,
             nvtex_communicator_status(comm));
  nvtex_communicator_destroy(comm);
  sleep_for(0.5);
}

// What one rank reports is a failure of all.
static void aborted(int rank, int size) {
  NVTEXCommunicator comm = create(rank, size);
  sum(comm, "first");
  RANK_OK(rank);
  if (rank == g_victim) nvtex_communicator_abort(comm, "enough");
  const double start = seconds_now();
  while (!nvtex_communicator_status(comm) && seconds_now() < start + 10) sleep_for(0.02);
  const char *status = nvtex_communicator_status(comm);
  RANK_CHECK(status && strstr(status, "has aborted: enough"), "rank %d: %s", rank,
             status ? status : "no failure");
  nvtex_communicator_destroy(comm);
}

static void run(Body body, bool dies) {
  pid_t pids[SIZE];
  for (int r = 1; r < SIZE; r++) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, g_ends[r])) abort();
  }
  for (int r = 0; r < SIZE; r++) pids[r] = start(r, SIZE, body);
  if (body == stopped) {
    sleep_for(3);
    kill(pids[g_victim], SIGCONT);
  }
  for (int r = 0; r < SIZE; r++) {
    const int got = finish(pids[r]), expected = dies && r == g_victim ? DIED : TEST_PASS;
    CHECK(got == expected, "rank %d ended with %d", r, got);
  }
  for (int r = 1; r < SIZE; r++) {
    close(g_ends[r][0]);
    close(g_ends[r][1]);
  }
}

int main(int argc, char **argv) {
  const int begun = begin_children(argc, argv);
  if (begun != TEST_PASS) return begun;
  static const struct {
    const char *name;
    Body body;
    bool dies;
  } kCases[] = {{"killed in a collective", killed, true},
                {"killed without calls", killed_in_silence, true},
                {"stopped", stopped, false},
                {"left", left, false},
                {"aborted", aborted, false}};
  for (size_t i = 0; i < COUNT(kCases); i++) {
    for (g_victim = 0; g_victim < SIZE; g_victim += 2) {
      if (case_begin("rank %d, %s", g_victim, kCases[i].name)) run(kCases[i].body, kCases[i].dies);
    }
  }
  return test_end();
}
