// Hadamard transforms and largest magnitudes, of tensors, their parts and grouped tensors
// (optim_nvfp4.md, sections 14 and 15).
#include "nvte/hadamard_transform.h"
#include "nvte/multi_tensor.h"
#include "support.h"

static int parity(unsigned x) {
  int p = 0;
  for (; x; x &= x - 1) p ^= 1;
  return p;
}

// The transform of column c in the 16 rows from `row` on, in double; exact for values of few
// binades.
static void transform(const void *x, size_t cols, size_t row, size_t c, unsigned mask,
                      double y[16]) {
  for (unsigned n = 0; n < 16; n++) {
    y[n] = 0;
    for (unsigned k = 0; k < 16; k++) {
      double v = get_value(kNVTEBFloat16, x, (row + k) * cols + c) / 4;
      y[n] += parity(k & n) != (int)(mask >> k & 1) ? -v : v;
    }
  }
}

// Values whose sums are exact in float32: 8 bits each, of less than 12 binades.
static void *matrix(size_t n, bool specials) {
  void *data = host_memory(n * 2);
  for (size_t i = 0; i < n; i++) {
    uint64_t r = random_u64();
    double x = ldexp(random_uniform(-2, 2), -(int)(r % 7));
    put_value(kNVTEBFloat16, data, i, fabs(x) < 0x1p-8 ? 0 : x);
    if (specials && r >> 32 < 0x2000000)
      put_bits(kNVTEBFloat16, data, i, 0x7FC0 | (r >> 16 & 0x8000));
  }
  return data;
}

static const struct {
  size_t rows, cols;
} kShapes[] = {{16, 16},    {16, 64},   {64, 128},  {128, 64},  {144, 80},
               {1040, 272}, {32, 4096}, {2048, 16}, {256, 1040}};
static const int kMasks[] = {0, 0xD7E8, 0x8001};

static void test_transform(void) {
  for (size_t s = 0; s < COUNT(kShapes); s++) {
    for (int k = 0; k < 3; k++) {
      size_t rows = kShapes[s].rows, cols = kShapes[s].cols, n = rows * cols;
      bool misaligned = k == 1 || s % 4 == 3;
      if (!case_begin("transform %zux%zu mask %x%s", rows, cols, (unsigned)kMasks[k],
                      misaligned ? " misaligned" : "")) {
        continue;
      }
      void *x = matrix(n, false);
      Buffer *in = buffer_from(x, n * 2, misaligned ? 2 : 0);
      Buffer *out = buffer_shifted(n * 2, misaligned ? 6 : 0);
      NVTEShape shape = k == 2 ? SHAPE(2, rows / 2, cols) : SHAPE(rows, cols);
      nvte_hadamard_transform(tensor(in->ptr, kNVTEBFloat16, shape),
                              tensor(out->ptr, kNVTEBFloat16, SHAPE(cols, rows)), 0x1234, kMasks[k],
                              NULL);
      if (!EXPECT_OK()) continue;
      const void *got = buffer_read(out);
      size_t bad = 0;
      for (size_t c = 0; c < cols && bad < 5; c++) {
        for (size_t row = 0; row < rows && bad < 5; row += 16) {
          double y[16];
          transform(x, cols, row, c, (unsigned)kMasks[k], y);
          for (size_t i = 0; i < 16; i++) {
            double value = get_value(kNVTEBFloat16, got, c * rows + row + i);
            bad += !CHECK(value == round_to(kNVTEBFloat16, y[i]), "[%zu][%zu]: got %a, expected %a",
                          c, row + i, value, y[i]);
          }
        }
      }
    }
  }
  if (case_begin("transform of the largest numbers")) {
    // Sums are beyond float32 unless they are scaled first.
    uint16_t x[256], want[256];
    for (size_t i = 0; i < 256; i++) x[i] = i < 64 ? 0x7F7F : 0, want[i] = 0;
    for (size_t c = 0; c < 16; c++) {
      for (size_t n = 0; n < 16; n += 4) want[c * 16 + n] = 0x7F7F;
    }
    Buffer *out = buffer(512);
    nvte_hadamard_transform(tensor(buffer_from(x, 512, 0)->ptr, kNVTEBFloat16, SHAPE(16, 16)),
                            tensor(out->ptr, kNVTEBFloat16, SHAPE(16, 16)), 0, 0, NULL);
    EXPECT_OK();
    const uint16_t *got = buffer_read(out);
    for (size_t i = 0; i < 256; i++) {
      CHECK((got[i] & 0x7FFF) == want[i], "[%zu]: got %04x, expected %04x", i, got[i], want[i]);
    }
  }
  if (case_begin("transform without an output, of nothing")) {
    Buffer *in = buffer_from(matrix(256, false), 512, 0);
    NVTETensor x = tensor(in->ptr, kNVTEBFloat16, SHAPE(16, 16));
    nvte_hadamard_transform(x, empty_tensor(), 0, 0, NULL);
    EXPECT_OK();
    nvte_hadamard_transform_amax(x, empty_tensor(), 0, 0, NULL);
    EXPECT_OK();
    NVTETensor none = tensor(NULL, kNVTEBFloat16, SHAPE(0, 16)), out = empty_tensor();
    nvte_hadamard_transform(none, tensor(NULL, kNVTEBFloat16, SHAPE(16, 0)), 0, 0, NULL);
    EXPECT_OK();
    Buffer *amax = buffer(4);
    set_param(out, kNVTEColumnwiseAmax, amax->ptr, kNVTEFloat32, SHAPE(1));
    nvte_hadamard_transform_amax(none, out, 0, 0, NULL);
    EXPECT_OK();
    CHECK_FLOAT(read_float(amax), 0);
  }
}

typedef struct Maxima {
  float plain, transform;
} Maxima;

// The maxima of rows [from, until). NaN, and sums that contain one, do not count.
static Maxima maxima(const void *x, size_t cols, size_t from, size_t until, unsigned mask) {
  Maxima m = {0, 0};
  for (size_t row = from; row < until; row += 16) {
    for (size_t c = 0; c < cols; c++) {
      double y[16];
      transform(x, cols, row, c, mask, y);
      for (size_t k = 0; k < 16; k++) {
        float v = (float)fabs(get_value(kNVTEBFloat16, x, (row + k) * cols + c));
        float t = (float)fabs(round_to(kNVTEBFloat16, y[k]));
        if (v > m.plain) m.plain = v;
        if (t > m.transform) m.transform = t;
      }
    }
  }
  return m;
}

static NVTETensor maxima_tensor(Buffer *amax, Buffer *colwise, size_t i) {
  NVTETensor t = tensor_of_mode(i % 2 ? NVTE_DELAYED_TENSOR_SCALING : NVTE_NVFP4_1D_SCALING);
  if (amax) set_param(t, kNVTEAmax, amax->ptr + 4 * i, kNVTEFloat32, SHAPE(1));
  if (colwise) set_param(t, kNVTEColumnwiseAmax, colwise->ptr + 4 * i, kNVTEFloat32, SHAPE(1));
  return t;
}

static void test_amax(void) {
  for (size_t s = 0; s < COUNT(kShapes); s++) {
    for (int k = 0; k < 4; k++) {
      size_t rows = kShapes[s].rows, cols = kShapes[s].cols, n = rows * cols;
      bool misaligned = k == 1 || s % 4 == 3;
      const char *which = k == 2 ? " rows only" : k == 3 ? " transform only" : "";
      if (!case_begin("amax %zux%zu %d%s%s", rows, cols, k, which,
                      misaligned ? " misaligned" : "")) {
        continue;
      }
      void *x = matrix(n, k != 0);
      Buffer *in = buffer_from(x, n * 2, misaligned ? 2 : 0);
      Buffer *amax = k == 3 ? NULL : buffer(4), *colwise = k == 2 ? NULL : buffer(4);
      int mask = kMasks[k % 3];
      nvte_hadamard_transform_amax(tensor(in->ptr, kNVTEBFloat16, SHAPE(rows, cols)),
                                   maxima_tensor(amax, colwise, 0), -1, mask, NULL);
      if (!EXPECT_OK()) continue;
      Maxima want = maxima(x, cols, 0, rows, (unsigned)mask);
      if (amax) CHECK_FLOAT(read_float(amax), want.plain);
      if (colwise) CHECK_FLOAT(read_float(colwise), want.transform);
    }
  }
}

// ---- Parts and groups

// Rows of parts of one matrix, 0 after the last.
enum { MAX_PARTS = 160 };
typedef struct Parts {
  size_t n, cols, splits[MAX_PARTS];
} Parts;

static Parts parts_of(int kind) {
  Parts p = {0, 0, {0}};
  const size_t few[] = {64, 0, 128, 16, 0}, first_empty[] = {0, 0, 256, 64};
  switch (kind) {
    case 0:
      p.n = 1, p.cols = 64, p.splits[0] = 128;
      break;
    case 1:
      p.n = COUNT(few), p.cols = 272;
      memcpy(p.splits, few, sizeof few);
      break;
    case 2:
      p.n = COUNT(first_empty), p.cols = 1024;
      memcpy(p.splits, first_empty, sizeof first_empty);
      break;
    case 3:
      p.n = 3, p.cols = 48;
      break;
    case 4:  // many members in a block
      p.n = MAX_PARTS, p.cols = 16;
      for (size_t i = 0; i < p.n; i++) p.splits[i] = 16 * random_below(4);
      break;
    default:  // more than fit one launch
      p.n = 130, p.cols = 2064;
      for (size_t i = 0; i < p.n; i++) p.splits[i] = i % 5 ? 16 : 0;
  }
  return p;
}

static size_t rows_of_parts(const Parts *p) {
  size_t rows = 0;
  for (size_t i = 0; i < p->n; i++) rows += p->splits[i];
  return rows;
}

static void check_parts(const Parts *p, const void *x, const float *amax, const float *colwise,
                        bool plain, unsigned mask) {
  size_t row = 0;
  for (size_t i = 0; i < p->n; i++) {
    Maxima want = maxima(x, p->cols, row, row + p->splits[i], mask);
    row += p->splits[i];
    if (plain) want.transform = want.plain;
    if (amax) {
      CHECK(same_float(amax[i], want.plain), "amax[%zu]: got %a, expected %a", i, (double)amax[i],
            (double)want.plain);
    }
    if (colwise) {
      CHECK(same_float(colwise[i], want.transform), "columnwise_amax[%zu]: got %a, expected %a", i,
            (double)colwise[i], (double)want.transform);
    }
  }
}

static void test_split_amax(void) {
  for (int kind = 0; kind < 6; kind++) {
    for (int k = 0; k < 4; k++) {
      bool plain = k & 1, misaligned = k & 2;
      if (!case_begin("%s of parts %d%s", plain ? "amax" : "transform amax", kind,
                      misaligned ? " misaligned" : "")) {
        continue;
      }
      Parts p = parts_of(kind);
      // The input has more rows than the parts, with larger values.
      size_t rows = rows_of_parts(&p), all = rows + 32, n = all * p.cols;
      void *x = matrix(n, true);
      for (size_t i = rows * p.cols; i < n; i++) put_value(kNVTEBFloat16, x, i, 1000);
      Buffer *in = buffer_from(x, n * 2, misaligned ? 2 : 0);
      bool no_rows = !plain && kind == 2, no_cols = kind == 1;
      Buffer *amax = no_rows ? NULL : buffer(p.n * 4), *colwise = no_cols ? NULL : buffer(p.n * 4);
      NVTETensor outputs[MAX_PARTS];
      for (size_t i = 0; i < p.n; i++) outputs[i] = maxima_tensor(amax, colwise, i);
      NVTETensor input = tensor(in->ptr, kNVTEBFloat16, SHAPE(all, p.cols));
      if (plain) {
        nvte_group_amax(input, outputs, p.splits, p.n, NULL);
      } else {
        nvte_group_hadamard_transform_amax(input, outputs, p.splits, p.n, 7, 0xD7E8, NULL);
      }
      if (!EXPECT_OK()) continue;
      check_parts(&p, x, amax ? buffer_read(amax) : NULL, colwise ? buffer_read(colwise) : NULL,
                  plain, 0xD7E8);
    }
  }
  if (case_begin("parts: none")) {
    nvte_group_amax(NULL, NULL, NULL, 0, NULL);
    EXPECT_OK();
    nvte_group_hadamard_transform_amax(NULL, NULL, NULL, 0, 0, 0, NULL);
    EXPECT_OK();
  }
}

static void set_grouped(NVTEGroupedTensor t, NVTEGroupedTensorParam param, void *ptr,
                        NVTEDType dtype, size_t n) {
  NVTEBasicTensor b = basic(ptr, dtype, SHAPE(n));
  nvte_set_grouped_tensor_param(t, param, &b, sizeof b);
}

static void test_group_amax(void) {
  for (int kind = 0; kind < 7; kind++) {
    for (int k = 0; k < 4; k++) {
      bool plain = k & 1, misaligned = k & 2, uniform = kind == 6;
      if (!case_begin("%s of a group %d%s", plain ? "amax" : "transform amax", kind,
                      misaligned ? " misaligned" : "")) {
        continue;
      }
      Parts p = parts_of(kind);
      if (uniform) {
        p.n = 5, p.cols = 80;
        for (size_t i = 0; i < p.n; i++) p.splits[i] = 48;
      }
      size_t rows = rows_of_parts(&p), all = uniform ? rows : rows + 64, n = all * p.cols;
      void *x = matrix(n, true);
      for (size_t i = rows * p.cols; i < n; i++) put_value(kNVTEBFloat16, x, i, 1000);
      Buffer *in = buffer_from(x, n * 2, misaligned ? 2 : 0);
      Buffer *amax = buffer(p.n * 4), *colwise = buffer(p.n * 4);
      int64_t first[MAX_PARTS], offsets[MAX_PARTS + 1] = {0};
      for (size_t i = 0; i < p.n; i++) {
        first[i] = (int64_t)p.splits[i];
        offsets[i + 1] = offsets[i] + first[i] * (int64_t)p.cols;
      }
      NVTEShape logical = SHAPE(all, p.cols);
      NVTEGroupedTensor input =
          nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, p.n, logical);
      NVTEGroupedTensor out = nvte_create_grouped_tensor(NVTE_NVFP4_1D_SCALING, p.n, logical);
      set_grouped(input, kNVTEGroupedRowwiseData, in->ptr, kNVTEBFloat16, n);
      set_grouped(out, kNVTEGroupedAmax, amax->ptr, kNVTEFloat32, p.n);
      if (kind != 1) set_grouped(out, kNVTEGroupedColumnwiseAmax, colwise->ptr, kNVTEFloat32, p.n);
      if (!uniform) {
        set_grouped(out, kNVTEGroupedFirstDims, buffer_from(first, p.n * 8, 0)->ptr, kNVTEInt64,
                    p.n);
        set_grouped(out, kNVTEGroupedTensorOffsets, buffer_from(offsets, p.n * 8 + 8, 0)->ptr,
                    kNVTEInt64, p.n + 1);
      }
      if (plain) {
        nvte_group_amax_graph_safe(input, out, NULL);
      } else {
        nvte_group_hadamard_transform_amax_graph_safe(input, out, 0, 0x8001, NULL);
      }
      if (EXPECT_OK()) {
        check_parts(&p, x, buffer_read(amax), kind == 1 ? NULL : buffer_read(colwise), plain,
                    0x8001);
      }
      nvte_destroy_grouped_tensor(input);
      nvte_destroy_grouped_tensor(out);
    }
  }
}

// ---- What is refused

static void test_refused(void) {
  if (!case_begin("refused")) return;
  Buffer *data = buffer(64 * 64 * 4), *amax = buffer(64);
  const NVTEDType bf16 = kNVTEBFloat16;
  NVTETensor in = tensor(data->ptr, bf16, SHAPE(32, 48)), out = maxima_tensor(amax, NULL, 0);
  const char *name = "nvte_hadamard_transform";
  nvte_hadamard_transform(NULL, in, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input");
  nvte_hadamard_transform(tensor(data->ptr, kNVTEFloat16, SHAPE(32, 48)), in, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.dtype", "BFloat16");
  nvte_hadamard_transform(tensor(data->ptr, bf16, SHAPE(24, 48)), in, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.shape", "16 rows", "24");
  nvte_hadamard_transform(tensor(data->ptr, bf16, SHAPE(32, 40)), in, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.shape", "16 columns", "40");
  nvte_hadamard_transform(tensor(data->ptr, bf16, SHAPE(64)), in, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.shape", "2 or more dimensions");
  nvte_hadamard_transform(tensor(NULL, bf16, SHAPE(32, 48)), in, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "input.data", "null");
  nvte_hadamard_transform(in, tensor(data->ptr, bf16, SHAPE(48, 16)), 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.shape", "[48, 32]");
  nvte_hadamard_transform(in, tensor(data->ptr + 1, bf16, SHAPE(48, 32)), 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.data", "aligned");
  nvte_hadamard_transform_amax(tensor(data->ptr, bf16, SHAPE(17, 16)), out, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_hadamard_transform_amax", "input.shape");
  nvte_hadamard_transform_amax(in, NULL, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_hadamard_transform_amax", "output");

  NVTETensor outputs[2] = {out, maxima_tensor(amax, NULL, 1)};
  size_t splits[2] = {16, 16}, odd[2] = {8, 24}, many[2] = {16, 32};
  name = "nvte_group_hadamard_transform_amax";
  nvte_group_hadamard_transform_amax(in, outputs, odd, 2, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "split_sections[0]", "16", "8");
  nvte_group_hadamard_transform_amax(in, outputs, many, 2, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "split_sections", "32 rows", "48");
  nvte_group_hadamard_transform_amax(in, NULL, splits, 2, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "outputs", "null");
  nvte_group_hadamard_transform_amax(in, outputs, NULL, 2, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "split_sections", "null");
  outputs[1] = empty_tensor();
  nvte_group_hadamard_transform_amax(in, outputs, splits, 2, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "outputs[1].amax", "nothing");
  nvte_group_amax(in, outputs, splits, 2, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_group_amax", "outputs[1].amax", "nothing");

  name = "nvte_group_amax_graph_safe";
  NVTEGroupedTensor input =
      nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 2, SHAPE(64, 48));
  NVTEGroupedTensor group = nvte_create_grouped_tensor(NVTE_NVFP4_1D_SCALING, 2, SHAPE(64, 48));
  NVTEGroupedTensor three = nvte_create_grouped_tensor(NVTE_NVFP4_1D_SCALING, 3, SHAPE(64, 48));
  set_grouped(input, kNVTEGroupedRowwiseData, data->ptr, bf16, 64 * 48);
  nvte_group_amax_graph_safe(input, three, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.num_tensors");
  nvte_group_amax_graph_safe(input, group, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.amax");
  nvte_group_hadamard_transform_amax_graph_safe(input, group, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_group_hadamard_transform_amax_graph_safe",
               "output.amax");
  set_grouped(group, kNVTEGroupedAmax, amax->ptr, kNVTEFloat32, 3);
  nvte_group_amax_graph_safe(input, group, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.amax.shape", "[2]");
  set_grouped(group, kNVTEGroupedAmax, amax->ptr, kNVTEFloat32, 2);
  set_grouped(group, kNVTEGroupedFirstDims, amax->ptr, kNVTEInt64, 2);
  nvte_group_amax_graph_safe(input, group, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output.tensor_offsets");
  nvte_group_amax_graph_safe(input, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "output");
  CHECK(untouched(data) && untouched(amax), "a refused call wrote something");
  nvte_destroy_grouped_tensor(input);
  nvte_destroy_grouped_tensor(group);
  nvte_destroy_grouped_tensor(three);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_transform();
  test_amax();
  test_split_amax();
  test_group_amax();
  test_refused();
  return test_end();
}
