// Softmax against its definition in double (pointwise_norm.md, section 9).
#include "nvte/softmax.h"

#include "support.h"

typedef enum Kind { UNMASKED, MASKED, TOP_LEFT, BOTTOM_RIGHT } Kind;
static const char *const kKinds[] = {"unmasked", "masked", "top-left", "bottom-right"};

typedef void (*Forward)(NVTETensor, NVTETensor, float, cudaStream_t);
typedef void (*Backward)(NVTETensor, NVTETensor, NVTETensor, float, cudaStream_t);
static const Forward kForward[] = {nvte_scaled_softmax_forward, NULL,
                                   nvte_scaled_upper_triang_masked_softmax_forward,
                                   nvte_scaled_aligned_causal_masked_softmax_forward};
static const Backward kBackward[] = {nvte_scaled_softmax_backward,
                                     nvte_scaled_masked_softmax_backward,
                                     nvte_scaled_upper_triang_masked_softmax_backward,
                                     nvte_scaled_aligned_causal_masked_softmax_backward};

typedef struct Softmax {
  Kind kind;
  NVTEDType dtype;
  size_t b, h, q, k;
  float scale;
  bool per_batch;  // The mask's first dimension.
  size_t shift;    // Elements off the alignment.
  bool in_place;
} Softmax;

static NVTEShape shape_for(const Softmax *s) {
  return s->kind == TOP_LEFT ? SHAPE(s->b * s->h, s->q, s->k) : SHAPE(s->b, s->h, s->q, s->k);
}

static size_t rows_in(const Softmax *s) { return s->b * s->h * s->q; }

static size_t visible(const Softmax *s, size_t row) {
  size_t i = row % s->q;
  if (s->kind == TOP_LEFT) return i + 1;
  if (s->kind == BOTTOM_RIGHT) return i + 1 + s->k < s->q ? 0 : i + 1 + s->k - s->q;
  return s->k;
}

static size_t mask_at(const Softmax *s, size_t row, size_t j) {
  size_t batch = s->per_batch ? row / s->q / s->h : 0;
  return (batch * s->q + row % s->q) * s->k + j;
}

// Values of U(-2, 2); NaN where a causal form must not look.
static void *values_for(const Softmax *s, double low, double high) {
  size_t n = rows_in(s) * s->k;
  void *x = random_values(s->dtype, n, low, high);
  for (size_t row = 0; row < rows_in(s); row++) {
    for (size_t j = visible(s, row); j < s->k; j++) {
      put_value(s->dtype, x, row * s->k + j, (double)NAN);
    }
  }
  return x;
}

static bool near(const Softmax *s, double got, double expected, double slack) {
  if (isnan(expected)) return isnan(got);
  double half = ldexp(1, -format_of(s->dtype).mantissa - 1);
  double smallest = s->dtype == kNVTEFloat16 ? 0x1p-24 : 1e-12;
  return fabs(got - expected) <= fabs(expected) * (half + 1e-5) + slack + smallest;
}

// Checks a row of results by the scores, of which masked ones are -10000.
static void check_row(const Softmax *s, size_t row, const void *x, const unsigned char *mask,
                      const void *y) {
  size_t end = visible(s, row);
  double *t = malloc((s->k + 1) * sizeof *t), most = -(double)INFINITY, sum = 0;
  if (!t) abort();
  for (size_t j = 0; j < end; j++) {
    t[j] = get_value(s->dtype, x, row * s->k + j) * (double)s->scale;
    if (mask && mask[mask_at(s, row, j)] == 1) t[j] = -10000;
    if (t[j] > most) most = t[j];
  }
  for (size_t j = 0; j < end; j++) sum += exp(t[j] - most);
  for (size_t j = 0, bad = 0; j < s->k && bad < 3; j++) {
    double expected = j < end ? exp(t[j] - most) / sum : 0;
    if (mask && most == -10000) expected = 0;
    double got = get_value(s->dtype, y, row * s->k + j);
    bool fine = j < end ? near(s, got, expected, 0) : got == 0;
    bad += !CHECK(fine, "row %zu, col %zu: got %g, expected %g", row, j, got, expected);
  }
  free(t);
}

static void check_forward(const Softmax *s, const void *x, const unsigned char *mask) {
  size_t size = dtype_size(s->dtype), bytes = rows_in(s) * s->k * size;
  Buffer *input = buffer_from(x, bytes, s->shift * size);
  Buffer *output = s->in_place ? input : buffer_shifted(bytes, s->shift * size);
  NVTETensor in = tensor(input->ptr, s->dtype, shape_for(s));
  NVTETensor out = tensor(output->ptr, s->dtype, shape_for(s));
  if (mask) {
    size_t batch = s->per_batch ? s->b : 1, mask_bytes = batch * s->q * s->k;
    Buffer *b = buffer_from(mask, mask_bytes, s->shift);
    NVTETensor m = tensor(b->ptr, kNVTEByte, SHAPE(batch, 1, s->q, s->k));
    nvte_scaled_masked_softmax_forward(in, m, out, s->scale, NULL);
  } else {
    kForward[s->kind](in, out, s->scale, NULL);
  }
  if (!EXPECT_OK()) return;
  const void *y = buffer_read(output);
  for (size_t row = 0; row < rows_in(s); row++) check_row(s, row, x, mask, y);
  if (!s->in_place) CHECK(memcmp(buffer_read(input), x, bytes) == 0, "the input changed");
}

static void check_backward(const Softmax *s) {
  size_t size = dtype_size(s->dtype), bytes = rows_in(s) * s->k * size;
  void *dy = values_for(s, -2, 2), *y = values_for(s, 0, 4.0 / (double)s->k);
  Buffer *grads = buffer_from(dy, bytes, s->shift * size);
  Buffer *results = buffer_from(y, bytes, s->shift * size);
  Buffer *output = s->in_place ? grads : buffer_shifted(bytes, s->shift * size);
  NVTEShape shape = shape_for(s);
  kBackward[s->kind](tensor(grads->ptr, s->dtype, shape), tensor(results->ptr, s->dtype, shape),
                     tensor(output->ptr, s->dtype, shape), s->scale, NULL);
  if (!EXPECT_OK()) return;
  const void *dx = buffer_read(output);
  for (size_t row = 0, bad = 0; row < rows_in(s); row++) {
    size_t first = row * s->k, end = visible(s, row);
    double sum = 0, size_of_sum = 0;
    for (size_t j = first; j < first + end; j++) {
      double product = get_value(s->dtype, dy, j) * get_value(s->dtype, y, j);
      sum += product;
      size_of_sum += fabs(product);
    }
    for (size_t j = 0; j < s->k && bad < 3; j++) {
      double got = get_value(s->dtype, dx, first + j), expected = 0, slack = 0;
      if (j < end) {
        double g = get_value(s->dtype, dy, first + j), p = get_value(s->dtype, y, first + j);
        expected = (double)s->scale * p * (g - sum);
        slack = fabs((double)s->scale * p) * (fabs(g) + size_of_sum) * 1e-6;
      }
      bool fine = j < end ? near(s, got, expected, slack) : got == 0;
      bad += !CHECK(fine, "row %zu, col %zu: got %g, expected %g", row, j, got, expected);
    }
  }
}

static unsigned char *random_mask(size_t n) {
  static const unsigned char bytes[] = {0, 1, 1, 2, 255, 0};
  unsigned char *mask = host_memory(n);
  for (size_t i = 0; i < n; i++) mask[i] = bytes[random_below(sizeof bytes)];
  return mask;
}

static void run(const Softmax *s) {
  const char *const names[] = {"forward", "backward"};
  for (int backward = 0; backward < 2; backward++) {
    if (!case_begin("%s %s %s %zux%zux%zux%zu scale %g shift %zu%s%s", kKinds[s->kind],
                    names[backward], dtype_name(s->dtype), s->b, s->h, s->q, s->k, (double)s->scale,
                    s->shift, s->in_place ? " in place" : "", s->per_batch ? " per batch" : "")) {
      continue;
    }
    if (backward) {
      check_backward(s);
    } else {
      size_t batch = s->per_batch ? s->b : 1;
      unsigned char *mask = s->kind == MASKED ? random_mask(batch * s->q * s->k) : NULL;
      // The last row of the first mask is masked altogether.
      if (mask) memset(mask + (s->q - 1) * s->k, 1, s->k);
      check_forward(s, values_for(s, -2, 2), mask);
    }
  }
}

static void test_values(void) {
  const size_t keys[] = {1,    2,    3,    8,    31,   64,   100,  128,  136,   257,  512,
                         1000, 1024, 1027, 2048, 2056, 8192, 8200, 4100, 16384, 16392};
  const float scales[] = {0.7f, -0.3f, 1.2f, 6.2f};
  for (size_t i = 0; i < COUNT(keys); i++) {
    for (size_t d = 0; d < COUNT(kHighPrecision); d++) {
      for (int kind = 0; kind < 4; kind++) {
        size_t n = keys[i], turn = i + d + (size_t)kind;
        if (kind == TOP_LEFT && n > 300 && !(n == 1000 && d == 2))
          continue;  // Skipped to save time.
        Softmax s = {.kind = (Kind)kind,
                     .dtype = kHighPrecision[d],
                     .b = 2,
                     .h = n > 2000 ? 1 : 3,
                     .q = kind == TOP_LEFT ? n
                          : n > 2000       ? 2
                                           : 5,
                     .k = n,
                     .scale = scales[turn % COUNT(scales)],
                     .per_batch = turn % 2,
                     .in_place = turn % 3 == 0,
                     .shift = turn % 5 == 0 ? 1 : 0};
        run(&s);
      }
    }
  }
  // Longer than what a block keeps, and more queries than keys.
  const Softmax others[] = {
      {.kind = UNMASKED, .dtype = kNVTEBFloat16, .b = 1, .h = 2, .q = 1, .k = 65544, .scale = 3},
      {.kind = MASKED, .dtype = kNVTEFloat32, .b = 1, .h = 1, .q = 3, .k = 40004, .scale = 3},
      {.kind = BOTTOM_RIGHT, .dtype = kNVTEFloat16, .b = 1, .h = 1, .q = 3, .k = 40008, .scale = 1},
      {.kind = UNMASKED, .dtype = kNVTEFloat16, .b = 1, .h = 1, .q = 2, .k = 70001, .scale = -2},
      {.kind = BOTTOM_RIGHT,
       .dtype = kNVTEBFloat16,
       .b = 1,
       .h = 4,
       .q = 270,
       .k = 256,
       .scale = 1},
      {.kind = BOTTOM_RIGHT, .dtype = kNVTEFloat32, .b = 1, .h = 1, .q = 40, .k = 7, .scale = 1},
      {.kind = BOTTOM_RIGHT,
       .dtype = kNVTEBFloat16,
       .b = 1,
       .h = 1,
       .q = 7,
       .k = 16384,
       .scale = 6},
      {.kind = UNMASKED, .dtype = kNVTEBFloat16, .b = 30, .h = 50, .q = 70, .k = 8, .scale = 1},
  };
  for (size_t i = 0; i < COUNT(others); i++) run(&others[i]);
}

static void test_specials(void) {
  const double inf = (double)INFINITY, nan = (double)NAN;
  const double rows[][8] = {{-inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf},
                            {0, 1, inf, 2, 3, 4, 5, 6},
                            {0, 1, nan, 2, 3, 4, 5, 6},
                            {0, 1, -inf, 2, 3, 4, -inf, 6},
                            {300, 200, 300, 200, -500, 300, 0, 0}};
  const bool all_nan[] = {true, true, true, false, false};
  for (size_t d = 0; d < COUNT(kHighPrecision); d++) {
    NVTEDType dtype = kHighPrecision[d];
    if (!case_begin("infinite scores and NaN, %s", dtype_name(dtype))) continue;
    Softmax s = {.kind = UNMASKED, .dtype = dtype, .b = 1, .h = 1, .q = 5, .k = 8, .scale = 1};
    void *x = host_memory(40 * dtype_size(dtype));
    for (size_t i = 0; i < 40; i++) put_value(dtype, x, i, rows[i / 8][i % 8]);
    Buffer *input = buffer_from(x, 40 * dtype_size(dtype), 0), *output = buffer(input->bytes);
    nvte_scaled_softmax_forward(tensor(input->ptr, dtype, shape_for(&s)),
                                tensor(output->ptr, dtype, shape_for(&s)), 1, NULL);
    if (!EXPECT_OK()) continue;
    const void *y = buffer_read(output);
    for (size_t row = 0; row < 5; row++) {
      if (!all_nan[row]) {
        check_row(&s, row, x, NULL, y);
        continue;
      }
      for (size_t j = 0; j < 8; j++) {
        double got = get_value(dtype, y, row * 8 + j);
        CHECK(isnan(got), "row %zu, col %zu: %g", row, j, got);
      }
    }
  }
  // A masked score still takes part if the others are smaller.
  if (case_begin("scores below the masked one")) {
    Softmax s = {
        .kind = MASKED, .dtype = kNVTEFloat32, .b = 1, .h = 1, .q = 2, .k = 4, .scale = -1};
    float x[] = {9999, 10001, 10002, 5, 20000, 20000, 20000, 20000};
    const unsigned char mask[] = {0, 0, 0, 1, 0, 0, 0, 0};
    check_forward(&s, x, mask);
  }
}

static void test_empty(void) {
  for (int axis = 0; axis < 4; axis++) {
    for (int kind = 0; kind < 4; kind++) {
      if (kind == TOP_LEFT && axis == 3) continue;
      if (!case_begin("empty %s, dimension %d", kKinds[kind], axis)) continue;
      size_t dims[] = {2, 3, 4, 4};
      dims[axis] = 0;
      if (kind == TOP_LEFT && axis == 2) dims[3] = 0;
      Softmax s = {.kind = (Kind)kind, .b = dims[0], .h = dims[1], .q = dims[2], .k = dims[3]};
      Buffer *any = buffer(64);
      NVTETensor t = tensor(any->ptr, kNVTEBFloat16, shape_for(&s));
      NVTETensor null = tensor(NULL, kNVTEBFloat16, shape_for(&s));
      NVTETensor mask = tensor(NULL, kNVTEByte, SHAPE(1, 1, s.q, s.k));
      if (kind == MASKED && s.q * s.k > 0)
        mask = tensor(any->ptr, kNVTEByte, SHAPE(1, 1, s.q, s.k));
      if (kind == MASKED)
        nvte_scaled_masked_softmax_forward(null, mask, t, 1, NULL);
      else
        kForward[kind](null, t, 1, NULL);
      EXPECT_OK();
      kBackward[kind](null, null, t, 1, NULL);
      EXPECT_OK();
      CHECK(untouched(any), "written");
    }
  }
}

static void test_errors(void) {
  Buffer *any;
  const NVTEDType bf16 = kNVTEBFloat16;
  if (case_begin("wrong arguments of the forward")) {
    const char *const name = "nvte_scaled_softmax_forward";
    any = buffer(1024);
    NVTETensor good = tensor(any->ptr, bf16, SHAPE(1, 2, 4, 8));
    nvte_scaled_softmax_forward(NULL, good, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": input", "expected", "got");
    nvte_scaled_softmax_forward(good, empty_tensor(), 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": softmax_results.data", "row-wise data");
    nvte_scaled_softmax_forward(tensor(NULL, bf16, SHAPE(1, 2, 4, 8)), good, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": input.data", "got null");
    nvte_scaled_softmax_forward(tensor(any->ptr + 1, bf16, SHAPE(1, 2, 4, 8)), good, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": input.data", "aligned to 2 bytes");
    nvte_scaled_softmax_forward(tensor(any->ptr, kNVTEInt32, SHAPE(1, 2, 4, 8)), good, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": input.dtype", "BFloat16", "got Int32");
    nvte_scaled_softmax_forward(good, tensor(any->ptr, kNVTEFloat16, SHAPE(1, 2, 4, 8)), 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": softmax_results.dtype", "expected BFloat16");
    nvte_scaled_softmax_forward(good, tensor(any->ptr, bf16, SHAPE(1, 2, 4, 7)), 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": softmax_results.shape", "[1, 2, 4, 8]");
    NVTETensor flat = tensor(any->ptr, bf16, SHAPE(8, 8));
    nvte_scaled_softmax_forward(flat, flat, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": input.shape", "4 dimensions", "[8, 8]");
    CHECK(untouched(any), "written");
  }
  if (case_begin("wrong masks")) {
    const char *const name = "nvte_scaled_masked_softmax_forward";
    any = buffer(1024);
    NVTETensor good = tensor(any->ptr, bf16, SHAPE(3, 2, 4, 8));
    const NVTEShape shapes[] = {SHAPE(2, 1, 4, 8), SHAPE(3, 2, 4, 8), SHAPE(1, 1, 4, 4),
                                SHAPE(4, 8)};
    for (size_t i = 0; i < COUNT(shapes); i++) {
      nvte_scaled_masked_softmax_forward(good, tensor(any->ptr, kNVTEByte, shapes[i]), good, 1,
                                         NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": mask.shape", "[3 or more, or 1, 1, 4, 8]");
    }
    nvte_scaled_masked_softmax_forward(good, tensor(any->ptr, kNVTEInt32, SHAPE(1, 1, 4, 8)), good,
                                       1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": mask.dtype", "expected Byte");
    nvte_scaled_masked_softmax_forward(good, tensor(NULL, kNVTEByte, SHAPE(1, 1, 4, 8)), good, 1,
                                       NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": mask.data", "got null");
    nvte_scaled_masked_softmax_forward(good, NULL, good, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": mask", "expected", "got");
    CHECK(untouched(any), "written");
  }
  if (case_begin("wrong arguments of causal forms")) {
    any = buffer(1024);
    NVTETensor wide = tensor(any->ptr, bf16, SHAPE(2, 4, 8)),
               rank4 = tensor(any->ptr, bf16, SHAPE(1, 2, 4, 4));
    nvte_scaled_upper_triang_masked_softmax_forward(wide, wide, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_scaled_upper_triang_masked_softmax_forward",
                 ": input.shape", "[b*h, s, s]", "[2, 4, 8]");
    nvte_scaled_upper_triang_masked_softmax_backward(rank4, rank4, rank4, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_scaled_upper_triang_masked_softmax_backward",
                 ": incoming_grads.shape", "3 dimensions");
    nvte_scaled_aligned_causal_masked_softmax_forward(wide, wide, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_scaled_aligned_causal_masked_softmax_forward",
                 ": input.shape", "4 dimensions");
    nvte_scaled_aligned_causal_masked_softmax_backward(rank4, wide, rank4, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_scaled_aligned_causal_masked_softmax_backward",
                 ": softmax_results.shape", "[1, 2, 4, 4]");
    nvte_scaled_masked_softmax_backward(rank4, rank4, NULL, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_scaled_masked_softmax_backward", ": output_grads");
    nvte_scaled_softmax_backward(rank4, rank4, wide, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_scaled_softmax_backward", ": output_grads.shape");
    CHECK(untouched(any), "written");
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_values();
  test_specials();
  test_empty();
  test_errors();
  return test_end();
}
