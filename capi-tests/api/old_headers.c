// Programs that were compiled with an older header: structs of the size that they had then are
// taken, nothing is written behind them, what they lack has its default, and a longer struct is
// taken if what is new in it is 0.
#include "old/nvtex_0_1.h"
#include "../support.h"

// A struct as an older program has it, filled by its init function, with bytes behind it that
// nobody may write.
#define INITIALISED(type, config, ...)                                                            \
  _Alignas(16) unsigned char memory_##config[sizeof(type##_0_1) + 64];                            \
  memset(memory_##config, GUARD_VALUE, sizeof memory_##config);                                   \
  type##_0_1 *config = (void *)memory_##config;                                                   \
  __VA_ARGS__;                                                                                    \
  EXPECT_OK();                                                                                    \
  CHECK_EQ(config->struct_size, sizeof *config);                                                  \
  for (size_t i = sizeof *config; i < sizeof memory_##config; i++) {                              \
    if (!CHECK(memory_##config[i] == GUARD_VALUE, "byte %zu of %s was written", i, #type)) break; \
  }

#define CHECK_INIT(type, init)                                              \
  do {                                                                      \
    if (!case_begin("%s of version 0.1", #type)) break;                     \
    INITIALISED(type, config, init((type *)(void *)config, sizeof *config)) \
  } while (0)

static void test_init(void) {
  CHECK_INIT(NVTEXContextConfig, nvtex_context_config_init);
  CHECK_INIT(NVTEXNormConfig, nvtex_norm_config_init);
  CHECK_INIT(NVTEXLinearConfig, nvtex_linear_config_init);
  CHECK_INIT(NVTEXLayerNormLinearConfig, nvtex_layernorm_linear_config_init);
  CHECK_INIT(NVTEXGroupedLinearConfig, nvtex_grouped_linear_config_init);
  CHECK_INIT(NVTEXLayerNormMLPConfig, nvtex_layernorm_mlp_config_init);
  CHECK_INIT(NVTEXAttentionConfig, nvtex_attention_config_init);
  CHECK_INIT(NVTEXMultiheadAttentionConfig, nvtex_multihead_attention_config_init);
  CHECK_INIT(NVTEXTransformerLayerConfig, nvtex_transformer_layer_config_init);
  CHECK_INIT(NVTEXEmbeddingConfig, nvtex_embedding_config_init);
  CHECK_INIT(NVTEXLMHeadConfig, nvtex_lm_head_config_init);
  CHECK_INIT(NVTEXRotaryConfig, nvtex_rotary_config_init);
  CHECK_INIT(NVTEXStep, nvtex_step_init);
  CHECK_INIT(NVTEXKVCacheConfig, nvtex_kv_cache_config_init);
  CHECK_INIT(NVTEXTokenLoaderConfig, nvtex_token_loader_config_init);
  CHECK_INIT(NVTEXCheckpointConfig, nvtex_checkpoint_config_init);
  CHECK_INIT(NVTEXLlamaConfig, nvtex_llama_config_init);
  CHECK_INIT(NVTEXCrossEntropyOptions, nvtex_cross_entropy_options_init);
}

static NVTEXContext old_context(void) {
  INITIALISED(NVTEXContextConfig, config,
              nvtex_context_config_init((NVTEXContextConfig *)(void *)config, sizeof *config))
  return nvtex_context_create((const NVTEXContextConfig *)(void *)config);
}

// Creates a layer from a struct of `bytes` bytes; gives the number of its parameters, 0 if it is
// refused.
static size_t linear(NVTEXContext context, void *config, size_t bytes) {
  memcpy(config, &bytes, sizeof bytes);
  const NVTEXModule layer = nvtex_linear_create(context, config, NULL);
  const size_t count = layer ? nvtex_module_num_parameters(layer) : 0;
  nvtex_module_destroy(layer);
  return count;
}

static void test_layers(void) {
  enum { LATER = 64 };
  if (case_begin("a layer from a struct of version 0.1")) {
    const NVTEXContext context = old_context();
    INITIALISED(NVTEXTransformerLayerConfig, config,
                nvtex_transformer_layer_config_init((NVTEXTransformerLayerConfig *)(void *)config,
                                                    sizeof *config))
    config->attention.num_attention_heads = 1;
    config->attention.dtype = config->mlp.dtype = kNVTEBFloat16;
    config->mlp.hidden_size = 64;
    config->mlp.ffn_hidden_size = 128;
    const NVTEXModule layer = nvtex_transformer_layer_create(
        context, (const NVTEXTransformerLayerConfig *)(void *)config, NULL);
    EXPECT_OK();
    CHECK(nvtex_module_num_parameters(layer) > 4, "%zu parameters",
          nvtex_module_num_parameters(layer));
    nvtex_module_destroy(layer);
    nvtex_context_destroy(context);
    EXPECT_OK();
  }
  if (case_begin("shorter and longer structs")) {
    const NVTEXContext context = old_context();
    union {
      NVTEXLinearConfig_0_1 config;
      unsigned char bytes[sizeof(NVTEXLinearConfig) + 2 * LATER];
    } u;
    memset(&u, 0, sizeof u);
    nvtex_linear_config_init((NVTEXLinearConfig *)(void *)&u.config, sizeof u.config);
    EXPECT_OK();
    u.config.in_features = 32;
    u.config.out_features = 48;
    const size_t whole = linear(context, &u, sizeof u.config);
    EXPECT_OK();
    CHECK(whole == 1 || whole == 2, "%zu parameters", whole);
    // The first fields alone, as the very first header may have had them.
    const size_t features =
        offsetof(NVTEXLinearConfig_0_1, out_features) + sizeof u.config.out_features;
    CHECK_EQ(linear(context, &u, features), whole);
    EXPECT_OK();
    CHECK_EQ(linear(context, &u, features - 1), 0);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_linear_create: config.struct_size: expected ");
    CHECK_EQ(linear(context, &u, 0), 0);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_linear_create: config.struct_size: expected ");
    // A later header, which this library does not know.
    memset(u.bytes + sizeof(NVTEXLinearConfig), 0, 2 * LATER);
    CHECK_EQ(linear(context, &u, sizeof(NVTEXLinearConfig) + LATER), whole);
    EXPECT_OK();
    u.bytes[sizeof(NVTEXLinearConfig) + LATER - 1] = 1;
    CHECK_EQ(linear(context, &u, sizeof(NVTEXLinearConfig) + LATER), 0);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_linear_create: config: expected zeros behind byte");
    nvtex_context_destroy(context);
    EXPECT_OK();
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_init();
  test_layers();
  return test_end();
}
