// Optimizers, norms and scales of many tensors: expected values from double precision, exact where
// the definition rounds once (optim_nvfp4.md, sections 1 to 6).
#include "nvte/multi_tensor.h"

#include "support.h"

enum { MAX_LISTS = 8, MAX_TENSORS = 400 };

// A list of tensors of one dtype: what it holds before the call, and where.
typedef struct List {
  NVTEDType dtype;
  void *before[MAX_TENSORS];
  Buffer *buffers[MAX_TENSORS];
} List;

static struct {
  size_t num_lists, num_tensors, numel[MAX_TENSORS];
  List of[MAX_LISTS];
  NVTETensor handles[MAX_LISTS][MAX_TENSORS], *rows[MAX_LISTS];
} g;

// Sizes with heads and tails of vectors, over several chunks, in several launches.
static size_t some_numel(size_t t, size_t count) {
  static const size_t sizes[] = {1, 7, 555, 33333, 65537, 0, 8, 1024};
  return count > COUNT(sizes) ? 1 + random_below(300) : sizes[t];
}

static void lists_begin(size_t count) {
  g.num_lists = 0;
  g.num_tensors = count;
  for (size_t t = 0; t < count; t++) g.numel[t] = some_numel(t, count);
}

// Half of the tensors are aligned, the others by one element or by another number in each list.
static size_t shift_of(size_t list, size_t t) { return t % 2 == 0 ? 0 : t % 4 == 1 ? 1 : list; }

static List *list_from(NVTEDType dtype, double low, double high, bool single) {
  size_t l = g.num_lists++;
  List *list = &g.of[l];
  list->dtype = dtype;
  g.rows[l] = g.handles[l];
  for (size_t t = 0; t < g.num_tensors; t++) {
    size_t n = single ? 1 : g.numel[t], bytes = n * dtype_size(dtype);
    list->before[t] = dtype == kNVTEInt16 || is_fp8(dtype) ? host_memory(bytes)
                                                           : random_values(dtype, n, low, high);
    size_t shift = shift_of(l, t) * dtype_size(dtype);
    list->buffers[t] = buffer_from(list->before[t], bytes, shift);
    g.handles[l][t] = tensor(list->buffers[t]->ptr, dtype, SHAPE(n));
  }
  return list;
}

static List *list(NVTEDType dtype, double low, double high) {
  return list_from(dtype, low, high, false);
}

// Puts back what was there before the last call.
static void lists_restore(void) {
  for (size_t l = 0; l < g.num_lists; l++) {
    for (size_t t = 0; t < g.num_tensors; t++) {
      Buffer *b = g.of[l].buffers[t];
      upload(b->ptr, g.of[l].before[t], b->bytes);
    }
  }
}

#define LISTS g.rows, g.num_lists, g.num_tensors

static NVTETensor int_tensor(Buffer *b) { return tensor(b->ptr, kNVTEInt32, SHAPE(1)); }
static Buffer *buffer_int(int32_t value) { return buffer_from(&value, sizeof value, 0); }
static int32_t read_int(const Buffer *b) {
  int32_t x;
  download(&x, b->ptr, sizeof x);
  return x;
}

// |got - expected| within `error` and one rounding to the dtype.
static bool near(NVTEDType dtype, const char *name, size_t t, size_t i, const void *data,
                 double expected, double error) {
  Format f = format_of(dtype);
  double got = get_value(dtype, data, i), smallest = ldexp(1, f.min_exponent - f.mantissa);
  double bound = error + fabs(expected) * ldexp(1, -f.mantissa - 1) * 1.001 + smallest;
  return CHECK(fabs(got - expected) <= bound, "%s[%zu] of tensor %zu: got %.9g, expected %.9g",
               name, i, t, got, expected);
}

static void unchanged(const List *list, const char *name) {
  for (size_t t = 0; t < g.num_tensors; t++) {
    Buffer *b = list->buffers[t];
    CHECK(memcmp(buffer_read(b), list->before[t], b->bytes) == 0, "%s of tensor %zu changed", name,
          t);
  }
}

// ---- Adam

typedef struct Adam {
  NVTEDType grad, param, moment;
  bool has_master, capturable, l2, bias_correction;
  int step;
} Adam;

static const double kLr = 0.01f, kBeta1 = 0.9f, kBeta2 = 0.99f, kEpsilon = 1e-6f, kDecay = 0.125f,
                    kInvScale = 0.3f;

static void check_adam(const Adam *a) {
  enum { UNIT = 24 };
  double unit = ldexp(1, -UNIT), b1 = 1, b2 = 1;
  if (a->bias_correction) b1 = 1 - pow(kBeta1, a->step), b2 = 1 - pow(kBeta2, a->step);
  for (size_t t = 0; t < g.num_tensors; t++) {
    const void *after[5];
    for (size_t l = 0; l < g.num_lists; l++) after[l] = buffer_read(g.of[l].buffers[t]);
    const List *source = &g.of[a->has_master ? 4 : 1];
    for (size_t i = 0, bad = 0; i < g.numel[t] && bad < 3; i++) {
      double grad = get_value(a->grad, g.of[0].before[t], i);
      double p = get_value(source->dtype, source->before[t], i);
      double m = get_value(a->moment, g.of[2].before[t], i);
      double v = get_value(a->moment, g.of[3].before[t], i);
      if (a->capturable) grad *= kInvScale;
      bad += !near(a->grad, "g", t, i, after[0], grad, fabs(grad) * unit);
      double g2 = a->l2 ? grad + kDecay * p : grad;
      double old = fabs(kBeta1 * m), new = fabs((1 - kBeta1) * g2);
      double gm = (fabs(grad) + fabs(kDecay * p)) * 8 * unit;
      double m_error = 8 * unit * (old + new) + gm * (1 - kBeta1);
      double v_error = 8 * unit * (v + g2 * g2) + 2 * (1 - kBeta2) * fabs(g2) * gm;
      m = kBeta1 * m + (1 - kBeta1) * g2;
      v = kBeta2 * v + (1 - kBeta2) * g2 * g2;
      bad += !near(a->moment, "m", t, i, after[2], m, m_error);
      bad += !near(a->moment, "v", t, i, after[3], v, v_error);
      double root = sqrt(v / b2), u = m / b1 / (root + kEpsilon);
      double u_error = m_error / b1 / (root + kEpsilon) +
                       fabs(u) * (v_error / (2 * v) + 16 * unit) + fabs(kDecay * p) * 8 * unit;
      if (!a->l2) u += kDecay * p;
      double error = kLr * (u_error + fabs(u) * 8 * unit) + fabs(p) * 4 * unit;
      p -= kLr * u;
      bad += !near(a->param, "p", t, i, after[1], p, error);
      if (a->has_master) bad += !near(kNVTEFloat32, "master", t, i, after[4], p, error);
    }
  }
}

static void run_adam(const Adam *a, size_t count) {
  lists_begin(count);
  list(a->grad, -1, 1);
  list(a->param, -2, 2);
  list(a->moment, -1, 1);
  list(a->moment, 0.01, 1);
  if (a->has_master) list(kNVTEFloat32, -2, 2);
  float lr = (float)kLr, beta1 = (float)kBeta1, beta2 = (float)kBeta2, epsilon = (float)kEpsilon,
        decay = (float)kDecay;
  int mode = !a->l2, bias = a->bias_correction;
  if (!a->capturable) {
    nvte_multi_tensor_adam_cuda(333, NULL, LISTS, lr, beta1, beta2, epsilon, a->step, mode, bias,
                                decay, NULL);
    if (EXPECT_OK()) check_adam(a);
    return;
  }
  Buffer *flag = buffer_int(1);
  NVTETensor noop = int_tensor(flag), rate = float_tensor(buffer_float(lr)),
             step = int_tensor(buffer_int(a->step)),
             inv = float_tensor(buffer_float((float)kInvScale));
  for (int32_t skip = 1; skip >= 0; skip--) {
    upload(flag->ptr, &skip, sizeof skip);
    if (a->has_master) {
      nvte_multi_tensor_adam_capturable_master_cuda(65536, noop, LISTS, rate, beta1, beta2, epsilon,
                                                    step, mode, bias, decay, inv, NULL);
    } else {
      nvte_multi_tensor_adam_capturable_cuda(65536, noop, LISTS, rate, beta1, beta2, epsilon, step,
                                             mode, bias, decay, inv, NULL);
    }
    if (!EXPECT_OK()) return;
    for (size_t l = 0; skip && l < g.num_lists; l++) unchanged(&g.of[l], "a list");
  }
  check_adam(a);
  CHECK_EQ(read_int(flag), 0);
}

static void test_adam(void) {
  const NVTEDType moments[] = {kNVTEFloat32, kNVTEBFloat16};
  for (size_t turn = 0; turn < 72; turn++) {
    Adam a = {.grad = kHighPrecision[turn % 3],
              .param = kHighPrecision[turn / 3 % 3],
              .moment = moments[turn / 9 % 2],
              .has_master = turn / 18 % 2,
              .capturable = turn / 36 % 2,
              .l2 = turn % 2,
              .bias_correction = turn % 5 != 0,
              .step = turn % 7 == 0 ? 1 : 1 + (int)turn * 40};
    size_t count = turn % 17 == 16 ? MAX_TENSORS : 8;
    if (!case_begin("adam, g %s, p %s, moments %s%s%s%s, step %d%s, %zu tensors",
                    dtype_name(a.grad), dtype_name(a.param), dtype_name(a.moment),
                    a.has_master ? ", master" : "", a.capturable ? ", capturable" : "",
                    a.l2 ? ", l2" : "", a.step, a.bias_correction ? "" : " uncorrected", count)) {
      continue;
    }
    run_adam(&a, count);
  }
}

// Bits of the high half that is visible: the master to the nearest, ties away from 0.
static uint16_t high_half(uint32_t master) { return (uint16_t)((master + 0x8000u) >> 16); }

// A step of length 0 keeps every master, to the bit.
static void test_remainder(void) {
  for (int still = 1; still >= 0; still--) {
    if (!case_begin("adam with remainders%s", still ? ", no step" : "")) continue;
    lists_begin(8);
    list(kNVTEBFloat16, -1, 1);
    List *p = list(kNVTEBFloat16, 0, 0);
    list(kNVTEFloat32, -1, 1), list(kNVTEFloat32, 0.01, 1);
    List *low = list(kNVTEInt16, 0, 0);
    for (size_t t = 0; t < g.num_tensors; t++) {
      for (size_t i = 0; i < g.numel[t]; i++) {
        uint32_t master = bits_of((float)random_uniform(-2, 2));
        if (i % 5 == 0) master = (master & ~0xFFFFu) | 0x8000u;
        put_bits(kNVTEInt16, p->before[t], i, high_half(master));
        put_bits(kNVTEInt16, low->before[t], i, master & 0xFFFF);
      }
    }
    lists_restore();
    nvte_multi_tensor_adam_param_remainder_cuda(65536, NULL, LISTS, still ? 0 : (float)kLr,
                                                (float)kBeta1, (float)kBeta2, (float)kEpsilon, 3, 1,
                                                0, (float)kDecay, NULL);
    if (!EXPECT_OK()) continue;
    if (still) {
      unchanged(p, "p"), unchanged(low, "the remainder");
      continue;
    }
    for (size_t t = 0; t < g.num_tensors; t++) {
      const void *high = buffer_read(p->buffers[t]), *rest = buffer_read(low->buffers[t]);
      for (size_t i = 0, bad = 0; i < g.numel[t] && bad < 3; i++) {
        uint32_t r = get_bits(kNVTEInt16, rest, i), h = get_bits(kNVTEBFloat16, high, i);
        uint32_t before = get_bits(kNVTEInt16, p->before[t], i),
                 before_low = get_bits(kNVTEInt16, low->before[t], i);
        double master = (double)float_of((before - (before_low >> 15)) << 16 | before_low);
        double grad = get_value(kNVTEBFloat16, g.of[0].before[t], i);
        double m = get_value(kNVTEFloat32, g.of[2].before[t], i);
        double v = get_value(kNVTEFloat32, g.of[3].before[t], i);
        m = kBeta1 * m + (1 - kBeta1) * grad, v = kBeta2 * v + (1 - kBeta2) * grad * grad;
        double expected = master - kLr * (m / (sqrt(v) + kEpsilon) + kDecay * master);
        float got = float_of((h - (r >> 15)) << 16 | r);
        bad += !CHECK(fabs((double)got - expected) <= 3e-7, "master[%zu]: got %.9g, expected %.9g",
                      i, (double)got, expected);
      }
    }
  }
}

// A step of length 0: the cast of the masters, exactly.
static void test_fp8(void) {
  for (size_t f = 0; f < 2; f++) {
    for (int fields = 1; fields >= 0; fields--) {
      if (!case_begin("adam to %s, %s scales", dtype_name(kFloat8[f]), fields ? "with" : "without"))
        continue;
      NVTEDType dtype = kFloat8[f];
      lists_begin(8);
      list(kNVTEBFloat16, -1, 1);
      List *p = list(dtype, 0, 0);
      List *m = list(kNVTEFloat32, -1, 1);
      list(kNVTEFloat32, 0.01, 1);
      List *master = list(kNVTEFloat32, -600, 600);
      List *scale = list_from(kNVTEFloat32, 0.1, 2, true);
      List *amax = list_from(kNVTEFloat32, 0, 1000, true);
      List *scale_inv = list_from(kNVTEFloat32, -1, -1, true);
      for (size_t t = 0; t < g.num_tensors; t++) {
        if (t % 2)
          set_param(g.handles[1][t], kNVTERowwiseData, p->buffers[t]->ptr, kNVTEByte,
                    SHAPE(g.numel[t]));
        for (size_t l = 5; !fields && l < 8; l++) {
          set_param(g.handles[l][t], kNVTERowwiseData, NULL, kNVTEFloat32, SHAPE(1));
        }
      }
      nvte_multi_tensor_adam_fp8_cuda(65536, NULL, LISTS, 0, (float)kBeta1, (float)kBeta2,
                                      (float)kEpsilon, 1, 1, 1, (float)kDecay, dtype, NULL);
      if (!EXPECT_OK()) continue;
      unchanged(master, "the master"), unchanged(scale, "the scale");
      for (size_t t = 0; t < g.num_tensors; t++) {
        float s = fields ? read_float(scale->buffers[t]) : 1;
        const void *got = buffer_read(p->buffers[t]);
        for (size_t i = 0, bad = 0; i < g.numel[t] && bad < 3; i++) {
          double x = get_value(kNVTEFloat32, master->before[t], i);
          uint32_t expected = encode_bits(dtype, (float)(x * (double)s));
          bad += !CHECK(get_bits(dtype, got, i) == expected, "p[%zu] of tensor %zu, %g * %g", i, t,
                        x, (double)s);
        }
        bool written = fields && g.numel[t] > 0;
        float before = (float)get_value(kNVTEFloat32, amax->before[t], 0);
        float most = amax_of(kNVTEFloat32, master->before[t], g.numel[t]);
        CHECK_FLOAT(read_float(amax->buffers[t]), written ? fmaxf(before, most) : before);
        CHECK_FLOAT(read_float(scale_inv->buffers[t]), written ? 1 / s : -1);
        for (size_t i = 0; i < g.numel[t]; i += 1000) {
          double x = get_value(kNVTEFloat32, m->before[t], i),
                 y = get_value(kNVTEBFloat16, g.of[0].before[t], i);
          near(kNVTEFloat32, "m", t, i, buffer_read(m->buffers[t]), kBeta1 * x + (1 - kBeta1) * y,
               1e-6);
        }
      }
    }
  }
}

// ---- SGD

typedef struct Sgd {
  NVTEDType grad, weight, copy;
  bool has_copy, nesterov, first_run, after;
  double momentum, decay;
} Sgd;

static void check_sgd(const Sgd *s, double scale, double dampening, double lr) {
  double error = 1e-6;
  for (size_t t = 0; t < g.num_tensors; t++) {
    const void *after[4];
    for (size_t l = 0; l < g.num_lists; l++) after[l] = buffer_read(g.of[l].buffers[t]);
    for (size_t i = 0, bad = 0; i < g.numel[t] && bad < 3; i++) {
      double d = get_value(s->grad, g.of[0].before[t], i) * scale;
      double w = get_value(s->weight, g.of[1].before[t], i);
      double b = get_value(s->weight, g.of[2].before[t], i);
      if (!s->after) d += s->decay * w;
      if (s->momentum != 0) {
        b = s->first_run ? d : b * s->momentum + (1 - dampening) * d;
        d = s->nesterov ? d + s->momentum * b : b;
      }
      if (s->after) d += s->decay * w;
      bad += !near(s->weight, "b", t, i, after[2], b, error);
      // The step that is added is rounded, too.
      double step = s->weight == kNVTEFloat32 ? error : fabs(lr * d) / 256 + error;
      w -= lr * d;
      bad += !near(s->weight, "w", t, i, after[1], w, step);
      if (s->has_copy) bad += !near(s->copy, "copy", t, i, after[3], w, step);
    }
  }
  unchanged(&g.of[0], "the gradient");
}

static void test_sgd(void) {
  const NVTEDType kinds[][3] = {
      {kNVTEFloat16, kNVTEFloat16, kNVTEByte},    {kNVTEBFloat16, kNVTEBFloat16, kNVTEByte},
      {kNVTEFloat32, kNVTEFloat32, kNVTEByte},    {kNVTEFloat16, kNVTEFloat32, kNVTEFloat16},
      {kNVTEFloat32, kNVTEFloat32, kNVTEFloat16}, {kNVTEBFloat16, kNVTEFloat32, kNVTEBFloat16}};
  for (size_t turn = 0; turn < 48; turn++) {
    const NVTEDType *kind = kinds[turn % COUNT(kinds)];
    size_t form = turn / COUNT(kinds);
    Sgd s = {.grad = kind[0],
             .weight = kind[1],
             .copy = kind[2],
             .has_copy = kind[2] != kNVTEByte,
             .nesterov = form % 2,
             .first_run = form == 3 || form == 6,
             .after = form / 2 % 2,
             .momentum = form == 4 ? 0 : 0.75,
             .decay = form % 3 == 2 ? 0 : 0.0625};
    if (!case_begin("sgd, %s to %s%s, momentum %g, decay %g%s%s%s", dtype_name(s.grad),
                    dtype_name(s.weight), s.has_copy ? " and a copy" : "", s.momentum, s.decay,
                    s.after ? " after" : "", s.nesterov ? ", nesterov" : "",
                    s.first_run ? ", first run" : "")) {
      continue;
    }
    lists_begin(turn == 20 ? MAX_TENSORS : 8);
    list(s.grad, -1, 1), list(s.weight, -2, 2), list(s.weight, -1, 1);
    if (s.has_copy) list(s.copy, 0, 0);
    Buffer *flag = buffer_int(2);
    for (int32_t skip = 2; skip >= 0; skip -= 2) {
      upload(flag->ptr, &skip, sizeof skip);
      nvte_multi_tensor_sgd_cuda(33333, int_tensor(flag), LISTS, (float)s.decay, (float)s.momentum,
                                 0.25f, 0.125f, s.nesterov, s.first_run, s.after, 0.5f, NULL);
      if (!EXPECT_OK()) break;
      for (size_t l = 0; skip && l < g.num_lists; l++) unchanged(&g.of[l], "a list");
    }
    check_sgd(&s, 0.5, 0.25, 0.125);
  }
}

// ---- Norms

static void test_norm(void) {
  for (size_t turn = 0; turn < 24; turn++) {
    NVTEDType dtype = kHighPrecision[turn % 3];
    bool each = turn / 3 % 2, unscale = turn / 6 % 2;
    const int chunks[] = {65536, 333, 33333};
    int chunk = chunks[turn % 2 + turn / 12];
    size_t count = turn / 12 ? MAX_TENSORS : 8;
    if (!case_begin("norm of %s%s%s, chunks of %d, %zu tensors", dtype_name(dtype),
                    each ? ", each" : "", unscale ? ", unscaled" : "", chunk, count)) {
      continue;
    }
    lists_begin(count);
    List *x = list(dtype, -1, 1);
    double sums[MAX_TENSORS] = {0}, total = 0, factor = unscale ? (double)0.3f : 1;
    size_t most = 0;
    for (size_t t = 0; t < count; t++) {
      for (size_t i = 0; i < g.numel[t]; i++) {
        double v = get_value(dtype, x->before[t], i) * factor;
        sums[t] += v * v;
      }
      total += sums[t];
      size_t n = (g.numel[t] + (size_t)chunk - 1) / (size_t)chunk;
      if (n > most) most = n;
    }
    void *zeros = host_memory(count * most * 4);
    Buffer *flag = buffer_int(0), *output = buffer_from(host_memory(320 * 4), 320 * 4, 0);
    Buffer *parts = buffer_from(zeros, count * most * 4, 0), *ret = buffer(4);
    Buffer *all = buffer(count * 4);
    NVTETensor none = tensor(NULL, kNVTEFloat32, SHAPE(0));
    NVTETensor o = float_tensor(output), op = each ? float_tensor(parts) : none;
    NVTETensor r = float_tensor(ret), rp = each ? float_tensor(all) : none;
    int max_chunks = each ? (int)most : -1;
    if (unscale) {
      nvte_multi_tensor_unscale_l2norm_cuda(chunk, int_tensor(flag), LISTS, o, op, r, rp,
                                            float_tensor(buffer_float(0.3f)), each, max_chunks,
                                            NULL);
    } else {
      nvte_multi_tensor_l2norm_cuda(chunk, int_tensor(flag), LISTS, o, op, r, rp, each, max_chunks,
                                    NULL);
    }
    if (!EXPECT_OK()) continue;
    near(kNVTEFloat32, "ret", 0, 0, buffer_read(ret), sqrt(total), 1e-6 * sqrt(total));
    const void *got = buffer_read(all);
    for (size_t t = 0; each && t < count; t++) {
      near(kNVTEFloat32, "ret_per_tensor", t, t, got, sqrt(sums[t]), 1e-6 * sqrt(sums[t]));
    }
    if (!each) CHECK(untouched(all), "written");
    CHECK_EQ(read_int(flag), 0);
    unchanged(x, "x");
  }
}

// Infinite, not a number, and finite with a square that is not.
static void test_norm_not_finite(void) {
  const float values[] = {(float)INFINITY, (float)NAN, 1e30f};
  for (size_t k = 0; k < COUNT(values); k++) {
    if (!case_begin("norm with a %g", (double)values[k])) continue;
    lists_begin(8);
    List *x = list(kNVTEFloat32, -1, 1);
    put_value(kNVTEFloat32, x->before[3], 30000, (double)values[k]);
    lists_restore();
    Buffer *flag = buffer_int(0), *output = buffer_from(host_memory(320 * 4), 320 * 4, 0);
    Buffer *ret = buffer(4);
    NVTETensor none = tensor(NULL, kNVTEFloat32, SHAPE(0));
    nvte_multi_tensor_l2norm_cuda(65536, int_tensor(flag), LISTS, float_tensor(output), none,
                                  float_tensor(ret), none, 0, -1, NULL);
    if (!EXPECT_OK()) continue;
    CHECK_EQ(read_int(flag), 1);
    float norm = read_float(ret);
    CHECK(isnan(values[k]) ? isnan(norm) : isinf(norm), "%g", (double)norm);
  }
}

// ---- Scale

static void test_scale(void) {
  for (size_t turn = 0; turn < 36; turn++) {
    NVTEDType in = kHighPrecision[turn % 3], out = kHighPrecision[turn / 3 % 3];
    size_t form = turn / 9;
    bool on_device = form % 2, in_place = in == out && form >= 2;
    size_t special = form;  // No special value, NaN, Inf or -Inf.
    if (!case_begin("scale %s to %s%s%s, special %zu", dtype_name(in), dtype_name(out),
                    on_device ? ", on the device" : "", in_place ? ", in place" : "", special)) {
      continue;
    }
    lists_begin(turn == 4 ? MAX_TENSORS : 8);
    // Results may be infinite, which sets no flag.
    List *x = list(in, -60000, 60000), *y = in_place ? x : list(out, 0, 0);
    if (in_place) g.num_lists = 2, g.rows[1] = g.rows[0];
    const double specials[] = {0, (double)NAN, (double)INFINITY, -(double)INFINITY};
    if (special) put_value(in, x->before[4], 40000, specials[special]);
    upload(x->buffers[4]->ptr, x->before[4], x->buffers[4]->bytes);
    Buffer *flag = buffer_int(0);
    const float scale = 1.3f;
    if (on_device) {
      nvte_multi_tensor_scale_tensor_cuda(333, int_tensor(flag), LISTS,
                                          float_tensor(buffer_float(scale)), NULL);
    } else {
      nvte_multi_tensor_scale_cuda(333, int_tensor(flag), LISTS, scale, NULL);
    }
    if (!EXPECT_OK()) continue;
    CHECK_EQ(read_int(flag), special != 0 && g.numel[4] > 40000);
    for (size_t t = 0; t < g.num_tensors; t++) {
      const void *got = buffer_read(y->buffers[t]);
      for (size_t i = 0, bad = 0; i < g.numel[t] && bad < 3; i++) {
        double v = get_value(in, x->before[t], i);
        uint32_t expected = encode_bits(out, (float)(v * (double)scale));
        bad += !CHECK(same_bits(out, get_bits(out, got, i), expected), "y[%zu] of tensor %zu, x %g",
                      i, t, v);
      }
    }
    if (in_place) g.num_lists = 1;
  }
}

// ---- Scales

static void test_scales(void) {
  const float tops[] = {448, 57344}, epsilons[] = {0, 100};
  for (size_t turn = 0; turn < 8; turn++) {
    float top = tops[turn % 2], epsilon = epsilons[turn / 2 % 2];
    bool pow2 = turn / 4;
    if (!case_begin("scales to %g, epsilon %g%s", (double)top, (double)epsilon,
                    pow2 ? ", powers of two" : "")) {
      continue;
    }
    lists_begin(8);
    List *amax = list(kNVTEFloat32, 0, 200), *scale = list(kNVTEFloat32, 0, 0);
    List *inverse = list(kNVTEFloat32, 0, 0);
    const float specials[] = {0,       (float)INFINITY, (float)NAN, FLT_MAX,
                              FLT_MIN, 1e-40f,          448,        1e-36f};
    memcpy(amax->before[3], specials, sizeof specials);
    lists_restore();
    nvte_multi_tensor_compute_scale_and_scale_inv_cuda(65536, NULL, LISTS, top, pow2, epsilon,
                                                       NULL);
    if (!EXPECT_OK()) continue;
    for (size_t t = 0; t < g.num_tensors; t++) {
      const float *x = amax->before[t], *s = buffer_read(scale->buffers[t]);
      const float *r = buffer_read(inverse->buffers[t]);
      for (size_t i = 0; i < g.numel[t]; i++) {
        float a = x[i] < epsilon ? epsilon : x[i], expected = 1;
        if (isfinite(a) && a != 0) {
          expected = top / a;
          if (isinf(expected)) expected = FLT_MAX;
          if (pow2) expected = (float)ldexp(1, ilogb((double)expected));
        }
        if (!CHECK_FLOAT(s[i], expected) || !CHECK_FLOAT(r[i], 1 / expected)) break;
      }
    }
    unchanged(amax, "the amax");
  }
}

// Every bfloat16 that is not negative.
static void test_codes(void) {
  if (!case_begin("e8m0 codes")) return;
  g.num_lists = 2, g.num_tensors = 1;
  enum { N = 32768 };
  uint16_t *amax = host_memory(N * 2);
  for (size_t i = 0; i < N; i++) amax[i] = (uint16_t)i;
  Buffer *in = buffer_from(amax, N * 2, 2), *out = buffer_shifted(N, 1);
  g.rows[0] = g.handles[0], g.rows[1] = g.handles[1];
  g.handles[0][0] = tensor(in->ptr, kNVTEBFloat16, SHAPE(128, 256));
  for (int turn = 0; turn < 2; turn++) {
    g.handles[1][0] = tensor(out->ptr, turn ? kNVTEByte : kNVTEFloat8E8M0, SHAPE(N));
    nvte_multi_tensor_compute_scale_inv_e8m0_cuda(65536, LISTS, NULL);
    if (!EXPECT_OK()) return;
    const unsigned char *codes = buffer_read(out);
    for (size_t i = 0, bad = 0; i < N && bad < 3; i++) {
      float v = (float)decode_bits(kNVTEBFloat16, (uint32_t)i) * (1.0f / 448.0f);
      int expected = 0, exponent;
      if (isnan(v)) {
        expected = 255;
      } else if (isinf(v)) {
        expected = 254;
      } else if (v > 0) {
        // v = f 2^exponent with f in [0.5, 1)
        expected = frexp((double)v, &exponent) == 0.5 ? exponent - 1 : exponent;
        expected = expected < -127 ? 0 : expected + 127;
      }
      bad += !CHECK(codes[i] == expected, "of %g: %d, expected %d", (double)v, codes[i], expected);
    }
  }
}

// ---- Nothing to do, and errors

static void test_empty(void) {
  if (!case_begin("empty")) return;
  Buffer *any = buffer(2048);
  NVTETensor floats = float_tensor(any), flag = int_tensor(any);
  for (size_t count = 0; count < 3; count++) {
    g.num_lists = 4, g.num_tensors = count;
    for (size_t l = 0; l < 4; l++) {
      g.rows[l] = count ? g.handles[l] : NULL;
      for (size_t t = 0; t < count; t++) g.handles[l][t] = tensor(NULL, kNVTEFloat32, SHAPE(0, 3));
    }
    nvte_multi_tensor_adam_cuda(1, NULL, LISTS, 1, 0, 0, 1, 1, 0, 1, 0, NULL);
    EXPECT_OK();
    nvte_multi_tensor_sgd_cuda(1, flag, g.rows, 3, count, 0, 0, 0, 1, 0, 0, 0, 1, NULL);
    EXPECT_OK();
    nvte_multi_tensor_scale_cuda(1, flag, g.rows, 2, count, 1, NULL);
    EXPECT_OK();
    nvte_multi_tensor_compute_scale_and_scale_inv_cuda(1, NULL, g.rows, 3, count, 448, 0, 0, NULL);
    EXPECT_OK();
    CHECK(untouched(any), "written");
    Buffer *ret = buffer(4), *each = buffer(count * 4), *zero = buffer_int(0);
    nvte_multi_tensor_l2norm_cuda(1, int_tensor(zero), g.rows, 1, count, floats, floats,
                                  float_tensor(ret), float_tensor(each), 1, 0, NULL);
    EXPECT_OK();
    CHECK_FLOAT(read_float(ret), 0);
    CHECK(all_bytes(each, 0), "a norm of nothing that is not 0");
    CHECK_EQ(read_int(zero), 0);
    any = buffer(2048), floats = float_tensor(any), flag = int_tensor(any);
  }
}

static void test_errors(void) {
  if (!case_begin("wrong arguments")) return;
  const char *const adam = "nvte_multi_tensor_adam_cuda";
  Buffer *any = buffer(4096);
  const NVTEDType f32 = kNVTEFloat32;
  NVTETensor x = tensor(any->ptr, f32, SHAPE(8, 16)), y = tensor(any->ptr, f32, SHAPE(127));
  NVTETensor half = tensor(any->ptr, kNVTEFloat16, SHAPE(128)), flag = int_tensor(any);
  NVTETensor bytes = tensor(any->ptr, kNVTEByte, SHAPE(128)), floats = float_tensor(any);
  NVTETensor row[2] = {x, x}, mixed[2] = {x, half}, shorter[2] = {x, y}, stale[2] = {x, NULL};
  NVTETensor halves[2] = {half, half}, integers[2] = {bytes, bytes};
#define ADAM(chunk, count, tensors, step, ...)                                                     \
  nvte_multi_tensor_adam_cuda(chunk, NULL, (NVTETensor *[]){__VA_ARGS__}, count, tensors, 1, 0, 0, \
                              1, step, 0, 1, 0, NULL)
  ADAM(0, 4, 2, 1, row, row, row, row);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, adam, ": chunk_size", "at least 1", "got 0");
  ADAM(1, 3, 2, 1, row, row, row);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, adam, ": num_tensor_lists", "4 or 5", "got 3");
  ADAM(1, 4, 2, 0, row, row, row, row);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, adam, ": step", "at least 1", "got 0");
  ADAM(1, 4, 2, 1, row, NULL, row, row);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, adam, ": tensor_lists[1]", "an array of 2", "got null");
  nvte_multi_tensor_adam_cuda(1, NULL, NULL, 4, 2, 1, 0, 0, 1, 1, 0, 1, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, adam, ": tensor_lists", "an array of 4", "got null");
  ADAM(1, 4, 2, 1, row, row, stale, row);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, adam, ": tensor_lists[2][1]", "expected", "got");
  ADAM(1, 4, 2, 1, row, shorter, row, row);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, adam, ": tensor_lists[1][1].shape", "128 elements", "[127]");
  ADAM(1, 4, 2, 1, row, mixed, row, row);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, adam, ": tensor_lists[1][1].dtype", "Float32", "Float16");
  ADAM(1, 4, 2, 1, row, row, halves, halves);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, adam, ": tensor_lists[2][0].dtype", "BFloat16", "Float16");
  ADAM(1, 5, 2, 1, row, row, row, row, halves);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, adam, ": tensor_lists[4][0].dtype", "expected Float32");
  ADAM(1, 4, 2, 1, row, integers, row, row);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, adam, ": tensor_lists[1][0].dtype", "got Byte");
  nvte_multi_tensor_adam_fp8_cuda(1, NULL, (NVTETensor *[]){row, row, row, row, row, row, row, row},
                                  8, 2, 1, 0, 0, 1, 1, 0, 1, 0, kNVTEBFloat16, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_tensor_adam_fp8_cuda", ": fp8_dtype", "Float8");
  nvte_multi_tensor_adam_param_remainder_cuda(1, NULL, (NVTETensor *[]){row, row, row, row, row}, 5,
                                              2, 1, 0, 0, 1, 1, 0, 1, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_tensor_adam_param_remainder_cuda",
               ": tensor_lists[1][0].dtype", "expected BFloat16");
  NVTETensor *two[] = {row, row};
  nvte_multi_tensor_adam_capturable_cuda(1, flag, (NVTETensor *[]){row, row, row, row}, 4, 2, y, 0,
                                         0, 1, y, 0, 1, 0, y, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_tensor_adam_capturable_cuda", ": step.dtype",
               "expected Int32");
  nvte_multi_tensor_sgd_cuda(1, NULL, (NVTETensor *[]){row, row, row}, 3, 2, 0, 0, 0, 1, 0, 0, 0, 1,
                             NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_tensor_sgd_cuda", ": noop_flag", "expected");
  nvte_multi_tensor_sgd_cuda(1, flag, (NVTETensor *[]){row, halves, row}, 3, 2, 0, 0, 0, 1, 0, 0, 0,
                             1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_tensor_sgd_cuda", ": tensor_lists[1][0].dtype",
               "expected Float32");
  nvte_multi_tensor_scale_cuda(1, x, two, 2, 2, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_tensor_scale_cuda", ": is_infinite.dtype",
               "expected Int32");
  nvte_multi_tensor_scale_tensor_cuda(1, flag, two, 2, 2, half, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_tensor_scale_tensor_cuda", ": scale.dtype",
               "expected Float32");
  const char *const norm = "nvte_multi_tensor_l2norm_cuda";
  nvte_multi_tensor_l2norm_cuda(1, flag, two, 1, 2, x, x, x, x, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, norm, ": output.shape", "320", "[8, 16]");
  nvte_multi_tensor_l2norm_cuda(100, flag, two, 1, 2, floats, x, x, x, 1, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, norm, ": max_chunks_per_tensor", "2", "got 1");
  nvte_multi_tensor_l2norm_cuda(1, flag, two, 1, 2, floats, x, x, x, 1, 128, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, norm, ": output_per_tensor.shape", "256", "[8, 16]");
  nvte_multi_tensor_unscale_l2norm_cuda(1, flag, two, 1, 2, floats, x, x, x, NULL, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_tensor_unscale_l2norm_cuda", ": inv_scale");
  nvte_multi_tensor_compute_scale_inv_e8m0_cuda(1, two, 2, 2, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_tensor_compute_scale_inv_e8m0_cuda",
               ": tensor_lists[0][0].dtype", "expected BFloat16");
  CHECK(untouched(any), "written");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_adam();
  test_remainder();
  test_fp8();
  test_sgd();
  test_norm();
  test_norm_not_finite();
  test_scale();
  test_scales();
  test_codes();
  test_empty();
  test_errors();
  return test_end();
}
