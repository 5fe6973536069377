// Matrix products with per-tensor scaling and their configs.
// Row-major: D[n,m] = Bop[n,k] Aop[k,m]. D starts as NaN unless beta asks for it.
#include "gemm_common.h"

static void *gemm_values(const Gemm *g, NVTEDType dtype, size_t n) {
  if (!g->integers) return random_values(dtype, n, -1, 1);
  void *data = host_memory(n * dtype_size(dtype));
  for (size_t i = 0; i < n; i++) put_value(dtype, data, i, (double)random_below(5) - 2);
  return data;
}

static void *transposed(NVTEDType dtype, const void *x, size_t rows, size_t cols) {
  void *y = host_memory(rows * cols * dtype_size(dtype));
  for (size_t i = 0; i < rows * cols; i++) {
    put_bits(dtype, y, i % cols * rows + i / cols, get_bits(dtype, x, i));
  }
  return y;
}

// [rows, cols] -> [outer, k] in double: rows are the outer dimension unless `flip`.
static double *canonical(NVTEDType dtype, const void *x, size_t rows, size_t cols, bool flip) {
  double *y = host_memory(rows * cols * sizeof *y);
  for (size_t i = 0; i < rows * cols; i++) {
    y[flip ? i % cols * rows + i / cols : i] = get_value(dtype, x, i);
  }
  return y;
}

static NVTEShape matrix_shape(const Gemm *g, size_t rows, size_t cols) {
  return g->rank3 && rows % 2 == 0 ? SHAPE(2, rows / 2, cols) : SHAPE(rows, cols);
}

// `transposed_read`: the product reads the columnwise copy if the operand is FP8 and has one.
static NVTETensor operand(const Gemm *g, NVTEDType dtype, const void *x, size_t rows, size_t cols,
                          bool transposed_read, float scale_inv) {
  size_t size = dtype_size(dtype), bytes = rows * cols * size;
  NVTEShape shape = matrix_shape(g, rows, cols);
  if (!is_fp8(dtype)) return tensor(buffer_from(x, bytes, g->misaligned * size)->ptr, dtype, shape);
  NVTETensor t = empty_tensor();
  void *scale = buffer_from(&scale_inv, sizeof scale_inv, g->scale_shift)->ptr;
  if (!g->one_direction || !transposed_read || g->rowwise_only) {
    set_param(t, kNVTERowwiseData, buffer_from(x, bytes, 0)->ptr, dtype, shape);
    set_param(t, kNVTERowwiseScaleInv, scale, kNVTEFloat32, SHAPE(1));
  }
  if ((!g->one_direction || transposed_read) && !g->rowwise_only) {
    Buffer *copy = buffer_from(transposed(dtype, x, rows, cols), bytes, 0);
    set_param(t, kNVTEColumnwiseData, copy->ptr, dtype, transposed_shape(shape));
    set_param(t, kNVTEColumnwiseScaleInv, scale, kNVTEFloat32, SHAPE(1));
  }
  return t;
}

static void run_gemm(Gemm g) {
  size_t m = g.m, n = g.n, k = g.k, d_size = dtype_size(g.d);
  bool fp8 = is_fp8(g.a), fp8_out = is_fp8(g.d);
  if (g.alpha == 0 && g.entry != SCALED) g.alpha = 1;
  if (g.side == kNVTEByte) g.side = g.d;
  float scale_a = 1, scale_b = 1, scale_d = g.integers ? 0.5f : 3.7f;
  if (fp8) scale_a = g.integers ? 0.5f : 0.37f;
  if (fp8) scale_b = g.integers ? 4 : 1.9f;
  size_t a_rows = g.transa ? m : k, b_rows = g.transb ? k : n;
  void *a = gemm_values(&g, g.a, m * k), *b = gemm_values(&g, g.b, n * k);
  size_t a_cols = g.transa ? k : m, b_cols = g.transb ? n : k;
  NVTETensor a_tensor = operand(&g, g.a, a, a_rows, a_cols, !g.transa, scale_a);
  NVTETensor b_tensor = operand(&g, g.b, b, b_rows, b_cols, g.transb, scale_b);
  const double *aop = canonical(g.a, a, a_rows, a_cols, !g.transa);
  const double *bop = canonical(g.b, b, b_rows, b_cols, g.transb);

  // D, and C in it.
  Buffer *d = buffer_shifted(n * m * d_size, g.misaligned * d_size);
  void *c = gemm_values(&g, g.d, n * m);
  NVTETensor d_tensor = tensor(d->ptr, g.d, matrix_shape(&g, n, m)), c_tensor = d_tensor;
  if (g.separate_c) {
    c_tensor = tensor(buffer_from(c, n * m * d_size, 0)->ptr, g.d, matrix_shape(&g, n, m));
  } else if (g.beta != 0) {
    upload(d->ptr, c, n * m * d_size);
  }
  Buffer *scale_inv = fp8_out ? buffer(4) : NULL;
  const float zero = 0;
  Buffer *amax = fp8_out ? buffer_from(&zero, sizeof zero, g.scale_shift) : NULL;
  if (fp8_out) {
    void *scale = buffer_from(&scale_d, sizeof scale_d, g.scale_shift)->ptr;
    set_param(d_tensor, kNVTEScale, scale, kNVTEFloat32, SHAPE(1));
    set_param(d_tensor, kNVTEAmax, amax->ptr, kNVTEFloat32, SHAPE(1));
    set_param(d_tensor, kNVTERowwiseScaleInv, scale_inv->ptr, kNVTEFloat32, SHAPE(1));
  }

  // Bias and aux: inputs or outputs.
  bool bgrad = g.bias && g.grad, bgrad_of_b = bgrad && !g.gelu;
  size_t bias_length = bgrad_of_b ? n : m, side = dtype_size(g.side);
  void *bias = gemm_values(&g, g.side, bias_length), *x = gemm_values(&g, g.side, n * m);
  Buffer *bias_buffer = g.bias ? buffer(bias_length * side) : NULL;
  Buffer *aux = g.gelu ? buffer(n * m * side) : NULL;
  if (g.bias && !g.grad) upload(bias_buffer->ptr, bias, bias_length * side);
  if (g.gelu && g.grad) upload(aux->ptr, x, n * m * side);
  NVTETensor bias_tensor = NULL, aux_tensor = NULL, workspace = NULL;
  if (g.bias) bias_tensor = tensor(bias_buffer->ptr, g.side, SHAPE(bias_length));
  if (g.gelu) aux_tensor = tensor(aux->ptr, g.side, matrix_shape(&g, n, m));
  if (g.workspace == WORKSPACE && g.workspace_shift == 0) {
    workspace = tensor(g_workspace, kNVTEByte, SHAPE(WORKSPACE));
  } else if (g.workspace) {
    Buffer *w = buffer_shifted(g.workspace, g.workspace_shift);
    workspace = tensor(w->ptr, kNVTEByte, SHAPE(g.workspace));
  } else if (!g.null_handles) {
    workspace = empty_tensor();
  }

  gemm_call(&g, a_tensor, b_tensor, c_tensor, d_tensor, bias_tensor, aux_tensor, workspace);
  if (nvtex_last_status() == NVTEX_UNSUPPORTED && on_cuda() && g.may_decline) {
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_cublas_gemm");
    g_test.declined++;
    if (g.beta == 0) CHECK(untouched(d), "declined, but D was written");
    return;
  }
  if (!EXPECT_OK()) return;

  // Tensor cores take FP32 as TF32 and add FP8 products with about 14 bits.
  double relative = ldexp((double)k, -24) + 0x1p-22, slack = 0;
  if (on_cuda() && g.a == kNVTEFloat32) relative = 0x1p-9;
  if (on_cuda() && fp8) relative = 0x1p-9;
  if (on_cuda() && g.gelu) slack = 0x1p-9;  // a hardware tanh
  const void *got = buffer_read(d), *got_bias = bgrad ? buffer_read(bias_buffer) : NULL;
  const void *got_aux = g.gelu && !g.grad ? buffer_read(aux) : NULL;
  double *column_sum = host_memory(m * sizeof(double)),
         *column_error = host_memory(m * sizeof(double));
  double largest = 0, largest_error = 0;
  size_t bad = 0;
  for (size_t j = 0; j < n && bad < 5; j++) {
    for (size_t i = 0; i < m && bad < 5; i++) {
      double sum = 0, magnitude = 0;
      for (size_t p = 0; p < k; p++) {
        double product = aop[i * k + p] * bop[j * k + p];
        sum += product;
        magnitude += fabs(product);
      }
      double factor = (double)g.alpha * (double)scale_a * (double)scale_b;
      double v = factor * sum;
      /* cuBLASLt may round to D's type before each step: C, bias, GELU. */
      double rounding = on_cuda() && (g.beta != 0 || g.bias || g.gelu) ? step_at(g.d, v) : 0;
      magnitude *= fabs(factor);
      if (g.beta != 0) {
        double term = (double)g.beta * get_value(g.d, c, j * m + i);
        v += term;
        magnitude += fabs(term);
        if (rounding > 0) rounding += step_at(g.d, v);
      }
      if (g.bias && !g.grad) {
        v += get_value(g.side, bias, i);
        magnitude += fabs(get_value(g.side, bias, i));
      }
      double error = g.integers ? 0 : magnitude * relative + rounding;
      if (got_aux) {
        double y = get_value(g.side, got_aux, j * m + i);
        bad += !CHECK(close_enough(g.side, y, v, error), "aux[%zu][%zu]: got %g, expected %g", j, i,
                      y, v);
      }
      if (g.gelu && !g.grad) {
        error = error * 1.2 + (fabs(v) + 1) * (0x1p-20 + slack);
        v = gelu(v);
      } else if (g.gelu) {
        double derivative = dgelu(get_value(g.side, x, j * m + i));
        error = error * 1.2 + fabs(v) * (0x1p-19 + slack);
        v *= derivative;
      }
      if (fabs(v) > largest) largest = fabs(v);
      if (error > largest_error) largest_error = error;
      column_sum[i] += v;
      column_error[i] += error + fabs(v) * 0x1p-20 + (on_cuda() ? step_at(g.d, v) : 0);
      if (fp8_out) {
        v *= (double)scale_d;
        error *= (double)scale_d;
      }
      double y = get_value(g.d, got, j * m + i);
      bad += !CHECK(close_enough(g.d, y, v, error), "D[%zu][%zu]: got %.9g, expected %.9g +- %g", j,
                    i, y, v, error);
    }
  }
  for (size_t i = 0; got_bias && i < bias_length && bad < 5; i++) {
    double want = column_sum[i % m], error = column_error[i % m];
    if (bgrad_of_b) {
      want = error = 0;
      for (size_t p = 0; p < k; p++) {
        want += (double)scale_b * bop[i * k + p];
        error += fabs((double)scale_b * bop[i * k + p]) * relative;
      }
      if (g.integers) error = 0;
    }
    double y = get_value(g.side, got_bias, i);
    bad += !CHECK(close_enough(g.side, y, want, error), "dbias[%zu]: got %g, expected %g +- %g", i,
                  y, want, error);
  }
  if (fp8_out && bad == 0) {
    double y = (double)read_float(amax);
    CHECK(fabs(y - largest) <= largest_error, "amax: got %g, expected %g", y, largest);
    CHECK_FLOAT(read_float(scale_inv), 1 / scale_d);
  }
}

static bool gemm_case(const char *what, const Gemm *g) {
  return case_begin("%s %s %s x %s -> %s %c%c m=%zu n=%zu k=%zu alpha=%g beta=%g%s%s%s%s%s", what,
                    kEntryNames[g->entry], dtype_name(g->a), dtype_name(g->b), dtype_name(g->d),
                    g->transa ? 'T' : 'N', g->transb ? 'T' : 'N', g->m, g->n, g->k,
                    (double)g->alpha, (double)g->beta, g->bias ? " bias" : "",
                    g->gelu ? " gelu" : "", g->grad ? " grad" : "", g->integers ? " integers" : "",
                    g->one_direction ? " one direction" : "");
}

static const struct {
  NVTEDType in, out;
} kHighProducts[] = {{kNVTEFloat32, kNVTEFloat32},
                     {kNVTEBFloat16, kNVTEBFloat16},
                     {kNVTEFloat16, kNVTEFloat16},
                     {kNVTEBFloat16, kNVTEFloat32},
                     {kNVTEFloat16, kNVTEFloat32}};

static const struct {
  NVTEDType a, b, d;
} kFp8Products[] = {{kNVTEFloat8E4M3, kNVTEFloat8E4M3, kNVTEBFloat16},
                    {kNVTEFloat8E4M3, kNVTEFloat8E5M2, kNVTEBFloat16},
                    {kNVTEFloat8E5M2, kNVTEFloat8E4M3, kNVTEBFloat16},
                    {kNVTEFloat8E4M3, kNVTEFloat8E4M3, kNVTEFloat32},
                    {kNVTEFloat8E4M3, kNVTEFloat8E5M2, kNVTEFloat32},
                    {kNVTEFloat8E4M3, kNVTEFloat8E4M3, kNVTEFloat16}};

// Transposes, sizes and dtypes in high precision.
static void test_high_precision(void) {
  const size_t sizes[][3] = {{1, 1, 1},     {1, 7, 3},     {5, 1, 17},  {37, 53, 29}, {16, 16, 16},
                             {129, 65, 33}, {64, 96, 128}, {3, 200, 1}, {2, 2, 1000}};
  for (size_t p = 0; p < COUNT(kHighProducts); p++) {
    for (size_t s = 0; s < COUNT(sizes); s++) {
      for (int k = 0; k < 8; k++) {
        Gemm g = {.a = kHighProducts[p].in,
                  .b = kHighProducts[p].in,
                  .d = kHighProducts[p].out,
                  .m = sizes[s][0],
                  .n = sizes[s][1],
                  .k = sizes[s][2],
                  .transa = k & 1,
                  .transb = k & 2,
                  .integers = k & 4,
                  .entry = (Entry)((s + p) % 3),
                  .alpha = 1,
                  .workspace = WORKSPACE};
        if (gemm_case("plain", &g)) run_gemm(g);
      }
    }
  }
}

// Few elements along k, and results that are larger than what they are made of.
static void test_shallow(void) {
  const size_t sizes[][3] = {{512, 520, 16}, {1023, 261, 7}, {264, 1000, 64}, {520, 512, 1}};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    for (size_t p = 1; p < COUNT(kHighProducts); p++) {
      for (int k = 0; k < 4; k++) {
        Gemm g = {.a = kHighProducts[p].in,
                  .b = kHighProducts[p].in,
                  .d = kHighProducts[p].out,
                  .m = sizes[s][0],
                  .n = sizes[s][1],
                  .k = sizes[s][2],
                  .transa = k & 1,
                  .transb = k & 2,
                  .integers = (s + p) & 1,
                  .misaligned = s == 2 && k == 3,
                  .separate_c = k == 1,
                  .entry = V2,
                  .alpha = k == 2 ? 0.5f : 1,
                  .beta = (p + k) & 1 ? 1 : 0,
                  .workspace = WORKSPACE};
        if (gemm_case("shallow", &g)) run_gemm(g);
      }
    }
    for (size_t p = 0; p < COUNT(kFp8Products) && sizes[s][2] % 16 == 0; p++) {
      Gemm g = {.a = kFp8Products[p].a,
                .b = kFp8Products[p].b,
                .d = kFp8Products[p].d,
                .m = 512,
                .n = 528,
                .k = sizes[s][2],
                .transa = true,
                .integers = p & 1,
                .entry = V2,
                .alpha = 1,
                .beta = p & 2 ? 1 : 0,
                .workspace = WORKSPACE};
      if (gemm_case("shallow", &g)) run_gemm(g);
    }
  }
}

// Few rows of B. FP8 weights are read as they lie, also where tensor cores would not take them.
static void test_few_rows(void) {
  const size_t sizes[][3] = {{528, 1, 1040},   {512, 5, 2576}, {1040, 16, 512}, {544, 23, 768},
                             {640, 32, 4096},  {520, 9, 520},  {512, 33, 512},  {1040, 16, 528},
                             {4100, 2, 72},    {72, 15, 4100}, {264, 8, 1032},  {4104, 3, 320},
                             {1030, 16, 1088}, {2056, 9, 576}, {1040, 1, 1024}};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    const size_t *size = sizes[s];
    for (size_t p = 0; p < COUNT(kHighProducts) + COUNT(kFp8Products); p++) {
      bool fp8 = p >= COUNT(kHighProducts);
      size_t f = fp8 ? p - COUNT(kHighProducts) : 0;
      for (int k = 0; k < 2; k++) {
        bool whole = size[0] % 16 == 0 && size[2] % 16 == 0;
        if (fp8 && k == 0 && (!whole || size[1] > 32 || kFp8Products[f].a != kNVTEFloat8E4M3)) {
          continue;
        }
        Gemm g = {.a = fp8 ? kFp8Products[f].a : kHighProducts[p].in,
                  .b = fp8 ? kFp8Products[f].b : kHighProducts[p].in,
                  .d = fp8 ? kFp8Products[f].d : kHighProducts[p].out,
                  .m = size[0],
                  .n = size[1],
                  .k = size[2],
                  .transa = k == 1,
                  .rowwise_only = true,
                  .integers = (s + p) & 1,
                  .misaligned = s == 2,
                  .separate_c = p & 1,
                  .entry = V2,
                  .alpha = 1,
                  .beta = (s + p + (size_t)k) % 3 == 0 ? 1 : 0,
                  .bias = (s + p) % 4 == 1,
                  .gelu = !fp8 && (s + p) % 5 == 3,
                  .grad = !fp8 && (s + p) % 10 == 3,
                  .side = fp8 || kHighProducts[p].out == kNVTEBFloat16 ? kNVTEBFloat16 : kNVTEByte,
                  .may_decline = true,
                  .workspace = WORKSPACE};
        if (gemm_case("few rows", &g)) run_gemm(g);
      }
    }
  }
}

static void test_alpha_beta(void) {
  const float factors[][2] = {{1, 1}, {2, 0}, {0.5f, 1}, {1, -0.5f}, {-1, 0.25f}, {0, 1}, {0, 0}};
  for (size_t p = 0; p < COUNT(kHighProducts); p++) {
    for (size_t f = 0; f < COUNT(factors); f++) {
      for (int k = 0; k < 8; k++) {
        Gemm g = {.a = kHighProducts[p].in,
                  .b = kHighProducts[p].in,
                  .d = kHighProducts[p].out,
                  .m = 40,
                  .n = 24,
                  .k = 56,
                  .transa = k & 1,
                  .transb = k & 2,
                  .integers = k & 4,
                  .entry = f == 0  ? LEGACY
                           : f % 2 ? V2
                                   : SCALED,
                  .alpha = factors[f][0],
                  .beta = factors[f][1],
                  .workspace = WORKSPACE};
        if (g.entry == V2 && g.alpha == 0) g.entry = SCALED;
        if (gemm_case("factors", &g)) run_gemm(g);
      }
    }
  }
}

static void test_epilogues(void) {
  for (size_t p = 0; p < COUNT(kHighProducts); p++) {
    for (int e = 1; e < 8; e++) {
      for (int k = 0; k < 12; k++) {
        Gemm g = {.a = kHighProducts[p].in,
                  .b = kHighProducts[p].in,
                  .d = kHighProducts[p].out,
                  .m = 48,
                  .n = 32,
                  .k = 64,
                  .bias = e & 1,
                  .gelu = e & 2,
                  .grad = e & 4,
                  .transa = k & 1,
                  .transb = k & 2,
                  .entry = (Entry)(k / 4),
                  .alpha = 1,
                  .beta = k % 4 == 3 ? 1 : 0,
                  .workspace = WORKSPACE,
                  .may_decline = true};
        if (k >= 4 && k < 8) g.alpha = 0.5f;
        if (g.entry == LEGACY) g.alpha = 1;
        if (gemm_case("epilogue", &g)) run_gemm(g);
        g.integers = true;
        if (!g.gelu && gemm_case("epilogue", &g)) run_gemm(g);
        g.integers = false;
        g.m = 13;  // cuBLASLt wants aux and dbias aligned
        g.n = 35;
        g.k = 21;
        if (gemm_case("epilogue", &g)) run_gemm(g);
      }
    }
  }
}

// GELU and its derivative behind products of whole tiles, for which there is a kernel.
static void test_gelu_tiles(void) {
  const size_t sizes[][3] = {{256, 256, 320}, {512, 256, 384}, {320, 768, 448}};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    for (int e = 0; e < 8; e++) {
      Gemm g = {.a = kNVTEBFloat16,
                .b = kNVTEBFloat16,
                .d = kNVTEBFloat16,
                .m = sizes[s][0],
                .n = sizes[s][1],
                .k = sizes[s][2],
                .gelu = true,
                .bias = e & 1,
                .grad = e & 2,
                .transa = e & 4,
                .entry = (Entry)(s % 3),
                .alpha = 1,
                .workspace = WORKSPACE};
      if (gemm_case("gelu tiles", &g)) run_gemm(g);
    }
  }
}

static void test_fp8(void) {
  const size_t sizes[][3] = {{16, 16, 16}, {64, 32, 48}, {128, 48, 256}, {32, 80, 512}};
  for (size_t p = 0; p < COUNT(kFp8Products); p++) {
    for (size_t s = 0; s < COUNT(sizes); s++) {
      for (int k = 0; k < 16; k++) {
        Gemm g = {.a = kFp8Products[p].a,
                  .b = kFp8Products[p].b,
                  .d = kFp8Products[p].d,
                  .m = sizes[s][0],
                  .n = sizes[s][1],
                  .k = sizes[s][2],
                  .transa = k & 1,
                  .transb = k & 2,
                  .integers = k & 4,
                  .one_direction = k & 8,
                  .split = s & 1,
                  .scale_shift = k & 1 ? sizeof(float) : 0,  // one of many scales in an array
                  .entry = (Entry)((s + p) % 3),
                  .alpha = 1,
                  .workspace = WORKSPACE};
        if (gemm_case("fp8", &g)) run_gemm(g);
      }
    }
    for (int e = 0; e < 12; e++) {
      Gemm g = {.a = kFp8Products[p].a,
                .b = kFp8Products[p].b,
                .d = kFp8Products[p].d,
                .m = 64,
                .n = 32,
                .k = 128,
                .transa = true,
                .bias = e & 1,
                .gelu = e & 2,
                .grad = e & 4,
                .beta = e & 8 ? 1 : 0,
                .alpha = 1,
                .entry = (Entry)(e % 3),
                .workspace = WORKSPACE,
                .may_decline = e != 1,
                .split = true,
                .side = kFp8Products[p].d == kNVTEFloat16 ? kNVTEFloat16 : kNVTEBFloat16};
      // dbias has D's dtype, and no FP8 product gives it in practice.
      if (g.bias && g.grad) continue;
      if (gemm_case("fp8 epilogue", &g)) run_gemm(g);
    }
  }
}

// FP8 in any sizes, also of two E5M2, with every epilogue, to all dtypes.
static void test_fp8_odd(void) {
  const size_t sizes[][3] = {{1, 1, 1},    {16, 1, 32}, {48, 3, 64},   {64, 48, 5},
                             {37, 17, 29}, {8, 5, 16},  {130, 33, 257}};
  const NVTEDType outputs[] = {kNVTEBFloat16, kNVTEFloat32, kNVTEFloat16, kNVTEFloat8E4M3,
                               kNVTEFloat8E5M2};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    for (int i = 0; i < 40; i++) {
      Gemm g = {.a = kFloat8[i % 2],
                .b = kFloat8[i / 2 % 2],
                .d = outputs[i % 5],
                .m = sizes[s][0],
                .n = sizes[s][1],
                .k = sizes[s][2],
                .transa = i & 1,
                .transb = i & 4,
                .bias = i >= 10 && i % 3,
                .gelu = i >= 20 && i < 35,
                .grad = i >= 30,
                .split = i & 2,
                .alpha = 1,
                .entry = (Entry)(i % 3),
                .side = i % 2 ? kNVTEBFloat16 : kNVTEFloat32,
                .workspace = WORKSPACE};
      if (!is_fp8(g.d)) g.beta = i / 5 % 2 ? 1 : 0;
      g.integers = !g.gelu && !is_fp8(g.d);
      if (gemm_case("fp8 odd", &g)) run_gemm(g);
    }
  }
  for (int i = 0; i < 4; i++) {
    Gemm g = {.a = kNVTEFloat8E5M2,
              .b = kNVTEFloat8E5M2,
              .d = kNVTEBFloat16,
              .m = 32,
              .n = 16,
              .k = 64,
              .transa = i & 1,
              .transb = i & 2,
              .alpha = 1,
              .integers = true,
              .workspace = WORKSPACE};
    if (gemm_case("fp8 e5m2", &g)) run_gemm(g);
  }
}

// Results in another dtype than the operands, FP8 as well.
static void test_conversions(void) {
  const NVTEDType outputs[] = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3};
  for (size_t p = 0; p < 3; p++) {
    for (size_t o = 0; o < COUNT(outputs); o++) {
      Gemm g = {.a = kHighProducts[p].in,
                .b = kHighProducts[p].in,
                .d = outputs[o],
                .m = 40,
                .n = 24,
                .k = 56,
                .transa = o & 1,
                .beta = is_fp8(outputs[o]) ? 0 : 1,
                .bias = p == 1,
                .side = kNVTEBFloat16,
                .alpha = 1,
                .workspace = WORKSPACE};
      if (gemm_case("conversion", &g)) run_gemm(g);
    }
  }
}

// What the operands and D must agree in, on every backend.
static void test_disagreements(void) {
  if (!case_begin("disagreements")) return;
  const NVTEDType pairs[][2] = {{kNVTEFloat32, kNVTEBFloat16},
                                {kNVTEBFloat16, kNVTEFloat16},
                                {kNVTEBFloat16, kNVTEFloat8E4M3},
                                {kNVTEFloat8E4M3, kNVTEBFloat16}};
  Buffer *d = buffer(16 * 32 * 4);
  const float one = 1;
  NVTETensor workspace = tensor(g_workspace, kNVTEByte, SHAPE(WORKSPACE));
  for (size_t i = 0; i < COUNT(pairs); i++) {
    NVTETensor operands[2];
    for (size_t j = 0; j < 2; j++) {
      operands[j] = tensor(buffer(32 * 16 * 4)->ptr, pairs[i][j], SHAPE(j ? 16 : 32, 16));
      if (is_fp8(pairs[i][j])) {
        set_param(operands[j], kNVTERowwiseScaleInv, buffer_from(&one, sizeof one, 0)->ptr,
                  kNVTEFloat32, SHAPE(1));
      }
    }
    Gemm g = {.transa = true, .null_handles = true};
    NVTETensor out = tensor(d->ptr, kNVTEFloat32, SHAPE(16, 32));
    gemm_call(&g, operands[0], operands[1], out, out, NULL, NULL, workspace);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_cublas_gemm", "B.dtype", dtype_name(pairs[i][1]));
  }
  NVTETensor a = tensor(buffer(32 * 16 * 4)->ptr, kNVTEFloat32, SHAPE(32, 16));
  NVTETensor b = tensor(buffer(16 * 16 * 4)->ptr, kNVTEFloat32, SHAPE(16, 16));
  Gemm g = {.transa = true, .null_handles = true};
  NVTETensor out = tensor(d->ptr, kNVTEFloat32, SHAPE(32, 16));
  gemm_call(&g, a, b, out, out, NULL, NULL, workspace);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_cublas_gemm", "D.shape: expected [16, 32]",
               "got [32, 16]");
  CHECK(untouched(d), "a refused call wrote to D");
}

static void test_fp8_output(void) {
  const struct {
    NVTEDType a, b, d;
  } products[] = {{kNVTEFloat8E4M3, kNVTEFloat8E4M3, kNVTEFloat8E4M3},
                  {kNVTEFloat8E4M3, kNVTEFloat8E5M2, kNVTEFloat8E4M3},
                  {kNVTEFloat8E5M2, kNVTEFloat8E4M3, kNVTEFloat8E5M2}};
  for (size_t p = 0; p < COUNT(products); p++) {
    for (int k = 0; k < 16; k++) {
      Gemm g = {.a = products[p].a,
                .b = products[p].b,
                .d = products[p].d,
                .m = 64,
                .n = 48,
                .k = 96,
                .transa = k & 1,
                .transb = k & 2,
                .integers = k & 4,
                .bias = k & 8,
                .side = k & 8 ? kNVTEBFloat16 : kNVTEByte,
                .entry = (Entry)(k % 3),
                .alpha = 1,
                .workspace = WORKSPACE,
                .scale_shift = k & 2 ? sizeof(float) : 0,
                .split = k & 1};
      if (gemm_case("fp8 output", &g)) run_gemm(g);
    }
  }
}

// Workspaces: none, tiny, odd; absent tensors as null handles; multiprocessor limits; views.
static void test_surroundings(void) {
  const size_t workspaces[][2] = {{0, 0},    {1, 0},         {16, 1},       {255, 3},
                                  {4096, 8}, {1 << 20, 100}, {WORKSPACE, 4}};
  for (size_t w = 0; w < COUNT(workspaces); w++) {
    for (int k = 0; k < 12; k++) {
      bool fp8 = k >= 6;
      Gemm g = {.a = fp8 ? kNVTEFloat8E4M3 : kNVTEBFloat16,
                .b = fp8 ? kNVTEFloat8E4M3 : kNVTEBFloat16,
                .d = kNVTEBFloat16,
                .m = 64,
                .n = 96,
                .k = 128,
                .transa = true,
                .entry = (Entry)(k % 3),
                .null_handles = k / 3 % 2,
                .workspace = workspaces[w][0],
                .alpha = 1,
                .workspace_shift = workspaces[w][1],
                .integers = true};
      if (case_begin("workspace %zu shifted %zu, %s %s%s", workspaces[w][0], workspaces[w][1],
                     kEntryNames[g.entry], fp8 ? "fp8" : "bf16",
                     g.null_handles ? " null handles" : "")) {
        run_gemm(g);
      }
    }
  }
  for (int k = 0; k < 12; k++) {
    Gemm g = {.a = kNVTEBFloat16,
              .b = kNVTEBFloat16,
              .d = kNVTEFloat32,
              .m = 24,
              .n = 40,
              .k = 32,
              .transa = k & 1,
              .transb = k & 2,
              .integers = true,
              .workspace = WORKSPACE,
              .entry = (Entry)(k % 3),
              .alpha = 1};
    g.rank3 = k / 4 == 0;
    g.misaligned = k / 4 == 1;
    g.sm_count = k / 4 == 2 ? 16 : 0;
    g.may_decline = g.misaligned;
    if (case_begin("%s %d", g.rank3 ? "rank 3" : g.misaligned ? "misaligned" : "16 SMs", k)) {
      run_gemm(g);
    }
  }
  for (int k = 0; k < 4; k++) {
    Gemm g = {.a = kNVTEFloat8E4M3,
              .b = kNVTEFloat8E5M2,
              .d = kNVTEBFloat16,
              .m = 32,
              .n = 48,
              .k = 64,
              .transa = k & 1,
              .transb = k & 2,
              .integers = true,
              .workspace = WORKSPACE,
              .alpha = 1,
              .rank3 = true,
              .one_direction = true,
              .entry = V2};
    if (case_begin("fp8 rank 3 %d", k)) run_gemm(g);
  }
}

// m = 0 or n = 0 writes nothing, not even dbias.
static void test_empty(void) {
  for (int k = 0; k < 6; k++) {
    Entry entry = (Entry)(k % 3);
    size_t m = k < 3 ? 0 : 8, n = k < 3 ? 8 : 0;
    if (!case_begin("empty %s m=%zu n=%zu", kEntryNames[entry], m, n)) continue;
    Gemm g = {.entry = entry, .alpha = 1, .transa = true, .grad = true};
    Buffer *any = buffer(8 * 8 * 4), *dbias = buffer(8 * 4);
    NVTETensor a = tensor(any->ptr, kNVTEFloat32, SHAPE(m, 8));
    NVTETensor b = tensor(any->ptr, kNVTEFloat32, SHAPE(n, 8));
    Buffer *out = buffer(8 * 8 * 4);
    NVTETensor d = tensor(out->ptr, kNVTEFloat32, SHAPE(n, m));
    gemm_call(&g, a, b, d, d, tensor(dbias->ptr, kNVTEFloat32, SHAPE(n)), NULL, empty_tensor());
    EXPECT_OK();
    CHECK(untouched(out), "D was written");
    CHECK(untouched(dbias), "dbias was written");
  }
}

// An empty sum: D = beta C + bias, without a look at D if beta is 0.
static void test_no_products(void) {
  for (size_t p = 0; p < COUNT(kHighProducts); p++) {
    for (int k = 0; k < 12; k++) {
      Gemm g = {.a = kHighProducts[p].in,
                .b = kHighProducts[p].in,
                .d = kHighProducts[p].out,
                .m = 24,
                .n = 16,
                .k = 0,
                .transa = k & 1,
                .beta = k & 2 ? 1 : 0,
                .bias = k >= 6,
                .entry = (Entry)(k % 3),
                .alpha = 1,
                .integers = true,
                .workspace = WORKSPACE};
      if (gemm_case("no products", &g)) run_gemm(g);
    }
  }
}

// C is a matrix apart from D.
static void test_separate_c(void) {
  for (size_t p = 0; p < COUNT(kHighProducts); p++) {
    for (int k = 0; k < 8; k++) {
      Gemm g = {.a = kHighProducts[p].in,
                .b = kHighProducts[p].in,
                .d = kHighProducts[p].out,
                .m = 40,
                .n = 24,
                .k = 32,
                .transa = k & 1,
                .transb = k & 2,
                .beta = k & 4 ? -0.5f : 0,
                .entry = V2,
                .alpha = 2,
                .integers = true,
                .separate_c = true,
                .workspace = WORKSPACE};
      if (gemm_case("separate C", &g)) run_gemm(g);
    }
  }
}

// Where FP8 runs only as TN, the other flags need the transposed copy.
static void test_missing_columnwise(void) {
  for (int k = 0; k < 9; k++) {
    bool transa = k / 3 != 0, transb = k / 3 != 0;
    if (k / 3 == 2) transa = false;
    Entry entry = (Entry)(k % 3);
    if (!case_begin("missing columnwise data %c%c %s", transa ? 'T' : 'N', transb ? 'T' : 'N',
                    kEntryNames[entry])) {
      continue;
    }
    if (nvte_is_non_tn_fp8_gemm_supported()) continue;
    Gemm g = {.entry = entry, .transa = transa, .transb = transb, .alpha = 1};
    Buffer *x = buffer_from(gemm_values(&g, kNVTEFloat8E4M3, 32 * 32), 32 * 32, 0),
           *d = buffer(32 * 32 * 2);
    NVTETensor a = tensor(x->ptr, kNVTEFloat8E4M3, SHAPE(32, 32));
    NVTETensor b = tensor(x->ptr, kNVTEFloat8E4M3, SHAPE(32, 32));
    set_param(a, kNVTERowwiseScaleInv, buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
    set_param(b, kNVTERowwiseScaleInv, buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
    NVTETensor out = tensor(d->ptr, kNVTEBFloat16, SHAPE(32, 32));
    gemm_call(&g, a, b, out, out, NULL, NULL, empty_tensor());
    EXPECT_ERROR(ANY_ERROR, "nvte_cublas_gemm", transa ? "B.columnwise_data" : "A.columnwise_data",
                 "expected", "got");
    CHECK(untouched(d), "D was written");
  }
}

// The same product twice gives the same bits, and from a stream of its own.
static void test_repeat(void) {
  if (!case_begin("repeat")) return;
  enum { SIZE = 160 };
  void *x = random_values(kNVTEBFloat16, SIZE * SIZE, -1, 1);
  Buffer *input = buffer_from(x, SIZE * SIZE * 2, 0);
  Buffer *first = buffer(SIZE * SIZE * 4), *second = buffer(SIZE * SIZE * 4);
  NVTETensor a = tensor(input->ptr, kNVTEBFloat16, SHAPE(SIZE, SIZE));
  NVTETensor workspace = tensor(g_workspace, kNVTEByte, SHAPE(WORKSPACE));
  cudaStream_t stream = nvtex_stream_create();
  float one = 1, zero = 0;
  NVTETensor d = tensor(first->ptr, kNVTEFloat32, SHAPE(SIZE, SIZE));
  NVTETensor e = tensor(second->ptr, kNVTEFloat32, SHAPE(SIZE, SIZE));
  nvte_cublas_gemm_v2(1, 0, &one, a, a, &zero, d, d, workspace, NULL, stream);
  nvte_cublas_gemm_v2(1, 0, &one, a, a, &zero, e, e, workspace, NULL, stream);
  nvtex_stream_synchronize(stream);
  EXPECT_OK();
  CHECK(memcmp(buffer_read(first), buffer_read(second), first->bytes) == 0, "two runs differ");
  CHECK(!untouched(first), "nothing was written");
  nvtex_stream_destroy(stream);
  EXPECT_OK();
}

// ---- Configs

static void test_matmul_config(void) {
  if (!case_begin("matmul config")) return;
  const size_t sizes[kNVTEMatmulConfigNumAttributes] = {8, 8, 1, 1, 8, 1, 4};
  NVTEMatmulConfig config = nvte_create_matmul_config();
  EXPECT_OK();
  CHECK(config != NULL, "null");
  for (int attr = 0; attr < kNVTEMatmulConfigNumAttributes; attr++) {
    unsigned char value[16], zeros[16] = {0};
    size_t written = 99, size = sizes[attr];
    memset(value, 0xEE, sizeof value);
    nvte_get_matmul_config_attribute(config, (NVTEMatmulConfigAttribute)attr, value, 16, &written);
    EXPECT_OK();
    CHECK_EQ(written, size);
    CHECK(memcmp(value, zeros, size) == 0, "the default of attribute %d is not 0", attr);
    CHECK(value[size] == 0xEE, "attribute %d: written past its size", attr);
    // A query needs neither buffer nor config.
    written = 99;
    nvte_get_matmul_config_attribute(NULL, (NVTEMatmulConfigAttribute)attr, NULL, 0, &written);
    EXPECT_OK();
    CHECK_EQ(written, size);
    NVTETensor t = empty_tensor();
    int32_t count = 77;
    uint8_t flag = 2;
    const void *source = size == 8 ? (const void *)&t : size == 4 ? (const void *)&count : &flag;
    nvte_set_matmul_config_attribute(config, (NVTEMatmulConfigAttribute)attr, source, size);
    EXPECT_OK();
    nvte_get_matmul_config_attribute(config, (NVTEMatmulConfigAttribute)attr, value, size,
                                     &written);
    EXPECT_OK();
    if (size == 1) {
      CHECK_EQ(value[0], 1);
    } else {
      CHECK(memcmp(value, source, size) == 0, "attribute %d does not read back", attr);
    }
    const char *const get = "nvte_get_matmul_config_attribute";
    const char *const set = "nvte_set_matmul_config_attribute";
    nvte_get_matmul_config_attribute(config, (NVTEMatmulConfigAttribute)attr, value, size - 1,
                                     &written);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, get, "size_in_bytes", "expected", "got");
    nvte_get_matmul_config_attribute(config, (NVTEMatmulConfigAttribute)attr, value, size, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, get, "size_written", "expected", "got");
    nvte_get_matmul_config_attribute(NULL, (NVTEMatmulConfigAttribute)attr, value, size, &written);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, get, "config", "expected", "got");
    nvte_set_matmul_config_attribute(config, (NVTEMatmulConfigAttribute)attr, source, size - 1);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, set, "size_in_bytes", "expected", "got");
    nvte_set_matmul_config_attribute(config, (NVTEMatmulConfigAttribute)attr, NULL, size);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, set, "buf", "expected", "got");
    nvte_set_matmul_config_attribute(NULL, (NVTEMatmulConfigAttribute)attr, source, size);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, set, "config", "expected", "got");
  }
  nvte_destroy_matmul_config(config);
  EXPECT_OK();
  nvte_destroy_matmul_config(NULL);
  EXPECT_OK();
  nvte_destroy_matmul_config(config);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_destroy_matmul_config", "config", "expected", "got");
}

static void test_grouped_matmul_config(void) {
  if (!case_begin("grouped matmul config")) return;
  const size_t sizes[kNVTEGroupedMatmulConfigNumAttributes] = {8, 8, 8, 4, 1};
  NVTEGroupedMatmulConfig config = nvte_create_grouped_matmul_config();
  EXPECT_OK();
  CHECK(config != NULL, "null");
  for (int a = 0; a < kNVTEGroupedMatmulConfigNumAttributes; a++) {
    NVTEGroupedMatmulConfigAttribute attr = (NVTEGroupedMatmulConfigAttribute)a;
    unsigned char value[16], zeros[16] = {0};
    size_t written = 99, size = sizes[a];
    memset(value, 0xEE, sizeof value);
    nvte_get_grouped_matmul_config_attribute(config, attr, value, 16, &written);
    EXPECT_OK();
    CHECK_EQ(written, size);
    CHECK(memcmp(value, zeros, size) == 0, "the default of attribute %d is not 0", a);
    CHECK(value[size] == 0xEE, "attribute %d: written past its size", a);
    written = 99;
    nvte_get_grouped_matmul_config_attribute(NULL, attr, NULL, 0, &written);
    EXPECT_OK();
    CHECK_EQ(written, size);
    int64_t wide = INT64_C(0x123456789AB);
    int32_t count = 77;
    uint8_t flag = 255;
    const void *source = size == 8 ? (const void *)&wide : size == 4 ? (const void *)&count : &flag;
    nvte_set_grouped_matmul_config_attribute(config, attr, source, 16 > size ? size : 16);
    EXPECT_OK();
    nvte_get_grouped_matmul_config_attribute(config, attr, value, size, &written);
    EXPECT_OK();
    if (size == 1) {
      CHECK_EQ(value[0], 1);
    } else {
      CHECK(memcmp(value, source, size) == 0, "attribute %d does not read back", a);
    }
    const char *const get = "nvte_get_grouped_matmul_config_attribute";
    const char *const set = "nvte_set_grouped_matmul_config_attribute";
    nvte_get_grouped_matmul_config_attribute(config, attr, value, size - 1, &written);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, get, "size_in_bytes", "expected", "got");
    nvte_get_grouped_matmul_config_attribute(config, attr, value, size, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, get, "size_written", "expected", "got");
    nvte_get_grouped_matmul_config_attribute(NULL, attr, value, size, &written);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, get, "config", "expected", "got");
    nvte_set_grouped_matmul_config_attribute(config, attr, source, size - 1);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, set, "size_in_bytes", "expected", "got");
    nvte_set_grouped_matmul_config_attribute(config, attr, NULL, size);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, set, "buf", "expected", "got");
    nvte_set_grouped_matmul_config_attribute(NULL, attr, source, size);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, set, "config", "expected", "got");
  }
  nvte_destroy_grouped_matmul_config(config);
  EXPECT_OK();
  nvte_destroy_grouped_matmul_config(NULL);
  EXPECT_OK();
  nvte_destroy_grouped_matmul_config(config);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_destroy_grouped_matmul_config", "config", "expected",
               "got");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  g_workspace = nvtex_malloc(WORKSPACE);
  EXPECT_OK();
  test_high_precision();
  test_shallow();
  test_few_rows();
  test_alpha_beta();
  test_epilogues();
  test_gelu_tiles();
  test_fp8();
  test_fp8_output();
  test_fp8_odd();
  test_conversions();
  test_disagreements();
  test_surroundings();
  test_empty();
  test_no_products();
  test_separate_c();
  test_missing_columnwise();
  test_repeat();
  test_matmul_config();
  test_grouped_matmul_config();
  case_end();
  nvtex_free(g_workspace);
  return test_end();
}
