// Groups whose dimensions or offsets on the device are wrong: no operator leaves the buffers that
// were declared, changes what it only reads, hangs or crashes. The same calls with
// NVTE_CHECK=device, in a process of its own because the environment is read once, are refused by
// name and write nothing.
#define _POSIX_C_SOURCE 200809L
#include "child.h"

enum { COUNT_ = 3, SIDE = 128, TOTAL = COUNT_ * SIDE * SIDE };
enum { kLarge = 32 << 20 };

typedef enum Class { ROWS, COLS, BOTH_DIMS } Class;

static void *g_workspace;

// ---- The arrays

typedef struct Arrays {
  Class class;
  int64_t first[COUNT_], last[COUNT_], offsets[COUNT_ + 1];
} Arrays;

static Arrays good_arrays(Class class) {
  Arrays a = {.class = class};
  for (int t = 0; t <= COUNT_; t++) {
    if (t < COUNT_) a.first[t] = a.last[t] = SIDE;
    a.offsets[t] = t * SIDE * SIDE;
  }
  return a;
}

static const int64_t kBadDims[] = {-1,
                                   INT64_MIN,
                                   INT64_MAX,
                                   1000000,
                                   (int64_t)1 << 32,
                                   ((int64_t)1 << 32) + SIDE,
                                   COUNT_ *SIDE + 1};
static const int64_t kBadOffsets[] = {
    -1, INT64_MIN, INT64_MAX, TOTAL + SIDE *SIDE, (int64_t)1 << 32, -SIDE *SIDE, TOTAL * 4};
enum { ALL = -1, SUM = -2 };

// ---- Buffers: outputs keep POISON_VALUE where nobody writes, inputs their contents

enum { MAX_BUFFERS = 40 };
static struct {
  Buffer *buffer;
  void *image;  // The contents to put there; null for an output.
} g_buffers[MAX_BUFFERS];
static size_t g_count;

static void *out_buffer(size_t bytes) {
  g_buffers[g_count].buffer = buffer(bytes);
  g_buffers[g_count].image = NULL;
  return g_buffers[g_count++].buffer->ptr;
}

static void *in_buffer(const void *host, size_t bytes) {
  void *image = host_memory(bytes);
  memcpy(image, host, bytes);
  g_buffers[g_count].buffer = buffer_from(host, bytes, 0);
  g_buffers[g_count].image = image;
  return g_buffers[g_count++].buffer->ptr;
}

static void *ones(NVTEDType dtype, size_t n) {
  void *host = host_memory(n * dtype_size(dtype));
  for (size_t i = 0; i < n; i++) put_value(dtype, host, i, 1);
  return in_buffer(host, n * dtype_size(dtype));
}

static void *codes(size_t n) {
  unsigned char *host = host_memory(n);
  memset(host, 127, n);
  return in_buffer(host, n);
}

static void check_buffers(bool refused) {
  for (size_t i = 0; i < g_count; i++) {
    const Buffer *b = g_buffers[i].buffer;
    if (g_buffers[i].image) {
      CHECK(memcmp(buffer_read(b), g_buffers[i].image, b->bytes) == 0, "input %zu changed", i);
    } else if (refused) {
      CHECK(untouched(b), "a refused call wrote output %zu", i);
    }
  }
}

// ---- Grouped tensors

static NVTEGroupedTensor g_tensors[16];
static size_t g_tensor_count;

static void set(NVTEGroupedTensor t, NVTEGroupedTensorParam param, void *ptr, NVTEDType dtype,
                NVTEShape shape) {
  NVTEBasicTensor b = {ptr, dtype, shape};
  nvte_set_grouped_tensor_param(t, param, &b, sizeof b);
}

static NVTEGroupedTensor keep(NVTEGroupedTensor t) { return g_tensors[g_tensor_count++] = t; }

// A group of members of 128 rows and `width` columns, if the arrays are good.
static NVTEGroupedTensor group_of(const Arrays *a, NVTEScalingMode mode, size_t width) {
  NVTEShape shape = a->class == ROWS   ? SHAPE(COUNT_ * SIDE, width)
                    : a->class == COLS ? SHAPE(SIDE, COUNT_ * width)
                                       : SHAPE(1, COUNT_ * SIDE * width);
  NVTEGroupedTensor t = keep(nvte_create_grouped_tensor(mode, COUNT_, shape));
  if (a->class != COLS) {
    set(t, kNVTEGroupedFirstDims, in_buffer(a->first, sizeof a->first), kNVTEInt64, SHAPE(COUNT_));
  }
  if (a->class != ROWS) {
    set(t, kNVTEGroupedLastDims, in_buffer(a->last, sizeof a->last), kNVTEInt64, SHAPE(COUNT_));
  }
  int64_t offsets[COUNT_ + 1];
  for (int i = 0; i <= COUNT_; i++) {
    // The offsets of good arrays are for 128 columns.
    offsets[i] = a->offsets[i] == i * SIDE * SIDE ? i * SIDE * (int64_t)width : a->offsets[i];
  }
  set(t, kNVTEGroupedTensorOffsets, in_buffer(offsets, sizeof offsets), kNVTEInt64,
      SHAPE(COUNT_ + 1));
  return t;
}

static NVTEGroupedTensor with_data(NVTEGroupedTensor t, NVTEDType dtype, size_t n, bool output) {
  void *ptr = output ? out_buffer(n * dtype_size(dtype)) : ones(dtype, n);
  set(t, kNVTEGroupedRowwiseData, ptr, dtype, SHAPE(n));
  return t;
}

static size_t scale_count(NVTEScalingMode mode) {
  // MXFP8: 128 x 4 codes; 1D: 128 floats; 2D: one, its row padded to four.
  return COUNT_ * (mode == NVTE_MXFP8_1D_SCALING   ? 512
                   : mode == NVTE_BLOCK_SCALING_1D ? 128
                   : mode == NVTE_BLOCK_SCALING_2D ? 4
                                                   : 1);
}

static void set_scales(NVTEGroupedTensor t, NVTEScalingMode mode, bool colwise, bool output) {
  size_t n = scale_count(mode);
  bool mx = mode == NVTE_MXFP8_1D_SCALING;
  void *ptr = output ? out_buffer(n * (mx ? 1 : 4)) : mx ? codes(n) : ones(kNVTEFloat32, n);
  set(t, colwise ? kNVTEGroupedColumnwiseScaleInv : kNVTEGroupedRowwiseScaleInv, ptr,
      mx ? kNVTEFloat8E8M0 : kNVTEFloat32, SHAPE(n));
}

// ---- The calls

static NVTEGroupedTensor input_of(const Arrays *a) {
  return with_data(group_of(a, NVTE_DELAYED_TENSOR_SCALING, SIDE), kNVTEBFloat16, TOTAL, false);
}

static NVTEGroupedTensor cast_output(const Arrays *a, NVTEScalingMode mode) {
  NVTEGroupedTensor t = with_data(group_of(a, mode, SIDE), kNVTEFloat8E4M3, TOTAL, true);
  set(t, kNVTEGroupedColumnwiseData, out_buffer(TOTAL), kNVTEFloat8E4M3, SHAPE(TOTAL));
  set_scales(t, mode, false, true);
  set_scales(t, mode, true, true);
  if (mode == NVTE_DELAYED_TENSOR_SCALING) {
    set(t, kNVTEGroupedScale, ones(kNVTEFloat32, COUNT_), kNVTEFloat32, SHAPE(COUNT_));
  }
  return t;
}

static void quantize(const Arrays *a, NVTEScalingMode mode) {
  nvte_group_quantize(input_of(a), cast_output(a, mode), NULL, NULL);
}

static void quantize_wide(const Arrays *a, NVTEScalingMode mode) {
  NVTEGroupedTensor out = group_of(a, mode, SIDE);
  nvte_group_gelu(input_of(a), with_data(out, kNVTEBFloat16, TOTAL, true), NULL);
}

static void gelu(const Arrays *a, NVTEScalingMode mode) {
  nvte_group_gelu(input_of(a), cast_output(a, mode), NULL);
}

static void dgelu(const Arrays *a, NVTEScalingMode mode) {
  nvte_group_dgelu(input_of(a), input_of(a), cast_output(a, mode), NULL);
}

static void swiglu(const Arrays *a, NVTEScalingMode mode) {
  NVTEGroupedTensor in = group_of(a, NVTE_DELAYED_TENSOR_SCALING, 2 * SIDE);
  with_data(in, kNVTEBFloat16, 2 * TOTAL, false);
  size_t rows = COUNT_ * SIDE;
  NVTETensor prob = tensor(ones(kNVTEBFloat16, rows), kNVTEBFloat16, SHAPE(rows));
  nvte_group_scaled_swiglu(in, prob, cast_output(a, mode), NULL);
}

static void dbias(const Arrays *a, NVTEScalingMode mode) {
  NVTEGroupedTensor sums =
      keep(nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, COUNT_, SHAPE(COUNT_, SIDE)));
  with_data(sums, kNVTEBFloat16, COUNT_ * SIDE, true);
  // A row for each 128 rows of the group, and one more for each member.
  size_t rows = 2 * COUNT_;
  NVTETensor workspace = tensor(out_buffer(rows * SIDE * 4), kNVTEFloat32, SHAPE(rows, SIDE));
  nvte_group_quantize_dbias(input_of(a), cast_output(a, mode), sums, workspace, NULL, NULL);
}

static NVTEGroupedTensor fp8_input(const Arrays *a, NVTEScalingMode mode, bool colwise) {
  NVTEGroupedTensor t = group_of(a, mode, SIDE);
  set(t, colwise ? kNVTEGroupedColumnwiseData : kNVTEGroupedRowwiseData,
      ones(kNVTEFloat8E4M3, TOTAL), kNVTEFloat8E4M3, SHAPE(TOTAL));
  set_scales(t, mode, colwise, false);
  return t;
}

static void dequantize_rows(const Arrays *a, NVTEScalingMode mode) {
  NVTEGroupedTensor out = group_of(a, NVTE_DELAYED_TENSOR_SCALING, SIDE);
  with_data(out, kNVTEBFloat16, TOTAL, true);
  nvte_group_dequantize(fp8_input(a, mode, false), out, NULL);
}

static void dequantize_columns(const Arrays *a, NVTEScalingMode mode) {
  NVTEGroupedTensor out = group_of(a, NVTE_DELAYED_TENSOR_SCALING, SIDE);
  with_data(out, kNVTEBFloat16, TOTAL, true);
  nvte_group_dequantize(fp8_input(a, mode, true), out, NULL);
}

static void swizzle_way(const Arrays *a, NVTEScalingMode mode, bool back) {
  NVTEGroupedTensor in = group_of(a, mode, SIDE), out = group_of(a, mode, SIDE);
  for (int colwise = 0; colwise < 2; colwise++) {
    set_scales(in, mode, colwise, false);
    set_scales(out, mode, colwise, true);
  }
  uint8_t on = 1;
  nvte_set_grouped_tensor_param(back ? in : out, kNVTEGroupedWithGEMMSwizzledScales, &on,
                                sizeof on);
  back ? nvte_unswizzle_grouped_scaling_factors(in, out, NULL)
       : nvte_swizzle_grouped_scaling_factors(in, out, NULL);
}

static void swizzle(const Arrays *a, NVTEScalingMode mode) { swizzle_way(a, mode, false); }
static void unswizzle(const Arrays *a, NVTEScalingMode mode) { swizzle_way(a, mode, true); }

static NVTEGroupedTensor amax_output(const Arrays *a, NVTEScalingMode mode) {
  NVTEGroupedTensor out = group_of(a, mode, SIDE);
  set(out, kNVTEGroupedAmax, out_buffer(COUNT_ * 4), kNVTEFloat32, SHAPE(COUNT_));
  return out;
}

static void amax(const Arrays *a, NVTEScalingMode mode) {
  nvte_group_compute_amax_with_config(input_of(a), amax_output(a, mode), NULL, NULL);
}

static void hadamard_amax(const Arrays *a, NVTEScalingMode mode) {
  NVTEGroupedTensor out = amax_output(a, mode);
  set(out, kNVTEGroupedRowwiseData, out_buffer(TOTAL / 2), kNVTEFloat4E2M1, SHAPE(TOTAL));
  nvte_group_hadamard_transform_amax_graph_safe(input_of(a), out, 0, 0, NULL);
}

static void hadamard_cast(const Arrays *a, NVTEScalingMode mode) {
  NVTEGroupedTensor out = group_of(a, mode, SIDE);
  for (int colwise = 0; colwise < 2; colwise++) {
    set(out, colwise ? kNVTEGroupedColumnwiseData : kNVTEGroupedRowwiseData, out_buffer(TOTAL / 2),
        kNVTEFloat4E2M1, SHAPE(TOTAL));
    set(out, colwise ? kNVTEGroupedColumnwiseScaleInv : kNVTEGroupedRowwiseScaleInv,
        out_buffer(TOTAL / 16), kNVTEFloat8E4M3, SHAPE(TOTAL / 16));
    set(out, colwise ? kNVTEGroupedColumnwiseAmax : kNVTEGroupedAmax, ones(kNVTEFloat32, COUNT_),
        kNVTEFloat32, SHAPE(COUNT_));
  }
  NVTETensor matrix = tensor(ones(kNVTEBFloat16, 256), kNVTEBFloat16, SHAPE(16, 16));
  NVTETensor workspace = tensor(out_buffer(16), kNVTEFloat32, SHAPE(4));
  nvte_group_hadamard_transform_cast_fusion_graph_safe(input_of(a), out, matrix, NULL, workspace,
                                                       NULL);
}

static void requantize(const Arrays *a, NVTEScalingMode mode) {
  size_t rows = COUNT_ * SIDE;
  NVTETensor in = own(OWN_TENSOR, nvte_create_tensor(mode));
  NVTETensor out = own(OWN_TENSOR, nvte_create_tensor(mode));
  NVTEShape data = SHAPE(rows, SIDE), scales = SHAPE(rows, SIDE / 32);
  NVTEBasicTensor fields[] = {{ones(kNVTEFloat8E4M3, TOTAL), kNVTEFloat8E4M3, data},
                              {codes(TOTAL / 32), kNVTEFloat8E8M0, scales},
                              {out_buffer(TOTAL), kNVTEFloat8E4M3, data},
                              {out_buffer(TOTAL / 32), kNVTEFloat8E8M0, scales},
                              {out_buffer(TOTAL / 32), kNVTEFloat8E8M0, scales}};
  nvte_set_tensor_param_v2(in, kNVTERowwiseData, &fields[0], sizeof fields[0]);
  nvte_set_tensor_param_v2(in, kNVTERowwiseScaleInv, &fields[1], sizeof fields[1]);
  nvte_set_tensor_param_v2(out, kNVTEColumnwiseData, &fields[2], sizeof fields[2]);
  nvte_set_tensor_param_v2(out, kNVTERowwiseScaleInv, &fields[3], sizeof fields[3]);
  nvte_set_tensor_param_v2(out, kNVTEColumnwiseScaleInv, &fields[4], sizeof fields[4]);
  NVTETensor offsets =
      tensor(in_buffer(a->offsets, sizeof a->offsets), kNVTEInt64, SHAPE(COUNT_ + 1));
  NVTETensor copy = tensor(out_buffer(TOTAL * 2), kNVTEBFloat16, data);
  nvte_group_requantize(in, out, offsets, copy, NULL, NULL);
}

// D[t] = B[t] A[t]^T: the arrays are those of B, of D or of both, A has members of 128 x 128.
static void gemm_of(const Arrays *b_arrays, const Arrays *d_arrays, NVTEScalingMode mode) {
  bool wide = mode == NVTE_DELAYED_TENSOR_SCALING;
  NVTEDType dtype = wide ? kNVTEBFloat16 : kNVTEFloat8E4M3;
  NVTEGroupedTensor a = keep(nvte_create_grouped_tensor(mode, COUNT_, SHAPE(COUNT_ * SIDE, SIDE)));
  NVTEGroupedTensor b = group_of(b_arrays, mode, SIDE);
  with_data(a, dtype, TOTAL, false);
  with_data(b, dtype, TOTAL, false);
  if (!wide) {
    set_scales(a, mode, false, false);
    set_scales(b, mode, false, false);
  }
  if (mode == NVTE_MXFP8_1D_SCALING) {
    uint8_t on = 1;
    nvte_set_grouped_tensor_param(a, kNVTEGroupedWithGEMMSwizzledScales, &on, sizeof on);
    nvte_set_grouped_tensor_param(b, kNVTEGroupedWithGEMMSwizzledScales, &on, sizeof on);
  }
  NVTEGroupedTensor d = group_of(d_arrays, NVTE_DELAYED_TENSOR_SCALING, SIDE);
  with_data(d, kNVTEFloat32, TOTAL, true);
  float zero = 0;
  NVTETensor alpha = tensor(ones(kNVTEFloat32, 1), kNVTEFloat32, SHAPE(1));
  NVTETensor beta = tensor(in_buffer(&zero, sizeof zero), kNVTEFloat32, SHAPE(1));
  NVTETensor setup = tensor(out_buffer(4096), kNVTEByte, SHAPE(4096));
  NVTETensor workspace = tensor(g_workspace, kNVTEByte, SHAPE(kLarge));
  NVTEGroupedMatmulConfig config = NULL;
  if (mode == NVTE_BLOCK_SCALING_1D) {
    uint8_t on = 1;
    config = nvte_create_grouped_matmul_config();
    nvte_set_grouped_matmul_config_attribute(config, kNVTEGroupedMatmulConfigUseSplitAccumulator,
                                             &on, sizeof on);
  }
  nvte_grouped_gemm(a, 1, b, 0, NULL, d, alpha, beta, setup, workspace, config, NULL);
  if (config) nvte_destroy_grouped_matmul_config(config);
}

static void gemm_both(const Arrays *a, NVTEScalingMode mode) { gemm_of(a, a, mode); }
static void gemm_b(const Arrays *a, NVTEScalingMode mode) {
  Arrays good = good_arrays(ROWS);
  gemm_of(a, &good, mode);
}
static void gemm_d(const Arrays *a, NVTEScalingMode mode) {
  Arrays good = good_arrays(ROWS);
  gemm_of(&good, a, mode);
}

static void bias_add(const Arrays *a, NVTEScalingMode mode) {
  NVTEGroupedTensor out = with_data(group_of(a, mode, SIDE), kNVTEBFloat16, TOTAL, true);
  NVTEGroupedTensor bias = keep(nvte_create_grouped_tensor(mode, COUNT_, SHAPE(COUNT_, SIDE)));
  nvte_grouped_bias_add(out, with_data(bias, kNVTEBFloat16, COUNT_ * SIDE, false), NULL);
}

// Arrays that an operator does not read cannot be wrong for it.
enum { DIMS = 1, OFFSETS = 2 };

static const struct Call {
  const char *name;
  void (*call)(const Arrays *, NVTEScalingMode);
  NVTEScalingMode mode;
  Class last;  // The last of the classes that the operator takes.
  int reads;
  const char *arrays;  // The arrays of the tensor that NVTE_CHECK=device names.
} kCalls[] = {
    {"quantize", quantize, NVTE_DELAYED_TENSOR_SCALING, BOTH_DIMS, DIMS | OFFSETS, "output."},
    {"quantize", quantize, NVTE_MXFP8_1D_SCALING, BOTH_DIMS, DIMS | OFFSETS, "output."},
    {"quantize", quantize, NVTE_BLOCK_SCALING_1D, BOTH_DIMS, DIMS | OFFSETS, "output."},
    {"quantize", quantize, NVTE_BLOCK_SCALING_2D, BOTH_DIMS, DIMS | OFFSETS, "output."},
    {"gelu in BF16", quantize_wide, NVTE_DELAYED_TENSOR_SCALING, BOTH_DIMS, DIMS | OFFSETS,
     "output."},
    {"gelu", gelu, NVTE_MXFP8_1D_SCALING, BOTH_DIMS, DIMS | OFFSETS, "output."},
    {"gelu", gelu, NVTE_BLOCK_SCALING_1D, BOTH_DIMS, DIMS | OFFSETS, "output."},
    {"dgelu", dgelu, NVTE_MXFP8_1D_SCALING, BOTH_DIMS, DIMS | OFFSETS, "output."},
    {"scaled swiglu", swiglu, NVTE_MXFP8_1D_SCALING, ROWS, DIMS | OFFSETS, "output."},
    {"dbias", dbias, NVTE_MXFP8_1D_SCALING, ROWS, DIMS | OFFSETS, "output."},
    {"dbias", dbias, NVTE_BLOCK_SCALING_2D, ROWS, DIMS | OFFSETS, "output."},
    {"dequantize", dequantize_rows, NVTE_DELAYED_TENSOR_SCALING, BOTH_DIMS, DIMS | OFFSETS,
     "input."},
    {"dequantize", dequantize_rows, NVTE_MXFP8_1D_SCALING, BOTH_DIMS, DIMS | OFFSETS, "input."},
    {"dequantize", dequantize_rows, NVTE_BLOCK_SCALING_1D, BOTH_DIMS, DIMS | OFFSETS, "input."},
    {"dequantize", dequantize_rows, NVTE_BLOCK_SCALING_2D, BOTH_DIMS, DIMS | OFFSETS, "input."},
    {"dequantize columns", dequantize_columns, NVTE_DELAYED_TENSOR_SCALING, BOTH_DIMS,
     DIMS | OFFSETS, "input."},
    {"dequantize columns", dequantize_columns, NVTE_MXFP8_1D_SCALING, BOTH_DIMS, DIMS | OFFSETS,
     "input."},
    {"dequantize columns", dequantize_columns, NVTE_BLOCK_SCALING_1D, BOTH_DIMS, DIMS | OFFSETS,
     "input."},
    {"swizzle", swizzle, NVTE_MXFP8_1D_SCALING, BOTH_DIMS, DIMS, "input."},
    {"unswizzle", unswizzle, NVTE_MXFP8_1D_SCALING, BOTH_DIMS, DIMS, "input."},
    {"amax", amax, NVTE_DELAYED_TENSOR_SCALING, BOTH_DIMS, DIMS | OFFSETS, "output."},
    {"hadamard amax", hadamard_amax, NVTE_NVFP4_1D_SCALING, ROWS, DIMS | OFFSETS, "output."},
    {"hadamard cast", hadamard_cast, NVTE_NVFP4_1D_SCALING, ROWS, OFFSETS, "output."},
    {"requantize", requantize, NVTE_MXFP8_1D_SCALING, ROWS, OFFSETS, ""},
    {"gemm", gemm_both, NVTE_DELAYED_TENSOR_SCALING, ROWS, DIMS | OFFSETS, "B."},
    {"gemm", gemm_both, NVTE_MXFP8_1D_SCALING, ROWS, DIMS | OFFSETS, "B."},
    {"gemm", gemm_both, NVTE_BLOCK_SCALING_1D, ROWS, DIMS | OFFSETS, "B."},
    {"gemm, wrong B", gemm_b, NVTE_DELAYED_TENSOR_SCALING, ROWS, DIMS | OFFSETS, "B."},
    {"gemm, wrong D", gemm_d, NVTE_DELAYED_TENSOR_SCALING, ROWS, DIMS | OFFSETS, "D."},
    {"gemm, wrong D", gemm_d, NVTE_MXFP8_1D_SCALING, ROWS, DIMS | OFFSETS, "D."},
    {"bias", bias_add, NVTE_DELAYED_TENSOR_SCALING, ROWS, DIMS, "output."},
};

// Runs a call on arrays that are wrong where `field` says, or right without one.
static void run(const struct Call *c, const Arrays *a, const char *field, const char *value) {
  g_count = g_tensor_count = 0;
  c->call(a, c->mode);
  nvtex_stream_synchronize(NULL);
  NVTEXStatus status = nvtex_last_status();
  if (status == NVTEX_UNSUPPORTED) {
    // A backend may decline what another backend computes.
    g_test.declined++;
    nvtex_clear_error();
  } else if (g_checked && field) {
    char name[64];
    snprintf(name, sizeof name, "%s%s", c->arrays, field);
    if (value) {
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, value);
    } else {
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name);
    }
    check_buffers(true);
  } else {
    EXPECT_OK();
    check_buffers(false);
  }
  while (g_tensor_count > 0) nvte_destroy_grouped_tensor(g_tensors[--g_tensor_count]);
}

static const char *const kClasses[] = {"rows", "columns", "both"};

static void test_dims(const struct Call *c, Class class) {
  for (int which = SUM; which < COUNT_; which++) {
    // One member may have as many rows as the whole group, but all members together may not.
    size_t values = which == SUM ? 1 : COUNT(kBadDims);
    for (size_t i = 0; i < values; i++) {
      int64_t bad = which == SUM ? COUNT_ * SIDE : kBadDims[i];
      // If both dimensions vary, 385 rows of 128 columns are too many in all.
      if (class == BOTH_DIMS && bad == COUNT_ * SIDE + 1) bad = TOTAL + 1;
      if (!case_begin("%s mode %d %s%s: dims %lld at %d", c->name, (int)c->mode, kClasses[class],
                      g_checked ? ", checked" : "", (long long)bad, which))
        continue;
      Arrays a = good_arrays(class);
      for (int t = 0; t < COUNT_; t++) {
        if (which >= 0 && which != t) continue;
        (class == COLS ? a.last : a.first)[t] = bad;
      }
      char got[32];
      snprintf(got, sizeof got, "got %lld", (long long)bad);
      run(c, &a, class == COLS ? "last_dims" : "first_dims", which == SUM ? NULL : got);
    }
  }
}

static void test_offsets(const struct Call *c, Class class) {
  for (int which = ALL; which < COUNT_; which++) {
    for (size_t i = 0; i < COUNT(kBadOffsets); i++) {
      if (!case_begin("%s mode %d %s%s: offset %lld at %d", c->name, (int)c->mode, kClasses[class],
                      g_checked ? ", checked" : "", (long long)kBadOffsets[i], which))
        continue;
      Arrays a = good_arrays(class);
      for (int t = 0; t < COUNT_; t++) {
        if (which == ALL || which == t) a.offsets[t] = kBadOffsets[i];
      }
      char got[32];
      snprintf(got, sizeof got, "got %lld", (long long)kBadOffsets[i]);
      run(c, &a, "tensor_offsets", got);
    }
  }
  if (case_begin("%s mode %d %s%s: offsets in the wrong order", c->name, (int)c->mode,
                 kClasses[class], g_checked ? ", checked" : "")) {
    Arrays a = good_arrays(class);
    a.offsets[0] = 2 * SIDE * SIDE;
    a.offsets[2] = 0;
    run(c, &a, "tensor_offsets", NULL);
  }
}

// Scales that the smallest member does not fit, and more members than a group may have.
static void test_host(void) {
  if (case_begin("one scale%s", g_checked ? ", checked" : "")) {
    Arrays a = good_arrays(ROWS);
    g_count = g_tensor_count = 0;
    NVTEGroupedTensor out = cast_output(&a, NVTE_MXFP8_1D_SCALING);
    set(out, kNVTEGroupedRowwiseScaleInv, out_buffer(1), kNVTEFloat8E8M0, SHAPE(1));
    nvte_group_quantize(input_of(&a), out, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "output.scale_inv.shape", "512 or more", "got [1]");
    check_buffers(true);
    while (g_tensor_count > 0) nvte_destroy_grouped_tensor(g_tensors[--g_tensor_count]);
  }
  if (case_begin("2^62 members%s", g_checked ? ", checked" : "")) {
    g_count = 0;
    NVTEGroupedTensor g =
        nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, (size_t)1 << 62, SHAPE(0, 0));
    set(g, kNVTEGroupedRowwiseData, out_buffer(4), kNVTEFloat32, SHAPE(0, 0));
    NVTETensor one = tensor(ones(kNVTEFloat32, 1), kNVTEFloat32, SHAPE(1));
    NVTETensor workspace = tensor(g_workspace, kNVTEByte, SHAPE(kLarge));
    nvte_grouped_gemm(g, 0, g, 0, g, g, one, one, workspace, workspace, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "B.num_tensors", "at most 1048576");
    nvte_group_quantize(g, g, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "output.num_tensors", "at most 1048576");
    nvte_destroy_grouped_tensor(g);
  }
}

static int run_all(int argc, char **argv) {
  test_begin(argc, argv);
  g_workspace = nvtex_malloc(kLarge);
  if (!g_workspace) return TEST_FAIL;
  for (size_t i = 0; i < COUNT(kCalls); i++) {
    const struct Call *c = &kCalls[i];
    for (Class class = ROWS; class <= c->last; class++) {
      if (case_begin("%s mode %d %s%s: right", c->name, (int)c->mode, kClasses[class],
                     g_checked ? ", checked" : "")) {
        Arrays a = good_arrays(class);
        run(c, &a, NULL, NULL);
      }
      if (c->reads & DIMS) test_dims(c, class);
      if (c->reads & OFFSETS) test_offsets(c, class);
    }
  }
  test_host();
  case_end();
  nvtex_free(g_workspace);
  return test_end();
}

int main(int argc, char **argv) { return run_checked_and_unchecked(run_all, argc, argv); }
