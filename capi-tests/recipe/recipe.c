// Amax, scales from it, and the delayed-scaling update (quantize.md 1.4, 1.5 and 10.1 to 10.4).
#include "nvte/recipe.h"

#include "support.h"

static float fp8_max(NVTEDType dtype) { return dtype == kNVTEFloat8E4M3 ? 448.0f : 57344.0f; }

static NVTETensor with_amax(NVTETensorParam field, Buffer *amax) {
  NVTETensor t = empty_tensor();
  set_param(t, field, amax->ptr, kNVTEFloat32, SHAPE(1));
  return t;
}

// ---- nvte_compute_amax, nvte_compute_amax_with_config

static void test_amax(void) {
  const NVTEShape shapes[] = {SHAPE(1, 1),     SHAPE(16),        SHAPE(2333, 1),     SHAPE(1, 3221),
                              SHAPE(217, 256), SHAPE(1481, 677), SHAPE(5, 4, 3, 160)};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (size_t d = 0; d < COUNT(kHighPrecision); d++) {
      for (int k = 0; k < 8; k++) {
        NVTEDType dtype = kHighPrecision[d];
        bool misaligned = k & 1, columnwise = k & 2, config = k & 4;
        if (!case_begin("amax %s %s%s%s%s", shape_text(shapes[s]), dtype_name(dtype),
                        misaligned ? " misaligned" : "", columnwise ? " columnwise field" : "",
                        config ? " config" : "")) {
          continue;
        }
        size_t n = numel(shapes[s]), size = dtype_size(dtype);
        void *x = random_values(dtype, n, -2, 1);
        if (n > 100) put_value(dtype, x, random_below(n), (double)NAN);
        if (n > 100) put_value(dtype, x, random_below(n), -2.75);
        Buffer *input = buffer_from(x, n * size, misaligned ? size : 0);
        Buffer *amax = buffer_float(100);  // overwritten, not accumulated
        NVTETensor in = tensor(input->ptr, dtype, shapes[s]);
        NVTETensor out = with_amax(columnwise ? kNVTEColumnwiseAmax : kNVTEAmax, amax);
        if (columnwise) set_param(out, kNVTEAmax, NULL, kNVTEFloat32, SHAPE(1));
        if (config) {
          nvte_compute_amax_with_config(in, out, quant_config(), NULL);
        } else {
          nvte_compute_amax(in, out, NULL);
        }
        if (!EXPECT_OK()) continue;
        CHECK_FLOAT(read_float(amax), amax_of(dtype, x, n));
      }
    }
  }
}

static void test_amax_specials(void) {
  const struct {
    double x, y;
    float amax;
  } rows[] = {{(double)NAN, (double)NAN, 0},
              {(double)NAN, -0.5, 0.5f},
              {-(double)INFINITY, 1, (float)INFINITY},
              {(double)INFINITY, (double)NAN, (float)INFINITY},
              {-0.0, -0.0, 0},
              {0x1p-149, -0x1p-148, 0x1p-148f},
              {-FLT_MAX, 3, FLT_MAX}};
  for (size_t r = 0; r < COUNT(rows); r++) {
    if (!case_begin("amax of %g and %g", rows[r].x, rows[r].y)) continue;
    float x[333];
    for (size_t i = 0; i < COUNT(x); i++) x[i] = (float)(i == 200 ? rows[r].y : rows[r].x);
    Buffer *amax = buffer(4);
    nvte_compute_amax(tensor(buffer_from(x, sizeof x, 0)->ptr, kNVTEFloat32, SHAPE(COUNT(x))),
                      with_amax(kNVTEAmax, amax), NULL);
    EXPECT_OK();
    CHECK_FLOAT(read_float(amax), rows[r].amax);
    CHECK(!signbit(read_float(amax)), "a negative zero");
  }
  for (int k = 0; k < 4; k++) {
    NVTEShape shape = k & 1 ? SHAPE(16, 0) : SHAPE(0, 16);
    if (!case_begin("amax empty %s%s", shape_text(shape), k & 2 ? " NaN before" : "")) continue;
    Buffer *amax = k & 2 ? buffer(4) : buffer_float(3);
    nvte_compute_amax(tensor(buffer(4)->ptr, kNVTEBFloat16, shape), with_amax(kNVTEAmax, amax),
                      NULL);
    EXPECT_OK();
    CHECK_FLOAT(read_float(amax), 0);
  }
}

static void test_amax_noop(void) {
  const float flags[] = {1, 0, 0.5f, (float)NAN};
  for (size_t k = 0; k < COUNT(flags) + 1; k++) {
    if (!case_begin("amax flag %zu", k)) continue;
    float x[3] = {1, -7, 2};
    Buffer *amax = buffer_float(100);
    NVTETensor in = tensor(buffer_from(x, sizeof x, 0)->ptr, kNVTEFloat32, SHAPE(3));
    NVTEQuantizationConfig config = NULL;
    if (k < COUNT(flags)) {
      NVTETensor noop = float_tensor(buffer_float(flags[k]));
      config = quant_config();
      set_quant(config, kNVTEQuantizationConfigNoopTensor, &noop, sizeof noop);
    }
    nvte_compute_amax_with_config(in, with_amax(kNVTEAmax, amax), config, NULL);
    EXPECT_OK();
    CHECK_FLOAT(read_float(amax), k == 0 ? 100 : 7);
  }
}

// ---- nvte_compute_scale_from_amax

// quantize.md 1.4; float division rounds once.
static float scale_of(float amax, float largest, bool pow2, float epsilon) {
  if (amax < epsilon) amax = epsilon;
  if (isinf(amax) || isnan(amax) || amax == 0) return 1;
  volatile float scale = largest / amax;
  if (isinf(scale)) scale = FLT_MAX;
  return pow2 ? float_of(bits_of(scale) & 0xFF800000u) : scale;
}

typedef struct ScaleCase {
  Buffer *amax, *scale, *scale_inv;
  NVTETensor output;
} ScaleCase;

static ScaleCase scale_case(NVTEDType dtype, float amax) {
  ScaleCase c = {buffer_float(amax), buffer(4), buffer(4), empty_tensor()};
  set_param(c.output, kNVTERowwiseData, buffer(64)->ptr, dtype, SHAPE(8, 8));
  set_param(c.output, kNVTEAmax, c.amax->ptr, kNVTEFloat32, SHAPE(1));
  set_param(c.output, kNVTEScale, c.scale->ptr, kNVTEFloat32, SHAPE(1));
  set_param(c.output, kNVTERowwiseScaleInv, c.scale_inv->ptr, kNVTEFloat32, SHAPE(1));
  return c;
}

static NVTEQuantizationConfig scale_config(bool pow2, float epsilon) {
  NVTEQuantizationConfig config = quant_config();
  uint8_t flag = pow2 ? 3 : 0;  // any byte that is not 0 is true
  set_quant(config, kNVTEQuantizationConfigForcePow2Scales, &flag, sizeof flag);
  set_quant(config, kNVTEQuantizationConfigAmaxEpsilon, &epsilon, sizeof epsilon);
  return config;
}

static void test_scale(void) {
  const float epsilons[] = {0, 1e-6f, 1, 1e30f, (float)INFINITY};
  for (size_t f = 0; f < COUNT(kFloat8); f++) {
    for (int pow2 = 0; pow2 < 2; pow2++) {
      for (size_t e = 0; e < COUNT(epsilons); e++) {
        if (!case_begin("scale %s pow2 %d epsilon %g", dtype_name(kFloat8[f]), pow2,
                        (double)epsilons[e])) {
          continue;
        }
        float fixed[] = {0,          1,          448,    57344,     0.1f,    FLT_MAX,
                         FLT_MIN,    1e-45f,     1e-38f, 1e-6f,     3e38f,   (float)INFINITY,
                         (float)NAN, 1.316e-36f, 7,      0x1p-126f, 1.7e-34f};
        NVTEQuantizationConfig config = scale_config(pow2, epsilons[e]);
        for (size_t k = 0; k < 60; k++) {
          float amax = k < COUNT(fixed) ? fixed[k] : float_of((uint32_t)random_u64() & 0x7FFFFFFF);
          ScaleCase c = scale_case(kFloat8[f], amax);
          nvte_compute_scale_from_amax(c.output, config, NULL);
          if (!EXPECT_OK()) break;
          CHECK_FLOAT(read_float(c.scale), scale_of(amax, fp8_max(kFloat8[f]), pow2, epsilons[e]));
          CHECK_FLOAT(read_float(c.amax), amax);
          CHECK(untouched(c.scale_inv), "scale_inv was written");
        }
      }
    }
  }
}

// The same values worked out by hand, without the test's own formula.
static void test_scale_by_hand(void) {
  const struct {
    NVTEDType dtype;
    float amax, epsilon;
    bool pow2;
    float scale;
  } rows[] = {
      {kNVTEFloat8E4M3, 448, 0, false, 1},
      {kNVTEFloat8E4M3, 2, 0, false, 224},
      {kNVTEFloat8E4M3, 2, 0, true, 128},
      {kNVTEFloat8E5M2, 57344, 0, true, 1},
      {kNVTEFloat8E5M2, 1, 0, true, 32768},
      {kNVTEFloat8E5M2, 1, 0, false, 57344},
      {kNVTEFloat8E4M3, 0, 0, false, 1},
      {kNVTEFloat8E4M3, 0, 2, false, 224},
      {kNVTEFloat8E4M3, 1, 2, false, 224},
      {kNVTEFloat8E4M3, 4, 2, false, 112},
      {kNVTEFloat8E4M3, 1e-45f, 0, false, FLT_MAX},
      {kNVTEFloat8E4M3, 1e-45f, 0, true, 0x1p127f},
      {kNVTEFloat8E4M3, (float)INFINITY, 0, false, 1},
      {kNVTEFloat8E4M3, (float)NAN, 5, true, 1},
      {kNVTEFloat8E4M3, 0x1p127f, 0, false, 0x1.cp-119f},
  };
  for (size_t r = 0; r < COUNT(rows); r++) {
    if (!case_begin("scale by hand %zu", r)) continue;
    ScaleCase c = scale_case(rows[r].dtype, rows[r].amax);
    nvte_compute_scale_from_amax(c.output, scale_config(rows[r].pow2, rows[r].epsilon), NULL);
    EXPECT_OK();
    CHECK_FLOAT(read_float(c.scale), rows[r].scale);
  }
}

static void test_scale_noop(void) {
  const float flags[] = {1, 0, 0.5f};
  for (size_t k = 0; k < COUNT(flags); k++) {
    if (!case_begin("scale flag %g", (double)flags[k])) continue;
    ScaleCase c = scale_case(kNVTEFloat8E4M3, 2);
    NVTEQuantizationConfig config = scale_config(false, 0);
    NVTETensor noop = float_tensor(buffer_float(flags[k]));
    set_quant(config, kNVTEQuantizationConfigNoopTensor, &noop, sizeof noop);
    nvte_compute_scale_from_amax(c.output, config, NULL);
    EXPECT_OK();
    if (flags[k] == 1) {
      CHECK(untouched(c.scale), "scale was written");
    } else {
      CHECK_FLOAT(read_float(c.scale), 224);
    }
  }
}

// amax, scale, cast: the way of current scaling.
static void test_current_scaling(void) {
  for (size_t f = 0; f < COUNT(kFloat8); f++) {
    if (!case_begin("current scaling %s", dtype_name(kFloat8[f]))) continue;
    Cast c = {.in = kNVTEBFloat16,
              .out = kFloat8[f],
              .shape = SHAPE(217, 256),
              .directions = BOTH,
              .has_amax = true,
              .old_amax = 1e9f,
              .has_scale = true,
              .scale = -1};
    c.values = random_values(c.in, 217 * 256, -2, 1);
    cast_build(&c);
    float amax = amax_of(c.in, c.values, 217 * 256);
    nvte_compute_amax(c.in_tensor, c.out_tensor, NULL);
    nvte_compute_scale_from_amax(c.out_tensor, quant_config(), NULL);
    nvte_quantize(c.in_tensor, c.out_tensor, NULL);
    EXPECT_OK();
    c.old_amax = amax;
    c.scale = scale_of(amax, fp8_max(kFloat8[f]), false, 0);
    cast_check(&c);
    // The largest value sits at the end of the range.
    const unsigned char *codes = buffer_read(c.rowwise);
    double largest = 0;
    for (size_t i = 0; i < c.rowwise->bytes; i++) {
      largest = fmax(largest, fabs(decode_bits(c.out, codes[i])));
    }
    CHECK(largest == (double)fp8_max(kFloat8[f]), "largest code %g", largest);
  }
}

// ---- Delayed scaling

// One column, quantize.md 10.3. `h` and `new_h` have `length` values.
static float update_column(const float *h, float *new_h, float scale, size_t length, float last,
                           bool use_max, float scaled_max) {
  float amax = last;
  if (use_max) {
    amax = 0;
    for (size_t i = 1; i < length; i++) amax = h[i] > amax ? h[i] : amax;
    amax = last > amax ? last : amax;
  }
  for (size_t i = 0; i < length; i++) {
    new_h[i] = i == 0 ? 0 : i + 1 < length ? h[i + 1] : last;
  }
  volatile float result = isfinite(amax) && amax > 0 ? scaled_max / amax : scale;
  return isinf(result) ? FLT_MAX : result;
}

static float random_amax(void) {
  const float odd[] = {0, (float)INFINITY, (float)NAN, 1e-45f, 1e-40f, FLT_MAX, 0, 1};
  size_t k = random_below(4 * COUNT(odd));
  return k < COUNT(odd) ? odd[k] : (float)random_uniform(0.01, 100);
}

static void test_delayed(void) {
  const size_t lengths[] = {1, 2, 3, 16, 1024}, widths[] = {1, 3, 16, 300};
  const float margins[] = {0, 1, -2, 7};
  for (int k = 0; k < 8; k++) {
    bool use_max = k & 1, in_place = k & 2;
    NVTEDType dtype = kFloat8[k >> 2];
    for (size_t l = 0; l < COUNT(lengths); l++) {
      for (size_t w = 0; w < COUNT(widths); w++) {
        size_t length = lengths[l], width = widths[w], n = length * width;
        float margin = margins[(l + w) % COUNT(margins)];
        if (!case_begin("delayed %s %s %zux%zu margin %g%s", use_max ? "max" : "most_recent",
                        dtype_name(dtype), length, width, (double)margin,
                        in_place ? " in place" : "")) {
          continue;
        }
        float *h = host_memory(n * 4), *scale = host_memory(width * 4);
        for (size_t i = 0; i < n; i++) h[i] = random_amax();
        for (size_t s = 0; s < width; s++) scale[s] = (float)random_uniform(-2, 3);
        scale[width - 1] = (float)INFINITY;
        Buffer *history = buffer_from(h, n * 4, 0), *old = buffer_from(scale, width * 4, 0);
        Buffer *new_history = in_place ? history : buffer(n * 4);
        Buffer *new_scale = in_place ? old : buffer(width * 4);
        nvte_delayed_scaling_recipe_amax_and_scale_update(
            tensor(history->ptr, kNVTEFloat32, SHAPE(length, width)), float_tensor(old),
            tensor(new_history->ptr, kNVTEFloat32, SHAPE(length, width)), float_tensor(new_scale),
            use_max ? "max" : "most_recent", dtype, margin, NULL);
        if (!EXPECT_OK()) continue;
        const float *got_h = buffer_read(new_history), *got_scale = buffer_read(new_scale);
        float *column = host_memory(length * 4), *expected = host_memory(length * 4);
        for (size_t s = 0; s < width; s++) {
          for (size_t i = 0; i < length; i++) column[i] = h[i * width + s];
          float scaled_max = ldexpf(fp8_max(dtype), -(int)margin);
          float want =
              update_column(column, expected, scale[s], length, column[0], use_max, scaled_max);
          CHECK(same_float(got_scale[s], want), "scale[%zu]: got %a, expected %a", s,
                (double)got_scale[s], (double)want);
          size_t bad = 0;
          for (size_t i = 0; i < length && bad < 2; i++) {
            bad += !CHECK(same_float(got_h[i * width + s], expected[i]),
                          "history[%zu][%zu]: got %a, expected %a", i, s,
                          (double)got_h[i * width + s], (double)expected[i]);
          }
        }
        if (!in_place) {
          CHECK(memcmp(buffer_read(history), h, n * 4) == 0, "the old history changed");
          CHECK(memcmp(buffer_read(old), scale, width * 4) == 0, "the old scale changed");
        }
      }
    }
  }
}

// The first steps of a training run, by hand: length 3, E4M3, margin 0.
static void test_delayed_trace(void) {
  const struct {
    float amax, history[3], scale_max, scale_recent;
  } steps[] = {
      {2, {0, 0, 2}, 224, 224},
      {8, {0, 2, 8}, 56, 56},
      {1, {0, 8, 1}, 56, 448},
      {0.5f, {0, 1, 0.5f}, 56, 896},
      {0.25f, {0, 0.5f, 0.25f}, 448, 1792},
      {0, {0, 0.25f, 0}, 896, 1792},
      {(float)INFINITY, {0, 0, (float)INFINITY}, 896, 1792},
      {4, {0, (float)INFINITY, 4}, 896, 112},
      {(float)NAN, {0, 4, (float)NAN}, 896, 112},
      {1e-44f, {0, (float)NAN, 1e-44f}, 112, FLT_MAX},
      {7, {0, 1e-44f, 7}, 64, 64},
      {0, {0, 7, 0}, 64, 64},
      {0, {0, 0, 0}, 64, 64},
      {0, {0, 0, 0}, 64, 64},
  };
  for (int recent = 0; recent < 2; recent++) {
    if (!case_begin("delayed trace %s", recent ? "most_recent" : "max")) continue;
    float zeros[3] = {0};
    Buffer *history = buffer_from(zeros, sizeof zeros, 0), *scale = buffer_float(1);
    NVTETensor h = tensor(history->ptr, kNVTEFloat32, SHAPE(3, 1)), s = float_tensor(scale);
    for (size_t i = 0; i < COUNT(steps); i++) {
      upload(history->ptr, &steps[i].amax, 4);
      nvte_delayed_scaling_recipe_amax_and_scale_update(h, s, h, s, recent ? "most_recent" : "max",
                                                        kNVTEFloat8E4M3, 0, NULL);
      EXPECT_OK();
      const float *got = buffer_read(history);
      for (int row = 0; row < 3; row++) {
        CHECK(same_float(got[row], steps[i].history[row]), "step %zu, row %d: got %g, expected %g",
              i, row, (double)got[row], (double)steps[i].history[row]);
      }
      float expected = recent ? steps[i].scale_recent : steps[i].scale_max;
      CHECK(read_float(scale) == expected, "step %zu: scale %a, expected %a", i,
            (double)read_float(scale), (double)expected);
    }
  }
  if (case_begin("delayed margin 0.5")) {
    float h[2] = {2, 0};
    Buffer *history = buffer_from(h, sizeof h, 0), *scale = buffer_float(1);
    NVTETensor t = tensor(history->ptr, kNVTEFloat32, SHAPE(2, 1)), s = float_tensor(scale);
    nvte_delayed_scaling_recipe_amax_and_scale_update(t, s, t, s, "max", kNVTEFloat8E4M3, 0.5f,
                                                      NULL);
    EXPECT_OK();
    double want = 448 / sqrt(2) / 2;
    CHECK(fabs((double)read_float(scale) / want - 1) < 3e-7, "%a, expected %a",
          (double)read_float(scale), want);
  }
}

// ---- After reduction: several tensors, in place (10.4)

static void test_after_reduction(void) {
  const size_t counts[] = {0, 1, 2, 7, 1364, 1365, 2000}, lengths[] = {1, 2, 16};
  for (size_t n = 0; n < COUNT(counts); n++) {
    for (size_t l = 0; l < COUNT(lengths); l++) {
      for (int k = 0; k < 6; k++) {
        size_t count = counts[n], length = lengths[l], total = 0;
        bool use_max = k & 1;
        int source = k / 2;  // 0: reduced amax, 1: null pointer, 2: null handle
        if (count > 7 && (l != 1 || source == 2)) continue;
        if (!case_begin("after reduction %zu tensors of length %zu %s %s", count, length,
                        use_max ? "max" : "most_recent",
                        source == 0   ? "reduced"
                        : source == 1 ? "null pointer"
                                      : "null handle")) {
          continue;
        }
        size_t *width = host_memory(count * sizeof *width);
        float **h = host_memory(count * sizeof *h), **scale = host_memory(count * sizeof *scale);
        Buffer **histories = host_memory(count * sizeof(Buffer *));
        Buffer **scales = host_memory(count * sizeof(Buffer *));
        NVTETensor *h_tensors = host_memory(count * sizeof(NVTETensor));
        NVTETensor *s_tensors = host_memory(count * sizeof(NVTETensor));
        for (size_t t = 0; t < count; t++) {
          width[t] = 1 + t % 5 * (t % 3);
          h[t] = host_memory(length * width[t] * 4);
          scale[t] = host_memory(width[t] * 4);
          for (size_t i = 0; i < length * width[t]; i++) h[t][i] = random_amax();
          for (size_t i = 0; i < width[t]; i++) scale[t][i] = (float)random_uniform(0.1, 9);
          histories[t] = buffer_from(h[t], length * width[t] * 4, 0);
          scales[t] = buffer_from(scale[t], width[t] * 4, 0);
          h_tensors[t] = tensor(histories[t]->ptr, kNVTEFloat32, SHAPE(length, width[t]));
          s_tensors[t] = float_tensor(scales[t]);
          total += width[t];
        }
        float *reduced = host_memory(total * 4);
        for (size_t i = 0; i < total; i++) reduced[i] = random_below(3) ? random_amax() : 0;
        Buffer *buffer_of_amax = buffer_from(reduced, total * 4, 0);
        NVTETensor reduction = source == 0   ? float_tensor(buffer_of_amax)
                               : source == 1 ? empty_tensor()
                                             : NULL;
        nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
            reduction, h_tensors, s_tensors, count, use_max ? "max" : "most_recent",
            kNVTEFloat8E5M2, 1, NULL);
        if (!EXPECT_OK()) continue;
        float column[16], expected[16];
        size_t at = 0, bad = 0;
        for (size_t t = 0; t < count && bad < 5; t++) {
          const float *got_h = buffer_read(histories[t]), *got_s = buffer_read(scales[t]);
          for (size_t s = 0; s < width[t] && bad < 5; s++, at++) {
            for (size_t i = 0; i < length; i++) column[i] = h[t][i * width[t] + s];
            bool replaced = source == 0 && reduced[at] != 0;
            float last = replaced ? reduced[at] : column[0], want = scale[t][s];
            memcpy(expected, column, sizeof expected);
            if (last != 0) {
              want = update_column(column, expected, scale[t][s], length, last, use_max, 28672);
            }
            bad += !CHECK(same_float(got_s[s], want), "tensor %zu, scale[%zu]: got %a, expected %a",
                          t, s, (double)got_s[s], (double)want);
            for (size_t i = 0; i < length; i++) {
              bad += !CHECK(same_float(got_h[i * width[t] + s], expected[i]),
                            "tensor %zu, history[%zu][%zu]: got %a, expected %a", t, i, s,
                            (double)got_h[i * width[t] + s], (double)expected[i]);
            }
          }
        }
      }
    }
  }
}

// By hand: two tensors of length 3; E4M3, margin 0.
static void test_after_reduction_trace(void) {
  if (!case_begin("after reduction by hand")) return;
  float a[3] = {2, 16, 4}, b[6] = {0, 5, 9, 1, 3, 7}, reduced[3] = {8, 0, 0};
  float scale_b[2] = {10, 20};
  Buffer *ha = buffer_from(a, sizeof a, 0), *hb = buffer_from(b, sizeof b, 0);
  Buffer *sa = buffer_float(10), *sb = buffer_from(scale_b, sizeof scale_b, 0);
  NVTETensor histories[2] = {tensor(ha->ptr, kNVTEFloat32, SHAPE(3, 1)),
                             tensor(hb->ptr, kNVTEFloat32, SHAPE(3, 2))};
  NVTETensor scales[2] = {float_tensor(sa), float_tensor(sb)};
  nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
      float_tensor(buffer_from(reduced, sizeof reduced, 0)), histories, scales, 2, "max",
      kNVTEFloat8E4M3, 0, NULL);
  EXPECT_OK();
  // a: the reduced 8 replaces 2; max(16, 4, 8). b, first column: unused, kept; second: max(5, 1,
  // 7).
  const float want_a[3] = {0, 4, 8}, want_b[6] = {0, 0, 9, 7, 3, 5}, want_s[3] = {28, 10, 64};
  CHECK(memcmp(buffer_read(ha), want_a, sizeof want_a) == 0, "history of the first tensor");
  CHECK(memcmp(buffer_read(hb), want_b, sizeof want_b) == 0, "history of the second tensor");
  CHECK(read_float(sa) == want_s[0], "scale %g", (double)read_float(sa));
  CHECK(memcmp(buffer_read(sb), want_s + 1, 8) == 0, "scales of the second tensor");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_amax();
  test_amax_specials();
  test_amax_noop();
  test_scale();
  test_scale_by_hand();
  test_scale_noop();
  test_current_scaling();
  test_delayed();
  test_delayed_trace();
  test_after_reduction();
  test_after_reduction_trace();
  return test_end();
}
