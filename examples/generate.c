/* Writes text by a model: tokens go in once, and each new one attends to those before it in a cache
 * of keys and values. The model is a folder of the Llama or Qwen family as Hugging Face stores it,
 * or a checkpoint of gpt.c, with the sizes that gpt.c was told:
 *
 *     generate --model DIR --prompt "1 4096 17"
 *     generate --checkpoint FILE.bf16 --layers 2 --hidden 128 --heads 4 --prompt "int main"
 *
 * The prompt of the former are numbers of tokens, that of the latter is text. */
#include <nvte/nvte.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 65536 };

static const char *option(char **argv, const char *name, const char *fallback) {
  for (; argv[0] != NULL && argv[1] != NULL; ++argv) {
    if (strcmp(argv[0], name) == 0) return argv[1];
  }
  return fallback;
}

static size_t number(char **argv, const char *name, const char *fallback) {
  return strtoul(option(argv, name, fallback), NULL, 10);
}

/* The model of gpt.c, with the weights of a checkpoint. */
static NVTEXModule gpt(NVTEXContext context, char **argv, const char *path, NVTEDType dtype) {
  NVTEXLanguageModelConfig sizes;
  nvtex_language_model_config_init(&sizes, sizeof sizes);
  sizes.vocabulary_size = number(argv, "--vocabulary", "256");
  sizes.max_positions = number(argv, "--sequence", "64");
  sizes.num_layers = number(argv, "--layers", "2");
  sizes.layer.hidden_size = number(argv, "--hidden", "128");
  sizes.layer.ffn_hidden_size = 4 * sizes.layer.hidden_size;
  sizes.layer.num_attention_heads = number(argv, "--heads", "4"), sizes.layer.dtype = dtype;
  const NVTEXModule model = nvtex_language_model_create(context, &sizes, NULL);
  NVTEXCheckpointConfig config;
  nvtex_checkpoint_config_init(&config, sizeof config);
  config.modules = &model, config.num_modules = 1;
  nvtex_checkpoint_load(path, &config, NULL);
  return model;
}

int main(int argc, char **argv) {
  (void)argc;
  nvtex_set_error_mode(NVTEX_ERROR_ABORT); /* a call that fails ends the program with its message */
  const char *folder = option(argv, "--model", NULL), *file = option(argv, "--checkpoint", NULL);
  const char *prompt = option(argv, "--prompt", "");
  static int32_t tokens[MOST_TOKENS], places[MOST_TOKENS];
  size_t count = 0;
  while (*prompt != 0 && count < MOST_TOKENS) {
    char *end = NULL;
    const long token = folder ? strtol(prompt, &end, 10) : (unsigned char)*prompt;
    if (end == prompt) break; /* no number is left */
    tokens[count++] = (int32_t)token;
    prompt = folder ? end : prompt + 1;
  }
  const size_t last = count + number(argv, "--tokens", "32");
  if (count == 0 || last > MOST_TOKENS || (folder == NULL && file == NULL)) {
    fprintf(stderr,
            "generate (--model DIR | --checkpoint FILE) --prompt TOKENS [--tokens 32] "
            "[--temperature 0] [--top-k 0] [--top-p 1] [--seed 1]\n");
    return EXIT_FAILURE;
  }
  const NVTEDType dtype = strcmp(nvtex_backend_name(), "cuda") ? kNVTEFloat32 : kNVTEBFloat16;
  const NVTEXContext context = nvtex_context_create(NULL);
  NVTEXLlamaSizes sizes = {.struct_size = sizeof sizes};
  sizes.vocabulary_size = number(argv, "--vocabulary", "256");
  sizes.max_positions = number(argv, "--sequence", "64");
  if (folder != NULL) nvtex_llama_sizes(folder, &sizes);
  if (sizes.max_positions > 0 && last > sizes.max_positions) {
    fprintf(stderr, "%zu tokens, and the model knows %zu positions\n", last, sizes.max_positions);
    return EXIT_FAILURE;
  }
  const NVTEXModule model =
      folder ? nvtex_llama_create(context, folder, dtype, NULL) : gpt(context, argv, file, dtype);
  NVTEXKVCacheConfig memory;
  nvtex_kv_cache_config_init(&memory, sizeof memory);
  memory.max_batch_size = 1, memory.max_sequence_length = last;
  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  step.kv_cache = nvtex_kv_cache_create(context, &memory, NULL);
  if (folder != NULL) { /* angles of all positions; gpt.c has learned its positions */
    NVTEXRotaryConfig rotary;
    nvtex_rotary_config_init(&rotary, sizeof rotary);
    rotary.base = sizes.rotary_base, rotary.interpolation_factor = sizes.rotary_factor;
    const size_t shape[] = {last + count, 1, 1, sizes.head_dim};
    step.rotary_frequencies = nvtex_array_create(kNVTEFloat32, shape, 4);
    nvtex_rotary_frequencies(step.rotary_frequencies, &rotary, NULL);
  }
  const float temperature = strtof(option(argv, "--temperature", "0"), NULL);
  const float top_p = strtof(option(argv, "--top-p", "1"), NULL);
  const size_t top_k = number(argv, "--top-k", "0"), vocabulary = sizes.vocabulary_size;
  const NVTETensor random = nvtex_array_create(kNVTEInt64, (size_t[]){2}, 1);
  const NVTETensor drawn = nvtex_array_create(kNVTEInt32, (size_t[]){1}, 1);
  const NVTETensor newest = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  NVTETensor in = NULL, at = NULL, logits = NULL;
  for (size_t i = 0; i < last; ++i) places[i] = (int32_t)i;
  for (size_t done = 0, rows = 0; count < last; ++count) { /* the prompt, then token by token */
    const size_t fresh = count - done;
    if (fresh != rows) { /* twice */
      rows = fresh;
      nvtex_array_destroy(in), nvtex_array_destroy(at), nvtex_array_destroy(logits);
      in = nvtex_array_create(kNVTEInt32, (size_t[]){1, rows}, 2);
      at = nvtex_array_create(kNVTEInt32, (size_t[]){1, rows}, 2);
      logits = nvtex_array_create(dtype, (size_t[]){rows, vocabulary}, 2);
      char *const row = (char *)nvte_tensor_data(logits) +
                        (rows - 1) * vocabulary * (dtype == kNVTEFloat32 ? 4 : 2);
      const NVTEShape shape = nvte_make_shape((size_t[]){1, vocabulary}, 2);
      const NVTEBasicTensor data = {row, dtype, shape}; /* logits of the newest token */
      nvte_set_tensor_param_v2(newest, kNVTERowwiseData, &data, sizeof data);
    }
    nvtex_array_set(in, tokens + done, rows * sizeof *tokens, NULL);
    nvtex_array_set(at, places + done, rows * sizeof *places, NULL);
    nvtex_kv_cache_step(step.kv_cache, &fresh, 1, NULL);
    const NVTETensor inputs[] = {in, folder ? NULL : at}, outputs[] = {NULL, NULL, logits};
    nvtex_module_forward(model, inputs, 2, outputs, 3, &step, NULL, NULL);
    const int64_t state[] = {(int64_t)number(argv, "--seed", "1"), (int64_t)count};
    nvtex_array_set(random, state, sizeof state, NULL); /* each token draws anew */
    nvtex_sample_tokens(newest, drawn, random, temperature, top_k, top_p, NULL);
    nvtex_array_get(drawn, tokens + count, sizeof *tokens, NULL);
    printf(folder ? "%d " : "%c", (int)tokens[count]), fflush(stdout);
    done = count;
  }
  printf("\n");
  const NVTETensor arrays[] = {in, at, logits, random, drawn, step.rotary_frequencies};
  for (int i = 0; i < 6; ++i) nvtex_array_destroy(arrays[i]);
  nvte_destroy_tensor(newest);
  nvtex_kv_cache_destroy(step.kv_cache);
  nvtex_module_destroy(model);
  nvtex_context_destroy(context);
  return EXIT_SUCCESS;
}
