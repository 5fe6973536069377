// Dequantization of grouped tensors (quantize.md 6.1 to 6.4, 7.2): member by member, each entry of
// the scales found by the formulas of the layouts.
#include "nvte/cast.h"

#include "support.h"

enum { MAX_MEMBERS = 80 };

static size_t up(size_t a, size_t b) { return (a + b - 1) / b * b; }

typedef struct Group {
  NVTEScalingMode mode;
  NVTEDType in, out;
  Directions directions;
  bool swizzled, vary_rows, vary_cols;
  size_t count, rows[MAX_MEMBERS], cols[MAX_MEMBERS];
  size_t gap;    // Elements between members.
  size_t spare;  // Rows or columns of the logical shape that no member has.
  size_t shift;  // Bytes off the alignment: elements of the buffers.
  size_t at[MAX_MEMBERS + 1], capacity;
  NVTEShape logical;
  void *data, *scales;  // Data and scales of the direction that is read.
  Buffer *output;
  NVTEGroupedTensor input_tensor, output_tensor;
} Group;

static bool colwise(const Group *g) { return g->directions == COLWISE; }
static bool mx(const Group *g) { return g->mode == NVTE_MXFP8_1D_SCALING; }

// Entries of a member's scales before the padding of the second dimension, [first, second].
static void scale_shape(const Group *g, size_t rows, size_t cols, size_t *first, size_t *second) {
  size_t down = up(rows, 128) / 128, across = up(cols, 128) / 128;
  bool col = colwise(g);
  switch (g->mode) {
    case NVTE_MXFP8_1D_SCALING:
      *first = col ? up(up(rows, 32) / 32, 4) : up(rows, 128);
      *second = col ? up(cols, 128) : up(up(cols, 32) / 32, 4);
      break;
    case NVTE_BLOCK_SCALING_1D:
      *first = col ? down : across;
      *second = up(col ? cols : rows, 4);
      break;
    case NVTE_BLOCK_SCALING_2D:
      *first = col ? across : down;
      *second = up(col ? down : across, 4);
      break;
    default:
      *first = *second = 1;
  }
}

// The place of an element's scale among a member's scales.
static size_t scale_index(const Group *g, size_t rows, size_t cols, size_t row, size_t col) {
  size_t first, second;
  scale_shape(g, rows, cols, &first, &second);
  switch (g->mode) {
    case NVTE_MXFP8_1D_SCALING: {
      size_t i = colwise(g) ? col : row, j = (colwise(g) ? row : col) / 32;
      size_t tiles = up(colwise(g) ? rows : cols, 128) / 128;
      if (g->swizzled) {
        return ((i / 128) * tiles + j / 4) * 512 + (i % 32) * 16 + ((i % 128) / 32) * 4 + j % 4;
      }
      return colwise(g) ? row / 32 * second + col : row * second + col / 32;
    }
    case NVTE_BLOCK_SCALING_1D:
      return colwise(g) ? row / 128 * second + col : col / 128 * second + row;
    case NVTE_BLOCK_SCALING_2D:
      return colwise(g) ? col / 128 * second + row / 128 : row / 128 * second + col / 128;
    default:
      return 0;
  }
}

static void set_group(NVTEGroupedTensor t, NVTEGroupedTensorParam param, void *ptr, NVTEDType dtype,
                      NVTEShape shape) {
  NVTEBasicTensor b = basic(ptr, dtype, shape);
  nvte_set_grouped_tensor_param(t, param, &b, sizeof b);
  EXPECT_OK();
}

static void set_dims(const Group *g, NVTEGroupedTensor t) {
  int64_t rows[MAX_MEMBERS], cols[MAX_MEMBERS], at[MAX_MEMBERS + 1];
  for (size_t i = 0; i < g->count; i++)
    rows[i] = (int64_t)g->rows[i], cols[i] = (int64_t)g->cols[i];
  for (size_t i = 0; i <= g->count; i++) at[i] = (int64_t)g->at[i];
  if (g->vary_rows) {
    set_group(t, kNVTEGroupedFirstDims, buffer_from(rows, g->count * 8, 0)->ptr, kNVTEInt64,
              SHAPE(g->count));
  }
  if (g->vary_cols) {
    set_group(t, kNVTEGroupedLastDims, buffer_from(cols, g->count * 8, 0)->ptr, kNVTEInt64,
              SHAPE(g->count));
  }
  if (g->vary_rows || g->vary_cols || g->gap) {
    set_group(t, kNVTEGroupedTensorOffsets, buffer_from(at, (g->count + 1) * 8, 0)->ptr, kNVTEInt64,
              SHAPE(g->count + 1));
  }
}

// Random codes; scales of any value, mostly ordinary.
static void build(Group *g) {
  size_t row_sum = 0, col_sum = 0, entries = 0, first, second;
  for (size_t i = 0; i < g->count; i++) {
    g->at[i + 1] = g->at[i] + g->rows[i] * g->cols[i] + g->gap;
    row_sum += g->rows[i], col_sum += g->cols[i];
    scale_shape(g, g->rows[i], g->cols[i], &first, &second);
    entries += first * second;
  }
  size_t total = g->at[g->count];
  if (g->vary_rows && g->vary_cols) {
    g->logical = SHAPE(1, total + g->spare);
  } else if (g->vary_cols) {
    g->logical = SHAPE(g->rows[0], col_sum + g->spare);
  } else {
    g->logical = SHAPE(row_sum + g->spare, g->cols[0]);
  }
  size_t logical = numel(g->logical);
  g->capacity = logical > total ? logical : total;

  g->data = host_memory(g->capacity);
  for (size_t i = 0; i < g->capacity; i++)
    ((unsigned char *)g->data)[i] = (unsigned char)random_u64();
  size_t size = mx(g) ? 1 : 4;
  g->scales = host_memory(entries * size);
  for (size_t i = 0; i < entries; i++) {
    bool rare = random_below(50) == 0;
    if (mx(g)) {
      ((unsigned char *)g->scales)[i] =
          (unsigned char)(rare ? random_u64() : 110 + random_below(30));
    } else {
      ((float *)g->scales)[i] =
          rare ? float_of((uint32_t)random_u64()) : (float)random_uniform(-2, 3);
    }
  }
  Buffer *data = buffer_from(g->data, g->capacity, g->shift);
  Buffer *scales = buffer_from(g->scales, entries * size, g->shift * size);
  size_t out = dtype_size(g->out);
  g->output = buffer_shifted(g->capacity * out, g->shift * out);

  g->input_tensor = nvte_create_grouped_tensor(g->mode, g->count, g->logical);
  g->output_tensor = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, g->count, g->logical);
  NVTEDType scale_dtype = mx(g) ? kNVTEFloat8E8M0 : kNVTEFloat32;
  bool col = colwise(g);
  set_group(g->input_tensor, col ? kNVTEGroupedColumnwiseData : kNVTEGroupedRowwiseData, data->ptr,
            g->in, SHAPE(g->capacity));
  set_group(g->input_tensor, col ? kNVTEGroupedColumnwiseScaleInv : kNVTEGroupedRowwiseScaleInv,
            scales->ptr, scale_dtype, SHAPE(entries));
  if (g->directions == BOTH) {
    // Row-wise data must be read; these column-wise data would give something else.
    set_group(g->input_tensor, kNVTEGroupedColumnwiseData, buffer(g->capacity)->ptr, g->in,
              SHAPE(g->capacity));
    set_group(g->input_tensor, kNVTEGroupedColumnwiseScaleInv, scales->ptr, scale_dtype,
              SHAPE(entries));
  }
  if (g->swizzled) {
    uint8_t on = 1;
    nvte_set_grouped_tensor_param(g->input_tensor, kNVTEGroupedWithGEMMSwizzledScales, &on,
                                  sizeof on);
  }
  set_group(g->output_tensor, kNVTEGroupedRowwiseData, g->output->ptr, g->out, SHAPE(g->capacity));
  set_dims(g, g->input_tensor);
  set_dims(g, g->output_tensor);
  EXPECT_OK();
}

static void check(const Group *g) {
  const unsigned char *y = buffer_read(g->output);
  size_t out = dtype_size(g->out), base = 0, bad = 0, end = 0;
  bool *has = host_memory(g->capacity);
  for (size_t t = 0; t < g->count; t++) {
    size_t rows = g->rows[t], cols = g->cols[t], first, second;
    scale_shape(g, rows, cols, &first, &second);
    for (size_t i = 0; i < rows * cols; i++) {
      size_t row = i / cols, col = i % cols, at = base + scale_index(g, rows, cols, row, col);
      double scale;
      if (mx(g)) {
        unsigned char code = ((unsigned char *)g->scales)[at];
        scale = code == 255 ? (double)NAN : ldexp(1, code - 127);
      } else {
        scale = (double)((float *)g->scales)[at];
      }
      size_t from = g->at[t] + (colwise(g) && !mx(g) ? col * rows + row : i);
      // A product of two floats is exact in double: one rounding to float, one to the output.
      float v = (float)(get_value(g->in, g->data, from) * scale);
      uint32_t want = encode_bits(g->out, (double)v), got = get_bits(g->out, y, g->at[t] + i);
      has[g->at[t] + i] = true;
      if (bad < 3) {
        bad += !CHECK(same_bits(g->out, got, want),
                      "member %zu of %zux%zu, row %zu, col %zu: got 0x%x, expected 0x%x", t, rows,
                      cols, row, col, got, want);
      }
    }
    base += first * second;
    end = g->at[t] + rows * cols;
  }
  size_t written = 0;
  for (size_t i = 0; i < g->capacity * out; i++) {
    if (!has[i / out]) written += y[i] != POISON_VALUE;
  }
  CHECK(written == 0, "%zu bytes outside the members were written (they end at %zu)", written, end);
}

static void destroy(Group *g) {
  nvte_destroy_grouped_tensor(g->input_tensor);
  nvte_destroy_grouped_tensor(g->output_tensor);
  EXPECT_OK();
}

typedef struct Shapes {
  const char *name;
  bool vary_rows, vary_cols;
  size_t count, rows[6], cols[6];
} Shapes;

static const Shapes kShapes[] = {
    {"same", false, false, 3, {130, 130, 130}, {48, 48, 48}},
    {"same in tiles", false, false, 2, {128, 128}, {256, 256}},
    {"rows", true, false, 5, {128, 0, 384, 100, 1}, {96, 96, 96, 96, 96}},
    {"rows, odd", true, false, 4, {3, 129, 0, 31}, {77, 77, 77, 77}},
    {"columns", false, true, 4, {160, 160, 160, 160}, {128, 0, 80, 33}},
    {"both", true, true, 6, {128, 5, 0, 300, 1, 32}, {128, 7, 9, 20, 1000, 32}},
};

static const NVTEScalingMode kModes[] = {NVTE_DELAYED_TENSOR_SCALING, NVTE_MXFP8_1D_SCALING,
                                         NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D};

static void test_layouts(void) {
  unsigned turn = 0;
  for (size_t s = 0; s < COUNT(kShapes); s++) {
    for (size_t m = 0; m < COUNT(kModes); m++) {
      for (int k = 0; k < 6; k++) {
        Directions directions = k % 3 == 0 ? ROWWISE : k % 3 == 1 ? COLWISE : BOTH;
        bool swizzled = k >= 3;
        if (swizzled && kModes[m] != NVTE_MXFP8_1D_SCALING) continue;
        for (int misaligned = 0; misaligned < 2; misaligned++) {
          turn++;
          if (!case_begin("%s mode %d directions %d%s%s", kShapes[s].name, (int)kModes[m],
                          (int)directions, swizzled ? " swizzled" : "",
                          misaligned ? " misaligned" : "")) {
            continue;
          }
          Group g = {.mode = kModes[m],
                     .in = kFloat8[turn % 2],
                     .out = kHighPrecision[turn % 3],
                     .directions = directions,
                     .swizzled = swizzled,
                     .vary_rows = kShapes[s].vary_rows,
                     .vary_cols = kShapes[s].vary_cols,
                     .count = kShapes[s].count,
                     .spare = kShapes[s].vary_rows || kShapes[s].vary_cols ? 40 : 0,
                     .gap = kShapes[s].vary_rows && misaligned ? 5 : 0,
                     .shift = misaligned ? 1 : 0};
          memcpy(g.rows, kShapes[s].rows, sizeof kShapes[s].rows);
          memcpy(g.cols, kShapes[s].cols, sizeof kShapes[s].cols);
          build(&g);
          nvte_group_dequantize(g.input_tensor, g.output_tensor, NULL);
          EXPECT_OK();
          check(&g);
          destroy(&g);
        }
      }
    }
  }
}

static void test_many(void) {
  for (size_t m = 0; m < COUNT(kModes); m++) {
    for (int both = 0; both < 2; both++) {
      if (!case_begin("%d members mode %d%s", MAX_MEMBERS, (int)kModes[m], both ? " both" : "")) {
        continue;
      }
      Group g = {.mode = kModes[m],
                 .in = kNVTEFloat8E4M3,
                 .out = kNVTEBFloat16,
                 .directions = COLWISE,
                 .vary_rows = true,
                 .vary_cols = both,
                 .count = MAX_MEMBERS};
      for (size_t i = 0; i < g.count; i++) {
        g.rows[i] = random_below(4) ? random_below(200) : 0;
        g.cols[i] = both ? random_below(200) : 96;
      }
      build(&g);
      nvte_group_dequantize(g.input_tensor, g.output_tensor, NULL);
      EXPECT_OK();
      check(&g);
      destroy(&g);
    }
  }
}

// Nothing is written on an error.
static void expect_refused(Group *g, const char *argument) {
  nvte_group_dequantize(g->input_tensor, g->output_tensor, NULL);
  EXPECT_ERROR(ANY_ERROR, "nvte_group_dequantize: ", argument);
  CHECK(untouched(g->output), "the output was written");
  destroy(g);
}

static Group good(void) {
  Group g = {.mode = NVTE_BLOCK_SCALING_1D,
             .in = kNVTEFloat8E4M3,
             .out = kNVTEFloat32,
             .directions = ROWWISE,
             .vary_rows = true,
             .count = 2,
             .rows = {128, 128},
             .cols = {64, 64}};
  build(&g);
  return g;
}

static void test_errors(void) {
  if (case_begin("null input")) {
    nvte_group_dequantize(NULL, NULL, NULL);
    EXPECT_ERROR(ANY_ERROR, "nvte_group_dequantize: input: ");
  }
  if (case_begin("other number of members")) {
    Group g = good();
    nvte_destroy_grouped_tensor(g.output_tensor);
    g.output_tensor = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 3, g.logical);
    set_group(g.output_tensor, kNVTEGroupedRowwiseData, g.output->ptr, g.out, SHAPE(g.capacity));
    expect_refused(&g, "output.num_tensors: ");
  }
  if (case_begin("other shape")) {
    Group g = good();
    nvte_destroy_grouped_tensor(g.output_tensor);
    g.output_tensor = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 2, SHAPE(64, 256));
    set_group(g.output_tensor, kNVTEGroupedRowwiseData, g.output->ptr, g.out, SHAPE(g.capacity));
    expect_refused(&g, "output.logical_shape: ");
  }
  if (case_begin("FP8 output")) {
    Group g = good();
    set_group(g.output_tensor, kNVTEGroupedRowwiseData, g.output->ptr, kNVTEFloat8E4M3,
              SHAPE(g.capacity));
    expect_refused(&g, "output.data.dtype: ");
  }
  if (case_begin("output too small")) {
    Group g = good();
    set_group(g.output_tensor, kNVTEGroupedRowwiseData, g.output->ptr, g.out,
              SHAPE(g.capacity - 1));
    expect_refused(&g, "output.data.shape: ");
  }
  if (case_begin("input in high precision")) {
    Group g = good();
    set_group(g.input_tensor, kNVTEGroupedRowwiseData, buffer(g.capacity * 2)->ptr, kNVTEBFloat16,
              SHAPE(g.capacity));
    expect_refused(&g, "input.data.dtype: ");
  }
  if (case_begin("no scales")) {
    Group g = good();
    set_group(g.input_tensor, kNVTEGroupedRowwiseScaleInv, NULL, kNVTEFloat32, SHAPE(0));
    expect_refused(&g, "input.scale_inv: ");
  }
  if (case_begin("scales of another mode")) {
    Group g = good();
    set_group(g.input_tensor, kNVTEGroupedRowwiseScaleInv, buffer(4096)->ptr, kNVTEFloat8E8M0,
              SHAPE(4096));
    expect_refused(&g, "input.scale_inv.dtype: ");
  }
  if (case_begin("no offsets")) {
    Group g = good();
    set_group(g.input_tensor, kNVTEGroupedTensorOffsets, NULL, kNVTEInt64, SHAPE(0));
    expect_refused(&g, "input.tensor_offsets: ");
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_layouts();
  test_many();
  test_errors();
  return test_end();
}
