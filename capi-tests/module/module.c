// Modules against references in float64, which are themselves held against finite differences.
#include "support.h"

// ---- A network: norm, linear, activation, linear, of which parts may be missing

typedef enum Kind { NORM, LINEAR, NORM_LINEAR, NORM_MLP } Kind;

typedef struct Net {
  Kind kind;
  NVTEDType dtype;
  size_t rows, hidden, wide;  // wide: of the linear's output, or after the activation
  bool bias, rms, zero_centered, gated;
  NVTE_Activation_Type activation;
} Net;

enum { GAMMA, BETA, W1, B1, W2, B2, NUM_PARAMETERS };
static const double kEpsilon = 1e-5;

static bool has_norm(const Net *n) { return n->kind != LINEAR; }
static size_t wide1(const Net *n) { return n->gated ? 2 * n->wide : n->wide; }
static size_t out_cols(const Net *n) {
  return n->kind == LINEAR || n->kind == NORM_LINEAR ? n->wide : n->hidden;
}

// Elements of a parameter; 0: the network lacks it.
static size_t parameter_count(const Net *n, int p) {
  switch (p) {
    case GAMMA:
      return has_norm(n) ? n->hidden : 0;
    case BETA:
      return has_norm(n) && !n->rms ? n->hidden : 0;
    case W1:
      return n->kind == NORM ? 0 : wide1(n) * n->hidden;
    case B1:
      return n->kind == NORM || !n->bias ? 0 : wide1(n);
    case W2:
      return n->kind == NORM_MLP ? n->hidden * n->wide : 0;
    default:
      return n->kind == NORM_MLP && n->bias ? n->hidden : 0;
  }
}

static int parameter_role(const Net *n, const char *name) {
  static const char *const mlp[] = {"layer_norm_weight", "layer_norm_bias", "fc1_weight",
                                    "fc1_bias",          "fc2_weight",      "fc2_bias"};
  static const char *const linear[] = {"layer_norm_weight", "layer_norm_bias", "weight", "bias"};
  for (int p = 0; p < NUM_PARAMETERS; p++) {
    if (n->kind == NORM_MLP && !strcmp(name, mlp[p])) return p;
    if (n->kind != NORM_MLP && n->kind != NORM && p < 4 && !strcmp(name, linear[p])) return p;
    if (n->kind == NORM && p < 2 && !strcmp(name, linear[p + 2])) return p;
  }
  return -1;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

// f(x), or its derivative.
static double act(NVTE_Activation_Type kind, double x, bool derivative) {
  switch (kind) {
    case GELU:
    case GEGLU: {
      const double t = tanh(0.79788456 * x * (1 + 0.044715 * x * x));
      if (!derivative) return 0.5 * x * (1 + t);
      return 0.5 * x * (1 - t * t) * (0.79788456 + 0.1070322243 * x * x) + 0.5 * (1 + t);
    }
    case GLU: {
      const double s = sigmoid(x);
      return derivative ? s * (1 - s) : s;
    }
    case SILU:
    case SWIGLU: {
      const double s = sigmoid(x);
      return derivative ? s * (1 + x * (1 - s)) : x * s;
    }
    case RELU:
    case REGLU:
      return derivative ? x > 0 : fmax(x, 0);
    case QGELU:
    case QGEGLU: {
      const double s = sigmoid(1.702 * x);
      return derivative ? s * (1 + 1.702 * x * (1 - s)) : x * s;
    }
    case SRELU:
    case SREGLU:
      return derivative ? 2 * fmax(x, 0) : fmax(x, 0) * fmax(x, 0);
    case CLAMPED_SWIGLU: {
      const double m = fmin(x, 7), s = sigmoid(1.702 * m);
      if (!derivative) return m * s;
      return x > 7 ? 0 : s * (1 + 1.702 * m * (1 - s));
    }
    default:
      abort();
  }
}

static double linear_half(NVTE_Activation_Type kind, double x, bool derivative) {
  if (kind != CLAMPED_SWIGLU) return derivative ? 1 : x;
  return derivative ? fabs(x) <= 7 : fmax(fmin(x, 7), -7) + 1;
}

typedef struct Values {
  double *x, *y, *z, *p[NUM_PARAMETERS];
} Values;

static bool has_step(const Net *n) {
  return n->kind == NORM_MLP &&
         (n->activation == RELU || n->activation == REGLU || n->activation == CLAMPED_SWIGLU);
}

static double *doubles(size_t n) { return host_memory((n ? n : 1) * sizeof(double)); }

// y[m][n] = x[m][k] w[n][k]^T + b
static void ref_linear(const double *x, const double *w, const double *b, double *y, size_t m,
                       size_t n, size_t k) {
  for (size_t i = 0; i < m; i++) {
    for (size_t j = 0; j < n; j++) {
      double sum = b ? b[j] : 0;
      for (size_t l = 0; l < k; l++) sum += x[i * k + l] * w[j * k + l];
      y[i * n + j] = sum;
    }
  }
}

static void ref_linear_grad(const double *x, const double *w, const double *dy, double *dx,
                            double *dw, double *db, size_t m, size_t n, size_t k) {
  for (size_t i = 0; i < m; i++) {
    for (size_t j = 0; j < n; j++) {
      if (db) db[j] += dy[i * n + j];
      for (size_t l = 0; l < k; l++) {
        dw[j * k + l] += dy[i * n + j] * x[i * k + l];
        dx[i * k + l] += dy[i * n + j] * w[j * k + l];
      }
    }
  }
}

static void row_statistics(const Net *n, const double *x, double *mean, double *scale) {
  double sum = 0, squares = 0;
  const double h = (double)n->hidden;
  for (size_t j = 0; j < n->hidden; j++) sum += x[j];
  *mean = n->rms ? 0 : sum / h;
  for (size_t j = 0; j < n->hidden; j++) squares += (x[j] - *mean) * (x[j] - *mean);
  *scale = 1 / sqrt(squares / h + kEpsilon);
}

// The forward pass of v.x and v.p; keeps what the backward pass needs.
typedef struct Hidden {
  double *h, *a;
} Hidden;

static Hidden ref_forward(const Net *n, Values *v) {
  Hidden kept = {0};
  const double *z = v->x;
  if (has_norm(n)) {
    for (size_t i = 0; i < n->rows; i++) {
      double mean, scale;
      row_statistics(n, v->x + i * n->hidden, &mean, &scale);
      for (size_t j = 0; j < n->hidden; j++) {
        const double g = v->p[GAMMA][j] + (n->zero_centered ? 1 : 0);
        const double y = (v->x[i * n->hidden + j] - mean) * scale;
        v->z[i * n->hidden + j] = g * y + (n->rms ? 0 : v->p[BETA][j]);
      }
    }
    z = v->z;
  }
  const double *b1 = n->bias ? v->p[B1] : NULL, *b2 = n->bias ? v->p[B2] : NULL;
  if (n->kind == NORM) {
    memcpy(v->y, v->z, n->rows * n->hidden * sizeof(double));
  } else if (n->kind != NORM_MLP) {
    ref_linear(z, v->p[W1], b1, v->y, n->rows, n->wide, n->hidden);
  } else {
    const size_t w = wide1(n);
    kept.h = doubles(n->rows * w);
    kept.a = doubles(n->rows * n->wide);
    ref_linear(z, v->p[W1], b1, kept.h, n->rows, w, n->hidden);
    for (size_t i = 0; i < n->rows; i++) {
      for (size_t j = 0; j < n->wide; j++) {
        const double f = act(n->activation, kept.h[i * w + j], false);
        const double g =
            n->gated ? linear_half(n->activation, kept.h[i * w + n->wide + j], false) : 1;
        kept.a[i * n->wide + j] = f * g;
      }
    }
    ref_linear(kept.a, v->p[W2], b2, v->y, n->rows, n->hidden, n->wide);
  }
  return kept;
}

// Gradients (in d) of sum(y dy) + sum(z dz).
static void ref_backward(const Net *n, const Values *v, Hidden kept, const double *dy,
                         const double *dz_extra, Values *d) {
  const size_t xs = n->rows * n->hidden, w = wide1(n);
  memset(d->x, 0, xs * sizeof(double));
  for (int p = 0; p < NUM_PARAMETERS; p++) {
    if (d->p[p]) memset(d->p[p], 0, parameter_count(n, p) * sizeof(double));
  }
  double *dz = doubles(xs);
  const double *z = has_norm(n) ? v->z : v->x;
  if (n->kind == NORM) {
    memcpy(dz, dy, xs * sizeof(double));
  } else if (n->kind != NORM_MLP) {
    ref_linear_grad(z, v->p[W1], dy, dz, d->p[W1], n->bias ? d->p[B1] : NULL, n->rows, n->wide,
                    n->hidden);
  } else {
    double *da = doubles(n->rows * n->wide), *dh = doubles(n->rows * w);
    ref_linear_grad(kept.a, v->p[W2], dy, da, d->p[W2], n->bias ? d->p[B2] : NULL, n->rows,
                    n->hidden, n->wide);
    for (size_t i = 0; i < n->rows; i++) {
      for (size_t j = 0; j < n->wide; j++) {
        const double a = kept.h[i * w + j], g = n->gated ? kept.h[i * w + n->wide + j] : 0;
        const double grad = da[i * n->wide + j];
        const double other = n->gated ? linear_half(n->activation, g, false) : 1;
        dh[i * w + j] = grad * act(n->activation, a, true) * other;
        if (n->gated) {
          dh[i * w + n->wide + j] =
              grad * act(n->activation, a, false) * linear_half(n->activation, g, true);
        }
      }
    }
    ref_linear_grad(z, v->p[W1], dh, dz, d->p[W1], n->bias ? d->p[B1] : NULL, n->rows, w,
                    n->hidden);
  }
  for (size_t i = 0; dz_extra && i < xs; i++) dz[i] += dz_extra[i];
  if (!has_norm(n)) {
    memcpy(d->x, dz, xs * sizeof(double));
    return;
  }
  for (size_t i = 0; i < n->rows; i++) {
    const double *x = v->x + i * n->hidden, *g = dz + i * n->hidden;
    double mean, scale, sum = 0, dot = 0;
    row_statistics(n, x, &mean, &scale);
    for (size_t j = 0; j < n->hidden; j++) {
      const double y = (x[j] - mean) * scale;
      const double t = g[j] * (v->p[GAMMA][j] + (n->zero_centered ? 1 : 0));
      d->p[GAMMA][j] += g[j] * y;
      if (!n->rms) d->p[BETA][j] += g[j];
      sum += t / (double)n->hidden;
      dot += t * y / (double)n->hidden;
    }
    for (size_t j = 0; j < n->hidden; j++) {
      const double y = (x[j] - mean) * scale;
      const double t = g[j] * (v->p[GAMMA][j] + (n->zero_centered ? 1 : 0));
      d->x[i * n->hidden + j] = scale * (t - dot * y - (n->rms ? 0 : sum));
    }
  }
}

static Values new_values(const Net *n) {
  Values v;
  v.x = doubles(n->rows * n->hidden);
  v.y = doubles(n->rows * out_cols(n));
  v.z = doubles(n->rows * n->hidden);
  for (int p = 0; p < NUM_PARAMETERS; p++) {
    const size_t count = parameter_count(n, p);
    v.p[p] = count ? doubles(count) : NULL;
  }
  return v;
}

// ---- The module of a network

typedef struct Subject {
  NVTEXModule module;
  size_t num_parameters;
  int roles[NUM_PARAMETERS];
  Buffer *grads[NUM_PARAMETERS];
  NVTEDType grad_dtype;
} Subject;

static NVTEXModule create(NVTEXContext context, const Net *n) {
  NVTEXNormConfig norm;
  nvtex_norm_config_init(&norm, sizeof norm);
  norm.kind = n->rms ? RMSNorm : LayerNorm;
  norm.zero_centered_gamma = n->zero_centered;
  norm.hidden_size = n->hidden;
  norm.dtype = n->dtype;
  NVTEXLinearConfig linear;
  nvtex_linear_config_init(&linear, sizeof linear);
  linear.in_features = n->hidden;
  linear.out_features = n->wide;
  linear.bias = n->bias;
  linear.dtype = n->dtype;
  linear.seed = 7;
  if (n->kind == NORM) return nvtex_norm_create(context, &norm, NULL);
  if (n->kind == LINEAR) return nvtex_linear_create(context, &linear, NULL);
  if (n->kind == NORM_LINEAR) {
    NVTEXLayerNormLinearConfig config;
    nvtex_layernorm_linear_config_init(&config, sizeof config);
    config.norm = norm;
    config.linear = linear;
    return nvtex_layernorm_linear_create(context, &config, NULL);
  }
  NVTEXLayerNormMLPConfig config;
  nvtex_layernorm_mlp_config_init(&config, sizeof config);
  config.norm = norm;
  config.hidden_size = n->hidden;
  config.ffn_hidden_size = n->wide;
  config.activation = n->activation;
  config.bias = n->bias;
  config.dtype = n->dtype;
  config.seed = 7;
  return nvtex_layernorm_mlp_create(context, &config, NULL);
}

static NVTEXParameter parameter_of(NVTEXModule module, size_t i) {
  NVTEXParameter parameter;
  memset(&parameter, 0, sizeof parameter);
  parameter.struct_size = sizeof parameter;
  nvtex_module_parameter(module, i, &parameter);
  EXPECT_OK();
  return parameter;
}

// Random values of a dtype, on the host as doubles and on the device.
static Buffer *random_tensor(NVTEDType dtype, size_t count, double low, double high, double *v) {
  void *host = random_values(dtype, count, low, high);
  for (size_t i = 0; i < count; i++) v[i] = get_value(dtype, host, i);
  return buffer_from(host, count * dtype_size(dtype), 0);
}

// Creates the module with random parameters, which go to v, and gradients.
static Subject new_subject(NVTEXContext context, const Net *n, Values *v, NVTEDType grad_dtype,
                           bool accumulate) {
  Subject s = {.module = create(context, n), .grad_dtype = grad_dtype};
  EXPECT_OK();
  s.num_parameters = nvtex_module_num_parameters(s.module);
  for (size_t i = 0; i < s.num_parameters; i++) {
    const NVTEXParameter parameter = parameter_of(s.module, i);
    const int role = s.roles[i] = parameter_role(n, parameter.name);
    if (!CHECK(role >= 0, "parameter %s", parameter.name)) exit(TEST_FAIL);
    const size_t count = parameter_count(n, role);
    CHECK_EQ(count, numel(parameter.shape));
    CHECK_EQ(parameter.dtype, n->dtype);
    const bool weight = role == W1 || role == W2;
    const double bound = weight ? 1.7 / sqrt((double)n->hidden) : 0.5;
    const double at = role == GAMMA && !n->zero_centered ? 1 : 0;
    Buffer *values = random_tensor(n->dtype, count, at - bound, at + bound, v->p[role]);
    nvtex_module_assign_parameter(s.module, i, tensor(values->ptr, n->dtype, parameter.shape),
                                  NULL);
    s.grads[role] = buffer(count * dtype_size(grad_dtype));
    if (accumulate) {
      void *zeros = host_memory(s.grads[role]->bytes);
      upload(s.grads[role]->ptr, zeros, s.grads[role]->bytes);
    }
    nvtex_module_set_gradient(s.module, i, tensor(s.grads[role]->ptr, grad_dtype, parameter.shape),
                              accumulate);
    EXPECT_OK();
  }
  return s;
}

// The relative error of the whole, and the largest one against the root of the mean square.
static void compare(const char *what, NVTEDType dtype, const Buffer *got, const double *expected,
                    size_t count, double tolerance, double factor) {
  const void *values = buffer_read(got);
  double error = 0, size = 0, worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < count; i++) {
    const double e = factor * expected[i], d = fabs(get_value(dtype, values, i) - e);
    error += d * d;
    size += e * e;
    if (!(d <= worst)) worst = d, at = i;
  }
  const double rms = sqrt(size / (double)count), relative = sqrt(error / (size + 1e-300));
  CHECK(relative <= tolerance, "%s: relative error %g, at most %g", what, relative, tolerance);
  CHECK(worst <= 12 * tolerance * rms, "%s[%zu]: got %g, expected %g; mean size %g", what, at,
        get_value(dtype, values, at), factor * expected[at], rms);
}

typedef struct Recipe {
  const char *name;
  NVTEXRecipeKind kind;
  NVTEXFormat format;
  NVTEXBackward operands;
  double forward, backward;  // tolerances: of products of two E4M3, and of one with a gradient
} Recipe;

static NVTEXRecipe new_recipe(const Recipe *r) {
  NVTEXRecipeConfig config;
  nvtex_recipe_config_init(&config, sizeof config, r->kind);
  config.format = r->format;
  config.backward = r->operands;
  config.amax_history_len = 4;
  NVTEXRecipe recipe = nvtex_recipe_create(&config);
  EXPECT_OK();
  return recipe;
}

// Tensor cores multiply float32 with 10 bits behind the point.
static double high_precision_tolerance(NVTEDType dtype, bool products) {
  if (dtype == kNVTEFloat32 && products && on_cuda()) return 1.5e-3;
  return dtype == kNVTEFloat32 ? 3e-6 : dtype == kNVTEFloat16 ? 1.5e-3 : 1.2e-2;
}

// Forward and backward of a network; twice, where scales come from the step before.
static void check_net(const Net *n, const Recipe *r, NVTEDType grad_dtype, bool accumulate) {
  NVTEXContext context = nvtex_context_create(NULL);
  EXPECT_OK();
  Values v = new_values(n), d = new_values(n);
  Subject s = new_subject(context, n, &v, grad_dtype, accumulate);
  const size_t cols = out_cols(n), xs = n->rows * n->hidden, ys = n->rows * cols;
  double *dy = doubles(ys), *dz = doubles(xs);
  const size_t size = dtype_size(n->dtype);
  Buffer *bx = random_tensor(n->dtype, xs, -2, 2, v.x), *by = buffer(ys * size);
  Buffer *bz = buffer(xs * size), *bdx = buffer(xs * size);
  Buffer *bdy = random_tensor(n->dtype, ys, -1, 1, dy);
  Buffer *bdz = random_tensor(n->dtype, xs, -1, 1, dz);
  const bool with_z = n->kind == NORM_LINEAR || n->kind == NORM_MLP;
  const NVTEShape x_shape = SHAPE(n->rows, n->hidden), y_shape = SHAPE(n->rows, cols);
  NVTETensor inputs[] = {tensor(bx->ptr, n->dtype, x_shape)};
  NVTETensor outputs[] = {tensor(by->ptr, n->dtype, y_shape), tensor(bz->ptr, n->dtype, x_shape)};
  NVTETensor grads[] = {tensor(bdy->ptr, n->dtype, y_shape), tensor(bdz->ptr, n->dtype, x_shape)};
  NVTETensor grad_inputs[] = {tensor(bdx->ptr, n->dtype, x_shape)};
  NVTEXRecipe recipe = r ? new_recipe(r) : NULL;
  const int steps = r && r->kind == NVTEX_RECIPE_DELAYED_SCALING ? 3 : 1;
  const int64_t seed[2] = {7, 128};
  NVTEXStep options;
  nvtex_step_init(&options, sizeof options);
  options.rng_state = tensor(buffer_from(seed, sizeof seed, 0)->ptr, kNVTEInt64, SHAPE(2));
  for (int step = 0; step < steps; step++) {
    NVTEXTape tape = NULL;
    nvtex_context_begin(context, recipe, r ? NVTEX_CONTEXT_ENABLED : 0, NULL);
    if (with_z && r && r->kind == NVTEX_RECIPE_NVFP4 && r->operands == NVTEX_BACKWARD_QUANTIZED) {
      nvtex_module_forward(s.module, inputs, 1, outputs, 2, NULL, &tape, NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "step.rng_state: expected Int64 [2]");
      CHECK(untouched(by) && untouched(bz), "a refused call has written an output");
    }
    nvtex_module_forward(s.module, inputs, 1, outputs, with_z ? 2 : 1, &options, &tape, NULL);
    nvtex_context_end(context);
    nvtex_context_forward_update(context, NULL);
    nvtex_module_backward(s.module, tape, grads, with_z ? 2 : 1, grad_inputs, 1, NULL);
    nvtex_context_backward_update(context, NULL);
    nvtex_tape_destroy(tape);
    EXPECT_OK();
  }
  const Hidden kept = ref_forward(n, &v);
  ref_backward(n, &v, kept, dy, with_z ? dz : NULL, &d);
  const double exact = high_precision_tolerance(n->dtype, n->kind != NORM);
  const double norm = high_precision_tolerance(n->dtype, false);
  const double forward = fmax(exact, r ? r->forward : 0);
  // Rounding to TF32 puts a sum near 0 on the other side of a step of the derivative.
  const double flips = on_cuda() && has_step(n) ? 0.02 : 0;
  const double back = fmax(fmax(exact, flips), r ? r->backward : 0);
  compare("y", n->dtype, by, v.y, ys, n->kind == NORM ? exact : forward, 1);
  if (with_z) compare("z", n->dtype, bz, v.z, xs, norm, 1);
  compare("dx", n->dtype, bdx, d.x, xs, n->kind == NORM ? exact : back, 1);
  static const char *const names[] = {"dgamma", "dbeta", "dw1", "db1", "dw2", "db2"};
  for (int p = 0; p < NUM_PARAMETERS; p++) {
    if (!s.grads[p]) continue;
    // Sums of gradients over rows cancel more than products do.
    compare(names[p], grad_dtype, s.grads[p], d.p[p], parameter_count(n, p), 2 * back,
            accumulate ? steps : 1);
  }
  nvtex_module_destroy(s.module);
  nvtex_recipe_destroy(recipe);
  nvtex_context_destroy(context);
}

// ---- Cases

#define QUANTIZED NVTEX_BACKWARD_QUANTIZED
#define ORIGINAL NVTEX_BACKWARD_HIGH_PRECISION
#define DEQUANTIZED NVTEX_BACKWARD_DEQUANTIZED
static const Recipe kRecipes[] = {
    {"delayed", NVTEX_RECIPE_DELAYED_SCALING, NVTEX_FORMAT_HYBRID, QUANTIZED, 0.05, 0.09},
    {"delayed-e4m3", NVTEX_RECIPE_DELAYED_SCALING, NVTEX_FORMAT_E4M3, QUANTIZED, 0.05, 0.07},
    {"current", NVTEX_RECIPE_CURRENT_SCALING, NVTEX_FORMAT_HYBRID, QUANTIZED, 0.05, 0.09},
    {"current, original", NVTEX_RECIPE_CURRENT_SCALING, NVTEX_FORMAT_HYBRID, ORIGINAL, 0.05, 0},
    {"current, back", NVTEX_RECIPE_CURRENT_SCALING, NVTEX_FORMAT_HYBRID, DEQUANTIZED, 0.05, 0.05},
    {"block", NVTEX_RECIPE_BLOCK_SCALING, NVTEX_FORMAT_E4M3, QUANTIZED, 0.05, 0.07},
    {"block-hybrid", NVTEX_RECIPE_BLOCK_SCALING, NVTEX_FORMAT_HYBRID, QUANTIZED, 0.05, 0.09},
    {"block, original", NVTEX_RECIPE_BLOCK_SCALING, NVTEX_FORMAT_E4M3, ORIGINAL, 0.05, 0},
    {"mxfp8", NVTEX_RECIPE_MXFP8, NVTEX_FORMAT_E4M3, QUANTIZED, 0.05, 0.07},
    {"nvfp4", NVTEX_RECIPE_NVFP4, NVTEX_FORMAT_E4M3, QUANTIZED, 0.2, 0.28},
    {"nvfp4, original", NVTEX_RECIPE_NVFP4, NVTEX_FORMAT_E4M3, ORIGINAL, 0.2, 0.15},
    {"mxfp8, back", NVTEX_RECIPE_MXFP8, NVTEX_FORMAT_E4M3, DEQUANTIZED, 0.05, 0.05},
};

static const char *const kKinds[] = {"norm", "linear", "layernorm_linear", "layernorm_mlp"};

static void cases_high_precision(void) {
  for (Kind kind = NORM; kind <= NORM_MLP; kind++) {
    for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
      for (int variant = 0; variant < 4; variant++) {
        Net n = {.kind = kind, .dtype = kHighPrecision[t], .rows = 37, .hidden = 23, .wide = 41};
        n.bias = variant & 1;
        n.rms = variant & 2;
        n.zero_centered = variant == 3;
        if (!case_begin("%s %s%s%s", kKinds[kind], dtype_name(n.dtype), n.bias ? " bias" : "",
                        n.rms ? " rms" : ""))
          continue;
        check_net(&n, NULL, n.bias ? kNVTEFloat32 : n.dtype, variant == 1);
      }
    }
  }
}

static void cases_activation(void) {
  static const struct {
    NVTE_Activation_Type kind;
    bool gated;
    const char *name;
  } rows[] = {
      {GELU, false, "gelu"},   {GEGLU, true, "geglu"},   {GLU, true, "glu"},
      {SILU, false, "silu"},   {SWIGLU, true, "swiglu"}, {RELU, false, "relu"},
      {REGLU, true, "reglu"},  {QGELU, false, "qgelu"},  {QGEGLU, true, "qgeglu"},
      {SRELU, false, "srelu"}, {SREGLU, true, "sreglu"}, {CLAMPED_SWIGLU, true, "clamped_swiglu"}};
  for (size_t i = 0; i < COUNT(rows); i++) {
    Net n = {.kind = NORM_MLP, .dtype = kNVTEFloat32, .rows = 64, .hidden = 64, .wide = 96};
    n.bias = true;
    n.activation = rows[i].kind;
    n.gated = rows[i].gated;
    if (case_begin("activation %s", rows[i].name)) check_net(&n, NULL, n.dtype, false);
    n.dtype = kNVTEBFloat16;
    for (size_t r = 0; r < COUNT(kRecipes); r++) {
      // A step in the derivative turns rounding into errors of the size of the gradient.
      Recipe recipe = kRecipes[r];
      recipe.forward *= 2;
      recipe.backward = fmax(recipe.backward, 0.05) * 3;
      if (case_begin("activation %s %s", rows[i].name, recipe.name)) {
        check_net(&n, &recipe, kNVTEFloat32, false);
      }
    }
  }
}

// Whole tiles, where products may apply GELU and its derivative.
static void cases_tiles(void) {
  for (int i = 0; i < 4; i++) {
    Net n = {.kind = NORM_MLP, .dtype = kNVTEBFloat16, .rows = 256, .hidden = 320, .wide = 512};
    n.bias = i != 3;
    if (case_begin("gelu in whole tiles %d", i)) {
      check_net(&n, NULL, i == 1 ? kNVTEBFloat16 : kNVTEFloat32, i == 2);
    }
  }
  for (int i = 0; i < 12; i++) {
    Net n = {.kind = NORM_MLP, .dtype = kNVTEBFloat16, .rows = 256, .hidden = 640, .wide = 448};
    n.gated = i & 1;
    n.activation = n.gated ? SWIGLU : GELU;
    n.bias = !n.gated && i != 2;
    Recipe recipe = kRecipes[i / 4];
    recipe.forward *= 1.6;
    recipe.backward *= 1.6;
    if (case_begin("%s in whole tiles, %s %d", n.gated ? "swiglu" : "gelu", recipe.name, i)) {
      check_net(&n, &recipe, i & 2 ? kNVTEBFloat16 : kNVTEFloat32, i & 2);
    }
  }
}

static void cases_recipes(void) {
  for (Kind kind = NORM; kind <= NORM_MLP; kind++) {
    for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
      for (size_t r = 0; r < COUNT(kRecipes); r++) {
        for (int bias = 0; bias < 2; bias++) {
          Net n = {
              .kind = kind, .dtype = kHighPrecision[t], .rows = 96, .hidden = 160, .wide = 192};
          n.bias = bias;
          n.rms = !bias;
          Recipe recipe = kRecipes[r];
          // Products of NVFP4 have results in float32 or bfloat16.
          if (recipe.kind == NVTEX_RECIPE_NVFP4 && n.dtype == kNVTEFloat16) continue;
          if (kind == NORM_MLP) {
            // The activation's derivative is taken of what the first product gave.
            recipe.forward *= 1.6;
            recipe.backward = fmax(recipe.backward, 0.03) * 1.6;
          }
          if (case_begin("%s %s %s%s", kKinds[kind], recipe.name, dtype_name(n.dtype),
                         bias ? " bias" : "")) {
            check_net(&n, &recipe, bias ? kNVTEFloat32 : n.dtype, bias);
          }
        }
      }
    }
  }
}

// FP8 takes any number of rows, a single one as well.
static void cases_rows(void) {
  static const size_t rows[] = {1, 2, 3, 5, 7, 15, 17, 33};
  for (Kind kind = LINEAR; kind <= NORM_MLP; kind += 2) {
    for (size_t i = 0; i < COUNT(rows); i++) {
      for (size_t r = 0; r < COUNT(kRecipes); r++) {
        Net n = {.kind = kind, .dtype = kNVTEBFloat16, .rows = rows[i], .hidden = 160, .wide = 192};
        n.bias = true;
        n.rms = i % 2;
        // Few rows: the errors of a sum cancel less, and its values differ more from their mean
        // size.
        Recipe recipe = kRecipes[r];
        if (recipe.kind == NVTEX_RECIPE_NVFP4) continue;  // rows in multiples of 16
        recipe.forward *= kind == NORM_MLP ? 3 : 1.5;
        recipe.backward = fmax(recipe.backward, 0.03) * (kind == NORM_MLP ? 3 : 1.5);
        if (case_begin("%s %s, %zu rows", kKinds[kind], recipe.name, rows[i])) {
          check_net(&n, &recipe, kNVTEFloat32, i % 2);
        }
      }
    }
  }
}

static double objective(const Net *n, Values *v, const double *dy, const double *dz) {
  double sum = 0;
  (void)ref_forward(n, v);
  for (size_t i = 0; i < n->rows * out_cols(n); i++) sum += v->y[i] * dy[i];
  for (size_t i = 0; dz && i < n->rows * n->hidden; i++) sum += v->z[i] * dz[i];
  return sum;
}

// The references themselves, by central differences.
static void cases_finite_differences(void) {
  for (Kind kind = NORM; kind <= NORM_MLP; kind++) {
    if (!case_begin("finite differences %s", kKinds[kind])) continue;
    Net n = {.kind = kind,
             .rows = 3,
             .hidden = 5,
             .wide = 4,
             .bias = true,
             .gated = true,
             .activation = SWIGLU};
    if (kind != NORM_MLP) n.gated = false;
    Values v = new_values(&n), d = new_values(&n);
    const size_t xs = n.rows * n.hidden, ys = n.rows * out_cols(&n);
    double *dy = doubles(ys), *dz = doubles(xs);
    for (size_t i = 0; i < xs; i++) v.x[i] = random_uniform(-1, 1), dz[i] = random_uniform(-1, 1);
    for (size_t i = 0; i < ys; i++) dy[i] = random_uniform(-1, 1);
    for (int p = 0; p < NUM_PARAMETERS; p++) {
      for (size_t i = 0; i < parameter_count(&n, p); i++) v.p[p][i] = random_uniform(-1, 1);
    }
    const double *extra = kind == NORM_LINEAR || kind == NORM_MLP ? dz : NULL;
    const Hidden kept = ref_forward(&n, &v);
    ref_backward(&n, &v, kept, dy, extra, &d);
    for (int p = -1; p < NUM_PARAMETERS; p++) {
      double *at = p < 0 ? v.x : v.p[p], *grad = p < 0 ? d.x : d.p[p];
      const size_t count = p < 0 ? xs : parameter_count(&n, p);
      for (size_t i = 0; i < count; i++) {
        const double old = at[i], step = 1e-5;
        at[i] = old + step;
        const double up = objective(&n, &v, dy, extra);
        at[i] = old - step;
        const double down = objective(&n, &v, dy, extra);
        at[i] = old;
        const double expected = (up - down) / (2 * step);
        CHECK(fabs(grad[i] - expected) < 1e-7 * (1 + fabs(expected)), "parameter %d[%zu]: %g, %g",
              p, i, grad[i], expected);
      }
    }
  }
}

// Handles of different objects have different types: two equal ones in a list would not compile.
static void cases_handle_types(void) {
#define TYPE_OF(handle)  \
  _Generic((handle)NULL, \
      NVTEXRecipe: 1,    \
      NVTEXContext: 2,   \
      NVTEXModule: 3,    \
      NVTEXTape: 4,      \
      NVTEXKVCache: 5,   \
      NVTEXPolicy: 6,    \
      void *: 0)
  if (case_begin("handle types")) {
    CHECK_EQ(TYPE_OF(NVTEXContext), 2);
    CHECK_EQ(TYPE_OF(NVTEXKVCache), 5);
    CHECK_EQ(TYPE_OF(NVTEXPolicy), 6);
    CHECK_EQ(TYPE_OF(NVTETensor), 0);
  }
#undef TYPE_OF
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  cases_handle_types();
  cases_finite_differences();
  cases_high_precision();
  cases_recipes();
  cases_rows();
  cases_activation();
  cases_tiles();
  return test_end();
}
