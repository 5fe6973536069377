// Activations against their formulas in double. Float32 results may be off by what the functions
// promise; what is made of them by rounding is then between two values. Outputs in blocks and
// groups are compared with the same elements cast by nvte_quantize, to the bit.
#include "nvte/activation.h"

#include "nvte/cast.h"
#include "support.h"

// ---- Formulas

static const float kLimit = 0.5f, kAlpha = 1.702f, kOffset = 0.25f, kBeta1 = 4, kBeta2 = 25;

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double swish(double x, double k) { return x * sigmoid(k * x); }
static double swish_slope(double x, double k) {
  double s = sigmoid(k * x);
  return s + k * x * s * (1 - s);
}

static double gelu(double x) {
  return x * (0.5 + 0.5 * tanh(x * ((double)0.79788456f + (double)0.03567741f * x * x)));
}
static double dgelu(double x) {
  double t = tanh((double)0.79788456f * x * (1 + (double)0.044715f * x * x));
  double slope = (double)0.79788456f + (double)0.1070322243f * x * x;
  return (t == 1 || t == -1 ? 0 : 0.5 * x * ((1 - t * t) * slope)) + 0.5 * (1 + t);
}
static double silu(double x) { return swish(x, 1); }
static double dsilu(double x) { return x < -700 ? 0 : swish_slope(x, 1); }
static double qgelu(double x) { return swish(x, (double)1.702f); }
static double dqgelu(double x) { return x < -400 ? 0 : swish_slope(x, (double)1.702f); }
static double relu(double x) { return x > 0 ? x : 0; }
static double drelu(double x) { return x > 0; }
static double srelu(double x) { return x > 0 ? x * x : 0; }
static double dsrelu(double x) { return x > 0 ? 2 * x : 0; }
static double dsigmoid(double x) { return sigmoid(x) * (1 - sigmoid(x)); }

static double clamped(double x) { return swish(fmin(x, (double)kLimit), (double)kAlpha); }
static double dclamped(double x) {
  return x > (double)kLimit ? 0 : x < -400 ? 0 : swish_slope(x, (double)kAlpha);
}
static double clamp(double x) { return fmin(fmax(x, -(double)kLimit), (double)kLimit); }
static double clamp_offset(double x) { return clamp(x) + (double)kOffset; }
static double clamp_one(double x) { return clamp(x) + 1; }
static double dclamp(double x) { return fabs(x) <= (double)kLimit; }

static double situ(double x) { return (double)kBeta1 * tanh(x / (double)kBeta1) * sigmoid(x); }
static double dsitu(double x) {
  double t = tanh(x / (double)kBeta1), s = sigmoid(x);
  return (1 - t * t) * s + (double)kBeta1 * t * s * (1 - s);
}
static double up(double x) { return (double)kBeta2 * tanh(x / (double)kBeta2); }
static double dup(double x) {
  double t = tanh(x / (double)kBeta2);
  return 1 - t * t;
}

static double identity(double x) { return x; }
static double one(double x) { return x * 0 + 1; }

// ---- The functions by kind

typedef struct Function {
  const char *name;
  double (*f)(double), (*slope)(double), (*gate)(double), (*gate_slope)(double);
  void (*forward)(NVTETensor input, NVTETensor output);
  void (*backward)(NVTETensor grad, NVTETensor input, NVTETensor output);
} Function;

#define CALLS(function, derivative)                                             \
  static void call_##function(NVTETensor input, NVTETensor output) {            \
    nvte_##function(input, output, NULL);                                       \
  }                                                                             \
  static void call_##derivative(NVTETensor grad, NVTETensor x, NVTETensor dx) { \
    nvte_##derivative(grad, x, dx, NULL);                                       \
  }
CALLS(gelu, dgelu)
CALLS(silu, dsilu)
CALLS(qgelu, dqgelu)
CALLS(relu, drelu)
CALLS(srelu, dsrelu)
CALLS(geglu, dgeglu)
CALLS(swiglu, dswiglu)
CALLS(qgeglu, dqgeglu)
CALLS(reglu, dreglu)
CALLS(sreglu, dsreglu)
CALLS(glu, dglu)

static void call_situglu(NVTETensor input, NVTETensor output) {
  nvte_situglu(input, output, kBeta1, kBeta2, NULL);
}
static void call_dsituglu(NVTETensor grad, NVTETensor input, NVTETensor output) {
  nvte_dsituglu(grad, input, output, kBeta1, kBeta2, NULL);
}
static void call_clamped(NVTETensor input, NVTETensor output) {
  nvte_clamped_swiglu(input, output, kLimit, kAlpha, NULL);
}
static void call_dclamped(NVTETensor grad, NVTETensor input, NVTETensor output) {
  nvte_clamped_dswiglu(grad, input, output, kLimit, kAlpha, NULL);
}
static void call_clamped_v2(NVTETensor input, NVTETensor output) {
  nvte_clamped_swiglu_v2(input, output, kLimit, kAlpha, kOffset, NULL);
}
static void call_dclamped_v2(NVTETensor grad, NVTETensor input, NVTETensor output) {
  nvte_clamped_dswiglu_v2(grad, input, output, kLimit, kAlpha, kOffset, NULL);
}

static const Function kFunctions[] = {
    {"gelu", gelu, dgelu, NULL, NULL, call_gelu, call_dgelu},
    {"silu", silu, dsilu, NULL, NULL, call_silu, call_dsilu},
    {"qgelu", qgelu, dqgelu, NULL, NULL, call_qgelu, call_dqgelu},
    {"relu", relu, drelu, NULL, NULL, call_relu, call_drelu},
    {"srelu", srelu, dsrelu, NULL, NULL, call_srelu, call_dsrelu},
    {"geglu", gelu, dgelu, identity, one, call_geglu, call_dgeglu},
    {"swiglu", silu, dsilu, identity, one, call_swiglu, call_dswiglu},
    {"qgeglu", qgelu, dqgelu, identity, one, call_qgeglu, call_dqgeglu},
    {"reglu", relu, drelu, identity, one, call_reglu, call_dreglu},
    {"sreglu", srelu, dsrelu, identity, one, call_sreglu, call_dsreglu},
    {"glu", sigmoid, dsigmoid, identity, one, call_glu, call_dglu},
    {"situglu", situ, dsitu, up, dup, call_situglu, call_dsituglu},
    {"clamped_swiglu", clamped, dclamped, clamp_one, dclamp, call_clamped, call_dclamped},
    {"clamped_swiglu_v2", clamped, dclamped, clamp_offset, dclamp, call_clamped_v2,
     call_dclamped_v2},
};

// A number that float32 arithmetic has with an error of at most `e`.
typedef struct Real {
  double v, e;
} Real;

static Real exact(double v) { return (Real){v, 0}; }
static Real function_value(double v) { return (Real){v, 1e-6 + 3e-6 * fabs(v)}; }
static Real times(Real a, Real b) {
  double v = a.v * b.v, e = fabs(a.v) * b.e + fabs(b.v) * a.e + a.e * b.e;
  return (Real){v, e + 0x1p-23 * (fabs(v) + e) + 0x1p-149};
}

// Row-wise elements in, elements v out: all in host memory.
typedef struct Case {
  const Function *of;
  bool backward;
  NVTEDType in;
  NVTEShape shape;  // of the input
  bool misaligned;
  void *values, *grads;
  Buffer *input, *grad;
  NVTETensor input_tensor, grad_tensor;
  NVTEShape out_shape;
} Case;

static bool gated(const Case *c) { return c->of->gate != NULL; }

static NVTEShape half_shape(NVTEShape shape) {
  shape.data[shape.ndim - 1] /= 2;
  return shape;
}

static void case_build(Case *c) {
  NVTEShape narrow = gated(c) ? half_shape(c->shape) : c->shape;
  size_t n = numel(c->shape), size = dtype_size(c->in), shift = c->misaligned ? size : 0;
  c->out_shape = c->backward ? c->shape : narrow;
  if (!c->values) c->values = random_values(c->in, n, -4, 3);
  c->input = buffer_from(c->values, n * size, shift);
  c->input_tensor = tensor(c->input->ptr, c->in, c->shape);
  if (c->backward) {
    if (!c->grads) c->grads = random_values(c->in, numel(narrow), -2, 1);
    c->grad = buffer_from(c->grads, numel(narrow) * size, shift);
    c->grad_tensor = tensor(c->grad->ptr, c->in, narrow);
  }
  EXPECT_OK();
}

static void case_call(const Case *c, NVTETensor output) {
  if (c->backward) {
    c->of->backward(c->grad_tensor, c->input_tensor, output);
  } else {
    c->of->forward(c->input_tensor, output);
  }
}

static Real case_expected(const Case *c, size_t i) {
  const Function *of = c->of;
  size_t cols = cols_of(c->out_shape), r = i / cols, col = i % cols;
  if (!gated(c)) {
    double x = get_value(c->in, c->values, i);
    if (!c->backward) return function_value(of->f(x));
    return times(function_value(of->slope(x)), exact(get_value(c->in, c->grads, i)));
  }
  size_t half = c->backward ? cols / 2 : cols, h = col % half;
  double a = get_value(c->in, c->values, r * 2 * half + h);
  double g = get_value(c->in, c->values, r * 2 * half + half + h);
  Real f = function_value(of->f(a)), gate = function_value(of->gate(g));
  if (!c->backward) return times(f, gate);
  Real grad = exact(get_value(c->in, c->grads, r * half + h));
  if (col < half) return times(times(function_value(of->slope(a)), grad), gate);
  return times(times(function_value(of->gate_slope(g)), grad), f);
}

// ---- Outputs of any scaling mode

typedef struct Output {
  NVTEScalingMode mode;
  NVTEDType dtype;
  NVTEShape shape;
  Directions directions;
  bool misaligned, swizzled, has_scale, has_amax;
  bool padded;  // rows of scales as in a group
  Buffer *data[2], *scales[2], *amax;
  NVTETensor tensor;
} Output;

static const float kScale = -1.37f, kOldAmax = 0.125f;
static const NVTETensorParam kData[2] = {kNVTERowwiseData, kNVTEColumnwiseData};
static const NVTETensorParam kScaleInv[2] = {kNVTERowwiseScaleInv, kNVTEColumnwiseScaleInv};

static NVTEShape blocks_shape(const Output *o, int col) {
  size_t rows = rows_of(o->shape), cols = cols_of(o->shape);
  size_t down = (rows + 127) / 128, across = (cols + 127) / 128;
  switch (o->mode) {
    case NVTE_DELAYED_TENSOR_SCALING:
      return SHAPE(1);
    case NVTE_MXFP8_1D_SCALING:
      return col ? SHAPE(4 * down, 128 * across) : SHAPE(128 * down, 4 * across);
    case NVTE_BLOCK_SCALING_1D:
      return col ? SHAPE(down, cols) : SHAPE(across, rows);
    default:
      return col ? SHAPE(across, down) : SHAPE(down, across);
  }
}

static NVTEShape scale_shape(const Output *o, int col) {
  NVTEShape shape = blocks_shape(o, col);
  if (o->padded && shape.ndim == 2) shape.data[1] = (shape.data[1] + 3) / 4 * 4;
  return shape;
}

static void output_build(Output *o) {
  size_t size = dtype_size(o->dtype), shift = o->misaligned ? size : 0;
  bool mx = o->mode == NVTE_MXFP8_1D_SCALING;
  o->tensor = tensor_of_mode(o->mode);
  for (int col = 0; col < 2; col++) {
    if (!((int)o->directions & (col ? COLWISE : ROWWISE))) continue;
    o->data[col] = buffer_shifted(numel(o->shape) * size, shift);
    set_param(o->tensor, kData[col], o->data[col]->ptr, o->dtype,
              col && !mx ? transposed_shape(o->shape) : o->shape);
    if (!is_fp8(o->dtype)) continue;
    NVTEShape scales = scale_shape(o, col);
    o->scales[col] = buffer(numel(scales) * (mx ? 1 : 4));
    set_param(o->tensor, kScaleInv[col], o->scales[col]->ptr, mx ? kNVTEFloat8E8M0 : kNVTEFloat32,
              scales);
  }
  if (o->has_scale) {
    set_param(o->tensor, kNVTEScale, buffer_float(kScale)->ptr, kNVTEFloat32, SHAPE(1));
  }
  if (o->has_amax) {
    o->amax = buffer_float(kOldAmax);
    set_param(o->tensor, kNVTEAmax, o->amax->ptr, kNVTEFloat32, SHAPE(1));
  }
  if (o->swizzled) {
    uint8_t yes = 1;
    nvte_set_tensor_param_v2(o->tensor, kNVTEWithGEMMSwizzledScales, &yes, sizeof yes);
  }
  EXPECT_OK();
}

static void output_check_untouched(const Output *o) {
  for (int col = 0; col < 2; col++) {
    if (o->data[col]) CHECK(untouched(o->data[col]), "data were written");
    if (o->scales[col]) CHECK(untouched(o->scales[col]), "scale_inv was written");
  }
  if (o->amax) CHECK_FLOAT(read_float(o->amax), kOldAmax);
}

// Between what the least and the largest of the values allowed are rounded to.
static bool within(NVTEDType dtype, double got, Real want) {
  if (isnan(want.v)) return isnan(got);
  return got >= round_to(dtype, want.v - want.e) && got <= round_to(dtype, want.v + want.e);
}

// Per tensor.
static void output_check(const Output *o, const Case *c) {
  if (!EXPECT_OK()) return;
  size_t rows = rows_of(o->shape), cols = cols_of(o->shape), bad = 0;
  double least = 0, most = 0;
  const void *data[2] = {o->data[0] ? buffer_read(o->data[0]) : NULL,
                         o->data[1] ? buffer_read(o->data[1]) : NULL};
  for (size_t i = 0; i < rows * cols; i++) {
    Real v = case_expected(c, i);
    least = fmax(least, fabs(v.v) - v.e);
    most = fmax(most, fabs(v.v) + v.e);
    if (o->has_scale) v = times(v, exact((double)kScale));
    for (int col = 0; col < 2 && bad < 3; col++) {
      if (!data[col]) continue;
      double got = get_value(o->dtype, data[col], col ? i % cols * rows + i / cols : i);
      bad += !CHECK(within(o->dtype, got, v), "%s of row %zu, col %zu: %.9g, not %.9g +- %g",
                    col ? "columnwise" : "rowwise", i / cols, i % cols, got, v.v, v.e);
    }
  }
  for (int col = 0; col < 2; col++) {
    if (o->scales[col]) CHECK_FLOAT(read_float(o->scales[col]), o->has_scale ? 1 / kScale : 1);
  }
  if (o->amax) {
    double amax = (double)read_float(o->amax);
    CHECK(amax >= fmax((double)kOldAmax, (double)(float)least) &&
              amax <= fmax((double)kOldAmax, round_to(kNVTEFloat32, most)),
          "amax %g, not from %g to %g", amax, least, most);
  }
  CHECK(memcmp(buffer_read(c->input), c->values, c->input->bytes) == 0, "the input changed");
  if (c->grad) CHECK(memcmp(buffer_read(c->grad), c->grads, c->grad->bytes) == 0, "grad changed");
}

// Checks that two outputs have the same bytes everywhere.
static void outputs_equal(const Output *a, const Output *b) {
  for (int col = 0; col < 2; col++) {
    if (!a->data[col]) continue;
    CHECK(memcmp(buffer_read(a->data[col]), buffer_read(b->data[col]), a->data[col]->bytes) == 0,
          "%s data differ", col ? "columnwise" : "rowwise");
    CHECK(!a->scales[col] || memcmp(buffer_read(a->scales[col]), buffer_read(b->scales[col]),
                                    a->scales[col]->bytes) == 0,
          "%s scales differ", col ? "columnwise" : "rowwise");
  }
  if (a->amax) CHECK_FLOAT(read_float(a->amax), read_float(b->amax));
}

// ---- Cases

static const char *direction_name(Directions d) {
  return d == BOTH ? "both" : d == ROWWISE ? "rowwise" : "columnwise";
}

static const char *call_name(const Case *c) {
  static char name[64];
  snprintf(name, sizeof name, "%s%s", c->of->name, c->backward ? " backward" : "");
  return name;
}

static void test_per_tensor(void) {
  const NVTEShape shapes[] = {SHAPE(128, 130), SHAPE(257, 258), SHAPE(6),     SHAPE(3, 5, 2, 34),
                              SHAPE(64, 512),  SHAPE(1, 2050),  SHAPE(300, 2)};
  for (size_t f = 0; f < COUNT(kFunctions); f++) {
    for (int k = 0; k < 90; k++) {
      Case c = {.of = &kFunctions[f],
                .backward = k % 2,
                .in = kHighPrecision[k / 2 % 3],
                .shape = shapes[(f + (size_t)k) % COUNT(shapes)],
                .misaligned = k % 7 == 1};
      Output o = {.dtype = kFloats[k / 6 % 5],
                  .directions = (Directions)(k / 30 + 1),
                  .misaligned = k % 11 == 1,
                  .has_amax = k % 3 != 0};
      o.has_scale = is_fp8(o.dtype) && k % 4 != 0;
      if (!case_begin("%s %s %s %s %s%s", call_name(&c), shape_text(c.shape), dtype_name(c.in),
                      dtype_name(o.dtype), direction_name(o.directions),
                      c.misaligned || o.misaligned ? " misaligned" : "")) {
        continue;
      }
      // Values of every magnitude, unless a product of two could overflow on the way.
      if (k % 5 == 0 && !c.backward && !c.of->gate)
        c.values = mixed_values(c.in, numel(c.shape), false);
      case_build(&c);
      o.shape = c.out_shape;
      output_build(&o);
      case_call(&c, o.tensor);
      output_check(&o, &c);
    }
  }
}

// In blocks the output is v rounded to the input's dtype, cast by nvte_quantize.
static void test_blocks(void) {
  const NVTEScalingMode modes[] = {NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_1D,
                                   NVTE_BLOCK_SCALING_2D, NVTE_DELAYED_TENSOR_SCALING};
  const NVTEShape shapes[] = {SHAPE(130, 260), SHAPE(64, 192), SHAPE(2, 33, 96), SHAPE(257, 64)};
  for (size_t f = 0; f < COUNT(kFunctions); f++) {
    for (int k = 0; k < 72; k++) {
      Case c = {.of = &kFunctions[f],
                .backward = k % 2,
                .in = kHighPrecision[k / 8 % 3],
                .shape = shapes[(f + (size_t)k / 5) % COUNT(shapes)],
                .misaligned = k % 7 == 1};
      Output o = {.mode = modes[k / 2 % 4],
                  .dtype = kFloat8[k / 3 % 2],
                  .directions = (Directions)(k / 24 + 1),
                  .misaligned = k % 11 == 1};
      o.swizzled = o.mode == NVTE_MXFP8_1D_SCALING && k % 5 < 2;
      if (o.mode == NVTE_DELAYED_TENSOR_SCALING) {
        // With a Float32 input v is not rounded on the way.
        c.in = kNVTEFloat32;
        o.has_scale = k % 3 == 0;
      }
      o.has_amax = o.mode <= NVTE_MXFP8_1D_SCALING && k % 2;
      if (!case_begin("mode %d %s %s %s %s %s%s", (int)o.mode, call_name(&c), shape_text(c.shape),
                      dtype_name(c.in), dtype_name(o.dtype), direction_name(o.directions),
                      o.swizzled ? " swizzled" : "")) {
        continue;
      }
      case_build(&c);
      o.shape = c.out_shape;
      Output v = {.dtype = c.in, .shape = o.shape, .directions = ROWWISE}, cast = o;
      output_build(&o);
      output_build(&v);
      output_build(&cast);
      case_call(&c, v.tensor);
      output_check(&v, &c);
      nvte_quantize(v.tensor, cast.tensor, NULL);
      case_call(&c, o.tensor);
      EXPECT_OK();
      outputs_equal(&o, &cast);
    }
  }
}

static void test_special_values(void) {
  const float kInf = (float)INFINITY, kNan = (float)NAN;
  const float x[] = {kNan, kInf, -kInf, 0.0f, -0.0f, 1e30f, -1e30f, 0x1p-149f};
  enum { N = COUNT(x) };
  for (size_t f = 0; f < COUNT(kFunctions); f++) {
    Case c = {.of = &kFunctions[f], .in = kNVTEFloat32, .shape = SHAPE(1, N)};
    bool rectifies = strstr(c.of->name, "relu") != NULL;
    if (gated(&c) || !case_begin("special values of %s", c.of->name)) continue;
    c.values = memcpy(host_memory(sizeof x), x, sizeof x);
    case_build(&c);
    Output o = {.dtype = kNVTEFloat32, .shape = c.shape, .directions = ROWWISE, .has_amax = true};
    output_build(&o);
    case_call(&c, o.tensor);
    EXPECT_OK();
    const float *y = buffer_read(o.data[0]);
    CHECK(rectifies ? y[0] == 0 : isnan(y[0]), "of NaN: %g", (double)y[0]);
    CHECK(isinf(y[1]) && y[1] > 0, "of Inf: %g", (double)y[1]);
    CHECK(fabsf(y[2]) < 1e-6f && fabsf(y[6]) < 1e-6f, "far below 0: %g, %g", (double)y[2],
          (double)y[6]);
    CHECK(y[3] == 0 && y[4] == 0, "of 0: %g, %g", (double)y[3], (double)y[4]);
    CHECK_FLOAT(y[5], c.of->f == srelu ? kInf : 1e30f);
    CHECK(fabsf(y[7]) <= 0x1p-149f, "of the smallest number: %g", (double)y[7]);
    CHECK_FLOAT(read_float(o.amax), kInf);
  }
  if (case_begin("special values of the clamped halves")) {
    // a = NaN counts as the limit, g = NaN as its negative.
    const float input[] = {kNan, 1, kInf, -1, 2, kNan, kInf, -kInf};
    Case c = {.of = &kFunctions[COUNT(kFunctions) - 1], .in = kNVTEFloat32, .shape = SHAPE(1, 8)};
    c.values = memcpy(host_memory(sizeof input), input, sizeof input);
    case_build(&c);
    Output o = {.dtype = kNVTEFloat32, .shape = SHAPE(1, 4), .directions = ROWWISE};
    output_build(&o);
    case_call(&c, o.tensor);
    EXPECT_OK();
    const float *y = buffer_read(o.data[0]);
    double top = clamped(1), want[] = {clamp_offset(2) * top, clamp_offset(-2) * top,
                                       clamp_offset(2) * top, clamp_offset(-2) * clamped(-1)};
    for (int i = 0; i < 4; i++) {
      CHECK(fabs((double)y[i] - want[i]) < 3e-6, "%d: %g, not %g", i, (double)y[i], want[i]);
    }
  }
}

static void test_empty(void) {
  for (size_t f = 0; f < COUNT(kFunctions); f++) {
    for (int k = 0; k < 16; k++) {
      Case c = {.of = &kFunctions[f],
                .backward = k & 1,
                .in = kNVTEBFloat16,
                .shape = k & 2 ? SHAPE(0, 64) : SHAPE(32, 0)};
      Output o = {.mode = k & 4 ? NVTE_MXFP8_1D_SCALING : NVTE_DELAYED_TENSOR_SCALING,
                  .dtype = kNVTEFloat8E4M3,
                  .directions = BOTH,
                  .has_amax = true};
      if (!case_begin("empty %s %s %d", call_name(&c), shape_text(c.shape), k)) continue;
      case_build(&c);
      o.shape = c.out_shape;
      output_build(&o);
      if (k & 8) {
        set_param(c.input_tensor, kNVTERowwiseData, NULL, c.in, c.shape);
        set_param(o.tensor, kNVTERowwiseData, NULL, o.dtype, o.shape);
      }
      case_call(&c, o.tensor);
      EXPECT_OK();
      output_check_untouched(&o);
    }
  }
}

// The output in place of the input, or of grad.
static void test_in_place(void) {
  for (size_t f = 0; f < COUNT(kFunctions) && !kFunctions[f].gate; f++) {
    for (int k = 0; k < 9; k++) {
      Case c = {.of = &kFunctions[f],
                .backward = k / 3 > 0,
                .in = kHighPrecision[k % 3],
                .shape = SHAPE(129, 257)};
      bool over_grad = k / 3 == 2;
      if (!case_begin("in place %s %s%s", call_name(&c), dtype_name(c.in),
                      over_grad ? " over grad" : "")) {
        continue;
      }
      case_build(&c);
      Output o = {.dtype = c.in, .shape = c.shape, .directions = ROWWISE};
      output_build(&o);
      case_call(&c, o.tensor);
      output_check(&o, &c);
      case_call(&c, over_grad ? c.grad_tensor : c.input_tensor);
      EXPECT_OK();
      const Buffer *place = over_grad ? c.grad : c.input;
      CHECK(memcmp(buffer_read(place), buffer_read(o.data[0]), place->bytes) == 0,
            "other results in place");
    }
  }
}

// Calls with one thing wrong; the error names it, and nothing is written.
static void test_wrong_arguments(void) {
  for (size_t f = 0; f < COUNT(kFunctions); f++) {
    for (int k = 0; k < 18; k++) {
      Case c = {
          .of = &kFunctions[f], .in = kNVTEBFloat16, .shape = SHAPE(32, 64), .backward = k & 1};
      Output o = {.dtype = kNVTEFloat8E4M3, .directions = ROWWISE, .has_amax = true};
      if (!case_begin("wrong arguments %s %d", call_name(&c), k)) continue;
      case_build(&c);
      o.shape = c.out_shape;
      output_build(&o);
      const char *part = "", *function = strstr(c.of->name, "clamped") ? "swiglu" : c.of->name;
      NVTEShape odd = SHAPE(32, 63), other = SHAPE(31, 64);
      switch (k / 2) {
        case 0:
          c.input_tensor = NULL;
          part = "input";
          break;
        case 1:
          set_param(c.input_tensor, kNVTERowwiseData, NULL, kNVTEBFloat16, c.shape);
          part = "input.data";
          break;
        case 2:
          set_param(c.input_tensor, kNVTERowwiseData, c.input->ptr, kNVTEFloat8E4M3, c.shape);
          set_param(c.input_tensor, kNVTERowwiseScaleInv, buffer_float(1)->ptr, kNVTEFloat32,
                    SHAPE(1));
          part = c.backward ? "dtype" : "input.dtype";
          break;
        case 3:
          set_param(c.input_tensor, kNVTERowwiseData, c.input->ptr, c.in, gated(&c) ? odd : other);
          part = gated(&c) ? "input.shape: expected an even last dimension" : "shape";
          break;
        case 4:
          set_param(o.tensor, kNVTERowwiseData, o.data[0]->ptr, kNVTEInt32, o.shape);
          part = "output";
          break;
        case 5:
          set_param(o.tensor, kNVTERowwiseScaleInv, NULL, kNVTEFloat32, SHAPE(0));
          part = "output.scale_inv: expected one Float32";
          break;
        case 6:
          set_param(o.tensor, kNVTERowwiseData, NULL, kNVTEFloat32, SHAPE(0));
          part = "output";
          break;
        case 7:
          set_param(o.tensor, kNVTERowwiseData, o.data[0]->ptr, o.dtype, SHAPE(31, 64));
          part = "output";
          break;
        default:
          if (!c.backward) continue;
          set_param(c.grad_tensor, kNVTERowwiseData, c.grad->ptr, kNVTEFloat16,
                    gated(&c) ? half_shape(c.shape) : c.shape);
          part = "grad.dtype: expected BFloat16, got Float16";
      }
      nvtex_clear_error();
      case_call(&c, o.tensor);
      EXPECT_ERROR(ANY_ERROR, function, part);
      output_check_untouched(&o);
    }
  }
  if (case_begin("grad of another shape")) {
    for (size_t f = 0; f < COUNT(kFunctions); f++) {
      Case c = {.of = &kFunctions[f], .in = kNVTEFloat32, .shape = SHAPE(8, 64), .backward = true};
      case_build(&c);
      Output o = {.dtype = kNVTEFloat32, .shape = c.shape, .directions = ROWWISE};
      output_build(&o);
      set_param(c.grad_tensor, kNVTERowwiseData, c.grad->ptr, c.in, SHAPE(7, 32));
      case_call(&c, o.tensor);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "grad.shape: expected [8, ", "got [7, 32]");
      output_check_untouched(&o);
    }
  }
  if (case_begin("betas")) {
    const float bad[] = {0, -1, (float)NAN, (float)INFINITY};
    NVTETensor x = tensor(buffer(64)->ptr, kNVTEFloat32, SHAPE(1, 16));
    NVTETensor y = tensor(buffer(32)->ptr, kNVTEFloat32, SHAPE(1, 8));
    NVTETensor s = tensor(buffer(4)->ptr, kNVTEFloat32, SHAPE(1));
    for (size_t i = 0; i < COUNT(bad); i++) {
      nvte_situglu(x, y, bad[i], 25, NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_situglu: beta1: expected a finite number above 0");
      nvte_dsituglu(y, x, x, 4, bad[i], NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_dsituglu: beta2: expected a finite number");
      nvte_scaled_situglu(x, s, y, 4, bad[i], 0, NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_scaled_situglu: beta2: expected a finite number");
      nvte_scaled_dsituglu(y, x, s, x, NULL, bad[i], 25, 0, NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_scaled_dsituglu: beta1: expected a finite number");
    }
  }
}

// ---- Scales of the rows

typedef struct ScaledFunction {
  const char *name;
  double (*f)(double), (*slope)(double), (*gate)(double), (*gate_slope)(double);
} ScaledFunction;

static const ScaledFunction kScaled[] = {
    {"scaled_swiglu", silu, dsilu, identity, one},
    {"scaled_situglu", situ, dsitu, up, dup},
    {"scaled_clamped_swiglu", clamped, dclamped, clamp_offset, dclamp},
    {"scaled_srelu", srelu, dsrelu, NULL, NULL},
};

typedef struct Rows {
  const ScaledFunction *of;
  bool backward, misaligned, no_grad_scales;
  size_t rows, cols;
  int64_t interleave;
  NVTEDType in, grad, out, scales, grad_scales;
  void *x, *dy, *s;
  Buffer *input, *grad_buffer, *output, *scale_buffer, *grad_scale_buffer;
  NVTETensor input_t, grad_t, output_t, scales_t, grad_scales_t;
} Rows;

static NVTETensor rows_tensor(Rows *r, NVTEDType dtype, NVTEShape shape, double low, double high,
                              void **values, Buffer **b) {
  size_t size = dtype_size(dtype), n = numel(shape), shift = r->misaligned ? size : 0;
  if (values) {
    if (!*values) *values = random_values(dtype, n, low, high);
    *b = buffer_from(*values, n * size, shift);
  } else {
    *b = buffer_shifted(n * size, shift);
  }
  return tensor((*b)->ptr, dtype, shape);
}

static void rows_build(Rows *r) {
  NVTEShape narrow = SHAPE(r->rows, r->cols);
  NVTEShape wide = SHAPE(r->rows, r->of->gate ? 2 * r->cols : r->cols);
  r->input_t = rows_tensor(r, r->in, wide, -4, 3, &r->x, &r->input);
  r->scales_t = rows_tensor(r, r->scales, SHAPE(r->rows), -1, 2, &r->s, &r->scale_buffer);
  r->output_t = rows_tensor(r, r->out, r->backward ? wide : narrow, 0, 0, NULL, &r->output);
  if (!r->backward) return;
  r->grad_t = rows_tensor(r, r->grad, narrow, -2, 1, &r->dy, &r->grad_buffer);
  r->grad_scales_t =
      rows_tensor(r, r->grad_scales, SHAPE(r->rows), 0, 0, NULL, &r->grad_scale_buffer);
}

static void rows_call(const Rows *r) {
  NVTETensor ds = r->no_grad_scales ? NULL : r->grad_scales_t;
  NVTETensor x = r->input_t, y = r->output_t, s = r->scales_t, dy = r->grad_t;
  int64_t i = r->interleave;
  switch ((int)(r->of - kScaled) * 2 + r->backward) {
    case 0:
      nvte_scaled_swiglu(x, s, y, i, NULL);
      return;
    case 1:
      nvte_scaled_dswiglu(dy, x, s, y, ds, i, NULL);
      return;
    case 2:
      nvte_scaled_situglu(x, s, y, kBeta1, kBeta2, i, NULL);
      return;
    case 3:
      nvte_scaled_dsituglu(dy, x, s, y, ds, kBeta1, kBeta2, i, NULL);
      return;
    case 4:
      nvte_scaled_clamped_swiglu(x, s, y, kLimit, kAlpha, kOffset, i, NULL);
      return;
    case 5:
      nvte_scaled_clamped_dswiglu(dy, x, s, y, ds, kLimit, kAlpha, kOffset, i, NULL);
      return;
    case 6:
      nvte_scaled_srelu(x, s, y, NULL);
      return;
    default:
      nvte_scaled_dsrelu(dy, x, s, y, ds, NULL);
  }
}

static void rows_element(const Rows *r, const void *data, size_t at, Real want, const char *what) {
  double got = get_value(r->out, data, at);
  CHECK(within(r->out, got, want), "%s at %zu: %.9g, not %.9g +- %g", what, at, got, want.v,
        want.e);
}

static void rows_check(const Rows *r) {
  if (!EXPECT_OK()) return;
  const void *y = buffer_read(r->output);
  const void *ds = r->backward ? buffer_read(r->grad_scale_buffer) : NULL;
  const ScaledFunction *of = r->of;
  size_t block = r->interleave ? (size_t)r->interleave : r->cols;
  for (size_t row = 0; row < r->rows; row++) {
    Real scale = exact(get_value(r->scales, r->s, row)), sum = exact(0);
    double magnitudes = 0;
    for (size_t h = 0; h < r->cols; h++) {
      size_t plain = row * r->cols + h;
      size_t at = of->gate ? row * 2 * r->cols + 2 * block * (h / block) + h % block : plain;
      double a = get_value(r->in, r->x, at), g = 0;
      Real f = function_value(of->f(a)), gate = exact(1), gate_slope = exact(0);
      if (of->gate) {
        g = get_value(r->in, r->x, at + block);
        gate = function_value(of->gate(g));
        gate_slope = function_value(of->gate_slope(g));
      }
      Real v = times(f, gate);
      if (!r->backward) {
        rows_element(r, y, plain, times(v, scale), "output");
        continue;
      }
      Real dy = exact(get_value(r->grad, r->dy, plain)), dv = times(dy, scale);
      Real slope = function_value(of->slope(a));
      rows_element(r, y, at, times(dv, times(slope, gate)), "grad_input");
      if (of->gate) rows_element(r, y, at + block, times(dv, times(gate_slope, f)), "grad_input");
      Real product = times(dy, v);
      sum.v += product.v;
      sum.e += product.e;
      magnitudes += fabs(product.v);
    }
    if (!r->backward) continue;
    sum.e += 30 * 0x1p-24 * magnitudes;  // far fewer roundings than elements
    double got = get_value(r->grad_scales, ds, row);
    if (r->no_grad_scales) continue;
    CHECK(within(r->grad_scales, got, sum), "grad_act_scales[%zu]: %.9g, not %.9g +- %g", row, got,
          sum.v, sum.e);
  }
  if (r->no_grad_scales && r->backward) CHECK(untouched(r->grad_scale_buffer), "it was written");
}

static void test_scaled(void) {
  const struct {
    size_t rows, cols;
    int64_t interleave;
  } shapes[] = {{17, 64, 0}, {17, 64, 32}, {13, 100, 0}, {40, 1, 0},    {9, 7, 0},    {5, 96, 96},
                {5, 96, 32}, {3, 2048, 0}, {3, 4448, 0}, {2, 4448, 32}, {33, 264, 0}, {2, 3001, 0}};
  for (size_t f = 0; f < COUNT(kScaled); f++) {
    for (int k = 0; k < 72; k++) {
      size_t shape = (size_t)k % COUNT(shapes);
      // The dtypes in all their pairs.
      Rows r = {.of = &kScaled[f],
                .rows = shapes[shape].rows,
                .cols = shapes[shape].cols,
                .interleave = kScaled[f].gate ? shapes[shape].interleave : 0,
                .backward = k / 12 % 2,
                .misaligned = k % 5 == 1,
                .no_grad_scales = k % 13 == 3,
                .in = kHighPrecision[k % 3],
                .grad = kHighPrecision[(k + k / 24) % 3],
                .out = kHighPrecision[(k + k / 12) % 3],
                .scales = kHighPrecision[k / 3 % 3],
                .grad_scales = kHighPrecision[k / 9 % 3]};
      if (!case_begin("%s%s %zux%zu interleave %d, %s %s %s %s %s%s", r.of->name,
                      r.backward ? " backward" : "", r.rows, r.cols, (int)r.interleave,
                      dtype_name(r.in), dtype_name(r.grad), dtype_name(r.out), dtype_name(r.scales),
                      dtype_name(r.grad_scales), r.misaligned ? " misaligned" : "")) {
        continue;
      }
      rows_build(&r);
      rows_call(&r);
      rows_check(&r);
    }
  }
}

static void test_scaled_wrong(void) {
  for (size_t f = 0; f < COUNT(kScaled); f++) {
    for (int k = 0; k < 22; k++) {
      Rows r = {.of = &kScaled[f],
                .backward = k & 1,
                .rows = 4,
                .cols = 96,
                .in = kNVTEFloat32,
                .grad = kNVTEFloat32,
                .out = kNVTEFloat32,
                .scales = kNVTEFloat32,
                .grad_scales = kNVTEFloat32};
      if (!case_begin("wrong arguments %s %d", r.of->name, k)) continue;
      rows_build(&r);
      const char *part = "";
      switch (k / 2) {
        case 0:
          r.scales_t = tensor(r.scale_buffer->ptr, kNVTEFloat32, SHAPE(3));
          part = "act_scales.shape: expected 4 elements";
          break;
        case 1:
          r.scales_t = tensor(r.scale_buffer->ptr, kNVTEInt32, SHAPE(4));
          part = "act_scales.dtype";
          break;
        case 2:
          r.input_t = tensor(r.input->ptr, kNVTEFloat32, SHAPE(4, 90));
          part = "input.shape";
          break;
        case 3:
          r.input_t = tensor(r.input->ptr, kNVTEFloat8E4M3, SHAPE(4, 96));
          part = "input.dtype";
          break;
        case 4:
          r.input_t = NULL;
          part = "input";
          break;
        case 5:
          r.output_t = tensor(NULL, kNVTEFloat32, SHAPE(4, r.backward && r.of->gate ? 192 : 96));
          part = r.backward ? "grad_input.data" : "output.data";
          break;
        case 6:
        case 7:
        case 8:
          if (!r.of->gate) continue;
          r.interleave = k / 2 == 6 ? -32 : k / 2 == 7 ? 16 : 64;
          part = "glu_interleave_size: expected 0 or a multiple of 32 that divides 96";
          break;
        case 9:
          if (!r.backward) continue;
          r.grad_scales_t = tensor(r.grad_scale_buffer->ptr, kNVTEFloat32, SHAPE(5));
          part = "grad_act_scales.shape: expected 4 elements";
          break;
        default:
          if (!r.backward) continue;
          r.grad_t = tensor(r.grad_buffer->ptr, kNVTEFloat32, SHAPE(3, 96));
          part = "shape";
      }
      nvtex_clear_error();
      rows_call(&r);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, strstr(r.of->name, "relu") ? "srelu" : "glu", part);
      CHECK(untouched(r.output), "the output was written");
      if (r.backward) CHECK(untouched(r.grad_scale_buffer), "grad_act_scales was written");
    }
  }
}

static void test_scaled_empty(void) {
  for (size_t f = 0; f < COUNT(kScaled); f++) {
    for (int k = 0; k < 4; k++) {
      Rows r = {.of = &kScaled[f], .rows = k & 1 ? 0 : 5, .cols = k & 1 ? 64 : 0};
      r.backward = k & 2;
      r.in = r.grad = r.out = r.scales = r.grad_scales = kNVTEBFloat16;
      if (!case_begin("empty %s %d", r.of->name, k)) continue;
      rows_build(&r);
      rows_call(&r);
      EXPECT_OK();
      if (r.backward) CHECK(untouched(r.grad_scale_buffer), "grad_act_scales was written");
    }
  }
}

// ---- Groups

typedef struct Group {
  const char *name;
  bool varying_rows, varying_cols;
  size_t count, rows[4], cols[4];
} Group;

static const Group kGroups[] = {
    {"uniform", false, false, 3, {40, 40, 40}, {96, 96, 96}},
    {"of varying rows", true, false, 4, {128, 0, 40, 130}, {160, 160, 160, 160}},
    {"of varying columns", false, true, 3, {64, 64, 64}, {32, 96, 160}},
    {"of varying shapes", true, true, 3, {64, 33, 1}, {96, 40, 129}},
};

static size_t group_numel(const Group *g, size_t members) {
  size_t total = 0;
  for (size_t i = 0; i < members; i++) total += g->rows[i] * g->cols[i];
  return total;
}

static NVTEShape logical_shape(const Group *g, size_t factor) {
  if (g->varying_cols && g->varying_rows) return SHAPE(1, factor * group_numel(g, g->count));
  size_t rows = 0, cols = 0;
  for (size_t i = 0; i < g->count; i++) {
    rows += g->rows[i];
    cols += g->cols[i];
  }
  return g->varying_cols ? SHAPE(g->rows[0], factor * cols) : SHAPE(rows, factor * g->cols[0]);
}

static void set_grouped(NVTEGroupedTensor t, NVTEGroupedTensorParam param, const Buffer *b,
                        NVTEDType dtype) {
  NVTEBasicTensor basic_tensor = basic(b->ptr, dtype, SHAPE(b->bytes / dtype_size(dtype)));
  nvte_set_grouped_tensor_param(t, param, &basic_tensor, sizeof basic_tensor);
}

// Rows `factor` times as long as the group says.
static NVTEGroupedTensor grouped_tensor(NVTEScalingMode mode, const Group *g, size_t factor) {
  NVTEGroupedTensor t = nvte_create_grouped_tensor(mode, g->count, logical_shape(g, factor));
  int64_t first[4], last[4], offsets[5] = {0};
  for (size_t i = 0; i < g->count; i++) {
    first[i] = (int64_t)g->rows[i];
    last[i] = (int64_t)(factor * g->cols[i]);
    offsets[i + 1] = offsets[i] + first[i] * last[i];
  }
  const NVTEDType dtype = kNVTEInt64;
  if (g->varying_rows) {
    set_grouped(t, kNVTEGroupedFirstDims, buffer_from(first, 8 * g->count, 0), dtype);
  }
  if (g->varying_cols) {
    set_grouped(t, kNVTEGroupedLastDims, buffer_from(last, 8 * g->count, 0), dtype);
  }
  if (g->varying_rows || g->varying_cols) {
    set_grouped(t, kNVTEGroupedTensorOffsets, buffer_from(offsets, 8 * (g->count + 1), 0), dtype);
  }
  EXPECT_OK();
  return t;
}

static NVTEGroupedTensor grouped_input(const Group *g, size_t factor, NVTEDType dtype,
                                       void *values) {
  NVTEGroupedTensor t = grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, g, factor);
  size_t bytes = factor * group_numel(g, g->count) * dtype_size(dtype);
  set_grouped(t, kNVTEGroupedRowwiseData, buffer_from(values, bytes, 0), dtype);
  return t;
}

// The output that a member would have alone.
static Output member_output(const Output *o, const Group *g, size_t i) {
  Output member = *o;
  member.padded = true;
  member.shape = SHAPE(g->rows[i], g->cols[i]);
  return member;
}

// The whole has the buffers of `o`, whose shape is not used.
static NVTEGroupedTensor grouped_output(Output *o, const Group *g) {
  const NVTEGroupedTensorParam data[2] = {kNVTEGroupedRowwiseData, kNVTEGroupedColumnwiseData};
  const NVTEGroupedTensorParam scale_inv[2] = {kNVTEGroupedRowwiseScaleInv,
                                               kNVTEGroupedColumnwiseScaleInv};
  bool mx = o->mode == NVTE_MXFP8_1D_SCALING;
  NVTEGroupedTensor t = grouped_tensor(o->mode, g, 1);
  for (int col = 0; col < 2; col++) {
    if (!((int)o->directions & (col ? COLWISE : ROWWISE))) continue;
    size_t scales = 0;
    for (size_t i = 0; i < g->count; i++) {
      Output member = member_output(o, g, i);
      scales += numel(scale_shape(&member, col));
    }
    o->data[col] = buffer(group_numel(g, g->count) * dtype_size(o->dtype));
    set_grouped(t, data[col], o->data[col], o->dtype);
    if (!is_fp8(o->dtype)) continue;
    o->scales[col] = buffer(scales * (mx ? 1 : 4));
    set_grouped(t, scale_inv[col], o->scales[col], mx ? kNVTEFloat8E8M0 : kNVTEFloat32);
  }
  if (o->has_scale) {
    float scales[4] = {kScale, kScale, kScale, kScale};
    set_grouped(t, kNVTEGroupedScale, buffer_from(scales, 4 * g->count, 0), kNVTEFloat32);
  }
  if (o->swizzled) {
    uint8_t yes = 1;
    nvte_set_grouped_tensor_param(t, kNVTEGroupedWithGEMMSwizzledScales, &yes, sizeof yes);
  }
  EXPECT_OK();
  return t;
}

// Member i of the whole is what it would be alone; `scales_at` is where its scales are, and moves
// on.
static void check_member(const Output *whole, const Output *alone, const Group *g, size_t i,
                         size_t scales_at[2]) {
  size_t size = dtype_size(whole->dtype), at = group_numel(g, i) * size;
  for (int col = 0; col < 2; col++) {
    if (!whole->data[col]) continue;
    Output member = member_output(whole, g, i);
    size_t scale_bytes =
        numel(scale_shape(&member, col)) * (whole->mode == NVTE_MXFP8_1D_SCALING ? 1 : 4);
    const unsigned char *got = buffer_read(whole->data[col]), *scales = NULL;
    if (alone->data[col]) {
      CHECK(memcmp(got + at, buffer_read(alone->data[col]), alone->data[col]->bytes) == 0,
            "member %zu: %s data differ", i, col ? "columnwise" : "rowwise");
    }
    if (!whole->scales[col]) continue;
    scales = (const unsigned char *)buffer_read(whole->scales[col]) + scales_at[col];
    if (whole->mode != NVTE_DELAYED_TENSOR_SCALING && alone->scales[col]) {
      CHECK(memcmp(scales, buffer_read(alone->scales[col]), scale_bytes) == 0,
            "member %zu: %s scales differ", i, col ? "columnwise" : "rowwise");
    }
    scales_at[col] += scale_bytes;
  }
}

// CUDA has no grouped casts of this kind; then nothing is written.
static bool declined(const Output *whole) {
  if (!on_cuda() || nvtex_last_status() != NVTEX_UNSUPPORTED) return false;
  nvtex_clear_error();
  g_test.declined++;
  output_check_untouched(whole);
  return true;
}

static const struct {
  void (*forward)(NVTEGroupedTensor, NVTEGroupedTensor, cudaStream_t);
  void (*backward)(NVTEGroupedTensor, NVTEGroupedTensor, NVTETensor, cudaStream_t);
} kGroupCalls[] = {{nvte_group_gelu, nvte_group_dgelu},
                   {nvte_group_silu, nvte_group_dsilu},
                   {nvte_group_qgelu, nvte_group_dqgelu},
                   {nvte_group_relu, nvte_group_drelu},
                   {nvte_group_srelu, nvte_group_dsrelu}};

// The modes that groups have, one for each k.
static Output group_output_of(int k) {
  const struct {
    NVTEScalingMode mode;
    NVTEDType dtype;
  } kinds[] = {
      {NVTE_DELAYED_TENSOR_SCALING, kNVTEFloat8E4M3}, {NVTE_DELAYED_TENSOR_SCALING, kNVTEBFloat16},
      {NVTE_MXFP8_1D_SCALING, kNVTEFloat8E5M2},       {NVTE_MXFP8_1D_SCALING, kNVTEFloat8E4M3},
      {NVTE_BLOCK_SCALING_1D, kNVTEFloat8E4M3},       {NVTE_BLOCK_SCALING_2D, kNVTEFloat8E4M3}};
  Output o = {.mode = kinds[k % 6].mode,
              .dtype = kinds[k % 6].dtype,
              .directions = (Directions)(k / 6 % 3 + 1),
              .swizzled = k % 6 == 3,
              .has_scale = k % 6 == 0};
  return o;
}

static void test_groups(void) {
  for (size_t f = 0; f < COUNT(kGroupCalls); f++) {
    for (int k = 0; k < 36; k++) {
      for (size_t kind = 0; kind < COUNT(kGroups); kind++) {
        const Group *g = &kGroups[kind];
        const NVTEDType in = kHighPrecision[((size_t)k + f) % 3];
        bool backward = k >= 18;
        Output whole = group_output_of(k);
        if (!case_begin("group %s %s%s %s mode %d %s %s%s", g->name, kFunctions[f].name,
                        backward ? " backward" : "", dtype_name(in), (int)whole.mode,
                        dtype_name(whole.dtype), direction_name(whole.directions),
                        whole.swizzled ? " swizzled" : "")) {
          continue;
        }
        size_t n = group_numel(g, g->count), size = dtype_size(in), scales_at[2] = {0, 0};
        unsigned char *x = random_values(in, n, -4, 3), *dy = random_values(in, n, -2, 1);
        NVTEGroupedTensor input = grouped_input(g, 1, in, x), grad = grouped_input(g, 1, in, dy);
        NVTEGroupedTensor output = grouped_output(&whole, g);
        if (backward) {
          kGroupCalls[f].backward(grad, input, output, NULL);
        } else {
          kGroupCalls[f].forward(input, output, NULL);
        }
        bool skip = !is_fp8(whole.dtype) && declined(&whole);
        EXPECT_OK();
        for (size_t i = 0; i < g->count && !skip; i++) {
          size_t at = group_numel(g, i) * size;
          Case c = {.of = &kFunctions[f],
                    .backward = backward,
                    .in = in,
                    .shape = SHAPE(g->rows[i], g->cols[i]),
                    .values = x + at,
                    .grads = dy + at};
          Output alone = group_output_of(k);
          alone.padded = true;
          alone.shape = c.shape;
          if (numel(c.shape) > 0) {
            case_build(&c);
            output_build(&alone);
            case_call(&c, alone.tensor);
            EXPECT_OK();
          }
          check_member(&whole, &alone, g, i, scales_at);
        }
        nvte_destroy_grouped_tensor(input);
        nvte_destroy_grouped_tensor(grad);
        nvte_destroy_grouped_tensor(output);
      }
    }
  }
}

// The output must be that of the function with scales of the rows, then of a cast.
static void test_group_scaled(void) {
  for (int k = 0; k < 36; k++) {
    for (size_t kind = 0; kind < 2; kind++) {
      const Group *g = &kGroups[kind];
      const NVTEDType in = kHighPrecision[k % 3];
      bool clamps = k >= 18;
      Output whole = group_output_of(k / 3 * 6 + 2 + k % 2);
      if (!case_begin("group %s scaled%s %s %s %s%s", g->name, clamps ? " clamped" : "",
                      dtype_name(in), dtype_name(whole.dtype), direction_name(whole.directions),
                      whole.swizzled ? " swizzled" : "")) {
        continue;
      }
      size_t n = group_numel(g, g->count), size = dtype_size(in), scales_at[2] = {0, 0};
      size_t cols = g->cols[0], rows = n / cols, row = 0;
      unsigned char *x = random_values(in, 2 * n, -4, 3), *prob = random_values(in, rows, 0, 1);
      NVTEGroupedTensor input = grouped_input(g, 2, in, x), output = grouped_output(&whole, g);
      NVTETensor scales = tensor(buffer_from(prob, rows * size, size)->ptr, in, SHAPE(rows));
      if (clamps) {
        nvte_group_scaled_clamped_swiglu(input, scales, output, kLimit, kAlpha, kOffset, NULL);
      } else {
        nvte_group_scaled_swiglu(input, scales, output, NULL);
      }
      bool skip = declined(&whole);
      EXPECT_OK();
      for (size_t i = 0; i < g->count && !skip; row += g->rows[i++]) {
        NVTEShape shape = SHAPE(g->rows[i], cols);
        Output alone = member_output(&whole, g, i);
        alone.data[0] = alone.data[1] = NULL;
        if (numel(shape) > 0) {
          size_t bytes = numel(shape) * size;
          NVTETensor a = tensor(buffer_from(x + row * 2 * cols * size, 2 * bytes, 0)->ptr, in,
                                SHAPE(g->rows[i], 2 * cols));
          NVTETensor s = tensor(buffer_from(prob + row * size, g->rows[i] * size, 0)->ptr, in,
                                SHAPE(g->rows[i]));
          NVTETensor v = tensor(buffer(bytes)->ptr, in, shape);
          if (clamps) {
            nvte_scaled_clamped_swiglu(a, s, v, kLimit, kAlpha, kOffset, 0, NULL);
          } else {
            nvte_scaled_swiglu(a, s, v, 0, NULL);
          }
          output_build(&alone);
          nvte_quantize(v, alone.tensor, NULL);
          EXPECT_OK();
        }
        check_member(&whole, &alone, g, i, scales_at);
      }
      nvte_destroy_grouped_tensor(input);
      nvte_destroy_grouped_tensor(output);
    }
  }
}

static void test_group_wrong(void) {
  if (!case_begin("wrong arguments of groups")) return;
  const Group *g = &kGroups[1], *other = &kGroups[0], *columns = &kGroups[2];
  void *values = host_memory(1 << 20);
  Output mx = group_output_of(3), narrow = mx;
  NVTEGroupedTensor input = grouped_input(g, 1, kNVTEBFloat16, values);
  NVTEGroupedTensor grad = grouped_input(g, 1, kNVTEFloat16, values);
  NVTEGroupedTensor few = grouped_input(other, 1, kNVTEBFloat16, values);
  NVTEGroupedTensor wide = grouped_input(g, 2, kNVTEBFloat16, values);
  NVTEGroupedTensor output = grouped_output(&mx, g), by_column = grouped_output(&narrow, columns);
  NVTETensor prob = tensor(buffer(2 * 298)->ptr, kNVTEBFloat16, SHAPE(298));
  NVTETensor short_prob = tensor(buffer(2 * 297)->ptr, kNVTEBFloat16, SHAPE(297));
  NVTETensor float_prob = tensor(buffer(4 * 298)->ptr, kNVTEFloat32, SHAPE(298));
  const int status = NVTEX_INVALID_ARGUMENT;
  nvte_group_gelu(NULL, output, NULL);
  EXPECT_ERROR(status, "nvte_group_gelu: input");
  nvte_group_gelu(few, output, NULL);
  EXPECT_ERROR(status, "nvte_group_gelu: input.num_tensors: expected 4");
  nvte_group_gelu(wide, output, NULL);
  EXPECT_ERROR(status, "nvte_group_gelu: input.logical_shape");
  nvte_group_dsilu(grad, input, output, NULL);
  EXPECT_ERROR(status, "nvte_group_dsilu: grad.dtype: expected BFloat16, got Float16");
  nvte_group_dsilu(few, input, output, NULL);
  EXPECT_ERROR(status, "nvte_group_dsilu: grad.num_tensors: expected 4");
  nvte_group_dsilu(input, prob, output, NULL);
  EXPECT_ERROR(status, "nvte_group_dsilu: input");
  nvte_group_scaled_swiglu(input, prob, output, NULL);
  EXPECT_ERROR(status, "nvte_group_scaled_swiglu: input.logical_shape: expected a last dimension");
  nvte_group_scaled_swiglu(wide, short_prob, output, NULL);
  EXPECT_ERROR(status, "nvte_group_scaled_swiglu: prob.shape: expected 298 or more");
  nvte_group_scaled_swiglu(wide, float_prob, output, NULL);
  EXPECT_ERROR(status, "nvte_group_scaled_swiglu: prob.dtype: expected BFloat16, got Float32");
  nvte_group_scaled_clamped_swiglu(wide, NULL, output, 1, 1, 1, NULL);
  EXPECT_ERROR(status, "nvte_group_scaled_clamped_swiglu: prob");
  nvte_group_scaled_swiglu(wide, prob, by_column, NULL);
  EXPECT_ERROR(status, "nvte_group_scaled_swiglu: output.last_dims");
  for (int col = 0; col < 2; col++) {
    if (mx.data[col]) CHECK(untouched(mx.data[col]), "data were written");
  }
  NVTEGroupedTensor all[] = {input, grad, few, wide, output, by_column};
  for (size_t i = 0; i < COUNT(all); i++) nvte_destroy_grouped_tensor(all[i]);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_per_tensor();
  test_blocks();
  test_special_values();
  test_empty();
  test_in_place();
  test_wrong_arguments();
  test_scaled();
  test_scaled_wrong();
  test_scaled_empty();
  test_groups();
  test_group_scaled();
  test_group_wrong();
  return test_end();
}
