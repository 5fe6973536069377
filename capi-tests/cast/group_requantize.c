// Row-wise to column-wise MXFP8, group by group (quantize.md 8).
#include "nvte/cast.h"

#include "support.h"

enum { MAX_GROUPS = 40 };

typedef struct Case {
  NVTEDType in;
  size_t rows, cols, groups, tiles[MAX_GROUPS];  // Rows of each group, in 128.
  size_t pitch;                                  // Codes of a row; 0: as many as blocks, of rank 1.
  bool copy, fast;
  size_t shift;  // Shift of the buffers of codes, in bytes.
  void *data;
  unsigned char *codes;
  Buffer *colwise, *row_codes, *col_codes, *dequantized;
  NVTETensor input, output, offsets, copy_tensor;
  NVTEQuantizationConfig config;
} Case;

static size_t tiled(size_t line, size_t block, size_t across) {
  return ((line / 128) * across + block / 4) * 512 + (line % 32) * 16 + ((line % 128) / 32) * 4 +
         block % 4;
}

static void build(Case *c) {
  size_t n = c->rows * c->cols, blocks = c->cols / 32, pitch = c->pitch ? c->pitch : blocks;
  c->data = host_memory(n);
  c->codes = host_memory(c->rows * pitch);
  for (size_t i = 0; i < n; i++) ((unsigned char *)c->data)[i] = (unsigned char)random_u64();
  // Areas of 128 x 128 of one character: everyday, the smallest, the largest, any.
  for (size_t i = 0; i < c->rows * pitch; i++) {
    size_t area = i / pitch / 128 * 7 + i % pitch / 4;
    unsigned base = area % 4 == 0 ? 115 : area % 4 == 1 ? 0 : area % 4 == 2 ? 246 : 0;
    unsigned span = area % 4 == 3 ? 256 : area % 4 == 0 ? 24 : 10;
    c->codes[i] = (unsigned char)(base + random_below(span));
  }
  // A block of zeros, and one of NaN alone.
  for (size_t r = 0; r < 32; r++) ((unsigned char *)c->data)[r * c->cols] = r % 2 ? 0x80 : 0;
  for (size_t r = 0; r < 32; r++) ((unsigned char *)c->data)[r * c->cols + 1] = 0x7F;
  c->colwise = buffer(n);
  c->row_codes = buffer_shifted(n / 32, c->shift);
  c->col_codes = buffer_shifted(n / 32, c->shift);
  c->dequantized = buffer(n * 2);
  NVTEShape shape = SHAPE(c->rows, c->cols);
  c->input = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
  set_param(c->input, kNVTERowwiseData, buffer_from(c->data, n, 0)->ptr, c->in, shape);
  set_param(c->input, kNVTERowwiseScaleInv, buffer_from(c->codes, c->rows * pitch, c->shift)->ptr,
            kNVTEFloat8E8M0, c->pitch ? SHAPE(c->rows, pitch) : SHAPE(c->rows * pitch));
  c->output = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
  set_param(c->output, kNVTEColumnwiseData, c->colwise->ptr, kNVTEFloat8E4M3, shape);
  set_param(c->output, kNVTEColumnwiseScaleInv, c->col_codes->ptr, kNVTEFloat8E8M0,
            SHAPE(c->rows / 32, c->cols));
  set_param(c->output, kNVTERowwiseScaleInv, c->row_codes->ptr, kNVTEFloat8E8M0,
            SHAPE(c->rows, blocks));
  int64_t at[MAX_GROUPS + 1] = {0};
  for (size_t g = 0; g < c->groups; g++) at[g + 1] = at[g] + (int64_t)(c->tiles[g] * 128 * c->cols);
  c->offsets =
      tensor(buffer_from(at, (c->groups + 1) * 8, 0)->ptr, kNVTEInt64, SHAPE(c->groups + 1));
  c->copy_tensor = c->copy ? tensor(c->dequantized->ptr, kNVTEBFloat16, shape) : NULL;
  c->config = NULL;
  if (c->fast) {
    c->config = quant_config();
    uint8_t on = 1;
    set_quant(c->config, kNVTEQuantizationConfigUseFastMath, &on, sizeof on);
  }
  EXPECT_OK();
}

// The smallest power of two that is not less than x, as a code from 0 to 254.
static unsigned e8m0(float x) {
  if (isinf(x)) return 254;
  if (x == 0) return 0;
  int exponent = ilogb((double)x) + (ldexp(1, ilogb((double)x)) < (double)x);
  return (unsigned)(exponent < -127 ? 0 : exponent > 127 ? 254 : exponent + 127);
}

static double power(unsigned code) { return code == 255 ? (double)NAN : ldexp(1, (int)code - 127); }

static void check(const Case *c) {
  size_t cols = c->cols, blocks = cols / 32, pitch = c->pitch ? c->pitch : blocks, begin = 0,
         bad = 0;
  const unsigned char *y = buffer_read(c->colwise), *row_codes = buffer_read(c->row_codes);
  const unsigned char *col_codes = buffer_read(c->col_codes);
  const void *copy = buffer_read(c->dequantized);
  for (size_t g = 0; g < c->groups; begin += c->tiles[g++] * 128) {
    size_t down = c->tiles[g];
    for (size_t top = begin; top < begin + down * 128; top += 32) {
      for (size_t col = 0; col < cols && bad < 4; col++) {
        float v[32], amax = 0;
        for (size_t r = 0; r < 32; r++) {
          size_t i = (top + r) * cols + col;
          unsigned code = c->codes[(top + r) * pitch + col / 32];
          v[r] = (float)(get_value(c->in, c->data, i) * power(code));
          if (c->fast) v[r] = (float)round_to(kNVTEBFloat16, (double)v[r]);
          amax = fmaxf(amax, fabsf(v[r]));
          uint32_t want = encode_bits(kNVTEBFloat16, (double)v[r]);
          uint32_t got = get_bits(kNVTEBFloat16, copy, i);
          if (c->copy) {
            bad += !CHECK(same_bits(kNVTEBFloat16, got, want),
                          "dequantized, row %zu, col %zu: got 0x%x, expected 0x%x", top + r, col,
                          got, want);
          }
          if (col % 32 == 0) {
            unsigned stored = row_codes[tiled(top + r, col / 32, cols / 128)];
            bad += !CHECK(stored == code, "code of row %zu, col %zu: got %u, expected %u", top + r,
                          col, stored, code);
          }
        }
        // One multiplication in float.
        unsigned code = e8m0((float)((double)amax * (double)float_of(0x3B124925)));
        unsigned got = col_codes[begin / 32 * cols + tiled(col, (top - begin) / 32, down)];
        bad += !CHECK(got == code, "code of rows %zu, col %zu: amax %a: got %u, expected %u", top,
                      col, (double)amax, got, code);
        for (size_t r = 0; r < 32 && bad < 4; r++) {
          float scaled = (float)((double)v[r] * power(254 - code));
          uint32_t want = encode_bits(kNVTEFloat8E4M3, (double)scaled);
          unsigned byte = y[(top + r) * cols + col];
          bad += !CHECK(byte == want, "row %zu, col %zu: %a: got 0x%x, expected 0x%x", top + r, col,
                        (double)v[r], byte, want);
        }
      }
    }
  }
  // Bytes past the groups must not change.
  size_t written = 0;
  for (size_t i = begin * cols; i < c->rows * cols; i++) {
    written += y[i] != POISON_VALUE;
    written += c->copy && get_bits(kNVTEBFloat16, copy, i) != 0xFFFF;
  }
  for (size_t i = begin * blocks; i < c->rows * blocks; i++) {
    written += row_codes[i] != POISON_VALUE;
    written += col_codes[i] != POISON_VALUE;
  }
  CHECK(written == 0, "%zu elements past the last group were written", written);
  if (!c->copy) CHECK(untouched(c->dequantized), "dequantized was written");
}

static uint8_t is_swizzled(NVTETensor t) {
  uint8_t on = 9;
  size_t size = 0;
  nvte_get_tensor_param_v2(t, kNVTEWithGEMMSwizzledScales, &on, sizeof on, &size);
  EXPECT_OK();
  return on;
}

static void run(Case *c) {
  build(c);
  CHECK_EQ(is_swizzled(c->output), 0);
  nvte_group_requantize(c->input, c->output, c->offsets, c->copy_tensor, c->config, NULL);
  if (EXPECT_OK()) check(c);
  CHECK_EQ(is_swizzled(c->output), 1);
}

static void test_values(void) {
  for (int k = 0; k < 16; k++) {
    if (!case_begin("values %d", k)) continue;
    Case c = {.in = kFloat8[k % 2],
              .rows = 768,
              .cols = k % 4 < 2 ? 256 : 128,
              .groups = 5,
              .tiles = {1, 0, 3, 0, 1},
              .copy = k & 4,
              .fast = k & 8,
              .pitch = k % 3 == 0   ? 0
                       : k % 3 == 1 ? 8
                                    : 11,
              .shift = k % 5 == 4};
    run(&c);
  }
  if (case_begin("no rows of any group")) {
    Case c = {.in = kNVTEFloat8E4M3, .rows = 256, .cols = 128, .groups = 2, .copy = true};
    run(&c);
  }
  if (case_begin("many groups")) {
    Case c = {.in = kNVTEFloat8E4M3, .cols = 128, .groups = MAX_GROUPS};
    for (size_t g = 0; g < c.groups; g++) c.rows += 128 * (c.tiles[g] = random_below(3));
    c.rows += 128;
    run(&c);
  }
  if (case_begin("one group of all")) {
    Case c = {.in = kNVTEFloat8E4M3, .rows = 384, .cols = 640, .groups = 1, .tiles = {3}};
    run(&c);
  }
}

static void test_empty(void) {
  if (!case_begin("empty")) return;
  Case c = {.in = kNVTEFloat8E4M3, .rows = 0, .cols = 128, .groups = 1};
  c.pitch = 4;
  NVTEShape shape = SHAPE(0, 128);
  c.input = tensor_of_mode(NVTE_MXFP8_1D_SCALING), c.output = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
  set_param(c.input, kNVTERowwiseData, NULL, c.in, shape);
  set_param(c.input, kNVTERowwiseScaleInv, NULL, kNVTEFloat8E8M0, SHAPE(0, 4));
  set_param(c.output, kNVTEColumnwiseData, NULL, c.in, shape);
  set_param(c.output, kNVTEColumnwiseScaleInv, NULL, kNVTEFloat8E8M0, SHAPE(0, 128));
  set_param(c.output, kNVTERowwiseScaleInv, NULL, kNVTEFloat8E8M0, SHAPE(0, 4));
  const int64_t at[2] = {0, 0};
  c.offsets = tensor(buffer_from(at, sizeof at, 0)->ptr, kNVTEInt64, SHAPE(2));
  nvte_group_requantize(c.input, c.output, c.offsets, NULL, NULL, NULL);
  EXPECT_OK();
  CHECK_EQ(is_swizzled(c.output), 1);
}

static void test_errors(void) {
  static const char *const parts[] = {"input: ",
                                      "input.scaling_mode: ",
                                      "output.scaling_mode: ",
                                      "input.with_gemm_swizzled_scales: ",
                                      "input.shape: ",
                                      "input.data.dtype: ",
                                      "input.scale_inv",
                                      "output.columnwise_data.dtype: ",
                                      "output.columnwise_data.shape: ",
                                      "output.columnwise_scale_inv.shape: ",
                                      "output.scale_inv.shape: ",
                                      "tensor_offsets.dtype: ",
                                      "tensor_offsets.shape: ",
                                      "dequantized.dtype: ",
                                      "dequantized.shape: ",
                                      "output.columnwise_data: "};
  for (size_t k = 0; k < COUNT(parts); k++) {
    if (!case_begin("refuses %zu", k)) continue;
    Case c = {
        .in = kNVTEFloat8E4M3, .rows = 256, .cols = 128, .groups = 1, .tiles = {2}, .copy = true};
    build(&c);
    NVTEShape shape = SHAPE(256, 128);
    void *any = buffer(256 * 128 * 2)->ptr;
    uint8_t on = 1;
    switch (k) {
      case 0:
        c.input = NULL;
        break;
      case 1:
        c.input = tensor(any, c.in, shape);
        break;
      case 2:
        c.output = tensor(any, c.in, shape);
        break;
      case 3:
        nvte_set_tensor_param_v2(c.input, kNVTEWithGEMMSwizzledScales, &on, sizeof on);
        break;
      case 4:
        set_param(c.input, kNVTERowwiseData, any, c.in, SHAPE(256, 64));
        break;
      case 5:
        set_param(c.input, kNVTERowwiseData, any, kNVTEBFloat16, shape);
        break;
      case 6:
        set_param(c.input, kNVTERowwiseScaleInv, any, kNVTEFloat8E8M0, SHAPE(256, 3));
        break;
      case 7:
        set_param(c.output, kNVTEColumnwiseData, any, kNVTEFloat8E5M2, shape);
        break;
      case 8:
        set_param(c.output, kNVTEColumnwiseData, any, c.in, SHAPE(128, 256));
        break;
      case 9:
        set_param(c.output, kNVTEColumnwiseScaleInv, any, kNVTEFloat8E8M0, SHAPE(7, 128));
        break;
      case 10:
        set_param(c.output, kNVTERowwiseScaleInv, any, kNVTEFloat8E8M0, SHAPE(255, 4));
        break;
      case 11:
        c.offsets = tensor(any, kNVTEInt32, SHAPE(2));
        break;
      case 12:
        c.offsets = tensor(any, kNVTEInt64, SHAPE(1));
        break;
      case 13:
        c.copy_tensor = tensor(any, kNVTEFloat16, shape);
        break;
      case 14:
        c.copy_tensor = tensor(any, kNVTEBFloat16, SHAPE(256, 64));
        break;
      default:
        set_param(c.output, kNVTEColumnwiseData, (char *)any + 8, c.in, shape);
    }
    nvte_group_requantize(c.input, c.output, c.offsets, c.copy_tensor, c.config, NULL);
    EXPECT_ERROR(ANY_ERROR, "nvte_group_requantize: ", parts[k]);
    CHECK(untouched(c.colwise) && untouched(c.row_codes) && untouched(c.col_codes) &&
              untouched(c.dequantized),
          "something was written");
    if (k != 2) CHECK_EQ(is_swizzled(c.output), 0);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_values();
  test_empty();
  test_errors();
  return test_end();
}
