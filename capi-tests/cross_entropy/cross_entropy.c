// The loss over a vocabulary and its gradients against their formulas in double: on logits, on
// logits whose columns are divided among ranks, and behind a linear layer.
#include "nvte/cross_entropy.h"

#include "support.h"

typedef struct Problem {
  NVTEDType dtype, target_dtype;
  size_t tokens, columns;
  double smoothing, z_loss;
  NVTEXLossReduction reduction;
  long long ignored;
  bool with_grad;  // A gradient of the loss other than 1.
  size_t shift;    // Elements by which logits are off their alignment.
} Problem;

// Logits in double, targets, and what they come to.
typedef struct Loss {
  double *logits, *loss, *logsumexp, *grad;  // grad: of the reduced loss or of each token.
  long long *targets;
  double total, count;
} Loss;

static NVTEXCrossEntropyOptions options_of(const Problem *p) {
  NVTEXCrossEntropyOptions options;
  nvtex_cross_entropy_options_init(&options, sizeof options);
  options.label_smoothing = (float)p->smoothing;
  options.z_loss = (float)p->z_loss;
  options.reduction = p->reduction;
  options.ignored_target = p->ignored;
  return options;
}

static bool known(const Problem *p, long long target) {
  return target >= 0 && (size_t)target < p->columns;
}

static void expect_loss(const Problem *p, Loss *l) {
  l->total = l->count = 0;
  for (size_t t = 0; t < p->tokens; t++) {
    const double *x = l->logits + t * p->columns;
    l->loss[t] = l->logsumexp[t] = 0;
    if (l->targets[t] == p->ignored) continue;
    double most = -INFINITY, sum = 0, all = 0;
    for (size_t v = 0; v < p->columns; v++) most = fmax(most, x[v]);
    for (size_t v = 0; v < p->columns; v++) {
      sum += exp(x[v] - most);
      all += x[v];
    }
    double log_sum = l->logsumexp[t] = most + log(sum);
    double target = known(p, l->targets[t]) ? x[l->targets[t]] : (double)NAN;
    l->loss[t] = log_sum - (1 - p->smoothing) * target - p->smoothing * all / (double)p->columns +
                 p->z_loss * log_sum * log_sum;
    l->total += l->loss[t];
    l->count++;
  }
  if (p->reduction == NVTEX_LOSS_MEAN) l->total /= fmax(l->count, 1);
}

static double expected_gradient(const Problem *p, const Loss *l, size_t t, size_t v) {
  if (l->targets[t] == p->ignored) return 0;
  if (!known(p, l->targets[t])) return (double)NAN;
  double grad = p->with_grad ? l->grad[p->reduction == NVTEX_LOSS_NONE ? t : 0] : 1;
  if (p->reduction == NVTEX_LOSS_MEAN) grad /= fmax(l->count, 1);
  double log_sum = l->logsumexp[t], x = l->logits[t * p->columns + v];
  double target = (size_t)l->targets[t] == v ? 1 - p->smoothing : 0;
  return grad * (exp(x - log_sum) * (1 + 2 * p->z_loss * log_sum) - target -
                 p->smoothing / (double)p->columns);
}

// Both NaN, or the difference is at most `part` of the value and `least`.
static bool near(double got, double want, double part, double least) {
  if (isnan(got) || isnan(want)) return isnan(got) && isnan(want);
  return got == want || fabs(got - want) <= part * fabs(want) + least;
}

static NVTETensor target_tensor(const Problem *p, const long long *targets) {
  size_t size = dtype_size(p->target_dtype);
  char *host = host_memory(p->tokens * size);
  for (size_t t = 0; t < p->tokens; t++) memcpy(host + t * size, targets + t, size);
  Buffer *b = buffer_from(host, p->tokens * size, 0);
  return tensor(b->ptr, p->target_dtype, SHAPE(p->tokens));
}

static NVTETensor floats_of(const double *values, size_t n) {
  float *host = host_memory(n * 4);
  for (size_t i = 0; i < n; i++) host[i] = (float)values[i];
  return tensor(buffer_from(host, n * 4, 0)->ptr, kNVTEFloat32, SHAPE(n));
}

static Loss make_loss(const Problem *p) {
  Loss l;
  l.logits = host_memory(p->tokens * p->columns * sizeof(double));
  l.loss = host_memory(p->tokens * sizeof(double));
  l.logsumexp = host_memory(p->tokens * sizeof(double));
  l.grad = host_memory((p->tokens + 1) * sizeof(double));
  l.targets = host_memory(p->tokens * sizeof(long long));
  for (size_t t = 0; t < p->tokens; t++) {
    l.targets[t] = random_below(5) == 0 ? p->ignored : (long long)random_below(p->columns);
    l.grad[t] = (float)random_uniform(-2, 2);
  }
  return l;
}

static void check_floats(const char *what, Buffer *got, const double *want, size_t n, double part,
                         double least) {
  const float *values = buffer_read(got);
  size_t bad = 0;
  for (size_t i = 0; i < n && bad < 3; i++) {
    bad += !CHECK(near((double)values[i], want[i], part, least), "%s %zu: got %g, expected %g",
                  what, i, (double)values[i], want[i]);
  }
}

static double epsilon(NVTEDType dtype) {
  return dtype == kNVTEFloat32 ? 1e-5 : dtype == kNVTEFloat16 ? 0x1p-11 : 0x1p-8;
}

static void check_gradients(const Problem *p, const Loss *l, Buffer *got) {
  const void *values = buffer_read(got);
  double top = 0;
  for (size_t t = 0; t < p->tokens; t++) {
    top = fmax(top, p->with_grad ? fabs(l->grad[t]) : 1);
  }
  // Exponentials of differences of float32 numbers of a size of some tens.
  double least = p->dtype == kNVTEFloat16 ? 2e-6 + 0x1p-24 : 2e-6;
  size_t bad = 0;
  for (size_t i = 0; i < p->tokens * p->columns && bad < 3; i++) {
    double want = expected_gradient(p, l, i / p->columns, i % p->columns);
    double value = get_value(p->dtype, values, i);
    bad += !CHECK(near(value, want, 1.01 * epsilon(p->dtype) + 2e-5, least * top),
                  "gradient of token %zu, column %zu: got %g, expected %g", i / p->columns,
                  i % p->columns, value, want);
  }
}

static Buffer *number(void) { return buffer(4); }

static void check_logits(const Problem *p) {
  if (!case_begin("%s %s %zux%zu smoothing %g z %g reduction %d grad %d shift %zu",
                  dtype_name(p->dtype), dtype_name(p->target_dtype), p->tokens, p->columns,
                  p->smoothing, p->z_loss, (int)p->reduction, p->with_grad, p->shift)) {
    return;
  }
  size_t size = dtype_size(p->dtype), n = p->tokens * p->columns;
  Loss l = make_loss(p);
  void *host = random_values(p->dtype, n, -8, 8);
  for (size_t t = 0; t < p->tokens; t++) {
    if (l.targets[t] != p->ignored) continue;
    // Logits of ignored targets may be anything.
    for (size_t v = 0; v < p->columns; v++) {
      put_value(p->dtype, host, t * p->columns + v, (double)NAN);
    }
  }
  if (p->tokens > 3) {  // A token that has no column, and logits far apart.
    l.targets[2] = (long long)p->columns;
    l.targets[3] = 0;
    for (size_t v = 0; v < p->columns; v++) {
      put_value(p->dtype, host, 2 * p->columns + v, 1);
      put_value(p->dtype, host, 3 * p->columns + v, v % 7 ? -300 : 200);
    }
  }
  for (size_t i = 0; i < n; i++) l.logits[i] = get_value(p->dtype, host, i);
  expect_loss(p, &l);

  NVTEXCrossEntropyOptions options = options_of(p);
  NVTETensor targets = target_tensor(p, l.targets);
  bool reduces = p->reduction != NVTEX_LOSS_NONE;
  NVTETensor grad = p->with_grad ? floats_of(l.grad, reduces ? 1 : p->tokens) : NULL;
  Buffer *logits = buffer_from(host, n * size, p->shift * size);
  NVTETensor x = tensor(logits->ptr, p->dtype, SHAPE(p->tokens, p->columns));
  Buffer *loss = buffer(p->tokens * 4), *logsumexp = buffer(p->tokens * 4);
  Buffer *total = number(), *count = number();
  NVTETensor sum = reduces ? float_tensor(total) : NULL;
  NVTETensor found = reduces ? float_tensor(count) : NULL;
  nvtex_cross_entropy_forward(x, targets, float_tensor(loss), float_tensor(logsumexp), sum, found,
                              &options, NULL);
  if (!EXPECT_OK()) return;
  check_floats("loss", loss, l.loss, p->tokens, 2e-6, 4e-6 * (1 + p->z_loss * 100));
  check_floats("logsumexp", logsumexp, l.logsumexp, p->tokens, 2e-6, 4e-6);
  if (reduces) {
    check_floats("total", total, &l.total, 1, 3e-6, 4e-6 * (1 + p->z_loss * 100));
    check_floats("count", count, &l.count, 1, 0, 0);
  } else {
    CHECK(untouched(total) && untouched(count), "written without a reduction");
  }
  const void *before = buffer_read(logits);
  CHECK(memcmp(before, host, n * size) == 0, "the forward pass changed logits");

  // Into another matrix of every alignment, then in place.
  for (size_t shift = 0; shift < 2; shift++) {
    Buffer *gradients = buffer_shifted(n * size, (p->shift + shift) * size);
    NVTETensor dx = tensor(gradients->ptr, p->dtype, SHAPE(p->tokens, p->columns));
    nvtex_cross_entropy_backward(x, targets, float_tensor(logsumexp), grad, found, dx, &options,
                                 NULL);
    if (!EXPECT_OK()) return;
    check_gradients(p, &l, gradients);
  }
  nvtex_cross_entropy_backward(x, targets, float_tensor(logsumexp), grad, found, x, &options, NULL);
  if (EXPECT_OK()) check_gradients(p, &l, logits);

  // Losses and gradients by one call.
  Buffer *both = buffer_from(host, n * size, p->shift * size);
  x = tensor(both->ptr, p->dtype, SHAPE(p->tokens, p->columns));
  Buffer *again = buffer(p->tokens * 4);
  nvtex_cross_entropy_forward_backward(x, targets, grad, float_tensor(again), NULL, sum, found,
                                       &options, NULL);
  if (!EXPECT_OK()) return;
  check_floats("fused loss", again, l.loss, p->tokens, 2e-6, 4e-6 * (1 + p->z_loss * 100));
  check_gradients(p, &l, both);
}

// Columns on `ranks` ranks, of different numbers, whose partials are combined.
static void check_ranks(const Problem *p, size_t ranks) {
  if (!case_begin("%s %zux%zu on %zu ranks, smoothing %g", dtype_name(p->dtype), p->tokens,
                  p->columns, ranks, p->smoothing)) {
    return;
  }
  size_t size = dtype_size(p->dtype), n = p->tokens * p->columns;
  Loss l = make_loss(p);
  void *host = random_values(p->dtype, n, -8, 8);
  for (size_t i = 0; i < n; i++) l.logits[i] = get_value(p->dtype, host, i);
  expect_loss(p, &l);
  NVTEXCrossEntropyOptions options = options_of(p);
  options.vocabulary_size = p->columns;
  NVTETensor targets = target_tensor(p, l.targets);
  Buffer *partials = buffer(ranks * 4 * p->tokens * 4);
  NVTETensor *parts = host_memory(ranks * sizeof *parts);
  size_t *starts = host_memory((ranks + 1) * sizeof *starts);
  for (size_t r = 0; r <= ranks; r++) {
    starts[r] = r == ranks ? p->columns : p->columns * r / ranks + (r > 0 && r % 2 ? 1 : 0);
  }
  for (size_t r = 0; r < ranks; r++) {
    size_t columns = starts[r + 1] - starts[r];
    char *part = host_memory(p->tokens * columns * size);
    for (size_t t = 0; t < p->tokens; t++) {
      memcpy(part + t * columns * size, (char *)host + (t * p->columns + starts[r]) * size,
             columns * size);
    }
    Buffer *b = buffer_from(part, p->tokens * columns * size, 0);
    parts[r] = tensor(b->ptr, p->dtype, SHAPE(p->tokens, columns));
    options.vocabulary_start = starts[r];
    float *to = (float *)(void *)partials->ptr + r * 4 * p->tokens;
    nvtex_cross_entropy_partial(parts[r], targets, tensor(to, kNVTEFloat32, SHAPE(4, p->tokens)),
                                &options, NULL);
    if (!EXPECT_OK()) return;
  }
  Buffer *loss = buffer(p->tokens * 4), *logsumexp = buffer(p->tokens * 4);
  Buffer *total = number(), *count = number();
  options.vocabulary_start = 0;
  nvtex_cross_entropy_combine(tensor(partials->ptr, kNVTEFloat32, SHAPE(ranks, 4, p->tokens)),
                              targets, float_tensor(loss), float_tensor(logsumexp),
                              float_tensor(total), float_tensor(count), &options, NULL);
  if (!EXPECT_OK()) return;
  check_floats("loss", loss, l.loss, p->tokens, 2e-6, 4e-6);
  check_floats("logsumexp", logsumexp, l.logsumexp, p->tokens, 2e-6, 4e-6);
  check_floats("total", total, &l.total, 1, 3e-6, 4e-6);
  check_floats("count", count, &l.count, 1, 0, 0);
  for (size_t r = 0; r < ranks; r++) {
    size_t columns = starts[r + 1] - starts[r], bad = 0;
    Buffer *gradients = buffer(p->tokens * columns * size);
    options.vocabulary_start = starts[r];
    nvtex_cross_entropy_backward(
        parts[r], targets, float_tensor(logsumexp), NULL, float_tensor(count),
        tensor(gradients->ptr, p->dtype, SHAPE(p->tokens, columns)), &options, NULL);
    if (!EXPECT_OK()) return;
    const void *values = buffer_read(gradients);
    for (size_t i = 0; i < p->tokens * columns && bad < 3; i++) {
      double want = expected_gradient(p, &l, i / columns, starts[r] + i % columns);
      double got = get_value(p->dtype, values, i);
      bad += !CHECK(near(got, want, 1.01 * epsilon(p->dtype) + 2e-5, 2e-6),
                    "rank %zu, token %zu, column %zu: got %g, expected %g", r, i / columns,
                    i % columns, got, want);
    }
  }
}

typedef struct LinearCase {
  NVTEDType dtype, weight_grad;
  size_t tokens, hidden, vocabulary, limit;
  bool accumulate;
  NVTEXLossReduction reduction;
} LinearCase;

static void check_linear(const LinearCase *c) {
  if (!case_begin("linear %s to %s, %zux%zux%zu limit %zu%s reduction %d", dtype_name(c->dtype),
                  dtype_name(c->weight_grad), c->tokens, c->hidden, c->vocabulary, c->limit,
                  c->accumulate ? " accumulates" : "", (int)c->reduction)) {
    return;
  }
  size_t tokens = c->tokens, h = c->hidden, columns = c->vocabulary, size = dtype_size(c->dtype);
  Problem p = {c->dtype, kNVTEInt64, tokens, columns, 0.1, 1e-3, c->reduction, -100, true, 0};
  Loss l = make_loss(&p);
  void *states = random_values(c->dtype, tokens * h, -1, 1);
  void *weight = random_values(c->dtype, columns * h, -1, 1);
  for (size_t t = 0; t < tokens; t++) {
    for (size_t v = 0; v < columns; v++) {
      double sum = 0;
      for (size_t i = 0; i < h; i++) {
        sum += get_value(c->dtype, states, t * h + i) * get_value(c->dtype, weight, v * h + i);
      }
      // The logits are of the dtype of the hidden states.
      l.logits[t * columns + v] = round_to(c->dtype, (double)(float)sum);
    }
  }
  expect_loss(&p, &l);
  size_t grad_size = dtype_size(c->weight_grad);
  void *old = random_values(c->weight_grad, columns * h, -1, 1);
  Buffer *dw = buffer_from(old, columns * h * grad_size, 0), *dh = buffer(tokens * h * size);
  Buffer *loss = buffer(tokens * 4), *total = number(), *count = number();
  bool reduces = c->reduction != NVTEX_LOSS_NONE;
  NVTETensor sum = reduces ? float_tensor(total) : NULL;
  NVTETensor found = reduces ? float_tensor(count) : NULL;
  NVTETensor grad = floats_of(l.grad, reduces ? 1 : tokens);
  NVTETensor hidden =
      tensor(buffer_from(states, tokens * h * size, 0)->ptr, c->dtype, SHAPE(tokens, h));
  NVTETensor w =
      tensor(buffer_from(weight, columns * h * size, 0)->ptr, c->dtype, SHAPE(columns, h));
  NVTETensor dhidden = tensor(dh->ptr, c->dtype, SHAPE(tokens, h));
  NVTETensor dweight = tensor(dw->ptr, c->weight_grad, SHAPE(columns, h));
  NVTETensor targets = target_tensor(&p, l.targets), workspace = empty_tensor();
  NVTEXCrossEntropyOptions options = options_of(&p);
  nvtex_linear_cross_entropy(hidden, w, targets, grad, float_tensor(loss), NULL, sum, found,
                             dhidden, dweight, c->accumulate, &options, c->limit, workspace, NULL);
  if (!EXPECT_OK()) return;
  CHECK(untouched(loss) && untouched(dh), "a query wrote");
  size_t bytes = numel(nvte_tensor_shape(workspace));
  NVTETensor memory = tensor(buffer_shifted(bytes, 16)->ptr, kNVTEByte, SHAPE(bytes));
  nvtex_linear_cross_entropy(hidden, w, targets, grad, float_tensor(loss), NULL, sum, found,
                             dhidden, dweight, c->accumulate, &options, c->limit, memory, NULL);
  if (!EXPECT_OK()) return;
  // Tensor cores take FP32 as TF32.
  bool tf32 = on_cuda() && c->dtype == kNVTEFloat32;
  double unit = tf32 ? 0x1p-10 : epsilon(c->dtype);
  // A logit that is rounded the other way changes by a unit in the last place.
  double rounding = c->dtype == kNVTEFloat32 && !tf32 ? 1e-5 : unit * 4;
  check_floats("loss", loss, l.loss, tokens, 1e-5, rounding);
  if (reduces) check_floats("total", total, &l.total, 1, 1e-5, rounding * (double)tokens);

  double *d = host_memory(tokens * columns * sizeof *d), top = 0;
  for (size_t i = 0; i < tokens * columns; i++) {
    d[i] = expected_gradient(&p, &l, i / columns, i % columns);
    top = fmax(top, fabs(d[i]));
  }
  const void *got = buffer_read(dh);
  size_t bad = 0;
  double error = unit * top * 4;
  for (size_t i = 0; i < tokens * h && bad < 3; i++) {
    double want = 0;
    for (size_t v = 0; v < columns; v++) {
      want += d[i / h * columns + v] * get_value(c->dtype, weight, v * h + i % h);
    }
    double value = get_value(c->dtype, got, i);
    bad += !CHECK(near(value, want, 2 * unit, error + 1e-6), "grad_hidden %zu: got %g, expected %g",
                  i, value, want);
  }
  got = buffer_read(dw);
  for (size_t i = 0; i < columns * h && bad < 3; i++) {
    double want = c->accumulate ? get_value(c->weight_grad, old, i) : 0;
    for (size_t t = 0; t < tokens; t++) {
      want += d[t * columns + i / h] * get_value(c->dtype, states, t * h + i % h);
    }
    double value = get_value(c->weight_grad, got, i);
    double parts = c->weight_grad != kNVTEFloat32 ? 8 * epsilon(c->weight_grad)
                   : tf32                         ? unit
                                                  : 1e-5;
    bad += !CHECK(near(value, want, parts, error + parts + 1e-6),
                  "grad_weight %zu: got %g, expected %g", i, value, want);
  }
  // The loss alone.
  Buffer *alone = buffer(tokens * 4), *logsumexp = buffer(tokens * 4);
  nvtex_linear_cross_entropy(hidden, w, targets, NULL, float_tensor(alone), float_tensor(logsumexp),
                             sum, found, NULL, NULL, false, &options, c->limit, memory, NULL);
  if (!EXPECT_OK()) return;
  check_floats("loss alone", alone, l.loss, tokens, 1e-5, rounding);
  check_floats("logsumexp", logsumexp, l.logsumexp, tokens, 1e-5, rounding);
}

static void test_wrong(void) {
  if (!case_begin("wrong arguments")) return;
  Buffer *x = buffer(2 * 8 * 4), *y = buffer(16), *l = buffer(8), *s = buffer(8), *n = buffer(4);
  Buffer *c = buffer(4);
  NVTETensor logits = tensor(x->ptr, kNVTEFloat32, SHAPE(2, 8));
  NVTETensor targets = tensor(y->ptr, kNVTEInt64, SHAPE(2));
  NVTETensor loss = float_tensor(l), log_sum = float_tensor(s), total = float_tensor(n),
             count = float_tensor(c);
  NVTEXCrossEntropyOptions options;
  memset(&options, 0x5a, sizeof options);
  const NVTEXCrossEntropyOptions before = options;
  nvtex_cross_entropy_options_init(&options, 7);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "nvtex_cross_entropy_options_init: options.struct_size: expected its size", "got 7");
  CHECK(memcmp(&options, &before, sizeof options) == 0, "a refused call wrote");
  nvtex_cross_entropy_options_init(NULL, sizeof options);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "options: expected a struct, got null", "");
#define FORWARD(a, b, d, e, f, g) nvtex_cross_entropy_forward(a, b, d, e, f, g, &options, NULL)
  nvtex_cross_entropy_options_init(&options, sizeof options);
  FORWARD(targets, targets, loss, log_sum, total, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_cross_entropy_forward: logits.dtype: ", "Int64");
  FORWARD(logits, logits, loss, log_sum, total, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "targets.dtype: expected Int32 or Int64, got Float32");
  FORWARD(logits, tensor(y->ptr, kNVTEInt32, SHAPE(3)), loss, log_sum, total, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "targets.shape: expected 2 elements");
  FORWARD(logits, targets, total, log_sum, total, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "loss.shape: expected [2], got [1]");
  FORWARD(logits, targets, loss, log_sum, NULL, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "total.shape: expected [1]");
  FORWARD(logits, targets, loss, loss, total, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "memory apart from");
  FORWARD(logits, targets, tensor(x->ptr, kNVTEFloat32, SHAPE(2)), log_sum, total, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "loss.data: expected memory apart from logits.data");
  options.reduction = NVTEX_LOSS_NONE;
  FORWARD(logits, targets, loss, log_sum, total, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "total: expected nothing (options.reduction is none)");
  options.reduction = (NVTEXLossReduction)7;
  FORWARD(logits, targets, loss, log_sum, total, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "options.reduction: expected an NVTEXLossReduction", "7");
  nvtex_cross_entropy_options_init(&options, sizeof options);
  options.label_smoothing = 1.5f;
  FORWARD(logits, targets, loss, log_sum, total, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "options.label_smoothing: expected 0 to 1, got 1.5");
  options.label_smoothing = 0;
  options.z_loss = -1;
  FORWARD(logits, targets, loss, log_sum, total, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "options.z_loss: ", "-1");
  options.z_loss = 0;
  options.vocabulary_size = 16;
  FORWARD(logits, targets, loss, log_sum, total, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "options.vocabulary_size: expected 0 or 8", "16");
  options.vocabulary_start = 9;
  nvtex_cross_entropy_partial(logits, targets, tensor(x->ptr, kNVTEFloat32, SHAPE(4, 2)), &options,
                              NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "options.vocabulary_size: expected at least");
  options.struct_size = 3;
  FORWARD(logits, targets, loss, log_sum, total, count);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "options.struct_size: ");
  nvtex_cross_entropy_backward(logits, targets, log_sum, NULL, NULL, logits, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_cross_entropy_backward: count.shape: ");
  nvtex_cross_entropy_combine(loss, targets, loss, log_sum, total, count, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "options.vocabulary_size: ");
  nvtex_linear_cross_entropy(logits, tensor(x->ptr, kNVTEFloat32, SHAPE(4, 7)), targets, NULL, loss,
                             log_sum, total, count, NULL, NULL, false, NULL, 0, empty_tensor(),
                             NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "weight.shape: expected [vocabulary, 8]");
  nvtex_cross_entropy_forward(NULL, targets, loss, log_sum, total, count, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_cross_entropy_forward: logits");
  CHECK(untouched(x) && untouched(l) && untouched(s) && untouched(n) && untouched(c),
        "a call that failed wrote");
#undef FORWARD
}

// Without tokens sums and numbers are 0, and a gradient that is not accumulated is, too.
static void test_empty(void) {
  if (!case_begin("no tokens")) return;
  Buffer *total = number(), *count = number(), *dw = buffer(32), *w = buffer(32);
  NVTETensor none = tensor(NULL, kNVTEFloat32, SHAPE(0, 8)), nothing = empty_tensor();
  NVTETensor targets = tensor(NULL, kNVTEInt32, SHAPE(0));
  NVTETensor loss = tensor(NULL, kNVTEFloat32, SHAPE(0));
  nvtex_cross_entropy_forward(none, targets, loss, NULL, float_tensor(total), float_tensor(count),
                              NULL, NULL);
  if (!EXPECT_OK()) return;
  CHECK_FLOAT(read_float(total), 0);
  CHECK_FLOAT(read_float(count), 0);
  NVTETensor hidden = tensor(NULL, kNVTEFloat32, SHAPE(0, 2));
  NVTETensor weight = tensor(w->ptr, kNVTEFloat32, SHAPE(4, 2));
  NVTETensor dweight = tensor(dw->ptr, kNVTEFloat32, SHAPE(4, 2));
  for (int call = 0; call < 2; call++) {
    nvtex_linear_cross_entropy(hidden, weight, targets, NULL, loss, NULL, float_tensor(total),
                               float_tensor(count), NULL, dweight, false, NULL, 0, nothing, NULL);
    if (!EXPECT_OK()) return;
    size_t bytes = numel(nvte_tensor_shape(nothing));
    nothing = tensor(buffer(bytes)->ptr, kNVTEByte, SHAPE(bytes));
  }
  CHECK(all_bytes(dw, 0), "the gradient is not 0");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  const size_t sizes[][2] = {{1, 1},   {3, 2},    {5, 31},    {7, 128},   {4, 1000},
                             {9, 257}, {6, 4096}, {5, 20001}, {4, 50257}, {4, 128256}};
  for (size_t i = 0; i < COUNT(sizes); i++) {
    for (size_t d = 0; d < 3; d++) {
      NVTEXLossReduction reduction = (NVTEXLossReduction)((i + d) % 3);
      Problem p = {kHighPrecision[d],
                   i % 2 ? kNVTEInt32 : kNVTEInt64,
                   sizes[i][0],
                   sizes[i][1],
                   0,
                   0,
                   reduction,
                   -100,
                   false,
                   0};
      check_logits(&p);
      p.smoothing = 0.25, p.z_loss = 0.01, p.with_grad = true, p.shift = 1 + i % 7;
      p.reduction = (NVTEXLossReduction)((i + d + 1) % 3);
      p.ignored = 0;
      check_logits(&p);
    }
  }
  Problem all = {kNVTEFloat32, kNVTEInt32, 2, 3, 1, 0, NVTEX_LOSS_SUM, -1, false, 0};
  check_logits(&all);
  for (size_t ranks = 1; ranks <= 4; ranks++) {
    Problem p = {kHighPrecision[ranks % 3],
                 kNVTEInt64,
                 6,
                 999 + ranks,
                 0.1 * (double)(ranks % 2),
                 0,
                 NVTEX_LOSS_MEAN,
                 -100,
                 false,
                 0};
    check_ranks(&p, ranks);
  }
  const LinearCase linear[] = {
      {kNVTEFloat32, kNVTEFloat32, 50, 24, 40, 0, false, NVTEX_LOSS_MEAN},
      {kNVTEBFloat16, kNVTEFloat32, 70, 64, 96, 6000, true, NVTEX_LOSS_SUM},
      {kNVTEBFloat16, kNVTEBFloat16, 40, 32, 128, 1, false, NVTEX_LOSS_NONE},
      {kNVTEFloat16, kNVTEFloat16, 33, 16, 72, 0, true, NVTEX_LOSS_MEAN},
      {kNVTEBFloat16, kNVTEFloat32, 300, 40, 56, 20000, false, NVTEX_LOSS_MEAN}};
  for (size_t i = 0; i < COUNT(linear); i++) check_linear(&linear[i]);
  test_empty();
  test_wrong();
  return test_end();
}
