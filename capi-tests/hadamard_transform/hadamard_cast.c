// Casts to NVFP4 of the Hadamard transform against a reference of their definition (optim_nvfp4.md,
// section 16). Inputs are multiples of 1/64, so that every order of a transform's sums is exact.
#include "nvte/hadamard_transform.h"

#include "nvfp4.h"

// The functions, in the order of the specification.
typedef enum Function { COLUMNS, ROWS_AND_COLUMNS, SPLIT_COLUMNS, SPLIT, GROUPED } Function;
static const char *const kFunctions[] = {"columns", "both", "split columns", "split", "grouped"};

enum { MAX_MEMBERS = 8 };

typedef struct Case {
  Function function;
  size_t cols, members, rows_of[MAX_MEMBERS];
  bool row, col, swizzled, stochastic, fast, offsets;
  bool general;               // A matrix of any signs and magnitudes
  bool one_nan, zero_tile;    // Special values of the input.
  const float *special_amax;  // The amax of every other member, from the first one on.
  bool short_row, short_col;  // Scales of one byte less than needed
  const char *refused;        // The argument that the error of the call names.
  // These fields are filled in by the run.
  size_t rows;
  float *x, matrix[16][16], amax[2][MAX_MEMBERS];
  uint64_t rng[2];
} Case;

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

// Rows of a strip of the first kernel, by the table of the specification.
static size_t strip_rows(size_t m, size_t n) {
  static const size_t table[][2] = {{5120, 512},   {10240, 1024}, {2560, 1280},
                                    {11328, 1024}, {512, 256},    {3584, 512}};
  for (size_t i = 0; i < COUNT(table); i++) {
    if ((m == 8192 && n == table[i][0]) || (n == 8192 && m == table[i][0])) return table[i][1];
  }
  return m < 1024 || n < 1024 ? 512 : 1024;
}

static void words_of(const Case *c, int d, size_t r, size_t col, uint32_t words[4]) {
  size_t gx = (c->cols + 127) / 128, cm = col / 128, sequence, call;
  if (c->function == COLUMNS || c->function == SPLIT_COLUMNS) {
    size_t j = r / 64, per = least(c->rows, strip_rows(c->rows, c->cols)) / 64;
    size_t lin = cm + j / per * gx;
    sequence = col % 128 + 256 * (j % per) + 256 * per * lin;
    call = r % 64 / 16;
  } else {
    size_t j = r / 128, per = (least(c->rows, 1024) + 127) / 128;
    size_t lin = cm + j / per * gx, k = j % per;
    if (d == 1) {
      sequence = 128 + col % 128 + 512 * k + 512 * per * lin;
      call = r % 128 / 16;
    } else if (c->function == ROWS_AND_COLUMNS) {
      size_t u = 0;
      while (16 * (u / 32) + u % 32 / 2 != r % 128 || u % 2 != col % 128 / 64) u++;
      sequence = 256 + u + 512 * (k + 1) + 512 * per * lin;
      call = col % 64 / 16;
    } else {
      size_t u = 0;
      while (u % 32 / 8 + 4 * (u / 32) != r % 32 || u % 8 != col % 128 / 16) u++;
      sequence = 256 + u + 512 * (k + 1) + 512 * per * lin + 512 * per * gx * (c->rows / 128);
      call = r % 128 / 32;
    }
  }
  philox(c->rng[0], c->rng[1], sequence, call, words);
}

// The factor of a tensor with this amax.
static float encoding_scale(const Case *c, float amax) {
  float scale = 2688 / amax;
  if (c->function == COLUMNS || c->function == SPLIT_COLUMNS) {
    if (isnan(amax)) return NAN;
    return amax == 0 || scale == 0 ? 1 : fminf(scale, FLT_MAX);
  }
  return amax > 0 ? fminf(scale, FLT_MAX) : 1;
}

// The block of direction d that begins at (r, col) of the whole matrix.
static unsigned reference(const Case *c, int d, size_t r, size_t col, float amax,
                          unsigned codes[16]) {
  float y[16], b = 0;
  for (size_t n = 0; n < 16; n++) {
    double sum = 0;
    for (size_t k = 0; d == 1 && k < 16; k++) {
      sum += (double)c->x[(r + k) * c->cols + col] * c->matrix[k][n];
    }
    y[n] = d == 0 ? c->x[r * c->cols + col + n] : (float)sum;
    if (d == 1 && !c->fast && !isnan(y[n])) y[n] = (float)round_to(kNVTEBFloat16, y[n]);
    b = isnan(b) || isnan(y[n]) ? NAN : fmaxf(b, fabsf(y[n]));
  }
  float scale = encoding_scale(c, amax);
  if (isnan(b) || isnan(scale)) {
    for (int i = 0; i < 16; i++) codes[i] = 7;
    return 0x7F;
  }
  float sixth = scale * (1.0f / 6), product = b * sixth;
  unsigned s = e4m3(product);
  float scaled = e4m3_value(s) * (1 / scale), factor = fminf(1 / scaled, FLT_MAX);
  if (isnan(scaled)) factor = NAN;
  uint32_t words[4] = {0};
  if (c->stochastic) words_of(c, d, r, col, words);
  for (int i = 0; i < 16; i++) {
    float value = y[i] * factor;
    codes[i] = c->stochastic ? stochastic(value, words[i / 4] >> (8 * (i % 4)) & 255) : e2m1(value);
  }
  return s;
}

static size_t check_member(const Case *c, int d, size_t member, size_t first,
                           const unsigned char *data, const unsigned char *scales, size_t line0) {
  size_t rows = c->rows_of[member], lines = d ? c->cols : rows, length = d ? rows : c->cols;
  size_t bad = 0;
  for (size_t line = 0; line < lines && bad < 3; line++) {
    for (size_t from = 0; from < length && bad < 3; from += 16) {
      unsigned codes[16];
      size_t r = first + (d ? from : line), col = d ? line : from;
      unsigned s = reference(c, d, r, col, c->amax[d][member], codes);
      unsigned got = scales[scale_index(line0 + line, from / 16, length / 16, c->swizzled)];
      bad += !CHECK(got == s, "member %zu, direction %d, scale[%zu][%zu]: got 0x%02x, not 0x%02x",
                    member, d, line, from / 16, got, s);
      for (size_t i = 0; i < 16 && bad < 3; i++) {
        size_t element = (line0 + line) * length + from + i;
        unsigned code = data[element / 2] >> (element % 2 * 4) & 15;
        bad += !CHECK(code == codes[i], "member %zu, direction %d, [%zu][%zu]: got %x, not %x",
                      member, d, line, from + i, code, codes[i]);
      }
    }
  }
  return bad;
}

static NVTEQuantizationConfig config_of(Case *c) {
  NVTEQuantizationConfig config = quant_config();
  uint8_t one = 1;
  if (c->fast) set_quant(config, kNVTEQuantizationConfigUseFastMath, &one, 1);
  if (c->stochastic) {
    set_quant(config, kNVTEQuantizationConfigStochasticRounding, &one, 1);
    NVTETensor rng = tensor(buffer_from(c->rng, sizeof c->rng, 0)->ptr, kNVTEInt64, SHAPE(2));
    set_quant(config, kNVTEQuantizationConfigRNGState, &rng, sizeof rng);
  }
  return config;
}

static size_t scale_count(const Case *c, size_t lines, size_t length) {
  if (!c->swizzled) return lines * length / 16;
  return (lines + 127) / 128 * ((length / 16 + 3) / 4) * 512;
}

static bool ended_as_expected(const Case *c) {
  if (!c->refused) return EXPECT_OK();
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, c->refused);
  return false;
}

static void run(Case c) {
  c.rows = 0;
  for (size_t i = 0; i < c.members; i++) c.rows += c.rows_of[i];
  if (!case_begin("%s %zux%zu%s%s%s%s%s%s%s%s%s%s%s", kFunctions[c.function], c.rows, c.cols,
                  c.row ? " rows" : "", c.col ? " cols" : "", c.swizzled ? " swizzled" : "",
                  c.stochastic ? " stochastic" : "", c.fast ? " fast" : "",
                  c.offsets ? " offsets" : "", c.general ? " general" : "", c.one_nan ? " NaN" : "",
                  c.zero_tile ? " zeros" : "", c.special_amax ? " amax" : "",
                  c.refused ? " refused" : "")) {
    return;
  }
  c.rng[0] = random_u64(), c.rng[1] = 77;
  size_t n = c.rows * c.cols;
  uint16_t *bits = host_memory(n * 2), matrix_bits[256];
  c.x = host_memory(n * 4);
  for (size_t i = 0; i < n; i++) {
    c.x[i] = (float)((int)(random_u64() % 255) - 127) / 64;
    if (c.zero_tile && i / c.cols < 128 && i % c.cols < 128) c.x[i] = 0;
    put_value(kNVTEBFloat16, bits, i, c.x[i]);
  }
  if (c.one_nan) {
    size_t i = random_below(n);
    c.x[i] = NAN;
    put_value(kNVTEBFloat16, bits, i, NAN);
  }
  for (unsigned k = 0; k < 16; k++) {
    for (unsigned j = 0; j < 16; j++) {
      unsigned minus = 0xD7E8 >> k & 1;
      for (unsigned both = k & j; both; both &= both - 1) minus ^= 1;
      float magnitude = c.general ? (float)(1 + random_below(15)) / 16 : 0.25f;
      if (c.general) minus = random_below(2) == 1;
      c.matrix[k][j] = minus ? -magnitude : magnitude;
      put_value(kNVTEBFloat16, matrix_bits, k * 16 + j, c.matrix[k][j]);
    }
  }
  Buffer *in = buffer_from(bits, n * 2, 0);
  NVTETensor input = tensor(in->ptr, kNVTEBFloat16, SHAPE(c.rows, c.cols));
  NVTETensor matrix = tensor(buffer_from(matrix_bits, 512, 0)->ptr, kNVTEBFloat16, SHAPE(16, 16));
  NVTETensor workspace = tensor(buffer(4)->ptr, kNVTEByte, SHAPE(4));
  // Row-wise data have one buffer; otherwise each member has one of each kind.
  bool in_rows = c.function == COLUMNS || c.function == SPLIT_COLUMNS;
  Buffer *row_data = buffer(n / 2), *row_scales = buffer(scale_count(&c, c.rows, c.cols));
  bool together = c.function == GROUPED;
  Buffer *col_data[MAX_MEMBERS], *col_scales[MAX_MEMBERS];
  NVTETensor outputs[MAX_MEMBERS] = {NULL};
  float *amax = host_memory(sizeof c.amax);
  for (size_t i = 0; i < c.members; i++) {
    c.amax[0][i] = 2 + (float)i, c.amax[1][i] = 7 + (float)i;
    if (c.special_amax && i % 2 == 0) c.amax[0][i] = c.amax[1][i] = *c.special_amax;
    amax[i] = c.amax[0][i], amax[MAX_MEMBERS + i] = c.amax[1][i];
  }
  Buffer *amaxes = buffer_from(amax, sizeof c.amax, 0);
  if (together) {
    col_data[0] = buffer(n / 2);
    col_scales[0] = buffer(scale_count(&c, c.cols, c.rows));
  }
  uint8_t flag = c.swizzled;
  size_t first = 0;
  for (size_t i = 0; i < c.members && !together; first += c.rows_of[i++]) {
    size_t rows = c.rows_of[i];
    if (rows == 0) continue;
    col_data[i] = buffer(rows * c.cols / 2);
    col_scales[i] = buffer(scale_count(&c, c.cols, rows));
    NVTETensor t = outputs[i] = tensor_of_mode(NVTE_NVFP4_1D_SCALING);
    nvte_set_tensor_param_v2(t, kNVTEWithGEMMSwizzledScales, &flag, sizeof flag);
    float *const at = (float *)amaxes->ptr + i;
    if (c.row) {
      set_param(t, kNVTERowwiseData, (char *)row_data->ptr + first * c.cols / 2, kNVTEFloat4E2M1,
                SHAPE(rows, c.cols));
      set_param(t, kNVTERowwiseScaleInv, (char *)row_scales->ptr + first * c.cols / 16,
                kNVTEFloat8E4M3, SHAPE(scale_count(&c, rows, c.cols) - c.short_row));
      set_param(t, kNVTEAmax, at, kNVTEFloat32, SHAPE(1));
    }
    if (c.col) {
      set_param(t, in_rows ? kNVTERowwiseData : kNVTEColumnwiseData, col_data[i]->ptr,
                kNVTEFloat4E2M1, SHAPE(c.cols, rows));
      set_param(t, in_rows ? kNVTERowwiseScaleInv : kNVTEColumnwiseScaleInv, col_scales[i]->ptr,
                kNVTEFloat8E4M3, SHAPE(col_scales[i]->bytes - c.short_col));
      set_param(t, in_rows ? kNVTEAmax : kNVTEColumnwiseAmax, at + MAX_MEMBERS, kNVTEFloat32,
                SHAPE(1));
    }
  }
  NVTEQuantizationConfig config = config_of(&c);
  bool good = true;
  switch (c.function) {
    case COLUMNS:
      nvte_hadamard_transform_cast_fusion_columnwise(input, outputs[0], matrix, config, NULL);
      break;
    case ROWS_AND_COLUMNS:
      nvte_quantize_with_hadamard_transform(input, outputs[0], matrix, config, NULL);
      break;
    case SPLIT_COLUMNS:
      nvte_group_hadamard_transform_cast_fusion_columnwise(input, outputs, matrix, c.rows_of,
                                                           c.members, config, NULL);
      break;
    case SPLIT:
      nvte_group_hadamard_transform_cast_fusion(input, outputs, matrix, c.rows_of, c.members,
                                                config, workspace, NULL);
      break;
    case GROUPED: {
      NVTEGroupedTensor from =
          nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, c.members, SHAPE(c.rows, c.cols));
      NVTEGroupedTensor to =
          nvte_create_grouped_tensor(NVTE_NVFP4_1D_SCALING, c.members, SHAPE(c.rows, c.cols));
#define SET(t, param, ptr, dtype, shape)                     \
  do {                                                       \
    NVTEBasicTensor b_ = basic(ptr, dtype, shape);           \
    nvte_set_grouped_tensor_param(t, param, &b_, sizeof b_); \
  } while (0)
      SET(from, kNVTEGroupedRowwiseData, in->ptr, kNVTEBFloat16, SHAPE(n));
      nvte_set_grouped_tensor_param(to, kNVTEGroupedWithGEMMSwizzledScales, &flag, sizeof flag);
      if (c.row) {
        SET(to, kNVTEGroupedRowwiseData, row_data->ptr, kNVTEFloat4E2M1, SHAPE(n));
        SET(to, kNVTEGroupedRowwiseScaleInv, row_scales->ptr, kNVTEFloat8E4M3,
            SHAPE(row_scales->bytes - c.short_row));
        SET(to, kNVTEGroupedAmax, amaxes->ptr, kNVTEFloat32, SHAPE(c.members));
      }
      if (c.col) {
        SET(to, kNVTEGroupedColumnwiseData, col_data[0]->ptr, kNVTEFloat4E2M1, SHAPE(n));
        SET(to, kNVTEGroupedColumnwiseScaleInv, col_scales[0]->ptr, kNVTEFloat8E4M3,
            SHAPE(col_scales[0]->bytes - c.short_col));
        SET(to, kNVTEGroupedColumnwiseAmax, (float *)amaxes->ptr + MAX_MEMBERS, kNVTEFloat32,
            SHAPE(c.members));
      }
      if (c.offsets) {
        int64_t offsets[MAX_MEMBERS + 1] = {0}, dims[MAX_MEMBERS];
        for (size_t i = 0; i < c.members; i++) {
          dims[i] = (int64_t)c.rows_of[i];
          offsets[i + 1] = offsets[i] + (int64_t)(c.rows_of[i] * c.cols);
        }
        SET(to, kNVTEGroupedFirstDims, buffer_from(dims, c.members * 8, 0)->ptr, kNVTEInt64,
            SHAPE(c.members));
        SET(to, kNVTEGroupedTensorOffsets, buffer_from(offsets, (c.members + 1) * 8, 0)->ptr,
            kNVTEInt64, SHAPE(c.members + 1));
      }
      nvte_group_hadamard_transform_cast_fusion_graph_safe(from, to, matrix, config, workspace,
                                                           NULL);
      good = ended_as_expected(&c);
      nvte_destroy_grouped_tensor(from);
      nvte_destroy_grouped_tensor(to);
    }
  }
  if (!together) good = ended_as_expected(&c);
  if (c.refused) {
    CHECK(untouched(row_data) && untouched(row_scales), "row-wise outputs were written");
    for (size_t i = 0; i < (together ? 1 : c.members); i++) {
      if (c.rows_of[i] == 0) continue;
      CHECK(untouched(col_data[i]) && untouched(col_scales[i]), "column-wise ones were written");
    }
  }
  if (!good) return;
  const unsigned char *data = buffer_read(row_data), *scales = buffer_read(row_scales);
  const unsigned char *all_data = together ? buffer_read(col_data[0]) : NULL;
  const unsigned char *all_scales = together ? buffer_read(col_scales[0]) : NULL;
  size_t bad = 0;
  first = 0;
  for (size_t i = 0; i < c.members && bad == 0; first += c.rows_of[i++]) {
    if (c.rows_of[i] == 0) continue;
    if (c.row) bad += check_member(&c, 0, i, first, data, scales, first);
    if (!c.col) continue;
    size_t at = first * c.cols;
    bad += check_member(&c, 1, i, first, together ? all_data + at / 2 : buffer_read(col_data[i]),
                        together ? all_scales + at / 16 : buffer_read(col_scales[i]), 0);
  }
}

// Swizzled scales of part of a tile: buffers of whole tiles hold them, shorter ones are refused.
static void test_partial_tiles(void) {
  static const size_t shapes[][2] = {{64, 64}, {128, 192}, {16, 16}, {80, 112}};
  for (int f = ROWS_AND_COLUMNS; f <= SPLIT; f++) {
    if (f == SPLIT_COLUMNS) continue;
    for (size_t s = 0; s < COUNT(shapes); s++) {
      Case c = {.function = (Function)f, .cols = shapes[s][1], .members = 1, .swizzled = true};
      c.rows_of[0] = shapes[s][0];
      c.row = c.col = true;
      run(c);
      c.short_row = true, c.refused = f == SPLIT ? "outputs[0].scale_inv" : "output.scale_inv";
      run(c);
      c.short_row = false, c.short_col = true;
      c.refused = f == SPLIT ? "outputs[0].columnwise_scale_inv" : "output.columnwise_scale_inv";
      run(c);
    }
  }
  // Two splits whose row-wise scales follow each other.
  Case split = {.function = SPLIT, .cols = 192, .members = 3, .rows_of = {128, 0, 256}};
  split.row = split.col = split.swizzled = true;
  run(split);
  for (int offsets = 0; offsets < 2; offsets++) {
    for (size_t cols = 64; cols <= 256; cols += 16) {
      for (int d = 0; d < 2; d++) {
        Case c = {.function = GROUPED, .cols = cols, .members = 2, .rows_of = {128, 128}};
        c.swizzled = true, c.offsets = offsets, c.row = d == 0, c.col = d == 1;
        if (cols % (d ? 128 : 64) != 0) c.refused = "output.logical_shape";
        run(c);
        if (c.refused) continue;
        c.short_row = d == 0, c.short_col = d == 1;
        c.refused = d ? "output.columnwise_scale_inv" : "output.scale_inv";
        run(c);
      }
    }
  }
  Case half = {.function = GROUPED, .cols = 128, .members = 2, .rows_of = {64, 64}};
  half.row = half.swizzled = true, half.refused = "output.logical_shape";
  run(half);
}

// Matrices, inputs and amax of other kinds, and sizes that are multiples of 16 alone.
static void test_kinds(void) {
  static const float amax[] = {0, INFINITY, NAN};
  static const size_t shapes[][2] = {{80, 112}, {48, 16}, {16, 144}, {208, 176}};
  for (int f = COLUMNS; f <= GROUPED; f++) {
    Case c = {.function = (Function)f, .cols = 256, .members = 1, .rows_of = {256}, .col = true};
    c.row = f != COLUMNS && f != SPLIT_COLUMNS;
    if (f >= SPLIT_COLUMNS) c.members = 3, c.rows_of[1] = c.rows_of[2] = 128;
    c.offsets = f == GROUPED;
    for (int fast = 0; fast < 2; fast++) {
      c.fast = fast;
      c.general = true;
      run(c);
      c.general = false, c.one_nan = true;
      run(c);
      c.one_nan = false;
      for (int stochastic = 0; stochastic < 2; stochastic++) {
        c.stochastic = stochastic;
        c.zero_tile = true;
        run(c);
        for (size_t i = 0; i < COUNT(amax); i++) {
          c.special_amax = &amax[i];
          run(c);
        }
        c.special_amax = NULL, c.zero_tile = c.stochastic = false;
      }
    }
    c.fast = false;
    for (size_t s = 0; s < COUNT(shapes); s++) {
      c.cols = shapes[s][1];
      c.offsets = false;
      for (size_t i = 0; i < c.members; i++) c.rows_of[i] = shapes[s][0];
      run(c);
    }
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_partial_tiles();
  test_kinds();
  for (int f = COLUMNS; f <= GROUPED; f++) {
    for (int options = 0; options < 12; options++) {
      Case c = {.function = (Function)f, .cols = 256, .members = 1, .rows_of = {256}};
      bool columns_only = f == COLUMNS || f == SPLIT_COLUMNS;
      c.col = true, c.row = !columns_only;
      c.stochastic = options & 1, c.fast = options & 2, c.swizzled = options / 4 == 1;
      if (columns_only && options >= 4) break;
      if (options / 4 == 2) c.col = options & 1, c.row = !c.col;
      if (f >= SPLIT_COLUMNS) {
        static const size_t rows[] = {128, 0, 384, 256, 0};
        memcpy(c.rows_of, rows, sizeof rows);
        c.members = COUNT(rows);
        c.offsets = f == GROUPED;
      }
      run(c);
      if (f == GROUPED) {
        c.offsets = false, c.members = 3;
        for (int i = 0; i < 3; i++) c.rows_of[i] = 128;
        run(c);
      }
      if (f <= ROWS_AND_COLUMNS && !c.swizzled) {
        c.rows_of[0] = 1344, c.cols = 128;
        run(c);
        c.rows_of[0] = 64, c.cols = 384;
        run(c);
      }
    }
  }
  return test_end();
}
