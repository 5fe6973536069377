// Operators over ranks that are threads: tokens to experts and back, products whose operands are
// distributed, and Newton-Schulz iterations. What is expected comes from loops over whole tensors.
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>

#include "threads.h"
#include "transformer_engine/comm_gemm.h"
#include "transformer_engine/ep.h"
#include "transformer_engine/newton_schulz.h"

enum { MOST = 4 };

static NVTETensor make(void *memory, NVTEDType dtype, NVTEShape shape) {
  NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  set_param(t, kNVTERowwiseData, memory, dtype, shape);
  return t;
}

// A number from -1 to 1 that any rank can compute.
static double number(uint64_t seed, size_t i) {
  return (double)(mixed(i * 0x9E3779B97F4A7C15u + seed) >> 11) * 0x1p-52 - 1;
}

static void *fetched(const void *device, size_t bytes) {
  void *host = malloc(bytes + 1);
  if (!host) abort();
  nvtex_memcpy_to_host(host, device, bytes, NULL);
  nvtex_stream_synchronize(NULL);
  return host;
}

// ---- Experts

typedef struct Experts {
  size_t experts, topk, cols, alignment, capacity;
  NVTEDType dtype, index;
} Experts;

enum { TOKENS = 13 };

// Ranks have different numbers of tokens, the second one none.
static size_t tokens_of(int rank) { return rank == 1 ? 0 : TOKENS - (size_t)rank; }

// Choice k of a token: experts that differ, some of which are none. Every fourth token wants expert
// 0.
static int64_t choice(const Experts *e, int rank, size_t token, size_t k) {
  size_t first = token % 4 == 0 ? 0 : mixed((uint64_t)rank * 977 + token) % e->experts;
  size_t step = 1 + token % 2;
  if ((token + k) % 7 == 3) return k % 2 ? -1 : (int64_t)e->experts + 5;
  return (int64_t)((first + k * step) % e->experts);
}

static double token_value(const Experts *e, int rank, size_t token, size_t col) {
  return round_to(e->dtype, number(1000 + (uint64_t)rank, token * e->cols + col));
}

static double weight(int rank, size_t token, size_t k) {
  return (float)number(77 + (uint64_t)rank, token * 8 + k);
}

// What a row of an expert of rank `r` holds.
typedef struct Row {
  int rank;  // -1: padding
  size_t token, k, expert;
} Row;

static size_t rows_of_rank(const Experts *e, int r, int size, Row *rows, int64_t *counts) {
  size_t local = e->experts / (size_t)size, total = 0;
  for (size_t j = 0; j < local; j++) {
    size_t expert = (size_t)r * local + j, first = total;
    for (int rank = 0; rank < size; rank++) {
      for (size_t t = 0; t < tokens_of(rank); t++) {
        for (size_t k = 0; k < e->topk; k++) {
          if (choice(e, rank, t, k) == (int64_t)expert) rows[total++] = (Row){rank, t, k, expert};
        }
      }
    }
    while ((total - first) % e->alignment) rows[total++] = (Row){-1, 0, 0, expert};
    size_t room = e->capacity > first ? e->capacity - first : 0;
    counts[j] = (int64_t)(total - first < room || !e->capacity ? total - first : room);
  }
  return total;
}

// Whether a choice has a row, which may have no room.
static bool has_row(const Experts *e, int size, int rank, size_t token, size_t k, double *scale) {
  int64_t expert = choice(e, rank, token, k);
  if (expert < 0 || expert >= (int64_t)e->experts) return false;
  Row rows[MOST * TOKENS * 8 + 64];
  int64_t counts[64];
  int owner = (int)((size_t)expert / (e->experts / (size_t)size));
  size_t total = rows_of_rank(e, owner, size, rows, counts);
  for (size_t i = 0; i < total; i++) {
    if (rows[i].rank == rank && rows[i].token == token && rows[i].k == k) {
      *scale = (double)(i % 5) - 1.5;
      return !e->capacity || i < e->capacity;
    }
  }
  return false;
}

static void check_rows(const Rank *r, const Experts *e, const char *what, const void *device,
                       const Row *rows, size_t total, size_t room, bool with_weights,
                       const float *weights) {
  char *host = fetched(device, room * e->cols * dtype_size(e->dtype));
  size_t bad = 0;
  for (size_t i = 0; i < room && bad < 2; i++) {
    bool there = i < total && rows[i].rank >= 0;
    for (size_t c = 0; c < e->cols && bad < 2; c++) {
      double want = there ? token_value(e, rows[i].rank, rows[i].token, c) : 0;
      double got = get_value(e->dtype, host, i * e->cols + c);
      bad += !RANK_CHECK(got == want, "rank %d: %s: row %zu column %zu: got %g, expected %g",
                         r->rank, what, i, c, got, want);
    }
    if (!with_weights) continue;
    double want = there ? weight(rows[i].rank, rows[i].token, rows[i].k) : 0;
    bad += !RANK_CHECK((double)weights[i] == want, "rank %d: weight %zu", r->rank, i);
  }
  free(host);
}

static void experts(Rank *r) {
  const Experts *e = r->argument;
  size_t tokens = tokens_of(r->rank), local = e->experts / (size_t)r->size;
  size_t element = dtype_size(e->dtype), width = e->cols;
  NVTEEpGroupConfig group;
  memset(&group, 0, sizeof group);
  group.struct_size = sizeof group;
  group.ep_size = r->size, group.num_experts = (int)e->experts;
  group.max_tokens_per_rank = TOKENS, group.max_recv_tokens_per_rank = (int)e->capacity;
  group.hidden_dim = (int)e->cols, group.max_token_dtype = kNVTEFloat32;
  group.drop_on_overflow = e->capacity > 0;
  nvte_ep_initialize(nvtex_communicator_as_nccl(r->comm), &group);
  RANK_OK(r->rank);
  NVTEEpLayerConfig layer;
  memset(&layer, 0, sizeof layer);
  layer.struct_size = sizeof layer, layer.top_k = (int)e->topk;
  layer.dispatch_output_per_expert_alignment = e->alignment;
  size_t bytes = nvte_ep_handle_mem_size(&layer);
  RANK_OK(r->rank);

  Row rows[MOST * TOKENS * 8 + 64];
  int64_t counts[64];
  size_t total = rows_of_rank(e, r->rank, r->size, rows, counts);
  size_t room = e->capacity ? e->capacity : total + 3;
  char *tokens_host = malloc((tokens + 1) * width * element);
  float weights_host[TOKENS * 8 + 1];
  char indices[TOKENS * 8 * 8 + 8];
  if (!tokens_host) abort();
  for (size_t t = 0; t < tokens; t++) {
    for (size_t c = 0; c < width; c++) {
      put_value(e->dtype, tokens_host, t * width + c, token_value(e, r->rank, t, c));
    }
    for (size_t k = 0; k < e->topk; k++) {
      int64_t chosen = choice(e, r->rank, t, k);
      weights_host[t * e->topk + k] = (float)weight(r->rank, t, k);
      if (e->index == kNVTEInt64) {
        memcpy(indices + (t * e->topk + k) * 8, &chosen, 8);
      } else {
        int32_t small = (int32_t)chosen;
        memcpy(indices + (t * e->topk + k) * 4, &small, 4);
      }
    }
  }
  size_t slots = tokens * e->topk, index_size = dtype_size(e->index);
  char *zeros = calloc((room + tokens + 1) * width * element + bytes + 4096, 1);
  if (!zeros) abort();
  memset(zeros, 0x7b, (room + tokens + 1) * width * element);
  void *memory[] = {device_copy(zeros, bytes),
                    device_copy(indices, slots * index_size),
                    device_copy(tokens_host, tokens * width * element),
                    device_copy(weights_host, slots * 4),
                    device_copy(zeros, room * width * element),
                    device_copy(zeros, room * 4),
                    device_copy(zeros, local * index_size),
                    device_copy(zeros, index_size),
                    device_copy(zeros, tokens * width * element),
                    device_copy(zeros, slots * 4)};
  NVTETensor t[] = {make(memory[0], kNVTEByte, SHAPE(bytes)),
                    make(memory[1], e->index, SHAPE(tokens, e->topk)),
                    make(memory[2], e->dtype, SHAPE(tokens, width)),
                    make(memory[3], kNVTEFloat32, SHAPE(tokens, e->topk)),
                    make(memory[4], e->dtype, SHAPE(room, width)),
                    make(memory[5], kNVTEFloat32, SHAPE(room)),
                    make(memory[6], e->index, SHAPE(local)),
                    make(memory[7], e->index, SHAPE(1)),
                    make(memory[8], e->dtype, SHAPE(tokens, width)),
                    make(memory[9], kNVTEFloat32, SHAPE(tokens, e->topk))};
  const NVTECommWindow none = {NULL, 0, NULL, 0};

  nvte_ep_prepare(t[0], t[1], t[6], t[7], &layer, NULL);
  RANK_OK(r->rank);
  char *got = fetched(memory[6], local * index_size), *sum = fetched(memory[7], index_size);
  for (size_t j = 0; j < local; j++) {
    int64_t count =
        e->index == kNVTEInt64 ? ((int64_t *)(void *)got)[j] : ((int32_t *)(void *)got)[j];
    RANK_CHECK(count == counts[j], "rank %d: expert %zu: %lld rows, expected %lld", r->rank, j,
               (long long)count, (long long)counts[j]);
  }
  int64_t all = e->index == kNVTEInt64 ? *(int64_t *)(void *)sum : *(int32_t *)(void *)sum;
  RANK_CHECK(all == (int64_t)total, "rank %d: %lld rows, expected %zu", r->rank, (long long)all,
             total);
  free(got);
  free(sum);

  nvte_ep_dispatch(t[0], t[1], t[2], none, t[3], none, t[4], none, t[5], none, NULL);
  RANK_OK(r->rank);
  float *weights = fetched(memory[5], room * 4);
  check_rows(r, e, "tokens", memory[4], rows, total, room, true, weights);
  free(weights);

  // Results of experts: their rows times a factor that depends on the row, and gradients of
  // weights.
  char *out = malloc(room * width * element + 1);
  float *grads = malloc(room * 4 + 4);
  if (!out || !grads) abort();
  for (size_t i = 0; i < room; i++) {
    bool there = i < total && rows[i].rank >= 0;
    for (size_t c = 0; c < width; c++) {
      double x = there ? token_value(e, rows[i].rank, rows[i].token, c) : 100;
      put_value(e->dtype, out, i * width + c, x * ((double)(i % 5) - 1.5));
    }
    grads[i] = there ? (float)(rows[i].rank * 1000 + (int)rows[i].token * 8 + (int)rows[i].k) : -1;
  }
  nvtex_memcpy_to_device(memory[4], out, room * width * element, NULL);
  nvtex_memcpy_to_device(memory[5], grads, room * 4, NULL);
  for (int pass = 0; pass < 2; pass++) {
    if (pass == 0) {
      nvte_ep_combine(t[0], t[4], none, t[8], NULL);
    } else {
      nvte_ep_dispatch_bwd(t[0], t[4], none, t[5], none, t[8], t[9], NULL);
    }
    RANK_OK(r->rank);
    char *result = fetched(memory[8], tokens * width * element);
    float *back = fetched(memory[9], slots * 4);
    size_t bad = 0;
    for (size_t i = 0; i < tokens && bad < 2; i++) {
      double factor[8] = {0};
      for (size_t k = 0; k < e->topk; k++) {
        double scale = 0;
        bool there = has_row(e, r->size, r->rank, i, k, &scale);
        factor[k] = there ? scale : 0;
        float want = there ? (float)(r->rank * 1000 + (int)i * 8 + (int)k) : 0;
        if (pass == 1) {
          bad += !RANK_CHECK(back[i * e->topk + k] == want, "rank %d: weight of token %zu, %zu",
                             r->rank, i, k);
        }
      }
      for (size_t c = 0; c < width && bad < 2; c++) {
        double want = 0, size = 0;
        for (size_t k = 0; k < e->topk; k++) {
          double x = round_to(e->dtype, token_value(e, r->rank, i, c) * factor[k]);
          want += x;
          size += fabs(x);
        }
        double value = get_value(e->dtype, result, i * width + c);
        double one = e->dtype == kNVTEFloat32 ? 0 : e->dtype == kNVTEFloat16 ? 5e-4 : 4e-3;
        // With a capacity the sum of a rank's experts is rounded before it is sent.
        double parts = e->capacity ? one * size : 0;
        bad += !RANK_CHECK(fabs(value - want) <= one * fabs(want) + parts + 3e-7 * size,
                           "rank %d: token %zu column %zu: got %g, expected %g", r->rank, i, c,
                           value, want);
      }
    }
    free(result);
    free(back);
  }
  nvte_ep_combine_bwd(t[0], t[2], none, t[4], none, NULL);
  RANK_OK(r->rank);
  check_rows(r, e, "gradients", memory[4], rows, total, room, false, NULL);

  for (size_t i = 0; i < COUNT(t); i++) {
    nvte_destroy_tensor(t[i]);
    nvtex_free(memory[i]);
  }
  free(zeros);
  free(tokens_host);
  free(out);
  free(grads);
  RANK_OK(r->rank);
}

static void test_experts(void) {
  static const Experts all[] = {
      {8, 3, 32, 1, 0, kNVTEFloat32, kNVTEInt64},    {8, 3, 64, 16, 0, kNVTEBFloat16, kNVTEInt32},
      {12, 4, 8, 4, 0, kNVTEFloat16, kNVTEInt64},    {12, 2, 16, 8, 17, kNVTEFloat32, kNVTEInt32},
      {12, 1, 16, 1, 0, kNVTEBFloat16, kNVTEInt64},  {8, 5, 24, 1, 500, kNVTEFloat32, kNVTEInt64},
      {12, 4, 9, 16, 90, kNVTEBFloat16, kNVTEInt32}, {24, 8, 8, 1, 20, kNVTEFloat16, kNVTEInt64},
      {4, 2, 32, 8, 0, kNVTEBFloat16, kNVTEInt32},   {3, 3, 9, 1, 0, kNVTEFloat32, kNVTEInt64},
  };
  for (size_t i = 0; i < COUNT(all); i++) {
    for (int size = 2; size <= MOST; size++) {
      const Experts *e = &all[i];
      if (e->experts % (size_t)size) continue;
      if (!case_begin("experts: %d ranks, %zu experts, %zu choices, %s, capacity %zu", size,
                      e->experts, e->topk, dtype_name(e->dtype), e->capacity)) {
        continue;
      }
      run_ranks(size, 60, experts, (void *)e);
      nvte_ep_shutdown();
    }
  }
}

// ---- Products

typedef struct Product {
  int kind;  // 0: all-gather, 1: reduce-scatter, 2: all-reduce
  bool transa, transb, bias, accumulate;
  NVTEDType dtype;
} Product;

enum { M = 24, N = 48, K = 36 };

static double of_a(const Product *p, size_t m, size_t k) {
  return round_to(p->dtype, number(1, m * K + k));
}

static double of_b(const Product *p, size_t n, size_t k) {
  return round_to(p->dtype, number(2, n * K + k));
}

static void product(Rank *r) {
  const Product *p = r->argument;
  size_t ranks = (size_t)r->size, rank = (size_t)r->rank;
  size_t m = p->kind == 0 ? M / ranks : M, n = p->kind == 2 ? N : N / ranks;
  size_t k = p->kind == 0 ? K : K / ranks, n_of_b = p->kind == 0 ? N / ranks : N;
  size_t n_of_d = p->kind == 0 ? N : n;
  size_t m0 = p->kind == 0 ? rank * m : 0, k0 = p->kind == 0 ? 0 : rank * k;
  size_t n0_b = p->kind == 0 ? rank * n_of_b : 0, n0_d = p->kind == 1 ? rank * n : 0;
  size_t element = dtype_size(p->dtype);
  char a[M * K * 4], b[N * K * 4], d[N * M * 4], bias[M * 4];
  for (size_t i = 0; i < m; i++) {
    for (size_t j = 0; j < k; j++) {
      put_value(p->dtype, a, p->transa ? i * k + j : j * m + i, of_a(p, m0 + i, k0 + j));
    }
    put_value(p->dtype, bias, i, round_to(p->dtype, number(3, m0 + i)));
  }
  for (size_t i = 0; i < n_of_b; i++) {
    for (size_t j = 0; j < k; j++) {
      put_value(p->dtype, b, p->transb ? j * n_of_b + i : i * k + j, of_b(p, n0_b + i, k0 + j));
    }
  }
  for (size_t i = 0; i < n_of_d * m; i++) {
    size_t row = n0_d + i / m, col = m0 + i % m;
    put_value(p->dtype, d, i, round_to(p->dtype, number(4, row * M + col)));
  }
  void *memory[] = {device_copy(a, m * k * element), device_copy(b, n_of_b * k * element),
                    device_copy(d, n_of_d * m * element), device_copy(bias, m * element)};
  NVTETensor t[] = {make(memory[0], p->dtype, p->transa ? SHAPE(m, k) : SHAPE(k, m)),
                    make(memory[1], p->dtype, p->transb ? SHAPE(k, n_of_b) : SHAPE(n_of_b, k)),
                    make(memory[2], p->dtype, SHAPE(n_of_d, m)),
                    make(memory[3], p->dtype, SHAPE(m)),
                    nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING)};
  NVTECommGemmCtx *ctx =
      nvte_comm_gemm_ctx_create(nvtex_communicator_as_nccl(r->comm), r->size, r->rank);
  RANK_OK(r->rank);
  RANK_CHECK(nvte_comm_gemm_numroc(ctx, N) == (int64_t)(N / ranks), "rank %d", r->rank);
  int64_t left = 2 * (int64_t)ranks - 1 - 2 * r->rank;
  RANK_CHECK(nvte_comm_gemm_numroc(ctx, 2 * (int64_t)ranks - 1) == (left < 2 ? left : 2), "rank %d",
             r->rank);
  NVTETensor biases = p->bias ? t[3] : t[4];
  switch (p->kind) {
    case 0:
      nvte_all_gather_gemm(ctx, M, N, K, t[0], t[1], t[2], biases, t[4], p->transa, p->transb,
                           false, p->accumulate, 0, NULL, kNVTECommGemmAlgoDefault);
      break;
    case 1:
      nvte_gemm_reduce_scatter(ctx, M, N, K, t[0], t[1], t[2], biases, t[4], p->transa, p->transb,
                               false, p->accumulate, 0, NULL, kNVTECommGemmAlgoDefault);
      break;
    default:
      nvte_gemm_all_reduce(ctx, M, N, K, t[0], t[1], t[2], biases, t[4], p->transa, p->transb,
                           false, p->accumulate, 0, NULL, kNVTECommGemmAlgoDefault);
  }
  RANK_OK(r->rank);
  char *got = fetched(memory[2], n_of_d * m * element);
  double bound = p->dtype == kNVTEFloat32   ? (on_cuda() ? 2e-3 : 1e-5)
                 : p->dtype == kNVTEFloat16 ? 4e-3
                                            : 3e-2;
  size_t bad = 0;
  for (size_t i = 0; i < n_of_d * m && bad < 2; i++) {
    size_t row = n0_d + i / m, col = m0 + i % m;
    double want = p->accumulate ? round_to(p->dtype, number(4, row * M + col)) : 0;
    double size = fabs(want) + 1;
    if (p->bias) want += round_to(p->dtype, number(3, col));
    for (size_t j = 0; j < K; j++) {
      double x = of_a(p, col, j) * of_b(p, row, j);
      want += x;
      size += fabs(x);
    }
    double value = get_value(p->dtype, got, i);
    bad += !RANK_CHECK(fabs(value - want) <= bound * size,
                       "rank %d: [%zu, %zu]: got %g, expected %g", r->rank, row, col, value, want);
  }
  free(got);
  // Sizes that do not divide are refused before anything is exchanged.
  nvte_gemm_all_reduce(ctx, M, N, K + 1, t[0], t[1], t[2], t[4], t[4], p->transa, p->transb, false,
                       false, 0, NULL, kNVTECommGemmAlgoDefault);
  RANK_ERROR(r->rank, "k: expected a multiple of");
  nvte_comm_gemm_ctx_destroy(ctx);
  for (size_t i = 0; i < COUNT(t); i++) nvte_destroy_tensor(t[i]);
  for (size_t i = 0; i < COUNT(memory); i++) nvtex_free(memory[i]);
  RANK_OK(r->rank);
}

static void test_products(void) {
  static const char *const kinds[] = {"all-gather + product", "product + reduce-scatter",
                                      "product + all-reduce"};
  for (int kind = 0; kind < 3; kind++) {
    for (int form = 0; form < 8; form++) {
      Product p = {kind,
                   form & 1,
                   form & 2,
                   form & 4,
                   (form + kind) % 3 == 0,
                   kHighPrecision[(form + kind) % 3]};
      int size = form % 2 ? 2 : kind == 0 ? 4 : 3;
      if (!case_begin("%s: %d ranks, form %d, %s", kinds[kind], size, form, dtype_name(p.dtype))) {
        continue;
      }
      run_ranks(size, 60, product, &p);
    }
  }
}

// ---- Newton-Schulz

typedef struct Matrix {
  size_t rows, cols;
  NVTEDType dtype;
} Matrix;

static const float kFactors[] = {3.4445f, -4.7750f, 2.0315f, 2.5f, -2.0f, 0.5f};

// x = a x + b (x x^T) x + c (x x^T)^2 x, in double.
static void iterate(double *x, size_t rows, size_t cols, const float *f) {
  double *g = calloc(rows * rows, sizeof *g), *p = calloc(rows * rows, sizeof *p);
  double *y = calloc(rows * cols, sizeof *y);
  if (!g || !p || !y) abort();
  for (size_t i = 0; i < rows * rows; i++) {
    for (size_t j = 0; j < cols; j++) g[i] += x[i / rows * cols + j] * x[i % rows * cols + j];
  }
  for (size_t i = 0; i < rows * rows; i++) {
    for (size_t j = 0; j < rows; j++) {
      p[i] += (double)f[2] * g[i / rows * rows + j] * g[j * rows + i % rows];
    }
    p[i] += (double)f[1] * g[i];
  }
  for (size_t i = 0; i < rows * cols; i++) {
    y[i] = (double)f[0] * x[i];
    for (size_t j = 0; j < rows; j++) y[i] += p[i / cols * rows + j] * x[j * cols + i % cols];
  }
  memcpy(x, y, rows * cols * sizeof *x);
  free(g);
  free(p);
  free(y);
}

static void newton_schulz(Rank *r) {
  const Matrix *m = r->argument;
  size_t ranks = (size_t)r->size, each = (m->cols + ranks - 1) / ranks;
  size_t first = (size_t)r->rank * each < m->cols ? (size_t)r->rank * each : m->cols;
  size_t own = m->cols - first < each ? m->cols - first : each;
  size_t element = dtype_size(m->dtype);
  double *x = malloc(m->rows * m->cols * sizeof *x);
  char *part = malloc(m->rows * own * element + 1);
  if (!x || !part) abort();
  for (size_t i = 0; i < m->rows * m->cols; i++) {
    x[i] = round_to(m->dtype, number(9, i) / sqrt((double)(m->rows + m->cols)));
  }
  for (size_t i = 0; i < m->rows * own; i++) {
    put_value(m->dtype, part, i, x[i / own * m->cols + first + i % own]);
  }
  char *memory = device_copy(part, m->rows * own * element);
  NVTETensor t = make(memory, m->dtype, SHAPE(m->rows, own));
  NVTECusolverMpCtx *ctx =
      nvte_cusolvermp_ctx_create(nvtex_communicator_as_nccl(r->comm), r->size, r->rank);
  RANK_OK(r->rank);
  nvte_newton_schulz(ctx, (int64_t)m->rows, (int64_t)m->cols, t, 2, kFactors, 6, NULL);
  RANK_OK(r->rank);
  iterate(x, m->rows, m->cols, kFactors);
  iterate(x, m->rows, m->cols, kFactors + 3);
  char *got = fetched(memory, m->rows * own * element);
  double bound = m->dtype == kNVTEFloat32 ? (on_cuda() ? 1e-2 : 2e-5) : 5e-2;
  size_t bad = 0;
  for (size_t i = 0; i < m->rows * own && bad < 2; i++) {
    double want = x[i / own * m->cols + first + i % own], value = get_value(m->dtype, got, i);
    bad += !RANK_CHECK(fabs(value - want) <= bound * (1 + fabs(want)),
                       "rank %d: element %zu: got %g, expected %g", r->rank, i, value, want);
  }
  nvte_cusolvermp_ctx_destroy(ctx);
  nvte_destroy_tensor(t);
  nvtex_free(memory);
  free(got);
  free(part);
  free(x);
  RANK_OK(r->rank);
}

static void test_newton_schulz(void) {
  // Also more rows than columns, columns that ranks have unequally, and a rank without any.
  static const Matrix all[] = {{16, 48, kNVTEFloat32},
                               {40, 24, kNVTEFloat32},
                               {16, 50, kNVTEFloat32},
                               {8, 3, kNVTEFloat32},
                               {16, 64, kNVTEBFloat16}};
  for (size_t i = 0; i < COUNT(all); i++) {
    for (int size = 2; size <= MOST; size += 2) {
      if (!case_begin("Newton-Schulz: %d ranks, %zu x %zu, %s", size, all[i].rows, all[i].cols,
                      dtype_name(all[i].dtype))) {
        continue;
      }
      run_ranks(size, 60, newton_schulz, (void *)&all[i]);
    }
  }
}

// ---- What is refused

static void refusals(Rank *r) {
  ncclComm_t comm = nvtex_communicator_as_nccl(r->comm);
  RANK_OK(r->rank);
  RANK_CHECK(!nvte_comm_gemm_ctx_create(comm, r->size + 1, r->rank), "rank %d", r->rank);
  RANK_ERROR(r->rank, "nranks: expected 2 (the size of comm), got 3");
  RANK_CHECK(!nvte_comm_gemm_ctx_create(comm, r->size, 1 - r->rank), "rank %d", r->rank);
  RANK_ERROR(r->rank, "(the rank of comm)");
  RANK_CHECK(!nvtex_communicator_as_nccl(NULL), "rank %d", r->rank);
  RANK_ERROR(r->rank, "communicator");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_experts();
  test_products();
  test_newton_schulz();
  if (case_begin("what is refused")) run_ranks(2, 60, refusals, NULL);
  return test_end();
}
