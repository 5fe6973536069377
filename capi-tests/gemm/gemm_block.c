// Matrix products of operands in FP8 blocks and MXFP8.
// Row-major: D[n,m] = Bop[n,k] Aop[k,m]. Codes and scales are made here, expected values in double.
#include "gemm_common.h"

typedef struct Blocks {
  Gemm g;
  NVTEScalingMode a_mode, b_mode;
  int spread;        // A's scales times 2^spread, B's times 2^-spread
  bool unswizzled;   // MXFP8: the scales are not in tiles
  bool nan_scale;    // the first scale of A is NaN
  bool wide_scales;  // FP8 blocks: rows of scales longer than they need be
  bool fast;         // without the split accumulator, which FP8 blocks always have
  bool flagged;      // FP8 blocks: their scales are said to be swizzled, which they never are
} Blocks;

static size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
static size_t round_up(size_t a, size_t b) { return ceil_div(a, b) * b; }
static bool is_mx(NVTEScalingMode mode) { return mode == NVTE_MXFP8_1D_SCALING; }
static size_t block_of(NVTEScalingMode mode) { return is_mx(mode) ? 32 : 128; }

static const char *mode_name(NVTEScalingMode mode) {
  return is_mx(mode) ? "mx" : mode == NVTE_BLOCK_SCALING_1D ? "1d" : "2d";
}

static NVTEDType scale_dtype(NVTEScalingMode mode) {
  return is_mx(mode) ? kNVTEFloat8E8M0 : kNVTEFloat32;
}

// An operand as the product sees it: [outer, k] codes and the values that they stand for.
typedef struct Operand {
  NVTEScalingMode mode;
  NVTEDType dtype;
  size_t outer, k, slack;
  bool swizzled;
  void *codes;
  double *values, *scales;  // [outer, k], [outer, blocks]
} Operand;

static void make_values(const Blocks *b, Operand *o, double spread, bool nan_scale) {
  size_t blocks = ceil_div(o->k, block_of(o->mode));
  o->codes = host_memory(o->outer * o->k);
  o->values = host_memory(o->outer * o->k * sizeof(double));
  o->scales = host_memory(o->outer * blocks * sizeof(double));
  for (size_t i = 0; i < o->outer; i++) {
    for (size_t j = 0; j < blocks; j++) {
      bool repeated = o->mode == NVTE_BLOCK_SCALING_2D && i % 128 != 0;
      double s = repeated ? o->scales[(i - 1) * blocks + j]
                 : b->g.integers || is_mx(o->mode)
                     ? ldexp(spread, (int)random_below(4) - 1)
                     : (double)(float)(spread * random_uniform(0.3, 3));
      o->scales[i * blocks + j] = nan_scale && i + j == 0 ? NAN : s;
    }
    for (size_t p = 0; p < o->k; p++) {
      double x = b->g.integers ? (double)random_below(5) - 2 : random_uniform(-2, 2);
      put_value(o->dtype, o->codes, i * o->k + p, x);
      o->values[i * o->k + p] = get_value(o->dtype, o->codes, i * o->k + p) *
                                o->scales[i * blocks + p / block_of(o->mode)];
    }
  }
}

// Sets one direction of a tensor whose blocks lie along `o->k`; with `garbage` to NaN throughout.
static void set_direction(NVTETensor t, const Operand *o, bool colwise, bool garbage, bool rank3) {
  bool mx = is_mx(o->mode), flip = mx && colwise;
  size_t rows = colwise ? o->k : o->outer, cols = colwise ? o->outer : o->k;
  NVTEShape shape = rank3 && rows % 2 == 0 ? SHAPE(2, rows / 2, cols) : SHAPE(rows, cols);
  unsigned char *data = host_memory(o->outer * o->k);
  for (size_t i = 0; i < o->outer; i++) {
    for (size_t p = 0; p < o->k; p++) {
      data[flip ? p * o->outer + i : i * o->k + p] =
          garbage ? 0xFF : ((unsigned char *)o->codes)[i * o->k + p];
    }
  }
  size_t blocks = ceil_div(o->k, block_of(o->mode)), tiles = ceil_div(blocks, 4);
  size_t first, second;
  if (mx) {
    first = flip ? 4 * tiles : round_up(o->outer, 128);
    second = flip ? round_up(o->outer, 128) : 4 * tiles;
  } else if (o->mode == NVTE_BLOCK_SCALING_1D) {
    first = blocks;
    second = round_up(o->outer, 4) + o->slack;
  } else {
    first = ceil_div(o->outer, 128);
    second = round_up(blocks, 4) + o->slack;
  }
  size_t size = mx ? 1 : sizeof(float);
  unsigned char *scales = host_memory(first * second * size);
  memset(scales, 0xFF, first * second * size);
  for (size_t i = 0; i < o->outer && !garbage; i++) {
    for (size_t j = 0; j < blocks; j++) {
      double s = o->scales[i * blocks + j];
      size_t at = flip ? j * second + i : i * second + j;
      if (o->swizzled) {
        at = (i / 128 * tiles + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
      } else if (o->mode == NVTE_BLOCK_SCALING_1D) {
        at = j * second + i;
      } else if (!mx) {
        at = i / 128 * second + j;
      }
      if (mx) {
        scales[at] = isnan(s) ? 255 : (unsigned char)(ilogb(s) + 127);
      } else {
        ((float *)scales)[at] = (float)s;
      }
    }
  }
  set_param(t, colwise ? kNVTEColumnwiseData : kNVTERowwiseData,
            buffer_from(data, o->outer * o->k, 0)->ptr, o->dtype,
            colwise && !mx ? transposed_shape(shape) : shape);
  set_param(t, colwise ? kNVTEColumnwiseScaleInv : kNVTERowwiseScaleInv,
            buffer_from(scales, first * second * size, 0)->ptr, scale_dtype(o->mode),
            SHAPE(first, second));
}

// The direction that the product reads; the other one is absent or garbage.
static NVTETensor operand_tensor(const Blocks *b, const Operand *o, bool colwise) {
  NVTETensor t = tensor_of_mode(o->mode);
  set_direction(t, o, colwise, false, b->g.rank3);
  if (!b->g.one_direction) {
    Operand other = *o;
    other.outer = o->k;
    other.k = o->outer;
    set_direction(t, &other, !colwise, true, b->g.rank3);
  }
  uint8_t swizzled = o->swizzled || b->flagged;
  nvte_set_tensor_param_v2(t, kNVTEWithGEMMSwizzledScales, &swizzled, sizeof swizzled);
  return t;
}

// Sums of FP8 blocks are rounded to D's type before C is added with beta 1; cuBLASLt may do so in
// MXFP8.
static bool good_value(const Blocks *b, double got, double sum, double c, double bias,
                       double error) {
  NVTEDType d = b->g.d;
  bool mx = is_mx(b->a_mode);
  double scaled = (double)b->g.alpha * sum;
  if (isnan(sum)) return isnan(got);
  bool once = close_enough(d, got, scaled + c + bias, error);
  bool twice = close_enough(d, got, round_to(d, scaled) + c + bias, error);
  if (mx && on_cuda() && b->g.beta != 0) return once || twice;
  return !mx && b->g.beta == 1 ? twice : once;
}

static void run_blocks(Blocks b) {
  Gemm *g = &b.g;
  if (g->side == kNVTEByte) g->side = g->d == kNVTEFloat16 ? g->d : kNVTEBFloat16;
  g->split = !b.fast;
  size_t m = g->m, n = g->n, k = g->k, size = dtype_size(g->d), side = dtype_size(g->side);
  // The gradient of a bias, and the input of GELU, are results or not.
  bool bias_out = g->bias && g->grad, aux_out = g->gelu && !g->grad;
  size_t length = bias_out && !g->gelu ? n : m;
  Operand x = {b.a_mode, g->a, m, k, 0, false, NULL, NULL, NULL};
  Operand y = {b.b_mode, g->b, n, k, 0, false, NULL, NULL, NULL};
  x.swizzled = y.swizzled = is_mx(b.a_mode) && !b.unswizzled;
  x.slack = y.slack = b.wide_scales ? 4 : 0;
  make_values(&b, &x, ldexp(1, b.spread), b.nan_scale);
  make_values(&b, &y, ldexp(1, -b.spread), false);
  NVTETensor a = operand_tensor(&b, &x, !g->transa), other = operand_tensor(&b, &y, g->transb);

  Buffer *d = buffer(n * m * size), *bias = NULL, *aux = NULL;
  void *c = host_memory(n * m * size), *bias_values = NULL, *aux_values = NULL;
  for (size_t i = 0; i < n * m; i++) put_value(g->d, c, i, (double)random_below(17) - 8);
  if (g->beta != 0) upload(d->ptr, c, n * m * size);
  if (g->bias) {
    bias_values = host_memory(length * side);
    for (size_t i = 0; i < length; i++) {
      put_value(g->side, bias_values, i, (double)random_below(9) - 4);
    }
    bias = bias_out ? buffer(length * side) : buffer_from(bias_values, length * side, 0);
  }
  if (g->gelu) {
    aux_values = random_values(g->side, n * m, -3, 3);
    aux = aux_out ? buffer(n * m * side) : buffer_from(aux_values, n * m * side, 0);
  }
  NVTETensor d_tensor = tensor(d->ptr, g->d, SHAPE(n, m)), workspace = NULL;
  if (g->workspace) workspace = tensor(g_workspace, kNVTEByte, SHAPE(g->workspace));
  NVTETensor bias_tensor = bias ? tensor(bias->ptr, g->side, SHAPE(length)) : NULL;
  NVTETensor aux_tensor = aux ? tensor(aux->ptr, g->side, SHAPE(n, m)) : NULL;
  gemm_call(g, a, other, d_tensor, d_tensor, bias_tensor, aux_tensor, workspace);
  if (nvtex_last_status() == NVTEX_UNSUPPORTED && on_cuda() && g->may_decline) {
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_cublas_gemm");
    g_test.declined++;
    if (g->beta == 0) CHECK(untouched(d), "declined, but D was written");
    return;
  }
  if (!EXPECT_OK()) return;

  const void *got = buffer_read(d), *aux_got = aux_out ? buffer_read(aux) : NULL;
  double *columns = host_memory(m * sizeof(double)),
         *column_errors = host_memory(m * sizeof(double));
  // Tensor cores add FP8 products with about 14 bits. MXFP8 becomes BF16 where there is room.
  bool codes =
      !is_mx(b.a_mode) || (g->transa && !g->transb && g->workspace < 2 * k * (m + n) + 768);
  double relative = on_cuda() && codes ? 0x1p-9 : ldexp((double)k, -24) + 0x1p-21;
  size_t bad = 0;
  for (size_t j = 0; j < n && bad < 5; j++) {
    for (size_t i = 0; i < m && bad < 5; i++) {
      double sum = 0, magnitude = 0;
      for (size_t p = 0; p < k; p++) {
        double product = x.values[i * k + p] * y.values[j * k + p];
        sum += product;
        magnitude += fabs(product);
      }
      double scaled = (double)g->alpha * sum;
      double old = g->beta == 0 ? 0 : (double)g->beta * get_value(g->d, c, j * m + i);
      double offset = bias && !bias_out ? get_value(g->side, bias_values, i) : 0;
      double error = g->integers ? 0 : fabs((double)g->alpha) * magnitude * relative;
      // Sums that are not exact may be rounded to either side; cuBLASLt may round at every step.
      bool steps = on_cuda() && (bias || aux);
      if (g->beta != 0 && (!g->integers || steps)) {
        error += (steps ? 2 : 1) * step_at(g->d, fabs(scaled) + fabs(old));
      }
      double value = get_value(g->d, got, j * m + i);
      bool good;
      if (aux) {
        double v = scaled + old + offset;
        if (aux_out) {
          double pre = get_value(g->side, aux_got, j * m + i);
          bad += !CHECK(fabs(pre - v) <= error + 2 * step_at(g->side, fabs(v)),
                        "aux[%zu][%zu]: got %.9g, expected %.9g", j, i, pre, v);
          v = gelu(v);
        } else {
          v *= dgelu(get_value(g->side, aux_values, j * m + i));
        }
        error = error * 1.2 + 1e-3 + 1e-2 * fabs(v);
        good = fabs(value - v) <= error;
        columns[i] += v;
        column_errors[i] += error;
      } else {
        good = good_value(&b, value, sum, old, offset, error);
      }
      bad += !CHECK(good, "D[%zu][%zu]: got %.9g, expected %.9g + %g + %g +- %g", j, i, value,
                    scaled, old, offset, error);
    }
  }
  if (!bias_out) return;
  const void *bias_got = buffer_read(bias);
  for (size_t j = 0; j < length && bad < 5; j++) {
    double sum = 0, error = 0;
    for (size_t p = 0; p < k && !g->gelu; p++) {
      sum += y.values[j * k + p];
      error += fabs(y.values[j * k + p]) * 0x1p-16;
    }
    if (g->gelu) sum = columns[j], error = column_errors[j];
    double value = get_value(g->side, bias_got, j);
    bad += !CHECK(fabs(value - sum) <= error + step_at(g->side, fabs(sum) + error),
                  "bias gradient [%zu]: got %.9g, expected %.9g", j, value, sum);
  }
}

static bool blocks_case(const char *what, const Blocks *b) {
  const Gemm *g = &b->g;
  return case_begin("%s %s %s %s x %s %s -> %s %c%c m=%zu n=%zu k=%zu alpha=%g beta=%g%s%s%s%s%s",
                    what, kEntryNames[g->entry], mode_name(b->a_mode), dtype_name(g->a),
                    mode_name(b->b_mode), dtype_name(g->b), dtype_name(g->d), g->transa ? 'T' : 'N',
                    g->transb ? 'T' : 'N', g->m, g->n, g->k, (double)g->alpha, (double)g->beta,
                    g->bias ? " bias" : "", g->gelu ? " dgelu" : "", g->integers ? " integers" : "",
                    g->one_direction ? " one direction" : "", b->unswizzled ? " unswizzled" : "");
}

static const NVTEScalingMode kModes[][2] = {{NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_1D},
                                            {NVTE_BLOCK_SCALING_2D, NVTE_BLOCK_SCALING_1D},
                                            {NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D},
                                            {NVTE_MXFP8_1D_SCALING, NVTE_MXFP8_1D_SCALING}};
static const NVTEDType kOutputs[] = {kNVTEBFloat16, kNVTEFloat32, kNVTEFloat16};

// A case of E4M3 operands and a BFloat16 result as TN, with the usual workspace.
static Blocks blocks(size_t modes, size_t m, size_t n, size_t k) {
  Blocks b = {0};
  b.a_mode = kModes[modes][0];
  b.b_mode = kModes[modes][1];
  b.g.a = b.g.b = kNVTEFloat8E4M3;
  b.g.d = kNVTEBFloat16;
  b.g.m = m;
  b.g.n = n;
  b.g.k = k;
  b.g.transa = true;
  b.g.alpha = 1;
  b.g.workspace = WORKSPACE;
  return b;
}

// Sizes, transposes, directions and entry points.
static void test_sizes(void) {
  const size_t sizes[][3] = {{128, 128, 128}, {256, 256, 128}, {320, 336, 128}, {320, 336, 64},
                             {256, 256, 256}, {320, 336, 256}, {16, 128, 128},  {16, 16, 16},
                             {8, 8, 144},     {136, 72, 272},  {264, 8, 400}};
  for (size_t modes = 0; modes < COUNT(kModes); modes++) {
    for (size_t s = 0; s < COUNT(sizes); s++) {
      for (int i = 0; i < 8; i++) {
        // Of the large sizes only a few cases run.
        if (sizes[s][0] > 200 && (size_t)i % 4 != s % 4) continue;
        Blocks b = blocks(modes, sizes[s][0], sizes[s][1], sizes[s][2]);
        b.g.transa = i & 1;
        b.g.transb = i & 2;
        b.g.integers = (i & 4) || s % 2;
        b.g.d = kOutputs[(s + (size_t)i) % 2];
        b.g.one_direction = (s + (size_t)i / 4) % 2;
        b.g.entry = (Entry)((s + (size_t)i) % 3);
        b.unswizzled = s % 3 == 2;
        if (blocks_case("size", &b)) run_blocks(b);
      }
    }
  }
}

// Sizes that are multiples of nothing.
static void test_odd_sizes(void) {
  const size_t sizes[][3] = {{8, 1, 16}, {24, 13, 48}, {136, 131, 144}, {16, 257, 528}};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    for (int i = 0; i < 4; i++) {
      Blocks b = blocks(2, sizes[s][0], sizes[s][1], sizes[s][2]);
      b.g.transa = i & 1;
      b.g.transb = i & 2;
      b.g.integers = true;
      if (blocks_case("odd", &b)) run_blocks(b);
      for (size_t modes = 0; modes < 3; modes++) {
        b = blocks(modes, sizes[s][1], sizes[s][0] + 3, sizes[s][2] + (i & 1 ? 5 : 0));
        b.g.transa = i & 1;
        b.g.transb = i & 2;
        b.g.integers = true;
        b.g.d = kOutputs[i % 3];
        b.g.beta = i & 2 ? 1 : 0;
        b.g.bias = b.g.beta == 0;
        if (blocks_case("odd", &b)) run_blocks(b);
      }
      b = blocks(3, sizes[s][1], sizes[s][0] + 3, sizes[s][2] + 5);
      b.g.transa = i & 1;
      b.g.transb = i & 2;
      b.g.integers = true;
      b.unswizzled = s % 2;
      if (blocks_case("odd", &b)) run_blocks(b);
    }
  }
}

// Several tiles, which end in the first or second half of one, and C that is added.
static void test_tiles(void) {
  const size_t sizes[][3] = {{264, 136, 512}, {400, 264, 144}, {520, 72, 1040}, {136, 328, 256}};
  for (size_t modes = 0; modes < COUNT(kModes); modes++) {
    for (size_t i = 0; i < 3 * COUNT(sizes); i++) {
      const size_t *size = sizes[i % COUNT(sizes)];
      Blocks b = blocks(modes, size[0], size[1], size[2]);
      b.g.integers = i % 2;
      b.g.d = kOutputs[i % 3];
      b.g.beta = i % 4 == 3 ? 1 : 0;
      if (i % 5 == 4) b.g.b = kNVTEFloat8E5M2;
      if (blocks_case("tiles", &b)) run_blocks(b);
    }
  }
}

// Dtypes of operands and D.
static void test_dtypes(void) {
  for (size_t modes = 0; modes < COUNT(kModes); modes++) {
    for (int i = 0; i < 12; i++) {
      Blocks b = blocks(modes, 144, 80, 288);
      b.g.a = kFloat8[i % 2];
      b.g.b = kFloat8[i / 2 % 2];
      b.g.d = kOutputs[i / 4];
      b.g.integers = true;
      if (blocks_case("dtypes", &b)) run_blocks(b);
    }
  }
}

static void test_epilogues(void) {
  const float factors[][2] = {{1, 0}, {1, 1}, {0.5f, 1}, {2, -0.5f}, {0, 1}};
  for (size_t modes = 0; modes < COUNT(kModes); modes++) {
    for (size_t f = 0; f < COUNT(factors); f++) {
      for (int i = 0; i < 12; i++) {
        Blocks b = blocks(modes, 160, 48, 384);
        b.g.entry = f == 0 ? (Entry)(i % 3) : f == 1 ? LEGACY : f == 4 || i % 2 ? SCALED : V2;
        b.g.alpha = factors[f][0];
        b.g.beta = factors[f][1];
        b.g.d = kOutputs[i % 2];
        b.g.integers = i / 2 % 2;
        b.g.bias = i / 4 == 1;
        b.g.gelu = b.g.grad = i / 4 == 2;
        if (blocks_case("epilogue", &b)) run_blocks(b);
      }
    }
  }
}

// Scales far from 1, NaN scales, no workspace, other pitches, more dimensions.
static void test_surroundings(void) {
  for (size_t modes = 0; modes < COUNT(kModes); modes++) {
    for (int spread = -90; spread <= 90; spread += 60) {
      Blocks b = blocks(modes, 144, 48, 256);
      b.g.integers = true;
      b.spread = spread;
      if (case_begin("spread %d %s %s", spread, mode_name(b.a_mode), mode_name(b.b_mode))) {
        run_blocks(b);
      }
    }
    for (int i = 0; i < 6; i++) {
      Blocks b = blocks(modes, 144, 48, 256);
      b.g.integers = true;
      b.g.entry = (Entry)(i % 3);
      b.g.transa = i < 3;
      b.g.transb = i >= 3;
      b.nan_scale = true;
      if (case_begin("NaN scale %d %s %s", i, mode_name(b.a_mode), mode_name(b.b_mode))) {
        run_blocks(b);
      }
      b.nan_scale = false;
      b.g.rank3 = true;
      if (case_begin("rank 3 %d %s %s", i, mode_name(b.a_mode), mode_name(b.b_mode))) {
        run_blocks(b);
      }
      b.g.rank3 = false;
      b.g.workspace = 0;
      b.g.null_handles = i % 2;
      b.g.may_decline = is_mx(b.a_mode);
      if (case_begin("no workspace %d %s %s", i, mode_name(b.a_mode), mode_name(b.b_mode))) {
        run_blocks(b);
      }
      b.g.workspace = WORKSPACE;
      b.wide_scales = b.g.may_decline = !is_mx(b.a_mode);
      if (b.wide_scales &&
          case_begin("wide scales %d %s %s", i, mode_name(b.a_mode), mode_name(b.b_mode))) {
        run_blocks(b);
      }
    }
  }
}

// What FP8 blocks do not depend on: the split accumulator, and the flag of swizzled scales.
static void test_ignored(void) {
  for (size_t modes = 0; modes < 3; modes++) {
    for (int i = 0; i < 6; i++) {
      Blocks b = blocks(modes, 144, 48, 256);
      b.g.entry = (Entry)(i % 3);
      b.g.transa = i % 2;
      b.g.integers = true;
      b.fast = i < 3;
      b.flagged = i >= 3;
      if (case_begin("ignored %d %s %s", i, mode_name(b.a_mode), mode_name(b.b_mode))) {
        run_blocks(b);
      }
    }
  }
}

// MXFP8 operands that would not fit into the workspace as 16-bit matrices.
static void test_little_workspace(void) {
  const size_t sizes[][3] = {{259, 261, 389}, {264, 272, 400}, {40, 272, 1040}, {520, 24, 800}};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    for (int i = 0; i < 14; i++) {
      Blocks b = blocks(3, sizes[s][0], sizes[s][1], sizes[s][2]);
      b.g.workspace = i % 3 ? 64 << 10 : 96 << 10;
      b.g.transa = (i + (int)s) % 2 == 0;
      b.g.transb = (i / 2 + (int)s) % 2;
      b.unswizzled = i % 4 == 1;
      b.g.d = kOutputs[(i + (int)s) % 3];
      b.g.a = kFloat8[i % 5 == 4];
      b.g.integers = i % 2;
      b.g.entry = i == 2 ? SCALED : i % 2 ? LEGACY : V2;
      if (i == 1 || i == 2) b.g.beta = i == 1 ? 1 : -0.5f;
      if (i == 2) b.g.alpha = 0.5f;
      // Bias, GELU, both; their gradients.
      int epilogue = i < 3 ? 0 : (i - 3) % 6 + 1;
      b.g.bias = epilogue % 3 == 1 || epilogue % 3 == 0;
      b.g.gelu = epilogue % 3 == 2 || epilogue % 3 == 0;
      if (epilogue == 0) b.g.bias = b.g.gelu = false;
      b.g.grad = epilogue > 3;
      if (case_begin("little workspace %zu %zux%zux%zu", (size_t)i, b.g.m, b.g.n, b.g.k)) {
        run_blocks(b);
      }
    }
  }
}

// Likewise to FP8, whose amax is that of all parts.
static void test_little_workspace_to_fp8(void) {
  for (int i = 0; i < 4; i++) {
    if (!case_begin("little workspace to FP8 %d", i)) continue;
    Blocks b = blocks(3, 264, i % 2 ? 40 : 272, 400);
    b.g.integers = true;
    size_t m = b.g.m, n = b.g.n, k = b.g.k, bad = 0;
    Operand x = {b.a_mode, b.g.a, m, k, 0, true, NULL, NULL, NULL};
    Operand y = {b.b_mode, b.g.b, n, k, 0, true, NULL, NULL, NULL};
    make_values(&b, &x, 1, false);
    make_values(&b, &y, 1, false);
    const NVTEDType fp8 = kFloat8[i / 2];
    const double scale = 0.125;
    Buffer *d = buffer(n * m), *amax = buffer_float(0), *scale_inv = buffer(4);
    NVTETensor d_tensor = tensor(d->ptr, fp8, SHAPE(n, m));
    set_param(d_tensor, kNVTEScale, buffer_float((float)scale)->ptr, kNVTEFloat32, SHAPE(1));
    set_param(d_tensor, kNVTEAmax, amax->ptr, kNVTEFloat32, SHAPE(1));
    set_param(d_tensor, kNVTERowwiseScaleInv, scale_inv->ptr, kNVTEFloat32, SHAPE(1));
    gemm_call(&b.g, operand_tensor(&b, &x, false), operand_tensor(&b, &y, false), d_tensor,
              d_tensor, NULL, NULL, tensor(g_workspace, kNVTEByte, SHAPE(96 << 10)));
    if (!EXPECT_OK()) continue;
    const void *got = buffer_read(d);
    double largest = 0;
    for (size_t j = 0; j < n * m; j++) {
      double sum = 0;
      for (size_t p = 0; p < k; p++) sum += x.values[j % m * k + p] * y.values[j / m * k + p];
      largest = fmax(largest, fabs(sum));
      double value = get_value(fp8, got, j), want = round_to(fp8, sum * scale);
      if (bad < 5) bad += !CHECK(value == want, "D[%zu]: got %.9g, expected %.9g", j, value, want);
    }
    CHECK_FLOAT(read_float(amax), (float)largest);
    CHECK_FLOAT(read_float(scale_inv), (float)(1 / scale));
  }
}

static void test_no_products(void) {
  for (size_t modes = 0; modes < COUNT(kModes); modes++) {
    for (int i = 0; i < 8; i++) {
      Blocks b = blocks(modes, 24, 16, 0);
      b.g.transa = i & 1;
      b.g.beta = i & 2 ? 1 : 0;
      b.g.bias = i & 4;
      b.g.integers = true;
      if (blocks_case("no products", &b)) run_blocks(b);
    }
    for (int i = 0; i < 2; i++) {
      Blocks b = blocks(modes, i ? 16 : 0, i ? 0 : 16, 32);
      if (blocks_case("empty", &b)) run_blocks(b);
    }
  }
}

// ---- Refusals

// A correct product [16, 16, 32] that a case breaks in one place.
typedef struct Wrong {
  NVTETensor a, b, d, bias, aux;
  Buffer *out;
  Gemm g;
} Wrong;

static NVTETensor wrong_operand(NVTEScalingMode mode, size_t outer, size_t k) {
  Blocks b = {0};
  b.g.one_direction = b.g.integers = true;
  Operand o = {mode, kNVTEFloat8E4M3, outer, k, 0, is_mx(mode), NULL, NULL, NULL};
  make_values(&b, &o, 1, false);
  return operand_tensor(&b, &o, false);
}

static Wrong wrong(NVTEScalingMode a, NVTEScalingMode b, size_t m, size_t n, size_t k) {
  Wrong w = {0};
  w.a = wrong_operand(a, m, k);
  w.b = wrong_operand(b, n, k);
  w.out = buffer(m * n * 2);
  w.d = tensor(w.out->ptr, kNVTEBFloat16, SHAPE(n, m));
  w.g.transa = w.g.split = true;
  w.g.alpha = 1;
  return w;
}

static void refused(Wrong w, int status, const char *argument, const char *expected) {
  for (int i = 0; i < 3; i++) {
    w.g.entry = (Entry)i;
    gemm_call(&w.g, w.a, w.b, w.d, w.d, w.bias, w.aux, NULL);
    EXPECT_ERROR(status, "nvte_cublas_gemm", argument, expected, "expected", "got");
  }
  CHECK(untouched(w.out), "D was written");
}

static void test_refused(void) {
  const NVTEScalingMode mx = NVTE_MXFP8_1D_SCALING;
  const NVTEScalingMode d1 = NVTE_BLOCK_SCALING_1D, d2 = NVTE_BLOCK_SCALING_2D;
  const int invalid = NVTEX_INVALID_ARGUMENT;
  if (case_begin("refused modes")) {
    refused(wrong(d2, d2, 16, 16, 32), invalid, "B.scaling_mode", "NVTE_BLOCK_SCALING_1D");
    refused(wrong(mx, d1, 16, 16, 32), invalid, "B.scaling_mode", "NVTE_MXFP8_1D_SCALING");
    refused(wrong(d1, mx, 16, 16, 32), invalid, "B.scaling_mode", "NVTE_BLOCK_SCALING_2D");
    Wrong w = wrong(d1, d1, 16, 16, 32);
    w.b = tensor(w.out->ptr, kNVTEBFloat16, SHAPE(16, 32));
    refused(w, invalid, "B.scaling_mode", "NVTE_BLOCK_SCALING_1D");
    w.a = w.b;
    w.b = wrong_operand(d1, 16, 32);
    refused(w, invalid, "B.scaling_mode", "NVTE_DELAYED_TENSOR_SCALING");
    w.a = w.b;
    w.d = tensor_of_mode(d1);
    refused(w, invalid, "D.scaling_mode", "NVTE_DELAYED_TENSOR_SCALING");
    w = wrong(d1, d1, 16, 16, 32);
    w.a = tensor_of_mode(NVTE_NVFP4_1D_SCALING);
    refused(w, invalid, "A.data", "blocks along");
  }
  if (case_begin("refused sizes")) {
    Wrong w = wrong(d1, d2, 16, 16, 32);
    w.b = wrong_operand(d2, 16, 64);
    refused(w, invalid, "B.shape", "32");
  }
  if (case_begin("refused options")) {
    Wrong w = wrong(d1, d2, 16, 16, 32);
    w.g.grad = true;
    Buffer *bias = buffer(16 * 2), *aux = buffer(16 * 16 * 2);
    w.bias = tensor(bias->ptr, kNVTEBFloat16, SHAPE(16));
    refused(w, invalid, "bias", "no bias gradient");
    w.aux = tensor(aux->ptr, kNVTEBFloat16, SHAPE(16, 16));
    refused(w, invalid, "bias", "no bias gradient");
    w.g.grad = false;
    refused(w, invalid, w.g.entry == V2 ? "aux" : "", "no GELU");
    w.bias = NULL;
    refused(w, invalid, w.g.entry == V2 ? "aux" : "", "no GELU");
    CHECK(untouched(bias) && untouched(aux), "bias or aux was written");
  }
  if (case_begin("refused scales")) {
    for (size_t i = 0; i < COUNT(kModes); i++) {
      NVTEScalingMode a = kModes[i][0], b = kModes[i][1];
      size_t size = is_mx(a) ? 1 : 4;
      Wrong w = wrong(a, b, 144, 16, 256);
      Buffer *scales = buffer(256 * 144 * 4);
      set_param(w.a, kNVTERowwiseScaleInv, NULL, scale_dtype(a), SHAPE(0));
      refused(w, invalid, "A.scale_inv", "got nothing");
      set_param(w.a, kNVTERowwiseScaleInv, scales->ptr, kNVTEBFloat16, SHAPE(256, 8));
      refused(w, invalid, "A.scale_inv.dtype", "BFloat16");
      set_param(w.a, kNVTERowwiseScaleInv, scales->ptr, scale_dtype(a), SHAPE(9, 9));
      refused(w, invalid, "A.scale_inv.shape", "[9, 9]");
      if (size > 1) {
        Wrong v = wrong(a, b, 16, 16, 32);
        set_param(v.b, kNVTERowwiseScaleInv, scales->ptr + 1, scale_dtype(b),
                  b == d1 ? SHAPE(1, 16) : SHAPE(1, 4));
        refused(v, invalid, "B.scale_inv", "aligned");
      }
    }
  }
  if (case_begin("refused directions")) {
    for (size_t i = 0; i < COUNT(kModes); i++) {
      Wrong w = wrong(kModes[i][0], kModes[i][1], 32, 32, 32);
      w.g.transa = false;
      refused(w, invalid, "A.columnwise_data", "row-wise data only");
      w.g.transa = w.g.transb = true;
      refused(w, invalid, "B.columnwise_data", "row-wise data only");
      w.a = wrong_operand(kModes[i][0], 32, 32);
      set_param(w.a, kNVTERowwiseData, w.out->ptr, kNVTEBFloat16, SHAPE(32, 32));
      refused(w, invalid, "A.dtype", "Float8E4M3 or Float8E5M2");
    }
  }
}

// The bytes that a workspace lacks are named.
static void test_small_workspace(void) {
  if (!case_begin("small workspace") || !on_cuda()) return;
  Wrong w = wrong(NVTE_MXFP8_1D_SCALING, NVTE_MXFP8_1D_SCALING, 16, 32, 64);
  gemm_call(&w.g, w.a, w.b, w.d, w.d, NULL, NULL, NULL);
  if (nvtex_last_status() == NVTEX_OK) return;  // a device with such tensor cores
  // The workspace is for the casts of the operands, or else for the product as a group of one.
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_cublas_gemm", "workspace", "6144 bytes", "2304 bytes",
               "got 0");
  CHECK(untouched(w.out), "D was written");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  g_workspace = nvtex_malloc(WORKSPACE);
  EXPECT_OK();
  test_sizes();
  test_odd_sizes();
  test_tiles();
  test_dtypes();
  test_epilogues();
  test_surroundings();
  test_ignored();
  test_little_workspace();
  test_little_workspace_to_fp8();
  test_no_products();
  test_refused();
  test_small_workspace();
  case_end();
  nvtex_free(g_workspace);
  return test_end();
}
