// Rows of zeros after the rows of many tensors, and without them again: copies of bits
// (moe_layout.md, section 11).
#include "nvte/padding.h"

#include "support.h"

typedef struct Matrix {
  size_t rows, cols, padded;
  unsigned char *values;
  Buffer *input, *padded_output, *output;
} Matrix;

static unsigned char *random_bytes(size_t n) {
  unsigned char *bytes = host_memory(n);
  for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)random_u64();
  return bytes;
}

static void check(NVTEDType dtype, size_t count, size_t most, size_t align, size_t shift) {
  if (!case_begin("%s %zu tensors up to %zu align %zu shift %zu", dtype_name(dtype), count, most,
                  align, shift)) {
    return;
  }
  size_t size = dtype_size(dtype);
  Matrix *m = host_memory(count * sizeof *m);
  NVTETensor *inputs = host_memory(count * sizeof *inputs);
  NVTETensor *padded = host_memory(count * sizeof *padded);
  NVTETensor *outputs = host_memory(count * sizeof *outputs);
  int *rows = host_memory(count * sizeof *rows), *padded_rows = host_memory(count * sizeof *rows);
  for (size_t i = 0; i < count; i++) {
    m[i].rows = random_below(most + 1);
    m[i].cols = i % 5 == 4 ? random_below(most + 1) : 16 * (1 + random_below(most / 16 + 1));
    m[i].padded = (m[i].rows + align - 1) / align * align + (i % 7 == 3 ? align : 0);
    size_t bytes = m[i].rows * m[i].cols * size;
    m[i].values = random_bytes(bytes);
    m[i].input = buffer_from(m[i].values, bytes, shift * size);
    m[i].padded_output = buffer_shifted(m[i].padded * m[i].cols * size, i % 2 ? shift * size : 0);
    m[i].output = buffer_shifted(bytes, i % 3 ? shift * size : 0);
    inputs[i] = tensor(m[i].input->ptr, dtype, SHAPE(m[i].rows, m[i].cols));
    padded[i] = tensor(m[i].padded_output->ptr, dtype, SHAPE(m[i].padded, m[i].cols));
    outputs[i] = tensor(m[i].output->ptr, dtype, SHAPE(m[i].rows, m[i].cols));
    rows[i] = (int)m[i].rows;
    padded_rows[i] = (int)m[i].padded;
  }
  nvte_multi_padding(count, inputs, padded, padded_rows, NULL);
  nvte_multi_unpadding(count, padded, outputs, rows, NULL);
  if (!EXPECT_OK()) return;
  for (size_t i = 0; i < count; i++) {
    const unsigned char *got = buffer_read(m[i].padded_output), *back = buffer_read(m[i].output);
    size_t bytes = m[i].rows * m[i].cols * size, all = m[i].padded * m[i].cols * size, zeros = 0;
    for (size_t b = bytes; b < all; b++) zeros += got[b] == 0;
    CHECK(memcmp(got, m[i].values, bytes) == 0, "tensor %zu: other bytes", i);
    CHECK(zeros == all - bytes, "tensor %zu: %zu of %zu bytes are 0", i, zeros, all - bytes);
    CHECK(memcmp(back, m[i].values, bytes) == 0, "tensor %zu: other bytes without the padding", i);
  }
}

static void test_wrong(void) {
  if (!case_begin("wrong arguments")) return;
  Buffer *in = buffer(64), *out = buffer(128), *other = buffer(128);
  NVTETensor inputs[] = {tensor(in->ptr, kNVTEFloat32, SHAPE(4, 4)),
                         tensor(in->ptr, kNVTEFloat32, SHAPE(4, 4))};
  NVTETensor outputs[] = {tensor(out->ptr, kNVTEFloat32, SHAPE(8, 4)),
                          tensor(other->ptr, kNVTEFloat32, SHAPE(8, 4))};
  int rows[] = {8, 8};
  nvte_multi_padding(0, NULL, NULL, NULL, NULL);
  EXPECT_OK();
  nvte_multi_padding(2, NULL, outputs, rows, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_padding: input_list: expected", "got null");
  nvte_multi_padding(2, inputs, outputs, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_padding: padded_num_rows_list: ");
  rows[1] = 3;
  nvte_multi_padding(2, inputs, outputs, rows, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "padded_num_rows_list[1]: expected at least 4", "got 3");
  nvte_multi_unpadding(2, inputs, outputs, rows, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "nvte_multi_unpadding: unpadded_num_rows_list[0]: ", "got 8");
  rows[1] = 9;
  nvte_multi_padding(2, inputs, outputs, rows, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "output_list[1].shape: expected [9, 4], got [8, 4]");
  rows[1] = 8;
  inputs[1] = tensor(in->ptr, kNVTEFloat16, SHAPE(4, 4));
  nvte_multi_padding(2, inputs, outputs, rows, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "input_list[1].dtype: expected Float32, got Float16");
  inputs[1] = tensor(in->ptr, kNVTEFloat32, SHAPE(4, 2, 2));
  nvte_multi_padding(2, inputs, outputs, rows, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "input_list[1].shape: expected 2 dimensions");
  inputs[1] = tensor(in->ptr + 1, kNVTEFloat32, SHAPE(4, 4));
  nvte_multi_padding(2, inputs, outputs, rows, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "input_list[1].data: ", "aligned");
  inputs[1] = NULL;
  nvte_multi_padding(2, inputs, outputs, rows, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "input_list[1]");
  inputs[0] = tensor(in->ptr, kNVTEFloat4E2M1, SHAPE(4, 4));
  nvte_multi_padding(1, inputs, outputs, rows, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "input_list[0].dtype: ", "Float4E2M1");
  CHECK(untouched(out) && untouched(other), "outputs were written");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  const NVTEDType dtypes[] = {kNVTEByte,       kNVTEInt16,     kNVTEInt32,    kNVTEInt64,
                              kNVTEFloat32,    kNVTEFloat16,   kNVTEBFloat16, kNVTEFloat8E4M3,
                              kNVTEFloat8E5M2, kNVTEFloat8E8M0};
  for (size_t d = 0; d < COUNT(dtypes); d++) {
    for (size_t shift = 0; shift < 2; shift++) {
      check(dtypes[d], 8, 43, 16, shift);
      check(dtypes[d], 1, 768, 32, shift);
    }
  }
  check(kNVTEBFloat16, 300, 40, 16, 0);
  check(kNVTEBFloat16, 97, 40, 1, 1);
  check(kNVTEFloat32, 5, 700, 128, 0);
  test_wrong();
  return test_end();
}
