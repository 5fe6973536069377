// Newton-Schulz iterations of matrices whose singular vectors and values the test knows: the
// vectors stay, and a value s becomes a s + b s^3 + c s^5 in each iteration (optim_nvfp4.md,
// section 7).
#include "transformer_engine/newton_schulz.h"

#include <pthread.h>

#include "support.h"

static const float kQuintic[] = {4.0848f,  -6.8946f, 2.9270f,  3.9505f,  -6.3029f,
                                 2.6377f,  3.7418f,  -5.5913f, 2.3037f,  2.8769f,
                                 -3.1427f, 1.2046f,  2.8366f,  -3.0525f, 1.2012f};

typedef struct Problem {
  NVTEDType dtype;
  size_t rows, cols, iterations, shift;
} Problem;

// Columns [length, count] that are orthonormal, by Gram-Schmidt, twice for accuracy.
static double *orthonormal(size_t length, size_t count) {
  double *q = host_memory(length * count * sizeof *q);
  for (size_t i = 0; i < length * count; i++) q[i] = random_uniform(-1, 1);
  for (size_t c = 0; c < count; c++) {
    double *v = q + c * length, norm = 0;
    for (int twice = 0; twice < 2; twice++) {
      for (size_t p = 0; p < c; p++) {
        double dot = 0;
        for (size_t i = 0; i < length; i++) dot += v[i] * q[p * length + i];
        for (size_t i = 0; i < length; i++) v[i] -= dot * q[p * length + i];
      }
    }
    for (size_t i = 0; i < length; i++) norm += v[i] * v[i];
    for (size_t i = 0; i < length; i++) v[i] /= sqrt(norm);
  }
  return q;
}

// x [rows, cols] with these vectors and values.
static double *composed(const double *left, const double *right, const double *values, Problem p) {
  size_t side = p.rows < p.cols ? p.rows : p.cols;
  double *x = host_memory(p.rows * p.cols * sizeof *x);
  for (size_t r = 0; r < p.rows; r++) {
    for (size_t c = 0; c < p.cols; c++) {
      for (size_t s = 0; s < side; s++)
        x[r * p.cols + c] += left[s * p.rows + r] * values[s] * right[s * p.cols + c];
    }
  }
  return x;
}

// Of the Frobenius norm. CUDA multiplies Float32 in TF32; in 16 bits each of three products in an
// iteration is rounded, and what is lost early grows as the values do.
static double bound_of(NVTEDType dtype) {
  if (dtype == kNVTEFloat32) return on_cuda() ? 1e-2 : 1e-5;
  return dtype == kNVTEFloat16 ? 1e-2 : 8e-2;
}

static void check(NVTECusolverMpCtx *ctx, Problem p) {
  if (!case_begin("%s %zux%zu, %zu iterations, shift %zu", dtype_name(p.dtype), p.rows, p.cols,
                  p.iterations, p.shift)) {
    return;
  }
  size_t side = p.rows < p.cols ? p.rows : p.cols, n = p.rows * p.cols;
  double *left = orthonormal(p.rows, side), *right = orthonormal(p.cols, side);
  double *values = host_memory(side * sizeof *values);
  for (size_t s = 0; s < side; s++) values[s] = random_uniform(0.1, 0.9);
  const double *x = composed(left, right, values, p);
  size_t size = dtype_size(p.dtype);
  void *rounded = host_memory(n * size);
  for (size_t i = 0; i < n; i++) put_value(p.dtype, rounded, i, x[i]);
  float *coefficients = host_memory(p.iterations * 12);
  for (size_t i = 0; i < p.iterations * 3; i++) coefficients[i] = kQuintic[i % COUNT(kQuintic)];
  for (size_t i = 0; i < p.iterations; i++) {
    const float *f = coefficients + 3 * i;
    for (size_t s = 0; s < side; s++) {
      double v = values[s];
      values[s] = (double)f[0] * v + (double)f[1] * pow(v, 3) + (double)f[2] * pow(v, 5);
    }
  }
  const double *want = composed(left, right, values, p);
  Buffer *data = buffer_from(rounded, n * size, p.shift * size);
  nvte_newton_schulz(ctx, (int64_t)p.rows, (int64_t)p.cols,
                     tensor(data->ptr, p.dtype, SHAPE(p.rows, p.cols)), (int64_t)p.iterations,
                     coefficients, (int64_t)p.iterations * 3, NULL);
  if (!EXPECT_OK()) return;
  const void *got = buffer_read(data);
  if (p.iterations == 0) {
    CHECK(memcmp(got, rounded, n * size) == 0, "no iterations changed x");
    return;
  }
  double difference = 0, norm = 0;
  for (size_t i = 0; i < n; i++) {
    double d = get_value(p.dtype, got, i) - want[i];
    difference += d * d, norm += want[i] * want[i];
  }
  // Not "more than", so that NaN fails.
  CHECK(sqrt(difference) <= bound_of(p.dtype) * sqrt(norm), "the distance is %g of %g",
        sqrt(difference), sqrt(norm));
}

// After five iterations x has singular values near 1: these coefficients leave some percent.
static void test_orthogonal(NVTECusolverMpCtx *ctx, size_t rows, size_t cols) {
  if (!case_begin("%zux%zu becomes orthogonal", rows, cols)) return;
  Problem p = {kNVTEFloat32, rows, cols, 5, 0};
  size_t side = rows < cols ? rows : cols, other = rows < cols ? cols : rows;
  double *values = host_memory(side * sizeof *values);
  for (size_t s = 0; s < side; s++) values[s] = random_uniform(0.1, 0.9);
  const double *x = composed(orthonormal(rows, side), orthonormal(cols, side), values, p);
  float *start = host_memory(rows * cols * 4);
  for (size_t i = 0; i < rows * cols; i++) start[i] = (float)x[i];
  Buffer *data = buffer_from(start, rows * cols * 4, 0);
  nvte_newton_schulz(ctx, (int64_t)rows, (int64_t)cols,
                     tensor(data->ptr, kNVTEFloat32, SHAPE(rows, cols)), 5, kQuintic, 15, NULL);
  if (!EXPECT_OK()) return;
  const float *got = buffer_read(data);
  for (size_t i = 0; i < side; i++) {
    for (size_t j = 0; j < side; j++) {
      double dot = 0;
      for (size_t k = 0; k < other; k++) {
        dot += rows < cols ? (double)got[i * cols + k] * (double)got[j * cols + k]
                           : (double)got[k * cols + i] * (double)got[k * cols + j];
      }
      CHECK(fabs(dot - (i == j)) < 6e-2, "product %zu, %zu is %g", i, j, dot);
    }
  }
}

// The Walsh-Hadamard transform of n values, divided by n, which is a power of two. The matrix with
// the entries f[i ^ j] is symmetric, and its singular values are the magnitudes of these values.
static double *spread(const double *values, size_t n) {
  double *f = host_memory(n * sizeof *f);
  for (size_t i = 0; i < n; i++) f[i] = values[i] / (double)n;
  for (size_t half = 1; half < n; half *= 2) {
    for (size_t i = 0; i < n; i++) {
      if (i & half) continue;
      const double a = f[i], b = f[i | half];
      f[i] = a + b, f[i | half] = a - b;
    }
  }
  return f;
}

// Matrices so large that CUDA multiplies tiles on and below the diagonals of Gram matrices alone,
// the last ones divided along k. Signs of rows and columns are random, so that no tile equals
// another. Where one side is twice the other, halves share what the other matrix has.
static void test_large(NVTECusolverMpCtx *ctx, NVTEDType dtype, size_t times, bool tall) {
  const size_t n = on_cuda() ? 4096 : 64, cols = n * times, numel = n * cols;
  if (!case_begin("%s %zux%zu%s", dtype_name(dtype), n, cols, tall ? ", transposed" : "")) return;
  double *values = host_memory(n * sizeof *values);
  for (size_t i = 0; i < n; i++) values[i] = random_uniform(0.1, 0.9) * (random_below(2) ? 1 : -1);
  double *signs = host_memory((n + cols) * sizeof *signs);
  for (size_t i = 0; i < n + cols; i++) signs[i] = random_below(2) ? 1 : -1;
  const double parts[] = {times == 1 ? 1.0 : 0.6, 0.8};
  const double *f = spread(values, n);
  void *x = host_memory(numel * dtype_size(dtype));
  for (size_t r = 0; r < n; r++) {
    for (size_t c = 0; c < cols; c++) {
      put_value(dtype, x, tall ? c * n + r : r * cols + c,
                signs[r] * signs[n + c] * parts[c / n] * f[r ^ c % n]);
    }
  }
  for (size_t i = 0; i < COUNT(kQuintic); i += 3) {
    const float *p = kQuintic + i;
    for (size_t s = 0; s < n; s++) {
      const double v = values[s];
      values[s] = (double)p[0] * v + (double)p[1] * pow(v, 3) + (double)p[2] * pow(v, 5);
    }
  }
  f = spread(values, n);
  Buffer *data = buffer_from(x, numel * dtype_size(dtype), 0);
  const size_t shape[] = {tall ? cols : n, tall ? n : cols};
  nvte_newton_schulz(ctx, (int64_t)shape[0], (int64_t)shape[1],
                     tensor(data->ptr, dtype, SHAPE(shape[0], shape[1])), 5, kQuintic, 15, NULL);
  if (!EXPECT_OK()) return;
  const void *got = buffer_read(data);
  // Of tiles of 64 x 64, the worst one, so that a single wrong tile is seen.
  double worst = 0;
  for (size_t tile = 0; tile < numel / 4096; tile++) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < 4096; i++) {
      const size_t r = tile / (cols / 64) * 64 + i / 64, c = tile % (cols / 64) * 64 + i % 64;
      const double want = signs[r] * signs[n + c] * parts[c / n] * f[r ^ c % n];
      const double d = get_value(dtype, got, tall ? c * n + r : r * cols + c) - want;
      difference += d * d, norm += want * want;
    }
    const double distance = sqrt(difference / norm);
    if (!(distance <= worst)) worst = distance;
  }
  CHECK(worst <= bound_of(dtype), "the distance of a tile is %g of it", worst);
}

static void test_create(void) {
  if (!case_begin("contexts")) return;
  const struct {
    int nranks, rank, status;
    const char *text;
  } wrong[] = {
      {0, 0, NVTEX_INVALID_ARGUMENT, "nranks: expected 1 or more, got 0"},
      {-3, 0, NVTEX_INVALID_ARGUMENT, "nranks: expected 1 or more, got -3"},
      {1, 1, NVTEX_INVALID_ARGUMENT, "rank: expected 0 to 0, got 1"},
      {4, -1, NVTEX_INVALID_ARGUMENT, "rank: expected 0 to 3, got -1"},
      {2, 1, NVTEX_INVALID_ARGUMENT, "comm: expected a communicator of NCCL"},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    CHECK(!nvte_cusolvermp_ctx_create(NULL, wrong[i].nranks, wrong[i].rank), "row %zu", i);
    EXPECT_ERROR(wrong[i].status, "nvte_cusolvermp_ctx_create", wrong[i].text);
  }
  nvte_cusolvermp_ctx_destroy(NULL);
  EXPECT_OK();
  // With one rank the communicator is not looked at.
  NVTECusolverMpCtx *ctx = nvte_cusolvermp_ctx_create((ncclComm_t)(uintptr_t)16, 1, 0);
  CHECK(ctx != NULL, "no context");
  EXPECT_OK();
  nvte_cusolvermp_ctx_destroy(ctx);
  EXPECT_OK();
  nvte_cusolvermp_ctx_destroy(ctx);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_cusolvermp_ctx_destroy: ctx: ", "already destroyed");
  nvte_newton_schulz(ctx, 0, 0, empty_tensor(), 0, NULL, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_newton_schulz: ctx: ", "already destroyed");
  nvte_newton_schulz(NULL, 0, 0, empty_tensor(), 0, NULL, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_newton_schulz: ctx: ", "got null");
}

static void test_wrong(NVTECusolverMpCtx *ctx) {
  if (!case_begin("wrong arguments")) return;
  Buffer *data = buffer(4 * 6 * 4);
  NVTETensor x = tensor(data->ptr, kNVTEFloat32, SHAPE(4, 6));
#define REFUSED(call, ...)                             \
  do {                                                 \
    call;                                              \
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, __VA_ARGS__); \
    CHECK(untouched(data), "a refused call wrote");    \
  } while (0)
  REFUSED(nvte_newton_schulz(ctx, 4, 5, x, 1, kQuintic, 3, NULL),
          "nvte_newton_schulz: x.shape: expected [4, 5] (m and n), got [4, 6]");
  REFUSED(nvte_newton_schulz(ctx, -4, 6, x, 1, kQuintic, 3, NULL), "m: expected 0 or more, got -4");
  REFUSED(nvte_newton_schulz(ctx, 4, -6, x, 1, kQuintic, 3, NULL), "n: expected 0 or more, got -6");
  REFUSED(nvte_newton_schulz(ctx, 4, 6, x, -1, kQuintic, 3, NULL),
          "num_iterations: expected 0 or more, got -1");
  REFUSED(nvte_newton_schulz(ctx, 4, 6, x, 2, kQuintic, 5, NULL),
          "num_coefficients: expected 6 (3 for each of 2 iterations), got 5");
  REFUSED(nvte_newton_schulz(ctx, 4, 6, x, INT64_MAX, kQuintic, 3, NULL), "num_coefficients: ");
  REFUSED(nvte_newton_schulz(ctx, 4, 6, x, 1, kQuintic, -3, NULL), "num_coefficients: ");
  REFUSED(nvte_newton_schulz(ctx, 4, 6, x, 1, NULL, 3, NULL), "coefficients: ");
  REFUSED(nvte_newton_schulz(ctx, 4, 6, NULL, 1, kQuintic, 3, NULL), "x: ");
  REFUSED(nvte_newton_schulz(ctx, 24, 1, tensor(data->ptr, kNVTEFloat32, SHAPE(24)), 1, kQuintic, 3,
                             NULL),
          "x.shape: ");
  REFUSED(nvte_newton_schulz(ctx, 4, 6, tensor(data->ptr, kNVTEInt32, SHAPE(4, 6)), 1, kQuintic, 3,
                             NULL),
          "x.dtype: expected Float32 or Float16 or BFloat16, got Int32");
  REFUSED(nvte_newton_schulz(ctx, 4, 6, tensor(data->ptr, kNVTEFloat8E4M3, SHAPE(4, 6)), 1,
                             kQuintic, 3, NULL),
          "x.dtype: ");
  REFUSED(nvte_newton_schulz(ctx, 4, 5, tensor(data->ptr + 2, kNVTEFloat32, SHAPE(4, 5)), 1,
                             kQuintic, 3, NULL),
          "x.data: expected a pointer aligned to 4 bytes");
  REFUSED(
      nvte_newton_schulz(ctx, 4, 6, tensor(NULL, kNVTEFloat32, SHAPE(4, 6)), 1, kQuintic, 3, NULL),
      "x.data: ");
}

typedef struct Worker {
  NVTECusolverMpCtx *ctx;
  NVTETensor x[8];
  bool ok;
} Worker;

static void *iterate(void *argument) {
  Worker *w = argument;
  for (int i = 0; i < 8; i++) nvte_newton_schulz(w->ctx, 24, 40, w->x[i], 5, kQuintic, 15, NULL);
  w->ok = nvtex_last_status() == NVTEX_OK;
  return NULL;
}

// Calls of several threads with one context do not use the same memory at once.
static void test_threads(NVTECusolverMpCtx *ctx) {
  enum { THREADS = 4, NUMEL = 24 * 40 };
  if (!case_begin("one context, %d threads", THREADS)) return;
  float *start = random_values(kNVTEFloat32, NUMEL, -0.05, 0.05);
  Worker workers[THREADS];
  Buffer *data[THREADS][8];
  pthread_t threads[THREADS];
  for (int t = 0; t < THREADS; t++) {
    workers[t].ctx = ctx;
    for (int i = 0; i < 8; i++) {
      data[t][i] = buffer_from(start, NUMEL * 4, 0);
      workers[t].x[i] = tensor(data[t][i]->ptr, kNVTEFloat32, SHAPE(24, 40));
    }
  }
  for (int t = 0; t < THREADS; t++) {
    if (pthread_create(&threads[t], NULL, iterate, &workers[t])) abort();
  }
  for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
  const float *first = buffer_read(data[0][0]);
  CHECK(memcmp(first, start, NUMEL * 4) != 0, "nothing was written");
  for (int t = 0; t < THREADS; t++) {
    CHECK(workers[t].ok, "thread %d failed", t);
    for (int i = 0; i < 8; i++) {
      CHECK(memcmp(buffer_read(data[t][i]), first, NUMEL * 4) == 0, "thread %d, call %d differs", t,
            i);
    }
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_create();
  NVTECusolverMpCtx *ctx = nvte_cusolvermp_ctx_create(NULL, 1, 0);
  const size_t shapes[][2] = {{0, 5},   {5, 0},   {1, 1},   {1, 9},   {9, 1},   {3, 7},    {7, 3},
                              {16, 16}, {17, 33}, {33, 17}, {64, 96}, {96, 64}, {65, 130}, {8, 8}};
  for (size_t d = 0; d < COUNT(kHighPrecision); d++) {
    for (size_t s = 0; s < COUNT(shapes); s++) {
      for (size_t iterations = 0; iterations <= 5; iterations++) {
        Problem p = {kHighPrecision[d], shapes[s][0], shapes[s][1], iterations, iterations % 2};
        check(ctx, p);
      }
    }
  }
  test_orthogonal(ctx, 32, 48);
  test_orthogonal(ctx, 48, 32);
  test_orthogonal(ctx, 16, 100);
  test_large(ctx, kNVTEBFloat16, 1, false);
  test_large(ctx, kNVTEFloat16, 2, false);
  test_large(ctx, kNVTEBFloat16, 2, true);
  test_wrong(ctx);
  test_threads(ctx);
  case_end();
  nvte_cusolvermp_ctx_destroy(ctx);
  return test_end();
}
