/* Trains a GPT on the bytes of a text, once for each recipe, with the same seed and the same
 * batches, and lets the last model write. Everything runs in nvtex_* modules and nvte_*, on a GPU
 * or on a CPU; the host picks the probabilities of the bytes that follow, which are the loss. On a
 * CPU all that is not FP8 is float32; on a GPU it is bfloat16, with float32 masters. */
#include <ctype.h>
#include <math.h>
#include <nvte/nvte.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WORKSPACE = 8 << 20 /* floats */ };
enum { VOCABULARY = 256, MAX_LAYERS = 64, MAX_RUNS = 8, VALIDATION_BATCHES = 16, SAMPLE = 400 };
/* Rows of a pass for one byte: FP8 products take eight. */
enum { BYTE_ROWS = 8 };
enum { GRAD, VALUE, MOMENTUM, VARIANCE, MASTER, NUM_LISTS };

/* The program fails if a recipe ends further than this from the first one, in percent of its loss,
 * or has not lost this part of the loss before training. */
static const double kBound = 3, kFall = 0.1;

static void fail(const char *subject, const char *text) {
  fprintf(stderr, "gpt: %s: %s\n", subject, text);
  exit(EXIT_FAILURE);
}

/* A call that fails sets a status, which later calls leave alone: one check ends a group of calls.
 */
static void check_calls(int line) {
  if (nvtex_last_status() == NVTEX_OK) return;
  fprintf(stderr, "gpt.c:%d: %s\n", line, nvtex_last_error());
  exit(EXIT_FAILURE);
}
#define CHECK_CALLS() check_calls(__LINE__)

static void *allocate(size_t bytes) {
  void *ptr = calloc(1, bytes);
  if (ptr == NULL) fail("calloc", "out of memory");
  return ptr;
}

static double seconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* splitmix64: every run sees the same numbers. */
static uint64_t next_random(uint64_t *state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

static double next_uniform(uint64_t *state) { return (double)(next_random(state) >> 11) * 0x1p-53; }

/* ---- Recipes and options */

typedef struct {
  const char *name, *color;
  bool fp8;
  NVTEXRecipeKind kind;
} Recipe;

static const Recipe kRecipes[] = {
    {"none", "#222222", false, NVTEX_RECIPE_DELAYED_SCALING},
    {"delayed", "#d62728", true, NVTEX_RECIPE_DELAYED_SCALING},
    {"current", "#1f77b4", true, NVTEX_RECIPE_CURRENT_SCALING},
    {"block", "#2ca02c", true, NVTEX_RECIPE_BLOCK_SCALING},
    {"mxfp8", "#ff7f0e", true, NVTEX_RECIPE_MXFP8},
};

typedef struct {
  const char *text, *out, *recipes;
  size_t steps, layers, hidden, heads, seq, batch, seed;
} Options;

static size_t read_number(const char *name, const char *text) {
  char *end;
  const unsigned long value = strtoul(text, &end, 10);
  if (!isdigit((unsigned char)text[0]) || *end != '\0' || value > 1000000) {
    fail(name, "expected a number up to 1000000");
  }
  return value;
}

static void check_options(const Options *o) {
  if (o->steps < 1 || o->seq < 1 || o->batch < 1) fail("--steps, --seq, --batch", "must not be 0");
  if (o->layers < 1 || o->layers > MAX_LAYERS) fail("--layers", "expected 1 to 64");
  if (o->heads < 1 || o->hidden < 1 || o->hidden % (8 * o->heads)) {
    fail("--hidden", "must be a multiple of 8 times --heads");
  }
  /* What MXFP8 asks of sizes; the others ask for less. */
  if (o->hidden % 32) fail("--hidden", "must be a multiple of 32");
  if (o->seq % 8 || o->batch * o->seq % 32) {
    fail("--seq", "must be a multiple of 8, and times --batch of 32");
  }
}

static Options read_options(int argc, char **argv) {
  Options o = {.text = "gpt.c", .out = "gpt.svg", .recipes = "none,delayed,current,block,mxfp8"};
  o.steps = 500, o.layers = 2, o.hidden = 128, o.heads = 4, o.seq = 64, o.batch = 8, o.seed = 1;
  const struct {
    const char *name, **text;
    size_t *number;
  } known[] = {
      {"--text", &o.text, NULL},   {"--out", &o.out, NULL},       {"--recipes", &o.recipes, NULL},
      {"--steps", NULL, &o.steps}, {"--layers", NULL, &o.layers}, {"--hidden", NULL, &o.hidden},
      {"--heads", NULL, &o.heads}, {"--seq", NULL, &o.seq},       {"--batch", NULL, &o.batch},
      {"--seed", NULL, &o.seed},
  };
  const size_t count = sizeof known / sizeof *known;
  for (int i = 1; i < argc; i += 2) {
    size_t k = 0;
    while (k < count && strcmp(argv[i], known[k].name) != 0) ++k;
    if (k == count) fail(argv[i], "unknown option");
    if (i + 1 == argc) fail(argv[i], "needs a value");
    if (known[k].text != NULL) *known[k].text = argv[i + 1];
    if (known[k].number != NULL) *known[k].number = read_number(argv[i], argv[i + 1]);
  }
  check_options(&o);
  return o;
}

/* Splits the list of names; the first one is what the others are compared to. */
static size_t read_recipes(const char *list, const Recipe *recipes[MAX_RUNS]) {
  const size_t known = sizeof kRecipes / sizeof *kRecipes;
  size_t count = 0;
  for (const char *at = list;; ++at) {
    const size_t length = strcspn(at, ",");
    size_t k = 0;
    while (k < known &&
           (strlen(kRecipes[k].name) != length || strncmp(at, kRecipes[k].name, length) != 0)) {
      ++k;
    }
    if (k == known) fail(list, "expected names among none, delayed, current, block, mxfp8");
    if (count == MAX_RUNS) fail(list, "too many");
    recipes[count++] = &kRecipes[k];
    at += length;
    if (*at == '\0') return count;
  }
}

/* ---- Text */

typedef struct {
  unsigned char *bytes;
  size_t count, train; /* the last tenth is for validation */
} Text;

static Text read_text(const Options *o) {
  FILE *file = fopen(o->text, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) fail(o->text, "cannot be read");
  const long size = ftell(file);
  rewind(file);
  if (size < 0 || (size_t)size / 10 <= o->seq) fail(o->text, "too short for --seq");
  Text text = {.count = (size_t)size, .train = (size_t)size - (size_t)size / 10};
  text.bytes = allocate(text.count);
  if (fread(text.bytes, 1, text.count, file) != text.count) fail(o->text, "cannot be read");
  fclose(file);
  return text;
}

/* Sequences of seq + 1 bytes from random places between `first` and `end`, their first bytes first:
 * what follows the bytes of a row is the next row. */
static void fill(const Options *o, const Text *text, size_t first, size_t end, uint64_t *random,
                 unsigned char *tokens) {
  for (size_t b = 0; b < o->batch; ++b) {
    const unsigned char *from = text->bytes + first + next_random(random) % (end - first - o->seq);
    for (size_t s = 0; s <= o->seq; ++s) tokens[s * o->batch + b] = from[s];
  }
}

/* ---- Memory and tensors of a run */

typedef struct {
  void **items;
  size_t count, room;
} List;

static void *append(List *list, void *item) {
  if (list->count == list->room) {
    list->room = 2 * list->room + 16;
    list->items = realloc(list->items, list->room * sizeof *list->items);
    if (list->items == NULL) fail("realloc", "out of memory");
  }
  return list->items[list->count++] = item;
}

/* Parameters that share a weight decay, as the lists of nvte_multi_tensor_adam_cuda. */
typedef struct {
  List lists[NUM_LISTS];
} Group;

/* Tensors [seq, batch, ...] of a pass; those for one sequence or byte share the memory of the
 * others. */
typedef struct {
  size_t batch, rows;
  NVTETensor tokens, targets, x[MAX_LAYERS + 1], dx[2], logits, dlogits, probabilities;
} Activations;

typedef struct {
  const Options *options;
  NVTEDType dtype; /* of all that is not FP8 */
  cudaStream_t stream;
  NVTEXRecipe recipe;
  NVTEXContext context;
  List buffers, tensors;
  NVTEXModule layers[MAX_LAYERS], head;
  Group decayed, plain;
  NVTEXStep step;
  NVTETensor embedding, embedding_grad, identity, flag, staging, workspace;
  void *staging_buffer;
  unsigned char *ones; /* on the host: rows with a 1 at the place of a byte, of run->dtype */
  unsigned char *probabilities; /* on the host, of run->dtype */
  Activations batch, prompt, byte;
} Run;

static size_t num_elements(NVTEShape shape) {
  size_t count = 1;
  for (size_t i = 0; i < shape.ndim; ++i) count *= shape.data[i];
  return count;
}

static size_t size_of(NVTEDType dtype) { return dtype == kNVTEBFloat16 ? 2 : sizeof(float); }

static void set_data(NVTETensor tensor, void *ptr, NVTEDType dtype, NVTEShape shape) {
  const NVTEBasicTensor data = {.data_ptr = ptr, .dtype = dtype, .shape = shape};
  nvte_set_tensor_param_v2(tensor, kNVTERowwiseData, &data, sizeof data);
}

static NVTETensor tensor_of(Run *run, void *ptr, NVTEDType dtype, NVTEShape shape) {
  NVTETensor tensor = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  CHECK_CALLS();
  append(&run->tensors, tensor);
  set_data(tensor, ptr, dtype, shape);
  CHECK_CALLS();
  return tensor;
}

static void *device_buffer(Run *run, size_t bytes) {
  void *ptr = nvtex_malloc(bytes);
  CHECK_CALLS();
  append(&run->buffers, ptr);
  nvte_memset(ptr, 0, bytes, run->stream);
  CHECK_CALLS();
  return ptr;
}

static NVTETensor new_tensor(Run *run, NVTEDType dtype, NVTEShape shape) {
  const size_t bytes = num_elements(shape) * size_of(dtype);
  return tensor_of(run, device_buffer(run, bytes), dtype, shape);
}

/* Copies through float32 staging memory; a quantize without scales casts to the tensor's type.
 * The host may reuse its memory at once. */
static void upload(Run *run, const float *host, NVTETensor tensor) {
  const NVTEShape shape = nvte_tensor_shape(tensor);
  nvtex_memcpy_to_device(run->staging_buffer, host, num_elements(shape) * sizeof *host,
                         run->stream);
  set_data(run->staging, run->staging_buffer, kNVTEFloat32, shape);
  nvte_quantize_v2(run->staging, tensor, NULL, run->stream);
  CHECK_CALLS();
}

/* `D = alpha * op(B) A + beta * C`; C null: D. */
static void multiply(Run *run, float alpha, bool transb, NVTETensor a, NVTETensor b, float beta,
                     NVTETensor c, NVTETensor d) {
  nvte_cublas_gemm_v2(0, transb, &alpha, a, b, &beta, c, d, run->workspace, NULL, run->stream);
  CHECK_CALLS();
}

/* ---- The model */

/* Adds a parameter with its initial value. Matrices decay; biases and norms do not. */
static NVTETensor add_parameter(Run *run, NVTETensor value, const float *initial, bool decays) {
  const NVTEShape shape = nvte_tensor_shape(value);
  List *lists = decays ? run->decayed.lists : run->plain.lists;
  const NVTETensor grad = append(&lists[GRAD], new_tensor(run, kNVTEFloat32, shape));
  append(&lists[VALUE], value);
  append(&lists[MOMENTUM], new_tensor(run, kNVTEFloat32, shape));
  append(&lists[VARIANCE], new_tensor(run, kNVTEFloat32, shape));
  upload(run, initial, value);
  if (run->dtype == kNVTEBFloat16) {
    upload(run, initial, append(&lists[MASTER], new_tensor(run, kNVTEFloat32, shape)));
  }
  return grad;
}

static void add_parameters(Run *run, NVTEXModule module) {
  const size_t count = nvtex_module_num_parameters(module);
  CHECK_CALLS();
  for (size_t i = 0; i < count; ++i) {
    NVTEXParameter p = {.struct_size = sizeof p};
    nvtex_module_parameter(module, i, &p);
    CHECK_CALLS();
    const size_t elements = num_elements(p.shape);
    float *initial = allocate(elements * sizeof *initial);
    nvtex_module_initial_value(module, i, initial, elements);
    const NVTETensor grad = add_parameter(run, p.value, initial, p.shape.ndim == 2);
    nvtex_module_set_gradient(module, i, grad, false);
    CHECK_CALLS();
    free(initial);
  }
}

static NVTEXModule new_layer(const Run *run, size_t index) {
  const Options *o = run->options;
  NVTEXTransformerLayerConfig c;
  nvtex_transformer_layer_config_init(&c, sizeof c);
  c.attention.num_attention_heads = o->heads;
  c.mlp.hidden_size = o->hidden;
  c.mlp.ffn_hidden_size = 4 * o->hidden;
  c.mlp.activation = GELU;
  c.mlp.dtype = c.attention.dtype = run->dtype;
  c.mlp.output_init_std = c.mlp.init_std / sqrtf(2 * (float)o->layers);
  c.mlp.seed = o->seed * (MAX_LAYERS + 1) + index;
  const NVTEXModule layer = nvtex_transformer_layer_create(run->context, &c, run->stream);
  CHECK_CALLS();
  return layer;
}

static NVTEXModule new_head(const Run *run) {
  const Options *o = run->options;
  NVTEXLayerNormLinearConfig c;
  nvtex_layernorm_linear_config_init(&c, sizeof c);
  c.linear.in_features = o->hidden;
  c.linear.out_features = VOCABULARY;
  c.linear.bias = false;
  c.linear.dtype = run->dtype;
  c.linear.seed = o->seed * (MAX_LAYERS + 1) + MAX_LAYERS;
  const NVTEXModule head = nvtex_layernorm_linear_create(run->context, &c, run->stream);
  CHECK_CALLS();
  return head;
}

static void new_embedding(Run *run) {
  const size_t hidden = run->options->hidden, count = VOCABULARY * hidden;
  float *table = allocate(count * sizeof *table);
  uint64_t random = run->options->seed;
  for (size_t i = 0; i < count; ++i) table[i] = (float)(0.1 * next_uniform(&random) - 0.05);
  run->embedding = new_tensor(run, run->dtype, (NVTEShape){{VOCABULARY, hidden}, .ndim = 2});
  run->embedding_grad = add_parameter(run, run->embedding, table, true);
  free(table);
}

static void new_identity(Run *run) {
  float *values = allocate(VOCABULARY * VOCABULARY * sizeof *values);
  for (size_t i = 0; i < VOCABULARY; ++i) values[i * VOCABULARY + i] = 1;
  run->identity = new_tensor(run, run->dtype, (NVTEShape){{VOCABULARY, VOCABULARY}, .ndim = 2});
  upload(run, values, run->identity);
  free(values);
}

/* Positions are turns of queries and keys; a prompt may end where the cache does. */
static void new_step(Run *run) {
  const Options *o = run->options;
  nvtex_step_init(&run->step, sizeof run->step);
  run->step.rotary_frequencies = new_tensor(
      run, kNVTEFloat32, (NVTEShape){{2 * o->seq - 1, 1, 1, o->hidden / o->heads}, .ndim = 4});
  nvtex_rotary_frequencies(run->step.rotary_frequencies, NULL, run->stream);
  CHECK_CALLS();
}

/* Tensors of sequences over memory for seq + 1 rows of the whole batch. */
static Activations new_activations(Run *run, void *const memory[], size_t length, size_t batch) {
  const Options *o = run->options;
  const NVTEShape hidden = {{length, batch, o->hidden}, .ndim = 3};
  const NVTEShape bytes = {{length, batch, VOCABULARY}, .ndim = 3};
  const NVTEShape scores = {{1, 1, length * batch, VOCABULARY}, .ndim = 4};
  Activations a = {.batch = batch, .rows = length * batch};
  const size_t row = batch * VOCABULARY * size_of(run->dtype);
  a.tokens = tensor_of(run, memory[0], run->dtype, bytes);
  a.targets = tensor_of(run, (char *)memory[0] + row, run->dtype, bytes);
  a.logits = tensor_of(run, memory[1], run->dtype, bytes);
  a.dlogits = tensor_of(run, memory[1], run->dtype, bytes);
  a.probabilities = tensor_of(run, memory[2], run->dtype, scores);
  for (size_t i = 0; i < 2; ++i) a.dx[i] = tensor_of(run, memory[3 + i], run->dtype, hidden);
  for (size_t i = 0; i <= o->layers; ++i) {
    a.x[i] = tensor_of(run, memory[5 + i], run->dtype, hidden);
  }
  return a;
}

static void new_all_activations(Run *run) {
  const Options *o = run->options;
  const size_t element = size_of(run->dtype);
  const size_t bytes = (o->seq + 1) * o->batch * VOCABULARY * element;
  void *memory[MAX_LAYERS + 6];
  for (size_t i = 0; i < 3; ++i) memory[i] = device_buffer(run, bytes);
  for (size_t i = 3; i < o->layers + 6; ++i) {
    memory[i] = device_buffer(run, o->seq * o->batch * o->hidden * element);
  }
  run->batch = new_activations(run, memory, o->seq, o->batch);
  run->prompt = new_activations(run, memory, o->seq, 1);
  run->byte = new_activations(run, memory, BYTE_ROWS, 1);
  run->ones = allocate(bytes);
  run->probabilities = allocate(bytes);
}

static NVTEXRecipe new_recipe(const Recipe *recipe) {
  if (!recipe->fp8) return NULL;
  NVTEXRecipeConfig config;
  nvtex_recipe_config_init(&config, sizeof config, recipe->kind);
  config.amax_history_len = 16;
  const NVTEXRecipe result = nvtex_recipe_create(&config);
  CHECK_CALLS();
  return result;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static Run *start_run(const Options *o, const Recipe *recipe) {
  Run *run = allocate(sizeof *run);
  run->options = o;
  run->dtype = strcmp(nvtex_backend_name(), "cpu") == 0 ? kNVTEFloat32 : kNVTEBFloat16;
  run->stream = nvtex_stream_create();
  run->recipe = new_recipe(recipe);
  run->context = nvtex_context_create(NULL);
  CHECK_CALLS();
  const size_t largest = larger(o->hidden, VOCABULARY) * larger(4 * o->hidden, VOCABULARY);
  run->staging_buffer = device_buffer(run, largest * sizeof(float));
  run->staging =
      tensor_of(run, run->staging_buffer, kNVTEFloat32, (NVTEShape){{largest}, .ndim = 1});
  run->flag = new_tensor(run, kNVTEInt32, (NVTEShape){{1}, .ndim = 1});
  run->workspace = new_tensor(run, kNVTEFloat32, (NVTEShape){{WORKSPACE}, .ndim = 1});
  new_embedding(run);
  new_identity(run);
  for (size_t i = 0; i < o->layers; ++i) {
    run->layers[i] = new_layer(run, i);
    add_parameters(run, run->layers[i]);
  }
  run->head = new_head(run);
  add_parameters(run, run->head);
  new_step(run);
  new_all_activations(run);
  return run;
}

static void end_run(Run *run) {
  for (size_t i = 0; i < run->options->layers; ++i) nvtex_module_destroy(run->layers[i]);
  nvtex_module_destroy(run->head);
  nvtex_context_destroy(run->context);
  nvtex_recipe_destroy(run->recipe);
  nvte_destroy_tensors(run->tensors.items, run->tensors.count);
  for (size_t i = 0; i < run->buffers.count; ++i) nvtex_free(run->buffers.items[i]);
  nvtex_stream_destroy(run->stream);
  CHECK_CALLS();
  for (size_t i = 0; i < NUM_LISTS; ++i) {
    free(run->decayed.lists[i].items);
    free(run->plain.lists[i].items);
  }
  free(run->tensors.items);
  free(run->buffers.items);
  free(run->ones);
  free(run->probabilities);
  free(run);
}

/* ---- Passes */

/* A number of the run's type in memory of the host. */
static float number_at(const Run *run, const unsigned char *bytes, size_t i) {
  const size_t size = size_of(run->dtype);
  uint32_t bits = 0;
  memcpy((unsigned char *)&bits + sizeof bits - size, bytes + i * size, size);
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Turns bytes into rows that have a 1 at their place; products with such rows look up and sum. */
static void set_tokens(Run *run, const Activations *a, const unsigned char *tokens) {
  const size_t element = size_of(run->dtype), count = (a->rows + a->batch) * VOCABULARY;
  const float one = 1;
  memset(run->ones, 0, count * element);
  for (size_t i = 0; i < a->rows + a->batch; ++i) {
    memcpy(run->ones + (i * VOCABULARY + tokens[i]) * element,
           (const unsigned char *)&one + sizeof one - element, element);
  }
  nvtex_memcpy_to_device(nvte_tensor_data(a->tokens), run->ones, count * element, run->stream);
}

/* Tapes: one for each layer and one for the head, or null. The layers follow the recipe; the head
 * stays in high precision, as is the custom. */
static void forward(Run *run, const Activations *a, const unsigned char *tokens, NVTEXTape *tapes) {
  const size_t layers = run->options->layers;
  set_tokens(run, a, tokens);
  multiply(run, 1, false, run->embedding, a->tokens, 0, NULL, a->x[0]);
  nvtex_context_begin(run->context, run->recipe, run->recipe ? NVTEX_CONTEXT_ENABLED : 0, NULL);
  for (size_t i = 0; i < layers; ++i) {
    nvtex_module_forward(run->layers[i], &a->x[i], 1, &a->x[i + 1], 1, &run->step,
                         tapes ? &tapes[i] : NULL, run->stream);
  }
  nvtex_context_end(run->context);
  nvtex_module_forward(run->head, &a->x[layers], 1, &a->logits, 1, NULL,
                       tapes ? &tapes[layers] : NULL, run->stream);
  NVTETensor scores = a->logits;
  const NVTEShape shape = nvte_tensor_shape(scores);
  set_data(scores, nvte_tensor_data(scores), run->dtype, nvte_tensor_shape(a->probabilities));
  nvte_scaled_softmax_forward(scores, a->probabilities, 1, run->stream);
  set_data(scores, nvte_tensor_data(scores), run->dtype, shape);
  CHECK_CALLS();
}

/* The gradient of the mean cross entropy by scores is (probability - 1 at the target) / rows. */
static void backward(Run *run, NVTEXTape *tapes) {
  const Activations *a = &run->batch;
  const size_t layers = run->options->layers;
  const float part = 1 / (float)a->rows;
  multiply(run, part, false, run->identity, a->probabilities, -part, a->targets, a->dlogits);
  nvtex_module_backward(run->head, tapes[layers], &a->dlogits, 1, &a->dx[layers % 2], 1,
                        run->stream);
  for (size_t i = layers; i-- > 0;) {
    nvtex_module_backward(run->layers[i], tapes[i], &a->dx[(i + 1) % 2], 1, &a->dx[i % 2], 1,
                          run->stream);
  }
  multiply(run, 1, true, a->dx[0], a->tokens, 0, NULL, run->embedding_grad);
  CHECK_CALLS();
}

/* Copies the probabilities to the host and waits for them. */
static void read_probabilities(Run *run, const Activations *a) {
  const size_t bytes = a->rows * VOCABULARY * size_of(run->dtype);
  nvtex_memcpy_to_host(run->probabilities, nvte_tensor_data(a->probabilities), bytes, run->stream);
  nvtex_stream_synchronize(run->stream);
  CHECK_CALLS();
}

/* Mean cross entropy in nats per byte. */
static double read_loss(Run *run, const Activations *a, const unsigned char *tokens) {
  read_probabilities(run, a);
  double loss = 0;
  for (size_t i = 0; i < a->rows; ++i) {
    const size_t at = i * VOCABULARY + tokens[i + a->batch];
    loss -= log((double)number_at(run, run->probabilities, at) + 1e-30) / (double)a->rows;
  }
  return loss;
}

static void adam(Run *run, Group *group, float rate, size_t step, float decay) {
  NVTETensor *lists[NUM_LISTS];
  for (size_t i = 0; i < NUM_LISTS; ++i) lists[i] = group->lists[i].items;
  const size_t used = group->lists[MASTER].count > 0 ? NUM_LISTS : MASTER;
  nvte_multi_tensor_adam_cuda(65536, run->flag, lists, used, group->lists[GRAD].count, rate, 0.9f,
                              0.95f, 1e-8f, (int32_t)step, 1, 1, decay, run->stream);
  CHECK_CALLS();
}

/* Rises over a tenth of the steps, then falls to a tenth; smaller for wider models. */
static float learning_rate(const Options *o, size_t step) {
  const double peak = 0.3 / (double)o->hidden, at = (double)step / (double)o->steps;
  if (at < 0.1) return (float)(peak * at / 0.1);
  return (float)(peak * (0.55 + 0.45 * cos(3.14159265358979 * (at - 0.1) / 0.9)));
}

static double train_step(Run *run, const unsigned char *tokens, size_t step) {
  const Options *o = run->options;
  NVTEXTape tapes[MAX_LAYERS + 1];
  forward(run, &run->batch, tokens, tapes);
  nvtex_context_forward_update(run->context, run->stream);
  backward(run, tapes);
  nvtex_context_backward_update(run->context, run->stream);
  for (size_t i = 0; i <= o->layers; ++i) nvtex_tape_destroy(tapes[i]);
  CHECK_CALLS();
  const float rate = learning_rate(o, step);
  adam(run, &run->decayed, rate, step, 0.1f);
  adam(run, &run->plain, rate, step, 0);
  return read_loss(run, &run->batch, tokens);
}

/* ---- A training run */

typedef struct {
  const Recipe *recipe;
  double *losses; /* of each step */
  double before, after, tokens_per_second;
} Result;

static double validate(Run *run, const Text *text, unsigned char *tokens) {
  double loss = 0;
  uint64_t random = 7;
  for (int i = 0; i < VALIDATION_BATCHES; ++i) {
    fill(run->options, text, text->train, text->count, &random, tokens);
    forward(run, &run->batch, tokens, NULL);
    loss += read_loss(run, &run->batch, tokens) / VALIDATION_BATCHES;
  }
  return loss;
}

/* One line that rewrites itself on a terminal; five lines per run elsewhere. */
static void show_progress(const Options *o, const Result *result, size_t step) {
  const bool terminal = isatty(STDOUT_FILENO);
  if (!terminal && step * 5 / o->steps == (step - 1) * 5 / o->steps) return;
  printf("%s%-8s step %4zu of %zu   loss %.4f   %.0f tokens/s%s", terminal ? "\r" : "",
         result->recipe->name, step, o->steps, result->losses[step - 1], result->tokens_per_second,
         terminal && step < o->steps ? "    " : "\n");
  fflush(stdout);
}

static Result train(Run *run, const Recipe *recipe, const Text *text) {
  const Options *o = run->options;
  const size_t rows = run->batch.rows;
  unsigned char *tokens = allocate(rows + run->batch.batch);
  Result result = {.recipe = recipe, .losses = allocate(o->steps * sizeof(double))};
  uint64_t random = o->seed;
  result.before = validate(run, text, tokens);
  const double start = seconds();
  for (size_t step = 1; step <= o->steps; ++step) {
    fill(o, text, 0, text->train, &random, tokens);
    result.losses[step - 1] = train_step(run, tokens, step);
    result.tokens_per_second = (double)(step * rows) / (seconds() - start);
    show_progress(o, &result, step);
  }
  result.after = validate(run, text, tokens);
  free(tokens);
  return result;
}

/* Draws a byte from the distribution in row `last`, sharpened a little. */
static unsigned char draw(const Run *run, size_t last, uint64_t *random) {
  const double sharpness = 1.25;
  double weights[VOCABULARY], sum = 0;
  for (size_t c = 0; c < VOCABULARY; ++c) {
    sum += weights[c] = pow(number_at(run, run->probabilities, last * VOCABULARY + c), sharpness);
  }
  double rest = next_uniform(random) * sum;
  for (size_t c = 0; c < VOCABULARY; ++c) {
    rest -= weights[c];
    if (rest < 0) return (unsigned char)c;
  }
  return '\n';
}

static void show_byte(unsigned char c) { putchar(isprint(c) || c == '\n' ? c : '.'); }

/* Reads bytes behind those in the cache, and returns the row of the last one's probabilities. Rows
 * behind the bytes do not matter. */
static size_t read_bytes(Run *run, const unsigned char *bytes, size_t count) {
  const Activations *a = count > BYTE_ROWS ? &run->prompt : &run->byte;
  unsigned char *rows = allocate(a->rows + 1);
  memcpy(rows, bytes, count);
  nvtex_kv_cache_step(run->step.kv_cache, &count, 1, run->stream);
  forward(run, a, rows, NULL);
  read_probabilities(run, a);
  free(rows);
  return count - 1;
}

static NVTEXKVCache new_cache(const Run *run) {
  NVTEXKVCacheConfig config;
  nvtex_kv_cache_config_init(&config, sizeof config);
  config.max_batch_size = 1;
  config.max_sequence_length = run->options->seq;
  const NVTEXKVCache cache = nvtex_kv_cache_create(run->context, &config, run->stream);
  CHECK_CALLS();
  return cache;
}

/* Continues the text for validation byte by byte. The model knows positions up to `seq`: where the
 * cache is full it begins anew with the latter half of the bytes. */
static void write_sample(Run *run, const Text *text) {
  const size_t seq = run->options->seq;
  unsigned char *bytes = allocate(seq + SAMPLE), *end = bytes + seq;
  uint64_t random = run->options->seed;
  memcpy(bytes, text->bytes + text->train, seq);
  for (size_t i = 0; i < seq; ++i) show_byte(bytes[i]);
  printf(" [from here on by the model] ");
  run->step.kv_cache = new_cache(run);
  size_t last = read_bytes(run, bytes, seq);
  for (;; ++end) {
    *end = draw(run, last, &random);
    show_byte(*end);
    if (end + 1 == bytes + seq + SAMPLE) break;
    const bool full = nvtex_kv_cache_length(run->step.kv_cache, 0) == seq;
    if (full) nvtex_kv_cache_truncate(run->step.kv_cache, 0, 0);
    const size_t count = full ? (seq + 1) / 2 : 1;
    last = read_bytes(run, end + 1 - count, count);
  }
  nvtex_kv_cache_destroy(run->step.kv_cache);
  run->step.kv_cache = NULL;
  CHECK_CALLS();
  printf("\n");
  free(bytes);
}

/* ---- Results */

enum { LEFT = 60, TOP = 40, WIDTH = 720, HEIGHT = 380 };

static void draw_axes(FILE *file, double highest, size_t steps) {
  fprintf(
      file,
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 820 480' "
      "font-family='sans-serif' font-size='13'>\n<rect width='820' height='480' fill='white'/>\n"
      "<text x='%d' y='24'>training loss, nats per byte (running mean), by step</text>\n",
      LEFT);
  for (int i = 0; i <= (int)highest; ++i) {
    const double y = TOP + HEIGHT * (1 - i / highest);
    fprintf(file, "<path d='M%d %.1fh%d' stroke='#ddd'/>", LEFT, y, WIDTH);
    fprintf(file, "<text x='%d' y='%.1f' text-anchor='end'>%d</text>\n", LEFT - 8, y + 4, i);
  }
  for (size_t i = 0; i <= 4; ++i) {
    fprintf(file, "<text x='%zu' y='%d' text-anchor='middle'>%zu</text>\n", LEFT + WIDTH * i / 4,
            TOP + HEIGHT + 22, steps * i / 4);
  }
}

static void draw_curve(FILE *file, const Result *r, size_t index, size_t steps, double highest) {
  double mean = r->losses[0];
  fprintf(file, "<path fill='none' stroke='%s' stroke-width='1.5' d='", r->recipe->color);
  for (size_t i = 0; i < steps; ++i) {
    mean += 0.1 * (r->losses[i] - mean);
    fprintf(file, "%c%.2f %.2f", i == 0 ? 'M' : 'L', LEFT + WIDTH * (double)(i + 1) / (double)steps,
            TOP + HEIGHT * (1 - mean / highest));
  }
  fprintf(file, "'/>\n<text x='%d' y='%zu' fill='%s'>%s: %.4f in validation</text>\n",
          LEFT + WIDTH - 230, TOP + 20 + 20 * index, r->recipe->color, r->recipe->name, r->after);
}

static void plot(const Options *o, const Result *results, size_t count) {
  FILE *file = fopen(o->out, "w");
  if (file == NULL) fail(o->out, "cannot be written");
  double highest = 1;
  for (size_t i = 0; i < count; ++i) {
    for (size_t s = 0; s < o->steps; ++s) highest = fmax(highest, ceil(results[i].losses[s]));
  }
  draw_axes(file, highest, o->steps);
  for (size_t i = 0; i < count; ++i) draw_curve(file, &results[i], i, o->steps, highest);
  fprintf(file, "</svg>\n");
  if (fclose(file) != 0) fail(o->out, "cannot be written");
}

/* Whether all runs learned, and as much as the first one. A loss that is not a number fails. */
static bool report(const Result *results, size_t count) {
  bool good = true;
  printf("\nrecipe   validation loss   to the first   tokens/s\n");
  for (size_t i = 0; i < count; ++i) {
    const Result *r = &results[i];
    const double difference = 100 * (r->after / results[0].after - 1);
    const bool learned = r->after < (1 - kFall) * r->before, close = fabs(difference) <= kBound;
    printf("%-8s %15.4f %+12.2f %% %10.0f%s%s\n", r->recipe->name, r->after, difference,
           r->tokens_per_second, learned ? "" : "   DID NOT FALL", close ? "" : "   TOO FAR");
    good = good && learned && close;
  }
  printf("\nall fell from %.4f by a tenth or more, and end within %g %% of the first: %s\n",
         results[0].before, kBound, good ? "yes" : "NO");
  return good;
}

int main(int argc, char **argv) {
  const Options o = read_options(argc, argv);
  const Recipe *recipes[MAX_RUNS];
  const size_t count = read_recipes(o.recipes, recipes);
  const Text text = read_text(&o);
  const char *backend = nvtex_backend_name();
  CHECK_CALLS();
  printf("nvte %s, backend %s, %zu bytes of text; %zu layers of %zu, %zu heads, %zu x %zu bytes\n",
         nvtex_version(), backend, text.count, o.layers, o.hidden, o.heads, o.batch, o.seq);

  Result results[MAX_RUNS];
  for (size_t i = 0; i < count; ++i) {
    Run *run = start_run(&o, recipes[i]);
    results[i] = train(run, recipes[i], &text);
    if (i + 1 == count) {
      printf("\n");
      write_sample(run, &text);
    }
    end_run(run);
  }
  const bool good = report(results, count);
  plot(&o, results, count);
  printf("curves: %s\n", o.out);
  for (size_t i = 0; i < count; ++i) free(results[i].losses);
  free(text.bytes);
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
