// Recipes and contexts: what is refused, the state of delayed scaling against traces computed by
// hand, microbatches, nesting, calibration, weights in FP8, reduction, files, allocators, threads.
#include <pthread.h>

#include "support.h"

// ---- A linear layer of 16 x 16 whose operands have the maxima that a case asks for

enum { N = 16 };

typedef struct Layer {
  NVTEXContext context;
  NVTEXModule module;
  Buffer *x, *y, *dy, *dx, *dw;
  NVTETensor tx, ty, tdy, tdx;
} Layer;

static NVTEXRecipeConfig recipe_config(NVTEXRecipeKind kind) {
  NVTEXRecipeConfig config;
  nvtex_recipe_config_init(&config, sizeof config, kind);
  EXPECT_OK();
  return config;
}

static NVTEXRecipe delayed_recipe(size_t length, NVTEXHistoryAlgo algo) {
  NVTEXRecipeConfig config = recipe_config(NVTEX_RECIPE_DELAYED_SCALING);
  config.amax_history_len = length;
  config.amax_algo = algo;
  NVTEXRecipe recipe = nvtex_recipe_create(&config);
  EXPECT_OK();
  return recipe;
}

static void fill(Buffer *b, float value) {
  float values[N * N];
  for (int i = 0; i < N * N; i++) values[i] = i % 3 ? 0.25f * value : value;
  upload(b->ptr, values, sizeof values);
}

static void set_weight(Layer *l, float value) {
  Buffer *w = buffer(N * N * sizeof(float));
  fill(w, value);
  nvtex_module_assign_parameter(l->module, 0, tensor(w->ptr, kNVTEFloat32, SHAPE(N, N)), NULL);
  EXPECT_OK();
}

static Layer new_layer_in(NVTEXContext context, const char *name) {
  Layer l = {.context = context};
  NVTEXLinearConfig config;
  nvtex_linear_config_init(&config, sizeof config);
  config.name = name;
  config.in_features = config.out_features = N;
  config.bias = false;
  config.seed = 3;
  l.module = nvtex_linear_create(context, &config, NULL);
  EXPECT_OK();
  Buffer **buffers[] = {&l.x, &l.y, &l.dy, &l.dx, &l.dw};
  for (size_t i = 0; i < COUNT(buffers); i++) *buffers[i] = buffer(N * N * sizeof(float));
  l.tx = tensor(l.x->ptr, kNVTEFloat32, SHAPE(N, N));
  l.ty = tensor(l.y->ptr, kNVTEFloat32, SHAPE(N, N));
  l.tdy = tensor(l.dy->ptr, kNVTEFloat32, SHAPE(N, N));
  l.tdx = tensor(l.dx->ptr, kNVTEFloat32, SHAPE(N, N));
  nvtex_module_set_gradient(l.module, 0, tensor(l.dw->ptr, kNVTEFloat32, SHAPE(N, N)), false);
  fill(l.x, 1);
  fill(l.dy, 1);
  return l;
}

static Layer new_layer(void) {
  NVTEXContext context = nvtex_context_create(NULL);
  EXPECT_OK();
  return new_layer_in(context, "layer");
}

static void end_layer(Layer *l) {
  nvtex_module_destroy(l->module);
  nvtex_context_destroy(l->context);
  EXPECT_OK();
}

static NVTEXTape forward(Layer *l, NVTEXMicrobatch microbatch) {
  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  step.microbatch = microbatch;
  NVTEXTape tape = NULL;
  nvtex_module_forward(l->module, &l->tx, 1, &l->ty, 1, &step, &tape, NULL);
  EXPECT_OK();
  return tape;
}

static void backward(Layer *l, NVTEXTape tape) {
  nvtex_module_backward(l->module, tape, &l->tdy, 1, &l->tdx, 1, NULL);
  nvtex_tape_destroy(tape);
  EXPECT_OK();
}

static NVTEXTape forward_with(Layer *l, NVTEXRecipe recipe, NVTEXMicrobatch microbatch) {
  nvtex_context_begin(l->context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
  NVTEXTape tape = forward(l, microbatch);
  nvtex_context_end(l->context);
  return tape;
}

// A step with the given largest input and gradient, and both updates.
static void step(Layer *l, NVTEXRecipe recipe, float x, float dy) {
  fill(l->x, x);
  fill(l->dy, dy);
  backward(l, forward_with(l, recipe, NVTEX_MICROBATCH_NONE));
  nvtex_context_forward_update(l->context, NULL);
  nvtex_context_backward_update(l->context, NULL);
  EXPECT_OK();
}

typedef struct State {
  float scale[2][3], history[2][8 * 3];
  size_t length;
} State;

static State state_of(NVTEXContext context, const char *layer) {
  State s;
  memset(&s, 0, sizeof s);
  for (int pass = 0; pass < 2; pass++) {
    s.length = nvtex_context_delayed_scaling(context, layer, (NVTEXPass)pass, s.scale[pass],
                                             s.history[pass], COUNT(s.history[0]), NULL);
  }
  EXPECT_OK();
  return s;
}

// The column of a slot in the history.
static void check_history(const State *s, int pass, int slot, size_t length,
                          const float *expected) {
  const size_t n = pass ? 2 : 3;
  CHECK_EQ(s->length, length);
  for (size_t i = 0; i < length; i++) {
    CHECK(same_float(s->history[pass][i * n + (size_t)slot], expected[i]), "row %zu: %g, not %g", i,
          (double)s->history[pass][i * n + (size_t)slot], (double)expected[i]);
  }
}

// ---- Cases

static void case_refusals(void) {
  if (!case_begin("refusals")) return;
#define REFUSED(kind, change, text)              \
  do {                                           \
    NVTEXRecipeConfig c = recipe_config(kind);   \
    change;                                      \
    CHECK(!nvtex_recipe_create(&c), "a recipe"); \
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, text);  \
  } while (0)
  const NVTEXRecipeKind delayed = NVTEX_RECIPE_DELAYED_SCALING, block = NVTEX_RECIPE_BLOCK_SCALING;
  REFUSED(delayed, c.format = NVTEX_FORMAT_E5M2, "config.format: expected E4M3 or HYBRID");
  REFUSED(delayed, c.format = (NVTEXFormat)3, "config.format");
  REFUSED(delayed, c.kind = (NVTEXRecipeKind)9, "config.kind");
  REFUSED(delayed, c.amax_history_len = 0, "config.amax_history_len: expected 1");
  REFUSED(delayed, c.amax_algo = (NVTEXHistoryAlgo)2, "config.amax_algo");
  REFUSED(delayed, c.margin = (float)NAN, "config.margin");
  REFUSED(delayed, c.backward = NVTEX_BACKWARD_DEQUANTIZED,
          "config.backward: expected NVTEX_BACKWARD_QUANTIZED");
  REFUSED(delayed, c.backward = (NVTEXBackward)3, "config.backward");
  REFUSED(delayed, c.update_interval = 0, "config.update_interval: expected at least 1");
  REFUSED(delayed, c.weight.block_dim = 2, "config.weight.block_dim: expected 1");
  REFUSED(NVTEX_RECIPE_CURRENT_SCALING, c.input.amax_epsilon = -1, "config.input.amax_epsilon");
  REFUSED(block, c.input.block_dim = 2, "config.weight.block_dim: expected 1 (input has 2");
  REFUSED(block, c.grad_output.block_dim = 3, "config.grad_output.block_dim: expected 1 (1 x 128)");
  REFUSED(block, c.split_accumulator_dgrad = false,
          "config.split_accumulator_dgrad: expected true");
  REFUSED(NVTEX_RECIPE_MXFP8, c.input.block_dim = 2, "config.input.block_dim");
  REFUSED(NVTEX_RECIPE_CUSTOM, (void)0, "config.choose: expected a function");
  REFUSED(delayed, c.struct_size = 4, "config.struct_size");
  CHECK(!nvtex_recipe_create(NULL), "a recipe");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config");
  nvtex_context_end(NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "context");
  Layer l = new_layer();
  nvtex_context_end(l.context);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "context: expected an open region (nvtex_context_begin)");
  nvtex_context_begin(l.context, NULL, NVTEX_CONTEXT_ENABLED, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "recipe");
  nvtex_context_begin(l.context, NULL, 8, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "flags");
  NVTEXLinearConfig linear;
  nvtex_linear_config_init(&linear, sizeof linear);
  linear.name = "layer";
  linear.in_features = linear.out_features = 8;
  CHECK(!nvtex_linear_create(l.context, &linear, NULL), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.name: expected a name that no module");
  linear.name = "other";
  linear.dtype = kNVTEFloat8E4M3;
  CHECK(!nvtex_linear_create(l.context, &linear, NULL), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.dtype");
  // Sizes that FP8 products do not take, with the layer's name.
  linear.dtype = kNVTEFloat32;
  NVTEXModule odd = nvtex_linear_create(l.context, &linear, NULL);
  EXPECT_OK();
  NVTEXRecipe recipe = delayed_recipe(4, NVTEX_HISTORY_MAX);
  nvtex_context_begin(l.context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
  NVTETensor in = tensor(l.x->ptr, kNVTEFloat32, SHAPE(32, 8));
  NVTETensor out = tensor(l.y->ptr, kNVTEFloat32, SHAPE(32, 8));
  nvtex_module_forward(odd, &in, 1, &out, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "nvtex_module_forward: layer \"other\": in_features: expected a multiple of 16");
  NVTETensor wide = tensor(l.x->ptr, kNVTEFloat32, SHAPE(4, 17));
  nvtex_module_forward(l.module, &wide, 1, &l.ty, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "inputs[0].shape: expected [..., 16]");
  nvtex_module_forward(l.module, &l.tx, 1, NULL, 0, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "outputs[0]: expected a tensor handle, got null");
  // Outputs lie apart from inputs and from each other, wholly.
  Buffer *room = buffer(2 * N * N * sizeof(float));
  const size_t starts[] = {0, sizeof(float), (N * N - 1) * sizeof(float)};
  NVTETensor low = tensor(room->ptr, kNVTEFloat32, SHAPE(N, N));
  for (size_t i = 0; i < COUNT(starts); i++) {
    NVTETensor high = tensor((char *)room->ptr + starts[i], kNVTEFloat32, SHAPE(N, N));
    nvtex_module_forward(l.module, &low, 1, &high, 1, NULL, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
                 "nvtex_module_forward: outputs[0]: expected memory apart from inputs[0]");
    NVTEXTape mine = forward(&l, NVTEX_MICROBATCH_NONE);
    nvtex_module_backward(l.module, mine, &low, 1, &high, 1, NULL);
    EXPECT_ERROR(
        NVTEX_INVALID_ARGUMENT,
        "nvtex_module_backward: grad_inputs[0]: expected memory apart from grad_outputs[0]");
    nvtex_tape_destroy(mine);
    CHECK(untouched(room), "a refused call wrote");
  }
  nvtex_module_forward(l.module, &l.tx, 2, &l.ty, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "num_inputs: expected at most 1");
  NVTEXTape tape = forward(&l, NVTEX_MICROBATCH_NONE);
  nvtex_module_backward(odd, tape, &l.tdy, 1, &l.tdx, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "tape: expected a tape of this module");
  nvtex_tape_destroy(tape);
  nvtex_module_backward(l.module, tape, &l.tdy, 1, &l.tdx, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "tape: expected a live tape");
  nvtex_module_set_gradient(l.module, 1, l.tdx, false);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "index: expected less than 1");
  nvtex_module_destroy(odd);
  nvtex_recipe_destroy(recipe);
  nvtex_recipe_destroy(recipe);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "recipe: expected a live recipe");
  end_layer(&l);
}

static void case_trace(void) {
  if (case_begin("trace max")) {
    Layer l = new_layer();
    NVTEXRecipe recipe = delayed_recipe(3, NVTEX_HISTORY_MAX);
    set_weight(&l, 0.5f);
    step(&l, recipe, 1, 2);
    State s = state_of(l.context, "layer");
    check_history(&s, 0, 0, 3, (float[]){0, 0, 1});
    check_history(&s, 0, 1, 3, (float[]){0, 0, 0.5f});
    check_history(&s, 0, 2, 3, (float[]){0, 0, 0});  // the output's slot is not used
    check_history(&s, 1, 0, 3, (float[]){0, 0, 2});
    CHECK_FLOAT(s.scale[0][0], 448);
    CHECK_FLOAT(s.scale[0][1], 896);
    CHECK_FLOAT(s.scale[0][2], 1);
    CHECK_FLOAT(s.scale[1][0], 28672);  // E5M2
    CHECK_FLOAT(s.scale[1][1], 1);
    step(&l, recipe, 2, 4);
    step(&l, recipe, 0.5f, 1);
    s = state_of(l.context, "layer");
    check_history(&s, 0, 0, 3, (float[]){0, 2, 0.5f});
    CHECK_FLOAT(s.scale[0][0], 224);
    step(&l, recipe, 0.25f, 1);
    s = state_of(l.context, "layer");
    check_history(&s, 0, 0, 3, (float[]){0, 0.5f, 0.25f});
    CHECK_FLOAT(s.scale[0][0], 224);  // 2 was among the last three
    step(&l, recipe, 0.125f, 1);
    s = state_of(l.context, "layer");
    CHECK_FLOAT(s.scale[0][0], 896);
    // Without a pass nothing moves.
    nvtex_context_forward_update(l.context, NULL);
    nvtex_context_backward_update(l.context, NULL);
    State t = state_of(l.context, "layer");
    CHECK(!memcmp(&s, &t, sizeof s), "a skipped update changed the state");
    // A step of zeros alone counts as not used.
    step(&l, recipe, 0, 0);
    t = state_of(l.context, "layer");
    check_history(&t, 0, 0, 3, (float[]){0, 0.25f, 0.125f});
    CHECK_FLOAT(t.scale[0][0], 896);
    CHECK_FLOAT(t.scale[1][0], s.scale[1][0]);
    // Inf enters the history, but no scale comes of it; NaN does not count.
    step(&l, recipe, INFINITY, 1);
    t = state_of(l.context, "layer");
    check_history(&t, 0, 0, 3, (float[]){0, 0.125f, INFINITY});
    CHECK_FLOAT(t.scale[0][0], 896);
    float x[N * N] = {NAN, 0.0625f};
    upload(l.x->ptr, x, sizeof x);
    backward(&l, forward_with(&l, recipe, NVTEX_MICROBATCH_NONE));
    nvtex_context_forward_update(l.context, NULL);
    t = state_of(l.context, "layer");
    check_history(&t, 0, 0, 3, (float[]){0, INFINITY, 0.0625f});
    // Without a tape nothing is recorded.
    fill(l.x, 3);
    nvtex_context_begin(l.context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
    nvtex_module_forward(l.module, &l.tx, 1, &l.ty, 1, NULL, NULL, NULL);
    nvtex_context_end(l.context);
    s = state_of(l.context, "layer");
    check_history(&s, 0, 0, 3, (float[]){0, INFINITY, 0.0625f});
    nvtex_recipe_destroy(recipe);
    end_layer(&l);
  }
  if (case_begin("trace most recent, margin, interval")) {
    Layer l = new_layer();
    NVTEXRecipeConfig config = recipe_config(NVTEX_RECIPE_DELAYED_SCALING);
    config.amax_history_len = 2;
    config.amax_algo = NVTEX_HISTORY_MOST_RECENT;
    config.margin = 2;
    config.update_interval = 2;
    config.format = NVTEX_FORMAT_E4M3;
    NVTEXRecipe recipe = nvtex_recipe_create(&config);
    step(&l, recipe, 4, 1);
    State s = state_of(l.context, "layer");
    check_history(&s, 0, 0, 2, (float[]){4, 0});  // the first of two updates
    CHECK_FLOAT(s.scale[0][0], 1);
    step(&l, recipe, 1, 2);
    s = state_of(l.context, "layer");
    check_history(&s, 0, 0, 2, (float[]){0, 4});
    CHECK_FLOAT(s.scale[0][0], 28);
    CHECK_FLOAT(s.scale[1][0], 56);  // E4M3 for gradients, too
    step(&l, recipe, 1, 1);
    step(&l, recipe, 2, 1);
    s = state_of(l.context, "layer");
    CHECK_FLOAT(s.scale[0][0], 56);
    nvtex_recipe_destroy(recipe);
    end_layer(&l);
  }
  if (case_begin("trace of changed recipes")) {
    Layer l = new_layer();
    NVTEXRecipe three = delayed_recipe(3, NVTEX_HISTORY_MAX);
    NVTEXRecipe five = delayed_recipe(5, NVTEX_HISTORY_MAX);
    NVTEXRecipe two = delayed_recipe(2, NVTEX_HISTORY_MOST_RECENT);
    NVTEXRecipeConfig config = recipe_config(NVTEX_RECIPE_CURRENT_SCALING);
    NVTEXRecipe current = nvtex_recipe_create(&config);
    step(&l, three, 1, 1);
    step(&l, three, 2, 1);
    step(&l, five, 0.5f, 1);  // longer: the newest stay the newest
    State s = state_of(l.context, "layer");
    check_history(&s, 0, 0, 5, (float[]){0, 0, 1, 2, 0.5f});
    CHECK_FLOAT(s.scale[0][0], 224);
    step(&l, two, 4, 1);  // shorter, and another rule
    s = state_of(l.context, "layer");
    check_history(&s, 0, 0, 2, (float[]){0, 4});
    CHECK_FLOAT(s.scale[0][0], 112);
    step(&l, current, 1, 1);  // a recipe without state ends the state
    nvtex_context_delayed_scaling(l.context, "layer", NVTEX_PASS_FORWARD, NULL, NULL, 0, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "layer: expected a layer that has run with delayed");
    step(&l, three, 1, 1);
    s = state_of(l.context, "layer");
    check_history(&s, 0, 0, 3, (float[]){0, 0, 1});
    NVTEXRecipe all[] = {three, five, two, current};
    for (size_t i = 0; i < COUNT(all); i++) nvtex_recipe_destroy(all[i]);
    end_layer(&l);
  }
}

static void case_microbatches(void) {
  if (!case_begin("microbatches")) return;
  Layer l = new_layer();
  NVTEXRecipe recipe = delayed_recipe(2, NVTEX_HISTORY_MAX);
  set_weight(&l, 0.5f);
  NVTEXTape first = forward_with(&l, recipe, NVTEX_MICROBATCH_FIRST);
  set_weight(&l, 64);  // not seen before the next first one
  fill(l.x, 2);
  NVTEXTape later = forward_with(&l, recipe, NVTEX_MICROBATCH_LATER);
  State s = state_of(l.context, "layer");
  CHECK_FLOAT(s.history[0][0], 2);
  CHECK_FLOAT(s.history[0][1], 0.5f);
  const float *y = buffer_read(l.y);
  // Rows of x are 2 or 0.5, rows of the old weight 0.5 or 0.125: all exact in E4M3.
  float expected = 0;
  for (int k = 0; k < N; k++) expected += (k % 3 ? 0.5f : 2) * (k % 3 ? 0.125f : 0.5f);
  CHECK_FLOAT(y[0], expected);
  // Tapes in any order; the first one overwrites, the later one adds.
  fill(l.dy, 1);
  backward(&l, first);
  const float *once = buffer_read(l.dw);
  backward(&l, later);
  const float *twice = buffer_read(l.dw);
  for (int i = 0; i < N * N; i++) {
    if (!CHECK(twice[i] == 3 * once[i], "[%d]: %g and %g", i, (double)once[i], (double)twice[i]))
      break;
  }
  nvtex_context_forward_update(l.context, NULL);
  // In later microbatches the weight counts as not used.
  backward(&l, forward_with(&l, recipe, NVTEX_MICROBATCH_LATER));
  nvtex_context_forward_update(l.context, NULL);
  s = state_of(l.context, "layer");
  check_history(&s, 0, 1, 2, (float[]){0, 0.5f});
  CHECK_FLOAT(s.scale[0][1], 896);
  // The flag on the device forbids the cast of the first one, too.
  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  step.microbatch = NVTEX_MICROBATCH_FIRST;
  for (int skip = 1; skip >= 0; skip--) {
    step.skip_weight_update = float_tensor(buffer_float((float)skip));
    nvtex_context_begin(l.context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
    nvtex_module_forward(l.module, &l.tx, 1, &l.ty, 1, &step, NULL, NULL);
    nvtex_context_end(l.context);
    EXPECT_OK();
    y = buffer_read(l.y);
    // 64 and 16 saturate at 448 / 896.
    const double sum = skip ? (double)expected : 6 * 2 * 0.5 + 10 * 0.5 * 0.5;
    CHECK(fabs(y[0] - sum) < 1e-5, "%g, not %g", (double)y[0], sum);
  }
  nvtex_recipe_destroy(recipe);
  end_layer(&l);
}

static void *forward_bytes(Layer *l) {
  nvtex_module_forward(l->module, &l->tx, 1, &l->ty, 1, NULL, NULL, NULL);
  EXPECT_OK();
  return buffer_read(l->y);
}

static void case_nesting(void) {
  if (!case_begin("nesting")) return;
  Layer l = new_layer();
  float x[N * N];
  for (int i = 0; i < N * N; i++) x[i] = (float)random_uniform(-1, 1);
  upload(l.x->ptr, x, sizeof x);
  NVTEXRecipeConfig config = recipe_config(NVTEX_RECIPE_CURRENT_SCALING);
  NVTEXRecipe current = nvtex_recipe_create(&config);
  config = recipe_config(NVTEX_RECIPE_BLOCK_SCALING);
  NVTEXRecipe block = nvtex_recipe_create(&config);
  const size_t bytes = sizeof x;
  const void *plain = forward_bytes(&l);
  nvtex_context_begin(l.context, current, NVTEX_CONTEXT_ENABLED, NULL);
  const void *outer = forward_bytes(&l);
  CHECK(memcmp(plain, outer, bytes) != 0, "FP8 gave what float32 gave");
  nvtex_context_begin(l.context, block, NVTEX_CONTEXT_ENABLED, NULL);
  const void *inner = forward_bytes(&l);
  CHECK(memcmp(inner, outer, bytes) != 0, "the inner recipe was not used");
  nvtex_context_begin(l.context, NULL, 0, NULL);
  CHECK(!memcmp(forward_bytes(&l), plain, bytes), "a disabled region was not");
  nvtex_context_begin(l.context, current, NVTEX_CONTEXT_ENABLED, NULL);
  CHECK(!memcmp(forward_bytes(&l), outer, bytes), "an enabled region in a disabled one was not");
  nvtex_context_end(l.context);
  nvtex_context_end(l.context);
  CHECK(!memcmp(forward_bytes(&l), inner, bytes), "the inner recipe did not come back");
  nvtex_context_end(l.context);
  CHECK(!memcmp(forward_bytes(&l), outer, bytes), "the outer recipe did not come back");
  nvtex_recipe_destroy(current);  // the region keeps it
  CHECK(!memcmp(forward_bytes(&l), outer, bytes), "a destroyed recipe changed its region");
  nvtex_context_end(l.context);
  CHECK(!memcmp(forward_bytes(&l), plain, bytes), "the region did not end");
  nvtex_recipe_destroy(block);
  // The backward pass follows the recipe of its forward pass: outside of the region, and in FP8.
  NVTEXRecipe recipe = delayed_recipe(2, NVTEX_HISTORY_MAX);
  nvtex_context_begin(l.context, NULL, 0, NULL);
  backward(&l, forward_with(&l, recipe, NVTEX_MICROBATCH_NONE));
  State s = state_of(l.context, "layer");
  CHECK_FLOAT(s.history[1][0], 1);
  nvtex_recipe_destroy(recipe);
  end_layer(&l);
}

static void case_calibration(void) {
  if (!case_begin("calibration")) return;
  Layer l = new_layer();
  NVTEXRecipe recipe = delayed_recipe(2, NVTEX_HISTORY_MAX);
  set_weight(&l, 0.3f);
  fill(l.x, 1.7f);
  fill(l.dy, 5);
  const void *plain = forward_bytes(&l);
  nvtex_context_begin(l.context, recipe, NVTEX_CONTEXT_CALIBRATING, NULL);
  NVTEXTape tape = forward(&l, NVTEX_MICROBATCH_NONE);
  nvtex_context_end(l.context);
  CHECK(!memcmp(buffer_read(l.y), plain, l.y->bytes), "calibration changed the result");
  backward(&l, tape);
  nvtex_context_forward_update(l.context, NULL);
  nvtex_context_backward_update(l.context, NULL);
  State s = state_of(l.context, "layer");
  check_history(&s, 0, 0, 2, (float[]){0, 1.7f});
  check_history(&s, 0, 1, 2, (float[]){0, 0.3f});
  check_history(&s, 1, 0, 2, (float[]){0, 5});
  CHECK_FLOAT(s.scale[0][1], 448 / 0.3f);
  nvtex_recipe_destroy(recipe);
  end_layer(&l);
}

static void case_quantized_weights(void) {
  static const struct {
    NVTEXRecipeKind kind;
    const char *name;
  } kinds[] = {{NVTEX_RECIPE_DELAYED_SCALING, "delayed"},
               {NVTEX_RECIPE_CURRENT_SCALING, "current"},
               {NVTEX_RECIPE_BLOCK_SCALING, "block"},
               {NVTEX_RECIPE_MXFP8, "mxfp8"}};
  for (size_t k = 0; k < COUNT(kinds); k++) {
    if (!case_begin("quantized weights %s", kinds[k].name)) continue;
    const size_t n = 32;
    NVTEXContext context = nvtex_context_create(NULL);
    NVTEXRecipeConfig config = recipe_config(kinds[k].kind);
    NVTEXRecipe recipe = nvtex_recipe_create(&config);
    NVTEXRecipeConfig other_config = recipe_config(
        kinds[k].kind == NVTEX_RECIPE_MXFP8 ? NVTEX_RECIPE_CURRENT_SCALING : NVTEX_RECIPE_MXFP8);
    NVTEXRecipe other = nvtex_recipe_create(&other_config);
    NVTEXLinearConfig linear;
    nvtex_linear_config_init(&linear, sizeof linear);
    linear.in_features = linear.out_features = n;
    linear.dtype = kNVTEBFloat16;
    linear.seed = 11;
    NVTEXModule plain = nvtex_linear_create(context, &linear, NULL);
    nvtex_context_begin(context, recipe, NVTEX_CONTEXT_ENABLED | NVTEX_CONTEXT_QUANTIZED_WEIGHTS,
                        NULL);
    NVTEXModule fp8 = nvtex_linear_create(context, &linear, NULL);
    EXPECT_OK();
    NVTEXParameter p;
    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    nvtex_module_parameter(fp8, 0, &p);
    CHECK(p.quantized, "the weight is not in FP8");
    CHECK_EQ(nvte_tensor_type(p.value), kNVTEFloat8E4M3);
    nvtex_module_parameter(plain, 0, &p);
    CHECK(!p.quantized, "the weight is in FP8");
    // The initial value that both modules have.
    float *initial = host_memory(n * n * sizeof(float));
    nvtex_module_initial_value(fp8, 0, initial, n * n);
    double squares = 0;
    for (size_t i = 0; i < n * n; i++) squares += initial[i] * initial[i] / (double)(n * n);
    CHECK(fabs(sqrt(squares) - 0.023) < 0.003, "deviation %g", sqrt(squares));
    void *x = random_values(kNVTEBFloat16, n * n, -1, 1);
    NVTETensor in = tensor(buffer_from(x, n * n * 2, 0)->ptr, kNVTEBFloat16, SHAPE(n, n));
    Buffer *y[2] = {buffer(n * n * 2), buffer(n * n * 2)};
    NVTETensor out[2] = {tensor(y[0]->ptr, kNVTEBFloat16, SHAPE(n, n)),
                         tensor(y[1]->ptr, kNVTEBFloat16, SHAPE(n, n))};
    nvtex_module_forward(plain, &in, 1, &out[0], 1, NULL, NULL, NULL);
    nvtex_module_forward(fp8, &in, 1, &out[1], 1, NULL, NULL, NULL);
    EXPECT_OK();
    const void *a = buffer_read(y[0]), *b = buffer_read(y[1]);
    if (kinds[k].kind == NVTEX_RECIPE_DELAYED_SCALING) {
      // The first scale of the plain weight is 1, under which E4M3 has few bits left.
      double error = 0, size = 0;
      for (size_t i = 0; i < n * n; i++) {
        const double e = get_value(kNVTEBFloat16, a, i), d = get_value(kNVTEBFloat16, b, i) - e;
        error += d * d;
        size += e * e;
      }
      CHECK(error < 0.01 * size, "relative error %g", sqrt(error / size));
    } else {
      CHECK(!memcmp(a, b, n * n * 2), "not what the weight in high precision gives");
    }
    // Another value.
    float *values = host_memory(n * n * sizeof(float));
    for (size_t i = 0; i < n * n; i++) values[i] = 0.5f;
    Buffer *half = buffer_from(values, n * n * sizeof(float), 0);
    NVTETensor from = tensor(half->ptr, kNVTEFloat32, SHAPE(n, n));
    nvtex_module_assign_parameter(fp8, 0, from, NULL);
    nvtex_context_forward_update(context, NULL);  // the delayed scale follows a step later
    nvtex_module_assign_parameter(fp8, 0, from, NULL);
    nvtex_module_set_parameter(fp8, 0, in);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "value: expected a parameter in high precision");
    // Another recipe does not fit; without one the weight is cast back.
    nvtex_context_begin(context, other, NVTEX_CONTEXT_ENABLED, NULL);
    nvtex_module_forward(fp8, &in, 1, &out[1], 1, NULL, NULL, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "weight: expected the format that the recipe asks for");
    nvtex_context_end(context);
    nvtex_context_begin(context, NULL, 0, NULL);
    nvtex_module_forward(fp8, &in, 1, &out[1], 1, NULL, NULL, NULL);
    EXPECT_OK();
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += 0.5 * get_value(kNVTEBFloat16, x, i);
    const double got = get_value(kNVTEBFloat16, buffer_read(y[1]), 0);
    CHECK(fabs(got - sum) < 0.02 * (1 + fabs(sum)), "%g, not %g", got, sum);
    nvtex_module_destroy(plain);
    nvtex_module_destroy(fp8);
    nvtex_recipe_destroy(recipe);
    nvtex_recipe_destroy(other);
    nvtex_context_destroy(context);
  }
}

// ---- Reduction over ranks

typedef struct Rank {
  int calls;
  size_t count;
  float other[8];  // what the other rank has
  int status;
} Rank;

static int reduce_max(void *user, void *group, float *data, size_t count, cudaStream_t stream) {
  Rank *rank = user;
  float values[8];
  rank->calls++;
  rank->count = count;
  if (group != (void *)&rank->calls || count > COUNT(values)) return 7;
  nvtex_memcpy_to_host(values, data, count * sizeof *values, stream);
  nvtex_stream_synchronize(stream);
  for (size_t i = 0; i < count; i++) values[i] = fmaxf(values[i], rank->other[i]);
  nvtex_memcpy_to_device(data, values, count * sizeof *values, stream);
  return rank->status;
}

static void case_reduction(void) {
  if (!case_begin("reduction")) return;
  Rank rank = {.other = {8, 0, 0, 0, 0, 0}};
  NVTEXContextConfig config;
  nvtex_context_config_init(&config, sizeof config);
  config.communicator = &rank;
  config.all_reduce_max = reduce_max;
  NVTEXContext context = nvtex_context_create(&config);
  EXPECT_OK();
  Layer a = new_layer_in(context, "a"), b = new_layer_in(context, "b");
  NVTEXRecipe recipe = delayed_recipe(2, NVTEX_HISTORY_MAX);
  for (int group = 1; group >= 0; group--) {
    nvtex_context_begin(context, recipe, NVTEX_CONTEXT_ENABLED, group ? &rank.calls : NULL);
    nvtex_tape_destroy(forward(&a, NVTEX_MICROBATCH_NONE));
    nvtex_tape_destroy(forward(&b, NVTEX_MICROBATCH_NONE));
    nvtex_context_end(context);
    nvtex_context_forward_update(context, NULL);
    EXPECT_OK();
    CHECK_EQ(rank.calls, 1);  // one for all layers, none without a group
    CHECK_EQ(rank.count, 6);
    State s = state_of(context, "a"), t = state_of(context, "b");
    CHECK_FLOAT(s.history[0][3], group ? 8 : 1);
    CHECK_FLOAT(s.scale[0][0], 56);  // 8 is among the last two both times
    CHECK_FLOAT(t.scale[0][0], 448);
  }
  nvtex_context_begin(context, recipe, NVTEX_CONTEXT_ENABLED, &rank.calls);
  nvtex_tape_destroy(forward(&a, NVTEX_MICROBATCH_NONE));
  rank.status = 3;
  nvtex_context_forward_update(context, NULL);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR,
               "nvtex_context_forward_update: config.all_reduce_max returned 3");
  nvtex_module_destroy(b.module);
  nvtex_recipe_destroy(recipe);
  end_layer(&a);
}

// ---- Custom recipes

static int choose(void *user, const char *layer, NVTEXRole role, NVTEXSlotChoice *choice) {
  const int what = *(const int *)user;
  if (strcmp(layer, "layer")) return 1;
  if (what == 0) return 0;  // high precision
  if (what == 1) {          // delayed inputs, current weights and gradients
    choice->scaling = role == NVTEX_ROLE_INPUT ? NVTEX_SLOT_DELAYED : NVTEX_SLOT_CURRENT;
    choice->dtype = role == NVTEX_ROLE_GRAD_OUTPUT ? kNVTEFloat8E5M2 : kNVTEFloat8E4M3;
    return 0;
  }
  if (what == 2) {  // operands that no product takes
    choice->scaling = role == NVTEX_ROLE_WEIGHT ? NVTEX_SLOT_MXFP8 : NVTEX_SLOT_CURRENT;
    return 0;
  }
  if (what == 3) choice->dtype = kNVTEInt32;
  if (what == 3) choice->scaling = NVTEX_SLOT_CURRENT;
  return what == 3 ? 0 : -2;
}

static void case_custom(void) {
  if (!case_begin("custom")) return;
  Layer l = new_layer();
  const void *plain = forward_bytes(&l);
  for (int what = 0; what < 5; what++) {
    NVTEXRecipeConfig config = recipe_config(NVTEX_RECIPE_CUSTOM);
    config.choose = choose;
    config.user = &what;
    config.amax_history_len = 2;
    NVTEXRecipe recipe = nvtex_recipe_create(&config);
    EXPECT_OK();
    nvtex_context_begin(l.context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
    if (what == 0) {
      CHECK(!memcmp(forward_bytes(&l), plain, l.y->bytes), "not high precision");
    } else if (what == 1) {
      backward(&l, forward(&l, NVTEX_MICROBATCH_NONE));
      State s = state_of(l.context, "layer");
      CHECK_FLOAT(s.history[0][0], 1);
      CHECK_FLOAT(s.history[0][1], 0);
      CHECK_FLOAT(s.history[1][0], 0);
    } else {
      static const char *const texts[] = {
          "recipe.choose(layer, weight): expected a choice whose product",
          "recipe.choose(layer, input).dtype",
          "recipe.choose(layer, input): expected the function to return 0, got -2"};
      nvtex_module_forward(l.module, &l.tx, 1, &l.ty, 1, NULL, NULL, NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, texts[what - 2]);
    }
    nvtex_context_end(l.context);
    nvtex_recipe_destroy(recipe);
  }
  end_layer(&l);
}

// A choice by layer within a recipe of another kind.
static int choose_first(void *user, const char *layer, NVTEXRole role, NVTEXSlotChoice *choice) {
  CHECK_EQ(choice->scaling, NVTEX_SLOT_CURRENT);
  CHECK_EQ(choice->dtype, role == NVTEX_ROLE_GRAD_OUTPUT ? kNVTEFloat8E5M2 : kNVTEFloat8E4M3);
  CHECK(choice->options.amax_epsilon == 0.5f, "%g", choice->options.amax_epsilon);
  if (strcmp(layer, user) == 0) choice->scaling = NVTEX_SLOT_HIGH_PRECISION;
  return 0;
}

static void case_choice_by_layer(void) {
  if (!case_begin("choice by layer")) return;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXRecipeConfig config = recipe_config(NVTEX_RECIPE_CURRENT_SCALING);
  char high[] = "mlp.fc1";
  config.choose = choose_first;
  config.user = high;
  config.input.amax_epsilon = config.weight.amax_epsilon = config.grad_output.amax_epsilon = 0.5f;
  NVTEXRecipe recipe = nvtex_recipe_create(&config);
  NVTEXLayerNormMLPConfig mlp;
  nvtex_layernorm_mlp_config_init(&mlp, sizeof mlp);
  mlp.name = "mlp";
  mlp.hidden_size = mlp.ffn_hidden_size = 16;
  NVTEXModule module = nvtex_layernorm_mlp_create(context, &mlp, NULL);
  EXPECT_OK();
  const size_t bytes = 16 * 16 * sizeof(float);
  Buffer *x = buffer_from(random_values(kNVTEFloat32, 16 * 16, -1, 1), bytes, 0);
  NVTETensor in = tensor(x->ptr, kNVTEFloat32, SHAPE(16, 16));
  NVTETensor out = tensor(buffer(bytes)->ptr, kNVTEFloat32, SHAPE(16, 16));
  nvtex_context_begin(context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
  nvtex_module_forward(module, &in, 1, &out, 1, NULL, NULL, NULL);
  nvtex_context_end(context);
  EXPECT_OK();
  for (size_t i = 0; i < nvtex_module_num_parameters(module); i++) {
    NVTEXParameter p = {.struct_size = sizeof p};
    nvtex_module_parameter(module, i, &p);
    if (p.shape.ndim != 2) continue;
    NVTEXSlotChoice was;
    nvtex_module_precision(module, i, NVTEX_ROLE_INPUT, &was);
    EXPECT_OK();
    const bool first = strcmp(p.name, "fc1_weight") == 0;
    CHECK_EQ(was.scaling, first ? NVTEX_SLOT_HIGH_PRECISION : NVTEX_SLOT_CURRENT);
  }
  nvtex_module_destroy(module);
  nvtex_recipe_destroy(recipe);
  nvtex_context_destroy(context);
}

// ---- Files

static void case_files(void) {
  if (!case_begin("files")) return;
  Layer a = new_layer();
  NVTEXRecipe recipe = delayed_recipe(4, NVTEX_HISTORY_MAX);
  for (int i = 0; i < 6; i++) step(&a, recipe, (float)(1 + i % 4), 0.5f);
  const size_t size = nvtex_context_state_size(a.context);
  unsigned char *file = host_memory(size + 1);
  CHECK_EQ(nvtex_context_save(a.context, file, size - 1, NULL), 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "bytes: expected at least");
  CHECK_EQ(nvtex_context_save(a.context, file, size + 1, NULL), size);
  EXPECT_OK();
  // The state is loaded before the layer has run, or after.
  for (int late = 0; late < 2; late++) {
    Layer b = new_layer();
    if (late) step(&b, recipe, 9, 9);
    nvtex_context_load(b.context, file, size, NULL);
    EXPECT_OK();
    State s = state_of(a.context, "layer"), t = state_of(b.context, "layer");
    CHECK(!memcmp(&s, &t, sizeof s), "the loaded state differs");
    CHECK_EQ(nvtex_context_state_size(b.context), size);
    unsigned char *again = host_memory(size);
    nvtex_context_save(b.context, again, size, NULL);
    CHECK(!memcmp(again, file, size), "saved again, the file differs");
    Layer c = new_layer();
    nvtex_context_load(c.context, file, size, NULL);
    step(&b, recipe, 3, 2);
    step(&c, recipe, 3, 2);
    s = state_of(b.context, "layer");
    t = state_of(c.context, "layer");
    CHECK(!memcmp(&s, &t, sizeof s), "the next step differs");
    CHECK(!memcmp(buffer_read(b.y), buffer_read(c.y), b.y->bytes), "its result differs");
    end_layer(&c);
    end_layer(&b);
  }
  // The loaded context has another length of the history.
  Layer d = new_layer();
  nvtex_context_load(d.context, file, size, NULL);
  NVTEXRecipe shorter = delayed_recipe(2, NVTEX_HISTORY_MAX);
  step(&d, shorter, 0.5f, 0.5f);
  State s = state_of(d.context, "layer");
  check_history(&s, 0, 0, 2, (float[]){0, 0.5f});
  CHECK_FLOAT(s.scale[0][0], 224);  // the newest of the file was 2
  // A file with any byte damaged, or cut at any length, is refused.
  State before = state_of(d.context, "layer");
  for (size_t i = 0; i < size; i++) {
    file[i] ^= 0x10;
    nvtex_context_load(d.context, file, size, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "buffer: expected");
    file[i] ^= 0x10;
    nvtex_context_load(d.context, file, i, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "buffer: expected");
  }
  char text[128];
  nvtex_context_load(d.context, file, size + 1, NULL);
  snprintf(text, sizeof text, "buffer: expected %zu bytes, the size of the saved states, got %zu",
           size, size + 1);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, text);
  file[10] = 2;
  nvtex_context_load(d.context, file, size, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "buffer: expected version 1 of the format, got version 2");
  State after = state_of(d.context, "layer");
  CHECK(!memcmp(&before, &after, sizeof before), "a damaged file changed the state");
  nvtex_recipe_destroy(shorter);
  nvtex_recipe_destroy(recipe);
  end_layer(&d);
  end_layer(&a);
}

// ---- Memory

typedef struct Heap {
  size_t live, bytes, calls, fail_at;
  bool wrong;
} Heap;

static void *heap_allocate(void *user, size_t bytes, size_t alignment, NVTEXLifetime lifetime,
                           cudaStream_t stream) {
  Heap *heap = user;
  (void)stream;
  heap->wrong |= lifetime > NVTEX_LIFETIME_PERSISTENT || alignment > 256 || bytes == 0;
  if (++heap->calls == heap->fail_at) return NULL;
  heap->live++;
  heap->bytes += bytes;
  return nvtex_malloc(bytes);
}

static void heap_release(void *user, void *ptr, size_t bytes, NVTEXLifetime lifetime,
                         cudaStream_t stream) {
  Heap *heap = user;
  (void)stream;
  (void)lifetime;
  heap->live--;
  heap->bytes -= bytes;
  nvtex_free(ptr);
}

// The life of a context with a module and a step; every call may fail.
static void life(Heap *heap, NVTEXRecipe recipe, const Layer *data) {
  NVTEXContextConfig config;
  nvtex_context_config_init(&config, sizeof config);
  if (heap) {
    config.allocator = heap;
    config.allocate = heap_allocate;
    config.release = heap_release;
  }
  NVTEXContext context = nvtex_context_create(&config);
  NVTEXLayerNormMLPConfig mlp;
  nvtex_layernorm_mlp_config_init(&mlp, sizeof mlp);
  mlp.hidden_size = N;
  mlp.ffn_hidden_size = 2 * N;
  mlp.activation = SWIGLU;
  NVTEXModule module = nvtex_layernorm_mlp_create(context, &mlp, NULL);
  NVTEXTape tape = NULL;
  if (module) {
    nvtex_context_begin(context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
    nvtex_module_forward(module, &data->tx, 1, &data->ty, 1, NULL, &tape, NULL);
    nvtex_context_end(context);
  }
  if (tape) nvtex_module_backward(module, tape, &data->tdy, 1, &data->tdx, 1, NULL);
  nvtex_context_forward_update(context, NULL);
  // Objects may be destroyed in any order.
  nvtex_context_destroy(context);
  nvtex_module_destroy(module);
  nvtex_tape_destroy(tape);
}

// CRC-32 of a file's bytes, bit by bit.
static uint32_t crc_of(const unsigned char *bytes, size_t count) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < count; i++) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

// Files whose checksum holds, but whose numbers no scaling makes; and files that end early.
static void case_wrong_files(void) {
  if (!case_begin("wrong files")) return;
  Layer l = new_layer();
  NVTEXRecipe recipe = delayed_recipe(2, NVTEX_HISTORY_MAX);
  step(&l, recipe, 1, 1);
  const size_t size = nvtex_context_state_size(l.context);
  unsigned char *file = host_memory(size), *changed = host_memory(size);
  nvtex_context_save(l.context, file, size, NULL);
  EXPECT_OK();
  const State before = state_of(l.context, "layer");
  // Magic, count, size of the name, name, length of the histories; then 3 scales and 2 x 3 maxima,
  // and 2 scales and 2 x 2 maxima.
  const size_t first = 12 + 4 + 4 + strlen("layer") + 4;
  CHECK_EQ(size, first + 4 * (3 + 6 + 2 + 4) + 4);
  const struct {
    size_t index;
    float value;
    const char *text;
  } wrong[] = {
      {0, NAN, "buffer: layer \"layer\", forward pass, scale[0]: expected a finite number above 0"},
      {1, -1, "forward pass, scale[1]: expected a finite number above 0, got -1"},
      {2, 0, "forward pass, scale[2]: expected a finite number above 0, got 0"},
      {2, INFINITY, "forward pass, scale[2]: expected a finite number above 0, got inf"},
      {3, -0.5f, "forward pass, amax[0]: expected a finite number, at least 0, got -0.5"},
      {8, INFINITY, "forward pass, amax[5]: expected a finite number, at least 0, got inf"},
      {9, NAN, "backward pass, scale[0]: expected a finite number above 0"},
      {14, NAN, "backward pass, amax[3]: expected a finite number, at least 0"},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    memcpy(changed, file, size);
    memcpy(changed + first + 4 * wrong[i].index, &wrong[i].value, 4);
    const uint32_t crc = crc_of(changed, size - 4);
    for (int b = 0; b < 4; b++) changed[size - 4 + (size_t)b] = (unsigned char)(crc >> 8 * b);
    nvtex_context_load(l.context, changed, size, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, wrong[i].text);
  }
  for (size_t cut = 0; cut < size; cut++) {
    char got[64];
    snprintf(got, sizeof got, "got %zu: it is truncated", cut);
    nvtex_context_load(l.context, file, cut, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "buffer: expected a file of at least", got);
  }
  const State after = state_of(l.context, "layer");
  CHECK(!memcmp(&before, &after, sizeof before), "a refused file changed the state");
  nvtex_context_load(l.context, file, size, NULL);
  EXPECT_OK();
  nvtex_recipe_destroy(recipe);
  end_layer(&l);
}

static void case_sizes(void) {
  if (!case_begin("sizes of structs")) return;
  // Any size that ends within a field is refused, at the init function and at use.
  NVTEXContextConfig config;
  for (size_t size = 0; size <= sizeof config; size++) {
    const bool whole = size == 8 || size == 16 || size == 24 || size == 32 || size == 40 ||
                       size == 48 || size == 52 || size == 56 || size == 64;
    nvtex_context_config_init(&config, size);
    if (whole)
      EXPECT_OK();
    else
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_context_config_init: struct_size: expected 64");
    nvtex_context_config_init(&config, sizeof config);
    config.struct_size = size;
    NVTEXContext context = nvtex_context_create(&config);
    CHECK_EQ(context != NULL, whole);
    if (whole)
      EXPECT_OK();
    else
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.struct_size: expected 64");
    nvtex_context_destroy(context);
  }
  // A struct of a later version counts as long as it says nothing new.
  struct {
    NVTEXContextConfig config;
    unsigned char more[16];
  } later = {.more = {0}};
  nvtex_context_config_init(&later.config, sizeof later.config);
  later.config.struct_size = sizeof later;
  NVTEXContext context = nvtex_context_create(&later.config);
  EXPECT_OK();
  nvtex_context_destroy(context);
  later.more[15] = 7;
  CHECK(!nvtex_context_create(&later.config), "a context");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config: expected zeros behind byte 64",
               "got 7 at byte 79 of 80");
  later.config.struct_size = (size_t)1 << 40;
  CHECK(!nvtex_context_create(&later.config), "a context");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.struct_size: expected 64");
  // The description of a parameter is written up to the end of a field.
  Layer l = new_layer();
  NVTEXParameter p;
  memset(&p, 0x5a, sizeof p);
  p.struct_size = 12;
  nvtex_module_parameter(l.module, 0, &p);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "parameter.struct_size");
  p.struct_size = 16;
  nvtex_module_parameter(l.module, 0, &p);
  EXPECT_OK();
  CHECK(!strcmp(p.name, "weight"), "%s", p.name);
  for (size_t i = 16; i < sizeof p; i++) CHECK_EQ(((unsigned char *)&p)[i], 0x5a);
  end_layer(&l);
}

static void case_precision(void) {
  if (!case_begin("precision")) return;
  NVTEXContext context = nvtex_context_create(NULL);
  Layer l = new_layer_in(context, "layer");
  NVTEXSlotChoice choice;
  memset(&choice, 0x5a, sizeof choice);
  nvtex_module_precision(l.module, 0, NVTEX_ROLE_INPUT, &choice);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "index: expected a weight whose products");
  CHECK_EQ(((unsigned char *)&choice)[0], 0x5a);
  NVTEXRecipe recipe = delayed_recipe(2, NVTEX_HISTORY_MAX);
  const NVTEXSlotScaling scalings[] = {NVTEX_SLOT_HIGH_PRECISION, NVTEX_SLOT_DELAYED};
  for (uint32_t enabled = 0; enabled < 2; enabled++) {
    nvtex_context_begin(context, recipe, enabled ? NVTEX_CONTEXT_ENABLED : 0, NULL);
    nvtex_tape_destroy(forward(&l, NVTEX_MICROBATCH_NONE));
    nvtex_context_end(context);
    for (int role = 0; role < 3; role++) {
      nvtex_module_precision(l.module, 0, (NVTEXRole)role, &choice);
      EXPECT_OK();
      CHECK_EQ(choice.scaling, scalings[enabled]);
      CHECK_EQ(choice.dtype, !enabled    ? kNVTEFloat32
                             : role == 2 ? kNVTEFloat8E5M2
                                         : kNVTEFloat8E4M3);
    }
  }
  nvtex_module_precision(l.module, 0, (NVTEXRole)3, &choice);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "role: expected an NVTEXRole from 0 to 2");
  nvtex_module_precision(l.module, 0, NVTEX_ROLE_INPUT, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "choice");
  // A tape of another module.
  Layer other = new_layer_in(context, "other");
  NVTEXTape tape = forward(&other, NVTEX_MICROBATCH_NONE);
  nvtex_module_backward(l.module, tape, &l.tdy, 1, &l.tdx, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "tape: expected a tape of this module, \"layer\" (linear)",
               "got a tape of \"other\" (linear)");
  nvtex_tape_destroy(tape);
  nvtex_module_destroy(other.module);
  nvtex_recipe_destroy(recipe);
  end_layer(&l);
}

// The pool gives memory back: at a bound, and when it is told to.
static void case_trim(void) {
  if (!case_begin("trim")) return;
  for (int bounded = 0; bounded < 2; bounded++) {
    NVTEXContextConfig config;
    nvtex_context_config_init(&config, sizeof config);
    config.max_unused_bytes = bounded ? 4096 : SIZE_MAX;
    NVTEXContext context = nvtex_context_create(&config);
    Layer l = new_layer_in(context, "layer");
    NVTEXRecipe recipe = delayed_recipe(2, NVTEX_HISTORY_MAX);
    enum { STEPS = 64 };
    Buffer *x = buffer(STEPS * 64 * N * sizeof(float)), *y = buffer(x->bytes);
    nvte_memset(x->ptr, 0, x->bytes, NULL);
    for (size_t i = 1; i <= STEPS; i++) {
      NVTETensor tx = tensor(x->ptr, kNVTEFloat32, SHAPE(64 * i, N));
      NVTETensor ty = tensor(y->ptr, kNVTEFloat32, SHAPE(64 * i, N));
      NVTEXTape tape = NULL;
      nvtex_context_begin(context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
      nvtex_module_forward(l.module, &tx, 1, &ty, 1, NULL, &tape, NULL);
      nvtex_context_end(context);
      nvtex_tape_destroy(tape);
      EXPECT_OK();
    }
    // Inputs in FP8 of 1024 i bytes, one direction or more, of which a block each is kept without
    // bound.
    const size_t least = 1024 * STEPS * (STEPS + 1) / 2, most = 16 * 1024 * STEPS;
    const size_t kept = nvtex_context_trim(context, 512);
    EXPECT_OK();
    if (bounded)
      CHECK(kept <= most, "%zu bytes were kept", kept);
    else
      CHECK(kept >= least, "only %zu bytes were kept", kept);
    CHECK(nvtex_context_trim(context, 0) <= 512, "the bound was not kept");
    CHECK_EQ(nvtex_context_trim(context, 0), 0);
    // The memory that is left is enough for the next step.
    nvtex_tape_destroy(forward_with(&l, recipe, NVTEX_MICROBATCH_NONE));
    nvtex_recipe_destroy(recipe);
    end_layer(&l);
  }
}

static void case_memory(void) {
  if (!case_begin("memory")) return;
  Layer data = new_layer();
  NVTEXRecipe recipe = delayed_recipe(4, NVTEX_HISTORY_MAX);
  Heap heap = {0};
  life(&heap, recipe, &data);
  EXPECT_OK();
  CHECK_EQ(heap.live, 0);
  CHECK_EQ(heap.bytes, 0);
  CHECK(!heap.wrong, "wrong arguments");
  // Each allocation fails once; nothing leaks, and every call says so.
  const size_t calls = heap.calls;
  for (size_t i = 1; i <= calls; i++) {
    heap = (Heap){.fail_at = i};
    life(&heap, recipe, &data);
    EXPECT_ERROR(NVTEX_DEVICE_ERROR, "allocator.allocate");
    CHECK_EQ(heap.live, 0);
  }
  NVTEXContextConfig config;
  nvtex_context_config_init(&config, sizeof config);
  config.allocate = heap_allocate;
  CHECK(!nvtex_context_create(&config), "a context");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.release: expected a function");
  for (int i = 0; i < 1000; i++) life(NULL, recipe, &data);
  EXPECT_OK();
  nvtex_recipe_destroy(recipe);
  end_layer(&data);
}

// ---- Threads

typedef struct Job {
  Layer layer;
  NVTEXRecipe recipe;
  State state;
  unsigned char y[N * N * sizeof(float)];
  int first;
  bool failed;
} Job;

static void *run_job(void *user) {
  Job *job = user;
  Layer *l = &job->layer;
  for (int i = 0; i < 40; i++) {
    NVTEXTape tape = NULL;
    nvtex_context_begin(l->context, job->recipe, NVTEX_CONTEXT_ENABLED, NULL);
    nvtex_module_forward(l->module, &l->tx, 1, &l->ty, 1, NULL, &tape, NULL);
    nvtex_context_end(l->context);
    nvtex_context_forward_update(l->context, NULL);
    nvtex_module_backward(l->module, tape, &l->tdy, 1, &l->tdx, 1, NULL);
    nvtex_context_backward_update(l->context, NULL);
    nvtex_tape_destroy(tape);
  }
  job->failed = nvtex_last_status() != NVTEX_OK;
  return NULL;
}

static void case_threads(void) {
  if (!case_begin("threads")) return;
  enum { JOBS = 4 };
  static Job jobs[2 * JOBS];
  pthread_t threads[JOBS];
  NVTEXRecipe recipes[] = {delayed_recipe(4, NVTEX_HISTORY_MAX),
                           delayed_recipe(2, NVTEX_HISTORY_MOST_RECENT)};
  for (int i = 0; i < 2 * JOBS; i++) {
    jobs[i] = (Job){.layer = new_layer(), .recipe = recipes[i % 2]};
    fill(jobs[i].layer.x, (float)(1 + i % JOBS));
  }
  for (int i = 0; i < JOBS; i++) {
    if (pthread_create(&threads[i], NULL, run_job, &jobs[i])) abort();
  }
  for (int i = 0; i < JOBS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < JOBS; i++) {
    run_job(&jobs[JOBS + i]);  // the same, one after the other
    Layer *a = &jobs[i].layer, *b = &jobs[JOBS + i].layer;
    CHECK(!jobs[i].failed, "a call failed in thread %d", i);
    State s = state_of(a->context, "layer"), t = state_of(b->context, "layer");
    CHECK(!memcmp(&s, &t, sizeof s), "the state of thread %d differs", i);
    CHECK(!memcmp(buffer_read(a->y), buffer_read(b->y), a->y->bytes), "so does its result");
    CHECK(!memcmp(buffer_read(a->dw), buffer_read(b->dw), a->dw->bytes), "and its gradient");
  }
  for (int i = 0; i < 2 * JOBS; i++) end_layer(&jobs[i].layer);
  nvtex_recipe_destroy(recipes[0]);
  nvtex_recipe_destroy(recipes[1]);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  case_refusals();
  case_trace();
  case_microbatches();
  case_nesting();
  case_calibration();
  case_quantized_weights();
  case_reduction();
  case_custom();
  case_choice_by_layer();
  case_files();
  case_wrong_files();
  case_sizes();
  case_precision();
  case_trim();
  case_memory();
  case_threads();
  return test_end();
}
