// The greatest elements of rows against a sort (moe_layout.md, section 13).
#include "nvte/topk.h"

#include "support.h"

static const uint32_t *g_order;

static int by_order(const void *a, const void *b) {
  int i = *(const int *)a, j = *(const int *)b;
  return g_order[i] != g_order[j] ? (g_order[i] > g_order[j] ? -1 : 1) : i < j ? -1 : i > j;
}

static int by_index(const void *a, const void *b) {
  int i = *(const int *)a, j = *(const int *)b;
  return i < j ? -1 : i > j;
}

typedef enum Values { SPREAD, FEW, ANY_BITS, LEAST } Values;

static void check(NVTEDType dtype, size_t rows, size_t cols, size_t k, bool ragged, Values values,
                  size_t shift) {
  if (!case_begin("%s %zux%zu k %zu%s values %d shift %zu", dtype_name(dtype), rows, cols, k,
                  ragged ? " ragged" : "", (int)values, shift)) {
    return;
  }
  size_t size = dtype_size(dtype), n = rows * cols, bad = 0;
  void *keys = values == SPREAD ? random_values(dtype, n, -100, 100) : mixed_values(dtype, n, true);
  for (size_t i = 0; i < n && values == FEW; i++)
    put_value(dtype, keys, i, (double)random_below(4));
  if (values == LEAST) memset(keys, 0xff, n * size);  // NaN with a sign, below all others.
  int *lengths = host_memory(rows * 4);
  for (size_t r = 0; r < rows; r++) {
    lengths[r] = ragged ? (int)random_below(cols + 3) - 1 : (int)cols;
  }
  NVTETensor in = tensor(buffer_from(keys, n * size, shift * size)->ptr, dtype, SHAPE(rows, cols));
  NVTETensor length = ragged
                          ? tensor(buffer_from(lengths, rows * 4, 0)->ptr, kNVTEInt32, SHAPE(rows))
                          : empty_tensor();
  Buffer *top = buffer_shifted(rows * k * size, shift * size),
         *index = buffer_shifted(rows * k * 4, 4);
  NVTETensor out = tensor(top->ptr, dtype, SHAPE(rows, k));
  NVTETensor indices = tensor(index->ptr, kNVTEInt32, SHAPE(rows, k)), workspace = empty_tensor();
  nvte_topk(NULL, in, length, out, indices, workspace, (int)rows, (int)cols, (int)k);
  if (!EXPECT_OK()) return;
  size_t bytes = numel(nvte_tensor_shape(workspace));
  CHECK(nvte_tensor_type(workspace) == kNVTEByte && bytes > 0, "%zu bytes", bytes);
  CHECK(untouched(top) && untouched(index), "a query wrote");
  workspace = tensor(buffer_shifted(bytes, shift)->ptr, kNVTEByte, SHAPE(bytes));
  nvte_topk(NULL, in, length, out, indices, workspace, (int)rows, (int)cols, (int)k);
  if (!EXPECT_OK()) return;
  const int *got = buffer_read(index);
  const void *got_keys = buffer_read(top);
  uint32_t *order = host_memory(cols * 4);
  int *want = host_memory(cols * 4);
  uint32_t sign = 1u << (dtype_bits(dtype) - 1), minus_one = encode_bits(dtype, -1);
  g_order = order;
  for (size_t r = 0; r < rows && bad < 3; r++) {
    size_t l = lengths[r] < 0 ? 0 : (size_t)lengths[r] < cols ? (size_t)lengths[r] : cols;
    for (size_t i = 0; i < l; i++) {
      uint32_t bits = get_bits(dtype, keys, r * cols + i);
      order[i] = bits & sign ? sign - 1 - (bits & (sign - 1)) : sign + bits;
      want[i] = (int)i;
    }
    qsort(want, l, sizeof *want, by_order);
    qsort(want, l < k ? l : k, sizeof *want, by_index);
    for (size_t i = 0; i < k && bad < 3; i++) {
      int expected = i < l ? want[i] : -1;
      uint32_t key = i < l ? get_bits(dtype, keys, r * cols + (size_t)expected) : minus_one;
      bad += !CHECK(got[r * k + i] == expected,
                    "row %zu of %zu elements, place %zu: got %d, expected %d", r, l, i,
                    got[r * k + i], expected);
      bad += !CHECK(get_bits(dtype, got_keys, r * k + i) == key, "key of row %zu, place %zu", r, i);
    }
  }
}

static void test_wrong(void) {
  if (!case_begin("wrong arguments")) return;
  Buffer *x = buffer(64), *y = buffer(16), *z = buffer(16), *w = buffer(1 << 16);
  NVTETensor in = tensor(x->ptr, kNVTEFloat32, SHAPE(2, 8)), none = empty_tensor();
  NVTETensor out = tensor(y->ptr, kNVTEFloat32, SHAPE(2, 2)),
             at = tensor(z->ptr, kNVTEInt32, SHAPE(2, 2));
  NVTETensor work = tensor(w->ptr, kNVTEByte, SHAPE(1 << 16));
  nvte_topk(NULL, in, none, out, at, work, -2, 8, 2);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_topk: batch_size: expected 0 or more, got -2");
  nvte_topk(NULL, in, none, out, at, work, 2, 9, 2);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_topk: keys_in.shape: expected 18 or more elements");
  nvte_topk(NULL, in, none, out, at, work, 2, 8, 3);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_topk: keys_out.shape: ");
  nvte_topk(NULL, at, none, out, at, work, 2, 2, 2);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_topk: keys_in.dtype: ", "Int32");
  nvte_topk(NULL, in, in, out, at, work, 2, 8, 2);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_topk: lengths_in.dtype: expected Int32");
  nvte_topk(NULL, in, none, out, at, tensor(w->ptr, kNVTEByte, SHAPE(100)), 2, 8, 2);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_topk: workspace.shape: ", "100 bytes");
  nvte_topk(NULL, in, none, out, at, NULL, 2, 8, 2);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_topk: workspace");
  CHECK(untouched(y) && untouched(z), "outputs were written");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  const size_t shapes[][3] = {{1, 1, 1},      {3, 7, 2},       {2, 100, 100},   {2, 64, 65},
                              {5, 1000, 1},   {1, 10000, 100}, {4, 16384, 256}, {2, 8192, 8000},
                              {3, 8193, 300}, {1, 50000, 200}, {2, 65536, 512}, {1, 200000, 1000}};
  for (size_t i = 0; i < COUNT(shapes); i++) {
    const size_t *s = shapes[i];
    for (size_t d = 0; d < 3; d++) {
      check(kHighPrecision[d], s[0], s[1], s[2], false, (Values)((i + d) % 3), 0);
      check(kHighPrecision[d], s[0], s[1], s[2], true, (Values)((i + d + 1) % 3), 1);
    }
  }
  check(kNVTEFloat32, 300, 40, 5, true, SPREAD, 0);
  // Sizes at which other kernels and other numbers of blocks take over.
  const size_t limits[][3] = {{2, 2048, 2047},   {3, 2049, 7},      {2, 4096, 4096},
                              {2, 8191, 1},      {2, 16385, 16000}, {2, 65536, 2048},
                              {1, 65535, 65534}, {2, 65537, 2048},  {70, 9000, 20}};
  for (size_t i = 0; i < COUNT(limits); i++) {
    const size_t *s = limits[i];
    for (size_t d = 0; d < 3; d++) {
      check(kHighPrecision[d], s[0], s[1], s[2], i % 2 == 1, (Values)((i + d) % 4), d % 2);
      check(kHighPrecision[d], s[0], s[1], s[2], i % 2 == 0, (Values)((i + d + 2) % 4), 0);
    }
  }
  test_wrong();
  return test_end();
}
