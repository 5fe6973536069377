// Scales of NVFP4 tensors, and amax and casts of a part of a matrix for them (optim_nvfp4.md,
// section 17).
#include "nvte/recipe.h"
#include "support.h"

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Rounded to float32 at every step, as the definition says.
static float global_scale(float amax) {
  if (!(amax > 0)) return 1;
  float a = amax < FLT_MIN ? FLT_MIN : amax;
  return (float)fmin(2688.0 / (double)a, FLT_MAX);
}

static float product(float a, float b) { return (float)((double)a * (double)b); }

static float smaller(float a, float b) { return isnan(a) || b < a ? b : a; }

static float block_scale(float amax, float global_amax) {
  float sixth = product(global_scale(global_amax), 1.0f / 6.0f);
  return smaller(product(amax, sixth), FLT_MAX);
}

static const float kAmaxes[] = {0,     1,        448, 2688, 0x1p-126f, 0x1p-149f, 0x1p-120f,
                                3e38f, INFINITY, -1,  0.7f, 123.456f,  6,         1e-30f};

static NVTETensor floats(Buffer *b, size_t n) { return tensor(b->ptr, kNVTEFloat32, SHAPE(n)); }

static void test_per_tensor_scale(void) {
  for (int k = 0; k < 16; k++) {
    if (!case_begin("per tensor scale %d", k)) continue;
    bool row_a = k & 1, row_b = k & 2;
    float a = (float)random_uniform(0, 10), b = (float)random_uniform(0, 1e-3), alpha = 0.3f;
    NVTETensor t[2];
    int32_t maxima[2] = {k & 4 ? 256 : 448, k & 8 ? 256 : 448};
    for (int i = 0; i < 2; i++) {
      bool row = i ? row_b : row_a;
      float amax = i ? b : a, wrong = 77;
      t[i] = tensor_of_mode(NVTE_NVFP4_1D_SCALING);
      set_param(t[i], kNVTEAmax, buffer_float(row ? amax : wrong)->ptr, kNVTEFloat32, SHAPE(1));
      set_param(t[i], kNVTEColumnwiseAmax, buffer_float(row ? wrong : amax)->ptr, kNVTEFloat32,
                SHAPE(1));
      nvte_set_tensor_param_v2(t[i], kNVTENVFP4E4M3Max, &maxima[i], sizeof maxima[i]);
    }
    Buffer *out = buffer(4);
    nvte_nvfp4_compute_per_tensor_scale(t[0], row_a, t[1], row_b, alpha, floats(out, 1), NULL);
    if (!EXPECT_OK()) continue;
    float factor = (float)(1.0 / (36.0 * maxima[0] * maxima[1]));
    CHECK_FLOAT(read_float(out), product(product(product(alpha, a), b), factor));
  }
}

static void test_scales(void) {
  if (case_begin("global scale")) {
    size_t n = COUNT(kAmaxes);
    float amaxes[COUNT(kAmaxes) + 1];
    memcpy(amaxes, kAmaxes, sizeof kAmaxes);
    amaxes[n] = NAN;
    Buffer *out = buffer(n * 4 + 4);
    nvte_nvfp4_compute_global_scale(floats(buffer_from(amaxes, n * 4 + 4, 0), n + 1),
                                    floats(out, n + 1), NULL);
    EXPECT_OK();
    const float *got = buffer_read(out);
    for (size_t i = 0; i <= n; i++) CHECK_FLOAT(got[i], global_scale(amaxes[i]));
  }
  for (size_t k = 0; k < COUNT(kAmaxes); k++) {
    if (!case_begin("block scale of amax %g", (double)kAmaxes[k])) continue;
    size_t n = 1000;
    float *x = host_memory(n * 4);
    for (size_t i = 0; i < n; i++) {
      x[i] = i < COUNT(kAmaxes) ? kAmaxes[i]
                                : (float)ldexp(random_uniform(0, 1), (int)random_below(40) - 20);
    }
    Buffer *out = buffer(n * 4);
    nvte_nvfp4_compute_per_block_scale(floats(buffer_from(x, n * 4, 0), n), floats(out, n),
                                       floats(buffer_float(kAmaxes[k]), 1), NULL);
    EXPECT_OK();
    const float *got = buffer_read(out);
    for (size_t i = 0; i < n; i++) {
      float want = block_scale(x[i], kAmaxes[k]);
      CHECK(same_float(got[i], want), "[%zu] of %a: got %a, expected %a", i, (double)x[i],
            (double)got[i], (double)want);
    }
  }
}

static void test_expanded(void) {
  // Blocks down and across, padded rows, side of a block.
  const size_t shapes[][4] = {{1, 4, 128, 16}, {8, 3, 128, 16},  {20, 20, 384, 16}, {5, 7, 66, 16},
                              {3, 5, 64, 4},   {10, 4, 100, 16}, {64, 64, 1024, 16}};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    size_t rows = shapes[s][0], cols = shapes[s][1], padded = shapes[s][2], side = shapes[s][3];
    for (int fused = 0; fused < 2; fused++) {
      if (!case_begin("%s %zux%zu to %zu rows", fused ? "fused" : "expanded", rows, cols, padded)) {
        continue;
      }
      size_t n = rows * cols;
      float *x = host_memory(n * 4), amax = 3.7f;
      for (size_t i = 0; i < n; i++) {
        x[i] = i % 17 == 5 ? 0 : (float)(random_uniform(0, 4) * (i % 3 ? 1 : 200));
      }
      if (!fused) x[n - 1] = NAN;
      Buffer *in = buffer_from(x, n * 4, 0), *codes = buffer(padded * cols), *scale = buffer(n * 4);
      Buffer *target = buffer(4);
      NVTETensor out = tensor(codes->ptr, kNVTEByte, SHAPE(padded, cols));
      if (fused) {
        nvte_nvfp4_fused_scale(floats(in, n), floats(buffer_float(amax), 1), floats(scale, n), out,
                               floats(target, 1), rows, cols, padded, side, NULL);
      } else {
        nvte_nvfp4_expand_scale_to_fp8(floats(in, n), out, rows, cols, padded, side, NULL);
      }
      if (!EXPECT_OK()) continue;
      const unsigned char *got = buffer_read(codes);
      const float *scales = buffer_read(scale);
      if (fused) CHECK_FLOAT(read_float(target), amax);
      for (size_t r = 0; r < padded; r++) {
        for (size_t c = 0; c < cols; c++) {
          size_t at = r / side * cols + c;
          bool inside = r / side < rows;
          float value = !inside ? 0 : fused ? block_scale(x[at], amax) : x[at];
          uint32_t want = encode_bits(kNVTEFloat8E4M3, (double)value);
          CHECK(got[r * cols + c] == want, "[%zu][%zu]: got %02x, expected %02x", r, c,
                got[r * cols + c], want);
          if (fused && inside) CHECK_FLOAT(scales[at], value);
        }
      }
    }
  }
  if (case_begin("no blocks")) {
    Buffer *b = buffer(64);
    NVTETensor f = floats(b, 1), codes = tensor(b->ptr, kNVTEByte, SHAPE(4, 4));
    nvte_nvfp4_fused_scale(f, f, f, codes, f, 0, 4, 4, 16, NULL);
    EXPECT_OK();
    nvte_nvfp4_fused_scale(f, f, f, codes, f, 1, 1, 0, 16, NULL);
    EXPECT_OK();
    nvte_nvfp4_expand_scale_to_fp8(f, codes, 1, 0, 4, 16, NULL);
    EXPECT_OK();
    CHECK(untouched(b), "something was written");
  }
}

// ---- Parts of a matrix

static const struct {
  size_t rows, cols, start, length;
} kShards[] = {{32, 64, 30, 2},          {32, 64, 31, 3},           {64, 64, 1, 4094},
               {64, 64, 0, 4096},        {128, 128, 0, 0},          {256, 384, 128, 9008},
               {256, 384, 4096, 40960},  {130, 272, 16, 30000},     {130, 272, 0, 35360},
               {300, 131, 777, 20001},   {300, 130, 776, 20002},    {1, 5000, 17, 4000},
               {5000, 1, 17, 4000},      {512, 256, 131071, 1},     {160, 416, 8, 66000},
               {97, 1000, 50000, 47000}, {640, 768, 100000, 262144}};

static float part_amax(NVTEDType dtype, const void *x, size_t s, size_t row, size_t col) {
  float most = 0;
  for (size_t r = row; r < row + 16 && r < kShards[s].rows; r++) {
    for (size_t c = col; c < col + 16 && c < kShards[s].cols; c++) {
      size_t at = r * kShards[s].cols + c;
      if (at < kShards[s].start || at >= kShards[s].start + kShards[s].length) continue;
      float v = (float)fabs(get_value(dtype, x, at - kShards[s].start));
      if (v > most) most = v;
    }
  }
  return most;
}

static void test_partial_amax(void) {
  for (size_t s = 0; s < COUNT(kShards); s++) {
    for (int k = 0; k < 6; k++) {
      NVTEDType dtype = kHighPrecision[k / 2];
      bool misaligned = k & 1;
      if (!case_begin("partial amax %zu %s%s", s, dtype_name(dtype),
                      misaligned ? " misaligned" : "")) {
        continue;
      }
      size_t rows = kShards[s].rows, cols = kShards[s].cols, n = kShards[s].length,
             size = dtype_size(dtype), down = up(rows, 16) / 16, across = up(cols, 16) / 16;
      void *x = mixed_values(dtype, n, true);
      Buffer *in = buffer_from(x, n * size, misaligned ? size : kShards[s].start * size % 16);
      size_t step = misaligned ? 2 : 1, stride = step * across + (misaligned ? 1 : 0);
      Buffer *amax = buffer(down * stride * 4);
      nvte_nvfp4_2d_compute_partial_amax(tensor(in->ptr, dtype, SHAPE(n)),
                                         tensor(amax->ptr, kNVTEFloat32, SHAPE(down, stride)), rows,
                                         cols, stride, step, kShards[s].start, 16, NULL);
      if (!EXPECT_OK()) continue;
      const float *got = buffer_read(amax);
      for (size_t i = 0; i < down; i++) {
        for (size_t j = 0; j < stride; j++) {
          bool entry = j % step == 0 && j / step < across;
          float want = entry ? part_amax(dtype, x, s, i * 16, j / step * 16) : float_of(0xFFFFFFFF);
          CHECK(same_float(got[i * stride + j], want), "[%zu][%zu]: got %a, expected %a", i, j,
                (double)got[i * stride + j], (double)want);
        }
      }
    }
  }
}

// Nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to the even code; NaN is 7.
static unsigned encode_e2m1(double x) {
  static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  if (isnan(x)) return 7;
  double a = fmin(fabs(x), 6);
  unsigned best = 0;
  for (unsigned c = 1; c < 8; c++) {
    double closer = fabs(a - values[c]) - fabs(a - values[best]);
    if (closer < 0 || (closer == 0 && c % 2 == 0)) best = c;
  }
  return best | (signbit(x) ? 8 : 0);
}

static void test_partial_cast(void) {
  for (size_t s = 0; s < COUNT(kShards); s++) {
    for (int k = 0; k < 6; k++) {
      NVTEDType dtype = kHighPrecision[k / 2];
      bool misaligned = k & 1;
      if (!case_begin("partial cast %zu %s%s", s, dtype_name(dtype),
                      misaligned ? " misaligned" : "")) {
        continue;
      }
      size_t rows = kShards[s].rows, cols = kShards[s].cols, start = kShards[s].start,
             n = kShards[s].length, size = dtype_size(dtype), down = up(rows, 16) / 16,
             across = up(cols, 16) / 16, stride = up(across, 4);
      void *x = mixed_values(dtype, n, true);
      float *scales = host_memory(down * stride * 4);
      float global = k == 3 ? -1.0f : k == 2 ? 0 : (float)random_uniform(0.1, 30);
      for (size_t i = 0; i < down * stride; i++) {
        scales[i] = i % 11 == 3   ? 0
                    : i % 11 == 4 ? 1e-6f
                    : i % 11 == 5 ? 1000
                                  : (float)random_uniform(0.01, 20);
      }
      size_t bytes = n == 0 ? 0 : (start + n + 1) / 2 - start / 2;
      Buffer *in = buffer_from(x, n * size, misaligned ? size : 0);
      Buffer *out = buffer_shifted(bytes, misaligned ? 3 : 0);
      nvte_nvfp4_2d_partial_cast(
          tensor(in->ptr, dtype, SHAPE(n)), tensor(out->ptr, kNVTEByte, SHAPE(bytes)),
          tensor(buffer_from(scales, down * stride * 4, 0)->ptr, kNVTEFloat32, SHAPE(down, stride)),
          floats(buffer_float(global), 1), rows, cols, stride, 1, start, 16, NULL);
      if (!EXPECT_OK()) continue;
      const unsigned char *got = buffer_read(out);
      float inverse = (float)(1.0 / (double)(global <= 0 ? 1 : global));
      size_t bad = 0;
      for (size_t at = start / 2 * 2; at < start / 2 * 2 + 2 * bytes && bad < 5; at++) {
        unsigned code = got[at / 2 - start / 2] >> at % 2 * 4 & 15,
                 want = 15;  // Elements outside of the part keep their value.
        double v = 0;
        if (at >= start && at < start + n) {
          double entry = (double)scales[at / cols / 16 * stride + at % cols / 16];
          float scale = (float)round_to(kNVTEFloat8E4M3, entry), factor = FLT_MAX;
          if (scale > 0) {
            factor = smaller((float)(1.0 / (double)product(scale, inverse)), FLT_MAX);
          }
          v = get_value(dtype, x, at - start);
          want = encode_e2m1((double)(float)(v * (double)factor));
        }
        bad += !CHECK(code == want, "element %zu, %a: got %x, expected %x", at, v, code, want);
      }
    }
  }
}

// ---- What is refused

static void test_refused(void) {
  if (!case_begin("refused")) return;
  Buffer *b = buffer(4096);
  NVTETensor f = floats(b, 4), one = floats(b, 1), codes = tensor(b->ptr, kNVTEByte, SHAPE(16, 4)),
             half = tensor(b->ptr, kNVTEFloat16, SHAPE(16)), empty = empty_tensor();
  const char *name = "nvte_nvfp4_compute_per_tensor_scale";
  nvte_nvfp4_compute_per_tensor_scale(f, true, f, true, 1, one, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "inpA.amax", "nothing");
  NVTETensor with_amax = tensor_of_mode(NVTE_NVFP4_1D_SCALING);
  set_param(with_amax, kNVTEAmax, b->ptr, kNVTEFloat32, SHAPE(1));
  nvte_nvfp4_compute_per_tensor_scale(with_amax, true, with_amax, false, 1, one, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "inpB.columnwise_amax", "nothing");
  nvte_nvfp4_compute_per_tensor_scale(with_amax, true, with_amax, true, 1, empty, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "alpha_out");
  name = "nvte_nvfp4_compute_global_scale";
  nvte_nvfp4_compute_global_scale(half, f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "global_amax.dtype", "Float32");
  nvte_nvfp4_compute_global_scale(f, one, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "global_scale.shape", "4 or more");
  name = "nvte_nvfp4_compute_per_block_scale";
  nvte_nvfp4_compute_per_block_scale(f, f, f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "global_amax.shape", "1 elements");
  nvte_nvfp4_compute_per_block_scale(f, one, one, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "scale.shape");
  name = "nvte_nvfp4_expand_scale_to_fp8";
  nvte_nvfp4_expand_scale_to_fp8(f, codes, 2, 4, 16, 16, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.shape", "8");
  nvte_nvfp4_expand_scale_to_fp8(f, codes, 1, 4, 17, 16, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.shape", "68");
  nvte_nvfp4_expand_scale_to_fp8(f, codes, 1, 4, 16, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "block_len");
  nvte_nvfp4_expand_scale_to_fp8(f, f, 1, 4, 16, 16, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.dtype", "Byte");
  nvte_nvfp4_expand_scale_to_fp8(f, codes, SIZE_MAX / 2, 4, 16, 16, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "tile_rows");
  name = "nvte_nvfp4_fused_scale";
  nvte_nvfp4_fused_scale(f, f, f, codes, one, 1, 4, 16, 16, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "global_amax.shape");
  nvte_nvfp4_fused_scale(f, one, f, codes, f, 1, 4, 16, 16, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "target_amax.shape");
  name = "nvte_nvfp4_2d_compute_partial_amax";
  nvte_nvfp4_2d_compute_partial_amax(half, f, 4, 4, 1, 1, 0, 128, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "block_len", "16");
  nvte_nvfp4_2d_compute_partial_amax(half, f, 4, 4, 1, 1, 1, 16, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "start_offset");
  nvte_nvfp4_2d_compute_partial_amax(half, f, 64, 64, 4, 1, 0, 16, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "amax.shape", "16 or more");
  name = "nvte_nvfp4_2d_partial_cast";
  nvte_nvfp4_2d_partial_cast(half, f, f, one, 4, 4, 1, 1, 0, 16, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "out.dtype", "Byte");
  nvte_nvfp4_2d_partial_cast(half, tensor(b->ptr, kNVTEByte, SHAPE(7)), f, one, 4, 4, 1, 1, 0, 16,
                             NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "out.shape", "8 or more");
  nvte_nvfp4_2d_partial_cast(half, codes, f, empty, 4, 4, 1, 1, 0, 16, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "global_scale");
  nvte_nvfp4_2d_partial_cast(codes, codes, f, one, 4, 4, 1, 1, 0, 16, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "inp.dtype");
  CHECK(untouched(b), "a refused call wrote something");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_per_tensor_scale();
  test_scales();
  test_expanded();
  test_partial_amax();
  test_partial_cast();
  test_refused();
  return test_end();
}
