// Casts (quantize.md sections 1 and 3.1) and dequantization (7.1) with per-tensor scaling. The
// conversion to FP8 is compared with the golden tables of ml_dtypes in golden/.
#include "nvte/cast.h"

#include "support.h"

// ---- Golden tables

typedef struct Table {
  size_t rows;
  uint32_t first[260], second[260];
} Table;

static Table load_table(const char *format, const char *what) {
  Table table = {0};
  const char *dir = getenv("NVTE_TEST_DATA");
  char path[4096];
  if (!dir) {
    fprintf(stderr, "NVTE_TEST_DATA is not set: it names the folder of the golden tables\n");
    exit(TEST_FAIL);
  }
  snprintf(path, sizeof path, "%s/%s_%s.txt", dir, format, what);
  FILE *file = fopen(path, "r");
  if (!file) {
    fprintf(stderr, "cannot open %s\n", path);
    exit(TEST_FAIL);
  }
  unsigned first, second;
  while (table.rows < COUNT(table.first) && fscanf(file, "%x %x", &first, &second) == 2) {
    table.first[table.rows] = first;
    table.second[table.rows++] = second;
  }
  fclose(file);
  if (table.rows < 200) {
    fprintf(stderr, "%s has %zu rows only\n", path, table.rows);
    exit(TEST_FAIL);
  }
  return table;
}

static const char *golden_name(NVTEDType dtype) {
  switch (dtype) {
    case kNVTEFloat32:
      return "from_f32";
    case kNVTEFloat16:
      return "from_f16";
    case kNVTEBFloat16:
      return "from_bf16";
    case kNVTEFloat8E4M3:
      return "e4m3";
    case kNVTEFloat8E5M2:
      return "e5m2";
    default:
      abort();
  }
}

// The byte of the run that holds `pattern`.
static uint32_t run_value(const Table *table, uint32_t pattern) {
  size_t low = 0, high = table->rows;
  while (high - low > 1) {
    size_t middle = (low + high) / 2;
    if (table->first[middle] <= pattern) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return table->second[low];
}

// Quantizes patterns without a scale and compares with the table.
static void check_patterns(NVTEDType in, NVTEDType out, const Table *table,
                           const uint32_t *patterns, size_t n, NVTEShape shape, bool both) {
  Cast c = {.in = in, .out = out, .shape = shape, .directions = both ? BOTH : ROWWISE};
  c.values = host_memory(n * dtype_size(in));
  for (size_t i = 0; i < n; i++) put_bits(in, c.values, i, patterns[i]);
  cast_build(&c);
  nvte_quantize(c.in_tensor, c.out_tensor, NULL);
  if (!EXPECT_OK()) return;
  const unsigned char *row = buffer_read(c.rowwise);
  const unsigned char *col = both ? buffer_read(c.colwise) : NULL;
  size_t bad = 0, rows = rows_of(shape), cols = cols_of(shape);
  for (size_t i = 0; i < n && bad < 5; i++) {
    uint32_t expected = run_value(table, patterns[i]);
    bad += !CHECK(row[i] == expected, "pattern 0x%x: got 0x%02x, expected 0x%02x", patterns[i],
                  row[i], expected);
    if (col) {
      uint32_t got = col[i % cols * rows + i / cols];
      bad += !CHECK(got == expected, "pattern 0x%x, columnwise: got 0x%02x, expected 0x%02x",
                    patterns[i], got, expected);
    }
    uint32_t own = encode_bits(out, decode_bits(in, patterns[i]));
    bad += !CHECK(own == expected, "pattern 0x%x: support.h gives 0x%02x, the table 0x%02x",
                  patterns[i], own, expected);
  }
  CHECK_FLOAT(read_float(c.scale_inv), 1);
}

static void test_golden_16_bit(void) {
  static uint32_t patterns[65536];
  for (size_t i = 0; i < COUNT(patterns); i++) patterns[i] = (uint32_t)i;
  for (size_t o = 0; o < COUNT(kFloat8); o++) {
    for (size_t i = 1; i < COUNT(kHighPrecision); i++) {
      NVTEDType in = kHighPrecision[i], out = kFloat8[o];
      Table table = load_table(golden_name(out), golden_name(in));
      for (int both = 0; both < 2; both++) {
        if (!case_begin("golden all patterns %s %s %s", dtype_name(in), dtype_name(out),
                        both ? "both" : "rowwise")) {
          continue;
        }
        check_patterns(in, out, &table, patterns, COUNT(patterns), SHAPE(256, 256), both);
      }
    }
  }
}

static void test_golden_float32(void) {
  enum { CHUNK = 1 << 20 };
  static uint32_t patterns[CHUNK];
  for (size_t o = 0; o < COUNT(kFloat8); o++) {
    NVTEDType out = kFloat8[o];
    Table table = load_table(golden_name(out), golden_name(kNVTEFloat32));
    if (case_begin("golden run boundaries Float32 %s", dtype_name(out))) {
      size_t n = 0;
      for (size_t i = 0; i < table.rows; i++) {
        for (uint32_t d = 0; d < 5; d++) patterns[n++] = table.first[i] + d - 2;
      }
      check_patterns(kNVTEFloat32, out, &table, patterns, n, SHAPE(n), false);
      check_patterns(kNVTEFloat32, out, &table, patterns, n, SHAPE(n / 5, 5), true);
    }
    // 997 is odd: over the chunks all low bits of the mantissa come up.
    uint64_t next = 0;
    for (int chunk = 0; next < UINT64_C(1) << 32; chunk++) {
      size_t n = 0;
      for (; n < CHUNK && next < UINT64_C(1) << 32; next += 997) patterns[n++] = (uint32_t)next;
      if (!case_begin("golden strided patterns Float32 %s chunk %d", dtype_name(out), chunk)) {
        continue;
      }
      check_patterns(kNVTEFloat32, out, &table, patterns, n, SHAPE(n), false);
    }
  }
}

static void test_golden_decode(void) {
  for (size_t f = 0; f < COUNT(kFloat8); f++) {
    NVTEDType in = kFloat8[f];
    Table table = load_table(golden_name(in), "decode");
    for (size_t o = 0; o < COUNT(kHighPrecision); o++) {
      NVTEDType out = kHighPrecision[o];
      if (!case_begin("golden decode %s %s", dtype_name(in), dtype_name(out))) continue;
      CHECK_EQ(table.rows, 256);
      unsigned char codes[256];
      for (int i = 0; i < 256; i++) codes[i] = (unsigned char)i;
      Buffer *input = buffer_from(codes, 256, 0), *output = buffer(256 * dtype_size(out));
      NVTETensor x = tensor(input->ptr, in, SHAPE(2, 128));
      set_param(x, kNVTERowwiseScaleInv, buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
      nvte_dequantize(x, tensor(output->ptr, out, SHAPE(2, 128)), NULL);
      if (!EXPECT_OK()) continue;
      const void *got = buffer_read(output);
      for (size_t i = 0; i < 256; i++) {
        CHECK(table.first[i] == i, "the table's row %zu is of code %u", i, table.first[i]);
        uint32_t expected = encode_bits(out, (double)float_of(table.second[i]));
        CHECK(same_bits(out, get_bits(out, got, i), expected),
              "code 0x%02zx: got 0x%x, expected 0x%x", i, get_bits(out, got, i), expected);
      }
    }
  }
}

// Scales against RN_fp32(x * scale) and the table of float32.
static void test_golden_scaled(void) {
  enum { N = 100000 };
  const float fixed[] = {0.5f,  -1.5f, 3.7e-3f, 1e10f,           1e-30f, FLT_MAX,
                         -0.0f, 0.0f,  1e-40f,  (float)INFINITY, 448,    0x1p-9f};
  for (size_t o = 0; o < COUNT(kFloat8); o++) {
    NVTEDType out = kFloat8[o];
    Table table = load_table(golden_name(out), golden_name(kNVTEFloat32));
    for (size_t i = 0; i < COUNT(kHighPrecision); i++) {
      NVTEDType in = kHighPrecision[i];
      for (int s = 0; s < 20; s++) {
        if (!case_begin("golden scale %d %s %s", s, dtype_name(in), dtype_name(out))) continue;
        Cast c = {.in = in,
                  .out = out,
                  .shape = SHAPE(N),
                  .directions = ROWWISE,
                  .specials = true,
                  .has_scale = true};
        c.scale = s < (int)COUNT(fixed) ? fixed[s] : (float)random_uniform(-2, 1);
        cast_build(&c);
        nvte_quantize(c.in_tensor, c.out_tensor, NULL);
        if (!EXPECT_OK()) continue;
        const unsigned char *got = buffer_read(c.rowwise);
        size_t bad = 0;
        for (size_t k = 0; k < N && bad < 5; k++) {
          volatile float product = (float)get_value(in, c.values, k) * c.scale;
          uint32_t expected = isnan(product) ? 0x7F : run_value(&table, bits_of(product));
          bad += !CHECK(got[k] == expected, "x = %a, scale = %a: got 0x%02x, expected 0x%02x",
                        get_value(in, c.values, k), (double)c.scale, got[k], expected);
        }
        CHECK_FLOAT(read_float(c.scale_inv), 1.0f / c.scale);
      }
    }
  }
}

// ---- Shapes, dtypes, directions

static NVTEShape shape_at(size_t i) {
  const NVTEShape shapes[] = {SHAPE(1, 1),      SHAPE(1, 3221),   SHAPE(2333, 1),      SHAPE(16),
                              SHAPE(217, 256),  SHAPE(120, 2080), SHAPE(5, 4, 3, 160), SHAPE(7, 33),
                              SHAPE(1481, 677), SHAPE(64, 64, 3), SHAPE(31, 1, 1)};
  return i < COUNT(shapes) ? shapes[i] : SHAPE(0);
}

static const char *direction_name(Directions d) {
  return d == BOTH ? "both" : d == ROWWISE ? "rowwise" : "columnwise";
}

static void test_shapes(void) {
  for (size_t s = 0; numel(shape_at(s)) > 0; s++) {
    for (size_t i = 0; i < COUNT(kHighPrecision); i++) {
      for (size_t o = 0; o < COUNT(kFloats); o++) {
        for (int k = 0; k < 6; k++) {
          NVTEShape shape = shape_at(s);
          if (numel(shape) > 500000 && (i + o + (size_t)k) % 5) continue;  // Skipped to save time.
          Directions directions = (Directions)(k / 2 + 1);
          bool misaligned = k % 2;
          if (!case_begin("quantize %s %s %s %s%s", shape_text(shape),
                          dtype_name(kHighPrecision[i]), dtype_name(kFloats[o]),
                          direction_name(directions), misaligned ? " misaligned" : "")) {
            continue;
          }
          Cast c = {.in = kHighPrecision[i],
                    .out = kFloats[o],
                    .shape = shape,
                    .directions = directions,
                    .misaligned = misaligned,
                    .specials = s % 2 == 0,
                    .has_scale = true,
                    .has_amax = true,
                    .old_amax = 0.25f};
          c.scale = (float)random_uniform(-2, 1);
          cast_build(&c);
          nvte_quantize(c.in_tensor, c.out_tensor, NULL);
          cast_check(&c);
        }
      }
    }
  }
}

// Rank 0 is 1x1.
static void test_scalar(void) {
  for (int both = 0; both < 2; both++) {
    if (!case_begin("quantize scalar %s", both ? "both" : "rowwise")) continue;
    NVTEShape shape = SHAPE(1);
    shape.ndim = 0;
    Cast c = {.in = kNVTEFloat32,
              .out = kNVTEFloat8E4M3,
              .shape = shape,
              .has_amax = true,
              .directions = both ? BOTH : ROWWISE,
              .has_scale = true,
              .scale = 3};
    cast_build(&c);
    nvte_quantize(c.in_tensor, c.out_tensor, NULL);
    cast_check(&c);
  }
}

// Misaligned in every combination of element offsets, where vector lanes could slip.
static void test_misalignment(void) {
  enum { ROWS = 9, COLS = 65 };
  for (size_t i = 0; i < COUNT(kHighPrecision); i++) {
    for (size_t o = 0; o < COUNT(kFloats); o++) {
      for (size_t a = 0; a < 9; a++) {
        for (size_t b = 0; b < 17; b += 1 + a % 3) {
          NVTEDType in = kHighPrecision[i], out = kFloats[o];
          if (!case_begin("quantize elements %zu and %zu past a boundary %s %s", a, b,
                          dtype_name(in), dtype_name(out))) {
            continue;
          }
          Cast c = {.in = in, .out = out, .shape = SHAPE(ROWS, COLS), .directions = ROWWISE};
          cast_build(&c);
          c.input = buffer_from(c.values, ROWS * COLS * dtype_size(in), a * dtype_size(in));
          c.rowwise = buffer_shifted(ROWS * COLS * dtype_size(out), b * dtype_size(out));
          set_param(c.in_tensor, kNVTERowwiseData, c.input->ptr, in, c.shape);
          set_param(c.out_tensor, kNVTERowwiseData, c.rowwise->ptr, out, c.shape);
          nvte_quantize(c.in_tensor, c.out_tensor, NULL);
          cast_check(&c);
        }
      }
    }
  }
}

static void test_amax(void) {
  const float old[] = {0, 0.25f, 1e6f, (float)INFINITY, 1e-42f};
  for (size_t i = 0; i < COUNT(kHighPrecision); i++) {
    for (size_t o = 0; o < COUNT(kFloats); o++) {
      for (size_t k = 0; k < COUNT(old); k++) {
        if (!case_begin("amax over %g %s %s", (double)old[k], dtype_name(kHighPrecision[i]),
                        dtype_name(kFloats[o]))) {
          continue;
        }
        Cast c = {.in = kHighPrecision[i],
                  .out = kFloats[o],
                  .shape = SHAPE(63, 129),
                  .directions = ROWWISE,
                  .has_amax = true,
                  .old_amax = old[k],
                  .has_scale = true,
                  .scale = -0.125f};
        cast_build(&c);
        nvte_quantize(c.in_tensor, c.out_tensor, NULL);
        cast_check(&c);
      }
    }
  }
  // Of NaN alone amax is 0; a subnormal counts; -0 gives +0.
  const double alone[][2] = {{(double)NAN, 0},
                             {0x1p-149, 0x1p-149},
                             {-0x1p-149, 0x1p-149},
                             {-0.0, 0},
                             {-(double)INFINITY, (double)INFINITY},
                             {-3, 3}};
  for (size_t k = 0; k < COUNT(alone); k++) {
    for (int both = 0; both < 2; both++) {
      if (!case_begin("amax of %g alone %s", alone[k][0], both ? "both" : "rowwise")) continue;
      Cast c = {.in = kNVTEFloat32,
                .out = kNVTEFloat8E5M2,
                .shape = SHAPE(3, 7),
                .has_amax = true,
                .directions = both ? BOTH : ROWWISE};
      c.values = host_memory(21 * 4);
      for (size_t e = 0; e < 21; e++) put_value(kNVTEFloat32, c.values, e, alone[k][0]);
      cast_build(&c);
      nvte_quantize(c.in_tensor, c.out_tensor, NULL);
      cast_check(&c);
      CHECK_FLOAT(read_float(c.amax), (float)alone[k][1]);
    }
  }
  if (case_begin("a null amax pointer with a shape is not written")) {
    Cast c = {
        .in = kNVTEFloat32, .out = kNVTEFloat8E4M3, .shape = SHAPE(5, 5), .directions = ROWWISE};
    cast_build(&c);
    set_param(c.out_tensor, kNVTEAmax, NULL, kNVTEFloat32, SHAPE(1));
    set_param(c.out_tensor, kNVTEScale, NULL, kNVTEFloat32, SHAPE(1));
    nvte_quantize(c.in_tensor, c.out_tensor, NULL);
    cast_check(&c);
  }
}

static void test_empty(void) {
  for (int k = 0; k < 12; k++) {
    NVTEShape shape = k & 1 ? SHAPE(16, 0) : SHAPE(0, 16);
    bool both = k & 2, null = k >= 8;
    NVTEDType out = k & 4 ? kNVTEBFloat16 : kNVTEFloat8E4M3;
    if (!case_begin("quantize empty %s %s %s%s", shape_text(shape), dtype_name(out),
                    both ? "both" : "rowwise", null ? " null pointers" : "")) {
      continue;
    }
    Cast c = {.in = kNVTEFloat32,
              .out = out,
              .shape = shape,
              .directions = both ? BOTH : ROWWISE,
              .has_amax = true,
              .old_amax = 0.5f,
              .has_scale = true,
              .scale = 2};
    cast_build(&c);
    if (null) {
      set_param(c.in_tensor, kNVTERowwiseData, NULL, c.in, shape);
      set_param(c.out_tensor, kNVTERowwiseData, NULL, out, shape);
      if (both) set_param(c.out_tensor, kNVTEColumnwiseData, NULL, out, transposed_shape(shape));
    }
    nvte_quantize(c.in_tensor, c.out_tensor, NULL);
    EXPECT_OK();
    cast_check_untouched(&c);
  }
}

// ---- Noop and config

static void test_noop(void) {
  const float values[] = {1, 0, 0.5f, -1, (float)NAN, 0x1.000002p0f, 2};
  for (size_t v = 0; v < COUNT(values); v++) {
    for (int k = 0; k < 8; k++) {
      bool both = k & 1, via_config = k & 2;
      NVTEDType out = k & 4 ? kNVTEFloat16 : kNVTEFloat8E5M2;
      if (!case_begin("noop %a %s %s %s", (double)values[v], both ? "both" : "rowwise",
                      via_config ? "config" : "argument", dtype_name(out))) {
        continue;
      }
      Cast c = {.in = kNVTEBFloat16,
                .out = out,
                .shape = SHAPE(33, 70),
                .directions = both ? BOTH : ROWWISE,
                .has_amax = true,
                .old_amax = 0.125f,
                .has_scale = true,
                .scale = 1.5f};
      cast_build(&c);
      Buffer *flag = buffer_float(values[v]);
      NVTETensor noop = float_tensor(flag);
      if (via_config) {
        NVTEQuantizationConfig config = quant_config();
        set_quant(config, kNVTEQuantizationConfigNoopTensor, &noop, sizeof noop);
        nvte_quantize_v2(c.in_tensor, c.out_tensor, config, NULL);
      } else {
        nvte_quantize_noop(c.in_tensor, c.out_tensor, noop, NULL);
      }
      if (values[v] == 1) {
        EXPECT_OK();
        cast_check_untouched(&c);
      } else {
        cast_check(&c);
      }
      CHECK_FLOAT(read_float(flag), values[v]);
    }
  }
  for (int k = 0; k < 3; k++) {
    if (!case_begin("noop absent %d", k)) continue;
    Cast c = {
        .in = kNVTEFloat32, .out = kNVTEFloat8E4M3, .shape = SHAPE(33, 70), .directions = BOTH};
    cast_build(&c);
    NVTETensor noop = k == 0 ? NULL : empty_tensor();
    if (k == 2) set_param(noop, kNVTERowwiseData, NULL, kNVTEFloat32, SHAPE(1));
    nvte_quantize_noop(c.in_tensor, c.out_tensor, noop, NULL);
    cast_check(&c);
  }
}

static void test_config(void) {
  for (int k = 0; k < 3; k++) {
    if (!case_begin("config %s", k == 0 ? "null" : k == 1 ? "default" : "pow2 and epsilon"))
      continue;
    // Per-tensor casts take the scale as it is: pow2 and epsilon change nothing.
    Cast c = {.in = kNVTEFloat16,
              .out = kNVTEFloat8E4M3,
              .shape = SHAPE(40, 48),
              .directions = BOTH,
              .has_amax = true,
              .has_scale = true,
              .scale = 0.7f};
    cast_build(&c);
    NVTEQuantizationConfig config = k ? quant_config() : NULL;
    if (k == 2) {
      uint8_t yes = 1;
      float epsilon = 1e6f;
      set_quant(config, kNVTEQuantizationConfigForcePow2Scales, &yes, sizeof yes);
      set_quant(config, kNVTEQuantizationConfigAmaxEpsilon, &epsilon, sizeof epsilon);
    }
    nvte_quantize_v2(c.in_tensor, c.out_tensor, config, NULL);
    cast_check(&c);
  }
  if (case_begin("config stochastic rounding is refused")) {
    Cast c = {.in = kNVTEFloat16,
              .out = kNVTEFloat8E4M3,
              .shape = SHAPE(40, 48),
              .directions = ROWWISE,
              .has_amax = true,
              .old_amax = 0.5f};
    cast_build(&c);
    NVTEQuantizationConfig config = quant_config();
    uint8_t yes = 1;
    set_quant(config, kNVTEQuantizationConfigStochasticRounding, &yes, sizeof yes);
    nvte_quantize_v2(c.in_tensor, c.out_tensor, config, NULL);
    EXPECT_ERROR(ANY_ERROR, "nvte_quantize_v2", "quant_config", "tochastic");
    cast_check_untouched(&c);
  }
}

// Asynchronous on the caller's stream, and equal bits from run to run.
static void test_stream(void) {
  if (!case_begin("stream and repeat")) return;
  cudaStream_t stream = nvtex_stream_create();
  EXPECT_OK();
  Cast a = {.in = kNVTEFloat32,
            .out = kNVTEFloat8E4M3,
            .shape = SHAPE(513, 257),
            .specials = true,
            .directions = BOTH,
            .has_amax = true,
            .has_scale = true,
            .scale = -0.3f};
  cast_build(&a);
  Cast b = a;
  cast_build(&b);
  nvte_quantize(a.in_tensor, a.out_tensor, stream);
  nvte_quantize(b.in_tensor, b.out_tensor, stream);
  nvtex_stream_synchronize(stream);
  cast_check(&a);
  cast_check(&b);
  CHECK(memcmp(buffer_read(a.rowwise), buffer_read(b.rowwise), a.rowwise->bytes) == 0 &&
            memcmp(buffer_read(a.colwise), buffer_read(b.colwise), a.colwise->bytes) == 0,
        "two runs differ");
  nvtex_stream_destroy(stream);
  EXPECT_OK();
}

// ---- Dequantization

// With `colwise` the input has only columnwise data, stored transposed.
static void dequantize_case(NVTEDType in, NVTEDType out, NVTEShape shape, float scale_inv,
                            size_t shift, bool colwise) {
  size_t n = numel(shape), rows = rows_of(shape), cols = cols_of(shape);
  void *values = mixed_values(in, n, true);
  Buffer *input = buffer_from(values, n, shift);
  Buffer *output = buffer_shifted(n * dtype_size(out), shift * dtype_size(out));
  NVTETensor x = empty_tensor(), y = tensor(output->ptr, out, shape);
  set_param(x, colwise ? kNVTEColumnwiseData : kNVTERowwiseData, input->ptr, in,
            colwise ? transposed_shape(shape) : shape);
  set_param(x, colwise ? kNVTEColumnwiseScaleInv : kNVTERowwiseScaleInv,
            buffer_float(scale_inv)->ptr, kNVTEFloat32, SHAPE(1));
  nvte_dequantize(x, y, NULL);
  if (!EXPECT_OK()) return;
  const void *got = buffer_read(output);
  size_t bad = 0;
  for (size_t i = 0; i < n && bad < 3; i++) {
    size_t at = colwise ? i % cols * rows + i / cols : i;
    double value = (float)(get_value(in, values, at) * (double)scale_inv);
    uint32_t expected = encode_bits(out, value);
    bad += !CHECK(same_bits(out, get_bits(out, got, i), expected),
                  "[%zu]: code 0x%02x, scale_inv %a: got 0x%x, expected 0x%x", i,
                  get_bits(in, values, at), (double)scale_inv, get_bits(out, got, i), expected);
  }
}

static void test_dequantize(void) {
  const float scales[] = {1, 0.0123f, -3.5f, 1e30f, 1e-38f, 0, (float)INFINITY, 1e-44f};
  for (size_t f = 0; f < COUNT(kFloat8); f++) {
    for (size_t o = 0; o < COUNT(kHighPrecision); o++) {
      NVTEDType in = kFloat8[f], out = kHighPrecision[o];
      for (size_t s = 0; numel(shape_at(s)) > 0; s++) {
        for (size_t k = 0; k < 4; k++) {
          size_t shift = k & 1;
          bool colwise = k & 2;
          if (!case_begin("dequantize %s %s %s%s%s", shape_text(shape_at(s)), dtype_name(in),
                          dtype_name(out), shift ? " misaligned" : "",
                          colwise ? " columnwise" : "")) {
            continue;
          }
          dequantize_case(in, out, shape_at(s), (float)random_uniform(-2, 1), shift, colwise);
        }
      }
      for (size_t k = 0; k < COUNT(scales); k++) {
        if (!case_begin("dequantize scale_inv %a %s %s", (double)scales[k], dtype_name(in),
                        dtype_name(out))) {
          continue;
        }
        dequantize_case(in, out, SHAPE(16385), scales[k], 0, false);
      }
    }
  }
  for (int k = 0; k < 4; k++) {
    NVTEShape shape = k & 1 ? SHAPE(16, 0) : SHAPE(0, 16);
    if (!case_begin("dequantize empty %s%s", shape_text(shape), k & 2 ? " null pointers" : "")) {
      continue;
    }
    Buffer *any = buffer(16);
    void *ptr = k & 2 ? NULL : any->ptr;
    NVTETensor x = tensor(ptr, kNVTEFloat8E4M3, shape), y = tensor(ptr, kNVTEFloat32, shape);
    set_param(x, kNVTERowwiseScaleInv, buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
    nvte_dequantize(x, y, NULL);
    EXPECT_OK();
    CHECK(untouched(any), "written");
  }
}

// A cast and its inverse: the relative error is at most half a step of the format.
static void test_round_trip(void) {
  for (size_t f = 0; f < COUNT(kFloat8); f++) {
    NVTEDType fp8 = kFloat8[f];
    if (!case_begin("round trip %s", dtype_name(fp8))) continue;
    enum { N = 66563 };
    Cast c = {.in = kNVTEFloat32,
              .out = fp8,
              .shape = SHAPE(N),
              .directions = ROWWISE,
              .has_scale = true,
              .scale = 64};
    c.values = random_values(kNVTEFloat32, N, 0.5, 2);
    cast_build(&c);
    nvte_quantize(c.in_tensor, c.out_tensor, NULL);
    cast_check(&c);
    Buffer *back = buffer(N * 4);
    nvte_dequantize(c.out_tensor, tensor(back->ptr, kNVTEFloat32, SHAPE(N)), NULL);
    EXPECT_OK();
    const float *got = buffer_read(back), *x = c.values;
    double worst = 0;
    for (size_t i = 0; i < N; i++) worst = fmax(worst, fabs((double)got[i] / (double)x[i] - 1));
    double half_step = ldexp(0.5, -format_of(fp8).mantissa);
    CHECK(worst <= half_step, "worst relative error %g, at most %g", worst, half_step);
    CHECK(worst >= half_step / 2, "worst relative error %g is suspiciously small", worst);
  }
}

// ---- Many at once

static void test_multi(void) {
  enum { N = 7 };
  const float flags[] = {0, 1};
  for (int kind = 0; kind < 4; kind++) {
    static const char *const names[] = {"", " with noop", " with a wrong one",
                                        " with a null handle"};
    if (!case_begin("multi_tensor_quantize%s", names[kind])) continue;
    Cast c[N];
    NVTETensor inputs[N], outputs[N];
    for (size_t i = 0; i < N; i++) {
      c[i] = (Cast){.in = kHighPrecision[i % 3],
                    .out = kFloats[(i + 3) % 5],
                    .shape = i == 3 ? SHAPE(0, 8) : SHAPE(17 * i + 1, 300 - i),
                    .directions = (Directions)(i % 3 + 1),
                    .misaligned = i % 2,
                    .has_scale = i % 4 != 3,
                    .has_amax = true,
                    .old_amax = 0.25f,
                    .scale = 1.5f + (float)i};
      cast_build(&c[i]);
      inputs[i] = c[i].in_tensor;
      outputs[i] = c[i].out_tensor;
    }
    NVTEQuantizationConfig config = kind ? quant_config() : NULL;
    if (config) {
      NVTETensor noop = float_tensor(buffer_float(flags[kind == 1]));
      set_quant(config, kNVTEQuantizationConfigNoopTensor, &noop, sizeof noop);
    }
    if (kind == 2) set_param(inputs[5], kNVTERowwiseData, NULL, c[5].in, c[5].shape);
    if (kind == 3) outputs[5] = NULL;
    nvte_multi_tensor_quantize(inputs, outputs, config, N, NULL);
    if (kind > 1) {
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
                   "nvte_multi_tensor_quantize: tensor 5: ", kind == 2 ? "input.data" : "output");
    }
    for (size_t i = 0; i < N; i++) {
      if (kind || i == 3) {
        cast_check_untouched(&c[i]);
      } else {
        cast_check(&c[i]);
      }
    }
    EXPECT_OK();
  }
  if (case_begin("multi_tensor_quantize of none")) {
    nvte_multi_tensor_quantize(NULL, NULL, NULL, 0, NULL);
    EXPECT_OK();
  }
  if (case_begin("multi_tensor_quantize without arrays")) {
    nvte_multi_tensor_quantize(NULL, NULL, NULL, 1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_tensor_quantize: inputs");
  }
}

// Between types of one size the output may be the input, here of more elements than a task has.
static void test_in_place(void) {
  const NVTEDType pairs[][2] = {{kNVTEBFloat16, kNVTEFloat16}, {kNVTEFloat32, kNVTEFloat32}};
  for (size_t i = 0; i < COUNT(pairs); i++) {
    NVTEDType from = pairs[i][0], to = pairs[i][1];
    if (!case_begin("in place %s to %s", dtype_name(from), dtype_name(to))) continue;
    size_t n = 70001, bad = 0;
    void *x = mixed_values(from, n, false);
    Buffer *b = buffer_from(x, n * dtype_size(from), 0);
    nvte_quantize(tensor(b->ptr, from, SHAPE(n)), tensor(b->ptr, to, SHAPE(n)), NULL);
    if (!EXPECT_OK()) continue;
    const void *got = buffer_read(b);
    for (size_t j = 0; j < n && bad < 3; j++) {
      uint32_t want = encode_bits(to, get_value(from, x, j));
      bad += !CHECK(get_bits(to, got, j) == want, "element %zu", j);
    }
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_golden_16_bit();
  test_golden_float32();
  test_golden_decode();
  test_golden_scaled();
  test_shapes();
  test_scalar();
  test_misalignment();
  test_amax();
  test_empty();
  test_noop();
  test_config();
  test_stream();
  test_round_trip();
  test_dequantize();
  test_multi();
  test_in_place();
  return test_end();
}
