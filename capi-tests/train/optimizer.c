// Optimizers against the same rules in double, over many steps with given gradients.
#include "support.h"

enum { STEPS = 20, IN = 24, OUT = 40, MOST = 8 };

// ---- Modules with an optimizer

typedef struct Subject {
  NVTEXContext context;
  NVTEXModule modules[2];
  NVTEXOptimizer optimizer;
  NVTEXOptimizerParameter p[MOST];
  NVTEXParameter values[MOST];
  size_t count[MOST], num;
} Subject;

static NVTEXModule linear(NVTEXContext context, const char *name, size_t in, size_t out,
                          NVTEDType dtype) {
  NVTEXLinearConfig config;
  nvtex_linear_config_init(&config, sizeof config);
  config.name = name;
  config.in_features = in;
  config.out_features = out;
  config.dtype = dtype;
  config.init_std = 0.5f;
  config.seed = 7;
  return nvtex_linear_create(context, &config, NULL);
}

static NVTEXOptimizerConfig config_of(NVTEXUpdateRule rule) {
  NVTEXOptimizerConfig config;
  nvtex_optimizer_config_init(&config, sizeof config, rule);
  return config;
}

static void describe(Subject *s, size_t num_modules) {
  s->num = nvtex_optimizer_num_parameters(s->optimizer);
  for (size_t i = 0; i < s->num && i < MOST; i++) {
    s->p[i].struct_size = sizeof s->p[i];
    nvtex_optimizer_parameter(s->optimizer, i, &s->p[i]);
    size_t index = i;
    NVTEXModule module = s->modules[0];
    if (num_modules == 2 && index >= nvtex_module_num_parameters(module)) {
      index -= nvtex_module_num_parameters(module);
      module = s->modules[1];
    }
    s->values[i].struct_size = sizeof s->values[i];
    nvtex_module_parameter(module, index, &s->values[i]);
    s->count[i] = numel(s->values[i].shape);
  }
  EXPECT_OK();
}

static Subject begin(NVTEDType dtype, size_t in, size_t out, size_t num_modules,
                     const NVTEXOptimizerConfig *config) {
  Subject s = {0};
  s.context = nvtex_context_create(NULL);
  s.modules[0] = linear(s.context, "first", in, out, dtype);
  if (num_modules == 2) s.modules[1] = linear(s.context, "second", out, in, dtype);
  EXPECT_OK();
  s.optimizer = nvtex_optimizer_create(s.context, config, s.modules, num_modules, NULL);
  EXPECT_OK();
  describe(&s, num_modules);
  return s;
}

static void end(Subject *s) {
  nvtex_optimizer_destroy(s->optimizer);
  for (int i = 0; i < 2; i++) nvtex_module_destroy(s->modules[i]);
  nvtex_context_destroy(s->context);
  EXPECT_OK();
}

static NVTEBasicTensor value_of(const NVTEXParameter *parameter) {
  return nvte_get_tensor_param(parameter->value, kNVTERowwiseData);
}

// The numbers of a tensor on the device.
static double *read_basic(NVTEBasicTensor t) {
  const size_t n = numel(t.shape);
  void *host = host_memory(n * dtype_size(t.dtype));
  download(host, t.data_ptr, n * dtype_size(t.dtype));
  double *values = host_memory(n * sizeof(double));
  for (size_t i = 0; i < n; i++) values[i] = get_value(t.dtype, host, i);
  return values;
}

// A parameter in float32 as the optimizer knows it: its master, that of a remainder, or its value.
static double *read_master(const Subject *s, size_t i) {
  if (!s->p[i].master.data_ptr) return read_basic(value_of(&s->values[i]));
  if (s->p[i].master.dtype == kNVTEFloat32) return read_basic(s->p[i].master);
  const size_t n = s->count[i];
  uint16_t *high = host_memory(2 * n), *low = host_memory(2 * n);
  double *values = host_memory(n * sizeof(double));
  download(high, value_of(&s->values[i]).data_ptr, 2 * n);
  download(low, s->p[i].master.data_ptr, 2 * n);
  for (size_t e = 0; e < n; e++) {
    values[e] = float_of((uint32_t)(uint16_t)(high[e] - (low[e] >> 15)) << 16 | low[e]);
  }
  return values;
}

// Random gradients, which the result has as the device has them.
static double *give_gradient(const Subject *s, size_t i, double size) {
  NVTEBasicTensor g = s->p[i].gradient;
  void *host = random_values(g.dtype, s->count[i], -size, size);
  upload(g.data_ptr, host, s->count[i] * dtype_size(g.dtype));
  double *values = host_memory(s->count[i] * sizeof(double));
  for (size_t e = 0; e < s->count[i]; e++) values[e] = get_value(g.dtype, host, e);
  return values;
}

static NVTEXOptimizerNumbers numbers_of(const Subject *s) {
  NVTEXOptimizerNumbers numbers = {.struct_size = sizeof numbers};
  nvtex_optimizer_numbers(s->optimizer, &numbers, NULL);
  return numbers;
}

static double largest_error(const double *got, const double *expected, size_t n) {
  double most = 0;
  for (size_t i = 0; i < n; i++) {
    const double e = fabs(got[i] - expected[i]);
    if (!(e <= most)) most = e;
  }
  return most;
}

// Values of 16 bits follow their masters.
static void check_value(const Subject *s, size_t i, const double *master) {
  const NVTEBasicTensor value = value_of(&s->values[i]);
  if (!s->p[i].master.data_ptr || is_fp8(value.dtype)) return;
  const double *got = read_basic(value);
  // A remainder rounds ties away from 0, which is the other neighbour for one in 2^16 numbers.
  const double bound = s->p[i].master.dtype == kNVTEInt16 ? 0x1p-8 : 0;
  for (size_t e = 0; e < s->count[i]; e++) {
    const double expected = round_to(value.dtype, master[e]);
    CHECK(fabs(got[e] - expected) <= bound * fabs(expected), "value %zu: %g, master %g", e, got[e],
          master[e]);
  }
}

// ---- AdamW

typedef struct AdamCase {
  const char *name;
  NVTEDType dtype, moments;
  NVTEXMasters masters;
  double bound;
  bool low_gradients;
} AdamCase;

static void adamw(const AdamCase *c) {
  if (!case_begin("AdamW, %s", c->name)) return;
  NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_ADAMW);
  config.learning_rate = 0.01f;
  config.weight_decay = 0.1f;
  config.beta2 = 0.95f;
  config.masters = c->masters;
  config.moment_dtype = c->moments;
  config.low_precision_gradients = c->low_gradients;
  Subject s = begin(c->dtype, IN, OUT, 1, &config);
  CHECK_EQ(s.num, 2);
  CHECK_EQ(s.p[0].gradient.dtype, c->low_gradients ? c->dtype : kNVTEFloat32);
  CHECK_EQ(s.p[1].gradient.dtype, c->low_gradients ? c->dtype : kNVTEFloat32);
  CHECK(!strcmp(s.p[0].name, "first.weight"), "%s", s.p[0].name);
  double *p[2], *m[2], *v[2];
  for (size_t i = 0; i < 2; i++) {
    p[i] = read_master(&s, i);
    m[i] = host_memory(s.count[i] * sizeof(double));
    v[i] = host_memory(s.count[i] * sizeof(double));
  }
  for (int step = 1; step <= STEPS; step++) {
    for (size_t i = 0; i < 2; i++) {
      const double *g = give_gradient(&s, i, 1.0);
      const double decay = i == 0 ? (double)config.weight_decay : 0;
      const double beta1 = (double)config.beta1, beta2 = (double)config.beta2;
      for (size_t e = 0; e < s.count[i]; e++) {
        m[i][e] = beta1 * m[i][e] + (1 - beta1) * g[e];
        v[i][e] = beta2 * v[i][e] + (1 - beta2) * g[e] * g[e];
        const double u = m[i][e] / (1 - pow(beta1, step)) /
                         (sqrt(v[i][e] / (1 - pow(beta2, step))) + (double)config.epsilon);
        p[i][e] -= (double)config.learning_rate * (u + decay * p[i][e]);
      }
    }
    nvtex_optimizer_step(s.optimizer, NULL);
    EXPECT_OK();
  }
  for (size_t i = 0; i < 2; i++) {
    const double *got = read_master(&s, i);
    const double error = largest_error(got, p[i], s.count[i]);
    CHECK(error <= c->bound, "%s: error %g after %d steps", s.p[i].name, error, STEPS);
    check_value(&s, i, got);
  }
  const NVTEXOptimizerNumbers numbers = numbers_of(&s);
  CHECK_EQ(numbers.step, STEPS);
  CHECK_EQ(numbers.skipped, 0);
  CHECK_FLOAT(numbers.learning_rate, 0.01f);
  CHECK_FLOAT(numbers.norm, 0.0f);
  end(&s);
}

// ---- Moments in FP8

// The distance from a magnitude that E4M3 has to the next one.
static double e4m3_spacing(double x) {
  int exponent;
  frexp(x, &exponent);
  return ldexp(1, exponent < -5 ? -9 : exponent - 4);
}

// A moment after the first step: the scale, codes beside the exact number, and their mean.
static void check_moment(const Subject *s, size_t i, size_t which, const double *exact) {
  const size_t n = s->count[i];
  const double *codes = read_basic(s->p[i].state[which]);
  const double *scales = read_basic(s->p[i].state_scales[which]);
  CHECK_EQ(s->p[i].state[which].dtype, kNVTEFloat8E4M3);
  CHECK_EQ(numel(s->p[i].state_scales[which].shape), (n + 127) / 128);
  double sum = 0, variance = 0;
  for (size_t e = 0; e < n; e++) {
    double most = 0;
    for (size_t j = e / 128 * 128; j < n && j < e / 128 * 128 + 128; j++)
      most = fmax(most, fabs(exact[j]));
    const double scale = scales[e / 128];
    CHECK(frexp(scale, &(int){0}) == 0.5 && most <= 448 * scale && most > 224 * scale,
          "scale %g of at most %g", scale, most);
    const double x = fabs(exact[e]) / scale, spacing = e4m3_spacing(x);
    const double below = floor(x / spacing) * spacing, part = (x - below) / spacing;
    const double got = fabs(codes[e]);
    // The smallest root above 0 is never 0, and numbers of Float32 may be on the other side of a
    // code.
    const bool near = got >= below - 1e-5 * x && got <= below + spacing * (1 + 1e-5);
    CHECK(near || (which && got == 0x1p-9), "%zu: %g, exactly %g", e, got, x);
    CHECK(codes[e] == 0 || (codes[e] < 0) == (exact[e] < 0), "%zu: sign of %g", e, codes[e]);
    sum += (got - x) / spacing;
    variance += part * (1 - part);
  }
  CHECK(fabs(sum) <= 4 * sqrt(variance) + 1e-3 * (double)n, "%s, moment %zu: off by %g of %g",
        s->p[i].name, which, sum, sqrt(variance));
}

static void fp8_moments(void) {
  // All alike: rounding to the nearest would be wrong in one direction.
  for (int alike = 0; alike < 2; alike++) {
    if (!case_begin("Moments in FP8, %s", alike ? "one number" : "random numbers")) continue;
    NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_ADAMW);
    config.moment_dtype = kNVTEFloat8E4M3;
    Subject s = begin(kNVTEFloat32, IN, OUT, 1, &config);
    double *g[2], *m[2], *root[2];
    for (size_t i = 0; i < 2; i++) {
      g[i] = give_gradient(&s, i, 1.0);
      float *host = host_memory(s.count[i] * sizeof *host);
      for (size_t e = 0; e < s.count[i]; e++) host[e] = alike ? 0.83f : (float)g[i][e];
      upload(s.p[i].gradient.data_ptr, host, s.count[i] * sizeof *host);
      m[i] = host_memory(s.count[i] * sizeof(double));
      root[i] = host_memory(s.count[i] * sizeof(double));
      for (size_t e = 0; e < s.count[i]; e++) {
        m[i][e] = (1 - (double)config.beta1) * (double)host[e];
        root[i][e] = sqrt(1 - (double)config.beta2) * fabs((double)host[e]);
      }
    }
    nvtex_optimizer_step(s.optimizer, NULL);
    if (EXPECT_OK()) {
      for (size_t i = 0; i < 2; i++) {
        check_moment(&s, i, 0, m[i]);
        check_moment(&s, i, 1, root[i]);
      }
    }
    end(&s);
  }
}

// Noisy gradients of a bowl whose directions differ by 10^4: as far from its middle as moments in
// Float32 bring it, but for a part.
static void fp8_convergence(float beta2) {
  enum { LONG = 400 };
  if (!case_begin("Moments in FP8 converge, beta2 %g", (double)beta2)) return;
  double distance[2], start = 0;
  for (int fp8 = 0; fp8 < 2; fp8++) {
    NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_ADAMW);
    config.moment_dtype = fp8 ? kNVTEFloat8E4M3 : kNVTEFloat32;
    config.learning_rate = 0.01f, config.last_rate_factor = 0.01f;
    config.schedule = NVTEX_SCHEDULE_COSINE, config.total_steps = LONG;
    config.weight_decay = 0, config.beta2 = beta2;
    const uint64_t seed = g_test.rng;
    Subject s = begin(kNVTEFloat32, IN, OUT, 1, &config);
    const size_t n = s.count[0];
    g_test.rng = 12345;
    double *target = host_memory(n * sizeof(double)), *steep = host_memory(n * sizeof(double));
    const float *random = random_values(kNVTEFloat32, 2 * n, -1, 1);
    for (size_t e = 0; e < n; e++) {
      target[e] = random[e];
      steep[e] = pow(10, 2 * (double)random[n + e]);
    }
    for (int step = 0; step < LONG; step++) {
      const double *p = read_master(&s, 0);
      const float *noise = random_values(kNVTEFloat32, n, -1, 1);
      float *g = host_memory(n * sizeof *g);
      for (size_t e = 0; e < n; e++) {
        g[e] = (float)(steep[e] * (p[e] - target[e] + 0.3 * (double)noise[e]));
        if (step == 0 && fp8 == 0) start += fabs(p[e] - target[e]) / (double)n;
      }
      upload(s.p[0].gradient.data_ptr, g, n * sizeof *g);
      nvtex_optimizer_step(s.optimizer, NULL);
    }
    EXPECT_OK();
    const double *p = read_master(&s, 0);
    distance[fp8] = 0;
    for (size_t e = 0; e < n; e++) distance[fp8] += fabs(p[e] - target[e]) / (double)n;
    end(&s);
    g_test.rng = seed;
  }
  CHECK(distance[0] < 0.1 * start && distance[1] < 1.15 * distance[0],
        "from %g to %g in Float32 and %g in FP8", start, distance[0], distance[1]);
}

// ---- Gradient descent

static void sgd(NVTEDType dtype, NVTEXMasters masters, float momentum, bool nesterov,
                double bound) {
  if (!case_begin("SGD, %s, masters %d, momentum %g, nesterov %d", dtype_name(dtype), (int)masters,
                  (double)momentum, nesterov)) {
    return;
  }
  NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_SGD);
  config.learning_rate = 0.02f;
  config.momentum = momentum;
  config.nesterov = nesterov;
  config.weight_decay = 0.05f;
  config.masters = masters;
  Subject s = begin(dtype, IN, OUT, 1, &config);
  double *p[2], *b[2];
  for (size_t i = 0; i < 2; i++) {
    p[i] = read_master(&s, i);
    b[i] = host_memory(s.count[i] * sizeof(double));
  }
  for (int step = 0; step < STEPS; step++) {
    for (size_t i = 0; i < 2; i++) {
      const double *g = give_gradient(&s, i, 1.0);
      for (size_t e = 0; e < s.count[i]; e++) {
        double d = g[e] + (i == 0 ? (double)config.weight_decay * p[i][e] : 0);
        b[i][e] = (double)momentum * b[i][e] + d;
        d = nesterov ? d + (double)momentum * b[i][e] : b[i][e];
        p[i][e] -= (double)config.learning_rate * d;
      }
    }
    nvtex_optimizer_step(s.optimizer, NULL);
    EXPECT_OK();
  }
  for (size_t i = 0; i < 2; i++) {
    const double *got = read_master(&s, i);
    const double error = largest_error(got, p[i], s.count[i]);
    CHECK(error <= bound, "%s: error %g", s.p[i].name, error);
    check_value(&s, i, got);
    CHECK((s.p[i].state[0].data_ptr != NULL) == (momentum != 0), "momentum of %s", s.p[i].name);
  }
  end(&s);
}

// ---- Muon

// c[m][n] = a[m][k] b^T, b [n][k]
static double *product_bt(const double *a, const double *b, size_t m, size_t n, size_t k) {
  double *c = host_memory(m * n * sizeof(double));
  for (size_t i = 0; i < m; i++)
    for (size_t j = 0; j < n; j++)
      for (size_t l = 0; l < k; l++) c[i * n + j] += a[i * k + l] * b[j * k + l];
  return c;
}

static double *product(const double *a, const double *b, size_t m, size_t n, size_t k) {
  double *c = host_memory(m * n * sizeof(double));
  for (size_t i = 0; i < m; i++)
    for (size_t l = 0; l < k; l++)
      for (size_t j = 0; j < n; j++) c[i * n + j] += a[i * k + l] * b[l * n + j];
  return c;
}

// The quintic iteration of Muon on u / |u|.
static double *orthogonal(const double *u, size_t rows, size_t cols, int iterations) {
  double norm = 0;
  for (size_t i = 0; i < rows * cols; i++) norm += u[i] * u[i];
  double *x = host_memory(rows * cols * sizeof(double));
  for (size_t i = 0; i < rows * cols; i++) x[i] = u[i] / sqrt(norm);
  for (int k = 0; k < iterations; k++) {
    double *g = product_bt(x, x, rows, rows, cols), *gg = product(g, g, rows, rows, rows);
    for (size_t i = 0; i < rows * rows; i++) g[i] = -4.775 * g[i] + 2.0315 * gg[i];
    double *y = product(g, x, rows, cols, rows);
    for (size_t i = 0; i < rows * cols; i++) x[i] = 3.4445 * x[i] + y[i];
  }
  return x;
}

static void muon(NVTEDType dtype, size_t in, size_t out, bool nesterov) {
  if (!case_begin("Muon, %s, %zux%zu, nesterov %d", dtype_name(dtype), out, in, nesterov)) return;
  NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_MUON);
  config.learning_rate = 0.05f;
  config.weight_decay = 0.1f;
  config.nesterov = nesterov;
  Subject s = begin(dtype, in, out, 1, &config);
  CHECK_EQ(s.p[0].options.rule, NVTEX_UPDATE_MUON);
  CHECK_EQ(s.p[1].options.rule, NVTEX_UPDATE_ADAMW);
  double *p = read_master(&s, 0), *b = host_memory(in * out * sizeof(double));
  double *u = host_memory(in * out * sizeof(double)), *first = host_memory(in * out * sizeof *p);
  memcpy(first, p, in * out * sizeof *p);
  const double mu = (double)config.momentum, scale = 0.2 * sqrt((double)(in > out ? in : out));
  for (int step = 0; step < 4; step++) {
    const double *g = give_gradient(&s, 0, 1.0);
    give_gradient(&s, 1, 1.0);
    for (size_t e = 0; e < in * out; e++) {
      b[e] = mu * b[e] + g[e];
      u[e] = nesterov ? g[e] + mu * b[e] : b[e];
    }
    const double *o = orthogonal(u, out, in, 5);
    for (size_t e = 0; e < in * out; e++) {
      p[e] -= (double)config.learning_rate * (scale * o[e] + (double)config.weight_decay * p[e]);
    }
    nvtex_optimizer_step(s.optimizer, NULL);
    EXPECT_OK();
  }
  // Products of BFloat16 round each entry to 2^-9 of itself; the iteration keeps errors of that
  // size.
  const double *got = read_master(&s, 0);
  double error = 0, moved = 0;
  for (size_t e = 0; e < in * out; e++) {
    error += (got[e] - p[e]) * (got[e] - p[e]);
    moved += (p[e] - first[e]) * (p[e] - first[e]);
  }
  CHECK(sqrt(error) <= 0.03 * sqrt(moved), "error %g of a change of %g", sqrt(error), sqrt(moved));
  check_value(&s, 0, got);
  end(&s);
}

// ---- Schedules

static double scheduled(const NVTEXOptimizerConfig *c, int s) {
  const double rate = (double)c->learning_rate, w = c->warmup_steps,
               last = (double)c->last_rate_factor;
  if (s < c->warmup_steps) return rate * (s + 1) / (w + 1);
  const double p = fmin(1, (s - w) / (c->total_steps - w));
  if (c->schedule == NVTEX_SCHEDULE_LINEAR) return rate * (1 - (1 - last) * p);
  if (c->schedule == NVTEX_SCHEDULE_COSINE) {
    return rate * (last + (1 - last) * (1 + cos(acos(-1) * p)) / 2);
  }
  return rate;
}

static void schedules(NVTEXSchedule schedule, int warmup, int total) {
  if (!case_begin("schedule %d, %d of %d", (int)schedule, warmup, total)) return;
  NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_SGD);
  config.schedule = schedule;
  config.warmup_steps = warmup;
  config.total_steps = total;
  config.last_rate_factor = 0.1f;
  config.learning_rate = 0.3f;
  config.momentum = 0;
  Subject s = begin(kNVTEFloat32, 8, 8, 1, &config);
  double *p = read_master(&s, 0);
  for (int step = 0; step < STEPS; step++) {
    if (step == 15) {
      config.learning_rate = 0.2f;
      nvtex_optimizer_set_learning_rate(s.optimizer, 0.2f, NULL);
    }
    const double *g = give_gradient(&s, 0, 1.0), rate = scheduled(&config, step);
    give_gradient(&s, 1, 1.0);
    nvtex_optimizer_step(s.optimizer, NULL);
    const NVTEXOptimizerNumbers numbers = numbers_of(&s);
    CHECK(fabs((double)numbers.learning_rate - rate) <= 1e-7 * rate + 1e-12, "step %d: %g, not %g",
          step, (double)numbers.learning_rate, rate);
    for (size_t e = 0; e < s.count[0]; e++) p[e] -= rate * g[e];
  }
  const double error = largest_error(read_master(&s, 0), p, s.count[0]);
  CHECK(error < 1e-5, "error %g", error);
  end(&s);
}

// ---- Norm and clipping

static void clipping(NVTEDType dtype, bool low, float max_norm, int accumulation) {
  if (!case_begin("clipping of %s%s at %g, %d", dtype_name(dtype),
                  low ? ", its gradients too," : "", (double)max_norm, accumulation)) {
    return;
  }
  NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_SGD);
  config.momentum = 0;
  config.max_norm = max_norm;
  config.check_gradients = true;
  config.accumulation_steps = accumulation;
  config.low_precision_gradients = low;
  config.loss_scale = 8;
  config.learning_rate = 0.5f;
  Subject s = begin(dtype, IN, OUT, 2, &config);
  CHECK_EQ(s.num, 4);
  double *p[4], *g[4], sum = 0;
  for (size_t i = 0; i < 4; i++) {
    p[i] = read_master(&s, i);
    g[i] = give_gradient(&s, i, 3.0);
    for (size_t e = 0; e < s.count[i]; e++) sum += g[i][e] * g[i][e];
  }
  const double unscale = 1.0 / (8 * accumulation), norm = sqrt(sum) * unscale;
  const double clip = max_norm > 0 ? fmin(1, (double)max_norm / (norm + 1e-6)) : 1;
  nvtex_optimizer_step(s.optimizer, NULL);
  EXPECT_OK();
  const NVTEXOptimizerNumbers numbers = numbers_of(&s);
  CHECK(fabs((double)numbers.norm - norm) < 1e-5 * norm, "norm %g, not %g", (double)numbers.norm,
        norm);
  CHECK(fabs((double)numbers.gradient_scale - unscale * clip) < 1e-5 * unscale, "scale %g, not %g",
        (double)numbers.gradient_scale, unscale * clip);
  for (size_t i = 0; i < 4; i++) {
    for (size_t e = 0; e < s.count[i]; e++) p[i][e] -= 0.5 * unscale * clip * g[i][e];
    const double error = largest_error(read_master(&s, i), p[i], s.count[i]);
    CHECK(error < 1e-5, "%s: error %g", s.p[i].name, error);
  }
  end(&s);
}

// ---- Loss scale

static void spoil(const Subject *s, float value) {
  upload((float *)s->p[0].gradient.data_ptr + 5, &value, sizeof value);
}

static void loss_scaling(NVTEXUpdateRule rule) {
  if (!case_begin("loss scale, rule %d", (int)rule)) return;
  NVTEXOptimizerConfig config = config_of(rule);
  config.loss_scale = 1024;
  config.growth_interval = 3;
  config.most_loss_scale = 4096;
  config.least_loss_scale = 512;
  Subject s = begin(kNVTEBFloat16, IN, OUT, 1, &config);
  NVTEBasicTensor scale =
      nvte_get_tensor_param(nvtex_optimizer_loss_scale(s.optimizer), kNVTERowwiseData);
  // What happens in each step, and the loss scale after it.
  static const char events[] = "gginggggggiii";
  static const float scales[] = {1024, 1024, 512,  512,  512, 512, 1024,
                                 1024, 1024, 2048, 1024, 512, 512};
  long long steps = 0, skipped = 0;
  for (size_t i = 0; events[i]; i++) {
    double *before = read_master(&s, 0), *moments = read_basic(s.p[0].state[0]);
    give_gradient(&s, 0, 1000.0);
    give_gradient(&s, 1, 1000.0);
    if (events[i] == 'i') spoil(&s, INFINITY);
    if (events[i] == 'n') spoil(&s, NAN);
    nvtex_optimizer_step(s.optimizer, NULL);
    EXPECT_OK();
    const bool good = events[i] == 'g';
    *(good ? &steps : &skipped) += 1;
    const NVTEXOptimizerNumbers numbers = numbers_of(&s);
    CHECK_EQ(numbers.step, steps);
    CHECK_EQ(numbers.skipped, skipped);
    CHECK_EQ(numbers.was_skipped, !good);
    CHECK(numbers.loss_scale == scales[i], "step %zu: %g, not %g", i, (double)numbers.loss_scale,
          (double)scales[i]);
    float on_device;
    download(&on_device, scale.data_ptr, sizeof on_device);
    CHECK_FLOAT(on_device, scales[i]);
    const bool same = !memcmp(before, read_master(&s, 0), s.count[0] * sizeof(double)) &&
                      !memcmp(moments, read_basic(s.p[0].state[0]), s.count[0] * sizeof(double));
    CHECK(same == !good, "step %zu: parameters %s", i, same ? "stayed" : "changed");
  }
  end(&s);
}

// ---- Gradients of backward passes

// The gradient of the sum of `w * y` of one linear layer, by hand: dW = dy^T x.
static void passes(bool tied) {
  if (!case_begin("gradients of passes, %s", tied ? "a shared weight" : "a weight")) return;
  enum { ROWS = 16 };
  NVTEXContext context = nvtex_context_create(NULL);
  Subject s = {.context = context};
  s.modules[0] = linear(context, "first", IN, IN, kNVTEFloat32);
  s.modules[1] = linear(context, "second", IN, IN, kNVTEFloat32);
  NVTEXParameter shared = {.struct_size = sizeof shared};
  nvtex_module_parameter(s.modules[0], 0, &shared);
  if (tied) nvtex_module_set_parameter(s.modules[1], 0, shared.value);
  NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_SGD);
  config.momentum = 0;
  config.accumulate = true;
  config.accumulation_steps = 2;
  config.learning_rate = 1;
  s.optimizer = nvtex_optimizer_create(context, &config, s.modules, 2, NULL);
  EXPECT_OK();
  CHECK_EQ(nvtex_optimizer_num_parameters(s.optimizer), tied ? 3 : 4);
  s.p[0].struct_size = sizeof s.p[0];
  nvtex_optimizer_parameter(s.optimizer, 0, &s.p[0]);
  double *sum = host_memory(IN * IN * sizeof(double));
  double *before = read_basic(value_of(&shared));
  for (int round = 0; round < 2; round++) {
    nvtex_optimizer_zero_grad(s.optimizer, NULL);
    memset(sum, 0, IN * IN * sizeof(double));
    for (int pass = 0; pass < 4; pass++) {
      const int m = pass % 2;
      float *x = random_values(kNVTEFloat32, ROWS * IN, -1, 1);
      float *dy = random_values(kNVTEFloat32, ROWS * IN, -1, 1);
      NVTEShape shape = shape_of((size_t[]){ROWS, IN}, 2);
      NVTETensor tx = tensor(buffer_from(x, ROWS * IN * 4, 0)->ptr, kNVTEFloat32, shape);
      NVTETensor tdy = tensor(buffer_from(dy, ROWS * IN * 4, 0)->ptr, kNVTEFloat32, shape);
      NVTETensor y = tensor(buffer(ROWS * IN * 4)->ptr, kNVTEFloat32, shape), none = NULL;
      NVTEXTape tape = NULL;
      nvtex_module_forward(s.modules[m], &tx, 1, &y, 1, NULL, &tape, NULL);
      nvtex_module_backward(s.modules[m], tape, &tdy, 1, &none, 1, NULL);
      nvtex_tape_destroy(tape);
      EXPECT_OK();
      if (m == 1 && !tied) continue;
      for (size_t i = 0; i < IN; i++)
        for (size_t j = 0; j < IN; j++)
          for (size_t r = 0; r < ROWS; r++)
            sum[i * IN + j] += (double)dy[r * IN + i] * (double)x[r * IN + j];
    }
    const double error = largest_error(read_basic(s.p[0].gradient), sum, IN * IN);
    // Tensor cores take FP32 as TF32.
    CHECK(error < (on_cuda() ? 1e-2 : 1e-4), "round %d: error %g of the gradient", round, error);
  }
  nvtex_optimizer_step(s.optimizer, NULL);
  EXPECT_OK();
  for (size_t e = 0; e < IN * IN; e++) before[e] -= 0.5 * sum[e];
  const double error = largest_error(read_basic(value_of(&shared)), before, IN * IN);
  CHECK(error < (on_cuda() ? 1e-2 : 1e-4), "error %g of the weight", error);
  // The gradients of a destroyed optimizer are unbound: this pass writes none.
  nvtex_optimizer_destroy(s.optimizer);
  s.optimizer = NULL;
  NVTETensor x = tensor(buffer_from(sum, ROWS * IN * 4, 0)->ptr, kNVTEFloat32,
                        shape_of((size_t[]){ROWS, IN}, 2));
  NVTETensor y = tensor(buffer(ROWS * IN * 4)->ptr, kNVTEFloat32,
                        shape_of((size_t[]){ROWS, IN}, 2)),
             none = NULL;
  NVTEXTape tape = NULL;
  nvtex_module_forward(s.modules[0], &x, 1, &y, 1, NULL, &tape, NULL);
  nvtex_module_backward(s.modules[0], tape, &y, 1, &none, 1, NULL);
  nvtex_tape_destroy(tape);
  EXPECT_OK();
  end(&s);
}

// Gradients of a pass where they have the dtype of their parameter: what Float32 ones are, rounded
// once.
static void low_passes(NVTEDType dtype) {
  if (!case_begin("gradients of passes in %s", dtype_name(dtype))) return;
  enum { ROWS = 64 };
  const size_t size = dtype_size(dtype);
  double *sums[2][2];
  const void *x = random_values(dtype, ROWS * IN, -1, 1),
             *dy = random_values(dtype, ROWS * OUT, -1, 1);
  for (int low = 0; low < 2; low++) {
    NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_SGD);
    config.momentum = 0;
    config.low_precision_gradients = low == 1;
    Subject s = begin(dtype, IN, OUT, 1, &config);
    CHECK_EQ(s.p[0].gradient.dtype, low ? dtype : kNVTEFloat32);
    for (size_t i = 0; i < 2; i++) {
      const size_t bytes = s.count[i] * dtype_size(s.p[i].gradient.dtype);
      upload(s.p[i].gradient.data_ptr, memset(host_memory(bytes), 0xff, bytes), bytes);
    }
    NVTETensor tx =
        tensor(buffer_from(x, ROWS * IN * size, 0)->ptr, dtype, shape_of((size_t[]){ROWS, IN}, 2));
    NVTETensor tdy = tensor(buffer_from(dy, ROWS * OUT * size, 0)->ptr, dtype,
                            shape_of((size_t[]){ROWS, OUT}, 2));
    NVTETensor y = tensor(buffer(ROWS * OUT * size)->ptr, dtype,
                          shape_of((size_t[]){ROWS, OUT}, 2)),
               none = NULL;
    NVTEXTape tape = NULL;
    nvtex_module_forward(s.modules[0], &tx, 1, &y, 1, NULL, &tape, NULL);
    nvtex_module_backward(s.modules[0], tape, &tdy, 1, &none, 1, NULL);
    nvtex_tape_destroy(tape);
    EXPECT_OK();
    for (size_t i = 0; i < 2; i++) sums[low][i] = read_basic(s.p[i].gradient);
    end(&s);
  }
  double expected[2] = {0, 0};
  // The first element of each gradient, in double.
  for (size_t r = 0; r < ROWS; r++) {
    const double g = get_value(dtype, dy, r * OUT);
    expected[0] += g * get_value(dtype, x, r * IN);
    expected[1] += g;
  }
  const double spacing = dtype == kNVTEBFloat16 ? 0x1p-8 : 0x1p-11;
  for (size_t i = 0; i < 2; i++) {
    for (int low = 0; low < 2; low++) {
      CHECK(fabs(sums[low][i][0] - expected[i]) <= spacing * fabs(expected[i]) + 1e-4, "%g, not %g",
            sums[low][i][0], expected[i]);
    }
    for (size_t e = 0; e < (i == 0 ? IN * OUT : OUT); e++) {
      const double difference = fabs(sums[1][i][e] - sums[0][i][e]);
      CHECK(difference <= spacing * fabs(sums[0][i][e]) + 1e-6, "element %zu: %g, in Float32 %g", e,
            sums[1][i][e], sums[0][i][e]);
    }
  }
}

// ---- Options by parameter, and gradients of the program

static int choose(void *user, const char *name, const NVTEShape *shape,
                  NVTEXUpdateOptions *options) {
  int *calls = user;
  ++*calls;
  if (!strcmp(name, "first.weight")) {
    CHECK(options->weight_decay == 0.01f && shape->ndim == 2, "defaults of a weight");
    options->rule = NVTEX_UPDATE_SGD;
    options->weight_decay = 0;
    options->learning_rate_factor = 0.25f;
  } else if (!strcmp(name, "first.bias")) {
    CHECK(options->weight_decay == 0 && shape->ndim == 1, "defaults of a bias");
    options->rule = NVTEX_UPDATE_NONE;
  } else if (!strcmp(name, "second.bias")) {
    return *calls > 100;
  }
  return 0;
}

static void options(void) {
  if (!case_begin("options by parameter")) return;
  int calls = 0;
  NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_ADAMW);
  config.choose = choose;
  config.user = &calls;
  config.momentum = 0;
  config.learning_rate = 0.5f;
  Subject s = {.context = nvtex_context_create(NULL)};
  s.modules[0] = linear(s.context, "first", IN, OUT, kNVTEBFloat16);
  s.modules[1] = linear(s.context, "second", OUT, IN, kNVTEBFloat16);
  // A gradient in 16 bits, which the program has bound before.
  Buffer *own = buffer(2 * IN * OUT);
  NVTETensor given = tensor(own->ptr, kNVTEBFloat16, shape_of((size_t[]){OUT, IN}, 2));
  nvtex_module_set_gradient(s.modules[0], 0, given, false);
  s.optimizer = nvtex_optimizer_create(s.context, &config, s.modules, 2, NULL);
  EXPECT_OK();
  describe(&s, 2);
  CHECK_EQ(calls, 4);
  CHECK(s.p[0].gradient.data_ptr == own->ptr, "the gradient of the program");
  CHECK(s.p[1].gradient.data_ptr == NULL, "no gradient of what stays");
  CHECK(s.p[2].state[1].data_ptr != NULL, "moments of AdamW");
  double *p = read_master(&s, 0), *bias = read_master(&s, 1), *g = give_gradient(&s, 0, 1.0);
  for (size_t e = 0; e < s.count[0]; e++) p[e] -= 0.125 * g[e];
  nvtex_optimizer_step(s.optimizer, NULL);
  EXPECT_OK();
  CHECK(largest_error(read_master(&s, 0), p, s.count[0]) < 1e-6, "weight");
  CHECK(largest_error(read_master(&s, 1), bias, s.count[1]) == 0, "bias");
  nvtex_module_set_gradient(s.modules[0], 0, NULL, false);
  nvtex_optimizer_step(s.optimizer, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_optimizer_step", "first.weight", "unbound");
  nvtex_optimizer_destroy(s.optimizer);
  calls = 1000;
  s.optimizer = nvtex_optimizer_create(s.context, &config, s.modules, 2, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "second.bias", "config.choose", "return 0");
  CHECK(s.optimizer == NULL, "no optimizer");
  end(&s);
}

// ---- Weights in FP8 alone

static void quantized(NVTEXRecipeKind kind) {
  if (!case_begin("weights in FP8, recipe %d", (int)kind)) return;
  NVTEXRecipeConfig recipe_config;
  nvtex_recipe_config_init(&recipe_config, sizeof recipe_config, kind);
  NVTEXRecipe recipe = nvtex_recipe_create(&recipe_config);
  Subject s = {.context = nvtex_context_create(NULL)};
  nvtex_context_begin(s.context, recipe, NVTEX_CONTEXT_ENABLED | NVTEX_CONTEXT_QUANTIZED_WEIGHTS,
                      NULL);
  s.modules[0] = linear(s.context, "first", 128, 128, kNVTEBFloat16);
  NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_ADAMW);
  config.initial_masters = true;
  s.optimizer = nvtex_optimizer_create(s.context, &config, s.modules, 1, NULL);
  EXPECT_OK();
  describe(&s, 1);
  CHECK_EQ(s.values[0].quantized, true);
  float *initial = host_memory(128 * 128 * sizeof(float));
  nvtex_module_initial_value(s.modules[0], 0, initial, 128 * 128);
  double *master = read_master(&s, 0);
  for (size_t e = 0; e < 128 * 128; e++) CHECK(master[e] == (double)initial[e], "master %zu", e);
  give_gradient(&s, 0, 1.0);
  give_gradient(&s, 1, 1.0);
  nvtex_optimizer_step(s.optimizer, NULL);
  EXPECT_OK();
  master = read_master(&s, 0);
  NVTEShape shape = shape_of((size_t[]){128, 128}, 2);
  Buffer *wide = buffer(128 * 128 * 4);
  nvte_dequantize(s.values[0].value, tensor(wide->ptr, kNVTEFloat32, shape), NULL);
  EXPECT_OK();
  const float *got = buffer_read(wide);
  for (size_t e = 0; e < 128 * 128; e++) {
    // E4M3 has 3 bits of mantissa, and rounds small numbers to a multiple of 2^-9 of its scale.
    CHECK(fabs((double)got[e] - master[e]) <= 0x1p-4 * fabs(master[e]) + 1e-3, "%zu: %g, master %g",
          e, (double)got[e], master[e]);
  }
  nvtex_context_end(s.context);
  end(&s);
  nvtex_recipe_destroy(recipe);
}

// A weight of delayed scaling follows its master exactly, with the scale that it had before the
// step.
static void delayed_weights(void) {
  if (!case_begin("weights in FP8, with the scale of steps before")) return;
  NVTEXRecipeConfig recipe_config;
  nvtex_recipe_config_init(&recipe_config, sizeof recipe_config, NVTEX_RECIPE_DELAYED_SCALING);
  NVTEXRecipe recipe = nvtex_recipe_create(&recipe_config);
  Subject s = {.context = nvtex_context_create(NULL)};
  nvtex_context_begin(s.context, recipe, NVTEX_CONTEXT_ENABLED | NVTEX_CONTEXT_QUANTIZED_WEIGHTS,
                      NULL);
  s.modules[0] = linear(s.context, "first", 144, 80, kNVTEBFloat16);
  NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_ADAMW);
  config.learning_rate = 0.25f, config.max_norm = 1;
  s.optimizer = nvtex_optimizer_create(s.context, &config, s.modules, 1, NULL);
  EXPECT_OK();
  describe(&s, 1);
  const NVTEBasicTensor scalars[3] = {
      nvte_get_tensor_param(s.values[0].value, kNVTEScale),
      nvte_get_tensor_param(s.values[0].value, kNVTEAmax),
      nvte_get_tensor_param(s.values[0].value, kNVTERowwiseScaleInv)};
  const double *before = NULL;
  for (int step = 0; step < 4; step++) {
    const float scale = (float)read_basic(scalars[0])[0];
    double most = read_basic(scalars[1])[0];
    const bool skipped = step == 2;
    give_gradient(&s, 0, 1.0), give_gradient(&s, 1, 1.0);
    const float infinite = INFINITY;
    if (skipped) upload(s.p[0].gradient.data_ptr, &infinite, sizeof infinite);
    nvtex_optimizer_step(s.optimizer, NULL);
    EXPECT_OK();
    const double *master = read_master(&s, 0), *value = read_basic(value_of(&s.values[0]));
    for (size_t e = 0; e < s.count[0]; e++) {
      const double scaled = (double)((float)master[e] * scale);
      const double expected = round_to(kNVTEFloat8E4M3, scaled);
      CHECK(value[e] == (skipped ? before[e] : expected), "step %d, %zu: %g, scaled master %g",
            step, e, value[e], scaled);
      if (!skipped && fabs(master[e]) > most) most = fabs(master[e]);
    }
    CHECK(read_basic(scalars[1])[0] == most, "amax %g, largest %g", read_basic(scalars[1])[0],
          most);
    CHECK_FLOAT((float)read_basic(scalars[2])[0], 1 / scale);
    before = value;
  }
  CHECK_EQ(numbers_of(&s).skipped, 1);
  nvtex_context_end(s.context);
  end(&s);
  nvtex_recipe_destroy(recipe);
}

// ---- Wrong arguments

#define REFUSED(CHANGE, ...)                                                         \
  do {                                                                               \
    NVTEXOptimizerConfig config = config_of(NVTEX_UPDATE_ADAMW);                     \
    CHANGE;                                                                          \
    CHECK(!nvtex_optimizer_create(context, &config, &module, 1, NULL), "no handle"); \
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_optimizer_create", __VA_ARGS__);     \
  } while (0)

static int choose_muon(void *user, const char *name, const NVTEShape *shape,
                       NVTEXUpdateOptions *options) {
  (void)user, (void)name, (void)shape;
  options->rule = NVTEX_UPDATE_MUON;
  return 0;
}

static int choose_none(void *user, const char *name, const NVTEShape *shape,
                       NVTEXUpdateOptions *options) {
  (void)user, (void)name, (void)shape;
  options->rule = NVTEX_UPDATE_NONE;
  return 0;
}

static void errors(void) {
  if (!case_begin("wrong arguments")) return;
  NVTEXContext context = nvtex_context_create(NULL), other = nvtex_context_create(NULL);
  NVTEXModule module = linear(context, "first", 8, 8, kNVTEFloat32);
  EXPECT_OK();
  REFUSED(config.rule = (NVTEXUpdateRule)9, "config.rule");
  REFUSED(config.learning_rate = NAN, "config.learning_rate", "NaN");
  REFUSED(config.weight_decay = -1, "config.weight_decay", "-1");
  REFUSED(config.beta1 = 1, "config.beta1", "less than 1");
  REFUSED(config.beta2 = -0.5f, "config.beta2");
  REFUSED(config.moment_dtype = kNVTEFloat16, "config.moment", "BFloat16");
  REFUSED(config.schedule = NVTEX_SCHEDULE_COSINE, "config.total_steps");
  REFUSED(config.warmup_steps = -1, "config.warmup_steps");
  REFUSED(config.last_rate_factor = 2, "config.last_rate_factor");
  REFUSED(config.max_norm = -1, "config.max_norm");
  REFUSED(config.accumulation_steps = 0, "config.accumulation_steps");
  REFUSED(config.loss_scale = 0, "config.loss_scale");
  REFUSED(config.most_loss_scale = 0.5f, "config.most_loss_scale");
  REFUSED(config.newton_schulz_steps = 101, "config.newton_schulz_steps");
  REFUSED(config.masters = (NVTEXMasters)3, "config.masters");
  REFUSED(config.choose = choose_muon, "first.bias", "matrices");
  REFUSED(config.choose = choose_none, "modules");
  REFUSED(config.struct_size = 11, "config.struct_size");
  NVTEXModule twice[2] = {module, module};
  CHECK(!nvtex_optimizer_create(context, NULL, twice, 2, NULL), "no handle");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "modules[1]");
  CHECK(!nvtex_optimizer_create(other, NULL, &module, 1, NULL), "no handle");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "modules[0]", "another context");
  CHECK(!nvtex_optimizer_create(context, NULL, NULL, 1, NULL), "no handle");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "modules", "null");
  nvtex_optimizer_step(NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "optimizer");
  nvtex_optimizer_destroy(NULL);
  EXPECT_OK();
  NVTEXOptimizer optimizer = nvtex_optimizer_create(context, NULL, &module, 1, NULL);
  EXPECT_OK();
  NVTEXOptimizerParameter parameter = {.struct_size = sizeof parameter};
  nvtex_optimizer_parameter(optimizer, 2, &parameter);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "index", "less than 2");
  nvtex_optimizer_set_learning_rate(optimizer, -1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "learning_rate");
  // The optimizer keeps its modules alive.
  nvtex_module_destroy(module);
  nvtex_context_destroy(context);
  nvtex_optimizer_step(optimizer, NULL);
  EXPECT_OK();
  nvtex_optimizer_destroy(optimizer);
  nvtex_optimizer_step(optimizer, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "optimizer");
  nvtex_context_destroy(other);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  static const AdamCase cases[] = {
      {"Float32", kNVTEFloat32, kNVTEFloat32, NVTEX_MASTERS_FLOAT32, 2e-6, false},
      {"BFloat16 with masters", kNVTEBFloat16, kNVTEFloat32, NVTEX_MASTERS_FLOAT32, 2e-6, false},
      {"Float16 with masters", kNVTEFloat16, kNVTEFloat32, NVTEX_MASTERS_FLOAT32, 2e-6, false},
      {"BFloat16 with remainders", kNVTEBFloat16, kNVTEFloat32, NVTEX_MASTERS_REMAINDER, 2e-6,
       false},
      // Each step may round by half of the spacing of BFloat16 near 1 and 2, 2^-8 and 2^-7.
      {"BFloat16 alone", kNVTEBFloat16, kNVTEFloat32, NVTEX_MASTERS_NONE, STEPS * 0x1p-8, false},
      // A moment is wrong by 2^-9 of itself in each step; its update is at most 0.01.
      {"moments in BFloat16", kNVTEFloat32, kNVTEBFloat16, NVTEX_MASTERS_FLOAT32, 0.01, false},
      {"gradients in BFloat16", kNVTEBFloat16, kNVTEFloat32, NVTEX_MASTERS_FLOAT32, 2e-6, true},
      {"gradients in Float16", kNVTEFloat16, kNVTEFloat32, NVTEX_MASTERS_FLOAT32, 2e-6, true},
      {"gradients in BFloat16 and remainders", kNVTEBFloat16, kNVTEFloat32, NVTEX_MASTERS_REMAINDER,
       2e-6, true},
      {"gradients of Float32 parameters", kNVTEFloat32, kNVTEFloat32, NVTEX_MASTERS_FLOAT32, 2e-6,
       true},
      // Each is wrong by up to an eighth of itself.
      {"moments in FP8", kNVTEFloat32, kNVTEFloat8E4M3, NVTEX_MASTERS_FLOAT32, 0.02, false},
      {"moments in FP8, no masters", kNVTEBFloat16, kNVTEFloat8E4M3, NVTEX_MASTERS_NONE,
       0.02 + STEPS * 0x1p-8, false},
      {"moments in FP8, remainders", kNVTEBFloat16, kNVTEFloat8E4M3, NVTEX_MASTERS_REMAINDER, 0.02,
       false},
  };
  for (size_t i = 0; i < COUNT(cases); i++) adamw(&cases[i]);
  fp8_moments();
  fp8_convergence(0.95f);
  fp8_convergence(0.999f);
  sgd(kNVTEFloat32, NVTEX_MASTERS_FLOAT32, 0.9f, false, 1e-5);
  sgd(kNVTEFloat32, NVTEX_MASTERS_FLOAT32, 0.9f, true, 1e-5);
  sgd(kNVTEFloat32, NVTEX_MASTERS_FLOAT32, 0, false, 1e-5);
  sgd(kNVTEBFloat16, NVTEX_MASTERS_FLOAT32, 0.9f, true, 1e-5);
  sgd(kNVTEFloat16, NVTEX_MASTERS_FLOAT32, 0.9f, false, 1e-5);
  sgd(kNVTEBFloat16, NVTEX_MASTERS_REMAINDER, 0.5f, false, 1e-5);
  sgd(kNVTEBFloat16, NVTEX_MASTERS_NONE, 0, false, STEPS * 0x1p-7);
  muon(kNVTEFloat32, 24, 40, true);
  muon(kNVTEFloat32, 64, 24, false);
  muon(kNVTEBFloat16, 33, 57, true);
  schedules(NVTEX_SCHEDULE_CONSTANT, 0, 0);
  schedules(NVTEX_SCHEDULE_CONSTANT, 5, 0);
  schedules(NVTEX_SCHEDULE_LINEAR, 4, 16);
  schedules(NVTEX_SCHEDULE_COSINE, 4, 16);
  schedules(NVTEX_SCHEDULE_COSINE, 0, 100);
  clipping(kNVTEFloat32, false, 1, 1);
  clipping(kNVTEBFloat16, false, 0.25f, 4);
  clipping(kNVTEBFloat16, true, 0.25f, 4);
  clipping(kNVTEFloat16, true, 1, 1);
  clipping(kNVTEFloat32, false, 1e6f, 1);
  clipping(kNVTEFloat32, false, 0, 1);
  loss_scaling(NVTEX_UPDATE_ADAMW);
  loss_scaling(NVTEX_UPDATE_SGD);
  loss_scaling(NVTEX_UPDATE_MUON);
  passes(false);
  passes(true);
  low_passes(kNVTEBFloat16);
  low_passes(kNVTEFloat16);
  options();
  quantized(NVTEX_RECIPE_CURRENT_SCALING);
  quantized(NVTEX_RECIPE_DELAYED_SCALING);
  quantized(NVTEX_RECIPE_MXFP8);
  delayed_weights();
  errors();
  return test_end();
}
