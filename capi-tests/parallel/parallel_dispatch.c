// What it takes to bring tokens to the ranks of their experts and back: plan, dispatch and combine,
// with and without waits of the host for numbers of rows, and replays of a graph where ranks have
// GPUs of their own. Experts return what they get, so that results are known.
//
//   NVTE_TEST_NCCL=1 ./parallel_dispatch [RANKS]   (default 2)
//
// Times are those of the host's clock on rank 0, from an idle device to an idle device, the median
// of the rounds. GB/s are those of what others need of a rank's tokens. Ranks without GPUs of their
// own have small sizes, so that the program itself is tested.
#define _POSIX_C_SOURCE 200809L

#include "threads.h"
#include "transformer_engine/ep.h"

enum { ROUNDS = 7, MOST_RANKS = 8 };

typedef struct Sizes {
  size_t tokens, hidden, experts, topk, rows;
  bool fixed;
} Sizes;

static Sizes g_sizes;
static int g_size = 2;

typedef struct Tensors {
  NVTETensor state, chosen, tokens, weights, received, received_weights, total, result;
  NVTEEpLayerConfig layer;
} Tensors;

typedef struct Timed {
  NVTEXCommunicator world;
  cudaStream_t stream;
  const Tensors *tensors;
  void (*body)(const struct Timed *);
  NVTEXGraph graph;
} Timed;

static const NVTECommWindow kNone = {NULL, 0, NULL, 0};

static void prepare(const Timed *t) {
  const Tensors *a = t->tensors;
  nvte_ep_prepare(a->state, a->chosen, NULL, a->total, &a->layer, t->stream);
}

static void dispatch(const Timed *t) {
  const Tensors *a = t->tensors;
  nvte_ep_dispatch(a->state, a->chosen, a->tokens, kNone, a->weights, kNone, a->received, kNone,
                   a->received_weights, kNone, t->stream);
}

static void combine(const Timed *t) {
  const Tensors *a = t->tensors;
  nvte_ep_combine(a->state, a->received, kNone, a->result, t->stream);
}

static void all_three(const Timed *t) {
  prepare(t);
  dispatch(t);
  combine(t);
}

static void replay(const Timed *t) { nvtex_graph_replay(t->graph, t->stream); }

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

// Seconds of one call, of which all ranks make as many.
static double seconds_of(const Timed *t) {
  const int count = on_own_gpus(g_size) ? 20 : 1;
  double rounds[ROUNDS];
  for (int i = 0; i < 3; i++) t->body(t);
  for (int round = 0; round < ROUNDS; round++) {
    nvtex_barrier(t->world, NULL, t->stream);
    nvtex_stream_synchronize(t->stream);
    const double start = seconds_now();
    for (int i = 0; i < count; i++) t->body(t);
    nvtex_stream_synchronize(t->stream);
    rounds[round] = (seconds_now() - start) / count;
  }
  qsort(rounds, ROUNDS, sizeof *rounds, by_size);
  return rounds[ROUNDS / 2];
}

// Choice k of a token, which differs from its other ones.
static size_t choice(int rank, size_t token, size_t k) {
  const size_t n = g_sizes.experts;
  const uint64_t r = mixed((uint64_t)rank * 1000003 + token);
  // Steps that have no divisor in common with the experts, whose number is a power of two.
  return (size_t)((r & 0xFFFF) + k * ((r >> 16 & 0xFF) * 2 + 1)) % n;
}

static NVTETensor array(NVTEDType dtype, NVTEShape shape) {
  return nvtex_array_create(dtype, shape.data, shape.ndim);
}

// Every token is the sum of what its experts have returned: itself, as often as it has experts.
static void check_result(int r, const Tensors *t, const uint16_t *tokens) {
  const size_t count = g_sizes.tokens * g_sizes.hidden;
  uint16_t *got = malloc(count * sizeof *got + 1);
  if (!got) abort();
  int64_t total = 0;
  nvtex_memcpy_to_host(got, nvte_tensor_data(t->result), count * sizeof *got, NULL);
  nvtex_memcpy_to_host(&total, nvte_tensor_data(t->total), sizeof total, NULL);
  nvtex_stream_synchronize(NULL);
  RANK_CHECK(total > 0 && (size_t)total <= g_sizes.rows, "rank %d: %lld rows", r, (long long)total);
  size_t bad = 0;
  for (size_t i = 0; i < count && bad < 2; i++) {
    const double want = get_value(kNVTEBFloat16, tokens, i) * (double)g_sizes.topk;
    const double value = get_value(kNVTEBFloat16, got, i);
    bad += !RANK_CHECK(fabs(value - want) <= 0x1p-7 * fabs(want),
                       "rank %d: element %zu: got %g, expected %g", r, i, value, want);
  }
  free(got);
}

static void measure(NVTEXCommunicator world, int r) {
  const Sizes *s = &g_sizes;
  const size_t ranks = (size_t)g_size, slots = s->tokens * s->topk;
  NVTEEpGroupConfig group = {.struct_size = sizeof group};
  group.ep_size = g_size;
  group.num_experts = (int)s->experts;
  group.max_tokens_per_rank = (int)s->tokens;
  group.max_recv_tokens_per_rank = (int)s->rows;
  group.hidden_dim = (int)s->hidden;
  group.max_token_dtype = kNVTEBFloat16;
  group.drop_on_overflow = s->fixed;
  nvte_ep_initialize(nvtex_communicator_as_nccl(world), &group);
  Tensors a = {.layer = {.struct_size = sizeof a.layer, .top_k = (int)s->topk}};
  const size_t bytes = nvte_ep_handle_mem_size(&a.layer);
  RANK_OK(r);
  a.state = array(kNVTEByte, SHAPE(bytes));
  a.chosen = array(kNVTEInt32, SHAPE(s->tokens, s->topk));
  a.tokens = array(kNVTEBFloat16, SHAPE(s->tokens, s->hidden));
  a.weights = array(kNVTEFloat32, SHAPE(s->tokens, s->topk));
  a.received = array(kNVTEBFloat16, SHAPE(s->rows, s->hidden));
  a.received_weights = array(kNVTEFloat32, SHAPE(s->rows));
  a.total = array(kNVTEInt64, SHAPE(1));
  a.result = array(kNVTEBFloat16, SHAPE(s->tokens, s->hidden));
  int32_t *chosen = malloc(slots * sizeof *chosen);
  uint16_t *tokens = values_of(kNVTEBFloat16, r, 0, s->tokens * s->hidden, 5);
  float *weights = values_of(kNVTEFloat32, r, 0, slots, 6);
  if (!chosen) abort();
  // A token once for each other rank that has some of its experts, or a row for each of its
  // choices.
  size_t sent = 0;
  bool goes[MOST_RANKS];
  for (size_t i = 0; i < slots; i++) {
    if (i % s->topk == 0) memset(goes, 0, sizeof goes);
    chosen[i] = (int32_t)choice(r, i / s->topk, i % s->topk);
    const size_t to = (size_t)chosen[i] / (s->experts / ranks);
    sent += to != (size_t)r && !(s->fixed && goes[to]);
    goes[to] = true;
  }
  nvtex_memcpy_to_device(nvte_tensor_data(a.chosen), chosen, slots * sizeof *chosen, NULL);
  nvtex_memcpy_to_device(nvte_tensor_data(a.tokens), tokens, s->tokens * s->hidden * sizeof *tokens,
                         NULL);
  nvtex_memcpy_to_device(nvte_tensor_data(a.weights), weights, slots * sizeof *weights, NULL);
  nvtex_stream_synchronize(NULL);
  RANK_OK(r);

  Timed t = {.world = world, .stream = nvtex_stream_create(), .tensors = &a};
  void (*const bodies[])(const Timed *) = {prepare, dispatch, combine, all_three};
  double times[COUNT(bodies)], replayed = 0;
  for (size_t i = 0; i < COUNT(bodies); i++) {
    t.body = bodies[i];
    times[i] = seconds_of(&t);
    // Combines have the rows of the last dispatch, which other calls leave alone.
    RANK_OK(r);
  }
  check_result(r, &a, tokens);
  if (s->fixed && on_own_gpus(g_size)) {
    nvtex_graph_begin(t.stream);
    all_three(&t);
    t.graph = nvtex_graph_end(t.stream);
    RANK_OK(r);
    nvte_memset(nvte_tensor_data(a.result), 0, s->tokens * s->hidden * 2, t.stream);
    t.body = replay;
    replayed = seconds_of(&t);
    check_result(r, &a, tokens);
    nvtex_graph_destroy(t.graph);
  }
  if (r == 0) {
    const double gigabytes = 1e-9 * (double)(sent * s->hidden * 2);
    printf(
        "  %5zu tokens, %-9s plan %8.1f us, dispatch %8.1f us (%5.1f GB/s), combine %8.1f us "
        "(%5.1f GB/s), all %8.1f us",
        s->tokens, s->fixed ? "fixed" : "counted", times[0] * 1e6, times[1] * 1e6,
        gigabytes / times[1], times[2] * 1e6, gigabytes / times[2], times[3] * 1e6);
    if (replayed > 0) printf(", in a graph %8.1f us", replayed * 1e6);
    printf("\n");
  }
  NVTETensor made[] = {a.state,    a.chosen,           a.tokens, a.weights,
                       a.received, a.received_weights, a.total,  a.result};
  for (size_t i = 0; i < COUNT(made); i++) nvtex_array_destroy(made[i]);
  nvtex_stream_destroy(t.stream);
  free(chosen);
  free(tokens);
  free(weights);
  RANK_OK(r);
}

int main(int argc, char **argv) {
  char *none[] = {argv[0], NULL};
  test_begin(1, none);
  if (argc > 1) g_size = atoi(argv[1]);
  if (g_size < 2 || g_size > MOST_RANKS || MOST_RANKS % g_size) {
    fprintf(stderr, "RANKS: expected 2, 4 or 8, got %s\n", argv[1]);
    return TEST_FAIL;
  }
  // Its multicast is not used here.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  const bool large = on_own_gpus(g_size);
  const size_t hidden = large ? 7168 : 64, experts = large ? 256 : 32;
  printf("%d ranks, hidden %zu, top 8 of %zu, BF16\n", g_size, hidden, experts);
  for (int i = 0; i < 4; i++) {
    const size_t tokens = large ? (i / 2 ? 128 : 4096) : i / 2 ? 3 : 40;
    // A fourth more than even loads, or as many as there can be.
    const size_t rows = large && i / 2 == 0 ? tokens * 10 : tokens * 8 * (size_t)g_size;
    g_sizes = (Sizes){tokens, hidden, experts, 8, rows, i % 2};
    if (case_begin("%zu tokens, %s", tokens, i % 2 ? "fixed" : "counted")) {
      run_threads(g_size, 60, measure);
      nvte_ep_shutdown();
    }
  }
  return test_end();
}
