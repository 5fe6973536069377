// Calls exactly as the Python front ends of Transformer Engine make them: with fields that do not
// apply, shapes that nobody reads, arrays of the largest batch and workspaces of another dtype.
#define _POSIX_C_SOURCE 200809L
#include "fused_attn/attention_common.h"

static void tiles_flag(NVTETensor t) {
  const uint8_t on = 1;
  nvte_set_tensor_param_v2(t, kNVTEWithGEMMSwizzledScales, &on, sizeof on);
}

static size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
static size_t up_to(size_t a, size_t b) { return ceil_div(a, b) * b; }

// ---- FP8 blocks whose tensors have the flag of swizzled scales

// A cast of BF16 to E4M3 in blocks with scales that are powers of two.
typedef struct Blocks {
  bool square;
  size_t rows, cols, pitch[2];
  const void *x;
  float *scale[2];  // Where their inverses are.
  Buffer *data[2], *inv[2];
  NVTETensor in, out;
} Blocks;

// Where the inverse of an element's scale is.
static size_t inv_place(const Blocks *b, int col, size_t r, size_t c) {
  size_t line = col ? c : r, block = (col ? r : c) / 128;
  return b->square ? line / 128 * b->pitch[col] + block : block * b->pitch[col] + line;
}

static Blocks blocks_of(bool square, size_t rows, size_t cols) {
  Blocks b = {.square = square, .rows = rows, .cols = cols};
  b.x = random_values(kNVTEBFloat16, rows * cols, -3, 3);
  b.in = tensor(buffer_from(b.x, rows * cols * 2, 0)->ptr, kNVTEBFloat16, SHAPE(rows, cols));
  b.out = tensor_of_mode(square ? NVTE_BLOCK_SCALING_2D : NVTE_BLOCK_SCALING_1D);
  for (int col = 0; col < 2; col++) {
    size_t lines = col ? cols : rows, length = ceil_div(col ? rows : cols, 128);
    NVTEShape shape =
        square ? SHAPE(ceil_div(lines, 128), up_to(length, 4)) : SHAPE(length, up_to(lines, 4));
    b.pitch[col] = shape.data[1];
    b.data[col] = buffer(rows * cols);
    b.inv[col] = buffer(numel(shape) * 4);
    set_param(b.out, col ? kNVTEColumnwiseData : kNVTERowwiseData, b.data[col]->ptr,
              kNVTEFloat8E4M3, col ? SHAPE(cols, rows) : SHAPE(rows, cols));
    set_param(b.out, col ? kNVTEColumnwiseScaleInv : kNVTERowwiseScaleInv, b.inv[col]->ptr,
              kNVTEFloat32, shape);
    b.scale[col] = host_memory(numel(shape) * 4);
    for (size_t i = 0; i < rows * cols; i++) {
      float *amax = &b.scale[col][inv_place(&b, col, i / cols, i % cols)];
      *amax = fmaxf(*amax, (float)fabs(get_value(kNVTEBFloat16, b.x, i)));
    }
    for (size_t i = 0; i < numel(shape); i++) {
      b.scale[col][i] = float_of(bits_of(448.0f / b.scale[col][i]) & 0xFF800000u);
    }
  }
  tiles_flag(b.out);
  return b;
}

static NVTEQuantizationConfig powers_of_two(void) {
  NVTEQuantizationConfig config = quant_config();
  const uint8_t on = 1;
  set_quant(config, kNVTEQuantizationConfigForcePow2Scales, &on, sizeof on);
  return config;
}

static double block_value(const Blocks *b, int col, size_t r, size_t c) {
  const float scale = b->scale[col][inv_place(b, col, r, c)];
  const double x = get_value(kNVTEBFloat16, b->x, r * b->cols + c);
  return round_to(kNVTEFloat8E4M3, (float)(x * (double)scale)) / (double)scale;
}

static void blocks_check(const Blocks *b) {
  for (int col = 0; col < 2; col++) {
    const uint8_t *data = buffer_read(b->data[col]);
    const float *inv = buffer_read(b->inv[col]);
    size_t bad = 0;
    for (size_t r = 0; r < b->rows && bad < 3; r++) {
      for (size_t c = 0; c < b->cols && bad < 3; c++) {
        const size_t place = inv_place(b, col, r, c);
        const float scale = b->scale[col][place], got = inv[place];
        const double x = get_value(kNVTEBFloat16, b->x, r * b->cols + c);
        const uint32_t want = encode_bits(kNVTEFloat8E4M3, (float)(x * (double)scale));
        const uint8_t code = data[col ? c * b->rows + r : r * b->cols + c];
        bad += !CHECK(got == 1 / scale, "inverse scale of %zu, %zu, direction %d: %g for %g", r, c,
                      col, (double)got, 1 / (double)scale);
        bad += !CHECK(code == want, "%zu, %zu, direction %d: 0x%x for 0x%x", r, c, col, code, want);
      }
    }
  }
}

static void test_flagged_blocks(void) {
  for (int square = 0; square < 2; square++) {
    if (case_begin("cast to flagged blocks, square %d", square)) {
      Blocks b = blocks_of(square, 200, 272);
      nvte_quantize_v2(b.in, b.out, powers_of_two(), NULL);
      if (!EXPECT_OK()) continue;
      blocks_check(&b);
      Buffer *back = buffer(200 * 272 * 4);
      nvte_dequantize(b.out, tensor(back->ptr, kNVTEFloat32, SHAPE(200, 272)), NULL);
      if (!EXPECT_OK()) continue;
      const float *got = buffer_read(back);
      for (size_t i = 0; i < 200 * 272; i += 7) {
        const double want = block_value(&b, 0, i / 272, i % 272);
        if (!CHECK(got[i] == (float)want, "back: %g for %g", (double)got[i], want)) break;
      }
    }
    if (case_begin("casts of several to flagged blocks, square %d", square)) {
      Blocks b[2] = {blocks_of(square, 128, 144), blocks_of(square, 33, 256)};
      const NVTETensor in[] = {b[0].in, b[1].in};
      NVTETensor out[] = {b[0].out, b[1].out};
      nvte_multi_tensor_quantize(in, out, powers_of_two(), 2, NULL);
      if (!EXPECT_OK()) continue;
      blocks_check(&b[0]);
      blocks_check(&b[1]);
    }
    // Members of 128 rows lie as the blocks of one tensor do.
    if (case_begin("cast of a group to flagged blocks, square %d", square)) {
      Blocks b = blocks_of(square, 128, 256);
      NVTEGroupedTensor in =
          nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 1, SHAPE(128, 256));
      NVTEGroupedTensor out = nvte_create_grouped_tensor(
          square ? NVTE_BLOCK_SCALING_2D : NVTE_BLOCK_SCALING_1D, 1, SHAPE(128, 256));
      NVTEBasicTensor x = basic(nvte_tensor_data(b.in), kNVTEBFloat16, SHAPE(128, 256));
      nvte_set_grouped_tensor_param(in, kNVTEGroupedRowwiseData, &x, sizeof x);
      for (int col = 0; col < 2; col++) {
        NVTEBasicTensor data = basic(b.data[col]->ptr, kNVTEFloat8E4M3, SHAPE(128 * 256));
        NVTEBasicTensor inv = basic(b.inv[col]->ptr, kNVTEFloat32, SHAPE(b.inv[col]->bytes / 4));
        nvte_set_grouped_tensor_param(
            out, col ? kNVTEGroupedColumnwiseData : kNVTEGroupedRowwiseData, &data, sizeof data);
        nvte_set_grouped_tensor_param(
            out, col ? kNVTEGroupedColumnwiseScaleInv : kNVTEGroupedRowwiseScaleInv, &inv,
            sizeof inv);
      }
      const uint8_t on = 1;
      nvte_set_grouped_tensor_param(out, kNVTEGroupedWithGEMMSwizzledScales, &on, sizeof on);
      nvte_group_quantize(in, out, powers_of_two(), NULL);
      if (EXPECT_OK()) blocks_check(&b);
      nvte_destroy_grouped_tensor(in);
      nvte_destroy_grouped_tensor(out);
    }
  }
}

// The product of flagged tensors reads their scales line by line.
static void test_flagged_product(void) {
  enum { M = 48, N = 144, K = 272 };
  if (!case_begin("product of flagged blocks")) return;
  Blocks w = blocks_of(true, N, K), x = blocks_of(false, M, K);
  nvte_quantize_v2(w.in, w.out, powers_of_two(), NULL);
  nvte_quantize_v2(x.in, x.out, powers_of_two(), NULL);
  Buffer *out = buffer(M * N * 4);
  NVTETensor d = tensor(out->ptr, kNVTEFloat32, SHAPE(M, N)),
             none = tensor(NULL, kNVTEBFloat16, SHAPE(0));
  const size_t room = (32 << 20) + 1024;
  NVTETensor workspace = tensor(buffer(room)->ptr, kNVTEByte, SHAPE(room));
  nvte_cublas_gemm(w.out, x.out, d, none, none, true, false, false, workspace, false, true, 0,
                   NULL);
  if (!EXPECT_OK()) return;
  double *a = doubles(N * K), *b = doubles(M * K);
  for (size_t i = 0; i < N * K; i++) a[i] = block_value(&w, 0, i / K, i % K);
  for (size_t i = 0; i < M * K; i++) b[i] = block_value(&x, 0, i / K, i % K);
  const float *got = buffer_read(out);
  for (size_t i = 0; i < M * N; i++) {
    const double want = dot(b + i / N * K, a + i % N * K, K);
    // The tensor cores keep 14 bits of what they add.
    double magnitudes = 0;
    for (size_t l = 0; l < K; l++) magnitudes += fabs(b[i / N * K + l] * a[i % N * K + l]);
    if (!CHECK(fabs((double)got[i] - want) <= 3e-4 * magnitudes, "[%zu, %zu]: %g for %g", i / N,
               i % N, (double)got[i], want)) {
      break;
    }
  }
}

// ---- Column-wise data that are declared in the shape of the row-wise ones

// An output of one scale in both directions, as JAX declares it: scales of any rank with one
// element.
typedef struct Both {
  Buffer *row, *col, *amax, *inv;
  NVTETensor out;
} Both;

static Both both_of(size_t rows, size_t cols, float scale) {
  Both b = {buffer(rows * cols), buffer(rows * cols), buffer_float(0.125f), buffer(4),
            empty_tensor()};
  set_param(b.out, kNVTERowwiseData, b.row->ptr, kNVTEFloat8E4M3, SHAPE(rows, cols));
  set_param(b.out, kNVTEColumnwiseData, b.col->ptr, kNVTEFloat8E4M3, SHAPE(rows, cols));
  set_param(b.out, kNVTEScale, buffer_float(scale)->ptr, kNVTEFloat32, SHAPE(1));
  set_param(b.out, kNVTERowwiseScaleInv, b.inv->ptr, kNVTEFloat32, SHAPE(1, 1));
  set_param(b.out, kNVTEColumnwiseScaleInv, b.inv->ptr, kNVTEFloat32, SHAPE(1, 1));
  set_param(b.out, kNVTEAmax, b.amax->ptr, kNVTEFloat32, SHAPE(1));
  return b;
}

// Each element is that of one of two roundings of `want`, which is computed in double; both
// directions agree.
static void both_check(const Both *b, size_t rows, size_t cols, float scale, const double *want,
                       double error) {
  const uint8_t *row = buffer_read(b->row), *col = buffer_read(b->col);
  double amax = 0.125;
  for (size_t i = 0, bad = 0; i < rows * cols && bad < 3; i++) {
    const double x = want[i] * (double)scale, off = fabs(x) * error + error;
    const double low = round_to(kNVTEFloat8E4M3, x - off),
                 high = round_to(kNVTEFloat8E4M3, x + off);
    const double got = decode_bits(kNVTEFloat8E4M3, row[i]);
    bad += !CHECK(got >= low && got <= high, "[%zu]: %g for %g", i, got, x);
    bad += !CHECK(col[i % cols * rows + i / cols] == row[i], "column-wise [%zu] differs", i);
    amax = fmax(amax, fabs(want[i]));
  }
  CHECK(fabs((double)read_float(b->amax) - amax) <= amax * 1e-5, "amax %g for %g",
        (double)read_float(b->amax), amax);
  CHECK_FLOAT(read_float(b->inv), 1 / scale);
}

static void test_declared_columns(void) {
  enum { ROWS = 40, COLS = 96 };
  const float scale = 16;
  NVTEShape shape = SHAPE(ROWS, COLS), row = SHAPE(COLS);
  if (case_begin("columns declared as rows, cast with sums")) {
    const void *x = random_values(kNVTEBFloat16, ROWS * COLS, -2, 2);
    double *want = doubles(ROWS * COLS), sums[COLS] = {0};
    for (size_t i = 0; i < ROWS * COLS; i++) {
      want[i] = get_value(kNVTEBFloat16, x, i);
      sums[i % COLS] += want[i];
    }
    Both b = both_of(ROWS, COLS, scale);
    Buffer *dbias = buffer(COLS * 2);
    NVTETensor in = tensor(buffer_from(x, ROWS * COLS * 2, 0)->ptr, kNVTEBFloat16, shape);
    NVTETensor db = tensor(dbias->ptr, kNVTEBFloat16, row), work = empty_tensor();
    nvte_quantize_dbias(in, b.out, db, work, NULL);
    const size_t n = numel(nvte_tensor_shape(work));
    set_param(work, kNVTERowwiseData, buffer(n * 4)->ptr, kNVTEFloat32, SHAPE(n));
    nvte_quantize_dbias(in, b.out, db, work, NULL);
    if (EXPECT_OK()) both_check(&b, ROWS, COLS, scale, want, 0);
    const void *got = buffer_read(dbias);
    for (size_t c = 0; c < COLS; c++) {
      const double sum = get_value(kNVTEBFloat16, got, c);
      CHECK(fabs(sum - sums[c]) <= 0.01 * (1 + fabs(sums[c])), "dbias[%zu]: %g for %g", c, sum,
            sums[c]);
    }
  }
  if (case_begin("columns declared as rows, norm")) {
    const void *x = random_values(kNVTEBFloat16, ROWS * COLS, -2, 2);
    const void *g = random_values(kNVTEBFloat16, COLS, 0.5, 2);
    double *want = doubles(ROWS * COLS);
    for (size_t r = 0; r < ROWS; r++) {
      double squares = 0;
      for (size_t c = 0; c < COLS; c++)
        squares += pow(get_value(kNVTEBFloat16, x, r * COLS + c), 2);
      for (size_t c = 0; c < COLS; c++) {
        want[r * COLS + c] = get_value(kNVTEBFloat16, x, r * COLS + c) *
                             get_value(kNVTEBFloat16, g, c) / sqrt(squares / COLS + 1e-5);
      }
    }
    Both b = both_of(ROWS, COLS, scale);
    NVTETensor in = tensor(buffer_from(x, ROWS * COLS * 2, 0)->ptr, kNVTEBFloat16, shape);
    NVTETensor gamma = tensor(buffer_from(g, COLS * 2, 0)->ptr, kNVTEBFloat16, row);
    NVTETensor rsigma = tensor(buffer(ROWS * 4)->ptr, kNVTEFloat32, SHAPE(ROWS));
    NVTETensor work = empty_tensor();
    nvte_rmsnorm_fwd(in, gamma, 1e-5f, b.out, rsigma, work, 132, false, NULL);
    const size_t n = numel(nvte_tensor_shape(work));
    CHECK(n >= 1, "a workspace of nothing");
    set_param(work, kNVTERowwiseData, buffer(n)->ptr, kNVTEFloat8E8M0, SHAPE(n));
    nvte_rmsnorm_fwd(in, gamma, 1e-5f, b.out, rsigma, work, 132, false, NULL);
    if (EXPECT_OK()) both_check(&b, ROWS, COLS, scale, want, 1e-5);
  }
  for (int square = 0; square < 2; square++) {
    if (!case_begin("columns declared as rows, blocks, square %d", square)) continue;
    Blocks b = blocks_of(square, 130, 144);
    set_param(b.out, kNVTEColumnwiseData, b.data[1]->ptr, kNVTEFloat8E4M3, SHAPE(130, 144));
    nvte_quantize_v2(b.in, b.out, powers_of_two(), NULL);
    if (EXPECT_OK()) blocks_check(&b);
  }
}

// ---- Workspaces

// JAX asks with addresses of its stack as data, without a stream, and gives memory of bytes as
// Float8E8M0 in one dimension.
static void test_workspaces(void) {
  enum { ROWS = 24, COLS = 64 };
  char stack[16];
  if (case_begin("layer norm with a workspace of E8M0")) {
    float x[ROWS * COLS], ones[COLS], beta[COLS];
    for (int i = 0; i < ROWS * COLS; i++) x[i] = (i + i / COLS) % 2 ? 1 : -1;
    for (int i = 0; i < COLS; i++) ones[i] = 1, beta[i] = (float)i;
    const float rsigma = (float)(1 / sqrt(1 + 1e-3));
    NVTEShape shape = SHAPE(ROWS, COLS), row = SHAPE(COLS), column = SHAPE(ROWS);
    Buffer *z = buffer(sizeof x), *mu = buffer(ROWS * 4), *rs = buffer(ROWS * 4);
    Buffer *dx = buffer(sizeof x), *dgamma = buffer(COLS * 4), *dbeta = buffer(COLS * 4);
    NVTETensor in = tensor(buffer_from(x, sizeof x, 0)->ptr, kNVTEFloat32, shape);
    NVTETensor g = tensor(buffer_from(ones, sizeof ones, 0)->ptr, kNVTEFloat32, row);
    NVTETensor b = tensor(buffer_from(beta, sizeof beta, 0)->ptr, kNVTEFloat32, row);
    NVTETensor m = tensor(mu->ptr, kNVTEFloat32, column), r = tensor(rs->ptr, kNVTEFloat32, column);
    NVTETensor out = tensor(z->ptr, kNVTEFloat32, shape),
               work[2] = {empty_tensor(), empty_tensor()};
    float *dz = host_memory(sizeof x);
    for (int i = 0; i < ROWS * COLS; i++) dz[i] = 1;
    NVTETensor d = tensor(buffer_from(dz, sizeof x, 0)->ptr, kNVTEFloat32, shape);
    NVTETensor dxt = tensor(dx->ptr, kNVTEFloat32, shape);
    NVTETensor dg = tensor(dgamma->ptr, kNVTEFloat32, row),
               db = tensor(dbeta->ptr, kNVTEFloat32, row);
    for (int call = 0; call < 2; call++) {
      nvte_layernorm_fwd(in, g, b, 1e-3f, out, m, r, work[0], 132, false, NULL);
      nvte_layernorm_bwd(d, in, m, r, g, dxt, dg, db, work[1], 132, false, NULL);
      if (!EXPECT_OK()) return;
      for (int i = 0; i < 2 && call == 0; i++) {
        const size_t n = numel(nvte_tensor_shape(work[i]));
        CHECK(n >= 1, "a workspace of nothing");
        CHECK_EQ(nvte_tensor_type(work[i]), kNVTEByte);
        set_param(work[i], kNVTERowwiseData, buffer(n)->ptr, kNVTEFloat8E8M0, SHAPE(n));
      }
    }
    const float *got = buffer_read(z), *gdx = buffer_read(dx), *gdg = buffer_read(dgamma);
    const float *gdb = buffer_read(dbeta);
    for (int i = 0; i < ROWS * COLS; i++) {
      const float want = x[i] * rsigma + beta[i % COLS];
      CHECK(fabsf(got[i] - want) <= 1e-4f, "z: %g for %g", (double)got[i], (double)want);
      CHECK(fabsf(gdx[i]) <= 1e-5f, "dx: %g for 0", (double)gdx[i]);
    }
    for (int c = 0; c < COLS; c++) {
      CHECK(fabsf(gdg[c]) <= 1e-4f, "dgamma: %g for 0",
            (double)gdg[c]);  // Signs change from row to row.
      CHECK_FLOAT(gdb[c], ROWS);
    }
  }
  if (case_begin("questions with addresses of the stack")) {
    NVTETensor in = tensor(stack, kNVTEBFloat16, SHAPE(ROWS, COLS));
    NVTETensor act = tensor(stack, kNVTEBFloat16, SHAPE(ROWS, COLS)), out = empty_tensor();
    set_param(out, kNVTERowwiseData, stack, kNVTEFloat8E4M3, SHAPE(ROWS, COLS));
    set_param(out, kNVTEColumnwiseData, stack, kNVTEFloat8E4M3, SHAPE(ROWS, COLS));
    set_param(out, kNVTERowwiseScaleInv, stack, kNVTEFloat32, SHAPE(1));
    set_param(out, kNVTEColumnwiseScaleInv, stack, kNVTEFloat32, SHAPE(1));
    NVTETensor db = tensor(stack, kNVTEBFloat16, SHAPE(COLS)), work[3];
    for (int i = 0; i < 3; i++) work[i] = empty_tensor();
    nvte_quantize_dbias(in, out, db, work[0], NULL);
    nvte_quantize_dbias_dgelu(in, act, out, db, work[1], NULL);
    nvte_topk(NULL, in, tensor(stack, kNVTEInt32, SHAPE(ROWS)),
              tensor(stack, kNVTEBFloat16, SHAPE(ROWS, 4)),
              tensor(stack, kNVTEInt32, SHAPE(ROWS, 4)), work[2], ROWS, COLS, 4);
    EXPECT_OK();
    for (int i = 0; i < 3; i++) {
      CHECK(numel(nvte_tensor_shape(work[i])) >= 1, "workspace %d of nothing", i);
      const NVTEDType dtype = nvte_tensor_type(work[i]);
      CHECK(dtype != kNVTEInt64 && dtype != kNVTEInt16, "dtype %s", dtype_name(dtype));
    }
  }
  // Without a column there is nothing to add, but an empty answer would be asked for again.
  if (case_begin("a workspace for nothing")) {
    NVTETensor in = tensor(stack, kNVTEBFloat16, SHAPE(ROWS, 0)), out = empty_tensor();
    set_param(out, kNVTERowwiseData, stack, kNVTEFloat8E4M3, SHAPE(ROWS, 0));
    set_param(out, kNVTERowwiseScaleInv, buffer(4)->ptr, kNVTEFloat32, SHAPE(1));
    NVTETensor db = tensor(stack, kNVTEBFloat16, SHAPE(0)), work = empty_tensor();
    nvte_quantize_dbias(in, out, db, work, NULL);
    EXPECT_OK();
    const size_t n = numel(nvte_tensor_shape(work));
    CHECK(n >= 1, "a workspace of nothing");
    set_param(work, kNVTERowwiseData, buffer(n * 4)->ptr, kNVTEFloat32, SHAPE(n));
    nvte_quantize_dbias(in, out, db, work, NULL);
    EXPECT_OK();
  }
}

// ---- Selection of attention

static void set_config(NVTEFusedAttnConfig config, NVTEFusedAttnConfigAttribute attr, int64_t value,
                       size_t bytes) {
  nvte_set_fused_attn_config_attribute(config, attr, &value, bytes);
}

// FP8 attention as PyTorch asks for it: outputs and gradients of FP8, or of 16 bits, the gradient
// that arrives named by its dtype before its cast.
static void test_fp8_selection(void) {
  static const NVTE_QKV_Layout layouts[] = {
      NVTE_SB3HD, NVTE_SBH3D,    NVTE_SBHD_SB2HD,  NVTE_SBHD_SBH2D,    NVTE_SBHD_SBHD_SBHD,
      NVTE_BS3HD, NVTE_BSH3D,    NVTE_BSHD_BS2HD,  NVTE_BSHD_BSH2D,    NVTE_BSHD_BSHD_BSHD,
      NVTE_T3HD,  NVTE_THD_T2HD, NVTE_THD_THD_THD, NVTE_BHSD_BHSD_BHSD};
  static const NVTEDType dtypes[][3] = {
      {kNVTEFloat8E4M3, kNVTEFloat8E5M2, kNVTEFloat8E5M2},
      {kNVTEFloat8E4M3, kNVTEFloat8E4M3, kNVTEFloat8E4M3},
      {kNVTEFloat8E4M3, kNVTEBFloat16, kNVTEFloat8E5M2},
      {kNVTEFloat8E4M3, kNVTEFloat16, kNVTEFloat8E4M3},
      {kNVTEBFloat16, kNVTEFloat8E5M2, kNVTEBFloat16},
      {kNVTEBFloat16, kNVTEBFloat16, kNVTEBFloat16},
  };
  for (size_t l = 0; l < COUNT(layouts); l++) {
    if (!case_begin("FP8 selection, layout %d", (int)layouts[l])) continue;
    const bool packed = nvte_get_q_format(layouts[l]) == NVTE_THD;
    for (size_t n = 0; n < COUNT(dtypes) * 4 * 2 * 2 * 2; n++) {
      const NVTEDType *dtype = dtypes[n % COUNT(dtypes)];
      const size_t choice = n / COUNT(dtypes);
      static const NVTE_Mask_Type masks[] = {NVTE_PADDING_MASK, NVTE_PADDING_CAUSAL_MASK,
                                             NVTE_NO_MASK, NVTE_CAUSAL_MASK};
      const NVTE_Mask_Type mask = masks[packed ? choice % 2 : choice % 4];
      const bool training = choice / 4 % 2, deterministic = choice / 8 % 2, formats = choice / 16;
      const int64_t width = training ? 128 : 256;
      NVTEFusedAttnConfig config = nvte_create_fused_attn_config();
      set_config(config, kNVTEFusedAttnConfigIsTraining, training, 1);
      set_config(config, kNVTEFusedAttnConfigDeterministic, deterministic, 1);
      set_config(config, kNVTEFusedAttnConfigAttnMaskType, mask, 4);
      set_config(config, kNVTEFusedAttnConfigQKVDtype, kNVTEFloat8E4M3, 4);
      set_config(config, kNVTEFusedAttnConfigODtype, dtype[0], 4);
      set_config(config, kNVTEFusedAttnConfigDODtype, dtype[1], 4);
      set_config(config, kNVTEFusedAttnConfigDQKVDtype, dtype[2], 4);
      set_config(config, kNVTEFusedAttnConfigQKVLayout, layouts[l], 4);
      if (formats) {
        const NVTE_QKV_Format format = nvte_get_q_format(layouts[l]);
        set_config(config, kNVTEFusedAttnConfigOFormat, format, 4);
        set_config(config, kNVTEFusedAttnConfigDOFormat, format, 4);
        set_config(config, kNVTEFusedAttnConfigDQKVLayout, layouts[l], 4);
      }
      static const struct {
        NVTEFusedAttnConfigAttribute attr;
        int64_t value;
      } sizes[] = {{kNVTEFusedAttnConfigBatchSize, 2},     {kNVTEFusedAttnConfigNumAttnHeads, 16},
                   {kNVTEFusedAttnConfigNumGQAGroups, 16}, {kNVTEFusedAttnConfigMaxSeqlenQ, 512},
                   {kNVTEFusedAttnConfigMaxSeqlenKV, 512}, {kNVTEFusedAttnConfigNumTokensQ, 1000},
                   {kNVTEFusedAttnConfigNumTokensKV, 1000}};
      for (size_t i = 0; i < COUNT(sizes); i++) {
        set_config(config, sizes[i].attr, sizes[i].value, 8);
      }
      set_config(config, kNVTEFusedAttnConfigHeadDimQK, width, 8);
      set_config(config, kNVTEFusedAttnConfigHeadDimV, width, 8);
      for (int again = 0; again < 2; again++) {
        const char *message = NULL;
        const NVTE_Fused_Attn_Backend kind = nvte_get_fused_attn_backend_v2(config, &message);
        CHECK(kind == NVTE_FP8 && message && message[0] == 0,
              "O %s, dO %s, dQ %s, mask %d, training %d, deterministic %d: %d, %s",
              dtype_name(dtype[0]), dtype_name(dtype[1]), dtype_name(dtype[2]), (int)mask, training,
              deterministic, (int)kind, message ? message : "null");
      }
      // A bias before the scale has no implementation; the text goes into a std::string.
      set_config(config, kNVTEFusedAttnConfigBiasType, NVTE_PRE_SCALE_BIAS, 4);
      const char *message = NULL;
      CHECK_EQ(nvte_get_fused_attn_backend_v2(config, &message), NVTE_No_Backend);
      CHECK(message && message[0] != 0, "no message");
      nvte_destroy_fused_attn_config(config);
    }
    EXPECT_OK();
  }
}

// ---- Attention

// An attention in BF16 without anything special; to be changed and then built.
static Run plain_run(NVTE_QKV_Layout layout) {
  Run x = {0};
  x.p = (Problem){.b = 2, .hq = 4, .hkv = 2, .sq = 24, .skv = 40, .dqk = 64, .dv = 64};
  x.p.scale = 0.125, x.p.left = x.p.right = -1;
  x.p.lq[0] = 24, x.p.lq[1] = 9, x.p.lk[0] = 40, x.p.lk[1] = 17;
  x.c = (Config){.layout = layout, .dqkv_layout = layout};
  x.c.o_order = x.c.do_order = layout_info(layout).q;
  x.c.dtype = x.c.o_dtype = x.c.do_dtype = x.c.dqkv_dtype = x.c.bias_dtype = kNVTEBFloat16;
  x.c.left = x.c.right = -1;
  x.c.mask = NVTE_PADDING_MASK;
  x.c.training = true;
  const size_t dims[4] = {1, 4, 24, 40};
  memcpy(x.p.bias_dims, dims, sizeof dims);
  for (int side = 0; side < 2; side++) {
    const int *lengths = side ? x.p.lk : x.p.lq;
    x.c.starts[side][1] = lengths[0];
    x.c.tokens[side] = x.c.starts[side][2] = lengths[0] + lengths[1];
  }
  g_text = g_test.name;
  return x;
}

// Sums of lengths for six sequences, of which those behind the second are empty.
static void sums_of_largest_batch(Run *x) {
  for (int side = 0; side < 2; side++) {
    const int *lengths = side ? x->p.lk : x->p.lq, end = lengths[0] + lengths[1];
    const int sums[] = {0, lengths[0], end, end, end, end, end};
    x->cu[side] = ints(sums, COUNT(sums));
    if (x->padded[side]) x->padded[side] = x->cu[side];
  }
}

// A cache has slots behind those of the batch; what is in them is not read.
static void more_slots(View *v, size_t b, size_t slots) {
  Buffer *larger = buffer(v->buffer->bytes / b * slots);
  upload(larger->ptr, buffer_read(v->buffer), v->buffer->bytes);
  v->handle = tensor(larger->ptr, v->dtype, SHAPE(slots, v->rows, v->heads, v->dim));
}

// Inference: arrays, page tables and caches of the largest batch.
static void test_cached_attention(void) {
  static const NVTE_QKV_Layout layouts[] = {NVTE_BSHD_BSHD_BSHD, NVTE_SBHD_BSHD_BSHD,
                                            NVTE_THD_BSHD_BSHD, NVTE_Paged_KV_BSHD_BSHD_BSHD,
                                            NVTE_Paged_KV_THD_BSHD_BSHD};
  for (size_t l = 0; l < COUNT(layouts); l++) {
    for (size_t slots = 2; slots <= 8; slots += 2) {
      if (!case_begin("cached attention, layout %d, %zu slots", (int)layouts[l], slots)) continue;
      Run x = plain_run(layouts[l]);
      x.c.training = false;
      x.c.mask = NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK;
      x.p.right = 0, x.p.bottom_right = true;
      const bool paged = layout_info(layouts[l]).paged;
      x.c.page_size = 8, x.c.per_sequence = 5, x.c.pages = 10;
      build_forward(&x);
      sums_of_largest_batch(&x);
      for (int side = 0; side < 2; side++) {
        if (!paged) {
          more_slots(side ? &x.v : &x.k, x.p.b, slots);
          continue;
        }
        // Rows of the table of sequences that are not there name no page.
        int table[6 * 5];
        memset(table, 0x7F, sizeof table);
        download(table, nvte_tensor_data(x.tables[side]), 2 * 5 * sizeof *table);
        x.tables[side] = tensor(buffer_from(table, sizeof table, 0)->ptr, kNVTEInt32, SHAPE(6, 5));
      }
      run_forward(&x);
      nvte_tensor_pack_destroy(&x.pack);
    }
  }
}

// The backward pass of tensors that have been changed since they were built.
static void finish_backward(Run *x) {
  size_t planned = 0;
  const char *why;
  if (!supported(x, NVTEX_ATTENTION_BACKWARD, &planned, &why)) return;
  if (!query_workspace(x, call_backward, planned)) return;
  // JAX takes bytes for Float8E8M0.
  set_param(x->workspace, kNVTERowwiseData, nvte_tensor_data(x->workspace), kNVTEFloat8E8M0,
            nvte_tensor_shape(x->workspace));
  call_backward(x);
  if (EXPECT_OK()) check_backward(x);
}

// What JAX sends beside the arguments that apply: an empty bias with dimensions, page tables, an
// offset; in the pack of the backward pass a random state without dimensions, dense statistics and
// slots of no use.
static void test_jax_packs(void) {
  static const NVTE_QKV_Layout layouts[] = {NVTE_BS3HD, NVTE_BSHD_BSHD_BSHD, NVTE_THD_THD_THD};
  for (size_t n = 0; n < 2 * COUNT(layouts); n++) {
    const size_t l = n / 2;
    const bool off_by_one = n % 2;
    if (!case_begin("arguments of JAX, layout %d, off by one %d", (int)layouts[l], off_by_one)) {
      continue;
    }
    Run x = plain_run(layouts[l]);
    x.c.softmax = off_by_one ? NVTE_OFF_BY_ONE_SOFTMAX : NVTE_VANILLA_SOFTMAX;
    if (layout_info(layouts[l]).together == 3) {
      x.p.hkv = 4, x.p.skv = 24, x.p.lk[0] = 24, x.p.lk[1] = 9;
    }
    const bool packed = layouts[l] == NVTE_THD_THD_THD;
    // Its packed sequences lie where dense ones would.
    x.c.starts[0][1] = 24, x.c.tokens[0] = x.c.starts[0][2] = 48;
    x.c.starts[1][1] = (int)x.p.skv, x.c.tokens[1] = x.c.starts[1][2] = 2 * (int)x.p.skv;
    build_forward(&x);
    x.bias = tensor(NULL, kNVTEBFloat16, SHAPE(0, 0, x.p.sq, x.p.skv));
    if (!off_by_one) x.sink = tensor(NULL, kNVTEFloat32, SHAPE(0));
    for (int side = 0; side < 2; side++) {
      x.tables[side] = tensor(NULL, kNVTEInt32, SHAPE(0));
      if (!x.padded[side]) x.padded[side] = tensor(NULL, kNVTEInt32, SHAPE(0));
    }
    if (!run_forward(&x)) continue;
    build_backward(&x);
    x.dbias = tensor(NULL, kNVTEBFloat16, SHAPE(0, 0, x.p.sq, x.p.skv));
    if (!off_by_one) x.dsink = tensor(NULL, kNVTEFloat32, SHAPE(0));
    x.s = x.dp = tensor(NULL, kNVTEFloat32, SHAPE(0));
    NVTETensorPack *saved = host_memory(sizeof *saved);
    saved->size = 4;
    saved->tensors[0] =
        packed ? tensor(x.stats_data->ptr, kNVTEFloat32, SHAPE(2, 4, 24, 1)) : x.saved->tensors[0];
    saved->tensors[1] = tensor(nvte_tensor_data(x.rng), kNVTEInt64, SHAPE(0, 0));
    saved->tensors[2] = tensor(NULL, kNVTEBFloat16, SHAPE(0, 0, x.p.sq, x.p.skv));
    saved->tensors[3] = x.sink;
    x.saved = saved;
    finish_backward(&x);
    nvte_tensor_pack_destroy(&x.pack);
  }
}

// JAX asks for workspaces and packs while it traces: no tensor has an address, and there is no
// stream.
static void test_traced_attention(void) {
  if (!case_begin("attention without addresses")) return;
  Run x = plain_run(NVTE_BSHD_BSHD_BSHD);
  const NVTEDType dtype = kNVTEBFloat16;
  const NVTEShape q = SHAPE(2, 24, 4, 64), kv = SHAPE(2, 40, 2, 64);
  x.q.handle = tensor(NULL, dtype, q), x.o.handle = tensor(NULL, dtype, q);
  x.k.handle = tensor(NULL, dtype, kv), x.v.handle = tensor(NULL, dtype, kv);
  x.dq.handle = tensor(NULL, dtype, q), x.d_o.handle = tensor(NULL, dtype, q);
  x.dk.handle = tensor(NULL, dtype, kv), x.dv.handle = tensor(NULL, dtype, kv);
  for (int side = 0; side < 2; side++) x.cu[side] = tensor(NULL, kNVTEInt32, SHAPE(3));
  x.rng = tensor(NULL, kNVTEInt64, SHAPE(2));
  x.bias = x.dbias = tensor(NULL, dtype, SHAPE(0, 0, 24, 40));
  x.s = x.dp = x.sink = x.dsink = tensor(NULL, kNVTEFloat32, SHAPE(0));
  nvte_tensor_pack_create(&x.pack);
  x.saved = &x.pack;
  for (int backward = 0; backward < 2; backward++) {
    x.workspace = empty_tensor();
    (backward ? call_backward : call_forward)(&x);
    if (!EXPECT_OK()) break;
    CHECK(numel(nvte_tensor_shape(x.workspace)) >= 1, "a workspace of nothing");
    CHECK_EQ(nvte_tensor_type(x.workspace), kNVTEByte);
    CHECK_EQ(x.pack.size, 2);
  }
  nvte_tensor_pack_destroy(&x.pack);
}

// What PyTorch sends: a bias that is labelled Float32, its gradient also where ALiBi has none, S
// and dP of nothing.
static void test_torch_packs(void) {
  static const int biases[] = {NVTE_POST_SCALE_BIAS, NVTE_ALIBI};
  for (size_t n = 0; n < COUNT(biases); n++) {
    if (!case_begin("arguments of PyTorch, bias type %d", biases[n])) continue;
    Run x = plain_run(NVTE_BSHD_BSHD_BSHD);
    x.c.bias = biases[n];
    x.c.mask = biases[n] == NVTE_ALIBI ? NVTE_CAUSAL_MASK : NVTE_NO_MASK;
    if (biases[n] == NVTE_ALIBI) x.p.right = 0, x.p.alibi = true;
    for (size_t i = 0; i < 2; i++) x.p.lq[i] = 24, x.p.lk[i] = 40;
    build_forward(&x);
    x.s = tensor(NULL, kNVTEFloat32, SHAPE(0));
    x.sink = tensor(NULL, kNVTEFloat32, SHAPE(0));
    if (!run_forward(&x)) continue;
    build_backward(&x);
    x.s = x.dp = tensor(NULL, kNVTEFloat32, SHAPE(0));
    Buffer *unused = buffer(4 * 24 * 40 * 2);
    if (!x.dbias) x.dbias = tensor(unused->ptr, kNVTEBFloat16, SHAPE(1, 4, 24, 40));
    finish_backward(&x);
    CHECK(untouched(unused), "a gradient without a bias was written");
    nvte_tensor_pack_destroy(&x.pack);
  }
}

// ---- Caches of keys and values

// Two sequences of arrays, tables and caches for four.
static void test_caches(void) {
  enum { B = 2, LARGEST = 4, CONTEXT = 3, PAGE = 4, PAGES = 2, HEADS = 2, DIM = 8 };
  enum { ROW = HEADS * DIM };
  const int fresh[] = {3, 1}, total[] = {7, 4};
  const int sums_new[] = {0, 3, 4, 4, 4}, sums_total[] = {0, 7, 11, 11, 11};
  NVTETensor cu_new = ints(sums_new, LARGEST + 1), cu_total = ints(sums_total, LARGEST + 1);
  for (int paged = 0; paged < 2; paged++) {
    if (!case_begin("new keys of a smaller batch, paged %d", paged)) continue;
    cu_new = ints(sums_new, LARGEST + 1), cu_total = ints(sums_total, LARGEST + 1);
    const size_t slots = paged ? LARGEST * PAGES : LARGEST, page = paged ? PAGE : PAGE * PAGES;
    const int pages[LARGEST * PAGES] = {5, 2, 0, 7, 99, 99, 99, 99}, rows[LARGEST] = {0, 1, 2, 3};
    NVTETensor table =
        paged ? tensor(buffer_from(pages, sizeof pages, 0)->ptr, kNVTEInt32, SHAPE(LARGEST, PAGES))
              : ints(rows, LARGEST);
    Buffer *caches[2];
    NVTETensor news[2], cache[2];
    float *values[2];
    for (int i = 0; i < 2; i++) {
      values[i] = random_values(kNVTEFloat32, LARGEST * CONTEXT * ROW, -1, 1);
      news[i] = tensor(buffer_from(values[i], LARGEST * CONTEXT * ROW * 4, 0)->ptr, kNVTEFloat32,
                       SHAPE(LARGEST, CONTEXT, HEADS, DIM));
      caches[i] = buffer(slots * page * ROW * 4);
      cache[i] = tensor(caches[i]->ptr, kNVTEFloat32, SHAPE(slots, page, HEADS, DIM));
    }
    nvte_copy_to_kv_cache(news[0], news[1], cache[0], cache[1], table, cu_new, cu_total, NVTE_BSHD,
                          B, CONTEXT, PAGE * PAGES, paged ? PAGES : 1, !paged, NULL);
    if (!EXPECT_OK()) continue;
    for (int i = 0; i < 2; i++) {
      uint32_t *want = host_memory(caches[i]->bytes);
      memset(want, POISON_VALUE, caches[i]->bytes);
      for (int n = 0; n < B; n++) {
        for (int t = 0; t < fresh[n]; t++) {
          const int at = total[n] - fresh[n] + t;
          const int slot = paged ? pages[n * PAGES + at / PAGE] : n;
          memcpy(want + ((size_t)slot * page + (size_t)at % page) * ROW,
                 values[i] + (n * CONTEXT + t) * ROW, ROW * 4);
        }
      }
      CHECK(memcmp(buffer_read(caches[i]), want, caches[i]->bytes) == 0, "cache %d", i);
    }
  }
  if (case_begin("packed tokens of a smaller batch")) {
    const float *tokens = random_values(kNVTEFloat32, 4 * ROW, -1, 1);
    NVTETensor packed =
        tensor(buffer_from(tokens, 4 * ROW * 4, 0)->ptr, kNVTEFloat32, SHAPE(4, HEADS, DIM));
    Buffer *dense = buffer(B * CONTEXT * ROW * 4), *back = buffer(4 * ROW * 4);
    NVTETensor padded = tensor(dense->ptr, kNVTEFloat32, SHAPE(B, CONTEXT, HEADS, DIM));
    cu_new = ints(sums_new, LARGEST + 1);
    nvte_convert_thd_to_bshd(packed, cu_new, padded, B, CONTEXT, NULL);
    nvte_convert_bshd_to_thd(padded, cu_new, tensor(back->ptr, kNVTEFloat32, SHAPE(4, HEADS, DIM)),
                             4, NULL);
    if (!EXPECT_OK()) return;
    const float *got = buffer_read(dense);
    CHECK(memcmp(got, tokens, 3 * ROW * 4) == 0, "the first sequence");
    CHECK(memcmp(got + 3 * ROW, tokens + 3 * ROW, ROW * 4) == 0, "the second sequence");
    CHECK(isnan(got[4 * ROW]), "a row behind a sequence was written");
    CHECK(memcmp(buffer_read(back), tokens, 4 * ROW * 4) == 0, "packed again");
  }
}

// ---- The router with its histogram

// Whether a score is the quotient that float32 rounds, of an exponential that is at most four units
// off: a histogram of scores that are rounded otherwise has other counts.
static bool is_quotient(float score, float x) {
  uint32_t bits = bits_of(expf(-x)) - 4;
  for (int i = 0; i < 9; i++, bits++) {
    if (score == 1.0f / (1.0f + float_of(bits))) return true;
  }
  return false;
}

static void test_histogram(void) {
  enum { T = 257, E = 96, K = 8, BINS = 1000 };
  for (int fused = 0; fused < 2; fused++) {
    if (!case_begin("histogram of the router, fused %d", fused)) continue;
    const float *x = random_values(kNVTEFloat32, T * E, -6, 6),
                *bias = random_values(kNVTEFloat32, E, -1, 1);
    const float bounds[] = {-1.25f, 1.75f};
    int *want = host_memory(E * BINS * 4);
    for (size_t i = 0; i < E * BINS; i++) want[i] = (int)(i % 3);
    Buffer *scores = buffer(T * E * 4), *cutoffs = buffer(T * 4);
    Buffer *counts = buffer_from(want, E * BINS * 4, 0);
    NVTETensor logits = tensor(buffer_from(x, T * E * 4, 0)->ptr, kNVTEFloat32, SHAPE(T, E));
    NVTETensor b = tensor(buffer_from(bias, E * 4, 0)->ptr, kNVTEFloat32, SHAPE(E));
    NVTETensor probs = tensor(buffer(T * E * 4)->ptr, kNVTEFloat32, SHAPE(T, E));
    NVTETensor map = tensor(buffer(T * E)->ptr, kNVTEByte, SHAPE(T, E));
    NVTETensor raw = tensor(scores->ptr, kNVTEFloat32, SHAPE(T, E));
    NVTETensor cutoff = tensor(cutoffs->ptr, kNVTEFloat32, SHAPE(T));
    NVTETensor histogram = tensor(counts->ptr, kNVTEInt32, SHAPE(E, BINS));
    NVTETensor limits = tensor(buffer_from(bounds, 8, 0)->ptr, kNVTEFloat32, SHAPE(2));
    nvte_fused_topk_with_score_function_forward_qb_v2(
        logits, T, E, K, 1, b, probs, map, NVTE_ROUTING_MAP_FORMAT_BYTEMAP, raw, cutoff, histogram,
        limits, fused ? NVTE_QB_HISTOGRAM_FUSED_ATOMIC : NVTE_QB_HISTOGRAM_TWO_KERNEL, NULL);
    if (!fused) nvte_qb_histogram_accumulate(raw, cutoff, limits, histogram, NULL);
    if (!EXPECT_OK()) continue;
    const float *s = buffer_read(scores), *c = buffer_read(cutoffs);
    const float scale = (float)BINS / (bounds[1] - bounds[0]);
    size_t bad = 0;
    for (size_t i = 0; i < T * E && bad < 3; i++) {
      bad += !CHECK(is_quotient(s[i], x[i]), "score of %a: %a", (double)x[i], (double)s[i]);
      float distance = c[i / E] - s[i];
      distance -= bounds[0];
      distance *= scale;
      want[i % E * BINS + (size_t)fmax(fmin(floor((double)distance), BINS - 1), 0)]++;
    }
    // The cutoff is the biased score behind the best K.
    for (size_t t = 0; t < T && bad < 3; t++) {
      size_t above = 0, equal = 0;
      for (size_t e = 0; e < E; e++) {
        const float biased = s[t * E + e] + bias[e];
        above += biased > c[t], equal += biased == c[t];
      }
      bad += !CHECK(above <= K && above + equal > K, "cutoff of token %zu: %zu above", t, above);
    }
    const int *got = buffer_read(counts);
    for (size_t i = 0; i < E * BINS && bad < 3; i++) {
      bad += !CHECK(got[i] == want[i], "expert %zu, bin %zu: %d for %d", i / BINS, i % BINS, got[i],
                    want[i]);
    }
  }
}

// ---- Scales without data

// PyTorch swizzles scales by tensors whose data have a shape but no address.
static void test_swizzle_without_data(void) {
  enum { ROWS = 200, COLS = 320, M = 256, K = 12 };
  if (!case_begin("swizzle without data")) return;
  uint8_t *codes = host_memory(M * K), *want = host_memory(M * K);
  for (size_t r = 0; r < ROWS; r++) {
    for (size_t k = 0; k < COLS / 32; k++) {
      const uint8_t code = (uint8_t)(1 + random_below(250));
      codes[r * K + k] = code;
      want[(r / 128 * (K / 4) + k / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + k % 4] = code;
    }
  }
  Buffer *out = buffer(M * K);
  NVTETensor tensors[2];
  for (int i = 0; i < 2; i++) {
    tensors[i] = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
    set_param(tensors[i], kNVTERowwiseData, NULL, kNVTEFloat8E4M3, SHAPE(ROWS, COLS));
  }
  set_param(tensors[0], kNVTERowwiseScaleInv, buffer_from(codes, M * K, 0)->ptr, kNVTEFloat8E8M0,
            SHAPE(M, K));
  set_param(tensors[1], kNVTERowwiseScaleInv, out->ptr, kNVTEFloat8E8M0, SHAPE(M, K));
  tiles_flag(tensors[1]);
  nvte_swizzle_scaling_factors(tensors[0], tensors[1], NULL);
  if (!EXPECT_OK()) return;
  CHECK(memcmp(buffer_read(out), want, M * K) == 0, "other scales");
}

// ---- Amax beside outputs of 16 bits, and in a history

static double largest_stored(const Buffer *b) {
  const void *values = buffer_read(b);
  return (double)amax_of(kNVTEBFloat16, values, b->bytes / 2);
}

// Current scaling: a norm or an activation writes 16 bits and their largest magnitude into a zeroed
// float, and the cast that follows reads it.
static void test_amax_of_16_bits(void) {
  enum { ROWS = 65, COLS = 128 };
  static const char *const kinds[] = {"rmsnorm", "layernorm", "gelu", "swiglu"};
  for (int kind = 0; kind < 4; kind++) {
    if (!case_begin("amax of %s", kinds[kind])) continue;
    const void *x = random_values(kNVTEBFloat16, ROWS * 2 * COLS, -3, 3);
    const void *g = random_values(kNVTEBFloat16, COLS, 0.5, 2);
    NVTEShape shape = SHAPE(ROWS, COLS);
    Buffer *z = buffer(ROWS * COLS * 2), *amax = buffer_float(0);
    NVTETensor in = tensor(buffer_from(x, ROWS * 2 * COLS * 2, 0)->ptr, kNVTEBFloat16,
                           kind == 3 ? SHAPE(ROWS, 2 * COLS) : shape);
    NVTETensor gamma = tensor(buffer_from(g, COLS * 2, 0)->ptr, kNVTEBFloat16, SHAPE(COLS));
    NVTETensor out = tensor(z->ptr, kNVTEBFloat16, shape), work = empty_tensor();
    set_param(out, kNVTEAmax, amax->ptr, kNVTEFloat32, SHAPE(1));
    NVTETensor mu = tensor(buffer(ROWS * 4)->ptr, kNVTEFloat32, SHAPE(ROWS));
    NVTETensor rsigma = tensor(buffer(ROWS * 4)->ptr, kNVTEFloat32, SHAPE(ROWS));
    for (int call = 0; call < 2 && kind < 2; call++) {
      if (kind == 0) nvte_rmsnorm_fwd(in, gamma, 1e-5f, out, rsigma, work, 132, false, NULL);
      if (kind == 1) {
        nvte_layernorm_fwd(in, gamma, gamma, 1e-5f, out, mu, rsigma, work, 132, false, NULL);
      }
      const size_t n = numel(nvte_tensor_shape(work));
      if (call == 0) set_param(work, kNVTERowwiseData, buffer(n)->ptr, kNVTEByte, SHAPE(n));
    }
    if (kind == 2) nvte_gelu(in, out, NULL);
    if (kind == 3) nvte_swiglu(in, out, NULL);
    if (!EXPECT_OK()) continue;
    const double stored = largest_stored(z), got = (double)read_float(amax);
    // Norms: of what is stored. Activations: of the float32 results before they are rounded.
    if (kind < 2) CHECK(got == stored, "%g for %g", got, stored);
    CHECK(stored > 0 && round_to(kNVTEBFloat16, got) == stored, "%g for %g", got, stored);
    // The scale from it, and the cast.
    NVTETensor fp8 = empty_tensor();
    Buffer *codes = buffer(ROWS * COLS), *scale = buffer(4), *inv = buffer(4);
    set_param(fp8, kNVTERowwiseData, codes->ptr, kNVTEFloat8E4M3, shape);
    set_param(fp8, kNVTEAmax, amax->ptr, kNVTEFloat32, SHAPE(1));
    set_param(fp8, kNVTEScale, scale->ptr, kNVTEFloat32, SHAPE(1));
    set_param(fp8, kNVTERowwiseScaleInv, inv->ptr, kNVTEFloat32, SHAPE(1));
    nvte_compute_scale_from_amax(fp8, quant_config(), NULL);
    set_param(fp8, kNVTEAmax, NULL, kNVTEFloat32, SHAPE(0));
    nvte_quantize_v2(out, fp8, NULL, NULL);
    if (!EXPECT_OK()) continue;
    const float s = 448.0f / (float)got;
    CHECK_FLOAT(read_float(scale), s);
    CHECK_FLOAT(read_float(inv), 1 / s);
    const void *values = buffer_read(z);
    const uint8_t *bytes = buffer_read(codes);
    for (size_t i = 0; i < ROWS * COLS; i++) {
      const float scaled = (float)(get_value(kNVTEBFloat16, values, i) * (double)s);
      if (!CHECK(bytes[i] == encode_bits(kNVTEFloat8E4M3, (double)scaled), "code %zu", i)) break;
    }
  }
}

// Delayed scaling: the largest magnitude goes into a slot of the history, over a smaller one alone;
// with the flag of weights that are cached nothing changes.
static void test_history(void) {
  enum { ROWS = 48, COLS = 80, TENSORS = 3, LENGTH = 4 };
  static const float before[] = {0, 1.5f, 9};
  for (int skip = 0; skip < 2; skip++) {
    if (!case_begin("amax in a history, cached %d", skip)) continue;
    float history[LENGTH][TENSORS];
    for (int i = 0; i < LENGTH * TENSORS; i++)
      history[i / TENSORS][i % TENSORS] = before[i % TENSORS];
    Buffer *memory = buffer_from(history, sizeof history, 0);
    const float flag = skip ? 1 : 0;
    NVTETensor noop = tensor(buffer_from(&flag, 4, 0)->ptr, kNVTEFloat32, SHAPE(1));
    NVTEQuantizationConfig config = quant_config();
    set_quant(config, kNVTEQuantizationConfigNoopTensor, &noop, sizeof noop);
    for (int n = 0; n < TENSORS; n++) {
      const void *x = random_values(kNVTEBFloat16, ROWS * COLS, -2, 2);
      Both b = both_of(ROWS, COLS, 8);
      set_param(b.out, kNVTEColumnwiseData, b.col->ptr, kNVTEFloat8E4M3, SHAPE(COLS, ROWS));
      set_param(b.out, kNVTEAmax, memory->ptr + 4 * n, kNVTEFloat32, SHAPE(1));
      NVTETensor in =
          tensor(buffer_from(x, ROWS * COLS * 2, 0)->ptr, kNVTEBFloat16, SHAPE(ROWS, COLS));
      nvte_quantize_v2(in, b.out, config, NULL);
      if (!EXPECT_OK()) return;
      if (!skip) history[0][n] = fmaxf(before[n], amax_of(kNVTEBFloat16, x, ROWS * COLS));
      CHECK(untouched(b.row) == skip && untouched(b.col) == skip, "data of tensor %d", n);
    }
    CHECK(memcmp(buffer_read(memory), history, sizeof history) == 0, "another history");
  }
}

// ---- Nothing

// Tensors of no rows, whose memory has no address.
static void test_no_rows(void) {
  enum { COLS = 256 };
  static const NVTEScalingMode modes[] = {NVTE_DELAYED_TENSOR_SCALING, NVTE_MXFP8_1D_SCALING,
                                          NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D};
  for (size_t m = 0; m < COUNT(modes); m++) {
    if (!case_begin("no rows, mode %d", (int)modes[m])) continue;
    NVTETensor in = tensor(NULL, kNVTEBFloat16, SHAPE(0, COLS)), out = tensor_of_mode(modes[m]);
    const bool mx = modes[m] == NVTE_MXFP8_1D_SCALING, tensor_scale = m == 0;
    NVTEShape row = tensor_scale ? SHAPE(1) : mx ? SHAPE(0, 8) : m == 2 ? SHAPE(2, 0) : SHAPE(0, 4);
    NVTEShape col = tensor_scale ? SHAPE(1)
                    : mx         ? SHAPE(0, 256)
                    : m == 2     ? SHAPE(0, 256)
                                 : SHAPE(2, 0);
    NVTEDType type = mx ? kNVTEFloat8E8M0 : kNVTEFloat32;
    Buffer *inv = buffer(4);
    void *scales = tensor_scale ? inv->ptr : NULL;
    set_param(out, kNVTERowwiseData, NULL, kNVTEFloat8E4M3, SHAPE(0, COLS));
    set_param(out, kNVTEColumnwiseData, NULL, kNVTEFloat8E4M3,
              mx ? SHAPE(0, COLS) : SHAPE(COLS, 0));
    set_param(out, kNVTERowwiseScaleInv, scales, type, row);
    set_param(out, kNVTEColumnwiseScaleInv, scales, type, col);
    nvte_quantize_v2(in, out, NULL, NULL);
    EXPECT_OK();
    nvte_gelu(in, out, NULL);
    EXPECT_OK();
    nvte_dequantize(out, tensor(NULL, kNVTEBFloat16, SHAPE(0, COLS)), NULL);
    EXPECT_OK();
    NVTETensor gamma = tensor(buffer(COLS * 2)->ptr, kNVTEBFloat16, SHAPE(COLS)),
               work = empty_tensor();
    NVTETensor rsigma = tensor(NULL, kNVTEFloat32, SHAPE(0));
    for (int call = 0; call < 2; call++) {
      nvte_rmsnorm_fwd(in, gamma, 1e-5f, out, rsigma, work, 132, false, NULL);
      EXPECT_OK();
      const size_t n = numel(nvte_tensor_shape(work));
      CHECK(n >= 1, "a workspace of nothing");
      set_param(work, kNVTERowwiseData, buffer(n)->ptr, kNVTEFloat8E8M0, SHAPE(n));
    }
  }
}

// Variables that users of the front ends set. Those that say how the other library works have no
// influence here.
static void set_variables(void) {
  static const char *const variables[][2] = {{"NVTE_NORM_BWD_USE_CUDNN", "1"},
                                             {"NVTE_TENSOR_HANDLE_POOL_SIZE_MB", "64"},
                                             {"NVTE_GROUPED_TENSOR_HANDLE_POOL_SIZE_MB", "64"},
                                             {"NVTE_EXT_MARGIN_SM", "8"},
                                             {"NVTE_USE_FAST_MATH", "1"},
                                             {"NVTE_USE_CUTLASS_GROUPED_GEMM", "1"},
                                             {"NVTE_RADIX_TOPK_THRESHOLD", "4"},
                                             {"NVTE_DISABLE_NVRTC", "1"},
                                             {"NVTE_CUDA_INCLUDE_DIR", "/nowhere"},
                                             {"NVTE_FUSED_ATTN_CACHE_DEBUG", "1"},
                                             {"NVTE_EP_HANDLE_CACHE_SIZE", "16"},
                                             {"UB_SKIPMC", "1"},
                                             {"NVTE_FUSED_ATTN", "1"},
                                             {"NVTE_FLASH_ATTN", "0"}};
  for (size_t i = 0; i < COUNT(variables); i++) setenv(variables[i][0], variables[i][1], 1);
}

int main(int argc, char **argv) {
  set_variables();
  test_begin(argc, argv);
  test_flagged_blocks();
  test_flagged_product();
  test_declared_columns();
  test_workspaces();
  test_fp8_selection();
  test_cached_attention();
  test_traced_attention();
  test_jax_packs();
  test_torch_packs();
  test_caches();
  test_histogram();
  test_swizzle_without_data();
  test_amax_of_16_bits();
  test_history();
  test_no_rows();
  return test_end();
}
