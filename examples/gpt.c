/* Trains a GPT on the bytes or the tokens of a file, once for each recipe with the same weights and
 * batches, and lets the last model write. On a GPU everything that is not FP8 is bfloat16, with
 * float32 masters, and a step is one graph; on a CPU it is float32. Under `nvtex-run -n N --gpus`,
 * torchrun or mpirun --tp N ranks share weights (--sp 1: also the rows between products), --cp N
 * share sequences, and the others divide each batch, with --shard 2 also the optimizer's state,
 * with --shard 3 the weights, too. --experts N puts N of them in place of each MLP, of which a
 * token takes two, and --ep N ranks share them. With --checkpoint PATH a run goes on where an
 * earlier one, on any grid, has saved. */
#include <ctype.h>
#include <math.h>
#include <nvte/nvte.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_LAYERS = 128, MAX_RUNS = 8 };
/* The program fails if a recipe ends (mean loss over the last tenth of the steps) further than this
 * from the first one, or has not lost this part of the first step's loss. */
static const double kBound = 0.03, kFall = 0.1;

typedef struct {
  const char *text, *tokens, *checkpoint;
  size_t steps, layers, hidden, heads, sequence, batch, vocabulary, seed, shard, graph, tp, sp, cp,
      dp, experts, ep;
  NVTEXCommunicator world;
  NVTEXGrid grid;
  size_t rank, ranks, replica, replicas; /* of all ranks, and of those with batches of their own */
} Options;

typedef struct {
  const char *name; /* of the recipe */
  NVTEXContext context;
  NVTEXRecipe recipe;
  NVTEXModule model;
  NVTEXDataParallel engine;
  NVTEXOptimizer optimizer;
  NVTETensor whole[3], own[3], loss;
  cudaStream_t stream;
  bool resumed;
  double first, last, rate; /* losses at both ends; tokens per second */
} Run;

static double seconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool on_gpu(void) { return strcmp(nvtex_backend_name(), "cuda") == 0; }
static NVTEDType main_dtype(void) { return on_gpu() ? kNVTEBFloat16 : kNVTEFloat32; }

static const char *option(char **argv, const char *name, const char *fallback) {
  for (; argv[0] != NULL && argv[1] != NULL; ++argv) {
    if (strcmp(argv[0], name) == 0) return argv[1];
  }
  return fallback;
}

static size_t number(char **argv, const char *name, const char *fallback) {
  return strtoul(option(argv, name, fallback), NULL, 10);
}

/* Null for the recipe that multiplies in high precision, which has any other name. */
static NVTEXRecipe new_recipe(const char *name) {
  static const char *const names[] = {"delayed", "current", "block", "mxfp8"};
  int kind = 0;
  while (kind < 4 && strcmp(name, names[kind]) != 0) ++kind;
  if (kind == 4) return NULL;
  NVTEXRecipeConfig config;
  nvtex_recipe_config_init(&config, sizeof config, (NVTEXRecipeKind)kind);
  return nvtex_recipe_create(&config);
}

/* Embedding, layers, norm, and a head that shares the embedding's weight, in a row. */
static NVTEXModule new_model(const Options *o, NVTEXContext context, cudaStream_t stream) {
  const NVTEXParallelConfig of_grid = {.sequence_parallel = o->sp != 0}; /* sizes 0: the grid's */
  NVTEXModule parts[MAX_LAYERS + 3], *part = parts;
  NVTEXEmbeddingConfig embedding;
  nvtex_embedding_config_init(&embedding, sizeof embedding);
  embedding.vocabulary_size = o->vocabulary, embedding.max_positions = o->sequence;
  embedding.hidden_size = o->hidden, embedding.dtype = main_dtype(), embedding.seed = o->seed;
  embedding.parallel = &of_grid;
  *part++ = nvtex_embedding_create(context, &embedding, stream);
  NVTEXTransformerLayerConfig layer;
  nvtex_transformer_layer_config_init(&layer, sizeof layer);
  layer.attention.num_attention_heads = o->heads, layer.attention.qkv_format = NVTE_BSHD;
  layer.mlp.hidden_size = o->hidden, layer.mlp.ffn_hidden_size = 4 * o->hidden;
  layer.mlp.dtype = layer.attention.dtype = main_dtype();
  layer.mlp.parallel = layer.attention.parallel = of_grid;
  layer.mlp.output_init_std = layer.mlp.init_std / sqrtf(2 * (float)o->layers);
  NVTEXMoeConfig experts;
  nvtex_moe_config_init(&experts, sizeof experts);
  experts.num_experts = o->experts, experts.top_k = 2, experts.ffn_hidden_size = 2 * o->hidden;
  experts.output_init_std = layer.mlp.output_init_std, experts.balance_coefficient = 1e-2f;
  experts.expert_parallel_size = 0; /* the grid's */
  layer.experts = o->experts > 0 ? &experts : NULL;
  for (size_t i = 0; i < o->layers; ++i) {
    layer.mlp.seed = o->seed * (MAX_LAYERS + 1) + i;
    *part++ = nvtex_transformer_layer_create(context, &layer, stream);
  }
  NVTEXNormConfig norm;
  nvtex_norm_config_init(&norm, sizeof norm);
  norm.hidden_size = o->hidden, norm.dtype = main_dtype(), norm.sequence_parallel = o->sp != 0;
  *part++ = nvtex_norm_create(context, &norm, stream);
  NVTEXLMHeadConfig head;
  nvtex_lm_head_config_init(&head, sizeof head);
  head.tied_to = parts[0], head.parallel = &of_grid;
  *part++ = nvtex_lm_head_create(context, &head, stream);
  const NVTEXModule model = nvtex_sequential_create(context, parts, NULL, (size_t)(part - parts));
  while (part-- > parts) nvtex_module_destroy(*part); /* the model keeps them */
  return model;
}

/* Gradients are means over all ranks that have rows of their own. */
static NVTEXDataParallel new_engine(const Options *o, const Run *run) {
  NVTEXDataParallelConfig config;
  nvtex_data_parallel_config_init(&config, sizeof config);
  config.sharding = (NVTEXSharding)o->shard;
  const NVTEXCommunicator ranks = nvtex_grid_communicator(o->grid, NVTEX_GRID_DP_CP);
  return nvtex_data_parallel_create(run->context, &config, ranks, &run->model, 1, run->stream);
}

static NVTEXOptimizer new_optimizer(const Options *o, const Run *run) {
  NVTEXOptimizerConfig config;
  nvtex_optimizer_config_init(&config, sizeof config, NVTEX_UPDATE_ADAMW);
  config.learning_rate = 0.3f / (float)o->hidden; /* smaller for wider models */
  config.last_rate_factor = 0.1f, config.schedule = NVTEX_SCHEDULE_COSINE;
  config.warmup_steps = (int32_t)(o->steps / 10), config.total_steps = (int32_t)o->steps + 1;
  config.weight_decay = 0.1f, config.beta2 = 0.95f, config.max_norm = 1;
  config.initial_masters = true, config.data_parallel = run->engine;
  return nvtex_optimizer_create(run->context, &config, &run->model, 1, run->stream);
}

/* Tokens, positions and targets: of whole sequences, and the rows of them that this rank has. */
static void new_arrays(const Options *o, Run *run) {
  const size_t whole[] = {o->batch, o->sequence}, own[] = {o->batch, o->sequence / o->cp};
  int32_t *places = malloc(o->batch * o->sequence * sizeof *places);
  for (size_t i = 0; i < o->batch * o->sequence; ++i) places[i] = (int32_t)(i % o->sequence);
  for (int i = 0; i < 3; ++i) {
    run->whole[i] = nvtex_array_create(kNVTEInt32, whole, 2);
    run->own[i] = o->cp == 1 ? run->whole[i] : nvtex_array_create(kNVTEInt32, own, 2);
  }
  nvtex_array_set(run->whole[1], places, o->batch * o->sequence * sizeof *places, run->stream);
  run->loss = nvtex_array_create(kNVTEFloat32, NULL, 0);
  free(places);
}

static void next_batch(const Options *o, const Run *run, NVTEXTokenLoader loader) {
  nvtex_token_loader_next_on_device(loader, run->whole[0], run->whole[2], run->stream);
  const NVTEXCommunicator ranks = nvtex_grid_communicator(o->grid, NVTEX_GRID_CP);
  for (int i = 0; i < 3 && o->cp > 1; ++i) {
    nvtex_context_parallel_split(ranks, run->whole[i], run->own[i], NVTE_BSHD, run->stream);
  }
}

static NVTEXTokenLoader new_loader(const Options *o) {
  NVTEXTokenLoaderConfig config;
  nvtex_token_loader_config_init(&config, sizeof config);
  config.paths = o->tokens != NULL ? &o->tokens : &o->text, config.num_paths = 1;
  config.token_bytes = o->tokens != NULL ? 2 : 1, config.vocabulary = o->vocabulary;
  config.batch = o->batch, config.sequence = o->sequence, config.seed = o->seed;
  config.rank = o->replica, config.world = o->replicas;
  return nvtex_token_loader_create(&config);
}

/* Saves the state of a run, or loads it if there is a file; each recipe has a file of its own. */
static void checkpoint(const Options *o, Run *run, NVTEXTokenLoader loader, bool save) {
  char path[512];
  if (o->checkpoint == NULL) return;
  snprintf(path, sizeof path, "%s.%s", o->checkpoint, run->name);
  NVTEXCheckpointConfig config;
  nvtex_checkpoint_config_init(&config, sizeof config);
  config.modules = &run->model, config.num_modules = 1, config.optimizer = run->optimizer;
  config.loader = loader, config.communicator = o->world;
  FILE *file = save ? NULL : fopen(path, "rb");
  if (save) nvtex_checkpoint_save(path, &config, run->stream);
  if (file != NULL) nvtex_checkpoint_load(path, &config, run->stream), fclose(file);
  run->resumed |= file != NULL;
}

/* Both passes and the update. What changes from step to step is on the device. */
static void step(const Options *o, Run *run) {
  NVTEXTape tape = NULL;
  nvtex_context_begin(run->context, run->recipe, run->recipe ? NVTEX_CONTEXT_ENABLED : 0, NULL);
  nvtex_module_forward(run->model, run->own, 3, &run->loss, 1, NULL, &tape, run->stream);
  nvtex_context_end(run->context);
  nvtex_context_forward_update(run->context, run->stream);
  nvtex_module_backward(run->model, tape, NULL, 0, NULL, 0, run->stream);
  nvtex_context_backward_update(run->context, run->stream);
  nvtex_tape_destroy(tape);
  nvtex_data_parallel_reduce(run->engine, run->stream);
  nvtex_optimizer_step(run->optimizer, run->stream);
  void *loss = nvte_tensor_data(run->loss);
  nvtex_all_reduce(o->world, loss, loss, 1, kNVTEFloat32, NVTEX_REDUCTION_SUM, "loss", run->stream);
}

/* Of a GPU's limit: 6 operations for each weight and token, and those of attention. */
static void show_progress(const Options *o, const Run *run, size_t done, double loss) {
  const double peak =
      989e12 * (double)o->ranks; /* operations a second of H100 or H200 in bfloat16 */
  const double layers = (double)o->layers, hidden = (double)o->hidden, keys = (double)o->sequence;
  const double weights = hidden * (12 * layers * hidden + (double)o->vocabulary);
  const double share = (6 * weights + 12 * layers * hidden * keys) * run->rate / peak;
  printf("%-8s step %4zu   loss %.4f   %.0f tokens/s", run->name, done, loss, run->rate);
  if (on_gpu()) printf("   %.1f %% of %g TFLOP/s", 100 * share, peak / 1e12);
  printf("\n"), fflush(stdout);
}

static void train(const Options *o, Run *run) {
  const NVTEXTokenLoader loader = new_loader(o);
  checkpoint(o, run, loader, false);
  NVTEXTokenPosition position = {.struct_size = sizeof position};
  nvtex_token_loader_position(loader, &position);
  const size_t warm = position.batches + 3, tail = o->steps - o->steps / 10;
  const double tokens = (double)(o->batch * o->sequence * o->replicas); /* of a step */
  NVTEXGraph graph = NULL;
  double start = seconds();
  for (size_t i = position.batches + 1; i <= o->steps; ++i) {
    next_batch(o, run, loader);
    if (on_gpu() && o->graph && o->ep == 1 && i == warm) { /* all memory is allocated by now */
      nvtex_graph_begin(run->stream);
      step(o, run);
      graph = nvtex_graph_end(run->stream);
    }
    graph == NULL ? step(o, run) : nvtex_graph_replay(graph, run->stream);
    float sum = 0;
    nvtex_array_get(run->loss, &sum, sizeof sum, run->stream);
    const double loss = sum / (double)o->ranks;
    if (i == 1) run->first = loss;
    if (i >= tail) run->last += loss / (double)(o->steps - tail + 1);
    if (i == warm) start = seconds(); /* what runs once does not count */
    if (i > warm) run->rate = (double)(i - warm) * tokens / (seconds() - start);
    if (i * 10 / o->steps == (i - 1) * 10 / o->steps) continue;
    if (o->rank == 0) show_progress(o, run, i, loss);
    const double saving = seconds();
    checkpoint(o, run, loader, true);
    start += seconds() - saving;
  }
  nvtex_graph_destroy(graph), nvtex_token_loader_destroy(loader);
}

/* Draws a token from the distribution of the logits, sharpened a little. */
static int32_t draw(const void *logits, size_t count) {
  double sum = 0;
  size_t drawn = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = on_gpu() ? (uint32_t)((const uint16_t *)logits)[i] << 16 /* bfloat16 */
                                   : ((const uint32_t *)logits)[i];
    float logit;
    memcpy(&logit, &bits, sizeof logit);
    const double weight = exp(1.25 * logit);
    sum += weight; /* so that the last of all is kept with its part of the sum */
    if (rand() / ((double)RAND_MAX + 1) * sum < weight) drawn = i;
  }
  return (int32_t)drawn;
}

/* Shows half a sequence of the last batch, and continues it in high precision. */
static void write_sample(const Options *o, const Run *run) {
  const size_t row = o->vocabulary * (on_gpu() ? 2 : 4), bytes = o->sequence * sizeof(int32_t);
  NVTETensor tokens = nvtex_array_create(kNVTEInt32, (size_t[]){1, o->sequence}, 2);
  NVTETensor logits = nvtex_array_create(main_dtype(), (size_t[]){o->sequence, o->vocabulary}, 2);
  const NVTETensor outputs[] = {NULL, NULL, logits};
  int32_t *text = malloc(o->batch * bytes);
  char *all = malloc(o->sequence * row);
  nvtex_array_get(run->whole[0], text, o->batch * bytes, run->stream);
  for (size_t i = 0; i < o->sequence; ++i) {
    if (i == (o->sequence + 1) / 2) printf(" [from here on by the model] ");
    if (i >= (o->sequence + 1) / 2) {
      nvtex_array_set(tokens, text, bytes, run->stream);
      nvtex_module_forward(run->model, &tokens, 1, outputs, 3, NULL, NULL, run->stream);
      nvtex_array_get(logits, all, o->sequence * row, run->stream);
      text[i] = draw(all + (i - 1) * row, o->vocabulary);
    }
    if (o->tokens != NULL) printf("%d ", (int)text[i]);
    if (o->tokens == NULL) putchar(isprint(text[i]) || text[i] == '\n' ? text[i] : '.');
  }
  printf("\n");
  nvtex_array_destroy(tokens), nvtex_array_destroy(logits);
  free(text), free(all);
}

/* Whether all runs learned, and as much as the first one. A loss that is not a number fails. */
static bool report(const Run *runs, size_t count) {
  bool good = true;
  printf("\nrecipe         loss   to the first   tokens/s\n");
  for (const Run *r = runs; r < runs + count; ++r) {
    const double difference = r->last / runs[0].last - 1;
    const bool learned = r->resumed || r->last < (1 - kFall) * r->first,
               close = fabs(difference) <= kBound;
    printf("%-8s %10.4f %+12.2f %% %10.0f%s%s\n", r->name, r->last, 100 * difference, r->rate,
           learned ? "" : "   DID NOT FALL", close ? "" : "   TOO FAR");
    good = good && learned && close;
  }
  return good;
}

int main(int argc, char **argv) {
  (void)argc;
  nvtex_set_error_mode(NVTEX_ERROR_ABORT); /* a call that fails ends the program with its message */
  Options o = {
      option(argv, "--text", "gpt.c"),    option(argv, "--tokens", NULL),
      option(argv, "--checkpoint", NULL), number(argv, "--steps", "500"),
      number(argv, "--layers", "2"),      number(argv, "--hidden", "128"),
      number(argv, "--heads", "4"),       number(argv, "--sequence", "64"),
      number(argv, "--batch", "8"),       number(argv, "--vocabulary", "256"),
      number(argv, "--seed", "1"),        number(argv, "--shard", "0"),
      number(argv, "--graph", "1"),       number(argv, "--tp", "1"),
      number(argv, "--sp", "0"),          number(argv, "--cp", "1"),
      number(argv, "--dp", "0"),          number(argv, "--experts", "0"),
      number(argv, "--ep", "1"),          .world = nvtex_communicator_from_environment(NULL)};
  o.rank = (size_t)nvtex_communicator_rank(o.world);
  o.ranks = (size_t)nvtex_communicator_size(o.world);
  const NVTEXGridConfig sizes = {
      .struct_size = sizeof sizes, .tp = o.tp, .cp = o.cp, .dp = o.dp, .ep = o.ep};
  o.grid = nvtex_grid_create(o.world, &sizes);
  o.replica = (size_t)nvtex_communicator_rank(nvtex_grid_communicator(o.grid, NVTEX_GRID_DP));
  o.replicas = o.ranks / (o.tp * o.cp);
  if (o.batch % o.replicas != 0) {
    fprintf(stderr, "--batch must be a multiple of %zu, of the ranks that divide it\n", o.replicas);
    return EXIT_FAILURE;
  }
  o.batch /= o.replicas; /* of this rank from here on */
  char all[] = "bf16,delayed,current,block,mxfp8";
  char *names = (char *)option(argv, "--recipes", all);
  Run runs[MAX_RUNS];
  size_t count = 0;
  for (char *name = strtok(names, ","); name && count < MAX_RUNS; name = strtok(NULL, ",")) {
    Run run = {name, nvtex_context_create(NULL), new_recipe(name), .stream = nvtex_stream_create()};
    nvtex_context_set_grid(run.context, o.grid);
    run.model = new_model(&o, run.context, run.stream);
    run.engine = new_engine(&o, &run);
    run.optimizer = new_optimizer(&o, &run);
    new_arrays(&o, &run);
    train(&o, &run);
    nvtex_data_parallel_gather(run.engine, run.stream); /* with --shard 3, for one rank alone: */
    if (o.rank == 0 && o.replicas == o.ranks && o.ep == 1) write_sample(&o, &run);
    for (int i = 0; i < 3; ++i) nvtex_array_destroy(run.whole[i]);
    for (int i = 0; i < 3 && o.cp > 1; ++i) nvtex_array_destroy(run.own[i]);
    nvtex_array_destroy(run.loss);
    nvtex_optimizer_destroy(run.optimizer), nvtex_data_parallel_destroy(run.engine);
    nvtex_module_destroy(run.model), nvtex_context_destroy(run.context);
    nvtex_recipe_destroy(run.recipe), nvtex_stream_destroy(run.stream);
    runs[count++] = run;
  }
  nvtex_grid_destroy(o.grid), nvtex_communicator_destroy(o.world);
  return o.rank > 0 || report(runs, count) ? EXIT_SUCCESS : EXIT_FAILURE;
}
