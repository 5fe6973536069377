// The router of a mixture of experts against float64: the choice by repeated search, gradients by
// whole Jacobians (moe_layout.md, sections 2 to 7).
#include "nvte/fused_router.h"

#include "support.h"

enum { SIGMOID, SOFTMAX, SQRTSOFTPLUS };
typedef enum Form { BYTES, BITS, INDEX16, INDEX32, INDEX64 } Form;
static const char *const kFormNames[] = {"bytes", "bits", "int16", "int32", "int64"};
static const char *const kScoreNames[] = {"sigmoid", "softmax", "sqrtsoftplus"};

typedef struct Router {
  NVTEDType dtype, bias_dtype;
  int tokens, experts, topk, pre, groups, group_topk, score;
  float scale;
  bool bias, balanced, all;
  Form form;
  size_t shift;  // Elements that pointers are past an aligned address.
  // These fields are filled in by run_forward.
  double *x, *b;
  void *logits_host, *map_host;
  Buffer *logits, *bias_buffer, *probs, *map, *intermediate, *cutoff, *histogram, *bounds;
  NVTETensor map_tensor, intermediate_tensor;
} Router;

static NVTEDType index_dtype(Form form) {
  return form == INDEX16 ? kNVTEInt16 : form == INDEX32 ? kNVTEInt32 : kNVTEInt64;
}

static size_t map_bytes(const Router *r) {
  size_t t = (size_t)r->tokens, e = (size_t)r->experts, k = (size_t)r->topk;
  if (r->form == BYTES) return t * e;
  if (r->form == BITS) return t * ((e + 7) / 8);
  return t * k * dtype_size(index_dtype(r->form));
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static double score(int function, double x) {
  return function == SIGMOID ? sigmoid(x) : function == SOFTMAX ? x : sqrt(softplus(x));
}
static double slope(int function, double x) {
  double s = score(function, x);
  return function == SIGMOID ? s * (1 - s) : sigmoid(x) / (2 * s);
}

static void softmax(const double *x, const bool *in, double *p, int n) {
  double most = -INFINITY, sum = 0;
  for (int i = 0; i < n; i++) most = in[i] && x[i] > most ? x[i] : most;
  for (int i = 0; i < n; i++) sum += in[i] ? exp(x[i] - most) : 0;
  for (int i = 0; i < n; i++) p[i] = in[i] ? exp(x[i] - most) / sum : 0;
}

// The best `count` among those that are `in`, in order; equal ones go to the lower index. `*gap`:
// how near two decisions from the one after `first` on were, as a part of the scores.
static void search(const double *score, const bool *in, int n, int count, int first, int *found,
                   double *gap) {
  bool *left = malloc((size_t)n * sizeof *left);
  memcpy(left, in, (size_t)n * sizeof *left);
  double last = INFINITY;
  for (int k = 0; k <= count && k <= n; k++) {
    int best = -1;
    for (int i = 0; i < n; i++) {
      if (left[i] && (best < 0 || score[i] > score[best])) best = i;
    }
    if (best < 0) break;
    if (k > 0 && k >= first && last != score[best]) {
      *gap = fmin(*gap, (last - score[best]) / fmax(fabs(last), fabs(score[best])));
    }
    last = score[best];
    left[best] = false;
    if (k < count) found[k] = best;
  }
  free(left);
}

static uint64_t read_map_index(const Router *r, size_t at) {
  NVTEDType dtype = index_dtype(r->form);
  uint64_t value = 0;
  memcpy(&value, (const char *)r->map_host + at * dtype_size(dtype), dtype_size(dtype));
  return value;
}

static NVTETensor optional(bool there, Buffer *b, NVTEDType dtype, NVTEShape shape) {
  return there ? tensor(b->ptr, dtype, shape) : empty_tensor();
}

static void build(Router *r) {
  size_t t = (size_t)r->tokens, e = (size_t)r->experts, n = t * e, size = dtype_size(r->dtype);
  r->logits_host = random_values(r->dtype, n, -4, 4);
  r->x = host_memory(n * sizeof *r->x);
  for (size_t i = 0; i < n; i++) r->x[i] = get_value(r->dtype, r->logits_host, i);
  void *bias = random_values(r->bias_dtype, e, -0.3, 0.3);
  r->b = host_memory(e * sizeof *r->b);
  for (size_t i = 0; i < e && r->bias && r->score != SOFTMAX; i++) {
    r->b[i] = get_value(r->bias_dtype, bias, i);
  }
  r->logits = buffer_from(r->logits_host, n * size, r->shift * size);
  r->bias_buffer = buffer_from(bias, e * dtype_size(r->bias_dtype), 0);
  r->probs = buffer_shifted(n * (r->all ? 4 : size), r->shift * (r->all ? 4 : size));
  r->intermediate = buffer_shifted(n * 4, r->shift * 4);
  size_t map_shift = r->form >= INDEX16 ? dtype_size(index_dtype(r->form)) : 1;
  r->map = buffer_shifted(map_bytes(r), r->shift * map_shift);
  NVTEShape shape = SHAPE(t, e);
  r->intermediate_tensor = tensor(r->intermediate->ptr, kNVTEFloat32, shape);
  r->map_tensor = r->form == BYTES ? tensor(r->map->ptr, kNVTEByte, shape)
                  : r->form == BITS
                      ? tensor(r->map->ptr, kNVTEByte, SHAPE(t, (e + 7) / 8))
                      : tensor(r->map->ptr, index_dtype(r->form), SHAPE(t, (size_t)r->topk));
}

enum { BINS = 50 };

static void call_forward(Router *r) {
  size_t t = (size_t)r->tokens, e = (size_t)r->experts;
  NVTEShape shape = SHAPE(t, e);
  NVTETensor logits = tensor(r->logits->ptr, r->dtype, shape);
  NVTETensor probs = tensor(r->probs->ptr, r->all ? kNVTEFloat32 : r->dtype, shape);
  NVTETensor bias = optional(r->bias, r->bias_buffer, r->bias_dtype, SHAPE(e));
  NVTERoutingMapFormat format =
      r->form == BITS ? NVTE_ROUTING_MAP_FORMAT_BITMAP_U8 : NVTE_ROUTING_MAP_FORMAT_BYTEMAP;
  if (r->all) {
    nvte_fused_score_for_moe_aux_loss_forward_v2(logits, r->tokens, r->experts, r->topk, r->score,
                                                 probs, r->map_tensor, format,
                                                 r->intermediate_tensor, NULL);
  } else if (r->balanced) {
    const float limits[] = {-1.5f, 1.25f};
    int *zeros = host_memory(e * BINS * 4);
    r->cutoff = buffer(t * 4);
    r->histogram = buffer_from(zeros, e * BINS * 4, 0);
    r->bounds = buffer_from(limits, sizeof limits, 0);
    NVTETensor cutoff = tensor(r->cutoff->ptr, kNVTEFloat32, SHAPE(t));
    NVTETensor histogram = tensor(r->histogram->ptr, kNVTEInt32, SHAPE(e, BINS));
    NVTETensor bounds = tensor(r->bounds->ptr, kNVTEFloat32, SHAPE(2));
    if (r->form >= INDEX16) {
      nvte_fused_topk_with_score_function_forward_qb_with_indices(
          logits, r->tokens, r->experts, r->topk, r->scale, bias, probs, r->map_tensor,
          r->intermediate_tensor, cutoff, histogram, bounds, NVTE_QB_HISTOGRAM_FUSED_ATOMIC, NULL);
    } else {
      nvte_fused_topk_with_score_function_forward_qb_v2(
          logits, r->tokens, r->experts, r->topk, r->scale, bias, probs, r->map_tensor, format,
          r->intermediate_tensor, cutoff, histogram, bounds, NVTE_QB_HISTOGRAM_FUSED_ATOMIC, NULL);
    }
  } else if (r->form >= INDEX16) {
    nvte_fused_topk_with_score_function_forward_with_indices(
        logits, r->tokens, r->experts, r->topk, r->pre, r->groups, r->group_topk, r->scale,
        r->score, bias, probs, r->map_tensor, r->intermediate_tensor, NULL);
  } else {
    nvte_fused_topk_with_score_function_forward_v2(
        logits, r->tokens, r->experts, r->topk, r->pre, r->groups, r->group_topk, r->scale,
        r->score, bias, probs, r->map_tensor, format, r->intermediate_tensor, NULL);
  }
}

static bool near(NVTEDType dtype, double got, double want) {
  if (isnan(want) || isinf(want)) return same_float((float)got, (float)want);
  double relative = dtype == kNVTEFloat32 ? 6e-6 : dtype == kNVTEFloat16 ? 1.2e-3 : 9e-3;
  return fabs(got - want) <= relative * fabs(want) + (dtype == kNVTEFloat32 ? 1e-6 : 3e-6);
}

// Computes which experts the router had to choose for a token, in order; false if float32 may
// decide otherwise.
static bool expected_choice(const Router *r, const double *s, int count, int *chosen) {
  int n = r->experts;
  bool *in = malloc((size_t)n * sizeof *in);
  double gap = INFINITY;
  for (int i = 0; i < n; i++) in[i] = true;
  if (r->group_topk > 0) {
    int width = n / r->groups, of_each = r->topk / r->group_topk;
    double *sums = malloc((size_t)r->groups * sizeof *sums);
    int *found = malloc((size_t)n * sizeof *found);
    for (int g = 0; g < r->groups; g++) {
      double ignored = INFINITY;
      search(s + g * width, in, width, of_each, of_each, found, &ignored);
      sums[g] = 0;
      for (int i = 0; i < of_each; i++) sums[g] += s[g * width + found[i]];
    }
    search(sums, in, r->groups, r->group_topk, r->group_topk, found, &gap);
    for (int i = 0; i < n; i++) in[i] = false;
    for (int g = 0; g < r->group_topk; g++) {
      for (int i = 0; i < width; i++) in[found[g] * width + i] = true;
    }
    free(sums);
    free(found);
  }
  search(s, in, n, count, r->form >= INDEX16 ? 1 : r->topk, chosen, &gap);
  free(in);
  // A sum with a bias may be small beside its error.
  return gap > (r->bias ? 1e-5 : 1e-6);
}

static bool in_map(const Router *r, size_t token, int e) {
  const unsigned char *map = r->map_host;
  size_t n = (size_t)r->experts;
  if (r->form == BYTES) return map[token * n + (size_t)e] == 1;
  return map[token * ((n + 7) / 8) + (size_t)e / 8] >> (e % 8) & 1;
}

static void check_histogram(const Router *r, const float *scores) {
  const float *cutoff = buffer_read(r->cutoff), *limits = buffer_read(r->bounds);
  const int *got = buffer_read(r->histogram);
  size_t e = (size_t)r->experts, bad = 0;
  int *want = host_memory(e * BINS * 4);
  float scale = (float)BINS / (limits[1] - limits[0]);
  for (size_t t = 0; t < (size_t)r->tokens; t++) {
    for (size_t i = 0; i < e; i++) {
      float distance = cutoff[t] - scores[t * e + i];
      distance = distance - limits[0];
      distance = floorf(distance * scale);
      int bin = distance < 0 ? 0 : distance > BINS - 1 ? BINS - 1 : (int)distance;
      want[i * BINS + (size_t)bin]++;
    }
  }
  for (size_t i = 0; i < e * BINS && bad < 3; i++) {
    bad += !CHECK(got[i] == want[i], "histogram of expert %zu, bin %zu: got %d, expected %d",
                  i / BINS, i % BINS, got[i], want[i]);
  }
}

// Checks a forward pass; false if there is nothing to check.
static bool check_forward(Router *r) {
  if (!EXPECT_OK()) return false;
  int n = r->experts, k = r->topk;
  size_t bad = 0, unclear = 0, row_bytes = (size_t)n;
  const void *probs = buffer_read(r->probs);
  const float *middle = buffer_read(r->intermediate);
  const float *cutoff = r->balanced ? buffer_read(r->cutoff) : NULL;
  r->map_host = buffer_read(r->map);
  NVTEDType out = r->all ? kNVTEFloat32 : r->dtype;
  double *s = host_memory(row_bytes * sizeof *s), *p = host_memory(row_bytes * sizeof *p);
  double *biased = host_memory(row_bytes * sizeof *biased);
  bool *in = host_memory(row_bytes), *all = host_memory(row_bytes);
  int *chosen = host_memory(((size_t)k + 1) * sizeof *chosen);
  for (int i = 0; i < n; i++) all[i] = true;
  bool whole = r->score == SOFTMAX && (r->pre || r->all);
  for (size_t t = 0; t < (size_t)r->tokens && bad < 3; t++) {
    const double *x = r->x + t * row_bytes;
    double sum = 0;
    for (int i = 0; i < n; i++) sum += s[i] = score(r->score, x[i]);
    if (whole) softmax(x, all, s, n);
    if (r->all && r->score != SOFTMAX) {
      for (int i = 0; i < n; i++) s[i] /= sum;
    }
    for (int i = 0; i < n; i++) biased[i] = s[i] + r->b[i];
    if (!expected_choice(r, biased, k + r->balanced, chosen)) {
      // The choice is unclear, so the map is taken as it is; its consequences are checked.
      unclear++;
      int found = 0;
      for (int e = 0; e < n && r->form < INDEX16; e++) {
        if (in_map(r, t, e) && found < k) chosen[found++] = e;
      }
      for (int i = 0; i < k && r->form >= INDEX16; i++) {
        chosen[i] = (int)read_map_index(r, t * (size_t)k + (size_t)i);
        if (chosen[i] < 0 || chosen[i] >= n) chosen[i] = 0;
      }
    } else if (r->balanced) {
      double want = biased[chosen[k]];
      bad += !CHECK(near(kNVTEFloat32, (double)cutoff[t], want), "cutoff[%zu]: got %g, expected %g",
                    t, (double)cutoff[t], want);
    }
    memset(in, 0, row_bytes);
    for (int i = 0; i < k; i++) in[chosen[i]] = true;
    for (int i = 0; i < k && r->form >= INDEX16; i++) {
      uint64_t got = read_map_index(r, t * (size_t)k + (size_t)i);
      bad += !CHECK(got == (uint64_t)chosen[i], "index %d of token %zu: got %llu, expected %d", i,
                    t, (unsigned long long)got, chosen[i]);
    }
    for (int e = 0; e < n && r->form < INDEX16 && bad < 3; e++) {
      bad +=
          !CHECK(in_map(r, t, e) == in[e], "map of token %zu, expert %d: expected %d", t, e, in[e]);
    }
    for (int e = n; e < (n + 7) / 8 * 8 && r->form == BITS; e++) {
      bad +=
          !CHECK(!in_map(r, t, e), "bit %d of token %zu is set, but there is no such expert", e, t);
    }
    double chosen_sum = 0;
    for (int e = 0; e < n; e++) chosen_sum += in[e] ? s[e] : 0;
    bool late = r->score == SOFTMAX && !whole;
    if (late) softmax(x, in, p, n);
    for (int e = 0; e < n && bad < 3; e++) {
      size_t at = t * row_bytes + (size_t)e;
      double want = r->all ? s[e] : late || !in[e] ? p[e] : s[e];
      if (!r->all && !late && r->score != SOFTMAX && k > 1) want /= chosen_sum;
      if (!r->all) want = in[e] ? want * (double)r->scale : 0;
      double got = get_value(out, probs, at);
      bad += !CHECK(near(out, got, want) && (r->all || in[e] || got == 0),
                    "probs[%zu, %d]: got %g, expected %g", t, e, got, want);
      want = r->score == SQRTSOFTPLUS ? x[e]
             : r->score == SIGMOID    ? sigmoid(x[e])
             : late                   ? in[e] ? p[e] : (double)-INFINITY
                                      : s[e];
      bad += !CHECK(near(kNVTEFloat32, (double)middle[at], want),
                    "intermediate[%zu, %d]: got %g, expected %g", t, e, (double)middle[at], want);
    }
  }
  CHECK(unclear * 4 <= (size_t)r->tokens + 8, "%zu of %d tokens are no test", unclear, r->tokens);
  if (r->balanced) check_histogram(r, middle);
  return true;
}

static void check_backward(Router *r) {
  size_t t_count = (size_t)r->tokens, n = (size_t)r->experts, bad = 0;
  NVTEDType in_dtype = r->all ? kNVTEFloat32 : r->dtype;
  size_t in_size = dtype_size(in_dtype), size = dtype_size(r->dtype);
  void *grads = random_values(in_dtype, t_count * n, -2, 2);
  NVTEShape shape = SHAPE(t_count, n);
  Buffer *grad = buffer_from(grads, t_count * n * in_size, r->shift * in_size);
  Buffer *output = buffer_shifted(t_count * n * size, r->shift * size);
  NVTETensor grad_tensor = tensor(grad->ptr, in_dtype, shape);
  NVTETensor output_tensor = tensor(output->ptr, r->dtype, shape);
  NVTERoutingMapFormat format =
      r->form == BITS ? NVTE_ROUTING_MAP_FORMAT_BITMAP_U8 : NVTE_ROUTING_MAP_FORMAT_BYTEMAP;
  if (r->all) {
    nvte_fused_score_for_moe_aux_loss_backward(r->intermediate_tensor, grad_tensor, r->tokens,
                                               r->experts, r->topk, r->score, output_tensor, NULL);
  } else if (r->form >= INDEX16) {
    nvte_fused_topk_with_score_function_backward_with_indices(
        r->map_tensor, r->intermediate_tensor, grad_tensor, r->tokens, r->experts, r->topk, r->pre,
        r->scale, r->score, output_tensor, NULL);
  } else {
    nvte_fused_topk_with_score_function_backward_v2(
        r->map_tensor, format, r->intermediate_tensor, grad_tensor, r->tokens, r->experts, r->topk,
        r->pre, r->scale, r->score, output_tensor, NULL);
  }
  if (!EXPECT_OK()) return;
  const void *got = buffer_read(output);
  double *s = host_memory(n * sizeof *s), *g = host_memory(n * sizeof *g);
  bool *in = host_memory(n), *all = host_memory(n);
  memset(all, 1, n);
  bool whole = r->score == SOFTMAX && (r->pre || r->all);
  for (size_t t = 0; t < t_count && bad < 3; t++) {
    const double *x = r->x + t * n;
    memset(in, r->all, n);
    for (int i = 0; i < r->topk && r->form >= INDEX16 && !r->all; i++) {
      in[read_map_index(r, t * (size_t)r->topk + (size_t)i)] = true;
    }
    for (size_t e = 0; e < n && r->form < INDEX16 && !r->all; e++) in[e] = in_map(r, t, (int)e);
    double sum = 0, dot = 0, largest = 0;
    if (r->score == SOFTMAX) softmax(x, whole ? all : in, s, (int)n);
    for (size_t e = 0; e < n; e++) {
      if (r->score != SOFTMAX) s[e] = score(r->score, x[e]);
      g[e] = in[e] ? get_value(in_dtype, grads, t * n + e) * (double)r->scale : 0;
      sum += in[e] ? s[e] : 0;
      largest = fmax(largest, fabs(g[e]));
    }
    bool normal = r->score != SOFTMAX && (r->all || r->topk > 1);
    for (size_t e = 0; e < n; e++) dot += g[e] * s[e];
    for (size_t j = 0; j < n && bad < 3; j++) {
      // dL/dx_j = sum_i g_i dp_i/dx_j
      double want = 0;
      if (r->score == SOFTMAX) {
        want = whole || in[j] ? s[j] * (g[j] - dot) : 0;
      } else if (in[j]) {
        // p_i = s_i / sum: dp_i/ds_j = [i = j] / sum - s_i / sum^2
        double of_score = normal ? g[j] / sum - dot / sum / sum : g[j];
        want = of_score * slope(r->score, x[j]);
      }
      double value = get_value(r->dtype, got, t * n + j);
      // Differences of large numbers lose digits.
      bool ok = near(r->dtype, value, want) || (fabs(value - want) <= 2e-6 * (1 + largest));
      bool zero = !whole && !in[j];
      bad += !CHECK(ok && (!zero || value == 0), "grad_logits[%zu, %zu]: got %g, expected %g", t, j,
                    value, want);
    }
  }
}

static void check(Router r) {
  if (!case_begin("%s %s%s %s E%d T%d K%d groups %d/%d %s%s%s scale %g shift %zu",
                  r.all        ? "scores"
                  : r.balanced ? "balanced"
                               : "topk",
                  kScoreNames[r.score], r.pre ? " pre" : "", dtype_name(r.dtype), r.experts,
                  r.tokens, r.topk, r.groups, r.group_topk, kFormNames[r.form],
                  r.bias ? " bias " : "", r.bias ? dtype_name(r.bias_dtype) : "", (double)r.scale,
                  r.shift)) {
    return;
  }
  build(&r);
  call_forward(&r);
  if (check_forward(&r)) check_backward(&r);
}

static const int kExperts[][2] = {{1, 1},    {2, 1},    {7, 7},    {8, 2},     {31, 3},   {32, 32},
                                  {33, 4},   {64, 6},   {100, 8},  {128, 8},   {128, 64}, {130, 9},
                                  {160, 6},  {250, 8},  {256, 8},  {256, 1},   {384, 8},  {511, 10},
                                  {512, 16}, {896, 8},  {1000, 5}, {1024, 32}, {300, 65}, {1030, 8},
                                  {2048, 9}, {130, 130}};

static void test_all(void) {
  const Router plain = {.dtype = kNVTEFloat32, .bias_dtype = kNVTEFloat32, .tokens = 9, .scale = 1};
  for (size_t i = 0; i < COUNT(kExperts); i++) {
    for (int score = 0; score < 3; score++) {
      for (size_t d = 0; d < 3; d++) {
        Router r = plain;
        r.experts = kExperts[i][0];
        r.topk = kExperts[i][1];
        r.score = score;
        r.dtype = kHighPrecision[d];
        r.form = (Form)((i + (size_t)score + d) % 5);
        r.scale = i % 3 ? 1.0f : 2.5f;
        check(r);
        r.pre = score == SOFTMAX;
        r.bias = score != SOFTMAX;
        r.bias_dtype = kHighPrecision[(i + d) % 3];
        r.form = (Form)((r.form + 1) % 5);
        r.shift = i % 2;
        check(r);
        r.bias = false;
        r.pre = 0;
        r.scale = 1;
        r.all = true;
        r.form = (Form)((i + d) % 2);
        check(r);
        r.all = false;
        if (score != SIGMOID || r.topk == r.experts) continue;
        r.balanced = r.bias = true;
        r.bias_dtype = kNVTEFloat32;
        r.form = (Form)((i + d) % 5);
        check(r);
      }
    }
  }
}

static void test_groups(void) {
  const int cases[][4] = {{32, 8, 8, 4},    {128, 8, 8, 4},   {256, 8, 8, 4},  {1024, 32, 8, 4},
                          {160, 6, 8, 3},   {64, 2, 64, 2},   {64, 12, 4, 2},  {512, 4, 128, 4},
                          {1024, 8, 4, 2},  {2048, 16, 8, 4}, {30, 6, 5, 3},   {96, 96, 3, 3},
                          {256, 16, 16, 2}, {1024, 4, 8, 1},  {1200, 80, 6, 4}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    for (int score = 0; score < 3; score++) {
      Router r = {.dtype = kHighPrecision[i % 3],
                  .bias_dtype = kNVTEFloat32,
                  .tokens = 17,
                  .experts = cases[i][0],
                  .topk = cases[i][1],
                  .groups = cases[i][2],
                  .group_topk = cases[i][3],
                  .score = score,
                  .pre = i % 2 == 0,
                  .bias = true,
                  .scale = 1.5f,
                  .form = (Form)((i + (size_t)score) % 5)};
      check(r);
    }
  }
}

// There are so many tokens that blocks take several.
static void test_many(void) {
  Router r = {.dtype = kNVTEBFloat16,
              .bias_dtype = kNVTEFloat32,
              .tokens = 20011,
              .experts = 20,
              .topk = 3,
              .scale = 1,
              .bias = true,
              .form = BYTES};
  check(r);
  r.experts = 6;
  r.form = INDEX32;
  check(r);
  r.balanced = true;
  check(r);
}

// There are so many experts that a token's keys do not fit shared memory.
static void test_huge(void) {
  Router r = {.dtype = kNVTEFloat32,
              .bias_dtype = kNVTEFloat32,
              .tokens = 2,
              .experts = 50000,
              .topk = 5,
              .scale = 1,
              .score = SIGMOID,
              .form = INDEX32};
  check(r);
  r.score = SOFTMAX;
  r.groups = 25;
  r.group_topk = 5;
  r.form = BITS;
  check(r);
}

// Equal scores: the lower index; and what cannot be compared.
static void test_order(void) {
  const int experts[] = {5, 32, 64, 130, 256, 1000, 1024, 1500};
  for (size_t i = 0; i < COUNT(experts); i++) {
    for (int kind = 0; kind < 7; kind++) {
      if (!case_begin("order %d of %d", kind, experts[i])) continue;
      enum { K = 3 };
      Router r = {.dtype = kNVTEFloat32,
                  .bias_dtype = kNVTEFloat32,
                  .tokens = 1,
                  .experts = experts[i],
                  .topk = K,
                  .scale = 1,
                  .score = SOFTMAX,
                  .form = INDEX32};
      build(&r);
      float *x = r.logits_host;
      int want[K] = {0, 1, 2}, n = experts[i];
      for (int e = 0; e < n; e++) x[e] = kind == 0 ? 0.5f : kind == 1 ? -INFINITY : NAN;
      if (kind == 1) {  // Infinities are equal, too.
        x[n - 2] = -3;
        want[0] = n - 2, want[1] = 0, want[2] = 1;
      } else if (kind == 2) {  // A number goes before NaN, even -Inf.
        x[n - 1] = -INFINITY;
        x[3] = 0.0f, x[1] = -0.0f;
        want[0] = 1, want[1] = 3, want[2] = n - 1;
      } else if (kind == 3) {
        for (int e = 0; e < n; e++) x[e] = e % 2 ? 2 : 1;
        want[0] = 1, want[1] = n > 5 ? 3 : 3, want[2] = n > 5 ? 5 : 0;
      } else if (kind > 3) {
        for (int e = 0; e < n; e++) x[e] = -1;
        if (kind == 4) {  // Neighbours that are equal.
          x[2] = x[3] = 1, x[n - 1] = 2;
          want[0] = n - 1, want[1] = 2, want[2] = 3;
        } else if (kind == 5) {  // Neighbours with one between them.
          x[0] = 1, x[1] = 3, x[n - 1] = 2;
          want[0] = 1, want[1] = n - 1, want[2] = 0;
        } else {  // Three neighbours.
          x[1] = 1, x[2] = 3, x[3] = 2;
          want[0] = 2, want[1] = 3, want[2] = 1;
        }
      }
      upload(r.logits->ptr, x, (size_t)n * 4);
      call_forward(&r);
      if (!EXPECT_OK()) continue;
      const int *got = buffer_read(r.map);
      const float *p = buffer_read(r.probs);
      CHECK(memcmp(got, want, sizeof want) == 0, "got %d, %d, %d, expected %d, %d, %d", got[0],
            got[1], got[2], want[0], want[1], want[2]);
      if (kind == 1) {
        CHECK_FLOAT(p[n - 2], 1);
        CHECK_FLOAT(p[0], 0);
        r.pre = 1;
        call_forward(&r);
        EXPECT_OK();
        p = buffer_read(r.probs);
        CHECK_FLOAT(p[n - 2], 1);
        CHECK_FLOAT(p[0], 0);
      }
    }
  }
}

// Three equal best scores and K = 2: the last is dropped, and its score is the cutoff.
static void test_balanced_tie(void) {
  if (!case_begin("a tie at the cutoff")) return;
  Router r = {.dtype = kNVTEFloat32,
              .bias_dtype = kNVTEFloat32,
              .tokens = 1,
              .experts = 6,
              .topk = 2,
              .scale = 1,
              .balanced = true,
              .bias = true,
              .form = BYTES};
  build(&r);
  const float x[] = {1, 1, 1, -1, -2, -3}, zeros[6] = {0};
  upload(r.logits->ptr, x, sizeof x);
  upload(r.bias_buffer->ptr, zeros, sizeof zeros);
  call_forward(&r);
  if (!EXPECT_OK()) return;
  const unsigned char *map = buffer_read(r.map), want[] = {1, 1, 0, 0, 0, 0};
  CHECK(memcmp(map, want, sizeof want) == 0, "another map");
  CHECK(near(kNVTEFloat32, (double)read_float(r.cutoff), sigmoid(1)), "cutoff %g",
        (double)read_float(r.cutoff));
}

static void test_histogram(int tokens, int experts, int bins, size_t shift) {
  if (!case_begin("histogram %d x %d, %d bins, shift %zu", tokens, experts, bins, shift)) return;
  size_t t = (size_t)tokens, e = (size_t)experts, b = (size_t)bins, bad = 0;
  float *scores = random_values(kNVTEFloat32, t * e, 0, 1);
  float *cutoff = random_values(kNVTEFloat32, t, 0, 1);
  const float limits[] = {-0.8f, 0.7f};
  if (t > 2) scores[1] = NAN, cutoff[1] = INFINITY;
  int *want = host_memory(e * b * 4);
  for (size_t i = 0; i < e * b; i++) want[i] = (int)random_below(1000);
  Buffer *histogram = buffer_from(want, e * b * 4, 4);
  NVTETensor tensors[] = {
      tensor(buffer_from(scores, t * e * 4, shift)->ptr, kNVTEFloat32, SHAPE(t, e)),
      tensor(buffer_from(cutoff, t * 4, 4)->ptr, kNVTEFloat32, SHAPE(t)),
      tensor(buffer_from(limits, 8, 4)->ptr, kNVTEFloat32, SHAPE(2)),
      tensor(histogram->ptr, kNVTEInt32, SHAPE(e, b))};
  float scale = (float)bins / (limits[1] - limits[0]);
  for (size_t i = 0; i < t * e; i++) {
    float distance = cutoff[i / e] - scores[i];
    distance = distance - limits[0];
    distance = distance * scale;
    double bin = isnan(distance) ? 0 : floor((double)distance);
    want[i % e * b + (size_t)fmin(fmax(bin, 0), bins - 1)] += 2;
  }
  nvte_qb_histogram_accumulate(tensors[0], tensors[1], tensors[2], tensors[3], NULL);
  nvte_qb_histogram_accumulate_unchecked(tensors[0], tensors[1], tensors[2], tensors[3], NULL);
  if (!EXPECT_OK()) return;
  const int *got = buffer_read(histogram);
  for (size_t i = 0; i < e * b && bad < 3; i++) {
    bad += !CHECK(got[i] == want[i], "expert %zu, bin %zu: got %d, expected %d", i / b, i % b,
                  got[i], want[i]);
  }
}

static double count_value(NVTEDType dtype, const void *counts, size_t i) {
  if (dtype == kNVTEInt16) return ((const int16_t *)counts)[i];
  if (dtype == kNVTEInt32) return ((const int32_t *)counts)[i];
  if (dtype == kNVTEInt64) return (double)((const int64_t *)counts)[i];
  return get_value(dtype, counts, i);
}

static void test_loss(NVTEDType dtype, NVTEDType counts_dtype, int rows, int cols, int experts,
                      size_t shift) {
  if (!case_begin("loss %s, counts %s, %d x %d of %d shift %zu", dtype_name(dtype),
                  dtype_name(counts_dtype), rows, cols, experts, shift)) {
    return;
  }
  size_t r = (size_t)rows, c = (size_t)cols, size = dtype_size(dtype), bad = 0;
  void *probs = random_values(dtype, r * c, 0, 1);
  void *counts = host_memory(c * 8);
  for (size_t j = 0; j < c; j++) {
    int n = (int)random_below(200);
    if (counts_dtype == kNVTEInt16) ((int16_t *)counts)[j] = (int16_t)n;
    if (counts_dtype == kNVTEInt32) ((int32_t *)counts)[j] = n;
    if (counts_dtype == kNVTEInt64) ((int64_t *)counts)[j] = n;
    if (counts_dtype == kNVTEBFloat16 || counts_dtype == kNVTEFloat32) {
      put_value(counts_dtype, counts, j, n);
    }
  }
  const int64_t total = 977;
  const float coeff = 0.02f;
  const int topk = 4;
  double constant = (double)experts * (double)coeff / topk / 977 / 977, sum = 0;
  for (size_t i = 0; i < r * c; i++) {
    sum += get_value(dtype, probs, i) * count_value(counts_dtype, counts, i % c);
  }
  NVTETensor inputs[] = {
      tensor(buffer_from(probs, r * c * size, shift * size)->ptr, dtype, SHAPE(r, c)),
      tensor(buffer_from(counts, c * dtype_size(counts_dtype), 0)->ptr, counts_dtype, SHAPE(c)),
      tensor(buffer_from(&total, 8, 0)->ptr, kNVTEInt64, SHAPE(1))};
  Buffer *loss[2], *constants[2];
  for (int safe = 0; safe < 2; safe++) {
    loss[safe] = buffer_shifted(size, size);
    constants[safe] = buffer_shifted(8, 4);
    NVTETensor out = tensor(loss[safe]->ptr, dtype, safe ? shape_of(NULL, 0) : SHAPE(1));
    NVTETensor buffer_tensor = tensor(constants[safe]->ptr, kNVTEFloat32, SHAPE(2));
    if (safe) {
      nvte_fused_moe_aux_loss_forward_graph_safe(inputs[0], inputs[1], inputs[2], experts, rows,
                                                 cols, topk, coeff, out, buffer_tensor, NULL);
    } else {
      nvte_fused_moe_aux_loss_forward(inputs[0], inputs[1], 977, experts, rows, cols, topk, coeff,
                                      out, buffer_tensor, NULL);
    }
    if (!EXPECT_OK()) return;
    const float *two = buffer_read(constants[safe]);
    CHECK(near(kNVTEFloat32, (double)two[0] * 1e6, constant * 1e6), "C: got %g, expected %g",
          (double)two[0], constant);
    CHECK(fabs((double)two[1] - constant * sum) <= 3e-6 * fabs(constant * sum),
          "loss: got %g, expected %g", (double)two[1], constant * sum);
    CHECK(get_bits(dtype, buffer_read(loss[safe]), 0) == encode_bits(dtype, (double)two[1]),
          "the loss is not the rounded one");
  }
  CHECK(memcmp(buffer_read(constants[0]), buffer_read(constants[1]), 8) == 0,
        "the same sum twice differs");

  void *one = random_values(dtype, 1, 100, 300);
  Buffer *grads = buffer_shifted(r * c * size, shift * size);
  nvte_fused_moe_aux_loss_backward(tensor(constants[0]->ptr, kNVTEFloat32, SHAPE(2)), inputs[1],
                                   rows, cols,
                                   tensor(buffer_from(one, size, 0)->ptr, dtype, shape_of(NULL, 0)),
                                   tensor(grads->ptr, dtype, SHAPE(r, c)), NULL);
  if (!EXPECT_OK()) return;
  const void *got = buffer_read(grads);
  for (size_t i = 0; i < r * c && bad < 3; i++) {
    double want = constant * count_value(counts_dtype, counts, i % c) * get_value(dtype, one, 0);
    double value = get_value(dtype, got, i);
    bad += !CHECK(near(dtype, value, want), "grad_probs[%zu, %zu]: got %g, expected %g", i / c,
                  i % c, value, want);
  }
}

static void test_losses(void) {
  const NVTEDType counts[] = {kNVTEInt16, kNVTEInt32, kNVTEInt64, kNVTEBFloat16, kNVTEFloat32};
  for (size_t d = 0; d < 3; d++) {
    for (size_t c = 0; c < COUNT(counts); c++) {
      test_loss(kHighPrecision[d], counts[c], 100 + (int)c, 64, 32, 0);
      test_loss(kHighPrecision[d], counts[c], 33, 130, 65, 1);
    }
    test_loss(kHighPrecision[d], kNVTEInt32, 0, 8, 8, 0);
    test_loss(kHighPrecision[d], kNVTEInt32, 1, 1, 1, 0);
    test_loss(kHighPrecision[d], kNVTEInt32, 5000, 256, 128, 0);
    test_loss(kHighPrecision[d], kNVTEInt32, 3, 40000, 40000, 0);
  }
}

// A loss that is not a number must stay one that is not.
static void test_loss_of_infinities(void) {
  const float kinds[][2] = {{INFINITY, 1}, {-INFINITY, 1}, {INFINITY, -INFINITY}, {NAN, 1}, {0, 0}};
  for (size_t i = 0; i < COUNT(kinds); i++) {
    if (!case_begin("loss of %g and %g", (double)kinds[i][0], (double)kinds[i][1])) continue;
    enum { ROWS = 4000, COLS = 16 };
    float *probs = host_memory(ROWS * COLS * 4), counts[COLS];
    probs[5] = kinds[i][0], probs[ROWS * COLS - 7] = kinds[i][1];
    for (int j = 0; j < COLS; j++) counts[j] = 1;
    Buffer *loss = buffer(4), *constants = buffer(8);
    nvte_fused_moe_aux_loss_forward(
        tensor(buffer_from(probs, ROWS * COLS * 4, 0)->ptr, kNVTEFloat32, SHAPE(ROWS, COLS)),
        tensor(buffer_from(counts, sizeof counts, 0)->ptr, kNVTEFloat32, SHAPE(COLS)), 1, COLS,
        ROWS, COLS, COLS, 1.0f, tensor(loss->ptr, kNVTEFloat32, SHAPE(1)),
        tensor(constants->ptr, kNVTEFloat32, SHAPE(2)), NULL);
    EXPECT_OK();
    CHECK_FLOAT(read_float(loss), kinds[i][0] + kinds[i][1]);
  }
}

static void test_no_token(void) {
  if (!case_begin("no token")) return;
  Router r = {.dtype = kNVTEFloat32,
              .bias_dtype = kNVTEFloat32,
              .tokens = 0,
              .experts = 8,
              .topk = 2,
              .scale = 1,
              .form = BYTES};
  build(&r);
  call_forward(&r);
  EXPECT_OK();
  check_backward(&r);
  r.all = true;
  call_forward(&r);
  EXPECT_OK();
}

// Scores of all experts may have the dtype of the logits.
static void test_declared_scores(void) {
  enum { TOKENS = 5, EXPERTS = 12, COUNT = TOKENS * EXPERTS };
  if (!case_begin("scores declared as the logits")) return;
  void *logits = random_values(kNVTEBFloat16, COUNT, -2, 2);
  NVTETensor x =
      tensor(buffer_from(logits, COUNT * 2, 0)->ptr, kNVTEBFloat16, SHAPE(TOKENS, EXPERTS));
  NVTETensor map = tensor(buffer(COUNT)->ptr, kNVTEByte, SHAPE(TOKENS, EXPERTS));
  NVTETensor inter = tensor(buffer(COUNT * 4)->ptr, kNVTEFloat32, SHAPE(TOKENS, EXPERTS));
  Buffer *scores = buffer(COUNT * 2);
  NVTETensor declared = tensor(scores->ptr, kNVTEBFloat16, SHAPE(TOKENS, EXPERTS));
  nvte_fused_score_for_moe_aux_loss_forward(x, TOKENS, EXPERTS, 3, 1, declared, map, inter, NULL);
  if (!EXPECT_OK()) return;
  const void *got = buffer_read(scores);
  double p[COUNT];
  for (int t = 0; t < TOKENS; t++) {
    double sum = 0;
    for (int e = 0; e < EXPERTS; e++) {
      sum += exp(get_value(kNVTEBFloat16, logits, (size_t)(t * EXPERTS + e)));
    }
    for (int i = t * EXPERTS; i < (t + 1) * EXPERTS; i++) {
      p[i] = exp(get_value(kNVTEBFloat16, logits, (size_t)i)) / sum;
      double score = get_value(kNVTEBFloat16, got, (size_t)i);
      CHECK(fabs(score - p[i]) < 4e-3 * p[i], "score %d: got %a, expected %a", i, score, p[i]);
    }
  }
  // So may their gradients: here these are the rounded scores.
  Buffer *dx = buffer(COUNT * 2);
  NVTETensor grad = tensor(dx->ptr, kNVTEBFloat16, SHAPE(TOKENS, EXPERTS));
  nvte_fused_score_for_moe_aux_loss_backward(inter, declared, TOKENS, EXPERTS, 3, 1, grad, NULL);
  if (!EXPECT_OK()) return;
  const void *slopes = buffer_read(dx);
  for (int i = 0; i < COUNT; i++) {
    double sum = 0;
    for (int e = i / EXPERTS * EXPERTS; e < (i / EXPERTS + 1) * EXPERTS; e++) {
      sum += p[e] * get_value(kNVTEBFloat16, got, (size_t)e);
    }
    double want = p[i] * (get_value(kNVTEBFloat16, got, (size_t)i) - sum);
    double slope = get_value(kNVTEBFloat16, slopes, (size_t)i);
    CHECK(fabs(slope - want) < 4e-3 * fabs(want) + 1e-6, "gradient %d: got %a, expected %a", i,
          slope, want);
  }
}

// Arguments: the parts that the error's text has.
#define REFUSED(...)                                                                               \
  do {                                                                                             \
    call_forward(&r);                                                                              \
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_fused_topk_with_score_function", "expected", "got", \
                 __VA_ARGS__);                                                                     \
    CHECK(untouched(r.probs) && untouched(r.map) && untouched(r.intermediate),                     \
          "outputs were written");                                                                 \
  } while (0)

static void test_wrong(void) {
  if (!case_begin("wrong arguments")) return;
  const Router good = {.dtype = kNVTEFloat32,
                       .bias_dtype = kNVTEFloat32,
                       .tokens = 4,
                       .experts = 16,
                       .topk = 4,
                       .scale = 1,
                       .form = BYTES,
                       .bias = true};
  Router r = good;
  build(&r);
  const Router built = r;
  r.topk = 0;
  REFUSED(": topk: ");
  r.topk = 17;
  REFUSED(": topk: ", "1 to 16");
  r = built;
  nvte_fused_topk_with_score_function_forward(r.map_tensor, -1, 16, 4, 0, -1, -1, 1, SIGMOID,
                                              r.map_tensor, r.map_tensor, r.map_tensor,
                                              r.intermediate_tensor, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "_forward: num_tokens: expected 0 or more, got -1");
  nvte_fused_topk_with_score_function_forward(r.map_tensor, 4, 0, 4, 0, -1, -1, 1, SIGMOID,
                                              r.map_tensor, r.map_tensor, r.map_tensor,
                                              r.intermediate_tensor, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "_forward: num_experts: expected 1 or more, got 0");
  r = built;
  r.score = 3;
  REFUSED(": score_function: ");
  r = built;
  r.group_topk = 2;
  REFUSED(": num_groups: ");
  r.groups = 3;
  REFUSED(": num_groups: ", "divisor of num_experts");
  r.groups = 8;
  r.group_topk = 3;
  REFUSED(": group_topk: ");
  r.groups = 2;
  r.group_topk = 4;
  REFUSED(": group_topk: ");
  r.groups = 8;
  r.group_topk = 1;
  REFUSED(": group_topk: ");
  r = built;
  r.dtype = kNVTEInt32;
  REFUSED(": logits.dtype: ");
  r = built;
  r.map_tensor = tensor(r.map->ptr, kNVTEByte, SHAPE(4, 2));
  REFUSED(": routing_map.shape: ", "[4, 16]");
  r.form = BITS;
  r.map_tensor = built.map_tensor;
  REFUSED(": routing_map.shape: ", "[4, 2]");
  r = built;
  r.form = INDEX32;
  r.map_tensor = tensor(r.map->ptr, kNVTEFloat32, SHAPE(4, 4));
  REFUSED(": topk_indices.dtype: ");
  r = built;
  r.intermediate_tensor = tensor(r.intermediate->ptr, kNVTEFloat32, SHAPE(16, 4));
  REFUSED(": intermediate_output.shape: ");
  r.intermediate_tensor = tensor(r.intermediate->ptr + 1, kNVTEFloat32, SHAPE(4, 16));
  REFUSED(": intermediate_output.data: ", "aligned");
  r.intermediate_tensor = tensor(NULL, kNVTEFloat32, SHAPE(4, 16));
  REFUSED(": intermediate_output.data: ", "null");
  r = built;
  r.balanced = true;
  r.topk = 16;
  REFUSED(": topk: ", "less than num_experts");
  r = built;
  r.balanced = true;
  r.bias = false;
  REFUSED(": expert_bias.data: ");

  const float wrong[][2] = {{1, 1}, {2, 1}, {NAN, 1}, {0, INFINITY}};
  NVTETensor scores = tensor(buffer(4 * 8 * 4)->ptr, kNVTEFloat32, SHAPE(4, 8));
  NVTETensor cutoff = tensor(buffer(16)->ptr, kNVTEFloat32, SHAPE(4));
  Buffer *histogram = buffer(8 * 5 * 4);
  NVTETensor counts = tensor(histogram->ptr, kNVTEInt32, SHAPE(8, 5));
  for (size_t i = 0; i < COUNT(wrong); i++) {
    NVTETensor bounds = tensor(buffer_from(wrong[i], 8, 0)->ptr, kNVTEFloat32, SHAPE(2));
    nvte_qb_histogram_accumulate(scores, cutoff, bounds, counts, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_qb_histogram_accumulate: bin_bounds",
                 "finite with lower < upper");
  }
  NVTETensor bounds = tensor(buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
  nvte_qb_histogram_accumulate_unchecked(scores, cutoff, bounds, counts, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "bin_bounds.shape");
  CHECK(untouched(histogram), "the histogram was written");
  nvte_qb_histogram_accumulate_unchecked(NULL, cutoff, bounds, counts, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "raw_scores");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_all();
  test_groups();
  test_many();
  test_huge();
  test_order();
  test_balanced_tie();
  const int sizes[][3] = {{257, 896, 1000}, {5000, 33, 100},  {3000, 17, 1}, {700, 3, 50000},
                          {4096, 64, 1500}, {9001, 20, 1000}, {0, 3, 5},     {40000, 4, 7},
                          {6001, 12, 9000}, {2047, 1, 3}};
  for (size_t i = 0; i < COUNT(sizes); i++) {
    test_histogram(sizes[i][0], sizes[i][1], sizes[i][2], 4);
    test_histogram(sizes[i][0], sizes[i][1], sizes[i][2], 0);
  }
  test_losses();
  test_loss_of_infinities();
  test_no_token();
  test_declared_scores();
  test_wrong();
  return test_end();
}
