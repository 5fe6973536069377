// Matrix products of NVFP4 operands (gemm_comm.md, section 3.6). Row-major: D[n,m] = Bop[n,k]
// Aop[k,m]. Codes, scales and amaxes are made here, expected values in double.
#include "gemm_common.h"

typedef struct Case {
  size_t m, n, k;
  bool transa, transb, bf16, swizzled, device, both_directions, misaligned, bias, gelu, separate_c;
  float alpha, beta;
  int32_t max_a, max_b;
  size_t workspace;  // 0: the usual one
} Case;

// An operand as the product sees it: [outer, k].
typedef struct Operand {
  size_t outer, k;
  double *values;
  float amax;
} Operand;

static const double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

static size_t round_up(size_t a, size_t b) { return (a + b - 1) / b * b; }

static NVTETensor operand_tensor(const Case *c, Operand *o, bool rowwise, int32_t e4m3_max,
                                 bool nan_scale) {
  size_t blocks = o->k / 16, stride = round_up(blocks, 4), lines = round_up(o->outer, 128);
  unsigned char *codes = host_memory(o->outer * o->k / 2), *scales = host_memory(lines * stride);
  memset(scales, 0x7F, lines * stride);
  o->values = host_memory(o->outer * o->k * sizeof(double));
  for (size_t i = 0; i < o->outer; i++) {
    for (size_t j = 0; j < blocks; j++) {
      uint32_t scale = encode_bits(kNVTEFloat8E4M3, random_uniform(0.25, 8) * (j % 5 ? 1 : 50));
      if (nan_scale && i + j == 0) scale = 0x7F;
      size_t at = i * stride + j;
      if (c->swizzled) {
        at = (i / 128 * (stride / 4) + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
      }
      scales[at] = (unsigned char)scale;
      for (size_t p = 16 * j; p < 16 * j + 16; p++) {
        unsigned code = (unsigned)random_below(16);
        size_t e = i * o->k + p;
        codes[e / 2] = (unsigned char)(codes[e / 2] | code << e % 2 * 4);
        o->values[e] = kValues[code] * decode_bits(kNVTEFloat8E4M3, scale);
      }
    }
  }
  NVTETensor t = tensor_of_mode(NVTE_NVFP4_1D_SCALING);
  for (int direction = 0; direction < 2; direction++) {
    bool wanted = direction == !rowwise;
    if (!wanted && !c->both_directions) continue;
    // The direction that is not read holds garbage.
    unsigned char *bytes = codes;
    size_t first = o->outer, second = o->k, rows = lines, cols = stride;
    if (!wanted) {
      first = o->k, second = o->outer;
      rows = round_up(first, 128), cols = round_up((second + 15) / 16, 4);
      bytes = host_memory(o->outer * o->k / 2 + 1);
      memset(bytes, 0x77, o->outer * o->k / 2);
    }
    set_param(t, direction ? kNVTEColumnwiseData : kNVTERowwiseData,
              buffer_from(bytes, o->outer * o->k / 2, c->misaligned ? 1 : 0)->ptr, kNVTEFloat4E2M1,
              SHAPE(first, second));
    Buffer *s =
        wanted ? buffer_from(scales, rows * cols, c->misaligned ? 1 : 0) : buffer(rows * cols);
    set_param(t, direction ? kNVTEColumnwiseScaleInv : kNVTERowwiseScaleInv, s->ptr,
              kNVTEFloat8E4M3, SHAPE(rows, cols));
    if (wanted && c->device) continue;
    o->amax = wanted ? (float)random_uniform(1, 100) : o->amax;
    set_param(t, direction ? kNVTEColumnwiseAmax : kNVTEAmax,
              buffer_float(wanted ? o->amax : 1e9f)->ptr, kNVTEFloat32, SHAPE(1));
  }
  uint8_t swizzled = c->swizzled;
  nvte_set_tensor_param_v2(t, kNVTEWithGEMMSwizzledScales, &swizzled, sizeof swizzled);
  nvte_set_tensor_param_v2(t, kNVTENVFP4E4M3Max, &e4m3_max, sizeof e4m3_max);
  EXPECT_OK();
  return t;
}

static NVTEMatmulConfig epilogue(NVTETensor bias, NVTETensor aux) {
  NVTEMatmulConfig config = own(OWN_MATMUL_CONFIG, nvte_create_matmul_config());
  uint8_t yes = 1;
  if (bias) {
    nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigBiasTensor, &bias, sizeof bias);
  }
  if (aux) {
    nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigWithGELUEpilogue, &yes, sizeof yes);
    nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigEpilogueAuxTensor, &aux, sizeof aux);
  }
  return config;
}

static void run(Case c, bool nan_scale) {
  size_t m = c.m, n = c.n, k = c.k;
  NVTEDType dtype = c.bf16 ? kNVTEBFloat16 : kNVTEFloat32;
  size_t size = dtype_size(dtype), area = n * m;
  Operand x = {m, k, NULL, 0}, y = {n, k, NULL, 0};
  NVTETensor a = operand_tensor(&c, &x, c.transa, c.max_a, nan_scale);
  NVTETensor b = operand_tensor(&c, &y, !c.transb, c.max_b, false);
  double global = c.device ? 1 : (double)x.amax * (double)y.amax / (36.0 * c.max_a * c.max_b);

  void *old = random_values(dtype, area, -8, 8), *bias_values = NULL;
  // D is NaN if it must not be read.
  Buffer *d = buffer(area * size), *source = d;
  if (c.separate_c) source = buffer_from(old, area * size, 0);
  if (c.beta != 0 && !c.separate_c) upload(d->ptr, old, area * size);
  NVTETensor d_tensor = tensor(d->ptr, dtype, SHAPE(n, m)), c_tensor = d_tensor, bias = NULL;
  if (c.separate_c) c_tensor = tensor(source->ptr, dtype, SHAPE(n, m));
  if (c.bias) {
    bias_values = random_values(kNVTEBFloat16, m, -4, 4);
    bias = tensor(buffer_from(bias_values, m * 2, 0)->ptr, kNVTEBFloat16, SHAPE(m));
  }
  Buffer *aux = c.gelu ? buffer(area * 2) : NULL;
  NVTETensor aux_tensor = aux ? tensor(aux->ptr, kNVTEBFloat16, SHAPE(n, m)) : NULL;
  const float *alpha = &c.alpha, *beta = &c.beta;
  if (c.device) {
    alpha = (float *)(void *)buffer_float(c.alpha)->ptr;
    beta = (float *)(void *)buffer_float(c.beta)->ptr;
  }
  nvte_cublas_gemm_v2(c.transa, c.transb, alpha, a, b, beta, c_tensor, d_tensor,
                      tensor(g_workspace, kNVTEByte, SHAPE(c.workspace ? c.workspace : WORKSPACE)),
                      epilogue(bias, aux_tensor), NULL);
  if (!EXPECT_OK()) return;
  const void *got = buffer_read(d), *pre = aux ? buffer_read(aux) : NULL;
  size_t bad = 0;
  for (size_t j = 0; j < n && bad < 5; j++) {
    for (size_t i = 0; i < m && bad < 5; i++) {
      double sum = 0, magnitude = 0;
      for (size_t p = 0; p < k; p++) {
        double product = x.values[i * k + p] * y.values[j * k + p];
        sum += product;
        magnitude += fabs(product);
      }
      size_t at = j * m + i;
      double factor = (double)c.alpha * global, v = factor * sum;
      double error = fabs(factor) * magnitude * (ldexp((double)k, -24) + 0x1p-20);
      if (c.beta != 0) v += (double)c.beta * get_value(dtype, old, at);
      if (bias) v += get_value(kNVTEBFloat16, bias_values, i);
      // cuBLASLt may round at every step.
      if (c.beta != 0 || bias) error += 2 * step_at(dtype, fabs(v) + 8);
      double value = get_value(dtype, got, at);
      if (aux) {
        double written = get_value(kNVTEBFloat16, pre, at);
        bad += !CHECK(close_enough(kNVTEBFloat16, written, v, error + 1e-3),
                      "aux[%zu][%zu]: got %.9g, expected %.9g", j, i, written, v);
        v = gelu(v);
        error = error * 1.2 + 1e-3 + 1e-2 * fabs(v);
      }
      bool good = isnan(v) ? isnan(value) : close_enough(dtype, value, v, error + 1e-30);
      bad += !CHECK(good, "D[%zu][%zu]: got %.9g, expected %.9g +- %g", j, i, value, v, error);
    }
  }
}

static void test_products(void) {
  const size_t sizes[][3] = {{16, 16, 16},   {128, 64, 64},   {48, 80, 144}, {8, 8, 16},
                             {200, 24, 272}, {256, 128, 512}, {24, 8, 1040}, {1, 3, 32}};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    for (int k = 0; k < 16; k++) {
      Case c = {sizes[s][0], sizes[s][1], sizes[s][2], k & 1,  k & 2, k & 4,
                k & 8,       s % 3 == 2,  k % 3 == 0,  s == 3, false, false,
                false,       1.5f,        0,           448,    448,   0};
      if (k % 4 == 1) c.max_a = 256;
      if (k % 5 == 2) c.max_b = 256;
      if ((size_t)k % 3 == s % 3) c.beta = k % 2 ? 1.0f : 0.5f;
      if (c.beta != 0 && k % 2) c.separate_c = true;
      if (case_begin("%zux%zux%zu %c%c to %s%s%s%s beta %g", c.m, c.n, c.k, c.transa ? 'T' : 'N',
                     c.transb ? 'T' : 'N', c.bf16 ? "bf16" : "f32", c.swizzled ? " swizzled" : "",
                     c.device ? " device factors" : "", c.both_directions ? " both directions" : "",
                     (double)c.beta)) {
        run(c, false);
      }
    }
  }
  for (int k = 0; k < 4; k++) {
    Case c = {64,    32,   96,    true,  false, true, true, k & 1, false,
              false, true, k & 2, false, 1,     0,    448,  448,   0};
    if (case_begin("bias%s%s", c.gelu ? " gelu" : "", c.device ? " device factors" : "")) {
      run(c, false);
    }
  }
  // Operands that would not fit into the workspace as 16-bit matrices.
  const size_t large[][3] = {{200, 136, 272}, {264, 272, 400}, {24, 520, 1040}, {600, 8, 528}};
  for (size_t s = 0; s < COUNT(large); s++) {
    for (int k = 0; k < 8; k++) {
      Case c = {large[s][0], large[s][1], large[s][2], k & 1,  k & 2,  s % 2,
                k & 4,       k % 3 == 1,  false,       k == 6, k == 5, k == 5 || k == 7,
                k == 2,      1.25f,       0,           448,    256,    0};
      if (k == 2 || k == 3) c.beta = k == 2 ? 0.5f : 1.0f;
      c.workspace = k % 2 ? 64 << 10 : 96 << 10;
      if (case_begin("little workspace %zux%zux%zu %d", c.m, c.n, c.k, k)) run(c, false);
    }
  }
  Case c = {32,    16,    64,    true,  false, false, true, false, false,
            false, false, false, false, 1,     0,     448,  448,   0};
  if (case_begin("a NaN scale")) run(c, true);
  c.m = 64, c.k = 0, c.beta = 2;
  if (case_begin("nothing to sum")) run(c, false);
  c.device = true;
  if (case_begin("nothing to sum, device factors")) run(c, false);
}

static void test_refused(void) {
  if (!case_begin("refused")) return;
  Case c = {64,    32,    64,    true,  false, false, true, false, false,
            false, false, false, false, 1,     0,     448,  448,   0};
  Operand x = {64, 64, NULL, 0}, y = {32, 64, NULL, 0};
  NVTETensor a = operand_tensor(&c, &x, true, 448, false);
  NVTETensor b = operand_tensor(&c, &y, true, 448, false);
  Buffer *d = buffer(64 * 32 * 4);
  NVTETensor out = tensor(d->ptr, kNVTEFloat32, SHAPE(32, 64)), empty = empty_tensor();
  NVTETensor workspace = tensor(g_workspace, kNVTEByte, SHAPE(WORKSPACE));
  float one = 1, zero = 0;
  const char *name = "nvte_cublas_gemm_v2";
#define CALL(transa, a, b, d) \
  nvte_cublas_gemm_v2(transa, 0, &one, a, b, &zero, NULL, d, workspace, NULL, NULL)
  CALL(0, a, b, out);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "A.columnwise_data", "blocks along");
  CALL(1, tensor(g_workspace, kNVTEBFloat16, SHAPE(64, 64)), b, out);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "A.scaling_mode", "NVFP4");
  CALL(1, a, tensor(g_workspace, kNVTEBFloat16, SHAPE(32, 64)), out);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "B.scaling_mode", "NVFP4");
  CALL(1, a, b, tensor(d->ptr, kNVTEFloat16, SHAPE(32, 64)));
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "D.dtype", "BFloat16");
  CALL(1, a, b, tensor(d->ptr, kNVTEFloat32, SHAPE(32, 65)));
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "D.shape");
  Operand narrow = {32, 48, NULL, 0};
  CALL(1, a, operand_tensor(&c, &narrow, true, 448, false), out);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "B.shape", "64", "48");
  // Only one of the two operands has an amax.
  c.device = true;
  NVTETensor without = operand_tensor(&c, &y, true, 448, false);
  CALL(1, a, without, out);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "B.amax", "nothing");
  c.device = false;
  nvte_cublas_gemm(a, without, out, empty, empty, true, false, false, workspace, false, false, 0,
                   NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_cublas_gemm", "B.amax");
  NVTETensor both_without[2] = {
      operand_tensor(&(Case){.swizzled = true, .device = true}, &x, true, 448, false), without};
  nvte_cublas_gemm_v2(1, 0, NULL, both_without[0], both_without[1], &zero, NULL, out, workspace,
                      NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "alpha", "null");
  // The factors are on the host and on the device in turn.
  NVTEMatmulConfig config = own(OWN_MATMUL_CONFIG, nvte_create_matmul_config());
  int32_t sm_count = -1;
  nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigSMCount, &sm_count, sizeof sm_count);
  nvte_cublas_gemm_v2(1, 0, &one, a, b, &zero, NULL, out, workspace, config, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "config.sm_count", "-1");
  nvte_cublas_gemm_v2(1, 0, (float *)buffer_float(1)->ptr, both_without[0], both_without[1],
                      (float *)buffer_float(0)->ptr, NULL, out, workspace, config, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "config.sm_count", "-1");
  uint8_t yes = 1;
  NVTETensor row_scaled = operand_tensor(&c, &x, true, 448, false);
  nvte_set_tensor_param_v2(row_scaled, kNVTERowScaledNVFP4, &yes, sizeof yes);
  CALL(1, row_scaled, b, out);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "A.row_scaled_nvfp4");
  NVTETensor scales = operand_tensor(&c, &x, true, 448, false);
  set_param(scales, kNVTERowwiseScaleInv, g_workspace, kNVTEFloat8E4M3, SHAPE(64, 4));
  CALL(1, scales, b, out);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "A.scale_inv.shape", "[128, 4]", "[64, 4]");
  NVTETensor dbias = tensor(g_workspace, kNVTEFloat32, SHAPE(32));
  nvte_cublas_gemm(a, b, out, dbias, empty, true, false, true, workspace, false, false, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_cublas_gemm", "bias", "NVFP4");
  if (on_cuda()) {
    nvte_cublas_gemm_v2(1, 0, &one, a, b, &zero, NULL, out,
                        tensor(g_workspace, kNVTEByte, SHAPE(4)), NULL, NULL);
    EXPECT_ERROR(NVTEX_UNSUPPORTED, name, "workspace");
  }
  CHECK(untouched(d), "a refused call wrote something");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  g_workspace = nvtex_malloc(WORKSPACE);
  test_products();
  test_refused();
  case_end();
  nvtex_free(g_workspace);
  return test_end();
}
