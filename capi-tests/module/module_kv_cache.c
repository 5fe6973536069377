// Generation through a cache of keys and values: pieces of sequences, in steps of any size, against
// one pass over each whole sequence without a cache.
#include "support.h"

enum { LAYERS = 2, SEQUENCES = 4, MOST = 24, HIDDEN = 32, HEADS = 4, FFN = 48 };

typedef struct Setup {
  NVTEDType dtype;
  NVTE_QKV_Format format;
  size_t groups, rotary, page, pages;
  int64_t window;
  NVTE_Softmax_Type softmax;
  bool decoder;
  NVTEXQKNorm qk_norm;
  size_t multiple;  // Rows of a sequence in a pass.
} Setup;

typedef struct Model {
  Setup setup;
  NVTEXContext context;
  NVTEXModule layers[LAYERS];
  NVTEXKVCache cache;
  NVTEXStep step;
  double *tokens[SEQUENCES];    // Inputs, MOST rows of each.
  double *expected[SEQUENCES];  // Results of one pass over the whole sequence.
  NVTETensor memory;
} Model;

static const Setup kPlain = {.dtype = kNVTEFloat32,
                             .format = NVTE_BSHD,
                             .groups = HEADS,
                             .page = 0,
                             .window = -1,
                             .softmax = NVTE_VANILLA_SOFTMAX,
                             .multiple = 1};

static NVTEXModule new_layer(const Model *m, size_t index) {
  NVTEXTransformerLayerConfig c;
  nvtex_transformer_layer_config_init(&c, sizeof c);
  c.attention.num_attention_heads = HEADS;
  c.attention.num_gqa_groups = m->setup.groups;
  c.attention.qkv_format = m->setup.format;
  c.attention.window_size_left = m->setup.window;
  c.attention.softmax_type = m->setup.softmax;
  if (m->setup.format == NVTE_THD) c.attention.attn_mask_type = NVTE_PADDING_CAUSAL_MASK;
  c.attention.qk_norm_type = m->setup.qk_norm;
  c.attention.dtype = c.mlp.dtype = m->setup.dtype;
  c.mlp.hidden_size = HIDDEN;
  c.mlp.ffn_hidden_size = FFN;
  c.mlp.init_std = c.mlp.output_init_std = 0.2f;
  c.mlp.seed = index + 1;
  c.decoder = m->setup.decoder;
  return nvtex_transformer_layer_create(m->context, &c, NULL);
}

// Packed tokens have the shape of a batch of 1.
static NVTEShape shape_in(const Model *m, size_t batch, size_t length) {
  if (m->setup.format == NVTE_THD) return SHAPE(batch * length, HIDDEN);
  return m->setup.format == NVTE_SBHD ? SHAPE(length, batch, HIDDEN) : SHAPE(batch, length, HIDDEN);
}

static size_t row_in(const Model *m, size_t batch, size_t length, size_t b, size_t s) {
  return m->setup.format == NVTE_SBHD ? s * batch + b : b * length + s;
}

// A pass of all layers over rows `x`. The cache is that of m->step.
static double *pass(Model *m, size_t batch, size_t length, const double *x) {
  const NVTEDType dtype = m->setup.dtype;
  const size_t count = batch * length * HIDDEN;
  void *host = host_memory(count * dtype_size(dtype));
  for (size_t i = 0; i < count; i++) put_value(dtype, host, i, x[i]);
  NVTETensor in = tensor(buffer_from(host, count * dtype_size(dtype), 0)->ptr, dtype,
                         shape_in(m, batch, length));
  Buffer *result = NULL;
  for (size_t i = 0; i < LAYERS; i++) {
    result = buffer(count * dtype_size(dtype));
    NVTETensor ins[2] = {in, m->memory};
    if (m->setup.decoder) {
      // Each sequence has the same memory.
      ins[1] = tensor(nvte_tensor_data(m->memory), dtype, shape_in(m, batch, 3));
    }
    NVTETensor out = tensor(result->ptr, dtype, shape_in(m, batch, length));
    nvtex_module_forward(m->layers[i], ins, m->setup.decoder ? 2 : 1, &out, 1, &m->step, NULL,
                         NULL);
    if (nvtex_last_status() != NVTEX_OK) return NULL;
    in = out;
  }
  const void *values = buffer_read(result);
  double *y = host_memory(count * sizeof *y);
  for (size_t i = 0; i < count; i++) y[i] = get_value(dtype, values, i);
  return y;
}

static void destroy(Model *m) {
  nvtex_kv_cache_destroy(m->cache);
  for (size_t i = 0; i < LAYERS; i++) nvtex_module_destroy(m->layers[i]);
  nvtex_context_destroy(m->context);
  EXPECT_OK();
}

static void new_cache(Model *m) {
  NVTEXKVCacheConfig c;
  nvtex_kv_cache_config_init(&c, sizeof c);
  c.max_batch_size = SEQUENCES;
  c.max_sequence_length = MOST;
  c.page_size = m->setup.page;
  c.num_pages = m->setup.pages;
  m->cache = nvtex_kv_cache_create(m->context, &c, NULL);
  EXPECT_OK();
}

static bool begin(Model *m, const Setup *setup) {
  memset(m, 0, sizeof *m);
  m->setup = *setup;
  m->context = nvtex_context_create(NULL);
  for (size_t i = 0; i < LAYERS; i++) m->layers[i] = new_layer(m, i);
  new_cache(m);
  nvtex_step_init(&m->step, sizeof m->step);
  if (setup->rotary) {
    const size_t rows = 2 * MOST - 1;
    Buffer *b = buffer(rows * setup->rotary * sizeof(float));
    m->step.rotary_frequencies = tensor(b->ptr, kNVTEFloat32, SHAPE(rows, 1, 1, setup->rotary));
    nvtex_rotary_frequencies(m->step.rotary_frequencies, NULL, NULL);
    EXPECT_OK();
  }
  if (setup->decoder) {
    // Equal rows for all sequences, whatever their number and order.
    const size_t rows = 3 * SEQUENCES;
    void *host = host_memory(rows * HIDDEN * dtype_size(setup->dtype));
    for (size_t i = 0; i < rows * HIDDEN; i++) {
      put_value(setup->dtype, host, i, 0.1 * (double)(i % HIDDEN) - 1);
    }
    Buffer *b = buffer_from(host, rows * HIDDEN * dtype_size(setup->dtype), 0);
    m->memory = tensor(b->ptr, setup->dtype, shape_in(m, SEQUENCES, 3));
  }
  if (setup->format == NVTE_THD) {
    const int32_t sums[] = {0, MOST};
    m->step.cu_seqlens_q = tensor(buffer_from(sums, sizeof sums, 0)->ptr, kNVTEInt32, SHAPE(2));
  }
  for (size_t b = 0; b < SEQUENCES; b++) {
    m->tokens[b] = host_memory(MOST * HIDDEN * sizeof(double));
    for (size_t i = 0; i < MOST * HIDDEN; i++) {
      m->tokens[b][i] = round_to(setup->dtype, random_uniform(-1.5, 1.5));
    }
    m->expected[b] = pass(m, 1, MOST, m->tokens[b]);
    if (!EXPECT_OK()) {
      destroy(m);
      return false;
    }
  }
  m->step.kv_cache = m->cache;
  m->step.cu_seqlens_q = NULL;
  return true;
}

// A step in which sequence b gets the next tokens[b] tokens of text of[b], from done[b] on.
static bool advance(Model *m, size_t batch, const size_t *tokens, const size_t *of, size_t *done,
                    size_t padding) {
  const NVTEDType dtype = m->setup.dtype;
  size_t length = 1;
  for (size_t b = 0; b < batch; b++) length = tokens[b] > length ? tokens[b] : length;
  length = (length + padding + m->setup.multiple - 1) / m->setup.multiple * m->setup.multiple;
  if (length > MOST) length = MOST;
  const bool packed = m->setup.format == NVTE_THD;
  size_t first[SEQUENCES] = {0}, rows = batch * length, all = 0;
  for (size_t b = 0; packed && b < batch; b++) {
    first[b] = all;
    all += tokens[b];
  }
  if (packed) rows = all + padding ? all + padding : 1;
  double *x = host_memory(rows * HIDDEN * sizeof *x);
  for (size_t i = 0; packed && i < rows * HIDDEN; i++) x[i] = NAN;
  const bool fp8 = m->setup.multiple > 1;
  for (size_t b = 0; b < batch; b++) {
    for (size_t s = 0; s < (packed ? tokens[b] : length); s++) {
      const size_t row = packed ? first[b] + s : row_in(m, batch, length, b, s);
      for (size_t j = 0; j < HIDDEN; j++) {
        // Rows after the new tokens may hold anything.
        x[row * HIDDEN + j] = s < tokens[b] ? m->tokens[of[b]][(done[b] + s) * HIDDEN + j]
                              : fp8         ? 0
                                            : (double)NAN;
      }
    }
  }
  nvtex_kv_cache_step(m->cache, tokens, batch, NULL);
  if (!EXPECT_OK()) return false;
  const double *y = packed ? pass(m, 1, rows, x) : pass(m, batch, length, x);
  if (!EXPECT_OK()) return false;
  // A value that the kernels round to its other neighbour may be cast to another FP8 number.
  const double half = fp8 ? 0.2 : 6e-2;
  const double tolerance = dtype == kNVTEFloat32 ? (on_cuda() ? 4e-3 : 2e-5) : half;
  for (size_t b = 0; b < batch; b++) {
    for (size_t s = 0; s < tokens[b]; s++) {
      const double *got = y + (packed ? first[b] + s : row_in(m, batch, length, b, s)) * HIDDEN;
      const double *expected = m->expected[of[b]] + (done[b] + s) * HIDDEN;
      for (size_t j = 0; j < HIDDEN; j++) {
        if (!CHECK(fabs(got[j] - expected[j]) <= tolerance * (1 + fabs(expected[j])),
                   "sequence %zu, token %zu, element %zu: %g, expected %g", b, done[b] + s, j,
                   got[j], expected[j])) {
          return false;
        }
      }
    }
    done[b] += tokens[b];
    CHECK_EQ(nvtex_kv_cache_length(m->cache, b), done[b]);
  }
  return true;
}

// Generates all sequences to their ends: first in pieces, then token by token, each with its own
// number of them.
static void generate(const Setup *setup) {
  Model m;
  if (!begin(&m, setup)) return;
  size_t done[SEQUENCES] = {0};
  const size_t texts[SEQUENCES] = {0, 1, 2, 3};
  for (int step = 0;; step++) {
    size_t tokens[SEQUENCES], rest = 0;
    for (size_t b = 0; b < SEQUENCES; b++) {
      const size_t most = step == 0 ? 3 * b + 1 : step % 3 ? 1 : 5;
      tokens[b] = random_below(most + 1);
      if (step % 3 == 1) tokens[b] = 1;
      if (tokens[b] > MOST - done[b]) tokens[b] = MOST - done[b];
      rest += MOST - done[b];
    }
    if (rest == 0) break;
    if (!advance(&m, SEQUENCES, tokens, texts, done, (size_t)(step % 2))) break;
  }
  destroy(&m);
}

static void cases_generate(void) {
  static const struct {
    const char *name;
    Setup setup;
  } variants[] = {
      {"plain", {0}},
      {"groups and turns", {.groups = 2, .rotary = 8}},
      {"one group, turns of a part", {.groups = 1, .rotary = 4}},
      {"window", {.groups = 2, .window = 5}},
      {"off by one", {.groups = HEADS, .softmax = NVTE_OFF_BY_ONE_SOFTMAX}},
      {"decoder", {.groups = HEADS, .rotary = 8, .decoder = true}},
      {"norms of heads", {.groups = 2, .rotary = 8, .qk_norm = NVTEX_QK_NORM_RMS}},
      {"packed", {.groups = 2, .rotary = 8, .format = NVTE_THD}},
      {"packed, no turns", {.groups = HEADS, .format = NVTE_THD, .qk_norm = NVTEX_QK_NORM_L2}},
  };
  static const size_t pages[] = {0, 1, 4, 8};
  for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
    for (size_t v = 0; v < COUNT(variants); v++) {
      for (size_t p = 0; p < COUNT(pages); p++) {
        Setup s = variants[v].setup;
        s.dtype = kHighPrecision[t];
        if (s.format != NVTE_THD) s.format = (v + p + t) % 2 ? NVTE_SBHD : NVTE_BSHD;
        s.page = pages[p];
        s.multiple = 1;
        if (s.groups == 0) s.groups = HEADS;
        if (s.window == 0) s.window = -1;
        if (case_begin("%s %s pages of %zu", variants[v].name, dtype_name(s.dtype), s.page)) {
          generate(&s);
        }
      }
    }
  }
}

// Rows of a step in FP8 are multiples of 8; without a tape scales do not move.
static void case_recipe(void) {
  for (size_t page = 0; page <= 8; page += 8) {
    if (!case_begin("delayed scaling, pages of %zu", page)) continue;
    NVTEXRecipeConfig config;
    nvtex_recipe_config_init(&config, sizeof config, NVTEX_RECIPE_DELAYED_SCALING);
    NVTEXRecipe recipe = nvtex_recipe_create(&config);
    Setup s = kPlain;
    s.dtype = kNVTEBFloat16;
    s.page = page;
    s.multiple = 8;
    s.rotary = 8;
    Model m;
    if (!begin(&m, &s)) continue;
    nvtex_context_begin(m.context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
    m.step.kv_cache = NULL;
    for (size_t b = 0; b < SEQUENCES; b++) m.expected[b] = pass(&m, 1, MOST, m.tokens[b]);
    m.step.kv_cache = m.cache;
    size_t done[1] = {0};
    const size_t texts[1] = {2}, pieces[] = {7, 1, 1, 8, 1, 5, 1};
    for (size_t i = 0; i < COUNT(pieces); i++) {
      if (!advance(&m, 1, &pieces[i], texts, done, 0)) break;
    }
    nvtex_context_end(m.context);
    nvtex_recipe_destroy(recipe);
    destroy(&m);
  }
}

// Sequences change places, are copied, end and begin, and lose their ends.
static void case_reorder(void) {
  for (size_t page = 0; page <= 4; page += 4) {
    if (!case_begin("other sequences, pages of %zu", page)) continue;
    Setup s = kPlain;
    s.page = page;
    s.groups = 2;
    s.rotary = 8;
    Model m;
    if (!begin(&m, &s)) continue;
    size_t done[SEQUENCES] = {0}, texts[SEQUENCES] = {0, 1, 2, 3};
    const size_t first[] = {5, 9, 6};
    advance(&m, 3, first, texts, done, 0);
    // The second twice, the first behind it, the third ends, a new one begins.
    const int64_t from[] = {1, 1, 0, -1};
    nvtex_kv_cache_reorder(m.cache, from, 4, NULL);
    EXPECT_OK();
    const size_t texts_then[] = {1, 1, 0, 3};
    size_t done_then[] = {9, 9, 5, 0};
    const size_t next[] = {1, 3, 1, 7}, one[] = {1, 1, 1, 1};
    advance(&m, 4, next, texts_then, done_then, 0);
    advance(&m, 4, one, texts_then, done_then, 1);
    // Tokens that were only guesses are taken back.
    nvtex_kv_cache_truncate(m.cache, 1, 6);
    nvtex_kv_cache_truncate(m.cache, 2, 0);
    EXPECT_OK();
    done_then[1] = 6;
    done_then[2] = 0;
    size_t texts_last[] = {1, 1, 2, 3};
    const size_t last[] = {2, 4, 11, 0};
    advance(&m, 4, last, texts_last, done_then, 2);
    // Half of the sequences get no tokens.
    advance(&m, 2, one, texts_last, done_then, 0);
    advance(&m, 4, one, texts_last, done_then, 0);
    CHECK_EQ(nvtex_kv_cache_length(m.cache, 3), 9);
    destroy(&m);
  }
}

static void case_few_pages(void) {
  if (!case_begin("few pages")) return;
  Setup s = kPlain;
  s.page = 4;
  s.pages = 7;
  Model m;
  if (!begin(&m, &s)) return;
  size_t done[SEQUENCES] = {0};
  const size_t texts[] = {0, 1, 2, 3}, first[] = {9, 8}, many[] = {4, 5}, few[] = {7, 0};
  advance(&m, 2, first, texts, done, 0);
  nvtex_kv_cache_step(m.cache, many, 2, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "nvtex_kv_cache_step: new_tokens: expected tokens for at most 2 more pages");
  CHECK_EQ(nvtex_kv_cache_length(m.cache, 0), 9);
  const int64_t copies[] = {0, 0, 1};
  nvtex_kv_cache_reorder(m.cache, copies, 3, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_kv_cache_reorder: from: expected copies of at most");
  advance(&m, 2, few, texts, done, 0);
  nvtex_kv_cache_truncate(m.cache, 1, 0);
  done[1] = 0;
  const size_t rest[] = {8, 3};
  advance(&m, 2, rest, texts, done, 0);
  destroy(&m);
}

// Blocks of an allocator, with guard bytes after each.
static struct {
  unsigned char *ptr;
  size_t bytes;
} g_blocks[64];
static size_t g_num_blocks;

static void *guarded_allocate(void *user, size_t bytes, size_t alignment, NVTEXLifetime lifetime,
                              cudaStream_t stream) {
  (void)user, (void)alignment, (void)lifetime, (void)stream;
  if (g_num_blocks == COUNT(g_blocks)) return NULL;
  unsigned char *ptr = nvtex_malloc(bytes + GUARD_BYTES);
  nvte_memset(ptr + bytes, GUARD_VALUE, GUARD_BYTES, NULL);
  nvtex_stream_synchronize(NULL);
  g_blocks[g_num_blocks].ptr = ptr;
  g_blocks[g_num_blocks++].bytes = bytes;
  return ptr;
}

static void guarded_release(void *user, void *ptr, size_t bytes, NVTEXLifetime lifetime,
                            cudaStream_t stream) {
  (void)user, (void)ptr, (void)bytes, (void)lifetime, (void)stream;
}

// Caches of few sequences stay in their memory.
static void cases_bounds(void) {
  for (size_t batch = 1; batch <= 3; batch++) {
    for (size_t page = 16; page <= 64; page *= 4) {
      if (!case_begin("bounds: %zu sequences, pages of %zu", batch, page)) continue;
      g_num_blocks = 0;
      NVTEXContextConfig config;
      nvtex_context_config_init(&config, sizeof config);
      config.allocate = guarded_allocate;
      config.release = guarded_release;
      NVTEXContext context = nvtex_context_create(&config);
      NVTEXKVCacheConfig c;
      nvtex_kv_cache_config_init(&c, sizeof c);
      c.max_batch_size = batch;
      c.max_sequence_length = 64;
      c.page_size = page;
      NVTEXKVCache cache = nvtex_kv_cache_create(context, &c, NULL);
      EXPECT_OK();
      const size_t tokens[] = {64, 64, 64};
      nvtex_kv_cache_step(cache, tokens, batch, NULL);
      EXPECT_OK();
      CHECK(g_num_blocks > 0, "no memory");
      for (size_t i = 0; i < g_num_blocks; i++) {
        unsigned char guards[GUARD_BYTES];
        download(guards, g_blocks[i].ptr + g_blocks[i].bytes, GUARD_BYTES);
        size_t bad = 0;
        for (size_t j = 0; j < GUARD_BYTES; j++) bad += guards[j] != GUARD_VALUE;
        CHECK(bad == 0, "%zu bytes behind a block of %zu changed", bad, g_blocks[i].bytes);
      }
      nvtex_kv_cache_destroy(cache);
      nvtex_context_destroy(context);
      for (size_t i = 0; i < g_num_blocks; i++) nvtex_free(g_blocks[i].ptr);
      EXPECT_OK();
    }
  }
}

static void case_refusals(void) {
  if (!case_begin("refusals")) return;
  Model m;
  Setup s = kPlain;
  s.rotary = 8;
  if (!begin(&m, &s)) return;
  NVTEXKVCacheConfig c;
  nvtex_kv_cache_config_init(&c, sizeof c);
  CHECK(!nvtex_kv_cache_create(m.context, &c, NULL), "a cache");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "nvtex_kv_cache_create: config.max_batch_size: expected 1 to 2^24, got 0");
  c.max_batch_size = 2;
  c.max_sequence_length = 12;
  c.page_size = 5;
  CHECK(!nvtex_kv_cache_create(m.context, &c, NULL), "a cache");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.page_size: expected 0 or a divisor of");
  c.page_size = 4;
  c.num_pages = 7;
  CHECK(!nvtex_kv_cache_create(m.context, &c, NULL), "a cache");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.num_pages: expected 0 or 1 to 6");
  double *x = host_memory(2 * MOST * HIDDEN * sizeof *x);
  memset(x, 0, 2 * MOST * HIDDEN * sizeof *x);
  CHECK(!pass(&m, 2, 4, x), "a pass");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "step.kv_cache: expected a cache whose step");
  const size_t tokens[] = {3, 4}, many[] = {1, MOST};
  nvtex_kv_cache_step(m.cache, tokens, 2, NULL);
  CHECK(!pass(&m, 2, 3, x), "a pass");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "inputs[0].shape: expected a batch of 2 and 4 tokens");
  CHECK(!pass(&m, 1, 4, x), "a pass");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "inputs[0].shape: expected a batch of 2");
  nvtex_kv_cache_step(m.cache, many, 2, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_kv_cache_step: new_tokens[1]: expected at most 20");
  nvtex_kv_cache_step(m.cache, tokens, SEQUENCES + 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_kv_cache_step: batch: expected 1 to 4");
  nvtex_kv_cache_truncate(m.cache, 1, 5);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_kv_cache_truncate: length: expected at most 4");
  const int64_t from[] = {0, 2};
  nvtex_kv_cache_reorder(m.cache, from, 2, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_kv_cache_reorder: from[1]: expected less than 2");
  NVTEXTape tape = NULL;
  NVTETensor in =
      tensor(buffer_from(x, 8 * HIDDEN * sizeof(float), 0)->ptr, kNVTEFloat32, shape_in(&m, 2, 4));
  nvtex_module_forward(m.layers[0], &in, 1, &in, 1, &m.step, &tape, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "step.kv_cache: expected null (a tape is asked for)");
  NVTEXContext other = nvtex_context_create(NULL);
  c.num_pages = 0;
  m.step.kv_cache = nvtex_kv_cache_create(other, &c, NULL);
  EXPECT_OK();
  CHECK(!pass(&m, 2, 4, x), "a pass");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "step.kv_cache: expected a cache of the module's context");
  nvtex_kv_cache_destroy(m.step.kv_cache);
  nvtex_context_destroy(other);
  m.step.kv_cache = m.cache;
  m.step.rotary_frequencies = tensor(nvte_tensor_data(m.step.rotary_frequencies), kNVTEFloat32,
                                     SHAPE(MOST, 1, 1, s.rotary));
  CHECK(!pass(&m, 2, 4, x), "a pass");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "step.rotary_frequencies.shape: expected 27 rows");
  NVTEXKVCache gone = m.cache;
  nvtex_kv_cache_destroy(gone);
  nvtex_kv_cache_length(gone, 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_kv_cache_length: cache: expected");
  m.cache = NULL;
  destroy(&m);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  case_refusals();
  cases_bounds();
  case_few_pages();
  case_reorder();
  case_recipe();
  cases_generate();
  return test_end();
}
