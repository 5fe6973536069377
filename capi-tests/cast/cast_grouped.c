// Casts of grouped tensors (quantize.md section 6): every member is the cast of a matrix of its
// own, and what no member has stays as it was.
#include "fused.h"

#include "nvte/cast.h"

typedef void (*WithAct)(NVTEGroupedTensor, NVTEGroupedTensor, NVTEGroupedTensor, NVTEGroupedTensor,
                        NVTETensor, cudaStream_t);

static const WithAct kFunctions[F_COUNT] = {
    [F_GELU] = nvte_group_quantize_dbias_dgelu,   [F_SILU] = nvte_group_quantize_dbias_dsilu,
    [F_RELU] = nvte_group_quantize_dbias_drelu,   [F_QGELU] = nvte_group_quantize_dbias_dqgelu,
    [F_SRELU] = nvte_group_quantize_dbias_dsrelu,
};

// ---- Groups

typedef enum Class { SAME, VARYING_FIRST, VARYING_LAST, VARYING_BOTH } Class;
enum { MAX_MEMBERS = 300 };

typedef struct Group {
  const char *name;
  Class class;
  size_t count, dims[MAX_MEMBERS][2];
  size_t spare;  // logical rows (VARYING_FIRST) or columns past the last member
  size_t gap;    // elements between members
} Group;

static const Group kGroups[] = {
    {"1x(128x128)", SAME, 1, {{128, 128}}, 0, 0},
    {"3x(128x80)", SAME, 3, {{128, 80}, {128, 80}, {128, 80}}, 0, 0},
    {"4x(5x7)", SAME, 4, {{5, 7}, {5, 7}, {5, 7}, {5, 7}}, 0, 0},
    {"rows 100 300 0 400 33",
     VARYING_FIRST,
     5,
     {{100, 96}, {300, 96}, {0, 96}, {400, 96}, {33, 96}},
     0,
     0},
    {"rows 128 0 256 spare", VARYING_FIRST, 3, {{128, 160}, {0, 160}, {256, 160}}, 128, 0},
    {"rows 1 2 3 gaps", VARYING_FIRST, 3, {{1, 1}, {2, 1}, {3, 1}}, 7, 16},
    {"rows 0 0 spare", VARYING_FIRST, 2, {{0, 40}, {0, 40}}, 3, 0},
    {"cols 128 0 300", VARYING_LAST, 3, {{64, 128}, {64, 0}, {64, 300}}, 0, 0},
    {"cols 1 70 129 spare", VARYING_LAST, 3, {{33, 1}, {33, 70}, {33, 129}}, 50, 0},
    {"both", VARYING_BOTH, 5, {{128, 128}, {256, 64}, {0, 128}, {7, 33}, {130, 258}}, 0, 0},
    {"both, gaps", VARYING_BOTH, 3, {{64, 65}, {3, 400}, {257, 1}}, 11, 32},
};

static NVTEShape logical_shape(const Group *g) {
  size_t rows = 0, cols = 0, elements = 0;
  for (size_t t = 0; t < g->count; t++) {
    rows += g->dims[t][0];
    cols += g->dims[t][1];
    elements += g->dims[t][0] * g->dims[t][1];
  }
  switch (g->class) {
    case VARYING_LAST:
      return SHAPE(g->dims[0][0], cols + g->spare);
    case VARYING_BOTH:
      return SHAPE(1, elements + g->spare);
    default:
      return SHAPE(rows + g->spare, g->dims[0][1]);
  }
}

static size_t offset_of(const Group *g, size_t member) {
  size_t at = 0;
  for (size_t t = 0; t < member; t++) at += g->dims[t][0] * g->dims[t][1] + g->gap;
  return at;
}

// Elements of a buffer of data.
static size_t capacity(const Group *g) {
  size_t logical = numel(logical_shape(g)), end = offset_of(g, g->count);
  return logical > end ? logical : end;
}

static void set_field(NVTEGroupedTensor g, NVTEGroupedTensorParam param, void *ptr, NVTEDType dtype,
                      NVTEShape shape) {
  NVTEBasicTensor b = basic(ptr, dtype, shape);
  nvte_set_grouped_tensor_param(g, param, &b, sizeof b);
}

static Buffer *int64_buffer(const size_t *values, size_t count) {
  return buffer_from(values, count * sizeof(int64_t), 0);
}

// The arrays that say where members are.
static void set_members(NVTEGroupedTensor tensor, const Group *g, bool with_offsets) {
  size_t first[MAX_MEMBERS], last[MAX_MEMBERS], offsets[MAX_MEMBERS + 1];
  for (size_t t = 0; t < g->count; t++) {
    first[t] = g->dims[t][0];
    last[t] = g->dims[t][1];
  }
  for (size_t t = 0; t <= g->count; t++) offsets[t] = offset_of(g, t);
  if (g->class == VARYING_FIRST || g->class == VARYING_BOTH) {
    set_field(tensor, kNVTEGroupedFirstDims, int64_buffer(first, g->count)->ptr, kNVTEInt64,
              SHAPE(g->count));
  }
  if (g->class == VARYING_LAST || g->class == VARYING_BOTH) {
    set_field(tensor, kNVTEGroupedLastDims, int64_buffer(last, g->count)->ptr, kNVTEInt64,
              SHAPE(g->count));
  }
  if (with_offsets || g->class != SAME) {
    set_field(tensor, kNVTEGroupedTensorOffsets, int64_buffer(offsets, g->count + 1)->ptr,
              kNVTEInt64, SHAPE(g->count + 1));
  }
}

// ---- One cast: build, call, compare

typedef struct Grouped {
  NVTEScalingMode mode;
  Function function;
  bool dbias;
  NVTEDType in, out;
  const Group *group;
  Directions directions;
  bool pow2, square, swizzled, misaligned, matrix_shape, with_offsets, no_scale;
  float epsilon;
  const float *noop;
  void *values, *act_values;
  Buffer *input, *act, *data[2], *scales[2], *scale, *amax, *dbias_buffer, *workspace;
  NVTEGroupedTensor in_tensor, act_tensor, out_tensor, dbias_tensor;
  NVTETensor workspace_tensor;
} Grouped;

static const NVTEGroupedTensorParam kData[2] = {kNVTEGroupedRowwiseData,
                                                kNVTEGroupedColumnwiseData};
static const NVTEGroupedTensorParam kScaleInv[2] = {kNVTEGroupedRowwiseScaleInv,
                                                    kNVTEGroupedColumnwiseScaleInv};

static bool per_tensor(const Grouped *g) { return g->mode == NVTE_DELAYED_TENSOR_SCALING; }
static bool has(const Grouped *g, int col) {
  return (int)g->directions & (col ? COLWISE : ROWWISE);
}

// Second dimension of a member's scale matrix.
static size_t pitch_of(const Grouped *g, int col, size_t t) {
  size_t dims[2];
  scale_dims(g->mode, col, g->group->dims[t][0], g->group->dims[t][1], dims);
  return per_tensor(g) ? 1 : round_up(dims[1], 4);
}

// Entries of the scales of the members before one.
static size_t scales_before(const Grouped *g, int col, size_t member) {
  size_t entries = 0;
  for (size_t t = 0; t < member; t++) {
    size_t dims[2];
    scale_dims(g->mode, col, g->group->dims[t][0], g->group->dims[t][1], dims);
    entries += dims[0] * pitch_of(g, col, t);
  }
  return entries;
}

static NVTEShape buffer_shape(const Grouped *g) {
  NVTEShape logical = logical_shape(g->group);
  bool matrix = g->matrix_shape && numel(logical) == capacity(g->group);
  return matrix ? logical : SHAPE(capacity(g->group));
}

static NVTEGroupedTensor grouped_of(const Grouped *g, NVTEScalingMode mode) {
  NVTEGroupedTensor t = nvte_create_grouped_tensor(mode, g->group->count, logical_shape(g->group));
  EXPECT_OK();
  return t;
}

static Buffer *grouped_input(const Grouped *g, NVTEGroupedTensor tensor, const void *values) {
  size_t size = dtype_size(g->in);
  Buffer *b = buffer_from(values, capacity(g->group) * size, g->misaligned ? size : 0);
  set_field(tensor, kNVTEGroupedRowwiseData, b->ptr, g->in, buffer_shape(g));
  set_members(tensor, g->group, g->with_offsets);
  return b;
}

static void grouped_build(Grouped *g) {
  const Group *group = g->group;
  size_t n = capacity(group), out_size = dtype_size(g->out), count = group->count;
  g->values = random_values(g->in, n, -2, 1);
  g->in_tensor = grouped_of(g, NVTE_DELAYED_TENSOR_SCALING);
  g->input = grouped_input(g, g->in_tensor, g->values);
  if (g->function != F_PLAIN) {
    g->act_values = random_values(g->in, n, -4, 4);
    g->act_tensor = grouped_of(g, NVTE_DELAYED_TENSOR_SCALING);
    g->act = grouped_input(g, g->act_tensor, g->act_values);
  }
  g->out_tensor = grouped_of(g, g->mode);
  set_members(g->out_tensor, group, g->with_offsets);
  NVTEDType type = is_mx(g->mode) ? kNVTEFloat8E8M0 : kNVTEFloat32;
  for (int col = 0; col < 2; col++) {
    if (!has(g, col)) continue;
    g->data[col] = buffer_shifted(n * out_size, g->misaligned ? out_size : 0);
    set_field(g->out_tensor, kData[col], g->data[col]->ptr, g->out, buffer_shape(g));
    if (!is_fp8(g->out)) continue;
    size_t entries = scales_before(g, col, count);
    g->scales[col] = buffer(entries * scale_size(g->mode));
    // A shape of (0) would be no buffer at all.
    NVTEShape shape = entries ? SHAPE(entries) : SHAPE(0, 1);
    set_field(g->out_tensor, kScaleInv[col], g->scales[col]->ptr, type, shape);
  }
  if (per_tensor(g) && is_fp8(g->out) && !g->no_scale) {
    float scales[MAX_MEMBERS];
    for (size_t t = 0; t < count; t++) scales[t] = (float)random_uniform(0.5, 20);
    g->scale = buffer_from(scales, count * 4, 0);
    set_field(g->out_tensor, kNVTEGroupedScale, g->scale->ptr, kNVTEFloat32, SHAPE(count));
  }
  g->amax = buffer(count * 4);
  set_field(g->out_tensor, kNVTEGroupedAmax, g->amax->ptr, kNVTEFloat32, SHAPE(count));
  if (g->swizzled) {
    uint8_t yes = 1;
    nvte_set_grouped_tensor_param(g->out_tensor, kNVTEGroupedWithGEMMSwizzledScales, &yes,
                                  sizeof yes);
  }
  size_t cols = group->dims[0][1];
  g->dbias_tensor =
      nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, count, SHAPE(count, cols));
  g->dbias_buffer = buffer(count * cols * dtype_size(g->in));
  set_field(g->dbias_tensor, kNVTEGroupedRowwiseData, g->dbias_buffer->ptr, g->in,
            g->matrix_shape ? SHAPE(count, cols) : SHAPE(count * cols));
  g->workspace_tensor = empty_tensor();
  EXPECT_OK();
}

static void grouped_free(const Grouped *g) {
  nvte_destroy_grouped_tensor(g->in_tensor);
  nvte_destroy_grouped_tensor(g->act_tensor);
  nvte_destroy_grouped_tensor(g->out_tensor);
  nvte_destroy_grouped_tensor(g->dbias_tensor);
  EXPECT_OK();
}

static void grouped_call(const Grouped *g) {
  NVTEGroupedTensor in = g->in_tensor, out = g->out_tensor, dbias = g->dbias_tensor;
  NVTETensor workspace = g->workspace_tensor;
  if (g->function != F_PLAIN) {
    kFunctions[g->function](in, g->act_tensor, out, dbias, workspace, NULL);
    return;
  }
  NVTEQuantizationConfig config = NULL;
  if (g->pow2 || g->square || g->epsilon > 0 || g->noop) {
    config = quant_config();
    uint8_t pow2 = g->pow2, square = g->square;
    set_quant(config, kNVTEQuantizationConfigForcePow2Scales, &pow2, sizeof pow2);
    set_quant(config, kNVTEQuantizationConfigMXFP82DQuantization, &square, sizeof square);
    set_quant(config, kNVTEQuantizationConfigAmaxEpsilon, &g->epsilon, sizeof g->epsilon);
    if (g->noop) {
      NVTETensor noop = float_tensor(buffer_float(*g->noop));
      set_quant(config, kNVTEQuantizationConfigNoopTensor, &noop, sizeof noop);
    }
  }
  if (g->dbias) {
    nvte_group_quantize_dbias(in, out, dbias, workspace, config, NULL);
  } else {
    nvte_group_quantize(in, out, config, NULL);
  }
}

static void grouped_check_untouched(const Grouped *g) {
  for (int col = 0; col < 2; col++) {
    if (g->data[col]) CHECK(untouched(g->data[col]), "data were written");
    if (g->scales[col]) CHECK(untouched(g->scales[col]), "scales were written");
  }
  CHECK(untouched(g->amax), "amax was written");
  CHECK(untouched(g->dbias_buffer), "dbias was written");
}

static void grouped_workspace(Grouped *g) {
  if (!g->dbias) return;
  grouped_call(g);
  if (!EXPECT_OK()) return;
  grouped_check_untouched(g);
  NVTEShape shape = nvte_tensor_shape(g->workspace_tensor);
  CHECK_EQ(nvte_tensor_type(g->workspace_tensor), kNVTEFloat32);
  g->workspace = buffer(numel(shape) * 4);
  set_param(g->workspace_tensor, kNVTERowwiseData, g->workspace->ptr, kNVTEFloat32, shape);
}

static void grouped_check(const Grouped *g) {
  if (!EXPECT_OK()) return;
  const Group *group = g->group;
  size_t in_size = dtype_size(g->in), out_size = dtype_size(g->out);
  unsigned char *data[2] = {NULL, NULL}, *scales[2] = {NULL, NULL};
  for (int col = 0; col < 2; col++) {
    if (g->data[col]) data[col] = buffer_read(g->data[col]);
    if (g->scales[col]) scales[col] = buffer_read(g->scales[col]);
  }
  const float *scale = g->scale ? buffer_read(g->scale) : NULL;
  const unsigned char *dbias = buffer_read(g->dbias_buffer);
  for (size_t t = 0; t < group->count; t++) {
    size_t at = offset_of(group, t), rows = group->dims[t][0], cols = group->dims[t][1];
    Elements e = elements_of(rows * cols);
    const unsigned char *act = g->act_values ? g->act_values : g->values;
    derivative_elements(e, g->function, g->in, (unsigned char *)g->values + at * in_size,
                        act + at * in_size, rows * cols);
    Matrix m = {.mode = g->mode,
                .in = g->in,
                .out = g->out,
                .rows = rows,
                .cols = cols,
                .pow2 = g->pow2,
                .square = g->square,
                .swizzled = g->swizzled,
                .epsilon = g->epsilon,
                .scale = scale ? scale[t] : 1,
                .elements = e};
    for (int col = 0; col < 2; col++) {
      m.pitch[col] = pitch_of(g, col, t);
      if (data[col]) m.data[col] = data[col] + at * out_size;
      if (scales[col]) m.scales[col] = scales[col] + scales_before(g, col, t) * scale_size(g->mode);
    }
    check_matrix(&m);
    if (g->dbias) check_dbias(g->in, rows, cols, e, dbias + t * cols * in_size);
  }
  // Bytes between and after the members must not change.
  for (int col = 0; col < 2; col++) {
    if (!data[col]) continue;
    for (size_t t = 0; t < group->count; t++) {
      size_t at = offset_of(group, t) * out_size;
      memset(data[col] + at, POISON_VALUE, group->dims[t][0] * group->dims[t][1] * out_size);
    }
    size_t bad = 0;
    for (size_t i = 0; i < capacity(group) * out_size; i++) bad += data[col][i] != POISON_VALUE;
    CHECK(bad == 0, "%zu bytes outside of the members were written", bad);
    if (per_tensor(g) && g->scales[col]) CHECK(untouched(g->scales[col]), "scale_inv was written");
  }
  CHECK(untouched(g->amax), "amax was written");
  if (!g->dbias) CHECK(untouched(g->dbias_buffer), "dbias was written");
  CHECK(memcmp(buffer_read(g->input), g->values, g->input->bytes) == 0, "the input changed");
}

static void grouped_case(Grouped g) {
  const char *sides = g.directions == BOTH ? "both" : g.directions == ROWWISE ? "row" : "column";
  if (!case_begin("%s%s %s %s %s %s %s%s%s%s%s%s%s%s%s", kFunctionNames[g.function],
                  g.dbias ? " dbias" : "", kModeNames[g.mode], g.group->name, dtype_name(g.in),
                  dtype_name(g.out), sides, g.pow2 ? " pow2" : "", g.square ? " 2D" : "",
                  g.swizzled ? " swizzled" : "", g.misaligned ? " misaligned" : "",
                  g.matrix_shape ? " rank 2" : "", g.with_offsets ? " offsets" : "",
                  g.epsilon > 0 ? " epsilon" : "", g.no_scale ? " no scale" : "")) {
    return;
  }
  grouped_build(&g);
  grouped_workspace(&g);
  grouped_call(&g);
  grouped_check(&g);
  grouped_free(&g);
}

// ---- Cases

static void test_groups(void) {
  for (size_t s = 0; s < COUNT(kGroups); s++) {
    const Group *group = &kGroups[s];
    bool one_width = group->class == SAME || group->class == VARYING_FIRST;
    for (int k = 0; k < 4 * 3 * 7; k++) {
      int kind = k / 12;  // 0: plain without dbias, 1: plain with dbias, then the derivatives
      if (kind > 0 && !one_width) continue;
      Grouped g = {.mode = kAllModes[k % 4],
                   .function = kind == 0 ? F_PLAIN : (Function)(kind - 1),
                   .dbias = kind > 0,
                   .in = kHighPrecision[(k + kind) % 3],
                   .directions = (Directions)(k / 4 % 3 + 1),
                   .group = group,
                   .misaligned = k % 5 == 2,
                   .matrix_shape = k % 3 == 1,
                   .with_offsets = k % 2 || group->gap,
                   .no_scale = k % 7 == 3};
      g.out = per_tensor(&g) && k % 8 == 4 ? kHighPrecision[s % 3] : kFloat8[(k / 4 + (int)s) % 2];
      if (kind < 2) {
        g.square = is_mx(g.mode) && (k + (int)s) % 2;
        g.pow2 = !is_mx(g.mode) && (k + (int)s) % 2;
        g.epsilon = g.mode > NVTE_MXFP8_1D_SCALING && k % 3 == 2 ? 1 : 0;
      }
      g.swizzled = is_mx(g.mode) && (k / 4 + (int)s) % 2;
      grouped_case(g);
    }
  }
}

// A group of more members than a search for one looks at together.
static void test_many(void) {
  static Group many[2] = {{"300 of rows", VARYING_FIRST, MAX_MEMBERS, {{0}}, 5, 0},
                          {"300 of columns", VARYING_LAST, MAX_MEMBERS, {{0}}, 0, 0}};
  for (size_t t = 0; t < MAX_MEMBERS; t++) {
    const size_t varies = t % 29 == 28 ? 130 + t : t * 7 % 4;
    many[0].dims[t][0] = many[1].dims[t][1] = varies;
    many[0].dims[t][1] = many[1].dims[t][0] = 24;
  }
  for (int k = 0; k < 2 * 4 * 2; k++) {
    Grouped g = {.mode = kAllModes[k % 4],
                 .in = kNVTEBFloat16,
                 .out = kNVTEFloat8E4M3,
                 .directions = BOTH,
                 .group = &many[k / 4 % 2],
                 .with_offsets = k / 8};
    grouped_case(g);
  }
}

static void test_noop(void) {
  const float flags[] = {1, 0, 2};
  for (size_t m = 0; m < COUNT(kAllModes); m++) {
    for (size_t i = 0; i < 2 * COUNT(flags); i++) {
      bool dbias = i >= COUNT(flags);
      const float *flag = &flags[i % COUNT(flags)];
      if (!case_begin("noop %g %s%s", (double)*flag, kModeNames[m], dbias ? " dbias" : ""))
        continue;
      Grouped g = {.mode = kAllModes[m],
                   .dbias = dbias,
                   .in = kNVTEBFloat16,
                   .out = kNVTEFloat8E4M3,
                   .group = &kGroups[3],
                   .directions = BOTH,
                   .noop = flag};
      grouped_build(&g);
      grouped_workspace(&g);
      grouped_call(&g);
      // Sums over rows are never left out.
      if (*flag == 1 && !dbias) {
        EXPECT_OK();
        grouped_check_untouched(&g);
      } else {
        grouped_check(&g);
      }
      grouped_free(&g);
    }
  }
}

// A group of no rows or columns: dbias is 0, nothing else is written.
static void test_empty(void) {
  static const Group groups[] = {{"no rows", SAME, 2, {{0, 16}, {0, 16}}, 0, 0},
                                 {"no columns", VARYING_FIRST, 2, {{3, 0}, {4, 0}}, 0, 0}};
  for (int k = 0; k < 16; k++) {
    const Group *group = &groups[k / 4 % 2];
    bool dbias = k / 8;
    if (!case_begin("empty %s %s%s", group->name, kModeNames[k % 4], dbias ? " dbias" : ""))
      continue;
    Grouped g = {.mode = kAllModes[k % 4],
                 .dbias = dbias,
                 .in = kNVTEFloat32,
                 .out = kNVTEFloat8E5M2,
                 .group = group,
                 .directions = BOTH,
                 .matrix_shape = true};
    grouped_build(&g);
    grouped_workspace(&g);
    grouped_call(&g);
    EXPECT_OK();
    if (dbias) {
      CHECK(all_bytes(g.dbias_buffer, 0), "dbias is not 0");
    } else {
      grouped_check_untouched(&g);
    }
    grouped_free(&g);
  }
}

// ---- Wrong arguments: the message says which, and nothing is written

typedef struct Wrong {
  const char *what, *message;
  bool dbias;
} Wrong;

static void test_wrong(void) {
  const Wrong wrong[] = {
      {"null input", "input", false},
      {"null output", "output", false},
      {"input count", "input.num_tensors: expected 3", false},
      {"input columns", "input.logical_shape: expected [384, 80]", false},
      {"input rows", "input.logical_shape: expected [384, 80]", false},
      {"input dtype", "input.dtype", false},
      {"input size", "input.data.shape", false},
      {"input pointer", "input.data: expected a pointer", false},
      {"no output", "output.data: expected row-wise or column-wise data", false},
      {"output dtype", "output.dtype: expected Float8E4M3 or Float8E5M2", false},
      {"output size", "output.columnwise_data.shape", false},
      {"two dtypes", "output.columnwise_data.dtype: expected Float8E4M3", false},
      {"no scales", "output.scale_inv", false},
      {"scale size", "output.columnwise_scale_inv.shape", false},
      {"scale dtype", "output.scale_inv.dtype: expected Float32", false},
      {"first dims length", "output.first_dims.shape: expected [3]", false},
      {"no offsets", "output.tensor_offsets", false},
      {"uneven rows", "output.logical_shape: expected a multiple of the 3 tensors", false},
      {"mode", "output.scaling_mode", false},
      {"dbias size", "dbias.data.shape: expected [3, 80] in all", true},
      {"dbias dtype", "dbias.dtype: expected BFloat16", true},
      {"null dbias", "dbias", true},
      {"workspace size", "workspace.shape: expected", true},
      {"last dims", "output.last_dims: expected nothing", true},
      {"act_input dtype", "act_input.dtype: expected BFloat16", true},
      {"act_input columns", "act_input.logical_shape: expected [384, 80]", true},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    const Wrong *w = &wrong[i];
    if (!case_begin("wrong %s", w->what)) continue;
    bool act = strncmp(w->what, "act", 3) == 0;
    Grouped g = {.mode = NVTE_BLOCK_SCALING_1D,
                 .function = act ? F_GELU : F_PLAIN,
                 .dbias = w->dbias,
                 .in = kNVTEBFloat16,
                 .out = kNVTEFloat8E4M3,
                 .group = &kGroups[1],
                 .directions = BOTH};
    grouped_build(&g);
    grouped_workspace(&g);
    Grouped changed = g;
    size_t n = capacity(g.group);
    NVTEGroupedTensor other = NULL;
#define IS(text) (strcmp(w->what, text) == 0)
    if (IS("null input")) changed.in_tensor = NULL;
    if (IS("null output")) changed.out_tensor = NULL;
    if (IS("null dbias")) changed.dbias_tensor = NULL;
    if (IS("input count")) {
      other = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 2, SHAPE(384, 80));
    } else if (IS("input columns") || IS("act_input columns")) {
      other = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 3, SHAPE(384, 81));
    } else if (IS("input rows")) {
      other = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 3, SHAPE(383, 80));
    } else if (IS("uneven rows")) {
      other = nvte_create_grouped_tensor(g.mode, 3, SHAPE(383, 80));
    } else if (IS("mode")) {
      other = nvte_create_grouped_tensor(NVTE_NVFP4_1D_SCALING, 3, SHAPE(384, 80));
    }
    if (IS("uneven rows") || IS("mode")) {
      changed.out_tensor = other;
    } else if (other && act) {
      set_field(other, kNVTEGroupedRowwiseData, g.act->ptr, g.in, SHAPE(n));
      changed.act_tensor = other;
    } else if (other) {
      set_field(other, kNVTEGroupedRowwiseData, g.input->ptr, g.in, SHAPE(n));
      changed.in_tensor = other;
    }
    NVTEGroupedTensor in = g.in_tensor, out = g.out_tensor;
    void *row = g.data[0]->ptr, *col = g.data[1]->ptr;
    if (IS("input dtype")) set_field(in, kData[0], g.input->ptr, g.out, SHAPE(n));
    if (IS("input size")) set_field(in, kData[0], g.input->ptr, g.in, SHAPE(n - 1));
    if (IS("input pointer")) set_field(in, kData[0], NULL, g.in, SHAPE(n));
    if (IS("no output") || IS("output dtype"))
      set_field(out, kData[1], NULL, kNVTEFloat32, SHAPE(0));
    if (IS("no output")) set_field(out, kData[0], NULL, kNVTEFloat32, SHAPE(0));
    if (IS("output dtype")) set_field(out, kData[0], row, kNVTEByte, SHAPE(n));
    if (IS("output size")) set_field(out, kData[1], col, g.out, SHAPE(n - 1));
    if (IS("two dtypes")) set_field(out, kData[1], col, kNVTEFloat8E5M2, SHAPE(n));
    if (IS("no scales")) set_field(out, kScaleInv[0], NULL, kNVTEFloat32, SHAPE(0));
    if (IS("scale size")) {
      size_t entries = g.scales[1]->bytes / 4 - 1;
      set_field(out, kScaleInv[1], g.scales[1]->ptr, kNVTEFloat32, SHAPE(entries));
    }
    if (IS("scale dtype")) {
      set_field(out, kScaleInv[0], g.scales[0]->ptr, kNVTEByte, SHAPE(g.scales[0]->bytes));
    }
    size_t firsts[4] = {128, 128, 128, 0};
    if (IS("first dims length")) {
      set_field(out, kNVTEGroupedFirstDims, int64_buffer(firsts, 4)->ptr, kNVTEInt64, SHAPE(4));
    }
    if (IS("no offsets")) {
      set_field(out, kNVTEGroupedFirstDims, int64_buffer(firsts, 3)->ptr, kNVTEInt64, SHAPE(3));
    }
    size_t lasts[3] = {80, 80, 80}, offsets[4] = {0, 128 * 80, 256 * 80, 384 * 80};
    if (IS("last dims")) {
      set_field(out, kNVTEGroupedLastDims, int64_buffer(lasts, 3)->ptr, kNVTEInt64, SHAPE(3));
      set_field(out, kNVTEGroupedTensorOffsets, int64_buffer(offsets, 4)->ptr, kNVTEInt64,
                SHAPE(4));
    }
    void *dbias = g.dbias_buffer->ptr;
    if (IS("dbias size")) set_field(g.dbias_tensor, kData[0], dbias, g.in, SHAPE(3, 79));
    if (IS("dbias dtype")) set_field(g.dbias_tensor, kData[0], dbias, kNVTEFloat16, SHAPE(3, 80));
    if (IS("workspace size")) {
      set_param(g.workspace_tensor, kNVTERowwiseData, g.workspace->ptr, kNVTEFloat32, SHAPE(3, 80));
    }
    if (IS("act_input dtype"))
      set_field(g.act_tensor, kData[0], g.act->ptr, kNVTEFloat16, SHAPE(n));
#undef IS
    EXPECT_OK();
    grouped_call(&changed);
    const char *name = act        ? "nvte_group_quantize_dbias_dgelu"
                       : w->dbias ? "nvte_group_quantize_dbias"
                                  : "nvte_group_quantize";
    EXPECT_ERROR(ANY_ERROR, name, w->message);
    grouped_check_untouched(&g);
    nvte_destroy_grouped_tensor(other);
    grouped_free(&g);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_groups();
  test_many();
  test_noop();
  test_empty();
  test_wrong();
  return test_end();
}
