// Order of block scales: compact matrices and 128 x 4 tiles (moe_layout.md, section 12).
#include "nvte/swizzle.h"

#include "support.h"

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// One direction of data [rows, cols], as the table of 12.1 has it.
typedef struct Matrix {
  size_t m, k, valid_m, valid_k;
  bool transposed;  // compact: [k, m]
} Matrix;

static Matrix matrix_of(bool nvfp4, bool colwise, size_t rows, size_t cols) {
  size_t block = nvfp4 ? 16 : 32;
  Matrix a;
  a.valid_m = colwise ? cols : rows;
  a.valid_k = ((colwise ? rows : cols) + block - 1) / block;
  a.m = up(a.valid_m, 128);
  a.k = up(a.valid_k, 4);
  a.transposed = colwise && !nvfp4;
  return a;
}

static size_t compact_at(Matrix a, size_t m, size_t k) {
  return a.transposed ? k * a.m + m : m * a.k + k;
}

static size_t tiled_at(Matrix a, size_t m, size_t k) {
  return (m / 128 * (a.k / 4) + k / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4;
}

static NVTEShape scale_shape(Matrix a) { return a.transposed ? SHAPE(a.k, a.m) : SHAPE(a.m, a.k); }

static unsigned char *random_bytes(size_t n) {
  unsigned char *bytes = host_memory(n);
  for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)random_u64();
  return bytes;
}

// What swizzling and unswizzling must give.
static unsigned char *to_tiles(Matrix a, const unsigned char *compact) {
  unsigned char *tiles = host_memory(a.m * a.k);
  for (size_t m = 0; m < a.valid_m && m < a.m; m++) {
    for (size_t k = 0; k < a.valid_k && k < a.k; k++) {
      tiles[tiled_at(a, m, k)] = compact[compact_at(a, m, k)];
    }
  }
  return tiles;
}

static unsigned char *to_compact(Matrix a, const unsigned char *tiles) {
  unsigned char *compact = host_memory(a.m * a.k);
  for (size_t m = 0; m < a.m; m++) {
    for (size_t k = 0; k < a.k; k++) compact[compact_at(a, m, k)] = tiles[tiled_at(a, m, k)];
  }
  return compact;
}

static void check_bytes(const Buffer *got, const unsigned char *expected) {
  const unsigned char *bytes = buffer_read(got);
  for (size_t i = 0, bad = 0; i < got->bytes && bad < 3; i++) {
    bad += !CHECK(bytes[i] == expected[i], "byte %zu: got 0x%02x, expected 0x%02x", i, bytes[i],
                  expected[i]);
  }
}

// ---- Tensors: data without an address, scales in one direction

static NVTETensor scaled_tensor(bool nvfp4, bool swizzled) {
  NVTETensor t = tensor_of_mode(nvfp4 ? NVTE_NVFP4_1D_SCALING : NVTE_MXFP8_1D_SCALING);
  uint8_t flag = swizzled;
  nvte_set_tensor_param_v2(t, kNVTEWithGEMMSwizzledScales, &flag, sizeof flag);
  return t;
}

static void add_direction(NVTETensor t, bool nvfp4, bool colwise, size_t rows, size_t cols,
                          void *scales, NVTEShape shape) {
  NVTEShape data = colwise && nvfp4 ? SHAPE(cols, rows) : SHAPE(rows, cols);
  set_param(t, colwise ? kNVTEColumnwiseData : kNVTERowwiseData, NULL,
            nvfp4 ? kNVTEFloat4E2M1 : kNVTEFloat8E4M3, data);
  set_param(t, colwise ? kNVTEColumnwiseScaleInv : kNVTERowwiseScaleInv, scales,
            nvfp4 ? kNVTEFloat8E4M3 : kNVTEFloat8E8M0, shape);
}

static NVTETensor one_direction(bool nvfp4, bool colwise, bool swizzled, size_t rows, size_t cols,
                                void *scales) {
  NVTETensor t = scaled_tensor(nvfp4, swizzled);
  add_direction(t, nvfp4, colwise, rows, cols, scales,
                scale_shape(matrix_of(nvfp4, colwise, rows, cols)));
  return t;
}

static const size_t kShapes[][2] = {{1, 1},       {128, 128},  {127, 129},   {33, 96},
                                    {160, 64},    {200, 40},   {129, 4100},  {130, 272},
                                    {1000, 777},  {96, 1},     {128, 33000}, {16896, 128},
                                    {2880, 2880}, {3968, 128}, {128, 3968}};

static void test_single(void) {
  for (size_t s = 0; s < COUNT(kShapes); s++) {
    for (int kind = 0; kind < 8; kind++) {
      bool nvfp4 = kind & 1, colwise = kind & 2, misaligned = kind & 4;
      size_t rows = kShapes[s][0], cols = kShapes[s][1];
      if (!case_begin("single %zux%zu %s %s%s", rows, cols, nvfp4 ? "NVFP4" : "MXFP8",
                      colwise ? "columnwise" : "rowwise", misaligned ? " misaligned" : "")) {
        continue;
      }
      Matrix a = matrix_of(nvfp4, colwise, rows, cols);
      size_t n = a.m * a.k;
      unsigned char *values = random_bytes(n);
      Buffer *compact = buffer_from(values, n, misaligned ? 1 : 0);
      Buffer *tiles = buffer_shifted(n, misaligned ? 7 : 0), *back = buffer_shifted(n, misaligned);
      nvte_swizzle_scaling_factors(one_direction(nvfp4, colwise, false, rows, cols, compact->ptr),
                                   one_direction(nvfp4, colwise, true, rows, cols, tiles->ptr),
                                   NULL);
      if (!EXPECT_OK()) continue;
      check_bytes(tiles, to_tiles(a, values));
      check_bytes(compact, values);
      // And back, from tiles with any bytes in the padding.
      unsigned char *other = random_bytes(n);
      upload(tiles->ptr, other, n);
      nvte_unswizzle_scaling_factors(one_direction(nvfp4, colwise, true, rows, cols, tiles->ptr),
                                     one_direction(nvfp4, colwise, false, rows, cols, back->ptr),
                                     NULL);
      if (!EXPECT_OK()) continue;
      check_bytes(back, to_compact(a, other));
    }
  }
}

// The places that the definition gives by hand: K = 4, 8, 12.
static void test_places(void) {
  const struct {
    size_t blocks, m, k, at;
  } places[] = {{4, 0, 0, 0},      {4, 1, 0, 16},     {4, 32, 0, 4},
                {4, 127, 3, 511},  {8, 0, 4, 512},    {8, 130, 5, 1569},
                {8, 200, 6, 1674}, {8, 255, 7, 2047}, {12, 96, 2, 14}};
  for (size_t p = 0; p < COUNT(places); p++) {
    if (!case_begin("place %zu", p)) continue;
    size_t cols = places[p].blocks * 32, n = 256 * places[p].blocks;
    unsigned char *values = host_memory(n);
    values[places[p].m * places[p].blocks + places[p].k] = 0x7B;
    Buffer *tiles = buffer(n);
    nvte_swizzle_scaling_factors(
        one_direction(false, false, false, 256, cols, buffer_from(values, n, 0)->ptr),
        one_direction(false, false, true, 256, cols, tiles->ptr), NULL);
    EXPECT_OK();
    const unsigned char *got = buffer_read(tiles);
    for (size_t i = 0; i < n; i++) {
      CHECK(got[i] == (i == places[p].at ? 0x7B : 0), "byte %zu is 0x%02x", i, got[i]);
    }
  }
}

static void test_both_directions(void) {
  for (int nvfp4 = 0; nvfp4 < 2; nvfp4++) {
    if (!case_begin("both directions %s", nvfp4 ? "NVFP4" : "MXFP8")) continue;
    size_t rows = 300, cols = 200;
    NVTETensor in = scaled_tensor(nvfp4, false), out = scaled_tensor(nvfp4, true);
    Buffer *tiles[2];
    unsigned char *expected[2];
    for (int d = 0; d < 2; d++) {
      Matrix a = matrix_of(nvfp4, d, rows, cols);
      unsigned char *values = random_bytes(a.m * a.k);
      tiles[d] = buffer(a.m * a.k);
      expected[d] = to_tiles(a, values);
      add_direction(in, nvfp4, d, rows, cols, buffer_from(values, a.m * a.k, 0)->ptr,
                    scale_shape(a));
      add_direction(out, nvfp4, d, rows, cols, tiles[d]->ptr, scale_shape(a));
    }
    nvte_swizzle_scaling_factors(in, out, NULL);
    EXPECT_OK();
    for (int d = 0; d < 2; d++) check_bytes(tiles[d], expected[d]);
  }
}

static void test_multi(void) {
  const size_t counts[] = {1, 2, 3, 64, 65, 130, 600};
  for (size_t c = 0; c < COUNT(counts); c++) {
    for (int kind = 0; kind < 4; kind++) {
      bool mixed = kind & 1, unchecked = kind & 2;
      size_t n = counts[c];
      if (!case_begin("multi %zu%s%s", n, mixed ? " mixed" : "", unchecked ? " unchecked" : "")) {
        continue;
      }
      NVTETensor *in = host_memory(n * sizeof *in), *out = host_memory(n * sizeof *out);
      NVTETensor *back = host_memory(n * sizeof *back);
      Buffer **tiles = host_memory(n * sizeof *tiles), **again = host_memory(n * sizeof *again);
      unsigned char **values = host_memory(n * sizeof *values);
      Matrix *all = host_memory(n * sizeof *all);
      for (size_t i = 0; i < n; i++) {
        // Tile counts along k of every remainder of 4, in one call.
        size_t rows = 1 + random_below(n > 64 ? 200 : 500), cols = 128 * (1 + i % 7) - i % 3 * 40;
        bool nvfp4 = mixed && i % 2, colwise = mixed && i % 3;
        if (i % 50 == 3) rows = 0;
        Matrix a = all[i] = matrix_of(nvfp4, colwise, rows, cols);
        values[i] = random_bytes(a.m * a.k);
        tiles[i] = buffer(a.m * a.k);
        again[i] = buffer(a.m * a.k);
        Buffer *compact = buffer_from(values[i], a.m * a.k, 0);
        in[i] = one_direction(nvfp4, colwise, false, rows, cols, compact->ptr);
        out[i] = one_direction(nvfp4, colwise, true, rows, cols, tiles[i]->ptr);
        back[i] = one_direction(nvfp4, colwise, false, rows, cols, again[i]->ptr);
      }
      if (unchecked) {
        nvte_multi_tensor_swizzle_scaling_factors_unchecked(in, out, n, NULL);
      } else {
        nvte_multi_tensor_swizzle_scaling_factors(in, out, n, NULL);
      }
      nvte_multi_tensor_unswizzle_scaling_factors(out, back, n, NULL);
      if (!EXPECT_OK()) continue;
      for (size_t i = 0; i < n; i++) {
        unsigned char *expected = to_tiles(all[i], values[i]);
        check_bytes(tiles[i], expected);
        check_bytes(again[i], to_compact(all[i], expected));
      }
    }
  }
  if (case_begin("multi of none")) {
    nvte_multi_tensor_swizzle_scaling_factors(NULL, NULL, 0, NULL);
    nvte_multi_tensor_swizzle_scaling_factors_unchecked(NULL, NULL, 0, NULL);
    nvte_multi_tensor_unswizzle_scaling_factors(NULL, NULL, 0, NULL);
    EXPECT_OK();
  }
}

// Scales of another shape than the data's: zeroed by the data, swizzled by their own shape.
static void test_unchecked(void) {
  for (int colwise = 0; colwise < 2; colwise++) {
    if (!case_begin("unchecked %s", colwise ? "columnwise" : "rowwise")) continue;
    Matrix a = matrix_of(false, colwise, 200, 300);
    a.m = 384, a.k = 8;
    unsigned char *values = random_bytes(a.m * a.k);
    Buffer *tiles = buffer(a.m * a.k);
    NVTETensor in = scaled_tensor(false, false), out = scaled_tensor(false, true);
    add_direction(in, false, colwise, 200, 300, buffer_from(values, a.m * a.k, 0)->ptr,
                  scale_shape(a));
    add_direction(out, false, colwise, 200, 300, tiles->ptr, SHAPE(a.m * a.k / 4, 4));
    nvte_multi_tensor_swizzle_scaling_factors_unchecked(&in, &out, 1, NULL);
    EXPECT_OK();
    check_bytes(tiles, to_tiles(a, values));
  }
}

// A partial block has a scale: 40 columns are two blocks of 32, and the second one stays.
static void test_partial_block(void) {
  for (int colwise = 0; colwise < 2; colwise++) {
    if (!case_begin("partial block %s", colwise ? "columnwise" : "rowwise")) continue;
    size_t rows = colwise ? 40 : 1, cols = colwise ? 1 : 40;
    unsigned char values[512];
    memset(values, 0x55, sizeof values);
    Buffer *tiles = buffer(512);
    nvte_swizzle_scaling_factors(
        one_direction(false, colwise, false, rows, cols, buffer_from(values, 512, 0)->ptr),
        one_direction(false, colwise, true, rows, cols, tiles->ptr), NULL);
    EXPECT_OK();
    const unsigned char *got = buffer_read(tiles);
    for (size_t i = 0; i < 512; i++) CHECK_EQ(got[i], i < 2 ? 0x55 : 0);
  }
}

static void test_empty(void) {
  const size_t shapes[][2] = {{0, 64}, {64, 0}, {0, 0}};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (int colwise = 0; colwise < 2; colwise++) {
      size_t rows = shapes[s][0], cols = shapes[s][1];
      if (!case_begin("empty %zux%zu %d", rows, cols, colwise)) continue;
      NVTETensor compact = one_direction(false, colwise, false, rows, cols, NULL);
      NVTETensor tiles = one_direction(false, colwise, true, rows, cols, NULL);
      nvte_swizzle_scaling_factors(compact, tiles, NULL);
      nvte_unswizzle_scaling_factors(tiles, compact, NULL);
      EXPECT_OK();
    }
  }
}

// ---- Grouped

static void set_grouped(NVTEGroupedTensor t, NVTEGroupedTensorParam param, void *ptr,
                        NVTEDType dtype, size_t n) {
  NVTEBasicTensor b = basic(ptr, dtype, SHAPE(n));
  nvte_set_grouped_tensor_param(t, param, &b, sizeof b);
}

static NVTEGroupedTensor grouped(size_t n, size_t rows, size_t cols, bool swizzled) {
  NVTEGroupedTensor t = nvte_create_grouped_tensor(NVTE_MXFP8_1D_SCALING, n, SHAPE(rows, cols));
  set_grouped(t, kNVTEGroupedRowwiseData, NULL, kNVTEFloat8E4M3, rows * cols);
  uint8_t flag = swizzled;
  nvte_set_grouped_tensor_param(t, kNVTEGroupedWithGEMMSwizzledScales, &flag, sizeof flag);
  return t;
}

static void set_scales(NVTEGroupedTensor t, bool colwise, const Buffer *b) {
  set_grouped(t, colwise ? kNVTEGroupedColumnwiseScaleInv : kNVTEGroupedRowwiseScaleInv, b->ptr,
              kNVTEFloat8E8M0, b->bytes);
}

static void set_dims(NVTEGroupedTensor t, NVTEGroupedTensorParam param, const int64_t *dims,
                     size_t n) {
  set_grouped(t, param, buffer_from(dims, n * 8, 0)->ptr, kNVTEInt64, n);
}

// Members of one shape; compact without padding between members, or each with its own.
static void test_grouped_uniform(void) {
  const size_t shapes[][3] = {{3, 200, 160}, {4, 33, 64}, {2, 1, 32},     {2, 2880, 2880},
                              {5, 33, 96},   {1, 70, 70}, {300, 32, 128}, {7, 40, 200}};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (int dense = 0; dense < 2; dense++) {
      size_t n = shapes[s][0], rows = shapes[s][1], cols = shapes[s][2];
      if (!case_begin("grouped %zu of %zux%zu%s", n, rows, cols, dense ? " dense" : "")) continue;
      NVTEGroupedTensor in = grouped(n, n * rows, cols, false);
      NVTEGroupedTensor out = grouped(n, n * rows, cols, true);
      NVTEGroupedTensor back = grouped(n, n * rows, cols, false);
      Buffer *tiles[2], *again[2];
      unsigned char *expected[2], *expected_back[2];
      for (int d = 0; d < 2; d++) {
        Matrix a = matrix_of(false, d, rows, cols);
        size_t size = a.m * a.k, step = size, total = n * size;
        if (dense) {
          step = d ? a.valid_k * a.m : a.valid_m * a.k;
          total = d ? up(n * a.valid_k, 4) * a.m : up(n * a.valid_m, 128) * a.k;
          // If both layouts have the same size, the scales count as padded.
          if (total == n * size) step = size;
        }
        unsigned char *values = random_bytes(total);
        tiles[d] = buffer(n * size);
        again[d] = buffer(n * size);
        expected[d] = host_memory(n * size);
        expected_back[d] = host_memory(n * size);
        for (size_t i = 0; i < n; i++) {
          // A member without padding of its own, read through a padded copy.
          unsigned char *member = host_memory(size);
          memcpy(member, values + i * step, step < total - i * step ? step : total - i * step);
          unsigned char *member_tiles = to_tiles(a, member);
          memcpy(expected[d] + i * size, member_tiles, size);
          memcpy(expected_back[d] + i * size, to_compact(a, member_tiles), size);
        }
        set_scales(in, d, buffer_from(values, total, 0));
        set_scales(out, d, tiles[d]);
        set_scales(back, d, again[d]);
      }
      nvte_swizzle_grouped_scaling_factors(in, out, NULL);
      nvte_unswizzle_grouped_scaling_factors(out, back, NULL);
      if (EXPECT_OK()) {
        for (int d = 0; d < 2; d++) {
          check_bytes(tiles[d], expected[d]);
          check_bytes(again[d], expected_back[d]);
        }
      }
      nvte_destroy_grouped_tensor(in);
      nvte_destroy_grouped_tensor(out);
      nvte_destroy_grouped_tensor(back);
    }
  }
}

// Members of different shapes, which only the device knows.
static void test_grouped_varying(void) {
  const size_t counts[] = {3, 1, 17, 256, 300, 600};
  for (size_t c = 0; c < COUNT(counts); c++) {
    for (int kind = 1; kind < 4; kind++) {
      size_t n = counts[c];
      if (!case_begin("grouped varying %zu%s%s", n, kind & 1 ? " rows" : "",
                      kind & 2 ? " columns" : "")) {
        continue;
      }
      int64_t *rows = host_memory(n * 8), *cols = host_memory(n * 8);
      int64_t *offsets = host_memory((n + 1) * 8);
      size_t logical[2] = {kind & 1 ? 0 : 100, kind & 2 ? 0 : 200};
      for (size_t i = 0; i < n; i++) {
        rows[i] = kind & 1 ? (int64_t)random_below(i % 40 == 5 ? 900 : 150) : 100;
        cols[i] = kind & 2 ? (int64_t)random_below(300) : 200;
        if (n == 3) {  // The reference's own test.
          rows[i] = kind & 1 ? (const int64_t[]){200, 33, 1}[i] : 100;
          cols[i] = kind & 2 ? (const int64_t[]){160, 64, 32}[i] : 200;
        }
        if (i % 5 == 4 && kind & 1) rows[i] = 0;
        if (i % 7 == 6 && kind & 2) cols[i] = 0;
        offsets[i + 1] = offsets[i] + rows[i] * cols[i];
        if (kind & 1) logical[0] += (size_t)rows[i];
        if (kind & 2) logical[1] += (size_t)cols[i];
      }
      if (kind == 3) logical[0] = 1, logical[1] = (size_t)offsets[n] + 1000;
      NVTEGroupedTensor t[3];
      for (int k = 0; k < 3; k++) {
        t[k] = grouped(n, logical[0], logical[1], k == 1);
        if (kind & 1) set_dims(t[k], kNVTEGroupedFirstDims, rows, n);
        if (kind & 2) set_dims(t[k], kNVTEGroupedLastDims, cols, n);
        set_dims(t[k], kNVTEGroupedTensorOffsets, offsets, n + 1);
      }
      Buffer *tiles[2], *again[2];
      unsigned char *expected[2], *expected_back[2];
      for (int d = 0; d < 2; d++) {
        size_t total = 0, at = 0;
        for (size_t i = 0; i < n; i++) {
          Matrix a = matrix_of(false, d, (size_t)rows[i], (size_t)cols[i]);
          total += a.m * a.k;
        }
        // Bytes past the members must stay as they are.
        size_t slack = 512;
        unsigned char *values = random_bytes(total + slack);
        tiles[d] = buffer(total + slack);
        again[d] = buffer(total + slack);
        expected[d] = host_memory(total + slack);
        expected_back[d] = host_memory(total + slack);
        memset(expected[d] + total, POISON_VALUE, slack);
        memset(expected_back[d] + total, POISON_VALUE, slack);
        for (size_t i = 0; i < n; i++) {
          Matrix a = matrix_of(false, d, (size_t)rows[i], (size_t)cols[i]);
          unsigned char *member = to_tiles(a, values + at);
          memcpy(expected[d] + at, member, a.m * a.k);
          memcpy(expected_back[d] + at, to_compact(a, member), a.m * a.k);
          at += a.m * a.k;
        }
        set_scales(t[0], d, buffer_from(values, total + slack, 0));
        set_scales(t[1], d, tiles[d]);
        set_scales(t[2], d, again[d]);
      }
      nvte_swizzle_grouped_scaling_factors(t[0], t[1], NULL);
      nvte_unswizzle_grouped_scaling_factors(t[1], t[2], NULL);
      if (EXPECT_OK()) {
        for (int d = 0; d < 2; d++) {
          check_bytes(tiles[d], expected[d]);
          check_bytes(again[d], expected_back[d]);
        }
      }
      for (int k = 0; k < 3; k++) nvte_destroy_grouped_tensor(t[k]);
    }
  }
}

// ---- Scales of FP8 blocks

static void test_block_scales(void) {
  const size_t shapes[][2] = {{1, 1}, {128, 128}, {130, 300}, {1000, 129}, {7, 4096}, {2048, 640}};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (int kind = 0; kind < 4; kind++) {
      bool square = kind & 1, misaligned = kind & 2;
      size_t rows = shapes[s][0], cols = shapes[s][1];
      if (!case_begin("block scales %zux%zu %s%s", rows, cols, square ? "2D" : "1D",
                      misaligned ? " misaligned" : "")) {
        continue;
      }
      size_t down = up(rows, 128) / 128, across = up(cols, 128) / 128;
      size_t lines = square ? down : across, stride = square ? up(across, 4) : up(rows, 4);
      float *scales = host_memory(lines * stride * 4);
      for (size_t i = 0; i < lines * stride; i++) scales[i] = float_of((uint32_t)random_u64());
      const float odd[] = {0, (float)INFINITY, (float)NAN, -2, 1e-45f, 1};
      for (size_t i = 0; i < COUNT(odd) && i < lines * stride; i++) scales[i] = odd[i];
      Buffer *in_scales = buffer_from(scales, lines * stride * 4, misaligned ? 4 : 0);
      Buffer *codes = buffer_shifted(down * across * 512, misaligned ? 3 : 0), *data = buffer(64);
      NVTETensor in = tensor_of_mode(square ? NVTE_BLOCK_SCALING_2D : NVTE_BLOCK_SCALING_1D);
      set_param(in, kNVTERowwiseData, data->ptr, kNVTEFloat8E5M2, SHAPE(rows, cols));
      set_param(in, kNVTERowwiseScaleInv, in_scales->ptr, kNVTEFloat32, SHAPE(lines, stride));
      NVTETensor out = scaled_tensor(false, true);
      set_param(out, kNVTERowwiseData, data->ptr, kNVTEFloat8E5M2, SHAPE(rows, cols));
      set_param(out, kNVTERowwiseScaleInv, codes->ptr, kNVTEFloat8E8M0,
                SHAPE(down * 128, across * 4));
      nvte_swizzle_block_scaling_to_mxfp8_scaling_factors(in, out, NULL);
      if (!EXPECT_OK()) continue;
      Matrix a = {down * 128, across * 4, 0, 0, false};
      unsigned char *expected = host_memory(a.m * a.k);
      for (size_t m = 0; m < a.m; m++) {
        for (size_t k = 0; k < a.k; k++) {
          size_t at = square ? m / 128 * stride + k / 4 : k / 4 * stride + m;
          unsigned char code = square || m < rows ? (unsigned char)(bits_of(scales[at]) >> 23) : 0;
          expected[tiled_at(a, m, k)] = code;
        }
      }
      check_bytes(codes, expected);
      CHECK(untouched(data), "the data were written to");
    }
  }
  if (case_begin("block scales of an empty tensor")) {
    NVTETensor in = tensor_of_mode(NVTE_BLOCK_SCALING_1D);
    set_param(in, kNVTERowwiseData, NULL, kNVTEFloat8E4M3, SHAPE(0, 128));
    nvte_swizzle_block_scaling_to_mxfp8_scaling_factors(in, scaled_tensor(false, true), NULL);
    EXPECT_OK();
  }
}

// ---- Wrong arguments: nothing is written

static void test_errors(void) {
  const char *name = "nvte_swizzle_scaling_factors";
  if (case_begin("error: flags, modes, dtypes")) {
    Buffer *from = buffer(512), *to = buffer(512);
    NVTETensor in = one_direction(false, false, false, 100, 100, from->ptr);
    NVTETensor out = one_direction(false, false, true, 100, 100, to->ptr);
    nvte_swizzle_scaling_factors(NULL, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input");
    nvte_swizzle_scaling_factors(in, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output");
    nvte_swizzle_scaling_factors(out, in, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.with_gemm_swizzled_scales");
    nvte_swizzle_scaling_factors(in, in, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.with_gemm_swizzled_scales");
    nvte_unswizzle_scaling_factors(in, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_unswizzle_scaling_factors",
                 "input.with_gemm_swizzled_scales");
    NVTETensor same = one_direction(false, false, true, 100, 100, from->ptr);
    nvte_swizzle_scaling_factors(in, same, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.scale_inv", "memory apart");
    NVTETensor null = one_direction(false, false, true, 100, 100, NULL);
    nvte_swizzle_scaling_factors(in, null, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.scale_inv", "null");
    NVTETensor plain = tensor(from->ptr, kNVTEFloat8E4M3, SHAPE(100, 100));
    nvte_swizzle_scaling_factors(plain, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.scaling_mode");
    NVTETensor nvfp4 = one_direction(true, false, true, 100, 64, to->ptr);
    nvte_swizzle_scaling_factors(in, nvfp4, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.scaling_mode", "MXFP8");
    NVTETensor colwise = one_direction(false, true, true, 100, 100, to->ptr);
    nvte_swizzle_scaling_factors(in, colwise, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.data");
    set_param(out, kNVTERowwiseScaleInv, to->ptr, kNVTEFloat8E8M0, SHAPE(4, 128));
    nvte_swizzle_scaling_factors(in, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.scale_inv.shape", "[128, 4]");
    set_param(in, kNVTERowwiseScaleInv, from->ptr, kNVTEFloat32, SHAPE(128, 4));
    nvte_swizzle_scaling_factors(in, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.scale_inv.dtype");
    set_param(in, kNVTERowwiseScaleInv, NULL, kNVTEFloat32, SHAPE(0));
    nvte_swizzle_scaling_factors(in, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.scale_inv", "nothing");
    set_param(in, kNVTERowwiseData, NULL, kNVTEBFloat16, SHAPE(100, 100));
    nvte_swizzle_scaling_factors(in, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.dtype");
    CHECK(untouched(from) && untouched(to), "a buffer was written to");
  }
  if (case_begin("error: multi")) {
    const char *multi = "nvte_multi_tensor_swizzle_scaling_factors";
    Buffer *from = buffer(1024), *to = buffer(1024);
    NVTETensor in[2] = {one_direction(false, false, false, 100, 100, from->ptr),
                        one_direction(false, false, false, 100, 200, from->ptr)};
    NVTETensor out[2] = {one_direction(false, false, true, 100, 100, to->ptr),
                         one_direction(false, false, true, 100, 100, to->ptr + 512)};
    nvte_multi_tensor_swizzle_scaling_factors(in, out, 2, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, multi, "outputs[1].scale_inv.shape", "1024 elements");
    nvte_multi_tensor_swizzle_scaling_factors(NULL, out, 2, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, multi, "inputs");
    in[1] = NULL;
    nvte_multi_tensor_swizzle_scaling_factors(in, out, 2, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, multi, "inputs[1]");
    in[1] = one_direction(false, false, false, 100, 100, from->ptr);
    set_param(in[1], kNVTERowwiseScaleInv, from->ptr, kNVTEFloat8E8M0, SHAPE(64, 8));
    nvte_multi_tensor_swizzle_scaling_factors_unchecked(in, out, 2, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_tensor_swizzle_scaling_factors_unchecked",
                 "inputs[1].scale_inv.shape", "128");
    CHECK(untouched(to), "an output was written to");
  }
  if (case_begin("error: grouped")) {
    const char *group = "nvte_swizzle_grouped_scaling_factors";
    Buffer *from = buffer(1024), *to = buffer(1024);
    NVTEGroupedTensor in = grouped(2, 200, 100, false), out = grouped(2, 200, 100, true);
    NVTEGroupedTensor other = grouped(2, 100, 100, true), four = grouped(4, 200, 100, true);
    set_scales(in, false, from);
    nvte_swizzle_grouped_scaling_factors(in, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, group, "output.scale_inv");
    set_scales(out, false, to);
    nvte_swizzle_grouped_scaling_factors(out, in, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, group, "input.with_gemm_swizzled_scales");
    nvte_swizzle_grouped_scaling_factors(in, other, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, group, "output.logical_shape", "[200, 100]");
    nvte_swizzle_grouped_scaling_factors(in, four, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, group, "output.num_tensors");
    set_grouped(in, kNVTEGroupedRowwiseScaleInv, from->ptr, kNVTEFloat8E8M0, 1000);
    nvte_swizzle_grouped_scaling_factors(in, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, group, "input.scale_inv.shape", "1024");
    int64_t dims[2] = {100, 100};
    set_dims(in, kNVTEGroupedFirstDims, dims, 2);
    nvte_swizzle_grouped_scaling_factors(in, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, group, "input.tensor_offsets");
    CHECK(untouched(to), "the output was written to");
    nvte_destroy_grouped_tensor(in);
    nvte_destroy_grouped_tensor(out);
    nvte_destroy_grouped_tensor(other);
    nvte_destroy_grouped_tensor(four);
  }
  if (case_begin("error: block scales")) {
    const char *blocks = "nvte_swizzle_block_scaling_to_mxfp8_scaling_factors";
    Buffer *data = buffer(64), *scales = buffer(512), *codes = buffer(512);
    NVTETensor in = tensor_of_mode(NVTE_BLOCK_SCALING_1D), out = scaled_tensor(false, true);
    set_param(in, kNVTERowwiseData, data->ptr, kNVTEFloat8E4M3, SHAPE(8, 8));
    set_param(in, kNVTERowwiseScaleInv, scales->ptr, kNVTEFloat32, SHAPE(1, 8));
    set_param(out, kNVTERowwiseData, codes->ptr, kNVTEFloat8E4M3, SHAPE(8, 8));
    set_param(out, kNVTERowwiseScaleInv, codes->ptr, kNVTEFloat8E8M0, SHAPE(128, 4));
    nvte_swizzle_block_scaling_to_mxfp8_scaling_factors(in, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, blocks, "output.data");
    set_param(out, kNVTERowwiseData, data->ptr, kNVTEFloat8E5M2, SHAPE(8, 8));
    nvte_swizzle_block_scaling_to_mxfp8_scaling_factors(in, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, blocks, "output.dtype");
    set_param(out, kNVTERowwiseData, data->ptr, kNVTEFloat8E4M3, SHAPE(8, 8));
    set_param(out, kNVTERowwiseScaleInv, codes->ptr, kNVTEFloat8E8M0, SHAPE(128, 8));
    nvte_swizzle_block_scaling_to_mxfp8_scaling_factors(in, out, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, blocks, "output.scale_inv.shape", "[128, 4]");
    nvte_swizzle_block_scaling_to_mxfp8_scaling_factors(out, in, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, blocks, "input.scaling_mode");
    CHECK(untouched(codes), "codes were written");
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_single();
  test_places();
  test_both_directions();
  test_multi();
  test_unchecked();
  test_partial_block();
  test_empty();
  test_grouped_uniform();
  test_grouped_varying();
  test_block_scales();
  test_errors();
  return test_end();
}
