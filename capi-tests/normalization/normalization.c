// LayerNorm and RMSNorm, forward and backward (pointwise_norm.md section 8), against the formulas
// in double. A result may be what any value within float32's error of the exact one rounds to.
#include "nvte/normalization.h"

#include "support.h"

enum { SMS = 24 };

static const NVTETensorParam kData[2] = {kNVTERowwiseData, kNVTEColumnwiseData};
static const NVTETensorParam kScaleInv[2] = {kNVTERowwiseScaleInv, kNVTEColumnwiseScaleInv};

static size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
static size_t round_up(size_t a, size_t b) { return ceil_div(a, b) * b; }

// `got` is a rounding of some value within `error` of `want`.
static bool rounds_to(NVTEDType dtype, double got, double want, double error) {
  if (isnan(want)) return isnan(got);
  if (isinf(want)) return got == round_to(dtype, want);
  return got >= round_to(dtype, want - error) && got <= round_to(dtype, want + error);
}

// ---- Forward: build, call, compare

typedef struct Norm {
  bool layer, zero_centered, rounded_gamma, has_amax, has_scale, misaligned, residual, in_place;
  bool swizzled;
  NVTEDType x, gamma, z;
  size_t rows, cols;
  NVTEScalingMode mode;
  Directions directions;  // The value 0 stands for row-wise data.
  float epsilon;
  double low, high;  // Bounds of x; if both are 0, -2 and 1.
  void *values, *residual_values, *gamma_values, *beta_values;
  Buffer *x_buffer, *residual_buffer, *sum, *mu, *rsigma, *data[2], *scale_inv[2], *amax;
  NVTETensor x_tensor, residual_tensor, sum_tensor, gamma_tensor, beta_tensor, z_tensor;
  NVTETensor mu_tensor, rsigma_tensor, workspace;
} Norm;

static const float kScale = 3.25f, kOldAmax = 0.125f;

static bool is_block(const Norm *n) { return n->mode != NVTE_DELAYED_TENSOR_SCALING; }
static bool is_mx(const Norm *n) { return n->mode == NVTE_MXFP8_1D_SCALING; }
static bool has(const Norm *n, int col) { return (int)n->directions & (col ? COLWISE : ROWWISE); }

static NVTEShape data_shape(const Norm *n, int col) {
  return col && !is_mx(n) ? SHAPE(n->cols, n->rows) : SHAPE(n->rows, n->cols);
}

static NVTEShape scale_shape(const Norm *n, int col) {
  size_t r = n->rows, c = n->cols;
  switch (n->mode) {
    case NVTE_DELAYED_TENSOR_SCALING:
      return SHAPE(1);
    case NVTE_MXFP8_1D_SCALING:
      return col ? SHAPE(round_up(ceil_div(r, 32), 4), round_up(c, 128))
                 : SHAPE(round_up(r, 128), round_up(ceil_div(c, 32), 4));
    case NVTE_BLOCK_SCALING_1D:
      return col ? SHAPE(ceil_div(r, 128), c) : SHAPE(ceil_div(c, 128), r);
    default:
      return col ? SHAPE(ceil_div(c, 128), ceil_div(r, 128))
                 : SHAPE(ceil_div(r, 128), ceil_div(c, 128));
  }
}

static size_t scale_index(const Norm *n, int col, size_t r, size_t c) {
  size_t pitch = is_block(n) ? scale_shape(n, col).data[1] : 0;
  switch (n->mode) {
    case NVTE_MXFP8_1D_SCALING:
      if (n->swizzled) {
        size_t i = col ? c : r, j = (col ? r : c) / 32;
        size_t tiles = ceil_div(col ? n->rows : n->cols, 128);
        return (i / 128 * tiles + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
      }
      return col ? r / 32 * pitch + c : r * pitch + c / 32;
    case NVTE_BLOCK_SCALING_1D:
      return col ? r / 128 * pitch + c : c / 128 * pitch + r;
    default:
      return col ? c / 128 * pitch + r / 128 : r / 128 * pitch + c / 128;
  }
}

static Buffer *output_buffer(const Norm *n, size_t elements, NVTEDType dtype) {
  return buffer_shifted(elements * dtype_size(dtype), n->misaligned ? dtype_size(dtype) : 0);
}

static Buffer *input_buffer(const Norm *n, const void *values, size_t elements, NVTEDType dtype) {
  return buffer_from(values, elements * dtype_size(dtype), n->misaligned ? dtype_size(dtype) : 0);
}

static void norm_build(Norm *n) {
  size_t count = n->rows * n->cols;
  NVTEShape shape = SHAPE(n->rows, n->cols), row = SHAPE(n->cols), column = SHAPE(n->rows);
  if (!n->directions) n->directions = ROWWISE;
  if (n->low == 0 && n->high == 0) n->low = -2, n->high = 1;
  if (!n->values) n->values = random_values(n->x, count, n->low, n->high);
  n->gamma_values = random_values(n->gamma, n->cols, -2, 1);
  n->beta_values = random_values(n->gamma, n->cols, -2, 1);
  n->x_buffer = input_buffer(n, n->values, count, n->x);
  n->x_tensor = tensor(n->x_buffer->ptr, n->x, shape);
  if (n->residual) {
    n->residual_values = random_values(n->x, count, -2, 1);
    n->residual_buffer = input_buffer(n, n->residual_values, count, n->x);
    n->residual_tensor = tensor(n->residual_buffer->ptr, n->x, shape);
    n->sum = n->in_place ? n->x_buffer : output_buffer(n, count, n->x);
    n->sum_tensor = tensor(n->sum->ptr, n->x, shape);
  }
  n->gamma_tensor = tensor(input_buffer(n, n->gamma_values, n->cols, n->gamma)->ptr, n->gamma, row);
  n->beta_tensor = tensor(input_buffer(n, n->beta_values, n->cols, n->gamma)->ptr, n->gamma, row);
  n->mu = output_buffer(n, n->rows, kNVTEFloat32);
  n->rsigma = output_buffer(n, n->rows, kNVTEFloat32);
  n->mu_tensor = tensor(n->mu->ptr, kNVTEFloat32, column);
  n->rsigma_tensor = tensor(n->rsigma->ptr, kNVTEFloat32, column);
  n->z_tensor = tensor_of_mode(n->mode);
  for (int col = 0; col < 2; col++) {
    if (!has(n, col)) continue;
    n->data[col] = output_buffer(n, count, n->z);
    set_param(n->z_tensor, kData[col], n->data[col]->ptr, n->z, data_shape(n, col));
    if (!is_fp8(n->z)) continue;
    NVTEShape scales = scale_shape(n, col);
    NVTEDType type = is_mx(n) ? kNVTEFloat8E8M0 : kNVTEFloat32;
    n->scale_inv[col] = col && !is_block(n) && n->scale_inv[0]
                            ? n->scale_inv[0]
                            : output_buffer(n, numel(scales), type);
    set_param(n->z_tensor, kScaleInv[col], n->scale_inv[col]->ptr, type, scales);
  }
  if (n->has_scale) {
    set_param(n->z_tensor, kNVTEScale, buffer_float(kScale)->ptr, kNVTEFloat32, SHAPE(1));
  }
  if (n->has_amax) {
    n->amax = buffer_float(kOldAmax);
    set_param(n->z_tensor, kNVTEAmax, n->amax->ptr, kNVTEFloat32, SHAPE(1));
  }
  if (n->swizzled) {
    uint8_t yes = 1;
    nvte_set_tensor_param_v2(n->z_tensor, kNVTEWithGEMMSwizzledScales, &yes, sizeof yes);
  }
  n->workspace = empty_tensor();
  EXPECT_OK();
}

static void norm_call(const Norm *n) {
  if (n->residual && n->layer) {
    nvtex_residual_layernorm_fwd(n->x_tensor, n->residual_tensor, n->gamma_tensor, n->beta_tensor,
                                 n->epsilon, n->sum_tensor, n->z_tensor, n->mu_tensor,
                                 n->rsigma_tensor, SMS, n->zero_centered, NULL);
  } else if (n->residual) {
    nvtex_residual_rmsnorm_fwd(n->x_tensor, n->residual_tensor, n->gamma_tensor, n->epsilon,
                               n->sum_tensor, n->z_tensor, n->rsigma_tensor, SMS, n->zero_centered,
                               NULL);
  } else if (n->layer) {
    nvte_layernorm_fwd(n->x_tensor, n->gamma_tensor, n->beta_tensor, n->epsilon, n->z_tensor,
                       n->mu_tensor, n->rsigma_tensor, n->workspace, SMS, n->zero_centered, NULL);
  } else {
    nvte_rmsnorm_fwd(n->x_tensor, n->gamma_tensor, n->epsilon, n->z_tensor, n->rsigma_tensor,
                     n->workspace, SMS, n->zero_centered, NULL);
  }
}

// Gives the workspace the memory that it asks for.
static void fill_workspace(NVTETensor workspace, size_t shift) {
  NVTEShape shape = nvte_tensor_shape(workspace);
  CHECK(shape.ndim == 1 && shape.data[0] > 0, "the workspace is %s", shape_text(shape));
  CHECK_EQ(nvte_tensor_type(workspace), kNVTEByte);
  Buffer *b = buffer_shifted(shape.data[0], shift);
  set_param(workspace, kNVTERowwiseData, b->ptr, kNVTEByte, shape);
}

static double gamma_at(const Norm *n, size_t c) {
  double g = get_value(n->gamma, n->gamma_values, c) + (n->zero_centered ? 1 : 0);
  return n->rounded_gamma ? round_to(n->gamma, g) : (double)(float)g;
}

// The exact result from the given statistics, and the error that float32 may make.
static double result_at(const Norm *n, size_t c, double x, double mu, double rsigma,
                        double *error) {
  double g = gamma_at(n, c), y = rsigma * (x - mu);
  double b = n->layer ? get_value(n->gamma, n->beta_values, c) : 0;
  *error = 1e-6 * (fabs(g * y) + fabs(b)) + 1e-37;
  return g * y + b;
}

static void check_blocks(const Norm *n, int col, const double *want, const double *error) {
  const unsigned char *data = buffer_read(n->data[col]), *scales = buffer_read(n->scale_inv[col]);
  bool square = n->mode == NVTE_BLOCK_SCALING_2D;
  size_t side = is_mx(n) ? 32 : 128, bad = 0;
  size_t height = square || col ? side : 1, width = square || !col ? side : 1;
  double largest = format_of(n->z).largest;
  for (size_t top = 0; top < n->rows; top += height) {
    for (size_t left = 0; left < n->cols; left += width) {
      size_t bottom = top + height < n->rows ? top + height : n->rows;
      size_t right = left + width < n->cols ? left + width : n->cols;
      double least = 0, most = 0;  // Bounds of the block's amax.
      for (size_t r = top; r < bottom; r++) {
        for (size_t c = left; c < right; c++) {
          double v = fabs(want[r * n->cols + c]), e = error[r * n->cols + c];
          if (v - e > least) least = v - e;
          if (v + e > most) most = v + e;
        }
      }
      size_t at = scale_index(n, col, top, left);
      double scale;
      if (is_mx(n)) {
        scale = ldexp(1, 127 - scales[at]);
        bool fits = scales[at] == 0 || ldexp(1, scales[at] - 128) < most / largest * (1 + 1e-6);
        fits = fits && ldexp(1, scales[at] - 127) >= least / largest * (1 - 1e-6);
        bad += !CHECK(fits, "code %d of the block at %zu, %zu: amax %g to %g", scales[at], top,
                      left, least, most);
      } else {
        float inverse;
        memcpy(&inverse, scales + 4 * at, 4);
        scale = 1 / (double)inverse;
        bool fits = most == 0 ? inverse == 1
                              : (double)inverse >= least / largest * (1 - 1e-6) &&
                                    (double)inverse <= most / largest * (1 + 1e-6);
        bad += !CHECK(fits, "scale_inv %g of the block at %zu, %zu: amax %g to %g", (double)inverse,
                      top, left, least, most);
      }
      for (size_t r = top; r < bottom && bad < 3; r++) {
        for (size_t c = left; c < right && bad < 3; c++) {
          double v = want[r * n->cols + c] * scale;
          double e = error[r * n->cols + c] * scale + 1e-6 * fabs(v);
          size_t place = col && !is_mx(n) ? c * n->rows + r : r * n->cols + c;
          double got = get_value(n->z, data, place);
          bad += !CHECK(rounds_to(n->z, got, v, e), "row %zu, col %zu: %g, not %g", r, c, got, v);
        }
      }
    }
  }
  if (!is_mx(n) || bad) return;
  // Codes that belong to no block are 0.
  size_t entries = numel(scale_shape(n, col));
  unsigned char *used = host_memory(entries);
  for (size_t r = 0; r < n->rows; r++) {
    for (size_t c = 0; c < n->cols; c++) used[scale_index(n, col, r, c)] = 1;
  }
  for (size_t i = 0; i < entries && bad < 3; i++) {
    if (!used[i]) bad += !CHECK(scales[i] == 0, "padding code %zu is %d", i, scales[i]);
  }
}

static void norm_check(const Norm *n) {
  if (!EXPECT_OK()) return;
  size_t count = n->rows * n->cols, bad = 0;
  const float *mus = buffer_read(n->mu), *rsigmas = buffer_read(n->rsigma);
  const void *sums = n->residual ? buffer_read(n->sum) : NULL;
  double *want = host_memory(8 * count), *error = host_memory(8 * count);
  double amax = (double)kOldAmax, amax_error = 0;
  for (size_t r = 0; r < n->rows; r++) {
    double sum = 0, squares = 0, largest = 0;
    double *x = want + r * n->cols;
    for (size_t c = 0; c < n->cols; c++) {
      size_t i = r * n->cols + c;
      x[c] = get_value(n->x, n->values, i);
      if (n->residual) {
        x[c] = round_to(n->x, (float)(x[c] + get_value(n->x, n->residual_values, i)));
        double got = get_value(n->x, sums, i);
        if (bad < 3) bad += !CHECK(got == x[c], "sum %zu, %zu: %g, not %g", r, c, got, x[c]);
      }
      sum += x[c];
      largest = fmax(largest, fabs(x[c]));
    }
    double mean = n->layer ? sum / (double)n->cols : 0;
    for (size_t c = 0; c < n->cols; c++) squares += (x[c] - mean) * (x[c] - mean);
    double rsigma = 1 / sqrt(squares / (double)n->cols + (double)n->epsilon);
    double mu = n->layer ? (double)mus[r] : 0;
    if (n->layer && bad < 3) {
      bool same = isnan(mean) ? isnan(mu) : mu == mean || fabs(mu - mean) <= 2e-6 * largest;
      bad += !CHECK(same, "mu[%zu]: %g, not %g", r, mu, mean);
    }
    bool same = isnan(rsigma) ? isnan(rsigmas[r])
                              : (double)rsigmas[r] == rsigma ||
                                    fabs((double)rsigmas[r] - rsigma) <= 1e-4 * rsigma;
    if (bad < 3) bad += !CHECK(same, "rsigma[%zu]: %g, not %g", r, (double)rsigmas[r], rsigma);
    for (size_t c = 0; c < n->cols; c++) {
      double e, v = result_at(n, c, x[c], mu, (double)rsigmas[r], &e);
      want[r * n->cols + c] = v;
      error[r * n->cols + c] = e;
      if (fabs(v) > amax) amax = fabs(v);
      if (e > amax_error) amax_error = e;
    }
  }
  if (!n->layer) CHECK(untouched(n->mu), "mu was written");
  if (is_block(n)) {
    for (int col = 0; col < 2; col++) {
      if (has(n, col)) check_blocks(n, col, want, error);
    }
  } else {
    const void *z = buffer_read(n->data[0]);
    double scale = is_fp8(n->z) && n->has_scale ? (double)kScale : 1;
    if (!is_fp8(n->z)) amax = (double)kOldAmax;
    for (size_t i = 0; i < count && bad < 5; i++) {
      double got = get_value(n->z, z, i), e = (error[i] + 1e-7 * fabs(want[i])) * scale;
      bad += !CHECK(rounds_to(n->z, got, want[i] * scale, e), "row %zu, col %zu: %g, not %g",
                    i / n->cols, i % n->cols, got, want[i] * scale);
      if (!is_fp8(n->z) && fabs(got) > amax) amax = fabs(got);
    }
    if (n->data[1]) {
      const void *t = buffer_read(n->data[1]);
      for (size_t i = 0; i < count && bad < 5; i++) {
        uint32_t a = get_bits(n->z, z, i);
        uint32_t b = get_bits(n->z, t, i % n->cols * n->rows + i / n->cols);
        bad += !CHECK(a == b, "transposed, row %zu, col %zu: 0x%x, not 0x%x", i / n->cols,
                      i % n->cols, b, a);
      }
    }
    if (n->scale_inv[0]) CHECK_FLOAT(read_float(n->scale_inv[0]), 1.0f / (float)scale);
  }
  if (n->amax) {
    double got = (double)read_float(n->amax);
    double e = is_fp8(n->z) ? amax_error : 0;
    CHECK(got == amax || fabs(got - amax) <= e, "amax %g, not %g", got, amax);
  }
  if (!n->in_place) {
    CHECK(memcmp(buffer_read(n->x_buffer), n->values, n->x_buffer->bytes) == 0, "x changed");
  }
}

static void norm_run(Norm *n) {
  norm_build(n);
  if (!n->residual) {
    norm_call(n);
    if (!EXPECT_OK()) return;
    CHECK(untouched(n->rsigma), "the query wrote");
    fill_workspace(n->workspace, n->misaligned);
  }
  norm_call(n);
  norm_check(n);
}

static const char *kind(bool layer) { return layer ? "layernorm" : "rmsnorm"; }

static const size_t kShapes[][2] = {
    {71, 229},  {29, 541},  {1, 1},     {5, 7},    {3, 32},   {130, 768}, {17, 1536}, {64, 4096},
    {9, 12288}, {5, 16384}, {300, 24},  {6, 1000}, {4, 5120}, {3, 8192},  {2, 32768}, {2, 40000},
    {1, 70001}, {33, 2304}, {8, 11008}, {2, 4099}, {1, 8},    {1000, 1},  {10, 264},  {2, 20480},
};

static void test_forward(void) {
  for (size_t s = 0; s < COUNT(kShapes); s++) {
    size_t rows = kShapes[s][0], cols = kShapes[s][1];
    for (int k = 0; k < 90; k++) {
      // Time: every combination of dtypes for small shapes, some of them for the others.
      if (rows * cols > 20000 && (k + (int)s) % (rows * cols > 100000 ? 13 : 7)) continue;
      Norm n = {.layer = k % 2 == 0,
                .x = kHighPrecision[k / 2 % 3],
                .gamma = kHighPrecision[k / 6 % 3],
                .z = kFloats[k / 18],
                .rows = rows,
                .cols = cols,
                .epsilon = 1e-5f,
                .zero_centered = k % 5 == 1,
                .misaligned = k % 4 == 3,
                .residual = k % 7 == 2,
                .in_place = k % 3 == 1,
                .directions = k % 11 == 4 ? BOTH : ROWWISE,
                .has_amax = k % 3 > 0,
                .has_scale = is_fp8(kFloats[k / 18]) && k % 4 != 1};
      n.in_place = n.in_place && n.residual;
      if (!case_begin("%s %zux%zu %s %s %s%s%s%s%s%s", kind(n.layer), rows, cols, dtype_name(n.x),
                      dtype_name(n.gamma), dtype_name(n.z), n.zero_centered ? " centered" : "",
                      n.misaligned ? " misaligned" : "", n.residual ? " residual" : "",
                      n.in_place ? " in place" : "", n.directions == BOTH ? " both" : "")) {
        continue;
      }
      norm_run(&n);
    }
  }
  // Multiprocessors get several rows each, not all as many.
  static const size_t kCols[] = {768, 1536, 4096, 6144, 7168, 40960, 44544, 50000};
  static const NVTEDType kTo[] = {kNVTEBFloat16, kNVTEFloat8E4M3, kNVTEFloat8E5M2};
  for (int k = 0; k < 6 * (int)COUNT(kCols); k++) {
    const int z = k / 2 % 3;
    Norm n = {.layer = k % 2 == 0,
              .x = z == 2 ? kNVTEFloat16 : kNVTEBFloat16,
              .z = kTo[z],
              .rows = 101,
              .cols = kCols[k / 6],
              .epsilon = 1e-5f,
              .zero_centered = k % 5 == 1,
              .has_amax = is_fp8(kTo[z]),
              .has_scale = is_fp8(kTo[z])};
    n.gamma = n.x;
    if (!case_begin("%s of 101x%zu %s", kind(n.layer), n.cols, dtype_name(n.z))) continue;
    norm_run(&n);
  }
}

static void test_blocks(void) {
  const NVTEScalingMode modes[] = {NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_1D,
                                   NVTE_BLOCK_SCALING_2D};
  const char *const names[] = {"MXFP8", "1D", "2D"};
  const size_t shapes[][2] = {{32, 32},  {71, 229}, {1, 1},    {129, 257}, {128, 2304},
                              {5, 5120}, {2, 9000}, {3, 7168}, {1, 40000}, {200, 130}};
  for (size_t m = 0; m < COUNT(modes); m++) {
    for (size_t s = 0; s < COUNT(shapes); s++) {
      for (int k = 0; k < 18; k++) {
        if (shapes[s][0] * shapes[s][1] > 30000 && k % 4 != (int)s % 4)
          continue;  // Skipped to save time.
        Norm n = {.layer = k % 2 == 0,
                  .x = kHighPrecision[k / 2 % 3],
                  .gamma = kHighPrecision[(k / 2 + k / 6) % 3],
                  .z = kFloat8[k / 9],
                  .rows = shapes[s][0],
                  .cols = shapes[s][1],
                  .mode = modes[m],
                  .directions = (Directions)(k % 3 + 1),
                  .epsilon = 1e-5f,
                  .zero_centered = k % 5 == 1,
                  .misaligned = k % 4 == 3,
                  .residual = k % 7 == 2,
                  .swizzled = m == 0 && k % 4 == 1};
        if (!case_begin("%s %s %zux%zu %s %s %s%s%s%s%s", names[m], kind(n.layer), n.rows, n.cols,
                        dtype_name(n.x), dtype_name(n.gamma), dtype_name(n.z),
                        k % 3 == 0   ? " rowwise"
                        : k % 3 == 1 ? " columnwise"
                                     : " both",
                        n.misaligned ? " misaligned" : "", n.residual ? " residual" : "",
                        n.swizzled ? " swizzled" : "")) {
          continue;
        }
        norm_run(&n);
      }
    }
  }
}

// Rows on which careless arithmetic fails; the first and the last are ordinary.
static void test_extreme(void) {
  const size_t widths[] = {8, 1000, 4096, 40000};
  for (size_t w = 0; w < COUNT(widths); w++) {
    for (int k = 0; k < 6; k++) {
      Norm n = {.layer = k % 2 == 0,
                .x = kHighPrecision[k / 2],
                .gamma = kHighPrecision[k / 2],
                .z = kNVTEFloat32,
                .rows = 9,
                .cols = widths[w],
                .epsilon = 1e-5f,
                .has_amax = true};
      if (!case_begin("extreme %s %s %zu", kind(n.layer), dtype_name(n.x), n.cols)) continue;
      n.values = random_values(n.x, 9 * n.cols, -2, 1);
      for (size_t c = 0; c < n.cols; c++) {
        size_t at = n.cols + c;
        double u = random_uniform(-1, 1);
        put_value(n.x, n.values, at, 1000 + u);  // large mean, small variance
        put_value(n.x, n.values, at += n.cols, 3.3);
        put_value(n.x, n.values, at += n.cols, 0);
        put_value(n.x, n.values, at += n.cols, u * 1e-6);  // Values so small that epsilon decides.
        put_value(n.x, n.values, at += n.cols, c == n.cols / 2 ? (double)INFINITY : u);
        put_value(n.x, n.values, at += n.cols, c == n.cols - 1 ? (double)NAN : u);
        put_value(n.x, n.values, at += n.cols, c == 0 ? 6e4 : u);  // one large element
      }
      norm_run(&n);
    }
  }
  if (case_begin("epsilon 0")) {
    Norm n = {.layer = true,
              .x = kNVTEFloat32,
              .gamma = kNVTEFloat32,
              .z = kNVTEFloat32,
              .rows = 5,
              .cols = 300};
    norm_run(&n);
  }
}

static void test_switches(void) {
  for (int k = 0; k < 8; k++) {
    bool cudnn = k & 1, mx = k & 2, weight_dtype = k & 4;
    if (!case_begin("switches %d", k)) continue;
    Norm n = {.layer = true,
              .x = kNVTEBFloat16,
              .gamma = kNVTEBFloat16,
              .z = mx ? kNVTEFloat8E4M3 : kNVTEFloat32,
              .mode = mx ? NVTE_MXFP8_1D_SCALING : NVTE_DELAYED_TENSOR_SCALING,
              .rows = 40,
              .cols = 96,
              .epsilon = 1e-5f,
              .zero_centered = true,
              .rounded_gamma = weight_dtype && (cudnn || mx)};
    nvte_enable_cudnn_norm_fwd(cudnn);
    nvte_enable_zero_centered_gamma_in_weight_dtype(weight_dtype);
    norm_run(&n);
    if (cudnn && !mx) {
      NVTETensor amax = n.z_tensor;
      set_param(amax, kNVTEAmax, buffer_float(0)->ptr, kNVTEFloat32, SHAPE(1));
      norm_call(&n);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_layernorm_fwd", "z.amax", "cuDNN");
    }
    nvte_enable_cudnn_norm_fwd(false);
    nvte_enable_zero_centered_gamma_in_weight_dtype(false);
    EXPECT_OK();
  }
}

// ---- Backward

typedef struct Gradients {
  bool layer, zero_centered, rounded_gamma, add, misaligned;
  int in_place;  // dx is 1: dz, 2: x, 3: add
  NVTEDType x, gamma;
  size_t rows, cols;
  int sms;
  void *values[3], *gamma_values;  // dz, x, add
  float *mus, *rsigmas;
  Buffer *inputs[3], *dx, *sums[2];
  NVTETensor tensors[3], mu, rsigma, gamma_tensor, dx_tensor, sum_tensors[2], workspace;
} Gradients;

static NVTEDType input_type(const Gradients *g, int i) { return i == 1 ? g->x : g->gamma; }

static void gradients_build(Gradients *g) {
  size_t count = g->rows * g->cols;
  NVTEShape shape = SHAPE(g->rows, g->cols);
  if (!g->sms) g->sms = SMS;
  for (int i = 0; i < 3; i++) {
    NVTEDType type = input_type(g, i);
    g->values[i] = random_values(type, count, -2, 1);
    size_t shift = g->misaligned ? dtype_size(type) : 0;
    g->inputs[i] = buffer_from(g->values[i], count * dtype_size(type), shift);
    g->tensors[i] = tensor(g->inputs[i]->ptr, type, shape);
  }
  g->mus = host_memory(4 * g->rows);
  g->rsigmas = host_memory(4 * g->rows);
  for (size_t r = 0; r < g->rows; r++) {
    g->mus[r] = (float)random_uniform(-1, 1);
    g->rsigmas[r] = (float)random_uniform(0.5, 2);
  }
  g->mu = float_tensor(buffer_from(g->mus, 4 * g->rows, 0));
  g->rsigma = float_tensor(buffer_from(g->rsigmas, 4 * g->rows, 0));
  size_t size = dtype_size(g->gamma), shift = g->misaligned ? size : 0;
  g->gamma_values = random_values(g->gamma, g->cols, -2, 1);
  g->gamma_tensor =
      tensor(buffer_from(g->gamma_values, g->cols * size, shift)->ptr, g->gamma, SHAPE(g->cols));
  g->dx = g->in_place
              ? g->inputs[g->in_place - 1]
              : buffer_shifted(count * dtype_size(g->x), g->misaligned ? dtype_size(g->x) : 0);
  g->dx_tensor = tensor(g->dx->ptr, g->x, shape);
  for (int i = 0; i < 2; i++) {
    g->sums[i] = buffer_shifted(g->cols * size, shift);
    g->sum_tensors[i] = tensor(g->sums[i]->ptr, g->gamma, SHAPE(g->cols));
  }
  g->workspace = empty_tensor();
  EXPECT_OK();
}

static void gradients_call(const Gradients *g) {
  const NVTETensor *t = g->tensors;
  if (g->layer && g->add) {
    nvtex_layernorm_bwd_add(t[0], t[1], t[2], g->mu, g->rsigma, g->gamma_tensor, g->dx_tensor,
                            g->sum_tensors[0], g->sum_tensors[1], g->workspace, g->sms,
                            g->zero_centered, NULL);
  } else if (g->layer) {
    nvte_layernorm_bwd(t[0], t[1], g->mu, g->rsigma, g->gamma_tensor, g->dx_tensor,
                       g->sum_tensors[0], g->sum_tensors[1], g->workspace, g->sms, g->zero_centered,
                       NULL);
  } else if (g->add) {
    nvte_rmsnorm_bwd_add(t[0], t[1], t[2], g->rsigma, g->gamma_tensor, g->dx_tensor,
                         g->sum_tensors[0], g->workspace, g->sms, g->zero_centered, NULL);
  } else {
    nvte_rmsnorm_bwd(t[0], t[1], g->rsigma, g->gamma_tensor, g->dx_tensor, g->sum_tensors[0],
                     g->workspace, g->sms, g->zero_centered, NULL);
  }
}

static void gradients_check(const Gradients *g) {
  if (!EXPECT_OK()) return;
  size_t bad = 0;
  // The sums of dgamma and dbeta, and in `sizes` those of the magnitudes.
  double *sums[2], *sizes[2];
  for (int i = 0; i < 2; i++) {
    sums[i] = host_memory(8 * g->cols);
    sizes[i] = host_memory(8 * g->cols);
  }
  double *y = host_memory(8 * g->cols), *d = host_memory(8 * g->cols);
  const void *dx = buffer_read(g->dx);
  for (size_t r = 0; r < g->rows; r++) {
    double mu = g->layer ? (double)g->mus[r] : 0, rsigma = (double)g->rsigmas[r];
    double mean_dy = 0, mean_d = 0, size_dy = 0, size_d = 0;
    for (size_t c = 0; c < g->cols; c++) {
      size_t i = r * g->cols + c;
      double dz = get_value(g->gamma, g->values[0], i);
      double weight = get_value(g->gamma, g->gamma_values, c) + (g->zero_centered ? 1 : 0);
      if (g->rounded_gamma) weight = round_to(g->gamma, weight);
      y[c] = rsigma * (get_value(g->x, g->values[1], i) - mu);
      d[c] = weight * dz;
      mean_dy += d[c] * y[c] / (double)g->cols;
      size_dy += fabs(d[c] * y[c]) / (double)g->cols;
      if (g->layer) mean_d += d[c] / (double)g->cols;
      size_d += fabs(d[c]) / (double)g->cols;
      sums[0][c] += dz * y[c];
      sizes[0][c] += fabs(dz * y[c]);
      sums[1][c] += dz;
      sizes[1][c] += fabs(dz);
    }
    for (size_t c = 0; c < g->cols && bad < 3; c++) {
      size_t i = r * g->cols + c;
      double want = rsigma * (d[c] - (mean_dy * y[c] + mean_d));
      double error = 4e-6 * rsigma * (fabs(d[c]) + size_dy * fabs(y[c]) + size_d);
      if (g->add) {
        double add = get_value(g->gamma, g->values[2], i);
        want += add;
        error += 1e-6 * fabs(add);
      }
      double got = get_value(g->x, dx, i);
      bad += !CHECK(rounds_to(g->x, got, want, error), "dx %zu, %zu: %g, not %g", r, c, got, want);
    }
  }
  for (int i = 0; i < 2; i++) {
    if (i == 1 && !g->layer) {
      CHECK(untouched(g->sums[1]), "dbeta was written");
      continue;
    }
    const void *got = buffer_read(g->sums[i]);
    for (size_t c = 0; c < g->cols && bad < 3; c++) {
      double sum = get_value(g->gamma, got, c);
      bad += !CHECK(rounds_to(g->gamma, sum, sums[i][c], 4e-6 * sizes[i][c]), "%s[%zu]: %g, not %g",
                    i ? "dbeta" : "dgamma", c, sum, sums[i][c]);
    }
  }
  for (int i = 0; i < 3; i++) {
    if (g->dx == g->inputs[i]) continue;
    CHECK(memcmp(buffer_read(g->inputs[i]), g->values[i], g->inputs[i]->bytes) == 0,
          "input %d changed", i);
  }
}

static void gradients_run(Gradients *g) {
  gradients_build(g);
  gradients_call(g);
  if (!EXPECT_OK()) return;
  CHECK(untouched(g->sums[0]), "the query wrote");
  fill_workspace(g->workspace, g->misaligned);
  gradients_call(g);
  gradients_check(g);
}

static void test_backward(void) {
  for (size_t s = 0; s < COUNT(kShapes); s++) {
    size_t rows = kShapes[s][0], cols = kShapes[s][1];
    for (int k = 0; k < 36; k++) {
      if (rows * cols > 20000 && (k + (int)s) % (rows * cols > 100000 ? 7 : 5))
        continue;  // Skipped to save time.
      Gradients g = {.layer = k % 2 == 0,
                     .add = k / 2 % 2,
                     .x = kHighPrecision[k / 4 % 3],
                     .gamma = kHighPrecision[k / 12],
                     .rows = rows,
                     .cols = cols,
                     .sms = k % 3 == 0 ? 132 : SMS,
                     .zero_centered = k % 5 == 1,
                     .misaligned = k % 7 == 3,
                     .in_place = k % 8 / 2};
      if (g.in_place == 3 && !g.add) g.in_place = 0;
      if (g.in_place && input_type(&g, g.in_place - 1) != g.x) g.in_place = 0;
      if (!case_begin("%s backward %zux%zu %s %s%s%s%s in place %d", kind(g.layer), rows, cols,
                      dtype_name(g.x), dtype_name(g.gamma), g.add ? " add" : "",
                      g.zero_centered ? " centered" : "", g.misaligned ? " misaligned" : "",
                      g.in_place)) {
        continue;
      }
      gradients_run(&g);
    }
  }
  // There are more rows than blocks of a GPU hold at a time; a second run must give the same bits.
  static const size_t kMany[][2] = {{5003, 72},  {1003, 4099}, {1003, 768},
                                    {203, 4096}, {103, 7168},  {103, 12288}};
  for (int k = 0; k < 24; k++) {
    const size_t *const shape = kMany[k / 4];
    const bool odd = shape[1] % 2;
    if (!case_begin("%s backward of many %srows %zu%s", kind(k & 1), odd ? "odd " : "", shape[1],
                    k & 2 ? " float32" : "")) {
      continue;
    }
    NVTEDType type = k & 2 ? kNVTEFloat32 : kNVTEBFloat16;
    Gradients g = {.layer = k & 1, .x = type, .gamma = type, .rows = shape[0], .cols = shape[1]};
    gradients_run(&g);
    const void *first = buffer_read(g.sums[0]);
    gradients_call(&g);
    EXPECT_OK();
    CHECK(memcmp(buffer_read(g.sums[0]), first, g.sums[0]->bytes) == 0, "dgamma is another one");
  }
  for (int k = 0; k < 2; k++) {
    if (!case_begin("%s backward with rounded gamma", kind(k))) continue;
    Gradients g = {.layer = k,
                   .x = kNVTEBFloat16,
                   .gamma = kNVTEBFloat16,
                   .rows = 30,
                   .cols = 200,
                   .zero_centered = true,
                   .rounded_gamma = true};
    nvte_enable_cudnn_norm_bwd(true);
    nvte_enable_zero_centered_gamma_in_weight_dtype(true);
    gradients_run(&g);
    nvte_enable_cudnn_norm_bwd(false);
    if (!k) {
      g.add = true;
      gradients_call(&g);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_rmsnorm_bwd_add", "in_weight_dtype", "cuDNN");
    }
    nvte_enable_zero_centered_gamma_in_weight_dtype(false);
    EXPECT_OK();
  }
}

// ---- No rows, and arguments that are refused

static void test_empty(void) {
  for (int k = 0; k < 12; k++) {
    bool layer = k & 1, null = k & 2;
    NVTEScalingMode mode = (NVTEScalingMode)(k / 4);
    if (!case_begin("no rows %s, mode %d%s", kind(layer), (int)mode, null ? ", null" : ""))
      continue;
    Norm n = {.layer = layer,
              .x = kNVTEBFloat16,
              .gamma = kNVTEBFloat16,
              .z = kNVTEFloat8E4M3,
              .mode = mode,
              .cols = 40,
              .has_amax = true,
              .has_scale = mode == NVTE_DELAYED_TENSOR_SCALING};
    norm_build(&n);
    if (null) {
      set_param(n.x_tensor, kNVTERowwiseData, NULL, n.x, SHAPE(0, 40));
      set_param(n.z_tensor, kNVTERowwiseData, NULL, n.z, SHAPE(0, 40));
    }
    norm_call(&n);
    fill_workspace(n.workspace, 0);
    norm_call(&n);
    EXPECT_OK();
    if (mode == NVTE_DELAYED_TENSOR_SCALING) CHECK_FLOAT(read_float(n.scale_inv[0]), 1 / kScale);
    CHECK_FLOAT(read_float(n.amax), kOldAmax);
  }
  for (int layer = 0; layer < 2; layer++) {
    if (!case_begin("no rows %s backward", kind(layer))) continue;
    Gradients g = {.layer = layer, .x = kNVTEFloat16, .gamma = kNVTEFloat16, .cols = 333};
    gradients_run(&g);
    CHECK(all_bytes(g.sums[0], 0), "dgamma is not 0");
    if (layer) CHECK(all_bytes(g.sums[1], 0), "dbeta is not 0");
  }
}

// Sets the row-wise data of a tensor in turn to something wrong.
static void test_refused(void) {
  for (int layer = 0; layer < 2; layer++) {
    if (!case_begin("refused %s", kind(layer))) continue;
    const char *name = layer ? "nvte_layernorm_fwd" : "nvte_rmsnorm_fwd";
    Norm n = {.layer = layer,
              .x = kNVTEFloat32,
              .gamma = kNVTEFloat32,
              .z = kNVTEFloat8E4M3,
              .rows = 6,
              .cols = 10,
              .epsilon = 1e-5f};
    norm_build(&n);
    norm_call(&n);
    fill_workspace(n.workspace, 0);
    struct {
      NVTETensor *tensor;
      const char *argument;
      NVTEShape shape;
    } all[] = {{&n.x_tensor, "x", SHAPE(6, 10)},    {&n.gamma_tensor, "gamma", SHAPE(10)},
               {&n.z_tensor, "z", SHAPE(6, 10)},    {&n.rsigma_tensor, "rsigma", SHAPE(6)},
               {&n.beta_tensor, "beta", SHAPE(10)}, {&n.mu_tensor, "mu", SHAPE(6)}};
    for (size_t i = 0; i < COUNT(all) - (layer ? 0 : 2); i++) {
      NVTETensor good = *all[i].tensor;
      *all[i].tensor = NULL;
      norm_call(&n);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, all[i].argument, "null");
      *all[i].tensor = tensor(n.x_buffer->ptr, kNVTEInt32, all[i].shape);
      norm_call(&n);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, all[i].argument, "dtype", "Int32");
      *all[i].tensor = tensor(n.x_buffer->ptr, kNVTEFloat32, SHAPE(6, 11));
      norm_call(&n);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": expected", "got");
      *all[i].tensor = tensor(n.x_buffer->ptr + 1, kNVTEFloat32, all[i].shape);
      norm_call(&n);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, all[i].argument, "aligned");
      *all[i].tensor = tensor(NULL, kNVTEFloat32, all[i].shape);
      norm_call(&n);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, all[i].argument, "null");
      *all[i].tensor = good;
    }
    const float wrong[] = {-1e-9f, (float)NAN};
    for (size_t i = 0; i < COUNT(wrong); i++) {
      n.epsilon = wrong[i];
      norm_call(&n);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "epsilon", "expected");
    }
    n.epsilon = 1e-5f;
    n.workspace = NULL;
    norm_call(&n);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "workspace", "null");
    CHECK(untouched(n.data[0]) && untouched(n.rsigma), "written");
  }
  if (case_begin("refused outputs")) {
    Norm n = {.layer = true,
              .x = kNVTEFloat32,
              .gamma = kNVTEFloat32,
              .z = kNVTEFloat8E4M3,
              .rows = 6,
              .cols = 10};
    norm_build(&n);
    norm_call(&n);
    fill_workspace(n.workspace, 0);
    set_param(n.z_tensor, kNVTERowwiseScaleInv, NULL, kNVTEFloat32, SHAPE(0));
    norm_call(&n);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_layernorm_fwd", "z.scale_inv");
    n.z_tensor = empty_tensor();
    set_param(n.z_tensor, kNVTEColumnwiseData, buffer(60)->ptr, kNVTEFloat8E4M3, SHAPE(10, 6));
    set_param(n.z_tensor, kNVTEColumnwiseScaleInv, buffer(4)->ptr, kNVTEFloat32, SHAPE(1));
    norm_call(&n);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_layernorm_fwd", "z.data", "column-wise");
    n.z_tensor = tensor_of_mode(NVTE_NVFP4_1D_SCALING);
    set_param(n.z_tensor, kNVTERowwiseData, buffer(60)->ptr, kNVTEFloat8E4M3, SHAPE(6, 10));
    norm_call(&n);
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_layernorm_fwd", "z.scaling_mode");
    n.x_tensor = tensor(n.x_buffer->ptr, kNVTEFloat32, SHAPE(3, 2, 10));
    norm_call(&n);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_layernorm_fwd", "x.shape");
    nvte_layernorm_fwd(n.mu_tensor, n.gamma_tensor, n.beta_tensor, 0, n.z_tensor, n.mu_tensor,
                       n.rsigma_tensor, n.workspace, SMS, false, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_layernorm_fwd", "x.shape");
  }
  for (int layer = 0; layer < 2; layer++) {
    if (!case_begin("refused %s backward", kind(layer))) continue;
    const char *name = layer ? "nvtex_layernorm_bwd_add" : "nvte_rmsnorm_bwd_add";
    Gradients g = {.layer = layer,
                   .add = true,
                   .x = kNVTEFloat32,
                   .gamma = kNVTEFloat32,
                   .rows = 6,
                   .cols = 10};
    gradients_build(&g);
    gradients_call(&g);
    fill_workspace(g.workspace, 0);
    struct {
      NVTETensor *tensor;
      const char *argument;
      NVTEShape shape;
    } all[] = {{&g.tensors[0], "dz", SHAPE(6, 10)},      {&g.tensors[1], "x", SHAPE(6, 10)},
               {&g.tensors[2], "add", SHAPE(6, 10)},     {&g.rsigma, "rsigma", SHAPE(6)},
               {&g.gamma_tensor, "gamma", SHAPE(10)},    {&g.dx_tensor, "dx", SHAPE(6, 10)},
               {&g.sum_tensors[0], "dgamma", SHAPE(10)}, {&g.mu, "mu", SHAPE(6)},
               {&g.sum_tensors[1], "dbeta", SHAPE(10)}};
    for (size_t i = 0; i < COUNT(all) - (layer ? 0 : 2); i++) {
      NVTETensor good = *all[i].tensor;
      void *ptr = g.inputs[0]->ptr;
      *all[i].tensor = NULL;
      gradients_call(&g);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, all[i].argument, "null");
      *all[i].tensor = tensor(ptr, kNVTEInt32, all[i].shape);
      gradients_call(&g);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, all[i].argument, "dtype", "Int32");
      *all[i].tensor = tensor(ptr, kNVTEFloat32, SHAPE(7, 10));
      gradients_call(&g);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ".shape: expected", "got");
      *all[i].tensor = tensor((unsigned char *)ptr + 2, kNVTEFloat32, all[i].shape);
      gradients_call(&g);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, all[i].argument, "aligned");
      *all[i].tensor = tensor(NULL, kNVTEFloat32, all[i].shape);
      gradients_call(&g);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, all[i].argument, "null");
      *all[i].tensor = good;
    }
    g.sms = 0;
    gradients_call(&g);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "multiprocessorCount", "0");
    g.sms = SMS + 1;  // needs the same workspace: there are 6 rows
    gradients_call(&g);
    gradients_check(&g);
  }
}

// Null data in a query; then memory.
static void test_workspace(void) {
  for (int layer = 0; layer < 2; layer++) {
    if (!case_begin("query %s with null data", kind(layer))) continue;
    NVTETensor x = tensor(NULL, kNVTEBFloat16, SHAPE(100, 64));
    NVTETensor row = tensor(NULL, kNVTEBFloat16, SHAPE(64));
    NVTETensor column = tensor(NULL, kNVTEFloat32, SHAPE(100));
    NVTETensor forward = empty_tensor(), backward = empty_tensor();
    if (layer) {
      nvte_layernorm_fwd(x, row, row, 1e-5f, x, column, column, forward, SMS, false, NULL);
      nvte_layernorm_bwd(x, x, column, column, row, x, row, row, backward, SMS, false, NULL);
    } else {
      nvte_rmsnorm_fwd(x, row, 1e-5f, x, column, forward, SMS, false, NULL);
      nvte_rmsnorm_bwd(x, x, column, row, x, row, backward, SMS, false, NULL);
    }
    EXPECT_OK();
    fill_workspace(forward, 0);
    fill_workspace(backward, 0);
  }
}

// Only the bytes of a workspace count: one that was asked for as Byte may come back as Float8E8M0,
// in any shape.
static void test_workspace_dtype(void) {
  if (!case_begin("workspace of another dtype")) return;
  enum { ROWS = 40, COLS = 64 };
  Buffer *x = buffer_from(random_values(kNVTEFloat32, ROWS * COLS, -1, 1), ROWS * COLS * 4, 0);
  Buffer *gamma = buffer_from(random_values(kNVTEFloat32, COLS, -1, 1), COLS * 4, 0);
  Buffer *rsigma = buffer_from(random_values(kNVTEFloat32, ROWS, 1, 2), ROWS * 4, 0);
  Buffer *dx[2], *dgamma[2];
  NVTETensor in = tensor(x->ptr, kNVTEFloat32, SHAPE(ROWS, COLS));
  for (int i = 0; i < 2; i++) {
    dx[i] = buffer(ROWS * COLS * 4);
    dgamma[i] = buffer(COLS * 4);
    NVTETensor out = tensor(dx[i]->ptr, kNVTEFloat32, SHAPE(ROWS, COLS)), work = empty_tensor();
    NVTETensor g = tensor(gamma->ptr, kNVTEFloat32, SHAPE(COLS));
    NVTETensor dg = tensor(dgamma[i]->ptr, kNVTEFloat32, SHAPE(COLS));
    NVTETensor r = tensor(rsigma->ptr, kNVTEFloat32, SHAPE(ROWS));
    nvte_rmsnorm_bwd(in, in, r, g, out, dg, work, SMS, false, NULL);
    size_t bytes = numel(nvte_tensor_shape(work));
    Buffer *memory = buffer(bytes);
    set_param(work, kNVTERowwiseData, memory->ptr, kNVTEFloat8E8M0, SHAPE(bytes - 1));
    nvte_rmsnorm_bwd(in, in, r, g, out, dg, work, SMS, false, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_rmsnorm_bwd: workspace.shape");
    CHECK(untouched(dx[i]) && untouched(dgamma[i]), "outputs were written");
    NVTEDType dtype = i ? kNVTEFloat8E8M0 : kNVTEByte;
    set_param(work, kNVTERowwiseData, memory->ptr, dtype, i ? SHAPE(1, bytes) : SHAPE(bytes));
    nvte_rmsnorm_bwd(in, in, r, g, out, dg, work, SMS, false, NULL);
    EXPECT_OK();
  }
  CHECK(memcmp(buffer_read(dx[0]), buffer_read(dx[1]), dx[0]->bytes) == 0, "dx differs");
  CHECK(memcmp(buffer_read(dgamma[0]), buffer_read(dgamma[1]), COLS * 4) == 0, "dgamma differs");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_forward();
  test_blocks();
  test_extreme();
  test_switches();
  test_backward();
  test_empty();
  test_refused();
  test_workspace();
  test_workspace_dtype();
  return test_end();
}
