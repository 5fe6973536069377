// Transposes and casts that a flag on the device can turn off (quantize.md 1.6, 9.1, 9.5).
#include "nvte/cast_transpose_noop.h"

#include "support.h"

// Exactly 1 turns the call off; NULL stands for "no flag" of some kind.
static const float kFlags[] = {1, 0, 0.5f, -1, 2, (float)NAN, 0x1.fffffep-1f};
enum { NO_FLAG = 3 };  // null handle, empty tensor, null pointer of one element

static NVTETensor noop_tensor(size_t k) {
  if (k < COUNT(kFlags)) return float_tensor(buffer_float(kFlags[k]));
  if (k == COUNT(kFlags)) return NULL;
  NVTETensor t = empty_tensor();
  if (k == COUNT(kFlags) + 2) set_param(t, kNVTERowwiseData, NULL, kNVTEFloat32, SHAPE(1));
  return t;
}

static void test_cast_transpose(void) {
  const NVTEShape shapes[] = {SHAPE(1, 1), SHAPE(257, 129), SHAPE(64, 256), SHAPE(2333, 1)};
  for (size_t k = 0; k < COUNT(kFlags) + NO_FLAG; k++) {
    for (size_t s = 0; s < COUNT(shapes); s++) {
      for (size_t i = 0; i < COUNT(kHighPrecision); i++) {
        for (size_t o = 0; o < COUNT(kFloats); o++) {
          if (!case_begin("cast_transpose flag %zu %s %s %s", k, shape_text(shapes[s]),
                          dtype_name(kHighPrecision[i]), dtype_name(kFloats[o]))) {
            continue;
          }
          Cast c = {.in = kHighPrecision[i],
                    .out = kFloats[o],
                    .shape = shapes[s],
                    .directions = BOTH,
                    .specials = true,
                    .has_scale = true,
                    .scale = -0.6f,
                    .has_amax = true,
                    .old_amax = 0.5f};
          cast_build(&c);
          nvte_cast_transpose_with_noop(c.in_tensor, noop_tensor(k), c.out_tensor, NULL);
          if (k == 0) {
            EXPECT_OK();
            cast_check_untouched(&c);
          } else {
            cast_check(&c);
          }
        }
      }
    }
  }
}

static void test_transpose(void) {
  for (size_t k = 0; k < COUNT(kFlags) + NO_FLAG; k++) {
    for (size_t d = 0; d < COUNT(kFloats); d++) {
      NVTEDType dtype = kFloats[d];
      if (!case_begin("transpose flag %zu %s", k, dtype_name(dtype))) continue;
      enum { ROWS = 129, COLS = 67 };
      size_t size = dtype_size(dtype), bad = 0;
      unsigned char *x = host_memory(ROWS * COLS * size);
      for (size_t i = 0; i < ROWS * COLS * size; i++) x[i] = (unsigned char)random_below(255);
      Buffer *input = buffer_from(x, ROWS * COLS * size, 0), *output = buffer(input->bytes);
      NVTETensor in = tensor(input->ptr, dtype, SHAPE(ROWS, COLS));
      NVTETensor out = tensor(output->ptr, dtype, SHAPE(COLS, ROWS));
      if (is_fp8(dtype)) {
        Buffer *one = buffer_float(1);
        set_param(in, kNVTERowwiseScaleInv, one->ptr, kNVTEFloat32, SHAPE(1));
        set_param(out, kNVTERowwiseScaleInv, one->ptr, kNVTEFloat32, SHAPE(1));
      }
      nvte_transpose_with_noop(in, noop_tensor(k), out, NULL);
      if (!EXPECT_OK()) continue;
      if (k == 0) {
        CHECK(untouched(output), "written");
        continue;
      }
      const unsigned char *y = buffer_read(output);
      for (size_t i = 0; i < ROWS * COLS && bad < 3; i++) {
        bad += !CHECK(memcmp(x + i * size, y + (i % COLS * ROWS + i / COLS) * size, size) == 0,
                      "row %zu, col %zu", i / COLS, i % COLS);
      }
    }
  }
}

static void test_empty(void) {
  for (int k = 0; k < 4; k++) {
    size_t rows = k & 1 ? 16 : 0, cols = 16 - rows;
    if (!case_begin("%s empty %zux%zu", k & 2 ? "transpose" : "cast_transpose", rows, cols))
      continue;
    NVTETensor noop = float_tensor(buffer_float(0));
    if (k & 2) {
      Buffer *any = buffer(16);
      nvte_transpose_with_noop(tensor(any->ptr, kNVTEFloat16, SHAPE(rows, cols)), noop,
                               tensor(any->ptr, kNVTEFloat16, SHAPE(cols, rows)), NULL);
      EXPECT_OK();
      CHECK(untouched(any), "written");
    } else {
      Cast c = {.in = kNVTEFloat16,
                .out = kNVTEFloat8E5M2,
                .shape = SHAPE(rows, cols),
                .directions = BOTH,
                .has_amax = true,
                .old_amax = 0.5f};
      cast_build(&c);
      nvte_cast_transpose_with_noop(c.in_tensor, noop, c.out_tensor, NULL);
      EXPECT_OK();
      cast_check_untouched(&c);
    }
  }
}

// A flag must be one Float32.
static void test_wrong_flags(void) {
  for (int k = 0; k < 4; k++) {
    if (!case_begin("wrong flag %d", k)) continue;
    Cast c = {.in = kNVTEFloat16,
              .out = kNVTEFloat8E5M2,
              .shape = SHAPE(8, 8),
              .directions = BOTH,
              .has_amax = true,
              .old_amax = 0.5f};
    cast_build(&c);
    Buffer *two = buffer(8);
    NVTETensor noop =
        k % 2 ? tensor(two->ptr, kNVTEFloat32, SHAPE(2)) : tensor(two->ptr, kNVTEInt32, SHAPE(1));
    if (k < 2) {
      nvte_cast_transpose_with_noop(c.in_tensor, noop, c.out_tensor, NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_cast_transpose_with_noop: noop", "expected",
                   "got");
    } else {
      Buffer *out = buffer(128);
      nvte_transpose_with_noop(c.in_tensor, noop, tensor(out->ptr, kNVTEFloat16, SHAPE(8, 8)),
                               NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_transpose_with_noop: noop", "expected", "got");
      CHECK(untouched(out), "written");
    }
    cast_check_untouched(&c);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_cast_transpose();
  test_transpose();
  test_empty();
  test_wrong_flags();
  return test_end();
}
