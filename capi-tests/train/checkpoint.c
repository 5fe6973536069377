// Checkpoints: the file as the header describes it, what comes back from it, and files that are not
// sound.
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <sys/resource.h>

#include "safetensors.h"

enum { IN = 32, OUT = 48, ROWS = 16, PARAMETERS = 4, TENSORS = 2 };

// ---- A model: two layers, an optimizer, a loader, and random state

typedef struct Setup {
  const char *name;
  NVTEDType dtype, moments;
  NVTEXUpdateRule rule;
  NVTEXMasters masters;
} Setup;

typedef struct Model {
  NVTEXContext context;
  NVTEXRecipe recipe;
  NVTEXModule modules[2];
  NVTEXOptimizer optimizer;
  NVTEXTokenLoader loader;
  Buffer *rng, *extra;
  NVTETensor tensors[TENSORS];
  NVTEXCheckpointConfig config;
} Model;

static const char *const kNames[TENSORS] = {"rng", "numbers"};
static const char *const kParameters[PARAMETERS] = {"first.weight", "first.bias", "second.weight",
                                                    "second.bias"};

static Model begin(const Setup *s, uint64_t seed) {
  Model m = {0};
  m.context = nvtex_context_create(NULL);
  NVTEXRecipeConfig r;
  nvtex_recipe_config_init(&r, sizeof r, NVTEX_RECIPE_DELAYED_SCALING);
  r.amax_history_len = 4;
  m.recipe = nvtex_recipe_create(&r);
  for (size_t i = 0; i < 2; i++) {
    NVTEXLinearConfig c;
    nvtex_linear_config_init(&c, sizeof c);
    c.name = i ? "second" : "first";
    c.in_features = i ? OUT : IN;
    c.out_features = i ? IN : OUT;
    c.dtype = i ? kNVTEFloat32 : s->dtype;
    c.init_std = 0.5f;
    c.seed = seed + i;
    m.modules[i] = nvtex_linear_create(m.context, &c, NULL);
  }
  NVTEXOptimizerConfig o;
  nvtex_optimizer_config_init(&o, sizeof o, s->rule);
  o.masters = s->masters;
  o.moment_dtype = s->moments;
  o.learning_rate = 0.01f * (float)seed;
  o.loss_scale = 4.0f * (float)seed;
  o.growth_interval = 3;
  m.optimizer = nvtex_optimizer_create(m.context, &o, m.modules, 2, NULL);
  const char *path = in_folder("tokens");
  file_write(path, host_memory(402), 402);
  NVTEXTokenLoaderConfig t;
  nvtex_token_loader_config_init(&t, sizeof t);
  t.paths = &path;
  t.num_paths = 1;
  t.sequence = 4;
  t.seed = 5;
  m.loader = nvtex_token_loader_create(&t);
  const int64_t state[2] = {(int64_t)seed, 128 * (int64_t)seed};
  m.rng = buffer_from(state, sizeof state, 0);
  m.extra = buffer_from(random_values(kNVTEBFloat16, 15, -1, 1), 30, 0);
  m.tensors[0] = tensor(m.rng->ptr, kNVTEInt64, SHAPE(2));
  m.tensors[1] = tensor(m.extra->ptr, kNVTEBFloat16, SHAPE(3, 5));
  nvtex_checkpoint_config_init(&m.config, sizeof m.config);
  m.config.num_modules = 2;
  m.config.optimizer = m.optimizer;
  m.config.loader = m.loader;
  m.config.names = kNames;
  m.config.num_tensors = TENSORS;
  EXPECT_OK();
  return m;
}

static void end(Model *m) {
  nvtex_token_loader_destroy(m->loader);
  nvtex_optimizer_destroy(m->optimizer);
  for (size_t i = 0; i < 2; i++) nvtex_module_destroy(m->modules[i]);
  nvtex_recipe_destroy(m->recipe);
  nvtex_context_destroy(m->context);
  EXPECT_OK();
}

static void save(Model *m, const char *path) {
  m->config.modules = m->modules;
  m->config.tensors = m->tensors;
  nvtex_checkpoint_save(path, &m->config, NULL);
}

static void load(Model *m, const char *path) {
  m->config.modules = m->modules;
  m->config.tensors = m->tensors;
  nvtex_checkpoint_load(path, &m->config, NULL);
}

// Passes of both layers, and a step with gradients of this number. Returns the second layer's
// output.
static void *train(Model *m, const Setup *s, uint64_t number) {
  void *out = NULL;
  const uint64_t rng = g_test.rng;
  g_test.rng = number;
  for (size_t i = 0; i < 2; i++) {
    const NVTEDType dtype = i ? kNVTEFloat32 : s->dtype;
    const size_t in = i ? OUT : IN, width = i ? IN : OUT, size = dtype_size(dtype);
    Buffer *x = buffer_from(random_values(dtype, ROWS * in, -1, 1), ROWS * in * size, 0);
    Buffer *dy = buffer_from(random_values(dtype, ROWS * width, -1, 1), ROWS * width * size, 0);
    Buffer *y = buffer(ROWS * width * size), *dx = buffer(ROWS * in * size);
    const NVTETensor input = tensor(x->ptr, dtype, SHAPE(ROWS, in)),
                     output = tensor(y->ptr, dtype, SHAPE(ROWS, width));
    const NVTETensor grad = tensor(dy->ptr, dtype, SHAPE(ROWS, width)),
                     result = tensor(dx->ptr, dtype, SHAPE(ROWS, in));
    NVTEXTape tape = NULL;
    nvtex_context_begin(m->context, m->recipe, NVTEX_CONTEXT_ENABLED, NULL);
    nvtex_module_forward(m->modules[i], &input, 1, &output, 1, NULL, &tape, NULL);
    nvtex_context_end(m->context);
    nvtex_module_backward(m->modules[i], tape, &grad, 1, &result, 1, NULL);
    nvtex_tape_destroy(tape);
    out = buffer_read(y);
  }
  nvtex_context_forward_update(m->context, NULL);
  nvtex_context_backward_update(m->context, NULL);
  nvtex_optimizer_step(m->optimizer, NULL);
  int32_t tokens[5];
  nvtex_token_loader_next(m->loader, tokens, 5);
  EXPECT_OK();
  g_test.rng = rng;
  return out;
}

static NVTEXOptimizerParameter optimized(const Model *m, size_t i) {
  NVTEXOptimizerParameter p = {.struct_size = sizeof p};
  nvtex_optimizer_parameter(m->optimizer, i, &p);
  return p;
}

static NVTEBasicTensor value(const Model *m, size_t i) {
  return value_of(m->modules[i / 2], i % 2);
}

// The state of delayed scaling.
static void *scaling(const Model *m, size_t *bytes) {
  *bytes = nvtex_context_state_size(m->context);
  void *state = host_memory(*bytes);
  *bytes = nvtex_context_save(m->context, state, *bytes, NULL);
  EXPECT_OK();
  return state;
}

// Moments as a file has them: those in FP8 are codes and scales of blocks, the second one of its
// root.
static void *moment_of(const NVTEXOptimizerParameter *p, size_t which, size_t *bytes) {
  const NVTEBasicTensor state = p->state[which], scales = p->state_scales[which];
  *bytes = basic_bytes(state);
  if (state.dtype != kNVTEFloat8E4M3) return basic_read(state);
  const size_t n = numel(state.shape);
  const unsigned char *codes = basic_read(state);
  const float *scale = basic_read(scales);
  CHECK_EQ(numel(scales.shape), (n + 127) / 128);
  float *values = host_memory(n * sizeof *values);
  for (size_t i = 0; i < n; i++) {
    const double x = get_value(kNVTEFloat8E4M3, codes, i) * (double)scale[i / 128];
    values[i] = (float)(which ? x * x : x);
  }
  *bytes = n * sizeof *values;
  return values;
}

// Everything that a checkpoint holds, as bytes.
typedef struct Snapshot {
  unsigned char *bytes;
  size_t size;
} Snapshot;

static void keep(Snapshot *s, const void *bytes, size_t size) {
  memcpy(s->bytes + s->size, bytes, size);
  s->size += size;
}

static Snapshot snapshot(const Model *m, bool with_scaling) {
  Snapshot s = {host_memory(1 << 17), 0};
  for (size_t i = 0; i < PARAMETERS; i++) {
    const NVTEXOptimizerParameter p = optimized(m, i);
    const NVTEBasicTensor parts[] = {value(m, i), p.master};
    for (size_t t = 0; t < COUNT(parts); t++) {
      if (parts[t].data_ptr) keep(&s, basic_read(parts[t]), basic_bytes(parts[t]));
    }
    for (size_t t = 0; t < 2; t++) {
      size_t bytes;
      if (!p.state[t].data_ptr) continue;
      const void *moment = moment_of(&p, t, &bytes);
      keep(&s, moment, bytes);
    }
  }
  NVTEXOptimizerNumbers n = {.struct_size = sizeof n};
  nvtex_optimizer_numbers(m->optimizer, &n, NULL);
  keep(&s, &n.step, sizeof n.step);
  keep(&s, &n.skipped, sizeof n.skipped);
  keep(&s, &n.loss_scale, sizeof n.loss_scale);
  NVTEXTokenPosition position = {.struct_size = sizeof position};
  nvtex_token_loader_position(m->loader, &position);
  keep(&s, &position, sizeof position);
  keep(&s, buffer_read(m->rng), m->rng->bytes);
  keep(&s, buffer_read(m->extra), m->extra->bytes);
  size_t size;
  const void *state = scaling(m, &size);
  if (with_scaling) keep(&s, state, size);
  EXPECT_OK();
  return s;
}

static bool same(Snapshot a, Snapshot b) {
  return a.size == b.size && !memcmp(a.bytes, b.bytes, a.size);
}

// ---- What is in the file

static const char *stored_dtype(NVTEDType dtype) {
  return dtype == kNVTEFloat32 ? "F32" : dtype == kNVTEBFloat16 ? "BF16" : "F16";
}

static void check_stored(const Image *image, const char *name, const char *dtype, NVTEShape shape,
                         const void *bytes, size_t size) {
  const Stored s = stored(image, name);
  CHECK(!strcmp(s.dtype, dtype), "%s is %s, expected %s", name, s.dtype, dtype);
  CHECK(same_shape(s.shape, shape), "%s is %s, expected %s", name, shape_text(s.shape),
        shape_text(shape));
  if (CHECK_EQ(s.end - s.begin, size))
    CHECK(!memcmp(s.data, bytes, size), "%s has other numbers", name);
}

// A parameter in float32, from its master: the low half of it beside a value that is the high half,
// rounded.
static float *master_of(const Model *m, size_t i) {
  const NVTEXOptimizerParameter p = optimized(m, i);
  if (p.master.dtype == kNVTEFloat32) return basic_read(p.master);
  const uint16_t *high = basic_read(value(m, i)), *low = basic_read(p.master);
  float *master = host_memory(numel(p.master.shape) * sizeof *master);
  for (size_t e = 0; e < numel(p.master.shape); e++) {
    master[e] = float_of((uint32_t)(uint16_t)(high[e] - (low[e] >> 15)) << 16 | low[e]);
  }
  return master;
}

static void check_file(const Model *m, const Setup *s, const char *path) {
  Image image = image_read(path);
  const char *text = header_text(&image);
  size_t tensors = 0, total = 0;
  for (size_t i = 0; i < PARAMETERS; i++) {
    const NVTEXOptimizerParameter p = optimized(m, i);
    const NVTEBasicTensor v = value(m, i);
    const size_t n = numel(v.shape);
    if (p.master.data_ptr) {
      check_stored(&image, kParameters[i], "F32", v.shape, master_of(m, i), 4 * n);
    } else {
      check_stored(&image, kParameters[i], stored_dtype(v.dtype), v.shape, basic_read(v),
                   basic_bytes(v));
    }
    tensors++;
    for (size_t t = 0; t < 2; t++) {
      if (!p.state[t].data_ptr) continue;
      static const char *const kinds[] = {"exp_avg", "exp_avg_sq"};
      char name[128];
      snprintf(name, sizeof name, "optimizer.%s.%s",
               s->rule == NVTEX_UPDATE_SGD ? "momentum" : kinds[t], kParameters[i]);
      const bool fp8 = p.state[t].dtype == kNVTEFloat8E4M3;
      size_t bytes;
      const void *moment = moment_of(&p, t, &bytes);
      check_stored(&image, name, stored_dtype(fp8 ? kNVTEFloat32 : p.state[t].dtype), v.shape,
                   moment, bytes);
      tensors++;
    }
  }
  NVTEXOptimizerNumbers n = {.struct_size = sizeof n};
  nvtex_optimizer_numbers(m->optimizer, &n, NULL);
  const int32_t counters[] = {(int32_t)n.step, (int32_t)n.skipped, 2};
  const float scalars[] = {0.03f, n.loss_scale};
  check_stored(&image, "optimizer.counters", "I32", SHAPE(3), counters, sizeof counters);
  check_stored(&image, "optimizer.scalars", "F32", SHAPE(2), scalars, sizeof scalars);
  NVTEXTokenPosition p = {.struct_size = sizeof p};
  nvtex_token_loader_position(m->loader, &p);
  const int64_t position[] = {(int64_t)p.batches, (int64_t)p.windows, (int64_t)p.seed,
                              (int64_t)p.sequence, (int64_t)p.rows};
  check_stored(&image, "tokens.position", "I64", SHAPE(5), position, sizeof position);
  check_stored(&image, "extra.rng", "I64", SHAPE(2), buffer_read(m->rng), m->rng->bytes);
  check_stored(&image, "extra.numbers", "BF16", SHAPE(3, 5), buffer_read(m->extra),
               m->extra->bytes);
  size_t size;
  const void *state = scaling(m, &size);
  check_stored(&image, "recipe.state", "U8", SHAPE(size), state, size);
  CHECK_EQ(count_text(text, "\"data_offsets\""), tensors + 6);
  CHECK(strstr(text, "\"__metadata__\"") && strstr(text, "\"nvte.checkpoint\":\"1\""), "%s", text);
  // The tensors lie one behind the other, and fill the file.
  for (const char *at = text; (at = strstr(at, "\"data_offsets\":[")); at++) {
    size_t first, last;
    CHECK(sscanf(at + 16, "%zu,%zu", &first, &last) == 2 && first <= last, "%.40s", at);
    total += last - first;
  }
  CHECK_EQ(8 + header_length(&image) + total, image.size);
  CHECK_EQ(header_length(&image) % 8, 0);
  // The digest is that of the file with zeros in its place.
  const Image written = image_read(path);
  const char *digest = image_seal(&image);
  CHECK(!memcmp(image.bytes, written.bytes, image.size), "SHA-256 is %s", digest);
}

static void round_trip(const Setup *s) {
  if (!case_begin("Round trip, %s", s->name)) return;
  Model a = begin(s, 3), b = begin(s, 1);
  train(&a, s, 1);
  train(&a, s, 2);
  const char *path = in_folder("model.safetensors");
  save(&a, path);
  if (!EXPECT_OK()) return;
  // It, and the tokens: nothing else is left.
  CHECK_EQ(folder_entries(g_folder, false), 2);
  check_file(&a, s, path);
  train(&b, s, 9);
  train(&b, s, 8);
  train(&b, s, 7);
  CHECK(!same(snapshot(&a, true), snapshot(&b, true)), "two models");
  load(&b, path);
  EXPECT_OK();
  CHECK(same(snapshot(&a, true), snapshot(&b, true)), "the loaded model differs");
  // A model that has not run gets its scales when it does.
  Model c = begin(s, 2);
  load(&c, path);
  EXPECT_OK();
  CHECK(same(snapshot(&a, false), snapshot(&c, false)), "the loaded model differs");
  for (uint64_t step = 3; step < 6; step++) {
    const size_t bytes = ROWS * IN * sizeof(float);
    const void *y = train(&a, s, step), *yb = train(&b, s, step), *yc = train(&c, s, step);
    CHECK(!memcmp(y, yb, bytes) && !memcmp(y, yc, bytes), "outputs of step %d", (int)step);
    CHECK(same(snapshot(&a, true), snapshot(&b, true)), "step %d of a model that ran", (int)step);
    CHECK(same(snapshot(&a, true), snapshot(&c, true)), "step %d of a new model", (int)step);
  }
  // Loading does not change the file, and what was loaded is saved again to the same tensors.
  load(&c, path);
  const char *again = in_folder("again.safetensors");
  save(&c, again);
  EXPECT_OK();
  check_file(&c, s, again);
  const Image x = image_read(path), y = image_read(again);
  CHECK(x.size == y.size && !memcmp(x.bytes, y.bytes, x.size),
        "a state saved twice gives two files");
  end(&a);
  end(&b);
  end(&c);
  folder_entries(g_folder, true);
}

static const Setup kAdam = {"AdamW, BFloat16", kNVTEBFloat16, kNVTEFloat32, NVTEX_UPDATE_ADAMW,
                            NVTEX_MASTERS_FLOAT32};

// Masters and dtypes may be others.
static void other_dtypes(void) {
  if (!case_begin("Other masters and dtypes")) return;
  static const Setup setups[] = {
      {"", kNVTEBFloat16, kNVTEFloat32, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_REMAINDER},
      {"", kNVTEBFloat16, kNVTEBFloat16, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_NONE},
      {"", kNVTEFloat16, kNVTEFloat32, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_FLOAT32},
      {"", kNVTEFloat32, kNVTEFloat32, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_FLOAT32},
  };
  Model a = begin(&kAdam, 3);
  train(&a, &kAdam, 1);
  const char *path = in_folder("model.safetensors");
  save(&a, path);
  EXPECT_OK();
  for (size_t i = 0; i <= COUNT(setups); i++) {
    const Setup *s = i < COUNT(setups) ? &setups[i] : &kAdam;
    Model b = begin(s, 1);
    // The last one is of modules alone.
    if (i == COUNT(setups)) {
      nvtex_optimizer_destroy(b.optimizer);
      b.optimizer = b.config.optimizer = NULL;
    }
    load(&b, path);
    EXPECT_OK();
    for (size_t p = 0; p < PARAMETERS; p++) {
      const float *expected = optimized(&a, p).master.data_ptr ? basic_read(optimized(&a, p).master)
                                                               : basic_read(value(&a, p));
      const NVTEBasicTensor v = value(&b, p);
      const void *got = basic_read(v);
      const float *master =
          b.optimizer && optimized(&b, p).master.data_ptr ? master_of(&b, p) : NULL;
      for (size_t e = 0; e < numel(v.shape); e++) {
        if (master) CHECK_FLOAT(master[e], expected[e]);
        const double x = get_value(v.dtype, got, e), y = round_to(v.dtype, (double)expected[e]);
        // A remainder rounds ties away from 0.
        const double bound = s->masters == NVTEX_MASTERS_REMAINDER ? 0x1p-8 : 0;
        CHECK(fabs(x - y) <= bound * fabs(y), "%s: %g, expected %g", kParameters[p], x, y);
      }
    }
    end(&b);
  }
  end(&a);
}

// ---- Files that are not those of this model

// The load fails with these words, and the model stays as it is.
static void refused(Model *m, const char *path, int status, const char *part) {
  const Snapshot before = snapshot(m, true);
  load(m, path);
  EXPECT_ERROR(status, part);
  CHECK(same(before, snapshot(m, true)), "the model changed");
}

static void wrong_contents(void) {
  if (!case_begin("Wrong contents")) return;
  Model m = begin(&kAdam, 3);
  train(&m, &kAdam, 1);
  const char *path = in_folder("model.safetensors"), *bad = in_folder("bad.safetensors");
  save(&m, path);
  EXPECT_OK();
  train(&m, &kAdam, 2);
  const Image good = image_read(path);
  static const struct {
    const char *from, *to, *part;
  } changes[] = {
      {"\"first.weight\":", "\"first.wait\":", "first.weight"},
      {"\"second.bias\":", "\"third.bias\":", "second.bias"},
      {"\"optimizer.exp_avg.first.bias\":", "\"a\":", "optimizer.exp_avg.first.bias"},
      {"\"optimizer.exp_avg_sq.second.weight\":", "\"a\":", "optimizer.exp_avg_sq.second.weight"},
      {"\"optimizer.counters\":", "\"a\":", "optimizer.counters"},
      {"\"optimizer.scalars\":", "\"a\":", "optimizer.scalars"},
      {"\"recipe.state\":", "\"a\":", "recipe.state"},
      {"\"tokens.position\":", "\"a\":", "tokens.position"},
      {"\"extra.rng\":", "\"a\":", "extra.rng"},
      {"\"extra.numbers\":{\"dtype\":\"BF16\"", "\"extra.numbers\":{\"dtype\":\"F16\"",
       "extra.numbers"},
      {"\"extra.rng\":{\"dtype\":\"I64\"", "\"extra.rng\":{\"dtype\":\"U64\"", "extra.rng"},
      {"\"shape\":[3,5]", "\"shape\":[5,3]", "extra.numbers"},
      {"\"shape\":[48,32]", "\"shape\":[32,48]", "weight"},
      {"\"optimizer.counters\":{\"dtype\":\"I32\"", "\"optimizer.counters\":{\"dtype\":\"F32\"",
       "optimizer.counters"},
      {"\"first.weight\":{\"dtype\":\"F32\"", "\"first.weight\":{\"dtype\":\"I32\"",
       "first.weight"},
      {"\"nvte.checkpoint\":\"1\"", "\"nvte.checkpoint\":\"2\"", "nvte.checkpoint"},
      {"\"nvte.checkpoint\"", "\"nvte.other\"", "nvte.checkpoint"},
      {"\"nvte.sha256\"", "\"nvte.sha257\"", "nvte.sha256"},
  };
  for (size_t i = 0; i < COUNT(changes); i++) {
    const Image image = image_with(&good, changes[i].from, changes[i].to);
    image_write(&image, bad);
    refused(&m, bad, NVTEX_INVALID_ARGUMENT, changes[i].part);
  }
  // The position of another loader, and a state of recipes that is damaged, with a digest that is
  // right.
  static const char *const places[] = {"tokens.position", "recipe.state"};
  for (size_t i = 0; i < COUNT(places); i++) {
    Image image = image_with(&good, "\"nvte.checkpoint\"", "\"nvte.checkpoint\"");
    const Stored s = stored(&image, places[i]);
    image.bytes[8 + header_length(&image) + s.begin + 9] ^= 1;
    image_seal(&image);
    image_write(&image, bad);
    refused(&m, bad, NVTEX_INVALID_ARGUMENT, i ? "" : "position");
  }
  refused(&m, in_folder("missing"), NVTEX_DEVICE_ERROR, "missing");
  refused(&m, g_folder, ANY_ERROR, g_folder);
  // What the config does not ask for is left alone.
  m.config.num_tensors = 1;
  m.config.loader = NULL;
  const void *numbers = buffer_read(m.extra);
  NVTEXTokenPosition position = {.struct_size = sizeof position}, now = position;
  nvtex_token_loader_position(m.loader, &position);
  load(&m, path);
  EXPECT_OK();
  nvtex_token_loader_position(m.loader, &now);
  CHECK(now.batches == position.batches && !memcmp(numbers, buffer_read(m.extra), m.extra->bytes),
        "it changed");
  end(&m);
}

static void damage(void) {
  if (!case_begin("Damage")) return;
  Model m = begin(&kAdam, 3);
  m.config.num_modules = 0;
  m.config.optimizer = NULL;
  const char *path = in_folder("model.safetensors"), *bad = in_folder("bad.safetensors");
  save(&m, path);
  EXPECT_OK();
  const Snapshot before = snapshot(&m, true);
  const Image good = image_read(path);
  load(&m, path);
  EXPECT_OK();
  for (size_t size = 0; size <= good.size + 1; size++) {
    if (size == good.size) continue;
    unsigned char *bytes = host_memory(good.size + 1);
    memcpy(bytes, good.bytes, good.size);
    file_write(bad, bytes, size);
    load(&m, bad);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, bad);
  }
  // Each bit, each byte inverted, and some other values.
  static const unsigned char masks[] = {1, 2, 4, 8, 16, 32, 64, 128, 255, 0x5A};
  for (size_t at = 0; at < good.size; at++) {
    for (size_t i = 0; i < COUNT(masks); i++) {
      good.bytes[at] ^= masks[i];
      image_write(&good, bad);
      good.bytes[at] ^= masks[i];
      load(&m, bad);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, bad);
    }
  }
  CHECK(same(before, snapshot(&m, true)), "the model changed");
  end(&m);
}

static void hostile(void) {
  if (!case_begin("Hostile headers")) return;
  Model m = begin(&kAdam, 3);
  const char *bad = in_folder("bad.safetensors");
#define T(dtype, shape, first, last) \
  "{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" first "," last "]}"
  static const char *const headers[] = {
      "", "{", "[]", "null", "3", "{}", "{\"a\":3}", "{\"a\":{}}", "{\"__metadata__\":3}",
      "{\"__metadata__\":{\"a\":{}}}", "{\"a\":" T("F32", "2", "0", "7") "}", "{\"a\":" T("F32", "2", "8", "16") "}",
      "{\"a\":" T("F32", "2", "8", "0") "}", "{\"a\":" T("F32", "2", "-8", "0") "}",
      "{\"a\":" T("F32", "-2", "0", "8") "}", "{\"a\":" T("F33", "2", "0", "8") "}",
      "{\"a\":" T("F32", "2", "0", "8") ",\"b\":" T("F32", "2", "4", "12") "}",
      "{\"a\":" T("F32", "2", "0", "8") ",\"b\":" T("F32", "1", "12", "16") "}",
      "{\"a\":" T("F32", "2", "0", "8") ",\"b\":" T("F32", "2", "0", "8") "}",
      "{\"a\":" T("F32", "4611686018427387904,4", "0", "16") "}",
      "{\"a\":" T("F32", "4611686018427387904", "0", "0") "}", "{\"a\":" T("U8", "18446744073709551615", "0", "16") "}",
      "{\"a\":" T("U8", "18446744073709551616", "0", "16") "}", "{\"a\":" T("F32", "2.5", "0", "10") "}",
      "{\"a\":" T("U8", "2305843009213693951", "0", "2305843009213693951") "}",
      // Lengths that add up to 2^64 - 8.
      "{\"a\":" T("U8", "2305843009213693951", "0", "2305843009213693951") ",\"b\":" T(
          "U8", "2305843009213693951", "2305843009213693951", "4611686018427387902") ",\"c\":" T(
          "U8", "2305843009213693951", "4611686018427387902", "6917529027641081853") ",\"d\":" T(
          "U8", "2305843009213693951", "6917529027641081853", "9223372036854775804") ",\"e\":" T(
          "U8", "2305843009213693951", "9223372036854775804", "11529215046068469755") ",\"f\":" T(
          "U8", "2305843009213693951", "11529215046068469755", "13835058055282163706") ",\"g\":" T(
          "U8", "2305843009213693951", "13835058055282163706", "16140901064495857657") ",\"h\":" T(
          "U8", "2305843009213693951", "16140901064495857657", "18446744073709551608") "}",
      "{\"a\":" T("F4", "1", "0", "1") "}", "{\"\xff\xfe\":" T("F32", "4", "0", "16") "}",
      "{\"a\xc0\x80\":" T("F32", "4", "0", "16") "}", "{\"\\ud800\":" T("F32", "4", "0", "16") "}",
      "{\"a\":" T("F32", "4", "0", "16") "} x", "{\"a\":" T("F32", "4", "0", "16") ",}",
      "{\"a\":" T("F32", "4", "0", "16") ",\"a\":" T("F32", "4", "0", "16") "}",
      "{\"__metadata__\":{\"nvte.sha256\":\"\"},\"a\":" T("F32", "4", "0", "16") "}",
      "{\"__metadata__\":{\"nvte.sha256\":\"00\",\"nvte.checkpoint\":\"1\"},\"a\":" T("F32", "4", "0", "16") "}",
      "{\"a\":" T("F32", "4", "0", "16") "}",
  };
#undef T
  const unsigned char data[16] = {0};
  for (size_t i = 0; i < COUNT(headers); i++) {
    const Image image = image_of(headers[i], strlen(headers[i]), data, sizeof data);
    image_write(&image, bad);
    refused(&m, bad, NVTEX_INVALID_ARGUMENT, bad);
  }
  // A length that the file does not have.
  static const uint64_t lengths[] = {
      1, 25, 100000001, (uint64_t)1 << 32, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7};
  for (size_t i = 0; i < COUNT(lengths); i++) {
    unsigned char bytes[32] = "........{}";
    memset(bytes + 10, ' ', sizeof bytes - 10);
    memcpy(bytes, &lengths[i], 8);
    file_write(bad, bytes, sizeof bytes);
    refused(&m, bad, NVTEX_INVALID_ARGUMENT, bad);
  }
  // Deep nesting, in places where a reader may skip or keep it.
  static const char *const begins[] = {
      "", "{\"a\":", "{\"__metadata__\":{\"a\":", "{\"a\":{\"dtype\":\"F32\",\"other\":",
      "{\"a\":{\"shape\":"};
  enum { DEPTH = 1 << 20 };
  char *deep = host_memory(DEPTH + 100);
  for (size_t i = 0; i < COUNT(begins); i++) {
    for (int kind = 0; kind < 2; kind++) {
      strcpy(deep, begins[i]);
      const size_t first = strlen(deep);
      for (size_t d = first; d < DEPTH; d++) deep[d] = kind ? "{\"a\":"[(d - first) % 5] : '[';
      deep[DEPTH] = 0;
      const Image image = image_of(deep, DEPTH, data, sizeof data);
      image_write(&image, bad);
      refused(&m, bad, NVTEX_INVALID_ARGUMENT, bad);
    }
  }
  end(&m);
}

// Parameters that modules share are there once, under their first name.
static void shared(void) {
  if (!case_begin("Shared parameters")) return;
  Model m =
      begin(&(Setup){"", kNVTEFloat32, kNVTEFloat32, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_FLOAT32}, 3);
  NVTEXModule row = nvtex_sequential_create(m.context, m.modules, NULL, 2);
  const NVTEXModule modules[] = {m.modules[0], row};
  EXPECT_OK();
  m.config.modules = modules;
  m.config.optimizer = NULL;
  m.config.loader = NULL;
  m.config.num_tensors = 0;
  const char *path = in_folder("shared.safetensors");
  nvtex_checkpoint_save(path, &m.config, NULL);
  EXPECT_OK();
  const Image image = image_read(path);
  const char *text = header_text(&image);
  CHECK_EQ(count_text(text, "\"data_offsets\""), 5);
  CHECK_EQ(count_text(text, "weight\""), 2);
  const Snapshot before = snapshot(&m, true);
  check_stored(&image, "first.weight", "F32", SHAPE(OUT, IN), basic_read(value(&m, 0)),
               4 * OUT * IN);
  for (size_t i = 0; i < PARAMETERS; i++) {
    upload(value(&m, i).data_ptr, host_memory(basic_bytes(value(&m, i))),
           basic_bytes(value(&m, i)));
  }
  CHECK(!same(before, snapshot(&m, true)), "nothing changed");
  nvtex_checkpoint_load(path, &m.config, NULL);
  EXPECT_OK();
  CHECK(same(before, snapshot(&m, true)), "the loaded model differs");
  nvtex_module_destroy(row);
  end(&m);
}

// A step count, but not all of the parameters that it is of, is half a checkpoint.
static void other_modules(void) {
  if (!case_begin("An optimizer over more modules")) return;
  Model m = begin(&kAdam, 3);
  m.config.num_modules = 1;
  save(&m, in_folder("half.safetensors"));
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "optimizer");
  end(&m);
}

// ---- Saves that fail

static void failed_saves(void) {
  if (!case_begin("Saves that fail")) return;
  folder_entries(g_folder, true);
  Model m = begin(&kAdam, 3);
  const char *path = in_folder("model.safetensors");
  save(&m, path);
  EXPECT_OK();
  const Image before = image_read(path);
  const size_t files = folder_entries(g_folder, false);
  train(&m, &kAdam, 1);
  save(&m, in_folder("missing/model.safetensors"));
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "missing");
  save(&m, in_folder("tokens/model.safetensors"));
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "tokens");
  CHECK(!mkdir(in_folder("folder"), 0500), "mkdir");
  save(&m, in_folder("folder"));
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "folder");
  // Root may write to every folder.
  if (geteuid() != 0) {
    save(&m, in_folder("folder/model.safetensors"));
    EXPECT_ERROR(NVTEX_DEVICE_ERROR, "folder");
  }
  CHECK(!rmdir(in_folder("folder")), "the folder is not empty");
  save(&m, "");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "path");
  save(&m, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "path");
  // A disk without room, after a part of the file.
  struct rlimit limit, small;
  getrlimit(RLIMIT_FSIZE, &limit);
  signal(SIGXFSZ, SIG_IGN);
  for (size_t size = 0; size < before.size; size += size ? before.size / 3 : 1) {
    small = limit;
    small.rlim_cur = size;
    setrlimit(RLIMIT_FSIZE, &small);
    save(&m, path);
    setrlimit(RLIMIT_FSIZE, &limit);
    EXPECT_ERROR(NVTEX_DEVICE_ERROR, "cannot write");
  }
  signal(SIGXFSZ, SIG_DFL);
  // Tensors that cannot be in a file.
  static const char *const twice[TENSORS] = {"rng", "rng"};
  m.config.names = twice;
  save(&m, path);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "extra.rng");
  m.config.names = kNames;
  const NVTETensor numbers = m.tensors[1];
  m.tensors[1] = tensor(m.extra->ptr, kNVTEFloat8E4M3, SHAPE(30));
  save(&m, path);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "numbers");
  m.tensors[1] = numbers;
  m.config.names = NULL;
  save(&m, path);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.names");
  m.config.names = kNames;
  const NVTEXModule second = m.modules[1];
  m.modules[1] = m.modules[0];
  save(&m, path);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "modules[1]");
  m.modules[1] = NULL;
  save(&m, path);
  EXPECT_ERROR(ANY_ERROR, "modules[1]");
  m.modules[1] = second;
  const Image after = image_read(path);
  CHECK(after.size == before.size && !memcmp(after.bytes, before.bytes, before.size),
        "the older file changed");
  CHECK_EQ(folder_entries(g_folder, false), files);
  save(&m, path);
  EXPECT_OK();
  CHECK_EQ(folder_entries(g_folder, false), files);
  end(&m);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  folder_begin();
  static const Setup setups[] = {
      {"AdamW, Float32", kNVTEFloat32, kNVTEFloat32, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_FLOAT32},
      {"AdamW, remainders", kNVTEBFloat16, kNVTEFloat32, NVTEX_UPDATE_ADAMW,
       NVTEX_MASTERS_REMAINDER},
      {"AdamW, no masters", kNVTEBFloat16, kNVTEBFloat16, NVTEX_UPDATE_ADAMW, NVTEX_MASTERS_NONE},
      {"AdamW, moments in FP8", kNVTEBFloat16, kNVTEFloat8E4M3, NVTEX_UPDATE_ADAMW,
       NVTEX_MASTERS_FLOAT32},
      {"SGD, Float16", kNVTEFloat16, kNVTEFloat32, NVTEX_UPDATE_SGD, NVTEX_MASTERS_FLOAT32},
  };
  round_trip(&kAdam);
  for (size_t i = 0; i < COUNT(setups); i++) round_trip(&setups[i]);
  other_dtypes();
  wrong_contents();
  damage();
  hostile();
  shared();
  other_modules();
  failed_saves();
  case_end();
  folder_end();
  return test_end();
}
