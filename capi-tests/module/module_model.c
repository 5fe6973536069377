// Embedding, head and modules in a row against their formulas in double, and what contexts tell of
// their memory.
#include "support.h"

enum { BATCH = 3, LENGTH = 5, ROWS = BATCH * LENGTH, HIDDEN = 8, VOCABULARY = 11, POSITIONS = 7 };
enum { TABLE, PLACES, WEIGHT, BIAS, HEAD, NUM_PARAMETERS };
static const size_t kCounts[] = {VOCABULARY * HIDDEN, POSITIONS *HIDDEN, HIDDEN *HIDDEN, HIDDEN,
                                 VOCABULARY *HIDDEN};
static const char *const kNames[] = {"in.weight", "in.position_weight", "1.weight", "1.bias",
                                     "out.weight"};

// An embedding, a linear layer and a head: logits of `scale * table[token] + places[position]`.
typedef struct Model {
  NVTEDType dtype, integers;
  bool tied, positions, accumulate, scaled_loss;
  float scale, smoothing, z_loss;
} Model;

typedef struct Values {
  double p[NUM_PARAMETERS][VOCABULARY * HIDDEN];
} Values;

static const long long kIgnored = -7;

typedef struct Data {
  long long tokens[ROWS], places[ROWS], targets[ROWS];
  double factor;
} Data;

static const double *head_of(const Model *m, const Values *v) {
  return v->p[m->tied ? TABLE : HEAD];
}

// Mean loss, logits, and gradients of `factor * loss`.
static double expect(const Model *m, const Data *d, const Values *v, double *logits, Values *g) {
  static double x[ROWS][HIDDEN], y[ROWS][HIDDEN];
  const double *head = head_of(m, v);
  memset(g, 0, sizeof *g);
  double loss = 0, count = 0;
  for (size_t r = 0; r < ROWS; r++) {
    for (size_t h = 0; h < HIDDEN; h++) {
      x[r][h] = m->scale * v->p[TABLE][(size_t)d->tokens[r] * HIDDEN + h] +
                (m->positions ? v->p[PLACES][(size_t)d->places[r] * HIDDEN + h] : 0);
    }
    for (size_t h = 0; h < HIDDEN; h++) {
      y[r][h] = v->p[BIAS][h];
      for (size_t i = 0; i < HIDDEN; i++) y[r][h] += x[r][i] * v->p[WEIGHT][h * HIDDEN + i];
    }
    for (size_t c = 0; c < VOCABULARY; c++) {
      logits[r * VOCABULARY + c] = 0;
      for (size_t h = 0; h < HIDDEN; h++)
        logits[r * VOCABULARY + c] += y[r][h] * head[c * HIDDEN + h];
    }
    count += d->targets[r] != kIgnored;
  }
  const double s = m->smoothing;
  for (size_t r = 0; r < ROWS; r++) {
    if (d->targets[r] == kIgnored) continue;
    const double *l = logits + r * VOCABULARY;
    double sum = 0, all = 0, dy[HIDDEN] = {0};
    for (size_t c = 0; c < VOCABULARY; c++) sum += exp(l[c]), all += l[c];
    const double lse = log(sum);
    loss +=
        (lse - (1 - s) * l[d->targets[r]] - s / VOCABULARY * all + m->z_loss * lse * lse) / count;
    for (size_t c = 0; c < VOCABULARY; c++) {
      const double target = (size_t)d->targets[r] == c ? 1 - s : 0;
      const double dl = d->factor / count *
                        (exp(l[c] - lse) * (1 + 2 * m->z_loss * lse) - target - s / VOCABULARY);
      for (size_t h = 0; h < HIDDEN; h++) {
        dy[h] += dl * head[c * HIDDEN + h];
        g->p[m->tied ? TABLE : HEAD][c * HIDDEN + h] += dl * y[r][h];
      }
    }
    for (size_t h = 0; h < HIDDEN; h++) {
      g->p[BIAS][h] += dy[h];
      for (size_t i = 0; i < HIDDEN; i++) {
        const double dx = dy[h] * v->p[WEIGHT][h * HIDDEN + i];
        g->p[WEIGHT][h * HIDDEN + i] += dy[h] * x[r][i];
        g->p[TABLE][(size_t)d->tokens[r] * HIDDEN + i] += m->scale * dx;
        g->p[PLACES][(size_t)d->places[r] * HIDDEN + i] += dx;
      }
    }
  }
  return loss;
}

static NVTETensor integers(NVTEDType dtype, const long long *values) {
  const size_t size = dtype == kNVTEInt32 ? 4 : 8;
  char *host = host_memory(ROWS * size);
  for (size_t i = 0; i < ROWS; i++) memcpy(host + i * size, &values[i], size);
  return tensor(buffer_from(host, ROWS * size, 0)->ptr, dtype, SHAPE(BATCH, LENGTH));
}

static NVTEXModule new_embedding(NVTEXContext context, const Model *m) {
  NVTEXEmbeddingConfig c;
  nvtex_embedding_config_init(&c, sizeof c);
  c.vocabulary_size = VOCABULARY;
  c.hidden_size = HIDDEN;
  c.max_positions = m->positions ? POSITIONS : 0;
  c.scale = m->scale;
  c.dtype = m->dtype;
  return nvtex_embedding_create(context, &c, NULL);
}

static NVTEXModule new_linear(NVTEXContext context, NVTEDType dtype) {
  NVTEXLinearConfig c;
  nvtex_linear_config_init(&c, sizeof c);
  c.in_features = c.out_features = HIDDEN;
  c.dtype = dtype;
  return nvtex_linear_create(context, &c, NULL);
}

static NVTEXModule new_head(NVTEXContext context, const Model *m, NVTEXModule embedding) {
  NVTEXLMHeadConfig c;
  nvtex_lm_head_config_init(&c, sizeof c);
  if (m->tied) {
    c.tied_to = embedding;
  } else {
    c.vocabulary_size = VOCABULARY;
    c.hidden_size = HIDDEN;
    c.dtype = m->dtype;
  }
  c.label_smoothing = m->smoothing;
  c.z_loss = m->z_loss;
  c.ignored_target = kIgnored;
  return nvtex_lm_head_create(context, &c, NULL);
}

static NVTEXModule new_model(NVTEXContext context, const Model *m) {
  NVTEXModule parts[3] = {new_embedding(context, m), new_linear(context, m->dtype)};
  parts[2] = new_head(context, m, parts[0]);
  const char *const names[] = {"in", NULL, "out"};
  NVTEXModule model = nvtex_sequential_create(context, parts, names, 3);
  for (int i = 0; i < 3; i++) nvtex_module_destroy(parts[i]);
  EXPECT_OK();
  return model;
}

static void compare(const char *what, NVTEDType dtype, const Buffer *got, const double *expected,
                    size_t count, double tolerance) {
  const void *values = buffer_read(got);
  double error = 0, size = 1e-30;
  for (size_t i = 0; i < count; i++) {
    const double d = get_value(dtype, values, i) - expected[i];
    error += d * d;
    size += expected[i] * expected[i];
  }
  CHECK(sqrt(error / size) <= tolerance, "%s: relative error %g", what, sqrt(error / size));
}

// Two steps: with `accumulate` gradients are those of both, otherwise those of the last one.
static void check_model(const Model *m) {
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXModule model = new_model(context, m);
  Values *v = host_memory(sizeof *v), *g = host_memory(sizeof *g);
  Buffer *grads[NUM_PARAMETERS] = {NULL};
  const size_t size = dtype_size(m->dtype);
  size_t index = 0;
  for (int p = 0; p < NUM_PARAMETERS; p++) {
    if ((p == PLACES && !m->positions) || (p == HEAD && m->tied)) continue;
    NVTEXParameter parameter = {.struct_size = sizeof parameter};
    nvtex_module_parameter(model, index, &parameter);
    EXPECT_OK();
    CHECK(strcmp(parameter.name, kNames[p]) == 0, "\"%s\"", parameter.name);
    CHECK_EQ(numel(parameter.shape), kCounts[p]);
    const void *values = random_values(m->dtype, kCounts[p], -0.7, 0.7);
    for (size_t i = 0; i < kCounts[p]; i++) v->p[p][i] = get_value(m->dtype, values, i);
    Buffer *from = buffer_from(values, kCounts[p] * size, 0);
    nvtex_module_assign_parameter(model, index, tensor(from->ptr, m->dtype, parameter.shape), NULL);
    grads[p] = buffer(kCounts[p] * sizeof(float));
    if (m->accumulate) nvte_memset(grads[p]->ptr, 0, kCounts[p] * sizeof(float), NULL);
    nvtex_module_set_gradient(model, index++, tensor(grads[p]->ptr, kNVTEFloat32, parameter.shape),
                              m->accumulate);
    EXPECT_OK();
  }
  CHECK_EQ(nvtex_module_num_parameters(model), index);

  Data d = {.factor = m->scaled_loss ? 8 : 1};
  for (size_t r = 0; r < ROWS; r++) {
    d.tokens[r] = (long long)random_below(VOCABULARY);
    // Places of their own with 64 bits, those in the sequences otherwise.
    d.places[r] = (long long)(m->integers == kNVTEInt64 ? random_below(POSITIONS) : r % LENGTH);
    d.targets[r] = r % 4 == 2 ? kIgnored : (long long)random_below(VOCABULARY);
  }
  double *logits = host_memory(ROWS * VOCABULARY * sizeof *logits);
  const double loss = expect(m, &d, v, logits, g);
  Buffer *got_loss = buffer(sizeof(float)), *got_logits = buffer(ROWS * VOCABULARY * size);
  const NVTETensor inputs[] = {
      integers(m->integers, d.tokens),
      m->positions && m->integers == kNVTEInt64 ? integers(m->integers, d.places) : NULL,
      integers(m->integers, d.targets),
      m->scaled_loss ? float_tensor(buffer_float((float)d.factor)) : NULL};
  const NVTETensor outputs[] = {
      float_tensor(got_loss), NULL,
      tensor(got_logits->ptr, m->dtype, SHAPE(BATCH, LENGTH, VOCABULARY))};
  for (int step = 0; step < 2; step++) {
    NVTEXTape tape = NULL;
    nvtex_module_forward(model, inputs, 4, outputs, step == 0 ? 3 : 1, NULL, &tape, NULL);
    nvtex_module_backward(model, tape, NULL, 0, NULL, 0, NULL);
    nvtex_tape_destroy(tape);
    EXPECT_OK();
  }
  const bool exact = m->dtype == kNVTEFloat32;
  const double tolerance = !exact ? 2e-2 : on_cuda() ? 2e-3 : 5e-6;
  compare("loss", kNVTEFloat32, got_loss, &loss, 1, tolerance);
  compare("logits", m->dtype, got_logits, logits, ROWS * VOCABULARY, tolerance);
  for (int p = 0; p < NUM_PARAMETERS; p++) {
    if (!grads[p]) continue;
    for (size_t i = 0; m->accumulate && i < kCounts[p]; i++) g->p[p][i] *= 2;
    compare(kNames[p], kNVTEFloat32, grads[p], g->p[p], kCounts[p], 2 * tolerance);
  }
  // Without a tape; logits alone need no targets.
  nvtex_module_forward(model, inputs, 2, (NVTETensor[]){NULL, NULL, outputs[2]}, 3, NULL, NULL,
                       NULL);
  EXPECT_OK();
  compare("logits alone", m->dtype, got_logits, logits, ROWS * VOCABULARY, tolerance);
  nvtex_module_forward(model, inputs, 3, outputs, 1, NULL, NULL, NULL);
  EXPECT_OK();
  compare("loss alone", kNVTEFloat32, got_loss, &loss, 1, tolerance);
  nvtex_module_destroy(model);
  nvtex_context_destroy(context);
}

static void cases_models(void) {
  for (int variant = 0; variant < 16; variant++) {
    Model m = {.dtype = variant & 1 ? kNVTEBFloat16 : kNVTEFloat32,
               .integers = variant & 2 ? kNVTEInt64 : kNVTEInt32,
               .tied = variant & 4,
               .accumulate = variant & 8,
               .positions = variant % 5 != 0,
               .scaled_loss = variant % 3 == 0,
               .scale = variant % 3 == 1 ? 2.5f : 1};
    if (variant % 7 > 3) m.smoothing = 0.2f, m.z_loss = 0.01f;
    if (case_begin("model %d, %s%s", variant, dtype_name(m.dtype), m.tied ? ", tied" : "")) {
      check_model(&m);
    }
  }
}

// Layers with dropout in a row against calls of each, whose random numbers are 128 apart.
static void case_row(void) {
  if (!case_begin("row of layers")) return;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXModule layers[3];
  for (int i = 0; i < 3; i++) {
    NVTEXTransformerLayerConfig c;
    nvtex_transformer_layer_config_init(&c, sizeof c);
    c.attention.num_attention_heads = 2;
    c.mlp.hidden_size = 32;
    c.mlp.ffn_hidden_size = 64;
    c.mlp.seed = (uint64_t)i;
    c.mlp.init_std = c.mlp.output_init_std = 0.3f;
    c.hidden_dropout = 0.25f;
    layers[i] = nvtex_transformer_layer_create(context, &c, NULL);
  }
  NVTEXModule inner = nvtex_sequential_create(context, layers, NULL, 2);
  NVTEXModule row = nvtex_sequential_create(context, (NVTEXModule[]){inner, layers[2]}, NULL, 2);
  EXPECT_OK();
  CHECK_EQ(nvtex_module_num_parameters(row), 3 * nvtex_module_num_parameters(layers[0]));
  NVTEXParameter last = {.struct_size = sizeof last};
  nvtex_module_parameter(row, nvtex_module_num_parameters(layers[0]), &last);
  CHECK(strcmp(last.name, "0.1.self_attention.layernorm_qkv.layer_norm_weight") == 0, "\"%s\"",
        last.name);
  enum { COUNT_OF = 4 * 2 * 32, BYTES = COUNT_OF * sizeof(float) };
  const NVTEShape shape = SHAPE(4, 2, 32);
  const void *values = random_values(kNVTEFloat32, COUNT_OF, -1, 1);
  NVTETensor t[10];
  Buffer *b[10];
  for (int i = 0; i < 10; i++) {
    b[i] = buffer_from(values, BYTES, 0);
    t[i] = tensor(b[i]->ptr, kNVTEFloat32, shape);
  }
  int64_t random[2] = {42, 1000};
  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  NVTEXTape tapes[4] = {NULL};
  for (int i = 0; i < 3; i++) {
    step.rng_state = tensor(buffer_from(random, sizeof random, 0)->ptr, kNVTEInt64, SHAPE(2));
    nvtex_module_forward(layers[i], &t[i], 1, &t[i + 1], 1, &step, &tapes[i], NULL);
    random[1] += 128;
  }
  random[1] = 1000;
  step.rng_state = tensor(buffer_from(random, sizeof random, 0)->ptr, kNVTEInt64, SHAPE(2));
  nvtex_module_forward(row, &t[0], 1, &t[4], 1, &step, &tapes[3], NULL);
  EXPECT_OK();
  CHECK(memcmp(buffer_read(b[3]), buffer_read(b[4]), BYTES) == 0, "outputs differ");
  CHECK(memcmp(buffer_read(b[3]), values, BYTES) != 0, "nothing was computed");
  for (int i = 2; i >= 0; i--) {
    nvtex_module_backward(layers[i], tapes[i], i == 2 ? &t[0] : &t[6 + i], 1, &t[5 + i], 1, NULL);
  }
  nvtex_module_backward(row, tapes[3], &t[0], 1, &t[8], 1, NULL);
  EXPECT_OK();
  CHECK(memcmp(buffer_read(b[5]), buffer_read(b[8]), BYTES) == 0, "gradients differ");
  for (int i = 0; i < 4; i++) nvtex_tape_destroy(tapes[i]);
  for (int i = 0; i < 3; i++) nvtex_module_destroy(layers[i]);
  nvtex_module_destroy(inner);
  nvtex_module_destroy(row);
  nvtex_context_destroy(context);
}

static void case_refusals(void) {
  if (!case_begin("refusals")) return;
  const Model m = {.dtype = kNVTEFloat32, .tied = true, .positions = true, .scale = 1};
  NVTEXContext context = nvtex_context_create(NULL), other = nvtex_context_create(NULL);
  NVTEXModule embedding = new_embedding(context, &m), linear = new_linear(context, kNVTEFloat32);
  NVTEXModule head = new_head(context, &m, embedding), foreign = new_linear(other, kNVTEFloat32);
  EXPECT_OK();
  CHECK(nvtex_sequential_create(context, NULL, NULL, 0) == NULL, "a row of nothing");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "count", "1 or more");
  NVTEXModule twice[] = {linear, linear}, two[] = {linear, foreign}, good[] = {embedding, linear};
  CHECK(nvtex_sequential_create(context, twice, NULL, 2) == NULL, "a module twice");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "modules[1]", "each module once");
  CHECK(nvtex_sequential_create(context, two, NULL, 2) == NULL, "a module of another context");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "modules[1]", "of this context");
  const char *const same[] = {"a", "a"}, *const dotted[] = {"a.b", "c"};
  CHECK(nvtex_sequential_create(context, good, same, 2) == NULL, "one name twice");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "names[1]", "differ");
  CHECK(nvtex_sequential_create(context, good, dotted, 2) == NULL, "a name with a dot");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "names[0]", "without dots");
  CHECK(new_head(context, &m, linear) == NULL, "tied to a linear layer");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.tied_to", "an embedding");
  CHECK(new_head(other, &m, embedding) == NULL, "tied to an embedding of another context");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.tied_to", "of this context");

  const size_t bytes = 64 * HIDDEN * sizeof(float);
  Buffer *x = buffer_from(host_memory(bytes), bytes, 0), *y = buffer(bytes);
  NVTETensor hidden = tensor(x->ptr, kNVTEFloat32, SHAPE(2, HIDDEN));
  NVTETensor loss = float_tensor(buffer_float(0)),
             out = tensor(y->ptr, kNVTEFloat32, SHAPE(8, HIDDEN));
  NVTETensor many = tensor(x->ptr, kNVTEInt32, SHAPE(POSITIONS + 1));
  nvtex_module_forward(embedding, &many, 1, &out, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "inputs[0].shape", "max_positions");
  nvtex_module_forward(embedding, &hidden, 1, &out, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "inputs[0]", "Int32 or Int64");
  nvtex_module_forward(head, &hidden, 1, &loss, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "inputs[1]", "targets");
  nvtex_module_forward(head, &hidden, 1, NULL, 0, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "outputs[0]", "logits");
  NVTETensor with_targets[] = {hidden, tensor(x->ptr, kNVTEInt32, SHAPE(2))};
  NVTEXTape tape = NULL;
  nvtex_module_forward(head, with_targets, 2, &loss, 1, NULL, &tape, NULL);
  EXPECT_OK();
  nvtex_module_backward(head, tape, &loss, 1, NULL, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "grad_outputs[0]", "inputs[2]");
  nvtex_tape_destroy(tape);
  CHECK(untouched(y), "a refused call wrote");
  NVTEXModule all[] = {embedding, linear, head, foreign};
  for (int i = 0; i < 4; i++) nvtex_module_destroy(all[i]);
  nvtex_context_destroy(context);
  nvtex_context_destroy(other);
}

static NVTEXMemoryUse memory_of(NVTEXContext context) {
  NVTEXMemoryUse use = {.struct_size = sizeof use};
  nvtex_context_memory(context, &use);
  EXPECT_OK();
  return use;
}

static void case_memory(void) {
  if (!case_begin("memory of a context")) return;
  const Model m = {.dtype = kNVTEFloat32, .tied = true, .scale = 1};
  NVTEXContext context = nvtex_context_create(NULL);
  CHECK_EQ(memory_of(context).most_at_once, 0);
  NVTEXModule model = new_model(context, &m);
  const NVTEXMemoryUse before = memory_of(context);
  const size_t parameters = (VOCABULARY + HIDDEN + 1) * HIDDEN * sizeof(float);
  CHECK(before.persistent >= parameters, "%zu bytes for %zu", before.persistent, parameters);
  CHECK_EQ(before.tape, 0);
  CHECK_EQ(before.scratch, 0);
  const long long zeros[ROWS] = {0};
  NVTETensor inputs[] = {integers(kNVTEInt32, zeros), NULL, integers(kNVTEInt32, zeros)};
  NVTETensor loss = float_tensor(buffer_float(0));
  NVTEXTape tape = NULL;
  nvtex_module_forward(model, inputs, 3, &loss, 1, NULL, &tape, NULL);
  const NVTEXMemoryUse during = memory_of(context);
  // Results of embedding and linear layer, and the gradient that the head has computed.
  CHECK(during.tape >= 3 * ROWS * HIDDEN * sizeof(float), "%zu bytes", during.tape);
  CHECK_EQ(during.scratch, 0);
  CHECK(during.most_scratch > 0 && during.most_at_once >= during.most_tape, "no maxima");
  nvtex_tape_destroy(tape);
  const NVTEXMemoryUse after = memory_of(context);
  CHECK_EQ(after.tape, 0);
  CHECK_EQ(after.most_tape, during.most_tape);
  CHECK(after.unused >= during.tape, "%zu bytes unused", after.unused);
  nvtex_module_destroy(model);
  CHECK(memory_of(context).persistent <= after.persistent - parameters, "parameters stay");
  nvtex_context_destroy(context);
  nvtex_context_memory(context, &(NVTEXMemoryUse){.struct_size = sizeof(NVTEXMemoryUse)});
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "context", "live");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  cases_models();
  case_row();
  case_refusals();
  case_memory();
  return test_end();
}
