// Products over the ranks of a communicator of one rank, against sums in double (gemm_comm.md,
// sections 3 and 9).
#include "transformer_engine/comm_gemm.h"

#include "support.h"

typedef void (*Function)(NVTECommGemmCtx *, int64_t, int64_t, int64_t, NVTETensor, NVTETensor,
                         NVTETensor, NVTETensor, NVTETensor, bool, bool, bool, bool, int32_t,
                         cudaStream_t, NVTECommGemmAlgoType);

static const struct {
  const char *name;
  Function call;
} kFunctions[] = {{"nvte_all_gather_gemm", nvte_all_gather_gemm},
                  {"nvte_gemm_reduce_scatter", nvte_gemm_reduce_scatter},
                  {"nvte_gemm_all_reduce", nvte_gemm_all_reduce}};

typedef struct Problem {
  NVTEDType in, out;
  size_t m, n, k, shift;
  bool transa, transb, bias, gelu, grad, accumulate;
} Problem;

static double gelu(double x) {
  return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) {
  double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 0.134145 * x * x);
}

static NVTETensor operand(Buffer *data, NVTEDType dtype, size_t rows, size_t cols, float scale) {
  NVTETensor t = tensor(data->ptr, dtype, SHAPE(rows, cols));
  if (is_fp8(dtype))
    set_param(t, kNVTERowwiseScaleInv, buffer_float(scale)->ptr, kNVTEFloat32, SHAPE(1));
  return t;
}

// The error of rounding to a dtype, relative to a value.
static double step(NVTEDType dtype) {
  return dtype == kNVTEFloat32 ? 1e-6 : dtype == kNVTEFloat16 ? 1.1e-3 : 8.5e-3;
}

// Whether a value is as expected but for the rounding of the result, what sums of these absolute
// terms lose (tensor cores take Float32 as TF32, and add FP8 products with about 14 bits), and
// another absolute error.
static bool near(const Problem *p, double got, double want, double terms, double error) {
  const bool coarse = on_cuda() && (p->in == kNVTEFloat32 || is_fp8(p->in));
  return fabs(got - want) <=
         step(p->out) * fabs(want) + (coarse ? 2e-3 : 4e-6) * terms + error + 1e-6;
}

static void check(NVTECommGemmCtx *ctx, size_t f, Problem p) {
  if (!case_begin("%s %s to %s m%zu n%zu k%zu %c%c%s%s%s%s shift %zu", kFunctions[f].name,
                  dtype_name(p.in), dtype_name(p.out), p.m, p.n, p.k, p.transa ? 'T' : 'N',
                  p.transb ? 'T' : 'N', p.bias ? " bias" : "", p.gelu ? " gelu" : "",
                  p.grad ? " grad" : "", p.accumulate ? " accumulate" : "", p.shift)) {
    return;
  }
  size_t m = p.m, n = p.n, k = p.k, in = dtype_size(p.in), out = dtype_size(p.out);
  const float scale_a = 0.5f, scale_b = 2.0f;
  double factor = is_fp8(p.in) ? (double)scale_a * (double)scale_b : 1;
  void *a = random_values(p.in, m * k, -1, 1), *b = random_values(p.in, n * k, -1, 1);
  void *old = random_values(p.out, m * n, -1, 1);
  size_t bias_length = p.grad && !p.gelu ? n : m;
  void *bias = random_values(p.out, bias_length, -1, 1), *aux = random_values(p.out, m * n, -2, 2);
  size_t shift = p.shift * out;
  Buffer *a_data = buffer_from(a, m * k * in, p.shift * in);
  Buffer *b_data = buffer_from(b, n * k * in, p.shift * in);
  Buffer *d_data = buffer_from(old, m * n * out, shift);
  Buffer *bias_data = buffer_from(bias, bias_length * out, shift);
  Buffer *aux_data = buffer_from(aux, m * n * out, shift);
  NVTETensor a_tensor =
      p.transa ? operand(a_data, p.in, m, k, scale_a) : operand(a_data, p.in, k, m, scale_a);
  NVTETensor b_tensor =
      p.transb ? operand(b_data, p.in, k, n, scale_b) : operand(b_data, p.in, n, k, scale_b);
  // Absent tensors are handles without data, or null.
  NVTETensor absent = p.transa ? empty_tensor() : NULL;
  kFunctions[f].call(ctx, (int64_t)m, (int64_t)n, (int64_t)k, a_tensor, b_tensor,
                     tensor(d_data->ptr, p.out, SHAPE(n, m)),
                     p.bias ? tensor(bias_data->ptr, p.out, SHAPE(bias_length)) : absent,
                     p.gelu ? tensor(aux_data->ptr, p.out, SHAPE(n, m)) : absent, p.transa,
                     p.transb, p.grad, p.accumulate, 0, NULL, (NVTECommGemmAlgoType)(f % 5));
  if (!EXPECT_OK()) return;
  const void *d = buffer_read(d_data), *aux_got = buffer_read(aux_data);
  size_t bad = 0;
  double *sums = host_memory((n > m ? n : m) * sizeof *sums);
  double *absolute = host_memory((n > m ? n : m) * sizeof *absolute);
  for (size_t j = 0; j < n && bad < 3; j++) {
    for (size_t i = 0; i < m && bad < 3; i++) {
      double v = 0, terms = 0;
      for (size_t l = 0; l < k; l++) {
        double x = get_value(p.in, a, p.transa ? i * k + l : l * m + i);
        double y = get_value(p.in, b, p.transb ? l * n + j : j * k + l);
        v += x * y * factor, terms += fabs(x * y * factor);
      }
      // A device may round to D's dtype before each step of the epilogue.
      const bool steps = on_cuda() && (p.bias || p.gelu || p.accumulate);
      double error = steps ? step(p.out) * fabs(v) : 0;
      if (p.bias && !p.grad) v += get_value(p.out, bias, i);
      const double pre = v, pre_error = error;
      if (p.gelu) v = p.grad ? v * gelu_slope(get_value(p.out, aux, j * m + i)) : gelu(v);
      // Its tanh has 9 bits.
      if (steps) error += step(p.out) * fabs(v) + (p.gelu ? 0x1p-9 * (fabs(pre) + 1) : 0);
      if (p.grad && p.gelu) sums[i] += v, absolute[i] += fabs(v) + terms;
      if (p.accumulate) v += get_value(p.out, old, j * m + i);
      double got = get_value(p.out, d, j * m + i);
      bad += !CHECK(near(&p, got, v, terms + 1, error), "D[%zu, %zu]: got %g, expected %g", j, i,
                    got, v);
      if (p.gelu && !p.grad) {
        got = get_value(p.out, aux_got, j * m + i);
        bad += !CHECK(near(&p, got, pre, terms + 1, pre_error),
                      "aux[%zu, %zu]: got %g, expected %g", j, i, got, pre);
      }
    }
    if (p.grad && !p.gelu) {
      for (size_t l = 0; l < k; l++) {
        double y = get_value(p.in, b, p.transb ? l * n + j : j * k + l);
        sums[j] += y, absolute[j] += fabs(y);
      }
    }
  }
  const void *bias_got = buffer_read(bias_data);
  for (size_t i = 0; p.bias && i < bias_length && m > 0 && n > 0 && bad < 3; i++) {
    double want = p.grad ? sums[i] : get_value(p.out, bias, i), got = get_value(p.out, bias_got, i);
    // A sum may be that of rounded elements.
    double rounding = p.grad && p.gelu && p.out != kNVTEFloat32 ? 4e-3 * absolute[i] : 0;
    bad += !CHECK(near(&p, got, want, absolute[i], 0) || fabs(got - want) <= rounding,
                  "bias[%zu]: got %g, expected %g", i, got, want);
  }
}

static void test_contexts(void) {
  if (!case_begin("contexts")) return;
  const struct {
    int nranks, rank, status;
    const char *text;
  } wrong[] = {
      {0, 0, NVTEX_INVALID_ARGUMENT, "nranks: expected 1 or more, got 0"},
      {1, -1, NVTEX_INVALID_ARGUMENT, "rank: expected 0 to 0, got -1"},
      {8, 8, NVTEX_INVALID_ARGUMENT, "rank: expected 0 to 7, got 8"},
      {8, 7, NVTEX_INVALID_ARGUMENT, "comm: expected a communicator of NCCL"},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    CHECK(!nvte_comm_gemm_ctx_create(NULL, wrong[i].nranks, wrong[i].rank), "row %zu", i);
    EXPECT_ERROR(wrong[i].status, "nvte_comm_gemm_ctx_create", wrong[i].text);
  }
  nvte_comm_gemm_ctx_destroy(NULL);
  EXPECT_OK();
  NVTECommGemmCtx *ctx = nvte_comm_gemm_ctx_create(NULL, 1, 0);
  const int64_t sizes[][2] = {{0, 0}, {1, 1}, {12345, 12345}, {-7, 0}, {INT64_MAX, INT64_MAX}};
  for (size_t i = 0; i < COUNT(sizes); i++) {
    CHECK_EQ(nvte_comm_gemm_numroc(ctx, sizes[i][0]), sizes[i][1]);
  }
  EXPECT_OK();
  nvte_comm_gemm_ctx_destroy(ctx);
  EXPECT_OK();
  CHECK_EQ(nvte_comm_gemm_numroc(ctx, 5), 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_comm_gemm_numroc: ctx: ", "already destroyed");
  nvte_comm_gemm_ctx_destroy(empty_tensor());
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_comm_gemm_ctx_destroy: ctx: ", "a tensor handle");
}

static void test_wrong(NVTECommGemmCtx *ctx, size_t f) {
  const char *name = kFunctions[f].name;
  Function call = kFunctions[f].call;
  if (!case_begin("wrong arguments of %s", name)) return;
  Buffer *d_data = buffer(4 * 6 * 4);
  NVTETensor a = tensor(buffer(6 * 8 * 4)->ptr, kNVTEFloat32, SHAPE(6, 8));
  NVTETensor b = tensor(buffer(4 * 8 * 4)->ptr, kNVTEFloat32, SHAPE(4, 8));
  NVTETensor d = tensor(d_data->ptr, kNVTEFloat32, SHAPE(4, 6));
  NVTETensor mx = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
#define REFUSED(context, m, n, k, A, B, D, comm_sms, algo, ...)                            \
  do {                                                                                     \
    call(context, m, n, k, A, B, D, NULL, NULL, true, false, false, false, comm_sms, NULL, \
         (NVTECommGemmAlgoType)(algo));                                                    \
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, __VA_ARGS__);                               \
    CHECK(untouched(d_data), "a refused call wrote");                                      \
  } while (0)
  REFUSED(NULL, 6, 4, 8, a, b, d, 0, 0, "ctx: ", "got null");
  REFUSED(ctx, 5, 4, 8, a, b, d, 0, 0, "A.shape: expected [5, 8] (m 5, n 4, k 8), got [6, 8]");
  REFUSED(ctx, 6, 5, 8, a, b, d, 0, 0, "B.shape: expected [5, 8] (m 6, n 5, k 8), got [4, 8]");
  REFUSED(ctx, 6, 4, 7, a, b, d, 0, 0, "A.shape: ");
  REFUSED(ctx, 6, 4, 8, a, b, a, 0, 0, "D.shape: expected [4, 6]");
  REFUSED(ctx, -6, 4, 8, a, b, d, 0, 0, "m: expected 0 or more, got -6");
  REFUSED(ctx, 6, -4, 8, a, b, d, 0, 0, "n: expected 0 or more, got -4");
  REFUSED(ctx, 6, 4, INT64_MIN, a, b, d, 0, 0, "k: expected 0 or more");
  REFUSED(ctx, 6, 4, 8, a, b, d, -1, 0, "comm_sm_count: expected 0 or more, got -1");
  REFUSED(ctx, 6, 4, 8, a, b, d, 0, 5, "algo: expected an NVTECommGemmAlgoType from 0 to 4, got 5");
  REFUSED(ctx, 6, 4, 8, a, b, d, 0, -1, "algo: ");
  REFUSED(ctx, 6, 4, 8, NULL, b, d, 0, 0, "A: ");
  REFUSED(ctx, 6, 4, 8, a, NULL, d, 0, 0, "B: ");
  REFUSED(ctx, 6, 4, 8, a, b, NULL, 0, 0, "D: ");
  REFUSED(ctx, 0, 4, 0, mx, b, d, 0, 0, ": ");
#undef REFUSED
  call(ctx, 6, 4, 8, a, b, d, tensor(buffer(20)->ptr, kNVTEFloat32, SHAPE(5)), NULL, true, false,
       false, false, 0, NULL, kNVTECommGemmAlgoDefault);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "bias.shape: expected [6], got [5]");
  call(ctx, 6, 4, 8, a, b, d, NULL, a, true, false, false, false, 0, NULL,
       kNVTECommGemmAlgoDefault);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "pre_act_out.shape: expected [4, 6]");
  CHECK(untouched(d_data), "a refused call wrote");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_contexts();
  NVTECommGemmCtx *ctx = nvte_comm_gemm_ctx_create(NULL, 1, 0);
  const size_t sizes[][3] = {{64, 32, 48}, {1, 1, 1},  {17, 5, 3}, {128, 64, 256},
                             {0, 7, 8},    {9, 0, 16}, {16, 8, 0}};
  for (size_t f = 0; f < COUNT(kFunctions); f++) {
    for (size_t s = 0; s < COUNT(sizes); s++) {
      for (size_t d = 0; d < COUNT(kHighPrecision); d++) {
        for (int bits = 0; bits < 16; bits++) {
          Problem p = {kHighPrecision[d], kHighPrecision[d], sizes[s][0], sizes[s][1],
                       sizes[s][2],       (size_t)bits % 2,  bits & 1,    bits & 2,
                       bits & 4,          bits & 8,          false,       false};
          check(ctx, f, p);
          p.grad = true;
          check(ctx, f, p);
          if (!p.bias && !p.gelu) {
            p.grad = false, p.accumulate = true;
            check(ctx, f, p);
          }
        }
      }
      // FP8 is read along k.
      Problem p = {kNVTEFloat8E4M3, kNVTEBFloat16, sizes[s][0], sizes[s][1], sizes[s][2], 0, true,
                   false,           false,         false,       false,       false};
      check(ctx, f, p);
      p.accumulate = true;
      check(ctx, f, p);
      p.accumulate = false, p.bias = true;
      check(ctx, f, p);
    }
    test_wrong(ctx, f);
  }
  case_end();
  nvte_comm_gemm_ctx_destroy(ctx);
  return test_end();
}
