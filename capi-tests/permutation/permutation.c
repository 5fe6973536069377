// Rows of tokens to the rows of their experts and back, against sums in double; the sort against
// the C library's (moe_layout.md, section 8).
#include "nvte/permutation.h"

#include "support.h"

typedef struct Rows {
  NVTEDType dtype;
  size_t tokens, topk, cols, experts, out, shift;
} Rows;

static bool near(NVTEDType dtype, double got, double want, double scale) {
  double relative = dtype == kNVTEFloat32 ? 4e-6 : dtype == kNVTEFloat16 ? 1.1e-3 : 8.5e-3;
  // Float16 has steps of 6e-8 near 0.
  return fabs(got - want) <= relative * fabs(want) + 2e-6 * scale + 4e-8;
}

static void check(Rows r) {
  if (!case_begin("%s T%zu K%zu H%zu E%zu out %zu shift %zu", dtype_name(r.dtype), r.tokens, r.topk,
                  r.cols, r.experts, r.out, r.shift)) {
    return;
  }
  size_t slots = r.tokens * r.topk, h = r.cols, size = dtype_size(r.dtype), bad = 0;
  size_t shift = r.shift * size;
  int tokens = (int)r.tokens, topk = (int)r.topk, cols = (int)r.cols;
  // Slots in the order of random experts.
  int *expert = host_memory(slots * 4), *sorted = host_memory(slots * 4),
      *place = host_memory(slots * 4);
  size_t next = 0;
  for (size_t s = 0; s < slots; s++) expert[s] = (int)random_below(r.experts);
  for (size_t e = 0; e < r.experts; e++) {
    for (size_t s = 0; s < slots; s++) {
      if (expert[s] != (int)e) continue;
      place[s] = next < r.out ? (int)next : -1;
      sorted[next++] = (int)s;
    }
  }
  size_t rows = r.out < slots ? r.out : slots;
  void *x = random_values(r.dtype, r.tokens * h, -2, 2);
  float *p = random_values(kNVTEFloat32, slots, 0, 1);
  Buffer *input = buffer_from(x, r.tokens * h * size, shift), *map = buffer(slots * 4);
  Buffer *output = buffer_shifted(rows * h * size, shift);
  NVTETensor none = empty_tensor(), map_tensor = tensor(map->ptr, kNVTEInt32, SHAPE(slots));
  NVTETensor in = tensor(input->ptr, r.dtype, SHAPE(r.tokens, h));
  nvte_permute(in, tensor(output->ptr, r.dtype, SHAPE(rows, h)),
               tensor(buffer_from(sorted, slots * 4, 0)->ptr, kNVTEInt32, SHAPE(slots)), map_tensor,
               none, none, none, tokens, topk, cols, (int)r.out, NULL);
  if (!EXPECT_OK()) return;
  const int *ids = buffer_read(map);
  const unsigned char *y = buffer_read(output);
  for (size_t s = 0; s < slots && h > 0 && bad < 3; s++) {
    size_t t = s / r.topk, k = s % r.topk;
    bad += !CHECK(ids[k * r.tokens + t] == place[s], "map[%zu, %zu]: got %d, expected %d", k, t,
                  ids[k * r.tokens + t], place[s]);
    if (place[s] < 0) continue;
    bad += !CHECK(memcmp(y + (size_t)place[s] * h * size, (char *)x + t * h * size, h * size) == 0,
                  "row %d is not that of token %zu", place[s], t);
  }
  if (h == 0) return;

  // Unpermutes with and without probabilities.
  void *values = random_values(r.dtype, rows * h, -2, 2);
  Buffer *sources = buffer_from(values, rows * h * size, shift);
  NVTETensor from = tensor(sources->ptr, r.dtype, SHAPE(rows, h));
  NVTETensor probs =
      tensor(buffer_from(p, slots * 4, 4)->ptr, kNVTEFloat32, SHAPE(r.tokens, r.topk));
  for (int with = 0; with < 2; with++) {
    Buffer *sum = buffer_shifted(r.tokens * h * size, shift);
    nvte_unpermute(from, tensor(sum->ptr, r.dtype, SHAPE(r.tokens, h)), map_tensor,
                   with ? probs : none, tokens, topk, cols, NULL);
    if (!EXPECT_OK()) return;
    const void *got = buffer_read(sum);
    for (size_t i = 0; i < r.tokens * h && bad < 3; i++) {
      double want = 0, total = 0;
      for (size_t k = 0; k < r.topk; k++) {
        int row = place[i / h * r.topk + k];
        if (row < 0) continue;
        double term = get_value(r.dtype, values, (size_t)row * h + i % h);
        term *= with ? (double)p[i / h * r.topk + k] : 1;
        want += term, total += fabs(term);
      }
      bad += !CHECK(near(r.dtype, get_value(r.dtype, got, i), want, total),
                    "sum[%zu, %zu]: got %g, expected %g", i / h, i % h, get_value(r.dtype, got, i),
                    want);
    }
  }

  // Gradients.
  for (int with = 0; with < 2; with++) {
    Buffer *grad = buffer_shifted(rows * h * size, shift), *p_grad = buffer_shifted(slots * 4, 4);
    nvte_permute(in, tensor(grad->ptr, r.dtype, SHAPE(rows, h)), none, map_tensor,
                 with ? probs : none,
                 with ? tensor(p_grad->ptr, kNVTEFloat32, SHAPE(r.tokens, r.topk)) : none, from,
                 tokens, topk, cols, 0, NULL);
    if (!EXPECT_OK()) return;
    const void *got = buffer_read(grad);
    const float *p_got = buffer_read(p_grad);
    for (size_t s = 0; s < slots && bad < 3; s++) {
      double dot = 0, total = 0;
      for (size_t c = 0; c < h && bad < 3; c++) {
        double g = get_value(r.dtype, x, s / r.topk * h + c);
        if (place[s] < 0) continue;
        double f = get_value(r.dtype, values, (size_t)place[s] * h + c);
        double want = with ? g * (double)p[s] : g;
        double value = get_value(r.dtype, got, (size_t)place[s] * h + c);
        dot += g * f, total += fabs(g * f);
        bad +=
            !CHECK(near(r.dtype, value, want, 0),
                   "gradient of row %d, column %zu: got %g, expected %g", place[s], c, value, want);
      }
      if (!with) continue;
      bad += !CHECK(fabs((double)p_got[s] - dot) <= 2e-6 * total,
                    "prob_grad[%zu]: got %g, expected %g", s, (double)p_got[s], dot);
    }
    if (!with) CHECK(untouched(p_grad), "prob_grad was written without probabilities");
  }
}

static const int *g_keys;

static int by_key(const void *a, const void *b) {
  int i = *(const int *)a, j = *(const int *)b;
  uint32_t x = (uint32_t)g_keys[i], y = (uint32_t)g_keys[j];
  return x != y ? (x < y ? -1 : 1) : i < j ? -1 : i > j;
}

static void test_sort(size_t n, int range) {
  if (!case_begin("sort of %zu keys of %d", n, range)) return;
  int *keys = host_memory(n * 4), *values = host_memory(n * 4), *order = host_memory(n * 4);
  for (size_t i = 0; i < n; i++) {
    keys[i] = range ? (int)random_below((size_t)range) : (int)random_u64();
    if (i % 11 == 5) keys[i] = -1;
    values[i] = (int)random_u64();
    order[i] = (int)i;
  }
  g_keys = keys;
  qsort(order, n, sizeof *order, by_key);
  Buffer *in[] = {buffer_from(keys, n * 4, 0), buffer_from(values, n * 4, 0)};
  Buffer *out[] = {buffer(n * 4), buffer(n * 4)};
  size_t bytes = 0;
  nvte_device_radix_sort_pairs(NULL, &bytes, NULL, NULL, NULL, NULL, n);
  if (!EXPECT_OK()) return;
  CHECK(bytes > 0, "no bytes");
  Buffer *workspace = buffer(bytes);
  bytes = SIZE_MAX;
  nvte_device_radix_sort_pairs(workspace->ptr, &bytes, (int *)in[0]->ptr, (int *)out[0]->ptr,
                               (int *)in[1]->ptr, (int *)out[1]->ptr, n);
  if (!EXPECT_OK()) return;
  const int *got_keys = buffer_read(out[0]), *got_values = buffer_read(out[1]);
  for (size_t i = 0, bad = 0; i < n && bad < 3; i++) {
    bad += !CHECK(got_keys[i] == keys[order[i]] && got_values[i] == values[order[i]],
                  "place %zu: got %d, %d, expected %d, %d", i, got_keys[i], got_values[i],
                  keys[order[i]], values[order[i]]);
  }
}

// A map that names a row twice, one that does not exist, and a negative one, as the gradient of
// nvte_unpermute takes it: a row is that of one of its slots, and other rows stay.
static void test_wrong_map(void) {
  enum { TOKENS = 300, COLS = 40, ROWS = 4 };
  if (!case_begin("a map with a row twice")) return;
  float *values = host_memory(TOKENS * COLS * 4);
  int *map = host_memory(TOKENS * 4);
  for (int i = 0; i < TOKENS * COLS; i++) values[i] = (float)(i / COLS);
  for (int t = 0; t < TOKENS; t++) map[t] = t % 3 == 0 ? 1 : t % 3 == 1 ? ROWS + t : -t;
  Buffer *out = buffer(ROWS * COLS * 4), *forward = buffer(ROWS * COLS * 4);
  Buffer *ids = buffer_from(map, TOKENS * 4, 0);
  NVTETensor none = empty_tensor();
  nvte_permute(
      tensor(buffer_from(values, TOKENS * COLS * 4, 0)->ptr, kNVTEFloat32, SHAPE(TOKENS, COLS)),
      tensor(out->ptr, kNVTEFloat32, SHAPE(ROWS, COLS)), none,
      tensor(ids->ptr, kNVTEInt32, SHAPE(TOKENS)), none, none,
      tensor(forward->ptr, kNVTEFloat32, SHAPE(ROWS, COLS)), TOKENS, 1, COLS, ROWS, NULL);
  if (!EXPECT_OK()) return;
  const float *got = buffer_read(out);
  for (int c = 0; c < COLS; c++) {
    int token = (int)got[COLS + c];
    CHECK(token >= 0 && token < TOKENS && token % 3 == 0 && got[COLS + c] == (float)token,
          "column %d is %a", c, (double)got[COLS + c]);
  }
  for (int i = 0; i < ROWS * COLS; i++) {
    uint32_t bits = bits_of(got[i]);
    if (i / COLS != 1) CHECK(bits == 0xFFFFFFFFu, "element %d was written: 0x%08x", i, bits);
  }
}

static void test_wrong(void) {
  if (!case_begin("wrong arguments")) return;
  Buffer *x = buffer(4 * 8 * 4), *y = buffer(8 * 8 * 4), *ids = buffer(8 * 4),
         *sorted = buffer(8 * 4);
  NVTETensor none = empty_tensor(), in = tensor(x->ptr, kNVTEFloat32, SHAPE(4, 8));
  NVTETensor out = tensor(y->ptr, kNVTEFloat32, SHAPE(8, 8));
  NVTETensor map = tensor(ids->ptr, kNVTEInt32, SHAPE(8)),
             order = tensor(sorted->ptr, kNVTEInt32, SHAPE(8));
  nvte_permute(in, out, order, map, none, none, none, -1, 2, 8, 8, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_permute: num_rows: expected 0 or more, got -1");
  nvte_permute(in, out, order, map, none, none, none, 4, 2, 8, -8, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_permute: num_out_tokens: ");
  nvte_permute(in, out, order, map, none, none, none, 4, 2, 9, 8, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_permute: input.shape: expected 36 or more elements");
  nvte_permute(in, in, order, map, none, none, none, 4, 2, 8, 8, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_permute: output.shape: ");
  nvte_permute(in, out, order, in, none, none, none, 4, 2, 8, 8, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_permute: row_id_map.dtype: expected Int32");
  nvte_permute(in, out, none, map, none, none, none, 4, 2, 8, 8, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_permute: sorted_row_id");
  nvte_permute(map, out, order, map, none, none, none, 4, 2, 8, 8, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_permute: input.dtype: ");
  nvte_unpermute(out, in, none, none, 4, 2, 8, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_unpermute: row_id_map");
  nvte_unpermute(out, tensor(x->ptr + 2, kNVTEFloat32, SHAPE(4, 8)), map, none, 4, 2, 8, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_unpermute: output.data: ", "aligned");
  nvte_device_radix_sort_pairs(NULL, NULL, NULL, NULL, NULL, NULL, 8);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_device_radix_sort_pairs: temp_storage_bytes: ");
  size_t bytes = 64;
  nvte_device_radix_sort_pairs(y->ptr, &bytes, NULL, (int *)ids->ptr, (int *)sorted->ptr,
                               (int *)ids->ptr, 8);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_device_radix_sort_pairs: keys_in: ", "null");
  CHECK(untouched(x) && untouched(y) && untouched(ids), "outputs were written");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  const size_t shapes[][5] = {
      {1, 1, 8, 1, 1},       {5, 2, 64, 4, 10},  {100, 8, 128, 16, 800},   {100, 8, 130, 16, 333},
      {33, 5, 4096, 7, 165}, {64, 1, 72, 8, 50}, {16, 130, 24, 200, 2080}, {40, 3, 7168, 8, 120},
      {7, 2, 1, 3, 14},      {9, 2, 33, 3, 0},   {0, 2, 16, 3, 0},         {6, 2, 0, 3, 12},
      {20, 2, 520, 1, 999}};
  for (size_t i = 0; i < COUNT(shapes); i++) {
    for (size_t d = 0; d < 3; d++) {
      for (size_t shift = 0; shift < 2; shift++) {
        const size_t *s = shapes[i];
        check((Rows){kHighPrecision[d], s[0], s[1], s[2], s[3], s[4], shift});
      }
    }
  }
  test_sort(0, 8);
  test_sort(1, 8);
  test_sort(1000, 16);
  test_sort(100000, 256);
  test_sort(50000, 0);
  test_wrong_map();
  test_wrong();
  return test_end();
}
