// Layers whose tapes leave attention and MLP to be computed again: the same bits, from less memory.
#include "support.h"

enum { LENGTH = 32, BATCH = 2, HIDDEN = 64, HEADS = 4, FFN = 96, MOST_PARAMETERS = 40, STEPS = 2 };

// Bytes of an allocator that are handed out, and the most of them.
typedef struct Usage {
  size_t tapes, most;
} Usage;

static void *take(void *user, size_t bytes, size_t alignment, NVTEXLifetime lifetime,
                  cudaStream_t stream) {
  (void)alignment;
  (void)stream;
  Usage *usage = user;
  if (lifetime == NVTEX_LIFETIME_TAPE) usage->tapes += bytes;
  if (usage->tapes > usage->most) usage->most = usage->tapes;
  return nvtex_malloc(bytes);
}

static void give(void *user, void *ptr, size_t bytes, NVTEXLifetime lifetime, cudaStream_t stream) {
  if (lifetime == NVTEX_LIFETIME_TAPE) ((Usage *)user)->tapes -= bytes;
  nvtex_stream_synchronize(stream);
  nvtex_free(ptr);
}

typedef struct Setup {
  const char *name;
  bool dropout, decoder, post_norm, parallel, output_norm;
  NVTE_Activation_Type activation;
  NVTE_Softmax_Type softmax;
  size_t groups, rotary;
  NVTE_Mask_Type mask;
} Setup;

typedef struct Subject {
  Usage usage;
  NVTEXContext context;
  NVTEXModule layer;
  NVTEXRecipe recipe;
  NVTEXStep step;
  size_t num_parameters;
  Buffer *grads[MOST_PARAMETERS], *y[STEPS], *dx[STEPS], *dmemory, *state;
  size_t tapes;  // Bytes of a tape.
} Subject;

static const int64_t kStates[STEPS + 1][2] = {{9, 0}, {9, 128}, {1, 1}};

static Subject *begin(const Setup *s, NVTEDType dtype, const NVTEXRecipeConfig *recipe,
                      bool attention, bool mlp) {
  Subject *subject = host_memory(sizeof *subject);
  memset(subject, 0, sizeof *subject);
  NVTEXContextConfig config;
  nvtex_context_config_init(&config, sizeof config);
  config.allocator = &subject->usage;
  config.allocate = take;
  config.release = give;
  subject->context = nvtex_context_create(&config);
  if (recipe) subject->recipe = nvtex_recipe_create(recipe);
  NVTEXTransformerLayerConfig c;
  nvtex_transformer_layer_config_init(&c, sizeof c);
  c.attention.num_attention_heads = HEADS;
  c.attention.num_gqa_groups = s->groups;
  c.attention.attn_mask_type = s->mask;
  c.attention.softmax_type = s->softmax;
  c.attention.attention_dropout = s->dropout ? 0.25f : 0;
  c.attention.checkpoint_core_attention = attention;
  c.mlp.hidden_size = HIDDEN;
  c.mlp.ffn_hidden_size = FFN;
  c.mlp.activation = s->activation;
  c.mlp.dtype = dtype;
  c.mlp.init_std = c.mlp.output_init_std = 0.1f;
  c.mlp.checkpoint = mlp;
  c.hidden_dropout = s->dropout ? 0.25f : 0;
  c.decoder = s->decoder;
  c.residual_post_layernorm = s->post_norm;
  c.parallel_attention_mlp = s->parallel;
  c.output_layernorm = s->output_norm;
  subject->layer = nvtex_transformer_layer_create(subject->context, &c, NULL);
  EXPECT_OK();
  subject->num_parameters = nvtex_module_num_parameters(subject->layer);
  for (size_t i = 0; i < subject->num_parameters; i++) {
    NVTEXParameter p = {.struct_size = sizeof p};
    nvtex_module_parameter(subject->layer, i, &p);
    subject->grads[i] = buffer(numel(p.shape) * sizeof(float));
    NVTETensor grad = tensor(subject->grads[i]->ptr, kNVTEFloat32, p.shape);
    // The first backward pass overwrites, later ones add.
    nvtex_module_set_gradient(subject->layer, i, grad, false);
  }
  nvtex_step_init(&subject->step, sizeof subject->step);
  subject->state = buffer_from(kStates[0], sizeof kStates[0], 0);
  if (s->dropout) subject->step.rng_state = tensor(subject->state->ptr, kNVTEInt64, SHAPE(2));
  if (s->rotary) {
    Buffer *b = buffer(LENGTH * s->rotary * sizeof(float));
    subject->step.rotary_frequencies = tensor(b->ptr, kNVTEFloat32, SHAPE(LENGTH, 1, 1, s->rotary));
    nvtex_rotary_frequencies(subject->step.rotary_frequencies, NULL, NULL);
  }
  if (s->mask == NVTE_PADDING_CAUSAL_MASK) {
    const int32_t sums[BATCH + 1] = {0, LENGTH, LENGTH + 7};
    subject->step.cu_seqlens_q = subject->step.cu_seqlens_kv =
        tensor(buffer_from(sums, sizeof sums, 0)->ptr, kNVTEInt32, SHAPE(BATCH + 1));
  }
  EXPECT_OK();
  return subject;
}

// Two microbatches whose tapes are alive together, backward from the last; scales are updated
// between.
static bool train(Subject *s, NVTEDType dtype, NVTETensor *inputs, const NVTETensor *dy,
                  bool decoder) {
  const NVTEShape shape = SHAPE(LENGTH, BATCH, HIDDEN);
  const size_t bytes = numel(shape) * dtype_size(dtype);
  NVTEXTape tapes[STEPS] = {NULL};
  s->dmemory = buffer(bytes);
  nvtex_context_begin(s->context, s->recipe, s->recipe ? NVTEX_CONTEXT_ENABLED : 0, NULL);
  for (int i = 0; i < STEPS; i++) {
    upload(s->state->ptr, kStates[i], sizeof kStates[i]);
    s->step.microbatch = i ? NVTEX_MICROBATCH_LATER : NVTEX_MICROBATCH_FIRST;
    s->y[i] = buffer(bytes);
    NVTETensor y = tensor(s->y[i]->ptr, dtype, shape), ins[2] = {inputs[i], inputs[STEPS]};
    nvtex_module_forward(s->layer, ins, decoder ? 2 : 1, &y, 1, &s->step, &tapes[i], NULL);
    if (!EXPECT_OK()) {
      nvtex_context_end(s->context);
      return false;
    }
    nvtex_context_forward_update(s->context, NULL);
  }
  nvtex_context_end(s->context);
  s->tapes = s->usage.tapes;
  upload(s->state->ptr, kStates[STEPS], sizeof kStates[STEPS]);
  for (int i = STEPS; i-- > 0;) {
    s->dx[i] = buffer(bytes);
    NVTETensor grads[2] = {tensor(s->dx[i]->ptr, dtype, shape),
                           tensor(s->dmemory->ptr, dtype, shape)};
    nvtex_module_backward(s->layer, tapes[i], &dy[i], 1, grads, decoder ? 2 : 1, NULL);
    nvtex_tape_destroy(tapes[i]);
  }
  nvtex_context_backward_update(s->context, NULL);
  return EXPECT_OK();
}

static bool same_bytes(const char *name, const Buffer *a, const Buffer *b) {
  return CHECK(!memcmp(buffer_read(a), buffer_read(b), a->bytes), "%s differs", name);
}

static void end(Subject *s) {
  nvtex_module_destroy(s->layer);
  nvtex_recipe_destroy(s->recipe);
  nvtex_context_destroy(s->context);
  EXPECT_OK();
}

static void compare(const Setup *setup, NVTEDType dtype, const NVTEXRecipeConfig *recipe,
                    bool attention, bool mlp) {
  const NVTEShape shape = SHAPE(LENGTH, BATCH, HIDDEN);
  const size_t bytes = numel(shape) * dtype_size(dtype);
  NVTETensor inputs[STEPS + 1], dy[STEPS];
  for (int i = 0; i < 2 * STEPS + 1; i++) {
    void *host = random_values(dtype, numel(shape), -1.5, 1.5);
    NVTETensor t = tensor(buffer_from(host, bytes, 0)->ptr, dtype, shape);
    if (i <= STEPS) inputs[i] = t;
    if (i > STEPS) dy[i - STEPS - 1] = t;
  }
  Subject *plain = begin(setup, dtype, recipe, false, false);
  Subject *again = begin(setup, dtype, recipe, attention, mlp);
  // The scales of the steps that follow must be the same, too.
  for (int repeat = 0; repeat < 3; repeat++) {
    if (!train(plain, dtype, inputs, dy, setup->decoder)) break;
    if (!train(again, dtype, inputs, dy, setup->decoder)) break;
    for (int i = 0; i < STEPS; i++) {
      same_bytes("y", plain->y[i], again->y[i]);
      same_bytes("dx", plain->dx[i], again->dx[i]);
    }
    if (setup->decoder) same_bytes("dmemory", plain->dmemory, again->dmemory);
    for (size_t i = 0; i < plain->num_parameters; i++) {
      if (!same_bytes("a parameter's gradient", plain->grads[i], again->grads[i])) break;
    }
    // Results of attentions, and of the MLP norm, product and activation, of the operands' sizes.
    const size_t rows = LENGTH * BATCH, size = recipe ? 1 : dtype_size(dtype);
    const size_t gated = setup->activation == SWIGLU ? 2 : 1;
    size_t saved = 0;
    if (attention) saved += rows * HIDDEN * dtype_size(dtype) * (setup->decoder ? 2 : 1);
    if (mlp) saved += rows * (gated * FFN * dtype_size(dtype) + FFN * size);
    CHECK(plain->tapes >= again->tapes + STEPS * saved, "tapes of %zu and %zu bytes; %zu saved",
          plain->tapes, again->tapes, STEPS * saved);
    CHECK(plain->usage.tapes == 0 && again->usage.tapes == 0, "%zu and %zu bytes of tapes left",
          plain->usage.tapes, again->usage.tapes);
  }
  end(plain);
  end(again);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  static const Setup setups[] = {
      {.name = "encoder", .activation = GELU},
      {.name = "dropout", .dropout = true, .activation = GELU},
      {.name = "llama", .activation = SWIGLU, .groups = 2, .rotary = 16},
      {.name = "post norm", .post_norm = true, .dropout = true, .activation = SWIGLU},
      {.name = "parallel", .parallel = true, .activation = RELU, .softmax = NVTE_LEARNABLE_SOFTMAX},
      {.name = "decoder", .decoder = true, .dropout = true, .activation = GELU},
      {.name = "output norm", .output_norm = true, .activation = SRELU},
      {.name = "padding", .activation = GELU, .mask = NVTE_PADDING_CAUSAL_MASK},
  };
  static const struct {
    const char *name;
    int kind;
    NVTEXBackward backward;
    bool fp8_dpa;
  } recipes[] = {
      {"none", -1, NVTEX_BACKWARD_QUANTIZED, false},
      {"delayed", NVTEX_RECIPE_DELAYED_SCALING, NVTEX_BACKWARD_QUANTIZED, false},
      {"current", NVTEX_RECIPE_CURRENT_SCALING, NVTEX_BACKWARD_QUANTIZED, false},
      {"current, high precision", NVTEX_RECIPE_CURRENT_SCALING, NVTEX_BACKWARD_HIGH_PRECISION,
       false},
      {"block", NVTEX_RECIPE_BLOCK_SCALING, NVTEX_BACKWARD_QUANTIZED, false},
      {"block, dequantized", NVTEX_RECIPE_BLOCK_SCALING, NVTEX_BACKWARD_DEQUANTIZED, false},
      {"mxfp8", NVTEX_RECIPE_MXFP8, NVTEX_BACKWARD_QUANTIZED, false},
      {"delayed, FP8 attention", NVTEX_RECIPE_DELAYED_SCALING, NVTEX_BACKWARD_QUANTIZED, true},
  };
  for (size_t v = 0; v < COUNT(setups); v++) {
    for (size_t r = 0; r < COUNT(recipes); r++) {
      NVTEXRecipeConfig config;
      nvtex_recipe_config_init(&config, sizeof config,
                               recipes[r].kind < 0 ? 0 : (NVTEXRecipeKind)recipes[r].kind);
      config.amax_history_len = 4;
      config.backward = recipes[r].backward;
      config.fp8_dpa = recipes[r].fp8_dpa;
      Setup s = setups[v];
      if (s.mask == NVTE_NO_MASK) s.mask = NVTE_CAUSAL_MASK;
      for (int which = 1; which < 4; which++) {
        const NVTEDType dtype = recipes[r].kind < 0 && which == 1 ? kNVTEFloat32 : kNVTEBFloat16;
        if (case_begin("%s, %s%s%s", s.name, recipes[r].name, which & 1 ? ", attention" : "",
                       which & 2 ? ", mlp" : "")) {
          compare(&s, dtype, recipes[r].kind < 0 ? NULL : &config, which & 1, which & 2);
        }
      }
    }
  }
  return test_end();
}
