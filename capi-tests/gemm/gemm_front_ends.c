// Products as the front ends of PyTorch and JAX call them, and what these rely on where a product
// is refused in a process that uses this library in place of the other one. Row-major: D[n,m] =
// Bop[n,k] Aop[k,m]; expected values in double.
#include "gemm_common.h"

static NVTETensor unused(void) { return tensor(NULL, kNVTEBFloat16, SHAPE(0)); }

static NVTETensor torch_workspace(void) {
  return tensor(g_workspace, kNVTEByte, SHAPE(WORKSPACE + 1024));
}

// Element (i, p) of an operand [outer, k] that may be stored as [k, outer].
static double operand_at(NVTEDType dtype, const void *x, size_t outer, size_t k, bool k_last,
                         size_t i, size_t p) {
  return get_value(dtype, x, k_last ? i * k + p : p * outer + i);
}

// ---- PyTorch

typedef struct Torch {
  const char *name;
  bool transa, transb, grad, gelu, bias, accumulate;
  NVTEDType d;
  int32_t sm_count;
} Torch;

// The handles of the bias, or its gradient, and of GELU's input are always set, to tensors without
// elements where there is nothing; D has as many dimensions as B.
static void run_torch(const Torch *t) {
  const size_t m = 48, n = 32, k = 64, area = n * m;
  const NVTEDType in = kNVTEBFloat16;
  size_t size = dtype_size(t->d), length = t->grad && !t->gelu ? n : m;
  void *a = random_values(in, m * k, -1, 1), *b = random_values(in, n * k, -1, 1);
  void *old = random_values(t->d, area, -1, 1), *bias = random_values(in, length, -1, 1);
  void *aux = random_values(in, area, -2, 2);
  NVTETensor a_tensor =
      tensor(buffer_from(a, m * k * 2, 0)->ptr, in, t->transa ? SHAPE(m, k) : SHAPE(k, m));
  NVTETensor b_tensor = tensor(buffer_from(b, n * k * 2, 0)->ptr, in,
                               t->transb ? SHAPE(2, k / 2, n) : SHAPE(2, n / 2, k));
  Buffer *d = t->accumulate ? buffer_from(old, area * size, 0) : buffer(area * size);
  Buffer *bias_buffer = t->grad ? buffer(length * 2) : buffer_from(bias, length * 2, 0);
  Buffer *aux_buffer = t->grad ? buffer_from(aux, area * 2, 0) : buffer(area * 2);
  NVTETensor d_tensor = tensor(d->ptr, t->d, t->transb ? SHAPE(n, m) : SHAPE(2, n / 2, m));
  NVTETensor bias_tensor = t->bias ? tensor(bias_buffer->ptr, in, SHAPE(length)) : unused();
  NVTETensor aux_tensor = t->gelu ? tensor(aux_buffer->ptr, in, SHAPE(2, n / 2, m)) : unused();
  NVTEMatmulConfig config = own(OWN_MATMUL_CONFIG, nvte_create_matmul_config());
  uint8_t gelu_flag = t->gelu && !t->grad, dgelu_flag = t->gelu && t->grad, split = t->grad;
  const float alpha = 1, beta = t->accumulate ? 1 : 0;
  nvte_set_matmul_config_attribute(
      config, t->grad ? kNVTEMatmulConfigDBiasTensor : kNVTEMatmulConfigBiasTensor, &bias_tensor,
      sizeof bias_tensor);
  nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigWithGELUEpilogue, &gelu_flag, 1);
  nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigWithDGELUEpilogue, &dgelu_flag, 1);
  nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigEpilogueAuxTensor, &aux_tensor,
                                   sizeof aux_tensor);
  nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigUseSplitAccumulator, &split, 1);
  nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigSMCount, &t->sm_count,
                                   sizeof t->sm_count);
  EXPECT_OK();
  nvte_cublas_gemm_v2(t->transa, t->transb, &alpha, a_tensor, b_tensor, &beta, d_tensor, d_tensor,
                      torch_workspace(), config, NULL);
  if (!EXPECT_OK()) return;
  const void *got = buffer_read(d), *bias_got = buffer_read(bias_buffer);
  const void *aux_got = buffer_read(aux_buffer);
  double column[48] = {0};
  size_t bad = 0;
  for (size_t j = 0; j < n && bad < 3; j++) {
    double row = 0;
    for (size_t p = 0; p < k; p++) row += operand_at(in, b, n, k, !t->transb, j, p);
    for (size_t i = 0; i < m && bad < 3; i++) {
      double v = 0;
      for (size_t p = 0; p < k; p++) {
        v += operand_at(in, a, m, k, t->transa, i, p) * operand_at(in, b, n, k, !t->transb, j, p);
      }
      size_t at = j * m + i;
      if (t->accumulate) v += get_value(t->d, old, at);
      if (t->bias && !t->grad) v += get_value(in, bias, i);
      if (t->gelu && !t->grad) {
        double pre = get_value(in, aux_got, at);
        bad += !CHECK(fabs(pre - v) <= 2 * step_at(in, fabs(v) + 1), "aux[%zu]: %g, expected %g",
                      at, pre, v);
        v = gelu(v);
      } else if (t->gelu) {
        v *= dgelu(get_value(in, aux, at));
      }
      column[i] += v;
      double value = get_value(t->d, got, at);
      bad += !CHECK(fabs(value - v) <= 2 * step_at(t->d, fabs(v) + 1) + 4e-3 * t->gelu + 1e-5,
                    "D[%zu][%zu]: got %.9g, expected %.9g", j, i, value, v);
    }
    if (t->bias && t->grad && !t->gelu) {
      double value = get_value(in, bias_got, j);
      bad += !CHECK(fabs(value - row) <= 2 * step_at(in, fabs(row) + 1),
                    "bias gradient [%zu]: got %.9g, expected %.9g", j, value, row);
    }
  }
  for (size_t i = 0; i < m && bad < 3 && t->bias && t->grad && t->gelu; i++) {
    double value = get_value(in, bias_got, i);
    bad += !CHECK(fabs(value - column[i]) <= 2 * step_at(in, fabs(column[i]) + 1) + 0.1,
                  "bias gradient [%zu]: got %.9g, expected %.9g", i, value, column[i]);
  }
  if (!t->bias) CHECK(memcmp(bias_got, t->grad ? bias_got : bias, length * 2) == 0, "bias changed");
}

static void test_torch(void) {
  const Torch calls[] = {
      {"forward", true, false, false, false, false, false, kNVTEBFloat16, 0},
      {"forward with bias", true, false, false, false, true, false, kNVTEBFloat16, 100},
      {"forward with GELU", true, false, false, true, true, false, kNVTEBFloat16, 0},
      {"input gradient", false, false, true, false, false, false, kNVTEBFloat16, 0},
      {"input gradient with dGELU", false, false, true, true, true, false, kNVTEBFloat16, 0},
      {"weight gradient with bias gradient", false, true, true, false, true, false, kNVTEBFloat16,
       100},
      {"weight gradient, accumulated", false, true, true, false, false, true, kNVTEFloat32, 0},
  };
  for (size_t i = 0; i < COUNT(calls); i++) {
    if (case_begin("torch %s", calls[i].name)) run_torch(&calls[i]);
  }
}

// ---- JAX

// FP8 with one direction of each operand, and a workspace of which 256 bytes are left out after it
// has been aligned.
static void test_jax_fp8(void) {
  if (!case_begin("jax FP8")) return;
  const size_t m = 64, n = 48, k = 96;
  const NVTEDType fp8 = kNVTEFloat8E4M3, out = kNVTEBFloat16;
  void *a = random_values(fp8, m * k, -2, 2), *b = random_values(fp8, n * k, -2, 2);
  void *bias = random_values(out, m, -1, 1);
  Buffer *d = buffer(n * m * 2);
  NVTETensor a_tensor = empty_tensor(), b_tensor = empty_tensor();
  set_param(a_tensor, kNVTEColumnwiseData, buffer_from(a, m * k, 0)->ptr, fp8, SHAPE(m, k));
  set_param(a_tensor, kNVTEColumnwiseScaleInv, buffer_float(0.5f)->ptr, kNVTEFloat32, SHAPE(1));
  set_param(b_tensor, kNVTERowwiseData, buffer_from(b, n * k, 0)->ptr, fp8, SHAPE(n, k));
  set_param(b_tensor, kNVTERowwiseScaleInv, buffer_float(0.25f)->ptr, kNVTEFloat32, SHAPE(1));
  NVTETensor d_tensor = tensor(d->ptr, out, SHAPE(n, m)), aux = unused();
  NVTETensor bias_tensor = tensor(buffer_from(bias, m * 2, 0)->ptr, out, SHAPE(m));
  NVTEMatmulConfig config = own(OWN_MATMUL_CONFIG, nvte_create_matmul_config());
  int32_t sm_count = 132;
  nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigBiasTensor, &bias_tensor,
                                   sizeof bias_tensor);
  nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigEpilogueAuxTensor, &aux, sizeof aux);
  nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigSMCount, &sm_count, sizeof sm_count);
  const float one = 1, zero = 0;
  NVTETensor workspace = tensor((char *)g_workspace + 256, kNVTEByte, SHAPE(WORKSPACE - 256));
  nvte_cublas_gemm_v2(0, 0, &one, a_tensor, b_tensor, &zero, d_tensor, d_tensor, workspace, config,
                      NULL);
  if (!EXPECT_OK()) return;
  const void *got = buffer_read(d);
  size_t bad = 0;
  for (size_t i = 0; i < n * m && bad < 3; i++) {
    double sum = 0, magnitude = 0;
    for (size_t p = 0; p < k; p++) {
      double x = get_value(fp8, a, i % m * k + p) * get_value(fp8, b, i / m * k + p) / 8;
      sum += x;
      magnitude += fabs(x);
    }
    sum += get_value(out, bias, i % m);
    double value = get_value(out, got, i), error = magnitude * 0x1p-9 + 2 * step_at(out, fabs(sum));
    bad += !CHECK(fabs(value - sum) <= error, "D[%zu]: got %.9g, expected %.9g", i, value, sum);
  }
}

// NVFP4 without amaxes, whose factors are on the device.
static void test_jax_nvfp4(void) {
  if (!case_begin("jax NVFP4")) return;
  const size_t m = 64, n = 32, k = 128;
  NVTETensor operands[2];
  for (int i = 0; i < 2; i++) {
    // Elements 1, with scales 2 and 0.5.
    size_t outer = i ? n : m;
    unsigned char *codes = host_memory(outer * k / 2), *scales = host_memory(128 * k / 16);
    memset(codes, 0x22, outer * k / 2);
    memset(scales, i ? 0x30 : 0x40, 128 * k / 16);
    operands[i] = tensor_of_mode(NVTE_NVFP4_1D_SCALING);
    set_param(operands[i], kNVTERowwiseData, buffer_from(codes, outer * k / 2, 0)->ptr,
              kNVTEFloat4E2M1, SHAPE(outer, k));
    set_param(operands[i], kNVTERowwiseScaleInv, buffer_from(scales, 128 * k / 16, 0)->ptr,
              kNVTEFloat8E4M3, SHAPE(128, k / 16));
    uint8_t yes = 1;
    nvte_set_tensor_param_v2(operands[i], kNVTEWithGEMMSwizzledScales, &yes, sizeof yes);
  }
  Buffer *d = buffer(n * m * 2);
  NVTETensor d_tensor = tensor(d->ptr, kNVTEBFloat16, SHAPE(n, m));
  nvte_cublas_gemm_v2(1, 0, (float *)(void *)buffer_float(0.75f)->ptr, operands[0], operands[1],
                      (float *)(void *)buffer_float(0)->ptr, d_tensor, d_tensor, torch_workspace(),
                      own(OWN_MATMUL_CONFIG, nvte_create_matmul_config()), NULL);
  if (!EXPECT_OK()) return;
  const void *got = buffer_read(d);
  for (size_t i = 0; i < n * m; i++) {
    double value = get_value(kNVTEBFloat16, got, i);
    if (!CHECK(value == 0.75 * (double)k, "D[%zu]: got %g", i, value)) break;
  }
}

static NVTEGroupedTensor grouped(size_t count, size_t rows, size_t cols, NVTEDType dtype,
                                 void *data, int64_t *sizes) {
  NVTEGroupedTensor g =
      nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, count, SHAPE(rows, cols));
  NVTEBasicTensor b = basic(data, dtype, SHAPE(rows, cols));
  nvte_set_grouped_tensor_param(g, kNVTEGroupedRowwiseData, &b, sizeof b);
  b = basic(sizes, kNVTEInt64, SHAPE(count));
  if (sizes) nvte_set_grouped_tensor_param(g, kNVTEGroupedFirstDims, &b, sizeof b);
  EXPECT_OK();
  return g;
}

// No C; uniform operands as matrices of two dimensions without sizes; sizes of the others widened
// to 64 bits on the device just before. Forward: weights [k, m] of each member times its rows; else
// the weights' gradient.
static void run_jax_grouped(bool forward) {
  enum { COUNT_OF_GROUP = 4 };
  const int32_t sizes[COUNT_OF_GROUP] = {24, 0, 40, 8};
  const size_t total = 72, m = 32, width = 48;  // width: k forward, else n
  const NVTEDType dtype = kNVTEBFloat16;
  size_t uniform = COUNT_OF_GROUP * width;
  void *rows_a = random_values(dtype, (forward ? uniform : total) * m, -1, 1);
  void *rows_b = random_values(dtype, total * width, -1, 1);
  int64_t *wide = (int64_t *)(void *)buffer(sizeof(int64_t) * COUNT_OF_GROUP)->ptr;
  nvte_convert_int32_to_int64(
      (const int32_t *)(const void *)buffer_from(sizes, sizeof sizes, 0)->ptr, wide, COUNT_OF_GROUP,
      NULL);
  Buffer *d = buffer((forward ? total : uniform) * m * 2);
  void *a_data = buffer_from(rows_a, (forward ? uniform : total) * m * 2, 0)->ptr;
  void *b_data = buffer_from(rows_b, total * width * 2, 0)->ptr;
  NVTEGroupedTensor a =
      grouped(COUNT_OF_GROUP, forward ? uniform : total, m, dtype, a_data, forward ? NULL : wide);
  NVTEGroupedTensor b = grouped(COUNT_OF_GROUP, total, width, dtype, b_data, wide);
  NVTEGroupedTensor out =
      grouped(COUNT_OF_GROUP, forward ? total : uniform, m, dtype, d->ptr, forward ? wide : NULL);
  size_t setup = nvte_get_grouped_gemm_setup_workspace_size(COUNT_OF_GROUP);
  NVTETensor setup_tensor = tensor(buffer(setup)->ptr, kNVTEByte, SHAPE(setup));
  NVTETensor workspace = tensor(g_workspace, kNVTEByte, SHAPE(WORKSPACE));
  NVTETensor alpha = tensor(buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
  NVTETensor beta = tensor(buffer_float(0)->ptr, kNVTEFloat32, SHAPE(1));
  NVTEGroupedMatmulConfig config = nvte_create_grouped_matmul_config();
  nvte_grouped_gemm(a, 0, b, !forward, NULL, out, alpha, beta, setup_tensor, workspace, config,
                    NULL);
  nvtex_stream_synchronize(NULL);
  if (EXPECT_OK()) {
    const void *got = buffer_read(d);
    size_t bad = 0, begin = 0;
    for (size_t t = 0; t < COUNT_OF_GROUP; begin += (size_t)sizes[t++]) {
      size_t n = forward ? (size_t)sizes[t] : width, k = forward ? width : (size_t)sizes[t];
      for (size_t i = 0; i < n * m && bad < 3; i++) {
        double sum = 0;
        for (size_t p = 0; p < k; p++) {
          size_t a_row = forward ? t * width + p : begin + p;
          size_t b_at = forward ? (begin + i / m) * width + p : (begin + p) * width + i / m;
          sum += get_value(dtype, rows_a, a_row * m + i % m) * get_value(dtype, rows_b, b_at);
        }
        double value = get_value(dtype, got, (forward ? begin : t * width) * m + i);
        bad += !CHECK(fabs(value - sum) <= step_at(dtype, fabs(sum) + 1),
                      "D%zu[%zu]: %g, expected %g", t, i, value, sum);
      }
    }
  }
  nvte_destroy_grouped_matmul_config(config);
  nvte_destroy_grouped_tensor(a);
  nvte_destroy_grouped_tensor(b);
  nvte_destroy_grouped_tensor(out);
}

// ---- In place of the other library

// An operand [outer, k] in FP8 blocks, all of whose elements are 1 and scales 2.
static NVTETensor block_operand(NVTEScalingMode mode, NVTEDType dtype, size_t outer, size_t k) {
  unsigned char *codes = host_memory(outer * k);
  memset(codes, (int)encode_bits(dtype, 1), outer * k);
  bool lines = mode == NVTE_BLOCK_SCALING_1D;
  size_t blocks = (k + 127) / 128, first = lines ? blocks : (outer + 127) / 128;
  size_t second = ((lines ? outer : blocks) + 3) / 4 * 4;
  float *scales = host_memory(first * second * sizeof(float));
  for (size_t i = 0; i < first * second; i++) scales[i] = 2;
  NVTETensor t = tensor_of_mode(mode);
  set_param(t, kNVTERowwiseData, buffer_from(codes, outer * k, 0)->ptr, dtype, SHAPE(outer, k));
  set_param(t, kNVTERowwiseScaleInv, buffer_from(scales, first * second * 4, 0)->ptr, kNVTEFloat32,
            SHAPE(first, second));
  return t;
}

typedef struct Refusal {
  const char *name, *words;
  NVTEScalingMode a, b;
  NVTEDType dtype, d;
  size_t m, n, k;
  bool bias, gelu, grad, fast;
  bool always;  // Refused in every process.
} Refusal;

// 4 * k in every element of D, more with an epilogue.
static bool all_are(const Buffer *d, NVTEDType dtype, size_t n, double want) {
  const void *got = buffer_read(d);
  for (size_t i = 0; i < n; i++) {
    if (get_value(dtype, got, i) != want) return false;
  }
  return true;
}

static void run_refusal(const Refusal *r) {
  size_t size = dtype_size(r->d), area = r->n * r->m, length = r->grad && !r->gelu ? r->n : r->m;
  Buffer *d = buffer(area * size), *bias = buffer(length * 2);
  float *zeros = host_memory(area * 4);
  Buffer *aux = buffer_from(zeros, area * 2, 0);
  NVTETensor a = block_operand(r->a, r->dtype, r->m, r->k);
  NVTETensor b = block_operand(r->b, r->dtype, r->n, r->k);
  Gemm g = {.m = r->m,
            .n = r->n,
            .k = r->k,
            .transa = true,
            .grad = r->grad,
            .alpha = 1,
            .gelu = r->gelu,
            .split = !r->fast};
  NVTETensor d_tensor = tensor(d->ptr, r->d, SHAPE(r->n, r->m));
  NVTETensor bias_tensor = r->bias ? tensor(bias->ptr, kNVTEBFloat16, SHAPE(length)) : NULL;
  NVTETensor aux_tensor = r->gelu ? tensor(aux->ptr, kNVTEBFloat16, SHAPE(r->n, r->m)) : NULL;
  for (int i = 0; i < 3; i++) {
    g.entry = (Entry)i;
    gemm_call(&g, a, b, d_tensor, d_tensor, bias_tensor, aux_tensor, torch_workspace());
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_cublas_gemm", "expected", "got", r->words);
  }
  CHECK(untouched(d) && untouched(bias), "a refused call wrote something");
  // Without the switch it is computed, or refused in the library's own words.
  nvtex_set_drop_in(false);
  gemm_call(&g, a, b, d_tensor, d_tensor, bias_tensor, aux_tensor, torch_workspace());
  if (r->always) {
    const char *text = nvtex_last_error();
    CHECK(!strstr(text, r->words), "the other library's words in \"%s\"", text);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_cublas_gemm", "expected", "got");
  } else if (EXPECT_OK()) {
    // dGELU of 0 is 0.5.
    double want = 4.0 * (double)r->k * (r->gelu ? 0.5 : 1);
    CHECK(all_are(d, r->d, area, want), "D is not %g", want);
  }
  nvtex_set_drop_in(true);
}

static void test_refusals(void) {
  const NVTEScalingMode d1 = NVTE_BLOCK_SCALING_1D, d2 = NVTE_BLOCK_SCALING_2D;
  const NVTEDType e4m3 = kNVTEFloat8E4M3, e5m2 = kNVTEFloat8E5M2;
  const NVTEDType bf16 = kNVTEBFloat16, f32 = kNVTEFloat32;
  const char *unsupported = "CUBLAS_STATUS_NOT_SUPPORTED";
  const char *epilogue = "Epilogue requested outside of the available";
  const char *dimension = "dimension requirement";
  const Refusal refusals[] = {
      {"fast accumulation", unsupported, d1, d1, e4m3, bf16, 16, 16, 32, .fast = true},
      {"both E5M2", unsupported, d1, d2, e5m2, bf16, 16, 16, 32, .fast = false},
      {"bias gradient", epilogue, d1, d1, e4m3, bf16, 16, 16, 32, .bias = true, .grad = true,
       .always = true},
      {"GELU", epilogue, d2, d1, e4m3, bf16, 16, 16, 32, .gelu = true, .always = true},
      {"dGELU and bias gradient", epilogue, d1, d1, e4m3, bf16, 16, 16, 32, .bias = true,
       .gelu = true, .grad = true, .always = true},
      {"dGELU to float32", "an unsupported value or parameter was passed", d1, d1, e4m3, f32, 16,
       16, 32, .gelu = true, .grad = true},
      {"square blocks", "Only 1D by 1D, 1D by 2D, and 2D by 1D block scaling GEMM is supported", d2,
       d2, e4m3, bf16, 16, 16, 32, .always = true},
      {"k", dimension, d1, d1, e4m3, f32, 16, 16, 40, .fast = false},
      {"m", dimension, d1, d2, e4m3, f32, 12, 16, 32, .fast = false},
      {"n", dimension, d2, d1, e4m3, f32, 16, 12, 32, .fast = false},
  };
  for (size_t i = 0; i < COUNT(refusals); i++) {
    if (case_begin("refused: %s", refusals[i].name)) run_refusal(&refusals[i]);
  }
  if (case_begin("refused: other modes")) {
    Gemm g = {.transa = true, .split = true, .alpha = 1};
    Buffer *d = buffer(16 * 16 * 2);
    NVTETensor b = tensor(buffer(16 * 32 * 2)->ptr, bf16, SHAPE(16, 32));
    NVTETensor d_tensor = tensor(d->ptr, bf16, SHAPE(16, 16));
    gemm_call(&g, block_operand(d1, e4m3, 16, 32), b, d_tensor, d_tensor, NULL, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "scaling_mode");
  }
}

// What a drop-in still takes: rows of B free beside square blocks, and lists of products without
// the flag of the split accumulator.
static void test_accepted(void) {
  const NVTEScalingMode d1 = NVTE_BLOCK_SCALING_1D, d2 = NVTE_BLOCK_SCALING_2D;
  if (case_begin("accepted: rows of B beside square blocks")) {
    Gemm g = {.transa = true, .split = true, .alpha = 1};
    Buffer *d = buffer(13 * 16 * 4);
    NVTETensor d_tensor = tensor(d->ptr, kNVTEFloat32, SHAPE(13, 16));
    gemm_call(&g, block_operand(d1, kNVTEFloat8E4M3, 16, 32),
              block_operand(d2, kNVTEFloat8E5M2, 13, 32), d_tensor, d_tensor, NULL, NULL,
              torch_workspace());
    if (EXPECT_OK()) CHECK(all_are(d, kNVTEFloat32, 13 * 16, 128), "D is not 128");
  }
  if (case_begin("accepted: a list without split accumulator")) {
    Buffer *out[2];
    NVTETensor a[2], b[2], d[2], workspace[2], bias[2], aux[2];
    for (size_t i = 0; i < 2; i++) {
      a[i] = block_operand(d2, kNVTEFloat8E4M3, 16, 32 << i);
      b[i] = block_operand(d1, kNVTEFloat8E4M3, 24, 32 << i);
      out[i] = buffer(24 * 16 * 4);
      d[i] = tensor(out[i]->ptr, kNVTEFloat32, SHAPE(24, 16));
      bias[i] = aux[i] = unused();
      workspace[i] =
          tensor((char *)g_workspace + i * (WORKSPACE / 2), kNVTEByte, SHAPE(WORKSPACE / 2));
    }
    nvte_multi_tensor_gemm(a, b, d, bias, aux, 2, true, false, false, workspace, false, false, 0,
                           NULL);
    for (size_t i = 0; i < 2 && EXPECT_OK(); i++) {
      CHECK(all_are(out[i], kNVTEFloat32, 24 * 16, (double)(128 << i)), "D of product %zu", i);
    }
  }
}

// A group of two products of operands in FP8 blocks, whose elements are 1 and scales 2, without the
// flag of the split accumulator.
static void test_grouped_blocks(void) {
  if (!case_begin("grouped FP8 blocks without split accumulator")) return;
  const size_t m = 16, n = 24, k = 32;
  NVTEGroupedTensor operands[2];
  for (size_t i = 0; i < 2; i++) {
    size_t outer = i ? n : m;
    unsigned char *codes = host_memory(2 * outer * k);
    memset(codes, (int)encode_bits(kNVTEFloat8E4M3, 1), 2 * outer * k);
    float *scales = host_memory(2 * outer * sizeof(float));
    for (size_t j = 0; j < 2 * outer; j++) scales[j] = 2;
    operands[i] = nvte_create_grouped_tensor(NVTE_BLOCK_SCALING_1D, 2, SHAPE(2 * outer, k));
    NVTEBasicTensor b =
        basic(buffer_from(codes, 2 * outer * k, 0)->ptr, kNVTEFloat8E4M3, SHAPE(2 * outer * k));
    nvte_set_grouped_tensor_param(operands[i], kNVTEGroupedRowwiseData, &b, sizeof b);
    b = basic(buffer_from(scales, 2 * outer * sizeof(float), 0)->ptr, kNVTEFloat32,
              SHAPE(2 * outer));
    nvte_set_grouped_tensor_param(operands[i], kNVTEGroupedRowwiseScaleInv, &b, sizeof b);
  }
  Buffer *d = buffer(2 * n * m * 4);
  NVTEGroupedTensor out = grouped(2, 2 * n, m, kNVTEFloat32, d->ptr, NULL);
  size_t setup = nvte_get_grouped_gemm_setup_workspace_size(2);
  NVTETensor setup_tensor = tensor(buffer(setup)->ptr, kNVTEByte, SHAPE(setup));
  NVTETensor workspace = tensor(g_workspace, kNVTEByte, SHAPE(WORKSPACE));
  NVTETensor alpha = tensor(buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
  NVTETensor beta = tensor(buffer_float(0)->ptr, kNVTEFloat32, SHAPE(1));
  for (int drop_in = 1; drop_in >= 0; drop_in--) {
    nvtex_set_drop_in(drop_in);
    nvte_grouped_gemm(operands[0], 1, operands[1], 0, NULL, out, alpha, beta, setup_tensor,
                      workspace, NULL, NULL);
    if (drop_in) {
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_grouped_gemm", "config.use_split_accumulator",
                   "CUBLAS_STATUS_NOT_SUPPORTED");
      CHECK(untouched(d), "a refused call wrote to D");
    } else if (EXPECT_OK()) {
      CHECK(all_are(d, kNVTEFloat32, 2 * n * m, 128), "D is not 128");
    }
  }
  nvtex_set_drop_in(true);
  for (size_t i = 0; i < 2; i++) nvte_destroy_grouped_tensor(operands[i]);
  nvte_destroy_grouped_tensor(out);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  g_workspace = nvtex_malloc(WORKSPACE + 1024);
  // What holds in a drop-in, except for errors, which are looked at here.
  nvtex_set_drop_in(true);
  nvtex_set_error_mode(NVTEX_ERROR_RETURN);
  EXPECT_OK();
  test_torch();
  test_jax_fp8();
  test_jax_nvfp4();
  for (int forward = 0; forward < 2; forward++) {
    if (case_begin("jax grouped %s", forward ? "forward" : "weight gradient")) {
      run_jax_grouped(forward);
    }
  }
  test_refusals();
  test_accepted();
  test_grouped_blocks();
  case_end();
  nvtex_free(g_workspace);
  return test_end();
}
