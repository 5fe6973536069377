// Grouped linear layers: against products in float64, and bit for bit against linear layers that
// get the rows of one part each.
#include "support.h"

enum { PARTS = 4, IN = 32, OUT = 64, MOST_ROWS = 256 };

static size_t sum_of(const size_t *splits) {
  size_t rows = 0;
  for (int e = 0; e < PARTS; e++) rows += splits[e];
  return rows;
}

typedef struct Data {
  NVTEDType dtype;
  double *x, *dy, *w[PARTS], *b[PARTS];
  Buffer *bx, *bdy, *bw[PARTS], *bb[PARTS];
} Data;

static Buffer *random_tensor(NVTEDType dtype, size_t count, double bound, double **values) {
  void *host = random_values(dtype, count, -bound, bound);
  *values = host_memory((count + 1) * sizeof **values);
  for (size_t i = 0; i < count; i++) (*values)[i] = get_value(dtype, host, i);
  return buffer_from(host, count * dtype_size(dtype), 0);
}

static Data new_data(NVTEDType dtype) {
  Data d = {.dtype = dtype};
  d.bx = random_tensor(dtype, MOST_ROWS * IN, 1.5, &d.x);
  d.bdy = random_tensor(dtype, MOST_ROWS * OUT, 1, &d.dy);
  for (int e = 0; e < PARTS; e++) {
    d.bw[e] = random_tensor(dtype, OUT * IN, 0.3, &d.w[e]);
    d.bb[e] = random_tensor(dtype, OUT, 0.5, &d.b[e]);
  }
  return d;
}

typedef struct Layer {
  NVTEXModule module;
  Buffer *dw[PARTS], *db[PARTS];
} Layer;

static void set_up(Layer *layer, const Data *d, size_t part, size_t index, bool accumulate,
                   bool bias) {
  nvtex_module_assign_parameter(layer->module, index,
                                tensor(d->bw[part]->ptr, d->dtype, SHAPE(OUT, IN)), NULL);
  layer->dw[part] = buffer(OUT * IN * sizeof(float));
  layer->db[part] = buffer(OUT * sizeof(float));
  nvte_memset(layer->dw[part]->ptr, 0, OUT * IN * sizeof(float), NULL);
  nvte_memset(layer->db[part]->ptr, 0, OUT * sizeof(float), NULL);
  nvtex_module_set_gradient(layer->module, index,
                            tensor(layer->dw[part]->ptr, kNVTEFloat32, SHAPE(OUT, IN)), accumulate);
  if (bias) {
    nvtex_module_assign_parameter(layer->module, index + 1,
                                  tensor(d->bb[part]->ptr, d->dtype, SHAPE(OUT)), NULL);
    nvtex_module_set_gradient(layer->module, index + 1,
                              tensor(layer->db[part]->ptr, kNVTEFloat32, SHAPE(OUT)), accumulate);
  }
  EXPECT_OK();
}

static NVTEXLinearConfig linear_config(NVTEDType dtype, bool bias) {
  NVTEXLinearConfig c;
  nvtex_linear_config_init(&c, sizeof c);
  c.in_features = IN;
  c.out_features = OUT;
  c.bias = bias;
  c.dtype = dtype;
  return c;
}

static Layer new_grouped(NVTEXContext context, const Data *d, bool bias, bool accumulate) {
  Layer layer = {0};
  NVTEXGroupedLinearConfig c;
  nvtex_grouped_linear_config_init(&c, sizeof c);
  c.num_gemms = PARTS;
  c.linear = linear_config(d->dtype, bias);
  c.linear.name = "experts";
  layer.module = nvtex_grouped_linear_create(context, &c, NULL);
  EXPECT_OK();
  CHECK_EQ(nvtex_module_num_parameters(layer.module), PARTS * (bias ? 2 : 1));
  for (size_t e = 0; e < PARTS; e++) {
    const size_t index = e * (bias ? 2 : 1);
    NVTEXParameter p = {.struct_size = sizeof p};
    nvtex_module_parameter(layer.module, index, &p);
    char name[16];
    snprintf(name, sizeof name, "weight%zu", e);
    CHECK(!strcmp(p.name, name), "%s, expected %s", p.name, name);
    set_up(&layer, d, e, index, accumulate, bias);
  }
  return layer;
}

// Forward and backward of rows from `first` on; false if the backend declines.
static bool pass(const Layer *layer, const Data *d, const size_t *splits, size_t first, size_t rows,
                 Buffer *y, Buffer *dx) {
  const size_t size = dtype_size(d->dtype);
  NVTETensor in = tensor(d->bx->ptr + first * IN * size, d->dtype, SHAPE(rows, IN));
  NVTETensor out = tensor(y->ptr + first * OUT * size, d->dtype, SHAPE(rows, OUT));
  NVTETensor dout = tensor(d->bdy->ptr + first * OUT * size, d->dtype, SHAPE(rows, OUT));
  NVTETensor din = tensor(dx->ptr + first * IN * size, d->dtype, SHAPE(rows, IN));
  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  step.m_splits = splits;
  step.num_splits = splits ? PARTS : 0;
  NVTEXTape tape = NULL;
  nvtex_module_forward(layer->module, &in, 1, &out, 1, &step, &tape, NULL);
  nvtex_module_backward(layer->module, tape, &dout, 1, &din, 1, NULL);
  nvtex_tape_destroy(tape);
  if (nvtex_last_status() != NVTEX_UNSUPPORTED) return EXPECT_OK();
  g_test.declined++;
  nvtex_clear_error();
  return false;
}

static bool close_to(const char *name, NVTEDType dtype, const Buffer *got, size_t count,
                     const double *expected, double tolerance) {
  const void *values = buffer_read(got);
  double error = 0, size = 1e-300;
  for (size_t i = 0; i < count; i++) {
    const double difference = get_value(dtype, values, i) - expected[i];
    error += difference * difference;
    size += expected[i] * expected[i];
  }
  return CHECK(sqrt(error / size) <= tolerance, "%s: relative error %g", name, sqrt(error / size));
}

static void check_reference(const Data *d, const Layer *layer, const size_t *splits, Buffer *y,
                            Buffer *dx, bool bias, int passes, double tolerance) {
  const size_t rows = sum_of(splits);
  double *ry = calloc(rows * OUT + 1, sizeof *ry), *rdx = calloc(rows * IN + 1, sizeof *rdx);
  size_t first = 0;
  for (int e = 0; e < PARTS; e++) {
    double *dw = calloc(OUT * IN, sizeof *dw), *db = calloc(OUT, sizeof *db);
    for (size_t r = first; r < first + splits[e]; r++) {
      for (size_t o = 0; o < OUT; o++) {
        double sum = bias ? d->b[e][o] : 0;
        for (size_t i = 0; i < IN; i++) {
          sum += d->x[r * IN + i] * d->w[e][o * IN + i];
          rdx[r * IN + i] += d->dy[r * OUT + o] * d->w[e][o * IN + i];
          dw[o * IN + i] += passes * d->dy[r * OUT + o] * d->x[r * IN + i];
        }
        db[o] += passes * d->dy[r * OUT + o];
        ry[r * OUT + o] = sum;
      }
    }
    close_to("dw", kNVTEFloat32, layer->dw[e], OUT * IN, dw, tolerance);
    if (bias) close_to("db", kNVTEFloat32, layer->db[e], OUT, db, tolerance);
    first += splits[e];
    free(dw);
    free(db);
  }
  close_to("y", d->dtype, y, rows * OUT, ry, tolerance);
  close_to("dx", d->dtype, dx, rows * IN, rdx, tolerance);
  free(ry);
  free(rdx);
}

static void check(NVTEDType dtype, const size_t *splits, bool bias, bool accumulate,
                  const NVTEXRecipeConfig *config, double tolerance) {
  Data d = new_data(dtype);
  const size_t rows = sum_of(splits), size = dtype_size(dtype);
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXRecipe recipe = config ? nvtex_recipe_create(config) : NULL;
  Layer grouped = new_grouped(context, &d, bias, accumulate);
  Buffer *y = buffer(rows * OUT * size), *dx = buffer(rows * IN * size);
  Buffer *y_alone = buffer(rows * OUT * size), *dx_alone = buffer(rows * IN * size);
  const int passes = accumulate ? 2 : 1;
  nvtex_context_begin(context, recipe, recipe ? NVTEX_CONTEXT_ENABLED : 0, NULL);
  bool runs = true;
  for (int i = 0; i < passes; i++) runs = runs && pass(&grouped, &d, splits, 0, rows, y, dx);
  if (runs) check_reference(&d, &grouped, splits, y, dx, bias, passes, tolerance);
  size_t first = 0;
  for (size_t e = 0; runs && e < PARTS; e++) {
    Layer alone = {0};
    const NVTEXLinearConfig c = linear_config(dtype, bias);
    alone.module = nvtex_linear_create(context, &c, NULL);
    set_up(&alone, &d, e, 0, accumulate, bias);
    for (int i = 0; splits[e] > 0 && i < passes; i++) {
      pass(&alone, &d, NULL, first, splits[e], y_alone, dx_alone);
    }
    // A part without rows has gradients of zeros.
    const char *expected = buffer_read(alone.dw[e]);
    CHECK(!memcmp(buffer_read(grouped.dw[e]), expected, OUT * IN * sizeof(float)), "dw of %zu", e);
    expected = buffer_read(alone.db[e]);
    CHECK(!memcmp(buffer_read(grouped.db[e]), expected, OUT * sizeof(float)), "db of %zu", e);
    first += splits[e];
    nvtex_module_destroy(alone.module);
  }
  if (runs) {
    CHECK(!memcmp(buffer_read(y), buffer_read(y_alone), y->bytes), "y differs from alone");
    CHECK(!memcmp(buffer_read(dx), buffer_read(dx_alone), dx->bytes), "dx differs from alone");
  }
  nvtex_context_end(context);
  nvtex_module_destroy(grouped.module);
  nvtex_recipe_destroy(recipe);
  nvtex_context_destroy(context);
  EXPECT_OK();
}

static void cases(void) {
  static const size_t odd[][PARTS] = {{3, 1, 7, 5}, {0, 9, 0, 2}, {0, 0, 0, 17}};
  for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
    for (size_t s = 0; s < COUNT(odd); s++) {
      const NVTEDType dtype = kHighPrecision[t];
      const double tolerance = dtype == kNVTEFloat32   ? (on_cuda() ? 1e-3 : 1e-6)
                               : dtype == kNVTEFloat16 ? 1e-3
                                                       : 6e-3;
      if (!case_begin("%s splits %zu", dtype_name(dtype), s)) continue;
      check(dtype, odd[s], s != 1, s == 2, NULL, tolerance);
    }
  }
  static const struct {
    const char *name;
    NVTEXRecipeKind kind;
  } recipes[] = {{"delayed", NVTEX_RECIPE_DELAYED_SCALING},
                 {"current", NVTEX_RECIPE_CURRENT_SCALING},
                 {"block", NVTEX_RECIPE_BLOCK_SCALING},
                 {"mxfp8", NVTEX_RECIPE_MXFP8}};
  static const size_t even[][PARTS] = {{32, 64, 96, 32}, {64, 0, 32, 0}};
  for (size_t r = 0; r < COUNT(recipes); r++) {
    for (size_t s = 0; s < COUNT(even); s++) {
      if (!case_begin("%s splits %zu", recipes[r].name, s)) continue;
      NVTEXRecipeConfig config;
      nvtex_recipe_config_init(&config, sizeof config, recipes[r].kind);
      check(kNVTEBFloat16, even[s], true, false, &config, 0.08);
    }
  }
}

static void case_refusals(void) {
  if (!case_begin("refusals")) return;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXGroupedLinearConfig c;
  nvtex_grouped_linear_config_init(&c, sizeof c);
  c.linear = linear_config(kNVTEFloat32, true);
  CHECK(!nvtex_grouped_linear_create(context, &c, NULL), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "nvtex_grouped_linear_create: config.num_gemms: expected 1 to 65536, got 0");
  Data d = new_data(kNVTEBFloat16);
  Layer grouped = new_grouped(context, &d, true, false);
  Buffer *y = buffer(32 * OUT * 2);
  NVTETensor in = tensor(d.bx->ptr, d.dtype, SHAPE(32, IN));
  NVTETensor out = tensor(y->ptr, d.dtype, SHAPE(32, OUT));
  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  nvtex_module_forward(grouped.module, &in, 1, &out, 1, &step, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "nvtex_module_forward: step.num_splits: expected 4 (num_gemms), got 0");
  size_t splits[PARTS] = {16, 8, 8, 1};
  step.num_splits = PARTS;
  nvtex_module_forward(grouped.module, &in, 1, &out, 1, &step, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_module_forward: step.m_splits: expected");
  step.m_splits = splits;
  nvtex_module_forward(grouped.module, &in, 1, &out, 1, &step, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "step.m_splits: expected a sum of 32 (rows), got 33");
  CHECK(untouched(y), "a refused call wrote");
  nvtex_module_destroy(grouped.module);
  nvtex_context_destroy(context);
  EXPECT_OK();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  case_refusals();
  cases();
  return test_end();
}
