// Transposes with sums of columns (quantize.md 9.6) and swaps of dimensions (9.7).
#include "nvte/transpose.h"

#include "support.h"

static NVTETensor fp8_matrix(Buffer *b, NVTEDType dtype, NVTEShape shape, Buffer *scale_inv) {
  NVTETensor t = tensor(b->ptr, dtype, shape);
  if (scale_inv) set_param(t, kNVTERowwiseScaleInv, scale_inv->ptr, kNVTEFloat32, SHAPE(1));
  return t;
}

// Asks for the shape of a workspace, and makes it.
static NVTETensor workspace_of(NVTETensor input, NVTETensor output, NVTETensor dbias) {
  NVTETensor workspace = empty_tensor();
  nvte_fp8_transpose_dbias(input, output, dbias, workspace, NULL);
  EXPECT_OK();
  NVTEShape shape = nvte_tensor_shape(workspace);
  NVTEDType dtype = nvte_tensor_type(workspace);
  CHECK_EQ(dtype, kNVTEFloat32);
  Buffer *b = buffer(numel(shape) * dtype_size(dtype));
  set_param(workspace, kNVTERowwiseData, b->ptr, dtype, shape);
  return workspace;
}

static void test_dbias(void) {
  const NVTEShape shapes[] = {SHAPE(1, 1),    SHAPE(8, 8),     SHAPE(128, 256), SHAPE(129, 257),
                              SHAPE(1, 541),  SHAPE(1987, 1),  SHAPE(33, 65),   SHAPE(1481, 677),
                              SHAPE(64, 400), SHAPE(2304, 48), SHAPE(2, 4096),  SHAPE(5000, 24)};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (int k = 0; k < 6; k++) {
      NVTEShape shape = shapes[s];
      NVTEDType dtype = kFloat8[k % 2], bias_dtype = kHighPrecision[k % 3];
      bool misaligned = k >= 3, whole = k % 2;
      if (!case_begin("dbias %s %s %s%s%s", shape_text(shape), dtype_name(dtype),
                      dtype_name(bias_dtype), whole ? " whole" : "",
                      misaligned ? " misaligned" : "")) {
        continue;
      }
      size_t rows = rows_of(shape), cols = cols_of(shape), n = numel(shape), bad = 0;
      float scale = whole ? 0.5f : (float)random_uniform(-2, 1);
      // Small whole numbers: their sums are exact.
      void *x = whole ? host_memory(n) : random_values(dtype, n, -2, 1);
      for (size_t i = 0; whole && i < n; i++) put_value(dtype, x, i, (double)random_below(9) - 4);
      size_t size = dtype_size(bias_dtype);
      Buffer *input = buffer_from(x, n, misaligned), *output = buffer_shifted(n, misaligned);
      Buffer *bias = buffer_shifted(cols * size, misaligned ? size : 0);
      Buffer *inverse = k == 5 ? NULL : buffer_float(scale);
      if (!inverse) scale = 1;
      NVTETensor in = fp8_matrix(input, dtype, shape, buffer_float(99));
      NVTETensor out = fp8_matrix(output, dtype, SHAPE(cols, rows), inverse);
      NVTETensor dbias = tensor(bias->ptr, bias_dtype, SHAPE(cols));
      NVTETensor workspace = workspace_of(in, out, dbias);
      CHECK(untouched(output) && untouched(bias), "the query wrote");
      nvte_fp8_transpose_dbias(in, out, dbias, workspace, NULL);
      if (!EXPECT_OK()) continue;
      const unsigned char *y = buffer_read(output);
      const void *sums = buffer_read(bias);
      for (size_t i = 0; i < n && bad < 3; i++) {
        size_t j = i % cols * rows + i / cols;
        bad += !CHECK(((unsigned char *)x)[i] == y[j], "row %zu, col %zu", i / cols, i % cols);
      }
      bad = 0;
      for (size_t c = 0; c < cols && bad < 3; c++) {
        double sum = 0, magnitude = 0;
        for (size_t r = 0; r < rows; r++) {
          double v = get_value(dtype, x, r * cols + c) * (double)scale;
          sum += v, magnitude += fabs(v);
        }
        double got = get_value(bias_dtype, sums, c), want = round_to(bias_dtype, sum);
        // Rounding of the products and of the partial sums, then of the result.
        double allowed = whole ? 0
                               : magnitude * 60 * 0x1p-24 +
                                     fabs(want) * ldexp(1, -format_of(bias_dtype).mantissa);
        bad += !CHECK(fabs(got - want) <= allowed, "dbias[%zu]: got %a, expected %a", c, got, want);
      }
      CHECK(memcmp(buffer_read(input), x, n) == 0, "the input changed");
    }
  }
}

// Signs and NaN, Inf and 0, whose sums are known.
static void test_dbias_special(void) {
  if (!case_begin("dbias special")) return;
  // Columns: NaN, Inf, -Inf and Inf, -0 only, 0.
  const unsigned char x[2][5] = {{0x7F, 0x7C, 0x7C, 0x80, 0}, {0x3C, 0x3C, 0xFC, 0x80, 0}};
  Buffer *input = buffer_from(x, sizeof x, 0), *output = buffer(sizeof x), *bias = buffer(20);
  NVTETensor in = fp8_matrix(input, kNVTEFloat8E5M2, SHAPE(2, 5), buffer_float(1));
  NVTETensor out = fp8_matrix(output, kNVTEFloat8E5M2, SHAPE(5, 2), buffer_float(2));
  NVTETensor dbias = tensor(bias->ptr, kNVTEFloat32, SHAPE(5));
  nvte_fp8_transpose_dbias(in, out, dbias, workspace_of(in, out, dbias), NULL);
  EXPECT_OK();
  const float *sums = buffer_read(bias);
  CHECK(isnan(sums[0]) && isinf(sums[1]) && isnan(sums[2]), "%a %a %a", (double)sums[0],
        (double)sums[1], (double)sums[2]);
  CHECK(sums[3] == 0 && sums[4] == 0, "%a %a", (double)sums[3], (double)sums[4]);
}

static void test_dbias_empty(void) {
  for (int k = 0; k < 2; k++) {
    size_t rows = k ? 16 : 0, cols = 16 - rows;
    if (!case_begin("dbias empty %zux%zu", rows, cols)) continue;
    Buffer *data = buffer(16), *bias = buffer(32);
    NVTETensor in = fp8_matrix(data, kNVTEFloat8E4M3, SHAPE(rows, cols), buffer_float(1));
    NVTETensor out = fp8_matrix(data, kNVTEFloat8E4M3, SHAPE(cols, rows), buffer_float(1));
    NVTETensor dbias = tensor(bias->ptr, kNVTEBFloat16, SHAPE(cols));
    nvte_fp8_transpose_dbias(in, out, dbias, workspace_of(in, out, dbias), NULL);
    EXPECT_OK();
    if (cols) CHECK(all_bytes(bias, 0), "dbias of no rows is not 0");
    if (!cols) CHECK(untouched(bias), "written");
    CHECK(untouched(data), "data were written");
  }
}

static void test_dbias_errors(void) {
  static const char *const names[] = {"input",
                                      "dtype of the input",
                                      "shape",
                                      "other dtype",
                                      "shape of dbias",
                                      "dtype of dbias",
                                      "workspace",
                                      "no workspace",
                                      "input without scale_inv",
                                      "null output",
                                      "rank"};
  static const char *const parts[] = {"input: ",
                                      "input.data.dtype: ",
                                      "transposed_output.shape: ",
                                      "transposed_output.data.dtype: ",
                                      "dbias.shape: ",
                                      "dbias.dtype: ",
                                      "workspace.shape: ",
                                      "workspace: ",
                                      "input.scale_inv: ",
                                      "transposed_output.data: ",
                                      "input.shape: "};
  for (size_t k = 0; k < COUNT(names); k++) {
    if (!case_begin("dbias refuses %s", names[k])) continue;
    NVTEDType dtype = kNVTEFloat8E4M3;
    Buffer *input = buffer(256 * 40), *output = buffer(256 * 40), *bias = buffer(160);
    NVTEShape shape = k == 10 ? SHAPE(2, 128, 40) : SHAPE(256, 40);
    NVTETensor in =
        fp8_matrix(input, k == 1 ? kNVTEByte : dtype, shape, k == 8 ? NULL : buffer_float(1));
    NVTETensor out = fp8_matrix(output, k == 3 ? kNVTEFloat8E5M2 : dtype,
                                k == 2 ? SHAPE(256, 40) : SHAPE(40, 256), buffer_float(1));
    if (k == 9) set_param(out, kNVTERowwiseData, NULL, dtype, SHAPE(40, 256));
    NVTETensor dbias =
        tensor(bias->ptr, k == 5 ? kNVTEInt32 : kNVTEFloat32, k == 4 ? SHAPE(1, 40) : SHAPE(40));
    Buffer *scratch = buffer(2 * 40 * 4);
    NVTETensor workspace = tensor(scratch->ptr, kNVTEFloat32, k == 6 ? SHAPE(79) : SHAPE(2, 40));
    nvte_fp8_transpose_dbias(k == 0 ? NULL : in, out, dbias, k == 7 ? NULL : workspace, NULL);
    EXPECT_ERROR(ANY_ERROR, "nvte_fp8_transpose_dbias: ", parts[k]);
    CHECK(untouched(output) && untouched(bias) && untouched(scratch), "something was written");
  }
}

static void test_swap(void) {
  const NVTEShape shapes[] = {SHAPE(4, 64, 1280),  SHAPE(48, 8, 128, 16),
                              SHAPE(229, 173),     SHAPE(113, 71, 1, 1, 1, 29, 1, 1),
                              SHAPE(1, 1),         SHAPE(33, 65, 2),
                              SHAPE(70, 31, 4),    SHAPE(37, 41, 3),
                              SHAPE(3, 5, 100000), SHAPE(1, 1000, 7),
                              SHAPE(1000, 1, 160), SHAPE(5, 3000, 40)};
  const NVTEDType dtypes[] = {kNVTEByte,       kNVTEInt64,      kNVTEFloat32,   kNVTEBFloat16,
                              kNVTEFloat8E4M3, kNVTEFloat8E8M0, kNVTEFloat4E2M1};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (size_t d = 0; d < COUNT(dtypes); d++) {
      for (size_t k = 0; k < 3; k++) {
        NVTEShape shape = shapes[s];
        NVTEDType dtype = dtypes[d];
        if (numel(shape) > 200000 && (d + k) % 3) continue;  // Skipped to save time.
        size_t m = shape.data[0], n = shape.data[1],
               bits = numel(shape) / m / n * dtype_bits(dtype);
        if (bits % 8) continue;
        if (!case_begin("swap %s %s misaligned %zu", shape_text(shape), dtype_name(dtype), k)) {
          continue;
        }
        size_t row = bits / 8, bytes = m * n * row, bad = 0;
        size_t shift = dtype_bits(dtype) < 8 ? 1 : dtype_size(dtype);
        unsigned char *x = host_memory(bytes);
        for (size_t i = 0; i < bytes; i++) x[i] = (unsigned char)random_u64();
        Buffer *input = buffer_from(x, bytes, k == 1 ? shift : 0);
        Buffer *output = buffer_shifted(bytes, k == 2 ? shift : 0);
        NVTEShape swapped = shape;
        swapped.data[0] = n, swapped.data[1] = m;
        NVTETensor in = tensor(input->ptr, dtype, shape), out = tensor(output->ptr, dtype, swapped);
        nvte_swap_first_dims(in, out, NULL);
        if (!EXPECT_OK()) continue;
        const unsigned char *y = buffer_read(output);
        for (size_t i = 0; i < m * n && bad < 3; i++) {
          bad += !CHECK(memcmp(x + i * row, y + (i % n * m + i / n) * row, row) == 0,
                        "first %zu, second %zu", i / n, i % n);
        }
        CHECK(memcmp(buffer_read(input), x, bytes) == 0, "the input changed");
      }
    }
  }
}

static void test_swap_empty(void) {
  const NVTEShape shapes[] = {SHAPE(0, 3, 4), SHAPE(3, 0, 4), SHAPE(3, 4, 0), SHAPE(0, 0)};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    if (!case_begin("swap empty %s", shape_text(shapes[s]))) continue;
    NVTEShape swapped = shapes[s];
    swapped.data[0] = shapes[s].data[1], swapped.data[1] = shapes[s].data[0];
    Buffer *any = buffer(16);
    nvte_swap_first_dims(tensor(NULL, kNVTEFloat32, shapes[s]),
                         tensor(any->ptr, kNVTEFloat32, swapped), NULL);
    EXPECT_OK();
    CHECK(untouched(any), "written");
  }
}

static void test_swap_errors(void) {
  static const char *const parts[] = {"input: ",       "output.shape: ", "output.dtype: ",
                                      "input.shape: ", "output.data: ",  "input.shape: "};
  for (size_t k = 0; k < COUNT(parts); k++) {
    if (!case_begin("swap refuses %zu", k)) continue;
    Buffer *input = buffer(4 * 6 * 8), *output = buffer(4 * 6 * 8);
    NVTEDType dtype = k == 5 ? kNVTEFloat4E2M1 : kNVTEFloat32;
    NVTEShape shape = k == 3 ? SHAPE(24) : k == 5 ? SHAPE(4, 6, 3) : SHAPE(4, 6, 2);
    NVTEShape swapped = k == 1 ? shape : k == 5 ? SHAPE(6, 4, 3) : SHAPE(6, 4, 2);
    NVTETensor in = tensor(input->ptr, dtype, shape);
    NVTETensor out = tensor(output->ptr, k == 2 ? kNVTEInt32 : dtype, swapped);
    if (k == 4) set_param(out, kNVTERowwiseData, NULL, dtype, swapped);
    nvte_swap_first_dims(k == 0 ? NULL : in, out, NULL);
    EXPECT_ERROR(ANY_ERROR, "nvte_swap_first_dims: ", parts[k]);
    CHECK(untouched(output), "the output was written");
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_dbias();
  test_dbias_special();
  test_dbias_empty();
  test_dbias_errors();
  test_swap();
  test_swap_empty();
  test_swap_errors();
  return test_end();
}
