// Tokens drawn from logits: which may be drawn, how often each is, and that seed and offset
// determine them.
#include "nvte/sampling.h"

#include "support.h"

static NVTETensor state_of(uint64_t seed, uint64_t offset) {
  uint64_t state[2] = {seed, offset};
  return tensor(buffer_from(state, sizeof state, 0)->ptr, kNVTEInt64, SHAPE(2));
}

static const double *g_logits;

static int by_logit(const void *a, const void *b) {
  int i = *(const int *)a, j = *(const int *)b;
  double x = g_logits[i], y = g_logits[j];
  return x != y ? (x > y ? -1 : 1) : i - j;
}

// Probabilities of tokens, 0 of those that are not kept. Returns how near the sum of the kept ones
// came to what decides on the last of them.
static double expect(const double *x, size_t n, double temperature, size_t top_k, double top_p,
                     double *p) {
  int *order = host_memory(n * sizeof *order);
  for (size_t i = 0; i < n; i++) order[i] = (int)i;
  g_logits = x;
  qsort(order, n, sizeof *order, by_logit);
  size_t most = top_k && top_k < n ? top_k : n;
  double all = 0, sum = 0, margin = 1;
  for (size_t i = 0; i < n; i++) p[i] = 0;
  for (size_t i = 0; i < most; i++) all += exp((x[order[i]] - x[order[0]]) / temperature);
  for (size_t i = 0; i < most; i++) {
    if (top_p < 1 && sum >= top_p * all) break;
    p[order[i]] = exp((x[order[i]] - x[order[0]]) / temperature);
    sum += p[order[i]];
    if (top_p < 1) margin = fmin(margin, fabs(sum / all - top_p));
  }
  for (size_t i = 0; i < n; i++) p[i] /= sum;
  return margin;
}

// Many rows of the same logits: each token about as often as its probability says.
static void check_frequencies(NVTEDType dtype, size_t n, double temperature, size_t top_k,
                              double top_p) {
  if (!case_begin("%s %zu tokens, temperature %g, top_k %zu, top_p %g", dtype_name(dtype), n,
                  temperature, top_k, top_p)) {
    return;
  }
  enum { ROWS = 4000 };
  size_t size = dtype_size(dtype);
  void *one = random_values(dtype, n, -2, 2);
  double *x = host_memory(n * sizeof *x), *p = host_memory(n * sizeof *p);
  for (size_t i = 0; i < n; i++) x[i] = get_value(dtype, one, i);
  double margin = expect(x, n, temperature, top_k, top_p, p);
  char *all = host_memory(ROWS * n * size);
  for (size_t r = 0; r < ROWS; r++) memcpy(all + r * n * size, one, n * size);
  NVTETensor logits = tensor(buffer_from(all, ROWS * n * size, 0)->ptr, dtype, SHAPE(ROWS, n));
  int *before = NULL;
  double likeliest = 0;
  for (size_t i = 0; i < n; i++) likeliest = fmax(likeliest, p[i]);
  for (uint64_t offset = 0; offset < 3; offset++) {
    Buffer *tokens = buffer(ROWS * 4);
    nvtex_sample_tokens(logits, tensor(tokens->ptr, kNVTEInt32, SHAPE(ROWS)),
                        state_of(1234, offset % 2), (float)temperature, top_k, (float)top_p, NULL);
    if (!EXPECT_OK()) return;
    int *got = buffer_read(tokens);
    double *found = host_memory(n * sizeof *found);
    size_t bad = 0;
    for (size_t r = 0; r < ROWS && bad < 3; r++) {
      bool legal = got[r] >= 0 && (size_t)got[r] < n;
      bad += !CHECK(legal, "row %zu: token %d of %zu", r, got[r], n);
      if (!legal) continue;
      found[got[r]]++;
      // Rounding decides where a sum is nearly the limit.
      bad += !CHECK(p[got[r]] > 0 || margin < 1e-5, "row %zu: token %d is not kept", r, got[r]);
    }
    for (size_t i = 0; i < n && bad < 3 && margin > 1e-5; i++) {
      double deviation = sqrt(ROWS * p[i] * (1 - p[i]));
      bad += !CHECK(fabs(found[i] - ROWS * p[i]) <= 5.5 * deviation + 1,
                    "token %zu: %g times, expected %g", i, found[i], ROWS * p[i]);
    }
    // Offset 1 draws others than offset 0, which then draws the same again.
    if (before && likeliest < 0.99) {
      bool same = memcmp(before, got, ROWS * 4) == 0;
      CHECK(!same, "offset %llu drew the same tokens", (unsigned long long)offset);
    }
    before = got;
  }
}

// The greatest, the first of equal ones; NaN is not drawn.
static void check_greatest(NVTEDType dtype, size_t rows, size_t n, size_t shift) {
  if (!case_begin("greatest of %s %zux%zu shift %zu", dtype_name(dtype), rows, n, shift)) return;
  size_t size = dtype_size(dtype), bad = 0;
  void *x = random_values(dtype, rows * n, -2, 2);
  for (size_t r = 0; r < rows && n > 2; r++) {
    put_value(dtype, x, r * n + random_below(n), (double)NAN);
    put_value(dtype, x, r * n + random_below(n), -(double)INFINITY);
  }
  Buffer *b = buffer_from(x, rows * n * size, shift * size);
  NVTETensor logits = tensor(b->ptr, dtype, SHAPE(rows, n));
  for (int way = 0; way < 3; way++) {
    Buffer *tokens = buffer(rows * 4);
    nvtex_sample_tokens(logits, tensor(tokens->ptr, kNVTEInt32, SHAPE(rows)), state_of(5, 6),
                        way == 0 ? 0 : 0.8f, way == 1 ? 1 : 0, way == 2 ? 1e-6f : 1, NULL);
    if (!EXPECT_OK()) return;
    const int *got = buffer_read(tokens);
    for (size_t r = 0; r < rows && bad < 3; r++) {
      size_t want = 0;
      double most = -(double)INFINITY;
      for (size_t i = 0; i < n; i++) {
        double value = get_value(dtype, x, r * n + i);
        if (value > most) most = value, want = i;
      }
      bad += !CHECK((size_t)got[r] == want, "way %d, row %zu: got %d, expected %zu", way, r, got[r],
                    want);
    }
  }
}

static void test_wrong(void) {
  if (!case_begin("wrong arguments")) return;
  Buffer *x = buffer(64), *t = buffer(8);
  NVTETensor logits = tensor(x->ptr, kNVTEFloat32, SHAPE(2, 8)), state = state_of(0, 0);
  NVTETensor tokens = tensor(t->ptr, kNVTEInt32, SHAPE(2));
  nvtex_sample_tokens(tokens, tokens, state, 1, 0, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_sample_tokens: logits.dtype: ", "Int32");
  nvtex_sample_tokens(logits, tensor(t->ptr, kNVTEInt32, SHAPE(1)), state, 1, 0, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "tokens.shape: expected 2 elements");
  nvtex_sample_tokens(logits, tensor(t->ptr, kNVTEInt64, SHAPE(1)), state, 1, 0, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "tokens.dtype: expected Int32, got Int64");
  nvtex_sample_tokens(logits, tokens, tokens, 1, 0, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "rng_state.dtype: expected Int64");
  nvtex_sample_tokens(logits, tokens, state, -1, 0, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "temperature: expected a finite number", "-1");
  nvtex_sample_tokens(logits, tokens, state, 1, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "top_p: expected above 0 and at most 1, got 0");
  nvtex_sample_tokens(logits, tokens, state, 1, 0, NAN, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "top_p: ", "NaN");
  nvtex_sample_tokens(logits, NULL, state, 1, 0, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_sample_tokens: tokens");
  CHECK(untouched(t), "a call that failed wrote");
  nvtex_sample_tokens(tensor(NULL, kNVTEFloat32, SHAPE(0, 8)), tensor(NULL, kNVTEInt32, SHAPE(0)),
                      state, 1, 0, 1, NULL);
  EXPECT_OK();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  for (size_t d = 0; d < 3; d++) {
    NVTEDType dtype = kHighPrecision[d];
    const size_t sizes[] = {1, 2, 9, 64, 200};
    for (size_t i = 0; i < COUNT(sizes); i++) {
      check_frequencies(dtype, sizes[i], 1, 0, 1);
      check_frequencies(dtype, sizes[i], 0.5, 5, 1);
      check_frequencies(dtype, sizes[i], 2, 0, 0.7);
      check_frequencies(dtype, sizes[i], 0.8, 20, 0.55);
    }
    check_greatest(dtype, 5, 1, 0);
    check_greatest(dtype, 7, 33, 1);
    check_greatest(dtype, 3, 5000, 0);
    check_greatest(dtype, 2, 128256, 0);
    check_greatest(dtype, 2, 50257, 3);
  }
  test_wrong();
  return test_end();
}
