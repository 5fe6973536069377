// Transposes (quantize.md 9.5) and casts with a transposed copy (9.1).
#include "nvte/transpose.h"

#include "support.h"

static NVTEShape shape_at(size_t i) {
  const NVTEShape shapes[] = {SHAPE(1, 1),   SHAPE(1, 541),    SHAPE(1987, 1),
                              SHAPE(8, 8),   SHAPE(217, 256),  SHAPE(120, 2080),
                              SHAPE(33, 65), SHAPE(1481, 677), SHAPE(1223, 1583)};
  return i < COUNT(shapes) ? shapes[i] : SHAPE(0, 0);
}

static NVTETensor matrix(Buffer *b, NVTEDType dtype, NVTEShape shape) {
  NVTETensor t = tensor(b->ptr, dtype, shape);
  if (is_fp8(dtype)) {
    set_param(t, kNVTERowwiseScaleInv, buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
  }
  return t;
}

static void test_transpose(void) {
  for (size_t s = 0; numel(shape_at(s)) > 0; s++) {
    for (size_t d = 0; d < COUNT(kFloats); d++) {
      for (size_t k = 0; k < 3; k++) {
        NVTEDType dtype = kFloats[d];
        NVTEShape shape = shape_at(s);
        if (numel(shape) > 500000 && (d + k) % 3) continue;  // Skipped to save time.
        if (!case_begin("transpose %s %s misaligned %zu", shape_text(shape), dtype_name(dtype),
                        k)) {
          continue;
        }
        size_t size = dtype_size(dtype), n = numel(shape), rows = rows_of(shape);
        size_t cols = cols_of(shape), bad = 0;
        unsigned char *x = host_memory(n * size);
        for (size_t i = 0; i < n * size; i++) x[i] = (unsigned char)random_u64();
        Buffer *input = buffer_from(x, n * size, k == 1 ? size : 0);
        Buffer *output = buffer_shifted(n * size, k == 2 ? size : 0);
        nvte_transpose(matrix(input, dtype, shape), matrix(output, dtype, SHAPE(cols, rows)), NULL);
        if (!EXPECT_OK()) continue;
        const unsigned char *y = buffer_read(output);
        for (size_t i = 0; i < n && bad < 3; i++) {
          size_t j = i % cols * rows + i / cols;
          bad += !CHECK(memcmp(x + i * size, y + j * size, size) == 0,
                        "row %zu, col %zu: 0x%x became 0x%x", i / cols, i % cols,
                        get_bits(dtype, x, i), get_bits(dtype, y, j));
        }
        CHECK(memcmp(buffer_read(input), x, n * size) == 0, "the input changed");
      }
    }
  }
}

// Twice is the identity.
static void test_involution(void) {
  if (!case_begin("transpose twice")) return;
  float *x = mixed_values(kNVTEFloat32, 301 * 127, true);
  Buffer *a = buffer_from(x, 301 * 127 * 4, 0), *b = buffer(a->bytes), *c = buffer(a->bytes);
  NVTETensor middle = tensor(b->ptr, kNVTEFloat32, SHAPE(127, 301));
  nvte_transpose(tensor(a->ptr, kNVTEFloat32, SHAPE(301, 127)), middle, NULL);
  nvte_transpose(middle, tensor(c->ptr, kNVTEFloat32, SHAPE(301, 127)), NULL);
  EXPECT_OK();
  CHECK(memcmp(buffer_read(c), x, a->bytes) == 0, "not the identity");
  CHECK(memcmp(buffer_read(b), x, a->bytes) != 0, "the first transpose copied");
}

static void test_empty(void) {
  for (int k = 0; k < 8; k++) {
    size_t rows = k & 1 ? 16 : 0, cols = 16 - rows;
    bool null = k & 2, cast = k & 4;
    if (!case_begin("%s empty %zux%zu%s", cast ? "cast_transpose" : "transpose", rows, cols,
                    null ? " null pointers" : "")) {
      continue;
    }
    if (cast) {
      Cast c = {.in = kNVTEFloat32,
                .out = kNVTEFloat8E4M3,
                .shape = SHAPE(rows, cols),
                .directions = BOTH,
                .has_amax = true,
                .old_amax = 0.5f};
      cast_build(&c);
      if (null) {
        set_param(c.in_tensor, kNVTERowwiseData, NULL, c.in, c.shape);
        set_param(c.out_tensor, kNVTERowwiseData, NULL, c.out, c.shape);
        set_param(c.out_tensor, kNVTEColumnwiseData, NULL, c.out, SHAPE(cols, rows));
      }
      nvte_cast_transpose(c.in_tensor, c.out_tensor, NULL);
      EXPECT_OK();
      cast_check_untouched(&c);
    } else {
      Buffer *any = buffer(16);
      void *ptr = null ? NULL : any->ptr;
      nvte_transpose(tensor(ptr, kNVTEFloat32, SHAPE(rows, cols)),
                     tensor(ptr, kNVTEFloat32, SHAPE(cols, rows)), NULL);
      EXPECT_OK();
      CHECK(untouched(any), "written");
    }
  }
}

static void test_cast_transpose(void) {
  for (size_t s = 0; numel(shape_at(s)) > 0; s++) {
    for (size_t i = 0; i < COUNT(kHighPrecision); i++) {
      for (size_t o = 0; o < COUNT(kFloats); o++) {
        for (int misaligned = 0; misaligned < 2; misaligned++) {
          if (numel(shape_at(s)) > 500000 && (i + o + (size_t)misaligned) % 4)
            continue;  // Skipped to save time.
          if (!case_begin("cast_transpose %s %s %s%s", shape_text(shape_at(s)),
                          dtype_name(kHighPrecision[i]), dtype_name(kFloats[o]),
                          misaligned ? " misaligned" : "")) {
            continue;
          }
          Cast c = {.in = kHighPrecision[i],
                    .out = kFloats[o],
                    .shape = shape_at(s),
                    .directions = BOTH,
                    .misaligned = misaligned,
                    .specials = s % 2 == 1,
                    .has_scale = true,
                    .has_amax = true,
                    .old_amax = 0.25f};
          c.scale = (float)random_uniform(-2, 1);
          cast_build(&c);
          nvte_cast_transpose(c.in_tensor, c.out_tensor, NULL);
          cast_check(&c);
        }
      }
    }
  }
  if (case_begin("cast_transpose rank 4")) {
    Cast c = {.in = kNVTEBFloat16,
              .out = kNVTEFloat8E4M3,
              .shape = SHAPE(5, 4, 3, 160),
              .directions = BOTH,
              .has_amax = true,
              .has_scale = true,
              .scale = -0.75f};
    cast_build(&c);
    nvte_cast_transpose(c.in_tensor, c.out_tensor, NULL);
    cast_check(&c);
  }
  if (case_begin("cast_transpose without scale and amax")) {
    Cast c = {.in = kNVTEFloat16,
              .out = kNVTEFloat8E5M2,
              .shape = SHAPE(40, 24),
              .directions = BOTH,
              .specials = true};
    cast_build(&c);
    nvte_cast_transpose(c.in_tensor, c.out_tensor, NULL);
    cast_check(&c);
  }
}

// Other scaling modes have their own layouts; this function has none of them.
static void test_modes(void) {
  const NVTEScalingMode modes[] = {NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_1D,
                                   NVTE_BLOCK_SCALING_2D, NVTE_NVFP4_1D_SCALING};
  for (size_t m = 0; m < COUNT(modes); m++) {
    if (!case_begin("cast_transpose refuses mode %d", (int)modes[m])) continue;
    Cast c = {
        .in = kNVTEFloat32, .out = kNVTEFloat8E4M3, .shape = SHAPE(128, 128), .directions = BOTH};
    cast_build(&c);
    NVTETensor output = tensor_of_mode(modes[m]);
    set_param(output, kNVTERowwiseData, c.rowwise->ptr, c.out, c.shape);
    set_param(output, kNVTEColumnwiseData, c.colwise->ptr, c.out, c.shape);
    nvte_cast_transpose(c.in_tensor, output, NULL);
    EXPECT_ERROR(ANY_ERROR, "nvte_cast_transpose: output");
    cast_check_untouched(&c);
  }
}

// Many at once, the empty one and those of other dtypes too.
static void test_multi(void) {
  static const size_t shapes[][2] = {{1, 1},    {1, 768},  {768, 1},   {768, 768}, {43, 43},
                                     {43, 256}, {256, 43}, {256, 256}, {0, 16}};
  enum { N = COUNT(shapes) };
  for (int wrong = 0; wrong < 3; wrong++) {
    static const char *const names[] = {"", " with a wrong one", " with a missing direction"};
    if (!case_begin("multi_cast_transpose%s", names[wrong])) continue;
    Cast c[N];
    NVTETensor inputs[N], outputs[N];
    for (size_t i = 0; i < N; i++) {
      c[i] = (Cast){.in = kHighPrecision[i % 3],
                    .out = kFloats[(i + 3) % 5],
                    .shape = SHAPE(shapes[i][0], shapes[i][1]),
                    .directions = BOTH,
                    .misaligned = i % 2,
                    .has_scale = i % 4 != 3,
                    .has_amax = true,
                    .old_amax = 0.25f,
                    .scale = 1.5f + (float)i};
      cast_build(&c[i]);
      inputs[i] = c[i].in_tensor;
      outputs[i] = c[i].out_tensor;
    }
    // The two directions may have a scale_inv each.
    Buffer *own = buffer(4);
    set_param(outputs[0], kNVTEColumnwiseScaleInv, own->ptr, kNVTEFloat32, SHAPE(1));
    if (wrong == 1)
      set_param(outputs[7], kNVTERowwiseData, c[7].rowwise->ptr, c[7].out, SHAPE(256, 255));
    if (wrong == 2) set_param(outputs[7], kNVTEColumnwiseData, NULL, kNVTEFloat32, SHAPE(0));
    nvte_multi_cast_transpose(N, inputs, outputs, NULL);
    if (wrong) {
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_cast_transpose: tensor 7: output.",
                   wrong == 1 ? "expected [256, 256]" : "column-wise data");
      for (size_t i = 0; i < N; i++) cast_check_untouched(&c[i]);
      continue;
    }
    for (size_t i = 0; i + 1 < N; i++) cast_check(&c[i]);
    cast_check_untouched(&c[N - 1]);
    CHECK_FLOAT(read_float(own), 1.0f / c[0].scale);
  }
  if (case_begin("multi_cast_transpose of none")) {
    nvte_multi_cast_transpose(0, NULL, NULL, NULL);
    EXPECT_OK();
  }
  if (case_begin("multi_cast_transpose without arrays")) {
    nvte_multi_cast_transpose(2, NULL, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_cast_transpose: input_list");
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_transpose();
  test_involution();
  test_empty();
  test_cast_transpose();
  test_modes();
  test_multi();
  return test_end();
}
