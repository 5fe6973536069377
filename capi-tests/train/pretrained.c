// Weights from safetensors files that the test writes, with the rows in the order that the header
// says.
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"

enum {
  HIDDEN = 32,
  HEADS = 4,
  GROUPS = 2,
  DIM = HIDDEN / HEADS,
  FFN = 48,
  VOCABULARY = 40,
  LAYERS = 2,
  MOST = 32
};
enum { QUERIES = HEADS * DIM, KEYS = GROUPS * DIM, QKV = QUERIES + 2 * KEYS };

// ---- A model of the Llama family

typedef struct Setup {
  NVTEDType dtype, stored;
  bool bias, qk_norm, tied;
  const char *prefix;
} Setup;

typedef struct Model {
  NVTEXContext context;
  NVTEXModule layers[LAYERS], embedding, norm, head;
  NVTEXLlamaConfig config;
} Model;

static Model begin(const Setup *s) {
  Model m = {0};
  m.context = nvtex_context_create(NULL);
  for (size_t i = 0; i < LAYERS; i++) {
    NVTEXTransformerLayerConfig c;
    nvtex_transformer_layer_config_init(&c, sizeof c);
    c.name = i ? "second" : "first";
    c.attention.num_attention_heads = HEADS;
    c.attention.num_gqa_groups = GROUPS;
    c.attention.qk_norm_type = s->qk_norm ? NVTEX_QK_NORM_RMS : NVTEX_QK_NORM_NONE;
    c.mlp.norm.kind = RMSNorm;
    c.mlp.activation = SWIGLU;
    c.mlp.hidden_size = HIDDEN;
    c.mlp.ffn_hidden_size = FFN;
    c.mlp.bias = s->bias;
    c.mlp.dtype = s->dtype;
    m.layers[i] = nvtex_transformer_layer_create(m.context, &c, NULL);
  }
  NVTEXEmbeddingConfig e;
  nvtex_embedding_config_init(&e, sizeof e);
  e.name = "embedding";
  e.vocabulary_size = VOCABULARY;
  e.hidden_size = HIDDEN;
  e.dtype = s->dtype;
  m.embedding = nvtex_embedding_create(m.context, &e, NULL);
  NVTEXNormConfig n;
  nvtex_norm_config_init(&n, sizeof n);
  n.name = "norm";
  n.kind = RMSNorm;
  n.hidden_size = HIDDEN;
  n.dtype = s->dtype;
  m.norm = nvtex_norm_create(m.context, &n, NULL);
  NVTEXLMHeadConfig h;
  nvtex_lm_head_config_init(&h, sizeof h);
  h.name = "head";
  h.vocabulary_size = VOCABULARY;
  h.hidden_size = HIDDEN;
  h.dtype = s->dtype;
  m.head = nvtex_lm_head_create(m.context, &h, NULL);
  EXPECT_OK();
  nvtex_llama_config_init(&m.config, sizeof m.config);
  m.config.prefix = s->prefix;
  m.config.num_layers = LAYERS;
  m.config.num_attention_heads = HEADS;
  m.config.num_key_value_heads = GROUPS;
  m.config.embedding = m.embedding;
  m.config.norm = m.norm;
  m.config.head = m.head;
  return m;
}

static void end(Model *m) {
  for (size_t i = 0; i < LAYERS; i++) nvtex_module_destroy(m->layers[i]);
  nvtex_module_destroy(m->embedding);
  nvtex_module_destroy(m->norm);
  nvtex_module_destroy(m->head);
  nvtex_context_destroy(m->context);
  EXPECT_OK();
}

// ---- Its file

typedef struct Weights {
  Entry entries[64];
  size_t count;
} Weights;

static void put(Weights *w, NVTEDType dtype, size_t rows, size_t cols, const char *format,
                const char *prefix, size_t layer) {
  char *name = host_memory(128);
  snprintf(name, 128, "%s", prefix);
  if (layer < LAYERS) snprintf(name + strlen(name), 128 - strlen(name), "layers.%zu.", layer);
  strcat(name, format);
  const void *data = random_values(dtype, rows * (cols ? cols : 1), -2, 2);
  w->entries[w->count++] = (Entry){name, dtype, rows, cols, data};
}

static Weights weights_of(const Setup *s) {
  Weights w = {.count = 0};
  const char *prefix = s->prefix ? s->prefix : "model.";
  if (!s->tied) put(&w, s->stored, VOCABULARY, HIDDEN, "lm_head.weight", "", LAYERS);
  for (size_t i = LAYERS; i-- > 0;) {
    put(&w, s->stored, HIDDEN, FFN, "mlp.down_proj.weight", prefix, i);
    put(&w, s->stored, FFN, HIDDEN, "mlp.up_proj.weight", prefix, i);
    put(&w, s->stored, FFN, HIDDEN, "mlp.gate_proj.weight", prefix, i);
    put(&w, s->stored, HIDDEN, 0, "input_layernorm.weight", prefix, i);
    put(&w, s->stored, HIDDEN, 0, "post_attention_layernorm.weight", prefix, i);
    put(&w, s->stored, KEYS, HIDDEN, "self_attn.v_proj.weight", prefix, i);
    put(&w, s->stored, QUERIES, HIDDEN, "self_attn.q_proj.weight", prefix, i);
    put(&w, s->stored, KEYS, HIDDEN, "self_attn.k_proj.weight", prefix, i);
    put(&w, s->stored, HIDDEN, QUERIES, "self_attn.o_proj.weight", prefix, i);
    if (s->qk_norm) {
      put(&w, s->stored, DIM, 0, "self_attn.q_norm.weight", prefix, i);
      put(&w, s->stored, DIM, 0, "self_attn.k_norm.weight", prefix, i);
    }
    // Qwen has biases of queries, keys and values alone.
    if (s->bias) {
      put(&w, s->stored, QUERIES, 0, "self_attn.q_proj.bias", prefix, i);
      put(&w, s->stored, KEYS, 0, "self_attn.k_proj.bias", prefix, i);
      put(&w, s->stored, KEYS, 0, "self_attn.v_proj.bias", prefix, i);
    }
  }
  put(&w, s->stored, VOCABULARY, HIDDEN, "embed_tokens.weight", prefix, LAYERS);
  put(&w, s->stored, HIDDEN, 0, "norm.weight", prefix, LAYERS);
  return w;
}

static Entry *entry_of(Weights *w, const char *prefix, size_t layer, const char *suffix) {
  char name[128];
  snprintf(name, sizeof name, "%s", prefix ? prefix : "model.");
  if (layer < LAYERS) snprintf(name + strlen(name), 16, "layers.%zu.", layer);
  strcat(name, suffix);
  for (size_t i = 0; i < w->count; i++) {
    if (!strcmp(w->entries[i].name, name)) return &w->entries[i];
  }
  return NULL;
}

// ---- Comparisons

// Appends rows of a stored tensor, as numbers; zeros if there is none.
static double *append(double *to, const Entry *e, size_t first, size_t rows, size_t cols) {
  for (size_t i = 0; i < rows * cols; i++)
    *to++ = e ? get_value(e->dtype, e->data, first * cols + i) : 0;
  return to;
}

static void check_parameter(NVTEXModule module, size_t index, const double *expected,
                            size_t count) {
  const NVTEXParameter p = parameter_of(module, index);
  const NVTEBasicTensor value = value_of(module, index);
  if (!CHECK_EQ(numel(value.shape), count)) return;
  const void *got = basic_read(value);
  size_t bad = 0;
  for (size_t i = 0; i < count && bad < 3; i++) {
    bad += !CHECK(get_bits(value.dtype, got, i) == encode_bits(value.dtype, expected[i]),
                  "%s: element %zu: %g, expected %g", p.name, i, get_value(value.dtype, got, i),
                  expected[i]);
  }
}

static void check_whole(NVTEXModule module, size_t index, const Entry *e) {
  const size_t cols = e->cols ? e->cols : 1;
  double *expected = host_memory(e->rows * cols * sizeof *expected);
  append(expected, e, 0, e->rows, cols);
  check_parameter(module, index, expected, e->rows * cols);
}

static bool ends_with(const char *text, const char *end) {
  return strlen(text) >= strlen(end) && !strcmp(text + strlen(text) - strlen(end), end);
}

static void check_layer(const Model *m, const Setup *s, Weights *w, size_t layer) {
  const NVTEXModule module = m->layers[layer];
  unsigned found = 0;
  for (size_t i = 0; i < nvtex_module_num_parameters(module); i++) {
    const NVTEXParameter p = parameter_of(module, i);
    double *const expected = host_memory(numel(p.shape) * sizeof *expected), *to = expected;
    const bool bias = ends_with(p.name, "bias");
    const size_t cols = bias ? 1 : HIDDEN;
#define STORED(name) entry_of(w, s->prefix, layer, name)
    static const char *const whole[][2] = {
        {"qkv.layer_norm_weight", "input_layernorm.weight"},
        {"proj.weight", "self_attn.o_proj.weight"},
        {"mlp.layer_norm_weight", "post_attention_layernorm.weight"},
        {"mlp.fc2_weight", "mlp.down_proj.weight"},
        {"q_norm.weight", "self_attn.q_norm.weight"},
        {"k_norm.weight", "self_attn.k_norm.weight"}};
    if (ends_with(p.name, "qkv.weight") || ends_with(p.name, "qkv.bias")) {
      const Entry *q = STORED(bias ? "self_attn.q_proj.bias" : "self_attn.q_proj.weight");
      const Entry *k = STORED(bias ? "self_attn.k_proj.bias" : "self_attn.k_proj.weight");
      const Entry *v = STORED(bias ? "self_attn.v_proj.bias" : "self_attn.v_proj.weight");
      for (size_t g = 0; g < GROUPS; g++) {
        to = append(to, q, g * (QUERIES / GROUPS), QUERIES / GROUPS, cols);
        to = append(to, k, g * DIM, DIM, cols);
        to = append(to, v, g * DIM, DIM, cols);
      }
    } else if (ends_with(p.name, "fc1_weight") || ends_with(p.name, "fc1_bias")) {
      to = append(to, bias ? NULL : STORED("mlp.gate_proj.weight"), 0, FFN, cols);
      to = append(to, bias ? NULL : STORED("mlp.up_proj.weight"), 0, FFN, cols);
    } else if (bias || ends_with(p.name, "fc2_bias")) {
      to = append(to, NULL, 0, HIDDEN, 1);
    } else {
      for (size_t n = 0; n < COUNT(whole); n++) {
        if (!ends_with(p.name, whole[n][0])) continue;
        const Entry *e = STORED(whole[n][1]);
        to = append(to, e, 0, e->rows, e->cols ? e->cols : 1);
      }
    }
    check_parameter(module, i, expected, (size_t)(to - expected));
    found++;
#undef STORED
  }
  CHECK_EQ(found, 6 + (s->qk_norm ? 2 : 0) + (s->bias ? 4 : 0));
}

static void check_model(const Model *m, const Setup *s, Weights *w) {
  for (size_t i = 0; i < LAYERS; i++) check_layer(m, s, w, i);
  const Entry *embedding = entry_of(w, s->prefix, LAYERS, "embed_tokens.weight");
  check_whole(m->embedding, 0, embedding);
  check_whole(m->norm, 0, entry_of(w, s->prefix, LAYERS, "norm.weight"));
  check_whole(m->head, 0, s->tied ? embedding : &w->entries[0]);
}

// The bytes of all parameters, one behind the other.
static unsigned char *all_values(const Model *m, size_t *bytes) {
  const NVTEXModule modules[] = {m->layers[0], m->layers[1], m->embedding, m->norm, m->head};
  unsigned char *all = host_memory(1 << 20);
  *bytes = 0;
  for (size_t i = 0; i < COUNT(modules); i++) {
    for (size_t p = 0; p < nvtex_module_num_parameters(modules[i]); p++) {
      const NVTEBasicTensor value = value_of(modules[i], p);
      memcpy(all + *bytes, basic_read(value), basic_bytes(value));
      *bytes += basic_bytes(value);
    }
  }
  return all;
}

static void load(Model *m, const char *path) {
  m->config.layers = m->layers;
  nvtex_llama_load(path, &m->config, NULL, NULL);
}

static void llama(const Setup *s) {
  if (!case_begin("Llama, %s from %s, bias %d, norms of heads %d, tied %d, prefix %s",
                  dtype_name(s->dtype), dtype_name(s->stored), s->bias, s->qk_norm, s->tied,
                  s->prefix ? s->prefix : "none")) {
    return;
  }
  Model m = begin(s);
  Weights w = weights_of(s);
  const char *path = in_folder("llama.safetensors");
  write_entries(path, w.entries, w.count);
  load(&m, path);
  if (EXPECT_OK()) check_model(&m, s, &w);
  end(&m);
}

static const Setup kPlain = {kNVTEFloat32, kNVTEFloat32, false, false, false, NULL};

// A folder with one file, and one with an index of two.
static void folders(void) {
  if (!case_begin("Folders")) return;
  Weights w = weights_of(&kPlain);
  const char *folder = in_folder("model");
  CHECK(!mkdir(folder, 0700), "mkdir");
  write_entries(in_folder("model/model.safetensors"), w.entries, w.count);
  Model m = begin(&kPlain);
  load(&m, folder);
  if (EXPECT_OK()) check_model(&m, &kPlain, &w);
  end(&m);
  CHECK(!unlink(in_folder("model/model.safetensors")), "unlink");

  const size_t half = w.count / 2;
  write_entries(in_folder("model/a.safetensors"), w.entries, half);
  write_entries(in_folder("model/b.safetensors"), w.entries + half, w.count - half);
  const char *path = in_folder("model/model.safetensors.index.json");
  static const char *const places[] = {
      "b.safetensors", "../model/b.safetensors", "missing.safetensors", "a.safetensors", "..", ""};
  m = begin(&kPlain);
  for (size_t i = COUNT(places); i-- > 0;) {
    char *index = host_memory(1 << 14);
    size_t used = (size_t)sprintf(index, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (size_t e = 0; e < w.count; e++) {
      used += (size_t)sprintf(index + used, "%s\"%s\": \"%s\"", e ? ", " : "", w.entries[e].name,
                              e < half ? "a.safetensors" : places[i]);
    }
    used += (size_t)sprintf(index + used, "}}");
    file_write(path, index, used);
    load(&m, i % 2 ? path : folder);
    if (i > 0) {
      EXPECT_ERROR(i == 2 ? NVTEX_DEVICE_ERROR : NVTEX_INVALID_ARGUMENT, "model");
    } else if (EXPECT_OK()) {
      check_model(&m, &kPlain, &w);
    }
  }
  static const char *const damaged[] = {"",
                                        "{",
                                        "[]",
                                        "{}",
                                        "{\"weight_map\": 3}",
                                        "{\"weight_map\": {\"a\": 3}}",
                                        "{\"weight_map\": {}}"};
  for (size_t i = 0; i < COUNT(damaged); i++) {
    file_write(path, damaged[i], strlen(damaged[i]));
    load(&m, folder);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "model");
  }
  CHECK(!unlink(path), "unlink");
  load(&m, folder);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "model");
  end(&m);
  folder_entries(folder, true);
  rmdir(folder);
}

// Each tensor missing, of another shape, and of another dtype: an error with its name, and nothing
// changes.
static void wrong_tensors(void) {
  if (!case_begin("Wrong tensors")) return;
  Model m = begin(&kPlain);
  Weights w = weights_of(&kPlain);
  const char *path = in_folder("wrong.safetensors");
  size_t bytes;
  const unsigned char *before = all_values(&m, &bytes);
  for (size_t i = 0; i < w.count; i++) {
    const Entry good = w.entries[i];
    // Without a head of its own a model has the embedding's weight.
    const char *stem = strrchr(good.name, '.');
    const size_t stem_length = (size_t)(stem - good.name);
    char *name = host_memory(128);
    memcpy(name, good.name, stem_length);
    for (int kind = i == 0 ? 1 : 0; kind < 6; kind++) {
      Entry *e = &w.entries[i];
      static const char *const kinds[] = {"missing",          "a row less",
                                          "a row more",       "another dtype",
                                          "a dimension more", "the bytes in another shape"};
      switch (kind) {
        case 0:
          e->name = "other";
          break;
        case 1:
          e->rows--;
          break;
        case 2:
          e->rows++;
          e->data = host_memory(entry_bytes(e));
          break;
        case 3:
          e->dtype = kNVTEInt32;
          break;
        case 4:
          if (good.cols) continue;
          e->cols = 1;
          break;
        default:
          if (!good.cols) continue;
          e->cols *= 2;
          e->rows /= 2;
      }
      write_entries(path, w.entries, w.count);
      load(&m, path);
      CHECK(nvtex_last_status() != NVTEX_OK, "%s: %s was read", good.name, kinds[kind]);
      if (nvtex_last_status() != NVTEX_OK) EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, path, name);
      size_t now;
      CHECK(!memcmp(all_values(&m, &now), before, bytes), "%s: %s: parameters changed", good.name,
            kinds[kind]);
      if (memcmp(all_values(&m, &now), before, bytes)) before = all_values(&m, &now);
      *e = good;
    }
  }
  write_entries(path, w.entries, w.count);
  m.config.num_attention_heads = 3;
  load(&m, path);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.num_attention_heads", "got 3");
  m.config.num_attention_heads = 0;
  load(&m, path);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.num_attention_heads");
  m.config.num_attention_heads = HEADS;
  m.config.num_key_value_heads = HEADS;
  load(&m, path);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.num_key_value_heads", "got 4");
  // As many rows of each kind as two heads of 16 elements with one of keys would have.
  m.config.num_attention_heads = HEADS / 2;
  m.config.num_key_value_heads = GROUPS / 2;
  load(&m, path);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.num_attention_heads", "expected 4");
  m.config.num_attention_heads = HEADS;
  m.config.num_key_value_heads = GROUPS;
  m.config.norm = (NVTEXModule)(void *)m.context;
  load(&m, path);
  EXPECT_ERROR(ANY_ERROR, "config.norm");
  m.config.norm = m.norm;
  load(&m, path);
  if (EXPECT_OK()) check_model(&m, &kPlain, &w);
  end(&m);
}

// ---- A table of the program

static NVTEXModule linear(NVTEXContext context, NVTEDType dtype) {
  NVTEXLinearConfig c;
  nvtex_linear_config_init(&c, sizeof c);
  c.name = "linear";
  c.in_features = 8;
  c.out_features = 12;
  c.dtype = dtype;
  return nvtex_linear_create(context, &c, NULL);
}

static void table(NVTEDType dtype, NVTEDType from, bool with_optimizer) {
  if (!case_begin("Table, %s from %s%s", dtype_name(dtype), dtype_name(from),
                  with_optimizer ? ", masters" : ""))
    return;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXModule module = linear(context, dtype);
  NVTEXOptimizer optimizer = NULL;
  if (with_optimizer) optimizer = nvtex_optimizer_create(context, NULL, &module, 1, NULL);
  EXPECT_OK();
  const Entry entries[] = {
      {"a", from, 9, 8, random_values(from, 72, -2, 2)},
      {"b", from, 7, 8, random_values(from, 56, -2, 2)},
      {"bias", from, 12, 0, random_values(from, 12, -2, 2)},
      {"integers", kNVTEInt32, 12, 8, host_memory(12 * 8 * 4)},
      {"none", from, 0, 8, ""},
  };
  const char *path = in_folder("table.safetensors");
  write_entries(path, entries, COUNT(entries));
  const NVTEXSourceRows weight_rows[] = {
      {"b", 5, 0}, {"none", 0, 0}, {"a", 2, 3}, {"a", 0, 1}, {"b", 1, 6}};
  const NVTEXSourceRows bias_rows[] = {{"bias", 6, 6}, {"bias", 0, 6}};
  const NVTEXPretrainedParameter parameters[] = {{module, 1, bias_rows, 2},
                                                 {module, 0, weight_rows, 5}};
  nvtex_pretrained_load(path, parameters, 2, optimizer, NULL);
  if (EXPECT_OK()) {
    double expected[2][96], *to = expected[0];
    to = append(to, &entries[1], 5, 2, 8);
    to = append(to, &entries[0], 2, 3, 8);
    to = append(to, &entries[0], 0, 1, 8);
    to = append(to, &entries[1], 1, 6, 8);
    CHECK_EQ(to - expected[0], 96);
    to = append(expected[1], &entries[2], 6, 6, 1);
    append(to, &entries[2], 0, 6, 1);
    check_parameter(module, 0, expected[0], 96);
    check_parameter(module, 1, expected[1], 12);
    for (size_t i = 0; optimizer && i < 2; i++) {
      NVTEXOptimizerParameter p = {.struct_size = sizeof p};
      nvtex_optimizer_parameter(optimizer, i, &p);
      if (!p.master.data_ptr) continue;
      const float *master = basic_read(p.master);
      for (size_t e = 0; e < numel(p.master.shape); e++)
        CHECK_FLOAT(master[e], (float)expected[i][e]);
    }
  }
  const struct {
    NVTEXSourceRows rows;
    const char *part;
  } wrong[] = {{{"missing", 0, 0}, "missing"},
               {{"integers", 0, 0}, "integers"},
               {{"a", 0, 0}, "a"},
               {{"a", 0, 12}, "a"},
               {{"a", 10, 0}, "a"},
               {{"a", SIZE_MAX, 2}, "a"},
               {{"b", 1, SIZE_MAX}, "b"},
               {{"bias", 0, 12}, "bias"},
               {{"none", 0, 0}, "none"},
               {{NULL, 0, 12}, "name"}};
  const void *before = basic_read(value_of(module, 0)), *bias = basic_read(value_of(module, 1));
  for (size_t i = 0; i < COUNT(wrong); i++) {
    // A good parameter comes first, which must not change either.
    const NVTEXSourceRows other[] = {{"bias", 0, 12}};
    const NVTEXPretrainedParameter both[] = {{module, 1, other, 1}, {module, 0, &wrong[i].rows, 1}};
    nvtex_pretrained_load(path, both, 2, optimizer, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, wrong[i].part);
    CHECK(!memcmp(before, basic_read(value_of(module, 0)), 96 * dtype_size(dtype)),
          "the weight changed");
    CHECK(!memcmp(bias, basic_read(value_of(module, 1)), 12 * dtype_size(dtype)),
          "the bias changed");
  }
  const NVTEXPretrainedParameter bad[] = {{module, 2, bias_rows, 2},
                                          {NULL, 0, bias_rows, 2},
                                          {module, 1, NULL, 2},
                                          {module, 1, bias_rows, 0}};
  static const char *const parts[] = {"index", "module", "rows", "rows"};
  for (size_t i = 0; i < COUNT(bad); i++) {
    nvtex_pretrained_load(path, &bad[i], 1, optimizer, NULL);
    EXPECT_ERROR(ANY_ERROR, parts[i]);
  }
  nvtex_pretrained_load(path, NULL, 1, optimizer, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "parameters");
  nvtex_pretrained_load(NULL, parameters, 2, optimizer, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "path");
  nvtex_pretrained_load(in_folder("nothing"), parameters, 2, optimizer, NULL);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "nothing");
  // Cut off at every length.
  const Image image = image_read(path);
  for (size_t size = 0; size < image.size; size++) {
    file_write(path, image.bytes, size);
    nvtex_pretrained_load(path, parameters, 2, optimizer, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, path);
  }
  nvtex_optimizer_destroy(optimizer);
  nvtex_module_destroy(module);
  nvtex_context_destroy(context);
  EXPECT_OK();
}

// ---- config.json

// Writes a config with one text in place of another.
static void write_config(const char *path, const char *from, const char *to) {
  char text[2048];
  const int length =
      snprintf(text, sizeof text,
               "{\"model_type\": \"qwen3\", \"hidden_act\": \"silu\", \"vocab_size\": %d, "
               "\"hidden_size\": %d, "
               "\"intermediate_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
               "\"num_key_value_heads\": %d, \"head_dim\": %d, \"max_position_embeddings\": 4096, "
               "\"rms_norm_eps\": 0.25, \"rope_theta\": 500000.0, \"rope_scaling\": null, "
               "\"sliding_window\": 99, \"use_sliding_window\": false, \"attention_bias\": false, "
               "\"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}",
               VOCABULARY, HIDDEN, FFN, LAYERS, HEADS, GROUPS, DIM);
  char *at = from ? strstr(text, from) : NULL;
  CHECK(from == NULL || at != NULL, "%s is not in the config", from);
  if (at == NULL) {
    file_write(path, text, (size_t)length);
    return;
  }
  char changed[2200];
  snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  file_write(path, changed, strlen(changed));
}

static NVTEXLlamaSizes sizes_of(const char *path) {
  NVTEXLlamaSizes sizes;
  memset(&sizes, 0x5a, sizeof sizes);
  sizes.struct_size = sizeof sizes;
  nvtex_llama_sizes(path, &sizes);
  return sizes;
}

static void configs(void) {
  if (!case_begin("config.json")) return;
  const char *folder = in_folder("sizes"), *path = in_folder("sizes/config.json");
  CHECK(!mkdir(folder, 0700), "mkdir");
  sizes_of(folder);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "sizes/config.json");
  sizes_of(in_folder("no such model"));
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "no such model/config.json");
  write_config(path, NULL, NULL);
  const char *paths[] = {folder, path, in_folder("sizes/model.safetensors")};
  for (size_t i = 0; i < COUNT(paths); i++) {
    const NVTEXLlamaSizes s = sizes_of(paths[i]);
    EXPECT_OK();
    CHECK_EQ(s.vocabulary_size, VOCABULARY);
    CHECK_EQ(s.hidden_size, HIDDEN);
    CHECK_EQ(s.ffn_hidden_size, FFN);
    CHECK_EQ(s.num_layers, LAYERS);
    CHECK_EQ(s.num_attention_heads, HEADS);
    CHECK_EQ(s.num_key_value_heads, GROUPS);
    CHECK_EQ(s.head_dim, DIM);
    CHECK_EQ(s.max_positions, 4096);
    CHECK_EQ(s.sliding_window, 0);
    CHECK_FLOAT(s.norm_epsilon, 0.25f);
    CHECK_FLOAT(s.rotary_base, 500000.0f);
    CHECK_FLOAT(s.rotary_factor, 1.0f);
    CHECK(!s.bias && s.qk_norm && s.tied_embeddings, "flags");
    CHECK_EQ(s.dtype, kNVTEBFloat16);
  }
  // What other models and other versions of the format say.
  write_config(path, "qwen3", "qwen2");
  CHECK(!sizes_of(folder).qk_norm && !sizes_of(folder).bias, "norms of heads, or biases, of Qwen2");
  write_config(path, "\"attention_bias\": false, ", "");
  CHECK(!sizes_of(folder).bias, "biases of Qwen3");
  write_config(path, "\"use_sliding_window\": false", "\"use_sliding_window\": true");
  CHECK_EQ(sizes_of(folder).sliding_window, 99);
  write_config(path, "\"head_dim\": 8, ", "");
  CHECK_EQ(sizes_of(folder).head_dim, DIM);
  write_config(path, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": null");
  CHECK_EQ(sizes_of(folder).num_key_value_heads, HEADS);
  write_config(path, "\"rope_scaling\": null",
               "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}");
  CHECK_FLOAT(sizes_of(folder).rotary_factor, 4.0f);
  write_config(path, "\"rope_theta\": 500000.0, \"rope_scaling\": null",
               "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1000000}");
  CHECK_FLOAT(sizes_of(folder).rotary_base, 1e6f);
  EXPECT_OK();
  static const struct {
    const char *from, *to, *name;
    int status;
  } refused[] = {
      {"qwen3", "gemma", "model_type", NVTEX_UNSUPPORTED},
      {"silu", "gelu", "hidden_act", NVTEX_UNSUPPORTED},
      {"\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"llama3\"}", "rope_scaling",
       NVTEX_UNSUPPORTED},
      {"\"hidden_size\"", "\"other\"", "hidden_size", NVTEX_INVALID_ARGUMENT},
      {"\"hidden_size\": 32", "\"hidden_size\": -3", "hidden_size", NVTEX_INVALID_ARGUMENT},
      {"\"hidden_size\": 32", "\"hidden_size\": 1e3", "hidden_size", NVTEX_INVALID_ARGUMENT},
      {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 0", "num_hidden_layers",
       NVTEX_INVALID_ARGUMENT},
      {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "num_key_value_heads",
       NVTEX_INVALID_ARGUMENT},
      {"0.25", "-1", "rms_norm_eps", NVTEX_INVALID_ARGUMENT},
      {"true", "1", "tie_word_embeddings", NVTEX_INVALID_ARGUMENT},
      {"}", "", "config.json", NVTEX_INVALID_ARGUMENT},
  };
  for (size_t i = 0; i < COUNT(refused); i++) {
    write_config(path, refused[i].from, refused[i].to);
    const NVTEXLlamaSizes s = sizes_of(folder);
    EXPECT_ERROR(refused[i].status, "config.json", refused[i].name);
    CHECK_EQ(s.hidden_size, 0x5a5a5a5a5a5a5a5a);
  }
  folder_entries(folder, true);
  rmdir(folder);
}

// A model by its folder alone has the weights that one of the program's own modules gets from it.
static void whole_model(const Setup *s, const char *from, const char *to) {
  if (!case_begin("Model of a folder, %s, norms of heads %d", dtype_name(s->dtype), s->qk_norm))
    return;
  const char *folder = in_folder("whole");
  CHECK(!mkdir(folder, 0700), "mkdir");
  Weights w = weights_of(s);
  write_entries(in_folder("whole/model.safetensors"), w.entries, w.count);
  write_config(in_folder("whole/config.json"), from, to);
  Model m = begin(s);
  m.config.num_attention_heads = m.config.num_key_value_heads = 0; /* as the layers have them */
  load(&m, folder);
  if (EXPECT_OK()) check_model(&m, s, &w);
  NVTEXModule whole = nvtex_llama_create(m.context, folder, s->dtype, NULL);
  if (EXPECT_OK()) {
    const NVTEXModule own[] = {m.embedding, m.layers[0], m.layers[1], m.norm, m.head};
    size_t index = 0;
    for (size_t i = 0; i < COUNT(own) - s->tied; i++) {
      for (size_t p = 0; p < nvtex_module_num_parameters(own[i]); p++, index++) {
        const NVTEBasicTensor a = value_of(own[i], p), b = value_of(whole, index);
        const char *name = parameter_of(whole, index).name;
        CHECK(ends_with(name, parameter_of(own[i], p).name), "%s", name);
        CHECK(a.dtype == b.dtype && basic_bytes(a) == basic_bytes(b) &&
                  !memcmp(basic_read(a), basic_read(b), basic_bytes(a)),
              "%s differs", name);
      }
    }
    CHECK_EQ(nvtex_module_num_parameters(whole), index);
    const int32_t tokens[] = {3, 1, 4, 1, 5};
    NVTETensor in = tensor(buffer_from(tokens, sizeof tokens, 0)->ptr, kNVTEInt32, SHAPE(1, 5));
    Buffer *logits = buffer(5 * VOCABULARY * dtype_size(s->dtype));
    const NVTETensor out[] = {NULL, NULL, tensor(logits->ptr, s->dtype, SHAPE(5, VOCABULARY))};
    nvtex_module_forward(whole, &in, 1, out, 3, NULL, NULL, NULL);
    EXPECT_OK();
  }
  nvtex_module_destroy(whole);
  // Heads are not in the shapes: a config that has others is not for these layers.
  write_config(in_folder("whole/config.json"),
               "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8",
               "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 16");
  load(&m, folder);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.num_attention_heads", "config.json");
  CHECK(nvtex_llama_create(m.context, in_folder(""), s->dtype, NULL) == NULL, "no folder");
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "config.json");
  if (s->qk_norm) {  // which the config asks for
    write_config(in_folder("whole/config.json"), "\"vocab_size\": 40", "\"vocab_size\": 41");
    CHECK(nvtex_llama_create(m.context, folder, s->dtype, NULL) == NULL, "another vocabulary");
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "embed_tokens");
  }
  end(&m);
  folder_entries(folder, true);
  rmdir(folder);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  folder_begin();
  static const Setup setups[] = {
      {kNVTEFloat32, kNVTEFloat32, false, false, false, NULL},
      {kNVTEFloat32, kNVTEBFloat16, true, false, false, NULL},
      {kNVTEBFloat16, kNVTEBFloat16, false, true, true, NULL},
      {kNVTEBFloat16, kNVTEFloat32, true, true, false, ""},
      {kNVTEFloat16, kNVTEFloat16, false, false, true, "language_model.model."},
  };
  for (size_t i = 0; i < COUNT(setups); i++) llama(&setups[i]);
  folders();
  wrong_tensors();
  configs();
  whole_model(&(Setup){kNVTEFloat32, kNVTEBFloat16, false, true, true, NULL}, NULL, NULL);
  whole_model(&(Setup){kNVTEBFloat16, kNVTEBFloat16, false, false, false, NULL},
              "\"tie_word_embeddings\": true",
              "\"tie_word_embeddings\": false, \"model_type\": \"llama\"");
  for (size_t i = 0; i < COUNT(kHighPrecision); i++) {
    for (size_t j = 0; j < COUNT(kHighPrecision); j++) {
      table(kHighPrecision[i], kHighPrecision[j], false);
      table(kHighPrecision[i], kHighPrecision[j], true);
    }
  }
  case_end();
  folder_end();
  return test_end();
}
