// Amax and casts of a part of a matrix (quantize.md 10.5 and 10.6), and of the members of grouped
// tensors (10.2).
#include "nvte/recipe.h"
#include "support.h"

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static const struct {
  size_t rows, cols, start, length;
} kShards[] = {{32, 64, 31, 3},         {64, 64, 1, 4094},        {64, 64, 0, 4096},
               {128, 128, 0, 0},        {256, 384, 128, 9000},    {256, 384, 4096, 40960},
               {130, 272, 16, 30000},   {130, 272, 0, 35360},     {300, 130, 777, 20001},
               {1, 5000, 17, 4000},     {5000, 1, 17, 4000},      {512, 256, 131071, 1},
               {160, 416, 8, 66000},    {97, 1000, 50000, 47000}, {640, 768, 100000, 262144},
               {1024, 96, 31 * 96, 960}};

typedef struct Shard {
  size_t rows, cols, start, length;
  NVTEDType dtype;
  void *values;
  Buffer *input;
  NVTETensor tensor;
} Shard;

static Shard shard_of(size_t s, NVTEDType dtype, bool misaligned) {
  Shard a = {kShards[s].rows,
             kShards[s].cols,
             kShards[s].start,
             kShards[s].length,
             dtype,
             NULL,
             NULL,
             NULL};
  size_t size = dtype_size(dtype);
  a.values = mixed_values(dtype, a.length, true);
  // Otherwise so that vectors of 16 bytes begin at every 16th column.
  a.input = buffer_from(a.values, a.length * size, misaligned ? size : a.start * size % 16);
  a.tensor = tensor(a.input->ptr, dtype, SHAPE(a.length));
  return a;
}

// max|x| over the shard in rows [row, row + height) and columns [col, col + width).
static double block_amax(const Shard *a, size_t row, size_t height, size_t col, size_t width) {
  double amax = 0;
  for (size_t r = row; r < row + height && r < a->rows; r++) {
    for (size_t c = col; c < col + width && c < a->cols; c++) {
      size_t at = r * a->cols + c;
      if (at < a->start || at >= a->start + a->length) continue;
      double x = fabs(get_value(a->dtype, a->values, at - a->start));
      if (x > amax) amax = x;
    }
  }
  return amax;
}

// ---- Blocks of 128 x 128

static void test_block_amax(void) {
  for (size_t s = 0; s < COUNT(kShards); s++) {
    for (int k = 0; k < 6; k++) {
      NVTEDType dtype = kHighPrecision[k / 2];
      bool misaligned = k & 1;
      if (!case_begin("block amax %zu %s%s", s, dtype_name(dtype),
                      misaligned ? " misaligned" : "")) {
        continue;
      }
      Shard a = shard_of(s, dtype, misaligned);
      size_t down = up(a.rows, 128) / 128, across = up(a.cols, 128) / 128;
      // Maxima go to every second column of a matrix that is wider by one.
      size_t step = misaligned ? 2 : 1, stride = step * across + (misaligned ? 1 : 0);
      Buffer *amax = buffer(down * stride * 4);
      nvte_fp8_block_scaling_compute_partial_amax(
          a.tensor, tensor(amax->ptr, kNVTEFloat32, SHAPE(down, stride)), a.rows, a.cols, stride,
          step, a.start, 128, NULL);
      if (!EXPECT_OK()) continue;
      const float *got = buffer_read(amax);
      for (size_t i = 0; i < down; i++) {
        for (size_t j = 0; j < stride; j++) {
          bool entry = j % step == 0 && j / step < across;
          float want = entry ? (float)block_amax(&a, i * 128, 128, j / step * 128, 128)
                             : float_of(0xFFFFFFFF);
          CHECK(same_float(got[i * stride + j], want), "[%zu][%zu]: got %a, expected %a", i, j,
                (double)got[i * stride + j], (double)want);
        }
      }
    }
  }
}

static void test_block_cast(void) {
  for (size_t s = 0; s < COUNT(kShards); s++) {
    for (int k = 0; k < 12; k++) {
      NVTEDType dtype = kHighPrecision[k / 4], out_dtype = kFloat8[k / 2 % 2];
      bool misaligned = k & 1;
      if (!case_begin("block cast %zu %s to %s%s", s, dtype_name(dtype), dtype_name(out_dtype),
                      misaligned ? " misaligned" : "")) {
        continue;
      }
      Shard a = shard_of(s, dtype, misaligned);
      size_t down = up(a.rows, 128) / 128, across = up(a.cols, 128) / 128, stride = up(across, 4);
      float *scales = host_memory(down * stride * 4);
      for (size_t i = 0; i < down * stride; i++) {
        scales[i] = i % 5 ? (float)random_uniform(-2, 500) : ldexpf(1, (int)random_below(200) - 99);
      }
      // The guards around the output are the rest of the matrix.
      Buffer *out = buffer_shifted(a.length, misaligned ? 3 : a.start % 16);
      nvte_fp8_block_scaling_partial_cast(
          a.tensor, tensor(out->ptr, k & 1 ? kNVTEByte : out_dtype, SHAPE(a.length)),
          tensor(buffer_from(scales, down * stride * 4, 0)->ptr, kNVTEFloat32, SHAPE(down, stride)),
          a.rows, a.cols, stride, 1, a.start, 128, out_dtype, NULL);
      if (!EXPECT_OK()) continue;
      const unsigned char *got = buffer_read(out);
      for (size_t i = 0, bad = 0; i < a.length && bad < 3; i++) {
        size_t row = (a.start + i) / a.cols, col = (a.start + i) % a.cols;
        float scale = scales[row / 128 * stride + col / 128];
        double x = get_value(dtype, a.values, i);
        uint32_t want = encode_bits(out_dtype, (float)(x * (double)scale));
        bad += !CHECK(got[i] == want, "[%zu]: %a * %a: got 0x%02x, expected 0x%02x", i, x,
                      (double)scale, got[i], want);
      }
    }
  }
}

// ---- MXFP8: blocks of 32 in rows and columns

static void test_mxfp8_amax(void) {
  for (size_t s = 0; s < COUNT(kShards); s++) {
    for (int k = 0; k < 18; k++) {
      NVTEDType dtype = kHighPrecision[k / 6];
      bool misaligned = k & 1;
      Directions directions = (Directions)(1 + k / 2 % 3);
      if (!case_begin("mxfp8 amax %zu %s%s %s", s, dtype_name(dtype),
                      misaligned ? " misaligned" : "",
                      directions == BOTH      ? "both"
                      : directions == ROWWISE ? "rowwise"
                                              : "columnwise")) {
        continue;
      }
      Shard a = shard_of(s, dtype, misaligned);
      size_t size = dtype_size(dtype), padded = up(a.cols, 128);
      // Both matrices are larger than they need be.
      size_t rows[2] = {up(a.rows, 128) + 128, up(up(a.rows, 32) / 32, 4)};
      size_t stride[2] = {padded / 32 + 4, padded + 128};
      Buffer *amax[2] = {NULL, NULL};
      NVTETensor t[2] = {NULL, NULL};
      for (int d = 0; d < 2; d++) {
        if (!(directions & (d ? COLWISE : ROWWISE))) continue;
        amax[d] = buffer_shifted(rows[d] * stride[d] * size, misaligned ? size : 0);
        t[d] = tensor(amax[d]->ptr, dtype, SHAPE(rows[d], stride[d]));
      }
      nvte_mxfp8_scaling_compute_partial_amax(a.tensor, t[0], t[1], (int)a.rows, (int)a.cols,
                                              a.start, NULL);
      if (!EXPECT_OK()) continue;
      for (int d = 0; d < 2; d++) {
        if (!amax[d]) continue;
        const void *got = buffer_read(amax[d]);
        size_t written_rows = d ? up(a.rows, 32) / 32 : a.rows, bad = 0;
        size_t written_cols = d ? padded : padded / 32;
        for (size_t i = 0; i < rows[d]; i++) {
          for (size_t j = 0; j < stride[d] && bad < 3; j++) {
            uint32_t bits = get_bits(dtype, got, i * stride[d] + j);
            if (i >= written_rows || j >= written_cols) {
              bad += !CHECK(bits == (uint32_t)((1ull << 8 * size) - 1),
                            "entry [%zu][%zu] was written", i, j);
              continue;
            }
            double want = d ? block_amax(&a, i * 32, 32, j, 1) : block_amax(&a, i, 1, j * 32, 32);
            bad += !CHECK(bits == encode_bits(dtype, want), "%d [%zu][%zu]: got %a, expected %a", d,
                          i, j, decode_bits(dtype, bits), want);
          }
        }
      }
    }
  }
}

// 1 / 2^(code - 127)
static double reciprocal(unsigned char code) {
  return code == 255 ? (double)NAN : ldexp(1, 127 - code);
}

static void test_mxfp8_cast(void) {
  for (size_t s = 0; s < COUNT(kShards); s++) {
    for (int k = 0; k < 24; k++) {
      NVTEDType dtype = kHighPrecision[k / 8], out_dtype = kFloat8[k / 4 % 2];
      bool misaligned = k & 1, byte = (k & 2) && out_dtype == kNVTEFloat8E4M3;
      Directions directions = (k & 2) == 0 ? BOTH : k & 1 ? ROWWISE : COLWISE;
      if (!case_begin("mxfp8 cast %zu %s to %s%s %d", s, dtype_name(dtype), dtype_name(out_dtype),
                      misaligned ? " misaligned" : "", (int)directions)) {
        continue;
      }
      Shard a = shard_of(s, dtype, misaligned);
      size_t rows[2] = {up(a.rows, 128), up(up(a.rows, 32) / 32, 4)};
      size_t stride[2] = {up(up(a.cols, 32) / 32, 4), up(a.cols, 128)};
      unsigned char *codes[2] = {NULL, NULL};
      Buffer *out[2] = {NULL, NULL};
      NVTETensor out_tensor[2] = {NULL, NULL}, code_tensor[2] = {NULL, NULL};
      for (int d = 0; d < 2; d++) {
        if (!(directions & (d ? COLWISE : ROWWISE))) continue;
        size_t n = rows[d] * stride[d];
        codes[d] = host_memory(n);
        for (size_t i = 0; i < n; i++) {
          codes[d][i] = (unsigned char)(i % 7 ? 110 + random_below(30) : random_u64());
        }
        out[d] = buffer_shifted(a.length, misaligned ? 5 : a.start % 16);
        out_tensor[d] = tensor(out[d]->ptr, byte ? kNVTEByte : out_dtype, SHAPE(a.length));
        code_tensor[d] = tensor(buffer_from(codes[d], n, misaligned)->ptr,
                                k & 2 ? kNVTEByte : kNVTEFloat8E8M0, SHAPE(rows[d], stride[d]));
      }
      nvte_mxfp8_scaling_partial_cast(a.tensor, out_tensor[0], out_tensor[1], code_tensor[0],
                                      code_tensor[1], (int)a.rows, (int)a.cols, a.start, NULL);
      if (!EXPECT_OK()) continue;
      for (int d = 0; d < 2; d++) {
        if (!out[d]) continue;
        const unsigned char *got = buffer_read(out[d]);
        for (size_t i = 0, bad = 0; i < a.length && bad < 3; i++) {
          size_t row = (a.start + i) / a.cols, col = (a.start + i) % a.cols;
          size_t at = d ? row / 32 * stride[1] + col : row * stride[0] + col / 32;
          double x = get_value(dtype, a.values, i), factor = reciprocal(codes[d][at]);
          uint32_t want = encode_bits(out_dtype, (float)(x * factor));
          bad += !CHECK(got[i] == want, "%d [%zu]: %a * %a: got 0x%02x, expected 0x%02x", d, i, x,
                        factor, got[i], want);
        }
      }
    }
  }
}

// Offsets of elements past 2^31: the end of a matrix of 2^31 + 2^20 elements.
static void test_far_offset(void) {
  if (!case_begin("mxfp8 cast past 2^31")) return;
  size_t rows = 2049, cols = 1 << 20, length = 1000, stride = cols / 32;
  size_t start = rows * cols - length, bytes = up(rows, 128) * stride;
  Buffer *codes = buffer(bytes), *out = buffer(length);
  unsigned char *last = host_memory(stride);
  for (size_t i = 0; i < stride; i++) last[i] = (unsigned char)(120 + i % 8);
  upload(codes->ptr + (rows - 1) * stride, last, stride);
  float *x = host_memory(length * 4);
  for (size_t i = 0; i < length; i++) x[i] = (float)random_uniform(-2, 1);
  nvte_mxfp8_scaling_partial_cast(
      tensor(buffer_from(x, length * 4, 0)->ptr, kNVTEFloat32, SHAPE(length)),
      tensor(out->ptr, kNVTEFloat8E4M3, SHAPE(length)), NULL,
      tensor(codes->ptr, kNVTEFloat8E8M0, SHAPE(up(rows, 128), stride)), NULL, (int)rows, (int)cols,
      start, NULL);
  if (!EXPECT_OK()) return;
  const unsigned char *got = buffer_read(out);
  for (size_t i = 0; i < length; i++) {
    double factor = reciprocal(last[(cols - length + i) / 32]);
    CHECK_EQ(got[i], encode_bits(kNVTEFloat8E4M3, (double)x[i] * factor));
  }
}

// ---- Groups

typedef struct Group {
  size_t n, rows, cols, capacity;  // logical shape, elements of the input
  int64_t *first, *last, *offsets;
} Group;

static void set_grouped(NVTEGroupedTensor t, NVTEGroupedTensorParam param, void *ptr,
                        NVTEDType dtype, size_t n) {
  NVTEBasicTensor b = basic(ptr, dtype, SHAPE(n));
  nvte_set_grouped_tensor_param(t, param, &b, sizeof b);
}

static NVTEGroupedTensor grouped(const Group *g) {
  NVTEGroupedTensor t =
      nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, g->n, SHAPE(g->rows, g->cols));
  size_t n = g->n;
  if (g->first) {
    set_grouped(t, kNVTEGroupedFirstDims, buffer_from(g->first, n * 8, 0)->ptr, kNVTEInt64, n);
  }
  if (g->last) {
    set_grouped(t, kNVTEGroupedLastDims, buffer_from(g->last, n * 8, 0)->ptr, kNVTEInt64, n);
  }
  if (g->offsets) {
    set_grouped(t, kNVTEGroupedTensorOffsets, buffer_from(g->offsets, (n + 1) * 8, 0)->ptr,
                kNVTEInt64, n + 1);
  }
  return t;
}

// kind: bit 0 varying rows, bit 1 varying columns, bit 2 offsets with gaps.
static Group group_of(size_t n, int kind, size_t rows, size_t cols) {
  Group g = {n, rows, cols, 0, NULL, NULL, NULL};
  int64_t *first = host_memory(n * 8), *last = host_memory(n * 8);
  int64_t *offsets = host_memory((n + 1) * 8);
  size_t sum_rows = 0, sum_cols = 0;
  for (size_t i = 0; i < n; i++) {
    first[i] = (int64_t)(kind & 1 ? (i % 6 == 1 ? 0 : random_below(2 * rows + 1)) : rows);
    last[i] = (int64_t)(kind & 2 ? (i % 6 == 3 ? 0 : random_below(2 * cols + 1)) : cols);
    sum_rows += (size_t)first[i];
    sum_cols += (size_t)last[i];
    offsets[i + 1] = offsets[i] + first[i] * last[i] + (kind & 4 ? (int64_t)random_below(50) : 0);
  }
  g.rows = kind & 2 ? rows : sum_rows;
  g.cols = kind & 2 ? sum_cols : cols;
  if ((kind & 3) == 3) g.rows = 1, g.cols = (size_t)offsets[n];
  // The capacity is larger than what is live.
  g.capacity = (size_t)offsets[n] + 100;
  if (g.capacity < g.rows * g.cols) g.capacity = g.rows * g.cols;
  if (kind & 1) g.first = first;
  if (kind & 2) g.last = last;
  if (kind & 7) g.offsets = offsets;
  return g;
}

static void test_group_amax(void) {
  const size_t shapes[][3] = {{1, 1, 1},       {1, 300, 333}, {3, 128, 80}, {8, 100, 96},
                              {128, 33, 70},   {600, 7, 5},   {4, 0, 16},   {2, 513, 1024},
                              {33, 1024, 128}, {2000, 1, 3}};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (int kind = 0; kind < 8; kind++) {
      NVTEDType dtype = kHighPrecision[(s + (size_t)kind) % 3];
      bool misaligned = (s + (size_t)kind / 3) % 2;
      if (!case_begin("group amax %zu of %zux%zu kind %d %s%s", shapes[s][0], shapes[s][1],
                      shapes[s][2], kind, dtype_name(dtype), misaligned ? " misaligned" : "")) {
        continue;
      }
      Group g = group_of(shapes[s][0], kind, shapes[s][1], shapes[s][2]);
      size_t size = dtype_size(dtype);
      void *x = mixed_values(dtype, g.capacity, true);
      Buffer *input = buffer_from(x, g.capacity * size, misaligned ? size : 0);
      Buffer *amax = buffer(g.n * 4);  // NaN before: set, not accumulated
      NVTEGroupedTensor in = grouped(&g), out = grouped(&g);
      set_grouped(in, kNVTEGroupedRowwiseData, input->ptr, dtype, g.capacity);
      set_grouped(out, kind & 1 ? kNVTEGroupedColumnwiseAmax : kNVTEGroupedAmax, amax->ptr,
                  kNVTEFloat32, g.n);
      nvte_group_compute_amax_with_config(in, out, NULL, NULL);
      if (EXPECT_OK()) {
        const float *got = buffer_read(amax);
        size_t at = 0;
        for (size_t i = 0; i < g.n; i++) {
          size_t rows = g.first ? (size_t)g.first[i] : g.last ? g.rows : g.rows / g.n;
          size_t cols = g.last ? (size_t)g.last[i] : g.cols;
          if (g.offsets) at = (size_t)g.offsets[i];
          float want = amax_of(dtype, (char *)x + at * size, rows * cols);
          CHECK(same_float(got[i], want), "member %zu: got %a, expected %a", i, (double)got[i],
                (double)want);
          at += rows * cols;
        }
      }
      nvte_destroy_grouped_tensor(in);
      nvte_destroy_grouped_tensor(out);
    }
  }
}

static void test_group_noop(void) {
  const float flags[] = {1, 0, 0.5f};
  for (size_t k = 0; k < COUNT(flags); k++) {
    if (!case_begin("group flag %g", (double)flags[k])) continue;
    float x[6] = {1, -7, 2, 3, 4, -5};
    Group g = {2, 2, 3, 6, NULL, NULL, NULL};
    Buffer *amax = buffer(8), *scale = buffer(8), *scale_inv = buffer(8);
    NVTEGroupedTensor in = grouped(&g), out = grouped(&g);
    set_grouped(in, kNVTEGroupedRowwiseData, buffer_from(x, sizeof x, 0)->ptr, kNVTEFloat32, 6);
    set_grouped(out, kNVTEGroupedRowwiseData, NULL, kNVTEFloat8E4M3, 6);
    set_grouped(out, kNVTEGroupedAmax, amax->ptr, kNVTEFloat32, 2);
    set_grouped(out, kNVTEGroupedScale, scale->ptr, kNVTEFloat32, 2);
    set_grouped(out, kNVTEGroupedRowwiseScaleInv, scale_inv->ptr, kNVTEFloat32, 2);
    NVTEQuantizationConfig config = quant_config();
    NVTETensor noop = float_tensor(buffer_float(flags[k]));
    set_quant(config, kNVTEQuantizationConfigNoopTensor, &noop, sizeof noop);
    nvte_group_compute_amax_with_config(in, out, config, NULL);
    nvte_group_compute_scale_from_amax(out, config, NULL);
    EXPECT_OK();
    if (flags[k] == 1) {
      CHECK(untouched(amax) && untouched(scale) && untouched(scale_inv), "something was written");
    } else {
      const float *got = buffer_read(amax), *scales = buffer_read(scale);
      CHECK(got[0] == 7 && got[1] == 5, "amax %g, %g", (double)got[0], (double)got[1]);
      volatile float fifth = 448.0f / 5;
      CHECK(scales[0] == 64 && scales[1] == fifth, "scale %g, %g", (double)scales[0],
            (double)scales[1]);
    }
    nvte_destroy_grouped_tensor(in);
    nvte_destroy_grouped_tensor(out);
  }
}

static void test_group_scale(void) {
  const float amax[] = {0,          2,    3,     1e-45f,  FLT_MAX, (float)INFINITY,
                        (float)NAN, 0.5f, 1e-6f, 57344.0f};
  const float e4m3[] = {1, 224, 149.33333f, FLT_MAX, 448 / FLT_MAX, 1, 1, 896, 448e6f, 0.0078125f};
  for (int k = 0; k < 12; k++) {
    bool many = k & 1, pow2 = k & 2;
    int inverses = k / 4;  // rowwise, columnwise, both
    if (!case_begin("group scale %s%s inverse %d", many ? "many" : "few", pow2 ? " pow2" : "",
                    inverses)) {
      continue;
    }
    size_t n = many ? 1000 : COUNT(amax);
    float *values = host_memory(n * 4);
    for (size_t i = 0; i < n; i++) values[i] = amax[i % COUNT(amax)];
    Group g = {n, n, 1, n, NULL, NULL, NULL};
    NVTEGroupedTensor out = grouped(&g);
    Buffer *scale = buffer(n * 4), *inverse[2] = {buffer(n * 4), buffer(n * 4)};
    set_grouped(out, kNVTEGroupedRowwiseData, NULL, kNVTEFloat8E4M3, n);
    set_grouped(out, kNVTEGroupedAmax, buffer_from(values, n * 4, 0)->ptr, kNVTEFloat32, n);
    set_grouped(out, kNVTEGroupedScale, scale->ptr, kNVTEFloat32, n);
    if (inverses != 1) {
      set_grouped(out, kNVTEGroupedRowwiseScaleInv, inverse[0]->ptr, kNVTEFloat32, n);
    }
    if (inverses != 0) {
      set_grouped(out, kNVTEGroupedColumnwiseScaleInv, inverse[1]->ptr, kNVTEFloat32, n);
    }
    NVTEQuantizationConfig config = NULL;
    if (pow2) {
      uint8_t flag = 1;
      config = quant_config();
      set_quant(config, kNVTEQuantizationConfigForcePow2Scales, &flag, sizeof flag);
    }
    nvte_group_compute_scale_from_amax(out, config, NULL);
    if (EXPECT_OK()) {
      const float *got = buffer_read(scale);
      for (size_t i = 0; i < n; i++) {
        float want = e4m3[i % COUNT(amax)];
        if (i % COUNT(amax) == 8) {
          volatile float quotient = 448.0f / 1e-6f;
          want = quotient;
        }
        if (pow2) want = float_of(bits_of(want) & 0xFF800000u);
        CHECK(same_float(got[i], want), "scale[%zu]: got %a, expected %a", i, (double)got[i],
              (double)want);
        for (int d = 0; d < 2; d++) {
          if (inverses == 1 - d) {
            CHECK(bits_of(((float *)buffer_read(inverse[d]))[i]) == 0xFFFFFFFF, "written");
            continue;
          }
          volatile float one_over = 1 / want;
          CHECK_FLOAT(((float *)buffer_read(inverse[d]))[i], one_over);
        }
      }
    }
    nvte_destroy_grouped_tensor(out);
  }
}

// ---- Wrong arguments: nothing is written

static void test_errors(void) {
  if (case_begin("error: blocks")) {
    const char *amax_name = "nvte_fp8_block_scaling_compute_partial_amax";
    const char *cast_name = "nvte_fp8_block_scaling_partial_cast";
    Buffer *to = buffer(64), *from = buffer(400);
    NVTETensor in = tensor(from->ptr, kNVTEFloat32, SHAPE(100));
    NVTETensor amax = tensor(to->ptr, kNVTEFloat32, SHAPE(1, 1));
    nvte_fp8_block_scaling_compute_partial_amax(in, amax, 10, 10, 1, 1, 1, 128, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "start_offset");
    nvte_fp8_block_scaling_compute_partial_amax(in, amax, 10, 10, 1, 1, SIZE_MAX, 128, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "start_offset");
    nvte_fp8_block_scaling_compute_partial_amax(in, amax, SIZE_MAX, 10, 1, 1, 0, 128, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "matrix");
    nvte_fp8_block_scaling_compute_partial_amax(in, amax, 10, 10, 1, 1, 0, 64, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "block_len", "128");
    nvte_fp8_block_scaling_compute_partial_amax(in, amax, 200, 10, 1, 1, 0, 128, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "amax.shape", "2 x 1");
    nvte_fp8_block_scaling_compute_partial_amax(in, NULL, 10, 10, 1, 1, 0, 128, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "amax");
    NVTETensor codes = tensor(to->ptr, kNVTEByte, SHAPE(64));
    nvte_fp8_block_scaling_compute_partial_amax(codes, amax, 10, 10, 1, 1, 0, 128, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "inp.dtype");
    nvte_fp8_block_scaling_partial_cast(in, codes, amax, 10, 10, 1, 1, 0, 128, kNVTEFloat8E4M3,
                                        NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, cast_name, "out.shape", "100");
    nvte_fp8_block_scaling_partial_cast(in, in, amax, 10, 10, 1, 1, 0, 128, kNVTEFloat8E4M3, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, cast_name, "out.dtype");
    nvte_fp8_block_scaling_partial_cast(in, codes, amax, 10, 10, 1, 1, 0, 128, kNVTEBFloat16, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, cast_name, "out_dtype");
    CHECK(untouched(to), "something was written");
  }
  if (case_begin("error: mxfp8")) {
    const char *amax_name = "nvte_mxfp8_scaling_compute_partial_amax";
    const char *cast_name = "nvte_mxfp8_scaling_partial_cast";
    Buffer *to = buffer(2048), *from = buffer(400);
    NVTETensor in = tensor(from->ptr, kNVTEFloat32, SHAPE(100));
    NVTETensor amax = tensor(to->ptr, kNVTEFloat32, SHAPE(128, 4));
    NVTETensor codes = tensor(to->ptr, kNVTEByte, SHAPE(128, 4));
    NVTETensor out = tensor(to->ptr, kNVTEFloat8E4M3, SHAPE(100));
    NVTETensor other = tensor(to->ptr, kNVTEFloat8E5M2, SHAPE(100));
    nvte_mxfp8_scaling_compute_partial_amax(in, amax, NULL, -1, 10, 0, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "rows");
    nvte_mxfp8_scaling_compute_partial_amax(in, amax, NULL, 10, 10, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "start_offset");
    nvte_mxfp8_scaling_compute_partial_amax(in, amax, amax, 10, 10, 0, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "amax_colwise.shape");
    nvte_mxfp8_scaling_compute_partial_amax(in, codes, NULL, 10, 10, 0, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "amax_rowwise.dtype", "Float32");
    nvte_mxfp8_scaling_compute_partial_amax(in, NULL, NULL, 10, 10, 0, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "amax_rowwise", "nothing");
    nvte_mxfp8_scaling_partial_cast(in, out, NULL, NULL, NULL, 10, 10, 0, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, cast_name, "scale_inv_rowwise");
    nvte_mxfp8_scaling_partial_cast(in, NULL, NULL, codes, NULL, 10, 10, 0, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, cast_name, "output_rowwise");
    nvte_mxfp8_scaling_partial_cast(in, NULL, NULL, NULL, NULL, 10, 10, 0, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, cast_name, "output_rowwise");
    nvte_mxfp8_scaling_partial_cast(in, codes, NULL, codes, NULL, 10, 10, 0, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, cast_name, "output_rowwise.shape", "100");
    NVTETensor by_col = tensor(to->ptr, kNVTEByte, SHAPE(4, 128));
    nvte_mxfp8_scaling_partial_cast(in, out, other, codes, by_col, 10, 10, 0, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, cast_name, "output_colwise.dtype", "Float8E4M3");
    CHECK(untouched(to), "something was written");
  }
  if (case_begin("error: groups")) {
    const char *amax_name = "nvte_group_compute_amax_with_config";
    const char *scale_name = "nvte_group_compute_scale_from_amax";
    Buffer *amax = buffer(8), *x = buffer(48);
    Group g = {2, 4, 3, 12, NULL, NULL, NULL}, four = {4, 4, 3, 12, NULL, NULL, NULL};
    NVTEGroupedTensor in = grouped(&g), out = grouped(&g), other = grouped(&four);
    nvte_group_compute_amax_with_config(in, out, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "input.data");
    set_grouped(in, kNVTEGroupedRowwiseData, x->ptr, kNVTEFloat32, 11);
    nvte_group_compute_amax_with_config(in, out, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "input.data.shape", "12");
    set_grouped(in, kNVTEGroupedRowwiseData, x->ptr, kNVTEFloat32, 12);
    nvte_group_compute_amax_with_config(in, out, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "output.amax", "nothing");
    set_grouped(out, kNVTEGroupedAmax, amax->ptr, kNVTEFloat32, 1);
    nvte_group_compute_amax_with_config(in, out, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "output.amax.shape", "2");
    nvte_group_compute_amax_with_config(in, other, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "output.num_tensors");
    set_grouped(out, kNVTEGroupedAmax, amax->ptr, kNVTEFloat32, 2);
    nvte_group_compute_scale_from_amax(out, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, scale_name, "output.dtype");
    set_grouped(out, kNVTEGroupedRowwiseData, NULL, kNVTEFloat8E4M3, 12);
    nvte_group_compute_scale_from_amax(out, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, scale_name, "output.scale_inv");
    set_grouped(out, kNVTEGroupedColumnwiseScaleInv, x->ptr, kNVTEFloat32, 2);
    nvte_group_compute_scale_from_amax(out, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, scale_name, "output.scale");
    set_grouped(in, kNVTEGroupedRowwiseData, x->ptr, kNVTEFloat8E4M3, 12);
    nvte_group_compute_amax_with_config(in, out, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, amax_name, "input.dtype");
    CHECK(untouched(amax) && untouched(x), "something was written");
    nvte_destroy_grouped_tensor(in);
    nvte_destroy_grouped_tensor(out);
    nvte_destroy_grouped_tensor(other);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_block_amax();
  test_block_cast();
  test_mxfp8_amax();
  test_mxfp8_cast();
  test_far_offset();
  test_group_amax();
  test_group_noop();
  test_group_scale();
  test_errors();
  return test_end();
}
