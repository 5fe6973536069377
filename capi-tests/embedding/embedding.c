// Rows of tables for tokens and the gradients of the tables, against sums in double.
#include "nvte/embedding.h"

#include "support.h"

typedef struct Problem {
  NVTEDType weight, output, tokens;
  size_t count, rows, cols;
  size_t positions;      // Rows of the position table, 0 for none.
  size_t sequence;       // 0: positions are those of all rows.
  bool given_positions;  // Positions are a tensor.
  size_t start, size;    // Of a divided vocabulary.
  double scale;
  bool few, wrong;  // Few different tokens; tokens that are not in the vocabulary.
  size_t shift;
} Problem;

static NVTETensor index_tensor(NVTEDType dtype, const long long *values, size_t n) {
  size_t size = dtype_size(dtype);
  char *host = host_memory(n * size);
  for (size_t i = 0; i < n; i++) memcpy(host + i * size, values + i, size);
  return tensor(buffer_from(host, n * size, 0)->ptr, dtype, SHAPE(n));
}

static bool begin(const char *what, const Problem *p) {
  return case_begin(
      "%s %s %s %s %zu of %zux%zu, positions %zu by %zu%s, from %zu of %zu%s%s %g %zu", what,
      dtype_name(p->weight), dtype_name(p->output), dtype_name(p->tokens), p->count, p->rows,
      p->cols, p->positions, p->sequence, p->given_positions ? " given" : "", p->start, p->size,
      p->few ? " few" : "", p->wrong ? " wrong" : "", p->scale, p->shift);
}

// Tokens, and the positions of all rows.
static void draw(const Problem *p, long long *tokens, long long *positions) {
  size_t total = p->size ? p->size : p->rows;
  for (size_t t = 0; t < p->count; t++) {
    tokens[t] = (long long)random_below(p->few && total > 3 ? 3 : total);
    if (p->wrong && random_below(4) == 0) {
      tokens[t] = random_below(2) ? -1 - (long long)t : (long long)(total + t);
    }
    positions[t] = (long long)(p->sequence ? t % p->sequence : t);
    if (p->given_positions) {
      positions[t] = (long long)random_below(p->positions + (p->wrong ? 2 : 0));
    }
  }
}

// The row of a table of `rows` rows from `start` on, -1 if it has none.
static long long row_of(long long index, size_t start, size_t rows) {
  long long row = index - (long long)start;
  return row >= 0 && row < (long long)rows ? row : -1;
}

static void check_forward(const Problem *p) {
  if (!begin("forward", p)) return;
  size_t total = p->size ? p->size : p->rows, size = dtype_size(p->weight), n = p->count * p->cols;
  long long *tokens = host_memory(p->count * sizeof *tokens);
  long long *positions = host_memory(p->count * sizeof *positions);
  draw(p, tokens, positions);
  void *weight = random_values(p->weight, p->rows * p->cols, -2, 2);
  void *table = random_values(p->weight, p->positions * p->cols, -2, 2);
  Buffer *w = buffer_from(weight, p->rows * p->cols * size, p->shift * size);
  Buffer *pw = buffer_from(table, p->positions * p->cols * size, 0);
  Buffer *y = buffer_shifted(n * dtype_size(p->output), p->shift * dtype_size(p->output));
  int mistakes = 7;
  Buffer *wrong = buffer_from(&mistakes, sizeof mistakes, 0);
  nvtex_embedding_forward(
      index_tensor(p->tokens, tokens, p->count), tensor(w->ptr, p->weight, SHAPE(p->rows, p->cols)),
      p->given_positions ? index_tensor(p->tokens, positions, p->count) : NULL,
      p->positions ? tensor(pw->ptr, p->weight, SHAPE(p->positions, p->cols)) : NULL,
      tensor(y->ptr, p->output, SHAPE(p->count, p->cols)),
      p->wrong ? tensor(wrong->ptr, kNVTEInt32, SHAPE(1)) : NULL, (float)p->scale, p->sequence,
      p->start, p->size, NULL);
  if (!EXPECT_OK()) return;
  const void *got = buffer_read(y);
  size_t bad = 0;
  for (size_t t = 0; t < p->count; t++) {
    long long row = row_of(tokens[t], p->start, p->rows);
    long long position = p->positions ? row_of(positions[t], 0, p->positions) : -1;
    if (p->wrong) {
      mistakes += tokens[t] < 0 || tokens[t] >= (long long)total;
      mistakes += p->positions && position < 0;
    }
    for (size_t c = 0; c < p->cols && bad < 3; c++) {
      float x = 0;
      if (row >= 0) {
        x = (float)(p->scale * get_value(p->weight, weight, (size_t)row * p->cols + c));
      }
      if (position >= 0) {
        x = (float)((double)x + get_value(p->weight, table, (size_t)position * p->cols + c));
      }
      uint32_t want = encode_bits(p->output, (double)x);
      bad += !CHECK(get_bits(p->output, got, t * p->cols + c) == want,
                    "row %zu, column %zu: got %g, expected %g", t, c,
                    get_value(p->output, got, t * p->cols + c), (double)x);
    }
  }
  if (p->wrong) {
    int counted;
    download(&counted, wrong->ptr, sizeof counted);
    CHECK_EQ(counted, mistakes);
  }
}

// One of the tables: its gradient against a sum in double.
static void check_table(const char *what, const Problem *p, NVTEDType dtype, Buffer *got,
                        const void *old, const long long *indices, size_t rows, size_t start,
                        double scale, const void *dy) {
  size_t n = rows * p->cols, bad = 0;
  double *sum = host_memory(n * sizeof *sum), *all = host_memory(n * sizeof *all);
  for (size_t i = 0; i < n && old; i++) sum[i] = get_value(dtype, old, i);
  for (size_t t = 0; t < p->count; t++) {
    long long row = row_of(indices[t], start, rows);
    for (size_t c = 0; c < p->cols && row >= 0; c++) {
      double value = scale * get_value(p->output, dy, t * p->cols + c);
      sum[(size_t)row * p->cols + c] += value;
      all[(size_t)row * p->cols + c] += fabs(value);
    }
  }
  const void *values = buffer_read(got);
  double part = dtype == kNVTEFloat32 ? 1e-7 : dtype == kNVTEFloat16 ? 0x1p-11 : 0x1p-8;
  for (size_t i = 0; i < n && bad < 3; i++) {
    double value = get_value(dtype, values, i);
    bool near = fabs(value - sum[i]) <= 1.01 * part * fabs(sum[i]) + 3e-6 * all[i] + 1e-7;
    bad += !CHECK(near, "%s row %zu, column %zu: got %g, expected %g", what, i / p->cols,
                  i % p->cols, value, sum[i]);
  }
}

static void check_backward(const Problem *p, bool accumulate) {
  if (!begin(accumulate ? "backward, accumulates" : "backward", p)) return;
  size_t size = dtype_size(p->weight), n = p->count * p->cols;
  long long *tokens = host_memory(p->count * sizeof *tokens);
  long long *positions = host_memory(p->count * sizeof *positions);
  draw(p, tokens, positions);
  void *dy = random_values(p->output, n, -1, 1);
  void *old = random_values(p->weight, p->rows * p->cols, -1, 1);
  void *old_positions = random_values(p->weight, p->positions * p->cols, -1, 1);
  Buffer *dw = buffer_from(old, p->rows * p->cols * size, p->shift * size);
  Buffer *dp = buffer_from(old_positions, p->positions * p->cols * size, 0);
  Buffer *grad = buffer_from(dy, n * dtype_size(p->output), p->shift * dtype_size(p->output));
  NVTETensor token_tensor = index_tensor(p->tokens, tokens, p->count);
  NVTETensor places = p->given_positions ? index_tensor(p->tokens, positions, p->count) : NULL;
  NVTETensor y = tensor(grad->ptr, p->output, SHAPE(p->count, p->cols));
  NVTETensor w = tensor(dw->ptr, p->weight, SHAPE(p->rows, p->cols));
  NVTETensor pw = p->positions ? tensor(dp->ptr, p->weight, SHAPE(p->positions, p->cols)) : NULL;
  NVTETensor workspace = empty_tensor();
  for (int call = 0; call < 2; call++) {
    nvtex_embedding_backward(token_tensor, places, y, w, pw, accumulate, (float)p->scale,
                             p->sequence, p->start, workspace, NULL);
    if (!EXPECT_OK()) return;
    size_t bytes = numel(nvte_tensor_shape(workspace));
    workspace = tensor(buffer_shifted(bytes, 32)->ptr, kNVTEByte, SHAPE(bytes));
  }
  check_table("weight", p, p->weight, dw, accumulate ? old : NULL, tokens, p->rows, p->start,
              p->scale, dy);
  if (p->positions) {
    check_table("position", p, p->weight, dp, accumulate ? old_positions : NULL, positions,
                p->positions, 0, 1, dy);
  }
}

static void test_wrong(void) {
  if (!case_begin("wrong arguments")) return;
  Buffer *x = buffer(4 * 8 * 4), *t = buffer(3 * 8), *o = buffer(3 * 8 * 4);
  NVTETensor weight = tensor(x->ptr, kNVTEFloat32, SHAPE(4, 8));
  NVTETensor tokens = tensor(t->ptr, kNVTEInt64, SHAPE(3));
  NVTETensor out = tensor(o->ptr, kNVTEFloat32, SHAPE(3, 8));
#define FORWARD(a, b, c, d, start, size) \
  nvtex_embedding_forward(a, b, NULL, c, d, NULL, 1, 0, start, size, NULL)
  FORWARD(out, weight, NULL, out, 0, 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_embedding_forward: tokens.dtype: ", "Float32");
  FORWARD(tensor(t->ptr, kNVTEInt64, SHAPE(2)), weight, NULL, out, 0, 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "tokens.shape: expected 3 elements");
  FORWARD(tokens, tokens, NULL, out, 0, 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "weight.dtype: ", "Int64");
  FORWARD(tokens, weight, NULL, tensor(o->ptr, kNVTEFloat32, SHAPE(3, 7)), 0, 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "output.shape: expected [..., 8]");
  FORWARD(tokens, weight, tensor(x->ptr, kNVTEBFloat16, SHAPE(4, 8)), out, 0, 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "position_weight.dtype: expected Float32, got BFloat16");
  FORWARD(tokens, weight, NULL, out, 3, 6);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "vocabulary_size: expected at least");
  FORWARD(tokens, weight, NULL, tensor(x->ptr, kNVTEFloat32, SHAPE(3, 8)), 0, 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "output.data: expected memory apart from weight.data");
  FORWARD(tokens, weight, NULL, NULL, 0, 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_embedding_forward: output");
  nvtex_embedding_backward(tokens, NULL, out, tensor(x->ptr, kNVTEFloat32, SHAPE(4, 7)), NULL,
                           false, 1, 0, 0, empty_tensor(), NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_embedding_backward: grad_weight.shape: ");
  nvtex_embedding_backward(tokens, NULL, out, weight, NULL, false, 1, 0, 0,
                           tensor(t->ptr, kNVTEByte, SHAPE(24)), NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "workspace.shape: ", "24 bytes");
  CHECK(untouched(x) && untouched(o), "a call that failed wrote");
#undef FORWARD
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  const size_t sizes[][3] = {{1, 1, 1},     {5, 3, 7},      {64, 10, 16},   {33, 100, 24},
                             {300, 7, 129}, {1000, 50, 64}, {97, 300, 1032}};
  for (size_t i = 0; i < COUNT(sizes); i++) {
    for (size_t d = 0; d < 9; d++) {
      Problem p = {kHighPrecision[d % 3],
                   kHighPrecision[d / 3],
                   d % 2 ? kNVTEInt32 : kNVTEInt64,
                   sizes[i][0],
                   sizes[i][1],
                   sizes[i][2],
                   0,
                   0,
                   false,
                   0,
                   0,
                   1,
                   false,
                   false,
                   0};
      check_forward(&p);
      check_backward(&p, false);
      p.positions = p.count, p.scale = 0.75, p.few = true;
      check_forward(&p);
      check_backward(&p, true);
      p.positions = 9, p.sequence = 4, p.wrong = true, p.shift = 1;
      check_forward(&p);
      check_backward(&p, d % 2 == 0);
      p.given_positions = true, p.few = false, p.start = 2, p.size = p.rows + 5;
      check_forward(&p);
      check_backward(&p, d % 2 == 1);
    }
  }
  Problem none = {kNVTEBFloat16, kNVTEBFloat16, kNVTEInt32, 0, 4, 8, 3, 0, false, 0, 0, 1,
                  false,         false,         0};
  check_forward(&none);
  check_backward(&none, false);
  check_backward(&none, true);
  test_wrong();
  return test_end();
}
