// Several products in one call, of sizes that the host knows (nvte_multi_tensor_gemm); products in
// step with others (nvte_cublas_atomic_gemm); biases and offsets of groups. Products of groups
// whose sizes only the device knows are in gemm_grouped.c.
#define _POSIX_C_SOURCE 200809L
#include "gemm_common.h"

enum { WORKSPACES = 4, COUNTERS = 6 };

// One product with small integers, so that sums are exact, in two copies: of the call under test,
// and of a single call.
typedef struct Problem {
  size_t m, n, k;
  NVTETensor a, b, d[2], bias[2], aux[2];
  Buffer *d_buffer[2], *bias_buffer[2], *aux_buffer[2];
  void *a_values, *b_values, *old;  // [m, k], [n, k], [n, m]
} Problem;

typedef struct Options {
  NVTEDType dtype, d;
  bool transa, transb, grad, accumulate, bias, aux, random;
} Options;

static void *integers(NVTEDType dtype, size_t n, bool random) {
  if (random) return random_values(dtype, n, -1, 1);
  void *data = host_memory(n * dtype_size(dtype));
  for (size_t i = 0; i < n; i++) put_value(dtype, data, i, (double)random_below(5) - 2);
  return data;
}

// Stores a matrix [outer, k] in the order that the flags ask for; FP8 stays as it is, for the
// direction that is read.
static NVTETensor operand(NVTEDType dtype, const void *x, size_t outer, size_t k, bool k_last) {
  size_t size = dtype_size(dtype), bytes = outer * k * size;
  if (is_fp8(dtype)) {
    NVTETensor t = empty_tensor();
    void *data = buffer_from(x, bytes, 0)->ptr, *one = buffer_float(1)->ptr;
    set_param(t, k_last ? kNVTERowwiseData : kNVTEColumnwiseData, data, dtype, SHAPE(outer, k));
    set_param(t, k_last ? kNVTERowwiseScaleInv : kNVTEColumnwiseScaleInv, one, kNVTEFloat32,
              SHAPE(1));
    return t;
  }
  if (k_last) return tensor(buffer_from(x, bytes, 0)->ptr, dtype, SHAPE(outer, k));
  void *y = host_memory(bytes);
  for (size_t i = 0; i < outer * k; i++) {
    put_bits(dtype, y, i % k * outer + i / k, get_bits(dtype, x, i));
  }
  return tensor(buffer_from(y, bytes, 0)->ptr, dtype, SHAPE(k, outer));
}

static void make_problem(const Options *o, Problem *p, size_t m, size_t n, size_t k) {
  p->m = m;
  p->n = n;
  p->k = k;
  p->a_values = integers(o->dtype, m * k, o->random);
  p->b_values = integers(o->dtype, n * k, o->random);
  p->old = integers(o->d, n * m, false);
  p->a = operand(o->dtype, p->a_values, m, k, o->transa);
  p->b = operand(o->dtype, p->b_values, n, k, !o->transb);
  size_t size = dtype_size(o->d), length = o->grad && !o->aux ? n : m;
  void *bias = integers(o->d, length, false), *aux = integers(o->d, n * m, false);
  for (int i = 0; i < 2; i++) {
    p->d_buffer[i] = o->accumulate ? buffer_from(p->old, n * m * size, 0) : buffer(n * m * size);
    p->d[i] = tensor(p->d_buffer[i]->ptr, o->d, SHAPE(n, m));
    p->bias[i] = p->aux[i] = NULL;
    if (o->bias) {
      p->bias_buffer[i] = buffer_from(bias, length * size, 0);
      p->bias[i] = tensor(p->bias_buffer[i]->ptr, o->d, SHAPE(length));
    }
    if (o->aux) {
      p->aux_buffer[i] = buffer_from(aux, n * m * size, 0);
      p->aux[i] = tensor(p->aux_buffer[i]->ptr, o->d, SHAPE(n, m));
    }
  }
}

// Tensor i of the parts of g_workspace.
static NVTETensor workspace(int i) {
  return tensor((char *)g_workspace + (size_t)i * WORKSPACE, kNVTEByte, SHAPE(WORKSPACE));
}

static void single_product(const Options *o, const Problem *p) {
  nvte_cublas_gemm(p->a, p->b, p->d[1], p->bias[1], p->aux[1], o->transa, o->transb, o->grad,
                   workspace(0), o->accumulate, true, 0, NULL);
}

static void same_buffers(const Buffer *const pair[2], const char *what, int i) {
  CHECK(memcmp(buffer_read(pair[0]), buffer_read(pair[1]), pair[0]->bytes) == 0,
        "%s of product %d differs from that of a single call", what, i);
}

// Against the definition, where nothing is rounded but the result.
static void expect_product(const Options *o, const Problem *p) {
  const void *d = buffer_read(p->d_buffer[0]);
  size_t bad = 0;
  for (size_t i = 0; i < p->n * p->m && bad < 3; i++) {
    double sum = o->accumulate ? get_value(o->d, p->old, i) : 0;
    for (size_t q = 0; q < p->k; q++) {
      sum += get_value(o->dtype, p->a_values, i % p->m * p->k + q) *
             get_value(o->dtype, p->b_values, i / p->m * p->k + q);
    }
    double got = get_value(o->d, d, i);
    bad += !CHECK(got == round_to(o->d, sum), "D[%zu]: got %.9g, expected %.9g", i, got, sum);
  }
}

static void test_multi(void) {
  enum { MOST = 11 };
  const int counts[] = {1, 2, 4, 5, MOST};
  const NVTEDType dtypes[] = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3};
  for (int i = 0; i < 60; i++) {
    Options o = {.dtype = dtypes[i % 4], .d = dtypes[i % 4], .transa = i & 4, .transb = i & 8};
    if (is_fp8(o.dtype)) o.d = kNVTEBFloat16;
    int count = counts[i % 5];
    o.accumulate = i % 3 == 1;
    o.random = i % 2;
    o.grad = i / 5 % 2 && !is_fp8(o.dtype);
    o.bias = i / 7 % 2 && !is_fp8(o.dtype);
    o.aux = i / 11 % 2 && !is_fp8(o.dtype);
    // cuBLASLt may have no algorithm for these epilogues.
    bool may_decline = on_cuda() && (o.bias || o.aux);
    if (o.grad && o.dtype == kNVTEFloat32) o.aux = false;
    if (!case_begin("multi %d %s %c%c%s%s%s%s %d", count, dtype_name(o.dtype), o.transa ? 'T' : 'N',
                    o.transb ? 'T' : 'N', o.grad ? " grad" : "", o.bias ? " bias" : "",
                    o.aux ? " aux" : "", o.random ? " random" : "", i)) {
      continue;
    }
    Problem problems[MOST];
    NVTETensor a[MOST], b[MOST], d[MOST], bias[MOST], aux[MOST], workspaces[WORKSPACES];
    memset(problems, 0, sizeof problems);
    for (int j = 0; j < count; j++) {
      // Every third D is empty.
      size_t n = j % 3 == 2 ? 0 : 16 * (1 + random_below(9));
      make_problem(&o, &problems[j], 16 * (1 + random_below(9)), n, 16 * (1 + random_below(9)));
      a[j] = problems[j].a;
      b[j] = problems[j].b;
      d[j] = problems[j].d[0];
      bias[j] = problems[j].bias[0];
      aux[j] = problems[j].aux[0];
    }
    for (int j = 0; j < WORKSPACES; j++) workspaces[j] = workspace(j);
    nvte_multi_tensor_gemm(a, b, d, o.bias ? bias : NULL, o.aux ? aux : NULL, count, o.transa,
                           o.transb, o.grad, workspaces, o.accumulate, true, 0, NULL);
    if (nvtex_last_status() == NVTEX_UNSUPPORTED && may_decline) {
      EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_multi_tensor_gemm");
      g_test.declined++;
      continue;
    }
    if (!EXPECT_OK()) continue;
    for (int j = 0; j < count; j++) {
      const Problem *p = &problems[j];
      single_product(&o, p);
      EXPECT_OK();
      same_buffers((const Buffer *const *)p->d_buffer, "D", j);
      if (o.bias) same_buffers((const Buffer *const *)p->bias_buffer, "bias", j);
      if (o.aux) same_buffers((const Buffer *const *)p->aux_buffer, "aux", j);
      if (!o.random && !o.bias && !o.aux) expect_product(&o, p);
    }
  }
}

static void test_multi_errors(void) {
  if (!case_begin("multi errors")) return;
  const char *const name = "nvte_multi_tensor_gemm";
  Options o = {.dtype = kNVTEBFloat16, .d = kNVTEBFloat16, .transa = true};
  Problem p[2];
  NVTETensor w = workspace(0);
  make_problem(&o, &p[0], 16, 16, 32);
  make_problem(&o, &p[1], 16, 16, 32);
  NVTETensor a[] = {p[0].a, p[1].a}, b[] = {p[0].b, p[1].b}, d[] = {p[0].d[0], p[1].d[0]};
  for (int count = -1; count <= 0; count++) {
    nvte_multi_tensor_gemm(NULL, NULL, NULL, NULL, NULL, count, 1, 0, 0, NULL, 0, 0, 0, NULL);
    EXPECT_OK();
  }
  nvte_multi_tensor_gemm(NULL, b, d, NULL, NULL, 2, 1, 0, 0, &w, 0, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "A", "expected", "got");
  nvte_multi_tensor_gemm(a, b, d, NULL, NULL, 2, 1, 1, 0, NULL, 0, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "product 0", "B.shape", "expected", "got");
  nvte_multi_tensor_gemm(a, b, d, NULL, NULL, 2, 1, 0, 0, NULL, 0, 0, -1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "math_sm_count", "expected", "got");
  // The second product is wrong, so the first must not begin.
  b[1] = NULL;
  nvte_multi_tensor_gemm(a, b, d, NULL, NULL, 2, 1, 0, 0, NULL, 0, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "product 1", "B", "expected", "got");
  CHECK(untouched(p[0].d_buffer[0]), "a refused call wrote to D");
}

static void test_atomic(void) {
  Options o = {.dtype = kNVTEBFloat16, .d = kNVTEBFloat16, .transa = true};
  int32_t ones[COUNTERS], zeros[COUNTERS] = {0};
  for (int i = 0; i < COUNTERS; i++) ones[i] = 1;
  for (int i = 0; i < 4; i++) {
    if (!case_begin("atomic %d", i)) continue;
    int m_split = i == 1 ? 2 : i == 2 ? 3 : 0, n_split = i == 2 ? 2 : 0;
    size_t used = (size_t)((m_split ? m_split : 1) * (n_split ? n_split : 1));
    Problem p;
    o.accumulate = i == 3;
    make_problem(&o, &p, 96, 48, 64);
    Buffer *words = buffer_from(ones, sizeof ones, 0);
    NVTETensor counter = tensor(words->ptr, kNVTEInt32, SHAPE(COUNTERS));
    nvte_cublas_atomic_gemm(p.a, p.b, p.d[0], NULL, NULL, true, false, false, workspace(0),
                            o.accumulate, false, 0, m_split, n_split, true, counter, NULL);
    if (!EXPECT_OK()) continue;
    expect_product(&o, &p);
    const int32_t *after = buffer_read(words);
    CHECK(memcmp(after, zeros, used * 4) == 0, "a counter was not set");
    CHECK(memcmp(after + used, ones + used, sizeof ones - used * 4) == 0, "too many were set");
    // The counters that the next product waits for are 0 now.
    Problem next;
    o.accumulate = false;
    make_problem(&o, &next, 96, 48, 64);
    nvte_cublas_atomic_gemm(next.a, next.b, next.d[0], NULL, NULL, true, false, false, workspace(0),
                            false, false, 0, m_split, n_split, false, counter, NULL);
    if (!EXPECT_OK()) continue;
    expect_product(&o, &next);
    CHECK(memcmp(buffer_read(words), after, sizeof ones) == 0, "a consumer wrote to counters");
  }
  if (!case_begin("atomic without a counter, and errors")) return;
  const char *const name = "nvte_cublas_atomic_gemm";
  for (int i = 0; i < 5; i++) {
    Problem p;
    make_problem(&o, &p, 16, 16, 16);
    NVTEDType dtype = i == 2 ? kNVTEInt64 : kNVTEInt32;
    NVTETensor counter = tensor(buffer_from(ones, sizeof ones, 0)->ptr, dtype, SHAPE(3));
    if (i < 2) counter = i ? empty_tensor() : NULL;
    nvte_cublas_atomic_gemm(p.a, p.b, p.d[0], NULL, NULL, true, false, false, NULL, false, false, 0,
                            i == 3 ? 4 : 1, i == 4 ? -1 : 1, i % 2, counter, NULL);
    if (i < 2) {
      EXPECT_OK();
      expect_product(&o, &p);
    } else {
      const char *const names[] = {"counter", "counter", "n_split"};
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, names[i - 2], "expected", "got");
      CHECK(untouched(p.d_buffer[0]), "a refused call wrote to D");
    }
  }
}

// A product whose counters nobody clears ends all the same. main() has set the limit.
static void test_atomic_limit(void) {
  if (!case_begin("atomic without an end")) return;
  Options o = {.dtype = kNVTEBFloat16, .d = kNVTEBFloat16, .transa = true};
  int32_t words[2] = {0, 1};
  Problem p;
  make_problem(&o, &p, 16, 16, 16);
  NVTETensor counter = tensor(buffer_from(words, sizeof words, 0)->ptr, kNVTEInt32, SHAPE(2));
  nvte_cublas_atomic_gemm(p.a, p.b, p.d[0], NULL, NULL, true, false, false, NULL, false, false, 0,
                          2, 1, false, counter, NULL);
  if (on_cuda()) {
    EXPECT_OK();
    nvtex_stream_synchronize(NULL);
    EXPECT_ERROR(NVTEX_DEVICE_ERROR, "nvtex_stream_synchronize", "NVTE_WAIT_SECONDS");
    nvtex_stream_synchronize(NULL);
    EXPECT_OK();  // The failed wait is reported once.
    return;
  }
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "nvte_cublas_atomic_gemm", "0.5 s", "NVTE_WAIT_SECONDS",
               "counter 1, which is still 1");
  CHECK(untouched(p.d_buffer[0]), "D was written");
}

// ---- Biases

static NVTEGroupedTensor grouped(size_t count, size_t rows, size_t cols, NVTEDType dtype,
                                 void *data) {
  NVTEGroupedTensor g =
      nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, count, SHAPE(rows, cols));
  NVTEBasicTensor b = basic(data, dtype, SHAPE(rows, cols));
  nvte_set_grouped_tensor_param(g, kNVTEGroupedRowwiseData, &b, sizeof b);
  EXPECT_OK();
  return g;
}

static void set_first_dims(NVTEGroupedTensor g, const int64_t *dims, size_t count) {
  NVTEBasicTensor b =
      basic(buffer_from(dims, count * sizeof *dims, 0)->ptr, kNVTEInt64, SHAPE(count));
  nvte_set_grouped_tensor_param(g, kNVTEGroupedFirstDims, &b, sizeof b);
  EXPECT_OK();
}

// If `dims` is null, each member has the same number of rows.
static void run_bias(NVTEDType dtype, size_t count, const int64_t *dims, size_t rows, size_t cols,
                     bool scaled, bool misaligned) {
  size_t size = dtype_size(dtype), shift = misaligned ? size : 0;
  void *values = random_values(dtype, rows * cols, -4, 4);
  void *bias_values = random_values(dtype, count * cols, -4, 4);
  float *scale_values = random_values(kNVTEFloat32, rows, -2, 2);
  Buffer *out = buffer_from(values, rows * cols * size, shift);
  Buffer *bias = buffer_from(bias_values, count * cols * size, shift);
  NVTEGroupedTensor output = grouped(count, rows, cols, dtype, out->ptr);
  NVTEGroupedTensor biases = grouped(count, count, cols, dtype, bias->ptr);
  if (dims) set_first_dims(output, dims, count);
  if (scaled) {
    NVTETensor scale =
        tensor(buffer_from(scale_values, rows * 4, 0)->ptr, kNVTEFloat32, SHAPE(rows));
    nvte_grouped_scaled_bias_add(output, biases, scale, NULL);
  } else {
    nvte_grouped_bias_add(output, biases, NULL);
  }
  if (EXPECT_OK()) {
    const void *got = buffer_read(out);
    size_t row = 0, bad = 0;
    for (size_t t = 0; t <= count && bad < 3; t++) {
      size_t end = t == count ? rows : row + (dims ? (size_t)dims[t] : rows / count);
      for (; row < end; row++) {
        for (size_t c = 0; c < cols && bad < 3; c++) {
          double x = get_value(dtype, values, row * cols + c), factor = 0;
          if (t < count) factor = scaled ? (double)scale_values[row] : 1;
          // The sum is exact in double and rounded to float32 once.
          double b = t < count ? get_value(dtype, bias_values, t * cols + c) : 0;
          double want = round_to(dtype, (double)fmaf((float)b, (float)factor, (float)x));
          double y = get_value(dtype, got, row * cols + c);
          bad += !CHECK(y == want, "[%zu][%zu]: got %.9g, expected %.9g", row, c, y, want);
        }
      }
    }
  }
  nvte_destroy_grouped_tensor(output);
  nvte_destroy_grouped_tensor(biases);
}

static void test_bias(void) {
  static int64_t many[300];
  size_t many_rows = 0;
  for (size_t i = 0; i < COUNT(many); i++) many_rows += (size_t)(many[i] = (int64_t)(i * 7 % 5));
  const int64_t few[] = {100, 0, 1, 299, 40}, none[] = {0, 0, 0};
  const size_t cols[] = {1, 7, 8, 250, 1024, 4104};
  for (size_t d = 0; d < 3; d++) {
    for (size_t c = 0; c < COUNT(cols); c++) {
      for (int i = 0; i < 10; i++) {
        bool scaled = i % 2, misaligned = i % 5 == 3;
        NVTEDType dtype = kHighPrecision[d];
        if (!case_begin("bias %s cols %zu %d%s", dtype_name(dtype), cols[c], i,
                        scaled ? " scaled" : "")) {
          continue;
        }
        if (i < 4) run_bias(dtype, 5, few, 440 + (i < 2 ? 0 : 33), cols[c], scaled, misaligned);
        if (i / 2 == 2) run_bias(dtype, 3, none, 5, cols[c], scaled, misaligned);
        if (i / 2 == 3) run_bias(dtype, 4, NULL, 4 * 65, cols[c], scaled, misaligned);
        if (i / 2 == 4 && cols[c] < 300) {
          run_bias(dtype, COUNT(many), many, many_rows + 3, cols[c], scaled, misaligned);
        }
      }
    }
  }
  if (!case_begin("bias errors")) return;
  const NVTEDType bf16 = kNVTEBFloat16;
  const char *const name = "nvte_grouped_scaled_bias_add";
  const int64_t ones[] = {1, 1};
  void *data = buffer(4 * 8 * 4)->ptr;
  NVTEGroupedTensor out = grouped(2, 4, 8, bf16, data), bias = grouped(2, 2, 8, bf16, data);
  NVTETensor scale = tensor(data, kNVTEFloat32, SHAPE(4));
  NVTEGroupedTensor wrong[] = {NULL,
                               grouped(1, 2, 8, bf16, data),
                               grouped(2, 2, 6, bf16, data),
                               grouped(2, 4, 8, bf16, data),
                               grouped(2, 2, 8, kNVTEFloat16, data),
                               grouped(2, 2, 8, bf16, NULL),
                               grouped(2, 2, 8, bf16, data)};
  set_first_dims(wrong[6], ones, 2);
  for (size_t i = 0; i < COUNT(wrong); i++) {
    nvte_grouped_scaled_bias_add(out, wrong[i], scale, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "bias", "expected", "got");
    nvte_destroy_grouped_tensor(wrong[i]);
  }
  NVTETensor scales[] = {NULL, tensor(data, kNVTEFloat32, SHAPE(3)),
                         tensor(data, kNVTEFloat16, SHAPE(4)),
                         tensor(NULL, kNVTEFloat32, SHAPE(4))};
  for (size_t i = 0; i < COUNT(scales); i++) {
    nvte_grouped_scaled_bias_add(out, bias, scales[i], NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "scale", "expected", "got");
  }
  nvte_grouped_bias_add(NULL, bias, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_grouped_bias_add", "output", "expected", "got");
  NVTEGroupedTensor byte = grouped(2, 4, 8, kNVTEFloat8E4M3, data);
  nvte_grouped_bias_add(byte, bias, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_grouped_bias_add", "output.dtype", "expected", "got");
  NVTEGroupedTensor empty = grouped(2, 0, 8, bf16, NULL);
  nvte_grouped_bias_add(empty, bias, NULL);
  EXPECT_OK();
  NVTEGroupedTensor all[] = {out, bias, byte, empty};
  for (size_t i = 0; i < COUNT(all); i++) nvte_destroy_grouped_tensor(all[i]);
}

// ---- Integers

static void test_integers(void) {
  const size_t lengths[] = {0, 1, 5, 257, 70001};
  const int64_t factors[] = {1, 7168, -3, INT64_MAX};
  for (size_t l = 0; l < COUNT(lengths); l++) {
    size_t n = lengths[l];
    if (!case_begin("integers %zu", n)) continue;
    int32_t *src = host_memory((n + 1) * 4);
    for (size_t i = 0; i < n; i++) src[i] = (int32_t)random_u64();
    if (n) src[0] = INT32_MIN;
    Buffer *from = buffer_from(src, n * 4, 4);
    for (size_t f = 0; f <= COUNT(factors); f++) {
      Buffer *to = buffer(n * 8);
      uint64_t factor = f ? (uint64_t)factors[f - 1] : 1;
      if (f) {
        nvte_convert_int32_to_int64_with_multiplier((void *)from->ptr, (void *)to->ptr, n,
                                                    factors[f - 1], NULL);
      } else {
        nvte_convert_int32_to_int64((void *)from->ptr, (void *)to->ptr, n, NULL);
      }
      if (!EXPECT_OK()) continue;
      const uint64_t *got = buffer_read(to);
      for (size_t i = 0; i < n; i++) {
        if (!CHECK(got[i] == (uint64_t)(int64_t)src[i] * factor, "[%zu] of %d: got %llu", i, src[i],
                   (unsigned long long)got[i])) {
          break;
        }
      }
    }
    int64_t *dims = host_memory((n + 1) * 8);
    for (size_t i = 0; i < n; i++) dims[i] = (int64_t)random_below(1000);
    Buffer *first = buffer_from(dims, n * 8, 0), *offsets = buffer((n + 1) * 8);
    nvte_compute_grouped_tensor_offsets((void *)first->ptr, (void *)offsets->ptr, n, 4096, NULL);
    if (!EXPECT_OK()) continue;
    const int64_t *got = buffer_read(offsets);
    int64_t want = 0;
    for (size_t i = 0; i <= n; i++) {
      if (!CHECK(got[i] == want, "offset %zu: %lld", i, (long long)got[i])) break;
      want += i < n ? dims[i] * 4096 : 0;
    }
  }
  if (!case_begin("integers, errors")) return;
  int64_t *words = (int64_t *)buffer(64)->ptr;
  nvte_convert_int32_to_int64(NULL, NULL, 0, NULL);
  EXPECT_OK();
  nvte_convert_int32_to_int64(NULL, words, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_convert_int32_to_int64", "src", "expected", "got");
  nvte_convert_int32_to_int64_with_multiplier((void *)words, NULL, 1, 2, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_convert_int32_to_int64_with_multiplier", "dst");
  nvte_convert_int32_to_int64((void *)words, words, SIZE_MAX / 2, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "src", "expected", "got");
  nvte_convert_int32_to_int64((void *)words, (void *)((char *)words + 4), 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "dst", "aligned", "got");
  nvte_compute_grouped_tensor_offsets(NULL, words, 1, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_compute_grouped_tensor_offsets", "first_dims");
  nvte_compute_grouped_tensor_offsets(NULL, NULL, 0, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_compute_grouped_tensor_offsets", "offsets");
}

int main(int argc, char **argv) {
  setenv("NVTE_WAIT_SECONDS", "0.5", 1);
  test_begin(argc, argv);
  g_workspace = nvtex_malloc((size_t)WORKSPACES * WORKSPACE);
  EXPECT_OK();
  test_multi();
  test_multi_errors();
  test_atomic();
  test_atomic_limit();
  test_bias();
  test_integers();
  case_end();
  nvtex_free(g_workspace);
  return test_end();
}
