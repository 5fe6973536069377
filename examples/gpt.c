/* Trains a GPT on the bytes or the tokens of a file, once for each recipe with the same weights and
 * batches, and lets each model write. On a GPU all but FP8 is bfloat16, with float32 masters, and a
 * step is one graph; on a CPU it is float32. Under `nvtex-run -n N --gpus`, torchrun or mpirun
 * --tp N ranks share weights (--sp 1: also the rows between products), --cp N share sequences, and
 * others divide each batch, with --shard 2 also the optimizer's state, with --shard 3 the weights.
 * --experts N replaces each MLP by N of them, of which a token takes two and --ep N ranks have
 * parts; --capacity F limits each to F times the mean, so that such a step is one graph, too.
 * With --checkpoint PATH a run goes on where an earlier one, on any grid, has saved. */
#include <ctype.h>
#include <math.h>
#include <nvte/nvte.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double kBound = 0.03, kFall = 0.1; /* most off the first run, least fall of the loss */

typedef struct {
  const char *text, *tokens, *checkpoint;
  size_t steps, layers, hidden, heads, sequence, batch, vocabulary, seed, shard, graph, tp, sp, cp,
      dp, experts, ep;
  float capacity;
  NVTEXCommunicator world;
  NVTEXGrid grid;
} Options;

typedef struct {
  const char *name; /* of the recipe */
  NVTEXContext context;
  NVTEXRecipe recipe;
  NVTEXModule model;
  NVTEXTrainer trainer;
  NVTEXTokenLoader loader;
  NVTETensor inputs[3]; /* tokens, positions and targets of this rank */
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
  while (*argv != NULL && strcmp(*argv, name) != 0) ++argv;
  return argv[0] != NULL && argv[1] != NULL ? argv[1] : fallback;
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

static NVTEXModule new_model(const Options *o, const Run *run) {
  NVTEXLanguageModelConfig model;
  nvtex_language_model_config_init(&model, sizeof model);
  model.num_layers = o->layers, model.max_positions = o->sequence;
  model.vocabulary_size = o->vocabulary, model.workspace_limit = 2000000000; /* of logits */
  NVTEXTransformerLayerConfig *const layer = &model.layer;
  layer->hidden_size = o->hidden, layer->ffn_hidden_size = 4 * o->hidden;
  layer->num_attention_heads = o->heads, layer->dtype = main_dtype(), layer->seed = o->seed;
  layer->parallel = (NVTEXParallelConfig){.sequence_parallel = o->sp != 0}; /* sizes of the grid */
  NVTEXMoeConfig experts;
  nvtex_moe_config_init(&experts, sizeof experts);
  experts.num_experts = o->experts, experts.top_k = 2, experts.ffn_hidden_size = 2 * o->hidden;
  experts.balance_coefficient = 1e-2f, experts.capacity_factor = o->capacity;
  experts.expert_parallel_size = experts.tensor_parallel_size = 0; /* the grid's */
  if (o->experts > 0) layer->experts = &experts;
  return nvtex_language_model_create(run->context, &model, run->stream);
}

static NVTEXTrainer new_trainer(const Options *o, const Run *run) {
  NVTEXOptimizerConfig optimizer;
  nvtex_optimizer_config_init(&optimizer, sizeof optimizer, NVTEX_UPDATE_ADAMW);
  optimizer.learning_rate = 0.3f / (float)o->hidden; /* smaller for wider models */
  optimizer.last_rate_factor = 0.1f, optimizer.schedule = NVTEX_SCHEDULE_COSINE;
  optimizer.warmup_steps = (int32_t)(o->steps / 10), optimizer.total_steps = (int32_t)o->steps + 1;
  optimizer.weight_decay = 0.1f, optimizer.beta2 = 0.95f, optimizer.max_norm = 1;
  optimizer.initial_masters = true;
  NVTEXDataParallelConfig ranks;
  nvtex_data_parallel_config_init(&ranks, sizeof ranks);
  ranks.sharding = (NVTEXSharding)o->shard, ranks.wire_dtype = main_dtype();
  NVTEXTrainerConfig config;
  nvtex_trainer_config_init(&config, sizeof config);
  config.model = run->model, config.recipe = run->recipe;
  config.optimizer = &optimizer, config.data_parallel = &ranks;
  /* Ranks that share experts wait for the numbers of their rows if these are not limited. */
  config.graph = o->graph && (o->ep == 1 || o->capacity > 0);
  return nvtex_trainer_create(run->context, &config, run->stream);
}

static NVTEXTokenLoader new_loader(const Options *o) {
  NVTEXTokenLoaderConfig config;
  nvtex_token_loader_config_init(&config, sizeof config);
  config.paths = o->tokens != NULL ? &o->tokens : &o->text, config.num_paths = 1;
  config.token_bytes = o->tokens != NULL ? 2 : 1, config.vocabulary = o->vocabulary;
  config.batch = o->batch, config.sequence = o->sequence, config.seed = o->seed,
  config.grid = o->grid;
  return nvtex_token_loader_create(&config);
}

/* Saves the state of a run, or loads it if there is a file; each recipe has a file of its own. */
static void checkpoint(const Options *o, Run *run, bool save) {
  char path[512];
  if (o->checkpoint == NULL) return;
  snprintf(path, sizeof path, "%s.%s", o->checkpoint, run->name);
  NVTEXCheckpointConfig config;
  nvtex_checkpoint_config_init(&config, sizeof config);
  config.modules = &run->model, config.num_modules = 1, config.loader = run->loader;
  config.optimizer = nvtex_trainer_optimizer(run->trainer), config.communicator = o->world;
  FILE *file = save ? NULL : fopen(path, "rb");
  if (save) nvtex_checkpoint_save(path, &config, run->stream);
  if (file == NULL) return;
  nvtex_checkpoint_load(path, &config, run->stream);
  run->resumed = true, fclose(file);
}

/* A token takes 6 operations for each weight, and those of attention. */
static void show_progress(const Options *o, const Run *run, size_t done, double loss) {
  const double layers = (double)o->layers, hidden = (double)o->hidden, keys = (double)o->sequence;
  const double weights = hidden * (12 * layers * hidden + (double)o->vocabulary);
  const double rate = (6 * weights + 12 * layers * hidden * keys) * run->rate, peak = 989e12;
  printf("%-8s step %4zu   loss %.4f   %.0f tokens/s", run->name, done, loss, run->rate);
  if (on_gpu()) /* bfloat16 of H100 and H200 */
    printf("   %.1f %% of 989 TFLOP/s", 100 * rate / peak / nvtex_communicator_size(o->world));
  printf("\n"), fflush(stdout);
}

static void train(const Options *o, Run *run) {
  NVTEXTokenPosition position = {.struct_size = sizeof position};
  nvtex_token_loader_position(run->loader, &position);
  const size_t warm = position.batches + 3, tail = o->steps - o->steps / 10;
  double start = seconds();
  for (size_t i = position.batches + 1; i <= o->steps; ++i) {
    nvtex_token_loader_next_on_device(run->loader, run->inputs[0], run->inputs[2], run->stream);
    nvtex_trainer_step(run->trainer, run->inputs, 3, NULL, run->stream);
    const bool shown = i * 10 / o->steps != (i - 1) * 10 / o->steps;
    if (i > 1 && i != warm && i < tail && !shown) continue; /* who reads a loss waits for it */
    const double loss = nvtex_trainer_loss(run->trainer, run->stream);
    if (i == 1) run->first = loss;
    if (i >= tail) run->last += loss / (double)(o->steps - tail + 1);
    if (i == warm) start = seconds(); /* what runs once does not count */
    if (i > warm) run->rate = (double)((i - warm) * o->batch * o->sequence) / (seconds() - start);
    if (!shown) continue;
    if (nvtex_communicator_rank(o->world) == 0) show_progress(o, run, i, loss);
    const double saving = seconds();
    checkpoint(o, run, true);
    start += seconds() - saving;
  }
}

/* Shows half a sequence of the last batch, and continues it in high precision. */
static void write_sample(const Options *o, const Run *run) {
  const size_t length = o->sequence, bytes = length * sizeof(int32_t);
  const NVTETensor tokens = nvtex_array_create(kNVTEInt32, (size_t[]){1, length}, 2);
  const NVTETensor random = nvtex_array_create(kNVTEInt64, (size_t[]){2}, 1);
  const NVTETensor logits = nvtex_array_create(main_dtype(), (size_t[]){length, o->vocabulary}, 2);
  const size_t batch = nvte_tensor_numel(run->inputs[0]) * sizeof(int32_t);
  int32_t *text = malloc(batch), *next = malloc(bytes);
  nvtex_array_get(run->inputs[0], text, batch, run->stream);
  for (size_t i = 0; i < length; ++i) {
    if (i == (length + 1) / 2) printf(" [from here on by the model] ");
    if (i >= (length + 1) / 2) {
      const int64_t state[] = {(int64_t)o->seed, (int64_t)i};
      nvtex_array_set(random, state, sizeof state, run->stream);
      nvtex_array_set(tokens, text, bytes, run->stream);
      const NVTETensor outputs[] = {NULL, NULL, logits};
      nvtex_module_forward(run->model, &tokens, 1, outputs, 3, NULL, NULL, run->stream);
      nvtex_sample_tokens(logits, tokens, random, 0.8f, 0, 1, run->stream); /* behind each */
      nvtex_array_get(tokens, next, bytes, run->stream);
      text[i] = next[i - 1];
    }
    if (o->tokens != NULL) printf("%d ", (int)text[i]);
    if (o->tokens == NULL) putchar(isprint(text[i]) || text[i] == '\n' ? text[i] : '.');
  }
  printf("\n");
  nvtex_array_destroy(tokens), nvtex_array_destroy(random), nvtex_array_destroy(logits);
  free(text), free(next);
}

/* Whether a run learned, and as much as the first one. A loss that is not a number fails. */
static bool report(const Run *run, const Run *first) {
  const double difference = run->last / first->last - 1; /* of mean losses at the end */
  const bool learned = run->resumed || run->last < (1 - kFall) * run->first;
  const bool close = fabs(difference) <= kBound;
  printf("%-8s ends at %.4f, %+.2f %% to %s, %.0f tokens/s%s%s\n", run->name, run->last,
         100 * difference, first->name, run->rate, learned ? "" : "   DID NOT FALL",
         close ? "" : "   TOO FAR");
  return learned && close;
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
  o.capacity = strtof(option(argv, "--capacity", "0"), NULL);
  const bool first_rank = nvtex_communicator_rank(o.world) == 0;
  const NVTEXGridConfig sizes = {sizeof sizes, .tp = o.tp, .cp = o.cp, .dp = o.dp, .ep = o.ep};
  o.grid = nvtex_grid_create(o.world, &sizes);
  const NVTEXCommunicator replicas = nvtex_grid_communicator(o.grid, NVTEX_GRID_DP);
  const size_t own[] = {o.batch / (size_t)nvtex_communicator_size(replicas), o.sequence / o.cp};
  char all[] = "bf16,delayed,current,block,mxfp8", *names = (char *)option(argv, "--recipes", all);
  Run first = {0};
  bool good = true;
  for (char *name = strtok(names, ","); name != NULL; name = strtok(NULL, ",")) {
    Run run = {name, nvtex_context_create(NULL), new_recipe(name), .stream = nvtex_stream_create()};
    nvtex_context_set_grid(run.context, o.grid);
    run.model = new_model(&o, &run), run.trainer = new_trainer(&o, &run);
    run.loader = new_loader(&o);
    for (int i = 0; i < 3; ++i) run.inputs[i] = nvtex_array_create(kNVTEInt32, own, 2);
    nvtex_token_loader_positions(run.loader, run.inputs[1], run.stream);
    checkpoint(&o, &run, false);
    train(&o, &run);
    nvtex_data_parallel_gather(nvtex_trainer_data_parallel(run.trainer), run.stream);
    if (first_rank && o.tp * o.cp * o.ep == 1) write_sample(&o, &run);
    if (first.name == NULL) first = run;
    if (first_rank) good = report(&run, &first) && good;
    for (int i = 0; i < 3; ++i) nvtex_array_destroy(run.inputs[i]);
    nvtex_token_loader_destroy(run.loader), nvtex_trainer_destroy(run.trainer);
    nvtex_module_destroy(run.model), nvtex_context_destroy(run.context);
    nvtex_recipe_destroy(run.recipe), nvtex_stream_destroy(run.stream);
  }
  nvtex_grid_destroy(o.grid), nvtex_communicator_destroy(o.world);
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
