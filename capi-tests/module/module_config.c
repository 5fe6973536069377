// Fields of a config that stand for those of its parts: a module of the one is that of the other,
// and two values that differ are refused.
#include "support.h"

enum { HIDDEN = 32, HEADS = 4, GROUPS = 2, FFN = 48, ROWS = 6 };

static NVTEXParameter parameter_of(NVTEXModule module, size_t index) {
  NVTEXParameter p = {.struct_size = sizeof p};
  nvtex_module_parameter(module, index, &p);
  return p;
}

// Whether two modules have the same parameters, with the same initial values.
static void check_same(NVTEXModule a, NVTEXModule b) {
  const size_t count = nvtex_module_num_parameters(a);
  CHECK(count > 0, "a module without parameters");
  if (!CHECK_EQ(nvtex_module_num_parameters(b), count)) return;
  for (size_t i = 0; i < count; i++) {
    const NVTEXParameter p = parameter_of(a, i), q = parameter_of(b, i);
    const NVTEBasicTensor x = nvte_get_tensor_param(p.value, kNVTERowwiseData);
    const NVTEBasicTensor y = nvte_get_tensor_param(q.value, kNVTERowwiseData);
    CHECK(!strcmp(p.name, q.name), "%s and %s", p.name, q.name);
    CHECK_EQ(x.dtype, y.dtype);
    const size_t bytes = numel(x.shape) * dtype_size(x.dtype);
    if (!CHECK_EQ(numel(y.shape), numel(x.shape))) continue;
    void *of_a = host_memory(bytes), *of_b = host_memory(bytes);
    download(of_a, x.data_ptr, bytes);
    download(of_b, y.data_ptr, bytes);
    CHECK(!memcmp(of_a, of_b, bytes), "%s: values differ", p.name);
  }
}

// Whether two modules map the same input to the same bits, and the output's elements.
static void check_outputs(NVTEXModule a, NVTEXModule b, NVTEShape in, size_t out, NVTEDType dtype,
                          const NVTEXStep *step) {
  const size_t bytes = numel(in) * dtype_size(dtype);
  NVTETensor x =
      tensor(buffer_from(random_values(dtype, numel(in), -1, 1), bytes, 0)->ptr, dtype, in);
  NVTEShape shape = in;
  shape.data[in.ndim - 1] = out;
  const size_t written = numel(shape) * dtype_size(dtype);
  Buffer *y[2] = {buffer(written), buffer(written)};
  const NVTEXModule modules[] = {a, b};
  for (int i = 0; i < 2; i++) {
    NVTETensor result = tensor(y[i]->ptr, dtype, shape);
    nvtex_module_forward(modules[i], &x, 1, &result, 1, step, NULL, NULL);
  }
  EXPECT_OK();
  CHECK(!memcmp(buffer_read(y[0]), buffer_read(y[1]), written), "outputs differ");
}

static void same_layers(void) {
  if (!case_begin("layer of a Transformer")) return;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXTransformerLayerConfig a, b;
  nvtex_transformer_layer_config_init(&a, sizeof a);
  nvtex_transformer_layer_config_init(&b, sizeof b);
  a.attention.num_attention_heads = HEADS;
  a.attention.num_gqa_groups = GROUPS;
  a.attention.qkv_format = NVTE_BSHD;
  a.attention.attn_mask_type = NVTE_NO_MASK;
  a.attention.checkpoint_core_attention = true;
  a.mlp.hidden_size = HIDDEN;
  a.mlp.ffn_hidden_size = FFN;
  a.mlp.activation = SWIGLU;
  a.mlp.norm.kind = RMSNorm;
  a.mlp.norm.epsilon = 0.25f;
  a.mlp.bias = false;
  a.mlp.dtype = a.attention.dtype = kNVTEBFloat16;
  a.mlp.init_std = 0.5f;
  a.mlp.output_init_std = 0.125f;
  a.mlp.seed = 42;
  a.mlp.checkpoint = true;

  b.num_attention_heads = HEADS;
  b.num_gqa_groups = GROUPS;
  b.qkv_format = NVTE_BSHD;
  b.attn_mask_type = NVTE_NO_MASK;
  b.hidden_size = HIDDEN;
  b.ffn_hidden_size = FFN;
  b.activation = SWIGLU;
  b.norm_type = RMSNorm;
  b.norm_epsilon = 0.25f;
  b.bias = false;
  b.dtype = kNVTEBFloat16;
  b.init_std = 0.5f;
  b.output_init_std = 0.125f;
  b.seed = 42;
  b.checkpoint = true;
  NVTEXModule x = nvtex_transformer_layer_create(context, &a, NULL);
  NVTEXModule y = nvtex_transformer_layer_create(context, &b, NULL);
  if (EXPECT_OK()) {
    check_same(x, y);
    check_outputs(x, y, SHAPE(2, ROWS, HIDDEN), HIDDEN, kNVTEBFloat16, NULL);
  }
  nvtex_module_destroy(x);
  nvtex_module_destroy(y);

  // Where both have the same value, or the one above has its default, it is that of the part.
  b.mlp.hidden_size = HIDDEN;
  b.ffn_hidden_size = 0;
  b.mlp.ffn_hidden_size = FFN;
  x = nvtex_transformer_layer_create(context, &a, NULL);
  y = nvtex_transformer_layer_create(context, &b, NULL);
  if (EXPECT_OK()) check_same(x, y);
  nvtex_module_destroy(x);
  nvtex_module_destroy(y);
  nvtex_context_destroy(context);
}

static void same_attentions(void) {
  if (!case_begin("multi-head attention")) return;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXMultiheadAttentionConfig a, b;
  nvtex_multihead_attention_config_init(&a, sizeof a);
  nvtex_multihead_attention_config_init(&b, sizeof b);
  a.hidden_size = b.hidden_size = HIDDEN;
  a.input_layernorm = b.input_layernorm = true;
  a.attention.num_attention_heads = b.num_attention_heads = HEADS;
  a.attention.num_gqa_groups = b.num_gqa_groups = GROUPS;
  a.attention.qkv_format = b.qkv_format = NVTE_BSHD;
  a.attention.attn_mask_type = b.attn_mask_type = NVTE_NO_MASK;
  a.attention.dtype = b.dtype = kNVTEFloat16;
  a.norm.kind = b.norm_type = RMSNorm;
  a.norm.epsilon = b.norm_epsilon = 0.25f;
  NVTEXModule x = nvtex_multihead_attention_create(context, &a, NULL);
  NVTEXModule y = nvtex_multihead_attention_create(context, &b, NULL);
  if (EXPECT_OK()) {
    check_same(x, y);
    check_outputs(x, y, SHAPE(2, ROWS, HIDDEN), HIDDEN, kNVTEFloat16, NULL);
  }
  nvtex_module_destroy(x);
  nvtex_module_destroy(y);
  nvtex_context_destroy(context);
}

static void same_linears(void) {
  if (!case_begin("norm and linear layer, grouped linear layers")) return;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXLayerNormLinearConfig a, b;
  nvtex_layernorm_linear_config_init(&a, sizeof a);
  nvtex_layernorm_linear_config_init(&b, sizeof b);
  a.linear.name = "parts";
  b.name = "whole";
  a.linear.in_features = b.in_features = HIDDEN;
  a.linear.out_features = b.out_features = FFN;
  a.linear.bias = b.bias = false;
  a.linear.dtype = b.dtype = kNVTEBFloat16;
  a.linear.init_std = b.init_std = 0.5f;
  a.linear.seed = b.seed = 7;
  a.norm.kind = b.norm_type = RMSNorm;
  a.norm.epsilon = b.norm_epsilon = 0.25f;
  NVTEXModule x = nvtex_layernorm_linear_create(context, &a, NULL);
  NVTEXModule y = nvtex_layernorm_linear_create(context, &b, NULL);
  if (EXPECT_OK()) {
    check_same(x, y);
    check_outputs(x, y, SHAPE(ROWS, HIDDEN), FFN, kNVTEBFloat16, NULL);
  }
  NVTEXModule again = nvtex_layernorm_linear_create(context, &b, NULL);
  CHECK(again == NULL, "one name twice");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.name", "whole");
  nvtex_module_destroy(x);
  nvtex_module_destroy(y);

  NVTEXGroupedLinearConfig c, d;
  nvtex_grouped_linear_config_init(&c, sizeof c);
  nvtex_grouped_linear_config_init(&d, sizeof d);
  c.num_gemms = d.num_gemms = 2;
  c.linear.in_features = d.in_features = HIDDEN;
  c.linear.out_features = d.out_features = FFN;
  c.linear.bias = d.bias = false;
  c.linear.dtype = d.dtype = kNVTEBFloat16;
  c.linear.init_std = d.init_std = 0.5f;
  c.linear.seed = d.seed = 7;
  x = nvtex_grouped_linear_create(context, &c, NULL);
  y = nvtex_grouped_linear_create(context, &d, NULL);
  if (EXPECT_OK()) {
    check_same(x, y);
    NVTEXStep step;
    nvtex_step_init(&step, sizeof step);
    step.m_splits = (size_t[]){2, ROWS - 2};
    step.num_splits = 2;
    check_outputs(x, y, SHAPE(ROWS, HIDDEN), FFN, kNVTEBFloat16, &step);
  }
  nvtex_module_destroy(x);
  nvtex_module_destroy(y);
  nvtex_context_destroy(context);
}

static NVTEXTransformerLayerConfig good_layer(void) {
  NVTEXTransformerLayerConfig c;
  nvtex_transformer_layer_config_init(&c, sizeof c);
  c.hidden_size = HIDDEN;
  c.ffn_hidden_size = FFN;
  c.num_attention_heads = HEADS;
  return c;
}

static void refusals(void) {
  if (!case_begin("refused values")) return;
  NVTEXContext context = nvtex_context_create(NULL);
#define REFUSED(change, name, text)                                                         \
  do {                                                                                      \
    NVTEXTransformerLayerConfig c = good_layer();                                           \
    change;                                                                                 \
    CHECK(nvtex_transformer_layer_create(context, &c, NULL) == NULL, "accepted: " #change); \
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, text);                                       \
  } while (0)
  REFUSED(c.mlp.hidden_size = 64, "config.hidden_size", "config.mlp.hidden_size, 64");
  REFUSED((c.norm_epsilon = 0.5f, c.mlp.norm.epsilon = 0.25f), "config.norm_epsilon", "0.25");
  REFUSED((c.activation = RELU, c.mlp.activation = SWIGLU), "config.activation", "SWIGLU");
  REFUSED((c.parallel.sequence_parallel = true, c.mlp.parallel.tensor_parallel_size = 2),
          "config.parallel", "config.mlp.parallel");
  // The field that the program has set is the one that errors name.
  REFUSED(c.hidden_size = 0, "config.hidden_size", "1 to 2^30");
  REFUSED((c.hidden_size = 0, c.mlp.hidden_size = (size_t)1 << 40), "config.mlp.hidden_size",
          "1 to 2^30");
  REFUSED(c.num_attention_heads = 5, "config.num_attention_heads", "divisor");
  REFUSED((c.num_attention_heads = 0, c.attention.num_attention_heads = 5),
          "config.attention.num_attention_heads", "divisor");
  REFUSED(c.dtype = kNVTEInt32, "config.dtype", "Int32");
  REFUSED(c.init_std = -1, "config.init_std", "at least 0");
  REFUSED(c.norm_type = (NVTE_Norm_Type)9, "config.norm_type", "9");
  REFUSED(c.reserved[1] = 3, "config.reserved[1]", "0");
#undef REFUSED
  // A context of one rank has no others that could share anything.
  NVTEXTransformerLayerConfig c = good_layer();
  c.parallel.tensor_parallel_size = 2;
  CHECK(nvtex_transformer_layer_create(context, &c, NULL) == NULL, "two ranks of one");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.parallel.tensor_parallel_size", "2");
  nvtex_context_destroy(context);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  same_layers();
  same_attentions();
  same_linears();
  refusals();
  return test_end();
}
