// Transposes of NVFP4 data and of the scales of 16 x 16 blocks (optim_nvfp4.md, section 18).
#include "nvte/transpose.h"
#include "support.h"

static unsigned nibble(const unsigned char *data, size_t i) {
  return data[i / 2] >> i % 2 * 4 & 15;
}

static unsigned char *random_bytes(size_t n) {
  unsigned char *data = host_memory(n);
  for (size_t i = 0; i < n; i++) data[i] = (unsigned char)random_u64();
  return data;
}

static void test_data(void) {
  const size_t shapes[][2] = {{2, 2},    {16, 16},   {256, 256}, {64, 512}, {272, 304}, {34, 62},
                              {514, 30}, {1024, 48}, {2, 1000},  {1000, 2}, {528, 1040}};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (int k = 0; k < 2; k++) {
      size_t m = shapes[s][0], n = shapes[s][1];
      if (!case_begin("data %zux%zu%s", m, n, k ? " misaligned" : "")) continue;
      unsigned char *x = random_bytes(m * n / 2);
      Buffer *in = buffer_from(x, m * n / 2, k ? 3 : 0),
             *out = buffer_shifted(m * n / 2, k ? 5 : 0);
      nvte_nvfp4_data_transpose(tensor(in->ptr, kNVTEByte, SHAPE(m, n / 2)),
                                tensor(out->ptr, kNVTEByte, SHAPE(n, m / 2)), NULL);
      if (!EXPECT_OK()) continue;
      const unsigned char *got = buffer_read(out);
      size_t bad = 0;
      for (size_t r = 0; r < m && bad < 5; r++) {
        for (size_t c = 0; c < n && bad < 5; c++) {
          unsigned value = nibble(got, c * m + r), want = nibble(x, r * n + c);
          bad += !CHECK(value == want, "[%zu][%zu]: got %x, expected %x", c, r, value, want);
        }
      }
    }
  }
}

static void test_scales(void) {
  // Rows and columns of the output, tiles of the input along m and k, its columns.
  const size_t shapes[][5] = {{128, 4, 4, 4, 4}, {304, 20, 17, 19, 20}, {1024, 144, 130, 64, 64},
                              {16, 4, 1, 1, 4},  {128, 4, 3, 20, 20},   {640, 33, 33, 40, 40},
                              {4, 8, 8, 1, 1}};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (int k = 0; k < 2; k++) {
      size_t rows = shapes[s][0], cols = shapes[s][1], m = shapes[s][2], t = shapes[s][3],
             in_cols = shapes[s][4];
      if (!case_begin("scales %zux%zu%s", rows, cols, k ? " misaligned" : "")) continue;
      size_t in_rows = 16 * m;
      unsigned char *x = random_bytes(in_rows * in_cols);
      Buffer *in = buffer_from(x, in_rows * in_cols, k), *out = buffer_shifted(rows * cols, 3 * k);
      nvte_nvfp4_scale_transpose(tensor(in->ptr, kNVTEByte, SHAPE(in_rows, in_cols)),
                                 tensor(out->ptr, kNVTEByte, SHAPE(rows, cols)), m, t, NULL);
      if (!EXPECT_OK()) continue;
      const unsigned char *got = buffer_read(out);
      for (size_t r = 0, bad = 0; r < rows && bad < 5; r++) {
        for (size_t c = 0; c < cols && bad < 5; c++) {
          unsigned want = c >= m ? POISON_VALUE : r / 16 < t ? x[16 * c * in_cols + r / 16] : 0;
          bad += !CHECK(got[r * cols + c] == want, "[%zu][%zu]: got %02x, expected %02x", r, c,
                        got[r * cols + c], want);
        }
      }
    }
  }
}

static void test_nothing(void) {
  if (!case_begin("nothing to do")) return;
  Buffer *data = buffer(64 * 64);
  NVTETensor bytes = tensor(data->ptr, kNVTEByte, SHAPE(64, 32));
  nvte_nvfp4_data_transpose(tensor(NULL, kNVTEByte, SHAPE(0, 8)),
                            tensor(NULL, kNVTEByte, SHAPE(16, 0)), NULL);
  EXPECT_OK();
  nvte_nvfp4_scale_transpose(bytes, bytes, 0, 3, NULL);
  EXPECT_OK();
  nvte_nvfp4_scale_transpose(bytes, bytes, 3, 0, NULL);
  EXPECT_OK();
}

static void test_refused(void) {
  if (!case_begin("refused")) return;
  Buffer *data = buffer(64 * 64);
  NVTETensor bytes = tensor(data->ptr, kNVTEByte, SHAPE(64, 32));
  const char *name = "nvte_nvfp4_data_transpose";
  nvte_nvfp4_data_transpose(NULL, bytes, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input");
  nvte_nvfp4_data_transpose(bytes, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output");
  nvte_nvfp4_data_transpose(tensor(data->ptr, kNVTEFloat8E4M3, SHAPE(64, 32)), bytes, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.dtype", "Byte");
  nvte_nvfp4_data_transpose(tensor(data->ptr, kNVTEByte, SHAPE(63, 32)), bytes, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.shape", "even");
  nvte_nvfp4_data_transpose(tensor(data->ptr, kNVTEByte, SHAPE(64)), bytes, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.shape", "2 dimensions");
  nvte_nvfp4_data_transpose(bytes, tensor(data->ptr, kNVTEByte, SHAPE(64, 31)), NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.shape", "[64, 32]");
  nvte_nvfp4_data_transpose(bytes, tensor(NULL, kNVTEByte, SHAPE(64, 32)), NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.data", "null");
  name = "nvte_nvfp4_scale_transpose";
  nvte_nvfp4_scale_transpose(tensor(data->ptr, kNVTEFloat32, SHAPE(8, 8)), bytes, 1, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.dtype", "Byte");
  nvte_nvfp4_scale_transpose(bytes, bytes, 5, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.shape", "16 * 4");
  nvte_nvfp4_scale_transpose(bytes, bytes, 1, 33, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.shape", "33");
  nvte_nvfp4_scale_transpose(bytes, tensor(data->ptr, kNVTEByte, SHAPE(64, 3)), 4, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.shape", "4 or more columns");
  CHECK(untouched(data), "a refused call wrote something");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_data();
  test_scales();
  test_nothing();
  test_refused();
  return test_end();
}
