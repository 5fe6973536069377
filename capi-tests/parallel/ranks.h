// What the tests of communicators share: checks that any thread and any process may make, values
// that every rank can compute for every other one, and each collective against plain loops.
#ifndef NVTE_CAPI_TESTS_RANKS_H
#define NVTE_CAPI_TESTS_RANKS_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "support.h"

static atomic_uint g_bad;
// What the first rank was told whose call only compute capability 9.0 computes.
static atomic_int g_refused;  // 1 while the text is written, 2 from then on
static char g_refusal[1024];

// As `case_is_refused`, on the thread of a rank.
static inline bool rank_is_refused(void) {
  int none = 0;
  if (!atomic_load(&g_refused) && is_documented_refusal(nvtex_last_error()) &&
      atomic_compare_exchange_strong(&g_refused, &none, 1)) {
    snprintf(g_refusal, sizeof g_refusal, "%s", nvtex_last_error());
    atomic_store(&g_refused, 2);
  }
  return atomic_load(&g_refused) != 0;
}

#define RANK_CHECK(condition, ...)                                         \
  ((condition) || rank_is_refused() ||                                     \
   (atomic_fetch_add(&g_bad, 1) < 20                                       \
        ? (fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition), \
           fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), 0)           \
        : 0))

// How many checks of ranks have failed since the last call, once no rank runs any more.
static inline unsigned failed_checks(void) {
  if (atomic_exchange(&g_refused, 0)) case_is_refused(g_refusal);
  return atomic_exchange(&g_bad, 0);
}

// No call of this thread has failed.
#define RANK_OK(rank)                                                                     \
  do {                                                                                    \
    RANK_CHECK(nvtex_last_status() == NVTEX_OK, "rank %d: %s", rank, nvtex_last_error()); \
    nvtex_clear_error();                                                                  \
  } while (0)

// A call has failed, with a text that has this part.
#define RANK_ERROR(rank, part)                                                      \
  do {                                                                              \
    RANK_CHECK(nvtex_last_status() != NVTEX_OK && strstr(nvtex_last_error(), part), \
               "rank %d: no \"%s\" in \"%s\"", rank, part, nvtex_last_error());     \
    nvtex_clear_error();                                                            \
  } while (0)

// Where element i of a rank's part of a parameter is in the whole; of experts that ranks share the
// rank has those from a multiple of their number on.
static inline size_t whole_index(const NVTEXParameter *p, size_t expert_rank, size_t i) {
  size_t place = 0, pitch = 1;
  for (size_t d = p->shape.ndim; d-- > 0;) {
    size_t index = i % p->shape.data[d];
    i /= p->shape.data[d];
    if (d == p->shared_dimension) {
      size_t piece = 0;
      while (index >= p->pieces[piece].part + p->pieces[piece].length) piece++;
      index += p->pieces[piece].whole - p->pieces[piece].part;
    } else if (d == 0 && p->shape.data[0] < p->whole_shape.data[0]) {
      index += expert_rank * p->shape.data[0];
    }
    place += pitch * index;
    pitch *= p->whole_shape.data[d];
  }
  return place;
}

static inline double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline void sleep_for(double seconds) {
  struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  nanosleep(&time, NULL);
}

static inline uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Bits of element i of a rank's values. Their sizes differ, so that sums in another order have
// other bits.
static inline uint32_t value_bits(NVTEDType dtype, int rank, size_t i, unsigned seed) {
  uint64_t r = mixed(i * 0x9E3779B97F4A7C15u + (uint64_t)rank * 0xD1B54A32D192ED03u + seed);
  if (dtype == kNVTEByte) return (uint32_t)(r & 0xFF);
  double x = ((double)(r >> 11) * 0x1p-53 * 3 - 2) * (r & 1 ? 1 : 37);
  return encode_bits(dtype, x);
}

static inline void *values_of(NVTEDType dtype, int rank, size_t first, size_t count,
                              unsigned seed) {
  void *data = malloc(count * dtype_size(dtype) + 1);
  if (!data) abort();
  for (size_t i = 0; i < count; i++) {
    put_bits(dtype, data, i, value_bits(dtype, rank, first + i, seed));
  }
  return data;
}

// Element i of all ranks, in their order, in float, rounded once.
static inline uint32_t reduced_bits(NVTEDType dtype, int size, size_t i, unsigned seed,
                                    NVTEXReduction reduction) {
  float sum = 0;
  for (int rank = 0; rank < size; rank++) {
    float x = (float)decode_bits(dtype, value_bits(dtype, rank, i, seed));
    if (rank == 0) {
      sum = x;
    } else if (reduction == NVTEX_REDUCTION_SUM) {
      sum = sum + x;
    } else if (x > sum) {
      sum = x;
    }
  }
  return encode_bits(dtype, sum);
}

// Memory of the backend, with what the host has in it.
static inline void *device_copy(const void *host, size_t bytes) {
  char *memory = nvtex_malloc(bytes + 16);
  if (!memory) abort();
  nvtex_memcpy_to_device(memory, host, bytes, NULL);
  nvtex_stream_synchronize(NULL);
  return memory;
}

// The memory has these bits, of elements that `expected` gives.
typedef struct Expectation {
  NVTEXReduction reduction;
  // -1: of all ranks reduced.
  int rank;
  size_t first;
} Expectation;

static inline bool check_values(const char *what, const void *device, size_t offset, size_t count,
                                NVTEDType dtype, int size, unsigned seed, Expectation e,
                                double tolerance) {
  size_t element = dtype_size(dtype), bad = 0;
  char *host = malloc(count * element + 1);
  if (!host) abort();
  nvtex_memcpy_to_host(host, (const char *)device + offset * element, count * element, NULL);
  nvtex_stream_synchronize(NULL);
  for (size_t i = 0; i < count && bad < 1; i++) {
    uint32_t got = get_bits(dtype, host, i);
    uint32_t expected = e.rank < 0 ? reduced_bits(dtype, size, e.first + i, seed, e.reduction)
                                   : value_bits(dtype, e.rank, e.first + i, seed);
    if (got == expected) continue;
    if (tolerance > 0 &&
        fabs(decode_bits(dtype, got) - decode_bits(dtype, expected)) < tolerance * 37 * size) {
      continue;
    }
    bad++;
    RANK_CHECK(false, "%s of %zu %s: element %zu: got 0x%x, expected 0x%x", what, count,
               dtype_name(dtype), i, got, expected);
  }
  free(host);
  return bad == 0;
}

// All collectives of one size. With a tolerance sums may be in another order.
static inline void check_collectives(NVTEXCommunicator comm, NVTEDType dtype, size_t n,
                                     unsigned seed, double tolerance) {
  int rank = nvtex_communicator_rank(comm), size = nvtex_communicator_size(comm);
  if (size < 1) return;
  size_t all = n * (size_t)size, element = dtype_size(dtype);
  Expectation e = {NVTEX_REDUCTION_SUM, 0, 0};
  void *own = values_of(dtype, rank, 0, n, seed), *wide = values_of(dtype, rank, 0, all, seed);
  char *zeros = calloc(all * element + 1, 1);
  if (!zeros) abort();
  char *one = device_copy(own, n * element), *many = device_copy(wide, all * element);
  char *small = device_copy(zeros, n * element), *large = device_copy(zeros, all * element);

  nvtex_all_gather(comm, one, large, n, dtype, "gather", NULL);
  RANK_OK(rank);
  for (e.rank = 0; e.rank < size; e.rank++) {
    check_values("all_gather", large, (size_t)e.rank * n, n, dtype, size, seed, e, 0);
  }
  // Once more with the output in the memory of the input.
  nvtex_memcpy_to_device(large, zeros, all * element, NULL);
  nvtex_memcpy_to_device(large + (size_t)rank * n * element, own, n * element, NULL);
  nvtex_all_gather(comm, large + (size_t)rank * n * element, large, n, dtype, NULL, NULL);
  RANK_OK(rank);
  for (e.rank = 0; e.rank < size; e.rank++) {
    check_values("all_gather in place", large, (size_t)e.rank * n, n, dtype, size, seed, e, 0);
  }

  nvtex_memcpy_to_device(large, zeros, all * element, NULL);
  nvtex_all_to_all(comm, many, large, n, dtype, "all to all", NULL);
  RANK_OK(rank);
  e.first = (size_t)rank * n;
  for (e.rank = 0; e.rank < size; e.rank++) {
    check_values("all_to_all", large, (size_t)e.rank * n, n, dtype, size, seed, e, 0);
  }

  for (int root = 0; root < size; root++) {
    nvtex_memcpy_to_device(small, rank == root ? own : zeros, n * element, NULL);
    nvtex_broadcast(comm, small, n, dtype, root, NULL, NULL);
    RANK_OK(rank);
    e.first = 0;
    e.rank = root;
    check_values("broadcast", small, 0, n, dtype, size, seed, e, 0);
  }

  for (int r = 0; r < 2 && dtype != kNVTEByte; r++) {
    e.reduction = r ? NVTEX_REDUCTION_MAX : NVTEX_REDUCTION_SUM;
    e.rank = -1;
    e.first = (size_t)rank * n;
    nvtex_reduce_scatter(comm, many, small, n, dtype, e.reduction, "sums", NULL);
    RANK_OK(rank);
    check_values("reduce_scatter", small, 0, n, dtype, size, seed, e, tolerance);
    e.first = 0;
    nvtex_all_reduce(comm, one, small, n, dtype, e.reduction, NULL, NULL);
    RANK_OK(rank);
    check_values("all_reduce", small, 0, n, dtype, size, seed, e, tolerance);
    nvtex_memcpy_to_device(small, own, n * element, NULL);
    nvtex_all_reduce(comm, small, small, n, dtype, e.reduction, NULL, NULL);
    RANK_OK(rank);
    check_values("all_reduce in place", small, 0, n, dtype, size, seed, e, tolerance);
    nvtex_memcpy_to_device(large, wide, all * element, NULL);
    nvtex_reduce_scatter(comm, large, large + (size_t)rank * n * element, n, dtype, e.reduction,
                         NULL, NULL);
    RANK_OK(rank);
    e.first = (size_t)rank * n;
    check_values("reduce_scatter in place", large, (size_t)rank * n, n, dtype, size, seed, e,
                 tolerance);
  }

  // Everybody sends to the next rank and to itself, and receives from the one before.
  nvtex_memcpy_to_device(large, zeros, all * element, NULL);
  int next = (rank + 1) % size, before = (rank + size - 1) % size;
  if (size > 1) {
    NVTEXTransfer transfers[] = {{one, n, dtype, next, 0},
                                 {many, all, dtype, next, 0},
                                 {small, n, dtype, before, 1},
                                 {large, all, dtype, before, 1}};
    nvtex_exchange(comm, transfers, 4, "ring", NULL);
  } else {
    NVTEXTransfer transfers[] = {{many, all, dtype, 0, 0}, {large, all, dtype, 0, 1}};
    nvtex_exchange(comm, transfers, 2, "self", NULL);
  }
  RANK_OK(rank);
  e.rank = before;
  e.first = 0;
  if (size > 1) check_values("exchange", small, 0, n, dtype, size, seed, e, 0);
  check_values("exchange", large, 0, all, dtype, size, seed, e, 0);
  nvtex_barrier(comm, NULL, NULL);
  RANK_OK(rank);
  char *memory[] = {one, many, small, large};
  for (size_t i = 0; i < COUNT(memory); i++) nvtex_free(memory[i]);
  free(own);
  free(wide);
  free(zeros);
}

static const NVTEDType kMoved[] = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEByte};

// All collectives, also of nothing, of odd counts, and of more than there is room for on the way.
static inline void check_all(NVTEXCommunicator comm, double tolerance) {
  static const size_t counts[] = {0, 1, 15, 4095, 20011};
  for (size_t d = 0; d < COUNT(kMoved); d++) {
    for (size_t c = 0; c < COUNT(counts); c++) {
      check_collectives(comm, kMoved[d], counts[c], (unsigned)(d * 8 + c), tolerance);
    }
  }
}

static inline NVTEXCommunicatorConfig communicator_config(const char *name, double timeout) {
  NVTEXCommunicatorConfig config;
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  config.name = name;
  config.timeout = timeout;
  config.staging_bytes = 64 << 10;
  return config;
}

// ---- Ranks as threads of this process

// With NVTE_TEST_NCCL=1 each rank has a GPU of its own, if there are enough of them.
static inline bool on_own_gpus(int size) {
  static int gpus = -1;
  if (gpus < 0) {
    const char *wish = getenv("NVTE_TEST_NCCL");
    void *driver = wish && strcmp(wish, "1") == 0 ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
    int (*init)(unsigned) = NULL, (*count)(int *) = NULL;
    if (driver) {
      *(void **)&init = dlsym(driver, "cuInit");
      *(void **)&count = dlsym(driver, "cuDeviceGetCount");
    }
    gpus = 0;
    if (init && count && (init(0) || count(&gpus))) gpus = 0;
    if (gpus) printf("ranks are on up to %d GPUs, under NCCL\n", gpus);
  }
  return size > 1 && size <= gpus;
}

// Begins the thread of a rank, which works on the rank's GPU if it has one of its own.
static inline void enter_rank(int rank, int size) {
  if (!on_own_gpus(size)) return;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
  int (*retain)(void **, int) = NULL, (*set)(void *) = NULL;
  *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  *(void **)&set = dlsym(driver, "cuCtxSetCurrent");
  if (!retain || !set || retain(&context, rank) || set(context)) abort();
}

typedef struct Creation {
  uint8_t id[128];
  int rank, size;
  const NVTEXCommunicatorConfig *config;
  NVTEXCommunicator made;
} Creation;

static inline void *create_rank(void *argument) {
  Creation *c = argument;
  enter_rank(c->rank, c->size);
  c->made = nvtex_communicator_create_nccl(c->id, c->rank, c->size, c->config);
  RANK_OK(c->rank);
  return NULL;
}

enum { MOST_GPUS = 8 };

// Communicators under NCCL take a second to make: those that are sound serve again.
static NVTEXCommunicator g_kept_ranks[MOST_GPUS + 1][MOST_GPUS];

// Communicators of threads, whose data moves through the memory of the process or by NCCL.
static inline void create_ranks(int size, const NVTEXCommunicatorConfig *config,
                                NVTEXCommunicator *ranks) {
  if (!on_own_gpus(size) || size > MOST_GPUS) {
    nvtex_communicator_create_local(size, config, ranks);
    return;
  }
  if (g_kept_ranks[size][0]) {
    memcpy(ranks, g_kept_ranks[size], (size_t)size * sizeof *ranks);
    memset(g_kept_ranks[size], 0, sizeof g_kept_ranks[size]);
    return;
  }
  Creation creations[MOST_GPUS];
  pthread_t threads[MOST_GPUS];
  uint8_t id[sizeof creations[0].id];
  nvtex_communicator_nccl_unique_id(id);
  for (int r = 0; r < size; r++) {
    memcpy(creations[r].id, id, sizeof id);
    creations[r].rank = r;
    creations[r].size = size;
    creations[r].config = config;
    if (pthread_create(&threads[r], NULL, create_rank, &creations[r])) abort();
  }
  for (int r = 0; r < size; r++) {
    pthread_join(threads[r], NULL);
    ranks[r] = creations[r].made;
  }
}

// Ends what create_ranks() has made.
static inline void destroy_ranks(int size, const NVTEXCommunicator *ranks) {
  bool keep = on_own_gpus(size) && size <= MOST_GPUS && atomic_load(&g_bad) == 0;
  for (int r = 0; keep && r < size; r++) keep = !nvtex_communicator_status(ranks[r]);
  if (keep) memcpy(g_kept_ranks[size], ranks, (size_t)size * sizeof *ranks);
  for (int r = 0; !keep && r < size; r++) nvtex_communicator_destroy(ranks[r]);
}

#endif  // NVTE_CAPI_TESTS_RANKS_H
