// Casts and dequantization with FP8 block scaling and MXFP8 (quantize.md sections 1.3, 1.4, 2, 3.2,
// 3.3 and 7.1), against the formulas of the specification in double.
#include "nvte/cast.h"

#include "support.h"

// ---- Formulas

static size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
static size_t round_up(size_t a, size_t b) { return ceil_div(a, b) * b; }

// The smallest code whose power of two is not less than v.
static int code_of(float v) {
  if (isnan(v)) return 255;
  int code = 0;
  while (code < 254 && ldexp(1, code - 127) < (double)v) code++;
  return code;
}

static float power_of(int code) { return code == 255 ? NAN : (float)ldexp(1, code - 127); }

static float block_scale(float amax, NVTEDType in, NVTEDType out, bool pow2, float epsilon) {
  if (amax < epsilon) amax = epsilon;
  if (amax == 0 || isinf(amax)) return 1;
  volatile float scale = (float)format_of(out).largest / amax;
  if (isinf(scale)) scale = (float)format_of(in).largest;
  return pow2 ? (float)ldexp(1, ilogb((double)scale)) : scale;
}

// ---- One cast in blocks: build, call, compare

typedef struct Blocks {
  NVTEScalingMode mode;
  NVTEDType in, out;
  NVTEShape shape;
  Directions directions;
  bool pow2, square, swizzled, has_amax, misaligned;
  float epsilon;
  size_t slack;         // FP8 blocks: elements of a scale row past those that are needed
  NVTEDType code_type;  // MXFP8: Float8E8M0 or Byte
  void *values;         // host, input
  Buffer *input, *data[2], *scales[2], *amax;
  NVTETensor in_tensor, out_tensor;
} Blocks;

static const NVTETensorParam kData[2] = {kNVTERowwiseData, kNVTEColumnwiseData};
static const NVTETensorParam kScaleInv[2] = {kNVTERowwiseScaleInv, kNVTEColumnwiseScaleInv};

static bool is_mx(const Blocks *b) { return b->mode == NVTE_MXFP8_1D_SCALING; }
static bool has(const Blocks *b, int col) { return (int)b->directions & (col ? COLWISE : ROWWISE); }

static NVTEShape data_shape(const Blocks *b, int col) {
  return col && !is_mx(b) ? transposed_shape(b->shape) : b->shape;
}

static size_t data_index(const Blocks *b, int col, size_t r, size_t c) {
  return col && !is_mx(b) ? c * rows_of(b->shape) + r : r * cols_of(b->shape) + c;
}

static NVTEShape scale_shape(const Blocks *b, int col) {
  size_t r = rows_of(b->shape), c = cols_of(b->shape);
  switch (b->mode) {
    case NVTE_MXFP8_1D_SCALING:
      return col ? SHAPE(round_up(ceil_div(r, 32), 4), round_up(c, 128))
                 : SHAPE(round_up(r, 128), round_up(ceil_div(c, 32), 4));
    case NVTE_BLOCK_SCALING_1D:
      return col ? SHAPE(ceil_div(r, 128), c + b->slack) : SHAPE(ceil_div(c, 128), r + b->slack);
    default:
      return col ? SHAPE(ceil_div(c, 128), ceil_div(r, 128) + b->slack)
                 : SHAPE(ceil_div(r, 128), ceil_div(c, 128) + b->slack);
  }
}

static size_t scale_index(const Blocks *b, int col, size_t r, size_t c) {
  size_t pitch = scale_shape(b, col).data[1];
  switch (b->mode) {
    case NVTE_MXFP8_1D_SCALING: {
      if (!b->swizzled) return col ? r / 32 * pitch + c : r * pitch + c / 32;
      size_t i = col ? c : r, j = (col ? r : c) / 32;
      size_t tiles = ceil_div(col ? rows_of(b->shape) : cols_of(b->shape), 128);
      return (i / 128 * tiles + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
    }
    case NVTE_BLOCK_SCALING_1D:
      return col ? r / 128 * pitch + c : c / 128 * pitch + r;
    default:
      return col ? c / 128 * pitch + r / 128 : r / 128 * pitch + c / 128;
  }
}

static void block_size(const Blocks *b, int col, size_t *height, size_t *width) {
  size_t side = is_mx(b) ? 32 : 128;
  bool square = is_mx(b) ? b->square : b->mode == NVTE_BLOCK_SCALING_2D;
  *height = square || col ? side : 1;
  *width = square || !col ? side : 1;
}

// Areas of 32 x 32, each of one character: what a block can be.
static void *area_values(NVTEDType dtype, size_t rows, size_t cols) {
  size_t across = ceil_div(cols, 32), count = ceil_div(rows, 32) * across;
  unsigned char *kind = host_memory(count);
  for (size_t i = 0; i < count; i++) kind[i] = (unsigned char)random_below(12);
  Format f = format_of(dtype);
  double tiny = ldexp(1, f.min_exponent - f.mantissa);
  void *data = mixed_values(dtype, rows * cols, true);
  for (size_t r = 0; r < rows; r++) {
    for (size_t c = 0; c < cols; c++) {
      size_t at = r * cols + c;
      double u = random_uniform(-1, 1), x = u;
      switch (kind[r / 32 * across + c / 32]) {
        case 0:
          continue;  // The block keeps random bits.
        case 1:
          x = u < 0 ? -0.0 : 0.0;
          break;
        case 2:
          x = tiny * (double)(int)(u * 20);
          break;
        case 3:
          x = f.largest * u;
          break;
        case 4:
          x = u < -0.98 ? (double)INFINITY : u;
          break;
        case 5:
          x = (double)NAN;
          break;
        case 6:
          x = ldexp(1, (int)(u * 10));
          break;
        case 7:
          x = f.largest;
          break;
        case 8:
          x = ldexp(u, f.min_exponent + 3);
          break;
        case 9:
          x = u < 0 ? (double)NAN : u;
          break;
        default:
          break;
      }
      put_value(dtype, data, at, x);
    }
  }
  return data;
}

static void blocks_build(Blocks *b) {
  size_t n = numel(b->shape), in_size = dtype_size(b->in);
  if (!b->values) b->values = area_values(b->in, rows_of(b->shape), cols_of(b->shape));
  b->input = buffer_from(b->values, n * in_size, b->misaligned ? in_size : 0);
  b->in_tensor = tensor(b->input->ptr, b->in, b->shape);
  b->out_tensor = tensor_of_mode(b->mode);
  NVTEDType type = !is_mx(b) ? kNVTEFloat32 : b->code_type ? b->code_type : kNVTEFloat8E8M0;
  for (int col = 0; col < 2; col++) {
    if (!has(b, col)) continue;
    NVTEShape scales = scale_shape(b, col);
    size_t shift = b->misaligned ? dtype_size(type) : 0;
    b->data[col] = buffer_shifted(n, b->misaligned);
    b->scales[col] = buffer_shifted(numel(scales) * dtype_size(type), shift);
    set_param(b->out_tensor, kData[col], b->data[col]->ptr, b->out, data_shape(b, col));
    set_param(b->out_tensor, kScaleInv[col], b->scales[col]->ptr, type, scales);
  }
  if (b->has_amax) {
    b->amax = buffer_float(0.25f);
    set_param(b->out_tensor, kNVTEAmax, b->amax->ptr, kNVTEFloat32, SHAPE(1));
  }
  if (b->swizzled) {
    uint8_t yes = 1;
    nvte_set_tensor_param_v2(b->out_tensor, kNVTEWithGEMMSwizzledScales, &yes, sizeof yes);
  }
  EXPECT_OK();
}

static void blocks_call(const Blocks *b) {
  if (!b->pow2 && !b->square && b->epsilon == 0) {
    nvte_quantize(b->in_tensor, b->out_tensor, NULL);
    return;
  }
  NVTEQuantizationConfig config = quant_config();
  uint8_t pow2 = b->pow2, square = b->square;
  set_quant(config, kNVTEQuantizationConfigForcePow2Scales, &pow2, sizeof pow2);
  set_quant(config, kNVTEQuantizationConfigMXFP82DQuantization, &square, sizeof square);
  set_quant(config, kNVTEQuantizationConfigAmaxEpsilon, &b->epsilon, sizeof b->epsilon);
  nvte_quantize_v2(b->in_tensor, b->out_tensor, config, NULL);
}

static void check_direction(const Blocks *b, int col) {
  size_t rows = rows_of(b->shape), cols = cols_of(b->shape), height, width, bad = 0;
  block_size(b, col, &height, &width);
  const unsigned char *data = buffer_read(b->data[col]), *scales = buffer_read(b->scales[col]);
  unsigned char *expected_scales = host_memory(b->scales[col]->bytes);
  // Entries that stand for no block: MXFP8 sets them to 0, FP8 blocks leave them alone.
  memset(expected_scales, is_mx(b) ? 0 : POISON_VALUE, b->scales[col]->bytes);
  for (size_t top = 0; top < rows; top += height) {
    for (size_t left = 0; left < cols; left += width) {
      size_t bottom = top + height < rows ? top + height : rows;
      size_t right = left + width < cols ? left + width : cols;
      double amax = 0;
      for (size_t r = top; r < bottom; r++) {
        for (size_t c = left; c < right; c++) {
          amax = fmax(amax, fabs(get_value(b->in, b->values, r * cols + c)));
        }
      }
      float multiplier, inverse = 0;
      int code = 0;
      if (is_mx(b)) {
        volatile float inverse_max = 1.0f / (float)format_of(b->out).largest;
        volatile float v = (float)amax * inverse_max;
        code = code_of(v);
        multiplier = (float)ldexp(1, 127 - code);
      } else {
        multiplier = block_scale((float)amax, b->in, b->out, b->pow2, b->epsilon);
        inverse = 1.0f / multiplier;
      }
      for (size_t r = top; r < bottom; r++) {
        for (size_t c = left; c < right; c++) {
          size_t at = scale_index(b, col, r, c);
          if (is_mx(b)) {
            expected_scales[at] = (unsigned char)code;
          } else {
            memcpy(expected_scales + 4 * at, &inverse, 4);
          }
          if (bad > 3) continue;
          double x = get_value(b->in, b->values, r * cols + c);
          // A product of two floats is exact in double: one rounding to float.
          uint32_t want = encode_bits(b->out, (float)(x * (double)multiplier));
          unsigned got = data[data_index(b, col, r, c)];
          bad +=
              !CHECK(got == want, "%s of row %zu, col %zu: x %a, scale %a: got 0x%02x, not 0x%02x",
                     col ? "columnwise" : "rowwise", r, c, x, (double)multiplier, got, want);
        }
      }
    }
  }
  size_t first = 0;
  while (first < b->scales[col]->bytes && scales[first] == expected_scales[first]) first++;
  CHECK(first == b->scales[col]->bytes, "%s scales of %zu bytes: byte %zu is 0x%02x, not 0x%02x",
        col ? "columnwise" : "rowwise", b->scales[col]->bytes, first, scales[first],
        expected_scales[first]);
}

static void blocks_check(const Blocks *b) {
  if (!EXPECT_OK()) return;
  for (int col = 0; col < 2; col++) {
    if (has(b, col)) check_direction(b, col);
  }
  if (b->amax) {
    float seen = is_mx(b) ? amax_of(b->in, b->values, numel(b->shape)) : 0;
    CHECK_FLOAT(read_float(b->amax), fmaxf(0.25f, seen));
  }
  CHECK(memcmp(buffer_read(b->input), b->values, b->input->bytes) == 0, "the input changed");
}

static void blocks_check_untouched(const Blocks *b) {
  for (int col = 0; col < 2; col++) {
    if (!has(b, col)) continue;
    CHECK(untouched(b->data[col]), "data were written");
    CHECK(untouched(b->scales[col]), "scales were written");
  }
  if (b->amax) CHECK_FLOAT(read_float(b->amax), 0.25f);
}

// ---- Cases

static const NVTEScalingMode kModes[] = {NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_1D,
                                         NVTE_BLOCK_SCALING_2D};

static const char *mode_name(NVTEScalingMode mode) {
  return mode == NVTE_MXFP8_1D_SCALING ? "MXFP8" : mode == NVTE_BLOCK_SCALING_1D ? "1D" : "2D";
}

static NVTEShape shape_at(size_t i) {
  const NVTEShape shapes[] = {
      SHAPE(1, 16),       SHAPE(65, 96),      SHAPE(256, 256), SHAPE(16, 512),      SHAPE(1024, 1),
      SHAPE(1024),        SHAPE(16, 48),      SHAPE(128, 128), SHAPE(65, 80),       SHAPE(127, 400),
      SHAPE(1, 1),        SHAPE(7, 33),       SHAPE(129, 257), SHAPE(1, 3221),      SHAPE(2333, 1),
      SHAPE(300, 3),      SHAPE(5, 4, 3, 31), SHAPE(31, 1, 1), SHAPE(96, 160),      SHAPE(32, 32),
      SHAPE(8, 32, 1024), SHAPE(993, 512),    SHAPE(303, 300), SHAPE(16, 8, 4, 512)};
  return i < COUNT(shapes) ? shapes[i] : SHAPE(0);
}

static const char *direction_name(Directions d) {
  return d == BOTH ? "both" : d == ROWWISE ? "rowwise" : "columnwise";
}

static void test_shapes(void) {
  for (size_t s = 0; numel(shape_at(s)) > 0; s++) {
    for (size_t m = 0; m < COUNT(kModes); m++) {
      for (int k = 0; k < 72; k++) {
        NVTEShape shape = shape_at(s);
        // Time: of large shapes each of the values comes up, but not all together.
        if (numel(shape) > 50000 && k % (numel(shape) > 200000 ? 11 : 5)) continue;
        Blocks b = {.mode = kModes[m],
                    .in = kHighPrecision[k % 3],
                    .out = kFloat8[k / 3 % 2],
                    .directions = (Directions)(k / 6 % 3 + 1),
                    .shape = shape,
                    .has_amax = k % 4 == 0,
                    .misaligned = k % 5 == 1,
                    .code_type = k % 2 ? kNVTEByte : kNVTEFloat8E8M0};
        bool first = k / 18 % 2, second = k / 36;
        if (is_mx(&b)) {
          b.square = first;
          b.swizzled = second;
        } else {
          b.pow2 = first;
          b.epsilon = second ? 1 : 0;
          b.slack = (size_t)k % 4;
        }
        if (!case_begin("%s %s %s %s %s%s%s%s%s%s", mode_name(b.mode), shape_text(shape),
                        dtype_name(b.in), dtype_name(b.out), direction_name(b.directions),
                        b.misaligned ? " misaligned" : "", b.pow2 ? " pow2" : "",
                        b.epsilon > 0 ? " epsilon" : "", b.square ? " 2D" : "",
                        b.swizzled ? " swizzled" : "")) {
          continue;
        }
        blocks_build(&b);
        blocks_call(&b);
        blocks_check(&b);
      }
    }
  }
}

static void test_large(void) {
  for (size_t m = 0; m < COUNT(kModes); m++) {
    NVTEShape shapes[] = {SHAPE(256, 8192), SHAPE(4096, 1632)};
    for (size_t s = 0; s < COUNT(shapes); s++) {
      Blocks b = {.mode = kModes[m],
                  .in = kNVTEBFloat16,
                  .out = kFloat8[s],
                  .directions = BOTH,
                  .shape = shapes[s]};
      if (!case_begin("large %s %s", mode_name(b.mode), shape_text(b.shape))) continue;
      b.values = random_values(b.in, numel(b.shape), -2, 1);
      blocks_build(&b);
      blocks_call(&b);
      blocks_check(&b);
    }
  }
}

// Values written out by hand.
static void test_known(void) {
  for (size_t m = 0; m < COUNT(kModes); m++) {
    const struct {
      float x;
      NVTEDType out;
      bool pow2;
      unsigned data, mx_data;
      float inverse;
      int code;
    } rows[] = {
        {1, kNVTEFloat8E4M3, false, 0x7E, 0x78, 1.0f / 448, 119},    // 448; 2^8
        {1, kNVTEFloat8E4M3, true, 0x78, 0x78, 1.0f / 256, 119},     // 2^8
        {-3, kNVTEFloat8E4M3, true, 0xFC, 0xFC, 1.0f / 128, 120},    // -384
        {1, kNVTEFloat8E5M2, false, 0x7B, 0x78, 1.0f / 57344, 112},  // 57344; 2^15
        {0, kNVTEFloat8E4M3, false, 0x00, 0x00, 1, 0},
        {(float)INFINITY, kNVTEFloat8E4M3, false, 0x7E, 0x7E, 1, 254},
        {-(float)INFINITY, kNVTEFloat8E5M2, true, 0xFB, 0xFB, 1, 254},
        {(float)NAN, kNVTEFloat8E4M3, false, 0x7F, 0x7F, 1, 0},
        {0x1p-149f, kNVTEFloat8E4M3, false, 0x00, 0x00, 0x1p-128f, 0},  // scale FLT_MAX
        {0x1p-149f, kNVTEFloat8E4M3, true, 0x00, 0x00, 0x1p-127f, 0},   // scale 2^127
    };
    for (size_t r = 0; r < COUNT(rows); r++) {
      if (!case_begin("%s of %g, row %zu", mode_name(kModes[m]), (double)rows[r].x, r)) continue;
      Blocks b = {.mode = kModes[m],
                  .in = kNVTEFloat32,
                  .out = rows[r].out,
                  .shape = SHAPE(128, 128),
                  .directions = BOTH,
                  .pow2 = rows[r].pow2};
      float *x = b.values = host_memory(128 * 128 * 4);
      for (size_t i = 0; i < 128 * 128; i++) x[i] = rows[r].x;
      blocks_build(&b);
      blocks_call(&b);
      blocks_check(&b);
      for (int col = 0; col < 2; col++) {
        CHECK(all_bytes(b.data[col], (int)(is_mx(&b) ? rows[r].mx_data : rows[r].data)), "data");
        if (is_mx(&b)) {
          CHECK(all_bytes(b.scales[col], rows[r].code), "codes are not %d", rows[r].code);
        } else {
          CHECK_FLOAT(*(const float *)buffer_read(b.scales[col]), rows[r].inverse);
        }
      }
    }
  }
}

static void test_empty(void) {
  for (size_t m = 0; m < COUNT(kModes); m++) {
    for (int k = 0; k < 8; k++) {
      NVTEShape shape = k & 1 ? SHAPE(200, 0) : SHAPE(0, 200);
      bool null = k & 2, back = k & 4;
      if (!case_begin("empty %s %s%s%s", mode_name(kModes[m]), shape_text(shape),
                      null ? " null pointers" : "", back ? " dequantize" : "")) {
        continue;
      }
      Blocks b = {.mode = kModes[m],
                  .in = kNVTEFloat32,
                  .out = kNVTEFloat8E4M3,
                  .shape = shape,
                  .directions = BOTH,
                  .has_amax = true};
      blocks_build(&b);
      if (null) {
        set_param(b.in_tensor, kNVTERowwiseData, NULL, b.in, shape);
        for (int col = 0; col < 2; col++) {
          set_param(b.out_tensor, kData[col], NULL, b.out, data_shape(&b, col));
        }
      }
      if (back) {
        nvte_dequantize(b.out_tensor, b.in_tensor, NULL);
      } else {
        nvte_quantize(b.in_tensor, b.out_tensor, NULL);
      }
      EXPECT_OK();
      blocks_check_untouched(&b);
    }
  }
}

static void test_noop(void) {
  const float flags[] = {1, 0, 2, (float)NAN};
  for (size_t m = 0; m < COUNT(kModes); m++) {
    for (size_t v = 0; v < COUNT(flags); v++) {
      for (int via_config = 0; via_config < 2; via_config++) {
        if (!case_begin("noop %g %s%s", (double)flags[v], mode_name(kModes[m]),
                        via_config ? " config" : "")) {
          continue;
        }
        Blocks b = {.mode = kModes[m],
                    .in = kNVTEFloat16,
                    .out = kNVTEFloat8E5M2,
                    .shape = SHAPE(33, 70),
                    .directions = BOTH,
                    .has_amax = true};
        blocks_build(&b);
        NVTETensor noop = float_tensor(buffer_float(flags[v]));
        if (via_config) {
          NVTEQuantizationConfig config = quant_config();
          set_quant(config, kNVTEQuantizationConfigNoopTensor, &noop, sizeof noop);
          nvte_quantize_v2(b.in_tensor, b.out_tensor, config, NULL);
        } else {
          nvte_quantize_noop(b.in_tensor, b.out_tensor, noop, NULL);
        }
        if (flags[v] == 1) {
          EXPECT_OK();
          blocks_check_untouched(&b);
        } else {
          blocks_check(&b);
        }
      }
    }
  }
}

// Attributes of the other modes change nothing; stochastic rounding is refused.
static void test_config(void) {
  for (size_t m = 0; m < COUNT(kModes); m++) {
    for (int stochastic = 0; stochastic < 2; stochastic++) {
      if (!case_begin("config %s%s", mode_name(kModes[m]), stochastic ? " stochastic" : "")) {
        continue;
      }
      Blocks b = {.mode = kModes[m],
                  .in = kNVTEFloat16,
                  .out = kNVTEFloat8E4M3,
                  .shape = SHAPE(40, 48),
                  .directions = BOTH};
      blocks_build(&b);
      NVTEQuantizationConfig config = quant_config();
      uint8_t yes = 1;
      float epsilon = 5;
      if (is_mx(&b)) {
        set_quant(config, kNVTEQuantizationConfigForcePow2Scales, &yes, sizeof yes);
        set_quant(config, kNVTEQuantizationConfigAmaxEpsilon, &epsilon, sizeof epsilon);
      } else {
        set_quant(config, kNVTEQuantizationConfigMXFP82DQuantization, &yes, sizeof yes);
      }
      if (stochastic) {
        set_quant(config, kNVTEQuantizationConfigStochasticRounding, &yes, sizeof yes);
      }
      nvte_quantize_v2(b.in_tensor, b.out_tensor, config, NULL);
      if (stochastic) {
        EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_quantize_v2", "stochastic_rounding");
        blocks_check_untouched(&b);
      } else {
        blocks_check(&b);
      }
    }
  }
}

// ---- Dequantization

// Any codes and any scales, those of both directions together; row-wise data are read if present.
static void dequantize_case(Blocks *b, NVTEDType to) {
  size_t n = numel(b->shape), rows = rows_of(b->shape), cols = cols_of(b->shape), bad = 0;
  b->in = to;
  b->values = host_memory(n * dtype_size(to));
  blocks_build(b);
  void *codes[2] = {NULL, NULL}, *scales[2] = {NULL, NULL};
  for (int col = 0; col < 2; col++) {
    if (!has(b, col)) continue;
    size_t entries = numel(scale_shape(b, col));
    codes[col] = mixed_values(b->out, n, true);
    scales[col] =
        is_mx(b) ? mixed_values(kNVTEFloat8E5M2, entries, true) : mixed_values(to, entries, true);
    if (is_mx(b)) {
      for (size_t i = 0; i < entries; i++) ((unsigned char *)scales[col])[i] ^= 0x3C;
    } else {
      float *floats = host_memory(entries * 4);
      for (size_t i = 0; i < entries; i++) floats[i] = (float)get_value(to, scales[col], i);
      scales[col] = floats;
    }
    upload(b->data[col]->ptr, codes[col], b->data[col]->bytes);
    upload(b->scales[col]->ptr, scales[col], b->scales[col]->bytes);
  }
  Buffer *output = buffer_shifted(n * dtype_size(to), b->misaligned ? dtype_size(to) : 0);
  nvte_dequantize(b->out_tensor, tensor(output->ptr, to, b->shape), NULL);
  if (!EXPECT_OK()) return;
  const void *got = buffer_read(output);
  int col = !has(b, 0);
  for (size_t r = 0; r < rows; r++) {
    for (size_t c = 0; c < cols && bad < 3; c++) {
      size_t at = scale_index(b, col, r, c);
      float scale = is_mx(b) ? power_of(((unsigned char *)scales[col])[at])
                             : ((const float *)scales[col])[at];
      double x = get_value(b->out, codes[col], data_index(b, col, r, c));
      uint32_t want = encode_bits(to, (float)(x * (double)scale));
      uint32_t bits = get_bits(to, got, r * cols + c);
      bad += !CHECK(same_bits(to, bits, want), "row %zu, col %zu: %g, scale %a: got 0x%x, not 0x%x",
                    r, c, x, (double)scale, bits, want);
    }
  }
}

static void test_dequantize(void) {
  for (size_t s = 0; numel(shape_at(s)) > 0; s++) {
    for (size_t m = 0; m < COUNT(kModes); m++) {
      for (int k = 0; k < 36; k++) {
        NVTEShape shape = shape_at(s);
        if (numel(shape) > 50000 && k % 7) continue;  // Skipped to save time.
        NVTEDType to = kHighPrecision[k % 3];
        Blocks b = {.mode = kModes[m],
                    .out = kFloat8[k / 3 % 2],
                    .directions = (Directions)(k / 6 % 3 + 1),
                    .shape = shape,
                    .misaligned = k % 5 == 1};
        if (is_mx(&b)) {
          b.swizzled = k / 18;
        } else {
          b.slack = (size_t)k / 18 * 3;
        }
        if (!case_begin("dequantize %s %s %s %s %s%s%s", mode_name(b.mode), shape_text(shape),
                        dtype_name(b.out), dtype_name(to), direction_name(b.directions),
                        b.misaligned ? " misaligned" : "", k / 18 ? " other layout" : "")) {
          continue;
        }
        dequantize_case(&b, to);
      }
    }
  }
}

// A cast and its inverse: the relative error is at most half a step of the format for elements that
// do not become subnormal.
static void test_round_trip(void) {
  for (size_t m = 0; m < COUNT(kModes); m++) {
    for (size_t f = 0; f < COUNT(kFloat8); f++) {
      for (int d = ROWWISE; d <= COLWISE; d++) {
        if (!case_begin("round trip %s %s %s", mode_name(kModes[m]), dtype_name(kFloat8[f]),
                        direction_name((Directions)d))) {
          continue;
        }
        Blocks b = {.mode = kModes[m],
                    .in = kNVTEFloat32,
                    .out = kFloat8[f],
                    .shape = SHAPE(199, 333),
                    .directions = (Directions)d};
        size_t n = numel(b.shape);
        float *x = b.values = random_values(kNVTEFloat32, n, 0.5, 2);
        blocks_build(&b);
        blocks_call(&b);
        blocks_check(&b);
        Buffer *back = buffer(n * 4);
        nvte_dequantize(b.out_tensor, tensor(back->ptr, kNVTEFloat32, b.shape), NULL);
        EXPECT_OK();
        const float *got = buffer_read(back);
        double worst = 0, half_step = ldexp(0.5, -format_of(b.out).mantissa);
        for (size_t i = 0; i < n; i++) {
          worst = fmax(worst, fabs((double)got[i] / (double)x[i] - 1));
        }
        CHECK(worst <= half_step + 1e-6, "worst relative error %g, at most %g", worst, half_step);
        CHECK(worst >= half_step / 2, "worst relative error %g is suspiciously small", worst);
      }
    }
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_known();
  test_shapes();
  test_large();
  test_empty();
  test_noop();
  test_config();
  test_dequantize();
  test_round_trip();
  return test_end();
}
