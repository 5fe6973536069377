// Casts of computed elements and their sums over the rows (quantize.md sections 4, 9.2 and 9.3), in
// every scaling mode.
#include "fused.h"

#include "nvte/cast.h"
#include "nvte/transpose.h"

// ---- The functions by their form

typedef void (*WithAct)(NVTETensor, NVTETensor, NVTETensor, NVTETensor, NVTETensor, cudaStream_t);
typedef void (*Gated)(NVTETensor, NVTETensor, NVTETensor, cudaStream_t);

static const WithAct kQuantize[F_COUNT] = {
    [F_GELU] = nvte_quantize_dbias_dgelu,   [F_SILU] = nvte_quantize_dbias_dsilu,
    [F_RELU] = nvte_quantize_dbias_drelu,   [F_QGELU] = nvte_quantize_dbias_dqgelu,
    [F_SRELU] = nvte_quantize_dbias_dsrelu,
};
static const WithAct kTranspose[F_COUNT] = {
    [F_GELU] = nvte_cast_transpose_dbias_dgelu,   [F_SILU] = nvte_cast_transpose_dbias_dsilu,
    [F_RELU] = nvte_cast_transpose_dbias_drelu,   [F_QGELU] = nvte_cast_transpose_dbias_dqgelu,
    [F_SRELU] = nvte_cast_transpose_dbias_dsrelu,
};
static const Gated kGated[F_COUNT] = {
    [F_GELU] = nvte_dgeglu_cast_transpose,   [F_SILU] = nvte_dswiglu_cast_transpose,
    [F_RELU] = nvte_dreglu_cast_transpose,   [F_QGELU] = nvte_dqgeglu_cast_transpose,
    [F_SRELU] = nvte_dsreglu_cast_transpose,
};

// ---- One cast: build, call, compare

typedef struct Fused {
  NVTEScalingMode mode;
  Function function;
  bool gated, transpose;  // transpose: the functions of transpose.h
  NVTEDType in, out;
  NVTEShape shape;  // of the output
  Directions directions;
  bool has_scale, has_amax, swizzled, misaligned;
  void *values, *act_values;
  Buffer *input, *act, *data[2], *scales[2], *scale, *amax, *dbias, *workspace;
  NVTETensor in_tensor, act_tensor, out_tensor, dbias_tensor, workspace_tensor;
} Fused;

static const NVTETensorParam kData[2] = {kNVTERowwiseData, kNVTEColumnwiseData};
static const NVTETensorParam kScaleInv[2] = {kNVTERowwiseScaleInv, kNVTEColumnwiseScaleInv};

static bool per_tensor(const Fused *f) { return f->mode == NVTE_DELAYED_TENSOR_SCALING; }
static bool has(const Fused *f, int col) { return (int)f->directions & (col ? COLWISE : ROWWISE); }

static NVTEShape input_shape(const Fused *f) {
  NVTEShape shape = f->shape;
  if (f->gated) shape.data[shape.ndim - 1] /= 2;
  return shape;
}

static void fused_build(Fused *f) {
  NVTEShape shape = f->shape;
  size_t n = numel(shape), cols = cols_of(shape), in_size = dtype_size(f->in);
  size_t out_size = dtype_size(f->out), shift = f->misaligned, in_len = numel(input_shape(f));
  if (!f->values) f->values = random_values(f->in, in_len, -2, 1);
  f->input = buffer_from(f->values, in_len * in_size, shift * in_size);
  f->in_tensor = tensor(f->input->ptr, f->in, input_shape(f));
  if (f->function != F_PLAIN) {
    f->act_values = random_values(f->in, n, -4, 4);
    f->act = buffer_from(f->act_values, n * in_size, shift * in_size);
    f->act_tensor = tensor(f->act->ptr, f->in, shape);
  }
  f->out_tensor = tensor_of_mode(f->mode);
  NVTEDType type = is_mx(f->mode) ? kNVTEFloat8E8M0 : kNVTEFloat32;
  for (int col = 0; col < 2; col++) {
    if (!has(f, col)) continue;
    NVTEShape data = col && !is_mx(f->mode) ? transposed_shape(shape) : shape;
    f->data[col] = buffer_shifted(n * out_size, shift * out_size);
    set_param(f->out_tensor, kData[col], f->data[col]->ptr, f->out, data);
    if (!is_fp8(f->out)) continue;
    size_t dims[2];
    scale_dims(f->mode, col, rows_of(shape), cols, dims);
    // Per tensor both directions have the same scale.
    bool shared = per_tensor(f) && col && f->scales[0];
    f->scales[col] = shared ? f->scales[0] : buffer(dims[0] * dims[1] * scale_size(f->mode));
    NVTEShape scales = per_tensor(f) ? SHAPE(1) : SHAPE(dims[0], dims[1]);
    set_param(f->out_tensor, kScaleInv[col], f->scales[col]->ptr, type, scales);
  }
  if (f->has_scale && per_tensor(f) && is_fp8(f->out)) {
    f->scale = buffer_float((float)random_uniform(0.5, 20));
    set_param(f->out_tensor, kNVTEScale, f->scale->ptr, kNVTEFloat32, SHAPE(1));
  }
  if (f->has_amax) {
    f->amax = buffer_float(0.25f);
    set_param(f->out_tensor, kNVTEAmax, f->amax->ptr, kNVTEFloat32, SHAPE(1));
  }
  if (f->swizzled) {
    uint8_t yes = 1;
    nvte_set_tensor_param_v2(f->out_tensor, kNVTEWithGEMMSwizzledScales, &yes, sizeof yes);
  }
  f->dbias = buffer_shifted(cols * in_size, shift * in_size);
  f->dbias_tensor = tensor(f->dbias->ptr, f->in, SHAPE(cols));
  f->workspace_tensor = empty_tensor();
  EXPECT_OK();
}

static void fused_call(const Fused *f) {
  NVTETensor in = f->in_tensor, act = f->act_tensor, out = f->out_tensor, db = f->dbias_tensor;
  NVTETensor ws = f->workspace_tensor;
  if (f->gated) {
    kGated[f->function](in, act, out, NULL);
  } else if (f->function != F_PLAIN) {
    (f->transpose ? kTranspose : kQuantize)[f->function](in, act, out, db, ws, NULL);
  } else {
    (f->transpose ? nvte_cast_transpose_dbias : nvte_quantize_dbias)(in, out, db, ws, NULL);
  }
}

static void fused_check_untouched(const Fused *f) {
  for (int col = 0; col < 2; col++) {
    if (f->data[col]) CHECK(untouched(f->data[col]), "data were written");
    if (f->scales[col]) CHECK(untouched(f->scales[col]), "scales were written");
  }
  if (f->amax) CHECK_FLOAT(read_float(f->amax), 0.25f);
}

// Asks for the workspace, and provides exactly that.
static void fused_workspace(Fused *f) {
  if (f->gated) return;
  fused_call(f);
  if (!EXPECT_OK()) return;
  fused_check_untouched(f);
  CHECK(untouched(f->dbias), "the query wrote dbias");
  NVTEShape shape = nvte_tensor_shape(f->workspace_tensor);
  CHECK_EQ(nvte_tensor_type(f->workspace_tensor), kNVTEFloat32);
  // Never of no elements: a workspace without an address would ask again.
  bool good = cols_of(f->shape) ? shape.ndim == 2 && shape.data[1] == cols_of(f->shape)
                                : shape.ndim == 1 && shape.data[0] == 1;
  CHECK(good, "workspace %s", shape_text(shape));
  f->workspace = buffer_shifted(numel(shape) * 4, f->misaligned ? 4 : 0);
  set_param(f->workspace_tensor, kNVTERowwiseData, f->workspace->ptr, kNVTEFloat32, shape);
}

static Elements fused_elements(const Fused *f) {
  size_t n = numel(f->shape);
  Elements e = elements_of(n);
  if (f->gated) {
    gated_elements(e, f->function, f->in, f->values, f->act_values, rows_of(f->shape),
                   cols_of(f->shape));
  } else {
    derivative_elements(e, f->function, f->in, f->values, f->act_values, n);
  }
  return e;
}

static void fused_check(const Fused *f) {
  if (!EXPECT_OK()) return;
  size_t n = numel(f->shape), rows = rows_of(f->shape), cols = cols_of(f->shape);
  Matrix m = {.mode = f->mode,
              .in = f->in,
              .out = f->out,
              .rows = rows,
              .cols = cols,
              .swizzled = f->swizzled,
              .scale = f->scale ? read_float(f->scale) : 1,
              .elements = fused_elements(f)};
  for (int col = 0; col < 2; col++) {
    size_t dims[2];
    scale_dims(f->mode, col, rows, cols, dims);
    m.pitch[col] = dims[1];
    if (f->data[col]) m.data[col] = buffer_read(f->data[col]);
    if (f->scales[col]) m.scales[col] = buffer_read(f->scales[col]);
  }
  check_matrix(&m);
  if (per_tensor(f) && is_fp8(f->out)) {
    int col = !f->scales[0];
    CHECK_FLOAT(read_float(f->scales[col]), 1.0f / m.scale);
  }
  if (f->amax) {
    double low = 0.25, high = 0.25;
    for (size_t i = 0; i < n && (per_tensor(f) || is_mx(f->mode)); i++) {
      Interval a = magnitude(element(&m, i));
      low = fmax(low, a.low);
      high = fmax(high, a.high);
    }
    double got = (double)read_float(f->amax);
    CHECK(got >= low && got <= high, "amax %a, not %a to %a", got, low, high);
  }
  if (!f->gated) check_dbias(f->in, rows, cols, m.elements, buffer_read(f->dbias));
  CHECK(memcmp(buffer_read(f->input), f->values, f->input->bytes) == 0, "the input changed");
}

static void fused_case(Fused f) {
  const char *what = f.gated ? "gated " : f.transpose ? "cast_transpose " : "quantize ";
  const char *sides = f.directions == BOTH ? "both" : f.directions == ROWWISE ? "row" : "column";
  if (!case_begin("%s%s %s %s %s %s %s%s%s%s%s", what, kFunctionNames[f.function],
                  kModeNames[f.mode], shape_text(f.shape), dtype_name(f.in), dtype_name(f.out),
                  sides, f.swizzled ? " swizzled" : "", f.misaligned ? " misaligned" : "",
                  f.has_scale ? " scale" : "", f.has_amax ? " amax" : "")) {
    return;
  }
  fused_build(&f);
  fused_workspace(&f);
  fused_call(&f);
  fused_check(&f);
}

// ---- Cases

static NVTEShape shape_at(size_t i) {
  const NVTEShape shapes[] = {SHAPE(1, 2),     SHAPE(1, 516),   SHAPE(2333, 2),
                              SHAPE(64, 400),  SHAPE(128, 128), SHAPE(7, 34),
                              SHAPE(129, 258), SHAPE(300, 6),   SHAPE(5, 4, 3, 30),
                              SHAPE(256, 256), SHAPE(32, 64),   SHAPE(1200, 66)};
  return i < COUNT(shapes) ? shapes[i] : SHAPE(0);
}

static void test_quantize(void) {
  for (size_t s = 0; numel(shape_at(s)) > 0; s++) {
    for (int k = 0; k < 6 * 4 * 6; k++) {
      if (numel(shape_at(s)) > 10000 && k % 5 != (int)s % 5) continue;  // Skipped to save time.
      Fused f = {.mode = kAllModes[k / 6 % 4],
                 .function = (Function)(k % 6),
                 .in = kHighPrecision[(k / 24 + k) % 3],
                 .directions = (Directions)((k / 24 + k / 6) % 3 + 1),
                 .shape = shape_at(s),
                 .has_scale = k % 7 != 0,
                 .has_amax = k % 4 != 0,
                 .misaligned = k % 5 == 2};
      f.out = per_tensor(&f) ? kFloats[k % 5] : kFloat8[k % 2];
      f.swizzled = is_mx(f.mode) && k % 3 == 1;
      fused_case(f);
    }
  }
}

static void test_cast_transpose(void) {
  for (size_t s = 0; numel(shape_at(s)) > 0; s++) {
    for (int k = 0; k < 2 * 6 * 3; k++) {
      if (numel(shape_at(s)) > 10000 && k % 3 != (int)s % 3) continue;  // Skipped to save time.
      Fused f = {.function = (Function)(k % 6),
                 .gated = k / 6 % 2,
                 .transpose = true,
                 .in = kHighPrecision[k / 12],
                 .out = kFloats[(k + (int)s) % 5],
                 .directions = BOTH,
                 .shape = shape_at(s),
                 .has_scale = true,
                 .has_amax = k % 4 != 0,
                 .misaligned = k % 5 == 2};
      if (f.gated && f.function == F_PLAIN) continue;
      fused_case(f);
    }
  }
}

// There are 272 tiles, more than blocks are resident at a time, and some of them are partial.
static void test_tiles(void) {
  for (int gated = 0; gated < 2; gated++) {
    Fused f = {.function = gated ? F_SILU : F_GELU,
               .gated = gated,
               .transpose = true,
               .in = kNVTEBFloat16,
               .out = kNVTEFloat8E4M3,
               .directions = BOTH,
               .shape = gated ? SHAPE(4240, 2048) : SHAPE(4240, 1016),
               .has_scale = true,
               .has_amax = true};
    fused_case(f);
  }
}

// Odd numbers of columns, which forms with halves do not allow.
static void test_odd(void) {
  const NVTEShape shapes[] = {SHAPE(1, 1), SHAPE(1, 3221), SHAPE(3001, 1), SHAPE(33, 65),
                              SHAPE(2600, 3)};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (int k = 0; k < 24; k++) {
      Fused f = {.mode = kAllModes[k % 4],
                 .function = (Function)(k / 4),
                 .in = kHighPrecision[k % 3],
                 .out = kFloat8[k % 2],
                 .directions = (Directions)(k % 3 + 1),
                 .shape = shapes[s],
                 .has_scale = true,
                 .has_amax = true};
      fused_case(f);
    }
  }
}

// Sums of no elements are 0, and nothing else is written.
static void test_empty(void) {
  for (int k = 0; k < 4 * 2 * 2; k++) {
    NVTEShape shape = k / 4 % 2 ? SHAPE(0, 24) : SHAPE(24, 0);
    bool derivative = k / 8;
    if (!case_begin("empty %s %s %s", kModeNames[k % 4], shape_text(shape),
                    derivative ? "dgelu" : "plain")) {
      continue;
    }
    Fused f = {.mode = kAllModes[k % 4],
               .function = derivative ? F_GELU : F_PLAIN,
               .in = kNVTEBFloat16,
               .out = kNVTEFloat8E4M3,
               .directions = BOTH,
               .shape = shape,
               .has_amax = true};
    fused_build(&f);
    fused_workspace(&f);
    fused_call(&f);
    EXPECT_OK();
    for (int col = 0; col < 2; col++) CHECK(untouched(f.scales[col]), "scales were written");
    CHECK_FLOAT(read_float(f.amax), 0.25f);
    CHECK(all_bytes(f.dbias, 0), "dbias is not 0");
  }
  if (case_begin("empty gated")) {
    Fused f = {.function = F_SILU,
               .gated = true,
               .in = kNVTEFloat16,
               .out = kNVTEFloat8E5M2,
               .directions = BOTH,
               .shape = SHAPE(0, 16),
               .has_amax = true};
    fused_build(&f);
    fused_call(&f);
    EXPECT_OK();
    fused_check_untouched(&f);
  }
}

static void test_workspace(void) {
  for (int kind = 0; kind < 3; kind++) {
    static const char *const kinds[] = {"too small", "misaligned", "larger"};
    if (!case_begin("workspace %s", kinds[kind])) continue;
    Fused f = {.function = F_GELU,
               .in = kNVTEFloat32,
               .out = kNVTEFloat8E4M3,
               .directions = ROWWISE,
               .shape = SHAPE(300, 10)};
    fused_build(&f);
    fused_workspace(&f);
    size_t bytes = f.workspace->bytes;
    Buffer *other = buffer(bytes + 64);
    size_t floats = kind == 0 ? bytes / 4 - 1 : bytes / 4 + (size_t)kind;
    set_param(f.workspace_tensor, kNVTERowwiseData, other->ptr + (kind == 1 ? 2 : 0), kNVTEFloat32,
              SHAPE(floats));
    fused_call(&f);
    if (kind == 2) {
      fused_check(&f);
      continue;
    }
    const char *field = kind == 0 ? "workspace.shape: " : "workspace.data: ";
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_quantize_dbias_dgelu: ", field);
    fused_check_untouched(&f);
    CHECK(untouched(f.dbias), "dbias was written");
  }
}

// The query needs shapes only.
static void test_query(void) {
  if (!case_begin("query without pointers")) return;
  NVTEShape shape = SHAPE(1000, 40);
  NVTETensor output = empty_tensor(), workspace = empty_tensor();
  set_param(output, kNVTERowwiseData, NULL, kNVTEFloat8E4M3, shape);
  set_param(output, kNVTEColumnwiseData, NULL, kNVTEFloat8E4M3, SHAPE(40, 1000));
  NVTETensor input = tensor(NULL, kNVTEFloat32, shape),
             dbias = tensor(NULL, kNVTEFloat32, SHAPE(40));
  nvte_cast_transpose_dbias_dsilu(input, input, output, dbias, workspace, NULL);
  EXPECT_OK();
  NVTEShape got = nvte_tensor_shape(workspace);
  CHECK(got.ndim == 2 && got.data[0] >= 1 && got.data[1] == 40, "workspace %s", shape_text(got));
}

// ---- Wrong arguments: the message says which, and nothing is written

typedef struct Wrong {
  const char *what;
  bool gated, transpose;
  const char *message;
} Wrong;

static void test_wrong(void) {
  const Wrong wrong[] = {
      {"dbias shape", false, false, "dbias.data.shape: expected [24]"},
      {"dbias rank", false, false, "dbias.data.shape: expected [24]"},
      {"dbias dtype", false, false, "dbias.dtype: expected BFloat16"},
      {"dbias null", false, false, "dbias.data: expected a pointer"},
      {"dbias misaligned", false, false, "dbias.data: expected a pointer aligned"},
      {"dbias handle", false, false, "dbias"},
      {"workspace handle", false, false, "workspace"},
      {"act_input shape", false, false, "act_input.data.shape: expected [40, 24]"},
      {"act_input dtype", false, true, "act_input.dtype: expected BFloat16"},
      {"act_input null", false, true, "act_input.data: expected a pointer"},
      {"input null", false, true, "input.data: expected a pointer"},
      {"no column", false, true, "output.columnwise_data"},
      {"no row", true, true, "output.data"},
      {"two scale_inv", false, true, "output.columnwise_scale_inv"},
      {"two scale_inv", true, true, "output.columnwise_scale_inv"},
      {"mode", true, true, "output"},
      {"odd halves", true, true, "act_input.data.shape: expected an even last dimension"},
      {"input shape", true, true, "input.data.shape: expected [40, 12]"},
      {"input dtype", true, true, "input.dtype: expected BFloat16"},
      {"output shape", true, true, "output.data.shape: expected [40, 24]"},
      {"output shape", false, false, "output.data.shape: expected [40, 24]"},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    const Wrong *w = &wrong[i];
    if (!case_begin("wrong %s%s%s", w->what, w->gated ? " gated" : "",
                    w->transpose ? " transpose" : "")) {
      continue;
    }
    Fused f = {.function = F_GELU,
               .gated = w->gated,
               .transpose = w->transpose,
               .in = kNVTEBFloat16,
               .out = kNVTEFloat8E4M3,
               .directions = BOTH,
               .shape = SHAPE(40, 24),
               .has_amax = true};
    fused_build(&f);
    fused_workspace(&f);
    NVTEShape shape = f.shape;
    bool is_shape = strcmp(w->what, "output shape") == 0;
    if (strcmp(w->what, "dbias shape") == 0) {
      set_param(f.dbias_tensor, kNVTERowwiseData, f.dbias->ptr, f.in, SHAPE(23));
    } else if (strcmp(w->what, "dbias rank") == 0) {
      set_param(f.dbias_tensor, kNVTERowwiseData, f.dbias->ptr, f.in, SHAPE(1, 24));
    } else if (strcmp(w->what, "dbias dtype") == 0) {
      set_param(f.dbias_tensor, kNVTERowwiseData, f.dbias->ptr, kNVTEFloat16, SHAPE(24));
    } else if (strcmp(w->what, "dbias null") == 0) {
      set_param(f.dbias_tensor, kNVTERowwiseData, NULL, f.in, SHAPE(24));
    } else if (strcmp(w->what, "dbias misaligned") == 0) {
      set_param(f.dbias_tensor, kNVTERowwiseData, f.dbias->ptr + 1, f.in, SHAPE(24));
    } else if (strcmp(w->what, "dbias handle") == 0) {
      f.dbias_tensor = NULL;
    } else if (strcmp(w->what, "workspace handle") == 0) {
      f.workspace_tensor = NULL;
    } else if (strcmp(w->what, "act_input shape") == 0) {
      set_param(f.act_tensor, kNVTERowwiseData, f.act->ptr, f.in, SHAPE(24, 40));
    } else if (strcmp(w->what, "act_input dtype") == 0) {
      set_param(f.act_tensor, kNVTERowwiseData, f.act->ptr, kNVTEFloat16, shape);
    } else if (strcmp(w->what, "act_input null") == 0) {
      set_param(f.act_tensor, kNVTERowwiseData, NULL, f.in, shape);
    } else if (strcmp(w->what, "input null") == 0) {
      set_param(f.in_tensor, kNVTERowwiseData, NULL, f.in, shape);
    } else if (strcmp(w->what, "no column") == 0) {
      set_param(f.out_tensor, kNVTEColumnwiseData, NULL, kNVTEFloat32, SHAPE(0));
    } else if (strcmp(w->what, "no row") == 0) {
      set_param(f.out_tensor, kNVTERowwiseData, NULL, kNVTEFloat32, SHAPE(0));
    } else if (strcmp(w->what, "two scale_inv") == 0) {
      set_param(f.out_tensor, kNVTEColumnwiseScaleInv, buffer(4)->ptr, kNVTEFloat32, SHAPE(1));
    } else if (strcmp(w->what, "mode") == 0) {
      f.out_tensor = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
      set_param(f.out_tensor, kNVTERowwiseData, f.data[0]->ptr, f.out, shape);
    } else if (strcmp(w->what, "odd halves") == 0) {
      set_param(f.act_tensor, kNVTERowwiseData, f.act->ptr, f.in, SHAPE(40, 23));
    } else if (strcmp(w->what, "input shape") == 0) {
      set_param(f.in_tensor, kNVTERowwiseData, f.input->ptr, f.in, SHAPE(12, 40));
    } else if (strcmp(w->what, "input dtype") == 0) {
      set_param(f.in_tensor, kNVTERowwiseData, f.input->ptr, kNVTEFloat16, input_shape(&f));
    } else if (is_shape) {
      set_param(f.out_tensor, kNVTERowwiseData, f.data[0]->ptr, f.out, SHAPE(40, 12));
    }
    fused_call(&f);
    const char *name = w->gated       ? "nvte_dgeglu_cast_transpose"
                       : w->transpose ? "nvte_cast_transpose_dbias_dgelu"
                                      : "nvte_quantize_dbias_dgelu";
    EXPECT_ERROR(ANY_ERROR, name, w->message);
    fused_check_untouched(&f);
    CHECK(untouched(f.dbias), "dbias was written");
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_quantize();
  test_cast_transpose();
  test_tiles();
  test_odd();
  test_empty();
  test_workspace();
  test_query();
  test_wrong();
  return test_end();
}
