// Layers of experts: outputs, losses and gradients against loops over tokens and experts in double.
// The derivatives of scalar functions (activations, weights of a token as functions of its logits)
// are differences in double.
#include "support.h"

enum { MOST_EXPERTS = 8, MOST_K = 4, PARAMETERS = 10 };

typedef struct Case {
  const char *name;
  NVTEDType dtype, router_dtype;
  size_t tokens, hidden, ffn, experts, k;
  NVTEXMoeScore score;
  size_t groups, group_k;
  bool expert_bias, bias, gated, accumulate, empty;
  size_t shared;
  float scale, balance, z;
} Case;

typedef struct Matrix {
  size_t count;
  double *values, *grad;
} Matrix;

typedef enum Which { ROUTER, EXPERT_BIAS, W1, B1, W2, B2, S1, SB1, S2, SB2 } Which;

static const char *const kNames[PARAMETERS] = {
    "router.weight",      "router.expert_bias", "experts.fc1_weight", "experts.fc1_bias",
    "experts.fc2_weight", "experts.fc2_bias",   "shared.fc1_weight",  "shared.fc1_bias",
    "shared.fc2_weight",  "shared.fc2_bias"};

typedef struct Model {
  const Case *c;
  Matrix p[PARAMETERS], x, y, dy, losses;
  double dlosses[2];
  long long loads[MOST_EXPERTS];
} Model;

static size_t wide(const Case *c, size_t ffn) { return c->gated ? 2 * ffn : ffn; }

static size_t count_of(const Case *c, Which which) {
  switch (which) {
    case ROUTER:
      return c->experts * c->hidden;
    case EXPERT_BIAS:
      return c->expert_bias ? c->experts : 0;
    case W1:
      return c->experts * wide(c, c->ffn) * c->hidden;
    case B1:
      return c->bias ? c->experts * wide(c, c->ffn) : 0;
    case W2:
      return c->experts * c->hidden * c->ffn;
    case B2:
      return c->bias ? c->experts * c->hidden : 0;
    case S1:
      return wide(c, c->shared) * c->hidden;
    case SB1:
      return c->bias ? wide(c, c->shared) : 0;
    case S2:
      return c->hidden * c->shared;
    default:
      return c->bias && c->shared ? c->hidden : 0;
  }
}

static NVTEDType dtype_of(const Case *c, Which which) {
  return which == ROUTER ? c->router_dtype : which == EXPERT_BIAS ? kNVTEFloat32 : c->dtype;
}

static NVTEShape shape_of_parameter(const Case *c, Which which) {
  const size_t e = c->experts, h = c->hidden, f = c->ffn, s = c->shared;
  switch (which) {
    case ROUTER:
      return SHAPE(e, h);
    case EXPERT_BIAS:
      return SHAPE(e);
    case W1:
      return SHAPE(e, wide(c, f), h);
    case B1:
      return SHAPE(e, wide(c, f));
    case W2:
      return SHAPE(e, h, f);
    case B2:
      return SHAPE(e, h);
    case S1:
      return SHAPE(wide(c, s), h);
    case SB1:
      return SHAPE(wide(c, s));
    case S2:
      return SHAPE(h, s);
    default:
      return SHAPE(h);
  }
}

// ---- The reference

// Exp and tanh of libm are not exactly rounded, but far better than any tolerance here.
static double act(bool gated, double a, double gate) {
  if (gated) return a / (1 + exp(-a)) * gate;
  return 0.5 * a * (1 + tanh(0.79788456080286535588 * (a + 0.044715 * a * a * a)));
}

static double slope(bool gated, double a, double gate, int of_gate) {
  const double e = 1e-5;
  if (of_gate) return (act(gated, a, gate + e) - act(gated, a, gate - e)) / (2 * e);
  return (act(gated, a + e, gate) - act(gated, a - e, gate)) / (2 * e);
}

// y += weight * mlp(x), and the result of the MLP alone if `out` is given.
static void mlp(const Case *c, const double *const w[4], size_t ffn, const double *x, double weight,
                double *y, double *out) {
  double *a = calloc(ffn, sizeof *a);
  for (size_t f = 0; f < ffn; f++) {
    double v[2] = {0, 0};
    for (size_t side = 0; side < (c->gated ? 2u : 1u); side++) {
      const size_t row = side * ffn + f;
      v[side] = w[1] ? w[1][row] : 0;
      for (size_t h = 0; h < c->hidden; h++) v[side] += w[0][row * c->hidden + h] * x[h];
    }
    a[f] = act(c->gated, v[0], v[1]);
  }
  for (size_t h = 0; h < c->hidden; h++) {
    double v = w[3] ? w[3][h] : 0;
    for (size_t f = 0; f < ffn; f++) v += w[2][h * ffn + f] * a[f];
    y[h] += weight * v;
    if (out) out[h] = v;
  }
  free(a);
}

// Adds gradients of an MLP whose result has the gradient `weight * dy`.
static void mlp_grad(const Case *c, const double *const w[4], double *const g[4], size_t ffn,
                     const double *x, double weight, const double *dy, double *dx) {
  for (size_t f = 0; f < ffn; f++) {
    double v[2] = {0, 0}, da = 0;
    const size_t sides = c->gated ? 2 : 1;
    for (size_t side = 0; side < sides; side++) {
      const size_t row = side * ffn + f;
      v[side] = w[1] ? w[1][row] : 0;
      for (size_t h = 0; h < c->hidden; h++) v[side] += w[0][row * c->hidden + h] * x[h];
    }
    const double a = act(c->gated, v[0], v[1]);
    for (size_t h = 0; h < c->hidden; h++) {
      da += w[2][h * ffn + f] * weight * dy[h];
      g[2][h * ffn + f] += weight * dy[h] * a;
    }
    for (size_t side = 0; side < sides; side++) {
      const size_t row = side * ffn + f;
      const double d = da * slope(c->gated, v[0], v[1], (int)side);
      if (g[1]) g[1][row] += d;
      for (size_t h = 0; h < c->hidden; h++) {
        g[0][row * c->hidden + h] += d * x[h];
        dx[h] += d * w[0][row * c->hidden + h];
      }
    }
  }
  for (size_t h = 0; g[3] && h < c->hidden; h++) g[3][h] += weight * dy[h];
}

static double score_of(const Case *c, double x) {
  return c->score == NVTEX_MOE_SCORE_SIGMOID ? 1 / (1 + exp(-x)) : sqrt(log1p(exp(x)));
}

static bool is_softmax(const Case *c) { return c->score <= NVTEX_MOE_SCORE_SOFTMAX_OF_ALL; }

// Scores of all experts that add up to 1, and the logarithm of the sum of exponentials.
static double normalized(const Case *c, const double *logits, double *scores) {
  double all = 0, sum = 0;
  for (size_t e = 0; e < c->experts; e++) all += exp(logits[e]);
  for (size_t e = 0; e < c->experts; e++) {
    scores[e] = is_softmax(c) ? exp(logits[e]) / all : score_of(c, logits[e]);
    sum += scores[e];
  }
  for (size_t e = 0; e < c->experts; e++) scores[e] /= sum;
  return log(all);
}

static void weights_of(const Case *c, const double *logits, const size_t *chosen, double *w) {
  double all[MOST_EXPERTS], sum = 0;
  normalized(c, logits, all);
  for (size_t i = 0; i < c->k; i++) {
    w[i] = c->score == NVTEX_MOE_SCORE_SOFTMAX          ? exp(logits[chosen[i]])
           : c->score == NVTEX_MOE_SCORE_SOFTMAX_OF_ALL ? all[chosen[i]]
                                                        : score_of(c, logits[chosen[i]]);
    sum += w[i];
  }
  const bool divided = c->score == NVTEX_MOE_SCORE_SOFTMAX || (!is_softmax(c) && c->k > 1);
  for (size_t i = 0; i < c->k; i++) w[i] *= c->scale / (divided ? sum : 1);
}

static void choose(const Case *c, const double *logits, const double *bias, size_t *chosen) {
  double s[MOST_EXPERTS];
  for (size_t e = 0; e < c->experts; e++) {
    s[e] = is_softmax(c) ? logits[e] : score_of(c, logits[e]) + (bias ? bias[e] : 0);
  }
  if (c->groups) {
    const size_t size = c->experts / c->groups, best = c->k / c->group_k;
    double of_group[MOST_EXPERTS];
    for (size_t g = 0; g < c->groups; g++) {
      bool used[MOST_EXPERTS] = {false};
      of_group[g] = 0;
      for (size_t i = 0; i < best; i++) {
        size_t at = MOST_EXPERTS;
        for (size_t e = g * size; e < (g + 1) * size; e++) {
          if (!used[e] && (at == MOST_EXPERTS || s[e] > s[at])) at = e;
        }
        used[at] = true;
        of_group[g] += s[at];
      }
    }
    for (size_t left = c->groups - c->group_k; left > 0; left--) {
      size_t worst = MOST_EXPERTS;
      for (size_t g = 0; g < c->groups; g++) {
        const bool open = of_group[g] != -INFINITY;
        if (open && (worst == MOST_EXPERTS || of_group[g] < of_group[worst])) worst = g;
      }
      of_group[worst] = -INFINITY;
      for (size_t e = worst * size; e < (worst + 1) * size; e++) s[e] = -INFINITY;
    }
  }
  bool used[MOST_EXPERTS] = {false};
  for (size_t i = 0; i < c->k; i++) {
    size_t at = MOST_EXPERTS;
    for (size_t e = 0; e < c->experts; e++) {
      if (!used[e] && (at == MOST_EXPERTS || s[e] > s[at])) at = e;
    }
    used[at] = true;
    chosen[i] = at;
  }
}

static void of_expert(const Model *m, size_t e, const double *w[4], double *g[4]) {
  for (size_t i = 0; i < 4; i++) {
    const Matrix *p = &m->p[W1 + i];
    const size_t at = p->count / m->c->experts * e;
    w[i] = p->count ? p->values + at : NULL;
    g[i] = p->count ? p->grad + at : NULL;
  }
}

static void of_shared(const Model *m, const double *w[4], double *g[4]) {
  for (size_t i = 0; i < 4; i++) {
    w[i] = m->p[S1 + i].count ? m->p[S1 + i].values : NULL;
    g[i] = m->p[S1 + i].count ? m->p[S1 + i].grad : NULL;
  }
}

static void reference(Model *m) {
  const Case *c = m->c;
  const size_t t_all = c->tokens, n = c->experts, hidden = c->hidden;
  double *logits = calloc(t_all * n, sizeof *logits);
  size_t *chosen = calloc(t_all * MOST_K, sizeof *chosen);
  memset(m->loads, 0, sizeof m->loads);
  m->losses.values[0] = m->losses.values[1] = 0;
  for (size_t t = 0; t < t_all; t++) {
    for (size_t e = 0; e < n; e++) {
      for (size_t h = 0; h < hidden; h++) {
        logits[t * n + e] += m->p[ROUTER].values[e * hidden + h] * m->x.values[t * hidden + h];
      }
    }
    const double *bias = c->expert_bias ? m->p[EXPERT_BIAS].values : NULL;
    choose(c, logits + t * n, bias, chosen + t * MOST_K);
    for (size_t i = 0; i < c->k; i++) m->loads[chosen[t * MOST_K + i]]++;
  }
  const double of_balance = c->balance * (double)n / (double)c->k / (double)t_all / (double)t_all;
  for (size_t t = 0; t < t_all; t++) {
    const double *l = logits + t * n, *x = m->x.values + t * hidden,
                 *dy = m->dy.values + t * hidden;
    double *y = m->y.values + t * hidden, *dx = m->x.grad + t * hidden;
    const size_t *own = chosen + t * MOST_K;
    double w[MOST_K], dw[MOST_K], s[MOST_EXPERTS];
    double *out = calloc(hidden, sizeof *out);
    weights_of(c, l, own, w);
    const double size = normalized(c, l, s);
    m->losses.values[1] += c->z / (double)t_all * size * size;
    for (size_t e = 0; e < n; e++) m->losses.values[0] += of_balance * (double)m->loads[e] * s[e];
    const double *v[4];
    double *g[4];
    for (size_t i = 0; i < c->k; i++) {
      of_expert(m, own[i], v, g);
      mlp(c, v, c->ffn, x, w[i], y, out);
      mlp_grad(c, v, g, c->ffn, x, w[i], dy, dx);
      dw[i] = 0;
      for (size_t h = 0; h < hidden; h++) dw[i] += dy[h] * out[h];
    }
    if (c->shared) {
      of_shared(m, v, g);
      mlp(c, v, c->shared, x, 1, y, NULL);
      mlp_grad(c, v, g, c->shared, x, 1, dy, dx);
    }
    for (size_t e = 0; e < n; e++) {
      double both[2];
      for (int side = 0; side < 2; side++) {
        double moved[MOST_EXPERTS], u[MOST_K], p[MOST_EXPERTS];
        memcpy(moved, l, n * sizeof *l);
        moved[e] += side ? 1e-5 : -1e-5;
        weights_of(c, moved, own, u);
        const double log_all = normalized(c, moved, p);
        both[side] = m->dlosses[1] * c->z / (double)t_all * log_all * log_all;
        for (size_t i = 0; i < c->k; i++) both[side] += dw[i] * u[i];
        for (size_t j = 0; j < n; j++) {
          both[side] += m->dlosses[0] * of_balance * (double)m->loads[j] * p[j];
        }
      }
      const double d = (both[1] - both[0]) / 2e-5;
      for (size_t h = 0; h < hidden; h++) {
        m->p[ROUTER].grad[e * hidden + h] += d * x[h];
        dx[h] += d * m->p[ROUTER].values[e * hidden + h];
      }
    }
    free(out);
  }
  free(logits);
  free(chosen);
}

// ---- The module

static Matrix matrix_of(size_t count) {
  Matrix m = {count, host_memory((count + 1) * sizeof(double)),
              host_memory((count + 1) * sizeof(double))};
  memset(m.values, 0, (count + 1) * sizeof(double));
  memset(m.grad, 0, (count + 1) * sizeof(double));
  return m;
}

// Random values as a dtype has them, on the device and in double. They have 8 bits, so that tensor
// cores do not round the operands of the router, and choose the same experts.
static Buffer *filled(Matrix *m, NVTEDType dtype, double bound) {
  void *host = random_values(dtype, m->count, -bound, bound);
  for (size_t i = 0; i < m->count; i++) {
    m->values[i] = round_to(kNVTEBFloat16, get_value(dtype, host, i));
    put_value(dtype, host, i, m->values[i]);
    m->values[i] = get_value(dtype, host, i);
  }
  return buffer_from(host, m->count * dtype_size(dtype), 0);
}

static NVTEXMoeConfig config_of(const Case *c) {
  NVTEXMoeConfig f;
  nvtex_moe_config_init(&f, sizeof f);
  f.hidden_size = c->hidden;
  f.ffn_hidden_size = c->ffn;
  f.num_experts = c->experts;
  f.top_k = c->k;
  f.dtype = c->dtype;
  f.router_dtype = c->router_dtype;
  f.activation = c->gated ? SWIGLU : GELU;
  f.bias = c->bias;
  f.score = c->score;
  f.num_groups = c->groups;
  f.group_top_k = c->group_k;
  f.expert_bias = c->expert_bias;
  f.scaling_factor = c->scale;
  f.balance_coefficient = c->balance;
  f.z_coefficient = c->z;
  f.shared_ffn_hidden_size = c->shared;
  return f;
}

static bool close_to(const char *name, NVTEDType dtype, const Buffer *got, const double *expected,
                     size_t count, double tolerance) {
  const void *values = buffer_read(got);
  double error = 0, size = 1e-300;
  for (size_t i = 0; i < count; i++) {
    const double difference = get_value(dtype, values, i) - expected[i];
    error += difference * difference;
    size += expected[i] * expected[i];
  }
  // Where nothing is expected there must be nothing.
  if (size <= 1e-300) return CHECK(error == 0, "%s: not 0", name);
  return CHECK(sqrt(error / size) <= tolerance, "%s: relative error %g", name, sqrt(error / size));
}

static bool declined(void) {
  if (nvtex_last_status() != NVTEX_UNSUPPORTED) return false;
  g_test.declined++;
  nvtex_clear_error();
  return true;
}

static void check(const Case *c, const NVTEXRecipeConfig *recipe_config, double tolerance) {
  Model m = {.c = c, .dlosses = {0.75, 1.5}};
  const size_t rows = c->tokens, size = dtype_size(c->dtype), all = rows * c->hidden;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXRecipe recipe = recipe_config ? nvtex_recipe_create(recipe_config) : NULL;
  const NVTEXMoeConfig f = config_of(c);
  NVTEXModule module = nvtex_moe_create(context, &f, NULL);
  EXPECT_OK();
  Buffer *grads[PARAMETERS] = {0};
  size_t index = 0;
  for (Which p = ROUTER; p <= SB2; p++) {
    m.p[p] = matrix_of(count_of(c, p));
    if (!m.p[p].count) continue;
    NVTEXParameter parameter = {.struct_size = sizeof parameter};
    nvtex_module_parameter(module, index, &parameter);
    CHECK(!strcmp(parameter.name, kNames[p]), "%s, expected %s", parameter.name, kNames[p]);
    const NVTEShape shape = shape_of_parameter(c, p);
    CHECK(same_shape(parameter.shape, shape), "%s has another shape", kNames[p]);
    const double bound = p == ROUTER ? 0.6 : p == W2 || p == S2 ? 0.4 : 0.3;
    Buffer *value = filled(&m.p[p], dtype_of(c, p), bound);
    if (p == EXPERT_BIAS && c->empty) {
      // Nobody chooses an expert with such a bias.
      float *bias = host_memory(c->experts * sizeof *bias);
      for (size_t e = 0; e < c->experts; e++) {
        if (e == 1) m.p[p].values[e] = -100;
        bias[e] = (float)m.p[p].values[e];
      }
      value = buffer_from(bias, c->experts * sizeof *bias, 0);
    }
    nvtex_module_assign_parameter(module, index, tensor(value->ptr, dtype_of(c, p), shape), NULL);
    grads[p] = buffer(m.p[p].count * sizeof(float));
    if (c->accumulate) nvte_memset(grads[p]->ptr, 0, m.p[p].count * sizeof(float), NULL);
    nvtex_module_set_gradient(module, index, tensor(grads[p]->ptr, kNVTEFloat32, shape),
                              c->accumulate);
    EXPECT_OK();
    index++;
  }
  CHECK_EQ(nvtex_module_num_parameters(module), index);
  m.x = matrix_of(all);
  m.y = matrix_of(all);
  m.dy = matrix_of(all);
  m.losses = matrix_of(2);
  Buffer *x = filled(&m.x, c->dtype, 1), *dy = filled(&m.dy, c->dtype, 1);
  reference(&m);

  Buffer *y = buffer(all * size), *dx = buffer(all * size), *losses = buffer(8);
  Buffer *loads = buffer(c->experts * 8), *alone = buffer(all * size), *again = buffer(all * size);
  const float of_losses[2] = {(float)m.dlosses[0], (float)m.dlosses[1]};
  Buffer *dlosses = buffer_from(of_losses, sizeof of_losses, 0);
  const NVTEShape shape = SHAPE(rows, c->hidden);
  NVTETensor in = tensor(x->ptr, c->dtype, shape), dout = tensor(dy->ptr, c->dtype, shape);
  NVTETensor outputs[] = {tensor(y->ptr, c->dtype, shape),
                          tensor(losses->ptr, kNVTEFloat32, SHAPE(2)),
                          tensor(loads->ptr, kNVTEInt64, SHAPE(c->experts))};
  NVTETensor of_outputs[] = {dout, tensor(dlosses->ptr, kNVTEFloat32, SHAPE(2))};
  NVTETensor din = tensor(dx->ptr, c->dtype, shape);
  nvtex_context_begin(context, recipe, recipe ? NVTEX_CONTEXT_ENABLED : 0, NULL);
  const int passes = c->accumulate ? 2 : 1;
  bool runs = true;
  for (int i = 0; runs && i < passes; i++) {
    NVTEXTape tape = NULL;
    nvtex_module_forward(module, &in, 1, outputs, 3, NULL, &tape, NULL);
    if (declined()) {
      runs = false;
      break;
    }
    nvtex_module_backward(module, tape, of_outputs, 2, &din, 1, NULL);
    nvtex_tape_destroy(tape);
    runs = !declined();
  }
  EXPECT_OK();
  if (runs) {
    close_to("y", c->dtype, y, m.y.values, all, tolerance);
    close_to("dx", c->dtype, dx, m.x.grad, all, tolerance);
    const bool exact = !on_cuda() && c->router_dtype == kNVTEFloat32;
    close_to("losses", kNVTEFloat32, losses, m.losses.values, 2, exact ? 1e-5 : 4e-3);
    const int64_t *got = buffer_read(loads);
    for (size_t e = 0; e < c->experts; e++) CHECK_EQ(got[e], m.loads[e]);
    for (Which p = ROUTER; p <= SB2; p++) {
      if (!m.p[p].count) continue;
      for (size_t i = 0; i < m.p[p].count; i++) m.p[p].grad[i] *= passes;
      close_to(kNames[p], kNVTEFloat32, grads[p], m.p[p].grad, m.p[p].count, tolerance);
    }
    // Without a tape, and without the other outputs: the same bits, in every run.
    Buffer *last[] = {alone, again};
    for (size_t i = 0; i < COUNT(last); i++) {
      NVTETensor out = tensor(last[i]->ptr, c->dtype, shape);
      nvtex_module_forward(module, &in, 1, &out, 1, NULL, NULL, NULL);
      EXPECT_OK();
    }
    CHECK(!memcmp(buffer_read(alone), buffer_read(again), all * size), "two runs differ");
    if (!recipe) CHECK(!memcmp(buffer_read(y), buffer_read(alone), all * size), "without a tape");
  }
  nvtex_context_end(context);
  nvtex_module_destroy(module);
  nvtex_recipe_destroy(recipe);
  nvtex_context_destroy(context);
  EXPECT_OK();
}

static double tolerance_of(NVTEDType dtype) {
  return dtype == kNVTEFloat32 ? 2e-5 : dtype == kNVTEFloat16 ? 3e-3 : 2e-2;
}

static void cases(void) {
  static const Case all[] = {
      {.name = "softmax", .tokens = 24, .hidden = 32, .ffn = 16, .experts = 4, .k = 2},
      {.name = "of all, losses",
       .tokens = 23,
       .hidden = 16,
       .ffn = 32,
       .experts = 8,
       .k = 3,
       .score = NVTEX_MOE_SCORE_SOFTMAX_OF_ALL,
       .balance = 0.3f,
       .z = 0.2f},
      {.name = "sigmoid, groups, biases, shared",
       .tokens = 19,
       .hidden = 24,
       .ffn = 16,
       .experts = 8,
       .k = 4,
       .score = NVTEX_MOE_SCORE_SIGMOID,
       .groups = 4,
       .group_k = 2,
       .expert_bias = true,
       .bias = true,
       .shared = 24,
       .balance = 0.5f,
       .accumulate = true},
      {.name = "sqrtsoftplus, losses",
       .tokens = 17,
       .hidden = 16,
       .ffn = 16,
       .experts = 6,
       .k = 2,
       .score = NVTEX_MOE_SCORE_SQRTSOFTPLUS,
       .balance = 0.2f,
       .z = 0.1f,
       .bias = true},
      {.name = "an expert without tokens",
       .tokens = 9,
       .hidden = 16,
       .ffn = 16,
       .experts = 4,
       .k = 2,
       .score = NVTEX_MOE_SCORE_SIGMOID,
       .expert_bias = true,
       .empty = true,
       .bias = true},
      {.name = "one token, one expert",
       .tokens = 1,
       .hidden = 16,
       .ffn = 16,
       .experts = 3,
       .k = 1,
       .score = NVTEX_MOE_SCORE_SIGMOID,
       .z = 0.5f},
      {.name = "all experts",
       .tokens = 33,
       .hidden = 16,
       .ffn = 16,
       .experts = 4,
       .k = 4,
       .shared = 16,
       .accumulate = true},
  };
  for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
    for (size_t i = 0; i < COUNT(all); i++) {
      for (int gated = 0; gated < 2; gated++) {
        Case c = all[i];
        c.dtype = kHighPrecision[t];
        c.router_dtype = kNVTEFloat32;
        c.gated = gated;
        c.scale = i % 2 ? 1.5f : 1;
        if (case_begin("%s %s%s", dtype_name(c.dtype), c.name, gated ? ", gated" : "")) {
          check(&c, NULL, tolerance_of(c.dtype) * (on_cuda() ? 2 : 1));
        }
      }
    }
    Case c = all[0];
    c.dtype = c.router_dtype = kHighPrecision[t];
    c.scale = 1;
    c.z = 0.1f;
    if (case_begin("%s router", dtype_name(c.dtype))) check(&c, NULL, 2 * tolerance_of(c.dtype));
  }
  static const struct {
    const char *name;
    NVTEXRecipeKind kind;
  } recipes[] = {{"delayed", NVTEX_RECIPE_DELAYED_SCALING},
                 {"current", NVTEX_RECIPE_CURRENT_SCALING},
                 {"block", NVTEX_RECIPE_BLOCK_SCALING},
                 {"mxfp8", NVTEX_RECIPE_MXFP8}};
  for (size_t r = 0; r < COUNT(recipes); r++) {
    for (int shared = 0; shared < 2; shared++) {
      Case c = {.name = recipes[r].name,
                .dtype = kNVTEBFloat16,
                .router_dtype = kNVTEFloat32,
                .tokens = 75,
                .hidden = 64,
                .ffn = 96,
                .experts = 5,
                .k = 2,
                .gated = true,
                .scale = 1,
                .balance = 0.1f,
                .shared = shared ? 32 : 0,
                .bias = shared};
      if (!case_begin("%s%s", recipes[r].name, shared ? ", shared" : "")) continue;
      NVTEXRecipeConfig config;
      nvtex_recipe_config_init(&config, sizeof config, recipes[r].kind);
      check(&c, &config, 0.1);
    }
  }
}

// Two layers of experts in a row: the bits of one after the other.
static void case_row(void) {
  if (!case_begin("in a row")) return;
  const Case c = {.dtype = kNVTEBFloat16,
                  .router_dtype = kNVTEFloat32,
                  .tokens = 12,
                  .hidden = 16,
                  .ffn = 16,
                  .experts = 4,
                  .k = 2,
                  .gated = true,
                  .scale = 1,
                  .balance = 0.1f};
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXMoeConfig f = config_of(&c);
  NVTEXModule parts[2];
  for (size_t i = 0; i < 2; i++) {
    f.seed = i;
    f.init_std = f.output_init_std = f.router_init_std = 0.5f;
    parts[i] = nvtex_moe_create(context, &f, NULL);
  }
  NVTEXModule row = nvtex_sequential_create(context, parts, NULL, 2);
  EXPECT_OK();
  const size_t all = c.tokens * c.hidden;
  Matrix values = matrix_of(all);
  Buffer *x = filled(&values, c.dtype, 1), *dy = filled(&values, c.dtype, 1);
  Buffer *y[3], *dx[3];
  for (size_t i = 0; i < 3; i++) {
    y[i] = buffer(2 * all);
    dx[i] = buffer(2 * all);
  }
  const NVTEShape shape = SHAPE(c.tokens, c.hidden);
  NVTETensor in = tensor(x->ptr, c.dtype, shape), dout = tensor(dy->ptr, c.dtype, shape);
  NVTETensor out[3], din[3];
  for (size_t i = 0; i < 3; i++) {
    out[i] = tensor(y[i]->ptr, c.dtype, shape);
    din[i] = tensor(dx[i]->ptr, c.dtype, shape);
  }
  NVTEXTape tape[3] = {0};
  nvtex_module_forward(row, &in, 1, &out[2], 1, NULL, &tape[2], NULL);
  if (!declined()) {
    nvtex_module_backward(row, tape[2], &dout, 1, &din[2], 1, NULL);
    nvtex_module_forward(parts[0], &in, 1, &out[0], 1, NULL, &tape[0], NULL);
    nvtex_module_forward(parts[1], &out[0], 1, &out[1], 1, NULL, &tape[1], NULL);
    nvtex_module_backward(parts[1], tape[1], &dout, 1, &din[1], 1, NULL);
    nvtex_module_backward(parts[0], tape[0], &din[1], 1, &din[0], 1, NULL);
    EXPECT_OK();
    CHECK(!memcmp(buffer_read(y[1]), buffer_read(y[2]), 2 * all), "y");
    CHECK(!memcmp(buffer_read(dx[0]), buffer_read(dx[2]), 2 * all), "dx");
  }
  for (size_t i = 0; i < 3; i++) nvtex_tape_destroy(tape[i]);
  nvtex_module_destroy(row);
  for (size_t i = 0; i < 2; i++) nvtex_module_destroy(parts[i]);
  nvtex_context_destroy(context);
  EXPECT_OK();
}

static NVTEXParameter parameter_of(NVTEXModule module, size_t index) {
  NVTEXParameter p = {.struct_size = sizeof p};
  nvtex_module_parameter(module, index, &p);
  return p;
}

// A layer of a Transformer with experts, whose attention gives 0, is its input plus the experts of
// its norm: the same bits of everything that experts compute, and sums of both.
static void case_layer(void) {
  if (!case_begin("in a layer of a Transformer")) return;
  enum { TOKENS = 24, HIDDEN = 32, ALL = TOKENS * HIDDEN };
  const Case c = {.dtype = kNVTEBFloat16,
                  .router_dtype = kNVTEFloat32,
                  .tokens = TOKENS,
                  .hidden = HIDDEN,
                  .ffn = 48,
                  .experts = 4,
                  .k = 2,
                  .gated = true,
                  .scale = 1,
                  .shared = 32,
                  .balance = 0.3f,
                  .z = 0.2f};
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXMoeConfig f = config_of(&c);
  f.init_std = f.output_init_std = f.router_init_std = 0.4f;
  NVTEXModule moe = nvtex_moe_create(context, &f, NULL);
  NVTEXNormConfig of_norm;
  nvtex_norm_config_init(&of_norm, sizeof of_norm);
  of_norm.kind = RMSNorm;
  of_norm.hidden_size = HIDDEN;
  of_norm.dtype = c.dtype;
  NVTEXModule norm = nvtex_norm_create(context, &of_norm, NULL);
  NVTEXTransformerLayerConfig config;
  nvtex_transformer_layer_config_init(&config, sizeof config);
  config.hidden_size = HIDDEN;
  config.num_attention_heads = 2;
  config.norm_type = RMSNorm;
  config.dtype = c.dtype;
  config.bias = false;
  f.hidden_size = 0;
  f.dtype = kNVTEFloat32;  // that of the layer
  config.experts = &f;
  NVTEXModule layer = nvtex_transformer_layer_create(context, &config, NULL);
  EXPECT_OK();
  const size_t num = nvtex_module_num_parameters(moe);
  Buffer *grads[2][PARAMETERS];
  size_t found = 0;
  for (size_t i = 0; i < nvtex_module_num_parameters(layer); i++) {
    const NVTEXParameter p = parameter_of(layer, i);
    if (strstr(p.name, "proj.weight")) {
      nvte_memset(nvte_tensor_data(p.value), 0, HIDDEN * HIDDEN * 2, NULL);
    }
    if (strncmp(p.name, "layernorm_moe.", 14) != 0) continue;
    for (size_t j = 0; j < num; j++) {
      const NVTEXParameter own = parameter_of(moe, j);
      if (strcmp(own.name, p.name + 14) != 0) continue;
      nvtex_module_assign_parameter(layer, i, own.value, NULL);
      for (size_t side = 0; side < 2; side++) {
        grads[side][j] = buffer(numel(p.shape) * sizeof(float));
        nvtex_module_set_gradient(side ? moe : layer, side ? j : i,
                                  tensor(grads[side][j]->ptr, kNVTEFloat32, p.shape), false);
      }
      found++;
    }
  }
  CHECK_EQ(found, num);
  CHECK_EQ(nvtex_module_num_parameters(layer), num + 4);
  EXPECT_OK();
  Matrix values = matrix_of(ALL), of_dy = matrix_of(ALL);
  Buffer *x = filled(&values, c.dtype, 1), *dy = filled(&of_dy, c.dtype, 1);
  Buffer *rows[6];
  NVTETensor t[6], losses[2], loads[2];
  const NVTEShape in_batch = SHAPE(TOKENS / 2, 2, HIDDEN);
  for (size_t i = 0; i < COUNT(rows); i++) {
    rows[i] = buffer(ALL * 2);
    t[i] = tensor(rows[i]->ptr, c.dtype, in_batch);
  }
  Buffer *of_losses[2], *of_loads[2];
  for (size_t side = 0; side < 2; side++) {
    of_losses[side] = buffer(8);
    of_loads[side] = buffer(8 * c.experts);
    losses[side] = tensor(of_losses[side]->ptr, kNVTEFloat32, SHAPE(2));
    loads[side] = tensor(of_loads[side]->ptr, kNVTEInt64, SHAPE(c.experts));
  }
  const float factors[2] = {0.5f, 3};
  NVTETensor in = tensor(x->ptr, c.dtype, in_batch), dout = tensor(dy->ptr, c.dtype, in_batch);
  NVTETensor given[] = {dout, tensor(buffer_from(factors, 8, 0)->ptr, kNVTEFloat32, SHAPE(2))};
  enum { Y, DX, Z, M, DZ, DN };
  NVTEXTape tape[3] = {0};
  nvtex_module_forward(layer, &in, 1, (NVTETensor[]){t[Y], losses[0], loads[0]}, 3, NULL, &tape[0],
                       NULL);
  if (!declined()) {
    EXPECT_OK();
    nvtex_module_backward(layer, tape[0], given, 2, &t[DX], 1, NULL);
    nvtex_module_forward(norm, &in, 1, &t[Z], 1, NULL, &tape[1], NULL);
    nvtex_module_forward(moe, &t[Z], 1, (NVTETensor[]){t[M], losses[1], loads[1]}, 3, NULL,
                         &tape[2], NULL);
    nvtex_module_backward(moe, tape[2], given, 2, &t[DZ], 1, NULL);
    nvtex_module_backward(norm, tape[1], &t[DZ], 1, &t[DN], 1, NULL);
    EXPECT_OK();
    CHECK(!memcmp(buffer_read(of_losses[0]), buffer_read(of_losses[1]), 8), "losses");
    CHECK(!memcmp(buffer_read(of_loads[0]), buffer_read(of_loads[1]), 8 * c.experts), "loads");
    for (size_t j = 0; j < num; j++) {
      CHECK(!memcmp(buffer_read(grads[0][j]), buffer_read(grads[1][j]), grads[0][j]->bytes),
            "gradient %zu", j);
    }
    const void *m = buffer_read(rows[M]), *dn = buffer_read(rows[DN]);
    for (size_t i = 0; i < ALL; i++) {
      values.values[i] += get_value(c.dtype, m, i);
      of_dy.values[i] += get_value(c.dtype, dn, i);
    }
    close_to("y", c.dtype, rows[Y], values.values, ALL, 1e-2);
    close_to("dx", c.dtype, rows[DX], of_dy.values, ALL, 1e-2);
  }
  for (size_t i = 0; i < 3; i++) nvtex_tape_destroy(tape[i]);
  nvtex_module_destroy(layer);
  f.hidden_size = 16;
  CHECK(!nvtex_transformer_layer_create(context, &config, NULL), "a layer");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.experts.hidden_size: expected 0 or 32");
  f.hidden_size = 0;
  f.top_k = 5;
  CHECK(!nvtex_transformer_layer_create(context, &config, NULL), "a layer");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.experts.top_k: expected 1 to 4 (num_experts)");
  f.top_k = 2;
  config.checkpoint = true;
  CHECK(!nvtex_transformer_layer_create(context, &config, NULL), "a layer");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "checkpoint: expected false (experts compute nothing");
  nvtex_module_destroy(moe);
  nvtex_module_destroy(norm);
  nvtex_context_destroy(context);
  EXPECT_OK();
}

static void refused(NVTEXContext context, const NVTEXMoeConfig *f, const char *message) {
  CHECK(!nvtex_moe_create(context, f, NULL), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, message);
}

static void case_refusals(void) {
  if (!case_begin("refusals")) return;
  const Case c = {.dtype = kNVTEBFloat16,
                  .router_dtype = kNVTEFloat32,
                  .tokens = 4,
                  .hidden = 32,
                  .ffn = 32,
                  .experts = 8,
                  .k = 2,
                  .gated = true,
                  .scale = 1};
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXMoeConfig f = config_of(&c);
  f.hidden_size = 0;
  refused(context, &f, "nvtex_moe_create: config.hidden_size: expected 1 to 2^30, got 0");
  f = config_of(&c);
  f.ffn_hidden_size = 0;
  refused(context, &f, "config.ffn_hidden_size: expected 1 to 2^30, got 0");
  f = config_of(&c);
  f.num_experts = 0;
  refused(context, &f, "config.num_experts: expected 1 to 65536, got 0");
  f = config_of(&c);
  f.top_k = 9;
  refused(context, &f, "config.top_k: expected 1 to 8 (num_experts), got 9");
  f.top_k = 0;
  refused(context, &f, "config.top_k: expected 1 to 8 (num_experts), got 0");
  f = config_of(&c);
  f.num_groups = 3;
  refused(context, &f,
          "config.group_top_k: expected 0 together with num_groups, or neither, got 0");
  f.group_top_k = 1;
  refused(context, &f, "config.num_groups: expected a divisor of num_experts (8), got 3");
  f.num_groups = 2;
  f.group_top_k = 3;
  refused(context, &f, "config.group_top_k: expected a divisor of top_k (2)");
  f = config_of(&c);
  f.expert_bias = true;
  refused(context, &f, "config.expert_bias: expected false (a softmax has no bias of experts)");
  f = config_of(&c);
  f.router_dtype = kNVTEFloat16;
  refused(context, &f, "config.router_dtype: expected Float32 or BFloat16");
  f = config_of(&c);
  f.z_coefficient = -1;
  refused(context, &f, "config.z_coefficient: expected a finite number, at least 0, got -1");
  f = config_of(&c);
  f.expert_parallel_size = 2;
  refused(context, &f, "config.expert_parallel_size: expected 1 (nvtex_context_set_grid gives");
  f = config_of(&c);
  f.reserved[1] = 1;
  refused(context, &f, "config.reserved[1]: expected 0, as the init function sets it, got 1");
  f = config_of(&c);
  NVTEXModule module = nvtex_moe_create(context, &f, NULL);
  EXPECT_OK();
  Buffer *x = buffer(4 * 32 * 2), *y = buffer(4 * 32 * 2), *small = buffer(64);
  NVTETensor in = tensor(x->ptr, c.dtype, SHAPE(4, 32)),
             none = tensor(x->ptr, c.dtype, SHAPE(0, 32));
  NVTETensor out[3] = {tensor(y->ptr, c.dtype, SHAPE(4, 32)), NULL, NULL};
  nvtex_module_forward(module, &none, 1, out, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "inputs[0].shape: expected [..., 32] with at least one row");
  out[1] = tensor(small->ptr, kNVTEFloat32, SHAPE(3));
  nvtex_module_forward(module, &in, 1, out, 3, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "outputs[1].shape: expected [2], got [3]");
  out[1] = NULL;
  out[2] = tensor(small->ptr, kNVTEInt32, SHAPE(8));
  nvtex_module_forward(module, &in, 1, out, 3, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "outputs[2]");
  CHECK(untouched(y), "a refused call wrote");
  NVTEXRecipeConfig config;
  nvtex_recipe_config_init(&config, sizeof config, NVTEX_RECIPE_NVFP4);
  NVTEXRecipe recipe = nvtex_recipe_create(&config);
  nvtex_context_begin(context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
  nvtex_module_forward(module, &in, 1, out, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "expected a recipe other than NVFP4");
  nvtex_context_end(context);
  CHECK(untouched(y), "a refused call wrote");
  nvtex_recipe_destroy(recipe);
  nvtex_module_destroy(module);
  nvtex_context_destroy(context);
  EXPECT_OK();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  case_refusals();
  case_row();
  case_layer();
  cases();
  return test_end();
}
