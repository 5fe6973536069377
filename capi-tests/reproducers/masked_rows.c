// Queries that may see no key: attention under a causal mask at the bottom right with more queries
// than keys, and a softmax whose mask hides a whole row. Their sums have no terms, so that the
// exact result is 0; a softmax that divides by such a sum gives NaN. The first argument may be the
// path of another library.
#include "library.h"

static size_t nans(NVTEDType dtype, const void *data, size_t n) {
  size_t found = 0;
  for (size_t i = 0; i < n; i++) found += isnan(get_value(dtype, data, i));
  return found;
}

static double most(NVTEDType dtype, const void *data, size_t n) {
  double top = 0;
  for (size_t i = 0; i < n; i++) top = fmax(top, fabs(get_value(dtype, data, i)));
  return top;
}

static void attention(const Library *list, size_t count) {
  enum { QUERIES = 48, KEYS = 32, HEADS = 2, DIM = 64, HIDDEN_ROWS = QUERIES - KEYS };
  Run x;
  memset(&x, 0, sizeof x);
  g_text = "causal at the bottom right, more queries than keys";
  x.p = (Problem){.b = 1,
                  .hq = HEADS,
                  .hkv = HEADS,
                  .sq = QUERIES,
                  .skv = KEYS,
                  .dqk = DIM,
                  .dv = DIM,
                  .scale = 0.125,
                  .left = -1,
                  .right = 0,
                  .bottom_right = true,
                  .lq = {QUERIES},
                  .lk = {KEYS}};
  x.c = (Config){.layout = NVTE_BSHD_BSHD_BSHD,
                 .dqkv_layout = NVTE_BSHD_BSHD_BSHD,
                 .mask = NVTE_CAUSAL_BOTTOM_RIGHT_MASK,
                 .o_order = BSHD,
                 .do_order = BSHD,
                 .dtype = kNVTEBFloat16,
                 .o_dtype = kNVTEBFloat16,
                 .do_dtype = kNVTEBFloat16,
                 .dqkv_dtype = kNVTEBFloat16,
                 .left = -1,
                 .right = 0,
                 .bottom_right = true,
                 .training = true};
  build_forward(&x);
  reference_forward(&x.p);
  nvte_tensor_pack_create(&x.pack);
  x.stats_data = buffer(HEADS * QUERIES * sizeof(float));
  build_backward(&x);
  reference_backward(&x.p);
  const size_t hidden = HIDDEN_ROWS * HEADS * DIM;
  printf("attention: %d of %d queries see no key\n", HIDDEN_ROWS, QUERIES);
  printf("  exact: 0 NaN, largest output of these 0, largest gradient 0\n");
  for (size_t n = 0; n < count; n++) {
    attention_by(&list[n], &x, true);
    const void *o = values_of(x.o.buffer), *dq = values_of(x.dq.buffer),
               *dk = values_of(x.dk.buffer);
    const size_t wrong = nans(kNVTEBFloat16, o, x.o.count) + nans(kNVTEBFloat16, dq, x.dq.count) +
                         nans(kNVTEBFloat16, dk, x.dk.count);
    const double out = most(kNVTEBFloat16, o, hidden), grad = most(kNVTEBFloat16, dq, hidden);
    printf("  %s: %zu NaN, largest output of these %g, largest gradient %g\n", list[n].name, wrong,
           out, grad);
    if (n > 0) continue;
    EXPECT_OK();
    CHECK(wrong == 0 && out == 0 && grad == 0, "%zu NaN, %g, %g", wrong, out, grad);
  }
}

static void softmax(const Library *list, size_t count) {
  enum { ROWS = 64, COLS = 128, HIDDEN_ROW = 5 };
  const NVTEShape shape = SHAPE(1, 1, ROWS, COLS);
  unsigned char *mask = host_memory(ROWS * COLS);
  memset(mask + HIDDEN_ROW * COLS, 1, COLS);
  Buffer *m = buffer_from(mask, ROWS * COLS, 0), *y = buffer(ROWS * COLS * 2);
  Buffer *x = buffer_from(random_values(kNVTEBFloat16, ROWS * COLS, -4, 4), ROWS * COLS * 2, 0);
  printf("softmax: the mask hides row %d of %d\n  exact: 0 NaN, largest of the row 0\n", HIDDEN_ROW,
         ROWS);
  for (size_t n = 0; n < count; n++) {
    const Library *l = &list[n];
    l->nvte_scaled_masked_softmax_forward(tensor_in(l, x->ptr, kNVTEBFloat16, shape),
                                          tensor_in(l, m->ptr, kNVTEByte, shape),
                                          tensor_in(l, y->ptr, kNVTEBFloat16, shape), 1, NULL);
    const unsigned char *got = values_of(y);
    const size_t wrong = nans(kNVTEBFloat16, got, ROWS * COLS);
    const double top = most(kNVTEBFloat16, got + HIDDEN_ROW * COLS * 2, COLS);
    printf("  %s: %zu NaN, largest of the row %g\n", l->name, wrong, top);
    if (n == 0 && EXPECT_OK()) CHECK(wrong == 0 && top == 0, "%zu NaN, %g", wrong, top);
  }
}

int main(int argc, char **argv) {
  Library list[2];
  begin(argv);
  const size_t count = libraries(argc, argv, list);
  softmax(list, count);
  // Another library may end the process here.
  fflush(stdout);
  attention(list, count);
  return test_end();
}
