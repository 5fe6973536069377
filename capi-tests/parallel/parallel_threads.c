// Communicators of threads: all collectives, splits, and what happens when ranks disagree, are
// late, leave or abort; and collectives of the program.
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>

#include "ranks.h"

enum { MOST = 8 };

// ---- n threads, each with its rank

typedef struct Rank Rank;
typedef void (*Body)(Rank *);
struct Rank {
  Body body;
  NVTEXCommunicator comm, *all;
  int rank, size;
  double started;
};

static void *thread_main(void *argument) {
  Rank *rank = argument;
  rank->body(rank);
  return NULL;
}

static void run_threads(int size, const NVTEXCommunicator *comms, Body body) {
  Rank ranks[MOST];
  pthread_t threads[MOST];
  NVTEXCommunicator all[MOST];
  for (int r = 0; r < size; r++) {
    all[r] = comms[r];
    ranks[r] = (Rank){body, comms[r], all, r, size, seconds_now()};
  }
  for (int r = 0; r < size; r++) {
    if (pthread_create(&threads[r], NULL, thread_main, &ranks[r])) abort();
  }
  for (int r = 0; r < size; r++) pthread_join(threads[r], NULL);
}

static void run_local(int size, double timeout, Body body) {
  NVTEXCommunicatorConfig config = communicator_config("tp", timeout);
  NVTEXCommunicator comms[MOST] = {0};
  // A device may take longer to start than ranks wait for each other.
  nvtex_stream_synchronize(NULL);
  nvtex_communicator_create_local(size, &config, comms);
  if (!EXPECT_OK()) return;
  run_threads(size, comms, body);
  for (int r = 0; r < size; r++) nvtex_communicator_destroy(comms[r]);
  EXPECT_OK();
  unsigned bad = failed_checks();
  CHECK(bad == 0, "%u checks of ranks failed", bad);
}

// ---- What works

static void collectives(Rank *r) {
  RANK_CHECK(nvtex_communicator_rank(r->comm) == r->rank, "rank %d", r->rank);
  RANK_CHECK(nvtex_communicator_size(r->comm) == r->size, "rank %d", r->rank);
  RANK_CHECK(strcmp(nvtex_communicator_name(r->comm), "tp") == 0, "rank %d", r->rank);
  check_all(r->comm, 0);
  RANK_CHECK(nvtex_communicator_status(r->comm) == NULL, "rank %d", r->rank);
}

static void splits(Rank *r) {
  // Even and odd ranks, in reverse order.
  NVTEXCommunicator half = nvtex_communicator_split(r->comm, r->rank % 2, -r->rank, NULL);
  RANK_OK(r->rank);
  int members = (r->size + 1 - r->rank % 2) / 2, place = members - 1 - r->rank / 2;
  RANK_CHECK(nvtex_communicator_size(half) == members, "rank %d", r->rank);
  RANK_CHECK(nvtex_communicator_rank(half) == place, "rank %d", r->rank);
  RANK_CHECK(strcmp(nvtex_communicator_name(half), r->rank % 2 ? "tp.1" : "tp.0") == 0, "%s",
             nvtex_communicator_name(half));
  check_collectives(half, kNVTEBFloat16, 301, 5, 0);
  // A split of a split: the first rank of each half alone, the others not at all.
  NVTEXCommunicator first = nvtex_communicator_split(half, place == 0 ? 7 : -1, 0, "first");
  RANK_OK(r->rank);
  RANK_CHECK((first != NULL) == (place == 0), "rank %d", r->rank);
  if (first) check_collectives(first, kNVTEFloat32, 33, 6, 0);
  // Both groups and the whole take turns.
  for (int i = 0; i < 20; i++) {
    check_collectives(i % 2 ? half : r->comm, kNVTEFloat32, 17, (unsigned)i, 0);
  }
  nvtex_communicator_destroy(first);
  nvtex_communicator_destroy(half);
  RANK_OK(r->rank);
}

static void soak(Rank *r) {
  float x = 0, expected = 0;
  float *data = device_copy(&x, sizeof x);
  for (int i = 0; i < 1000; i++) {
    x = (float)(r->rank + i);
    nvtex_memcpy_to_device(data, &x, sizeof x, NULL);
    if (i % 4 == 3) {
      nvtex_broadcast(r->comm, data, 1, kNVTEFloat32, i % r->size, NULL, NULL);
      expected = (float)(i % r->size + i);
    } else {
      nvtex_all_reduce(r->comm, data, data, 1, kNVTEFloat32, NVTEX_REDUCTION_SUM, NULL, NULL);
      expected = (float)(r->size * (r->size - 1) / 2 + r->size * i);
    }
    nvtex_memcpy_to_host(&x, data, sizeof x, NULL);
    nvtex_stream_synchronize(NULL);
    RANK_CHECK(x == expected, "rank %d: call %d: got %g, expected %g", r->rank, i, (double)x,
               (double)expected);
  }
  nvtex_free(data);
  RANK_OK(r->rank);
}

// ---- What ranks must have alike

static int g_kind;
static const char *const kDifferent[] = {
    "count: rank 0 has 16, rank 1 has 15",
    "dtype: rank 0 has kNVTEFloat32, rank 1 has kNVTEFloat16",
    "operation: rank 0 has all_gather #1 (layer), rank 1 has barrier #1",
    "name: rank 0 has \"layer\", rank 1 has \"other\"",
    "reduction: rank 0 has Sum, rank 1 has Max",
    "root: rank 0 has 0, rank 1 has 1"};

static void disagreement(Rank *r) {
  char *send = nvtex_malloc(64), *recv = nvtex_malloc(64 * MOST);
  char before[64 * MOST], after[64 * MOST];
  memset(before, 7, sizeof before);
  nvtex_memcpy_to_device(recv, before, sizeof before, NULL);
  bool odd = r->rank == 1;
  switch (g_kind) {
    case 0:
      nvtex_all_gather(r->comm, send, recv, odd ? 15 : 16, kNVTEFloat32, NULL, NULL);
      break;
    case 1:
      nvtex_all_gather(r->comm, send, recv, 16, odd ? kNVTEFloat16 : kNVTEFloat32, NULL, NULL);
      break;
    case 2:
      if (odd) {
        nvtex_barrier(r->comm, NULL, NULL);
      } else {
        nvtex_all_gather(r->comm, send, recv, 16, kNVTEFloat32, "layer", NULL);
      }
      break;
    case 3:
      nvtex_all_gather(r->comm, send, recv, 16, kNVTEFloat32, odd ? "other" : "layer", NULL);
      break;
    case 4:
      nvtex_all_reduce(r->comm, send, recv, 16, kNVTEFloat32,
                       odd ? NVTEX_REDUCTION_MAX : NVTEX_REDUCTION_SUM, NULL, NULL);
      break;
    default:
      nvtex_broadcast(r->comm, recv, 16, kNVTEFloat32, odd, NULL, NULL);
  }
  RANK_CHECK(nvtex_last_status() == NVTEX_INVALID_ARGUMENT, "status %d", nvtex_last_status());
  RANK_ERROR(r->rank, kDifferent[g_kind]);
  nvtex_memcpy_to_host(after, recv, sizeof after, NULL);
  nvtex_stream_synchronize(NULL);
  RANK_CHECK(memcmp(before, after, sizeof after) == 0, "rank %d: the output changed", r->rank);
  // Nothing works afterwards, and everything says why.
  nvtex_all_gather(r->comm, send, recv, 16, kNVTEFloat32, NULL, NULL);
  RANK_ERROR(r->rank, kDifferent[g_kind]);
  NVTEXTransfer transfer = {send, 16, kNVTEFloat32, 0, 0};
  nvtex_exchange(r->comm, &transfer, 1, NULL, NULL);
  RANK_ERROR(r->rank, kDifferent[g_kind]);
  const char *status = nvtex_communicator_status(r->comm);
  RANK_CHECK(status && strstr(status, kDifferent[g_kind]), "%s", status ? status : "sound");
  RANK_OK(r->rank);
  nvtex_free(send);
  nvtex_free(recv);
}

static void message_disagreement(Rank *r) {
  float *data = nvtex_malloc(256);
  NVTEXTransfer transfer = {data, r->rank ? 15 : 16, kNVTEFloat32, 1 - r->rank, r->rank};
  nvtex_exchange(r->comm, &transfer, 1, "halo", NULL);
  // The sender may have ended its part before the receiver has looked at it.
  if (r->rank == 1) {
    RANK_ERROR(r->rank, "count: rank 0 has 16, rank 1 has 15");
  }
  nvtex_clear_error();
  nvtex_barrier(r->comm, NULL, NULL);
  RANK_ERROR(r->rank, "count: rank 0 has 16, rank 1 has 15");
  nvtex_free(data);
}

// ---- Ranks that do not come

static void late(Rank *r) {
  nvtex_barrier(r->comm, "warm", NULL);
  RANK_OK(r->rank);
  if (r->rank == r->size - 1) sleep_for(1.2);
  double start = seconds_now();
  nvtex_barrier(r->comm, "step", NULL);
  double waited = seconds_now() - start;
  char text[80];
  snprintf(text, sizeof text,
           "rank %d has not come within 0.3 s; its last call was barrier #1 (warm)", r->size - 1);
  RANK_ERROR(r->rank, text);
  // At the limit, and at once for the one that comes too late.
  double limit = r->rank == r->size - 1 ? 0.2 : 1.1;
  RANK_CHECK(waited < limit, "rank %d waited for %g s", r->rank, waited);
}

static void late_message(Rank *r) {
  if (r->rank == 0) {
    char *data = nvtex_malloc(64);
    NVTEXTransfer transfer = {data, 16, kNVTEFloat32, 1, 1};
    nvtex_exchange(r->comm, &transfer, 1, "halo", NULL);
    RANK_ERROR(r->rank, "exchange #1 (halo): rank 1 has not come within 0.3 s");
    nvtex_free(data);
  }
}

static void leaves(Rank *r) {
  nvtex_barrier(r->comm, NULL, NULL);
  RANK_OK(r->rank);
  if (r->rank == 1) {
    nvtex_communicator_destroy(r->comm);
    RANK_OK(r->rank);
    nvtex_barrier(r->comm, NULL, NULL);
    RANK_ERROR(r->rank, "already destroyed");
    return;
  }
  double start = seconds_now();
  nvtex_barrier(r->comm, NULL, NULL);
  RANK_ERROR(r->rank, "rank 1 has destroyed its communicator; its last call was barrier #1");
  RANK_CHECK(seconds_now() - start < 2, "%g s", seconds_now() - start);
}

static void aborted(Rank *r) {
  if (r->rank == 0) {
    sleep_for(0.2);
    nvtex_communicator_abort(r->comm, "the loss is NaN");
    RANK_OK(r->rank);
  }
  double start = seconds_now();
  nvtex_barrier(r->comm, NULL, NULL);
  RANK_ERROR(r->rank, "rank 0 has aborted: the loss is NaN");
  RANK_CHECK(seconds_now() - start < 2, "%g s", seconds_now() - start);
  nvtex_communicator_abort(r->comm, "too late");
  nvtex_barrier(r->comm, NULL, NULL);
  RANK_ERROR(r->rank, "rank 0 has aborted: the loss is NaN");
}

static void aborted_split(Rank *r) {
  NVTEXCommunicator part = nvtex_communicator_split(r->comm, 0, 0, "part");
  RANK_OK(r->rank);
  if (r->rank == 0) {
    sleep_for(0.2);
    nvtex_communicator_abort(r->comm, "enough");
  } else {
    nvtex_barrier(part, NULL, NULL);
    RANK_ERROR(r->rank, "communicator part");
  }
  nvtex_barrier(part, NULL, NULL);
  RANK_ERROR(r->rank, "rank 0 has aborted: enough");
  nvtex_communicator_destroy(part);
}

static atomic_int g_told;

static void tell(void *user, const char *message) {
  if (user == &g_told && strstr(message, "rank 1 has aborted: told")) atomic_fetch_add(&g_told, 1);
}

// ---- Wrong arguments

static void wrong_arguments(Rank *r) {
  char *a = nvtex_malloc(4096);
  NVTEXCommunicator c = r->comm;
  if (r->rank == 0) {
    nvtex_all_reduce(c, a, a, 4, kNVTEInt32, NVTEX_REDUCTION_SUM, NULL, NULL);
    RANK_ERROR(0, "dtype: expected kNVTEFloat32");
    nvtex_all_gather(c, a, a + 512, 4, kNVTEFloat4E2M1, NULL, NULL);
    RANK_ERROR(0, "dtype: expected elements of whole bytes");
    nvtex_all_gather(c, NULL, a, 4, kNVTEFloat32, NULL, NULL);
    RANK_ERROR(0, "send: expected a pointer to 16 bytes, got null");
    nvtex_all_gather(c, a, NULL, 4, kNVTEFloat32, NULL, NULL);
    RANK_ERROR(0, "recv: expected a pointer to");
    nvtex_all_gather(c, a + 4, a, 4, kNVTEFloat32, NULL, NULL);
    RANK_ERROR(0, "recv: expected memory apart from send");
    nvtex_all_to_all(c, a, a, 4, kNVTEFloat32, NULL, NULL);
    RANK_ERROR(0, "recv: expected memory apart from send");
    nvtex_all_gather(c, a + 1, a + 512, 4, kNVTEFloat32, NULL, NULL);
    RANK_ERROR(0, "send: expected an address that is a multiple of 4");
    nvtex_all_gather(c, a, a + 512, (size_t)-1 / 4, kNVTEFloat32, NULL, NULL);
    RANK_ERROR(0, "count: expected at most");
    nvtex_broadcast(c, a, 4, kNVTEFloat32, r->size, NULL, NULL);
    RANK_ERROR(0, "root: expected 0 to 1, got 2");
    nvtex_broadcast(c, a, 4, kNVTEFloat32, -1, NULL, NULL);
    RANK_ERROR(0, "root: expected");
    nvtex_all_reduce(c, a, a, 4, kNVTEFloat32, (NVTEXReduction)2, NULL, NULL);
    RANK_ERROR(0, "reduction: expected");
    NVTEXTransfer bad[] = {
        {a, 4, kNVTEFloat32, 2, 0}, {a, 4, kNVTEFloat32, 1, 2}, {NULL, 4, kNVTEFloat32, 1, 0}};
    static const char *const parts[] = {"transfers[0].peer: expected 0 to 1, got 2",
                                        "transfers[0].receive: expected 0 or 1, got 2",
                                        "transfers[0].data: expected a pointer to 16 bytes"};
    for (int i = 0; i < 3; i++) {
      nvtex_exchange(c, &bad[i], 1, NULL, NULL);
      RANK_ERROR(0, parts[i]);
    }
    nvtex_exchange(c, NULL, 1, NULL, NULL);
    RANK_ERROR(0, "transfers: expected an array of 1, got null");
  }
  // Nobody else has heard of these calls.
  check_collectives(c, kNVTEFloat32, 9, 1, 0);
  nvtex_free(a);
}

static void wrong_configs(void) {
  NVTEXCommunicator comms[MOST] = {0};
  NVTEXCommunicatorConfig config = communicator_config("x", 0);
  nvtex_communicator_create_local(0, &config, comms);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "size: expected 1 to 128, got 0");
  nvtex_communicator_create_local(129, &config, comms);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "size: expected 1 to 128, got 129");
  nvtex_communicator_create_local(1, &config, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "communicators");
  config.timeout = -1;
  nvtex_communicator_create_local(1, &config, comms);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.timeout: expected seconds", "got -1");
  config = communicator_config("x", 0);
  config.struct_size = 8;
  nvtex_communicator_create_local(1, &config, comms);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.struct_size");
  config = communicator_config("x", 0);
  config.sum_order = (NVTEXSumOrder)2;
  nvtex_communicator_create_local(1, &config, comms);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.sum_order: expected", "got 2");
  CHECK(comms[0] == NULL, "a failed call wrote a handle");
  config = communicator_config("x", 0.2);
  CHECK(!nvtex_communicator_create_shared("a/b", 0, 1, &config), "a handle");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "key: expected 1 to 200 letters", "\"a/b\"");
  CHECK(!nvtex_communicator_create_shared("a", 2, 2, &config), "a handle");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "rank: expected 0 to 1, got 2");
  nvtex_communicator_destroy(NULL);
  EXPECT_OK();
  nvtex_communicator_rank(NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "communicator: expected a communicator handle, got null");
}

// ---- Collectives of the program

typedef struct World {
  pthread_barrier_t barrier;
  int size;
  const char *sent[MOST];
  const NVTEXMessage *messages[MOST];
  size_t num_messages[MOST];
  atomic_int calls;
} World;

typedef struct Place {
  World *world;
  int rank;
} Place;

static void meet(Place *p) { pthread_barrier_wait(&p->world->barrier); }

static int their_all_gather(void *user, const void *send, void *recv, size_t bytes) {
  Place *p = user;
  p->world->sent[p->rank] = send;
  meet(p);
  for (int r = 0; r < p->world->size; r++) {
    memmove((char *)recv + (size_t)r * bytes, p->world->sent[r], bytes);
  }
  meet(p);
  return 0;
}

static int their_all_to_all(void *user, const void *send, void *recv, size_t bytes) {
  Place *p = user;
  atomic_fetch_add(&p->world->calls, 1);
  p->world->sent[p->rank] = send;
  meet(p);
  for (int r = 0; r < p->world->size; r++) {
    memcpy((char *)recv + (size_t)r * bytes, p->world->sent[r] + (size_t)p->rank * bytes, bytes);
  }
  meet(p);
  return 0;
}

static int their_exchange(void *user, const NVTEXMessage *messages, size_t num_messages) {
  Place *p = user;
  p->world->messages[p->rank] = messages;
  p->world->num_messages[p->rank] = num_messages;
  meet(p);
  for (size_t i = 0; i < num_messages; i++) {
    if (!messages[i].receive) continue;
    // The message of the same place among those that its sender has for this rank.
    size_t place = 0, other = 0;
    for (size_t j = 0; j < i; j++)
      place += messages[j].receive && messages[j].peer == messages[i].peer;
    const NVTEXMessage *theirs = p->world->messages[messages[i].peer];
    for (;; other++) {
      if (theirs[other].receive || theirs[other].peer != p->rank) continue;
      if (place-- == 0) break;
    }
    memcpy(messages[i].data, theirs[other].data, messages[i].bytes);
  }
  meet(p);
  return 0;
}

static int their_failure(void *user, const void *send, void *recv, size_t bytes) {
  Place *p = user;
  if (atomic_fetch_add(&p->world->calls, 1) >= 1) return 5;
  return their_all_gather(user, send, recv, bytes);
}

static World g_world;
static NVTEXCollectives g_table;

static void callbacks(Rank *r) {
  Place place = {&g_world, r->rank};
  NVTEXCollectives table = g_table;
  table.user = &place;
  NVTEXCommunicatorConfig config = communicator_config("mpi", 0);
  config.check = NVTEX_CALL_CHECK_ON;
  NVTEXCommunicator comm = nvtex_communicator_create_callbacks(&table, r->rank, r->size, &config);
  RANK_OK(r->rank);
  if (g_table.exchange) check_all(comm, 0);
  // Ranks that disagree about the count get an error each.
  char *data = nvtex_malloc(256);
  nvtex_all_reduce(comm, data, data, r->rank == 1 ? 8 : 9, kNVTEFloat32, NVTEX_REDUCTION_SUM, NULL,
                   NULL);
  RANK_ERROR(r->rank, "count: rank 0 has 9, rank 1 has 8");
  nvtex_free(data);
  nvtex_communicator_destroy(comm);
  RANK_OK(r->rank);
}

static void failing_callbacks(Rank *r) {
  // One rank alone, so that nobody waits for the function that fails.
  Place place = {&g_world, 0};
  NVTEXCollectives table = g_table;
  table.user = &place;
  NVTEXCommunicator comm = nvtex_communicator_create_callbacks(&table, 0, 1, NULL);
  RANK_OK(r->rank);
  nvtex_barrier(comm, "step", NULL);
  RANK_ERROR(r->rank, "barrier #2 (step): all_gather of the program has returned 5");
  nvtex_barrier(comm, NULL, NULL);
  RANK_ERROR(r->rank, "all_gather of the program has returned 5");
  nvtex_communicator_destroy(comm);
}

static void test_callbacks(int size) {
  memset(&g_table, 0, sizeof g_table);
  g_table.struct_size = sizeof g_table;
  g_world.size = size;
  if (pthread_barrier_init(&g_world.barrier, NULL, (unsigned)size)) abort();
  g_table.all_gather = their_all_gather;
  g_table.exchange = their_exchange;
  run_local(size, 0, callbacks);
  g_table.all_to_all = their_all_to_all;
  run_local(size, 0, callbacks);
  CHECK(size == 1 || atomic_load(&g_world.calls) > 0, "all_to_all was not used");
  pthread_barrier_destroy(&g_world.barrier);
  atomic_store(&g_world.calls, 0);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  static const int sizes[] = {1, 2, 3, 4, 8};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    if (case_begin("collectives of %d", sizes[s])) run_local(sizes[s], 30, collectives);
    if (case_begin("soak of %d", sizes[s])) run_local(sizes[s], 30, soak);
    if (sizes[s] > 1 && case_begin("splits of %d", sizes[s])) run_local(sizes[s], 30, splits);
  }
  for (g_kind = 0; g_kind < (int)COUNT(kDifferent); g_kind++) {
    if (case_begin("disagreement %d", g_kind)) run_local(3, 30, disagreement);
  }
  if (case_begin("messages that disagree")) run_local(2, 30, message_disagreement);
  if (case_begin("late")) run_local(3, 0.3, late);
  if (case_begin("late message")) run_local(2, 0.3, late_message);
  if (case_begin("a rank leaves")) {
    NVTEXCommunicatorConfig config = communicator_config("tp", 30);
    NVTEXCommunicator comms[3] = {0};
    nvtex_communicator_create_local(3, &config, comms);
    run_threads(3, comms, leaves);
    nvtex_communicator_destroy(comms[0]);
    nvtex_communicator_destroy(comms[2]);
    EXPECT_OK();
    CHECK_EQ(failed_checks(), 0);
  }
  if (case_begin("abort")) run_local(3, 30, aborted);
  if (case_begin("abort of what was split")) run_local(2, 30, aborted_split);
  if (case_begin("a function is told")) {
    NVTEXCommunicatorConfig config = communicator_config("tp", 30);
    config.on_failure = tell;
    config.user = &g_told;
    NVTEXCommunicator comms[2] = {0};
    nvtex_communicator_create_local(2, &config, comms);
    nvtex_communicator_abort(comms[1], "told");
    for (int i = 0; i < 300 && atomic_load(&g_told) < 2; i++) sleep_for(0.01);
    // Both ranks' watchdogs, once each.
    CHECK_EQ(atomic_load(&g_told), 2);
    nvtex_communicator_destroy(comms[0]);
    nvtex_communicator_destroy(comms[1]);
    EXPECT_OK();
  }
  if (case_begin("wrong arguments")) run_local(2, 30, wrong_arguments);
  if (case_begin("wrong configs")) wrong_configs();
  if (case_begin("the program's collectives, of 2")) test_callbacks(2);
  if (case_begin("the program's collectives, of 3")) test_callbacks(3);
  if (case_begin("collectives that fail")) {
    g_world.size = 1;
    if (pthread_barrier_init(&g_world.barrier, NULL, 1)) abort();
    memset(&g_table, 0, sizeof g_table);
    g_table.struct_size = sizeof g_table;
    CHECK(!nvtex_communicator_create_callbacks(&g_table, 0, 1, NULL), "a handle");
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "collectives.all_gather: expected a function");
    g_table.all_gather = their_failure;
    run_local(1, 0, failing_callbacks);
    pthread_barrier_destroy(&g_world.barrier);
  }
  return test_end();
}
