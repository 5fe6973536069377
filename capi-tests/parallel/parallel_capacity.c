// Experts with a capacity: outputs, gradients and numbers of choices against plain loops in double,
// for one rank with all tokens and for ranks that share them. Choices beyond the capacity add
// nothing, neither to the output nor to a gradient. On GPUs passes are captured, too.
#define _POSIX_C_SOURCE 200809L

#include "threads.h"

enum { HIDDEN = 32, FFN = 48, EXPERTS = 8, TOP_K = 3, TOKENS = 48, MOST = 4 };
enum { ROUTER = EXPERTS * HIDDEN, WEIGHT = EXPERTS * FFN * HIDDEN };

// A layer with the tokens of all ranks, and what passes make of it.
typedef struct Layer {
  double x[TOKENS * HIDDEN], dy[TOKENS * HIDDEN];
  double router[ROUTER], fc1[WEIGHT], fc2[WEIGHT];
  double y[TOKENS * HIDDEN], dx[TOKENS * HIDDEN];
  double router_grad[ROUTER], fc1_grad[WEIGHT], fc2_grad[WEIGHT];
  int64_t loads[EXPERTS];
  size_t dropped;
} Layer;

typedef struct Case {
  int ranks;
  NVTEDType dtype;
  float factor;
} Case;

static Case g_case;
static Layer g_expected;
// Of the ranks: each writes its own part, but for sums.
static Layer g_got;
static double g_router_grads[MOST][ROUTER];

static double number(uint64_t seed, size_t i) {
  return (double)(mixed(i * 0x9E3779B97F4A7C15u + seed) >> 11) * 0x1p-52 - 1;
}

// Logits are the first elements of a token, so that no rounding decides on the experts. Those with
// low numbers are chosen more often.
static void fill(Layer *l, NVTEDType dtype) {
  memset(l, 0, sizeof *l);
  for (size_t t = 0; t < TOKENS; t++) {
    for (size_t c = 0; c < HIDDEN; c++) {
      const size_t i = t * HIDDEN + c;
      l->x[i] = round_to(dtype, number(1, i));
      l->dy[i] = round_to(dtype, number(2, i));
    }
    for (size_t e = 0; e < EXPERTS; e++) {
      const size_t rank = (e * 5 + mixed(t) % 3 * (t % 4)) % EXPERTS;
      l->x[t * HIDDEN + e] = 0.25 * (double)rank - (e > 2 ? 0.125 : -0.5);
    }
  }
  for (size_t e = 0; e < EXPERTS; e++) l->router[e * HIDDEN + e] = 1;
  for (size_t i = 0; i < WEIGHT; i++) {
    l->fc1[i] = round_to(dtype, 0.4 * number(3, i));
    l->fc2[i] = round_to(dtype, 0.4 * number(4, i));
  }
}

static void choose(const double *logits, size_t chosen[TOP_K], double weights[TOP_K]) {
  bool taken[EXPERTS] = {false};
  double sum = 0;
  for (size_t k = 0; k < TOP_K; k++) {
    size_t best = EXPERTS;
    for (size_t e = 0; e < EXPERTS; e++) {
      if (!taken[e] && (best == EXPERTS || logits[e] > logits[best])) best = e;
    }
    taken[best] = true;
    chosen[k] = best;
    sum += weights[k] = exp(logits[best]);
  }
  for (size_t k = 0; k < TOP_K; k++) weights[k] /= sum;
}

// `y = sum_k w_k W2 relu(W1 x)` and all gradients, token by token.
static void reference(Layer *l, float factor) {
  const size_t even = TOKENS * TOP_K;
  const size_t limit = factor > 0 ? (size_t)ceil((double)factor * even / EXPERTS) : even;
  for (size_t t = 0; t < TOKENS; t++) {
    const double *x = l->x + t * HIDDEN, *dy = l->dy + t * HIDDEN;
    double *y = l->y + t * HIDDEN, *dx = l->dx + t * HIDDEN;
    double logits[EXPERTS] = {0}, weights[TOP_K], grads[TOP_K] = {0}, mean = 0;
    size_t chosen[TOP_K];
    for (size_t e = 0; e < EXPERTS; e++) {
      for (size_t c = 0; c < HIDDEN; c++) logits[e] += l->router[e * HIDDEN + c] * x[c];
    }
    choose(logits, chosen, weights);
    for (size_t k = 0; k < TOP_K; k++) {
      const size_t e = chosen[k];
      if (l->loads[e]++ >= (int64_t)limit) {
        l->dropped++;
        continue;
      }
      const double *fc1 = l->fc1 + e * FFN * HIDDEN, *fc2 = l->fc2 + e * FFN * HIDDEN;
      double *fc1_grad = l->fc1_grad + e * FFN * HIDDEN, *fc2_grad = l->fc2_grad + e * FFN * HIDDEN;
      double hidden[FFN] = {0}, hidden_grad[FFN] = {0};
      for (size_t f = 0; f < FFN; f++) {
        for (size_t c = 0; c < HIDDEN; c++) hidden[f] += fc1[f * HIDDEN + c] * x[c];
        if (hidden[f] < 0) hidden[f] = 0;
      }
      for (size_t c = 0; c < HIDDEN; c++) {
        double result = 0;
        for (size_t f = 0; f < FFN; f++) {
          result += fc2[c * FFN + f] * hidden[f];
          hidden_grad[f] += weights[k] * fc2[c * FFN + f] * dy[c];
          fc2_grad[c * FFN + f] += weights[k] * dy[c] * hidden[f];
        }
        y[c] += weights[k] * result;
        grads[k] += dy[c] * result;
      }
      for (size_t f = 0; f < FFN; f++) {
        if (hidden[f] <= 0) continue;
        for (size_t c = 0; c < HIDDEN; c++) {
          dx[c] += fc1[f * HIDDEN + c] * hidden_grad[f];
          fc1_grad[f * HIDDEN + c] += hidden_grad[f] * x[c];
        }
      }
    }
    for (size_t k = 0; k < TOP_K; k++) mean += weights[k] * grads[k];
    for (size_t k = 0; k < TOP_K; k++) {
      const double grad = weights[k] * (grads[k] - mean);
      for (size_t c = 0; c < HIDDEN; c++) {
        dx[c] += grad * l->router[chosen[k] * HIDDEN + c];
        l->router_grad[chosen[k] * HIDDEN + c] += grad * x[c];
      }
    }
  }
}

// Memory of the backend with numbers of a dtype.
static char *on_device(NVTEDType dtype, const double *values, size_t count) {
  char *host = malloc(count * dtype_size(dtype) + 1);
  if (!host) abort();
  for (size_t i = 0; i < count; i++) put_value(dtype, host, i, values[i]);
  char *memory = device_copy(host, count * dtype_size(dtype));
  free(host);
  return memory;
}

static void from_device(NVTEDType dtype, const void *memory, double *values, size_t count) {
  char *host = malloc(count * dtype_size(dtype) + 1);
  if (!host) abort();
  nvtex_memcpy_to_host(host, memory, count * dtype_size(dtype), NULL);
  nvtex_stream_synchronize(NULL);
  for (size_t i = 0; i < count; i++) values[i] = get_value(dtype, host, i);
  free(host);
}

static NVTETensor make(void *memory, NVTEDType dtype, NVTEShape shape) {
  NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  set_param(t, kNVTERowwiseData, memory, dtype, shape);
  return t;
}

static NVTEXMoeConfig config_of(const Case *c) {
  NVTEXMoeConfig f;
  nvtex_moe_config_init(&f, sizeof f);
  f.hidden_size = HIDDEN;
  f.ffn_hidden_size = FFN;
  f.num_experts = EXPERTS;
  f.top_k = TOP_K;
  f.dtype = c->dtype;
  f.activation = RELU;
  f.expert_parallel_size = 0;
  f.capacity_factor = c->factor;
  return f;
}

static void rank_body(NVTEXCommunicator world, int r) {
  const Case *c = &g_case;
  const size_t ranks = (size_t)c->ranks, rank = (size_t)r;
  const size_t tokens = TOKENS / ranks, first = rank * tokens * HIDDEN, count = tokens * HIDDEN;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXGridConfig sizes = {.struct_size = sizeof sizes, .ep = ranks};
  NVTEXGrid grid = nvtex_grid_create(world, &sizes);
  nvtex_context_set_grid(context, grid);
  nvtex_grid_destroy(grid);
  NVTEXMoeConfig config = config_of(c);
  NVTEXModule module = nvtex_moe_create(context, &config, NULL);
  RANK_OK(r);
  // The parts of this rank: of the router everything.
  struct {
    const char *name;
    const double *value;
    double *grad;
    size_t count;
    char *memory;
    NVTETensor bound;
  } parts[] = {
      {"router.weight", g_expected.router, g_router_grads[rank], ROUTER, NULL, NULL},
      {"experts.fc1_weight", g_expected.fc1, g_got.fc1_grad, WEIGHT / ranks, NULL, NULL},
      {"experts.fc2_weight", g_expected.fc2, g_got.fc2_grad, WEIGHT / ranks, NULL, NULL},
  };
  RANK_CHECK(nvtex_module_num_parameters(module) == COUNT(parts), "parameters");
  for (size_t i = 0; i < COUNT(parts); i++) {
    NVTEXParameter p = {.struct_size = sizeof p};
    nvtex_module_parameter(module, i, &p);
    RANK_CHECK(!strcmp(p.name, parts[i].name), "parameter %zu: %s", i, p.name);
    const size_t at = i ? rank * parts[i].count : 0;
    char *value = on_device(p.dtype, parts[i].value + at, parts[i].count);
    nvtex_memcpy_on_device(nvte_tensor_data(p.value), value, parts[i].count * dtype_size(p.dtype),
                           NULL);
    parts[i].grad += at;
    parts[i].memory = nvtex_malloc(parts[i].count * sizeof(float));
    parts[i].bound = make(parts[i].memory, kNVTEFloat32, p.shape);
    nvtex_module_set_gradient(module, i, parts[i].bound, false);
    nvtex_stream_synchronize(NULL);
    nvtex_free(value);
  }
  RANK_OK(r);
  const size_t bytes = count * dtype_size(c->dtype);
  char *memory[] = {on_device(c->dtype, g_expected.x + first, count),
                    on_device(c->dtype, g_expected.dy + first, count), nvtex_malloc(bytes),
                    nvtex_malloc(bytes), nvtex_malloc(EXPERTS * sizeof(int64_t))};
  NVTETensor t[5];
  for (size_t i = 0; i < 4; i++) t[i] = make(memory[i], c->dtype, SHAPE(tokens, HIDDEN));
  t[4] = make(memory[4], kNVTEInt64, SHAPE(EXPERTS));
  // Ranks that share one GPU wait for each other on the host.
  const bool captures = on_cuda() && (ranks == 1 || (on_own_gpus((int)ranks) && c->factor > 0));
  const cudaStream_t stream = captures ? nvtex_stream_create() : NULL;
  nvtex_context_begin(context, NULL, 0, NULL);
  // A second step has the same results: nothing is left of the first one. So has a graph.
  for (int step = 0; step < 2 + captures; step++) {
    NVTEXTape tape = NULL;
    NVTETensor outputs[] = {t[2], NULL, t[4]};
    if (step == 2) nvtex_graph_begin(stream);
    nvtex_module_forward(module, &t[0], 1, outputs, 3, NULL, &tape, stream);
    nvtex_module_backward(module, tape, &t[1], 1, &t[3], 1, stream);
    RANK_OK(r);
    if (step == 2) {
      const NVTEXGraph graph = nvtex_graph_end(stream);
      for (size_t i = 2; i < 5; i++)
        nvte_memset(memory[i], 0xFF, i < 4 ? bytes : EXPERTS * 8, stream);
      for (int replay = 0; replay < 2; replay++) nvtex_graph_replay(graph, stream);
      nvtex_stream_synchronize(stream);
      nvtex_graph_destroy(graph);
      RANK_OK(r);
    }
    nvtex_tape_destroy(tape);
  }
  nvtex_context_end(context);
  nvtex_stream_synchronize(stream);
  from_device(c->dtype, memory[2], g_got.y + first, count);
  from_device(c->dtype, memory[3], g_got.dx + first, count);
  for (size_t i = 0; i < COUNT(parts); i++) {
    from_device(kNVTEFloat32, parts[i].memory, parts[i].grad, parts[i].count);
  }
  int64_t loads[EXPERTS];
  nvtex_memcpy_to_host(loads, memory[4], sizeof loads, NULL);
  nvtex_stream_synchronize(NULL);
  for (size_t e = 0; e < EXPERTS; e++) {
    RANK_CHECK(loads[e] == g_expected.loads[e], "rank %d: %lld of expert %zu, expected %lld", r,
               (long long)loads[e], e, (long long)g_expected.loads[e]);
  }
  nvtex_module_destroy(module);
  nvtex_context_destroy(context);
  nvtex_stream_destroy(stream);
  for (size_t i = 0; i < COUNT(parts); i++) {
    nvte_destroy_tensor(parts[i].bound);
    nvtex_free(parts[i].memory);
  }
  for (size_t i = 0; i < COUNT(memory); i++) {
    nvte_destroy_tensor(t[i]);
    nvtex_free(memory[i]);
  }
  RANK_OK(r);
}

static void compare(const char *what, const double *got, const double *expected, size_t count) {
  double error = 0, size = 0;
  for (size_t i = 0; i < count; i++) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  const double distance = sqrt(error / size), bound = g_case.dtype == kNVTEFloat32 ? 1e-6 : 1e-2;
  CHECK(size > 0 && distance <= bound, "%s: relative distance %g", what, distance);
}

static void check_case(void) {
  fill(&g_expected, g_case.dtype);
  reference(&g_expected, g_case.factor);
  CHECK((g_expected.dropped > 0) == (g_case.factor > 0 && g_case.factor < 2), "%zu were dropped",
        g_expected.dropped);
  memset(&g_got, 0, sizeof g_got);
  run_threads(g_case.ranks, 60, rank_body);
  for (int r = 0; r < g_case.ranks; r++) {
    for (size_t i = 0; i < ROUTER; i++) g_got.router_grad[i] += g_router_grads[r][i];
  }
  compare("y", g_got.y, g_expected.y, TOKENS * HIDDEN);
  compare("dx", g_got.dx, g_expected.dx, TOKENS * HIDDEN);
  compare("gradient of the router", g_got.router_grad, g_expected.router_grad, ROUTER);
  compare("gradient of fc1", g_got.fc1_grad, g_expected.fc1_grad, WEIGHT);
  compare("gradient of fc2", g_got.fc2_grad, g_expected.fc2_grad, WEIGHT);
}

static void refusals(NVTEXCommunicator world, int r) {
  (void)world;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXMoeConfig f = config_of(&(Case){1, kNVTEBFloat16, -0.5f});
  f.expert_parallel_size = 1;
  RANK_CHECK(!nvtex_moe_create(context, &f, NULL), "less than nothing");
  RANK_ERROR(r, "config.capacity_factor: expected a finite number, at least 0, got -0.5");
  nvtex_context_destroy(context);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  static const float factors[] = {0, 0.4f, 0.75f, 1.3f, 3};
  static const NVTEDType dtypes[] = {kNVTEFloat32, kNVTEBFloat16};
  for (int ranks = 1; ranks <= MOST; ranks *= 2) {
    for (size_t i = 0; i < COUNT(factors); i++) {
      for (size_t d = 0; d < COUNT(dtypes); d++) {
        g_case = (Case){ranks, dtypes[d], factors[i]};
        // CUDA has no products of groups in Float32.
        if (on_cuda() && dtypes[d] == kNVTEFloat32) continue;
        if (case_begin("%d ranks, %s, capacity factor %g", ranks, dtype_name(dtypes[d]),
                       (double)factors[i])) {
          check_case();
        }
      }
    }
  }
  if (case_begin("refused")) run_threads(1, 60, refusals);
  return test_end();
}
