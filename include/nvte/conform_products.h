// Random cases of products for `nvte/conform.h`: groups, NVFP4, epilogues, and what goes with them.
// What they should give is computed here, in double.
#ifndef NVTE_CONFORM_PRODUCTS_H
#define NVTE_CONFORM_PRODUCTS_H

#include "nvte/conform_sequences.h"

// ---- gemm with epilogues

static inline double conform_gelu(double x) {
  return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static inline double conform_dgelu(double x) {
  const double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

enum { E_A, E_B, E_D, E_BIAS, E_AUX };

// A workspace that is enough for the products of the cases.
static inline NVTETensor conform_product_workspace(ConformRun *run) {
  const size_t bytes = (size_t)32 << 20;
  NVTETensor workspace = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  void *memory = run->blocks[run->num_blocks++] = nvtex_malloc(bytes);
  conform_set_memory(workspace, kNVTERowwiseData, memory, kNVTEByte, CONFORM_SHAPE(bytes));
  return workspace;
}

static inline void conform_call_epilogue(const ConformCase *c, ConformRun *run) {
  const size_t m = c->n[0], n = c->n[1], k = c->n[2];
  const bool transa = c->flags[0], transb = c->flags[1], grad = c->flags[2];
  const size_t of_bias = c->buffers[E_BIAS].count, of_aux = c->buffers[E_AUX].count;
  NVTETensor none = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  NVTETensor a = conform_matrix_of(run, E_A, transa ? m : k, transa ? k : m);
  NVTETensor b = conform_matrix_of(run, E_B, transb ? k : n, transb ? n : k);
  nvte_cublas_gemm(a, b, conform_matrix_of(run, E_D, n, m),
                   of_bias > 0 ? conform_vector(run, E_BIAS) : none,
                   of_aux > 0 ? conform_matrix_of(run, E_AUX, n, m) : none, transa, transb, grad,
                   conform_product_workspace(run), false, false, 0, run->stream);
}

// A product in high precision with a bias, GELU, both, or gradients of them.
static inline bool conform_make_epilogue(ConformCase *c, ConformRandom *random, size_t index) {
  const NVTEDType dtype = conform_high_of(index);
  const size_t m = c->n[0] = 8 * conform_within(random, 1, 6);
  const size_t n = c->n[1] = 8 * conform_within(random, 1, 6);
  const size_t k = c->n[2] = 8 * conform_within(random, 1, 12);
  const bool transa = c->flags[0] = conform_chance(random, 50);
  const bool transb = c->flags[1] = conform_chance(random, 30);
  const bool grad = c->flags[2] = conform_chance(random, 50);
  const size_t kind = conform_within(random, 1, 3);
  const bool bias = kind & 1, gelu = kind & 2;
  conform_input(c, random, "A", dtype, m * k, -1, 1);
  conform_input(c, random, "B", dtype, n * k, -1, 1);
  conform_output(c, random, "D", dtype, m * n);
  const size_t length = !bias ? 0 : grad && !gelu ? n : m;
  const ConformRole of_bias = grad ? CONFORM_OUTPUT : CONFORM_INPUT;
  const ConformRole of_aux = grad ? CONFORM_INPUT : CONFORM_OUTPUT;
  conform_add(c, "bias", of_bias, dtype, length, 0);
  conform_add(c, "pre_gelu_out", of_aux, dtype, gelu ? m * n : 0, 0);
  if (!grad) conform_fill(c, random, E_BIAS, -1, 1);
  if (grad) conform_fill(c, random, E_AUX, -2, 2);
  double *d = conform_expect(c, E_D), *of_d = conform_magnitudes(c, E_D);
  double *sums = NULL, *of_sums = NULL, *aux = NULL, *before = NULL;
  if (grad) sums = conform_expect(c, E_BIAS), of_sums = conform_magnitudes(c, E_BIAS);
  if (!grad) aux = conform_expect(c, E_AUX), before = conform_magnitudes(c, E_AUX);
  for (size_t i = 0; i < length && grad; i++) sums[i] = 0;
  for (size_t j = 0; j < n; j++) {
    for (size_t i = 0; i < m; i++) {
      double v = 0, magnitude = 0;
      for (size_t l = 0; l < k; l++) {
        const double x = conform_element(c, E_A, transa ? i * k + l : l * m + i);
        const double y = conform_element(c, E_B, transb ? l * n + j : j * k + l);
        v += x * y;
        magnitude += fabs(x * y);
      }
      const size_t at = j * m + i;
      if (!grad && bias) v += conform_element(c, E_BIAS, i), magnitude += 1;
      if (!grad && gelu) aux[at] = v, before[at] = magnitude;
      if (gelu) {
        const double factor = grad ? conform_dgelu(conform_element(c, E_AUX, at)) : 1;
        v = grad ? v * factor : conform_gelu(v);
        // GELU is nowhere steeper than 1.2.
        magnitude = 2 * magnitude + 1;
      }
      d[at] = v;
      of_d[at] = magnitude;
      // D may be rounded to its dtype before its rows are added.
      if (grad && bias && gelu) {
        sums[i] += v;
        of_sums[i] += magnitude + conform_ulp(dtype, v) * 0x1p20;
      }
    }
    for (size_t l = 0; l < k && grad && bias && !gelu; l++) {
      const double y = conform_element(c, E_B, transb ? l * n + j : j * k + l);
      sums[j] += y;
      of_sums[j] += fabs(y);
    }
  }
  c->buffers[E_D].terms = c->buffers[E_AUX].terms = k + 1;
  c->buffers[E_BIAS].terms = k + n;
  conform_align(c);
  c->call = conform_call_epilogue;
  snprintf(c->what, sizeof c->what, "%s, m %zu, n %zu, k %zu, %c%c%s%s%s",
           conform_dtype_name(dtype), m, n, k, transa ? 'T' : 'N', transb ? 'T' : 'N',
           bias ? ", bias" : "", gelu ? ", GELU" : "", grad ? ", gradients" : "");
  return true;
}

// ---- gemm of NVFP4

// An E2M1 code.
static inline double conform_fp4(unsigned code) {
  static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -values[code & 7] : values[code & 7];
}

// The code of element i of packed ones.
static inline unsigned conform_fp4_code(const ConformCase *c, int buffer, size_t i) {
  const unsigned char byte = c->buffers[buffer].image[i / 2];
  return i % 2 ? byte >> 4 : byte & 15;
}

static inline void conform_call_nvfp4_gemm(const ConformCase *c, ConformRun *run) {
  const size_t m = c->n[0], n = c->n[1], k = c->n[2];
  NVTETensor operands[2], none = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  for (int i = 0; i < 2; i++) {
    const size_t rows = i == 0 ? m : n;
    operands[i] = conform_empty(run, NVTE_NVFP4_1D_SCALING);
    conform_set_memory(operands[i], kNVTERowwiseData, run->ptr[3 * i], kNVTEFloat4E2M1,
                       CONFORM_SHAPE(rows, k));
    conform_set(run, operands[i], kNVTERowwiseScaleInv, 3 * i + 1,
                CONFORM_SHAPE((rows + 127) / 128 * 128, (k / 16 + 3) / 4 * 4));
    conform_set(run, operands[i], kNVTEAmax, 3 * i + 2, CONFORM_SHAPE(1));
  }
  nvte_cublas_gemm(operands[0], operands[1], conform_matrix_of(run, 6, n, m), none, none, true,
                   false, false, conform_product_workspace(run), c->flags[0], false, 0,
                   run->stream);
}

static inline bool conform_make_nvfp4_gemm(ConformCase *c, ConformRandom *random, size_t index) {
  const NVTEDType out = index % 2 ? kNVTEFloat32 : kNVTEBFloat16;
  const size_t m = c->n[0] = 16 * conform_within(random, 1, 4);
  const size_t n = c->n[1] = 16 * conform_within(random, 1, 4);
  const size_t k = c->n[2] = 16 * conform_within(random, 1, 8);
  c->mode = NVTE_NVFP4_1D_SCALING;
  c->flags[0] = conform_chance(random, 30);
  for (int i = 0; i < 2; i++) {
    const size_t rows = i == 0 ? m : n;
    const size_t scales = (rows + 127) / 128 * 128 * ((k / 16 + 3) / 4 * 4);
    conform_integers(c, random, i == 0 ? "A" : "B", CONFORM_INPUT, kNVTEByte, rows * k / 2, 0, 255);
    const int inv = conform_add(c, i == 0 ? "scale_inv of A" : "scale_inv of B", CONFORM_INPUT,
                                kNVTEFloat8E4M3, scales, 0);
    conform_fill(c, random, inv, 1, 448);
    conform_float(c, i == 0 ? "amax of A" : "amax of B", CONFORM_INPUT,
                  (float)conform_uniform(random, 1, 8));
  }
  const int d = conform_inout(c, random, "D", out, m * n, -1, 1, 0);
  double *expected = conform_expect(c, d), *magnitudes = conform_magnitudes(c, d);
  const size_t blocks = (k / 16 + 3) / 4 * 4;
  const double factor = conform_element(c, 2, 0) * conform_element(c, 5, 0) / (36.0 * 448 * 448);
  for (size_t j = 0; j < n; j++) {
    for (size_t i = 0; i < m; i++) {
      double sum = 0, magnitude = 0;
      for (size_t l = 0; l < k; l++) {
        const double x = conform_fp4(conform_fp4_code(c, 0, i * k + l)) *
                         conform_element(c, 1, i * blocks + l / 16);
        const double y = conform_fp4(conform_fp4_code(c, 3, j * k + l)) *
                         conform_element(c, 4, j * blocks + l / 16);
        sum += x * y;
        magnitude += fabs(x * y);
      }
      const double old = c->flags[0] ? conform_element(c, d, j * m + i) : 0;
      expected[j * m + i] = factor * sum + old;
      magnitudes[j * m + i] = factor * magnitude + fabs(old);
    }
  }
  c->buffers[d].terms = k + 1;
  conform_align(c);
  c->call = conform_call_nvfp4_gemm;
  snprintf(c->what, sizeof c->what, "NVFP4 to %s, m %zu, n %zu, k %zu%s", conform_dtype_name(out),
           m, n, k, c->flags[0] ? ", added to D" : "");
  return true;
}

static inline bool conform_make_any_gemm(ConformCase *c, ConformRandom *random, const char *variant,
                                         size_t index) {
  if (conform_is(variant, "nvfp4")) return conform_make_nvfp4_gemm(c, random, index);
  // The dtype follows from index % 3.
  if (conform_is(variant, "high_precision") && index / 3 % 3 == 2) {
    return conform_make_epilogue(c, random, index);
  }
  return conform_make_gemm(c, random, variant, index);
}

// ---- grouped_gemm

enum { G_A, G_B, G_D, G_ALPHA, G_BETA, G_SCALES_A, G_SCALES_B, G_ROWS };

static inline void conform_call_grouped_gemm(const ConformCase *c, ConformRun *run) {
  const size_t members = c->n[0], m = c->n[1], k = c->n[2], rows = c->n[3];
  const bool fp8 = c->buffers[G_SCALES_A].count > 0;
  const NVTEScalingMode b_mode = c->flags[0] ? NVTE_BLOCK_SCALING_1D : c->mode;
  NVTEGroupedTensor a = nvte_create_grouped_tensor(c->mode, members, CONFORM_SHAPE(members * m, k));
  NVTEGroupedTensor b = nvte_create_grouped_tensor(b_mode, members, CONFORM_SHAPE(rows, k));
  NVTEGroupedTensor d =
      nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, members, CONFORM_SHAPE(rows, m));
  conform_set_member(run, a, kNVTEGroupedRowwiseData, G_A, CONFORM_SHAPE(members * m * k));
  conform_set_member(run, b, kNVTEGroupedRowwiseData, G_B, CONFORM_SHAPE(rows * k));
  conform_set_member(run, d, kNVTEGroupedRowwiseData, G_D, CONFORM_SHAPE(rows * m));
  if (fp8) {
    conform_set_member(run, a, kNVTEGroupedRowwiseScaleInv, G_SCALES_A,
                       CONFORM_SHAPE(c->buffers[G_SCALES_A].count));
    conform_set_member(run, b, kNVTEGroupedRowwiseScaleInv, G_SCALES_B,
                       CONFORM_SHAPE(c->buffers[G_SCALES_B].count));
  }
  conform_set_member(run, b, kNVTEGroupedFirstDims, G_ROWS, CONFORM_SHAPE(members));
  conform_set_member(run, d, kNVTEGroupedFirstDims, G_ROWS, CONFORM_SHAPE(members));
  const size_t bytes = nvte_get_grouped_gemm_setup_workspace_size(members);
  NVTETensor setup = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  void *memory = run->blocks[run->num_blocks++] = nvtex_malloc(bytes);
  conform_set_memory(setup, kNVTERowwiseData, memory, kNVTEByte, CONFORM_SHAPE(bytes));
  NVTEGroupedMatmulConfig config = nvte_create_grouped_matmul_config();
  const uint8_t split = 1;
  nvte_set_grouped_matmul_config_attribute(config, kNVTEGroupedMatmulConfigUseSplitAccumulator,
                                           &split, sizeof split);
  nvte_grouped_gemm(a, true, b, false, NULL, d, conform_vector(run, G_ALPHA),
                    conform_vector(run, G_BETA), setup, conform_product_workspace(run), config,
                    run->stream);
  nvte_destroy_grouped_matmul_config(config);
  nvte_destroy_grouped_tensor(a);
  nvte_destroy_grouped_tensor(b);
  nvte_destroy_grouped_tensor(d);
}

// Scales that a member of a group has, with their padding.
static inline size_t conform_member_scales(NVTEScalingMode mode, size_t rows, size_t k) {
  const size_t down = (rows + 127) / 128, across = (k + 127) / 128;
  switch (mode) {
    case NVTE_MXFP8_1D_SCALING:
      return 128 * down * ((k / 32 + 3) / 4 * 4);
    case NVTE_BLOCK_SCALING_1D:
      return across * ((rows + 3) / 4 * 4);
    case NVTE_BLOCK_SCALING_2D:
      return down * ((across + 3) / 4 * 4);
    default:
      return 1;
  }
}

// The scale of an element of a member whose scales begin at `first`.
static inline double conform_member_scale(const ConformCase *c, int buffer, NVTEScalingMode mode,
                                          size_t first, size_t rows, size_t k, size_t row,
                                          size_t col) {
  if (c->buffers[buffer].count == 0) return 1;
  switch (mode) {
    case NVTE_MXFP8_1D_SCALING: {
      const size_t at = first + row * ((k / 32 + 3) / 4 * 4) + col / 32;
      return ldexp(1, (int)c->buffers[buffer].image[at] - 127);
    }
    case NVTE_BLOCK_SCALING_1D:
      return conform_element(c, buffer, first + col / 128 * ((rows + 3) / 4 * 4) + row);
    case NVTE_BLOCK_SCALING_2D:
      return conform_element(c, buffer,
                             first + row / 128 * (((k + 127) / 128 + 3) / 4 * 4) + col / 128);
    default:
      return conform_element(c, buffer, first);
  }
}

static inline void conform_fill_scales(ConformCase *c, ConformRandom *random, int buffer) {
  ConformBuffer *b = &c->buffers[buffer];
  if (b->dtype == kNVTEFloat32) {
    conform_fill(c, random, buffer, 0.1, 2);
    return;
  }
  for (size_t i = 0; i < b->count; i++) {
    b->image[i] = (unsigned char)conform_within(random, 125, 128);
  }
}

static inline bool conform_make_grouped_gemm(ConformCase *c, ConformRandom *random,
                                             const char *variant, size_t index) {
  const bool mxfp8 = conform_is(variant, "mxfp8"), blocks = conform_is(variant, "fp8_blocks");
  const bool fp8 = mxfp8 || blocks || conform_is(variant, "fp8");
  if (!fp8 && !conform_is(variant, "high_precision")) return false;
  c->flags[0] = blocks;
  if (mxfp8) c->mode = NVTE_MXFP8_1D_SCALING;
  if (blocks) c->mode = index % 2 ? NVTE_BLOCK_SCALING_2D : NVTE_BLOCK_SCALING_1D;
  const NVTEScalingMode b_mode = blocks ? NVTE_BLOCK_SCALING_1D : c->mode;
  const NVTEDType in = fp8 ? kNVTEFloat8E4M3 : index % 2 ? kNVTEFloat16 : kNVTEBFloat16;
  const NVTEDType out = conform_high_of(index / 2);
  const size_t members = c->n[0] = conform_within(random, 1, 4);
  const size_t m = c->n[1] = 16 * conform_within(random, 1, 4);
  const size_t k = c->n[2] =
      blocks ? 128 * conform_within(random, 1, 2) : 32 * conform_within(random, 1, 4);
  size_t rows_of[4], rows = 0, scales_a = 0, scales_b = 0;
  for (size_t t = 0; t < members; t++) {
    rows_of[t] = 16 * conform_within(random, t > 0 ? 0 : 1, 3);
    rows += rows_of[t];
    if (fp8) scales_a += conform_member_scales(c->mode, m, k);
    if (fp8) scales_b += conform_member_scales(b_mode, rows_of[t], k);
  }
  c->n[3] = rows;
  const bool added = conform_chance(random, 40), each = conform_chance(random, 50);
  conform_input(c, random, "A", in, members * m * k, -1, 1);
  conform_input(c, random, "B", in, rows * k, -1, 1);
  const int d = conform_inout(c, random, "D", out, rows * m, -1, 1, 0);
  conform_input(c, random, "alpha", kNVTEFloat32, each ? members : 1, 0.5, 2);
  conform_input(c, random, "beta", kNVTEFloat32, each ? members : 1, 0.5, 2);
  if (!added) memset(c->buffers[G_BETA].image, 0, c->buffers[G_BETA].bytes);
  const NVTEDType codes = mxfp8 ? kNVTEByte : kNVTEFloat32;
  conform_add(c, "scale_inv of A", CONFORM_INPUT, codes, scales_a, 0);
  conform_add(c, "scale_inv of B", CONFORM_INPUT, codes, scales_b, 0);
  conform_fill_scales(c, random, G_SCALES_A);
  conform_fill_scales(c, random, G_SCALES_B);
  conform_add(c, "first_dims", CONFORM_INPUT, kNVTEInt64, members, 0);
  for (size_t t = 0; t < members; t++) conform_put(c, G_ROWS, t, (int64_t)rows_of[t]);
  double *expected = conform_expect(c, d), *magnitudes = conform_magnitudes(c, d);
  for (size_t t = 0, first = 0, first_a = 0, first_b = 0; t < members; t++) {
    const double alpha = conform_element(c, G_ALPHA, each ? t : 0);
    const double beta = conform_element(c, G_BETA, each ? t : 0);
    for (size_t j = 0; j < rows_of[t]; j++) {
      for (size_t i = 0; i < m; i++) {
        double sum = 0, magnitude = 0;
        for (size_t l = 0; l < k; l++) {
          const double x = conform_element(c, G_A, (t * m + i) * k + l) *
                           conform_member_scale(c, G_SCALES_A, c->mode, first_a, m, k, i, l);
          const double y =
              conform_element(c, G_B, (first + j) * k + l) *
              conform_member_scale(c, G_SCALES_B, b_mode, first_b, rows_of[t], k, j, l);
          sum += x * y;
          magnitude += fabs(x * y);
        }
        const size_t at = (first + j) * m + i;
        const double old = beta * conform_element(c, d, at);
        expected[at] = alpha * sum + old;
        magnitudes[at] = alpha * magnitude + fabs(old);
      }
    }
    first += rows_of[t];
    first_a += conform_member_scales(c->mode, m, k);
    first_b += conform_member_scales(b_mode, rows_of[t], k);
  }
  c->buffers[d].terms = k + 1;
  conform_align(c);
  c->call = conform_call_grouped_gemm;
  snprintf(c->what, sizeof c->what, "%s to %s, %zu members, m %zu, %zu rows together, k %zu%s%s",
           conform_dtype_name(in), conform_dtype_name(out), members, m, rows, k,
           conform_mode_name(c->mode), added ? ", added to D" : "");
  return true;
}

// ---- grouped_bias, counters

static inline void conform_call_grouped_bias(const ConformCase *c, ConformRun *run) {
  const size_t members = c->n[0], rows = c->n[1], cols = c->n[2];
  NVTEGroupedTensor output =
      nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, members, CONFORM_SHAPE(rows, cols));
  NVTEGroupedTensor bias = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, members,
                                                      CONFORM_SHAPE(members, cols));
  conform_set_member(run, output, kNVTEGroupedRowwiseData, 0, CONFORM_SHAPE(rows * cols));
  conform_set_member(run, output, kNVTEGroupedFirstDims, 2, CONFORM_SHAPE(members));
  conform_set_member(run, bias, kNVTEGroupedRowwiseData, 1, CONFORM_SHAPE(members * cols));
  if (c->flags[0]) {
    nvte_grouped_scaled_bias_add(output, bias, conform_vector(run, 3), run->stream);
  } else {
    nvte_grouped_bias_add(output, bias, run->stream);
  }
  nvte_destroy_grouped_tensor(output);
  nvte_destroy_grouped_tensor(bias);
}

static inline bool conform_make_grouped_bias(ConformCase *c, ConformRandom *random,
                                             const char *variant, size_t index) {
  if (*variant) return false;
  const NVTEDType dtype = conform_high_of(index);
  const size_t members = c->n[0] = conform_within(random, 1, 5);
  const size_t cols = c->n[2] = 8 * conform_within(random, 1, 30);
  const bool scaled = c->flags[0] = conform_chance(random, 50);
  size_t rows_of[5], rows = conform_within(random, 0, 3), first = 0;
  for (size_t t = 0; t < members; t++) {
    rows += rows_of[t] = conform_within(random, t > 0 ? 0 : 1, 20);
  }
  c->n[1] = rows;
  const int output = conform_inout(c, random, "output", dtype, rows * cols, -2, 2, 8);
  conform_input(c, random, "bias", dtype, members * cols, -2, 2);
  conform_add(c, "first_dims", CONFORM_INPUT, kNVTEInt64, members, 0);
  conform_input(c, random, "scale", kNVTEFloat32, scaled ? rows : 0, 0, 2);
  double *expected = conform_expect(c, output);
  for (size_t t = 0; t < members; first += rows_of[t++]) {
    conform_put(c, 2, t, (int64_t)rows_of[t]);
    for (size_t i = first * cols; i < (first + rows_of[t]) * cols; i++) {
      const double factor = scaled ? conform_element(c, 3, i / cols) : 1;
      expected[i] =
          conform_element(c, output, i) + factor * conform_element(c, 1, t * cols + i % cols);
    }
  }
  conform_align(c);
  c->call = conform_call_grouped_bias;
  snprintf(c->what, sizeof c->what, "%s, %zu members, %zux%zu together%s",
           conform_dtype_name(dtype), members, rows, cols, scaled ? ", scaled" : "");
  return true;
}

static inline void conform_call_counters(const ConformCase *c, ConformRun *run) {
  NVTETensor none = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  nvte_cublas_atomic_gemm(conform_matrix_of(run, 0, 16, 16), conform_matrix_of(run, 1, 16, 16),
                          conform_matrix_of(run, 2, 16, 16), none, none, true, false, false,
                          conform_product_workspace(run), false, false, 0, (int32_t)c->n[0],
                          (int32_t)c->n[1], c->flags[0], conform_vector(run, 3), run->stream);
}

static inline bool conform_make_counters(ConformCase *c, ConformRandom *random, const char *variant,
                                         size_t index) {
  const bool clear = c->flags[0] = conform_is(variant, "clear");
  if (!clear && !conform_is(variant, "wait")) return false;
  const NVTEDType dtype = conform_high_of(index);
  c->n[0] = conform_within(random, 0, 9);
  c->n[1] = conform_within(random, 0, 9);
  const size_t words = (c->n[0] > 0 ? c->n[0] : 1) * (c->n[1] > 0 ? c->n[1] : 1);
  const size_t more = conform_within(random, 0, 3);
  conform_input(c, random, "A", dtype, 256, -1, 1);
  conform_input(c, random, "B", dtype, 256, -1, 1);
  // The product is another operator's.
  conform_scratch(c, "D", dtype, 256);
  // Who waits finds counters of 0: nobody else is there who would clear them.
  conform_integers(c, random, "counter", CONFORM_EXACT, kNVTEInt32, words + more, clear, clear);
  double *expected = conform_expect(c, 3);
  for (size_t i = 0; i < words; i++) expected[i] = 0;
  conform_align(c);
  c->call = conform_call_counters;
  snprintf(c->what, sizeof c->what, "%s, %zu of %zu counters", conform_dtype_name(dtype), words,
           words + more);
  return true;
}

#endif  // NVTE_CONFORM_PRODUCTS_H
